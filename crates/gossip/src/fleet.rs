//! Fleet as one of its balancers sees it: what the balancer hears, what it says, and when.
//!
//! Every pair of balancers exchanges sheets: signs of life each [`BEAT`], with notes that have
//! changed. Sheets tell sooner than the membership library which balancer is gone. A balancer is
//! not taken for gone because one other does not hear it: a balancer that hears nothing of another
//! one for [`SILENT`] asks all others, and a balancer that hears it passes on from then on what
//! both have to say.
//!
//! # What is taken from whom
//!
//! Every datagram is authenticated by a shared key. Somebody without a key can still send again
//! what they have seen. Each balancer therefore gives each other one a *token*, which it draws at
//! random, and takes from it only datagrams with that token and a number that has not come before.
//! A process that starts anew asks for new tokens ([`Hello`]), and its old token means nothing from
//! when it uses the new one. No clock and no file is needed for that.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::SocketAddr;
use std::time::Duration;

use evenkeel_core::time::Instant;
use evenkeel_wire::reporting::keys::Keys;

use crate::board::Board;
use crate::copies::Copies;
use crate::ejection::Ejections;
use crate::group::Group;
use crate::id::Id;
use crate::message::Hello;
use crate::note::{Key, Note};
use crate::outcome::Counters;
use crate::peer::{Peer, is_due};
use crate::prompt_report::ToldPrompt;
use crate::reading::Readings;
use crate::seal::Kind;
use crate::swim::Swim;

/// Longest time until each balancer tells each other one again that it is there.
pub const BEAT: Duration = Duration::from_millis(250);

/// After so long without a word of a balancer all others are asked for it.
pub const SILENT: Duration = Duration::from_millis(750);

/// Time that the other balancers have for an answer; then the silent balancer is gone.
pub const ANSWER: Duration = Duration::from_millis(500);

/// A balancer that has not been heard for so long cannot hold up the decisions of others.
pub const GATE: Duration = Duration::from_millis(1500);

/// Time for which a new balancer listens before it decides anything. It is longer than the others
/// take to greet a balancer that was there before, should none of those it looks for be there.
pub const JOIN: Duration = Duration::from_millis(2500);

/// Time after which a balancer that has not run does not know what has happened since. It is
/// shorter than [`SILENT`] and [`ANSWER`] together, less what passes between two signs of life: a
/// balancer that may have been taken for gone knows it, and a balancer that has not run for less
/// takes nobody for gone because of that.
pub const STALL: Duration = Duration::from_millis(500);

/// Most other balancers.
pub const MAX_PEERS: usize = 1000;

/// Interval at which there is something to look at.
const TICK: Duration = Duration::from_millis(50);

/// Intervals at which the addresses of a configuration are tried: while nobody is there, and
/// otherwise.
const SEEK: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// Intervals at which balancers are greeted: one that is in the fleet but cannot be told anything,
/// one that is silent, one that is gone, and one that has been gone for [`LONG_GONE`].
pub(crate) const GREET: [Duration; 4] = [
    Duration::from_millis(300),
    Duration::from_millis(500),
    Duration::from_secs(2),
    Duration::from_secs(30),
];

const LONG_GONE: Duration = Duration::from_secs(600);

/// A question that has not been answered for so long will not be.
const UNANSWERED: Duration = Duration::from_secs(5);

/// Settings of a balancer in the fleet.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Identity of the balancer. For its `life`, the time of day will do: it is only a guess.
    pub id: Id,
    /// A number that nobody can guess, and that is another one in each process; not 0.
    pub session: u64,
    /// Keys that authenticate datagrams. The balancer signs with the first and takes both.
    pub keys: Keys,
    /// Addresses at which others may be found.
    pub seeds: Vec<SocketAddr>,
}

/// Times that this balancer has told: by group and member, the microseconds, and when.
pub(crate) type ServiceTimes = BTreeMap<u64, BTreeMap<u64, (u32, Instant)>>;

