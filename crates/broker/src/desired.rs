//! State that agents want of the manager: what they say of their servers, and the servers that join groups.

use std::collections::{HashMap, HashSet};

use evenkeel_core::member::{MemberId, Weight};
use evenkeel_manager::config::MemberConfig;
use evenkeel_manager::opinion::SourceReport;
use evenkeel_wire::reporting::message::ServerState;
use evenkeel_wire::reporting::server::Broker;

/// State that agents want of the manager.
#[derive(Default)]
pub(crate) struct Desired {
    pub(crate) opinions: HashMap<MemberId, SourceReport>,
    pub(crate) joined: HashMap<String, Vec<MemberConfig>>,
}

impl Desired {
    /// Reads the state from what the agents of `broker` say.
    pub(crate) fn from_broker(broker: &Broker) -> Self {
        let mut desired = Desired::default();
        let mut live: HashSet<MemberId> = HashSet::new();
        for agent in broker.list_agents().filter(|agent| !agent.stopped) {
            for server in agent.list_servers() {
                live.extend(server.members.iter().map(|member| member.id));
                let opinion = SourceReport {
                    down: server.state == ServerState::Down,
                    drain: server.state == ServerState::Drain,
                    ..SourceReport::default()
                };
                if opinion != SourceReport::default() {
                    for member in server.members {
                        let held = desired.opinions.entry(member.id).or_default();
                        held.down |= opinion.down;
                        held.drain |= opinion.drain;
                    }
                }
                // Names are for the file: whoever has a key must not make us look up any.
                let registered = server.server;
                if let Some(ip) = registered.ip_for_source(agent.address.ip()) {
                    let member = MemberConfig {
                        weight: registered.weight.unwrap_or(Weight::ONE),
                        location: Some(agent.registration.location().to_owned()),
                        ..MemberConfig::new(&ip.to_string(), registered.port)
                    };
                    let joined = desired.joined.entry(registered.group.clone());
                    joined.or_default().push(member);
                }
            }
        }
        // Who has signed off gets no clients until somebody answers for it again.
        for agent in broker.list_agents().filter(|agent| agent.stopped) {
            let members = agent.list_servers().flat_map(|server| server.members);
            for member in members.filter(|member| !live.contains(&member.id)) {
                let opinion = SourceReport {
                    drain: true,
                    note: Some("the member's agent has signed off".into()),
                    ..SourceReport::default()
                };
                desired.opinions.insert(member.id, opinion);
            }
        }
        for members in desired.joined.values_mut() {
            members.sort_by(|a, b| {
                let weight = b.weight.get().total_cmp(&a.weight.get());
                let place = (&a.host, a.port, &a.location).cmp(&(&b.host, b.port, &b.location));
                place.then(weight)
            });
            members.dedup_by(|a, b| (&a.host, a.port) == (&b.host, b.port));
        }
        desired
    }
}
