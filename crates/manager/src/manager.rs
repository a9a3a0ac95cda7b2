//! The one entry point: everything that changes a group, a rule or a load comes here.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use evenkeel_control::opinion::{Opinion, Published, Source};
use evenkeel_core::group::Request;
use evenkeel_core::load::{InvalidLoad, LoadId, LoadValue, Location, TooManyLoads};
use evenkeel_core::member::{InvalidWeight, MemberId, Weight};
use evenkeel_core::strategy::{self, ParamError, Values};
use evenkeel_net::Clock;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::watch;
use tracing::{debug, error, info, warn};

use crate::admission::Refused;
use crate::config::{self, Admin, Config, GroupConfig, MemberConfig};
use crate::dns::{Lookup, Resolver};
use crate::inputs::{AdminState, AlertSetting, Inputs, endpoint_of};
use crate::member_tls;
use crate::snapshot::{GroupHandle, Snapshot};
use crate::state::{GroupEntry, State, name_taken};
use crate::subsystem::{ApplyError, PrepareError, Subsystem};

/// The load manager. Share it in an `Arc`; all methods may be called from any thread.
///
/// What changes the configuration, a reload as much as a command from the admin API,
/// goes the same way: new state beside the old one, data plane prepares, commit. It
/// happens as a whole or not at all.
///
/// A live change (`set_…`) lasts until the process ends, or until a reload in which
/// the file says something new about that very thing: then the file wins. So a
/// reload that changes the weight of one member leaves another one drained.
pub struct Manager {
    clock: Clock,
    subsystems: Arc<dyn Subsystem>,
    pub(crate) resolver: Arc<Resolver>,
    snapshots: watch::Sender<Arc<Snapshot>>,
    /// Told when there may be other members to check or names to resolve.
    changes: watch::Sender<()>,
    owned: Mutex<Owned>,
    /// One reload at a time: it waits for DNS while others may go on.
    reloading: tokio::sync::Mutex<()>,
    /// The last answer of [`Manager::readiness`]: when it was found, in milliseconds, times
    /// four, plus the number of the answer. 0 is none.
    ready: AtomicU64,
}

/// How long an answer of [`Manager::readiness`] counts.
const READY_AGE: u64 = 100;

/// Whether clients should be sent to this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// Every enabled rule has a member that may be used.
    Ready,
    /// There is no configuration yet.
    NoConfig,
    /// An enabled rule has no member that may be used.
    NoMember,
}

/// What the lock protects.
pub(crate) struct Owned {
    pub state: State,
    /// Whether those who follow changes have not heard of the last one.
    pub untold: bool,
    pub last_reload: Option<Reload>,
    /// What only a restart changes, as it was when it came into effect.
    pub started: Option<Config>,
}

/// How the last start or reload went.
#[derive(Clone, Debug)]
pub(crate) struct Reload {
    pub at: SystemTime,
    pub error: Option<String>,
}

impl fmt::Debug for Manager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Manager").finish_non_exhaustive()
    }
}

impl Manager {
    /// A manager without a configuration. `clock` is the one that the data plane uses.
    pub fn new(clock: Clock, subsystems: Arc<dyn Subsystem>) -> Arc<Self> {
        Self::with_lookup(clock, subsystems, crate::dns::system())
    }

    /// [`Manager::new`] with another way to look names up.
    pub(crate) fn with_lookup(
        clock: Clock,
        subsystems: Arc<dyn Subsystem>,
        lookup: Lookup,
    ) -> Arc<Self> {
        Arc::new(Manager {
            clock,
            subsystems,
            resolver: Arc::new(Resolver::new(lookup)),
            snapshots: watch::Sender::new(Arc::default()),
            changes: watch::Sender::new(()),
            owned: Mutex::new(Owned {
                state: State::empty(),
                untold: false,
                last_reload: None,
                started: None,
            }),
            reloading: tokio::sync::Mutex::new(()),
            ready: AtomicU64::new(0),
        })
    }

    /// The subsystems that follow its configuration.
    pub fn subsystems(&self) -> &dyn Subsystem {
        &*self.subsystems
    }

    /// The clock of all instants here.
    pub fn clock(&self) -> Clock {
        self.clock
    }

    /// The rules as they are, and each new version of them. A new version is sent after
    /// the data plane's commit.
    pub fn snapshots(&self) -> watch::Receiver<Arc<Snapshot>> {
        self.snapshots.subscribe()
    }

    /// The configuration file as it was last applied, without live changes.
    pub fn config(&self) -> Config {
        self.lock().state.inputs.config.clone()
    }

