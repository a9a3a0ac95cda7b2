//! Named tables of texts.

use serde_json::Value as Json;
use toml_edit::{DocumentMut, Item, Table};

use crate::edit::{self, Edit, Part};

/// Name of an image in messages.
pub const IMAGE: &str = "image";

/// Sections whose tables an image has.
pub(super) const SECTIONS: [&str; 3] = ["rule", "group", "location"];

/// The texts that a configuration is made of, each with its name. Edits are made in the first.
pub type Texts = [(String, String)];

/// Section and name of a table.
pub(super) type TableName = (&'static str, String);

/// The path of a table in messages and requests: `group.pool`.
pub(super) fn path_of((section, name): &TableName) -> String {
    edit::shown(&parts_of((section, name)))
}

pub(super) fn parts_of((section, name): (&str, &str)) -> Vec<Part> {
    vec![section.into(), name.into()]
}

/// Documents of texts, in their order. A text that is no document has no tables.
pub(super) struct Documents(pub(super) Vec<DocumentMut>);

impl Documents {
    pub(super) fn parse(texts: &Texts) -> Self {
        let documents = texts.iter().map(|(_, text)| {
            let text = text.trim_start_matches('\u{feff}').replace("\r\n", "\n");
            text.parse().unwrap_or_default()
        });
        Documents(documents.collect())
    }

    /// The table, and the index of the text in which it stands.
    pub(super) fn find(&self, section: &str, name: &str) -> Option<(usize, &Item)> {
        let in_each = self.0.iter().enumerate();
        let mut found = in_each.filter_map(|(index, document)| {
            let table = document.get(section)?.as_table_like()?.get(name)?;
            (!table.is_none()).then_some((index, table))
        });
        found.next()
    }

    /// The table `[defaults]`; null if there is none.
    pub(super) fn defaults(&self) -> Json {
        let mut found = self
            .0
            .iter()
            .filter_map(|document| document.get("defaults"));
        found.next().map(edit::json_of).unwrap_or_default()
    }
}

/// The text of one table, with the comments that are about it.
pub(super) fn text_of((section, name): (&str, &str), item: &Item) -> String {
    let Item::Table(table) = item else {
        return text_of_value((section, name), item);
    };
    if table.is_dotted() {
        return text_of_value((section, name), item);
    }
    let mut table = table.clone();
    let prefix = table.decor().prefix().and_then(|prefix| prefix.as_str());
    let comment = about_it(prefix.unwrap_or_default()).to_owned();
    table.decor_mut().set_prefix(comment);
    let mut outer = Table::new();
    outer.set_implicit(true);
    outer.insert(name, Item::Table(table));
    let mut document = DocumentMut::new();
    document.insert(section, Item::Table(outer));
    let text = document.to_string();
    let text = text.trim_matches('\n');
    format!("{text}\n")
}

/// The text of a table that stands within another one, as `web = { … }` in `[rule]`.
fn text_of_value((section, name): (&str, &str), item: &Item) -> String {
    let set = Edit::Set {
        path: parts_of((section, name)),
        value: edit::json_of(item),
    };
    let text = edit::apply_edits("", &[set]).unwrap_or_default();
    format!("{}\n", text.trim_matches('\n'))
}

/// The lines above a table that are about it: those behind the last empty line, if there is a comment.
fn about_it(above: &str) -> &str {
    let mut start = 0;
    let mut at = 0;
    for line in above.split_inclusive('\n') {
        at += line.len();
        if line.trim().is_empty() {
            start = at;
        }
    }
    above.get(start..).unwrap_or_default()
}
