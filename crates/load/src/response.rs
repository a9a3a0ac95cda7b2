//! Responses over HTTP/1.1 as they come: where each ends, and what of it matters here. Nothing
//! of a body is kept, and nothing is allocated for a response like the one before.

use std::time::Duration;

use evenkeel_wire::response::HeadScan;

/// Longest head, interim ones before it included.
pub const MAX_HEAD: usize = 64 * 1024;
/// Header fields that a response may have.
const MAX_FIELDS: usize = 100;
/// Longest line with the size of a chunk, and longest line of a trailer.
const MAX_LINE: usize = 4096;
/// Longest value of a `Location` that is followed.
pub(crate) const MAX_LOCATION: usize = 8192;

/// Error in a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseError {
    /// The bytes are no response of HTTP/1.x, or the body is not what its head says.
    Malformed,
    /// The head is longer than [`MAX_HEAD`], or has too many fields.
    HeadTooLong,
}

/// Progress of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// More is to come.
    Part,
    /// The response is whole. The number is that of the bytes that were taken after the response: there
    /// should be none.
    Whole(usize),
}

/// Contents of a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Head {
    status: u16,
    framing: Framing,
    keep_alive: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Framing {
    Length(u64),
    Chunked,
    UntilClose,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Head,
    /// Number of bytes of body that are still to come.
    Body(u64),
    UntilClose,
    /// A line with the size of a chunk, of which a part may have come.
    Size,
    /// Number of bytes of a chunk that are still to come, its line end included.
    Chunk(u64),
    /// Lines after the last chunk, and the number of bytes of the present line that have come.
    Trailer(usize),
    Done,
}

/// A reader of the responses of one connection.
#[derive(Debug)]
pub struct Response {
    state: State,
    /// The part of a head, or of a line, that has come.
    partial: Vec<u8>,
    /// Scan of a head that comes in pieces: decides when the head is looked at.
    scan: HeadScan,
    /// Bytes of lines after the last chunk.
    trailers: usize,
    /// Bytes of the last whole head, and its contents: most often the next head is the same.
    known: Vec<u8>,
    known_head: Option<Head>,
    head: Option<Head>,
    /// True if the request was HEAD: no body comes.
    is_head: bool,
    body: u64,
    /// Location of a redirect.
    location: Option<String>,
    /// Time for which `Cache-Control` allows a redirect to be kept.
    max_age: Option<Duration>,
}

impl Default for Response {
    fn default() -> Self {
        Self::new()
    }
}

impl Response {
    /// Before the first response.
    pub fn new() -> Self {
        Response {
            state: State::Head,
            partial: Vec::new(),
            scan: HeadScan::default(),
            trailers: 0,
            known: Vec::new(),
            known_head: None,
            head: None,
            is_head: false,
            body: 0,
            location: None,
            max_age: None,
        }
    }

    /// A request was sent: the next response is its.
    pub fn start_next(&mut self, is_head: bool) {
        self.state = State::Head;
        self.partial.clear();
        self.scan = HeadScan::default();
        self.trailers = 0;
        self.head = None;
        self.is_head = is_head;
        self.body = 0;
        self.location = None;
        self.max_age = None;
    }

    /// Returns the status of the response, when the head is whole.
    pub fn status(&self) -> Option<u16> {
        self.head.map(|head| head.status)
    }

    /// Returns the bytes of the body so far.
    pub fn body(&self) -> u64 {
        self.body
    }

    /// Returns true if another request may follow on the connection.
    pub fn keeps_alive(&self) -> bool {
        self.head
            .is_some_and(|head| head.keep_alive && head.framing != Framing::UntilClose)
    }

    /// Returns the location to which a redirect leads.
    pub fn location(&self) -> Option<&str> {
        self.location.as_deref()
    }

    /// Returns the time for which a redirect may be kept.
    pub fn max_age(&self) -> Option<Duration> {
        self.max_age
    }

    /// Returns true if any part of the response has come.
    pub fn has_begun(&self) -> bool {
        self.head.is_some() || !self.partial.is_empty()
    }

    /// The other side has closed the connection.
    ///
    /// # Errors
    ///
    /// The response was not whole.
    pub fn handle_close(&self) -> Result<(), ResponseError> {
        match self.state {
            State::UntilClose | State::Done => Ok(()),
            _ => Err(ResponseError::Malformed),
        }
    }

