//! State that the manager owns: a function of the configuration file, the live changes, and the addresses
//! that DNS gave.
//!
//! [`State::next`] builds a whole new state beside the old one and touches nothing that the data plane sees;
//! [`State::commit`] then makes the new state count. Between the two a change can still be refused.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use evenkeel_control::alerts::FleetExchange;
use evenkeel_control::alerts::Locations;
use evenkeel_control::opinion::Source;
use evenkeel_control::round::RoundContext;
use evenkeel_core::load::Location;
use evenkeel_core::member::MemberId;
use evenkeel_core::time::Instant;

use crate::config::{GroupConfig, SharedGroup};
use crate::inputs::Inputs;
use crate::snapshot::{GroupHandle, Snapshot};
use crate::subsystem::{ApplyError, PrepareError};

mod entry;
mod kept;
mod learnt;
mod members;
mod prompts;
mod snapshots;
mod unchanged;

use entry::is_asked;
pub(crate) use entry::{Checked, Endpoint, GroupEntry};
pub(crate) use learnt::All;
pub(crate) use prompts::{CopiedPrompts, LIMIT as COPY_LIMIT, NamedEngines, OtherPrompts};
use unchanged::{Before, Unchanged};

/// Two groups, of these owners, have the same name.
pub(crate) fn name_taken(
    name: &str,
    one: Option<&'static str>,
    other: Option<&'static str>,
) -> PrepareError {
    PrepareError::SameName {
        name: name.into(),
        owners: (one, other),
    }
}

/// State that is made from [`Inputs`], and state that outlives them.
#[derive(Debug)]
pub(crate) struct State {
    pub inputs: Inputs,
    /// Groups in the order of the file, and then groups that do not stand there.
    pub groups: Vec<GroupEntry>,
    /// Locations by name: those that a member is at, or that are held.
    pub locations: Locations,
    pub snapshot: Arc<Snapshot>,
    /// Snapshot before, which is kept until the next one comes.
    pub retired: Arc<Snapshot>,
    /// Locations whose servers are to be told something else than what pulses say.
    pub notified_locations: HashSet<Arc<str>>,
    /// Place of each group in `groups`, by name.
    names: HashMap<String, usize>,
    /// Place of each member in `groups` and its `endpoints`.
    index: HashMap<MemberId, (usize, usize)>,
    /// Number of members at each location.
    members_at: HashMap<Arc<str>, usize>,
    next_id: u64,
    /// Groups of the state before that are to be taken: places here, and there.
    kept: Vec<(usize, usize)>,
    /// State that the old process has told of groups that were not there yet.
    pub learnt: Option<All>,
    /// Prompts of the process before, until the first configuration has made use of them.
    pub prompts: Option<OtherPrompts>,
    /// Number of groups that were made or made anew.
    #[cfg(test)]
    pub built: usize,
}

impl State {
    /// True if other inputs leave all groups, and what rules read of groups, as they are.
    pub(crate) fn keeps_groups(&self, next: &Inputs) -> bool {
        self.learnt.is_none()
            && self.prompts.is_none()
            && unchanged::keep_groups(&self.inputs, next)
    }

    /// The state of a process without a configuration.
    pub(crate) fn empty() -> Self {
        State {
            inputs: Inputs::new(),
            groups: Vec::new(),
            locations: HashMap::new(),
            snapshot: Arc::default(),
            retired: Arc::default(),
            notified_locations: HashSet::new(),
            names: HashMap::new(),
            index: HashMap::new(),
            members_at: HashMap::new(),
            next_id: 1,
            kept: Vec::new(),
            learnt: None,
            prompts: None,
            #[cfg(test)]
            built: 0,
        }
    }

    /// The state that `inputs` make, with everything of `self` that goes on: slots,
    /// ids, locations, health. `now` is when endpoints that are in it no more have left.
    pub(crate) fn next(&self, inputs: Inputs, generation: u64, now: Instant) -> State {
        self.next_with(inputs, generation, now, false)
    }

