//! Manager: the one entry point, through which everything comes that changes a group, a rule or a load.

use std::collections::HashMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwapOption;
use evenkeel_net::Clock;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Semaphore, broadcast, watch};
use tracing::warn;

use crate::admission::RefusedAddress;
use crate::changes::Changes;
use crate::config::{self, Config, Errors};
#[cfg(test)]
use crate::dns::Lookup;
use crate::dns::Resolver;
use crate::inputs::Inputs;
use crate::lists::ListProblems;
use crate::news::AlertNews;
use crate::revisions::{Entry, Revisions};
use crate::snapshot::Snapshot;
use crate::state::{GroupEntry, State, name_taken};
use crate::store::Store;
use crate::subsystem::{ApplyError, Subsystem};

mod change;
mod generated;
mod learnt;
mod live;
mod outcome;
mod prompts;
mod readiness;
mod reload;
mod reported;
mod zone;

pub(crate) use outcome::Reload;
pub use outcome::{
    AppliedConfig, ChangeError, Generated, ManageError, Readiness, ReloadError, SavedConfig,
    WantedConfig,
};

/// Rules that can serve, and those that cannot.
#[derive(Debug)]
struct ReadyRules {
    /// Moment at which it was found out, in milliseconds.
    at: u64,
    /// The configuration; 0 is none.
    generation: u64,
    /// The rules, by name: true if clients of one are served. A rule that is not enabled serves nobody.
    rules: HashMap<String, bool>,
    /// True if there is an enabled rule.
    some_enabled: bool,
}

/// The load manager. Share it in an `Arc`; all methods may be called from any thread.
///
/// Changes of the configuration, a reload as much as a command from the admin API, go the same way: new state
/// beside the old one, data plane prepares, commit. A change happens as a whole or not at all.
///
/// A live change (`set_…`) lasts until the process ends, or until a reload in which the file says something
/// new about that very thing: then the file wins. So a reload that changes the weight of one member leaves
/// another one drained.
pub struct Manager {
    clock: Clock,
    subsystems: Arc<dyn Subsystem>,
    pub(crate) resolver: Arc<Resolver>,
    snapshots: watch::Sender<Arc<Snapshot>>,
    /// Channel that is told when there may be other members to check or names to resolve.
    changes: watch::Sender<()>,
    /// Channel that is told of load alerts that begin and end.
    pub(crate) alert_news: broadcast::Sender<AlertNews>,
    /// Permits for checks that somebody asks for, so that they use few files.
    pub(crate) asked_checks: Semaphore,
    owned: Mutex<LockedState>,
    /// Lock that lets one change of the configuration run at a time: the change waits for DNS while other
    /// work may go on.
    reloading: tokio::sync::Mutex<()>,
    /// The texts that are and were in force. Changed while `reloading` is held only.
    revisions: Mutex<Revisions>,
    /// The text in force; none before there is one, or if it came from no file.
    in_force: watch::Sender<Option<Arc<Entry>>>,
    /// Channel that is told when a reload that somebody has asked for has failed.
    failed_reloads: watch::Sender<()>,
    /// Store of the text, if it is not kept in the file.
    store: OnceLock<Arc<dyn Store>>,
    /// Last finding of [`Manager::readiness`].
    ready: ArcSwapOption<ReadyRules>,
}

/// Data that the lock protects.
pub(crate) struct LockedState {
    pub state: State,
    /// True if those who follow changes have not heard of the last change.
    pub untold: bool,
    /// Troubles with lists of members.
    pub troubles: ListProblems,
    pub last_reload: Option<Reload>,
    /// Configuration that came into effect at the start, for settings that only a restart changes.
    pub started: Option<Arc<Config>>,
    /// Changes that the old process has told, until there is a configuration.
    pub changes: Option<Changes>,
    /// Rules and groups that a controller has generated, as a text and as what the text says.
    pub generated: Option<(Generated, Arc<Config>)>,
    /// Zone of the balancer that a subsystem has found, for a file that sets none.
    pub found_zone: Option<String>,
}

/// Name of a store's text in messages.
pub const SHARED: &str = "shared";

/// News of load alerts that are kept for those who have not read them yet.
const ALERT_NEWS: usize = 256;

/// Checks that somebody has asked for, at a time.
const ASKED_CHECKS: usize = 4;

impl fmt::Debug for Manager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Manager").finish_non_exhaustive()
    }
}

impl Manager {
    /// A manager without a configuration. `clock` is the one that the data plane uses.
    pub fn new(clock: Clock, subsystems: Arc<dyn Subsystem>) -> Arc<Self> {
        Self::with_resolver(clock, subsystems, Resolver::system())
    }