    /// Whether clients should be sent here. Everybody may ask, as often as they like: the
    /// answer takes no lock of the manager, and is found at most ten times a second, or
    /// when the configuration has changed.
    pub fn readiness(&self) -> Readiness {
        const ANSWERS: [Readiness; 3] =
            [Readiness::Ready, Readiness::NoConfig, Readiness::NoMember];
        let now = self.clock.now().as_nanos() / 1_000_000 + 1;
        let known = self.ready.load(Ordering::Acquire);
        if known != 0
            && now.saturating_sub(known / 4) < READY_AGE
            && let Some(answer) = ANSWERS.get((known % 4) as usize)
        {
            return *answer;
        }
        let answer = self.find_readiness();
        // Unless the configuration has changed meanwhile.
        let found = now * 4 + answer as u64;
        let _ = self
            .ready
            .compare_exchange(known, found, Ordering::AcqRel, Ordering::Relaxed);
        answer
    }

    fn find_readiness(&self) -> Readiness {
        let snapshot = Arc::clone(&self.snapshots.borrow());
        if snapshot.generation == 0 {
            return Readiness::NoConfig;
        }
        let request = Request::at(self.clock.now());
        let serves = |group: &Arc<GroupHandle>| {
            let group = group.current.load();
            let view = group.view(&request);
            (0..group.members().len())
                .any(|index| view.is_eligible_unless_full(index) && view.weight(index) > 0.0)
        };
        let mut enabled = snapshot.rules.iter().filter(|rule| rule.rule.enabled);
        match enabled.all(|rule| rule.groups().any(&serves)) {
            true => Readiness::Ready,
            false => Readiness::NoMember,
        }
    }

    /// Reads the file at `path` and applies it: at the start, and at each reload. A file
    /// with errors changes nothing.
    pub async fn reload(&self, path: &Path) -> Result<Applied, ReloadError> {
        let result = match config::load(path) {
            Ok(config) => self.replace(config).await.map_err(ReloadError::from),
            Err(errors) => Err(ReloadError::Config(errors)),
        };
        self.note(&result);
        result
    }

    /// Makes `config` the configuration: at the start, and at each reload.
    ///
    /// Names of members that are new are resolved first, for a few seconds at most.
    /// One that does not resolve is no error: its member waits until it does.
    pub async fn apply(&self, config: Config) -> Result<Applied, ApplyError> {
        let result = self.replace(config).await;
        self.note(&result);
        result
    }

    async fn replace(&self, config: Config) -> Result<Applied, ApplyError> {
        let _one_at_a_time = self.reloading.lock().await;
        let known = self.lock().state.inputs.addresses.clone();
        let hosts = config.dns_hosts().map(|(host, _)| host);
        let new: HashSet<String> = hosts
            .filter(|host| !known.contains_key(*host))
            .map(str::to_owned)
            .collect();
        let found = self.resolver.lookup_all(new).await;
        let clients = self.lock().state.inputs.clients.clone();
        let clients = member_tls::load(&config.groups, &clients);
        let clients = clients.map_err(PrepareError::files)?;

        let mut owned = self.lock();
        let old = &owned.state.inputs;
        let mut inputs = old.with_config(config);
        inputs.addresses.extend(found);
        inputs.clients = clients;
        let generation = owned.state.snapshot.generation + 1;
        let warnings = inputs.config.warnings.iter();
        let mut notes: Vec<String> = warnings.map(ToString::to_string).collect();
        self.install(&mut owned.state, inputs, generation)?;
        notes.extend(self.needs_restart(&owned));
        if owned.started.is_none() {
            owned.started = Some(owned.state.inputs.config.clone());
        }
        Ok(Applied { generation, notes })
    }

    /// What of the configuration has no effect on the running process.
    pub(crate) fn needs_restart(&self, owned: &Owned) -> Vec<String> {
        let started = owned.started.iter();
        let fixed = started.flat_map(|old| fixed_at_start(old, &owned.state.inputs.config));
        let of_subsystems = self.subsystems.needs_restart(&owned.state.snapshot);
        let all = fixed.chain(of_subsystems);
        all.map(|what| format!("{what} changed in the file: restart to have it take effect"))
            .collect()
    }

