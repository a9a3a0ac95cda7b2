//! A run: requests for engines, in virtual time.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_core::engine_work::EngineWork;
use evenkeel_core::engines::ShareCharge;
use evenkeel_core::group::{Group, Outcome, PickError, Request, Ticket};
use evenkeel_core::latency::Remainder;
use evenkeel_core::load::{LoadId, LoadValue};
use evenkeel_inference::group::{AnswerEnd, RequestFacts};
use evenkeel_inference::usage::Usage;
use evenkeel_manager::config::Config;
use evenkeel_manager::groups::Groups;
use evenkeel_manager::snapshot::GroupHandle;

use super::batching::{BatchingEngine, EngineModel, WrittenToken};
use super::prompts::{FLOOD_KEY, PromptRequest, Prompts};
use super::queue_place::WaitingRequest;
use super::routers::{RoutedRequest, Router, RouterState};
use crate::config::{find_group, make_groups};
use crate::engine::{self, Engine, Watched, World, duration_nanos};
use crate::requests::{MemberSample, Outcomes, Sample, TokenOutcomes, WARM_UP};
use crate::scenario::{Change, ChangeEffect};

/// Time between two rounds of control, in nanoseconds.
const ROUND: f64 = 100e6;

/// Time between two readings of the metrics of engines, in nanoseconds.
const METRICS: f64 = 1e9;

/// Time beyond twice the length of a run after which requests without an answer have failed.
const PATIENCE: Duration = Duration::from_secs(600);

/// Engines, and requests for them.
#[derive(Clone, Debug)]
pub struct EngineScenario {
    /// Configuration of the balancers.
    pub config: Config,
    /// Name of the group.
    pub group: String,
    /// Engines of normal speed.
    pub model: EngineModel,
    /// Slowness of each member at the start, as a multiple of the normal one.
    pub slowness: Vec<f64>,
    /// Router in front of the engines.
    pub router: Router,
    /// Number of balancers.
    pub balancers: usize,
    /// True if balancers tell each other their work at the engines and the prompts that they have sent, ten times a second.
    pub is_fleet: bool,
    /// Time from a balancer to a member, and back.
    pub network: Duration,
    /// True if answers say how many tokens of the prompt the engine remembered.
    pub says_cached_tokens: bool,
    /// True if requests say how many tokens their answers have.
    pub says_max_tokens: bool,
    /// Changes in the order of time. Slowness only.
    pub changes: Vec<Change>,
    /// Time after which no session begins. Requests that are there are answered.
    pub length: Duration,
    /// Interval at which members are sampled.
    pub samples: Option<Duration>,
}

/// Plays requests for engines. `tell` is called with the virtual time now and then, and returns false to stop.
pub fn play_engines(
    scenario: &EngineScenario,
    prompts: &Prompts,
    seed: u64,
    tell: &mut dyn FnMut(Duration) -> bool,
) -> Outcomes {
    let world = EngineWorld::new(scenario, prompts, seed);
    let events = 0;
    let mut watched = Watched {
        world,
        tell,
        events,
    };
    engine::run(&mut watched);
    let mut world = watched.world;
    let engines = world.engines.iter();
    world.tokens.preemptions = engines.map(|engine| engine.preemptions).sum();
    world.tokens.first_tokens.sort_unstable();
    world.tokens.others_first_tokens.sort_unstable();
    world.tokens.token_gaps.sort_unstable();
    let mut outcomes = world.outcomes;
    let answered: usize = outcomes.per_member.iter().sum();
    outcomes.failed = outcomes.requests - answered;
    outcomes.latencies.sort_unstable();
    outcomes.tokens = Some(world.tokens);
    outcomes
}

// Tags as wide as what follows: see `requests::simulation`.
#[derive(Clone, Copy, Debug)]
#[repr(u64)]
pub(super) enum EngineEvent {
    /// The first turn with this number comes to a balancer.
    FirstTurn(usize),
    /// The next turn of a session: the request.
    NextTurn(usize),
    /// A request is at its engine.
    Delivery(usize),
    /// A step ends, unless its version has changed since.
    StepEnd {
        engine: usize,
        version: u32,
    },
    /// Tokens of an engine's oldest step that no balancer has seen are at the balancers.
    Tokens(usize),
    /// A request has waited for as long as it may.
    Expiry(usize),
    /// A request that waits looks again.
    Look(usize),
    Change(usize),
    Round,
    /// Balancers read the metrics of all engines.
    Metrics,
    Sample,
}

