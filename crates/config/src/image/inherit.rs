//! Keys that tables have from `[defaults]`.

use std::collections::HashSet;
use std::sync::LazyLock;

use serde_json::{Map, Value as Json};

use crate::reference::{self, TableDoc};

/// A key below a table, and its value.
pub(super) type Leaf = (Vec<String>, Json);

/// Names of the keys that rules, groups and locations have from `[defaults]`, and the tables among them of which each
/// key is inherited by itself.
struct Keys {
    of_rules: HashSet<&'static str>,
    of_groups: HashSet<&'static str>,
    merged: HashSet<String>,
}

static KEYS: LazyLock<Keys> = LazyLock::new(|| {
    let tables = reference::list_tables();
    let keys = |header: &str| -> HashSet<&'static str> {
        let tables = tables.iter().filter(|table| table.header == header);
        let keys = tables.flat_map(|table| &table.keys);
        keys.map(|key| key.name).collect()
    };
    let of_rules = keys("[rule.NAME]");
    let groups = keys("[group.NAME]").into_iter();
    let of_groups = groups.filter(|key| !of_rules.contains(key)).collect();
    let inner = |table: &TableDoc| {
        let header = table.header.strip_prefix('[')?.strip_suffix(']')?;
        let inner = header.strip_prefix("rule.NAME.");
        inner
            .or_else(|| header.strip_prefix("group.NAME."))
            .map(str::to_owned)
    };
    let mut merged: HashSet<String> = tables.iter().filter_map(inner).collect();
    // Without a header of their own.
    merged.extend(["error_pages".to_owned(), "response_fields".to_owned()]);
    Keys {
        of_rules,
        of_groups,
        merged,
    }
});

/// True if the members of a rule are its own, so that it has keys of a group.
fn has_own_group(rule: &Json) -> bool {
    let has = |key: &str| {
        rule.get(key)
            .is_some_and(|value| *value != Json::Bool(false))
    };
    let has_members = has("members") || has("members_files") || has("agents_may_join");
    !has("group") && (has_members || !(has("sni") || has("routes")))
}

/// Returns the keys that the table `own` of a section has from `defaults`.
pub(super) fn leaves(section: &str, own: &Json, defaults: &Json) -> Vec<Leaf> {
    let keys = &*KEYS;
    let is_inherited = |key: &str| match section {
        "rule" => keys.of_rules.contains(key) || keys.of_groups.contains(key) && has_own_group(own),
        "group" => keys.of_groups.contains(key),
        // A location has it only where it says something of it.
        _ => key == "monitor" && own.get("monitor").is_some(),
    };
    let mut found = Vec::new();
    let said = defaults.as_object().into_iter().flatten();
    for (key, default) in said.filter(|(key, _)| is_inherited(key)) {
        let mut path = vec![key.clone()];
        merge(&mut path, own.get(key), default, &mut found);
    }
    found
}

fn merge(path: &mut Vec<String>, own: Option<&Json>, default: &Json, found: &mut Vec<Leaf>) {
    let is_merged = KEYS.merged.contains(&path.join("."));
    let inner = match default {
        Json::Object(inner) if is_merged && !inner.is_empty() => inner,
        _ if own.is_none() => return found.push((path.clone(), default.clone())),
        _ => return,
    };
    let own = match own {
        None => None,
        Some(Json::Object(own)) => Some(own),
        // The table with the keys of the defaults.
        Some(Json::Bool(true)) => return found.push((path.clone(), default.clone())),
        Some(_) => return,
    };
    for (key, default) in inner {
        path.push(key.clone());
        merge(path, own.and_then(|own| own.get(key)), default, found);
        path.pop();
    }
}

/// The table `own` with these keys.
pub(super) fn fill_table(own: &Json, leaves: Vec<Leaf>) -> Json {
    let mut filled = own.clone();
    for (path, value) in leaves {
        put(&mut filled, &path, value);
    }
    filled
}

fn put(at: &mut Json, path: &[String], value: Json) {
    let Some((key, rest)) = path.split_first() else {
        *at = value;
        return;
    };
    if !at.is_object() {
        *at = Json::Object(Map::new());
    }
    if let Some(table) = at.as_object_mut() {
        put(table.entry(key.as_str()).or_insert(Json::Null), rest, value);
    }
}
