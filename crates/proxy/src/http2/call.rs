//! A request to a member over HTTP/2, as the flows see it: a connection that takes one request and
//! gives the heads of its responses, and then a body that is framed as in HTTP/1.

use std::cell::Cell;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use evenkeel_http2::{
    Break, Cause, Fields, Head, Key, Next, NotOpened, Opening, Reason, SensitiveParts,
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::incoming::{Incoming, break_error};
use super::links::Link;
use super::outgoing::Outgoing;
use super::place::Place;
use super::websocket;
use crate::http1::framing::Kind;
use crate::http1::head::MAX_FIELDS;
use crate::http1::{FramingFacts, HeadError, Limits, ParseOutcome, RequestHead, ResponseHead};
use crate::message::{self, Body, RequestPlaces};
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
    /// Framing of the request's body, if it is not as the head says.
    body: Option<Body>,
    /// A head of the response, until it is passed on.
    response: Option<MemberResponse>,
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

/// Head of a member's response.
#[derive(Debug)]
enum MemberResponse {
    /// The head as it came.
    Head(Head),
    /// Head of HTTP/1.1 that switches to WebSocket, which HTTP/2 has not.
    Switch(Vec<u8>),
}

impl Call {
    pub(crate) fn new(link: Rc<Link>, worker: Rc<Worker>) -> Self {
        Call {
            key: None,
            outgoing: None,
            body: None,
            response: None,
            place: Place::take(link, worker),
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

    /// Sends a head whose parts are known. An error means that the request never began.
    pub(crate) fn poll_begin(
        &mut self,
        cx: &mut Context<'_>,
        head: &[u8],
        places: &RequestPlaces,
    ) -> Poll<io::Result<()>> {
        let body = match (places.has_body, places.length) {
            (false, _) => Body::None,
            (true, Some(length)) => Body::Length(length),
            (true, None) => Body::Chunked,
        };
        let body = self.body.unwrap_or(body);
        let link = Rc::clone(&self.place.link);
        let mut fields = link.engine.take_fields();
        let outline = collect_fields(head, places, &mut fields);
        let opened = outline.and_then(|outline| self.open_stream(&outline, body, &fields));
        link.engine.give_fields(fields);
        let begun = ready!(self.note_opened(cx, opened, body, None));
        self.failed = begun.is_err();
        Poll::Ready(begun)
    }

    /// Sends a head of HTTP/1.1, which is read. A head that asks for WebSocket waits for the member's settings.
    fn poll_begin_text(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<()>> {
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
            None => self.body.unwrap_or(head.request.body),
        };
        let link = Rc::clone(&self.place.link);
        let mut fields = link.engine.take_fields();
        let outline = outline_of_text(&head.request, accept.is_some(), &mut fields);
        let opened = outline.and_then(|outline| self.open_stream(&outline, body, &fields));
        link.engine.give_fields(fields);
        self.note_opened(cx, opened, body, accept)
    }

    /// Takes note of a stream that was opened, or why it was not; `None` if HTTP/2 cannot say its head.
    fn note_opened(
        &mut self,
        cx: &Context<'_>,
        opened: Option<Result<Key, NotOpened>>,
        body: Body,
        accept: Option<String>,
    ) -> Poll<io::Result<()>> {
        let link = &self.place.link;
        match opened {
            None => {
                self.unfit = true;
                Poll::Ready(Err(io::ErrorKind::InvalidData.into()))
            }
            Some(Ok(key)) => {
                self.outgoing = Some(Outgoing::new(Rc::clone(&link.engine), key, body));
                self.accept = accept;
                self.key = Some(key);
                Poll::Ready(Ok(()))
            }
            Some(Err(NotOpened::Full)) => {
                link.register_waker(cx);
                Poll::Pending
            }
            Some(Err(NotOpened::Closing)) => {
                // A connection that takes no more streams has seen nothing of this one.
                self.refused = true;
                link.close();
                Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()))
            }
        }
    }

    /// Opens a stream with a request; `None` if HTTP/2 cannot say its path or authority.
    fn open_stream(
        &self,
        outline: &Outline<'_>,
        body: Body,
        fields: &Fields,
    ) -> Option<Result<Key, NotOpened>> {
        let encoded = encode_path(outline.path);
        let path = encoded.as_deref().unwrap_or(outline.path);
        let is_sayable = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic());
        if outline.authority.is_empty() || !is_sayable(path) || !is_authority(outline.authority) {
            return None;
        }
        let ends = matches!(body, Body::None | Body::Length(0));
        let link = &self.place.link;
        let opening = Opening {
            method: match outline.connects {
                true => b"CONNECT",
                false => outline.method.as_bytes(),
            },
            scheme: link.uri_scheme().as_bytes(),
            authority: Some(outline.authority.as_bytes()),
            path: path.as_bytes(),
            protocol: outline.connects.then_some(b"websocket"),
            sensitive: outline.sensitive,
        };
        let opened = link
            .engine
            .with_connection(|connection| connection.open_request(opening, fields, ends));
        Some(opened)
    }

    /// Waits for a head of the response.
    pub(crate) fn poll_response(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.response.is_some() {
            return Poll::Ready(Ok(()));
        }
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
        let is_success = (200..300).contains(&head.status());
        let accept = self.accept.take_if(|_| head.status() >= 200);
        self.response = Some(match accept.filter(|_| is_success) {
            Some(accept) => {
                let switch = write_switch(&head.fields, &accept);
                engine.with_connection(|connection| connection.give_head(head));
                MemberResponse::Switch(switch)
            }
            None => MemberResponse::Head(head),
        });
        Poll::Ready(Ok(()))
    }

    /// Reads the head of the response that has come.
    pub(crate) fn read_response<'a>(
        &'a self,
        limits: Limits,
        asked: FramingFacts,
        fields: &'a mut crate::http1::Fields<'a>,
    ) -> Result<ParseOutcome<ResponseHead<'a>>, HeadError> {
        match &self.response {
            None => Ok(ParseOutcome::Partial),
            Some(MemberResponse::Head(head)) => {
                ResponseHead::of_stream(head, limits, asked, fields).map(ParseOutcome::Head)
            }
            Some(MemberResponse::Switch(text)) => {
                let mut parsed = ResponseHead::parse(text, LIMITS, asked, fields)?;
                if let ParseOutcome::Head(head) = &mut parsed {
                    // None of it is in front of the body.
                    head.len = 0;
                }
                Ok(parsed)
            }
        }
    }

    /// Goes on behind an interim response.
    pub(crate) fn pass_interim(&mut self) {
        self.give_head();
    }

    /// Goes on with the body of the final response, which is framed as `body` says.
    pub(crate) fn pass_head(&mut self, body: Body) {
        self.give_head();
        let engine = Rc::clone(&self.place.link.engine);
        self.incoming = self
            .key
            .map(|key| Incoming::new(engine, key, body == Body::Chunked));
    }

    /// Gives the memory of a head back, to be filled again.
    fn give_head(&mut self) {
        if let Some(MemberResponse::Head(head)) = self.response.take() {
            let engine = &self.place.link.engine;
            engine.with_connection(|connection| connection.give_head(head));
        }
    }

    /// Takes the trailers of a response's body of [`Body::Stream`] that has ended.
    pub(crate) fn take_trailers(&self) -> Option<Head> {
        self.incoming.as_ref().and_then(Incoming::take_trailers)
    }

    /// Gives trailers back, to be filled again.
    pub(crate) fn give_trailers(&self, trailers: Head) {
        if let Some(incoming) = &self.incoming {
            incoming.give_trailers(trailers);
        }
    }

    /// Says how the body of the request that is sent next is framed, whatever its head says.
    pub(crate) fn set_body(&mut self, body: Body) {
        self.body = Some(body);
    }

    /// Ends a request with a body of [`Body::Stream`].
    pub(crate) fn finish_body(&mut self, trailers: &Fields) -> io::Result<()> {
        self.outgoing
            .as_mut()
            .map_or(Ok(()), |outgoing| outgoing.finish(trailers))
    }

    /// True if a part of the body, or its end, has come.
    pub(crate) fn has_more(&self) -> bool {
        let engine = &self.place.link.engine;
        self.key.is_some_and(|key| {
            engine.read_connection(|connection| {
                matches!(connection.read(key), Next::Data(_) | Next::End)
            })
        })
    }
}

