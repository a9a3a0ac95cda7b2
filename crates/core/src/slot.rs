//! The slot of a member: data that changes with each request, and outlives snapshots.

mod requests;

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::caps::Caps;
use crate::cost::{Cost, InFlight, InFlightMoment};
use crate::effective::{Damped, LoadFactor, ReportedWeight};
use crate::estimate::{Estimate, Moment, Service};
use crate::filter::{Filter, TypicalValues};
use crate::float::higher;
use crate::latency::LatencyEnd;
use crate::learnt::{self, LearntSlot, LearntValues, Visit};
use crate::observe::{Decaying, EMPTY_RECORD, FailureShare, Outcome, Record, Trials};
use crate::reason::{RANK_BITS, Reason, rank_bit, reasons_of};
use crate::regression::Regression;
use crate::spares;
use crate::time::Instant;
use crate::weight::Weight;

/// Data of a member that changes with each request. All atomics: any worker may write.
///
/// A slot belongs to one (group, member) and survives every change of membership,
/// weight and strategy. The first cache line is what `pick` reads.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Slot {
    /// Requests (HTTP) or connections (TCP) that this process has at the member.
    in_flight: InFlight,
    /// Bits of [`Reason`], and one of the rank of its zone.
    reasons: AtomicU32,
    /// Current weight (f32 bits): the configured weight, or the one set live, times the factor of reports.
    weight: AtomicU32,
    /// Most requests or connections at once by report; `u32::MAX` is no limit.
    reported_limit: AtomicU32,
    /// Start of slow start, in nanoseconds; 0 when the member is fully warm.
    ramp_from: AtomicU64,
    /// Share of recent requests that failed.
    failure_share: FailureShare,
    /// Estimate of the service time.
    estimate: Estimate,

    // Here the first cache line ends (see `LINE`). What follows is read by few strategies.
    /// Latency of successes, in seconds.
    latency: Decaying,
    /// Cost of failures, in seconds.
    penalty: Decaying,
    /// The history of effective loads.
    damped: Damped,
    /// Factor of the weight by load reports.
    load_factor: LoadFactor,
    /// Weight by the member's own figures.
    reported_weight: ReportedWeight,
    /// Growth of latencies with the requests that are there.
    regression: Regression,
    /// [`Outcome::Failure`]s since the last answer.
    consecutive_failures: AtomicU32,
    /// Number of requests that the member works on at once.
    caps: Caps,
    /// Service time according to the last answers.
    filter: Filter,

    /// Time at which it was first noticed that the member sheds, in nanoseconds; 0 while it does not.
    shedding_since: AtomicU64,

    /// Written once per request, read by control loops and the admin API. Kept apart
    /// because it is large: with it inside, each slot would be in a page of its own, and
    /// drawing one of many thousand would miss the TLB. A member that has served nobody has
    /// none: most of the memory of a member is in it.
    record: OnceLock<Arc<Record>>,
}

/// Length of the first cache line of a slot, which `pick` reads.
const LINE: usize = 64;
const _: () = assert!(std::mem::offset_of!(Slot, latency) == LINE);

/// Settings and state of the group that a slot needs to digest an observation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Digest {
    /// Decay of latencies ([`GroupSettings::latency_decay`](crate::group::GroupSettings::latency_decay)).
    pub(crate) decay: Duration,
    /// Least cost of a failure ([`GroupSettings::failure_penalty`](crate::group::GroupSettings::failure_penalty)), in
    /// seconds as f32: tickets are part of each connection, and are to stay small.
    pub(crate) penalty: f32,
    /// Number of service times that each request more in flight costs.
    pub(crate) growth: f32,
    /// True if members have different weights: shares follow the weights better if estimates change slowly.
    pub(crate) is_weighted: bool,
    /// True if the number of requests that the member works on at once is of use.
    pub(crate) learns_cap: bool,
    /// Time of a request at a typical member in seconds, where members have filters; 0 means unknown.
    pub(crate) typical: f32,
    /// End of latencies ([`GroupSettings::latency`](crate::group::GroupSettings::latency)).
    pub(crate) latency: LatencyEnd,
}

/// The squared coefficient of variation of latencies before it is known.
const UNKNOWN_VARIATION: f32 = 3.0;

