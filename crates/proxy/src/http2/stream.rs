//! A request of a client over HTTP/2, as the flows see it: a connection with one request and one
//! response, whose bodies are framed as in HTTP/1 and whose heads are not in its bytes.

use std::cell::Cell;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use evenkeel_manager::config::FieldChanges;
use evenkeel_tls::handshake::Agreed;
use h2::server::SendResponse;
use h2::{Reason, RecvStream};
use http::header::{
    CONTENT_LENGTH, CONTENT_TYPE, DATE, LOCATION, RETRY_AFTER, SET_COOKIE, WWW_AUTHENTICATE,
};
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::connection::Connection;
use super::grpc::{self, CallStatus};
use super::held::Part;
use super::incoming::Incoming;
use super::outgoing::{Outgoing, broken};
use crate::http1::ResponseHead;
use crate::http1::forward::Added;
use crate::http1::respond::Answer;
use crate::message::{Body, Field};

/// One stream of a client's connection.
#[derive(Debug)]
pub(crate) struct Stream {
    connection: Rc<Connection>,
    respond: SendResponse<Part>,
    incoming: Incoming,
    /// What is to be sent first, with the body after it.
    head: Option<(Response<()>, Body)>,
    /// Bytes of heads that were sent.
    head_bytes: u64,
    outgoing: Option<Outgoing>,
    /// Whether it asks for another protocol in the stream (RFC 8441).
    connects: bool,
    /// Whether it is a call of gRPC.
    grpc: bool,
    /// The status that its client got.
    call_status: Option<CallStatus>,
    /// Whether what was sent of the response is not all of it.
    cut: Cell<bool>,
    /// Whether the client has ended it before there was an answer.
    cancelled: bool,
}

impl Stream {
    pub(super) fn new(
        connection: Rc<Connection>,
        respond: SendResponse<Part>,
        body: RecvStream,
        connects: bool,
    ) -> Self {
        Stream {
            connection,
            respond,
            incoming: Incoming::new(body, false),
            head: None,
            head_bytes: 0,
            outgoing: None,
            connects,
            grpc: false,
            call_status: None,
            cut: Cell::new(false),
            cancelled: false,
        }
    }

    /// What was agreed on with the client, if it speaks TLS.
    pub(crate) fn agreed(&self) -> Option<&Arc<Agreed>> {
        self.connection.agreed.as_ref()
    }

