//! The body of a message that goes out over HTTP/2, written as HTTP/1 frames it.

use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use evenkeel_http2::{Break, Fields, Key};

use super::engine::Engine;
use super::grpc;
use super::incoming::break_error;
use crate::http1::chunked::{Decoder, Piece};
use crate::message::Body;

/// Most trailer fields that are passed on.
const MAX_TRAILERS: usize = 64;

/// Writes a body, as far as the receiver's windows allow.
#[derive(Debug)]
pub(super) struct Outgoing {
    to: Receiver,
    framing: Framing,
    /// Status of a call of gRPC, if trailers have one.
    grpc_status: Option<Vec<u8>>,
}

/// The stream that a body goes to.
#[derive(Debug)]
struct Receiver {
    engine: Rc<Engine>,
    key: Key,
}

#[derive(Debug)]
enum Framing {
    /// Number of bytes that are still to come.
    Length(u64),
    Chunked(Box<Chunks>),
    UntilClose,
    /// Until [`Outgoing::finish`].
    Stream,
    /// The stream has ended.
    Ended,
}

#[derive(Debug)]
struct Chunks {
    decoder: Decoder,
    /// Content that the decoder has seen, and that is not sent yet.
    left: usize,
    /// Framing since the last content: at the end, the last chunk and the trailers.
    framing: Vec<u8>,
}

impl Outgoing {
    /// Returns the outgoing side of a message whose head was sent, with a body.
    pub(super) fn new(engine: Rc<Engine>, key: Key, body: Body) -> Self {
        let framing = match body {
            Body::None | Body::Length(0) => Framing::Ended,
            Body::Length(length) => Framing::Length(length),
            Body::Chunked => Framing::Chunked(Box::new(Chunks {
                decoder: Decoder::new(),
                left: 0,
                framing: Vec::new(),
            })),
            Body::UntilClose => Framing::UntilClose,
            Body::Stream => Framing::Stream,
        };
        Outgoing {
            to: Receiver { engine, key },
            framing,
            grpc_status: None,
        }
    }

    pub(super) fn take_grpc_status(&mut self) -> Option<Vec<u8>> {
        self.grpc_status.take()
    }

    /// Ends a body whose end is that of the connection.
    pub(super) fn end_until_close(&mut self) -> io::Result<()> {
        if let Framing::UntilClose = self.framing {
            self.framing = Framing::Ended;
            self.to.end_stream(&Fields::new())?;
        }
        Ok(())
    }

    /// Ends a body of [`Body::Stream`], all of which was sent, with these trailers.
    pub(super) fn finish(&mut self, trailers: &Fields) -> io::Result<()> {
        if let Framing::Stream = self.framing {
            self.grpc_status = trailers.get(grpc::STATUS).map(<[u8]>::to_vec);
            self.framing = Framing::Ended;
            self.to.end_stream(trailers)?;
        }
        Ok(())
    }

    /// Ends the body with a short text, which waits for room if there is none.
    pub(super) fn end_with(&mut self, text: Bytes) -> io::Result<()> {
        self.framing = Framing::Ended;
        let Receiver { engine, key } = &self.to;
        let sent = engine.with_connection(|connection| connection.send_tail(*key, text));
        sent.map_err(send_error)
    }

    /// Writes some of `bytes`: how much was taken.
    pub(super) fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let Outgoing {
            to,
            framing,
            grpc_status,
        } = self;
        match framing {
            Framing::Length(left) => {
                let most = usize::try_from(*left).unwrap_or(usize::MAX);
                let here = bytes.get(..most.min(bytes.len())).unwrap_or(bytes);
                let n = ready!(to.poll_send(cx, here, *left))?;
                *left -= n as u64;
                if *left == 0 {
                    *framing = Framing::Ended;
                }
                Poll::Ready(Ok(n))
            }
            Framing::UntilClose | Framing::Stream => to.poll_send(cx, bytes, u64::MAX),
            Framing::Chunked(chunks) => {
                let written = ready!(chunks.poll_write(cx, to, bytes))?;
                if chunks.decoder.is_done() {
                    let trailers = parse_trailers(&chunks.framing);
                    *grpc_status = trailers.get(grpc::STATUS).map(<[u8]>::to_vec);
                    *framing = Framing::Ended;
                    to.end_stream(&trailers)?;
                }
                Poll::Ready(Ok(written))
            }
            Framing::Ended => Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
        }
    }
}

