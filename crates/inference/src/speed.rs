//! Speeds of members, learnt from the times of first tokens and from the pace of streams.
//!
//! ```text
//! time to the first token  = delay + a * (tokens queued before + tokens to read)
//! time of a token          = b + c * (other streams at the member)
//! ```
//!
//! Both are decaying regressions for each member. As long as a member has few samples, or differs little from the
//! [fleet](crate::fleet), its speeds are drawn to those of the fleet. The samples of a member that gets no requests count
//! less and less: it must get one again to show that it has recovered. Where all samples have nearly the same `x`, the
//! slope says nothing: then `a` is the ratio of the means, and `c / b` is that of the fleet.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::regression::{Moments, REGRESSION_WORDS, Regression, pack_pair, unpack_pair};

/// Number of samples from which on a member's samples say more than the fleet's speeds.
const PRIOR_SAMPLES: f32 = 3.0;

/// Weight with which the line of first tokens is held to the origin, as a share of the samples.
const ANCHOR: f32 = 0.1;

/// Differences from the fleet that are taken for noise, as a share: of `a`, which engines that read and write at the same
/// time make noisy, and of `b`. Long answers make much of small differences: members that are equal must look equal.
const ALIKE_READ: f32 = 0.2;
const ALIKE_WRITE: f32 = 0.1;

/// Multiple of the decay time after which a third of the samples is left of a member without requests.
const STALE_DECAYS: f32 = 6.0;

/// Sum of squares of other streams that the fleet's `c / b` counts for at a member, and the first one for the fleet.
const PRIOR_SQUARES: f32 = 16.0;

/// Most by which one sample may be above what was expected: a client or network that stood still must not condemn the
/// member.
const OUTLIER: f32 = 16.0;

/// Least expected time, in seconds, of which [`OUTLIER`] is a multiple: no speed may stay at 0.
const SHORTEST: f32 = 1e-4;

/// Longest plausible time of a sample, in seconds.
const MAX_SECONDS: f32 = 86_400.0;

/// Words of speeds.
pub(crate) const SHARED_WORDS: usize = 2;

/// Words that are learnt of a member's speeds.
pub(crate) const SPEED_WORDS: usize = 2 * REGRESSION_WORDS + SHARED_WORDS;

/// Speeds of a member.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Speeds {
    /// Seconds to a first token that needs no reading.
    pub delay: f32,
    /// Seconds to read a token of a prompt (`a`).
    pub read: f32,
    /// Seconds to write a token of a stream that is alone (`b`).
    pub write: f32,
    /// Seconds that each other stream adds to each token (`c`).
    pub crowd: f32,
}

impl Speeds {
    /// Speeds before anything is learnt, of a common GPU with a small model. Only their proportions matter: all members
    /// begin with the same.
    pub const FIRST: Speeds = Speeds {
        delay: 0.02,
        read: 1e-4,
        write: 0.01,
        crowd: 3e-4,
    };
}

/// Time of learning.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LearningTime {
    /// The current time, in nanoseconds.
    pub now_nanos: u64,
    /// Seconds after which a sample counts for a third.
    pub decay_seconds: f32,
}

/// Own speeds of a member, by its samples alone, each with the number of samples.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct OwnSpeeds {
    pub(crate) reading_samples: f32,
    pub(crate) read: f32,
    pub(crate) delay: f32,
    pub(crate) writing: Moments,
}

/// Speeds of one member, as they are learnt. All workers share them.
#[derive(Debug, Default)]
pub struct MemberSpeed {
    reading: Regression,
    writing: Regression,
    current: SharedSpeeds,
}

/// Speeds in atomic words.
#[derive(Debug)]
pub(crate) struct SharedSpeeds([AtomicU32; 4]);

impl Default for SharedSpeeds {
    fn default() -> Self {
        let shared = SharedSpeeds(Default::default());
        shared.set(Speeds::FIRST);
        shared
    }
}

impl SharedSpeeds {
    pub(crate) fn get(&self) -> Speeds {
        let [delay, read, write, crowd] = &self.0;
        let load = |word: &AtomicU32| f32::from_bits(word.load(Ordering::Relaxed));
        Speeds {
            delay: load(delay),
            read: load(read),
            write: load(write),
            crowd: load(crowd),
        }
    }

