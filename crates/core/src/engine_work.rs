//! Work of balancers at engines for language models, and the work that other balancers of a fleet have there.
//!
//! Other balancers tell their work ten times a second. The sums expire together, so that a balancer whose fleet is silent
//! counts its own work only.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use evenkeel_inference::queue::QueueMean;

use crate::time::Instant;

/// Time for which sums of the work of other balancers count, unless they are renewed.
pub const WORK_LIFETIME: Duration = Duration::from_secs(2);

/// Work of one or several balancers at an engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineWork {
    /// Tokens of prompts that the engine has not read yet.
    pub queued_tokens: u32,
    /// Requests without a first token.
    pub waiting: u32,
    /// Requests whose answers are written.
    pub streams: u32,
}

impl EngineWork {
    /// True if there is no work.
    pub fn is_idle(&self) -> bool {
        *self == EngineWork::default()
    }

    /// Adds the work of another balancer.
    #[must_use]
    pub fn add_work(self, other: EngineWork) -> EngineWork {
        EngineWork {
            queued_tokens: self.queued_tokens.saturating_add(other.queued_tokens),
            waiting: self.waiting.saturating_add(other.waiting),
            streams: self.streams.saturating_add(other.streams),
        }
    }

    /// Mean work over a time. Too large numbers become the largest one.
    pub(crate) fn of_mean(mean: &QueueMean) -> EngineWork {
        EngineWork {
            queued_tokens: mean.queued_tokens.ceil() as u32,
            waiting: mean.waiting.round() as u32,
            streams: mean.streams.round() as u32,
        }
    }

    /// Packs the work into a word: 32 bits of tokens, 16 of each number of requests.
    fn pack(self) -> u64 {
        let short = |count: u32| u64::from(count.min(u32::from(u16::MAX)));
        u64::from(self.queued_tokens) << 32 | short(self.waiting) << 16 | short(self.streams)
    }

    fn unpack(word: u64) -> Self {
        EngineWork {
            queued_tokens: (word >> 32) as u32,
            waiting: u32::from((word >> 16) as u16),
            streams: u32::from(word as u16),
        }
    }
}

/// Work that other balancers have at the engines of a group, by the engines' numbers. Read by workers without a lock.
#[derive(Debug)]
pub(crate) struct WorkElsewhere {
    /// End of the time for which the words count, in nanoseconds; 0 if no other balancer has work.
    until: AtomicU64,
    words: Box<[AtomicU64]>,
}

impl WorkElsewhere {
    pub(crate) fn new(engines: usize) -> Self {
        WorkElsewhere {
            until: AtomicU64::new(0),
            words: (0..engines).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// Sets the work at all engines, by their numbers, until a time. A number that is missing has no work.
    pub(crate) fn set_all(&self, work: &[EngineWork], until: Instant) {
        let is_idle = work.iter().all(EngineWork::is_idle);
        if is_idle {
            self.until.store(0, Ordering::Relaxed);
            return;
        }
        for (number, word) in self.words.iter().enumerate() {
            let work = work.get(number).copied().unwrap_or_default();
            word.store(work.pack(), Ordering::Relaxed);
        }
        self.until.store(until.as_nanos(), Ordering::Relaxed);
    }

    /// Forgets the work at an engine: the number has another member now.
    pub(crate) fn forget_engine(&self, number: usize) {
        if let Some(word) = self.words.get(number) {
            word.store(0, Ordering::Relaxed);
        }
    }

    /// Work that counts now.
    #[inline]
    pub(crate) fn read_at(&self, now: Instant) -> WorkMoment<'_> {
        let is_fresh = now.as_nanos() < self.until.load(Ordering::Relaxed);
        WorkMoment(if is_fresh { &self.words } else { &[] })
    }
}

/// Work of other balancers at a moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WorkMoment<'a>(&'a [AtomicU64]);

impl WorkMoment<'_> {
    /// True if no other balancer has work.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Work at the engine with this number.
    #[inline]
    pub(crate) fn get(&self, number: usize) -> EngineWork {
        let word = self.0.get(number);
        word.map_or_else(EngineWork::default, |word| {
            EngineWork::unpack(word.load(Ordering::Relaxed))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn work(queued_tokens: u32, waiting: u32, streams: u32) -> EngineWork {
        EngineWork {
            queued_tokens,
            waiting,
            streams,
        }
    }

    #[test]
    fn work_counts_until_it_expires() {
        let at = |seconds: u64| Instant::from_nanos(seconds * 1_000_000_000);
        let elsewhere = WorkElsewhere::new(3);
        let idle = EngineWork::default();
        assert_eq!(elsewhere.read_at(at(0)).get(0), idle);
        let busy = work(u32::MAX, 70_000, 3);
        elsewhere.set_all(&[idle, busy], at(5));
        let read = |number, now| elsewhere.read_at(at(now)).get(number);
        // Counts of requests end at 16 bits.
        assert_eq!(read(1, 4), work(u32::MAX, 65_535, 3));
        assert_eq!([read(0, 4), read(2, 4), read(9, 4)], [idle; 3]);
        assert_eq!(read(1, 5), idle, "expired");
        elsewhere.set_all(&[work(1, 2, 3), busy], at(9));
        elsewhere.forget_engine(1);
        assert_eq!([read(0, 6), read(1, 6)], [work(1, 2, 3), idle]);
        elsewhere.set_all(&[idle; 3], at(9));
        assert_eq!(read(0, 6), idle);
    }

    #[test]
    fn means_are_rounded() {
        let mean = |queued_tokens, waiting, streams| {
            EngineWork::of_mean(&QueueMean {
                queued_tokens,
                waiting,
                streams,
            })
        };
        assert_eq!(mean(899.2, 2.6, 5.4), work(900, 3, 5));
        assert_eq!(mean(0.0, 0.4, 0.5), work(0, 0, 1));
        assert_eq!(mean(f32::MAX, 0.0, 0.0), work(u32::MAX, 0, 0));
    }

    #[test]
    fn sums_do_not_overflow() {
        let sum = work(u32::MAX, 1, u32::MAX).add_work(work(1, 2, 3));
        assert_eq!(sum, work(u32::MAX, 3, u32::MAX));
    }
}
