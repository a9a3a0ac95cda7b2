//! The last few seconds of each member, for the status.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_core::member::Slot;
use evenkeel_core::observe::{Latencies, Totals};
use evenkeel_core::time::Instant;

/// The last few moments of a member, for what happened between them and now.
#[derive(Clone, Debug, Default)]
pub(crate) struct History(VecDeque<Arc<Moment>>);

#[derive(Debug)]
struct Moment {
    at: Instant,
    bound: u64,
    totals: Totals,
    latencies: Latencies,
}

/// What happened since a moment.
#[derive(Debug, Default)]
pub(crate) struct Past {
    pub span: Duration,
    pub picks: u64,
    pub failures: u64,
    pub latencies: Latencies,
}

impl History {
    /// Moments that are kept, one each [`KEEP_INTERVAL`]: with the one under way, 10 seconds.
    ///
    /// [`KEEP_INTERVAL`]: evenkeel_control::round::KEEP_INTERVAL
    const KEPT: usize = 4;

    /// Whether nothing is known of the past yet.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Keeps this moment.
    pub(crate) fn note(&mut self, slot: &Slot, now: Instant) {
        if self.0.len() >= Self::KEPT {
            self.0.pop_front();
        }
        self.0.push_back(Arc::new(Moment::of(slot, now)));
    }

    /// What happened since the oldest moment that is kept.
    pub(crate) fn past(&self, slot: &Slot, now: Instant) -> Past {
        let Some(then) = self.0.front() else {
            return Past::default();
        };
        let now = Moment::of(slot, now);
        let failed = |totals: &Totals| totals.failures + totals.overloads;
        Past {
            span: now.at.since(then.at),
            picks: now.bound.saturating_sub(then.bound),
            failures: failed(&now.totals).saturating_sub(failed(&then.totals)),
            latencies: now.latencies.since(&then.latencies),
        }
    }
}

impl Moment {
    fn of(slot: &Slot, now: Instant) -> Self {
        let totals = slot.record().totals();
        Moment {
            at: now,
            // All that was ever bound: over, in flight, or clients that were sent to go there themselves.
            bound: totals.total() + u64::from(slot.in_flight()) + slot.record().assigned(),
            totals,
            latencies: slot.record().latencies(),
        }
    }
}

impl Past {
    /// Adds what happened elsewhere in the same time.
    pub(crate) fn merge(&mut self, other: &Past) {
        self.span = self.span.max(other.span);
        self.picks += other.picks;
        self.failures += other.failures;
        self.latencies.merge(&other.latencies);
    }
}
