//! Groups that stay as they are while others change: the cost of a change is that of the groups that it is about.

use std::collections::HashMap;
use std::sync::Arc;

use evenkeel_control::group::{GroupControl, Rules};
use evenkeel_core::strategy::shaping::shaping;
use evenkeel_core::time::Instant;

use super::State;
use super::entry::GroupEntry;
use crate::config::GroupConfig;
use crate::inputs::Inputs;
use crate::lists::Lists;

/// Groups of a state that other inputs leave as they are.
pub(super) struct Unchanged<'a> {
    before: &'a State,
    next: &'a Inputs,
    /// Configurations in the inputs before, by name; none if something has changed that all groups depend on.
    configs: HashMap<&'a str, &'a GroupConfig>,
}

impl<'a> Unchanged<'a> {
    pub(super) fn new(before: &'a State, next: &'a Inputs) -> Self {
        let configs = match before.learnt.is_none() && have_same_surroundings(&before.inputs, next)
        {
            true => before.inputs.all_groups(),
            false => return Unchanged::none(before, next),
        };
        let configs = configs.map(|(_, group)| (group.name.as_str(), group));
        Unchanged {
            before,
            next,
            configs: configs.collect(),
        }
    }

    pub(super) fn none(before: &'a State, next: &'a Inputs) -> Self {
        Unchanged {
            before,
            next,
            configs: HashMap::new(),
        }
    }

    /// Returns the place of a group in the state before, if all that the group is made of is as before.
    pub(super) fn find_place(
        &self,
        owner: Option<&'static str>,
        config: &GroupConfig,
    ) -> Option<usize> {
        let known = self.configs.get(config.name.as_str())?;
        let place = *self.before.names.get(&config.name)?;
        let entry = self.before.groups.get(place)?;
        let (old, new) = (&self.before.inputs, self.next);
        let is_same = entry.owner == owner
            && has_settled_members(config, entry)
            && have_same_lists(config, &old.lists, &new.lists)
            && same_pointer(old.clients.get(&config.name), new.clients.get(&config.name))
            && same_pointer(old.cookies.get(&config.name), new.cookies.get(&config.name))
            && *known == config;
        is_same.then_some(place)
    }
}

fn same_pointer<T>(a: Option<&Arc<T>>, b: Option<&Arc<T>>) -> bool {
    a.map(Arc::as_ptr) == b.map(Arc::as_ptr)
}

/// True if all is as before that groups depend on beside their own settings and members.
fn have_same_surroundings(old: &Inputs, new: &Inputs) -> bool {
    let (before, after) = (&old.live, &new.live);
    before.strategies == after.strategies
        && before.admin == after.admin
        && before.weights == after.weights
        && before.backups == after.backups
        && before.joined == after.joined
        && before.needed_locations == after.needed_locations
        && old.config.node == new.config.node
        && old.config.locations == new.config.locations
        && old.config.broker.is_some() == new.config.broker.is_some()
        && old.listening == new.listening
        && old.config.listens().eq(new.config.listens())
}

/// True if the members of a group depend on nothing but its settings and its lists: not on names, on agents, on files or
/// on the time, for which members that left are remembered.
fn has_settled_members(config: &GroupConfig, entry: &GroupEntry) -> bool {
    let mut services = config.services.iter();
    // Members that subsystems find have addresses.
    let mut members = config.members.iter();
    entry.departed.is_empty()
        && config.chooser.is_none()
        && config.members_files.is_empty()
        && !config.agents_may_join
        && services.all(|service| service.kubernetes.is_some())
        && !members.any(|member| member.is_looked_up())
}

/// True if the lists of a group have the members that they had.
fn have_same_lists(config: &GroupConfig, old: &Lists, new: &Lists) -> bool {
    let mut lists = { config.services.iter() }.filter_map(|of| of.kubernetes.as_ref());
    lists.all(|name| same_pointer(old.found.get(name), new.found.get(name)))
}

