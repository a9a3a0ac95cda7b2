//! The last few seconds of each member, for the status.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_core::engine_traffic::{EngineTotals, EngineTraffic};
use evenkeel_core::member::Slot;
use evenkeel_core::observe::{Latencies, StreamTotals, Totals};
use evenkeel_core::time::Instant;

/// Counts of a member that has served nobody.
static NONE: Counts = Counts {
    bound: 0,
    totals: Totals {
        successes: 0,
        failures: 0,
        overloads: 0,
        cancelled: 0,
    },
    latencies: Latencies::new(),
    streams: StreamTotals {
        ended_streams: 0,
        first_byte: Duration::ZERO,
        remaining_time: Duration::ZERO,
        bytes: 0,
    },
};

/// The last few moments of a member, for what happened between them and now.
#[derive(Clone, Debug, Default)]
pub(crate) struct History(VecDeque<Moment>);

/// Moment of a member.
#[derive(Clone, Debug)]
pub(crate) struct Moment {
    at: Instant,
    /// Counts at the moment; none if all are 0. Moments between which nothing has changed have the same copy.
    counts: Option<Arc<Counts>>,
    /// Traffic of the member's engine, if the group has engines.
    engine: Option<Arc<EngineTotals>>,
}

#[derive(Debug)]
struct Counts {
    bound: u64,
    totals: Totals,
    latencies: Latencies,
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
    /// Traffic of the member's engine, or of all engines, if the group has engines.
    pub engine: Option<Box<EngineTotals>>,
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

    /// Keeps this moment. `engine` is the member's engine, if the group has engines.
    pub(crate) fn note_moment(
        &mut self,
        slot: &Slot,
        engine: Option<&EngineTraffic>,
        now: Instant,
    ) {
        if self.0.len() >= Self::KEPT {
            self.0.pop_front();
        }
        let before = self.0.back().and_then(|before| before.counts.clone());
        self.0.push_back(Moment::new(slot, engine, before, now));
    }

    /// Returns the traffic since the oldest moment that is kept.
    pub(crate) fn recent_traffic(
        &self,
        slot: &Slot,
        engine: Option<&EngineTraffic>,
        now: Instant,
    ) -> TrafficSince {
        let mut past = TrafficSince::default();
        if let Some(then) = self.0.front() {
            then.add_to(slot, now, &mut past);
            let both = then.engine.as_ref().zip(engine);
            past.engine = both.map(|(then, engine)| Box::new(engine.copy_totals().since(then)));
        }
        past
    }

    /// The oldest moment that is kept.
    pub(crate) fn oldest(&self) -> Option<Moment> {
        self.0.front().cloned()
    }
}

impl Counts {
    fn copy(slot: &Slot) -> Self {
        let (record, totals) = (slot.record(), slot.record().request_totals());
        Counts {
            bound: bound(slot, &totals),
            totals,
            latencies: record.latencies(),
            streams: record.streams(),
        }
    }

    /// True if these are the counts of the member now.
    fn are_of(&self, slot: &Slot) -> bool {
        let (record, totals) = (slot.record(), slot.record().request_totals());
        self.bound == bound(slot, &totals)
            && self.totals == totals
            && self.streams == record.streams()
            // Without a record there never was a latency.
            && (!slot.has_record() || record.has_latencies_of(&self.latencies))
    }
}

impl Moment {
    /// The moment `now`; `before` are the counts at the moment before.
    fn new(
        slot: &Slot,
        engine: Option<&EngineTraffic>,
        before: Option<Arc<Counts>>,
        now: Instant,
    ) -> Self {
        let is_known = before.as_deref().unwrap_or(&NONE).are_of(slot);
        let counts = match is_known {
            true => before,
            false => Some(Arc::new(Counts::copy(slot))),
        };
        Moment {
            at: now,
            counts,
            engine: engine.map(|engine| Arc::new(engine.copy_totals())),
        }
    }

    /// Adds what has happened between this moment and `now` to `sum`.
    pub(crate) fn add_to(&self, slot: &Slot, now: Instant, sum: &mut TrafficSince) {
        let then = self.counts.as_deref().unwrap_or(&NONE);
        let totals = slot.record().request_totals();
        let failed = |totals: &Totals| totals.failures + totals.overloads;
        let ended = |totals: &Totals| totals.total() - totals.cancelled;
        sum.span = sum.span.max(now.since(self.at));
        sum.picks += bound(slot, &totals).saturating_sub(then.bound);
        sum.judged_requests += ended(&totals).saturating_sub(ended(&then.totals));
        sum.failures += failed(&totals).saturating_sub(failed(&then.totals));
        let record = slot.record();
        record.add_latencies_since(&then.latencies, &mut sum.latencies);
        sum.streams
            .add_totals(&record.streams().since(&then.streams));
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
        if let Some(engine) = &other.engine {
            self.engine.get_or_insert_default().merge(engine);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use evenkeel_core::group::{Outcome, Request};

    use super::*;
    use crate::groups::Groups;

    #[test]
    fn moments_between_which_nothing_has_changed_share_one_copy() {
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
        let counts = |history: &History| {
            let moments = history.0.iter();
            moments.map(|of| of.counts.clone()).collect::<Vec<_>>()
        };
        history.note_moment(slot, None, at(1));
        history.note_moment(slot, None, at(2));
        assert!(counts(&history).iter().all(Option::is_none));
        assert!(!slot.has_record());
        serve(10, 20);
        for moment in 30..33 {
            history.note_moment(slot, None, at(moment));
        }
        let kept = counts(&history);
        let first = kept[1].as_ref().unwrap();
        assert!(kept[0].is_none());
        assert!(kept[1..].iter().flatten().all(|of| Arc::ptr_eq(of, first)));
        let traffic = history.recent_traffic(slot, None, at(40));
        assert_eq!((traffic.picks, traffic.latencies.count()), (1, 1));
        serve(40, 60);
        history.note_moment(slot, None, at(70));
        let last = counts(&history).pop().flatten().unwrap();
        let number = |of: &Counts| (of.bound, of.latencies.count());
        assert_eq!((number(&last), number(first)), ((2, 2), (1, 1)));
    }
}
