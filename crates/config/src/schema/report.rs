//! Collects what is wrong with a document, in the order of the file.

use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::address::host_port;
use super::document::{Item, Span, shorten};
use super::errors::{Errors, Problem, SourcePosition, WRONG_TYPE};
use super::reference::TableDoc;

/// Condition of a problem: a broken document must not be blamed for what the breakage itself has hidden.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Trust {
    /// True whatever else is wrong.
    Sure,
    /// Says that something is not there, or in the wrong place: true only if the
    /// document could be read as a whole.
    NeedsWhole,
}

struct Found {
    /// Order in the list of problems: after the possible cause.
    order: usize,
    trust: Trust,
    /// The line that it is about, over all files.
    line: usize,
    problem: Problem,
}

/// Number of problems that were reported at some time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    found: usize,
    warnings: usize,
    omitted: usize,
}

/// A file that the document is made of besides its first one.
struct Part {
    file: String,
    /// The line, over all files, that is its first one.
    first_line: usize,
}

/// Collects problems.
pub(crate) struct Report<'s> {
    file: &'s str,
    /// The texts of all files, one after the other.
    text: Cow<'s, str>,
    /// All files but the first one.
    parts: Vec<Part>,
    /// Texts that had variables in them, by where they begin; and whether they were nothing but one.
    variables: HashMap<usize, bool>,
    /// The tables that such a file can have.
    tables: fn() -> Vec<TableDoc>,
    line_starts: Vec<usize>,
    found: Vec<Found>,
    warnings: Vec<Found>,
    omitted: usize,
    /// Lines with a syntax error: what else is wrong there follows from it.
    broken_lines: Vec<Range<usize>>,
    /// True if parts of the document could not be read at all.
    incomplete: bool,
    /// True if the balancer has made the document of objects of others.
    is_generated: bool,
}

impl<'s> Report<'s> {
    /// A report about `text`, with nothing wrong yet.
    pub(crate) fn new(file: &'s str, text: &'s str, tables: fn() -> Vec<TableDoc>) -> Self {
        let starts = text.match_indices('\n').map(|(at, _)| at + 1);
        Report {
            file,
            text: Cow::Borrowed(text),
            parts: Vec::new(),
            variables: HashMap::new(),
            tables,
            line_starts: std::iter::once(0).chain(starts).collect(),
            found: Vec::new(),
            warnings: Vec::new(),
            omitted: 0,
            broken_lines: Vec::new(),
            incomplete: false,
            is_generated: false,
        }
    }

    /// Sets that the balancer has made the document of objects of others: all problems are kept, since the owner of
    /// each has to be found, and a route that can never match is no problem.
    pub(crate) fn set_generated(&mut self) {
        self.is_generated = true;
    }

    /// True if the balancer has made the document of objects of others.
    pub(crate) fn is_generated(&self) -> bool {
        self.is_generated
    }

    /// Takes in that the document has a part in another file; answers where that begins: places in
    /// it count from there.
    pub(crate) fn add_file(&mut self, file: &str, text: &str) -> usize {
        let all = self.text.to_mut();
        all.push('\n');
        let base = all.len();
        all.push_str(text);
        self.line_starts.push(base);
        self.parts.push(Part {
            file: file.into(),
            first_line: self.line_starts.len(),
        });
        let starts = text.match_indices('\n').map(|(at, _)| base + at + 1);
        self.line_starts.extend(starts);
        base
    }

    /// The files of the document besides its first one.
    pub(crate) fn other_files(&self) -> impl Iterator<Item = &str> {
        self.parts.iter().map(|part| &*part.file)
    }

    /// Takes in that the text at `span` had variables in it, and whether it was nothing but one.
    pub(crate) fn note_variable(&mut self, span: &Span, whole: bool) {
        self.variables.insert(span.start, whole);
    }

    /// True if the text at `span` was nothing but a variable.
    pub(crate) fn is_whole_variable(&self, span: &Span) -> bool {
        self.variables.get(&span.start) == Some(&true)
    }

    /// Number of problems that are reported so far.
    pub(crate) fn mark(&self) -> Mark {
        Mark {
            found: self.found.len(),
            warnings: self.warnings.len(),
            omitted: self.omitted,
        }
    }

    /// Forgets what was reported since then.
    pub(crate) fn forget_since(&mut self, mark: Mark) {
        self.found.truncate(mark.found);
        self.warnings.truncate(mark.warnings);
        self.omitted = mark.omitted;
    }

