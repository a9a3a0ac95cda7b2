//! Numbers with their nouns.

/// Returns a number with its noun, which has an `s` unless the number is 1.
pub(crate) fn format_count(count: usize, noun: &str) -> String {
    match count {
        1 => format!("1 {noun}"),
        _ => format!("{count} {noun}s"),
    }
}
