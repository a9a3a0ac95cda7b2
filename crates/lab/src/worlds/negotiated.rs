//! Web users who negotiate for a server, use it directly for a quantum and negotiate again, in
//! virtual time, after Mohamed-Salem, Chen, Bochmann and Wong, *An Experimental Prototype for
//! Scalable Server Selection* (IPCCC 2003).
//!
//! Users are those of [SURGE](evenkeel_load::surge). A server has one place of service. An agent beside it measures the
//! same figures as the real agent (`crates/agent`, `figures.rs`) and reports them after each interval. The broker's
//! group, its strategy and its loads are the real ones; a client is counted at its server as by the negotiator.

use std::sync::Arc;
use std::time::Duration;

use evenkeel_core::group::{Group, GroupSettings, Request};
use evenkeel_core::load::{LoadId, LoadValue};
use evenkeel_core::strategy::Values;
use evenkeel_manager::groups::Groups;

use evenkeel_load::surge::{Pace, References, Site, Step, User};
use evenkeel_sim::config::{equal_members, find_group, make_groups};
use evenkeel_sim::engine::{self, Engine, World, duration_nanos};
use evenkeel_sim::server::{Discipline, Server};

/// Share of the service time that goes with the length of the document, as in the Apache of the
/// end-to-end test (`e2e/apache/mod_capacity.c`).
const LENGTH_SHARE: f64 = 0.25;

/// Time for which an agent's knowledge of response and think times outlives its interval, in
/// nanoseconds.
const CARRY: u64 = 60_000_000_000;

/// Time within which all users have begun, in seconds.
const ARRIVAL: f64 = 10.0;

/// Parameters of the world.
#[derive(Clone, Debug)]
pub struct Negotiated {
    /// Mean service time of each server.
    pub service_times: Vec<Duration>,
    /// Order in which a server works.
    pub discipline: Discipline,
    /// Number of users.
    pub users: usize,
    /// Pace at which users spend their time.
    pub pace: Pace,
    /// True if each user has a client address of its own; otherwise all have the same address.
    /// Agents measure think times by address.
    pub own_addresses: bool,
    /// Time for which a server may be used.
    pub quantum: Duration,
    /// Time between two reports of an agent.
    pub interval: Duration,
    /// True if agents report all at once, and not each at times of its own.
    pub in_step: bool,
    /// Time over which agents average the response time that they report; zero is the interval only, as the
    /// real one does.
    pub averaged: Duration,
    /// Time over which agents average the think times that they report, by their number; zero is the interval
    /// only, as the real one does.
    pub think_averaged: Duration,
    /// Strategy that chooses the server.
    pub strategy: Values,
    /// Time at the start that is not measured.
    pub warm_up: Duration,
    /// Measured time after the warm-up.
    pub length: Duration,
    /// Utilisations are taken over this time each.
    pub window: Duration,
}

/// Figures of a server.
#[derive(Clone, Debug, Default)]
pub struct Figures {
    /// Requests that it has served.
    pub requests: u64,
    /// Sum of their response times, in seconds.
    pub response: f64,
    /// Share of the time in which it was busy, for each window.
    pub utilization: Vec<f64>,
}

/// Results of the run.
#[derive(Clone, Debug, Default)]
pub struct Played {
    /// Figures by server.
    pub servers: Vec<Figures>,
    /// Clients that were sent to a server.
    pub negotiations: u64,
    /// Mean think time that was reported, in seconds.
    pub think: f64,
}

impl Figures {
    /// In seconds.
    pub fn mean_response(&self) -> f64 {
        self.response / self.requests.max(1) as f64
    }

    /// Over all windows.
    pub fn mean_utilization(&self) -> f64 {
        self.utilization.iter().sum::<f64>() / self.utilization.len().max(1) as f64
    }
}

impl Played {
    /// Requests that were served.
    pub fn requests(&self) -> u64 {
        self.servers.iter().map(|server| server.requests).sum()
    }

