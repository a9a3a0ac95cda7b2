//! Scanner for requests to language models: finds the model, the prompt and a few settings in a JSON body that comes in
//! parts.
//!
//! The scanner looks at the keys of the outermost object and takes the bytes of their values as they are. It does not
//! decode JSON: clients write the history of a conversation in the same way each time, and only equal bytes matter. It
//! knows the shapes of OpenAI's chat completions, completions, responses and embeddings, and of Anthropic's messages.
//!
//! - The work is linear in the bytes, and the memory is constant, whatever the parts are.
//! - A value that the scanner does not understand (not JSON, cut, nested too deeply) ends the scan without an error:
//!   everything found before it counts, everything after it is unknown.
//! - If a key occurs twice, the first occurrence counts, and the request is [ambiguous](Scanner::is_ambiguous): most
//!   engines take the last one. Do not grant rights by the model's name of an ambiguous request.

use std::ops::Range;

use memchr::memchr2;

use crate::media::{MediaFinder, Nesting};
use crate::short_text::ShortText;

/// Deepest nesting of objects and arrays within a value.
pub const MAX_DEPTH: u32 = 64;

/// Longest name of a model that is kept. Longer names count for the hashes of prompts only.
pub const MAX_MODEL: usize = 128;

/// Most answers that one request asks for, as far as they count.
pub const MOST_CHOICES: u32 = 128;

/// Longest text of a number or literal that is kept, which is more than any understood one has.
const MAX_SCALAR: usize = 24;

/// Value of a body whose bytes matter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// `tools`: engines put descriptions of tools before everything else.
    Tools,
    /// `system` (Anthropic) or `instructions` (OpenAI's responses): comes before the messages in the engine's prompt,
    /// wherever it is in the body.
    System,
    /// `messages`, `prompt` or `input`.
    Prompt,
    /// Name of the model, or of its adapter (LoRA), without the quotation marks.
    Model,
    /// `cache_salt`, without the quotation marks: requests with different salts share nothing.
    Salt,
}

/// Receiver of the bytes that the scanner finds.
///
/// Parts do not overlap, and each part begins at most once. [`PartSink::end_part`] is missing if the body is cut or
/// not understood within the part.
pub trait PartSink {
    /// Begins a part.
    fn begin_part(&mut self, part: Part);
    /// Takes the next bytes of a part that has begun.
    fn add_bytes(&mut self, part: Part, bytes: &[u8]);
    /// Ends a part: its value is complete.
    fn end_part(&mut self, part: Part);
    /// Takes the next bytes of a picture, a sound or a file within a part.
    fn add_media(&mut self, part: Part, bytes: &[u8]) {
        self.add_bytes(part, bytes);
    }
    /// Ends a picture, a sound or a file.
    fn end_media(&mut self, _part: Part) {}
}

/// State of a scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The object has not ended yet.
    Running,
    /// The object is complete.
    Complete,
    /// The scan has ended at something that is not understood.
    Unknown,
}

/// Position in the grammar of the outermost object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Start,
    FirstKey,
    Key,
    KeyText,
    Colon,
    Value,
    /// Within a string, an object or an array.
    Nested,
    /// Within a number or a literal.
    Scalar,
    Comma,
    End,
    Unknown,
}

/// Meaning of a known key's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    Part(Part),
    Stream,
    /// Most tokens of the answer.
    MaxTokens,
    /// Number of answers that the engine writes side by side.
    Choices,
}

/// Known keys. The position in the list is the key's bit in [`Scanner::seen`].
const KEYS: [(&[u8], Field); 14] = [
    (b"model", Field::Part(Part::Model)),
    (b"messages", Field::Part(Part::Prompt)),
    (b"prompt", Field::Part(Part::Prompt)),
    (b"input", Field::Part(Part::Prompt)),
    (b"system", Field::Part(Part::System)),
    (b"instructions", Field::Part(Part::System)),
    (b"tools", Field::Part(Part::Tools)),
    (b"cache_salt", Field::Part(Part::Salt)),
    (b"stream", Field::Stream),
    (b"max_tokens", Field::MaxTokens),
    (b"max_output_tokens", Field::MaxTokens),
    (b"max_completion_tokens", Field::MaxTokens),
    (b"n", Field::Choices),
    (b"best_of", Field::Choices),
];

