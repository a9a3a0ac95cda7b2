//! A request to a member over HTTP/2, as the flows see it: a connection of HTTP/1 that takes one
//! request and gives one response.

use std::cell::Cell;
use std::io::{self, Write};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::Reason;
use h2::client::ResponseFuture;
use h2::ext::Protocol;
use http::header::CONTENT_LENGTH;
use http::uri::{Authority, PathAndQuery, Uri};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::incoming::{Incoming, put_fields};
use super::links::{Link, Place};
use super::outgoing::{Outgoing, broken};
use super::stream::{part_of, value_of};
use super::websocket;
use crate::http1::head::MAX_FIELDS;
use crate::http1::{Fields, Limits, Parsed, RequestHead};
use crate::message::{self, Body};
use crate::worker::Worker;

/// Heads were checked before they were written for a member; what is said of clients came on top.
const LIMITS: Limits = Limits {
    max_bytes: 2 * 1024 * 1024,
    max_fields: MAX_FIELDS,
};

/// One stream of a connection to a member.
#[derive(Debug)]
pub(crate) struct Call {
    place: Place,
    outgoing: Option<Outgoing>,
    asks_for_head: bool,
    response: Option<ResponseFuture>,
    /// A head of the response, and how much of it was read.
    answer: Vec<u8>,
    answer_read: usize,
    incoming: Option<Incoming>,
    /// What a client is told whose offer of WebSocket was taken, if it has made one.
    accept: Option<String>,
    /// The request never began.
    failed: bool,
    /// The member has not processed the request.
    refused: bool,
    /// The member takes no WebSocket.
    unable: bool,
    /// The request's head cannot be said in HTTP/2.
    unfit: bool,
    /// Whether the request is to look as if it was cut.
    cut: Cell<bool>,
}

impl Call {
    pub(crate) fn new(link: Rc<Link>, worker: Rc<Worker>) -> Self {
        Call {
            outgoing: None,
            asks_for_head: false,
            response: None,
            answer: worker.buffers.take_head(),
            place: Place::take(link, worker),
            answer_read: 0,
            incoming: None,
            accept: None,
            failed: false,
            refused: false,
            unable: false,
            unfit: false,
            cut: Cell::new(false),
        }
    }

