//! Memory of a member: how many tokens an engine still remembers after it has read them.
//!
//! Each member has a *clock*, which counts the tokens that it has read. A block of a prompt has a *stamp*: the clock at
//! the moment at which the member read or found the block last. The member is believed to hold the block while
//! `clock - stamp` is below the member's *span*. The span is learnt from the answers: tokens that were predicted and
//! not there make it shorter, tokens that were there and not predicted make it longer. So the size of the cache, its way
//! of eviction, host memory behind the GPU, and a cache that is switched off are all the same thing: a measured number.
//!
//! How sure that is, is learnt as well: the [share](crate::kept) that was found of what the member read at each age. Costs
//! go by the tokens that are expected by these shares, also beyond the span.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::kept::{AGE_CLASSES, KeptShares};

/// Tokens of a unit of stamps: 32 bits of units last for 68 thousand million tokens.
const STAMP_TOKENS: u64 = 16;

/// Span before anything is learnt, in tokens. A span that is too long costs less time than one that is too short, and
/// is corrected sooner.
pub const FIRST_SPAN: u64 = 400_000;

/// Longest span, in tokens.
pub const MAX_SPAN: u64 = 1 << 34;

/// Tokens by which a prediction may be off without meaning anything: blocks are counted by bytes, and engines remember
/// whole blocks.
const SLACK_TOKENS: f32 = 256.0;

/// Share of a prediction by which it may be off without meaning anything.
const SLACK_SHARE: f32 = 0.1;

/// Steps of the span after a loss, and after a find, as parts of the span. Steps up are longer: requests go where they
/// are predicted to be known, so that finds beyond the span are rare.
const DOWN_STEP: u64 = 25;
const UP_STEP: u64 = 5;

/// Step after the loss of a young block.
const FRESH_STEP: u64 = 100;

/// Predictions in a row of which nothing was there, after which the member has forgotten everything.
const MISSES_OF_A_RESTART: u32 = 3;

/// Age up to which a lost block says little about the span, as a share of the span.
const FRESH_SHARE: u64 = 16;

/// Age up to which a lost block is a sign of a restart, as a share of the span. Older blocks are lost in full caches.
const RESTART_SHARE: u64 = 4;

/// Words that are learnt of a member's memory.
pub(crate) const MEMORY_WORDS: usize = COUNTER_WORDS + AGE_CLASSES;

/// Words of clock, span and misses.
const COUNTER_WORDS: usize = 4;

/// Memory of one member. All workers share it.
#[derive(Debug)]
pub struct MemberMemory {
    /// Tokens read so far.
    clock: AtomicU64,
    /// Clock at the moment at which the member forgot everything last.
    forgotten_at: AtomicU64,
    span: AtomicU64,
    /// Predictions of young blocks of which nothing was there, since a member has remembered something.
    misses: AtomicU32,
    kept: KeptShares,
}

/// State of a member's memory at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryMoment {
    /// The clock, in units of stamps.
    now: u32,
    /// Age from which on a block is believed to be forgotten.
    horizon: u32,
    /// Age from which on a block is certainly forgotten.
    limit: u32,
}

/// Expectation of what a member remembers of a prompt, made when the request is sent.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Prediction {
    /// Tokens that the member is believed to remember.
    pub tokens: f32,
    /// Tokens that the member has read at some time, and may have forgotten.
    pub recorded_tokens: f32,
    /// Age of the last block that is believed to be remembered, in tokens.
    pub age: u64,
    /// Age of the last block that was read at some time, in tokens.
    pub recorded_age: u64,
    /// Tokens that were queued at the member when the request was sent. A younger block may not have been read yet.
    pub queued_tokens: u64,
}

/// Result of a prediction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PredictionResult {
    /// The member remembered about as much as expected.
    Right,
    /// The member remembered less.
    Forgotten,
    /// The member remembered more.
    Remembered,
    /// The member has forgotten everything, as after a restart.
    Restarted,
}