/// Side of one balancer in a fleet. It does no I/O: datagrams and the time come in, and datagrams
/// come out ([`Fleet::take_out`]).
pub struct Fleet {
    pub(crate) keys: Keys,
    pub(crate) session: u64,
    pub(crate) rng: fastrand::Rng,
    pub(crate) swim: Swim,
    pub(crate) peers: BTreeMap<SocketAddr, Peer>,
    /// Balancer that has each token.
    pub(crate) tokens: HashMap<u64, SocketAddr>,
    /// Questions that are not answered, by their challenges.
    pub(crate) questions: HashMap<u64, Instant>,
    seeds: BTreeMap<SocketAddr, Option<Instant>>,
    pub(crate) board: Board,
    /// Balancers that get a sheet at once.
    pub(crate) urgent: BTreeSet<SocketAddr>,
    /// For each balancer that asked, the balancers of which it is told that they are heard.
    pub(crate) heard: BTreeMap<SocketAddr, Vec<SocketAddr>>,
    pub(crate) groups: BTreeMap<u64, Group>,
    pub(crate) ejections: Ejections,
    /// Service times that this balancer has told.
    pub(crate) taught: ServiceTimes,
    /// Locations whose number of requests in flight is told, by group.
    pub(crate) flights: BTreeMap<u64, Vec<u64>>,
    /// Members at whose engines this balancer has told work, by group.
    pub(crate) told_work: BTreeMap<u64, Vec<u64>>,
    pub(crate) readings: Readings,
    pub(crate) copies: Copies,
    /// Prompts that others have sent to engines, by group, with the marks of their hashes.
    pub(crate) heard_prompts: BTreeMap<u64, Vec<(u32, ToldPrompt)>>,
    pub(crate) digest: u32,
    /// True if it is to be worked out again which balancer owns which group.
    pub(crate) dirty: bool,
    pub(crate) ready: bool,
    /// True if the balancer has ever been ready.
    pub(crate) joined: bool,
    pub(crate) started: Instant,
    pub(crate) polled: Instant,
    /// Number of the last note that all have been told once.
    pub(crate) flushed: u64,
    pub(crate) version: u64,
    pub(crate) out: Vec<(SocketAddr, Vec<u8>)>,
    pub(crate) counters: Counters,
}

impl std::fmt::Debug for Fleet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fleet")
            .field("id", self.id())
            .field("peers", &self.peers.len())
            .finish_non_exhaustive()
    }
}

/// View of another balancer, for those who look.
#[derive(Clone, Copy, Debug)]
pub struct PeerView<'a> {
    /// Identity of the peer.
    pub id: &'a Id,
    /// True if the peer is in the fleet.
    pub active: bool,
    /// Time for which nothing was heard of the peer.
    pub silence: Duration,
    /// Balancer that passes on what the peer is told, if the peer is not reached directly.
    pub via: Option<SocketAddr>,
    /// True if the peer knows all notes of this balancer.
    pub is_told: bool,
    /// True if the peer has the same groups.
    pub same_groups: bool,
    /// Number of members that the peer has ejected.
    pub ejections: usize,
}

impl Fleet {
    /// A balancer that knows nobody yet. The seed of `rng` must be one that cannot be guessed.
    pub fn new(settings: Settings, mut rng: fastrand::Rng, now: Instant) -> Self {
        let swim = Swim::new(settings.id, rng.fork());
        let seeds = settings.seeds.into_iter().map(|seed| (seed, None));
        Fleet {
            keys: settings.keys,
            session: settings.session,
            rng,
            swim,
            peers: BTreeMap::new(),
            tokens: HashMap::new(),
            questions: HashMap::new(),
            seeds: seeds.collect(),
            board: Board::default(),
            urgent: BTreeSet::new(),
            heard: BTreeMap::new(),
            groups: BTreeMap::new(),
            ejections: Ejections::default(),
            taught: ServiceTimes::new(),
            flights: BTreeMap::new(),
            told_work: BTreeMap::new(),
            readings: Readings::default(),
            copies: Copies::default(),
            heard_prompts: BTreeMap::new(),
            digest: 0,
            dirty: false,
            ready: false,
            joined: false,
            started: now,
            polled: now,
            flushed: 0,
            version: 0,
            out: Vec::new(),
            counters: Counters::default(),
        }
    }