impl Slot {
    /// A slot for a member that was never used.
    pub fn new(weight: Weight) -> Self {
        Slot {
            in_flight: InFlight::default(),
            reasons: AtomicU32::new(0),
            weight: AtomicU32::new(weight.get().to_bits()),
            reported_limit: AtomicU32::new(u32::MAX),
            consecutive_failures: AtomicU32::new(0),
            ramp_from: AtomicU64::new(0),
            latency: Decaying::default(),
            penalty: Decaying::default(),
            failure_share: FailureShare::default(),
            estimate: Estimate::default(),
            damped: Damped::default(),
            load_factor: LoadFactor::default(),
            reported_weight: ReportedWeight::default(),
            regression: Regression::default(),
            caps: Caps::default(),
            filter: Filter::default(),
            shedding_since: AtomicU64::new(0),
            record: OnceLock::new(),
        }
    }

    /// Words that were learnt about the member from its answers. Reports of others, and requests under way, are not
    /// included.
    pub fn export_learnt(&self) -> LearntValues {
        learnt::collect_words(|visit| self.words(visit))
    }

    /// Takes over what another process [has learnt](Slot::export_learnt).
    pub fn import_learnt(&self, learnt: &LearntValues) {
        if learnt.keys().any(|name| Record::has_word(name)) {
            self.own_record();
        }
        learnt::restore(learnt, |visit| self.words(visit));
    }

