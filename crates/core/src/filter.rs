//! Filter for a member's present service time: it detects a change within a few answers, where a mean over the last
//! answers (`estimate.rs`) needs a dozen. It is used where requests wait for certain members (`late.rs`) and one more
//! request at a slow member costs most.
//!
//! For each of eight service times, from a third of the group's typical time to fourteen times that, there is a weight:
//! the likelihood that the member has this service time now. Each answer after *x* seconds multiplies the weight of *s*
//! by e^(-*x* / *s*) / *s*, and each request that has been unanswered for *x* seconds by e^(-*x* / *s*), as if service
//! times were exponential. Where they differ more, as with mixed costs, one answer says less: the factor is raised to
//! the power of one over the squared coefficient of variation; where that coefficient is above 2 there is no filter. A
//! fifth of the weights in a second goes back to the usual ones, as the member may have changed (Adams and MacKay,
//! "Bayesian Online Changepoint Detection", 2007). The service time is the weighted geometric mean.
//!
//! If a request of the group announces its cost, there is no filter from then on: with known costs an answer tells the
//! member's speed in another way (`docs/design/adaptive.md` has figures).
//!
//! The weights are logarithms in one word: a reader always sees weights that belong together. Of answers that come at
//! the same time one may be lost.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::float::{exp2, higher, log2, lower};
use crate::learnt::{LearntSlot, Visit};

/// Number of service times that are told apart.
const TIMES: usize = 8;

/// Base 2 logarithm of the ratio between a service time and the next one: 1.7.
const STEP: f32 = 0.765_534_7;

/// Index of the typical service time.
const TYPICAL: usize = 2;

/// The service times in units of the typical one: 1.7 to the power of -2 to 5.
const RATIOS: [f32; TIMES] = [0.346_02, 0.588_24, 1.0, 1.7, 2.89, 4.913, 8.352_1, 14.198_6];

/// Weights where nothing is known: a third of the weight near the typical time, the rest evenly spread.
const USUAL: [f32; TIMES] = [
    0.0875, 0.1625, 0.2375, 0.1625, 0.0875, 0.0875, 0.0875, 0.0875,
];

/// Changes in a second.
const HAZARD: f32 = 0.2;

/// Parts of a power of 2 in which weights are kept.
const PARTS: f32 = 8.0;

/// The base 2 logarithm of e.
const LOG2_E: f32 = std::f32::consts::LOG2_E;

/// The value 1 in the representation of [`log2`] and [`exp2`]: 127 is the logarithm of 1.
const ONE: f32 = 127.0;

/// Longest time of a request, in service times: a longer one says nothing more.
const LONGEST: f32 = 50.0;

/// An answer never says more than this part of what one says where times are exponential: members also
/// wait for processors and networks.
const MOST_CERTAIN: f32 = 0.7;

/// Certainty below which there is no filter: if times vary much, a mean over more answers is better
/// (`docs/design/adaptive.md` has figures).
const LEAST_CERTAIN: f32 = 0.5;

/// Typical values of the group.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct TypicalValues {
    /// The service time of a typical member in seconds.
    pub(crate) time: f32,
    /// Information of one answer, where 1 is as much as with exponential times.
    pub(crate) certainty: f32,
}

impl TypicalValues {
    /// Typical values for times with this squared coefficient of variation.
    pub(crate) fn new(time: f32, variation: f32) -> Self {
        let certainty = lower(1.0 / higher(variation, 0.05), MOST_CERTAIN);
        TypicalValues { time, certainty }
    }

    /// True if the filter can tell that time from others.
    pub(crate) fn covers(&self, time: f32) -> bool {
        self.certainty >= LEAST_CERTAIN
            && time >= RATIOS[0] * self.time
            && time <= RATIOS[TIMES - 1] * self.time
    }
}

/// The weights of one member.
#[derive(Debug, Default)]
pub(crate) struct Filter {
    /// A byte for each service time: the difference of its weight to the heaviest one, in eighths of a power of 2. In
    /// the beginning all weights are equal.
    weights: AtomicU64,
}

/// The weights of a filter that is switched off. No other filter has this value, because its heaviest weight has the
/// byte 0.
const OFF: u64 = u64::MAX;

