//! The load manager as a CORBA object: its operations on object groups, properties, loads,
//! monitors and alerts, and the state behind them.
//!
//! Operations are called from the workers that serve clients, and carried out in the
//! service's own runtime: some of them call objects of the application, and all that
//! change something wait until it is in the [state file](store). What they change goes to
//! Evenkeel's manager, and then to the [`Directory`] by which requests find their members.

mod dispatch;
mod document;
mod factory;
mod file;
mod gone;
mod groups;
mod journal;
mod liveness;
mod load_manager;
mod loads;
mod properties;
mod pushed;
pub mod raise;
mod reconciler;
pub mod registered;
pub mod replica;
pub mod state;
pub mod store;
mod strategy;
#[cfg(test)]
pub(crate) mod tests;
mod variants;

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use arc_swap::ArcSwap;
use evenkeel_config::{Corba as Settings, GroupConfig, MemberConfig, Reach, WhenEmpty};
use evenkeel_giop::client::Client;
use evenkeel_giop::exception::{Completion, Kind, SystemException};
use evenkeel_giop::ior::Ior;
use evenkeel_manager::snapshot::GroupHandle;
use evenkeel_manager::{ApplyError, Manager};
use imbl::ordmap::DiffItem;
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;

use crate::call::{Call, Outcome, finished, full};
use crate::custom::{self, Customs};
use crate::directory::{Directory, Entry};
use crate::properties::GROUP_PREFIX;
use gone::GoneMembers;
use load_manager::Owned;
pub use load_manager::{Address, LoadManager};
use pushed::Pushed;
use raise::Raise;
use replica::Replica;
use state::{ObjectGroup, State};
use store::{Sink, Store};
use variants::Variants;

/// Name of the groups' owner for the manager.
pub const OWNER: &str = "corba";

/// Room for calls that are being carried out, in KiB: arguments are kept while objects of the
/// application are asked, and that goes on when the caller has left.
const MOST_CALLED: usize = 64 << 10;

/// Least room that a call takes, in KiB.
const LEAST_CALLED: usize = 4;

/// Most that is kept, by [`State::size`]: well below what can be read back from the file,
/// where references take twice as much.
const MOST_KEPT: usize = if cfg!(test) { 1 << 20 } else { 256 << 20 };

/// Parts that a load manager works with.
#[derive(Clone)]
pub struct Parts {
    /// Evenkeel's manager.
    pub manager: Arc<Manager>,
    /// Directory in which requests find groups.
    pub directory: Arc<Directory>,
    /// By which objects of the application are called.
    pub client: Client,
    /// Runtime in which operations are carried out.
    pub runtime: Handle,
}

impl LoadManager {
    /// A load manager that goes on with `state`, and whose references name `address`.
    ///
    /// # Errors
    ///
    /// Evenkeel's manager refuses the groups: one of its configuration has the name of one
    /// of them.
    pub fn open(
        parts: Parts,
        settings: Arc<Settings>,
        address: Address,
        state: State,
    ) -> Result<Arc<Self>, ApplyError> {
        Self::open_shared(parts, settings, address, Arc::new(state), None)
    }

    /// Opens a load manager as [`LoadManager::open`] does, for a state that several balancers
    /// share: `replica` writes it.
    ///
    /// # Errors
    ///
    /// As in [`LoadManager::open`].
    pub fn open_shared(
        parts: Parts,
        settings: Arc<Settings>,
        address: Address,
        state: Arc<State>,
        replica: Option<Box<Replica>>,
    ) -> Result<Arc<Self>, ApplyError> {
        let sink = Sink::of_file(settings.state_file.clone());
        let (store, writing) = Store::new(sink, Arc::clone(&state));
        parts.runtime.spawn(writing);
        let shared = replica.map(|replica| {
            // The file is a copy of what the other balancers have changed, too.
            store.keep_state(0, Arc::clone(&state));
            let tenure = Arc::clone(replica.tenure());
            let (shared, writing) = Store::new(Sink::Replica(replica), Arc::clone(&state));
            parts.runtime.spawn(writing);
            (shared, tenure)
        });
        let directory = Arc::clone(&parts.directory);
        let told = custom::follow_loads(directory, parts.manager.clock());
        parts.runtime.spawn(told);
        let this = LoadManager {
            customs: Customs::new(parts.client.clone(), parts.manager.clock()),
            manager: parts.manager,
            directory: parts.directory,
            client: parts.client,
            runtime: parts.runtime,
            settings: ArcSwap::new(settings),
            address: ArcSwap::from_pointee(address),
            store,
            shared,
            room: Arc::new(Semaphore::new(MOST_CALLED)),
            gone: GoneMembers::default(),
            ends_when_empty: Arc::default(),
            variants: Variants::default(),
            owned: Mutex::new(Owned {
                state: Arc::clone(&state),
                version: 0,
                pushed: Pushed::default(),
                off: false,
                creations: HashMap::new(),
                size: 0,
            }),
            background: Mutex::default(),
            states: watch::Sender::new(Arc::clone(&state)),
        };
        this.publish_all(&mut this.lock(), Arc::clone(&state))?;
        this.force_alerts(&state);
        let this = Arc::new(this);
        this.begin();
        Ok(this)
    }

