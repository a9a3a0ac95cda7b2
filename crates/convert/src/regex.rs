//! Regular expressions of other configurations, which look for a part of a value where Evenkeel's match the whole.

use evenkeel_config::routing::value_regex::ValueRegex;

/// Returns the expression for whole values with a part that matches `text`.
///
/// # Errors
///
/// The reason why Evenkeel cannot have the expression.
pub(crate) fn whole_regex(text: &str, ignores_case: bool) -> Result<String, String> {
    // Alone: what is put around could hide that brackets are missing.
    text.parse::<ValueRegex>()?;
    let has_choice = text.contains('|');
    let start = text.strip_prefix('^').filter(|_| !has_choice);
    let inner = start.unwrap_or(text);
    // A dollar behind an odd number of backslashes is one.
    let end = inner.strip_suffix('$').filter(|inner| {
        let backslashes = inner
            .bytes()
            .rev()
            .take_while(|byte| *byte == b'\\')
            .count();
        !has_choice && backslashes % 2 == 0
    });
    let body = end.unwrap_or(inner);
    let body = match has_choice {
        true => format!("(?:{body})"),
        false => body.to_owned(),
    };
    let any = |is_bound: bool| if is_bound { "" } else { ".*" };
    let flag = if ignores_case { "(?i)" } else { "" };
    let whole = format!("{flag}{}{body}{}", any(start.is_some()), any(end.is_some()));
    whole.parse::<ValueRegex>()?;
    Ok(whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_that_matches_is_enough() {
        for (text, ignores_case, wanted) in [
            ("^/api/v[0-9]+/", false, "/api/v[0-9]+/.*"),
            (r"\.php$", true, r"(?i).*\.php"),
            ("^a$", false, "a"),
            ("b", false, ".*b.*"),
            ("^a|b$", false, ".*(?:^a|b$).*"),
            (r"a\$", false, r".*a\$.*"),
            (r"a\\$", false, r".*a\\"),
            ("", false, ".*.*"),
        ] {
            let found = whole_regex(text, ignores_case).unwrap();
            assert_eq!(found, wanted);
        }
        let matches = |value: &str| {
            let regex: ValueRegex = whole_regex("^a|b$", false).unwrap().parse().unwrap();
            regex.matches(value.as_bytes())
        };
        assert!(matches("ax") && matches("xb") && !matches("xa") && !matches("bx"));
        for bad in ["(?!x)", "a)(b", "(a"] {
            assert!(whole_regex(bad, false).is_err(), "{bad}");
        }
    }
}
