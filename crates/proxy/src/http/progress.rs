//! Progress of an exchange: its stage, and the side whose turn it is. The deadline depends on both.

use std::task::{Context, Poll};
use std::time::Duration;

use evenkeel_core::engines::EngineRequest;
use evenkeel_core::group::Ticket;
use evenkeel_core::time::Instant;
use evenkeel_manager::config::{Limits, Timeouts};
use evenkeel_manager::snapshot::GroupHandle;

use super::failure::Failure;
use super::flow::{Flow, TURN_BYTES, Waits};
use super::request::Request;
use crate::access::Limit;
use crate::bandwidth::Gate;
use crate::io::{Io, TransferError};
use crate::session::Session;
use crate::watch::{Stop, Watch};
use crate::worker::Worker;

/// Side that a time limit concerns, or that broke off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Client,
    Member,
}

/// Progress of an exchange, on which its deadline depends.
pub(super) struct Progress {
    /// True if the member takes no more of the request. The member may still answer.
    deaf: bool,
    /// The client sends no body before the member has sent a 100 (Continue).
    pub(super) awaits_continue: bool,
    /// A call of gRPC: its streams may be silent for long.
    grpc: bool,
    /// Something pauses until the next sweep, for want of bandwidth.
    pauses: bool,
    /// True if anything was ever waited for.
    has_waited: bool,
    /// Bytes that were sent, and the side whose turn it was, when something was last waited for.
    waited: Option<(u64, u64, Side)>,
    /// Time that the client's slowness has taken, if there are limits for that.
    slow: Option<Box<Slow>>,
}

impl Progress {
    pub(super) fn new(request: &Request) -> Self {
        Progress {
            deaf: false,
            awaits_continue: request.awaits_continue,
            grpc: request.grpc,
            pauses: false,
            has_waited: false,
            waited: None,
            slow: None,
        }
    }

    /// Sends more of the request. An error is the client's.
    pub(super) fn poll_up(
        &mut self,
        cx: &mut Context<'_>,
        up: &mut Flow,
        client: &mut Io,
        upstream: &mut Io,
        session: &Session,
    ) -> Result<(), TransferError> {
        if self.deaf || up.is_done() {
            return Ok(());
        }
        let gate = session.bandwidth_gates().map(|[gate, _]| gate);
        match self.poll_flow(cx, up, client, upstream, &session.worker, gate) {
            Poll::Ready(Err(TransferError::To)) => {
                self.deaf = true;
                Ok(())
            }
            Poll::Ready(Err(broken)) => Err(broken),
            _ => Ok(()),
        }
    }

    /// Sends more of the response.
    pub(super) fn poll_down(
        &mut self,
        cx: &mut Context<'_>,
        down: &mut Flow,
        upstream: &mut Io,
        client: &mut Io,
        session: &Session,
    ) -> Poll<Result<(), TransferError>> {
        let gate = session.bandwidth_gates().map(|[_, gate]| gate);
        self.poll_flow(cx, down, upstream, client, &session.worker, gate)
    }

    #[inline]
    fn poll_flow(
        &mut self,
        cx: &mut Context<'_>,
        flow: &mut Flow,
        from: &mut Io,
        to: &mut Io,
        worker: &Worker,
        gate: Option<Gate<'_>>,
    ) -> Poll<Result<(), TransferError>> {
        let Some(gate) = gate else {
            return flow.poll(cx, from, to, worker, TURN_BYTES);
        };
        let most = gate.bytes_allowed().min(TURN_BYTES);
        if most == 0 {
            self.pauses = true;
            return Poll::Pending;
        }
        let before = flow.sent_bytes();
        let step = flow.poll(cx, from, to, worker, most);
        gate.count_passed(flow.sent_bytes().saturating_sub(before));
        step
    }

    /// True if anything was ever waited for.
    pub(super) fn has_waited(&self) -> bool {
        self.has_waited
    }

    /// The limit that has run out, if one has and not a time limit.
    pub(super) fn reached_limit(&self) -> Option<Limit> {
        self.slow.as_ref().and_then(|slow| slow.limit)
    }

