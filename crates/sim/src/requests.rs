//! Requests in virtual time: members and balancers as events around the *real* groups,
//! strategies, tickets and control.
//!
//! Nothing here looks at a clock, and all randomness comes from one seed, so a run is
//! the same on every machine and its figures can be asserted. Requests arrive open
//! loop (Poisson) or come from clients in a closed loop; the same seed gives every strategy
//! the same arrivals, costs and failures. What a strategy reaches is compared with
//! [`Dispatch::Central`], a queue that knows everything, and with the other strategies.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_control::event::Event;
use evenkeel_core::group::{Group, GroupSettings, Outcome, PickError, Request, Ticket};
use evenkeel_core::load::{LoadId, LoadValue};
use evenkeel_core::strategy::Values;
use evenkeel_manager::config::Config;
use evenkeel_manager::groups::Groups;

use crate::central::Central;
use crate::config::{group, group_config, groups};
use crate::engine::{self, Engine, World, exponential, nanos};
use crate::scenario::{MemberModel, Reading, Scenario, To};
use crate::server::{JobId, Server};
use crate::work::{Arrivals, Ask, Service, Source};

/// Who decides where requests go.
#[derive(Clone, Debug)]
pub enum Dispatch {
    /// A strategy of the registry, one instance in each balancer.
    Strategy(Values),
    /// What the configuration of the scenario says.
    Configured,
    /// One queue in front of all members that knows every speed and failure.
    Central {
        /// Whether it also knows what each request will cost.
        knows_costs: bool,
    },
}

/// What came out of a run.
#[derive(Clone, Debug, Default)]
pub struct Outcomes {
    /// Response times of what succeeded after the warm-up, in nanoseconds, ascending.
    pub(crate) latencies: Vec<u64>,
    /// Requests that arrived, warm-up included.
    pub requests: usize,
    /// Requests that failed or found no member, warm-up included.
    pub failed: usize,
    /// Requests that each member got, warm-up included.
    pub per_member: Vec<usize>,
    /// When each request after the warm-up was sent, in nanoseconds, and to which member.
    sent: Vec<(u64, u32)>,
    /// Requests of each source that succeeded after the warm-up.
    pub(crate) served: Vec<usize>,
    /// Variance between members of the share of their slots that was busy: one for each
    /// [`Scenario::variance`] after the warm-up.
    pub(crate) variances: Vec<f64>,
    /// Requests that waited because all members were at their limits.
    pub queued: usize,
    /// What control did, when, and in which balancer.
    pub events: Vec<(Duration, usize, Event)>,
}

impl Outcomes {
    /// The response time below which a share `q` (0 to 1) of the requests stayed.
    pub fn quantile(&self, q: f64) -> Duration {
        let last = self.latencies.len().saturating_sub(1);
        let index = (q * last as f64).round() as usize;
        Duration::from_nanos(self.latencies.get(index).copied().unwrap_or(0))
    }

    /// Mean of the response times of what succeeded.
    pub fn mean(&self) -> Duration {
        let sum: f64 = self.latencies.iter().map(|&nanos| nanos as f64).sum();
        Duration::from_nanos((sum / self.latencies.len().max(1) as f64) as u64)
    }

    /// The largest share of the requests of a time `window` that went to a single member,
    /// as a mean over all windows.
    pub fn busiest(&self, window: Duration) -> f64 {
        let window = window.as_nanos().max(1) as u64;
        let mut counts = vec![0u32; self.per_member.len()];
        let (mut sum, mut windows) = (0.0, 0);
        for sent in self.sent.chunk_by(|a, b| a.0 / window == b.0 / window) {
            counts.fill(0);
            for &(_, member) in sent {
                counts[member as usize] += 1;
            }
            let most = counts.iter().copied().max().unwrap_or(0);
            sum += f64::from(most) / sent.len() as f64;
            windows += 1;
        }
        sum / f64::from(windows.max(1))
    }

