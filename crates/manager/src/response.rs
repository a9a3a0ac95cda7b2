//! Responses to the questions that the manager and the sources of reports ask over
//! HTTP/1.1: a bounded number of bytes, read from the start each time.

/// Header fields that a response may have.
const MAX_FIELDS: usize = 100;

/// The head of the final response.
#[derive(Clone, Debug)]
pub struct Head {
    /// Status code, 100 to 599.
    pub code: u16,
    /// Bytes up to the body, those of interim responses included.
    pub length: usize,
    framing: Framing,
}

#[derive(Clone, Debug)]
enum Framing {
    Chunked,
    Length(usize),
    UntilClose,
}

/// The bytes are no response of HTTP/1.x.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotHttp;

/// How much of a body was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// All of it.
    Whole,
    /// A part: more is to come, or may come.
    Part,
    /// What is no body: it ends where that begins.
    Garbage,
}

impl Head {
    /// Parses the head at the start of `bytes`; `None` if it is not whole.
    pub fn parse(bytes: &[u8]) -> Result<Option<Head>, NotHttp> {
        let mut start = 0;
        loop {
            let rest = bytes.get(start..).unwrap_or_default();
            let line = rest.split(|&byte| byte == b'\n').next().unwrap_or_default();
            let mut fields = [httparse::EMPTY_HEADER; MAX_FIELDS];
            let mut response = httparse::Response::new(&mut fields);
            let length = match response.parse(rest) {
                Ok(httparse::Status::Complete(length)) => length,
                Ok(httparse::Status::Partial) => return Ok(None),
                Err(_) => return Err(NotHttp),
            };
            let code = response.code.unwrap_or_default();
            // The parser forgives a bare LF.
            if line.last() != Some(&b'\r') || !(100..=599).contains(&code) {
                return Err(NotHttp);
            }
            start += length;
            if (100..200).contains(&code) && code != 101 {
                continue;
            }
            let field = |name: &str| {
                let field = response
                    .headers
                    .iter()
                    .find(|field| field.name.eq_ignore_ascii_case(name))?;
                std::str::from_utf8(field.value).ok()
            };
            let chunked = field("transfer-encoding")
                .is_some_and(|value| value.to_ascii_lowercase().ends_with("chunked"));
            let length = field("content-length").and_then(|value| value.parse().ok());
            return Ok(Some(Head {
                code,
                length: start,
                framing: match length {
                    _ if chunked => Framing::Chunked,
                    Some(length) => Framing::Length(length),
                    None => Framing::UntilClose,
                },
            }));
        }
    }

    /// Whether the end of the connection is the end of the body.
    pub fn is_until_close(&self) -> bool {
        matches!(self.framing, Framing::UntilClose)
    }

    /// Whether `bytes`, which follow the head, may be all of the body. It costs little,
    /// and [`Head::body`] knows for certain.
    pub fn may_be_whole(&self, bytes: &[u8]) -> bool {
        match self.framing {
            Framing::Length(length) => bytes.len() >= length,
            Framing::UntilClose => false,
            Framing::Chunked => bytes.ends_with(b"\r\n\r\n"),
        }
    }

    /// The body as far as it is in `bytes`, which follow the head.
    pub fn body(&self, bytes: &[u8]) -> (Vec<u8>, Seen) {
        match self.framing {
            Framing::Length(length) => match bytes.get(..length) {
                Some(body) => (body.to_vec(), Seen::Whole),
                None => (bytes.to_vec(), Seen::Part),
            },
            Framing::UntilClose => (bytes.to_vec(), Seen::Part),
            Framing::Chunked => dechunk(bytes),
        }
    }
}

/// The data of the chunks in `bytes`.
fn dechunk(mut bytes: &[u8]) -> (Vec<u8>, Seen) {
    let mut data = Vec::new();
    loop {
        let (start, size) = match httparse::parse_chunk_size(bytes) {
            Ok(httparse::Status::Complete((start, size))) => (start, size),
            Ok(httparse::Status::Partial) => return (data, Seen::Part),
            Err(_) => return (data, Seen::Garbage),
        };
        if size == 0 {
            return (data, Seen::Whole);
        }
        let rest = bytes.get(start..).unwrap_or_default();
        let size = usize::try_from(size).unwrap_or(usize::MAX);
        let Some((chunk, after)) = rest.split_at_checked(size) else {
            data.extend_from_slice(rest);
            return (data, Seen::Part);
        };
        data.extend_from_slice(chunk);
        match after {
            [b'\r', b'\n', after @ ..] => bytes = after,
            [] | [b'\r'] => return (data, Seen::Part),
            _ => return (data, Seen::Garbage),
        }
    }
}
