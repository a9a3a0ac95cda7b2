//! The broker's side of all registrations.
//!
//! A [`Broker`] answers each datagram at once, or not at all ([`Broker::receive`]), and
//! sends Queries when there is something to say ([`Broker::poll`]). It does no I/O.
//!
//! Two rules keep it from being a weapon. Nothing is remembered of a peer that has not
//! proved its address: the first Registration gets a *cookie* that the broker can check
//! without having kept it (the idea of the Photuris protocol, RFC 2522, section 3). And
//! to an address that has not been proved never go more bytes than came from there.
//!
//! Reports go straight to the [`Location`] that they are about, which is memory.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use evenkeel_core::load::{LoadId, LoadValue, Location};
use evenkeel_core::member::{Member, Reason};
use evenkeel_core::time::Instant;

use super::directory::Directory;
use super::keys::{Key, Keys, KeysError};
use super::message::{
    self, Body, Control, Cookie, Header, Invalid, MAX_INTERVAL, Registration, Server,
    ServerControl, ServerState, Update,
};

/// How long a cookie may be used.
pub const COOKIE_LIFETIME: Duration = Duration::from_secs(20);

/// How often the alerts of all agents are looked at.
pub const SWEEP: Duration = Duration::from_millis(50);

/// Time after which a Query that is not confirmed is sent again. It doubles each time.
pub const FIRST_RETRY: Duration = Duration::from_millis(200);

/// Longest time between two such Queries, where the interval is not longer.
pub const LAST_RETRY: Duration = Duration::from_secs(2);

/// After so many keepalives without any message an agent takes the broker for gone.
pub const SILENT_KEEPALIVES: u32 = 3;

/// How agents are to report, and what is kept of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Time between two Updates.
    pub interval: Duration,
    /// Intervals after which an alert that is not renewed ends.
    pub lease: u8,
    /// At least how often each agent gets a message.
    pub keepalive: Duration,
    /// After how long without a message an agent is forgotten; longer than
    /// [`COOKIE_LIFETIME`], or its last Registration could be replayed.
    pub forget: Duration,
    /// Most agents.
    pub max_agents: usize,
}

/// Where datagrams come from and go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Peer {
    /// Which of the broker's sockets.
    pub socket: usize,
    /// The address at the other end.
    pub address: SocketAddr,
}

/// What has become of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum Outcome {
    /// A Registration without a cookie, or with one that is of no use any more: the agent
    /// has to prove its address first.
    Challenged,
    /// A Registration: the agent is known from now on.
    Registered,
    /// A report.
    Updated,
    /// The agent has signed off.
    Stopped,
    /// No message.
    #[strum(transparent)]
    Invalid(Invalid),
    /// From an agent that is not known (any more). It is asked to register again.
    UnknownIdentifier,
    /// It came before. A repeated Registration or Stop is answered again.
    Duplicate,
    /// A later message came before it.
    Reordered,
    /// So old that the network cannot have kept it: sent again by somebody else, or by an
    /// agent of which another one has taken the place.
    Replayed,
    /// A report of which some load is not a number, infinite, negative or absurd. All else
    /// in it counts.
    Load,
    /// A report of which some load has no number that is known here, and the location has
    /// no room for it. All else in it counts.
    TooManyLoads,
    /// There are as many agents as there may be.
    Full,
}

impl Outcome {
    /// All of them, in the order in which they are counted.
    pub const ALL: [Outcome; 19] = [
        Outcome::Challenged,
        Outcome::Registered,
        Outcome::Updated,
        Outcome::Stopped,
        Outcome::Invalid(Invalid::Truncated),
        Outcome::Invalid(Invalid::Oversized),
        Outcome::Invalid(Invalid::Magic),
        Outcome::Invalid(Invalid::Version),
        Outcome::Invalid(Invalid::Kind),
        Outcome::Invalid(Invalid::Key),
        Outcome::Invalid(Invalid::Tag),
        Outcome::Invalid(Invalid::Malformed),
        Outcome::UnknownIdentifier,
        Outcome::Duplicate,
        Outcome::Reordered,
        Outcome::Replayed,
        Outcome::Load,
        Outcome::TooManyLoads,
        Outcome::Full,
    ];

