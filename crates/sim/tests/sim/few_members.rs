//! Distance of the default strategy from a queue that knows everything, with few members and many, of one worker each
//! and of eight: the 99th percentile over that of the better one of two ideals ([`Dispatch::Central`] with and without
//! knowledge of each cost), median over the seeds.
//!
//! The limits state the present distance, so that it does not grow. With three members, no strategy that sends each
//! request at once comes near to 1: the ideal holds requests back. The default strategy does so, too, where members
//! work on few requests at once (`late.rs` in `core`).
//!
//! ```sh
//! cargo test -p evenkeel-sim --test sim few_members -- --nocapture
//! ```

use std::time::Duration;

use evenkeel_core::strategy::{self, Values};
use evenkeel_sim::{Discipline, Dispatch, Scenario, Service, run};

/// Number of seeds. The limits are close: with five of them two medians are above.
const SEEDS: u64 = 20;

/// Requests of a run for each member; more where a member serves many at once.
const REQUESTS: usize = 20_000;

/// Factor of the slow member's slowness, and time after which another member is the slow one.
const SLOWNESS: f64 = 5.0;
const PERIOD: Duration = Duration::from_secs(3);

/// All members equal; one slow; another one slow every while; costs that differ.
fn scenarios(members: usize, workers: usize) -> [Scenario; 4] {
    let mut equal = Scenario::new("equal", members).with_discipline(Discipline::Fifo, workers);
    equal.requests = if workers > 1 { 3 * REQUESTS } else { REQUESTS };
    let slow = equal.clone().one_slow(SLOWNESS);
    let moving = slow.clone().moving_slow(SLOWNESS, PERIOD);
    let mixed = equal.clone().with_service(Service::Mixed);
    [equal, slow, moving, mixed]
}

fn ratio(scenario: &Scenario, seed: u64) -> f64 {
    let p99 = |dispatch| run(scenario, &dispatch, seed).quantile(0.99).as_secs_f64();
    let ideal = |knows_costs| p99(Dispatch::Central { knows_costs });
    let adaptive = Dispatch::Strategy(Values::defaults(strategy::default_kind()));
    p99(adaptive) / ideal(false).min(ideal(true))
}

fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    let upper = all.len() / 2;
    match all.len() % 2 {
        0 => (all[upper - 1] + all[upper]) / 2.0,
        _ => all[upper],
    }
}

fn is_within(members: usize, workers: usize, limits: [f64; 4]) {
    let scenarios = scenarios(members, workers);
    let ratios = scenarios
        .each_ref()
        .map(|scenario| median((1..=SEEDS).map(|seed| ratio(scenario, seed)).collect()));
    println!(
        "{members} x {workers}: equal, slow, moving, mixed {ratios:.3?}, at most {limits:.2?}"
    );
    for ((scenario, ratio), limit) in scenarios.iter().zip(ratios).zip(limits) {
        let name = &scenario.name;
        assert!(ratio <= limit, "{members} x {workers}, {name}: {ratio}");
    }
}

#[test]
fn three_members_of_one_worker() {
    is_within(3, 1, [1.05, 1.13, 1.31, 1.05]);
}

#[test]
fn ten_members_of_one_worker() {
    is_within(10, 1, [1.03, 1.06, 1.12, 1.02]);
}

#[test]
fn four_members_of_eight_workers() {
    is_within(4, 8, [1.02, 1.04, 1.13, 1.02]);
}
