//! Reports of agents: the sockets of the reporting protocol, and the thread that serves them.
//!
//! One thread receives from all sockets, hands each datagram to the state machine ([`Broker`]) and sends its
//! answers. Loads go from there to their locations directly. Other reports of agents about their servers, and
//! which servers become members, are the manager's business: [`Reporting::run`] compares what agents say now
//! with what the manager was told, and tells it the difference. So nothing is lost if two things happen at
//! once, and a storm of changes costs no more than the last of them.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use evenkeel_core::group::Group;
use evenkeel_core::member::MemberId;
use evenkeel_core::time::Instant;
use evenkeel_manager::Manager;
use evenkeel_manager::config::{Broker as Config, Config as Whole};
use evenkeel_manager::endpoint::{CommandError, Endpoint};
use evenkeel_manager::exposition::Exposition;
use evenkeel_manager::handover::Handover;
use evenkeel_manager::opinion::{Source, SourceReport};
use evenkeel_manager::service::{Service, Work};
use evenkeel_manager::snapshot::Snapshot;
use evenkeel_manager::subsystem::{Commit, Exclusive, PrepareError, PrepareErrors, Subsystem};
use evenkeel_net::Clock;
use evenkeel_net::datagram::{self, Next, SocketTask, Worker};
use evenkeel_net::inherited::InheritedSocket;
use evenkeel_net::key_file;
use tokio::sync::Notify;
use tracing::{error, warn};

use crate::desired::Desired;
use crate::sockets::{ReportSocket, WHOSE, bind_sockets, receive_batch};
use crate::status::{AgentStatus, BrokerStatus};
use evenkeel_wire::reporting::directory::Directory;
use evenkeel_wire::reporting::keys::Keys;
use evenkeel_wire::reporting::message::MAX_DATAGRAM;
use evenkeel_wire::reporting::server::{Broker, Datagram, Outcome, Remembered, Settings, Untaken};

/// Shortest time between two lines in the log about refused datagrams.
const TELL: Duration = Duration::from_secs(60);

/// Names of agents that are offered instead of one that is not there.
const MOST_NAMES: usize = 32;

/// Pause after each comparison with the manager.
const PAUSE: Duration = Duration::from_millis(50);

/// The broker's side of the reporting protocol, with its sockets. Clones are the same one.
#[derive(Clone)]
pub struct Reporting {
    clock: Clock,
    task: Arc<SocketTask<State>>,
    /// Signal that agents, or what they say of their servers, have changed.
    news: Arc<Notify>,
}

#[derive(Default)]
struct State {
    broker: Option<Broker>,
    sockets: Arc<Vec<ReportSocket>>,
    next_socket: usize,
    directory: Arc<Directory>,
    unsent: u64,
    /// True if the thread runs: it does from the first configuration on that wants it.
    is_served: bool,
    /// Knowledge of the old process, until there is a broker.
    known: Option<Remembered>,
    /// True while there are agents of the old process whose members are not known yet: whoever is told
    /// something now would be told that they are gone.
    waits: bool,
    /// True if another process reads what comes.
    rests: bool,
    /// True if nothing is opened any more.
    stopped: bool,
}

/// The part of a [`Handover`] with the agents, and its version.
const AGENTS: (&str, u32) = ("agents", 1);

impl fmt::Debug for Reporting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reporting").finish_non_exhaustive()
    }
}

impl Reporting {
    /// Returns a broker without sockets. The sockets are opened, and the broker's thread starts, as soon as a
    /// configuration says where.
    ///
    /// # Errors
    ///
    /// The system gives no file to wake the thread with.
    pub fn new(clock: Clock) -> io::Result<Self> {
        Ok(Reporting {
            clock,
            task: SocketTask::new(State::default())?,
            news: Arc::default(),
        })
    }

    /// Returns the addresses where the broker listens.
    pub fn local_addresses(&self) -> Vec<SocketAddr> {
        let sockets = Arc::clone(&self.task.lock_state().sockets);
        let addresses = sockets.iter().map(|bound| bound.socket.local_addr());
        addresses.flatten().collect()
    }

