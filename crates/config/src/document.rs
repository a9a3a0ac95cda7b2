//! A TOML document with positions, and the report of what is wrong with it.

use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::errors::{Errors, Problem};
use super::fields::host_port;
use super::keys::TableDoc;

/// A place in the file: byte offsets into its text.
pub(super) type Span = Range<usize>;

/// A value, where it is and how it is called.
pub(super) struct Item<'d> {
    /// Path of its key, for messages.
    pub path: String,
    /// Where it is in the file.
    pub span: Span,
    /// The value.
    pub value: &'d DeValue<'d>,
}

impl<'d> Item<'d> {
    /// The elements of a list.
    pub fn elements(&self, list: &'d [Spanned<DeValue<'d>>]) -> impl Iterator<Item = Item<'d>> {
        list.iter().enumerate().map(|(index, element)| Item {
            path: format!("{}[{index}]", self.path),
            span: element.span(),
            value: element.get_ref(),
        })
    }

    /// The value as it is shown in a message: short, and on one line.
    pub fn show(&self) -> String {
        match self.value {
            DeValue::String(text) => quote(text),
            DeValue::Integer(number) => shorten(&number.to_string()),
            DeValue::Float(number) => shorten(number.as_str()),
            DeValue::Boolean(flag) => flag.to_string(),
            DeValue::Datetime(date) => date.to_string(),
            DeValue::Array(list) if list.is_empty() => "an empty list".into(),
            DeValue::Array(_) => "a list".into(),
            DeValue::Table(_) => "a table".into(),
        }
    }

    /// A whole number, from any notation of TOML.
    pub fn integer(&self) -> Option<i64> {
        match self.value {
            DeValue::Integer(number) => i64::from_str_radix(number.as_str(), number.radix()).ok(),
            _ => None,
        }
    }

    /// A finite number, whole or not.
    pub fn number(&self) -> Option<f64> {
        let number = match self.value {
            DeValue::Float(number) => number.as_str().parse().ok()?,
            _ => self.integer()? as f64,
        };
        f64::is_finite(number).then_some(number)
    }
}

/// `text` as a TOML string on one line, cut after 60 characters.
pub(super) fn quote(text: &str) -> String {
    format!("{:?}", shorten(text))
}

fn shorten(text: &str) -> String {
    match text.char_indices().nth(60) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
        None => text.to_owned(),
    }
}

/// A path with one more key, quoted where TOML asks for it.
pub(super) fn join(path: &str, key: &str) -> String {
    let bare = !key.is_empty()
        && key
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-');
    let key = if bare { shorten(key) } else { quote(key) };
    if path.is_empty() {
        key
    } else {
        format!("{path}.{key}")
    }
}

/// An entry of a table, in the order of the file.
pub(super) struct Entry<'d> {
    /// The key.
    pub name: &'d str,
    /// Where the key is.
    pub key_span: Span,
    /// The value.
    pub item: Item<'d>,
}

/// The entries of a table in the order of the file.
pub(super) fn entries<'d>(path: &str, table: &'d DeTable<'d>) -> Vec<Entry<'d>> {
    let mut entries: Vec<_> = table
        .iter()
        .map(|(key, value)| Entry {
            name: key.get_ref(),
            key_span: key.span(),
            item: Item {
                path: join(path, key.get_ref()),
                span: value.span(),
                value: value.get_ref(),
            },
        })
        .collect();
    entries.sort_by_key(|entry| entry.key_span.start);
    entries
}

/// What a problem depends on: a broken document must not be blamed for what the
/// breakage itself has hidden.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Trust {
    /// True whatever else is wrong.
    Sure,
    /// Says that something is not there, or in the wrong place: true only if the
    /// document could be read as a whole.
    NeedsWhole,
}

struct Found {
    /// Where it is told: after what may have caused it.
    order: usize,
    trust: Trust,
    problem: Problem,
}

/// Collects problems.
pub(super) struct Report<'s> {
    file: &'s str,
    text: &'s str,
    /// The tables that such a file can have.
    tables: fn() -> Vec<TableDoc>,
    line_starts: Vec<usize>,
    found: Vec<Found>,
    warnings: Vec<Found>,
    omitted: usize,
    /// Lines with a syntax error: what else is wrong there follows from it.
    broken_lines: Vec<Range<usize>>,
    /// Whether parts of the document could not be read at all.
    incomplete: bool,
}

impl<'s> Report<'s> {
    /// A report about `text`, with nothing wrong yet.
    pub fn new(file: &'s str, text: &'s str, tables: fn() -> Vec<TableDoc>) -> Self {
        let starts = text.match_indices('\n').map(|(at, _)| at + 1);
        Report {
            file,
            text,
            tables,
            line_starts: std::iter::once(0).chain(starts).collect(),
            found: Vec::new(),
            warnings: Vec::new(),
            omitted: 0,
            broken_lines: Vec::new(),
            incomplete: false,
        }
    }

    /// The syntax errors of the TOML parser, which has recovered `document` from them.
    pub fn syntax(&mut self, errors: &[toml::de::Error], document: &DeTable<'_>) {
        // Up to its end the file is one list, so the rest is no news.
        let unclosed = errors.iter().find(|error| is_unclosed(error));
        let end = unclosed.and_then(|error| error.span());
        let open = end.and_then(|end| {
            let open = open_at_the_end(document)?;
            let between = self.text.get(open.end..end.start).unwrap_or_default();
            between.trim().is_empty().then_some(open)
        });
        for error in errors {
            let span = error.span().unwrap_or(self.text.len()..self.text.len());
            if open.as_ref().is_none_or(|open| span.start < open.start) {
                self.syntax_error(error, &span);
            }
        }
        if let Some(open) = open {
            self.incomplete = true;
            self.broken_lines.push(self.line(open.start)..usize::MAX);
            let message = "the list or table that begins here is not closed";
            self.push(Trust::Sure, &open, "", message.into(), None, None);
        }
    }

