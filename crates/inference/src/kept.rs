//! Share of what a member has read that the member still remembers, by age.
//!
//! The [span](crate::memory) says at which age a member forgets. No cache forgets at one age: how much of the cache requests
//! use, and which prompts come again, differs from minute to minute. And the span alone errs to one side. A member that is
//! believed to have forgotten a prompt is no better than the others, so the prompt goes to another member, and the answer
//! does not tell that the first one still had it: the span gets shorter and shorter. So the share that was found is
//! learnt for each class of ages. Half a chance to find a long prompt is worth half of the time to read the prompt.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::regression::{pack_pair, unpack_pair};

/// Classes of ages: two for each doubling. The last one has no end.
pub(crate) const AGE_CLASSES: usize = 32;

/// Age of the first class, in tokens.
const FIRST_AGE: f32 = 1024.0;

/// Most answers of a class that count.
const MOST_ANSWERS: f32 = 40.0;

/// Answers that the span counts for in each class.
const PRIOR_ANSWERS: f32 = 2.0;

/// Shares of one member. All workers share them.
#[derive(Debug, Default)]
pub(crate) struct KeptShares {
    /// Answers of each class that count, and the sum of the shares that were found.
    classes: [AtomicU64; AGE_CLASSES],
}

impl KeptShares {
    /// Share that the member remembers of what it read at this age, in tokens. `span` counts where answers are missing.
    pub(crate) fn read_share(&self, age: u64, span: u64) -> f32 {
        let place = find_place(age);
        let (class, part) = (place as usize, place - libm::floorf(place));
        let share_of = |class: usize| {
            let (answers, sum) = self.classes.get(class).map_or((0.0, 0.0), load_pair);
            let is_in_span = class_age(class) < span as f32;
            let prior = if is_in_span { PRIOR_ANSWERS } else { 0.0 };
            (prior + sum) / (PRIOR_ANSWERS + answers)
        };
        let share = share_of(class) * (1.0 - part) + share_of(class + 1) * part;
        share.clamp(0.0, 1.0)
    }

    /// Learns the share that was found of what the member read at this age.
    pub(crate) fn learn_share(&self, age: u64, share: f32) {
        let nearest = libm::roundf(find_place(age)) as usize;
        let Some(class) = self.classes.get(nearest) else {
            return;
        };
        let share = if share > 0.0 { share.min(1.0) } else { 0.0 };
        let (answers, sum) = load_pair(class);
        let faded = 1.0 - 1.0 / MOST_ANSWERS;
        let word = pack_pair(answers * faded + 1.0, sum * faded + share);
        class.store(word, Ordering::Relaxed);
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

/// Place of an age among the classes.
fn find_place(age: u64) -> f32 {
    let place = 2.0 * libm::log2f(age as f32 / FIRST_AGE);
    place.clamp(0.0, (AGE_CLASSES - 1) as f32)
}

/// Age of a class, in tokens.
fn class_age(class: usize) -> f32 {
    FIRST_AGE * libm::exp2f(class as f32 / 2.0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_span_counts_until_answers_tell() {
        let shares = KeptShares::default();
        assert_eq!(shares.read_share(0, 100_000), 1.0);
        assert_eq!(shares.read_share(50_000, 100_000), 1.0);
        assert_eq!(shares.read_share(200_000, 100_000), 0.0);
        assert_eq!(shares.read_share(u64::MAX, u64::MAX), 1.0);
        for _ in 0..60 {
            shares.learn_share(16_384, 0.0);
            shares.learn_share(262_144, 0.75);
        }
        assert!(shares.read_share(16_384, 100_000) < 0.07);
        assert!((shares.read_share(262_144, 100_000) - 0.75).abs() < 0.06);
        // Other ages are as before.
        assert_eq!(shares.read_share(4096, 100_000), 1.0);
        assert_eq!(shares.read_share(1_000_000, 100_000), 0.0);
        shares.clear();
        assert_eq!(shares.read_share(16_384, 100_000), 1.0);
    }

    #[test]
    fn newer_answers_count_more() {
        let shares = KeptShares::default();
        (0..1000).for_each(|_| shares.learn_share(30_000, 1.0));
        (0..60).for_each(|_| shares.learn_share(30_000, 0.0));
        assert!(shares.read_share(30_000, 0) < 0.3);
    }

    proptest! {
        #[test]
        fn shares_are_shares(
            answers in prop::collection::vec((any::<u64>(), any::<f32>()), 0..100),
            words in any::<[u64; AGE_CLASSES]>(),
            is_imported in any::<bool>(),
            ages in prop::collection::vec((any::<u64>(), any::<u64>()), 1..20),
        ) {
            let shares = KeptShares::default();
            if is_imported {
                shares.import_words(&words);
            }
            for (age, share) in answers {
                // Ages of all sizes.
                shares.learn_share(age >> (age % 64), share);
            }
            for (age, span) in ages {
                let share = shares.read_share(age >> (age % 64), span >> (span % 64));
                prop_assert!((0.0..=1.0).contains(&share), "{share}");
            }
            let other = KeptShares::default();
            other.import_words(&shares.export_words());
            prop_assert_eq!(other.export_words(), shares.export_words());
        }
    }
}