    /// Share of the requests between two moments that `member` got.
    pub fn share(&self, member: usize, from: Duration, to: Duration) -> f64 {
        let range = from.as_nanos() as u64..to.as_nanos() as u64;
        let within = self.sent.iter().filter(|(at, _)| range.contains(at));
        let all = within.clone().count().max(1);
        let here = within.filter(|(_, sent)| *sent as usize == member);
        here.count() as f64 / all as f64
    }

    /// Share of all requests that failed.
    pub fn failed_share(&self) -> f64 {
        self.failed as f64 / self.requests.max(1) as f64
    }
}

/// Plays `scenario` with `seed`.
pub fn run(scenario: &Scenario, dispatch: &Dispatch, seed: u64) -> Outcomes {
    let arrivals = match scenario.clients {
        0 => Arrivals::Open(scenario.arrival_rate()),
        clients => Arrivals::Closed(clients),
    };
    let source = Source {
        group: scenario.group.clone(),
        arrivals,
        work: Box::new(scenario.service),
    };
    play(scenario, dispatch, vec![source], seed)
}

/// The same with requests from these sources.
pub(crate) fn play(
    scenario: &Scenario,
    dispatch: &Dispatch,
    sources: Vec<Source>,
    seed: u64,
) -> Outcomes {
    let mut simulation = Simulation::new(scenario, dispatch, sources, seed);
    engine::run(&mut simulation);
    simulation.outcomes.latencies.sort_unstable();
    simulation.outcomes
}

/// Share of the requests, or of the time, at the start that is not measured.
pub(crate) const WARM_UP: f64 = 0.1;

/// Time between two rounds of control, in nanoseconds.
const ROUND: f64 = 100e6;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Happening {
    /// A request of a source.
    Arrival(usize),
    /// The request is at its member.
    Delivery(JobId),
    /// A member is done with a request, unless its version has changed since.
    Completion {
        server: usize,
        version: u32,
    },
    /// The response, good or bad, has begun to arrive at the balancer.
    Response(JobId),
    SessionEnd(JobId),
    Change(usize),
    Report(usize),
    /// With the load in thousandths.
    ReportArrival {
        server: usize,
        per_mille: u64,
    },
    /// A process at a member wants to write down the load, and does.
    Update(usize),
    Written(usize),
    Variance,
    Round,
}

#[derive(Debug)]
struct Job {
    source: usize,
    balancer: usize,
    arrived: u64,
    ask: Ask,
    fails_below: f64,
    server: usize,
    outcome: Outcome,
    ticket: Option<Ticket>,
    measured: bool,
}

/// A balancer: its groups, and those of them that requests are for, by source.
#[derive(Debug)]
struct Balancer {
    groups: Groups,
    by_source: Vec<Arc<Group>>,
    /// Requests that wait, by source.
    waiting: Vec<VecDeque<JobId>>,
}

/// A member, and what has been read there.
#[derive(Debug)]
struct Member {
    server: Server,
    /// What it reports, if not what it does.
    reported: Option<f64>,
    /// Busy time and the time itself, at the last reading, update, and variance.
    read: (f64, u64),
    updated: (f64, u64),
    counted: (f64, u64),
    /// What was written down last.
    written: Option<f64>,
}

impl Member {
    fn new(model: &MemberModel) -> Self {
        Member {
            server: Server::new(model.discipline, model.slots, model.slowness, model.failing),
            reported: None,
            read: (0.0, 0),
            updated: (0.0, 0),
            counted: (0.0, 0),
            written: None,
        }
    }
}

/// Share of a member's slots that was busy since `last`, or over `interval` if that is longer.
fn utilization(
    server: &mut Server,
    last: &mut (f64, u64),
    interval: Duration,
    now: u64,
) -> Option<f64> {
    let busy = server.busy(now);
    let (then, at) = std::mem::replace(last, (busy, now));
    let elapsed = ((now - at) as f64).max(nanos(interval)) * server.slots() as f64;
    (elapsed > 0.0).then(|| ((busy - then) / elapsed).clamp(0.0, 1.0))
}

