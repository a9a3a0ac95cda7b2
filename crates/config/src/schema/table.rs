//! A table of the file while it is read, key by key.

use std::path::Path;

use toml::de::{DeTable, DeValue};

use super::dialect::Dialect;
use super::document::{Entry, Item, Span, entries, join_key};
use super::errors::{Errors, Problem};
use super::field::{Field, Limits, Texts, WRONG_TYPE, read_value};
use super::foreign;
use super::include;
use super::key::Key;
use super::overrides::Override;
use super::reference::TableDoc;
use super::report::Report;
use super::similar::{find_longer, find_mistyped, nearest, similar, unknown_message};
use super::source::MAX_FILE_SIZE;
use super::variables::{self, Lookup};

/// Reads the document in `text`, whose keys are those of `tables`, with `read`: it gets
/// the top table and the folder of the file. Answers what it made, and the warnings.
pub(crate) fn read_document<T>(
    file: &str,
    text: &str,
    tables: fn() -> Vec<TableDoc>,
    read: impl FnOnce(Table<'_>, &Path, &mut Report<'_>) -> T,
) -> Result<(T, Vec<Problem>), Errors> {
    document_with(file, text, Reading::default(), tables, read)
}

/// Settings for reading a document.
pub(crate) struct Reading<'r> {
    /// Values in place of what the text says.
    pub changes: &'r [Override],
    /// True if the document may include other files.
    pub includes: bool,
    /// Text that is shared with other balancers, if it comes from elsewhere: a name, and the text.
    pub shared: Option<(&'r str, &'r str)>,
    /// Source of the values of variables.
    pub variables: Lookup<'r>,
    /// True if the balancer has made the text of objects of others. Texts have no variables: what looks like one is the
    /// text itself.
    pub is_generated: bool,
}

impl Default for Reading<'_> {
    fn default() -> Self {
        Reading {
            changes: &[],
            includes: false,
            shared: None,
            variables: &variables::environment,
            is_generated: false,
        }
    }
}

/// Reads the document as [`read_document`] does, with these settings.
pub(crate) fn document_with<T>(
    file: &str,
    text: &str,
    with: Reading<'_>,
    tables: fn() -> Vec<TableDoc>,
    read: impl FnOnce(Table<'_>, &Path, &mut Report<'_>) -> T,
) -> Result<(T, Vec<Problem>), Errors> {
    if text.len() as u64 > MAX_FILE_SIZE {
        let message = format!("is too large: more than {MAX_FILE_SIZE} bytes");
        return Err(Errors::of_file(file.into(), message));
    }
    // The document is made of their texts, too.
    let mut files = Vec::new();
    let mut report = Report::new(file, text, tables);
    let (document, syntax) = DeTable::parse_recoverable(text);
    if let Some(dialect) = (!syntax.is_empty())
        .then(|| Dialect::from_text(text))
        .flatten()
    {
        let mut errors = Errors::of_file(file.into(), dialect.remedy(file));
        for problem in &mut errors.problems {
            (problem.line, problem.column) = (1, 1);
        }
        return Err(errors);
    }
    report.add_syntax_errors(&syntax, document.get_ref(), 0);
    let mut document = document.into_inner();
    if with.is_generated {
        report.set_generated();
    } else {
        variables::expand_all(&mut document, with.variables, &mut report);
    }
    if with.includes {
        files = include::read_all(file, &document, &mut report);
    }
    for (name, text) in &files {
        include::add_file(name, text, &mut document, with.variables, &mut report);
    }
    if let Some((name, text)) = with.shared {
        if text.len() as u64 > MAX_FILE_SIZE {
            let message = format!("is too large: more than {MAX_FILE_SIZE} bytes");
            return Err(Errors::of_file(name.into(), message));
        }
        include::add_shared(name, text, &mut document, with.variables, &mut report);
    }
    for change in with.changes {
        change.apply_to(&mut document);
    }
    let folder = Path::new(file).parent().unwrap_or(Path::new(""));
    let top = Table::of("", 0..0, entries("", &document));
    let found = read(top, folder, &mut report);
    Ok((found, report.finish()?))
}

