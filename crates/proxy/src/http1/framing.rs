//! Meaning of the fields of a head for this hop: how long the body is, whether the connection goes
//! on, and which fields end here.

use evenkeel_manager::config::fields::{is_same_name, plain_byte};
use httparse::Header;

use super::error::HeadError;
use crate::message::{Body, FieldSet};

/// Version of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// Version HTTP/1.0.
    Http10,
    /// Version HTTP/1.1.
    Http11,
    /// HTTP/2, whose heads do not come as bytes.
    Http2,
}

impl Version {
    pub(super) fn from_minor(minor: u8) -> Self {
        match minor {
            0 => Self::Http10,
            _ => Self::Http11,
        }
    }
}

/// Facts about a request on which the framing of its response depends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FramingFacts {
    /// `HEAD`: the response has no body.
    pub head: bool,
    /// A switch of protocols is offered, and a 101 allowed.
    pub upgrade: bool,
}

/// Names other than the usual ones that a `Connection` field may list. Each is looked
/// up among all fields, so the number is bounded.
const MAX_CONNECTION_NAMES: usize = 16;

/// Meaning of the fields of a head together.
#[derive(Debug, Default)]
pub(super) struct Meaning<'a> {
    pub host: Option<&'a str>,
    pub content_length: Option<u64>,
    pub chunked: bool,
    /// The head offers (request) or does (response) a switch of protocols.
    pub upgrades: bool,
    /// The client waits for 100 (Continue).
    pub expects_continue: bool,
    /// The client takes trailers.
    pub takes_trailers: bool,
    /// The connection is, or is to be, authenticated, rather than the request (NTLM, Negotiate).
    pub authenticates_connection: bool,
    /// The framing field is not spelt the usual way and is written anew.
    pub respell_framing: bool,
    /// Fields that are not passed on as they came.
    pub dropped: FieldSet,
    /// Field that frames the body.
    pub framing_fields: FieldSet,
    /// Fields that say who the client is.
    pub forwarded_fields: FieldSet,
    pub host_fields: FieldSet,
    connection: Connection,
    upgrade_fields: FieldSet,
    /// True if all protocols offered or switched to may pass.
    may_upgrade: bool,
    expect_fields: FieldSet,
}

/// Options of the `Connection` fields.
#[derive(Clone, Copy, Debug, Default)]
struct Connection {
    close: bool,
    keep_alive: bool,
    upgrade: bool,
    te: bool,
    /// Number of other names that are listed.
    names: usize,
}

