//! Link to a broker: a socket, and a session for each location.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_config::agent::Address;
use evenkeel_core::load::{LoadId, LoadValue};
use evenkeel_core::time::Instant;
use evenkeel_wire::reporting::client::{DatagramRefusal, Event, Poll, Session, State};
use evenkeel_wire::reporting::keys::Keys;
use evenkeel_wire::reporting::message::{self, Registration, ServerState};
use tokio::net::UdpSocket;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// Larger than any datagram of the protocol.
const MAX_DATAGRAM: usize = 2048;

/// Interval at which the broker's name is looked up again while the broker does not answer.
const LOOK_UP_AGAIN: Duration = Duration::from_secs(10);

/// Plan of a link: a broker, and the locations registered there.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Name of the broker, for logs.
    pub broker: String,
    /// Address of the broker.
    pub address: Address,
    /// The keys.
    pub keys: Keys,
    /// Registrations: a location each.
    pub registrations: Vec<RegisteredLocation>,
}

/// A location as it is registered at a broker.
#[derive(Clone, Debug)]
pub struct RegisteredLocation {
    /// Registration of the location.
    pub registration: Registration,
    /// For each server of the registration, its index among the agent's servers.
    pub servers: Vec<usize>,
}

/// Something that came in for a link: a datagram, or the broker's address.
#[derive(Debug)]
pub enum Incoming {
    /// A datagram from the broker.
    Datagram(Vec<u8>),
    /// A socket that is connected to the broker.
    Connected(Arc<UdpSocket>),
}

/// A link to a broker.
#[derive(Debug)]
pub struct Link {
    plan: Plan,
    /// Tells links apart, also from one that was here before.
    number: u64,
    incoming: mpsc::Sender<(u64, Incoming)>,
    socket: Option<Arc<UdpSocket>>,
    reader: Option<JoinHandle<()>>,
    looking_up: Option<JoinHandle<()>>,
    look_up_at: Instant,
    sessions: Vec<(Session, RegisteredLocation)>,
    said_unanswered: bool,
    /// Servers and groups of which the broker knows no member.
    unknown: BTreeMap<(usize, String), Unknown>,
}

impl Link {
    /// A link that will look up its broker's address and register at the first poll.
    pub fn new(
        plan: Plan,
        number: u64,
        incoming: mpsc::Sender<(u64, Incoming)>,
        now: Instant,
        rng: &mut fastrand::Rng,
    ) -> Self {
        let mut link = Link {
            plan,
            number,
            incoming,
            socket: None,
            reader: None,
            looking_up: None,
            look_up_at: now,
            sessions: Vec::new(),
            said_unanswered: false,
            unknown: BTreeMap::new(),
        };
        link.make_sessions(Vec::new(), now, rng);
        link
    }

    /// Returns the number of the link.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The broker's address in the configuration.
    pub fn address(&self) -> &Address {
        &self.plan.address
    }

    /// Goes on with another plan for the same broker. What is registered as before stays
    /// so; answers the sessions of locations that are gone, which have to sign off.
    pub fn replan(&mut self, plan: Plan, now: Instant, rng: &mut fastrand::Rng) -> Vec<Session> {
        let before = std::mem::take(&mut self.sessions);
        self.plan = plan;
        self.unknown.clear();
        self.make_sessions(before, now, rng)
    }

    fn make_sessions(
        &mut self,
        mut before: Vec<(Session, RegisteredLocation)>,
        now: Instant,
        rng: &mut fastrand::Rng,
    ) -> Vec<Session> {
        for place in &self.plan.registrations {
            // One that signs off does not come back.
            let known = before.iter().position(|(session, _)| {
                let stays = matches!(session.state(), State::Registering | State::Registered);
                stays && *session.registration() == place.registration
            });
            let session = match known {
                Some(index) => {
                    let (mut session, _) = before.swap_remove(index);
                    session.set_keys(self.plan.keys.clone());
                    session
                }
                None => {
                    let keys = self.plan.keys.clone();
                    Session::new(place.registration.clone(), keys, now, rng.fork())
                }
            };
            self.sessions.push((session, place.clone()));
        }
        // A location that is registered with other servers now replaces the registration;
        // to sign off the old one, too, could take the new one along.
        let is_here = |session: &Session| {
            let places = self.plan.registrations.iter();
            let mut locations = places.map(|place| place.registration.location());
            locations.any(|location| location == session.registration().location())
        };
        let gone = before.into_iter().map(|(session, _)| session);
        gone.filter(|session| !is_here(session)).collect()
    }

