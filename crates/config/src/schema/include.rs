//! Files that a configuration is made of besides its own: `include = ["conf.d/*.toml"]`.
//!
//! Each is a document of its own. What stands at its top is added to that of the main file; there
//! is no deeper level of them.

use std::collections::HashSet;
use std::mem;
use std::path::{Path, PathBuf};

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::document::{Item, Span, join_key};
use super::errors::SourcePosition;
use super::pattern::{MAX_FILES, Pattern};
use super::report::Report;
use super::source::{MAX_FILE_SIZE, read_bounded};
use super::variables::{self, Lookup};

/// The key that names them.
pub(crate) const INCLUDE: &str = "include";

/// Tables of things with names: each file may add some.
const NAMED: [&str; 4] = ["rule", "group", "location", "cluster"];

/// The patterns in a document, each with its place in it.
fn patterns(document: &DeTable<'_>) -> Vec<(String, Span, String)> {
    let Some(value) = document.get(INCLUDE) else {
        return Vec::new();
    };
    let item = Item {
        path: INCLUDE.into(),
        span: value.span(),
        value: value.get_ref(),
    };
    let items = item.one_or_each().unwrap_or_default().into_iter();
    let patterns = items.filter_map(|item| match item.value {
        DeValue::String(text) if !text.is_empty() => {
            Some((text.to_string(), item.span.clone(), item.path))
        }
        // Whoever reads the key says what is wrong with it.
        _ => None,
    });
    patterns.collect()
}

/// Reads the files that `document` includes, which stands in `file`: their names and texts. Those
/// that cannot be read go to the report.
pub(crate) fn read_all(
    file: &str,
    document: &DeTable<'_>,
    report: &mut Report<'_>,
) -> Vec<(String, String)> {
    let folder = Path::new(file).parent().unwrap_or(Path::new(""));
    let own = Path::new(file).canonicalize().ok();
    let (mut files, mut known, mut left) = (Vec::new(), HashSet::new(), MAX_FILE_SIZE);
    for (pattern, span, key) in patterns(document) {
        let wrong = |message: String, report: &mut Report<'_>| {
            report.add_problem(&span, &key, message, None);
        };
        let pattern = folder.join(pattern).display().to_string();
        let pattern = Pattern::from_text(&pattern);
        let paths = match pattern.paths() {
            Ok(paths) => paths,
            // As there may be none of the files, there may be no folder.
            Err(_) if pattern.is_open() && !pattern.folder().exists() => Vec::new(),
            Err(message) => {
                wrong(message, report);
                continue;
            }
        };
        if paths.is_empty() {
            let folder = pattern.folder().display();
            report.add_warning(&span, &key, format!("no file in {folder} matches"));
        }
        for path in paths {
            if !known.insert(path.clone()) {
                continue;
            }
            let name = path.display().to_string();
            if known.len() > MAX_FILES {
                wrong(format!("more than {MAX_FILES} files are included"), report);
                return files;
            }
            if own.is_some() && path.canonicalize().ok() == own {
                let message = format!("{name} is this file itself: it cannot include itself");
                wrong(message, report);
                continue;
            }
            let text = match read_bounded(&path, MAX_FILE_SIZE) {
                Ok(text) => text,
                Err(error) => {
                    wrong(format!("{name}: {error}"), report);
                    continue;
                }
            };
            left = match left.checked_sub(text.len() as u64) {
                Some(left) => left,
                None => {
                    let message =
                        format!("included files have more than {MAX_FILE_SIZE} bytes together");
                    wrong(message, report);
                    return files;
                }
            };
            files.push((name, text));
        }
    }
    files
}

/// Adds what one file says to `document`.
pub(crate) fn add_file<'t>(
    name: &str,
    text: &'t str,
    document: &mut DeTable<'t>,
    lookup: Lookup<'_>,
    report: &mut Report<'_>,
) {
    let refused = |key: &str| {
        (key == INCLUDE)
            .then_some("an included file cannot include others: name them in the main file")
    };
    add_but((name, text), document, lookup, report, refused);
}

/// Sections that only the file of a balancer can have, and no text that it shares with others.
const LOCAL: [&str; 6] = [
    "store",
    "node",
    "process",
    "kernel_forwarding",
    "admin",
    INCLUDE,
];

/// Adds what is shared with other balancers to `document`.
pub(crate) fn add_shared<'t>(
    name: &str,
    text: &'t str,
    document: &mut DeTable<'t>,
    lookup: Lookup<'_>,
    report: &mut Report<'_>,
) {
    let refused = |key: &str| {
        LOCAL.contains(&key).then_some(
            "is each balancer's own, and cannot be shared: write it into the balancer's own file",
        )
    };
    add_but((name, text), document, lookup, report, refused);
}

