//! New names of keys and tables, and of groups wherever rules and clusters refer to them.

use toml_edit::{DocumentMut, Entry, Item, Key};

use super::items::{is_list, list_length};
use super::parts::Part;
use super::values::merge_value;

/// Gives `old` the name `to`, in its place.
pub(super) fn rename_key(parent: &mut Item, old: &str, to: &str) -> Result<(), String> {
    let Some(table) = parent.as_table_like_mut() else {
        return Err("an element of a list has no name".into());
    };
    if !table.contains_key(old) {
        return Err("there is no such key or table".into());
    }
    if old == to {
        return Ok(());
    }
    if table.contains_key(to) {
        return Err(format!("there is a {to:?} already: choose another name"));
    }
    let keys = table.iter().map(|(key, _)| key.to_owned());
    let keys: Vec<Key> = keys.filter_map(|key| table.key(&key).cloned()).collect();
    let behind = keys.iter().rev();
    let mut items: Vec<(Key, Item)> = behind
        .filter_map(|key| Some((key.clone(), table.remove(key.get())?)))
        .collect();
    while let Some((mut key, item)) = items.pop() {
        if key.get() == old {
            let (leaf, dotted) = (key.leaf_decor().clone(), key.dotted_decor().clone());
            key = Key::new(to).with_leaf_decor(leaf).with_dotted_decor(dotted);
        }
        if let Entry::Vacant(entry) = table.entry_format(&key) {
            entry.insert(item);
        }
    }
    Ok(())
}

/// The name of the group that was renamed, if one was: one with a table, or a rule's own.
pub(super) fn group_of<'n>(
    document: &DocumentMut,
    parents: &[Part],
    to: &str,
    old: &'n str,
) -> Option<&'n str> {
    let [section] = parents else {
        return None;
    };
    let has_own = || {
        let rule = document.get("rule")?.get(to)?;
        let own = ["members", "members_files", "agents_may_join"];
        let owns = own.into_iter().any(|key| rule.get(key).is_some());
        let shared = document.get("group").and_then(|groups| groups.get(old));
        (owns && rule.get("group").is_none() && shared.is_none()).then_some(())
    };
    match &*section.key() {
        "group" => Some(old),
        "rule" => has_own().map(|()| old),
        _ => None,
    }
}

/// Replaces the name of a group wherever one stands in a rule, a cluster or the defaults.
pub(super) fn rename_references(item: &mut Item, old: &str, to: &str, depth: usize) {
    let Some(below) = depth.checked_sub(1) else {
        return;
    };
    if is_list(item) {
        for index in 0..list_length(item) {
            if let Some(element) = item.get_mut(index) {
                rename_references(element, old, to, below);
            }
        }
        return;
    }
    let Some(table) = item.as_table_like_mut() else {
        return;
    };
    let is_it = |item: &Item| item.as_str() == Some(old);
    for (key, item) in table.iter_mut() {
        match key.get() {
            "group" if is_it(item) => {
                let _ = merge_value(item, &to.into(), 0);
            }
            "groups" => {
                for item in each_item(item) {
                    rename_references(item, old, to, below);
                }
                let _ = rename_key(item, old, to);
            }
            "sni" | "models" => {
                for item in each_item(item) {
                    rename_in_list(item, old, to);
                }
            }
            // Keys of the user's choice.
            "headers" | "query" | "cookies" | "request_fields" | "response_fields" => {}
            _ => rename_references(item, old, to, below),
        }
    }
}

/// The items of a table.
pub(super) fn each_item(table: &mut Item) -> impl Iterator<Item = &mut Item> {
    let items = table.as_table_like_mut().into_iter();
    items
        .flat_map(|table| table.iter_mut())
        .map(|(_, item)| item)
}

/// Replaces the name of a group that stands alone or in a list.
fn rename_in_list(item: &mut Item, old: &str, to: &str) {
    if item.as_str() == Some(old) {
        let _ = merge_value(item, &to.into(), 0);
    }
    let elements = item.as_array_mut().into_iter();
    for element in elements.flat_map(|list| list.iter_mut()) {
        if element.as_str() == Some(old) {
            let decor = element.decor().clone();
            *element = to.into();
            *element.decor_mut() = decor;
        }
    }
}
