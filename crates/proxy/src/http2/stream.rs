//! A request of a client over HTTP/2, as the flows see it: a connection with one request and one
//! response, whose bodies are framed as in HTTP/1 and whose heads are not in its bytes.

use std::cell::Cell;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use evenkeel_http2::{Fields, Head, Key, Reason};
use evenkeel_manager::config::FieldChanges;
use evenkeel_tls::handshake::HandshakeParameters;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::connection::Connection;
use super::grpc::{self, CallStatus};
use super::incoming::{Incoming, break_error};
use super::outgoing::Outgoing;
use crate::cors::CorsFields;
use crate::http1::ResponseHead;
use crate::http1::forward::ResponseAdditions;
use crate::http1::respond::Answer;
use crate::message::{Body, Field};

/// Stream of a client's connection.
#[derive(Debug)]
pub(crate) struct Stream {
    connection: Rc<Connection>,
    key: Key,
    incoming: Incoming,
    /// Head that is to be sent first: its status, its fields, and the framing of the body after it.
    head: Option<(u16, Fields, Body)>,
    /// Bytes of heads that were sent.
    head_bytes: u64,
    outgoing: Option<Outgoing>,
    /// True if the request asks for another protocol in the stream (RFC 8441).
    connects: bool,
    /// True if the request is a call of gRPC.
    grpc: bool,
    /// The status that its client got.
    call_status: Option<CallStatus>,
    /// True if only a part of the response was sent.
    cut: Cell<bool>,
}

impl Stream {
    pub(super) fn new(connection: Rc<Connection>, key: Key, connects: bool) -> Self {
        Stream {
            incoming: Incoming::new(Rc::clone(&connection.engine), key, false),
            connection,
            key,
            head: None,
            head_bytes: 0,
            outgoing: None,
            connects,
            grpc: false,
            call_status: None,
            cut: Cell::new(false),
        }
    }

    /// Takes the head of the request back, to be filled again.
    pub(crate) fn give_head(&self, head: Head) {
        let engine = &self.connection.engine;
        engine.with_connection(|connection| connection.give_head(head));
    }

    /// Returns the parameters agreed on with the client, if it speaks TLS.
    pub(crate) fn agreed_parameters(&self) -> Option<&Arc<HandshakeParameters>> {
        self.connection.agreed.as_ref()
    }

