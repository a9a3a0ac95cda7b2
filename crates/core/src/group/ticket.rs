//! A request on its way: in flight until it is over, and what its end says of the member.

use std::net::IpAddr;
use std::num::NonZeroU64;
use std::sync::Arc;

use crate::cost::{Cost, Flying};
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
    started: Instant,
    /// Most requests at once at the member, by its limit.
    limit: u32,
    /// What it costs: as much is subtracted when it is over.
    cost: Cost,
    /// What those cost that the member had already when this one was bound.
    others: f32,
    digest: Digest,
    verdict: Option<Verdict>,
    end: Outcome,
}

/// What was observed when the member began to answer.
#[derive(Clone, Copy, Debug)]
struct Verdict {
    outcome: Outcome,
    /// The failures in a row that it ended.
    failures_before: u32,
}

impl Ticket {
    /// For a request that is bound to `member`, which has it in its count already, beside
    /// `others`.
    pub(super) fn new(
        member: &Member,
        index: usize,
        cost: Cost,
        others: Flying,
        now: Instant,
        digest: Digest,
    ) -> Self {
        member.location.begin(cost);
        member.slot.unanswered_begins(now);
        Ticket {
            cost,
            others: others.cost(),
            slot: Arc::clone(&member.slot),
            location: Arc::clone(&member.location),
            index,
            client: None,
            started: now,
            limit: member.max_connections.unwrap_or(u32::MAX),
            digest,
            verdict: None,
            end: Outcome::Cancelled,
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
            self.slot.record().note_client(client.get(), failed, now);
        }
    }

    /// Index of the member in the snapshot that picked.
    pub fn index(&self) -> usize {
        self.index
    }

    /// The location of the member.
    pub fn location(&self) -> &Location {
        &self.location
    }

    /// What the request costs.
    pub fn cost(&self) -> Cost {
        self.cost
    }

    /// When the request was bound.
    pub fn started(&self) -> Instant {
        self.started
    }

    /// Whether the member has as many requests as its limit says: there is room for another one only
    /// when one is over, not when it is answered.
    pub fn is_at_limit(&self) -> bool {
        self.slot.in_flight() >= self.limit.min(self.slot.reported_limit())
    }

    /// The member has begun to answer (HTTP: response head complete; TCP: first byte).
    /// The time since [`Ticket::started`] is its latency: the rest of the response
    /// depends on the client's speed, too. Only the first call counts.
    pub fn responded(&mut self, outcome: Outcome, now: Instant) {
        if self.verdict.is_none() && outcome != Outcome::Cancelled {
            self.observe(outcome, now);
        }
    }

    /// The request is over. Without a `responded` before, `outcome` is the member's.
    /// After one, a failure means that the member broke off in the middle. Dropping a
    /// ticket instead means [`Outcome::Cancelled`].
    pub fn finish(mut self, outcome: Outcome, now: Instant) {
        self.end = outcome;
        match self.verdict {
            None => self.observe(outcome, now),
            Some(verdict) if verdict.outcome == Outcome::Success => {
                if !matches!(outcome, Outcome::Success | Outcome::Cancelled) {
                    let before = verdict.failures_before;
                    self.slot.observe_broken(before, now, self.digest);
                    self.note_client(true, now);
                }
            }
            // It had failed before it was over.
            Some(verdict) => self.end = verdict.outcome,
        }
    }

    fn observe(&mut self, outcome: Outcome, now: Instant) {
        let (latency, cost) = (now.since(self.started), self.cost.get());
        self.slot.unanswered_ends(self.started);
        if outcome == Outcome::Success {
            self.slot
                .sample_service(latency, cost, self.others, now, self.digest);
        }
        let failures_before = self.slot.observe(outcome, latency, cost, now, self.digest);
        if outcome != Outcome::Cancelled {
            self.note_client(outcome != Outcome::Success, now);
        }
        self.verdict = Some(Verdict {
            outcome,
            failures_before,
        });
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if self.verdict.is_none() {
            self.slot.unanswered_ends(self.started);
        }
        self.slot.record().count(self.end);
        self.slot.end(self.cost);
        self.location.end(self.cost);
    }
}
