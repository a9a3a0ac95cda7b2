//! Copies that wait to be sent, and the limit of their number.

use std::collections::VecDeque;
use std::time::Duration;

use evenkeel_core::time::Instant;
use evenkeel_kernel::forward::{TableCopy, UdpCopy};
use evenkeel_manager::copy_queues::MAX_BODY;
use evenkeel_wire::connection_copies::{
    ConnectionCopy, ConnectionEnd, CopyMessage, MAX_HEAD, SessionCopy, SideNumbers,
};

/// Age from which on a connection is copied: shorter ones are over before they are of use.
pub(super) const AGE: Duration = Duration::from_secs(1);

/// Most connections and ends that are sent in a second to each balancer: 8 to 17 Mbit/s.
pub(super) const ENTRIES_PER_SECOND: u64 = 20_000;

/// Most that are sent at once.
const BURST: u64 = 2_000;

/// Most that wait.
const MAX_WAITING: usize = 65_536;

/// Message, or part of a message.
#[derive(Clone, Copy, Debug)]
pub(super) enum Item {
    /// A connection, and the number of the round.
    Copy(TableCopy, u64),
    /// A session of UDP, and the number of the round.
    Session(UdpCopy, u64),
    /// The end of a connection.
    End(ConnectionEnd),
    /// The end of a round.
    RoundEnd(u64),
}

/// Copies that wait to be sent, in order.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    waiting: VecDeque<Item>,
    /// Number that may be sent now, and since when.
    allowed: u64,
    filled: Option<Instant>,
    sent: u64,
    lost: u64,
}

impl Outbox {
    /// Adds an item. Returns false if there is no room.
    pub(super) fn push(&mut self, item: Item) -> bool {
        let has_room = self.waiting.len() < MAX_WAITING;
        if has_room {
            self.waiting.push_back(item);
        } else {
            self.lost += 1;
        }
        has_room
    }

    pub(super) fn clear(&mut self) {
        self.waiting.clear();
    }

    pub(super) fn count_sent(&self) -> u64 {
        self.sent
    }

    pub(super) fn count_lost(&self) -> u64 {
        self.lost
    }

    /// Takes what may be sent now, as bodies of at most [`MAX_BODY`] bytes.
    pub(super) fn take_bodies(&mut self, now: Instant, now_ns: u64) -> Vec<Vec<u8>> {
        let elapsed = self.filled.map_or(Duration::MAX, |at| now.since(at));
        self.filled = Some(now);
        let millis = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX);
        let more = millis.saturating_mul(ENTRIES_PER_SECOND / 1000);
        self.allowed = self.allowed.saturating_add(more).min(BURST);
        let mut bodies = Vec::new();
        let mut open: Option<(CopyMessage, usize)> = None;
        while self.allowed > 0
            && let Some(item) = self.waiting.pop_front()
        {
            self.allowed -= 1;
            self.sent += u64::from(matches!(item, Item::Copy(..) | Item::Session(..)));
            let (message, length) = write_item(&item, now_ns);
            if let Some((last, bytes)) = &mut open
                && *bytes + length <= MAX_BODY
                && join(last, &message)
            {
                *bytes += length;
                continue;
            }
            let last = open.replace((message, MAX_HEAD + length));
            bodies.extend(last.map(|(last, _)| last.encode()));
        }
        bodies.extend(open.map(|(last, _)| last.encode()));
        bodies
    }
}

/// Returns a message with an item, and the number of bytes of the item.
fn write_item(item: &Item, now_ns: u64) -> (CopyMessage, usize) {
    match *item {
        Item::Copy(copy, round) => {
            let copy = write_copy(&copy, now_ns);
            let connections = vec![copy];
            (CopyMessage::Copies { round, connections }, copy.measure())
        }
        Item::Session(copy, round) => {
            let copy = write_session(&copy, now_ns);
            let sessions = vec![copy];
            (CopyMessage::Sessions { round, sessions }, copy.measure())
        }
        Item::End(end) => (CopyMessage::Ends(vec![end]), end.measure()),
        Item::RoundEnd(round) => (CopyMessage::RoundEnd { round }, 0),
    }
}

/// Adds what `next` has to `message`, if both are of the same kind and round. Returns true if it was added.
fn join(message: &mut CopyMessage, next: &CopyMessage) -> bool {
    match (message, next) {
        (
            CopyMessage::Copies { round, connections },
            CopyMessage::Copies {
                round: of,
                connections: more,
            },
        ) if round == of => {
            connections.extend(more);
            true
        }
        (
            CopyMessage::Sessions { round, sessions },
            CopyMessage::Sessions {
                round: of,
                sessions: more,
            },
        ) if round == of => {
            sessions.extend(more);
            true
        }
        (CopyMessage::Ends(ends), CopyMessage::Ends(more)) => {
            ends.extend(more);
            true
        }
        _ => false,
    }
}

fn count_ms(from: u64, now_ns: u64) -> u32 {
    let millis = now_ns.saturating_sub(from) / 1_000_000;
    u32::try_from(millis).unwrap_or(u32::MAX)
}

/// Returns a session as others read it, with relative times.
fn write_session(copy: &UdpCopy, now_ns: u64) -> SessionCopy {
    let age_ms = count_ms(copy.began_ns, now_ns);
    SessionCopy {
        client: copy.of.client,
        listener: copy.of.listener,
        member: copy.member,
        source: copy.source,
        is_direct: copy.is_direct,
        is_answered: copy.is_answered,
        age_ms,
        silence_ms: count_ms(copy.seen_ns, now_ns).min(age_ms),
    }
}

/// Returns a connection as others read it. Times are relative: each machine has another clock.
fn write_copy(copy: &TableCopy, now_ns: u64) -> ConnectionCopy {
    let read_side = |(next, acked)| SideNumbers { next, acked };
    let age_ms = count_ms(copy.began_ns, now_ns);
    ConnectionCopy {
        client: copy.client,
        listener: copy.listener,
        member: copy.member,
        source: copy.source,
        is_direct: copy.is_direct,
        is_answered: copy.is_answered,
        has_client_fin: copy.has_client_fin,
        has_member_fin: copy.has_member_fin,
        client_side: read_side(copy.client_side),
        member_side: read_side(copy.member_side),
        shift: copy.shift,
        age_ms,
        silence_ms: count_ms(copy.seen_ns, now_ns).min(age_ms),
    }
}