    /// Returns the status of the broker; `None` if no agent can report.
    pub fn status(&self) -> Option<BrokerStatus> {
        let listen = self.local_addresses();
        let state = self.task.lock_state();
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

    /// Returns all agents, by location and name.
    pub fn agents(&self) -> Vec<AgentStatus> {
        let now = self.clock.now();
        let state = self.task.lock_state();
        let agents = state.broker.iter().flat_map(Broker::list_agents);
        let mut agents: Vec<_> = agents.map(|agent| AgentStatus::new(&agent, now)).collect();
        drop(state);
        agents.sort_by(|a, b| (&a.location, &a.name).cmp(&(&b.location, &b.name)));
        agents
    }

    /// Asks an agent for a report at once. Answers whether there is such an agent.
    pub fn query(&self, location: &str, agent: &str) -> bool {
        let mut state = self.task.lock_state();
        let broker = state.broker.as_mut();
        broker.is_some_and(|broker| broker.query_agent(location, agent))
    }

    /// Forgets an agent, and what it has said about its servers. An agent that lives registers again at its
    /// next report. Returns true if there was such an agent.
    pub fn forget_agent(&self, location: &str, agent: &str) -> bool {
        let mut state = self.task.lock_state();
        let broker = state.broker.as_mut();
        let was_there = broker.is_some_and(|broker| broker.forget_agent(location, agent));
        drop(state);
        self.news.notify_one();
        was_there
    }

    /// Gives up its addresses for good: agents find whoever takes over there.
    pub fn stop(&self) {
        self.close(true);
    }

    /// Keeps the manager told of what agents say, and the broker of which members there
    /// are, for ever.
    pub async fn run(self, manager: Arc<Manager>) {
        let mut changes = manager.subscribe_changes();
        let mut passed_on = ForwardedState::default();
        loop {
            changes.borrow_and_update();
            if !passed_on.compare(&self, &manager) {
                return;
            }
            tokio::select! {
                changed = changes.changed() => if changed.is_err() { return },
                () = self.news.notified() => {}
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}

/// Reloads: everything that can fail happens before anything counts.
impl Subsystem for Reporting {
    fn prepare(&self, next: &Arc<Snapshot>) -> Result<Commit, PrepareErrors> {
        let mut state = self.task.lock_state();
        if state.stopped || !next.reload {
            return Ok(Box::new(|| ()));
        }
        let Some(wanted) = next.section::<Config>() else {
            if state.broker.is_none() {
                return Ok(Box::new(|| ()));
            }
            let reporting = self.clone();
            return Ok(Box::new(move || reporting.close(false)));
        };
        let keys = key_file::load_parsed(&wanted.key_file, Keys::parse)
            .map_err(|error| vec![PrepareError::other(error)])?;
        if !state.is_served {
            self.task
                .start("broker", Thread::new(self))
                .map_err(|error| {
                    vec![PrepareError::Thread {
                        whose: "broker",
                        error,
                    }]
                })?;
            state.is_served = true;
        }
        let (sockets, next_socket) =
            bind_sockets(&state.sockets, state.next_socket, &wanted.listen)?;
        state.next_socket = next_socket;
        let settings = settings(wanted);
        let fresh = match state.broker {
            Some(_) => None,
            None => Some(broker(settings.clone(), keys.clone()).map_err(|error| vec![error])?),
        };
        drop(state);
        let reporting = self.clone();
        Ok(Box::new(move || {
            let mut state = reporting.task.lock_state();
            if let Some(mut fresh) = fresh {
                fresh.set_directory(Arc::clone(&state.directory));
                state.broker = Some(fresh);
            }
            if let Some(broker) = &mut state.broker {
                broker.set_settings(settings, keys);
            }
            let known = state.known.take();
            if let (Some(broker), Some(known)) = (&mut state.broker, known) {
                // Places are those of the configuration: whoever was at another one registers again.
                broker.go_on(known, |place| Some(sockets.get(place)?.id));
                state.waits = true;
            }
            state.sockets = Arc::new(sockets);
            drop(state);
            reporting.task.wake_thread();
        }))
    }

    fn sockets(&self) -> io::Result<Vec<InheritedSocket>> {
        let sockets = Arc::clone(&self.task.lock_state().sockets);
        let handed =
            |bound: &ReportSocket| datagram::share_socket(&bound.socket, bound.wanted, WHOSE);
        sockets.iter().map(handed).collect()
    }

    fn hand_over(&self, to: &mut Handover) {
        // With the lock the thread is between two turns.
        let mut state = self.task.lock_state();
        state.rests = true;
        if let Some(broker) = &state.broker {
            let place = |id| state.sockets.iter().position(|bound| bound.id == id);
            let (name, version) = AGENTS;
            to.give(name, version, &broker.export_state(place));
        }
        drop(state);
        self.task.wake_thread();
    }

    fn take_over(&self, from: &Handover) {
        let (name, version) = AGENTS;
        self.task.lock_state().known = from.take(name, version);
    }

    fn resume(&self) {
        self.task.lock_state().rests = false;
        self.task.wake_thread();
    }

    fn exclusive(&self, config: &Whole) -> Vec<Exclusive> {
        let listen = config.broker.iter().map(|broker| &*broker.listen);
        listen.flat_map(Exclusive::udp).collect()
    }

    fn check(&self, config: &Whole) -> PrepareErrors {
        let files = config.broker.iter().map(|broker| &broker.key_file);
        let unread = files.filter_map(|file| key_file::load_parsed(file, Keys::parse).err());
        unread.map(PrepareError::other).collect()
    }

    fn stop(&self) {
        Reporting::stop(self);
    }

    fn announce(&self, _: &Snapshot) -> Vec<String> {
        let addresses = self.local_addresses().into_iter();
        addresses.map(|at| format!("broker on UDP {at}")).collect()
    }

    fn metrics(&self, out: &mut Exposition) {
        crate::metrics::write_families(out, self.status().as_ref());
    }

    fn endpoints(&self) -> Vec<Endpoint> {
        let reporting = || self.clone();
        let (status, agents, query, forget) = (reporting(), reporting(), reporting(), reporting());
        vec![
            Endpoint::with_value(
                "/v1/broker",
                "Addresses where agents report, and their datagrams by result",
                move || status.status(),
            ),
            Endpoint::with_value(
                "/v1/agents",
                "The agents that report, with their servers",
                move || agents.agents(),
            ),
            Endpoint::with_action(
                "/v1/locations/{location}/agents/{agent}/query",
                "Asks an agent for a report now",
                move |names| std::future::ready(query.for_agent(&names, Reporting::query)),
            ),
            Endpoint::with_action(
                "/v1/locations/{location}/agents/{agent}/forget",
                "Forgets an agent, with its servers, until it reports again",
                move |names| std::future::ready(forget.for_agent(&names, Reporting::forget_agent)),
            ),
        ]
    }
}

impl Service for Reporting {
    fn run(&self, manager: Arc<Manager>) -> Work<()> {
        Box::pin(self.clone().run(manager))
    }
}

impl Reporting {
    /// Does something for the agent that the location and the name in `names` are of.
    fn for_agent(
        &self,
        names: &[String],
        act: fn(&Reporting, &str, &str) -> bool,
    ) -> Result<(), CommandError> {
        let [location, agent] = names else {
            return Ok(());
        };
        if act(self, location, agent) {
            return Ok(());
        }
        let there = self.agents().into_iter();
        let there = there.filter(|known| known.location == *location);
        Err(CommandError::Unknown {
            kind: "unknown_agent",
            detail: format!("there is no agent {agent:?} at a location {location:?}"),
            allowed: there.map(|known| known.name).take(MOST_NAMES).collect(),
        })
    }

    fn close(&self, for_good: bool) {
        let mut state = self.task.lock_state();
        state.stopped |= for_good;
        state.broker = None;
        state.sockets = Arc::default();
        drop(state);
        self.task.wake_thread();
        self.news.notify_one();
    }
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
        PrepareError::Other(format!("broker: the system gives no random numbers: {error}").into())
    };
    let seed = evenkeel_net::random_bytes().map_err(|error| failed(&error))?;
    let secret = evenkeel_net::random_bytes().map_err(|error| failed(&error))?;
    let rng = fastrand::Rng::with_seed(u64::from_ne_bytes(seed));
    Broker::new(settings, keys, &secret, rng)
        .map_err(|error| PrepareError::Other(format!("broker: {error}").into()))
}

/// State that the thread works with.
struct Thread {
    clock: Clock,
    news: Arc<Notify>,
    sockets: Arc<Vec<ReportSocket>>,
    /// A byte more than the longest message, which shows that one is longer.
    buffer: [u8; MAX_DATAGRAM + 1],
    queries: Vec<Datagram>,
    told: Refused,
}

impl Thread {
    fn new(reporting: &Reporting) -> Self {
        Thread {
            clock: reporting.clock,
            news: Arc::clone(&reporting.news),
            sockets: Arc::default(),
            buffer: [0; MAX_DATAGRAM + 1],
            queries: Vec::new(),
            told: Refused::default(),
        }
    }
}

impl Worker<State> for Thread {
    fn turn(&mut self, state: &mut State) -> Next {
        if state.rests || state.waits {
            self.sockets = Arc::default();
            return Next::Never;
        }
        self.sockets = Arc::clone(&state.sockets);
        let Some(broker) = &mut state.broker else {
            return Next::Never;
        };
        let version = broker.version();
        for bound in self.sockets.iter() {
            state.unsent += receive_batch(bound, broker, &mut self.buffer, self.clock);
        }
        let now = self.clock.now();
        let next = broker.poll(now, &mut self.queries);
        for (to, query) in self.queries.drain(..) {
            let bound = self.sockets.iter().find(|bound| bound.id == to.socket);
            let sent = bound.is_some_and(|b| b.socket.send_to(&query, to.address).is_ok());
            state.unsent += u64::from(!sent);
        }
        self.told.tell(broker, now);
        if broker.version() != version {
            self.news.notify_one();
        }
        next.map_or(Next::Never, |next| Next::After(next.since(now)))
    }

    fn sockets(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.sockets.iter().map(|bound| bound.socket.as_fd())
    }
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
        let counts: HashMap<_, _> = broker.counters().received_by_outcome().collect();
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
                format!("; the last refused load is {load} of location {location:?}")
            });
            warn!(
                "the broker refused datagrams of agents, or loads in them, by result: {}{untaken}",
                news.join(", ")
            );
            self.next = Some(now.after(TELL));
            self.counts = counts;
        } else {
            self.next = Some(now.after(Duration::from_secs(1)));
        }
    }
}

