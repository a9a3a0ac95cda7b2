//! The user behind a request, and what the user may do.

use std::net::IpAddr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Role of a user. Each role may do what the roles before it may.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, JsonSchema, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Sees everything but secrets.
    View,
    /// Changes what lasts until the next restart: states, weights, strategies, alerts.
    Operate,
    /// Changes the configuration, too.
    Administer,
}

impl Role {
    /// Returns the role of this name.
    pub fn of_name(name: &str) -> Option<Self> {
        let all = [Role::View, Role::Operate, Role::Administer];
        all.into_iter().find(|role| role.name() == name)
    }

    /// Returns the role's name, as in files of users and in answers.
    pub fn name(self) -> &'static str {
        match self {
            Role::View => "view",
            Role::Operate => "operate",
            Role::Administer => "administer",
        }
    }
}

/// User who has sent a request. The guard puts an actor into the extensions of each request that it lets
/// through.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Actor {
    /// The name of the user. `token` is whoever knows the token of the configuration, `local` somebody on this machine where nobody needs to
    /// say who it is, `certificate` somebody with a certificate.
    pub(crate) user: String,
    /// Role that says what the user may do.
    pub(crate) role: Role,
    /// Address that the request comes from.
    pub(crate) from: Option<IpAddr>,
    /// Second secret, which requests of a session that change anything carry; `None` where there is no
    /// session.
    pub(crate) csrf: Option<String>,
}
