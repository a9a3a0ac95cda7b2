//! Copies of sessions of UDP.
//!
//! Only sessions whose datagrams have come for [`SPAN`] are copied, each in its part of a round: a question with its answer,
//! as of DNS, is over before. Ends are not told: a copy that two rounds do not name is removed.

use std::net::SocketAddr;
use std::time::Duration;

use evenkeel_kernel::bpf::BpfError;
use evenkeel_kernel::forward::{CopyResult, UdpClient, UdpSession};
use evenkeel_net::clock::monotonic_nanos;
use evenkeel_wire::connection_copies::SessionCopy;

use super::Copies;
use super::outbox::Item;
use super::received::{CopyKey, read_session};
use super::rules::{Rules, is_on_path};
use crate::engine::Engine;
use crate::failures::EntryKind;

/// Time between the first and the last datagram from which on a session is copied.
const SPAN: Duration = Duration::from_secs(5);

/// True if another balancer may need a session.
fn is_long(session: &UdpSession, now_ns: u64) -> bool {
    let is_own = session.is_open() && !session.is_copied() && !session.leaves();
    is_own && session.find_span(now_ns) >= SPAN
}

impl Copies {
    /// True if the copy of a session is over, as its sender has the session no longer.
    pub(crate) fn is_session_over(&mut self, session: &UdpSession) -> bool {
        session.is_copied() && self.received.is_over(CopyKey::Session(session.of))
    }

    /// Notes a session of the table, and sends it if it is this balancer's and due.
    pub(crate) fn note_session(&mut self, session: &UdpSession, now_ns: u64) {
        self.copied_sessions += usize::from(session.is_copied());
        if session.has_nat() && session.is_open() {
            let pair = (session.of.listener.ip(), session.source.ip());
            self.sources.insert(pair);
        }
        if self.receivers.is_empty() || !is_long(session, now_ns) {
            return;
        }
        let is_adopted = self.is_adopted(&CopyKey::Session(session.of), now_ns);
        if self.rounds.wants_again(session.of.client) || is_adopted {
            let round = self.rounds.number();
            let is_kept = self.outbox.push(Item::Session(session.copy(now_ns), round));
            self.rounds.note_sent(is_kept);
        }
    }
}

impl Engine {
    /// Writes copies of a balancer's sessions into the tables. Copies find no room where `room` sessions are.
    pub(super) fn take_sessions(
        &mut self,
        copies: &mut Copies,
        rules: &Rules,
        (from, round): (SocketAddr, u64),
        sessions: &[SessionCopy],
        room: usize,
    ) -> Result<(), BpfError> {
        for copy in sessions {
            let SessionCopy {
                client, listener, ..
            } = *copy;
            let key = CopyKey::Session(UdpClient { client, listener });
            // What is in the table needs no further place.
            let count = self.sessions.count() + copies.received.count_written().1;
            let is_full = !copies.received.has_copy(&key) && count >= room;
            let result = self.take_session(copy, rules, is_full)?;
            copies.received.count(result);
            if result.is_kept() {
                copies.received.note_copy(key, from, round);
            }
        }
        Ok(())
    }

    fn take_session(
        &mut self,
        copy: &SessionCopy,
        rules: &Rules,
        is_full: bool,
    ) -> Result<CopyResult, BpfError> {
        let Some((owner, path)) = rules.sessions.get(&copy.listener) else {
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
        let copy = read_session(copy, seat, monotonic_nanos());
        let written = self.forwarder.write_udp_copy(&copy);
        let result = self.errors.take(EntryKind::Copy, written)?;
        Ok(result.unwrap_or(CopyResult::Failed))
    }
}
