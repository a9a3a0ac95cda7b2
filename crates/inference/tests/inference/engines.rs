//! Groups before simulated engines, in virtual time: an engine reads prompts in chunks, writes a token of each stream in
//! a step, and remembers blocks of prompts until its cache is full.

#![allow(clippy::unwrap_used)]

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};

use evenkeel_inference::chain::{ChainBuilder, HashKey};
use evenkeel_inference::cost::Candidate;
use evenkeel_inference::group::{AnswerEnd, EngineGroup, GroupSettings, RequestFacts, SentRequest};
use evenkeel_inference::scanner::Scanner;
use evenkeel_inference::usage::Usage;

const STEP_SECONDS: f64 = 0.006;
const READ_SECONDS: f64 = 1.25e-4;
const STREAM_SECONDS: f64 = 3.5e-4;
const STEP_TOKENS: u64 = 2048;
const TOKENS_PER_BLOCK: u64 = 128;

/// Request at an engine.
struct Job {
    sent: SentRequest,
    sent_at: f64,
    links: Vec<u64>,
    prompt_tokens: u64,
    cached_tokens: u64,
    unread_tokens: u64,
    output_tokens: u64,
    written_tokens: u64,
    session: usize,
}

/// Engine with a cache from which the oldest blocks go.
#[derive(Default)]
struct Engine {
    slowness: f64,
    is_stepping: bool,
    waiting: VecDeque<Job>,
    running: Vec<Job>,
    cache: HashMap<u64, u64>,
    cache_blocks: usize,
    uses: u64,
}

impl Engine {
    fn admit_waiting(&mut self) {
        while self.running.len() < 64
            && let Some(mut job) = self.waiting.pop_front()
        {
            let held = job
                .links
                .iter()
                .take_while(|link| self.cache.contains_key(link));
            job.cached_tokens = (held.count() as u64 * TOKENS_PER_BLOCK).min(job.prompt_tokens - 1);
            job.unread_tokens = job.prompt_tokens - job.cached_tokens;
            self.running.push(job);
        }
    }

    /// Keeps the blocks of a prompt that has been read.
    fn remember_blocks(&mut self, links: &[u64]) {
        for link in links.iter().rev() {
            self.uses += 1;
            self.cache.insert(*link, self.uses);
        }
        if self.cache.len() > self.cache_blocks {
            let mut ages: Vec<_> = self
                .cache
                .iter()
                .map(|(link, used)| (*used, *link))
                .collect();
            ages.sort_unstable();
            for (_, link) in &ages[..self.cache.len() - self.cache_blocks] {
                self.cache.remove(link);
            }
        }
    }
}

/// Way to choose a member.
#[derive(Clone, Copy, PartialEq)]
enum Rule {
    Inference,
    FewestRequests,
}

/// Conversation of a client.
struct Session {
    messages: String,
    turns: usize,
}

#[derive(Debug, Default)]
struct Results {
    first_tokens: Vec<f64>,
    ends: Vec<f64>,
    requests: Vec<u64>,
    cached_tokens: u64,
    prompt_tokens: u64,
}

impl Results {
    fn hit_rate(&self) -> f64 {
        self.cached_tokens as f64 / self.prompt_tokens as f64
    }

    fn mean_end(&self) -> f64 {
        self.ends.iter().sum::<f64>() / self.ends.len() as f64
    }

    fn mean_first_token(&self) -> f64 {
        self.first_tokens.iter().sum::<f64>() / self.first_tokens.len() as f64
    }
}

/// World: engines, sessions that take turns, and the group that is tested.
struct World {
    rule: Rule,
    says_cached_tokens: bool,
    group: EngineGroup,
    builder: ChainBuilder,
    engines: Vec<Engine>,
    sessions: Vec<Session>,
    /// Moments in nanoseconds, with a session (even) or an engine (odd).
    events: BinaryHeap<Reverse<(u64, usize)>>,
    rng: fastrand::Rng,
    results: Results,
    kept_up: (u64, usize),
    /// Time at which engine 1 loses its cache.
    restart_at: Option<f64>,
}

fn nanos(seconds: f64) -> u64 {
    (seconds * 1e9) as u64
}

impl World {
    fn new(rule: Rule, slowness: &[f64]) -> Self {
        let mut rng = fastrand::Rng::with_seed(7);
        let system = text(&mut rng, 8000);
        let sessions = (0..60).map(|_| {
            let own = text(&mut rng, 4000);
            Session {
                messages: format!("\"{system}\",\"{own}\""),
                turns: 12,
            }
        });
        let sessions: Vec<_> = sessions.collect();
        let mut events = BinaryHeap::new();
        for session in 0..sessions.len() {
            events.push(Reverse((nanos(session as f64 * 0.5), 2 * session)));
        }
        World {
            rule,
            says_cached_tokens: true,
            group: EngineGroup::new(&GroupSettings {
                members: slowness.len(),
                index_bytes: 1 << 20,
                decay_seconds: 30.0,
            }),
            builder: ChainBuilder::new(HashKey::new([1, 2, 3])),
            engines: slowness
                .iter()
                .map(|slowness| Engine {
                    slowness: *slowness,
                    cache_blocks: 1000,
                    ..Engine::default()
                })
                .collect(),
            sessions,
            events,
            rng,
            results: Results {
                requests: vec![0; slowness.len()],
                ..Results::default()
            },
            kept_up: (0, 0),
            restart_at: None,
        }
    }

