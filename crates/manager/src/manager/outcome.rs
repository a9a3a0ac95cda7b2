//! What comes of questions and changes.

use std::time::SystemTime;

use evenkeel_core::load::{InvalidLoad, TooManyLoads};
use evenkeel_core::member::InvalidWeight;
use evenkeel_core::strategy::{self, ParamError};

use crate::config;
use crate::subsystem::ApplyError;

/// Whether clients should be sent to this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// Every enabled rule has a member that may be used.
    Ready,
    /// There is no configuration yet.
    NoConfig,
    /// An enabled rule has no member that may be used.
    NoMember,
}

/// A configuration that is in effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Applied {
    /// Which configuration of this process it is, from 1.
    pub generation: u64,
    /// What the user should know: what is probably not meant, and changes that need a
    /// restart.
    pub notes: Vec<String>,
}

/// A file that could not be put into effect. The old configuration goes on.
#[derive(Debug, thiserror::Error)]
pub enum ReloadError {
    /// The file is wrong.
    #[error(transparent)]
    Config(#[from] config::Errors),
    /// The file is right, but it cannot be done.
    #[error(transparent)]
    Apply(#[from] ApplyError),
}

/// How the last start or reload went.
#[derive(Clone, Debug)]
pub(crate) struct Reload {
    pub at: SystemTime,
    pub error: Option<String>,
}

/// A command that could not be carried out. Nothing has changed.
#[derive(Debug, thiserror::Error)]
pub enum ManageError {
    /// No such rule.
    #[error("there is no rule {0:?}")]
    NoRule(String),
    /// No such group.
    #[error("there is no group {0:?}")]
    NoGroup(String),
    /// No such member.
    #[error("group {group:?} has no member {member:?}")]
    NoMember {
        /// The group.
        group: String,
        /// What was asked for.
        member: String,
    },
    /// No such location.
    #[error("there is no member at location {0:?}")]
    NoLocation(String),
    /// No such strategy.
    #[error("there is no strategy {name:?}; there are {}", strategy_names())]
    NoStrategy {
        /// What was asked for.
        name: String,
    },
    /// The strategy does not take that.
    #[error(transparent)]
    Param(#[from] ParamError),
    /// Not a weight.
    #[error(transparent)]
    Weight(#[from] InvalidWeight),
    /// Not a load.
    #[error(transparent)]
    Load(#[from] InvalidLoad),
    /// The location keeps enough loads.
    #[error(transparent)]
    TooManyLoads(#[from] TooManyLoads),
    /// The data plane cannot do it.
    #[error(transparent)]
    Apply(#[from] ApplyError),
}

impl ManageError {
    /// Whether the command named something that is not there.
    pub fn is_not_found(&self) -> bool {
        matches!(
            self,
            ManageError::NoRule(_)
                | ManageError::NoGroup(_)
                | ManageError::NoMember { .. }
                | ManageError::NoLocation(_)
        )
    }
}

fn strategy_names() -> String {
    let names: Vec<_> = strategy::REGISTRY.iter().map(|kind| kind.name).collect();
    names.join(", ")
}
