//! The agent's side of one registration.
//!
//! A [`Session`] registers, sends an Update for each measurement, does what the broker's
//! Queries say, registers again when the broker has forgotten it or is gone, and signs
//! off. It does no I/O: give it each datagram that comes ([`Session::receive_datagram`]) and each
//! measurement ([`Session::update_loads`]), and after either, and at the deadline that
//! [`Session::poll`] gives, poll it until it gives no more datagrams.
//!
//! Several sessions may share a socket: [`Session::receive_datagram`] refuses what is for another
//! one as [`DatagramRefusal::Other`].

use std::time::Duration;

use evenkeel_core::load::{LoadId, LoadValue};
use evenkeel_core::time::Instant;

use super::keys::Keys;
use super::message::{
    self, Body, Control, Cookie, Invalid, MAX_LOADS, Registration, ServerControl, ServerState,
    Update,
};

/// The interval between two measurements until the broker has named one.
pub const FIRST_INTERVAL: Duration = Duration::from_secs(1);

/// Time after which a message that got no answer is sent again. It doubles with each try.
pub const FIRST_RETRY: Duration = Duration::from_millis(500);

/// Longest time between two tries.
pub const LAST_RETRY: Duration = Duration::from_secs(10);

/// Stops that are sent before the session ends without an acknowledgement.
pub const MAX_STOPS: u32 = 5;

/// State of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// The broker does not know the agent yet, or not any more, or does not answer.
    Registering,
    /// The broker takes its Updates.
    Registered,
    /// The session has signed off and waits for the acknowledgement.
    Stopping,
    /// The session has ended.
    Stopped,
}

/// Effect of a datagram from the broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The broker wants a proof of the address; the session gives it.
    Challenged,
    /// The broker has accepted the registration.
    Registered,
    /// The broker has said how to report: interval or alerts may have changed.
    Controlled,
    /// The broker does not know the agent any more; the session registers again.
    Forgotten,
    /// The broker has acknowledged the end.
    Stopped,
}

/// Reason why a datagram has changed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DatagramRefusal {
    /// The datagram is no message that the broker has sent.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// The datagram is for another session, or of an earlier registration of this one.
    #[error("the datagram is for another session")]
    Other,
    /// A later one, or the same one, came before it.
    #[error("the datagram is late or repeated")]
    Late,
    /// The datagram answers nothing that this session has asked.
    #[error("the datagram is not expected now")]
    Unexpected,
}

/// Next action of the caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Poll {
    /// Send this to the broker, and poll again.
    Send(Vec<u8>),
    /// Nothing until then, unless a datagram or a measurement comes.
    Wait(Instant),
    /// Nothing any more: the session has ended.
    Done,
}

/// Session of one registration, from the first message to the last.
#[derive(Debug)]
pub struct Session {
    registration: Registration,
    keys: Keys,
    rng: fastrand::Rng,
    phase: Phase,
    nonce: u64,
    /// Sequence number of the last message sent with this nonce.
    sequence: u64,
    report: Option<Report>,
    servers: Vec<Server>,
    interval: Duration,
    location_unknown: bool,
}

#[derive(Debug)]
enum Phase {
    Registering {
        cookie: Cookie,
        retry: Retry,
        challenge: Challenge,
    },
    Registered(BrokerRegistration),
    Stopping {
        identifier: u64,
        retry: Retry,
    },
    Stopped,
}

/// State of the answer to a Challenge. Only the first Challenge after each timed Registration is
/// answered at once, so that a broker and an agent that do not come to terms (a NAT that gives each
/// datagram another port) do not exchange messages as fast as they can.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Challenge {
    None,
    Due,
    Answered,
}

#[derive(Debug)]
struct BrokerRegistration {
    identifier: u64,
    /// The sequence number and the token of the last Control.
    heard: u64,
    token: u64,
    heard_at: Instant,
    silence: Duration,
    update_due: bool,
}

