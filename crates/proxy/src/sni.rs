//! Pass-through: the group of a client by the name in its first message. TLS is between the client
//! and the member, which gets every byte as it is, unless the rule ends TLS of clients with the name.

use std::task::Poll;

use evenkeel_limits::Shortage;
use evenkeel_manager::snapshot::{RuleSnapshot, Target};
use evenkeel_tls::challenge;
use evenkeel_tls::handshake::{self, Cause};
use evenkeel_wire::client_hello::{MAX_BYTES, Problem, Scanner, ServerName};

use crate::access::End;
use crate::buffer::Buffer;
use crate::io::{Io, Nobody};
use crate::memory::{BUFFER_BYTES, OutOfMemory};
use crate::session::Session;
use crate::tls::handshake::accept_tls;
use crate::watch::Stop;

/// Route of a client.
pub(crate) struct Route<'a> {
    pub(crate) target: &'a Target,
    /// Bytes that were read to find the route: they are for the member.
    pub(crate) read: Option<Buffer>,
}

/// Finds the group for a client. `name` is set to what it asks for as soon as that is known. A
/// client that is refused has been told, and counted.
pub(crate) async fn find_route<'a>(
    session: &Session,
    rule: &'a RuleSnapshot,
    client: &mut Io,
    name: &mut Option<ServerName>,
) -> Result<Route<'a>, End> {
    let mut read = None;
    session.watch.arm_deadline(rule.rule.timeouts.sni);
    let hello = read_hello(session, client, &mut read, name).await;
    session.watch.disarm_deadline();
    let place = hello.and_then(|()| {
        let place = rule.find_place(name.as_ref().map(ServerName::as_str));
        place.ok_or(SniRefusal::For(Cause::UnknownName))
    });
    let (buffers, metrics) = (&session.worker.buffers, &session.service.metrics);
    let refused = match place {
        Ok(place) => {
            let target = rule.target_at(place);
            let mut read = read.map(|read| buffers.shrink_buffer(read));
            if rule.first_passed.is_some() && !rule.passes_through(place) {
                // The name is one of the parameters of the handshake.
                *name = None;
                end_tls(session, client, read.take()).await?;
            }
            return Ok(Route { target, read });
        }
        Err(refused) => refused,
    };
    let end = match refused {
        SniRefusal::For(cause) => {
            let input = read.as_ref().map_or(&[][..], Buffer::bytes);
            let cause = match client.socket() {
                Some(socket) => handshake::turn_away(&socket, input, cause),
                None => cause,
            };
            metrics.count_tls_failure(cause);
            let (rule, client) = (&session.service.name, session.peer);
            tracing::debug!(%rule, %client, cause = cause.name(), ?name, "a client is refused: no group can be chosen by its TLS server name");
            match cause {
                Cause::UnknownName => End::Refused,
                _ => End::Client,
            }
        }
        SniRefusal::By(Stop::Expired) => {
            metrics.tls_timeout.add(1);
            End::ClientTimeout
        }
        SniRefusal::By(Stop::Cut) => {
            metrics.terminated.add(1);
            client.reset_on_drop();
            End::Terminated
        }
        SniRefusal::Exhausted => {
            Shortage::Memory.report_failure("read the first TLS message of a client");
            metrics.refused_exhausted.add(1);
            client.reset_on_drop();
            End::Exhausted
        }
    };
    if let Some(read) = read {
        buffers.give_back(read);
    }
    Err(end)
}

/// Finds the group for a client whose TLS ends here. A client that is refused has been counted.
pub(crate) fn find_ended_target<'a>(
    session: &Session,
    rule: &'a RuleSnapshot,
    client: &Io,
) -> Result<&'a Target, End> {
    let agreed = client.agreed_parameters();
    let name = agreed.and_then(|of| of.name.as_deref());
    match rule.find_place(name) {
        Some(place) if rule.ends_tls_at(place) => Ok(rule.target_at(place)),
        // The member awaits TLS of the client, which has ended already.
        Some(_) => Err(refuse_misled(session, client)),
        None => {
            let metrics = &session.service.metrics;
            metrics.count_tls_failure(Cause::UnknownName);
            let (rule, client) = (&session.service.name, session.peer);
            tracing::debug!(%rule, %client, ?name, "a client is refused: no group has its TLS server name");
            Err(End::Refused)
        }
    }
}

