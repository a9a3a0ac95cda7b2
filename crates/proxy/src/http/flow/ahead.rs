//! Bodies that are read before their messages are sent, and bodies that are read while they are.

use std::task::{Context, Poll, ready};

use evenkeel_core::time::Instant;
use evenkeel_inference::group::AnswerEnd;
use evenkeel_limits::Shortage;

use super::{Flow, Framing};
use crate::buffer::Buffer;
use crate::http::engine_answer::EngineAnswer;
use crate::http::prompt::Prompt;
use crate::io::{Io, TransferError};
use crate::memory::BUFFER_BYTES;
use crate::worker::Worker;

impl Flow {
    /// Has `prompt` read the part of the body that has come with the head.
    pub(in crate::http) fn read_body_here(&mut self, prompt: &mut Prompt) {
        prompt.read_bytes(self.head.get(self.body_at..).unwrap_or_default());
        prompt.read_bytes(self.ready_bytes());
    }

    /// Reads on until `prompt` seeks no more, or `most` bytes of the body wait behind the head to be sent, or there is
    /// no memory for more of them. What came with the head was read before.
    pub(in crate::http) fn poll_ahead(
        &mut self,
        cx: &mut Context<'_>,
        from: &mut Io,
        most: usize,
        worker: &Worker,
        prompt: &mut Prompt,
    ) -> Poll<Result<(), TransferError>> {
        loop {
            if matches!(self.framing, Framing::Done | Framing::Stream { .. }) || !prompt.is_sought()
            {
                return Poll::Ready(Ok(()));
            }
            if self.ready > 0 {
                if !self.copy_behind_head(self.ready, most, &worker.memory) {
                    return Poll::Ready(Ok(()));
                }
                let copied = std::mem::take(&mut self.ready);
                if let Some(buffer) = &mut self.buffer {
                    buffer.consume(copied);
                }
            }
            let mut buffer = match self.buffer.take() {
                Some(buffer) if buffer.is_pooled() => buffer,
                Some(buffer) if !buffer.is_empty() => worker.buffers.take_with(&buffer),
                _ => worker.buffers.take(),
            };
            if buffer.is_full()
                && !matches!(buffer.make_room(BUFFER_BYTES, &worker.memory), Ok(true))
            {
                return Poll::Ready(Err(TransferError::Exhausted(Shortage::Memory)));
            }
            let filled = buffer.poll_fill(cx, from);
            match buffer.is_empty() {
                true => worker.buffers.give_back(buffer),
                false => self.buffer = Some(buffer),
            }
            match ready!(filled) {
                Ok(0) => return Poll::Ready(Err(TransferError::From)),
                Ok(_) => {
                    self.admit_buffer()?;
                    if self.copy.is_some() {
                        self.copy_ready();
                    }
                    prompt.read_bytes(self.ready_bytes());
                }
                Err(error) => {
                    return Poll::Ready(Err(TransferError::of_error(&error, TransferError::From)));
                }
            }
        }
    }

    /// Returns the same message, which `answer` reads while it flows.
    #[inline]
    pub(in crate::http) fn with_answer(mut self, answer: Option<Box<EngineAnswer>>) -> Self {
        if let Some(mut answer) = answer {
            answer.read_bytes(self.head.get(self.body_at..).unwrap_or_default());
            answer.read_bytes(self.ready_bytes());
            self.answer = Some(answer);
        }
        self
    }

    /// Has the answer's reader read what may be sent and has just come.
    #[cold]
    pub(super) fn read_answer(&mut self) {
        if let Some(mut answer) = self.answer.take() {
            answer.read_bytes(self.ready_bytes());
            self.answer = Some(answer);
        }
    }

    /// True if the message is an engine's stream of events.
    pub(in crate::http) fn is_event_stream(&self) -> bool {
        let answer = self.answer.as_deref();
        answer.is_some_and(EngineAnswer::is_event_stream)
    }

    /// Number of events with parts of an engine's answer since the last call.
    pub(in crate::http) fn take_events(&mut self) -> u64 {
        self.answer
            .as_deref_mut()
            .map_or(0, EngineAnswer::take_events)
    }

    /// Takes the tokens of an engine's events from limits, if the request does not hold as many.
    pub(in crate::http) fn charge_events(&self, now: Instant) {
        if let Some(answer) = &self.answer {
            answer.charge_events(now);
        }
    }

    /// End of an engine's answer.
    pub(in crate::http) fn answer_end(&self, is_complete: bool) -> AnswerEnd {
        let answer = self.answer.as_deref();
        answer.map_or_else(AnswerEnd::default, |answer| answer.answer_end(is_complete))
    }

    /// Bytes of the body that may be sent, beside those behind the head.
    fn ready_bytes(&self) -> &[u8] {
        let buffer = self.buffer.as_ref().map_or(&[][..], Buffer::bytes);
        buffer.get(..self.ready).unwrap_or_default()
    }
}
