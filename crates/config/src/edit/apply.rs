//! Edits applied to a text.

use std::mem;
use std::path::{Path, PathBuf};

use serde_json::Value as Json;
use toml_edit::{Array, Decor, DocumentMut, Entry, Item, Key, Table, TableLike};

use super::compare::{is_equal, json_of};
use super::parts::{Edit, EditError, MAX_DEPTH, MAX_EDITS, MAX_PART, Part, shown};
use super::write::{self, Shape};
use crate::schema::include::{list_included, place_in};
use crate::schema::source::MAX_FILE_SIZE;

/// [`apply_edits`] to the text of `file`, which may include others: what stands in one of those cannot be
/// edited here.
///
/// # Errors
///
/// As those of [`apply_edits`]; or where that stands which an edit is about.
pub fn apply_in(file: &Path, text: &str, edits: &[Edit]) -> Result<String, EditError> {
    let files = list_included(file, text);
    if !files.is_empty()
        && let Ok(document) = text.parse::<DocumentMut>()
    {
        for (index, edit) in edits.iter().enumerate() {
            elsewhere(&document, edit, &files).map_err(|why| EditError {
                edit: Some(index),
                path: shown(edit.path()),
                why,
            })?;
        }
    }
    apply_edits(text, edits)
}

/// Refuses an edit of what stands in one of `files` and not in the document.
fn elsewhere(
    document: &DocumentMut,
    edit: &Edit,
    files: &[(PathBuf, String)],
) -> Result<(), String> {
    let path: Vec<String> = edit.path().iter().map(Part::key).collect();
    let names: Vec<&str> = path.iter().map(String::as_str).collect();
    let refuse = |names: &[&str]| match place_in(files, names) {
        None => Ok(()),
        Some((file, line)) => Err(format!(
            "stands in {}, line {line}, a file that this one includes: change it there, the running process \
             follows that file",
            file.display()
        )),
    };
    // The first part, or the first two, that are not here.
    let is_here = |names: &[&str]| {
        let mut table: Option<&dyn TableLike> = Some(document.as_table());
        names.iter().all(|name| {
            let item = table.and_then(|table| table.get(name));
            table = item.and_then(Item::as_table_like);
            item.is_some_and(|item| !item.is_none())
        })
    };
    for depth in 1..=names.len().min(2) {
        let names = names.get(..depth).unwrap_or_default();
        if !is_here(names) {
            // Further rules may stand there without being in the way of a new one here.
            if depth == 1 && path.len() > 1 {
                continue;
            }
            return refuse(names);
        }
    }
    Ok(())
}

/// The text of a configuration after `edits`, one after the other: all of them or none.
///
/// Comments stay where they are, but for those that are about what is removed: in the same line, or
/// directly above it.
///
/// # Errors
///
/// The first edit that is not possible, or why the text cannot be edited.
pub fn apply_edits(text: &str, edits: &[Edit]) -> Result<String, EditError> {
    let whole = |why: String| EditError {
        edit: None,
        path: String::new(),
        why,
    };
    if edits.len() > MAX_EDITS {
        let found = edits.len();
        return Err(whole(format!(
            "{found} edits are too many: at most {MAX_EDITS} come at once"
        )));
    }
    if text.len() as u64 > MAX_FILE_SIZE {
        return Err(whole(format!(
            "the text is larger than {MAX_FILE_SIZE} bytes"
        )));
    }
    let layout = Layout::of(text);
    let mut document: DocumentMut = (layout.body.parse())
        .map_err(|error| whole(format!("the text is no TOML document: {error}")))?;
    if layout.write(&document) != text {
        return Err(whole(CANNOT_KEEP.into()));
    }
    for (index, edit) in edits.iter().enumerate() {
        one(&mut document, edit).map_err(|why| EditError {
            edit: Some(index),
            path: shown(edit.path()),
            why,
        })?;
    }
    let edited = layout.write(&document);
    if edited.len() as u64 > MAX_FILE_SIZE {
        return Err(whole(format!(
            "the new text is larger than {MAX_FILE_SIZE} bytes"
        )));
    }
    // What was written is what was meant.
    let read = edited.parse::<DocumentMut>().map(DocumentMut::into_item);
    let same = read.is_ok_and(|read| json_of(&read) == json_of(document.as_item()));
    match same {
        true => Ok(edited),
        false => Err(whole(CANNOT_KEEP.into())),
    }
}

