//! Copies of a message that are made while it flows, and lines that are added to both.

use std::sync::Arc;

use evenkeel_manager::config::MIRRORED;

use super::{Flow, Framing};
use crate::http::copy::{Copy, CopyPlan, CopyRefusal};
use crate::memory::{HEAD_BYTES, Memory, OutOfMemory};

impl Flow {
    /// Returns the same message, which is copied while it is read.
    #[cold]
    pub(in crate::http) fn copy_while_read(mut self, copies: CopyPlan) -> Self {
        self.begin_copying(copies, &format!("{MIRRORED}: 1\r\n"));
        self
    }

    /// Copies the message while it is read from now on. `line` (with its end) is added to the head of the copy.
    #[cold]
    pub(in crate::http) fn begin_copying(&mut self, copies: CopyPlan, line: &str) {
        debug_assert!(!self.is_stream, "a copy has a framing of its own");
        let (head, joined) = self.head.split_at(self.body_at);
        let left = match self.framing {
            Framing::Length(left) => left,
            _ => 0,
        };
        let here = (joined.len() + self.ready) as u64;
        let copy = copies.begin_copy(head, line, here.saturating_add(left));
        let copy = copy.and_then(|mut copy| copy.add_body(joined).map(|()| copy));
        self.copy = Some(Box::new(copy));
        self.copy_ready();
    }

    /// True if all of the message is here, so that it can be sent again.
    pub(in crate::http) fn is_whole(&self) -> bool {
        let is_here = matches!(self.framing, Framing::Done) && self.ready == 0;
        is_here && !self.is_stream && self.may_rewind()
    }

    /// A copy of the message, if it is all here.
    pub(in crate::http) fn copy_message(&self, copies: CopyPlan) -> Option<Copy> {
        if !self.is_whole() {
            return None;
        }
        let (head, joined) = self.head.split_at(self.body_at);
        let copy = copies.begin_copy(head, "", joined.len() as u64);
        copy.and_then(|mut copy| copy.add_body(joined).map(|()| copy))
            .ok()
    }

    /// Copies what may be sent and has just been read.
    #[cold]
    pub(super) fn copy_ready(&mut self) {
        if let (Some(copy), Some(buffer)) = (&mut self.copy, &self.buffer) {
            let body = buffer.bytes().get(..self.ready).unwrap_or_default();
            if let Ok(whole) = &mut **copy
                && let Err(error) = whole.add_body(body)
            {
                **copy = Err(error);
            }
        }
    }

    /// True if the message is copied.
    #[inline]
    pub(in crate::http) fn is_copied(&self) -> bool {
        self.copy.is_some()
    }

    /// The copy, once it is whole, or why there is none. `is_over` says that no more comes: what is
    /// not whole then is forgotten.
    pub(in crate::http) fn take_copy(
        &mut self,
        is_over: bool,
    ) -> Option<Result<Copy, CopyRefusal>> {
        let is_read = matches!(self.framing, Framing::Done);
        if !is_read && !is_over && self.copy.as_deref().is_some_and(Result::is_ok) {
            return None;
        }
        let copy = *self.copy.take()?;
        (is_read || copy.is_err()).then_some(copy)
    }

    /// Adds `lines`, each with its end, to the head of a message of which nothing was sent.
    pub(in crate::http) fn add_lines(
        &mut self,
        lines: &[u8],
        memory: &Arc<Memory>,
    ) -> Result<(), OutOfMemory> {
        debug_assert!(self.is_untouched());
        let Some(end) = self.body_at.checked_sub(2) else {
            return Ok(());
        };
        let len = self.head.len().saturating_add(lines.len());
        let charge = memory.take_above(HEAD_BYTES, len.max(self.head.capacity()))?;
        self.head.reserve_exact(lines.len());
        self.head.splice(end..end, lines.iter().copied());
        self.body_at += lines.len();
        self._charge = charge;
        if let Some(copy) = &mut self.copy
            && let Ok(whole) = &mut **copy
            && let Err(error) = whole.add_lines(lines)
        {
            **copy = Err(error);
        }
        Ok(())
    }
}
