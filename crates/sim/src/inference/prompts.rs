//! Workloads of prompts: traces in the format of Mooncake (FAST'25), prompts that share their beginnings, and agents that
//! take turns.
//!
//! The balancer reads bodies of JSON, from which it hashes blocks of text, as the product does. Equal blocks of tokens
//! are equal text.

use std::ops::Range;
use std::sync::Arc;

use evenkeel_inference::chain::{Chain, ChainBuilder, HashKey};
use evenkeel_inference::scanner::Scanner;
use serde_json::Value;

use crate::engine::draw_exponential;
use crate::work::Popularity;

/// Tokens of a block: those of Mooncake's traces.
pub const TOKENS_PER_BLOCK: usize = 512;

/// Bytes of a token.
const BYTES_PER_TOKEN: usize = 4;

/// Most tokens of a prompt.
pub const MAX_PROMPT: u32 = 1_000_000;

/// Key of the requests of a flood.
pub const FLOOD_KEY: u64 = u64::MAX;

/// Longest time between two requests, in nanoseconds: a day.
const LONGEST: f64 = 86_400e9;

/// Request for an engine.
#[derive(Clone, Debug)]
pub struct PromptRequest {
    /// Nanoseconds from the start to the request; for a later turn of an agent, from the end of the turn before.
    pub after: u64,
    /// Tokens of the prompt.
    pub input_tokens: u32,
    /// Tokens of the answer.
    pub output_tokens: u32,
    /// Next turn.
    pub next: Option<usize>,
    /// Key of the client, by which requests are counted together. All turns of a session have the same key.
    pub key: u64,
    blocks: Range<usize>,
    links: Range<usize>,
    prompt_bytes: u64,
}

/// Blocks of all prompts, as engines and balancers know them.
#[derive(Clone, Debug, Default)]
struct Texts {
    /// Hashes of full blocks of tokens, each of which depends on all before.
    blocks: Vec<u64>,
    /// Hashes of the balancer.
    links: Vec<u64>,
    model: u64,
}

/// Requests of a run.
#[derive(Clone, Debug)]
pub struct Prompts {
    requests: Vec<PromptRequest>,
    /// Requests that are no later turns, in the order of time.
    first_turns: Vec<usize>,
    texts: Arc<Texts>,
}

impl Prompts {
    /// All requests.
    pub fn requests(&self) -> &[PromptRequest] {
        &self.requests
    }

    /// Requests that are no later turns, in the order of time.
    pub fn first_turns(&self) -> &[usize] {
        &self.first_turns
    }

    /// Full blocks of a prompt.
    pub(super) fn blocks_of(&self, request: &PromptRequest) -> &[u64] {
        &self.texts.blocks[request.blocks.clone()]
    }

    /// Chain of a prompt, as the balancer hashes it.
    pub(super) fn chain_of(&self, request: &PromptRequest) -> Chain<'_> {
        Chain::from_links(
            &self.texts.links[request.links.clone()],
            request.prompt_bytes,
        )
    }

    /// Hash of the model's name.
    pub(super) fn model_hash(&self) -> u64 {
        self.texts.model
    }

    /// Gives each session one of this many keys, at random.
    fn draw_keys(&mut self, keys: u64, rng: &mut fastrand::Rng) {
        for first in &self.first_turns {
            let (key, mut turn) = (rng.u64(..keys.max(1)), Some(*first));
            while let Some(request) = turn.and_then(|turn| self.requests.get_mut(turn)) {
                request.key = key;
                turn = request.next;
            }
        }
    }

    /// Adds requests that come at the same time, and whose texts are others.
    fn add_prompts(&mut self, other: Prompts) {
        let texts = Arc::make_mut(&mut self.texts);
        let [block, link, request] = [texts.blocks.len(), texts.links.len(), self.requests.len()];
        texts.blocks.extend_from_slice(&other.texts.blocks);
        texts.links.extend_from_slice(&other.texts.links);
        let moved = other.requests.into_iter().map(|of| PromptRequest {
            next: of.next.map(|next| next + request),
            blocks: of.blocks.start + block..of.blocks.end + block,
            links: of.links.start + link..of.links.end + link,
            ..of
        });
        self.requests.extend(moved);
        let first_turns = other.first_turns.iter();
        self.first_turns
            .extend(first_turns.map(|turn| turn + request));
        self.sort_first_turns();
    }

    fn sort_first_turns(&mut self) {
        let requests = &self.requests;
        self.first_turns
            .sort_by_key(|index| (requests[*index].after, *index));
    }
}

