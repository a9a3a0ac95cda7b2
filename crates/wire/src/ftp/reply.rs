//! Replies of servers.

use super::Refusal;

/// A line of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// The reply's code, 100 to 599 (or 631 to 633, which are protected replies: RFC 2228).
    pub code: u16,
    /// Whether it is the first line.
    pub first: bool,
    /// Whether it is the last line.
    pub last: bool,
}

/// Knows where replies begin and end (RFC 959, section 4.2).
#[derive(Debug, Default)]
pub struct Replies {
    /// The code of a reply that has begun.
    begun: Option<u16>,
}

impl Replies {
    /// Takes a line.
    ///
    /// # Errors
    ///
    /// A reply cannot begin like that.
    pub fn take(&mut self, line: &[u8]) -> Result<Part, Refusal> {
        let head = head(line);
        if let Some(code) = self.begun {
            let last = head == Some((code, b' '));
            if last {
                self.begun = None;
            }
            let first = false;
            return Ok(Part { code, first, last });
        }
        let (code, mark) = head.ok_or(Refusal::Reply)?;
        let last = mark != b'-';
        if !last {
            self.begun = Some(code);
        }
        let first = true;
        Ok(Part { code, first, last })
    }

    /// Whether a reply has begun that has not ended.
    pub fn is_within(&self) -> bool {
        self.begun.is_some()
    }
}

/// The code at the beginning of a line, and what follows it. A code alone is what some servers write
/// if they have no text.
fn head(line: &[u8]) -> Option<(u16, u8)> {
    let (digits, rest) = line.split_first_chunk::<3>()?;
    let [a @ b'1'..=b'6', b @ b'0'..=b'9', c @ b'0'..=b'9'] = digits.map(|byte| byte) else {
        return None;
    };
    let code = [a, b, c]
        .iter()
        .fold(0, |code, digit| code * 10 + u16::from(digit - b'0'));
    match rest.first() {
        None => Some((code, b' ')),
        Some(mark @ (b' ' | b'-')) => Some((code, *mark)),
        Some(_) => None,
    }
}