    /// The syntax errors of the TOML parser, which has recovered `document` from them: the file
    /// that begins at `base`, and ends where the texts do so far.
    pub(crate) fn add_syntax_errors(
        &mut self,
        errors: &[toml::de::Error],
        document: &DeTable<'_>,
        base: usize,
    ) {
        let end = self.text.len();
        let place = |error: &toml::de::Error| {
            let span = error.span()?;
            Some(span.start.saturating_add(base)..span.end.saturating_add(base))
        };
        // Once a list is not closed, all that follows is taken for a part of it: further errors there
        // say nothing new.
        let unclosed = errors.iter().find(|error| is_unclosed(error));
        let last = unclosed.and_then(place);
        let open = last.and_then(|end| {
            let open = open_at_the_end(document)?;
            let open = open.start.saturating_add(base)..open.end.saturating_add(base);
            let between = self.text.get(open.end..end.start).unwrap_or_default();
            between.trim().is_empty().then_some(open)
        });
        for error in errors {
            let span = place(error).unwrap_or(end..end);
            if open.as_ref().is_none_or(|open| span.start < open.start) {
                self.syntax_error(error, &span);
            }
        }
        if let Some(open) = open {
            self.incomplete = true;
            let last = self.line(end);
            self.broken_lines.push(self.line(open.start)..last + 1);
            let message = "the list or table that begins here is not closed";
            self.push(Trust::Sure, &open, "", message, None, None);
        }
    }

    fn syntax_error(&mut self, error: &toml::de::Error, span: &Span) {
        let line = self.line(span.start);
        if let Some(address) = self.bare_address(span.start) {
            // The parser reports the same value once more, in words that help less.
            if !self.broken_lines.contains(&(line..line + 1)) {
                let message = format!("an address must stand in quotes: \"{address}\"");
                let found = Some(format!("`{}`", shorten(&address).escape_debug()));
                self.push(Trust::Sure, span, "", message, found, None);
            }
            self.incomplete = true;
            self.broken_lines.push(line..line + 1);
            return;
        }
        let found = self.text.get(span.clone()).filter(|text| !text.is_empty());
        let unquoted = error.message().starts_with("string values must be quoted");
        // The parser recovers from these without losing anything.
        self.incomplete |= !unquoted && error.message() != "duplicate key";
        let message = match found {
            _ if !unquoted => error.message(),
            Some(_) => "a text or a value with a unit must stand in quotes",
            None => "the value is missing",
        };
        let line = self.line(span.start);
        self.broken_lines.push(line..line + 1);
        let found = found.map(|text| format!("`{}`", shorten(text).escape_debug()));
        self.push(Trust::Sure, span, "", message, found, None);
    }

