//! Chain of hashes of a prompt: one hash for each block of 512 bytes, which depends on all blocks before it.
//!
//! ```text
//! h(0) = H(key, model, salt)        h(k) = H(h(k-1), H(block k))
//! ```
//!
//! Two prompts have the same `h(k)` if their first *k* blocks, their model and their salt are the same. Blocks are hashed
//! as their bytes pass, and linked at the end: so the model may stand behind the prompt in the body, and Anthropic's
//! `system` behind `messages`, although the engine reads it before them. In the chain, tools come first, then the system
//! prompt, then the messages. The last block of tools and system prompt may be short; the short rest of the messages is
//! in no block, because the next turn of the conversation continues it.
//!
//! A picture, a sound or a file counts as a text of [`MOST_MEDIA_BYTES`] bytes at most, whatever its length: its first
//! bytes, and a hash of the others.
//!
//! The hash is foldhash with a secret key: it hashes several bytes per clock cycle, where SipHash hashes about one, and
//! is kept by the maintainers of the standard library's hash map. It is not made to withstand somebody who can see
//! hashes; nobody sees these. A collision makes the balancer guess wrongly what a member remembers, which costs time and
//! is corrected by the member's answer.

use std::hash::Hasher as _;

use foldhash::SharedSeed;
use foldhash::quality::FoldHasher;

use crate::media::MOST_MEDIA_BYTES;
use crate::scanner::{Part, PartSink};

/// Bytes of a block: about 128 tokens.
pub const BLOCK_BYTES: usize = 512;

/// Most blocks of a chain: a prompt of 1 MiB.
pub const MAX_BLOCKS: usize = 2048;

/// Secret key of the hashes. All balancers of a fleet need the same key, to make the same choices for cold prompts.
///
/// A client who knows the key can make prompts whose blocks look like those of others: members are then expected to
/// remember what they have not read, which costs time, and is corrected by their answers. So the key is random, or
/// derived from a secret, and never from what everybody knows.
#[derive(Clone, Debug)]
pub struct HashKey {
    shared: SharedSeed,
    block_seed: u64,
    link_seed: u64,
}

impl HashKey {
    /// Makes a key of random numbers.
    pub fn new(secret: [u64; 3]) -> Self {
        let [shared, block_seed, link_seed] = secret;
        HashKey {
            shared: SharedSeed::from_u64(shared),
            block_seed,
            link_seed,
        }
    }

    fn hash_block(&self, block: &[u8]) -> u64 {
        let mut hasher = FoldHasher::with_seed(self.block_seed, &self.shared);
        hasher.write(block);
        hasher.finish()
    }

    /// Hash of two hashes, whose order matters.
    fn link(&self, before: u64, next: u64) -> u64 {
        let mut hasher = FoldHasher::with_seed(self.link_seed, &self.shared);
        hasher.write_u128(u128::from(before) | (u128::from(next) << 64));
        hasher.finish()
    }
}

/// Hashes of the blocks of a part.
#[derive(Clone, Debug, Default)]
struct PartHashes {
    blocks: Vec<u64>,
    /// Bytes in these blocks.
    hashed_bytes: u64,
    /// Bytes of the part.
    total_bytes: u64,
}

impl PartHashes {
    fn clear(&mut self) {
        self.blocks.clear();
        self.hashed_bytes = 0;
        self.total_bytes = 0;
    }

    fn push(&mut self, block: &[u8], key: &HashKey) {
        if self.blocks.len() < MAX_BLOCKS {
            self.blocks.push(key.hash_block(block));
            self.hashed_bytes += block.len() as u64;
        }
    }
}

/// Builder of chains: the receiver of what the [scanner](crate::scanner) finds.
///
/// Keeps 8 bytes for each block, and at most [`MAX_BLOCKS`] of each part. A builder that is [reset](ChainBuilder::reset)
/// and used again allocates only for prompts that are longer than all before.
#[derive(Clone, Debug)]
pub struct ChainBuilder {
    key: HashKey,
    /// Hashes of the parts, in the order of [`Part`].
    parts: [PartHashes; 5],
    /// Block of the current part that is not full yet.
    open: OpenBlock,
    media: OpenMedia,
    /// Bytes of media that do not count.
    uncounted_bytes: u64,
    links: Vec<u64>,
}

/// Block that is not full yet.
#[derive(Clone, Debug)]
struct OpenBlock {
    bytes: [u8; BLOCK_BYTES],
    filled: usize,
}

