//! Message heads: from bytes to a checked request or response.
//!
//! `httparse` finds the parts quickly, but is lenient: it takes a bare LF as the end of
//! a line, skips any number of empty lines before a head, and knows nothing about the
//! meaning of a field. All of that is checked here.

use std::mem::MaybeUninit;

use httparse::{Header, Status};

use super::framing::{self, Body, FieldSet, Meaning, Version};

/// Most fields that a head may have, whatever the configuration allows.
pub const MAX_FIELDS: usize = FieldSet::CAPACITY;

/// Room for the fields of one head. It lives on the stack, is not initialised, and is
/// too large (8 KiB) to be held across an `await`.
pub struct Fields<'a>([MaybeUninit<Header<'a>>; MAX_FIELDS]);

impl Fields<'_> {
    /// Empty room.
    #[inline]
    pub fn new() -> Self {
        Self([const { MaybeUninit::uninit() }; MAX_FIELDS])
    }
}

impl Default for Fields<'_> {
    fn default() -> Self {
        Self::new()
    }
}

/// How large a head may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most bytes, from the start line to the empty line after the last field.
    pub max_bytes: usize,
    /// Most fields; at most [`MAX_FIELDS`] count.
    pub max_fields: usize,
}

/// Outcome of parsing what has been read so far.
#[derive(Debug)]
pub enum Parsed<T> {
    /// A whole head.
    Head(T),
    /// Valid so far: read more, then parse all of it again.
    Partial,
}

/// Why a head is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeadError {
    /// The start line is not one.
    #[error("malformed start line: expected one line with single spaces, ended by CR LF")]
    StartLine,
    /// More than one empty line, or anything but CR LF, before the start line.
    #[error("unexpected empty line before the start line")]
    LeadingLine,
    /// A line that does not end in CR LF, or a CR or LF elsewhere.
    #[error("bare CR or LF in the head: each line must end in CR LF")]
    LineEnd,
    /// A field name that is empty, has invalid bytes or whitespace before the colon; or a
    /// line that begins with whitespace (obsolete folding).
    #[error("malformed field name, whitespace before the colon, or a folded line")]
    FieldName,
    /// A control byte in a field value.
    #[error("control byte in a field value")]
    FieldValue,
    /// Neither HTTP/1.0 nor HTTP/1.1.
    #[error("HTTP version not supported: use HTTP/1.1")]
    Version,
    /// The request target is not in a form that its method allows, or has invalid bytes.
    #[error("invalid request target")]
    Target,
    /// The request line alone exceeds the limit on heads.
    #[error("request target too long")]
    TargetTooLong,
    /// The head exceeds the limit in bytes.
    #[error("head too large")]
    TooLarge,
    /// The head exceeds the limit in fields.
    #[error("too many fields in the head")]
    TooManyFields,
    /// No `Host` in an HTTP/1.1 request.
    #[error("missing Host field")]
    MissingHost,
    /// More than one `Host`.
    #[error("more than one Host field")]
    RepeatedHost,
    /// `Host` is not `host[:port]`.
    #[error("invalid Host field: expected host or host:port")]
    InvalidHost,
    /// `Content-Length` is not a number of at most 63 bits.
    #[error("invalid Content-Length: expected decimal digits")]
    InvalidContentLength,
    /// More than one `Content-Length`, equal or not.
    #[error("more than one Content-Length")]
    RepeatedContentLength,
    /// Both framings at once.
    #[error("both Content-Length and Transfer-Encoding: send only one")]
    LengthAndTransferEncoding,
    /// `Transfer-Encoding` is malformed, repeated, or does not end in `chunked`.
    #[error("invalid Transfer-Encoding: expected chunked, once")]
    InvalidTransferEncoding,
    /// A transfer coding other than `chunked`.
    #[error("transfer coding not supported: use chunked alone")]
    UnknownTransferCoding,
    /// `Transfer-Encoding` in HTTP/1.0, which does not know it.
    #[error("Transfer-Encoding in an HTTP/1.0 message")]
    TransferEncodingInHttp10,
    /// A name that differs from a framing field by `_` for `-` only.
    #[error("a framing field spelt with '_' instead of '-'")]
    AliasedFraming,
    /// `Connection` is not a list of tokens, or too long a one.
    #[error("invalid Connection field: expected a short list of names")]
    InvalidConnection,
    /// `Connection` names a field that is not for this hop alone.
    #[error("Connection names a field that must reach the server")]
    ProtectedByConnection,
    /// An expectation other than `100-continue`.
    #[error("expectation not supported: only 100-continue is")]
    Expectation,
    /// `CONNECT`: this is no tunnel.
    #[error("CONNECT is not supported: this is a reverse proxy")]
    Connect,
    /// Status code below 100.
    #[error("invalid status code")]
    StatusCode,
    /// A response that cannot have a body, with framing for one.
    #[error("a response with status 1xx or 204 announces a body")]
    BodyNotAllowed,
    /// A switch of protocols that nobody asked for, or that names no protocol.
    #[error("unexpected 101 (switching protocols)")]
    UnexpectedUpgrade,
}

impl HeadError {
    /// Status to refuse a request with. A response that cannot be read is always 502.
    pub fn request_status(self) -> u16 {
        match self {
            Self::Version => 505,
            Self::TargetTooLong => 414,
            Self::TooLarge | Self::TooManyFields => 431,
            Self::UnknownTransferCoding | Self::Connect => 501,
            Self::Expectation => 417,
            _ => 400,
        }
    }