    /// Begins with what is done without being asked, unless that goes on already.
    fn begin(self: &Arc<Self>) {
        let mut tasks = self.background();
        if tasks.is_empty() {
            tasks.spawn_on(reconciler::run(Arc::downgrade(self)), &self.runtime);
            tasks.spawn_on(liveness::watch_members(Arc::downgrade(self)), &self.runtime);
        }
    }

    /// Goes on with other settings, and another address in references; also after
    /// [`LoadManager::close`].
    ///
    /// # Errors
    ///
    /// As in [`LoadManager::open`]; nothing has changed then.
    pub fn configure(
        self: &Arc<Self>,
        settings: Arc<Settings>,
        address: Address,
    ) -> Result<(), ApplyError> {
        let mut owned = self.lock();
        let max_message = settings.max_message;
        let before = (
            self.settings.swap(settings),
            self.address.swap(Arc::new(address)),
        );
        let state = Arc::clone(&owned.state);
        let was_off = std::mem::replace(&mut owned.off, false);
        if let Err(error) = self.publish_all(&mut owned, Arc::clone(&state)) {
            owned.off = was_off;
            self.settings.store(before.0);
            self.address.store(before.1);
            return Err(error);
        }
        drop(owned);
        self.client.set_max_message(max_message);
        if was_off {
            self.force_alerts(&state);
        }
        self.begin();
        Ok(())
    }

    /// Withdraws all groups from Evenkeel's manager, and does nothing any more without being
    /// asked: the service is switched off. Calls that are being carried out still change the
    /// state, which counts when the service is switched on again.
    pub fn close(&self) -> Result<(), ApplyError> {
        // The groups that it looks after are no groups then.
        *self.background() = JoinSet::new();
        self.forget_who_is_gone();
        let mut owned = self.lock();
        owned.off = true;
        self.directory.publish_groups([]);
        self.manager.set_groups(OWNER, Vec::new())?;
        for name in registered(&owned.state).chain(owned.pushed.names()) {
            self.manager.hold_location(name, false);
        }
        Ok(())
    }

    /// Carries out a call in the service's runtime, whether or not somebody waits for it
    /// to the end. While too much is being carried out the outcome is TRANSIENT.
    pub fn invoke(self: &Arc<Self>, call: Call) -> impl Future<Output = Outcome> + Send + use<> {
        let (this, room) = (Arc::clone(self), self.room_for(&call));
        finished(self.runtime.spawn(async move {
            let Some(_room) = room else {
                return full();
            };
            let results = this.dispatch(&call).await;
            this.outcome(&call, results)
        }))
    }

    /// Room for a call; `None` if there is none.
    fn room_for(&self, call: &Call) -> Option<OwnedSemaphorePermit> {
        let needed = (call.body.len() >> 10).saturating_add(LEAST_CALLED);
        // The largest ones are carried out one by one.
        let needed = needed.min(MOST_CALLED) as u32;
        Arc::clone(&self.room).try_acquire_many_owned(needed).ok()
    }

    fn outcome(&self, call: &Call, results: Result<Vec<u8>, Raise>) -> Outcome {
        match results {
            Ok(results) => Outcome::Reply(results),
            Err(raise) => raise.to_outcome(call, &self.settings().repository_prefix),
        }
    }

