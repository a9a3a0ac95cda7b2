//! Replacement of a few bytes in the content of a body, whatever its framing is.

use std::ops::Range;

/// Reason why a body stays as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotRewritten {
    /// A field of the head has a digest of the body.
    Digest,
    /// There is no memory for the other body.
    Exhausted,
    /// The bytes to replace are not here, or were sent.
    NotHere,
}

/// Bytes of a body, with its framing, in place of others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContentEdit {
    /// Bytes that are replaced: offsets in the body with its framing.
    pub place: Range<usize>,
    /// Bytes in their place.
    pub bytes: Vec<u8>,
}

impl ContentEdit {
    /// Plans to replace the content at `place` in a body of which `wire` holds the beginning, valid as far as it goes, by
    /// `text`, which is not empty. Other bytes of the content stay; in a chunked body, the sizes of the chunks with the
    /// replaced bytes change. `None` if `wire` does not have the whole place.
    pub fn new(wire: &[u8], is_chunked: bool, place: Range<usize>, text: &[u8]) -> Option<Self> {
        if place.is_empty() || text.is_empty() {
            return None;
        }
        if !is_chunked {
            return (place.end <= wire.len()).then(|| ContentEdit {
                place,
                bytes: text.to_vec(),
            });
        }
        let mut chunk = Chunk::parse(wire, 0, 0)?;
        while chunk.content.end <= place.start {
            chunk = chunk.find_next(wire)?;
        }
        let (start, mut bytes, mut text) = (chunk.start, Vec::new(), text);
        loop {
            let end = chunk.content.end.min(place.end);
            let before = place.start.saturating_sub(chunk.content.start);
            let kept_after = chunk.content.end.checked_sub(end)?;
            let size = before.checked_add(text.len())?.checked_add(kept_after)?;
            if size > 0 {
                bytes.extend_from_slice(format!("{size:x}\r\n").as_bytes());
                let head = chunk.data_at..chunk.data_at.checked_add(before)?;
                bytes.extend_from_slice(wire.get(head)?);
                bytes.extend_from_slice(text);
            }
            let after = chunk
                .data_at
                .checked_add(end.checked_sub(chunk.content.start)?)?;
            if end == place.end {
                // An empty chunk would end the body: its end goes, too.
                let rest = if size > 0 {
                    after
                } else {
                    skip_line(wire, after)?
                };
                return (rest <= wire.len()).then_some(ContentEdit {
                    place: start..rest,
                    bytes,
                });
            }
            if size > 0 {
                bytes.extend_from_slice(b"\r\n");
            }
            text = &[];
            chunk = chunk.find_next(wire)?;
        }
    }

    /// Difference of the length of the body.
    pub fn length_change(&self) -> i64 {
        let length = |bytes: usize| i64::try_from(bytes).unwrap_or(i64::MAX);
        length(self.bytes.len()).saturating_sub(length(self.place.len()))
    }
}

/// Chunk with content in the beginning of a chunked body.
struct Chunk {
    /// Offset of its size.
    start: usize,
    /// Offset of its content.
    data_at: usize,
    /// Offsets in the content of the body.
    content: Range<usize>,
}

impl Chunk {
    /// Parses the chunk at `start`, whose content is at `content_at`; `None` if its size is not there, or it is the last
    /// one.
    fn parse(wire: &[u8], start: usize, content_at: usize) -> Option<Self> {
        let line = wire.get(start..)?;
        let digits = line.iter().take_while(|byte| byte.is_ascii_hexdigit());
        let mut size: usize = 0;
        for &digit in digits {
            let digit = char::from(digit).to_digit(16)?;
            size = size.checked_mul(16)?.checked_add(digit as usize)?;
        }
        let data_at = skip_line(wire, start)?;
        let end = content_at.checked_add(size)?;
        (size > 0).then_some(Chunk {
            start,
            data_at,
            content: content_at..end,
        })
    }

    fn find_next(&self, wire: &[u8]) -> Option<Self> {
        let end = self.data_at.checked_add(self.content.len())?;
        Chunk::parse(wire, skip_line(wire, end)?, self.content.end)
    }
}