/// Time at which a message that gets no answer is sent again.
#[derive(Debug)]
struct Retry {
    tries: u32,
    at: Instant,
}

/// The last measurement.
#[derive(Debug)]
struct Report {
    number: u32,
    at: Instant,
    loads: Vec<(LoadId, f32)>,
}

#[derive(Clone, Debug, Default)]
struct Server {
    state: ServerState,
    unknown: bool,
    alert_until: Option<Instant>,
}

impl Session {
    /// A session that will register at the first poll. `rng` spreads what many agents
    /// would else do at the same time, and tells registrations apart: it must not be
    /// seeded alike in two runs.
    pub fn new(
        registration: Registration,
        keys: Keys,
        now: Instant,
        mut rng: fastrand::Rng,
    ) -> Self {
        Session {
            nonce: rng.u64(..),
            servers: vec![Server::default(); registration.servers().len()],
            registration,
            keys,
            rng,
            phase: Phase::registering(now),
            sequence: 0,
            report: None,
            interval: FIRST_INTERVAL,
            location_unknown: false,
        }
    }

    /// Returns the registration of the session.
    pub fn registration(&self) -> &Registration {
        &self.registration
    }

    /// Returns the state of the session.
    pub fn state(&self) -> State {
        match self.phase {
            Phase::Registering { .. } => State::Registering,
            Phase::Registered(_) => State::Registered,
            Phase::Stopping { .. } => State::Stopping,
            Phase::Stopped => State::Stopped,
        }
    }

    /// The nonce of all messages of this session now: [`message::peek_header`] tells to which of
    /// several sessions a datagram belongs.
    pub fn nonce(&self) -> u64 {
        self.nonce
    }

    /// The time between two measurements that the broker wants.
    pub fn measuring_interval(&self) -> Duration {
        self.interval
    }

    /// The number that the broker gave the registration.
    pub fn identifier(&self) -> Option<u64> {
        match &self.phase {
            Phase::Registered(BrokerRegistration { identifier, .. })
            | Phase::Stopping { identifier, .. } => Some(*identifier),
            Phase::Registering { .. } | Phase::Stopped => None,
        }
    }

