//! Strategies that go by reported load, where it is reported fast, late, with noise, by
//! members that carry what no balancer sent, and to several balancers, in virtual time.
//!
//! What must hold: nobody herds, equal members are served no worse than by chance, and
//! members with work of others are left alone.

#![allow(clippy::unwrap_used)] // helpers of tests

use std::time::Duration;

use evenkeel_core::load::LoadId;
use evenkeel_core::strategy::{self, Values};
use evenkeel_sim::{
    Change, ChangeEffect, Discipline, Dispatch, Outcomes, Reports, Scenario, Service, run,
};

/// Strategies that take a least loaded member, and the default.
const STRATEGIES: [&str; 4] = ["k_least_loaded", "least_loaded", "load_minimum", "adaptive"];
const MEMBERS: usize = 10;
/// Members with work of others, where there are any.
const LOADED: usize = 3;

fn play(scenario: &Scenario, strategy: &str) -> Outcomes {
    let kind = strategy::find(strategy).unwrap();
    let dispatch = Dispatch::Strategy(Values::defaults(kind));
    run(scenario, &dispatch, 1)
}

/// Fails with all that was found wrong.
fn none(wrong: Vec<String>) {
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn millis(outcomes: &Outcomes) -> f64 {
    outcomes.mean().as_secs_f64() * 1e3
}

/// Members whose CPUs are shared by all tasks, and loads that are off by a tenth.
fn scenario(members: usize, balancers: usize, cpus: usize, id: LoadId, every: u64) -> Scenario {
    let name = format!("{members}/{balancers}, {cpus} CPUs, {id} every {every} ms");
    let mut scenario = Scenario::new(name, members)
        .with_balancers(balancers)
        .with_discipline(Discipline::Sharing, cpus);
    scenario.requests = 200 * members * cpus + 10_000;
    scenario.network = Duration::from_micros(200);
    scenario.reports = Some(Reports {
        id,
        interval: Duration::from_millis(every),
        delay: Duration::from_micros(500),
        noise: 0.1,
    });
    scenario
}

/// Composite loads at all intervals, and utilisations at the default one; small servers,
/// where a single request is much, and larger ones.
fn worlds() -> Vec<Scenario> {
    let mut all = Vec::new();
    for (members, balancers) in [(MEMBERS, 1), (MEMBERS, 4), (100, 4)] {
        for cpus in [1, 4] {
            for every in [1, 50, 500] {
                all.push(scenario(members, balancers, cpus, LoadId::COMPOSITE, every));
            }
            all.push(scenario(members, balancers, cpus, LoadId::CPU, 50));
        }
    }
    all
}

/// The scenario with four tasks per CPU of other programs at some members.
fn loaded(mut scenario: Scenario) -> Scenario {
    scenario.utilisation = 0.5;
    for member in 0..scenario.members.len() * LOADED / MEMBERS {
        let tasks = 4.0 * scenario.members[member].slots as f64;
        scenario.changes.push(Change {
            at: Duration::ZERO,
            member,
            to: ChangeEffect::Background(tasks),
        });
    }
    scenario
}

/// A time in which a member gets ten requests on average, a report at least.
fn window(scenario: &Scenario) -> Duration {
    let ten =
        Duration::from_secs_f64(10.0 * scenario.members.len() as f64 / scenario.arrival_rate());
    ten.max(scenario.reports.unwrap().interval)
}

/// A herd is when everybody runs to the member whose last report was low. The busiest one of
/// an interval then has several times its share; by chance it has up to twice.
#[test]
fn equal_members_are_served_no_worse_than_by_chance_and_nobody_herds() {
    let mut wrong = Vec::new();
    for world in worlds() {
        let window = window(&world);
        let fair = 1.0 / world.members.len() as f64;
        let by_chance = play(&world, "random");
        let reports = world.reports.unwrap();
        // A utilisation of 1 says nothing of the queue, and a report every fifty service
        // times little: with a hundred members the gain is gone. It must not be a loss.
        let is_poor = reports.id == LoadId::CPU || reports.interval.as_millis() > 100;
        for strategy in STRATEGIES {
            let ours = play(&world, strategy);
            let tail = |outcomes: &Outcomes| outcomes.quantile(0.99).as_secs_f64();
            let mean = millis(&ours) / millis(&by_chance);
            let p99 = tail(&ours) / tail(&by_chance);
            let (busiest, chance) = (ours.busiest(window), by_chance.busiest(window));
            let most = if is_poor { 1.15 } else { 0.95 };
            if mean > most || p99 > most || busiest > (1.4 * chance).max(1.6 * fair) {
                wrong.push(format!(
                    "{}: {strategy} {mean} of random's mean, {p99} of its p99; \
                     busiest {busiest}, by chance {chance}",
                    world.name
                ));
            }
        }
    }
    none(wrong);
}

#[test]
fn members_with_work_of_others_are_left_alone() {
    let mut wrong = Vec::new();
    for world in worlds().into_iter().map(loaded) {
        let in_turns = millis(&play(&world, "round_robin"));
        for strategy in STRATEGIES {
            let ours = play(&world, strategy);
            let ratio = millis(&ours) / in_turns;
            if ratio >= 0.9 {
                wrong.push(format!(
                    "{}: {strategy} {ratio} of round robin's",
                    world.name
                ));
            }
            let loaded = world.members.len() * LOADED / MEMBERS;
            let there: usize = ours.per_member[..loaded].iter().sum();
            let share = there as f64 / ours.requests as f64;
            if share >= 0.12 {
                wrong.push(format!("{}: {strategy} sends {share} there", world.name));
            }
        }
    }
    none(wrong);
}

/// Work comes and goes again, without a sign of it in anything but the load: traffic leaves
/// with a few reports, and is back after.
#[test]
fn traffic_leaves_with_the_work_of_others_and_comes_back() {
    let ms = Duration::from_millis;
    for strategy in STRATEGIES {
        let mut world = scenario(4, 1, 2, LoadId::COMPOSITE, 50);
        world.utilisation = 0.4;
        world.requests = 3200;
        let at = |at, tasks| Change {
            at: ms(at),
            member: 1,
            to: ChangeEffect::Background(tasks),
        };
        world.changes = vec![at(4000, 16.0), at(6000, 0.0)];
        let played = play(&world, strategy);
        let share = |from, to| played.share(1, ms(from), ms(to));
        let (before, during, after) = (share(2000, 4000), share(4150, 6000), share(7000, 10_000));
        assert!((0.15..0.35).contains(&before), "{strategy}: {before}");
        assert!(during < 0.03, "{strategy}: {during}");
        assert!((0.15..0.35).contains(&after), "{strategy}: {after}");
    }
}

/// Two balancers that know nothing of each other, and requests that differ much.
#[test]
fn mixed_costs_at_shared_members_are_no_worse_than_by_chance() {
    for every in [1, 50, 500] {
        let world = scenario(MEMBERS, 2, 2, LoadId::COMPOSITE, every).with_service(Service::Mixed);
        let by_chance = millis(&play(&world, "random"));
        for strategy in STRATEGIES {
            let ratio = millis(&play(&world, strategy)) / by_chance;
            assert!(ratio < 0.9, "{}: {strategy} {ratio}", world.name);
        }
    }
}
