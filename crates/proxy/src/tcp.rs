//! TCP rules: bytes, unread.

pub(crate) mod connect;
pub(crate) mod failure;
pub(crate) mod flow;
pub(crate) mod tunnel;

use std::borrow::Cow;
use std::time::SystemTime;

use evenkeel_core::group::Outcome;
use evenkeel_manager::snapshot::{RuleSnapshot, Target};

use self::connect::connect_member;
use self::flow::Flow;
use self::tunnel::{Traffic, Tunnel};
use crate::access::{End, Limit, Record};
use crate::age::Age;
use crate::io::Io;
use crate::session::Session;
use crate::sni;

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
    let target = find_target(&session, &rule, &mut client, &mut traffic, &mut server_name).await;
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

/// Finds the group of a client, by the name that it asks for if the rule has groups by name. What was read is the
/// beginning of its traffic. A client that is refused has been told, and counted.
async fn find_target<'a>(
    session: &Session,
    rule: &'a RuleSnapshot,
    client: &mut Io,
    traffic: &mut Traffic,
    server_name: &mut Option<Box<str>>,
) -> Result<&'a Target, End> {
    // The rule may have changed since TLS of the client began, or was left out.
    let has_ended = client.agreed_parameters().is_some();
    if !has_ended && rule.ends_all_tls() {
        return Err(sni::refuse_misled(session, client));
    }
    if rule.names.is_empty() {
        return Ok(&rule.default_target);
    }
    if has_ended {
        return sni::find_ended_target(session, rule, client);
    }
    let mut name = None;
    let routed = Box::pin(sni::find_route(session, rule, client, &mut name)).await;
    if session.worker.log.borrow().is_some() {
        *server_name = name.map(|name| name.as_str().into());
    }
    let route = routed?;
    traffic.up = Flow::with_read(route.read);
    Ok(route.target)
}