/// A type that is a table of the file wherever it stands.
pub(crate) trait AsTable: 'static {
    /// Description of the values that are allowed in the file.
    const ALLOWED: &'static str = "a table";

    /// True if `true` stands for a table with all defaults.
    const TRUE: bool = false;

    /// Takes what the table says, and reports what is wrong with it beyond single keys.
    fn fill(&mut self, table: &mut Table<'_>, report: &mut Report<'_>);
}

impl<T: AsTable> Field for T {
    fn read(&mut self, item: &Item<'_>, limits: &Limits, report: &mut Report<'_>) {
        if T::TRUE && matches!(item.value, DeValue::Boolean(true)) {
            return;
        }
        let Some(mut table) = Table::from_item(item) else {
            return report.wrong(item, WRONG_TYPE, self.allowed(limits));
        };
        self.fill(&mut table, report);
        table.report_unread(report);
    }

    fn allowed(&self, _: &Limits) -> String {
        T::ALLOWED.into()
    }
}

/// A table of the file while it is read.
pub(crate) struct Table<'d> {
    /// Path of the table, for messages.
    path: String,
    /// Span of the table.
    span: Span,
    /// Span of the table's name.
    name_span: Span,
    name: &'d str,
    entries: Vec<Entry<'d>>,
    /// The keys that may stand here.
    known: Vec<&'static str>,
}

impl<'d> Table<'d> {
    /// The table `item`, if it is one.
    pub(crate) fn from_item(item: &Item<'d>) -> Option<Self> {
        match item.value {
            DeValue::Table(table) => {
                let entries = entries(&item.path, table);
                Some(Table::of(&item.path, item.span.clone(), entries))
            }
            _ => None,
        }
    }

    fn of(path: &str, span: Span, entries: Vec<Entry<'d>>) -> Self {
        Table {
            path: path.into(),
            name_span: span.clone(),
            span,
            name: "",
            entries,
            known: Vec::new(),
        }
    }

    /// Reads what the table says of `target`.
    pub(crate) fn read<T>(
        &mut self,
        keys: &'static [Key<T>],
        target: &mut T,
        report: &mut Report<'_>,
    ) {
        for key in keys {
            self.rename(key.alias, key.name, report);
            self.note_key(key.name);
            if let Some(entry) = self.entry(key.name) {
                let before = report.mark();
                read_value((key.field)(target), &entry.item, &key.limits, report);
                report.show_example(before, &entry.item.path, (key.name, key.example));
            }
        }
    }

    /// Takes what stands under an older name as if it stood under the present one.
    fn rename(&mut self, old: Option<&'static str>, name: &'static str, report: &mut Report<'_>) {
        let is_there = self.has_key(name);
        let is_old = |entry: &&mut Entry<'_>| old == Some(entry.name);
        match self.entries.iter_mut().find(is_old) {
            Some(entry) if is_there => {
                let message =
                    format!("an older name of `{name}`, which is set, too: remove this key");
                report.add_problem(&entry.key_span, &entry.item.path, message, None);
                if let Some(old) = old {
                    self.note_key(old);
                }
            }
            Some(entry) => entry.name = name,
            None => {}
        }
    }

    /// True if nothing stands in the table.
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// True if `key` stands in the table.
    pub(crate) fn has_key(&self, key: &str) -> bool {
        self.entry(key).is_some()
    }

    /// True if `key` stands in the table called `table`, in this one.
    pub(crate) fn given_in(&self, table: &str, key: &str) -> bool {
        let inner = self
            .entry(table)
            .and_then(|entry| Table::from_item(&entry.item));
        inner.is_some_and(|inner| inner.has_key(key))
    }

