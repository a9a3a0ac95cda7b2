//! Limits of a client.

use std::time::Duration;

/// Limits of a client.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Time limit of one attempt to connect.
    pub connect_timeout: Duration,
    /// Time after which a connection on which nothing is outstanding is closed.
    pub idle_timeout: Duration,
    /// Longest reply, in bytes.
    pub max_message: usize,
    /// Most calls under way on one connection; further ones wait.
    pub max_pending: usize,
    /// Most forwards that one call follows.
    pub max_forwards: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            connect_timeout: Duration::from_secs(5),
            idle_timeout: Duration::from_secs(60),
            max_message: 16 << 20,
            max_pending: 256,
            max_forwards: 8,
        }
    }
}
