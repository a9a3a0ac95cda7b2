//! Number of requests now, and on average over the time since a reader has looked last.
//!
//! The mean of a number that changes by one is a sum over the changes: each request counts from its begin to its end. So a
//! word keeps the number, and the sum of the begins less that of the ends. Both change together, and no reader sees
//! one without the other.

use std::sync::atomic::{AtomicU64, Ordering};

/// Bits of the number of requests. The sum has the others, and wraps: only differences count.
const COUNT_BITS: u32 = 16;

/// Most requests that are counted. Further ones are none.
const MOST: u64 = (1 << COUNT_BITS) - 1;

/// Bits of the sum.
const SUM_BITS: u32 = u64::BITS - COUNT_BITS;
const SUM_MASK: u64 = (1 << SUM_BITS) - 1;

/// Nanoseconds of a unit of time. The sum wraps after four years of a single request.
const UNIT_NANOS: u64 = 1 << 9;

/// Longest time of which the mean is taken: what was before says nothing of now.
const LONGEST_UNITS: u64 = 10_000_000_000 / UNIT_NANOS;

/// Number of requests. Workers change it without a lock.
#[derive(Debug, Default)]
pub(crate) struct RequestCount {
    /// Number of requests, and the sum of times.
    word: AtomicU64,
    /// Time at which the mean was taken last, and the times of all requests until then. Both are in units.
    taken_at: AtomicU64,
    taken_times: AtomicU64,
}

impl RequestCount {
    /// Counts a request that begins. Returns the number of requests before.
    pub(crate) fn begin(&self, now_nanos: u64) -> u32 {
        let time = now_nanos / UNIT_NANOS;
        self.change(|count, sum| {
            (count < MOST).then(|| pack_word(count + 1, sum.wrapping_add(time)))
        })
    }

    /// Counts the end of a request; does nothing if there is none.
    pub(crate) fn end(&self, now_nanos: u64) {
        let time = now_nanos / UNIT_NANOS;
        self.change(|count, sum| {
            let count = count.checked_sub(1)?;
            Some(pack_word(count, sum.wrapping_sub(time)))
        });
    }

    /// Number of requests now.
    #[inline]
    pub(crate) fn get(&self) -> u32 {
        unpack_word(self.word.load(Ordering::Relaxed)).0 as u32
    }

    /// Takes the mean number since the last call, or the number now if that was too long ago. For one caller.
    pub(crate) fn take_mean(&self, now_nanos: u64) -> f32 {
        let at = now_nanos / UNIT_NANOS;
        let (count, sum) = unpack_word(self.word.load(Ordering::Relaxed));
        let times = count.wrapping_mul(at).wrapping_sub(sum);
        let elapsed = at.saturating_sub(self.taken_at.swap(at, Ordering::Relaxed));
        let before = self.taken_times.swap(times, Ordering::Relaxed);
        let times = times.wrapping_sub(before) & SUM_MASK;
        // A request of which the end was noted with an earlier time than that of the last call has taken time back.
        let is_negative = times >> (SUM_BITS - 1) != 0;
        match elapsed {
            1..=LONGEST_UNITS if is_negative => 0.0,
            1..=LONGEST_UNITS => (times as f64 / elapsed as f64) as f32,
            _ => count as f32,
        }
    }

    /// Time at which the mean was taken last, in nanoseconds.
    pub(crate) fn taken_nanos(&self) -> u64 {
        self.taken_at.load(Ordering::Relaxed) * UNIT_NANOS
    }

    /// Changes the number and the sum. Returns the number before.
    fn change(&self, change: impl Fn(u64, u64) -> Option<u64>) -> u32 {
        let before = self
            .word
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |word| {
                let (count, sum) = unpack_word(word);
                change(count, sum)
            });
        unpack_word(before.unwrap_or_else(|word| word)).0 as u32
    }
}

fn pack_word(count: u64, sum: u64) -> u64 {
    count << SUM_BITS | (sum & SUM_MASK)
}

fn unpack_word(word: u64) -> (u64, u64) {
    (word >> SUM_BITS, word & SUM_MASK)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// About a second, of whole units also by parts.
    const SECOND: u64 = 1 << 30;

    #[test]
    fn requests_beyond_the_most_are_not_counted_and_ends_without_a_begin_are_none() {
        let count = RequestCount::default();
        count.end(SECOND);
        assert_eq!(count.get(), 0);
        for before in 0..MOST as u32 {
            assert_eq!(count.begin(SECOND), before);
        }
        assert_eq!(count.begin(2 * SECOND), MOST as u32);
        count.take_mean(2 * SECOND);
        let mean = count.take_mean(3 * SECOND);
        assert!((mean - MOST as f32).abs() < 1.0, "{mean}");
        for left in (0..MOST as u32).rev() {
            count.end(4 * SECOND);
            assert_eq!(count.get(), left);
        }
    }

    #[test]
    fn the_mean_of_no_time_and_of_long_ago_is_the_number_now_and_none_is_negative() {
        let count = RequestCount::default();
        count.begin(0);
        count.begin(SECOND / 2);
        assert_eq!(count.take_mean(SECOND), 1.5);
        assert_eq!(count.taken_nanos(), SECOND / UNIT_NANOS * UNIT_NANOS);
        assert_eq!(count.take_mean(SECOND), 2.0);
        count.end(SECOND);
        assert_eq!(count.take_mean(60 * SECOND), 1.0);
        // The time of the end was not known.
        count.end(SECOND / 2);
        assert_eq!(count.take_mean(60 * SECOND + SECOND / 10), 0.0);
    }
}
