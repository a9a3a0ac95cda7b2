//! Groups of a simulation, from a configuration.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use evenkeel_core::group::{Group, GroupSettings};
use evenkeel_core::member::Weight;
use evenkeel_core::strategy::Values;
use evenkeel_core::time::Instant;
use evenkeel_manager::config::{Config, GroupConfig, MemberConfig};
use evenkeel_manager::groups::Groups;

/// A group of members that are called `10.0.0.0` and so on, with these weights.
pub fn group_config(
    name: &str,
    weights: impl Iterator<Item = f64>,
    settings: GroupSettings,
    strategy: Values,
) -> GroupConfig {
    let member = |(index, weight): (usize, f64)| {
        let host = Ipv4Addr::from_bits(0x0a00_0000 + index as u32).to_string();
        MemberConfig {
            weight: Weight::new(weight).unwrap_or(Weight::ONE),
            ..MemberConfig::new(&host, 80)
        }
    };
    let mut group = GroupConfig::new(name, weights.enumerate().map(member).collect());
    // The members as they are, without the choices of a configuration.
    (group.settings, group.strategy) = (settings, strategy);
    group
}

/// A configuration that has only one group, of this many equal members.
pub fn equal_members(
    name: &str,
    members: usize,
    settings: GroupSettings,
    strategy: Values,
) -> Config {
    let weights = std::iter::repeat_n(1.0, members);
    Config {
        groups: vec![group_config(name, weights, settings, strategy).into()],
        ..Config::default()
    }
}

/// A balancer's own view of its groups. Each name that has no address in the configuration has
/// one here.
pub fn make_groups(config: Config, now: Instant) -> Groups {
    let mut names: Vec<String> = Vec::new();
    for member in config.groups.iter().flat_map(|group| &group.members) {
        if member.is_looked_up() && !names.contains(&member.host) {
            names.push(member.host.clone());
        }
    }
    let address = |index: usize| IpAddr::V4(Ipv4Addr::from_bits(0x0aff_0000 + index as u32));
    let addresses = names.into_iter().enumerate();
    let addresses = addresses.map(|(index, name)| (name, vec![address(index)]));
    Groups::new(config, addresses.collect::<HashMap<_, _>>(), now)
}

/// The group called `name`, as it is now.
pub fn find_group(groups: &Groups, name: &str) -> Option<Arc<Group>> {
    Some(groups.find_handle(name)?.current.load_full())
}