    fn from_httparse(error: httparse::Error) -> Self {
        match error {
            httparse::Error::HeaderName => Self::FieldName,
            httparse::Error::HeaderValue => Self::FieldValue,
            httparse::Error::NewLine => Self::LineEnd,
            httparse::Error::TooManyHeaders => Self::TooManyFields,
            httparse::Error::Version => Self::Version,
            httparse::Error::Token | httparse::Error::Status => Self::StartLine,
        }
    }
}

/// A request head that everybody reads alike.
///
/// ```
/// use evenkeel_proxy::http1::{Body, Fields, Limits, Parsed, RequestHead};
///
/// let read = b"POST /orders HTTP/1.1\r\nHost: shop\r\nContent-Length: 3\r\n\r\nabc";
/// let limits = Limits { max_bytes: 16_384, max_fields: 100 };
/// let mut fields = Fields::new();
/// let Ok(Parsed::Head(head)) = RequestHead::parse(read, limits, &mut fields) else {
///     panic!("a whole and valid head");
/// };
/// assert_eq!(head.body, Body::Length(3));
/// assert_eq!(&read[head.len..], b"abc");
/// ```
#[derive(Debug)]
pub struct RequestHead<'a> {
    /// Bytes of the read buffer that the head takes, an empty line before it included.
    pub len: usize,
    /// Method, as sent.
    pub method: &'a str,
    /// Request target, as sent.
    pub target: &'a str,
    /// Version, as sent.
    pub version: Version,
    /// Authority of the request: the target's if that is in absolute form, else `Host`.
    /// `None` in HTTP/1.0 only.
    pub host: Option<&'a str>,
    /// Framing of the body; never [`Body::UntilClose`].
    pub body: Body,
    /// Whether the client wants the connection to go on after the response.
    pub keep_alive: bool,
    /// Whether the client waits for a 100 (Continue) before it sends the body.
    pub expect_continue: bool,
    /// What the framing of the response depends on.
    pub asked: Asked,
    /// The head without an empty line before it.
    pub(super) raw: &'a [u8],
    pub(super) fields: &'a [Header<'a>],
    pub(super) form: Form<'a>,
    pub(super) meaning: Meaning<'a>,
}

/// What a request asked for, as far as the framing of its response depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    /// `HEAD`: the response has no body.
    pub head: bool,
    /// A switch of protocols is offered, and a 101 allowed.
    pub upgrade: bool,
}

/// Form of a request target (RFC 9112, section 3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form<'a> {
    /// `/path?query`.
    Origin,
    /// `http://authority/path?query`; the path may be empty.
    Absolute {
        authority: &'a str,
        path_and_query: &'a str,
    },
    /// `*`.
    Asterisk,
}

impl<'a> RequestHead<'a> {
    /// Parses the head at the start of `read`, all that has been read and not used yet.
    ///
    /// An error is final: answer with [`HeadError::request_status`] and close.
    pub fn parse(
        read: &'a [u8],
        limits: Limits,
        fields: &'a mut Fields<'a>,
    ) -> Result<Parsed<Self>, HeadError> {
        let Some(skipped) = leading_empty_line(read)? else {
            return Ok(Parsed::Partial);
        };
        let raw = read.get(skipped..).unwrap_or_default();
        let mut parsed = httparse::Request::new(&mut []);
        let room = limits.max_fields.min(MAX_FIELDS);
        let room = fields.0.get_mut(..room).unwrap_or_default();
        let len = match parsed.parse_with_uninit_headers(raw, room) {
            Ok(Status::Complete(len)) if len <= limits.max_bytes => len,
            Ok(Status::Partial) if raw.len() < limits.max_bytes => return Ok(Parsed::Partial),
            Ok(_) => {
                let within = raw.get(..limits.max_bytes).unwrap_or(raw);
                return Err(match within.contains(&b'\n') {
                    true => HeadError::TooLarge,
                    false => HeadError::TargetTooLong,
                });
            }
            Err(httparse::Error::Version) => return Err(version_error(raw)),
            Err(error) => return Err(HeadError::from_httparse(error)),
        };
        let (Some(method), Some(target), Some(minor)) =
            (parsed.method, parsed.path, parsed.version)
        else {
            return Err(HeadError::StartLine);
        };
        let raw = raw.get(..len).unwrap_or_default();
        let fields: &'a [Header<'a>] = parsed.headers;
        check_line_ends(raw, fields)?;
        let version = Version::from_minor(minor);
        let form = Form::of(method, target)?;
        let mut meaning = Meaning::of_request(raw, fields, version)?;
        let host = match (form, meaning.host) {
            (Form::Absolute { authority, .. }, _) => Some(authority),
            (_, host) => host,
        };
        let body = meaning.request_body();
        meaning.settle_request(fields, method == "GET", body, version);
        Ok(Parsed::Head(Self {
            len: skipped + len,
            method,
            target,
            version,
            host,
            body,
            keep_alive: meaning.keep_alive(version),
            expect_continue: meaning.expects_continue,
            asked: Asked {
                head: method == "HEAD",
                upgrade: meaning.upgrades,
            },
            raw,
            fields,
            form,
            meaning,
        }))
    }

    /// Values of the fields called `name` (in any case), in order.
    pub fn values(&self, name: &str) -> impl Iterator<Item = &'a [u8]> {
        values(self.fields, name)
    }
}

/// A response head that everybody reads alike.
#[derive(Debug)]
pub struct ResponseHead<'a> {
    /// Bytes of the read buffer that the head takes.
    pub len: usize,
    /// Status code, 100 to 999.
    pub status: u16,
    /// Version, as sent.
    pub version: Version,
    /// Framing of the body.
    pub body: Body,
    /// Whether the member lets the connection go on after this response.
    pub keep_alive: bool,
    pub(super) raw: &'a [u8],
    pub(super) fields: &'a [Header<'a>],
    pub(super) meaning: Meaning<'a>,
}