    /// The name in metrics.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// What has happened, since the start.
#[derive(Clone, Debug, Default)]
pub struct Counters {
    received: HashMap<Outcome, u64>,
    /// Messages that were sent: answers and Queries.
    pub sent: u64,
    /// Updates that were sent and never came, over all agents.
    pub lost: u64,
    /// Registrations that took the place of another live agent of the same name.
    pub displaced: u64,
    /// Agents that were forgotten because they were silent.
    pub forgotten: u64,
    /// The last load that was not taken, of which location, and why: for the log.
    pub untaken: Option<Untaken>,
}

/// A load in an Update that was not taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Untaken {
    /// Where it belongs.
    pub location: String,
    /// Which load.
    pub load: LoadId,
    /// [`Outcome::Load`] or [`Outcome::TooManyLoads`].
    pub why: Outcome,
}

impl Counters {
    /// Datagrams by what has become of them, each kind once.
    pub fn received(&self) -> impl Iterator<Item = (Outcome, u64)> + '_ {
        let count = |outcome| (outcome, self.received.get(&outcome).copied().unwrap_or(0));
        Outcome::ALL.into_iter().map(count)
    }
}

/// A datagram that the broker sends.
pub type Datagram = (Peer, Vec<u8>);

/// The broker's side of all registrations.
#[derive(Debug)]
pub struct Broker {
    settings: Settings,
    keys: Keys,
    /// Of this process alone: for cookies and tokens.
    secret: Key,
    rng: fastrand::Rng,
    directory: Arc<Directory>,
    agents: HashMap<u64, Agent>,
    /// Identifiers by location and agent.
    names: HashMap<(String, String), u64>,
    counters: Counters,
    version: u64,
    swept_at: Option<Instant>,
}

/// One registration.
#[derive(Debug)]
struct Agent {
    registration: Registration,
    nonce: u64,
    /// When the cookie was made by which it registered.
    cookie: Instant,
    /// Where it is, as far as it is proved.
    peer: Peer,
    /// The key that it used last.
    key: u16,
    received: Window,
    registered_at: Instant,
    heard_at: Instant,
    /// The number of the last measurement, and when it was made.
    measurement: Option<(u32, Instant)>,
    stopped: bool,
    location: Option<Arc<Location>>,
    servers: Vec<Reported>,
    out: Out,
}

/// A server of an agent.
#[derive(Clone, Debug, Default)]
struct Reported {
    state: ServerState,
    members: Vec<Member>,
}

/// What an agent is told.
#[derive(Debug)]
struct Out {
    /// What it was told last.
    control: Control,
    /// How many Controls it was sent.
    sent: u64,
    /// The first of them that said what `control` says.
    news: u64,
    /// The last one that it has confirmed.
    confirmed: u64,
    sent_at: Instant,
    /// How often the news were sent.
    tries: u32,
    /// Somebody wants to know how it is.
    asked: bool,
}

/// An agent as others see it.
#[derive(Clone, Debug)]
pub struct AgentView<'a> {
    /// The number of its registration.
    pub identifier: u64,
    /// What it has registered.
    pub registration: &'a Registration,
    /// Where it is.
    pub address: SocketAddr,
    /// The key that it used last.
    pub key: u16,
    /// Whether it has signed off.
    pub stopped: bool,
    /// When it registered.
    pub registered_at: Instant,
    /// When its last message came.
    pub heard_at: Instant,
    /// When the loads that it reported last were measured.
    pub measured_at: Option<Instant>,
    /// The sequence number of its last message.
    pub sequence: u64,
    /// Messages of it that never came.
    pub lost: u64,
    /// Whether it has confirmed what it was told last.
    pub confirmed: bool,
    /// Whether some member is at its location.
    pub location_known: bool,
    servers: &'a [Reported],
    control: &'a Control,
}

/// A server of an agent as others see it.
#[derive(Clone, Copy, Debug)]
pub struct ServerView<'a> {
    /// As it was registered.
    pub server: &'a Server,
    /// What the agent says about it.
    pub state: ServerState,
    /// The members that it is; none, if there is no such group or member.
    pub members: &'a [Member],
    /// Whether it is under a load alert, as far as the agent was told.
    pub alert: bool,
}

impl<'a> AgentView<'a> {
    /// Its servers, in the order of the registration.
    pub fn servers(&self) -> impl Iterator<Item = ServerView<'a>> {
        let reported = self.servers.iter().zip(&self.control.servers);
        let servers = self.registration.servers().iter().zip(reported);
        servers.map(|(server, (reported, control))| ServerView {
            server,
            state: reported.state,
            members: &reported.members,
            alert: control.alert,
        })
    }
}