/// Builder of a workload.
struct PromptsBuilder {
    requests: Vec<PromptRequest>,
    first_turns: Vec<usize>,
    texts: Texts,
    chains: ChainBuilder,
    body: Vec<u8>,
}

impl PromptsBuilder {
    fn new() -> Self {
        PromptsBuilder {
            requests: Vec::new(),
            first_turns: Vec::new(),
            texts: Texts::default(),
            chains: ChainBuilder::new(HashKey::new([0x1f, 0x2e, 0x3d])),
            body: Vec::new(),
        }
    }

    /// Adds a request, whose blocks have these texts. `previous` is the turn before.
    fn add(
        &mut self,
        after: f64,
        (input_tokens, output_tokens): (u32, u32),
        texts: &[u64],
        previous: Option<usize>,
    ) -> usize {
        let first_block = self.texts.blocks.len();
        let mut hash = 0;
        for text in texts.iter().take(input_tokens as usize / TOKENS_PER_BLOCK) {
            hash = mix(hash ^ mix(text.wrapping_add(1)));
            self.texts.blocks.push(hash);
        }
        self.write_body(input_tokens as usize * BYTES_PER_TOKEN, texts);
        let mut scanner = Scanner::new();
        self.chains.reset();
        scanner.feed_bytes(&self.body, &mut self.chains);
        self.texts.model = self.chains.model_hash();
        let chain = self.chains.link_blocks();
        let first_link = self.texts.links.len();
        self.texts.links.extend_from_slice(chain.block_links());
        let index = self.requests.len();
        self.requests.push(PromptRequest {
            after: after.clamp(0.0, LONGEST) as u64,
            input_tokens,
            output_tokens,
            next: None,
            key: 0,
            blocks: first_block..self.texts.blocks.len(),
            links: first_link..self.texts.links.len(),
            prompt_bytes: chain.prompt_bytes(),
        });
        match previous.and_then(|previous| self.requests.get_mut(previous)) {
            Some(previous) => previous.next = Some(index),
            None => self.first_turns.push(index),
        }
        index
    }

    /// Writes the body of a request whose prompt has this many bytes.
    fn write_body(&mut self, bytes: usize, texts: &[u64]) {
        self.body.clear();
        self.body.extend_from_slice(
            br#"{"model":"m","stream":true,"messages":[{"role":"user","content":""#,
        );
        let begin = self.body.len();
        for text in texts {
            for word in 0..(TOKENS_PER_BLOCK * BYTES_PER_TOKEN / 8) as u64 {
                let letters = mix(mix(*text) ^ word) & 0x0f0f_0f0f_0f0f_0f0f;
                let letters = letters + 0x6161_6161_6161_6161;
                self.body.extend_from_slice(&letters.to_le_bytes());
            }
        }
        self.body.resize(begin + bytes, b'z');
        self.body.extend_from_slice(br#""}]}"#);
    }

    fn finish(self) -> Prompts {
        let mut prompts = Prompts {
            requests: self.requests,
            first_turns: self.first_turns,
            texts: Arc::new(self.texts),
        };
        prompts.sort_first_turns();
        prompts
    }
}

/// Mixes the bits of a number (splitmix64, by Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators",
/// 2014).
fn mix(number: u64) -> u64 {
    let number = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

/// Prompts that begin with one of several texts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SharedPrompts {
    /// Requests per second.
    pub rate: f64,
    /// Number of texts.
    pub count: usize,
    /// Exponent of the popularity of texts (Zipf).
    pub zipf: f64,
    /// Tokens of a text.
    pub shared_tokens: u32,
    /// Mean number of further tokens of a prompt.
    pub own_tokens: u32,
    /// Mean number of tokens of an answer.
    pub output_tokens: u32,
    /// Seconds in which requests come.
    pub seconds: f64,
}

/// Keys of clients.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Clients {
    /// Number of keys, from which sessions and requests come at random.
    pub keys: u64,
    /// Requests of one more key, if there are any.
    pub flood: Option<Flood>,
}

