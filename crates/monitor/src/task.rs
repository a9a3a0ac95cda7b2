//! The thread that asks, and who tells it whom.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::io;
use std::net::{IpAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use evenkeel_config::{Monitor as Config, MonitorKind};
use evenkeel_core::load::Location;
use evenkeel_core::member::Reason;
use evenkeel_core::time::Instant;
use evenkeel_kernel::keys;
use evenkeel_kernel::query::Key;
use evenkeel_manager::Manager;
use evenkeel_manager::endpoint::Endpoint;
use evenkeel_manager::exposition::Exposition;
use evenkeel_manager::service::{Service, Work};
use evenkeel_manager::snapshot::Snapshot;
use evenkeel_manager::subsystem::{Commit, PrepareError, PrepareErrors, Subsystem};
use evenkeel_net::Clock;
use evenkeel_net::datagram::{Next, SocketTask, Worker};
use evenkeel_net::key_file;
use tracing::{debug, warn};

use crate::poller::{DueTask, PollTarget, Poller, RecordSource};
use crate::sockets::{BATCH, Incoming, Outgoing, open_socket};
use crate::status::{LocationMonitor, MonitorStatus};

/// Batches that are taken from a socket before it is somebody's time to be asked again.
const BATCHES: usize = 64;

/// Number of answers that are before another one when the data for it is fetched: the time that memory takes.
const AHEAD: usize = 2;

/// Longest time between two looks at connections over RDMA.
const PAGES: Duration = Duration::from_millis(20);

/// Batches that are sent before answers are looked at again.
const QUESTIONS: usize = 4;

/// Pause after each comparison with the manager.
const PAUSE: Duration = Duration::from_millis(20);

/// Shortest time between two lines in the log about locations whose loads have become unknown.
const TELL: Duration = Duration::from_secs(5);

/// Asks the kernels of back-ends for their loads. Clones are the same one.
#[derive(Clone)]
pub struct Monitor {
    clock: Clock,
    task: Arc<SocketTask<State>>,
}

struct State {
    poller: Poller,
    keys: Arc<HashMap<PathBuf, Key>>,
    /// True if the thread runs: it does from the first configuration on that wants it.
    is_served: bool,
}

impl fmt::Debug for Monitor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Monitor").finish_non_exhaustive()
    }
}

impl Monitor {
    /// Returns a monitor of nobody. Its thread starts with the first configuration that names somebody to be
    /// asked, or with [`Monitor::start_thread`].
    ///
    /// # Errors
    ///
    /// The system gives no file to wake the thread with, or no random numbers.
    pub fn new(clock: Clock) -> io::Result<Self> {
        let state = State {
            poller: poller()?,
            keys: Arc::default(),
            is_served: false,
        };
        let task = SocketTask::new(state)?;
        Ok(Monitor { clock, task })
    }

    /// Starts the thread that asks, if it does not run.
    ///
    /// # Errors
    ///
    /// The system gives no thread or no socket.
    pub fn start_thread(&self) -> io::Result<()> {
        let mut state = self.task.lock_state();
        if state.is_served {
            return Ok(());
        }
        // A machine without IPv6 asks over IPv4.
        let sockets = [Some(open_socket(false)?), open_socket(true).ok()];
        self.task
            .start("monitor", Thread::new(sockets, self.clock))?;
        state.is_served = true;
        Ok(())
    }