impl Broker {
    /// A broker that knows nobody. `secret` must come from a generator that cannot be
    /// guessed, and be another one in each process; so must the seed of `rng`.
    pub fn new(
        settings: Settings,
        keys: Keys,
        secret: &[u8; 32],
        rng: fastrand::Rng,
    ) -> Result<Self, KeysError> {
        Ok(Broker {
            settings,
            keys,
            secret: Key::new(0, secret)?,
            rng,
            directory: Arc::default(),
            agents: HashMap::new(),
            names: HashMap::new(),
            counters: Counters::default(),
            version: 0,
            swept_at: None,
        })
    }

    /// Other settings, other keys, or both. Agents are told at the next sweep.
    pub fn configure(&mut self, settings: Settings, keys: Keys) {
        self.settings = settings;
        self.keys = keys;
    }

    /// Other members or locations: who registered for them is connected with them.
    pub fn set_directory(&mut self, directory: Arc<Directory>) {
        self.directory = directory;
        for agent in self.agents.values_mut() {
            agent.connect(&self.directory);
        }
        self.version += 1;
    }

    /// Changes whenever agents, their servers, or what they say about these do.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// What has happened so far.
    pub fn counters(&self) -> Counters {
        let mut counters = self.counters.clone();
        // An agent numbers its messages as it likes, so this may be as much as there is.
        let lost = self.agents.values().map(|agent| agent.received.lost);
        counters.lost = lost.fold(counters.lost, u64::saturating_add);
        counters
    }

