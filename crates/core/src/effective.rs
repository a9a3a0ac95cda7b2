//! Effective load: reported load, damped against oscillation and corrected for the
//! clients that were bound since the report.
//!
//! Source: Othman, O'Ryan and Schmidt, "Strategies for CORBA Middleware-Based Load
//! Balancing" (IEEE Distributed Systems Online, 2001), and the strategies `LeastLoaded`,
//! `LoadMinimum` and `LoadAverage` of the OMG's `CosLoadBalancing`. Strategies pick by
//! it, the analyzer raises and lifts alerts by it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::cost::of_units;
use crate::learnt::{LearntSlot, Visit};
use crate::load::Report;
use crate::time::{Horizon, Instant, keep_word_old};

/// Settings that turn a group's reported loads into effective ones.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shaping {
    /// Share of the previous effective load in the next one: from 0 (reports count at
    /// once) up to, but not including, 1.
    pub dampening: f32,
    /// Divides the load; at least 1. Above 1 a member bears more before thresholds apply.
    pub tolerance: f32,
    /// Load that a client adds to the member it is bound to, in the load's unit, from the moment of the binding. At 0
    /// strategies estimate it ([`Location::projected_load`](crate::load::Location::projected_load)).
    pub per_balance_load: f32,
}

impl Shaping {
    /// Loads as they are reported.
    pub const NONE: Shaping = Shaping {
        dampening: 0.0,
        tolerance: 1.0,
        per_balance_load: 0.0,
    };

    /// `None` if loads stay as they are reported.
    pub fn if_any(self) -> Option<Shaping> {
        (self != Shaping::NONE).then_some(self)
    }

    #[inline(never)]
    pub(crate) fn shape_report(self, report: Report, history: &Damped) -> Effective {
        let damped = match self.dampening {
            0.0 => report.value,
            _ => history.step(&report, &self),
        };
        let load = damped + self.per_balance_load * report.bound;
        let expected = if self.per_balance_load > 0.0 {
            load
        } else {
            (load + report.added).max(0.0)
        };
        Effective {
            load: load / self.tolerance,
            expected: expected / self.tolerance,
            report: report.at,
        }
    }
}

/// An effective load.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Effective {
    /// Load from reports and, if it is set, the per-balance load: used for alerts.
    pub load: f32,
    /// Load with an estimate of the load that our own requests have added since the report, if the per-balance load is
    /// not set: used by strategies.
    pub expected: f32,
    /// Tells the report that it goes back to from the next one.
    pub report: u32,
}

/// The last step of a member's effective load.
#[derive(Debug, Default)]
pub struct Damped {
    /// The load before tolerance (f32 bits, high half) and the time of the report that
    /// it stands for (low half); 0 is none yet.
    word: AtomicU64,
    /// Sum of the costs of all requests ever bound to the location when that report arrived, in units.
    bound_at: AtomicU64,
}

impl Damped {
    /// Visits the [learnt](crate::learnt) words.
    pub(crate) fn visit_words<'a>(&'a self, visit: Visit<'_, 'a>) {
        visit("damped.word", LearntSlot::Long(&self.word));
        visit("damped.bound_at", LearntSlot::Long(&self.bound_at));
    }

    /// The damped load for `report`: the held one, or the next step.
    #[inline]
    fn step(&self, report: &Report, shaping: &Shaping) -> f32 {
        let word = self.word.load(Ordering::Acquire);
        let held = f32::from_bits((word >> 32) as u32);
        if word as u32 == report.at {
            return held;
        }
        let next = if word == 0 {
            report.value
        } else {
            let before = self.bound_at.load(Ordering::Relaxed);
            let bound = report.bound_at.wrapping_sub(before);
            let bound = (bound as i64).max(0);
            let previous = held + shaping.per_balance_load * of_units(bound as u64);
            shaping.dampening * previous + (1.0 - shaping.dampening) * report.value
        };
        let stepped = (u64::from(next.to_bits()) << 32) | u64::from(report.at);
        match self
            .word
            .compare_exchange(word, stepped, Ordering::AcqRel, Ordering::Acquire)
        {
            Ok(_) => {
                self.bound_at.store(report.bound_at, Ordering::Relaxed);
                next
            }
            // Another thread has stored the next load.
            Err(other) => f32::from_bits((other >> 32) as u32),
        }
    }
}

/// A factor on a member's weight that follows its load: `1` until it is set.
///
/// Factor (f32 bits, high half) and the time of the report behind it in milliseconds
/// (low half); 0 is not set.
#[derive(Debug, Default)]
pub(crate) struct LoadFactor(AtomicU64);

impl LoadFactor {
    /// Visits the [learnt](crate::learnt) words.
    pub(crate) fn visit_words<'a>(&'a self, name: &'static str, visit: Visit<'_, 'a>) {
        visit(name, LearntSlot::Long(&self.0));
    }

    pub(crate) fn last_factor(&self) -> f32 {
        match self.0.load(Ordering::Relaxed) {
            0 => 1.0,
            word => f32::from_bits((word >> 32) as u32),
        }
    }

    /// The factor, if the report behind it still counts.
    #[inline]
    pub(crate) fn fresh_factor(&self, horizon: &Horizon) -> Option<f32> {
        let word = self.0.load(Ordering::Relaxed);
        let fresh = word != 0 && !horizon.is_past(word as u32);
        fresh.then(|| f32::from_bits((word >> 32) as u32))
    }

    /// True if the report of time `at` is included already.
    pub(crate) fn is_for(&self, at: u32) -> bool {
        self.0.load(Ordering::Relaxed) as u32 == at
    }

    /// Keeps an old time old ([`keep_old`](crate::time::keep_old)).
    pub(crate) fn keep_age(&self, now: Instant) {
        keep_word_old(&self.0, now);
    }

    pub(crate) fn set(&self, factor: f32, at: u32) {
        let word = (u64::from(factor.to_bits()) << 32) | u64::from(at);
        self.0.store(word, Ordering::Relaxed);
    }
}

