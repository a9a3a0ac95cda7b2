//! The balancer's own answers: small, and with all of their framing.

use super::forward::put_number;

/// An answer that the balancer gives by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer<'a> {
    /// Status code.
    pub status: u16,
    /// One line for a person to read: what is wrong, and what to do.
    pub text: &'a str,
    /// Whether the connection goes on after this answer.
    pub keep_alive: bool,
    /// Value of `Date`, if the caller has one at hand.
    pub date: Option<&'a str>,
    /// Seconds for `Retry-After`.
    pub retry_after: Option<u32>,
}

impl<'a> Answer<'a> {
    /// An answer after which the connection is closed.
    pub fn closing(status: u16, text: &'a str) -> Self {
        Self {
            status,
            text,
            keep_alive: false,
            date: None,
            retry_after: None,
        }
    }

    /// Appends the answer. `to_head` is whether the request was a `HEAD`, whose answer
    /// has no body.
    pub fn write(&self, to_head: bool, out: &mut Vec<u8>) {
        out.extend_from_slice(b"HTTP/1.1 ");
        put_number(u64::from(self.status), out);
        out.push(b' ');
        out.extend_from_slice(reason(self.status).as_bytes());
        out.extend_from_slice(b"\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: ");
        put_number(self.text.len() as u64 + 1, out);
        if let Some(date) = self.date {
            out.extend_from_slice(b"\r\nDate: ");
            out.extend_from_slice(date.as_bytes());
        }
        if let Some(seconds) = self.retry_after {
            out.extend_from_slice(b"\r\nRetry-After: ");
            put_number(u64::from(seconds), out);
        }
        if !self.keep_alive {
            out.extend_from_slice(b"\r\nConnection: close");
        }
        out.extend_from_slice(b"\r\n\r\n");
        if !to_head {
            out.extend_from_slice(self.text.as_bytes());
            out.push(b'\n');
        }
    }
}

/// Reason phrase of the statuses that the balancer answers with.
fn reason(status: u16) -> &'static str {
    match status {
        400 => "Bad Request",
        404 => "Not Found",
        408 => "Request Timeout",
        413 => "Content Too Large",
        414 => "URI Too Long",
        417 => "Expectation Failed",
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
