//! Tokens of a request in the share of its key.
//!
//! Tokens that the members remember cost hardly anything, so they do not count: a key with long prompts that are cached
//! gets as much of the engines' time as a key with short ones. At first the tokens are those of the prediction of the
//! choice. The answer corrects the number: a member may have read the beginning of the prompt, or have forgotten it,
//! while the request waited.

use crate::cost::unread_tokens;
use crate::group::{RequestPlan, SentRequest};
use crate::usage::Usage;

impl RequestPlan<'_> {
    /// Tokens that a request takes from the share of its key: those of the prompt that must be read at the member which
    /// remembers most, and those of the answer. At least 1.
    pub fn share_tokens(&self) -> u32 {
        let work = self.request_work();
        let holders = work.matches.as_slice().iter();
        let known = holders.map(|holder| holder.blocks as usize).max();
        let known = known.map_or(0.0, |blocks| self.tokens_before(blocks));
        count_tokens(work.prompt_tokens, known, work.output_tokens)
    }
}

impl SentRequest {
    /// Tokens that a request has taken from the share of its key, by the part of the prompt that the member has
    /// remembered; `None` if the answer does not say the part. At least 1.
    ///
    /// A wrong count does little: all other numbers are the balancer's own, and a member remembers at most the beginning
    /// that was sent to it before.
    pub fn share_tokens(&self, usage: &Usage) -> Option<u32> {
        let part = usage.cached_tokens? as f32 / usage.prompt_tokens.max(1) as f32;
        let sent_before = self.prediction.recorded_tokens;
        let known = (part * self.prompt_tokens).min(sent_before);
        Some(count_tokens(self.prompt_tokens, known, self.output_tokens))
    }
}

fn count_tokens(prompt: f32, known: f32, output: f32) -> u32 {
    // Floats become the nearest numbers that there are.
    ((unread_tokens(prompt, known) + output) as u32).max(1)
}

#[cfg(test)]
mod tests {
    use crate::chain::{ChainBuilder, HashKey};
    use crate::group::{EngineGroup, GroupSettings, RequestFacts};
    use crate::scanner::Scanner;
    use crate::usage::{MAX_TOKENS, Usage};

    fn make_group() -> EngineGroup {
        EngineGroup::new(&GroupSettings {
            members: 2,
            index_bytes: 1 << 16,
            decay_seconds: 10.0,
        })
    }

    /// Facts of a request with a prompt of 40,000 bytes.
    fn read_facts(builder: &mut ChainBuilder) -> RequestFacts<'_> {
        let body = format!(r#"{{"model":"m","prompt":"{}"}}"#, "a".repeat(40_000));
        let mut scanner = Scanner::new();
        scanner.feed_bytes(body.as_bytes(), builder);
        let model = builder.model_hash();
        RequestFacts {
            chain: builder.link_blocks(),
            model,
            max_tokens: Some(10),
            is_stream: true,
            random: 5,
        }
    }

    #[test]
    fn the_answer_counts_and_cannot_know_more_than_was_sent() {
        let group = make_group();
        let mut builder = ChainBuilder::new(HashKey::new([1, 2, 3]));
        let facts = read_facts(&mut builder);
        let plan = group.plan_request(facts);
        let whole = plan.share_tokens();
        let usage = |prompt_tokens, cached_tokens| Usage {
            prompt_tokens,
            cached_tokens,
            output_tokens: MAX_TOKENS,
        };
        // Nobody has sent the prompt to the member before, whatever the answer says.
        let first = group.begin_request(&plan, 1, 0).unwrap();
        assert_eq!(first.share_tokens(&usage(9_000, None)), None);
        for cached in [0, 4_500, 9_000] {
            assert_eq!(first.share_tokens(&usage(9_000, Some(cached))), Some(whole));
        }
        let again = group.begin_request(&plan, 1, 0).unwrap();
        // The number of tokens is the balancer's own, and the part is the engine's.
        for prompt in [2, 9_000, MAX_TOKENS] {
            let count = |cached| again.share_tokens(&usage(prompt, Some(cached))).unwrap();
            assert_eq!(count(0), whole);
            assert!(count(prompt / 2).abs_diff(whole / 2) < whole / 50);
            assert!(count(prompt) < whole / 20, "{}", count(prompt));
        }
        // Another member has not read the prompt.
        let elsewhere = group.begin_request(&plan, 0, 0).unwrap();
        assert_eq!(elsewhere.share_tokens(&usage(9, Some(9))), Some(whole));
    }

    #[test]
    fn tokens_that_a_member_remembers_do_not_count() {
        let group = make_group();
        let mut builder = ChainBuilder::new(HashKey::new([1, 2, 3]));
        let facts = read_facts(&mut builder);
        let new = group.plan_request(facts);
        let prompt = new.request_work().prompt_tokens as u32;
        assert!(new.share_tokens() >= prompt, "{}", new.share_tokens());
        let _sent = group.begin_request(&new, 1, 0).unwrap();
        let known = group.plan_request(facts).share_tokens();
        assert!(known < new.share_tokens() - prompt * 9 / 10, "{known}");
        group.forget_memory(1);
        let forgotten = group.plan_request(facts).share_tokens();
        assert_eq!(forgotten, new.share_tokens());
    }
}