/// Two streams of randomness: the world's is the same for every strategy.
#[derive(Debug)]
struct Simulation<'a> {
    scenario: &'a Scenario,
    dispatch: &'a Dispatch,
    world: fastrand::Rng,
    decisions: fastrand::Rng,
    engine: Engine<Happening>,
    members: Vec<Member>,
    sources: Vec<Source>,
    balancers: Vec<Balancer>,
    central: Central,
    jobs: Vec<Job>,
    free_jobs: Vec<JobId>,
    outcomes: Outcomes,
}

impl World for Simulation<'_> {
    type Event = Happening;

    fn engine(&mut self) -> &mut Engine<Happening> {
        &mut self.engine
    }

    fn happen(&mut self, event: Happening) -> bool {
        let length = self.scenario.length;
        if length.is_some_and(|length| self.engine.nanos() as f64 > nanos(length)) {
            return false;
        }
        match event {
            Happening::Arrival(source) => self.arrival(source),
            Happening::Delivery(job) => self.delivery(job),
            Happening::Completion { server, version } => self.completion(server, version),
            Happening::Response(job) => self.response(job),
            Happening::SessionEnd(job) => self.end(job),
            Happening::Change(index) => self.change(index),
            Happening::Report(server) => self.report(server),
            Happening::ReportArrival { server, per_mille } => {
                self.report_arrival(server, per_mille)
            }
            Happening::Update(server) => self.update(server),
            Happening::Written(server) => {
                let (member, now) = (&mut self.members[server], self.engine.nanos());
                member.written =
                    utilization(&mut member.server, &mut member.updated, Duration::ZERO, now);
                self.schedule_completion(server);
            }
            Happening::Variance => self.variance(),
            Happening::Round => self.round(),
        }
        length.is_some() || self.outcomes.requests < self.scenario.requests
    }
}

impl<'a> Simulation<'a> {
    fn new(
        scenario: &'a Scenario,
        dispatch: &'a Dispatch,
        sources: Vec<Source>,
        seed: u64,
    ) -> Self {
        let mut simulation = Simulation {
            scenario,
            dispatch,
            world: fastrand::Rng::with_seed(seed),
            decisions: fastrand::Rng::with_seed(!seed),
            engine: Engine::new(),
            members: scenario.members.iter().map(Member::new).collect(),
            balancers: Vec::new(),
            central: Central::default(),
            jobs: Vec::new(),
            free_jobs: Vec::new(),
            outcomes: Outcomes {
                per_member: vec![0; scenario.members.len()],
                served: vec![0; sources.len()],
                ..Outcomes::default()
            },
            sources,
        };
        if let Some(config) = simulation.config() {
            let balancer = |_| simulation.balancer(&config);
            simulation.balancers = (0..scenario.balancers).map(balancer).collect();
        }
        simulation.begin();
        simulation
    }

    /// The configuration of the balancers; `None` is without any.
    fn config(&self) -> Option<Config> {
        let values = match self.dispatch {
            Dispatch::Central { .. } => return None,
            Dispatch::Configured => None,
            Dispatch::Strategy(values) => Some(values),
        };
        let mut config = self.scenario.config.clone().unwrap_or_else(|| {
            let settings = GroupSettings {
                load_id: self
                    .scenario
                    .reports
                    .map_or(LoadId::CPU, |reports| reports.id),
                ..GroupSettings::default()
            };
            let group = |source: &Source| {
                let weights = self.scenario.members.iter().map(|member| member.weight);
                let strategy = evenkeel_core::strategy::default_kind();
                let strategy = Values::defaults(strategy);
                group_config(&source.group, weights, settings.clone(), strategy)
            };
            Config {
                groups: self.sources.iter().map(group).collect(),
                ..Config::default()
            }
        });
        if let Some(values) = values {
            for group in &mut config.groups {
                group.strategy = values.clone();
            }
        }
        Some(config)
    }

