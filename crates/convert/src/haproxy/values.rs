//! Words with values, words that are not translated, and the beginnings of addresses.

use crate::note::{Notes, Remark};
use crate::units::parse_millis;

/// Words of a line, some of them followed by a value.
pub(super) type Words<'w> = std::slice::Iter<'w, String>;

pub(super) fn next_value<'w>(words: &mut Words<'w>) -> &'w str {
    words.next().map_or("", String::as_str)
}

/// Reads a time in milliseconds, unless it has a unit; `None`, with a remark, if the value is no time.
pub(super) fn read_millis(text: &str, line: usize, notes: &mut Notes) -> Option<u64> {
    let millis = parse_millis(text, 1);
    if millis.is_none() {
        notes.add_note(line, "not a time");
    }
    millis
}

/// Words that are not translated: true if a value follows, names, and the remark.
pub(super) type Skipped = [(bool, &'static [&'static str], Remark)];

/// Skips a word of a table, with its value; returns false if the table does not have the word.
pub(super) fn skip_word(
    word: &str,
    words: &mut Words<'_>,
    table: &Skipped,
    line: usize,
    notes: &mut Notes,
) -> bool {
    let found = table.iter().find(|(_, names, _)| names.contains(&word));
    let Some((has_value, _, remark)) = found else {
        return false;
    };
    if *has_value {
        words.next();
    }
    notes.add_remark(line, *remark);
    true
}

/// Takes the family of the internet from the front of an address.
///
/// # Errors
///
/// The address of a Unix socket, if it is one.
pub(super) fn without_family(text: &str) -> Result<&str, String> {
    let text = text
        .strip_prefix("ipv4@")
        .or_else(|| text.strip_prefix("ipv6@"))
        .unwrap_or(text);
    let path = text.strip_prefix("unix@");
    match path.or(text.starts_with('/').then_some(text)) {
        Some(path) => Err(format!("unix:{path}")),
        None => Ok(text),
    }
}
