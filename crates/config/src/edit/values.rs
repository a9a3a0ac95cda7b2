//! Values that are set and removed; equal parts stay as they are written.

use serde_json::Value as Json;
use toml_edit::{Decor, Item, Key, Table, TableLike};

use super::compare::{is_equal, json_of};
use super::items::{
    find_item, is_list, is_nothing, list_elements, list_length, list_position, no_table, text_of,
};
use super::lists::{put_element, take_element};
use super::order::{first_table, not_about_it};
use super::parts::{Part, shown};
use super::write::{self, Shape};
use crate::difference::find_difference;

/// Returns the contents of `part` of `item`; makes a table if there is nothing.
pub(super) fn enter_part<'i>(
    item: &'i mut Item,
    part: &Part,
    depth: usize,
    end: isize,
) -> Result<&'i mut Item, String> {
    if is_list(item) {
        let index = list_position(item, part)?;
        if index == list_length(item) {
            set_value(item, part, &Json::Object(Default::default()), depth, end)?;
        }
        return item.get_mut(index).ok_or_else(|| "there is nothing".into());
    }
    let key = part.key();
    let is_there = item
        .as_table_like()
        .ok_or_else(|| no_table(item, part))?
        .contains_key(&key);
    if !is_there {
        let shape = Shape::in_item(item);
        let mut new = write::empty_table(shape);
        if let Some(table) = new.as_table_mut() {
            // Only what is put into it needs a header, in most cases.
            table.set_implicit(true);
            table.set_position((depth == 0).then_some(end));
        }
        insert(item, &key, new)?;
    }
    item.get_mut(&*key).ok_or_else(|| "there is nothing".into())
}

pub(super) fn set_value(
    parent: &mut Item,
    part: &Part,
    value: &Json,
    depth: usize,
    end: isize,
) -> Result<(), String> {
    if is_list(parent) {
        let index = list_position(parent, part)?;
        let mut elements = list_elements(parent);
        match elements.get_mut(index) {
            Some(element) => *element = value.clone(),
            None => elements.push(value.clone()),
        }
        return list(parent, &elements, depth);
    }
    let key = part.key();
    if parent.as_table_like().is_none() {
        return Err(no_table(parent, part));
    }
    match parent.get_mut(&*key) {
        Some(known) if !known.is_none() => merge_value(known, value, depth)?,
        _ => {
            let mut new = write::write_item(value, depth, Shape::in_item(parent));
            if let Some(table) = new.as_table_mut() {
                table.set_position((depth == 1).then_some(end));
            }
            insert(parent, &key, new)?;
        }
    }
    // A table with keys has a header of its own.
    if let Some(table) = parent.as_table_mut()
        && table.is_implicit()
        && !table.is_dotted()
        && !table.get_values().is_empty()
    {
        table.set_implicit(false);
    }
    Ok(())
}

/// Puts a new key behind the others.
fn insert(parent: &mut Item, key: &str, mut new: Item) -> Result<(), String> {
    let mut written = Key::new(key);
    match parent {
        Item::Table(table) => {
            // As far in as the others.
            let mut first = None;
            if new.is_value() {
                first = table.iter().find(|(_, item)| item.is_value());
            }
            let first = first.and_then(|(key, _)| table.key(key));
            let prefix = first.map(|key| text_of(key.leaf_decor().prefix()).to_owned());
            let indent = prefix.iter().flat_map(|prefix| prefix.rsplit('\n').next());
            let indent: String = indent.collect();
            if !indent.is_empty() && indent.trim().is_empty() {
                written = written.with_leaf_decor(Decor::new(indent, " "));
            }
            table.insert_formatted(&written, new);
        }
        Item::Value(toml_edit::Value::InlineTable(table)) => {
            let last = table.iter_mut().last();
            let end = match last {
                Some((_, last)) => {
                    let end = text_of(last.decor().suffix()).to_owned();
                    let decor = last.decor_mut();
                    if end.trim().is_empty() {
                        decor.set_suffix("");
                    }
                    end
                }
                None => " ".into(),
            };
            if let Some(value) = new.as_value_mut() {
                *value.decor_mut() = Decor::new(" ", end);
            }
            match new.into_value() {
                Ok(value) => {
                    let prefix = " ";
                    let key = written.with_leaf_decor(Decor::new(prefix, " "));
                    table.insert_formatted(&key, value);
                }
                Err(_) => return Err("the value does not fit into a table on one line".into()),
            }
        }
        other => return Err(no_table(other, &Part::from(key))),
    }
    Ok(())
}

/// Makes `known` say `value`; what says so already stays as it is written.
pub(super) fn merge_value(known: &mut Item, value: &Json, depth: usize) -> Result<(), String> {
    if is_equal(&json_of(known), value) {
        return Ok(());
    }
    match value {
        Json::Object(map) if known.is_table_like() => {
            let table = known.as_table_like().into_iter();
            let keys = table.flat_map(|table| table.iter().map(|(key, _)| key.to_owned()));
            let gone: Vec<String> = keys.filter(|key| !map.contains_key(key)).collect();
            if gone.len().max(map.len()) > MANY && known.is_inline_table() {
                return replace(known, value);
            }
            if gone.len() > MANY
                && let Some(table) = known.as_table_mut()
            {
                table.retain(|key, _| map.contains_key(key));
            } else {
                for key in gone {
                    let mut left = String::new();
                    remove_item(known, &[Part::Key(key)], &mut left)?;
                }
            }
            for (key, value) in map {
                set_value(known, &Part::Key(key.clone()), value, depth + 1, 0)?;
            }
            if is_nothing(known) {
                match known {
                    Item::Table(table) => {
                        table.set_implicit(false);
                        table.set_dotted(false);
                    }
                    Item::Value(toml_edit::Value::InlineTable(table)) => table.set_dotted(false),
                    _ => {}
                }
            }
            Ok(())
        }
        Json::Array(elements)
            if known.is_array()
                || known.is_array_of_tables()
                    && !elements.is_empty()
                    && elements.iter().all(Json::is_object) =>
        {
            list(known, elements, depth)
        }
        value => replace(known, value),
    }
}

