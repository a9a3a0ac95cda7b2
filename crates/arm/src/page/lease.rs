//! The time for which an alert in a page holds.

use std::time::Duration;

/// The longest alert. It is a guard against garbage: agents should write much shorter
/// ones again and again, so that an alert does not outlive the agent that gave it.
pub const LEASE_MAX: Duration = Duration::from_secs(600);

/// Lease of an alert: the time for which it holds. The alert ends by itself, so that a server
/// is not turned away from for ever when its agent dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// End of the lease, on the clock of [`monotonic_nanos`](super::monotonic_nanos).
    pub until: u64,
}

impl Lease {
    /// A lease from `now` for `length`.
    pub fn new(now: u64, length: Duration) -> Self {
        Self {
            until: now.saturating_add(nanos(length)),
        }
    }

    /// The lease in a page, if it holds: neither over nor garbage.
    pub(super) fn parse(until: u64, now: u64) -> Option<Self> {
        let holds = until > now && until - now <= nanos(LEASE_MAX);
        holds.then_some(Self { until })
    }
}

pub(super) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
