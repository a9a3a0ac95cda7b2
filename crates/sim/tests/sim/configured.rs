//! Effects of a configuration over minutes, in virtual time: groups are built from its text and go through the rounds
//! of the product.

#![allow(clippy::unwrap_used)] // helpers of tests

use std::time::Duration;

use evenkeel_control::event::Event;
use evenkeel_manager::config;
use evenkeel_sim::{Change, ChangeEffect, Dispatch, Outcomes, Scenario, run};

fn scenario(group: &str) -> Scenario {
    let text = format!(
        r#"
        [rule.web]
        listen = "127.0.0.1:8080"
        group = "web"

        [group.web]
        {group}
        "#
    );
    let config = config::parse("evenkeel.toml", &text).unwrap();
    Scenario::for_group(config, "web").unwrap()
}

fn play(scenario: &Scenario) -> Outcomes {
    run(scenario, &Dispatch::Configured, 1)
}

const MEMBERS: &str = r#"members = ["10.0.0.1:80", "10.0.0.2:80", "app.example:80"]"#;

/// The ejections of a balancer: when, who, and for how long, in seconds.
fn ejections(outcomes: &Outcomes, balancer: usize) -> Vec<(u64, usize, u64)> {
    let ejected = |(at, of, event): &(Duration, usize, Event)| match event {
        Event::Ejected { member, time, .. } if *of == balancer => {
            Some((at.as_secs(), *member, time.as_secs()))
        }
        _ => None,
    };
    outcomes.events.iter().filter_map(ejected).collect()
}

#[test]
fn a_member_that_goes_on_failing_is_ejected_for_longer_each_time() {
    let mut scenario = scenario(MEMBERS).with_utilisation(0.3).with_balancers(2);
    scenario.length = Some(Duration::from_secs(600));
    let fails = |seconds, share| Change {
        at: Duration::from_secs(seconds),
        member: 1,
        to: ChangeEffect::Failing(share),
    };
    scenario.changes = vec![fails(120, 1.0), fails(360, 0.0)];
    let outcomes = play(&scenario);
    for balancer in 0..2 {
        let ejections = ejections(&outcomes, balancer);
        let members = ejections
            .iter()
            .all(|&(at, member, _)| member == 1 && (120..360).contains(&at));
        assert!(members, "{ejections:?}");
        let times: Vec<u64> = ejections.iter().map(|&(_, _, time)| time).collect();
        let doubled: Vec<u64> = (0..times.len()).map(|turn| 10 << turn).collect();
        assert!(times.len() >= 4, "{times:?}");
        assert_eq!(times, doubled, "it fails again as soon as it is back");
    }
    // A few requests each time, and nobody else is in the way.
    assert!(
        outcomes.failed_share() < 0.01,
        "{}",
        outcomes.failed_share()
    );
    let share = |from, to| {
        let [from, to] = [from, to].map(Duration::from_secs);
        outcomes.share(1, from, to)
    };
    assert!((0.25..0.42).contains(&share(70, 120)));
    assert!(share(140, 360) < 0.05, "{}", share(140, 360));
    assert!(
        (0.25..0.42).contains(&share(560, 600)),
        "{}",
        share(560, 600)
    );
}

#[test]
fn with_too_many_members_failing_nobody_is_left_out() {
    let mut scenario = scenario(MEMBERS).with_utilisation(0.3);
    scenario.length = Some(Duration::from_secs(120));
    for member in &mut scenario.members {
        member.failing = 1.0;
    }
    scenario.clients = 3;
    let outcomes = play(&scenario);
    let panics = |(_, _, event): &(Duration, usize, Event)| *event == Event::Panic;
    assert!(
        !outcomes.events.iter().any(panics),
        "ejections bring no panic about"
    );
    let out = ejections(&outcomes, 0);
    assert!(!out.is_empty() && outcomes.per_member.iter().all(|&count| count > 0));
}

#[test]
fn requests_wait_where_members_are_at_their_limits_and_the_queue_has_an_end() {
    let limited = |queue: usize| {
        let members = (1..=3)
            .map(|index| format!("{{ address = \"10.0.0.{index}:80\", max_connections = 2 }}"));
        let members: Vec<String> = members.collect();
        let text = format!("members = [{}]\nmax_queue = {queue}", members.join(", "));
        let mut scenario = scenario(&text).with_utilisation(0.9);
        scenario.requests = 20_000;
        play(&scenario)
    };
    let long = limited(1000);
    assert!(long.queued > 1000, "{}", long.queued);
    assert_eq!(long.failed, 0);
    let short = limited(1);
    assert!(short.queued > 0 && short.failed > 100, "{}", short.failed);
    assert!(short.quantile(0.99) < long.quantile(0.99));
}

#[test]
fn an_alert_is_raised_and_lifted_with_the_load() {
    let text = format!("{MEMBERS}\nstrategy = \"least_loaded\"\nalert = {{ threshold = 0.8 }}");
    let mut scenario = scenario(&text).with_utilisation(0.2);
    scenario.length = Some(Duration::from_secs(180));
    scenario.reports = Some(evenkeel_sim::Reports {
        id: evenkeel_core::load::LoadId::CPU,
        interval: Duration::from_secs(1),
        delay: Duration::from_millis(5),
        noise: 0.0,
    });
    let at = |seconds, load| Change {
        at: Duration::from_secs(seconds),
        member: 2,
        to: ChangeEffect::Load(load),
    };
    scenario.changes = vec![at(60, 0.95), at(120, 0.1)];
    let outcomes = play(&scenario);
    let alerts: Vec<(u64, bool)> = outcomes
        .events
        .iter()
        .filter_map(|(at, _, event)| match event {
            Event::AlertRaised { location, .. } if &**location == "app.example" => {
                Some((at.as_secs(), true))
            }
            Event::AlertLifted { location, .. } if &**location == "app.example" => {
                Some((at.as_secs(), false))
            }
            _ => None,
        })
        .collect();
    assert!(
        matches!(alerts[..], [(60..=62, true), (120..=122, false)]),
        "{alerts:?}"
    );
}
