//! Members for which the tables of the program have no seat.

use std::collections::HashSet;
use std::mem;
use std::net::SocketAddr;

/// Members without a seat, by their owners' numbers and their addresses.
#[derive(Debug, Default)]
pub(crate) struct Seatless {
    before: HashSet<(u64, SocketAddr)>,
    /// Members without a seat in this round.
    now: HashSet<(u64, SocketAddr)>,
}

impl Seatless {
    /// Begins a round. Seats become free between rounds only.
    pub(crate) fn begin_round(&mut self) {
        self.before = mem::take(&mut self.now);
    }

    /// True if a member of this round has found no seat: there is none for others either.
    pub(crate) fn is_full(&self) -> bool {
        !self.now.is_empty()
    }

    /// Notes a member without a seat. Returns false if the member had none in the round before either.
    pub(crate) fn note(&mut self, owner: u64, address: SocketAddr) -> bool {
        self.now.insert((owner, address));
        !self.before.contains(&(owner, address))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s41_a_member_without_a_seat_is_told_once() {
        let address = |port| SocketAddr::from(([10, 0, 0, 1], port));
        let mut seatless = Seatless::default();
        seatless.begin_round();
        assert!(!seatless.is_full());
        assert!(seatless.note(1, address(80)));
        assert!(seatless.is_full());
        seatless.begin_round();
        assert!(!seatless.is_full());
        assert!(!seatless.note(1, address(80)));
        assert!(seatless.note(2, address(80)), "of another group");
        // The first one is gone, and comes back.
        seatless.begin_round();
        assert!(!seatless.note(2, address(80)));
        seatless.begin_round();
        assert!(seatless.note(1, address(80)));
    }
}
