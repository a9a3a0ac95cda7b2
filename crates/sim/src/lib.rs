//! The virtual-time harness: members, requests and balancers as a discrete-event
//! simulation around the *real* groups, strategies and tickets.
//!
//! Nothing here looks at a clock, and all randomness comes from one seed, so a run is
//! the same on every machine and its figures can be asserted. Requests arrive open
//! loop (Poisson) or come from clients in a closed loop; the same seed gives every strategy
//! the same arrivals, costs and failures. What a strategy reaches is compared with
//! [`Dispatch::Central`], a queue that knows everything, and with the other strategies.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use evenkeel_core::group::{Group, GroupSettings, Outcome, Request, Ticket};
use evenkeel_core::load::{LoadId, LoadValue, Location};
use evenkeel_core::member::{Member, MemberId, Slot, Weight};
use evenkeel_core::strategy::Values;
use evenkeel_core::time::Instant;

mod catalogue;
mod central;
pub mod monitored;
mod scenario;
mod server;
pub mod sticky;

pub use catalogue::catalogue;
pub use scenario::{Change, MemberModel, Reports, Scenario, Service, To};
pub use server::Discipline;

use central::Central;
use server::{JobId, Server};

/// Who decides where requests go.
#[derive(Clone, Debug)]
pub enum Dispatch {
    /// A strategy of the registry, one instance in each balancer.
    Strategy(Values),
    /// One queue in front of all members that knows every speed and failure.
    Central {
        /// Whether it also knows what each request will cost.
        knows_costs: bool,
    },
}

/// What came out of a run.
#[derive(Clone, Debug)]
pub struct Outcomes {
    /// Response times of what succeeded after the warm-up, in nanoseconds, ascending.
    latencies: Vec<u64>,
    /// Requests that arrived, warm-up included.
    pub requests: usize,
    /// Requests that failed or found no member, warm-up included.
    pub failed: usize,
    /// Requests that each member got, warm-up included.
    pub per_member: Vec<usize>,
    /// When each request after the warm-up was sent, in nanoseconds, and to which member.
    sent: Vec<(u64, u32)>,
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
    let mut simulation = Simulation::new(scenario, dispatch, seed);
    while simulation.step() {}
    simulation.outcomes.latencies.sort_unstable();
    simulation.outcomes
}

/// Share of the requests at the start that is not measured.
const WARM_UP: f64 = 0.1;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Arrival,
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
    ReportArrival {
        server: usize,
        per_mille: u64,
    },
}

#[derive(Debug)]
struct Job {
    arrived: u64,
    work: f64,
    server: usize,
    outcome: Outcome,
    ticket: Option<Ticket>,
    measured: bool,
}

/// Two streams of randomness: the world's is the same for every strategy.
#[derive(Debug)]
struct Simulation<'a> {
    scenario: &'a Scenario,
    dispatch: &'a Dispatch,
    world: fastrand::Rng,
    decisions: fastrand::Rng,
    now: u64,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    scheduled: u64,
    servers: Vec<Server>,
    groups: Vec<Group>,
    central: Central,
    jobs: Vec<Job>,
    free_jobs: Vec<JobId>,
    /// What members report, if not what they do.
    reported: Vec<Option<f64>>,
    outcomes: Outcomes,
}

impl<'a> Simulation<'a> {
    fn new(scenario: &'a Scenario, dispatch: &'a Dispatch, seed: u64) -> Self {
        let balancers = match dispatch {
            Dispatch::Strategy(values) => (0..scenario.balancers)
                .map(|_| group(scenario, values))
                .collect(),
            Dispatch::Central { .. } => Vec::new(),
        };
        let server = |model: &MemberModel| {
            Server::new(model.discipline, model.slots, model.slowness, model.failing)
        };
        let mut simulation = Simulation {
            scenario,
            dispatch,
            world: fastrand::Rng::with_seed(seed),
            decisions: fastrand::Rng::with_seed(!seed),
            now: 0,
            events: BinaryHeap::new(),
            scheduled: 0,
            servers: scenario.members.iter().map(server).collect(),
            groups: balancers,
            central: Central::default(),
            jobs: Vec::new(),
            free_jobs: Vec::new(),
            reported: vec![None; scenario.members.len()],
            outcomes: Outcomes {
                latencies: Vec::with_capacity(scenario.requests),
                requests: 0,
                failed: 0,
                per_member: vec![0; scenario.members.len()],
                sent: Vec::new(),
            },
        };
        // Not at zero, which slots use for "never"; and clients that are never in step.
        for client in 0..scenario.clients.max(1) {
            let offset = Service::MEAN * client as f64 / scenario.clients.max(1) as f64;
            simulation.schedule(1.0 + offset, Event::Arrival);
        }
        for (index, change) in scenario.changes.iter().enumerate() {
            simulation.schedule(nanos(change.at), Event::Change(index));
        }
        if let Some(reports) = scenario.reports {
            for server in 0..scenario.members.len() {
                let first = simulation.world.f64() * nanos(reports.interval);
                simulation.schedule(first, Event::Report(server));
            }
        }
        simulation
    }

