//! Settings of a broker, its peers, and the times of its messages.

use std::net::SocketAddr;
use std::time::Duration;

/// Time for which a cookie may be used.
pub const COOKIE_LIFETIME: Duration = Duration::from_secs(20);

/// Time after which a Query that is not confirmed is sent again. It doubles each time.
pub const FIRST_RETRY: Duration = Duration::from_millis(200);

/// Longest time between two such Queries, where the interval is not longer.
pub const LAST_RETRY: Duration = Duration::from_secs(2);

/// After so many keepalives without any message an agent takes the broker for gone.
pub const SILENT_KEEPALIVES: u32 = 3;

/// Settings of how agents are to report, and what is kept of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Time between two Updates.
    pub interval: Duration,
    /// Intervals after which an alert that is not renewed ends.
    pub lease: u8,
    /// Longest time between two messages to an agent.
    pub keepalive: Duration,
    /// Time without a message after which an agent is forgotten; longer than [`COOKIE_LIFETIME`],
    /// or the agent's last Registration could be replayed.
    pub forget: Duration,
    /// Most agents.
    pub max_agents: usize,
}

/// Peer that datagrams come from and go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Peer {
    /// Index of the broker's socket.
    pub socket: usize,
    /// The address at the other end.
    pub address: SocketAddr,
}

impl Settings {
    /// Returns the time without a message after which an agent takes the broker for gone.
    pub(super) fn silence_limit(&self) -> Duration {
        let silence = self.keepalive * SILENT_KEEPALIVES;
        Duration::from_secs(silence.as_millis().div_ceil(1000).clamp(1, 65535) as u64)
    }
}
