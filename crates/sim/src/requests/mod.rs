//! Requests in virtual time: members and balancers as events around the *real* groups,
//! strategies, tickets and control.
//!
//! Nothing here looks at a clock, and all randomness comes from one seed, so a run is the same on every machine and its
//! figures can be asserted. Requests arrive open loop (Poisson) or come from clients in a closed loop; the same seed
//! gives every strategy the same arrivals, costs and failures. A strategy's results are compared with
//! [`Dispatch::Central`], a queue that knows everything, and with the other strategies.

mod balancers;
mod bound;
mod checks;
mod member;
mod outcomes;
mod policy;
mod reports;
mod retries;
mod samples;
mod simulation;
mod visits;
mod waiting;

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_control::flights;
use evenkeel_core::cost::Cost;
use evenkeel_core::group::{Outcome, PickError, Request};
use evenkeel_core::latency::Remainder;
use evenkeel_core::load::LoadId;

use member::Member;
pub use outcomes::{MemberSample, Outcomes, Sample, TokenOutcomes};
use policy::Policy;
pub use simulation::Dispatch;
use simulation::{Job, RequestEvent, Simulation};

use crate::central::Central;
use crate::engine::{self, Engine, Watched, World, draw_exponential, duration_nanos};
use crate::scenario::{ChangeEffect, Reading, Scenario};
use crate::server::JobId;
use crate::work::{Arrivals, Service, Source, Visit};

/// Plays `scenario` with `seed`.
pub fn run(scenario: &Scenario, dispatch: &Dispatch, seed: u64) -> Outcomes {
    let arrivals = match scenario.clients {
        0 => Arrivals::Open(scenario.arrival_rate()),
        clients => Arrivals::Closed(clients),
    };
    let source = Source {
        group: scenario.group.clone(),
        arrivals,
        visit: Visit::ONE,
        work: Box::new(scenario.service),
    };
    play_sources(scenario, dispatch, vec![source], seed)
}

/// Plays `scenario` with requests from these sources.
pub fn play_sources(
    scenario: &Scenario,
    dispatch: &Dispatch,
    sources: Vec<Source>,
    seed: u64,
) -> Outcomes {
    play_watched(scenario, dispatch, sources, seed, &mut |_| true)
}

/// Plays `scenario` like [`play_sources`]. `tell` is called with the virtual time now and then, and returns
/// false to stop.
pub(crate) fn play_watched(
    scenario: &Scenario,
    dispatch: &Dispatch,
    sources: Vec<Source>,
    seed: u64,
    tell: &mut dyn FnMut(Duration) -> bool,
) -> Outcomes {
    let world = Simulation::new(scenario, dispatch, sources, seed);
    let events = 0;
    let mut watched = Watched {
        world,
        tell,
        events,
    };
    engine::run(&mut watched);
    let now = watched.world.engine.elapsed_nanos();
    let members = watched.world.members.iter_mut();
    let others = members.map(|member| member.server.others(now)).sum();
    let mut outcomes = watched.world.outcomes;
    outcomes.others = others;
    outcomes.latencies.sort_unstable();
    outcomes
}

/// Share of the requests, or of the time, at the start that is not counted.
pub const WARM_UP: f64 = 0.1;

/// Longest time that a run waits for its last requests, as a multiple of the time until the last arrival.
const LONGEST_DRAIN: u64 = 20;

/// Time between two rounds of control, in nanoseconds.
const ROUND: f64 = 100e6;

/// Number of readers of each member's reports: one for all balancers, or one for each.
fn readers(scenario: &Scenario) -> usize {
    match scenario.each_reads {
        true => scenario.balancers.max(1),
        false => 1,
    }
}