    /// The share of them that a server had.
    pub fn server_share(&self, server: usize) -> f64 {
        let own = self.servers.get(server).map_or(0, |server| server.requests);
        own as f64 / self.requests().max(1) as f64
    }

    /// Mean response time of all requests, in seconds.
    pub fn mean_response(&self) -> f64 {
        let sum: f64 = self.servers.iter().map(|server| server.response).sum();
        sum / self.requests().max(1) as f64
    }
}

#[derive(Clone, Copy, Debug)]
enum Happening {
    /// A user has waited.
    Awake(usize),
    /// A server may be done with a request.
    Done {
        server: usize,
        version: u32,
    },
    /// An agent reports.
    Report(usize),
    Round,
    /// A window ends.
    Window,
}

/// A user, and the server that it may use.
struct Visitor {
    user: User,
    server: usize,
    until: u64,
    /// Time at which the user asked last.
    asked: u64,
}

/// Observations of an agent in its interval.
#[derive(Default)]
struct Agent {
    starts: u32,
    completions: u32,
    response: f64,
    thinks: u32,
    think: f64,
    /// [`Server::busy`] at its begin.
    busy: f64,
    /// Time at which each client address had its last answer, in nanoseconds; 0 is not known.
    answered: Vec<u64>,
    /// Response and think time of the last interval that had one, and when that was.
    last_response: Option<(f64, u64)>,
    last_think: Option<(f64, u64)>,
    /// Number and sum of think times, of which [`Negotiated::think_averaged`] forgets.
    all_thinks: (f64, f64),
    /// Time since the last answer while requests are there, in seconds.
    stuck: f64,
    /// Reported response time, averaged.
    mean: Option<f64>,
}

struct Running<'a> {
    play: &'a Negotiated,
    site: &'a Site,
    groups: Groups,
    group: Arc<Group>,
    engine: Engine<Happening>,
    rng: fastrand::Rng,
    references: References,
    mean_length: f64,
    visitors: Vec<Visitor>,
    servers: Vec<Server>,
    agents: Vec<Agent>,
    /// [`Server::busy`] at the begin of the window.
    busy: Vec<f64>,
    played: Played,
    thinks: (f64, u64),
}

/// Plays it on a site, with `seed`. `None` if there is no server or no user.
pub fn play_negotiated(play: &Negotiated, site: &Site, seed: u64) -> Option<Played> {
    let mut running = Running::new(play, site, seed)?;
    engine::run(&mut running);
    running.played.think = running.thinks.0 / running.thinks.1.max(1) as f64;
    Some(running.played)
}

impl World for Running<'_> {
    type Event = Happening;

    fn engine(&mut self) -> &mut Engine<Happening> {
        &mut self.engine
    }

    fn happen(&mut self, event: Happening) -> bool {
        match event {
            Happening::Awake(user) => self.awake(user),
            Happening::Done { server, version } => self.done(server, version),
            Happening::Report(server) => self.report(server),
            Happening::Round => {
                self.groups.run_round(self.engine.current_time());
                self.engine.schedule_after(1e9, Happening::Round);
            }
            Happening::Window => self.window(),
        }
        let end = duration_nanos(self.play.warm_up) + duration_nanos(self.play.length);
        (self.engine.elapsed_nanos() as f64) < end + 1.0
    }
}