impl Default for MemberMemory {
    fn default() -> Self {
        MemberMemory {
            clock: AtomicU64::new(0),
            forgotten_at: AtomicU64::new(0),
            span: AtomicU64::new(FIRST_SPAN),
            misses: AtomicU32::new(0),
            kept: KeptShares::default(),
        }
    }
}

impl MemberMemory {
    /// Advances the clock by tokens that the member reads or writes, and returns the stamp of the blocks that it then
    /// holds.
    pub fn advance_clock(&self, tokens: u64) -> u32 {
        let tokens = tokens.min(MAX_SPAN);
        let clock = self.clock.fetch_add(tokens, Ordering::Relaxed);
        to_stamp(clock.wrapping_add(tokens))
    }

    /// Stamp of blocks that the member holds now.
    pub fn current_stamp(&self) -> u32 {
        to_stamp(self.clock.load(Ordering::Relaxed))
    }

    /// Tokens for which the member remembers what it has read.
    pub fn span_tokens(&self) -> u64 {
        self.span.load(Ordering::Relaxed)
    }

    /// Forgets how long the member remembers what it reads: the member is another one now.
    pub(crate) fn forget_span(&self) {
        self.set_span(FIRST_SPAN);
        self.kept.clear();
    }

    /// Sets the span: the size of the engine's cache, if its metrics say it, or what the process before has learnt.
    pub fn set_span(&self, tokens: u64) {
        self.span.store(tokens.min(MAX_SPAN), Ordering::Relaxed);
    }

    /// Words for the process that takes the place of this one.
    pub(crate) fn export_words(&self) -> [u64; MEMORY_WORDS] {
        let counters = [
            self.clock.load(Ordering::Relaxed),
            self.forgotten_at.load(Ordering::Relaxed),
            self.span_tokens(),
            u64::from(self.misses.load(Ordering::Relaxed)),
        ];
        let mut all = counters.into_iter().chain(self.kept.export_words());
        std::array::from_fn(|_| all.next().unwrap_or(0))
    }

    /// Restores the words of another process.
    pub(crate) fn import_words(&self, words: &[u64; MEMORY_WORDS]) {
        let Some(([clock, forgotten_at, span, misses], shares)) =
            words.split_first_chunk::<COUNTER_WORDS>()
        else {
            return;
        };
        if let Some(shares) = shares.first_chunk() {
            self.kept.import_words(shares);
        }
        // No clock comes near this in the life of an engine.
        let clock = (*clock).min(u64::MAX / 2);
        self.clock.store(clock, Ordering::Relaxed);
        self.forgotten_at
            .store((*forgotten_at).min(clock), Ordering::Relaxed);
        self.set_span(*span);
        let misses = u32::try_from(*misses).unwrap_or(0);
        self.misses.store(misses, Ordering::Relaxed);
    }

    /// Makes the member forget everything: it was down, or is another one now.
    pub fn forget_all(&self) {
        self.forget_before_now();
        self.misses.store(0, Ordering::Relaxed);
    }

    fn forget_before_now(&self) {
        // Later stamps are in a later unit.
        let clock = self.clock.fetch_add(STAMP_TOKENS, Ordering::Relaxed);
        let clock = clock.wrapping_add(STAMP_TOKENS);
        let forgotten_at = clock - clock % STAMP_TOKENS;
        self.forgotten_at.store(forgotten_at, Ordering::Relaxed);
    }

    /// Tokens read since the member forgot everything last.
    fn tokens_since_forgotten(&self) -> u64 {
        let clock = self.clock.load(Ordering::Relaxed);
        // Another worker may have made the member forget since the line before.
        clock.saturating_sub(self.forgotten_at.load(Ordering::Relaxed))
    }

    /// State at this moment.
    #[inline]
    pub fn read_moment(&self) -> MemoryMoment {
        // Ages from half the range on are those of stamps in the future.
        let to_age =
            |units: u64| u32::try_from(units).map_or(u32::MAX >> 1, |age| age.min(u32::MAX >> 1));
        let limit = to_age(self.tokens_since_forgotten() / STAMP_TOKENS + 1);
        MemoryMoment {
            now: self.current_stamp(),
            horizon: to_age(self.span_tokens().div_ceil(STAMP_TOKENS)).min(limit),
            limit,
        }
    }

