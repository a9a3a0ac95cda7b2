//! The clock of a process.

use std::time::Duration;

use evenkeel_core::time::Instant;
use rustix::time::{ClockId, clock_gettime};

/// The machine's monotonic clock, as [`Instant`]s: what decides takes those as arguments.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    origin: std::time::Instant,
}

impl Clock {
    /// A clock whose origin is now. All threads of a process must share one clock
    /// (it is `Copy`), or their instants do not compare.
    #[allow(clippy::new_without_default)]
    pub fn start() -> Self {
        Clock {
            origin: std::time::Instant::now(),
        }
    }

    /// The clock of another process of this machine, as [`Clock::origin`] says there: instants of
    /// the two compare, but for the microseconds that this takes.
    pub fn with_origin(origin: u64) -> Self {
        let age = monotonic_nanos().saturating_sub(origin);
        let now = std::time::Instant::now();
        Clock {
            origin: now.checked_sub(Duration::from_nanos(age)).unwrap_or(now),
        }
    }

    /// Returns the origin of the clock, in nanoseconds of the machine's clock.
    pub fn origin(&self) -> u64 {
        let age = u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(u64::MAX);
        monotonic_nanos().saturating_sub(age)
    }

    /// The current instant. Never [`Instant::ZERO`], which slots use for "never".
    pub fn now(&self) -> Instant {
        let nanos = self.origin.elapsed().as_nanos();
        Instant::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX).saturating_add(1))
    }
}

/// The machine's clock, in nanoseconds.
pub fn monotonic_nanos() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    seconds
        .saturating_mul(1_000_000_000)
        .saturating_add(u64::try_from(now.tv_nsec).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_origin_is_the_same_time() {
        let clock = Clock::start();
        let other = Clock::with_origin(clock.origin());
        let (before, there, after) = (clock.now(), other.now(), clock.now());
        // Reading two clocks takes a moment, in which a test may have to wait.
        let second = Duration::from_secs(1);
        assert!(there.after(second) > before && there < after.after(second));
    }
}
