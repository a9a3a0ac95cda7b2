//! The service among Evenkeel's data planes: its sockets, its threads, and what a new
//! configuration changes of them.
//!
//! One thread carries out operations of the load manager and all calls of the
//! application's objects. Workers, one unless told otherwise, answer clients: forwarding
//! them takes no lock and waits for nobody.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use evenkeel_config::{Config, Corba as Settings, Node, Store as StoreSettings};
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
use evenkeel_net::inherited::InheritedSocket;
use evenkeel_net::listen::Listeners;
use evenkeel_net::{start_thread, writable};
use evenkeel_store::etcd::Etcd;
use tokio::sync::{mpsc, oneshot};
use tracing::{error, warn};

use crate::service::Address;
use crate::service::registered::{RegisteredItem, RemoveError};
use crate::service::replica::{Replica, StateKeys};
use crate::service::state::State;
use crate::service::store::{self, StoreError};

mod corba;
mod lease;
mod limits;
mod owner;
mod standby;
mod supervisor;
mod worker;

use corba::{Command, Desired, FixedSettings, Inner, Prepared, StoredState, Thread};
pub use corba::{Corba, ServeError};
pub use standby::StandbyStatus;
use standby::{Standby, Taken, Ticket};
use supervisor::Supervisor;

/// Time for which a predecessor may keep its state file: until its clients have their answers, and
/// their changes are written.
const HANDOVER: Duration = Duration::from_secs(15);

/// Name of the listeners' owner.
const WHOSE: &str = "corba";

/// The part of a [`Handover`] with the state, where there is no state file, and its version.
const STATE: (&str, u32) = ("corba", 2);

/// The part with the right to serve, where balancers share one state.
const TICKET: (&str, u32) = ("corba-standby", 1);

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
        {
            let mut prepared = self.inner.prepared();
            prepared.manager = Arc::downgrade(&manager);
            if let Some(standby) = &prepared.standby
                && prepared.is_wanted()
            {
                standby.serve_if_free();
            }
        }
        self.begin(manager).await
    }

    /// Lets the service's thread begin, if there is one.
    async fn begin(&self, manager: Arc<Manager>) -> Result<(), ServeError> {
        let (answer, answered) = oneshot::channel();
        match &self.inner.prepared().thread {
            None => return Ok(()),
            Some(thread) => drop(thread.commands.send(Command::Start(manager, answer))),
        }
        answered.await.unwrap_or(Err(ServeError::Ended))
    }

    /// Prepares for a snapshot and goes on to it.
    fn follow_snapshot(&self, snapshot: &Arc<Snapshot>) -> Result<(), ApplyError> {
        let commit = self.prepare(snapshot)?;
        commit();
        Ok(())
    }

    /// Stops listening, gives answers under way a few seconds, tells clients that their
    /// connections end, and ends. Blocks until then.
    pub fn stop(&self) {
        let (standby, thread) = {
            let mut prepared = self.inner.prepared();
            prepared.listeners.clear();
            prepared.stopped = true;
            (prepared.standby.take(), prepared.thread.take())
        };
        self.end(thread);
        if let Some(standby) = standby {
            standby.end_and_join();
        }
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
            let lock = runtime.block_on(supervisor.follow_commands(commands));
            // Whoever comes next has the state file when nothing writes it any more.
            drop(runtime);
            drop(lock);
        })?;
        Ok(Thread {
            commands: sender,
            handle,
        })
    }

    /// Starts the thread, unless it runs.
    fn ensure_thread(self: &Arc<Self>, prepared: &mut Prepared) -> Result<(), PrepareErrors> {
        if prepared.thread.is_none() {
            // One of several serves when all is in place, and says whether it does.
            let manager = match prepared.standby {
                Some(_) => None,
                None => prepared.manager.upgrade(),
            };
            let started = self.start_thread(manager);
            let whose = "corba";
            let started = started.map_err(|error| vec![PrepareError::Thread { whose, error }])?;
            prepared.thread = Some(started);
        }
        Ok(())
    }
}

