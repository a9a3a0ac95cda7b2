//! The next entry of a group: its members at the addresses that they have now, each of which keeps
//! what it had if it was there before.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use evenkeel_control::alerts::Locations;
use evenkeel_control::group::{GroupControl, Rules};
use evenkeel_core::address::Address;
use evenkeel_core::group::Group;
use evenkeel_core::member::{Member, MemberId, Slot, Weight};
use evenkeel_core::strategy::shaping::shaping;
use evenkeel_core::time::Instant;
use evenkeel_core::zone::ZoneSettings;

use super::State;
use super::entry::{Endpoint, GroupEntry, Identity};
use crate::admission::{Admission, RefusedAddress};
use crate::chooser::Chooser;
use crate::config::sources::Hosts;
use crate::config::{GroupConfig, MemberConfig, SharedGroup};
use crate::inputs::AdminState;
use crate::snapshot::GroupHandle;

/// Most endpoints that left which a group keeps, with requests or without.
pub(super) const MAX_DEPARTED: usize = 1024;

/// Parts of the old state that a group needs.
struct Before<'a> {
    /// Endpoints of the group, with those that had left.
    by_identity: HashMap<Identity<'a>, &'a Endpoint>,
    locations: &'a Locations,
}

/// Settings of a member that can be changed live.
struct LiveSettings {
    admin: AdminState,
    weight: Weight,
    backup: bool,
}

/// The group with these endpoints: the old one if nothing has changed.
fn next_core_group(
    config: &GroupConfig,
    endpoints: &[Endpoint],
    old: Option<&GroupEntry>,
) -> Arc<Group> {
    let members: Vec<Member> = endpoints.iter().map(|e| e.member.clone()).collect();
    let unchanged = old.filter(|old| {
        old.config.strategy == config.strategy
            && old.config.settings == config.settings
            && old.group.members().len() == members.len()
            && old.group.members().iter().zip(&members).all(same_member)
    });
    match unchanged {
        Some(old) => Arc::clone(&old.group),
        None => {
            let (name, settings) = (config.name.as_str(), config.settings.clone());
            let state = old.map(|old| Arc::clone(old.group.state()));
            let state = state.unwrap_or_default();
            Arc::new(Group::new(name, settings, &config.strategy, members, state))
        }
    }
}

impl State {
    pub(super) fn next_group(
        &mut self,
        owner: Option<&'static str>,
        mut config: SharedGroup,
        old: Option<&GroupEntry>,
        old_locations: &Locations,
        admission: &Admission,
        now: Instant,
    ) -> GroupEntry {
        if let Some(strategy) = self.inputs.live.strategies.get(&config.name) {
            config.set_strategy(strategy.clone());
        }
        let zone = &self.inputs.config.node.zone;
        let is_other = |zones: &ZoneSettings| zones.balancer_zone != *zone;
        // The configuration stays shared if it is as wanted.
        if config.settings.zones.as_ref().is_some_and(is_other)
            && let Some(zones) = &mut config.settings.zones
        {
            zones.balancer_zone.clone_from(zone);
        }
        // Whoever has made something of the configuration before sees that it is the same.
        if let Some(old) = old.filter(|old| old.config == config) {
            config = old.config.clone();
        }
        let before: Vec<&Endpoint> = old
            .map(|old| old.kept_endpoints(now).collect())
            .unwrap_or_default();
        let old_endpoints = Before {
            by_identity: before.iter().map(|e| (e.identity(), *e)).collect(),
            locations: old_locations,
        };
        let mut listed = self.inputs.lists.list_members(&config);
        let mut members = Cow::Borrowed(config.members.as_slice());
        // What the file says of others is in its members.
        if !listed.is_empty() && self.inputs.config.broker.is_none() {
            let hosts = Hosts::of_members(members.iter().chain(&listed));
            config.separate_members(&hosts, members.to_mut().iter_mut().chain(&mut listed));
        }
        let (mut endpoints, mut refused) = (Vec::new(), Vec::new());
        for member in members.iter().chain(&listed) {
            let ips = self.addresses_of(&config, member, admission, &mut refused);
            let into = &mut endpoints;
            self.next_endpoints(&config, member, ips, &old_endpoints, now, into);
        }
        let not_joined = endpoints.len();
        let joined = self.joined(&config, &listed, admission, &mut refused);
        for member in &joined {
            let into = &mut endpoints;
            let ips = member.ip().into_iter().collect();
            self.next_endpoints(&config, member, ips, &old_endpoints, now, into);
        }
        for endpoint in &mut endpoints[not_joined..] {
            endpoint.joined = true;
        }
        // Endpoints are large, and there are thousands of them.
        endpoints.shrink_to_fit();
        let departed = departed(&before, &endpoints, now);
        let group = next_core_group(&config, &endpoints, old);
        let handle = match old {
            Some(old) => Arc::clone(&old.handle),
            None => Arc::new(GroupHandle::new(Arc::clone(&group), config.max_queue)),
        };
        let rules = Rules {
            shaping: shaping(&config.strategy),
            is_owned: owner.is_some(),
        };
        let control = match old {
            Some(old) => old.control.next(rules),
            None => GroupControl::new(rules),
        };
        let tls = config.member_tls.as_ref();
        let tls = tls.and_then(|_| self.inputs.clients.get(&config.name));
        let cookie = config.sticky.as_ref();
        let cookie = cookie.and_then(|_| self.inputs.cookies.get(&config.name));
        let before = old.and_then(|old| old.chooser.as_ref());
        let chooser = config.chooser.as_ref();
        let chooser = chooser.map(|chooser| Chooser::next(before, &config.name, chooser));
        GroupEntry {
            tls: tls.cloned(),
            cookie: cookie.cloned(),
            chooser,
            config,
            joined,
            owner,
            handle,
            group,
            endpoints,
            control,
            refused,
            departed,
            fresh: old.is_none(),
        }
    }