    /// Words for the process that takes the place of this one.
    pub(crate) fn export_words(&self) -> [u64; SHARED_WORDS] {
        let speeds = self.get();
        [
            pack_pair(speeds.delay, speeds.read),
            pack_pair(speeds.write, speeds.crowd),
        ]
    }

    /// Restores the words of another process.
    pub(crate) fn import_words(&self, words: &[u64; SHARED_WORDS]) {
        let [first, second] = *words;
        let ((delay, read), (write, crowd)) = (unpack_pair(first), unpack_pair(second));
        self.set(Speeds {
            delay,
            read,
            write,
            crowd,
        });
    }

    pub(crate) fn set(&self, speeds: Speeds) {
        let values = [speeds.delay, speeds.read, speeds.write, speeds.crowd];
        for (word, value) in self.0.iter().zip(values) {
            if value.is_finite() && value >= 0.0 {
                word.store(value.to_bits(), Ordering::Relaxed);
            }
        }
    }
}

impl MemberSpeed {
    /// Speeds as they are known now.
    #[inline]
    pub fn get(&self) -> Speeds {
        self.current.get()
    }

    /// Words for the process that takes the place of this one.
    pub(crate) fn export_words(&self) -> [u64; SPEED_WORDS] {
        let regressions = [&self.reading, &self.writing].map(Regression::export_words);
        let own = regressions.into_iter().flatten();
        let mut all = own.chain(self.current.export_words());
        std::array::from_fn(|_| all.next().unwrap_or(0))
    }

    /// Restores the words of another process.
    pub(crate) fn import_words(&self, words: &[u64; SPEED_WORDS]) {
        if let Some((reading, rest)) = words.split_first_chunk()
            && let Some((writing, rest)) = rest.split_first_chunk()
            && let Some(current) = rest.first_chunk()
        {
            self.reading.import_words(reading);
            self.writing.import_words(writing);
            self.current.import_words(current);
        }
    }

    /// Learns from a first token: `tokens` is the sum of those that were queued before the request and of those that the
    /// request did need to have read. `fleet` has the speeds of the fleet.
    pub fn learn_first_token(&self, tokens: f32, seconds: f32, fleet: &Speeds, time: LearningTime) {
        let is_plausible = tokens >= 1.0 && (0.0..MAX_SECONDS).contains(&seconds);
        if !is_plausible {
            return;
        }
        let speeds = self.get();
        let expected = speeds.delay + speeds.read * tokens;
        let seconds = seconds.min(OUTLIER * expected.max(SHORTEST));
        self.reading
            .add_sample(tokens, seconds, time.now_nanos, time.decay_seconds);
        self.refresh_speeds(fleet, time);
    }

    /// Learns from a stream: `seconds` for each of its tokens, beside `others` streams on average.
    pub fn learn_pace(&self, others: f32, seconds: f32, fleet: &Speeds, time: LearningTime) {
        let is_plausible = others >= 0.0 && seconds > 0.0 && seconds < MAX_SECONDS;
        if !is_plausible {
            return;
        }
        let speeds = self.get();
        let expected = speeds.write + speeds.crowd * others;
        let seconds = seconds.min(OUTLIER * expected.max(SHORTEST));
        self.writing
            .add_sample(others, seconds, time.now_nanos, time.decay_seconds);
        self.refresh_speeds(fleet, time);
    }

    /// Forgets all samples: the speeds become those of the fleet.
    pub fn forget_samples(&self, fleet: &Speeds) {
        self.reading.clear();
        self.writing.clear();
        self.current.set(*fleet);
    }

