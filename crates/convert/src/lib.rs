//! Configurations of HAProxy and nginx as ones of Evenkeel, with a list of what could not be translated and why.
//!
//! In the order in which the files build on each other: [`error`] and [`note`]; [`toml`], tables that become text; [`model`], the rules, routes
//! and groups that both languages are translated to; [`units`], times and numbers; [`haproxy`] and [`nginx`], each
//! with its words and what they mean.
//!
//! A text is bounded ([`MAX_BYTES`]), and so is what is made of one line. What restricts who gets in, and cannot be
//! translated, is told apart: without it the result lets more in than the original.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

mod error;
mod haproxy;
mod model;
mod nginx;
mod note;
mod regex;
mod toml;
mod units;

pub use error::{ConvertError, MAX_BYTES};
pub use note::Note;

use evenkeel_config::Dialect;
use model::{Model, Removed};
use note::MAX_NOTES;

/// A configuration of Evenkeel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Converted {
    /// Text of the configuration, with the notes as comments at the beginning.
    pub toml: String,
    /// Notes about directives that were not translated, in the order of the original.
    pub notes: Vec<Note>,
}

/// Translates a configuration of HAProxy or nginx, whichever it is.
///
/// # Errors
///
/// Why there is no translation.
pub fn convert(text: &str) -> Result<Converted, ConvertError> {
    if text.len() > MAX_BYTES {
        return Err(ConvertError::TooLong);
    }
    let (model, name) = match Dialect::from_text(text) {
        Some(Dialect::Haproxy) => (haproxy::read(text)?, "HAProxy"),
        Some(Dialect::Nginx) => (nginx::read(text)?, "nginx"),
        _ => return Err(ConvertError::Unknown),
    };
    finish(model, name, text)
}

/// Writes the model as a text, and leaves out routes that could never match.
fn finish(mut model: Model, name: &str, original: &str) -> Result<Converted, ConvertError> {
    let is_empty = |model: &Model| model.rules.is_empty() && model.groups.is_empty();
    if is_empty(&model) {
        return Err(ConvertError::Empty);
    }
    leave_out_wrong(&mut model);
    if is_empty(&model) {
        return Err(ConvertError::Empty);
    }
    let mut notes = model.notes.take(original);
    notes.sort_by_key(|note| note.line);
    let mut toml = format!(
        "# Translated from a configuration of {name} by `evenkeel convert`. Run `evenkeel check` on it, and read docs/coming-from.md.\n"
    );
    if !notes.is_empty() {
        toml += "#\n# These lines were not translated, or only in part:\n#\n";
    }
    for note in &notes {
        toml += &format!("# {note}\n");
    }
    toml += "\n";
    toml += &model.text();
    Ok(Converted { toml, notes })
}

/// Leaves out what a configuration cannot have, and notes why. The limits of values are known there alone, and the
/// original may have any.
fn leave_out_wrong(model: &mut Model) {
    for _ in 0..MAX_NOTES {
        let Err(errors) = evenkeel_config::parse("", &model.text()) else {
            return;
        };
        // An earlier route may take all of its requests there, too: it had no effect. But one that is wrong takes none.
        let (idle, wrong): (Vec<_>, Vec<_>) = (errors.problems.iter())
            .partition(|problem| problem.message.starts_with("can never match"));
        let is_idle = wrong.is_empty();
        let mut removed: Vec<Removed> = Vec::new();
        // From the end, so that places in lists stay those of the text.
        let problems = if is_idle { idle } else { wrong };
        for problem in problems.into_iter().rev() {
            let has = |removed: &Removed| {
                let rest = problem.key.strip_prefix(&removed.whole);
                rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
            };
            if removed.iter().any(has) {
                continue;
            }
            let Some(part) = model.remove(&problem.key) else {
                continue;
            };
            let why = format!("{} is left out: {}", part.path, problem.message);
            match part.restricts {
                _ if is_idle => {}
                true => model.notes.add_restriction(1, why),
                false => model.notes.add_note(1, why),
            }
            removed.push(part);
        }
        if removed.is_empty() {
            return;
        }
    }
}

#[cfg(test)]
mod tests;