    fn schedule(&mut self, after: f64, event: Event) {
        self.scheduled += 1;
        let at = self.now + after as u64;
        self.events.push(Reverse((at, self.scheduled, event)));
    }

    /// Plays one event; `false` when all requests have arrived.
    fn step(&mut self) -> bool {
        let Some(Reverse((at, _, event))) = self.events.pop() else {
            return false;
        };
        self.now = at;
        match event {
            Event::Arrival => self.arrival(),
            Event::Delivery(job) => self.delivery(job),
            Event::Completion { server, version } => self.completion(server, version),
            Event::Response(job) => self.response(job),
            Event::SessionEnd(job) => self.end(job),
            Event::Change(index) => self.change(index),
            Event::Report(server) => self.report(server),
            Event::ReportArrival { server, per_mille } => self.report_arrival(server, per_mille),
        }
        self.outcomes.requests < self.scenario.requests
    }

    fn arrival(&mut self) {
        if self.scenario.clients == 0 {
            let gap = -(1.0 - self.world.f64()).ln() * 1e9 / self.scenario.arrival_rate();
            self.schedule(gap, Event::Arrival);
        }
        let work = self.scenario.service.draw(&mut self.world);
        let balancer = self.world.usize(..self.scenario.balancers);
        let luck = self.world.f64();

        let request = self.outcomes.requests;
        self.outcomes.requests += 1;
        let mut job = Job {
            arrived: self.now,
            work,
            server: 0,
            outcome: Outcome::Success,
            ticket: None,
            measured: request as f64 >= WARM_UP * self.scenario.requests as f64,
        };
        let Some(group) = self.groups.get(balancer) else {
            let job = self.keep(job);
            self.central.push(job, work);
            return self.dispatch_central();
        };
        let now = Instant::from_nanos(self.now);
        let Ok(ticket) = group.pick(&Request::at(now), &mut self.decisions) else {
            self.outcomes.failed += 1;
            if self.scenario.clients > 0 {
                self.schedule(Service::MEAN, Event::Arrival);
            }
            return;
        };
        job.server = ticket.index();
        if job.measured {
            self.outcomes.sent.push((self.now, job.server as u32));
        }
        job.ticket = Some(ticket);
        let fails = luck < self.servers[job.server].failing;
        if fails {
            job.outcome = Outcome::Failure;
        }
        let job = self.keep(job);
        let network = nanos(self.scenario.network);
        if fails {
            self.schedule(2.0 * network + Service::MEAN / 100.0, Event::Response(job));
        } else if network > 0.0 {
            self.schedule(network, Event::Delivery(job));
        } else {
            self.delivery(job);
        }
    }

    fn delivery(&mut self, job: JobId) {
        let Job { server, work, .. } = self.jobs[job];
        self.servers[server].push(job, work, self.now);
        self.schedule_completion(server);
    }

    fn completion(&mut self, server: usize, version: u32) {
        if self.servers[server].version() != version {
            return;
        }
        if let Some(job) = self.servers[server].complete(self.now) {
            match nanos(self.scenario.network) {
                0.0 => self.response(job),
                network => self.schedule(network, Event::Response(job)),
            }
        }
        self.schedule_completion(server);
        self.dispatch_central();
    }

    fn response(&mut self, id: JobId) {
        let job = &mut self.jobs[id];
        let now = Instant::from_nanos(self.now);
        if let Some(ticket) = &mut job.ticket {
            ticket.responded(job.outcome, now);
        }
        self.outcomes.per_member[job.server] += 1;
        if job.outcome != Outcome::Success {
            self.outcomes.failed += 1;
        } else if job.measured {
            self.outcomes.latencies.push(self.now - job.arrived);
        }
        if self.scenario.session.is_zero() || job.outcome != Outcome::Success {
            return self.end(id);
        }
        let session = -(1.0 - self.world.f64()).ln() * nanos(self.scenario.session);
        self.schedule(session, Event::SessionEnd(id));
    }