    fn run(mut self) -> (EngineGroup, Results) {
        while let Some(Reverse((now, event))) = self.events.pop() {
            if now >= self.kept_up.0 {
                let next = self.group.keep_up(self.kept_up.1, 64, now);
                self.kept_up = (now + 1_000_000_000, next);
            }
            if self.restart_at.is_some_and(|at| now >= nanos(at)) {
                self.restart_at = None;
                self.engines[1].cache.clear();
            }
            match event % 2 {
                0 => self.take_turn(event / 2, now),
                _ => self.end_step(event / 2, now),
            }
        }
        (self.group, self.results)
    }

    fn take_turn(&mut self, session: usize, now: u64) {
        let more = self.rng.usize(500..2000);
        let more = text(&mut self.rng, more);
        let known = &mut self.sessions[session];
        known.messages += &format!(",\"{more}\"");
        known.turns -= 1;
        let body = format!(
            "{{\"messages\":[{}],\"model\":\"m\",\"stream\":true}}",
            known.messages
        );
        let mut scanner = Scanner::new();
        self.builder.reset();
        scanner.feed_bytes(body.as_bytes(), &mut self.builder);
        let model = self.builder.model_hash();
        let plan = self.group.plan_request(RequestFacts {
            chain: self.builder.link_blocks(),
            model,
            max_tokens: scanner.max_tokens(),
            is_stream: scanner.wants_stream(),
            random: self.rng.u64(..),
        });
        let member = match self.rule {
            Rule::Inference => {
                let candidates = (0..self.engines.len()).map(|member| Candidate {
                    member,
                    key: (member as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15),
                    weight: 1.0,
                    ..Candidate::default()
                });
                let chosen = self.group.choose_member(&plan, candidates, now, |_, _| {});
                chosen.unwrap().member
            }
            Rule::FewestRequests => {
                let engines = self.engines.iter().enumerate();
                let fewest = engines.min_by_key(|(_, engine)| {
                    (engine.waiting.len() + engine.running.len(), self.rng.u8(..))
                });
                fewest.unwrap().0
            }
        };
        let sent = self.group.begin_request(&plan, member, now).unwrap();
        let links = plan_links(&mut self.builder);
        self.results.requests[member] += 1;
        self.engines[member].waiting.push_back(Job {
            sent,
            sent_at: now as f64 / 1e9,
            links,
            prompt_tokens: body.len() as u64 / 4,
            cached_tokens: 0,
            unread_tokens: 0,
            output_tokens: self.rng.u64(20..300),
            written_tokens: 0,
            session,
        });
        if !self.engines[member].is_stepping {
            self.begin_step(member, now);
        }
    }

    fn begin_step(&mut self, member: usize, now: u64) {
        let engine = &mut self.engines[member];
        engine.admit_waiting();
        engine.is_stepping = !engine.running.is_empty();
        if !engine.is_stepping {
            return;
        }
        let streams = engine
            .running
            .iter()
            .filter(|job| job.written_tokens > 0)
            .count();
        let mut left = STEP_TOKENS - streams as u64;
        for job in engine
            .running
            .iter_mut()
            .filter(|job| job.written_tokens == 0)
        {
            let read = job.unread_tokens.min(left);
            job.unread_tokens -= read;
            left -= read;
        }
        let read = STEP_TOKENS - streams as u64 - left;
        let seconds = STEP_SECONDS + read as f64 * READ_SECONDS + streams as f64 * STREAM_SECONDS;
        let end = now + nanos(seconds * engine.slowness);
        self.events.push(Reverse((end, 2 * member + 1)));
    }