    /// All agents, in no order.
    pub fn agents(&self) -> impl Iterator<Item = AgentView<'_>> {
        self.agents.iter().map(|(&identifier, agent)| AgentView {
            identifier,
            registration: &agent.registration,
            address: agent.peer.address,
            key: agent.key,
            stopped: agent.stopped,
            registered_at: agent.registered_at,
            heard_at: agent.heard_at,
            measured_at: agent.measurement.map(|(_, at)| at),
            sequence: agent.received.last,
            lost: agent.received.lost,
            confirmed: agent.out.is_confirmed(),
            location_known: agent.location.is_some(),
            servers: &agent.servers,
            control: &agent.out.control,
        })
    }

    /// Asks an agent for its status: it gets a Query at the next sweep, and answers with
    /// an Update. Answers whether there is such an agent.
    pub fn query(&mut self, location: &str, agent: &str) -> bool {
        let agent = self.by_name(location, agent).filter(|agent| !agent.stopped);
        agent.map(|agent| agent.out.asked = true).is_some()
    }

    /// Forgets an agent and what it said about its servers. One that lives registers
    /// again at its next Update. Answers whether there was such an agent.
    pub fn forget(&mut self, location: &str, agent: &str) -> bool {
        let name = (location.to_owned(), agent.to_owned());
        let identifier = self.names.get(&name).copied();
        identifier
            .map(|identifier| self.remove(identifier))
            .is_some()
    }

    fn by_name(&mut self, location: &str, agent: &str) -> Option<&mut Agent> {
        let name = (location.to_owned(), agent.to_owned());
        self.agents.get_mut(self.names.get(&name)?)
    }

    /// Takes in a datagram. What it gives is to be sent back to where it came from.
    pub fn receive(
        &mut self,
        from: Peer,
        datagram: &[u8],
        now: Instant,
    ) -> (Outcome, Option<Vec<u8>>) {
        let (outcome, answer) = match message::open(datagram, &self.keys, true) {
            Ok((header, body)) => self.message(from, datagram.len(), header, body, now),
            Err(invalid) => (Outcome::Invalid(invalid), None),
        };
        *self.counters.received.entry(outcome).or_default() += 1;
        // Every answer is shorter by its format, whatever is asked. Should that ever
        // change by mistake, silence is the better one.
        let answer = answer.filter(|answer| answer.len() <= datagram.len());
        self.counters.sent += u64::from(answer.is_some());
        (outcome, answer)
    }

    fn message(
        &mut self,
        from: Peer,
        len: usize,
        header: Header,
        body: Body,
        now: Instant,
    ) -> (Outcome, Option<Vec<u8>>) {
        match body {
            Body::Registration(cookie, registration) => {
                self.registration(from, header, cookie, registration, now)
            }
            Body::Update(update) => self.update(from, len, header, update, now),
            Body::Stop => self.stop(header, now),
            // `open` lets only those pass that come from agents.
            _ => (Outcome::Invalid(Invalid::Kind), None),
        }
    }

    /// An answer that needs no state: it repeats what it answers.
    fn answer(&self, to: Header, body: &Body) -> Option<Vec<u8>> {
        let key = self.keys.get(to.key)?;
        Some(message::seal(
            to.nonce,
            to.identifier,
            to.sequence,
            body,
            key,
        ))
    }

    fn registration(
        &mut self,
        from: Peer,
        header: Header,
        cookie: Cookie,
        registration: Registration,
        now: Instant,
    ) -> (Outcome, Option<Vec<u8>>) {
        if !self.is_cookie(&cookie, from.address, header.nonce, now) {
            let cookie = self.cookie(from.address, header.nonce, now);
            let to = Header {
                identifier: 0,
                ..header
            };
            return (
                Outcome::Challenged,
                self.answer(to, &Body::Challenge(cookie)),
            );
        }
        let name = (
            registration.location().to_owned(),
            registration.agent().to_owned(),
        );
        if let Some(&identifier) = self.names.get(&name)
            && let Some(agent) = self.agents.get_mut(&identifier)
        {
            if agent.nonce == header.nonce && !agent.stopped {
                // Its acknowledgement got lost, or the network has doubled it.
                let is_last = agent.received.take(header.sequence);
                let token = self.token(from.address, identifier);
                if is_last && let Some(agent) = self.agents.get_mut(&identifier) {
                    agent.move_to(from, token, &self.directory);
                }
                let answer = self.control(identifier, Body::Acknowledgement, Some(token), now);
                return (Outcome::Duplicate, answer);
            }
            // A cookie is good for one registration only, and none that was made before
            // it: or whoever has recorded one could put it in the place of a live agent.
            if cookie.issued <= agent.cookie {
                return (Outcome::Replayed, None);
            }
            let is_live = !agent.stopped && now.since(agent.heard_at) < self.settings.interval * 2;
            if is_live && agent.peer.address != from.address {
                self.counters.displaced += 1;
            }
            self.remove(identifier);
        } else if self.agents.len() >= self.settings.max_agents && !self.evict() {
            return (Outcome::Full, None);
        }
        let identifier = loop {
            let identifier = self.rng.u64(1..);
            if !self.agents.contains_key(&identifier) {
                break identifier;
            }
        };
        let servers = registration.servers().len();
        let control = Control {
            token: self.token(from.address, identifier),
            interval: self.settings.interval,
            lease: self.settings.lease,
            silence: self.settings.silence(),
            wants_update: false,
            location_unknown: true,
            servers: vec![ServerControl::default(); servers],
        };
        let mut agent = Agent {
            registration,
            nonce: header.nonce,
            cookie: cookie.issued,
            peer: from,
            key: header.key,
            received: Window::new(header.sequence),
            registered_at: now,
            heard_at: now,
            measurement: None,
            stopped: false,
            location: None,
            servers: vec![Reported::default(); servers],
            out: Out {
                control,
                sent: 0,
                news: 0,
                confirmed: 0,
                sent_at: now,
                tries: 0,
                asked: false,
            },
        };
        agent.connect(&self.directory);
        agent.refresh(&self.settings);
        // Until it has the Acknowledgement, the agent asks again by itself.
        agent.out.confirmed = agent.out.news;
        self.agents.insert(identifier, agent);
        self.names.insert(name, identifier);
        self.version += 1;
        let answer = self.control(identifier, Body::Acknowledgement, None, now);
        (Outcome::Registered, answer)
    }

    fn update(
        &mut self,
        from: Peer,
        len: usize,
        header: Header,
        update: Update,
        now: Instant,
    ) -> (Outcome, Option<Vec<u8>>) {
        let token = self.token_elsewhere(from, header.identifier);
        let Some(agent) = self.agents.get_mut(&header.identifier) else {
            return self.register_again(header);
        };
        if agent.nonce != header.nonce {
            return self.register_again(header);
        }
        if let Err(outcome) = agent.received.look(header.sequence) {
            return (outcome, None);
        }
        if agent.stopped {
            return self.register_again(header);
        }
        if update.servers.len() != agent.servers.len() || update.heard > agent.out.sent {
            return (Outcome::Invalid(Invalid::Malformed), None);
        }
        // A load that is not taken is no reason not to hear that a server is down.
        let untaken = agent.report(&update, now);
        let outcome = untaken
            .as_ref()
            .map_or(Outcome::Updated, |untaken| untaken.why);
        if untaken.is_some() {
            self.counters.untaken = untaken;
        }
        // From here on it counts.
        agent.received.take(header.sequence);
        agent.heard_at = now;
        agent.key = header.key;
        agent.out.confirmed = agent.out.confirmed.max(update.heard);
        for (server, state) in agent.servers.iter_mut().zip(update.servers) {
            if server.state != state {
                server.state = state;
                self.version += 1;
            }
        }
        // It has moved if it knows what only somebody at the new address can know. Until
        // then Queries go to where it was; this one tells it, and is no longer than what
        // it answers.
        let mut answer = None;
        if let Some(token) = token {
            if update.token == token {
                agent.move_to(from, token, &self.directory);
                self.version += 1;
            } else {
                answer = self.control(header.identifier, Body::Query, Some(token), now);
                answer = answer.filter(|answer| answer.len() <= len);
            }
        }
        (outcome, answer)
    }

    fn register_again(&self, header: Header) -> (Outcome, Option<Vec<u8>>) {
        let answer = self.answer(header, &Body::RegisterAgain);
        (Outcome::UnknownIdentifier, answer)
    }

    fn stop(&mut self, header: Header, now: Instant) -> (Outcome, Option<Vec<u8>>) {
        let answer = self.answer(header, &Body::StopAcknowledgement);
        let agent = self.agents.get_mut(&header.identifier);
        let Some(agent) = agent.filter(|agent| agent.nonce == header.nonce) else {
            // After a restart nobody is assigned to its servers because of it anyway.
            return (Outcome::UnknownIdentifier, answer);
        };
        match agent.received.look(header.sequence) {
            // A Stop came before if it is the last one of its sequence.
            Err(Outcome::Duplicate) if agent.stopped => (Outcome::Duplicate, answer),
            Err(outcome) => (outcome, None),
            Ok(()) => {
                agent.received.take(header.sequence);
                agent.heard_at = now;
                let outcome = if std::mem::replace(&mut agent.stopped, true) {
                    Outcome::Duplicate
                } else {
                    Outcome::Stopped
                };
                self.version += u64::from(outcome == Outcome::Stopped);
                (outcome, answer)
            }
        }
    }

    /// Looks at all agents, if it is time: forgets those that are silent, and appends to
    /// `out` what the others are to be told. Answers when to come again.
    pub fn poll(&mut self, now: Instant, out: &mut Vec<Datagram>) -> Option<Instant> {
        if self.agents.is_empty() {
            return None;
        }
        if let Some(next) = self.swept_at.map(|at| at.after(SWEEP))
            && now < next
        {
            return Some(next);
        }
        self.swept_at = Some(now);
        let mut silent = Vec::new();
        let mut due = Vec::new();
        for (&identifier, agent) in &mut self.agents {
            if agent.is_over(now, self.settings.forget) {
                silent.push((identifier, agent.stopped));
            } else if !agent.stopped {
                agent.refresh(&self.settings);
                if agent.is_due(&self.settings, now) {
                    due.push((identifier, agent.peer));
                }
            }
        }
        for (identifier, stopped) in silent {
            self.counters.forgotten += u64::from(!stopped);
            self.remove(identifier);
        }
        for (identifier, peer) in due {
            if let Some(query) = self.control(identifier, Body::Query, None, now) {
                self.counters.sent += 1;
                out.push((peer, query));
            }
        }
        Some(now.after(SWEEP))
    }

    /// The next Control for an agent. To another address than its own goes `token`, which
    /// is the one of that address.
    fn control(
        &mut self,
        identifier: u64,
        message: fn(Control) -> Body,
        token: Option<u64>,
        now: Instant,
    ) -> Option<Vec<u8>> {
        let agent = self.agents.get_mut(&identifier)?;
        let is_silent = now.since(agent.heard_at) > self.settings.keepalive;
        let out = &mut agent.out;
        out.sent += 1;
        let mut control = out.control.clone();
        match token {
            Some(token) => control.token = token,
            None => {
                control.wants_update = out.asked || !out.is_confirmed() || is_silent;
                out.asked = false;
                out.tries += u32::from(!out.is_confirmed());
                out.sent_at = now;
            }
        }
        let key = self.keys.get(agent.key);
        let key = key.unwrap_or_else(|| self.keys.first());
        let body = message(control);
        Some(message::seal(agent.nonce, identifier, out.sent, &body, key))
    }

    fn remove(&mut self, identifier: u64) {
        if let Some(agent) = self.agents.remove(&identifier) {
            let registration = &agent.registration;
            let name = (registration.location(), registration.agent());
            self.names.remove(&(name.0.to_owned(), name.1.to_owned()));
            self.counters.lost = self.counters.lost.saturating_add(agent.received.lost);
            self.version += 1;
        }
    }

    /// Makes room by forgetting who has signed off the longest ago, if anybody has.
    fn evict(&mut self) -> bool {
        let stopped = self.agents.iter().filter(|(_, agent)| agent.stopped);
        let oldest = stopped.min_by_key(|(_, agent)| agent.heard_at);
        let oldest = oldest.map(|(&identifier, _)| identifier);
        oldest.map(|identifier| self.remove(identifier)).is_some()
    }

    fn cookie(&self, address: SocketAddr, nonce: u64, now: Instant) -> Cookie {
        let (ip, port) = bytes(address);
        let issued = now.as_nanos().to_be_bytes();
        let parts = [
            b"cookie".as_slice(),
            ip.as_slice(),
            &port,
            &nonce.to_be_bytes(),
            &issued,
        ];
        Cookie {
            issued: now,
            proof: self.secret.tag(&parts),
        }
    }

    fn is_cookie(&self, cookie: &Cookie, address: SocketAddr, nonce: u64, now: Instant) -> bool {
        let (ip, port) = bytes(address);
        let issued = cookie.issued.as_nanos().to_be_bytes();
        let parts = [
            b"cookie".as_slice(),
            ip.as_slice(),
            &port,
            &nonce.to_be_bytes(),
            &issued,
        ];
        now.since(cookie.issued) <= COOKIE_LIFETIME
            && *cookie != Cookie::NONE
            && self.secret.is_tag(&parts, &cookie.proof)
    }

    /// What only somebody at `address` can know: it is sent nowhere else.
    fn token(&self, address: SocketAddr, identifier: u64) -> u64 {
        let (ip, port) = bytes(address);
        let parts = [
            b"token".as_slice(),
            ip.as_slice(),
            &port,
            &identifier.to_be_bytes(),
        ];
        let tag = self.secret.tag(&parts);
        u64::from_be_bytes(*tag.first_chunk().unwrap_or(&[0; 8]))
    }

    /// The token of `from`, if that is not where the agent is.
    fn token_elsewhere(&self, from: Peer, identifier: u64) -> Option<u64> {
        let agent = self.agents.get(&identifier)?;
        (agent.peer != from).then(|| self.token(from.address, identifier))
    }
}

