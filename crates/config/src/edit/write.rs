//! New values as a person would write them.

use serde_json::Value as Json;
use toml_edit::{Array, ArrayOfTables, Decor, InlineTable, Item, Table, Value};

/// The longest line that a list or table is written in.
const LINE: usize = 90;

/// Place of a new value.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    /// In a table with a header.
    Header,
    /// In a table or list that is written as a value.
    Inline,
}

impl Shape {
    /// Of what is put into `parent`.
    pub(super) fn in_item(parent: &Item) -> Self {
        match parent {
            Item::Table(table) if !table.is_dotted() => Shape::Header,
            _ => Shape::Inline,
        }
    }
}

/// A table without anything.
pub(super) fn empty_table(shape: Shape) -> Item {
    match shape {
        Shape::Header => Item::Table(Table::new()),
        Shape::Inline => Item::Value(Value::InlineTable(InlineTable::new())),
    }
}

/// A value at the depth `depth` of the file, from 1.
pub(super) fn write_item(json: &Json, depth: usize, shape: Shape) -> Item {
    match json {
        Json::Object(map) if shape == Shape::Header => {
            let flat = map.values().all(|value| !value.is_object());
            let inline = write_value(json);
            if depth > 2 && flat && inline.to_string().len() <= LINE {
                return Item::Value(inline);
            }
            Item::Table(write_table(json, depth))
        }
        Json::Array(list)
            if shape == Shape::Header && !list.is_empty() && list.iter().all(Json::is_object) =>
        {
            let short = list.iter().all(|element| {
                let flat = element.as_object().into_iter().flat_map(|map| map.values());
                flat.into_iter().all(|value| !value.is_object())
                    && write_value(element).to_string().len() <= LINE
            });
            if short {
                return Item::Value(write_value(json));
            }
            let tables = list.iter().map(|element| write_table(element, depth));
            Item::ArrayOfTables(tables.collect::<ArrayOfTables>())
        }
        json => Item::Value(write_value(json)),
    }
}

/// A table with a header.
pub(super) fn write_table(json: &Json, depth: usize) -> Table {
    let mut table = Table::new();
    for (key, value) in json.as_object().into_iter().flatten() {
        table.insert(key, write_item(value, depth + 1, Shape::Header));
    }
    table.set_implicit(!table.is_empty() && table.get_values().is_empty());
    table
}

/// Returns the TOML value that is written behind `=`.
pub(super) fn write_value(json: &Json) -> Value {
    match json {
        // Refused before.
        Json::Null => Value::from(""),
        Json::Bool(flag) => Value::from(*flag),
        Json::Number(number) => match number.as_i64() {
            Some(whole) => Value::from(whole),
            None => Value::from(number.as_f64().unwrap_or_default()),
        },
        Json::String(text) => Value::from(text.as_str()),
        Json::Array(list) => {
            let elements = list.iter().map(write_value);
            let mut array: Array = elements.collect();
            let tables = list.len() > 1 && list.iter().any(Json::is_object);
            if tables || array.to_string().len() > LINE {
                for element in array.iter_mut() {
                    *element.decor_mut() = Decor::new("\n  ", "");
                }
                array.set_trailing("\n");
                array.set_trailing_comma(true);
            }
            Value::Array(array)
        }
        Json::Object(map) => {
            let mut table = InlineTable::new();
            for (key, one) in map {
                table.insert(key, write_value(one));
            }
            Value::InlineTable(table)
        }
    }
}
