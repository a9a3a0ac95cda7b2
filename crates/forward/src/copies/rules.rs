//! Rules whose copies this balancer can use.

use std::collections::HashMap;
use std::net::SocketAddr;

use evenkeel_config::ReturnPath;

use crate::plan::PlannedRule;
use crate::terms::hash_name;

/// Rules by listening address: the number that stands for the group, and the way of answers.
type ByAddress = HashMap<SocketAddr, (u64, ReturnPath)>;

/// Rules that the kernel forwards for.
#[derive(Debug)]
pub(super) struct Rules {
    /// Rules of TCP.
    pub(super) connections: ByAddress,
    /// Rules of UDP.
    pub(super) sessions: ByAddress,
}

impl Rules {
    pub(super) fn list(rules: &[PlannedRule]) -> Self {
        Rules {
            connections: list_addresses(rules, false),
            sessions: list_addresses(rules, true),
        }
    }
}

/// True if a rule with this way of answers has connections or sessions whose members see `source`, and answer clients without
/// the balancer or not.
pub(super) fn is_on_path(source: Option<SocketAddr>, is_direct: bool, path: ReturnPath) -> bool {
    match path {
        ReturnPath::Route => source.is_none() && !is_direct,
        ReturnPath::Nat => source.is_some(),
        ReturnPath::Direct | ReturnPath::Tunnel => is_direct,
    }
}

fn list_addresses(rules: &[PlannedRule], is_udp: bool) -> ByAddress {
    let rules = rules.iter().filter(|rule| rule.udp.is_some() == is_udp);
    rules
        .flat_map(|rule| {
            let group = rule.group.current.load();
            let found = (hash_name(group.name()), rule.return_path);
            rule.listeners.iter().map(move |at| (*at, found))
        })
        .collect()
}
