//! The body of a message that goes out over HTTP/2, written as HTTP/1 frames it.

use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use h2::{Reason, SendStream};
use http::{HeaderMap, HeaderName, HeaderValue};

use super::grpc;
use super::held::{Held, Part};
use crate::http1::chunked::{Decoder, Piece};
use crate::message::Body;

/// Most trailer fields that are passed on.
const MAX_TRAILERS: usize = 64;

/// Writes a body, as far as the receiver's windows allow.
#[derive(Debug)]
pub(super) struct Outgoing {
    stream: SendStream<Part>,
    held: Rc<Held>,
    framing: Framing,
    /// Status of a call of gRPC, if trailers have one.
    grpc_status: Option<HeaderValue>,
}

#[derive(Debug)]
enum Framing {
    /// So many bytes are still to come.
    Length(u64),
    Chunked(Box<Chunks>),
    UntilClose,
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
    /// For a message whose head was sent, with a body.
    pub(super) fn new(stream: SendStream<Part>, body: Body, held: Rc<Held>) -> Self {
        let framing = match body {
            Body::None | Body::Length(0) => Framing::Ended,
            Body::Length(length) => Framing::Length(length),
            Body::Chunked => Framing::Chunked(Box::new(Chunks {
                decoder: Decoder::new(),
                left: 0,
                framing: Vec::new(),
            })),
            Body::UntilClose => Framing::UntilClose,
        };
        Outgoing {
            stream,
            held,
            framing,
            grpc_status: None,
        }
    }

    pub(super) fn take_grpc_status(&mut self) -> Option<HeaderValue> {
        self.grpc_status.take()
    }

    pub(super) fn is_reset(&mut self, cx: &mut Context<'_>) -> bool {
        self.stream.poll_reset(cx).is_ready()
    }

    pub(super) fn reset(&mut self, reason: Reason) {
        self.stream.send_reset(reason);
    }

    /// Ends a body whose end is that of the connection.
    pub(super) fn end(&mut self) -> io::Result<()> {
        if let Framing::UntilClose = self.framing {
            self.framing = Framing::Ended;
            let end = Part::of(Bytes::new());
            self.stream.send_data(end, true).map_err(broken)?;
        }
        Ok(())
    }

    /// Ends the body with a short text, which waits for room if there is none.
    pub(super) fn end_with(&mut self, text: Bytes) -> io::Result<()> {
        self.framing = Framing::Ended;
        self.stream.send_data(Part::of(text), true).map_err(broken)
    }

    /// Writes some of `bytes`: how much was taken.
    pub(super) fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let Outgoing {
            stream,
            held,
            framing,
            grpc_status,
        } = self;
        match framing {
            Framing::Length(left) => {
                let most = usize::try_from(*left).unwrap_or(usize::MAX);
                let here = bytes.get(..most.min(bytes.len())).unwrap_or(bytes);
                let n = ready!(poll_send(cx, stream, held, here, *left))?;
                *left -= n as u64;
                if *left == 0 {
                    *framing = Framing::Ended;
                }
                Poll::Ready(Ok(n))
            }
            Framing::UntilClose => poll_send(cx, stream, held, bytes, u64::MAX),
            Framing::Chunked(chunks) => {
                let written = ready!(chunks.poll_write(cx, stream, held, bytes))?;
                if chunks.decoder.is_done() {
                    let trailers = trailers(&chunks.framing);
                    *grpc_status = trailers.get(grpc::STATUS).cloned();
                    *framing = Framing::Ended;
                    end_stream(stream, trailers)?;
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
        stream: &mut SendStream<Part>,
        held: &Rc<Held>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let mut used = 0;
        loop {
            let rest = bytes.get(used..).unwrap_or_default();
            if self.left > 0 && !rest.is_empty() {
                let here = rest.get(..self.left).unwrap_or(rest);
                match poll_send(cx, stream, held, here, u64::MAX)? {
                    Poll::Ready(n) => {
                        self.left -= n;
                        used += n;
                        continue;
                    }
                    Poll::Pending if used > 0 => return Poll::Ready(Ok(used)),
                    Poll::Pending => return Poll::Pending,
                }
            }
            let step = self.decoder.step(rest);
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

fn end_stream(stream: &mut SendStream<Part>, trailers: HeaderMap) -> io::Result<()> {
    let ended = if trailers.is_empty() {
        stream.send_data(Part::of(Bytes::new()), true)
    } else {
        stream.send_trailers(trailers)
    };
    ended.map_err(broken)
}

/// Sends as much of `bytes` as there is room for; that ends the stream if they are the last of
/// the body, of which `left` bytes are left.
fn poll_send(
    cx: &mut Context<'_>,
    stream: &mut SendStream<Part>,
    held: &Rc<Held>,
    bytes: &[u8],
    left: u64,
) -> Poll<io::Result<usize>> {
    stream.reserve_capacity(bytes.len());
    let mut room = stream.capacity();
    while room == 0 {
        room = match ready!(stream.poll_capacity(cx)) {
            Some(Ok(room)) => room,
            Some(Err(error)) => return Poll::Ready(Err(broken(error))),
            None => return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
        };
    }
    let here = bytes.get(..room.min(bytes.len())).unwrap_or(bytes);
    let Poll::Ready(part) = held.poll_part(cx, here) else {
        // Room in the connection is for streams that can use it.
        stream.reserve_capacity(0);
        return Poll::Pending;
    };
    let n = part.remaining();
    let sent = stream.send_data(part, n as u64 == left);
    Poll::Ready(sent.map(|()| n).map_err(broken))
}

pub(super) fn broken(error: h2::Error) -> io::Error {
    io::Error::new(io::ErrorKind::BrokenPipe, error.to_string())
}

/// The trailers at the end of a chunked body, of which `framing` is all after the content. What
/// cannot be one is left out.
fn trailers(framing: &[u8]) -> HeaderMap {
    let framing = framing.strip_prefix(b"\r\n").unwrap_or(framing);
    let size_line = framing.windows(2).position(|two| two == b"\r\n");
    let section = size_line.and_then(|end| framing.get(end + 2..));
    let mut fields = [httparse::EMPTY_HEADER; MAX_TRAILERS];
    let mut trailers = HeaderMap::new();
    let parsed = section.map(|section| httparse::parse_headers(section, &mut fields));
    if let Some(Ok(httparse::Status::Complete((_, fields)))) = parsed {
        for field in fields {
            let name = HeaderName::from_bytes(field.name.as_bytes());
            if let (Ok(name), Ok(value)) = (name, HeaderValue::from_bytes(field.value)) {
                trailers.append(name, value);
            }
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
            let trailers = trailers(framing.as_bytes());
            assert_eq!(trailers.len(), expected.len(), "{framing:?}");
            for (name, value) in expected {
                assert_eq!(trailers[*name], value);
            }
        }
    }
}
