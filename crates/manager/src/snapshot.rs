//! What the data plane sees of the manager: rules and groups, replaced as a whole.

use std::sync::Arc;

use arc_swap::ArcSwap;
use evenkeel_core::group::Group;
use tokio::sync::Notify;

use crate::config::Rule;

/// All rules of one configuration. Workers receive each new one through a
/// `tokio::sync::watch` channel.
#[derive(Debug, Default)]
pub struct Snapshot {
    /// The rules, enabled or not.
    pub rules: Vec<Arc<RuleSnapshot>>,
}

/// A rule with the handle of its group.
#[derive(Debug)]
pub struct RuleSnapshot {
    /// The rule as configured.
    pub rule: Rule,
    /// Its group; the same handle over all snapshots in which the group exists.
    pub group: Arc<GroupHandle>,
}

/// A group over time: the current snapshot, and what outlives snapshots.
#[derive(Debug)]
pub struct GroupHandle {
    /// What `pick` works on now.
    pub current: ArcSwap<Group>,
    /// Told when a member got below its connection limit.
    pub room: Notify,
    /// Requests that may wait for `room`.
    pub max_queue: usize,
}
