//! Heads of requests: from bytes to a checked [`Request`].

#[cfg(test)]
mod tests;

use httparse::{Header, Status};

use super::error::HeadError;
use super::framing::{self, FramingFacts, Meaning, Version};
use super::head::{Fields, Limits, MAX_FIELDS, ParseOutcome, check_line_ends};
use crate::message::{Body, FieldSet, Raw, Request};

/// A request head that everybody reads alike.
///
/// ```
/// use evenkeel_proxy::http1::{Body, Fields, Limits, ParseOutcome, RequestHead};
///
/// let read = b"POST /orders HTTP/1.1\r\nHost: shop\r\nContent-Length: 3\r\n\r\nabc";
/// let limits = Limits { max_bytes: 16_384, max_fields: 100 };
/// let mut fields = Fields::new();
/// let Ok(ParseOutcome::Head(head)) = RequestHead::parse(read, limits, &mut fields) else {
///     panic!("a whole and valid head");
/// };
/// assert_eq!(head.request.body, Body::Length(3));
/// assert_eq!(&read[head.len..], b"abc");
/// ```
#[derive(Debug)]
pub struct RequestHead<'a> {
    /// Bytes of the read buffer that the head takes, an empty line before it included.
    pub len: usize,
    /// Request of the head.
    pub request: Request<'a>,
    /// Request target, as sent.
    pub target: &'a str,
    /// Version, as sent.
    pub version: Version,
    /// True if the client wants the connection to go on after the response.
    pub keep_alive: bool,
    /// True if the client waits for a 100 (Continue) before it sends the body.
    pub expect_continue: bool,
    /// Facts on which the framing of the response depends.
    pub framing_facts: FramingFacts,
}

/// Form of a request target (RFC 9112, section 3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form<'a> {
    /// Origin form: `/path?query`.
    Origin,
    /// `http://authority/path?query`; the path may be empty.
    Absolute {
        authority: &'a str,
        path_and_query: &'a str,
    },
    /// Asterisk form: `*`.
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
    ) -> Result<ParseOutcome<Self>, HeadError> {
        let Some(skipped) = leading_empty_line(read)? else {
            return Ok(ParseOutcome::Partial);
        };
        let raw = read.get(skipped..).unwrap_or_default();
        let mut parsed = httparse::Request::new(&mut []);
        let room = limits.max_fields.min(MAX_FIELDS);
        let room = fields.0.get_mut(..room).unwrap_or_default();
        let len = match parsed.parse_with_uninit_headers(raw, room) {
            Ok(Status::Complete(len)) if len <= limits.max_bytes => len,
            Ok(Status::Partial) if raw.len() < limits.max_bytes => {
                return Ok(ParseOutcome::Partial);
            }
            Ok(_) => {
                let within = raw.get(..limits.max_bytes).unwrap_or(raw);
                return Err(if within.contains(&b'\n') {
                    HeadError::TooLarge
                } else {
                    HeadError::TargetTooLong
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
        let form = Form::of_target(method, target)?;
        let mut meaning = Meaning::of_request(raw, fields, version)?;
        let body = meaning.body_framing();
        meaning.settle_request(fields, method == "GET", body, version);
        let mut line_stays = version == Version::Http11;
        let (authority, path_and_query) = match form {
            Form::Origin | Form::Asterisk => (meaning.host, target),
            Form::Absolute {
                authority,
                path_and_query,
            } => {
                meaning.dropped.add_all(meaning.host_fields);
                line_stays = false;
                // RFC 9112, section 3.2.4: this is what OPTIONS of a whole server looks like.
                let is_of_server = path_and_query.is_empty() && method == "OPTIONS";
                let path_and_query = if is_of_server { "*" } else { path_and_query };
                (Some(authority), path_and_query)
            }
        };
        let has_host = !matches!(form, Form::Absolute { .. }) && authority.is_some();
        Ok(ParseOutcome::Head(Self {
            len: skipped + len,
            request: Request {
                method,
                authority,
                path_and_query,
                body,
                upgrade: meaning.upgrades,
                takes_trailers: meaning.takes_trailers,
                authenticates_connection: meaning.authenticates_connection,
                fields,
                dropped: meaning.dropped,
                forwarded: meaning.forwarded_fields,
                sensitive: FieldSet::default(),
                has_sensitive_path: false,
                has_host,
                has_framing: !meaning.respell_framing,
                raw: Some(Raw {
                    bytes: raw,
                    line_stays,
                }),
            },
            target,
            version,
            keep_alive: meaning.keep_alive(version),
            expect_continue: meaning.expects_continue,
            framing_facts: FramingFacts {
                head: method == "HEAD",
                upgrade: meaning.upgrades,
            },
        }))
    }
}

impl<'a> RequestHead<'a> {
    /// The head of a stream of HTTP/2, by the same rules. `target` is its path and query, and
    /// `fields` have the authority as `host`. `ended` says that no body follows.
    pub(crate) fn of_stream(
        method: &'a str,
        target: &'a str,
        fields: &'a [Header<'a>],
        ended: bool,
    ) -> Result<Self, HeadError> {
        let is_absolute = matches!(Form::of_target(method, target)?, Form::Absolute { .. });
        // What else is no part of a request line is found where one is read.
        if is_absolute || !target.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(HeadError::Target);
        }
        if fields.len() > MAX_FIELDS {
            return Err(HeadError::TooManyFields);
        }
        let version = Version::Http2;
        // No line is plain where there are none: what frames the body is written anew.
        let mut meaning = Meaning::of_request(&[], fields, version)?;
        let body = match (ended, meaning.body_framing()) {
            (true, Body::Length(0)) => Body::Length(0),
            // RFC 9110, section 8.6: servers want to be told that nothing comes of what usually has content.
            (true, Body::None) if matches!(method, "POST" | "PUT" | "PATCH") => Body::Length(0),
            (true, _) => Body::None,
            (false, Body::None) => Body::Chunked,
            (false, body) => body,
        };
        meaning.respell_framing = true;
        meaning.settle_request(fields, method == "GET", body, version);
        Ok(Self {
            len: 0,
            request: Request {
                method,
                authority: meaning.host,
                path_and_query: target,
                body,
                upgrade: meaning.upgrades,
                takes_trailers: meaning.takes_trailers,
                authenticates_connection: meaning.authenticates_connection,
                fields,
                dropped: meaning.dropped,
                forwarded: meaning.forwarded_fields,
                sensitive: FieldSet::default(),
                has_sensitive_path: false,
                has_host: true,
                has_framing: false,
                raw: None,
            },
            target,
            version,
            keep_alive: false,
            expect_continue: meaning.expects_continue,
            framing_facts: FramingFacts {
                head: method == "HEAD",
                upgrade: meaning.upgrades,
            },
        })
    }
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

/// Tells a version that is not spoken here from a line that is no request line.
fn version_error(raw: &[u8]) -> HeadError {
    match raw.split(|&byte| byte == b' ').nth(2).unwrap_or_default() {
        [b'H', b'T', b'T', b'P', b'/', b'0'..=b'9', ..] => HeadError::Version,
        _ => HeadError::StartLine,
    }
}

impl<'a> Form<'a> {
    fn of_target(method: &str, target: &'a str) -> Result<Self, HeadError> {
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
