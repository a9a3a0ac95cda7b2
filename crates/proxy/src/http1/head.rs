//! Parts that heads of requests and of responses have in common on their way from bytes to checked
//! messages.
//!
//! `httparse` finds the parts quickly, but is lenient: it takes a bare LF as the end of a line,
//! skips any number of empty lines before a head, and knows nothing about the meaning of a field.
//! This module checks all of that.

use std::mem::MaybeUninit;

use httparse::Header;

use super::error::HeadError;
use super::framing;
use crate::message::FieldSet;

/// Most fields that a head may have, whatever the configuration allows.
pub const MAX_FIELDS: usize = FieldSet::CAPACITY;

/// Room for the fields of one head. It lives on the stack, is not initialised, and is
/// too large (8 KiB) to be held across an `await`.
pub struct Fields<'a>(pub(super) [MaybeUninit<Header<'a>>; MAX_FIELDS]);

impl Fields<'_> {
    /// Empty room.
    #[inline]
    pub fn new() -> Self {
        Self([const { MaybeUninit::uninit() }; MAX_FIELDS])
    }
}

impl<'a> Fields<'a> {
    /// Puts the fields of a head of HTTP/2 into the room; `None` if there are too many.
    pub(super) fn fill(
        &'a mut self,
        fields: impl Iterator<Item = (&'a str, &'a [u8])>,
    ) -> Option<&'a [Header<'a>]> {
        let mut len = 0;
        for (name, value) in fields {
            self.0.get_mut(len)?.write(Header { name, value });
            len += 1;
        }
        let filled = self.0.get(..len)?;
        // SAFETY: the first `len` places were written above, and `MaybeUninit<T>` has the layout of `T`.
        Some(unsafe { &*(std::ptr::from_ref(filled) as *const [Header<'a>]) })
    }
}

impl Default for Fields<'_> {
    fn default() -> Self {
        Self::new()
    }
}

/// Largest size of a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most bytes, from the start line to the empty line after the last field.
    pub max_bytes: usize,
    /// Most fields; at most [`MAX_FIELDS`] count.
    pub max_fields: usize,
}

/// Outcome of parsing what has been read so far.
#[derive(Debug)]
pub enum ParseOutcome<T> {
    /// A whole head.
    Head(T),
    /// Valid so far: read more, then parse all of it again.
    Partial,
}

/// `httparse` takes a bare LF for a line end; the bytes before each line tell.
pub(super) fn check_line_ends(raw: &[u8], fields: &[Header<'_>]) -> Result<(), HeadError> {
    for field in fields {
        let start = framing::line_offset(raw, field);
        if !raw
            .get(..start)
            .is_some_and(|before| before.ends_with(b"\r\n"))
        {
            return Err(HeadError::LineEnd);
        }
    }
    if raw.ends_with(b"\r\n\r\n") {
        Ok(())
    } else {
        Err(HeadError::LineEnd)
    }
}
