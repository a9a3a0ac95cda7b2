//! Prompts that a balancer has sent to engines for language models, so that the others know which engine holds which prompt.
//!
//! A prompt is the hashes of its blocks, under the secret that the balancers of a fleet have in common. Nobody confirms a
//! datagram: what is lost is one prompt that another balancer does not know. A balancer that does not know the kind of
//! datagram refuses the datagram, and nothing else.

use evenkeel_core::key;
use evenkeel_wire::input::Input;

use crate::seal::MAX_BODY;

/// Bytes before the prompts of a datagram: the number of the group, and the mark of the hashes.
const HEAD_LEN: usize = 12;

/// Bytes of a prompt without its blocks: the number of the member, tokens, and the number of blocks.
const PROMPT_LEN: usize = 14;

/// Bytes of a block's hash.
const LINK_LEN: usize = 8;

/// Most tokens of a prompt that count: no engine reads as many.
const MAX_TOKENS: u32 = 1 << 22;

/// Most blocks of a datagram that is written.
const MAX_LINKS: usize = (MAX_BODY - HEAD_LEN - PROMPT_LEN) / LINK_LEN;

/// Prompt, or a part of one that is too long for a datagram.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToldPrompt {
    /// [Number](evenkeel_core::key) for the address of the member that has got the prompt.
    pub member: u64,
    /// Tokens of the prompt that the member has to read. The first part of a prompt has all of them.
    pub unread_tokens: u32,
    /// Hashes of the prompt's blocks.
    pub links: Vec<u64>,
}

/// Bodies of datagrams in the making.
#[derive(Debug)]
pub struct PromptBodies {
    group: u64,
    mark: u32,
    pub(crate) bodies: Vec<Vec<u8>>,
    /// Number of prompts.
    pub(crate) prompts: u64,
}

impl PromptBodies {
    /// Begins the bodies about a group. Balancers whose hashes are made in the same way have the same `mark`.
    pub fn new(group: &str, mark: u32) -> Self {
        PromptBodies {
            group: key::hash(group.as_bytes()),
            mark,
            bodies: Vec::new(),
            prompts: 0,
        }
    }

    /// Number of datagrams that the prompts take.
    pub fn count(&self) -> usize {
        self.bodies.len()
    }

    /// Adds a prompt. A prompt that is too long for a datagram is divided.
    pub fn add_prompt(&mut self, member: u64, unread_tokens: u32, links: &[u64]) {
        let mut tokens = unread_tokens;
        self.prompts += 1;
        for part in links.chunks(MAX_LINKS) {
            let len = PROMPT_LEN + part.len() * LINK_LEN;
            let has_room = |body: &&mut Vec<u8>| body.len() + len <= MAX_BODY;
            if self.bodies.last_mut().filter(has_room).is_none() {
                let mut body = self.group.to_be_bytes().to_vec();
                body.extend(self.mark.to_be_bytes());
                self.bodies.push(body);
            }
            let Some(body) = self.bodies.last_mut() else {
                return;
            };
            body.extend(member.to_be_bytes());
            body.extend(tokens.to_be_bytes());
            body.extend((part.len() as u16).to_be_bytes());
            body.extend(part.iter().flat_map(|link| link.to_be_bytes()));
            tokens = 0;
        }
    }
}

/// Decodes the body of a datagram: the number of the group, the mark of the hashes, and the prompts. `None` if a part is not
/// whole, or a prompt has no block.
pub fn decode_prompts(body: &[u8]) -> Option<(u64, u32, Vec<ToldPrompt>)> {
    let mut input = Input(body);
    let group = input.read_u64()?;
    let mark = input.read_u32()?;
    let mut prompts = Vec::new();
    while !input.0.is_empty() {
        let member = input.read_u64()?;
        let unread_tokens = input.read_u32()?.min(MAX_TOKENS);
        let count = usize::from(input.read_u16().filter(|count| *count > 0)?);
        let links = (0..count).map(|_| input.read_u64());
        prompts.push(ToldPrompt {
            member,
            unread_tokens,
            links: links.collect::<Option<_>>()?,
        });
    }
    Some((group, mark, prompts))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn prompts_are_read_as_they_are_written(
            prompts in proptest::collection::vec((any::<u64>(), 0..=MAX_TOKENS, 1..600usize), 0..9),
        ) {
            let mut bodies = PromptBodies::new("g", 7);
            for (member, tokens, count) in &prompts {
                let links: Vec<u64> = (0..*count as u64).map(|link| link ^ member).collect();
                bodies.add_prompt(*member, *tokens, &links);
            }
            let mut read = Vec::new();
            for body in &bodies.bodies {
                prop_assert!(body.len() <= MAX_BODY);
                let (group, mark, prompts) = decode_prompts(body).unwrap();
                prop_assert_eq!((group, mark), (key::hash(b"g"), 7));
                read.extend(prompts);
                // A datagram that is cut is refused as a whole.
                prop_assert_eq!(decode_prompts(&body[..body.len() - 1]), None);
            }
            let mut read = read.into_iter();
            for (member, tokens, count) in prompts {
                let mut links = Vec::new();
                let mut sum = 0;
                while links.len() < count {
                    let part = read.next().unwrap();
                    prop_assert_eq!(part.member, member);
                    sum += part.unread_tokens;
                    links.extend(part.links);
                }
                prop_assert_eq!(sum, tokens);
                let expected: Vec<u64> = (0..count as u64).map(|link| link ^ member).collect();
                prop_assert_eq!(links, expected);
            }
            prop_assert_eq!(read.next(), None);
        }

        #[test]
        fn no_body_panics(body in proptest::collection::vec(any::<u8>(), 0..100)) {
            let _ = decode_prompts(&body);
        }
    }
}
