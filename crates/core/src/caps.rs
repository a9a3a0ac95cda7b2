//! Cap of a member: the number of requests that the member works on at once. With more requests in flight, the member
//! answers no more of them in a second, so that further ones only wait there.
//!
//! For each number of other requests that a request has found at the member, its latency is summed up. By Little's law,
//! *n* requests that take *R* each are *n* / *R* answers in a second. The cap is the lowest number at which one request
//! more brings no more answers: less than three tenths of what it would bring if it were worked on beside the others. A
//! network between balancer and member makes the cap higher, as it should: while one request is under way, the member
//! works on another. Counting the answers during the time for which there were so many requests would give the same
//! result only if requests come independently: bursts that are answered at once would look like few workers.
//!
//! A member that works on all its requests at once (processor sharing) does not answer more of them in a second either.
//! But cheap requests overtake costly ones there, and waiting in the balancer would prevent that. Therefore the share
//! of requests that are answered before older ones is measured. It is nearly 0 where a worker takes one request after
//! the other; where it is high, there is no cap.
//!
//! Only low caps are looked for. With many requests at once a slot becomes free all the time, and waiting for a certain
//! member gains nothing (`docs/design/adaptive.md` has figures).

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::float::{higher, pack, unpack};
use crate::learnt::{LearntSlot, Visit};

/// The highest cap that can be learnt.
pub(crate) const HIGHEST: u32 = 3;

/// Numbers of requests that are told apart: caps, and one more.
const LEVELS: usize = HIGHEST as usize + 1;

/// Answers that count: older ones are worth less and less.
const MEMORY: f32 = 1024.0;

/// Answers below which nothing is said.
const ENOUGH: f32 = 32.0;

/// Part of what a further worker would bring that is too little to be one.
const PART: f32 = 0.3;

/// Share of answers to requests that have overtaken older ones above which a member has no cap of 1, and none above 1:
/// requests that are worked on beside each other overtake each other, too.
const OVERTAKING: [f32; 2] = [0.15, 0.3];

/// Answers over which that share reaches.
const ORDER_MEMORY: f32 = 64.0;

/// Standard errors by which throughput must be below that.
const CERTAIN: f32 = 1.0;

/// Measurements of a member, and its cap.
#[derive(Debug, Default)]
pub(crate) struct Caps {
    /// For 0 and more others that were found: latencies in seconds (f32 bits, high half), and answers.
    levels: [AtomicU64; LEVELS],
    /// The cap; 0 is not known, or higher than [`HIGHEST`].
    cap: AtomicU32,
    /// Share of answers to requests that have overtaken older ones (f32 bits), where one other was without an
    /// answer, and where [`HIGHEST`] others or more were.
    overtaking: [AtomicU32; OVERTAKING.len()],
    /// Error of caps as a factor, less 1 (f32 bits): not 0 only in tests of the cost of a wrong cap.
    error: AtomicU32,
}

