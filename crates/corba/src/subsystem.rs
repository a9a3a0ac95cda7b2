//! The service among Evenkeel's data planes: its sockets, its threads, and what a new
//! configuration changes of them.
//!
//! One thread carries out operations of the load manager and all calls of the
//! application's objects. Workers, one unless told otherwise, answer clients: forwarding
//! them takes no lock and waits for nobody.

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use evenkeel_config::{Config, Corba as Settings};
use evenkeel_giop::server::Server;
use evenkeel_manager::Manager;
use evenkeel_manager::endpoint::{CommandError, Endpoint};
use evenkeel_manager::exposition::Exposition;
use evenkeel_manager::handover::Handover;
use evenkeel_manager::service::{Service, StartError, Work};
use evenkeel_manager::snapshot::Snapshot;
use evenkeel_manager::subsystem::{
    ApplyError, Commit, Exclusive, PrepareError, PrepareErrors, Subsystem,
};
use evenkeel_net::Clock;
use evenkeel_net::inherited::Handed;
use evenkeel_net::listen::Listeners;
use evenkeel_net::{start_thread, writable};
use tokio::sync::{mpsc, oneshot};
use tracing::{error, warn};

use crate::alerts::Alerts;
use crate::dispatcher::Counters;
use crate::monitors;
use crate::relay::{self};
use crate::service::registered::{Registered, RemoveError};
use crate::service::state::State;
use crate::service::store::{self, StoreError};
use crate::service::{Address, LoadManager};

mod limits;
mod supervisor;
mod worker;

use supervisor::Supervisor;

/// How long a predecessor may keep its state file: until its clients have their answers, and
/// what they have changed is written.
const HANDOVER: Duration = Duration::from_secs(15);

/// The CORBA service from outside. Cheap to clone; all clones are the same one.
#[derive(Clone)]
pub struct Corba {
    inner: Arc<Inner>,
}

struct Inner {
    clock: Clock,
    prepared: Mutex<Prepared>,
    /// Once it has been switched on.
    service: ArcSwapOption<LoadManager>,
    /// Of the workers, while they serve.
    server: ArcSwapOption<Server>,
    counters: Arc<Counters>,
    relayed: Arc<relay::Counters>,
    monitors: Arc<monitors::Counters>,
    alerts: Arc<Alerts>,
}

/// What the last configuration has been prepared to.
#[derive(Default)]
struct Prepared {
    settings: Option<Arc<Settings>>,
    /// A socket for each worker.
    listeners: Listeners,
    /// What cannot change as long as the process lives: the number of workers, and the
    /// state file, which has been read.
    fixed: Option<(usize, Option<PathBuf>, String)>,
    /// Once a configuration has wanted it.
    thread: Option<Thread>,
    /// Once the service may begin.
    manager: Weak<Manager>,
    /// The last one that was put into effect.
    current: Option<Arc<Snapshot>>,
    /// What the process before, or this one before it let go of it, knew where there is no state
    /// file.
    known: Option<State>,
    /// Another process serves with the state file.
    rests: bool,
    /// Nothing is opened any more.
    stopped: bool,
}

/// Whose the listeners are.
const WHOSE: &str = "corba";

/// The part of a [`Handover`] with the state, where there is no state file, and its version.
const STATE: (&str, u32) = ("corba", 2);

/// The service's thread.
struct Thread {
    commands: mpsc::UnboundedSender<Command>,
    handle: JoinHandle<()>,
}

/// What the service's thread is told.
enum Command {
    /// This is the manager; the answer is whether the service could start.
    Start(Arc<Manager>, oneshot::Sender<Result<(), ServeError>>),
    /// Another configuration counts.
    Apply(Option<Box<Desired>>),
    /// End.
    Stop,
}

