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
    /// Name that clients write, or the beginning of such names with "*" behind it.
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

/// True for a whole name, and for the beginning of names with "*" behind it.
fn is_alias_name(name: &str) -> bool {
    is_whole_name(name.strip_suffix('*').unwrap_or(name))
}

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
        // Where each alias that is read stands, to say which one is wrong.
        let mut items = Vec::new();
        for entry in entries(&item.path, table) {
            if !is_alias_name(entry.name) {
                let message = format!(
                    "is no alias: write {}, or the beginning of names with \"*\" behind it",
                    MODEL.0
                );
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
            let alias = entry.name.to_owned();
            self.0.push(ModelAlias { alias, model });
            items.push(entry.item);
        }
        let is_model = |known: &ModelAlias| self.find_alias(&known.model).is_none();
        let are_models: Vec<bool> = self.0.iter().map(is_model).collect();
        let mut each = items.iter().zip(are_models);
        self.0.retain(|known| {
            let Some((item, false)) = each.next() else {
                return true;
            };
            let message = format!(
                "\"{}\" is an alias, too, and aliases are looked up once: name the model of your engines",
                known.model
            );
            report.add_problem(&item.span, &item.path, message, None);
            false
        });
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

    /// Finds the alias that stands for another name than `name`: the alias itself, or else the longest beginning.
    fn find_alias(&self, name: &str) -> Option<&ModelAlias> {
        let beginnings = self.0.iter().filter(|known| {
            let beginning = known.alias.strip_suffix('*');
            beginning.is_some_and(|beginning| name.starts_with(beginning))
        });
        let whole = self.0.iter().find(|known| known.alias == name);
        let found = whole.or_else(|| beginnings.max_by_key(|known| known.alias.len()));
        // A beginning of the engines' own name leaves the name as it is.
        found.filter(|known| known.model != name)
    }

    /// Finds the alias because of which no request for `name` gets to the groups of `models`. `name` may be the
    /// beginning of names, with "*" behind it.
    fn find_hiding_alias(&self, name: &str) -> Option<&ModelAlias> {
        let Some(beginning) = name.strip_suffix('*') else {
            return self.find_alias(name);
        };
        // All such names are aliases, and no alias stands for such a name.
        let is_model = |known: &ModelAlias| known.model.starts_with(beginning);
        if self.0.iter().any(is_model) {
            return None;
        }
        let beginnings = self.0.iter().filter(|known| {
            let of_alias = known.alias.strip_suffix('*');
            of_alias.is_some_and(|of_alias| beginning.starts_with(of_alias))
        });
        beginnings.max_by_key(|known| known.alias.len())
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
            let known = self.find_hiding_alias(&models.name)?;
            Some((&*models.name, known))
        });
        for (name, ModelAlias { alias, model }) in of_aliases {
            let message = format!(
                "no request gets there, because \"{alias}\" is an alias in `model_aliases`: write the model's name, \"{model}\""
            );
            let names = match table.has_key("models") {
                true => table.read_table("models", report),
                false => None,
            };
            match names {
                Some(names) => names.report_problem(name, message, report),
                None => table.report_problem("model_aliases", message, report),
            }
        }
    }
}