    /// Expected number of tokens that the member remembers. What is younger than the span counts whole: requests that go
    /// where their prompts probably are keep caches from holding the same prompts.
    pub fn expect_tokens(&self, prediction: &Prediction) -> f32 {
        let [(young, _), (old, age)] = prediction.list_parts();
        match old > 0.0 {
            true => young + old * self.kept.read_share(age),
            false => young,
        }
    }

    /// Learns the shares that the member did remember of what it read at these ages.
    fn learn_shares(&self, prediction: &Prediction, cached_tokens: f32) {
        let mut left = cached_tokens + SLACK_TOKENS;
        for (tokens, age) in prediction.list_parts() {
            // Engines remember whole blocks: parts of a block or two tell nothing. A block that may have been read beside
            // this request tells nothing, either.
            if tokens > 2.0 * SLACK_TOKENS && age >= prediction.queued_tokens {
                self.kept.learn_share(age, left / tokens);
            }
            left -= tokens;
        }
    }

    /// Learns from the tokens that the member did remember.
    pub fn learn_result(&self, prediction: &Prediction, cached_tokens: f32) -> PredictionResult {
        self.learn_shares(prediction, cached_tokens);
        let is_off = |by: f32, of: f32| by > SLACK_TOKENS + SLACK_SHARE * of;
        let predicted = prediction.tokens;
        let span = self.span_tokens();
        if is_off(predicted - cached_tokens, predicted) {
            return self.learn_loss(prediction, cached_tokens, span);
        }
        if cached_tokens > 0.0 {
            self.misses.store(0, Ordering::Relaxed);
        }
        let recorded = prediction.recorded_tokens;
        if !is_off(cached_tokens - predicted, predicted) {
            return PredictionResult::Right;
        }
        if is_off(recorded - predicted, predicted) {
            // If all that was recorded is there, the span is at least its age.
            let longer = match cached_tokens >= 0.9 * recorded {
                true => prediction.recorded_age.min(span.saturating_mul(2)),
                false => 0,
            };
            let least = span
                .saturating_add(span / UP_STEP)
                .saturating_add(STAMP_TOKENS);
            self.set_span(longer.max(least));
        }
        PredictionResult::Remembered
    }

    fn learn_loss(&self, prediction: &Prediction, cached: f32, span: u64) -> PredictionResult {
        if prediction.age < prediction.queued_tokens {
            // The request that brings the block may have waited beside this one.
            return PredictionResult::Forgotten;
        }
        let step = match prediction.age < span / FRESH_SHARE {
            true => span / FRESH_STEP,
            false => span / DOWN_STEP,
        };
        let least = prediction.age.min(span);
        self.set_span((span - step).max(least));
        if cached > 0.0 {
            self.misses.store(0, Ordering::Relaxed);
        }
        if cached > 0.0 || prediction.age > span / RESTART_SHARE {
            return PredictionResult::Forgotten;
        }
        let misses = self.misses.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        if !misses.is_multiple_of(MISSES_OF_A_RESTART) {
            return PredictionResult::Forgotten;
        }
        if misses > MISSES_OF_A_RESTART {
            // A member that has remembered nothing since it forgot all has no cache.
            self.set_span((span / 2).max(least));
        }
        self.forget_before_now();
        PredictionResult::Restarted
    }
}

impl Prediction {
    /// Expectation of the part that is believed to be remembered, alone.
    pub(crate) fn without_old_part(&self) -> Self {
        Prediction {
            recorded_tokens: self.tokens,
            recorded_age: self.age,
            ..*self
        }
    }

    /// Tokens and age of the part that is believed to be remembered, and of the part behind it.
    fn list_parts(&self) -> [(f32, u64); 2] {
        let old = self.recorded_tokens - self.tokens;
        [(self.tokens, self.age), (old, self.recorded_age)]
    }
}

impl MemoryMoment {
    /// Age of a block with this stamp, in tokens; 0 if another worker's clock has made it.
    pub fn age_tokens(&self, stamp: u32) -> u64 {
        u64::from(self.age(stamp)) * STAMP_TOKENS
    }