    pub(crate) fn uri_scheme(&self) -> &'static str {
        self.connection.scheme
    }

    /// True if the request has no body.
    pub(crate) fn has_ended(&self) -> bool {
        self.incoming.is_empty()
    }

    /// Sets how the request's body is framed for its reader.
    pub(crate) fn set_framing(&mut self, body: Body) {
        self.incoming.set_chunked(body == Body::Chunked);
    }

    /// The response has been cut, and is to look so.
    pub(crate) fn mark_cut(&self) {
        self.cut.set(true);
    }

    /// True if the client has given up the stream, or its connection.
    pub(crate) fn is_reset(&mut self, cx: &mut Context<'_>) -> bool {
        self.connection.engine.is_broken(self.key, cx)
    }

    /// True if a response may be the answer to what the stream asked for: success means that the
    /// other protocol begins.
    pub(crate) fn may_get(&self, status: u16) -> bool {
        !self.connects || !(200..300).contains(&status)
    }

    /// Sends an interim response. Errors show with the final one.
    pub(crate) fn send_interim(&mut self, head: &ResponseHead<'_>) {
        let engine = &self.connection.engine;
        let mut fields = engine.take_fields();
        if put_response(head, &mut fields) {
            let _ = engine.with_connection(|connection| {
                connection.send_head(self.key, head.status, &fields, false)
            });
        }
        engine.give_fields(fields);
    }

    /// Marks the request as a call of gRPC.
    pub(crate) fn set_grpc(&mut self) {
        self.grpc = true;
    }

    /// Takes the status of a call of gRPC that trailers had.
    pub(crate) fn take_grpc_status(&mut self) -> Option<Vec<u8>> {
        let status = self
            .outgoing
            .as_mut()
            .and_then(Outgoing::take_grpc_status)?;
        self.call_status = Some(CallStatus::parse(&status));
        Some(status)
    }

    /// Status of a call of gRPC, as far as its client was told; `None` if it is no call.
    pub(crate) fn call_status(&self) -> Option<Option<CallStatus>> {
        self.grpc.then_some(self.call_status)
    }

    /// Bytes of heads that were sent.
    pub(crate) fn head_bytes(&self) -> u64 {
        self.head_bytes
    }

    /// Keeps the head of the final response until it is certain that it is the one.
    pub(crate) fn set_head(&mut self, head: &ResponseHead<'_>, added: ResponseAdditions<'_>) {
        let (status, body) = match head.status {
            // The other protocol begins.
            101 => (200, Body::UntilClose),
            status => (status, head.body),
        };
        let mut fields = self.connection.engine.take_fields();
        self.head = put_response(head, &mut fields).then(|| {
            if let Some(changes) = added.changes {
                add_fields(&mut fields, changes);
            }
            if let Some((name, value)) = added.session {
                add_field(&mut fields, name, value);
            }
            add_cors(&mut fields, added.cors, added.changes);
            add_id(&mut fields, added.id);
            (status, fields, body)
        });
    }

    /// Sends the head that was kept; the number of bytes that it would have in HTTP/1.
    pub(crate) fn send_kept_head(&mut self) -> io::Result<u64> {
        let Some((status, fields, body)) = self.head.take() else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        self.send_head(status, fields, body)?;
        Ok(self.head_bytes)
    }

    /// Sends a head; the body may follow.
    fn send_head(&mut self, status: u16, fields: Fields, body: Body) -> io::Result<()> {
        self.head_bytes = fields.text().len() as u64;
        if self.grpc
            && let Some(status) = fields.get(grpc::STATUS)
        {
            self.call_status = Some(CallStatus::parse(status));
        }
        let ends = matches!(body, Body::None | Body::Length(0));
        let engine = &self.connection.engine;
        let sent = engine
            .with_connection(|connection| connection.send_head(self.key, status, &fields, ends));
        engine.give_fields(fields);
        sent.map_err(|end| break_error(end, io::ErrorKind::BrokenPipe))?;
        self.outgoing = Some(Outgoing::new(Rc::clone(engine), self.key, body));
        Ok(())
    }

    /// Sends an answer of the balancer's own, and returns the number of bytes.
    ///
    /// gRPC calls get status and message, without page, `Location` and `Retry-After`.
    pub(crate) fn send_answer(&mut self, answer: &Answer<'_>, to_head: bool) -> io::Result<u64> {
        let mut fields = self.connection.engine.take_fields();
        if self.grpc {
            // gRPC clients look at no other fields.
            add_field(&mut fields, "content-type", "application/grpc");
            let status = grpc::status_of(answer.status);
            add_field(&mut fields, grpc::STATUS, &status.to_string());
            let text = answer.text.replace('%', "%25");
            if text.is_ascii() {
                add_field(&mut fields, "grpc-message", &text);
            }
            add_cors(&mut fields, answer.more.cors, answer.more.fields);
            add_id(&mut fields, answer.more.id);
            self.send_head(200, fields, Body::None)?;
            return Ok(self.head_bytes);
        }
        let (media_type, content, end) = answer.content_parts();
        let text = match answer.page {
            // The same bytes for all that wait for it.
            Some((_, page)) => page.clone(),
            None => Bytes::from([content, end].concat()),
        };
        if answer.has_content() {
            add_field(&mut fields, "content-type", media_type);
            add_field(&mut fields, "content-length", &text.len().to_string());
        }
        for (name, value) in [
            ("location", answer.more.location),
            ("www-authenticate", answer.more.challenge),
            ("date", answer.date),
        ] {
            if let Some(value) = value {
                add_field(&mut fields, name, value);
            }
        }
        if let Some(seconds) = answer.retry_after {
            add_field(&mut fields, "retry-after", &seconds.to_string());
        }
        if let Some(changes) = answer.more.fields {
            for name in changes.taken_out() {
                fields.remove(name);
            }
            add_fields(&mut fields, changes);
        }
        add_cors(&mut fields, answer.more.cors, answer.more.fields);
        add_id(&mut fields, answer.more.id);
        let ends = to_head || text.is_empty() || !answer.has_content();
        let framing = if ends { Body::None } else { Body::UntilClose };
        self.send_head(answer.status, fields, framing)?;
        let sent = if ends { 0 } else { text.len() as u64 };
        if let (Some(outgoing), false) = (&mut self.outgoing, ends) {
            outgoing.end_with(text)?;
        }
        Ok(self.head_bytes + sent)
    }

    /// Takes the trailers of a request's body of [`Body::Stream`] that has ended.
    pub(crate) fn take_trailers(&self) -> Option<Head> {
        self.incoming.take_trailers()
    }

    /// Gives trailers back, to be filled again.
    pub(crate) fn give_trailers(&self, trailers: Head) {
        self.incoming.give_trailers(trailers);
    }

    /// Ends a response with a body of [`Body::Stream`].
    pub(crate) fn finish_body(&mut self, trailers: &Fields) -> io::Result<()> {
        self.outgoing
            .as_mut()
            .map_or(Ok(()), |outgoing| outgoing.finish(trailers))
    }

    /// Ends a response whose end is that of the member's connection.
    pub(crate) fn end_response(&mut self) -> io::Result<()> {
        self.outgoing
            .as_mut()
            .map_or(Ok(()), Outgoing::end_until_close)
    }
}

