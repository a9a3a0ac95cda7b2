//! Bytes in a time: who is ahead of the rate waits.
//!
//! One word says when all that has passed would have passed at the rate. As long as that is not
//! too far ahead, more may pass; how much does was found out afterwards. So the mean is exact, and
//! what passes in a moment is at most a little more than the rate allows.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use evenkeel_core::time::Instant;

/// Amount that has passed, shared by threads.
#[derive(Debug, Default)]
pub struct Pace(AtomicU64);

impl Pace {
    /// Returns true if more may pass now, where the amount may be ahead of the rate by `ahead`.
    #[inline]
    pub fn is_open(&self, now: Instant, ahead: Duration) -> bool {
        self.0.load(Ordering::Relaxed) <= now.after(ahead).as_nanos()
    }

    /// Notes that so many bytes have passed, where `rate` a second may.
    #[inline]
    pub fn count_bytes(&self, bytes: u64, rate: u64, now: Instant) {
        let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(rate.max(1));
        let nanos = u64::try_from(nanos).unwrap_or(u64::MAX);
        let next = |due: u64| Some(due.max(now.as_nanos()).saturating_add(nanos));
        let _ = self
            .0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TICK: Duration = Duration::from_millis(100);

    proptest! {
        /// In any window: no more than the rate, what may be ahead, and one portion.
        #[test]
        fn no_window_has_more_than_the_rate(
            rate in 1_000_u64..1_000_000_000,
            portion in 1_u64..200_000,
            waits in proptest::collection::vec(0_u64..5, 1..200),
        ) {
            let pace = Pace::default();
            let (mut now, mut passed) = (Instant::from_nanos(1), Vec::new());
            for wait in waits {
                now = now.after(TICK * wait as u32);
                // As many as may, as flows do that have been woken; some at least are tried.
                for _ in 0..50 {
                    if !pace.is_open(now, TICK) {
                        break;
                    }
                    pace.count_bytes(portion, rate, now);
                    passed.push(now);
                }
            }
            for (first, begin) in passed.iter().enumerate() {
                for (last, end) in passed.iter().enumerate().skip(first) {
                    let seconds = (end.since(*begin) + TICK).as_secs_f64();
                    let bytes = (last - first) as f64 * portion as f64;
                    let most = seconds * rate as f64 + portion as f64;
                    prop_assert!(bytes <= most * 1.001 + 1.0, "{bytes} > {most}");
                }
            }
        }
    }

    #[test]
    fn the_mean_is_the_rate() {
        let (pace, rate) = (Pace::default(), 1_000_000);
        let (mut now, mut all) = (Instant::from_nanos(1), 0);
        for _ in 0..1000 {
            now = now.after(TICK);
            while pace.is_open(now, TICK) {
                pace.count_bytes(7_777, rate, now);
                all += 7_777;
            }
        }
        let seconds = all as f64 / rate as f64;
        assert!((99.8..100.5).contains(&seconds), "{seconds}");
    }
}