impl<'a> Running<'a> {
    fn new(play: &'a Negotiated, site: &'a Site, seed: u64) -> Option<Self> {
        let count = play.service_times.len();
        if play.users == 0 {
            return None;
        }
        let settings = GroupSettings {
            load_id: LoadId::UTILIZATION,
            load_max_age: (play.interval * 4).max(Duration::from_secs(15)),
            slow_start: Duration::ZERO,
            ..GroupSettings::default()
        };
        let config = equal_members("www", count, settings, play.strategy.clone());
        let engine = Engine::new(1e9);
        let groups = make_groups(config, engine.current_time());
        let mut rng = fastrand::Rng::with_seed(seed);
        let addresses = if play.own_addresses { play.users } else { 1 };
        let agent = || Agent {
            answered: vec![0; addresses],
            ..Agent::default()
        };
        let visitor = || Visitor {
            user: User::new(play.pace),
            server: 0,
            until: 0,
            asked: 0,
        };
        let mut running = Running {
            play,
            site,
            group: find_group(&groups, "www").filter(|group| !group.members().is_empty())?,
            groups,
            engine,
            references: References::new(site, &mut rng),
            mean_length: site.mean_length().max(1.0),
            rng,
            visitors: std::iter::repeat_with(visitor).take(play.users).collect(),
            servers: (0..count)
                .map(|_| Server::new(play.discipline, 1, 1.0, 0.0, false))
                .collect(),
            agents: std::iter::repeat_with(agent).take(count).collect(),
            busy: vec![0.0; count],
            played: Played {
                servers: vec![Figures::default(); count],
                ..Played::default()
            },
            thinks: (0.0, 0),
        };
        for user in 0..play.users {
            let after = 1.0 + running.rng.f64() * ARRIVAL * 1e9;
            running.engine.schedule_after(after, Happening::Awake(user));
        }
        for server in 0..count {
            let phase = if play.in_step { 1.0 } else { running.rng.f64() };
            let first = 1.0 + phase * duration_nanos(play.interval);
            running
                .engine
                .schedule_after(first, Happening::Report(server));
        }
        running.engine.schedule_after(1.0, Happening::Round);
        running
            .engine
            .schedule_after(duration_nanos(play.warm_up), Happening::Window);
        Some(running)
    }

    fn is_measured(&self) -> bool {
        self.engine.elapsed_nanos() as f64 >= duration_nanos(self.play.warm_up)
    }

    fn address(&self, user: usize) -> usize {
        if self.play.own_addresses { user } else { 0 }
    }

    /// A user goes on, until it waits for something.
    fn awake(&mut self, user: usize) {
        let visitor = &mut self.visitors[user];
        let step = visitor
            .user
            .next(self.site, &mut self.references, &mut self.rng);
        match step {
            Step::Wait(seconds) => self
                .engine
                .schedule_after(seconds * 1e9, Happening::Awake(user)),
            Step::Ask { document, begins } => {
                let now = self.engine.elapsed_nanos();
                if begins || now >= self.visitors[user].until {
                    self.negotiate(user);
                }
                self.ask(user, document);
            }
        }
    }

    fn negotiate(&mut self, user: usize) {
        let request = Request::at_time(self.engine.current_time());
        let Ok(server) = self.group.choose_member(&request, &mut self.rng) else {
            return;
        };
        self.group
            .assign_client(server, self.play.quantum, self.engine.current_time());
        let visitor = &mut self.visitors[user];
        visitor.server = server;
        visitor.until = self.engine.elapsed_nanos() + duration_nanos(self.play.quantum) as u64;
        if self.is_measured() {
            self.played.negotiations += 1;
        }
    }

    fn ask(&mut self, user: usize, document: usize) {
        let (now, address) = (self.engine.elapsed_nanos(), self.address(user));
        let visitor = &mut self.visitors[user];
        visitor.asked = now;
        let server = visitor.server;
        let agent = &mut self.agents[server];
        agent.starts += 1;
        // Whoever asks first after an answer has thought.
        let answered = std::mem::take(&mut agent.answered[address]);
        if answered > 0 {
            agent.thinks += 1;
            agent.think += (now - answered) as f64 / 1e9;
        }
        let length = self.site.length(document) as f64 / self.mean_length;
        let factor = 1.0 - LENGTH_SHARE + LENGTH_SHARE * length;
        let work = duration_nanos(self.play.service_times[server]) * factor;
        self.servers[server].push(user, work, now);
        self.schedule(server);
    }

    fn schedule(&mut self, server: usize) {
        if let Some((at, version)) = self.servers[server].reschedule() {
            let after = at.saturating_sub(self.engine.elapsed_nanos()) as f64;
            self.engine
                .schedule_after(after, Happening::Done { server, version });
        }
    }