/// Step of an engine.
#[derive(Clone, Copy, Debug, Default)]
struct Step {
    /// Time of the end, in nanoseconds.
    ends_at: f64,
    version: u32,
}

/// Request on its way.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) request: usize,
    pub(super) balancer: usize,
    arrived: u64,
    is_measured: bool,
    engine: usize,
    ticket: Option<Ticket>,
    routed: Option<RoutedRequest>,
    first_token: u64,
}

/// A balancer, or another router.
#[derive(Debug)]
pub(super) struct Balancer {
    groups: Groups,
    pub(super) group: Option<Arc<Group>>,
    /// The group with its queue; `None` for another router.
    pub(super) handle: Option<Arc<GroupHandle>>,
    router: RouterState,
    /// Requests that wait in the queue.
    pub(super) waiting: Vec<WaitingRequest>,
    /// Work at each engine that the balancer has told last.
    pub(super) told_work: Vec<EngineWork>,
}

pub(super) struct EngineWorld<'a> {
    pub(super) scenario: &'a EngineScenario,
    pub(super) prompts: &'a Prompts,
    /// Longest time in the queue.
    pub(super) queue_timeout: Option<Duration>,
    arrivals: fastrand::Rng,
    decisions: fastrand::Rng,
    pub(super) queue: Engine<EngineEvent>,
    engines: Vec<BatchingEngine>,
    steps: Vec<Step>,
    /// Tokens on their way to the balancers, step by step.
    travelling: Vec<VecDeque<Vec<WrittenToken>>>,
    spare: Vec<Vec<WrittenToken>>,
    pub(super) balancers: Vec<Balancer>,
    pub(super) jobs: Vec<Job>,
    /// Requests that are to come or not answered yet.
    pub(super) open: usize,
    /// Nanoseconds after which requests are measured.
    warm_up: f64,
    /// Nanoseconds after which the run ends in any case.
    latest_end: f64,
    pub(super) outcomes: Outcomes,
    tokens: TokenOutcomes,
    in_flight: Vec<u32>,
    /// Busy time of each engine and the time itself, at the last sample.
    sampled: (Vec<f64>, u64),
    window: Vec<u64>,
}

/// Facts of a request that matter for its choice, as the balancer reads them.
pub(super) fn read_facts<'a>(
    prompts: &'a Prompts,
    of: &PromptRequest,
    says_max_tokens: bool,
    random: u64,
) -> RequestFacts<'a> {
    RequestFacts {
        chain: prompts.chain_of(of),
        model: prompts.model_hash(),
        max_tokens: says_max_tokens.then_some(of.output_tokens),
        is_stream: true,
        random,
    }
}

impl World for EngineWorld<'_> {
    type Event = EngineEvent;

    fn engine(&mut self) -> &mut Engine<EngineEvent> {
        &mut self.queue
    }

    fn happen(&mut self, event: EngineEvent) -> bool {
        match event {
            EngineEvent::FirstTurn(turn) => {
                self.schedule_first_turn(turn + 1);
                self.arrive(self.prompts.first_turns()[turn]);
            }
            EngineEvent::NextTurn(request) => self.arrive(request),
            EngineEvent::Delivery(job) => self.deliver(job),
            EngineEvent::StepEnd { engine, version } if version == self.steps[engine].version => {
                self.end_step(engine);
            }
            EngineEvent::StepEnd { .. } => {}
            EngineEvent::Tokens(engine) => self.take_tokens(engine),
            EngineEvent::Expiry(id) => self.expire(id),
            EngineEvent::Look(id) => self.look_again(id),
            EngineEvent::Change(index) => self.change(index),
            EngineEvent::Round => {
                let now = self.queue.current_time();
                let at = Duration::from_nanos(now.as_nanos());
                if self.scenario.is_fleet {
                    self.exchange_work();
                    self.exchange_prompts();
                }
                for (index, balancer) in self.balancers.iter_mut().enumerate() {
                    let events = balancer.groups.run_round(now).into_iter();
                    let events = events.map(|(_, event)| (at, index, event));
                    self.outcomes.events.extend(events);
                }
                self.queue.schedule_after(ROUND, EngineEvent::Round);
            }
            EngineEvent::Metrics => {
                self.read_metrics();
                self.queue.schedule_after(METRICS, EngineEvent::Metrics);
            }
            EngineEvent::Sample => self.take_sample(),
        }
        self.open > 0 && (self.queue.elapsed_nanos() as f64) < self.latest_end
    }
}

