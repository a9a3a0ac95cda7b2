//! Changes that the admin API is asked for, by `evenkeel ctl` and `evenkeel top` alike.

use evenkeel_manager::{AdminState, AlertSetting};

use crate::client::{Client, ClientError};
use crate::wire::{Done, SetAlert, SetState, SetWeight};

/// A change of what runs.
#[derive(Clone, Debug, PartialEq)]
pub enum Command {
    /// What a member shall do.
    State {
        /// Name of its group.
        group: String,
        /// Its name.
        member: String,
        /// From now on.
        state: AdminState,
    },
    /// A member's weight.
    Weight {
        /// Name of its group.
        group: String,
        /// Its name.
        member: String,
        /// 0 to 1000.
        weight: f64,
    },
    /// A location's load alert.
    Alert {
        /// Name of the location.
        location: String,
        /// From now on.
        alert: AlertSetting,
    },
}

impl Command {
    /// Asks for the change.
    pub fn send(&self, client: &Client) -> Result<Done, ClientError> {
        match self {
            Command::State {
                group,
                member,
                state,
            } => {
                let path = ["v1", "groups", group, "members", member, "state"];
                client.put(&path, &SetState { state: *state })
            }
            Command::Weight {
                group,
                member,
                weight,
            } => {
                let path = ["v1", "groups", group, "members", member, "weight"];
                client.put(&path, &SetWeight { weight: *weight })
            }
            Command::Alert { location, alert } => {
                let path = ["v1", "locations", location, "alert"];
                client.put(&path, &SetAlert { alert: *alert })
            }
        }
    }

    /// What holds when it is done.
    pub fn effect(&self) -> String {
        match self {
            Command::State {
                group,
                member,
                state,
            } => match state {
                AdminState::Ready => format!("{member} in {group} takes traffic"),
                AdminState::Drain => format!("{member} in {group} drains"),
                AdminState::Maintenance => format!("{member} in {group} is in maintenance"),
            },
            Command::Weight {
                group,
                member,
                weight,
            } => format!("{member} in {group} has weight {weight}"),
            Command::Alert { location, alert } => match alert {
                AlertSetting::Auto => format!("{location} is alerted by its load"),
                AlertSetting::On => format!("{location} is under alert: its clients leave"),
                AlertSetting::Off => format!("{location} is under no alert, whatever its load"),
            },
        }
    }

    /// What is asked before it is sent.
    pub(crate) fn question(&self) -> String {
        match self {
            Command::State {
                group,
                member,
                state,
            } => match state {
                AdminState::Ready => format!("Let {member} in {group} take traffic again?"),
                AdminState::Drain => format!(
                    "Drain {member} in {group}? It gets nothing new, and what is bound stays."
                ),
                AdminState::Maintenance => format!(
                    "Set {member} in {group} to maintenance? It gets nothing, and what is bound is moved."
                ),
            },
            Command::Weight {
                group,
                member,
                weight,
            } => format!("Set the weight of {member} in {group} to {weight}?"),
            Command::Alert { location, alert } => match alert {
                AlertSetting::Auto => format!("Let the load decide about alerts for {location}?"),
                AlertSetting::On => {
                    format!("Set a load alert for {location}? Its clients leave it bit by bit.")
                }
                AlertSetting::Off => {
                    format!("Suppress load alerts for {location}, whatever its load?")
                }
            },
        }
    }
}
