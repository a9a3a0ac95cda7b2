//! Prompt of a request to a language model: read from the body before a member is chosen, so that the strategy
//! `inference` knows which members have read its beginning.
//!
//! Nothing that an engine would take is refused: a body that is not understood, ambiguous, compressed, too long or late is
//! a prompt of which only the size is known. The size is always that of the whole body, so that no spelling of a request
//! counts less than another one: engines may see a prompt where the scanner sees none.

use std::cell::RefCell;
use std::hash::{BuildHasher as _, RandomState};
use std::net::IpAddr;
use std::ops::Range;
use std::sync::OnceLock;

use evenkeel_core::engine_counts::PromptPart;
use evenkeel_core::prompt_key::prompt_secret;
use evenkeel_inference::chain::{Chain, ChainBuilder, HashKey};
use evenkeel_inference::group::{RequestFacts, RequestPlan};
use evenkeel_inference::labels::{Operation, RequestLabels};
use evenkeel_inference::model_name::ModelName;
use evenkeel_inference::scanner::{Progress, Scanner};
use evenkeel_manager::snapshot::GroupHandle;

use crate::http1::chunked::{Decoder, content_pieces};
use crate::message::{self, Body, has_coding};

/// Most readers that a worker keeps when nobody uses them.
const MOST_SPARE: usize = 8;

/// Bytes that count for each byte of a compressed body. Texts become 3 to 6 times as small.
const EXPANSION: u64 = 8;

/// Readers of prompts that a worker has to spare.
// In boxes: a request keeps its reader in one, and does not copy it.
#[allow(clippy::vec_box)]
#[derive(Debug, Default)]
pub(crate) struct Prompts(RefCell<Vec<Box<Prompt>>>);

/// Reader of a request's prompt.
#[derive(Debug)]
pub(crate) struct Prompt {
    scanner: Scanner,
    builder: ChainBuilder,
    /// Decoder of the chunks, if the body has them.
    framing: Option<Decoder>,
    /// Length of the body, if the head says it.
    length: Option<u64>,
    /// Bytes of the body's content that were read.
    content_bytes: u64,
    /// True if the size of the body may matter, as the request may be for engines.
    pub(super) is_measured: bool,
    /// True if the body may be JSON: it is not compressed.
    is_readable: bool,
    /// Most bytes of the body that are read before a member is chosen.
    max_bytes: usize,
    random: u64,
    operation: Operation,
    /// Name of the engines' model that stands in the body in place of an alias.
    written_model: Option<ModelName>,
    /// Hash of the client's key, if the group may need it.
    pub(super) owner: u64,
}

/// Model of a request, as far as the body names it.
// A request has one for a moment, on the stack.
#[allow(clippy::large_enum_variant)]
#[derive(Debug)]
pub(super) enum NamedModel {
    /// The body names the model.
    Name(ModelName),
    /// The body has no name where one is expected, or is not understood.
    Missing,
    /// The body may name several models.
    Ambiguous,
    /// The name is too long, or not written as JSON has names.
    Unknown,
    /// The body is compressed.
    Compressed,
    /// The name is not among the bytes that were read.
    Unread,
}

impl Prompts {
    /// Takes a reader for a body.
    fn take(&self, key: &HashKey) -> Box<Prompt> {
        let spare = self.0.borrow_mut().pop();
        spare.unwrap_or_else(|| Box::new(Prompt::new(key)))
    }

    /// Gives a reader back, whose memory the next request uses.
    pub(super) fn give_back(&self, mut prompt: Box<Prompt>) {
        let mut spare = self.0.borrow_mut();
        if spare.len() < MOST_SPARE {
            prompt.scanner = Scanner::new();
            prompt.builder.reset();
            spare.push(prompt);
        }
    }
}