/// Scanner of one request's body.
#[derive(Clone, Debug)]
pub struct Scanner {
    place: Place,
    /// Meaning of the value that is read now; `None` for a value that does not matter.
    field: Option<Field>,
    /// Number of objects and arrays that are open within the value.
    depth: u32,
    /// Kinds of the open ones, the innermost in the lowest bit: 1 is an object.
    kinds: u64,
    in_string: bool,
    /// True within a string with a picture, a sound or a file.
    in_media: bool,
    media: MediaFinder,
    /// True if the byte before was a backslash within a string.
    is_escaped: bool,
    /// Beginning of a key, number or literal.
    short: ShortText<MAX_SCALAR>,
    /// True if the key has an escape, and may be any name.
    key_has_escape: bool,
    /// Bits of the known keys that have occurred.
    seen: u16,
    /// Bits of the parts that have begun.
    begun: u8,
    is_ambiguous: bool,
    has_ambiguous_model: bool,
    model: ShortText<MAX_MODEL>,
    has_model: bool,
    /// Offset of the name of the model in the body.
    model_at: u64,
    stream: Option<bool>,
    max_tokens: Option<u32>,
    /// True if a limit of the answer is written as no plain number: engines may understand the limit.
    has_odd_limit: bool,
    /// Number of answers.
    choices: u32,
    total_bytes: u64,
}

impl Default for Scanner {
    fn default() -> Self {
        Scanner::new()
    }
}

impl Scanner {
    /// Creates a scanner that has seen nothing.
    pub fn new() -> Self {
        Scanner {
            place: Place::Start,
            field: None,
            depth: 0,
            kinds: 0,
            in_string: false,
            in_media: false,
            media: MediaFinder::NEW,
            is_escaped: false,
            short: ShortText::EMPTY,
            key_has_escape: false,
            seen: 0,
            begun: 0,
            is_ambiguous: false,
            has_ambiguous_model: false,
            model: ShortText::EMPTY,
            has_model: false,
            model_at: 0,
            stream: None,
            max_tokens: None,
            has_odd_limit: false,
            choices: 1,
            total_bytes: 0,
        }
    }

    /// Takes the next bytes of the body.
    pub fn feed_bytes(&mut self, bytes: &[u8], sink: &mut impl PartSink) {
        self.total_bytes = self.total_bytes.saturating_add(bytes.len() as u64);
        let mut rest = bytes;
        while let Some((&byte, after)) = rest.split_first() {
            rest = match self.place {
                Place::Unknown => return,
                Place::Nested => self.skip_nested(rest, sink),
                Place::KeyText => self.read_key(byte, after),
                Place::Scalar => self.read_scalar(byte, rest, after),
                _ if matches!(byte, b' ' | b'\t' | b'\n' | b'\r') => after,
                Place::Value => self.begin_value(byte, rest, after, sink),
                _ => {
                    self.step_structure(byte);
                    after
                }
            };
        }
    }

    /// State of the scan.
    pub fn scan_progress(&self) -> Progress {
        match self.place {
            Place::End => Progress::Complete,
            Place::Unknown => Progress::Unknown,
            _ => Progress::Running,
        }
    }

    /// Name of the model as it is written, without decoded escapes; `None` if it is not known (yet), or longer than
    /// [`MAX_MODEL`].
    pub fn model_name(&self) -> Option<&[u8]> {
        self.has_model.then(|| self.model.get()).flatten()
    }

    /// True if the name of the model is longer than [`MAX_MODEL`].
    pub fn has_long_model(&self) -> bool {
        self.has_model && self.model.get().is_none()
    }

