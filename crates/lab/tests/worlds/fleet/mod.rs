//! A fleet of 100 balancers with 10,000 members: what the product promises of one.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking.

mod world;

use std::time::Duration;

use evenkeel_core::alert::{AlertSettings, Threshold};

use world::{Fault, Plan, Report, play_plan};

fn secs(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds)
}

fn plan(balancers: usize, groups: usize, locations: usize, seed: u64) -> Plan {
    Plan {
        balancers,
        groups,
        locations,
        alerts: AlertSettings {
            threshold: Some(Threshold::Critical(0.8)),
            max_share: 0.1,
            ..AlertSettings::default()
        },
        restless: secs(20.0),
        calm: secs(2.0),
        delay: Duration::from_micros(500),
        loss: 0.001,
        time: secs(20.0),
        faults: Vec::new(),
        seed,
    }
}

fn most(times: &[Duration]) -> Duration {
    times.iter().copied().max().unwrap_or_default()
}

fn keeps_its_promises(report: &Report, known: f64, rises: usize, takeovers: usize) {
    println!(
        "each group had one that decides after {:?}; alerts known to all after {:?}; others decided \
         after {:?}; {} alerts",
        report.agreed, report.rises, report.takeovers, report.raised
    );
    assert!(report.agreed.unwrap() < secs(5.0), "{:?}", report.agreed);
    assert_eq!(report.rises.len(), rises, "{:?}", report.rises);
    assert!(most(&report.rises) <= secs(known), "{:?}", report.rises);
    assert_eq!(report.takeovers.len(), takeovers);
    assert!(
        most(&report.takeovers) <= secs(2.0),
        "{:?}",
        report.takeovers
    );
    assert_eq!(report.too_many, 0, "at {:?}", report.too_many_at);
    assert!(report.raised > 0);
    assert!(report.agrees);
}

#[test]
fn a_hundred_balancers_with_ten_thousand_members() {
    let mut plan = plan(100, 100, 100, 1);
    plan.faults = vec![
        (secs(7.5), Fault::Rise(1)),
        (secs(8.5), Fault::Rise(2)),
        (secs(9.5), Fault::Rise(3)),
        (secs(10.5), Fault::Step(7, secs(3600.0))),
        (secs(10.5), Fault::Step(8, secs(0.4))),
        (secs(12.1), Fault::KillHolder(4)),
        (secs(15.0), Fault::Restart),
    ];
    plan.time = secs(22.0);
    let report = play_plan(plan).unwrap();
    keeps_its_promises(&report, 0.5, 3, 1);
}

#[test]
fn what_a_hundred_balancers_send_is_little() {
    let mut figures = Vec::new();
    // Nothing happens; each location gets another load every 20 s, so that alerts come and go.
    for (restless, what) in [(1e9, "quiet"), (20.0, "busy")] {
        let mut plan = plan(100, 100, 100, 2);
        plan.restless = secs(restless);
        plan.faults = vec![(secs(7.0), Fault::Measure)];
        plan.time = secs(12.0);
        let report = play_plan(plan).unwrap();
        let most = |all: &[f64]| all.iter().copied().fold(0.0, f64::max);
        let (sent, received) = (most(&report.sent), most(&report.received));
        println!(
            "{what}: most sent {sent:.0} B/s, most received {received:.0} B/s, {} alerts in 12 s",
            report.raised
        );
        assert!(sent > 0.0 && sent < 100e3, "{what}: sent {sent:.0} B/s");
        assert!(received < 100e3, "{what}: received {received:.0} B/s");
        figures.push((report.raised, sent));
    }
    assert!(figures[0].0 == 0 && figures[1].0 > 500, "{figures:?}");
    assert!(figures[1].1 > figures[0].1, "alerts are told: {figures:?}");
}

#[test]
fn cut_off_killed_and_restarted_it_heals() {
    for seed in 0..5 {
        let mut plan = plan(10, 20, 20, seed);
        plan.loss = 0.02;
        plan.delay = Duration::from_millis(5);
        plan.faults = vec![
            (secs(8.0), Fault::Rise(0)),
            (secs(10.0), Fault::KillHolder(1)),
            (secs(14.0), Fault::Restart),
            (secs(18.0), Fault::Step(3, secs(100.0))),
            (secs(18.0), Fault::Step(4, secs(0.4))),
            (secs(20.0), Fault::Part(4)),
            (secs(26.0), Fault::Heal),
            (secs(32.0), Fault::KillHolder(2)),
            (secs(36.0), Fault::Kill(0)),
            (secs(36.0), Fault::Kill(1)),
            (secs(36.0), Fault::Kill(2)),
            (secs(40.0), Fault::Restart),
            // Alerts that counted because their holder was killed count no longer.
            (secs(110.0), Fault::Rise(3)),
        ];
        plan.time = secs(114.0);
        let report = play_plan(plan).unwrap();
        // Much is lost, and sent again.
        keeps_its_promises(&report, 0.8, 2, 2);
    }
}
