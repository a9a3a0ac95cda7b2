//! The JSON that the API takes and gives, beside the manager's status: one definition
//! for the server and its clients.

use std::collections::BTreeMap;

use evenkeel_manager::status::Explained;
use evenkeel_manager::{AdminState, AlertSetting};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Why a group's requests go where they go.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct Explain {
    /// A decision that was taken for a real request, about one per second in which
    /// there was any; none before the first request.
    pub last: Option<Explained>,
    /// The decision that a request would get now. Nothing is bound by it, and it does
    /// not move a strategy that takes turns.
    pub next: Explained,
}

/// What a member shall do.
#[derive(Clone, Copy, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetState {
    /// `ready`, `drain` or `maintenance`.
    pub state: AdminState,
}

/// A member's new weight.
#[derive(Clone, Copy, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetWeight {
    /// 0 to 1000.
    pub weight: f64,
}

/// Whether a member shall be a backup.
#[derive(Clone, Copy, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetBackup {
    /// Whether it is one: it serves while no other member may.
    pub backup: bool,
}

/// Whether a rule shall accept clients.
#[derive(Clone, Copy, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetEnabled {
    /// Whether it does.
    pub enabled: bool,
}

/// Whether a rule shall be in maintenance.
#[derive(Clone, Copy, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetMaintenance {
    /// Whether it is.
    pub on: bool,
}

/// A group's new strategy.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetStrategy {
    /// Name of the strategy.
    pub name: String,
    /// Its parameters; those that are not named get their defaults.
    #[serde(default)]
    pub params: BTreeMap<String, f64>,
}

/// What a location's load alert shall be.
#[derive(Clone, Copy, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetAlert {
    /// `on`, `off`, or `auto`: as the load has it.
    pub alert: AlertSetting,
}

/// A load report of a location.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Report {
    /// Loads by name (`cpu`) or number of their id.
    pub loads: BTreeMap<String, f64>,
}

/// What became of a reload.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct Reloaded {
    /// Counts the configurations of this process, from 1.
    pub generation: u64,
    /// Changes in the file that need a restart to take effect.
    pub notes: Vec<String>,
}

/// What became of a command that has nothing to tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct Done {
    /// Always true; a failure is another answer.
    pub ok: bool,
}