impl World for Simulation<'_> {
    type Event = RequestEvent;

    fn engine(&mut self) -> &mut Engine<RequestEvent> {
        &mut self.engine
    }

    fn happen(&mut self, event: RequestEvent) -> bool {
        let length = self.scenario.length;
        if length.is_some_and(|length| self.engine.elapsed_nanos() as f64 > duration_nanos(length))
        {
            return false;
        }
        match event {
            RequestEvent::Arrival(source) => self.arrival(source),
            RequestEvent::Delivery(job) => self.delivery(job),
            RequestEvent::Head(job) => self.head(job),
            RequestEvent::Completion { server, version } => self.completion(server, version),
            RequestEvent::Response(job) => self.response(job),
            RequestEvent::SessionEnd(job) => self.end(job),
            RequestEvent::Again(job) => self.start_next_request(job),
            RequestEvent::Sample => self.take_sample(),
            RequestEvent::Change(index) => self.change(index),
            RequestEvent::Report(index) => self.send_report(index),
            RequestEvent::ReportArrival { index, said } => self.report_arrival(index, said),
            RequestEvent::Update(server) => self.schedule_load_write(server),
            RequestEvent::Written(server) => self.write_load(server),
            RequestEvent::Variance => self.variance(),
            RequestEvent::Round => self.round(),
            RequestEvent::Look { job, turn } => self.look_after_a_while(job, turn),
            RequestEvent::Expiry { job, turn } => self.expire_waiting(job, turn),
            RequestEvent::Check(index) => self.start_check(index),
            RequestEvent::Checked(index) => self.finish_check(index),
        }
        self.has_arrivals() || self.is_draining()
    }
}

impl<'a> Simulation<'a> {
    fn new(
        scenario: &'a Scenario,
        dispatch: &'a Dispatch,
        sources: Vec<Source>,
        seed: u64,
    ) -> Self {
        let reported = scenario.reports.map(|reports| reports.id);
        let averages = reported == Some(LoadId::COMPOSITE);
        let mut simulation = Simulation {
            scenario,
            dispatch,
            world: fastrand::Rng::with_seed(seed),
            decisions: fastrand::Rng::with_seed(!seed),
            checks: fastrand::Rng::with_seed(seed.rotate_left(32)),
            engine: Engine::new(duration_nanos(scenario.network)),
            members: (scenario.members.iter())
                .map(|model| Member::new(model, averages, readers(scenario)))
                .collect(),
            checkings: Vec::new(),
            policies: Vec::new(),
            balancers: Vec::new(),
            central: Central::default(),
            jobs: Vec::new(),
            free_jobs: Vec::new(),
            last_arrival: 0,
            outcomes: Outcomes {
                per_member: vec![0; scenario.members.len()],
                served: vec![0; sources.len()],
                ..Outcomes::default()
            },
            sources,
        };
        if let Some(config) = simulation.config() {
            let policy = |source: &Source| Policy::of_first_rule(&config, &source.group);
            simulation.policies = simulation.sources.iter().map(policy).collect();
            let balancer = |index| simulation.balancer(&config, index);
            simulation.balancers = (0..scenario.balancers).map(balancer).collect();
        }
        simulation.begin();
        simulation
    }

    fn begin(&mut self) {
        let scenario = self.scenario;
        for source in 0..self.sources.len() {
            // Clients that are never in step.
            let clients = match self.sources[source].arrivals {
                Arrivals::Closed(clients) => clients,
                Arrivals::Open(_) | Arrivals::Bursts(_) | Arrivals::Listed => 1,
            };
            for client in 0..clients {
                let offset = Service::MEAN * client as f64 / clients as f64;
                self.engine
                    .schedule_after(1.0 + offset, RequestEvent::Arrival(source));
            }
        }
        for (index, change) in scenario.changes.iter().enumerate() {
            self.engine
                .schedule_after(duration_nanos(change.at), RequestEvent::Change(index));
        }
        if let Some(reports) = scenario.reports {
            for index in 0..scenario.members.len() * readers(scenario) {
                let first = self.world.f64() * duration_nanos(reports.interval);
                self.engine
                    .schedule_after(first, RequestEvent::Report(index));
                let is_member = index < scenario.members.len();
                if let (Reading::Written { update, .. }, true) = (scenario.reading, is_member) {
                    let first = self.world.f64() * duration_nanos(update);
                    self.engine
                        .schedule_after(first, RequestEvent::Update(index));
                }
            }
        }
        if let Some(every) = scenario.samples {
            self.engine
                .schedule_after(duration_nanos(every), RequestEvent::Sample);
        }
        if let Some(every) = scenario.variance {
            self.engine
                .schedule_after(duration_nanos(every), RequestEvent::Variance);
        }
        if scenario.control {
            self.engine.schedule_after(ROUND, RequestEvent::Round);
            self.begin_checks();
        }
    }