/// Begins to read the prompt of a request; `None` if the request has no body. `random` decides between members that are
/// equal for an unknown prompt.
#[cold]
pub(super) fn begin_prompt(
    prompts: &Prompts,
    request: &message::Request<'_>,
    max_bytes: usize,
    random: u64,
) -> Option<Box<Prompt>> {
    if matches!(request.body, Body::None | Body::Length(0)) {
        return None;
    }
    let mut prompt = prompts.take(hash_key());
    let is_readable = !has_coding(request.values("content-encoding"));
    prompt.begin(request.body, is_readable);
    prompt.max_bytes = max_bytes;
    prompt.random = random;
    prompt.operation = Operation::find(request.path()).map_or(Operation::Other, |(of, _)| of);
    prompt.owner = 0;
    prompt.is_measured = false;
    Some(prompt)
}

/// Key of the hashes of prompts. Who knows the key can make prompts whose blocks look like those of others.
fn hash_key() -> &'static HashKey {
    static KEY: OnceLock<HashKey> = OnceLock::new();
    KEY.get_or_init(|| HashKey::new(prompt_secret()))
}

/// Fields in which clients of engines send their keys: of OpenAI's interface, of Anthropic's, and of Azure's.
const KEY_FIELDS: [&str; 3] = ["authorization", "x-api-key", "api-key"];

/// Hash of the client's API key, or of the client's address if the request has no key.
pub(super) fn hash_owner(request: &message::Request<'_>, client: Option<IpAddr>) -> u64 {
    static SECRET: OnceLock<RandomState> = OnceLock::new();
    let secret = SECRET.get_or_init(RandomState::new);
    let mut keys = KEY_FIELDS
        .iter()
        .filter_map(|field| request.values(field).next());
    match keys.next() {
        Some(key) => secret.hash_one((0, key)),
        None => secret.hash_one((1, client)),
    }
}

impl Prompt {
    fn new(key: &HashKey) -> Self {
        Prompt {
            scanner: Scanner::new(),
            builder: ChainBuilder::new(key.clone()),
            framing: None,
            length: None,
            content_bytes: 0,
            is_measured: false,
            is_readable: true,
            max_bytes: 0,
            random: 0,
            operation: Operation::Other,
            written_model: None,
            owner: 0,
        }
    }

    fn begin(&mut self, body: Body, is_readable: bool) {
        self.framing = matches!(body, Body::Chunked).then(Decoder::new);
        self.length = match body {
            Body::Length(length) => Some(length),
            _ => None,
        };
        self.content_bytes = 0;
        self.written_model = None;
        self.is_readable = is_readable;
    }

    /// Most bytes of the body that are read before a member is chosen.
    pub(super) fn max_bytes(&self) -> usize {
        self.max_bytes
    }

    /// True if more of the body would tell more of the prompt.
    pub(super) fn is_sought(&self) -> bool {
        let is_scanned = self.is_readable && self.scanner.scan_progress() == Progress::Running;
        is_scanned || (self.is_measured && self.body_size().is_none())
    }

    /// Reads the next bytes of the body, with the framing that they have.
    pub(super) fn read_bytes(&mut self, bytes: &[u8]) {
        let (scanner, builder) = (&mut self.scanner, &mut self.builder);
        let (read, is_readable) = (&mut self.content_bytes, self.is_readable);
        content_pieces(&mut self.framing, bytes, |content| {
            *read = read.saturating_add(content.len() as u64);
            if is_readable {
                scanner.feed_bytes(content, builder);
            }
        });
    }

    /// Number of bytes of the body's content, if it is known.
    fn body_size(&self) -> Option<u64> {
        let ended = || self.framing.as_ref().is_some_and(Decoder::is_done);
        self.length
            .or_else(|| ended().then_some(self.content_bytes))
    }

    /// Number of bytes that the body counts as a prompt of which this part was read. Pictures count little where engines
    /// see the same prompt.
    fn counted_bytes(&self, part: PromptPart) -> u64 {
        let uncounted = match part {
            PromptPart::Whole | PromptPart::Beginning => self.builder.uncounted_bytes(),
            _ => 0,
        };
        let at_least = match self.is_measured {
            // Otherwise a client could keep the rest back until a member is chosen.
            true => self.content_bytes.max(self.max_bytes as u64),
            false => self.content_bytes,
        };
        let bytes = match self.body_size() {
            Some(size) => size.saturating_sub(uncounted),
            // More may come, and be no picture.
            None => at_least,
        };
        match self.is_readable {
            true => bytes,
            false => bytes.saturating_mul(EXPANSION),
        }
    }

