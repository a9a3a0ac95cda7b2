//! Possible harm of late binding: lost throughput where all members are busy, failures where a member fails, and long
//! waits where the number of requests that members work on at once was learnt wrongly.

#![allow(clippy::unwrap_used)] // helpers of tests

use std::time::Duration;

use evenkeel_core::strategy::{self, Values};
use evenkeel_manager::config;
use evenkeel_sim::{Discipline, Dispatch, Outcomes, Scenario, Service, run};

/// Members of so many workers behind a rule with all defaults, and what else is said of each and of the group.
fn configured(members: usize, workers: usize, each: &str, group: &str) -> Scenario {
    let addresses = (1..=members).map(|n| format!("{{ address = \"10.0.0.{n}:80\"{each} }}"));
    let addresses = addresses.collect::<Vec<_>>().join(", ");
    let text = format!(
        "[rule.web]\nlisten = \"127.0.0.1:8080\"\ngroup = \"web\"\n\
         [group.web]\nmembers = [{addresses}]\n{group}\n"
    );
    let config = config::parse("evenkeel.toml", &text).unwrap();
    let scenario = Scenario::for_group(config, "web").unwrap();
    scenario.with_discipline(Discipline::Fifo, workers)
}

fn served(outcomes: &Outcomes) -> f64 {
    (outcomes.requests - outcomes.failed) as f64
}

#[test]
fn throughput_at_saturation_is_that_of_dispatch_at_once() {
    for (members, workers) in [(1, 1), (3, 1), (10, 1), (4, 8)] {
        for network in [0, 1, 10] {
            for slowness in [1.0, 5.0] {
                let throughput = |late: bool| -> f64 {
                    let group = format!("late_binding = {late}");
                    let scenario = configured(members, workers, "", &group).one_slow(slowness);
                    let mut scenario = scenario.with_clients(6 * members * workers);
                    scenario.network = Duration::from_millis(network);
                    scenario.length = Some(Duration::from_secs(60));
                    let seeds = (1..=2).map(|seed| run(&scenario, &Dispatch::Configured, seed));
                    seeds.map(|outcomes| served(&outcomes)).sum()
                };
                let ratio = throughput(true) / throughput(false);
                println!("{members} x {workers}, {network} ms, {slowness}: {ratio:.4}");
                assert!(
                    ratio >= 0.99,
                    "{members} x {workers}, {network} ms, {slowness}: {ratio}"
                );
            }
        }
    }
}

#[test]
fn where_one_fails_half_of_its_requests_hardly_any_request_fails() {
    for (members, workers) in [(3, 1), (10, 1), (4, 8)] {
        for seed in 1..=5 {
            let mut scenario = configured(members, workers, "", "").one_failing(0.5);
            scenario.requests = 20_000 * workers.min(3);
            let outcomes = run(&scenario, &Dispatch::Configured, seed);
            let share = outcomes.failed_share();
            println!(
                "{members} x {workers}: {share:.5}, {} tried again",
                outcomes.retries
            );
            assert!(share <= 0.001, "{members} x {workers}, {seed}: {share}");
        }
    }
}

#[test]
fn with_twice_what_members_can_do_they_are_kept_busy() {
    for (members, workers) in [(3, 1), (10, 1), (4, 8)] {
        let limit = format!(", max_connections = {workers}");
        let scenario = configured(members, workers, &limit, "queue_target = \"100ms\"");
        let mut scenario = scenario.with_utilisation(2.0);
        scenario.length = Some(Duration::from_secs(30));
        let capacity = scenario.arrival_rate() / 2.0 * 30.0;
        let outcomes = run(&scenario, &Dispatch::Configured, 1);
        let answered: usize = outcomes.per_member.iter().sum();
        let goodput = answered as f64 / capacity;
        let p99 = outcomes.quantile(0.99);
        println!("{members} x {workers}: {goodput:.3}, {p99:?}");
        assert!(goodput >= 0.95, "{members} x {workers}: {goodput}");
        let is_in_time = p99 < Duration::from_millis(400);
        assert!(is_in_time, "{members} x {workers}: {p99:?}");
    }
}

pub(super) fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

/// The 99th percentile over that of the ideal where caps are wrong by this factor: equal, slow, moving, mixed.
fn ratios(members: usize, workers: usize, wrong_caps: f32) -> [f64; 4] {
    let mut equal = Scenario::new("equal", members).with_discipline(Discipline::Fifo, workers);
    equal.wrong_caps = wrong_caps;
    equal.requests = if workers > 1 { 60_000 } else { 20_000 };
    let slow = equal.clone().one_slow(5.0);
    let moving = slow.clone().moving_slow(5.0, Duration::from_secs(3));
    let mixed = equal.clone().with_service(Service::Mixed);
    [equal, slow, moving, mixed].map(|scenario| {
        let p99 = |dispatch, seed| run(&scenario, &dispatch, seed).quantile(0.99).as_secs_f64();
        let ratio = |seed| {
            let ideal = |knows_costs| p99(Dispatch::Central { knows_costs }, seed);
            let adaptive = Dispatch::Strategy(Values::defaults(strategy::default_kind()));
            p99(adaptive, seed) / ideal(false).min(ideal(true))
        };
        median((1..=7).map(ratio).collect())
    })
}

/// The reference is the ratio that dispatch at once reached before there was late binding.
#[test]
fn wrong_caps_make_nothing_worse_than_dispatch_at_once() {
    let cases = [
        (3, 1, [1.18, 1.28, 2.08, 1.36]),
        (10, 1, [1.05, 1.08, 1.19, 1.04]),
        (4, 8, [1.00, 1.02, 1.13, 1.00]),
    ];
    for (members, workers, at_once) in cases {
        for factor in [0.5, 2.0] {
            let ratios = ratios(members, workers, factor);
            println!("{members} x {workers}, caps x {factor}: {ratios:.3?}, at once {at_once:.2?}");
            for (ratio, at_once) in ratios.into_iter().zip(at_once) {
                // Of fewer seeds than those figures.
                assert!(
                    ratio <= at_once + 0.03,
                    "{members} x {workers}, caps x {factor}: {ratio} {at_once}"
                );
            }
        }
    }
}
