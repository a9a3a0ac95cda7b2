//! Chunked bodies (RFC 9112, section 7.1), followed byte by byte.
//!
//! A valid chunked body is passed on as it came: nothing is decoded and encoded again.
//! The [`Decoder`] therefore only says how far the input is valid, and where the body
//! ends. It takes the input in pieces of any size and keeps a few dozen bytes.

/// Most bytes of a chunk extension. They are passed on and mean nothing to anybody, so
/// there is no reason for more.
const MAX_EXTENSION_BYTES: usize = 256;

/// Most bytes of the trailer section.
const MAX_TRAILER_BYTES: usize = 8 * 1024;

/// Longest name among [`FORBIDDEN_TRAILERS`].
const NAME_BYTES: usize = 19;

/// Fields that frame or route a message, that hold for one hop, that authenticate, or
/// that say how to read the content: never valid in trailers (RFC 9110, section 6.5.1),
/// and dangerous where a server merges trailers into the head.
const FORBIDDEN_TRAILERS: [&[u8]; 26] = [
    b"authorization",
    b"cache-control",
    b"connection",
    b"content-encoding",
    b"content-length",
    b"content-range",
    b"content-type",
    b"cookie",
    b"expect",
    b"forwarded",
    b"host",
    b"keep-alive",
    b"max-forwards",
    b"proxy-authenticate",
    b"proxy-authorization",
    b"proxy-connection",
    b"range",
    b"set-cookie",
    b"te",
    b"trailer",
    b"transfer-encoding",
    b"upgrade",
    b"via",
    b"x-forwarded-for",
    b"x-forwarded-host",
    b"x-forwarded-proto",
];

/// Why a chunked body is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChunkError {
    /// A chunk size is not 1 to 16 hexadecimal digits below 2^63.
    #[error("invalid chunk size: expected hexadecimal digits, then CR LF")]
    Size,
    /// A control byte in a chunk extension, bare CR and LF included.
    #[error("control byte in a chunk extension")]
    Extension,
    /// A chunk extension is too long.
    #[error("chunk extension too long")]
    ExtensionTooLong,
    /// A line, or the data of a chunk, is not followed by CR LF.
    #[error("missing CR LF in a chunked body")]
    LineEnd,
    /// A malformed trailer field.
    #[error("malformed trailer field")]
    Trailer,
    /// A trailer field that must not be one.
    #[error("a field that is not allowed in trailers")]
    ForbiddenTrailer,
    /// The trailers are too long.
    #[error("trailers too long")]
    TrailersTooLong,
}

/// What the first bytes of some input are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece {
    /// So many bytes of content; at least one.
    Data(usize),
    /// So many bytes of framing: sizes, line ends, trailers. Zero if there is no input.
    Framing(usize),
    /// So many bytes of framing, which end the body.
    End(usize),
}

/// How far some input belongs to the body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scanned {
    /// Bytes that belong to the body and may be passed on.
    pub len: usize,
    /// Whether the body ends there.
    pub end: bool,
}

/// Follows one chunked body.
///
/// ```
/// use evenkeel_proxy::http1::chunked::{Decoder, Scanned};
///
/// let mut decoder = Decoder::new();
/// assert_eq!(decoder.scan(b"5\r\nhel"), Ok(Scanned { len: 6, end: false }));
/// assert_eq!(decoder.scan(b"lo\r\n0\r\n\r\nGET"), Ok(Scanned { len: 9, end: true }));
/// ```
#[derive(Clone, Debug)]
pub struct Decoder {
    state: State,
    /// Of the chunk: its size while that is read, then what is left of its data.
    left: u64,
    /// Digits of the size, bytes of the extension or of the trailers so far.
    count: usize,
    /// Name of the trailer field that is being read, in lower case; cut if long.
    name: [u8; NAME_BYTES],
    name_len: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Size,
    Extension,
    SizeLf,
    Data,
    DataCr,
    DataLf,
    TrailerStart,
    TrailerName,
    TrailerValue,
    TrailerLf,
    EndLf,
    Done,
}

impl Default for Decoder {
    fn default() -> Self {
        Self::new()
    }
}

impl Decoder {
    /// Before the first byte of a body.
    pub fn new() -> Self {
        Self {
            state: State::Size,
            left: 0,
            count: 0,
            name: [0; NAME_BYTES],
            name_len: 0,
        }
    }

    /// Whether the body has ended.
    pub fn is_done(&self) -> bool {
        self.state == State::Done
    }

    /// Follows `input`, which continues where the last input ended.
    ///
    /// After an error nothing more may be passed on, so that the other side never sees
    /// a whole message: close both connections.
    pub fn scan(&mut self, input: &[u8]) -> Result<Scanned, ChunkError> {
        let mut len = 0;
        loop {
            match self.step(input.get(len..).unwrap_or_default())? {
                Piece::Framing(0) => {
                    return Ok(Scanned {
                        len,
                        end: self.is_done(),
                    });
                }
                Piece::Framing(n) | Piece::Data(n) => len += n,
                Piece::End(n) => {
                    return Ok(Scanned {
                        len: len + n,
                        end: true,
                    });
                }
            }
        }
    }

