//! `models`: groups for requests by the name of the model in the body.

use std::collections::HashMap;

use toml::de::DeValue;

use super::group_name::unknown_group;
use crate::schema::document::{Item, Span, entries};
use crate::schema::field::{Field, Limits, WRONG_TYPE, blank, read_one};
use crate::schema::report::Report;
use crate::schema::table::{NAMES, Table};

/// Longest name of a model, which is the longest that is read of a request.
pub(super) const MAX_NAME: usize = 128;

/// Groups by the names of models.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Models(pub Vec<ModelGroups>);

/// Groups for the models of a name.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelGroups {
    /// Name of a model, or the beginning of a name with `*` behind it.
    pub name: String,
    /// Names of the groups: a request goes to the first one with a member that works.
    pub groups: Vec<String>,
}

blank!(Models);

const ALLOWED: &str =
    "a table of names of models, each with the name of a group, or with a list of names";

impl Field for Models {
    fn read(&mut self, item: &Item<'_>, limits: &Limits, report: &mut Report<'_>) {
        let DeValue::Table(table) = item.value else {
            return report.wrong(item, WRONG_TYPE, self.allowed(limits));
        };
        self.0.clear();
        for entry in entries(&item.path, table) {
            if !is_model_name(entry.name) {
                let message = format!(
                    "must be the name of a model, at most {MAX_NAME} bytes long, or the beginning of one with \"*\" behind it"
                );
                report.add_problem(&entry.key_span, &entry.item.path, message, None);
                continue;
            }
            let Some(items) = entry.item.one_or_each() else {
                report.wrong(&entry.item, "names no group", ALLOWED.into());
                continue;
            };
            let mut groups: Vec<String> = Vec::new();
            for item in &items {
                let Some(group) = read_one(item, &Limits::Text(NAMES), report) else {
                    continue;
                };
                if groups.contains(&group) {
                    report.add_problem(&item.span, &item.path, "is named twice", None);
                } else {
                    groups.push(group);
                }
            }
            if !groups.is_empty() {
                let name = entry.name.to_owned();
                self.0.push(ModelGroups { name, groups });
            }
        }
    }

    fn allowed(&self, _: &Limits) -> String {
        ALLOWED.into()
    }
}

fn is_model_name(name: &str) -> bool {
    let fixed = name.strip_suffix('*').unwrap_or(name);
    !name.is_empty() && fixed.len() <= MAX_NAME && !fixed.contains('*')
}

impl Models {
    /// True if no model has groups of its own.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Names of the groups, some of them several times.
    pub fn group_names(&self) -> impl Iterator<Item = &String> {
        self.0.iter().flat_map(|models| &models.groups)
    }

    /// Reports groups that do not exist. `table` has the key `models`, unless the key comes from the defaults; `rule` is
    /// the name of the rule.
    pub(super) fn check_groups(
        &self,
        rule: &str,
        table: &mut Table<'_>,
        shared: &HashMap<String, Span>,
        report: &mut Report<'_>,
    ) {
        // The group of a rule is one of its own name, too.
        let is_unknown = |group: &&String| !shared.contains_key(*group) && *group != rule;
        let unknown = |models: &ModelGroups| models.groups.iter().find(is_unknown).cloned();
        if self.group_names().find(is_unknown).is_none() {
            return;
        }
        let names = match table.has_key("models") {
            true => table.read_table("models", report),
            false => None,
        };
        for models in &self.0 {
            let Some(group) = unknown(models) else {
                continue;
            };
            match &names {
                Some(names) => unknown_group(names, &models.name, &group, shared, report),
                None => unknown_group(table, "models", &group, shared, report),
            }
        }
    }
}