/// An address as bytes of which no two addresses have the same.
fn bytes(address: SocketAddr) -> ([u8; 16], [u8; 2]) {
    let ip = match address.ip() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    (ip.octets(), address.port().to_be_bytes())
}

impl Settings {
    /// After how long without a message an agent takes the broker for gone.
    fn silence(&self) -> Duration {
        let silence = self.keepalive * SILENT_KEEPALIVES;
        Duration::from_secs(silence.as_millis().div_ceil(1000).clamp(1, 65535) as u64)
    }
}

impl Agent {
    /// Finds its location and members.
    fn connect(&mut self, directory: &Directory) {
        self.location = directory.location(self.registration.location()).cloned();
        let source = self.peer.address.ip();
        for (reported, server) in self.servers.iter_mut().zip(self.registration.servers()) {
            reported.members = directory.members(server, source);
        }
    }

    /// It has proved to be somewhere else.
    fn move_to(&mut self, peer: Peer, token: u64, directory: &Directory) {
        self.peer = peer;
        self.out.control.token = token;
        self.connect(directory);
    }

    /// Takes in the loads of an Update: each that can be a load and for which its location
    /// has room. Answers one that was not taken.
    fn report(&mut self, update: &Update, now: Instant) -> Option<Untaken> {
        // The same measurement comes again in answer to a Query. It must not count twice:
        // what requests add to a load is estimated from one report to the next.
        let is_known = self
            .measurement
            .is_some_and(|(number, _)| number == update.measurement);
        if update.measurement == 0 || is_known || update.age > MAX_INTERVAL {
            return None;
        }
        let age = u64::try_from(update.age.as_nanos()).unwrap_or(u64::MAX);
        let at = Instant::from_nanos(now.as_nanos().saturating_sub(age));
        // Once there is one, the agent is told, and its answer brings the loads again.
        let location = self.location.as_ref()?;
        self.measurement = Some((update.measurement, at));
        let mut untaken = None;
        for &(load, value) in &update.loads {
            let stored = match LoadValue::new(value.into()) {
                Ok(value) => location
                    .report(load, value, at)
                    .map_err(|_| Outcome::TooManyLoads),
                Err(_) => Err(Outcome::Load),
            };
            if let Err(why) = stored {
                untaken.get_or_insert_with(|| Untaken {
                    location: self.registration.location().to_owned(),
                    load,
                    why,
                });
            }
        }
        untaken
    }

