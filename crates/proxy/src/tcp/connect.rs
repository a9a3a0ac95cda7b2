//! Connections to members: a member is chosen, and connected to.

use std::cell::RefCell;
use std::io;
use std::net::{IpAddr, SocketAddr};

use evenkeel_core::address::Address;
use evenkeel_core::group::Request;
use evenkeel_core::member::MemberId;
use evenkeel_limits::Shortage;
use evenkeel_manager::config::Timeouts;
use evenkeel_manager::snapshot::{RuleSnapshot, Target};
use evenkeel_net::stream;
use socket2::SockRef;
use tokio::net::TcpSocket;

use super::failure::ConnectFailure;
use crate::access::{End, MemberAttempts};
use crate::bound_request::{BoundRequest, Refusal};
use crate::files::{ConnectionFile, WaitReason};
use crate::io::Io;
use crate::member_choice::insert;
use crate::pool::MemberConnection;
use crate::proxied;
use crate::service::class_of_client;
use crate::session::Session;
use crate::tls::handshake;
use crate::transparent;
use crate::upstream::Upstream;
use crate::watch::Stop;
use crate::worker::Worker;

/// Finds a member that can be connected to. Adds the members that it tries, and counts the tries
/// that failed.
pub(crate) async fn connect_member(
    session: &Session,
    rule: &RuleSnapshot,
    target: &Target,
    client: &mut Io,
    (tries, retries): (&mut Option<Box<MemberAttempts>>, &mut u32),
) -> Result<(BoundRequest, Upstream), End> {
    if target.policy.is_in_maintenance(session.peer.ip()) {
        session.service.metrics.refused_maintenance.add(1);
        return Err(End::Maintenance);
    }
    let mut tried: Vec<MemberId> = Vec::new();
    let mut failed = None;
    let timeouts = &rule.rule.timeouts;
    let group = &target.group;
    let class = class_of_client(&rule.rule, session.peer.ip());
    loop {
        let now = session.worker.now();
        let request = Request {
            client: session.peer.ip(),
            cost: rule.rule.cost,
            excluded_members: &tried,
            ..Request::at_time(now)
        };
        let mut bound = match session
            .bind_request(
                target,
                &RefCell::default(),
                (&request, None),
                timeouts,
                class,
                client,
            )
            .await
        {
            Ok(bound) => bound,
            Err(refusal) => {
                return Err(match failed {
                    // What failed before counts for more than that nobody is left.
                    Some((failure, end)) if refusal == Refusal::NoMember => {
                        session.count_exhausted(failure);
                        end
                    }
                    _ => session.count_refusal(refusal),
                });
            }
        };
        let connected = open_member_connection(session, target, timeouts, &mut bound, &[]).await;
        MemberAttempts::append_to(tries, bound.tries.take());
        match connected {
            Ok((connection, _)) => return Ok((bound, connection.into())),
            Err(failure) => {
                let outcome = failure.member_outcome();
                group.finish(bound.ticket, outcome, session.worker.now());
                let end = match failure {
                    ConnectFailure::Cut => End::Terminated,
                    ConnectFailure::Exhausted(_) | ConnectFailure::NoWebSocket => End::Refused,
                    ConnectFailure::Refused | ConnectFailure::NoTls => End::Member,
                    ConnectFailure::TimedOut => End::MemberTimeout,
                };
                if !failure.is_of_one_member() || *retries >= rule.rule.connect_retries {
                    session.count_exhausted(failure);
                    return Err(end);
                }
                failed = Some((failure, end));
                insert(&mut tried, bound.member);
                *retries += 1;
                session.service.metrics.retries.add(1);
            }
        }
    }
}

/// Opens a connection to a member with TLS if it speaks that; then `protocols` are offered. Answers
/// whether HTTP/2 was agreed on, too.
pub(crate) async fn open_member_connection(
    session: &Session,
    target: &Target,
    timeouts: &Timeouts,
    bound: &mut BoundRequest,
    protocols: &[&str],
) -> Result<(MemberConnection, bool), ConnectFailure> {
    let (metrics, address) = (&session.service.metrics, &bound.address);
    let began = session.worker.now();
    session.watch.arm_deadline(timeouts.connect);
    let from = transparent::source_address(session, target, address);
    let mut result = open_connection(session, address, from)
        .await
        .map(|opened| (opened, false));
    if let (Some(version), Ok((upstream, _))) = (target.send_proxy, &result)
        && let Err(error) = proxied::send_header(session, upstream, version)
    {
        result = Err(error.into());
    }
    if let Some(client) = &target.tls
        && let Ok((upstream, _)) = result
    {
        // In a box: connections without TLS are to stay small.
        let secured = handshake::with_member(
            session, target, timeouts, bound, client, upstream, protocols,
        );
        result = Box::pin(secured).await;
    }
    session.watch.disarm_deadline();
    if let Some(tries) = &mut bound.tries {
        tries.connect_time = Some(session.worker.now().since(began));
    }
    match &result {
        Ok(_) => metrics.member_connects.add(1),
        Err(ConnectFailure::Cut) => {}
        Err(ConnectFailure::Exhausted(shortage)) => shortage.report_failure("connect to a member"),
        Err(failure) => {
            metrics.member_connect_failures.add(1);
            tracing::debug!(rule = %session.service.name, %address, ?failure, "cannot connect to a member");
        }
    }
    result
}

