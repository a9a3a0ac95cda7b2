//! State of a broker about its agents, for the process that takes its place: the agents need not
//! notice.

use std::net::SocketAddr;
use std::time::Duration;

use evenkeel_core::member::Weight;
use evenkeel_core::time::Instant;
use serde::{Deserialize, Serialize};

use super::agent::{Agent, Out, Reported};
use super::settings::Peer;
use crate::reporting::message::{Control, Registration, Server, ServerControl, ServerState};
use crate::window::Window;

/// All that a broker knows.
#[derive(Serialize, Deserialize)]
pub struct Remembered {
    /// Proves cookies and tokens that it has given.
    pub(super) secret: [u8; 32],
    pub(super) agents: Vec<OneAgent>,
}

#[derive(Serialize, Deserialize)]
pub(super) struct OneAgent {
    pub(super) identifier: u64,
    location: String,
    name: String,
    servers: Vec<OneServer>,
    nonce: u64,
    cookie: u64,
    pub(super) socket: usize,
    address: SocketAddr,
    key: u16,
    /// The last number, those before it that have come, and how many have not.
    received: (u64, u64, u64),
    registered_at: u64,
    heard_at: u64,
    measurement: Option<(u32, u64)>,
    stopped: bool,
    /// Controls that it was sent, the first with the news, and the last one confirmed.
    sent: (u64, u64, u64),
    sent_at: u64,
    /// Instructions on how to report that the agent was told: milliseconds, intervals, seconds.
    told: (u64, u8, u64),
    location_unknown: bool,
}

#[derive(Serialize, Deserialize)]
struct OneServer {
    group: String,
    host: String,
    port: u16,
    weight: Option<f64>,
    drains: bool,
    is_down: bool,
    alert: bool,
    unknown: bool,
}

impl std::fmt::Debug for Remembered {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let agents = self.agents.len();
        f.debug_struct("Remembered")
            .field("agents", &agents)
            .finish_non_exhaustive()
    }
}

impl OneAgent {
    pub(super) fn from_agent(identifier: u64, agent: &Agent, socket: usize) -> Self {
        let (registration, out) = (&agent.registration, &agent.out);
        let servers = registration.servers().iter();
        let servers = servers.zip(&agent.servers).zip(&out.control.servers);
        OneAgent {
            identifier,
            location: registration.location().to_owned(),
            name: registration.agent().to_owned(),
            servers: servers
                .map(|((server, reported), control)| OneServer {
                    group: server.group.clone(),
                    host: server.host.clone(),
                    port: server.port,
                    weight: server.weight.map(|weight| f64::from(weight.get())),
                    drains: reported.state == ServerState::Drain,
                    is_down: reported.state == ServerState::Down,
                    alert: control.alert,
                    unknown: control.unknown,
                })
                .collect(),
            nonce: agent.nonce,
            cookie: agent.cookie.as_nanos(),
            socket,
            address: agent.peer.address,
            key: agent.key,
            received: (
                agent.received.last,
                agent.received.seen_mask,
                agent.received.lost,
            ),
            registered_at: agent.registered_at.as_nanos(),
            heard_at: agent.heard_at.as_nanos(),
            measurement: agent
                .measurement
                .map(|(number, at)| (number, at.as_nanos())),
            stopped: agent.stopped,
            sent: (out.sent, out.news, out.confirmed),
            sent_at: out.sent_at.as_nanos(),
            told: (
                out.control.interval.as_millis() as u64,
                out.control.lease,
                out.control.silence.as_secs(),
            ),
            location_unknown: out.control.location_unknown,
        }
    }

    /// The agent, but for its token, its location and its members.
    pub(super) fn into_agent(self, socket: usize) -> Option<Agent> {
        let servers = self.servers.iter().map(|server| {
            let weight = server.weight.map(Weight::new).transpose().ok()?;
            Some(Server {
                group: server.group.clone(),
                host: server.host.clone(),
                port: server.port,
                weight,
            })
        });
        let servers = servers.collect::<Option<Vec<_>>>()?;
        let registration = Registration::new(self.location, self.name, servers).ok()?;
        let state = |server: &OneServer| match (server.is_down, server.drains) {
            (true, _) => ServerState::Down,
            (_, true) => ServerState::Drain,
            _ => ServerState::Up,
        };
        let reported = self.servers.iter().map(|server| Reported {
            state: state(server),
            ..Reported::default()
        });
        let told = self.servers.iter().map(|server| ServerControl {
            alert: server.alert,
            unknown: server.unknown,
        });
        let (sent, news, confirmed) = self.sent;
        let (last, seen, lost) = self.received;
        let (interval, lease, silence) = self.told;
        let at = Instant::from_nanos;
        Some(Agent {
            registration,
            nonce: self.nonce,
            cookie: at(self.cookie),
            peer: Peer {
                socket,
                address: self.address,
            },
            key: self.key,
            received: Window {
                last,
                seen_mask: seen,
                lost,
            },
            registered_at: at(self.registered_at),
            heard_at: at(self.heard_at),
            measurement: self.measurement.map(|(number, nanos)| (number, at(nanos))),
            stopped: self.stopped,
            location: None,
            servers: reported.collect(),
            out: Out {
                control: Control {
                    token: 0,
                    interval: Duration::from_millis(interval),
                    lease,
                    silence: Duration::from_secs(silence),
                    wants_update: false,
                    location_unknown: self.location_unknown,
                    servers: told.collect(),
                },
                sent,
                news,
                confirmed: confirmed.min(sent),
                sent_at: at(self.sent_at),
                tries: 0,
                asked: false,
            },
        })
    }
}