    pub(crate) fn scheme(&self) -> &'static str {
        self.connection.scheme
    }

    /// Whether the request has no body.
    pub(crate) fn has_ended(&self) -> bool {
        self.incoming.is_empty()
    }

    /// How the request's body is framed for whoever reads it.
    pub(crate) fn frame(&mut self, body: Body) {
        self.incoming.set_chunked(body == Body::Chunked);
    }

    /// The response has been cut, and is to look so.
    pub(crate) fn cut(&self) {
        self.cut.set(true);
    }

    /// Whether the client has given the stream up, or its connection.
    pub(crate) fn is_reset(&mut self, cx: &mut Context<'_>) -> bool {
        match &mut self.outgoing {
            Some(outgoing) => outgoing.is_reset(cx),
            None => {
                let reset = self.respond.poll_reset(cx).is_ready();
                self.cancelled |= reset;
                reset
            }
        }
    }

    /// Whether a response may be the answer to what the stream asked for: success means that
    /// the other protocol begins.
    pub(crate) fn may_get(&self, status: u16) -> bool {
        !self.connects || !(200..300).contains(&status)
    }

    /// Sends an interim response. Errors show with the final one.
    pub(crate) fn send_interim(&mut self, head: &ResponseHead<'_>) {
        if let Some(response) = response(head, head.status) {
            let _ = self.respond.send_informational(response);
        }
    }

    /// It is a call of gRPC.
    pub(crate) fn set_grpc(&mut self) {
        self.grpc = true;
    }

    /// Takes the status of a call of gRPC that trailers had.
    pub(crate) fn take_grpc_status(&mut self) -> Option<HeaderValue> {
        let status = self
            .outgoing
            .as_mut()
            .and_then(Outgoing::take_grpc_status)?;
        self.call_status = Some(CallStatus::parse(status.as_bytes()));
        Some(status)
    }

    /// Status of a call of gRPC, as far as its client was told; `None` if it is no call.
    pub(crate) fn call(&self) -> Option<Option<CallStatus>> {
        self.grpc.then_some(self.call_status)
    }

    /// Bytes of heads that were sent.
    pub(crate) fn head_bytes(&self) -> u64 {
        self.head_bytes
    }

    /// Keeps the head of the final response until it is certain that it is the one.
    pub(crate) fn set_head(&mut self, head: &ResponseHead<'_>, added: Added<'_>) {
        let (status, body) = match head.status {
            // The other protocol begins.
            101 => (200, Body::UntilClose),
            status => (status, head.body),
        };
        self.head = response(head, status).map(|mut response| {
            if let Some(changes) = added.changes {
                add_fields(response.headers_mut(), changes);
            }
            if let Some(Ok(cookie)) = added.cookie.map(HeaderValue::from_str) {
                response.headers_mut().append(SET_COOKIE, cookie);
            }
            add_id(response.headers_mut(), added.id);
            (response, body)
        });
    }

    /// Sends the head that was kept; the number of bytes that it would have in HTTP/1.
    pub(crate) fn begin(&mut self) -> io::Result<u64> {
        let Some((response, body)) = self.head.take() else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        self.send(response, body)?;
        Ok(self.head_bytes)
    }

    /// Sends a head; the body may follow.
    fn send(&mut self, response: Response<()>, body: Body) -> io::Result<()> {
        let fields = response.headers().iter();
        let size = fields.map(|(name, value)| name.as_str().len() + value.len() + 4);
        self.head_bytes = size.sum::<usize>() as u64;
        if self.grpc
            && let Some(status) = response.headers().get(grpc::STATUS)
        {
            self.call_status = Some(CallStatus::parse(status.as_bytes()));
        }
        let ends = matches!(body, Body::None | Body::Length(0));
        let sent = self.respond.send_response(response, ends);
        let outgoing = Outgoing::new(sent.map_err(broken)?, body, self.connection.held());
        self.outgoing = Some(outgoing);
        Ok(())
    }

    /// Sends an answer of the balancer's own: the number of bytes.
    pub(crate) fn answer(&mut self, answer: &Answer<'_>, to_head: bool) -> io::Result<u64> {
        let mut response = Response::new(());
        if self.grpc {
            // Its clients look at nothing else.
            let fields = response.headers_mut();
            let media_type = HeaderValue::from_static("application/grpc");
            fields.insert(CONTENT_TYPE, media_type);
            let status = grpc::status_of(answer.status);
            fields.insert(grpc::STATUS, HeaderValue::from(u16::from(status)));
            let text = answer.text.replace('%', "%25");
            if let Ok(text) = HeaderValue::from_str(&text) {
                fields.insert("grpc-message", text);
            }
            add_id(fields, answer.more.id);
            self.send(response, Body::None)?;
            return Ok(self.head_bytes);
        }
        *response.status_mut() = StatusCode::from_u16(answer.status).unwrap_or_default();
        let (media_type, content, end) = answer.content();
        let text = match answer.page {
            // The same bytes for all that wait for it.
            Some((_, page)) => page.clone(),
            None => Bytes::from([content, end].concat()),
        };
        let fields = response.headers_mut();
        if answer.has_content() {
            if let Ok(media_type) = HeaderValue::from_str(media_type) {
                fields.insert(CONTENT_TYPE, media_type);
            }
            fields.insert(CONTENT_LENGTH, HeaderValue::from(text.len()));
        }
        if let Some(location) = answer.more.location
            && let Ok(location) = HeaderValue::from_str(location)
        {
            fields.insert(LOCATION, location);
        }
        if let Some(Ok(challenge)) = answer.more.challenge.map(HeaderValue::from_str) {
            fields.insert(WWW_AUTHENTICATE, challenge);
        }
        if let Some(Ok(date)) = answer.date.map(HeaderValue::from_str) {
            fields.insert(DATE, date);
        }
        if let Some(seconds) = answer.retry_after {
            fields.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        if let Some(changes) = answer.more.fields {
            for name in changes.taken_out() {
                fields.remove(name);
            }
            add_fields(fields, changes);
        }
        add_id(fields, answer.more.id);
        let ends = to_head || text.is_empty() || !answer.has_content();
        let framing = if ends { Body::None } else { Body::UntilClose };
        self.send(response, framing)?;
        let sent = if ends { 0 } else { text.len() as u64 };
        if let (Some(outgoing), false) = (&mut self.outgoing, ends) {
            outgoing.end_with(text)?;
        }
        Ok(self.head_bytes + sent)
    }

    /// Ends a response whose end is that of the member's connection.
    pub(crate) fn end(&mut self) -> io::Result<()> {
        self.outgoing.as_mut().map_or(Ok(()), Outgoing::end)
    }
}

