//! State of a group: its holder, and its locations under alert.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;

use evenkeel_core::time::Instant;

/// A group.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    pub(crate) name: Arc<str>,
    /// Epoch of the claim that counts, or counted last.
    pub(crate) epoch: u64,
    pub(crate) holder: Option<Holder>,
    /// Locations under alert, and since when.
    pub(crate) raised: BTreeMap<u64, Instant>,
    /// Claim of this balancer, as a number of its notes.
    pub(crate) claim: Option<u64>,
    /// Locations whose alert this balancer has lifted, and the number of the note that says so.
    pub(crate) lifting: Vec<(u64, u64)>,
    /// Locations that count as under alert, and until when.
    pub(crate) held: Vec<(u64, Instant)>,
}

/// Process that holds a group: not only a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Holder {
    pub(crate) address: SocketAddr,
    pub(crate) node: u64,
    pub(crate) session: u64,
}

impl Group {
    pub(crate) fn new(name: Arc<str>) -> Self {
        Group {
            name,
            epoch: 0,
            holder: None,
            raised: BTreeMap::new(),
            claim: None,
            lifting: Vec::new(),
            held: Vec::new(),
        }
    }

    /// Returns the number of locations that are under alert anywhere by this holder's own word:
    /// here, or with others that have not confirmed the end.
    pub(crate) fn certain(&self) -> usize {
        let lifting = self.lifting.iter().map(|(location, _)| location);
        let elsewhere = lifting.filter(|location| !self.raised.contains_key(location));
        self.raised.len() + elsewhere.collect::<BTreeSet<_>>().len()
    }

    /// Returns the number of locations that may be under alert anywhere.
    pub(crate) fn counted(&self) -> usize {
        let others = self.lifting.iter().map(|(location, _)| location);
        let others = others.chain(self.held.iter().map(|(location, _)| location));
        let others = others.filter(|location| !self.raised.contains_key(location));
        self.raised.len() + others.collect::<BTreeSet<_>>().len()
    }

    /// Returns true if there is room for an alert of one more location.
    pub(crate) fn has_room_for(&self, location: u64, allowed: usize) -> bool {
        let lifting = self.lifting.iter().any(|(lifted, _)| *lifted == location);
        let held = self.held.iter().any(|(held, _)| *held == location);
        // What counts by caution may be more than is allowed, where another holder has decided
        // since: it takes room from others, and gives none.
        lifting || (self.certain() < allowed && (held || self.counted() < allowed))
    }
}
