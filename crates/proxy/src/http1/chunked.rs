//! Chunked bodies (RFC 9112, section 7.1), followed byte by byte.
//!
//! A valid chunked body is passed on as it came: nothing is decoded and encoded again.
//! The [`Decoder`] therefore only says how far the input is valid, and where the body
//! ends. It takes the input in pieces of any size and keeps a few dozen bytes. Trailers of
//! requests pass by a list of names, and load reports in those of responses are kept ([`Trailers`]).

use std::sync::Arc;

use evenkeel_manager::config::fields::{
    MAX_TRAILER_NAME, RequestTrailers, is_no_trailer, plain_byte,
};
use evenkeel_wire::orca;

use super::framing;

/// Most bytes of a chunk extension. The bytes are passed on and mean nothing to anybody, so there
/// is no reason for more.
const MAX_EXTENSION_BYTES: usize = 256;

/// Most bytes of the trailer section.
const MAX_TRAILER_BYTES: usize = 8 * 1024;

/// Bytes of a trailer field's name that are kept: more than any forbidden one has, so that
/// a name that was cut can only begin like one.
const NAME_BYTES: usize = 26;

/// Reason why a chunked body is refused.
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
    /// More content than is allowed.
    #[error("the body is larger than allowed")]
    TooLarge,
    /// The trailers are too long.
    #[error("trailers too long")]
    TrailersTooLong,
}

/// Meaning of the first bytes of some input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece {
    /// Number of bytes of content; at least one.
    Data(usize),
    /// Number of bytes of framing: sizes, line ends, trailers. Zero if there is no input.
    Framing(usize),
    /// Number of bytes of trailers that do not pass.
    Dropped(usize),
    /// Number of bytes of framing that end the body.
    End(usize),
}

/// Calls `take` for each piece of content in `bytes`, whose framing `decoder` follows; for all of them without a decoder.
/// Framing that is not valid ends the content.
pub(crate) fn content_pieces(
    decoder: &mut Option<Decoder>,
    mut bytes: &[u8],
    mut take: impl FnMut(&[u8]),
) {
    let Some(decoder) = decoder else {
        return take(bytes);
    };
    loop {
        match decoder.next_piece(bytes) {
            Ok(Piece::Framing(0)) | Err(_) => return,
            Ok(Piece::Data(len)) => {
                take(bytes.get(..len).unwrap_or_default());
                bytes = bytes.get(len..).unwrap_or_default();
            }
            Ok(Piece::Framing(len) | Piece::Dropped(len)) => {
                bytes = bytes.get(len..).unwrap_or_default();
            }
            Ok(Piece::End(_)) => return,
        }
    }
}

/// Part of some input that belongs to the body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScannedPart {
    /// Bytes that belong to the body and may be passed on.
    pub len: usize,
    /// True if the body ends there.
    pub end: bool,
}

/// Trailers of a body that pass, and those that are for the balancer.
#[derive(Clone, Debug, Default)]
pub enum Trailers {
    /// All trailers pass.
    #[default]
    All,
    /// Fields of a list pass, and others are taken out.
    Listed(Arc<RequestTrailers>),
    /// All trailers pass, and load reports are kept for the balancer.
    Reports {
        /// Takes the reports out.
        strip: bool,
    },
}

impl Trailers {
    /// Takes out of `fields`, the trailers of a stream of HTTP/2, those that do not pass, by the rules for the trailers of
    /// chunked bodies. Returns the load reports that are kept.
    pub(crate) fn sort_out(
        &self,
        fields: &mut evenkeel_http2::Fields,
    ) -> Result<Option<Box<ReportLines>>, ChunkError> {
        // The ends of lines count half, as in chunked bodies.
        if fields.text().len().saturating_sub(fields.len()) > MAX_TRAILER_BYTES {
            return Err(ChunkError::TrailersTooLong);
        }
        let mut reports: Option<Box<ReportLines>> = None;
        for (name, value) in fields.iter() {
            let mut plain = [0; NAME_BYTES];
            for (slot, byte) in plain.iter_mut().zip(name.bytes()) {
                *slot = plain_byte(byte);
            }
            if is_no_trailer(plain.get(..name.len()).unwrap_or(&plain)) {
                return Err(ChunkError::ForbiddenTrailer);
            }
            if matches!(self, Trailers::Reports { .. }) && is_report(name) {
                let ReportLines(lines) = &mut **reports.get_or_insert_default();
                for part in [name.as_bytes(), b": ", value, b"\r\n"] {
                    lines.extend_from_slice(part);
                }
            }
        }
        match self {
            Trailers::Listed(names) => fields.retain(|name| names.pass(name.as_bytes())),
            Trailers::Reports { strip: true } => fields.retain(|name| !is_report(name)),
            Trailers::All | Trailers::Reports { strip: false } => {}
        }
        Ok(reports)
    }
}

