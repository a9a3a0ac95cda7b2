//! Values that stand in for those of a document, as a sweep has them.

use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue};

use super::document::{Span, join_key};
use super::errors::{Problem, SourcePosition};

/// A value in place of what a document says.
#[derive(Clone, Debug, PartialEq)]
pub struct Override {
    /// The names that lead to it, from the top.
    path: Vec<String>,
    /// The value, as it would stand in the file.
    value: String,
    /// Span of the value, if in the same document.
    span: Span,
    /// Place of the value in its file.
    place: SourcePosition,
}

impl Override {
    /// The value of the key at `path`, as it stands at `place`, and at `span` if that is in the
    /// document that it is for.
    pub(crate) fn new(path: Vec<String>, value: &str, span: Span, place: SourcePosition) -> Self {
        let value = value.to_owned();
        Override {
            path,
            value,
            span,
            place,
        }
    }

    /// The value, as it would stand in the file.
    pub fn value(&self) -> &str {
        &self.value
    }

    /// The key, as messages have it.
    pub fn key(&self) -> String {
        let names = self.path.iter();
        names.fold(String::new(), |path, name| join_key(&path, name))
    }

    /// Moves a problem of the value from the document that it was put into to its own place.
    pub(crate) fn moved(&self, problem: Problem) -> Problem {
        let SourcePosition {
            file, line, column, ..
        } = self.place.clone();
        let own = self.key();
        let within = problem.key.strip_prefix(&own);
        if within.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '['])) {
            return Problem {
                file,
                line,
                column,
                ..problem
            };
        }
        problem
    }

    /// Puts the value where it belongs, tables on the way included.
    pub(super) fn apply_to<'d>(&'d self, document: &mut DeTable<'d>) {
        let (Some((last, tables)), Ok(value)) =
            (self.path.split_last(), DeValue::parse(&self.value))
        else {
            return;
        };
        let key = |name: &'d str| Spanned::new(self.span.clone(), DeString::Borrowed(name));
        let mut table = document;
        for name in tables {
            let is_table = |value: &Spanned<DeValue<'_>>| value.get_ref().is_table();
            if !table.get(name.as_str()).is_some_and(is_table) {
                let inner = DeValue::Table(DeTable::new());
                table.insert(key(name), Spanned::new(self.span.clone(), inner));
            }
            let inner = table.get_mut(name.as_str()).map(Spanned::get_mut);
            let Some(DeValue::Table(inner)) = inner else {
                return;
            };
            table = inner;
        }
        let value = Spanned::new(self.span.clone(), value.into_inner());
        match table.get_mut(last.as_str()) {
            Some(old) => *old = value,
            None => {
                table.insert(key(last), value);
            }
        }
    }
}

/// The names of a path as TOML has it: `member."10.0.0.1:80".capacity`.
pub(crate) fn parse_path(text: &str) -> Option<Vec<String>> {
    if text.contains(['\n', '\r', '=']) {
        return None;
    }
    let line = format!("{text} = 0");
    let document = DeTable::parse(&line).ok()?;
    let (mut names, mut table) = (Vec::new(), document.get_ref());
    loop {
        let (name, value) = table.iter().next()?;
        names.push(name.get_ref().to_string());
        match value.get_ref() {
            DeValue::Table(inner) => table = inner,
            _ => return Some(names),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_those_of_toml() {
        let names = |text| parse_path(text).unwrap_or_default();
        assert_eq!(names("load.rate"), ["load", "rate"]);
        assert_eq!(
            names("member.\"10.0.0.1:80\".x"),
            ["member", "10.0.0.1:80", "x"]
        );
        for bad in ["", "a.", "a b", "a = 1\nb", "a = {}", "[a]"] {
            assert_eq!(parse_path(bad), None, "{bad}");
        }
    }

    #[test]
    fn values_take_the_place_of_others_and_make_tables_on_the_way() {
        let text = "a.b = 1\n";
        let mut document = DeTable::parse(text).unwrap().into_inner();
        let change = |path: &[&str], value| {
            let path = path.iter().map(|name| (*name).to_owned()).collect();
            Override::new(path, value, 0..0, SourcePosition::default())
        };
        let changes = [change(&["a", "b"], "2"), change(&["c", "d"], "\"x\"")];
        for change in &changes {
            change.apply_to(&mut document);
        }
        assert_eq!(
            format!(
                "{:?}",
                document["a"].get_ref()["b"]
                    .get_ref()
                    .as_integer()
                    .unwrap()
                    .as_str()
            ),
            "\"2\""
        );
        assert_eq!(document["c"].get_ref()["d"].get_ref().as_str(), Some("x"));
        assert_eq!(changes[1].key(), "c.d");
    }
}
