//! Hook for a plan that moves clients between decisions: the clients of a group, and the members to which some of them
//! move.

use std::fmt;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::load::Location;
use crate::member::{Member, MemberId};
use crate::time::Instant;

/// A client that stays with its member until it is told to leave: its member, and the load that it seems to bring.
/// Groups in which clients are [relocated](Relocation) know their clients.
#[derive(Debug, Default)]
pub struct Client {
    /// The member's id plus one; 0 is none.
    member: AtomicU64,
    /// f32 bits; 0 is not known yet.
    load: AtomicU32,
}

impl Client {
    /// Member of the client; `None` if it has none, or none is known.
    pub fn member(&self) -> Option<MemberId> {
        let id = self.member.load(Ordering::Relaxed);
        id.checked_sub(1).map(MemberId)
    }

    /// Sets the client's member.
    pub fn set_member(&self, member: Option<MemberId>) {
        let id = member.map_or(0, |member| member.0.wrapping_add(1));
        self.member.store(id, Ordering::Relaxed);
    }

    /// The load that it seems to bring; `None` is not known yet.
    pub fn estimated_load(&self) -> Option<f32> {
        match self.load.load(Ordering::Relaxed) {
            0 => None,
            bits => Some(f32::from_bits(bits)),
        }
    }

    /// Says so.
    pub fn set_load(&self, load: f32) {
        let load = load.max(f32::MIN_POSITIVE);
        self.load.store(load.to_bits(), Ordering::Relaxed);
    }
}

/// Destination of a client that is relocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RelocationTarget {
    /// The member that gets the client; its own if it stays.
    pub to: MemberId,
    /// True if the decision is open as long as other clients may leave in its place.
    pub undecided: bool,
}

/// Plan that says which clients of a group leave their members, and for which members: a hook for a planner that works
/// between decisions ([`GroupState::relocate`]).
///
/// [`GroupState::relocate`]: crate::group::GroupState::relocate
pub trait Relocation: fmt::Debug + Send + Sync {
    /// Returns the move of a client that comes now; `None` if it is not moved. `at` is the index at which the client's
    /// member was last found in the group, and is brought up to date.
    fn ask(
        &self,
        members: &[Member],
        client: &Client,
        at: &mut usize,
        now: Instant,
    ) -> Option<RelocationTarget>;

    /// A client at `location` has waited in vain for others to leave in its place.
    fn give_up(&self, location: &Location, now: Instant);
}