    /// Returns the identity of this balancer.
    pub fn id(&self) -> &Id {
        self.swim.id()
    }

    /// Sets other keys: the balancer signs with the first and takes both.
    pub fn set_keys(&mut self, keys: Keys) {
        self.keys = keys;
    }

    /// Sets other addresses to find others at.
    pub fn set_seeds(&mut self, seeds: impl IntoIterator<Item = SocketAddr>) {
        let old = std::mem::take(&mut self.seeds);
        let tried = |seed: SocketAddr| (seed, old.get(&seed).copied().flatten());
        self.seeds = seeds.into_iter().map(tried).collect();
    }

    /// Returns the counters of what has happened so far.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Returns all other balancers that are known, by address.
    pub fn peers(&self, now: Instant) -> impl Iterator<Item = PeerView<'_>> {
        self.peers.values().map(move |peer| PeerView {
            id: &peer.id,
            active: peer.active,
            silence: peer.time_silent(now),
            via: peer.via,
            is_told: peer.acked >= self.board.last_change(),
            same_groups: peer.groups == Some(self.digest),
            ejections: {
                let all = peer.copy.ejections();
                all.filter(|(_, ejection)| ejection.until > now).count()
            },
        })
    }

    /// Returns the notes of others, with the balancer that made each.
    pub fn list_notes(&self) -> impl Iterator<Item = (&Id, &Note)> {
        let active = self.peers.values().filter(|peer| peer.active);
        active.flat_map(|peer| peer.copy.list_notes().map(move |note| (&peer.id, note)))
    }

    /// Changes whenever something is under alert that was not, or the other way round.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Tells all others something that this balancer knows by itself.
    pub fn put_note(&mut self, note: Note, now: Instant) {
        self.board.put_note(note);
        self.flush(now);
    }

    /// Takes a note off: it no longer holds.
    pub fn remove(&mut self, key: Key, now: Instant) {
        self.board.remove(key);
        self.flush(now);
    }

    /// The datagrams that are to be sent, and where.
    pub fn take_out(&mut self) -> Vec<(SocketAddr, Vec<u8>)> {
        std::mem::take(&mut self.out)
    }

    /// Returns true if datagrams are to be sent.
    pub fn has_out(&self) -> bool {
        !self.out.is_empty()
    }

    /// Returns true if this balancer knows what all others say: before that it decides nothing.
    pub fn is_ready_now(&self) -> bool {
        self.ready
    }

    /// Says good-bye: others take over at once.
    pub fn leave_fleet(&mut self, now: Instant) {
        self.swim.leave(now);
        for (to, data) in self.swim.take_sent() {
            self.send_to(to.address, Kind::Swim, &data);
        }
    }

    /// Does what is due; answers when to come again at the latest.
    pub fn poll(&mut self, now: Instant) -> Instant {
        self.wake(now);
        self.swim.run(now);
        self.pump(now);
        self.greet(now);
        self.listen(now);
        self.take_ownership(now);
        self.flush(now);
        let next = now.after(TICK);
        self.swim.next().map_or(next, |due| due.min(next).max(now))
    }

    /// Notices if this process has not run for a while. It has heard nothing, which says nothing of
    /// others, and others may have taken over meanwhile.
    pub(crate) fn wake(&mut self, now: Instant) {
        if now.since(self.polled) > STALL {
            for peer in self.peers.values_mut().filter(|peer| peer.active) {
                peer.heard = Some(now);
                peer.asked = false;
            }
            self.confirm_claims();
        }
        self.polled = now;
    }

    /// Keeps something of a balancer from now on, if there is room for it.
    pub(crate) fn know(&mut self, id: &Id, now: Instant) -> Option<&mut Peer> {
        let is_new = !self.peers.contains_key(&id.address);
        if is_new && self.peers.len() >= MAX_PEERS {
            let gone = self.peers.iter().filter(|(_, peer)| !peer.active);
            let longest = gone.min_by_key(|(_, peer)| peer.since);
            let longest = longest.map(|(address, _)| *address)?;
            self.peers.remove(&longest);
            self.ejections.note_change();
            self.tokens.retain(|_, address| *address != longest);
        }
        if is_new {
            let peer = Peer::new(id.clone(), self.rng.u32(1..), now);
            self.peers.insert(id.address, peer);
        }
        self.peers.get_mut(&id.address)
    }

    /// Does what the membership library wants.
    pub(crate) fn pump(&mut self, now: Instant) {
        if self.swim.take_changed() {
            let active: BTreeMap<SocketAddr, Id> = {
                let all = self.swim.list_active();
                all.map(|id| (id.address, id.clone())).collect()
            };
            for id in active.values() {
                let Some(peer) = self.know(id, now) else {
                    continue;
                };
                if !peer.active {
                    (peer.active, peer.since) = (true, now);
                    (peer.asked, peer.vouched, peer.via) = (false, None, None);
                }
                peer.node = id.node();
                peer.id = id.clone();
            }
            for (address, peer) in &mut self.peers {
                if peer.active && !active.contains_key(address) {
                    (peer.active, peer.since) = (false, now);
                }
            }
            self.dirty = true;
        }
        for (to, data) in self.swim.take_sent() {
            if self.know(&to, now).is_some() {
                self.send_to(to.address, Kind::Swim, &data);
            }
        }
    }

    /// Says Hello to those who are to be found, and to those who do not answer.
    fn greet(&mut self, now: Instant) {
        self.questions
            .retain(|_, asked| now.since(*asked) < UNANSWERED);
        let own = self.id().address;
        let is_alone = !self.peers.values().any(|peer| peer.active);
        let each = if is_alone { SEEK.0 } else { SEEK.1 };
        let mut due = Vec::new();
        for (&seed, tried) in &mut self.seeds {
            let is_there = self.peers.get(&seed).is_some_and(|peer| peer.active);
            if seed != own && !is_there && is_due(*tried, each, now) {
                *tried = Some(now);
                due.push((seed, None));
            }
        }
        for (&address, peer) in &self.peers {
            let silence = peer.time_silent(now);
            let each = match (peer.active, &peer.out) {
                (true, None) => GREET[0],
                (true, Some(_)) if silence >= SILENT => GREET[1],
                (true, Some(_)) => continue,
                (false, _) if now.since(peer.since) < LONG_GONE => GREET[2],
                (false, _) => GREET[3],
            };
            if is_due(peer.greeted, each, now) {
                due.push((address, peer.via));
            }
        }
        for (address, via) in due {
            self.greet_one(address, via, now);
        }
    }

    pub(crate) fn is_to_greet(&self, address: SocketAddr, each: Duration, now: Instant) -> bool {
        let peer = self.peers.get(&address);
        peer.is_none_or(|peer| is_due(peer.greeted, each, now))
    }

    pub(crate) fn greet_one(&mut self, address: SocketAddr, via: Option<SocketAddr>, now: Instant) {
        let challenge = self.rng.u64(1..);
        self.questions.insert(challenge, now);
        if let Some(peer) = self.peers.get_mut(&address) {
            peer.greeted = Some(now);
        }
        let hello = Hello {
            id: self.id().clone(),
            session: self.session,
            challenge,
            known_life: self.swim.life_at(address),
        };
        self.send_open(address, via, Kind::Hello, &hello.encode());
    }

    /// Finds out who is gone.
    fn listen(&mut self, now: Instant) {
        let (mut gone, mut ask) = (Vec::new(), false);
        for peer in self.peers.values_mut().filter(|peer| peer.active) {
            let silence = peer.time_silent(now);
            if silence < SILENT {
                continue;
            }
            if !peer.asked {
                (peer.asked, ask) = (true, true);
            }
            // Others have until then to say that they hear it, and after that it must come through
            // by one of them.
            let is_vouched = !is_due(peer.vouched, SILENT + ANSWER, now);
            if silence >= SILENT + ANSWER && !is_vouched {
                gone.push(peer.id.clone());
            }
        }
        if ask {
            let active = self.peers.iter().filter(|(_, peer)| peer.active);
            self.urgent.extend(active.map(|(address, _)| *address));
        }
        for id in &gone {
            self.counters.missed += 1;
            self.swim.note_down(id, now);
        }
        if !gone.is_empty() {
            self.pump(now);
        }
    }
}
