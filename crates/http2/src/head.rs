//! Heads of messages, and what makes them malformed (RFC 9113, sections 8.2 and 8.3).

use crate::fields::{Fields, is_token, is_value};
use crate::hpack::decoder::Sink;

/// Kind of a field block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Block {
    Request,
    Response,
    Trailers,
}

/// Place of a pseudo-field's value.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    start: u32,
    end: u32,
    is_there: bool,
}

/// Pseudo-fields of requests, in the order of their places.
#[derive(Clone, Copy)]
enum Pseudo {
    Method,
    Scheme,
    Authority,
    Path,
    Protocol,
}

const PSEUDO_FIELDS: usize = 5;

/// Size of a field in a list beside its bytes (RFC 9113, section 10.5.1).
const FIELD_BYTES: usize = 32;

/// Factor of the limit above which a list of fields is an error of the connection, and not of the stream.
const FAR_TOO_LARGE: usize = 4;

/// Fields about one connection of HTTP/1.1 (RFC 9113, section 8.2.2).
const CONNECTION_SPECIFIC: [&[u8]; 5] = [
    b"connection",
    b"keep-alive",
    b"proxy-connection",
    b"transfer-encoding",
    b"upgrade",
];

/// Memory that a head keeps for the next one, in bytes.
const KEPT_BYTES: usize = 4096;

/// Pseudo-fields of a request that nobody may put in a table of HPACK (RFC 7541, section 7.1.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SensitiveParts {
    /// True for `:path`.
    pub path: bool,
    /// True for `:authority`.
    pub authority: bool,
}

/// The head of a message, or its trailers.
#[derive(Debug)]
pub struct Head {
    /// Fields, without pseudo-fields.
    pub fields: Fields,
    /// Values of pseudo-fields, one after the other.
    text: String,
    places: [Place; PSEUDO_FIELDS],
    status: Option<u16>,
    content_length: Option<u64>,
    ended: bool,
    kind: Block,
    size: usize,
    most: usize,
    is_malformed: bool,
    sensitive: SensitiveParts,
}

impl Default for Head {
    fn default() -> Self {
        Head {
            fields: Fields::new(),
            text: String::new(),
            places: [Place::default(); PSEUDO_FIELDS],
            status: None,
            content_length: None,
            ended: false,
            kind: Block::Trailers,
            size: 0,
            most: 0,
            is_malformed: false,
            sensitive: SensitiveParts::default(),
        }
    }
}

impl Head {
    /// Makes the head of a response. For tests.
    #[doc(hidden)]
    pub fn new_response(status: u16, fields: Fields, ended: bool) -> Self {
        Head {
            fields,
            status: Some(status),
            ended,
            kind: Block::Response,
            ..Head::default()
        }
    }

    /// `:method`; empty in responses.
    pub fn method(&self) -> &str {
        self.pseudo(Pseudo::Method).unwrap_or_default()
    }

    /// Value of `:scheme`.
    pub fn scheme(&self) -> Option<&str> {
        self.pseudo(Pseudo::Scheme)
    }

    /// Value of `:authority`.
    pub fn authority(&self) -> Option<&str> {
        self.pseudo(Pseudo::Authority)
    }

    /// `:path`, which a plain CONNECT has not.
    pub fn path(&self) -> Option<&str> {
        self.pseudo(Pseudo::Path)
    }

    /// Pseudo-fields that are sensitive, as the peer says.
    pub fn sensitive(&self) -> SensitiveParts {
        self.sensitive
    }

    /// `:protocol` (RFC 8441).
    pub fn protocol(&self) -> Option<&str> {
        self.pseudo(Pseudo::Protocol)
    }

    /// `:status`; 0 in requests and trailers.
    pub fn status(&self) -> u16 {
        self.status.unwrap_or(0)
    }

    /// Length of the content, if the message says it.
    pub fn content_length(&self) -> Option<u64> {
        self.content_length
    }

    /// True if nothing follows in the stream.
    pub fn has_ended(&self) -> bool {
        self.ended
    }

    fn pseudo(&self, name: Pseudo) -> Option<&str> {
        let place = self
            .places
            .get(name as usize)
            .filter(|place| place.is_there)?;
        self.text.get(place.start as usize..place.end as usize)
    }