    /// Returns the table at `key`, if a table stands there.
    pub(crate) fn inner_table(&self, key: &str) -> Option<Table<'d>> {
        Table::from_item(&self.entry(key)?.item)
    }

    /// Returns the tables of the list at `key`; none if something else stands there.
    pub(crate) fn inner_tables(&self, key: &str) -> Vec<Table<'d>> {
        let Some(entry) = self.entry(key) else {
            return Vec::new();
        };
        match entry.item.value {
            DeValue::Array(list) => {
                let items = entry.item.elements(list);
                items.filter_map(|item| Table::from_item(&item)).collect()
            }
            _ => Vec::new(),
        }
    }

    /// Reports every key that was not read: there is no such key.
    pub(crate) fn report_unread(self, report: &mut Report<'_>) {
        for entry in &self.entries {
            if self.known.contains(&entry.name) {
                continue;
            }
            if report.is_full() {
                report.omit();
                continue;
            }
            let advised = foreign::advice(&self.path, &self.known, entry.name).map(str::to_owned);
            let home = || {
                let home = home_of(&report.known_tables(), &self.path, entry.name);
                // A whole key that belongs elsewhere is more than a part of the name of a single key here.
                home.filter(|_| {
                    find_mistyped(entry.name, &self.known).is_none()
                        && find_longer(entry.name, &self.known).len() < 2
                })
            };
            let known = self.known.iter().copied();
            let (message, allowed) =
                if let Some(message) = advised.or_else(|| self.meant(entry.name, report)) {
                    (message, None)
                } else if let Some(home) = home() {
                    (format!("does not belong here, but {home}"), None)
                } else if let Some(similar) = similar(entry.name, known) {
                    (unknown_message("key", Some(similar)), None)
                } else {
                    let nearest = nearest(entry.name, &self.known);
                    (unknown_message("key", None), Some(nearest))
                };
            report.add_misplaced(&entry.key_span, &entry.item.path, message, allowed);
        }
    }

    /// Meaning of a key of another product, if it is one.
    fn meant(&self, key: &str, report: &Report<'_>) -> Option<String> {
        let ours = foreign::keys(key);
        let tables = report.known_tables();
        if let Some(here) = ours.iter().find(|ours| self.known.contains(ours)) {
            let header = format!("[{here}]");
            let is_table = self.path.is_empty() && tables.iter().any(|t| t.header == header);
            let name = match *here {
                "rule" | "group" if self.path.is_empty() => format!("[{here}.NAME]"),
                _ if is_table => header,
                _ => format!("{here:?}"),
            };
            return Some(unknown_message("key", Some(name)));
        }
        // One of ours in the wrong place says where it belongs.
        if tables.iter().any(|table| table.has_key(key)) {
            return None;
        }
        let (name, home) = ours
            .iter()
            .find_map(|ours| Some((ours, home_of(&tables, &self.path, ours)?)))?;
        Some(match home.strip_prefix("is a table") {
            Some(_) => format!("unknown key, did you mean [{name}]?"),
            None => format!("unknown key, did you mean {name:?} {home}?"),
        })
    }

    /// End of the table: problems of missing keys come after problems of its contents.
    fn end(&self) -> usize {
        let ends = self.entries.iter().map(|entry| entry.item.span.end);
        ends.fold(self.span.end, usize::max)
    }

    /// Notes that `key` may stand here.
    pub(crate) fn note_key(&mut self, key: &'static str) {
        if !self.known.contains(&key) {
            self.known.push(key);
        }
    }

    fn entry(&self, key: &str) -> Option<&Entry<'d>> {
        self.entries.iter().find(|entry| entry.name == key)
    }

    /// Span of the table's name.
    pub(crate) fn name_span(&self) -> &Span {
        &self.name_span
    }

    /// Name of the table, chosen by the user.
    pub(crate) fn name(&self) -> String {
        self.name.to_owned()
    }

    /// Span of the value of `key`, or else of the table.
    pub(crate) fn span_of(&self, key: &str) -> Span {
        let entry = self.entry(key);
        entry.map_or_else(|| self.span.clone(), |entry| entry.item.span.clone())
    }

    /// Path of `key`.
    pub(crate) fn path_of(&self, key: &str) -> String {
        join_key(&self.path, key)
    }

    /// Something that is wrong with the value of `key`.
    pub(crate) fn report_problem(
        &self,
        key: &str,
        message: impl Into<String>,
        report: &mut Report<'_>,
    ) {
        report.add_problem(&self.span_of(key), &self.path_of(key), message, None);
    }

    /// Something about `key` that may only follow from another problem.
    pub(crate) fn report_misplaced(
        &self,
        key: &str,
        message: impl Into<String>,
        report: &mut Report<'_>,
    ) {
        report.add_misplaced(&self.span_of(key), &self.path_of(key), message, None);
    }

    /// Something that the whole table lacks.
    pub(crate) fn lacks(
        &self,
        message: impl Into<String>,
        allowed: Option<String>,
        report: &mut Report<'_>,
    ) {
        report.add_missing(&self.name_span, &self.path, message, allowed, self.end());
    }

    /// Something about the whole table that is probably not meant.
    pub(crate) fn report_warning(&self, message: impl Into<String>, report: &mut Report<'_>) {
        report.add_warning(&self.name_span, &self.path, message);
    }

    /// Reports that `key` is missing, if it is.
    pub(crate) fn require(&self, key: &str, report: &mut Report<'_>) {
        if !self.has_key(key) {
            self.lacks(format!("`{key}` is missing"), None, report);
        }
    }

    /// The table called `key` within this one, if it is there.
    pub(crate) fn read_table(
        &mut self,
        key: &'static str,
        report: &mut Report<'_>,
    ) -> Option<Table<'d>> {
        self.open_table(key, format!("a table: [{key}]"), report)
    }

    fn open_table(
        &mut self,
        key: &'static str,
        allowed: String,
        report: &mut Report<'_>,
    ) -> Option<Table<'d>> {
        self.note_key(key);
        let entry = self.entry(key)?;
        let table = Table::from_item(&entry.item);
        if table.is_none() {
            report.wrong(&entry.item, WRONG_TYPE, allowed);
        }
        table
    }

    /// The tables in the list called `key`, in order.
    pub(crate) fn read_tables(
        &mut self,
        key: &'static str,
        report: &mut Report<'_>,
    ) -> Vec<Table<'d>> {
        self.note_key(key);
        let Some(entry) = self.entry(key) else {
            return Vec::new();
        };
        let mut tables = Vec::new();
        let list = match entry.item.value {
            DeValue::Array(list) => entry.item.elements(list).collect(),
            _ => {
                report.wrong(&entry.item, WRONG_TYPE, "a list of tables".into());
                Vec::new()
            }
        };
        for item in list {
            match Table::from_item(&item) {
                Some(table) => tables.push(table),
                None => report.wrong(&item, WRONG_TYPE, "a table".into()),
            }
        }
        tables
    }

    /// Path of the table.
    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    /// The tables within the table called `key`, which have names of the user's choice:
    /// what those must be, and whether one is.
    pub(crate) fn named_tables(
        &mut self,
        key: &'static str,
        (names, is_name): Texts,
        report: &mut Report<'_>,
    ) -> Vec<Table<'d>> {
        let allowed = format!("tables with a name each: [{key}.NAME]");
        let Some(outer) = self.open_table(key, allowed, report) else {
            return Vec::new();
        };
        let mut tables = Vec::new();
        for entry in outer.entries {
            if !is_name(entry.name) {
                let allowed = Some(names.to_owned());
                report.add_problem(&entry.key_span, &entry.item.path, "not a name", allowed);
                continue;
            }
            match Table::from_item(&entry.item) {
                Some(table) => tables.push(Table {
                    name_span: entry.key_span,
                    name: entry.name,
                    ..table
                }),
                None => report.wrong(&entry.item, WRONG_TYPE, format!("a table: [{key}.NAME]")),
            }
        }
        tables
    }
}

