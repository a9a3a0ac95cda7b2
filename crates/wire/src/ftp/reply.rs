//! Replies of servers.

/// A line of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// The reply's code, 100 to 599 (or 631 to 633, which are protected replies: RFC 2228).
    pub code: u16,
    /// True if this is the first line.
    pub first: bool,
    /// True if this is the last line.
    pub last: bool,
}

/// Knows where replies begin and end (RFC 959, section 4.2).
#[derive(Debug, Default)]
pub struct Replies {
    /// The code of a reply that has begun.
    begun: Option<u16>,
    /// The code of a line that ends the reply for many clients, and not by the RFC: its code is
    /// another one than that of the first line, or no space follows. Only if nothing has come since.
    loose_end: Option<u16>,
}

impl Replies {
    /// Takes a line; `None` if it belongs to no reply. Clients pass over such lines.
    pub fn take(&mut self, line: &[u8]) -> Option<Part> {
        let head = parse_code(line);
        let Some(code) = self.begun else {
            let (code, mark) = head?;
            let last = mark != b'-';
            self.begun = (!last).then_some(code);
            let first = true;
            return Some(Part { code, first, last });
        };
        let last = head == Some((code, b' '));
        if last {
            self.begun = None;
            self.loose_end = None;
        } else if !line.is_empty() {
            let end = head.filter(|(_, mark)| *mark != b'-');
            self.loose_end = end.map(|(code, _)| code);
        }
        let first = false;
        Some(Part { code, first, last })
    }

    /// Returns true if a reply has begun that has not ended.
    pub fn is_within(&self) -> bool {
        self.begun.is_some()
    }

    /// Returns true if the last line ends the reply for many clients, and not by the RFC. If nothing
    /// more comes for a while the server means it as the end: see [`Replies::end_loosely`].
    pub fn has_loose_end(&self) -> bool {
        self.loose_end.is_some()
    }

    /// Ends a reply that [has a loose end](Self::has_loose_end); answers its first and last code.
    pub fn end_loosely(&mut self) -> Option<(u16, u16)> {
        let last = self.loose_end.take()?;
        let first = self.begun.take()?;
        Some((first, last))
    }
}

/// The code at the beginning of a line, and what follows it. Some servers write nothing behind a
/// code, or another character than a space.
pub(super) fn parse_code(line: &[u8]) -> Option<(u16, u8)> {
    let (digits, rest) = line.split_first_chunk::<3>()?;
    let [a @ b'1'..=b'6', b @ b'0'..=b'9', c @ b'0'..=b'9'] = digits.map(|byte| byte) else {
        return None;
    };
    let code = [a, b, c]
        .iter()
        .fold(0, |code, digit| code * 10 + u16::from(digit - b'0'));
    match rest.first() {
        None => Some((code, b' ')),
        // A longer number is none.
        Some(b'0'..=b'9') => None,
        Some(mark) => Some((code, *mark)),
    }
}
