//! The socket, and the thread that serves it.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use evenkeel_control::alerts::{FleetExchange, Proposal};
use evenkeel_control::flights;
use evenkeel_control::outlier::{AnnouncedEjections, MemberTraffic, PeerEjection};
use evenkeel_core::group::Group;
use evenkeel_core::member::Member;
use evenkeel_core::time::Instant;
use evenkeel_gossip::ejection::Ejection;
use evenkeel_gossip::seal::MAX_DATAGRAM;
use evenkeel_gossip::{Fleet, Id, Role, Settings, name_key};
use evenkeel_manager::Manager;
use evenkeel_manager::config::{Config as Whole, Fleet as Config};
use evenkeel_manager::copy_queues::{self, CopyQueues};
use evenkeel_manager::endpoint::Endpoint;
use evenkeel_manager::exposition::Exposition;
use evenkeel_manager::handover::Handover;
use evenkeel_manager::service::{Service, Work};
use evenkeel_manager::snapshot::Snapshot;
use evenkeel_manager::subsystem::{Commit, Exclusive, PrepareError, PrepareErrors, Subsystem};
use evenkeel_net::Clock;
use evenkeel_net::datagram::{self, Next, SocketTask, Worker};
use evenkeel_net::inherited::InheritedSocket;
use evenkeel_net::key_file;
use evenkeel_wire::reporting::keys::Keys;
use evenkeel_wire::reporting::message::is_name;
use tracing::{debug, info, warn};

use crate::engine_work::exchange_work;
use crate::metrics;
use crate::sent_prompts::exchange_prompts;
use crate::shared_loads::{Shared, SharedLoads};
use crate::status::FleetStatus;

/// Receive buffer that the system is asked for: all balancers may speak at the same moment.
const RECEIVE_BUFFER: usize = 4 * 1024 * 1024;

/// Datagrams that are taken from the socket before others have their turn.
const BATCH: usize = 64;

/// Interval in which names of other balancers are looked up.
const LOOK_UP: Duration = Duration::from_secs(10);

/// Interval in which the balancer looks at how long requests take at the members of a group, and how many are
/// in flight.
const LEARN: Duration = flights::INTERVAL;

// A datagram has room for every body of copies.
const _: () = assert!(copy_queues::MAX_BODY <= Fleet::MAX_COPIES);

/// Owner of the socket.
const WHOSE: &str = "fleet";

/// The other balancers, with the socket. Clones are the same one.
#[derive(Clone)]
pub struct Gossip {
    clock: Clock,
    task: Arc<SocketTask<State>>,
}

#[derive(Default)]
struct State {
    fleet: Option<Fleet>,
    socket: Option<Arc<UdpSocket>>,
    /// Configuration that the fleet and the socket were made of.
    config: Option<Config>,
    /// Groups of the configuration.
    groups: HashSet<String>,
    /// Loads that one balancer reads for all.
    loads: SharedLoads,
    /// Copies of connections that the kernel forwards.
    copies: CopyQueues,
    /// Time at which the balancer next looks at how long requests take at a group's members.
    learn_at: HashMap<String, Instant>,
    unsent: u64,
    /// True if the thread runs.
    is_served: bool,
    /// True while another process has the socket.
    rests: bool,
    /// True once nothing is opened any more.
    stopped: bool,
    /// True if the balancer was in a fleet when it stopped, and serves its last clients.
    left: bool,
}

impl fmt::Debug for Gossip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gossip").finish_non_exhaustive()
    }
}

impl Gossip {
    /// Makes a balancer without others. The socket is opened, and the thread starts, with the first
    /// configuration that wants the fleet.
    ///
    /// # Errors
    ///
    /// The system gives no file to wake the thread with.
    pub fn new(clock: Clock) -> io::Result<Self> {
        let task = SocketTask::new(State::default())?;
        Ok(Gossip { clock, task })
    }

    /// Sets the queues of copies of connections that the kernel forwards.
    pub fn set_copy_queues(&self, queues: CopyQueues) {
        self.task.lock_state().copies = queues;
    }

    /// Returns the status; `None` if there are no other balancers.
    pub fn status(&self) -> Option<FleetStatus> {
        let (state, now) = (self.task.lock_state(), self.clock.now());
        let fleet = state.fleet.as_ref()?;
        Some(FleetStatus::new(fleet, state.unsent, now))
    }

    fn local_address(&self) -> Option<SocketAddr> {
        let socket = self.task.lock_state().socket.clone()?;
        socket.local_addr().ok()
    }

