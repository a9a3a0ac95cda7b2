//! Tokens of requests: how many tokens a prompt of some bytes has, how many tokens an answer will have, and which share
//! of the tokens members do remember. Learnt from `usage`, for each model and for all together.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::regression::{pack_pair, unpack_pair};
use crate::usage::Usage;

/// Models with figures of their own. Further ones have those of all together.
const MODELS: usize = 64;

/// Words of a model's figures.
const MODEL_WORDS: usize = 3;

/// Places at which a model may be.
const PROBES: usize = 4;

/// Tokens of a byte before anything is learnt.
const FIRST_TOKENS_PER_BYTE: f32 = 0.25;

/// Bytes that the first figure counts for.
const PRIOR_BYTES: f32 = 4096.0;

/// Lowest and highest plausible number of tokens of a byte. Pictures beyond the part of a body that is read have few
/// tokens for many bytes, and long lists of token numbers have about one for five bytes.
const TOKENS_PER_BYTE: [f32; 2] = [0.0005, 2.0];

/// Most bytes for which a single prompt counts: many bytes that an engine ignores change the figure little.
const MOST_BYTES: f32 = 65_536.0;

/// Most tokens for which a single answer counts: an engine that tells a wrong number changes the mean little.
const MOST_OUTPUT: f32 = 65_536.0;

/// Tokens of an answer before anything is learnt.
const FIRST_OUTPUT: f32 = 200.0;

/// Answers that the first figure counts for.
const PRIOR_ANSWERS: f32 = 4.0;

/// Answers over which means reach.
const REACH: f32 = 200.0;

/// Figures of one model.
#[derive(Debug, Default)]
struct ModelFigures {
    /// Hash of the model's name; 0 if the place is free.
    model: AtomicU64,
    /// Decayed sums of bytes (f32 bits, high half) and tokens of prompts.
    prompts: AtomicU64,
    /// Decayed number of answers and sum of their tokens.
    answers: AtomicU64,
}

/// Figures of a group's models. All workers share them.
#[derive(Debug)]
pub struct TokenFigures {
    models: [ModelFigures; MODELS],
    all: ModelFigures,
    /// Decayed sums of tokens of prompts, and of those that members remembered.
    found: AtomicU64,
    /// Decayed sums of events of streams, and of tokens in them.
    events: AtomicU64,
}

impl Default for TokenFigures {
    fn default() -> Self {
        TokenFigures {
            models: std::array::from_fn(|_| ModelFigures::default()),
            all: ModelFigures::default(),
            found: AtomicU64::new(0),
            events: AtomicU64::new(0),
        }
    }
}

impl TokenFigures {
    /// Tokens of a byte of a prompt. `model` is the [hash of its name](crate::chain::ChainBuilder::model_hash).
    pub fn tokens_per_byte(&self, model: u64) -> f32 {
        let (bytes, tokens) = unpack_pair(self.find(model).prompts.load(Ordering::Relaxed));
        let tokens = tokens + FIRST_TOKENS_PER_BYTE * PRIOR_BYTES;
        clamp_ratio(tokens / (bytes + PRIOR_BYTES))
    }

    /// Tokens that an answer is expected to have: at most `max_tokens`, and at least 1.
    pub fn expected_output(&self, model: u64, max_tokens: Option<u32>) -> f32 {
        let (answers, tokens) = unpack_pair(self.find(model).answers.load(Ordering::Relaxed));
        let tokens = tokens + FIRST_OUTPUT * PRIOR_ANSWERS;
        let mean = tokens / (answers + PRIOR_ANSWERS);
        mean.min(max_tokens.map_or(f32::INFINITY, |limit| limit as f32))
            .max(1.0)
    }

    /// Share of the prompts' tokens that members remembered; 0 if members do not say it.
    pub fn found_share(&self) -> f32 {
        let (tokens, found) = unpack_pair(self.found.load(Ordering::Relaxed));
        match tokens > 0.0 {
            true => (found / tokens).clamp(0.0, 1.0),
            false => 0.0,
        }
    }

