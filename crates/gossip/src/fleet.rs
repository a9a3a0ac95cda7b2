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
use evenkeel_wire::reporting::message::Invalid;
use evenkeel_wire::window::{Window, WindowError};

use crate::board::{Board, Copy};
use crate::ejections::Ejections;
use crate::id::Id;
use crate::message::{Hello, MAX_ASKED, NotesPart, Welcome, relay, relayed};
use crate::note::{Item, Key, Note};
use crate::outcome::{Counters, Outcome};
use crate::owners::Group;
use crate::peer::{Inbound, MAX_PENDING, MAX_QUEUE, Out, Peer, is_due};
use crate::readings::{Heard, Readings};
use crate::seal::{self, Header, Kind, MAX_BODY, MAX_INNER};
use crate::service::Taught;
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

/// Notes that are not confirmed are sent again after so long.
const RESEND: Duration = Duration::from_millis(100);

/// A balancer was heard "lately" if it was within this time.
const LATELY: Duration = Duration::from_millis(400);

/// Intervals at which the addresses of a configuration are tried: while nobody is there, and
/// otherwise.
const SEEK: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// Intervals at which balancers are greeted: one that is in the fleet but cannot be told anything,
/// one that is silent, one that is gone, and one that has been gone for [`LONG_GONE`].
const GREET: [Duration; 4] = [
    Duration::from_millis(300),
    Duration::from_millis(500),
    Duration::from_secs(2),
    Duration::from_secs(30),
];

const LONG_GONE: Duration = Duration::from_secs(600);

/// Interval at which a balancer that counts as gone, and speaks, is told so.
const HEAL: Duration = Duration::from_millis(500);

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

/// Side of one balancer in a fleet. It does no I/O: datagrams and the time come in, and datagrams
/// come out ([`Fleet::take_out`]).
pub struct Fleet {
    keys: Keys,
    pub(crate) session: u64,
    rng: fastrand::Rng,
    pub(crate) swim: Swim,
    pub(crate) peers: BTreeMap<SocketAddr, Peer>,
    /// Balancer that has each token.
    tokens: HashMap<u64, SocketAddr>,
    /// Questions that are not answered, by their challenges.
    questions: HashMap<u64, Instant>,
    seeds: BTreeMap<SocketAddr, Option<Instant>>,
    pub(crate) board: Board,
    /// Balancers that get a sheet at once.
    urgent: BTreeSet<SocketAddr>,
    /// For each balancer that asked, the balancers of which it is told that they are heard.
    heard: BTreeMap<SocketAddr, Vec<SocketAddr>>,
    pub(crate) groups: BTreeMap<u64, Group>,
    pub(crate) ejections: Ejections,
    pub(crate) taught: Taught,
    /// Locations whose number of requests in flight is told, by group.
    pub(crate) flights: BTreeMap<u64, Vec<u64>>,
    pub(crate) readings: Readings,
    pub(crate) digest: u32,
    /// True if it is to be worked out again which balancer owns which group.
    pub(crate) dirty: bool,
    pub(crate) ready: bool,
    /// True if the balancer has ever been ready.
    pub(crate) joined: bool,
    pub(crate) started: Instant,
    pub(crate) polled: Instant,
    /// Number of the last note that all have been told once.
    flushed: u64,
    pub(crate) version: u64,
    out: Vec<(SocketAddr, Vec<u8>)>,
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
            taught: Taught::new(),
            flights: BTreeMap::new(),
            readings: Readings::default(),
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

