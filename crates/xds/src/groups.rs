//! Groups, and the shares of their members over time.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_config::Xds as Section;
use evenkeel_control::shares::{self, ServiceState, Share, Shares, TargetShare};
use evenkeel_core::address::Address;
use evenkeel_core::group::Group;
use evenkeel_core::member::{Member, Reason};
use evenkeel_core::time::Instant;
use evenkeel_manager::snapshot::GroupHandle;

use crate::content::{Cluster, Content, Endpoint, Endpoints};
use crate::kind::Kind;
use crate::world::ResourceSet;

/// Weight of the member that is to get most: a thousandth more or less is the finest that clients are told.
const HIGHEST: u32 = 1000;

/// Least time between two messages about a group in which only weights have changed. Ten a second would be
/// no better: loads are not reported more often than a few times a second.
const BETWEEN_WEIGHTS: Duration = Duration::from_millis(200);

/// A group that clients may have.
struct Watched {
    name: Arc<str>,
    handle: Arc<GroupHandle>,
    shares: Shares,
}

/// The groups that clients may have.
pub struct Groups {
    section: Section,
    handles: Vec<Arc<GroupHandle>>,
    watched: Vec<Watched>,
    /// Index of each group in `watched`.
    places: HashMap<Arc<str>, usize>,
    seen: Vec<TargetShare>,
}

impl Default for Groups {
    /// Returns an empty set of groups.
    fn default() -> Self {
        Groups {
            section: Section::default(),
            handles: Vec::new(),
            watched: Vec::new(),
            places: HashMap::new(),
            seen: Vec::new(),
        }
    }
}

/// Returns the settings that say how shares become messages.
fn share_settings(section: &Section) -> shares::Settings {
    let between = section.between_pushes();
    shares::Settings {
        highest: HIGHEST,
        damping: section.damping,
        smallest_change: section.smallest_change,
        smallest_step: 1,
        interval: between.max(BETWEEN_WEIGHTS),
        urgent_interval: between,
    }
}

impl Groups {
    /// Takes the section that the configuration has from now on.
    pub fn set_section(&mut self, section: &Section, world: &mut ResourceSet) {
        if self.section == *section {
            return;
        }
        self.section = section.clone();
        for watched in &mut self.watched {
            watched.shares.set_settings(share_settings(section));
            // Who decides on weights may be somebody else now.
            watched.shares.say_again();
        }
        let handles = std::mem::take(&mut self.handles);
        self.set_handles(handles, world);
    }

    /// Takes the groups that there are from now on. Groups that were there before stay as they are.
    pub fn set_handles(&mut self, handles: Vec<Arc<GroupHandle>>, world: &mut ResourceSet) {
        let served = self.section.served.iter();
        let served: HashMap<&str, _> = served.map(|group| (&*group.name, group)).collect();
        let before = std::mem::take(&mut self.watched).into_iter();
        let mut before: HashMap<Arc<str>, Watched> =
            before.map(|old| (Arc::clone(&old.name), old)).collect();
        for handle in &handles {
            let name = Arc::clone(handle.current.load().name());
            let Some(group) = served.get(&*name) else {
                continue;
            };
            let old = before.remove(&name);
            let same = old.filter(|old| Arc::ptr_eq(&old.handle, handle));
            let cluster = Cluster {
                policy: self.section.policy,
                http2: group.http2,
                tls: group.tls,
                reports: self.section.load_report_interval.is_some(),
                connect_timeout: self.section.connect_timeout,
            };
            world.set(Kind::Cluster, &name, Content::Cluster(cluster));
            world.set(Kind::Listener, &name, Content::Listener);
            world.set(Kind::Route, &name, Content::Route);
            if !world.has_resource(Kind::Endpoints, &name) {
                // Until somebody has looked.
                let nobody = Content::Endpoints(Endpoints {
                    policy: self.section.policy,
                    order: None,
                    members: Vec::new(),
                });
                world.set(Kind::Endpoints, &name, nobody);
            }
            self.watched.push(same.unwrap_or_else(|| Watched {
                name,
                handle: Arc::clone(handle),
                shares: Shares::new(share_settings(&self.section)),
            }));
        }
        for name in before.into_keys() {
            for &kind in Kind::ALL {
                world.remove(kind, &name);
            }
        }
        let names = self.watched.iter().map(|one| Arc::clone(&one.name));
        self.places = names.zip(0..).collect();
        self.handles = handles;
    }

