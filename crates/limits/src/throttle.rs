//! Warnings that come at most so often, however often their cause does.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Time between two lines about the same cause.
const INTERVAL: Duration = Duration::from_secs(10);

/// Says when it is time for another line about one cause, and how many were left out.
/// Takes no lock; may be a `static`, one for each cause.
#[derive(Debug)]
pub struct Throttle {
    /// Time when the next line may come, in milliseconds since the first use of any throttle.
    next: AtomicU64,
    left_out: AtomicU64,
}

impl Throttle {
    /// Returns a throttle for a cause of which nothing has been said yet.
    pub const fn new() -> Self {
        Throttle {
            next: AtomicU64::new(0),
            left_out: AtomicU64::new(0),
        }
    }

    /// The cause has come up again. `Some` if a line is due: the number of those that were
    /// left out since the last one.
    pub fn allow_line(&self) -> Option<u64> {
        static START: OnceLock<Instant> = OnceLock::new();
        self.turn_at(START.get_or_init(Instant::now).elapsed())
    }

    fn turn_at(&self, now: Duration) -> Option<u64> {
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let now = millis(now);
        let next = self.next.load(Ordering::Relaxed);
        let later = now.saturating_add(millis(INTERVAL));
        let is_due = now >= next
            && self
                .next
                .compare_exchange(next, later, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok();
        if is_due {
            return Some(self.left_out.swap(0, Ordering::Relaxed));
        }
        self.left_out.fetch_add(1, Ordering::Relaxed);
        None
    }
}

impl Default for Throttle {
    fn default() -> Self {
        Self::new()
    }
}

/// `tracing::warn!`, at most once in ten seconds at this place in the code, with the
/// number of lines that were left out meanwhile (`left_out`).
#[macro_export]
macro_rules! warn_throttled {
    ($($arguments:tt)+) => {{
        static THROTTLE: $crate::Throttle = $crate::Throttle::new();
        if let Some(left_out) = THROTTLE.allow_line() {
            $crate::tracing::warn!(left_out, $($arguments)+);
        }
    }};
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s5_a_line_per_interval_and_a_count_of_the_others() {
        let throttle = Throttle::new();
        let at = |ms| throttle.turn_at(Duration::from_millis(ms));
        assert_eq!(at(0), Some(0));
        for ms in 0..9_999 {
            assert_eq!(at(ms), None);
        }
        assert_eq!(at(10_000), Some(9_999));
        assert_eq!(at(10_001), None);
        assert_eq!(at(1_000_000), Some(1));
    }

    #[test]
    fn s5_of_many_threads_one_gets_the_line() {
        let throttle = Throttle::new();
        let lines = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..1000 {
                        if throttle.turn_at(Duration::from_secs(1)).is_some() {
                            lines.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                });
            }
        });
        assert_eq!(lines.into_inner(), 1);
        assert_eq!(throttle.left_out.load(Ordering::Relaxed), 7_999);
    }
}
