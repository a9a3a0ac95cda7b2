//! Connections and sessions of the kernel, as a look at its tables finds them.

use std::collections::HashMap;

use evenkeel_core::group::Ticket;
use evenkeel_kernel::forward::{Awaited, Connection, Pair};

/// Addresses of a connection or a session, and the time of the first packet.
pub(crate) type Key = (Pair, u64);

/// Connections and sessions of the kernel, with their tickets.
pub(crate) type Tickets = HashMap<Key, Held>;

/// Connection of the kernel, with its ticket.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) seat: u32,
    /// `None` if the member was at its limit, or is no longer in the group.
    pub(crate) ticket: Option<Ticket>,
    pub(crate) is_answered: bool,
    /// Number of the last sweep that has seen the connection.
    pub(crate) sweep: u32,
}

/// Connections that a look at the table has found.
pub(crate) struct Look {
    /// Number of the sweep.
    pub(crate) sweep: u32,
    /// Time of the look by the machine's clock, in nanoseconds.
    now_ns: u64,
    /// Requests without an answer of each seat.
    pub(crate) awaited: HashMap<u32, Awaited>,
    /// Number of open connections of each seat.
    pub(crate) open: HashMap<u32, i64>,
    /// Open connections that are not held, with their seats: the process before has got their events, or there was no
    /// place for an event.
    pub(crate) unknown: Vec<(Key, u32)>,
}

impl Look {
    /// Returns a look before anything was found.
    pub(crate) fn new(sweep: u32, now_ns: u64) -> Self {
        Look {
            sweep,
            now_ns,
            awaited: HashMap::new(),
            open: HashMap::new(),
            unknown: Vec::new(),
        }
    }

    /// Notes a connection of the table.
    pub(crate) fn note(&mut self, connection: &Connection, held: &mut Tickets) {
        if connection.is_open() {
            let key = (connection.pair, connection.began_ns);
            let awaited = self.awaited.entry(connection.seat).or_default();
            awaited.add(connection, self.now_ns);
            self.note_open(key, connection.seat, held);
        }
    }

    /// Notes an open connection, or a session.
    pub(crate) fn note_open(&mut self, key: Key, seat: u32, held: &mut Tickets) {
        *self.open.entry(seat).or_default() += 1;
        match held.get_mut(&key) {
            Some(held) => held.sweep = self.sweep,
            None => self.unknown.push((key, seat)),
        }
    }
}