impl Filter {
    /// Visits the [learnt](crate::learnt) words.
    pub(crate) fn visit_words<'a>(&'a self, visit: Visit<'_, 'a>) {
        visit("filter.weights", LearntSlot::Long(&self.weights));
    }

    /// True if the filter is switched off.
    pub(crate) fn is_off(&self) -> bool {
        self.weights.load(Ordering::Relaxed) == OFF
    }

    /// From now on it says nothing.
    pub(crate) fn switch_off(&self) {
        self.weights.store(OFF, Ordering::Relaxed);
    }

    /// The weights `silence` seconds after the last answer; their sum is 1.
    fn weights(&self, silence: f32) -> [f32; TIMES] {
        let bytes = self.weights.load(Ordering::Relaxed).to_le_bytes();
        let weights = bytes.map(|byte| exp2(ONE - f32::from(byte) / PARTS));
        let sum: f32 = weights.iter().sum();
        let changes = HAZARD * silence;
        let changed = changes / (1.0 + changes);
        let mut usual = USUAL.iter();
        weights.map(|weight| {
            let usual = usual.next().copied().unwrap_or_default();
            weight / sum * (1.0 - changed) + usual * changed
        })
    }

    /// An answer that took `seconds` for one request, `silence` seconds after the one before.
    pub(crate) fn record_answer(&self, seconds: f32, silence: f32, usual: TypicalValues) {
        let ratio = seconds / usual.time;
        let mut logs = self.weights(silence);
        for (index, (log, time)) in logs.iter_mut().zip(RATIOS).enumerate() {
            let likely = -LOG2_E * lower(ratio / time, LONGEST) - STEP * index as f32;
            *log = log2(*log) + usual.certainty * likely;
        }
        let top = logs.iter().copied().fold(f32::MIN, higher);
        let bytes = logs.map(|log| lower((top - log) * PARTS + 0.5, 255.0) as u8);
        self.weights
            .store(u64::from_le_bytes(bytes), Ordering::Relaxed);
    }

    /// Service time of the member in seconds, if requests there have been unanswered for `age` seconds, `silence`
    /// seconds after the last answer.
    pub(crate) fn estimate_time(&self, age: f32, silence: f32, usual: TypicalValues) -> f32 {
        let ratio = age / usual.time * usual.certainty * LOG2_E;
        let (mut sum, mut logs) = (0.0, 0.0);
        let slowest = ratio / RATIOS[TIMES - 1];
        for (index, (weight, time)) in self.weights(silence).into_iter().zip(RATIOS).enumerate() {
            // The slowest keeps its weight, so that there always is one.
            let weight = weight * exp2(ONE - (ratio / time - slowest));
            sum += weight;
            logs += weight * (index as f32 - TYPICAL as f32);
        }
        usual.time * exp2(ONE + STEP * logs / sum)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: f32 = 1e-3;
    const USUALLY: TypicalValues = TypicalValues {
        time: 10.0 * MS,
        certainty: MOST_CERTAIN,
    };

    /// Feeds the filter with this many answers of a member with the service time `time`.
    fn after(filter: &Filter, answers: usize, time: f32, rng: &mut fastrand::Rng) {
        for _ in 0..answers {
            let seconds = -time * libm::logf(1.0 - rng.f32());
            filter.record_answer(seconds, seconds, USUALLY);
        }
    }

    #[test]
    fn it_finds_the_service_time_and_sees_soon_that_it_has_changed() {
        let (mut slower, mut faster) = (0.0, 0.0);
        for seed in 0..100 {
            let rng = &mut fastrand::Rng::with_seed(seed);
            let filter = Filter::default();
            after(&filter, 100, 10.0 * MS, rng);
            let time = filter.estimate_time(0.0, 0.0, USUALLY);
            assert!(time > 5.0 * MS && time < 20.0 * MS, "{seed}: {time}");
            after(&filter, 4, 50.0 * MS, rng);
            slower += filter.estimate_time(0.0, 0.0, USUALLY) / 100.0;
            after(&filter, 50, 50.0 * MS, rng);
            after(&filter, 16, 10.0 * MS, rng);
            faster += filter.estimate_time(0.0, 0.0, USUALLY) / 100.0;
        }
        assert!(slower > 25.0 * MS, "{slower}");
        assert!(faster < 20.0 * MS, "{faster}");
    }

    #[test]
    fn what_is_unanswered_for_long_looks_slow_before_it_is_answered() {
        let filter = Filter::default();
        after(&filter, 100, 10.0 * MS, &mut fastrand::Rng::with_seed(1));
        let time = |age: f32| filter.estimate_time(age * MS, age * MS, USUALLY);
        assert!(time(100.0) > 3.0 * time(0.0), "{}", time(100.0));
        // However long that is, it is a number.
        let longest = time(1e9);
        assert!(longest > 100.0 * MS && longest < 150.0 * MS, "{longest}");
        assert!(time(f32::MAX / 1e6).is_finite());
    }

    #[test]
    fn one_that_was_slow_is_thought_to_have_changed_after_a_while() {
        let filter = Filter::default();
        after(&filter, 20, 100.0 * MS, &mut fastrand::Rng::with_seed(1));
        let time = |silence: f32| filter.estimate_time(0.0, silence, USUALLY);
        assert!(time(0.0) > 70.0 * MS);
        assert!(time(30.0) < 30.0 * MS);
    }

    #[test]
    fn where_costs_differ_one_answer_says_less() {
        let time = |variation: f32| {
            let filter = Filter::default();
            let usual = TypicalValues::new(10.0 * MS, variation);
            (0..20).for_each(|_| filter.record_answer(10.0 * MS, 0.01, usual));
            filter.record_answer(200.0 * MS, 0.2, usual);
            filter.estimate_time(0.0, 0.0, usual)
        };
        assert!(time(4.0) < 0.7 * time(1.0), "{} {}", time(4.0), time(1.0));
    }
}
