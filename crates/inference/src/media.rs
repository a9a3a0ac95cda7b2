//! Finder of pictures, sounds and files in the messages of a request: strings with base64, which have far fewer tokens
//! than a text of their length.
//!
//! A string counts as such only where engines read media, by its place and its keys, and not by what it looks like:
//! otherwise a client could have a text count less. The places are, within the array of messages (or of the input):
//!
//! | interface | place |
//! |---|---|
//! | chat completions | `content[]` with `image_url.url`, `audio_url.url`, `video_url.url`, `input_audio.data`, `file.file_data` |
//! | responses | `content[]` or `output[]` with `image_url`, `file_data`, `input_audio.data` |
//! | Anthropic's messages | `content[]`, or `content[].content[]` of a tool's result, with `source.data` behind `"type":"base64"` |

use crate::short_text::ShortText;

/// Bytes that a picture, a sound or a file counts for at most: about 1,000 tokens before anything is learnt.
pub const MOST_MEDIA_BYTES: u64 = 4096;

/// Longest name of a key that matters.
const MAX_KEY: usize = 11;

/// Key of a value within the messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Key {
    Url,
    Data,
    FileData,
    Type,
    ImageUrl,
    /// `audio_url` and `video_url`.
    OtherUrl,
    InputAudio,
    File,
    Source,
    Content,
    Output,
    #[default]
    Other,
}

impl Key {
    fn of(text: &[u8]) -> Self {
        match text {
            b"url" => Key::Url,
            b"data" => Key::Data,
            b"file_data" => Key::FileData,
            b"type" => Key::Type,
            b"image_url" => Key::ImageUrl,
            b"audio_url" | b"video_url" => Key::OtherUrl,
            b"input_audio" => Key::InputAudio,
            b"file" => Key::File,
            b"source" => Key::Source,
            b"content" => Key::Content,
            b"output" => Key::Output,
            _ => Key::Other,
        }
    }
}

/// Objects and arrays that are open within the messages, the innermost in the lowest bit of `kinds`: 1 is an object.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Nesting {
    pub(crate) depth: u32,
    pub(crate) kinds: u64,
}

/// Object in which media may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Spot {
    /// Part of a content.
    Part,
    /// Object of a part.
    Inner,
    /// Anything else.
    Elsewhere,
}

impl Nesting {
    /// The kinds alternate: `messages[{ content[{ source{`, or `messages[{ content[{ content[{ source{`.
    fn spot(self) -> Spot {
        match (self.depth, self.kinds) {
            (4, 0b0101) | (6, 0b01_0101) => Spot::Part,
            (5, 0b0_1011) | (7, 0b010_1011) => Spot::Inner,
            _ => Spot::Elsewhere,
        }
    }
}

/// Finder of the strings with media.
#[derive(Clone, Debug)]
pub(crate) struct MediaFinder {
    /// String that is read now, or was read last.
    text: ShortText<MAX_KEY>,
    /// True if the string has an escape: a key may be any key.
    has_escape: bool,
    /// True if a value is next.
    is_value_next: bool,
    /// True if the string is a value.
    is_value: bool,
    /// Last key.
    key: Key,
    /// Key of the object of a part.
    parent: Key,
    /// True if the `type` of a `source` is `base64`.
    is_base64: bool,
    /// True if a `source` had media.
    has_data: bool,
    /// True if the open array of a message is its content, and if that of a part is.
    in_content: [bool; 2],
}

impl MediaFinder {
    /// Finder at the beginning of the messages.
    pub(crate) const NEW: Self = MediaFinder {
        text: ShortText::EMPTY,
        has_escape: false,
        is_value_next: false,
        is_value: false,
        key: Key::Other,
        parent: Key::Other,
        is_base64: false,
        has_data: false,
        in_content: [false; 2],
    };

    /// A string begins. Returns true if it has media.
    pub(crate) fn begin_string(&mut self, at: Nesting) -> bool {
        self.text.clear();
        self.has_escape = false;
        self.is_value = std::mem::take(&mut self.is_value_next);
        let [of_message, of_part] = self.in_content;
        let is_in_content = of_message && (at.depth < 6 || of_part);
        let is_media = self.is_value
            && is_in_content
            && match (at.spot(), self.parent, self.key) {
                (Spot::Part, _, Key::ImageUrl | Key::FileData) => true,
                (Spot::Inner, Key::ImageUrl | Key::OtherUrl, Key::Url) => true,
                (Spot::Inner, Key::InputAudio, Key::Data) => true,
                (Spot::Inner, Key::File, Key::FileData) => true,
                (Spot::Inner, Key::Source, Key::Data) => self.is_base64,
                _ => false,
            };
        self.has_data |= is_media;
        is_media
    }

