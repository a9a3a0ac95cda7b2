//! Where agents report: the sockets of the reporting protocol, and the thread that
//! serves them.
//!
//! One thread receives from all sockets, hands each datagram to the state machine
//! ([`Broker`]) and sends what that answers. Loads go from there to their locations
//! directly. What agents say of their servers otherwise, and which of them become
//! members, is the manager's business: [`Desk::run`] compares what agents say now with
//! what the manager was told, and tells it the difference. So nothing is lost if two
//! things happen at once, and a storm of changes costs no more than the last of them.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Weak};
use std::time::Duration;

use evenkeel_core::group::Group;
use evenkeel_core::member::{MemberId, Weight};
use evenkeel_core::opinion::{Opinion, Source};
use evenkeel_core::time::{Clock, Instant};
use evenkeel_manager::Manager;
use evenkeel_manager::config::{Broker as Config, MemberConfig};
use evenkeel_manager::snapshot::Snapshot;
use evenkeel_manager::subsystem::{Commit, PrepareError, PrepareErrors, Subsystem};
use parking_lot::{Mutex, MutexGuard};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::net::sockopt;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::sync::Notify;
use tracing::{error, warn};

use crate::status::{AgentStatus, BrokerStatus};
use evenkeel_wire::reporting::directory::Directory;
use evenkeel_wire::reporting::keys::Keys;
use evenkeel_wire::reporting::message::{MAX_DATAGRAM, ServerState};
use evenkeel_wire::reporting::server::{Broker, Outcome, Peer, Settings, Untaken};

/// What is asked of the system for each socket: many agents may report at the same
/// moment, and a small datagram takes up more than a kilobyte there.
const RECEIVE_BUFFER: usize = 16 * 1024 * 1024;

/// With less, a few thousand agents that report at the same moment may lose something.
const SMALL_BUFFER: usize = 2 * 1024 * 1024;

/// Datagrams that are taken from a socket before others have their turn. Well below a
/// millisecond's work, as the control loop may wait for it.
const BATCH: usize = 64;

/// How often refused datagrams are told in the log, at most.
const TELL: Duration = Duration::from_secs(60);

/// Pause after each comparison with the manager.
const PAUSE: Duration = Duration::from_millis(50);

/// The broker's side of the reporting protocol, with its sockets. Clones are the same one.
#[derive(Clone)]
pub struct Desk(Arc<Shared>);

struct Shared {
    clock: Clock,
    state: Mutex<State>,
    /// Wakes the thread: other sockets, or the end.
    wake: Arc<OwnedFd>,
    /// Told when agents, or what they say of their servers, have changed.
    news: Notify,
}

#[derive(Default)]
struct State {
    /// What was prepared last: the generation of the configuration, and what it says.
    config: Option<(u64, Config)>,
    broker: Option<Broker>,
    sockets: Arc<Vec<Bound>>,
    next_socket: usize,
    directory: Arc<Directory>,
    unsent: u64,
    /// Whether the thread runs: it does from the first configuration on that wants it.
    is_served: bool,
    /// Nothing is opened any more.
    stopped: bool,
}

/// A socket that agents send to.
struct Bound {
    id: usize,
    /// As configured; the port may be 0.
    wanted: SocketAddr,
    socket: UdpSocket,
    receive_buffer: usize,
}

impl fmt::Debug for Desk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Desk").finish_non_exhaustive()
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        wake(&self.wake);
    }
}

fn wake(wake: &OwnedFd) {
    // It only fails if it has been told more often than 64 bits can count.
    let _ = rustix::io::write(wake, &1u64.to_ne_bytes());
}

