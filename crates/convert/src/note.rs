//! Notes about lines that were not translated, or not quite.

use std::collections::HashSet;
use std::fmt;

/// Most notes that are kept.
pub(crate) const MAX_NOTES: usize = 500;

/// A line of the original that was not translated, or not quite.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// Number of the line, from 1.
    pub line: usize,
    /// The line, shortened.
    pub text: String,
    /// The reason, and what to do instead.
    pub reason: String,
    /// True if the line restricts who gets in: without it the result lets more in.
    pub restricts: bool,
}

/// `line N: TEXT: WHY`
impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mark = if self.restricts {
            "this line RESTRICTS ACCESS: "
        } else {
            ""
        };
        write!(
            f,
            "line {}: {}: {mark}{}",
            self.line, self.text, self.reason
        )
    }
}

/// Notes while they are collected.
#[derive(Clone, Debug, Default)]
pub(crate) struct Notes {
    all: Vec<(usize, String, bool)>,
    known: HashSet<(usize, String)>,
}

impl Notes {
    /// Notes why a line that restricts no access is not translated.
    pub(crate) fn add_note(&mut self, line: usize, why: impl Into<String>) {
        self.push(line, why.into(), false);
    }

    /// Notes why a line that restricts access is not translated.
    pub(crate) fn add_restriction(&mut self, line: usize, why: impl Into<String>) {
        self.push(line, why.into(), true);
    }

    fn push(&mut self, line: usize, why: String, restricts: bool) {
        // What it quotes must not end the comment that it stands in.
        let why = why.replace(char::is_control, " ");
        if self.all.len() < MAX_NOTES && self.known.insert((line, why.clone())) {
            self.all.push((line, why, restricts));
        }
    }

    /// The notes, with the lines of `original`.
    pub(crate) fn take(&mut self, original: &str) -> Vec<Note> {
        let lines: Vec<&str> = original.lines().collect();
        let notes = std::mem::take(&mut self.all).into_iter();
        let note = |(line, why, restricts): (usize, String, bool)| {
            let text = lines.get(line.wrapping_sub(1)).copied().unwrap_or_default();
            let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
            let short: String = text.chars().filter(|c| !c.is_control()).take(80).collect();
            let text = if short.len() < text.len() {
                format!("{short}…")
            } else {
                short
            };
            Note {
                line,
                text,
                reason: why,
                restricts,
            }
        };
        notes.map(note).collect()
    }
}