/// Why the service does not follow its configuration.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// Its groups cannot be put into effect.
    #[error(transparent)]
    Groups(#[from] ApplyError),
    /// The file for its own reference cannot be written.
    #[error("cannot write {}: {_1}", _0.display())]
    Reference(PathBuf, io::Error),
    /// A worker cannot be started.
    #[error("cannot start a worker: {0}")]
    Worker(io::Error),
    /// The state file has not been read.
    #[error("its state has not been read")]
    NoState,
    /// There is nobody to follow it any more.
    #[error("its thread has ended")]
    Ended,
}

/// A configuration that has been prepared.
struct Desired {
    settings: Arc<Settings>,
    /// For each worker.
    listeners: Vec<Vec<StdListener>>,
    /// Where references say that we are.
    address: Address,
    /// What the state file says, if it has been read for this.
    stored: Option<StoredState>,
}

/// What the state file says.
struct StoredState {
    state: State,
    /// Nobody else writes it; without a file there is none.
    lock: Option<store::Lock>,
}

impl fmt::Debug for Corba {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Corba").finish_non_exhaustive()
    }
}

impl Corba {
    /// A service that does nothing yet. Its threads start with the first configuration that
    /// wants them. `clock` is that of the whole process.
    pub fn new(clock: Clock) -> Self {
        Corba {
            inner: Arc::new(Inner {
                clock,
                prepared: Mutex::default(),
                service: ArcSwapOption::empty(),
                server: ArcSwapOption::empty(),
                counters: Arc::default(),
                relayed: Arc::default(),
                monitors: Arc::default(),
                alerts: Arc::default(),
            }),
        }
    }

    /// Lets the service begin, once `manager` has a configuration; at once, or when one wants
    /// it.
    ///
    /// # Errors
    ///
    /// It cannot, and why.
    pub async fn run(&self, manager: Arc<Manager>) -> Result<(), ServeError> {
        let (answer, answered) = oneshot::channel();
        {
            let mut prepared = self.inner.prepared();
            prepared.manager = Arc::downgrade(&manager);
            let Some(thread) = &prepared.thread else {
                return Ok(());
            };
            let _ = thread.commands.send(Command::Start(manager, answer));
        }
        answered.await.unwrap_or(Err(ServeError::Ended))
    }

    /// The load manager; `None` if the service has never been switched on.
    pub fn load_manager(&self) -> Option<Arc<LoadManager>> {
        self.inner.service.load_full()
    }

    /// What the dispatcher counts.
    pub fn counters(&self) -> &Counters {
        &self.inner.counters
    }

    /// What the relays have done.
    pub fn relayed(&self) -> &relay::Counters {
        &self.inner.relayed
    }

    /// What load monitors have answered.
    pub fn monitors(&self) -> &monitors::Counters {
        &self.inner.monitors
    }

    /// Load alert objects, and what they were told.
    pub fn alerts(&self) -> &Alerts {
        &self.inner.alerts
    }

    /// Serves clients now, and counts them; `None` while the service is off.
    pub fn server(&self) -> Option<Arc<Server>> {
        self.inner.server.load_full()
    }

    /// Where it really listens, in the order of their configured addresses.
    pub fn local_addresses(&self) -> Vec<SocketAddr> {
        let prepared = self.inner.prepared();
        let settings = prepared.settings.iter();
        let desired = settings.flat_map(|settings| &settings.listen);
        desired
            .filter_map(|address| prepared.listeners.local_address(*address))
            .collect()
    }

    /// Stops listening, gives answers under way a few seconds, tells clients that their
    /// connections end, and ends. Blocks until then.
    pub fn stop(&self) {
        let thread = {
            let mut prepared = self.inner.prepared();
            prepared.listeners.clear();
            prepared.stopped = true;
            prepared.thread.take()
        };
        self.end(thread);
    }

    fn end(&self, thread: Option<Thread>) {
        let Some(thread) = thread else { return };
        let _ = thread.commands.send(Command::Stop);
        if thread.handle.join().is_err() {
            error!("the CORBA service has panicked");
        }
    }
}

