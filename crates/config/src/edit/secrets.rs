//! Values that only administrators may see.

use std::ops::Range;

use toml_edit::{Document, Item, TableLike, Value};

use crate::reference::{is_login, is_secret};

/// Text that replaces a secret.
pub const MASK: &str = "********";

/// `text` with [`MASK`] in place of each secret; empty if it is no TOML document.
pub fn mask_secrets(text: &str) -> String {
    let mut masked = String::with_capacity(text.len());
    let mut at = 0;
    for place in places(text, |_| true) {
        masked.push_str(text.get(at..place.start).unwrap_or_default());
        masked.push_str(&format!("{MASK:?}"));
        at = place.end;
    }
    match Document::parse(text) {
        Ok(_) => masked + text.get(at..).unwrap_or_default(),
        Err(_) => String::new(),
    }
}

/// True if a secret of `text` is masked, so that its value is not known.
pub fn has_masked_secret(text: &str) -> bool {
    !masked_places(text).is_empty()
}

/// Places in `text` at which a secret is masked, in the order of the file.
pub(crate) fn masked_places(text: &str) -> Vec<Range<usize>> {
    places(text, |value| value.as_str() == Some(MASK))
}

/// True if `text` has a token or a login in it.
pub fn holds_login(text: &str) -> bool {
    let Ok(document) = Document::parse(text) else {
        return false;
    };
    let mut places = Vec::new();
    // What stands in the environment does not stand here.
    let is_here = |value: &Value| value.as_str().is_none_or(|text| !text.starts_with("${"));
    look(
        document.as_table(),
        &mut Vec::new(),
        &|path, _| is_login(path),
        &is_here,
        &mut places,
    );
    !places.is_empty()
}

/// Places in `text` of secrets with wanted values, in the order of the file.
fn places(text: &str, wanted: impl Fn(&Value) -> bool) -> Vec<Range<usize>> {
    let Ok(document) = Document::parse(text) else {
        return Vec::new();
    };
    let mut places = Vec::new();
    look(
        document.as_table(),
        &mut Vec::new(),
        &|path, item| is_secret(path) || has_query(path, item),
        &wanted,
        &mut places,
    );
    places.sort_unstable_by_key(|place| place.start);
    places
}

/// True if the value at a path is one that is looked for.
type PathPredicate<'a> = &'a dyn Fn(&[String], &Item) -> bool;

fn look(
    table: &dyn TableLike,
    path: &mut Vec<String>,
    is_meant: PathPredicate<'_>,
    wanted: &dyn Fn(&Value) -> bool,
    places: &mut Vec<Range<usize>>,
) {
    for (key, item) in table.iter() {
        path.push(key.to_owned());
        if is_meant(path, item) {
            hide(item, wanted, places);
        } else {
            descend(item, path, is_meant, wanted, places);
        }
        path.pop();
    }
}

/// True if the item is the path of a health check with a query, which may hold a key.
fn has_query(path: &[String], item: &Item) -> bool {
    let is_check = matches!(path, [.., table, key] if table == "health_check" && key == "path");
    is_check && item.as_str().is_some_and(|path| path.contains('?'))
}

fn descend(
    item: &Item,
    path: &mut Vec<String>,
    is_meant: PathPredicate<'_>,
    wanted: &dyn Fn(&Value) -> bool,
    places: &mut Vec<Range<usize>>,
) {
    if let Some(table) = item.as_table_like() {
        look(table, path, is_meant, wanted, places);
    }
    for table in item.as_array_of_tables().into_iter().flatten() {
        look(table, path, is_meant, wanted, places);
    }
    for value in item.as_array().into_iter().flatten() {
        if let Some(table) = value.as_inline_table() {
            look(table, path, is_meant, wanted, places);
        }
    }
}

/// All texts of a secret: itself, or those of a table or list.
fn hide(item: &Item, wanted: &dyn Fn(&Value) -> bool, places: &mut Vec<Range<usize>>) {
    if let Some(table) = item.as_table_like() {
        for (_, item) in table.iter() {
            hide(item, wanted, places);
        }
        return;
    }
    let values: Vec<&Value> = match item {
        Item::Value(Value::Array(list)) => list.iter().collect(),
        Item::Value(value) => vec![value],
        _ => Vec::new(),
    };
    for value in values {
        if let Some(place) = value.span().filter(|_| wanted(value)) {
            places.push(place);
        }
    }
}
