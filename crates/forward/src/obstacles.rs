//! Rules whose connections the kernel cannot forward now, with the reasons: the proxy serves these rules.

use std::collections::{BTreeMap, HashMap};
use std::mem;
use std::net::{IpAddr, SocketAddr};

use evenkeel_config::ReturnPath;
use evenkeel_core::group::Group;
use evenkeel_kernel::forward::find_source;
use evenkeel_kernel::netlink::find_route;
use tracing::{info, warn};

use crate::interfaces::Interfaces;
use crate::nat::Nat;
use crate::plan::PlannedRule;
use crate::terms::find_forwardable;

/// Reasons of rules, as found in the last round.
#[derive(Debug, Default)]
pub(crate) struct Obstacles {
    reasons: BTreeMap<String, String>,
    reasons_before: BTreeMap<String, String>,
    /// Way to each member, as of the last look at the routes.
    ways: HashMap<IpAddr, Way>,
}

/// Way from this machine to a member.
#[derive(Clone, Copy, Debug)]
struct Way {
    /// Router on the way, if there is one.
    router: Option<IpAddr>,
    /// Number of the interface by which packets leave this machine.
    interface: Option<u32>,
    /// Address of this machine that packets to the member have.
    source: Option<IpAddr>,
}

impl Way {
    /// Without a route no connection goes to the member, and the proxy says so of each connection.
    fn find(member: SocketAddr) -> Self {
        let route = find_route(member.ip()).unwrap_or_default();
        Way {
            router: route.router,
            interface: route.interface,
            source: find_source(member),
        }
    }
}

impl Obstacles {
    /// Begins a round, which looks at routes anew if `is_due`.
    pub(crate) fn begin_round(&mut self, is_due: bool) {
        self.reasons_before = mem::take(&mut self.reasons);
        if is_due {
            self.ways.clear();
        }
    }

    /// Returns true if the kernel can forward connections of a rule now.
    pub(crate) fn allow(
        &mut self,
        rule: &PlannedRule,
        group: &Group,
        (nat, interfaces): (&Nat, &Interfaces),
    ) -> bool {
        let reason = match rule.return_path {
            ReturnPath::Route => self.find_refused_interface(group, interfaces),
            ReturnPath::Nat => {
                let obstacle = nat.obstacle.clone();
                obstacle.or_else(|| self.find_refused_interface(group, interfaces))
            }
            ReturnPath::Direct | ReturnPath::Tunnel => self.find_direct_obstacle(rule, group),
        };
        let Some(reason) = reason else {
            return true;
        };
        self.refuse(rule, reason);
        false
    }

    /// Lets the proxy serve a rule in this round, for this reason.
    pub(crate) fn refuse(&mut self, rule: &PlannedRule, reason: String) {
        let name = rule.name.to_string();
        if self.reasons_before.get(&name) != Some(&reason) {
            warn!(rule = name, "the proxy serves the rule: {reason}");
        }
        self.reasons.insert(name, reason);
    }

    /// Ends a round: all rules were asked for.
    pub(crate) fn end_round(&self) {
        for name in self.reasons_before.keys() {
            if !self.reasons.contains_key(name) {
                info!(
                    rule = name,
                    "the kernel can forward connections of the rule"
                );
            }
        }
    }

    /// Returns the reasons of rules that the proxy serves.
    pub(crate) fn list_reasons(&self) -> &BTreeMap<String, String> {
        &self.reasons
    }

    /// Finds a member whose answers come by an interface without the program, which does not see the answers there.
    fn find_refused_interface(&mut self, group: &Group, interfaces: &Interfaces) -> Option<String> {
        if !interfaces.has_refused() {
            return None;
        }
        group.members().iter().find_map(|member| {
            let interface = self.find_way(find_forwardable(&member.address)?).interface?;
            let name = interfaces.find_refused(interface)?;
            Some(format!(
                "the kernel refuses the program at the interface {name}, by which answers of the member {} come. Remove \
                 other filters of tc there",
                member.name
            ))
        })
    }

    fn find_way(&mut self, member: SocketAddr) -> Way {
        let way = self.ways.entry(member.ip());
        *way.or_insert_with(|| Way::find(member))
    }

    /// Finds a member that cannot get packets of the rule's clients unchanged.
    fn find_direct_obstacle(&mut self, rule: &PlannedRule, group: &Group) -> Option<String> {
        for member in group.members() {
            let Some(at) = find_forwardable(&member.address) else {
                continue;
            };
            let name = &member.name;
            if let Some(listener) = find_other_port(rule, at.port()) {
                return Some(format!(
                    "direct answers need the same port at the rule and at its members: the rule listens at \
                     {listener}, and the member {name} has the port {}",
                    at.port()
                ));
            }
            let way = self.find_way(at);
            if let Some(router) = way
                .router
                .filter(|_| rule.return_path == ReturnPath::Direct)
            {
                return Some(format!(
                    "return_path = \"direct\" needs members in a network of this machine: the router {router} is on the \
                     way to the member {name}. Set return_path = \"tunnel\""
                ));
            }
            let is_source = |listener: &&SocketAddr| Some(listener.ip()) == way.source;
            if let Some(listener) = rule.listeners.iter().find(is_source) {
                return Some(format!(
                    "direct answers need an address that is only the rule's: this machine connects to the member \
                     {name} from {}, which the member drops, as the member has the address, too. Give the rule another \
                     address",
                    listener.ip()
                ));
            }
        }
        None
    }
}

/// Returns an address of a rule that has another port than this one.
fn find_other_port(rule: &PlannedRule, port: u16) -> Option<SocketAddr> {
    let mut listeners = rule.listeners.iter();
    listeners.find(|listener| listener.port() != port).copied()
}
