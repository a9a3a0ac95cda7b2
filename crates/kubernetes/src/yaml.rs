//! YAML as a tree with lines: as much of it as kubeconfig files have.

use saphyr_parser::{Event, Parser};

/// Deepest nesting; recursion over a tree stays within the stack.
const MAX_DEPTH: usize = 32;

/// Most values of a document.
const MAX_VALUES: usize = 100_000;

/// Value of a document, with its line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value {
    /// Line in which the value begins, from 1.
    pub line: usize,
    /// Content of the value.
    pub content: Content,
}

/// Content of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// A text, a number, a truth value or null, as written.
    Text(String),
    /// A list.
    List(Vec<Value>),
    /// A mapping, in the order of the file. No key stands there twice.
    Map(Vec<(String, Value)>),
}

/// Error in a document.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {message}")]
pub struct YamlError {
    /// Line of the error, from 1.
    pub line: usize,
    /// Message for people.
    pub message: String,
}

impl YamlError {
    /// Returns an error at a line.
    pub fn new(line: usize, message: impl Into<String>) -> Self {
        YamlError {
            line,
            message: message.into(),
        }
    }
}

impl Value {
    /// Returns the value of a key of a mapping; a null counts as absent.
    pub fn get(&self, key: &str) -> Option<&Value> {
        let Content::Map(pairs) = &self.content else {
            return None;
        };
        let found = pairs.iter().find(|(name, _)| name == key);
        let value = found.map(|(_, value)| value);
        value.filter(|value| !matches!(&value.content, Content::Text(text) if matches!(&**text, "" | "null" | "~")))
    }

    /// Returns the text of a key of a mapping.
    ///
    /// # Errors
    ///
    /// The value of the key is a list or a mapping.
    pub fn get_text(&self, key: &str) -> Result<Option<&str>, YamlError> {
        match self.get(key).map(|value| (&value.content, value.line)) {
            None => Ok(None),
            Some((Content::Text(text), _)) => Ok(Some(text)),
            Some((_, line)) => Err(YamlError::new(line, format!("{key} is not a text"))),
        }
    }
}

/// A list or mapping that is not complete.
struct Open {
    line: usize,
    content: Content,
    /// Key of a mapping whose value comes next.
    key: Option<String>,
}

/// Reads the first document of a text.
///
/// # Errors
///
/// The text is not YAML, or has something that kubeconfig files do not need: aliases, keys that are no text, or more
/// nesting or values than allowed.
pub fn parse_document(text: &str) -> Result<Value, YamlError> {
    let mut open: Vec<Open> = Vec::new();
    let mut count = 0;
    let mut line = 1;
    for event in Parser::new_from_str(text) {
        let (event, span) = event.map_err(|error| {
            let message = error.to_string();
            YamlError::new(error.marker().line().max(1), message)
        })?;
        line = span.start.line().max(1);
        count += 1;
        if count > MAX_VALUES {
            return Err(YamlError::new(line, "the document has too many values"));
        }
        let content = match event {
            Event::Scalar(text, ..) => Content::Text(text.into_owned()),
            Event::Alias(_) => {
                let message = "aliases (*name) are not supported: write the value itself";
                return Err(YamlError::new(line, message));
            }
            Event::SequenceStart(..) | Event::MappingStart(..) => {
                if open.len() >= MAX_DEPTH {
                    return Err(YamlError::new(line, "the document is nested too deeply"));
                }
                let content = match event {
                    Event::SequenceStart(..) => Content::List(Vec::new()),
                    _ => Content::Map(Vec::new()),
                };
                open.push(Open {
                    line,
                    content,
                    key: None,
                });
                continue;
            }
            Event::SequenceEnd | Event::MappingEnd => match open.pop() {
                Some(ended) => {
                    line = ended.line;
                    ended.content
                }
                None => continue,
            },
            _ => continue,
        };
        let value = Value { line, content };
        let Some(parent) = open.last_mut() else {
            return Ok(value);
        };
        match (&mut parent.content, parent.key.take()) {
            (Content::List(list), _) => list.push(value),
            (Content::Map(pairs), Some(key)) => {
                if pairs.iter().any(|(known, _)| *known == key) {
                    return Err(YamlError::new(line, format!("{key:?} stands there twice")));
                }
                pairs.push((key, value));
            }
            (Content::Map(_), None) => match value.content {
                Content::Text(key) => parent.key = Some(key),
                _ => return Err(YamlError::new(line, "a key is not a text")),
            },
            (Content::Text(_), _) => {}
        }
    }
    Err(YamlError::new(line, "the file is empty, or not complete"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_are_trees_with_lines() {
        let text =
            "a: 1\nb:\n- x: 'y z'\n  u: [p, \"q\"]\n- |\n  two\n  lines\nc: {d: e}\nn: null\n";
        let value = parse_document(text).unwrap();
        assert_eq!(value.get_text("a"), Ok(Some("1")));
        assert_eq!((value.get("n"), value.get("m")), (None, None));
        let Content::List(list) = &value.get("b").unwrap().content else {
            panic!("a list");
        };
        assert_eq!(list[0].get_text("x"), Ok(Some("y z")));
        assert_eq!(list[0].line, 3);
        assert_eq!(list[1].content, Content::Text("two\nlines\n".into()));
        assert_eq!(value.get("c").unwrap().get_text("d"), Ok(Some("e")));
        assert_eq!(value.get_text("b").unwrap_err().line, 3);
        // JSON is YAML.
        let value = parse_document(r#"{"a": {"b": "c"}}"#).unwrap();
        assert_eq!(value.get("a").unwrap().get_text("b"), Ok(Some("c")));
    }

    #[test]
    fn what_is_wrong_is_told_with_its_line() {
        let deep = format!("{}{}", "[".repeat(100), "]".repeat(100));
        for (text, line, wanted) in [
            ("", 1, "empty"),
            ("a: 1\nb: [\n", 3, ""),
            ("a: 1\na: 2\n", 2, "twice"),
            ("a: &x 1\nb: *x\n", 2, "aliases"),
            ("? [a]\n: b\n", 1, "key is not a text"),
            (&*deep, 1, "too deeply"),
        ] {
            let error = parse_document(text).unwrap_err();
            assert!(error.message.contains(wanted), "{error} {text:?}");
            assert!(error.line <= line, "{error} {text:?}");
        }
    }
}
