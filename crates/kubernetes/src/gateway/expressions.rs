//! Regular expressions of objects.

use evenkeel_config::routing::value_regex::ValueRegex;

/// Checks a regular expression.
///
/// # Errors
///
/// The error of the expression.
pub(super) fn check_regex(text: &str) -> Result<(), String> {
    text.parse::<ValueRegex>().map(drop)
}
