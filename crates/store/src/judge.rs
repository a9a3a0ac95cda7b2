//! Comparison of balancers that try a change with balancers without the change. No I/O.
//!
//! Failures are compared by Wilson's score interval (Edwin B. Wilson, "Probable Inference, the Law of Succession, and
//! Statistical Inference", 1927), and 99th percentiles by an interval of ranks, so that a change is not taken back by
//! chance. The intervals are wide, 4 standard deviations, because a step is judged again and again while it lasts.

use std::time::Duration;

use evenkeel_config::Rollout;
use serde::{Deserialize, Serialize};

/// Half the width of the intervals, in standard deviations.
const DEVIATIONS: f64 = 4.0;

/// Number of latency limits: each limit is 15 % above the limit before, from 100 µs to 98 s.
pub const LIMITS: usize = 100;

/// Counts of one balancer, or the sum over several.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Requests whose end is known; sessions, for TCP.
    pub requests: u64,
    /// Requests that failed.
    pub failed: u64,
    /// Number of latencies in each interval between two [`interval_limit`]s: the interval, and the number.
    #[serde(default)]
    pub latencies: Vec<(u16, u64)>,
}

/// Largest latency of an interval.
pub fn interval_limit(interval: usize) -> Duration {
    let power = i32::try_from(interval).unwrap_or(i32::MAX);
    Duration::try_from_secs_f64(1e-4 * 1.15_f64.powi(power)).unwrap_or(Duration::MAX)
}

impl Counts {
    /// Brings counts that were read from the store within the bounds of this program.
    pub(crate) fn limit_counts(&mut self) {
        self.failed = self.failed.min(self.requests);
        self.latencies
            .retain(|(interval, _)| usize::from(*interval) < LIMITS);
        self.latencies.sort_unstable();
        self.latencies.truncate(LIMITS);
    }

    /// Counts since `earlier`, an earlier state of the same process.
    pub fn since(&self, earlier: &Counts) -> Counts {
        let requests = self.requests.saturating_sub(earlier.requests);
        let before = |interval: u16| {
            let mut all = earlier.latencies.iter();
            all.find(|(other, _)| *other == interval)
                .map_or(0, |(_, count)| *count)
        };
        let latencies = self.latencies.iter().map(|(interval, count)| {
            let more = count.saturating_sub(before(*interval));
            (*interval, more)
        });
        Counts {
            requests,
            failed: self.failed.saturating_sub(earlier.failed).min(requests),
            latencies: latencies.filter(|(_, count)| *count > 0).collect(),
        }
    }

    /// Adds the counts of another balancer.
    pub fn add(&mut self, other: &Counts) {
        self.requests = self.requests.saturating_add(other.requests);
        self.failed = self.failed.saturating_add(other.failed);
        for (interval, count) in &other.latencies {
            match self.latencies.iter_mut().find(|(own, _)| own == interval) {
                Some((_, own)) => *own = own.saturating_add(*count),
                None => self.latencies.push((*interval, *count)),
            }
        }
        self.latencies.sort_unstable();
    }

    /// Confidence interval of the share of failed requests: lower and upper bound.
    fn failing(&self) -> (f64, f64) {
        if self.requests == 0 {
            return (0.0, 1.0);
        }
        let count = self.requests as f64;
        let share = self.failed as f64 / count;
        let square = DEVIATIONS * DEVIATIONS;
        let middle = share + square / (2.0 * count);
        let spread =
            DEVIATIONS * (share * (1.0 - share) / count + square / (4.0 * count * count)).sqrt();
        let under = 1.0 + square / count;
        (
            ((middle - spread) / under).clamp(0.0, 1.0),
            ((middle + spread) / under).clamp(0.0, 1.0),
        )
    }

    /// Confidence interval of the latency's 99th percentile: lower and upper bound. `None` without latencies.
    fn slowest(&self) -> Option<(Duration, Duration)> {
        let count: u64 = self
            .latencies
            .iter()
            .fold(0, |sum, (_, count)| sum.saturating_add(*count));
        if count == 0 {
            return None;
        }
        let spread = DEVIATIONS * (0.99 * 0.01 / count as f64).sqrt();
        let at = |share: f64| {
            let rank = ((share.clamp(0.0, 1.0) * count as f64).ceil() as u64).max(1);
            let mut seen: u64 = 0;
            let interval = self.latencies.iter().find(|(_, count)| {
                seen = seen.saturating_add(*count);
                seen >= rank
            });
            interval.map(|(interval, _)| usize::from(*interval))
        };
        let (least, most) = (at(0.99 - spread)?, at(0.99 + spread)?);
        // The lower limit of the first interval, and the upper limit of the last one.
        let least = least.checked_sub(1).map_or(Duration::ZERO, interval_limit);
        Some((least, interval_limit(most)))
    }
}

/// Verdict about a step of a roll-out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The balancers with the change do as well as the others.
    Good,
    /// The balancers with the change do worse; the text says how.
    Worse(String),
    /// There are too few requests for a verdict.
    Unsure,
}

