//! TCP rules: bytes, unread.

use std::borrow::Cow;
use std::cell::RefCell;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, SystemTime};

use evenkeel_core::address::Address;
use evenkeel_core::group::{Outcome, Request};
use evenkeel_core::member::MemberId;
use evenkeel_limits::Shortage;
use evenkeel_manager::config::Timeouts;
use evenkeel_manager::snapshot::{RuleSnapshot, Target};
use evenkeel_net::stream;
use tokio::io::AsyncWrite;
use tokio::net::TcpSocket;

use crate::access::{End, Limit, MemberAttempts, Record};
use crate::age::Age;
use crate::bound_request::{BoundRequest, Refusal};
use crate::buffer::Buffer;
use crate::files::{ConnectionFile, WaitReason};
use crate::io::{Io, TransferError};
use crate::member_choice::insert;
use crate::pipe::Pipe;
use crate::pool::MemberConnection;
use crate::proxied;
use crate::service::class_of_client;
use crate::session::Session;
use crate::sni;
use crate::tls::handshake;
use crate::transparent;
use crate::upstream::Upstream;
use crate::watch::Stop;
use crate::worker::Worker;

/// Serves one client.
pub(crate) async fn serve_tcp(session: Session, mut client: Io) {
    let at = SystemTime::now();
    let started = session.worker.now();
    let rule = session.service.rule();
    if let Some(left) =
        Age::new(&session.worker).time_left(&rule.rule.limits, session.watch.coarse_now())
    {
        session.watch.set_total_limit(left);
    }
    let mut traffic = Traffic::default();
    let (mut tries, mut retries) = (None, 0);
    let mut response_time = None;
    let mut server_name = None;
    let target = match rule.names.is_empty() {
        true => Ok(&rule.default_target),
        false => {
            find_named_target(&session, &rule, &mut client, &mut traffic, &mut server_name).await
        }
    };
    let end = match target {
        // It was told, and counted.
        Err(end) => end,
        Ok(target) => {
            let asked = session.worker.now();
            // In a box, which is gone when the member is found: connections live longer than that.
            let counts = (&mut tries, &mut retries);
            let connected = connect_member(&session, &rule, target, &mut client, counts);
            let end = match Box::pin(connected).await {
                Err(end) => {
                    traffic.up.release_buffers(&session.worker);
                    client.reset_on_drop();
                    end
                }
                Ok((mut bound, mut upstream)) => {
                    let waited = session.worker.now().since(asked);
                    session.service.metrics.waits.add_wait(waited);
                    let tunnel = Tunnel {
                        session: &session,
                        idle: rule.rule.timeouts.idle,
                        member: Some(bound.member),
                        half_close: rule.rule.half_close,
                    };
                    let end = tunnel
                        .run(&mut client, &mut upstream, &mut traffic, || {
                            let now = session.worker.now();
                            response_time = Some(now.since(bound.ticket.started()));
                            bound.ticket.record_response(Outcome::Success, now);
                        })
                        .await;
                    let outcome = match end {
                        // A server that closes with something unread resets the connection: what
                        // a client sends must not make it a failure.
                        _ if response_time.is_some() => Outcome::Success,
                        // Nor before the first byte, unless it happens to this member more often
                        // than to the others.
                        End::Member => Outcome::Error,
                        _ => Outcome::Cancelled,
                    };
                    target
                        .group
                        .finish(bound.ticket, outcome, session.worker.now());
                    end
                }
            };
            session.count_end(end);
            if end == End::Limited {
                session.service.metrics.count_limit(Limit::MaxLifetime);
            }
            end
        }
    };
    if !session.wants_record(false) {
        return;
    }
    let group = target.ok().map(|target| target.group.current.load());
    let record = Record {
        at,
        client: session.peer,
        rule: Cow::Borrowed(&session.service.name),
        user: None,
        route: None,
        group: group.as_ref().map(|group| Cow::Borrowed(&**group.name())),
        attempts: tries,
        tls: client.agreed_parameters().cloned(),
        server_name,
        request: None,
        protocol: None,
        details: None,
        head_bytes_sent: 0,
        status: None,
        grpc_status: None,
        bytes_received: traffic.up.moved,
        bytes_sent: traffic.down.moved,
        response_time,
        total_time: session.worker.now().since(started),
        cost: rule.rule.cost,
        retries,
        end,
        limit: (end == End::Limited).then_some(Limit::MaxLifetime),
        request_limit: None,
        hedged: None,
    };
    session.log_record(false, record);
}

