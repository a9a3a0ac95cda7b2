//! The agent itself: measures at each tick, reports, and passes alerts on.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use arm::page::{self, Lease};
use evenkeel_config::agent::{self as config, AgentConfig};
use evenkeel_config::watch::{Cause, Reloads};
use evenkeel_core::load::LoadId;
use evenkeel_core::time::Instant;
use evenkeel_net::Clock;
use evenkeel_wire::reporting::message::ServerState;
use tokio::sync::{mpsc, watch};

use crate::agent_check::{Lines, Responder, Subject, Weight, make_answer};
use crate::figures::Figures;
use crate::hook::Hook;
use crate::host::{HostLoad, Monitor};
use crate::link::{Incoming, Link};
use crate::location::{Part, combine, loads};
use crate::owners::Owners;
use crate::pages::Pages;
use crate::server::Server;
use crate::state::State;

mod configuration;
mod error;
mod registrations;

pub use error::Error;

use registrations::default_location;

/// Datagrams that wait to be looked at.
const QUEUE: usize = 64;

/// Time for which the agent, when it ends, waits for brokers to acknowledge its end.
const GOODBYE: Duration = Duration::from_secs(2);

/// Interval at which the agent, when it ends, checks whether a command is still running.
const HOOK: Duration = Duration::from_millis(20);

/// Interval at which the learnt state is written to the state file.
const KEEP: Duration = Duration::from_secs(60);

/// Shortest interval at which a broker can make the agent measure.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(50);

/// A running agent.
#[derive(Debug)]
pub struct Agent {
    clock: Clock,
    rng: fastrand::Rng,
    config: AgentConfig,
    pages: Pages,
    places: Vec<Watched>,
    servers: Vec<ManagedServer>,
    /// Servers that are no longer in the configuration, while their commands are told that
    /// there is no alert any more.
    gone: Vec<ManagedServer>,
    state: State,
    links: Vec<Link>,
    next_link: u64,
    incoming: mpsc::Sender<(u64, Incoming)>,
    responder: Responder,
    lines: watch::Sender<Lines>,
    measured_at: Instant,
    /// Time of that measurement on the clock of pages.
    looked_at: u64,
    kept_at: Instant,
}

/// A location and its host load.
#[derive(Debug)]
pub struct Watched {
    /// Name of the location.
    pub name: String,
    /// Load of the location's host.
    pub load: HostLoad,
    monitor: Monitor,
}

/// A server with what the agent does about it.
#[derive(Debug)]
pub struct ManagedServer {
    /// The server.
    pub server: Server,
    weight: Weight,
    hook: Hook,
    /// End of the server's alert, on both clocks.
    alert: Option<(Instant, Lease)>,
}

impl Agent {
    /// An agent with a configuration; what comes in for it goes to the receiver.
    ///
    /// # Errors
    ///
    /// The configuration asks for something that cannot be done on this machine.
    pub async fn start(
        config: AgentConfig,
    ) -> Result<(Self, mpsc::Receiver<(u64, Incoming)>), Error> {
        let clock = Clock::start();
        let now = clock.now();
        let (incoming, receiver) = mpsc::channel(QUEUE);
        let (lines, read_lines) = watch::channel(Lines::default());
        let mut agent = Agent {
            clock,
            rng: fastrand::Rng::new(),
            pages: Pages::new(config.arm_dir.clone(), Owners::default()),
            state: State::open(config.state_file.clone()),
            config: AgentConfig::default(),
            places: Vec::new(),
            servers: Vec::new(),
            gone: Vec::new(),
            links: Vec::new(),
            next_link: 0,
            incoming,
            responder: Responder::new(read_lines),
            lines,
            measured_at: now,
            looked_at: page::monotonic_nanos(),
            kept_at: now,
        };
        let prepared = agent.prepare(config).await?;
        agent.take(prepared);
        agent.begin();
        Ok((agent, receiver))
    }

    /// Looks at everything once, so that there is something to compare with.
    fn begin(&mut self) {
        self.look();
        for beside in &self.servers {
            beside.server.check_port();
        }
    }

    /// Looks at everything; answers how long ago it did so before.
    fn look(&mut self) -> Duration {
        self.measured_at = self.clock.now();
        let now = page::monotonic_nanos();
        let length = Duration::from_nanos(now.saturating_sub(self.looked_at));
        self.looked_at = now;
        self.pages.sample_pages(now);
        for place in &mut self.places {
            // The kernel's counters stand still when this clock does.
            let load = place
                .monitor
                .measure_loads(Duration::from_nanos(now), &place.name);
            place.load = load;
        }
        length
    }