impl<'a> ResponseHead<'a> {
    /// Parses the head at the start of `read`, the answer to a request that `asked`.
    ///
    /// An error is final: answer the client with 502 and close the member's connection.
    pub fn parse(
        read: &'a [u8],
        limits: Limits,
        asked: Asked,
        fields: &'a mut Fields<'a>,
    ) -> Result<Parsed<Self>, HeadError> {
        match read.first() {
            None => return Ok(Parsed::Partial),
            Some(b'\r' | b'\n') => return Err(HeadError::LeadingLine),
            Some(_) => {}
        }
        let mut parsed = httparse::Response::new(&mut []);
        let room = limits.max_fields.min(MAX_FIELDS);
        let room = fields.0.get_mut(..room).unwrap_or_default();
        let parser = httparse::ParserConfig::default();
        let len = match parser.parse_response_with_uninit_headers(&mut parsed, read, room) {
            Ok(Status::Complete(len)) if len <= limits.max_bytes => len,
            Ok(Status::Partial) if read.len() < limits.max_bytes => return Ok(Parsed::Partial),
            Ok(_) => return Err(HeadError::TooLarge),
            Err(error) => return Err(HeadError::from_httparse(error)),
        };
        let (Some(status), Some(minor)) = (parsed.code, parsed.version) else {
            return Err(HeadError::StartLine);
        };
        if status < 100 {
            return Err(HeadError::StatusCode);
        }
        let raw = read.get(..len).unwrap_or_default();
        let fields: &'a [Header<'a>] = parsed.headers;
        check_line_ends(raw, fields)?;
        let version = Version::from_minor(minor);
        let mut meaning = Meaning::of_response(raw, fields, version)?;
        let body = meaning.response_body(status, asked)?;
        meaning.settle_response(fields, status);
        let ends_connection = body == Body::UntilClose || status == 101;
        Ok(Parsed::Head(Self {
            len,
            status,
            version,
            body,
            keep_alive: meaning.keep_alive(version) && !ends_connection,
            raw,
            fields,
            meaning,
        }))
    }

    /// Whether another response to the same request follows (1xx, but not 101).
    pub fn is_interim(&self) -> bool {
        self.status < 200 && self.status != 101
    }

    /// Values of the fields called `name` (in any case), in order.
    pub fn values(&self, name: &str) -> impl Iterator<Item = &'a [u8]> {
        values(self.fields, name)
    }

    /// Keeps the fields called `name` (in any case) from the client.
    pub fn leave_out(&mut self, name: &str) {
        for (index, field) in self.fields.iter().enumerate() {
            if field.name.eq_ignore_ascii_case(name) {
                self.meaning.dropped.insert(index);
            }
        }
    }
}

