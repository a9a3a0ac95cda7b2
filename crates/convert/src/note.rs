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

/// Remark for a directive that is not translated.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Remark {
    /// Nothing is missed without the directive.
    Needless,
    Note(&'static str),
    Restriction(&'static str),
}

/// Names of directives, and the remark for each of them.
pub(crate) type Remarks = [(&'static [&'static str], Remark)];

pub(crate) const NO_COUNTERPART: Remark = Remark::Note("Evenkeel has no counterpart");
pub(crate) const HARDLY_NEEDED: Remark =
    Remark::Note("Evenkeel has no counterpart, and mostly needs none");

impl Notes {
    /// Notes why a line that restricts no access is not translated.
    pub(crate) fn add_note(&mut self, line: usize, why: impl Into<String>) {
        self.push(line, why.into(), false);
    }

    /// Notes why a line that restricts access is not translated.
    pub(crate) fn add_restriction(&mut self, line: usize, why: impl Into<String>) {
        self.push(line, why.into(), true);
    }

    pub(crate) fn add_remark(&mut self, line: usize, remark: Remark) {
        match remark {
            Remark::Needless => {}
            Remark::Note(why) => self.add_note(line, why),
            Remark::Restriction(why) => self.add_restriction(line, why),
        }
    }

    /// Adds the remark that a table has for `name`; returns false if the table does not have the name.
    pub(crate) fn remark_on(&mut self, line: usize, name: &str, table: &Remarks) -> bool {
        let found = table.iter().find(|(names, _)| names.contains(&name));
        if let Some((_, remark)) = found {
            self.add_remark(line, *remark);
        }
        found.is_some()
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