const CANNOT_KEEP: &str = "the text cannot be edited without changing other lines of it, because its \
    lines end in two ways, or dotted keys of one table stand apart (a.b, then c, then a.d): bring them \
    together, or send the whole text";

/// Parts of a text outside of the document, which stay as they are.
struct Layout<'t> {
    /// The text without it, with Unix's line ends.
    body: std::borrow::Cow<'t, str>,
    byte_order_mark: bool,
    windows: bool,
    /// True if the last line has no end.
    open: bool,
}

impl<'t> Layout<'t> {
    fn of(text: &'t str) -> Self {
        let (byte_order_mark, body) = match text.strip_prefix('\u{feff}') {
            Some(body) => (true, body),
            None => (false, text),
        };
        let lines = body.matches('\n').count();
        let windows = lines > 0 && body.matches("\r\n").count() == lines;
        let open = !body.is_empty() && !body.ends_with('\n');
        let mut body = match windows {
            true => body.replace("\r\n", "\n").into(),
            false => std::borrow::Cow::from(body),
        };
        if open {
            body.to_mut().push('\n');
        }
        Layout {
            body,
            byte_order_mark,
            windows,
            open,
        }
    }

    fn write(&self, document: &DocumentMut) -> String {
        let mut text = document.to_string();
        if self.open && text.ends_with('\n') {
            text.pop();
        }
        if self.windows {
            text = text.replace('\n', "\r\n");
        }
        if self.byte_order_mark {
            text.insert(0, '\u{feff}');
        }
        text
    }
}

fn one(document: &mut DocumentMut, edit: &Edit) -> Result<(), String> {
    let path = edit.path();
    let Some((last, parents)) = path.split_last() else {
        return Err("the path is empty: name a key".into());
    };
    if path.len() > MAX_DEPTH {
        return Err(format!("the path has more than {MAX_DEPTH} parts"));
    }
    if path.iter().any(|part| part.key().len() > MAX_PART) {
        return Err(format!(
            "a part of the path is longer than {MAX_PART} bytes"
        ));
    }
    match edit {
        Edit::Set { value, .. } => {
            check(value, MAX_DEPTH)?;
            let known = (1..=path.len()).find(|&depth| {
                let path = path.get(..depth).unwrap_or_default();
                find(document.as_item_mut(), path).is_err()
            });
            let end = last_position(document.as_item()) + 1;
            let mut parent = document.as_item_mut();
            for (depth, part) in parents.iter().enumerate() {
                parent = enter(parent, part, depth, end)?;
            }
            set(parent, last, value, path.len(), end)?;
            head(document, path);
            if let Some(depth) = known {
                stay_with_table_before(document, path.get(..depth).unwrap_or_default());
            }
            Ok(())
        }
        Edit::Remove { .. } => {
            let mut left = String::new();
            let position = remove(document.as_item_mut(), path, &mut left)?;
            leave(document, position, &left);
            // What was only there for what it had.
            for depth in (1..path.len()).rev() {
                let parent = path.get(..depth).unwrap_or_default();
                if !find(document.as_item_mut(), parent).is_ok_and(|parent| is_nothing(parent)) {
                    break;
                }
                remove(document.as_item_mut(), parent, &mut left)?;
            }
            Ok(())
        }
        Edit::Rename { to, .. } => {
            if to.len() > MAX_PART {
                return Err(format!("the new name is longer than {MAX_PART} bytes"));
            }
            let old = last.key();
            rename(find(document.as_item_mut(), parents)?, &old, to)?;
            if let Some(section) = group_of(document, parents, to, &old) {
                for home in ["rule", "cluster", "defaults"] {
                    if let Some(item) = document.get_mut(home) {
                        refer(item, section, to, MAX_DEPTH);
                    }
                }
            }
            Ok(())
        }
    }
}

