//! The last few seconds of each member, for the status.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_core::member::Slot;
use evenkeel_core::observe::{Latencies, StreamTotals, Totals};
use evenkeel_core::time::Instant;

/// Latencies of a member that has served nobody.
static NONE: Latencies = Latencies::new();

/// The last few moments of a member, for what happened between them and now.
#[derive(Clone, Debug, Default)]
pub(crate) struct History(VecDeque<Arc<Moment>>);

#[derive(Debug)]
pub(crate) struct Moment {
    at: Instant,
    bound: u64,
    totals: Totals,
    /// Latencies at the moment; none if there were none. Moments without a latency between them have the same copy.
    latencies: Option<Arc<Latencies>>,
    streams: StreamTotals,
}

/// Traffic since a moment.
#[derive(Debug, Default)]
pub(crate) struct TrafficSince {
    pub span: Duration,
    pub picks: u64,
    /// Requests that are over and have a verdict about the member.
    pub judged_requests: u64,
    pub failures: u64,
    pub latencies: Latencies,
    pub streams: StreamTotals,
}

impl History {
    /// Moments that are kept, one each [`KEEP_INTERVAL`]: with the one under way, 10 seconds.
    ///
    /// [`KEEP_INTERVAL`]: evenkeel_control::round::KEEP_INTERVAL
    const KEPT: usize = 4;

    /// True if nothing is known of the past yet.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Keeps this moment.
    pub(crate) fn note_moment(&mut self, slot: &Slot, now: Instant) {
        if self.0.len() >= Self::KEPT {
            self.0.pop_front();
        }
        let before = self.0.back().and_then(|before| before.latencies.clone());
        self.0.push_back(Arc::new(Moment::new(slot, before, now)));
    }

    /// Returns the traffic since the oldest moment that is kept.
    pub(crate) fn recent_traffic(&self, slot: &Slot, now: Instant) -> TrafficSince {
        let mut past = TrafficSince::default();
        if let Some(then) = self.0.front() {
            then.add_to(slot, now, &mut past);
        }
        past
    }

    /// The oldest moment that is kept.
    pub(crate) fn oldest(&self) -> Option<Arc<Moment>> {
        self.0.front().cloned()
    }
}

impl Moment {
    /// The moment `now`; `before` are the latencies at the moment before.
    fn new(slot: &Slot, before: Option<Arc<Latencies>>, now: Instant) -> Self {
        let (record, totals) = (slot.record(), slot.record().request_totals());
        let latencies = match before {
            Some(before) if record.has_latencies_of(&before) => Some(before),
            None if record.has_latencies_of(&NONE) => None,
            _ => Some(Arc::new(record.latencies())),
        };
        Moment {
            at: now,
            bound: bound(slot, &totals),
            totals,
            latencies,
            streams: record.streams(),
        }
    }

    /// Adds what has happened between this moment and `now` to `sum`.
    pub(crate) fn add_to(&self, slot: &Slot, now: Instant, sum: &mut TrafficSince) {
        let totals = slot.record().request_totals();
        let failed = |totals: &Totals| totals.failures + totals.overloads;
        let ended = |totals: &Totals| totals.total() - totals.cancelled;
        sum.span = sum.span.max(now.since(self.at));
        sum.picks += bound(slot, &totals).saturating_sub(self.bound);
        sum.judged_requests += ended(&totals).saturating_sub(ended(&self.totals));
        sum.failures += failed(&totals).saturating_sub(failed(&self.totals));
        let record = slot.record();
        let earlier = self.latencies.as_deref().unwrap_or(&NONE);
        record.add_latencies_since(earlier, &mut sum.latencies);
        sum.streams
            .add_totals(&record.streams().since(&self.streams));
    }
}

/// Returns the number of all that was ever bound: over, in flight, or clients that were sent to go there
/// themselves.
fn bound(slot: &Slot, totals: &Totals) -> u64 {
    totals.total() + u64::from(slot.in_flight()) + slot.record().assigned()
}

impl TrafficSince {
    /// The latency that a share `q` of the requests did not exceed.
    pub(crate) fn ms(&self, q: f64) -> Option<f64> {
        Some(self.latencies.quantile(q)?.as_secs_f64() * 1e3)
    }

    /// Adds what happened elsewhere in the same time.
    pub(crate) fn merge(&mut self, other: &TrafficSince) {
        self.span = self.span.max(other.span);
        self.picks += other.picks;
        self.judged_requests += other.judged_requests;
        self.failures += other.failures;
        self.latencies.merge(&other.latencies);
        self.streams.add_totals(&other.streams);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use evenkeel_core::group::{Outcome, Request};

    use super::*;
    use crate::groups::Groups;

    #[test]
    fn moments_without_latencies_between_them_share_one_copy() {
        let at = |ms: u64| Instant::from_nanos(ms * 1_000_000);
        let config = crate::config::parse("x", "[group.web]\nmembers = [\"10.0.0.1:1\"]\n");
        let groups = Groups::new(config.unwrap(), HashMap::new(), at(0));
        let group = groups.find_handle("web").unwrap().current.load_full();
        let slot = &group.members()[0].slot;
        let serve = |begin: u64, end: u64| {
            let mut rng = fastrand::Rng::with_seed(1);
            let ticket = group.pick(&Request::at_time(at(begin)), &mut rng);
            ticket.unwrap().finish(Outcome::Success, at(end));
        };
        let mut history = History::default();
        let latencies = |history: &History| {
            let moments = history.0.iter();
            moments.map(|of| of.latencies.clone()).collect::<Vec<_>>()
        };
        history.note_moment(slot, at(1));
        history.note_moment(slot, at(2));
        assert_eq!(latencies(&history), [None, None]);
        assert!(!slot.has_record());
        serve(10, 20);
        for moment in 30..33 {
            history.note_moment(slot, at(moment));
        }
        let kept = latencies(&history);
        let first = kept[1].as_ref().unwrap();
        assert!(kept[0].is_none());
        assert!(kept[1..].iter().flatten().all(|of| Arc::ptr_eq(of, first)));
        let traffic = history.recent_traffic(slot, at(40));
        assert_eq!((traffic.picks, traffic.latencies.count()), (1, 1));
        serve(40, 60);
        history.note_moment(slot, at(70));
        let last = latencies(&history).pop().flatten().unwrap();
        assert_eq!((last.count(), first.count()), (2, 1));
    }
}
