//! Words of a line, and the sections of a file.

use crate::error::ConvertError;

/// A line with its words.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    pub(crate) number: usize,
    pub(crate) words: Vec<String>,
}

impl Line {
    /// The word at a place, or an empty one.
    pub(crate) fn word_at(&self, place: usize) -> &str {
        self.words.get(place).map_or("", String::as_str)
    }

    /// The words from a place on.
    pub(crate) fn from(&self, place: usize) -> &[String] {
        self.words.get(place..).unwrap_or_default()
    }
}

/// A section with its lines.
#[derive(Clone, Debug)]
pub(crate) struct Section {
    /// `frontend`, `backend` and so on.
    pub(crate) kind: String,
    pub(crate) name: String,
    pub(crate) head: Line,
    pub(crate) lines: Vec<Line>,
}

const KINDS: [&str; 17] = [
    "global",
    "defaults",
    "frontend",
    "backend",
    "listen",
    "peers",
    "resolvers",
    "userlist",
    "mailers",
    "cache",
    "program",
    "http-errors",
    "ring",
    "log-forward",
    "fcgi-app",
    "crt-store",
    "traces",
];

/// The sections of a file.
pub(crate) fn sections(text: &str) -> Result<Vec<Section>, ConvertError> {
    let mut all: Vec<Section> = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let words = words(line).map_err(|why| ConvertError::Syntax { line: number, why })?;
        let Some(first) = words.first() else {
            continue;
        };
        let line = Line {
            number,
            words: words.clone(),
        };
        if KINDS.contains(&first.as_str()) {
            let name = line.word_at(1).to_owned();
            all.push(Section {
                kind: first.clone(),
                name,
                head: line,
                lines: Vec::new(),
            });
        } else {
            match all.last_mut() {
                Some(section) => section.lines.push(line),
                None => {
                    let why = "stands before the first section";
                    return Err(ConvertError::Syntax { line: number, why });
                }
            }
        }
    }
    Ok(all)
}

/// The words of a line without its comment.
fn words(line: &str) -> Result<Vec<String>, &'static str> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        match c {
            '#' if word.is_none() => break,
            ' ' | '\t' | '\r' => words.extend(word.take()),
            '\\' => word.get_or_insert_default().extend(chars.next()),
            '"' | '\'' => {
                let word = word.get_or_insert_default();
                loop {
                    match chars.next() {
                        None => return Err("a quotation mark is not closed"),
                        Some(end) if end == c => break,
                        Some('\\') if c == '"' => word.extend(chars.next()),
                        Some(inner) => word.push(inner),
                    }
                }
            }
            c => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_have_quotes_and_escapes() {
        for (line, wanted) in [
            ("  bind :80 # all", vec!["bind", ":80"]),
            (r"a b\ c", vec!["a", "b c"]),
            (r#"a "b c" 'd "e"'"#, vec!["a", "b c", "d \"e\""]),
            (r#"a "b\"c""#, vec!["a", "b\"c"]),
            ("a '#b'", vec!["a", "#b"]),
            ("", vec![]),
            ("# nothing", vec![]),
        ] {
            assert_eq!(words(line).unwrap(), wanted, "{line}");
        }
        assert!(words("a \"b").is_err());
    }
}
