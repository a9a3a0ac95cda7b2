//! Environment variables in texts of a document: `${NAME}`, or `${NAME:-default}`.
//!
//! In front of a brace `$$` stands for one `$`; everywhere else a `$` is itself, so that hashes of
//! passwords and the like need no care.

use std::cell::RefCell;
use std::env::VarError;

use toml::de::{DeString, DeTable, DeValue};

use super::document::{Item, Span, join_key};
use super::report::Report;

/// Lookup of a variable's value.
pub(crate) type Lookup<'l> = &'l dyn Fn(&str) -> Result<String, VarError>;

/// The environment of the process.
pub(crate) fn environment(name: &str) -> Result<String, VarError> {
    std::env::var(name)
}

/// Most bytes that all texts with variables have together.
const MAX_BYTES: usize = 16 << 20;

/// A text with variables in place of their names.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Expanded {
    text: String,
    /// True if the text was nothing but one variable.
    whole: bool,
}

/// Puts the values of variables in place of their names; `None` if there are none, or why there
/// is no value.
pub(crate) fn expand(text: &str, lookup: Lookup<'_>) -> Result<Option<Expanded>, String> {
    if !text.contains("${") {
        return Ok(None);
    }
    let (mut expanded, mut whole, mut rest) = (String::new(), false, text);
    while let Some((before, after)) = rest.split_once("${") {
        let literal = before.trim_end_matches('$');
        let dollars = before.len() - literal.len() + 1;
        expanded.push_str(literal);
        expanded.extend(std::iter::repeat_n('$', dollars / 2));
        if dollars.is_multiple_of(2) {
            expanded.push('{');
            rest = after;
            continue;
        }
        let Some((inside, behind)) = after.split_once('}') else {
            return Err("`${` is not closed by `}`: write `$${` for the characters as such".into());
        };
        let (name, default) = match inside.split_once(":-") {
            Some((name, default)) => (name, Some(default)),
            None => (inside, None),
        };
        if !is_name(name) {
            return Err(format!(
                "`${{{inside}}}` names no environment variable: expected letters, digits and _ as in `${{NAME}}`, \
                 or `${{NAME:-default}}`; `$${{` stands for the characters as such"
            ));
        }
        whole = behind.is_empty() && before.is_empty() && rest.len() == text.len();
        match (lookup(name), default) {
            (Ok(value), None) => expanded.push_str(&value),
            (Ok(value), Some(_)) if !value.is_empty() => expanded.push_str(&value),
            (Ok(_) | Err(VarError::NotPresent), Some(default)) => expanded.push_str(default),
            (Err(VarError::NotPresent), None) => {
                return Err(format!(
                    "the environment variable {name} is not set: set it for the process, or give a default, `${{{name}:-…}}`"
                ));
            }
            (Err(VarError::NotUnicode(_)), _) => {
                return Err(format!("the environment variable {name} is not UTF-8"));
            }
        }
        if expanded.len() > MAX_BYTES {
            return Err("is too long with the values of its variables".into());
        }
        rest = behind;
    }
    expanded.push_str(rest);
    Ok(Some(Expanded {
        text: expanded,
        whole,
    }))
}

/// Names of the variables in a text, in their order.
pub(crate) fn names_in(text: &str) -> Vec<String> {
    let names = RefCell::new(Vec::new());
    let record = |name: &str| {
        names.borrow_mut().push(name.to_owned());
        Ok(String::new())
    };
    // A text that is wrong has those before the mistake.
    let _ = expand(text, &record);
    names.into_inner()
}

