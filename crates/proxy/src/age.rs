//! Age of a client's connection, in requests and in time: a connection that is too old ends in
//! order.

use std::time::Duration;

use evenkeel_core::time::Instant;
use evenkeel_manager::config::Limits;

use crate::worker::Worker;

/// The age of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Age {
    began: Instant,
    /// Requests that the connection has had.
    requests: u32,
    /// Part of its limits, which are the same for all, by which the connection ends earlier: in
    /// parts of 2,560.
    jitter: u8,
}

impl Age {
    /// Returns the age of a new connection.
    pub(crate) fn new(worker: &Worker) -> Self {
        Age {
            began: worker.watchers.coarse_now(),
            requests: 0,
            jitter: worker.rng.borrow_mut().u8(..),
        }
    }

    /// Counts another request of the connection.
    #[inline]
    pub(crate) fn add_request(&mut self) {
        self.requests = self.requests.saturating_add(1);
    }

    /// True if the connection has had requests.
    #[inline]
    pub(crate) fn has_had_requests(self) -> bool {
        self.requests > 0
    }

    /// True if the connection may have no further request after `more` others.
    #[inline]
    pub(crate) fn is_over(self, more: u32, limits: &Limits, now: Instant) -> bool {
        if limits.max_requests.is_none() && limits.max_lifetime.is_none() {
            return false;
        }
        let most = limits.max_requests.map(|most| {
            let less = u64::from(most) * u64::from(self.jitter) / 2560;
            u64::from(most) - less
        });
        let requests = u64::from(self.requests) + u64::from(more);
        most.is_some_and(|most| requests >= most)
            || self
                .time_left(limits, now)
                .is_some_and(|left| left.is_zero())
    }

    /// Returns the time for which the connection may go on, if that is limited.
    #[inline]
    pub(crate) fn time_left(self, limits: &Limits, now: Instant) -> Option<Duration> {
        let lifetime = limits.max_lifetime?;
        let lifetime = lifetime - lifetime * u32::from(self.jitter) / 2560;
        Some(lifetime.saturating_sub(now.since(self.began)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_ends_at_its_limits_or_a_tenth_before() {
        let age = |jitter, requests| Age {
            began: Instant::ZERO,
            requests,
            jitter,
        };
        let now = |seconds: u64| Instant::from_nanos(seconds * 1_000_000_000);
        let none = Limits::default();
        assert!(!age(255, u32::MAX).is_over(u32::MAX, &none, now(1 << 30)));
        let requests = Limits {
            max_requests: Some(1000),
            ..Limits::default()
        };
        for (jitter, most) in [(0, 1000), (128, 950), (255, 901)] {
            assert!(!age(jitter, most - 2).is_over(1, &requests, now(9)));
            assert!(age(jitter, most - 1).is_over(1, &requests, now(9)));
        }
        let one = Limits {
            max_requests: Some(1),
            ..Limits::default()
        };
        assert!(age(255, 0).is_over(1, &one, now(0)));
        assert!(!age(255, 0).is_over(0, &one, now(0)), "it may have one");
        let lifetime = Limits {
            max_lifetime: Some(Duration::from_secs(3600)),
            ..Limits::default()
        };
        for (jitter, seconds) in [(0, 3600), (255, 3241)] {
            assert!(!age(jitter, 9).is_over(1, &lifetime, now(seconds - 1)));
            assert!(age(jitter, 9).is_over(1, &lifetime, now(seconds + 1)));
        }
    }
}