    fn next_with(&self, inputs: Inputs, generation: u64, now: Instant, keeps: bool) -> State {
        let mut next = State {
            inputs,
            notified_locations: self.notified_locations.clone(),
            next_id: self.next_id,
            #[cfg(test)]
            built: self.built,
            ..State::empty()
        };
        let before = Before {
            inputs: &self.inputs,
            names: &self.names,
            groups: &self.groups,
        };
        let unchanged = match keeps && self.learnt.is_none() {
            true => Unchanged::new(before, &next.inputs),
            false => Unchanged::none(before, &next.inputs),
        };
        let groups = next.inputs.all_groups();
        let groups: Vec<_> = groups
            .map(|(of, group)| match unchanged.find_place(of, group) {
                Some(place) => (of, Err(place)),
                None => (of, Ok(group.clone())),
            })
            .collect();
        let admission = next.inputs.admission();
        for (owner, config) in groups {
            let config = match config {
                Ok(config) => config,
                Err(place) => {
                    if let Some(old) = self.groups.get(place) {
                        next.kept.push((next.groups.len(), place));
                        next.enter(old.stand_in());
                    }
                    continue;
                }
            };
            // Whoever else has the name now, it is another group.
            let old = self.find_group(&config.name);
            let old = old.filter(|old| old.owner == owner);
            let entry = next.next_group(owner, config, old, &self.locations, &admission, now);
            next.enter(entry);
        }
        for name in next.inputs.live.needed_locations.clone() {
            next.location(&name, &self.locations);
        }
        next.snapshot = next.next_snapshot(&self.snapshot, generation, false);
        next
    }

    pub(crate) fn find_group(&self, name: &str) -> Option<&GroupEntry> {
        self.groups.get(*self.names.get(name)?)
    }

    /// Checks that `owner` may have `groups`: their names are its own, or free, and come once.
    pub(crate) fn check_names(
        &self,
        owner: &'static str,
        groups: &[GroupConfig],
    ) -> Result<(), ApplyError> {
        let mut names = HashSet::new();
        let mut errors = Vec::new();
        for GroupConfig { name, .. } in groups {
            let other = self.find_group(name).map(|other| other.owner);
            let other = other.filter(|other| *other != Some(owner));
            if let Some(other) = other {
                errors.push(name_taken(name, other, Some(owner)));
            } else if !names.insert(name) {
                errors.push(name_taken(name, Some(owner), Some(owner)));
            }
        }
        match errors.is_empty() {
            true => Ok(()),
            false => Err(ApplyError(errors)),
        }
    }

    /// Puts a group that `owner` has, and that does not stand in the file, in place of the one
    /// of that name, and makes it the one that the data plane sees. Others are not looked at.
    /// The name must be free, or the owner's ([`State::check_names`]).
    pub(crate) fn set_owned(
        &mut self,
        owner: &'static str,
        config: GroupConfig,
        now: Instant,
    ) -> Arc<GroupHandle> {
        let config = SharedGroup::from(config);
        let groups = &mut self.inputs.live.groups;
        let before = groups.insert(config.name.clone(), (owner, config.clone()));
        self.forget_live(
            &config.name,
            before.as_ref().map(|(_, of)| &**of),
            Some(&config),
            now,
        );
        let at = self.names.get(&config.name).copied();
        let old = at.map(|at| self.leave(at));
        let (admission, none) = (self.inputs.admission(), HashMap::new());
        let old_entry = old.as_ref();
        let mut entry = self.next_group(Some(owner), config, old_entry, &none, &admission, now);
        if let Some(learnt) = &mut self.learnt {
            learnt.restore_groups(std::slice::from_mut(&mut entry), now);
        }
        entry.commit(now);
        let handle = Arc::clone(&entry.handle);
        self.enter(entry);
        if let Some(old) = old {
            self.forget_locations(&old);
        }
        handle
    }

