//! Values of the keys of routes: patterns, statuses and sizes of bodies.

use std::collections::BTreeMap;

use toml::de::{DeTable, DeValue};

use super::field_changes::VALUE;
use crate::routing::value_regex::ValueRegex;
use crate::routing::{Pattern, path};
use crate::schema::document::{Item, entries};
use crate::schema::field::{Blank, Element, Field, Limits, Texts, WRONG_TYPE, blank, read_text};
use crate::schema::report::Report;

/// A path, or the prefix of a path, that replaces another one.
pub(super) const PREFIX: Texts = (
    r#"a path that begins with "/", without a query, "//" and "." or ".." as a segment"#,
    |text| {
        let is_plain = |byte: u8| byte > b' ' && byte < 0x7f && !b"?#".contains(&byte);
        path::check_path(text).is_ok() && text.bytes().all(is_plain)
    },
);

/// Values of [`Patterns`].
const ALLOWED: &str =
    "a value, the beginning of a value with \"*\" behind it, { regex = \"…\" }, or false";

/// Reads the regular expression of a table with no other key.
fn read_regex(item: &Item<'_>, table: &DeTable<'_>, report: &mut Report<'_>) -> Option<ValueRegex> {
    let (mut regex, before) = (None, report.problem_count());
    for entry in entries(&item.path, table) {
        match entry.name {
            "regex" => {
                regex
                    .get_or_insert_with(ValueRegex::blank)
                    .read(&entry.item, &Limits::Any, report)
            }
            _ => report.wrong(&entry.item, "not a key of a value", ALLOWED.into()),
        }
    }
    if regex.is_none() && report.problem_count() == before {
        report.wrong(item, "not a value", ALLOWED.into());
    }
    regex.filter(|_| report.problem_count() == before)
}

impl Field for ValueRegex {
    fn read(&mut self, item: &Item<'_>, limits: &Limits, report: &mut Report<'_>) {
        read_text(self, item, limits, report, str::parse);
    }

    fn allowed(&self, _: &Limits) -> String {
        "a regular expression of at most 1024 bytes".into()
    }
}

impl Blank for ValueRegex {
    fn blank() -> Self {
        ValueRegex::default()
    }
}

impl Element for ValueRegex {
    const NONE: Option<&'static str> = None;
}

/// Conditions on values by their names.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Patterns(pub(super) BTreeMap<String, Pattern>);

impl Field for Patterns {
    fn read(&mut self, item: &Item<'_>, limits: &Limits, report: &mut Report<'_>) {
        let DeValue::Table(table) = item.value else {
            return report.wrong(item, WRONG_TYPE, self.allowed(limits));
        };
        for entry in entries(&item.path, table) {
            if let Limits::Text((what, is_name)) = limits
                && !is_name(entry.name)
            {
                let message = format!("must be {what}");
                report.add_problem(&entry.key_span, &entry.item.path, message, None);
                continue;
            }
            let pattern = match entry.item.value {
                DeValue::Boolean(false) => Pattern::Absent,
                DeValue::Boolean(true) => Pattern::Prefix("".into()),
                DeValue::String(text) if (VALUE.1)(text) => Pattern::from_text(text),
                DeValue::Table(table) => match read_regex(&entry.item, table, report) {
                    Some(regex) => Pattern::Regex(Box::new(regex)),
                    None => continue,
                },
                _ => {
                    report.wrong(&entry.item, "not a value", ALLOWED.into());
                    continue;
                }
            };
            if self.0.insert(entry.name.to_owned(), pattern).is_some() {
                report.add_problem(&entry.key_span, &entry.item.path, "is set twice", None);
            }
        }
    }

    fn allowed(&self, _: &Limits) -> String {
        format!("a table of names, each with {ALLOWED}")
    }
}

/// A status that members answer with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status(pub u16);

impl Blank for Status {
    fn blank() -> Self {
        Status(0)
    }
}

impl Field for Status {
    fn read(&mut self, item: &Item<'_>, _: &Limits, report: &mut Report<'_>) {
        self.0.read(item, &Limits::Number(400.0, 599.0, ""), report);
    }

    fn show(&self, _: &Limits) -> Option<String> {
        Some(self.0.to_string())
    }

    fn allowed(&self, _: &Limits) -> String {
        "a status from 400 to 599".into()
    }
}

impl Element for Status {
    const NONE: Option<&'static str> = None;
}

/// Most bytes of a body.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MaxBody(pub u64);

blank!(MaxBody);

impl Field for MaxBody {
    fn read(&mut self, item: &Item<'_>, _: &Limits, report: &mut Report<'_>) {
        let mut bytes = 0_usize;
        let before = report.problem_count();
        bytes.read(item, &BODY, report);
        if report.problem_count() == before {
            self.0 = bytes as u64;
        }
    }

    fn show(&self, _: &Limits) -> Option<String> {
        (self.0 as usize).show(&BODY)
    }

    fn allowed(&self, _: &Limits) -> String {
        0_usize.allowed(&BODY)
    }
}

const BODY: Limits = Limits::Bytes(0, 1 << 40);