fn is_name(name: &str) -> bool {
    !name.starts_with(|c: char| c.is_ascii_digit())
        && (1..=255).contains(&name.len())
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// Puts the values of variables into all texts of a table; keys stay as they are.
pub(crate) fn expand_all(document: &mut DeTable<'_>, lookup: Lookup<'_>, report: &mut Report<'_>) {
    let mut left = MAX_BYTES;
    table("", document, lookup, &mut left, report);
}

fn table(
    path: &str,
    table: &mut DeTable<'_>,
    lookup: Lookup<'_>,
    left: &mut usize,
    report: &mut Report<'_>,
) {
    for (key, found) in table.iter_mut() {
        let span = found.span();
        let path = || join_key(path, key.get_ref());
        value(&path, &span, found.get_mut(), lookup, left, report);
    }
}

fn value(
    path: &dyn Fn() -> String,
    span: &Span,
    found: &mut DeValue<'_>,
    lookup: Lookup<'_>,
    left: &mut usize,
    report: &mut Report<'_>,
) {
    match found {
        DeValue::Table(inner) if holds_any(inner) => {
            table(&path(), inner, lookup, left, report);
        }
        DeValue::Array(list) => {
            for (index, element) in list.iter_mut().enumerate() {
                let span = element.span();
                let path = || format!("{}[{index}]", path());
                value(&path, &span, element.get_mut(), lookup, left, report);
            }
        }
        DeValue::String(text) => {
            let expanded = match expand(text, lookup) {
                Ok(None) => return,
                Ok(Some(expanded)) => Ok(expanded),
                Err(message) => Err(message),
            };
            let expanded = expanded.and_then(|expanded| {
                *left = left
                    .checked_sub(expanded.text.len())
                    .ok_or("the texts with variables are too long together")?;
                Ok(expanded)
            });
            match expanded {
                Ok(Expanded { text: new, whole }) => {
                    *text = DeString::Owned(new);
                    report.note_variable(span, whole);
                }
                Err(message) => report.add_problem(span, &path(), message, None),
            }
        }
        _ => {}
    }
}

/// True if a table has a text with a variable: most have none, and need no paths.
fn holds_any(table: &DeTable<'_>) -> bool {
    fn any(value: &DeValue<'_>) -> bool {
        match value {
            DeValue::String(text) => text.contains("${"),
            DeValue::Table(table) => holds_any(table),
            DeValue::Array(list) => list.iter().any(|element| any(element.get_ref())),
            _ => false,
        }
    }
    table.iter().any(|(_, value)| any(value.get_ref()))
}

/// Value of a text that was one variable, if the value is a number, or true or false.
pub(crate) fn scalar<'t>(item: &Item<'t>, report: &Report<'_>) -> Option<DeValue<'t>> {
    let DeValue::String(text) = item.value else {
        return None;
    };
    if !report.is_whole_variable(&item.span) {
        return None;
    }
    let value = DeValue::parse(text.trim()).ok()?.into_inner();
    let is_scalar = matches!(
        value,
        DeValue::Integer(_) | DeValue::Float(_) | DeValue::Boolean(_)
    );
    is_scalar.then_some(value)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// An environment of a few variables.
    pub(crate) fn few_variables(name: &str) -> Result<String, VarError> {
        match name {
            "HOST" => Ok("10.0.0.1".into()),
            "PORT" => Ok("8080".into()),
            "OFF" => Ok("false".into()),
            "EMPTY" => Ok(String::new()),
            "ODD" => Err(VarError::NotUnicode("x".into())),
            _ => Err(VarError::NotPresent),
        }
    }

    fn text(text: &str) -> Result<String, String> {
        let expanded = expand(text, &few_variables)?;
        Ok(expanded.map_or_else(|| text.to_owned(), |expanded| expanded.text))
    }

    #[test]
    fn variables_stand_in_texts() {
        for (written, wanted) in [
            ("plain", "plain"),
            ("${HOST}:${PORT}", "10.0.0.1:8080"),
            ("http://${NONE:-localhost}/", "http://localhost/"),
            ("${EMPTY:-x}${EMPTY}${NONE:-}", "x"),
            ("$6$salt$$hash {} $HOST $", "$6$salt$$hash {} $HOST $"),
            ("$${HOST}", "${HOST}"),
            ("$$${HOST}", "$10.0.0.1"),
            ("$$$${HOST}", "$${HOST}"),
            ("$$$$${HOST}", "$$10.0.0.1"),
        ] {
            assert_eq!(text(written).as_deref(), Ok(wanted), "{written}");
        }
    }

    #[test]
    fn what_has_no_value_says_why() {
        for (written, word) in [
            ("${NONE}", "NONE is not set"),
            ("${ODD:-x}", "not UTF-8"),
            ("${HOST", "not closed"),
            ("${}", "names no environment variable"),
            ("${1A}", "names no environment variable"),
            ("${A-B}", "names no environment variable"),
        ] {
            let error = text(written).unwrap_err();
            assert!(error.contains(word), "{written}: {error}");
        }
    }

    #[test]
    fn only_one_variable_and_nothing_else_is_a_whole_one() {
        for (written, whole) in [
            ("${PORT}", true),
            ("${NONE:-1}", true),
            ("0${PORT}", false),
            ("${PORT}0", false),
            ("${EMPTY}${PORT}", false),
            ("$$${PORT}", false),
        ] {
            let expanded = expand(written, &few_variables).unwrap().unwrap();
            assert_eq!(expanded.whole, whole, "{written}");
        }
    }
}