    /// Returns for each server, in the order of the registration, until when it is under a load
    /// alert; `None` is not at all. An alert is a lease: the broker renews it, and if the broker is
    /// lost the alert ends by itself.
    pub fn server_alerts(&self, now: Instant) -> impl Iterator<Item = Option<Instant>> + '_ {
        let servers = self.servers.iter();
        servers.map(move |server| server.alert_until.filter(|until| *until > now))
    }

    /// Returns for each server, in the order of the registration, true if the broker knows no
    /// member for it: a group or an address is probably misspelt on one side.
    pub fn unknown_servers(&self) -> impl Iterator<Item = bool> + '_ {
        self.servers.iter().map(|server| server.unknown)
    }

    /// Returns true if the broker has no member at the location.
    pub fn is_location_unknown(&self) -> bool {
        self.location_unknown
    }

    /// Signs with the first of `keys` from now on, and accepts each of them.
    pub fn set_keys(&mut self, keys: Keys) {
        self.keys = keys;
    }

    /// Takes in a measurement that has just ended: it is sent at the next poll, or as
    /// soon as the agent is registered. `servers` is in the order of the registration;
    /// missing ones are [`ServerState::Up`]. Of more loads than an Update has
    /// room for ([`MAX_LOADS`]) only the first are sent.
    pub fn update_loads(
        &mut self,
        loads: &[(LoadId, LoadValue)],
        servers: &[ServerState],
        now: Instant,
    ) {
        let number = self
            .report
            .as_ref()
            .map_or(1, |last| last.number.wrapping_add(1));
        let mut kept: Vec<(LoadId, f32)> = Vec::with_capacity(loads.len());
        for (id, value) in loads {
            let is_new = kept.iter().all(|(known, _)| known != id);
            if is_new && kept.len() < MAX_LOADS {
                kept.push((*id, value.get()));
            }
        }
        self.report = Some(Report {
            number,
            at: now,
            loads: kept,
        });
        let states = servers
            .iter()
            .copied()
            .chain(std::iter::repeat(ServerState::Up));
        for (server, state) in self.servers.iter_mut().zip(states) {
            server.state = state;
        }
        if let Phase::Registered(registered) = &mut self.phase {
            registered.update_due = true;
        }
    }

    /// Signs off: asks the broker to assign no more clients to the servers. The session
    /// has ended when [`Session::poll`] gives [`Poll::Done`].
    pub fn stop(&mut self, now: Instant) {
        self.phase = match std::mem::replace(&mut self.phase, Phase::Stopped) {
            Phase::Registered(BrokerRegistration { identifier, .. }) => Phase::Stopping {
                identifier,
                retry: Retry::new(now),
            },
            stopping @ Phase::Stopping { .. } => stopping,
            // The broker holds nothing that it would have to be told about.
            Phase::Registering { .. } | Phase::Stopped => Phase::Stopped,
        };
    }

    /// Takes in a datagram from the broker.
    pub fn receive_datagram(
        &mut self,
        datagram: &[u8],
        now: Instant,
    ) -> Result<Event, DatagramRefusal> {
        if message::peek_header(datagram)?.nonce != self.nonce {
            return Err(DatagramRefusal::Other);
        }
        let (header, body) = message::open_message(datagram, &self.keys, false)?;
        match (&mut self.phase, body) {
            (
                Phase::Registering {
                    cookie, challenge, ..
                },
                Body::Challenge(new),
            ) => {
                // One answer for each Registration: a repeated Challenge gets none.
                if header.sequence != self.sequence {
                    return Err(DatagramRefusal::Late);
                }
                *cookie = new;
                if *challenge == Challenge::None {
                    *challenge = Challenge::Due;
                }
                Ok(Event::Challenged)
            }
            (Phase::Registering { .. }, Body::Acknowledgement(control)) => {
                self.phase = Phase::Registered(BrokerRegistration {
                    identifier: header.identifier,
                    heard: 0,
                    token: 0,
                    heard_at: now,
                    silence: control.silence,
                    update_due: self.report.is_some(),
                });
                self.take_control(header.sequence, control, now)?;
                Ok(Event::Registered)
            }
            (
                Phase::Registered(BrokerRegistration { identifier, .. }),
                Body::Acknowledgement(control) | Body::Query(control),
            ) if *identifier == header.identifier => {
                self.take_control(header.sequence, control, now)?;
                Ok(Event::Controlled)
            }
            (Phase::Registered(registered), Body::RegisterAgain)
                if registered.identifier == header.identifier =>
            {
                self.register(now);
                Ok(Event::Forgotten)
            }
            (Phase::Stopping { identifier, .. }, Body::StopAcknowledgement)
                if *identifier == header.identifier =>
            {
                self.phase = Phase::Stopped;
                Ok(Event::Stopped)
            }
            _ => Err(DatagramRefusal::Unexpected),
        }
    }

    fn take_control(
        &mut self,
        sequence: u64,
        control: Control,
        now: Instant,
    ) -> Result<(), DatagramRefusal> {
        let Phase::Registered(registered) = &mut self.phase else {
            return Err(DatagramRefusal::Unexpected);
        };
        if sequence <= registered.heard {
            return Err(DatagramRefusal::Late);
        }
        registered.heard = sequence;
        registered.token = control.token;
        registered.heard_at = now;
        registered.silence = control.silence;
        registered.update_due |= control.wants_update;
        self.interval = control.interval;
        self.location_unknown = control.location_unknown;
        let until = now.after(control.lease_time());
        let nothing = std::iter::repeat(ServerControl::default());
        let said = control.servers.into_iter().chain(nothing);
        for (server, said) in self.servers.iter_mut().zip(said) {
            server.alert_until = said.alert.then_some(until);
            server.unknown = said.unknown;
        }
        Ok(())
    }

    /// Starts a new registration. Alerts go on until their leases end.
    fn register(&mut self, now: Instant) {
        self.nonce = self.rng.u64(..);
        self.sequence = 0;
        self.phase = Phase::registering(now);
    }

    /// Returns the next action of the caller.
    pub fn poll(&mut self, now: Instant) -> Poll {
        if let Phase::Registered(registered) = &self.phase
            && now >= registered.gone_at()
        {
            self.register(now);
        }
        let (identifier, body) = match &mut self.phase {
            Phase::Registering {
                cookie,
                retry,
                challenge,
            } => {
                *challenge = match *challenge {
                    Challenge::Due => Challenge::Answered,
                    _ if now < retry.at => return Poll::Wait(retry.at),
                    _ => Challenge::None,
                };
                retry.note_try(now, &mut self.rng);
                (0, Body::Registration(*cookie, self.registration.clone()))
            }
            Phase::Registered(registered) => {
                if !std::mem::take(&mut registered.update_due) {
                    return Poll::Wait(registered.gone_at());
                }
                let update = Update {
                    token: registered.token,
                    last_control: registered.heard,
                    measurement: self.report.as_ref().map_or(0, |report| report.number),
                    age: self
                        .report
                        .as_ref()
                        .map_or(Duration::ZERO, |r| now.since(r.at)),
                    servers: self.servers.iter().map(|server| server.state).collect(),
                    loads: self
                        .report
                        .as_ref()
                        .map(|r| r.loads.clone())
                        .unwrap_or_default(),
                };
                (registered.identifier, Body::Update(update))
            }
            Phase::Stopping { retry, .. } if now < retry.at => return Poll::Wait(retry.at),
            Phase::Stopping { retry, .. } if retry.tries == MAX_STOPS => {
                self.phase = Phase::Stopped;
                return Poll::Done;
            }
            Phase::Stopping { identifier, retry } => {
                retry.note_try(now, &mut self.rng);
                (*identifier, Body::Stop)
            }
            Phase::Stopped => return Poll::Done,
        };
        self.sequence += 1;
        let key = self.keys.signing_key();
        Poll::Send(message::seal_message(
            self.nonce,
            identifier,
            self.sequence,
            &body,
            key,
        ))
    }
}