/// Returns the offset behind the line that begins at `start`.
fn skip_line(wire: &[u8], start: usize) -> Option<usize> {
    let end = wire.get(start..)?.iter().position(|&byte| byte == b'\n')?;
    start.checked_add(end)?.checked_add(1)
}

/// Bytes of a head in place of others.
pub(crate) struct HeadEdit {
    /// Offset behind the bytes that are replaced.
    at: usize,
    /// Difference of the length.
    change: isize,
}

impl HeadEdit {
    /// No change.
    pub(crate) const NONE: Self = HeadEdit {
        at: usize::MAX,
        change: 0,
    };

    /// Returns the new offset of a byte of the head.
    pub(crate) fn move_offset(&self, offset: usize) -> usize {
        match offset >= self.at {
            true => offset.saturating_add_signed(self.change),
            false => offset,
        }
    }
}

/// Replaces bytes in the body behind a head.
pub(crate) fn replace_body(bytes: &mut Vec<u8>, body_at: usize, edit: &ContentEdit) {
    let start = body_at.saturating_add(edit.place.start);
    let end = body_at.saturating_add(edit.place.end);
    if start <= end && end <= bytes.len() {
        bytes.splice(start..end, edit.bytes.iter().copied());
    }
}

/// New value of `Content-Length` in a head.
pub(crate) struct LengthEdit {
    /// Place of the digits.
    place: Range<usize>,
    digits: String,
}

impl LengthEdit {
    /// Most digits of a length.
    pub(crate) const MAX_DIGITS: usize = 20;

    /// Plans to add `change` to the one length that `head` says.
    pub(crate) fn new(head: &[u8], change: i64) -> Option<Self> {
        let is_length = |field: &LineField<'_>| field.name.eq_ignore_ascii_case(b"content-length");
        let mut lengths = fields_of(head).filter(is_length);
        let (Some(field), None) = (lengths.next(), lengths.next()) else {
            return None;
        };
        let digits = std::str::from_utf8(field.value).ok();
        let length: Option<u64> = digits.and_then(|digits| digits.parse().ok());
        let length = length.and_then(|length| length.checked_add_signed(change));
        Some(LengthEdit {
            place: field.value_at..field.value_at.saturating_add(field.value.len()),
            digits: length?.to_string(),
        })
    }

    /// Writes the new length into the head that ends at `body_at`.
    pub(crate) fn apply(self, bytes: &mut Vec<u8>, body_at: &mut usize) -> HeadEdit {
        let length = |bytes: usize| isize::try_from(bytes).unwrap_or_default();
        let change = length(self.digits.len()).saturating_sub(length(self.place.len()));
        let at = self.place.end;
        bytes.splice(self.place, self.digits.bytes());
        *body_at = body_at.saturating_add_signed(change);
        HeadEdit { at, change }
    }
}

/// Field of a head that was written here.
pub(crate) struct LineField<'a> {
    pub(crate) name: &'a [u8],
    value: &'a [u8],
    /// Offset of the value in the head.
    value_at: usize,
}