    /// Signs off with a session that is not part of the plan any more.
    pub fn sign_off_session(&mut self, mut session: Session, now: Instant) {
        session.stop(now);
        let place = RegisteredLocation {
            registration: session.registration().clone(),
            servers: Vec::new(),
        };
        self.sessions.push((session, place));
    }

    /// The interval that the broker wants, once it has said so.
    pub fn interval(&self) -> Option<Duration> {
        let sessions = self.sessions.iter().map(|(session, _)| session);
        let registered = sessions.filter(|session| session.state() == State::Registered);
        registered.map(Session::measuring_interval).min()
    }

    /// Returns the alerts of servers: the server's index among the agent's, and the end of the
    /// alert.
    pub fn active_alerts(&self, now: Instant) -> impl Iterator<Item = (usize, Instant)> + '_ {
        self.sessions.iter().flat_map(move |(session, place)| {
            let alerts = session.server_alerts(now).zip(&place.servers);
            alerts.filter_map(|(until, server)| Some((*server, until?)))
        })
    }

    /// Takes in a measurement: for each location its loads, and the state of each server.
    pub fn take_measurement(
        &mut self,
        loads: impl Fn(&str) -> Vec<(LoadId, LoadValue)>,
        states: &[ServerState],
        now: Instant,
    ) {
        for (session, place) in &mut self.sessions {
            let loads = loads(place.registration.location());
            let state = |server: &usize| states.get(*server).copied().unwrap_or_default();
            let states: Vec<_> = place.servers.iter().map(state).collect();
            session.update_loads(&loads, &states, now);
        }
    }

    /// Signs off everywhere. Alerts that still come are nobody's any more: the agent's
    /// servers may be others by now.
    pub fn stop(&mut self, now: Instant) {
        for (session, place) in &mut self.sessions {
            session.stop(now);
            place.servers.clear();
        }
    }

    /// Returns true if there is nothing left to be said to the broker.
    pub fn has_ended(&self) -> bool {
        let mut sessions = self.sessions.iter();
        sessions.all(|(session, _)| session.state() == State::Stopped)
    }

    /// Takes in a datagram or an address.
    pub fn take_incoming(&mut self, incoming: Incoming, now: Instant) {
        match incoming {
            Incoming::Connected(socket) => self.connect(socket),
            Incoming::Datagram(datagram) => {
                for (session, place) in &mut self.sessions {
                    match session.receive_datagram(&datagram, now) {
                        Err(DatagramRefusal::Other) => {}
                        Ok(event) => {
                            self.said_unanswered = false;
                            say(&self.plan.broker, session, event);
                            let unknown = session.unknown_servers().zip(&place.servers);
                            let unknown = unknown.map(|(unknown, server)| (unknown, *server));
                            let servers = session.registration().servers();
                            for ((unknown, index), server) in unknown.zip(servers) {
                                let key = (index, server.group.clone());
                                if unknown {
                                    self.unknown.entry(key).or_insert_with(|| Unknown {
                                        server: server.clone(),
                                        since: now,
                                        said: false,
                                    });
                                } else {
                                    self.unknown.remove(&key);
                                }
                            }
                            return;
                        }
                        Err(error) => {
                            tracing::debug!(broker = self.plan.broker, %error, "a datagram of the \
                                broker is refused");
                            return;
                        }
                    }
                }
            }
        }
    }

    /// Sends what is due; answers when to poll again.
    pub fn poll(&mut self, now: Instant) -> Instant {
        if self.socket.is_none() {
            if now >= self.look_up_at {
                self.look_up();
                self.look_up_at = now.after(LOOK_UP_AGAIN);
            }
            return self.look_up_at;
        }
        let mut next = now.after(Duration::from_secs(3600));
        let mut answered = true;
        for (session, _) in &mut self.sessions {
            loop {
                match session.poll(now) {
                    Poll::Send(datagram) => {
                        // What is lost here is lost as on the way: it is sent again.
                        if let Some(socket) = &self.socket
                            && let Err(error) = socket.try_send(&datagram)
                        {
                            tracing::debug!(broker = self.plan.broker, %error, "cannot send a datagram to the broker");
                        }
                    }
                    Poll::Wait(until) => {
                        next = next.min(until);
                        break;
                    }
                    Poll::Done => break,
                }
            }
            answered &= session.state() != State::Registering;
        }
        self.sessions
            .retain(|(session, _)| session.state() != State::Stopped);
        next = self.say_unknown(now).map_or(next, |at| next.min(at));
        if answered {
            self.look_up_at = now.after(LOOK_UP_AGAIN);
            return next;
        }
        if now >= self.look_up_at {
            self.look_up();
            if !self.said_unanswered {
                self.said_unanswered = true;
                tracing::warn!(
                    broker = self.plan.broker,
                    address = %self.plan.address,
                    "the broker does not answer: check that it runs, that its UDP port can be \
                     reached, and that the broker has the same key"
                );
            }
            self.look_up_at = now.after(LOOK_UP_AGAIN);
        }
        next.min(self.look_up_at)
    }

    /// Warns of servers that the broker has not known for long; answers when to look again.
    fn say_unknown(&mut self, now: Instant) -> Option<Instant> {
        let waiting = self.unknown.values_mut().filter(|unknown| !unknown.said);
        let mut next = None;
        for unknown in waiting {
            let at = unknown.since.after(JOINING);
            if at > now {
                next = Some(next.map_or(at, |next: Instant| next.min(at)));
                continue;
            }
            unknown.said = true;
            say_unknown(&self.plan.broker, &unknown.server);
        }
        next
    }

    fn look_up(&mut self) {
        if let Some(task) = self.looking_up.take() {
            task.abort();
        }
        let address = self.plan.address.clone();
        let (broker, number) = (self.plan.broker.clone(), self.number);
        let incoming = self.incoming.clone();
        self.looking_up = Some(tokio::spawn(async move {
            match connect(&address).await {
                // If nobody listens any more, nobody misses it.
                Ok(socket) => {
                    let _ = incoming
                        .send((number, Incoming::Connected(Arc::new(socket))))
                        .await;
                }
                Err(error) => {
                    tracing::warn!(broker, %address, %error, "cannot reach the broker's address");
                }
            }
        }));
    }

    fn connect(&mut self, socket: Arc<UdpSocket>) {
        // A socket keeps the address that this machine had when it was connected: after a
        // move nothing gets through from the old one.
        let ends = |socket: &UdpSocket| {
            let (here, there) = (socket.local_addr().ok()?, socket.peer_addr().ok()?);
            Some((here.ip(), there))
        };
        let old = self.socket.as_deref().and_then(ends);
        if old.is_some() && old == ends(&socket) {
            return;
        }
        if let Some(reader) = self.reader.take() {
            reader.abort();
        }
        let (incoming, number) = (self.incoming.clone(), self.number);
        let from = Arc::clone(&socket);
        self.reader = Some(tokio::spawn(read(from, incoming, number)));
        self.socket = Some(socket);
        self.said_unanswered = false;
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        for task in self.reader.iter().chain(&self.looking_up) {
            task.abort();
        }
    }
}

