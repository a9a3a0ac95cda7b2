//! The CORBA service from outside: its state, and what its threads are told.

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;

use arc_swap::ArcSwapOption;
use evenkeel_config::Corba as Settings;
use evenkeel_giop::server::Server;
use evenkeel_manager::Manager;
use evenkeel_manager::snapshot::Snapshot;
use evenkeel_manager::subsystem::ApplyError;
use evenkeel_net::Clock;
use evenkeel_net::listen::Listeners;
use tokio::sync::{mpsc, oneshot};

use super::standby::{Standby, StandbyStatus, Taken, Ticket};
use crate::alerts::Alerts;
use crate::dispatcher::Counters;
use crate::monitors;
use crate::relay;
use crate::service::replica::Replica;
use crate::service::state::State;
use crate::service::store;
use crate::service::{Address, LoadManager};

/// The CORBA service from outside. Cheap to clone; all clones are the same one.
#[derive(Clone)]
pub struct Corba {
    pub(super) inner: Arc<Inner>,
}

pub(super) struct Inner {
    pub(super) clock: Clock,
    pub(super) prepared: Mutex<Prepared>,
    /// Once it has been switched on.
    pub(super) service: ArcSwapOption<LoadManager>,
    /// Of the workers, while they serve.
    pub(super) server: ArcSwapOption<Server>,
    pub(super) counters: Arc<Counters>,
    pub(super) relayed: Arc<relay::Counters>,
    pub(super) monitors: Arc<monitors::Counters>,
    pub(super) alerts: Arc<Alerts>,
}

/// State prepared for the last configuration.
#[derive(Default)]
pub(super) struct Prepared {
    pub(super) settings: Option<Arc<Settings>>,
    /// A socket for each worker.
    pub(super) listeners: Listeners,
    /// Values that cannot change as long as the process lives: the number of workers, and the state
    /// file, which has been read.
    pub(super) fixed: Option<FixedSettings>,
    /// Once a configuration has wanted it.
    pub(super) thread: Option<Thread>,
    /// Once the service may begin.
    pub(super) manager: Weak<Manager>,
    /// The last one that was put into effect.
    pub(super) current: Option<Arc<Snapshot>>,
    /// State without a state file: from the process before, or from this one before it handed over.
    pub(super) known: Option<State>,
    /// Another process serves with the state file.
    pub(super) rests: bool,
    /// Several balancers are one load manager, and this one follows who serves.
    pub(super) standby: Option<Standby>,
    /// True if this balancer serves, or is about to.
    pub(super) is_owner: bool,
    /// State that this balancer is to serve.
    pub(super) taken: Option<Taken>,
    /// The right of the process before.
    pub(super) ticket: Option<Ticket>,
    /// Nothing is opened any more.
    pub(super) stopped: bool,
}

/// The service's thread.
pub(super) struct Thread {
    pub(super) commands: mpsc::UnboundedSender<Command>,
    pub(super) handle: JoinHandle<()>,
}

/// Command to the service's thread.
pub(super) enum Command {
    /// Starts the service with this manager; the answer says if it could start.
    Start(Arc<Manager>, oneshot::Sender<Result<(), ServeError>>),
    /// Another configuration counts.
    Apply(Option<Box<Desired>>),
    /// Ends the thread.
    Stop,
}

/// Reason why the service does not follow its configuration.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The groups cannot be put into effect.
    #[error(transparent)]
    Groups(#[from] ApplyError),
    /// The file for its own reference cannot be written.
    #[error("cannot write {}: {_1}", _0.display())]
    Reference(PathBuf, io::Error),
    /// A worker cannot be started.
    #[error("cannot start a worker: {0}")]
    Worker(io::Error),
    /// The state file has not been read.
    #[error("the state of the CORBA service has not been read")]
    NoState,
    /// There is nobody to follow it any more.
    #[error("the thread of the CORBA service has ended")]
    Ended,
}

/// Settings that the service keeps from its start: number of workers, state file, prefix of repository ids.
pub(super) type FixedSettings = (usize, Option<PathBuf>, String);

/// A configuration that has been prepared.
pub(super) struct Desired {
    pub(super) settings: Arc<Settings>,
    /// For each worker.
    pub(super) listeners: Vec<Vec<StdListener>>,
    /// Address of the load manager in references.
    pub(super) address: Address,
    /// State from the state file, if it has been read for this configuration.
    pub(super) stored: Option<StoredState>,
}

/// State from the state file, with the right to write it.
pub(super) struct StoredState {
    pub(super) state: Arc<State>,
    /// Nobody else writes it; without a file there is none.
    pub(super) lock: Option<store::Lock>,
    /// Writes it to the store that balancers share.
    pub(super) replica: Option<Box<Replica>>,
}

impl fmt::Debug for Corba {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Corba").finish_non_exhaustive()
    }
}

impl Prepared {
    /// Returns true if the configuration has the service.
    pub(super) fn is_wanted(&self) -> bool {
        let current = self.current.as_ref();
        current.is_some_and(|current| current.section::<Settings>().is_some())
    }

    pub(super) fn wanted(&self) -> Option<&Settings> {
        self.current.as_ref()?.section::<Settings>()
    }

    /// The state file that the configuration in effect names.
    pub(super) fn state_file(&self) -> Option<PathBuf> {
        self.wanted()?.state_file.clone()
    }

    /// The addresses that the configuration in effect names.
    pub(super) fn addresses(&self) -> Vec<SocketAddr> {
        self.wanted()
            .map_or_else(Vec::new, |wanted| wanted.listen.clone())
    }

    /// Follows `next` while another balancer serves.
    pub(super) fn stand_by(&mut self, next: Arc<Snapshot>) {
        self.current = Some(next);
        if let Some(standby) = &self.standby
            && self.manager.strong_count() > 0
        {
            match self.is_wanted() {
                true => standby.serve_if_free(),
                false => standby.stop_serving(),
            }
        }
    }

    pub(super) fn tell(&self, command: Command) {
        if let Some(thread) = &self.thread {
            let _ = thread.commands.send(command);
        }
    }
}

impl Corba {
    /// Returns the standby status; `None` if no other balancer shares the state.
    pub fn standby_status(&self) -> Option<StandbyStatus> {
        self.inner.prepared().standby.as_ref().map(Standby::status)
    }

    /// The load manager; `None` if the service has never been switched on.
    pub fn load_manager(&self) -> Option<Arc<LoadManager>> {
        self.inner.service.load_full()
    }

    /// Returns the counters of the dispatcher.
    pub fn counters(&self) -> &Counters {
        &self.inner.counters
    }

    /// Returns the counters of the relays.
    pub fn relay_counters(&self) -> &relay::Counters {
        &self.inner.relayed
    }

    /// Returns the counters of load monitors' answers.
    pub fn monitor_counters(&self) -> &monitors::Counters {
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

    /// Returns the addresses that the service really listens on, in the order of the configured
    /// addresses.
    pub fn local_addresses(&self) -> Vec<SocketAddr> {
        let prepared = self.inner.prepared();
        let settings = prepared.settings.iter();
        let desired = settings.flat_map(|settings| &settings.listen);
        desired
            .filter_map(|address| prepared.listeners.local_address(*address))
            .collect()
    }
}

impl Inner {
    pub(super) fn prepared(&self) -> MutexGuard<'_, Prepared> {
        self.prepared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
