//! Rules whose connections the kernel cannot forward now, with the reasons: the proxy serves these rules.

use std::collections::{BTreeMap, HashMap};
use std::mem;
use std::net::{IpAddr, SocketAddr};

use evenkeel_config::ReturnPath;
use evenkeel_core::group::Group;
use evenkeel_kernel::netlink::{Route, find_route};
use tracing::{info, warn};

use crate::interfaces::{Interfaces, name_interface};
use crate::nat::Nat;
use crate::plan::{PlannedRule, UdpTerms};
use crate::terms::{MemberTerms, find_forwardable};

/// Number of the loopback interface, in all network namespaces: the way to members on this machine. The program finds no
/// route to these, and leaves their connections to the proxy one by one.
const LOOPBACK: u32 = 1;

/// Reasons of rules, as found in the last round.
#[derive(Debug, Default)]
pub(crate) struct Obstacles {
    reasons: BTreeMap<String, String>,
    reasons_before: BTreeMap<String, String>,
    /// Route to each member, as of the last look at the routes.
    routes: HashMap<IpAddr, Route>,
}

impl Obstacles {
    /// Begins a round, which looks at routes anew if `is_due`.
    pub(crate) fn begin_round(&mut self, is_due: bool) {
        self.reasons_before = mem::take(&mut self.reasons);
        if is_due {
            self.routes.clear();
        }
    }

    /// Returns true if the kernel can forward connections of a rule to the members of its group now.
    pub(crate) fn allow(
        &mut self,
        rule: &PlannedRule,
        (group, members): (&Group, &[MemberTerms]),
        (nat, interfaces): (&Nat, &Interfaces),
    ) -> bool {
        let reason = match rule.return_path {
            ReturnPath::Route => None,
            ReturnPath::Nat => nat.obstacle.clone(),
            ReturnPath::Direct | ReturnPath::Tunnel => self.find_direct_obstacle(rule, group),
        };
        let reason =
            reason.or_else(|| self.find_return_obstacle(rule, (group, members), interfaces));
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

    /// Returns the route to a member. Without one no connection goes to the member, and the program says so of each.
    fn find_route(&mut self, member: IpAddr) -> Route {
        let find = || find_route(member).unwrap_or_default();
        *self.routes.entry(member).or_insert_with(find)
    }

    /// Finds a member that gets connections now, and whose answers come by an interface without the program: nobody would
    /// put the rule's address into the answers. The strategy would give connections to the member, so the proxy serves the
    /// rule until the member gets none.
    fn find_return_obstacle(
        &mut self,
        rule: &PlannedRule,
        (group, members): (&Group, &[MemberTerms]),
        interfaces: &Interfaces,
    ) -> Option<String> {
        if !needs_answers(rule) {
            return None;
        }
        let serving = members.iter().filter(|member| member.limit > 0);
        for member in serving {
            let interface = self.find_route(member.address.ip()).interface;
            let has_program = |number: &u32| *number == LOOPBACK || interfaces.contains(*number);
            if let Some(interface) = interface.filter(|number| !has_program(number)) {
                let known = group.members().get(member.index);
                let known = known.map_or("?", |member| &*member.name);
                return Some(match interfaces.find_refused(interface) {
                    Some(name) => format!(
                        "the kernel refuses the program at the interface {name}, by which answers of the member {known} \
                         come. Remove other filters of tc there"
                    ),
                    None => format!(
                        "the member {known} is behind the interface {}, where the kernel does not forward: only Ethernet \
                         interfaces that are up have the program",
                        name_interface(interface)
                    ),
                });
            }
        }
        None
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
            let route = self.find_route(at.ip());
            if let Some(router) = route
                .router
                .filter(|_| rule.return_path == ReturnPath::Direct)
            {
                let others = match rule.udp {
                    Some(_) => "\"route\" or \"nat\"",
                    None => "\"tunnel\"",
                };
                return Some(format!(
                    "return_path = \"direct\" needs members in a network of this machine: the router {router} is on the \
                     way to the member {name}. Set return_path = {others}"
                ));
            }
            let is_source = |listener: &&SocketAddr| Some(listener.ip()) == route.source;
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

/// Returns true if members' answers to clients of a rule must pass the program.
fn needs_answers(rule: &PlannedRule) -> bool {
    let passes = matches!(rule.return_path, ReturnPath::Route | ReturnPath::Nat);
    let are_messages = |udp: UdpTerms| udp.is_single && !udp.expects_answer;
    passes && !rule.udp.is_some_and(are_messages)
}

#[cfg(test)]
mod tests;