/// Opens a connection, which comes from this address if there is one.
async fn open_connection(
    session: &Session,
    address: &Address,
    from: Option<IpAddr>,
) -> Result<MemberConnection, ConnectFailure> {
    let worker = &*session.worker;
    let file = match worker.connection_file() {
        Some(file) => file,
        None => another_file(session).await?,
    };
    let address = match address {
        Address::Ip(address) => *address,
        Address::Unix(path) => {
            let stream = open_or_evict(worker, || stream::connect_unix(path))?;
            return Ok(MemberConnection::new(stream.into(), file, 0));
        }
    };
    let socket = open_or_evict(worker, || socket_for(address))?;
    if let Some(from) = from {
        transparent::bind_source(&SockRef::from(&socket), from).map_err(ConnectFailure::from)?;
    }
    let connecting = socket.connect(address);
    tokio::pin!(connecting);
    let watch = &session.watch;
    match watch
        .poll_until_stop(|cx| connecting.as_mut().poll(cx))
        .await
    {
        Ok(Ok(stream)) => Ok(MemberConnection::new(stream.into(), file, 0)),
        Ok(Err(error)) => Err(error.into()),
        Err(Stop::Expired) => Err(ConnectFailure::TimedOut),
        Err(Stop::Cut) => Err(ConnectFailure::Cut),
    }
}

/// Returns what `open` gives. If there were too many files, and an idle one is closed, `open` is
/// called again.
fn open_or_evict<T>(
    worker: &Worker,
    open: impl Fn() -> io::Result<T>,
) -> Result<T, ConnectFailure> {
    let mut opened = open();
    if let Err(error) = &opened
        && Shortage::of_error(error).is_some_and(Shortage::is_of_files)
        && worker.close_idle()
    {
        opened = open();
    }
    opened.map_err(ConnectFailure::from)
}

/// Waits for a connection that another worker closes.
async fn another_file(session: &Session) -> Result<ConnectionFile, ConnectFailure> {
    let worker = &*session.worker;
    loop {
        let closed = worker.files.wait_for_close(WaitReason::Connections);
        if let Some(file) = worker.connection_file() {
            return Ok(file);
        }
        tokio::pin!(closed);
        match session
            .watch
            .poll_until_stop(|cx| closed.as_mut().poll(cx))
            .await
        {
            Ok(()) => {}
            Err(Stop::Expired) => return Err(ConnectFailure::Exhausted(Shortage::Files)),
            Err(Stop::Cut) => return Err(ConnectFailure::Cut),
        }
    }
}

fn socket_for(address: SocketAddr) -> io::Result<TcpSocket> {
    let socket = if address.is_ipv4() {
        TcpSocket::new_v4()
    } else {
        TcpSocket::new_v6()
    }?;
    socket.set_nodelay(true)?;
    Ok(socket)
}

impl Session {
    /// Counts a refusal and says how it ends the request.
    pub(crate) fn count_refusal(&self, refusal: Refusal) -> End {
        let metrics = &self.service.metrics;
        match refusal {
            Refusal::NoMember => metrics.refused_no_member.add(1),
            Refusal::QueueFull => metrics.refused_queue_full.add(1),
            Refusal::QueueTimeout => metrics.refused_queue_timeout.add(1),
            Refusal::Overload => metrics.refused_overload.add(1),
            Refusal::Cut => return End::Terminated,
            Refusal::ClientGone => return End::Client,
        }
        End::Refused
    }

    /// Counts a request or connection that ends with `failure`, if that is our own.
    pub(crate) fn count_exhausted(&self, failure: ConnectFailure) {
        if let ConnectFailure::Exhausted(_) = failure {
            self.service.metrics.refused_exhausted.add(1);
        }
    }
}
