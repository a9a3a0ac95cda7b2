//! Loads by the names that others have for them.

use evenkeel_core::load::{LOADS_PER_LOCATION, LoadId};
use toml::de::DeValue;

use crate::schema::document::{Entry, Item, entries, join_key};
use crate::schema::field::{Field, Limits, WRONG_TYPE, read_one};
use crate::schema::report::Report;

/// Loads by name. No load occurs twice.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NamedLoads(Vec<(String, LoadId)>);

impl NamedLoads {
    /// The load that `name` is; it stands there behind `prefix`.
    #[inline]
    pub fn find_load(&self, prefix: &str, name: &str) -> Option<LoadId> {
        let is_it = |known: &str| known.strip_prefix(prefix) == Some(name);
        let found = self.0.iter().find(|(known, _)| is_it(known))?;
        Some(found.1)
    }

    /// The loads.
    pub fn load_ids(&self) -> impl Iterator<Item = LoadId> {
        self.0.iter().map(|(_, load)| *load)
    }

    /// True if there is no load.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<const N: usize> From<[(&str, LoadId); N]> for NamedLoads {
    fn from(loads: [(&str, LoadId); N]) -> Self {
        NamedLoads(loads.map(|(name, load)| (name.to_owned(), load)).into())
    }
}

impl Field for NamedLoads {
    fn read(&mut self, item: &Item<'_>, limits: &Limits, report: &mut Report<'_>) {
        let DeValue::Table(table) = item.value else {
            return report.wrong(item, WRONG_TYPE, self.allowed(limits));
        };
        self.0.clear();
        for entry in entries(&item.path, table) {
            if let Limits::Names(problem) = limits
                && let Some((message, allowed)) = problem(entry.name)
            {
                report.add_problem(&entry.key_span, &entry.item.path, message, Some(allowed));
                continue;
            }
            let Some(load) = read_one(&entry.item, &Limits::Any, report) else {
                continue;
            };
            if check_load(load, self.load_ids(), &entry, report) {
                self.0.push((entry.name.into(), load));
            }
        }
    }

    fn show(&self, _: &Limits) -> Option<String> {
        let loads = self.0.iter().map(|(name, load)| {
            let name = join_key("", name);
            format!("{name} = \"{load}\"")
        });
        let loads: Vec<_> = loads.collect();
        (!loads.is_empty()).then(|| format!("{{ {} }}", loads.join(", ")))
    }

    fn allowed(&self, _: &Limits) -> String {
        "a table of names, each with the name or the number of a load".into()
    }
}

/// Returns whether `load` may be in the list, too.
pub(crate) fn check_load(
    load: LoadId,
    others: impl Iterator<Item = LoadId>,
    entry: &Entry<'_>,
    report: &mut Report<'_>,
) -> bool {
    let others: Vec<LoadId> = others.collect();
    let message = if others.contains(&load) {
        format!("load {load} is set already")
    } else if others.len() >= LOADS_PER_LOCATION {
        format!("a location keeps at most {LOADS_PER_LOCATION} loads")
    } else {
        return true;
    };
    report.add_problem(&entry.key_span, &entry.item.path, message, None);
    false
}