/// Refuses a client for which a change of the rule came too late: its TLS has ended, and should have passed through, or
/// the other way round.
pub(crate) fn refuse_misled(session: &Session, client: &Io) -> End {
    session.service.metrics.terminated.add(1);
    client.reset_on_drop();
    let (rule, client) = (&session.service.name, session.peer);
    tracing::debug!(%rule, %client, "a client is refused: the rule's TLS changed while the client connected");
    End::Terminated
}

/// Ends TLS of a client whose first message was read. A client whose handshake fails has been told, and counted.
async fn end_tls(session: &Session, client: &mut Io, read: Option<Buffer>) -> Result<(), End> {
    let buffers = &session.worker.buffers;
    let plain = std::mem::replace(client, Io::Nobody(Nobody));
    let accepted = match session.service.tls_server() {
        Some(server) => {
            let bytes = read.as_ref().map_or(&[][..], Buffer::bytes);
            accept_tls(session, plain, bytes, &server, server.handshake_timeout).await
        }
        // The configuration has changed meanwhile.
        None => Err(refuse_misled(session, &plain)),
    };
    if let Some(read) = read {
        buffers.give_back(read);
    }
    *client = Io::from(accepted?);
    let agreed = client.agreed_parameters();
    match agreed.and_then(|agreed| agreed.protocol.as_deref()) {
        // An authority has seen what it was to see.
        Some(challenge::ALPN) => Err(End::Complete),
        _ => Ok(()),
    }
}

/// Reason why a client is not served.
enum SniRefusal {
    For(Cause),
    By(Stop),
    Exhausted,
}

impl From<Problem> for SniRefusal {
    fn from(problem: Problem) -> Self {
        SniRefusal::For(match problem {
            Problem::Garbage => Cause::Garbage,
            Problem::Oversized => Cause::Oversized,
        })
    }
}

/// Reads the first message, and perhaps more.
async fn read_hello(
    session: &Session,
    client: &mut Io,
    read: &mut Option<Buffer>,
    name: &mut Option<ServerName>,
) -> Result<(), SniRefusal> {
    let worker = &session.worker;
    let mut scanner = Scanner::default();
    loop {
        if let Some(read) = read {
            if let Some(hello) = scanner.scan_hello(read.bytes())? {
                *name = hello.name;
                return Ok(());
            }
            let limit = MAX_BYTES.max(BUFFER_BYTES);
            match read.make_room(limit, &worker.memory) {
                Ok(true) => {}
                // Larger than what the scanner takes, so this cannot be.
                Ok(false) => return Err(Problem::Oversized.into()),
                Err(OutOfMemory) => return Err(SniRefusal::Exhausted),
            }
        }
        // No buffer is held while nothing comes, and a small one while nothing more comes.
        let filled = session.watch.poll_until_stop(|cx| {
            let mut buffer = read.take().unwrap_or_else(|| worker.buffers.take());
            let filled = buffer.poll_fill(cx, client);
            match (buffer.is_empty(), &filled) {
                (true, _) => worker.buffers.give_back(buffer),
                (false, Poll::Pending) => *read = Some(worker.buffers.shrink_buffer(buffer)),
                (false, Poll::Ready(_)) => *read = Some(buffer),
            }
            filled
        });
        match filled.await {
            Ok(Ok(1..)) => {}
            Ok(Ok(0) | Err(_)) => return Err(SniRefusal::For(Cause::Closed)),
            Err(stop) => return Err(SniRefusal::By(stop)),
        }
    }
}
