//! Bodies of which a few bytes are replaced before the message is sent.

use std::ops::Range;
use std::sync::Arc;

use super::{Flow, Framing};
use crate::buffer::Buffer;
use crate::http::copy::CopyRefusal;
use crate::http1::content_edit::{
    ContentEdit, HeadEdit, LengthEdit, LineField, NotRewritten, fields_of, replace_body,
};
use crate::memory::{HEAD_BYTES, Memory};

/// Fields with a digest of the body, which is wrong for another body.
const DIGESTS: [&[u8]; 5] = [
    b"content-digest",
    b"repr-digest",
    b"digest",
    b"content-md5",
    b"x-amz-content-sha256",
];

impl Flow {
    /// Number of bytes of the body, with its framing, that wait to be sent.
    pub(in crate::http) fn body_here(&self) -> usize {
        let joined = self.head.len().saturating_sub(self.body_at);
        joined.saturating_add(self.ready)
    }

    /// Replaces the content at `place` by `text` in a message of which nothing was sent, and in its copy. Corrects
    /// `Content-Length`, and returns how the head has changed. Nothing has changed after an error.
    #[cold]
    pub(in crate::http) fn rewrite_content(
        &mut self,
        is_chunked: bool,
        place: Range<usize>,
        text: &[u8],
        memory: &Arc<Memory>,
    ) -> Result<HeadEdit, NotRewritten> {
        if !self.is_untouched() || self.is_stream || matches!(self.framing, Framing::Stream { .. })
        {
            return Err(NotRewritten::NotHere);
        }
        let head = self.head.get(..self.body_at).unwrap_or_default();
        let is_digest = |field: &LineField<'_>| {
            DIGESTS
                .iter()
                .any(|known| known.eq_ignore_ascii_case(field.name))
        };
        if fields_of(head).any(|field| is_digest(&field)) {
            return Err(NotRewritten::Digest);
        }
        self.join_ready(memory)?;
        let (head, body) = self.head.split_at(self.body_at);
        let edit = ContentEdit::new(body, is_chunked, place, text);
        let edit = edit.ok_or(NotRewritten::NotHere)?;
        let length = match is_chunked {
            true => None,
            false => {
                let length = LengthEdit::new(head, edit.length_change());
                Some(length.ok_or(NotRewritten::NotHere)?)
            }
        };
        let grown = edit.bytes.len().saturating_add(LengthEdit::MAX_DIGITS);
        let size = self.head.len().saturating_add(grown);
        if !self.grow_head(size, size, memory) {
            return Err(NotRewritten::Exhausted);
        }
        if let Some(copy) = &mut self.copy
            && let Ok(whole) = &mut **copy
            && whole.rewrite_content(&edit).is_err()
        {
            **copy = Err(CopyRefusal::Exhausted);
        }
        replace_body(&mut self.head, self.body_at, &edit);
        let changed = match length {
            Some(length) => length.apply(&mut self.head, &mut self.body_at),
            None => HeadEdit::NONE,
        };
        self.written = 0;
        if let Some(places) = &mut self.places {
            places.move_parts(|offset| changed.move_offset(offset));
            let length = places.length.as_mut();
            if let Some(length) = length.filter(|_| !is_chunked) {
                *length = length.saturating_add_signed(edit.length_change());
            }
        }
        Ok(changed)
    }

    /// Moves what was read of the body behind the head.
    fn join_ready(&mut self, memory: &Arc<Memory>) -> Result<(), NotRewritten> {
        if self.ready == 0 {
            return Ok(());
        }
        if !self.copy_behind_head(self.ready, self.body_here(), memory) {
            return Err(NotRewritten::Exhausted);
        }
        let copied = std::mem::take(&mut self.ready);
        if let Some(buffer) = &mut self.buffer {
            buffer.consume(copied);
        }
        if self.buffer.as_ref().is_some_and(Buffer::is_empty) {
            self.buffer = None;
        }
        Ok(())
    }

    /// Makes room for `size` bytes of head and body, at most `most` if more are likely to follow. False if there is no
    /// memory for them.
    pub(super) fn grow_head(&mut self, size: usize, most: usize, memory: &Arc<Memory>) -> bool {
        if size <= self.head.capacity() {
            return true;
        }
        let size = self.head.capacity().saturating_mul(2).clamp(size, most);
        let charged = match &mut self._charge {
            Some(charge) => charge.grow_to(size),
            None => memory
                .take_above(HEAD_BYTES, size)
                .map(|charge| self._charge = charge),
        };
        if charged.is_err() {
            return false;
        }
        self.head
            .reserve_exact(size.saturating_sub(self.head.len()));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::copy::CopyPlan;
    use crate::http::flow::Bounds;
    use crate::http1::Body;
    use crate::memory::tests::new_memory;

    fn new_flow(fields: &str, body: &[u8], memory: &Arc<Memory>) -> Flow {
        let head = format!("POST / HTTP/1.1\r\n{fields}\r\n").into_bytes();
        let none = Flow::new(head, Body::None, false, None, Bounds::NONE, memory);
        let mut flow = none.unwrap();
        flow.head.extend_from_slice(body);
        flow
    }

    #[test]
    fn the_length_and_the_copy_follow_the_body() {
        let memory = new_memory(1 << 20);
        let body = br#"{"model":"gpt"}"#;
        let padded = [&body[..], &b" ".repeat(84)].concat();
        let flow = new_flow("content-length:  99\r\nX: 1\r\n", &padded, &memory);
        let mut flow = flow.copy_while_read(CopyPlan {
            most: 200,
            memory: Arc::clone(&memory),
        });
        let before = flow.body_at;
        let changed = flow.rewrite_content(false, 10..13, b"Qwen", &memory);
        let changed = changed.unwrap_or_else(|error| panic!("{error:?}"));
        assert_eq!(changed.move_offset(before), flow.body_at);
        assert_eq!(changed.move_offset(5), 5);
        let text = String::from_utf8(flow.head.clone()).unwrap();
        let expected =
            "POST / HTTP/1.1\r\ncontent-length:  100\r\nX: 1\r\n\r\n{\"model\":\"Qwen\"}";
        assert_eq!(text.trim_end(), expected);
        assert_eq!(flow.body_here(), 100);
        let (bytes, body_at, _) = flow.take_copy(false).unwrap().unwrap().into_parts();
        let (head, body) = bytes.split_at(body_at);
        assert_eq!(body, &text.as_bytes()[flow.body_at..]);
        assert!(String::from_utf8_lossy(head).contains("content-length:  100\r\n"));
    }

    #[test]
    fn nothing_changes_after_an_error() {
        let body = br#"{"model":"gpt"}"#;
        let text = "Q".repeat(2 * HEAD_BYTES);
        for (fields, place, error) in [
            (
                "Content-Length: 15\r\nContent-MD5: a\r\n",
                10..13,
                NotRewritten::Digest,
            ),
            (
                "Content-Length: 15\r\ndigest: a\r\n",
                10..13,
                NotRewritten::Digest,
            ),
            ("Content-Length: 15\r\n", 10..16, NotRewritten::NotHere),
            ("X: 15\r\n", 10..13, NotRewritten::NotHere),
            (
                "Content-Length: 15\r\nContent-Length: 15\r\n",
                10..13,
                NotRewritten::NotHere,
            ),
            ("Content-Length: 15\r\n", 10..13, NotRewritten::Exhausted),
        ] {
            let memory = new_memory(0);
            let mut flow = new_flow(fields, body, &memory);
            let before = flow.head.clone();
            let refused = flow.rewrite_content(false, place, text.as_bytes(), &memory);
            assert_eq!(refused.err(), Some(error), "{fields}");
            assert_eq!(flow.head, before);
        }
        let memory = new_memory(1 << 20);
        let mut flow = new_flow("Content-Length: 15\r\n", body, &memory);
        flow.written = 1;
        let refused = flow.rewrite_content(false, 10..13, b"Q", &memory);
        assert_eq!(refused.err(), Some(NotRewritten::NotHere));
    }
}
