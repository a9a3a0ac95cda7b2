//! Heads for the other side: the same message, with what belongs to this hop alone
//! taken out, and what the balancer has to say put in.
//!
//! Lines that stay are copied in runs, as they came, so most heads cost two or three
//! copies. Whatever the sender's version is, the message that leaves is HTTP/1.1.

#[cfg(test)]
mod tests;

use evenkeel_manager::config::FieldChanges;
use evenkeel_manager::config::fields::{DECIDING, NOT_ASKED, is_in_family, is_same_name};
use evenkeel_manager::config::routing::template::{Part, Template};
use evenkeel_manager::config::routing::{host_of, port_of};
use evenkeel_wire::orca;

use super::framing::{self, Kind, Version};
use super::hop::{Hop, put_line};
use super::response::ResponseHead;
use crate::cors::CorsFields;
use crate::message::{
    BalancerCookies, Body, Field, FieldPlace, FieldSet, Raw, Request, RequestPlaces,
    put_cookies_but,
};
use crate::trace;

/// Changes of a route in the head of a request.
#[derive(Clone, Copy, Debug, Default)]
pub struct Changes<'a> {
    /// The path, in two parts, and the query with its question mark.
    pub target: Option<(&'a str, &'a str, &'a str)>,
    /// Changes of fields.
    pub fields: Option<&'a FieldChanges>,
    /// User of the request, as the member is told.
    pub user: User<'a>,
    /// Cookies that are taken out.
    pub cookies: BalancerCookies<'a>,
    /// True if `X-Forwarded-For`, `-Proto` and `-Host` are said in any case.
    pub says_forwarded: bool,
    /// True if the client's `Accept-Encoding` is taken out, as the balancer reads the response.
    pub hides_codings: bool,
    /// Format in which the member is asked for a load report.
    pub report_format: Option<&'a str>,
    /// Marks of the request: its name for people, and its fields of traces.
    pub marks: Option<RequestMarks<'a>>,
}

impl Changes<'_> {
    /// True if any field may be taken out by its name.
    fn may_take_out(&self, hop: &Hop) -> bool {
        self.fields.is_some()
            || self.user.remove_authorization
            || self.report_format.is_some()
            || self.hides_codings
            || self.marks.is_some()
            || hop.has_reserved()
    }

    /// True if a client's field called `name` does not get to the receiver, since the balancer, or the route,
    /// says what is to stand there. Trailers have a list of names that pass instead.
    fn take_out(&self, hop: &Hop, name: &str) -> bool {
        self.fields.is_some_and(|fields| fields.takes_out(name))
            || self.user.remove_authorization && name.eq_ignore_ascii_case("authorization")
            || self.report_format.is_some() && is_same_name(orca::FORMAT_FIELD, name)
            || self.hides_codings && name.eq_ignore_ascii_case("accept-encoding")
            || hop.is_reserved(name)
            || self.marks.is_some_and(|marks| marks.takes_out(name))
    }
}

/// Marks by which a request is known.
#[derive(Clone, Copy, Debug, Default)]
pub struct RequestMarks<'a> {
    /// The name of a field, and the name of the request.
    pub id: Option<(&'a str, &'a str)>,
    /// Fields of traces.
    pub trace: trace::Fields,
}

impl RequestMarks<'_> {
    /// True if a field of the request is left out.
    fn takes_out(&self, name: &str) -> bool {
        let is = |own: &str| name.eq_ignore_ascii_case(own);
        self.id.is_some_and(|(field, _)| is_same_name(field, name))
            || self.trace.drops_parent && is(trace::PARENT)
            || self.trace.drops_state && is(trace::STATE)
    }
}

/// User who sends a request, as a member is told.
#[derive(Clone, Copy, Debug, Default)]
pub struct User<'a> {
    /// A field, and the user.
    pub field: Option<(&'a str, &'a str)>,
    /// True if the member does not get `Authorization`.
    pub remove_authorization: bool,
}

/// Appends the head that a member gets. The body follows as the client sends it.
pub fn write_request(request: &Request<'_>, hop: &Hop, out: &mut Vec<u8>) {
    write_changed(request, hop, Changes::default(), out);
}

/// Appends the head that a member gets, with the changes of a route.
pub fn write_changed(request: &Request<'_>, hop: &Hop, changes: Changes<'_>, out: &mut Vec<u8>) {
    write_with_places(request, hop, changes, None, out);
}