    /// Clears the head, and prepares it for a block of this kind with at most `most` bytes.
    pub(crate) fn begin_block(&mut self, kind: Block, ended: bool, most: usize) {
        self.fields.clear();
        self.text.clear();
        self.places = [Place::default(); PSEUDO_FIELDS];
        self.status = None;
        self.content_length = None;
        self.ended = ended;
        self.kind = kind;
        self.size = 0;
        self.most = most;
        self.is_malformed = false;
        self.sensitive = SensitiveParts::default();
    }

    /// True if it is small enough to be kept for another block.
    pub(crate) fn is_worth_keeping(&self) -> bool {
        self.fields.is_worth_keeping() && self.text.capacity() <= KEPT_BYTES
    }

    pub(crate) fn mark_malformed(&mut self) {
        self.is_malformed = true;
    }

    /// True if the block was larger than it may be. Its fields are not all there.
    pub(crate) fn is_too_large(&self) -> bool {
        self.size > self.most
    }

    /// True if it is so large that the peer means harm.
    pub(crate) fn is_far_too_large(&self) -> bool {
        self.size > self.most.saturating_mul(FAR_TOO_LARGE)
    }

    /// Looks at the whole. Returns true if the message is a proper one.
    pub(crate) fn finish_block(&mut self) -> bool {
        let is_connect = self.method() == "CONNECT";
        let has = |name| self.pseudo(name).is_some();
        let is_whole = match self.kind {
            Block::Trailers => self.ended,
            // A switch of protocols is none of HTTP/2 (RFC 9113, section 8.6).
            Block::Response => self.status.is_some_and(|status| {
                status != 101 && !((100..200).contains(&status) && self.ended)
            }),
            Block::Request if is_connect && !has(Pseudo::Protocol) => {
                has(Pseudo::Authority) && !has(Pseudo::Scheme) && !has(Pseudo::Path)
            }
            Block::Request => {
                let protocol_fits = is_connect || !has(Pseudo::Protocol);
                has(Pseudo::Method) && has(Pseudo::Scheme) && has(Pseudo::Path) && protocol_fits
            }
        };
        is_whole && !self.is_malformed
    }

    /// Takes a pseudo-field; false if it is malformed.
    fn take_pseudo(&mut self, name: &[u8], value: &[u8]) -> bool {
        if !self.fields.is_empty() {
            return false;
        }
        let (place, is_valid) = match (self.kind, name) {
            (Block::Response, b":status") => {
                let status = parse_status(value);
                return self.status.is_none() && {
                    self.status = status;
                    status.is_some()
                };
            }
            (Block::Request, b":method") => {
                let is_token = value.iter().all(|byte| is_token(*byte));
                (Pseudo::Method, is_token)
            }
            (Block::Request, b":scheme") => (Pseudo::Scheme, is_scheme(value)),
            (Block::Request, b":authority") => (Pseudo::Authority, true),
            (Block::Request, b":path") => (Pseudo::Path, true),
            (Block::Request, b":protocol") => {
                let is_token = value.iter().all(|byte| is_token(*byte));
                (Pseudo::Protocol, is_token)
            }
            _ => return false,
        };
        // Whoever reads them takes text.
        let Some(text) = std::str::from_utf8(value)
            .ok()
            .filter(|text| is_valid && !text.is_empty() && text.is_ascii() && is_value(value))
        else {
            return false;
        };
        let start = self.text.len() as u32;
        let Some(known) = self.places.get_mut(place as usize) else {
            return false;
        };
        if known.is_there {
            return false;
        }
        self.text.push_str(text);
        *known = Place {
            start,
            end: self.text.len() as u32,
            is_there: true,
        };
        true
    }

    /// Looks at a field; false if it is malformed.
    fn check_field(&mut self, name: &[u8], value: &[u8]) -> bool {
        let is_name = |byte: &u8| is_token(*byte) && !byte.is_ascii_uppercase();
        if name.is_empty() || !name.iter().all(is_name) || !is_value(value) {
            return false;
        }
        match name {
            b"te" => value.eq_ignore_ascii_case(b"trailers"),
            b"content-length" if self.kind != Block::Trailers => {
                let length = parse_length(value);
                let known = std::mem::replace(&mut self.content_length, length);
                length.is_some() && (known.is_none() || known == length)
            }
            _ => !CONNECTION_SPECIFIC.contains(&name),
        }
    }
}

