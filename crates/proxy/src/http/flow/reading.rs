//! Reading of a body: as far as the framing says, and what becomes of it before it is sent.

use std::task::{Context, Poll, ready};

use evenkeel_limits::Shortage;

use super::Flow;
use crate::io::{Io, TransferError};
use crate::memory::BUFFER_BYTES;
use crate::worker::Worker;

impl Flow {
    /// Reads more of the body into the buffer, and encodes it if the body is encoded. Returns the number of bytes that may
    /// be sent of what has come, or nothing at the sender's end.
    #[inline]
    pub(super) fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        from: &mut Io,
        worker: &Worker,
    ) -> Poll<Result<Option<usize>, TransferError>> {
        // A head may have come in one of another size. The beginning of a trailer may be left in it.
        let mut buffer = match self.buffer.take() {
            Some(buffer) if buffer.is_pooled() => buffer,
            Some(buffer) if !buffer.is_empty() => worker.buffers.take_with(&buffer),
            _ => worker.buffers.take(),
        };
        if buffer.is_full() && !matches!(buffer.make_room(BUFFER_BYTES, &worker.memory), Ok(true)) {
            return Poll::Ready(Err(TransferError::Exhausted(Shortage::Memory)));
        }
        match buffer.poll_fill(cx, from) {
            Poll::Pending => {
                match buffer.is_empty() {
                    true => worker.buffers.give_back(buffer),
                    false => self.buffer = Some(buffer),
                }
                return Poll::Pending;
            }
            Poll::Ready(Ok(0)) => {
                worker.buffers.give_back(buffer);
                return Poll::Ready(Ok(None));
            }
            Poll::Ready(Err(error)) => {
                worker.buffers.give_back(buffer);
                return Poll::Ready(Err(TransferError::of_error(&error, TransferError::From)));
            }
            Poll::Ready(Ok(_)) => self.buffer = Some(buffer),
        }
        self.admit_buffer()?;
        if self.copy.is_some() {
            self.copy_ready();
        }
        if self.answer.is_some() {
            self.read_answer();
        }
        let read = self.ready;
        if self.encoder.is_some() {
            self.encode_ready()?;
        }
        Poll::Ready(Ok(Some(read)))
    }

    /// Reads until the first bytes of the body are here, and sends nothing. A sender that ends before has broken off,
    /// unless the framing says that the body is empty.
    pub(in crate::http) fn poll_first_bytes(
        &mut self,
        cx: &mut Context<'_>,
        from: &mut Io,
        worker: &Worker,
    ) -> Poll<Result<(), TransferError>> {
        while !self.has_begun() {
            match ready!(self.poll_read(cx, from, worker))? {
                Some(_) => {}
                None if self.is_stream => return Poll::Ready(Ok(())),
                None => return Poll::Ready(Err(TransferError::From)),
            }
        }
        Poll::Ready(Ok(()))
    }
}