impl Phase {
    fn registering(now: Instant) -> Self {
        Phase::Registering {
            cookie: Cookie::NONE,
            retry: Retry::new(now),
            challenge: Challenge::None,
        }
    }
}

impl BrokerRegistration {
    fn gone_at(&self) -> Instant {
        self.heard_at.after(self.silence)
    }
}

impl Retry {
    fn new(now: Instant) -> Self {
        Retry { tries: 0, at: now }
    }

    /// Notes a try: the next one comes after a time that doubles, a quarter more or less.
    fn note_try(&mut self, now: Instant, rng: &mut fastrand::Rng) {
        let wait = (FIRST_RETRY * (1 << self.tries.min(8))).min(LAST_RETRY);
        self.tries += 1;
        self.at = now.after(wait.mul_f32(0.75 + 0.5 * rng.f32()));
    }
}

#[cfg(test)]
mod tests {
    use super::super::keys::Key;
    use super::super::message::Header;
    use super::*;

    fn keys(ids: &[u16]) -> Keys {
        let key = |id: &u16| Key::new(*id, &[*id as u8; 32]).unwrap();
        Keys::new(ids.iter().map(key).collect()).unwrap()
    }

    fn at(millis: u64) -> Instant {
        Instant::from_nanos(millis * 1_000_000)
    }

    fn session() -> Session {
        let server = |port| message::Server {
            group: "web".into(),
            host: String::new(),
            port,
            weight: None,
        };
        let registration = Registration::new("rack-1", "a", vec![server(80), server(81)]);
        Session::new(
            registration.unwrap(),
            keys(&[1]),
            at(0),
            fastrand::Rng::with_seed(7),
        )
    }

