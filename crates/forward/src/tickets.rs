//! Tickets of the kernel's connections and sessions: one each until the answer, and numbers from then on.
//!
//! What has answered is counted at its seat ([`AnsweredRequests`]): with a million connections the process keeps nothing for
//! each one. A look at the tables finds numbers that are wrong because an event had no place, or came before this process.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use evenkeel_core::group::{Outcome, Ticket};
use evenkeel_core::time::Instant;
use evenkeel_kernel::forward::{Awaited, Connection, End, Pair};

use crate::home::Home;

/// Addresses of a connection or a session, and the time of the first packet.
pub(crate) type Key = (Pair, u64);

/// Members by their seats.
pub(crate) type Homes = HashMap<u32, Home>;

/// Number of unanswered connections from which memory that a burst has left is given back.
const MANY: usize = 1024;

/// Connection with a ticket of its own.
#[derive(Debug)]
struct Held {
    seat: u32,
    /// `None` if the member was at its limit, or is no longer in the group.
    ticket: Option<Ticket>,
    /// True if another balancer has seen the answer.
    is_answered: bool,
    /// Number of the last look that has seen the connection.
    look: u32,
}

/// Open connection as the kernel's table has it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    pub(crate) key: Key,
    pub(crate) seat: u32,
    /// True if the program has told the answer, or the acceptance where answers do not come by.
    pub(crate) is_answered: bool,
}

/// Tickets of the kernel's connections and sessions.
#[derive(Debug, Default)]
pub(crate) struct Tickets {
    held: HashMap<Key, Held>,
    /// Number of looks at the tables.
    look: u32,
    /// Open connections of each seat in the tables.
    open: HashMap<u32, i64>,
    /// Answered ones among them that have no ticket of their own.
    answered: HashMap<u32, i64>,
    /// Open, unanswered connections without a ticket: the process before has got their events, or there was no place for
    /// an event.
    unknown: Vec<(Key, u32)>,
    /// Adopted connections that the look has found answered.
    adopted: Vec<Key>,
    /// Requests without an answer of each seat, in the tables.
    awaited: HashMap<u32, Awaited>,
}

impl Tickets {
    /// True if there is no ticket of an unanswered connection.
    pub(crate) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Finds the ticket of an unanswered connection, with its seat.
    pub(crate) fn find_ticket(&mut self, key: &Key) -> Option<(u32, &mut Ticket)> {
        let held = self.held.get_mut(key)?;
        Some((held.seat, held.ticket.as_mut()?))
    }

    /// Counts a connection at its member, from `began` on.
    pub(crate) fn hold(&mut self, homes: &mut Homes, key: Key, seat: u32, began: Instant) {
        let Some(home) = homes.get_mut(&seat) else {
            return;
        };
        let ticket = home.bind(began);
        let ticket = ticket.map(|ticket| ticket.of_client(key.0.client.ip()));
        let held = Held {
            seat,
            ticket,
            is_answered: false,
            look: self.look,
        };
        if let Some(twin) = self.held.insert(key, held) {
            finish(homes, twin, Outcome::Cancelled, began);
        }
    }

    /// Counts a session at its member whose answers nobody sees: the session's age says nothing about the member.
    pub(crate) fn hold_unseen(&mut self, homes: &mut Homes, key: Key, seat: u32, began: Instant) {
        self.hold(homes, key, seat, began);
        self.record_since_look(homes, &key, |_| ());
    }

    /// Counts a connection that another balancer has begun, as packets come here now. The ticket stays until a look at the
    /// tables has seen whether the member has answered.
    pub(crate) fn adopt(
        &mut self,
        homes: &mut Homes,
        key: Key,
        seat: u32,
        began: Instant,
        at: Instant,
    ) {
        self.hold(homes, key, seat, began);
        if let Some(held) = self.held.get_mut(&key) {
            held.is_answered = true;
            if let Some(ticket) = &mut held.ticket {
                ticket.record_acceptance(at);
            }
        }
    }

    /// Notes the member's answer.
    pub(crate) fn record_answer(&mut self, homes: &mut Homes, key: &Key, at: Instant) {
        self.record_since_look(homes, key, |ticket| {
            ticket.record_response(Outcome::Success, at);
        });
    }

    /// Notes that the member has accepted a connection whose answers nobody sees.
    pub(crate) fn record_acceptance(&mut self, homes: &mut Homes, key: &Key, at: Instant) {
        self.record_since_look(homes, key, |ticket| ticket.record_acceptance(at));
    }

    fn record_since_look(&mut self, homes: &mut Homes, key: &Key, note: impl FnOnce(&mut Ticket)) {
        if let Some(home) = self.record(homes, key, note) {
            home.answers += 1;
        }
    }