impl Desk {
    /// A desk without sockets. It opens, and its thread starts, as soon as a configuration
    /// says where.
    ///
    /// # Errors
    ///
    /// The system gives no file to wake the thread with.
    pub fn new(clock: Clock) -> io::Result<Self> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Desk(Arc::new(Shared {
            clock,
            state: Mutex::default(),
            wake: Arc::new(wake),
            news: Notify::new(),
        })))
    }

    fn start_thread(&self) -> io::Result<()> {
        let (weak, wake) = (Arc::downgrade(&self.0), Arc::clone(&self.0.wake));
        let clock = self.0.clock;
        std::thread::Builder::new()
            .name("broker".into())
            .spawn(move || serve(&weak, &wake, clock))?;
        Ok(())
    }

    /// Where it listens.
    pub fn local_addresses(&self) -> Vec<SocketAddr> {
        let sockets = Arc::clone(&self.lock().sockets);
        let addresses = sockets.iter().map(|bound| bound.socket.local_addr());
        addresses.flatten().collect()
    }

    /// How it goes; `None` if no agent can report.
    pub fn status(&self) -> Option<BrokerStatus> {
        let listen = self.local_addresses();
        let state = self.lock();
        let broker = state.broker.as_ref()?;
        let buffers = state.sockets.iter().map(|bound| bound.receive_buffer);
        let receive_buffer = buffers.min().unwrap_or(0);
        Some(BrokerStatus::new(
            broker,
            listen,
            receive_buffer,
            state.unsent,
        ))
    }

    /// All agents, by location and name.
    pub fn agents(&self) -> Vec<AgentStatus> {
        let now = self.0.clock.now();
        let state = self.lock();
        let agents = state.broker.iter().flat_map(Broker::agents);
        let mut agents: Vec<_> = agents.map(|agent| AgentStatus::new(&agent, now)).collect();
        drop(state);
        agents.sort_by(|a, b| (&a.location, &a.name).cmp(&(&b.location, &b.name)));
        agents
    }

    /// Asks an agent for a report at once. Answers whether there is such an agent.
    pub fn query(&self, location: &str, agent: &str) -> bool {
        let mut state = self.lock();
        let broker = state.broker.as_mut();
        broker.is_some_and(|broker| broker.query(location, agent))
    }

    /// Forgets an agent, and what it has said about its servers. One that lives registers
    /// again at its next report. Answers whether there was such an agent.
    pub fn forget(&self, location: &str, agent: &str) -> bool {
        let mut state = self.lock();
        let broker = state.broker.as_mut();
        let was_there = broker.is_some_and(|broker| broker.forget(location, agent));
        drop(state);
        self.0.news.notify_one();
        was_there
    }

    /// Gives up its addresses for good: agents find whoever takes over there.
    pub fn stop(&self) {
        self.lock().stopped = true;
        self.close();
    }

    /// Keeps the manager told of what agents say, and the broker of which members there
    /// are, for ever.
    pub async fn run(self, manager: Arc<Manager>) {
        let mut changes = manager.changes();
        let mut told = Told::default();
        loop {
            changes.borrow_and_update();
            told.compare(&self, &manager);
            tokio::select! {
                changed = changes.changed() => if changed.is_err() { return },
                () = self.0.news.notified() => {}
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock()
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Not poisoned by a panic: what one may leave half done is one agent's business,
        // and goes when that registers again.
        self.state.lock()
    }
}

/// Reloads: everything that can fail happens before anything counts.
impl Subsystem for Desk {
    fn prepare(&self, next: &Arc<Snapshot>) -> Result<Commit, PrepareErrors> {
        let mut state = self.lock();
        if state.stopped {
            return Ok(Box::new(|| ()));
        }
        let config = next.section::<Config>().cloned();
        let config = config.map(|config| (next.generation, config));
        // A live change of something else: keys are read again at reloads only.
        if config == state.config {
            return Ok(Box::new(|| ()));
        }
        let Some((_, wanted)) = &config else {
            let desk = self.clone();
            return Ok(Box::new(move || desk.close()));
        };
        let keys =
            Keys::load(&wanted.key_file).map_err(|error| vec![PrepareError::other(error)])?;
        if !state.is_served {
            self.start_thread().map_err(|error| {
                vec![PrepareError::Thread {
                    whose: "broker",
                    error,
                }]
            })?;
            state.is_served = true;
        }
        let (sockets, next_socket) = state.bind(&wanted.listen)?;
        state.next_socket = next_socket;
        let settings = settings(wanted);
        let fresh = match state.broker {
            Some(_) => None,
            None => Some(broker(settings.clone(), keys.clone()).map_err(|error| vec![error])?),
        };
        drop(state);
        let desk = self.clone();
        Ok(Box::new(move || {
            let mut state = desk.lock();
            if let Some(mut fresh) = fresh {
                fresh.set_directory(Arc::clone(&state.directory));
                state.broker = Some(fresh);
            }
            if let Some(broker) = &mut state.broker {
                broker.configure(settings, keys);
            }
            state.sockets = Arc::new(sockets);
            state.config = config;
            drop(state);
            wake(&desk.0.wake);
        }))
    }
}

impl Desk {
    fn close(&self) {
        let mut state = self.lock();
        state.config = None;
        state.broker = None;
        state.sockets = Arc::default();
        drop(state);
        wake(&self.0.wake);
        self.0.news.notify_one();
    }
}

impl State {
    /// Sockets on `addresses`: those that are there already stay. With the number of the
    /// next one.
    fn bind(&self, addresses: &[SocketAddr]) -> Result<(Vec<Bound>, usize), PrepareErrors> {
        let (mut bound, mut errors) = (Vec::new(), Vec::new());
        let mut next = self.next_socket;
        let mut old: Vec<&Bound> = self.sockets.iter().collect();
        for &wanted in addresses {
            let same = old.iter().position(|bound| bound.wanted == wanted);
            let socket = match same {
                // The same socket under another handle: nothing that came is lost.
                Some(index) => old.swap_remove(index).try_clone(),
                None => {
                    next += 1;
                    open(next, wanted)
                }
            };
            match socket {
                Ok(socket) => bound.push(socket),
                Err(error) => errors.push(PrepareError::Listen {
                    whose: "broker",
                    address: format!("UDP {wanted}"),
                    error,
                }),
            }
        }
        match errors.is_empty() {
            true => Ok((bound, next)),
            false => Err(errors),
        }
    }
}

impl Bound {
    fn try_clone(&self) -> io::Result<Bound> {
        Ok(Bound {
            socket: self.socket.try_clone()?,
            ..*self
        })
    }
}

fn open(id: usize, wanted: SocketAddr) -> io::Result<Bound> {
    let socket = Socket::new(
        Domain::for_address(wanted),
        Type::DGRAM,
        Some(Protocol::UDP),
    )?;
    if wanted.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    // The first may exceed the system's limit, with the right privilege.
    if sockopt::set_socket_recv_buffer_size_force(&socket, RECEIVE_BUFFER).is_err() {
        socket.set_recv_buffer_size(RECEIVE_BUFFER)?;
    }
    let receive_buffer = socket.recv_buffer_size()?;
    if receive_buffer < SMALL_BUFFER {
        warn!(
            address = %wanted,
            bytes = receive_buffer,
            "the receive buffer for agents is small: for thousands of them raise net.core.rmem_max"
        );
    }
    socket.set_nonblocking(true)?;
    socket.bind(&wanted.into())?;
    Ok(Bound {
        id,
        wanted,
        socket: socket.into(),
        receive_buffer,
    })
}

/// Whether another socket has the address, so that agents would not reach this process.
pub fn is_taken(address: SocketAddr) -> bool {
    let bound = || -> io::Result<()> {
        let socket = Socket::new(Domain::for_address(address), Type::DGRAM, None)?;
        if address.is_ipv6() {
            socket.set_only_v6(true)?;
        }
        socket.bind(&address.into())
    };
    bound().is_err_and(|error| error.kind() == io::ErrorKind::AddrInUse)
}

fn settings(config: &Config) -> Settings {
    Settings {
        interval: config.interval,
        lease: u8::try_from(config.alert_lease).unwrap_or(u8::MAX),
        keepalive: config.keepalive,
        forget: config.forget_after,
        max_agents: config.max_agents,
    }
}

/// A broker that nobody knows yet, with secrets of its own.
fn broker(settings: Settings, keys: Keys) -> Result<Broker, PrepareError> {
    let failed = |error: &dyn fmt::Display| {
        PrepareError::Other(format!("no random numbers for the broker: {error}").into())
    };
    let mut random = [0; 40];
    let filled = rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty());
    let Ok(40) = filled else {
        return Err(failed(&"the system gave too few"));
    };
    let (seed, secret) = random.split_first_chunk().ok_or_else(|| failed(&""))?;
    let secret = secret.first_chunk().ok_or_else(|| failed(&""))?;
    let rng = fastrand::Rng::with_seed(u64::from_ne_bytes(*seed));
    Broker::new(settings, keys, secret, rng).map_err(|error| failed(&error))
}

