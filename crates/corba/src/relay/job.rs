//! A request on its way.

use std::cell::Cell;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;

use evenkeel_core::group::{Outcome, Ticket};
use evenkeel_core::member::MemberId;
use evenkeel_core::time::Instant;
use evenkeel_giop::context::CodeSets;
use evenkeel_giop::server::DeferredReply;

use crate::directory::Entry;
use crate::reply_to::ReplyTo;

/// A request that was taken from a client and is not answered yet.
pub(super) struct Job {
    pub(super) entry: Arc<Entry>,
    /// The client's connection.
    pub(super) client: u64,
    pub(super) address: IpAddr,
    pub(super) code_sets: Option<CodeSets>,
    /// Address and form of the answer.
    pub(super) reply_to: ReplyTo,
    /// Handle for the later answer; `None` for a oneway request.
    pub(super) later: Option<DeferredReply>,
    /// The whole message as it came.
    pub(super) message: Vec<u8>,
    /// Positions at which the fragments of the message were joined.
    pub(super) joints: Vec<usize>,
    pub(super) _kept: Kept,
    pub(super) _of_client: Rc<()>,
    /// The member that has it.
    pub(super) bound: Option<(MemberId, Ticket)>,
    pub(super) tried: Tried,
    /// Number of times that the request was sent.
    pub(super) attempts: u8,
    /// Number of times that the request was forwarded or readdressed.
    pub(super) hops: u8,
    pub(super) deadline: Instant,
}

impl Job {
    /// The member has done with it, and is not to get it again.
    pub(super) fn finish(&mut self, outcome: Outcome, now: Instant) {
        if let Some((member, ticket)) = self.bound.take() {
            self.tried.add(member);
            ticket.finish(outcome, now);
        }
    }

    /// Returns true if nobody waits for an answer.
    pub(super) fn is_unwanted(&self) -> bool {
        self.later.as_ref().is_none_or(DeferredReply::is_gone)
    }
}

/// The bytes of a request, counted until it ends.
pub(super) struct Kept {
    all: Rc<Cell<usize>>,
    bytes: usize,
}

impl Kept {
    pub(super) fn new(all: &Rc<Cell<usize>>, bytes: usize) -> Self {
        all.set(all.get() + bytes);
        let all = Rc::clone(all);
        Kept { all, bytes }
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.all.set(self.all.get().saturating_sub(self.bytes));
    }
}

/// Members that were tried, in ascending order, as many as there is room for.
#[derive(Clone, Copy)]
pub(super) struct Tried {
    ids: [MemberId; 8],
    len: usize,
}

impl Default for Tried {
    fn default() -> Self {
        Tried {
            ids: [MemberId(0); 8],
            len: 0,
        }
    }
}

impl Tried {
    pub(super) fn ids(&self) -> &[MemberId] {
        self.ids.get(..self.len).unwrap_or_default()
    }

    /// Adds one; answers whether that is new, and there was room.
    pub(super) fn add(&mut self, id: MemberId) -> bool {
        let new = !self.ids().contains(&id);
        match self.ids.get_mut(self.len) {
            Some(place) if new => *place = id,
            _ => return false,
        }
        self.len += 1;
        if let Some(ids) = self.ids.get_mut(..self.len) {
            ids.sort_unstable();
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_remembered_in_order_and_once() {
        let mut tried = Tried::default();
        for id in [5, 1, 5, 3] {
            assert_eq!(tried.add(MemberId(id)), id != 5 || tried.len == 1);
        }
        assert_eq!(tried.ids(), [MemberId(1), MemberId(3), MemberId(5)]);
        for id in 10..15 {
            assert!(tried.add(MemberId(id)));
        }
        assert!(!tried.add(MemberId(20)));
        assert_eq!(tried.ids().len(), 8);
    }
}