impl Prepared {
    /// Returns the settings that the service keeps from its start; at the start also the state that was stored.
    fn fixed_settings(
        &mut self,
        settings: &Settings,
    ) -> Result<(FixedSettings, Option<StoredState>), PrepareErrors> {
        if let Some(fixed) = self.fixed.clone() {
            return Ok((fixed, None));
        }
        let file = settings.state_file.as_deref();
        let stored = match self.taken.take() {
            Some(taken) => StoredState::of_taken(file, taken),
            None => StoredState::read(file, self.known.take()),
        };
        let stored = stored.map_err(|error| vec![PrepareError::other(error)])?;
        let prefix = settings.repository_prefix.clone();
        let fixed = (settings.workers, settings.state_file.clone(), prefix);
        Ok((fixed, Some(stored)))
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
        if prepared.stopped {
            return Ok(Box::new(|| ()));
        }
        let inner = Arc::clone(&self.inner);
        self.inner.prepare_standby(&mut prepared, next)?;
        if prepared.standby.is_some() && !prepared.is_owner {
            let next = Arc::clone(next);
            return Ok(Box::new(move || inner.prepared().stand_by(next)));
        }
        if prepared.settings.as_deref() == settings {
            return Ok(Box::new(|| ()));
        }
        let Some(settings) = settings.cloned().map(Arc::new) else {
            let next = Arc::clone(next);
            return Ok(Box::new(move || {
                let mut prepared = inner.prepared();
                prepared.settings = None;
                prepared.listeners.clear();
                prepared.tell(Command::Apply(None));
                if prepared.standby.is_some() {
                    prepared.stand_by(next);
                }
            }));
        };
        inner.ensure_thread(&mut prepared)?;
        let (fixed, stored) = prepared.fixed_settings(&settings)?;
        let cannot_listen = PrepareError::listen("corba");
        let listeners = prepared
            .listeners
            .prepare_addresses(&settings.listen, fixed.0, WHOSE);
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
            let own = listeners
                .clone_for_thread(worker, workers)
                .map_err(&cannot_listen)?;
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
        let (fixed, stands_by) = {
            let prepared = self.inner.prepared();
            (prepared.fixed.clone(), prepared.standby.is_some())
        };
        let settings = current.section::<Settings>();
        if let Some(settings) = settings
            && settings.standby != stands_by
        {
            return vec!["standby of [corba]"];
        }
        let (Some((workers, state_file, prefix)), Some(settings)) = (fixed, settings) else {
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

    fn sockets(&self) -> io::Result<Vec<InheritedSocket>> {
        self.inner.prepared().listeners.clone_for_handover(WHOSE)
    }

    fn hand_over(&self, to: &mut Handover) {
        let (ticket, thread) = {
            let mut prepared = self.inner.prepared();
            prepared.rests = true;
            match &prepared.standby {
                Some(standby) => (Some(standby.hand_over()), None),
                None => (None, prepared.thread.take()),
            }
        };
        if let Some(ticket) = ticket {
            return self.hand_over_ticket(ticket(), to);
        }
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
            to.give(name, version, &store::state_document(&state));
            prepared.known = Some((*state).clone());
        }
    }

    fn take_over(&self, from: &Handover) {
        let (name, version) = TICKET;
        self.inner.prepared().ticket = from.take(name, version);
        let (name, version) = STATE;
        let Some(document) = from.take(name, version) else {
            return;
        };
        match store::of_document(document) {
            Ok(state) => self.inner.prepared().known = Some(state),
            Err(reason) => warn!(
                reason,
                "upgrade: the CORBA state of the old process cannot be read: object groups that are \
                 neither in the state file nor in the store are lost"
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
            if prepared.standby.is_some() {
                // Whether it is still the owner, the store knows.
                if let Some(current) = prepared.current.take() {
                    prepared.stand_by(current);
                }
                return;
            }
            prepared.current.clone()
        };
        let Some(current) = current else { return };
        match self.prepare(&current) {
            Ok(commit) => commit(),
            Err(errors) => error!(
                "the CORBA service cannot resume after the failed upgrade: {}",
                ApplyError(errors)
            ),
        }
    }

    fn exclusive(&self, config: &Config) -> Vec<Exclusive> {
        let Some(settings) = &config.corba else {
            return Vec::new();
        };
        if settings.standby {
            // It waits for the one that serves, wherever that is.
            return Vec::new();
        }
        let mut all = Exclusive::tcp(&settings.listen);
        all.extend(settings.state_file.clone().map(|path| Exclusive {
            resource_name: path.display().to_string(),
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
            let checked = path.as_ref().map(|path| writable::check_path(path, key));
            checked.and_then(|checked| checked.map_err(PrepareError::other).err())
        };
        if let Some(path) = &settings.state_file {
            errors.extend(store::load_state(path).map_err(PrepareError::other).err());
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
        crate::metrics::write_families(out, self);
    }

    fn endpoints(&self) -> Vec<Endpoint> {
        let status = self.clone();
        let remove = |path, summary, what: fn(&mut Vec<String>) -> Option<RegisteredItem>| {
            let corba = self.clone();
            Endpoint::with_action(path, summary, move |mut names: Vec<String>| {
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
            Endpoint::with_value(
                "/v1/corba",
                "The CORBA service with its object groups",
                move || status.status(),
            ),
            remove(
                "/v1/corba/monitors/{location}/remove",
                "Removes a load monitor",
                |names| Some(RegisteredItem::Monitor(names.pop()?)),
            ),
            remove(
                "/v1/corba/alerts/{location}/remove",
                "Removes a load alert object",
                |names| Some(RegisteredItem::Alert(names.pop()?)),
            ),
            remove(
                "/v1/corba/groups/{group}/remove",
                "Removes an object group",
                |names| Some(RegisteredItem::Group(names.pop()?)),
            ),
            remove(
                "/v1/corba/groups/{group}/members/{location}/remove",
                "Removes a member of an object group",
                |names| {
                    let (location, group) = (names.pop()?, names.pop()?);
                    Some(RegisteredItem::Member { group, location })
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
    async fn remove(&self, what: RegisteredItem) -> Result<(), CommandError> {
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

impl Corba {
    /// Tells another process how to go on as the owner.
    fn hand_over_ticket(&self, ticket: Option<Ticket>, to: &mut Handover) {
        let (Some(mut ticket), Some(service)) = (ticket, self.load_manager()) else {
            return;
        };
        ticket.has_state = service.is_shared();
        if ticket.has_state {
            let (name, version) = STATE;
            to.give(name, version, &store::state_document(&service.state()));
        }
        let (name, version) = TICKET;
        to.give(name, version, &ticket);
    }
}

impl Inner {
    /// Starts to follow who serves, if the configuration says for the first time that several
    /// balancers are one load manager.
    fn prepare_standby(
        self: &Arc<Self>,
        prepared: &mut Prepared,
        next: &Snapshot,
    ) -> Result<(), PrepareErrors> {
        let settings = next.section::<Settings>();
        let stands_by = settings.is_some_and(|settings| settings.standby);
        // What it was first switched on with, it keeps.
        let is_on = prepared.standby.is_some() || prepared.thread.is_some();
        let Some(shared) = next.section::<StoreSettings>() else {
            return Ok(());
        };
        if !stands_by || is_on {
            return Ok(());
        }
        let node = next.section::<Node>().cloned().unwrap_or_default();
        let name = node.find_name();
        let ticket = prepared.ticket.take();
        let known = prepared.known.take().map(Arc::new);
        let known = known.filter(|_| ticket.as_ref().is_some_and(|ticket| ticket.has_state));
        let tenure = ticket.as_ref().zip(known.as_ref());
        let tenure = tenure.and_then(|(ticket, _)| ticket.tenure(self.clock));
        let revision = ticket.as_ref().map_or(0, Ticket::revision);
        let (own, clock, held) = (Arc::downgrade(self), self.clock, tenure.clone());
        let standby = Standby::start(own, clock, (shared, name), ticket, held);
        let whose = WHOSE;
        let standby = standby.map_err(|error| vec![PrepareError::Thread { whose, error }])?;
        prepared.standby = Some(standby);
        prepared.is_owner = tenure.is_some();
        prepared.taken = known.zip(tenure).map(|(state, tenure)| {
            let (etcd, keys) = (Etcd::new(shared), StateKeys::new(&shared.prefix));
            let same = Arc::clone(&state);
            let replica = Box::new(Replica::new(etcd, keys, revision, tenure, same));
            Taken { state, replica }
        });
        Ok(())
    }
}

impl StoredState {
    /// Takes the state that balancers share; the file at `path` is a copy.
    fn of_taken(path: Option<&Path>, taken: Taken) -> Result<Self, StoreError> {
        let Taken { state, replica } = taken;
        Ok(StoredState {
            state,
            lock: path.map(store::Lock::take).transpose()?,
            replica: Some(replica),
        })
    }

    /// `known` is what counts where there is no file.
    fn read(path: Option<&Path>, known: Option<State>) -> Result<Self, StoreError> {
        Ok(match path {
            Some(path) => {
                let lock = Some(store::Lock::take(path)?);
                let state = Arc::new(store::load_state(path)?);
                let replica = None;
                StoredState {
                    state,
                    lock,
                    replica,
                }
            }
            None => StoredState {
                state: Arc::new(known.unwrap_or_else(store::fresh_state)),
                lock: None,
                replica: None,
            },
        })
    }
}

/// Returns the address of the load manager in references: the configured one, or the first that the
/// service listens on.
fn address_of(settings: &Settings, listeners: &Listeners) -> Address {
    let first = settings.listen.first();
    let real = first.and_then(|first| listeners.local_address(*first));
    let mut advertised = settings.advertise.iter().cloned();
    let first = advertised.next().unwrap_or_default();
    let host = match real {
        _ if !first.host.is_empty() => first.host,
        Some(real) if !real.ip().is_unspecified() => real.ip().to_string(),
        _ => {
            let system = rustix::system::uname();
            system.nodename().to_string_lossy().into_owned()
        }
    };
    let port = match first.port {
        0 => real.map_or(0, |real| real.port()),
        port => port,
    };
    Address {
        host,
        port,
        alternates: advertised.map(|other| (other.host, other.port)).collect(),
    }
}
