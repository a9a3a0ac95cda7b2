//! A request on its way: in flight until it is over, and what its end says of the member.

use std::net::IpAddr;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use crate::cost::{Cost, InFlightMoment};
use crate::engines::EngineRequest;
use crate::latency::{Awaited, Remainder};
use crate::load::Location;
use crate::member::{Digest, Member, Slot};
use crate::observe::{Crowd, Outcome};
use crate::time::Instant;

/// A request that is bound to a member. Counts as in flight until it is dropped.
#[derive(Debug)]
pub struct Ticket {
    slot: Arc<Slot>,
    location: Arc<Location>,
    index: usize,
    /// The bit by which the client is [known](Crowd).
    client: Option<NonZeroU64>,
    /// Moment at which the request was bound, moved on by the time that does not count. While the
    /// [clock stands](Ticket::stop_clock): the time that has counted so far.
    started: Instant,
    clock_stands: bool,
    /// True if the age of the request counts at the member.
    is_unanswered: bool,
    /// True if decisions do not go by the latency.
    is_unmeasured: bool,
    /// True if the response is [followed](Ticket::is_followed) because of what it is.
    is_stream: bool,
    /// Moment that the latency waits for, once the head is here.
    awaited: Option<Awaited>,
    /// Time to the first byte of the body of a response that is followed, in microseconds; 0 before it.
    first_byte: u32,
    /// Most requests at once at the member, by its limit.
    limit: u32,
    /// Cost of the request, which is subtracted when the request is over.
    cost: Cost,
    /// Sum of the costs of the requests that the member had already when this one was bound.
    others: f32,
    digest: Digest,
    /// The request at an engine, with strategy `inference`.
    pub(super) engine: Option<Box<EngineRequest>>,
    verdict: Option<Verdict>,
    end: Outcome,
    /// True if `started` is the time of the end.
    has_ended: bool,
    /// True if the request goes on without the ticket.
    is_kept: bool,
}

/// Answered request that goes on without its ticket: all that its end needs.
#[derive(Debug)]
pub(super) struct Kept {
    pub(super) slot: Arc<Slot>,
    location: Arc<Location>,
    pub(super) cost: Cost,
    digest: Digest,
    /// Failures in a row that the answer ended.
    failures_before: u32,
}

impl Kept {
    /// Ends a request; `at` is `None` if the time of the end is unknown.
    pub(super) fn end_request(&self, outcome: Outcome, at: Option<Instant>) {
        self.slot.own_record().count(outcome);
        self.slot.end_request(self.cost);
        self.location.end_request(self.cost, at);
    }

    /// Notes that the member broke off a request of `client`, with this outcome.
    pub(super) fn break_off(&self, outcome: Outcome, client: Option<IpAddr>, now: Instant) {
        self.slot
            .observe_broken(outcome, self.failures_before, now, self.digest);
        if let Some(client) = client {
            let record = self.slot.own_record();
            record.note_client(Crowd::bit(client), true, now);
        }
    }
}

/// Observation at the beginning of the member's answer.
#[derive(Clone, Copy, Debug)]
struct Verdict {
    outcome: Outcome,
    /// Failures in a row that the answer ended.
    failures_before: u32,
}

impl Ticket {
    /// A ticket for a request that is bound to `member`, and already counted there, beside `others`.
    pub(super) fn new(
        member: &Member,
        index: usize,
        cost: Cost,
        others: InFlightMoment,
        now: Instant,
        digest: Digest,
    ) -> Self {
        member.location.begin_request(cost, now);
        member.slot.unanswered_begins(now);
        Ticket {
            cost,
            others: others.total_cost(),
            slot: Arc::clone(&member.slot),
            location: Arc::clone(&member.location),
            index,
            client: None,
            started: now,
            clock_stands: false,
            is_unanswered: true,
            is_unmeasured: false,
            is_stream: false,
            awaited: None,
            first_byte: 0,
            limit: member.max_connections.unwrap_or(u32::MAX),
            digest,
            engine: None,
            verdict: None,
            end: Outcome::Cancelled,
            has_ended: false,
            is_kept: false,
        }
    }

    /// Says whose request it is: what one client gets is held against a member otherwise than
    /// what many get.
    #[must_use]
    pub fn of_client(mut self, client: IpAddr) -> Self {
        self.client = NonZeroU64::new(Crowd::bit(client));
        self
    }

    fn note_client(&self, failed: bool, now: Instant) {
        if let Some(client) = self.client {
            self.slot
                .own_record()
                .note_client(client.get(), failed, now);
        }
    }