/// Adds permissions for pages of other origins, if there are any.
fn add_cors(fields: &mut Fields, cors: Option<CorsFields<'_>>, changes: Option<&FieldChanges>) {
    if let Some(cors) = cors {
        cors.for_each_field(changes, |name, value| add_field(fields, name, value));
    }
}

/// Adds a field, if HTTP/2 can say it.
fn add_field(fields: &mut Fields, name: &str, value: &str) {
    let _ = fields.push(name.as_bytes(), value.as_bytes());
}

/// Adds the name of the request.
fn add_id(fields: &mut Fields, id: Option<(&str, &str)>) {
    if let Some((name, id)) = id {
        fields.remove(name);
        add_field(fields, name, id);
    }
}

/// Adds what a route adds.
fn add_fields(fields: &mut Fields, changes: &FieldChanges) {
    for (name, value) in changes.written_fields() {
        let value: String = value.pieces().map(|(text, _)| text).collect();
        add_field(fields, name, &value);
    }
}

/// Puts the fields of a member's response into `fields`; false if it has a field that there cannot be in HTTP/2.
fn put_response(head: &ResponseHead<'_>, fields: &mut Fields) -> bool {
    for (field, is_sensitive) in head.marked_fields() {
        if is_of_handshake(head.status, field) {
            continue;
        }
        if !fields.push(field.name.as_bytes(), field.value.trim_ascii()) {
            return false;
        }
        if is_sensitive {
            fields.mark_last_sensitive();
        }
    }
    if let Some(length) = head.content_length() {
        add_field(fields, "content-length", &length.to_string());
    }
    head.added_fields()
        .all(|(name, value)| fields.push(name.as_bytes(), &value.concat()))
        && {
            debug_assert!(is_of_http2(fields));
            true
        }
}

/// True if a field is a part of the handshake of HTTP/1 for another protocol.
fn is_of_handshake(status: u16, field: &Field<'_>) -> bool {
    let is = |name: &str| field.name.eq_ignore_ascii_case(name);
    is("upgrade") || status == 101 && is("sec-websocket-accept")
}

fn is_of_http2(fields: &Fields) -> bool {
    let forbidden = ["connection", "transfer-encoding", "upgrade", "keep-alive"];
    !forbidden.iter().any(|name| fields.get(name).is_some())
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        space: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.get_mut().incoming.poll_read(cx, space)
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

    /// Does nothing: the bytes that were written go out when the connection's task has its turn.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.get_mut().end_response())
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let reason = self.cut.get().then_some(Reason::INTERNAL_ERROR);
        let engine = &self.connection.engine;
        if let Some((_, fields, _)) = self.head.take() {
            engine.give_fields(fields);
        }
        engine.release_stream(self.key, reason);
        self.connection.stream_ended();
    }
}
