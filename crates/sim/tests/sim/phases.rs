//! Several worlds one after the other in one process: knowledge from an earlier world must not stay to harm.

use std::time::Duration;

use evenkeel_core::strategy::{self, Values};
use evenkeel_sim::{Change, ChangeEffect, Discipline, Dispatch, Scenario, Service, run};

use crate::late_binding::median;

/// Time of each world.
const WORLD: Duration = Duration::from_secs(12);
/// Times that all worlds are played.
const CYCLES: u32 = 6;
const SEEDS: u64 = 4;

/// Four members of eight workers each; one of ten requests costs twenty times as much.
fn world() -> Scenario {
    Scenario::new("worlds after each other", 4)
        .with_discipline(Discipline::Fifo, 8)
        .with_service(Service::Mixed)
        .with_utilisation(0.5)
}

fn change(at: Duration, member: usize, to: ChangeEffect) -> Change {
    Change { at, member, to }
}

/// Adds the world whose 99th percentile is looked at: one member is three times slower.
fn add_world_looked_at(scenario: &mut Scenario, from: Duration) {
    scenario
        .changes
        .push(change(from, 0, ChangeEffect::Slowness(3.0)));
}

/// Adds the worlds before it: a slow member that moves, one that fails half of its requests, a slow one. Returns when they end.
fn add_other_worlds(scenario: &mut Scenario, from: Duration) -> Duration {
    let changes = &mut scenario.changes;
    for step in 0..4 {
        let at = from + WORLD * step / 4;
        for member in 0..4 {
            let slowness = if member == step as usize { 5.0 } else { 1.0 };
            changes.push(change(at, member, ChangeEffect::Slowness(slowness)));
        }
    }
    let failing = from + WORLD;
    changes.push(change(failing, 3, ChangeEffect::Slowness(1.0)));
    changes.push(change(failing, 1, ChangeEffect::Failing(0.5)));
    let slow = failing + WORLD;
    changes.push(change(slow, 1, ChangeEffect::Failing(0.0)));
    changes.push(change(slow, 2, ChangeEffect::Slowness(5.0)));
    let end = slow + WORLD;
    changes.push(change(end, 2, ChangeEffect::Slowness(1.0)));
    end
}

/// 99th percentiles of the world looked at, in milliseconds.
fn percentiles(scenario: &Scenario, seed: u64, looked_at: &[Duration]) -> Vec<f64> {
    let adaptive = Dispatch::Strategy(Values::defaults(strategy::default_kind()));
    let outcomes = run(scenario, &adaptive, seed);
    let p99 = |end: &Duration| {
        let sample = outcomes.samples.iter().find(|sample| sample.at >= *end);
        sample.map_or(f64::NAN, |sample| sample.p99.as_secs_f64() * 1e3)
    };
    looked_at.iter().map(p99).collect()
}

#[test]
fn a_world_after_others_is_as_one_in_a_fresh_process() {
    let mut fresh = Vec::new();
    let mut after = Vec::new();
    for seed in 1..=SEEDS {
        let mut scenario = world();
        add_world_looked_at(&mut scenario, Duration::ZERO);
        scenario.length = Some(2 * CYCLES * WORLD);
        scenario.samples = Some(WORLD);
        // The first one learns from nothing.
        let ends: Vec<Duration> = (2..2 * CYCLES).map(|count| WORLD * count).collect();
        fresh.extend(percentiles(&scenario, seed, &ends));

        let mut scenario = world();
        let (mut at, mut ends) = (Duration::ZERO, Vec::new());
        for _ in 0..CYCLES {
            at = add_other_worlds(&mut scenario, at);
            add_world_looked_at(&mut scenario, at);
            at += WORLD;
            ends.push(at);
        }
        scenario.length = Some(at + WORLD);
        scenario.samples = Some(WORLD);
        after.extend(percentiles(&scenario, seed, &ends));
    }
    println!("fresh {fresh:.0?}\nafter {after:.0?}");
    let worst = after.iter().copied().fold(0.0, f64::max);
    let highest = fresh.iter().copied().fold(0.0, f64::max);
    let (fresh, after) = (median(fresh), median(after));
    println!("medians {fresh:.1}, {after:.1} ms; highest {highest:.1}, {worst:.1} ms");
    assert!(after < 1.15 * fresh, "{after} ms instead of {fresh} ms");
    assert!(worst < 1.5 * highest, "{worst} ms instead of {highest} ms");
}