/// True if a trailer has load reports.
fn is_report(name: &str) -> bool {
    let is = |known: &str| known.eq_ignore_ascii_case(name);
    is(orca::FIELD) || is(orca::BINARY_FIELD)
}

/// Trailers with load reports, as they came: lines.
#[derive(Clone, Debug, Default)]
pub struct ReportLines(Vec<u8>);

impl ReportLines {
    /// Values of the trailers called `name`, in order.
    pub fn values(&self, name: &str) -> impl Iterator<Item = &[u8]> {
        let lines = self.0.split(|&byte| byte == b'\n');
        lines.filter_map(move |line| {
            let colon = line.iter().position(|&byte| byte == b':')?;
            let (found, value) = line.split_at_checked(colon)?;
            let value = value.get(1..).unwrap_or_default().trim_ascii();
            found.eq_ignore_ascii_case(name.as_bytes()).then_some(value)
        })
    }
}

/// Fate of the trailer that is being read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum TrailerOutcome {
    /// The field's name is not known yet.
    #[default]
    Open,
    Passes,
    Dropped,
    /// Passes, and is kept.
    Kept,
    /// Does not pass, and is kept.
    Taken,
}

/// Follows one chunked body.
///
/// ```
/// use evenkeel_proxy::http1::chunked::{Decoder, ScannedPart};
///
/// let mut decoder = Decoder::new();
/// assert_eq!(decoder.scan_input(b"5\r\nhel"), Ok(ScannedPart { len: 6, end: false }));
/// assert_eq!(decoder.scan_input(b"lo\r\n0\r\n\r\nGET"), Ok(ScannedPart { len: 9, end: true }));
/// ```
#[derive(Clone, Debug)]
pub struct Decoder {
    state: State,
    /// Size of the chunk while that is read, then the bytes that are left of its data.
    left: u64,
    /// Digits of the size, bytes of the extension or of the trailers so far.
    count: u32,
    /// Name of the trailer field that is being read, in lower case; cut if long.
    name: [u8; NAME_BYTES],
    name_len: u16,
    /// Bytes of content that may still come.
    allowed: u64,
    trailers: Trailers,
    /// Load reports among the trailers.
    reports: Option<Box<ReportLines>>,
    /// Bytes at the start of the input that were looked at: a part of the name of a trailer.
    held: u8,
    /// Trailers are next, each of which is looked at.
    picks: bool,
    fate: TrailerOutcome,
    /// Bytes of framing that were looked at, and runs of content.
    #[cfg(test)]
    work: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Size,
    Extension,
    SizeLf,
    Data,
    DataCr,
    DataLf,
    /// Trailers are next, of which some are taken out.
    PickedTrailers,
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
        Self::with_bounds(u64::MAX, Trailers::All)
    }

    /// Before the first byte of a body that may have so many bytes of content, and such trailers.
    pub fn with_bounds(most: u64, trailers: Trailers) -> Self {
        Self {
            state: State::Size,
            left: 0,
            count: 0,
            name: [0; NAME_BYTES],
            name_len: 0,
            allowed: most,
            trailers,
            reports: None,
            held: 0,
            picks: false,
            fate: TrailerOutcome::Open,
            #[cfg(test)]
            work: 0,
        }
    }

    /// True if the body has ended.
    pub fn is_done(&self) -> bool {
        self.state == State::Done
    }

    /// Number of bytes of content that may still come.
    pub fn allowed_content(&self) -> u64 {
        let left = match self.state {
            State::Data => self.left,
            _ => 0,
        };
        self.allowed.saturating_add(left)
    }

    /// Takes the load reports that were kept.
    pub fn take_reports(&mut self) -> Option<Box<ReportLines>> {
        self.reports.take()
    }

    /// Follows `input`, which continues where the last input ended, in a body whose trailers all pass.
    ///
    /// After an error nothing more may be passed on, so that the other side never sees
    /// a whole message: close both connections.
    pub fn scan_input(&mut self, input: &[u8]) -> Result<ScannedPart, ChunkError> {
        let mut len = 0;
        loop {
            match self.next_piece(input.get(len..).unwrap_or_default())? {
                Piece::Framing(0) => {
                    return Ok(ScannedPart {
                        len,
                        end: self.is_done(),
                    });
                }
                Piece::Framing(n) | Piece::Data(n) | Piece::Dropped(n) => len += n,
                Piece::End(n) => {
                    return Ok(ScannedPart {
                        len: len + n,
                        end: true,
                    });
                }
            }
        }
    }

    /// Follows `input`, and takes trailers that do not pass out: what passes is moved to its front.
    ///
    /// Returns how many bytes pass, and how far the input was used. What was not used is to be in front of the
    /// next input.
    pub fn pass_input(&mut self, input: &mut [u8]) -> Result<(usize, ScannedPart), ChunkError> {
        let (mut kept, mut len) = (0, 0);
        loop {
            let piece = self.next_piece(input.get(len..).unwrap_or_default())?;
            match piece {
                Piece::Framing(0) => break,
                Piece::Dropped(n) => len += n,
                Piece::Framing(n) | Piece::Data(n) | Piece::End(n) => {
                    if kept < len {
                        input.copy_within(len..len + n, kept);
                    }
                    kept += n;
                    len += n;
                }
            }
            if let Piece::End(_) = piece {
                break;
            }
        }
        let end = self.is_done();
        Ok((kept, ScannedPart { len, end }))
    }

    /// Takes the framing out of `input`: the content is moved to its front.
    ///
    /// Returns how many bytes of content there are, and how far the input was used.
    pub fn strip_framing(&mut self, input: &mut [u8]) -> Result<(usize, ScannedPart), ChunkError> {
        let mut content = 0;
        let mut len = 0;
        loop {
            match self.next_piece(input.get(len..).unwrap_or_default())? {
                Piece::Framing(0) => {
                    return Ok((
                        content,
                        ScannedPart {
                            len,
                            end: self.is_done(),
                        },
                    ));
                }
                Piece::Framing(n) | Piece::Dropped(n) => len += n,
                Piece::Data(n) => {
                    input.copy_within(len..len + n, content);
                    content += n;
                    len += n;
                }
                Piece::End(n) => {
                    return Ok((
                        content,
                        ScannedPart {
                            len: len + n,
                            end: true,
                        },
                    ));
                }
            }
        }
    }

    /// Tells what the first bytes of `input` are, and goes behind them.
    pub fn next_piece(&mut self, input: &[u8]) -> Result<Piece, ChunkError> {
        if self.picks {
            return self.step_trailer(input);
        }
        if self.state == State::Data {
            let available = u64::try_from(input.len()).unwrap_or(u64::MAX);
            // At most the input's length, which is a usize.
            let taken = self.left.min(available) as usize;
            self.left -= taken as u64;
            #[cfg(test)]
            {
                self.work += usize::from(taken > 0);
            }
            if self.left == 0 {
                self.state = State::DataCr;
            }
            if taken > 0 {
                return Ok(Piece::Data(taken));
            }
        }
        self.step_framing(input)
    }

    /// Goes through `input` where no content is next, and no trailers are picked. The loop is here
    /// once, and what it does with a byte is a part of it.
    fn step_framing(&mut self, input: &[u8]) -> Result<Piece, ChunkError> {
        for (index, &byte) in input.iter().enumerate() {
            match self.state {
                State::Data | State::PickedTrailers => return Ok(Piece::Framing(index)),
                State::Done => return Ok(Piece::Framing(0)),
                _ => self.framing_byte(byte)?,
            }
            #[cfg(test)]
            {
                self.work += 1;
            }
            if self.state == State::Done {
                return Ok(Piece::End(index + 1));
            }
        }
        Ok(Piece::Framing(input.len()))
    }

    /// Goes through `input` where trailers are next, of which some are taken out: a line at a time.
    #[cold]
    fn step_trailer(&mut self, input: &[u8]) -> Result<Piece, ChunkError> {
        if self.is_done() || input.is_empty() {
            return Ok(Piece::Framing(0));
        }
        if self.state == State::PickedTrailers {
            self.state = State::TrailerStart;
        }
        let seen = usize::from(std::mem::take(&mut self.held));
        for (index, byte) in input.chunks(1).enumerate().skip(seen) {
            let was_name = self.state == State::TrailerName;
            self.step_framing(byte)?;
            if matches!(self.fate, TrailerOutcome::Kept | TrailerOutcome::Taken)
                && let Some(ReportLines(lines)) = self.reports.as_deref_mut()
            {
                lines.extend_from_slice(byte);
            }
            match self.state {
                State::Done => return Ok(Piece::End(index + 1)),
                State::TrailerStart => {
                    return Ok(match std::mem::take(&mut self.fate) {
                        TrailerOutcome::Dropped | TrailerOutcome::Taken => {
                            Piece::Dropped(index + 1)
                        }
                        TrailerOutcome::Open | TrailerOutcome::Passes | TrailerOutcome::Kept => {
                            Piece::Framing(index + 1)
                        }
                    });
                }
                State::TrailerValue if was_name && self.fate == TrailerOutcome::Open => {
                    self.name_trailer(input.get(..=index).unwrap_or_default());
                }
                State::TrailerName
                    if self.fate == TrailerOutcome::Open && index >= MAX_TRAILER_NAME =>
                {
                    self.fate = match self.trailers {
                        Trailers::Listed(_) => TrailerOutcome::Dropped,
                        _ => TrailerOutcome::Passes,
                    };
                }
                _ => {}
            }
        }
        Ok(match self.fate {
            TrailerOutcome::Dropped | TrailerOutcome::Taken => Piece::Dropped(input.len()),
            TrailerOutcome::Open if self.state == State::TrailerName => {
                // At most the longest name.
                self.held = input.len() as u8;
                Piece::Framing(0)
            }
            _ => Piece::Framing(input.len()),
        })
    }

    /// Decides on the trailer with this name, of which the colon is a part here.
    fn name_trailer(&mut self, name_and_colon: &[u8]) {
        let name = name_and_colon.strip_suffix(b":").unwrap_or(name_and_colon);
        let is = |known: &str| known.as_bytes().eq_ignore_ascii_case(name);
        self.fate = match &self.trailers {
            Trailers::Listed(names) if !names.pass(name) => TrailerOutcome::Dropped,
            Trailers::Reports { strip } if is(orca::FIELD) || is(orca::BINARY_FIELD) => {
                let ReportLines(lines) = &mut **self.reports.get_or_insert_default();
                lines.extend_from_slice(name_and_colon);
                match strip {
                    true => TrailerOutcome::Taken,
                    false => TrailerOutcome::Kept,
                }
            }
            _ => TrailerOutcome::Passes,
        };
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
                if self.count as usize > MAX_EXTENSION_BYTES {
                    return Err(ChunkError::ExtensionTooLong);
                }
                if !is_text(byte) {
                    return Err(ChunkError::Extension);
                }
                State::Extension
            }
            (State::SizeLf, b'\n') => {
                self.count = 0;
                self.allowed = match self.allowed.checked_sub(self.left) {
                    Some(allowed) => allowed,
                    None => return Err(ChunkError::TooLarge),
                };
                if self.left == 0 {
                    self.picks = !matches!(self.trailers, Trailers::All);
                    match self.picks {
                        true => State::PickedTrailers,
                        false => State::TrailerStart,
                    }
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
            if self.count as usize > MAX_TRAILER_BYTES {
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
            // A name that was cut begins as it does.
            let name = self
                .name
                .get(..usize::from(self.name_len))
                .unwrap_or(&self.name);
            if is_no_trailer(name) {
                return Err(ChunkError::ForbiddenTrailer);
            }
            return Ok(State::TrailerValue);
        }
        if !framing::is_token_byte(byte) {
            return Err(ChunkError::Trailer);
        }
        if let Some(slot) = self.name.get_mut(usize::from(self.name_len)) {
            *slot = plain_byte(byte);
        }
        self.name_len += 1;
        Ok(State::TrailerName)
    }
}