/// The thread: receives and sends until the desk is gone.
fn serve(shared: &Weak<Shared>, wake: &OwnedFd, clock: Clock) {
    // A byte more than the longest message, which shows that one is longer.
    let mut buffer = [0; MAX_DATAGRAM + 1];
    let mut queries = Vec::new();
    let mut told = Refused::default();
    let mut next = None;
    loop {
        let Some(desk) = shared.upgrade() else {
            return;
        };
        let sockets = Arc::clone(&desk.lock().sockets);
        drop(desk);
        let ready = match wait(&sockets, wake, next, clock.now()) {
            Ok(ready) => ready,
            Err(error) => {
                error!(%error, "cannot wait for agents");
                std::thread::sleep(Duration::from_millis(100));
                Vec::new()
            }
        };
        let Some(desk) = shared.upgrade() else {
            return;
        };
        let mut guard = desk.lock();
        let state = &mut *guard;
        let Some(broker) = &mut state.broker else {
            next = None;
            continue;
        };
        let version = broker.version();
        for bound in ready.into_iter().filter_map(|index| sockets.get(index)) {
            state.unsent += receive(bound, broker, &mut buffer, clock);
        }
        let now = clock.now();
        next = broker.poll(now, &mut queries);
        for (to, query) in queries.drain(..) {
            let bound = sockets.iter().find(|bound| bound.id == to.socket);
            let sent = bound.is_some_and(|b| b.socket.send_to(&query, to.address).is_ok());
            state.unsent += u64::from(!sent);
        }
        told.tell(broker, now);
        let has_news = broker.version() != version;
        // Whoever waits has it now. Otherwise this thread would take it again before the
        // other one is awake, for as long as somebody floods it with datagrams.
        MutexGuard::unlock_fair(guard);
        if has_news {
            desk.news.notify_one();
        }
    }
}

