//! Lines of an image, by the paths of its keys.

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;

use toml_edit::{Document, Item, TableLike, Value};

use crate::schema::document::join_key;

/// Line and column in characters, from 1.
pub(super) type LineColumn = (usize, usize);

/// Places of the keys of a text.
#[derive(Clone, Debug, Default)]
pub(super) struct KeyPositions(HashMap<String, KeyPosition>);

#[derive(Clone, Copy, Debug)]
struct KeyPosition {
    at: LineColumn,
    /// Length of the path of the named table that holds the key.
    table: usize,
}

impl KeyPositions {
    pub(super) fn parse(text: &str) -> Self {
        let mut keys = Keys(Vec::new());
        if let Ok(document) = Document::parse(text) {
            keys.add_table("", 0, 0, document.as_table());
        }
        let mut keys = keys.0;
        keys.sort_by_key(|key| key.start);
        let starts = keys.iter().map(|key| key.start);
        let places = line_columns(text, starts);
        let mut found = HashMap::with_capacity(keys.len());
        for (Key { path, table, .. }, at) in keys.into_iter().zip(places) {
            found.entry(path).or_insert(KeyPosition { at, table });
        }
        KeyPositions(found)
    }

    /// Place of a key, or of the table or list around it; `None` if not even its section is there.
    pub(super) fn find(&self, key: &str) -> Option<LineColumn> {
        let mut key = key;
        loop {
            if let Some(place) = self.0.get(key) {
                return Some(place.at);
            }
            let end = key.rfind(['.', '['])?;
            key = key.get(..end)?;
        }
    }

    /// Keeps the places of these named tables, and of what is in them.
    pub(super) fn keep_tables(&mut self, tables: &BTreeSet<String>) {
        self.0.retain(|key, place| {
            let table = key.get(..place.table).unwrap_or_default();
            tables.contains(table)
        });
    }
}

/// Lines and columns of these offsets of a text, which are in order.
pub(super) fn line_columns(
    text: &str,
    offsets: impl IntoIterator<Item = usize>,
) -> Vec<LineColumn> {
    let (mut line, mut column, mut at) = (1, 1, 0);
    let places = offsets.into_iter().map(|offset| {
        let between = text.get(at..offset).unwrap_or_default();
        line += between.matches('\n').count();
        column = match between.rsplit_once('\n') {
            Some((_, last)) => last.chars().count() + 1,
            None => column + between.chars().count(),
        };
        at = at.max(offset);
        (line, column)
    });
    places.collect()
}

struct Key {
    path: String,
    start: usize,
    table: usize,
}

struct Keys(Vec<Key>);

impl Keys {
    fn add(&mut self, path: &str, table: usize, span: Option<Range<usize>>) {
        self.0.extend(span.map(|span| Key {
            path: path.to_owned(),
            start: span.start,
            table,
        }));
    }

    /// Adds the keys of a table at `path`, which is so many keys long.
    fn add_table(&mut self, path: &str, depth: usize, named: usize, within: &dyn TableLike) {
        for (key, item) in within.iter() {
            let path = join_key(path, key);
            let named = if depth < 2 { path.len() } else { named };
            let written = within.key(key).and_then(|key| key.span());
            self.add(&path, named, written.or_else(|| item.span()));
            if let Some(inner) = item.as_table_like() {
                self.add_table(&path, depth + 1, named, inner);
            }
            self.add_elements(&path, named, item);
        }
    }

    fn add_elements(&mut self, path: &str, named: usize, item: &Item) {
        for (index, element) in item.as_array_of_tables().into_iter().flatten().enumerate() {
            let path = format!("{path}[{index}]");
            self.add(&path, named, element.span());
            self.add_table(&path, 2, named, element);
        }
        if let Some(value) = item.as_value() {
            self.add_list(path, named, value);
        }
    }

    fn add_list(&mut self, path: &str, named: usize, value: &Value) {
        for (index, element) in value.as_array().into_iter().flatten().enumerate() {
            let path = format!("{path}[{index}]");
            self.add(&path, named, element.span());
            match element.as_inline_table() {
                Some(inner) => self.add_table(&path, 2, named, inner),
                None => self.add_list(&path, named, element),
            }
        }
    }
}