/// Finds the group of a client by the name that it asks for. What was read is the beginning of its
/// traffic.
async fn find_named_target<'a>(
    session: &Session,
    rule: &'a RuleSnapshot,
    client: &mut Io,
    traffic: &mut Traffic,
    server_name: &mut Option<Box<str>>,
) -> Result<&'a Target, End> {
    let mut name = None;
    let routed = Box::pin(sni::find_route(session, rule, client, &mut name)).await;
    if session.worker.log.borrow().is_some() {
        *server_name = name.map(|name| name.as_str().into());
    }
    let route = routed?;
    traffic.up = Flow::with_read(route.read);
    Ok(route.target)
}

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

/// Reason why a member could not be connected to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectFailure {
    /// The member refused, or there is no way to it.
    Refused,
    /// The member did not answer in time.
    TimedOut,
    /// There was no agreement on TLS.
    NoTls,
    /// The request is for WebSocket, which the member does not take over HTTP/2.
    NoWebSocket,
    /// The process, or the machine, has run out of something: not the member's fault.
    Exhausted(Shortage),
    /// The client's connection is to be cut.
    Cut,
}

impl ConnectFailure {
    /// Returns the outcome that the failure means for the member.
    pub(crate) fn member_outcome(self) -> Outcome {
        match self {
            ConnectFailure::Refused | ConnectFailure::TimedOut | ConnectFailure::NoTls => {
                Outcome::Failure
            }
            ConnectFailure::NoWebSocket | ConnectFailure::Exhausted(_) | ConnectFailure::Cut => {
                Outcome::Cancelled
            }
        }
    }

    /// True if connecting to another member may go better: local ports are used up for each address
    /// by itself.
    pub(crate) fn is_of_one_member(self) -> bool {
        match self {
            ConnectFailure::Refused
            | ConnectFailure::TimedOut
            | ConnectFailure::NoTls
            | ConnectFailure::NoWebSocket => true,
            ConnectFailure::Exhausted(shortage) => shortage == Shortage::Ports,
            ConnectFailure::Cut => false,
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
        result = Err(connect_failure(error));
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
        transparent::bind_source(&socket, from).map_err(connect_failure)?;
    }
    let connecting = socket.connect(address);
    tokio::pin!(connecting);
    let watch = &session.watch;
    match watch
        .poll_until_stop(|cx| connecting.as_mut().poll(cx))
        .await
    {
        Ok(Ok(stream)) => Ok(MemberConnection::new(stream.into(), file, 0)),
        Ok(Err(error)) => Err(connect_failure(error)),
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
    opened.map_err(connect_failure)
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

fn connect_failure(error: io::Error) -> ConnectFailure {
    Shortage::of_error(&error).map_or(ConnectFailure::Refused, ConnectFailure::Exhausted)
}

/// Two connections that carry each other's bytes.
pub(crate) struct Tunnel<'a> {
    pub(crate) session: &'a Session,
    /// Time for which the tunnel may be silent.
    pub(crate) idle: Duration,
    /// Member that the tunnel leads to, if load alerts may close the tunnel.
    pub(crate) member: Option<MemberId>,
    /// True if one side may end while the other goes on.
    pub(crate) half_close: bool,
}

/// Both directions of a tunnel.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    /// Flow from the client to the member.
    pub(crate) up: Flow,
    /// Flow from the member to the client.
    pub(crate) down: Flow,
}

impl Traffic {
    /// True if nothing is on its way, and neither side has ended.
    fn is_calm(&self) -> bool {
        let calm = |flow: &Flow| matches!(flow.stage, Stage::Empty | Stage::Splicing(None));
        calm(&self.up) && calm(&self.down)
    }
}

impl Tunnel<'_> {
    /// Carries bytes until both sides have ended, or something is wrong. `answered` is
    /// called with the member's first byte.
    pub(crate) async fn run(
        &self,
        client: &mut Io,
        member: &mut Io,
        traffic: &mut Traffic,
        mut answered: impl FnMut(),
    ) -> End {
        let watch = &self.session.watch;
        let worker = &*self.session.worker;
        let metrics = &self.session.service.metrics;
        let idle = self.idle;
        if let Some(member) = self.member {
            watch.tie_to_member(member, worker.rng.borrow_mut().f32());
        }
        watch.arm_deadline(idle);
        let (mut deaf, mut pauses) = (false, false);
        let end = std::future::poll_fn(|cx| {
            let (up, down) = (traffic.up.moved, traffic.down.moved);
            let gates = self.session.bandwidth_gates();
            let [may_up, may_down] = match &gates {
                Some(gates) => gates
                    .each_ref()
                    .map(|gate| gate.bytes_allowed().min(TURN_BYTES)),
                None => [TURN_BYTES; 2],
            };
            let step_up = traffic.up.poll(cx, client, member, worker, may_up);
            let step_down = traffic.down.poll(cx, member, client, worker, may_down);
            let (up, down) = (traffic.up.moved - up, traffic.down.moved - down);
            if let Some([gate_up, gate_down]) = &gates {
                gate_up.count_passed(up);
                gate_down.count_passed(down);
            }
            metrics.bytes_from_clients.add(up);
            metrics.bytes_to_clients.add(down);
            if down > 0 && traffic.down.moved == down {
                answered();
            }
            let (up_ended, down_ended) = match (step_up, step_down) {
                (Poll::Ready(Err(TransferError::Exhausted(shortage))), _)
                | (_, Poll::Ready(Err(TransferError::Exhausted(shortage)))) => {
                    shortage.report_failure("forward the bytes of a connection");
                    return Poll::Ready(End::Exhausted);
                }
                (Poll::Ready(Err(TransferError::From | TransferError::Chunks(_))), _)
                | (_, Poll::Ready(Err(TransferError::To))) => {
                    return Poll::Ready(End::Client);
                }
                (_, Poll::Ready(Err(TransferError::From | TransferError::Chunks(_)))) => {
                    return Poll::Ready(End::Member);
                }
                // The member takes no more, but what it has sent before is still good.
                (Poll::Ready(Err(TransferError::To)), down) => {
                    deaf = true;
                    (true, down.is_ready())
                }
                (up, down) => (up.is_ready(), down.is_ready()),
            };
            let one_suffices = !self.half_close && !deaf;
            if up_ended && down_ended || (up_ended || down_ended) && one_suffices {
                return Poll::Ready(End::Complete);
            }
            if may_up == 0 || may_down == 0 {
                // It is not idle.
                pauses = true;
            } else if std::mem::take(&mut pauses) && up + down == 0 {
                watch.arm_deadline(idle);
            } else if up + down > 0 {
                // The last word is the member's only if the client said nothing with it.
                watch.arm_after_traffic(idle, up == 0);
            } else if watch.take_call() && traffic.is_calm() {
                return Poll::Ready(End::Alert);
            }
            watch.poll_stop(cx).map(|stop| match stop {
                Stop::Cut => End::Terminated,
                Stop::Expired if watch.is_over() => End::Limited,
                // Whoever should have taken or sent the next byte cannot be told from
                // outside, unless bytes wait for one of them.
                Stop::Expired if traffic.up.is_blocked() => End::MemberTimeout,
                Stop::Expired => End::ClientTimeout,
            })
        })
        .await;
        traffic.up.release_buffers(worker);
        traffic.down.release_buffers(worker);
        if !end.is_orderly() {
            client.reset_on_drop();
            member.reset_on_drop();
        }
        end
    }
}

