//! A request to a member over HTTP/2, as the flows see it: a connection of HTTP/1 that takes one
//! request and gives one response.

use std::cell::Cell;
use std::io::{self, Write};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use evenkeel_http2::{Break, Cause, Fields, Head, Key, NotOpened, Opening, Reason};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::incoming::{Incoming, break_error};
use super::links::Link;
use super::outgoing::Outgoing;
use super::place::Place;
use super::websocket;
use crate::http1::head::MAX_FIELDS;
use crate::http1::{Limits, ParseOutcome, RequestHead};
use crate::message::{self, Body};
use crate::worker::Worker;

/// Heads were checked before they were written for a member; what is said of clients came on top.
const LIMITS: Limits = Limits {
    max_bytes: 2 * 1024 * 1024,
    max_fields: MAX_FIELDS,
};

/// Stream of a connection to a member.
#[derive(Debug)]
pub(crate) struct Call {
    place: Place,
    /// The stream, once it was opened.
    key: Option<Key>,
    outgoing: Option<Outgoing>,
    asks_for_head: bool,
    /// A head of the response, and how much of it was read.
    answer: Vec<u8>,
    answer_read: usize,
    incoming: Option<Incoming>,
    /// Answer to a client whose offer of WebSocket was taken, if the client has made one.
    accept: Option<String>,
    /// The request never began.
    failed: bool,
    /// The member has not processed the request.
    refused: bool,
    /// The member takes no WebSocket.
    unable: bool,
    /// The request's head cannot be said in HTTP/2.
    unfit: bool,
    /// True if the request is to look as if it was cut.
    cut: Cell<bool>,
}

impl Call {
    pub(crate) fn new(link: Rc<Link>, worker: Rc<Worker>) -> Self {
        Call {
            key: None,
            outgoing: None,
            asks_for_head: false,
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

    pub(crate) fn uri_scheme(&self) -> &'static str {
        "http"
    }

    /// True if the member says that it has not processed the request.
    pub(crate) fn is_refused(&self) -> bool {
        self.refused
    }

    /// True if the member has refused the connection after the handshake of TLS.
    pub(crate) fn is_of_refused(&self) -> bool {
        self.place.link.is_refused()
    }

    /// True if the member has closed the connection, which was idle before this request.
    pub(crate) fn is_stale(&self) -> bool {
        self.place.is_stale()
    }

    /// True if the request was for WebSocket, which the member does not take.
    pub(crate) fn is_unable(&self) -> bool {
        self.unable
    }

    /// True if HTTP/2 cannot say what is in the head of the request: it was not sent.
    pub(crate) fn is_unfit(&self) -> bool {
        self.unfit
    }

    /// The request was given up.
    pub(crate) fn mark_cut(&self) {
        self.cut.set(true);
    }

    /// Takes note of why the stream has failed.
    fn note_break(&mut self, end: Break) -> io::Error {
        self.refused |= end.unprocessed;
        if end.cause == Cause::Connection {
            self.place.link.close();
        }
        let kind = match end.cause {
            // A message that was malformed; others of the connection go on.
            Cause::Local => io::ErrorKind::InvalidData,
            Cause::Peer | Cause::Connection => io::ErrorKind::ConnectionReset,
        };
        break_error(end, kind)
    }

    /// Sends a head. A head that asks for WebSocket waits for the member's settings.
    fn poll_begin(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<()>> {
        let mut fields = crate::http1::Fields::new();
        let head = match RequestHead::parse(bytes, LIMITS, &mut fields) {
            Ok(ParseOutcome::Head(head)) => head,
            _ => return Poll::Ready(Err(io::ErrorKind::InvalidData.into())),
        };
        let accept = websocket::accept_value(&head.request);
        if accept.is_some() {
            let connects = ready!(self.place.link.poll_connects(cx));
            let failure = connects.as_ref().err().map(io::Error::kind);
            self.unable = failure == Some(io::ErrorKind::Unsupported);
            // Nothing of it was sent.
            self.refused |= failure == Some(io::ErrorKind::ConnectionReset);
            connects?;
        }
        let body = match accept {
            Some(_) => Body::UntilClose,
            None => head.request.body,
        };
        let ends = matches!(body, Body::None | Body::Length(0));
        let link = Rc::clone(&self.place.link);
        let mut fields = link.engine.take_fields();
        let opened = self.open_stream(&head.request, accept.is_some(), ends, &mut fields);
        link.engine.give_fields(fields);
        let Some(opened) = opened else {
            self.unfit = true;
            return Poll::Ready(Err(io::ErrorKind::InvalidData.into()));
        };
        match opened {
            Ok(key) => {
                self.accept = accept;
                self.asks_for_head = head.framing_facts.head;
                self.key = Some(key);
                let outgoing = Outgoing::new(Rc::clone(&link.engine), key, body);
                self.outgoing = Some(outgoing);
                Poll::Ready(Ok(()))
            }
            Err(NotOpened::Full) => {
                link.register_waker(cx);
                Poll::Pending
            }
            Err(NotOpened::Closing) => {
                // A connection that takes no more streams has seen nothing of this one.
                self.refused = true;
                link.close();
                Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()))
            }
        }
    }