impl Caps {
    /// Visits the [learnt](crate::learnt) words.
    pub(crate) fn visit_words<'a>(&'a self, visit: Visit<'_, 'a>) {
        for level in &self.levels {
            visit("caps.levels", LearntSlot::Long(level));
        }
        visit("caps.cap", LearntSlot::Short(&self.cap));
        for share in &self.overtaking {
            visit("caps.overtaking", LearntSlot::Short(share));
        }
    }

    /// Learns from the answer of a request that had found `found` others at the member. If workers do so at the same
    /// time, one answer may be lost: no matter.
    #[inline]
    pub(crate) fn record_answer(&self, found: f32, latency: f32) {
        let Some(level) = self.levels.get((found + 0.5) as usize) else {
            return;
        };
        let (mut latencies, mut answers) = unpack(level.load(Ordering::Relaxed));
        if answers >= MEMORY {
            (latencies, answers) = (latencies / 2.0, answers / 2.0);
        }
        level.store(pack(latencies + latency, answers + 1.0), Ordering::Relaxed);
    }

    /// Takes the order of an answer that came while `others` requests were without one: true if the request
    /// has overtaken them, as they are older on average.
    #[inline]
    pub(crate) fn note_order(&self, others: u32, has_overtaken: bool) {
        let [beside_one, beside_many] = &self.overtaking;
        let share = match others {
            1 => beside_one,
            HIGHEST.. => beside_many,
            _ => return,
        };
        let held = f32::from_bits(share.load(Ordering::Relaxed));
        let seen = f32::from(u8::from(has_overtaken));
        let next = held + (seen - held) / ORDER_MEMORY;
        share.store(next.to_bits(), Ordering::Relaxed);
    }

    /// True if requests overtake each other more than they would with `cap` workers that take one after
    /// the other.
    fn is_shared(&self, cap: u32) -> bool {
        // With more workers than one there must be requests that wait for them.
        let several = usize::from(cap > 1);
        f32::from_bits(self.overtaking[several].load(Ordering::Relaxed)) > OVERTAKING[several]
    }

    /// The cap; `None` is not known, or too high to matter.
    #[inline]
    pub(crate) fn get(&self) -> Option<u32> {
        match self.cap.load(Ordering::Relaxed) {
            0 => None,
            cap => Some(cap),
        }
    }

    /// Has caps from now on be wrong by this factor.
    pub(crate) fn distort(&self, factor: f32) {
        self.error
            .store((factor - 1.0).to_bits(), Ordering::Relaxed);
    }

    /// Learns it anew; answers what it is. `variation` is the squared coefficient of variation of the
    /// latencies: where a few requests are most of the work, means say little.
    pub(crate) fn learn_cap(&self, variation: f32) -> Option<u32> {
        let levels = self.levels.each_ref().map(|level| {
            let (latencies, answers) = unpack(level.load(Ordering::Relaxed));
            (answers / latencies.max(1e-9), answers)
        });
        let mut cap = 0;
        for (count, pair) in (1..).zip(levels.windows(2)) {
            let &[(rate, answers), (next, further)] = pair else {
                break;
            };
            if answers < ENOUGH || further < ENOUGH {
                break;
            }
            // A further worker would bring this much more: all latencies would be equal.
            let worker = libm::logf((count + 1) as f32 / count as f32);
            let errors = (1.0 / answers + 1.0 / further) * higher(variation, 1.0);
            let doubt = CERTAIN * errors.sqrt();
            if libm::logf(next / rate) + worker + doubt < worker * PART {
                cap = count;
                break;
            }
        }
        if self.is_shared(cap) {
            cap = 0;
        }
        if cap > 0 {
            let error = f32::from_bits(self.error.load(Ordering::Relaxed));
            cap = ((cap as f32 * (1.0 + error)) as u32).max(1);
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

    /// A request that is at a member, or on its way.
    struct Job {
        since: f64,
        found: usize,
        has_arrived: bool,
    }

    /// Order in which a member works on its requests.
    #[derive(Clone, Copy, PartialEq)]
    enum Order {
        First,
        Shared,
    }

    fn learnt(workers: usize, network: f64, seed: u64) -> Option<u32> {
        learnt_of(Order::First, workers, network, seed)
    }

    /// Returns the cap that is learnt of a member with this many workers and one to six requests at once, behind a
    /// network on which a request and its answer take `network` service times together.
    fn learnt_of(order: Order, workers: usize, network: f64, seed: u64) -> Option<u32> {
        let mut rng = fastrand::Rng::with_seed(seed);
        let caps = Caps::default();
        let (mut now, mut wanted) = (0.0, 1);
        let mut jobs: Vec<Job> = Vec::new();
        for _ in 0..60_000 {
            if jobs.len() < wanted {
                jobs.push(Job {
                    since: now,
                    found: jobs.len(),
                    has_arrived: network == 0.0,
                });
                continue;
            }
            // Whoever is served or on the way is done next; all times are exponential.
            let indices = |arrived: bool| {
                let all = jobs.iter().enumerate();
                let of = all.filter(|(_, job)| job.has_arrived == arrived);
                of.map(|(index, _)| index).collect::<Vec<_>>()
            };
            let (mut served, arriving) = (indices(true), indices(false));
            // Where all requests share the workers, each is as likely as the others to be done next.
            let busy = served.len().min(workers) as f64;
            if order == Order::First {
                served.truncate(workers);
            }
            let arrivals = arriving.len() as f64 / network.max(1e-9);
            let rate = busy + arrivals;
            now -= libm::log(1.0 - rng.f64()) / rate;
            if rng.f64() * rate < arrivals {
                let mut job = jobs.remove(arriving[rng.usize(..arriving.len())]);
                job.has_arrived = true;
                jobs.push(job);
                continue;
            }
            let job = jobs.remove(served[rng.usize(..served.len())]);
            caps.record_answer(job.found as f32, (now - job.since) as f32);
            let others = jobs.len();
            let since = jobs.iter().map(|job| job.since).sum::<f64>() / others as f64;
            caps.note_order(others as u32, since < job.since);
            wanted = rng.usize(1..=6);
        }
        caps.learn_cap(1.0)
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
    fn a_member_on_which_requests_overtake_each_other_has_no_cap() {
        for seed in 0..20 {
            for workers in 1..=3 {
                let cap = learnt_of(Order::Shared, workers, 0.0, seed);
                assert_eq!(cap, None, "{workers} workers");
            }
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
    fn where_latencies_vary_much_a_cap_takes_more_answers() {
        let caps = Caps::default();
        for _ in 0..200 {
            caps.record_answer(0.0, 0.010);
            caps.record_answer(1.0, 0.021);
        }
        assert_eq!(caps.learn_cap(1.0), Some(1));
        assert_eq!(caps.learn_cap(30.0), None);
    }

    #[test]
    fn nothing_is_said_of_what_was_hardly_seen() {
        let caps = Caps::default();
        assert_eq!(caps.learn_cap(1.0), None);
        (0..1000).for_each(|_| caps.record_answer(0.0, 0.002));
        assert_eq!(caps.learn_cap(1.0), None, "never more than one at once");
    }

    /// Many workers, and requests that come four at a time.
    #[test]
    fn bursts_do_not_look_like_few_workers() {
        let caps = Caps::default();
        for _ in 0..1000 {
            (0..4).for_each(|found| caps.record_answer(found as f32, 0.01));
        }
        assert_eq!(caps.learn_cap(1.0), None);
    }
}
