//! Engines of language models: the balancer beside rules of other routers.

#![allow(clippy::unwrap_used)] // helpers of tests

use std::time::Duration;

use evenkeel_core::group::GroupSettings;
use evenkeel_core::strategy::{self, Values};
use evenkeel_sim::Outcomes;
use evenkeel_sim::config::equal_members;
use evenkeel_sim::inference::prompts::{
    AgentPrompts, Clients, Flood, Prompts, SharedPrompts, Workload,
};
use evenkeel_sim::inference::{EngineModel, EngineScenario, Router, play_engines};
use evenkeel_sim::{Change, ChangeEffect, TokenOutcomes};

const LENGTH: Duration = Duration::from_secs(120);

fn agents() -> Workload {
    Workload::Agents(AgentPrompts {
        rate: 0.4,
        shared_tokens: 4096,
        own_tokens: 4000,
        turns: 12,
        turn_tokens: 1000,
        think_seconds: 5.0,
        output_tokens: 150,
        seconds: LENGTH.as_secs_f64(),
    })
}

fn shared(rate: f64) -> Workload {
    Workload::Shared(SharedPrompts {
        rate,
        count: 32,
        zipf: 1.0,
        shared_tokens: 6144,
        own_tokens: 1000,
        output_tokens: 150,
        seconds: LENGTH.as_secs_f64(),
    })
}

/// Requests of one key that floods the engines, which read some 8,000 tokens a second each.
const FLOOD: Flood = Flood {
    rate: 15.0,
    prompt_tokens: 6000,
    output_tokens: 50,
};

/// Requests of the other keys: four a second, whose prompts begin with one of eight texts of this length. With 2,048
/// tokens, the keys together want a third of what the engines read, whatever is in the caches.
fn polite_keys(shared_tokens: u32) -> Workload {
    Workload::Shared(SharedPrompts {
        rate: 4.0,
        count: 8,
        zipf: 1.0,
        shared_tokens,
        own_tokens: 500,
        output_tokens: 50,
        seconds: LENGTH.as_secs_f64(),
    })
}

fn scenario(router: Router, slowness: &[f64]) -> EngineScenario {
    let strategy = Values::defaults(strategy::find("inference").unwrap());
    let settings = GroupSettings::default();
    EngineScenario {
        config: equal_members("engines", slowness.len(), settings, strategy),
        group: "engines".into(),
        model: EngineModel {
            cache_tokens: 200_000,
            ..EngineModel::default()
        },
        slowness: slowness.to_vec(),
        router,
        balancers: 1,
        is_fleet: false,
        network: Duration::from_micros(200),
        says_cached_tokens: true,
        says_max_tokens: false,
        changes: Vec::new(),
        length: LENGTH,
        samples: None,
    }
}

fn play(scenario: &EngineScenario, prompts: &Prompts) -> (Outcomes, TokenOutcomes) {
    let mut outcomes = play_engines(scenario, prompts, 5, &mut |_| true);
    let tokens = outcomes.tokens.take().unwrap();
    (outcomes, tokens)
}

fn mean_end(outcomes: &Outcomes) -> f64 {
    outcomes.mean().as_secs_f64()
}

/// A request on an idle engine takes the time of its steps, and the same prompt again takes only the time of the tokens
/// that are not in the cache.
#[test]
fn an_engine_takes_the_time_of_its_steps() {
    let line = |millis: u32| {
        format!(
            "{{\"timestamp\": {millis}, \"input_length\": 4096, \"output_length\": 11, \
             \"hash_ids\": [1, 2, 3, 4, 5, 6, 7, 8]}}\n"
        )
    };
    let text = line(0) + &line(20_000) + &line(40_000);
    let trace = evenkeel_sim::inference::prompts::Trace::parse(&text).unwrap();
    let prompts = Workload::Trace(trace.into(), 1.0).draw(1);
    let scenario = EngineScenario {
        network: Duration::ZERO,
        ..scenario(Router::RoundRobin, &[1.0])
    };
    let (outcomes, tokens) = play(&scenario, &prompts);
    assert_eq!((outcomes.requests, outcomes.failed), (3, 0));
    // The first request is part of the warm-up. Of the prompt, 512 tokens are always read.
    let first = 6e6 + 512.0 * 125e3;
    let streaming = 10.0 * (6e6 + 350e3);
    assert_eq!(tokens.first_tokens, [first as u64; 2]);
    assert_eq!(outcomes.latencies, [(first + streaming) as u64; 2]);
    assert_eq!(tokens.token_gaps, [6_350_000; 2]);
    assert_eq!(tokens.hit_share(), 7.0 / 8.0);
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let prompts = agents().draw(3);
    for router in [Router::Evenkeel, Router::LMetric] {
        let scenario = EngineScenario {
            balancers: 2,
            ..scenario(router, &[1.0; 4])
        };
        let (one, _) = play(&scenario, &prompts);
        let (other, _) = play(&scenario, &prompts);
        assert_eq!(one.latencies, other.latencies);
        assert!(one.failed == 0 && one.latencies.len() > 300);
    }
}