    /// Opens a stream with a request; `None` if HTTP/2 cannot say its head. `connects` says that it asks for WebSocket.
    fn open_stream(
        &self,
        head: &message::Request<'_>,
        connects: bool,
        ends: bool,
        fields: &mut Fields,
    ) -> Option<Result<Key, NotOpened>> {
        for field in head.kept_fields() {
            if connects && field.name.eq_ignore_ascii_case("sec-websocket-key") {
                continue;
            }
            if !fields.push(field.name.as_bytes(), field.value.trim_ascii()) {
                return None;
            }
        }
        if head.takes_trailers && !fields.push(b"te", b"trailers") {
            return None;
        }
        if let Body::Length(length) = head.body
            && !fields.push(b"content-length", length.to_string().as_bytes())
        {
            return None;
        }
        let encoded = encode_path(head.path_and_query);
        let path = encoded.as_deref().unwrap_or(head.path_and_query);
        let is_sayable = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic());
        let authority = head.authority.filter(|authority| !authority.is_empty())?;
        if !is_sayable(path) || !is_authority(authority) {
            return None;
        }
        let link = &self.place.link;
        let opening = Opening {
            method: match connects {
                true => b"CONNECT",
                false => head.method.as_bytes(),
            },
            scheme: link.uri_scheme().as_bytes(),
            authority: Some(authority.as_bytes()),
            path: path.as_bytes(),
            protocol: connects.then_some(b"websocket"),
        };
        let opened = link
            .engine
            .with_connection(|connection| connection.open_request(opening, fields, ends));
        Some(opened)
    }

    /// Waits for a head of the response.
    fn poll_head(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some(key) = self.key else {
            return match self.failed {
                true => Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())),
                false => Poll::Pending,
            };
        };
        let engine = Rc::clone(&self.place.link.engine);
        let Some(head) = engine.with_connection(|connection| connection.take_head(key)) else {
            engine.register_waker(key, cx);
            return match engine.read_connection(|connection| connection.stream_break(key)) {
                Some(end) => Poll::Ready(Err(self.note_break(end))),
                None => Poll::Pending,
            };
        };
        if (100..200).contains(&head.status()) {
            self.put_head(head.status(), &head.fields, None);
        } else {
            self.take(key, &head);
        }
        engine.with_connection(|connection| connection.give_head(head));
        Poll::Ready(Ok(()))
    }

    fn take(&mut self, key: Key, head: &Head) {
        let (status, fields) = (head.status(), &head.fields);
        let engine = Rc::clone(&self.place.link.engine);
        if let Some(accept) = self.accept.take()
            && (200..300).contains(&status)
        {
            // The other protocol begins; all that comes is its.
            let mut fields = fields.clone();
            fields.remove("content-length");
            fields.remove("sec-websocket-accept");
            let switch = format!(
                "Connection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: {accept}\r\n"
            );
            self.put_head(101, &fields, Some(&switch));
            self.incoming = Some(Incoming::new(engine, key, false));
            return;
        }
        let has_none = self.asks_for_head || matches!(status, 204 | 304);
        let framing = match head.content_length() {
            Some(_) => None,
            None if has_none => None,
            None if head.has_ended() => Some("Content-Length: 0\r\n"),
            None => Some("Transfer-Encoding: chunked\r\n"),
        };
        let chunked = framing.is_some_and(|framing| framing.starts_with('T'));
        self.put_head(status, fields, framing);
        self.incoming = Some(Incoming::new(engine, key, chunked));
    }

    fn put_head(&mut self, status: u16, fields: &Fields, framing: Option<&str>) {
        self.answer.clear();
        self.answer_read = 0;
        // Writing to memory does not fail.
        let _ = write!(self.answer, "HTTP/1.1 {status} \r\n");
        self.answer.extend_from_slice(fields.text());
        let framing = framing.unwrap_or_default();
        self.answer.extend_from_slice(framing.as_bytes());
        self.answer.extend_from_slice(b"\r\n");
    }
}

/// True if `:authority` may be `authority`: a host and a port (RFC 3986, section 3.2), with nothing that would
/// be somebody else's.
fn is_authority(authority: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=:[]".contains(&byte);
    authority.bytes().all(allowed)
}

/// Returns a path and query in which the bytes are encoded that URIs do not have (RFC 3986,
/// appendix A), and that clients send all the same; `None` if `path` is fine as it is. A path and
/// query without a path gets `/`.
fn encode_path(path: &str) -> Option<String> {
    let is_odd = |byte: u8| matches!(byte, b'"' | b'<' | b'>' | b'`');
    let lacks_path = path.is_empty() || path.starts_with('?');
    if !lacks_path && !path.bytes().any(is_odd) {
        return None;
    }
    let mut out = String::with_capacity(path.len() + 16);
    if lacks_path {
        out.push('/');
    }
    for part in path.chars() {
        match u8::try_from(part) {
            Ok(byte) if is_odd(byte) => out.push_str(&format!("%{byte:02X}")),
            _ => out.push(part),
        }
    }
    Some(out)
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

    /// Does nothing: the bytes that were written go out when the connection's task has its turn.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        let outgoing = &mut self.get_mut().outgoing;
        Poll::Ready(outgoing.as_mut().map_or(Ok(()), Outgoing::end_until_close))
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        let answer = std::mem::take(&mut self.answer);
        self.place.worker.buffers.give_head(answer);
        if let Some(key) = self.key {
            let reason = self.cut.get().then_some(Reason::CANCEL);
            self.place.link.engine.release_stream(key, reason);
        }
    }
}