    /// True if further requests arrive.
    fn has_arrivals(&self) -> bool {
        self.scenario.length.is_some() || self.outcomes.requests < self.scenario.requests
    }

    /// True if requests are still under way after the last arrival, and the scenario waits for their end.
    fn is_draining(&self) -> bool {
        let since = self.engine.elapsed_nanos() - self.last_arrival;
        self.scenario.drains
            && self.jobs.len() > self.free_jobs.len()
            && since < LONGEST_DRAIN * self.last_arrival.max(1_000_000_000)
    }

    fn is_measuring(&self) -> bool {
        match self.scenario.length {
            Some(length) => self.engine.elapsed_nanos() as f64 >= WARM_UP * duration_nanos(length),
            None => self.outcomes.requests as f64 > WARM_UP * self.scenario.requests as f64,
        }
    }

    fn arrival(&mut self, index: usize) {
        if !self.has_arrivals() {
            return;
        }
        self.last_arrival = self.engine.elapsed_nanos();
        let source = &mut self.sources[index];
        let gap = match source.arrivals {
            Arrivals::Open(rate) => Some(draw_exponential(1e9 / rate, &mut self.world)),
            Arrivals::Bursts(bursts) => {
                Some(bursts.next_gap(self.engine.elapsed_nanos(), &mut self.world))
            }
            Arrivals::Listed => source.work.gap(),
            Arrivals::Closed(_) => None,
        };
        if let Some(gap) = gap {
            self.engine
                .schedule_after(gap, RequestEvent::Arrival(index));
        }
        let ask = source.work.draw(&mut self.world);
        let balancer = self.world.usize(..self.scenario.balancers);
        let luck = self.world.f64();
        let connection = source.work.connection();

        self.outcomes.requests += 1;
        let job = Job {
            source: index,
            balancer,
            arrived: self.engine.elapsed_nanos(),
            ask,
            connection,
            fails_below: luck,
            server: 0,
            outcome: Outcome::Success,
            ticket: None,
            measured: self.is_measuring(),
            tried: Vec::new(),
            refused: false,
            turn: 0,
            left: self.sources[index].visit.requests.saturating_sub(1),
            began: self.engine.elapsed_nanos(),
        };
        let job = self.keep(job);
        self.enter(job);
    }

    /// A request has come to its balancer, or to the central queue.
    fn enter(&mut self, id: JobId) {
        let job = &self.jobs[id];
        let Some(balancer) = self.balancers.get_mut(job.balancer) else {
            self.central.push(id, job.ask.cost);
            return self.dispatch_central();
        };
        let share = self.policies[job.source].retry_budget;
        balancer.budgets[job.source].request(share);
        self.send(id);
    }

    /// Sends a request to a member, or has it wait for one, as the product does.
    fn send(&mut self, id: JobId) {
        let job = &self.jobs[id];
        let is_queued = self.is_queued(job.balancer, job.source);
        let found = match is_queued {
            true => Err(PickError::AllFull),
            false => self.bind(id, Some(0)),
        };
        match found {
            Ok(()) => {}
            Err(PickError::NoneEligible) => self.give_up(id),
            Err(_) if self.enqueue(id) => {}
            Err(_) if self.bind(id, None).is_ok() => {}
            Err(_) => self.give_up(id),
        }
    }

    /// A request has failed that no member has.
    fn give_up(&mut self, id: JobId) {
        let source = self.jobs[id].source;
        self.outcomes.failed += 1;
        self.free_jobs.push(id);
        if let Arrivals::Closed(_) = self.sources[source].arrivals {
            self.engine
                .schedule_after(Service::MEAN, RequestEvent::Arrival(source));
        }
    }