    /// The string goes on.
    #[inline]
    pub(crate) fn add_text(&mut self, bytes: &[u8]) {
        self.text.append(bytes);
    }

    /// The string has an escape.
    pub(crate) fn note_escape(&mut self) {
        self.has_escape = true;
    }

    /// The string ends.
    pub(crate) fn end_string(&mut self, at: Nesting) {
        if self.is_value && self.key == Key::Type && at.spot() == Spot::Inner {
            self.is_base64 = self.text.get() == Some(b"base64") && !self.has_escape;
        }
    }

    /// Takes a byte that is in no string, once it has counted for `at`. Returns true if engines may see another object
    /// than the finder.
    pub(crate) fn take_structure(&mut self, byte: u8, at: Nesting) -> bool {
        match byte {
            b':' => return self.take_key(at),
            b'{' if at.spot() == Spot::Inner => {
                self.parent = self.key;
                (self.is_base64, self.has_data) = (false, false);
            }
            b'[' => self.open_array(at),
            _ => {}
        }
        self.is_value_next &= byte.is_ascii_whitespace();
        false
    }

    /// An array begins.
    fn open_array(&mut self, at: Nesting) {
        let [of_message, of_part] = &mut self.in_content;
        match (at.depth, at.kinds) {
            (3, 0b010) => *of_message = matches!(self.key, Key::Content | Key::Output),
            (5, 0b0_1010) => *of_part = self.key == Key::Content,
            _ => {}
        }
    }