/// Names that end up in metrics, addresses of the admin API and logs.
pub(crate) const NAMES: Texts = ("1 to 64 letters, digits, \"-\", \"_\" or \".\"", is_name);

/// Allowed names of a location.
pub(crate) const LOCATION_NAMES: Texts = ("1 to 255 characters", |text| {
    (1..=255).contains(&text.len()) && !text.contains(char::is_control)
});

/// True if a location may have this name.
pub fn is_location_name(name: &str) -> bool {
    (LOCATION_NAMES.1)(name)
}

/// True if a group, a rule or a cluster may have this name: 1 to 64 letters, digits, `-`, `_` or `.`.
pub fn is_name(name: &str) -> bool {
    (1..=64).contains(&name.len())
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
}

/// Place in the file for a key of the table at `path`: in a table whose keys are about the same.
fn home_of(tables: &[TableDoc], path: &str, key: &str) -> Option<String> {
    let table = format!("[{key}]");
    // Not every file has rules.
    let has_rules = tables.iter().any(|table| table.header == "[rule.NAME]");
    if has_rules && matches!(key, "rule" | "group") {
        return Some(format!("as [{key}.NAME]"));
    }
    if has_rules && key == "defaults" {
        return Some(format!("is a table of its own: {table}"));
    }
    tables.iter().find_map(|home| match home.header {
        header if header == table => Some(format!("is a table of its own: {table}")),
        // Files without rules have few tables, and a key in one of them only.
        header if !home.has_key(key) || (has_rules && !is_near(path, header)) => None,
        "" => Some("at the top of the file, before the first [table]".into()),
        header if header.contains("group.") => {
            let own = header.replace("group.", "rule.");
            Some(format!("in {own} or {header}"))
        }
        header => Some(format!("in {header}")),
    })
}