    /// Sends a request to a member.
    fn bind(&mut self, id: JobId, ahead: Option<u32>) -> Result<(), PickError> {
        let job = &mut self.jobs[id];
        let balancer = &mut self.balancers[job.balancer];
        let group = &balancer.by_source[job.source];
        let announced = self.sources[job.source].work.announced(job.ask);
        let key = self.sources[job.source].work.key(job.ask);
        let cost = Cost::clamped(announced).filter(|_| self.scenario.announced);
        let request = Request {
            cost: cost.unwrap_or_default(),
            excluded_members: &job.tried,
            ahead,
            key,
            client: key.map(|key| Ipv4Addr::from_bits(key as u32).into()),
            ..Request::at_time(self.engine.current_time())
        };
        let bound = job.connection.map(|of| (of, &mut balancer.bindings));
        let ticket = bound::pick(group, bound, &request, &mut self.decisions)?;
        job.server = ticket.member_index();
        job.ticket = Some(ticket);
        if job.measured && self.scenario.samples.is_none() {
            let sent = (self.engine.elapsed_nanos(), job.server as u32);
            self.outcomes.sent.push(sent);
        }
        self.deliver(id);
        Ok(())
    }

    /// Lets a request travel to its member.
    fn deliver(&mut self, id: JobId) {
        let job = &mut self.jobs[id];
        let member = &mut self.members[job.server];
        job.refused = member.dead;
        let fails = member.dead || job.fails_below < member.server.failing;
        let network = duration_nanos(self.scenario.network);
        if fails {
            member.count_answer(true);
            job.outcome = Outcome::Failure;
            let after = 2.0 * network + Service::MEAN / 100.0;
            self.engine
                .schedule_after(after, RequestEvent::Response(id));
        } else if network > 0.0 {
            self.engine
                .schedule_after(network, RequestEvent::Delivery(id));
        } else {
            self.delivery(id);
        }
    }

    fn delivery(&mut self, id: JobId) {
        let Job {
            server,
            source,
            ask,
            ..
        } = self.jobs[id];
        if self.members[server].dead {
            return self.break_off(id);
        }
        if self.scenario.streams {
            match duration_nanos(self.scenario.network) {
                0.0 => self.head(id),
                network => self.engine.schedule_after(network, RequestEvent::Head(id)),
            }
        }
        let cost = self.sources[source].work.cost(ask, server);
        self.members[server]
            .server
            .push(id, cost, self.engine.elapsed_nanos());
        self.schedule_completion(server);
    }

    /// The head of a stream is here: its first byte, or the end of its member, comes later.
    fn head(&mut self, id: JobId) {
        if let Some(ticket) = &mut self.jobs[id].ticket {
            ticket.head_arrived(
                Outcome::Success,
                Remainder::Stream,
                self.engine.current_time(),
            );
        }
    }

    /// A member has died that had a request.
    fn break_off(&mut self, id: JobId) {
        self.jobs[id].outcome = Outcome::Failure;
        let network = duration_nanos(self.scenario.network);
        self.engine
            .schedule_after(network, RequestEvent::Response(id));
    }

    fn completion(&mut self, index: usize, version: u32) {
        let server = &mut self.members[index].server;
        if server.version() != version {
            return;
        }
        if let Some(job) = server.complete(self.engine.elapsed_nanos()) {
            self.members[index].count_answer(false);
            match duration_nanos(self.scenario.network) {
                0.0 => self.response(job),
                network => self
                    .engine
                    .schedule_after(network, RequestEvent::Response(job)),
            }
        }
        self.schedule_completion(index);
        self.dispatch_central();
    }

    fn response(&mut self, id: JobId) {
        let job = &mut self.jobs[id];
        if let Some(ticket) = &mut job.ticket {
            if job.outcome == Outcome::Success {
                ticket.first_byte_arrived(self.engine.current_time());
            }
            ticket.record_response(job.outcome, self.engine.current_time());
        }
        self.outcomes.per_member[job.server] += 1;
        if job.outcome != Outcome::Success && self.retry(id) {
            return;
        }
        let job = &self.jobs[id];
        if job.outcome != Outcome::Success {
            self.outcomes.failed += 1;
        } else {
            let (took, measured) = (self.engine.elapsed_nanos() - job.arrived, job.measured);
            if measured {
                self.outcomes.served[job.source] += 1;
                self.outcomes.latencies.push(took);
            }
            self.note_response(took);
        }
        let job = &self.jobs[id];
        if self.scenario.session.is_zero() || job.outcome != Outcome::Success {
            return self.end(id);
        }
        let session = draw_exponential(duration_nanos(self.scenario.session), &mut self.world);
        self.engine
            .schedule_after(session, RequestEvent::SessionEnd(id));
    }

