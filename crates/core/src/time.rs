//! Time as an argument.
//!
//! Nothing in `core` looks at a clock. Callers pass an [`Instant`], the product from
//! the machine's monotonic clock and the simulation from its event queue, so that the
//! same code runs in both and a test can put any two events at any distance.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A point on a monotonic time line: nanoseconds since an origin the caller chose.
///
/// 64 bits of nanoseconds last for 584 years, so nothing here wraps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(u64);

impl Instant {
    /// The origin of the time line.
    pub const ZERO: Instant = Instant(0);

    /// The instant `nanos` nanoseconds after the origin.
    pub const fn from_nanos(nanos: u64) -> Self {
        Instant(nanos)
    }

    /// Nanoseconds since the origin.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Seconds since the origin.
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e9
    }

    /// Time since `earlier`; zero if it is in the future.
    ///
    /// Workers read their clocks at slightly different moments, so "a little in the
    /// future" is normal and must not panic.
    pub const fn since(self, earlier: Instant) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// Instant `duration` after this one, at most the largest instant.
    pub fn after(self, duration: Duration) -> Instant {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        Instant(self.0.saturating_add(nanos))
    }
}

/// Milliseconds on a wrapping 32-bit time line, so that a time and a value fit into one
/// atomic word. Never 0 (0 marks an empty word), which makes it 2 ms coarse.
#[inline]
pub const fn millis(at: Instant) -> u32 {
    ((at.0 / 1_000_000) as u32) | 1
}

/// A time up to a minute in the future was read from another worker's clock, and counts as now.
const PAST: u32 = u32::MAX - 60_000;

/// Milliseconds from `earlier`, made by [`millis`], to `now`.
///
/// 32 bits of milliseconds wrap after 49 days, and the distance is taken modulo that. So what
/// may become that old must be kept old.
#[inline]
pub const fn millis_since(earlier: u32, now: Instant) -> u32 {
    let age = millis(now).wrapping_sub(earlier);
    if age > PAST { 0 } else { age }
}

/// Nothing counts as older than this, in milliseconds (12 days).
const OLDEST: u32 = u32::MAX / 4;

/// Returns the time to store in place of a time made by [`millis`] that is older than [`OLDEST`]: one of that age.
/// Times wrap, so the owner of a time calls this at least once a day. An even time stays even.
pub(crate) const fn keep_old(at: u32, now: Instant) -> Option<u32> {
    match millis_since(at, now) > OLDEST {
        true => Some((millis(now).wrapping_sub(OLDEST) | 1) - 1 + (at & 1)),
        false => None,
    }
}

/// Keeps an old time old, like [`keep_old`], in a word whose low half is such a time, and which is 0 if there is none.
pub(crate) fn keep_word_old(word: &AtomicU64, now: Instant) {
    let held = word.load(Ordering::Relaxed);
    if held != 0
        && let Some(at) = keep_old(held as u32, now)
    {
        let older = (held >> 32 << 32) | u64::from(at);
        // If it fails there is a new one.
        let _ = word.compare_exchange(held, older, Ordering::Relaxed, Ordering::Relaxed);
    }
}

/// Limit of freshness at one moment, worked out once for all members of a decision.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Horizon {
    now: u32,
    /// The last time that is past.
    past: u32,
    /// Length of the range before `past` in which times are past, and not in the future.
    reach: u32,
}

impl Horizon {
    #[inline]
    pub(crate) fn new(now: Instant, max_age: Duration) -> Self {
        let secs = max_age.as_secs().saturating_mul(1000);
        let max_age = secs.saturating_add(u64::from(max_age.subsec_millis()));
        let max_age = u32::try_from(max_age).map_or(PAST - 1, |age| age.min(PAST - 1));
        let horizon = Horizon {
            now: 0,
            past: 0,
            reach: PAST - (max_age + 1),
        };
        horizon.moved_to(now)
    }

    /// Limit of freshness at another moment.
    #[inline]
    pub(crate) const fn moved_to(self, now: Instant) -> Self {
        let now = millis(now);
        Horizon {
            now,
            past: now.wrapping_sub(PAST - self.reach),
            ..self
        }
    }

    /// Milliseconds since a time made by [`millis`].
    #[inline]
    pub(crate) const fn millis_since(&self, earlier: u32) -> u32 {
        let age = self.now.wrapping_sub(earlier);
        if age > PAST { 0 } else { age }
    }

    /// True if a time made by [`millis`] is too long ago.
    #[inline]
    pub(crate) const fn is_past(&self, earlier: u32) -> bool {
        self.past.wrapping_sub(earlier) <= self.reach
    }
}
