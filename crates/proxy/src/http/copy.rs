//! A copy of a message that is made while it is read.

use std::rc::Rc;
use std::sync::Arc;

use crate::http1::content_edit::{ContentEdit, LengthEdit, replace_body};
use crate::memory::{Charge, Memory, OutOfMemory};

/// Reason why there is no copy of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CopyRefusal {
    /// The body is larger than allowed.
    TooLarge,
    /// There is no memory for it.
    Exhausted,
}

/// A head with another field, and the body behind it as its framing has it.
#[derive(Debug)]
pub(crate) struct Copy {
    bytes: Vec<u8>,
    /// Offset in `bytes` at which the body begins.
    body_at: usize,
    /// Most bytes that the body may have, with its framing.
    most: usize,
    charge: Charge,
}

/// Copies nothing yet: what to copy.
#[derive(Debug)]
pub(crate) struct CopyPlan {
    /// Most bytes that the body may have, with its framing.
    pub(super) most: usize,
    pub(super) memory: Arc<Memory>,
}

impl CopyPlan {
    /// A copy of `head`, to which `line` (with its end) is added, with room for a body of `len` bytes.
    pub(super) fn begin_copy(self, head: &[u8], line: &str, len: u64) -> Result<Copy, CopyRefusal> {
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        if len > self.most {
            return Err(CopyRefusal::TooLarge);
        }
        let body_at = head.len() + line.len();
        let charge = self.memory.take(body_at.saturating_add(len));
        let charge = charge.map_err(|OutOfMemory| CopyRefusal::Exhausted)?;
        let mut bytes = Vec::with_capacity(body_at + len);
        let fields = head.strip_suffix(b"\r\n").unwrap_or(head);
        bytes.extend_from_slice(fields);
        bytes.extend_from_slice(line.as_bytes());
        bytes.extend_from_slice(b"\r\n");
        Ok(Copy {
            body_at: bytes.len(),
            bytes,
            most: self.most,
            charge,
        })
    }
}

impl Copy {
    /// Number of bytes of the body, with its framing.
    pub(super) fn body_len(&self) -> usize {
        self.bytes.len().saturating_sub(self.body_at)
    }

    /// Bytes of the head and of the body.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Offset at which the body begins.
    pub(super) fn body_at(&self) -> usize {
        self.body_at
    }

    /// Adds more of the body.
    pub(super) fn add_body(&mut self, body: &[u8]) -> Result<(), CopyRefusal> {
        let len = self.bytes.len().saturating_add(body.len());
        let most = self.body_at.saturating_add(self.most);
        if len > most {
            return Err(CopyRefusal::TooLarge);
        }
        if len > self.bytes.capacity() {
            let size = self.bytes.capacity().saturating_mul(2).clamp(len, most);
            let grown = self.charge.grow_to(size);
            grown.map_err(|OutOfMemory| CopyRefusal::Exhausted)?;
            self.bytes.reserve_exact(size - self.bytes.len());
        }
        self.bytes.extend_from_slice(body);
        Ok(())
    }

    /// Adds `lines`, each with its end, to the head.
    pub(super) fn add_lines(&mut self, lines: &[u8]) -> Result<(), CopyRefusal> {
        let Some(end) = self.body_at.checked_sub(2) else {
            return Ok(());
        };
        let size = self.bytes.capacity().saturating_add(lines.len());
        let grown = self.charge.grow_to(size);
        grown.map_err(|OutOfMemory| CopyRefusal::Exhausted)?;
        self.bytes.reserve_exact(size - self.bytes.len());
        self.bytes.splice(end..end, lines.iter().copied());
        self.body_at += lines.len();
        Ok(())
    }