    pub(crate) fn scheme(&self) -> &'static str {
        "http"
    }

    /// Whether the member says that it has not processed the request.
    pub(crate) fn is_refused(&self) -> bool {
        self.refused
    }

    /// Whether the member has refused the connection after the handshake of TLS.
    pub(crate) fn is_of_refused(&self) -> bool {
        self.place.link.is_refused()
    }

    /// Whether the member has closed the connection, which was idle before this request.
    pub(crate) fn is_stale(&self) -> bool {
        self.place.is_stale()
    }

    /// Whether the request was for WebSocket, which the member does not take.
    pub(crate) fn is_unable(&self) -> bool {
        self.unable
    }

    /// True if HTTP/2 cannot say what is in the head of the request: it was not sent.
    pub(crate) fn is_unfit(&self) -> bool {
        self.unfit
    }

    /// The request was given up.
    pub(crate) fn cut(&self) {
        self.cut.set(true);
    }

    /// Takes note of why the stream has failed.
    fn failed(&mut self, error: h2::Error) -> io::Error {
        let processed_none = error.reason() == Some(Reason::REFUSED_STREAM)
            || error.is_go_away() && error.reason() == Some(Reason::NO_ERROR);
        self.refused |= processed_none && error.is_remote();
        if error.is_go_away() || error.is_io() {
            self.place.link.close();
        }
        let kind = match error.is_reset() && error.is_library() {
            // A message that was malformed; others of the connection go on.
            true => io::ErrorKind::InvalidData,
            false => io::ErrorKind::ConnectionReset,
        };
        io::Error::new(kind, error.to_string())
    }

    /// Sends a head. One that asks for WebSocket waits for the member's settings.
    fn poll_begin(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<()>> {
        let mut fields = Fields::new();
        let raw = Bytes::copy_from_slice(bytes);
        let head = match RequestHead::parse(bytes, LIMITS, &mut fields) {
            Ok(Parsed::Head(head)) => head,
            _ => return Poll::Ready(Err(io::ErrorKind::InvalidData.into())),
        };
        let accept = websocket::accept(&head.request);
        if accept.is_some() {
            let connects = ready!(self.place.link.poll_connects(cx));
            self.unable = connects
                .as_ref()
                .is_err_and(|error| error.kind() == io::ErrorKind::Unsupported);
            connects?;
        }
        let Some(mut request) = self.translate(&head.request, bytes, &raw, accept.is_some()) else {
            self.unfit = true;
            return Poll::Ready(Err(io::ErrorKind::InvalidData.into()));
        };
        if let Body::Length(length) = head.request.body {
            request
                .headers_mut()
                .insert(CONTENT_LENGTH, HeaderValue::from(length));
        }
        let body = match accept {
            Some(_) => Body::UntilClose,
            None => head.request.body,
        };
        self.accept = accept;
        self.asks_for_head = head.asked.head;
        let ends = matches!(body, Body::None | Body::Length(0));
        let sent = self
            .place
            .link
            .send
            .borrow_mut()
            .send_request(request, ends);
        match sent {
            Ok((response, stream)) => {
                self.response = Some(response);
                self.outgoing = Some(Outgoing::new(stream, body, self.place.link.held()));
                Poll::Ready(Ok(()))
            }
            Err(error) => {
                // A connection that takes no more streams has seen nothing of this one.
                self.refused = true;
                self.place.link.close();
                Poll::Ready(Err(broken(error)))
            }
        }
    }

    /// The head of a request as HTTP/2 has it; `None` if it cannot have such. `raw` is a copy of `bytes`, in which the head
    /// is. `connects` says that it asks for WebSocket.
    fn translate(
        &self,
        head: &message::Request<'_>,
        bytes: &[u8],
        raw: &Bytes,
        connects: bool,
    ) -> Option<http::Request<()>> {
        let mut uri = http::uri::Parts::default();
        uri.scheme = Some(self.place.link.scheme());
        let authority = part_of(raw, bytes, head.authority.unwrap_or_default().as_bytes())?;
        uri.authority = Some(Authority::from_maybe_shared(authority).ok()?);
        let path = part_of(raw, bytes, head.path_and_query.as_bytes())?;
        let path = PathAndQuery::from_maybe_shared(path.clone())
            .or_else(|_| PathAndQuery::from_maybe_shared(Bytes::from(encoded(&path))));
        uri.path_and_query = Some(path.ok()?);
        let mut request = http::Request::new(());
        *request.uri_mut() = Uri::from_parts(uri).ok()?;
        *request.method_mut() = Method::from_bytes(head.method.as_bytes()).ok()?;
        *request.version_mut() = http::Version::HTTP_2;
        if connects {
            *request.method_mut() = Method::CONNECT;
            let protocol = Protocol::from_static("websocket");
            request.extensions_mut().insert(protocol);
        }
        let out = request.headers_mut();
        for field in head.kept() {
            if connects && field.name.eq_ignore_ascii_case("sec-websocket-key") {
                continue;
            }
            let name = HeaderName::from_bytes(field.name.as_bytes()).ok()?;
            out.append(name, value_of(raw, bytes, field.value)?);
        }
        if head.takes_trailers {
            out.insert("te", HeaderValue::from_static("trailers"));
        }
        Some(request)
    }

    /// Waits for a head of the response.
    fn poll_head(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some(response) = &mut self.response else {
            return match self.failed {
                true => Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())),
                false => Poll::Pending,
            };
        };
        if let Poll::Ready(Some(interim)) = response.poll_informational(cx) {
            return match interim {
                Ok(interim) => {
                    self.put_head(interim.status(), interim.headers(), None);
                    Poll::Ready(Ok(()))
                }
                Err(error) => Poll::Ready(Err(self.failed(error))),
            };
        }
        match ready!(Pin::new(response).poll(cx)) {
            Ok(response) => {
                self.response = None;
                self.take(response);
                Poll::Ready(Ok(()))
            }
            Err(error) => {
                self.response = None;
                Poll::Ready(Err(self.failed(error)))
            }
        }
    }

    fn take(&mut self, response: Response<h2::RecvStream>) {
        let (parts, stream) = response.into_parts();
        let (status, mut fields) = (parts.status, parts.headers);
        if let Some(accept) = self.accept.as_deref()
            && status.is_success()
        {
            // The other protocol begins; all that comes is its.
            fields.remove(CONTENT_LENGTH);
            fields.remove("sec-websocket-accept");
            let switch = format!(
                "Connection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: {accept}\r\n"
            );
            self.put_head(StatusCode::SWITCHING_PROTOCOLS, &fields, Some(&switch));
            self.receive(Incoming::new(stream, false));
            return;
        }
        let has_none = self.asks_for_head
            || matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
        let framing = match fields.contains_key(CONTENT_LENGTH) {
            true => None,
            false if has_none => None,
            false if stream.is_end_stream() => Some("Content-Length: 0\r\n"),
            false => Some("Transfer-Encoding: chunked\r\n"),
        };
        let chunked = framing.is_some_and(|framing| framing.starts_with('T'));
        self.put_head(status, &fields, framing);
        self.receive(Incoming::new(stream, chunked));
    }

    /// Reads a body from now on.
    fn receive(&mut self, mut incoming: Incoming) {
        if !incoming.is_empty() {
            self.place.receive(incoming.flow_control());
        }
        self.incoming = Some(incoming);
    }

    fn put_head(&mut self, status: StatusCode, fields: &HeaderMap, framing: Option<&str>) {
        self.answer.clear();
        self.answer_read = 0;
        // Writing to memory does not fail.
        let _ = write!(self.answer, "HTTP/1.1 {} \r\n", status.as_u16());
        put_fields(fields, &mut self.answer);
        let framing = framing.unwrap_or_default();
        self.answer.extend_from_slice(framing.as_bytes());
        self.answer.extend_from_slice(b"\r\n");
    }
}