    /// Changes the state, as a whole or not at all, and waits until it is kept.
    async fn change<T>(
        &self,
        change: impl FnOnce(&mut State) -> Result<T, Raise>,
    ) -> Result<T, Raise> {
        let (value, version) = {
            let mut owned = self.lock();
            let mut next = (*owned.state).clone();
            let value = change(&mut next)?;
            let difference = Difference::between(&owned.state, &next);
            let size = owned.size + difference.more - difference.less;
            if size > MOST_KEPT && size > owned.size {
                tracing::warn!(
                    "CORBA: a change of object groups is refused: at most {MOST_KEPT} bytes of references and \
                     properties are stored; remove what is not needed"
                );
                return Err(Kind::NoResources.into());
            }
            if self.shared.is_some()
                && replica::is_too_long(difference.changed.iter(), &owned.state, &next)
            {
                tracing::warn!(
                    "CORBA: a change of object groups is refused: the store takes at most 1 MiB of members \
                     and properties of a group; make two groups of it"
                );
                return Err(Kind::NoResources.into());
            }
            let next = Arc::new(next);
            self.publish(&mut owned, &difference, Arc::clone(&next))
                .map_err(|error| {
                    tracing::warn!("CORBA: a change of object groups is refused: {error}");
                    Raise::from(Kind::BadParam)
                })?;
            owned.size = size;
            owned.version += 1;
            self.store.keep_state(owned.version, Arc::clone(&next));
            if let Some((shared, _)) = &self.shared {
                shared.keep_state(owned.version, Arc::clone(&next));
            }
            self.states.send_replace(next);
            (value, owned.version)
        };
        // Where balancers share the state, the file is a copy.
        let shared = self.shared.as_ref().map(|(shared, _)| shared);
        match shared
            .unwrap_or(&self.store)
            .wait_until_saved(version)
            .await
        {
            Ok(()) => Ok(value),
            // It counts, but not for long.
            Err(_) => Err(SystemException::new(Kind::PersistStore)
                .with_completion(Completion::Yes)
                .into()),
        }
    }

    /// Makes `next` the state that Evenkeel's manager and the directory have, where
    /// `difference` is all in which it is another one than that before.
    fn publish(
        &self,
        owned: &mut Owned,
        difference: &Difference,
        next: Arc<State>,
    ) -> Result<(), ApplyError> {
        if owned.off {
            owned.take(difference, next);
            return Ok(());
        }
        if difference.all_groups {
            return self.publish_all(owned, next);
        }
        let settings = self.settings();
        let before = self.directory.load_snapshot();
        let name = |id: u64| Some(before.group(id)?.name().to_string());
        let mut gone: Vec<String> = difference
            .gone
            .iter()
            .filter_map(|(id, _)| name(*id))
            .collect();
        let mut groups = Vec::with_capacity(difference.changed.len());
        for (id, group) in &difference.changed {
            let config = config_of(*id, group, &next, &settings);
            gone.extend(name(*id).filter(|name| *name != config.name));
            groups.push(config);
        }
        let handles = self.manager.change_groups(OWNER, &gone, groups)?;
        let changed = difference.changed.iter().zip(&handles);
        let entries: Vec<Arc<Entry>> = changed
            .map(|((id, group), handle)| {
                let before = before.group(*id).map(|entry| &**entry);
                Arc::new(self.entry_of(*id, group, &next, handle, before))
            })
            .collect();
        let gone: Vec<u64> = difference.gone.iter().map(|(id, _)| *id).collect();
        self.directory.change_groups(&gone, entries);
        for name in &difference.registered {
            let needed = next.monitors.contains_key(name)
                || next.alerts.contains_key(name)
                || owned.pushed.has_location(name);
            self.manager.hold_location(name, needed);
        }
        owned.take(difference, next);
        Ok(())
    }

    /// Publishes all groups anew.
    fn publish_all(&self, owned: &mut Owned, next: Arc<State>) -> Result<(), ApplyError> {
        let settings = self.settings();
        self.ends_when_empty.store(
            settings.when_empty == WhenEmpty::ObjectNotExist,
            Ordering::Relaxed,
        );
        self.customs
            .configure(self.reference(), settings.custom_strategy_timeout);
        let groups: Vec<(u64, GroupConfig)> = next
            .groups
            .iter()
            .map(|(id, group)| (*id, config_of(*id, group, &next, &settings)))
            .collect();
        let names: Vec<(u64, String)> =
            groups.iter().map(|(id, g)| (*id, g.name.clone())).collect();
        let groups = groups.into_iter().map(|(_, group)| group).collect();
        // First the places, so that loads and alerts outlive a member that leaves.
        for name in registered(&next).chain(owned.pushed.names()) {
            self.manager.hold_location(name, true);
        }
        self.manager.set_groups(OWNER, groups)?;
        let handles: HashMap<Arc<str>, Arc<GroupHandle>> = self
            .manager
            .handles()
            .into_iter()
            .map(|handle| (Arc::clone(handle.current.load().name()), handle))
            .collect();
        let before = self.directory.load_snapshot();
        let mut entries = Vec::with_capacity(names.len());
        for (id, name) in names {
            let (Some(group), Some(handle)) = (next.groups.get(&id), handles.get(&*name)) else {
                continue;
            };
            let before = before.group(id).map(|entry| &**entry);
            entries.push(Arc::new(self.entry_of(id, group, &next, handle, before)));
        }
        self.directory.publish_groups(entries);
        let creation = |(id, group): (&u64, &Arc<ObjectGroup>)| (group.creation, *id);
        owned.creations = next.groups.iter().map(creation).collect();
        owned.size = next.size();
        owned.state = next;
        Ok(())
    }