/// Writes the head of HTTP/1.1 that switches to WebSocket, with the answer `accept` to the client's key.
fn write_switch(fields: &Fields, accept: &str) -> Vec<u8> {
    let mut out = b"HTTP/1.1 101 \r\n".to_vec();
    let stays = |name: &str| !matches!(name, "content-length" | "sec-websocket-accept");
    for (name, value) in fields.iter().filter(|(name, _)| stays(name)) {
        for part in [name.as_bytes(), b": ", value, b"\r\n"] {
            out.extend_from_slice(part);
        }
    }
    let switch = format!(
        "Connection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: {accept}\r\n\r\n"
    );
    out.extend_from_slice(switch.as_bytes());
    out
}

/// Parts of a request that HTTP/2 says in pseudo-fields.
struct Outline<'a> {
    method: &'a str,
    path: &'a str,
    authority: &'a str,
    /// True if the request asks for WebSocket.
    connects: bool,
    sensitive: SensitiveParts,
}

/// Puts the fields of a head whose parts are known into `fields`; `None` if there is one that HTTP/2 cannot say.
fn collect_fields<'a>(
    head: &'a [u8],
    places: &RequestPlaces,
    fields: &mut Fields,
) -> Option<Outline<'a>> {
    for place in &places.fields {
        if !fields.push(place.name.bytes(head), place.value.bytes(head)) {
            return None;
        }
        if place.is_sensitive {
            fields.mark_last_sensitive();
        }
    }
    put_framing(places.takes_trailers, places.length, fields)?;
    let mut authority = places
        .authority
        .map_or(&b""[..], |authority| authority.bytes(head));
    let added = head.get(places.added as usize..).unwrap_or_default();
    for line in added.split(|&byte| byte == b'\n') {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let Some(colon) = line.iter().position(|&byte| byte == b':') else {
            // The empty line at the end.
            continue;
        };
        let (name, value) = line.split_at_checked(colon)?;
        let value = value.get(1..).unwrap_or_default().trim_ascii();
        match Kind::of_name(name) {
            Kind::Host => authority = value,
            kind if kind.is_for_frames() => {}
            _ if !fields.push(name, value) => return None,
            _ => {}
        }
    }
    let method = places.method as usize;
    Some(Outline {
        method: std::str::from_utf8(head.get(..method)?).ok()?,
        path: std::str::from_utf8(head.get(method + 1..places.path_end as usize)?).ok()?,
        authority: std::str::from_utf8(authority).ok()?,
        connects: false,
        sensitive: places.sensitive,
    })
}

