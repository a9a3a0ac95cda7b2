//! Heads of responses: from bytes to a checked response.

use httparse::{Header, Status};

use super::error::HeadError;
use super::framing::{FramingFacts, Meaning, Version, list_contains};
use super::head::{Fields, Limits, MAX_FIELDS, ParseOutcome, check_line_ends};
use crate::message::{Body, FieldSet, values};

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
    /// True if the member lets the connection go on after this response.
    pub keep_alive: bool,
    /// Lines to copy from, without the empty line at the end: those of the head as it came, or of the fields alone if
    /// it came over HTTP/2.
    pub(super) raw: &'a [u8],
    pub(super) fields: &'a [Header<'a>],
    pub(super) meaning: Meaning<'a>,
    /// The content coding that its body gets here.
    coding: Option<&'static str>,
    /// True if `Vary` is to name `Accept-Encoding`.
    varies: bool,
    /// The value of an `ETag` that holds for the content only, not for its bytes as sent.
    weakened: Option<&'a [u8]>,
    /// Fields that nobody may put in a table of HPACK, as the member says (RFC 7541, section 7.1.3).
    sensitive: FieldSet,
}

impl<'a> ResponseHead<'a> {
    /// Parses the head at the start of `read`, the answer to a request that `asked`.
    ///
    /// An error is final: answer the client with 502 and close the member's connection.
    pub fn parse(
        read: &'a [u8],
        limits: Limits,
        asked: FramingFacts,
        fields: &'a mut Fields<'a>,
    ) -> Result<ParseOutcome<Self>, HeadError> {
        match read.first() {
            None => return Ok(ParseOutcome::Partial),
            Some(b'\r' | b'\n') => return Err(HeadError::LeadingLine),
            Some(_) => {}
        }
        let mut parsed = httparse::Response::new(&mut []);
        let room = limits.max_fields.min(MAX_FIELDS);
        let room = fields.0.get_mut(..room).unwrap_or_default();
        let parser = httparse::ParserConfig::default();
        let len = match parser.parse_response_with_uninit_headers(&mut parsed, read, room) {
            Ok(Status::Complete(len)) if len <= limits.max_bytes => len,
            Ok(Status::Partial) if read.len() < limits.max_bytes => {
                return Ok(ParseOutcome::Partial);
            }
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
        // What follows in spite of that is not to be taken for the next response.
        let is_odd = status == 204 && meaning.announces_body();
        meaning.settle_response(fields, status);
        let ends_connection = body == Body::UntilClose || status == 101 || is_odd;
        let raw = raw.get(..len.saturating_sub(2)).unwrap_or_default();
        Ok(ParseOutcome::Head(Self {
            len,
            status,
            version,
            body,
            keep_alive: meaning.keep_alive(version) && !ends_connection,
            raw,
            fields,
            meaning,
            coding: None,
            varies: false,
            weakened: None,
            sensitive: FieldSet::default(),
        }))
    }

    /// Reads the head of a stream of HTTP/2, the answer to a request that `asked`, by the same rules.
    ///
    /// An error is final, as with [`ResponseHead::parse`], but only for the stream.
    pub(crate) fn of_stream(
        head: &'a evenkeel_http2::Head,
        limits: Limits,
        asked: FramingFacts,
        room: &'a mut Fields<'a>,
    ) -> Result<Self, HeadError> {
        let (status, raw) = (head.status(), head.fields.text());
        if raw.len().saturating_add(BARE_HEAD.len()) > limits.max_bytes {
            return Err(HeadError::TooLarge);
        }
        if head.fields.len() > limits.max_fields {
            return Err(HeadError::TooManyFields);
        }
        let fields = room.fill(head.fields.iter());
        let fields = fields.ok_or(HeadError::TooManyFields)?;
        let version = Version::Http2;
        let mut meaning = Meaning::of_response(raw, fields, version)?;
        let is_interim = status < 200;
        if !is_interim && meaning.content_length.is_none() {
            // The frames say where the body ends, which HTTP/1 must be told.
            let has_none = asked.head || matches!(status, 204 | 304);
            match head.has_ended() {
                _ if has_none => {}
                true => meaning.content_length = Some(0),
                false => meaning.chunked = true,
            }
            meaning.respell_framing = true;
        }
        let body = meaning.response_body(status, asked)?;
        meaning.settle_response(fields, status);
        let mut sensitive = FieldSet::default();
        for (index, (_, _, is_sensitive)) in head.fields.marked().enumerate() {
            if is_sensitive {
                sensitive.insert(index);
            }
        }
        Ok(Self {
            len: 0,
            status,
            version,
            body,
            keep_alive: true,
            raw,
            fields,
            meaning,
            coding: None,
            varies: false,
            weakened: None,
            sensitive,
        })
    }

    /// True if another response to the same request follows (1xx, but not 101).
    pub fn is_interim(&self) -> bool {
        self.status < 200 && self.status != 101
    }

    /// True if the member authenticates connections, rather than requests (NTLM, Negotiate).
    pub(crate) fn authenticates_connection(&self) -> bool {
        self.meaning.authenticates_connection
    }

    /// The fields that are passed on, but for those that frame the body.
    pub(crate) fn kept_fields(&self) -> impl Iterator<Item = &'a Header<'a>> {
        self.marked_fields().map(|(field, _)| field)
    }

    /// The fields that are passed on, but for those that frame the body, and whether each is sensitive.
    pub(crate) fn marked_fields(&self) -> impl Iterator<Item = (&'a Header<'a>, bool)> {
        let mut left_out = self.meaning.dropped;
        left_out.add_all(self.meaning.framing_fields);
        let sensitive = self.sensitive;
        let fields = self.fields.iter().enumerate();
        let fields = fields.filter(move |(index, _)| !left_out.contains(*index));
        fields.map(move |(index, field)| (field, sensitive.contains(index)))
    }

    /// The length that it says the body has.
    pub(crate) fn content_length(&self) -> Option<u64> {
        self.meaning.content_length
    }

    /// Values of the fields called `name` (in any case), in order.
    pub fn values(&self, name: &str) -> impl Iterator<Item = &'a [u8]> {
        values(self.fields, name)
    }