    /// The directory's entry of a group.
    fn entry_of(
        &self,
        id: u64,
        group: &ObjectGroup,
        state: &State,
        handle: &Arc<GroupHandle>,
        before: Option<&Entry>,
    ) -> Entry {
        let members = group.members.iter();
        let references: HashMap<&str, _> = members
            .map(|member| (&*member.location, &member.reference))
            .collect();
        let member = |name: &str| references.get(name).map(|known| Arc::clone(known));
        let custom = state.effective_settings(group).custom_strategy;
        let custom = custom.map(|strategy| self.customs.get(&strategy));
        let reference = self.group_reference(id, group);
        let mut entry = Entry::new(id, reference, Arc::clone(handle), member, custom, before);
        entry.ends_when_empty = Arc::clone(&self.ends_when_empty);
        entry
    }
}

impl Owned {
    /// Goes on with `next`, which is different in `difference`.
    fn take(&mut self, difference: &Difference, next: Arc<State>) {
        for (_, group) in &difference.gone {
            self.creations.remove(&group.creation);
        }
        for (id, group) in &difference.changed {
            self.creations.insert(group.creation, *id);
        }
        self.state = next;
    }
}

/// The locations with a monitor or an alert.
fn registered(state: &State) -> impl Iterator<Item = &str> {
    let names = state.monitors.keys().chain(state.alerts.keys());
    names.map(String::as_str)
}

/// In what two states are different.
struct Difference {
    /// Groups that are not there any more.
    gone: Vec<(u64, Arc<ObjectGroup>)>,
    /// Groups that are new or another.
    changed: Vec<(u64, Arc<ObjectGroup>)>,
    /// Locations whose monitors or alerts have come or gone.
    registered: Vec<String>,
    /// True if the properties that concern all groups differ.
    all_groups: bool,
    /// [`State::size`] of what has come, and of what has gone.
    more: usize,
    less: usize,
}

impl Difference {
    fn between(before: &State, next: &State) -> Self {
        let mut this = Difference {
            gone: Vec::new(),
            changed: Vec::new(),
            registered: Vec::new(),
            all_groups: !Arc::ptr_eq(&before.defaults, &next.defaults)
                || !before.types.ptr_eq(&next.types),
            more: 0,
            less: 0,
        };
        for item in before.groups.diff(&next.groups) {
            let (old, new) = match item {
                DiffItem::Add(id, new) => (None, Some((id, new))),
                DiffItem::Update { old, new } => (Some(old), Some(new)),
                DiffItem::Remove(id, old) => (Some((id, old)), None),
            };
            this.less += old.map_or(0, |(_, group)| group.size());
            this.more += new.map_or(0, |(_, group)| group.size());
            match (old, new) {
                (_, Some((id, group))) => this.changed.push((*id, Arc::clone(group))),
                (Some((id, group)), None) => this.gone.push((*id, Arc::clone(group))),
                (None, None) => {}
            }
        }
        let pairs = [
            (&before.monitors, &next.monitors),
            (&before.alerts, &next.alerts),
        ];
        for (before, next) in pairs {
            for item in before.diff(next) {
                let (name, old, new) = match item {
                    DiffItem::Add(name, new) => (name, None, Some(new)),
                    DiffItem::Update { old, new } => (old.0, Some(old.1), Some(new.1)),
                    DiffItem::Remove(name, old) => (name, Some(old), None),
                };
                let size =
                    |ior: Option<&Arc<Ior>>| ior.map_or(0, |ior| name.len() + ior.encoded_size());
                this.less += size(old);
                this.more += size(new);
                this.registered.push(name.clone());
            }
        }
        if this.all_groups || !before.forced.ptr_eq(&next.forced) {
            this.less += before.size_of_few();
            this.more += next.size_of_few();
        }
        this
    }
}

/// Returns a group's configuration for Evenkeel's manager.
fn config_of(id: u64, group: &ObjectGroup, state: &State, settings: &Settings) -> GroupConfig {
    let members = group.members.iter();
    let members = members.map(|member| MemberConfig::from_reference(&member.location));
    let counts = state.effective_settings(group);
    let mut config = GroupConfig {
        members: members.collect(),
        ..settings.groups.clone()
    };
    counts.apply_to(&mut config);
    config.name = match counts.group_name {
        Some(name) => name,
        None => format!("{GROUP_PREFIX}{id}"),
    };
    config.choose_defaults(Reach::Forwarded);
    config
}
