//! The clock of a process.

use evenkeel_core::time::Instant;

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

    /// The current instant. Never [`Instant::ZERO`], which slots use for "never".
    pub fn now(&self) -> Instant {
        let nanos = self.origin.elapsed().as_nanos();
        Instant::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX).saturating_add(1))
    }
}