    fn balancer(&self, config: &Config) -> Balancer {
        let groups = groups(config.clone(), self.engine.now());
        let of = |source: &Source| group(&groups, &source.group);
        Balancer {
            by_source: self.sources.iter().filter_map(of).collect(),
            waiting: self.sources.iter().map(|_| VecDeque::new()).collect(),
            groups,
        }
    }

    fn begin(&mut self) {
        let scenario = self.scenario;
        for source in 0..self.sources.len() {
            // Clients that are never in step.
            let clients = match self.sources[source].arrivals {
                Arrivals::Closed(clients) => clients,
                Arrivals::Open(_) => 1,
            };
            for client in 0..clients {
                let offset = Service::MEAN * client as f64 / clients as f64;
                self.engine.after(1.0 + offset, Happening::Arrival(source));
            }
        }
        for (index, change) in scenario.changes.iter().enumerate() {
            self.engine
                .after(nanos(change.at), Happening::Change(index));
        }
        if let Some(reports) = scenario.reports {
            for server in 0..scenario.members.len() {
                let first = self.world.f64() * nanos(reports.interval);
                self.engine.after(first, Happening::Report(server));
                if let Reading::Written { update, .. } = scenario.reading {
                    let first = self.world.f64() * nanos(update);
                    self.engine.after(first, Happening::Update(server));
                }
            }
        }
        if let Some(every) = scenario.variance {
            self.engine.after(nanos(every), Happening::Variance);
        }
        if scenario.control {
            self.engine.after(ROUND, Happening::Round);
        }
    }

    fn is_measuring(&self) -> bool {
        match self.scenario.length {
            Some(length) => self.engine.nanos() as f64 >= WARM_UP * nanos(length),
            None => self.outcomes.requests as f64 > WARM_UP * self.scenario.requests as f64,
        }
    }

    fn arrival(&mut self, index: usize) {
        let source = &mut self.sources[index];
        if let Arrivals::Open(rate) = source.arrivals {
            let gap = exponential(1e9 / rate, &mut self.world);
            self.engine.after(gap, Happening::Arrival(index));
        }
        let ask = source.work.draw(&mut self.world);
        let balancer = self.world.usize(..self.scenario.balancers);
        let luck = self.world.f64();

        self.outcomes.requests += 1;
        let job = Job {
            source: index,
            balancer,
            arrived: self.engine.nanos(),
            ask,
            fails_below: luck,
            server: 0,
            outcome: Outcome::Success,
            ticket: None,
            measured: self.is_measuring(),
        };
        let job = self.keep(job);
        if self.balancers.is_empty() {
            self.central.push(job, ask.cost);
            return self.dispatch_central();
        }
        if self.bind(job) == Err(PickError::AllFull) && self.enqueue(job) {
            return;
        }
        if self.jobs[job].ticket.is_none() {
            self.outcomes.failed += 1;
            self.free_jobs.push(job);
            if let Arrivals::Closed(_) = self.sources[index].arrivals {
                self.engine.after(Service::MEAN, Happening::Arrival(index));
            }
        }
    }

    /// Has a request wait, if it may.
    fn enqueue(&mut self, id: JobId) -> bool {
        let Job {
            source, balancer, ..
        } = self.jobs[id];
        let balancer = &mut self.balancers[balancer];
        let handle = balancer.groups.handle(&self.sources[source].group);
        let queue = &mut balancer.waiting[source];
        let may = handle.is_some_and(|handle| queue.len() < handle.queue.limit());
        if may {
            queue.push_back(id);
            self.outcomes.queued += 1;
        }
        may
    }