    /// Looks at all groups; answers whether anything has changed for clients.
    pub fn look_for_changes(&mut self, now: Instant, world: &mut ResourceSet) -> bool {
        let before = world.version();
        for watched in &mut self.watched {
            let group = watched.handle.current.load();
            shares::look_without_zones(&group, now, &mut self.seen);
            let Some(said) = watched.shares.update(now, &self.seen) else {
                continue;
            };
            let members = group.members().iter().zip(said);
            let members = members.filter_map(|(member, share)| endpoint(member, share));
            let endpoints = Endpoints {
                policy: self.section.policy,
                order: order_of(&group),
                members: merge_endpoints(members),
            };
            world.set(
                Kind::Endpoints,
                &watched.name,
                Content::Endpoints(endpoints),
            );
        }
        world.version() != before
    }

    /// Returns the members of the group called `name` as they are now.
    pub fn find_group(&self, name: &str) -> Option<Arc<Group>> {
        let watched = self.watched.get(*self.places.get(name)?)?;
        Some(watched.handle.current.load_full())
    }

    /// Returns the number of groups.
    pub fn len(&self) -> usize {
        self.watched.len()
    }

    /// True if there are no groups.
    pub fn is_empty(&self) -> bool {
        self.watched.is_empty()
    }
}

/// Returns the zones that come after a client's own one in a group; `None` is that all zones are alike. The
/// own zone of this process is none of its clients'.
fn order_of(group: &Group) -> Option<Vec<String>> {
    let zones = group.settings().zones.as_ref()?;
    Some(zones.order.clone())
}

/// Returns a member with its share; `None` if there is no address at which clients could reach it.
fn endpoint(member: &Member, share: &Share) -> Option<Endpoint> {
    let is_known = !member.slot.has_reason(Reason::Unresolved);
    let is_somewhere = match &member.address {
        Address::Ip(address) => !address.ip().is_unspecified() && address.port() != 0,
        Address::Unix(_) => true,
    };
    (is_known && is_somewhere).then(|| Endpoint {
        name: Arc::clone(&member.name),
        host: Arc::clone(&member.host),
        address: member.address.clone(),
        zone: member.zone.clone(),
        weight: share.weight,
        standing: share.standing,
    })
}