    /// Takes the bytes that have come next.
    ///
    /// # Errors
    ///
    /// They are not what may come there. Nothing is to be known of the connection then.
    pub fn push(&mut self, bytes: &[u8]) -> Result<Progress, ResponseError> {
        let mut rest = bytes;
        loop {
            rest = match self.state {
                State::Done => return Ok(Progress::Whole(rest.len())),
                _ if rest.is_empty() => return Ok(Progress::Part),
                State::Head => match self.take_head(rest)? {
                    Some(after) => after,
                    None => return Ok(Progress::Part),
                },
                State::Body(left) => {
                    let (left, after) = self.skip(left, rest);
                    self.state = match left {
                        0 => State::Done,
                        left => State::Body(left),
                    };
                    after
                }
                State::UntilClose => {
                    self.body = self.body.saturating_add(rest.len() as u64);
                    return Ok(Progress::Part);
                }
                State::Size => self.take_size(rest)?,
                State::Chunk(left) => self.take_chunk(left, rest)?,
                State::Trailer(length) => self.take_trailer(length, rest)?,
            };
        }
    }

    /// Skips up to `left` bytes of body.
    fn skip<'b>(&mut self, left: u64, bytes: &'b [u8]) -> (u64, &'b [u8]) {
        let count = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
        self.body = self.body.saturating_add(count as u64);
        (left - count as u64, bytes.get(count..).unwrap_or_default())
    }

    fn take_head<'b>(&mut self, bytes: &'b [u8]) -> Result<Option<&'b [u8]>, ResponseError> {
        if self.partial.is_empty()
            && !self.is_head
            && let Some(head) = self.known_head
            && let Some(after) = bytes.strip_prefix(&self.known[..])
        {
            self.begin_body(head);
            return Ok(Some(after));
        }
        let before = self.partial.len();
        let room = MAX_HEAD.saturating_sub(before);
        let piece = bytes.get(..room.min(bytes.len())).unwrap_or_default();
        self.partial.extend_from_slice(piece);
        if !self.scan.is_due(&self.partial, MAX_HEAD) {
            return Ok(None);
        }
        let mut partial = std::mem::take(&mut self.partial);
        let parsed = self.parse(&partial);
        match parsed {
            Err(broken) => Err(broken),
            Ok(None) if partial.len() >= MAX_HEAD => Err(ResponseError::HeadTooLong),
            Ok(None) => {
                self.partial = partial;
                Ok(None)
            }
            Ok(Some((interim, length, head))) => {
                // The bytes after it are in `bytes`, as the head's end is.
                let after = (interim + length).saturating_sub(before);
                // A redirect is different every time, and what it says is not kept here.
                if interim == 0 && !self.is_head && !(300..400).contains(&head.status) {
                    self.known.clear();
                    self.known
                        .extend_from_slice(partial.get(..length).unwrap_or_default());
                    self.known_head = Some(head);
                }
                partial.clear();
                self.partial = partial;
                self.begin_body(head);
                Ok(Some(bytes.get(after..).unwrap_or_default()))
            }
        }
    }

    /// Bytes of interim heads, bytes of the final one, and what it says.
    fn parse(&mut self, bytes: &[u8]) -> Result<Option<(usize, usize, Head)>, ResponseError> {
        let mut interim = 0;
        loop {
            let read = bytes.get(interim..).unwrap_or_default();
            let mut fields = [httparse::EMPTY_HEADER; MAX_FIELDS];
            let mut response = httparse::Response::new(&mut fields);
            let length = match response.parse(read) {
                Ok(httparse::Status::Complete(length)) => length,
                Ok(httparse::Status::Partial) => return Ok(None),
                Err(httparse::Error::TooManyHeaders) => return Err(ResponseError::HeadTooLong),
                Err(_) => return Err(ResponseError::Malformed),
            };
            let status = response.code.unwrap_or(0);
            if !(100..=599).contains(&status) {
                return Err(ResponseError::Malformed);
            }
            // 101 would be an answer to a question that nobody asks here.
            if status < 200 {
                interim += length;
                continue;
            }
            let is_redirect = (300..400).contains(&status);
            let head = self.understand(status, response.version, response.headers, is_redirect)?;
            return Ok(Some((interim, length, head)));
        }
    }

    fn understand(
        &mut self,
        status: u16,
        version: Option<u8>,
        fields: &[httparse::Header<'_>],
        is_redirect: bool,
    ) -> Result<Head, ResponseError> {
        let mut length = None;
        let mut is_chunked = None;
        let mut keep_alive = version == Some(1);
        for field in fields {
            let name = field.name;
            if name.eq_ignore_ascii_case("content-length") {
                let value = digits(field.value).ok_or(ResponseError::Malformed)?;
                if length.is_some_and(|length| length != value) {
                    return Err(ResponseError::Malformed);
                }
                length = Some(value);
            } else if name.eq_ignore_ascii_case("transfer-encoding") {
                is_chunked = Some(last_token(field.value).eq_ignore_ascii_case(b"chunked"));
            } else if name.eq_ignore_ascii_case("connection") {
                for token in field.value.split(|&byte| byte == b',') {
                    let token = token.trim_ascii();
                    keep_alive |= token.eq_ignore_ascii_case(b"keep-alive");
                    keep_alive &= !token.eq_ignore_ascii_case(b"close");
                }
            } else if is_redirect && name.eq_ignore_ascii_case("location") {
                let value = std::str::from_utf8(field.value).ok();
                self.location = value
                    .filter(|value| value.len() <= MAX_LOCATION)
                    .map(|value| value.trim().to_owned());
            } else if is_redirect && name.eq_ignore_ascii_case("cache-control") {
                self.max_age = max_age(field.value);
            }
        }
        let framing = match (is_chunked, length) {
            _ if self.is_head || status == 204 || status == 304 => Framing::Length(0),
            (Some(true), _) => Framing::Chunked,
            (Some(false), _) | (None, None) => Framing::UntilClose,
            (None, Some(length)) => Framing::Length(length),
        };
        Ok(Head {
            status,
            framing,
            keep_alive,
        })
    }

    fn begin_body(&mut self, head: Head) {
        self.head = Some(head);
        self.state = match head.framing {
            Framing::Length(0) => State::Done,
            Framing::Length(length) => State::Body(length),
            Framing::Chunked => State::Size,
            Framing::UntilClose => State::UntilClose,
        };
    }

    fn take_size<'b>(&mut self, bytes: &'b [u8]) -> Result<&'b [u8], ResponseError> {
        let end = bytes.iter().position(|&byte| byte == b'\n');
        let (line, after) = bytes.split_at(end.map_or(bytes.len(), |end| end + 1));
        if self.partial.len() + line.len() > MAX_LINE {
            return Err(ResponseError::Malformed);
        }
        self.partial.extend_from_slice(line);
        if end.is_none() {
            return Ok(after);
        }
        let size = chunk_size(&self.partial).ok_or(ResponseError::Malformed)?;
        self.partial.clear();
        self.state = match size {
            0 => State::Trailer(0),
            size => State::Chunk(size + 2),
        };
        Ok(after)
    }

    fn take_chunk<'b>(&mut self, left: u64, bytes: &'b [u8]) -> Result<&'b [u8], ResponseError> {
        if left > 2 {
            let (rest, after) = self.skip(left - 2, bytes);
            self.state = State::Chunk(rest + 2);
            return Ok(after);
        }
        let expected = if left == 2 { b'\r' } else { b'\n' };
        match bytes.split_first() {
            Some((&byte, after)) if byte == expected => {
                self.state = match left {
                    2 => State::Chunk(1),
                    _ => State::Size,
                };
                Ok(after)
            }
            _ => Err(ResponseError::Malformed),
        }
    }

    fn take_trailer<'b>(
        &mut self,
        length: usize,
        bytes: &'b [u8],
    ) -> Result<&'b [u8], ResponseError> {
        let end = bytes.iter().position(|&byte| byte == b'\n');
        let (line, after) = bytes.split_at(end.map_or(bytes.len(), |end| end + 1));
        self.trailers += line.len();
        if self.trailers > MAX_HEAD {
            return Err(ResponseError::HeadTooLong);
        }
        // A line is empty if nothing but its end has come; `\r` counts for nothing.
        let text = line
            .iter()
            .filter(|&&byte| byte != b'\r' && byte != b'\n')
            .count();
        self.state = match end {
            None => State::Trailer(length + text),
            Some(_) if length + text == 0 => State::Done,
            Some(_) => State::Trailer(0),
        };
        Ok(after)
    }
}

