//! Flow of one message: a head that was written for the receiver, and a body that is passed on as
//! it comes, exactly as far as its framing says.

mod ahead;
mod copies;
mod encoding;
mod kept;
mod reading;
mod rewriting;
mod shared;

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use evenkeel_http2::Fields;
use evenkeel_limits::Shortage;
use tokio::io::AsyncWrite;

use super::copy::{Copy, CopyRefusal, front_bytes};
use super::encoder::Encoder;
use super::engine_answer::EngineAnswer;
use crate::buffer::Buffer;
use crate::http1::Body;
use crate::http1::chunked::{ChunkError, Decoder, ReportLines, Trailers};
use crate::io::{Io, TransferError};
use crate::memory::{Charge, HEAD_BYTES, Memory, OutOfMemory};
use crate::message::RequestPlaces;
use crate::pipe::Pipe;
use crate::worker::Worker;

/// A body that fits into so many bytes is joined to its head: one buffer for one system
/// call, and the request can be sent again.
pub(super) const JOINED_BYTES: usize = 8 * 1024;

/// A body of which so much is still to come is spliced.
const SPLICE_BYTES: u64 = 64 * 1024;

/// Bytes that a flow moves before others get their turn.
pub(crate) const TURN_BYTES: u64 = 1 << 20;

/// Bytes of a body that are compressed before others get their turn: that takes about a millisecond.
const ENCODED_BYTES: usize = 64 * 1024;

/// Side that a flow waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waits {
    ForSender,
    ForReceiver,
}

#[derive(Debug)]
enum Framing {
    /// Number of bytes that are still to be read.
    Length(u64),
    Chunked {
        decoder: Decoder,
        strip: bool,
    },
    UntilClose,
    /// All bytes of a stream of HTTP/2, for another one.
    Stream {
        /// Bytes of content that may still come.
        allowed: u64,
        trailers: Trailers,
    },
    /// All bytes were read.
    Done,
}

/// Bounds of a body.
#[derive(Clone, Debug)]
pub(crate) struct Bounds {
    /// Most bytes of content.
    pub(crate) most: u64,
    /// Trailers of a chunked body.
    pub(crate) trailers: Trailers,
}

impl Bounds {
    /// No bounds, and trailers of all names.
    pub(crate) const NONE: Self = Bounds {
        most: u64::MAX,
        trailers: Trailers::All,
    };
}

impl Framing {
    fn from_body(body: Body, strip: bool, bounds: Bounds) -> Self {
        match body {
            Body::None | Body::Length(0) => Framing::Done,
            Body::Length(length) => Framing::Length(length),
            Body::Chunked => Framing::Chunked {
                decoder: Decoder::with_bounds(bounds.most, bounds.trailers),
                strip,
            },
            Body::UntilClose => Framing::UntilClose,
            Body::Stream => Framing::Stream {
                allowed: bounds.most,
                trailers: bounds.trailers,
            },
        }
    }
}

/// Most bytes of a body that a sender may have sent in one segment behind the head: more than that are several
/// segments, which the kernel acknowledges at once.
const SMALL_SEGMENT: usize = 1460;

