//! The load manager: its parts, its state, and its references.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwap;
use evenkeel_config::Corba as Settings;
use evenkeel_giop::client::Client;
use evenkeel_giop::ior::Ior;
use evenkeel_manager::Manager;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

use super::gone::GoneMembers;
use super::pushed::Pushed;
use super::state::{ObjectGroup, State};
use super::store::Store;
use super::variants::Variants;
use crate::custom::Customs;
use crate::directory::Directory;
use crate::interfaces::Interface;
use crate::keys::{Key, MANAGER};
use crate::tenure::ServingRight;

/// Address of the load manager in references.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// Host name or IP address.
    pub host: String,
    /// TCP port.
    pub port: u16,
    /// Hosts and ports of other balancers that serve when this one does not.
    pub alternates: Vec<(String, u16)>,
}

impl Address {
    /// Returns true if the load manager, here or on another balancer, is reached there.
    pub fn includes(&self, host: &str, port: u16) -> bool {
        let mut alternates = self.alternates.iter();
        (self.host == host && self.port == port)
            || alternates.any(|other| other.0 == host && other.1 == port)
    }
}

/// The load manager. Share it in an `Arc`; it may be called from any thread.
pub struct LoadManager {
    pub(super) manager: Arc<Manager>,
    pub(super) directory: Arc<Directory>,
    pub(super) client: Client,
    pub(super) customs: Arc<Customs>,
    /// Runtime in which operations are carried out.
    pub(super) runtime: Handle,
    pub(super) settings: ArcSwap<Settings>,
    pub(super) address: ArcSwap<Address>,
    pub(super) store: Store,
    /// The state that balancers share, and the right by which this one writes it.
    pub(super) shared: Option<(Store, Arc<ServingRight>)>,
    /// Room for calls that are being carried out, in KiB.
    pub(super) room: Arc<Semaphore>,
    /// Members that pings have found to be gone.
    pub(super) gone: GoneMembers,
    /// True if clients are told that an empty group does not exist:
    /// [`Entry::ends_when_empty`](crate::directory::Entry::ends_when_empty).
    pub(super) ends_when_empty: Arc<AtomicBool>,
    /// Strategies of other levels than a group's own.
    pub(super) variants: Variants,
    pub(super) owned: Mutex<Owned>,
    /// Background tasks that run while the service is on.
    pub(super) background: Mutex<JoinSet<()>>,
    /// Each new state, once it counts.
    pub(super) states: watch::Sender<Arc<State>>,
}

/// Data that the lock protects. It may be held while the manager is called.
pub(super) struct Owned {
    pub(super) state: Arc<State>,
    /// Number of the last change.
    pub(super) version: u64,
    /// Locations that only a push of loads has named, with the number of the push.
    pub(super) pushed: Pushed,
    /// True if the service is off: changes are kept, but have no effect.
    pub(super) off: bool,
    /// The groups by the ids with which their creators delete them.
    pub(super) creations: HashMap<u32, u64>,
    /// Size of the state: [`State::size`].
    pub(super) size: usize,
}

impl fmt::Debug for LoadManager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoadManager").finish_non_exhaustive()
    }
}

impl LoadManager {
    pub(super) fn background(&self) -> MutexGuard<'_, JoinSet<()>> {
        self.background
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// The settings of `[corba]`.
    pub fn settings(&self) -> Arc<Settings> {
        self.settings.load_full()
    }

    /// Returns the current state.
    pub fn state(&self) -> Arc<State> {
        Arc::clone(&self.lock().state)
    }

    /// Returns a receiver of the current state, and of each new version once it is in effect.
    pub fn watch_states(&self) -> watch::Receiver<Arc<State>> {
        self.states.subscribe()
    }

    /// By which objects of the application are called.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Returns the directory in which requests find groups.
    pub fn directory(&self) -> &Arc<Directory> {
        &self.directory
    }

    /// Returns the address of the load manager in references.
    pub fn address(&self) -> Arc<Address> {
        self.address.load_full()
    }

    /// Evenkeel's manager.
    pub fn manager(&self) -> &Arc<Manager> {
        &self.manager
    }

    /// Waits until everything that has changed is in the state file and in the store that
    /// balancers share, or cannot be.
    pub async fn wait_until_kept(&self) {
        let version = self.lock().version;
        // Why it cannot has been said.
        let _ = self.store.wait_until_saved(version).await;
        if let Some((shared, _)) = &self.shared {
            let _ = shared.wait_until_saved(version).await;
        }
    }

    /// Returns true if the store that balancers share has every change.
    pub fn is_shared(&self) -> bool {
        let version = self.lock().version;
        let is_saved = |(shared, _): &(Store, _)| shared.has_saved(version);
        self.shared.as_ref().is_some_and(is_saved)
    }

    /// Reason why the last change is not in the store that balancers share, or in the state file.
    pub fn store_problem(&self) -> Option<Arc<str>> {
        let shared = self.shared.as_ref();
        let shared = shared.and_then(|(shared, _)| shared.problem());
        shared.or_else(|| self.store.problem())
    }

    /// The right to serve, where several balancers share one state.
    pub fn tenure(&self) -> Option<&Arc<ServingRight>> {
        self.shared.as_ref().map(|(_, tenure)| tenure)
    }

    /// Returns the load manager's own reference.
    pub fn reference(&self) -> Ior {
        let type_id = Interface::LoadManager.id(&self.settings().repository_prefix);
        self.reference_of(&type_id, MANAGER)
    }

    /// The reference of an object group.
    pub fn group_reference(&self, id: u64, group: &ObjectGroup) -> Ior {
        self.reference_of(&group.type_id, &Key::Group(id).to_bytes())
    }

    /// A reference to an object here with that key.
    pub fn reference_of(&self, type_id: &str, key: &[u8]) -> Ior {
        let address = self.address.load();
        let first = (&*address.host, address.port);
        Ior::iiop_at(type_id, first, &address.alternates, key)
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Owned> {
        // A panic with the lock held leaves the state that was there before.
        self.owned.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