impl OpenBlock {
    const EMPTY: Self = OpenBlock {
        bytes: [0; BLOCK_BYTES],
        filled: 0,
    };

    /// Takes bytes, and gives `take` each block that is full.
    fn add_bytes(&mut self, bytes: &[u8], mut take: impl FnMut(&[u8])) {
        let room = BLOCK_BYTES - self.filled.min(BLOCK_BYTES);
        let mut rest = bytes;
        if self.filled > 0 {
            let (head, tail) = rest.split_at(rest.len().min(room));
            self.append(head);
            rest = tail;
            if self.filled == BLOCK_BYTES {
                take(&self.bytes);
                self.filled = 0;
            }
        }
        let blocks = rest.chunks_exact(BLOCK_BYTES);
        let tail = blocks.remainder();
        blocks.for_each(take);
        self.append(tail);
    }

    fn append(&mut self, bytes: &[u8]) {
        let end = self.filled.saturating_add(bytes.len());
        if let Some(place) = self.bytes.get_mut(self.filled..end) {
            place.copy_from_slice(bytes);
            self.filled = end;
        }
    }

    /// Bytes that are in no full block.
    fn rest(&self) -> &[u8] {
        self.bytes.get(..self.filled).unwrap_or_default()
    }
}

/// Picture, sound or file that is read now.
#[derive(Clone, Debug)]
struct OpenMedia {
    /// Bytes of it so far.
    length: u64,
    /// Hash of the full blocks among the bytes that do not count.
    hash: u64,
    open: OpenBlock,
}

impl OpenMedia {
    const EMPTY: Self = OpenMedia {
        length: 0,
        hash: 0,
        open: OpenBlock::EMPTY,
    };
}

impl ChainBuilder {
    /// Creates a builder.
    pub fn new(key: HashKey) -> Self {
        ChainBuilder {
            key,
            parts: Default::default(),
            open: OpenBlock::EMPTY,
            media: OpenMedia::EMPTY,
            uncounted_bytes: 0,
            links: Vec::new(),
        }
    }

    /// Forgets the request, and keeps the memory for the next one.
    pub fn reset(&mut self) {
        self.parts.iter_mut().for_each(PartHashes::clear);
        self.open.filled = 0;
        self.media.length = 0;
        self.media.hash = 0;
        self.media.open.filled = 0;
        self.uncounted_bytes = 0;
        self.links.clear();
    }

    /// Bytes of the prompt so far, with tools and system prompt.
    pub fn prompt_bytes(&self) -> u64 {
        let [tools, system, prompt, ..] = &self.parts;
        tools.total_bytes + system.total_bytes + prompt.total_bytes
    }

    /// Bytes of pictures, sounds and files so far that do not count.
    pub fn uncounted_bytes(&self) -> u64 {
        self.uncounted_bytes
    }

    /// Hash of the model's name; 0 if the request names none.
    pub fn model_hash(&self) -> u64 {
        let [_, _, _, model, _] = &self.parts;
        match model.total_bytes {
            0 => 0,
            bytes => self.link_all(bytes, &model.blocks).max(1),
        }
    }

    /// Replaces the name of the model, once the body was read.
    pub fn replace_model(&mut self, name: &[u8]) {
        self.begin_part(Part::Model);
        self.add_bytes(Part::Model, name);
        self.end_part(Part::Model);
    }

    /// Links the blocks that have passed.
    pub fn link_blocks(&mut self) -> Chain<'_> {
        let [tools, system, prompt, _, salt] = &self.parts;
        let salt = self.link_all(salt.total_bytes, &salt.blocks);
        let mut last = self.key.link(self.model_hash(), salt);
        self.links.clear();
        let blocks = tools.blocks.iter().chain(&system.blocks);
        for block in blocks.chain(&prompt.blocks).take(MAX_BLOCKS) {
            last = self.key.link(last, *block);
            self.links.push(last);
        }
        let measure = |part: &PartHashes| (part.blocks.len(), part.hashed_bytes);
        Chain {
            links: &self.links,
            parts: [measure(tools), measure(system)],
            prompt_bytes: self.prompt_bytes(),
            is_measured: true,
        }
    }

    fn link_all(&self, first: u64, blocks: &[u64]) -> u64 {
        let link = |last, block: &u64| self.key.link(last, *block);
        blocks.iter().fold(first, link)
    }
}

