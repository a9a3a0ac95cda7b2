//! Regression of a member's latencies: their growth with the requests that are there, their variation, and whether they
//! tell two members apart.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::float::{higher, log2, lower, pack, unpack};
use crate::learnt::{LearntSlot, Visit};

/// Most answers over which the average reaches. With fewer, costs that differ by a factor of twenty look
/// like members that differ.
const MOST_ANSWERS: f32 = 40.0;

/// Fewest, and those for each squared coefficient of variation of the latencies. With fewer a member that
/// changes is seen sooner, and equal members look different, which costs more
/// (`docs/design/adaptive.md` has figures).
pub(crate) const FEWEST_ANSWERS: f32 = 20.0;

/// Answers over which the average reaches where weights differ: with more, shares are off by more than a point.
const WEIGHTED_ANSWERS: f32 = 32.0;

/// Answers after which their variation is known.
const KNOWN: u32 = 32;

/// Factor of surprise: an answer that took more than this many times the expected time counts only for the time since
/// the answer before. All requests that wait at a member that stands still for a moment see the same stall, which is
/// one observation and not as many as there are requests.
pub(crate) const SURPRISE: f32 = 6.0;

/// Reach of an average.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Reach {
    /// Number of answers that count.
    pub(crate) answers: f32,
    /// Factor of an unexpectedly long answer ([`SURPRISE`]); infinite where weights differ, as shares would otherwise
    /// be off by more than a point.
    pub(crate) surprise: f32,
}

/// Seconds by which answers of equal members differ: a member that is seldom asked has to be woken, and to wait for a
/// processor.
const NOISE: f32 = 2e-3;

/// Initial growth: less than it may be. A member that has more in flight then looks slower than it is, and gets less.
/// With too much growth the member would look faster the more it has, get more, and so on.
pub(crate) const FIRST_GROWTH: f32 = 0.25;

/// The variance of requests in flight for which that counts.
const FIRST_VARIANCE: f32 = 0.25;

/// Standard deviation of the base 2 logarithm of an exponential time.
const EXPONENTIAL: f32 = 1.85;

/// Standard errors by which averages of recent answers may be apart in idle members that are not told apart. With three, equal
/// members are taken for different ones often enough that 200 requests are 5 points off.
const LATELY: f32 = 5.0;

/// Standard errors as for [`LATELY`], for averages over a longer time. With three, equal members are taken for
/// different ones a few times in a thousand, and then for hundreds of requests.
const LONGER: f32 = 4.0;

/// Squared coefficient of variation that times have at least, as members wait for processors and networks.
const LEAST_VARIATION: f32 = 0.01;

/// Answers from which the growth is learnt. The growth hardly ever changes, and single answers tell little of it.
const GROWTH_ANSWERS: u32 = 256;

/// Data from which the growth is learnt: the regression of a member's latencies on the requests that were there
/// meanwhile. Workers write without regard to others that write at the same time: an answer more or less does not
/// matter.
#[derive(Debug, Default)]
pub(crate) struct Regression {
    /// Means of the others that were there (f32 bits, high half) and of the latencies.
    means: AtomicU64,
    /// Variance of the others, and covariance.
    spreads: AtomicU64,
    /// Means of the logarithms of the latencies ([`Regression::typical_latency`]).
    logs: AtomicU64,
    /// Mean of the latencies in units of the expected one (f32 bits, high half), and of the squares.
    spread: AtomicU64,
    /// Answers so far, at most [`GROWTH_ANSWERS`].
    answers: AtomicU32,
}