    /// The address around `at` that stands there without quotes.
    fn bare_address(&self, at: usize) -> Option<String> {
        let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | ':' | '-' | '_');
        let (before, after) = self.text.split_at_checked(at)?;
        let before = before.rsplit(|c| !is_part(c)).next()?;
        let after = after.split(|c| !is_part(c)).next()?;
        let word = format!("{before}{after}");
        let quoted = self.text.get(..at - before.len())?.ends_with(['"', '\'']);
        let is_ip = word.parse::<std::net::IpAddr>().is_ok();
        let is_address = word.contains(['.', ':']) && host_port(&word).is_ok();
        (!quoted && (is_ip || is_address)).then_some(word)
    }

    /// A value that its key does not take.
    pub(crate) fn wrong(&mut self, item: &Item<'_>, message: &str, allowed: String) {
        // What a variable says may be secret.
        let found = Some(match self.variables.contains_key(&item.span.start) {
            true => {
                let written = self.text.get(item.span.clone()).unwrap_or_default();
                format!("the value of {}", shorten(written))
            }
            false => item.show(),
        });
        let allowed = Some(allowed);
        self.push(Trust::Sure, &item.span, &item.path, message, found, allowed);
    }

    /// Adds the example of a key to what was reported since then, if the value at `path` must be a table and is none.
    pub(crate) fn show_example(&mut self, mark: Mark, path: &str, (key, example): (&str, &str)) {
        if !example.starts_with('{') {
            return;
        }
        let since = self.found.iter_mut().skip(mark.found);
        for problem in since.map(|found| &mut found.problem) {
            if let Some(allowed) = &mut problem.allowed
                && problem.key == path
                && problem.message == WRONG_TYPE
                && !allowed.contains("as in ")
            {
                allowed.push_str(&format!(", as in {key} = {example}"));
            }
        }
    }

    /// Something else that is wrong at `span`.
    pub(crate) fn add_problem(
        &mut self,
        span: &Span,
        path: &str,
        message: impl Into<String>,
        allowed: Option<String>,
    ) {
        self.push(Trust::Sure, span, path, message, None, allowed);
    }

    /// Something that is missing or does not belong there.
    pub(crate) fn add_misplaced(
        &mut self,
        span: &Span,
        path: &str,
        message: impl Into<String>,
        allowed: Option<String>,
    ) {
        self.push(Trust::NeedsWhole, span, path, message, None, allowed);
    }

    /// Something that a table lacks which ends at `end`: perhaps it is there under a wrong
    /// name, so what else is wrong in the table is told first.
    pub(crate) fn add_missing(
        &mut self,
        span: &Span,
        path: &str,
        message: impl Into<String>,
        allowed: Option<String>,
        end: usize,
    ) {
        let before = self.found.len();
        self.add_misplaced(span, path, message, allowed);
        for found in self.found.iter_mut().skip(before) {
            found.order = end;
        }
    }

    /// Something that is allowed, but probably not meant.
    pub(crate) fn add_warning(&mut self, span: &Span, path: &str, message: impl Into<String>) {
        if self.warnings.len() < Errors::MAX_PROBLEMS {
            let warning = self.found(Trust::Sure, span, path, message, None, None);
            self.warnings.push(warning);
        }
    }

    /// Place of `item` in its file.
    pub(crate) fn place(&self, item: &Item<'_>) -> SourcePosition {
        self.place_of(&item.span, &item.path)
    }

    /// The place at `span`.
    pub(crate) fn place_of(&self, span: &Span, path: &str) -> SourcePosition {
        let found = self.found(Trust::Sure, span, path, "", None, None);
        let Problem {
            file,
            line,
            column,
            key,
            ..
        } = found.problem;
        SourcePosition {
            file,
            line,
            column,
            key,
        }
    }

    /// The tables that such a file can have.
    pub(crate) fn known_tables(&self) -> Vec<TableDoc> {
        (self.tables)()
    }

    /// True if further problems are only counted, and so need no text.
    pub(crate) fn is_full(&self) -> bool {
        self.found.len() >= Errors::MAX_PROBLEMS && !self.is_generated
    }

    /// Counts a problem without keeping it.
    pub(crate) fn omit(&mut self) {
        self.omitted += 1;
    }

    /// Number of problems so far.
    pub(crate) fn problem_count(&self) -> usize {
        self.found.len() + self.omitted
    }

    /// The warnings, or everything that is wrong.
    pub(crate) fn finish(mut self) -> Result<Vec<Problem>, Errors> {
        if self.found.is_empty() {
            return Ok(self
                .warnings
                .into_iter()
                .map(|found| found.problem)
                .collect());
        }
        let (incomplete, broken) = (self.incomplete, &self.broken_lines);
        self.found.retain(|found| {
            let problem = &found.problem;
            let on_broken_line = || broken.iter().any(|lines| lines.contains(&found.line));
            let follows = !problem.key.is_empty() && on_broken_line();
            !follows && (found.trust == Trust::Sure || !incomplete)
        });
        self.found.sort_by_key(|found| found.order);
        Err(Errors {
            file: self.file.into(),
            problems: self.found.into_iter().map(|found| found.problem).collect(),
            omitted: self.omitted,
        })
    }

    fn push(
        &mut self,
        trust: Trust,
        span: &Span,
        path: &str,
        message: impl Into<String>,
        found: Option<String>,
        allowed: Option<String>,
    ) {
        if self.is_full() {
            return self.omit();
        }
        let problem = self.found(trust, span, path, message, found, allowed);
        self.found.push(problem);
    }

    fn found(
        &self,
        trust: Trust,
        span: &Span,
        path: &str,
        message: impl Into<String>,
        found: Option<String>,
        allowed: Option<String>,
    ) -> Found {
        let line = self.line(span.start);
        let start = self.line_starts.get(line - 1).copied().unwrap_or(0);
        let before = self.text.get(start..span.start).unwrap_or_default();
        let part = self.parts.partition_point(|part| part.first_line <= line);
        let part = part.checked_sub(1).and_then(|index| self.parts.get(index));
        let (file, first_line) = match part {
            Some(part) => (&*part.file, part.first_line),
            None => (self.file, 1),
        };
        Found {
            order: span.start,
            trust,
            line,
            problem: Problem {
                file: file.into(),
                line: line - first_line + 1,
                column: before.chars().count() + 1,
                key: path.into(),
                message: message.into(),
                found_value: found,
                allowed,
            },
        }
    }

    /// The line of `span`.
    pub(crate) fn line_of(&self, span: &Span) -> usize {
        self.line(span.start)
    }

    /// The line, from 1, of a byte offset.
    fn line(&self, offset: usize) -> usize {
        self.line_starts
            .partition_point(|start| *start <= offset)
            .max(1)
    }
}

fn is_unclosed(error: &toml::de::Error) -> bool {
    let message = error.message();
    message.starts_with("unclosed array,") || message.starts_with("unclosed inline table")
}

/// The list or inline table that goes on to the end of the file, if it was never closed:
/// the outermost value that ends last.
fn open_at_the_end(document: &DeTable<'_>) -> Option<Span> {
    let values = document.iter().map(|(_, value)| last_value(value));
    values.max_by_key(|span| span.end)
}

/// The span of the list or inline table within `value` that ends last.
fn last_value(value: &Spanned<DeValue<'_>>) -> Span {
    match value.get_ref() {
        DeValue::Table(table) => {
            let inner = table.iter().map(|(_, value)| last_value(value));
            let last = inner.max_by_key(|span| span.end);
            last.filter(|last| last.end > value.span().end)
                .unwrap_or(value.span())
        }
        _ => value.span(),
    }
}