    /// Works out the speeds anew: call it when those of the fleet have changed, and as time passes.
    pub fn refresh_speeds(&self, fleet: &Speeds, time: LearningTime) {
        let own = self.read_own(fleet, time);
        let mut speeds = *fleet;
        if own.reading_samples > 0.0 {
            let samples = own.reading_samples;
            speeds.read = draw_to_fleet(own.read, fleet.read, ALIKE_READ, samples);
            speeds.delay = draw_to_fleet(own.delay, fleet.delay, ALIKE_READ, samples);
        }
        let writing = own.writing;
        if writing.samples > 0.0 {
            let alone = time_alone(&writing);
            let sum = writing.samples * writing.covariance / alone + PRIOR_SQUARES * fleet.growth();
            let squares = writing.samples * writing.variance + PRIOR_SQUARES;
            let growth = (sum / squares).clamp(0.0, 1.0);
            let write = writing.mean_y / (1.0 + growth * writing.mean_x);
            speeds.write = draw_to_fleet(write, fleet.write, ALIKE_WRITE, writing.samples);
            speeds.crowd = speeds.write * growth;
        }
        self.current.set(speeds);
    }

    /// Speeds by the member's samples alone.
    pub(crate) fn read_own(&self, fleet: &Speeds, time: LearningTime) -> OwnSpeeds {
        let stale_seconds = STALE_DECAYS * time.decay_seconds;
        let reading = self.reading.read_faded(time.now_nanos, stale_seconds);
        let mut own = OwnSpeeds {
            writing: self.writing.read_faded(time.now_nanos, stale_seconds),
            ..OwnSpeeds::default()
        };
        // The line is held to the fleet's delay at no tokens.
        let above = (reading.mean_y - fleet.delay).max(0.0);
        let sum = reading.covariance + ANCHOR * reading.mean_x * above;
        let squares = reading.variance + ANCHOR * reading.mean_x * reading.mean_x;
        if squares > 0.0 {
            own.reading_samples = reading.samples;
            own.read = (sum / squares).max(0.0);
            own.delay = (reading.mean_y - own.read * reading.mean_x).max(0.0);
        }
        own
    }
}

impl Speeds {
    /// `c / b`: the share by which each other stream makes a token slower.
    pub(crate) fn growth(&self) -> f32 {
        (self.crowd / self.write.max(1e-9)).clamp(0.0, 1.0)
    }
}

/// Seconds for a token of a stream that is alone, by the samples of one member.
pub(crate) fn time_alone(writing: &Moments) -> f32 {
    let Moments { mean_x, mean_y, .. } = *writing;
    let slope = match writing.variance > 0.0 {
        true => writing.covariance / writing.variance,
        false => 0.0,
    };
    let least = mean_y / (1.0 + mean_x);
    (mean_y - slope * mean_x)
        .clamp(least, least.max(mean_y))
        .max(1e-9)
}

/// Speed of a member whose own samples say `own`, in a fleet whose speed is `fleet`.
fn draw_to_fleet(own: f32, fleet: f32, alike_share: f32, samples: f32) -> f32 {
    let (apart, alike) = (own - fleet, alike_share * fleet);
    let squares = apart * apart;
    let differs = squares / (squares + alike * alike).max(f32::MIN_POSITIVE);
    fleet + certainty(samples) * differs * apart
}

