//! When members that fail are taken out for a while.

use std::time::Duration;

/// Passive health: what makes the failures of a member too many, and how long it is out then.
#[derive(Clone, Debug, PartialEq)]
pub struct EjectionSettings {
    /// Failures in a row after which a member is ejected.
    pub failure_limit: u32,
    /// The time over which requests and failures are counted, in whole seconds: at most
    /// [`Window::SECONDS`](crate::observe::Window::SECONDS).
    pub window: Duration,
    /// Requests within the window below which a share of failures says nothing.
    pub min_requests: u32,
    /// By how much the share of failures must exceed that of the other members.
    pub excess: f32,
    /// How long the first ejection lasts.
    pub time: Duration,
    /// How long any ejection lasts at most.
    pub max_time: Duration,
}

impl Default for EjectionSettings {
    fn default() -> Self {
        EjectionSettings {
            failure_limit: 5,
            window: Duration::from_secs(10),
            min_requests: 20,
            excess: 0.2,
            time: Duration::from_secs(10),
            max_time: Duration::from_secs(300),
        }
    }
}