    /// Takes a group away that `owner` has, if there is one of that name.
    pub(crate) fn remove_owned(&mut self, owner: &'static str, name: &str, now: Instant) {
        let groups = &mut self.inputs.live.groups;
        if groups.get(name).is_none_or(|(of, _)| *of != owner) {
            return;
        }
        let before = groups.remove(name);
        self.forget_live(name, before.as_ref().map(|(_, of)| &**of), None, now);
        if let Some(&at) = self.names.get(name) {
            let old = self.leave(at);
            self.forget_locations(&old);
            // Those who wait for a member would wait in vain.
            old.handle.queue.call_all();
        }
    }

    /// Forgets live changes to one group, as [`Inputs::keep_live`] does.
    fn forget_live(
        &mut self,
        name: &str,
        old: Option<&GroupConfig>,
        new: Option<&GroupConfig>,
        now: Instant,
    ) {
        let Inputs { config, live, .. } = &mut self.inputs;
        let of_members = !live.weights.is_empty() || !live.backups.is_empty();
        if live.strategies.is_empty() && live.admin.is_empty() && !of_members {
            return;
        }
        let groups = std::mem::take(&mut live.groups);
        live.keep_of_groups(now, |other| {
            if other == name {
                return (old, new);
            }
            let mut in_file = config.groups.iter();
            let in_file = in_file.find(|group| group.name == other);
            let in_file = in_file.map(|group| &**group);
            let same = in_file.or_else(|| Some(&*groups.get(other)?.1));
            (same, same)
        });
        live.groups = groups;
    }

    /// Keeps a location, whether a member is there or not, or no longer.
    pub(crate) fn hold_location(&mut self, name: &str, held: bool) {
        match held {
            true if self.inputs.live.needed_locations.insert(name.into()) => {
                self.location(name, &HashMap::new());
            }
            false if self.inputs.live.needed_locations.remove(name) => self.forget_location(name),
            _ => {}
        }
    }

    /// Puts a group behind the others.
    fn enter(&mut self, entry: GroupEntry) {
        let at = self.groups.len();
        for endpoint in &entry.endpoints {
            let name = endpoint.member.location.name();
            *self.members_at.entry(Arc::clone(name)).or_default() += 1;
        }
        self.names.entry(entry.config.name.clone()).or_insert(at);
        self.groups.push(entry);
        self.index_group(at);
        #[cfg(test)]
        {
            let is_kept = { self.kept.last() }.is_some_and(|(place, _)| *place == at);
            self.built += usize::from(!is_kept);
        }
    }

    /// Takes the group at `at` away; the last one takes its place.
    fn leave(&mut self, at: usize) -> GroupEntry {
        let old = self.groups.swap_remove(at);
        self.names.remove(&old.config.name);
        for endpoint in &old.endpoints {
            self.index.remove(&endpoint.member.id);
        }
        if let Some(moved) = self.groups.get(at) {
            self.names.insert(moved.config.name.clone(), at);
            self.index_group(at);
        }
        old
    }

    /// Says where the members of the group at `at` are.
    fn index_group(&mut self, at: usize) {
        let endpoints = self.groups[at].endpoints.iter().enumerate();
        let places = endpoints.map(|(index, endpoint)| (endpoint.member.id, (at, index)));
        self.index.extend(places);
    }

    /// Forgets the locations of a group that has left, unless somebody else needs them.
    fn forget_locations(&mut self, old: &GroupEntry) {
        for endpoint in &old.endpoints {
            let name = endpoint.member.location.name();
            if let Some(members) = self.members_at.get_mut(name) {
                *members -= 1;
            }
            self.forget_location(name);
        }
    }

    /// Forgets a location that nobody needs.
    fn forget_location(&mut self, name: &str) {
        if self.members_at.get(name) == Some(&0) {
            self.members_at.remove(name);
        }
        if !self.members_at.contains_key(name) && !self.inputs.live.needed_locations.contains(name)
        {
            self.locations.remove(name);
            self.notified_locations.remove(name);
        }
    }

