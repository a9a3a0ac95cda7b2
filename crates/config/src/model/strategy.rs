//! Strategy of a group, and the manual's text about each strategy.

use std::fmt::Write as _;

use evenkeel_core::key::{Key, ParseKeyError};
use evenkeel_core::load::{LoadId, ParseLoadIdError};
use evenkeel_core::strategy::{self, Kind, Param, Values};
use toml::de::DeValue;

use crate::schema::amount::{nanos_of, parse_duration};
use crate::schema::document::{Item, entries, quote};
use crate::schema::field::{Blank, Field, Limits, OUT_OF_RANGE, WRONG_TYPE};
use crate::schema::foreign;
use crate::schema::report::Report;
use crate::schema::similar::{similar, unknown_message};
use crate::schema::variables;

/// A strategy: its name, or a table of its name and parameters.
impl Field for Values {
    fn read(&mut self, item: &Item<'_>, limits: &Limits, report: &mut Report<'_>) {
        let mut params = match item.value {
            DeValue::Table(table) => entries(&item.path, table),
            _ => Vec::new(),
        };
        let named = params.iter().position(|entry| entry.name == "name");
        let named = named.map(|at| params.remove(at).item);
        if named.is_none() && matches!(item.value, DeValue::Table(_)) {
            let allowed = Some(self.allowed(limits));
            let message = "the name of the strategy is missing";
            return report.add_misplaced(&item.span, &item.path, message, allowed);
        }
        let name = named.as_ref().unwrap_or(item);
        let DeValue::String(text) = name.value else {
            return report.wrong(name, WRONG_TYPE, self.allowed(limits));
        };
        let Some(kind) = strategy::find(text) else {
            let names = strategy::REGISTRY.iter().map(|kind| kind.name);
            let theirs = foreign::strategy(text).map(quote);
            let message = unknown_message("strategy", theirs.or_else(|| similar(text, names)));
            return report.wrong(name, &message, self.allowed(limits));
        };
        let mut values = Values::defaults(kind);
        for entry in params {
            let Some(param) = kind.params.iter().find(|param| param.name == entry.name) else {
                let names = || kind.params.iter().map(|param| param.name);
                let what = format!("parameter of strategy {:?}", kind.name);
                let message = unknown_message(&what, similar(entry.name, names()));
                let allowed = match names().collect::<Vec<_>>().join(", ") {
                    none if none.is_empty() => "no parameters".into(),
                    names => names,
                };
                let path = &entry.item.path;
                report.add_misplaced(&entry.key_span, path, message, Some(allowed));
                continue;
            };
            let number = variables::scalar(&entry.item, report);
            let value = match &number {
                Some(value) => param_value(
                    param,
                    &Item {
                        path: entry.item.path.clone(),
                        span: entry.item.span.clone(),
                        value,
                    },
                ),
                None => param_value(param, &entry.item),
            };
            match value.map(|value| values.set(param.name, value)) {
                Some(Ok(())) => {}
                Some(Err(_)) => report.wrong(&entry.item, OUT_OF_RANGE, param_allowed(param)),
                None => report.wrong(&entry.item, WRONG_TYPE, param_allowed(param)),
            }
        }
        if let Err(error) = values.check_params() {
            report.add_problem(&item.span, &item.path, error.to_string(), None);
        }
        *self = values;
    }

    fn show(&self, _: &Limits) -> Option<String> {
        let kind = self.kind();
        let mut params = String::new();
        for param in kind.params {
            let value = self.get(param.name);
            if value != param.default {
                // Writing to a string cannot fail.
                let _ = write!(params, ", {} = {value}", param.name);
            }
        }
        Some(if params.is_empty() {
            quote(kind.name)
        } else {
            format!("{{ name = {:?}{params} }}", kind.name)
        })
    }

    fn allowed(&self, _: &Limits) -> String {
        let names: Vec<_> = strategy::REGISTRY
            .iter()
            .map(|kind| quote(kind.name))
            .collect();
        let names = names.join(", ");
        format!("one of {names}, or a table with one of these as `name` and its parameters")
    }
}

/// A parameter's number, or a time in the parameter's unit.
fn param_value(param: &Param, item: &Item<'_>) -> Option<f64> {
    let DeValue::String(text) = item.value else {
        return item.number();
    };
    let nanos = nanos_of(param.unit)?;
    Some(parse_duration(text)?.as_nanos() as f64 / nanos as f64)
}

/// Allowed values of a parameter of a strategy.
fn param_allowed(param: &Param) -> String {
    let what = if param.integer {
        "a whole number"
    } else {
        "a number"
    };
    let mut text = format!("{what} from {} to {}", param.min, param.max);
    if !param.unit.is_empty() {
        text += &format!(" ({})", param.unit);
    }
    text
}

impl Field for Key {
    fn read(&mut self, item: &Item<'_>, limits: &Limits, report: &mut Report<'_>) {
        let DeValue::String(text) = item.value else {
            return report.wrong(item, WRONG_TYPE, self.allowed(limits));
        };
        match text.parse() {
            Ok(key) => *self = key,
            Err(ParseKeyError) => report.wrong(item, "no part of a request", self.allowed(limits)),
        }
    }

    fn show(&self, _: &Limits) -> Option<String> {
        Some(quote(&self.to_string()))
    }

    fn allowed(&self, _: &Limits) -> String {
        let text = ParseKeyError.to_string();
        text.trim_start_matches("expected ").into()
    }
}

impl Field for LoadId {
    fn read(&mut self, item: &Item<'_>, limits: &Limits, report: &mut Report<'_>) {
        let id = match item.value {
            DeValue::String(text) => text.parse().ok(),
            DeValue::Integer(_) => item.integer().and_then(|id| id.try_into().ok()).map(LoadId),
            _ => return report.wrong(item, WRONG_TYPE, self.allowed(limits)),
        };
        match id {
            Some(id) => *self = id,
            None => report.wrong(item, "unknown load", self.allowed(limits)),
        }
    }

    fn show(&self, _: &Limits) -> Option<String> {
        Some(quote(&self.to_string()))
    }

    fn allowed(&self, _: &Limits) -> String {
        let text = ParseLoadIdError.to_string();
        text.trim_start_matches("expected ").into()
    }
}

impl Blank for LoadId {
    fn blank() -> Self {
        LoadId::CPU
    }
}

/// All strategies, in Markdown: the end of `docs/strategies.md`.
pub(crate) fn describe_strategies() -> String {
    strategy::REGISTRY.iter().map(chapter).collect()
}

fn chapter(kind: &Kind) -> String {
    let mut text = format!("### `{}`\n\n{}\n\n", kind.name, kind.doc);
    for param in kind.params {
        let (name, doc, default) = (param.name, param.doc.trim_end_matches('.'), param.default);
        let allowed = param_allowed(param);
        text += &format!("- `{name}`: {doc}. Allowed: {allowed}; default {default}.\n");
    }
    if !kind.params.is_empty() {
        text.push('\n');
    }
    text
}