    /// Index of the member in the snapshot that picked.
    pub fn member_index(&self) -> usize {
        self.index
    }

    /// The request at an engine, if the group has strategy `inference`.
    pub fn engine_mut(&mut self) -> Option<&mut EngineRequest> {
        self.engine.as_deref_mut()
    }

    /// The location of the member.
    pub fn location(&self) -> &Location {
        &self.location
    }

    /// Cost of the request.
    pub fn cost(&self) -> Cost {
        self.cost
    }

    /// Moment at which the request was bound. After the head it is later by the time that
    /// [does not count](Ticket::stop_clock).
    pub fn started(&self) -> Instant {
        self.started
    }

    /// True if the member has as many requests as its limit allows: there is room for another one only when a request
    /// is over, not when it is answered.
    pub fn is_at_limit(&self) -> bool {
        self.slot.in_flight() >= self.limit.min(self.slot.reported_limit())
    }

    /// The member has begun to answer (TCP: first byte), and its latency is the time since
    /// [`Ticket::started`]. Only the first call counts.
    pub fn record_response(&mut self, outcome: Outcome, now: Instant) {
        self.head_arrived(outcome, Remainder::Nothing, now);
    }

    /// The head of the member's response is here, and of the response `remainder` is missing. Whether
    /// the latency ends here depends on the group's
    /// [`latency`](crate::group::GroupSettings::latency). Only the first call counts.
    pub fn head_arrived(&mut self, outcome: Outcome, remainder: Remainder, now: Instant) {
        if self.verdict.is_some() || outcome == Outcome::Cancelled {
            return;
        }
        if outcome == Outcome::Success {
            self.is_stream = remainder.is_followed();
            self.awaited = self.digest.latency.after_head(remainder);
            if self.awaited.is_none() {
                self.measure(now);
            }
        }
        self.judge(outcome, now);
    }

    /// Notes that the member has accepted a connection whose answers nobody sees: a success without a latency. Only the
    /// first call of this or [`Ticket::head_arrived`] counts.
    pub fn record_acceptance(&mut self, now: Instant) {
        if self.verdict.is_none() {
            self.answer();
            self.judge(Outcome::Success, now);
        }
    }

    /// Leaves decisions to the requests within the connection ([`crate::requests`]): the ticket's latency is shown, and
    /// neither this nor its age counts.
    pub fn leave_latency(&mut self) {
        self.is_unmeasured = true;
        self.answer();
    }

    /// True if the ticket is to be told of the first byte of the body, and of the time in which the
    /// member waits for the client: the response is a stream, or its latency has not ended.
    #[inline]
    pub fn is_followed(&self) -> bool {
        self.is_stream || self.awaited.is_some()
    }

    /// True if the first byte of the body has come since [`Ticket::head_arrived`].
    pub fn has_first_byte(&self) -> bool {
        self.first_byte > 0
    }

    /// The first byte of the body is here; the end of the response, if it has no body after all. Only the first
    /// call counts, and only while the response [is followed](Ticket::is_followed).
    pub fn first_byte_arrived(&mut self, now: Instant) {
        if self.has_first_byte() || !self.is_followed() {
            return;
        }
        self.first_byte = micros(self.counted(now)).max(1);
        if self.awaited == Some(Awaited::FirstByte) {
            self.measure(now);
        }
    }

    /// Time to the first byte of the body, if it came after the head and the response is followed. Time in
    /// which the member waited for the client does not count.
    pub fn first_byte(&self) -> Option<Duration> {
        let micros = u64::from(self.first_byte);
        self.has_first_byte().then(|| Duration::from_micros(micros))
    }

    /// True after [`Ticket::stop_clock`].
    #[inline]
    pub fn clock_stands(&self) -> bool {
        self.clock_stands
    }

    /// From now on the member waits for the client: time does not count.
    pub fn stop_clock(&mut self, now: Instant) {
        if self.clock_stands {
            return;
        }
        if self.is_unanswered {
            self.slot.unanswered_ends(self.started);
        }
        self.started = Instant::ZERO.after(now.since(self.started));
        self.clock_stands = true;
    }

    /// From now on the member is waited for.
    pub fn start_clock(&mut self, now: Instant) {
        if !self.clock_stands {
            return;
        }
        self.started = Instant::from_nanos(now.as_nanos().saturating_sub(self.started.as_nanos()));
        self.clock_stands = false;
        if self.is_unanswered {
            self.slot.unanswered_begins(self.started);
        }
    }

