//! Translation of a single route of requests: its groups, its status, and its routes of the configuration.

use std::any::Any;
use std::borrow::Cow;
use std::sync::Arc;

use evenkeel_config::GeneratedPart;

use super::super::backends::{NamedGroup, RuleGroups};
use super::super::conditions::Status;
use super::super::http::MatchRank;
use super::super::objects::{HttpRoute, Kind, ObjectName};
use super::super::route_key::age_of;
use super::super::text::{OwnedPart, Owner};
use super::HostRank;

/// Object that a route of the configuration comes from.
#[derive(Debug)]
pub(super) enum Source {
    Route(Arc<HttpRoute>),
    /// Time of the creation of another object, and its name.
    Other(String, ObjectName),
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
    /// Number of the listener.
    pub(super) listener: usize,
    pub(super) host: Option<String>,
    /// True if the route serves all requests for the host.
    pub(super) serves_all: bool,
    /// Lines below the header of the table.
    pub(super) lines: Box<str>,
}

impl GeneratedPart for Entry {
    fn text(&self) -> &str {
        &self.lines
    }
}

/// Returns the owner of the lines of a part.
pub(super) fn find_part_owner(part: &dyn GeneratedPart) -> Option<Cow<'_, Owner>> {
    let part: &dyn Any = part;
    if let Some(entry) = part.downcast_ref::<Entry>() {
        return Some(Cow::Borrowed(&entry.owner));
    }
    if let Some(group) = part.downcast_ref::<NamedGroup>() {
        return Some(Cow::Owned(Owner::Group(group.name().to_owned())));
    }
    let other = part.downcast_ref::<OwnedPart>()?;
    Some(Cow::Borrowed(&other.owner))
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

impl RouteTranslation {
    /// True if the route claims something that another one may have: a session name, a pool, or a service with a policy.
    pub(super) fn has_claims(&self) -> bool {
        !self.claims.is_empty() || !self.pools.is_empty() || !self.secured.is_empty()
    }
}