    /// The string was a key. Returns true if the key may change what an object means whose media were found.
    fn take_key(&mut self, at: Nesting) -> bool {
        self.is_value_next = true;
        let text = self.text.get().filter(|_| !self.has_escape);
        self.key = text.map_or(Key::Other, Key::of);
        let is_source = at.spot() == Spot::Inner && self.parent == Key::Source;
        if is_source && self.has_escape {
            self.is_base64 = false;
        }
        is_source && self.has_data && (self.has_escape || self.key == Key::Type)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use crate::scanner::{Part, PartSink, Progress, Scanner};

    /// Media that a scan finds.
    #[derive(Debug, Default, PartialEq, Eq)]
    struct Found {
        media: Vec<String>,
        open: String,
        text: String,
    }

    impl PartSink for Found {
        fn begin_part(&mut self, _: Part) {}

        fn add_bytes(&mut self, _: Part, bytes: &[u8]) {
            assert!(self.open.is_empty());
            self.text.push_str(&String::from_utf8_lossy(bytes));
        }

        fn add_media(&mut self, part: Part, bytes: &[u8]) {
            assert_eq!(part, Part::Prompt);
            self.open.push_str(&String::from_utf8_lossy(bytes));
        }

        fn end_media(&mut self, _: Part) {
            self.media.push(std::mem::take(&mut self.open));
        }

        fn end_part(&mut self, _: Part) {}
    }

    fn scan_in(body: &str, size: usize) -> (Scanner, Found) {
        let (mut scanner, mut found) = (Scanner::new(), Found::default());
        for part in body.as_bytes().chunks(size) {
            scanner.feed_bytes(part, &mut found);
        }
        (scanner, found)
    }

    fn scan(body: &str) -> Vec<String> {
        let (scanner, found) = scan_in(body, body.len());
        assert_eq!(scanner.scan_progress(), Progress::Complete, "{body}");
        assert!(!scanner.is_ambiguous(), "{body}");
        for size in [1, 2, 7] {
            assert_eq!(scan_in(body, size).1, found, "{body} {size}");
        }
        found.media
    }

    /// Body with a part of a message's content.
    fn chat(part: &str) -> String {
        format!(
            r#"{{"model":"m","messages":[{{"role":"user","content":[{{"type":"text","text":"data:x"}},{part}]}}]}}"#
        )
    }

    #[test]
    fn media_are_found_where_engines_read_them() {
        for part in [
            r#"{"type":"image_url","image_url":{"url":"data:AB","detail":"low"}}"#,
            r#"{"image_url" : {"detail":"low" , "url" : "data:AB"} , "type":"image_url"}"#,
            r#"{"type":"image_url","image_url":"data:AB"}"#,
            r#"{"type":"input_audio","input_audio":{"format":"wav","data":"data:AB"}}"#,
            r#"{"type":"video_url","video_url":{"url":"data:AB"}}"#,
            r#"{"type":"file","file":{"filename":"a","file_data":"data:AB"}}"#,
            r#"{"type":"image","source":{"type":"base64","media_type":"image/png","data":"data:AB"}}"#,
            r#"{"type":"tool_result","content":[{"type":"image","source":{"type":"base64","data":"data:AB"}}]}"#,
        ] {
            assert_eq!(scan(&chat(part)), ["data:AB"], "{part}");
        }
        let two = r#"{"image_url":{"url":"data:A\/B"}},{"image_url":{"url":""}}"#;
        assert_eq!(scan(&chat(two)), [r"data:A\/B", ""]);
        let responses = r#"{"input":[{"role":"user","content":[{"type":"input_image","image_url":"data:AB"}]},{"type":"function_call_output","output":[{"type":"input_file","file_data":"CD"}]}]}"#;
        assert_eq!(scan(responses), ["data:AB", "CD"]);
    }

    #[test]
    fn texts_are_no_media_whatever_they_look_like() {
        for part in [
            r#"{"type":"text","text":"data:AB"}"#,
            r#"{"type":"text","data":"data:AB","url":"data:AB"}"#,
            r#"{"type":"document","source":{"type":"text","data":"data:AB"}}"#,
            r#"{"type":"document","source":{"data":"data:AB","type":"base64"}}"#,
            r#"{"source":{"type":"base64","type":"text","data":"data:AB"}}"#,
            r#"{"source":{"type":"base64","\u0074ype":"text","data":"data:AB"}}"#,
            r#"{"source":{"type":"base64"},"x":{"data":"data:AB"}}"#,
            r#"{"image_url":{"text":"data:AB"}}"#,
            r#"{"image_url":{"x":{"url":"data:AB"}}}"#,
            r#"{"image_url":["data:AB"]}"#,
            r#"{"image\u005furl":"data:AB"}"#,
            r#"{"type":"tool_use","input":{"image_url":"data:AB","source":{"type":"base64","data":"data:AB"}}}"#,
            r#"{"type":"tool_use","input":[{"image_url":"data:AB"}]}"#,
        ] {
            assert_eq!(scan(&chat(part)), [""; 0], "{part}");
        }
        for body in [
            r#"{"messages":[{"tool_calls":[{"image_url":"data:AB","function":{"url":"data:AB"}}]}]}"#,
            r#"{"messages":[{"image_url":"data:AB"}]}"#,
            r#"{"prompt":"data:AB"}"#,
            r#"{"input":["data:AB"]}"#,
            r#"{"messages":"a","tools":[{"content":[{"image_url":"data:AB"}]}]}"#,
            r#"{"system":[{"content":[{"image_url":"data:AB"}]}]}"#,
        ] {
            assert_eq!(scan(body), [""; 0], "{body}");
        }
    }

    #[test]
    fn a_second_type_behind_media_is_ambiguous() {
        for after in [r#""type":"text""#, r#""\u0074ype":"text""#] {
            let source = format!(r#"{{"source":{{"type":"base64","data":"AB",{after}}}}}"#);
            let (scanner, _) = scan_in(&chat(&source), 1000);
            assert!(scanner.is_ambiguous(), "{after}");
        }
    }

    proptest! {
        #[test]
        fn all_bytes_are_found_once(
            body in "(\\{\"messages\":)?(\\[\\{|\"content\":|\\{|\\}|\"image_url\":|\"source\":|\"type\":\"base64\",|\"data\":|\"[a-z\\\\]{0,5}\"|,|[ \\]]){0,40}",
            size in 1usize..20,
        ) {
            let (whole, found) = scan_in(&body, body.len().max(1));
            let (scanner, pieces) = scan_in(&body, size);
            prop_assert_eq!(&found, &pieces);
            prop_assert_eq!(whole.scan_progress(), scanner.scan_progress());
            prop_assert_eq!(whole.is_ambiguous(), scanner.is_ambiguous());
        }
    }
}
