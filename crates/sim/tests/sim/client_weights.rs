//! `client_weighted_round_robin` with members of different capacity that report what they do, in virtual
//! time: nobody says that they differ, and shares are theirs soon.

#![allow(clippy::unwrap_used)] // helpers of tests

use std::time::Duration;

use evenkeel_core::load::LoadId;
use evenkeel_core::strategy::{self, Values};
use evenkeel_sim::{Change, ChangeEffect, Discipline, Dispatch, Outcomes, Reports, Scenario, run};

const STRATEGY: &str = "client_weighted_round_robin";

/// Relative speed of each member; every member has eight workers.
const CAPACITIES: [f64; 4] = [0.5, 1.0, 1.0, 2.0];

fn play(scenario: &Scenario, strategy: &str) -> Outcomes {
    let kind = strategy::find(strategy).unwrap();
    let dispatch = Dispatch::Strategy(Values::defaults(kind));
    run(scenario, &dispatch, 1)
}

fn scenario() -> Scenario {
    let mut scenario = Scenario::new("different members", 4).with_discipline(Discipline::Fifo, 8);
    for (member, capacity) in scenario.members.iter_mut().zip(CAPACITIES) {
        member.slowness = 1.0 / capacity;
    }
    scenario.length = Some(Duration::from_secs(60));
    scenario.reports = Some(Reports {
        id: LoadId::CPU,
        interval: Duration::from_secs(1),
        delay: Duration::from_millis(1),
        noise: 0.0,
    });
    scenario
}

/// Shares of the requests that were sent between these seconds.
fn shares(outcomes: &Outcomes, from: u64, to: u64) -> [f64; 4] {
    let time = Duration::from_secs;
    [0, 1, 2, 3].map(|member| outcomes.share(member, time(from), time(to)))
}

#[track_caller]
fn close(shares: [f64; 4], capacities: [f64; 4]) {
    let sum: f64 = capacities.iter().sum();
    let is_off = |index: usize| (shares[index] - capacities[index] / sum).abs() > 0.015;
    assert!(!(0..4).any(is_off), "{shares:?} of {capacities:?}");
}

#[test]
fn shares_are_those_of_the_capacities_after_the_blackout() {
    let outcomes = play(&scenario(), STRATEGY);
    // Reports begin at once and count after 10 s.
    close(shares(&outcomes, 7, 10), [1.0; 4]);
    close(shares(&outcomes, 20, 60), CAPACITIES);
    let alike = play(&scenario(), "round_robin");
    let ratio = outcomes.mean().as_secs_f64() / alike.mean().as_secs_f64();
    assert!(ratio < 0.9, "{ratio}");
}

#[test]
fn shares_follow_a_member_that_becomes_slow() {
    let mut scenario = scenario();
    scenario.changes = vec![Change {
        at: Duration::from_secs(30),
        member: 3,
        to: ChangeEffect::Slowness(2.0),
    }];
    let outcomes = play(&scenario, STRATEGY);
    close(shares(&outcomes, 20, 30), CAPACITIES);
    close(shares(&outcomes, 45, 60), [0.5, 1.0, 1.0, 0.5]);
}

#[test]
fn a_member_that_fails_is_charged_for_it() {
    let mut scenario = scenario();
    scenario.members[1].failing = 0.5;
    let outcomes = play(&scenario, STRATEGY);
    let shares = shares(&outcomes, 20, 60);
    // Its CPU is idle for half of what it gets, which alone would double its share.
    assert!(shares[1] < 0.9 * shares[2], "{shares:?}");
}