/// Flood of requests with the same key, each with a prompt of its own.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Flood {
    /// Requests per second.
    pub rate: f64,
    /// Mean number of tokens of a prompt.
    pub prompt_tokens: u32,
    /// Mean number of tokens of an answer.
    pub output_tokens: u32,
}

/// Agents: sessions that begin with the same text, and whose prompts grow with each turn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AgentPrompts {
    /// Sessions per second.
    pub rate: f64,
    /// Tokens of the text at the beginning of each session.
    pub shared_tokens: u32,
    /// Mean number of further tokens of the first turn.
    pub own_tokens: u32,
    /// Mean number of turns.
    pub turns: u32,
    /// Mean number of tokens by which a prompt grows in a turn.
    pub turn_tokens: u32,
    /// Mean time of a tool, in seconds.
    pub think_seconds: f64,
    /// Mean number of tokens of an answer.
    pub output_tokens: u32,
    /// Seconds in which sessions begin.
    pub seconds: f64,
}

/// Source of prompts.
#[derive(Clone, Debug)]
pub enum Workload {
    /// Trace, at this multiple of its rate.
    Trace(Arc<Trace>, f64),
    /// Prompts that begin with one of several texts.
    Shared(SharedPrompts),
    /// Sessions of agents, whose prompts grow.
    Agents(AgentPrompts),
}

impl Workload {
    /// Draws the requests of a run.
    pub fn draw(&self, seed: u64) -> Prompts {
        // Not the generators of the run itself.
        let mut rng = fastrand::Rng::with_seed(mix(seed));
        match self {
            Workload::Trace(trace, speed) => trace.draw(*speed, &mut rng),
            Workload::Shared(shared) => shared.draw(&mut rng),
            Workload::Agents(agents) => agents.draw(&mut rng),
        }
    }

    /// Draws the requests of a run, with the keys of their clients. The requests without the flood are always the same.
    pub fn draw_with_clients(&self, clients: &Clients, seed: u64) -> Prompts {
        let mut prompts = self.draw(seed);
        let mut rng = fastrand::Rng::with_seed(mix(seed ^ FLOOD_KEY));
        prompts.draw_keys(clients.keys, &mut rng);
        if let Some(flood) = clients.flood {
            let mut flood = flood.draw(self.seconds(), &mut rng);
            for request in &mut flood.requests {
                request.key = FLOOD_KEY;
            }
            prompts.add_prompts(flood);
        }
        prompts
    }

    /// Seconds in which requests come, later turns not included.
    pub fn seconds(&self) -> f64 {
        match self {
            Workload::Trace(trace, speed) => trace.last_millis / 1e3 / speed,
            Workload::Shared(SharedPrompts { seconds, .. })
            | Workload::Agents(AgentPrompts { seconds, .. }) => *seconds,
        }
    }
}

/// Draws a number of tokens with an exponential distribution; at least 1.
fn draw_tokens(mean: u32, rng: &mut fastrand::Rng) -> u32 {
    (draw_exponential(f64::from(mean), rng) as u32).clamp(1, MAX_PROMPT)
}

/// Draws a number of tokens between nothing and twice the mean.
fn draw_length(mean: u32, rng: &mut fastrand::Rng) -> u32 {
    (rng.f64() * 2.0 * f64::from(mean)) as u32
}