    /// Model that the request asks for.
    pub(super) fn named_model(&self) -> NamedModel {
        if !self.is_readable {
            return NamedModel::Compressed;
        }
        if self.scanner.has_ambiguous_model() {
            return NamedModel::Ambiguous;
        }
        if self.scanner.has_long_model() {
            return NamedModel::Unknown;
        }
        match self.scanner.model_name() {
            Some(text) => match ModelName::decode(text) {
                Some(name) => NamedModel::Name(name),
                None => NamedModel::Unknown,
            },
            None if self.scanner.scan_progress() == Progress::Running => NamedModel::Unread,
            None => NamedModel::Missing,
        }
    }

    /// Place of the model's name in the content of the body, without the quotation marks.
    pub(super) fn model_place(&self) -> Option<Range<usize>> {
        let place = self.scanner.model_place()?;
        Some(usize::try_from(place.start).ok()?..usize::try_from(place.end).ok()?)
    }

    /// True if the body is chunked.
    pub(super) fn is_chunked(&self) -> bool {
        self.framing.is_some()
    }

    /// Counts the prompt as one for the model `name`, whose name stands in the body now, as JSON has it.
    pub(super) fn replace_model(&mut self, name: &str) {
        self.written_model = ModelName::decode(name.as_bytes());
        self.builder.replace_model(name.as_bytes());
    }

    /// Part of the prompt that was read.
    fn part_read(&self) -> PromptPart {
        match (self.scanner.scan_progress(), self.builder.prompt_bytes()) {
            _ if !self.is_readable => PromptPart::Compressed,
            _ if self.scanner.is_ambiguous() => PromptPart::Ambiguous,
            (Progress::Running, 0) => PromptPart::Unread,
            (_, 0) => PromptPart::NoPrompt,
            (Progress::Running, _) => PromptPart::Beginning,
            (Progress::Unknown, _) => PromptPart::Broken,
            (Progress::Complete, _) => PromptPart::Whole,
        }
    }

    /// Labels of the request in metrics.
    fn labels(&self) -> RequestLabels {
        let named = || match self.named_model() {
            NamedModel::Name(name) => Some(name),
            _ => None,
        };
        RequestLabels {
            model: self.written_model.or_else(named),
            operation: self.operation,
        }
    }