    /// Notes something in the ticket, which is a number from then on. Returns the member's seat if it is.
    fn record<'a>(
        &mut self,
        homes: &'a mut Homes,
        key: &Key,
        note: impl FnOnce(&mut Ticket),
    ) -> Option<&'a mut Home> {
        let Entry::Occupied(mut held) = self.held.entry(*key) else {
            return None;
        };
        let home = homes.get_mut(&held.get().seat)?;
        let mut ticket = held.get_mut().ticket.take()?;
        note(&mut ticket);
        if let Some(kept) = home.answered.add(ticket) {
            held.get_mut().ticket = Some(kept);
            return None;
        }
        held.remove();
        Some(home)
    }

    /// Ends a connection of `seat`. If `is_unseen`, nobody has seen answers, and the end is no success.
    pub(crate) fn end(
        &mut self,
        homes: &mut Homes,
        (key, is_unseen): (&Key, bool),
        seat: u32,
        end: End,
        at: Instant,
    ) {
        match self.held.remove(key) {
            Some(held) => {
                let outcome = match end {
                    End::Unreachable => Outcome::Failure,
                    _ if held.is_answered => Outcome::Success,
                    End::Refused => Outcome::Failure,
                    End::Reset | End::Silent => Outcome::Error,
                    End::Closed | End::ClientReset => Outcome::Cancelled,
                };
                if held.is_answered
                    && let Some(home) = homes.get_mut(&held.seat)
                {
                    home.ends += 1;
                }
                finish(homes, held, outcome, at);
            }
            None => {
                if let Some(home) = homes.get_mut(&seat) {
                    let outcome = match end {
                        End::Unreachable => Outcome::Failure,
                        _ if is_unseen => Outcome::Cancelled,
                        // As in the proxy: what a client sends must not make it a failure.
                        _ => Outcome::Success,
                    };
                    let client = Some(key.0.client.ip());
                    home.ends += i64::from(home.end_answered(outcome, client, at));
                }
            }
        }
    }

    /// Begins a look at the tables.
    pub(crate) fn begin_look(&mut self, homes: &mut Homes) {
        self.look = self.look.wrapping_add(1);
        self.open.clear();
        self.answered.clear();
        self.awaited.clear();
        for home in homes.values_mut() {
            (home.answers, home.ends) = (0, 0);
        }
    }

    /// Notes an open connection of the tables.
    pub(crate) fn note(&mut self, seen: Seen) {
        *self.open.entry(seen.seat).or_default() += 1;
        match self.held.get_mut(&seen.key) {
            Some(held) => {
                held.look = self.look;
                if held.is_answered && seen.is_answered && held.ticket.is_some() {
                    *self.answered.entry(seen.seat).or_default() += 1;
                    self.adopted.push(seen.key);
                }
            }
            None if seen.is_answered => *self.answered.entry(seen.seat).or_default() += 1,
            None => self.unknown.push((seen.key, seen.seat)),
        }
    }

    /// Notes the request of a connection, if one is under way. `now_ns` is the time of the look by the machine's clock.
    pub(crate) fn note_request(&mut self, connection: &Connection, now_ns: u64) {
        let awaited = self.awaited.entry(connection.seat).or_default();
        awaited.add(connection, now_ns);
    }

    /// Returns the requests without an answer of a seat, as of the last look.
    pub(crate) fn count_awaited(&self, seat: u32) -> Awaited {
        self.awaited.get(&seat).copied().unwrap_or_default()
    }

    /// Notes a copy of another balancer's connection: it counts nowhere, and needs the seat.
    pub(crate) fn note_copy(&mut self, seat: u32) {
        self.open.entry(seat).or_default();
    }

    /// Returns the unanswered connections that have no ticket.
    pub(crate) fn take_unknown(&mut self) -> Vec<(Key, u32)> {
        std::mem::take(&mut self.unknown)
    }

    /// Corrects tickets by what the look has found, after the events since then.
    pub(crate) fn end_look(&mut self, homes: &mut Homes, now: Instant) {
        let look = self.look;
        let lost = self.held.extract_if(|_, held| held.look != look);
        for (_, held) in lost.collect::<Vec<_>>() {
            finish(homes, held, Outcome::Cancelled, now);
        }
        if self.held.capacity() > MANY && self.held.capacity() / 4 > self.held.len() {
            self.held.shrink_to(2 * self.held.len());
        }
        for key in std::mem::take(&mut self.adopted) {
            // The connection may have ended since.
            self.record(homes, &key, |_| ());
        }
        let is_first = look == 1;
        for (seat, home) in homes {
            let there = self.answered.get(seat).copied().unwrap_or(0);
            home.correct_answered(there, is_first, now);
        }
    }

    /// Returns the number of open connections of each seat, as of the last look.
    pub(crate) fn open(&self) -> &HashMap<u32, i64> {
        &self.open
    }
}

fn finish(homes: &mut Homes, held: Held, outcome: Outcome, at: Instant) {
    let home = homes.get_mut(&held.seat);
    if let (Some(ticket), Some(home)) = (held.ticket, home) {
        home.tickets = home.tickets.saturating_sub(1);
        home.group.finish(ticket, outcome, at);
    }
}

#[cfg(test)]
mod tests;
