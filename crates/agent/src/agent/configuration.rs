//! A configuration: what of it can fail is done before any of it counts, and what it does not change
//! goes on as it was.

use evenkeel_config::agent::AgentConfig;
use evenkeel_core::time::Instant;

use super::registrations::{locations, make_plans};
use super::{Agent, Error, ManagedServer, Watched};
use crate::agent_check::{Bound, Subject, Weight};
use crate::hook::Hook;
use crate::host::{Files, HostLoad, Monitor};
use crate::link::{Link, Plan};
use crate::owners::Owners;
use crate::pages::Pages;
use crate::server::Server;
use crate::state::State;

/// A configuration that can be taken: everything that could fail has been done.
#[derive(Debug)]
pub(super) struct Prepared {
    pub(super) config: AgentConfig,
    plans: Vec<Plan>,
    bound: Bound,
    /// Owners whose pages are read.
    owners: Owners,
    /// Owners whose pages count, for each server.
    of_servers: Vec<Owners>,
}

impl Agent {
    /// Does everything about a configuration that can fail.
    pub(super) async fn prepare(&self, config: AgentConfig) -> Result<Prepared, Error> {
        let plans = make_plans(&config)?;
        let default = Owners::of_agent(&config).map_err(Error::Owners)?;
        let servers = config.servers.iter();
        let of_servers = servers.map(|server| Owners::of_server(server, &default));
        let of_servers = of_servers.collect::<Result<Vec<_>, _>>();
        let of_servers = of_servers.map_err(Error::Owners)?;
        let owners = of_servers.iter().fold(default, Owners::merged_with);
        let named = config.agent_check.listen.iter();
        let named = named.map(|address| (*address, Subject::Named));
        let own = config.servers.iter().flat_map(|server| {
            let subject = Subject::Server(server.name.clone());
            let addresses = server.agent_check.iter();
            addresses.map(move |address| (*address, subject.clone()))
        });
        let wanted = named.chain(own).collect();
        let bound = self.responder.bind(wanted).await.map_err(Error::Listen)?;
        Ok(Prepared {
            config,
            plans,
            bound,
            owners,
            of_servers,
        })
    }

    /// Goes on with a configuration. What is not changed goes on as it was.
    pub(super) fn take(&mut self, prepared: Prepared) {
        let now = self.clock.now();
        let Prepared {
            config,
            plans,
            bound,
            owners,
            of_servers,
        } = prepared;
        let is_same_folder = config.arm_dir == self.config.arm_dir;
        if !is_same_folder {
            self.pages = Pages::new(config.arm_dir.clone(), owners.clone());
        }
        if config.state_file != self.config.state_file {
            self.keep(now);
            self.state = State::open(config.state_file.clone());
        }
        self.take_locations(&config);
        self.take_servers(&config, of_servers);
        if is_same_folder {
            // Alerts on pages that are closed by it have been taken back.
            self.pages.set_owners(owners);
        }
        self.take_plans(plans, now);
        self.responder.serve_bound(bound);
        self.config = config;
        self.publish_lines();
    }

    fn take_locations(&mut self, config: &AgentConfig) {
        let mut before = std::mem::take(&mut self.places);
        for (name, settings) in locations(config) {
            let known = before
                .iter()
                .position(|place| place.name == name && *place.monitor.settings() == settings);
            self.places.push(match known {
                Some(index) => before.swap_remove(index),
                None => Watched {
                    monitor: Monitor::new(Files::new("/"), settings),
                    load: HostLoad::default(),
                    name,
                },
            });
        }
    }

    fn take_servers(&mut self, config: &AgentConfig, owners: Vec<Owners>) {
        let mut before = std::mem::take(&mut self.servers);
        for (wanted, owners) in config.servers.iter().zip(owners) {
            let known = before
                .iter()
                .position(|known| known.server.config.name == wanted.name);
            self.servers.push(match known {
                Some(index) => {
                    let mut known = before.swap_remove(index);
                    let server = &known.server;
                    let applications = &server.config.applications;
                    let is_same = (applications, &server.owners) == (&wanted.applications, &owners);
                    if !is_same && known.alert.take().is_some() {
                        self.pages.set_alert(applications, &server.owners, None);
                    }
                    known.server.reconfigure(wanted.clone(), owners);
                    known
                }
                None => ManagedServer {
                    server: Server::new(wanted.clone(), owners, self.state.learned(&wanted.name)),
                    weight: Weight::default(),
                    hook: Hook::default(),
                    alert: None,
                },
            });
        }
        // Nobody would lift their alerts any more.
        for mut gone in before {
            if gone.alert.take().is_some() {
                let server = &gone.server;
                self.pages
                    .set_alert(&server.config.applications, &server.owners, None);
                self.gone.push(gone);
            }
        }
    }

    fn take_plans(&mut self, plans: Vec<Plan>, now: Instant) {
        let mut before = std::mem::take(&mut self.links);
        for plan in plans {
            let known = before
                .iter()
                .position(|link| *link.address() == plan.address);
            let link = match known {
                Some(index) => {
                    let mut link = before.swap_remove(index);
                    for session in link.replan(plan, now, &mut self.rng) {
                        link.sign_off_session(session, now);
                    }
                    link
                }
                None => {
                    self.next_link += 1;
                    let incoming = self.incoming.clone();
                    Link::new(plan, self.next_link, incoming, now, &mut self.rng)
                }
            };
            self.links.push(link);
        }
        // They end when their brokers have acknowledged it.
        for mut link in before {
            link.stop(now);
            self.links.push(link);
        }
    }
}