/// A message between two connections.
#[derive(Debug)]
pub(crate) struct Flow {
    /// The head, and perhaps a small body; later, the bytes that come out of an encoder.
    head: Vec<u8>,
    /// Offset in `head` at which the body begins.
    body_at: usize,
    /// Head and body in place of `head`, if other messages have them, too.
    shared: Option<Rc<Copy>>,
    written: usize,
    /// True if the transport has sent on all that it was given.
    flushed: bool,
    /// True if bytes of the body were read.
    has_begun: bool,
    /// True if the body is one of [`Body::Stream`].
    is_stream: bool,
    /// Places of the parts of a head for a member of HTTP/2.
    places: Option<Box<RequestPlaces>>,
    /// True if the end of such a body was passed on.
    has_ended: bool,
    framing: Framing,
    /// Bytes of the framing of chunks that were read and are passed on.
    framing_bytes: u32,
    /// Bytes that were read: first those that may be sent, then those that were not looked at yet.
    buffer: Option<Buffer>,
    /// Number of bytes of the buffer that may be sent.
    ready: usize,
    pipe: Option<Pipe>,
    /// Bytes of the body that were sent and are no longer held.
    moved: u64,
    /// Encoder that compresses the body, until all of the body has come.
    encoder: Option<Box<Encoder>>,
    /// The memory of a large head.
    _charge: Option<Charge>,
    /// A copy of what is read, if there is to be one.
    copy: Option<Box<Result<Copy, CopyRefusal>>>,
    /// Load reports in trailers.
    reports: Option<Box<ReportLines>>,
    /// Bound of the body that stays behind the head once it is sent, if it is to stay.
    keeps: Option<Box<KeepPlan>>,
    /// Reader of the body, if the message is an engine's answer.
    answer: Option<Box<EngineAnswer>>,
}

/// Bound of a body that is kept while it is sent, so that the message can be sent again.
#[derive(Debug)]
pub(super) struct KeepPlan {
    /// Most bytes of the body, with its framing.
    most: usize,
    memory: Arc<Memory>,
}

impl KeepPlan {
    pub(super) fn new(most: usize, memory: &Arc<Memory>) -> Self {
        let memory = Arc::clone(memory);
        KeepPlan { most, memory }
    }
}

impl Flow {
    /// A message of `head` and a body of which `buffer` holds the beginning. If `strip`,
    /// the framing of chunks is taken out. If the head is large, there must be `memory` for it.
    pub(crate) fn new(
        head: Vec<u8>,
        body: Body,
        strip: bool,
        buffer: Option<Buffer>,
        bounds: Bounds,
        memory: &Arc<Memory>,
    ) -> Result<Self, TransferError> {
        let framing = Framing::from_body(body, strip, bounds);
        let mut flow = Flow {
            is_stream: body == Body::Stream,
            has_ended: false,
            places: None,
            body_at: head.len(),
            head,
            shared: None,
            written: 0,
            flushed: true,
            has_begun: false,
            framing,
            framing_bytes: 0,
            buffer,
            ready: 0,
            pipe: None,
            moved: 0,
            encoder: None,
            _charge: None,
            copy: None,
            reports: None,
            keeps: None,
            answer: None,
        };
        if !matches!(flow.framing, Framing::Done) {
            flow.admit_buffer()?;
            flow.join_body();
        }
        let charge = memory.take_above(HEAD_BYTES, flow.head.capacity());
        flow._charge = charge.map_err(|OutOfMemory| TransferError::Exhausted(Shortage::Memory))?;
        Ok(flow)
    }

    /// A request of a stream of HTTP/2 to another one. `is_whole` says that all of the body is in `buffer`.
    pub(super) fn new_stream(
        head: Vec<u8>,
        is_whole: bool,
        buffer: Option<Buffer>,
        bounds: Bounds,
        memory: &Arc<Memory>,
    ) -> Result<Self, TransferError> {
        let here = buffer.as_ref().map_or(0, Buffer::len) as u64;
        if here > bounds.most {
            return Err(TransferError::Chunks(ChunkError::TooLarge));
        }
        let body = match is_whole {
            true => Body::Length(here),
            false => Body::Stream,
        };
        let mut flow = Flow::new(head, body, false, buffer, bounds, memory)?;
        flow.is_stream = true;
        Ok(flow)
    }

    /// Notes where the parts of the head are that a member of HTTP/2 gets.
    pub(super) fn set_places(&mut self, places: Option<Box<RequestPlaces>>) {
        self.places = places;
    }

    /// A message that is all there.
    pub(super) fn of_copy(copy: Copy) -> Self {
        let (head, body_at, charge) = copy.into_parts();
        Flow::new_whole(head, body_at, Some(charge))
    }