impl Sink for Head {
    fn take_field(&mut self, name: &[u8], value: &[u8], is_sensitive: bool) {
        self.size = self
            .size
            .saturating_add(name.len() + value.len() + FIELD_BYTES);
        // A faulty head is not looked at any further, but the decoder must see all of it.
        if self.is_malformed || self.is_too_large() {
            return;
        }
        let is_fine = match name.first() {
            Some(b':') => {
                self.sensitive.path |= is_sensitive && name == b":path";
                self.sensitive.authority |= is_sensitive && name == b":authority";
                self.take_pseudo(name, value)
            }
            _ => {
                let is_fine = self.check_field(name, value);
                if is_fine {
                    self.fields.push_checked(name, &[value]);
                    if is_sensitive {
                        self.fields.mark_last_sensitive();
                    }
                }
                is_fine
            }
        };
        self.is_malformed |= !is_fine;
    }

    fn is_full(&self) -> bool {
        self.is_far_too_large()
    }

    fn most_bytes(&self) -> usize {
        self.most.saturating_mul(FAR_TOO_LARGE)
    }
}

fn parse_status(value: &[u8]) -> Option<u16> {
    let digits = value.len() == 3 && value.iter().all(u8::is_ascii_digit);
    let status = digits.then(|| std::str::from_utf8(value).ok()?.parse().ok())??;
    (100..=999).contains(&status).then_some(status)
}

/// A length (RFC 9110, section 8.6): digits, and nothing else.
fn parse_length(value: &[u8]) -> Option<u64> {
    let digits = !value.is_empty() && value.iter().all(u8::is_ascii_digit);
    digits.then(|| std::str::from_utf8(value).ok()?.parse().ok())?
}

/// True if it is a scheme of a URI (RFC 3986, section 3.1).
fn is_scheme(value: &[u8]) -> bool {
    let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.');
    value.first().is_some_and(u8::is_ascii_alphabetic) && value.iter().all(is_part)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(kind: Block, ended: bool, fields: &[(&str, &str)]) -> (Head, bool) {
        let mut head = Head::default();
        head.begin_block(kind, ended, 1000);
        for (name, value) in fields {
            head.take_field(name.as_bytes(), value.as_bytes(), false);
        }
        let is_fine = head.finish_block();
        (head, is_fine)
    }

    const GET: [(&str, &str); 4] = [
        (":method", "GET"),
        (":scheme", "http"),
        (":authority", "test"),
        (":path", "/a?b=\"<>`{}"),
    ];

    #[test]
    fn a_request_has_its_pseudo_fields_and_others() {
        let (head, is_fine) = head(Block::Request, true, &[&GET[..], &[("x", "y")]].concat());
        assert!(is_fine && head.has_ended());
        assert_eq!((head.method(), head.scheme()), ("GET", Some("http")));
        assert_eq!(head.path(), Some("/a?b=\"<>`{}"));
        assert_eq!(head.authority(), Some("test"));
        assert_eq!(head.fields.text(), b"x: y\r\n");
        assert_eq!((head.status(), head.protocol()), (0, None));
    }

    #[test]
    fn lengths_are_numbers_and_agree() {
        let with = |lengths: &[&str]| {
            let mut fields = GET.to_vec();
            fields.extend(lengths.iter().map(|length| ("content-length", *length)));
            let (head, is_fine) = head(Block::Request, false, &fields);
            (is_fine, head.content_length())
        };
        assert_eq!(with(&["12"]), (true, Some(12)));
        assert_eq!(with(&["12", "12"]), (true, Some(12)));
        for wrong in [
            &["12", "13"][..],
            &["+1"],
            &["1, 1"],
            &[""],
            &["99999999999999999999"],
        ] {
            assert!(!with(wrong).0, "{wrong:?}");
        }
    }

    #[test]
    fn a_list_that_is_too_large_is_known_and_not_kept() {
        let large = "x".repeat(900);
        let (head, is_fine) = head(
            Block::Request,
            true,
            &[&GET[..], &[("x", &large)], &[("y", "z")]].concat(),
        );
        assert!(is_fine && head.is_too_large() && !head.is_far_too_large());
        assert!(head.fields.is_empty());
    }
}