/// Appends the head that a member of HTTP/2 gets, with the changes of a route, to `out`, which is empty. Returns the places
/// of its parts; `None` if the request asks for another protocol, which HTTP/2 says in another way.
pub(crate) fn write_for_stream(
    request: &Request<'_>,
    hop: &Hop,
    changes: Changes<'_>,
    out: &mut Vec<u8>,
) -> Option<Box<RequestPlaces>> {
    let mut places = (!request.upgrade).then(Box::<RequestPlaces>::default);
    write_with_places(request, hop, changes, places.as_deref_mut(), out);
    places
}

fn write_with_places(
    request: &Request<'_>,
    hop: &Hop,
    changes: Changes<'_>,
    mut places: Option<&mut RequestPlaces>,
    out: &mut Vec<u8>,
) {
    let mut left_out = request.dropped;
    let sets = changes.fields;
    let has_host = request.has_host || sets.is_some_and(|fields| fields.takes_out("host"));
    if changes.may_take_out(hop) {
        let fields = request.fields.iter().enumerate();
        let taken = fields.filter(|(_, field)| changes.take_out(hop, field.name));
        taken.for_each(|(index, _)| left_out.insert(index));
    }
    let has_own_cookies = request.has_cookie_of(changes.cookies);
    if has_own_cookies {
        let fields = request.fields.iter().enumerate();
        let cookies = fields.filter(|(_, field)| field.name.eq_ignore_ascii_case("cookie"));
        cookies.for_each(|(index, _)| left_out.insert(index));
    }
    for index in request.forwarded.iter() {
        let field = request.fields.get(index);
        if field.is_some_and(|field| hop.takes_out(field.name, changes.says_forwarded)) {
            left_out.insert(index);
        }
    }
    match (request.raw, places.as_deref_mut()) {
        (Some(raw), None) => put_raw_request(request, raw, changes, left_out, out),
        (_, places) => {
            put_request_line(request, changes, out);
            let fields = request.fields.iter().enumerate();
            let fields = fields.filter(|(index, _)| !left_out.contains(*index));
            match places {
                None => fields.for_each(|(_, field)| {
                    put_line(&[field.name.as_bytes(), b": ", field.value], out);
                }),
                Some(places) => put_noted_fields(request, fields, places, out),
            }
        }
    }
    if !has_host {
        let host = request.authority.unwrap_or(&hop.default_host);
        out.extend_from_slice(b"Host: ");
        if let Some(places) = places.as_deref_mut() {
            places.authority = Some(RequestPlaces::next_span(out, host.len()));
        }
        put_line(&[host.as_bytes()], out);
    }
    if !request.has_framing {
        put_framing(request.body, out);
    }
    match (request.upgrade, request.takes_trailers) {
        (false, false) => {}
        (true, false) => put_line(&[b"Connection: upgrade"], out),
        (false, true) => put_line(&[b"TE: trailers\r\nConnection: TE"], out),
        (true, true) => put_line(&[b"TE: trailers\r\nConnection: upgrade, TE"], out),
    }
    if let Some(places) = places {
        places.added = out.len() as u32;
    }
    if has_own_cookies && sets.is_none_or(|fields| !fields.takes_out("cookie")) {
        for value in request.values("cookie") {
            let start = out.len();
            out.extend_from_slice(b"Cookie: ");
            match put_cookies_but(value, changes.cookies, out) {
                true => out.extend_from_slice(b"\r\n"),
                false => out.truncate(start),
            }
        }
    }
    hop.describe_client(request, changes.says_forwarded, out);
    if let Some((name, user)) = changes.user.field {
        put_line(&[name.as_bytes(), b": ", user.as_bytes()], out);
    }
    for (name, value) in changes
        .fields
        .into_iter()
        .flat_map(FieldChanges::written_fields)
    {
        out.extend_from_slice(name.as_bytes());
        out.extend_from_slice(b": ");
        put_template(value, request, request.path(), hop, out);
        out.extend_from_slice(b"\r\n");
    }
    if let Some(format) = changes.report_format {
        put_line(
            &[orca::FORMAT_FIELD.as_bytes(), b": ", format.as_bytes()],
            out,
        );
    }
    if let Some(marks) = &changes.marks {
        if let Some((name, id)) = marks.id {
            put_line(&[name.as_bytes(), b": ", id.as_bytes()], out);
        }
        // The last one: its place is known from the end.
        if let Some(parent) = &marks.trace.parent {
            put_line(&[trace::PARENT.as_bytes(), b": ", parent], out);
        }
    }
    out.extend_from_slice(b"\r\n");
}

