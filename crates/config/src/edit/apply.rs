//! Edits applied to a text.

use std::path::{Path, PathBuf};

use serde_json::Value as Json;
use toml_edit::{DocumentMut, Item, TableLike};

use super::compare::json_of;
use super::items::{find_item, is_nothing};
use super::names::{each_item, group_of, rename_key, rename_references};
use super::order::{keep_head_comment, last_position, leave_comments, stay_with_table_before};
use super::parts::{Edit, EditError, MAX_DEPTH, MAX_EDITS, MAX_PART, Part, shown};
use super::values::{enter_part, remove_item, set_value};
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
                find_item(document.as_item_mut(), path).is_err()
            });
            let end = last_position(document.as_item()) + 1;
            let mut parent = document.as_item_mut();
            for (depth, part) in parents.iter().enumerate() {
                parent = enter_part(parent, part, depth, end)?;
            }
            set_value(parent, last, value, path.len(), end)?;
            keep_head_comment(document, path);
            if let Some(depth) = known {
                stay_with_table_before(document, path.get(..depth).unwrap_or_default());
            }
            Ok(())
        }
        Edit::Remove { .. } => {
            let mut left = String::new();
            let position = remove_item(document.as_item_mut(), path, &mut left)?;
            leave_comments(document, position, &left);
            // What was only there for what it had.
            for depth in (1..path.len()).rev() {
                let parent = path.get(..depth).unwrap_or_default();
                if !find_item(document.as_item_mut(), parent).is_ok_and(|parent| is_nothing(parent))
                {
                    break;
                }
                remove_item(document.as_item_mut(), parent, &mut left)?;
            }
            Ok(())
        }
        Edit::Rename { to, .. } => {
            if to.len() > MAX_PART {
                return Err(format!("the new name is longer than {MAX_PART} bytes"));
            }
            let old = last.key();
            rename_key(find_item(document.as_item_mut(), parents)?, &old, to)?;
            if let Some(section) = group_of(document, parents, to, &old) {
                for home in ["rule", "cluster"] {
                    let homes = document.get_mut(home).into_iter();
                    for item in homes.flat_map(each_item) {
                        rename_references(item, section, to, MAX_DEPTH);
                    }
                }
                if let Some(item) = document.get_mut("defaults") {
                    rename_references(item, section, to, MAX_DEPTH);
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
