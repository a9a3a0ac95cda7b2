//! Values of the keys of routes: patterns, weights, statuses and sizes of bodies.

use std::collections::BTreeMap;

use toml::de::DeValue;

use super::field_changes::VALUE;
use crate::routing::Pattern;
use crate::schema::document::{Item, entries};
use crate::schema::field::{Blank, Element, Field, Limits, WRONG_TYPE, blank, read_one};
use crate::schema::report::Report;

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
                _ => {
                    let allowed =
                        "a value, the beginning of a value with \"*\" behind it, or false";
                    report.wrong(&entry.item, "not a value", allowed.into());
                    continue;
                }
            };
            if self.0.insert(entry.name.to_owned(), pattern).is_some() {
                report.add_problem(&entry.key_span, &entry.item.path, "is set twice", None);
            }
        }
    }

    fn allowed(&self, _: &Limits) -> String {
        "a table of names, each with a value, the beginning of a value with \"*\" behind it, or false"
            .into()
    }
}

/// Groups with their weights.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Weights(pub Vec<(String, u32)>);

const WEIGHT: Limits = Limits::Number(0.0, 1_000_000.0, "parts");

impl Field for Weights {
    fn read(&mut self, item: &Item<'_>, limits: &Limits, report: &mut Report<'_>) {
        let DeValue::Table(table) = item.value else {
            return report.wrong(item, WRONG_TYPE, self.allowed(limits));
        };
        let before = report.problem_count();
        for entry in entries(&item.path, table) {
            let weight = read_one(&entry.item, &WEIGHT, report);
            self.0
                .extend(weight.map(|weight: u32| (entry.name.to_owned(), weight)));
        }
        if report.problem_count() == before && self.0.iter().all(|(_, weight)| *weight == 0) {
            report.wrong(item, "no group has a weight above 0", self.allowed(limits));
        }
    }

    fn allowed(&self, _: &Limits) -> String {
        "a table of names of groups, each with a whole number from 0 to 1000000".into()
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
