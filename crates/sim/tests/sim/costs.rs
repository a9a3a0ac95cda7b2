//! Value of knowing the requests' costs: one request in ten costs twenty times the others.

#![allow(clippy::unwrap_used)] // helpers of tests

use evenkeel_core::strategy::{self, Values};
use evenkeel_sim::{Dispatch, Scenario, Service, run};

/// The 99th percentile of the response times where costs are announced, as a part of what it is
/// where they are not.
fn gain(scenario: &Scenario, strategy: &str) -> f64 {
    let dispatch = Dispatch::Strategy(Values::defaults(strategy::find(strategy).unwrap()));
    let p99 = |scenario: &Scenario| -> f64 {
        let runs = (1..=3).map(|seed| run(scenario, &dispatch, seed));
        runs.map(|run| run.quantile(0.99).as_secs_f64()).sum()
    };
    p99(&scenario.clone().with_announced_costs()) / p99(scenario)
}

#[test]
fn announced_costs_shorten_the_longest_waits() {
    let mixed = |members| {
        let scenario = Scenario::new("mixed", members).with_service(Service::Mixed);
        scenario.with_utilisation(0.75)
    };
    for strategy in ["least_request", "least_connection", "peak_ewma", "prequal"] {
        let equal = gain(&mixed(6), strategy);
        let one_slow = gain(&mixed(10).one_slow(3.0), strategy);
        assert!(
            equal < 0.85 && one_slow < 0.8,
            "{strategy}: {equal} {one_slow}"
        );
    }
    // With it requests wait for members that are free, and nothing is left to be gained.
    let waiting = gain(&mixed(6), "adaptive");
    assert!(waiting < 1.06, "{waiting}");
    // Which takes no notice of a slow member.
    let turns = gain(&mixed(6), "round_robin");
    assert!(turns < 0.85, "{turns}");
}

#[test]
fn equal_costs_change_nothing() {
    for kind in strategy::REGISTRY {
        let constant = Scenario::new("equal", 5).with_service(Service::Constant);
        assert_eq!(gain(&constant, kind.name), 1.0, "{}", kind.name);
    }
}