#[test]
fn all_routers_answer_all_requests() {
    let prompts = agents().draw(4);
    for (name, router) in Router::ALL {
        let (outcomes, tokens) = play(&scenario(router, &[1.0; 4]), &prompts);
        assert_eq!(outcomes.failed, 0, "{name}");
        assert_eq!(outcomes.requests, prompts.requests().len(), "{name}");
        assert!(tokens.hit_share() > 0.2, "{name}");
    }
}

#[test]
fn agents_find_what_their_engines_remember() {
    let prompts = agents().draw(5);
    let (even, even_tokens) = play(&scenario(Router::Evenkeel, &[1.0; 4]), &prompts);
    let (least, least_tokens) = play(&scenario(Router::LeastRequest, &[1.0; 4]), &prompts);
    assert!(even_tokens.hit_share() > least_tokens.hit_share() + 0.15);
    assert!(mean_end(&even) < 0.8 * mean_end(&least));
}

#[test]
fn a_slow_engine_costs_less_than_with_any_other_rule() {
    let prompts = shared(6.0).draw(6);
    let slowness = [4.0, 1.0, 1.0, 1.0];
    let (even, _) = play(&scenario(Router::Evenkeel, &slowness), &prompts);
    for (name, router) in Router::ALL {
        if !router.is_balancer() {
            let (other, _) = play(&scenario(router, &slowness), &prompts);
            let ratio = mean_end(&even) / mean_end(&other);
            assert!(ratio < 1.0, "{name}: {ratio}");
        }
    }
}

/// With metrics the balancer knows of queues which it would only expect otherwise: it uses them, and gains little.
#[test]
fn metrics_of_engines_change_little() {
    let prompts = shared(6.0).draw(6);
    let [without, with] = [Router::Evenkeel, Router::EvenkeelMetrics]
        .map(|router| play(&scenario(router, &[4.0, 1.0, 1.0, 1.0]), &prompts).0);
    assert_ne!(with.per_member, without.per_member);
    let ratio = mean_end(&without) / mean_end(&with);
    assert!(ratio < 1.1, "{ratio}");
}

#[test]
fn answers_need_not_say_what_engines_remembered() {
    let prompts = agents().draw(7);
    let with = scenario(Router::Evenkeel, &[1.0; 4]);
    let without = EngineScenario {
        says_cached_tokens: false,
        ..with.clone()
    };
    let (with, _) = play(&with, &prompts);
    let (without, _) = play(&without, &prompts);
    assert!(mean_end(&without) < 1.15 * mean_end(&with));
}

/// A balancer that knows how long answers are at most expects no more than that.
#[test]
fn requests_may_say_how_long_their_answers_are() {
    let prompts = shared(4.0).draw(12);
    let without = scenario(Router::Evenkeel, &[4.0, 1.0, 1.0, 1.0]);
    let with = EngineScenario {
        says_max_tokens: true,
        ..without.clone()
    };
    let (without, _) = play(&without, &prompts);
    let (with, _) = play(&with, &prompts);
    assert_eq!(with.failed, 0);
    assert_ne!(with.per_member, without.per_member);
    assert!(mean_end(&with) < 1.05 * mean_end(&without));
}

/// Two balancers, between which the turns of a conversation are drawn at random.
#[test]
fn balancers_that_tell_each_other_prompts_are_as_good_as_one() {
    let prompts = agents().draw(11);
    let one = scenario(Router::Evenkeel, &[1.0; 4]);
    let silent = EngineScenario {
        balancers: 2,
        ..one.clone()
    };
    let telling = EngineScenario {
        is_fleet: true,
        ..silent.clone()
    };
    let [one, silent, telling] = [one, silent, telling].map(|one| play(&one, &prompts));
    let shares = [&one, &silent, &telling].map(|(_, tokens)| tokens.hit_share());
    assert!(shares[1] < shares[0] - 0.03, "{shares:?}");
    assert!(shares[2] > shares[0] - 0.02, "{shares:?}");
    let [one, silent, telling] = [one, silent, telling].map(|(outcomes, _)| mean_end(&outcomes));
    assert!(telling < 1.1 * one, "{telling} {one}");
    assert!(telling < silent, "{telling} {silent}");
}