impl GroupEntry {
    /// Returns what stands for the group until [`State::take_kept`]: all that subsystems see, without the endpoints.
    pub(super) fn stand_in(&self) -> Self {
        let rules = Rules {
            shaping: shaping(&self.config.strategy),
            is_owned: self.owner.is_some(),
        };
        GroupEntry {
            config: Arc::clone(&self.config),
            owner: self.owner,
            handle: Arc::clone(&self.handle),
            group: Arc::clone(&self.group),
            tls: self.tls.clone(),
            cookie: self.cookie.clone(),
            chooser: self.chooser.clone(),
            endpoints: Vec::new(),
            control: GroupControl::new(rules),
            refused: Vec::new(),
            departed: Vec::new(),
            fresh: false,
        }
    }
}

impl State {
    /// The state that `inputs` make, as [`State::next`] makes it. Groups that stay as they are are in it once
    /// [`State::take_kept`] has been called.
    pub(crate) fn next_keeping(&self, inputs: Inputs, generation: u64, now: Instant) -> State {
        self.next_with(inputs, generation, now, true)
    }

    /// Takes the groups that stay as they are out of the state before, which is of no use afterwards, and makes the new
    /// state count.
    pub(crate) fn take_kept(&mut self, before: &mut State, now: Instant) {
        let kept = std::mem::take(&mut self.kept);
        // Groups that were made anew are told of it; for the others nothing has changed.
        let mut is_kept = vec![false; self.groups.len()];
        for (place, _) in &kept {
            if let Some(is_kept) = is_kept.get_mut(*place) {
                *is_kept = true;
            }
        }
        for (entry, _) in { self.groups.iter_mut().zip(&is_kept) }.filter(|(_, kept)| !**kept) {
            entry.commit(now);
        }
        for (place, place_before) in &kept {
            let (new, old) = (
                self.groups.get_mut(*place),
                before.groups.get_mut(*place_before),
            );
            if let (Some(new), Some(old)) = (new, old) {
                std::mem::swap(new, old);
            }
        }
        match kept.is_empty() || kept.iter().any(|(new, old)| new != old) {
            true => self.count_kept(&kept),
            false => self.take_places(before),
        }
    }

    /// Counts the members of groups that were kept, and notes their places.
    fn count_kept(&mut self, kept: &[(usize, usize)]) {
        for (place, _) in kept {
            let Some(entry) = self.groups.get(*place) else {
                continue;
            };
            for (number, endpoint) in entry.endpoints.iter().enumerate() {
                let location = &endpoint.member.location;
                let name = location.name();
                self.index.insert(endpoint.member.id, (*place, number));
                *self.members_at.entry(Arc::clone(name)).or_default() += 1;
                let locations = &mut self.locations;
                locations.insert(Arc::clone(name), Arc::clone(location));
            }
        }
    }

    /// Takes the places of members, and locations, out of the state before, in which all groups that were kept have the
    /// places that they have now. The groups that are left there are gone, or were made anew.
    fn take_places(&mut self, before: &mut State) {
        let index = std::mem::replace(&mut self.index, std::mem::take(&mut before.index));
        let members = std::mem::take(&mut before.members_at);
        let members = std::mem::replace(&mut self.members_at, members);
        let locations = std::mem::take(&mut before.locations);
        let locations = std::mem::replace(&mut self.locations, locations);
        let left = std::mem::take(&mut before.groups);
        for endpoint in left.iter().flat_map(|entry| &entry.endpoints) {
            self.index.remove(&endpoint.member.id);
        }
        self.index.extend(index);
        self.locations.extend(locations);
        for (name, count) in members {
            *self.members_at.entry(name).or_default() += count;
        }
        // Whoever was told something of a location is told when that is over, whether a member is there or not.
        let notified = std::mem::take(&mut self.notified_locations);
        for entry in &left {
            self.forget_locations(entry);
        }
        self.notified_locations = notified;
    }
}