    /// Returns the message that the session sends now, decoded.
    fn sent(session: &mut Session, now: Instant) -> (Header, Body) {
        match session.poll(now) {
            Poll::Send(datagram) => message::open_message(&datagram, &keys(&[1]), true).unwrap(),
            other => panic!("expected a datagram, not {other:?}"),
        }
    }

    fn wait(session: &mut Session, now: Instant) -> Instant {
        match session.poll(now) {
            Poll::Wait(until) => until,
            other => panic!("expected nothing to do, not {other:?}"),
        }
    }

    fn control(alerts: [bool; 2]) -> Control {
        Control {
            token: 99,
            interval: Duration::from_millis(500),
            lease: 3,
            silence: Duration::from_secs(30),
            wants_update: false,
            location_unknown: false,
            servers: alerts
                .map(|alert| ServerControl {
                    alert,
                    unknown: false,
                })
                .to_vec(),
        }
    }

    fn answer(to: Header, identifier: u64, sequence: u64, body: Body) -> Vec<u8> {
        let keys = keys(&[1]);
        message::seal_message(to.nonce, identifier, sequence, &body, keys.signing_key())
    }

    /// A session that is registered as number 5 since `at(0)`.
    fn registered() -> (Session, Header) {
        let mut session = session();
        let (first, _) = sent(&mut session, at(0));
        let acknowledgement = Body::Acknowledgement(control([false, false]));
        let event = session.receive_datagram(&answer(first, 5, 1, acknowledgement), at(0));
        assert_eq!(event, Ok(Event::Registered));
        (session, first)
    }

    #[test]
    fn it_registers_reports_and_signs_off() {
        let mut session = session();
        let (first, body) = sent(&mut session, at(0));
        assert_eq!(
            body,
            Body::Registration(Cookie::NONE, session.registration().clone())
        );
        assert_eq!((first.identifier, first.sequence), (0, 1));
        let retry = wait(&mut session, at(0));
        assert!(at(375) <= retry && retry <= at(625), "{retry:?}");

        let cookie = Cookie {
            issued: at(3),
            proof: [7; 16],
        };
        let challenge = answer(first, 0, 1, Body::Challenge(cookie));
        assert_eq!(
            session.receive_datagram(&challenge, at(10)),
            Ok(Event::Challenged)
        );
        let (second, body) = sent(&mut session, at(10));
        assert!(matches!(body, Body::Registration(sent, _) if sent == cookie));
        assert_eq!(second.nonce, first.nonce);
        assert_eq!(
            session.receive_datagram(&challenge, at(11)),
            Err(DatagramRefusal::Late)
        );

        session.update_loads(&[(LoadId::CPU, LoadValue::new(0.5).unwrap())], &[], at(12));
        let acknowledgement = Body::Acknowledgement(control([false, true]));
        let acknowledgement = answer(second, 5, 1, acknowledgement);
        assert_eq!(
            session.receive_datagram(&acknowledgement, at(20)),
            Ok(Event::Registered)
        );
        assert_eq!(session.measuring_interval(), Duration::from_millis(500));
        assert_eq!(
            session.receive_datagram(&acknowledgement, at(20)),
            Err(DatagramRefusal::Late)
        );
        let alerts: Vec<_> = session.server_alerts(at(20)).collect();
        assert_eq!(alerts, [None, Some(at(1520))]);
        assert_eq!(session.server_alerts(at(1520)).flatten().count(), 0);

        let (header, body) = sent(&mut session, at(22));
        assert_eq!((header.identifier, header.sequence), (5, 3));
        let update = Update {
            token: 99,
            last_control: 1,
            measurement: 1,
            age: Duration::from_millis(10),
            servers: vec![ServerState::Up; 2],
            loads: vec![(LoadId::CPU, 0.5)],
        };
        assert_eq!(body, Body::Update(update));
        assert_eq!(wait(&mut session, at(22)), at(30_020));

        session.stop(at(30));
        let (header, body) = sent(&mut session, at(30));
        assert_eq!(body, Body::Stop);
        let done = answer(header, 5, header.sequence, Body::StopAcknowledgement);
        assert_eq!(session.receive_datagram(&done, at(40)), Ok(Event::Stopped));
        assert_eq!(session.poll(at(40)), Poll::Done);
        assert_eq!(session.state(), State::Stopped);
    }