/// Bounds what a value is made of.
fn check(value: &Json, depth: usize) -> Result<(), String> {
    let Some(below) = depth.checked_sub(1) else {
        return Err(format!("the value has more than {MAX_DEPTH} levels"));
    };
    match value {
        Json::Null => Err("null is no value of TOML: remove the key instead".into()),
        Json::Number(number) if number.is_u64() && !number.is_i64() => {
            Err(format!("{number} is too large: at most {}", i64::MAX))
        }
        Json::Array(list) => list.iter().try_for_each(|value| check(value, below)),
        Json::Object(map) => map.values().try_for_each(|value| check(value, below)),
        _ => Ok(()),
    }
}

/// The place of the table that stands last in the file.
fn last_position(item: &Item) -> isize {
    let below = |table: &Table| {
        let below = table.iter().map(|(_, item)| last_position(item));
        below.fold(table.position().unwrap_or(0), isize::max)
    };
    match item {
        Item::Table(table) => below(table),
        Item::ArrayOfTables(list) => list.iter().map(below).fold(0, isize::max),
        _ => 0,
    }
}

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

fn no_table(item: &Item, part: &Part) -> String {
    format!(
        "{} has no key {:?}: only a table has keys",
        kind(item),
        part.key()
    )
}

fn is_list(item: &Item) -> bool {
    item.is_array() || item.is_array_of_tables()
}

fn len(item: &Item) -> usize {
    match item {
        Item::ArrayOfTables(list) => list.len(),
        item => item.as_array().map_or(0, Array::len),
    }
}

fn place(list: &Item, part: &Part) -> Result<usize, String> {
    let count = len(list);
    let index = part.index().ok_or_else(|| {
        let key = part.key();
        format!("{key:?} is no position in a list: write a number from 0")
    })?;
    match index <= count {
        true => Ok(index),
        false => Err(format!("there is no element {index}: the list has {count}")),
    }
}

