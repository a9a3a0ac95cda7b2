//! Groups that stay as they are while others change: the cost of a change is that of the groups that it is about.

use std::sync::Arc;

use evenkeel_control::group::{GroupControl, Rules};
use evenkeel_core::strategy::shaping::shaping;
use evenkeel_core::time::Instant;

use super::State;
use super::entry::GroupEntry;
use crate::inputs::Inputs;

impl GroupEntry {
    /// Returns what stands for the group until [`State::take_kept`]: all that subsystems see, without the endpoints.
    pub(super) fn stand_in(&self) -> Self {
        let rules = Rules {
            shaping: shaping(&self.config.strategy),
            is_owned: self.owner.is_some(),
        };
        GroupEntry {
            config: self.config.clone(),
            joined: Vec::new(),
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