    fn close(&self, for_good: bool) {
        let now = self.clock.now();
        let mut state = self.task.lock_state();
        state.stopped |= for_good;
        if let Some(mut fleet) = state.fleet.take()
            && !state.rests
        {
            fleet.leave_fleet(now);
            state.send(fleet.take_out());
            state.left = for_good;
        }
        (state.socket, state.config) = (None, None);
        drop(state);
        self.task.wake_thread();
    }

    /// Keeps the fleet told of which groups there are, and of where others may be found.
    async fn follow(self, manager: Arc<Manager>) {
        let mut changes = manager.subscribe_changes();
        loop {
            changes.borrow_and_update();
            let config = manager.shared_config();
            let groups: HashSet<String> = config
                .groups
                .iter()
                .map(|group| group.name.clone())
                .collect();
            self.tell(groups, Shared::new(&config));
            let wait = async {
                match &config.fleet {
                    Some(fleet) => {
                        self.seek(look_up(fleet).await);
                        tokio::time::sleep(LOOK_UP).await;
                    }
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                changed = changes.changed() => if changed.is_err() { return },
                () = wait => {}
            }
        }
    }

    fn tell(&self, groups: HashSet<String>, shared: Shared) {
        let now = self.clock.now();
        let mut state = self.task.lock_state();
        let state = &mut *state;
        state.loads.set_shared(shared);
        if let Some(fleet) = &mut state.fleet
            && groups != state.groups
        {
            fleet.set_groups(groups.iter().map(String::as_str), now);
            state.learn_at.retain(|group, _| groups.contains(group));
            state.loads.retain_groups(&groups);
            state.groups = groups;
            self.task.wake_thread();
        }
    }

    fn seek(&self, seeds: Vec<SocketAddr>) {
        let mut state = self.task.lock_state();
        if let Some(fleet) = &mut state.fleet {
            fleet.set_seeds(seeds);
            self.task.wake_thread();
        }
    }
}

/// Returns the addresses of the balancers that a configuration names.
async fn look_up(fleet: &Config) -> Vec<SocketAddr> {
    let mut found = Vec::new();
    for address in &fleet.join {
        match tokio::net::lookup_host((address.host.as_str(), address.port)).await {
            Ok(all) => found.extend(all),
            Err(error) => {
                debug!(%address, %error, "fleet: cannot resolve the address of another balancer (join)")
            }
        }
    }
    found
}

/// The one that decides upon a group's alerts is asked nothing else than what it says itself.
impl FleetExchange for Gossip {
    fn settle(&self, proposal: &Proposal<'_>) -> Option<Vec<bool>> {
        let mut state = self.task.lock_state();
        let state = &mut *state;
        // Others decide by now, and count what was under alert.
        if state.rests || state.left {
            return Some(proposal.raised.to_vec());
        }
        let fleet = state.fleet.as_mut()?;
        if !state.groups.contains(proposal.group) {
            return None;
        }
        // Who knows nothing yet leaves it as it is.
        if fleet.role_in(proposal.group, proposal.now) == Role::Nobody {
            return Some(proposal.raised.to_vec());
        }
        let keys: Vec<u64> = proposal
            .locations
            .iter()
            .map(|name| name_key(name))
            .collect();
        let wanted = proposal.alert_candidates.iter();
        let wanted: Vec<u64> = wanted
            .filter_map(|&place| keys.get(place))
            .copied()
            .collect();
        fleet.decide_alerts(proposal.group, &wanted, proposal.allowed, proposal.now);
        let raised: HashSet<u64> = fleet
            .raised_alerts(proposal.group)
            .map(|(key, _)| key)
            .collect();
        if fleet.has_out() {
            self.task.wake_thread();
        }
        Some(keys.iter().map(|key| raised.contains(key)).collect())
    }

