//! Comparison of tickets and counts with the table of the program.

use std::collections::HashMap;

use evenkeel_core::time::Instant;
use evenkeel_kernel::bpf::BpfError;
use evenkeel_kernel::forward::{self as kernel, Connection, UdpSession};
use evenkeel_net::clock::monotonic_nanos;

use crate::engine::{Engine, IDLE};
use crate::failures::EntryKind;
use crate::limits::find_limit;
use crate::plan::PlannedRule;
use crate::records::Records;
use crate::terms::free_terms;
use crate::tickets::{Key, Seen, Tickets};

impl Engine {
    /// Removes connections that are over, and compares tickets and counts with the table.
    pub(crate) fn sweep(&mut self, rules: &[PlannedRule], now: Instant) -> Result<(), BpfError> {
        let now_ns = monotonic_nanos();
        self.tickets.begin_look(&mut self.homes);
        self.records.begin_look();
        self.nat.begin_sweep();
        if let Some(copies) = &mut self.copies {
            copies.begin_sweep(now_ns);
        }
        let over = self.look_at_connections(rules, now_ns)?;
        self.remove_connections(&over, now_ns)?;
        let (tickets, records) = (&mut self.tickets, &mut self.records);
        let parts = (&mut self.nat, &mut self.copies, &mut self.errors);
        self.sessions
            .sweep(&self.forwarder, rules, parts, |session| {
                note_session(session, tickets, records);
            })?;
        if let Some(copies) = &mut self.copies {
            copies.end_sweep(|| kernel::list_addresses().unwrap_or_default());
        }
        for (key, seat) in self.tickets.take_unknown() {
            let began = self.instant(key.1);
            self.tickets.hold(&mut self.homes, key, seat, began);
        }
        // A connection may have begun since the table was read.
        for event in self.forwarder.take_events()? {
            self.take_event(&event);
        }
        self.tickets.end_look(&mut self.homes, now);
        self.records.end_look();
        self.correct_counts()
    }

    /// Looks at the table of connections, and notes those that are open. Returns those that are to be removed.
    fn look_at_connections(
        &mut self,
        rules: &[PlannedRule],
        now_ns: u64,
    ) -> Result<Vec<Connection>, BpfError> {
        let mut limits = HashMap::new();
        for rule in rules.iter().filter(|rule| rule.udp.is_none()) {
            let limit = (rule.idle, rule.connect);
            limits.extend(rule.listeners.iter().map(|listener| (*listener, limit)));
        }
        let linger = kernel::choose_linger(self.connections, self.forwarder.read_capacity()?);
        let (mut over, mut connections) = (Vec::new(), 0);
        let (nat, copies) = (&mut self.nat, &mut self.copies);
        let (tickets, records) = (&mut self.tickets, &mut self.records);
        self.forwarder.visit_entries(|connection, entry| {
            connections += 1;
            nat.note(&connection);
            let mut copies = copies.as_mut();
            let is_ended = copies.as_mut().is_some_and(|one| one.is_over(&connection));
            // Most entries are over, and their limit is the same for all rules.
            let is_open = connection.is_open();
            let limit = is_open.then(|| limits.get(&connection.listener).copied());
            let limit = limit.flatten();
            let linger = nat.choose_linger(&connection, linger);
            let limit = find_limit(&connection, limit.unwrap_or((IDLE, IDLE)), linger);
            if is_ended || connection.find_silence(now_ns) > limit {
                over.push(connection);
            } else {
                note_connection(&connection, now_ns, tickets, records);
                if let Some(copies) = copies {
                    copies.note(&connection, &entry, now_ns);
                }
            }
        })?;
        self.connections = connections;
        Ok(over)
    }

    /// Removes connections, and notes those of which a packet has come since the look, and those that the kernel does not
    /// remove: the next sweep finds them again.
    fn remove_connections(&mut self, over: &[Connection], now_ns: u64) -> Result<(), BpfError> {
        let copies = &mut self.copies;
        let (tickets, records) = (&mut self.tickets, &mut self.records);
        for connection in over {
            if connection.is_open() && !connection.is_copied() {
                records.note_silence(connection.pair, connection.began_ns);
                if let Some(copies) = copies {
                    copies.note_silence(connection.pair);
                }
            }
        }
        self.connections -= over.len();
        let removed = self.forwarder.remove_connections(over, |connection| {
            self.connections += 1;
            note_connection(connection, now_ns, tickets, records);
            if let Some(copies) = copies {
                copies.note_packet(&connection.pair);
            }
        });
        self.errors.take(EntryKind::Connection, removed)?;
        Ok(())
    }

    /// Corrects counts that differ from the table for several sweeps, and frees seats of members that are gone. Later
    /// sweeps try again what the kernel refuses.
    fn correct_counts(&mut self) -> Result<(), BpfError> {
        let open = self.tickets.open();
        let mut free = Vec::new();
        for (seat, home) in &mut self.homes {
            let counts = self.forwarder.read_counts(*seat);
            let Some(counts) = self.errors.take(EntryKind::Member, counts)? else {
                continue;
            };
            let there = open.get(seat).copied().unwrap_or(0);
            let drift = counts.in_flight - there;
            let awaited = self.tickets.count_awaited(*seat);
            let counted = counts.requests.awaited;
            let compared = self
                .requests
                .compare(&self.forwarder, *seat, counted, awaited);
            self.errors.take(EntryKind::Member, compared)?;
            if home.drift.is_due(drift) {
                let by = i32::try_from(-drift).unwrap_or(0);
                let corrected = self.forwarder.correct_count(*seat, by);
                self.errors.take(EntryKind::Member, corrected)?;
            }
            let is_over = !home.is_used && !open.contains_key(seat) && home.tickets == 0;
            if is_over && !self.rows.has_seat(*seat) {
                free.push(*seat);
            }
        }
        let unclaimed = self.unclaimed.keys().copied();
        free.extend(unclaimed.filter(|seat| !open.contains_key(seat)));
        for seat in free {
            let freed = self.forwarder.set_terms(seat, &free_terms());
            if self.errors.take(EntryKind::Member, freed)?.is_none() {
                continue;
            }
            let home = self.homes.remove(&seat).map(|home| home.terms);
            if let Some(terms) = home.or_else(|| self.unclaimed.remove(&seat)) {
                self.seats.remove(&(terms.owner, terms.address));
            }
        }
        Ok(())
    }
}

/// Notes a connection of the table, if it is open.
fn note_connection(
    connection: &Connection,
    now_ns: u64,
    tickets: &mut Tickets,
    records: &mut Records,
) {
    let (key, seat) = ((connection.pair, connection.began_ns), connection.seat);
    if connection.is_copied() {
        tickets.note_copy(seat);
    } else if connection.is_open() {
        tickets.note_request(connection, now_ns);
        note(key, seat, connection.is_answered(), tickets, records);
    }
}

/// Notes an open session.
fn note_session(session: &UdpSession, tickets: &mut Tickets, records: &mut Records) {
    if session.is_copied() {
        tickets.note_copy(session.seat);
    } else {
        let key = (session.pair(), session.began_ns);
        note(key, session.seat, session.is_answered(), tickets, records);
    }
}

/// Notes an open connection, or a session.
fn note(key: Key, seat: u32, is_answered: bool, tickets: &mut Tickets, records: &mut Records) {
    records.note(&key);
    tickets.note(Seen {
        key,
        seat,
        is_answered,
    });
}