impl Regression {
    /// Visits the [learnt](crate::learnt) words.
    pub(crate) fn visit_words<'a>(&'a self, visit: Visit<'_, 'a>) {
        visit("regression.means", LearntSlot::Long(&self.means));
        visit("regression.spreads", LearntSlot::Long(&self.spreads));
        visit("regression.logs", LearntSlot::Long(&self.logs));
        visit("regression.spread", LearntSlot::Long(&self.spread));
        visit("regression.answers", LearntSlot::Short(&self.answers));
    }

    /// Takes an answer after `latency` seconds, with `others` there.
    #[inline]
    pub(crate) fn learn_latency(&self, latency: f32, others: f32) {
        let answers = (self.answers.load(Ordering::Relaxed) + 1).min(GROWTH_ANSWERS);
        let share = 1.0 / answers as f32;
        let (mut mean, mut mean_latency) = self.means();
        let (mut variance, mut covariance) = unpack(self.spreads.load(Ordering::Relaxed));
        let (dx, dy) = (others - mean, latency - mean_latency);
        mean += share * dx;
        mean_latency += share * dy;
        // Nothing at the first answer, which is the mean.
        variance += share * (dx * (others - mean) - variance);
        covariance += share * (dx * (latency - mean_latency) - covariance);
        let (mut log_latency, mut log_time) = self.typical_latency();
        log_latency += share * (log2(latency + NOISE) - log_latency);
        log_time += share * (log2(latency / (1.0 + others) + NOISE) - log_time);
        self.logs
            .store(pack(log_latency, log_time), Ordering::Relaxed);
        self.answers.store(answers, Ordering::Relaxed);
        self.means
            .store(pack(mean, mean_latency), Ordering::Relaxed);
        self.spreads
            .store(pack(variance, covariance), Ordering::Relaxed);
    }

    /// True if answers do not tell this member from the other. `places` are the places that count in the members'
    /// estimates, at least one for each answer, and `slower` is the number of powers of two by which the other member
    /// was slower lately. Both `slower` and the means of logarithms over a longer time have to be within some standard
    /// errors ([`LATELY`], [`LONGER`]).
    pub(crate) fn is_like(&self, other: &Regression, places: [f32; 2], slower: f32) -> bool {
        let (mut spread, mut lately, mut longer) = (0.0, 0.0, 0.0);
        for (regression, places) in [self, other].into_iter().zip(places) {
            let Some(variation) = regression.variation() else {
                // Too few answers to tell.
                return true;
            };
            spread = higher(spread, higher(variation, LEAST_VARIATION));
            // A mean that forgets has half the variance of one of as many.
            let answers = regression.answers.load(Ordering::Relaxed) as f32;
            let counting = lower(
                lower(places, answers),
                regression.average_reach(false).answers,
            );
            lately += lower(0.5 / counting, 1.0);
            longer += match answers < GROWTH_ANSWERS as f32 {
                true => 1.0 / answers,
                false => 0.5 / GROWTH_ANSWERS as f32,
            };
        }
        const LOG2_E: f32 = std::f32::consts::LOG2_E;
        let lately = LATELY * LATELY * LOG2_E * LOG2_E * spread * lately;
        let longer = LONGER * LONGER * EXPONENTIAL * EXPONENTIAL * lower(spread, 1.0) * longer;
        let apart = self.typical_latency().1 - other.typical_latency().1;
        slower * slower <= lately && apart * apart <= longer
    }

    /// Takes in an answer, whose time is given as a multiple of the expected one.
    #[inline]
    pub(crate) fn learn_variation(&self, ratio: f32) {
        let answers = self.answers.load(Ordering::Relaxed).max(1);
        let share = 1.0 / answers as f32;
        let (mean, square) = unpack(self.spread.load(Ordering::Relaxed));
        let mean = mean + share * (ratio - mean);
        let square = square + share * (ratio * ratio - square);
        self.spread.store(pack(mean, square), Ordering::Relaxed);
    }

    /// Reach of the average of service times, by how much latencies differ.
    pub(crate) fn average_reach(&self, is_weighted: bool) -> Reach {
        if is_weighted {
            return Reach {
                answers: WEIGHTED_ANSWERS,
                surprise: f32::INFINITY,
            };
        }
        let answers = match self.variation() {
            Some(variation) => lower(
                higher(FEWEST_ANSWERS * variation, FEWEST_ANSWERS),
                MOST_ANSWERS,
            ),
            None => MOST_ANSWERS,
        };
        Reach {
            answers,
            surprise: SURPRISE,
        }
    }

    /// The squared coefficient of variation of the latencies, in units of the expected one; `None` means unknown.
    pub(crate) fn variation(&self) -> Option<f32> {
        let (mean, square) = unpack(self.spread.load(Ordering::Relaxed));
        let is_known = self.answers.load(Ordering::Relaxed) >= KNOWN && mean > 0.0;
        is_known.then(|| square / (mean * mean) - 1.0)
    }

    /// The mean number of others that a request is there with, and the mean latency in
    /// seconds; 0 before the first answer.
    fn means(&self) -> (f32, f32) {
        unpack(self.means.load(Ordering::Relaxed))
    }

    /// Means of [`log2`] of the latencies in seconds, and of the latencies divided by the number of requests that were
    /// there, each with an allowance for noise; 0 before the first answer. A few answers that took very long move these
    /// means little.
    #[inline]
    pub(crate) fn typical_latency(&self) -> (f32, f32) {
        unpack(self.logs.load(Ordering::Relaxed))
    }
}

/// The growth that members of a group have in common.
#[derive(Debug)]
pub(crate) struct Growth {
    variance: f32,
    covariance: f32,
}

impl Growth {
    /// Growth before any answer.
    pub(crate) fn unknown() -> Self {
        Growth {
            variance: FIRST_VARIANCE,
            covariance: FIRST_VARIANCE * FIRST_GROWTH,
        }
    }

