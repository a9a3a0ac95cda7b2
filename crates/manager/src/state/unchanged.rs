//! Groups that other inputs leave as they are.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

use super::entry::GroupEntry;
use crate::config::{GroupConfig, SharedGroup};
use crate::inputs::{Inputs, Live};
use crate::lists::{Lists, same_files};

/// Parts of a state that other inputs follow.
#[derive(Clone, Copy)]
pub(super) struct Before<'a> {
    /// Inputs of the state.
    pub(super) inputs: &'a Inputs,
    /// Places of the groups, by their names.
    pub(super) names: &'a HashMap<String, usize>,
    /// Groups of the state.
    pub(super) groups: &'a [GroupEntry],
}

/// Groups of a state that other inputs leave as they are.
pub(super) struct Unchanged<'a> {
    before: Before<'a>,
    next: &'a Inputs,
    /// Configurations in the inputs before, by name; none if something has changed that all groups depend on.
    configs: HashMap<&'a str, &'a SharedGroup>,
}

impl<'a> Unchanged<'a> {
    pub(super) fn new(before: Before<'a>, next: &'a Inputs) -> Self {
        let configs = match have_same_surroundings(before.inputs, next) {
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

    pub(super) fn none(before: Before<'a>, next: &'a Inputs) -> Self {
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
        config: &SharedGroup,
    ) -> Option<usize> {
        let known = self.configs.get(config.name.as_str())?;
        let place = *self.before.names.get(&config.name)?;
        let entry = self.before.groups.get(place)?;
        let (old, new) = (self.before.inputs, self.next);
        let is_same = entry.owner == owner
            && has_settled_members(config, entry)
            && have_same_lists(config, &old.lists, &new.lists)
            && same_pointer(old.clients.get(&config.name), new.clients.get(&config.name))
            && same_pointer(old.cookies.get(&config.name), new.cookies.get(&config.name))
            // Copies of a configuration share their groups.
            && *known == config;
        is_same.then_some(place)
    }
}

/// True if other inputs leave all groups, and what rules read of groups, as they are.
pub(super) fn keep_groups(old: &Inputs, next: &Inputs) -> bool {
    old.config.has_same_groups(&next.config)
        && have_same_live_groups(&old.live, &next.live)
        && old.live.group_maintenance == next.live.group_maintenance
        && have_same_surroundings(old, next)
        && old.addresses == next.addresses
        && old.lists.services == next.lists.services
        && same_files(&old.lists.files, &next.lists.files)
        && (Arc::ptr_eq(&old.lists.found, &next.lists.found)
            || have_same_values(&*old.lists.found, &*next.lists.found, Arc::ptr_eq))
        && have_same_values(&old.clients, &next.clients, Arc::ptr_eq)
        && have_same_values(&old.cookies, &next.cookies, Arc::ptr_eq)
        && old.files.answers == next.files.answers
        && have_same_values(&old.files.users, &next.files.users, Arc::ptr_eq)
}

/// True if both have the same groups that do not stand in the file.
fn have_same_live_groups(some: &Live, others: &Live) -> bool {
    let mut all = some.groups.iter();
    some.groups.len() == others.groups.len()
        && all.all(|(name, (owner, group))| {
            let other = others.groups.get(name);
            other.is_some_and(|(of, other)| of == owner && group.is_same(other))
        })
}

/// True if both have the same keys, with values that `is_same` finds the same.
fn have_same_values<K: Eq + Hash, V>(
    some: &HashMap<K, V>,
    others: &HashMap<K, V>,
    is_same: impl Fn(&V, &V) -> bool,
) -> bool {
    let mut all = some.iter();
    some.len() == others.len()
        && all.all(|(key, one)| others.get(key).is_some_and(|other| is_same(one, other)))
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
