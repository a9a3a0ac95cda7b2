//! The broker's side of all registrations.
//!
//! A [`Broker`] answers each datagram at once, or not at all ([`Broker::receive_datagram`]), and
//! sends Queries when there is something to say ([`Broker::poll`]). It does no I/O.
//!
//! Two rules keep it from being misused against others. Nothing is remembered of a peer that has not
//! proved its address: the first Registration gets a *cookie* that the broker can check
//! without having kept it (the idea of the Photuris protocol, RFC 2522, section 3). And
//! to an address that has not been proved never go more bytes than came from there.
//!
//! Reports go straight to the [`Location`](evenkeel_core::load::Location) that they are about, which is memory.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_core::time::Instant;

use super::directory::Directory;
use super::keys::{Key, Keys, KeysError};
use super::message::{
    self, Body, Control, Cookie, Header, Invalid, Registration, ServerControl, Update,
};
use crate::window::{Window, WindowError};

mod agent;
mod outcome;
mod proof;
mod remembered;
mod settings;

use agent::{Agent, Out, Reported};
pub use agent::{AgentView, ServerView};
pub use outcome::{Counters, Outcome, Untaken};
use remembered::OneAgent;
pub use remembered::Remembered;
pub use settings::{COOKIE_LIFETIME, FIRST_RETRY, LAST_RETRY, Peer, SILENT_KEEPALIVES, Settings};

/// Interval at which the alerts of all agents are looked at.
pub const SWEEP: Duration = Duration::from_millis(50);

/// A datagram that the broker sends.
pub type Datagram = (Peer, Vec<u8>);

/// The broker's side of all registrations.
pub struct Broker {
    settings: Settings,
    keys: Keys,
    /// Secret of this process alone: for cookies and tokens.
    secret: Key,
    given_secret: [u8; 32],
    rng: fastrand::Rng,
    directory: Arc<Directory>,
    agents: HashMap<u64, Agent>,
    /// Identifiers by location and agent.
    names: HashMap<(String, String), u64>,
    counters: Counters,
    version: u64,
    swept_at: Option<Instant>,
}

