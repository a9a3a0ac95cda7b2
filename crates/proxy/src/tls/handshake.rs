//! Handshakes of TLS: with clients of a rule, and with members.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_limits::Shortage;
use evenkeel_manager::config::Timeouts;
use evenkeel_manager::snapshot::Target;
use evenkeel_tls::client::Client;
use evenkeel_tls::connect as client;
use evenkeel_tls::handshake::{Cause, ServerHandshake};
use evenkeel_tls::server::Server;

use super::connection::{SilentMember, Tls};
use crate::access::End;
use crate::bound_request::BoundRequest;
use crate::connection::PeerConnection;
use crate::io::Io;
use crate::metrics::RuleMetrics;
use crate::pool::MemberConnection;
use crate::session::Session;
use crate::tcp::failure::ConnectFailure;
use crate::watch::Stop;

/// Memory of a handshake in bytes: its messages with a chain of certificates, keys and secrets.
const HANDSHAKE_BYTES: usize = 32 * 1024;

/// Memory of a connection beside what every client has, in bytes: two keys and what makes others.
const IDLE_BYTES: usize = 4 * 1024;

/// Does the handshake with a client. `read` are bytes that were read from the client already. A failure has
/// been counted.
pub(crate) async fn accept_tls(
    session: &Session,
    client: Io,
    read: &[u8],
    server: &Server,
    limit: Duration,
) -> Result<PeerConnection, End> {
    let (worker, metrics) = (&session.worker, &session.service.metrics);
    let charges = [HANDSHAKE_BYTES, IDLE_BYTES].map(|bytes| worker.memory.take(bytes));
    let [Ok(_handshake), Ok(idle)] = charges else {
        Shortage::Memory.report_failure("do the TLS handshake with a client");
        metrics.refused_exhausted.add(1);
        client.reset_on_drop();
        return Err(End::Exhausted);
    };
    let Some(socket) = client.into_socket() else {
        metrics.refused_exhausted.add(1);
        return Err(End::Exhausted);
    };
    session.watch.arm_deadline(limit);
    let mut accepting = ServerHandshake::new(socket, server).with_input(read);
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
            let tls = Tls::new(stream, agreed, &worker.memory, idle, None);
            Ok(PeerConnection::Tls(Box::new(tls)))
        }
        Ok(Err(failure)) => {
            metrics.count_tls_failure(failure.cause);
            let (rule, client) = (&session.service.name, session.peer);
            tracing::debug!(%rule, %client, cause = failure.cause.name(), %failure, "the TLS handshake with a client failed");
            Err(End::Client)
        }
        Err(Stop::Expired) => {
            metrics.tls_timeout.add(1);
            Err(End::ClientTimeout)
        }
        Err(Stop::Cut) => {
            metrics.terminated.add(1);
            Err(End::Terminated)
        }
    }
}

/// Does the handshake with a member over a connection that was just opened. Answers whether HTTP/2
/// was agreed on, too.
pub(crate) async fn with_member(
    session: &Session,
    target: &Target,
    timeouts: &Timeouts,
    bound: &BoundRequest,
    client: &Arc<Client>,
    opened: MemberConnection,
    protocols: &[&str],
) -> Result<(MemberConnection, bool), ConnectFailure> {
    let worker = &session.worker;
    let (connection, file) = opened.into_parts();
    let Some(socket) = connection.into_socket() else {
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
                let tls = Tls::new(stream, agreed, &worker.memory, idle, fresh);
                let connection = PeerConnection::Tls(Box::new(tls));
                let secured = MemberConnection::new(connection, file, client.id);
                return Ok((secured, is_http2));
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