impl SharedPrompts {
    fn draw(&self, rng: &mut fastrand::Rng) -> Prompts {
        let mut builder = PromptsBuilder::new();
        let popularity = Popularity::new(self.count.max(1), self.zipf);
        let mut at = 0.0;
        loop {
            at += draw_exponential(1e9 / self.rate, rng);
            if at > self.seconds * 1e9 {
                return builder.finish();
            }
            let text = popularity.draw_rank(rng) as u64;
            let own = draw_length(self.own_tokens, rng);
            let tokens = (self.shared_tokens + own).clamp(1, MAX_PROMPT);
            let shared = self.shared_tokens as usize / TOKENS_PER_BLOCK;
            let number = builder.requests.len() as u64;
            let blocks = (tokens as usize).div_ceil(TOKENS_PER_BLOCK);
            let text_of = |block: usize| match block < shared {
                true => mix(text << 32 | block as u64),
                false => mix((1 << 63) | number << 32 | block as u64),
            };
            let texts: Vec<u64> = (0..blocks).map(text_of).collect();
            let output = draw_tokens(self.output_tokens, rng);
            builder.add(at, (tokens, output), &texts, None);
        }
    }
}

impl Flood {
    fn draw(&self, seconds: f64, rng: &mut fastrand::Rng) -> Prompts {
        let mut builder = PromptsBuilder::new();
        let mut at = 0.0;
        loop {
            at += draw_exponential(1e9 / self.rate, rng);
            if at > seconds * 1e9 {
                return builder.finish();
            }
            let tokens = draw_length(self.prompt_tokens, rng).clamp(1, MAX_PROMPT);
            let number = builder.requests.len() as u64;
            let blocks = (tokens as usize).div_ceil(TOKENS_PER_BLOCK) as u64;
            let text_of = |block: u64| mix(FLOOD_KEY ^ mix(number << 32 | block));
            let texts: Vec<u64> = (0..blocks).map(text_of).collect();
            let output = draw_tokens(self.output_tokens, rng);
            builder.add(at, (tokens, output), &texts, None);
        }
    }
}

impl AgentPrompts {
    fn draw(&self, rng: &mut fastrand::Rng) -> Prompts {
        let mut builder = PromptsBuilder::new();
        let shared = self.shared_tokens as usize / TOKENS_PER_BLOCK;
        let (mut at, mut session) = (0.0, 0);
        loop {
            at += draw_exponential(1e9 / self.rate, rng);
            if at > self.seconds * 1e9 {
                return builder.finish();
            }
            session += 1;
            let mut tokens = self.shared_tokens + draw_length(self.own_tokens, rng);
            let turns = 1 + draw_length(self.turns.saturating_sub(1), rng);
            let (mut previous, mut texts) = (None, Vec::new());
            for turn in 0..turns {
                tokens = tokens.clamp(1, MAX_PROMPT);
                while texts.len() < (tokens as usize).div_ceil(TOKENS_PER_BLOCK) {
                    let block = texts.len();
                    texts.push(match block < shared {
                        true => mix(block as u64),
                        false => mix((session << 32) | block as u64),
                    });
                }
                let after = match turn {
                    0 => at,
                    _ => draw_exponential(self.think_seconds * 1e9, rng),
                };
                let output = draw_tokens(self.output_tokens, rng);
                previous = Some(builder.add(after, (tokens, output), &texts, previous));
                tokens += 1 + draw_length(self.turn_tokens, rng);
            }
        }
    }
}

/// Trace in the format of Mooncake: a JSON object in each line, with `timestamp` (milliseconds), `input_length` and
/// `output_length` (tokens), and `hash_ids`, one for each block of 512 tokens of the prompt: equal ids are equal text.
#[derive(Debug)]
pub struct Trace {
    prompts: Prompts,
    /// Milliseconds of each request.
    millis: Vec<f64>,
    last_millis: f64,
}