    /// The addresses of a member of the file: its own, or those that its name has and may
    /// have.
    fn addresses_of(
        &self,
        group: &GroupConfig,
        member: &MemberConfig,
        admission: &Admission,
        refused: &mut Vec<RefusedAddress>,
    ) -> Vec<IpAddr> {
        if !member.is_looked_up() {
            let mut ips: Vec<_> = member.ip().into_iter().collect();
            // Whoever may write the slices of a service names addresses that the file does not.
            if member.kubernetes.is_some() {
                ips.retain(|&ip| is_admitted(group, member, ip, admission, refused));
            }
            return ips;
        }
        let found = self.inputs.addresses.get(&member.host);
        let mut ips = found.cloned().unwrap_or_default();
        ips.retain(|&ip| is_admitted(group, member, ip, admission, refused));
        ips
    }

    /// The members that agents have added to a group, beside its own and those of lists.
    fn joined(
        &self,
        group: &GroupConfig,
        listed: &[MemberConfig],
        admission: &Admission,
        refused: &mut Vec<RefusedAddress>,
    ) -> Vec<MemberConfig> {
        if !group.agents_may_join {
            return Vec::new();
        }
        let known = group.members.iter().chain(listed);
        let mut names: HashSet<String> = known.map(MemberConfig::name).collect();
        let joined = self.inputs.live.joined.get(&group.name);
        let joined = joined.into_iter().flatten();
        joined
            .filter(|member| names.insert(member.name()))
            .filter(|member| {
                // Agents register addresses, not names.
                member
                    .ip()
                    .is_some_and(|ip| is_admitted(group, member, ip, admission, refused))
            })
            .cloned()
            .collect()
    }

    /// The settings of an endpoint: those that were changed live under one of its names, or else those of the file.
    fn live_settings(&self, group: &str, member: &MemberConfig, names: [&str; 2]) -> LiveSettings {
        let live = &self.inputs.live;
        let keys = names.map(|name| (group.to_owned(), name.to_owned()));
        let admin = keys.iter().find_map(|key| live.admin.get(key));
        let weight = keys.iter().find_map(|key| live.weights.get(key));
        let backup = keys.iter().find_map(|key| live.backups.get(key));
        LiveSettings {
            admin: admin.copied().unwrap_or(match member.drain {
                true => AdminState::Drain,
                false => AdminState::Ready,
            }),
            weight: weight.copied().unwrap_or(member.weight),
            backup: backup.copied().unwrap_or(member.backup),
        }
    }

