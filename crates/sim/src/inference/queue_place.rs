//! Place of a request in the queue of a balancer.

use evenkeel_control::queue::QueuePosition;

use crate::queue_line::Line;

/// Request that waits.
#[derive(Debug)]
pub(super) struct WaitingRequest {
    pub(super) job: usize,
    pub(super) place: QueuePosition<Line>,
    pub(super) will_look: bool,
}