    fn note<E: fmt::Display>(&self, result: &Result<Applied, E>) {
        match result {
            Ok(applied) => {
                info!(generation = applied.generation, "configuration applied");
                for note in &applied.notes {
                    warn!("{note}");
                }
            }
            // Whoever starts says why that fails.
            Err(_) if self.lock().started.is_none() => {}
            Err(error) => error!("the configuration stays as it was: {error}"),
        }
        self.lock().last_reload = Some(Reload {
            at: SystemTime::now(),
            error: result.as_ref().err().map(ToString::to_string),
        });
    }

    /// Enables or disables a rule.
    pub fn set_rule_enabled(&self, rule: &str, enabled: bool) -> Result<(), ManageError> {
        let mut owned = self.lock();
        let config = &owned.state.inputs.config;
        if !config.rules.iter().any(|known| known.name == rule) {
            return Err(ManageError::NoRule(rule.into()));
        }
        let mut inputs = owned.state.inputs.clone();
        inputs.live.enabled.insert(rule.into(), enabled);
        self.change(&mut owned.state, inputs)?;
        info!(rule, enabled, "rule changed");
        Ok(())
    }

    /// Gives a group another strategy, or other parameters. Parameters that are not
    /// given have their defaults.
    pub fn set_strategy(
        &self,
        group: &str,
        strategy: &str,
        params: &[(String, f64)],
    ) -> Result<(), ManageError> {
        let kind = strategy::find(strategy).ok_or_else(|| ManageError::NoStrategy {
            name: strategy.into(),
        })?;
        let mut values = Values::defaults(kind);
        for (name, value) in params {
            values.set(name, *value)?;
        }
        let mut owned = self.lock();
        let _ = entry(&owned.state, group)?;
        let mut inputs = owned.state.inputs.clone();
        inputs.live.strategies.insert(group.into(), values);
        self.change(&mut owned.state, inputs)?;
        info!(group, strategy, "strategy changed");
        Ok(())
    }

    /// Drains a member, takes it out, or brings it back. `member` is a name in the file,
    /// which stands for all its addresses, or that of one of them.
    pub fn set_admin_state(
        &self,
        group: &str,
        member: &str,
        to: AdminState,
    ) -> Result<(), ManageError> {
        let mut owned = self.lock();
        find_member(&owned.state, group, member)?;
        let mut inputs = owned.state.inputs.clone();
        set_live(&mut inputs.live.admin, group, member, to);
        self.change(&mut owned.state, inputs)?;
        info!(group, member, state = ?to, "admin state changed");
        Ok(())
    }

    /// Changes the weight of a member; `member` is as in [`Manager::set_admin_state`].
    pub fn set_weight(&self, group: &str, member: &str, weight: f64) -> Result<(), ManageError> {
        let weight = Weight::new(weight)?;
        let mut owned = self.lock();
        find_member(&owned.state, group, member)?;
        let mut inputs = owned.state.inputs.clone();
        set_live(&mut inputs.live.weights, group, member, weight);
        self.change(&mut owned.state, inputs)?;
        info!(group, member, weight = weight.get(), "weight changed");
        Ok(())
    }

    /// The members that agents have registered now, by group, in place of those before.
    /// They count in groups where agents may join, after those of the file, which knows
    /// better where both have the same.
    pub fn set_joined(&self, joined: HashMap<String, Vec<MemberConfig>>) -> Result<(), ApplyError> {
        let mut owned = self.lock();
        if owned.state.inputs.live.joined == joined {
            return Ok(());
        }
        let mut inputs = owned.state.inputs.clone();
        inputs.live.joined = joined;
        self.change(&mut owned.state, inputs)
    }

    /// The groups that `owner` has and that do not stand in the file, in place of those
    /// that it had before. Everything else about them is as in groups of the file: what is
    /// changed live stays until the group says something new about it, and members keep
    /// their slots.
    ///
    /// # Errors
    ///
    /// A name is taken, by a group of the file or of another owner, or comes twice. Nothing
    /// has changed then.
    pub fn set_groups(
        &self,
        owner: &'static str,
        groups: Vec<GroupConfig>,
    ) -> Result<(), ApplyError> {
        let mut owned = self.lock();
        owned.state.check_names(owner, &groups)?;
        let present = owned.state.inputs.live.groups.values();
        let present: Vec<_> = present.filter(|(of, _)| *of == owner).collect();
        let known = |group: &GroupConfig| {
            let present = owned.state.inputs.live.groups.get(&group.name);
            present.is_some_and(|(of, present)| *of == owner && **present == *group)
        };
        if present.len() == groups.len() && groups.iter().all(known) {
            return Ok(());
        }
        let inputs = owned.state.inputs.with_groups(owner, groups);
        self.change(&mut owned.state, inputs)
    }