impl<'a> Meaning<'a> {
    /// Collects what the fields of a request say, and refuses contradictions.
    pub(super) fn of_request(
        raw: &[u8],
        fields: &'a [Header<'a>],
        version: Version,
    ) -> Result<Self, HeadError> {
        let mut meaning = Self::default();
        for (index, field) in fields.iter().enumerate() {
            match Kind::of_name(field.name.as_bytes()) {
                Kind::Other => {}
                Kind::AliasedFraming => return Err(HeadError::AliasedFraming),
                Kind::Host if meaning.host.is_some() => return Err(HeadError::RepeatedHost),
                Kind::Host => {
                    let host = std::str::from_utf8(field.value).ok();
                    let host = host.filter(|host| is_authority(host.as_bytes()));
                    meaning.host = Some(host.ok_or(HeadError::InvalidHost)?);
                    meaning.host_fields.insert(index);
                }
                Kind::Expect => {
                    // RFC 9110, section 10.1.1: HTTP/1.0 has no expectations.
                    if version != Version::Http10 {
                        if !field.value.eq_ignore_ascii_case(b"100-continue") {
                            return Err(HeadError::Expectation);
                        }
                        meaning.expects_continue = true;
                    }
                    meaning.expect_fields.insert(index);
                }
                Kind::Te => {
                    meaning.takes_trailers |= list_contains(field.value, b"trailers");
                    meaning.dropped.insert(index);
                }
                Kind::Forwarded => meaning.forwarded_fields.insert(index),
                kind => meaning.collect_shared(raw, kind, index, field)?,
            }
        }
        if version != Version::Http10 && meaning.host.is_none() {
            return Err(HeadError::MissingHost);
        }
        meaning.check_framing(version)?;
        Ok(meaning)
    }

    /// Collects what the fields of a response say, and refuses contradictions.
    pub(super) fn of_response(
        raw: &[u8],
        fields: &'a [Header<'a>],
        version: Version,
    ) -> Result<Self, HeadError> {
        let mut meaning = Self::default();
        for (index, field) in fields.iter().enumerate() {
            let kind = Kind::of_name(field.name.as_bytes());
            if kind == Kind::ContentLength
                && let Some(known) = meaning.content_length
                && content_length(field.value) == Ok(known)
            {
                // RFC 9110, section 8.6: the same once more may be taken for once.
                meaning.framing_fields.insert(index);
                meaning.respell_framing = true;
                continue;
            }
            meaning.collect_shared(raw, kind, index, field)?;
        }
        meaning.check_framing(version)?;
        Ok(meaning)
    }

    /// Collects what means the same in both directions.
    fn collect_shared(
        &mut self,
        raw: &[u8],
        kind: Kind,
        index: usize,
        field: &Header<'_>,
    ) -> Result<(), HeadError> {
        match kind {
            Kind::ContentLength => {
                if self.content_length.is_some() {
                    return Err(HeadError::RepeatedContentLength);
                }
                self.content_length = Some(content_length(field.value)?);
                self.respell_framing |=
                    matches!(field.value, [b'0', _, ..]) || !is_plain_line(raw, field);
                self.framing_fields.insert(index);
            }
            Kind::TransferEncoding => {
                if self.chunked {
                    return Err(HeadError::InvalidTransferEncoding);
                }
                check_chunked(field.value)?;
                self.chunked = true;
                self.respell_framing |= field.value != b"chunked" || !is_plain_line(raw, field);
                self.framing_fields.insert(index);
            }
            Kind::Connection => {
                self.connection.add_value(field.value)?;
                self.dropped.insert(index);
            }
            Kind::HopByHop => self.dropped.insert(index),
            Kind::Authentication => {
                self.authenticates_connection |= names_connection_scheme(field.value);
            }
            Kind::Upgrade => {
                let first = self.upgrade_fields.is_empty();
                self.may_upgrade = (first || self.may_upgrade) && may_upgrade_to(field.value);
                self.upgrade_fields.insert(index);
            }
            _ => {}
        }
        Ok(())
    }

    fn check_framing(&self, version: Version) -> Result<(), HeadError> {
        match (self.chunked, self.content_length) {
            (true, Some(_)) => Err(HeadError::LengthAndTransferEncoding),
            (true, None) if version == Version::Http10 => Err(HeadError::TransferEncodingInHttp10),
            _ => Ok(()),
        }
    }

    /// Returns the framing of a request's body, as the fields say it.
    pub(super) fn body_framing(&self) -> Body {
        match self.content_length {
            _ if self.chunked => Body::Chunked,
            Some(length) => Body::Length(length),
            None => Body::None,
        }
    }

    /// Framing of a response's body.
    pub(super) fn response_body(
        &self,
        status: u16,
        asked: FramingFacts,
    ) -> Result<Body, HeadError> {
        let switches = asked.upgrade && self.may_upgrade && self.connection.upgrade;
        match status {
            101 if !switches => Err(HeadError::UnexpectedUpgrade),
            100..=199 if self.announces_body() => Err(HeadError::BodyNotAllowed),
            100..=199 | 204 | 304 => Ok(Body::None),
            _ if asked.head => Ok(Body::None),
            _ if self.chunked => Ok(Body::Chunked),
            _ => Ok(self.content_length.map_or(Body::UntilClose, Body::Length)),
        }
    }

    /// True if there is framing for a body that has bytes.
    pub(super) fn announces_body(&self) -> bool {
        self.chunked || self.content_length.is_some_and(|length| length > 0)
    }

    /// True if the sender lets the connection go on.
    pub(super) fn keep_alive(&self, version: Version) -> bool {
        !self.connection.close && (version != Version::Http10 || self.connection.keep_alive)
    }

    /// Decides which fields of a request end here.
    pub(super) fn settle_request(
        &mut self,
        fields: &[Header<'_>],
        is_get: bool,
        body: Body,
        version: Version,
    ) {
        let in_stream = version == Version::Http2;
        self.takes_trailers &= self.connection.te || in_stream;
        self.expects_continue &= !matches!(body, Body::None | Body::Length(0));
        self.upgrades = is_get
            && body == Body::None
            && version != Version::Http10
            && (self.connection.upgrade || in_stream)
            && self.may_upgrade;
        if !self.expects_continue {
            self.dropped.add_all(self.expect_fields);
        }
        self.settle_shared(fields);
    }

    /// Decides which fields of a response end here.
    pub(super) fn settle_response(&mut self, fields: &[Header<'_>], status: u16) {
        self.upgrades = status == 101;
        if matches!(status, 100..=199 | 204) {
            // None of it may be there (RFC 9110, section 8.6), and all ends with the head whatever is (RFC 9112,
            // section 6.3).
            self.content_length = None;
            self.chunked = false;
            self.respell_framing = false;
            self.dropped.add_all(self.framing_fields);
        }
        self.settle_shared(fields);
    }

    fn settle_shared(&mut self, fields: &[Header<'_>]) {
        if !self.upgrades {
            self.dropped.add_all(self.upgrade_fields);
        }
        if self.respell_framing {
            self.dropped.add_all(self.framing_fields);
        }
        if self.connection.names > 0 {
            self.drop_named(fields);
        }
    }

    /// Drops the fields that a `Connection` field names.
    fn drop_named(&mut self, fields: &[Header<'_>]) {
        for connection in fields {
            if Kind::of_name(connection.name.as_bytes()) != Kind::Connection {
                continue;
            }
            for name in list_elements(connection.value) {
                for (index, field) in fields.iter().enumerate() {
                    // The Upgrade field is always named, and was decided on.
                    let decided = self.upgrade_fields.contains(index);
                    if field.name.as_bytes().eq_ignore_ascii_case(name) && !decided {
                        self.dropped.insert(index);
                    }
                }
            }
        }
    }
}

impl Connection {
    fn add_value(&mut self, value: &[u8]) -> Result<(), HeadError> {
        for option in list_elements(value) {
            if option.eq_ignore_ascii_case(b"close") {
                self.close = true;
            } else if option.eq_ignore_ascii_case(b"keep-alive") {
                self.keep_alive = true;
            } else if option.eq_ignore_ascii_case(b"upgrade") {
                self.upgrade = true;
            } else if option.eq_ignore_ascii_case(b"te") {
                self.te = true;
            } else {
                self.add_name(option)?;
            }
        }
        Ok(())
    }

    /// A name that is protected is refused: a client could otherwise take away what a
    /// proxy in front of this one has added, or how the body is framed.
    fn add_name(&mut self, option: &[u8]) -> Result<(), HeadError> {
        self.names += 1;
        if self.names > MAX_CONNECTION_NAMES || !is_token(option) {
            return Err(HeadError::InvalidConnection);
        }
        match Kind::of_name(option) {
            Kind::Host
            | Kind::ContentLength
            | Kind::TransferEncoding
            | Kind::AliasedFraming
            | Kind::Expect
            | Kind::Forwarded => Err(HeadError::ProtectedByConnection),
            _ => Ok(()),
        }
    }
}

/// The fields that this codec knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Passed on unread.
    Other,
    Host,
    Connection,
    ContentLength,
    TransferEncoding,
    /// `Content_Length` and the like: another field to some, the same one to those that
    /// map names to variables.
    AliasedFraming,
    Expect,
    Upgrade,
    Te,
    /// Never passed on.
    HopByHop,
    /// `Forwarded` and `X-Forwarded-…`.
    Forwarded,
    /// `Authorization`, and `WWW-Authenticate`.
    Authentication,
}

impl Kind {
    /// True if frames and pseudo-fields of HTTP/2 stand for the field, or if it is none of HTTP/2.
    pub(crate) fn is_for_frames(self) -> bool {
        matches!(
            self,
            Kind::Host
                | Kind::Connection
                | Kind::ContentLength
                | Kind::TransferEncoding
                | Kind::Upgrade
                | Kind::Te
                | Kind::HopByHop
        )
    }

    /// Looks at the length and the first letter: most names are told apart by these alone.
    #[inline]
    pub(crate) fn of_name(name: &[u8]) -> Self {
        let is = |known: &[u8]| name.eq_ignore_ascii_case(known);
        // The names all begin with a letter, of which the bit says whether it is a small one.
        match (name.len(), name.first().map_or(0, |first| first | 0x20)) {
            (2, b't') if is(b"te") => Self::Te,
            (4, b'h') if is(b"host") => Self::Host,
            (6, b'e') if is(b"expect") => Self::Expect,
            (7, b'u') if is(b"upgrade") => Self::Upgrade,
            (9, b'f') if is(b"forwarded") => Self::Forwarded,
            (10, b'c') if is(b"connection") => Self::Connection,
            (10, b'k') if is(b"keep-alive") => Self::HopByHop,
            (13, b'a') if is(b"authorization") => Self::Authentication,
            (14, b'c') if is(b"content-length") => Self::ContentLength,
            (14, b'c') if is_same_name(name, "content-length") => Self::AliasedFraming,
            (16, b'p') if is(b"proxy-connection") => Self::HopByHop,
            (16, b'w') if is(b"www-authenticate") => Self::Authentication,
            (17, b't') if is(b"transfer-encoding") => Self::TransferEncoding,
            (17, b't') if is_same_name(name, "transfer-encoding") => Self::AliasedFraming,
            (18, b'p') if is(b"proxy-authenticate") => Self::HopByHop,
            (19, b'p') if is(b"proxy-authorization") => Self::HopByHop,
            (25, b'p') if is(b"proxy-authentication-info") => Self::HopByHop,
            (13.., b'x') if is_x_forwarded(name) => Self::Forwarded,
            _ => Self::Other,
        }
    }
}

/// True if a name begins with `x-forwarded-`, in any spelling that servers map to the same variable.
#[inline]
fn is_x_forwarded(name: &[u8]) -> bool {
    const PREFIX: &[u8] = b"x-forwarded-";
    name.len() > PREFIX.len()
        && PREFIX
            .iter()
            .zip(name)
            .all(|(&known, &byte)| plain_byte(byte) == known)
}

/// Byte at which a field's line starts in its head.
pub(super) fn line_offset(raw: &[u8], field: &Header<'_>) -> usize {
    (field.name.as_ptr().addr()).wrapping_sub(raw.as_ptr().addr())
}

/// True if a line is `name: value` with one space and nothing else. Whitespace around a value is
/// allowed and means nothing, but not every server has taken it for nothing.
fn is_plain_line(raw: &[u8], field: &Header<'_>) -> bool {
    let after_name = line_offset(raw, field).saturating_add(field.name.len());
    let rest = raw.get(after_name..).unwrap_or_default();
    let end = field.value.len() + 2;
    rest.starts_with(b": ") && rest.get(end..end + 2) == Some(b"\r\n")
}

fn content_length(value: &[u8]) -> Result<u64, HeadError> {
    // 63 bits: a server that counts in signed numbers must agree.
    const MAX: u64 = i64::MAX as u64;
    let mut length: u64 = 0;
    if value.is_empty() || value.len() > 19 {
        return Err(HeadError::InvalidContentLength);
    }
    for &byte in value {
        if !byte.is_ascii_digit() {
            return Err(HeadError::InvalidContentLength);
        }
        // Nineteen digits fit into 64 bits.
        length = length * 10 + u64::from(byte - b'0');
    }
    if length > MAX {
        return Err(HeadError::InvalidContentLength);
    }
    Ok(length)
}

/// Accepts `chunked` alone; says whether anything else is unknown or malformed.
fn check_chunked(value: &[u8]) -> Result<(), HeadError> {
    if value.eq_ignore_ascii_case(b"chunked") {
        return Ok(());
    }
    let mut codings = value.rsplit(|&byte| byte == b',').map(<[u8]>::trim_ascii);
    let ends_in_chunked = codings
        .next()
        .is_some_and(|last| last.eq_ignore_ascii_case(b"chunked"));
    if ends_in_chunked && codings.all(|c| is_token(c) && !c.eq_ignore_ascii_case(b"chunked")) {
        Err(HeadError::UnknownTransferCoding)
    } else {
        Err(HeadError::InvalidTransferEncoding)
    }
}

/// True if credentials, or one of several challenges, are of a scheme by which a server knows the client for the rest
/// of the connection (RFC 4559, section 6; MS-NTHT).
fn names_connection_scheme(value: &[u8]) -> bool {
    list_elements(value).any(|element| {
        let scheme = element
            .split(u8::is_ascii_whitespace)
            .next()
            .unwrap_or_default();
        let is = |known: &&[u8]| scheme.eq_ignore_ascii_case(known);
        [&b"ntlm"[..], b"negotiate", b"kerberos"].iter().any(is)
    })
}

/// True if an offer to upgrade is passed on. An offer of HTTP/2 is not: requests in that connection
/// would pass unseen. Nor is an offer of TLS, which ends at the balancer.
fn may_upgrade_to(value: &[u8]) -> bool {
    let mut offered = list_elements(value).peekable();
    offered.peek().is_some()
        && offered.all(|protocol| {
            let begins = |with: &[u8]| {
                let start = protocol.get(..with.len());
                start.is_some_and(|start| start.eq_ignore_ascii_case(with))
            };
            !begins(b"h2") && !begins(b"http/") && !begins(b"tls/")
        })
}

/// True if a comma-separated list has this element, in any case.
pub(super) fn list_contains(value: &[u8], wanted: &[u8]) -> bool {
    list_elements(value).any(|element| element.eq_ignore_ascii_case(wanted))
}

/// Elements of a comma-separated list, empty ones left out (RFC 9110, section 5.6.1).
fn list_elements(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value
        .split(|&byte| byte == b',')
        .map(<[u8]>::trim_ascii)
        .filter(|element| !element.is_empty())
}

/// True if the bytes are a `token` (RFC 9110, section 5.6.2).
pub(super) fn is_token(bytes: &[u8]) -> bool {
    !bytes.is_empty() && bytes.iter().all(|&byte| is_token_byte(byte))
}

pub(super) fn is_token_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// True if the bytes are `host[:port]` (RFC 3986, section 3.2), with a host and without user
/// information.
pub(super) fn is_authority(bytes: &[u8]) -> bool {
    let (host, port) = match bytes {
        [b'[', rest @ ..] => {
            let Some(end) = rest.iter().position(|&byte| byte == b']') else {
                return false;
            };
            let (address, port) = rest.split_at(end);
            let valid = |&byte: &u8| byte.is_ascii_hexdigit() || matches!(byte, b':' | b'.');
            if address.is_empty() || !address.iter().all(valid) {
                return false;
            }
            (address, port.get(1..).unwrap_or_default())
        }
        _ => {
            let end = bytes.iter().position(|&byte| byte == b':');
            let (host, port) = bytes.split_at(end.unwrap_or(bytes.len()));
            if !host.iter().all(|&byte| is_host_byte(byte)) {
                return false;
            }
            (host, port)
        }
    };
    let port_valid = match port {
        [] => true,
        [b':', digits @ ..] => digits.len() <= 5 && digits.iter().all(u8::is_ascii_digit),
        _ => false,
    };
    !host.is_empty() && port_valid
}

/// Unreserved bytes, delimiters of a component, and the percent sign.
fn is_host_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=%".contains(&byte)
}