impl std::fmt::Debug for Broker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let agents = self.agents.len();
        f.debug_struct("Broker")
            .field("agents", &agents)
            .finish_non_exhaustive()
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
            given_secret: *secret,
            rng,
            directory: Arc::default(),
            agents: HashMap::new(),
            names: HashMap::new(),
            counters: Counters::default(),
            version: 0,
            swept_at: None,
        })
    }

    /// Sets other settings, other keys, or both. Agents are told at the next sweep.
    pub fn set_settings(&mut self, settings: Settings, keys: Keys) {
        self.settings = settings;
        self.keys = keys;
    }

    /// Sets other members or locations: agents that registered for them are connected with them.
    pub fn set_directory(&mut self, directory: Arc<Directory>) {
        self.directory = directory;
        for agent in self.agents.values_mut() {
            agent.resolve_members(&self.directory);
        }
        self.version += 1;
    }

    /// Changes whenever agents, their servers, or what they say about these do.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Returns the counters of what has happened so far.
    pub fn counters(&self) -> Counters {
        let mut counters = self.counters.clone();
        // An agent numbers its messages as it likes, so this may be as much as there is.
        let lost = self.agents.values().map(|agent| agent.received.lost);
        counters.lost = lost.fold(counters.lost, u64::saturating_add);
        counters
    }

    /// All agents, in no order.
    pub fn list_agents(&self) -> impl Iterator<Item = AgentView<'_>> {
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
    pub fn query_agent(&mut self, location: &str, agent: &str) -> bool {
        let agent = self.by_name(location, agent).filter(|agent| !agent.stopped);
        agent.map(|agent| agent.out.asked = true).is_some()
    }

    /// Forgets an agent and what it said about its servers. One that lives registers
    /// again at its next Update. Answers whether there was such an agent.
    pub fn forget_agent(&mut self, location: &str, agent: &str) -> bool {
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
    pub fn receive_datagram(
        &mut self,
        from: Peer,
        datagram: &[u8],
        now: Instant,
    ) -> (Outcome, Option<Vec<u8>>) {
        let (outcome, answer) = match message::open_message(datagram, &self.keys, true) {
            Ok((header, body)) => self.take_message(from, datagram.len(), header, body, now),
            Err(invalid) => (Outcome::Invalid(invalid), None),
        };
        *self.counters.received.entry(outcome).or_default() += 1;
        // Every answer is shorter by its format, whatever is asked. Should that ever
        // change by mistake, silence is the better one.
        let answer = answer.filter(|answer| answer.len() <= datagram.len());
        self.counters.sent += u64::from(answer.is_some());
        (outcome, answer)
    }

    fn take_message(
        &mut self,
        from: Peer,
        len: usize,
        header: Header,
        body: Body,
        now: Instant,
    ) -> (Outcome, Option<Vec<u8>>) {
        match body {
            Body::Registration(cookie, registration) => {
                self.take_registration(from, header, cookie, registration, now)
            }
            Body::Update(update) => self.take_update(from, len, header, update, now),
            Body::Stop => self.stop(header, now),
            // `open` lets only those pass that come from agents.
            _ => (Outcome::Invalid(Invalid::Kind), None),
        }
    }

    /// An answer that needs no state: it repeats what it answers.
    fn answer_statelessly(&self, to: Header, body: &Body) -> Option<Vec<u8>> {
        let key = self.keys.get(to.key)?;
        Some(message::seal_message(
            to.nonce,
            to.identifier,
            to.sequence,
            body,
            key,
        ))
    }

    fn take_registration(
        &mut self,
        from: Peer,
        header: Header,
        cookie: Cookie,
        registration: Registration,
        now: Instant,
    ) -> (Outcome, Option<Vec<u8>>) {
        if !self.is_cookie(&cookie, from.address, header.nonce, now) {
            let cookie = self.new_cookie(from.address, header.nonce, now);
            let to = Header {
                identifier: 0,
                ..header
            };
            return (
                Outcome::Challenged,
                self.answer_statelessly(to, &Body::Challenge(cookie)),
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
                let token = self.compute_token(from.address, identifier);
                if is_last && let Some(agent) = self.agents.get_mut(&identifier) {
                    agent.move_to(from, token, &self.directory);
                }
                let answer = self.next_control(identifier, Body::Acknowledgement, Some(token), now);
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
        } else if self.agents.len() >= self.settings.max_agents && !self.evict_stopped() {
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
            token: self.compute_token(from.address, identifier),
            interval: self.settings.interval,
            lease: self.settings.lease,
            silence: self.settings.silence_limit(),
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
        agent.resolve_members(&self.directory);
        agent.refresh_control(&self.settings);
        // Until it has the Acknowledgement, the agent asks again by itself.
        agent.out.confirmed = agent.out.news;
        self.agents.insert(identifier, agent);
        self.names.insert(name, identifier);
        self.version += 1;
        let answer = self.next_control(identifier, Body::Acknowledgement, None, now);
        (Outcome::Registered, answer)
    }

    fn take_update(
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
        if let Err(late) = agent.received.check_sequence(header.sequence) {
            return (late.into(), None);
        }
        if agent.stopped {
            return self.register_again(header);
        }
        if update.servers.len() != agent.servers.len() || update.last_control > agent.out.sent {
            return (Outcome::Invalid(Invalid::Malformed), None);
        }
        // A load that is not taken is no reason not to hear that a server is down.
        let untaken = agent.report_loads(&update, now);
        let outcome = untaken
            .as_ref()
            .map_or(Outcome::Updated, |untaken| untaken.outcome);
        if untaken.is_some() {
            self.counters.untaken = untaken;
        }
        // From here on it counts.
        agent.received.take(header.sequence);
        agent.heard_at = now;
        agent.key = header.key;
        agent.out.confirmed = agent.out.confirmed.max(update.last_control);
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
                answer = self.next_control(header.identifier, Body::Query, Some(token), now);
                answer = answer.filter(|answer| answer.len() <= len);
            }
        }
        (outcome, answer)
    }

    fn register_again(&self, header: Header) -> (Outcome, Option<Vec<u8>>) {
        let answer = self.answer_statelessly(header, &Body::RegisterAgain);
        (Outcome::UnknownIdentifier, answer)
    }

    fn stop(&mut self, header: Header, now: Instant) -> (Outcome, Option<Vec<u8>>) {
        let answer = self.answer_statelessly(header, &Body::StopAcknowledgement);
        let agent = self.agents.get_mut(&header.identifier);
        let Some(agent) = agent.filter(|agent| agent.nonce == header.nonce) else {
            // After a restart nobody is assigned to its servers because of it anyway.
            return (Outcome::UnknownIdentifier, answer);
        };
        match agent.received.check_sequence(header.sequence) {
            // A Stop came before if it is the last one of its sequence.
            Err(WindowError::Duplicate) if agent.stopped => (Outcome::Duplicate, answer),
            Err(late) => (late.into(), None),
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
                agent.refresh_control(&self.settings);
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
            if let Some(query) = self.next_control(identifier, Body::Query, None, now) {
                self.counters.sent += 1;
                out.push((peer, query));
            }
        }
        Some(now.after(SWEEP))
    }

    /// The next Control for an agent. To another address than its own goes `token`, which
    /// is the one of that address.
    fn next_control(
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
        let key = key.unwrap_or_else(|| self.keys.signing_key());
        let body = message(control);
        Some(message::seal_message(
            agent.nonce,
            identifier,
            out.sent,
            &body,
            key,
        ))
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
    fn evict_stopped(&mut self) -> bool {
        let stopped = self.agents.iter().filter(|(_, agent)| agent.stopped);
        let oldest = stopped.min_by_key(|(_, agent)| agent.heard_at);
        let oldest = oldest.map(|(&identifier, _)| identifier);
        oldest.map(|identifier| self.remove(identifier)).is_some()
    }

    /// Returns what the broker knows. `socket` answers for one of its sockets what another process
    /// knows it by.
    pub fn export_state(&self, socket: impl Fn(usize) -> Option<usize>) -> Remembered {
        let agents = self.agents.iter().filter_map(|(&identifier, agent)| {
            let socket = socket(agent.peer.socket)?;
            Some(OneAgent::from_agent(identifier, agent, socket))
        });
        Remembered {
            secret: self.given_secret,
            agents: agents.collect(),
        }
    }

    /// Goes on with what another process knows; `socket` is as there. An agent that cannot be one is
    /// left out, and registers again.
    pub fn go_on(&mut self, known: Remembered, socket: impl Fn(usize) -> Option<usize>) {
        let Ok(secret) = Key::new(0, &known.secret) else {
            return;
        };
        self.secret = secret;
        self.given_secret = known.secret;
        for one in known.agents.into_iter().take(self.settings.max_agents) {
            let (identifier, of) = (one.identifier, socket(one.socket));
            let Some(mut agent) = of.and_then(|socket| one.into_agent(socket)) else {
                continue;
            };
            agent.out.control.token = self.compute_token(agent.peer.address, identifier);
            agent.resolve_members(&self.directory);
            let registration = &agent.registration;
            let name = (registration.location(), registration.agent());
            let name = (name.0.to_owned(), name.1.to_owned());
            self.names.insert(name, identifier);
            self.agents.insert(identifier, agent);
        }
        self.version += 1;
    }
}
