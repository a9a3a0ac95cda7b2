//! Copies of connections and [sessions](sessions), between the balancers of a fleet: the balancer whose kernel forwards a connection sends the
//! connection to the others, which enter a copy into their tables. If the address moves, the copy goes on.
//!
//! A balancer asks for copies once a second, and gets them from who was asked: connections older than a second, then each
//! connection once in a round through the table, and ends at once. Nobody confirms a message. A lost copy comes in
//! the next round; a copy that two rounds do not name is removed. If the sender is gone, copies stay for the rule's
//! `idle_timeout`, like connections without a packet.

mod exchange;
mod outbox;
mod received;
mod rounds;
mod rules;
mod sessions;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use evenkeel_core::time::Instant;
use evenkeel_kernel::forward::{Connection, Entry, Event, Pair};
use evenkeel_manager::copy_queues::CopyQueues;
use evenkeel_wire::connection_copies::{ConnectionEnd, CopyMessage};
use tracing::warn;

use self::outbox::{AGE, Item, Outbox};
use self::received::{CopyKey, Received};
use self::rounds::Rounds;
use crate::copy_status::CopyStatus;

/// Time between two requests for copies.
const ASK: Duration = Duration::from_secs(1);

/// Time after its last request for which a balancer gets copies.
const WANTED: Duration = Duration::from_secs(10);

/// Time after which a balancer ends, or gives up, a connection that has moved: longer than the kernel wants
/// (`YIELD`).
const MOVED: Duration = Duration::from_millis(2500);

/// Most ends that wait.
const MAX_LATE_ENDS: usize = 16_384;

/// Balancer that wants copies.
#[derive(Clone, Copy, Debug)]
struct Receiver {
    session: u64,
    asked: Instant,
}

/// Copies that this balancer sends and has.
#[derive(Debug)]
pub(crate) struct Copies {
    queues: CopyQueues,
    /// Number that stands for this balancer's table.
    session: u64,
    asked: Option<Instant>,
    receivers: HashMap<SocketAddr, Receiver>,
    rounds: Rounds,
    outbox: Outbox,
    received: Received,
    /// Connections of this balancer whose next end is not told: another balancer has them, or they were silent for too
    /// long, also at the others. With the time of the sweep.
    untold_ends: HashMap<Pair, u64>,
    /// Ends of connections that have moved to another balancer lately, with the time of each end.
    late_ends: VecDeque<(ConnectionEnd, Instant)>,
    /// Connections and sessions that have moved here lately, with the time.
    adopted: HashMap<CopyKey, u64>,
    /// Number of copies whose packets have come here.
    taken_over: u64,
    /// Time of the last sweep.
    now_ns: u64,
    /// Number of copies in the table, in the last sweep.
    copied: usize,
    /// Number of copies of sessions, likewise.
    copied_sessions: usize,
    /// Listening addresses, and addresses that members see with full NAT, of connections in this sweep.
    sources: BTreeSet<(IpAddr, IpAddr)>,
    obstacle: Option<String>,
}

impl Drop for Copies {
    fn drop(&mut self) {
        self.queues.set_read(false);
    }
}

impl Copies {
    /// Returns the state of a balancer that has sent and got nothing. `session` is another number for each table, and
    /// `unix_ms` the time of day, which numbers rounds: those of a process before have lower numbers.
    pub(crate) fn new(queues: CopyQueues, session: u64, unix_ms: u64) -> Self {
        queues.set_read(true);
        Copies {
            queues,
            session,
            asked: None,
            receivers: HashMap::new(),
            rounds: Rounds::new(unix_ms),
            outbox: Outbox::default(),
            received: Received::default(),
            untold_ends: HashMap::new(),
            late_ends: VecDeque::new(),
            adopted: HashMap::new(),
            taken_over: 0,
            now_ns: 0,
            copied: 0,
            copied_sessions: 0,
            sources: BTreeSet::new(),
            obstacle: None,
        }
    }

    /// Asks the others for copies if that is due.
    fn ask(&mut self, now: Instant) {
        if self.asked.is_none_or(|asked| now.since(asked) >= ASK) {
            self.asked = Some(now);
            let session = self.session;
            let body = CopyMessage::Request { session }.encode();
            self.queues.push_outgoing(None, body);
        }
        self.receivers
            .retain(|_, receiver| now.since(receiver.asked) < WANTED);
    }

    /// Notes that a balancer wants copies.
    fn note_request(&mut self, from: SocketAddr, session: u64, now: Instant) {
        let asked = Receiver {
            session,
            asked: now,
        };
        let old = self.receivers.insert(from, asked);
        if old.is_none_or(|old| old.session != session) {
            self.rounds.begin_anew();
        }
    }

    /// Sends what is due, as fast as is allowed.
    fn send(&mut self, now: Instant, now_ns: u64) {
        if self.receivers.is_empty() {
            self.outbox.clear();
            return;
        }
        for body in self.outbox.take_bodies(now, now_ns) {
            for to in self.receivers.keys() {
                self.queues.push_outgoing(Some(*to), body.clone());
            }
        }
    }