/// A path and query in which what URIs do not have (RFC 3986, appendix A), and clients send all the same, is encoded.
fn encoded(path: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(path.len() + 16);
    for &byte in path {
        match byte {
            b'"' | b'<' | b'>' | b'`' => {
                // Writing to memory does not fail.
                let _ = write!(out, "%{byte:02X}");
            }
            _ => out.push(byte),
        }
    }
    out
}

impl AsyncRead for Call {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        space: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = space.filled().len();
        loop {
            let answer = this.answer.get(this.answer_read..).unwrap_or_default();
            let n = answer.len().min(space.remaining());
            space.put_slice(answer.get(..n).unwrap_or_default());
            this.answer_read += n;
            if space.remaining() == 0 {
                return Poll::Ready(Ok(()));
            }
            let step = match &mut this.incoming {
                Some(incoming) => {
                    let read = incoming.poll_read(cx, space);
                    match read {
                        Poll::Pending if space.filled().len() > before => Poll::Ready(Ok(())),
                        read => read,
                    }
                }
                None => match this.poll_head(cx) {
                    Poll::Ready(Ok(())) => continue,
                    Poll::Pending if space.filled().len() > before => Poll::Ready(Ok(())),
                    other => other,
                },
            };
            return step;
        }
    }
}

impl AsyncWrite for Call {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if let Some(outgoing) = &mut this.outgoing {
            return outgoing.poll_write(cx, bytes);
        }
        // A flow writes a head as a whole, perhaps with a small body behind it.
        let end = bytes.windows(4).position(|end| end == b"\r\n\r\n");
        let Some(end) = end.map(|end| end + 4) else {
            return Poll::Ready(Err(io::ErrorKind::InvalidData.into()));
        };
        let head = bytes.get(..end).unwrap_or_default();
        let begun = ready!(this.poll_begin(cx, head));
        this.failed = begun.is_err();
        Poll::Ready(begun.map(|()| end))
    }

    /// What was written goes out when the connection's task has its turn.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        let outgoing = &mut self.get_mut().outgoing;
        Poll::Ready(outgoing.as_mut().map_or(Ok(()), Outgoing::end))
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.place.stop_receiving();
        let answer = std::mem::take(&mut self.answer);
        self.place.worker.buffers.give_head(answer);
        if self.cut.get()
            && let Some(outgoing) = &mut self.outgoing
        {
            outgoing.reset(Reason::CANCEL);
        }
    }
}