fn values<'a>(fields: &'a [Header<'a>], name: &str) -> impl Iterator<Item = &'a [u8]> {
    fields
        .iter()
        .filter(move |field| field.name.eq_ignore_ascii_case(name))
        .map(|field| field.value)
}

/// Length of the one empty line that is tolerated before a request (RFC 9112, section
/// 2.2); `None` if more must be read to know.
fn leading_empty_line(read: &[u8]) -> Result<Option<usize>, HeadError> {
    match read {
        [] | [b'\r'] | [b'\r', b'\n'] => Ok(None),
        [b'\r', b'\n', b'\r' | b'\n', ..] => Err(HeadError::LeadingLine),
        [b'\r', b'\n', ..] => Ok(Some(2)),
        [b'\r' | b'\n', ..] => Err(HeadError::LeadingLine),
        _ => Ok(Some(0)),
    }
}

/// `httparse` takes a bare LF for a line end; the bytes before each line tell.
fn check_line_ends(raw: &[u8], fields: &[Header<'_>]) -> Result<(), HeadError> {
    for field in fields {
        let start = framing::offset(raw, field);
        if !raw
            .get(..start)
            .is_some_and(|before| before.ends_with(b"\r\n"))
        {
            return Err(HeadError::LineEnd);
        }
    }
    if raw.ends_with(b"\r\n\r\n") {
        Ok(())
    } else {
        Err(HeadError::LineEnd)
    }
}

/// Tells a version that is not spoken here from a line that is no request line.
fn version_error(raw: &[u8]) -> HeadError {
    match raw.split(|&byte| byte == b' ').nth(2).unwrap_or_default() {
        [b'H', b'T', b'T', b'P', b'/', b'0'..=b'9', ..] => HeadError::Version,
        _ => HeadError::StartLine,
    }
}

impl<'a> Form<'a> {
    fn of(method: &str, target: &'a str) -> Result<Self, HeadError> {
        // A fragment is never part of a target: where it starts is where servers disagree.
        if !target.is_ascii() || target.as_bytes().contains(&b'#') {
            return Err(HeadError::Target);
        }
        if method == "CONNECT" {
            return Err(HeadError::Connect);
        }
        if target.starts_with('/') {
            return Ok(Self::Origin);
        }
        if target == "*" {
            return match method {
                "OPTIONS" => Ok(Self::Asterisk),
                _ => Err(HeadError::Target),
            };
        }
        let (scheme, rest) = target.split_once("://").ok_or(HeadError::Target)?;
        if !scheme.eq_ignore_ascii_case("http") && !scheme.eq_ignore_ascii_case("https") {
            return Err(HeadError::Target);
        }
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, path_and_query) = rest.split_at_checked(end).ok_or(HeadError::Target)?;
        if !framing::is_authority(authority.as_bytes()) {
            return Err(HeadError::Target);
        }
        Ok(Self::Absolute {
            authority,
            path_and_query,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::HeadError as E;
    use super::*;

    const LIMITS: Limits = Limits {
        max_bytes: 1024,
        max_fields: 16,
    };
    const NOTHING: Asked = Asked {
        head: false,
        upgrade: false,
    };

    fn request(read: &[u8]) -> Result<bool, HeadError> {
        let mut fields = Fields::new();
        let parsed = RequestHead::parse(read, LIMITS, &mut fields)?;
        Ok(matches!(parsed, Parsed::Head(_)))
    }

    fn with_request<T>(read: &[u8], see: impl FnOnce(RequestHead<'_>) -> T) -> T {
        let mut fields = Fields::new();
        match RequestHead::parse(read, LIMITS, &mut fields) {
            Ok(Parsed::Head(head)) => see(head),
            other => panic!("{:?}: {other:?}", read.escape_ascii().to_string()),
        }
    }

    fn with_response<T>(read: &[u8], asked: Asked, see: impl FnOnce(ResponseHead<'_>) -> T) -> T {
        let mut fields = Fields::new();
        match ResponseHead::parse(read, LIMITS, asked, &mut fields) {
            Ok(Parsed::Head(head)) => see(head),
            other => panic!("{:?}: {other:?}", read.escape_ascii().to_string()),
        }
    }

    /// Name of the ambiguity, the head, the refusal.
    const REFUSED_REQUESTS: &[(&str, &str, E)] = &[
        // Lines.
        (
            "bare LF after request line",
            "GET / HTTP/1.1\nHost: a\r\n\r\n",
            E::LineEnd,
        ),
        (
            "bare LF after field",
            "GET / HTTP/1.1\r\nHost: a\nX: y\r\n\r\n",
            E::LineEnd,
        ),
        (
            "bare LF after last field",
            "GET / HTTP/1.1\r\nHost: a\n\r\n",
            E::LineEnd,
        ),
        (
            "bare LF as empty line",
            "GET / HTTP/1.1\r\nHost: a\r\n\n",
            E::LineEnd,
        ),
        ("bare LF only", "GET / HTTP/1.1\nHost: a\n\n", E::LineEnd),
        (
            "bare CR after request line",
            "GET / HTTP/1.1\rHost: a\r\n\r\n",
            E::LineEnd,
        ),
        (
            "bare CR in field",
            "GET / HTTP/1.1\r\nHost: a\r\nX: y\rZ: w\r\n\r\n",
            E::FieldValue,
        ),
        (
            "bare CR before field",
            "GET / HTTP/1.1\r\nHost: a\r\n\rX: y\r\n\r\n",
            E::LineEnd,
        ),
        (
            "CR CR LF",
            "GET / HTTP/1.1\r\nHost: a\r\r\n\r\n",
            E::FieldValue,
        ),
        (
            "NUL in value",
            "GET / HTTP/1.1\r\nHost: a\r\nX: \0\r\n\r\n",
            E::FieldValue,
        ),
        (
            "control in value",
            "GET / HTTP/1.1\r\nHost: a\r\nX: a\x0bb\r\n\r\n",
            E::FieldValue,
        ),
        (
            "DEL in value",
            "GET / HTTP/1.1\r\nHost: a\r\nX: a\x7f\r\n\r\n",
            E::FieldValue,
        ),
        (
            "folded line",
            "GET / HTTP/1.1\r\nHost: a\r\nX: y\r\n z\r\n\r\n",
            E::FieldName,
        ),
        (
            "folded with tab",
            "GET / HTTP/1.1\r\nHost: a\r\nX: y\r\n\tz\r\n\r\n",
            E::FieldName,
        ),
        (
            "folded empty value",
            "GET / HTTP/1.1\r\nHost: a\r\nX:\r\n z\r\n\r\n",
            E::FieldName,
        ),
        (
            "space before first field",
            "GET / HTTP/1.1\r\n Host: a\r\n\r\n",
            E::FieldName,
        ),
        (
            "space before colon",
            "GET / HTTP/1.1\r\nHost : a\r\n\r\n",
            E::FieldName,
        ),
        (
            "tab before colon",
            "GET / HTTP/1.1\r\nHost\t: a\r\n\r\n",
            E::FieldName,
        ),
        (
            "empty name",
            "GET / HTTP/1.1\r\nHost: a\r\n: x\r\n\r\n",
            E::FieldName,
        ),
        (
            "no colon",
            "GET / HTTP/1.1\r\nHost: a\r\nnothing\r\n\r\n",
            E::FieldName,
        ),
        (
            "NUL in name",
            "GET / HTTP/1.1\r\nHost: a\r\nX\0: y\r\n\r\n",
            E::FieldName,
        ),
        (
            "not a name",
            "GET / HTTP/1.1\r\nHost: a\r\nX(y): z\r\n\r\n",
            E::FieldName,
        ),
        (
            "two empty lines first",
            "\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
            E::LeadingLine,
        ),
        (
            "LF first",
            "\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
            E::LeadingLine,
        ),
        (
            "CR first",
            "\rGET / HTTP/1.1\r\nHost: a\r\n\r\n",
            E::LeadingLine,
        ),
        // Request line.
        (
            "space first",
            " GET / HTTP/1.1\r\nHost: a\r\n\r\n",
            E::StartLine,
        ),
        (
            "no method token",
            "G(T / HTTP/1.1\r\nHost: a\r\n\r\n",
            E::StartLine,
        ),
        (
            "two spaces",
            "GET  / HTTP/1.1\r\nHost: a\r\n\r\n",
            E::StartLine,
        ),
        (
            "two spaces, 2",
            "GET /  HTTP/1.1\r\nHost: a\r\n\r\n",
            E::StartLine,
        ),
        (
            "tab for space",
            "GET\t/ HTTP/1.1\r\nHost: a\r\n\r\n",
            E::StartLine,
        ),
        (
            "space in target",
            "GET /a b HTTP/1.1\r\nHost: a\r\n\r\n",
            E::StartLine,
        ),
        (
            "space after version",
            "GET / HTTP/1.1 \r\nHost: a\r\n\r\n",
            E::LineEnd,
        ),
        ("HTTP/0.9", "GET /\r\n\r\n", E::StartLine),
        (
            "lower case version",
            "GET / http/1.1\r\nHost: a\r\n\r\n",
            E::StartLine,
        ),
        ("HTTP/1.2", "GET / HTTP/1.2\r\nHost: a\r\n\r\n", E::Version),
        (
            "HTTP/2 preface",
            "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            E::Version,
        ),
        (
            "HTTP/1.10",
            "GET / HTTP/1.10\r\nHost: a\r\n\r\n",
            E::LineEnd,
        ),
        ("TLS", "\x16\x03\x01\x02\x00\x01\x00", E::StartLine),
        (
            "fragment",
            "GET /a#b HTTP/1.1\r\nHost: a\r\n\r\n",
            E::Target,
        ),
        (
            "target not ASCII",
            "GET /ä HTTP/1.1\r\nHost: a\r\n\r\n",
            E::Target,
        ),
        (
            "NUL in target",
            "GET /\0 HTTP/1.1\r\nHost: a\r\n\r\n",
            E::StartLine,
        ),
        (
            "authority form",
            "GET a:80 HTTP/1.1\r\nHost: a\r\n\r\n",
            E::Target,
        ),
        (
            "relative path",
            "GET a/b HTTP/1.1\r\nHost: a\r\n\r\n",
            E::Target,
        ),
        (
            "other scheme",
            "GET ftp://a/ HTTP/1.1\r\nHost: a\r\n\r\n",
            E::Target,
        ),
        (
            "no authority",
            "GET http:///x HTTP/1.1\r\nHost: a\r\n\r\n",
            E::Target,
        ),
        (
            "user information",
            "GET http://u@a/ HTTP/1.1\r\nHost: a\r\n\r\n",
            E::Target,
        ),
        (
            "asterisk of GET",
            "GET * HTTP/1.1\r\nHost: a\r\n\r\n",
            E::Target,
        ),
        (
            "CONNECT",
            "CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\n\r\n",
            E::Connect,
        ),
        // Host.
        ("no Host", "GET / HTTP/1.1\r\n\r\n", E::MissingHost),
        (
            "two Hosts",
            "GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n",
            E::RepeatedHost,
        ),
        (
            "two Hosts in 1.0",
            "GET / HTTP/1.0\r\nHost: a\r\nhost: b\r\n\r\n",
            E::RepeatedHost,
        ),
        (
            "empty Host",
            "GET / HTTP/1.1\r\nHost:\r\n\r\n",
            E::InvalidHost,
        ),
        (
            "list of Hosts",
            "GET / HTTP/1.1\r\nHost: a, b\r\n\r\n",
            E::InvalidHost,
        ),
        (
            "path in Host",
            "GET / HTTP/1.1\r\nHost: a/b\r\n\r\n",
            E::InvalidHost,
        ),
        (
            "user in Host",
            "GET / HTTP/1.1\r\nHost: u@a\r\n\r\n",
            E::InvalidHost,
        ),
        (
            "port no number",
            "GET / HTTP/1.1\r\nHost: a:b\r\n\r\n",
            E::InvalidHost,
        ),
        (
            "two ports",
            "GET / HTTP/1.1\r\nHost: a:1:2\r\n\r\n",
            E::InvalidHost,
        ),
        (
            "port without host",
            "GET / HTTP/1.1\r\nHost: :80\r\n\r\n",
            E::InvalidHost,
        ),
        (
            "open bracket",
            "GET / HTTP/1.1\r\nHost: [::1\r\n\r\n",
            E::InvalidHost,
        ),
        (
            "absolute form, no Host",
            "GET http://a/ HTTP/1.1\r\n\r\n",
            E::MissingHost,
        ),
        // Framing. Each is completed by a Host below.
        (
            "both",
            "Content-Length: 3\r\nTransfer-Encoding: chunked",
            E::LengthAndTransferEncoding,
        ),
        (
            "both, 2",
            "Transfer-Encoding: chunked\r\nContent-Length: 3",
            E::LengthAndTransferEncoding,
        ),
        (
            "lengths differ",
            "Content-Length: 3\r\nContent-Length: 4",
            E::RepeatedContentLength,
        ),
        (
            "length twice",
            "Content-Length: 3\r\nContent-Length: 3",
            E::RepeatedContentLength,
        ),
        (
            "length list",
            "Content-Length: 5, 5",
            E::InvalidContentLength,
        ),
        ("length empty", "Content-Length:", E::InvalidContentLength),
        ("length +", "Content-Length: +5", E::InvalidContentLength),
        ("length -", "Content-Length: -5", E::InvalidContentLength),
        (
            "length hexadecimal",
            "Content-Length: 0x5",
            E::InvalidContentLength,
        ),
        (
            "length fraction",
            "Content-Length: 5.0",
            E::InvalidContentLength,
        ),
        (
            "length with space",
            "Content-Length: 5 5",
            E::InvalidContentLength,
        ),
        (
            "length 2^63",
            "Content-Length: 9223372036854775808",
            E::InvalidContentLength,
        ),
        (
            "length 2^64 + 5",
            "Content-Length: 18446744073709551621",
            E::InvalidContentLength,
        ),
        ("length with _", "Content_Length: 5", E::AliasedFraming),
        (
            "coding with _",
            "Transfer_Encoding: chunked",
            E::AliasedFraming,
        ),
        (
            "coding empty",
            "Transfer-Encoding:",
            E::InvalidTransferEncoding,
        ),
        (
            "coding twice",
            "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
            E::InvalidTransferEncoding,
        ),
        (
            "chunked twice",
            "Transfer-Encoding: chunked, chunked",
            E::InvalidTransferEncoding,
        ),
        (
            "chunked not last",
            "Transfer-Encoding: chunked, gzip",
            E::InvalidTransferEncoding,
        ),
        (
            "identity",
            "Transfer-Encoding: identity",
            E::InvalidTransferEncoding,
        ),
        (
            "coding misspelt",
            "Transfer-Encoding: xchunked",
            E::InvalidTransferEncoding,
        ),
        (
            "coding quoted",
            "Transfer-Encoding: \"chunked\"",
            E::InvalidTransferEncoding,
        ),
        (
            "coding with comma",
            "Transfer-Encoding: chunked,",
            E::InvalidTransferEncoding,
        ),
        (
            "coding with parameter",
            "Transfer-Encoding: chunked;a=b",
            E::InvalidTransferEncoding,
        ),
        (
            "another coding",
            "Transfer-Encoding: gzip, chunked",
            E::UnknownTransferCoding,
        ),
        // The connection.
        (
            "Connection no token",
            "Connection: close; x",
            E::InvalidConnection,
        ),
        (
            "Connection names Host",
            "Connection: close, host",
            E::ProtectedByConnection,
        ),
        (
            "Connection names length",
            "Connection: Content-Length",
            E::ProtectedByConnection,
        ),
        (
            "Connection names coding",
            "Connection: transfer-encoding",
            E::ProtectedByConnection,
        ),
        (
            "Connection names client",
            "Connection: X-Forwarded-For",
            E::ProtectedByConnection,
        ),
        ("other expectation", "Expect: 200-ok", E::Expectation),
    ];

    #[test]
    fn ambiguous_requests_are_refused() {
        for &(name, head, error) in REFUSED_REQUESTS {
            let whole = match head.contains("\r\n\r\n") || head.starts_with('\x16') {
                true => head.to_owned(),
                false if head.contains("/1.") => head.to_owned(),
                false => format!("POST / HTTP/1.1\r\nHost: a\r\n{head}\r\n\r\n"),
            };
            assert_eq!(request(whole.as_bytes()), Err(error), "{name}");
        }
    }

    #[test]
    fn chunked_in_http_1_0_is_refused() {
        let head = b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n";
        assert_eq!(request(head), Err(E::TransferEncodingInHttp10));
    }

    #[test]
    fn too_many_names_in_connection_are_refused() {
        let names = vec!["x"; 17].join(",");
        let head = format!("GET / HTTP/1.1\r\nHost: a\r\nConnection: {names}\r\n\r\n");
        assert_eq!(request(head.as_bytes()), Err(E::InvalidConnection));
    }

    #[test]
    fn each_refusal_has_its_status() {
        for (error, status) in [
            (E::LineEnd, 400),
            (E::LengthAndTransferEncoding, 400),
            (E::TargetTooLong, 414),
            (E::Expectation, 417),
            (E::TooLarge, 431),
            (E::TooManyFields, 431),
            (E::UnknownTransferCoding, 501),
            (E::Connect, 501),
            (E::Version, 505),
        ] {
            assert_eq!(error.request_status(), status);
        }
    }

    #[test]
    fn large_heads_are_refused_as_soon_as_that_is_known() {
        let long_target = [b"GET /".as_slice(), &[b'a'; 1019]].concat();
        assert_eq!(request(&long_target[..1023]), Ok(false));
        assert_eq!(request(&long_target), Err(E::TargetTooLong));
        let whole = [&long_target, b" HTTP/1.1\r\nHost: a\r\n\r\n".as_slice()].concat();
        assert_eq!(request(&whole), Err(E::TargetTooLong));

        let head = [b"GET / HTTP/1.1\r\nHost: a\r\nX: ".as_slice(), &[b'a'; 992]].concat();
        let whole = [head.as_slice(), b"\r\n\r\n"].concat();
        assert_eq!(whole.len(), 1024);
        assert_eq!(request(&whole), Ok(true));
        let longer = [head.as_slice(), b"a\r\n\r\n"].concat();
        assert_eq!(request(&longer), Err(E::TooLarge));
        assert_eq!(request(&longer[..1024]), Err(E::TooLarge));

        let fields = "X: y\r\n".repeat(15);
        let head = format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}");
        assert_eq!(request(format!("{head}\r\n").as_bytes()), Ok(true));
        assert_eq!(
            request(format!("{head}Z: y\r\n\r\n").as_bytes()),
            Err(E::TooManyFields)
        );
    }

    #[test]
    fn a_limit_above_the_room_is_cut_to_it() {
        let limits = Limits {
            max_bytes: 1 << 20,
            max_fields: usize::MAX,
        };
        let fields = "X: y\r\n".repeat(MAX_FIELDS);
        let head = format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
        let mut room = Fields::new();
        let parsed = RequestHead::parse(head.as_bytes(), limits, &mut room);
        assert!(matches!(parsed, Err(E::TooManyFields)));
    }

    #[test]
    fn one_empty_line_before_a_request_is_skipped() {
        let read = b"\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\nrest";
        with_request(read, |head| assert_eq!(&read[head.len..], b"rest"));
    }

    #[test]
    fn the_parts_of_a_request() {
        let read = b"POST /a?b=c|d HTTP/1.1\r\nhOST: example.org:8080\r\n\
            X: 1\r\nExpect: 100-Continue\r\nContent-Length: 5\r\nx: \xff2 \r\n\r\nhello";
        with_request(read, |head| {
            assert_eq!((head.method, head.target), ("POST", "/a?b=c|d"));
            assert_eq!(head.version, Version::Http11);
            assert_eq!(head.host, Some("example.org:8080"));
            assert_eq!(head.body, Body::Length(5));
            assert!(head.keep_alive && head.expect_continue);
            assert_eq!(head.asked, NOTHING);
            let values: Vec<_> = head.values("x").collect();
            assert_eq!(values, [b"1".as_slice(), b"\xff2"]);
            assert_eq!(&read[head.len..], b"hello");
        });
    }

    #[test]
    fn hosts_that_are_valid() {
        for host in [
            "a",
            "a:",
            "A.b-c_d:80",
            "127.0.0.1:65535",
            "[::1]",
            "[2001:db8::1]:443",
        ] {
            let read = format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n");
            with_request(read.as_bytes(), |head| assert_eq!(head.host, Some(host)));
        }
    }

    #[test]
    fn the_target_in_absolute_form_names_the_host() {
        let read = b"GET HTTP://real:81?q HTTP/1.1\r\nHost: other\r\n\r\n";
        with_request(read, |head| assert_eq!(head.host, Some("real:81")));
    }

    #[test]
    fn the_connection_goes_on_or_not() {
        for (version, connection, goes_on) in [
            ("1.1", "", true),
            ("1.1", "Connection: keep-alive\r\n", true),
            ("1.1", "Connection: Close\r\n", false),
            ("1.1", "Connection: x, ,CLOSE\r\n", false),
            (
                "1.1",
                "Connection: keep-alive\r\nConnection: close\r\n",
                false,
            ),
            ("1.0", "", false),
            ("1.0", "Connection: Keep-Alive\r\n", true),
            ("1.0", "Connection: keep-alive, close\r\n", false),
            ("1.0", "Proxy-Connection: keep-alive\r\n", false),
        ] {
            let read = format!("GET / HTTP/{version}\r\nHost: a\r\n{connection}\r\n");
            with_request(read.as_bytes(), |head| {
                assert_eq!(head.keep_alive, goes_on, "{version} {connection}");
            });
        }
    }

    #[test]
    fn an_expectation_needs_a_body_and_http_1_1() {
        for (head, waits) in [
            (
                "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nExpect: 100-continue",
                true,
            ),
            (
                "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\nExpect: 100-continue",
                false,
            ),
            ("GET / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue", false),
            (
                "POST / HTTP/1.0\r\nContent-Length: 1\r\nExpect: 100-continue",
                false,
            ),
            (
                "POST / HTTP/1.0\r\nContent-Length: 1\r\nExpect: whatever",
                false,
            ),
        ] {
            with_request(format!("{head}\r\n\r\n").as_bytes(), |parsed| {
                assert_eq!(parsed.expect_continue, waits, "{head}");
            });
        }
    }

    #[test]
    fn an_upgrade_needs_all_of_its_parts() {
        for (head, upgrade) in [
            (
                "GET / HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket",
                true,
            ),
            (
                "GET / HTTP/1.1\r\nConnection: keep-alive, upgrade\r\nUpgrade: a/1, b",
                true,
            ),
            ("GET / HTTP/1.1\r\nUpgrade: websocket", false),
            ("GET / HTTP/1.1\r\nConnection: upgrade", false),
            ("GET / HTTP/1.1\r\nConnection: upgrade\r\nUpgrade:", false),
            (
                "GET / HTTP/1.0\r\nConnection: upgrade\r\nUpgrade: websocket",
                false,
            ),
            (
                "POST / HTTP/1.1\r\nConnection: upgrade\r\nUpgrade: websocket",
                false,
            ),
            (
                "GET / HTTP/1.1\r\nContent-Length: 1\r\nConnection: upgrade\r\nUpgrade: w",
                false,
            ),
            (
                "GET / HTTP/1.1\r\nConnection: upgrade\r\nUpgrade: h2c",
                false,
            ),
            (
                "GET / HTTP/1.1\r\nConnection: upgrade\r\nUpgrade: websocket, H2C",
                false,
            ),
            (
                "GET / HTTP/1.1\r\nConnection: upgrade\r\nUpgrade: a\r\nUpgrade: TLS/1.0",
                false,
            ),
        ] {
            with_request(format!("{head}\r\nHost: a\r\n\r\n").as_bytes(), |parsed| {
                assert_eq!(parsed.asked.upgrade, upgrade, "{head}");
            });
        }
    }

    /// Name of the ambiguity, the head, the refusal.
    const REFUSED_RESPONSES: &[(&str, &str, E)] = &[
        ("garbage", "SSH-2.0-OpenSSH_9.2\r\n", E::Version),
        (
            "empty line first",
            "\r\nHTTP/1.1 200 OK\r\n\r\n",
            E::LeadingLine,
        ),
        (
            "bare LF after status",
            "HTTP/1.1 200 OK\nX: y\r\n\r\n",
            E::LineEnd,
        ),
        (
            "bare LF after bare status",
            "HTTP/1.1 200\nX: y\r\n\r\n",
            E::LineEnd,
        ),
        (
            "bare LF at the end",
            "HTTP/1.1 200 OK\r\nX: y\r\n\n",
            E::LineEnd,
        ),
        (
            "bare CR in reason",
            "HTTP/1.1 200 O\rK\r\n\r\n",
            E::StartLine,
        ),
        (
            "folded line",
            "HTTP/1.1 200 OK\r\nX: y\r\n z\r\n\r\n",
            E::FieldName,
        ),
        (
            "space before colon",
            "HTTP/1.1 200 OK\r\nX : y\r\n\r\n",
            E::FieldName,
        ),
        (
            "NUL in value",
            "HTTP/1.1 200 OK\r\nX: \0\r\n\r\n",
            E::FieldValue,
        ),
        ("two digits", "HTTP/1.1 20 OK\r\n\r\n", E::StartLine),
        ("four digits", "HTTP/1.1 2000 OK\r\n\r\n", E::StartLine),
        ("status 099", "HTTP/1.1 099 OK\r\n\r\n", E::StatusCode),
        ("HTTP/2", "HTTP/2.0 200 OK\r\n\r\n", E::Version),
        (
            "both framings",
            "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n",
            E::LengthAndTransferEncoding,
        ),
        (
            "lengths differ",
            "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\n",
            E::RepeatedContentLength,
        ),
        (
            "length list",
            "HTTP/1.1 200 OK\r\nContent-Length: 3,3\r\n\r\n",
            E::InvalidContentLength,
        ),
        (
            "other coding",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
            E::UnknownTransferCoding,
        ),
        (
            "identity",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: identity\r\n\r\n",
            E::InvalidTransferEncoding,
        ),
        (
            "chunked in 1.0",
            "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
            E::TransferEncodingInHttp10,
        ),
        (
            "204 with a body",
            "HTTP/1.1 204 No Content\r\nContent-Length: 1\r\n\r\n",
            E::BodyNotAllowed,
        ),
        (
            "204 chunked",
            "HTTP/1.1 204 No Content\r\nTransfer-Encoding: chunked\r\n\r\n",
            E::BodyNotAllowed,
        ),
        (
            "100 with a body",
            "HTTP/1.1 100 Continue\r\nContent-Length: 1\r\n\r\n",
            E::BodyNotAllowed,
        ),
        (
            "101 not asked for",
            "HTTP/1.1 101 X\r\nConnection: upgrade\r\nUpgrade: w\r\n\r\n",
            E::UnexpectedUpgrade,
        ),
        (
            "Connection names length",
            "HTTP/1.1 200 OK\r\nConnection: content-length\r\nContent-Length: 3\r\n\r\n",
            E::ProtectedByConnection,
        ),
    ];

    #[test]
    fn ambiguous_responses_are_refused() {
        for &(name, head, error) in REFUSED_RESPONSES {
            let mut fields = Fields::new();
            let parsed = ResponseHead::parse(head.as_bytes(), LIMITS, NOTHING, &mut fields);
            assert_eq!(parsed.err(), Some(error), "{name}");
        }
    }

    #[test]
    fn a_switch_of_protocols_must_name_one() {
        let asked = Asked {
            head: false,
            upgrade: true,
        };
        for head in ["", "Connection: upgrade\r\n", "Upgrade: websocket\r\n"] {
            let read = format!("HTTP/1.1 101 Switching Protocols\r\n{head}\r\n");
            let mut fields = Fields::new();
            let parsed = ResponseHead::parse(read.as_bytes(), LIMITS, asked, &mut fields);
            assert_eq!(parsed.err(), Some(E::UnexpectedUpgrade), "{head}");
        }
        let read = b"HTTP/1.1 101 X\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n\x81\x00";
        with_response(read, asked, |head| {
            assert_eq!((head.body, head.keep_alive), (Body::None, false));
            assert!(!head.is_interim());
            assert_eq!(&read[head.len..], b"\x81\x00");
        });
    }

    #[test]
    fn the_body_of_a_response_ends_where_rfc_9112_says() {
        const HEAD: Asked = Asked {
            head: true,
            upgrade: false,
        };
        for (head, asked, body, keep_alive) in [
            (
                "1.1 200 OK\r\nContent-Length: 3",
                NOTHING,
                Body::Length(3),
                true,
            ),
            (
                "1.1 200 OK\r\ntransfer-encoding: Chunked",
                NOTHING,
                Body::Chunked,
                true,
            ),
            ("1.1 200 OK", NOTHING, Body::UntilClose, false),
            ("1.1 200", NOTHING, Body::UntilClose, false),
            ("1.1 200 OK\r\nContent-Length: 3", HEAD, Body::None, true),
            (
                "1.1 200 OK\r\nTransfer-Encoding: chunked",
                HEAD,
                Body::None,
                true,
            ),
            ("1.1 200 OK", HEAD, Body::None, true),
            ("1.1 204 No Content", NOTHING, Body::None, true),
            (
                "1.1 204 No Content\r\nContent-Length: 0",
                NOTHING,
                Body::None,
                true,
            ),
            (
                "1.1 304 Not Modified\r\nContent-Length: 3",
                NOTHING,
                Body::None,
                true,
            ),
            (
                "1.1 103 Early Hints\r\nLink: </a>",
                NOTHING,
                Body::None,
                true,
            ),
            (
                "1.1 500 \r\nContent-Length: 0\r\nConnection: close",
                NOTHING,
                Body::Length(0),
                false,
            ),
            (
                "1.0 200 OK\r\nContent-Length: 3",
                NOTHING,
                Body::Length(3),
                false,
            ),
            (
                "1.0 200 OK\r\nContent-Length: 3\r\nConnection: keep-alive",
                NOTHING,
                Body::Length(3),
                true,
            ),
            (
                "1.0 200 OK\r\nConnection: keep-alive",
                NOTHING,
                Body::UntilClose,
                false,
            ),
        ] {
            with_response(format!("HTTP/{head}\r\n\r\n").as_bytes(), asked, |parsed| {
                assert_eq!(
                    (parsed.body, parsed.keep_alive),
                    (body, keep_alive),
                    "{head}"
                );
                assert_eq!(parsed.is_interim(), head.contains("103"));
            });
        }
    }
}