    fn done(&mut self, server: usize, version: u32) {
        let now = self.engine.elapsed_nanos();
        if self.servers[server].version() != version {
            return;
        }
        let Some(user) = self.servers[server].complete(now) else {
            return;
        };
        self.schedule(server);
        let response = (now - self.visitors[user].asked) as f64 / 1e9;
        let address = self.address(user);
        let agent = &mut self.agents[server];
        agent.completions += 1;
        agent.response += response;
        agent.answered[address] = now;
        if self.is_measured() {
            let figures = &mut self.played.servers[server];
            figures.requests += 1;
            figures.response += response;
        }
        self.awake(user);
    }

    /// The figures of an interval, as the agent has them where the service time is given.
    fn report(&mut self, index: usize) {
        let (now, interval) = (
            self.engine.elapsed_nanos(),
            self.play.interval.as_secs_f64(),
        );
        let service = self.play.service_times[index].as_secs_f64();
        let server = &mut self.servers[index];
        let (busy, in_flight) = (server.busy(now), server.in_flight());
        let agent = &mut self.agents[index];
        let busy = (busy - std::mem::replace(&mut agent.busy, busy)) / 1e9;
        let mean = |sum: f64, count: u32| (count > 0).then(|| sum / f64::from(count));
        let carried = |last: &mut Option<(f64, u64)>, new: Option<f64>| {
            *last = new
                .map(|new| (new, now))
                .or(last.filter(|(_, at)| now - at <= CARRY));
            last.map(|(value, _)| value)
        };
        let response = mean(agent.response, agent.completions);
        agent.stuck = match agent.completions > 0 || in_flight == 0 {
            true => 0.0,
            false => agent.stuck + busy,
        };
        let carried_response = carried(&mut agent.last_response, response);
        let kept = match self.play.think_averaged.as_secs_f64() {
            over if over > 0.0 => libm::exp(-interval / over),
            _ => 0.0,
        };
        agent.all_thinks = (
            agent.all_thinks.0 * kept + f64::from(agent.thinks),
            agent.all_thinks.1 * kept + agent.think,
        );
        let (count, sum) = agent.all_thinks;
        let think = carried(&mut agent.last_think, (count > 0.0).then(|| sum / count));
        let response = match response {
            Some(response) => Some(response),
            None if in_flight == 0 => Some(service),
            None => carried_response
                .into_iter()
                .chain([agent.stuck])
                .reduce(f64::max),
        };
        let share = match self.play.averaged.as_secs_f64() {
            over if over > 0.0 => -libm::expm1(-interval / over),
            _ => 1.0,
        };
        let response = response.map(|new| {
            let before = agent.mean.unwrap_or(new);
            *agent.mean.insert(before + share * (new - before))
        });
        let utilization = match agent.completions {
            0 => busy / interval,
            count => f64::from(count) * service / interval,
        };
        let loads = [
            (
                LoadId::REQUESTS_PER_SECOND,
                Some(f64::from(agent.starts) / interval),
            ),
            (LoadId::SERVICE_TIME, Some(service)),
            (LoadId::RESPONSE_TIME, response),
            (LoadId::UTILIZATION, Some(utilization.min(1.0))),
            (LoadId::THINK_TIME, think),
        ];
        (agent.starts, agent.completions, agent.thinks) = (0, 0, 0);
        (agent.response, agent.think) = (0.0, 0.0);
        if let Some(think) = think.filter(|_| self.is_measured()) {
            self.thinks = (self.thinks.0 + think, self.thinks.1 + 1);
        }
        let location = &self.group.members()[index].location;
        for (id, value) in loads {
            if let Some(Ok(value)) = value.map(LoadValue::new) {
                // All have a name, so there is room for them.
                let _ = location.report_load(id, value, self.engine.current_time());
            }
        }
        let next = duration_nanos(self.play.interval);
        self.engine.schedule_after(next, Happening::Report(index));
    }

