//! TLS between clients and a rule, and between a rule and its members: handshakes, and connections
//! whose bytes are encrypted.

use std::cell::Cell;
use std::fmt;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use evenkeel_core::member::Member;
use evenkeel_limits::Shortage;
use evenkeel_manager::config::{Protocol, Timeouts};
use evenkeel_manager::snapshot::{GroupHandle, Target};
use evenkeel_net::Clock;
use evenkeel_tls::challenge;
use evenkeel_tls::client::Client;
use evenkeel_tls::connect as client;
use evenkeel_tls::handshake::{Cause, HandshakeParameters, ServerHandshake};
use evenkeel_tls::server::Server;
use evenkeel_tls::stream::Stream;
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use crate::io::Io;
use crate::listen::Session;
use crate::memory::{Charge, Memory, SMALL_BYTES};
use crate::metrics::RuleMetrics;
use crate::pool::Upstream;
use crate::service::BoundRequest;
use crate::tcp::ConnectFailure;
use crate::transport::Transport;
use crate::watch::Stop;
use crate::{http, tcp};

/// Memory of a handshake in bytes: its messages with a chain of certificates, keys and secrets.
const HANDSHAKE_BYTES: usize = 32 * 1024;

/// Memory of a connection beside what every client has, in bytes: two keys and what makes others.
const IDLE_BYTES: usize = 4 * 1024;

/// Bytes that are charged at once for what a side does not take: seldom is it more.
const HELD_BYTES: usize = 96 * 1024;

/// A connection with TLS.
#[derive(Debug)]
pub(crate) struct Tls {
    stream: Box<Stream>,
    agreed: Arc<HandshakeParameters>,
    memory: Arc<Memory>,
    /// Charge for the bytes that the connection holds, as a side does not take them.
    held: Option<Charge>,
    _idle: Charge,
    /// Member that has sent nothing yet, to report it if it refuses the connection after the
    /// handshake.
    fresh: Option<Box<SilentMember>>,
    /// True if the member has refused the connection, in place of an answer.
    refused: Rc<Cell<bool>>,
}

/// A member that has sent nothing yet.
struct SilentMember {
    group: Arc<GroupHandle>,
    member: Member,
    client: Arc<Client>,
    clock: Clock,
}

impl fmt::Debug for SilentMember {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fresh").finish_non_exhaustive()
    }
}

impl SilentMember {
    /// Takes note of a member that has refused the connection. Answers whether it has done so for
    /// the sake of our certificate: then it looks at nothing else that was sent.
    fn note_refusal(self, error: &io::Error) -> bool {
        let Some(failure) = client::Failure::after_handshake(error, &self.client) else {
            return false;
        };
        let (group, now) = (self.group.current.load(), self.clock.now());
        let handshakes = self.group.handshakes();
        handshakes.failed_with(group.name(), &self.member, &failure, now);
        failure.cause == client::Cause::ClientCertificate
    }
}

impl Tls {
    /// Returns the parameters agreed on in the handshake.
    pub(crate) fn agreed_parameters(&self) -> &Arc<HandshakeParameters> {
        &self.agreed
    }

    /// Returns the flag that is true if the member has refused the connection after the handshake,
    /// and so has processed nothing.
    pub(crate) fn refused_flag(&self) -> Rc<Cell<bool>> {
        Rc::clone(&self.refused)
    }

    /// The other side will see that something is missing.
    pub(crate) fn mark_cut(&self) {
        self.stream.suppress_close();
    }

    /// True if nothing has come that was not asked for, as far as the runtime knows; messages of
    /// TLS itself are taken in.
    pub(crate) fn is_idle(&mut self) -> bool {
        let mut byte = [0];
        let mut byte = ReadBuf::new(&mut byte);
        let cx = &mut Context::from_waker(Waker::noop());
        let read = Pin::new(&mut *self.stream).poll_read(cx, &mut byte);
        // Half a record may be that of an answer to nobody.
        read.is_pending() && self.stream.held_bytes() == 0
    }

