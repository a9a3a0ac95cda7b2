//! The locations of a group, as it sees them in one round.

use std::collections::HashMap;
use std::sync::Arc;

use evenkeel_core::effective::Shaping;
use evenkeel_core::group::{Group, Request};
use evenkeel_core::load::Location;
use evenkeel_core::member::{Member, MemberId};
use evenkeel_core::time::Instant;

use crate::analyzer::Site;

/// A location at which a group has members.
pub(crate) struct Place<'a> {
    pub location: &'a Arc<Location>,
    /// The first of the group's members there.
    pub first: &'a Member,
    /// Effective load, and the report that it goes back to.
    pub reading: Option<(f32, u32)>,
    /// True if a member of the group takes new traffic at the location.
    pub takes_traffic: bool,
}

/// Places of all locations of a group.
pub(crate) struct GroupLocations<'a> {
    pub all: Vec<Place<'a>>,
    /// For each member of the group, the index of its location in `all`.
    pub of_member: Vec<usize>,
}

impl<'a> GroupLocations<'a> {
    pub(crate) fn of_group(group: &'a Group, shaping: &Shaping, now: Instant) -> Self {
        let request = Request::at_time(now);
        let view = group.view_for(&request).despite_alerts();
        let mut known: HashMap<&Arc<str>, usize> = HashMap::new();
        let mut places = GroupLocations {
            all: Vec::new(),
            of_member: Vec::new(),
        };
        for (index, member) in group.members().iter().enumerate() {
            let location = &member.location;
            let place = *known.entry(location.name()).or_insert_with(|| {
                let load = member.effective_load(shaping, group.settings(), now);
                places.all.push(Place {
                    location,
                    first: member,
                    reading: load.map(|load| (load.load, load.report)),
                    takes_traffic: false,
                });
                places.all.len() - 1
            });
            places.all[place].takes_traffic |= view.is_eligible_unless_full(index);
            places.of_member.push(place);
        }
        places
    }

    /// Returns the sites for the analyzer; `alerted` says what the last answer for a location was.
    pub(crate) fn sites(&self, alerted: impl Fn(&Place<'_>) -> bool) -> Vec<Site> {
        let site = |place: &Place<'_>| Site {
            load: place.reading.map(|(load, _)| load),
            takes_traffic: place.takes_traffic,
            alerted: alerted(place),
        };
        self.all.iter().map(site).collect()
    }

    /// A member of the group at the location of number `place` that may be used.
    pub(crate) fn member_at(&self, group: &Group, place: usize) -> Option<MemberId> {
        let request = Request::at_time(Instant::ZERO);
        let view = group.view_for(&request).despite_alerts();
        let mut members = self.of_member.iter().enumerate();
        let usable =
            |&(index, &at): &(usize, &usize)| at == place && view.is_eligible_unless_full(index);
        let (index, _) = members.find(usable)?;
        Some(group.members()[index].id)
    }
}
