//! Rules of other routers for engines of language models, as their documentation describes them, to compare with. They
//! exist in the simulator only.
//!
//! All rules get more than the programs have: an index of each engine that is as large as its cache, and metrics without
//! any delay. `preble` gets the true speeds of an engine of normal speed.

use std::collections::{HashMap, VecDeque};

use super::batching::{BatchingEngine, EngineModel};
use super::cache::RecentBlocks;
use super::prompts::{PromptRequest, Prompts, TOKENS_PER_BLOCK};

/// Router in front of engines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Router {
    /// The balancer, with the strategy of its configuration.
    Evenkeel,
    /// The balancer, which also reads the metrics of the engines once a second: requests that wait, and all requests.
    EvenkeelMetrics,
    /// Engines in turn.
    RoundRobin,
    /// The engine with the fewest requests in flight.
    LeastRequest,
    /// The scheduler of llm-d: 3 for the known share of the prompt, 2 for the shortest queue, and 2 for the share of the
    /// cache that is free.
    LlmD,
    /// The router of NVIDIA Dynamo: blocks to be read before the first token, and blocks in use.
    Dynamo,
    /// LMetric (arXiv 2603.15202): tokens to be read before the first token, times requests.
    LMetric,
    /// The routers of SGLang and vLLM (`cache_aware`): the longest known beginning if it is more than 0.3 of the prompt,
    /// unless loads differ by 64 requests and a half.
    VllmRouter,
    /// SGLang's Model Gateway (`cache_aware`): the same with a narrower limit of loads, without engines that are full.
    Smg,
    /// Preble (ICLR 2025), E2: the longest known beginning if it is more than half of the prompt; else the least work of
    /// the last three minutes.
    Preble,
}

impl Router {
    /// All routers, with their names.
    pub const ALL: [(&str, Router); 10] = [
        ("evenkeel", Router::Evenkeel),
        ("evenkeel-metrics", Router::EvenkeelMetrics),
        ("round-robin", Router::RoundRobin),
        ("least-request", Router::LeastRequest),
        ("llm-d", Router::LlmD),
        ("dynamo", Router::Dynamo),
        ("lmetric", Router::LMetric),
        ("vllm-router", Router::VllmRouter),
        ("smg", Router::Smg),
        ("preble", Router::Preble),
    ];

    /// True if the router is the balancer's own code.
    pub fn is_balancer(self) -> bool {
        matches!(self, Router::Evenkeel | Router::EvenkeelMetrics)
    }

    /// Name of the router.
    pub fn name(self) -> &'static str {
        let mut all = Router::ALL.iter();
        all.find(|(_, router)| *router == self)
            .map_or("", |(name, _)| name)
    }
}

/// Share of a prompt that must be known for `vllm-router` and `smg`.
const MATCH_SHARE: f64 = 0.3;

/// Difference of loads, in requests and in times, from which `vllm-router` goes by load.
const ABSOLUTE_DIFFERENCE: f64 = 64.0;
const RELATIVE_DIFFERENCE: f64 = 1.5;

/// Requests that wait, and share of the cache in use, from which `smg` leaves an engine out.
const FULL_QUEUE: usize = 8;
const FULL_CACHE: f64 = 0.8;

/// Time for which Preble counts work, in nanoseconds.
const WORK_WINDOW: u64 = 180_000_000_000;

/// Ratio of the heaviest to the lightest load from which Preble moves requests.
const PREBLE_IMBALANCE: f64 = 2.0;

/// Engine as a router knows it.
#[derive(Debug, Default)]
struct Seat {
    index: RecentBlocks,
    requests: u32,
    /// Tokens to be read before first tokens.
    queued: u64,
    /// Number of requests that use each block, and blocks of single requests.
    active: HashMap<u64, u32>,
    active_private: usize,
    /// Work that was sent: time, and seconds.
    work: VecDeque<(u64, f64)>,
    work_sum: f64,
}

/// Load of one request, to be taken back.
#[derive(Clone, Copy, Debug)]
pub(super) struct RoutedRequest {
    unread: u64,
    is_queued: bool,
}

/// State of a router.
#[derive(Debug)]
pub(super) struct RouterState {
    router: Router,
    model: EngineModel,
    seats: Vec<Seat>,
    turn: usize,
    /// Tokens of answers, and their number.
    outputs: (u64, u64),
    /// Tokens of prompts that were found, and all.
    found: (u64, u64),
}

impl RouterState {
    pub(super) fn new(router: Router, model: EngineModel, engines: usize) -> Self {
        RouterState {
            router,
            model,
            seats: (0..engines).map(|_| Seat::default()).collect(),
            turn: 0,
            outputs: (0, 0),
            found: (0, 0),
        }
    }

