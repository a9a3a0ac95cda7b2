//! Twice as many requests as members can serve: how many are served, and how late.

#![allow(clippy::unwrap_used)] // helpers of tests

use std::time::Duration;

use evenkeel_manager::config;
use evenkeel_sim::{Discipline, Dispatch, Outcomes, Scenario, run};

/// Four members that take one request after the other for half a minute, with twice what they can do.
fn overloaded(group: &str) -> (Outcomes, f64) {
    let members =
        (1..=4).map(|n| format!("{{ address = \"10.0.0.{n}:80\", max_connections = 1 }}"));
    let members = members.collect::<Vec<_>>().join(", ");
    let text = format!(
        "[rule.web]\nlisten = \"127.0.0.1:8080\"\ngroup = \"web\"\n\
         [group.web]\nmembers = [{members}]\n{group}\n"
    );
    let config = config::parse("evenkeel.toml", &text).unwrap();
    let scenario = Scenario::for_group(config, "web").unwrap();
    let mut scenario = scenario
        .with_discipline(Discipline::Fifo, 1)
        .with_utilisation(2.0);
    scenario.length = Some(Duration::from_secs(30));
    let capacity = scenario.arrival_rate() / 2.0 * 30.0;
    let outcomes = run(&scenario, &Dispatch::Configured, 1);
    let served = outcomes.requests - outcomes.failed;
    (outcomes, served as f64 / capacity)
}

#[test]
fn with_overload_control_what_is_served_is_served_in_time_and_members_stay_busy() {
    let (outcomes, goodput) = overloaded("queue_target = \"100ms\"");
    assert!(goodput >= 0.95, "{goodput}");
    assert!(outcomes.shed > 0);
    let p99 = outcomes.quantile(0.99);
    assert!(p99 < Duration::from_millis(300), "{p99:?}");
}

#[test]
fn without_it_all_wait_for_as_long_as_the_queue_is() {
    let (outcomes, served) = overloaded("queue_target = \"0s\"");
    assert!(served >= 0.95, "{served}");
    assert_eq!(outcomes.shed, 0);
    let half = outcomes.quantile(0.5);
    assert!(half > Duration::from_secs(1), "{half:?}");
}