/// Appends fields after the request line, and notes the places of all of it.
fn put_noted_fields<'a>(
    request: &Request<'_>,
    fields: impl Iterator<Item = (usize, &'a Field<'a>)>,
    places: &mut RequestPlaces,
    out: &mut Vec<u8>,
) {
    places.method = request.method.len() as u32;
    places.path_end = out.len().saturating_sub(" HTTP/1.1\r\n".len()) as u32;
    places.takes_trailers = request.takes_trailers;
    places.has_body = !matches!(request.body, Body::None | Body::Length(0));
    if let Body::Length(length) = request.body {
        places.length = Some(length);
    }
    places.fields.reserve(request.fields.len());
    places.sensitive.path = request.has_sensitive_path;
    for (index, field) in fields {
        let is_sensitive = request.sensitive.contains(index);
        let name = RequestPlaces::next_span(out, field.name.len());
        out.extend_from_slice(field.name.as_bytes());
        out.extend_from_slice(b": ");
        let value = RequestPlaces::next_span(out, field.value.len());
        put_line(&[field.value], out);
        match Kind::of_name(field.name.as_bytes()) {
            Kind::Host => {
                places.authority = Some(value);
                places.sensitive.authority = is_sensitive;
            }
            kind if kind.is_for_frames() => {}
            _ => places.fields.push(FieldPlace {
                name,
                value,
                is_sensitive,
            }),
        }
    }
}

/// Returns the place of the parent in a head that [`write_changed`] has written with a trace.
pub(crate) fn parent_place(head: &[u8]) -> usize {
    // Flags and a dash, and the ends of the line and of the head.
    head.len().saturating_sub(16 + 3 + 4)
}

/// Appends the head of the question whether `request` may pass: a GET of `path` without a body, with
/// the fields of the request, but for `cookies`.
pub fn write_question(
    request: &Request<'_>,
    hop: &Hop,
    path: &str,
    cookies: BalancerCookies<'_>,
    out: &mut Vec<u8>,
) {
    let mut dropped = request.dropped;
    for (index, field) in request.fields.iter().enumerate() {
        let is = |name: &&str| is_same_name(field.name, name);
        let decides = |family: &&str| is_in_family(field.name, family);
        if NOT_ASKED.iter().any(is) || DECIDING.iter().any(decides) {
            dropped.insert(index);
        }
    }
    let question = Request {
        method: "GET",
        authority: request.authority,
        path_and_query: path,
        body: Body::None,
        upgrade: false,
        takes_trailers: false,
        authenticates_connection: request.authenticates_connection,
        fields: request.fields,
        dropped,
        forwarded: request.forwarded,
        sensitive: request.sensitive,
        has_sensitive_path: request.has_sensitive_path,
        has_host: request.has_host,
        has_framing: true,
        raw: None,
    };
    let changes = Changes {
        cookies,
        says_forwarded: true,
        ..Changes::default()
    };
    write_changed(&question, hop, changes, out);
    out.truncate(out.len().saturating_sub(2));
    put_line(&[b"X-Forwarded-Method: ", request.method.as_bytes()], out);
    let uri = request.path_and_query;
    let slash: &[u8] = if uri.starts_with(['/', '*']) {
        b""
    } else {
        b"/"
    };
    put_line(&[b"X-Forwarded-Uri: ", slash, uri.as_bytes()], out);
    // A request for the whole server has no path.
    let uri = if uri == "*" { "/" } else { uri };
    hop.describe_original(request, &[slash, uri.as_bytes()], out);
    out.extend_from_slice(b"\r\n");
}

/// Appends a text as a value of a query: percent-encoded.
fn put_escaped(text: &str, out: &mut Vec<u8>) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(byte);
            continue;
        }
        let digits = [byte >> 4, byte & 15].map(|digit| DIGITS.get(usize::from(digit)));
        out.push(b'%');
        out.extend(digits.into_iter().flatten());
    }
}