    /// Takes in the regression of a member.
    ///
    /// The latency is `a (1 + growth * n)` with the member's own `a`, so that the slope is the
    /// same for all members in units of `a`, which the mean latency and the mean of *n* give
    /// once the growth is known: that of the member itself is good enough.
    pub(crate) fn add_member(&mut self, regression: &Regression) {
        let (mean, mean_latency) = regression.means();
        let (variance, covariance) = unpack(regression.spreads.load(Ordering::Relaxed));
        if variance <= 0.0 {
            return;
        }
        let at_idle = mean_latency - covariance / variance * mean;
        let at_idle = at_idle.max(mean_latency / (1.0 + mean));
        // Behind a long queue latencies say much about the queue, and little about one more.
        let certain = 1.0 / ((1.0 + mean) * (1.0 + mean));
        self.variance += certain * variance;
        self.covariance += certain * (covariance / at_idle).clamp(0.0, variance);
    }

    /// The growth, from 0 to 1.
    pub(crate) fn get(&self) -> f32 {
        (self.covariance / self.variance).clamp(0.0, 1.0)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::estimate::Estimate;
    use crate::time::Instant;

    const DECAY: Duration = Duration::from_secs(10);
    const MS: Duration = Duration::from_millis(1);

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    /// A change is seen after fewer answers where they differ little.
    #[test]
    fn the_average_reaches_over_more_answers_where_they_differ_more() {
        let window = |draw: &mut dyn FnMut() -> f64| {
            let (estimate, regression) = (Estimate::default(), Regression::default());
            for step in 0..2000 {
                let latency = Duration::from_secs_f64(draw());
                estimate.learn_growth(latency, 1.0, 0.0, 1.0, &regression);
                let window = regression.average_reach(false);
                estimate.sample_latency(latency, 1.0, 0.0, at(step), DECAY, window);
            }
            regression.average_reach(false).answers
        };
        let mut rng = fastrand::Rng::with_seed(1);
        assert_eq!(window(&mut || 0.010), FEWEST_ANSWERS);
        let mut exponential = || 0.010 * -libm::log(1.0 - rng.f64());
        let usual = window(&mut exponential);
        assert!(
            (FEWEST_ANSWERS..1.5 * FEWEST_ANSWERS).contains(&usual),
            "{usual}"
        );
        let mut rng = fastrand::Rng::with_seed(2);
        let mut mixed = || if rng.f64() < 0.1 { 0.200 } else { 0.010 };
        assert!(window(&mut mixed) > 25.0);
    }

    /// Returns true if answers with exponential times of these means, in milliseconds, do not tell two members apart: `many`
    /// answers of the first mean and then `last` of the second one.
    fn alike(means: [[f64; 2]; 2], many: u64, last: u64, seed: u64) -> bool {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut known = [(); 2].map(|()| (Estimate::default(), Regression::default()));
        for ((estimate, regression), mean) in known.iter_mut().zip(means) {
            for step in 0..many + last {
                let mean = if step < many { mean[0] } else { mean[1] };
                let latency = MS.mul_f64(mean * -libm::log(1.0 - rng.f64()));
                estimate.learn_growth(latency, 1.0, 0.0, 1.0, regression);
                let reach = regression.average_reach(false);
                estimate.sample_latency(latency, 1.0, 0.0, at(100 * step), DECAY, reach);
            }
        }
        let [one, other] = &known;
        let [time, other_time] = [one, other].map(|known| known.0.mean_time().unwrap());
        let places = [one, other].map(|known| known.0.answered_places());
        one.1
            .is_like(&other.1, places, log2(other_time) - log2(time))
    }

    #[test]
    fn equal_members_are_not_told_apart_and_slower_ones_are() {
        let share = |means: [[f64; 2]; 2], many: u64, last: u64| {
            let seeds = 1..=200;
            seeds.filter(|&seed| alike(means, many, last, seed)).count()
        };
        let equal = [[10.0; 2]; 2];
        assert!(share(equal, 10, 0) == 200);
        assert!(share(equal, 100, 0) >= 199, "{}", share(equal, 100, 0));
        assert!(share(equal, 2000, 0) >= 199, "{}", share(equal, 2000, 0));
        // A member is twice as slow: noticed after some hundred answers.
        let slower = [[10.0; 2], [20.0; 2]];
        assert!(share(slower, 2000, 0) <= 20, "{}", share(slower, 2000, 0));
        // A member has become five times slower: noticed after some dozen answers.
        let changed = [[10.0; 2], [10.0, 50.0]];
        assert!(
            share(changed, 2000, 60) <= 30,
            "{}",
            share(changed, 2000, 60)
        );
    }
}