    /// Works out what the agent is to be told now.
    fn refresh(&mut self, settings: &Settings) {
        let out = &mut self.out;
        let control = &mut out.control;
        let mut is_news = false;
        let mut set = |is_new: bool| is_news |= is_new;
        for (control, reported) in control.servers.iter_mut().zip(&self.servers) {
            let is = ServerControl {
                alert: reported.members.iter().any(is_alerted),
                unknown: reported.members.is_empty(),
            };
            set(std::mem::replace(control, is) != is);
        }
        let unknown = self.location.is_none();
        set(std::mem::replace(&mut control.location_unknown, unknown) != unknown);
        set(std::mem::replace(&mut control.interval, settings.interval) != settings.interval);
        set(std::mem::replace(&mut control.lease, settings.lease) != settings.lease);
        let silence = settings.silence();
        set(std::mem::replace(&mut control.silence, silence) != silence);
        if is_news {
            out.news = out.sent + 1;
            out.tries = 0;
        }
    }

    /// Whether it is time for a Query.
    fn is_due(&self, settings: &Settings, now: Instant) -> bool {
        let out = &self.out;
        let wait = match out.is_confirmed() {
            _ if out.asked => Duration::ZERO,
            false if out.tries == 0 => Duration::ZERO,
            false => {
                let wait = FIRST_RETRY * (1 << (out.tries - 1).min(8));
                wait.min(LAST_RETRY.max(settings.interval))
            }
            // A lease is renewed at each interval, so that it survives losses.
            true if out.control.servers.iter().any(|server| server.alert) => settings.interval,
            true => settings.keepalive,
        };
        now.since(out.sent_at) >= wait.min(settings.keepalive)
    }