impl Inner {
    fn prepared(&self) -> MutexGuard<'_, Prepared> {
        self.prepared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the thread; it does nothing before it knows the manager.
    fn start_thread(self: &Arc<Self>, manager: Option<Arc<Manager>>) -> io::Result<Thread> {
        let (sender, commands) = mpsc::unbounded_channel();
        let (clock, outside) = (self.clock, Arc::downgrade(self));
        let handle = start_thread("corba", move |runtime| {
            let supervisor = Supervisor {
                clock,
                outside,
                manager,
                running: None,
                workers: Vec::new(),
                lock: None,
            };
            let lock = runtime.block_on(supervisor.follow(commands));
            // Whoever comes next has the state file when nothing writes it any more.
            drop(runtime);
            drop(lock);
        })?;
        Ok(Thread {
            commands: sender,
            handle,
        })
    }
}

impl Prepared {
    fn tell(&self, command: Command) {
        if let Some(thread) = &self.thread {
            let _ = thread.commands.send(command);
        }
    }
}

/// Called with the manager's lock held, under which the load manager must not be locked.
impl Subsystem for Corba {
    fn prepare(&self, next: &Arc<Snapshot>) -> Result<Commit, PrepareErrors> {
        let settings = next.section::<Settings>();
        let mut prepared = self.inner.prepared();
        if prepared.rests {
            // It goes on with that, if it does.
            let (inner, next) = (Arc::clone(&self.inner), Arc::clone(next));
            return Ok(Box::new(move || inner.prepared().current = Some(next)));
        }
        if prepared.stopped || prepared.settings.as_deref() == settings {
            return Ok(Box::new(|| ()));
        }
        let inner = Arc::clone(&self.inner);
        let Some(settings) = settings.cloned().map(Arc::new) else {
            return Ok(Box::new(move || {
                let mut prepared = inner.prepared();
                prepared.settings = None;
                prepared.listeners.clear();
                prepared.tell(Command::Apply(None));
            }));
        };
        if prepared.thread.is_none() {
            let started = inner.start_thread(prepared.manager.upgrade());
            let whose = "corba";
            let started = started.map_err(|error| vec![PrepareError::Thread { whose, error }])?;
            prepared.thread = Some(started);
        }
        let (fixed, stored) = match prepared.fixed.clone() {
            Some(fixed) => (fixed, None),
            None => {
                let known = prepared.known.take();
                let stored = StoredState::read(settings.state_file.as_deref(), known);
                let stored = stored.map_err(|error| vec![PrepareError::other(error)])?;
                let prefix = settings.repository_prefix.clone();
                let fixed = (settings.workers, settings.state_file.clone(), prefix);
                (fixed, Some(stored))
            }
        };
        let cannot_listen = PrepareError::listen("corba");
        let listeners = prepared.listeners.prepare(&settings.listen, fixed.0, WHOSE);
        let listeners = listeners.map_err(&cannot_listen)?;
        drop(prepared);
        let (workers, state_file, repository_prefix) = fixed.clone();
        let in_effect = Arc::new(Settings {
            workers,
            state_file,
            repository_prefix,
            ..(*settings).clone()
        });
        let mut desired = Desired {
            address: address_of(&settings, &listeners),
            settings: in_effect,
            listeners: Vec::with_capacity(workers),
            stored,
        };
        // The workers get handles of their own.
        for worker in 0..workers {
            let own = listeners.handles(worker, workers).map_err(&cannot_listen)?;
            let own = own.into_iter().map(|(_, listener)| listener);
            desired.listeners.push(own.collect());
        }
        let current = Arc::clone(next);
        Ok(Box::new(move || {
            let mut prepared = inner.prepared();
            prepared.current = Some(current);
            prepared.settings = Some(settings);
            prepared.listeners = listeners;
            prepared.fixed = Some(fixed);
            prepared.tell(Command::Apply(Some(Box::new(desired))));
        }))
    }

