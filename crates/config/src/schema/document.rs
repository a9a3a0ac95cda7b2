//! A TOML document: its values with their places and their paths.

use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// A place in the file: byte offsets into its text.
pub(crate) type Span = Range<usize>;

/// A value, where it is and how it is called.
pub(crate) struct Item<'d> {
    /// Path of its key, for messages.
    pub path: String,
    /// Place of the item in the file.
    pub span: Span,
    /// The value.
    pub value: &'d DeValue<'d>,
}

impl<'d> Item<'d> {
    /// The elements of a list.
    pub(crate) fn elements(
        &self,
        list: &'d [Spanned<DeValue<'d>>],
    ) -> impl Iterator<Item = Item<'d>> {
        list.iter().enumerate().map(|(index, element)| Item {
            path: format!("{}[{index}]", self.path),
            span: element.span(),
            value: element.get_ref(),
        })
    }

    /// The elements of a list, or else what stands there; `None` if a list is empty.
    pub(crate) fn one_or_each(&self) -> Option<Vec<Item<'d>>> {
        let (path, span) = (self.path.clone(), self.span.clone());
        match self.value {
            DeValue::Array(list) if list.is_empty() => None,
            DeValue::Array(list) => Some(self.elements(list).collect()),
            value => Some(vec![Item { path, span, value }]),
        }
    }

    /// The value as it is shown in a message: short, and on one line.
    pub(crate) fn show(&self) -> String {
        match self.value {
            DeValue::String(text) => quote(text),
            DeValue::Integer(number) => shorten(&number.to_string()),
            DeValue::Float(number) => shorten(number.as_str()),
            DeValue::Boolean(flag) => flag.to_string(),
            DeValue::Datetime(date) => date.to_string(),
            DeValue::Array(list) if list.is_empty() => "an empty list".into(),
            DeValue::Array(_) => "a list".into(),
            DeValue::Table(_) => "a table".into(),
        }
    }

    /// A whole number, from any notation of TOML.
    pub(crate) fn integer(&self) -> Option<i64> {
        match self.value {
            DeValue::Integer(number) => i64::from_str_radix(number.as_str(), number.radix()).ok(),
            _ => None,
        }
    }

    /// A finite number, whole or not.
    pub(crate) fn number(&self) -> Option<f64> {
        let number = match self.value {
            DeValue::Float(number) => number.as_str().parse().ok()?,
            _ => self.integer()? as f64,
        };
        f64::is_finite(number).then_some(number)
    }
}

/// `text` as a TOML string on one line, cut after 60 characters.
pub(crate) fn quote(text: &str) -> String {
    format!("{:?}", shorten(text))
}

pub(crate) fn shorten(text: &str) -> String {
    match text.char_indices().nth(60) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
        None => text.to_owned(),
    }
}

/// A path with one more key, quoted where TOML asks for it.
pub(crate) fn join_key(path: &str, key: &str) -> String {
    let bare = !key.is_empty()
        && key
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-');
    let key = if bare { shorten(key) } else { quote(key) };
    if path.is_empty() {
        key
    } else {
        format!("{path}.{key}")
    }
}

/// An entry of a table, in the order of the file.
pub(crate) struct Entry<'d> {
    /// The key.
    pub name: &'d str,
    /// Place of the key in the file.
    pub key_span: Span,
    /// The value.
    pub item: Item<'d>,
}

/// The entries of a table in the order of the file.
pub(crate) fn entries<'d>(path: &str, table: &'d DeTable<'d>) -> Vec<Entry<'d>> {
    let mut entries: Vec<_> = table
        .iter()
        .map(|(key, value)| Entry {
            name: key.get_ref(),
            key_span: key.span(),
            item: Item {
                path: join_key(path, key.get_ref()),
                span: value.span(),
                value: value.get_ref(),
            },
        })
        .collect();
    entries.sort_by_key(|entry| entry.key_span.start);
    entries
}
