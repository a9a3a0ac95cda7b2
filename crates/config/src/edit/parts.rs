//! Parts of edits: paths, values, and errors.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;
use sha2::{Digest, Sha256};

use crate::schema::document::join_key;

/// At most so many edits come at once.
pub const MAX_EDITS: usize = 1000;

/// At most so many parts a path has, and a value so many levels.
pub const MAX_DEPTH: usize = 32;

/// The longest part of a path, in bytes.
pub const MAX_PART: usize = 1024;

/// Change of a configuration's text.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "lowercase", deny_unknown_fields)]
pub enum Edit {
    /// Gives a key a value; tables on the way that are not there are made. A table or list that
    /// is there becomes the new one, and what is equal in both stays as it is written.
    Set {
        /// Path of the key.
        path: Vec<Part>,
        /// New value. There is no null in TOML.
        value: Json,
    },
    /// Removes a key, a table, or an element of a list.
    Remove {
        /// Path of the key, table or element.
        path: Vec<Part>,
    },
    /// Gives a key or a table another name, in the same place. With a group, what rules and
    /// clusters call it changes, too.
    Rename {
        /// Path of the key or table.
        path: Vec<Part>,
        /// The new name: the last part of the path.
        to: String,
    },
}

impl Edit {
    /// The path of what it changes.
    pub fn path(&self) -> &[Part] {
        match self {
            Edit::Set { path, .. } | Edit::Remove { path } | Edit::Rename { path, .. } => path,
        }
    }
}

/// A part of a path: a key, or the place in a list, from 0.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Part {
    /// A place in a list. In a table it is a key that looks like a number.
    Index(usize),
    /// A key. In a list it is a number.
    Key(String),
}

impl Part {
    /// Returns the part as a key.
    pub(super) fn key(&self) -> String {
        match self {
            Part::Index(index) => index.to_string(),
            Part::Key(key) => key.clone(),
        }
    }

    /// Returns the part as a place in a list.
    pub(super) fn index(&self) -> Option<usize> {
        match self {
            Part::Index(index) => Some(*index),
            Part::Key(key) => key.parse().ok(),
        }
    }
}

impl From<&str> for Part {
    fn from(key: &str) -> Self {
        Part::Key(key.into())
    }
}

impl From<usize> for Part {
    fn from(index: usize) -> Self {
        Part::Index(index)
    }
}

/// A path as it stands in messages: `rule.web.routes.0.host`.
pub fn shown(path: &[Part]) -> String {
    let parts = path.iter().map(Part::key);
    parts.fold(String::new(), |path, part| join_key(&path, &part))
}

/// The path in `text`, as it is written in TOML: parts with dots in them stand in quotes.
///
/// # Errors
///
/// It is none.
pub fn path_of(text: &str) -> Result<Vec<Part>, String> {
    let keys = toml_edit::Key::parse(text).map_err(|_| {
        format!(
            "{text:?} is no path: expected parts with dots between them, as in group.web.strategy, \
             those with other characters than letters, digits, - and _ in quotes"
        )
    })?;
    Ok(keys.iter().map(|key| Part::from(key.get())).collect())
}

/// Error of an edit that is not possible.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct EditError {
    /// Number of the edit, from 0; `None` if the error is about all edits, or about the text.
    pub edit: Option<usize>,
    /// The path of that edit.
    pub path: String,
    /// Description of what is wrong, and what would be possible.
    pub why: String,
}

impl fmt::Display for EditError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(edit) = self.edit {
            write!(f, "edit {edit}: ")?;
        }
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        f.write_str(&self.why)
    }
}

/// Revision of a text: the first 16 hexadecimal digits of its SHA-256.
pub fn text_revision(text: &str) -> String {
    let digest = Sha256::digest(text.as_bytes());
    let digits = digest.iter().take(8).map(|byte| format!("{byte:02x}"));
    digits.collect()
}
