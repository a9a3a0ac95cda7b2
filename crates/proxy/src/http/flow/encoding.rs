//! Bodies that are compressed on their way.

use std::sync::Arc;

use evenkeel_limits::Shortage;

use super::{Bounds, Flow, Framing};
use crate::buffer::Buffer;
use crate::http::encoder::Encoder;
use crate::http::engine_answer::EngineAnswer;
use crate::http1::Body;
use crate::io::TransferError;
use crate::memory::Memory;

impl Flow {
    /// A message whose body is compressed, and sent in chunks.
    pub(in crate::http) fn new_encoded(
        head: Vec<u8>,
        body: Body,
        encoder: Box<Encoder>,
        buffer: Option<Buffer>,
        bounds: Bounds,
        answer: Option<Box<EngineAnswer>>,
        memory: &Arc<Memory>,
    ) -> Result<Self, TransferError> {
        let mut flow = Flow::new(head, Body::None, true, None, Bounds::NONE, memory)?;
        flow.answer = answer;
        flow.framing = Framing::from_body(body, true, bounds);
        flow.buffer = buffer;
        flow.encoder = Some(encoder);
        flow.admit_buffer()?;
        flow.read_answer();
        flow.encode_ready()?;
        Ok(flow)
    }

    /// Compresses what may be sent.
    pub(super) fn encode_ready(&mut self) -> Result<(), TransferError> {
        let Some(mut encoder) = self.encoder.take() else {
            return Ok(());
        };
        self.forget_sent();
        // Nothing but memory can be lacking.
        let failed = |_| TransferError::Exhausted(Shortage::Memory);
        if let Some(buffer) = &mut self.buffer {
            let ready = std::mem::take(&mut self.ready);
            let piece = buffer.bytes().get(..ready).unwrap_or_default();
            encoder.write(piece, &mut self.head).map_err(failed)?;
            buffer.consume(ready);
        }
        match self.framing {
            Framing::Done => encoder.finish_chunks(&mut self.head).map_err(failed)?,
            _ => self.encoder = Some(encoder),
        }
        Ok(())
    }

    /// Has the client get what the encoder holds; whether there was something.
    pub(super) fn flush_encoder(&mut self) -> Result<bool, TransferError> {
        self.forget_sent();
        match &mut self.encoder {
            Some(encoder) if encoder.holds_bytes() => {
                let flushed = encoder.flush(&mut self.head);
                flushed.map_err(|_| TransferError::Exhausted(Shortage::Memory))?;
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    /// Drops the head if it was sent, so that there is room for what comes out of an encoder.
    fn forget_sent(&mut self) {
        if self.written == self.head.len() {
            self.moved += self.written as u64;
            self.head.clear();
            self.written = 0;
            self.body_at = 0;
        }
    }
}