/// A member's weight by what it reports of its requests and utilisation, which is used when there
/// have been reports for long enough, until they are too old.
#[derive(Debug, Default)]
pub(crate) struct ReportedWeight {
    /// The weight; it is not set while nothing is reported.
    weight: LoadFactor,
    /// Start of the current series of reports without a gap, in nanoseconds; 0 before the first report.
    since: AtomicU64,
}

impl ReportedWeight {
    /// Visits the [learnt](crate::learnt) words.
    pub(crate) fn visit_words<'a>(&'a self, visit: Visit<'_, 'a>) {
        self.weight.visit_words("reported_weight.weight", visit);
        visit("reported_weight.since", LearntSlot::Long(&self.since));
    }

    /// Takes over the weight by the report of time `at`, unless it is in already.
    pub(crate) fn take_weight(&self, weight: f32, at: u32, now: Instant) {
        if self.weight.is_for(at) {
            return;
        }
        self.weight.set(weight, at);
        // An instant of 0 would be none. If it fails there were reports before.
        let nanos = now.as_nanos().max(1);
        let _ = self
            .since
            .compare_exchange(0, nanos, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Ends the series: the next report is the first one of a new series.
    pub(crate) fn begin_again(&self) {
        self.since.store(0, Ordering::Relaxed);
    }

    /// For how long there have been reports without a gap, if the last one is not too old.
    pub(crate) fn reported_for(&self, now: Instant, horizon: &Horizon) -> Option<Duration> {
        let since = self.since.load(Ordering::Relaxed);
        (since != 0 && self.weight.fresh_factor(horizon).is_some())
            .then(|| now.since(Instant::from_nanos(since)))
    }

    /// The weight by the last report, however old.
    pub(crate) fn value(&self) -> f32 {
        self.weight.last_factor()
    }

    /// Keeps an old time old ([`keep_old`](crate::time::keep_old)).
    pub(crate) fn keep_age(&self, now: Instant) {
        self.weight.keep_age(now);
    }
}

#[cfg(test)]
mod tests {

    use super::*;
    use crate::cost::Cost;
    use crate::group::GroupSettings;
    use crate::load::{LoadId, LoadValue};
    use crate::member::Member;
    use crate::testing::make_member;

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    fn report(member: &Member, value: f64, ms: u64) {
        let value = LoadValue::new(value).unwrap();
        member
            .location
            .report_load(LoadId::CPU, value, at(ms))
            .unwrap();
    }

    fn load(member: &Member, shaping: &Shaping, ms: u64) -> Option<f32> {
        let settings = GroupSettings::default();
        member
            .effective_load(shaping, &settings, at(ms))
            .map(|e| e.load)
    }

    #[test]
    fn dampening_keeps_a_history() {
        let shaping = Shaping {
            dampening: 0.5,
            ..Shaping::NONE
        };
        let member = make_member(1);
        assert_eq!(load(&member, &shaping, 0), None);
        report(&member, 8.0, 1000);
        assert_eq!(load(&member, &shaping, 1000), Some(8.0));
        report(&member, 0.0, 2000);
        assert_eq!(load(&member, &shaping, 2000), Some(4.0));
        // Asking again is no further step.
        assert_eq!(load(&member, &shaping, 2500), Some(4.0));
        report(&member, 0.0, 3000);
        assert_eq!(load(&member, &shaping, 3000), Some(2.0));
    }

    #[test]
    fn tolerance_divides_after_the_history() {
        let shaping = Shaping {
            dampening: 0.5,
            tolerance: 2.0,
            ..Shaping::NONE
        };
        let member = make_member(1);
        report(&member, 8.0, 1000);
        assert_eq!(load(&member, &shaping, 1000), Some(4.0));
        report(&member, 8.0, 2000);
        assert_eq!(load(&member, &shaping, 2000), Some(4.0));
    }

    #[test]
    fn a_bound_client_counts_at_once_even_without_dampening() {
        let shaping = Shaping {
            per_balance_load: 0.25,
            ..Shaping::NONE
        };
        let member = make_member(1);
        report(&member, 1.0, 1000);
        member.location.begin_request(Cost::ONE, at(1000));
        member.location.begin_request(Cost::ONE, at(1000));
        assert_eq!(load(&member, &shaping, 1500), Some(1.5));
        report(&member, 1.0, 2000);
        assert_eq!(load(&member, &shaping, 2000), Some(1.0));
    }

    #[test]
    fn clients_bound_between_two_reports_are_part_of_the_history() {
        let shaping = Shaping {
            dampening: 0.5,
            per_balance_load: 1.0,
            ..Shaping::NONE
        };
        let member = make_member(1);
        report(&member, 2.0, 1000);
        assert_eq!(load(&member, &shaping, 1000), Some(2.0));
        (0..4).for_each(|_| member.location.begin_request(Cost::ONE, at(1000)));
        report(&member, 2.0, 2000);
        // (0.5 * (2 + 4 * 1) + 0.5 * 2)
        assert_eq!(load(&member, &shaping, 2000), Some(4.0));
    }

    #[test]
    fn the_expected_load_estimates_what_is_not_configured() {
        let member = make_member(1);
        report(&member, 0.5, 1000);
        member.location.begin_request(Cost::ONE, at(1000));
        let settings = GroupSettings::default();
        let got = member.effective_load(&Shaping::NONE, &settings, at(1001));
        let got = got.unwrap();
        assert_eq!(got.load, 0.5);
        assert!(got.expected > 0.5);
    }
}
