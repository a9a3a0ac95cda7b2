//! Prompt of a request to a language model: read from the body before a member is chosen, so that the strategy
//! `inference` knows which members have read its beginning.
//!
//! Nothing that an engine would take is refused: a body that is not understood, compressed, too long or late is a prompt
//! of which only the size is known.

use std::cell::RefCell;
use std::hash::{BuildHasher as _, RandomState};
use std::net::IpAddr;
use std::ops::Range;
use std::sync::OnceLock;

use evenkeel_core::engines::PromptPart;
use evenkeel_core::prompt_key::prompt_secret;
use evenkeel_inference::chain::{Chain, ChainBuilder, HashKey};
use evenkeel_inference::group::{RequestFacts, RequestPlan};
use evenkeel_inference::model_name::ModelName;
use evenkeel_inference::scanner::{Progress, Scanner};
use evenkeel_manager::snapshot::GroupHandle;

use crate::http1::chunked::{Decoder, content_pieces};
use crate::message::{self, Body, has_coding};

/// Most readers that a worker keeps when nobody uses them.
const MOST_SPARE: usize = 8;

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
    /// True if the body may be JSON: it is not compressed.
    is_readable: bool,
    /// Most bytes of the body that are read before a member is chosen.
    max_bytes: usize,
    random: u64,
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
    prompt.owner = 0;
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
            is_readable: true,
            max_bytes: 0,
            random: 0,
            owner: 0,
        }
    }

    fn begin(&mut self, body: Body, is_readable: bool) {
        self.framing = matches!(body, Body::Chunked).then(Decoder::new);
        self.length = match body {
            Body::Length(length) => Some(length),
            _ => None,
        };
        self.is_readable = is_readable;
    }

    /// Most bytes of the body that are read before a member is chosen.
    pub(super) fn max_bytes(&self) -> usize {
        self.max_bytes
    }

    /// True if more of the body would tell more of the prompt.
    pub(super) fn is_sought(&self) -> bool {
        self.is_readable && self.scanner.scan_progress() == Progress::Running
    }

    /// Reads the next bytes of the body, with the framing that they have.
    pub(super) fn read_bytes(&mut self, bytes: &[u8]) {
        if !self.is_readable {
            return;
        }
        let (scanner, builder) = (&mut self.scanner, &mut self.builder);
        content_pieces(&mut self.framing, bytes, |content| {
            scanner.feed_bytes(content, builder);
        });
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

    /// Counts the prompt as one for the model `name`, whose name stands in the body now.
    pub(super) fn replace_model(&mut self, name: &str) {
        self.builder.replace_model(name.as_bytes());
    }

    /// Part of the prompt that was read.
    fn part_read(&self) -> PromptPart {
        let is_running = self.scanner.scan_progress() == Progress::Running;
        match self.builder.prompt_bytes() {
            _ if !self.is_readable => PromptPart::Compressed,
            0 if is_running => PromptPart::Unread,
            0 => PromptPart::NoPrompt,
            _ if is_running => PromptPart::Beginning,
            _ => PromptPart::Whole,
        }
    }

    /// Plans the choice of a member by what was read of the prompt; `None` if the group has no engines any more.
    pub(super) fn plan_request(&mut self, handle: &GroupHandle) -> Option<Box<RequestPlan<'_>>> {
        let group = handle.current.load();
        let engines = group.engines()?;
        engines.counts().count_prompt(self.part_read());
        let model = self.builder.model_hash();
        let chain = match self.builder.prompt_bytes() {
            0 => Chain::unknown(self.length.unwrap_or(self.scanner.total_bytes())),
            _ => self.builder.link_blocks(),
        };
        let facts = RequestFacts {
            chain,
            model,
            max_tokens: self.scanner.max_tokens(),
            is_stream: self.scanner.wants_stream(),
            random: self.random,
        };
        let plan = engines.group().plan_request(facts);
        Some(Box::new(plan.of_owner(self.owner)))
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