impl Chunks {
    fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        to: &Receiver,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let mut used = 0;
        loop {
            let rest = bytes.get(used..).unwrap_or_default();
            if self.left > 0 && !rest.is_empty() {
                let here = rest.get(..self.left).unwrap_or(rest);
                match to.poll_send(cx, here, u64::MAX)? {
                    Poll::Ready(n) => {
                        self.left -= n;
                        used += n;
                        continue;
                    }
                    Poll::Pending if used > 0 => return Poll::Ready(Ok(used)),
                    Poll::Pending => return Poll::Pending,
                }
            }
            let step = self.decoder.next_piece(rest);
            match step.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))? {
                Piece::Framing(0) => return Poll::Ready(Ok(used)),
                Piece::Framing(n) => {
                    self.framing
                        .extend_from_slice(rest.get(..n).unwrap_or_default());
                    used += n;
                }
                Piece::Dropped(n) => used += n,
                Piece::Data(n) => {
                    self.framing.clear();
                    self.left = n;
                }
                Piece::End(n) => {
                    self.framing
                        .extend_from_slice(rest.get(..n).unwrap_or_default());
                    return Poll::Ready(Ok(used + n));
                }
            }
        }
    }
}

impl Receiver {
    /// Ends the stream, with trailers if there are any.
    fn end_stream(&self, trailers: &Fields) -> io::Result<()> {
        let ended = self
            .engine
            .with_connection(|connection| match trailers.is_empty() {
                true => connection.send_data(self.key, &[], true).map(drop),
                false => connection.send_trailers(self.key, trailers),
            });
        ended.map_err(send_error)
    }

    /// Sends as much of `bytes` as there is room for; that ends the stream if they are the last of
    /// the body, of which `left` bytes are left.
    fn poll_send(&self, cx: &Context<'_>, bytes: &[u8], left: u64) -> Poll<io::Result<usize>> {
        let ends = bytes.len() as u64 == left;
        let sent = self
            .engine
            .with_connection(|connection| connection.send_data(self.key, bytes, ends));
        match sent {
            Ok(0) if !bytes.is_empty() => {
                self.engine.register_waker(self.key, cx);
                Poll::Pending
            }
            sent => Poll::Ready(sent.map_err(send_error)),
        }
    }
}

fn send_error(end: Break) -> io::Error {
    break_error(end, io::ErrorKind::BrokenPipe)
}

/// Returns the trailers at the end of a chunked body, of which `framing` is all after the content.
/// Lines that cannot be trailers are left out.
fn parse_trailers(framing: &[u8]) -> Fields {
    let framing = framing.strip_prefix(b"\r\n").unwrap_or(framing);
    let size_line = framing.windows(2).position(|two| two == b"\r\n");
    let section = size_line.and_then(|end| framing.get(end + 2..));
    let mut fields = [httparse::EMPTY_HEADER; MAX_TRAILERS];
    let mut trailers = Fields::new();
    let parsed = section.map(|section| httparse::parse_headers(section, &mut fields));
    if let Some(Ok(httparse::Status::Complete((_, fields)))) = parsed {
        for field in fields {
            let _ = trailers.push(field.name.as_bytes(), field.value.trim_ascii());
        }
    }
    trailers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trailers_are_behind_the_last_chunk() {
        for (framing, expected) in [
            ("0\r\n\r\n", &[][..]),
            ("\r\n0\r\n\r\n", &[]),
            ("\r\n000;x=y\r\nA: b\r\n\r\n", &[("a", "b")]),
            (
                "\r\n0\r\ngrpc-status: 0\r\nGrpc-Message:\r\n\r\n",
                &[("grpc-status", "0"), ("grpc-message", "")],
            ),
        ] {
            let trailers = parse_trailers(framing.as_bytes());
            assert_eq!(trailers.len(), expected.len(), "{framing:?}");
            for (name, value) in expected {
                assert_eq!(trailers.get(name), Some(value.as_bytes()));
            }
        }
    }
}
