//! The retry budget: retries may add a share to the requests, and no more.
//!
//! Without one, retries multiply the load just when members fail because of it. A
//! bucket of tokens: each request puts in the share, each retry takes a whole one out.
//! A small rate comes in with time, so that a service with few requests may retry, too.

use evenkeel_core::time::Instant;

/// Retries per second that are allowed whatever the number of requests.
const RETRIES_PER_SECOND: f64 = 1.0;

/// Most retries that can be saved up; also what a new budget starts with.
const CAPACITY: f64 = 10.0;

/// The budget of one service in one worker: a burst of failures meets at most
/// [`CAPACITY`] tokens plus the share of what arrives with it.
#[derive(Debug)]
pub struct RetryBudget {
    tokens: f64,
    refilled: Instant,
}

impl RetryBudget {
    /// A full budget.
    pub fn new(now: Instant) -> Self {
        RetryBudget {
            tokens: CAPACITY,
            refilled: now,
        }
    }

    /// A request has arrived: retries may add `share` of it.
    #[inline]
    pub fn request(&mut self, share: f32) {
        self.tokens = (self.tokens + f64::from(share)).min(CAPACITY);
    }

    /// Takes a retry from the budget. Returns true if the retry may be made now; it is then paid
    /// for.
    pub fn try_retry(&mut self, now: Instant) -> bool {
        let seconds = now.since(self.refilled).as_secs_f64();
        self.refilled = now;
        self.tokens = (self.tokens + seconds * RETRIES_PER_SECOND).min(CAPACITY);
        if self.tokens < 1.0 {
            return false;
        }
        self.tokens -= 1.0;
        true
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn retries_stay_below_their_share(
            share in 0.0_f32..1.0,
            gaps in proptest::collection::vec(0_u64..200, 1..2000),
        ) {
            let mut now = Instant::from_nanos(1);
            let mut budget = RetryBudget::new(now);
            let (mut requests, mut retries) = (0_u64, 0_u64);
            for gap in gaps {
                now = Instant::from_nanos(now.as_nanos() + gap * 1_000_000);
                budget.request(share);
                requests += 1;
                // Every request fails, and each retry, too.
                for _ in 0..3 {
                    retries += u64::from(budget.try_retry(now));
                }
            }
            let most = CAPACITY
                + requests as f64 * f64::from(share)
                + now.as_secs_f64() * RETRIES_PER_SECOND;
            prop_assert!(retries as f64 <= most + 1e-3, "{retries} > {most}");
        }
    }

    #[test]
    fn few_requests_may_be_retried_all() {
        let mut now = Instant::from_nanos(1);
        let mut budget = RetryBudget::new(now);
        for _ in 0..100 {
            now = Instant::from_nanos(now.as_nanos() + 2_000_000_000);
            budget.request(0.0);
            assert!(budget.try_retry(now));
        }
    }

    #[test]
    fn a_dead_service_is_not_retried_to_death() {
        let now = Instant::from_nanos(1);
        let mut budget = RetryBudget::new(now);
        let retries = (0..1000)
            .filter(|_| {
                budget.request(0.2);
                budget.try_retry(now)
            })
            .count();
        assert_eq!(retries, 209);
    }
}