/// Returns the contents of `part` of `item`; makes a table if there is nothing.
fn enter<'i>(
    item: &'i mut Item,
    part: &Part,
    depth: usize,
    end: isize,
) -> Result<&'i mut Item, String> {
    if is_list(item) {
        let index = place(item, part)?;
        if index == len(item) {
            set(item, part, &Json::Object(Default::default()), depth, end)?;
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

fn set(
    parent: &mut Item,
    part: &Part,
    value: &Json,
    depth: usize,
    end: isize,
) -> Result<(), String> {
    if is_list(parent) {
        let index = place(parent, part)?;
        let mut elements = elements(parent);
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
        Some(known) if !known.is_none() => merge(known, value, depth)?,
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

fn elements(list: &Item) -> Vec<Json> {
    match json_of(list) {
        Json::Array(elements) => elements,
        _ => Vec::new(),
    }
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

fn text_of(raw: Option<&toml_edit::RawString>) -> &str {
    raw.and_then(|raw| raw.as_str()).unwrap_or_default()
}

/// Makes `known` say `value`; what says so already stays as it is written.
fn merge(known: &mut Item, value: &Json, depth: usize) -> Result<(), String> {
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
                    remove(known, &[Part::Key(key)], &mut left)?;
                }
            }
            for (key, value) in map {
                set(known, &Part::Key(key.clone()), value, depth + 1, 0)?;
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
    let old = self::elements(known);
    let same = |(old, new): &(&Json, &Json)| is_equal(old, new);
    let begin = old.iter().zip(elements).take_while(same).count();
    let rest = old.len().min(elements.len()) - begin;
    let ends = old.iter().rev().zip(elements.iter().rev());
    let end = ends.take(rest).take_while(same).count();
    let (old_end, new_end) = (old.len() - end, elements.len() - end);
    let both = old_end.min(new_end);
    let moved = (old_end - both).max(new_end - both);
    if moved > MANY && end > MANY {
        return replace(known, &Json::Array(elements.to_vec()));
    }
    let changed = elements.get(begin..both).unwrap_or_default();
    for (index, value) in changed.iter().enumerate() {
        let element = known.get_mut(begin + index);
        merge(element.ok_or("there is nothing")?, value, depth + 1)?;
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
                take(array, index);
            }
            for (index, value) in more.iter().enumerate() {
                put(array, both + index, write::write_value(value));
            }
        }
        _ => return Err("the value is no list".into()),
    }
    Ok(())
}

/// Removes an element; comments of the lines around it stay.
fn take(array: &mut Array, index: usize) {
    if index >= array.len() {
        return;
    }
    let gone = array.remove(index);
    let prefix = text_of(gone.decor().prefix()).to_owned();
    let suffix = text_of(gone.decor().suffix()).to_owned();
    // The end of the line before it, with its comment, and the beginning of the line behind it.
    let before = prefix.split_once('\n').map(|(line, _)| line.to_owned());
    let joined = |behind: &str| match (&before, behind.split_once('\n')) {
        (Some(before), Some((_, lines))) => format!("{before}\n{lines}"),
        (Some(before), None) => format!("{before}\n{behind}"),
        (None, _) => prefix.clone(),
    };
    if let Some(next) = array.get_mut(index) {
        let behind = text_of(next.decor().prefix()).to_owned();
        next.decor_mut().set_prefix(joined(&behind));
    } else if array.is_empty() {
        array.set_trailing("");
        array.set_trailing_comma(false);
    } else if array.trailing_comma() {
        let behind = text_of(Some(array.trailing())).to_owned();
        if before.is_some() {
            array.set_trailing(joined(&behind));
        }
    } else if let Some(last) = array.iter_mut().last() {
        let end = match (&before, suffix.split_once('\n')) {
            (Some(before), Some((_, lines))) => format!("{before}\n{lines}"),
            _ => suffix,
        };
        last.decor_mut().set_suffix(end);
    }
}

/// Puts an element before that at `index`, or behind all.
fn put(array: &mut Array, index: usize, mut value: toml_edit::Value) {
    if index < array.len() {
        let next = array.get_mut(index);
        let prefix = next.map(|next| {
            let prefix = text_of(next.decor().prefix()).to_owned();
            // A comment at the end of the line before stays there.
            let own = match prefix.rsplit_once('\n') {
                Some((_, indent)) => format!("\n{indent}"),
                None if index == 0 => " ".into(),
                None => prefix.clone(),
            };
            next.decor_mut().set_prefix(own);
            prefix
        });
        let prefix = prefix.unwrap_or_default();
        *value.decor_mut() = Decor::new(prefix, "");
        array.insert_formatted(index, value);
        return;
    }
    let multiline = |text: &str| text.rsplit_once('\n').map(|(_, indent)| indent.to_owned());
    let comma = array.trailing_comma();
    let trailing = text_of(Some(array.trailing())).to_owned();
    let last = array.len().checked_sub(1).and_then(|at| array.get_mut(at));
    let Some(last) = last else {
        let (prefix, end) = match trailing.contains('#') {
            true => (trailing, "\n"),
            false => (String::new(), ""),
        };
        *value.decor_mut() = Decor::new(prefix, "");
        array.push_formatted(value);
        array.set_trailing(end);
        return;
    };
    let suffix = text_of(last.decor().suffix()).to_owned();
    let indent = multiline(text_of(last.decor().prefix()));
    // What stands between the last element and the end of the list.
    let between = if comma { &trailing } else { &suffix };
    let prefix = match &indent {
        Some(indent) => {
            let comment = between.rsplit_once('\n').map_or("", |(lines, _)| lines);
            format!("{}\n{indent}", comment.trim_end())
        }
        None if between.contains('#') => between.clone(),
        None => " ".into(),
    };
    let end = match (&indent, between.rsplit_once('\n')) {
        (Some(_), Some((_, indent))) => format!("\n{indent}"),
        (None, _) if between.contains('#') => "\n".into(),
        _ => between.clone(),
    };
    if comma {
        array.set_trailing(end);
        *value.decor_mut() = Decor::new(prefix, "");
    } else {
        last.decor_mut().set_suffix("");
        *value.decor_mut() = Decor::new(prefix, end);
    }
    array.push_formatted(value);
}

fn find<'i>(item: &'i mut Item, path: &[Part]) -> Result<&'i mut Item, String> {
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

/// Removes what is at `path`. What was written above it and is not about it is appended to `left`;
/// answers behind which table it stood, if it was one.
fn remove(item: &mut Item, path: &[Part], left: &mut String) -> Result<Option<isize>, String> {
    let Some((last, parents)) = path.split_last() else {
        return Err("the path is empty: name a key".into());
    };
    let parent = find(item, parents)?;
    let missing = || format!("there is no {}", shown(path));
    if is_list(parent) {
        let index = last.index().filter(|index| *index < len(parent));
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
                take(array, index);
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

/// The table of `item` that stands first in the file.
fn first_table(item: &Item) -> Option<&Table> {
    match item {
        Item::Table(table) => {
            let own = (!table.is_implicit() && !table.is_dotted()).then_some(table);
            let below = table.iter().filter_map(|(_, item)| first_table(item));
            let all = own.into_iter().chain(below);
            all.min_by_key(|table| table.position().unwrap_or(isize::MAX))
        }
        Item::ArrayOfTables(list) => list.iter().next(),
        _ => None,
    }
}

/// Part of the comments above something that belongs to something else: all before the last empty line.
fn not_about_it(above: &str) -> &str {
    let mut end = 0;
    let mut at = 0;
    for line in above.split_inclusive('\n') {
        at += line.len();
        if line.trim().is_empty() && line.ends_with('\n') {
            end = at;
        }
    }
    let kept = above.get(..end).unwrap_or_default();
    match kept.contains('#') {
        true => kept,
        false => "",
    }
}

/// Puts what is left of the comments above a removed table before the next one.
fn leave(document: &mut DocumentMut, position: Option<isize>, left: &str) {
    let (Some(position), false) = (position, left.is_empty()) else {
        return;
    };
    let mut next: Option<&mut Table> = None;
    behind(document.as_item_mut(), position, &mut next);
    match next {
        Some(next) => {
            let prefix = text_of(next.decor().prefix());
            // One empty line is enough.
            let prefix = prefix.strip_prefix('\n').unwrap_or(prefix);
            let prefix = format!("{left}{prefix}");
            next.decor_mut().set_prefix(prefix);
        }
        None => {
            let trailing = text_of(Some(document.trailing())).to_owned();
            document.set_trailing(format!("{left}{trailing}"));
        }
    }
}

/// True if an item is not seen in the text.
fn is_nothing(item: &Item) -> bool {
    match item {
        Item::Table(table) => table.is_empty() && (table.is_implicit() || table.is_dotted()),
        Item::ArrayOfTables(list) => list.is_empty(),
        Item::Value(toml_edit::Value::InlineTable(table)) => table.is_empty() && table.is_dotted(),
        _ => false,
    }
}

/// Comments right below the table before a new one stay there: keys that are commented out.
fn stay_with_table_before(document: &mut DocumentMut, path: &[Part]) {
    let is_table = |item: &mut Item| item.is_table() || item.is_array_of_tables();
    let is_new = find(document.as_item_mut(), path).is_ok_and(is_table);
    // An element of a list of tables is none of these two.
    let parent = path.split_last().map_or(path, |(_, parents)| parents);
    let is_element =
        find(document.as_item_mut(), parent).is_ok_and(|parent| parent.is_array_of_tables());
    if !is_new && !is_element {
        return;
    }
    number(document);
    let Ok(new) = find(document.as_item_mut(), path) else {
        return;
    };
    let Some(position) = first_table(new).and_then(Table::position) else {
        return;
    };
    let last = last_position(new);
    let mut next = None;
    behind(document.as_item_mut(), last, &mut next);
    let kept = match next {
        Some(next) => {
            let prefix = text_of(next.decor().prefix()).to_owned();
            // Without an empty line it is about the next table.
            let Some((kept, rest)) = prefix.split_once("\n\n") else {
                return;
            };
            if !kept.starts_with('#') {
                return;
            }
            next.decor_mut().set_prefix(format!("\n{rest}"));
            format!("{kept}\n\n")
        }
        None => {
            let trailing = text_of(Some(document.trailing())).to_owned();
            if !trailing.starts_with('#') {
                return;
            }
            let (kept, rest) = match trailing.split_once("\n\n") {
                Some((kept, rest)) => (kept, format!("\n{rest}")),
                None => (trailing.trim_end(), String::new()),
            };
            document.set_trailing(rest);
            format!("{kept}\n\n")
        }
    };
    let mut new = None;
    behind(document.as_item_mut(), position - 1, &mut new);
    if let Some(new) = new {
        new.decor_mut().set_prefix(kept);
    }
}

/// Gives each table its place in the file as a number, from 0: new ones have none of their own.
fn number(document: &mut DocumentMut) {
    let mut places = Vec::new();
    let mut last = 0;
    each_table(document.as_item_mut(), &mut |table| {
        last = table.position().unwrap_or(last);
        places.push((last, places.len()));
    });
    places.sort_unstable();
    let mut ranks = vec![0; places.len()];
    for (rank, (_, index)) in places.into_iter().enumerate() {
        if let (Some(place), Ok(rank)) = (ranks.get_mut(index), isize::try_from(rank)) {
            *place = rank;
        }
    }
    let mut ranks = ranks.into_iter();
    each_table(document.as_item_mut(), &mut |table| {
        table.set_position(ranks.next());
    });
}

/// Visits tables in the order in which those without a place are written.
fn each_table(item: &mut Item, visit: &mut dyn FnMut(&mut Table)) {
    let tables: Vec<&mut Table> = match item {
        Item::Table(table) => vec![table],
        Item::ArrayOfTables(list) => list.iter_mut().collect(),
        _ => return,
    };
    for table in tables {
        if !table.is_dotted() {
            visit(table);
        }
        for (_, item) in table.iter_mut() {
            each_table(item, visit);
        }
    }
}

/// The first table with a header behind `position`.
fn behind<'t>(item: &'t mut Item, position: isize, next: &mut Option<&'t mut Table>) {
    let tables: Vec<&'t mut Table> = match item {
        Item::Table(table) => vec![table],
        Item::ArrayOfTables(list) => list.iter_mut().collect(),
        _ => return,
    };
    for table in tables {
        let own = table.position().filter(|own| *own > position);
        let visible = !table.is_implicit() && !table.is_dotted();
        let nearer = |next: &Table| own < next.position();
        if own.is_some() && visible && next.as_deref().is_none_or(nearer) {
            // Those below stand behind it.
            *next = Some(table);
            continue;
        }
        for (_, item) in table.iter_mut() {
            behind(item, position, next);
        }
    }
}

/// Gives `old` the name `to`, in its place.
fn rename(parent: &mut Item, old: &str, to: &str) -> Result<(), String> {
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
fn group_of<'n>(
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

/// Replaces the name of a group wherever one stands.
fn refer(item: &mut Item, old: &str, to: &str, depth: usize) {
    let Some(below) = depth.checked_sub(1) else {
        return;
    };
    if is_list(item) {
        for index in 0..len(item) {
            if let Some(element) = item.get_mut(index) {
                refer(element, old, to, below);
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
                let _ = merge(item, &to.into(), 0);
            }
            "groups" => {
                let _ = rename(item, old, to);
            }
            "sni" => {
                let names = item.as_table_like_mut();
                let names = names.into_iter().flat_map(|table| table.iter_mut());
                for (_, item) in names.filter(|(_, item)| is_it(item)) {
                    let _ = merge(item, &to.into(), 0);
                }
            }
            // Keys of the user's choice.
            "headers" | "query" | "cookies" | "request_fields" | "response_fields" => {}
            _ => refer(item, old, to, below),
        }
    }
}

/// A first key at the top of the file goes below the file's own comment, not above it.
fn head(document: &mut DocumentMut, path: &[Part]) {
    let [key] = path else { return };
    let key = key.key();
    let only = document.as_table().get_values().len() == 1;
    if !only || !document.get(&key).is_some_and(Item::is_value) {
        return;
    }
    let mut first: Option<&mut Table> = None;
    for (_, item) in document.as_table_mut().iter_mut() {
        behind(item, -1, &mut first);
    }
    let Some(first) = first else { return };
    let prefix = text_of(first.decor().prefix()).to_owned();
    if prefix.starts_with('\n') {
        return;
    }
    let kept = not_about_it(&prefix).to_owned();
    let rest = prefix.get(kept.len()..).unwrap_or_default();
    first.decor_mut().set_prefix(format!("\n{rest}"));
    if let Some(mut key) = document.as_table_mut().key_mut(&key) {
        let decor = mem::take(key.leaf_decor_mut());
        let suffix = text_of(decor.suffix()).to_owned();
        let suffix = if decor.suffix().is_some() {
            suffix
        } else {
            " ".into()
        };
        *key.leaf_decor_mut() = Decor::new(kept, suffix);
    }
}
