//! Changes that the admin API is asked for, by `evenkeel ctl` and `evenkeel top` alike.

use std::fmt;

use evenkeel_manager::status::MemberStatus;
use evenkeel_manager::{AdminState, AlertSetting};

use crate::client::{Client, ClientError};
use crate::view::ejection_line;
use crate::wire::{Done, SetAlert, SetBackup, SetState, SetWeight};

/// A member of a group, by their names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    group: String,
    name: String,
}

impl Member {
    /// Returns the member `name` of `group`.
    pub fn new(group: &str, name: &str) -> Self {
        let (group, name) = (group.into(), name.into());
        Member { group, name }
    }

    /// Asks for the member as it is now; the name may stand for several.
    fn ask_status(&self, client: &Client) -> Result<MemberStatus, ClientError> {
        let path = ["v1", "groups", &self.group, "members", &self.name];
        client.get(&path, &[])
    }

    fn path<'a>(&'a self, what: &'a str) -> [&'a str; 6] {
        ["v1", "groups", &self.group, "members", &self.name, what]
    }
}

impl fmt::Display for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in {}", self.name, self.group)
    }
}

/// A change of what runs.
#[derive(Clone, Debug, PartialEq)]
pub enum Command {
    /// State that a member gets.
    State(Member, AdminState),
    /// Member whose ejection ends.
    EndEjection(Member),
    /// A member's weight, 0 to 1000.
    Weight(Member, f64),
    /// True if the member becomes a backup.
    Backup(Member, bool),
    /// Setting of the load alert of the location of this name.
    Alert(String, AlertSetting),
}

impl Command {
    /// Asks for the change.
    pub fn send_to(&self, client: &Client) -> Result<Done, ClientError> {
        match self {
            Command::State(member, state) => {
                client.put_resource(&member.path("state"), &SetState { state: *state })
            }
            Command::EndEjection(member) => {
                client.post_resource(&member.path("uneject"), &serde_json::json!({}))
            }
            Command::Weight(member, weight) => {
                client.put_resource(&member.path("weight"), &SetWeight { weight: *weight })
            }
            Command::Backup(member, backup) => {
                client.put_resource(&member.path("backup"), &SetBackup { backup: *backup })
            }
            Command::Alert(location, alert) => {
                let path = ["v1", "locations", location, "alert"];
                client.put_resource(&path, &SetAlert { alert: *alert })
            }
        }
    }

    /// Returns the sentence that holds when the command is done.
    pub fn effect(&self) -> String {
        match self {
            Command::State(member, AdminState::Ready) => {
                format!("{member} is ready: neither drained nor in maintenance")
            }
            Command::State(member, AdminState::Drain) => format!("{member} drains"),
            Command::State(member, AdminState::Maintenance) => {
                format!("{member} is in maintenance")
            }
            Command::EndEjection(member) => {
                format!("{member} is not ejected, and its failures are forgotten")
            }
            Command::Weight(member, weight) => format!("{member} has weight {weight}"),
            Command::Backup(member, true) => format!("{member} is a backup"),
            Command::Backup(member, false) => format!("{member} is no backup"),
            Command::Alert(location, AlertSetting::Auto) => {
                format!("{location} is under alert according to its load")
            }
            Command::Alert(location, AlertSetting::On) => {
                format!("{location} is under alert: its clients leave")
            }
            Command::Alert(location, AlertSetting::Off) => {
                format!("{location} is under no alert at any load")
            }
        }
    }

    /// Returns the reasons for which a member that an administrator has made ready gets no new traffic all the same,
    /// as the end of the sentence of [`Command::effect`].
    pub(crate) fn remaining_reasons(&self, client: &Client) -> String {
        let Command::State(member, AdminState::Ready) = self else {
            return String::new();
        };
        // The command is done, whether this is known or not.
        let Ok(status) = member.ask_status(client) else {
            return String::new();
        };
        let ejection = status.ejection.as_ref().map(|ejection| {
            let ejection = ejection_line(ejection);
            let Member { group, name } = member;
            format!(" ({ejection}; `evenkeel ctl uneject {group} {name}` ends it)")
        });
        match status.reasons.as_slice() {
            [] => String::new(),
            reasons => format!(
                "; it gets no new traffic yet: {}{}",
                reasons.join(", "),
                ejection.unwrap_or_default()
            ),
        }
    }

    /// Returns the question that the user answers before the command is sent.
    pub(crate) fn question(&self) -> String {
        match self {
            Command::State(member, AdminState::Ready) => {
                format!("Let {member} take traffic again?")
            }
            Command::State(member, AdminState::Drain) => {
                format!("Drain {member}? It gets no new clients, and bound clients stay.")
            }
            Command::State(member, AdminState::Maintenance) => {
                format!(
                    "Set {member} to maintenance? It gets no requests, and bound clients are moved."
                )
            }
            Command::EndEjection(member) => {
                format!(
                    "End the ejection of {member}? It gets traffic, and its failures are forgotten."
                )
            }
            Command::Weight(member, weight) => format!("Set the weight of {member} to {weight}?"),
            Command::Backup(member, true) => {
                format!("Make {member} a backup? It gets traffic only while no other member may.")
            }
            Command::Backup(member, false) => format!("Let {member} serve as others do?"),
            Command::Alert(location, AlertSetting::Auto) => {
                format!("Let the load decide about alerts for {location}?")
            }
            Command::Alert(location, AlertSetting::On) => {
                format!("Set a load alert for {location}? Its clients leave it bit by bit.")
            }
            Command::Alert(location, AlertSetting::Off) => {
                format!("Suppress load alerts for {location}, whatever its load?")
            }
        }
    }
}
