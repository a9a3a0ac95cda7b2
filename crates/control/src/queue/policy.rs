//! Policy of a queue, and classes of requests.

use std::time::Duration;

/// Urgency of a request: of those that wait, the requests with the highest number are served first.
pub type Class = u8;

/// The highest class.
pub const HIGHEST: Class = 7;

/// Number of requests that may wait, and the waiting time from which there is an overload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Requests that may wait.
    pub limit: usize,
    /// Waiting times up to this one are no overload; `None` for none at all.
    pub target: Option<Duration>,
    /// Time for which waiting times must be above the target.
    pub interval: Duration,
    /// Requests that are not refused for having waited too long.
    pub keep: usize,
}

impl Policy {
    /// Returns a policy by which `limit` requests may wait, and nothing is an overload.
    pub fn with_limit(limit: usize) -> Self {
        Policy {
            limit,
            target: None,
            interval: Duration::from_secs(1),
            keep: 1,
        }
    }
}