    /// A message that is all in `head`.
    fn new_whole(head: Vec<u8>, body_at: usize, charge: Option<Charge>) -> Self {
        Flow {
            head,
            body_at,
            shared: None,
            written: 0,
            flushed: true,
            has_begun: true,
            is_stream: false,
            has_ended: false,
            places: None,
            framing: Framing::Done,
            framing_bytes: 0,
            buffer: None,
            ready: 0,
            pipe: None,
            moved: 0,
            encoder: None,
            _charge: charge,
            copy: None,
            reports: None,
            keeps: None,
            answer: None,
        }
    }

    /// Writes other bytes over the bytes of the head at `at`, if none was sent yet.
    pub(super) fn overwrite_head(&mut self, at: usize, bytes: &[u8]) {
        let end = at.saturating_add(bytes.len());
        let in_head = end <= self.body_at && self.written == 0 && self.moved == 0;
        if let Some(place) = self.head.get_mut(at..end).filter(|_| in_head) {
            place.copy_from_slice(bytes);
        }
    }

    /// Marks the message as sent, as somebody else has sent all of it.
    pub(super) fn set_sent(&mut self) {
        self.written = front_bytes(&self.head, self.shared.as_ref()).len();
        self.flushed = true;
    }

    /// True if all of the message was read.
    pub(super) fn is_read(&self) -> bool {
        matches!(self.framing, Framing::Done)
    }

    /// True if bytes of the body were read, or it has none.
    pub(super) fn has_begun(&self) -> bool {
        self.has_begun || self.is_read()
    }

    /// Finds out how much of the buffer belongs to the message.
    fn admit_buffer(&mut self) -> Result<(), TransferError> {
        debug_assert_eq!(self.ready, 0);
        let Some(buffer) = &mut self.buffer else {
            return Ok(());
        };
        match &mut self.framing {
            Framing::Length(left) => {
                let here = usize::try_from(*left)
                    .unwrap_or(usize::MAX)
                    .min(buffer.len());
                self.ready = here;
                *left -= here as u64;
                if *left == 0 {
                    self.framing = Framing::Done;
                }
            }
            Framing::Chunked {
                decoder,
                strip: false,
            } => {
                let allowed = decoder.allowed_content();
                let (kept, scanned) = decoder
                    .pass_input(buffer.bytes_mut())
                    .map_err(TransferError::Chunks)?;
                let content = allowed.saturating_sub(decoder.allowed_content());
                let framing = (kept as u64).saturating_sub(content);
                let framing = u32::try_from(framing).unwrap_or(u32::MAX);
                self.framing_bytes = self.framing_bytes.saturating_add(framing);
                buffer.cut_out(kept, scanned.len);
                self.ready = kept;
                if scanned.end {
                    self.reports = decoder.take_reports();
                    self.framing = Framing::Done;
                }
            }
            Framing::Chunked {
                decoder,
                strip: true,
            } => {
                let (content, scanned) = decoder
                    .strip_framing(buffer.bytes_mut())
                    .map_err(TransferError::Chunks)?;
                buffer.cut_out(content, scanned.len);
                self.ready = content;
                if scanned.end {
                    self.reports = decoder.take_reports();
                    self.framing = Framing::Done;
                }
            }
            Framing::UntilClose => self.ready = buffer.len(),
            Framing::Stream { allowed, .. } => {
                let rest = allowed.checked_sub(buffer.len() as u64);
                *allowed = rest.ok_or(TransferError::Chunks(ChunkError::TooLarge))?;
                self.ready = buffer.len();
            }
            Framing::Done => {}
        }
        self.has_begun |= self.ready > 0;
        Ok(())
    }

    /// Joins a body that is small and complete to its head.
    fn join_body(&mut self) {
        if let (Framing::Done, Some(buffer)) = (&self.framing, &mut self.buffer)
            && self.ready <= JOINED_BYTES
            && let Some(body) = buffer.bytes().get(..self.ready)
        {
            self.head.extend_from_slice(body);
            buffer.consume(self.ready);
            self.ready = 0;
        }
    }

