//! Tables for people, and what must be reached.

use std::fmt::Write as _;

/// Lines of a Markdown table.
pub(crate) struct Table {
    text: String,
}

impl Table {
    pub(crate) fn new(heads: &[&str]) -> Self {
        let mut table = Table {
            text: String::new(),
        };
        table.add_row(heads.iter().map(|head| (*head).to_owned()));
        table.add_row(heads.iter().map(|_| "---".to_owned()));
        table
    }

    pub(crate) fn add_row(&mut self, cells: impl IntoIterator<Item = String>) {
        for cell in cells {
            self.text.push_str("| ");
            self.text.push_str(&cell);
            self.text.push(' ');
        }
        self.text.push_str("|\n");
    }

    pub(crate) fn text(&self) -> &str {
        &self.text
    }
}

/// Result of a demand: measured and reached or not, or not measured.
pub(crate) struct Verdict {
    part: &'static str,
    what: String,
    seen: String,
    reached: Option<bool>,
}

impl Verdict {
    /// A demand that was measured.
    pub(crate) fn new(part: &'static str, what: &str, seen: String, reached: bool) -> Self {
        Verdict {
            part,
            what: what.into(),
            seen,
            reached: Some(reached),
        }
    }

    /// A demand that could not be measured here.
    pub(crate) fn not_measured(part: &'static str, what: &str, why: String) -> Self {
        Verdict {
            part,
            what: what.into(),
            seen: why,
            reached: None,
        }
    }

    fn line(&self) -> String {
        let reached = match self.reached {
            Some(true) => "yes",
            Some(false) => "**no**",
            None => "not measured",
        };
        let Verdict {
            part, what, seen, ..
        } = self;
        format!("| {part} | {what} | {seen} | {reached} |\n")
    }

    /// A table of verdicts.
    pub(crate) fn format_table(verdicts: &[Verdict]) -> String {
        let mut text = Table::new(&["part", "must reach", "seen", "reached"]).text;
        verdicts
            .iter()
            .for_each(|verdict| text.push_str(&verdict.line()));
        text
    }

    /// A table of these, and of those in `before` whose parts are not among them.
    pub(crate) fn merge(before: &str, verdicts: &[Verdict]) -> String {
        let mut text = Self::format_table(&[]);
        let heads = text.lines().count();
        let is_new = |line: &str| {
            let part = line.split('|').nth(1).unwrap_or_default().trim();
            verdicts.iter().any(|verdict| verdict.part == part)
        };
        for line in before.lines().skip(heads).filter(|line| !is_new(line)) {
            let _ = writeln!(text, "{line}");
        }
        verdicts
            .iter()
            .for_each(|verdict| text.push_str(&verdict.line()));
        text
    }
}
