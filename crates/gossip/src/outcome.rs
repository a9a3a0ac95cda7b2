//! Outcomes of datagrams, counted.

use std::collections::HashMap;

use evenkeel_wire::reporting::message::Invalid;
use evenkeel_wire::window::WindowError;

/// Outcome of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum Outcome {
    /// The datagram was heard.
    Taken,
    /// Somebody has said who it is, and got a token. Said again by somebody else it does no more.
    Greeted,
    /// The datagram is none of this protocol, or of somebody who has no key.
    #[strum(transparent)]
    Invalid(Invalid),
    /// Datagram with a token that this process has not given, or no longer takes: sent before one
    /// of both has restarted, or again by somebody else.
    Foreign,
    /// The datagram came before.
    Duplicate,
    /// The datagram is so old that the network cannot have kept it: sent again by somebody else.
    Replayed,
    /// The answer to a question that was not asked, or long ago.
    Unasked,
    /// Datagram from this balancer itself, or from another one that says that it is at its address.
    Own,
    /// There are as many balancers as there may be.
    Full,
}

impl Outcome {
    /// All outcomes, in the order in which they are counted.
    pub const ALL: [Outcome; 16] = [
        Outcome::Taken,
        Outcome::Greeted,
        Outcome::Invalid(Invalid::Truncated),
        Outcome::Invalid(Invalid::Oversized),
        Outcome::Invalid(Invalid::Magic),
        Outcome::Invalid(Invalid::Version),
        Outcome::Invalid(Invalid::Kind),
        Outcome::Invalid(Invalid::Key),
        Outcome::Invalid(Invalid::Tag),
        Outcome::Invalid(Invalid::Malformed),
        Outcome::Foreign,
        Outcome::Duplicate,
        Outcome::Replayed,
        Outcome::Unasked,
        Outcome::Own,
        Outcome::Full,
    ];

    /// The name in metrics.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

impl From<WindowError> for Outcome {
    fn from(late: WindowError) -> Self {
        match late {
            WindowError::Duplicate => Outcome::Duplicate,
            WindowError::Reordered => Outcome::Taken,
            WindowError::Replayed => Outcome::Replayed,
        }
    }
}

/// Counters of what has happened since the start.
#[derive(Clone, Debug, Default)]
pub struct Counters {
    received: HashMap<Outcome, u64>,
    /// Datagrams that were sent.
    pub sent: u64,
    /// Bytes of the datagrams that were sent, with the headers of IP and UDP.
    pub sent_bytes: u64,
    /// Bytes of the datagrams that were received, with these headers.
    pub received_bytes: u64,
    /// Number of times that this balancer took over the alerts of a group, from nobody or from
    /// another one.
    pub claims: u64,
    /// Number of times that this balancer has found that another one is gone.
    pub missed: u64,
    /// Prompts at engines that this balancer has told the others.
    pub prompts_told: u64,
    /// Prompts at engines, or parts of them, that others have told and that were taken.
    pub prompts_heard: u64,
}

/// Length of the headers of IPv4 and UDP, in bytes.
const HEADERS: u64 = 28;

impl Counters {
    /// Datagrams by what has become of them, each kind once.
    pub fn received_datagrams(&self) -> impl Iterator<Item = (Outcome, u64)> + '_ {
        let count = |outcome| (outcome, self.received.get(&outcome).copied().unwrap_or(0));
        Outcome::ALL.into_iter().map(count)
    }

    pub(crate) fn count(&mut self, outcome: Outcome, len: usize) {
        *self.received.entry(outcome).or_default() += 1;
        self.received_bytes += HEADERS + u64::try_from(len).unwrap_or(0);
    }

    pub(crate) fn count_sent(&mut self, len: usize) {
        self.sent += 1;
        self.sent_bytes += HEADERS + u64::try_from(len).unwrap_or(0);
    }
}