    /// Changes some of the groups that `owner` has and that do not stand in the file: takes
    /// away those called `gone`, and then puts `groups` in the place of those with their
    /// names. The others stay as they are, and are not looked at: what it costs does not
    /// depend on how many there are. Answers the handles of `groups`.
    ///
    /// Those who follow [`Manager::changes`] hear of it with one of the next rounds of the
    /// control loop.
    ///
    /// # Errors
    ///
    /// As with [`Manager::set_groups`].
    pub fn change_groups(
        &self,
        owner: &'static str,
        gone: &[String],
        groups: Vec<GroupConfig>,
    ) -> Result<Vec<Arc<GroupHandle>>, ApplyError> {
        let mut owned = self.lock();
        owned.state.check_names(owner, &groups)?;
        let now = self.clock.now();
        for name in gone {
            owned.state.remove_owned(owner, name);
        }
        let mut handles = Vec::with_capacity(groups.len());
        for group in groups {
            handles.push(owned.state.set_owned(owner, group, now));
        }
        owned.untold = true;
        Ok(handles)
    }

    /// Keeps the location called `name`, whether a member is there or not, since somebody
    /// reports its load or listens to its alerts; or keeps it for its members only.
    pub fn hold_location(&self, name: &str, held: bool) {
        let mut owned = self.lock();
        owned.state.hold(name, held);
        owned.untold = true;
    }

    /// Whether there is a group of that name, whoever has it.
    pub fn has_group(&self, name: &str) -> bool {
        self.lock().state.group(name).is_some()
    }

    /// Takes in what `source` says about a member, or withdraws it (`None`). `member` is
    /// as in [`Manager::set_admin_state`].
    ///
    /// It counts until the source says something else, and is kept over reloads: a source
    /// that hears nothing of the member any more must withdraw it. Health is the AND of
    /// its sources, see [`evenkeel_control::opinion`].
    pub fn set_opinion(
        &self,
        group: &str,
        member: &str,
        source: Source,
        opinion: Option<&Opinion>,
    ) -> Result<(), ManageError> {
        let mut owned = self.lock();
        find_member(&owned.state, group, member)?;
        let endpoints = entry(&owned.state, group)?.endpoints.iter();
        let meant = endpoints.filter(|e| *e.member.name == *member || *e.in_file == *member);
        let meant: Vec<MemberId> = meant.map(|endpoint| endpoint.member.id).collect();
        for member in meant {
            self.take_in(&mut owned.state, member, source, opinion);
        }
        Ok(())
    }

    /// [`Manager::set_opinion`] of a member whose id is known: without looking for its
    /// name, so cheap enough for every report. A member that is gone is no error.
    pub fn set_opinion_of(&self, member: MemberId, source: Source, opinion: Option<&Opinion>) {
        self.take_in(&mut self.lock().state, member, source, opinion);
    }

    /// What `source` says about a member.
    pub fn opinion_of(&self, member: MemberId, source: Source) -> Option<Opinion> {
        let mut owned = self.lock();
        let (_, endpoint) = owned.state.endpoint_mut(member)?;
        endpoint.opinions.of(source).cloned()
    }

    fn take_in(
        &self,
        state: &mut State,
        member: MemberId,
        source: Source,
        opinion: Option<&Opinion>,
    ) {
        if !state.may_say(member, source) {
            return;
        }
        let now = self.clock.now();
        let Some((handle, endpoint)) = state.endpoint_mut(member) else {
            return;
        };
        let is_news = endpoint.opinions.of(source) != opinion;
        endpoint.opinions.set(source, opinion.cloned(), now);
        if !is_news {
            return;
        }
        let slot = &endpoint.member.slot;
        let published = endpoint.opinions.publish(slot, endpoint.weight, now);
        if published.room {
            handle.room.notify_waiters();
        }
        let (group, member) = (handle.current.load(), &endpoint.member.name);
        let (group, source) = (group.name(), source.name());
        let says = opinion.map(tracing::field::display);
        match published {
            Published { reasons: false, .. } => {
                debug!(%group, %member, source, says, "another opinion");
            }
            Published { room: true, .. } => {
                info!(%group, %member, source, says, "no longer taken out by report");
            }
            _ => warn!(%group, %member, source, says, "taken out by report"),
        }
    }

