//! Rounds through the table: which connections are sent when.

use std::net::{IpAddr, SocketAddr};

use super::outbox::{AGE, ENTRIES_PER_SECOND};

/// Sweeps of a round at least: a connection is sent every ten seconds.
const SLICES: u64 = 10;

/// Connections that a sweep sends again: half of what is allowed, so new connections and ends have room.
const PER_SWEEP: u64 = ENTRIES_PER_SECOND / 2;

/// Rounds through the table. Each sweep sends a slice of the connections, and those that are new.
#[derive(Debug)]
pub(super) struct Rounds {
    number: u64,
    slices: u64,
    slice: u64,
    /// True while all connections of this round were sent.
    is_complete: bool,
    /// True if somebody has no copy yet.
    is_anew: bool,
    /// Times of first packets of the connections that are new in this sweep: after the first, up to the second.
    new: (u64, u64),
    /// Connections of this balancer in the sweep before, and in this one.
    own: (u64, u64),
}

impl Rounds {
    pub(super) fn new(first: u64) -> Self {
        Rounds {
            number: first,
            slices: SLICES,
            slice: 0,
            is_complete: true,
            is_anew: true,
            new: (0, 0),
            own: (0, 0),
        }
    }

    /// Begins a round with the next sweep, which sends all connections as fast as is allowed.
    pub(super) fn begin_anew(&mut self) {
        self.is_anew = true;
    }

    pub(super) fn number(&self) -> u64 {
        self.number
    }

    pub(super) fn begin_sweep(&mut self, now_ns: u64) {
        let until = now_ns.saturating_sub(AGE.as_nanos() as u64);
        self.new = (self.new.1, until);
        self.own = (self.own.1, 0);
        if self.is_anew || self.slice >= self.slices {
            let least = if self.is_anew { 1 } else { SLICES };
            self.slices = self.own.0.div_ceil(PER_SWEEP).max(least);
            (self.slice, self.is_complete, self.is_anew) = (0, true, false);
            self.number += 1;
        }
    }

    /// True if a session of this balancer is to be sent now: new ones, too, wait for their part of the round.
    pub(super) fn wants_again(&mut self, client: SocketAddr) -> bool {
        self.own.1 += 1;
        find_slice(client, self.slices) == self.slice
    }

    /// True if a connection of this balancer is to be sent now.
    pub(super) fn wants(&mut self, client: SocketAddr, began_ns: u64) -> bool {
        self.own.1 += 1;
        let (after, until) = self.new;
        let is_new = began_ns > after;
        began_ns <= until && (is_new || find_slice(client, self.slices) == self.slice)
    }

    /// Notes that a connection goes out, or has found no room.
    pub(super) fn note_sent(&mut self, is_kept: bool) {
        self.is_complete &= is_kept;
    }

    /// Ends a sweep. Returns the number of the round if the round is over, and has sent all connections.
    pub(super) fn end_sweep(&mut self) -> Option<u64> {
        self.slice += 1;
        (self.slice == self.slices && self.is_complete).then_some(self.number)
    }
}

/// Returns the slice of a client.
fn find_slice(client: SocketAddr, slices: u64) -> u64 {
    let ip = match client.ip() {
        IpAddr::V4(ip) => u64::from(ip.to_bits()),
        IpAddr::V6(ip) => (ip.to_bits() ^ ip.to_bits() >> 64) as u64,
    };
    let mixed = (ip << 16 | u64::from(client.port())).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 32) % slices.max(1)
}