/// Puts the fields of a request that was read into `fields`; `None` if there is one that HTTP/2 cannot say.
fn outline_of_text<'a>(
    head: &message::Request<'a>,
    connects: bool,
    fields: &mut Fields,
) -> Option<Outline<'a>> {
    for field in head.kept_fields() {
        if connects && field.name.eq_ignore_ascii_case("sec-websocket-key") {
            continue;
        }
        if !fields.push(field.name.as_bytes(), field.value.trim_ascii()) {
            return None;
        }
    }
    let length = match head.body {
        Body::Length(length) => Some(length),
        _ => None,
    };
    put_framing(head.takes_trailers, length, fields)?;
    Some(Outline {
        method: head.method,
        path: head.path_and_query,
        authority: head.authority?,
        connects,
        sensitive: SensitiveParts::default(),
    })
}

/// Puts the fields about body and trailers into `fields`.
fn put_framing(takes_trailers: bool, length: Option<u64>, fields: &mut Fields) -> Option<()> {
    let is_said = !takes_trailers || fields.push(b"te", b"trailers");
    let length = length.map(|length| length.to_string());
    let is_said =
        is_said && length.is_none_or(|length| fields.push(b"content-length", length.as_bytes()));
    is_said.then_some(())
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
    /// Reads the body, once the head was passed on.
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        space: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match &mut self.get_mut().incoming {
            Some(incoming) => incoming.poll_read(cx, space),
            None => Poll::Ready(Err(io::ErrorKind::NotConnected.into())),
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
        let begun = ready!(this.poll_begin_text(cx, head));
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
        self.give_head();
        if let Some(key) = self.key {
            let reason = self.cut.get().then_some(Reason::CANCEL);
            self.place.link.engine.release_stream(key, reason);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use evenkeel_manager::config::HttpOptions;

    use super::*;
    use crate::http1::Hop;
    use crate::http1::forward::{Changes, RequestMarks, write_changed, write_for_stream};
    use crate::message::tests::with_request;

    /// First line, authority and fields as HTTP/2 says them, in the order of their names.
    fn describe(outline: Option<Outline<'_>>, fields: &Fields) -> Option<String> {
        let outline = outline?;
        let mut lines: Vec<_> = fields.iter().collect();
        lines.sort_unstable();
        Some(format!(
            "{} {} {} {lines:?}",
            outline.method, outline.path, outline.authority
        ))
    }

    #[test]
    fn fields_from_places_are_those_of_the_head_when_it_is_read() {
        let hop = Hop::new(
            &HttpOptions::default(),
            IpAddr::from([127, 0, 0, 1]),
            "http",
            "own:80",
        );
        let changed = Changes {
            target: Some(("/new", "/rest", "?q")),
            report_format: Some("TEXT"),
            marks: Some(RequestMarks {
                id: Some(("X-Request-Id", "id")),
                ..RequestMarks::default()
            }),
            ..Changes::default()
        };
        for head in [
            "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
            "GET /a?b HTTP/1.0\r\nConnection: close\r\n\r\n",
            "GET http://b:81?q HTTP/1.1\r\nHost: a\r\nX: y\r\n\r\n",
            "OPTIONS * HTTP/1.1\r\nX-Empty:\r\nHOST:a\r\n\r\n",
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n",
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\nx-forwarded-for: 1.2.3.4\r\n\r\n",
            "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nCookie: a=b\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\r\nTE: trailers\r\nConnection: TE, x\r\nX: y\r\nZ: \u{e9} \r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\r\nX-Request-Id: other\r\nKeep-Alive: 5\r\nProxy-Connection: x\r\n\r\n",
        ] {
            for changes in [Changes::default(), changed] {
                with_request(head, |request| {
                    let (mut out, mut text) = (Vec::new(), Vec::new());
                    let places = write_for_stream(request, &hop, changes, &mut out).unwrap();
                    let mut fields = Fields::new();
                    let outline = collect_fields(&out, &places, &mut fields);
                    let from_places = describe(outline, &fields);
                    write_changed(request, &hop, changes, &mut text);
                    let mut room = crate::http1::Fields::new();
                    let Ok(ParseOutcome::Head(read)) = RequestHead::parse(&text, LIMITS, &mut room)
                    else {
                        panic!("{head}");
                    };
                    let mut fields = Fields::new();
                    let outline = outline_of_text(&read.request, false, &mut fields);
                    assert_eq!(from_places, describe(outline, &fields), "{head}");
                    assert!(from_places.is_some(), "{head}");
                    let has_body = !matches!(read.request.body, Body::None | Body::Length(0));
                    assert_eq!(places.has_body, has_body, "{head}");
                });
            }
        }
    }

    #[test]
    fn sensitive_parts_of_a_request_are_said_to_the_member() {
        let hop = Hop::new(&HttpOptions::default(), None, "http", "");
        let head = "GET /a HTTP/1.1\r\nHost: a\r\nX: y\r\nZ: w\r\n\r\n";
        with_request(head, |request| {
            let mut request = request.clone();
            request.has_sensitive_path = true;
            request.sensitive.insert(0);
            request.sensitive.insert(2);
            let mut out = Vec::new();
            let places = write_for_stream(&request, &hop, Changes::default(), &mut out).unwrap();
            let mut fields = Fields::new();
            let outline = collect_fields(&out, &places, &mut fields).unwrap();
            let (path, authority) = (true, true);
            assert_eq!(outline.sensitive, SensitiveParts { path, authority });
            let marks: Vec<_> = fields.marked().map(|(_, _, mark)| mark).collect();
            assert_eq!(marks[..2], [false, true]);
            assert!(!marks[2..].contains(&true));
            assert!(fields.text().starts_with(b"x: y\r\nz: w\r\n"));
        });
    }

    #[test]
    fn an_offer_of_another_protocol_has_no_places() {
        let head = "GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n";
        let hop = Hop::new(&HttpOptions::default(), None, "http", "");
        with_request(head, |request| {
            let mut out = Vec::new();
            let places = write_for_stream(request, &hop, Changes::default(), &mut out);
            assert!(places.is_none() && out.starts_with(b"GET / HTTP/1.1\r\n"));
        });
    }
}
