//! Outages and overload in virtual time: active checks, the queue with its time limit, and retries with
//! their budget, as a configuration has them.

#![allow(clippy::unwrap_used)] // helpers of tests

use std::time::Duration;

use evenkeel_control::health;
use evenkeel_manager::config;
use evenkeel_sim::{Change, ChangeEffect, Dispatch, Outcomes, Scenario, run};

fn scenario(rule: &str, http: &str, group: &str, seconds: u64) -> Scenario {
    let text = format!(
        r#"
        [rule.web]
        listen = "127.0.0.1:8080"
        group = "web"
        {rule}

        [rule.web.http]
        {http}

        [group.web]
        {group}
        "#
    );
    let config = config::parse("evenkeel.toml", &text).unwrap();
    let mut scenario = Scenario::for_group(config, "web")
        .unwrap()
        .with_utilisation(0.4);
    scenario.length = Some(Duration::from_secs(seconds));
    scenario
}

fn play(scenario: &Scenario) -> Outcomes {
    run(scenario, &Dispatch::Configured, 1)
}

fn at(seconds: u64, member: usize, to: ChangeEffect) -> Change {
    Change {
        at: Duration::from_secs(seconds),
        member,
        to,
    }
}

/// Three members that nothing but a check takes out.
const CHECKED: &str = r#"
    health_check = { interval = "1s", fall = 2, rise = 3 }
    members = ["10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80"]
    strategy = "round_robin"
    connection_failure_limit = 1000
    ejection = { excess = 1 }
"#;

#[test]
fn a_member_that_dies_is_taken_out_by_a_check_and_no_request_is_lost() {
    let dying = |http: &str, group: &str| {
        let mut scenario = scenario("", http, group, 240).with_balancers(2);
        scenario.changes = vec![
            at(60, 1, ChangeEffect::Dead(true)),
            at(120, 1, ChangeEffect::Dead(false)),
        ];
        play(&scenario)
    };
    let outcomes = dying("", CHECKED);
    assert_eq!(outcomes.failed, 0);
    assert!(outcomes.retries > 0);
    for balancer in 0..2 {
        let of = outcomes.health.iter().filter(|change| change.1 == balancer);
        let changes: Vec<_> = of
            .map(|&(at, _, member, to)| (at.as_secs(), member, to))
            .collect();
        assert!(
            matches!(
                changes[..],
                [
                    (60..=62, 1, health::Change::Down),
                    (122..=124, 1, health::Change::Up)
                ]
            ),
            "{changes:?}"
        );
    }
    let share = |from, to| {
        let [from, to] = [from, to].map(Duration::from_secs);
        outcomes.share(1, from, to)
    };
    assert_eq!(share(63, 122), 0.0);
    assert!(
        (0.25..0.42).contains(&share(150, 240)),
        "{}",
        share(150, 240)
    );
    // It is the retries that lose none, and the check that makes them few.
    let without = dying("retries = 0", CHECKED);
    assert!(without.failed > 30, "{}", without.failed);
    let unchecked = CHECKED
        .lines()
        .filter(|line| !line.contains("health_check"));
    let unchecked = dying("", &unchecked.collect::<Vec<_>>().join("\n"));
    assert!(unchecked.health.is_empty());
    let (few, many) = (outcomes.retries, unchecked.retries);
    assert!(10 * few < many, "{few} {many}");
}

#[test]
fn a_check_sees_who_answers_too_late_and_waits_for_proof_that_it_is_over() {
    let mut scenario = scenario("", "", CHECKED, 120);
    // 1.1 s for a check, of which the limit is 1 s.
    let slow = 11_000.0;
    scenario.changes = vec![
        at(30, 2, ChangeEffect::Slowness(slow)),
        at(60, 2, ChangeEffect::Slowness(1.0)),
    ];
    let outcomes = play(&scenario);
    let changes = outcomes.health.iter();
    let changes: Vec<_> = changes
        .map(|&(at, _, member, to)| (at.as_secs(), member, to))
        .collect();
    assert!(
        matches!(
            changes[..],
            [
                (31..=34, 2, health::Change::Down),
                (62..=64, 2, health::Change::Up)
            ]
        ),
        "{changes:?}"
    );
}

#[test]
fn requests_that_wait_for_too_long_are_counted() {
    let overloaded = |timeout: &str| {
        let members = (1..=3)
            .map(|index| format!("{{ address = \"10.0.0.{index}:80\", max_connections = 1 }}"));
        let members: Vec<String> = members.collect();
        let group = format!(
            "members = [{}]\nmax_queue = 100000\nqueue_target = \"0s\"",
            members.join(", ")
        );
        let rule = format!("queue_timeout = {timeout:?}");
        play(&scenario(&rule, "", &group, 60).with_utilisation(1.3))
    };
    let short = overloaded("200ms");
    assert_eq!(short.failed, short.timed_out);
    // What is above the capacity, and no more.
    assert!(
        (0.2..0.27).contains(&short.failed_share()),
        "{}",
        short.failed_share()
    );
    let longest = short.quantile(1.0);
    assert!(longest < Duration::from_millis(400), "{longest:?}");
    assert!(short.quantile(0.5) > Duration::from_millis(150));
    let long = overloaded("10m");
    assert_eq!((long.timed_out, long.failed), (0, 0));
    assert!(long.quantile(0.99) > 10 * longest);
}

#[test]
fn a_budget_limits_the_retries_in_an_outage() {
    let outage = |budget: f32| {
        let group = r#"members = ["10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80"]"#;
        let http = format!("retries = 2\nretry_budget = {budget:?}");
        let mut scenario = scenario("", &http, group, 90);
        let fails =
            |seconds, share| (0..3).map(move |of| at(seconds, of, ChangeEffect::Failing(share)));
        scenario.changes = fails(30, 1.0).chain(fails(60, 0.0)).collect();
        play(&scenario)
    };
    let outcomes = outage(0.2);
    let most = 10.0 + 0.2 * outcomes.requests as f64 + 90.0;
    assert!(
        (outcomes.retries as f64) < most,
        "{} {most}",
        outcomes.retries
    );
    assert!(outcomes.over_budget > 1000, "{}", outcomes.over_budget);
    // With a budget of as many as there are requests, nearly all that fail are tried again.
    let generous = outage(1.0);
    assert!(
        generous.retries > 3 * outcomes.retries,
        "{}",
        generous.retries
    );
    // None has anybody to succeed with: a third of the time is lost either way.
    for outcomes in [outcomes, generous] {
        assert!(
            (0.3..0.37).contains(&outcomes.failed_share()),
            "{}",
            outcomes.failed_share()
        );
    }
}

#[test]
fn retries_hide_a_member_that_fails_now_and_then() {
    let failing = |http: &str| {
        let group = r#"
            members = ["10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80"]
            strategy = "round_robin"
            ejection = { excess = 1 }
        "#;
        let mut scenario = scenario("", http, group, 60);
        scenario.members[0].failing = 0.2;
        play(&scenario)
    };
    let outcomes = failing("");
    assert!(outcomes.retries > 300, "{}", outcomes.retries);
    assert_eq!((outcomes.failed, outcomes.over_budget), (0, 0));
    assert!(failing("retries = 0").failed > 300);
}
