//! Outcomes of datagrams, counted.

use std::collections::HashMap;

use evenkeel_core::load::LoadId;

use crate::reporting::message::Invalid;
use crate::window::WindowError;

/// Outcome of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum Outcome {
    /// A Registration without a cookie, or with one that is of no use any more: the agent
    /// has to prove its address first.
    Challenged,
    /// A Registration: the agent is known from now on.
    Registered,
    /// A report.
    Updated,
    /// The agent has signed off.
    Stopped,
    /// Bytes that are no message.
    #[strum(transparent)]
    Invalid(Invalid),
    /// Message from an agent that is not known (any more). The agent is asked to register again.
    UnknownIdentifier,
    /// The datagram came before. A repeated Registration or Stop is answered again.
    Duplicate,
    /// A later message came before it.
    Reordered,
    /// The datagram is so old that the network cannot have kept it: sent again by somebody else, or
    /// by an agent of which another one has taken the place.
    Replayed,
    /// A report of which some load is not a number, infinite, negative or absurd. All else
    /// in it counts.
    Load,
    /// A report of which some load has no number that is known here, and the location has
    /// no room for it. All else in it counts.
    TooManyLoads,
    /// There are as many agents as there may be.
    Full,
}

impl Outcome {
    /// All outcomes, in the order in which they are counted.
    pub const ALL: [Outcome; 19] = [
        Outcome::Challenged,
        Outcome::Registered,
        Outcome::Updated,
        Outcome::Stopped,
        Outcome::Invalid(Invalid::Truncated),
        Outcome::Invalid(Invalid::Oversized),
        Outcome::Invalid(Invalid::Magic),
        Outcome::Invalid(Invalid::Version),
        Outcome::Invalid(Invalid::Kind),
        Outcome::Invalid(Invalid::Key),
        Outcome::Invalid(Invalid::Tag),
        Outcome::Invalid(Invalid::Malformed),
        Outcome::UnknownIdentifier,
        Outcome::Duplicate,
        Outcome::Reordered,
        Outcome::Replayed,
        Outcome::Load,
        Outcome::TooManyLoads,
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
            WindowError::Reordered => Outcome::Reordered,
            WindowError::Replayed => Outcome::Replayed,
        }
    }
}

/// Counters of what has happened since the start.
#[derive(Clone, Debug, Default)]
pub struct Counters {
    pub(super) received: HashMap<Outcome, u64>,
    /// Messages that were sent: answers and Queries.
    pub sent: u64,
    /// Updates that were sent and never came, over all agents.
    pub lost: u64,
    /// Registrations that took the place of another live agent of the same name.
    pub displaced: u64,
    /// Agents that were forgotten because they were silent.
    pub forgotten: u64,
    /// The last load that was not taken, of which location, and why: for the log.
    pub untaken: Option<Untaken>,
}

/// A load in an Update that was not taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Untaken {
    /// Location to which the load belongs.
    pub location: String,
    /// Id of the load.
    pub load: LoadId,
    /// [`Outcome::Load`] or [`Outcome::TooManyLoads`].
    pub outcome: Outcome,
}

impl Counters {
    /// Datagrams by what has become of them, each kind once.
    pub fn received_by_outcome(&self) -> impl Iterator<Item = (Outcome, u64)> + '_ {
        let count = |outcome| (outcome, self.received.get(&outcome).copied().unwrap_or(0));
        Outcome::ALL.into_iter().map(count)
    }
}