#[test]
fn an_engine_that_stands_still_gets_nothing_meanwhile() {
    let prompts = shared(4.0).draw(8);
    let change = |at: u64, slowness: f64| Change {
        at: Duration::from_secs(at),
        member: 2,
        to: ChangeEffect::Slowness(slowness),
    };
    let still = EngineScenario {
        changes: vec![change(40, 1e9), change(70, 1.0)],
        ..scenario(Router::Evenkeel, &[1.0; 4])
    };
    let (outcomes, _) = play(&still, &prompts);
    assert_eq!(outcomes.failed, 0);
    let late = |outcomes: &Outcomes| {
        let late = outcomes.latencies.iter();
        late.filter(|nanos| **nanos > 10_000_000_000).count()
    };
    let least = EngineScenario {
        router: Router::LMetric,
        ..still
    };
    let (least, _) = play(&least, &prompts);
    let (late, least) = (late(&outcomes), late(&least));
    assert!(0 < late && late < 40 && late <= least, "{late} {least}");
}

/// A cache that is too small for all answers: requests give up their room, and are all answered in the end.
#[test]
fn a_cache_that_is_too_small_is_shared_in_turns() {
    let prompts = shared(3.0).draw(9);
    let scenario = EngineScenario {
        model: EngineModel {
            cache_tokens: 16_384,
            ..EngineModel::default()
        },
        ..scenario(Router::LeastRequest, &[1.0; 4])
    };
    let (outcomes, tokens) = play(&scenario, &prompts);
    assert_eq!(outcomes.failed, 0);
    assert!(tokens.preemptions > 0);
}

/// Fair shares by key: a key that floods the engines waits behind its own requests, and the others' first tokens come
/// nearly as soon as without the flood.
#[test]
fn a_key_that_floods_delays_the_first_tokens_of_others_little() {
    let world = |has_target: bool| {
        let mut scenario = scenario(Router::Evenkeel, &[1.0; 4]);
        let settings = &mut scenario.config.groups[0].settings;
        settings.inference.ttft_target = has_target.then_some(Duration::from_secs(1));
        scenario
    };
    let clients = |flood| Clients { keys: 8, flood };
    let polite = polite_keys(2048);
    let calm = polite.draw_with_clients(&clients(None), 5);
    let flooded = polite.draw_with_clients(&clients(Some(FLOOD)), 5);
    assert!(flooded.requests().len() > calm.requests().len() + 1000);
    let p90 = |has_target, prompts: &Prompts| {
        let (_, tokens) = play(&world(has_target), prompts);
        let others = &tokens.others_first_tokens;
        assert!(others.len() > 300, "{}", others.len());
        TokenOutcomes::quantile_seconds(others, 0.9)
    };
    let without = p90(true, &calm);
    let with = p90(true, &flooded);
    let unfair = p90(false, &flooded);
    // The target, and the time in which an engine reads the longest of the flood's prompts.
    let bound = without + 1.0 + 12_000.0 * 125e-6;
    assert!(with < bound, "{without} {with}");
    assert!(with < unfair / 20.0, "{with} {unfair}");
}

/// Keys have fair shares without a time for the first token, too, where requests wait for a place at an engine.
#[test]
fn a_key_that_floods_delays_others_little_where_engines_have_a_limit_of_requests() {
    let mut world = scenario(Router::Evenkeel, &[1.0; 4]);
    for member in &mut world.config.groups[0].members {
        member.max_connections = Some(8);
    }
    let polite = polite_keys(2048);
    let play_keys = |keys| {
        let clients = Clients {
            keys,
            flood: Some(FLOOD),
        };
        let prompts = polite.draw_with_clients(&clients, 5);
        let (outcomes, tokens) = play(&world, &prompts);
        assert!(outcomes.queued > 1000, "{}", outcomes.queued);
        let others = &tokens.others_first_tokens;
        assert!(others.len() > 300, "{}", others.len());
        TokenOutcomes::quantile_seconds(others, 0.9)
    };
    // Eight prompts of the flood at each engine, and the share of eight keys beside one.
    let with = play_keys(8);
    assert!(with < 16.0 * 6_000.0 * 125e-6, "{with}");
}

/// Keys with long prompts that are cached get their share beside a flood, though their prompts have more tokens than the
/// engines can read: nobody is put behind the whole flood.
#[test]
fn keys_with_long_cached_prompts_keep_their_share_beside_a_flood() {
    let mut world = scenario(Router::Evenkeel, &[1.0; 4]);
    let settings = &mut world.config.groups[0].settings;
    settings.inference.ttft_target = Some(Duration::from_secs(1));
    let clients = |flood| Clients { keys: 8, flood };
    // Prompts of 48,000 tokens a second, of which 2,000 are new; the engines read 32,000.
    let cached = polite_keys(11_500);
    let p90 = |flood| {
        let prompts = cached.draw_with_clients(&clients(flood), 5);
        let (_, tokens) = play(&world, &prompts);
        TokenOutcomes::quantile_seconds(&tokens.others_first_tokens, 0.9)
    };
    let (without, with) = (p90(None), p90(Some(FLOOD)));
    // The target, and the times in which an engine reads the longest of the flood's prompts and the beginning of a
    // prompt that was thrown out of the cache.
    let bound = without + 1.0 + (12_000.0 + 11_500.0) * 125e-6;
    assert!(with < bound, "{without} {with}");
}