    fn end(&mut self, id: JobId) {
        let job = &mut self.jobs[id];
        if let Some(ticket) = job.ticket.take() {
            ticket.finish(job.outcome, Instant::from_nanos(self.now));
        }
        self.free_jobs.push(id);
        if self.scenario.clients > 0 {
            self.schedule(0.0, Event::Arrival);
        }
    }

    fn change(&mut self, index: usize) {
        let change = self.scenario.changes[index];
        let server = &mut self.servers[change.member];
        match change.to {
            To::Load(load) => self.reported[change.member] = Some(load),
            To::Failing(share) => server.failing = share,
            To::Background(tasks) => {
                server.set_background(tasks, self.now);
                self.schedule_completion(change.member);
            }
            To::Slowness(slowness) => {
                server.set_slowness(slowness, self.now);
                self.schedule_completion(change.member);
            }
        }
        self.dispatch_central();
    }

    fn report(&mut self, server: usize) {
        let Some(reports) = self.scenario.reports else {
            return;
        };
        self.schedule(nanos(reports.interval), Event::Report(server));
        let value = if let Some(load) = self.reported[server] {
            load
        } else if reports.id == LoadId::IN_FLIGHT {
            self.servers[server].in_flight() as f64
        } else {
            let interval = nanos(reports.interval);
            let busy = self.servers[server].take_utilization(interval, self.now);
            let queue = self.servers[server].queue(self.now);
            // Taking it may void the completion that is scheduled.
            self.schedule_completion(server);
            match reports.id {
                LoadId::COMPOSITE => busy.max(queue),
                _ => busy,
            }
        };
        let value = match reports.noise {
            0.0 => value,
            noise => value * (1.0 + noise * (2.0 * self.world.f64() - 1.0)),
        };
        let per_mille = (value * 1000.0) as u64;
        let arrival = Event::ReportArrival { server, per_mille };
        self.schedule(nanos(reports.delay), arrival);
    }

    fn report_arrival(&mut self, server: usize, per_mille: u64) {
        let now = Instant::from_nanos(self.now);
        let (Some(reports), Ok(value)) = (
            self.scenario.reports,
            LoadValue::new(per_mille as f64 / 1e3),
        ) else {
            return;
        };
        for group in &self.groups {
            // Only one id is ever reported here, so there is room for it.
            let location = &group.members()[server].location;
            let _ = location.report(reports.id, value, now);
        }
    }

    fn schedule_completion(&mut self, server: usize) {
        let state = &self.servers[server];
        if let Some(at) = state.next_completion() {
            let version = state.version();
            let after = at.saturating_sub(self.now) as f64;
            self.schedule(after, Event::Completion { server, version });
        }
    }

    fn dispatch_central(&mut self) {
        let Dispatch::Central { knows_costs } = self.dispatch else {
            return;
        };
        let mean = (!knows_costs).then_some(Service::MEAN);
        while let Some((job, work, server)) = self.central.next(&self.servers, mean, self.now) {
            self.jobs[job].server = server;
            self.servers[server].push(job, work, self.now);
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

fn weight(model: &MemberModel) -> Weight {
    Weight::new(model.weight).unwrap_or(Weight::ONE)
}

/// One balancer's view of the members: slots and locations of its own.
fn group(scenario: &Scenario, values: &Values) -> Group {
    let settings = GroupSettings {
        load_id: scenario.reports.map_or(LoadId::CPU, |reports| reports.id),
        ..GroupSettings::default()
    };
    let member = |index: usize| {
        let name: Arc<str> = format!("m{index}").into();
        Member {
            id: MemberId(index as u64),
            name: Arc::clone(&name),
            address: SocketAddr::from((Ipv4Addr::LOCALHOST, 1)),
            max_connections: None,
            location: Arc::new(Location::new(name)),
            slot: Arc::new(Slot::new(weight(&scenario.members[index]))),
        }
    };
    let members: Vec<Member> = (0..scenario.members.len()).map(member).collect();
    let strategy = (values.kind().build)(values, &members);
    Group::new("harness", settings, strategy, members, Arc::default())
}

fn nanos(duration: Duration) -> f64 {
    duration.as_nanos() as f64
}

#[cfg(test)]
mod tests {
    use super::*;

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