impl PartSink for ChainBuilder {
    fn begin_part(&mut self, part: Part) {
        if let Some(hashes) = self.parts.get_mut(part as usize) {
            hashes.clear();
        }
        self.open.filled = 0;
    }

    fn add_bytes(&mut self, part: Part, bytes: &[u8]) {
        let Some(hashes) = self.parts.get_mut(part as usize) else {
            return;
        };
        hashes.total_bytes += bytes.len() as u64;
        let key = &self.key;
        self.open.add_bytes(bytes, |block| hashes.push(block, key));
    }

    fn add_media(&mut self, part: Part, bytes: &[u8]) {
        let left = MOST_MEDIA_BYTES.saturating_sub(self.media.length);
        let counted = usize::try_from(left).unwrap_or(usize::MAX);
        let (counted, others) = bytes.split_at(bytes.len().min(counted));
        self.media.length = self.media.length.saturating_add(bytes.len() as u64);
        self.uncounted_bytes = self.uncounted_bytes.saturating_add(others.len() as u64);
        self.add_bytes(part, counted);
        let (key, hash) = (&self.key, &mut self.media.hash);
        let link = |block: &[u8]| *hash = key.link(*hash, key.hash_block(block));
        self.media.open.add_bytes(others, link);
    }

    fn end_media(&mut self, part: Part) {
        if self.media.length > MOST_MEDIA_BYTES {
            let last = self.key.hash_block(self.media.open.rest());
            let hash = self.key.link(self.media.hash, last);
            self.add_bytes(part, &hash.to_le_bytes());
        }
        self.media.length = 0;
        self.media.hash = 0;
        self.media.open.filled = 0;
    }

    fn end_part(&mut self, part: Part) {
        let hashes = self.parts.get_mut(part as usize);
        if let Some(hashes) = hashes
            && part != Part::Prompt
            && self.open.filled > 0
        {
            hashes.push(self.open.rest(), &self.key);
        }
        self.open.filled = 0;
    }
}

/// Chain of a prompt's hashes.
#[derive(Clone, Copy, Debug)]
pub struct Chain<'a> {
    links: &'a [u64],
    /// Blocks of tools and system prompt, and the bytes in them.
    parts: [(usize, u64); 2],
    prompt_bytes: u64,
    /// True if `prompt_bytes` is not a guess.
    is_measured: bool,
}

impl<'a> Chain<'a> {
    /// Chain of a request whose prompt is not known; the prompt counts as this number of bytes.
    pub const fn unknown(prompt_bytes: u64) -> Self {
        Chain {
            links: &[],
            parts: [(0, 0); 2],
            prompt_bytes,
            is_measured: false,
        }
    }

    /// Chain of hashes that are known already, of blocks of [`BLOCK_BYTES`]: for simulations.
    pub const fn from_links(links: &'a [u64], prompt_bytes: u64) -> Self {
        Chain {
            links,
            parts: [(0, 0); 2],
            prompt_bytes,
            is_measured: true,
        }
    }

    /// Has the prompt count as this number of bytes. `is_measured` is false if the number is a guess, from which
    /// nothing is learnt.
    #[must_use]
    pub const fn counted_as(self, prompt_bytes: u64, is_measured: bool) -> Self {
        Chain {
            prompt_bytes,
            is_measured,
            ..self
        }
    }

