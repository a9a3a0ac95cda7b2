//! Counters of the relays.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Counters of the relays of all workers.
#[derive(Debug, Default)]
pub struct Counters {
    /// Requests that were passed on.
    pub requests: AtomicU64,
    /// Requests that were sent again, to another member or over another connection.
    pub again: AtomicU64,
    /// Requests that got an exception of the balancer's own.
    pub failed: AtomicU64,
    /// Failed requests that the member did not answer in time.
    pub timeouts: AtomicU64,
    /// Connections to members that were opened.
    pub connects: AtomicU64,
    /// Connections to members that are open.
    pub open: AtomicUsize,
}

pub(super) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}
