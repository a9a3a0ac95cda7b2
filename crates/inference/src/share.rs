//! Tokens of a request in the share of its key.
//!
//! Tokens that the members remember cost hardly anything, so they do not count: a key with long prompts that are cached
//! gets as much of the engines' time as a key with short ones. The prediction is the one of the choice. Answers correct
//! it for the requests that follow, as they correct the spans of the members' [memories](crate::memory).

use crate::cost::unread_tokens;
use crate::group::RequestPlan;

impl RequestPlan<'_> {
    /// Tokens that a request takes from the share of its key: those of the prompt that must be read at the member which
    /// remembers most, and those of the answer. At least 1.
    pub fn share_tokens(&self) -> u32 {
        let work = self.request_work();
        let holders = work.matches.as_slice().iter();
        let known = holders.map(|holder| holder.blocks as usize).max();
        let known = known.map_or(0.0, |blocks| self.tokens_before(blocks));
        // Floats become the nearest numbers that there are.
        ((unread_tokens(work.prompt_tokens, known) + work.output_tokens) as u32).max(1)
    }
}

#[cfg(test)]
mod tests {
    use crate::chain::{ChainBuilder, HashKey};
    use crate::group::{EngineGroup, GroupSettings, RequestFacts};
    use crate::scanner::Scanner;

    #[test]
    fn tokens_that_a_member_remembers_do_not_count() {
        let group = EngineGroup::new(&GroupSettings {
            members: 2,
            index_bytes: 1 << 16,
            decay_seconds: 10.0,
        });
        let mut builder = ChainBuilder::new(HashKey::new([1, 2, 3]));
        let body = format!(r#"{{"model":"m","prompt":"{}"}}"#, "a".repeat(40_000));
        let mut scanner = Scanner::new();
        scanner.feed_bytes(body.as_bytes(), &mut builder);
        let model = builder.model_hash();
        let facts = RequestFacts {
            chain: builder.link_blocks(),
            model,
            max_tokens: Some(10),
            is_stream: true,
            random: 5,
        };
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