    /// Returns the side that has to act next.
    pub(super) fn whose_turn(&self, up: &Flow, down: Option<&Flow>) -> Side {
        if down.is_some_and(|down| down.waiting_side() == Waits::ForReceiver) {
            return Side::Client;
        }
        if !self.deaf && !up.is_done() && up.waiting_side() == Waits::ForSender {
            // RFC 9110, section 10.1.1: a server answers an expectation at once.
            let member_first = self.awaits_continue && up.body_sent() == 0;
            return if member_first {
                Side::Member
            } else {
                Side::Client
            };
        }
        Side::Member
    }

    /// Returns the failure of an exchange that was stopped before its client got anything of the response.
    pub(super) fn stop_failure(&self, stop: Stop, up: &Flow) -> Failure {
        match (stop, self.whose_turn(up, None)) {
            (Stop::Cut, _) => Failure::Cut,
            (Stop::Expired, Side::Client) if self.reached_limit().is_some() => {
                Failure::ClientTooSlow
            }
            (Stop::Expired, Side::Client) => Failure::ClientTimedOut,
            (Stop::Expired, Side::Member) => Failure::TimedOut,
        }
    }

    /// Tells the ticket of a response when the body begins, and when the member waits for the
    /// client. `step` is what came of sending the response on; call this before [`Progress::arm_deadline`].
    #[cold]
    pub(super) fn update_ticket(
        &self,
        step: &Poll<Result<(), TransferError>>,
        up: &Flow,
        down: &Flow,
        group: &GroupHandle,
        ticket: &mut Ticket,
        worker: &Worker,
    ) {
        let begins = down.has_begun() && !ticket.has_first_byte();
        let is_client = || self.pauses || self.whose_turn(up, Some(down)) == Side::Client;
        let stands = step.is_pending() && is_client();
        if !begins && stands == ticket.clock_stands() {
            return;
        }
        let now = worker.now();
        if begins {
            group.first_byte_arrived(ticket, now);
        }
        match stands {
            true => ticket.stop_clock(now),
            false => ticket.start_clock(now),
        }
    }

    /// Tells an engine's request what has come of its answer, and when the engine waits for the client.
    #[cold]
    pub(super) fn update_engine(
        &self,
        step: &Poll<Result<(), TransferError>>,
        (up, down): (&Flow, &mut Flow),
        group: &GroupHandle,
        engine: &mut EngineRequest,
        worker: &Worker,
    ) {
        let events = down.take_events();
        if events > 0 {
            let now = worker.now();
            down.charge_events(now);
            // The first token takes the request out of its engine's queue: somebody may wait for that.
            match group.queue.waiting() > 0 && engine.first_token().is_none() {
                _ if !engine.is_stream() => {}
                true => group.queue.vacate(|| engine.take_events(events, now)),
                false => engine.take_events(events, now),
            }
        }
        let is_client = || self.pauses || self.whose_turn(up, Some(down)) == Side::Client;
        if step.is_pending() && is_client() {
            engine.skip_gap();
        }
    }

    /// Sets the deadline anew if anything has moved, or it is somebody else's turn.
    pub(super) fn arm_deadline(
        &mut self,
        watch: &Watch,
        up: &Flow,
        down: Option<&Flow>,
        timeouts: &Timeouts,
        limits: &Limits,
    ) {
        self.has_waited = true;
        if std::mem::take(&mut self.pauses) {
            // That is nobody's fault, and there is no deadline until the next sweep.
            self.waited = None;
            if let Some(slow) = &mut self.slow {
                slow.since = None;
            }
            return;
        }
        let turn = self.whose_turn(up, down);
        let now = Some((up.sent_bytes(), down.map_or(0, Flow::sent_bytes), turn));
        if self.waited != now {
            self.waited = now;
            match turn {
                _ if self.grpc => watch.arm_deadline(timeouts.idle),
                _ if limits.min_body_rate.is_some() || limits.min_response_rate.is_some() => {
                    let bytes = match down {
                        Some(down) if down.waiting_side() == Waits::ForReceiver => {
                            (Limit::MinResponseRate, down.sent_bytes())
                        }
                        _ => (Limit::MinBodyRate, up.body_sent()),
                    };
                    let is_client = turn == Side::Client;
                    let waits = is_client.then_some(bytes);
                    let slow = self.slow.get_or_insert_default();
                    let left = slow.note_wait(waits, watch.coarse_now(), timeouts, limits);
                    match turn {
                        Side::Client => watch.arm_deadline(left),
                        Side::Member => watch.arm_and_look(timeouts.response),
                    }
                }
                Side::Client => watch.arm_deadline(timeouts.body),
                Side::Member => watch.arm_and_look(timeouts.response),
            }
        }
    }
}