    fn listening(&self) -> Vec<SocketAddr> {
        self.local_addresses()
    }

    fn needs_restart(&self, current: &Snapshot) -> Vec<&'static str> {
        // The service keeps what it was first switched on with.
        let fixed = self.inner.prepared().fixed.clone();
        let (Some((workers, state_file, prefix)), Some(settings)) =
            (fixed, current.section::<Settings>())
        else {
            return Vec::new();
        };
        let parts = [
            (
                "the number of workers of [corba]",
                workers != settings.workers,
            ),
            (
                "the state file of [corba]",
                state_file != settings.state_file,
            ),
            (
                "the repository prefix of [corba]",
                prefix != settings.repository_prefix,
            ),
        ];
        let changed = parts.into_iter().filter(|(_, changed)| *changed);
        changed.map(|(what, _)| what).collect()
    }

    fn sockets(&self) -> io::Result<Vec<Handed>> {
        self.inner.prepared().listeners.handed(WHOSE)
    }

    fn hand_over(&self, to: &mut Handover) {
        let thread = {
            let mut prepared = self.inner.prepared();
            prepared.rests = true;
            prepared.thread.take()
        };
        // Clients are told that their connections end, and wait at the socket when they come back.
        self.end(thread);
        let mut prepared = self.inner.prepared();
        let has_file = |(_, file, _): &(usize, Option<PathBuf>, String)| file.is_some();
        if prepared.fixed.as_ref().is_none_or(has_file) {
            return;
        }
        if let Some(service) = self.load_manager() {
            let state = service.state();
            let (name, version) = STATE;
            to.give(name, version, &store::document(&state));
            prepared.known = Some((*state).clone());
        }
    }

    fn take_over(&self, from: &Handover) {
        let (name, version) = STATE;
        let Some(document) = from.take(name, version) else {
            return;
        };
        match store::of_document(document) {
            Ok(state) => self.inner.prepared().known = Some(state),
            Err(reason) => warn!(
                reason,
                "the CORBA state of the process before cannot be read: started fresh"
            ),
        }
    }

    fn resume(&self) {
        let current = {
            let mut prepared = self.inner.prepared();
            if !std::mem::take(&mut prepared.rests) {
                // The other process has failed before that.
                return;
            }
            // All is read anew: the other process may have written it.
            prepared.settings = None;
            prepared.fixed = None;
            prepared.current.clone()
        };
        let Some(current) = current else { return };
        match self.prepare(&current) {
            Ok(commit) => commit(),
            Err(errors) => error!("the CORBA service does not go on: {}", ApplyError(errors)),
        }
    }

    fn exclusive(&self, config: &Config) -> Vec<Exclusive> {
        let Some(settings) = &config.corba else {
            return Vec::new();
        };
        let mut all = Exclusive::tcp(&settings.listen);
        all.extend(settings.state_file.clone().map(|path| Exclusive {
            what: path.display().to_string(),
            patience: HANDOVER,
            is_taken: Box::new(move || store::is_taken(&path)),
        }));
        all
    }

    fn check(&self, config: &Config) -> PrepareErrors {
        let Some(settings) = &config.corba else {
            return Vec::new();
        };
        let mut errors = PrepareErrors::new();
        let writable = |path: &Option<PathBuf>, key| {
            let checked = path.as_ref().map(|path| writable::check(path, key));
            checked.and_then(|checked| checked.map_err(PrepareError::other).err())
        };
        if let Some(path) = &settings.state_file {
            errors.extend(store::load(path).map_err(PrepareError::other).err());
        }
        errors.extend(writable(&settings.state_file, "corba.state_file"));
        errors.extend(writable(&settings.ior_file, "corba.ior_file"));
        errors
    }

    fn stop(&self) {
        Corba::stop(self);
    }

    fn announce(&self, _: &Snapshot) -> Vec<String> {
        let addresses = self.local_addresses().into_iter();
        addresses.map(|at| format!("corba on {at}")).collect()
    }

    fn metrics(&self, out: &mut Exposition) {
        crate::metrics::families(out, self);
    }

    fn endpoints(&self) -> Vec<Endpoint> {
        let status = self.clone();
        let remove = |path, summary, what: fn(&mut Vec<String>) -> Option<Registered>| {
            let corba = self.clone();
            Endpoint::act(path, summary, move |mut names: Vec<String>| {
                let (corba, what) = (corba.clone(), what(&mut names));
                async move {
                    match what {
                        Some(what) => corba.remove(what).await,
                        None => Ok(()),
                    }
                }
            })
        };
        vec![
            Endpoint::show(
                "/v1/corba",
                "The CORBA service with its object groups",
                move || status.status(),
            ),
            remove(
                "/v1/corba/monitors/{location}/remove",
                "Removes a load monitor",
                |names| Some(Registered::Monitor(names.pop()?)),
            ),
            remove(
                "/v1/corba/alerts/{location}/remove",
                "Removes a load alert object",
                |names| Some(Registered::Alert(names.pop()?)),
            ),
            remove(
                "/v1/corba/groups/{group}/remove",
                "Removes an object group",
                |names| Some(Registered::Group(names.pop()?)),
            ),
            remove(
                "/v1/corba/groups/{group}/members/{location}/remove",
                "Removes a member of an object group",
                |names| {
                    let (location, group) = (names.pop()?, names.pop()?);
                    Some(Registered::Member { group, location })
                },
            ),
        ]
    }
}

