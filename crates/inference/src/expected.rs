//! Tokens of a prompt that each member is expected to remember.

use crate::index::{Index, MAX_MATCHES, Matches};
use crate::memory::MemberMemory;

/// Members that have read a part of a prompt, with the tokens that they are expected to remember. Other members remember
/// nothing.
#[derive(Debug, Default)]
pub(crate) struct ExpectedTokens {
    list: [(u16, f32); MAX_MATCHES],
    count: usize,
}

impl ExpectedTokens {
    /// Works out the tokens of each member. `matches` are the members that are believed to hold something, and
    /// `tokens_before` gives the tokens of a number of blocks.
    pub(crate) fn of_members(
        index: &Index,
        links: &[u64],
        matches: &Matches,
        members: &[MemberMemory],
        tokens_before: impl Fn(usize) -> f32,
    ) -> Self {
        let mut expected = ExpectedTokens::default();
        index.predict_members(
            links,
            matches,
            members,
            tokens_before,
            |member, memory, prediction| {
                if let Some(place) = expected.list.get_mut(expected.count) {
                    *place = (member, memory.expect_tokens(prediction));
                    expected.count += 1;
                }
            },
        );
        expected
    }

    /// Tokens that a member is expected to remember.
    #[inline]
    pub(crate) fn tokens_of(&self, member: usize) -> f32 {
        let mut known = self.list.iter().take(self.count);
        let found = known.find(|(one, _)| usize::from(*one) == member);
        found.map_or(0.0, |(_, tokens)| *tokens)
    }
}