    /// [`Manager::new`] with another way to look names up.
    #[cfg(test)]
    pub(crate) fn with_lookup(
        clock: Clock,
        subsystems: Arc<dyn Subsystem>,
        lookup: Lookup,
    ) -> Arc<Self> {
        Self::with_resolver(clock, subsystems, Resolver::given(lookup))
    }

    fn with_resolver(
        clock: Clock,
        subsystems: Arc<dyn Subsystem>,
        resolver: Resolver,
    ) -> Arc<Self> {
        Arc::new(Manager {
            clock,
            subsystems,
            resolver: Arc::new(resolver),
            snapshots: watch::Sender::new(Arc::default()),
            changes: watch::Sender::new(()),
            alert_news: broadcast::Sender::new(ALERT_NEWS),
            asked_checks: Semaphore::new(ASKED_CHECKS),
            owned: Mutex::new(LockedState {
                state: State::empty(),
                untold: false,
                troubles: ListProblems::default(),
                last_reload: None,
                started: None,
                changes: None,
                generated: None,
                found_zone: None,
            }),
            reloading: tokio::sync::Mutex::new(()),
            revisions: Mutex::default(),
            in_force: watch::Sender::new(None),
            failed_reloads: watch::Sender::new(()),
            store: OnceLock::new(),
            ready: ArcSwapOption::empty(),
        })
    }

    /// The subsystems that follow its configuration.
    pub fn subsystems(&self) -> &dyn Subsystem {
        &*self.subsystems
    }

    /// Has the text of the configuration come from a store, and not from the file: that has only what this
    /// process does not share with others. Say so before there is a configuration.
    pub fn keep_in(&self, store: Arc<dyn Store>) {
        // There is one, for as long as the process lives.
        let _ = self.store.set(store);
    }

    /// Returns the store of the text, if the text is not kept in the file.
    pub fn store(&self) -> Option<&Arc<dyn Store>> {
        self.store.get()
    }

    /// Parses `text`: that of the file `file`; or, with a store, the text that this process shares with
    /// others, beside that file's own.
    ///
    /// # Errors
    ///
    /// All that is wrong.
    pub fn parse(&self, file: &Path, text: &str) -> Result<Config, Errors> {
        let name = file.display().to_string();
        match self.store() {
            None => config::parse(&name, text),
            Some(_) => config::parse_shared(&name, &config::text_of(file)?, (SHARED, text)),
        }
    }

    /// The clock of all instants here.
    pub fn clock(&self) -> Clock {
        self.clock
    }

    /// News that a reload which somebody has asked for has failed: whoever follows the file has perhaps not seen what it
    /// said at that moment.
    pub fn failed_reloads(&self) -> watch::Receiver<()> {
        self.failed_reloads.subscribe()
    }

    /// The rules as they are, and each new version of them. A new version is sent after
    /// the data plane's commit.
    pub fn snapshots(&self) -> watch::Receiver<Arc<Snapshot>> {
        self.snapshots.subscribe()
    }

    /// The configuration file as it was last applied, with generated rules and groups, without live changes.
    pub fn file_config(&self) -> Config {
        Config::clone(&self.shared_config())
    }

    /// [`Manager::file_config`] without a copy: for those who look at each change.
    pub fn shared_config(&self) -> Arc<Config> {
        Arc::clone(&self.lock().state.inputs.config)
    }

    /// True if there is a group of that name, whoever owns it.
    pub fn has_group(&self, name: &str) -> bool {
        self.lock().state.find_group(name).is_some()
    }

    /// Load alerts that begin and end from now on.
    pub fn alert_news(&self) -> broadcast::Receiver<AlertNews> {
        self.alert_news.subscribe()
    }