/// Adds what a text says to `document`, but for keys at its top that are refused for a reason.
fn add_but<'t>(
    (name, text): (&str, &'t str),
    document: &mut DeTable<'t>,
    lookup: Lookup<'_>,
    report: &mut Report<'_>,
    refused: impl Fn(&str) -> Option<&'static str>,
) {
    let base = report.add_file(name, text);
    let (parsed, syntax) = DeTable::parse_recoverable(text);
    report.add_syntax_errors(&syntax, parsed.get_ref(), base);
    let mut parsed = parsed.into_inner();
    shift_table(&mut parsed, base);
    variables::expand_all(&mut parsed, lookup, report);
    for (key, value) in parsed {
        if let Some(message) = refused(key.get_ref()) {
            report.add_problem(&key.span(), key.get_ref(), message, None);
            continue;
        }
        let is_named = NAMED.contains(&&**key.get_ref());
        let Some((old_key, _)) = document.get_key_value(&**key.get_ref()) else {
            document.insert(key, value);
            continue;
        };
        let place = old_key.span();
        let old = document.get_mut(&**key.get_ref()).map(Spanned::get_mut);
        match (old, value.into_inner()) {
            (Some(DeValue::Table(old)), DeValue::Table(new)) if is_named => {
                for (name, value) in new {
                    match old.get_key_value(&**name.get_ref()) {
                        Some((first, _)) => {
                            let path = join_key(key.get_ref(), name.get_ref());
                            twice(&first.span(), &name.span(), &path, report);
                        }
                        None => {
                            old.insert(name, value);
                        }
                    }
                }
            }
            _ => twice(&place, &key.span(), key.get_ref(), report),
        }
    }
}

/// Something stands in two files.
fn twice(first: &Span, second: &Span, path: &str, report: &mut Report<'_>) {
    let SourcePosition { file, line, .. } = report.place_of(first, path);
    let message = format!("stands in {file}, line {line}, already: keep one of the two");
    report.add_problem(second, path, message, None);
}

fn moved(span: &Span, by: usize) -> Span {
    span.start.saturating_add(by)..span.end.saturating_add(by)
}

/// Moves all places of a document by so many bytes.
fn shift_table(table: &mut DeTable<'_>, by: usize) {
    let old = mem::take(table);
    let entries = old.into_iter().map(|(key, mut value)| {
        shift(&mut value, by);
        let span = moved(&key.span(), by);
        (Spanned::new(span, key.into_inner()), value)
    });
    *table = entries.collect();
}

fn shift(value: &mut Spanned<DeValue<'_>>, by: usize) {
    match value.get_mut() {
        DeValue::Array(list) => list.iter_mut().for_each(|element| shift(element, by)),
        DeValue::Table(table) => shift_table(table, by),
        _ => {}
    }
    let span = moved(&value.span(), by);
    let inner = mem::replace(value.get_mut(), DeValue::Boolean(false));
    *value = Spanned::new(span, inner);
}

/// The patterns of the files that the text of `file` includes, as far as it can be read: for those
/// who follow them.
pub(crate) fn patterns_of(file: &Path, text: &str) -> Vec<String> {
    if !text.contains(INCLUDE) {
        return Vec::new();
    }
    let folder = file.parent().unwrap_or(Path::new(""));
    let (document, _) = DeTable::parse_recoverable(text);
    let mut document = document.into_inner();
    // Nobody reads what is wrong.
    let name = file.display().to_string();
    let mut report = Report::new(&name, text, Vec::new);
    variables::expand_all(&mut document, &variables::environment, &mut report);
    let patterns = patterns(&document).into_iter();
    patterns
        .map(|(pattern, ..)| folder.join(pattern).display().to_string())
        .collect()
}

/// The files that patterns mean, as far as that can be told.
pub(crate) fn files_of(patterns: &[String]) -> Vec<PathBuf> {
    let mut known = HashSet::new();
    let paths = patterns
        .iter()
        .flat_map(|pattern| Pattern::from_text(pattern).paths().unwrap_or_default());
    let new = paths.filter(|path| known.insert(path.clone()));
    new.take(MAX_FILES).collect()
}

/// The files that a configuration with this text in `file` includes, in their order, with what
/// they say; without those that cannot be read.
pub fn list_included(file: &Path, text: &str) -> Vec<(PathBuf, String)> {
    let paths = files_of(&patterns_of(file, text)).into_iter();
    let texts = paths.filter_map(|path| {
        let text = read_bounded(&path, MAX_FILE_SIZE).ok()?;
        Some((path, text))
    });
    texts.collect()
}

/// File and line of the entry at `path`, if it is in one of these files.
pub(crate) fn place_in(files: &[(PathBuf, String)], path: &[&str]) -> Option<(PathBuf, usize)> {
    let (section, rest) = path.split_first()?;
    files.iter().find_map(|(file, text)| {
        let (document, _) = DeTable::parse_recoverable(text);
        let (mut key, mut value) = document.get_ref().get_key_value(*section)?;
        if NAMED.contains(section)
            && let Some(name) = rest.first()
        {
            let DeValue::Table(table) = value.get_ref() else {
                return None;
            };
            (key, value) = table.get_key_value(*name)?;
        }
        let _ = value;
        let line = text.get(..key.span().start).unwrap_or_default();
        Some((file.clone(), line.matches('\n').count() + 1))
    })
}
