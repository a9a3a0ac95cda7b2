//! Values of directives: arguments, times, networks and zones.

use super::words::Directive;
use crate::model::Model;
use crate::toml::Table;
use crate::units::{is_network, parse_millis, time};

/// The value of a word `name=value`.
pub(super) fn argument<'d>(directive: &'d Directive, name: &str) -> Option<&'d str> {
    let words = directive.words.iter();
    let mut values = words.filter_map(|word| word.strip_prefix(name)?.strip_prefix('='));
    values.next()
}

pub(super) fn set_time(
    table: &mut Table,
    key: &str,
    directive: &Directive,
    longest: u64,
    model: &mut Model,
) {
    match parse_millis(directive.word_at(0), 1000) {
        Some(0) | None => model.notes.add_note(directive.line, "not a time"),
        Some(millis) => table.set(key, time(millis, longest)),
    }
}

/// Adds a network to a list; notes another one.
pub(super) fn push_network(list: &mut Vec<String>, directive: &Directive, model: &mut Model) {
    match directive.word_at(0) {
        "unix:" => list.push("unix".into()),
        text if is_network(text) => list.push(text.to_owned()),
        _ => model.notes.add_note(directive.line, "not a network"),
    }
}

/// The zone of `limit_req` and `limit_conn`.
pub(super) fn limit_zone(directive: &Directive, is_connections: bool) -> &str {
    match is_connections {
        true => directive.word_at(0),
        false => argument(directive, "zone").unwrap_or_default(),
    }
}
