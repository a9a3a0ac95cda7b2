//! The balancer's own answers: small, and with all of their framing.
//!
//! [`Answer`] is the answer over HTTP/1.1 and HTTP/2. [`Answer::write`] writes HTTP/1.1; HTTP/2 is
//! written by `Stream::send_answer` in `http2/stream.rs`. A new field goes into both.

use bytes::Bytes;
use evenkeel_manager::config::FieldChanges;
use evenkeel_manager::responses::ResponsePolicy;

use super::forward::{put_cors, put_fields, put_number};
use super::hop::put_line;
use crate::cors::CorsFields;

/// An answer that the balancer gives by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer<'a> {
    /// Status code.
    pub status: u16,
    /// Line for a person to read: what is wrong, and what to do.
    pub text: &'a str,
    /// True if the connection goes on after this answer.
    pub keep_alive: bool,
    /// Value of `Date`, if the caller has one at hand.
    pub date: Option<&'a str>,
    /// Seconds for `Retry-After`.
    pub retry_after: Option<u32>,
    /// Page of the administrator's in the place of the text, with its media type.
    pub page: Option<(&'a str, &'a Bytes)>,
    /// Parts beside status and text.
    pub more: AnswerExtras<'a>,
}

/// Parts of an answer beside status and text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AnswerExtras<'a> {
    /// Value of `Location`.
    pub location: Option<&'a str>,
    /// Value of `WWW-Authenticate`.
    pub challenge: Option<&'a str>,
    /// Fields that are added, or are not to be there.
    pub fields: Option<&'a FieldChanges>,
    /// Permissions for pages of other origins.
    pub cors: Option<CorsFields<'a>>,
    /// The name of a field, and the name of the request.
    pub id: Option<(&'a str, &'a str)>,
}

impl<'a> Answer<'a> {
    /// An answer after which the connection is closed.
    pub fn new_closing(status: u16, text: &'a str) -> Self {
        Self {
            status,
            text,
            keep_alive: false,
            date: None,
            retry_after: None,
            page: None,
            more: AnswerExtras::default(),
        }
    }

    /// Returns the same answer with the page of `policy` for its status, unless the answer has a
    /// page, and with the changes of fields that `policy` says.
    pub(crate) fn with_policy(self, policy: &'a ResponsePolicy) -> Self {
        let page = || policy.page(self.status);
        Answer {
            page: self
                .page
                .or_else(|| page().map(|page| (&*page.media_type, &page.body))),
            more: AnswerExtras {
                fields: policy.response_fields(),
                ..self.more
            },
            ..self
        }
    }

    /// True if changes of fields leave this one of the balancer's alone.
    pub(crate) fn keeps_field(&self, name: &str) -> bool {
        !self
            .more
            .fields
            .is_some_and(|fields| fields.takes_out(name))
    }

    /// True if an answer with this status may have content.
    pub(crate) fn has_content(&self) -> bool {
        !matches!(self.status, 204 | 205 | 304)
    }

    /// The content's media type, the content, and what ends it.
    pub(crate) fn content_parts(&self) -> (&'a str, &'a [u8], &'static [u8]) {
        match self.page {
            Some((media_type, page)) => (media_type, page, b""),
            None => ("text/plain; charset=utf-8", self.text.as_bytes(), b"\n"),
        }
    }