    /// Takes in a load report of a location: all of it, or nothing if a part is wrong.
    pub fn report(&self, location: &str, loads: &[(LoadId, f64)]) -> Result<(), ManageError> {
        let mut values = Vec::with_capacity(loads.len());
        for &(id, value) in loads {
            values.push((id, LoadValue::new(value)?));
        }
        let at = self.location(location);
        let at = at.ok_or_else(|| ManageError::NoLocation(location.into()))?;
        Ok(at.report_all(&values, self.clock.now())?)
    }

    /// The location called `name`, if a member is there. A source that reports often keeps
    /// it, and asks again after [`Manager::changes`]: it then reports to the location
    /// itself, without the manager's lock.
    pub fn location(&self, name: &str) -> Option<Arc<Location>> {
        self.lock().state.locations.get(name).cloned()
    }

    /// Forces the load alert of a location, suppresses it, or leaves it to the groups
    /// again. Counts with the next round of the control loop, a tenth of a second later.
    ///
    /// A forced alert drains the location gently, as one that the load has caused does;
    /// more than [`max_share`] of the locations may have one. It changes nothing for
    /// groups whose granularity is per request, or that are not adaptive.
    ///
    /// [`max_share`]: evenkeel_core::alert::AlertSettings::max_share
    pub fn set_alert(&self, location: &str, to: AlertSetting) -> Result<(), ManageError> {
        let mut owned = self.lock();
        let state = &mut owned.state;
        if !state.locations.contains_key(location) {
            return Err(ManageError::NoLocation(location.into()));
        }
        let alerts = &mut state.inputs.live.alerts;
        match to {
            AlertSetting::Auto => alerts.remove(location),
            AlertSetting::On => alerts.insert(location.into(), true),
            AlertSetting::Off => alerts.insert(location.into(), false),
        };
        info!(location, alert = ?to, "load alert set by an administrator");
        Ok(())
    }

    /// The load alerts that are forced (`true`) or suppressed (`false`), by location.
    pub fn forced_alerts(&self) -> BTreeMap<String, bool> {
        let owned = self.lock();
        let alerts = owned.state.inputs.live.alerts.iter();
        alerts.map(|(at, on)| (at.clone(), *on)).collect()
    }

    /// Told when there may be other members, names to resolve, or locations.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Owned> {
        // A panic with the lock held cannot leave a state half changed: a state is
        // replaced as a whole.
        self.owned.lock()
    }

    /// Installs what a live change, or DNS, has made of the inputs.
    pub(crate) fn change(&self, state: &mut State, inputs: Inputs) -> Result<(), ApplyError> {
        let generation = state.snapshot.generation;
        self.install(state, inputs, generation)
    }

    /// Everything that changes the configuration comes through here.
    fn install(
        &self,
        state: &mut State,
        inputs: Inputs,
        generation: u64,
    ) -> Result<(), ApplyError> {
        self.install_once(state, inputs, generation)?;
        // Where the system chose a port, it is known only now.
        if state.inputs.has_guests() && self.listening() != state.inputs.listening {
            let inputs = state.inputs.clone();
            self.install_once(state, inputs, generation)?;
        }
        self.tell_changes();
        Ok(())
    }

    /// Where the data plane listens, in order.
    fn listening(&self) -> Vec<SocketAddr> {
        let mut listening = self.subsystems.listening();
        listening.sort_unstable();
        listening
    }

    fn install_once(
        &self,
        state: &mut State,
        mut inputs: Inputs,
        generation: u64,
    ) -> Result<(), ApplyError> {
        let now = self.clock.now();
        one_name_each(&inputs)?;
        inputs.listening = self.listening();
        let mut next = state.next(inputs, generation, now);
        let news = !Arc::ptr_eq(&next.snapshot, &state.snapshot);
        let commit = match news {
            true => Some(self.subsystems.prepare(&next.snapshot)?),
            false => None,
        };
        next.commit(now);
        if let Some(commit) = commit {
            commit();
            self.snapshots.send_replace(Arc::clone(&next.snapshot));
        }
        tell_refused(state, &next);
        *state = next;
        self.ready.store(0, Ordering::Release);
        Ok(())
    }

    /// Tells those who follow changes.
    pub(crate) fn tell_changes(&self) {
        self.changes.send_replace(());
    }
}