    /// Place of the model's name in the body, without the quotation marks; `None` where [`Scanner::model_name`] is.
    pub fn model_place(&self) -> Option<Range<u64>> {
        let length = self.model_name()?.len() as u64;
        Some(self.model_at..self.model_at.saturating_add(length))
    }

    /// True if the client asks for a stream.
    pub fn wants_stream(&self) -> bool {
        self.stream == Some(true)
    }

    /// Most tokens of the answer, if the request has a limit that is understood. The highest of several limits counts:
    /// which of them an engine looks at depends on the interface.
    pub fn max_tokens(&self) -> Option<u32> {
        self.max_tokens.filter(|_| !self.has_odd_limit)
    }

    /// Number of answers that the engine writes side by side: at least 1, and at most [`MOST_CHOICES`], also if the number
    /// is not understood. The highest of several numbers counts.
    pub fn choices(&self) -> u32 {
        self.choices
    }

    /// True if a known key occurs twice, or if a key is written with escapes: engines may see another request than the
    /// scanner.
    pub fn is_ambiguous(&self) -> bool {
        self.is_ambiguous
    }

    /// True if engines may see another model than the scanner: `model` occurs twice or is no string, or a key is written
    /// with escapes.
    pub fn has_ambiguous_model(&self) -> bool {
        self.has_ambiguous_model
    }

    /// Number of bytes of the body so far.
    pub fn total_bytes(&self) -> u64 {
        self.total_bytes
    }

    /// Takes a byte between keys and values that is no white space.
    fn step_structure(&mut self, byte: u8) {
        self.place = match (self.place, byte) {
            (Place::Start, b'{') => Place::FirstKey,
            (Place::FirstKey | Place::Key, b'"') => {
                self.short.clear();
                self.key_has_escape = false;
                self.is_escaped = false;
                Place::KeyText
            }
            (Place::FirstKey | Place::Comma, b'}') => Place::End,
            (Place::Colon, b':') => Place::Value,
            (Place::Comma, b',') => Place::Key,
            _ => Place::Unknown,
        };
    }