impl<'a> EngineWorld<'a> {
    fn new(scenario: &'a EngineScenario, prompts: &'a Prompts, seed: u64) -> Self {
        let queue = Engine::new(duration_nanos(scenario.network));
        let slowness = scenario.slowness.iter();
        let engines = slowness.map(|slowness| BatchingEngine::new(scenario.model, *slowness));
        let members = scenario.slowness.len();
        let balancers = (0..scenario.balancers.max(1)).map(|_| {
            let groups = make_groups(scenario.config.clone(), queue.current_time());
            Balancer {
                group: find_group(&groups, &scenario.group),
                handle: scenario
                    .router
                    .is_balancer()
                    .then(|| groups.find_handle(&scenario.group).cloned())
                    .flatten(),
                groups,
                router: RouterState::new(scenario.router, scenario.model, members),
                waiting: Vec::new(),
                told_work: Vec::new(),
            }
        });
        let mut rules = scenario.config.rules.iter();
        let rule = rules.find(|rule| rule.is_served_by(&scenario.group));
        let mut world = EngineWorld {
            scenario,
            prompts,
            queue_timeout: rule.map(|rule| rule.timeouts.queue),
            arrivals: fastrand::Rng::with_seed(seed),
            decisions: fastrand::Rng::with_seed(!seed),
            engines: engines.collect(),
            steps: vec![Step::default(); members],
            travelling: vec![VecDeque::new(); members],
            spare: Vec::new(),
            balancers: balancers.collect(),
            queue,
            jobs: Vec::with_capacity(prompts.requests().len()),
            open: 0,
            warm_up: WARM_UP * duration_nanos(scenario.length),
            latest_end: duration_nanos(2 * scenario.length + PATIENCE),
            outcomes: Outcomes::default(),
            tokens: TokenOutcomes::default(),
            in_flight: vec![0; members],
            sampled: (vec![0.0; members], 0),
            window: Vec::new(),
        };
        world.outcomes.per_member = vec![0; members];
        world.outcomes.served = vec![0];
        for (index, change) in scenario.changes.iter().enumerate() {
            let after = duration_nanos(change.at);
            world
                .queue
                .schedule_after(after, EngineEvent::Change(index));
        }
        if scenario.router.is_balancer() {
            world.queue.schedule_after(ROUND, EngineEvent::Round);
        }
        if scenario.router == Router::EvenkeelMetrics {
            world.queue.schedule_after(METRICS, EngineEvent::Metrics);
        }
        if let Some(every) = scenario.samples {
            let every = duration_nanos(every);
            world.queue.schedule_after(every, EngineEvent::Sample);
        }
        world.schedule_first_turn(0);
        world
    }

    fn schedule_first_turn(&mut self, turn: usize) {
        let Some(request) = self.prompts.first_turns().get(turn) else {
            return;
        };
        let after = self.prompts.requests()[*request].after;
        if after as f64 > duration_nanos(self.scenario.length) {
            return;
        }
        self.open += 1;
        let gap = after.saturating_sub(self.queue.elapsed_nanos()).max(1);
        self.queue
            .schedule_after(gap as f64, EngineEvent::FirstTurn(turn));
    }

    /// Gives all balancers the metrics of all engines.
    fn read_metrics(&mut self) {
        let now = self.queue.current_time();
        for group in self
            .balancers
            .iter()
            .filter_map(|balancer| balancer.group.as_ref())
        {
            for (engine, member) in self.engines.iter().zip(group.members()) {
                let waiting = engine.waiting_requests();
                let all = waiting + engine.running_requests();
                let loads = [
                    (LoadId::WAITING_REQUESTS, waiting),
                    (LoadId::IN_FLIGHT, all),
                ];
                let loads = loads.map(|(id, requests)| (id, LoadValue::new(requests as f64)));
                for (id, value) in loads {
                    // Both have a name, so there is room.
                    let _ = value.map(|value| member.location.report_load(id, value, now));
                }
            }
        }
    }

    fn arrive(&mut self, request: usize) {
        let now = self.queue.elapsed_nanos();
        self.outcomes.requests += 1;
        self.jobs.push(Job {
            request,
            balancer: self.arrivals.usize(..self.balancers.len()),
            arrived: now,
            is_measured: now as f64 >= self.warm_up,
            engine: 0,
            ticket: None,
            routed: None,
            first_token: 0,
        });
        self.send(self.jobs.len() - 1);
    }