    /// Counts what the connection holds.
    #[inline]
    fn count(&mut self) -> io::Result<()> {
        let held = self.stream.held_bytes();
        if held <= SMALL_BYTES {
            self.held = None;
            return Ok(());
        }
        let charged = match &mut self.held {
            Some(charge) => charge.grow_to(held),
            None => {
                let charge = self.memory.take(held.max(HELD_BYTES));
                charge.map(|charge| self.held = Some(charge))
            }
        };
        charged.map_err(|_| io::Error::from_raw_os_error(libc::ENOMEM))
    }

    #[inline]
    fn count_alerts<T>(&mut self, polled: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        self.count()?;
        polled
    }
}

impl Transport for Tls {
    fn scheme(&self) -> &'static str {
        "https"
    }

    #[inline]
    fn socket(&self) -> Option<SockRef<'_>> {
        Some(SockRef::from(self.stream.socket()))
    }

    fn watched(&mut self) -> Option<&TcpStream> {
        Some(self.stream.socket())
    }
}

impl AsyncRead for Tls {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        space: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let read = Pin::new(&mut *this.stream).poll_read(cx, space);
        if this.fresh.is_some()
            && let Poll::Ready(first) = &read
            && let (Some(fresh), Err(error)) = (this.fresh.take(), first)
        {
            this.refused.set(fresh.note_refusal(error));
        }
        this.count_alerts(read)
    }
}

impl AsyncWrite for Tls {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut *this.stream).poll_write(cx, bytes);
        this.count_alerts(written)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut *this.stream).poll_write_vectored(cx, parts);
        this.count_alerts(written)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(Pin::new(&mut *this.stream).poll_flush(cx))?;
        this.held = None;
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.get_mut().stream).poll_shutdown(cx)
    }
}

/// Serves a client of a rule with TLS.
pub(crate) async fn serve_tls(session: Session, client: Io, server: Arc<Server>) {
    let limit = server.handshake_timeout;
    let Some(client) = accept_tls(&session, client, &server, limit).await else {
        return;
    };
    // An authority has seen what it was to see.
    if client.agreed.protocol.as_deref() == Some(challenge::ALPN) {
        return;
    }
    let client = Io::Tls(Box::new(client));
    // In tasks of their own, so that what the handshake took is gone.
    match session.service.rule().rule.protocol {
        Protocol::Tcp | Protocol::Ftp => tokio::task::spawn_local(tcp::serve_tcp(session, client)),
        Protocol::Http => tokio::task::spawn_local(http::serve_http(session, client)),
    };
}

/// Does the handshake with a client.
pub(crate) async fn accept_tls(
    session: &Session,
    client: Io,
    server: &Server,
    limit: Duration,
) -> Option<Tls> {
    let (worker, metrics) = (&session.worker, &session.service.metrics);
    let charges = [HANDSHAKE_BYTES, IDLE_BYTES].map(|bytes| worker.memory.take(bytes));
    let [Ok(_handshake), Ok(idle)] = charges else {
        Shortage::Memory.report_failure("do the TLS handshake with a client");
        metrics.refused_exhausted.add(1);
        client.reset_on_drop();
        return None;
    };
    let Some(socket) = client.into_socket() else {
        metrics.refused_exhausted.add(1);
        return None;
    };
    session.watch.arm_deadline(limit);
    let mut accepting = ServerHandshake::new(socket, server);
    let accepted = session
        .watch
        .poll_until_stop(|cx| Pin::new(&mut accepting).poll(cx))
        .await;
    session.watch.disarm_deadline();
    match accepted {
        Ok(Ok((stream, agreed))) => {
            match agreed.resumed {
                true => metrics.tls_resumed.add(1),
                false => metrics.tls_full.add(1),
            }
            return Some(Tls {
                stream,
                agreed: Arc::new(agreed),
                memory: Arc::clone(&worker.memory),
                held: None,
                _idle: idle,
                fresh: None,
                refused: Rc::default(),
            });
        }
        Ok(Err(failure)) => {
            metrics.count_tls_failure(failure.cause);
            let (rule, client) = (&session.service.name, session.peer);
            tracing::debug!(%rule, %client, cause = failure.cause.name(), %failure, "the TLS handshake with a client failed");
        }
        Err(Stop::Expired) => metrics.tls_timeout.add(1),
        Err(Stop::Cut) => metrics.terminated.add(1),
    }
    None
}