/// State that has been passed on to the manager, and to the broker.
#[derive(Default)]
struct ForwardedState {
    groups: Vec<Arc<Group>>,
    members: HashSet<MemberId>,
    opinions: HashMap<MemberId, SourceReport>,
    /// True if there was no broker, and everything was taken back that one had said.
    is_idle: bool,
}

impl ForwardedState {
    /// Answers whether there is more to come.
    fn compare(&mut self, reporting: &Reporting, manager: &Manager) -> bool {
        let (has_broker, is_stopped) = {
            let state = reporting.task.lock_state();
            (state.broker.is_some(), state.stopped)
        };
        if self.is_idle && !has_broker {
            return !is_stopped;
        }
        let groups = manager.list_groups();
        let same = groups.len() == self.groups.len()
            && groups
                .iter()
                .zip(&self.groups)
                .all(|(a, b)| Arc::ptr_eq(a, b));
        let directory = (!same).then(|| Arc::new(Directory::new(groups.iter().map(|g| &**g))));

        let mut state = reporting.task.lock_state();
        if state.stopped {
            // That nobody reports any more says nothing about servers.
            return false;
        }
        if let Some(directory) = &directory {
            state.directory = Arc::clone(directory);
        }
        if let (Some(broker), Some(directory)) = (&mut state.broker, directory) {
            broker.set_directory(directory);
        }
        if std::mem::take(&mut state.waits) {
            reporting.task.wake_thread();
        }
        let desired = state
            .broker
            .as_ref()
            .map(Desired::from_broker)
            .unwrap_or_default();
        drop(state);

        let members: HashSet<MemberId> = if same {
            std::mem::take(&mut self.members)
        } else {
            groups
                .iter()
                .flat_map(|g| g.members())
                .map(|m| m.id)
                .collect()
        };
        for &member in &members {
            let opinion = desired.opinions.get(&member);
            // One that is new may be one that has come back, of which something is still
            // remembered.
            let is_new = !same && !self.members.contains(&member);
            if is_new || opinion != self.opinions.get(&member) {
                manager.set_opinion_of(member, Source::Agent, opinion);
            }
        }
        (self.groups, self.members, self.opinions) = (groups, members, desired.opinions);
        self.is_idle = !has_broker && self.opinions.is_empty() && desired.joined.is_empty();
        if self.is_idle {
            // Nobody asks for members, of which there may be thousands. A broker that comes later is told of them at once.
            (self.groups, self.members) = (Vec::new(), HashSet::new());
            reporting.task.lock_state().directory = Arc::default();
        }
        if let Err(error) = manager.set_joined(desired.joined) {
            error!("servers of agents cannot join their groups: {error}");
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use evenkeel_manager::config::parse;

    use super::*;

    #[tokio::test]
    async fn without_a_broker_nothing_is_kept_of_members() {
        let name = format!("evenkeel-broker-idle-{}", std::process::id());
        let keys = std::env::temp_dir().join(name);
        std::fs::write(&keys, "1:000102030405060708090a0b0c0d0e0f\n").unwrap();
        std::fs::set_permissions(&keys, std::fs::Permissions::from_mode(0o600)).unwrap();
        let clock = Clock::start();
        let reporting = Reporting::new(clock).unwrap();
        let manager = Manager::new(clock, Arc::new(reporting.clone()));
        let broker = format!("[broker]\nlisten = \"127.0.0.1:0\"\nkey_file = {keys:?}\n");
        let mut passed_on = ForwardedState::default();
        for (broker, is_idle) in [("", true), (&*broker, false), ("", true)] {
            let rule = "[rule.web]\nlisten = \"127.0.0.1:1\"\nmembers = [\"127.0.0.1:81\"]\n";
            let config = parse("x", &format!("{broker}{rule}")).unwrap();
            manager.apply_config(config).await.unwrap();
            for _ in 0..2 {
                assert!(passed_on.compare(&reporting, &manager));
                assert_eq!(passed_on.is_idle, is_idle);
                assert_eq!(passed_on.members.len(), usize::from(!is_idle));
            }
        }
        reporting.stop();
        assert!(!passed_on.compare(&reporting, &manager));
        std::fs::remove_file(keys).unwrap();
    }
}
