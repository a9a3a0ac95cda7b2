//! The body of a message that comes over HTTP/2, read as HTTP/1 frames it.

use std::io::{self, Write};
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use h2::{FlowControl, RecvStream};
use http::HeaderMap;
use tokio::io::ReadBuf;

/// Reads a body: as it is, or in chunks, if its length is not known.
#[derive(Debug)]
pub(super) struct Incoming {
    stream: RecvStream,
    chunked: bool,
    /// Framing that comes next, and how much of it was read.
    framing: Vec<u8>,
    framing_read: usize,
    /// The content after it.
    data: Bytes,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Data,
    Trailers,
    Ended,
    Broken,
}

impl Incoming {
    pub(super) fn new(stream: RecvStream, chunked: bool) -> Self {
        Incoming {
            stream,
            chunked,
            framing: Vec::new(),
            framing_read: 0,
            data: Bytes::new(),
            state: State::Data,
        }
    }

    /// Whether there is no body, and never was.
    pub(super) fn is_empty(&self) -> bool {
        self.stream.is_end_stream()
    }

    /// Tells how many bytes have arrived and were not read.
    pub(super) fn flow_control(&mut self) -> FlowControl {
        self.stream.flow_control().clone()
    }

    pub(super) fn set_chunked(&mut self, chunked: bool) {
        self.chunked = chunked;
    }

    /// Reads what there is. What was read makes room for more: a receiver that takes nothing
    /// stops the sender.
    pub(super) fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        space: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = space.filled().len();
        while space.remaining() > 0 && self.state != State::Ended || self.has_some() {
            if self.put(space) {
                if space.remaining() == 0 {
                    break;
                }
                continue;
            }
            match self.poll_more(cx) {
                Poll::Ready(Ok(())) => {}
                // What was read before is still good.
                _ if space.filled().len() > before => break,
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => return Poll::Pending,
            }
        }
        Poll::Ready(Ok(()))
    }

    fn has_some(&self) -> bool {
        self.framing_read < self.framing.len() || !self.data.is_empty()
    }

    /// Reads what is here; false if there is nothing.
    fn put(&mut self, space: &mut ReadBuf<'_>) -> bool {
        let framing = self.framing.get(self.framing_read..).unwrap_or_default();
        if !framing.is_empty() {
            let n = framing.len().min(space.remaining());
            space.put_slice(framing.get(..n).unwrap_or_default());
            self.framing_read += n;
            return true;
        }
        let n = self.data.len().min(space.remaining());
        if n == 0 {
            return false;
        }
        space.put_slice(self.data.get(..n).unwrap_or_default());
        self.data.advance(n);
        // Fails only for a stream that is gone, as the next call will say.
        let _ = self.stream.flow_control().release_capacity(n);
        if self.data.is_empty() && self.chunked {
            self.frame(b"\r\n");
        }
        true
    }

    fn frame(&mut self, framing: &[u8]) {
        self.framing.clear();
        self.framing_read = 0;
        self.framing.extend_from_slice(framing);
    }

    /// Gets what comes next.
    fn poll_more(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.state {
            State::Data => match ready!(self.stream.poll_data(cx)) {
                Some(Ok(data)) => {
                    if self.chunked && !data.is_empty() {
                        self.frame(b"");
                        write!(self.framing, "{:x}\r\n", data.len())?;
                    }
                    self.data = data;
                }
                Some(Err(error)) => return self.broken(error),
                None if self.chunked => self.state = State::Trailers,
                None => self.state = State::Ended,
            },
            State::Trailers => match ready!(self.stream.poll_trailers(cx)) {
                Ok(trailers) => {
                    self.frame(b"0\r\n");
                    put_fields(&trailers.unwrap_or_default(), &mut self.framing);
                    self.framing.extend_from_slice(b"\r\n");
                    self.state = State::Ended;
                }
                Err(error) => return self.broken(error),
            },
            State::Ended => {}
            State::Broken => return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())),
        }
        Poll::Ready(Ok(()))
    }

    fn broken(&mut self, error: h2::Error) -> Poll<io::Result<()>> {
        self.state = State::Broken;
        Poll::Ready(Err(io::Error::new(
            io::ErrorKind::ConnectionReset,
            error.to_string(),
        )))
    }
}

pub(super) fn put_fields(fields: &HeaderMap, out: &mut Vec<u8>) {
    for (name, value) in fields {
        for part in [name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"] {
            out.extend_from_slice(part);
        }
    }
}