    fn tell(&self, told: &AnnouncedEjections<'_>) -> Vec<(usize, PeerEjection)> {
        let mut state = self.task.lock_state();
        let state = &mut *state;
        let Some(fleet) = &mut state.fleet else {
            return Vec::new();
        };
        if !state.groups.contains(told.group) {
            return Vec::new();
        }
        let number = |index: usize| told.members.get(index).map(number);
        // The process that goes has nothing to say any more.
        if !state.rests {
            let own = told.ejected.iter().filter_map(|(index, ejection)| {
                Some(Ejection {
                    member: number(*index)?,
                    until: ejection.until,
                    requests: ejection.traffic.requests,
                    failures: ejection.traffic.failures,
                })
            });
            fleet.announce_ejections(told.group, &own.collect::<Vec<_>>(), told.now);
            if fleet.has_out() {
                self.task.wake_thread();
            }
        }
        let mut words: HashMap<u64, Vec<PeerEjection>> = HashMap::new();
        for (id, ejection) in fleet.ejections(told.group, told.now) {
            let (requests, failures) = (ejection.requests, ejection.failures);
            words
                .entry(ejection.member)
                .or_default()
                .push(PeerEjection {
                    of: Arc::clone(&id.name),
                    until: ejection.until,
                    traffic: MemberTraffic { requests, failures },
                });
        }
        if words.is_empty() {
            return Vec::new();
        }
        let all =
            (0..told.members.len()).filter_map(|index| Some((index, words.get(&number(index)?)?)));
        all.flat_map(|(index, said)| said.iter().map(move |word| (index, word.clone())))
            .collect()
    }

    fn share_loads(&self, group: &Group, now: Instant) {
        let mut state = self.task.lock_state();
        let state = &mut *state;
        let is_known = !state.rests && state.groups.contains::<str>(group.name());
        let fleet = state.fleet.as_mut().filter(|_| is_known);
        state.loads.share_loads(fleet, group, now);
        if state.fleet.as_ref().is_some_and(Fleet::has_out) {
            self.task.wake_thread();
        }
    }

    fn learn(&self, group: &Group, now: Instant) {
        let mut state = self.task.lock_state();
        let state = &mut *state;
        let name: &str = group.name();
        let is_known = !state.rests && state.groups.contains(name);
        let Some(fleet) = state.fleet.as_mut().filter(|_| is_known) else {
            // The configuration has no [fleet] any more, or the next process tells the prompts.
            group.stop_following_prompts();
            return;
        };
        exchange_work(fleet, group, number, now);
        exchange_prompts(fleet, group, number);
        if fleet.has_out() {
            self.task.wake_thread();
        }
        if state.learn_at.get(name).is_some_and(|&at| now < at) {
            return;
        }
        state.learn_at.insert(name.to_owned(), now.after(LEARN));
        let shares = state.config.as_ref().is_some_and(|config| config.in_flight);
        in_flight(fleet, group, shares, now);
        let settings = group.settings();
        let (window, decay) = (settings.ejection.window, settings.latency_decay);
        let known = group.members().iter().map(|member| {
            let seconds = member.slot.seen_service(now, window, decay);
            let time = seconds.and_then(|seconds| Duration::try_from_secs_f32(seconds).ok());
            (number(member), time)
        });
        fleet.announce_services(name, known, now);
        if fleet.has_out() {
            self.task.wake_thread();
        }
        let strange = group.members().iter();
        let strange: HashMap<u64, &Member> = strange
            .filter(|member| member.slot.is_strange())
            .map(|member| (number(member), member))
            .collect();
        if strange.is_empty() {
            return;
        }
        for (number, time) in fleet.announced_services(name) {
            if let Some(member) = strange.get(&number) {
                member.slot.adopt_guess(time.as_secs_f32(), now, decay);
            }
        }
    }
}

/// Returns the number that stands for a member.
fn number(member: &Member) -> u64 {
    name_key(&member.address.to_string())
}

/// Has all balancers know how many requests are in flight at the locations of a group, if they are to.
fn in_flight(fleet: &mut Fleet, group: &Group, shares: bool, now: Instant) {
    let at = |member: &Member| name_key(member.location.name());
    let members = group.members().iter().filter(|_| shares);
    let own: BTreeMap<u64, u32> = members
        .map(|member| (at(member), member.location.in_flight()))
        .collect();
    let own: Vec<(u64, u32)> = own.into_iter().collect();
    fleet.announce_flights(group.name(), &own, now);
    if shares {
        let others = |place: usize| {
            let member = group.members().get(place);
            member.map_or(0, |member| fleet.flights_of_others(at(member)))
        };
        flights::count_others(group, others, now);
    }
}

impl State {
    fn send(&mut self, out: Vec<(SocketAddr, Vec<u8>)>) {
        let Some(socket) = &self.socket else {
            return;
        };
        for (to, datagram) in out {
            self.unsent += u64::from(socket.send_to(&datagram, to).is_err());
        }
    }
}

impl Subsystem for Gossip {
    fn prepare(&self, next: &Arc<Snapshot>) -> Result<Commit, PrepareErrors> {
        let mut state = self.task.lock_state();
        if state.stopped || !next.reload {
            return Ok(Box::new(|| ()));
        }
        let Some(wanted) = next.section::<Config>() else {
            let gossip = self.clone();
            return Ok(Box::new(move || gossip.close(false)));
        };
        let keys = key_file::load_parsed(&wanted.key_file, Keys::parse)
            .map_err(|error| vec![PrepareError::other(error)])?;
        let is_same = state.config.as_ref().is_some_and(|old| {
            (old.listen, old.reached_at(), &old.name)
                == (wanted.listen, wanted.reached_at(), &wanted.name)
        });
        let fresh = match is_same {
            true => None,
            false => Some(self.fresh(&state, wanted, keys.clone())?),
        };
        if !state.is_served {
            let thread = Thread {
                clock: self.clock,
                socket: None,
                buffer: [0; MAX_DATAGRAM + 1],
                active: HashSet::new(),
            };
            self.task.start("fleet", thread).map_err(|error| {
                vec![PrepareError::Thread {
                    whose: WHOSE,
                    error,
                }]
            })?;
            state.is_served = true;
        }
        drop(state);
        let (gossip, config) = (self.clone(), wanted.clone());
        Ok(Box::new(move || {
            let mut state = gossip.task.lock_state();
            if let Some((fleet, socket)) = fresh {
                if let Some(mut old) = state.fleet.take() {
                    // By the old socket, which others know.
                    old.leave_fleet(gossip.clock.now());
                    state.send(old.take_out());
                }
                (state.fleet, state.socket) = (Some(fleet), Some(socket));
                state.groups.clear();
            }
            if let Some(fleet) = &mut state.fleet {
                fleet.set_keys(keys);
            }
            state.config = Some(config);
            drop(state);
            gossip.task.wake_thread();
        }))
    }

