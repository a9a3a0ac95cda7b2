//! Ejections of members, as the balancers of a fleet announce them.

use std::collections::BTreeMap;

use evenkeel_core::time::Instant;

use crate::id::Id;

/// Ejection of a member of a group by a balancer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ejection {
    /// The [number](evenkeel_core::key) of the member's address.
    pub member: u64,
    /// End of the ejection: a day from now at most.
    pub until: Instant,
    /// Number of its own requests by which the balancer has judged.
    pub requests: u32,
    /// Number of these requests that failed: not more than there were.
    pub failures: u32,
}

/// Ejections of the fleet.
#[derive(Debug, Default)]
pub(crate) struct Ejections {
    /// Ejections that this balancer has told, by group.
    pub(crate) told: BTreeMap<u64, Vec<Ejection>>,
    /// Ejections of other balancers, by group.
    pub(crate) heard: BTreeMap<u64, Vec<(Id, Ejection)>>,
    /// True if `heard` is to be gathered again.
    pub(crate) is_stale: bool,
}

impl Ejections {
    /// Notices that others say something else.
    pub(crate) fn note_change(&mut self) {
        self.is_stale = true;
    }
}