    /// Sends a request to a member.
    fn bind(&mut self, id: JobId) -> Result<(), PickError> {
        let job = &mut self.jobs[id];
        let group = &self.balancers[job.balancer].by_source[job.source];
        let ticket = group.pick(&Request::at(self.engine.now()), &mut self.decisions)?;
        job.server = ticket.index();
        job.ticket = Some(ticket);
        if job.measured {
            let sent = (self.engine.nanos(), job.server as u32);
            self.outcomes.sent.push(sent);
        }
        let fails = job.fails_below < self.members[job.server].server.failing;
        let network = nanos(self.scenario.network);
        if fails {
            job.outcome = Outcome::Failure;
            let after = 2.0 * network + Service::MEAN / 100.0;
            self.engine.after(after, Happening::Response(id));
        } else if network > 0.0 {
            self.engine.after(network, Happening::Delivery(id));
        } else {
            self.delivery(id);
        }
        Ok(())
    }

    fn delivery(&mut self, id: JobId) {
        let Job {
            server,
            source,
            ask,
            ..
        } = self.jobs[id];
        let cost = self.sources[source].work.cost(ask, server);
        self.members[server]
            .server
            .push(id, cost, self.engine.nanos());
        self.schedule_completion(server);
    }

    fn completion(&mut self, index: usize, version: u32) {
        let server = &mut self.members[index].server;
        if server.version() != version {
            return;
        }
        if let Some(job) = server.complete(self.engine.nanos()) {
            match nanos(self.scenario.network) {
                0.0 => self.response(job),
                network => self.engine.after(network, Happening::Response(job)),
            }
        }
        self.schedule_completion(index);
        self.dispatch_central();
    }

    fn response(&mut self, id: JobId) {
        let job = &mut self.jobs[id];
        if let Some(ticket) = &mut job.ticket {
            ticket.responded(job.outcome, self.engine.now());
        }
        self.outcomes.per_member[job.server] += 1;
        if job.outcome != Outcome::Success {
            self.outcomes.failed += 1;
        } else if job.measured {
            self.outcomes.served[job.source] += 1;
            let took = self.engine.nanos() - job.arrived;
            self.outcomes.latencies.push(took);
        }
        if self.scenario.session.is_zero() || job.outcome != Outcome::Success {
            return self.end(id);
        }
        let session = exponential(nanos(self.scenario.session), &mut self.world);
        self.engine.after(session, Happening::SessionEnd(id));
    }

    fn end(&mut self, id: JobId) {
        let job = &mut self.jobs[id];
        let (source, balancer) = (job.source, job.balancer);
        if let Some(ticket) = job.ticket.take() {
            ticket.finish(job.outcome, self.engine.now());
        }
        self.free_jobs.push(id);
        if let Arrivals::Closed(_) = self.sources[source].arrivals {
            self.engine.after(0.0, Happening::Arrival(source));
        }
        self.vacated(balancer, source);
    }

    /// Sends who waits, as long as there is room.
    fn vacated(&mut self, balancer: usize, source: usize) {
        while let Some(balancer) = self.balancers.get(balancer)
            && let Some(&next) = balancer.waiting[source].front()
        {
            if self.bind(next) == Err(PickError::AllFull) {
                return;
            }
            let Job {
                balancer, source, ..
            } = self.jobs[next];
            self.balancers[balancer].waiting[source].pop_front();
            if self.jobs[next].ticket.is_none() {
                self.outcomes.failed += 1;
                self.free_jobs.push(next);
            }
        }
    }

    fn change(&mut self, index: usize) {
        let change = self.scenario.changes[index];
        let member = &mut self.members[change.member];
        let now = self.engine.nanos();
        match change.to {
            To::Load(load) => member.reported = Some(load),
            To::Failing(share) => member.server.failing = share,
            To::Background(tasks) => member.server.set_background(tasks, now),
            To::Slowness(slowness) => member.server.set_slowness(slowness, now),
        }
        self.schedule_completion(change.member);
        self.dispatch_central();
    }