    /// Takes a byte of a key, and finds the key's meaning at its end.
    fn read_key<'b>(&mut self, byte: u8, after: &'b [u8]) -> &'b [u8] {
        match byte {
            _ if self.is_escaped => self.is_escaped = false,
            b'\\' => {
                self.is_escaped = true;
                self.key_has_escape = true;
            }
            b'"' => {
                self.place = Place::Colon;
                self.field = self.find_field();
            }
            _ => self.short.push(byte),
        }
        after
    }

    fn find_field(&mut self) -> Option<Field> {
        if self.key_has_escape {
            self.is_ambiguous = true;
            self.has_ambiguous_model = true;
            return None;
        }
        let key = self.short.get()?;
        let index = KEYS.iter().position(|(known, _)| *known == key)?;
        let bit = 1 << index;
        if self.seen & bit != 0 {
            self.is_ambiguous = true;
            self.has_ambiguous_model |= key == b"model";
            return None;
        }
        self.seen |= bit;
        KEYS.get(index).map(|(_, field)| *field)
    }

    /// Begins the value whose first byte is `byte`.
    fn begin_value<'b>(
        &mut self,
        byte: u8,
        rest: &'b [u8],
        after: &'b [u8],
        sink: &mut impl PartSink,
    ) -> &'b [u8] {
        if !matches!(byte, b'"' | b'{' | b'[') {
            self.short.clear();
            self.place = match byte {
                b'-' | b'0'..=b'9' | b't' | b'f' | b'n' => Place::Scalar,
                _ => Place::Unknown,
            };
            return rest;
        }
        self.place = Place::Nested;
        self.has_odd_limit |= self.field == Some(Field::MaxTokens);
        if self.field == Some(Field::Choices) {
            self.choices = MOST_CHOICES;
        }
        (self.depth, self.kinds) = (0, 0);
        (self.in_string, self.is_escaped) = (false, false);
        (self.in_media, self.media) = (false, MediaFinder::NEW);
        let Some(Field::Part(part)) = self.field else {
            return rest;
        };
        let is_text = matches!(part, Part::Model | Part::Salt);
        let bit = 1 << part as u8;
        if self.begun & bit != 0 || (is_text && byte != b'"') {
            // A second prompt, or a model that has no name.
            self.is_ambiguous = true;
            self.has_ambiguous_model |= part == Part::Model;
            self.field = None;
            return rest;
        }
        self.begun |= bit;
        sink.begin_part(part);
        if is_text {
            self.in_string = true;
            if part == Part::Model {
                self.model_at = self.total_bytes.saturating_sub(after.len() as u64);
            }
            return after;
        }
        rest
    }

    /// Goes through a string, object or array as far as `bytes` have it, and returns what follows.
    fn skip_nested<'b>(&mut self, bytes: &'b [u8], sink: &mut impl PartSink) -> &'b [u8] {
        let was_media = self.in_media;
        let (rest, is_complete) = self.find_end(bytes);
        let length = bytes.len() - rest.len();
        if let Some(Field::Part(part)) = self.field {
            let is_text = matches!(part, Part::Model | Part::Salt);
            // Neither the last quotation mark of a text nor a byte that is not understood belongs to the part.
            let without = usize::from(self.place == Place::Unknown || (is_complete && is_text));
            let found = bytes.get(..length.saturating_sub(without));
            let found = found.unwrap_or_default();
            if part == Part::Model {
                self.model.append(found);
                self.has_model |= is_complete;
            }
            match was_media {
                _ if found.is_empty() => {}
                true => sink.add_media(part, found),
                false => sink.add_bytes(part, found),
            }
            if was_media && !self.in_media {
                sink.end_media(part);
            }
            if is_complete {
                sink.end_part(part);
            }
        }
        if is_complete {
            self.place = Place::Comma;
        }
        rest
    }

    /// Finds the end of the nested value, or a place at which media begin or end; returns the bytes behind it, and true if
    /// it is the end of the value.
    fn find_end<'b>(&mut self, bytes: &'b [u8]) -> (&'b [u8], bool) {
        let has_media = self.field == Some(Field::Part(Part::Prompt));
        let mut rest = bytes;
        loop {
            if self.in_string && !self.is_escaped {
                let at = memchr2(b'"', b'\\', rest);
                let (text, after) = rest.split_at(at.unwrap_or(rest.len()));
                if has_media {
                    self.media.add_text(text);
                }
                if at.is_none() {
                    return (&[], false);
                }
                rest = after;
            }
            let Some((&byte, after)) = rest.split_first() else {
                return (rest, false);
            };
            if self.in_media && !self.is_escaped && byte == b'"' {
                self.in_media = false;
                return (rest, false);
            }
            rest = after;
            if self.in_string {
                self.step_string(byte, has_media);
            } else {
                self.step_nested(byte);
                if has_media {
                    self.step_media(byte);
                }
            }
            if self.place == Place::Unknown {
                return (rest, false);
            }
            if self.depth == 0 && !self.in_string {
                return (rest, true);
            }
            if self.in_media && byte == b'"' && !self.is_escaped {
                return (rest, false);
            }
        }
    }

    /// Objects and arrays that are open within the value.
    fn nesting(&self) -> Nesting {
        Nesting {
            depth: self.depth,
            kinds: self.kinds,
        }
    }

    /// Takes a byte of a string at which something may end.
    fn step_string(&mut self, byte: u8, has_media: bool) {
        match byte {
            _ if self.is_escaped => self.is_escaped = false,
            b'\\' => {
                self.is_escaped = true;
                self.media.note_escape();
            }
            _ => {
                self.in_string = false;
                if has_media {
                    self.media.end_string(self.nesting());
                }
            }
        }
    }

    /// Looks for media at a byte of the messages that was in no string.
    fn step_media(&mut self, byte: u8) {
        let at = self.nesting();
        match byte {
            b'"' => self.in_media = self.media.begin_string(at),
            _ => self.is_ambiguous |= self.media.take_structure(byte, at),
        }
    }

    /// Takes a byte of a nested value that is in no string.
    fn step_nested(&mut self, byte: u8) {
        match byte {
            b'"' => self.in_string = true,
            b'{' | b'[' if self.depth < MAX_DEPTH => {
                self.depth += 1;
                self.kinds = (self.kinds << 1) | u64::from(byte == b'{');
            }
            b'}' | b']' if self.depth > 0 && (self.kinds & 1 == 1) == (byte == b'}') => {
                self.depth -= 1;
                self.kinds >>= 1;
            }
            b' ' | b'\t' | b'\n' | b'\r' | b',' | b':' | b'-' | b'+' | b'.' => {}
            _ if byte.is_ascii_alphanumeric() => {}
            _ => self.place = Place::Unknown,
        }
    }

    /// Takes a byte of a number or literal, or the byte behind it.
    fn read_scalar<'b>(&mut self, byte: u8, rest: &'b [u8], after: &'b [u8]) -> &'b [u8] {
        match byte {
            b'-' | b'+' | b'.' => self.short.push(byte),
            _ if byte.is_ascii_alphanumeric() => self.short.push(byte),
            b',' | b'}' | b' ' | b'\t' | b'\n' | b'\r' => {
                self.place = Place::Comma;
                self.take_scalar();
                return rest;
            }
            _ => self.place = Place::Unknown,
        }
        after
    }

    fn take_scalar(&mut self) {
        let text = self.short.get().unwrap_or_default();
        let number = || {
            let is_number = !text.is_empty() && text.iter().all(u8::is_ascii_digit);
            is_number.then(|| {
                text.iter().fold(0u32, |number, digit| {
                    let digit = u32::from(digit.wrapping_sub(b'0'));
                    number.saturating_mul(10).saturating_add(digit)
                })
            })
        };
        match self.field {
            Some(Field::Stream) => {
                self.stream = match text {
                    b"true" => Some(true),
                    b"false" => Some(false),
                    _ => None,
                }
            }
            Some(Field::MaxTokens) if text != b"null" => match number() {
                Some(number) => self.max_tokens = self.max_tokens.max(Some(number)),
                None => self.has_odd_limit = true,
            },
            Some(Field::Choices) if text != b"null" => {
                let number = number().unwrap_or(MOST_CHOICES);
                self.choices = self.choices.max(number.min(MOST_CHOICES));
            }
            Some(Field::MaxTokens | Field::Choices | Field::Part(_)) | None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Everything that a scan finds.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    struct Found {
        parts: Vec<(Part, Vec<u8>, bool)>,
    }

    impl PartSink for Found {
        fn begin_part(&mut self, part: Part) {
            assert!(self.parts.iter().all(|(known, ..)| *known != part));
            self.parts.push((part, Vec::new(), false));
        }

        fn add_bytes(&mut self, part: Part, bytes: &[u8]) {
            let (last, text, is_complete) = self.parts.last_mut().unwrap();
            assert!(*last == part && !*is_complete);
            text.extend_from_slice(bytes);
        }

        fn end_part(&mut self, part: Part) {
            let (last, _, is_complete) = self.parts.last_mut().unwrap();
            assert!(*last == part && !*is_complete);
            *is_complete = true;
        }
    }

    impl Found {
        fn get(&self, part: Part) -> Option<&str> {
            let mut parts = self.parts.iter();
            let (_, text, _) = parts.find(|(known, ..)| *known == part)?;
            Some(std::str::from_utf8(text).unwrap())
        }
    }

    fn scan(body: &str) -> (Scanner, Found) {
        let (mut scanner, mut found) = (Scanner::new(), Found::default());
        scanner.feed_bytes(body.as_bytes(), &mut found);
        (scanner, found)
    }

    #[test]
    fn a_chat_completion_is_understood() {
        let (scanner, found) = scan(
            r#" {"model": "meta/llama-3", "messages":[{"role":"user","content":"say \"hi\" {"}] ,
               "stream":true,"temperature":0.7,"max_tokens":100,"max_completion_tokens" : 50 } "#,
        );
        assert_eq!(scanner.scan_progress(), Progress::Complete);
        assert_eq!(scanner.model_name(), Some(&b"meta/llama-3"[..]));
        assert_eq!(found.get(Part::Model), Some("meta/llama-3"));
        let messages = r#"[{"role":"user","content":"say \"hi\" {"}]"#;
        assert_eq!(found.get(Part::Prompt), Some(messages));
        assert!(scanner.wants_stream() && !scanner.is_ambiguous());
        assert_eq!(scanner.max_tokens(), Some(100));
        assert!(found.parts.iter().all(|(.., is_complete)| *is_complete));
    }

    #[test]
    fn prompts_of_other_interfaces_are_found() {
        let (_, found) = scan(r#"{"prompt":"Once upon","max_tokens":5,"cache_salt":"s\"1"}"#);
        assert_eq!(found.get(Part::Prompt), Some("\"Once upon\""));
        assert_eq!(found.get(Part::Salt), Some("s\\\"1"));
        let (_, found) = scan(r#"{"input":["a","b"],"instructions":null,"model":"e"}"#);
        assert_eq!(found.get(Part::Prompt), Some(r#"["a","b"]"#));
        assert_eq!(found.get(Part::System), None);
        let (scanner, found) = scan(
            r#"{"max_tokens":9,"messages":[],"system":[{"text":"x"}],"tools":[{"model":"no"}]}"#,
        );
        assert_eq!(found.get(Part::Prompt), Some("[]"));
        assert_eq!(found.get(Part::System), Some(r#"[{"text":"x"}]"#));
        assert_eq!(found.get(Part::Tools), Some(r#"[{"model":"no"}]"#));
        // Keys within nested objects do not count.
        assert_eq!(scanner.model_name(), None);
    }

    #[test]
    fn the_first_of_two_counts_and_the_request_is_ambiguous() {
        let (scanner, found) = scan(r#"{"model":"a","model":"b","stream":false,"stream":true}"#);
        assert_eq!(scanner.model_name(), Some(&b"a"[..]));
        assert_eq!(found.parts.len(), 1);
        assert!(scanner.is_ambiguous() && !scanner.wants_stream());
        for body in [
            r#"{"prompt":"a","messages":[]}"#,
            r#"{"mod\u0065l":"a"}"#,
            r#"{"model":["a"]}"#,
        ] {
            assert!(scan(body).0.is_ambiguous(), "{body}");
        }
        let (scanner, found) = scan(r#"{"prompt":null,"messages":["a"]}"#);
        assert_eq!(found.get(Part::Prompt), Some(r#"["a"]"#));
        assert!(!scanner.is_ambiguous());
    }

    #[test]
    fn oddness_ends_the_scan_and_nothing_else() {
        for body in [
            "[]",
            "x",
            "\u{feff}{}",
            "{,}",
            "{\"a\" 1}",
            "{\"a\":?}",
            "{\"a\":[}",
            "{\"a\":[1}]}",
            "{\"a\":1 2}",
            "{}x",
            "{\"a\":1;}",
            "{\"a\":[\u{1}]}",
        ] {
            let before = r#"{"model":"m","max_tokens":7,"#;
            assert_eq!(scan(body).0.scan_progress(), Progress::Unknown, "{body}");
            let (scanner, found) = scan(&format!("{before}\"b\":{body}"));
            assert_eq!(scanner.model_name(), Some(&b"m"[..]), "{body}");
            assert_eq!(scanner.max_tokens(), Some(7));
            assert_eq!(found.parts.len(), 1);
        }
        let (scanner, found) = scan(r#"{"model":"m","messages":["abc}"#);
        assert_eq!(scanner.scan_progress(), Progress::Running);
        assert_eq!(found.get(Part::Prompt), Some(r#"["abc}"#));
        assert!(!found.parts[1].2);
    }

    #[test]
    fn nesting_and_lengths_are_bounded() {
        let nested = |depth: usize| {
            let (open, close) = ("[".repeat(depth), "]".repeat(depth));
            scan(&format!("{{\"messages\":{open}{close}}}"))
        };
        let (scanner, found) = nested(MAX_DEPTH as usize);
        assert_eq!(scanner.scan_progress(), Progress::Complete);
        assert_eq!(found.get(Part::Prompt).unwrap().len(), 128);
        let (scanner, found) = nested(MAX_DEPTH as usize + 1);
        assert_eq!(scanner.scan_progress(), Progress::Unknown);
        assert_eq!(found.get(Part::Prompt), Some(&*"[".repeat(64)));
        let long = "m".repeat(MAX_MODEL);
        let (scanner, _) = scan(&format!("{{\"model\":\"{long}\"}}"));
        assert_eq!(scanner.model_name(), Some(long.as_bytes()));
        assert!(!scanner.has_long_model());
        let (scanner, found) = scan(&format!("{{\"model\":\"{long}x\"}}"));
        assert_eq!(scanner.model_name(), None);
        assert!(scanner.has_long_model());
        assert_eq!(found.get(Part::Model).unwrap().len(), MAX_MODEL + 1);
        let (scanner, _) = scan(&format!("{{\"max_tokens\":{}}}", "9".repeat(20)));
        assert_eq!(scanner.max_tokens(), Some(u32::MAX));
        for number in ["1e3", "-5", "1.5", "true", "null", &"9".repeat(30)] {
            let (scanner, _) = scan(&format!("{{\"max_tokens\":{number}}}"));
            assert_eq!(scanner.max_tokens(), None, "{number}");
        }
        // Engines may look at any of several limits, and may understand what the scanner does not.
        for (limits, expected) in [
            (r#""max_tokens":9,"max_output_tokens":1"#, Some(9)),
            (r#""max_completion_tokens":1,"max_tokens":9"#, Some(9)),
            (r#""max_tokens":9,"max_completion_tokens":null"#, Some(9)),
            (r#""max_tokens":1,"max_completion_tokens":1e5"#, None),
            (r#""max_tokens":"99","max_completion_tokens":1"#, None),
        ] {
            let (scanner, _) = scan(&format!("{{{limits}}}"));
            assert_eq!(scanner.max_tokens(), expected, "{limits}");
        }
        for (numbers, expected) in [
            (r#""n":0"#, 1),
            (r#""n":null,"best_of":3"#, 3),
            (r#""best_of":3,"n":7"#, 7),
            (r#""n":99999999999"#, MOST_CHOICES),
            (r#""n":"2""#, MOST_CHOICES),
            (r#""n":2.0"#, MOST_CHOICES),
            (r#""N":7,"x":{"n":7}"#, 1),
        ] {
            let (scanner, _) = scan(&format!("{{{numbers}}}"));
            assert_eq!(scanner.choices(), expected, "{numbers}");
        }
    }

    /// A JSON value as text.
    fn json() -> impl Strategy<Value = String> {
        let leaf = prop_oneof![
            Just("null".to_owned()),
            Just("true".to_owned()),
            (-1000i32..1000).prop_map(|number| number.to_string()),
            r#"([a-z{}\[\],: ]|\\"|\\\\|\\n|\\u00e4|ä){0,12}"#
                .prop_map(|text| format!("\"{text}\"")),
        ];
        leaf.prop_recursive(4, 24, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4)
                    .prop_map(|values| format!("[{}]", values.join(" , "))),
                prop::collection::vec(("(model|prompt|[a-z]{1,4})", inner), 0..4).prop_map(
                    |fields| {
                        let fields = fields
                            .iter()
                            .map(|(key, value)| format!("\"{key}\": {value}"));
                        format!("{{{}}}", fields.collect::<Vec<_>>().join(","))
                    }
                ),
            ]
        })
    }

    /// Scans a body that comes in pieces, which end at `cuts`.
    fn scan_pieces(body: &[u8], cuts: &[prop::sample::Index]) -> (String, Found) {
        let (mut scanner, mut found) = (Scanner::new(), Found::default());
        let mut ends: Vec<_> = cuts.iter().map(|cut| cut.index(body.len() + 1)).collect();
        ends.push(body.len());
        ends.sort_unstable();
        let mut from = 0;
        for end in ends {
            scanner.feed_bytes(&body[from..end], &mut found);
            from = end;
        }
        scanner.short.bytes = [0; MAX_SCALAR];
        (format!("{scanner:?}"), found)
    }

    proptest! {
        #[test]
        fn values_are_found_wherever_the_body_is_split(
            fields in prop::collection::vec(
                ("(model|messages|prompt|input|system|tools|stream|max_tokens|cache_salt|[a-z]{1,30})", json()),
                0..8,
            ),
            cuts: Vec<prop::sample::Index>,
        ) {
            let text: Vec<_> = fields.iter().map(|(key, value)| format!("\"{key}\" :\n{value}")).collect();
            let body = format!("{{{}}}", text.join(" ,"));
            let (whole, mut found) = scan(&body);
            prop_assert_eq!(whole.scan_progress(), Progress::Complete, "{}", body);
            let (_, split) = scan_pieces(body.as_bytes(), &cuts);
            prop_assert_eq!(&split, &found);
            prop_assert_eq!(
                scan_pieces(body.as_bytes(), &cuts).0,
                scan_pieces(body.as_bytes(), &[]).0
            );
            // A name in place of another one changes nothing else, for somebody who reads JSON.
            if let Some(place) = whole.model_place() {
                let place = place.start as usize..place.end as usize;
                prop_assert_eq!(Some(&body.as_bytes()[place.clone()]), whole.model_name());
                if !whole.has_ambiguous_model() {
                    let mut text = body.clone();
                    text.replace_range(place, "Qwen/\\u00e4");
                    let mut expected: serde_json::Value = serde_json::from_str(&body).unwrap();
                    expected["model"] = "Qwen/ä".into();
                    let read: serde_json::Value = serde_json::from_str(&text).unwrap();
                    prop_assert_eq!(read, expected);
                }
            }
            // The first value of each part that is no number or literal.
            let mut seen: Vec<&str> = Vec::new();
            for (key, value) in &fields {
                let known = KEYS.iter().find(|(known, _)| *known == key.as_bytes());
                if seen.contains(&key.as_str()) {
                    continue;
                }
                seen.push(key);
                let Some((_, Field::Part(part))) = known else { continue };
                let is_text = matches!(part, Part::Model | Part::Salt);
                let expected = match value.as_bytes()[0] {
                    b'"' if is_text => &value[1..value.len() - 1],
                    b'"' | b'[' | b'{' if !is_text => value.as_str(),
                    _ => continue,
                };
                let place = found.parts.iter().position(|(known, ..)| known == part);
                if let Some(place) = place {
                    let (_, text, is_complete) = found.parts.remove(place);
                    prop_assert_eq!(std::str::from_utf8(&text).unwrap(), expected);
                    prop_assert!(is_complete);
                }
            }
            prop_assert!(found.parts.is_empty(), "{:?}", found);
        }

        #[test]
        fn nothing_breaks_it_and_pieces_do_not_matter(
            body in "([{}\\[\\]\",:\\\\ 0-9tfn]|\"model\"|\"prompt\":|\\PC){0,60}",
            cuts: Vec<prop::sample::Index>,
        ) {
            let whole = scan_pieces(body.as_bytes(), &[]);
            prop_assert_eq!(scan_pieces(body.as_bytes(), &cuts), whole);
        }

        #[test]
        fn any_bytes_are_taken(body: Vec<u8>) {
            let (mut scanner, mut found) = (Scanner::new(), Found::default());
            scanner.feed_bytes(b"{\"messages\":[", &mut found);
            scanner.feed_bytes(&body, &mut found);
            prop_assert_eq!(scanner.total_bytes(), 13 + body.len() as u64);
        }
    }
}
