//! The body of a message that comes over HTTP/2, read as HTTP/1 frames it.

use std::io::{self, Write};
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use evenkeel_http2::{Break, Head, Key, Next};
use tokio::io::ReadBuf;

use super::engine::Engine;

/// Reads a body: as it is, or in chunks, if its length is not known and the receiver needs a framing.
#[derive(Debug)]
pub(super) struct Incoming {
    engine: Rc<Engine>,
    key: Key,
    chunked: bool,
    /// Framing that comes next, and how much of it was read.
    framing: Vec<u8>,
    framing_read: usize,
    /// Bytes of content after it.
    data: usize,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Data,
    Ended,
    Broken,
}

impl Incoming {
    pub(super) fn new(engine: Rc<Engine>, key: Key, chunked: bool) -> Self {
        Incoming {
            engine,
            key,
            chunked,
            framing: Vec::new(),
            framing_read: 0,
            data: 0,
            state: State::Data,
        }
    }

    /// True if there is no body, and never was.
    pub(super) fn is_empty(&self) -> bool {
        self.engine
            .read_connection(|connection| connection.has_no_body(self.key))
    }

    pub(super) fn set_chunked(&mut self, chunked: bool) {
        self.chunked = chunked;
    }

    /// Takes the trailers of a body that has ended and is not read in chunks.
    pub(super) fn take_trailers(&self) -> Option<Head> {
        self.engine
            .with_connection(|connection| connection.take_trailers(self.key))
    }

    /// Gives trailers back, to be filled again.
    pub(super) fn give_trailers(&self, trailers: Head) {
        self.engine
            .with_connection(|connection| connection.give_head(trailers));
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
            if self.put_available(space) {
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
        self.framing_read < self.framing.len() || self.data > 0
    }

    /// Reads what is here; false if there is nothing.
    fn put_available(&mut self, space: &mut ReadBuf<'_>) -> bool {
        let framing = self.framing.get(self.framing_read..).unwrap_or_default();
        if !framing.is_empty() {
            let n = framing.len().min(space.remaining());
            space.put_slice(framing.get(..n).unwrap_or_default());
            self.framing_read += n;
            return true;
        }
        let most = self.data.min(space.remaining());
        if most == 0 {
            return false;
        }
        let key = self.key;
        let n = self.engine.with_connection(|connection| {
            let Next::Data(data) = connection.read(key) else {
                return 0;
            };
            let part = data.get(..most).unwrap_or(data);
            space.put_slice(part);
            let n = part.len();
            connection.consume_body(key, n);
            n
        });
        self.data -= n;
        if self.data == 0 && self.chunked {
            self.put_framing(b"\r\n");
        }
        n > 0
    }

    fn put_framing(&mut self, framing: &[u8]) {
        self.framing.clear();
        self.framing_read = 0;
        self.framing.extend_from_slice(framing);
    }

    /// Gets what comes next.
    fn poll_more(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.state {
            State::Data => {}
            State::Ended => return Poll::Ready(Ok(())),
            State::Broken => return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())),
        }
        let key = self.key;
        let next = self
            .engine
            .read_connection(|connection| match connection.read(key) {
                Next::Data(data) => Poll::Ready(Ok(Some(data.len()))),
                Next::End => Poll::Ready(Ok(None)),
                Next::Broken(end) => Poll::Ready(Err(end)),
                Next::Wait => Poll::Pending,
            });
        if next.is_pending() {
            self.engine.register_waker(key, cx);
        }
        match ready!(next) {
            Ok(Some(length)) => {
                if self.chunked {
                    self.put_framing(b"");
                    write!(self.framing, "{length:x}\r\n")?;
                }
                self.data = length;
            }
            Ok(None) => {
                self.state = State::Ended;
                if self.chunked {
                    self.put_framing(b"0\r\n");
                    if let Some(trailers) = self.take_trailers() {
                        self.framing.extend_from_slice(trailers.fields.text());
                        self.give_trailers(trailers);
                    }
                    self.framing.extend_from_slice(b"\r\n");
                }
            }
            Err(end) => {
                self.state = State::Broken;
                return Poll::Ready(Err(break_error(end, io::ErrorKind::ConnectionReset)));
            }
        }
        Poll::Ready(Ok(()))
    }
}

/// The end of a stream as an error.
pub(super) fn break_error(end: Break, kind: io::ErrorKind) -> io::Error {
    let Break { reason, cause, .. } = end;
    io::Error::new(kind, format!("{reason} ({cause:?})"))
}
