//! FTP rules: the control connection is balanced and understood, data connections go through us to
//! the same member.
//!
//! The session's task is `control`: it carries commands and replies, which
//! [`wire::ftp`](evenkeel_wire::ftp) understands. Each data connection has a task of its own, `data`,
//! which ends with the session; it carries bytes as a TCP rule does, spliced where that pays.

mod control;
mod data;
mod ports;
mod send;

use std::borrow::Cow;
use std::sync::Arc;
use std::time::SystemTime;

use evenkeel_core::group::Outcome;

use self::control::{Control, ControlEnd};
use crate::access::{End, MemberAttempts, Record};
use crate::io::Io;
use crate::session::Session;
use crate::tcp::connect::connect_member;

/// Tells a client that it is not served.
pub(crate) fn refuse_client(mut client: Io) {
    send::send_farewell(
        &mut client,
        "421 The service is not available now: try again later",
    );
}

/// Serves one client.
pub(crate) async fn serve_ftp(session: Session, client: Io) {
    let at = SystemTime::now();
    let started = session.worker.now();
    let rule = session.service.rule();
    let metrics = &session.service.metrics;
    // The mark that goes with ABOR is urgent; it is wanted where it stands.
    if let Some(socket) = client.socket() {
        let _ = socket.set_out_of_band_inline(true);
    }
    let (mut response_time, mut retries) = (None, 0);
    let mut tries: Option<Box<MemberAttempts>> = None;
    let (mut moved, mut agreed) = ([0; 2], None);
    let mut client = client;
    let counts = (&mut tries, &mut retries);
    let connected = connect_member(&session, &rule, &rule.default_target, &mut client, counts);
    let end = match Box::pin(connected).await {
        Err(end) => {
            if end != End::Client {
                send::send_farewell(&mut client, "421 No server can be reached: try again later");
            }
            end
        }
        Ok((mut bound, mut upstream)) => {
            metrics.waits.add_wait(session.worker.now().since(started));
            let last = tries.as_deref();
            let member = last.map(|last| (Arc::clone(&last.member), last.member_name.clone()));
            let mut control = Control::new(&session, &rule, &bound, &client, &upstream, member);
            let mut greeted = |is_good| {
                let now = session.worker.now();
                response_time = Some(now.since(bound.ticket.started()));
                let outcome = match is_good {
                    true => Outcome::Success,
                    false => Outcome::Error,
                };
                bound.ticket.record_response(outcome, now);
                outcome
            };
            let end = loop {
                match control.run(&mut client, &mut upstream, &mut greeted).await {
                    ControlEnd::Session(end) => break end,
                    ControlEnd::Clear => match control.secure_client(client).await {
                        Some(secured) => {
                            agreed = secured.agreed_parameters().cloned();
                            client = secured;
                        }
                        None => break End::Client,
                    },
                }
            };
            let outcome = match (control.greeting_outcome(), end) {
                (Some(outcome), _) => outcome,
                (None, End::Member | End::MemberTimeout) => Outcome::Error,
                (None, _) => Outcome::Cancelled,
            };
            control.close().await;
            moved = control.moved_bytes();
            rule.default_target
                .group
                .finish(bound.ticket, outcome, session.worker.now());
            end
        }
    };
    session.count_end(end);
    if !session.wants_record(false) {
        return;
    }
    let group = rule.default_target.group.current.load();
    let record = Record {
        at,
        client: session.peer,
        rule: Cow::Borrowed(&session.service.name),
        user: None,
        route: None,
        group: Some(Cow::Borrowed(group.name())),
        attempts: tries,
        tls: agreed,
        server_name: None,
        limit: None,
        request_limit: None,
        hedged: None,
        request: None,
        protocol: None,
        details: None,
        head_bytes_sent: 0,
        status: None,
        grpc_status: None,
        bytes_received: moved[0],
        bytes_sent: moved[1],
        response_time,
        total_time: session.worker.now().since(started),
        cost: rule.rule.cost,
        retries,
        end,
    };
    session.log_record(false, record);
}