    fn report(&mut self, index: usize) {
        let Some(reports) = self.scenario.reports else {
            return;
        };
        let after = nanos(reports.interval);
        self.engine.after(after, Happening::Report(index));
        let (member, now) = (&mut self.members[index], self.engine.nanos());
        let server = &mut member.server;
        let value = if let Some(load) = member.reported {
            Some(load)
        } else if reports.id == LoadId::IN_FLIGHT {
            Some(server.in_flight() as f64)
        } else {
            let busy = utilization(server, &mut member.read, reports.interval, now);
            match (self.scenario.reading, reports.id) {
                (Reading::Written { .. }, _) => member.written,
                (Reading::Moment, _) => {
                    let tasks = server.tasks() / server.slots() as f64;
                    Some(tasks.max(busy.unwrap_or(0.0)))
                }
                (_, LoadId::COMPOSITE) => Some(server.queue(now).max(busy.unwrap_or(0.0))),
                _ => busy,
            }
        };
        // Taking it may void the completion that is scheduled.
        self.schedule_completion(index);
        let Some(value) = value else {
            return;
        };
        let value = match reports.noise {
            0.0 => value,
            noise => value * (1.0 + noise * (2.0 * self.world.f64() - 1.0)),
        };
        let (server, per_mille) = (index, (value * 1000.0) as u64);
        let arrival = Happening::ReportArrival { server, per_mille };
        self.engine.after(nanos(reports.delay), arrival);
    }

    fn report_arrival(&mut self, server: usize, per_mille: u64) {
        let value = LoadValue::new(per_mille as f64 / 1e3);
        let (Some(reports), Ok(value)) = (self.scenario.reports, value) else {
            return;
        };
        for balancer in &self.balancers {
            if let Some(group) = balancer.by_source.first() {
                // Only one id is ever reported here, so there is room for it.
                let location = &group.members()[server].location;
                let _ = location.report(reports.id, value, self.engine.now());
            }
        }
    }

    /// The process at a member that writes its load down waits for a CPU as others do.
    fn update(&mut self, index: usize) {
        let Reading::Written { update, wait } = self.scenario.reading else {
            return;
        };
        let server = &self.members[index].server;
        let slots = server.slots() as f64;
        let mean = nanos(wait) * (server.tasks() - slots).max(0.0) / slots;
        let delay = exponential(mean, &mut self.world);
        self.engine.after(delay, Happening::Written(index));
        let next = delay.max(1.0) + nanos(update);
        self.engine.after(next, Happening::Update(index));
    }

    fn variance(&mut self) {
        let Some(every) = self.scenario.variance else {
            return;
        };
        self.engine.after(nanos(every), Happening::Variance);
        let now = self.engine.nanos();
        let mut shares = Vec::with_capacity(self.members.len());
        for index in 0..self.members.len() {
            let member = &mut self.members[index];
            let busy = utilization(&mut member.server, &mut member.counted, every, now);
            shares.push(busy.unwrap_or(0.0));
            self.schedule_completion(index);
        }
        if self.is_measuring() {
            let count = shares.len() as f64;
            let mean = shares.iter().sum::<f64>() / count;
            let squares = shares.iter().map(|share| (share - mean).powi(2));
            self.outcomes.variances.push(squares.sum::<f64>() / count);
        }
    }

    fn round(&mut self) {
        self.engine.after(ROUND, Happening::Round);
        let (now, at) = (self.engine.now(), self.engine.nanos());
        for index in 0..self.balancers.len() {
            for (_, event) in self.balancers[index].groups.round(now) {
                let happened = (Duration::from_nanos(at), index, event);
                self.outcomes.events.push(happened);
            }
            (0..self.sources.len()).for_each(|source| self.vacated(index, source));
        }
    }

