//! Regular expressions of conditions.

use std::str::FromStr;

use regex::bytes::{Regex, RegexBuilder};

/// Longest text of an expression, in bytes.
const MAX_TEXT: usize = 1024;

/// Most memory of a compiled expression, and of the states that are kept while it is matched, in bytes. It bounds the
/// time that a byte of a value can take.
const MAX_PROGRAM: usize = 128 * 1024;
const MAX_STATES: usize = 256 * 1024;

/// Regular expression that a whole value must match. The time for a value grows with its length, whatever the expression.
/// Values are bytes: `.` is any of them, and classes such as `\w` and the flag `(?i)` know ASCII only.
#[derive(Clone, Debug, Default)]
pub struct ValueRegex {
    text: Box<str>,
    /// The expression, unless it is empty, as at first.
    regex: Option<Regex>,
}

impl ValueRegex {
    /// True if all of `value` matches.
    pub fn matches(&self, value: &[u8]) -> bool {
        match &self.regex {
            Some(regex) => regex.is_match(value),
            None => value.is_empty(),
        }
    }

    /// True if the expression matches no path, as paths begin with a slash. False does not say that the expression matches
    /// one.
    pub fn is_for_no_path(&self) -> bool {
        let text = &*self.text;
        let text = text.strip_prefix('^').unwrap_or(text);
        let mut characters = text.chars();
        let (first, second) = (characters.next(), characters.next());
        // A character with a sign for repetitions behind it may be left out.
        let is_needed = !second.is_some_and(|second| matches!(second, '?' | '*' | '{'));
        match first {
            None => true,
            Some(first) => first.is_ascii_alphanumeric() && is_needed && !text.contains('|'),
        }
    }

    /// Expression as it was written.
    pub fn text(&self) -> &str {
        &self.text
    }
}

/// Writes an expression that matches `text` alone.
pub fn escape_regex(text: &str) -> String {
    regex::escape(text)
}

impl FromStr for ValueRegex {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.len() > MAX_TEXT {
            return Err(format!("has more than {MAX_TEXT} bytes"));
        }
        let build = |text: &str| {
            RegexBuilder::new(text)
                .unicode(false)
                .dot_matches_new_line(true)
                .size_limit(MAX_PROGRAM)
                .dfa_size_limit(MAX_STATES)
                .build()
        };
        // Alone first: brackets that do not belong together would get a meaning by those around them.
        let regex = build(text).and_then(|_| build(&format!(r"\A(?:{text})\z")));
        let regex = regex.map_err(|error| describe_error(&error))?;
        Ok(ValueRegex {
            text: text.into(),
            regex: Some(regex),
        })
    }
}

/// Says what is wrong with an expression, in one line.
fn describe_error(error: &regex::Error) -> String {
    let text = match error {
        regex::Error::CompiledTooBig(_) => {
            "needs too much memory: use fewer or smaller repetitions".to_owned()
        }
        error => error.to_string(),
    };
    // The library draws the place in several lines, and the last one says what is wrong.
    let last = text.lines().last().unwrap_or_default();
    let reason = last.strip_prefix("error: ").unwrap_or(last);
    format!("not a regular expression: {reason}")
}

impl PartialEq for ValueRegex {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for ValueRegex {}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(expression: &str, value: &[u8]) -> bool {
        expression.parse::<ValueRegex>().unwrap().matches(value)
    }

    #[test]
    fn an_expression_matches_whole_values() {
        for (expression, yes, no) in [
            ("a|b", "b", "ab"),
            ("a.*", "abc", "ba"),
            (".*b", "ab", "abc"),
            ("^a$", "a", "aa"),
            ("(?i)Anna", "aNNA", "anna "),
            ("/v[0-9]+/.*", "/v12/x", "/v/x"),
            (r"\d{3}", "123", "1234"),
            ("", "", "a"),
        ] {
            assert!(matches(expression, yes.as_bytes()), "{expression} {yes}");
            assert!(!matches(expression, no.as_bytes()), "{expression} {no}");
        }
        assert!(matches("a.b", b"a\xffb"), "values are bytes");
        assert!(matches(".*b.*", b"a\nb\n"));
        assert!(matches("café", "café".as_bytes()));
        assert!(!matches(r"\w+", "café".as_bytes()));
        assert!(!matches("a", b"a\n"));
    }

    #[test]
    fn what_is_no_expression_is_refused_with_a_reason() {
        let error = |text: &str| text.parse::<ValueRegex>().unwrap_err();
        for text in ["(", ")", "a)(b", "[", "a{2,1}", "(?=a)", r"(a)\1", "*"] {
            let error = error(text);
            assert!(error.starts_with("not a regular expression: "), "{error}");
            assert!(!error.contains('\n'), "{error}");
        }
        assert!(error("(?=a)").contains("look-around"), "{}", error("(?=a)"));
        for text in ["(a{100}){100}", "(?:(?:a{50}){50}){50}"] {
            assert!(error(text).contains("too much memory"), "{}", error(text));
        }
        assert!(error(&"a".repeat(MAX_TEXT + 1)).contains("more than 1024 bytes"));
        assert!("a".repeat(MAX_TEXT).parse::<ValueRegex>().is_ok());
    }

    #[test]
    fn an_expression_that_no_path_matches_is_known_by_its_first_character() {
        let is_for_none = |text: &str| text.parse::<ValueRegex>().unwrap().is_for_no_path();
        for text in ["", "^", "api", "^api/.*", "7+", "v[0-9]+/a"] {
            assert!(is_for_none(text), "{text}");
            assert!(!matches(text, b"/api") && !matches(text, b"/v7/a"));
        }
        for text in [
            "/api", "^/api", ".*api", "(api)?/x", "a?/x", "a*/x", "a{0,2}/x", "a|/x", "[^/]x",
            "(?i)a", "\\/a",
        ] {
            assert!(!is_for_none(text), "{text}");
        }
    }

    #[test]
    fn an_escaped_text_matches_itself_only() {
        for text in ["/a/*", "a.b", "x*", "[a]", "\\", "(?i)a", "a b#c"] {
            let expression = escape_regex(text);
            assert!(matches(&expression, text.as_bytes()), "{text}");
            assert!(
                !matches(&expression, format!("{text}x").as_bytes()),
                "{text}"
            );
        }
        assert!(!matches(&escape_regex("a.b"), b"axb"));
    }
}