/// Fields of a head whose lines have the form `Name: value`.
pub(crate) fn fields_of(head: &[u8]) -> impl Iterator<Item = LineField<'_>> {
    let mut at = 0_usize;
    let lines = head.split_inclusive(|&byte| byte == b'\n');
    let lines = lines.map(move |line| {
        let start = at;
        at = at.saturating_add(line.len());
        (start, line)
    });
    lines.skip(1).filter_map(|(start, line)| {
        let colon = line.iter().position(|&byte| byte == b':')?;
        let (name, rest) = line.split_at_checked(colon)?;
        let rest = rest.get(1..)?;
        let blanks = rest.len().saturating_sub(rest.trim_ascii_start().len());
        Some(LineField {
            name,
            value: rest.trim_ascii(),
            value_at: start.saturating_add(colon).saturating_add(1 + blanks),
        })
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::http1::chunked::{Decoder, content_pieces};

    fn content_of(wire: &[u8]) -> Vec<u8> {
        let (mut content, mut decoder) = (Vec::new(), Some(Decoder::new()));
        content_pieces(&mut decoder, wire, |piece| content.extend_from_slice(piece));
        assert!(decoder.unwrap().is_done());
        content
    }

    fn apply(wire: &[u8], edit: ContentEdit) -> Vec<u8> {
        let mut wire = wire.to_vec();
        let expected = wire.len() as i64 + edit.length_change();
        wire.splice(edit.place, edit.bytes);
        assert_eq!(wire.len() as i64, expected);
        wire
    }

    #[test]
    fn sizes_of_chunks_follow_and_no_chunk_becomes_the_last_one() {
        let edit = |wire: &[u8], place| {
            let edit = ContentEdit::new(wire, true, place, b"Q/7")?;
            Some(String::from_utf8(apply(wire, edit)).unwrap())
        };
        let wire = b"4\r\n\"gpt\r\n2;a=b\r\n-4\r\n01\r\no\r\n1\r\n\"\r\n0\r\n\r\n";
        let found = edit(wire, 1..7).unwrap();
        assert_eq!(found, "4\r\n\"Q/7\r\n1\r\n\"\r\n0\r\n\r\n");
        // The end of a chunk has not come.
        assert_eq!(edit(b"ff\r\n\"gpt\"x", 1..4).unwrap(), "ff\r\n\"Q/7\"x");
        assert_eq!(edit(b"f\r\n\"gpt-4o\"", 1..7).unwrap(), "c\r\n\"Q/7\"");
        for (wire, place) in [
            (&b"3\r\n\"gp\r\n"[..], 1..4),
            (b"3\r\n\"gp\r\n5", 1..4),
            (b"3\r\n\"gp\r\n0\r\n\r\n", 1..4),
            (b"9\r\n\"gp", 1..4),
            (b"ffffffffffffffffff\r\n", 0..1),
            (b"", 0..1),
            (b"3\r\nabc", 1..1),
        ] {
            assert_eq!(edit(wire, place.clone()), None, "{place:?}");
        }
        assert_eq!(ContentEdit::new(b"abc", false, 1..4, b"x"), None);
    }

    proptest! {
        #[test]
        fn the_content_is_the_same_but_for_the_place(
            parts in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..9), 1..12),
            first: prop::sample::Index,
            second: prop::sample::Index,
            text in "[a-z]{1,20}",
        ) {
            let content = parts.concat();
            let (a, b) = (first.index(content.len() + 1), second.index(content.len() + 1));
            let place = a.min(b)..a.max(b);
            prop_assume!(!place.is_empty());
            let mut expected = content.clone();
            expected.splice(place.clone(), text.bytes());
            let plain = ContentEdit::new(&content, false, place.clone(), text.as_bytes()).unwrap();
            prop_assert_eq!(apply(&content, plain), expected.clone());
            let mut wire = Vec::new();
            for part in &parts {
                wire.extend_from_slice(format!("{:X}\r\n", part.len()).as_bytes());
                wire.extend_from_slice(part);
                wire.extend_from_slice(b"\r\n");
            }
            wire.extend_from_slice(b"0\r\n\r\n");
            let edit = ContentEdit::new(&wire, true, place.clone(), text.as_bytes()).unwrap();
            prop_assert_eq!(content_of(&apply(&wire, edit.clone())), expected.clone());
            // The same with as little as there must be, to which the rest is added.
            let (here, rest) = wire.split_at(edit.place.end);
            if let Some(edit) = ContentEdit::new(here, true, place, text.as_bytes()) {
                let whole = [apply(here, edit), rest.to_vec()].concat();
                prop_assert_eq!(content_of(&whole), expected);
            }
        }

        #[test]
        fn any_bytes_are_taken(wire: Vec<u8>, start in 0..40_usize, len in 0..40_usize) {
            if let Some(edit) = ContentEdit::new(&wire, true, start..start + len, b"x") {
                prop_assert!(edit.place.end <= wire.len());
            }
        }
    }
}