/// Share with which a member's own samples count beside the fleet's speeds. Grows faster than in proportion: members that
/// get a request every few seconds must not look half like the others for ever.
fn certainty(samples: f32) -> f32 {
    let squares = samples * samples;
    squares / (squares + PRIOR_SAMPLES * PRIOR_SAMPLES)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn time(seconds: u64) -> LearningTime {
        LearningTime {
            now_nanos: seconds * 1_000_000_000,
            decay_seconds: 60.0,
        }
    }

    fn is_near(is: f32, expected: f32, share: f32) {
        assert!(
            (is - expected).abs() <= share * expected,
            "{is}, not {expected}"
        );
    }

    /// A member with these speeds after some requests, the first of which is number `from`.
    fn teach(member: &MemberSpeed, fleet: &Speeds, truth: Speeds, from: u64, requests: u64) {
        let mut rng = fastrand::Rng::with_seed(from + 1);
        for request in from..from + requests {
            let tokens = 50.0 + 4000.0 * rng.f32();
            let noise = 0.9 + 0.2 * rng.f32();
            let first = (truth.delay + truth.read * tokens) * noise;
            let now = time(request);
            member.learn_first_token(tokens, first, fleet, now);
            let others = rng.u32(..20) as f32;
            let pace = (truth.write + truth.crowd * others) * (0.9 + 0.2 * rng.f32());
            member.learn_pace(others, pace, fleet, now);
        }
    }

    #[test]
    fn speeds_are_learnt() {
        let (member, fleet) = (MemberSpeed::default(), Speeds::FIRST);
        let truth = Speeds {
            delay: 0.05,
            read: 4e-4,
            write: 0.03,
            crowd: 1e-3,
        };
        assert_eq!(member.get(), Speeds::FIRST);
        teach(&member, &fleet, truth, 0, 100);
        let speeds = member.get();
        is_near(speeds.read, truth.read, 0.15);
        is_near(speeds.write, truth.write, 0.2);
        is_near(speeds.crowd, truth.crowd, 0.3);
        assert!(speeds.delay < 0.15, "{speeds:?}");
        // A member that is throttled is followed.
        let slow = Speeds {
            read: 4.0 * truth.read,
            write: 4.0 * truth.write,
            crowd: 4.0 * truth.crowd,
            ..truth
        };
        teach(&member, &fleet, slow, 100, 200);
        is_near(member.get().read, slow.read, 0.15);
        is_near(member.get().write, slow.write, 0.25);
    }

    #[test]
    fn members_with_few_samples_are_like_the_fleet() {
        let fleet = Speeds {
            delay: 0.02,
            read: 8e-4,
            write: 0.08,
            crowd: 2e-3,
        };
        let member = MemberSpeed::default();
        member.refresh_speeds(&fleet, time(0));
        assert_eq!(member.get(), fleet);
        // One late answer does not condemn it.
        member.learn_first_token(1000.0, 100.0, &fleet, time(0));
        assert!(member.get().read < 5.0 * fleet.read);
        member.learn_pace(0.0, 10.0, &fleet, time(0));
        assert!(member.get().write < 5.0 * fleet.write);
        member.forget_samples(&fleet);
        assert_eq!(member.get(), fleet);
        // What is a little slower counts as equal.
        for _ in 0..100 {
            member.learn_pace(0.0, 0.084, &fleet, time(0));
        }
        is_near(member.get().write, fleet.write, 0.02);
    }

    #[test]
    fn requests_that_are_all_alike_tell_a_slow_member() {
        let fleet = Speeds::FIRST;
        let [fast, slow]: [MemberSpeed; 2] = Default::default();
        for request in 0..100 {
            for (member, factor) in [(&fast, 1.0), (&slow, 4.0)] {
                let now = time(request);
                member.learn_first_token(500.0, 0.1 * factor, &fleet, now);
                member.learn_pace(3.0, 0.02 * factor, &fleet, now);
            }
        }
        let (fast, slow) = (fast.get(), slow.get());
        assert!(slow.read > 3.0 * fast.read, "{fast:?} {slow:?}");
        assert!(slow.write > 3.0 * fast.write, "{fast:?} {slow:?}");
        assert!(slow.crowd > 3.0 * fast.crowd, "{fast:?} {slow:?}");
        // Streams that are always as many say nothing of what one more costs.
        is_near(fast.growth(), fleet.growth(), 0.01);
    }

    #[test]
    fn a_speed_of_zero_is_left_again() {
        let (member, fleet) = (MemberSpeed::default(), Speeds::FIRST);
        for _ in 0..1000 {
            member.learn_first_token(1000.0, 0.0, &fleet, time(0));
        }
        for _ in 0..1000 {
            member.learn_first_token(1000.0, 1.0, &fleet, time(0));
        }
        assert!(member.get().read > 5e-4, "{:?}", member.get());
    }

    proptest! {
        #[test]
        fn speeds_stay_numbers(samples in prop::collection::vec((any::<f32>(), any::<f32>(), any::<u64>()), 0..40)) {
            let (member, fleet) = (MemberSpeed::default(), Speeds::FIRST);
            for (x, y, now) in samples {
                let time = LearningTime { now_nanos: now, decay_seconds: 10.0 };
                member.learn_first_token(x, y, &fleet, time);
                member.learn_pace(x, y, &fleet, time);
                let speeds = member.get();
                for value in [speeds.delay, speeds.read, speeds.write, speeds.crowd] {
                        prop_assert!(value.is_finite() && value >= 0.0, "{:?}", speeds);
                }
            }
        }
    }
}