    /// Ends a measurement interval.
    pub fn end_interval(&mut self) {
        let length = self.look();
        let now = self.measured_at;
        for beside in &mut self.servers {
            let server = &mut beside.server;
            let location = server.config.location.clone();
            let location = location.unwrap_or_else(|| default_location(&self.config));
            let place = self.places.iter().find(|place| place.name == location);
            server.measure_interval(&self.pages, length, place.and_then(|place| place.load.cpus));
            server.check_port();
            let load = place.and_then(|place| {
                let host = &place.load.loads;
                let wanted = self.config.agent_check.loads.iter();
                let known = wanted.filter_map(|id| load_of(*id, server.figures.as_ref(), host));
                known.reduce(f64::max)
            });
            beside
                .weight
                .follow_load(load, length, &self.config.agent_check);
        }
        self.publish_lines();
        if now.since(self.kept_at) >= KEEP {
            self.keep(now);
        }
    }

    /// Writes what was learned.
    fn keep(&mut self, now: Instant) {
        self.kept_at = now;
        let servers = self.servers.iter().map(|beside| &beside.server);
        let learned = servers.map(|server| (server.config.name.as_str(), &server.learner));
        self.state.keep_learned(learned);
    }

    fn publish_lines(&self) {
        let settings = &self.config.agent_check;
        let line = |beside: &ManagedServer| {
            let server = &beside.server;
            let line = make_answer(server.condition, beside.weight, settings);
            (server.config.name.clone(), line.to_string())
        };
        let lines: HashMap<_, _> = self.servers.iter().map(line).collect();
        self.lines.send_replace(Arc::new(lines));
    }

    /// Gives the last measurement to the brokers.
    fn report(&mut self) {
        let now = self.clock.now();
        let states: Vec<ServerState> = self
            .servers
            .iter()
            .map(|beside| beside.server.condition.server_state())
            .collect();
        let reports: HashMap<&str, _> = self
            .places
            .iter()
            .map(|place| (place.name.as_str(), self.loads_at(place)))
            .collect();
        for link in &mut self.links {
            let loads = |location: &str| reports.get(location).cloned().unwrap_or_default();
            link.take_measurement(loads, &states, now);
        }
    }

    /// The loads of a location as they are reported.
    pub fn loads_at(&self, place: &Watched) -> Vec<(LoadId, evenkeel_core::load::LoadValue)> {
        let parts = self.servers.iter().map(|beside| &beside.server);
        let parts = parts.filter(|server| self.location_of(server) == place.name);
        // One that does not serve is not idle.
        let parts = parts.filter(|server| server.condition.server_state() != ServerState::Down);
        let parts: Vec<_> = parts
            .filter_map(|server| {
                let figures = server.figures.as_ref()?;
                let own_capacity = server.config.capacity.is_some();
                Some(Part {
                    figures,
                    own_capacity,
                })
            })
            .collect();
        loads(&place.load.loads, combine(&parts).as_ref())
    }

    /// The location of a server.
    pub fn location_of(&self, server: &Server) -> String {
        let location = server.config.location.clone();
        location.unwrap_or_else(|| default_location(&self.config))
    }

    /// Returns the locations of the agent.
    pub fn watched_locations(&self) -> &[Watched] {
        &self.places
    }

    /// Returns the servers of the agent.
    pub fn servers(&self) -> impl Iterator<Item = &Server> {
        self.servers.iter().map(|beside| &beside.server)
    }

    /// Returns the pages of the agent.
    pub fn pages(&self) -> &Pages {
        &self.pages
    }

    /// Returns the answer to agent-check for a server.
    pub fn line_of(&self, server: &str) -> Option<String> {
        self.lines.borrow().get(server).cloned()
    }

    /// Returns the configuration of the agent.
    pub fn config(&self) -> &AgentConfig {
        &self.config
    }