/// Time for which a client was waited for, beside the bytes that it has sent or taken.
#[derive(Default)]
struct Slow {
    /// Direction in which the client was last waited for, and since when.
    since: Option<(Limit, Instant)>,
    body: Duration,
    response: Duration,
    /// Limit that sets the deadline, if it is one of these limits.
    limit: Option<Limit>,
}

impl Slow {
    /// Notes that something is waited for: from a client, in which direction and after how many
    /// bytes, or from somebody else. Returns the time that the client has.
    fn note_wait(
        &mut self,
        client: Option<(Limit, u64)>,
        now: Instant,
        timeouts: &Timeouts,
        limits: &Limits,
    ) -> Duration {
        self.limit = None;
        match self.since.take() {
            Some((Limit::MinResponseRate, since)) => self.response += now.since(since),
            Some((_, since)) => self.body += now.since(since),
            None => {}
        }
        let Some((limit, bytes)) = client else {
            return timeouts.body;
        };
        self.since = Some((limit, now));
        let (rate, spent) = match limit {
            Limit::MinResponseRate => (limits.min_response_rate, self.response),
            _ => (limits.min_body_rate, self.body),
        };
        let Some(rate) = rate else {
            return timeouts.body;
        };
        let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(rate.0.max(1));
        let earned = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        let may = limits.rate_grace.saturating_add(earned);
        let left = may.saturating_sub(spent);
        if left < timeouts.body {
            self.limit = Some(limit);
        }
        left.min(timeouts.body)
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_manager::config::ByteRate;

    use super::*;

    #[test]
    fn a_client_has_the_grace_and_what_it_has_earned() {
        let at = |seconds: u64| Instant::from_nanos(seconds * 1_000_000_000);
        let limits = Limits {
            min_body_rate: Some(ByteRate(100)),
            rate_grace: Duration::from_secs(10),
            ..Limits::default()
        };
        let timeouts = Timeouts::default();
        let mut slow = Slow::default();
        let mut body = |bytes: Option<u64>, now| {
            let client = bytes.map(|bytes| (Limit::MinBodyRate, bytes));
            let left = slow.note_wait(client, at(now), &timeouts, &limits);
            (left.as_secs(), slow.limit.is_some())
        };
        assert_eq!(body(Some(0), 0), (10, true));
        assert_eq!(body(Some(0), 4), (6, true));
        assert_eq!(body(Some(300), 8), (5, true));
        // Time in which somebody else is waited for does not count.
        assert_eq!(body(None, 9), (30, false));
        assert_eq!(body(Some(300), 100), (4, true));
        assert_eq!(body(Some(300), 110), (0, true));
        // A fast one is bound by the longest pause only.
        assert_eq!(body(Some(1_000_000), 110), (30, false));
        // The other direction has no limit here, and does not count for this one.
        let left = slow.note_wait(
            Some((Limit::MinResponseRate, 0)),
            at(120),
            &timeouts,
            &limits,
        );
        assert_eq!((left.as_secs(), slow.limit), (30, None));
        slow.note_wait(
            Some((Limit::MinBodyRate, 2000)),
            at(130),
            &timeouts,
            &limits,
        );
        assert_eq!(slow.response.as_secs(), 10);
    }
}