    fn end(&mut self, id: JobId) {
        if self.goes_on(id) {
            return;
        }
        let job = &mut self.jobs[id];
        let (source, balancer) = (job.source, job.balancer);
        if let Some(ticket) = job.ticket.take() {
            ticket.finish(job.outcome, self.engine.current_time());
        }
        if self.sources[source].visit.requests > 1 {
            let took = self.engine.elapsed_nanos() - self.jobs[id].began;
            self.outcomes.visits.push((source, took));
        }
        self.free_jobs.push(id);
        if let Arrivals::Closed(_) = self.sources[source].arrivals {
            let pause = self.draw_think_time(source);
            self.engine
                .schedule_after(pause, RequestEvent::Arrival(source));
        }
        self.serve_waiting(balancer, source);
    }

    fn change(&mut self, index: usize) {
        let change = self.scenario.changes[index];
        let member = &mut self.members[change.member];
        let now = self.engine.elapsed_nanos();
        match change.to {
            ChangeEffect::Load(load) => member.reported = Some(load),
            ChangeEffect::Failing(share) => member.server.failing = share,
            ChangeEffect::Background(tasks) => member.server.set_background(tasks, now),
            ChangeEffect::Interrupts(share) => member.server.set_interrupts(share, now),
            ChangeEffect::Slowness(slowness) => member.server.set_slowness(slowness, now),
            ChangeEffect::Dead(dead) => {
                member.dead = dead;
                if dead {
                    let sources = self.sources.iter_mut();
                    sources.for_each(|source| source.work.forget(change.member));
                    let lost = member.server.abort(now);
                    lost.into_iter().for_each(|job| self.break_off(job));
                }
            }
        }
        self.schedule_completion(change.member);
        self.dispatch_central();
    }

    fn round(&mut self) {
        self.engine.schedule_after(ROUND, RequestEvent::Round);
        let (now, at) = (self.engine.current_time(), self.engine.elapsed_nanos());
        if self.scenario.fleet_in_flight {
            self.tell_in_flight();
        }
        for index in 0..self.balancers.len() {
            for (_, event) in self.balancers[index].groups.run_round(now) {
                let happened = (Duration::from_nanos(at), index, event);
                self.outcomes.events.push(happened);
            }
            (0..self.sources.len()).for_each(|source| self.look_again(index, source));
        }
    }

    /// Each balancer tells the others once a second how many of its requests are in flight, a tenth of them in each
    /// round.
    fn tell_in_flight(&mut self) {
        let now = self.engine.current_time();
        let every = (duration_nanos(flights::INTERVAL) / ROUND) as u64;
        let turn = (now.as_nanos() as f64 / ROUND).round() as u64 % every;
        for index in (0..self.balancers.len()).filter(|index| *index as u64 % every == turn) {
            let Some(group) = self.balancers[index].by_source.first() else {
                continue;
            };
            let group = Arc::clone(group);
            let members = group.members().iter();
            let own = members.map(|member| member.location.in_flight()).collect();
            self.balancers[index].told = own;
            let others = |place: usize| {
                let all = self.balancers.iter().enumerate();
                let others = all.filter(|(other, _)| *other != index);
                let told = others.map(|(_, other)| other.told.get(place).copied().unwrap_or(0));
                told.sum()
            };
            flights::count_others(&group, others, now);
        }
    }

    fn schedule_completion(&mut self, index: usize) {
        if let Some((at, version)) = self.members[index].server.reschedule() {
            let after = at.saturating_sub(self.engine.elapsed_nanos()) as f64;
            let completion = RequestEvent::Completion {
                server: index,
                version,
            };
            self.engine.schedule_after(after, completion);
        }
    }

    fn dispatch_central(&mut self) {
        let Dispatch::Central { knows_costs } = self.dispatch else {
            return;
        };
        let mean = (!knows_costs).then_some(self.scenario.mean_cost);
        let now = self.engine.elapsed_nanos();
        while let Some((job, work, server)) = {
            let members = self.members.iter();
            let servers = members.map(|member| (!member.dead).then_some(&member.server));
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
mod tests;
