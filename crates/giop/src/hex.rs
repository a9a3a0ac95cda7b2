//! Bytes as text: two hexadecimal digits each.

use std::fmt;

pub(crate) fn write(bytes: &[u8], out: &mut fmt::Formatter<'_>) -> fmt::Result {
    bytes.iter().try_for_each(|byte| write!(out, "{byte:02x}"))
}

/// Reads digits of either case. Fails at the first character that is no digit of a whole
/// byte.
pub(crate) fn read(text: &str) -> Result<Vec<u8>, usize> {
    let digits = text.as_bytes();
    let digit = |at: usize| {
        let digit = digits.get(at).and_then(|&c| char::from(c).to_digit(16));
        digit.ok_or(at)
    };
    let bytes = (0..digits.len()).step_by(2).map(|at| {
        // Two digits are at most 255.
        Ok((digit(at)? << 4 | digit(at + 1)?) as u8)
    });
    bytes.collect()
}