    fn end_step(&mut self, member: usize, now: u64) {
        let engine = &mut self.engines[member];
        let mut index = 0;
        while index < engine.running.len() {
            let job = &mut engine.running[index];
            if job.unread_tokens > 0 {
                index += 1;
                continue;
            }
            job.written_tokens += 1;
            self.group.take_events(&mut job.sent, 1, now);
            let seconds = now as f64 / 1e9 - job.sent_at;
            if job.written_tokens == 1 {
                self.results.first_tokens.push(seconds);
                let links = std::mem::take(&mut job.links);
                engine.remember_blocks(&links);
            }
            let job = &mut engine.running[index];
            if job.written_tokens < job.output_tokens {
                index += 1;
                continue;
            }
            let mut job = engine.running.swap_remove(index);
            self.results.ends.push(seconds);
            self.results.cached_tokens += job.cached_tokens;
            self.results.prompt_tokens += job.prompt_tokens;
            let usage = Usage {
                prompt_tokens: job.prompt_tokens as u32,
                cached_tokens: self.says_cached_tokens.then_some(job.cached_tokens as u32),
                output_tokens: job.output_tokens as u32,
            };
            let end = AnswerEnd {
                usage: Some(usage),
                events: job.written_tokens,
                is_complete: true,
            };
            self.group.finish_request(&mut job.sent, &end, now);
            if self.sessions[job.session].turns > 0 {
                let think = 0.5 + 4.0 * self.rng.f64();
                self.events
                    .push(Reverse((now + nanos(think), 2 * job.session)));
            }
        }
        self.begin_step(member, now);
    }
}

fn plan_links(builder: &mut ChainBuilder) -> Vec<u64> {
    builder.link_blocks().block_links().to_vec()
}

fn text(rng: &mut fastrand::Rng, length: usize) -> String {
    (0..length).map(|_| rng.alphanumeric()).collect()
}

#[test]
fn conversations_find_their_caches() {
    let (group, results) = World::new(Rule::Inference, &[1.0; 4]).run();
    let (_, fewest) = World::new(Rule::FewestRequests, &[1.0; 4]).run();
    assert_eq!(results.ends.len(), 720);
    assert!(results.hit_rate() > fewest.hit_rate() + 0.1);
    assert!(results.mean_first_token() < 0.6 * fewest.mean_first_token());
    assert!(results.mean_end() < 0.8 * fewest.mean_end());
    for speed in group.member_speeds() {
        let speeds = speed.get();
        let is_near = |found: f32, truth: f64| (f64::from(found) / truth - 1.0).abs() < 0.3;
        assert!(is_near(speeds.read, READ_SECONDS), "{speeds:?}");
        assert!(is_near(speeds.write, STEP_SECONDS), "{speeds:?}");
    }
    // All get about the same.
    let requests = &results.requests;
    assert!(requests.iter().all(|count| *count > 120), "{requests:?}");
}

#[test]
fn a_slow_member_gets_less() {
    let slowness = [4.0, 1.0, 1.0, 1.0];
    let (_, results) = World::new(Rule::Inference, &slowness).run();
    let (_, fewest) = World::new(Rule::FewestRequests, &slowness).run();
    assert!(results.requests[0] < fewest.requests[0]);
    assert!(results.mean_end() < 0.7 * fewest.mean_end());
}

#[test]
fn a_restart_is_noticed() {
    let mut world = World::new(Rule::Inference, &[1.0; 4]);
    world.restart_at = Some(25.0);
    let (_, results) = world.run();
    let (_, without) = World::new(Rule::Inference, &[1.0; 4]).run();
    assert!(results.hit_rate() > without.hit_rate() - 0.04);
}

#[test]
fn engines_need_not_say_what_they_remember() {
    let mut world = World::new(Rule::Inference, &[1.0; 4]);
    world.says_cached_tokens = false;
    let (_, results) = world.run();
    let (_, without) = World::new(Rule::Inference, &[1.0; 4]).run();
    assert!(results.mean_end() < 1.15 * without.mean_end());
}

/// A cache of unknown size is used about as well as one of known size.
#[test]
fn the_size_of_small_caches_is_learnt() {
    let run = |rule: Rule, span: Option<u64>| {
        let mut world = World::new(rule, &[1.0; 4]);
        for engine in &mut world.engines {
            engine.cache_blocks = 250;
        }
        for memory in world.group.member_memories() {
            span.into_iter().for_each(|span| memory.set_span(span));
        }
        world.run()
    };
    let (group, learnt) = run(Rule::Inference, None);
    let (_, known) = run(Rule::Inference, Some(250 * TOKENS_PER_BLOCK));
    let (_, fewest) = run(Rule::FewestRequests, None);
    let spans: Vec<_> = group
        .member_memories()
        .iter()
        .map(|memory| memory.span_tokens())
        .collect();
    eprintln!(
        "{spans:?} hit rate {:.3}, {:.3} and {:.3}, end {:.3}, {:.3} and {:.3}",
        learnt.hit_rate(),
        known.hit_rate(),
        fewest.hit_rate(),
        learnt.mean_end(),
        known.mean_end(),
        fewest.mean_end()
    );
    assert!(spans.iter().all(|span| *span < 250_000), "{spans:?}");
    assert!(learnt.mean_end() < 1.1 * known.mean_end());
    assert!(learnt.mean_end() < fewest.mean_end());
}