    /// Returns the groups and surroundings that a round needs.
    pub(crate) fn control_parts<'a>(
        &'a mut self,
        council: Option<&'a dyn FleetExchange>,
    ) -> (&'a mut [GroupEntry], RoundContext<'a>) {
        let around = RoundContext {
            locations: &self.locations,
            forced: &self.inputs.live.alerts,
            notified_locations: &mut self.notified_locations,
            council,
        };
        (&mut self.groups, around)
    }

    /// The member `id`, with the handle of its group.
    pub(crate) fn endpoint_mut(&mut self, id: MemberId) -> Option<(&GroupHandle, &mut Endpoint)> {
        let &(group, endpoint) = self.index.get(&id)?;
        let entry = self.groups.get_mut(group)?;
        Some((&entry.handle, entry.endpoints.get_mut(endpoint)?))
    }

    /// True if reports of `source` about the member `id` count. A report may come after the configuration has
    /// stopped asking: nobody would ever take that report back.
    pub(crate) fn may_say(&self, id: MemberId, source: Source) -> bool {
        let entry = self.index.get(&id).and_then(|at| self.groups.get(at.0));
        entry.is_some_and(|entry| is_asked(&entry.config, source))
    }

    /// Has what is new go on with what the process before has told of it.
    pub(crate) fn go_on(&mut self, now: Instant) {
        if let Some(learnt) = &mut self.learnt {
            learnt.restore_locations(&self.locations, now);
            learnt.restore_groups(&mut self.groups, now);
        }
        if let Some(prompts) = self.prompts.take() {
            prompts.restore_groups(&self.groups);
        }
    }

    /// Makes this state the one that the data plane sees, as far as groups go.
    pub(crate) fn commit(&mut self, now: Instant) {
        for entry in &mut self.groups {
            entry.commit(now);
        }
    }

    fn location(&mut self, name: &str, old: &Locations) -> Arc<Location> {
        let before = self.locations.get(name).or_else(|| old.get(name));
        let location = match before {
            Some(before) => Arc::clone(before),
            None => Arc::new(Location::new(name)),
        };
        let name = Arc::clone(location.name());
        self.locations.insert(name, Arc::clone(&location));
        location
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_control::health::Limits;
    use evenkeel_core::address::Address;
    use evenkeel_core::group::Outcome;
    use evenkeel_core::load::{LoadId, LoadValue};
    use proptest::prelude::*;

    use std::net::IpAddr;
    use std::time::Duration;

    use evenkeel_core::member::{Reason, Slot};

    use super::members::MAX_DEPARTED;
    use super::*;
    use crate::config::SharedGroup;
    use crate::config::{Config, HealthCheck, HealthCheckKind, MemberConfig, Rule};
    use crate::inputs::AdminState;
    use crate::lists::Lists;
    use crate::lists::service::Service;

    /// Change to the inputs.
    #[derive(Clone, Debug)]
    enum Step {
        /// The file has these members (host, drained) in two groups.
        Reload(Vec<(usize, bool)>, Vec<(usize, bool)>),
        /// A host has so many addresses, from a first one on.
        Resolve(usize, u8, u8),
        /// An administrator speaks.
        Admin(usize, AdminState),
    }

    const HOSTS: [&str; 5] = [
        "10.0.0.1",
        "10.0.0.2",
        "a.example",
        "b.example",
        "c.example",
    ];

    fn any_step() -> impl Strategy<Value = Step> {
        let members = || {
            let all = proptest::sample::subsequence((0..HOSTS.len()).collect::<Vec<_>>(), 0..=5);
            (all, any::<u8>()).prop_map(|(hosts, drained)| {
                let member = |host: usize| (host, drained & 1 << host != 0);
                hosts.into_iter().map(member).collect::<Vec<_>>()
            })
        };
        let state = prop_oneof![
            Just(AdminState::Ready),
            Just(AdminState::Drain),
            Just(AdminState::Maintenance)
        ];
        prop_oneof![
            (members(), members()).prop_map(|(a, b)| Step::Reload(a, b)),
            (2..HOSTS.len(), 0u8..4, 1u8..4).prop_map(|(h, first, n)| Step::Resolve(h, first, n)),
            (0..HOSTS.len(), state).prop_map(|(host, state)| Step::Admin(host, state)),
        ]
    }

    fn config(groups: [&[(usize, bool)]; 2]) -> Config {
        let member = |&(host, drain): &(usize, bool)| MemberConfig {
            drain,
            ..MemberConfig::new(HOSTS[host], 80)
        };
        let names = ["a", "b"];
        let group = |(name, members): (&str, &[(usize, bool)])| {
            GroupConfig::new(name, members.iter().map(member).collect())
        };
        Config {
            rules: names
                .iter()
                .map(|name| Rule::new(name, vec![], name))
                .collect(),
            groups: names
                .into_iter()
                .zip(groups)
                .map(group)
                .map(SharedGroup::from)
                .collect(),
            ..Config::default()
        }
    }

    type Seen = HashMap<(String, String, Address), (MemberId, Arc<Slot>)>;

    fn seen(state: &State) -> Seen {
        let of_group = |entry: &GroupEntry| {
            let group = entry.config.name.clone();
            let endpoint = move |e: &Endpoint| {
                let key = (group.clone(), e.host.clone(), e.member.address.clone());
                (key, (e.member.id, Arc::clone(&e.member.slot)))
            };
            entry.endpoints.iter().map(endpoint).collect::<Vec<_>>()
        };
        state.groups.iter().flat_map(of_group).collect()
    }

    fn at(seconds: u64) -> Instant {
        Instant::from_nanos(seconds * 1_000_000_000)
    }

    /// The state of a group "a" of which `HOSTS[host]` is the only member, at 1 s.
    fn alone(host: usize) -> State {
        let mut config = config([&[(host, false)], &[]]);
        // Without checks nobody stays down.
        config.groups[0].health_check = Some(HealthCheck::new(HealthCheckKind::Tcp));
        let state = State::empty();
        let inputs = state.inputs.with_config(config, Lists::default(), at(1));
        let mut state = state.next(inputs, 1, at(1));
        state.commit(at(1));
        state
    }

    /// `HOSTS[host]` has these addresses, by their last numbers; answers its endpoints.
    fn resolve(state: &mut State, host: usize, ips: &[u16], now: Instant) -> Vec<Endpoint> {
        let ip = |n: &u16| IpAddr::from([10, 1, n.to_be_bytes()[0], n.to_be_bytes()[1]]);
        let mut inputs = state.inputs.clone();
        let ips = ips.iter().map(ip).collect();
        inputs.addresses.insert(HOSTS[host].into(), ips);
        *state = state.next(inputs, 1, now);
        state.commit(now);
        state.groups[0].endpoints.clone()
    }

    #[test]
    fn an_address_that_comes_back_soon_is_the_same_member() {
        let mut state = alone(2);
        resolve(&mut state, 2, &[1, 2], at(10));
        let limits = Limits { fall: 1, rise: 1 };
        let Endpoint { health, member, .. } = &mut state.groups[0].endpoints[0];
        health.observe(false, limits, &member.slot, at(10));
        for endpoint in &state.groups[0].endpoints {
            endpoint.member.slot.set_ramp_from(None);
        }
        let first = state.groups[0].endpoints.clone();
        let ticket = state.groups[0].group.bind(0, at(11)).unwrap();

        let other = resolve(&mut state, 2, &[2], at(20));
        assert_eq!(other[0].member.id, first[1].member.id);
        let back = resolve(&mut state, 2, &[1, 2], at(320));
        assert_eq!(back[0].member.id, first[0].member.id);
        assert_eq!(back[0].member.slot.in_flight(), 1);
        assert!(back[0].health.is_down() && back[0].member.slot.has_reason(Reason::Down));
        assert_eq!(back[0].member.slot.ramp_from(), None);
        assert!(state.groups[0].departed.is_empty());

        // Longer away: its requests keep it, but it starts slowly.
        resolve(&mut state, 2, &[2], at(400));
        resolve(&mut state, 2, &[2, 3], at(600));
        let back = resolve(&mut state, 2, &[1, 2], at(701));
        assert_eq!(back[0].member.id, first[0].member.id);
        assert_eq!(back[0].member.slot.ramp_from(), Some(at(701)));

        // Without any it is forgotten.
        resolve(&mut state, 2, &[2], at(800));
        ticket.finish(Outcome::Success, at(900));
        let back = resolve(&mut state, 2, &[1, 2], at(1101));
        assert_ne!(back[0].member.id, first[0].member.id);
        assert_eq!(back[0].member.slot.record().request_totals().total(), 0);
    }

    #[test]
    fn texts_of_a_member_that_are_the_same_share_memory() {
        let state = alone(0);
        let endpoints = &state.groups[0].endpoints;
        let Endpoint {
            in_file, member, ..
        } = &endpoints[0];
        assert!(Arc::ptr_eq(in_file, &member.name) && &**in_file == "10.0.0.1:80");
        assert!(Arc::ptr_eq(&member.host, member.location.name()));
        assert_eq!(endpoints.capacity(), 1);
    }

    #[test]
    fn a_member_that_is_put_back_into_the_file_starts_slowly() {
        let mut state = alone(0);
        let first = state.groups[0].endpoints[0].clone();
        for (second, members) in [(2, &[(1, false)][..]), (3, &[(0, false), (1, false)])] {
            let inputs =
                state
                    .inputs
                    .with_config(config([members, &[]]), Lists::default(), at(second));
            state = state.next(inputs, 1, at(second));
            state.commit(at(second));
        }
        let back = &state.groups[0].endpoints[0].member;
        assert_eq!(back.id, first.member.id);
        assert!(Arc::ptr_eq(&back.slot, &first.member.slot));
        assert_eq!(back.slot.ramp_from(), Some(at(3)));
    }

    #[test]
    fn only_so_many_departed_are_kept_and_the_longest_gone_go_first() {
        let mut state = alone(2);
        let (old, new): (Vec<u16>, Vec<u16>) = ((0..600).collect(), (600..1200).collect());
        let first = resolve(&mut state, 2, &old, at(1));
        let second = resolve(&mut state, 2, &new, at(2));
        resolve(&mut state, 2, &[2000], at(3));
        assert_eq!(state.groups[0].departed.len(), MAX_DEPARTED);
        let all: Vec<u16> = (0..1200).collect();
        let back = resolve(&mut state, 2, &all, at(4));
        let dropped = 1200 - MAX_DEPARTED;
        let before = first.iter().chain(&second);
        for (n, (before, back)) in before.zip(&back).enumerate() {
            assert_eq!(before.member.id == back.member.id, n >= dropped, "{n}");
        }
    }

    /// True if two states have the same groups, members and places, but for the numbers of members that are new.
    fn same_shape(one: &State, other: &State) -> bool {
        let groups = |state: &State| -> Vec<_> {
            let entry = |entry: &GroupEntry| {
                let endpoint = |of: &Endpoint| {
                    let member = &of.member;
                    let location = Arc::clone(member.location.name());
                    (member.name.clone(), of.admin, of.weight, location)
                };
                let endpoints: Vec<_> = entry.endpoints.iter().map(endpoint).collect();
                let departed = entry.departed.iter().map(|of| of.member.name.clone());
                (
                    entry.config.clone(),
                    endpoints,
                    departed.collect::<Vec<_>>(),
                )
            };
            state.groups.iter().map(entry).collect()
        };
        let is_indexed = |state: &State| {
            let all = { state.groups.iter().enumerate() }.flat_map(|(at, entry)| {
                let endpoints = entry.endpoints.iter().enumerate();
                endpoints.map(move |(number, of)| (of.member.id, (at, number)))
            });
            all.collect::<HashMap<_, _>>() == state.index
        };
        let locations = |state: &State| -> HashMap<_, _> {
            let all = state.locations.iter();
            all.map(|(name, of)| (name.clone(), of.name().clone()))
                .collect()
        };
        groups(one) == groups(other)
            && is_indexed(one)
            && one.names == other.names
            && one.members_at == other.members_at
            && locations(one) == locations(other)
            && one.snapshot.rules.len() == other.snapshot.rules.len()
    }

    proptest! {
        /// Whatever happens, in whatever order: who stays, or comes back soon, keeps id
        /// and slot; ids are unique, names are unique, and the slots say what file,
        /// administrator and DNS say.
        #[test]
        fn identity_and_state_follow_the_inputs(
            steps in proptest::collection::vec((any_step(), 0u64..200), 1..20),
        ) {
            let mut now = at(1);
            let mut gone: HashMap<_, (MemberId, Instant)> = HashMap::new();
            let mut state = State::empty();
            state = state.next(Inputs { config: config([&[], &[]]).into(), ..state.inputs.clone() }, 1, now);
            state.commit(now);
            for (step, seconds) in steps {
                now = now.after(Duration::from_secs(seconds));
                let inputs = match step {
                    Step::Reload(a, b) => state.inputs.with_config(config([&a, &b]), Lists::default(), now),
                    Step::Resolve(host, first, count) => {
                        let mut inputs = state.inputs.clone();
                        let ips = (first..first + count).map(|n| IpAddr::from([10, 1, 0, n]));
                        inputs.addresses.insert(HOSTS[host].into(), ips.collect());
                        inputs
                    }
                    Step::Admin(host, to) => {
                        let mut inputs = state.inputs.clone();
                        let name = format!("{}:80", HOSTS[host]);
                        if inputs.member("a", &name).is_some() {
                            inputs.live.admin.insert(("a".into(), name), to);
                        }
                        inputs
                    }
                };
                let before = seen(&state);
                let handles: Vec<_> = state.groups.iter().map(|e| Arc::clone(&e.handle)).collect();
                let scratch = state.next(inputs.clone(), state.snapshot.generation, now);
                let mut next = state.next_keeping(inputs, state.snapshot.generation, now);
                // Nothing is visible yet.
                for (handle, entry) in handles.iter().zip(&state.groups) {
                    prop_assert!(Arc::ptr_eq(&handle.current.load(), &entry.group));
                }
                next.take_kept(&mut state, now);
                state = next;
                prop_assert!(same_shape(&state, &scratch));

                let after = seen(&state);
                for (key, (id, slot)) in &after {
                    if let Some((old_id, old_slot)) = before.get(key) {
                        prop_assert_eq!(id, old_id);
                        prop_assert!(Arc::ptr_eq(slot, old_slot));
                    } else if let Some((old_id, left)) = gone.remove(key) {
                        let soon = now.since(left) <= crate::inputs::DEPARTED_FOR;
                        prop_assert_eq!(*id == old_id, soon);
                    }
                }
                let left = before.into_iter().filter(|(key, _)| !after.contains_key(key));
                let with_address = left.filter(|((_, _, address), _)| address.socket().is_some_and(|address| address.port() != 0));
                gone.extend(with_address.map(|(key, (id, _))| (key, (id, now))));
                let ids: HashSet<_> = after.values().map(|(id, _)| *id).collect();
                prop_assert_eq!(ids.len(), after.len());
                for (entry, handle) in state.groups.iter().zip(&handles) {
                    prop_assert!(Arc::ptr_eq(&entry.handle, handle));
                    let current = handle.current.load();
                    prop_assert!(Arc::ptr_eq(&current, &entry.group));
                    prop_assert_eq!(current.members().len(), entry.endpoints.len());
                    let names: HashSet<_> = current.members().iter().map(|m| &m.name).collect();
                    prop_assert_eq!(names.len(), entry.endpoints.len());
                    for (seen, endpoint) in current.members().iter().zip(&entry.endpoints) {
                        prop_assert_eq!(seen.id, endpoint.member.id);
                        prop_assert!(Arc::ptr_eq(&seen.slot, &endpoint.member.slot));
                        let name = format!("{}:{}", endpoint.host, endpoint.port);
                        let in_file = state.inputs.member(&entry.config.name, &name);
                        let in_file = in_file.map_or(AdminState::Ready, |m| match m.drain {
                            true => AdminState::Drain,
                            false => AdminState::Ready,
                        });
                        let live = &state.inputs.live.admin;
                        let live = live.get(&(entry.config.name.clone(), name));
                        prop_assert_eq!(endpoint.admin, live.copied().unwrap_or(in_file));
                        let has = |reason| seen.slot.has_reason(reason);
                        prop_assert_eq!(has(Reason::Draining), endpoint.admin == AdminState::Drain);
                        let maintenance = endpoint.admin == AdminState::Maintenance;
                        prop_assert_eq!(has(Reason::Maintenance), maintenance);
                        let known = endpoint.host.parse::<IpAddr>().is_ok()
                            || state.inputs.addresses.contains_key(&endpoint.host);
                        prop_assert_eq!(has(Reason::Unresolved), !known);
                    }
                }
            }
        }
    }

    #[test]
    fn a_location_is_shared_by_the_groups_that_name_it() {
        let mut state = State::empty();
        let config = config([&[(0, false)], &[(0, false), (1, false)]]);
        state = state.next(
            Inputs {
                config: config.into(),
                ..state.inputs.clone()
            },
            1,
            at(1),
        );
        let location = |group: usize, member: usize| {
            Arc::clone(&state.groups[group].group.members()[member].location)
        };
        assert!(Arc::ptr_eq(&location(0, 0), &location(1, 0)));
        assert!(!Arc::ptr_eq(&location(0, 0), &location(1, 1)));
        let now = Instant::from_nanos(1);
        let half = LoadValue::new(0.5).unwrap();
        location(0, 0).report_load(LoadId::CPU, half, now).unwrap();
        assert!(location(1, 0).last_load(LoadId::CPU, now).is_some());
    }

    /// Members of the file, of a service and at several addresses of a name.
    #[test]
    fn members_that_report_themselves_have_a_location_each_whoever_names_them() {
        let text = "[group.web]\norca = true\n\
                    members = [{ srv = \"_http._tcp.web\" }, \"x.example:1\", \"x.example:2\", \"10.0.0.9:1\"]\n";
        let config = crate::config::parse("x", text).unwrap();
        let records = [80, 81].map(|port| Service::new(0, 1, port, "a.example.").unwrap());
        let services = [("_http._tcp.web".to_owned(), records.to_vec())];
        let lists = Lists {
            services: services.into(),
            ..Lists::default()
        };
        let mut inputs = Inputs::new().with_config(config, lists, at(1));
        let addresses = |hosts: [[u8; 4]; 2]| hosts.map(IpAddr::from).to_vec();
        let found = [
            ("x.example", addresses([[10, 0, 0, 1], [10, 0, 0, 2]])),
            ("a.example", vec![IpAddr::from([10, 0, 0, 3])]),
        ];
        inputs.addresses = found.map(|(host, ips)| (host.to_owned(), ips)).into();
        let state = State::empty().next(inputs, 1, at(1));
        let members = state.groups[0].group.members().iter();
        let mut names: Vec<_> = members
            .map(|member| member.location.name().to_string())
            .collect();
        names.sort_unstable();
        let expected = [
            "10.0.0.1:1",
            "10.0.0.1:2",
            "10.0.0.2:1",
            "10.0.0.2:2",
            "10.0.0.9",
            "a.example:80",
            "a.example:81",
        ];
        assert_eq!(names, expected);
    }
}
