//! Copies of popular beginnings of prompts: whether a further member should read what other members hold.
//!
//! The cost of a single request says when the request is better off at a member that has to read the whole prompt. For a
//! beginning that many requests share, that is too late: the next requests have the same choice again, so they go to the
//! few members that hold the beginning, although others are less busy. Reading the beginning once more would spare all of
//! them that.
//!
//! So each request that goes to a holder adds to the beginning's *credit* what it would have saved, on average, at the
//! members that do not hold the beginning, if they did. A further copy is worth its price as soon as the credit of the last
//! half minute is as high: then the requests have paid for it once, which is at most twice what is best (the problem of
//! ski rental; Karlin et al., "Competitive Snoopy Caching", 1988). A conversation grows, so its longest known beginning is
//! another one with each turn: conversations stay where they are.

use std::sync::atomic::{AtomicU64, Ordering};

/// Seconds after which a third of a credit is left.
const FADE_SECONDS: f32 = 30.0;

/// Number of beginnings that have a credit at the same time.
const PLACES: usize = 4096;

/// Credit of a beginning.
#[derive(Debug, Default)]
struct Place {
    /// Hash of the beginning's last block.
    link: AtomicU64,
    /// Time in milliseconds, and the credit then in seconds (f32 bits).
    credit: AtomicU64,
}

/// Credits of beginnings, in a table of a fixed size without locks. If two workers write one place at the same time, a
/// credit is lost, or counts for another beginning.
#[derive(Debug)]
pub(crate) struct CopyCredits {
    places: Box<[Place]>,
}

impl Default for CopyCredits {
    fn default() -> Self {
        CopyCredits {
            places: (0..PLACES).map(|_| Place::default()).collect(),
        }
    }
}

impl CopyCredits {
    /// Seconds that requests would have saved lately if further members held the beginning with this last block.
    #[inline]
    pub(crate) fn read_credit(&self, link: u64, now_nanos: u64) -> f32 {
        match self.find_place(link) {
            Some(place) if place.link.load(Ordering::Relaxed) == link => place.read(now_nanos),
            _ => 0.0,
        }
    }

    /// Adds what a request would have saved. A beginning with a higher credit keeps its place.
    pub(crate) fn add_credit(&self, link: u64, seconds: f32, now_nanos: u64) {
        let Some(place) = self.find_place(link) else {
            return;
        };
        let before = place.read(now_nanos);
        if place.link.load(Ordering::Relaxed) == link {
            place.write(before + seconds, now_nanos);
        } else if seconds > before {
            place.link.store(link, Ordering::Relaxed);
            place.write(seconds, now_nanos);
        }
    }

    /// Spends the credit of a beginning: a further member reads it.
    pub(crate) fn spend_credit(&self, link: u64, now_nanos: u64) {
        if let Some(place) = self.find_place(link)
            && place.link.load(Ordering::Relaxed) == link
        {
            place.write(0.0, now_nanos);
        }
    }

    fn find_place(&self, link: u64) -> Option<&Place> {
        self.places.get((link >> 32) as usize % PLACES)
    }
}

impl Place {
    fn read(&self, now_nanos: u64) -> f32 {
        let word = self.credit.load(Ordering::Relaxed);
        let credit = f32::from_bits(word as u32);
        let age = to_millis(now_nanos).wrapping_sub((word >> 32) as u32);
        credit * libm::expf(-(age as f32) / (1e3 * FADE_SECONDS))
    }

    fn write(&self, credit: f32, now_nanos: u64) {
        let credit = match (0.0..f32::MAX).contains(&credit) {
            true => credit,
            false => 0.0,
        };
        let word = (u64::from(to_millis(now_nanos)) << 32) | u64::from(credit.to_bits());
        self.credit.store(word, Ordering::Relaxed);
    }
}

/// Milliseconds, which begin anew after 49 days: a credit that is older is a small one of today.
fn to_millis(nanos: u64) -> u32 {
    (nanos / 1_000_000) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn a_credit_grows_fades_and_is_spent() {
        let credits = CopyCredits::default();
        let link = 7 << 32;
        assert_eq!(credits.read_credit(link, 0), 0.0);
        credits.add_credit(link, 1.0, SECOND);
        credits.add_credit(link, 0.5, SECOND);
        assert_eq!(credits.read_credit(link, SECOND), 1.5);
        let later = credits.read_credit(link, 31 * SECOND);
        assert!((later - 1.5 * 0.368).abs() < 0.01, "{later}");
        credits.spend_credit(link, SECOND);
        assert_eq!(credits.read_credit(link, SECOND), 0.0);
    }

    #[test]
    fn the_beginning_with_the_higher_credit_keeps_its_place() {
        let credits = CopyCredits::default();
        let (one, two) = (7 << 32, (7 + PLACES as u64) << 32);
        credits.add_credit(one, 1.0, SECOND);
        credits.add_credit(two, 0.5, SECOND);
        credits.spend_credit(two, SECOND);
        assert_eq!(credits.read_credit(one, SECOND), 1.0);
        assert_eq!(credits.read_credit(two, SECOND), 0.0);
        credits.add_credit(two, 0.5, 61 * SECOND);
        assert_eq!(credits.read_credit(two, 61 * SECOND), 0.5);
        assert_eq!(credits.read_credit(one, 61 * SECOND), 0.0);
        credits.add_credit(two, f32::NAN, 61 * SECOND);
        credits.add_credit(two, f32::INFINITY, 61 * SECOND);
        assert_eq!(credits.read_credit(two, 61 * SECOND), 0.0);
    }
}
