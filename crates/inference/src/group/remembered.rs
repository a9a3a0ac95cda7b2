//! Tokens that a member has remembered: said by the engine, or guessed from the time of the first token.

use super::{EngineGroup, SentRequest};
use crate::memory::{MemberMemory, Prediction, PredictionResult};
use crate::usage::Usage;

/// Least time that a member must save, in seconds, to judge by the time of the first token whether it did.
const GUESS_SECONDS: f32 = 0.1;

impl EngineGroup {
    /// Learns from the number of tokens that the member remembered.
    pub(super) fn learn_cached(
        &self,
        request: &SentRequest,
        memory: &MemberMemory,
        usage: &Usage,
        cached: f32,
        now_nanos: u64,
    ) -> PredictionResult {
        if !request.is_cold() {
            let read = (usage.prompt_tokens as f32 - cached).max(1.0);
            let tokens = request.queue.queued_before() + read;
            self.learn_first_token(request, tokens, now_nanos);
        }
        // The prediction was made with a guess of how many tokens the prompt has.
        let scale = usage.prompt_tokens as f32 / request.prompt_tokens;
        let prediction = Prediction {
            tokens: request.prediction.tokens * scale,
            recorded_tokens: request.prediction.recorded_tokens * scale,
            ..request.prediction
        };
        memory.learn_result(&prediction, cached)
    }

    /// Judges a prediction by the time of the first token, where the engine does not say what it remembered. `None` if
    /// the time tells nothing.
    pub(super) fn guess_cached(
        &self,
        request: &SentRequest,
        memory: &MemberMemory,
        now_nanos: u64,
    ) -> Option<PredictionResult> {
        let seconds = request.queue.first_token_seconds()?;
        let speeds = self.speeds.get(request.member)?.get();
        let saved = speeds.read * request.prediction.tokens;
        let expected = speeds.delay + speeds.read * request.queue.tokens_to_first();
        // The time saved has to stand out from the noise.
        if request.is_cold() || saved < GUESS_SECONDS || saved < expected {
            return None;
        }
        if seconds > expected + saved / 2.0 {
            return Some(memory.learn_result(&request.prediction, 0.0));
        }
        self.learn_first_token(request, request.queue.tokens_to_first(), now_nanos);
        // Of older parts, the time says nothing.
        let young = request.prediction.without_old_part();
        Some(memory.learn_result(&young, young.tokens))
    }
}