    /// Appends the endpoints that a member of the file stands for: one per address, or
    /// a placeholder if it has none yet.
    fn next_endpoints(
        &mut self,
        config: &GroupConfig,
        member: &MemberConfig,
        ips: Vec<IpAddr>,
        old: &Before<'_>,
        now: Instant,
        endpoints: &mut Vec<Endpoint>,
    ) {
        let is_name = member.is_looked_up();
        let in_file = member.name();
        let host = member.reference.as_ref().unwrap_or(&member.host);
        let none = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0);
        let addresses: Vec<(Address, bool)> = match (member.unix(), ips.is_empty()) {
            (Some(path), _) => vec![(Address::Unix(path.into()), true)],
            (None, true) => vec![(none.into(), member.reference.is_some())],
            (None, false) => ips
                .iter()
                .map(|&ip| (SocketAddr::new(ip, member.port).into(), true))
                .collect(),
        };
        let alone = addresses.len() == 1;
        for (address, resolved) in addresses {
            let of_many = address.ip().filter(|_| !alone);
            let (name, given_name) = member.names_at(of_many);
            let place = of_many.map_or_else(|| host.clone(), |ip| ip.to_string());
            let zone = self.inputs.zone_of(member, &place).map(Into::into);
            let place = match (&member.location, address.ip()) {
                (Some(location), _) => location.clone(),
                (None, Some(ip)) if member.is_apart && !alone => {
                    SocketAddr::new(ip, member.port).to_string()
                }
                (None, _) if member.is_apart => in_file.clone(),
                (None, _) => place,
            };
            let of_location = || self.inputs.zone_of(member, &place).map(Into::into);
            let zone = zone.or_else(of_location);
            let identity = (host.as_str(), member.port, address.clone());
            let before = old.by_identity.get(&identity);
            let LiveSettings {
                admin,
                weight,
                backup,
            } = self.live_settings(&config.name, member, [&name, &in_file]);
            let (id, slot) = match before {
                Some(before) => (before.member.id, Arc::clone(&before.member.slot)),
                None => {
                    let id = MemberId(self.next_id);
                    self.next_id += 1;
                    (id, Arc::new(Slot::new(weight)))
                }
            };
            let location = self.location(&place, old.locations);
            // Of thousands of members, nearly all have names that are the same.
            let name: Arc<str> = name.into();
            let in_file = share_text(&in_file, &name);
            endpoints.push(Endpoint {
                member: Member {
                    id,
                    name,
                    given_name: given_name.map(Into::into),
                    address,
                    host: share_text(host, location.name()),
                    max_connections: member.max_connections,
                    location,
                    zone,
                    slot,
                },
                in_file,
                host: host.clone(),
                port: member.port,
                weight,
                backup,
                admin,
                resolved,
                joined: false,
                health: before.map(|e| e.health.clone()).unwrap_or_default(),
                checked: before.and_then(|e| e.checked.clone()),
                source_reports: before.map(|e| e.source_reports.clone()).unwrap_or_default(),
                history: before.map(|e| e.history.clone()).unwrap_or_default(),
                // Whoever takes an address out of the file and puts it back may have
                // restarted what is there. A gap in DNS answers says no such thing.
                fresh: match before {
                    Some(before) if is_name => before.is_long_gone(now),
                    Some(before) => before.left.is_some(),
                    None => true,
                },
                left: None,
            });
        }
    }
}

/// Returns a text, which shares memory with `other` if both are the same.
fn share_text(text: &str, other: &Arc<str>) -> Arc<str> {
    match *text == **other {
        true => Arc::clone(other),
        false => text.into(),
    }
}

/// True if a member may be at an address that it got by its name, from an agent or from Kubernetes. An address that is refused
/// is noted.
fn is_admitted(
    group: &GroupConfig,
    member: &MemberConfig,
    ip: IpAddr,
    admission: &Admission,
    refused: &mut Vec<RefusedAddress>,
) -> bool {
    let address = SocketAddr::new(ip, member.port);
    let judged = admission.judge_address(group, &member.host, address);
    refused.extend(judged.err().map(|why| RefusedAddress {
        name: member.name(),
        address,
        reason: why,
    }));
    judged.is_ok()
}

/// Returns the endpoints of `before` that are not among `endpoints`, in the same order: the last
/// [`MAX_DEPARTED`] of them.
fn departed(before: &[&Endpoint], endpoints: &[Endpoint], now: Instant) -> Vec<Endpoint> {
    let present: HashSet<MemberId> = endpoints.iter().map(|e| e.member.id).collect();
    let gone = before
        .iter()
        .filter(|e| e.resolved && !present.contains(&e.member.id));
    let surplus = gone.clone().count().saturating_sub(MAX_DEPARTED);
    gone.skip(surplus)
        .map(|&endpoint| Endpoint {
            left: endpoint.left.or(Some(now)),
            ..endpoint.clone()
        })
        .collect()
}

fn same_member((a, b): (&Member, &Member)) -> bool {
    a.id == b.id
        && a.name == b.name
        && a.given_name == b.given_name
        && a.address == b.address
        && a.max_connections == b.max_connections
        && a.zone == b.zone
        && Arc::ptr_eq(&a.location, &b.location)
}