    fn words<'a>(&'a self, visit: Visit<'_, 'a>) {
        visit("ramp_from", LearntSlot::Long(&self.ramp_from));
        visit(
            "failures_in_a_row",
            LearntSlot::Short(&self.consecutive_failures),
        );
        visit("shedding_since", LearntSlot::Long(&self.shedding_since));
        self.failure_share.visit_words(visit);
        self.estimate.visit_words(visit);
        self.latency.visit_words("latency", visit);
        self.penalty.visit_words("penalty", visit);
        self.damped.visit_words(visit);
        self.load_factor.visit_words("load_factor", visit);
        self.reported_weight.visit_words(visit);
        self.regression.visit_words(visit);
        self.caps.visit_words(visit);
        self.filter.visit_words(visit);
        if let Some(record) = self.record.get() {
            record.visit_words(visit);
        }
    }

    /// Requests or connections of this process at the member: what limits count.
    #[inline]
    pub fn in_flight(&self) -> u32 {
        self.in_flight.get().count()
    }

    /// Sum of the [costs](Cost) of these requests: strategies count it.
    #[inline]
    pub fn cost_in_flight(&self) -> f32 {
        self.in_flight.get().total_cost()
    }

    /// The bits of all [`Reason`]s against the member; 0 is eligible.
    #[inline]
    pub fn reason_bits(&self) -> u32 {
        reasons_of(self.decision_bits())
    }

    /// Bits of the reasons, with a bit of the [rank](crate::reason::rank_of) of the member's zone among them: used by decisions.
    #[inline]
    pub fn decision_bits(&self) -> u32 {
        self.reasons.load(Ordering::Relaxed)
    }

    /// Sets the rank of the member's zone; `None` if the group does not use zones.
    pub(crate) fn set_rank(&self, rank: Option<usize>) {
        let bit = rank.map_or(0, rank_bit);
        let change = |bits: u32| {
            let next = (bits & !RANK_BITS) | bit;
            (next != bits).then_some(next)
        };
        let _ = self
            .reasons
            .fetch_update(Ordering::AcqRel, Ordering::Relaxed, change);
    }

    /// True if `reason` holds.
    pub fn has_reason(&self, reason: Reason) -> bool {
        self.reason_bits() & reason as u32 != 0
    }

    /// Sets or clears a reason; answers whether that changed anything.
    pub fn set(&self, reason: Reason, holds: bool) -> bool {
        let bit = reason as u32;
        let before = if holds {
            self.reasons.fetch_or(bit, Ordering::AcqRel)
        } else {
            self.reasons.fetch_and(!bit, Ordering::AcqRel)
        };
        if reason == Reason::Shedding && !holds {
            self.shedding_since.store(0, Ordering::Relaxed);
        }
        (before & bit != 0) != holds
    }

    /// Instant at which it was first noticed that the member sheds: the first call notes `now`. `None` if the member
    /// does not shed.
    pub(crate) fn shedding_since(&self, now: Instant) -> Option<Instant> {
        if !self.has_reason(Reason::Shedding) {
            return None;
        }
        // An instant of 0 would be none.
        let nanos = now.as_nanos().max(1);
        let noticed =
            self.shedding_since
                .compare_exchange(0, nanos, Ordering::Relaxed, Ordering::Relaxed);
        Some(Instant::from_nanos(noticed.err().unwrap_or(nanos)))
    }

    /// The current weight, before slow start.
    #[inline]
    pub fn weight(&self) -> f32 {
        f32::from_bits(self.weight.load(Ordering::Relaxed))
    }

    /// Changes the weight; takes effect with the next pick.
    pub fn set_weight(&self, weight: Weight) {
        self.weight.store(weight.get().to_bits(), Ordering::Relaxed);
    }

    /// Most requests or connections at once that sources of reports want;
    /// `u32::MAX` is no limit.
    #[inline]
    pub fn reported_limit(&self) -> u32 {
        self.reported_limit.load(Ordering::Relaxed)
    }

    /// Changes that limit; takes effect with the next pick.
    pub fn set_reported_limit(&self, limit: Option<u32>) {
        self.reported_limit
            .store(limit.unwrap_or(u32::MAX), Ordering::Relaxed);
    }

    /// Begins slow start at `now`, or ends it (`None`).
    pub fn set_ramp_from(&self, from: Option<Instant>) {
        let nanos = from.map_or(0, Instant::as_nanos);
        self.ramp_from.store(nanos, Ordering::Relaxed);
    }

    /// Start of slow start, if it is under way.
    #[inline]
    pub fn ramp_from(&self) -> Option<Instant> {
        match self.ramp_from.load(Ordering::Relaxed) {
            0 => None,
            nanos => Some(Instant::from_nanos(nanos)),
        }
    }

    /// Peak-sensitive moving average of the latency of successes, in seconds, divided by their cost where the cost is
    /// above 1; `None` if there never was one. Without new samples it decays with time constant `decay`, so that a
    /// member that was slow is tried again.
    #[inline]
    pub fn latency(&self, now: Instant, decay: Duration) -> Option<f32> {
        self.latency.get(now, decay)
    }

    /// True if there ever was a success, and so a latency.
    #[inline]
    pub fn has_latency(&self) -> bool {
        !self.latency.is_empty()
    }

    /// True if nothing is known of how long requests take here.
    pub fn is_strange(&self) -> bool {
        !self.has_latency() && self.estimate.is_empty()
    }

    /// Begins with what another balancer has seen, if nothing is known here: `seconds` for a request.
    /// Own answers soon say more, and without any it is forgotten as they are.
    pub fn adopt_guess(&self, seconds: f32, now: Instant, decay: Duration) {
        if self.is_strange() {
            self.latency.sample(seconds, now, decay);
            self.estimate.adopt_guess(seconds, now);
        }
    }

    /// Mean time of a request here by the answers of this process, in seconds, for other processes: `None` without an
    /// answer within `window`. Requests that wait here do not count.
    pub fn seen_service(&self, now: Instant, window: Duration, decay: Duration) -> Option<f32> {
        let recent = self.record().recent(now, window);
        let answered = recent.total > recent.failures;
        let mean = || {
            self.estimate
                .mean_time()
                .or_else(|| self.latency(now, decay))
        };
        answered.then(mean).flatten()
    }

    /// Cost that failures add to the member now, in seconds: at least the group's penalty when the member has just
    /// failed, less and less thereafter.
    #[inline]
    pub fn penalty(&self, now: Instant, decay: Duration) -> f32 {
        self.penalty.get(now, decay).unwrap_or(0.0)
    }

    /// True if any of the recent requests failed.
    #[inline]
    pub(crate) fn has_failed(&self) -> bool {
        self.failure_share.is_some()
    }

    /// Share of recent requests that failed (0 to 1), over about the last sixteen; it
    /// decays without requests.
    pub fn failure_share(&self, now: Instant, decay: Duration) -> f32 {
        self.failure_share.get(now, decay)
    }

    /// [`Outcome::Failure`]s since the last answer.
    #[inline]
    pub fn consecutive_failures(&self) -> u32 {
        self.consecutive_failures.load(Ordering::Relaxed)
    }

    /// Forgets the failures in a row, for instance when an ejection ends.
    pub fn forgive(&self) {
        self.consecutive_failures.store(0, Ordering::Relaxed);
    }

    /// Forgets all failures: those in a row, the share of requests that failed, and the cost that failures add. The
    /// counts of the member's [record](Slot::record) stay.
    pub fn forget_failures(&self) {
        self.forgive();
        self.failure_share.forget_failures();
        self.penalty.forget_samples();
    }

    /// The history of this member's effective loads. It is kept here, per group and
    /// member, because each group shapes the load of a shared location in its own way.
    #[inline]
    pub fn damped(&self) -> &Damped {
        &self.damped
    }

    /// Factor of the weight by load reports, where a strategy adjusts weights.
    pub(crate) fn load_factor(&self) -> &LoadFactor {
        &self.load_factor
    }

    /// Weight by the member's own figures.
    pub(crate) fn reported_weight(&self) -> &ReportedWeight {
        &self.reported_weight
    }

    /// Time of a request of cost 1 at the member in seconds, queueing excluded; `None` before its first answer.
    #[inline]
    pub fn service_time(&self, now: Instant) -> Option<f32> {
        self.estimate.service_time(self.cost_in_flight(), now)
    }

    /// Service time of the member with requests of cost `in_flight` there, and whether it is stale.
    #[inline]
    pub(crate) fn estimate_service(&self, in_flight: f32, moment: &Moment) -> Option<Service> {
        let service = self.estimate.estimate_service(in_flight, moment)?;
        if moment.typical > 0.0 {
            return Some(self.filtered(service, moment));
        }
        Some(service)
    }

    /// Service time according to the last answers, and the ages of the unanswered requests, if the member works on few
    /// requests at once.
    #[cold]
    fn filtered(&self, service: Service, moment: &Moment) -> Service {
        let usual = self.usual(moment.typical);
        let Some(cap) = self.learnt_cap() else {
            return service;
        };
        if self.filter.is_off() || !usual.covers(service.time) {
            return service;
        }
        let busy = self.unanswered().min(cap);
        let age = self.estimate.mean_age(moment) * busy as f32;
        let silence = self.estimate.seconds_since_answer(moment);
        Service {
            time: self.filter.estimate_time(age, silence, usual),
            ..service
        }
    }

    /// Typical values for the member's filter, if `typical` is the time of a typical member.
    fn usual(&self, typical: f32) -> TypicalValues {
        TypicalValues::new(
            typical,
            self.regression.variation().unwrap_or(UNKNOWN_VARIATION),
        )
    }

    /// True if answers do not tell this member from the other one, which lately was slower by `slower` powers of two.
    pub(crate) fn is_like(&self, other: &Slot, slower: f32) -> bool {
        let places = [self, other].map(|slot| slot.estimate.answered_places());
        self.regression.is_like(&other.regression, places, slower)
    }

    /// Regression of latencies on requests in flight, from which the growth is learnt.
    pub(crate) fn regression(&self) -> &Regression {
        &self.regression
    }

    /// Time since the last answer, if that is so long, by the service time or by `decay`, that the member may have
    /// changed since.
    #[inline]
    pub fn stale_since(&self, now: Instant, decay: Duration) -> Option<Duration> {
        let in_flight = self.cost_in_flight();
        let stale = self.estimate.is_stale(in_flight, now, decay);
        stale.then(|| self.silence(now))
    }

    /// Seconds since a request was bound; infinite before the first one.
    #[inline]
    pub(crate) fn seconds_since_bound(&self, moment: &Moment) -> f32 {
        self.estimate.seconds_since_bound(moment)
    }

    /// Time since the last answer.
    pub(crate) fn silence(&self, now: Instant) -> Duration {
        self.estimate.silence(now)
    }

    /// A request is bound at `now`, and not answered yet.
    pub(crate) fn unanswered_begins(&self, now: Instant) {
        self.estimate.begin_request(now);
    }

    /// A request that was bound at `started` is answered, or will not be.
    pub(crate) fn unanswered_ends(&self, started: Instant) {
        self.estimate.end_request(started);
    }

    /// Mean age of the unanswered requests in seconds; 0 without any.
    pub(crate) fn mean_age(&self, moment: &Moment) -> f32 {
        self.estimate.mean_age(moment)
    }

    /// Requests without an answer.
    #[inline]
    pub(crate) fn unanswered(&self) -> u32 {
        self.estimate.unanswered()
    }

    /// Number of requests that the member works on at once, as learnt; `None` means unknown, or many.
    pub fn learnt_cap(&self) -> Option<u32> {
        self.caps.get()
    }

    /// Has learnt [caps](Slot::learnt_cap) be wrong by this factor from now on: to see in tests what that costs.
    #[doc(hidden)]
    pub fn distort_cap(&self, factor: f32) {
        self.caps.distort(factor);
    }

    /// Learns anew how many requests it works on at once.
    pub(crate) fn learn_cap(&self) -> Option<u32> {
        self.caps
            .learn_cap(self.regression.variation().unwrap_or(1.0))
    }

    /// Measurements of the member's cap.
    #[inline]
    pub(crate) fn caps(&self) -> &Caps {
        &self.caps
    }

    /// Digests the latency of a success with the cost `cost`, which found requests at the member that cost `others`
    /// together.
    pub(crate) fn sample_service(
        &self,
        latency: Duration,
        cost: f32,
        others: f32,
        now: Instant,
        digest: Digest,
    ) {
        if digest.learns_cap {
            self.caps
                .record_answer(others / cost, latency.as_secs_f32() / cost);
            let age = self.mean_age(&Moment::new(now, digest.decay));
            self.caps
                .note_order(self.unanswered(), age > latency.as_secs_f32());
        }
        let places = cost + digest.growth * others;
        // Where all requests share the server, later ones count, too: half of the requests found at the beginning and
        // at the end is right for both kinds of servers.
        let meanwhile = (others + higher(self.cost_in_flight() - cost, 0.0)) / 2.0;
        self.estimate
            .learn_growth(latency, cost, meanwhile, places, &self.regression);
        if cost != 1.0 {
            self.filter.switch_off();
        } else if digest.typical > 0.0 && !self.filter.is_off() {
            let seconds = latency.as_secs_f32() / places;
            let silence = self.silence(now).as_secs_f32();
            let usual = self.usual(digest.typical);
            self.filter.record_answer(seconds, silence, usual);
        }
        let reach = self.regression.average_reach(digest.is_weighted);
        self.estimate
            .sample_latency(latency, places, others, now, digest.decay, reach);
    }

    /// Keeps times of observations (latency, penalty, share of failures) from seeming to be new:
    /// they wrap after 49 days. Call it once a day or oftener.
    pub fn keep_age(&self, now: Instant) {
        self.latency.keep_age(now);
        self.penalty.keep_age(now);
        self.failure_share.keep_age(now);
        self.load_factor.keep_age(now);
        self.reported_weight.keep_age(now);
        if let Some(record) = self.record.get() {
            record.bound_clients.keep_age(now);
        }
        self.estimate.keep_age(now);
    }

    /// Observations so far, beyond those that `pick` reads. As long as there are none, all members have the same record,
    /// so that it must be asked for anew each time.
    #[inline]
    pub fn record(&self) -> &Record {
        self.record.get().map_or(&EMPTY_RECORD, |record| record)
    }

    /// True if there are observations.
    pub fn has_record(&self) -> bool {
        self.record.get().is_some()
    }

    /// Place for observations.
    #[inline]
    pub(crate) fn own_record(&self) -> &Record {
        // Only the first requests of a member can wait for each other, until one has taken a spare record.
        self.record.get_or_init(spares::take_record)
    }

    /// Trials of the member while it is ejected, or gets hardly any requests after a failure.
    pub fn trials(&self) -> &Trials {
        &self.own_record().trials
    }

    /// Counts a request that begins; answers what there was before.
    pub(crate) fn begin_request(&self, cost: Cost) -> InFlightMoment {
        self.in_flight.begin_request(cost)
    }

    pub(crate) fn end_request(&self, cost: Cost) {
        self.in_flight.end_request(cost);
    }

    /// Digests the latency of a success with the cost `cost`.
    #[inline]
    pub(crate) fn sample_latency(
        &self,
        latency: Duration,
        cost: f32,
        now: Instant,
        digest: Digest,
    ) {
        // A costly request may take longer; a cheap one may have waited as long.
        let seconds = latency.as_secs_f32() / higher(cost, 1.0);
        self.latency.sample(seconds, now, digest.decay);
        self.own_record().histogram.add_latency(latency);
    }

    /// Digests a success, or a failure `latency` after a request was bound.
    /// Returns the failures in a row that it ended, if it was a success.
    pub(crate) fn observe(
        &self,
        outcome: Outcome,
        latency: Duration,
        now: Instant,
        digest: Digest,
    ) -> u32 {
        let penalty = match outcome {
            Outcome::Cancelled => return 0,
            Outcome::Success => {
                self.own_record().window.count(now, true);
                self.failure_share.add_outcome(false, now, digest.decay);
                // Mostly it is 0 already: reading keeps the cache line shared.
                return match self.consecutive_failures() {
                    0 => 0,
                    _ => self.consecutive_failures.swap(0, Ordering::Relaxed),
                };
            }
            Outcome::Failure | Outcome::Error => latency,
            Outcome::Overloaded { retry_after } => {
                latency.max(retry_after.unwrap_or_default().min(MAX_RETRY_AFTER))
            }
        };
        let penalty = higher(penalty.as_secs_f32(), digest.penalty);
        self.penalty.sample(penalty, now, digest.decay);
        self.own_record().histogram.add_latency(latency);
        self.own_record().window.count(now, false);
        self.failure_share.add_outcome(true, now, digest.decay);
        if outcome == Outcome::Failure {
            self.consecutive_failures.fetch_add(1, Ordering::Relaxed);
        } else {
            // The member did answer.
            self.consecutive_failures.store(0, Ordering::Relaxed);
        }
        0
    }

    /// Digests `outcome`, with which the member ended a request that had been observed as a success. `before` is what
    /// [`Slot::observe`] returned then.
    pub(crate) fn observe_broken(
        &self,
        outcome: Outcome,
        before: u32,
        now: Instant,
        digest: Digest,
    ) {
        self.penalty.sample(digest.penalty, now, digest.decay);
        self.own_record().window.turn_into_failure(now);
        self.failure_share.add_outcome(true, now, digest.decay);
        if outcome == Outcome::Failure {
            // The success counts as if it had never been: a member that breaks off every answer must reach any limit
            // of failures in a row.
            self.consecutive_failures
                .fetch_max(before.saturating_add(1), Ordering::Relaxed);
        }
    }
}

