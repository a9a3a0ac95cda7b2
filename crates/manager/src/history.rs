//! The last few seconds of each member, for the status.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_core::engine_traffic::{EngineTotals, EngineTraffic};
use evenkeel_core::member::Slot;
use evenkeel_core::observe::{Latencies, StreamTotals, Totals};
use evenkeel_core::time::Instant;

/// The last few moments of a member, for what happened between them and now.
#[derive(Clone, Debug, Default)]
pub(crate) struct History(VecDeque<Arc<Moment>>);

#[derive(Debug)]
pub(crate) struct Moment {
    at: Instant,
    bound: u64,
    totals: Totals,
    latencies: Latencies,
    streams: StreamTotals,
    /// Traffic of the member's engine, if the group has engines.
    engine: Option<EngineTotals>,
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
        self.0.push_back(Arc::new(Moment::of(slot, engine, now)));
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
    pub(crate) fn oldest(&self) -> Option<Arc<Moment>> {
        self.0.front().cloned()
    }
}

impl Moment {
    fn of(slot: &Slot, engine: Option<&EngineTraffic>, now: Instant) -> Self {
        let totals = slot.record().request_totals();
        Moment {
            at: now,
            bound: bound(slot, &totals),
            totals,
            latencies: slot.record().latencies(),
            streams: slot.record().streams(),
            engine: engine.map(EngineTraffic::copy_totals),
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
        record.add_latencies_since(&self.latencies, &mut sum.latencies);
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
        if let Some(engine) = &other.engine {
            self.engine.get_or_insert_default().merge(engine);
        }
    }
}