    fn syntax_error(&mut self, error: &toml::de::Error, span: &Span) {
        let line = self.line(span.start);
        if let Some(address) = self.bare_address(span.start) {
            // The parser has more to say of the same value, which helps nobody.
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
        self.push(Trust::Sure, span, "", message.into(), found, None);
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
    pub fn wrong(&mut self, item: &Item<'_>, message: &str, allowed: String) {
        let found = Some(item.show());
        let (span, path) = (item.span.clone(), item.path.clone());
        self.push(
            Trust::Sure,
            &span,
            &path,
            message.into(),
            found,
            Some(allowed),
        );
    }

    /// Something else that is wrong at `span`.
    pub fn problem(&mut self, span: &Span, path: &str, message: String, allowed: Option<String>) {
        self.push(Trust::Sure, span, path, message, None, allowed);
    }

    /// Something that is missing or does not belong there.
    pub fn misplaced(&mut self, span: &Span, path: &str, message: String, allowed: Option<String>) {
        self.push(Trust::NeedsWhole, span, path, message, None, allowed);
    }

    /// Something that a table lacks which ends at `end`: perhaps it is there under a wrong
    /// name, so what else is wrong in the table is told first.
    pub fn missing(
        &mut self,
        span: &Span,
        path: &str,
        message: String,
        allowed: Option<String>,
        end: usize,
    ) {
        let before = self.found.len();
        self.misplaced(span, path, message, allowed);
        for found in self.found.iter_mut().skip(before) {
            found.order = end;
        }
    }

    /// Something that is allowed, but probably not meant.
    pub fn warning(&mut self, span: &Span, path: &str, message: String) {
        if self.warnings.len() < Errors::MAX_PROBLEMS {
            let warning = self.found(Trust::Sure, span, path, message, None, None);
            self.warnings.push(warning);
        }
    }

    /// The tables that such a file can have.
    pub fn tables(&self) -> Vec<TableDoc> {
        (self.tables)()
    }

    /// Whether further problems are only counted: no need to find words for them.
    pub fn is_full(&self) -> bool {
        self.found.len() >= Errors::MAX_PROBLEMS
    }

    /// Counts a problem without keeping it.
    pub fn omit(&mut self) {
        self.omitted += 1;
    }

    /// How many problems there are so far.
    pub fn problems(&self) -> usize {
        self.found.len() + self.omitted
    }

    /// The warnings, or everything that is wrong.
    pub fn finish(mut self) -> Result<Vec<Problem>, Errors> {
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
            let on_broken_line = || broken.iter().any(|lines| lines.contains(&problem.line));
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
        message: String,
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
        message: String,
        found: Option<String>,
        allowed: Option<String>,
    ) -> Found {
        let line = self.line(span.start);
        let start = self.line_starts.get(line - 1).copied().unwrap_or(0);
        let before = self.text.get(start..span.start).unwrap_or_default();
        Found {
            order: span.start,
            trust,
            problem: Problem {
                file: self.file.into(),
                line,
                column: before.chars().count() + 1,
                key: path.into(),
                message,
                found,
                allowed,
            },
        }
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

/// The known names that `name` was probably meant to be: `"a"`, or `"a" or "b"`.
pub(super) fn similar<'n>(name: &str, known: impl Iterator<Item = &'n str>) -> Option<String> {
    let letters: Vec<char> = name.chars().take(64).collect();
    let known: Vec<_> = known.collect();
    let nearest = known
        .iter()
        .map(|candidate| (distance(&letters, candidate), *candidate))
        .filter(|(distance, candidate)| *distance <= 1 + candidate.chars().count() / 4)
        .min_by_key(|(distance, _)| *distance);
    let names = match nearest {
        Some((_, candidate)) => vec![candidate],
        // "timeout" may be any of several.
        None => {
            let has_part = |candidate: &&str| candidate.split('_').any(|part| part == name);
            known.into_iter().filter(has_part).collect()
        }
    };
    let names: Vec<_> = names.iter().map(|name| format!("{name:?}")).collect();
    (!names.is_empty()).then(|| names.join(" or "))
}

/// Letters to insert, delete, replace or swap with the next to get from `a` to `b`
/// (optimal string alignment).
fn distance(a: &[char], b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let width = b.len() + 1;
    let mut rows = vec![0usize; (a.len() + 1) * width];
    let at = |row: usize, column: usize| row * width + column;
    for row in 0..=a.len() {
        rows[at(row, 0)] = row;
    }
    for column in 0..=b.len() {
        rows[at(0, column)] = column;
    }
    for row in 1..=a.len() {
        for column in 1..=b.len() {
            let same = a[row - 1] == b[column - 1];
            let mut best = (rows[at(row - 1, column)] + 1)
                .min(rows[at(row, column - 1)] + 1)
                .min(rows[at(row - 1, column - 1)] + usize::from(!same));
            if row > 1 && column > 1 && a[row - 1] == b[column - 2] && a[row - 2] == b[column - 1] {
                best = best.min(rows[at(row - 2, column - 2)] + 1);
            }
            rows[at(row, column)] = best;
        }
    }
    rows[at(a.len(), b.len())]
}