    /// Asks all locations of whom the manager says so, for ever.
    pub async fn run(self, manager: Arc<Manager>) {
        let mut changes = manager.subscribe_changes();
        let mut split = BTreeMap::new();
        loop {
            changes.borrow_and_update();
            let keys = Arc::clone(&self.task.lock_state().keys);
            let found = Found::of(&manager, &keys);
            if found.split != split {
                found.tell();
                split = found.split;
            }
            self.set_targets(found.wanted);
            if changes.changed().await.is_err() {
                return;
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Makes `wanted` those who are asked.
    pub fn set_targets(&self, wanted: Vec<PollTarget>) {
        self.task
            .lock_state()
            .poller
            .set_targets(wanted, self.clock.now());
        self.task.wake_thread();
    }

    /// Returns the status of the monitor; `None` if nobody is asked.
    pub fn status(&self) -> Option<MonitorStatus> {
        let state = self.task.lock_state();
        (!state.poller.is_empty()).then(|| MonitorStatus::new(&state.poller))
    }

    /// Returns the status of each location, by name.
    pub fn locations(&self) -> Vec<LocationMonitor> {
        let now = self.clock.now();
        let state = self.task.lock_state();
        let views = state.poller.views();
        let mut all: Vec<_> = views.map(|view| LocationMonitor::new(&view, now)).collect();
        drop(state);
        all.sort_by(|a, b| a.location.cmp(&b.location));
        all
    }
}

fn poller() -> io::Result<Poller> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let first = u64::try_from(now.unwrap_or_default().as_nanos()).unwrap_or(0);
    let [seed, reader] = [evenkeel_net::random_bytes()?, evenkeel_net::random_bytes()?];
    let rng = fastrand::Rng::with_seed(u64::from_ne_bytes(seed));
    Ok(Poller::new(u64::from_ne_bytes(reader), first, rng))
}

/// Reloads: keys are read before anything counts.
impl Subsystem for Monitor {
    fn prepare(&self, next: &Arc<Snapshot>) -> Result<Commit, PrepareErrors> {
        if !next.reload {
            return Ok(Box::new(|| ()));
        }
        let monitors = next.section::<Vec<Config>>().into_iter().flatten();
        let keys = read_keys(monitors.clone())?;
        if monitors.count() > 0 {
            let whose = "monitor";
            self.start_thread()
                .map_err(|error| vec![PrepareError::Thread { whose, error }])?;
        }
        let monitor = self.clone();
        Ok(Box::new(move || {
            monitor.task.lock_state().keys = Arc::new(keys);
        }))
    }

    fn check(&self, config: &evenkeel_config::Config) -> PrepareErrors {
        let sections = config.sections();
        let monitors = sections.get::<Vec<Config>>().into_iter().flatten();
        read_keys(monitors).err().unwrap_or_default()
    }

    fn metrics(&self, out: &mut Exposition) {
        crate::metrics::write_families(out, self.status(), &self.locations());
    }

    fn endpoints(&self) -> Vec<Endpoint> {
        let (all, each) = (self.clone(), self.clone());
        vec![
            Endpoint::with_value(
                "/v1/monitor",
                "The kernel load monitor: what was asked and answered",
                move || all.status(),
            ),
            Endpoint::with_value(
                "/v1/monitor/locations",
                "The locations whose kernels are asked",
                move || each.locations(),
            ),
        ]
    }
}

impl Service for Monitor {
    fn run(&self, manager: Arc<Manager>) -> Work<()> {
        Box::pin(self.clone().run(manager))
    }
}

fn read_keys<'a>(
    monitors: impl Iterator<Item = &'a Config>,
) -> Result<HashMap<PathBuf, Key>, PrepareErrors> {
    let mut errors = PrepareErrors::new();
    let mut keys = HashMap::new();
    for monitor in monitors {
        if let Err(error) = crate::pages::can_read(monitor.kind) {
            errors.push(PrepareError::Other(error.into()));
        }
        let Some(path) = &monitor.key_file else {
            continue;
        };
        if keys.contains_key(path) {
            continue;
        }
        match key_file::load_parsed(path, keys::parse).map(|keys| keys.into_iter().next()) {
            Ok(Some(key)) => {
                keys.insert(path.clone(), key);
            }
            Ok(None) => {}
            Err(error) => errors.push(PrepareError::other(error)),
        }
    }
    errors.sort_by_cached_key(ToString::to_string);
    errors.dedup_by_key(|error| error.to_string());
    if errors.is_empty() {
        Ok(keys)
    } else {
        Err(errors)
    }
}

/// Locations that the configuration wants to be asked.
#[derive(Default)]
struct Found {
    wanted: Vec<PollTarget>,
    /// Locations whose members are on several machines, with the one that is asked.
    split: BTreeMap<Arc<str>, IpAddr>,
}

/// Location as groups describe it.
struct Seen<'a> {
    location: Arc<Location>,
    /// The address of a member there.
    ip: Option<IpAddr>,
    of_groups: Option<&'a Config>,
}

impl Seen<'_> {
    fn new(location: &Arc<Location>) -> Self {
        Seen {
            location: Arc::clone(location),
            ip: None,
            of_groups: None,
        }
    }
}

