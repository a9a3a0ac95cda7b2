//! Comparison of tickets and counts with the table of the program.

use std::collections::HashMap;
use std::mem;

use evenkeel_core::group::Outcome;
use evenkeel_core::time::Instant;
use evenkeel_kernel::bpf::BpfError;
use evenkeel_kernel::forward as kernel;
use evenkeel_net::clock::monotonic_nanos;

use crate::engine::{Engine, IDLE};
use crate::limits::find_limit;
use crate::look::Look;
use crate::plan::PlannedRule;
use crate::terms::free_terms;

impl Engine {
    /// Removes connections that are over, and compares tickets and counts with the table.
    pub(crate) fn sweep(&mut self, rules: &[PlannedRule], now: Instant) -> Result<(), BpfError> {
        let now_ns = monotonic_nanos();
        let mut limits = HashMap::new();
        for rule in rules.iter().filter(|rule| rule.udp.is_none()) {
            let limit = (rule.idle, rule.connect);
            limits.extend(rule.listeners.iter().map(|listener| (*listener, limit)));
        }
        let linger = kernel::choose_linger(self.connections, self.forwarder.read_capacity()?);
        self.sweep = self.sweep.wrapping_add(1);
        let mut look = Look::new(self.sweep);
        let (mut over, mut connections) = (Vec::new(), 0);
        let (held, nat, copies) = (&mut self.held, &mut self.nat, &mut self.copies);
        nat.begin_sweep();
        if let Some(copies) = copies {
            copies.begin_sweep(now_ns);
        }
        self.forwarder.visit_entries(|connection, entry| {
            connections += 1;
            nat.note(&connection);
            let mut copies = copies.as_mut();
            let is_ended = copies.as_mut().is_some_and(|one| one.is_over(&connection));
            let limit = limits.get(&connection.listener).copied();
            let linger = nat.choose_linger(&connection, linger);
            let limit = find_limit(&connection, limit.unwrap_or((IDLE, IDLE)), linger);
            if is_ended || connection.find_silence(now_ns) > limit {
                over.push(connection);
            } else {
                look.note(&connection, held);
                if let Some(copies) = copies {
                    copies.note(&connection, &entry, now_ns);
                }
            }
        })?;
        self.connections = connections;
        if let Some(copies) = copies {
            copies.end_sweep(|| kernel::list_addresses().unwrap_or_default());
        }
        for connection in over {
            if connection.is_open() && !connection.is_copied() {
                self.records
                    .note_silence(connection.pair, connection.began_ns);
                if let Some(copies) = &mut self.copies {
                    copies.note_silence(connection.pair);
                }
            }
            if self.forwarder.remove_connection(&connection)? {
                self.connections -= 1;
            } else {
                look.note(&connection, held);
                if let Some(copies) = &mut self.copies {
                    copies.note_packet(&connection.pair);
                }
            }
        }
        self.sessions
            .sweep(&self.forwarder, rules, nat, |session| {
                look.note_open((session.pair(), session.began_ns), session.seat, held);
            })?;
        for (key, seat) in mem::take(&mut look.unknown) {
            self.hold(key, seat);
        }
        // A connection may have begun since the table was read.
        for event in self.forwarder.take_events()? {
            self.take_event(&event);
        }
        let sweep = self.sweep;
        let lost = self.held.iter().filter(|(_, held)| held.sweep != sweep);
        let lost: Vec<_> = lost.map(|(key, _)| *key).collect();
        for key in lost {
            if let Some(held) = self.held.remove(&key) {
                self.finish(held, Outcome::Cancelled, now);
            }
            self.records.forget(&key);
        }
        self.correct_counts(&look.open)
    }

    /// Corrects counts that differ from the table by the same number twice, and frees seats of members that are gone.
    fn correct_counts(&mut self, open: &HashMap<u32, i64>) -> Result<(), BpfError> {
        let mut free = Vec::new();
        for (seat, home) in &mut self.homes {
            let counts = self.forwarder.read_counts(*seat)?;
            let there = open.get(seat).copied().unwrap_or(0);
            let drift = counts.in_flight - there;
            if drift != 0 && drift == home.drift {
                let by = i32::try_from(-drift).unwrap_or(0);
                self.forwarder.correct_count(*seat, by)?;
                home.drift = 0;
            } else {
                home.drift = drift;
            }
            if !home.is_used && !open.contains_key(seat) && home.tickets == 0 {
                free.push(*seat);
            }
        }
        let unclaimed = self.unclaimed.keys().copied();
        free.extend(unclaimed.filter(|seat| !open.contains_key(seat)));
        for seat in free {
            self.forwarder.set_terms(seat, &free_terms())?;
            let home = self.homes.remove(&seat).map(|home| home.terms);
            if let Some(terms) = home.or_else(|| self.unclaimed.remove(&seat)) {
                self.seats.remove(&(terms.owner, terms.address));
            }
        }
        Ok(())
    }
}
