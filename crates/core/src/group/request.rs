//! What a decision may know of a request, and why it may find no member.

use std::net::IpAddr;

use crate::cost::Cost;
use crate::member::MemberId;
use crate::time::Instant;

/// What the decision may know about the request.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The current instant.
    pub now: Instant,
    /// The client, for strategies that hash it.
    pub client: Option<IpAddr>,
    /// Hash of what [`Group::wants_key`](super::Group::wants_key) names, if the request has it
    /// ([`crate::key::hash`]).
    pub key: Option<u64>,
    /// How much work it is, compared with others.
    pub cost: Cost,
    /// Members that are out of the question for this request: tried already, or not able
    /// to do what it asks for. In ascending order: there may be as many as members.
    pub tried: &'a [MemberId],
    /// If it may wait for a member, how many wait before it; `None` if it is to be decided now.
    pub ahead: Option<u32>,
    /// Why the client has no member any more, if it had one: what explanations say.
    pub unbound: Option<&'static str>,
    /// The member at which the client has a connection of its own, if it has one. Whoever carries the request looks at
    /// it; strategies do not.
    pub pinned: Option<MemberId>,
}

impl Request<'_> {
    /// A request about which nothing else is known.
    pub fn at(now: Instant) -> Self {
        Request {
            now,
            client: None,
            key: None,
            cost: Cost::ONE,
            tried: &[],
            ahead: None,
            unbound: None,
            pinned: None,
        }
    }
}

/// Answer of a chooser outside of the process about one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// The request is for this member.
    Member(MemberId),
    /// The chooser names no member, for this reason.
    Nobody(&'static str),
}

/// Why no member was picked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PickError {
    /// The group has no member that may be used (none at all, all drained, or all
    /// tried already).
    #[error("no member of the group may be used")]
    NoneEligible,
    /// Members may be used, but all are at their connection limit: wait or refuse.
    #[error("all members of the group are at their connection limit")]
    AllFull,
    /// The request is to wait until the member has room at which it will be done first.
    #[error("the request waits for a member that will have it done before any that has room")]
    Held,
}
