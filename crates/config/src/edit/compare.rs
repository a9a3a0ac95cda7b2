//! Values of a text, and differences between two texts.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};
use similar::{Algorithm, TextDiff};
use toml_edit::{Document, Item, Value};

use super::parts::Part;

/// The document in `text` as a tree of JSON. Dates, and numbers that JSON has not, are texts.
///
/// # Errors
///
/// It is no TOML document.
pub fn values(text: &str) -> Result<Json, String> {
    let document = Document::parse(text).map_err(|error| error.to_string())?;
    Ok(json_of(document.as_item()))
}

pub(crate) fn json_of(item: &Item) -> Json {
    match item {
        Item::None => Json::Null,
        Item::Value(value) => json_of_value(value),
        Item::Table(table) => object(table.iter()),
        Item::ArrayOfTables(list) => list.iter().map(|table| object(table.iter())).collect(),
    }
}

fn object<'i>(entries: impl Iterator<Item = (&'i str, &'i Item)>) -> Json {
    let entries = entries.filter(|(_, item)| !item.is_none());
    let entries = entries.map(|(key, item)| (key.to_owned(), json_of(item)));
    Json::Object(entries.collect::<Map<_, _>>())
}

pub(super) fn json_of_value(value: &Value) -> Json {
    match value {
        Value::String(text) => text.value().as_str().into(),
        Value::Integer(number) => (*number.value()).into(),
        Value::Float(number) => match serde_json::Number::from_f64(*number.value()) {
            Some(number) => Json::Number(number),
            None => number.value().to_string().into(),
        },
        Value::Boolean(flag) => (*flag.value()).into(),
        Value::Datetime(date) => date.value().to_string().into(),
        Value::Array(list) => list.iter().map(json_of_value).collect(),
        Value::InlineTable(table) => {
            let entries = table.iter();
            let entries = entries.map(|(key, value)| (key.to_owned(), json_of_value(value)));
            Json::Object(entries.collect())
        }
    }
}

/// True if two trees have the same values: 1 is 1.0.
pub(crate) fn is_equal(one: &Json, other: &Json) -> bool {
    match (one, other) {
        (Json::Number(one), Json::Number(other)) => {
            one == other || one.as_f64() == other.as_f64() && (one.is_f64() || other.is_f64())
        }
        (Json::Array(one), Json::Array(other)) => {
            one.len() == other.len()
                && one
                    .iter()
                    .zip(other)
                    .all(|(one, other)| is_equal(one, other))
        }
        (Json::Object(one), Json::Object(other)) => {
            let same = |(key, value)| other.get(key).is_some_and(|other| is_equal(value, other));
            one.len() == other.len() && one.iter().all(same)
        }
        (one, other) => one == other,
    }
}

/// A value that differs between two configurations.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct Change {
    /// Path of the change.
    pub path: Vec<Part>,
    /// Value before the change; null if there was nothing.
    pub before: Json,
    /// Value after the change; null if there is nothing.
    pub after: Json,
}

/// Differences between two trees: the smallest tables, or lists, that contain all differences.
pub fn list_changes(before: &Json, after: &Json) -> Vec<Change> {
    let mut found = Vec::new();
    compare(&mut Vec::new(), before, after, &mut found);
    found
}

fn compare(path: &mut Vec<Part>, before: &Json, after: &Json, found: &mut Vec<Change>) {
    match (before, after) {
        (Json::Object(old), Json::Object(new)) => {
            for (key, before) in old {
                path.push(Part::Key(key.clone()));
                compare(path, before, new.get(key).unwrap_or(&Json::Null), found);
                path.pop();
            }
            for (key, after) in new.iter().filter(|(key, _)| !old.contains_key(*key)) {
                path.push(Part::Key(key.clone()));
                compare(path, &Json::Null, after, found);
                path.pop();
            }
        }
        (Json::Array(old), Json::Array(new))
            if old.len() == new.len() && old.iter().chain(new).all(Json::is_object) =>
        {
            for (index, (before, after)) in old.iter().zip(new).enumerate() {
                path.push(Part::Index(index));
                compare(path, before, after, found);
                path.pop();
            }
        }
        (before, after) if before != after => found.push(Change {
            path: path.clone(),
            before: before.clone(),
            after: after.clone(),
        }),
        _ => {}
    }
}

/// A difference is looked for as long at most; one that is found later is a coarse one.
const PATIENCE: Duration = Duration::from_millis(500);

/// Differences between two texts, as `diff -u` writes them; empty if there are none.
pub fn unified(before: (&str, &str), after: (&str, &str)) -> String {
    let diff = TextDiff::configure()
        .algorithm(Algorithm::Myers)
        .timeout(PATIENCE)
        .diff_lines(before.1, after.1);
    let mut unified = diff.unified_diff();
    unified.header(before.0, after.0).to_string()
}

/// The value in `text`, as it is written in TOML; what is none is a text.
pub fn value_of(text: &str) -> Json {
    let value = text.parse::<toml_edit::Value>();
    value.map_or_else(|_| text.into(), |value| json_of_value(&value))
}