    /// Takes in a datagram.
    pub fn receive_datagram(&mut self, datagram: &[u8], now: Instant) -> Outcome {
        self.wake(now);
        let outcome = self.take(datagram, None, now);
        self.counters.count(outcome, datagram.len());
        self.pump(now);
        if self.dirty {
            self.take_ownership(now);
        }
        // With every datagram only those are looked at for whom there is something.
        match self.board.last_change() == self.flushed {
            true => self.tell_urgent(now),
            false => self.flush(now),
        }
        outcome
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
    fn wake(&mut self, now: Instant) {
        if now.since(self.polled) > STALL {
            for peer in self.peers.values_mut().filter(|peer| peer.active) {
                peer.heard = Some(now);
                peer.asked = false;
            }
            self.confirm_claims();
        }
        self.polled = now;
    }

    fn take(&mut self, datagram: &[u8], via: Option<SocketAddr>, now: Instant) -> Outcome {
        let (header, body) = match seal::open_datagram(datagram, &self.keys) {
            Ok(opened) => opened,
            Err(invalid) => return Outcome::Invalid(invalid),
        };
        let taken = match header.kind {
            Kind::Hello => Hello::decode(body).map(|hello| self.hear_hello(hello, via, now)),
            Kind::Welcome => {
                Welcome::decode(body).map(|welcome| self.hear_welcome(welcome, via, now))
            }
            Kind::Relay | Kind::Relayed if via.is_some() => {
                return Outcome::Invalid(Invalid::Kind);
            }
            _ => match self.hear(header, via, now) {
                Err(outcome) => return outcome,
                Ok(from) => self.take_body(header, body, from, now),
            },
        };
        taken.unwrap_or(Outcome::Invalid(Invalid::Malformed))
    }

    /// Finds out who has sent a datagram.
    fn hear(
        &mut self,
        header: Header,
        via: Option<SocketAddr>,
        now: Instant,
    ) -> Result<SocketAddr, Outcome> {
        let address = *self.tokens.get(&header.token).ok_or(Outcome::Foreign)?;
        let peer = self.peers.get_mut(&address).ok_or(Outcome::Foreign)?;
        let is_it = |inbound: &Inbound| inbound.token == header.token;
        if !peer.inbound.as_ref().is_some_and(is_it) {
            let place = peer.pending.iter().position(is_it);
            let next = peer.pending.swap_remove(place.ok_or(Outcome::Foreign)?);
            // It has asked for this token, and so is not who had the one before.
            let old = peer.inbound.replace(next);
            peer.copy = Copy::default();
            peer.heard_loads = Heard::default();
            self.ejections.note_change();
            for old in old.into_iter().chain(peer.pending.drain(..)) {
                self.tokens.remove(&old.token);
            }
            self.dirty = true;
        }
        let inbound = peer.inbound.as_mut().ok_or(Outcome::Foreign)?;
        match inbound.window.check_sequence(header.count) {
            Ok(()) => {
                inbound.window.take(header.count);
            }
            Err(WindowError::Reordered) => {}
            Err(late) => return Err(late.into()),
        }
        peer.heard = Some(now);
        peer.asked = false;
        peer.via = via;
        Ok(address)
    }

    fn take_body(
        &mut self,
        header: Header,
        body: &[u8],
        from: SocketAddr,
        now: Instant,
    ) -> Option<Outcome> {
        match header.kind {
            Kind::Swim => {
                self.heal(from, now);
                self.swim
                    .receive_message(body, now)
                    .then_some(Outcome::Taken)
            }
            Kind::Sheet => {
                let sheet = NotesPart::decode(body, now)?;
                self.heal(from, now);
                self.hear_sheet(from, &sheet, now);
                Some(Outcome::Taken)
            }
            Kind::Loads => {
                self.hear_loads(from, body, header.count, now)?;
                Some(Outcome::Taken)
            }
            Kind::Relay => {
                let (to, inner) = relayed(body)?;
                let is_ours = self.peers.get(&to).is_some_and(|peer| peer.active);
                if is_ours && inner.len() <= MAX_INNER {
                    let body = relay(from, inner);
                    self.send_directly(to, Kind::Relayed, &body);
                }
                Some(Outcome::Taken)
            }
            Kind::Relayed => {
                let (_, inner) = relayed(body)?;
                Some(self.take(inner, Some(from), now))
            }
            // They have been looked at.
            Kind::Hello | Kind::Welcome => None,
        }
    }

    /// Tells a balancer that counts as gone, and speaks, that it does, so that it comes back.
    fn heal(&mut self, from: SocketAddr, now: Instant) {
        let Some(peer) = self.peers.get_mut(&from) else {
            return;
        };
        if !peer.active && is_due(peer.healed, HEAL, now) {
            peer.healed = Some(now);
            let id = peer.id.clone();
            self.swim.note_alive(&id, now);
        }
    }

    fn hear_hello(&mut self, hello: Hello, via: Option<SocketAddr>, now: Instant) -> Outcome {
        let Hello {
            id,
            session,
            challenge,
            known_life,
        } = hello;
        if id.address == self.id().address || session == self.session {
            return Outcome::Own;
        }
        self.swim.outlive_process(known_life, now);
        let (address, token) = (id.address, self.rng.u64(1..));
        let Some(peer) = self.know(&id, now) else {
            return Outcome::Full;
        };
        let is_new = peer.session != session;
        let mut given = peer.inbound.iter().chain(&peer.pending);
        let given = given.find(|inbound| inbound.session == session);
        let token = match given.map(|inbound| inbound.token) {
            Some(token) => token,
            None => {
                let mut dropped = None;
                if peer.pending.len() >= MAX_PENDING {
                    dropped = Some(peer.pending.remove(0).token);
                }
                peer.pending.push(Inbound {
                    token,
                    session,
                    window: Window::new(0),
                });
                if let Some(dropped) = dropped {
                    self.tokens.remove(&dropped);
                }
                self.tokens.insert(token, address);
                token
            }
        };
        let welcome = Welcome {
            id: self.id().clone(),
            session: self.session,
            challenge,
            token,
            known_life: self.swim.life_at(address),
        };
        self.send_open(address, via, Kind::Welcome, &welcome.encode());
        if is_new && self.is_to_greet(address, GREET[0], now) {
            self.greet_one(address, via, now);
        }
        Outcome::Greeted
    }

    fn hear_welcome(&mut self, welcome: Welcome, via: Option<SocketAddr>, now: Instant) -> Outcome {
        let Welcome {
            id,
            session,
            challenge,
            token,
            known_life,
        } = welcome;
        if self.questions.remove(&challenge).is_none() {
            return Outcome::Unasked;
        }
        if id.address == self.id().address || session == self.session {
            return Outcome::Own;
        }
        self.swim.outlive_process(known_life, now);
        let (address, stream) = (id.address, self.rng.u32(1..));
        let Some(peer) = self.know(&id, now) else {
            return Outcome::Full;
        };
        if peer.session != session {
            peer.session = session;
            peer.out = None;
            (peer.stream, peer.acked, peer.sent) = (stream, 0, None);
            if id.life > peer.id.life || !peer.active {
                peer.node = id.node();
                peer.id = id.clone();
            }
        }
        if peer.out.as_ref().is_none_or(|out| out.token != token) {
            peer.out = Some(Out { token, count: 0 });
        }
        peer.via = via;
        if !peer.active {
            self.swim.note_alive(&id, now);
        }
        let queue = self.peers.get_mut(&address);
        let queue = queue.map(|peer| std::mem::take(&mut peer.queue));
        for (kind, body) in queue.unwrap_or_default() {
            self.send_to(address, kind, &body);
        }
        self.urgent.insert(address);
        Outcome::Taken
    }

    fn hear_sheet(&mut self, from: SocketAddr, sheet: &NotesPart, now: Instant) {
        let head = self.board.last_change();
        let Some(peer) = self.peers.get_mut(&from) else {
            return;
        };
        if sheet.ack_stream == peer.stream {
            peer.acked = peer.acked.max(sheet.ack.min(head));
            if peer.sent.is_some_and(|(through, _)| through <= peer.acked) {
                peer.sent = None;
                if peer.acked < head {
                    self.urgent.insert(from);
                }
            }
        }
        if peer.groups != Some(sheet.groups) {
            peer.groups = Some(sheet.groups);
            self.dirty = true;
        }
        let was_whole = peer.copy.is_whole();
        let is_another = peer.copy.known_until().0 != sheet.stream;
        let is_news = peer.copy.hears_news(sheet);
        let is_ejection = |item: &Item| {
            matches!(
                item,
                Item::Put(Note::Ejection { .. }) | Item::Gone(Key::Ejection { .. })
            )
        };
        if is_another || is_news && sheet.items.iter().any(is_ejection) {
            self.ejections.note_change();
        }
        let agrees = !is_news || self.agrees_with(from, &sheet.items, now);
        let Some(peer) = self.peers.get_mut(&from) else {
            return;
        };
        if is_news {
            peer.copy.take_part(sheet, agrees);
            self.urgent.insert(from);
        }
        self.dirty |= was_whole != peer.copy.is_whole();
        if is_news {
            self.heed_notes(from, &sheet.items);
        }
        for vouched in &sheet.heard {
            if let Some(peer) = self.peers.get_mut(vouched)
                && *vouched != from
                && peer.asked
            {
                peer.vouched = Some(now);
                peer.via = Some(from);
            }
        }
        let is_heard = |address: &&SocketAddr| {
            let peer = self.peers.get(*address);
            peer.is_some_and(|peer| {
                let lately = peer.heard.is_some_and(|at| now.since(at) <= LATELY);
                peer.active && lately && peer.via.is_none()
            })
        };
        let heard: Vec<SocketAddr> = sheet.silent.iter().filter(is_heard).copied().collect();
        if !heard.is_empty() {
            self.heard.insert(from, heard);
            self.urgent.insert(from);
        }
    }

    /// Keeps something of a balancer from now on, if there is room for it.
    fn know(&mut self, id: &Id, now: Instant) -> Option<&mut Peer> {
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
    fn pump(&mut self, now: Instant) {
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

    fn is_to_greet(&self, address: SocketAddr, each: Duration, now: Instant) -> bool {
        let peer = self.peers.get(&address);
        peer.is_none_or(|peer| is_due(peer.greeted, each, now))
    }

    fn greet_one(&mut self, address: SocketAddr, via: Option<SocketAddr>, now: Instant) {
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

    /// Sends sheets to all who are to get one now.
    pub(crate) fn flush(&mut self, now: Instant) {
        let (head, mut known) = (self.board.last_change(), u64::MAX);
        for (&address, peer) in &self.peers {
            known = known.min(peer.acked);
            if !peer.active {
                continue;
            }
            let has_news = match peer.sent {
                Some((_, at)) => now.since(at) >= RESEND,
                None => peer.acked < head,
            };
            if has_news || now.since(peer.told) >= BEAT {
                self.urgent.insert(address);
            }
        }
        self.flushed = head;
        self.tell_urgent(now);
        // One that is gone may come back, and must hear it, too.
        self.board.forget(known);
    }

    fn tell_urgent(&mut self, now: Instant) {
        if self.urgent.is_empty() {
            return;
        }
        let asked = self
            .peers
            .iter()
            .filter(|(_, peer)| peer.active && peer.asked);
        let silent: Vec<SocketAddr> = asked.map(|(address, _)| *address).take(MAX_ASKED).collect();
        for address in std::mem::take(&mut self.urgent) {
            self.tell(address, &silent, now);
        }
    }

    fn tell(&mut self, address: SocketAddr, silent: &[SocketAddr], now: Instant) {
        let head = self.board.last_change();
        let heard = self.heard.remove(&address).unwrap_or_default();
        let Some(peer) = self.peers.get_mut(&address) else {
            return;
        };
        if !peer.active || peer.out.is_none() {
            return;
        }
        let (ack_stream, ack) = peer.copy.known_until();
        let is_on_its_way = peer.sent.is_some_and(|(_, at)| now.since(at) < RESEND);
        let sheet = NotesPart {
            ack_stream,
            ack,
            stream: peer.stream,
            head,
            groups: self.digest,
            silent: silent.to_vec(),
            heard,
            from: peer.acked,
            ..NotesPart::default()
        };
        let mut body = Vec::with_capacity(128);
        sheet.encode_head(&mut body);
        let room = match is_on_its_way {
            true => 0,
            false => MAX_BODY.saturating_sub(body.len()),
        };
        let through = self.board.write(peer.acked, room, now, &mut body);
        if through > peer.acked {
            peer.sent = Some((through, now));
        }
        peer.told = now;
        self.send_to(address, Kind::Sheet, &body);
    }

    /// Sends something to a peer, through another one if it is not reached; or keeps it until it
    /// has given a token.
    pub(crate) fn send_to(&mut self, address: SocketAddr, kind: Kind, body: &[u8]) {
        let Some(peer) = self.peers.get_mut(&address) else {
            return;
        };
        let Some(out) = &mut peer.out else {
            if peer.queue.len() < MAX_QUEUE {
                peer.queue.push((kind, body.to_vec()));
            }
            return;
        };
        out.count += 1;
        let header = Header {
            kind,
            token: out.token,
            count: out.count,
        };
        let datagram = seal::seal_datagram(header, body, self.keys.signing_key());
        if let Some(via) = peer.via {
            self.send_directly(via, Kind::Relay, &relay(address, &datagram));
        }
        self.push(address, datagram);
    }

    /// Sends a datagram of a kind that needs no token.
    fn send_open(&mut self, address: SocketAddr, via: Option<SocketAddr>, kind: Kind, body: &[u8]) {
        let header = Header {
            kind,
            token: 0,
            count: 0,
        };
        let datagram = seal::seal_datagram(header, body, self.keys.signing_key());
        if let Some(via) = via {
            self.send_directly(via, Kind::Relay, &relay(address, &datagram));
        }
        self.push(address, datagram);
    }

    /// Sends something to a peer, or not.
    fn send_directly(&mut self, address: SocketAddr, kind: Kind, body: &[u8]) {
        let peer = self.peers.get_mut(&address);
        let Some(out) = peer.and_then(|peer| peer.out.as_mut()) else {
            return;
        };
        out.count += 1;
        let header = Header {
            kind,
            token: out.token,
            count: out.count,
        };
        let datagram = seal::seal_datagram(header, body, self.keys.signing_key());
        self.push(address, datagram);
    }

    fn push(&mut self, address: SocketAddr, datagram: Vec<u8>) {
        self.counters.count_sent(datagram.len());
        self.out.push((address, datagram));
    }
}