    /// Sends a request to the engine that is chosen for it. `ahead` is the number of requests that wait before it.
    pub(super) fn bind(&mut self, id: usize, ahead: Option<u32>) -> Result<(), PickError> {
        let job = &mut self.jobs[id];
        let balancer = &mut self.balancers[job.balancer];
        let of = &self.prompts.requests()[job.request];
        let now = self.queue.current_time();
        if !self.scenario.router.is_balancer() {
            let router = &mut balancer.router;
            let (at, rng) = (now.as_nanos(), &mut self.decisions);
            job.engine = router.choose_engine(self.prompts, of, &self.engines, at, rng);
            job.routed = Some(router.begin_request(self.prompts, of, job.engine, at));
        } else {
            let group = balancer.group.as_ref().ok_or(PickError::NoneEligible)?;
            let chain = self.prompts.chain_of(of);
            let engines = group.state().engines();
            let plan = engines.map(|engines| {
                let says_limit = self.scenario.says_max_tokens;
                let facts = read_facts(self.prompts, of, says_limit, self.decisions.u64(..));
                engines.group().plan_request(facts)
            });
            let request = Request {
                key: chain.block_links().first().copied(),
                plan: plan.as_ref(),
                ahead,
                ..Request::at_time(now)
            };
            let ticket = group.pick(&request, &mut self.decisions)?;
            job.engine = ticket.member_index();
            job.ticket = Some(ticket);
        }
        self.in_flight[job.engine] += 1;
        let network = duration_nanos(self.scenario.network);
        self.queue
            .schedule_after(network, EngineEvent::Delivery(id));
        Ok(())
    }

    /// Sets the tokens that a request has taken from the share of its key.
    pub(super) fn set_charge(&mut self, id: usize, charge: Option<ShareCharge>) {
        if let Some(engine) = self.jobs[id].ticket.as_mut().and_then(Ticket::engine_mut) {
            engine.set_charge(charge);
        }
    }

    fn deliver(&mut self, id: usize) {
        let Job {
            engine, request, ..
        } = self.jobs[id];
        // Engines send the head at once. Its way back does not matter.
        if let Some(ticket) = &mut self.jobs[id].ticket {
            let now = self.queue.current_time();
            ticket.head_arrived(Outcome::Success, Remainder::Stream, now);
        }
        self.engines[engine].push(id, request);
        if !self.engines[engine].is_stepping {
            self.begin_step(engine);
        }
    }

    fn begin_step(&mut self, engine: usize) {
        if let Some(nanos) = self.engines[engine].begin_step(self.prompts) {
            self.schedule_step_end(engine, nanos);
        }
    }

    fn schedule_step_end(&mut self, engine: usize, nanos: f64) {
        let step = &mut self.steps[engine];
        step.version = step.version.wrapping_add(1);
        step.ends_at = self.queue.elapsed_nanos() as f64 + nanos;
        let version = step.version;
        self.queue
            .schedule_after(nanos, EngineEvent::StepEnd { engine, version });
    }

    fn end_step(&mut self, engine: usize) {
        let mut tokens = self.spare.pop().unwrap_or_default();
        self.engines[engine].end_step(self.prompts, &mut tokens);
        self.begin_step(engine);
        self.travelling[engine].push_back(tokens);
        match duration_nanos(self.scenario.network) {
            0.0 => self.take_tokens(engine),
            network => self
                .queue
                .schedule_after(network, EngineEvent::Tokens(engine)),
        }
    }

    fn take_tokens(&mut self, engine: usize) {
        let Some(mut tokens) = self.travelling[engine].pop_front() else {
            return;
        };
        for token in tokens.drain(..) {
            self.take_token(token);
        }
        self.spare.push(tokens);
    }

    fn take_token(&mut self, token: WrittenToken) {
        let (now, at) = (self.queue.current_time(), self.queue.elapsed_nanos());
        let job = &mut self.jobs[token.job];
        if let Some(engine) = job.ticket.as_mut().and_then(Ticket::engine_mut) {
            engine.take_events(1, now);
        }
        if token.is_first {
            job.first_token = at;
            if let Some(ticket) = &mut job.ticket {
                ticket.first_byte_arrived(now);
            }
            if let Some(routed) = &mut job.routed {
                let router = &mut self.balancers[job.balancer].router;
                router.take_first_token(routed, job.engine);
            }
            let balancer = job.balancer;
            self.send_waiting(balancer);
        }
        if token.is_last {
            self.end(token);
        }
    }