    /// Passes alerts of the brokers on to the servers; answers when the next alert ends.
    fn pass_alerts_on(&mut self) -> Option<Instant> {
        let now = self.clock.now();
        let mut alerts: Vec<Option<Instant>> = vec![None; self.servers.len()];
        for (server, until) in self.links.iter().flat_map(|link| link.active_alerts(now)) {
            if let Some(alert) = alerts.get_mut(server) {
                *alert = (*alert).max(Some(until));
            }
        }
        for (beside, until) in self.servers.iter_mut().zip(&alerts) {
            let config = &beside.server.config;
            let was = beside.alert.is_some();
            beside.alert = until.map(|until| match beside.alert {
                // Not worked out anew, or it would be another one each time.
                Some((same, lease)) if same == until => (same, lease),
                _ => {
                    let length = until.since(now).min(page::LEASE_MAX);
                    (until, Lease::new(page::monotonic_nanos(), length))
                }
            });
            let lease = beside.alert.map(|(_, lease)| lease);
            let shed = self
                .pages
                .set_alert(&config.applications, &beside.server.owners, lease);
            let name = &config.name;
            match (was, lease.is_some()) {
                (false, true) if shed => {
                    tracing::info!(server = name, "load alert: the server sheds its clients")
                }
                (false, true) => tracing::info!(
                    server = name,
                    "load alert: no ARM page of the server \
                    takes the alert"
                ),
                (true, false) => tracing::info!(server = name, "the load alert has ended"),
                _ => {}
            }
            beside
                .hook
                .tell_alert(&config.on_alert, name, lease.is_some());
        }
        tell_all_is_over(&mut self.gone);
        alerts.into_iter().flatten().min()
    }

    /// Says on standard output what listens where: a line each, for people and scripts.
    fn announce(&self) -> String {
        let mut text = String::new();
        for (subject, address) in self.responder.addresses() {
            let name = match subject {
                Subject::Named => "",
                Subject::Server(ref name) => &format!(" {name}"),
            };
            // Writing to a string cannot fail.
            let _ = writeln!(text, "listening: agent-check{name} on {address}");
        }
        text.push_str("ready\n");
        text
    }

    /// Time between two measurements.
    fn interval(&self) -> Duration {
        let asked = self.links.iter().filter_map(Link::interval).min();
        asked.unwrap_or(self.config.interval).max(SHORTEST_INTERVAL)
    }

    async fn reload(&mut self, file: &Path, cause: Cause) {
        let loaded = config::load_agent_config(file).map_err(Error::from);
        let prepared = match loaded {
            Ok(config) => self.prepare(config).await,
            Err(error) => Err(error),
        };
        match prepared {
            Ok(prepared) => {
                warn(&prepared.config);
                self.take(prepared);
                tracing::info!(?cause, "the configuration is in effect");
            }
            Err(error) => {
                tracing::error!(
                    ?cause,
                    "the configuration is refused, the old one stays in effect: {error}"
                );
            }
        }
    }

    /// Signs off at all brokers, and waits a little for their acknowledgements.
    async fn end(mut self, receiver: &mut mpsc::Receiver<(u64, Incoming)>) {
        self.keep(self.clock.now());
        for mut beside in std::mem::take(&mut self.servers) {
            if beside.alert.take().is_some() {
                let server = &beside.server;
                let applications = &server.config.applications;
                self.pages.set_alert(applications, &server.owners, None);
            }
            self.gone.push(beside);
        }
        let start = self.clock.now();
        for link in &mut self.links {
            link.stop(start);
        }
        loop {
            let now = self.clock.now();
            let end = start.after(GOODBYE);
            let next = self.links.iter_mut().map(|link| link.poll(now)).min();
            tell_all_is_over(&mut self.gone);
            let said = self.links.iter().all(Link::has_ended);
            let behind = self.gone.iter().find(|gone| gone.hook.is_behind());
            if said && behind.is_none() {
                return;
            }
            if now >= end {
                if !said {
                    tracing::warn!(
                        "a broker does not acknowledge the sign-off; the broker will remove this agent later"
                    );
                }
                if let Some(beside) = behind {
                    let server = &beside.server.config.name;
                    tracing::warn!(
                        server,
                        "the on_alert command is still running: on_alert is not run for the end of the alert"
                    );
                }
                return;
            }
            let mut next = next.unwrap_or(end).min(end);
            if behind.is_some() {
                next = next.min(now.after(HOOK));
            }
            let wait = next.since(now);
            if let Ok(Some((number, incoming))) = tokio::time::timeout(wait, receiver.recv()).await
            {
                self.receive(number, incoming);
            }
        }
    }

    fn receive(&mut self, number: u64, incoming: Incoming) {
        let now = self.clock.now();
        // One of a link that is gone by now is nobody's.
        if let Some(link) = self.links.iter_mut().find(|link| link.number() == number) {
            link.take_incoming(incoming, now);
        }
    }
}

