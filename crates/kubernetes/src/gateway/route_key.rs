//! Order of routes: the oldest first.

use std::cmp::Ordering;
use std::sync::Arc;

use super::objects::{HttpRoute, Kind, Metadata};

/// Returns what the age of objects is compared by.
pub(crate) fn age_of(of: &Metadata) -> (&str, &str, &str) {
    (&of.creation_timestamp, &of.namespace, &of.name)
}

/// Route of requests, in the order of age.
#[derive(Clone, Debug)]
pub(crate) struct RouteKey {
    pub(crate) kind: Kind,
    pub(crate) route: Arc<HttpRoute>,
}

impl Ord for RouteKey {
    fn cmp(&self, other: &Self) -> Ordering {
        let by_age = age_of(&self.route.metadata).cmp(&age_of(&other.route.metadata));
        by_age.then_with(|| self.kind.cmp(&other.kind))
    }
}

impl PartialOrd for RouteKey {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Compares routes by their place in the order: an object that has changed has the place that it had.
impl PartialEq for RouteKey {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for RouteKey {}