    /// Replaces bytes of the body, and corrects the length in the head, if the head says one.
    pub(super) fn rewrite_content(&mut self, edit: &ContentEdit) -> Result<(), CopyRefusal> {
        let head = self.bytes.get(..self.body_at).unwrap_or_default();
        let length = LengthEdit::new(head, edit.length_change());
        let grown = edit.bytes.len().saturating_add(LengthEdit::MAX_DIGITS);
        let size = self.bytes.len().saturating_add(grown);
        if size > self.bytes.capacity() {
            let charged = self.charge.grow_to(size);
            charged.map_err(|OutOfMemory| CopyRefusal::Exhausted)?;
            self.bytes.reserve_exact(size - self.bytes.len());
        }
        replace_body(&mut self.bytes, self.body_at, edit);
        if let Some(length) = length {
            length.apply(&mut self.bytes, &mut self.body_at);
        }
        Ok(())
    }

    /// Returns all bytes of the copy, the offset at which its body begins, and the charge for its
    /// memory.
    pub(super) fn into_parts(self) -> (Vec<u8>, usize, Charge) {
        (self.bytes, self.body_at, self.charge)
    }
}

/// Returns the bytes that are sent before the buffer: the head, perhaps with a body, or what is shared in its place.
#[inline]
pub(super) fn front_bytes<'a>(head: &'a [u8], shared: Option<&'a Rc<Copy>>) -> &'a [u8] {
    match shared {
        None => head,
        Some(shared) => shared.bytes(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::tests::new_memory;

    const HEAD: &[u8] = b"POST / HTTP/1.1\r\nHost: a\r\n\r\n";

    fn begin(most: usize, len: u64, memory: &Arc<Memory>) -> Result<Copy, CopyRefusal> {
        let copy = CopyPlan {
            most,
            memory: Arc::clone(memory),
        };
        copy.begin_copy(HEAD, "X: 1\r\n", len)
    }

    #[test]
    fn a_copy_has_one_line_more_and_the_same_body() {
        let mut copy = begin(100, 0, &new_memory(1 << 20)).unwrap();
        copy.add_body(b"3\r\nab").unwrap();
        copy.add_body(b"c\r\n0\r\n\r\n").unwrap();
        let (bytes, body_at, _) = copy.into_parts();
        let (head, body) = bytes.split_at(body_at);
        assert_eq!(head, b"POST / HTTP/1.1\r\nHost: a\r\nX: 1\r\n\r\n");
        assert_eq!(body, b"3\r\nabc\r\n0\r\n\r\n");
    }

    #[test]
    fn s5_lines_that_are_added_to_a_copy_are_counted() {
        let mut copy = begin(3, 3, &new_memory(100)).unwrap();
        copy.add_body(b"ab").unwrap();
        copy.add_lines(b"Y: 2\r\n").unwrap();
        copy.add_body(b"c").unwrap();
        assert_eq!(copy.add_body(b"d"), Err(CopyRefusal::TooLarge));
        assert_eq!(copy.add_lines(&[b'x'; 100]), Err(CopyRefusal::Exhausted));
        let (bytes, body_at, _) = copy.into_parts();
        let (head, body) = bytes.split_at(body_at);
        assert_eq!(head, b"POST / HTTP/1.1\r\nHost: a\r\nX: 1\r\nY: 2\r\n\r\n");
        assert_eq!(body, b"abc");
    }

    #[test]
    fn s5_a_copy_is_bounded_and_its_memory_counted() {
        let some = new_memory(200);
        assert_eq!(begin(10, 11, &some).unwrap_err(), CopyRefusal::TooLarge);
        assert_eq!(
            begin(1000, 1000, &some).unwrap_err(),
            CopyRefusal::Exhausted
        );
        let huge = begin(usize::MAX, u64::MAX, &some);
        assert_eq!(huge.unwrap_err(), CopyRefusal::Exhausted);
        let mut copy = begin(300, 0, &some).unwrap();
        for _ in 0..10 {
            copy.add_body(b"0123456789").unwrap();
        }
        let mut more = (0..).map(|_| copy.add_body(b"0123456789"));
        assert_eq!(more.find_map(Result::err), Some(CopyRefusal::Exhausted));
        drop(more);
        drop(copy);
        assert!(some.take(200).is_ok(), "it is given back");
        let mut copy = begin(5, 0, &new_memory(1 << 20)).unwrap();
        assert_eq!(copy.add_body(b"12345"), Ok(()));
        assert_eq!(copy.add_body(b"6"), Err(CopyRefusal::TooLarge));
    }
}