/// Waits for a datagram, the time `next`, or the wake-up call. Answers which sockets have
/// something.
fn wait(
    sockets: &[Bound],
    wake: &OwnedFd,
    next: Option<Instant>,
    now: Instant,
) -> io::Result<Vec<usize>> {
    let mut fds = vec![PollFd::from_borrowed_fd(wake.as_fd(), PollFlags::IN)];
    let to_fd = |bound| PollFd::new(bound, PollFlags::IN);
    fds.extend(sockets.iter().map(|bound| &bound.socket).map(to_fd));
    let timeout = next.map(|next| next.since(now));
    let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
    match poll(&mut fds, timeout.as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(error) => return Err(error.into()),
    }
    if !fds[0].revents().is_empty() {
        let mut count = [0; 8];
        // It may have been taken back: nothing is lost by not having to read it.
        let _ = rustix::io::read(wake, &mut count);
    }
    let ready = fds[1..].iter().enumerate();
    let ready = ready.filter(|(_, fd)| !fd.revents().is_empty());
    Ok(ready.map(|(index, _)| index).collect())
}

/// Takes a batch of datagrams from a socket and answers them. Gives the number of answers
/// that could not be sent.
fn receive(bound: &Bound, broker: &mut Broker, buffer: &mut [u8], clock: Clock) -> u64 {
    let mut unsent = 0;
    for _ in 0..BATCH {
        let (len, address) = match bound.socket.recv_from(buffer) {
            Ok(received) => received,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            // Nothing more; what else there may be is not about this socket.
            Err(_) => break,
        };
        let peer = Peer {
            socket: bound.id,
            address,
        };
        let datagram = buffer.get(..len).unwrap_or_default();
        let (_, answer) = broker.receive(peer, datagram, clock.now());
        if let Some(answer) = answer {
            unsent += u64::from(bound.socket.send_to(&answer, address).is_err());
        }
    }
    unsent
}

/// Tells in the log of refused datagrams, from time to time.
#[derive(Default)]
struct Refused {
    counts: HashMap<Outcome, u64>,
    next: Option<Instant>,
}

impl Refused {
    fn tell(&mut self, broker: &Broker, now: Instant) {
        if self.next.is_some_and(|next| now < next) {
            return;
        }
        let counts: HashMap<_, _> = broker.counters().received().collect();
        let is_told = |outcome: &Outcome| {
            matches!(
                outcome,
                Outcome::Invalid(_)
                    | Outcome::Replayed
                    | Outcome::Load
                    | Outcome::TooManyLoads
                    | Outcome::Full
            )
        };
        let mut news: Vec<String> = Vec::new();
        for outcome in Outcome::ALL.into_iter().filter(is_told) {
            let count = counts.get(&outcome).copied().unwrap_or(0);
            let before = self.counts.get(&outcome).copied().unwrap_or(0);
            if count > before {
                news.push(format!("{}: {}", outcome.name(), count - before));
            }
        }
        if !news.is_empty() {
            let untaken = broker.counters().untaken;
            let untaken = untaken.map_or(String::new(), |Untaken { location, load, .. }| {
                format!("; the last load that was not taken is {load} of location {location:?}")
            });
            warn!(
                "datagrams at the broker were refused, or a load in them (load, \
                 too_many_loads): {}{untaken}",
                news.join(", ")
            );
            self.next = Some(now.after(TELL));
            self.counts = counts;
        } else {
            self.next = Some(now.after(Duration::from_secs(1)));
        }
    }
}

