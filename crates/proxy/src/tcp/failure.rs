//! Reasons why members could not be connected to.

use std::io;

use evenkeel_core::group::Outcome;
use evenkeel_limits::Shortage;

/// Reason why a member could not be connected to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectFailure {
    /// The member refused, or there is no way to it.
    Refused,
    /// The member did not answer in time.
    TimedOut,
    /// There was no agreement on TLS.
    NoTls,
    /// The request is for WebSocket, which the member does not take over HTTP/2.
    NoWebSocket,
    /// The process, or the machine, has run out of something: not the member's fault.
    Exhausted(Shortage),
    /// The client's connection is to be cut.
    Cut,
}

impl ConnectFailure {
    /// Returns the outcome that the failure means for the member.
    pub(crate) fn member_outcome(self) -> Outcome {
        match self {
            ConnectFailure::Refused | ConnectFailure::TimedOut | ConnectFailure::NoTls => {
                Outcome::Failure
            }
            ConnectFailure::NoWebSocket | ConnectFailure::Exhausted(_) | ConnectFailure::Cut => {
                Outcome::Cancelled
            }
        }
    }

    /// True if connecting to another member may go better: local ports are used up for each address
    /// by itself.
    pub(crate) fn is_of_one_member(self) -> bool {
        match self {
            ConnectFailure::Refused
            | ConnectFailure::TimedOut
            | ConnectFailure::NoTls
            | ConnectFailure::NoWebSocket => true,
            ConnectFailure::Exhausted(shortage) => shortage == Shortage::Ports,
            ConnectFailure::Cut => false,
        }
    }
}

impl From<io::Error> for ConnectFailure {
    fn from(error: io::Error) -> Self {
        Shortage::of_error(&error).map_or(ConnectFailure::Refused, ConnectFailure::Exhausted)
    }
}
