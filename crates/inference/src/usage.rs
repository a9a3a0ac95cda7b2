//! Reader of answers: counts the events of a stream, and finds the numbers of tokens that the engine has counted.
//!
//! Engines say `usage` at the end: in the body's object, or in the last event of a stream. The reader keeps the last
//! 2 KiB of an answer, and the first 1 KiB of a stream, in which Anthropic's `message_start` says the tokens of the
//! prompt. It searches both when the answer is over. Text that a model writes cannot be mistaken for a key, because
//! quotation marks within a JSON string are escaped.

use memchr::{memchr, memmem};

/// Bytes of an answer's end that are kept.
pub const TAIL_BYTES: usize = 2048;

/// Bytes of a stream's beginning that are kept.
pub const HEAD_BYTES: usize = 1024;

/// Highest plausible number of tokens.
pub const MAX_TOKENS: u32 = 1 << 24;

/// Longest beginning of a line that is looked at.
const LINE_BYTES: usize = 64;

/// Tokens that an engine has counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the prompt, at least 1.
    pub prompt_tokens: u32,
    /// Tokens of the prompt that the engine did not need to read, at most `prompt_tokens`; `None` if the engine does
    /// not say.
    pub cached_tokens: Option<u32>,
    /// Tokens of the answer; 0 if there are none, as for embeddings.
    pub output_tokens: u32,
}

/// Reader of one answer's body.
#[derive(Clone, Debug)]
pub struct UsageReader {
    is_event_stream: bool,
    tail: [u8; TAIL_BYTES],
    /// Position in `tail` of the next byte, which is the oldest one if the ring is full.
    next: usize,
    head: [u8; HEAD_BYTES],
    total_bytes: u64,
    /// Beginning of the line that is read now.
    line: [u8; LINE_BYTES],
    line_length: usize,
    event_kind: EventKind,
    events: u64,
}

/// Kind of the event that is read now, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EventKind {
    /// The event has no name, as those of chat completions.
    Unnamed,
    /// A part of the answer: `content_block_delta`, `response.output_text.delta`.
    Delta,
    /// Something else: `ping`, `message_start`, `response.created`.
    Other,
}

impl UsageReader {
    /// Creates a reader. `is_event_stream` is true if the answer's media type is `text/event-stream`.
    pub fn new(is_event_stream: bool) -> Self {
        UsageReader {
            is_event_stream,
            tail: [0; TAIL_BYTES],
            next: 0,
            head: [0; HEAD_BYTES],
            total_bytes: 0,
            line: [0; LINE_BYTES],
            line_length: 0,
            event_kind: EventKind::Unnamed,
            events: 0,
        }
    }

    /// Takes the next bytes of the body. Returns the number of events with a part of the answer that `bytes` complete:
    /// at the first one the first token is here.
    ///
    /// An answer that is no stream has no events.
    pub fn feed_bytes(&mut self, bytes: &[u8]) -> u64 {
        let before = self.events;
        if self.is_event_stream {
            self.keep_head(bytes);
            self.read_lines(bytes);
        }
        self.keep_tail(bytes);
        self.total_bytes = self.total_bytes.saturating_add(bytes.len() as u64);
        self.events.saturating_sub(before)
    }

    /// Number of events with a part of the answer so far.
    pub fn event_count(&self) -> u64 {
        self.events
    }

    /// Number of bytes so far.
    pub fn total_bytes(&self) -> u64 {
        self.total_bytes
    }