impl Found {
    fn of(manager: &Manager, keys: &HashMap<PathBuf, Key>) -> Found {
        let config = manager.shared_config();
        let of_groups: HashMap<&str, &Config> = config
            .groups
            .iter()
            .filter_map(|group| Some((&*group.name, group.monitor.as_ref()?)))
            .collect();
        let own: HashMap<&str, Option<&Config>> = config
            .locations
            .iter()
            .filter(|location| location.says_monitor)
            .map(|location| (&*location.name, location.monitor.as_ref()))
            .collect();
        if of_groups.is_empty() && own.values().all(Option::is_none) {
            return Found::default();
        }
        let mut split = BTreeMap::new();
        let mut places: BTreeMap<Arc<str>, Seen<'_>> = BTreeMap::new();
        for handle in manager.handles() {
            let group = handle.current.load_full();
            let of_group = of_groups.get(&**group.name()).copied();
            for member in group.members() {
                let is_known = !member.slot.has_reason(Reason::Unresolved);
                let ip = member
                    .address
                    .ip()
                    .filter(|ip| is_known && !ip.is_unspecified());
                let name = Arc::clone(member.location.name());
                let seen = places.entry(name);
                let seen = seen.or_insert_with(|| Seen::new(&member.location));
                // The first that there is counts.
                if let (Some(first), Some(other)) = (seen.ip, ip)
                    && first != other
                {
                    split.insert(Arc::clone(member.location.name()), first);
                }
                seen.ip = seen.ip.or(ip);
                seen.of_groups = seen.of_groups.or(of_group);
            }
        }
        // Those that only others report to, as CORBA servers do.
        for name in own.keys() {
            if !places.contains_key(*name)
                && let Some(location) = manager.find_location(name)
            {
                places.insert(Arc::clone(location.name()), Seen::new(&location));
            }
        }
        let mut wanted = Vec::new();
        for (name, seen) in places {
            let config = match own.get(&*name) {
                Some(own) => *own,
                None => seen.of_groups,
            };
            let needs_member = |config: &Config| config.address.is_none() && config.path.is_none();
            if !config.is_some_and(needs_member) {
                split.remove(&name);
            }
            if let Some(config) = config {
                wanted.extend(want(seen.location, config, seen.ip, keys));
            }
        }
        Found { wanted, split }
    }

    fn tell(&self) {
        for (location, asked) in &self.split {
            warn!(
                %location,
                %asked,
                "members at this location have several addresses, and only one of the addresses is queried for the load: give them separate locations, or set the address in \
                 [location.NAME.monitor]"
            );
        }
    }
}

/// Returns the location as the poller is to ask it; `None` as long as it is not known where to ask.
fn want(
    location: Arc<Location>,
    config: &Config,
    member: Option<IpAddr>,
    keys: &HashMap<PathBuf, Key>,
) -> Option<PollTarget> {
    let key = config.key_file.as_ref().and_then(|path| keys.get(path));
    let endpoint = || {
        let ip = member.or(config.address.map(|address| address.ip))?;
        Some(config.endpoint(ip))
    };
    let place = match config.kind {
        MonitorKind::Kernel => {
            // Without it another configuration is about to come.
            key?;
            RecordSource::Udp(endpoint()?)
        }
        MonitorKind::Rdma => RecordSource::Rdma(endpoint()?),
        MonitorKind::Ulm => RecordSource::Shared(config.path.clone()?),
    };
    Some(PollTarget {
        location,
        config: config.clone(),
        place,
        key: key.cloned(),
    })
}

/// State that the thread works with.
struct Thread {
    clock: Clock,
    /// Sockets for IPv4 and IPv6.
    sockets: [Option<UdpSocket>; 2],
    outgoing: [Outgoing; 2],
    incoming: Incoming,
    question: Vec<u8>,
    pages: crate::pages::Pages,
    told: LocationLog,
}

impl Thread {
    fn new(sockets: [Option<UdpSocket>; 2], clock: Clock) -> Self {
        Thread {
            clock,
            sockets,
            outgoing: [Outgoing::default(), Outgoing::default()],
            incoming: Incoming::default(),
            question: Vec::new(),
            pages: crate::pages::Pages::default(),
            told: LocationLog::default(),
        }
    }

    fn receive(&mut self, poller: &mut Poller) {
        for socket in self.sockets.iter().flatten() {
            for _ in 0..BATCHES {
                let now = self.clock.now();
                // Nothing more, or an error of some earlier question: it has no answer then.
                let count = self.incoming.receive(socket).unwrap_or(0);
                let ahead = |at: usize| self.incoming.get(at).map(|(datagram, ..)| datagram);
                for at in 0..count {
                    ahead(at + 2 * AHEAD).inspect(|datagram| poller.prefetch_entry(datagram));
                    ahead(at + AHEAD).inspect(|datagram| poller.expect_soon(datagram));
                    if let Some((datagram, from, waited)) = self.incoming.get(at) {
                        let waited = u64::try_from(waited.as_nanos()).unwrap_or(0);
                        let at = Instant::from_nanos(now.as_nanos().saturating_sub(waited));
                        poller.receive_datagram(datagram, from, at);
                    }
                }
                if count < BATCH {
                    break;
                }
            }
        }
    }