/// Compares the counts of balancers with a change with those of other balancers, or of the same balancers before it.
pub fn judge_change(with: &Counts, without: &Counts, rules: &Rollout) -> Verdict {
    let least = u64::from(rules.min_requests);
    let ((with_least, _), (_, without_most)) = (with.failing(), without.failing());
    // Significant even with few requests.
    if without.requests > 0 && with_least > without_most + f64::from(rules.more_failures) / 100.0 {
        let percent =
            |counts: &Counts| 100.0 * counts.failed as f64 / counts.requests.max(1) as f64;
        return Verdict::Worse(format!(
            "{:.2} % of {} requests failed with the revision, and {:.2} % of {} without it",
            percent(with),
            with.requests,
            percent(without),
            without.requests
        ));
    }
    if let (Some((with_least, _)), Some((_, without_most))) = (with.slowest(), without.slowest())
        && with.requests >= least
        && without.requests >= least
        && with_least > without_most.mul_f32(rules.slower)
    {
        return Verdict::Worse(format!(
            "the 99th percentile of the latency is at least {with_least:.1?} with the revision, and at most \
             {without_most:.1?} without it"
        ));
    }
    match with.requests >= least && without.requests >= least {
        true => Verdict::Good,
        false => Verdict::Unsure,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn counts(requests: u64, failed: u64, millis: &[(u64, u64)]) -> Counts {
        let interval = |millis: u64| {
            let millis = Duration::from_millis(millis);
            let found = (0..LIMITS).find(|interval| interval_limit(*interval) >= millis);
            u16::try_from(found.unwrap()).unwrap()
        };
        let mut counts = Counts {
            requests,
            failed,
            latencies: Vec::new(),
        };
        for (millis, count) in millis {
            counts.add(&Counts {
                latencies: vec![(interval(*millis), *count)],
                ..Counts::default()
            });
        }
        counts
    }

    #[test]
    fn limits_reach_from_microseconds_to_minutes() {
        assert_eq!(interval_limit(0), Duration::from_micros(100));
        assert!(interval_limit(LIMITS - 1) > Duration::from_secs(90));
    }

    #[test]
    fn more_failures_than_chance_explains_are_worse() {
        let rules = Rollout::default();
        let judge = |with: (u64, u64), without: (u64, u64)| {
            judge_change(
                &counts(with.0, with.1, &[]),
                &counts(without.0, without.1, &[]),
                &rules,
            )
        };
        assert_eq!(judge((10_000, 10), (10_000, 12)), Verdict::Good);
        assert_eq!(
            judge((10_000, 40), (10_000, 12)),
            Verdict::Good,
            "within half a percent"
        );
        assert!(matches!(
            judge((10_000, 500), (10_000, 12)),
            Verdict::Worse(_)
        ));
        // All fail: that needs no thousand of them.
        assert!(matches!(judge((60, 60), (100, 0)), Verdict::Worse(_)));
        assert_eq!(judge((60, 1), (100, 0)), Verdict::Unsure);
        assert_eq!(judge((0, 0), (10_000, 0)), Verdict::Unsure);
        assert_eq!(
            judge((10_000, 10_000), (0, 0)),
            Verdict::Unsure,
            "nothing to compare with"
        );
        // It is better than before.
        assert_eq!(judge((10_000, 0), (10_000, 9_000)), Verdict::Good);
    }

    #[test]
    fn a_99th_percentile_that_is_much_longer_is_worse() {
        let rules = Rollout::default();
        let usual = counts(10_000, 0, &[(5, 9_500), (20, 500)]);
        assert_eq!(judge_change(&usual, &usual, &rules), Verdict::Good);
        let slow = counts(10_000, 0, &[(5, 9_500), (60, 500)]);
        let Verdict::Worse(why) = judge_change(&slow, &usual, &rules) else {
            panic!("not seen");
        };
        assert!(why.contains("99th percentile"), "{why}");
        assert_eq!(judge_change(&usual, &slow, &rules), Verdict::Good);
        // A few slow ones are no percentile.
        let few = counts(10_000, 0, &[(5, 9_500), (20, 480), (500, 20)]);
        assert_eq!(judge_change(&few, &usual, &rules), Verdict::Good);
        let tolerant = Rollout {
            slower: 10.0,
            ..Rollout::default()
        };
        assert_eq!(judge_change(&slow, &usual, &tolerant), Verdict::Good);
    }

    #[test]
    fn counts_are_added_and_subtracted() {
        let mut sum = counts(10, 1, &[(5, 9)]);
        sum.add(&counts(5, 1, &[(5, 1), (1, 4)]));
        assert_eq!(sum, counts(15, 2, &[(1, 4), (5, 10)]));
        assert_eq!(
            sum.since(&counts(10, 1, &[(5, 9)])),
            counts(5, 1, &[(1, 4), (5, 1)])
        );
        // A process that was started anew has counted less.
        assert_eq!(counts(1, 0, &[]).since(&sum), Counts::default());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        /// Numbers from the network do no harm, and nothing is worse than itself.
        #[test]
        fn any_counts_can_be_judged(
            requests in any::<u64>(),
            failed in any::<u64>(),
            latencies in prop::collection::vec((any::<u16>(), any::<u64>()), 0..10),
            other in any::<u64>(),
        ) {
            let mut one = Counts { requests, failed, latencies };
            one.limit_counts();
            let mut two = counts(other, other / 3, &[(10, other)]);
            let _ = judge_change(&one, &two, &Rollout::default());
            let _ = judge_change(&two.since(&one), &one, &Rollout::default());
            two.add(&one);
            prop_assert!(!matches!(judge_change(&one, &one, &Rollout::default()), Verdict::Worse(_)));
        }

        /// Two halves of the same requests are hardly ever judged different.
        #[test]
        fn chance_is_no_reason(seed in any::<u64>()) {
            let mut rng = fastrand::Rng::with_seed(seed);
            let mut draw = || {
                let failed = (0..2_000).filter(|_| rng.f64() < 0.05).count() as u64;
                let mut all = counts(2_000, failed, &[]);
                for _ in 0..2_000 {
                    let millis = (-rng.f64().max(1e-12).ln() * 20.0) as u64;
                    all.add(&counts(0, 0, &[(millis, 1)]));
                }
                all
            };
            let (one, two) = (draw(), draw());
            prop_assert_eq!(judge_change(&one, &two, &Rollout::default()), Verdict::Good);
        }
    }
}