    /// Learns from an answer to a prompt of `prompt_bytes`. `prompt_bytes` is 0 if it is not known how much of the body
    /// was the prompt.
    pub fn learn_usage(&self, model: u64, prompt_bytes: u64, usage: &Usage) {
        let prompt = usage.prompt_tokens as f32;
        for figures in [self.claim(model), Some(&self.all)].into_iter().flatten() {
            if prompt_bytes > 0 {
                let bytes = prompt_bytes as f32;
                let counted = bytes.min(MOST_BYTES);
                let tokens = counted * clamp_ratio(prompt / bytes);
                add_decayed(&figures.prompts, counted, tokens);
            }
            let output = (usage.output_tokens as f32).min(MOST_OUTPUT);
            add_decayed(&figures.answers, 1.0, output);
        }
        if let Some(cached) = usage.cached_tokens {
            add_decayed(&self.found, prompt, (cached as f32).min(prompt));
        }
    }

    /// Tokens of an event of a stream: 1, or more if engines send several at a time.
    pub fn tokens_per_event(&self) -> f32 {
        let (events, tokens) = unpack_pair(self.events.load(Ordering::Relaxed));
        match events > 0.0 {
            true => (tokens / events).clamp(1.0, 100.0),
            false => 1.0,
        }
    }

    /// Learns from a stream of this many events.
    pub fn learn_events(&self, events: u64, usage: &Usage) {
        if events > 0 && usage.output_tokens > 0 {
            add_decayed(&self.events, events as f32, usage.output_tokens as f32);
        }
    }

    /// Words for the process that takes the place of this one.
    pub(crate) fn export_words(&self) -> Vec<u64> {
        let words = self.list_words().into_iter();
        words.map(|word| word.load(Ordering::Relaxed)).collect()
    }

    /// Restores the words of another process: hashes of models, and sums of plausible figures. Another number of words
    /// changes nothing.
    pub(crate) fn import_words(&self, words: &[u64]) {
        let own = self.list_words();
        if own.len() != words.len() {
            return;
        }
        for (place, (to, from)) in own.into_iter().zip(words).enumerate() {
            let is_model = place < MODEL_WORDS * MODELS && place % MODEL_WORDS == 0;
            let (one, other) = unpack_pair(*from);
            let are_sums = |sum: f32| sum.is_finite() && sum >= 0.0;
            if is_model || (are_sums(one) && are_sums(other)) {
                to.store(*from, Ordering::Relaxed);
            }
        }
    }

    /// Words of all figures, those of models first.
    fn list_words(&self) -> Vec<&AtomicU64> {
        let models = self.models.iter().chain([&self.all]);
        let words = models.flat_map(|one| [&one.model, &one.prompts, &one.answers]);
        words.chain([&self.found, &self.events]).collect()
    }

    /// Figures of a model, or of all together.
    fn find(&self, model: u64) -> &ModelFigures {
        let mut places = self.places(model);
        let known = places.find(|figures| figures.model.load(Ordering::Relaxed) == model);
        known.filter(|_| model != 0).unwrap_or(&self.all)
    }

    /// Place of a model, which may be new; `None` if there is none.
    fn claim(&self, model: u64) -> Option<&ModelFigures> {
        self.places(model).filter(|_| model != 0).find(|figures| {
            let held = &figures.model;
            let claimed = held.compare_exchange(0, model, Ordering::Relaxed, Ordering::Relaxed);
            claimed.is_ok() || claimed == Err(model)
        })
    }

    fn places(&self, model: u64) -> impl Iterator<Item = &ModelFigures> {
        let first = model as usize % MODELS;
        (0..PROBES).filter_map(move |step| self.models.get((first + step) % MODELS))
    }
}

fn clamp_ratio(ratio: f32) -> f32 {
    let [least, most] = TOKENS_PER_BYTE;
    ratio.clamp(least, most)
}