impl Trace {
    /// Reads a trace.
    ///
    /// # Errors
    ///
    /// A line that is no request, with its number from 1.
    pub fn parse(text: &str) -> Result<Trace, (usize, String)> {
        let mut builder = PromptsBuilder::new();
        let mut millis = Vec::new();
        for (index, line) in text.lines().enumerate() {
            if line.trim().is_empty() {
                continue;
            }
            let (time, tokens, texts) = parse_line(line).map_err(|message| (index + 1, message))?;
            if millis.last().is_some_and(|before| time < *before) {
                return Err((
                    index + 1,
                    "`timestamp` is before that of the line above".into(),
                ));
            }
            millis.push(time);
            builder.add(0.0, tokens, &texts, None);
        }
        if millis.is_empty() {
            return Err((1, "the file has no request".into()));
        }
        Ok(Trace {
            prompts: builder.finish(),
            last_millis: millis.last().copied().unwrap_or_default(),
            millis,
        })
    }

    /// Draws the times of the requests. If several have the same time stamp, they come at random until the next time
    /// stamp; a single one comes at its time.
    fn draw(&self, speed: f64, rng: &mut fastrand::Rng) -> Prompts {
        let mut prompts = self.prompts.clone();
        let mut begin = 0;
        while let Some(time) = self.millis.get(begin) {
            let same = self.millis[begin..].partition_point(|other| other <= time);
            let next = self.millis.get(begin + same).copied();
            // The traces have a time stamp about every three seconds.
            let next = next.unwrap_or(time + 3000.0).min(time + 10_000.0);
            for request in &mut prompts.requests[begin..begin + same] {
                let share = rng.f64();
                let share = if same > 1 { share } else { 0.0 };
                let millis = time + (next - time) * share;
                request.after = (millis * 1e6 / speed).clamp(0.0, LONGEST) as u64;
            }
            begin += same;
        }
        prompts.sort_first_turns();
        prompts
    }
}

type TraceLine = (f64, (u32, u32), Vec<u64>);