/// Reads in a row that fill the buffer before a flow is spliced: a bulk transfer, for
/// which a pipe pays. Small messages never need one.
const FULL_READS: u8 = 2;

/// A spliced flow whose calls move less than this goes back to reads and writes...
const SMALL_SPLICE: usize = 4096;

/// Number of such calls in a row after which a flow goes back to reads and writes.
const SMALL_SPLICES: u8 = 16;

/// Bytes that a flow moves before others get their turn.
pub(crate) const TURN_BYTES: u64 = 2 << 20;

/// Direction of a tunnel.
#[derive(Debug, Default)]
pub(crate) struct Flow {
    stage: Stage,
    /// Bytes that have reached the receiver's socket.
    pub(crate) moved: u64,
    streak: u8,
}

#[derive(Debug, Default)]
enum Stage {
    /// Nothing waits to be written; no buffer is held.
    #[default]
    Empty,
    Copying(Buffer),
    /// Bulk. A pipe is held only while there are bytes in it.
    Splicing(Option<Pipe>),
    /// The end is being passed on.
    Ending,
    /// The end was passed on, or nothing more can be written.
    Ended,
}

impl Flow {
    /// A flow that begins with bytes that were read already.
    pub(crate) fn with_read(read: Option<Buffer>) -> Self {
        Flow {
            stage: read.map_or(Stage::Empty, Stage::Copying),
            ..Flow::default()
        }
    }

    /// True if the receiver does not take the bytes that it should.
    fn is_blocked(&self) -> bool {
        match &self.stage {
            // Perhaps in the transport.
            Stage::Copying(_) | Stage::Ending => true,
            Stage::Splicing(pipe) => pipe.is_some(),
            Stage::Empty | Stage::Ended => false,
        }
    }

    pub(crate) fn release_buffers(&mut self, worker: &Worker) {
        match std::mem::replace(&mut self.stage, Stage::Ended) {
            Stage::Copying(buffer) => worker.buffers.give_back(buffer),
            Stage::Splicing(Some(pipe)) => worker.pipes.give_back(pipe),
            Stage::Splicing(None) | Stage::Empty | Stage::Ending | Stage::Ended => {}
        }
    }

