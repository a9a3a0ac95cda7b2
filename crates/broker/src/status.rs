//! Status of the broker and its agents, for the admin API.

use std::net::SocketAddr;

use evenkeel_core::time::Instant;
use evenkeel_manager::text;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use evenkeel_wire::reporting::message::ServerState;
use evenkeel_wire::reporting::server::{AgentView, Broker};

/// Status of the broker.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct BrokerStatus {
    /// Addresses where the broker listens.
    pub listen: Vec<SocketAddr>,
    /// Agents that report.
    pub agents: usize,
    /// Agents that have signed off and are remembered.
    pub stopped: usize,
    /// Datagrams that came, by what became of them.
    pub datagrams: Vec<DatagramCount>,
    /// Messages that were sent.
    pub sent: u64,
    /// Number of these messages that the system did not take.
    pub unsent: u64,
    /// Messages of agents that never came.
    pub lost: u64,
    /// Registrations that took the place of a live agent of the same name elsewhere.
    pub displaced: u64,
    /// Agents that were forgotten because they were silent.
    pub forgotten: u64,
    /// The smallest receive buffer of a socket, in bytes.
    pub receive_buffer: usize,
}

/// Datagrams of one kind.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct DatagramCount {
    /// Result of the datagrams.
    pub result: String,
    /// Number of datagrams with this result.
    pub count: u64,
}

impl BrokerStatus {
    pub(crate) fn new(
        broker: &Broker,
        listen: Vec<SocketAddr>,
        receive_buffer: usize,
        unsent: u64,
    ) -> Self {
        let counters = broker.counters();
        let stopped = broker.list_agents().filter(|agent| agent.stopped).count();
        let datagrams = counters
            .received_by_outcome()
            .map(|(outcome, count)| DatagramCount {
                result: outcome.name().into(),
                count,
            });
        BrokerStatus {
            listen,
            agents: broker.list_agents().count() - stopped,
            stopped,
            datagrams: datagrams.collect(),
            sent: counters.sent,
            unsent,
            lost: counters.lost,
            displaced: counters.displaced,
            forgotten: counters.forgotten,
            receive_buffer,
        }
    }
}

/// Status of an agent.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct AgentStatus {
    /// Location to which the loads belong.
    pub location: String,
    /// Tells the agents of a location apart.
    pub name: String,
    /// Address that the agent's datagrams come from.
    pub address: SocketAddr,
    /// `registered`, or `stopped`.
    pub state: String,
    /// The number of its registration, in hexadecimal digits.
    pub identifier: String,
    /// Id of the key that it used last.
    pub key: u16,
    /// Time since the agent registered, in seconds.
    pub registered_seconds: f64,
    /// Time since the agent's last message came, in seconds.
    pub heard_seconds: f64,
    /// Time since the loads were measured that the agent reported last, in seconds; `null` if it has reported
    /// none.
    pub measured_seconds: Option<f64>,
    /// The sequence number of its last message.
    pub sequence: u64,
    /// Messages of it that never came.
    pub lost: u64,
    /// True if the agent has confirmed what it was told last: interval, alerts.
    pub confirmed: bool,
    /// True if some member is at the agent's location.
    pub location_known: bool,
    /// Servers of the agent.
    pub servers: Vec<ServerStatus>,
}

/// A server of an agent.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct ServerStatus {
    /// The group that it was registered for.
    pub group: String,
    /// Host and port as they were registered; without a host it is the agent's address.
    pub address: String,
    /// Names of the members that it is: none, if there is no such group or member.
    pub members: Vec<String>,
    /// `up`, `drain` or `down`, as the agent says.
    pub state: String,
    /// True if the server should send its clients back.
    pub alert: bool,
}

impl AgentStatus {
    pub(crate) fn new(agent: &AgentView<'_>, now: Instant) -> Self {
        let age = |at| now.since(at).as_secs_f64();
        let servers = agent.list_servers().map(|view| ServerStatus {
            group: view.server.group.clone(),
            address: if view.server.host.contains(':') {
                format!("[{}]:{}", view.server.host, view.server.port)
            } else {
                format!("{}:{}", view.server.host, view.server.port)
            },
            members: view
                .members
                .iter()
                .map(|m| m.shown_name().to_string())
                .collect(),
            state: match view.state {
                ServerState::Up => "up".into(),
                ServerState::Drain => "drain".into(),
                ServerState::Down => "down".into(),
            },
            alert: view.alert,
        });
        AgentStatus {
            location: agent.registration.location().into(),
            name: agent.registration.agent().into(),
            address: agent.address,
            state: if agent.stopped {
                "stopped"
            } else {
                "registered"
            }
            .into(),
            identifier: format!("{:016x}", agent.identifier),
            key: agent.key,
            registered_seconds: age(agent.registered_at),
            heard_seconds: age(agent.heard_at),
            measured_seconds: agent.measured_at.map(age),
            sequence: agent.sequence,
            lost: agent.lost,
            confirmed: agent.confirmed,
            location_known: agent.location_known,
            servers: servers.collect(),
        }
    }
}

/// The agents as a table for people.
pub fn format_table(agents: &[AgentStatus]) -> String {
    let row = |agent: &AgentStatus| {
        let unless = |is: bool, word| if is { "" } else { word };
        let known = unless(agent.location_known, " (no member)");
        let confirmed = unless(agent.confirmed, " (unconfirmed)");
        let servers: Vec<_> = agent.servers.iter().map(server_words).collect();
        vec![
            format!("{}{known}", agent.location),
            agent.name.clone(),
            agent.address.to_string(),
            format!("{}{confirmed}", agent.state),
            format!("{:.1}s", agent.heard_seconds),
            agent.sequence.to_string(),
            agent.lost.to_string(),
            servers.join(", "),
        ]
    };
    let names = [
        "LOCATION",
        "AGENT",
        "ADDRESS",
        "STATE",
        ">AGE",
        ">SEQUENCE",
        ">LOST",
        "SERVERS",
    ];
    text::format_table(&names, agents.iter().map(row))
}

/// `group address`, and what is special about it.
fn server_words(server: &ServerStatus) -> String {
    let mut words = format!("{} {}", server.group, server.address);
    let special = [
        (server.members.is_empty(), "no member"),
        (server.state != "up", &server.state),
        (server.alert, "ALERT"),
    ];
    for (_, word) in special.into_iter().filter(|(is, _)| *is) {
        words.push_str(&format!(" ({word})"));
    }
    words
}