    /// Begins a sweep through the table.
    pub(crate) fn begin_sweep(&mut self, now_ns: u64) {
        self.now_ns = now_ns;
        self.copied = 0;
        self.copied_sessions = 0;
        self.sources.clear();
        self.received.begin_sweep();
        if !self.receivers.is_empty() {
            self.rounds.begin_sweep(now_ns);
        }
    }

    /// True if a copy is over, as its sender has it no longer.
    pub(crate) fn is_over(&mut self, connection: &Connection) -> bool {
        let key = CopyKey::Connection(connection.pair.client);
        connection.is_copied() && self.received.is_over(key)
    }

    /// Notes a connection of the table, and sends it if it is this balancer's and due.
    pub(crate) fn note(&mut self, connection: &Connection, entry: &Entry<'_>, now_ns: u64) {
        self.copied += usize::from(connection.is_copied());
        if connection.has_nat && connection.is_open() {
            let source = entry.copy(now_ns).source.map(|source| source.ip());
            let listener = connection.listener.ip();
            self.sources.extend(source.map(|source| (listener, source)));
        }
        let is_whole = connection.is_open() && connection.is_established();
        let is_own = is_whole && connection.is_confirmed() && !connection.is_copied();
        let client = connection.pair.client;
        if !is_own || self.receivers.is_empty() {
            return;
        }
        let is_adopted = self.is_adopted(&CopyKey::Connection(client), now_ns);
        if self.rounds.wants(client, connection.began_ns) || is_adopted {
            let round = self.rounds.number();
            let is_kept = self.outbox.push(Item::Copy(entry.copy(now_ns), round));
            self.rounds.note_sent(is_kept);
        }
    }

    /// Ends a sweep. `list_addresses` finds the addresses of this machine.
    pub(crate) fn end_sweep(&mut self, list_addresses: impl FnOnce() -> HashSet<IpAddr>) {
        self.received.end_sweep();
        let oldest = self.now_ns.saturating_sub(10 * MOVED.as_nanos() as u64);
        self.adopted.retain(|_, at| *at >= oldest);
        // The event of an end may have had no place.
        self.untold_ends.retain(|_, at| *at >= oldest);
        let before = self.obstacle.take();
        if !self.sources.is_empty() {
            let own = list_addresses();
            // Where the listening address is, the packets of clients come.
            let mut lost = self.sources.iter();
            let lost =
                lost.find(|(listener, source)| own.contains(listener) && !own.contains(source));
            self.obstacle = lost.map(|(listener, source)| {
                format!(
                    "connections to {listener} with return_path = \"nat\" cannot continue here: their members answer to \
                     {source}, which this machine does not have. Move both addresses together"
                )
            });
        }
        if let Some(obstacle) = &self.obstacle
            && self.obstacle != before
        {
            warn!("{obstacle}");
        }
        if self.receivers.is_empty() {
            self.untold_ends.clear();
            return;
        }
        if let Some(round) = self.rounds.end_sweep() {
            self.outbox.push(Item::RoundEnd(round));
        }
    }

    /// Notes the end of a connection of this balancer.
    pub(crate) fn note_end(&mut self, event: &Event) {
        let age = Duration::from_nanos(event.ns.saturating_sub(event.began_ns));
        let is_untold = self.untold_ends.remove(&event.pair).is_some();
        if event.is_udp || is_untold || age < AGE || self.receivers.is_empty() {
            return;
        }
        self.outbox.push(Item::End(ConnectionEnd {
            client: event.pair.client,
            listener: event.listener,
            member: event.pair.member,
        }));
    }

    /// Notes that a connection was silent for too long, and is removed.
    pub(crate) fn note_silence(&mut self, pair: Pair) {
        if !self.receivers.is_empty() {
            self.untold_ends.insert(pair, self.now_ns);
        }
    }

    /// Notes that a packet has come of a connection that was silent.
    pub(crate) fn note_packet(&mut self, pair: &Pair) {
        self.untold_ends.remove(pair);
    }

    /// Notes that the packets of a copy's connection or session come here.
    fn note_adoption(&mut self, key: CopyKey, ns: u64) {
        self.taken_over += 1;
        self.adopted.insert(key, ns);
    }

    /// True if the balancer that had the connection before is to be told now that the connection has moved: its packets
    /// there are old enough.
    fn is_adopted(&mut self, key: &CopyKey, now_ns: u64) -> bool {
        if self.adopted.is_empty() {
            return false;
        }
        let moved = self.adopted.get(key);
        let is_due = moved.is_some_and(|at| now_ns.saturating_sub(*at) >= MOVED.as_nanos() as u64);
        if is_due {
            self.adopted.remove(key);
        }
        is_due
    }

    /// Returns the status for administrators.
    pub(crate) fn describe(&self) -> CopyStatus {
        CopyStatus {
            receivers: self.receivers.len(),
            copied: self.copied,
            copied_sessions: self.copied_sessions,
            sent: self.outbox.count_sent(),
            unsent: self.outbox.count_lost() + self.queues.count_lost(),
            taken_over: self.taken_over,
            received: self.received.list_counts(),
            obstacle: self.obstacle.clone(),
        }
    }
}
