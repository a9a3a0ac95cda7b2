//! Items of a TOML document: kinds, lists and paths.

use serde_json::Value as Json;
use toml_edit::{Array, Item};

use super::compare::json_of;
use super::parts::{Part, shown};

fn kind(item: &Item) -> &'static str {
    match item {
        Item::None => "nothing",
        Item::Table(_) => "a table",
        Item::ArrayOfTables(_) => "a list of tables",
        Item::Value(value) => match value {
            toml_edit::Value::String(_) => "a text",
            toml_edit::Value::Integer(_) | toml_edit::Value::Float(_) => "a number",
            toml_edit::Value::Boolean(_) => "true or false",
            toml_edit::Value::Datetime(_) => "a date",
            toml_edit::Value::Array(_) => "a list",
            toml_edit::Value::InlineTable(_) => "a table",
        },
    }
}

pub(super) fn no_table(item: &Item, part: &Part) -> String {
    format!(
        "{} has no key {:?}: only a table has keys",
        kind(item),
        part.key()
    )
}

pub(super) fn is_list(item: &Item) -> bool {
    item.is_array() || item.is_array_of_tables()
}

pub(super) fn list_length(item: &Item) -> usize {
    match item {
        Item::ArrayOfTables(list) => list.len(),
        item => item.as_array().map_or(0, Array::len),
    }
}

pub(super) fn list_position(list: &Item, part: &Part) -> Result<usize, String> {
    let count = list_length(list);
    let index = part.index().ok_or_else(|| {
        let key = part.key();
        format!("{key:?} is no position in a list: write a number from 0")
    })?;
    match index <= count {
        true => Ok(index),
        false => Err(format!("there is no element {index}: the list has {count}")),
    }
}

pub(super) fn list_elements(list: &Item) -> Vec<Json> {
    match json_of(list) {
        Json::Array(elements) => elements,
        _ => Vec::new(),
    }
}

pub(super) fn text_of(raw: Option<&toml_edit::RawString>) -> &str {
    raw.and_then(|raw| raw.as_str()).unwrap_or_default()
}

pub(super) fn find_item<'i>(item: &'i mut Item, path: &[Part]) -> Result<&'i mut Item, String> {
    let mut at = item;
    for (depth, part) in path.iter().enumerate() {
        let missing = || {
            let parts = path.get(..=depth).unwrap_or(path);
            format!("there is no {}", shown(parts))
        };
        at = match is_list(at) {
            true => {
                let index = part.index().ok_or_else(missing)?;
                at.get_mut(index).ok_or_else(missing)?
            }
            false => {
                let found = at.get_mut(&*part.key()).filter(|item| !item.is_none());
                found.ok_or_else(missing)?
            }
        };
    }
    Ok(at)
}

/// True if an item is not seen in the text.
pub(super) fn is_nothing(item: &Item) -> bool {
    match item {
        Item::Table(table) => table.is_empty() && (table.is_implicit() || table.is_dotted()),
        Item::ArrayOfTables(list) => list.is_empty(),
        Item::Value(toml_edit::Value::InlineTable(table)) => table.is_empty() && table.is_dotted(),
        _ => false,
    }
}