    #[test]
    fn a_query_is_answered_at_once_with_the_last_measurement() {
        let (mut session, header) = registered();
        session.update_loads(&[], &[ServerState::Down], at(100));
        sent(&mut session, at(100));
        let query = Body::Query(Control {
            wants_update: true,
            ..control([false, false])
        });
        let query = answer(header, 5, 9, query);
        assert_eq!(
            session.receive_datagram(&query, at(150)),
            Ok(Event::Controlled)
        );
        let (_, body) = sent(&mut session, at(160));
        let Body::Update(update) = body else {
            panic!("expected an Update, not {body:?}")
        };
        assert_eq!((update.measurement, update.last_control), (1, 9));
        assert_eq!(update.age, Duration::from_millis(60));
        assert_eq!(update.servers, [ServerState::Down, ServerState::Up]);
        assert_eq!(
            session.receive_datagram(&query, at(170)),
            Err(DatagramRefusal::Late)
        );
        wait(&mut session, at(170));
    }

    #[test]
    fn it_registers_again_when_the_broker_has_forgotten_it_or_is_silent() {
        let (mut session, first) = registered();
        session.update_loads(&[], &[], at(100));
        let (update, _) = sent(&mut session, at(100));
        let forgotten = answer(update, 5, update.sequence, Body::RegisterAgain);
        assert_eq!(
            session.receive_datagram(&forgotten, at(200)),
            Ok(Event::Forgotten)
        );
        let (second, body) = sent(&mut session, at(200));
        assert_eq!(body.kind(), message::Kind::Registration);
        assert_ne!(second.nonce, first.nonce);
        assert_eq!(
            session.receive_datagram(&forgotten, at(200)),
            Err(DatagramRefusal::Other)
        );

        let acknowledgement = Body::Acknowledgement(control([false, false]));
        let acknowledgement = answer(second, 6, 1, acknowledgement);
        session.receive_datagram(&acknowledgement, at(300)).unwrap();
        sent(&mut session, at(300));
        assert_eq!(wait(&mut session, at(300)), at(30_300));
        let (third, _) = sent(&mut session, at(30_300));
        assert_eq!(session.state(), State::Registering);
        assert_ne!(third.nonce, second.nonce);
    }

    #[test]
    fn tries_come_ever_more_slowly_and_stops_end() {
        let mut session = session();
        let mut now = at(0);
        for _ in 0..20 {
            sent(&mut session, now);
            let next = wait(&mut session, now);
            assert!(next.since(now) <= LAST_RETRY.mul_f32(1.25));
            now = next;
        }
        assert!(now > at(120_000));
        session.stop(now);
        assert_eq!(session.poll(now), Poll::Done);

        let (mut session, _) = registered();
        session.stop(at(0));
        let mut now = at(0);
        for _ in 0..MAX_STOPS {
            assert_eq!(sent(&mut session, now).1, Body::Stop);
            now = wait(&mut session, now);
        }
        assert_eq!(session.poll(now), Poll::Done);
    }

    #[test]
    fn challenge_upon_challenge_does_not_make_it_hurry() {
        let mut session = session();
        let (mut last, _) = sent(&mut session, at(0));
        let mut sends = 1;
        for now in (10..10_000).step_by(10).map(at) {
            let challenge = answer(last, 0, last.sequence, Body::Challenge(Cookie::NONE));
            let _ = session.receive_datagram(&challenge, now);
            if let Poll::Send(datagram) = session.poll(now) {
                last = message::peek_header(&datagram).unwrap();
                sends += 1;
            }
        }
        assert!(sends < 14, "{sends}");
    }
}