    /// True if a field called `name` (in any case) lists `element`, in any case.
    pub(crate) fn field_lists(&self, name: &str, element: &[u8]) -> bool {
        self.values(name).any(|value| list_contains(value, element))
    }

    /// Says that the response depends on the codings that the client accepts.
    pub(crate) fn vary_by_encoding(&mut self) {
        let is_said = self.kept_fields().any(|field| {
            field.name.eq_ignore_ascii_case("vary")
                && (list_contains(field.value, b"*")
                    || list_contains(field.value, b"accept-encoding"))
        });
        self.varies = !is_said;
    }

    /// The body will be sent with another content coding, and so in chunks. What was said of its bytes
    /// does not hold any more (RFC 9110, sections 8.8.1 and 14.3; RFC 9530).
    pub(crate) fn set_coding(&mut self, coding: &'static str) {
        self.coding = Some(coding);
        self.body = Body::Chunked;
        self.meaning.dropped.add_all(self.meaning.framing_fields);
        self.meaning.content_length = None;
        self.meaning.chunked = true;
        self.meaning.respell_framing = true;
        self.weaken_etag();
        for name in OF_BYTES {
            self.leave_out(name);
        }
    }

    /// Says that the bytes of the response need not be those that its `ETag` is for.
    pub(crate) fn weaken_etag(&mut self) {
        let mut fields = self.fields.iter().enumerate();
        let etag = fields.find(|(index, field)| {
            field.name.eq_ignore_ascii_case("etag") && !self.meaning.dropped.contains(*index)
        });
        if let Some((index, field)) = etag
            && !field.value.starts_with(b"W/")
        {
            self.weakened = Some(field.value);
            self.meaning.dropped.insert(index);
        }
    }

    /// Fields that are said here, with their values in two parts.
    pub(crate) fn added_fields(&self) -> impl Iterator<Item = (&'static str, [&[u8]; 2])> {
        let coding = self
            .coding
            .map(|coding| ("Content-Encoding", [coding.as_bytes(), b""]));
        let vary = self
            .varies
            .then_some(("Vary", [&b"Accept-Encoding"[..], b""]));
        let etag = self.weakened.map(|value| ("ETag", [&b"W/"[..], value]));
        coding.into_iter().chain(vary).chain(etag)
    }