    fn schedule_completion(&mut self, index: usize) {
        let server = &self.members[index].server;
        if let Some(at) = server.next_completion() {
            let version = server.version();
            let after = at.saturating_sub(self.engine.nanos()) as f64;
            let completion = Happening::Completion {
                server: index,
                version,
            };
            self.engine.after(after, completion);
        }
    }

    fn dispatch_central(&mut self) {
        let Dispatch::Central { knows_costs } = self.dispatch else {
            return;
        };
        let mean = (!knows_costs).then_some(Service::MEAN);
        let now = self.engine.nanos();
        while let Some((job, work, server)) = {
            let servers = self.members.iter().map(|member| &member.server);
            self.central.next(servers, mean, now)
        } {
            self.jobs[job].server = server;
            self.members[server].server.push(job, work, now);
            self.schedule_completion(server);
        }
    }

    fn keep(&mut self, job: Job) -> JobId {
        match self.free_jobs.pop() {
            Some(id) => {
                self.jobs[id] = job;
                id
            }
            None => {
                self.jobs.push(job);
                self.jobs.len() - 1
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::Discipline;

    /// Mean of the response times in units of the mean service time.
    fn mean(outcomes: &Outcomes) -> f64 {
        nanos(outcomes.mean()) / Service::MEAN
    }

    fn random() -> Dispatch {
        let kind = evenkeel_core::strategy::find("random").unwrap();
        Dispatch::Strategy(Values::defaults(kind))
    }

    #[test]
    fn random_choice_is_the_m_m_1_queue() {
        let scenario = Scenario {
            requests: 400_000,
            ..Scenario::new("", 10)
        };
        let outcomes = run(&scenario, &random(), 1);
        // 1 / (1 - 0.6), and the exponential quantile of that.
        assert!((mean(&outcomes) - 2.5).abs() < 0.1, "{}", mean(&outcomes));
        let p99 = nanos(outcomes.quantile(0.99)) / Service::MEAN;
        assert!((p99 - 2.5 * 100f64.ln()).abs() < 0.6, "{p99}");
    }

    #[test]
    fn the_central_queue_is_the_m_m_k_queue() {
        // Erlang C for 2 servers at 60 %: 0.45 wait, for 1 / (2 - 1.2) on average.
        for knows_costs in [false, true] {
            let scenario = Scenario {
                requests: 400_000,
                ..Scenario::new("", 2)
            };
            let outcomes = run(&scenario, &Dispatch::Central { knows_costs }, 1);
            let expected = 1.0 + 0.45 / 0.8;
            assert!(
                (mean(&outcomes) - expected).abs() < 0.03,
                "{}",
                mean(&outcomes)
            );
        }
    }

    #[test]
    fn random_choice_of_sharing_members_is_the_m_m_1_queue_too() {
        let scenario = Scenario {
            requests: 400_000,
            ..Scenario::new("", 3)
        };
        let scenario = scenario.working(Discipline::Sharing, 1);
        let outcomes = run(&scenario, &random(), 1);
        assert!((mean(&outcomes) - 2.5).abs() < 0.1, "{}", mean(&outcomes));
    }

    #[test]
    fn the_central_queue_avoids_a_slow_and_a_failing_member() {
        for scenario in [
            Scenario::new("", 10).one_slow(5.0),
            Scenario::new("", 10).one_failing(0.5),
        ] {
            let outcomes = run(&scenario, &Dispatch::Central { knows_costs: false }, 1);
            let share = outcomes.per_member[0] as f64 / outcomes.requests as f64;
            assert!(share < 0.005, "{share}");
        }
    }

    #[test]
    fn a_run_repeats_itself() {
        let scenario = Scenario::new("", 5).balancers(2);
        let first = run(&scenario, &random(), 7);
        let second = run(&scenario, &random(), 7);
        assert_eq!(first.latencies, second.latencies);
        assert_ne!(first.latencies, run(&scenario, &random(), 8).latencies);
    }
}
