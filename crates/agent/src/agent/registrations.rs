//! Registrations at the brokers: locations, and the servers there.

use evenkeel_config::agent::{self as config, AgentConfig, HostSettings};
use evenkeel_net::key_file;
use evenkeel_wire::reporting::keys::Keys;
use evenkeel_wire::reporting::message::{self, Registration};

use super::error::Error;
use crate::link::{Plan, RegisteredLocation};

/// Makes the plan for each broker: what is to be registered there.
pub(super) fn make_plans(config: &AgentConfig) -> Result<Vec<Plan>, Error> {
    let places = registrations(config)?;
    let plan = |broker: &config::BrokerConfig| {
        let keys =
            key_file::load_parsed(&broker.key_file, Keys::parse).map_err(|error| Error::Keys {
                broker: broker.name.clone(),
                reason: error.to_string(),
            })?;
        Ok(Plan {
            broker: broker.name.clone(),
            address: broker.address.clone(),
            keys,
            registrations: places.clone(),
        })
    };
    config.brokers.iter().map(plan).collect()
}

fn registrations(config: &AgentConfig) -> Result<Vec<RegisteredLocation>, Error> {
    let agent = config.name.clone().unwrap_or_else(agent_name);
    let default = default_location(config);
    let place = |(location, _): (String, HostSettings)| {
        let (mut servers, mut indices) = (Vec::new(), Vec::new());
        for (index, server) in config.servers.iter().enumerate() {
            if *server.location.as_ref().unwrap_or(&default) != location {
                continue;
            }
            for group in &server.groups {
                servers.push(message::Server {
                    group: group.clone(),
                    host: server.address.host.clone(),
                    port: server.address.port,
                    weight: server.weight,
                });
                indices.push(index);
            }
        }
        let registration = Registration::new(location.clone(), agent.clone(), servers);
        Ok(RegisteredLocation {
            registration: registration.map_err(|error| Error::Registration {
                location,
                reason: error.to_string(),
            })?,
            servers: indices,
        })
    };
    locations(config).into_iter().map(place).collect()
}

/// All locations of a configuration, with what is measured there.
pub(super) fn locations(config: &AgentConfig) -> Vec<(String, HostSettings)> {
    let named = config.locations.iter().map(|(name, _)| name.clone());
    let of_servers = config
        .servers
        .iter()
        .filter_map(|server| server.location.clone());
    let mut names = vec![default_location(config)];
    for name in named.chain(of_servers) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let settings = |name: &str| {
        let own = config.locations.iter().find(|(known, _)| known == name);
        own.map_or_else(|| config.host.clone(), |(_, settings)| settings.clone())
    };
    names
        .into_iter()
        .map(|name| {
            let settings = settings(&name);
            (name, settings)
        })
        .collect()
}

pub(super) fn default_location(config: &AgentConfig) -> String {
    config.location.clone().unwrap_or_else(host_name)
}

/// Tells the agents of a location apart, unless the file does: the name of the machine, in the letters that
/// names have.
fn agent_name() -> String {
    let plain = |letter: char| match letter {
        'a'..='z' | 'A'..='Z' | '0'..='9' | '-' | '_' | '.' => letter,
        _ => '-',
    };
    let name: String = host_name().chars().map(plain).take(64).collect();
    if name.is_empty() {
        "agent".into()
    } else {
        name
    }
}

/// The name of the machine.
fn host_name() -> String {
    let name = rustix::system::uname();
    name.nodename().to_string_lossy().into_owned()
}