/// True if the table with this header is about the same as the table at `path`: it holds that table, or is held by
/// it, or both are parts of one. A key of the same name elsewhere means something else (`name` of `[node]`).
fn is_near(path: &str, header: &str) -> bool {
    let here = parts_of(path);
    let is_list = header.starts_with("[[") || path.ends_with(']');
    let home = parts_of(header.trim_matches(['[', ']']));
    let common = here.iter().zip(&home).take_while(|(a, b)| a == b).count();
    match (here.len() - common, home.len() - common) {
        (0, inner) => inner <= 1 || here.is_empty(),
        (_, 0) => true,
        (1, 1) => common > 0 && !is_list,
        _ => false,
    }
}

/// The parts of the path of a table, without names of the user's choice. Rules and groups, and the defaults of both,
/// have their keys in common.
fn parts_of(path: &str) -> Vec<&str> {
    let mut quoted = false;
    let parts = path.split(|c| {
        quoted ^= c == '"';
        c == '.' && !quoted
    });
    let mut parts: Vec<&str> = parts
        .filter(|part| !part.is_empty())
        .map(|part| part.split('[').next().unwrap_or_default())
        .collect();
    let names = match parts.first() {
        Some(&("rule" | "group")) => 2,
        Some(&"defaults") => 1,
        _ => return parts,
    };
    parts.splice(..names.min(parts.len()), ["rule"]);
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn m6_tables_are_near_that_hold_each_other_or_are_parts_of_one() {
        for (path, header, near) in [
            ("", "[rule.NAME.http.hedge]", true),
            ("rule.web", "", true),
            ("rule.web", "[rule.NAME.http]", true),
            ("rule.web", "[group.NAME.health_check]", true),
            ("rule.\"a.b\".http", "[rule.NAME.limits]", true),
            ("group.web.health_check", "[rule.NAME]", true),
            ("defaults.http", "[rule.NAME]", true),
            ("rule.web", "[rule.NAME.routes.answer]", false),
            ("rule.web.members[0]", "[node]", false),
            ("rule.web.members[0]", "[[rule.NAME.routes]]", false),
            ("rule.web.tls.certificates[0]", "[fleet]", false),
            (
                "rule.web.tls.certificates[0]",
                "[rule.NAME.routes.answer]",
                false,
            ),
            ("rule.web.tls", "[[rule.NAME.tls.certificates]]", true),
            ("admin", "[fleet]", false),
        ] {
            assert_eq!(is_near(path, header), near, "{path} {header}");
        }
    }
}
