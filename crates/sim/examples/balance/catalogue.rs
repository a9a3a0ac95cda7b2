//! Worlds in which strategies are compared.

use std::time::Duration;

use evenkeel_core::load::LoadId;
use evenkeel_sim::{Change, ChangeEffect, Discipline, Reports, Scenario, Service};

/// Time after which another member becomes the slow one, in worlds where it moves.
const PERIOD: Duration = Duration::from_secs(3);

/// All scenarios, the plain ones first.
pub(crate) fn catalogue() -> Vec<Scenario> {
    let mut all = Vec::new();
    for members in [3, 10, 300] {
        for balancers in [1, 2] {
            let named = |what: &str| {
                let name = format!("{what} {members}/{balancers}");
                let mut scenario = Scenario::new(name, members).with_balancers(balancers);
                // About 100 s for 10 members, and enough for each of 300.
                scenario.requests = if members > 100 { 200_000 } else { 60_000 };
                scenario
            };
            all.extend([
                named("equal"),
                named("slow").one_slow(5.0),
                named("moving").one_slow(5.0).moving_slow(5.0, PERIOD),
                named("mixed").with_service(Service::Mixed),
                named("failing").one_failing(0.5),
            ]);
        }
    }
    all.extend(special());
    all
}

/// Worlds beyond the plain ones, ten members each.
fn special() -> Vec<Scenario> {
    let new = |name: &str| Scenario::new(name, 10);
    let mut all = vec![
        new("constant").with_service(Service::Constant),
        new("constant, slow")
            .with_service(Service::Constant)
            .one_slow(5.0),
        new("mixed, slow")
            .with_service(Service::Mixed)
            .one_slow(5.0),
        new("sharing").with_discipline(Discipline::Sharing, 1),
        new("sharing, slow")
            .with_discipline(Discipline::Sharing, 1)
            .one_slow(5.0),
        new("8 workers").with_discipline(Discipline::Fifo, 8),
        new("8 workers, slow")
            .with_discipline(Discipline::Fifo, 8)
            .one_slow(5.0),
        new("8 workers, moving")
            .with_discipline(Discipline::Fifo, 8)
            .moving_slow(5.0, PERIOD),
        new("8 cores, slow")
            .with_discipline(Discipline::Sharing, 8)
            .one_slow(5.0),
        new("little traffic").with_utilisation(0.05),
        new("little traffic, slow")
            .with_utilisation(0.05)
            .one_slow(5.0),
        new("much traffic").with_utilisation(0.85),
        new("much traffic, slow")
            .with_utilisation(0.85)
            .one_slow(5.0),
        new("twice as slow").one_slow(2.0),
        new("failing, little traffic")
            .with_utilisation(0.05)
            .one_failing(0.5),
        new("4 balancers").with_balancers(4),
        new("4 balancers, slow").with_balancers(4).one_slow(5.0),
    ];
    let mut far = new("network");
    far.network = Duration::from_millis(10);
    all.extend([far.clone(), far.one_slow(5.0)]);
    if let Some(slow) = all.last_mut() {
        slow.name = "network, slow".into();
    }
    let mut sessions = new("sessions");
    sessions.session = Duration::from_millis(500);
    all.extend([sessions.clone(), sessions.one_slow(5.0)]);
    if let Some(slow) = all.last_mut() {
        slow.name = "sessions, slow".into();
    }
    // In flight every half of a service time and every ten; CPU every second.
    for (id, millis) in [
        (LoadId::IN_FLIGHT, 5),
        (LoadId::IN_FLIGHT, 100),
        (LoadId::CPU, 1000),
    ] {
        let reports = Reports {
            id,
            interval: Duration::from_millis(millis),
            delay: Duration::from_millis(1),
            noise: 0.0,
        };
        for slow in ["", ", slow"] {
            let mut reporting = new(&format!("{id}, {millis} ms{slow}")).with_balancers(2);
            reporting.members[0].slowness = if slow.is_empty() { 1.0 } else { 5.0 };
            reporting.reports = Some(reports);
            all.push(reporting);
        }
    }
    let mut half = new("half are slow");
    for member in &mut half.members[..5] {
        member.slowness = 3.0;
    }
    all.push(half);
    // Every member becomes five times slower for a second, at little traffic so that
    // they can still carry it.
    let mut all_slow = new("all slow at once").with_utilisation(0.12);
    let second = Duration::from_secs(1);
    for start in (10..60).step_by(10) {
        let start = Duration::from_secs(start);
        for member in 0..all_slow.members.len() {
            for (at, slowness) in [(start, 5.0), (start + second, 1.0)] {
                let to = ChangeEffect::Slowness(slowness);
                all_slow.changes.push(Change { at, member, to });
            }
        }
    }
    all.push(all_slow);
    let mut recovers = new("failing, recovers").one_failing(1.0);
    recovers.changes.push(Change {
        at: Duration::from_secs(30),
        member: 0,
        to: ChangeEffect::Failing(0.0),
    });
    all.push(recovers);
    all
}