/// True if a byte may stand in a field value or a chunk extension.
fn is_text(byte: u8) -> bool {
    byte == b'\t' || (byte >= b' ' && byte != 0x7f)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::ChunkError as E;
    use super::*;

    /// Scans the input cut into pieces of `size` bytes.
    fn scan(input: &[u8], size: usize) -> Result<ScannedPart, ChunkError> {
        let mut decoder = Decoder::new();
        let mut len = 0;
        for piece in input.chunks(size) {
            let scanned = decoder.scan_input(piece)?;
            len += scanned.len;
            if scanned.end {
                return Ok(ScannedPart { len, end: true });
            }
            assert_eq!(scanned.len, piece.len(), "all of it belongs to the body");
        }
        Ok(ScannedPart { len, end: false })
    }

    /// Content of the input cut into pieces of `size` bytes, and whether it ended.
    fn content(input: &[u8], size: usize) -> Result<(Vec<u8>, bool), ChunkError> {
        let mut decoder = Decoder::new();
        let mut content = Vec::new();
        for piece in input.chunks(size) {
            let mut piece = piece.to_vec();
            let (len, scanned) = decoder.strip_framing(&mut piece)?;
            content.extend_from_slice(&piece[..len]);
            if scanned.end {
                return Ok((content, true));
            }
        }
        Ok((content, false))
    }

    #[test]
    fn trailers_of_streams_pass_as_those_of_chunks_do() {
        let listed = RequestTrailers::new(&["x-sum".into()], |_| false);
        let rules = [
            Trailers::All,
            Trailers::Listed(Arc::new(listed)),
            Trailers::Reports { strip: false },
            Trailers::Reports { strip: true },
        ];
        let long = "v".repeat(MAX_TRAILER_BYTES - "x:\r".len() - 1);
        let sections: &[&[(&str, &str)]] = &[
            &[],
            &[("grpc-status", "0"), ("grpc-message", "")],
            &[("x-sum", "1"), ("server-timing", "a"), ("x-other", "2")],
            &[(orca::FIELD, "TEXT cpu=0.5"), ("x-sum", "1")],
            &[
                ("x-sum", "1"),
                (orca::BINARY_FIELD, "AAAA"),
                (orca::FIELD, "a"),
            ],
            &[("content-length", "3")],
            &[("x", "1"), ("transfer_encoding", "chunked")],
            &[("host", "a")],
            &[("a-name-that-is-longer-than-those-that-are-kept", "1")],
            &[("x", &long)],
            &[("x", &long), ("y", "")],
        ];
        for trailers in rules {
            for section in sections {
                let lines: String = section
                    .iter()
                    .map(|(name, value)| format!("{name}: {value}\r\n"))
                    .collect();
                let mut decoder = Decoder::with_bounds(0, trailers.clone());
                let mut input = format!("0\r\n{lines}\r\n").into_bytes();
                let passed = decoder.pass_input(&mut input).map(|(kept, scanned)| {
                    assert!(scanned.end);
                    let reports = decoder.take_reports().map(|lines| lines.0);
                    let kept = input.get("0\r\n".len()..kept - "\r\n".len());
                    (kept.unwrap_or_default().to_vec(), reports)
                });
                let mut fields = evenkeel_http2::Fields::new();
                for (name, value) in *section {
                    assert!(fields.push(name.as_bytes(), value.as_bytes()));
                }
                let sorted = trailers.sort_out(&mut fields);
                let sorted =
                    sorted.map(|reports| (fields.text().to_vec(), reports.map(|lines| lines.0)));
                assert_eq!(sorted, passed, "{trailers:?} {lines:.60}");
            }
        }
    }

    #[test]
    fn bodies_end_where_they_end() {
        for (input, expected) in [
            ("0\r\n\r\n", ""),
            ("5\r\nhello\r\n0\r\n\r\n", "hello"),
            (
                "5\r\nhello\r\n01\r\n,\r\nA\r\n0123456789\r\n000\r\n\r\n",
                "hello,0123456789",
            ),
            ("a;name\r\n0123456789\r\n0;x=\"y;z\"\r\n\r\n", "0123456789"),
            ("2\r\n\r\n\r\n0\r\n\r\n", "\r\n"),
            ("0\r\nServer-Timing: a\r\nX:\r\n\r\n", ""),
            ("1\r\nx\r\n0\r\nContent-Lengths: none of them\r\n\r\n", "x"),
            ("0000000000000001\r\nx\r\n0\r\n\r\n", "x"),
        ] {
            let followed = format!("{input}GET / HTTP/1.1\r\n");
            let end = ScannedPart {
                len: input.len(),
                end: true,
            };
            for size in 1..followed.len() {
                assert_eq!(scan(followed.as_bytes(), size), Ok(end), "{input:?} {size}");
                let stripped = content(followed.as_bytes(), size);
                assert_eq!(stripped, Ok((expected.into(), true)), "{input:?} {size}");
            }
            for cut in 0..input.len() {
                let open = ScannedPart {
                    len: cut,
                    end: false,
                };
                assert_eq!(
                    scan(&input.as_bytes()[..cut], 64),
                    Ok(open),
                    "{input:?} {cut}"
                );
            }
        }
    }

    #[test]
    fn ambiguous_bodies_are_refused() {
        let long_extension = format!("1;{}\r\nx\r\n", "e".repeat(MAX_EXTENSION_BYTES + 1));
        let long_trailers = format!("0\r\n{}", "X: y\r\n".repeat(MAX_TRAILER_BYTES / 5 + 1));
        for (name, input, error) in [
            ("no size", "\r\n", E::Size),
            ("no size, extension", ";x\r\n", E::Size),
            ("plus", "+5\r\nhello\r\n", E::Size),
            ("minus", "-5\r\nhello\r\n", E::Size),
            ("prefix 0x", "0x5\r\nhello\r\n", E::Size),
            ("underscore", "1_0\r\n", E::Size),
            ("no hexadecimal digit", "g\r\n", E::Size),
            ("space before size", " 5\r\nhello\r\n", E::Size),
            ("space after size", "5 \r\nhello\r\n", E::Size),
            ("space before extension", "5 ;x\r\nhello\r\n", E::Size),
            ("tab after size", "5\t\r\nhello\r\n", E::Size),
            (
                "seventeen digits",
                "00000000000000005\r\nhello\r\n",
                E::Size,
            ),
            ("2^63", "8000000000000000\r\n", E::Size),
            ("2^64", "10000000000000000\r\n", E::Size),
            ("LF after size", "5\nhello\r\n", E::Size),
            ("CR after size", "5\rhello\r\n", E::LineEnd),
            ("LF in extension", "5;x\nhello\r\n", E::Extension),
            ("CR in extension", "5;x\ry\r\nhello\r\n", E::LineEnd),
            ("NUL in extension", "5;\0\r\nhello\r\n", E::Extension),
            ("long extension", &long_extension, E::ExtensionTooLong),
            ("data too long", "5\r\nhello!\r\n", E::LineEnd),
            ("data too short", "5\r\nhell\r\n0\r\n\r\n", E::LineEnd),
            ("LF after data", "5\r\nhello\n0\r\n\r\n", E::LineEnd),
            ("CR after data", "5\r\nhello\r0\r\n\r\n", E::LineEnd),
            ("LF at the end", "0\r\n\n", E::Trailer),
            ("LF after the last size", "0\n\r\n", E::Size),
            ("CR CR LF at the end", "0\r\n\r\r\n", E::LineEnd),
            ("trailer with LF", "0\r\nX: y\n\r\n", E::Trailer),
            ("trailer with CR", "0\r\nX: y\rz\r\n\r\n", E::LineEnd),
            ("trailer without name", "0\r\n: y\r\n\r\n", E::Trailer),
            ("trailer without colon", "0\r\nX\r\n\r\n", E::Trailer),
            ("trailer with space", "0\r\nX : y\r\n\r\n", E::Trailer),
            ("trailer folded", "0\r\nX: y\r\n z\r\n\r\n", E::Trailer),
            ("trailer with NUL", "0\r\nX: \0\r\n\r\n", E::Trailer),
            (
                "trailer frames",
                "0\r\nContent-Length: 5\r\n\r\n",
                E::ForbiddenTrailer,
            ),
            (
                "trailer frames, 2",
                "0\r\ntransfer-encoding: x\r\n\r\n",
                E::ForbiddenTrailer,
            ),
            (
                "trailer frames, 3",
                "0\r\nCONTENT_LENGTH: 5\r\n\r\n",
                E::ForbiddenTrailer,
            ),
            (
                "trailer routes",
                "0\r\nX: y\r\nHost: x\r\n\r\n",
                E::ForbiddenTrailer,
            ),
            (
                "trailer for this hop",
                "0\r\nConnection: x\r\n\r\n",
                E::ForbiddenTrailer,
            ),
            ("long trailers", &long_trailers, E::TrailersTooLong),
        ] {
            for size in [1, 2, 3, 7, input.len()] {
                assert_eq!(scan(input.as_bytes(), size), Err(error), "{name}, {size}");
            }
        }
    }

    /// Trailers cannot bring a member what a head must not bring it.
    #[test]
    fn s6_trailers_are_as_strict_as_heads() {
        let long = format!("X_Forwarded-{}", "x".repeat(100));
        for name in [
            "X-Forwarded-Port",
            "x_forwarded_prefix",
            "X-FORWARDED-For",
            "proxy-authentication-info",
            "Proxy_Authorization",
            "Keep-Alive",
            "TE",
            "Via",
            "If-None-Match",
            &long,
        ] {
            let input = format!("1\r\nx\r\n0\r\nA: b\r\n{name}: y\r\n\r\n");
            for size in [1, 5, input.len()] {
                assert_eq!(
                    scan(input.as_bytes(), size),
                    Err(E::ForbiddenTrailer),
                    "{name}"
                );
            }
        }
        let long = "ETag".repeat(20);
        for name in ["ETag", "X-Forwarded", "X-Forwarded-", "Digest", &long] {
            let input = format!("0\r\n{name}: y\r\n\r\n");
            assert!(scan(input.as_bytes(), 3).unwrap().end, "{name}");
        }
    }

    /// Work grows with the bytes that come, and dripping makes it no more than a look at
    /// each of them.
    #[test]
    fn s8_chunks_cost_the_same_whether_they_come_at_once_or_drip() {
        for (chunk, chunks) in [(1, 10), (1, 10_000), (1000, 10), (1000, 1000)] {
            let mut body = format!("{chunk:x};x=y\r\n{}\r\n", "x".repeat(chunk)).repeat(chunks);
            body += "0\r\nA: b\r\nETag: c\r\n\r\n";
            let framing = body.len() - chunk * chunks;
            for size in [1, 7, 1000, body.len()] {
                let mut decoder = Decoder::new();
                let pieces = body.as_bytes().chunks(size);
                let most = framing + chunks + pieces.len();
                let mut stripper = Decoder::new();
                for piece in pieces {
                    decoder.scan_input(piece).unwrap();
                    stripper.strip_framing(&mut piece.to_vec()).unwrap();
                }
                assert!(decoder.is_done() && stripper.is_done());
                for work in [decoder.work, stripper.work] {
                    assert!(
                        work <= most,
                        "{chunks} of {chunk} by {size}: {work} > {most}"
                    );
                }
            }
        }
    }

    /// The pieces of a body whose trailers are picked, joined; what is not used is in front of the next piece.
    fn picked(input: &[u8], size: usize) -> (Result<Vec<u8>, ChunkError>, usize) {
        let names = RequestTrailers::new(&["X-Sum".to_owned()], |_| false);
        let mut decoder = Decoder::with_bounds(u64::MAX, Trailers::Listed(Arc::new(names)));
        let passed = passed(&mut decoder, input, size);
        (passed, decoder.work)
    }

    fn passed(decoder: &mut Decoder, input: &[u8], size: usize) -> Result<Vec<u8>, ChunkError> {
        let (mut passed, mut rest) = (Vec::new(), Vec::new());
        for piece in input.chunks(size) {
            rest.extend_from_slice(piece);
            match decoder.pass_input(&mut rest) {
                Ok((kept, scanned)) => {
                    passed.extend_from_slice(&rest[..kept]);
                    rest.drain(..scanned.len);
                    assert!(scanned.end || rest.len() <= MAX_TRAILER_NAME + 1);
                    if scanned.end {
                        break;
                    }
                }
                Err(error) => return Err(error),
            }
        }
        Ok(passed)
    }

    #[test]
    fn fronts_d6_reports_in_trailers_are_kept_however_they_are_cut() {
        let long = format!("x{}Endpoint-Load-Metrics: y\r\n", "-long".repeat(13));
        let sent = format!(
            "Server-Timing: a\r\nEndpoint-Load-Metrics:  TEXT a=1 \r\n{long}endpoint-load-metrics-bin:AA\r\n\
             endpoint-load-metrics-x: 1\r\n"
        );
        let stripped = format!("Server-Timing: a\r\n{long}endpoint-load-metrics-x: 1\r\n");
        let body = |trailers: &str| format!("3\r\nabc\r\n0\r\n{trailers}\r\n").into_bytes();
        let input = body(&sent);
        for (strip, passes) in [(true, &stripped), (false, &sent)] {
            for size in 1..=input.len() {
                let mut decoder = Decoder::with_bounds(u64::MAX, Trailers::Reports { strip });
                let passed = passed(&mut decoder, &input, size);
                assert_eq!(passed, Ok(body(passes)), "{strip} {size}");
                assert!(decoder.work <= input.len());
                let reports = decoder.take_reports().unwrap();
                let values = |name| reports.values(name).collect::<Vec<_>>();
                assert_eq!(values(orca::FIELD), [b"TEXT a=1"], "{size}");
                assert_eq!(values(orca::BINARY_FIELD), [b"AA"], "{size}");
                assert!(decoder.take_reports().is_none());
                // Without chunks, as for HTTP/1.0.
                let mut decoder = Decoder::with_bounds(u64::MAX, Trailers::Reports { strip });
                let (mut content, mut rest) = (Vec::new(), Vec::new());
                for piece in input.chunks(size) {
                    rest.extend_from_slice(piece);
                    let (n, scanned) = decoder.strip_framing(&mut rest).unwrap();
                    content.extend_from_slice(&rest[..n]);
                    rest.drain(..scanned.len);
                }
                assert!(decoder.is_done() && content == b"abc");
                assert!(decoder.take_reports().is_some());
            }
        }
        // Nothing is kept of what has none.
        let mut decoder = Decoder::with_bounds(u64::MAX, Trailers::Reports { strip: true });
        assert_eq!(
            passed(&mut decoder, &body("A: b\r\n"), 9),
            Ok(body("A: b\r\n"))
        );
        assert!(decoder.take_reports().is_none());
    }

    #[test]
    fn n1_trailers_are_picked_however_they_are_cut() {
        let long = format!("x{}: y\r\n", "-long".repeat(50));
        for (sent, passes) in [
            ("", ""),
            ("X-Sum: 1\r\n", "X-Sum: 1\r\n"),
            ("X-Su: 1\r\nX-Sum: 1\r\nX-Summ: 1\r\n", "X-Sum: 1\r\n"),
            (&long, ""),
            (
                &[&long, "x-sum:\r\n", &long, "Digest: x:y\r\n"].concat(),
                "x-sum:\r\nDigest: x:y\r\n",
            ),
        ] {
            let input = format!("3\r\nabc\r\n0;x=y\r\n{sent}\r\n");
            let wanted = format!("3\r\nabc\r\n0;x=y\r\n{passes}\r\n");
            for size in 1..=input.len() {
                let (passed, work) = picked(input.as_bytes(), size);
                assert_eq!(passed, Ok(wanted.clone().into_bytes()), "{sent} {size}");
                assert!(work <= input.len(), "{work} {size}");
            }
        }
        for (sent, error) in [
            ("Host: a\r\n", E::ForbiddenTrailer),
            ("X_Forwarded_For: a\r\n", E::ForbiddenTrailer),
            ("X: \0\r\n", E::Trailer),
            ("X\r\n", E::Trailer),
            (&long.repeat(MAX_TRAILER_BYTES / 200), E::TrailersTooLong),
        ] {
            let input = format!("0\r\n{sent}\r\n");
            for size in [1, 3, input.len()] {
                assert_eq!(
                    picked(input.as_bytes(), size).0,
                    Err(error),
                    "{sent} {size}"
                );
            }
        }
    }

    #[test]
    fn nothing_follows_the_end() {
        let mut decoder = Decoder::new();
        let body = b"0\r\n\r\n";
        assert_eq!(
            decoder.scan_input(body),
            Ok(ScannedPart { len: 5, end: true })
        );
        assert!(decoder.is_done());
        assert_eq!(
            decoder.scan_input(body),
            Ok(ScannedPart { len: 0, end: true })
        );
    }

    /// Another way to read a chunked body: whole, by lines, without a state machine.
    /// Returns the content and the length of the body; `None` if it is not valid or whole.
    fn read_whole(input: &[u8]) -> Option<(Vec<u8>, usize)> {
        let mut content = Vec::new();
        let mut rest = input;
        loop {
            let line = take_line(&mut rest)?;
            let digits = line.split(|&byte| byte == b';').next()?;
            let digits = std::str::from_utf8(digits).ok()?;
            if digits.len() > 16 || !digits.chars().all(|c| c.is_ascii_hexdigit()) {
                return None;
            }
            if line.len() - digits.len() > MAX_EXTENSION_BYTES + 1 {
                return None;
            }
            let size = i64::from_str_radix(digits, 16).ok()?.try_into().ok()?;
            if size == 0 {
                break;
            }
            content.extend_from_slice(rest.get(..size)?);
            rest = rest.get(size..)?.strip_prefix(b"\r\n")?;
        }
        let mut trailers = 0;
        loop {
            let line = take_line(&mut rest)?;
            if line.is_empty() {
                return Some((content, input.len() - rest.len()));
            }
            trailers += line.len() + 1;
            let colon = line.iter().position(|&byte| byte == b':')?;
            let name = String::from_utf8(line[..colon].to_ascii_lowercase()).ok()?;
            let name = name.replace('_', "-");
            let token = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
            if name.is_empty() || !name.chars().all(token) || trailers > MAX_TRAILER_BYTES {
                return None;
            }
            let of_this_hop = [
                "connection",
                "content-length",
                "expect",
                "forwarded",
                "host",
                "keep-alive",
                "proxy-authenticate",
                "proxy-authentication-info",
                "proxy-authorization",
                "proxy-connection",
                "te",
                "transfer-encoding",
                "upgrade",
            ];
            if is_no_trailer(&name)
                || of_this_hop.contains(&name.as_str())
                || name.len() > 12 && name.starts_with("x-forwarded-")
            {
                return None;
            }
        }
    }

    fn take_line<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
        let end = rest.windows(2).position(|two| two == b"\r\n")?;
        let (line, after) = rest.split_at(end);
        *rest = &after[2..];
        let text = |&byte: &u8| byte == b'\t' || !byte.is_ascii_control();
        line.iter().all(text).then_some(line)
    }

    /// Pieces that make valid bodies often, and nearly valid ones most of the time.
    fn piece() -> impl Strategy<Value = Vec<u8>> {
        let fixed = prop::sample::select(vec![
            "\r\n",
            "0\r\n",
            "0\r\n\r\n",
            "5\r\n",
            "5\r\nhello\r\n",
            "a\r\n",
            "0123456789",
            "\r",
            "\n",
            ";",
            ";x=y",
            " ",
            "X: y\r\n",
            "te: y\r\n",
            "content-length: 1\r\n",
            "\r\n\r\n",
            "7fffffffffffffff\r\n",
            "8000000000000000\r\n",
            "\0",
            "0",
            "00",
        ]);
        prop_oneof![
            8 => fixed.prop_map(|text| text.as_bytes().to_vec()),
            4 => prop::collection::vec(any::<u8>(), 1..40).prop_map(|data| {
                let mut chunk = format!("{:x}\r\n", data.len()).into_bytes();
                chunk.extend_from_slice(&data);
                chunk.extend_from_slice(b"\r\n");
                chunk
            }),
            1 => prop::collection::vec(any::<u8>(), 1..4),
        ]
    }

    proptest! {
        #[test]
        fn agrees_with_a_reader_of_whole_bodies(
            pieces in prop::collection::vec(piece(), 0..12),
            ends in any::<bool>(),
            size in 1usize..50,
        ) {
            let mut input = pieces.concat();
            if ends {
                input.extend_from_slice(b"0\r\n\r\n");
            }
            match read_whole(&input) {
                Some((expected, len)) => {
                    prop_assert_eq!(scan(&input, size), Ok(ScannedPart { len, end: true }));
                    prop_assert_eq!(content(&input, size), Ok((expected, true)));
                }
                None => {
                    let ended = scan(&input, size).is_ok_and(|scanned| scanned.end);
                    prop_assert!(!ended);
                }
            }
        }

        #[test]
        fn the_cut_does_not_matter(
            pieces in prop::collection::vec(piece(), 0..12),
            size in 1usize..50,
        ) {
            let input = pieces.concat();
            prop_assert_eq!(scan(&input, size), scan(&input, input.len().max(1)));
            prop_assert_eq!(content(&input, size), content(&input, input.len().max(1)));
        }
    }
}