    /// True if the whole message was read and sent.
    pub(crate) fn is_done(&self) -> bool {
        matches!(self.framing, Framing::Done) && self.is_flushed()
    }

    /// True if the sender has more of the message to send, and no more than one small segment of the body
    /// has come.
    pub(super) fn awaits_small_sender(&self) -> bool {
        let here = self.buffer.as_ref().map_or(0, Buffer::len);
        !matches!(self.framing, Framing::Done) && here <= SMALL_SEGMENT
    }

    fn is_flushed(&self) -> bool {
        let held = self.pipe.as_ref().map_or(0, Pipe::held_bytes);
        let front = front_bytes(&self.head, self.shared.as_ref());
        self.written == front.len() && self.ready == 0 && held == 0 && self.flushed
    }

    /// Returns the side that the flow waits for when it has not ended.
    pub(crate) fn waiting_side(&self) -> Waits {
        if self.is_flushed() {
            Waits::ForSender
        } else {
            Waits::ForReceiver
        }
    }

    /// True if nothing at all was sent.
    pub(crate) fn is_untouched(&self) -> bool {
        self.written == 0 && self.moved == 0
    }

    /// True if everything that was sent is still here.
    pub(crate) fn may_rewind(&self) -> bool {
        self.moved == 0 && self.pipe.is_none() && !self.has_ended
    }

    /// Passes the end of a body of [`Body::Stream`] on, all of which was sent.
    fn pass_end(&mut self, from: &Io, to: &mut Io) -> Result<(), TransferError> {
        let framing = std::mem::replace(&mut self.framing, Framing::Done);
        let Framing::Stream { trailers, .. } = framing else {
            return Ok(());
        };
        let sent = match from.take_trailers() {
            None => to.finish_body(&Fields::new()),
            Some(mut head) => {
                self.reports = trailers
                    .sort_out(&mut head.fields)
                    .map_err(TransferError::Chunks)?;
                let sent = to.finish_body(&head.fields);
                from.give_trailers(head);
                sent
            }
        };
        self.has_ended = true;
        sent.map_err(|error| TransferError::of_error(&error, TransferError::To))
    }

    /// Begins again, if everything that was sent is still here.
    pub(crate) fn rewind(&mut self) -> bool {
        let possible = self.may_rewind();
        if possible {
            self.written = 0;
        }
        possible
    }

    /// Bytes sent so far.
    pub(crate) fn sent_bytes(&self) -> u64 {
        self.written as u64 + self.moved
    }

    /// Bytes of the body sent so far.
    pub(crate) fn body_sent(&self) -> u64 {
        self.written.saturating_sub(self.body_at) as u64 + self.moved
    }

    /// Bytes of the body's content sent so far, without the framing of chunks.
    pub(crate) fn content_sent(&self) -> u64 {
        self.body_sent()
            .saturating_sub(u64::from(self.framing_bytes))
    }

    /// Ends the flow: what was read after the message.
    pub(crate) fn end_flow(&mut self, worker: &Worker) -> Option<Buffer> {
        worker.buffers.give_head(std::mem::take(&mut self.head));
        self.encoder = None;
        self.shared = None;
        self.body_at = 0;
        self.written = 0;
        if let Some(pipe) = self.pipe.take() {
            worker.pipes.give_back(pipe);
        }
        let mut buffer = self.buffer.take()?;
        buffer.consume(std::mem::take(&mut self.ready));
        if buffer.is_empty() {
            worker.buffers.give_back(buffer);
            return None;
        }
        Some(buffer)
    }

    /// Whoever waits long holds little: what was read after a message that is on its way is
    /// mostly a part of the next one.
    #[inline]
    pub(crate) fn shrink_rest(&mut self, worker: &Worker) {
        if let Some(buffer) = &self.buffer
            && buffer.is_pooled()
            && self.is_done()
        {
            self.buffer = self
                .buffer
                .take()
                .map(|rest| worker.buffers.shrink_buffer(rest));
        }
    }

