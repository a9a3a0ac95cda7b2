//! Place of a request in the queue of a balancer.

use std::ops::Deref;
use std::sync::Arc;

use evenkeel_control::queue::{Queue, QueuePosition};
use evenkeel_manager::snapshot::GroupHandle;

/// Leads to the queue of a group.
#[derive(Debug)]
pub(super) struct Line(pub(super) Arc<GroupHandle>);

impl Deref for Line {
    type Target = Queue;

    fn deref(&self) -> &Queue {
        &self.0.queue
    }
}

/// Request that waits.
#[derive(Debug)]
pub(super) struct WaitingRequest {
    pub(super) job: usize,
    pub(super) place: QueuePosition<Line>,
    pub(super) will_look: bool,
}