/// Tells in the log of addresses that are newly refused, in a line for each group.
fn tell_refused(before: &State, after: &State) {
    for entry in after.groups.iter().filter(|e| !e.refused.is_empty()) {
        let group = &entry.config.name;
        let known = before.group(group).map_or(&[][..], |old| &old.refused);
        let mut news = entry.refused.iter().filter(|r| !known.contains(r));
        let Some(Refused { name, address, why }) = news.next() else {
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
    for (owner, group) in inputs.groups() {
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

/// The settings of the admin API that count from the start of the process.
/// The settings that need a restart: the token and the certificates may change, but not whether
/// there are any.
fn fixed(admin: &Option<Admin>) -> impl PartialEq {
    let fixed = |admin: &Admin| {
        let secured = (admin.token.is_some(), admin.tls.is_some());
        (
            admin.listen,
            admin.behind_proxy,
            secured,
            admin.knows_clients(),
        )
    };
    admin.as_ref().map(fixed)
}

/// What of `new` has no effect on the process, which was started with `old`.
fn fixed_at_start(old: &Config, new: &Config) -> impl Iterator<Item = &'static str> {
    let parts = [
        ("the number of workers", old.workers != new.workers),
        (
            "the admin API's settings",
            fixed(&old.admin) != fixed(&new.admin),
        ),
    ];
    let changed = parts.into_iter().filter(|(_, changed)| *changed);
    changed.map(|(what, _)| what)
}

pub(crate) fn entry<'a>(state: &'a State, group: &str) -> Result<&'a GroupEntry, ManageError> {
    let entry = state.group(group);
    entry.ok_or_else(|| ManageError::NoGroup(group.into()))
}

/// Whether the group has a member, or an endpoint of one, called `name`.
fn find_member(state: &State, group: &str, name: &str) -> Result<(), ManageError> {
    let entry = entry(state, group)?;
    let in_file = entry.config.members.iter().any(|m| m.name() == name);
    let mut endpoints = entry.endpoints.iter();
    if in_file || endpoints.any(|endpoint| &*endpoint.member.name == name) {
        return Ok(());
    }
    Err(ManageError::NoMember {
        group: group.into(),
        member: name.into(),
    })
}

/// Sets a live change of a member, which overrides those of its endpoints.
fn set_live<T>(live: &mut HashMap<(String, String), T>, group: &str, member: &str, value: T) {
    let endpoints = format!("{member}/");
    let is_one = |name: &str| name.starts_with(&endpoints) && endpoint_of(name) == Some(member);
    live.retain(|(of, name), _| of != group || !is_one(name));
    live.insert((group.into(), member.into()), value);
}

/// A configuration that is in effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Applied {
    /// Which configuration of this process it is, from 1.
    pub generation: u64,
    /// What the user should know: what is probably not meant, and changes that need a
    /// restart.
    pub notes: Vec<String>,
}

/// A file that could not be put into effect. The old configuration goes on.
#[derive(Debug, thiserror::Error)]
pub enum ReloadError {
    /// The file is wrong.
    #[error(transparent)]
    Config(#[from] config::Errors),
    /// The file is right, but it cannot be done.
    #[error(transparent)]
    Apply(#[from] ApplyError),
}

/// A command that could not be carried out. Nothing has changed.
#[derive(Debug, thiserror::Error)]
pub enum ManageError {
    /// No such rule.
    #[error("there is no rule {0:?}")]
    NoRule(String),
    /// No such group.
    #[error("there is no group {0:?}")]
    NoGroup(String),
    /// No such member.
    #[error("group {group:?} has no member {member:?}")]
    NoMember {
        /// The group.
        group: String,
        /// What was asked for.
        member: String,
    },
    /// No such location.
    #[error("there is no member at location {0:?}")]
    NoLocation(String),
    /// No such strategy.
    #[error("there is no strategy {name:?}; there are {}", strategy_names())]
    NoStrategy {
        /// What was asked for.
        name: String,
    },
    /// The strategy does not take that.
    #[error(transparent)]
    Param(#[from] ParamError),
    /// Not a weight.
    #[error(transparent)]
    Weight(#[from] InvalidWeight),
    /// Not a load.
    #[error(transparent)]
    Load(#[from] InvalidLoad),
    /// The location keeps enough loads.
    #[error(transparent)]
    TooManyLoads(#[from] TooManyLoads),
    /// The data plane cannot do it.
    #[error(transparent)]
    Apply(#[from] ApplyError),
}

impl ManageError {
    /// Whether the command named something that is not there.
    pub fn is_not_found(&self) -> bool {
        matches!(
            self,
            ManageError::NoRule(_)
                | ManageError::NoGroup(_)
                | ManageError::NoMember { .. }
                | ManageError::NoLocation(_)
        )
    }
}

fn strategy_names() -> String {
    let names: Vec<_> = strategy::REGISTRY.iter().map(|kind| kind.name).collect();
    names.join(", ")
}
