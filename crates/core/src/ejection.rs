//! Settings for the ejection of members that fail.

use std::time::Duration;

/// Settings of passive health: the failures for which a member is ejected, and the time of the ejection.
#[derive(Clone, Debug, PartialEq)]
pub struct EjectionSettings {
    /// Failures in a row after which a member is ejected.
    pub failure_limit: u32,
    /// The time over which requests and failures are counted, in whole seconds: at most
    /// [`Window::SECONDS`](crate::observe::Window::SECONDS).
    pub window: Duration,
    /// Requests within the window below which a share of failures says nothing.
    pub min_requests: u32,
    /// Difference by which the share of failures must exceed that of the other members.
    pub excess: f32,
    /// Length of the first ejection.
    pub time: Duration,
    /// Longest time of any ejection.
    pub max_time: Duration,
    /// True if requests that can be sent again try ejected members, which are in again once they answer well.
    pub trials: bool,
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
            trials: true,
        }
    }
}