/// Adds the name of the request.
fn add_id(fields: &mut HeaderMap, id: Option<(&str, &str)>) {
    let Some((name, id)) = id else {
        return;
    };
    let name = HeaderName::from_bytes(name.as_bytes());
    if let (Ok(name), Ok(id)) = (name, HeaderValue::from_str(id)) {
        fields.insert(name, id);
    }
}

/// Adds what a route adds.
fn add_fields(fields: &mut HeaderMap, changes: &FieldChanges) {
    for (name, value) in changes.written() {
        let value: String = value.pieces().map(|(text, _)| text).collect();
        let name = HeaderName::from_bytes(name.as_bytes());
        if let (Ok(name), Ok(value)) = (name, HeaderValue::from_str(&value)) {
            fields.append(name, value);
        }
    }
}

/// The head of a member's response for HTTP/2; `None` if it has a field that there cannot be.
fn response(head: &ResponseHead<'_>, status: u16) -> Option<Response<()>> {
    let mut response = Response::new(());
    *response.status_mut() = StatusCode::from_u16(status).ok()?;
    let raw = Bytes::copy_from_slice(head.raw());
    let fields = response.headers_mut();
    for field in head.kept() {
        if is_of_handshake(head.status, field) {
            continue;
        }
        let name = HeaderName::from_bytes(field.name.as_bytes()).ok()?;
        fields.append(name, value_of(&raw, head.raw(), field.value)?);
    }
    if let Some(length) = head.content_length() {
        fields.insert(CONTENT_LENGTH, HeaderValue::from(length));
    }
    for (name, value) in head.added() {
        let name = HeaderName::from_bytes(name.as_bytes()).ok()?;
        fields.append(name, HeaderValue::from_bytes(&value.concat()).ok()?);
    }
    debug_assert!(is_of_http2(fields));
    Some(response)
}

/// A part of `raw`, of which `bytes` is a copy, without another.
pub(super) fn part_of(bytes: &Bytes, raw: &[u8], part: &[u8]) -> Option<Bytes> {
    let start = part.as_ptr().addr().checked_sub(raw.as_ptr().addr())?;
    let end = start.checked_add(part.len())?;
    (end <= bytes.len()).then(|| bytes.slice(start..end))
}

/// The same as a value.
pub(super) fn value_of(bytes: &Bytes, raw: &[u8], part: &[u8]) -> Option<HeaderValue> {
    HeaderValue::from_maybe_shared(part_of(bytes, raw, part)?).ok()
}

/// Whether a field is a part of the handshake of HTTP/1 for another protocol.
fn is_of_handshake(status: u16, field: &Field<'_>) -> bool {
    let is = |name: &str| field.name.eq_ignore_ascii_case(name);
    is("upgrade") || status == 101 && is("sec-websocket-accept")
}

fn is_of_http2(fields: &HeaderMap) -> bool {
    let forbidden = ["connection", "transfer-encoding", "upgrade", "keep-alive"];
    !forbidden.iter().any(|name| fields.contains_key(*name))
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        space: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let read = ready!(this.incoming.poll_read(cx, space));
        this.cancelled |= read.is_err() && this.outgoing.is_none();
        Poll::Ready(read)
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match &mut self.get_mut().outgoing {
            Some(outgoing) => outgoing.poll_write(cx, bytes),
            None => Poll::Ready(Err(io::ErrorKind::NotConnected.into())),
        }
    }

    /// What was written goes out when the connection's task has its turn.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.get_mut().end())
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.cut.get() {
            match &mut self.outgoing {
                Some(outgoing) => outgoing.reset(Reason::INTERNAL_ERROR),
                None => self.respond.send_reset(Reason::INTERNAL_ERROR),
            }
        }
        self.connection.stream_ended(self.cancelled);
    }
}
