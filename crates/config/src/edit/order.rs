//! Order of the tables in a text, and the comments between them.

use std::mem;

use toml_edit::{Decor, DocumentMut, Item, Table};

use super::items::{find_item, text_of};
use super::parts::Part;

/// The place of the table that stands last in the file.
pub(super) fn last_position(item: &Item) -> isize {
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

/// The table of `item` that stands first in the file.
pub(super) fn first_table(item: &Item) -> Option<&Table> {
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
pub(super) fn not_about_it(above: &str) -> &str {
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
pub(super) fn leave_comments(document: &mut DocumentMut, position: Option<isize>, left: &str) {
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

/// Comments right below the table before a new one stay there: keys that are commented out.
pub(super) fn stay_with_table_before(document: &mut DocumentMut, path: &[Part]) {
    let is_table = |item: &mut Item| item.is_table() || item.is_array_of_tables();
    let is_new = find_item(document.as_item_mut(), path).is_ok_and(is_table);
    // An element of a list of tables is none of these two.
    let parent = path.split_last().map_or(path, |(_, parents)| parents);
    let is_element =
        find_item(document.as_item_mut(), parent).is_ok_and(|parent| parent.is_array_of_tables());
    if !is_new && !is_element {
        return;
    }
    number(document);
    let Ok(new) = find_item(document.as_item_mut(), path) else {
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

/// A first key at the top of the file goes below the file's own comment, not above it.
pub(super) fn keep_head_comment(document: &mut DocumentMut, path: &[Part]) {
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