    /// Finds the tokens that the engine has counted; `None` if the answer does not say them, or if they are not
    /// plausible.
    pub fn find_usage(&self) -> Option<Usage> {
        let kept = usize::try_from(self.total_bytes).unwrap_or(usize::MAX);
        let (mut text, filled) = ([0; TAIL_BYTES], kept.min(TAIL_BYTES));
        // The oldest byte first.
        if kept < TAIL_BYTES {
            text = self.tail;
        } else {
            let (newer, older) = self.tail.split_at_checked(self.next)?;
            let (first, second) = text.split_at_mut_checked(older.len())?;
            first.copy_from_slice(older);
            second.copy_from_slice(newer);
        }
        let tail = text.get(..filled)?;
        let head = match self.is_event_stream {
            true => self.head.get(..kept.min(HEAD_BYTES))?,
            false => &[],
        };
        let find = |key: &[u8]| find_number(tail, key).or_else(|| find_number(head, key));
        let output = find(b"\"completion_tokens\"").or_else(|| find(b"\"output_tokens\""));
        let included = find(b"\"cached_tokens\"");
        let (prompt, cached) = match find(b"\"prompt_tokens\"") {
            Some(prompt) => (prompt, included),
            None => {
                // OpenAI's responses count cached tokens within those of the input, Anthropic's messages beside them.
                let input = find(b"\"input_tokens\"")?;
                let read = find(b"\"cache_read_input_tokens\"");
                let created = find(b"\"cache_creation_input_tokens\"").unwrap_or(0);
                let beside = read.unwrap_or(0).saturating_add(created);
                (input.saturating_add(beside), included.or(read))
            }
        };
        let output_tokens = output.unwrap_or(0);
        let is_plausible = (1..=MAX_TOKENS).contains(&prompt) && output_tokens <= MAX_TOKENS;
        is_plausible.then(|| Usage {
            prompt_tokens: prompt,
            cached_tokens: cached.filter(|cached| *cached <= prompt),
            output_tokens,
        })
    }

    fn keep_head(&mut self, bytes: &[u8]) {
        let from = usize::try_from(self.total_bytes).unwrap_or(usize::MAX);
        if let Some(free) = self.head.get_mut(from..) {
            free.iter_mut()
                .zip(bytes)
                .for_each(|(to, from)| *to = *from);
        }
    }

    fn keep_tail(&mut self, bytes: &[u8]) {
        let last = bytes.get(bytes.len().saturating_sub(TAIL_BYTES)..);
        let mut rest = last.unwrap_or_default();
        while !rest.is_empty() {
            let room = self.tail.get_mut(self.next..).unwrap_or_default();
            let (now, later) = rest.split_at(rest.len().min(room.len()));
            if let Some(place) = room.get_mut(..now.len()) {
                place.copy_from_slice(now);
            }
            self.next = (self.next + now.len()) % TAIL_BYTES;
            rest = later;
        }
    }

    fn read_lines(&mut self, bytes: &[u8]) {
        let mut rest = bytes;
        while let Some(end) = memchr(b'\n', rest) {
            let (line, after) = rest.split_at(end);
            self.add_to_line(line);
            self.end_line();
            rest = after.get(1..).unwrap_or_default();
        }
        self.add_to_line(rest);
    }

    fn add_to_line(&mut self, bytes: &[u8]) {
        let free = self.line.get_mut(self.line_length..).unwrap_or_default();
        let length = bytes.len().min(free.len());
        free.iter_mut()
            .zip(bytes)
            .for_each(|(to, from)| *to = *from);
        self.line_length += length;
    }

    fn end_line(&mut self) {
        let line = self.line.get(..self.line_length).unwrap_or_default();
        let line = line.trim_ascii_end();
        self.line_length = 0;
        if line.is_empty() {
            // The end of the event.
            self.event_kind = EventKind::Unnamed;
        } else if let Some(name) = line.strip_prefix(b"event:") {
            self.event_kind = match name.ends_with(b"delta") {
                true => EventKind::Delta,
                false => EventKind::Other,
            };
        } else if let Some(data) = line.strip_prefix(b"data:") {
            let data = data.trim_ascii_start();
            let is_data = !data.is_empty() && data != b"[DONE]";
            if is_data && self.event_kind != EventKind::Other {
                self.events = self.events.saturating_add(1);
            }
        }
    }
}