fn digits(value: &[u8]) -> Option<u64> {
    let value = value.trim_ascii();
    let is_number = !value.is_empty() && value.iter().all(u8::is_ascii_digit);
    let text = std::str::from_utf8(value).ok().filter(|_| is_number)?;
    text.parse().ok()
}

fn last_token(value: &[u8]) -> &[u8] {
    let mut tokens = value.rsplit(|&byte| byte == b',');
    tokens.next().unwrap_or_default().trim_ascii()
}

fn chunk_size(line: &[u8]) -> Option<u64> {
    let end = line
        .iter()
        .position(|byte| matches!(byte, b';' | b'\r' | b'\n' | b' ' | b'\t'));
    let number = line.get(..end?)?;
    let is_number = !number.is_empty() && number.iter().all(u8::is_ascii_hexdigit);
    let text = std::str::from_utf8(number).ok().filter(|_| is_number)?;
    let size = u64::from_str_radix(text, 16).ok()?;
    (size < 1 << 62).then_some(size)
}

/// Returns true if a status redirects the client.
pub(crate) fn is_redirect(status: u16) -> bool {
    matches!(status, 301 | 302 | 303 | 307 | 308)
}

/// Returns the age that `Cache-Control` allows; nothing with `no-store` or `no-cache`.
pub(crate) fn max_age(value: &[u8]) -> Option<Duration> {
    let text = std::str::from_utf8(value).ok()?;
    let mut found = None;
    for directive in text.split(',').map(str::trim) {
        if directive.eq_ignore_ascii_case("no-store") || directive.eq_ignore_ascii_case("no-cache")
        {
            return None;
        }
        let (name, value) = directive.split_once('=').unwrap_or_default();
        if name.trim().eq_ignore_ascii_case("max-age") {
            found = value.trim().parse().ok();
        }
    }
    // A longer one than a day says nothing more here.
    found.map(|seconds: u64| Duration::from_secs(seconds.min(86_400)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Status, body's length, whether the connection stays, and the end.
    type Found = Result<(Option<u16>, u64, bool, Option<usize>), ResponseError>;

    fn read(bytes: &[u8], piece: usize, is_head: bool) -> Found {
        let mut response = Response::new();
        response.start_next(is_head);
        let mut end = None;
        let mut left = bytes.len();
        for piece in bytes.chunks(piece) {
            left -= piece.len();
            if let Progress::Whole(more) = response.push(piece)? {
                end = Some(more + left);
                break;
            }
        }
        let keeps = response.keeps_alive();
        Ok((response.status(), response.body(), keeps, end))
    }

    fn in_all_pieces(bytes: &[u8], is_head: bool) -> Found {
        let whole = read(bytes, usize::MAX, is_head);
        for piece in 1..bytes.len() {
            assert_eq!(read(bytes, piece, is_head), whole, "in pieces of {piece}");
        }
        whole
    }

    #[test]
    fn responses_end_where_their_heads_say() {
        let length = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";
        assert_eq!(
            in_all_pieces(length, false),
            Ok((Some(200), 5, true, Some(0)))
        );
        let chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n2\r\nde\r\n0\r\nA: b\r\n\r\n";
        assert_eq!(
            in_all_pieces(chunked, false),
            Ok((Some(200), 5, true, Some(0)))
        );
        let none = b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n";
        assert_eq!(
            in_all_pieces(none, false),
            Ok((Some(204), 0, false, Some(0)))
        );
        let head = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n";
        assert_eq!(in_all_pieces(head, true), Ok((Some(200), 0, true, Some(0))));
        let until_close = b"HTTP/1.1 200 OK\r\n\r\nhello";
        assert_eq!(
            in_all_pieces(until_close, false),
            Ok((Some(200), 5, false, None))
        );
        let old = b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n";
        assert_eq!(
            in_all_pieces(old, false),
            Ok((Some(200), 0, false, Some(0)))
        );
        let interim = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx";
        assert_eq!(
            in_all_pieces(interim, false),
            Ok((Some(200), 1, true, Some(0)))
        );
        let more = b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nxHTTP/1.1";
        assert_eq!(
            in_all_pieces(more, false),
            Ok((Some(200), 1, true, Some(8)))
        );
    }

    #[test]
    fn what_is_no_response_is_refused() {
        for wrong in [
            &b"SSH-2.0-OpenSSH\r\n"[..],
            b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
            b"HTTP/1.1 999 Odd\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n",
        ] {
            let found = in_all_pieces(wrong, false);
            assert_eq!(
                found,
                Err(ResponseError::Malformed),
                "{}",
                wrong.escape_ascii()
            );
        }
        let long = [b"HTTP/1.1 200 OK\r\nA: ".to_vec(), vec![b'a'; MAX_HEAD]].concat();
        for piece in [1, 1000, usize::MAX] {
            assert_eq!(read(&long, piece, false), Err(ResponseError::HeadTooLong));
        }
        let many = format!("HTTP/1.1 200 OK\r\n{}\r\n", "A: b\r\n".repeat(101));
        assert_eq!(
            read(many.as_bytes(), 7, false),
            Err(ResponseError::HeadTooLong)
        );
    }

    #[test]
    fn a_cut_response_is_no_whole_one() {
        let bytes = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";
        for length in 0..bytes.len() {
            let mut response = Response::new();
            response.start_next(false);
            assert_eq!(response.push(&bytes[..length]), Ok(Progress::Part));
            assert!(response.handle_close().is_err());
            assert_eq!(response.has_begun(), length > 0);
        }
    }

    #[test]
    fn a_connection_has_many_responses() {
        let mut response = Response::new();
        for (status, length) in [(200, 5), (200, 5), (404, 2), (302, 0), (302, 0), (200, 5)] {
            let body = "x".repeat(length);
            let location = if status == 302 {
                "Location: /x\r\nCache-Control: private, max-age=7\r\n"
            } else {
                ""
            };
            let bytes =
                format!("HTTP/1.1 {status} X\r\n{location}Content-Length: {length}\r\n\r\n{body}");
            response.start_next(false);
            assert_eq!(response.push(bytes.as_bytes()), Ok(Progress::Whole(0)));
            assert_eq!(response.status(), Some(status));
            assert_eq!(response.body(), length as u64);
            assert_eq!(response.location(), (status == 302).then_some("/x"));
            let quantum = (status == 302).then_some(Duration::from_secs(7));
            assert_eq!(response.max_age(), quantum);
        }
        // What was known with a body has none if HEAD was asked.
        response.start_next(true);
        assert_eq!(
            response.push(b"HTTP/1.1 200 X\r\nContent-Length: 5\r\n\r\n"),
            Ok(Progress::Whole(0))
        );
    }

    #[test]
    fn quanta_are_what_may_be_kept() {
        assert_eq!(
            max_age(b"private, max-age=30"),
            Some(Duration::from_secs(30))
        );
        assert_eq!(max_age(b"Max-Age = 5"), Some(Duration::from_secs(5)));
        for none in [
            &b"no-store"[..],
            b"max-age=30, no-cache",
            b"max-age=x",
            b"",
            b"\xff",
        ] {
            assert_eq!(max_age(none), None);
        }
    }

    proptest! {
        #[test]
        fn any_bytes_mean_the_same_in_pieces(bytes: Vec<u8>, piece in 1usize..9) {
            let whole = read(&bytes, usize::MAX, false);
            let pieces = read(&bytes, piece, false);
            // What is wrong may be found out earlier or later, but is never right.
            prop_assert_eq!(whole.is_ok_and(|f| f.3.is_some()), pieces.is_ok_and(|f| f.3.is_some()));
        }

        #[test]
        fn bodies_of_any_bytes_are_skipped(body: Vec<u8>, piece in 1usize..50, chunk in 1usize..20) {
            let plain = [format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len()).as_bytes(), &body].concat();
            let expected = Ok((Some(200), body.len() as u64, true, Some(0)));
            prop_assert_eq!(read(&plain, piece, false), expected);
            let mut chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
            for part in body.chunks(chunk) {
                chunked.extend(format!("{:x}\r\n", part.len()).bytes());
                chunked.extend(part);
                chunked.extend(b"\r\n");
            }
            chunked.extend(b"0\r\n\r\n");
            prop_assert_eq!(read(&chunked, piece, false), expected);
        }
    }
}