    /// Asks those whose time it is; answers whether there are more.
    fn ask(&mut self, poller: &mut Poller) -> bool {
        // Not for ever, if there is more to ask than time for it: answers come meanwhile, and
        // somebody may want to know how it goes.
        for _ in 0..QUESTIONS {
            // The time of the questions of a batch is that of its beginning, so that it is
            // never later than that of an answer.
            let now = self.clock.now();
            let mut more = false;
            while let Some(ask) = poller.next(now, &mut self.question) {
                match ask {
                    DueTask::Datagram { index, to } => {
                        let [v4, v6] = &mut self.outgoing;
                        let outgoing = if to.is_ipv6() { v6 } else { v4 };
                        outgoing.push(index, to, &mut self.question);
                        if outgoing.is_full() {
                            more = true;
                            break;
                        }
                    }
                    DueTask::Page { index } => self.pages.read(poller, index, self.clock),
                }
            }
            for (socket, outgoing) in self.sockets.iter().zip(&mut self.outgoing) {
                match socket {
                    Some(socket) => {
                        outgoing.send(socket, |index, error| poller.note_unsent(index, error));
                    }
                    None => outgoing.drop_all(|index| {
                        poller.note_unsent(index, &"this machine has no IPv6");
                    }),
                }
            }
            if !more {
                return false;
            }
        }
        true
    }
}

impl Worker<State> for Thread {
    /// With thousands of locations there is always something due, and each sleep has its price.
    /// Answers that come meanwhile can wait: the system notes when they came.
    const SLACK: Duration = Duration::from_micros(250);

    fn turn(&mut self, state: &mut State) -> Next {
        let poller = &mut state.poller;
        // What has come is looked at first: if this thread did not get a CPU for long,
        // nobody's loads become unknown for that.
        self.receive(poller);
        self.pages.poll(poller, self.clock);
        let more = self.ask(poller);
        if self.told.tell(poller, self.clock.now()) {
            self.pages.close_unwanted(poller);
        }
        if more {
            return Next::Again;
        }
        let now = self.clock.now();
        let next = poller.next_event().map(|next| next.since(now));
        let pages = self.pages.fd().map(|_| PAGES);
        let soonest = next.into_iter().chain(pages).min();
        soonest.map_or(Next::Never, Next::After)
    }

    fn sockets(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let sockets = self.sockets.iter().flatten().map(|socket| socket.as_fd());
        sockets.chain(self.pages.fd())
    }
}

/// Tells in the log what has changed with locations, from time to time.
#[derive(Default)]
struct LocationLog {
    silent: HashMap<Arc<str>, Option<String>>,
    next: Option<Instant>,
}

impl LocationLog {
    /// Answers whether it was time for it.
    fn tell(&mut self, poller: &Poller, now: Instant) -> bool {
        if self.next.is_some_and(|next| now < next) {
            return false;
        }
        self.next = Some(now.after(TELL));
        let mut silent = HashMap::new();
        let mut news = (0, None);
        for view in poller.views() {
            let name = view.target.location.name();
            let is_asked = view.question_count > 2;
            if is_asked && !view.state.has_news() {
                let trouble = view.trouble.map(str::to_owned);
                if !self.silent.contains_key(name) {
                    debug!(location = %name, place = %view.target.place, trouble, "no load");
                    news.0 += 1;
                    news.1.get_or_insert_with(|| {
                        let trouble = trouble.as_deref().unwrap_or("no answer");
                        format!("{name} ({}: {trouble})", view.target.place)
                    });
                }
                silent.insert(Arc::clone(name), trouble);
            }
        }
        if let (count, Some(first)) = news {
            let all = silent.len();
            warn!(count, all, first, "locations no longer report their load");
        }
        let back = self
            .silent
            .keys()
            .filter(|name| !silent.contains_key(*name));
        let back = back.count();
        if back > 0 {
            tracing::info!(
                count = back,
                "locations have recovered: they report their load"
            );
        }
        self.silent = silent;
        true
    }
}