/// What the manager was told, and the broker.
#[derive(Default)]
struct Told {
    groups: Vec<Arc<Group>>,
    members: HashSet<MemberId>,
    opinions: HashMap<MemberId, Opinion>,
}

impl Told {
    fn compare(&mut self, desk: &Desk, manager: &Manager) {
        let groups = manager.groups();
        let same = groups.len() == self.groups.len()
            && groups
                .iter()
                .zip(&self.groups)
                .all(|(a, b)| Arc::ptr_eq(a, b));
        let directory = (!same).then(|| Arc::new(Directory::new(groups.iter().map(|g| &**g))));

        let mut state = desk.lock();
        if let Some(directory) = &directory {
            state.directory = Arc::clone(directory);
        }
        if let (Some(broker), Some(directory)) = (&mut state.broker, directory) {
            broker.set_directory(directory);
        }
        let wishes = state.broker.as_ref().map(Wishes::of).unwrap_or_default();
        drop(state);

        let members: HashSet<MemberId> = match same {
            true => std::mem::take(&mut self.members),
            false => groups
                .iter()
                .flat_map(|g| g.members())
                .map(|m| m.id)
                .collect(),
        };
        for &member in &members {
            let wish = wishes.opinions.get(&member);
            // One that is new may be one that has come back, of which something is still
            // remembered.
            let is_new = !same && !self.members.contains(&member);
            if is_new || wish != self.opinions.get(&member) {
                manager.set_opinion_of(member, Source::Agent, wish);
            }
        }
        (self.groups, self.members, self.opinions) = (groups, members, wishes.opinions);
        if let Err(error) = manager.set_joined(wishes.joined) {
            error!("servers of agents cannot join their groups: {error}");
        }
    }
}

/// What agents want of the manager.
#[derive(Default)]
struct Wishes {
    opinions: HashMap<MemberId, Opinion>,
    joined: HashMap<String, Vec<MemberConfig>>,
}

impl Wishes {
    fn of(broker: &Broker) -> Self {
        let mut wishes = Wishes::default();
        let mut live: HashSet<MemberId> = HashSet::new();
        for agent in broker.agents().filter(|agent| !agent.stopped) {
            for server in agent.servers() {
                live.extend(server.members.iter().map(|member| member.id));
                let opinion = Opinion {
                    down: server.state == ServerState::Down,
                    drain: server.state == ServerState::Drain,
                    ..Opinion::default()
                };
                if opinion != Opinion::default() {
                    for member in server.members {
                        let held = wishes.opinions.entry(member.id).or_default();
                        held.down |= opinion.down;
                        held.drain |= opinion.drain;
                    }
                }
                // Names are for the file: whoever has a key must not make us look up any.
                let registered = server.server;
                if let Some(ip) = registered.ip(agent.address.ip()) {
                    let member = MemberConfig {
                        weight: registered.weight.unwrap_or(Weight::ONE),
                        location: Some(agent.registration.location().to_owned()),
                        ..MemberConfig::new(&ip.to_string(), registered.port)
                    };
                    let joined = wishes.joined.entry(registered.group.clone());
                    joined.or_default().push(member);
                }
            }
        }
        // Who has signed off gets no clients until somebody answers for it again.
        for agent in broker.agents().filter(|agent| agent.stopped) {
            let members = agent.servers().flat_map(|server| server.members);
            for member in members.filter(|member| !live.contains(&member.id)) {
                let opinion = Opinion {
                    drain: true,
                    note: Some("its agent has signed off".into()),
                    ..Opinion::default()
                };
                wishes.opinions.insert(member.id, opinion);
            }
        }
        for members in wishes.joined.values_mut() {
            members.sort_by(|a, b| {
                let weight = b.weight.get().total_cmp(&a.weight.get());
                let place = (&a.host, a.port, &a.location).cmp(&(&b.host, b.port, &b.location));
                place.then(weight)
            });
            members.dedup_by(|a, b| (&a.host, a.port) == (&b.host, b.port));
        }
        wishes
    }
}