impl Service for Corba {
    fn start(&self, manager: &Arc<Manager>) -> Work<Result<(), StartError>> {
        let (corba, manager) = (self.clone(), Arc::clone(manager));
        Box::pin(async move {
            let started = corba.run(manager).await;
            started.map_err(|cause| StartError {
                whose: "the CORBA service",
                cause: Box::new(cause),
            })
        })
    }
}

impl Corba {
    /// Takes something of the service away.
    async fn remove(&self, what: Registered) -> Result<(), CommandError> {
        let Some(service) = self.load_manager() else {
            return Err(CommandError::Unknown {
                kind: "no_corba",
                detail: "there is no [corba] in the configuration".into(),
                allowed: Vec::new(),
            });
        };
        service.remove(what).await.map_err(|error| match error {
            RemoveError::NotThere(_) => CommandError::Unknown {
                kind: "not_registered",
                detail: error.to_string(),
                allowed: Vec::new(),
            },
            RemoveError::NotKept | RemoveError::Failed(_) => CommandError::Failed {
                kind: "not_kept",
                detail: error.to_string(),
            },
        })
    }
}

impl StoredState {
    /// `known` is what counts where there is no file.
    fn read(path: Option<&Path>, known: Option<State>) -> Result<Self, StoreError> {
        Ok(match path {
            Some(path) => {
                let lock = Some(store::Lock::take(path)?);
                let state = store::load(path)?;
                StoredState { state, lock }
            }
            None => StoredState {
                state: known.unwrap_or_else(store::fresh),
                lock: None,
            },
        })
    }
}

/// Where references say that we are: as the configuration says, or where we listen first.
fn address_of(settings: &Settings, listeners: &Listeners) -> Address {
    let first = settings.listen.first();
    let real = first.and_then(|first| listeners.local_address(*first));
    let advertised = settings.advertise.clone().unwrap_or_default();
    let host = match real {
        _ if !advertised.host.is_empty() => advertised.host,
        Some(real) if !real.ip().is_unspecified() => real.ip().to_string(),
        _ => {
            let system = rustix::system::uname();
            system.nodename().to_string_lossy().into_owned()
        }
    };
    let port = match advertised.port {
        0 => real.map_or(0, |real| real.port()),
        port => port,
    };
    Address { host, port }
}
