//! Responses over HTTP/1.1, read as they come: each byte costs the same, whether it comes alone
//! or with all others.

/// Header fields that a response may have.
const MAX_FIELDS: usize = 100;

/// Longest line with the size of a chunk, its extensions included.
const MAX_SIZE_LINE: usize = 1024;

/// Tells when to parse a head that comes in pieces: at once, then when its end has come or
/// it has doubled. A head that is wrong is found out before its end, and yet no byte is
/// looked at more than four times on average, however they come.
#[derive(Clone, Debug, Default)]
pub struct HeadScan {
    /// Bytes in which no end was found.
    scanned: usize,
    /// Length from which on the head is parsed in any case.
    next: usize,
    /// Bytes that were looked at.
    #[cfg(test)]
    work: usize,
}

impl HeadScan {
    /// Returns true if `read`, which is all that has come of the head, is to be parsed. At `limit`
    /// bytes, where the parser refuses it, it is always parsed.
    pub fn is_due(&mut self, read: &[u8], limit: usize) -> bool {
        // The first look is the parser's: most heads come whole.
        let is_due = self.next == 0 || self.find_end(read) || read.len() >= self.next.min(limit);
        if is_due {
            self.next = read.len().saturating_mul(2).max(1);
        }
        is_due
    }

    /// Returns true if the end of a head, an empty line, is in the bytes that were not scanned yet.
    fn find_end(&mut self, read: &[u8]) -> bool {
        // It may have begun with the last two bytes before.
        let from = self.scanned.saturating_sub(2).min(read.len());
        self.scanned = read.len();
        let mut rest = read.get(from..).unwrap_or_default();
        #[cfg(test)]
        {
            self.work += rest.len();
        }
        while let Some(line) = rest.iter().position(|&byte| byte == b'\n') {
            rest = rest.get(line + 1..).unwrap_or_default();
            if let [b'\n', ..] | [b'\r', b'\n', ..] = rest {
                return true;
            }
        }
        false
    }
}

/// The head of a response.
#[derive(Clone, Copy, Debug)]
struct Head {
    /// Range of the value of `Content-Type`; nowhere without one.
    media_type: (usize, usize),
    /// Range of the value of the first `Set-Cookie`; nowhere without one.
    cookie: (usize, usize),
    /// Range of the value of `Retry-After`; nowhere without one.
    retry_after: (usize, usize),
    code: u16,
    length: usize,
    framing: Framing,
    /// True if the sender closes the connection after the response.
    closes: bool,
}

#[derive(Clone, Copy, Debug)]
enum Framing {
    Chunked,
    Length(u64),
    UntilClose,
}

/// The bytes are no response of HTTP/1.x.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotHttp;

/// Part of a body that was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyProgress {
    /// All of it.
    Whole,
    /// A part: more is to come, or may come.
    Part,
    /// Bytes that are no body: the body ends where they begin.
    Garbage,
}

/// A response that is being read.
#[derive(Debug, Default)]
pub struct Reader {
    /// Heads, until the final one is whole; then the line that is being read of a chunked
    /// body.
    line: Vec<u8>,
    /// Offset in `line` of the head that is being read: interim responses are before.
    at: usize,
    scan: HeadScan,
    code: Option<u16>,
    media_type: Box<str>,
    cookie: Box<str>,
    /// Value of `Retry-After` in seconds; `None` without one, and for a date.
    retry_after: Option<u32>,
    body: Vec<u8>,
    rest: RemainingPart,
    /// True if the connection carries another response after this one.
    is_kept: bool,
    len: usize,
    /// Bytes that were looked at for heads.
    #[cfg(test)]
    work: usize,
}

/// Part of the response that follows.
#[derive(Clone, Copy, Debug, Default)]
enum RemainingPart {
    #[default]
    Head,
    /// Number of bytes of the body that are to come.
    Length(u64),
    UntilClose,
    /// A line with the size of a chunk.
    Size,
    /// Number of bytes of the chunk that are to come.
    Chunk(u64),
    /// The line end after a chunk.
    ChunkCr,
    ChunkLf,
    /// Nothing: the body has ended.
    End,
    /// Nothing that could be understood.
    Garbage,
}