    /// Facts of the request, as far as engines cannot see others.
    fn request_facts(&mut self) -> RequestFacts<'_> {
        let part = self.part_read();
        let bytes = self.counted_bytes(part);
        let is_clear = !matches!(part, PromptPart::Ambiguous | PromptPart::Broken);
        let is_complete = is_clear && self.scanner.scan_progress() == Progress::Complete;
        let is_measured = self.body_size().is_some();
        RequestFacts {
            model: match is_clear {
                true => self.builder.model_hash(),
                false => 0,
            },
            // A second limit may come in what was not read.
            max_tokens: self.scanner.max_tokens().filter(|_| is_complete),
            is_stream: self.scanner.wants_stream(),
            random: self.random,
            chain: match part {
                PromptPart::Whole | PromptPart::Beginning => {
                    self.builder.link_blocks().counted_as(bytes, is_measured)
                }
                _ => Chain::unknown(bytes),
            },
        }
    }

    /// Plans the choice of a member by what was read of the prompt; `None` if the group has no engines any more.
    pub(super) fn plan_request(&mut self, handle: &GroupHandle) -> Option<Box<RequestPlan<'_>>> {
        let group = handle.current.load();
        let engines = group.engines()?;
        engines.counts().count_prompt(self.part_read());
        let (owner, labels) = (self.owner, self.labels());
        let choices = self.scanner.choices();
        let plan = engines.group().plan_request(self.request_facts());
        let plan = plan.of_owner(owner).with_labels(labels);
        Some(Box::new(plan.with_choices(choices)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> HashKey {
        HashKey::new([1, 2, 3])
    }

    fn links(body: Body, bytes: &[u8], size: usize) -> Vec<u64> {
        let prompts = Prompts::default();
        let mut prompt = prompts.take(&key());
        prompt.begin(body, true);
        for part in bytes.chunks(size) {
            prompt.read_bytes(part);
        }
        assert!(!prompt.is_sought());
        let links = prompt.builder.link_blocks().block_links().to_vec();
        prompts.give_back(prompt);
        let again = prompts.take(&key());
        assert_eq!(again.builder.prompt_bytes(), 0);
        links
    }

    #[test]
    fn a_prompt_in_chunks_is_the_same_as_a_whole_one() {
        let text = "x".repeat(3000);
        let whole = format!("{{\"model\":\"m\",\"messages\":[{{\"content\":\"{text}\"}}]}}");
        let chunks: String = whole
            .as_bytes()
            .chunks(100)
            .map(|part| format!("{:x}\r\n{}\r\n", part.len(), String::from_utf8_lossy(part)))
            .collect();
        let chunks = chunks + "0\r\n\r\n";
        let expected = links(Body::Length(9), whole.as_bytes(), 4096);
        assert_eq!(expected.len(), 5);
        for size in [1, 13, 4096] {
            assert_eq!(links(Body::Chunked, chunks.as_bytes(), size), expected);
        }
    }

    #[test]
    fn the_model_is_known_unless_engines_may_see_another_one() {
        let named = |body: &str| {
            let mut prompt = Prompt::new(&key());
            prompt.begin(Body::Length(body.len() as u64), true);
            prompt.read_bytes(body.as_bytes());
            match prompt.named_model() {
                NamedModel::Name(name) => String::from_utf8_lossy(name.as_bytes()).into_owned(),
                other => format!("{other:?}"),
            }
        };
        assert_eq!(named(r#"{"prompt":"a","model":"b\/c"}"#), "b/c");
        assert_eq!(named(r#"{"model":"b","prompt":"a"#), "b");
        assert_eq!(named(r#"{"model":"b","model":"c"}"#), "Ambiguous");
        assert_eq!(named(r#"{"model":["b"]}"#), "Ambiguous");
        assert_eq!(named(r#"{"model":"\x"}"#), "Unknown");
        let long = "m".repeat(129);
        assert_eq!(named(&format!("{{\"model\":\"{long}\"}}")), "Unknown");
        assert_eq!(named(r#"{"prompt":"a"}"#), "Missing");
        assert_eq!(named("model=b"), "Missing");
        assert_eq!(named(r#"{"prompt":"a"#), "Unread");
        assert_eq!(named(""), "Unread");
    }

    /// Reads a body with a group for engines, and returns the part that was read with the facts: the bytes that count, the
    /// number of blocks, and the limit of the answer.
    fn measure(
        body: Body,
        content: &[u8],
        is_readable: bool,
    ) -> (PromptPart, u64, usize, Option<u32>) {
        let mut prompt = Prompt::new(&key());
        prompt.begin(body, is_readable);
        (prompt.is_measured, prompt.max_bytes) = (true, 10_000);
        let part = |part: &[u8]| {
            let size = format!("{:x}\r\n", part.len());
            [size.as_bytes(), part, b"\r\n"].concat()
        };
        for piece in content.chunks(100) {
            match body {
                Body::Chunked => prompt.read_bytes(&part(piece)),
                _ => prompt.read_bytes(piece),
            }
        }
        if body == Body::Chunked {
            assert!(prompt.is_sought(), "the end decides on the size");
            prompt.read_bytes(b"0\r\n\r\n");
            assert!(!prompt.is_sought() || prompt.scanner.scan_progress() == Progress::Running);
        }
        let part = prompt.part_read();
        let facts = prompt.request_facts();
        (
            part,
            facts.chain.prompt_bytes(),
            facts.chain.len(),
            facts.max_tokens,
        )
    }

    #[test]
    fn no_spelling_of_a_request_counts_less_than_another_one() {
        use PromptPart::{Ambiguous, Beginning, Broken, NoPrompt, Unread, Whole};
        let text = "x".repeat(2000);
        let nested = format!("{}1{}", "[".repeat(65), "]".repeat(65));
        let cases = [
            (
                Whole,
                format!(r#"{{"messages":["{text}"],"max_tokens":5}}"#),
            ),
            (
                Whole,
                format!(r#"{{"prompt":"a","inputs":"{text}","max_tokens":5}}"#),
            ),
            (
                Whole,
                format!(r#"{{"prompt":"a","Messages":["{text}"],"max_tokens":5}}"#),
            ),
            (
                Whole,
                format!(r#"{{"messages":null,"prompt":"{text}","max_tokens":5}}"#),
            ),
            // Two prompts, in all ways.
            (
                Ambiguous,
                format!(r#"{{"prompt":"a","prompt":"{text}","max_tokens":5}}"#),
            ),
            (
                Ambiguous,
                format!(r#"{{"prompt":"a","messages":["{text}"],"max_tokens":5}}"#),
            ),
            (
                Ambiguous,
                format!(r#"{{"input":"a","messages":["{text}"],"max_tokens":5}}"#),
            ),
            (
                Ambiguous,
                format!(r#"{{"messages":null,"messages":["{text}"],"max_tokens":5}}"#),
            ),
            (
                Ambiguous,
                format!(r#"{{"system":"a","system":"{text}","prompt":"a","max_tokens":5}}"#),
            ),
            (
                Ambiguous,
                format!(r#"{{"prompt":"a","mess\u0061ges":["{text}"],"max_tokens":5}}"#),
            ),
            (
                Ambiguous,
                format!(r#"{{"prompt":"{text}","max_tokens":1,"max_tokens":5}}"#),
            ),
            (
                Ambiguous,
                format!(r#"{{"prompt":"{text}","model":"a","model":"b"}}"#),
            ),
            // The scan breaks within the prompt, behind it, and before it.
            (
                Broken,
                format!(r#"{{"messages":["a",{nested},"{text}"],"max_tokens":5}}"#),
            ),
            (
                Broken,
                format!(r#"{{"prompt":"a","top_p":NaN,"prompt":"{text}","max_tokens":5}}"#),
            ),
            (
                Broken,
                format!(r#"{{"prompt":"a","x":{nested},"messages":["{text}"]}}"#),
            ),
            (
                NoPrompt,
                format!(r#"{{"top_p":Infinity,"prompt":"{text}","max_tokens":5}}"#),
            ),
            // Python's JSON takes a mark of the byte order, and UTF-16.
            (
                NoPrompt,
                format!("\u{feff}{{\"prompt\":\"{text}\",\"max_tokens\":5}}"),
            ),
            (NoPrompt, format!(r#"{{"inputs":"{text}","max_tokens":5}}"#)),
            // The body is cut.
            (Beginning, format!(r#"{{"max_tokens":1,"prompt":"{text}"#)),
            (Unread, format!(r#"{{"max_tokens":1,"x":"{text}"#)),
        ];
        for (expected, body) in &cases {
            let content = body.as_bytes();
            let length = content.len() as u64;
            for framing in [Body::Length(length), Body::Chunked] {
                let (part, bytes, blocks, max_tokens) = measure(framing, content, true);
                assert_eq!(part, *expected, "{body}");
                assert_eq!(bytes, length, "{body}");
                let has_blocks =
                    body.starts_with(r#"{"messages":["x"#) || body.contains(r#"null,"prompt""#);
                assert_eq!(blocks > 0, has_blocks || part == Beginning, "{body}");
                let is_clear = body.ends_with('}') && matches!(part, Whole | NoPrompt);
                let is_scanned = body.ends_with("5}")
                    && !body.contains("Infinity")
                    && !body.starts_with('\u{feff}');
                assert_eq!(max_tokens, (is_clear && is_scanned).then_some(5), "{body}");
            }
        }
        let wide: Vec<u8> = text.encode_utf16().flat_map(u16::to_le_bytes).collect();
        assert_eq!(
            measure(Body::Chunked, &wide, true),
            (NoPrompt, 4000, 0, None)
        );
        // A compressed body counts for what it may become.
        let compressed = measure(Body::Chunked, &wide, false);
        assert_eq!(compressed, (PromptPart::Compressed, 32_000, 0, None));
    }

    #[test]
    fn pictures_count_little_unless_engines_may_see_something_else() {
        use evenkeel_inference::media::MOST_MEDIA_BYTES;
        let picture = "x".repeat(6000);
        let body = |part: &str, more: &str| {
            format!(r#"{{"messages":[{{"content":[{part}]}}]{more},"max_tokens":5}}"#)
        };
        let url = format!(r#"{{"image_url":{{"url":"{picture}"}}}}"#);
        let text = format!(r#"{{"text":"{picture}"}}"#);
        let uncounted = 6000 - MOST_MEDIA_BYTES;
        for (part, body, uncounted) in [
            (PromptPart::Whole, body(&url, ""), uncounted),
            (PromptPart::Whole, body(&text, ""), 0),
            (PromptPart::Ambiguous, body(&url, r#","prompt":"a""#), 0),
            (PromptPart::Broken, body(&url, r#","top_p":NaN"#), 0),
        ] {
            let length = body.len() as u64;
            for framing in [Body::Length(length), Body::Chunked] {
                let (read, bytes, _, _) = measure(framing, body.as_bytes(), true);
                assert_eq!((read, bytes), (part, length - uncounted), "{body}");
            }
        }
        // The rest of the body is not here: it may be no picture.
        let beginning = format!(r#"{{"messages":[{{"content":[{url}"#);
        let mut prompt = Prompt::new(&key());
        prompt.begin(Body::Chunked, true);
        (prompt.is_measured, prompt.max_bytes) = (true, 10_000);
        let chunk = format!("{:x}\r\n{beginning}\r\n", beginning.len());
        prompt.read_bytes(chunk.as_bytes());
        assert_eq!(prompt.request_facts().chain.prompt_bytes(), 10_000);
    }

    #[test]
    fn a_body_whose_end_is_kept_back_counts_as_the_longest_one() {
        let mut prompt = Prompt::new(&key());
        prompt.begin(Body::Chunked, true);
        (prompt.is_measured, prompt.max_bytes) = (true, 10_000);
        assert_eq!(prompt.request_facts().chain.prompt_bytes(), 10_000);
        prompt.read_bytes(b"d\r\n{\"prompt\":\"a\"\r\n");
        let chain = prompt.request_facts().chain;
        assert_eq!((chain.prompt_bytes(), chain.measured_bytes()), (10_000, 0));
        prompt.read_bytes(&[b"4e20\r\n", &[b' '; 20_000][..], b"\r\n"].concat());
        assert_eq!(prompt.request_facts().chain.prompt_bytes(), 20_013);
        // Nobody waits for the end of a call of gRPC.
        prompt.is_measured = false;
        assert_eq!(prompt.request_facts().chain.prompt_bytes(), 20_013);
        // A length that the head says is believed: no more than that comes.
        prompt.begin(Body::Length(700), true);
        assert_eq!(prompt.request_facts().chain.prompt_bytes(), 700);
    }

    #[test]
    fn a_compressed_body_tells_its_length_only() {
        let mut prompt = Prompt::new(&key());
        prompt.begin(Body::Length(700), false);
        assert!(!prompt.is_sought());
        prompt.read_bytes(b"{\"prompt\":\"abc\"");
        assert_eq!(prompt.builder.prompt_bytes(), 0);
        assert!(matches!(prompt.named_model(), NamedModel::Compressed));
        assert_eq!(prompt.length, Some(700));
    }
}