    /// Chooses an engine for a request.
    pub(super) fn choose_engine(
        &mut self,
        prompts: &Prompts,
        request: &PromptRequest,
        engines: &[BatchingEngine],
        now: u64,
        rng: &mut fastrand::Rng,
    ) -> usize {
        let blocks = prompts.blocks_of(request);
        let all = blocks.len().max(1) as f64;
        let count = self.seats.len();
        self.seats.iter_mut().for_each(|seat| seat.forget_work(now));
        let known: Vec<usize> = match self.router {
            Router::Dynamo => {
                let caches = engines.iter().map(BatchingEngine::block_cache);
                caches.map(|cache| cache.count_prefix(blocks)).collect()
            }
            _ => {
                let indexes = self.seats.iter().map(|seat| &seat.index);
                indexes.map(|index| index.count_prefix(blocks)).collect()
            }
        };
        let unread = |engine: usize| unread_tokens(request, known[engine]);
        let load = |engine: usize| f64::from(self.seats[engine].requests);
        let loads = (0..count).map(load);
        let (least, most) = loads
            .clone()
            .fold((f64::MAX, 0.0), |(low, high): (f64, f64), load| {
                (low.min(load), high.max(load))
            });
        let mean = loads.sum::<f64>() / count.max(1) as f64;
        // The longest known beginning; of equal ones the least load.
        let longest = |engines: &[usize]| {
            let best = engines.iter().copied().max_by(|one, other| {
                let by_load = load(*other).total_cmp(&load(*one));
                known[*one].cmp(&known[*other]).then(by_load)
            });
            best.unwrap_or(0)
        };
        let everyone: Vec<usize> = (0..count).collect();
        match self.router {
            Router::Evenkeel | Router::EvenkeelMetrics | Router::RoundRobin => {
                self.turn = (self.turn + 1) % count;
                self.turn
            }
            Router::LeastRequest => pick_least(&everyone, load, rng),
            Router::LlmD => {
                let queues = engines.iter().map(BatchingEngine::waiting_requests);
                let shortest = queues.clone().min().unwrap_or(0) as f64;
                let longest = queues.max().unwrap_or(0) as f64;
                let score = |engine: usize| {
                    let queue = engines[engine].waiting_requests() as f64;
                    let queue = match longest > shortest {
                        true => (longest - queue) / (longest - shortest),
                        false => 1.0,
                    };
                    let free = 1.0 - engines[engine].block_cache().used_share();
                    3.0 * known[engine] as f64 / all + 2.0 * queue + 2.0 * free
                };
                pick_least(&everyone, |engine| -score(engine), rng)
            }
            Router::Dynamo => {
                let cost = |engine: usize| {
                    let seat = &self.seats[engine];
                    let read = (seat.queued + unread(engine)) as f64 / TOKENS_PER_BLOCK as f64;
                    let new = blocks
                        .iter()
                        .filter(|of| !seat.active.contains_key(of))
                        .count();
                    read + (seat.active.len() + seat.active_private + new + 1) as f64
                };
                pick_least(&everyone, cost, rng)
            }
            Router::LMetric => {
                let cost = |engine: usize| {
                    let queued = self.seats[engine].queued + unread(engine);
                    queued as f64 * (load(engine) + 1.0)
                };
                pick_least(&everyone, cost, rng)
            }
            Router::VllmRouter => {
                let best = longest(&everyone);
                if most - least > ABSOLUTE_DIFFERENCE && most > RELATIVE_DIFFERENCE * least {
                    pick_least(&everyone, load, rng)
                } else if known[best] as f64 / all > MATCH_SHARE {
                    best
                } else {
                    // The engine whose tree has the fewest texts.
                    let texts = |engine: usize| self.seats[engine].index.len() as f64;
                    pick_least(&everyone, texts, rng)
                }
            }
            Router::Smg => {
                let has_room = |engine: &usize| {
                    engines[*engine].waiting_requests() < FULL_QUEUE
                        && engines[*engine].block_cache().used_share() < FULL_CACHE
                };
                let mut some: Vec<usize> = everyone.iter().copied().filter(has_room).collect();
                if some.is_empty() {
                    some = everyone;
                }
                let best = longest(&some);
                let limit = mean + (2.0 * mean.sqrt()).min(ABSOLUTE_DIFFERENCE);
                let is_crowded = load(best) > RELATIVE_DIFFERENCE * mean && load(best) > limit;
                match known[best] as f64 / all >= MATCH_SHARE && !is_crowded {
                    true => best,
                    false => pick_least(&some, load, rng),
                }
            }
            Router::Preble => {
                let model = self.model;
                let output = self.outputs.0 as f64 / self.outputs.1.max(1) as f64;
                let share = self.found.0 as f64 / self.found.1.max(1) as f64;
                let work = |engine: usize| self.seats[engine].work_sum;
                let lightest = pick_least(&everyone, work, rng);
                let best = longest(&everyone);
                let seconds = |engine: usize| unread(engine) as f64 * model.read_nanos / 1e9;
                let heaviest = (0..count).map(work).fold(0.0, f64::max);
                let is_uneven = heaviest > PREBLE_IMBALANCE * work(lightest);
                if 2 * known[best] * TOKENS_PER_BLOCK > request.input_tokens as usize {
                    match is_uneven && work(best) == heaviest {
                        true => lightest,
                        false => best,
                    }
                } else {
                    let cost = |engine: usize| {
                        let room = model.cache_tokens / TOKENS_PER_BLOCK;
                        let is_full = self.seats[engine].index.len() >= room;
                        // Blocks that go are read again as often as blocks are found.
                        let evict = if is_full {
                            share * seconds(engine)
                        } else {
                            0.0
                        };
                        work(engine) + seconds(engine) + evict + output * model.step_nanos / 1e9
                    };
                    pick_least(&everyone, cost, rng)
                }
            }
        }
    }