    /// Returns a channel that is told when there may be other members, names to resolve, or locations.
    pub fn subscribe_changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }

    /// Calls `act` with the snapshot in effect; no other one takes effect meanwhile. `act` must
    /// not call the manager.
    pub fn with_snapshot<T>(&self, act: impl FnOnce(&Arc<Snapshot>) -> T) -> T {
        act(&self.lock().state.snapshot)
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, LockedState> {
        // A panic with the lock held cannot leave a state half changed: a state is
        // replaced as a whole.
        self.owned.lock()
    }

    /// Installs what a live change, or DNS, has made of the inputs.
    pub(crate) fn apply_change(&self, state: &mut State, inputs: Inputs) -> Result<(), ApplyError> {
        let generation = state.snapshot.generation;
        self.install(state, inputs, generation)
    }

    /// Installs a change: everything that changes the configuration comes through here.
    fn install(
        &self,
        state: &mut State,
        inputs: Inputs,
        generation: u64,
    ) -> Result<(), ApplyError> {
        let (own, before) = (Arc::clone(&state.inputs.own), state.snapshot.generation);
        let mut keeps_groups = self.install_once(state, inputs, generation)?;
        // Where the system chose a port, it is known only now.
        if state.inputs.has_guests() && self.listening() != state.inputs.listening {
            let inputs = state.inputs.clone();
            keeps_groups &= self.install_once(state, inputs, generation)?;
        }
        // Generated routes have nothing that those who follow changes look at.
        let is_of_routes = keeps_groups && before != generation;
        if !is_of_routes || !Arc::ptr_eq(&own, &state.inputs.own) {
            self.tell_changes();
        }
        Ok(())
    }

    /// Returns the addresses where the data plane listens, in order.
    fn listening(&self) -> Vec<SocketAddr> {
        let mut listening = self.subsystems.listening();
        listening.sort_unstable();
        listening
    }

    /// Installs a change. Returns true if all groups stay as they are.
    fn install_once(
        &self,
        state: &mut State,
        mut inputs: Inputs,
        generation: u64,
    ) -> Result<bool, ApplyError> {
        let now = self.clock.now();
        inputs.listening = self.listening();
        if state.keeps_groups(&inputs) {
            self.install_beside_groups(state, inputs, generation)?;
            return Ok(true);
        }
        one_name_each(&inputs)?;
        let mut next = state.next_keeping(inputs, generation, now);
        next.learnt = state.learnt.take();
        next.prompts = state.prompts.take();
        next.go_on(now);
        let news = !Arc::ptr_eq(&next.snapshot, &state.snapshot);
        let commit = match news {
            true => Some(self.subsystems.prepare(&next.snapshot)?),
            false => None,
        };
        tell_refused(state, &next);
        next.take_kept(state, now);
        if let Some(commit) = commit {
            commit();
            self.snapshots.send_replace(Arc::clone(&next.snapshot));
        }
        // Workers may have the snapshot for a while. None of them is to be the last that has it: freeing takes long.
        let retired = std::mem::replace(&mut next.retired, Arc::clone(&state.snapshot));
        let mut before = std::mem::replace(state, next);
        // Groups that are gone end now what they have under way.
        before.groups.clear();
        free_aside((before, retired));
        self.ready.store(None);
        Ok(false)
    }

    /// Installs a change that leaves all groups as they are, such as that of a route: the state before keeps them, and only
    /// rules and sections are made anew.
    fn install_beside_groups(
        &self,
        state: &mut State,
        inputs: Inputs,
        generation: u64,
    ) -> Result<(), ApplyError> {
        let before = std::mem::replace(&mut state.inputs, inputs);
        let next = state.next_snapshot(&state.snapshot, generation, true);
        if !Arc::ptr_eq(&next, &state.snapshot) {
            match self.subsystems.prepare(&next) {
                Ok(commit) => commit(),
                Err(errors) => {
                    state.inputs = before;
                    return Err(errors.into());
                }
            }
            self.snapshots.send_replace(Arc::clone(&next));
        }
        let former = std::mem::replace(&mut state.snapshot, next);
        let retired = std::mem::replace(&mut state.retired, former);
        free_aside((before, retired));
        self.ready.store(None);
        Ok(())
    }

    /// Tells those who follow changes.
    pub(crate) fn tell_changes(&self) {
        self.changes.send_replace(());
    }
}

/// Frees what is of no use any more, where nobody waits for that.
fn free_aside<T: Send + 'static>(of: T) {
    match tokio::runtime::Handle::try_current() {
        Ok(runtime) => drop(runtime.spawn_blocking(move || drop(of))),
        Err(_) => drop(of),
    }
}

/// Tells in the log of addresses that are newly refused, in a line for each group.
fn tell_refused(before: &State, after: &State) {
    for entry in after.groups.iter().filter(|e| !e.refused.is_empty()) {
        let group = &entry.config.name;
        let known = before.find_group(group).map_or(&[][..], |old| &old.refused);
        let mut news = entry.refused.iter().filter(|r| !known.contains(r));
        let Some(RefusedAddress {
            name,
            address,
            reason: why,
        }) = news.next()
        else {
            continue;
        };
        let more = news.count();
        warn!(
            group,
            more,
            "{name} is not a member at {address}, because {why}; to allow it, add its network \
             in allowed_networks of the group, or its address in members"
        );
    }
}

/// Groups of all owners have one name each.
fn one_name_each(inputs: &Inputs) -> Result<(), ApplyError> {
    let mut names = HashMap::new();
    let mut errors = Vec::new();
    for (owner, group) in inputs.all_groups() {
        let Some(other) = names.insert(&*group.name, owner) else {
            continue;
        };
        errors.push(name_taken(&group.name, other, owner));
    }
    match errors.is_empty() {
        true => Ok(()),
        false => Err(ApplyError(errors)),
    }
}

pub(crate) fn find_entry<'a>(state: &'a State, group: &str) -> Result<&'a GroupEntry, ManageError> {
    let entry = state.find_group(group);
    entry.ok_or_else(|| ManageError::NoGroup(group.into()))
}