/// The number behind the last occurrence of `key`, which is given with its quotation marks.
fn find_number(text: &[u8], key: &[u8]) -> Option<u32> {
    let mut end = text.len();
    // An occurrence with another value (`null`) does not hide the one before.
    for _ in 0..64 {
        let before = text.get(..end)?;
        let at = memmem::rfind(before, key)?;
        let value = text.get(at + key.len()..)?;
        if let Some(number) = read_number(value) {
            return Some(number);
        }
        end = at;
    }
    None
}

/// The number behind a colon; `None` if it is not whole, or if there is another value.
fn read_number(text: &[u8]) -> Option<u32> {
    let text = text.trim_ascii_start().strip_prefix(b":")?;
    let text = text.trim_ascii_start();
    let length = text.iter().position(|byte| !byte.is_ascii_digit())?;
    let digits = text.get(..length)?;
    // A fraction or exponent is no number of tokens.
    let is_whole = text
        .get(length)
        .is_some_and(|next| b",} \t\r\n".contains(next));
    if digits.is_empty() || digits.len() > 9 || !is_whole {
        return None;
    }
    std::str::from_utf8(digits).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(body: &str, is_event_stream: bool) -> (UsageReader, u64) {
        let mut reader = UsageReader::new(is_event_stream);
        let events = reader.feed_bytes(body.as_bytes());
        (reader, events)
    }

    fn usage(body: &str) -> Option<Usage> {
        read(body, body.contains("data:")).0.find_usage()
    }

    fn expected(
        prompt_tokens: u32,
        cached_tokens: Option<u32>,
        output_tokens: u32,
    ) -> Option<Usage> {
        Some(Usage {
            prompt_tokens,
            cached_tokens,
            output_tokens,
        })
    }

    #[test]
    fn a_chat_completion_says_its_tokens() {
        let body = |usage: &str| format!(r#"{{"choices":[{{"message":{{}}}}],"usage":{usage}}}"#);
        let whole = r#"{"prompt_tokens": 100, "completion_tokens":20,"total_tokens":120,"prompt_tokens_details":{"cached_tokens":96}}"#;
        assert_eq!(usage(&body(whole)), expected(100, Some(96), 20));
        let without =
            r#"{"prompt_tokens":100,"completion_tokens":20,"prompt_tokens_details":null}"#;
        assert_eq!(usage(&body(without)), expected(100, None, 20));
        assert_eq!(
            usage(&body(r#"{"prompt_tokens":8,"total_tokens":8}"#)),
            expected(8, None, 0)
        );
        assert_eq!(usage(&body("null")), None);
    }

    #[test]
    fn other_interfaces_say_their_tokens() {
        let responses = r#"{"usage":{"input_tokens":36,"input_tokens_details":{"cached_tokens":32},"output_tokens":87}}"#;
        assert_eq!(usage(responses), expected(36, Some(32), 87));
        let anthropic = r#"{"usage":{"input_tokens":10,"cache_creation_input_tokens":5,"cache_read_input_tokens":80,"output_tokens":7}}"#;
        assert_eq!(usage(anthropic), expected(95, Some(80), 7));
        // The beginning of the stream says the prompt, and its end the answer.
        let start = r#"event: message_start
data: {"type":"message_start","message":{"usage":{"input_tokens":12,"output_tokens":1}}}

event: ping
data: {"type": "ping"}

"#;
        let delta =
            "event: content_block_delta\ndata: {\"delta\":{\"text\":\"hello\"}}\n\n".repeat(100);
        let end = "event: message_delta\ndata: {\"usage\":{\"output_tokens\":100}}\n\n";
        let (reader, events) = read(&format!("{start}{delta}{end}"), true);
        assert_eq!(reader.find_usage(), expected(12, None, 100));
        assert_eq!(events, 101);
    }

    #[test]
    fn events_with_data_are_counted() {
        let stream = ": ping\n\ndata: {\"choices\":[]}\r\n\r\ndata:{\"a\":1}\n\nid: 4\ndata:\n\ndata: [DONE]\n\n";
        assert_eq!(read(stream, true).1, 2);
        assert_eq!(read(stream, false).1, 0);
        let mut reader = UsageReader::new(true);
        assert_eq!(reader.feed_bytes(b"data: {\"choices\":"), 0);
        assert_eq!(reader.feed_bytes(b"[]}"), 0);
        assert_eq!(reader.feed_bytes(b"\n"), 1);
        assert_eq!(reader.event_count(), 1);
    }

    #[test]
    fn numbers_that_lie_are_refused() {
        let body = |prompt: &str, cached: &str, output: &str| {
            usage(&format!(
                r#"{{"usage":{{"prompt_tokens":{prompt},"completion_tokens":{output},"cached_tokens":{cached}}}}}"#
            ))
        };
        assert_eq!(body("10", "11", "5"), expected(10, None, 5));
        assert_eq!(body("10", "-1", "5"), expected(10, None, 5));
        for prompt in [
            "0",
            "16777217",
            "99999999999",
            "-3",
            "1e3",
            "1.5",
            "\"7\"",
            "null",
        ] {
            assert_eq!(body(prompt, "0", "5"), None, "{prompt}");
        }
        assert_eq!(body("10", "5", "16777217"), None);
    }

    #[test]
    fn text_of_the_model_is_no_usage() {
        let text = r#"{"text":"{\"prompt_tokens\": 5, \"completion_tokens\": 1}"}"#;
        assert_eq!(usage(text), None);
        let last = r#"{"usage":{"prompt_tokens":1,"completion_tokens":1}} {"usage":{"prompt_tokens":2,"completion_tokens":null}}"#;
        assert_eq!(usage(last), expected(2, None, 1));
    }

    proptest! {
        #[test]
        fn usage_at_the_end_is_found_however_the_answer_is_split(
            before in 0usize..5000,
            prompt in 1u32..=MAX_TOKENS,
            output in 0u32..=MAX_TOKENS,
            share in 0.0f64..=1.0,
            is_event_stream: bool,
            cuts: Vec<prop::sample::Index>,
        ) {
            let cached = (f64::from(prompt) * share) as u32;
            let body = format!(
                "data: {}\n\ndata: {{\"usage\":{{\"prompt_tokens\":{prompt},\"completion_tokens\":{output},\"prompt_tokens_details\":{{\"cached_tokens\":{cached}}}}}}}\n\ndata: [DONE]\n\n",
                "x".repeat(before)
            );
            let body = body.as_bytes();
            let mut reader = UsageReader::new(is_event_stream);
            let mut ends: Vec<_> = cuts.iter().map(|cut| cut.index(body.len() + 1)).collect();
            ends.push(body.len());
            ends.sort_unstable();
            let (mut from, mut events) = (0, 0);
            for end in ends {
                events += reader.feed_bytes(&body[from..end]);
                from = end;
            }
            prop_assert_eq!(reader.find_usage(), expected(prompt, Some(cached), output));
            let text_events = 1 + u64::from(before > 0);
            prop_assert_eq!(events, if is_event_stream { text_events } else { 0 });
            prop_assert_eq!(reader.total_bytes(), body.len() as u64);
        }

        #[test]
        fn nothing_breaks_it(
            parts in prop::collection::vec("(\"(prompt|cached|input)_tokens\"|data:|event:|[:{}0-9\n ]|\\PC){0,40}", 0..12),
            is_event_stream: bool,
        ) {
            let mut reader = UsageReader::new(is_event_stream);
            let mut whole = UsageReader::new(is_event_stream);
            for part in &parts {
                reader.feed_bytes(part.as_bytes());
            }
            whole.feed_bytes(parts.concat().as_bytes());
            prop_assert_eq!(reader.find_usage(), whole.find_usage());
            prop_assert_eq!(reader.event_count(), whole.event_count());
            if let Some(usage) = reader.find_usage() {
                prop_assert!(usage.cached_tokens.is_none_or(|cached| cached <= usage.prompt_tokens));
            }
        }
    }
}