/// Does the handshake with a member over a connection that was just opened. Answers whether HTTP/2
/// was agreed on, too.
pub(crate) async fn with_member(
    session: &Session,
    target: &Target,
    timeouts: &Timeouts,
    bound: &BoundRequest,
    client: &Arc<Client>,
    upstream: Upstream,
    protocols: &[&str],
) -> Result<(Upstream, bool), ConnectFailure> {
    let worker = &session.worker;
    let (io, file) = upstream.into_parts();
    let Some(socket) = io.into_socket() else {
        return Err(ConnectFailure::Refused);
    };
    let charges = [HANDSHAKE_BYTES, IDLE_BYTES].map(|bytes| worker.memory.take(bytes));
    let [Ok(_handshake), Ok(idle)] = charges else {
        return Err(ConnectFailure::Exhausted(Shortage::Memory));
    };
    let group = target.group.current.load_full();
    let member = group
        .members()
        .iter()
        .find(|member| member.id == bound.member);
    let host = match member {
        Some(member) => Arc::clone(&member.host),
        // It has left meanwhile.
        None => match bound.address.ip() {
            Some(ip) => ip.to_string().into(),
            None => bound.address.to_string().into(),
        },
    };
    let mut connecting = client.connect(socket, &host, protocols);
    let connected = session
        .watch
        .poll_until_stop(|cx| Pin::new(&mut connecting).poll(cx))
        .await;
    let failure = match connected {
        Ok(Ok((stream, agreed))) => {
            let is_http2 = agreed.protocol.as_deref() == Some(b"h2");
            if is_http2 || protocols != ["h2"] {
                let handshakes = target.group.handshakes();
                handshakes.count_success(bound.member, agreed.resumed);
                let fresh = member.map(|member| SilentMember {
                    group: Arc::clone(&target.group),
                    member: member.clone(),
                    client: Arc::clone(client),
                    clock: worker.clock,
                });
                let tls = Tls {
                    stream,
                    agreed: Arc::new(agreed),
                    memory: Arc::clone(&worker.memory),
                    held: None,
                    _idle: idle,
                    fresh: fresh.map(Box::new),
                    refused: Rc::default(),
                };
                let io = Io::Tls(Box::new(tls));
                return Ok((Upstream::after_handshake(io, file, client.id), is_http2));
            }
            client::Failure::no_http2()
        }
        Ok(Err(failure)) => failure,
        Err(Stop::Expired) => client::Failure::timed_out(timeouts.connect),
        Err(Stop::Cut) => return Err(ConnectFailure::Cut),
    };
    if let Some(member) = member {
        let (handshakes, now) = (target.group.handshakes(), worker.now());
        handshakes.failed_with(group.name(), member, &failure, now);
    }
    Err(match failure.cause {
        client::Cause::Timeout => ConnectFailure::TimedOut,
        _ => ConnectFailure::NoTls,
    })
}

impl RuleMetrics {
    /// Counts a handshake that failed.
    pub(crate) fn count_tls_failure(&self, cause: Cause) {
        match cause {
            Cause::Incompatible => self.tls_incompatible.add(1),
            Cause::UnknownName => self.tls_unknown_name.add(1),
            Cause::PlainHttp => self.tls_plain_http.add(1),
            Cause::Garbage => self.tls_garbage.add(1),
            Cause::Oversized => self.tls_oversized.add(1),
            Cause::ClientCertificate => self.tls_client_certificate.add(1),
            Cause::RefusedByClient => self.tls_refused_by_client.add(1),
            Cause::Closed => self.tls_closed.add(1),
            Cause::Internal => self.tls_internal.add(1),
        }
    }
}