/// Runs an agent with the configuration in `file` until `stop` is ready. It says to
/// `ready` what listens where when everything does.
///
/// # Errors
///
/// Why it cannot start.
///
/// # Panics
///
/// Outside a tokio runtime with I/O and time enabled.
pub async fn run(
    file: &Path,
    mut reloads: Reloads,
    stop: impl Future<Output = ()>,
    ready: impl FnOnce(String),
) -> Result<(), Error> {
    let config = config::load_agent_config(file)?;
    warn(&config);
    let (mut agent, mut receiver) = Agent::start(config).await?;
    ready(agent.announce());
    let mut stop = std::pin::pin!(stop);
    // Thousands of agents that start together shall not report together for ever.
    let first = agent.interval().mul_f64(agent.rng.f64());
    let mut tick = agent.clock.now().after(first);
    loop {
        let now = agent.clock.now();
        let mut wake = tick;
        agent.links.retain(|link| !link.has_ended());
        for link in &mut agent.links {
            wake = wake.min(link.poll(now));
        }
        if let Some(end) = agent.pass_alerts_on() {
            wake = wake.min(end);
        }
        tokio::select! {
            biased;
            () = &mut stop => break,
            () = tokio::time::sleep(wake.since(now)) => {}
            Some((number, incoming)) = receiver.recv() => agent.receive(number, incoming),
            cause = reloads.next() => agent.reload(file, cause).await,
        }
        let now = agent.clock.now();
        if now >= tick {
            agent.end_interval();
            agent.report();
            // On a grid, unless the machine was too busy for it or has slept.
            let interval = agent.interval();
            tick = tick.after(interval);
            if tick <= now {
                tick = now.after(interval);
            }
        } else {
            // A broker may want it more often from now on.
            tick = tick.min(agent.measured_at.after(agent.interval()));
        }
    }
    agent.end(&mut receiver).await;
    Ok(())
}

fn warn(config: &AgentConfig) {
    for warning in &config.warnings {
        tracing::warn!("{warning}");
    }
}

/// Tells the commands of servers that there is no alert; leaves those that still run.
fn tell_all_is_over(servers: &mut Vec<ManagedServer>) {
    servers.retain_mut(|beside| {
        let config = &beside.server.config;
        beside
            .hook
            .tell_alert(&config.on_alert, &config.name, false);
        beside.hook.is_behind() || beside.hook.is_running()
    });
}

/// A load of a server: its own where it has one, else its host's.
fn load_of(id: LoadId, figures: Option<&Figures>, host: &[(LoadId, f64)]) -> Option<f64> {
    if id == LoadId::UTILIZATION {
        return figures?.utilization;
    }
    let (_, load) = host.iter().find(|(known, _)| *known == id)?;
    Some(*load)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An agent with a server whose command writes down what it is told, slowly, and the
    /// file that it writes to.
    async fn alerted() -> (Agent, std::path::PathBuf) {
        let name = format!("evenkeel-agent-alert-{}", std::process::id());
        let file = std::env::temp_dir().join(name);
        let script = format!(
            "echo $EVENKEEL_ALERT >>{file}; until [ -e {file}.go ]; do sleep 0.01; done",
            file = file.display()
        );
        let text = format!(
            "[server.web]\ngroup = \"web\"\naddress = \"127.0.0.1:9\"\n\
             check_port = false\non_alert = [\"sh\", \"-c\", {script:?}]\n"
        );
        let config = config::parse("agent.toml", &text).unwrap();
        let (mut agent, _) = Agent::start(config).await.unwrap();
        let until = agent.clock.now().after(Duration::from_secs(60));
        let beside = &mut agent.servers[0];
        beside.alert = Some((
            until,
            Lease::new(page::monotonic_nanos(), Duration::from_secs(60)),
        ));
        let command = beside.server.config.on_alert.clone();
        beside.hook.tell_alert(&command, "web", true);
        (agent, file)
    }

    #[tokio::test]
    async fn a_server_that_is_taken_out_under_an_alert_is_told_that_it_is_over() {
        let (mut agent, file) = alerted().await;
        let prepared = agent.prepare(AgentConfig::default()).await.unwrap();
        agent.take(prepared);
        assert!(agent.servers.is_empty());
        while std::fs::read_to_string(&file).unwrap_or_default() != "on\n" {
            tokio::task::yield_now().await;
        }
        std::fs::write(file.with_extension("go"), "").unwrap();
        while !agent.gone.is_empty() {
            agent.pass_alerts_on();
            tokio::task::yield_now().await;
        }
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "on\noff\n");
        std::fs::remove_file(&file).unwrap();
        std::fs::remove_file(file.with_extension("go")).unwrap();
    }
}
