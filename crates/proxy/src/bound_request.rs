//! Requests and connections that are bound to members, and why others are not.

use evenkeel_core::address::Address;
use evenkeel_core::group::Ticket;
use evenkeel_core::member::MemberId;

use crate::access::MemberAttempts;

/// A request or connection bound to a member.
#[derive(Debug)]
pub(crate) struct BoundRequest {
    pub(crate) ticket: Ticket,
    pub(crate) member: MemberId,
    pub(crate) address: Address,
    /// Tries, which are kept for the access log and traces only.
    pub(crate) tries: Option<Box<MemberAttempts>>,
}

/// Reason why no member can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// No member is eligible.
    NoMember,
    /// All members are at their limits, and so is the queue for them.
    QueueFull,
    /// All members were at their limits for too long.
    QueueTimeout,
    /// The group is overloaded, and others come first.
    Overload,
    /// The connection is to be cut.
    Cut,
    /// The client went away while it waited.
    ClientGone,
}

impl Refusal {
    /// True if the group has refused the request, and another group may serve it.
    pub(crate) fn is_of_group(self) -> bool {
        !matches!(self, Refusal::Cut | Refusal::ClientGone)
    }
}