    /// True if the member is believed to hold a block with this stamp.
    #[inline]
    pub fn holds_block(&self, stamp: u32) -> bool {
        self.age(stamp) < self.horizon
    }

    /// True if the member may hold a block with this stamp: it has not forgotten everything since then.
    #[inline]
    pub fn may_hold_block(&self, stamp: u32) -> bool {
        self.age(stamp) < self.limit
    }

    /// Age of a block in units of 1/1024 of the age at which it is forgotten.
    pub(crate) fn relative_age(&self, stamp: u32) -> u64 {
        u64::from(self.age(stamp)) * 1024 / u64::from(self.horizon.max(1))
    }

    #[inline]
    fn age(&self, stamp: u32) -> u32 {
        let age = self.now.wrapping_sub(stamp);
        // Another worker has advanced the clock meanwhile.
        if age > u32::MAX >> 1 { 0 } else { age }
    }
}

fn to_stamp(clock: u64) -> u32 {
    (clock / STAMP_TOKENS) as u32
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Prediction of this many tokens, all of the same age.
    fn predict(tokens: f32, age: u64) -> Prediction {
        Prediction {
            tokens,
            recorded_tokens: tokens,
            age,
            recorded_age: age,
            queued_tokens: 0,
        }
    }

    #[test]
    fn blocks_are_held_until_the_span_is_over() {
        let memory = MemberMemory::default();
        memory.set_span(10_000);
        let stamp = memory.advance_clock(1000);
        assert!(memory.read_moment().holds_block(stamp));
        memory.advance_clock(9_900);
        assert!(memory.read_moment().holds_block(stamp));
        memory.advance_clock(200);
        let moment = memory.read_moment();
        assert!(!moment.holds_block(stamp) && moment.may_hold_block(stamp));
        memory.set_span(100_000);
        assert!(memory.read_moment().holds_block(stamp));
        memory.forget_all();
        assert!(!memory.read_moment().holds_block(stamp));
        let newer = memory.advance_clock(100);
        let moment = memory.read_moment();
        assert!(
            moment.holds_block(newer)
                && !moment.holds_block(stamp)
                && !moment.may_hold_block(stamp)
        );
    }

    #[test]
    fn the_span_follows_what_is_remembered() {
        let memory = MemberMemory::default();
        // The member remembers 50,000 tokens: what is older is lost.
        let mut rng = fastrand::Rng::with_seed(1);
        let learn = |rng: &mut fastrand::Rng, truth: u64| {
            for _ in 0..300 {
                let age = rng.u64(..2 * truth);
                let cached = if age < truth { 4000.0 } else { 100.0 };
                let predicted = if age < memory.span_tokens() {
                    4000.0
                } else {
                    0.0
                };
                let prediction = Prediction {
                    tokens: predicted,
                    recorded_tokens: 4000.0,
                    age,
                    recorded_age: age,
                    queued_tokens: 0,
                };
                memory.learn_result(&prediction, cached);
            }
            memory.span_tokens() as f64 / truth as f64
        };
        let ratio = learn(&mut rng, 50_000);
        assert!((0.8..1.25).contains(&ratio), "{ratio}");
        let ratio = learn(&mut rng, 2_000_000);
        assert!((0.8..1.25).contains(&ratio), "{ratio}");
    }

    #[test]
    fn three_misses_are_a_restart() {
        use PredictionResult::{Forgotten, Restarted, Right};
        let memory = MemberMemory::default();
        let stamp = memory.advance_clock(5000);
        let miss = predict(4000.0, 1000);
        assert_eq!(memory.learn_result(&miss, 0.0), Forgotten);
        assert_eq!(memory.learn_result(&miss, 3900.0), Right);
        let results = [(); 3].map(|()| memory.learn_result(&miss, 0.0));
        assert_eq!(results, [Forgotten, Forgotten, Restarted]);
        assert!(!memory.read_moment().may_hold_block(stamp));
        // One restart hardly changes the span.
        assert!(memory.span_tokens() > FIRST_SPAN * 9 / 10);
    }

    #[test]
    fn blocks_that_may_not_have_been_read_yet_and_old_ones_tell_of_no_restart() {
        let memory = MemberMemory::default();
        let stamp = memory.advance_clock(5000);
        let early = Prediction {
            queued_tokens: 1001,
            ..predict(4000.0, 1000)
        };
        for _ in 0..10 {
            memory.learn_result(&early, 0.0);
        }
        assert_eq!(memory.span_tokens(), FIRST_SPAN);
        let old = predict(4000.0, 150_000);
        for _ in 0..60 {
            memory.learn_result(&old, 0.0);
        }
        assert_eq!(memory.span_tokens(), 150_000);
        assert!(memory.read_moment().may_hold_block(stamp));
    }

    #[test]
    fn a_member_without_a_cache_is_found_out_and_one_that_gets_a_cache_too() {
        let memory = MemberMemory::default();
        let mut predicted = 0;
        for _ in 0..200 {
            let stamp = memory.advance_clock(1000);
            memory.advance_clock(1000);
            let moment = memory.read_moment();
            let prediction = match moment.holds_block(stamp) {
                true => predict(900.0, 1000),
                false => Prediction::default(),
            };
            predicted += u32::from(moment.holds_block(stamp));
            memory.learn_result(&prediction, 0.0);
        }
        assert!(memory.span_tokens() < 2000, "{}", memory.span_tokens());
        assert!(predicted < 60, "{predicted}");
        for _ in 0..20 {
            let prediction = Prediction {
                recorded_tokens: 4000.0,
                recorded_age: 30_000,
                ..Prediction::default()
            };
            memory.learn_result(&prediction, 4000.0);
        }
        assert!(memory.span_tokens() >= 30_000, "{}", memory.span_tokens());
    }

    #[test]
    fn tokens_beyond_the_span_are_expected_by_what_was_found() {
        let memory = MemberMemory::default();
        memory.set_span(10_000);
        let prediction = Prediction {
            tokens: 1000.0,
            recorded_tokens: 5000.0,
            age: 2000,
            recorded_age: 65_536,
            queued_tokens: 0,
        };
        assert_eq!(memory.expect_tokens(&prediction), 1000.0);
        // The older part is there each second time.
        for turn in 0..40 {
            let cached = if turn % 2 == 0 { 5000.0 } else { 1000.0 };
            memory.learn_result(&prediction, cached);
        }
        memory.set_span(10_000);
        let expected = memory.expect_tokens(&prediction);
        assert!((2700.0..3200.0).contains(&expected), "{expected}");
        // A prompt that may wait beside this one says nothing.
        let early = Prediction {
            queued_tokens: 100_000,
            ..prediction
        };
        for _ in 0..40 {
            memory.learn_result(&early, 0.0);
        }
        assert_eq!(memory.expect_tokens(&prediction), expected);
        memory.forget_span();
        assert_eq!(memory.expect_tokens(&prediction), 1000.0);
    }

    #[test]
    fn stamps_of_other_workers_may_be_ahead() {
        let memory = MemberMemory::default();
        memory.advance_clock(1000);
        let moment = memory.read_moment();
        let ahead = memory.advance_clock(1000);
        assert!(moment.holds_block(ahead));
        assert_eq!(moment.age_tokens(ahead), 0);
    }

    proptest! {
        #[test]
        fn the_span_stays_within_its_bounds(
            results in prop::collection::vec((any::<f32>(), any::<f32>(), any::<u64>(), any::<f32>(), any::<u64>()), 0..50),
        ) {
            let memory = MemberMemory::default();
            for (tokens, recorded_tokens, age, cached, advance) in results {
                let prediction = Prediction { tokens, recorded_tokens, age, recorded_age: age, queued_tokens: age / 2 };
                memory.learn_result(&prediction, cached);
                memory.advance_clock(advance);
                prop_assert!(memory.span_tokens() <= MAX_SPAN);
                let moment = memory.read_moment();
                prop_assert!(moment.horizon <= moment.limit);
            }
        }
    }
}
