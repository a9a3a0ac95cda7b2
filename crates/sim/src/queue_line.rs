//! Queue of a group in virtual time.

use std::ops::Deref;
use std::sync::Arc;

use evenkeel_control::queue::Queue;
use evenkeel_manager::snapshot::GroupHandle;

/// Leads to the queue of a group.
#[derive(Debug)]
pub(crate) struct Line(pub(crate) Arc<GroupHandle>);

impl Deref for Line {
    type Target = Queue;

    fn deref(&self) -> &Queue {
        &self.0.queue
    }
}