    fn window(&mut self) {
        let now = self.engine.elapsed_nanos();
        let length = duration_nanos(self.play.window);
        for (index, server) in self.servers.iter_mut().enumerate() {
            let busy = server.busy(now);
            let before = std::mem::replace(&mut self.busy[index], busy);
            // The first one only begins.
            if now as f64 > duration_nanos(self.play.warm_up) + 1.0 {
                let share = (busy - before) / length;
                self.played.servers[index].utilization.push(share);
            }
        }
        self.engine.schedule_after(length, Happening::Window);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cluster(strategy: &str) -> Negotiated {
        Negotiated {
            service_times: [3, 6, 15].map(Duration::from_millis).to_vec(),
            discipline: Discipline::Sharing,
            users: 300,
            pace: Pace {
                off: 0.16,
                pages: 8.0,
            },
            own_addresses: false,
            quantum: Duration::from_secs(4),
            interval: Duration::from_secs(1),
            in_step: false,
            averaged: Duration::ZERO,
            think_averaged: Duration::ZERO,
            strategy: Values::defaults(evenkeel_core::strategy::find(strategy).unwrap()),
            warm_up: Duration::from_secs(30),
            length: Duration::from_secs(60),
            window: Duration::from_secs(5),
        }
    }

    fn site() -> Site {
        Site::new(2000, &mut fastrand::Rng::with_seed(1998))
    }

    #[test]
    fn the_same_seed_plays_the_same_and_nobody_is_lost() {
        let (site, cluster) = (site(), cluster("least_active_sessions"));
        let (one, other) = (
            play_negotiated(&cluster, &site, 3).unwrap(),
            play_negotiated(&cluster, &site, 3).unwrap(),
        );
        assert_eq!(one.requests(), other.requests());
        assert_eq!(one.mean_response(), other.mean_response());
        assert!(one.requests() > 10_000 && one.negotiations > 1_000);
        assert_eq!(one.servers[0].utilization.len(), 12);
        assert!(
            play_negotiated(
                &Negotiated {
                    users: 0,
                    ..cluster.clone()
                },
                &site,
                1
            )
            .is_none()
        );
        let service_times = Vec::new();
        assert!(
            play_negotiated(
                &Negotiated {
                    service_times,
                    ..cluster
                },
                &site,
                1
            )
            .is_none()
        );
    }

    #[test]
    fn utilisation_is_rate_times_service_time() {
        let (site, mut cluster) = (site(), cluster("round_robin"));
        cluster.service_times = vec![Duration::from_millis(1); 3];
        cluster.length = Duration::from_secs(300);
        let played = play_negotiated(&cluster, &site, 1).unwrap();
        for server in &played.servers {
            let expected = server.requests as f64 * 0.001 / 300.0;
            let found = server.mean_utilization();
            assert!((found / expected - 1.0).abs() < 0.1, "{found}, {expected}");
        }
        let shares = (0..3).map(|server| played.server_share(server));
        assert!(
            shares
                .into_iter()
                .all(|share| (share - 1.0 / 3.0).abs() < 0.02)
        );
    }

    #[test]
    fn reports_spare_the_slowest_server() {
        let site = site();
        let of = |strategy| play_negotiated(&cluster(strategy), &site, 2).unwrap();
        let (blind, lu) = (of("round_robin"), of("least_utilization"));
        assert!(
            lu.server_share(2) < 0.15 && blind.server_share(2) > lu.server_share(2),
            "{lu:?}"
        );
        assert!(blind.servers[2].mean_response() > 3.0 * lu.servers[2].mean_response());
    }

    #[test]
    fn think_times_are_by_address() {
        let site = site();
        let one = cluster("least_active_sessions");
        let each = Negotiated {
            own_addresses: true,
            ..one.clone()
        };
        let think = |cluster| play_negotiated(&cluster, &site, 2).unwrap().think;
        let (one, each) = (think(one), think(each));
        assert!(one < 0.05 && each > 0.1, "{one} {each}");
    }
}