/// Appends a text with parts of a request, whose path is `path`.
pub fn put_template(
    text: &Template,
    request: &Request<'_>,
    path: &str,
    hop: &Hop,
    out: &mut Vec<u8>,
) {
    for (literal, part) in text.pieces() {
        let part = match part {
            None => "",
            Some(Part::Scheme) => hop.proto,
            Some(Part::Host) => host_of(request.authority.unwrap_or(&hop.default_host)),
            Some(Part::Port) => port_of(request.authority.unwrap_or(&hop.default_host)),
            Some(Part::Path) => path,
            Some(Part::Query) => request.query_part(),
            Some(Part::Client) => &hop.client,
            Some(Part::EscapedUri) => {
                out.extend_from_slice(literal.as_bytes());
                put_escaped(request.path_and_query, out);
                continue;
            }
        };
        out.extend_from_slice(literal.as_bytes());
        out.extend_from_slice(part.as_bytes());
    }
}

/// Appends the fields that a route adds to a response.
pub(super) fn put_fields(changes: &FieldChanges, out: &mut Vec<u8>) {
    for (name, value) in changes.written_fields() {
        out.extend_from_slice(name.as_bytes());
        out.extend_from_slice(b": ");
        for (literal, _) in value.pieces() {
            out.extend_from_slice(literal.as_bytes());
        }
        out.extend_from_slice(b"\r\n");
    }
}

/// Appends the lines of a request that came as HTTP/1, but for some.
fn put_raw_request(
    request: &Request<'_>,
    raw: Raw<'_>,
    changes: Changes<'_>,
    left_out: FieldSet,
    out: &mut Vec<u8>,
) {
    out.reserve(raw.bytes.len() + 256);
    let end = raw.bytes.len().saturating_sub(2);
    let lines = raw.bytes.get(..end).unwrap_or_default();
    let lines_from = if raw.line_stays && changes.target.is_none() {
        0
    } else {
        put_request_line(request, changes, out);
        fields_start(lines, request.fields)
    };
    put_lines(lines, request.fields, lines_from, left_out, out);
}

/// The client that a response goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Client {
    /// Version of its request.
    pub version: Version,
    /// True if the client and the balancer want the client's connection to go on.
    pub keep_alive: bool,
}

/// Way in which the rest of a response is delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// The body comes chunked, which this client does not know: only its content is
    /// sent, and closing the connection ends it.
    pub strip_chunks: bool,
    /// True if the client's connection goes on after this response. An interim response says
    /// nothing of that: ignore the value after one.
    pub keep_alive: bool,
}

/// Appends the head that the client gets.
///
/// An HTTP/1.0 client does not know interim responses: do not write those to one.
pub fn write_response(head: &ResponseHead<'_>, client: Client, out: &mut Vec<u8>) -> Delivery {
    write_changed_response(head, client, ResponseAdditions::default(), out)
}

/// Appends the fields of `cors`, but for those that `changes` write or take out.
pub(super) fn put_cors(cors: CorsFields<'_>, changes: Option<&FieldChanges>, out: &mut Vec<u8>) {
    cors.for_each_field(changes, |name, value| {
        put_line(&[name.as_bytes(), b": ", value.as_bytes()], out);
    });
}

/// Additions to a response beside what the member says.
#[derive(Clone, Copy, Debug, Default)]
pub struct ResponseAdditions<'a> {
    /// Changes that a route makes.
    pub changes: Option<&'a FieldChanges>,
    /// Field that binds the client to a member: `Set-Cookie`, or the group's own, and its value.
    pub session: Option<(&'a str, &'a str)>,
    /// Permissions for pages of other origins.
    pub cors: Option<CorsFields<'a>>,
    /// The name of a field, and the name of the request.
    pub id: Option<(&'a str, &'a str)>,
}

