//! Reader of answers: counts the events of a stream, and finds the numbers of tokens that the engine has counted.
//!
//! Engines say `usage` at the end: in the body's object, or in the last event of a stream. The reader keeps the last
//! 2 KiB of an answer, and the first 1 KiB of a stream, in which Anthropic's `message_start` says the tokens of the
//! prompt. It searches both when the answer is over.
//!
//! Only the `usage` of the interface counts: the object of that name in the body's or the event's object, or in the
//! event's `response` or `message`. Requests are echoed in answers (tools, metadata), and may have such objects deeper.
//! So the search goes from the end to the beginning, and knows at each byte how many objects and arrays are open: the
//! end of a text is the end of all, whereas its beginning may be cut off. Text that a model writes is in JSON strings,
//! in which quotation marks are escaped.

use memchr::{memchr, memmem, memrchr};

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
        let mut counts = TokenCounts::default();
        match self.is_event_stream {
            true => {
                counts.read_events(tail);
                // What is cut off is no event.
                let end = head.iter().rposition(|byte| *byte == b'\n').unwrap_or(0);
                counts.read_events(head.get(..end).unwrap_or_default());
            }
            false => counts.read_json(tail, &[]),
        }
        let output = counts.output;
        let (prompt, cached) = match counts.prompt {
            Some(prompt) => (prompt, counts.cached),
            None => {
                // OpenAI's responses count cached tokens within those of the input, Anthropic's messages beside them.
                let created = counts.cache_created.unwrap_or(0);
                let beside = counts.cache_read.unwrap_or(0).saturating_add(created);
                let input = counts.input?;
                (
                    input.saturating_add(beside),
                    counts.cached.or(counts.cache_read),
                )
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

/// Numbers of tokens in objects called `usage`. The last object counts, and those before it for numbers that it does not
/// have.
#[derive(Clone, Copy, Debug, Default)]
struct TokenCounts {
    prompt: Option<u32>,
    input: Option<u32>,
    output: Option<u32>,
    cached: Option<u32>,
    cache_read: Option<u32>,
    cache_created: Option<u32>,
}

/// Keys of an event whose objects have the interface's `usage`, if the event's object itself has none.
const PARENTS: [&[u8]; 2] = [b"\"response\"", b"\"message\""];

impl TokenCounts {
    /// Reads events, whose last one is whole. The beginning of the first one may be cut off.
    fn read_events(&mut self, text: &[u8]) {
        for line in text.rsplit(|byte| *byte == b'\n') {
            self.read_json(line, &PARENTS);
        }
    }

    /// Reads a JSON text whose end is there, from the end to the beginning. `parents` are the keys of objects in which a
    /// `usage` counts, beside the outermost object.
    fn read_json(&mut self, text: &[u8], parents: &[&[u8]]) {
        // Ends of the objects and arrays that are open, as far as they matter.
        let mut ends = [0; 3];
        let mut depth = 0usize;
        // Objects in one of the outermost object's, whose key is not known yet.
        let mut inner: Option<&[u8]> = None;
        let mut rest = text;
        while let Some((&byte, before)) = rest.split_last() {
            let at = before.len();
            rest = before;
            match byte {
                b'"' => match string_start(before) {
                    Some(start) => rest = before.get(..start).unwrap_or_default(),
                    None => break,
                },
                b'}' | b']' => {
                    if let Some(end) = ends.get_mut(depth) {
                        *end = at;
                    }
                    depth = depth.saturating_add(1);
                }
                b'{' | b'[' => {
                    let Some(outer) = depth.checked_sub(1) else {
                        break;
                    };
                    depth = outer;
                    let key = key_before(before).filter(|_| byte == b'{');
                    let is_usage = key == Some(USAGE);
                    let found = ends.get(depth).and_then(|end| text.get(at..=*end));
                    match depth {
                        1 if is_usage => self.read_object(found.unwrap_or_default()),
                        1 => {
                            let is_parent = key.is_some_and(|key| parents.contains(&key));
                            let known = inner.take().filter(|_| is_parent);
                            self.read_object(known.unwrap_or_default());
                        }
                        2 if is_usage && inner.is_none() => inner = found,
                        _ => {}
                    }
                }
                _ => {}
            }
        }
        // The key is cut off. Events of which nothing may be inside are shorter than what is kept.
        if !parents.is_empty() && depth >= 2 {
            self.read_object(inner.unwrap_or_default());
        }
    }

    /// Takes the numbers that an object has, and that are not known yet.
    fn read_object(&mut self, object: &[u8]) {
        let numbers: [(&mut Option<u32>, &[&[u8]]); 6] = [
            (&mut self.prompt, &[b"\"prompt_tokens\""]),
            (&mut self.input, &[b"\"input_tokens\""]),
            (
                &mut self.output,
                &[b"\"completion_tokens\"", b"\"output_tokens\""],
            ),
            (&mut self.cached, &[b"\"cached_tokens\""]),
            (&mut self.cache_read, &[b"\"cache_read_input_tokens\""]),
            (
                &mut self.cache_created,
                &[b"\"cache_creation_input_tokens\""],
            ),
        ];
        for (number, keys) in numbers {
            *number = number.or_else(|| keys.iter().find_map(|key| find_number(object, key)));
        }
    }
}

/// Key of the objects with tokens.
const USAGE: &[u8] = b"\"usage\"";

/// Place of the quotation mark with which the string begins whose last one stands behind `text`.
fn string_start(text: &[u8]) -> Option<usize> {
    let mut text = text;
    loop {
        let at = memrchr(b'"', text)?;
        text = text.get(..at)?;
        let escapes = text.iter().rev().take_while(|byte| **byte == b'\\');
        if escapes.count() % 2 == 0 {
            return Some(at);
        }
    }
}

/// The key, with its quotation marks, of the value that begins behind `text`; `None` if the value has none.
fn key_before(text: &[u8]) -> Option<&[u8]> {
    let text = text.trim_ascii_end().strip_suffix(b":")?.trim_ascii_end();
    let name = text.strip_suffix(b"\"")?;
    let start = string_start(name)?;
    text.get(start..)
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

    /// A forged object, as a tool or metadata of a request may have, in objects and arrays.
    const FORGED: &str = r#"{"usage":{"prompt_tokens":1,"input_tokens":1,"completion_tokens":1,"output_tokens":1,"cached_tokens":1,"cache_read_input_tokens":1},"x":[{"usage":{"prompt_tokens":1,"input_tokens":1}}]}"#;

    /// Bodies of all interfaces with `usage` among objects and texts of the request, and the tokens.
    fn answers_with_echoes(usage_of: impl Fn(&str) -> String) -> Vec<(String, Option<Usage>)> {
        let text = FORGED.replace('"', "\\\"");
        let (chat, response) = (
            r#"{"prompt_tokens":100,"completion_tokens":20,"prompt_tokens_details":{"cached_tokens":96}}"#,
            r#"{"input_tokens":36,"input_tokens_details":{"cached_tokens":32},"output_tokens":87}"#,
        );
        let message = r#"{"input_tokens":10,"cache_read_input_tokens":80,"output_tokens":7}"#;
        let [in_chat, in_response, in_message] = [chat, response, message].map(usage_of);
        let echoes = format!(r#""instructions":"{text}","tools":[{FORGED}],"metadata":{FORGED}"#);
        let output =
            format!(r#""output":[{{"content":[{{"text":"{text}"}}],"arguments":{FORGED}}}]"#);
        let completed = format!(
            r#"{{"id":"r",{echoes},{output},{in_response}{echoes},"user":"\"usage\":{{"}}"#
        );
        let called = format!(
            r#"{{"content":[{{"type":"tool_use","input":{FORGED}}}],{in_message}"stop":null}}"#
        );
        let chosen = format!(
            r#"{{"choices":[{{"message":{{"content":"{text}","x":{FORGED}}}}}],{in_chat}"x":null}}"#
        );
        let chunk = format!(r#"{{"choices":[],"echo":{FORGED},{in_chat}"x":{FORGED}}}"#);
        let streams = [
            (
                format!("data: {chosen}\n\ndata: {chunk}\n\ndata: [DONE]\n\n"),
                expected(100, Some(96), 20),
            ),
            (
                format!(
                    "event: response.created\ndata: {{\"response\":{{{echoes},\"usage\":null}}}}\n\nevent: response.completed\r\ndata: {{\"type\":\"response.completed\",\"response\":{completed}}}\r\n\r\n"
                ),
                expected(36, Some(32), 87),
            ),
            (
                format!(
                    "event: message_start\ndata: {{\"message\":{{{in_message}\"content\":[]}}}}\n\nevent: content_block_start\ndata: {{\"content_block\":{{\"input\":{FORGED}}}}}\n\nevent: message_delta\ndata: {{\"delta\":{{}},\"x\":{FORGED}}}\n\n"
                ),
                expected(90, Some(80), 7),
            ),
        ];
        let whole = [
            (chosen, expected(100, Some(96), 20)),
            (completed, expected(36, Some(32), 87)),
            (called, expected(90, Some(80), 7)),
            (
                format!(
                    r#"{{"object":"list","data":[{{"embedding":[1]}}],"echo":{FORGED},{in_chat}"model":"m"}}"#
                ),
                expected(100, Some(96), 20),
            ),
        ];
        whole.into_iter().chain(streams).collect()
    }

    #[test]
    fn objects_of_the_request_are_no_usage() {
        for (body, expected) in answers_with_echoes(|usage| format!(r#""usage":{usage},"#)) {
            assert_eq!(usage(&body), expected, "{body}");
            assert_eq!(
                usage(&body.replace(':', " : ").replace("data :", "data:")),
                expected
            );
        }
        // Without a `usage` of the interface there is none.
        for missing in [
            "",
            r#""usage":null,"#,
            r#""x\"usage":{"prompt_tokens":1,"input_tokens":1},"#,
        ] {
            for (body, _) in answers_with_echoes(|_| missing.to_owned()) {
                assert_eq!(usage(&body), None, "{body}");
            }
        }
    }

    #[test]
    fn usage_is_found_behind_a_beginning_that_is_cut_off() {
        let long = "x".repeat(2 * TAIL_BYTES);
        for text in [&*long, &FORGED.repeat(30).replace('"', "\\\"")] {
            let usage_text = r#""usage":{"input_tokens":36,"output_tokens":87}"#;
            let response =
                format!(r#"{{"output":[{{"text":"{text}"}}],"tools":[{FORGED}],{usage_text}}}"#);
            assert_eq!(usage(&response), expected(36, None, 87));
            let event =
                format!("data: {{\"type\":\"response.completed\",\"response\":{response}}}\n\n");
            assert_eq!(usage(&event), expected(36, None, 87));
            // Deeper objects are none, whatever the cut is in.
            let deeper = format!(
                "data: {{\"response\":{{\"metadata\":{{\"a\":\"{text}\",{usage_text}}}}}}}\n\n"
            );
            assert_eq!(usage(&deeper), None);
            assert_eq!(
                usage(&format!(r#"{{"a":"{text}","metadata":{{{usage_text}}}}}"#)),
                None
            );
        }
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
