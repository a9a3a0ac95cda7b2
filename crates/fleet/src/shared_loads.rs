//! Loads that one balancer reads for all.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use evenkeel_core::group::Group;
use evenkeel_core::load::{LoadId, Location};
use evenkeel_core::member::Reason;
use evenkeel_core::time::Instant;
use evenkeel_gossip::reading::Reading;
use evenkeel_gossip::readings::Reader;
use evenkeel_gossip::{Fleet, name_key};
use evenkeel_manager::config::{Config, Monitor};

/// The loads of a group's locations are looked at ten times a second, if there are not more than a thousand
/// locations; else each location takes so long.
const SHARE: Duration = Duration::from_micros(100);

/// If nobody says the loads of a location for so long, each balancer asks by itself. Another balancer that
/// reads for all is found sooner, if the balancer that did is gone.
const GRACE: Duration = Duration::from_secs(1);

/// Groups and locations whose loads are read by one balancer for all.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Shared {
    groups: HashSet<String>,
    /// Locations that have their own word on it.
    locations: HashMap<String, bool>,
}

impl Shared {
    pub(crate) fn new(config: &Config) -> Self {
        let is_shared = |monitor: &Option<Monitor>| monitor.as_ref().is_some_and(|one| one.shared);
        let groups = config.groups.iter();
        let groups = groups.filter(|group| is_shared(&group.monitor));
        let own = config.locations.iter().filter(|one| one.says_monitor);
        Shared {
            groups: groups.map(|group| group.name.clone()).collect(),
            locations: own
                .map(|one| (one.name.clone(), is_shared(&one.monitor)))
                .collect(),
        }
    }

    fn is_empty(&self) -> bool {
        self.groups.is_empty() && !self.locations.values().any(|shared| *shared)
    }

    fn has(&self, group: &str, location: &str) -> bool {
        let own = self.locations.get(location);
        own.copied().unwrap_or_else(|| self.groups.contains(group))
    }
}

/// Loads that one balancer reads for all.
#[derive(Default)]
pub(crate) struct SharedLoads {
    /// Groups and locations whose loads are read by one balancer for all.
    shared: Shared,
    /// Time at which the loads of a group's locations are next told or taken over.
    share_at: HashMap<String, Instant>,
    /// Locations whose loads another balancer has read, and until when it says so.
    elsewhere: HashMap<Arc<str>, (Arc<Location>, Instant)>,
    forgot_at: Option<Instant>,
}

impl SharedLoads {
    /// Sets the groups and locations whose loads are shared.
    pub(crate) fn set_shared(&mut self, shared: Shared) {
        if shared != self.shared {
            self.share_at.clear();
            self.shared = shared;
        }
    }

    /// Forgets the groups that are not in `groups`.
    pub(crate) fn retain_groups(&mut self, groups: &HashSet<String>) {
        self.share_at.retain(|group, _| groups.contains(group));
    }

    /// Tells the others the loads of a group's locations, or takes over what another one has read. Without a `fleet`
    /// that knows the group, only makes loads unknown that others report no more.
    pub(crate) fn share_loads(&mut self, fleet: Option<&mut Fleet>, group: &Group, now: Instant) {
        self.forget_loads(now);
        let name: &str = group.name();
        let (Some(fleet), false) = (fleet, self.shared.is_empty()) else {
            return;
        };
        let is_due = self.share_at.get(name).is_none_or(|&at| at <= now);
        if !is_due {
            return;
        }
        // One that has no address is not asked by anybody here.
        let known = group.members().iter();
        let known = known.filter(|member| !member.slot.has_reason(Reason::Unresolved));
        let shared = known.filter(|member| self.shared.has(name, member.location.name()));
        let locations: BTreeMap<u64, &Arc<Location>> = shared
            .map(|member| (name_key(member.location.name()), &member.location))
            .collect();
        if locations.is_empty() {
            return;
        }
        let pace = SHARE * u32::try_from(locations.len()).unwrap_or(u32::MAX);
        self.share_at.insert(name.to_owned(), now.after(pace));
        let (numbers, places): (Vec<u64>, Vec<&Arc<Location>>) = locations.into_iter().unzip();
        let own = |place: usize| {
            let location = places.get(place);
            Reading::new(|id| location.and_then(|location| location.observed(id, now)))
        };
        let readers = fleet.share_loads(name, &numbers, own, now);
        for (location, reader) in places.iter().zip(readers) {
            match reader {
                Reader::Here => location.end_remote_reading(),
                Reader::Another(reading) => {
                    let until = now.after(pace + GRACE);
                    // There is room: all of them have a name.
                    let _ = location.observe_elsewhere(reading.loads(), until, now);
                    location.expire(reading.unknown().chain([LoadId::ROUND_TRIP]));
                    let name = Arc::clone(location.name());
                    self.elsewhere.insert(name, (Arc::clone(location), until));
                }
                Reader::Nobody => {}
            }
        }
    }

    /// Makes loads unknown that others report no more, wherever nobody has read them here since: where
    /// another balancer has just stopped, and where the configuration wants no load of the location any more.
    fn forget_loads(&mut self, now: Instant) {
        if self.forgot_at.is_some_and(|at| now.since(at) < GRACE) {
            return;
        }
        self.forgot_at = Some(now);
        self.elsewhere.retain(|_, (location, until)| {
            // This one has had its time to ask.
            let is_said = now < until.after(GRACE);
            if !is_said {
                location.expire_elsewhere();
            }
            is_said
        });
    }
}