fn parse_line(line: &str) -> Result<TraceLine, String> {
    let value: Value = serde_json::from_str(line).map_err(|error| error.to_string())?;
    let tokens = |key: &str| {
        let count = value.get(key).and_then(Value::as_u64);
        let count = count.ok_or_else(|| format!("`{key}` is missing, or no whole number"))?;
        match u32::try_from(count) {
            Ok(count) if count <= MAX_PROMPT => Ok(count.max(1)),
            _ => Err(format!("`{key}` is more than {MAX_PROMPT}")),
        }
    };
    let time = value.get("timestamp").and_then(Value::as_f64);
    let time = time.filter(|time| (0.0..=LONGEST / 1e6).contains(time));
    let time = time.ok_or("`timestamp` is missing, or no number of milliseconds within a day")?;
    let (input, output) = (tokens("input_length")?, tokens("output_length")?);
    let ids = value.get("hash_ids").and_then(Value::as_array);
    let ids = ids.ok_or("`hash_ids` is missing, or no array")?;
    let ids: Option<Vec<u64>> = ids.iter().map(Value::as_u64).collect();
    let ids = ids.ok_or("`hash_ids` has something other than whole numbers")?;
    let most = (input as usize).div_ceil(TOKENS_PER_BLOCK);
    if ids.len() > most {
        return Err(format!(
            "`hash_ids` has {} blocks, but {input} tokens are {most}",
            ids.len()
        ));
    }
    Ok((time, (input, output), ids))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINES: &str = r#"{"timestamp": 0, "input_length": 1100, "output_length": 5, "hash_ids": [0, 1, 2]}
{"timestamp": 0, "input_length": 1600, "output_length": 7, "hash_ids": [0, 1, 3, 4]}

{"timestamp": 3000, "input_length": 600, "output_length": 0, "hash_ids": [9, 1]}
"#;

    #[test]
    fn equal_blocks_of_a_trace_are_equal_text() {
        let trace = Arc::new(Trace::parse(LINES).unwrap());
        let workload = Workload::Trace(trace, 2.0);
        let prompts = workload.draw(7);
        let [one, two, other] = prompts.requests() else {
            panic!("{prompts:?}");
        };
        assert_eq!(prompts.blocks_of(one).len(), 2);
        assert_eq!(prompts.blocks_of(one), &prompts.blocks_of(two)[..2]);
        assert_ne!(prompts.blocks_of(one)[0], prompts.blocks_of(other)[0]);
        let links = |of| prompts.chain_of(of).block_links();
        let common = links(one).iter().zip(links(two));
        let common = common.take_while(|(one, two)| one == two).count();
        // 1,024 tokens of 4 bytes are 8 blocks of 512 bytes, of which the head of the message shifts the last one.
        assert_eq!(common, 8);
        assert!(one.after < 1_500_000_000 && two.after < 1_500_000_000);
        assert_eq!(other.output_tokens, 1);
        assert_eq!(prompts.first_turns().last(), Some(&2));
        assert_eq!(
            other.after, 1_500_000_000,
            "a single request comes at its time"
        );
        assert_ne!(one.after, workload.draw(8).requests()[0].after);
        assert_eq!(one.after, workload.draw(7).requests()[0].after);
    }

    #[test]
    fn bad_lines_are_told() {
        for (bad, expected) in [
            ("", "no request"),
            ("[1]", "`timestamp` is missing"),
            ("{\"timestamp\": 1}", "`input_length` is missing"),
            ("{", "EOF"),
            (
                r#"{"timestamp": 1, "input_length": 5, "output_length": 5, "hash_ids": [1, 2]}"#,
                "2 blocks, but 5 tokens are 1",
            ),
            (
                r#"{"timestamp": 1, "input_length": 5000000, "output_length": 5, "hash_ids": []}"#,
                "more than",
            ),
            (
                r#"{"timestamp": 1, "input_length": 5, "output_length": 5, "hash_ids": ["a"]}"#,
                "whole numbers",
            ),
        ] {
            let (line, message) = Trace::parse(bad).unwrap_err();
            assert_eq!(line, 1);
            assert!(message.contains(expected), "{bad}: {message}");
        }
        let late =
            "{\"timestamp\": 5, \"input_length\": 5, \"output_length\": 5, \"hash_ids\": []}";
        let (line, message) =
            Trace::parse(&format!("{late}\n{}", late.replace("5", "4"))).unwrap_err();
        assert!(line == 2 && message.contains("before"), "{message}");
    }

    #[test]
    fn agents_take_turns_that_begin_alike() {
        let agents = AgentPrompts {
            rate: 1.0,
            shared_tokens: 1024,
            own_tokens: 2000,
            turns: 5,
            turn_tokens: 800,
            think_seconds: 3.0,
            output_tokens: 100,
            seconds: 20.0,
        };
        let prompts = Workload::Agents(agents).draw(3);
        assert!(prompts.first_turns().len() > 5);
        let mut turns = 0;
        for first in prompts.first_turns() {
            let mut turn = &prompts.requests()[*first];
            turns += 1;
            while let Some(next) = turn.next {
                let next = &prompts.requests()[next];
                assert!(next.input_tokens > turn.input_tokens);
                assert!(prompts.blocks_of(next).starts_with(prompts.blocks_of(turn)));
                (turn, turns) = (next, turns + 1);
            }
        }
        assert_eq!(turns, prompts.requests().len());
        let beginnings = prompts.first_turns().iter().map(|first| {
            let first = &prompts.requests()[*first];
            prompts.blocks_of(first)[..2].to_vec()
        });
        let mut beginnings: Vec<_> = beginnings.collect();
        beginnings.dedup();
        assert_eq!(beginnings.len(), 1);
    }

    #[test]
    fn popular_texts_are_shared() {
        let shared = SharedPrompts {
            rate: 10.0,
            count: 4,
            zipf: 0.0,
            shared_tokens: 2048,
            own_tokens: 600,
            output_tokens: 100,
            seconds: 60.0,
        };
        let prompts = Workload::Shared(shared).draw(3);
        let requests = prompts.requests();
        assert!((500..700).contains(&requests.len()));
        let first = |request: &PromptRequest| prompts.blocks_of(request)[..4].to_vec();
        let mut firsts: Vec<_> = requests.iter().map(first).collect();
        firsts.sort_unstable();
        firsts.dedup();
        assert_eq!(firsts.len(), 4);
    }
}