async fn connect(address: &Address) -> std::io::Result<UdpSocket> {
    let mut last = std::io::Error::other("the name has no address");
    for peer in tokio::net::lookup_host((address.host.as_str(), address.port)).await? {
        let any: SocketAddr = match peer {
            SocketAddr::V4(_) => ([0, 0, 0, 0], 0).into(),
            SocketAddr::V6(_) => ([0u16; 8], 0).into(),
        };
        let socket = UdpSocket::bind(any).await?;
        match socket.connect(peer).await {
            Ok(()) => return Ok(socket),
            Err(error) => last = error,
        }
    }
    Err(last)
}

async fn read(socket: Arc<UdpSocket>, incoming: mpsc::Sender<(u64, Incoming)>, number: u64) {
    let mut buffer = [0; MAX_DATAGRAM];
    loop {
        match socket.recv(&mut buffer).await {
            Ok(len) => {
                let datagram = buffer.get(..len).unwrap_or_default().to_vec();
                // When more come than are looked at, they are lost as on the way.
                let _ = incoming.try_send((number, Incoming::Datagram(datagram)));
            }
            // Nobody listens at the broker's port, says an ICMP message.
            Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    }
}

/// Time for which the broker may know no member for a server before that is worth a warning: a
/// broker that lets agents join takes a moment to make the server a member.
const JOINING: Duration = Duration::from_secs(5);

/// A server of which the broker knows no member.
#[derive(Debug)]
struct Unknown {
    server: message::Server,
    since: Instant,
    said: bool,
}

fn say_unknown(broker: &str, server: &message::Server) {
    let (group, host, port) = (&server.group, &server.host, server.port);
    tracing::warn!(
        broker,
        group,
        "the broker has no member {host}:{port} in this group: use the group and address of the \
         broker's configuration, or let agents join there (`agents_may_join`, and `allowed_networks`)"
    );
}

fn say(broker: &str, session: &Session, event: Event) {
    let location = session.registration().location();
    match event {
        Event::Registered => {
            let interval = session.measuring_interval();
            tracing::info!(broker, location, ?interval, "registered");
        }
        Event::Controlled => {
            let interval = session.measuring_interval();
            tracing::debug!(broker, location, ?interval, "control");
        }
        Event::Forgotten => {
            tracing::info!(
                broker,
                location,
                "the broker has restarted; registering again"
            );
        }
        Event::Stopped => tracing::info!(broker, location, "the agent has signed off"),
        Event::Challenged => tracing::debug!(broker, location, "challenged"),
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_wire::reporting::keys::Key;

    use super::*;

    const NOW: Instant = Instant::from_nanos(1);

    fn plan() -> Plan {
        let registration = Registration::new("here", "agent", Vec::new()).unwrap();
        let servers = Vec::new();
        Plan {
            broker: "site".into(),
            address: Address {
                host: "127.0.0.1".into(),
                port: 9,
            },
            keys: Keys::new(vec![Key::new(1, &[1; 16]).unwrap()]).unwrap(),
            registrations: vec![RegisteredLocation {
                registration,
                servers,
            }],
        }
    }

    fn link() -> (Link, fastrand::Rng) {
        let (incoming, _) = mpsc::channel(1);
        let mut rng = fastrand::Rng::with_seed(1);
        (Link::new(plan(), 1, incoming, NOW, &mut rng), rng)
    }

    /// A broker's side of the link, without a socket.
    fn register(link: &mut Link) {
        use evenkeel_wire::reporting::server::{Broker, Peer, Settings};
        let settings = Settings {
            interval: Duration::from_secs(1),
            lease: 3,
            keepalive: Duration::from_secs(5),
            forget: Duration::from_secs(60),
            max_agents: 10,
        };
        let rng = fastrand::Rng::with_seed(2);
        let mut broker = Broker::new(settings, plan().keys, &[7; 32], rng).unwrap();
        let peer = Peer {
            socket: 0,
            address: ([127, 0, 0, 1], 1).into(),
        };
        while link.sessions[0].0.state() != State::Registered {
            let Poll::Send(datagram) = link.sessions[0].0.poll(NOW) else {
                panic!("it has to register");
            };
            let (_, answer) = broker.receive_datagram(peer, &datagram, NOW);
            link.take_incoming(Incoming::Datagram(answer.unwrap()), NOW);
        }
    }

    #[test]
    fn a_broker_that_is_taken_out_and_put_back_is_registered_at_again() {
        let (mut link, mut rng) = link();
        register(&mut link);
        link.replan(plan(), NOW, &mut rng);
        assert_eq!(link.sessions[0].0.state(), State::Registered, "untouched");
        link.stop(NOW);
        assert_eq!(link.sessions[0].0.state(), State::Stopping);
        assert!(link.replan(plan(), NOW, &mut rng).is_empty());
        assert_eq!(link.sessions.len(), 1);
        assert_eq!(link.sessions[0].0.state(), State::Registering);
        assert!(!link.has_ended());
    }

    #[test]
    fn u8_a_server_that_is_about_to_join_is_not_warned_about() {
        let (mut link, _) = link();
        let server = message::Server {
            group: "web".into(),
            host: "10.0.0.1".into(),
            port: 80,
            weight: None,
        };
        let unknown = |said| Unknown {
            server: server.clone(),
            since: NOW,
            said,
        };
        let key = (0, "web".to_owned());
        link.unknown.insert(key.clone(), unknown(false));
        let later = NOW.after(JOINING);
        assert_eq!(link.say_unknown(NOW), Some(later));
        assert!(!link.unknown[&key].said);
        // It has joined: nothing is left to say.
        link.unknown.remove(&key);
        assert_eq!(link.say_unknown(later), None);
        link.unknown.insert(key.clone(), unknown(false));
        assert_eq!(link.say_unknown(later), None);
        assert!(link.unknown[&key].said, "told once");
    }

    #[tokio::test]
    async fn a_machine_that_moves_takes_another_socket() {
        let broker = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let connected = async |from: &str| {
            let socket = UdpSocket::bind(from).await.unwrap();
            socket.connect(broker.local_addr().unwrap()).await.unwrap();
            Arc::new(socket)
        };
        let (mut link, _) = link();
        let first = connected("127.0.0.2:0").await;
        link.connect(Arc::clone(&first));
        // The broker's name was looked up again, and nothing has changed.
        link.connect(connected("127.0.0.2:0").await);
        assert!(Arc::ptr_eq(link.socket.as_ref().unwrap(), &first));
        let moved = connected("127.0.0.3:0").await;
        link.connect(Arc::clone(&moved));
        assert!(Arc::ptr_eq(link.socket.as_ref().unwrap(), &moved));
    }
}
