//! Limits of a relay.

use std::time::Duration;

/// Limits of a relay.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Longest message, in bytes.
    pub max_message: usize,
    /// Bytes of replies that have not come in full, with all fragments, over all connections
    /// of a worker: the connection that would need more ends. As many bytes of requests may be
    /// under way, which are kept to be sent again; one more gets TRANSIENT.
    pub max_held: usize,
    /// Time limit for connecting to a member.
    pub connect_timeout: Duration,
    /// Time limit for a member's answer to a request.
    pub request_timeout: Duration,
    /// A connection to a member that is not used for so long is closed.
    pub idle_timeout: Duration,
    /// Most connections of one worker to a member, for clients with the same version of GIOP
    /// and the same code sets.
    pub connections: usize,
    /// Most times that a request is sent, the first time included.
    pub attempts: u8,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            max_message: 2 << 20,
            max_held: 256 << 20,
            connect_timeout: Duration::from_secs(3),
            request_timeout: Duration::from_secs(60),
            idle_timeout: Duration::from_secs(60),
            connections: 4,
            attempts: 3,
        }
    }
}