/// Appends the head that the client gets, with fields that are added. The fields in whose place
/// they come were left out.
pub fn write_changed_response(
    head: &ResponseHead<'_>,
    client: Client,
    added: ResponseAdditions<'_>,
    out: &mut Vec<u8>,
) -> Delivery {
    out.reserve(head.raw.len() + 64);
    let old_client = client.version == Version::Http10;
    let strip_chunks = old_client && head.body == Body::Chunked;
    let keep_alive =
        client.keep_alive && !strip_chunks && head.body != Body::UntilClose && head.status != 101;
    let chunks_unknown = old_client && head.meaning.chunked;
    let mut left_out = head.meaning.dropped;
    if chunks_unknown {
        left_out.add_all(head.meaning.framing_fields);
    }

    let lines_from = put_status_line_start(head, out);
    put_lines(head.raw, head.fields, lines_from, left_out, out);
    if !chunks_unknown && head.meaning.respell_framing {
        put_framing(head.meaning.body_framing(), out);
    }
    if let Some(changes) = added.changes {
        put_fields(changes, out);
    }
    if let Some((name, value)) = added.session {
        put_line(&[name.as_bytes(), b": ", value.as_bytes()], out);
    }
    if let Some(cors) = added.cors {
        put_cors(cors, added.changes, out);
    }
    if let Some((name, id)) = added.id {
        put_line(&[name.as_bytes(), b": ", id.as_bytes()], out);
    }
    for (name, [first, second]) in head.added_fields() {
        put_line(&[name.as_bytes(), b": ", first, second], out);
    }
    match head.status {
        101 => put_line(&[b"Connection: upgrade"], out),
        100..=199 => {}
        _ if !keep_alive => put_line(&[b"Connection: close"], out),
        _ if old_client => put_line(&[b"Connection: keep-alive"], out),
        _ => {}
    }
    out.extend_from_slice(b"\r\n");
    Delivery {
        strip_chunks,
        keep_alive,
    }
}

fn put_request_line(request: &Request<'_>, changes: Changes<'_>, out: &mut Vec<u8>) {
    if let Some((prefix, rest, query)) = changes.target {
        for part in [request.method, " ", prefix, rest, query, " HTTP/1.1\r\n"] {
            out.extend_from_slice(part.as_bytes());
        }
        return;
    }
    let path_and_query = request.path_and_query;
    let slash = if path_and_query.starts_with(['/', '*']) {
        ""
    } else {
        "/"
    };
    for part in [request.method, " ", slash, path_and_query, " HTTP/1.1\r\n"] {
        out.extend_from_slice(part.as_bytes());
    }
}

/// Appends as much of the status line as cannot be copied with the lines after it. Returns the
/// offset in the head at which those lines begin.
fn put_status_line_start(head: &ResponseHead<'_>, out: &mut Vec<u8>) -> usize {
    /// Length of `HTTP/1.1 200`.
    const TO_REASON: usize = 12;
    if head.version == Version::Http2 {
        out.extend_from_slice(b"HTTP/1.1 ");
        put_number(head.status.into(), out);
        out.extend_from_slice(b" \r\n");
        return 0;
    }
    let has_space = head.raw.get(TO_REASON) == Some(&b' ');
    if has_space && head.version == Version::Http11 {
        return 0;
    }
    out.extend_from_slice(b"HTTP/1.1");
    out.extend_from_slice(head.raw.get(8..TO_REASON).unwrap_or_default());
    if !has_space {
        out.push(b' ');
    }
    TO_REASON
}

/// Appends the lines of a head from `from` on, but for some fields. `raw` ends with the line of the last field.
fn put_lines(
    raw: &[u8],
    fields: &[Field<'_>],
    mut from: usize,
    left_out: FieldSet,
    out: &mut Vec<u8>,
) {
    for index in left_out.iter() {
        let Some(field) = fields.get(index) else {
            break;
        };
        let start = framing::line_offset(raw, field);
        out.extend_from_slice(raw.get(from..start).unwrap_or_default());
        let next = fields.get(index + 1);
        from = next.map_or(raw.len(), |next| framing::line_offset(raw, next));
    }
    out.extend_from_slice(raw.get(from..).unwrap_or_default());
}

fn fields_start(raw: &[u8], fields: &[Field<'_>]) -> usize {
    match fields.first() {
        Some(first) => framing::line_offset(raw, first),
        None => raw.len(),
    }
}

/// Appends the field that frames a body.
fn put_framing(body: Body, out: &mut Vec<u8>) {
    match body {
        Body::Chunked => put_line(&[b"Transfer-Encoding: chunked"], out),
        Body::Length(length) => {
            out.extend_from_slice(b"Content-Length: ");
            put_number(length, out);
            out.extend_from_slice(b"\r\n");
        }
        Body::None | Body::UntilClose | Body::Stream => {}
    }
}

/// Appends a number in decimal.
pub(super) fn put_number(mut number: u64, out: &mut Vec<u8>) {
    let start = out.len();
    loop {
        // A remainder of ten is a digit.
        out.push(b'0' + (number % 10) as u8);
        number /= 10;
        if number == 0 {
            break;
        }
    }
    out[start..].reverse();
}
