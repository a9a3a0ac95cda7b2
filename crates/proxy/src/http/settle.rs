//! End of an exchange: the member's ticket, the tokens of an engine's answer, and the two connections.

use std::sync::Arc;

use evenkeel_core::group::Outcome;
use evenkeel_wire::orca;

use super::client::{After, Client, PrivateConnection};
use super::delivered::Delivered;
use super::flow::Flow;
use super::request::Request;
use super::response::{Head, take_reports};
use super::route::RequestRoute;
use crate::access::End;
use crate::bound_request::BoundRequest;
use crate::http2::grpc;
use crate::io::Io;
use crate::upstream::Upstream;

impl Client {
    /// Takes in what trailers say. Returns a failure of the member, if they tell of one.
    fn read_end(
        &mut self,
        routed: &RequestRoute,
        bound: &BoundRequest,
        down: &mut Flow,
    ) -> Option<Outcome> {
        if let Some(reports) = down.take_reports() {
            let [text, binary] = [orca::FIELD, orca::BINARY_FIELD].map(|name| reports.values(name));
            take_reports(routed.target(), bound, &self.session.worker, text, binary);
        }
        let Io::Stream(stream) = &mut self.stream else {
            return None;
        };
        let status = stream.take_grpc_status()?;
        grpc::is_failure(&status).then_some(Outcome::Failure)
    }

    /// Outcome that the end of a response's delivery means for the member.
    pub(super) fn end_outcome(&self, head: &Head, end: End) -> Outcome {
        match end {
            End::Complete | End::Alert => head.outcome,
            // As with TCP: what a client sends in a tunnel can make a member reset it.
            End::Member if head.status == 101 => head.outcome,
            // A member that sends until the request's time is over has not failed.
            End::MemberTimeout if self.session.watch.is_over() => Outcome::Cancelled,
            // The response is long, or the member is slow: a slow one has more of these than others.
            End::MemberTimeout if self.session.watch.is_part_over() => Outcome::Error,
            End::Member | End::MemberTimeout => Outcome::Failure,
            _ => Outcome::Cancelled,
        }
    }

    /// Decides what becomes of the two connections.
    pub(super) fn settle_connections(
        &mut self,
        request: &mut Request,
        routed: &RequestRoute,
        mut bound: BoundRequest,
        mut head: Head,
        mut upstream: Upstream,
        delivered: &Delivered,
    ) -> After {
        let said = self.read_end(routed, &bound, &mut head.down);
        let worker = &self.session.worker;
        let outcome = match said {
            Some(failed) if delivered.end == End::Complete => failed,
            _ => self.end_outcome(&head, delivered.end),
        };
        // Mostly the head brings the body along.
        let ended = if delivered.has_waited {
            worker.now()
        } else {
            head.at
        };
        if let Some(engine) = bound.ticket.engine_mut() {
            let is_complete = head.status == 200 && delivered.end == End::Complete;
            let end = head.down.answer_end(is_complete);
            request.note_tokens(end.usage, engine.first_token());
            engine.count_times(&end, request.at, ended);
            if let Some((charge, tokens)) = engine.count_share(&end) {
                let queue = &routed.target().group.queue;
                queue.correct_charge(&charge, tokens);
            }
            engine.finish(&end, ended);
            self.settle_tokens(request, head.status, &end, ended);
        }
        bound.ticket.note_bytes(head.down.body_sent());
        routed.target().group.finish(bound.ticket, outcome, ended);
        let clean = !head.down.has_excess();
        if let Some(rest) = head.down.end_flow(worker) {
            worker.buffers.give_back(rest);
        }
        if !delivered.end.is_orderly() {
            // Neither side may take what it has for the whole.
            upstream.reset_on_drop();
            return After::Cut;
        }
        if head.status == 101 {
            return After::Close;
        }
        let sent_all = request.up.is_done();
        let shared = routed.target().shares_connections();
        if request.authenticates_connection || head.authenticates_connection {
            upstream.set_private();
        }
        let goes_on = head.keep_alive && sent_all && clean && !head.until_close && shared;
        if goes_on && upstream.is_private() {
            // A stream of HTTP/2 is no connection, and its client's others are not known to be the same user's.
            let is_connection = !matches!(self.stream, Io::Stream(_) | Io::Nobody(_));
            if is_connection && head.delivery.keep_alive {
                self.private = Some(Box::new(PrivateConnection {
                    group: Arc::clone(&routed.target().group),
                    member: bound.member,
                    upstream,
                }));
            }
        } else if goes_on {
            let http = &routed.rule.http;
            let expires = worker.watchers.coarse_now().after(http.pool_idle_timeout);
            if let Some(connection) = upstream.into_shared_connection() {
                let (pool, most) = (&worker.upstreams, http.pool_idle_connections);
                pool.give_back(bound.member, connection, most, expires);
            }
        } else if !sent_all {
            upstream.reset_on_drop();
        }
        if head.delivery.keep_alive {
            return After::NextRequest;
        }
        // A client that asked for the end sends nothing more.
        if !request.keep_alive && sent_all && !request.up.has_excess() {
            After::Close
        } else {
            After::Linger
        }
    }
}