    /// Appends the answer. `to_head` is whether the request was a `HEAD`, whose answer
    /// has no body.
    pub fn write(&self, to_head: bool, out: &mut Vec<u8>) {
        out.extend_from_slice(b"HTTP/1.1 ");
        put_number(u64::from(self.status), out);
        out.push(b' ');
        out.extend_from_slice(reason_phrase(self.status).as_bytes());
        let (media_type, content, end) = self.content_parts();
        if self.has_content() {
            if self.keeps_field("content-type") {
                out.extend_from_slice(b"\r\nContent-Type: ");
                out.extend_from_slice(media_type.as_bytes());
            }
            out.extend_from_slice(b"\r\nContent-Length: ");
            put_number((content.len() + end.len()) as u64, out);
        } else if self.status == 205 {
            out.extend_from_slice(b"\r\nContent-Length: 0");
        }
        if let Some(location) = self.more.location
            && self.keeps_field("location")
        {
            out.extend_from_slice(b"\r\nLocation: ");
            out.extend_from_slice(location.as_bytes());
        }
        if let Some(challenge) = self.more.challenge
            && self.keeps_field("www-authenticate")
        {
            out.extend_from_slice(b"\r\nWWW-Authenticate: ");
            out.extend_from_slice(challenge.as_bytes());
        }
        if let Some(date) = self.date
            && self.keeps_field("date")
        {
            out.extend_from_slice(b"\r\nDate: ");
            out.extend_from_slice(date.as_bytes());
        }
        if let Some(seconds) = self.retry_after
            && self.keeps_field("retry-after")
        {
            out.extend_from_slice(b"\r\nRetry-After: ");
            put_number(u64::from(seconds), out);
        }
        if !self.keep_alive {
            out.extend_from_slice(b"\r\nConnection: close");
        }
        out.extend_from_slice(b"\r\n");
        if let Some(fields) = self.more.fields {
            put_fields(fields, out);
        }
        if let Some(cors) = self.more.cors {
            put_cors(cors, self.more.fields, out);
        }
        if let Some((name, id)) = self.more.id {
            put_line(&[name.as_bytes(), b": ", id.as_bytes()], out);
        }
        out.extend_from_slice(b"\r\n");
        if !to_head && self.has_content() {
            out.extend_from_slice(content);
            out.extend_from_slice(end);
        }
    }
}

/// Reason phrase of the statuses that the balancer answers with.
fn reason_phrase(status: u16) -> &'static str {
    match status {
        200 => "OK",
        204 => "No Content",
        301 => "Moved Permanently",
        302 => "Found",
        303 => "See Other",
        304 => "Not Modified",
        307 => "Temporary Redirect",
        308 => "Permanent Redirect",
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        410 => "Gone",
        408 => "Request Timeout",
        413 => "Content Too Large",
        414 => "URI Too Long",
        417 => "Expectation Failed",
        421 => "Misdirected Request",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        501 => "Not Implemented",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        505 => "HTTP Version Not Supported",
        // The phrase means nothing (RFC 9112, section 4).
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http1::{Body, Fields, FramingFacts, Limits, ParseOutcome, ResponseHead};

    #[test]
    fn an_answer_has_its_length_and_closes() {
        let answer = Answer {
            date: Some("Sun, 06 Nov 1994 08:49:37 GMT"),
            retry_after: Some(120),
            ..Answer::new_closing(503, "no member can take the request")
        };
        let mut out = Vec::new();
        answer.write(false, &mut out);
        let expected = "HTTP/1.1 503 Service Unavailable\r\n\
            Content-Type: text/plain; charset=utf-8\r\n\
            Content-Length: 31\r\n\
            Date: Sun, 06 Nov 1994 08:49:37 GMT\r\n\
            Retry-After: 120\r\n\
            Connection: close\r\n\r\n\
            no member can take the request\n";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }

    #[test]
    fn answers_can_be_read_back() {
        for status in [
            400, 404, 408, 413, 414, 417, 421, 429, 431, 499, 501, 502, 503, 504, 505,
        ] {
            for (to_head, keep_alive) in [(false, false), (true, false), (false, true)] {
                let answer = Answer {
                    keep_alive,
                    ..Answer::new_closing(status, "why")
                };
                let mut out = Vec::new();
                answer.write(to_head, &mut out);
                let limits = Limits {
                    max_bytes: 1024,
                    max_fields: 8,
                };
                let asked = FramingFacts {
                    head: to_head,
                    upgrade: false,
                };
                let mut fields = Fields::new();
                let parsed = ResponseHead::parse(&out, limits, asked, &mut fields);
                let Ok(ParseOutcome::Head(head)) = parsed else {
                    panic!("{status}: {parsed:?}");
                };
                assert_eq!((head.status, head.keep_alive), (status, keep_alive));
                let (body, rest) = if to_head {
                    (Body::None, b"".as_slice())
                } else {
                    (Body::Length(4), b"why\n".as_slice())
                };
                assert_eq!((head.body, &out[head.len..]), (body, rest));
            }
        }
    }
}