    fn end(&mut self, token: WrittenToken) {
        let (now, at) = (self.queue.current_time(), self.queue.elapsed_nanos());
        let job = &mut self.jobs[token.job];
        let of = &self.prompts.requests()[job.request];
        let cached = token.cached.min(of.input_tokens);
        if let Some(mut ticket) = job.ticket.take() {
            if let Some(engine) = ticket.engine_mut() {
                let says = self.scenario.says_cached_tokens;
                let usage = Usage {
                    prompt_tokens: of.input_tokens,
                    cached_tokens: says.then_some(cached),
                    output_tokens: of.output_tokens,
                };
                let end = AnswerEnd {
                    usage: Some(usage),
                    events: u64::from(of.output_tokens),
                    is_complete: true,
                };
                if let Some((charge, tokens)) = engine.count_share(&end)
                    && let Some(handle) = &self.balancers[job.balancer].handle
                {
                    handle.queue.correct_charge(&charge, tokens);
                }
                engine.finish(&end, now);
            }
            ticket.finish(Outcome::Success, now);
        }
        if let Some(routed) = job.routed.take() {
            let router = &mut self.balancers[job.balancer].router;
            router.finish_request(self.prompts, of, routed, job.engine);
        }
        self.outcomes.per_member[job.engine] += 1;
        self.in_flight[job.engine] -= 1;
        self.open -= 1;
        let took = at - job.arrived;
        if job.is_measured {
            self.outcomes.served[0] += 1;
            self.outcomes.latencies.push(took);
            let tokens = &mut self.tokens;
            tokens.first_tokens.push(job.first_token - job.arrived);
            if of.key != FLOOD_KEY {
                let first = job.first_token - job.arrived;
                tokens.others_first_tokens.push(first);
            }
            if of.output_tokens > 1 {
                let gap = (at - job.first_token) / u64::from(of.output_tokens - 1);
                tokens.token_gaps.push(gap);
            }
            tokens.cached_tokens += u64::from(cached);
            tokens.prompt_tokens += u64::from(of.input_tokens);
            tokens.output_tokens += u64::from(of.output_tokens);
        }
        self.window.push(took);
        let balancer = job.balancer;
        if let Some(next) = of.next {
            self.open += 1;
            let think = self.prompts.requests()[next].after.max(1);
            self.queue
                .schedule_after(think as f64, EngineEvent::NextTurn(next));
        }
        self.send_waiting(balancer);
    }

    fn change(&mut self, index: usize) {
        let change = self.scenario.changes[index];
        let ChangeEffect::Slowness(slowness) = change.to else {
            return;
        };
        let index = change.member;
        let left = self.steps[index].ends_at - self.queue.elapsed_nanos() as f64;
        let engine = &mut self.engines[index];
        let factor = engine.set_slowness(slowness);
        if engine.is_stepping {
            engine.busy_nanos += left * (factor - 1.0);
            self.schedule_step_end(index, left * factor);
        }
    }

    fn take_sample(&mut self) {
        let Some(every) = self.scenario.samples else {
            return;
        };
        let now = self.queue.elapsed_nanos();
        let (busy, at) = &mut self.sampled;
        let elapsed = (now - std::mem::replace(at, now)).max(1) as f64;
        let members = self.engines.iter().enumerate().map(|(index, engine)| {
            let before = std::mem::replace(&mut busy[index], engine.busy_nanos);
            MemberSample {
                in_flight: self.in_flight[index],
                // A step counts when it begins.
                busy: ((engine.busy_nanos - before) / elapsed).clamp(0.0, 1.0),
                answered: self.outcomes.per_member[index] as u32,
            }
        });
        let members = members.collect();
        let mut quantile = |share: f64| {
            let last = self.window.len().checked_sub(1)?;
            let index = (share * last as f64).round() as usize;
            let (_, nanos, _) = self.window.select_nth_unstable(index);
            Some(Duration::from_nanos(*nanos))
        };
        let (p50, p99) = (quantile(0.5), quantile(0.99));
        self.outcomes.samples.push(Sample {
            at: Duration::from_nanos(now),
            members,
            waiting: self.balancers.iter().map(|of| of.waiting.len()).sum(),
            answered: self.window.len(),
            p50: p50.unwrap_or_default(),
            p99: p99.unwrap_or_default(),
            failed: 0,
        });
        self.window.clear();
        if now as f64 + duration_nanos(every) <= duration_nanos(self.scenario.length) {
            let every = duration_nanos(every);
            self.queue.schedule_after(every, EngineEvent::Sample);
        }
    }
}
