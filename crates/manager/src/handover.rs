//! Hand-over: what a process tells the one that takes its place, as a document of parts, each with its
//! version.
//!
//! The two processes may be of different versions. Each part is taken if its version is known here and the
//! part can be read; otherwise that part starts fresh, and the log says so.

use std::collections::BTreeMap;

use evenkeel_tls::ticket::Keys;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tracing::warn;

/// The version of parts with keys of tickets.
const TICKETS: u32 = 1;

/// The parts, by name.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Handover(BTreeMap<String, Part>);

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Part {
    version: u32,
    data: Value,
}

impl Handover {
    /// Reads the document that another process has written. A document that cannot be read counts as an empty
    /// one.
    pub fn read(document: Value) -> Self {
        serde_json::from_value(document).unwrap_or_else(|error| {
            warn!(%error, "upgrade: the state that the old process has learnt cannot be read: starting without it");
            Handover::default()
        })
    }

    /// The document.
    pub fn into_document(self) -> Value {
        serde_json::to_value(self.0).unwrap_or_default()
    }

    /// Adds the part `name` in its `version`.
    pub fn give(&mut self, name: &str, version: u32, data: &impl Serialize) {
        match serde_json::to_value(data) {
            Ok(data) => drop(self.0.insert(name.into(), Part { version, data })),
            Err(error) => {
                warn!(part = name, %error, "upgrade: cannot pass a part of the state to the new process")
            }
        }
    }

    /// Adds the keys of session tickets as the part `name`.
    pub fn give_tickets(&mut self, name: &str, keys: &Keys) {
        self.give(name, TICKETS, &keys.secrets());
    }

    /// Goes on with the keys of session tickets in the part `name`, if it is there.
    pub fn take_tickets(&self, name: &str, keys: &Keys) {
        if let Some(secrets) = self.take(name, TICKETS) {
            keys.take_over(&secrets);
        }
    }

    /// The part `name`, if it is there in this `version`.
    pub fn take<T: DeserializeOwned>(&self, name: &str, version: u32) -> Option<T> {
        let part = self.0.get(name)?;
        if part.version != version {
            warn!(
                part = name,
                theirs = part.version,
                ours = version,
                "upgrade: a part of the old process's state has another version: starting without that part"
            );
            return None;
        }
        T::deserialize(&part.data)
            .inspect_err(|error| {
                warn!(part = name, %error, "upgrade: the state that the old process has learnt cannot be read: starting without it");
            })
            .ok()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn parts_of_known_versions_are_taken_and_others_start_fresh() {
        let mut handover = Handover::default();
        handover.give("a", 1, &vec![1, 2]);
        handover.give("b", 2, &"text");
        let there = Handover::read(handover.into_document());
        assert_eq!(there.take::<Vec<u32>>("a", 1), Some(vec![1, 2]));
        assert_eq!(there.take::<String>("b", 2), Some("text".into()));
        assert_eq!(there.take::<String>("b", 1), None, "an earlier version");
        assert_eq!(there.take::<String>("a", 1), None, "of another form");
        assert_eq!(there.take::<String>("c", 1), None);
        for document in [json!(null), json!([1]), json!({"a": 3})] {
            assert_eq!(Handover::read(document).take::<u32>("a", 1), None);
        }
    }
}
