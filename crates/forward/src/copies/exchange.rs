//! Copies that come in, and go into the program's table.

use std::net::SocketAddr;
use std::time::{SystemTime, UNIX_EPOCH};

use evenkeel_core::time::Instant;
use evenkeel_kernel::bpf::BpfError;
use evenkeel_kernel::forward::{CopyEnd, CopyResult, Event, Pair, UdpClient};
use evenkeel_manager::copy_queues::CopyQueues;
use evenkeel_net::clock::monotonic_nanos;
use evenkeel_net::random_bytes;
use evenkeel_wire::connection_copies::{ConnectionCopy, ConnectionEnd, CopyMessage};

use super::received::{CopyKey, read_copy};
use super::rules::{Rules, is_on_path};
use super::{Copies, MAX_LATE_ENDS, MOVED};
use crate::engine::Engine;
use crate::failures::EntryKind;
use crate::plan::PlannedRule;
use crate::tickets::Key;

/// Messages that are read in a round of the thread: the others wait for the next round.
const MESSAGES: usize = 256;

/// Part of the table that stays free of copies, for new connections of this balancer: one in so many places.
const FREE_PART: usize = 16;

impl Engine {
    /// Takes in what others have sent, and sends what is due.
    pub(crate) fn exchange_copies(
        &mut self,
        rules: &[PlannedRule],
        now: Instant,
    ) -> Result<(), BpfError> {
        // The copies are put back, also after an error.
        let Some(mut copies) = self.copies.take() else {
            return Ok(());
        };
        let taken = self.take_copies(&mut copies, rules, now);
        copies.ask(now);
        copies.send(now, monotonic_nanos());
        self.copies = Some(copies);
        taken
    }

    fn take_copies(
        &mut self,
        copies: &mut Copies,
        rules: &[PlannedRule],
        now: Instant,
    ) -> Result<(), BpfError> {
        self.take_late_ends(copies, now)?;
        let bodies = copies.queues.take_received(MESSAGES);
        if bodies.is_empty() {
            return Ok(());
        }
        let rules = Rules::list(rules);
        let capacity = self.forwarder.read_capacity()? as usize;
        let room = capacity - capacity / FREE_PART;
        let of_sessions = self.forwarder.read_udp_capacity()? as usize;
        let session_room = of_sessions - of_sessions / FREE_PART;
        for (from, body) in bodies {
            match CopyMessage::decode(&body) {
                None => copies.received.count(CopyResult::Malformed),
                Some(CopyMessage::Request { session }) => copies.note_request(from, session, now),
                Some(CopyMessage::RoundEnd { round }) => copies.received.note_round(from, round),
                Some(CopyMessage::Ends(ends)) => {
                    for end in ends {
                        self.end_copy(copies, &end, now, false)?;
                    }
                }
                Some(CopyMessage::Copies { round, connections }) => {
                    for copy in connections {
                        // What is in the table needs no further place.
                        let key = CopyKey::Connection(copy.client);
                        let is_full = !copies.received.has_copy(&key)
                            && self.connections + copies.received.count_written().0 >= room;
                        let result = self.take_copy(&copy, &rules, is_full)?;
                        copies.received.count(result);
                        if result == CopyResult::Yielded {
                            let pair = Pair {
                                member: copy.member,
                                client: copy.client,
                            };
                            copies.untold_ends.insert(pair, copies.now_ns);
                        }
                        if result.is_kept() {
                            copies.received.note_copy(key, from, round);
                        }
                    }
                }
                Some(CopyMessage::Sessions { round, sessions }) => {
                    let sender = (from, round);
                    self.take_sessions(copies, &rules, sender, &sessions, session_room)?;
                }
            }
        }
        Ok(())
    }

    /// Counts a connection or session of another balancer at its member, as packets come here now.
    pub(crate) fn adopt(&mut self, key: Key, event: &Event, at: Instant) {
        // The connection's latencies are the other balancer's.
        let began = self.instant(key.1);
        let (tickets, homes) = (&mut self.tickets, &mut self.homes);
        tickets.adopt(homes, key, event.seat, began, at);
        if let Some(copies) = &mut self.copies {
            let (client, listener) = (event.pair.client, event.listener);
            let key = match event.is_udp {
                true => CopyKey::Session(UdpClient { client, listener }),
                false => CopyKey::Connection(client),
            };
            copies.note_adoption(key, monotonic_nanos());
        }
    }

    /// Sets the queues for copies in a fleet; `None` ends copies.
    pub(crate) fn set_copies(&mut self, queues: Option<&CopyQueues>) {
        match queues {
            None => self.copies = None,
            Some(_) if self.copies.is_some() => {}
            Some(queues) => {
                let session = random_bytes().map_or(0, u64::from_ne_bytes);
                let day = SystemTime::now().duration_since(UNIX_EPOCH);
                let unix_ms = day.map_or(1, |day| day.as_millis() as u64);
                self.copies = Some(Copies::new(queues.clone(), session, unix_ms));
            }
        }
    }

    /// Ends a connection that has ended at another balancer. If the kernel refuses, the end is late.
    fn end_copy(
        &mut self,
        copies: &mut Copies,
        end: &ConnectionEnd,
        ended: Instant,
        is_late: bool,
    ) -> Result<(), BpfError> {
        let result = self
            .forwarder
            .end_copy(end.client, end.listener, end.member);
        match self.errors.take(EntryKind::Copy, result)? {
            Some(CopyEnd::Ended) => {
                let pair = Pair {
                    member: end.member,
                    client: end.client,
                };
                copies.untold_ends.insert(pair, copies.now_ns);
            }
            // The address has moved just now, the client has begun another connection, or the kernel has refused.
            Some(CopyEnd::Fresh) | None if !is_late && copies.late_ends.len() < MAX_LATE_ENDS => {
                copies.late_ends.push_back((*end, ended));
            }
            _ => {}
        }
        Ok(())
    }

    /// Ends connections that have ended at another balancer a while ago.
    fn take_late_ends(&mut self, copies: &mut Copies, now: Instant) -> Result<(), BpfError> {
        while let Some((end, ended)) = copies.late_ends.front().copied()
            && now.since(ended) >= MOVED
        {
            copies.late_ends.pop_front();
            self.end_copy(copies, &end, ended, true)?;
        }
        Ok(())
    }

    /// Returns the seat of a member that a group has.
    pub(super) fn find_used_seat(&self, owner: u64, member: SocketAddr) -> Option<u32> {
        let seat = *self.seats.get(&(owner, member))?;
        let home = self.homes.get(&seat);
        home.is_some_and(|home| home.is_used).then_some(seat)
    }

    /// Writes a copy into the table, if a rule and a member of this balancer are the connection's.
    fn take_copy(
        &mut self,
        copy: &ConnectionCopy,
        rules: &Rules,
        is_full: bool,
    ) -> Result<CopyResult, BpfError> {
        let Some((owner, path)) = rules.connections.get(&copy.listener) else {
            return Ok(CopyResult::NoListener);
        };
        if !is_on_path(copy.source, copy.is_direct, *path) {
            return Ok(CopyResult::OtherPath);
        }
        let Some(seat) = self.find_used_seat(*owner, copy.member) else {
            return Ok(CopyResult::NoMember);
        };
        if is_full {
            return Ok(CopyResult::Full);
        }
        let copy = read_copy(copy, seat, monotonic_nanos());
        let written = self.forwarder.write_copy(&copy);
        let result = self.errors.take(EntryKind::Copy, written)?;
        Ok(result.unwrap_or(CopyResult::Failed))
    }
}