/// The longest `Retry-After` that is accepted.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(300);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::time::Horizon;

    #[test]
    fn a_slot_has_a_record_once_there_is_something_to_record() {
        let (slot, other) = (Slot::new(Weight::ONE), Slot::new(Weight::ONE));
        let now = Instant::from_nanos(1_000_000_000);
        slot.keep_age(now);
        let nothing = slot.export_learnt();
        other.import_learnt(&nothing);
        assert_eq!(slot.record().latencies().count(), 0);
        assert_eq!(
            slot.seen_service(now, Duration::from_secs(1), Duration::from_secs(1)),
            None
        );
        assert!(!slot.has_record() && !other.has_record());
        slot.own_record().note_client(1, true, now);
        let learnt = slot.export_learnt();
        other.import_learnt(&learnt);
        assert_eq!(other.record().recent_clients(now), (1, 1));
        assert_eq!(EMPTY_RECORD.recent_clients(now), (0, 0));
        assert_eq!(other.export_learnt(), learnt);
    }

    proptest! {
        /// Old observations count less and less, and never as new again.
        #[test]
        fn b3_what_is_old_stays_old_for_a_hundred_days(
            start in 1u64..5_000_000_000,
            decay in 1u64..3_600,
            steps in prop::collection::vec(1u64..86_400_000, 100..300),
        ) {
            let decay = Duration::from_secs(decay);
            let penalty = 5.0;
            let digest = Digest { decay, penalty, growth: 1.0, is_weighted: false, learns_cap: false, typical: 0.0, latency: LatencyEnd::Auto };
            let at = |ms: u64| Instant::from_nanos(ms * 1_000_000);
            let slot = Slot::new(Weight::ONE);
            slot.observe(Outcome::Success, Duration::from_millis(20), at(start), digest);
            slot.observe(Outcome::Failure, Duration::from_millis(20), at(start), digest);
            slot.sample_latency(Duration::from_millis(20), 1.0, at(start), digest);
            slot.sample_service(Duration::from_millis(20), 1.0, 0.0, at(start), digest);
            slot.load_factor().set(0.5, crate::time::millis(at(start)));
            let seen = |now| {
                let silence = slot.stale_since(now, decay).unwrap_or_default();
                let horizon = Horizon::new(now, Duration::from_secs(15));
                let fresh = slot.load_factor().fresh_factor(&horizon).is_some();
                (
                    slot.latency(now, decay).unwrap(),
                    slot.penalty(now, decay),
                    slot.failure_share(now, decay),
                    silence,
                    fresh,
                )
            };
            let (mut now, mut before) = (start, seen(at(start)));
            let end = start + 100 * 86_400_000;
            for step in steps.iter().cycle() {
                now += step;
                slot.keep_age(at(now));
                let is = seen(at(now));
                prop_assert!(is.0 <= before.0 && is.1 <= before.1 && is.2 <= before.2);
                let twelve_days = Duration::from_secs(12 * 86_400);
                prop_assert!(is.3 >= before.3 || is.3 > twelve_days, "{:?} {:?}", is.3, before.3);
                prop_assert!(!is.4 || now - start <= 15_000);
                before = is;
                if now > end {
                    break;
                }
            }
        }
    }
}
