//! `[[sweep]]` of a scenario: a parameter that takes several values, one after the other.

use toml::de::DeValue;

use crate::schema::document::{Item, Span};
use crate::schema::errors::SourcePosition;
use crate::schema::field::{Field, Limits, Texts, WRONG_TYPE};
use crate::schema::key::section;
use crate::schema::overrides::{Override, parse_path};
use crate::schema::report::Report;
use crate::schema::table::Table;

/// The most values of a sweep.
const MAX_VALUES: usize = 100;

section! {
    /// `[[sweep]]`, while it is read.
    #[derive(Clone, Debug)]
    pub(crate) struct SweepKeys {}
    keys SWEEP {
        /// Key to change: a key of the scenario, or a key of the configuration after `config.`. **Required.**
        key: String [Text(PATHS)] = String::new(); r#""config.rule.web.strategy""#,
        /// Values of the key. **Required.**
        values: Any = Any::default(); r#"["adaptive", "round_robin"]"#,
    }
}

/// Rules for the key of a sweep.
const PATHS: Texts = (
    "the path of a key, as in \"load.utilisation\" or \"config.group.web.strategy\"",
    |text| parse_path(text).is_some(),
);

/// Values of any type: where they are.
#[derive(Clone, Debug, Default)]
pub(crate) struct Any(Vec<(Span, SourcePosition)>);

impl Field for Any {
    fn read(&mut self, item: &Item<'_>, limits: &Limits, report: &mut Report<'_>) {
        let DeValue::Array(list) = item.value else {
            return report.wrong(item, WRONG_TYPE, self.allowed(limits));
        };
        if !(1..=MAX_VALUES).contains(&list.len()) {
            return report.wrong(item, "too few or too many", self.allowed(limits));
        }
        let values = item.elements(list);
        self.0 = values
            .map(|value| (value.span.clone(), report.place(&value)))
            .collect();
    }

    fn allowed(&self, _: &Limits) -> String {
        format!("a list of 1 to {MAX_VALUES} values, as the key takes them")
    }
}

/// `[[sweep]]`: a parameter that takes several values.
#[derive(Clone, Debug, PartialEq)]
pub struct Sweep {
    /// The key, as it was written.
    pub key: String,
    /// True if the key is one of the configuration.
    pub of_config: bool,
    /// Values of the key.
    pub values: Vec<Override>,
}

pub(super) fn read_sweep(
    table: &mut Table<'_>,
    text: &str,
    report: &mut Report<'_>,
) -> Option<Sweep> {
    let mut keys = SweepKeys::default();
    table.read(SWEEP, &mut keys, report);
    table.require("key", report);
    table.require("values", report);
    let mut names = parse_path(&keys.key)?;
    let first = names.first()?.clone();
    let of_config = first == "config" && names.len() > 1;
    if of_config {
        names.remove(0);
    } else if ["config", "sweep", "seed", "seeds"].contains(&first.as_str()) {
        table.report_problem("key", "cannot be swept", report);
        return None;
    }
    let value = |(at, place): (Span, SourcePosition)| {
        let value = text.get(at.clone()).unwrap_or_default();
        let span = if of_config { 0..0 } else { at };
        Override::new(names.clone(), value, span, place)
    };
    let values = keys.values.0.into_iter().map(value).collect();
    Some(Sweep {
        key: keys.key,
        of_config,
        values,
    })
}
