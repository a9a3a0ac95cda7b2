//! Share of what a member has read that the member still remembers, by age.
//!
//! The [span](crate::memory) says at which age a member forgets. No cache forgets at one age: how much of the cache requests
//! use, and which prompts come again, differs from minute to minute. And the span alone errs to one side. A member that is
//! believed to have forgotten a prompt is no better than the others, so the prompt goes to another member, and no answer
//! tells that the first one still had it: the span gets shorter and shorter. So the share that was found is learnt for each
//! class of ages. Half a chance to find a long prompt is worth half of the time to read the prompt.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::regression::{pack_pair, unpack_pair};

/// Classes of ages: two for each doubling. The last one has no end.
pub(crate) const AGE_CLASSES: usize = 32;

/// Age of the first class, in tokens.
const FIRST_AGE: f32 = 1024.0;

/// Most answers of a class that count.
const MOST_ANSWERS: f32 = 40.0;

/// Answers in each class that nothing was found, before anything is learnt.
const PRIOR_ANSWERS: f32 = 2.0;

/// Shares of one member. All workers share them.
#[derive(Debug, Default)]
pub(crate) struct KeptShares {
    /// Answers of each class that count, and the sum of the shares that were found.
    classes: [AtomicU64; AGE_CLASSES],
}

impl KeptShares {
    /// Share that the member remembers of what it read at this age, in tokens; 0 before answers have told.
    pub(crate) fn read_share(&self, age: u64) -> f32 {
        let parts = split_age(age).into_iter();
        let shares = parts.map(|(class, weight)| {
            let (answers, sum) = self.classes.get(class).map_or((0.0, 0.0), load_pair);
            weight * sum / (PRIOR_ANSWERS + answers)
        });
        shares.sum::<f32>().clamp(0.0, 1.0)
    }

    /// Learns the share that was found of what the member read at this age: the answer counts for the classes on both sides
    /// of the age, more for the nearer one.
    pub(crate) fn learn_share(&self, age: u64, share: f32) {
        let share = if share > 0.0 { share.min(1.0) } else { 0.0 };
        for (class, weight) in split_age(age) {
            if let Some(class) = self.classes.get(class) {
                let (answers, sum) = load_pair(class);
                let left = 1.0 - weight / MOST_ANSWERS;
                let word = pack_pair(answers * left + weight, sum * left + weight * share);
                class.store(word, Ordering::Relaxed);
            }
        }
    }

    /// Forgets all answers.
    pub(crate) fn clear(&self) {
        for class in &self.classes {
            class.store(0, Ordering::Relaxed);
        }
    }

    /// Words for the process that takes the place of this one.
    pub(crate) fn export_words(&self) -> [u64; AGE_CLASSES] {
        std::array::from_fn(|class| {
            let class = self.classes.get(class);
            class.map_or(0, |class| class.load(Ordering::Relaxed))
        })
    }

    /// Restores the words of another process, as far as they are plausible.
    pub(crate) fn import_words(&self, words: &[u64; AGE_CLASSES]) {
        for (class, word) in self.classes.iter().zip(words) {
            let (answers, sum) = unpack_pair(*word);
            let is_plausible =
                (0.0..MOST_ANSWERS + 1.0).contains(&answers) && (0.0..=answers).contains(&sum);
            class.store(if is_plausible { *word } else { 0 }, Ordering::Relaxed);
        }
    }
}

fn load_pair(class: &AtomicU64) -> (f32, f32) {
    unpack_pair(class.load(Ordering::Relaxed))
}

/// Classes on both sides of an age, with weights whose sum is 1.
fn split_age(age: u64) -> [(usize, f32); 2] {
    let place = 2.0 * libm::log2f(age as f32 / FIRST_AGE);
    let place = place.clamp(0.0, (AGE_CLASSES - 1) as f32);
    let (class, part) = (place as usize, place - libm::floorf(place));
    [(class, 1.0 - part), (class + 1, part)]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_share_of_each_age_is_learnt() {
        let shares = KeptShares::default();
        assert_eq!(shares.read_share(0), 0.0);
        assert_eq!(shares.read_share(u64::MAX), 0.0);
        for turn in 0..100 {
            shares.learn_share(500, 1.0);
            shares.learn_share(30_000, if turn % 4 == 0 { 0.0 } else { 1.0 });
            shares.learn_share(200_000, 0.0);
            shares.learn_share(u64::MAX, 1.0);
        }
        for (age, share) in [(0, 1.0), (30_000, 0.75), (200_000, 0.0), (u64::MAX, 1.0)] {
            let learnt = shares.read_share(age);
            assert!((learnt - share).abs() < 0.1, "{age} {learnt}");
        }
        // Between two ages, something between the shares; at other ages, nothing is known.
        assert!((0.2..0.8).contains(&shares.read_share(35_000)));
        assert_eq!(shares.read_share(4096), 0.0);
        shares.clear();
        assert_eq!(shares.read_share(500), 0.0);
    }

    #[test]
    fn newer_answers_count_more() {
        let shares = KeptShares::default();
        (0..1000).for_each(|_| shares.learn_share(30_000, 1.0));
        assert!(shares.read_share(30_000) > 0.9);
        (0..100).for_each(|_| shares.learn_share(30_000, 0.0));
        assert!(shares.read_share(30_000) < 0.3);
    }

    proptest! {
        #[test]
        fn shares_are_shares(
            answers in prop::collection::vec((any::<u64>(), any::<f32>()), 0..100),
            words in any::<[u64; AGE_CLASSES]>(),
            is_imported in any::<bool>(),
            ages in prop::collection::vec(any::<u64>(), 1..20),
        ) {
            let shares = KeptShares::default();
            if is_imported {
                shares.import_words(&words);
            }
            for (age, share) in answers {
                // Ages of all sizes.
                shares.learn_share(age >> (age % 64), share);
            }
            for age in ages {
                let share = shares.read_share(age >> (age % 64));
                prop_assert!((0.0..=1.0).contains(&share), "{share}");
            }
            let other = KeptShares::default();
            other.import_words(&shares.export_words());
            prop_assert_eq!(other.export_words(), shares.export_words());
        }
    }
}
