//! Plan that says when the certificate for a name is asked for the next time. Times are in seconds since
//! 1970, random numbers are from 0 to 1.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Longest pause after failures.
const LONGEST: Duration = Duration::from_secs(6 * 3600);

/// From when to when a certificate is valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    /// Begin of the time in which the certificate is valid.
    pub from: i64,
    /// End of this time.
    pub until: i64,
}

impl Validity {
    /// Returns when the certificate is to be renewed: with a third of its life left, or up to a tenth of that
    /// third earlier, so that many certificates that began together are not renewed together for ever.
    pub fn renewal_time(self, random: f64) -> i64 {
        let left = self.until.saturating_sub(self.from).max(0) / 3;
        self.until - left - (left as f64 * random / 10.0) as i64
    }
}

/// Longest pause that an authority may ask for.
const LONGEST_ASKED: i64 = 7 * 24 * 3600;

/// Plan for a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// Time of the next try.
    pub next: i64,
    /// Number of tries in a row that have failed.
    pub failures: u32,
}

impl Plan {
    /// Makes a plan for a certificate as it is; the next try is at once if there is none.
    pub fn new(validity: Option<Validity>, now: i64, random: f64) -> Self {
        let next = validity.map_or(now, |validity| validity.renewal_time(random));
        Plan { next, failures: 0 }
    }

    /// Plans the next try after a try that has failed: after `first`, then after twice as long each time, up
    /// to six hours; a quarter more or less. The next try is not before `asked`, the time that the authority
    /// has named, within a week.
    pub fn plan_retry(&mut self, now: i64, first: Duration, asked: Option<i64>, random: f64) {
        let times = 2f64.powi(self.failures.min(30) as i32);
        let pause = (first.as_secs_f64() * times).min(LONGEST.as_secs_f64());
        let pause = pause * (0.75 + random / 2.0);
        self.failures = self.failures.saturating_add(1);
        self.next = now.saturating_add((pause.ceil() as i64).max(1));
        if let Some(asked) = asked {
            self.next = self.next.max(asked.min(now.saturating_add(LONGEST_ASKED)));
        }
    }

    /// Returns the plan that another process had, as far as it can be one: the clock may have been wrong
    /// there.
    pub fn limit_kept(self, now: i64) -> Self {
        let latest = now.saturating_add(LONGEST_ASKED);
        Plan {
            next: self.next.min(latest),
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: i64 = 24 * 3600;

    #[test]
    fn a_certificate_is_renewed_with_a_third_of_its_life_left() {
        let of_90_days = Validity {
            from: 1000,
            until: 1000 + 90 * DAY,
        };
        assert_eq!(of_90_days.renewal_time(0.0), 1000 + 60 * DAY);
        assert_eq!(of_90_days.renewal_time(1.0), 1000 + 57 * DAY);
        assert_eq!(Plan::new(Some(of_90_days), 5, 0.0).next, 1000 + 60 * DAY);
        assert_eq!(Plan::new(None, 5, 0.7).next, 5);
        let none = Validity { from: 9, until: 3 };
        assert_eq!(none.renewal_time(1.0), 3);
    }

    #[test]
    fn pauses_double_up_to_six_hours_with_jitter() {
        let minute = Duration::from_secs(60);
        let mut plan = Plan::new(None, 0, 0.0);
        let pauses = (0..12).map(|_| {
            plan.plan_retry(100, minute, None, 0.5);
            plan.next - 100
        });
        let pauses: Vec<_> = pauses.collect();
        assert_eq!(pauses[..4], [60, 120, 240, 480]);
        assert_eq!(pauses[9..], [6 * 3600; 3]);
        assert_eq!(plan.failures, 12);
        for (random, pause) in [(0.0, 45), (1.0, 75)] {
            let mut plan = Plan::new(None, 0, 0.0);
            plan.plan_retry(0, minute, None, random);
            assert_eq!(plan.next, pause);
        }
        // However often, and however short.
        plan.failures = u32::MAX;
        plan.plan_retry(0, Duration::from_millis(1), None, 0.0);
        assert!((1..=6 * 3600).contains(&plan.next));
    }

    #[test]
    fn f8_the_pause_that_the_authority_asks_for_holds() {
        let second = Duration::from_secs(1);
        for (asked, next) in [
            (Some(3600), 3600),
            (Some(-5), 1),
            (None, 1),
            (Some(i64::MAX), 7 * DAY),
        ] {
            let mut plan = Plan::new(None, 0, 0.0);
            plan.plan_retry(0, second, asked, 0.5);
            assert_eq!((plan.next, plan.failures), (next, 1), "{asked:?}");
        }
        let far = Plan {
            next: i64::MAX,
            failures: 3,
        };
        assert_eq!(far.limit_kept(10).next, 10 + 7 * DAY);
    }
}