    /// Whether nothing is to be kept of it. Who has signed off is remembered for as long
    /// as there are members that get no clients because of it.
    fn is_over(&self, now: Instant, forget: Duration) -> bool {
        let is_needed = self.stopped && self.servers.iter().any(|s| !s.members.is_empty());
        !is_needed && now.since(self.heard_at) > forget
    }
}

/// Whether a member should send its clients back.
fn is_alerted(member: &Member) -> bool {
    member.slot.has(Reason::Shedding)
}

impl Out {
    fn is_confirmed(&self) -> bool {
        self.confirmed >= self.news
    }
}

/// Which sequence numbers of an agent have come, as far as it matters.
#[derive(Clone, Copy, Debug)]
struct Window {
    last: u64,
    /// Bit n is set if `last - n` has come.
    seen: u64,
    /// Numbers up to `last` that have not come.
    lost: u64,
}

impl Window {
    fn new(first: u64) -> Self {
        Window {
            last: first,
            seen: 1,
            lost: 0,
        }
    }

    /// Whether `sequence` comes after all that came, or else why it is of no use.
    fn look(&mut self, sequence: u64) -> Result<(), Outcome> {
        let Some(back) = self.last.checked_sub(sequence) else {
            return Ok(());
        };
        let bit = match back {
            0..64 => 1 << back,
            _ => return Err(Outcome::Replayed),
        };
        if self.seen & bit != 0 {
            return Err(Outcome::Duplicate);
        }
        self.seen |= bit;
        self.lost = self.lost.saturating_sub(1);
        Err(Outcome::Reordered)
    }

    /// Notes that `sequence` has come; answers whether that is after all others.
    fn take(&mut self, sequence: u64) -> bool {
        let Some(step @ 1..) = sequence.checked_sub(self.last) else {
            return false;
        };
        let shift = u32::try_from(step).unwrap_or(u32::MAX);
        self.seen = self.seen.checked_shl(shift).unwrap_or(0) | 1;
        self.lost = self.lost.saturating_add(step - 1);
        self.last = sequence;
        true
    }
}
