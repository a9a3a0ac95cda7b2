//! A request as decisions know it, and the reasons for which no member is found.

use std::net::IpAddr;

use evenkeel_inference::group::RequestPlan;

use crate::cost::Cost;
use crate::member::MemberId;
use crate::time::Instant;

/// Properties of a request that a decision may use.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The current instant.
    pub now: Instant,
    /// The client, for strategies that hash it.
    pub client: Option<IpAddr>,
    /// Hash of what [`Group::wants_key`](super::Group::wants_key) names, if the request has it
    /// ([`crate::key::hash`]).
    pub key: Option<u64>,
    /// Work of the request, relative to others.
    pub cost: Cost,
    /// Members that are out of the question for this request: tried already, or not able
    /// to do what it asks for. In ascending order: there may be as many as members.
    pub excluded_members: &'a [MemberId],
    /// Number of requests that wait before this one, if it may wait for a member; `None` if it must be decided now.
    pub ahead: Option<u32>,
    /// Reason for which the client has no member any more, if it had one: shown by explanations.
    pub unbound: Option<&'static str>,
    /// The member at which the client has a connection of its own, if it has one. The carrier of the request uses it;
    /// strategies do not.
    pub pinned: Option<MemberId>,
    /// Prompt of the request and what members have read of it, for strategy `inference`.
    pub plan: Option<&'a RequestPlan<'a>>,
}

impl Request<'_> {
    /// A request about which nothing else is known.
    pub fn at_time(now: Instant) -> Self {
        Request {
            now,
            client: None,
            key: None,
            cost: Cost::ONE,
            excluded_members: &[],
            ahead: None,
            unbound: None,
            pinned: None,
            plan: None,
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

/// Reason for which no member was picked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PickError {
    /// The group has no member that may be used (none at all, all drained, or all
    /// tried already).
    #[error("no member of the group may be used")]
    NoneEligible,
    /// Members may be used, but all are at their connection limit: wait or refuse.
    #[error("all members of the group are at their connection limit")]
    AllFull,
    /// The request waits until the member that will have it done first has room.
    #[error(
        "the request waits for a member without room that is expected to finish it before any member with room"
    )]
    Held,
    /// The request waits until a member is expected to send the first token in time
    /// ([`ttft_target`](super::InferenceSettings::ttft_target)).
    #[error("no member is expected to send the first token in time")]
    Late,
}
