//! Names of groups that no group of the file has.

use std::collections::HashMap;

use crate::schema::document::Span;
use crate::schema::report::Report;
use crate::schema::similar::{similar, unknown_message};
use crate::schema::table::Table;

/// `name`, at `key`, is none of the groups `shared`.
pub(super) fn unknown_group(
    table: &Table<'_>,
    key: &str,
    name: &str,
    shared: &HashMap<String, Span>,
    report: &mut Report<'_>,
) {
    // A thousand rules that name a missing group need no thousand suggestions.
    if report.is_full() {
        return report.omit();
    }
    let mut names: Vec<&str> = shared.keys().map(String::as_str).collect();
    names.sort_unstable();
    let message = unknown_message("group", similar(name, names.iter().copied()));
    let some: Vec<_> = names
        .iter()
        .take(20)
        .map(|name| format!("{name:?}"))
        .collect();
    let allowed = if some.is_empty() {
        format!("none, as no group is defined: write [group.{name}] with `members`")
    } else {
        some.join(", ")
    };
    let (span, path) = (table.span_of(key), table.path_of(key));
    report.add_misplaced(&span, &path, message, Some(allowed));
}
