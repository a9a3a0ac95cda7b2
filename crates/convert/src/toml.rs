//! Tables that become a text in TOML.

use evenkeel_config::edit::{Part, shown};

/// A value.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    Text(String),
    Number(u64),
    /// A number with a fraction.
    Decimal(f64),
    Flag(bool),
    List(Vec<Value>),
    Table(Table),
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Value::Text(text.to_owned())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Value::Text(text)
    }
}

impl From<u64> for Value {
    fn from(number: u64) -> Self {
        Value::Number(number)
    }
}

impl From<bool> for Value {
    fn from(flag: bool) -> Self {
        Value::Flag(flag)
    }
}

impl From<Table> for Value {
    fn from(table: Table) -> Self {
        Value::Table(table)
    }
}

impl<V: Into<Value>> From<Vec<V>> for Value {
    fn from(list: Vec<V>) -> Self {
        Value::List(list.into_iter().map(Into::into).collect())
    }
}

impl Value {
    /// A list, or the only one in it.
    pub(crate) fn one_or_list(texts: &[String]) -> Self {
        match texts {
            [only] => only.as_str().into(),
            several => several.to_vec().into(),
        }
    }

    /// Removes what is at the rest of a path. Returns false if that is all of the value.
    fn remove_at(&mut self, rest: &str) -> bool {
        match self {
            Value::Table(table) => match rest.strip_prefix('.') {
                Some(path) => table.remove_at(path) && !table.is_empty(),
                None => false,
            },
            Value::List(list) => {
                let place = rest.strip_prefix('[').and_then(|rest| rest.split_once(']'));
                let place =
                    place.and_then(|(place, rest)| Some((place.parse::<usize>().ok()?, rest)));
                let Some((place, rest)) = place else {
                    return false;
                };
                let Some(value) = list.get_mut(place) else {
                    return false;
                };
                if !value.remove_at(rest) {
                    list.remove(place);
                }
                !list.is_empty()
            }
            _ => false,
        }
    }

    fn write(&self, out: &mut String) {
        match self {
            Value::Text(text) => write_text(&without_variables(text), out),
            Value::Number(number) => out.push_str(&number.to_string()),
            Value::Decimal(number) => out.push_str(&format!("{number:?}")),
            Value::Flag(flag) => out.push_str(&flag.to_string()),
            Value::List(list) => {
                // Tables stand in a line each.
                let long = list.iter().any(|one| matches!(one, Value::Table(_)));
                let (begin, end) = if long { ("\n  ", ",\n") } else { ("", "") };
                out.push('[');
                for (place, value) in list.iter().enumerate() {
                    out.push_str(match place {
                        0 => begin,
                        _ if long => ",\n  ",
                        _ => ", ",
                    });
                    value.write(out);
                }
                out.push_str(end);
                out.push(']');
            }
            Value::Table(table) => {
                out.push_str("{ ");
                for (place, (key, value)) in table.0.iter().enumerate() {
                    if place > 0 {
                        out.push_str(", ");
                    }
                    write_key(key, out);
                    out.push_str(" = ");
                    value.write(out);
                }
                out.push_str(" }");
            }
        }
    }
}

/// Keys with their values, in order, each once.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Table(Vec<(String, Value)>);

impl Table {
    /// Sets a key, in place of what it had.
    pub(crate) fn set(&mut self, key: &str, value: impl Into<Value>) {
        let value = value.into();
        match self.0.iter_mut().find(|(known, _)| known == key) {
            Some((_, old)) => *old = value,
            None => self.0.push((key.to_owned(), value)),
        }
    }

    /// Sets a key unless it is there.
    pub(crate) fn set_new(&mut self, key: &str, value: impl Into<Value>) {
        if self.get(key).is_none() {
            self.set(key, value);
        }
    }

    pub(crate) fn get(&self, key: &str) -> Option<&Value> {
        self.0
            .iter()
            .find(|(known, _)| known == key)
            .map(|(_, value)| value)
    }

    pub(crate) fn remove(&mut self, key: &str) -> Option<Value> {
        let place = self.0.iter().position(|(known, _)| known == key)?;
        Some(self.0.remove(place).1)
    }

    /// Removes the innermost value at a path such as `limits.requests` or `members[1].weight` that is there, and what is
    /// empty then. Returns false if nothing is there.
    pub(crate) fn remove_at(&mut self, path: &str) -> bool {
        let mut found = self.0.iter_mut().enumerate();
        let found = found.find_map(|(place, (key, value))| {
            let rest = path_behind(path, key)?;
            Some((place, value.remove_at(rest)))
        });
        let Some((place, is_left)) = found else {
            return false;
        };
        if !is_left {
            self.0.remove(place);
        }
        true
    }

    /// The table at a key, which is made if it is not there.
    pub(crate) fn ensure_table(&mut self, key: &str) -> &mut Table {
        if !matches!(self.get(key), Some(Value::Table(_))) {
            self.set(key, Table::default());
        }
        let found = self.0.iter_mut().find(|(known, _)| known == key);
        match found {
            Some((_, Value::Table(table))) => table,
            _ => unreachable!("it was set"),
        }
    }

    /// Appends to the list at a key, unless it is in it.
    pub(crate) fn push(&mut self, key: &str, value: impl Into<Value>) {
        let value = value.into();
        match self.0.iter_mut().find(|(known, _)| known == key) {
            Some((_, Value::List(list))) => {
                if !list.contains(&value) {
                    list.push(value);
                }
            }
            _ => self.set(key, Value::List(vec![value])),
        }
    }

    /// Adds the keys of `other` that are not there.
    pub(crate) fn add_missing(&mut self, other: &Table) {
        for (key, value) in &other.0 {
            self.set_new(key, value.clone());
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(key, _)| key.as_str())
    }

    /// Appends its keys, a line each.
    pub(crate) fn write_lines(&self, out: &mut String) {
        for (key, value) in &self.0 {
            write_key(key, out);
            out.push_str(" = ");
            value.write(out);
            out.push('\n');
        }
    }
}

/// Appends a key, in quotes where TOML asks for them.
pub(crate) fn write_key(key: &str, out: &mut String) {
    let is_bare = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    match !key.is_empty() && key.chars().all(is_bare) {
        true => out.push_str(key),
        false => write_text(key, out),
    }
}

/// Rest of the path of a problem behind the key that it begins with; `None` if it begins with another one.
pub(crate) fn path_behind<'p>(path: &'p str, key: &str) -> Option<&'p str> {
    let rest = path.strip_prefix(&shown(&[Part::from(key)]))?;
    (rest.is_empty() || rest.starts_with(['.', '['])).then_some(rest)
}

/// A text in which nothing is taken for a variable of the environment: in front of a brace, `$$` stands for one `$`.
fn without_variables(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut dollars = 0;
    for c in text.chars() {
        if c == '{' {
            out.extend(std::iter::repeat_n('$', dollars));
        }
        dollars = if c == '$' { dollars + 1 } else { 0 };
        out.push(c);
    }
    out
}

fn write_text(text: &str, out: &mut String) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            '\r' => out.push_str("\\r"),
            c if c.is_control() => out.push_str(&format!("\\u{:04X}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push('"');
}
