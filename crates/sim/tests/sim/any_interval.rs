//! Loads that are reported at any interval, late, lost and wrong, in worlds that are drawn at random, in virtual time.
//!
//! What must hold: where members are equal no strategy by load is worse than a random choice, or much worse than the
//! fewest requests in flight; where members carry work of others, strategies by load are better than that.

#![allow(clippy::unwrap_used)] // helpers of tests

use std::time::Duration;

use evenkeel_core::load::LoadId;
use evenkeel_core::strategy::{self, Values};
use evenkeel_sim::{
    Change, ChangeEffect, Discipline, Dispatch, Reports, Scenario, Service, Way, run,
};

/// Strategies by load.
const STRATEGIES: [&str; 5] = [
    "least_utilization",
    "least_loaded",
    "load_minimum",
    "minimum_dispersion",
    "k_least_loaded",
];

/// Draws a number between two, whose logarithm is uniform.
fn between(rng: &mut fastrand::Rng, low: f64, high: f64) -> f64 {
    low * libm::pow(high / low, rng.f64())
}

/// Draws a world of equal members; `is_loaded` gives one of three a load of others.
fn draw(number: u64, is_loaded: bool) -> Scenario {
    let rng = &mut fastrand::Rng::with_seed(number);
    let members = between(rng, 2.0, 16.99) as usize;
    let slots = between(rng, 1.0, 32.99) as usize;
    let discipline = match rng.bool() {
        true => Discipline::Sharing,
        false if is_loaded => Discipline::Sharing,
        false => Discipline::Fifo,
    };
    let id = rng.choice([LoadId::CPU, LoadId::UTILIZATION, LoadId::COMPOSITE]);
    let mut scenario = Scenario::new("", members)
        .with_discipline(discipline, slots)
        .with_utilisation(0.2 + 0.65 * rng.f64())
        .with_service(match rng.u8(..3) {
            0 => Service::Mixed,
            1 => Service::Constant,
            _ => Service::Exponential,
        });
    if rng.u8(..4) == 0 {
        scenario = scenario.with_balancers(rng.usize(2..=4));
    }
    // A run has five intervals at least.
    scenario.requests = (10_000.0 * slots as f64).clamp(30_000.0, 60_000.0) as usize;
    let seconds = scenario.requests as f64 / scenario.arrival_rate();
    let interval = between(rng, 0.01, 60.0f64.min(seconds / 5.0));
    scenario.reports = Some(Reports {
        id: id.unwrap(),
        interval: Duration::from_secs_f64(interval),
        delay: Duration::from_secs_f64(rng.f64() * interval / 2.0),
        noise: rng.choice([0.0, 0.1, 0.3]).unwrap(),
    });
    scenario.way = Way {
        loss: rng.choice([0.0, 0.0, 0.1, 0.3]).unwrap(),
        jitter: Duration::ZERO,
    };
    if is_loaded {
        scenario.utilisation *= 0.6;
        for member in 0..members.div_ceil(3).min(members - 1) {
            let tasks = between(rng, 0.5, 3.0) * slots as f64;
            scenario.changes.push(Change {
                at: Duration::ZERO,
                member,
                to: ChangeEffect::Background(tasks),
            });
        }
    }
    let reports = scenario.reports.unwrap();
    scenario.name = format!(
        "{number}: {members} of {slots} {discipline:?} {:?}, {} balancers, {:.2}, {} every {interval:.3} s, noise {}, loss {}",
        scenario.service,
        scenario.balancers,
        scenario.utilisation,
        reports.id,
        reports.noise,
        scenario.way.loss
    );
    scenario
}

fn mean(scenario: &Scenario, strategy: &str) -> f64 {
    let kind = strategy::find(strategy).unwrap();
    let dispatch = Dispatch::Strategy(Values::defaults(kind));
    run(scenario, &dispatch, 1).mean().as_secs_f64() * 1e3
}

/// Mean response times of the strategies by load in a world, each divided by that of the fewest requests in flight,
/// and that of a random choice in the same way.
fn ratios(world: &Scenario) -> ([f64; STRATEGIES.len()], f64) {
    let requests = mean(world, "least_request");
    let ours = STRATEGIES.map(|strategy| mean(world, strategy) / requests);
    (ours, mean(world, "random") / requests)
}

/// Geometric means over worlds, by strategy.
fn geometric_means(worlds: &[[f64; STRATEGIES.len()]]) -> [f64; STRATEGIES.len()] {
    std::array::from_fn(|index| {
        let logs = worlds.iter().map(|ratios| libm::log(ratios[index]));
        libm::exp(logs.sum::<f64>() / worlds.len() as f64)
    })
}

#[test]
fn d1_at_no_interval_of_reports_is_a_strategy_by_load_worse_than_chance() {
    let mut all = Vec::new();
    for number in 0..30 {
        let world = draw(number, false);
        let (ours, random) = ratios(&world);
        for (ratio, strategy) in ours.iter().zip(STRATEGIES) {
            let most = if strategy == "k_least_loaded" {
                1.35
            } else {
                1.2
            };
            assert!(
                *ratio < random * 1.03 && *ratio < most,
                "{strategy} {ratio}, random {random}: {}",
                world.name
            );
        }
        all.push(ours);
    }
    let means = geometric_means(&all);
    assert!(means.iter().all(|mean| *mean < 1.03), "{means:?}");
}

#[test]
fn d1_at_all_intervals_of_reports_members_with_load_of_others_are_spared() {
    let mut all = Vec::new();
    for number in 0..20 {
        let world = draw(number, true);
        let (ours, _) = ratios(&world);
        for (ratio, strategy) in ours.iter().zip(STRATEGIES) {
            assert!(*ratio < 1.15, "{strategy} {ratio}: {}", world.name);
        }
        all.push(ours);
    }
    let means = geometric_means(&all);
    assert!(means.iter().all(|mean| *mean < 0.92), "{means:?}");
}