    /// Counts a request that is sent to an engine.
    pub(super) fn begin_request(
        &mut self,
        prompts: &Prompts,
        request: &PromptRequest,
        engine: usize,
        now: u64,
    ) -> RoutedRequest {
        let blocks = prompts.blocks_of(request);
        let output = self.outputs.0 as f64 / self.outputs.1.max(1) as f64;
        let room = self.model.cache_tokens / TOKENS_PER_BLOCK;
        let seat = &mut self.seats[engine];
        let known = seat.index.count_prefix(blocks);
        let unread = unread_tokens(request, known);
        self.found.0 += u64::from(request.input_tokens) - unread;
        self.found.1 += u64::from(request.input_tokens);
        seat.index.insert_prompt(blocks, room);
        seat.requests += 1;
        seat.queued += unread;
        match self.router {
            Router::Dynamo => {
                for block in blocks {
                    *seat.active.entry(*block).or_default() += 1;
                }
                seat.active_private += 1;
            }
            Router::Preble => {
                let model = &self.model;
                let work = unread as f64 * model.read_nanos + output * model.step_nanos;
                seat.work.push_back((now, work / 1e9));
                seat.work_sum += work / 1e9;
            }
            _ => {}
        }
        RoutedRequest {
            unread,
            is_queued: true,
        }
    }

    /// The first token of a request is here.
    pub(super) fn take_first_token(&mut self, request: &mut RoutedRequest, engine: usize) {
        if std::mem::take(&mut request.is_queued) {
            self.seats[engine].queued -= request.unread;
        }
    }

    /// A request has ended.
    pub(super) fn finish_request(
        &mut self,
        prompts: &Prompts,
        request: &PromptRequest,
        mut routed: RoutedRequest,
        engine: usize,
    ) {
        self.take_first_token(&mut routed, engine);
        self.outputs.0 += u64::from(request.output_tokens);
        self.outputs.1 += 1;
        let seat = &mut self.seats[engine];
        seat.requests -= 1;
        if self.router == Router::Dynamo {
            seat.active_private -= 1;
            for block in prompts.blocks_of(request) {
                if let Some(users) = seat.active.get_mut(block) {
                    *users -= 1;
                    if *users == 0 {
                        seat.active.remove(block);
                    }
                }
            }
        }
    }
}

impl Seat {
    fn forget_work(&mut self, now: u64) {
        while let Some((at, work)) = self.work.front().copied()
            && at + WORK_WINDOW < now
        {
            self.work.pop_front();
            self.work_sum -= work;
        }
        if self.work.is_empty() {
            self.work_sum = 0.0;
        }
    }
}

/// Tokens of a prompt of which `known` blocks need not be read.
fn unread_tokens(request: &PromptRequest, known: usize) -> u64 {
    let tokens = request.input_tokens as usize;
    tokens.saturating_sub(known * TOKENS_PER_BLOCK).max(1) as u64
}

/// The engine with the lowest cost; one of them at random if there are several.
fn pick_least(engines: &[usize], cost: impl Fn(usize) -> f64, rng: &mut fastrand::Rng) -> usize {
    let (mut best, mut lowest, mut equal) = (0, f64::INFINITY, 0);
    for &engine in engines {
        let cost = cost(engine);
        if cost < lowest {
            (best, lowest, equal) = (engine, cost, 1);
        } else if cost == lowest {
            equal += 1;
            if rng.usize(..equal) == 0 {
                best = engine;
            }
        }
    }
    best
}
