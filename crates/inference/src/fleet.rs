//! Usual speeds of a fleet's members, to which the speeds of members with few samples are drawn.
//!
//! They are the lower quartile of what the members' own samples say: a member of which nothing is known is taken for a
//! fast one, because it is soon found out if it is not. With the mean, one slow member among few known ones would keep
//! requests away from all that are unknown, for ever.

use crate::regression::Moments;
use crate::speed::{
    LearningTime, MemberSpeed, OwnSpeeds, SHARED_WORDS, SharedSpeeds, Speeds, time_alone,
};

/// Share of the members' samples that are at most the usual speed.
const QUANTILE: f32 = 0.25;

/// Steps of the search for a quantile: each halves what is unknown.
const STEPS: u32 = 20;

/// Sum of squares of other streams that the first `c / b` counts for.
const PRIOR_SQUARES: f32 = 16.0;

/// Usual speeds of a fleet.
#[derive(Debug, Default)]
pub struct FleetSpeed {
    current: SharedSpeeds,
}

impl FleetSpeed {
    /// Usual speeds.
    #[inline]
    pub fn get(&self) -> Speeds {
        self.current.get()
    }

    /// Words for the process that takes the place of this one.
    pub(crate) fn export_words(&self) -> [u64; SHARED_WORDS] {
        self.current.export_words()
    }

    /// Restores the words of another process.
    pub(crate) fn import_words(&self, words: &[u64; SHARED_WORDS]) {
        self.current.import_words(words);
    }

    /// Takes what the members' samples say. Members with more recent samples count more. The control loop calls it about
    /// once per second.
    ///
    /// The samples count, and not the members' speeds, which have been drawn to the fleet's.
    pub fn update_usual<'a>(
        &self,
        members: impl Iterator<Item = &'a MemberSpeed>,
        time: LearningTime,
    ) {
        let before = self.get();
        // Each search for a quantile reads all of them some twenty times.
        let own = members.map(|member| member.read_own(&before, time));
        let own: Vec<OwnSpeeds> = own.collect();
        let own = own.iter();
        let growth = pool_growth(own.clone().map(|own| own.writing));
        let find = |value: fn(&OwnSpeeds) -> (f32, f32)| find_quantile(own.clone().map(value));
        let writes = own.clone().map(|own| {
            let Moments {
                samples,
                mean_x,
                mean_y,
                ..
            } = own.writing;
            (mean_y / (1.0 + growth * mean_x), samples)
        });
        let mut speeds = before;
        if let Some(read) = find(|own| (own.read, own.reading_samples)) {
            speeds.read = read;
        }
        if let Some(delay) = find(|own| (own.delay, own.reading_samples)) {
            speeds.delay = delay;
        }
        if let Some(write) = find_quantile(writes) {
            speeds.write = write;
            speeds.crowd = write * growth;
        }
        self.current.set(speeds);
    }
}

/// `c / b`, which members have in common, by the samples of all.
fn pool_growth(members: impl Iterator<Item = Moments>) -> f32 {
    let mut sum = PRIOR_SQUARES * Speeds::FIRST.growth();
    let mut squares = PRIOR_SQUARES;
    for writing in members {
        sum += writing.samples * writing.covariance / time_alone(&writing);
        squares += writing.samples * writing.variance;
    }
    (sum / squares).clamp(0.0, 1.0)
}

/// The lower quartile of values with weights; `None` if no value has a weight. Without memory for sorting: the quartile
/// is searched by halving.
fn find_quantile(values: impl Iterator<Item = (f32, f32)> + Clone) -> Option<f32> {
    let values = values.filter(|(value, weight)| value.is_finite() && *weight > 0.0);
    let (mut low, mut high) = (f32::INFINITY, f32::NEG_INFINITY);
    let mut all = 0.0;
    for (value, weight) in values.clone() {
        (low, high) = (low.min(value), high.max(value));
        all += weight;
    }
    if low > high {
        return None;
    }
    for _ in 0..STEPS {
        let middle = low + (high - low) / 2.0;
        let below = values.clone().filter(|(value, _)| *value <= middle);
        let weight: f32 = below.map(|(_, weight)| weight).sum();
        match weight >= QUANTILE * all {
            true => high = middle,
            false => low = middle,
        }
    }
    Some(high)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn time(seconds: u64) -> LearningTime {
        LearningTime {
            now_nanos: seconds * 1_000_000_000,
            decay_seconds: 10.0,
        }
    }

    /// A member that takes `factor` times as long as others.
    fn member(factor: f32, samples: u64) -> MemberSpeed {
        let member = MemberSpeed::default();
        let mut rng = fastrand::Rng::with_seed(samples);
        for _ in 0..samples {
            let tokens = 100.0 + 5000.0 * rng.f32();
            let seconds = factor * (0.02 + 2e-4 * tokens);
            member.learn_first_token(tokens, seconds, &Speeds::FIRST, time(0));
            member.learn_pace(2.0, 0.02 * factor, &Speeds::FIRST, time(0));
        }
        member
    }

    #[test]
    fn unknown_members_are_taken_for_fast_ones() {
        let fleet = FleetSpeed::default();
        fleet.update_usual([MemberSpeed::default()].iter(), time(0));
        assert_eq!(fleet.get(), Speeds::FIRST);
        let members = [
            member(4.0, 64),
            member(1.0, 64),
            member(4.0, 64),
            MemberSpeed::default(),
        ];
        fleet.update_usual(members.iter(), time(1));
        assert!(
            (fleet.get().read / 2e-4 - 1.0).abs() < 0.1,
            "{:?}",
            fleet.get()
        );
        let unknown = &members[3];
        unknown.refresh_speeds(&fleet.get(), time(1));
        assert_eq!(unknown.get(), fleet.get());
        assert!(members[0].get().write > 3.0 * unknown.get().write);
    }

    #[test]
    fn a_member_without_requests_is_forgotten_slowly() {
        let fleet = FleetSpeed::default();
        let members = [member(4.0, 64), member(1.0, 64)];
        let ratio_at = |seconds: u64| {
            let [slow, fast] = &members;
            for _ in 0..64 {
                fast.learn_first_token(1000.0, 0.22, &fleet.get(), time(seconds));
            }
            fleet.update_usual(members.iter(), time(seconds));
            slow.refresh_speeds(&fleet.get(), time(seconds));
            slow.get().read / fast.get().read
        };
        assert!(ratio_at(1) > 3.5);
        assert!(ratio_at(60) > 3.5);
        assert!(ratio_at(600) < 1.1);
    }

    proptest! {
        #[test]
        fn quantiles_are_found(values in prop::collection::vec((0.0f32..10.0, 0.1f32..5.0), 1..20)) {
            let found = find_quantile(values.iter().copied()).unwrap();
            let all: f32 = values.iter().map(|(_, weight)| weight).sum();
            let weigh = |limit: f32| -> f32 {
                let below = values.iter().filter(|(value, _)| *value <= limit);
                below.map(|(_, weight)| weight).sum()
            };
            prop_assert!(weigh(found + 1e-4) >= QUANTILE * all * 0.999);
            prop_assert!(weigh(found - 1e-3) <= QUANTILE * all * 1.001);
        }
    }
}