/// Returns each address once, with the weights of all members that serve there: clients of gRPC refuse
/// endpoints that have an address twice, and Envoy takes the first one only. Two names may have the same
/// address, and two members may be behind one address.
fn merge_endpoints(members: impl Iterator<Item = Endpoint>) -> Vec<Endpoint> {
    let mut merged: Vec<Endpoint> = Vec::new();
    let mut places: HashMap<Address, usize> = HashMap::new();
    for member in members {
        let place = *places.entry(member.address.clone()).or_insert(merged.len());
        let Some(first) = merged.get_mut(place) else {
            merged.push(member);
            continue;
        };
        match (first.standing, member.standing) {
            (ServiceState::Serving, ServiceState::Serving) => {
                first.weight = first.weight.saturating_add(member.weight);
            }
            (_, ServiceState::Serving) => *first = member,
            _ => {}
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use evenkeel_config::{XdsGroup, XdsPolicy};
    use evenkeel_core::group::{GroupSettings, GroupState};
    use evenkeel_core::load::{LoadId, LoadValue, Location};
    use evenkeel_core::member::{MemberId, Slot, Weight};
    use evenkeel_core::strategy::{self, Values};

    use super::*;
    use crate::kind::{Audience, Dialect};
    use crate::proto::{Any, ClusterLoadAssignment};

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    fn handle(name: &str, members: usize) -> Arc<GroupHandle> {
        let members = (0..members).map(|index| Member {
            id: MemberId(index as u64),
            name: format!("m{index}").into(),
            given_name: None,
            host: "192.0.2.1".into(),
            address: std::net::SocketAddr::from(([192, 0, 2, 1], 80 + index as u16)).into(),
            max_connections: None,
            location: Arc::new(Location::new(format!("l{index}"))),
            zone: None,
            slot: Arc::new(Slot::new(Weight::ONE)),
        });
        let values = Values::defaults(strategy::find("weighted_by_load").unwrap());
        let state = Arc::<GroupState>::default();
        let settings = GroupSettings::default();
        let group = Group::new(name, settings, &values, members.collect(), state);
        Arc::new(GroupHandle::new(Arc::new(group), 0))
    }

    fn section(names: &[&str]) -> Section {
        let served = names.iter().map(|name| XdsGroup {
            name: (*name).into(),
            http2: false,
            tls: false,
        });
        Section {
            served: served.collect(),
            ..Section::default()
        }
    }

    fn weights(world: &ResourceSet, name: &str) -> Vec<u32> {
        let envoy = Audience {
            dialect: Dialect::Envoy,
            zone: None,
        };
        let form = world.find_resource(Kind::Endpoints, name, &envoy).unwrap();
        let any: Any = prost::Message::decode(form.any).unwrap();
        let read: ClusterLoadAssignment = prost::Message::decode(&*any.value).unwrap();
        let members = read.endpoints.iter().flat_map(|place| &place.lb_endpoints);
        let weight = members.map(|one| one.load_balancing_weight.as_ref().map_or(0, |w| w.value));
        weight.collect()
    }

    #[test]
    fn weights_follow_loads_and_standing_within_a_second() {
        let (mut groups, mut world) = (Groups::default(), ResourceSet::default());
        let pool = handle("pool", 2);
        groups.set_section(&section(&["pool"]), &mut world);
        groups.set_handles(vec![Arc::clone(&pool), handle("other", 1)], &mut world);
        assert_eq!(
            (groups.len(), world.resource_names(Kind::Cluster).count()),
            (1, 1)
        );
        assert!(weights(&world, "pool").is_empty());
        assert!(groups.look_for_changes(at(1), &mut world));
        assert_eq!(weights(&world, "pool"), [1000, 1000]);
        assert!(
            !groups.look_for_changes(at(101), &mut world),
            "nothing is new"
        );
        let group = pool.current.load_full();
        let report = |loads: [f64; 2], now| {
            for (member, load) in group.members().iter().zip(loads) {
                let load = LoadValue::new(load).unwrap();
                member.location.report_load(LoadId::CPU, load, now).unwrap();
            }
        };
        for tick in 0..=22u64 {
            let now = at(1000 + tick * 100);
            if tick % 10 == 0 {
                report([0.9, 0.1], now);
            }
            groups.look_for_changes(now, &mut world);
        }
        let followed = weights(&world, "pool");
        assert!(followed[0] < 500 && followed[1] == 1000, "{followed:?}");
        // Whoever is drained is told with the next push.
        group.members()[1].slot.set(Reason::Draining, true);
        assert!(groups.look_for_changes(at(3300), &mut world));
        let [first, drained] = weights(&world, "pool")[..] else {
            panic!("both are shown");
        };
        assert!(first > 0 && drained == 0);
        assert!(groups.find_group("pool").is_some() && groups.find_group("other").is_none());
    }

    #[test]
    fn groups_come_and_go_and_the_others_stay_as_they_are() {
        let (mut groups, mut world) = (Groups::default(), ResourceSet::default());
        let [a, b] = [handle("a", 1), handle("b", 2)];
        groups.set_section(&section(&["a", "b"]), &mut world);
        groups.set_handles(vec![Arc::clone(&a), Arc::clone(&b)], &mut world);
        groups.look_for_changes(at(1), &mut world);
        let seen = world.version();
        groups.set_handles(vec![Arc::clone(&a), Arc::clone(&b)], &mut world);
        assert!(!groups.look_for_changes(at(1000), &mut world));
        assert_eq!(world.version(), seen, "nothing has changed");
        groups.set_handles(vec![Arc::clone(&b)], &mut world);
        assert!(world.removed_since(Kind::Cluster, seen));
        assert!(
            !world.has_resource(Kind::Endpoints, "a") && world.has_resource(Kind::Endpoints, "b")
        );
        assert_eq!(world.changed_since(Kind::Endpoints, seen).count(), 0);
        // Another way to choose is a change of cluster and endpoints.
        let seen = world.version();
        let other = Section {
            policy: XdsPolicy::ClientSide,
            ..section(&["a", "b"])
        };
        groups.set_section(&other, &mut world);
        assert!(groups.look_for_changes(at(2000), &mut world));
        assert_eq!(world.changed_since(Kind::Cluster, seen).count(), 1);
        assert_eq!(world.changed_since(Kind::Endpoints, seen).count(), 1);
        // A group that is not served any more is gone.
        groups.set_section(&section(&["a"]), &mut world);
        assert!(groups.is_empty() && !world.has_resource(Kind::Cluster, "b"));
    }

    #[test]
    fn an_address_is_there_once_with_the_weights_of_all_who_serve_there() {
        let member = |name: &str, port: u16, weight, standing| Endpoint {
            name: name.into(),
            host: "192.0.2.1".into(),
            address: std::net::SocketAddr::from(([192, 0, 2, 1], port)).into(),
            zone: None,
            weight,
            standing,
        };
        let all = [
            member("a", 80, 300, ServiceState::Serving),
            member("b", 81, 0, ServiceState::Down),
            member("c", 80, 200, ServiceState::Serving),
            member("d", 81, 100, ServiceState::Serving),
            member("e", 80, 0, ServiceState::Draining),
            member("f", 82, 0, ServiceState::Draining),
        ];
        let merged = merge_endpoints(all.into_iter());
        let merged = merged
            .iter()
            .map(|one| (&*one.name, one.weight, one.standing));
        assert_eq!(
            merged.collect::<Vec<_>>(),
            [
                ("a", 500, ServiceState::Serving),
                ("d", 100, ServiceState::Serving),
                ("f", 0, ServiceState::Draining),
            ]
        );
    }
}