impl Reader {
    /// Before the first byte.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the bytes that have come next. After an error there is nothing to know.
    pub fn push(&mut self, bytes: &[u8]) -> Result<(), NotHttp> {
        self.len = self.len.saturating_add(bytes.len());
        if self.code.is_some() {
            self.push_body(bytes);
            return Ok(());
        }
        self.line.extend_from_slice(bytes);
        loop {
            let read = self.line.get(self.at..).unwrap_or_default();
            if !self.scan.is_due(read, usize::MAX) {
                return Ok(());
            }
            let head = Head::parse(read)?;
            #[cfg(test)]
            {
                self.work += self.scan.work + head.map_or(read.len(), |head| head.length);
                self.scan.work = 0;
            }
            let Some(head) = head else {
                return Ok(());
            };
            self.at += head.length;
            if (100..200).contains(&head.code) && head.code != 101 {
                self.scan = HeadScan::default();
                continue;
            }
            self.code = Some(head.code);
            let copy = |(from, to)| -> Box<str> {
                String::from_utf8_lossy(read.get(from..to).unwrap_or_default()).into()
            };
            self.media_type = copy(head.media_type);
            self.cookie = copy(head.cookie);
            self.retry_after = copy(head.retry_after).trim().parse().ok();
            let has_length = matches!(head.framing, Framing::Length(_));
            self.is_kept = has_length && !head.closes && head.code != 101;
            self.rest = match head.framing {
                Framing::Chunked => RemainingPart::Size,
                Framing::Length(0) => RemainingPart::End,
                Framing::Length(length) => RemainingPart::Length(length),
                Framing::UntilClose => RemainingPart::UntilClose,
            };
            let read = std::mem::take(&mut self.line);
            self.push_body(read.get(self.at..).unwrap_or_default());
            return Ok(());
        }
    }

    fn push_body(&mut self, mut bytes: &[u8]) {
        while let Some((&first, after)) = bytes.split_first() {
            (self.rest, bytes) = match self.rest {
                RemainingPart::Length(left) => {
                    let (left, bytes) = self.take(left, bytes);
                    (
                        if left == 0 {
                            RemainingPart::End
                        } else {
                            RemainingPart::Length(left)
                        },
                        bytes,
                    )
                }
                RemainingPart::UntilClose => {
                    self.body.extend_from_slice(bytes);
                    return;
                }
                RemainingPart::Size => {
                    let end = bytes.iter().position(|&byte| byte == b'\n');
                    let (line, after) = bytes.split_at(end.map_or(bytes.len(), |end| end + 1));
                    self.line.extend_from_slice(line);
                    (self.read_size(end.is_some()), after)
                }
                RemainingPart::Chunk(left) => {
                    let (left, bytes) = self.take(left, bytes);
                    (
                        if left == 0 {
                            RemainingPart::ChunkCr
                        } else {
                            RemainingPart::Chunk(left)
                        },
                        bytes,
                    )
                }
                RemainingPart::ChunkCr if first == b'\r' => (RemainingPart::ChunkLf, after),
                RemainingPart::ChunkLf if first == b'\n' => (RemainingPart::Size, after),
                RemainingPart::ChunkCr | RemainingPart::ChunkLf => (RemainingPart::Garbage, after),
                RemainingPart::Head | RemainingPart::End | RemainingPart::Garbage => {
                    // Nobody has asked for what comes here.
                    self.is_kept = false;
                    return;
                }
            };
        }
    }