    fn sockets(&self) -> io::Result<Vec<InheritedSocket>> {
        let state = self.task.lock_state();
        let listen = state.config.as_ref().and_then(|config| config.listen);
        let (Some(socket), Some(listen)) = (&state.socket, listen) else {
            return Ok(Vec::new());
        };
        Ok(vec![datagram::share_socket(socket, listen, WHOSE)?])
    }

    fn hand_over(&self, _: &mut Handover) {
        // Who takes its place is another process for the others, and says so.
        self.task.lock_state().rests = true;
        self.task.wake_thread();
    }

    fn resume(&self) {
        self.task.lock_state().rests = false;
        self.task.wake_thread();
    }

    fn council(&self) -> Option<&dyn FleetExchange> {
        Some(self)
    }

    fn exclusive(&self, config: &Whole) -> Vec<Exclusive> {
        let listen = config.fleet.iter().filter_map(|fleet| fleet.listen);
        listen
            .flat_map(|listen| Exclusive::udp(&[listen]))
            .collect()
    }

    fn check(&self, config: &Whole) -> PrepareErrors {
        let files = config.fleet.iter().map(|fleet| &fleet.key_file);
        let unread = files.filter_map(|file| key_file::load_parsed(file, Keys::parse).err());
        let mut errors: PrepareErrors = unread.map(PrepareError::other).collect();
        errors.extend(config.fleet.iter().filter_map(|fleet| name(fleet).err()));
        errors
    }

    fn stop(&self) {
        self.close(true);
    }

    fn announce(&self, _: &Snapshot) -> Vec<String> {
        let address = self.local_address().into_iter();
        address.map(|at| format!("fleet on UDP {at}")).collect()
    }

    fn metrics(&self, out: &mut Exposition) {
        metrics::write_families(out, self.status().as_ref());
    }