    /// Takes the framing out of `input`: the content is moved to its front.
    ///
    /// Returns how many bytes of content there are, and how far the input was used.
    pub fn strip(&mut self, input: &mut [u8]) -> Result<(usize, Scanned), ChunkError> {
        let mut content = 0;
        let mut len = 0;
        loop {
            match self.step(input.get(len..).unwrap_or_default())? {
                Piece::Framing(0) => {
                    return Ok((
                        content,
                        Scanned {
                            len,
                            end: self.is_done(),
                        },
                    ));
                }
                Piece::Framing(n) => len += n,
                Piece::Data(n) => {
                    input.copy_within(len..len + n, content);
                    content += n;
                    len += n;
                }
                Piece::End(n) => {
                    return Ok((
                        content,
                        Scanned {
                            len: len + n,
                            end: true,
                        },
                    ));
                }
            }
        }
    }

    /// Tells what the first bytes of `input` are, and goes behind them.
    pub fn step(&mut self, input: &[u8]) -> Result<Piece, ChunkError> {
        if self.state == State::Data {
            let available = u64::try_from(input.len()).unwrap_or(u64::MAX);
            // At most the input's length, which is a usize.
            let taken = self.left.min(available) as usize;
            self.left -= taken as u64;
            if self.left == 0 {
                self.state = State::DataCr;
            }
            if taken > 0 {
                return Ok(Piece::Data(taken));
            }
        }
        for (index, &byte) in input.iter().enumerate() {
            match self.state {
                State::Data => return Ok(Piece::Framing(index)),
                State::Done => return Ok(Piece::Framing(0)),
                _ => self.framing_byte(byte)?,
            }
            if self.state == State::Done {
                return Ok(Piece::End(index + 1));
            }
        }
        Ok(Piece::Framing(input.len()))
    }

    fn framing_byte(&mut self, byte: u8) -> Result<(), ChunkError> {
        self.state = match (self.state, byte) {
            (State::Size, b'\r') if self.count > 0 => State::SizeLf,
            (State::Size, b';') if self.count > 0 => {
                self.count = 0;
                State::Extension
            }
            (State::Size, _) => {
                self.size_digit(byte)?;
                State::Size
            }
            (State::Extension, b'\r') => State::SizeLf,
            (State::Extension, _) => {
                self.count += 1;
                if self.count > MAX_EXTENSION_BYTES {
                    return Err(ChunkError::ExtensionTooLong);
                }
                if !is_text(byte) {
                    return Err(ChunkError::Extension);
                }
                State::Extension
            }
            (State::SizeLf, b'\n') => {
                self.count = 0;
                if self.left == 0 {
                    State::TrailerStart
                } else {
                    State::Data
                }
            }
            (State::DataCr, b'\r') => State::DataLf,
            (State::DataLf, b'\n') => State::Size,
            (State::TrailerStart, b'\r') => State::EndLf,
            (State::EndLf, b'\n') => State::Done,
            (State::TrailerStart, _) => {
                self.name_len = 0;
                self.trailer_name_byte(byte)?
            }
            (State::TrailerName, _) => self.trailer_name_byte(byte)?,
            (State::TrailerValue, b'\r') => State::TrailerLf,
            (State::TrailerValue, _) if is_text(byte) => State::TrailerValue,
            (State::TrailerValue, _) => return Err(ChunkError::Trailer),
            (State::TrailerLf, b'\n') => State::TrailerStart,
            _ => return Err(ChunkError::LineEnd),
        };
        if matches!(
            self.state,
            State::TrailerName | State::TrailerValue | State::TrailerLf
        ) {
            self.count += 1;
            if self.count > MAX_TRAILER_BYTES {
                return Err(ChunkError::TrailersTooLong);
            }
        }
        Ok(())
    }

    fn size_digit(&mut self, byte: u8) -> Result<(), ChunkError> {
        let digit = char::from(byte).to_digit(16).ok_or(ChunkError::Size)?;
        self.count += 1;
        // Sixteen digits below 2^63: nobody's counter, signed or not, overflows.
        if self.count > 16 || self.left > (i64::MAX as u64) >> 4 {
            return Err(ChunkError::Size);
        }
        self.left = self.left << 4 | u64::from(digit);
        Ok(())
    }

    fn trailer_name_byte(&mut self, byte: u8) -> Result<State, ChunkError> {
        if byte == b':' && self.name_len > 0 {
            let name = self.name.get(..self.name_len);
            if name.is_some_and(|name| FORBIDDEN_TRAILERS.contains(&name)) {
                return Err(ChunkError::ForbiddenTrailer);
            }
            return Ok(State::TrailerValue);
        }
        if !super::framing::is_token_byte(byte) {
            return Err(ChunkError::Trailer);
        }
        // A name that does not fit is none of the forbidden ones: its length stays
        // beyond the room, and so no name is found.
        if let Some(slot) = self.name.get_mut(self.name_len) {
            // As servers do that map names to variables.
            *slot = if byte == b'_' {
                b'-'
            } else {
                byte.to_ascii_lowercase()
            };
        }
        self.name_len += 1;
        Ok(State::TrailerName)
    }
}

/// Whether a byte may stand in a field value or a chunk extension.
fn is_text(byte: u8) -> bool {
    byte == b'\t' || (byte >= b' ' && byte != 0x7f)
}