    /// Moves at most `left` bytes to the body; answers how many are left of both.
    fn take<'a>(&mut self, left: u64, bytes: &'a [u8]) -> (u64, &'a [u8]) {
        let here = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
        let (taken, rest) = bytes.split_at(here);
        self.body.extend_from_slice(taken);
        (left - here as u64, rest)
    }

    /// Returns the part that follows the line of a chunk's size, if that line is whole.
    fn read_size(&mut self, is_whole: bool) -> RemainingPart {
        if self.line.len() > MAX_SIZE_LINE {
            return RemainingPart::Garbage;
        }
        if !is_whole {
            return RemainingPart::Size;
        }
        let size = httparse::parse_chunk_size(&self.line);
        self.line.clear();
        match size {
            Ok(httparse::Status::Complete((_, 0))) => RemainingPart::End,
            Ok(httparse::Status::Complete((_, size))) => RemainingPart::Chunk(size),
            _ => RemainingPart::Garbage,
        }
    }

    /// Status code of the final response, 101 to 599, once its head is whole.
    pub fn status_code(&self) -> Option<u16> {
        self.code
    }

    /// Value of `Content-Type`, with its parameters; empty if there is none, or the head is not whole.
    pub fn media_type(&self) -> &str {
        &self.media_type
    }

    /// Value of the first `Set-Cookie`, with its attributes; empty if there is none, or the head is not whole.
    pub fn first_cookie(&self) -> &str {
        &self.cookie
    }

    /// Seconds that `Retry-After` names; `None` if there is none, if it names a date, or the head is not whole.
    pub fn retry_after(&self) -> Option<u32> {
        self.retry_after
    }

    /// The body as far as it has come, without framing.
    pub fn body(&self) -> &[u8] {
        &self.body
    }

    /// Takes the part of the body that has come since the last call.
    pub fn take_body(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.body)
    }

    /// Returns how much of the body was seen.
    pub fn body_progress(&self) -> BodyProgress {
        match self.rest {
            RemainingPart::End => BodyProgress::Whole,
            RemainingPart::Garbage => BodyProgress::Garbage,
            _ => BodyProgress::Part,
        }
    }

    /// Returns true if the end of the connection is the end of the body.
    pub fn is_until_close(&self) -> bool {
        matches!(self.rest, RemainingPart::UntilClose)
    }

    /// True if the connection may carry another question: the response has come as a whole, its body has a
    /// `Content-Length`, nothing came behind it, and the sender does not close the connection.
    pub fn is_kept(&self) -> bool {
        self.is_kept && matches!(self.rest, RemainingPart::End)
    }

    /// All bytes that were taken.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if no byte was taken.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl Head {
    /// Parses the head at the start of `bytes`; `None` if it is not whole.
    fn parse(bytes: &[u8]) -> Result<Option<Head>, NotHttp> {
        let line = bytes.split(|&byte| byte == b'\n').next();
        let mut fields = [httparse::EMPTY_HEADER; MAX_FIELDS];
        let mut response = httparse::Response::new(&mut fields);
        let length = match response.parse(bytes) {
            Ok(httparse::Status::Complete(length)) => length,
            Ok(httparse::Status::Partial) => return Ok(None),
            Err(_) => return Err(NotHttp),
        };
        let code = response.code.unwrap_or_default();
        // The parser forgives a bare LF.
        if line.and_then(<[u8]>::last) != Some(&b'\r') || !(100..=599).contains(&code) {
            return Err(NotHttp);
        }
        let field = |name: &str| {
            let mut fields = response.headers.iter();
            let field = fields.find(|field| field.name.eq_ignore_ascii_case(name))?;
            std::str::from_utf8(field.value).ok()
        };
        let chunked = field("transfer-encoding")
            .is_some_and(|value| value.to_ascii_lowercase().ends_with("chunked"));
        let content_length = field("content-length").and_then(|value| value.parse().ok());
        let mut connection = response
            .headers
            .iter()
            .filter(|field| field.name.eq_ignore_ascii_case("connection"));
        let says_close = |value: &[u8]| {
            let mut tokens = value.split(|&byte| byte == b',').map(<[u8]>::trim_ascii);
            tokens.any(|token| token.eq_ignore_ascii_case(b"close"))
        };
        let closes = response.version != Some(1) || connection.any(|field| says_close(field.value));
        // The values are parts of the bytes.
        let place_of = |name: &str| {
            field(name).map_or((0, 0), |value| {
                let from = value.as_ptr().addr().wrapping_sub(bytes.as_ptr().addr());
                (from, from.saturating_add(value.len()))
            })
        };
        Ok(Some(Head {
            media_type: place_of("content-type"),
            cookie: place_of("set-cookie"),
            retry_after: place_of("retry-after"),
            code,
            length,
            closes,
            framing: match content_length {
                _ if chunked => Framing::Chunked,
                Some(length) => Framing::Length(length),
                None => Framing::UntilClose,
            },
        }))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Reads `pieces`; answers with the reader and the bytes that it looked at for the head.
    fn read<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Result<(Reader, usize), NotHttp> {
        let mut reader = Reader::new();
        for piece in pieces {
            reader.push(piece)?;
        }
        let work = reader.work + reader.scan.work;
        Ok((reader, work))
    }

    fn seen(reader: &Reader) -> (Option<u16>, &str, BodyProgress) {
        let body = std::str::from_utf8(reader.body()).unwrap();
        (reader.status_code(), body, reader.body_progress())
    }

    #[test]
    fn a_connection_is_kept_after_a_whole_response_with_a_length_and_nothing_behind() {
        let is_kept = |text: &str| {
            let is = [1, 3, text.len()].map(|size| {
                let (reader, _) = read(text.as_bytes().chunks(size)).unwrap();
                reader.is_kept()
            });
            assert!(is.iter().all(|other| *other == is[0]), "{text:?}");
            is[0]
        };
        let of = |version: &str, fields: &str, body: &str| {
            is_kept(&format!("HTTP/{version} 200 OK\r\n{fields}\r\n{body}"))
        };
        let two = "Content-Length: 2\r\n";
        assert!(of("1.1", two, "hi"));
        assert!(of("1.1", "Content-Length: 0\r\n", ""));
        assert!(of("1.1", &format!("{two}Connection: keep-alive\r\n"), "hi"));
        assert!(!of("1.1", two, "h"));
        assert!(!of("1.1", two, "hi!"));
        assert!(!of("1.1", "Content-Length: 0\r\n", "HTTP/1.1 200 OK\r\n"));
        assert!(!of("1.0", two, "hi"));
        assert!(!of("1.1", "", "hi"));
        assert!(!of("1.1", "Transfer-Encoding: chunked\r\n", "0\r\n\r\n"));
        for close in ["close", "x, CLOSE", "keep-alive\r\nConnection: close"] {
            assert!(
                !of("1.1", &format!("{two}Connection: {close}\r\n"), "hi"),
                "{close}"
            );
        }
    }

    #[test]
    fn bodies_are_found_whatever_frames_them() {
        let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
        let hints = "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n";
        for (text, code, body, how) in [
            (
                "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi!".to_owned(),
                200,
                "hi",
                BodyProgress::Whole,
            ),
            (
                "HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n".to_owned(),
                204,
                "",
                BodyProgress::Whole,
            ),
            (
                "HTTP/1.1 404 No\r\n\r\nnobody".to_owned(),
                404,
                "nobody",
                BodyProgress::Part,
            ),
            (
                format!("{chunked}2;x\r\nhi\r\n01\r\n!\r\n0\r\nX: y\r\n\r\n"),
                200,
                "hi!",
                BodyProgress::Whole,
            ),
            (
                format!("{chunked}2\r\nhi?\n0\r\n\r\n"),
                200,
                "hi",
                BodyProgress::Garbage,
            ),
            (
                format!("{chunked}2\r\nhi\r?"),
                200,
                "hi",
                BodyProgress::Garbage,
            ),
            (format!("{chunked}x\r\n"), 200, "", BodyProgress::Garbage),
            (format!("{chunked}4\r\nhi"), 200, "hi", BodyProgress::Part),
            (
                format!("{hints}{hints}HTTP/1.0 500 Oops\r\n\r\nx"),
                500,
                "x",
                BodyProgress::Part,
            ),
        ] {
            for size in [1, 2, 3, 5, text.len()] {
                let (reader, _) = read(text.as_bytes().chunks(size)).unwrap();
                assert_eq!(seen(&reader), (Some(code), body, how), "{text:?} {size}");
                assert_eq!(reader.len(), text.len());
            }
        }
        let long = format!("{chunked}1;{}", "x".repeat(MAX_SIZE_LINE));
        let (reader, _) = read([long.as_bytes()]).unwrap();
        assert_eq!(reader.body_progress(), BodyProgress::Garbage);
    }

    #[test]
    fn fields_of_the_final_head_are_kept() {
        let text = "HTTP/1.1 103 Early Hints\r\nSet-Cookie: early\r\n\r\nHTTP/1.1 200 OK\r\n\
                    set-cookie: a=b; Path=/\r\nSet-Cookie: c=d\r\nContent-Type: text/plain\r\n\r\n";
        for size in 1..=text.len() {
            let (reader, _) = read(text.as_bytes().chunks(size)).unwrap();
            let fields = (reader.first_cookie(), reader.media_type());
            assert_eq!(fields, ("a=b; Path=/", "text/plain"), "{size}");
        }
        let (reader, _) = read([&b"HTTP/1.1 200 OK\r\n\r\n"[..]]).unwrap();
        assert_eq!((reader.first_cookie(), reader.media_type()), ("", ""));
        assert_eq!(reader.retry_after(), None);
        for (value, seconds) in [("7", Some(7)), ("Thu, 01 Jan 1970 01:00:00 GMT", None)] {
            let text = format!("HTTP/1.1 429 Wait\r\nRetry-After: {value}\r\n\r\n");
            let (reader, _) = read([text.as_bytes()]).unwrap();
            assert_eq!(reader.retry_after(), seconds);
        }
    }

    /// The cost of a head grows with its length, and not with the number of its pieces.
    #[test]
    fn s8_heads_cost_the_same_whether_they_come_at_once_or_drip() {
        let work = |bytes: usize, piece: usize| {
            let mut head = b"HTTP/1.1 200 OK\r\n".to_vec();
            while head.len() < bytes {
                head.extend_from_slice(b"X: 0123456789\r\n");
                // Of so many fields the parser would want none.
                if head.len() > 1000 {
                    head.truncate(head.len() - 2);
                    head.resize(bytes, b'y');
                    head.extend_from_slice(b"\r\n");
                }
            }
            head.extend_from_slice(b"\r\n");
            let (reader, work) = read(head.chunks(piece)).unwrap();
            assert_eq!(reader.status_code(), Some(200));
            work / head.len()
        };
        for piece in [1, 3, 1000, usize::MAX] {
            for bytes in [100, 1000, 10_000, 100_000, 1_000_000] {
                let each = work(bytes, piece);
                assert!(
                    each <= 6,
                    "{each} looks at a byte: {bytes} bytes by {piece}"
                );
            }
        }
        // Interim heads begin anew each time.
        let hints = "HTTP/1.1 103 Hints\r\n\r\n".repeat(10_000);
        for piece in [1, 7, usize::MAX] {
            let (_, work) = read(hints.as_bytes().chunks(piece)).unwrap();
            assert!(work <= 6 * hints.len(), "{work}");
        }
    }

    /// The beginning of a response, or of none, and bytes of all kinds.
    fn responses() -> impl Strategy<Value = Vec<u8>> {
        let head = prop_oneof![
            Just(&b""[..]),
            Just(&b"HTTP/1.1 200 OK\r\n\r\n"[..]),
            Just(&b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"[..]),
            Just(&b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n"[..]),
            Just(&b"HTTP/1.1 100 Go on\r\n\r\nHTTP/1.1 200 OK\r\n\r\n"[..]),
        ];
        // Digits of chunks: one of a number, one that is a letter.
        let byte = prop_oneof![
            any::<u8>(),
            Just(b'\r'),
            Just(b'\n'),
            Just(b'1'),
            Just(b'3'),
            Just(b'f')
        ];
        let rest = proptest::collection::vec(byte, 0..60);
        (head, rest).prop_map(|(head, rest)| [head, &rest].concat())
    }

    proptest! {
        /// The cuts between the bytes make no difference.
        #[test]
        fn pieces_make_no_difference(
            all in responses(),
            cuts in proptest::collection::vec(1_usize..9, 1..80),
        ) {
            let mut pieces = Vec::new();
            let mut left = &all[..];
            for cut in cuts {
                let (piece, rest) = left.split_at(cut.min(left.len()));
                pieces.push(piece);
                left = rest;
            }
            pieces.push(left);
            let at_once = read([&all[..]]).map(|(reader, _)| reader);
            let cut = read(pieces).map(|(reader, _)| reader);
            if let (Ok(a), Ok(b)) = (at_once, cut) {
                prop_assert_eq!(a.status_code(), b.status_code());
                prop_assert_eq!(a.body(), b.body());
                prop_assert_eq!(a.body_progress(), b.body_progress());
            }
        }
    }
}