    /// Returns all fields of the response, in order.
    pub(crate) fn all_fields(&self) -> &'a [Header<'a>] {
        self.fields
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

/// Head of a response without fields, as HTTP/1.1 writes it: it counts in the size of a head of HTTP/2.
const BARE_HEAD: &str = "HTTP/1.1 200 \r\n\r\n";

/// Fields about the bytes of a body as they were sent.
const OF_BYTES: [&str; 6] = [
    "accept-ranges",
    "content-encoding",
    "content-md5",
    "content-digest",
    "digest",
    "repr-digest",
];

#[cfg(test)]
mod tests {
    use super::HeadError as E;
    use super::*;

    const LIMITS: Limits = Limits {
        max_bytes: 1024,
        max_fields: 16,
    };
    const NOTHING: FramingFacts = FramingFacts {
        head: false,
        upgrade: false,
    };

    fn with_response<T>(
        read: &[u8],
        asked: FramingFacts,
        see: impl FnOnce(ResponseHead<'_>) -> T,
    ) -> T {
        let mut fields = Fields::new();
        match ResponseHead::parse(read, LIMITS, asked, &mut fields) {
            Ok(ParseOutcome::Head(head)) => see(head),
            other => panic!("{:?}: {other:?}", read.escape_ascii().to_string()),
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

    /// A field that a route takes out is not said to the client, so the field does not count.
    #[test]
    fn that_a_response_varies_is_said_once() {
        let varies = |vary: &str, taken_out: bool| {
            let read = format!("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n{vary}\r\n");
            with_response(read.as_bytes(), NOTHING, |mut head| {
                if taken_out {
                    head.leave_out("vary");
                }
                head.vary_by_encoding();
                head.added_fields().any(|(name, _)| name == "Vary")
            })
        };
        assert!(varies("", false));
        assert!(varies("Vary: Cookie\r\n", false));
        assert!(!varies("Vary: Cookie, ACCEPT-encoding\r\n", false));
        assert!(!varies("vary: *\r\n", false));
        assert!(varies("Vary: Accept-Encoding\r\n", true));
    }

    #[test]
    fn ambiguous_responses_are_refused() {
        for &(name, head, error) in REFUSED_RESPONSES {
            let mut fields = Fields::new();
            let parsed = ResponseHead::parse(head.as_bytes(), LIMITS, NOTHING, &mut fields);
            assert_eq!(parsed.err(), Some(error), "{name}");
        }
    }

    /// Head of HTTP/1.1 that says the same as a head of HTTP/2.
    fn write_text(status: u16, lines: &[(&str, &str)], ended: bool, is_head: bool) -> String {
        let says_length = lines.iter().any(|(name, _)| *name == "content-length");
        let has_none = is_head || matches!(status, 100..=199 | 204 | 304);
        let framing = match ended {
            _ if says_length || has_none => "",
            true => "Content-Length: 0\r\n",
            false => "Transfer-Encoding: chunked\r\n",
        };
        let lines: String = lines
            .iter()
            .map(|(name, value)| format!("{name}: {value}\r\n"))
            .collect();
        format!("HTTP/1.1 {status} \r\n{lines}{framing}\r\n")
    }

    /// Everything that is known of a head, and the head that a client of HTTP/1 gets.
    fn describe(head: Result<ResponseHead<'_>, E>, version: Version) -> Result<String, E> {
        let head = head?;
        let client = super::super::forward::Client {
            version,
            keep_alive: true,
        };
        let mut out = Vec::new();
        let delivery = super::super::forward::write_response(&head, client, &mut out);
        let kept: Vec<_> = head.kept_fields().map(|field| field.name).collect();
        Ok(format!(
            "{:?} {:?} {delivery:?} {kept:?} {}",
            head.body,
            head.content_length(),
            out.escape_ascii()
        ))
    }

    #[test]
    fn a_head_of_http2_means_what_it_means_as_text() {
        let heads: &[&[(&str, &str)]] = &[
            &[],
            &[("content-length", "3"), ("server", "own")],
            &[("content-length", "0")],
            &[("content-length", "3"), ("content-length", "3")],
            &[("content-length", "03")],
            &[("content-length", "9223372036854775808")],
            &[("content-type", "text/plain"), ("x", ""), ("etag", "\"a\"")],
            &[
                ("proxy-authenticate", "Basic"),
                ("te", "trailers"),
                ("x", "y"),
            ],
            &[("www-authenticate", "NTLM"), ("x-forwarded-for", "1.2.3.4")],
            &[("x", "\u{e9}"), ("proxy-authenticate", "Basic")],
        ];
        for lines in heads {
            for status in [100, 103, 200, 204, 304, 404, 599] {
                for case in 0..8 {
                    let (ended, is_head) = (case & 1 != 0, case & 2 != 0);
                    let version = match case & 4 {
                        0 => Version::Http11,
                        _ => Version::Http10,
                    };
                    let asked = FramingFacts {
                        head: is_head,
                        upgrade: false,
                    };
                    let text = write_text(status, lines, ended, is_head);
                    let mut room = Fields::new();
                    let parsed = ResponseHead::parse(text.as_bytes(), LIMITS, asked, &mut room);
                    let parsed = parsed.map(|parsed| match parsed {
                        ParseOutcome::Head(head) => head,
                        ParseOutcome::Partial => unreachable!("it is whole"),
                    });
                    let mut fields = evenkeel_http2::Fields::new();
                    for (name, value) in *lines {
                        assert!(fields.push(name.as_bytes(), value.as_bytes()));
                    }
                    let head = evenkeel_http2::Head::new_response(status, fields, ended);
                    let mut room = Fields::new();
                    let read = ResponseHead::of_stream(&head, LIMITS, asked, &mut room);
                    assert_eq!(describe(read, version), describe(parsed, version), "{text}");
                }
            }
        }
    }

    #[test]
    fn a_head_of_http2_has_the_limits_of_http1() {
        let read = |lines: usize, value: usize| {
            let mut fields = evenkeel_http2::Fields::new();
            for _ in 0..lines {
                assert!(fields.push(b"x", "y".repeat(value).as_bytes()));
            }
            let head = evenkeel_http2::Head::new_response(200, fields, true);
            let mut room = Fields::new();
            ResponseHead::of_stream(&head, LIMITS, NOTHING, &mut room).err()
        };
        // A line has a name and five bytes more, and a head of LIMITS 17 beside its lines.
        assert_eq!(read(1, 1024 - 17 - 5), None);
        assert_eq!(read(1, 1024 - 17 - 4), Some(E::TooLarge));
        assert_eq!(read(16, 1), None);
        assert_eq!(read(17, 1), Some(E::TooManyFields));
    }

    #[test]
    fn a_switch_of_protocols_must_name_one() {
        let asked = FramingFacts {
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
        const HEAD: FramingFacts = FramingFacts {
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