    /// Moves what can be moved, about `most` bytes before others get their turn; ready when the flow
    /// has ended. If `most` is 0, nothing is done, and nothing wakes the task.
    #[inline]
    pub(crate) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        from: &mut Io,
        to: &mut Io,
        worker: &Worker,
        most: u64,
    ) -> Poll<Result<(), TransferError>> {
        if most == 0 {
            return Poll::Pending;
        }
        let turn = self.moved + most;
        loop {
            if self.moved >= turn {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            match &mut self.stage {
                Stage::Ended => return Poll::Ready(Ok(())),
                // `shutdown` of a socket never waits, and that of a broken one is none.
                Stage::Ending => {
                    let _ = ready!(Pin::new(&mut *to).poll_shutdown(cx));
                    self.stage = Stage::Ended;
                }
                Stage::Empty => {
                    let mut buffer = worker.buffers.take();
                    match buffer.poll_fill(cx, from) {
                        Poll::Pending => {
                            worker.buffers.give_back(buffer);
                            return Poll::Pending;
                        }
                        Poll::Ready(Err(error)) => {
                            worker.buffers.give_back(buffer);
                            return Poll::Ready(Err(TransferError::of_error(
                                &error,
                                TransferError::From,
                            )));
                        }
                        Poll::Ready(Ok(0)) => {
                            worker.buffers.give_back(buffer);
                            self.stage = Stage::Ending;
                        }
                        Poll::Ready(Ok(_)) => {
                            self.streak = if buffer.is_full() { self.streak + 1 } else { 0 };
                            self.stage = Stage::Copying(buffer);
                        }
                    }
                }
                Stage::Copying(buffer) => {
                    while !buffer.is_empty() {
                        match ready!(Pin::new(&mut *to).poll_write(cx, buffer.bytes())) {
                            Ok(n) if n > 0 => {
                                buffer.consume(n);
                                self.moved += n as u64;
                            }
                            Ok(_) => return self.break_flow(worker, TransferError::To),
                            Err(error) => {
                                return self.break_flow(
                                    worker,
                                    TransferError::of_error(&error, TransferError::To),
                                );
                            }
                        }
                    }
                    if let Err(error) = ready!(Pin::new(&mut *to).poll_flush(cx)) {
                        return self.break_flow(
                            worker,
                            TransferError::of_error(&error, TransferError::To),
                        );
                    }
                    self.release_buffers(worker);
                    let splices = from.prepare_splice() && to.prepare_splice();
                    self.stage = if self.streak >= FULL_READS && splices {
                        self.streak = 0;
                        Stage::Splicing(None)
                    } else {
                        Stage::Empty
                    };
                }
                Stage::Splicing(held) => {
                    let pipe = held.take().or_else(|| worker.take_pipe());
                    let (Some(from), Some(into), Some(mut pipe)) =
                        (from.spliceable_socket(), to.spliceable_socket(), pipe)
                    else {
                        // No more files: copying does, too.
                        self.stage = Stage::Empty;
                        continue;
                    };
                    if pipe.held_bytes() == 0 {
                        let most = usize::try_from(most).unwrap_or(usize::MAX);
                        let filled = pipe.poll_fill(cx, from, most);
                        let Poll::Ready(Ok(n @ 1..)) = filled else {
                            worker.pipes.give_back(pipe);
                            if let Err(error) = ready!(filled) {
                                return Poll::Ready(Err(TransferError::of_error(
                                    &error,
                                    TransferError::From,
                                )));
                            }
                            self.stage = Stage::Ending;
                            continue;
                        };
                        self.streak = if n < SMALL_SPLICE { self.streak + 1 } else { 0 };
                    }
                    while pipe.held_bytes() > 0 {
                        match pipe.poll_drain(cx, into) {
                            Poll::Ready(Ok(n)) => self.moved += n as u64,
                            Poll::Ready(Err(error)) => {
                                return self.break_flow(
                                    worker,
                                    TransferError::of_error(&error, TransferError::To),
                                );
                            }
                            Poll::Pending => {
                                *held = Some(pipe);
                                return Poll::Pending;
                            }
                        }
                    }
                    worker.pipes.give_back(pipe);
                    if self.streak >= SMALL_SPLICES {
                        self.streak = 0;
                        self.stage = Stage::Empty;
                    }
                }
            }
        }
    }

    fn break_flow(
        &mut self,
        worker: &Worker,
        broken: TransferError,
    ) -> Poll<Result<(), TransferError>> {
        self.release_buffers(worker);
        Poll::Ready(Err(broken))
    }
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
