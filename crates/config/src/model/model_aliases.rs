//! `model_aliases`: names of models for clients, in place of the names that engines know.

use toml::de::DeValue;

use super::models::{MAX_NAME, Models};
use crate::schema::document::{Item, entries};
use crate::schema::field::{Field, Limits, Texts, WRONG_TYPE, blank, read_one};
use crate::schema::report::Report;
use crate::schema::table::Table;

/// Names of models for clients.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ModelAliases(pub Vec<ModelAlias>);

/// Name of a model for clients.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelAlias {
    /// Name that clients write.
    pub alias: String,
    /// Name of the same model at the engines.
    pub model: String,
}

blank!(ModelAliases);

const ALLOWED: &str = "a table of aliases, each with the name of a model";

const MODEL: Texts = (
    "the name of a model, at most 128 bytes long, without \"*\" and control characters",
    is_whole_name,
);

fn is_whole_name(name: &str) -> bool {
    let is_plain = !name.contains('*') && !name.contains(char::is_control);
    !name.is_empty() && name.len() <= MAX_NAME && is_plain
}

impl Field for ModelAliases {
    fn read(&mut self, item: &Item<'_>, limits: &Limits, report: &mut Report<'_>) {
        let DeValue::Table(table) = item.value else {
            return report.wrong(item, WRONG_TYPE, self.allowed(limits));
        };
        self.0.clear();
        for entry in entries(&item.path, table) {
            if !is_whole_name(entry.name) {
                let message = format!("is no alias: write {}", MODEL.0);
                report.add_problem(&entry.key_span, &entry.item.path, message, None);
                continue;
            }
            let Some(model) = read_one::<String>(&entry.item, &Limits::Text(MODEL), report) else {
                continue;
            };
            if model == entry.name {
                let message = "is an alias of itself: name the model of your engines";
                report.add_problem(&entry.item.span, &entry.item.path, message, None);
                continue;
            }
            let is_alias = entries(&item.path, table)
                .iter()
                .any(|other| other.name == model);
            if is_alias {
                let message = format!(
                    "\"{model}\" is an alias, too, and aliases are looked up once: name the model of your engines"
                );
                report.add_problem(&entry.item.span, &entry.item.path, message, None);
                continue;
            }
            let alias = entry.name.to_owned();
            self.0.push(ModelAlias { alias, model });
        }
    }

    fn allowed(&self, _: &Limits) -> String {
        ALLOWED.into()
    }
}

impl ModelAliases {
    /// True if no model has another name for clients.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Model of an alias.
    fn find_model(&self, name: &str) -> Option<&str> {
        let found = self.0.iter().find(|known| known.alias == name)?;
        Some(&found.model)
    }

    /// Reports groups for aliases: groups are chosen by the names of engines. `table` has `models`, unless the key comes
    /// from elsewhere.
    pub(super) fn check_models(
        &self,
        models: &Models,
        table: &mut Table<'_>,
        report: &mut Report<'_>,
    ) {
        let of_aliases = models.0.iter().filter_map(|models| {
            let model = self.find_model(&models.name)?;
            Some((&*models.name, model))
        });
        for (alias, model) in of_aliases {
            let message = format!(
                "no request gets there, because \"{alias}\" is an alias in `model_aliases`: write the model's name, \"{model}\""
            );
            let names = match table.has_key("models") {
                true => table.read_table("models", report),
                false => None,
            };
            match names {
                Some(names) => names.report_problem(alias, message, report),
                None => table.report_problem("model_aliases", message, report),
            }
        }
    }
}