    /// Takes what was read after the message: the beginning of another protocol.
    pub(crate) fn take_rest(&mut self) -> Option<Buffer> {
        debug_assert!(self.is_done());
        self.buffer.take().filter(|buffer| !buffer.is_empty())
    }

    /// Gives the message up. Answers whether it was read to its end, so that what comes
    /// after it can be told.
    pub(crate) fn skip_what_was_read(&mut self) -> bool {
        if let Some(buffer) = &mut self.buffer {
            buffer.consume(std::mem::take(&mut self.ready));
        }
        matches!(self.framing, Framing::Done)
            && self.pipe.as_ref().is_none_or(|p| p.held_bytes() == 0)
    }

    /// Takes the load reports that were in trailers.
    pub(super) fn take_reports(&mut self) -> Option<Box<ReportLines>> {
        self.reports.take()
    }

    /// True if the sender has sent more than the message.
    pub(crate) fn has_excess(&self) -> bool {
        self.buffer.as_ref().is_some_and(|b| b.len() > self.ready)
    }

    /// Moves what can be moved, about `most` bytes before others get their turn; ready when the whole
    /// message has been sent.
    pub(crate) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        from: &mut Io,
        to: &mut Io,
        worker: &Worker,
        most: u64,
    ) -> Poll<Result<(), TransferError>> {
        let turn = self.sent_bytes().saturating_add(most);
        let mut encoded = 0;
        loop {
            if let Err(error) = ready!(self.poll_flush(cx, to)) {
                return Poll::Ready(Err(TransferError::of_error(&error, TransferError::To)));
            }
            let left = match &self.framing {
                Framing::Done => return Poll::Ready(Ok(())),
                Framing::Length(left) if self.encoder.is_none() => *left,
                _ => 0,
            };
            if self.sent_bytes() >= turn || encoded >= ENCODED_BYTES {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            if left >= SPLICE_BYTES
                && self.copy.is_none()
                && self.keeps.is_none()
                && self.answer.is_none()
                && from.prepare_splice()
                && to.prepare_splice()
            {
                self.pipe = self.pipe.take().or_else(|| worker.take_pipe());
            }
            if left > 0
                && let Some(socket) = from.spliceable_socket()
                && let Some(mut pipe) = self.pipe.take()
            {
                // Whoever waits holds neither buffer nor pipe.
                if let Some(buffer) = self.buffer.take() {
                    worker.buffers.give_back(buffer);
                }
                let limit = usize::try_from(left.min(most)).unwrap_or(usize::MAX);
                match pipe.poll_fill(cx, socket, limit) {
                    Poll::Pending => {
                        worker.pipes.give_back(pipe);
                        return Poll::Pending;
                    }
                    Poll::Ready(Ok(0)) => return Poll::Ready(Err(TransferError::From)),
                    Poll::Ready(Err(error)) => {
                        return Poll::Ready(Err(TransferError::of_error(
                            &error,
                            TransferError::From,
                        )));
                    }
                    Poll::Ready(Ok(n)) => {
                        self.framing = match left.saturating_sub(n as u64) {
                            0 => Framing::Done,
                            left => Framing::Length(left),
                        };
                        self.has_begun = true;
                        self.pipe = Some(pipe);
                    }
                }
                continue;
            }
            match self.poll_read(cx, from, worker) {
                Poll::Pending if self.encoder.is_some() && self.flush_encoder()? => {}
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Err(broken)) => return Poll::Ready(Err(broken)),
                Poll::Ready(Ok(None)) if matches!(self.framing, Framing::UntilClose) => {
                    self.framing = Framing::Done;
                    self.encode_ready()?;
                }
                Poll::Ready(Ok(None)) if self.is_stream => self.pass_end(from, to)?,
                Poll::Ready(Ok(None)) => return Poll::Ready(Err(TransferError::From)),
                Poll::Ready(Ok(Some(read))) if self.encoder.is_some() => encoded += read,
                Poll::Ready(Ok(Some(_))) => {}
            }
        }
    }

    /// Writes what may be written.
    fn poll_flush(&mut self, cx: &mut Context<'_>, to: &mut Io) -> Poll<io::Result<()>> {
        if let (0, true, Io::Call(call)) = (self.written, self.is_stream, &mut *to) {
            let here = self.head.len().saturating_sub(self.body_at) + self.ready;
            call.set_body(match (&self.framing, here) {
                (Framing::Done, 0) => Body::None,
                (Framing::Done, here) => Body::Length(here as u64),
                _ => Body::Stream,
            });
        }
        if let (0, Some(places), Io::Call(call)) = (self.written, &self.places, &mut *to) {
            let head = self.head.get(..self.body_at).unwrap_or_default();
            ready!(call.poll_begin(cx, head, places))?;
            self.written = self.body_at;
            self.flushed = false;
        }
        loop {
            let head = &front_bytes(&self.head, self.shared.as_ref())[self.written..];
            let body = match &self.buffer {
                Some(buffer) => &buffer.bytes()[..self.ready],
                None => &[],
            };
            let n = match (head, body) {
                ([], []) => match (&mut self.pipe, to.spliceable_socket()) {
                    (Some(pipe), Some(to)) if pipe.held_bytes() > 0 => {
                        self.moved += ready!(pipe.poll_drain(cx, to))? as u64;
                        continue;
                    }
                    _ if self.flushed => return Poll::Ready(Ok(())),
                    _ => {
                        ready!(Pin::new(&mut *to).poll_flush(cx))?;
                        self.flushed = true;
                        continue;
                    }
                },
                (head, []) => ready!(Pin::new(&mut *to).poll_write(cx, head))?,
                ([], body) => ready!(Pin::new(&mut *to).poll_write(cx, body))?,
                (head, body) => {
                    let both = [IoSlice::new(head), IoSlice::new(body)];
                    ready!(Pin::new(&mut *to).poll_write_vectored(cx, &both))?
                }
            };
            if n == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.flushed = false;
            let of_head = n.min(head.len());
            self.written += of_head;
            let of_body = n - of_head;
            let is_kept = self.keeps.is_some() && of_body > 0 && {
                let is_kept = self.keep_sent(of_body);
                if !is_kept {
                    self.forget_kept();
                }
                is_kept
            };
            if let Some(buffer) = &mut self.buffer {
                buffer.consume(of_body);
                self.ready -= of_body;
            }
            match is_kept {
                true => self.written += of_body,
                false => self.moved += of_body as u64,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_manager::config::MIRRORED;

    use super::super::copy::CopyPlan;
    use super::*;
    use crate::memory::tests::new_memory;

    #[test]
    fn lines_are_added_to_a_head_and_to_its_copy_before_their_ends() {
        let head = b"POST / HTTP/1.1\r\nContent-Length: 3\r\n\r\n".to_vec();
        let memory = new_memory(1 << 20);
        let mut flow = Flow::new(head, Body::None, false, None, Bounds::NONE, &memory).unwrap();
        // A body that is joined to it.
        flow.head.extend_from_slice(b"abc");
        let mut flow = flow.copy_while_read(CopyPlan {
            most: 3,
            memory: Arc::clone(&memory),
        });
        flow.add_lines(b"X-A: 1\r\nX-B: 2\r\n", &memory).unwrap();
        let whole = "POST / HTTP/1.1\r\nContent-Length: 3\r\nX-A: 1\r\nX-B: 2\r\n\r\nabc";
        assert_eq!(flow.head, whole.as_bytes());
        let copy = flow.take_copy(false).unwrap().unwrap();
        let (bytes, body_at, _) = copy.into_parts();
        assert_eq!(bytes.get(body_at..), Some(&b"abc"[..]));
        let head = String::from_utf8(bytes[..body_at].to_vec()).unwrap();
        let wanted = format!("{MIRRORED}: 1\r\nX-A: 1\r\nX-B: 2\r\n\r\n");
        assert!(head.ends_with(&wanted), "{head}");
        assert!(flow.is_read());
        // One without a head, in place of which something else is answered.
        let none = Flow::new(Vec::new(), Body::None, false, None, Bounds::NONE, &memory);
        let mut none = none.unwrap();
        none.add_lines(b"X-A: 1\r\n", &memory).unwrap();
        assert!(none.is_done());
    }

    #[test]
    fn the_framing_of_chunks_is_no_content() {
        let memory = new_memory(1 << 20);
        let buffers = crate::buffer::BufferPool::new(new_memory(1 << 20));
        let head = b"POST / HTTP/1.1\r\n\r\n".to_vec();
        let chunks = "1\r\na\r\n".repeat(50) + "A;x=y\r\n0123456789\r\n0\r\n\r\n";
        for (strip, body) in [(false, chunks.len() as u64), (true, 60)] {
            let mut buffer = buffers.take();
            let mut from = chunks.as_bytes();
            let cx = &mut Context::from_waker(std::task::Waker::noop());
            assert!(buffer.poll_fill(cx, &mut from).is_ready());
            let flow = Flow::new(
                head.clone(),
                Body::Chunked,
                strip,
                Some(buffer),
                Bounds::NONE,
                &memory,
            );
            let mut flow = flow.unwrap();
            assert_eq!(flow.content_sent(), 0);
            flow.set_sent();
            assert_eq!((flow.body_sent(), flow.content_sent()), (body, 60));
        }
    }

    #[test]
    fn bytes_of_a_head_are_overwritten_until_it_is_sent() {
        let memory = new_memory(1 << 20);
        let head = b"GET / HTTP/1.1\r\n\r\n".to_vec();
        let mut flow = Flow::new(head, Body::None, false, None, Bounds::NONE, &memory).unwrap();
        flow.overwrite_head(5, b"x");
        assert!(flow.head.starts_with(b"GET /xHTTP"));
        // Not beyond its end, and not once a part of it is on its way.
        flow.overwrite_head(17, b"ab");
        flow.overwrite_head(usize::MAX, b"ab");
        flow.written = 1;
        flow.overwrite_head(5, b" ");
        assert_eq!(flow.head, b"GET /xHTTP/1.1\r\n\r\n");
        assert!(flow.rewind());
        flow.overwrite_head(5, b" ");
        assert_eq!(flow.head, b"GET / HTTP/1.1\r\n\r\n");
    }

    #[test]
    fn s5_lines_that_make_a_head_large_need_memory() {
        let memory = new_memory(0);
        let head = b"GET / HTTP/1.1\r\n\r\n".to_vec();
        let mut flow = Flow::new(head, Body::None, false, None, Bounds::NONE, &memory).unwrap();
        assert!(flow.add_lines(b"X: y\r\n", &memory).is_ok());
        let line = format!("X: {}\r\n", "y".repeat(HEAD_BYTES));
        assert!(flow.add_lines(line.as_bytes(), &memory).is_err());
    }

    #[test]
    fn s5_a_large_head_needs_memory() {
        let flow = |size, memory: &Arc<Memory>| {
            Flow::new(
                vec![b'x'; size],
                Body::None,
                false,
                None,
                Bounds::NONE,
                memory,
            )
            .map(drop)
        };
        let none = new_memory(0);
        assert_eq!(flow(HEAD_BYTES, &none), Ok(()));
        let error = flow(HEAD_BYTES + 1, &none);
        assert_eq!(error, Err(TransferError::Exhausted(Shortage::Memory)));
        let some = new_memory(4 * HEAD_BYTES);
        for _ in 0..9 {
            assert_eq!(flow(HEAD_BYTES + 1, &some), Ok(()), "it is given back");
        }
    }
}
