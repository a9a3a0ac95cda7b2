//! Translation of a single route of requests: its groups, its status, and its routes of the configuration.

use std::sync::Arc;

use super::super::backends::NamedGroup;
use super::super::conditions::Status;
use super::super::http::MatchRank;
use super::super::objects::{HttpRoute, Kind, Metadata, ObjectName};
use super::super::text::Owner;
use super::HostRank;

/// Object that a route of the configuration comes from.
#[derive(Debug)]
pub(super) enum Source {
    Route(Arc<HttpRoute>),
    /// Time of the creation of another object, and its name.
    Other(String, ObjectName),
}

/// Returns what the age of objects is compared by.
pub(super) fn age_of(of: &Metadata) -> (&str, &str, &str) {
    (&of.creation_timestamp, &of.namespace, &of.name)
}

impl Source {
    /// Returns what the age of objects is compared by.
    pub(super) fn age(&self) -> (&str, &str, &str) {
        match self {
            Source::Route(route) => age_of(&route.metadata),
            Source::Other(creation, name) => (creation, &name.namespace, &name.name),
        }
    }
}

/// Route of the configuration.
#[derive(Debug)]
pub(super) struct Entry {
    /// Precedence of the listener's host name, of the own one, and of the conditions.
    pub(super) ranks: (HostRank, HostRank, MatchRank),
    pub(super) source: Source,
    pub(super) kind: Kind,
    /// Numbers of the rule, of the match, and of the entry among all of the object.
    pub(super) numbers: (usize, usize, usize),
    /// Number of the translation that the entry is part of.
    pub(super) serial: u64,
    pub(super) owner: Arc<Owner>,
    pub(super) host: Option<String>,
    /// True if the route serves all requests for the host.
    pub(super) serves_all: bool,
    /// Lines below the header of the table.
    pub(super) lines: String,
}

/// Groups of a rule.
#[derive(Debug)]
pub(super) struct RuleGroups {
    pub(super) owner: Arc<Owner>,
    /// All groups that the rule names.
    pub(super) groups: Vec<Arc<NamedGroup>>,
    /// True if the rule is part of the configuration.
    pub(super) is_used: bool,
}

/// Session name that a rule wants for a group.
#[derive(Debug)]
pub(super) struct SessionClaim {
    pub(super) owner: Arc<Owner>,
    pub(super) host: Option<String>,
    pub(super) cookie: String,
    pub(super) group: String,
}

/// Translation of a route.
#[derive(Debug)]
pub(super) struct RouteTranslation {
    pub(super) rules: Vec<RuleGroups>,
    pub(super) needs_nobody: bool,
    pub(super) claims: Vec<SessionClaim>,
    /// Pools to which the route sends requests, with the gateways of the requests.
    pub(super) pools: Vec<(ObjectName, ObjectName)>,
    /// Services with a policy to which the route sends requests, with the gateways of the requests.
    pub(super) secured: Vec<(ObjectName, ObjectName)>,
    /// Numbers of the listeners that count the route.
    pub(super) listeners: Vec<usize>,
    pub(super) status: Arc<Status>,
}