    fn endpoints(&self) -> Vec<Endpoint> {
        let gossip = self.clone();
        vec![Endpoint::with_value(
            "/v1/fleet",
            "The other balancers, and who decides upon the alerts of which group",
            move || gossip.status(),
        )]
    }
}

impl Service for Gossip {
    fn run(&self, manager: Arc<Manager>) -> Work<()> {
        Box::pin(self.clone().follow(manager))
    }
}

/// Returns the name of a balancer.
fn name(config: &Config) -> Result<String, PrepareError> {
    let name = config.name.clone().unwrap_or_else(|| {
        let system = rustix::system::uname();
        system.nodename().to_string_lossy().into_owned()
    });
    match is_name(&name) {
        true => Ok(name),
        false => Err(PrepareError::Other(
            format!(
                "fleet: the name of this machine, {name:?}, cannot be the name of a balancer, which has 1 to \
                 64 letters, digits and -_.: set another name with `name` in [node]"
            )
            .into(),
        )),
    }
}

impl Gossip {
    /// Returns a balancer that knows nobody, and its socket.
    fn fresh(
        &self,
        state: &State,
        config: &Config,
        keys: Keys,
    ) -> Result<(Fleet, Arc<UdpSocket>), PrepareErrors> {
        let failed = |error: &dyn fmt::Display| {
            let text = format!("fleet: the system gives no random numbers: {error}");
            vec![PrepareError::Other(text.into())]
        };
        let name = name(config).map_err(|error| vec![error])?;
        let (Some(listen), Some(advertise)) = (config.listen, config.reached_at()) else {
            return Err(vec![PrepareError::Other(
                "fleet: `listen` or `advertise` is missing".into(),
            )]);
        };
        let old = state
            .config
            .as_ref()
            .filter(|old| old.listen == Some(listen));
        let socket = match (old, &state.socket) {
            (Some(_), Some(socket)) => Arc::clone(socket),
            _ => {
                let opened = datagram::open_socket(listen, RECEIVE_BUFFER, WHOSE);
                Arc::new(opened.map_err(|error| {
                    vec![PrepareError::Listen {
                        whose: WHOSE,
                        address: format!("UDP {listen}"),
                        error,
                    }]
                })?)
            }
        };
        // Where the system chooses the port, the others are told which one.
        let advertise = match (advertise.port(), socket.local_addr()) {
            (0, Ok(own)) => SocketAddr::new(advertise.ip(), own.port()),
            _ => advertise,
        };
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        let millis = since.map_or(1, |since| since.as_millis());
        let session = evenkeel_net::random_bytes().map_err(|error| failed(&error))?;
        let seed = evenkeel_net::random_bytes().map_err(|error| failed(&error))?;
        let settings = Settings {
            id: Id {
                address: advertise,
                name: name.into(),
                life: u64::try_from(millis).unwrap_or(1),
            },
            session: u64::from_ne_bytes(session) | 1,
            keys,
            seeds: Vec::new(),
        };
        let rng = fastrand::Rng::with_seed(u64::from_ne_bytes(seed));
        Ok((Fleet::new(settings, rng, self.clock.now()), socket))
    }
}

/// Parts that the thread works with.
struct Thread {
    clock: Clock,
    socket: Option<Arc<UdpSocket>>,
    /// A byte more than the longest datagram, which shows that one is longer.
    buffer: [u8; MAX_DATAGRAM + 1],
    /// Names of the balancers that were there, for the log.
    active: HashSet<String>,
}

impl Worker<State> for Thread {
    fn turn(&mut self, state: &mut State) -> Next {
        self.socket = None;
        let (Some(socket), Some(fleet)) = (&state.socket, &mut state.fleet) else {
            return Next::Never;
        };
        if state.rests {
            return Next::Never;
        }
        let socket = Arc::clone(socket);
        let mut taken = 0;
        while taken < BATCH {
            match socket.recv_from(&mut self.buffer) {
                Ok((len, _)) => {
                    let datagram = self.buffer.get(..len).unwrap_or_default();
                    fleet.receive_datagram(datagram, self.clock.now());
                    taken += 1;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        let now = self.clock.now();
        let next = fleet.poll(now);
        for (to, body) in state.copies.take_outgoing() {
            fleet.send_copies(to, &body);
        }
        let (received, lost) = fleet.take_copies();
        state.copies.push_received(received, lost);
        let out = fleet.take_out();
        self.tell(fleet, now);
        state.send(out);
        self.socket = Some(socket);
        match taken {
            BATCH => Next::Again,
            _ => Next::After(next.since(self.clock.now())),
        }
    }

    fn sockets(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.socket.iter().map(|socket| socket.as_fd())
    }
}

impl Thread {
    /// Says in the log who has come and gone.
    fn tell(&mut self, fleet: &Fleet, now: Instant) {
        let there = fleet.peers(now).filter(|peer| peer.active);
        let there: HashSet<String> = there
            .map(|peer| format!("{} at {}", peer.id.name, peer.id.address))
            .collect();
        if there == self.active {
            return;
        }
        for new in there.difference(&self.active) {
            info!("fleet: balancer {new} has joined");
        }
        for gone in self.active.difference(&there) {
            warn!("fleet: balancer {gone} is gone");
        }
        self.active = there;
    }
}
