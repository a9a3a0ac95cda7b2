//! Directives outside of servers: variables, and the zones of limits.

use std::collections::HashMap;

use super::values::argument;
use super::words::Directive;
use crate::model::Model;

/// A variable whose value depends on the request.
#[derive(Clone, Debug)]
pub(super) enum Variable {
    /// `map`: the variable that is looked at, values with what each gives, and what others give.
    Map {
        of: String,
        entries: Vec<(String, String)>,
        other: Option<String>,
    },
    /// `split_clients`: percentages with what each gives, and what the rest gives.
    Split {
        entries: Vec<(u64, String)>,
        other: Option<String>,
    },
}

/// Directives outside of servers.
#[derive(Clone, Debug, Default)]
pub(super) struct World {
    pub(super) variables: HashMap<String, Variable>,
    /// Zones of `limit_req_zone` with their rates.
    pub(super) rates: HashMap<String, String>,
    /// True for zones that count by the client's address.
    pub(super) by_client: HashMap<String, bool>,
}

impl World {
    pub(super) fn take(&mut self, directive: &Directive, model: &mut Model) {
        match directive.name.as_str() {
            "map" => {
                let mut entries = Vec::new();
                let mut other = None;
                for entry in directive.inner_directives() {
                    let value = entry.word_at(0).to_owned();
                    match entry.name.as_str() {
                        "default" => other = Some(value),
                        "hostnames" | "volatile" => {}
                        name => entries.push((name.to_owned(), value)),
                    }
                }
                let of = directive.word_at(0).to_owned();
                let variable = Variable::Map { of, entries, other };
                self.variables
                    .insert(directive.word_at(1).to_owned(), variable);
            }
            "split_clients" => {
                let mut entries = Vec::new();
                let mut other = None;
                for entry in directive.inner_directives() {
                    let value = entry.word_at(0).to_owned();
                    match entry.name.trim_end_matches('%').parse::<f64>() {
                        // Weights are thousandths of a percent.
                        Ok(percent) if (0.0..=100.0).contains(&percent) => {
                            entries.push(((percent * 1000.0).round() as u64, value))
                        }
                        _ => other = Some(value),
                    }
                }
                self.variables.insert(
                    directive.word_at(1).to_owned(),
                    Variable::Split { entries, other },
                );
            }
            "limit_req_zone" => {
                if let (Some(zone), Some(rate)) =
                    (argument(directive, "zone"), argument(directive, "rate"))
                {
                    let zone = zone.split(':').next().unwrap_or_default().to_owned();
                    let rate = rate.trim_end_matches("r/s").trim_end_matches("r/m");
                    let unit = if directive.words.iter().any(|word| word.ends_with("r/m")) {
                        "m"
                    } else {
                        "s"
                    };
                    self.by_client
                        .insert(zone.clone(), directive.word_at(0).contains("remote_addr"));
                    if rate.parse::<u64>().is_ok_and(|rate| rate > 0) {
                        self.rates.insert(zone, format!("{rate}/{unit}"));
                    }
                }
            }
            "limit_conn_zone" => {
                if let Some(zone) = argument(directive, "zone") {
                    let zone = zone.split(':').next().unwrap_or_default().to_owned();
                    self.by_client
                        .insert(zone, directive.word_at(0).contains("remote_addr"));
                }
            }
            "geo" => model.notes.add_restriction(
                directive.line,
                "networks are conditions of routes: `client` and `except_client`",
            ),
            "include" => model
                .notes
                .add_note(directive.line, "the file is not read: convert it, too"),
            _ => {}
        }
    }
}
