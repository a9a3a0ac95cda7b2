//! How many requests a member works on at once: its *cap*. With more in flight it answers no more of
//! them in a second, so that further ones only wait there.
//!
//! For each number of requests without an answer the time is summed up for which there were so many,
//! and the answers that came meanwhile. By Little's law the cap is the lowest number at which one
//! request more brings no more answers in a second: less than three tenths of what it would bring if it
//! were worked on beside the others. A network in between makes the cap higher, as it should: while one
//! request is under way the member works on another.
//!
//! Only low caps are looked for. With many requests at once a place becomes free all the time, and
//! there is nothing to be gained by waiting for a certain one (`late.rs` has figures).

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::estimate::{pack, unpack};
use crate::time::Instant;

/// The highest cap that is learnt.
pub(crate) const HIGHEST: u32 = 3;

/// Numbers of requests that are told apart: caps, and one more.
const LEVELS: usize = HIGHEST as usize + 1;

/// Answers that count: older ones are worth less and less.
const MEMORY: f32 = 1024.0;

/// Answers below which nothing is said.
const ENOUGH: f32 = 32.0;

/// Which part of what a further worker would bring is too little to be one.
const PART: f32 = 0.3;

/// Standard errors by which throughput must be below that.
const CERTAIN: f32 = 1.0;

/// What is known of a member.
#[derive(Debug, Default)]
pub(crate) struct Caps {
    /// When the number of unanswered requests changed last, in nanoseconds.
    since: AtomicU64,
    /// For 1 and more unanswered requests: seconds (f32 bits, high half), and answers.
    levels: [AtomicU64; LEVELS],
    /// The cap; 0 is not known, or higher than [`HIGHEST`].
    cap: AtomicU32,
}

impl Caps {
    /// There were so many unanswered requests until `now`; then one came, or went, answered or not.
    /// Of workers that do so at the same time one may be lost: no matter.
    #[inline]
    pub(crate) fn changed(&self, before: u32, is_answer: bool, now: Instant) {
        let now = now.as_nanos();
        let since = self.since.swap(now, Ordering::Relaxed);
        let Some(level) = self.levels.get((before as usize).wrapping_sub(1)) else {
            return;
        };
        let (mut time, mut answers) = unpack(level.load(Ordering::Relaxed));
        time += now.saturating_sub(since) as i64 as f32 * 1e-9;
        if is_answer {
            answers += 1.0;
            if answers > MEMORY {
                (time, answers) = (time / 2.0, answers / 2.0);
            }
        }
        level.store(pack(time, answers), Ordering::Relaxed);
    }

    /// The cap; `None` is not known, or too high to matter.
    #[inline]
    pub(crate) fn get(&self) -> Option<u32> {
        match self.cap.load(Ordering::Relaxed) {
            0 => None,
            cap => Some(cap),
        }
    }

    /// Learns it anew; answers what it is.
    pub(crate) fn learn(&self) -> Option<u32> {
        let levels = self.levels.each_ref().map(|level| {
            let (time, answers) = unpack(level.load(Ordering::Relaxed));
            (answers / time.max(1e-9), answers)
        });
        let mut cap = 0;
        for (count, pair) in (1..).zip(levels.windows(2)) {
            let &[(rate, answers), (next, further)] = pair else {
                break;
            };
            if answers < ENOUGH || further < ENOUGH {
                break;
            }
            // A further worker would bring this much more.
            let worker = ((count + 1) as f32 / count as f32).ln();
            let doubt = CERTAIN * (1.0 / answers + 1.0 / further).sqrt();
            if (next / rate).ln() + doubt < worker * PART {
                cap = count;
                break;
            }
        }
        if self.cap.load(Ordering::Relaxed) != cap {
            self.cap.store(cap, Ordering::Relaxed);
        }
        self.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is learnt of a member of so many workers, behind a network on which a request and its
    /// answer take `network` service times together, that has one to six requests at once.
    fn learnt(workers: usize, network: f64, seed: u64) -> Option<u32> {
        let mut rng = fastrand::Rng::with_seed(seed);
        let caps = Caps::default();
        let (mut now, mut at_worker, mut on_the_way) = (0.0, 0usize, 0usize);
        let mut wanted = 1;
        for _ in 0..60_000 {
            let there = at_worker + on_the_way;
            let at = Instant::from_nanos((now * 1e7) as u64);
            if there < wanted {
                caps.changed(there as u32, false, at);
                match network > 0.0 {
                    true => on_the_way += 1,
                    false => at_worker += 1,
                }
                continue;
            }
            // Whoever is served or on the way is done next; all times are exponential.
            let served = at_worker.min(workers) as f64;
            let arriving = on_the_way as f64 / network.max(1e-9);
            now -= rng.f64().ln() / (served + arriving);
            if rng.f64() * (served + arriving) < arriving {
                on_the_way -= 1;
                at_worker += 1;
                continue;
            }
            at_worker -= 1;
            let at = Instant::from_nanos((now * 1e7) as u64);
            caps.changed(there as u32, true, at);
            wanted = rng.usize(1..=6);
        }
        caps.learn()
    }

    #[test]
    fn the_cap_is_the_number_of_workers_if_these_are_few() {
        let of = |workers| (0..20).map(move |seed| learnt(workers, 0.0, seed));
        assert!(of(1).all(|cap| cap == Some(1)));
        // Rather too high than too low.
        assert!(of(2).all(|cap| cap != Some(1)));
        assert!(of(2).filter(|cap| *cap == Some(2)).count() > 12);
        for seed in 0..20 {
            assert_ne!(learnt(3, 0.0, seed), Some(1));
            assert_ne!(learnt(3, 0.0, seed), Some(2));
            assert_eq!(learnt(8, 0.0, seed), None);
        }
    }

    #[test]
    fn a_network_is_kept_busy_too() {
        for seed in 0..20 {
            let cap = learnt(1, 1.0, seed);
            assert!(cap.is_none_or(|cap| cap > 1), "{cap:?}");
        }
    }

    #[test]
    fn nothing_is_said_of_what_was_hardly_seen() {
        let caps = Caps::default();
        assert_eq!(caps.learn(), None);
        for answer in 0..1000 {
            caps.changed(0, false, Instant::from_nanos(answer * 2_000_000));
            caps.changed(1, true, Instant::from_nanos(answer * 2_000_000 + 1));
        }
        assert_eq!(caps.learn(), None, "never more than one at once");
    }
}