/// Number of changes within one table or list up to which they are made one by one, with the comments around
/// them kept; more would take long.
const MANY: usize = 1000;

/// Puts a value in the place of what is there.
fn replace(known: &mut Item, value: &Json) -> Result<(), String> {
    let mut new = write::write_value(value);
    if let Item::Value(old) = &*known {
        *new.decor_mut() = old.decor().clone();
    }
    *known = Item::Value(new);
    Ok(())
}

/// Makes a list say `elements`: what both begin and end with stays.
fn list(known: &mut Item, elements: &[Json], depth: usize) -> Result<(), String> {
    let old = list_elements(known);
    let (gone, new) = find_difference(&old, elements, is_equal);
    let (begin, old_end, new_end) = (gone.start, gone.end, new.end);
    let end = old.len() - old_end;
    let both = old_end.min(new_end);
    let moved = (old_end - both).max(new_end - both);
    if moved > MANY && end > MANY {
        return replace(known, &Json::Array(elements.to_vec()));
    }
    let changed = elements.get(begin..both).unwrap_or_default();
    for (index, value) in changed.iter().enumerate() {
        let element = known.get_mut(begin + index);
        merge_value(element.ok_or("there is nothing")?, value, depth + 1)?;
    }
    let more = elements.get(both..new_end).unwrap_or_default();
    match known {
        Item::ArrayOfTables(tables) => {
            for index in (both..old_end).rev() {
                tables.remove(index);
            }
            for (index, value) in more.iter().enumerate() {
                let table = write::write_table(value, depth);
                match both + index < tables.len() {
                    true => tables.insert(both + index, table),
                    false => tables.push(table),
                }
            }
        }
        Item::Value(toml_edit::Value::Array(array)) => {
            for index in (both..old_end).rev() {
                take_element(array, index);
            }
            for (index, value) in more.iter().enumerate() {
                put_element(array, both + index, write::write_value(value));
            }
        }
        _ => return Err("the value is no list".into()),
    }
    Ok(())
}

/// Removes what is at `path`. What was written above it and is not about it is appended to `left`;
/// answers behind which table it stood, if it was one.
pub(super) fn remove_item(
    item: &mut Item,
    path: &[Part],
    left: &mut String,
) -> Result<Option<isize>, String> {
    let Some((last, parents)) = path.split_last() else {
        return Err("the path is empty: name a key".into());
    };
    let parent = find_item(item, parents)?;
    let missing = || format!("there is no {}", shown(path));
    if is_list(parent) {
        let index = last.index().filter(|index| *index < list_length(parent));
        let index = index.ok_or_else(missing)?;
        return Ok(match parent {
            Item::ArrayOfTables(tables) => {
                let position = tables.get(index).and_then(Table::position);
                let above = tables.get(index).map(|table| table.decor().prefix());
                left.push_str(not_about_it(text_of(above.flatten())));
                tables.remove(index);
                position
            }
            Item::Value(toml_edit::Value::Array(array)) => {
                take_element(array, index);
                None
            }
            _ => None,
        });
    }
    let key = last.key();
    let table = parent.as_table_like_mut().ok_or_else(missing)?;
    let found = table.get(&key).filter(|item| !item.is_none());
    let found = found.ok_or_else(missing)?;
    let first = first_table(found);
    if let Some(table) = first {
        let position = table.position();
        left.push_str(not_about_it(text_of(table.decor().prefix())));
        table_removed(parent, &key);
        return Ok(position);
    }
    let above = table.key(&key).map(|key| key.leaf_decor().prefix());
    let above = not_about_it(text_of(above.flatten())).to_owned();
    let keys: Vec<String> = table.iter().map(|(key, _)| key.to_owned()).collect();
    let index = keys.iter().position(|known| *known == key).unwrap_or(0);
    let is_inline = parent.is_inline_table();
    let table = parent.as_table_like_mut().ok_or_else(missing)?;
    let gone = table.remove(&key);
    let next = keys.get(index + 1);
    let is_value = |table: &dyn TableLike, key: &str| table.get(key).is_some_and(Item::is_value);
    if is_inline {
        // The space before the end of the table.
        let before = index.checked_sub(1).and_then(|at| keys.get(at));
        let end = gone.as_ref().and_then(Item::as_value);
        let end = end.map(|value| text_of(value.decor().suffix()).to_owned());
        if let (None, Some(before), Some(end)) = (next, before, end)
            && let Some(last) = table.get_mut(before).and_then(Item::as_value_mut)
        {
            last.decor_mut().set_suffix(end);
        }
    } else if let Some(next) = next.filter(|next| is_value(table, next))
        && let Some(mut next) = table.key_mut(next)
    {
        let prefix = text_of(next.leaf_decor().prefix()).to_owned();
        let prefix = format!("{above}{prefix}");
        next.leaf_decor_mut().set_prefix(prefix);
    } else {
        left.push_str(&above);
        return Ok(parent.as_table().map(|table| table.position().unwrap_or(0)));
    }
    Ok(None)
}

fn table_removed(parent: &mut Item, key: &str) {
    if let Some(table) = parent.as_table_like_mut() {
        table.remove(key);
    }
}