    /// The hashes h(1), h(2) and so on.
    pub fn block_links(&self) -> &'a [u64] {
        self.links
    }

    /// Number of blocks.
    pub fn len(&self) -> usize {
        self.links.len()
    }

    /// True if the prompt has no full block, or is not known.
    pub fn is_empty(&self) -> bool {
        self.links.is_empty()
    }

    /// Bytes of the whole prompt, also of those in no block.
    pub fn prompt_bytes(&self) -> u64 {
        self.prompt_bytes
    }

    /// Bytes of the whole prompt; 0 if the number is a guess.
    pub fn measured_bytes(&self) -> u64 {
        match self.is_measured {
            true => self.prompt_bytes,
            false => 0,
        }
    }

    /// Bytes of the prompt in the first `blocks` blocks.
    pub fn bytes_before(&self, blocks: usize) -> u64 {
        let (mut left, mut bytes) = (blocks.min(self.links.len()), 0);
        for (count, part_bytes) in self.parts {
            if left >= count {
                left -= count;
                bytes += part_bytes;
            } else {
                return bytes + (left * BLOCK_BYTES) as u64;
            }
        }
        bytes + (left * BLOCK_BYTES) as u64
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::scanner::Scanner;

    fn key() -> HashKey {
        HashKey::new([1, 2, 3])
    }

    fn scan(body: &str) -> ChainBuilder {
        let (mut scanner, mut builder) = (Scanner::new(), ChainBuilder::new(key()));
        scanner.feed_bytes(body.as_bytes(), &mut builder);
        builder
    }

    fn links(body: &str) -> Vec<u64> {
        scan(body).link_blocks().block_links().to_vec()
    }

    fn equal_links(one: &[u64], other: &[u64]) -> usize {
        let both = one.iter().zip(other);
        both.take_while(|(one, other)| one == other).count()
    }

    fn text(seed: u64, length: usize) -> String {
        let mut rng = fastrand::Rng::with_seed(seed);
        (0..length).map(|_| rng.alphanumeric()).collect()
    }

    #[test]
    fn turns_of_a_conversation_share_all_but_the_end() {
        let first = text(1, 3000);
        let body = |messages: &str| format!("{{\"messages\":[\"{messages}\"],\"model\":\"m\"}}");
        let one = links(&body(&first));
        let two = links(&body(&format!("{first}\",\"{}", text(2, 2000))));
        assert_eq!((one.len(), two.len()), (5, 9));
        assert_eq!(equal_links(&one, &two), 5);
        // A change at the beginning changes everything.
        assert_eq!(equal_links(&one, &links(&body(&text(3, 3000)))), 0);
    }

    #[test]
    fn models_and_salts_are_apart_wherever_they_stand() {
        let prompt = text(1, 1100);
        let bodies = [
            format!(r#"{{"prompt":"{prompt}"}}"#),
            format!(r#"{{"model":"a","prompt":"{prompt}"}}"#),
            format!(r#"{{"model":"b","prompt":"{prompt}"}}"#),
            format!(r#"{{"model":"a","cache_salt":"x","prompt":"{prompt}"}}"#),
            format!(r#"{{"model":"a","cache_salt":"","prompt":"{prompt}"}}"#),
        ];
        let chains: Vec<_> = bodies.iter().map(|body| links(body)).collect();
        for (index, one) in chains[..4].iter().enumerate() {
            for other in &chains[index + 1..4] {
                assert_ne!(one[0], other[0], "{index}");
            }
        }
        assert_eq!(chains[1], chains[4]);
        let behind = format!(r#"{{"prompt":"{prompt}","cache_salt":"x","model":"a"}}"#);
        assert_eq!(links(&behind), chains[3]);
        assert_eq!(scan(&bodies[0]).model_hash(), 0);
        assert_ne!(scan(&bodies[1]).model_hash(), scan(&bodies[2]).model_hash());
    }

    #[test]
    fn the_system_prompt_comes_first_wherever_it_stands() {
        let (system, messages) = (text(1, 1200), text(2, 1200));
        let before = format!(r#"{{"system":"{system}","messages":["{messages}"]}}"#);
        let behind = format!(r#"{{"messages":["{messages}"],"system":"{system}"}}"#);
        assert_eq!(links(&before), links(&behind));
        let other = format!(r#"{{"messages":["{}"],"system":"{system}"}}"#, text(3, 700));
        assert_eq!(equal_links(&links(&before), &links(&other)), 3);
        let mut builder = scan(&behind);
        let chain = builder.link_blocks();
        assert_eq!(chain.prompt_bytes(), 1202 + 1204);
        let bytes: Vec<_> = (0..7).map(|blocks| chain.bytes_before(blocks)).collect();
        assert_eq!(bytes, [0, 512, 1024, 1202, 1714, 2226, 2226]);
    }

    /// Body with two pictures and a text behind each.
    fn with_pictures(pictures: [&str; 2]) -> String {
        let part = |number: usize, picture: &str| {
            let text = text(number as u64, 1000);
            format!(r#"{{"image_url":{{"url":"data:{picture}"}}}},{{"text":"{text}"}}"#)
        };
        let [one, two] = pictures;
        let parts = [part(1, one), part(2, two)].join(",");
        format!(r#"{{"messages":[{{"content":[{parts}]}}],"model":"m"}}"#)
    }

    #[test]
    fn pictures_count_little_and_all_their_bytes_matter() {
        let (small, large) = (text(7, 3000), text(8, 700_000));
        let mut builder = scan(&with_pictures([&small, &large]));
        let body = with_pictures([&small, ""]).len() as u64;
        let prompt = body - r#"{"messages":,"model":"m"}"#.len() as u64;
        // The small one counts in full, and the large one with a hash of the rest.
        let counted = prompt + MOST_MEDIA_BYTES - 5 + 8;
        assert_eq!(builder.prompt_bytes(), counted);
        assert_eq!(builder.uncounted_bytes(), 700_005 - MOST_MEDIA_BYTES);
        let chain = builder.link_blocks();
        assert_eq!(chain.len() as u64, counted / BLOCK_BYTES as u64);
        let of_large = |large: &str| links(&with_pictures([large, &small]));
        let (one, again) = (of_large(&large), of_large(&large));
        assert_eq!(one, again);
        // A byte of the part that does not count changes what follows.
        for place in [4096, 100_000, 699_999] {
            let mut other = large.clone().into_bytes();
            other[place] ^= 1;
            let other = String::from_utf8(other).unwrap();
            let equal = equal_links(&one, &of_large(&other));
            assert!((7..=8).contains(&equal), "{place}: {equal}");
        }
        builder.reset();
        assert_eq!(builder.uncounted_bytes(), 0);
    }

    #[test]
    fn chains_are_bounded() {
        let prompt = text(1, (MAX_BLOCKS + 3) * BLOCK_BYTES);
        let mut builder = scan(&format!(r#"{{"tools":["{prompt}"],"prompt":"{prompt}"}}"#));
        assert_eq!(builder.prompt_bytes(), 2 * prompt.len() as u64 + 6);
        let chain = builder.link_blocks();
        assert_eq!(chain.len(), MAX_BLOCKS);
        assert_eq!(
            chain.bytes_before(usize::MAX),
            (MAX_BLOCKS * BLOCK_BYTES) as u64
        );
        let capacity = builder.parts[Part::Prompt as usize].blocks.capacity();
        builder.reset();
        assert_eq!(builder.prompt_bytes(), 0);
        assert!(builder.link_blocks().is_empty());
        assert_eq!(
            builder.parts[Part::Prompt as usize].blocks.capacity(),
            capacity
        );
    }

    /// Balancers of a fleet have to agree, and a new process takes the index of the old one. If this test fails after
    /// an update of foldhash, change [`VERSION`](crate::VERSION).
    #[test]
    fn hashes_are_the_same_on_all_machines() {
        let body = format!(r#"{{"model":"m","prompt":"{}"}}"#, "a".repeat(600));
        assert_eq!(links(&body), [1_269_664_718_189_891_896]);
    }

    proptest! {
        #[test]
        fn pieces_do_not_matter(
            parts in prop::collection::vec((0usize..6, 0usize..1600), 0..6),
            cuts: Vec<prop::sample::Index>,
        ) {
            let keys = ["tools", "system", "messages", "model", "cache_salt"];
            let fields: Vec<_> = parts
                .iter()
                .map(|(key, length)| {
                    let text = text(*length as u64, *length);
                    match key {
                        5 => format!(r#""input":[{{"content":[{{"image_url":"{text}{text}{text}{text}"}}]}}]"#),
                        key => format!("\"{}\":\"{text}\"", keys[*key]),
                    }
                })
                .collect();
            let body = format!("{{{}}}", fields.join(","));
            let mut scanner = Scanner::new();
            let mut builder = ChainBuilder::new(key());
            let mut ends: Vec<_> = cuts.iter().map(|cut| cut.index(body.len() + 1)).collect();
            ends.push(body.len());
            ends.sort_unstable();
            let mut from = 0;
            for end in ends {
                scanner.feed_bytes(&body.as_bytes()[from..end], &mut builder);
                from = end;
            }
            let mut whole = scan(&body);
            prop_assert_eq!(builder.prompt_bytes(), whole.prompt_bytes());
            prop_assert_eq!(builder.uncounted_bytes(), whole.uncounted_bytes());
            let (chain, whole) = (builder.link_blocks(), whole.link_blocks());
            prop_assert_eq!(chain.block_links(), whole.block_links());
            for blocks in 0..chain.len() {
                prop_assert!(chain.bytes_before(blocks) < chain.bytes_before(blocks + 1));
                prop_assert_eq!(chain.bytes_before(blocks), whole.bytes_before(blocks));
            }
            prop_assert!(chain.bytes_before(chain.len()) <= chain.prompt_bytes());
        }
    }
}
