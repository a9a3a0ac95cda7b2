//! Copies of others' connections: who has sent each, and what became of it.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;

use evenkeel_kernel::forward::{CopyResult, TableCopy, UdpClient, UdpCopy};
use evenkeel_wire::connection_copies::{ConnectionCopy, SessionCopy};

/// Rounds of the sender that do not name a connection, until its copy is removed: a message may be lost.
const MISSED_ROUNDS: u64 = 2;

/// Rounds by which a message may be late, and no more.
const LATE_ROUNDS: u64 = 100;

/// Results of copies by their names in metrics, in the order of [`CopyResult`].
const NAMES: [&str; 11] = [
    "failed",
    "written",
    "updated",
    "yielded",
    "own",
    "full",
    "port",
    "no_listener",
    "no_member",
    "other_path",
    "malformed",
];

/// Key of a copy in the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum CopyKey {
    /// Client of a connection.
    Connection(SocketAddr),
    /// Client and listening address of a session of UDP.
    Session(UdpClient),
}

/// Origin of a copy in the table.
#[derive(Clone, Copy, Debug)]
struct Origin {
    from: SocketAddr,
    round: u64,
    is_seen: bool,
}

/// Copies that others have sent.
#[derive(Debug, Default)]
pub(super) struct Received {
    /// Origins of the copies in the tables.
    origins: HashMap<CopyKey, Origin>,
    /// Number of the last whole round of each sender.
    rounds: HashMap<SocketAddr, u64>,
    counts: [u64; NAMES.len()],
    /// Numbers of copies that were written since the last sweep: connections, and sessions.
    written: (usize, usize),
}

impl Received {
    /// Counts the result of a copy, or of a message.
    pub(super) fn count(&mut self, result: CopyResult) {
        if let Some(count) = self.counts.get_mut(result as usize) {
            *count += 1;
        }
    }

    /// Returns the counts by the names of the results.
    pub(super) fn list_counts(&self) -> BTreeMap<String, u64> {
        let named = NAMES.iter().zip(self.counts);
        named.map(|(name, count)| ((*name).into(), count)).collect()
    }

    /// Returns the numbers of copies that were written since the last sweep: connections, and sessions.
    pub(super) fn count_written(&self) -> (usize, usize) {
        self.written
    }

    /// True if a copy is in its table.
    pub(super) fn has_copy(&self, key: &CopyKey) -> bool {
        self.origins.contains_key(key)
    }

    /// Notes that a copy of a sender is in the table.
    pub(super) fn note_copy(&mut self, key: CopyKey, from: SocketAddr, round: u64) {
        let origin = Origin {
            from,
            round,
            is_seen: true,
        };
        let is_new = usize::from(self.origins.insert(key, origin).is_none());
        match key {
            CopyKey::Connection(_) => self.written.0 += is_new,
            CopyKey::Session(_) => self.written.1 += is_new,
        }
    }

    /// Notes that a sender has sent all connections.
    pub(super) fn note_round(&mut self, from: SocketAddr, round: u64) {
        let last = self.rounds.entry(from).or_default();
        // A sender numbers its rounds from the time of day on, which may have been set back before it started again.
        let is_anew = round.saturating_add(LATE_ROUNDS) < *last;
        *last = if is_anew { round } else { round.max(*last) };
    }

    pub(super) fn begin_sweep(&mut self) {
        self.origins
            .values_mut()
            .for_each(|origin| origin.is_seen = false);
        self.written = (0, 0);
    }

    /// True if the sender of a copy has sent the others since, twice. A copy whose sender is not known, as this process
    /// has found the copy in the table, waits for the next message.
    pub(super) fn is_over(&mut self, key: CopyKey) -> bool {
        let Some(origin) = self.origins.get_mut(&key) else {
            return false;
        };
        origin.is_seen = true;
        let last = self.rounds.get(&origin.from).copied().unwrap_or(0);
        last >= origin.round.saturating_add(MISSED_ROUNDS)
    }

    /// Forgets copies that are not in the table any more.
    pub(super) fn end_sweep(&mut self) {
        self.origins.retain(|_, origin| origin.is_seen);
        let senders: std::collections::HashSet<_> =
            self.origins.values().map(|origin| origin.from).collect();
        self.rounds.retain(|sender, _| senders.contains(sender));
    }
}

/// Returns a copy as the table has it, with the member's seat here.
pub(super) fn read_copy(copy: &ConnectionCopy, seat: u32, now_ns: u64) -> TableCopy {
    TableCopy {
        client: copy.client,
        listener: copy.listener,
        member: copy.member,
        seat,
        source: copy.source,
        is_direct: copy.is_direct,
        is_answered: copy.is_answered,
        has_client_fin: copy.has_client_fin,
        has_member_fin: copy.has_member_fin,
        client_side: (copy.client_side.next, copy.client_side.acked),
        member_side: (copy.member_side.next, copy.member_side.acked),
        shift: copy.shift,
        began_ns: find_time(copy.age_ms, now_ns),
        seen_ns: find_time(copy.silence_ms, now_ns),
    }
}

fn find_time(millis: u32, now_ns: u64) -> u64 {
    let ago = u64::from(millis).saturating_mul(1_000_000);
    // The connection may be older than this machine.
    now_ns.saturating_sub(ago).max(1)
}

/// Returns a copy of a session as the table has it, with the member's seat here.
pub(super) fn read_session(copy: &SessionCopy, seat: u32, now_ns: u64) -> UdpCopy {
    let SessionCopy {
        client, listener, ..
    } = *copy;
    UdpCopy {
        of: UdpClient { client, listener },
        member: copy.member,
        seat,
        source: copy.source,
        is_direct: copy.is_direct,
        is_answered: copy.is_answered,
        began_ns: find_time(copy.age_ms, now_ns),
        seen_ns: find_time(copy.silence_ms, now_ns),
    }
}