/// Adds to two sums that forget.
fn add_decayed(word: &AtomicU64, one: f32, other: f32) {
    let (before, other_before) = unpack_pair(word.load(Ordering::Relaxed));
    let keep = 1.0 - 1.0 / REACH;
    let (sum, other_sum) = (before * keep + one, other_before * keep + other);
    word.store(pack_pair(sum, other_sum), Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn usage(prompt_tokens: u32, cached_tokens: Option<u32>, output_tokens: u32) -> Usage {
        Usage {
            prompt_tokens,
            cached_tokens,
            output_tokens,
        }
    }

    #[test]
    fn figures_are_learnt_for_each_model() {
        let figures = TokenFigures::default();
        assert_eq!(figures.tokens_per_byte(5), FIRST_TOKENS_PER_BYTE);
        assert_eq!(figures.expected_output(5, None), FIRST_OUTPUT);
        assert_eq!(figures.expected_output(5, Some(10)), 10.0);
        assert_eq!(figures.found_share(), 0.0);
        for _ in 0..1000 {
            figures.learn_usage(5, 10_000, &usage(2000, Some(1500), 50));
            figures.learn_usage(6, 10_000, &usage(4000, None, 500));
        }
        assert!((figures.tokens_per_byte(5) - 0.2).abs() < 0.01);
        assert!((figures.tokens_per_byte(6) - 0.4).abs() < 0.01);
        assert!((figures.expected_output(5, None) - 50.0).abs() < 5.0);
        assert!((figures.expected_output(6, None) - 500.0).abs() < 10.0);
        assert_eq!(figures.tokens_per_event(), 1.0);
        figures.learn_events(0, &usage(10, None, 5));
        figures.learn_events(100, &usage(10, None, 400));
        assert_eq!(figures.tokens_per_event(), 4.0);
        // Others have the figures of all.
        assert!((figures.tokens_per_byte(0) - 0.3).abs() < 0.01);
        assert!((figures.found_share() - 0.75).abs() < 0.01);
    }

    #[test]
    fn a_prompt_most_of_which_the_engine_ignores_changes_little() {
        let figures = TokenFigures::default();
        for _ in 0..100 {
            figures.learn_usage(5, 8000, &usage(2000, None, 50));
        }
        figures.learn_usage(5, 4 << 20, &usage(10, None, 50));
        assert!(figures.tokens_per_byte(5) > 0.2);
    }

    #[test]
    fn an_answer_with_a_wrong_number_of_tokens_changes_the_mean_little() {
        let figures = TokenFigures::default();
        for _ in 0..100 {
            figures.learn_usage(5, 8000, &usage(2000, None, 50));
        }
        figures.learn_usage(5, 8000, &usage(2000, None, u32::MAX));
        for model in [5, 6] {
            let expected = figures.expected_output(model, None);
            assert!(expected < 1000.0, "{expected}");
        }
    }

    #[test]
    fn names_that_flood_take_no_places_of_others() {
        let figures = TokenFigures::default();
        for _ in 0..1000 {
            figures.learn_usage(5, 10_000, &usage(5000, None, 50));
        }
        for model in 100..10_000 {
            figures.learn_usage(model, 10_000, &usage(1000, None, 5));
        }
        assert!((figures.tokens_per_byte(5) - 0.5).abs() < 0.01);
        assert!((figures.tokens_per_byte(9_999) - 0.1).abs() < 0.02);
    }

    proptest! {
        #[test]
        fn figures_stay_plausible(
            answers in prop::collection::vec((any::<u64>(), any::<u64>(), any::<u32>(), any::<Option<u32>>(), any::<u32>()), 0..50),
        ) {
            let figures = TokenFigures::default();
            for (model, bytes, prompt, cached, output) in answers {
                figures.learn_usage(model, bytes, &usage(prompt, cached, output));
                let ratio = figures.tokens_per_byte(model);
                prop_assert!((TOKENS_PER_BYTE[0]..=TOKENS_PER_BYTE[1]).contains(&ratio));
                prop_assert!(figures.expected_output(model, None) >= 1.0);
                prop_assert_eq!(figures.expected_output(model, Some(0)), 1.0);
                prop_assert!((0.0..=1.0).contains(&figures.found_share()));
            }
        }
    }
}