    /// Time since the request was bound, less that in which the clock stood.
    fn counted(&self, now: Instant) -> Duration {
        match self.clock_stands {
            true => self.started.since(Instant::ZERO),
            false => now.since(self.started),
        }
    }

    /// Notes the bytes of the response that went to the client: they are a part of its pace if it is a stream.
    pub fn note_bytes(&self, bytes: u64) {
        if self.is_stream && self.has_first_byte() {
            self.slot.own_record().streams.add_bytes(bytes);
        }
    }

    /// The request is over. Without a head before, `outcome` is the member's.
    /// After one, a failure means that the member broke off in the middle, and an error that the rest of the
    /// answer took too long. Dropping a ticket instead means [`Outcome::Cancelled`].
    pub fn finish(mut self, outcome: Outcome, now: Instant) {
        self.end = outcome;
        match self.verdict {
            None => {
                if outcome == Outcome::Success {
                    self.measure(now);
                }
                self.judge(outcome, now);
            }
            Some(verdict) if verdict.outcome == Outcome::Success => {
                if outcome == Outcome::Success {
                    if self.is_followed() {
                        self.last_byte_arrived(now);
                    }
                } else if outcome != Outcome::Cancelled {
                    let before = verdict.failures_before;
                    self.slot.observe_broken(outcome, before, now, self.digest);
                    self.note_client(true, now);
                }
                if self.is_stream {
                    self.note_stream(now);
                }
            }
            // The request had failed before it was over.
            Some(verdict) => self.end = verdict.outcome,
        }
        self.answer();
        (self.started, self.has_ended) = (now, true);
    }

    /// Lets the request go on without a ticket. Gives the ticket back if more than the end is left to be noted, or if the
    /// member has failed.
    #[cold]
    pub(super) fn keep(mut self) -> Result<Kept, Box<Ticket>> {
        let has_failed =
            matches!(self.verdict, Some(verdict) if verdict.outcome != Outcome::Success);
        if has_failed || self.is_followed() || self.engine.is_some() {
            return Err(Box::new(self));
        }
        self.answer();
        self.is_kept = true;
        Ok(Kept {
            slot: Arc::clone(&self.slot),
            location: Arc::clone(&self.location),
            cost: self.cost,
            digest: self.digest,
            failures_before: self.verdict.map_or(0, |verdict| verdict.failures_before),
        })
    }

    /// A response that was followed has come to its end.
    #[cold]
    fn last_byte_arrived(&mut self, now: Instant) {
        self.first_byte_arrived(now);
        if self.awaited.is_some() {
            self.measure(now);
        }
    }

    /// Ends a stream, whichever side has ended it.
    #[cold]
    fn note_stream(&self, now: Instant) {
        if let Some(first) = self.first_byte() {
            let rest = self.counted(now).saturating_sub(first);
            self.slot.own_record().streams.add_stream(first, rest);
        }
    }

    /// The latency of a success ends now.
    fn measure(&mut self, now: Instant) {
        if self.clock_stands {
            self.start_clock(now);
        }
        self.answer();
        let (latency, cost) = (now.since(self.started), self.cost.get());
        if self.is_unmeasured {
            self.slot.show_latency(latency);
        } else {
            self.slot
                .sample_service(latency, cost, self.others, now, self.digest);
            self.slot.sample_latency(latency, cost, now, self.digest);
        }
        self.awaited = None;
    }

    /// The age of the request counts no longer.
    fn answer(&mut self) {
        if std::mem::take(&mut self.is_unanswered) && !self.clock_stands {
            self.slot.unanswered_ends(self.started);
        }
    }

    /// Digests what the request says of the member, beside its latency.
    fn judge(&mut self, outcome: Outcome, now: Instant) {
        if outcome != Outcome::Success {
            self.answer();
        }
        let latency = now.since(self.started);
        let failures_before = self.slot.observe(outcome, latency, now, self.digest);
        if outcome != Outcome::Cancelled {
            self.note_client(outcome != Outcome::Success, now);
        }
        self.verdict = Some(Verdict {
            outcome,
            failures_before,
        });
    }
}

/// A time in microseconds, at most 71 minutes.
fn micros(time: Duration) -> u32 {
    u32::try_from(time.as_micros()).unwrap_or(u32::MAX)
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if self.is_kept {
            return;
        }
        self.answer();
        self.slot.own_record().count(self.end);
        self.slot.end_request(self.cost);
        let end = self.has_ended.then_some(self.started);
        self.location.end_request(self.cost, end);
    }
}
