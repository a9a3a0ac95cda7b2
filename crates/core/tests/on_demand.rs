//! Alerts and bindings together: load that is already there is moved until it is even.
//!
//! The experiment of Balasubramanian, Schmidt, Dowdy and Othman, "Evaluating the
//! Performance of Middleware Load Balancing Strategies" (2004), in virtual time: four
//! members, eight clients, four of them with 100 requests per second and four with 50.
#![allow(clippy::unwrap_used)] // helpers of tests

use std::sync::Arc;
use std::time::Duration;

use evenkeel_core::analyzer::{Site, analyze};
use evenkeel_core::binding::{Binding, Verdict};
use evenkeel_core::effective::{Shaping, effective};
use evenkeel_core::group::{Granularity, Group, GroupSettings, GroupState, Outcome, Request};
use evenkeel_core::load::{LoadId, LoadValue, Location};
use evenkeel_core::member::{Member, MemberId, Reason, Slot, Weight};
use evenkeel_core::strategy::{Values, find};
use evenkeel_core::time::Instant;

const MEMBERS: usize = 4;
/// Requests per second of each client.
const CLIENTS: [u32; 8] = [100, 100, 100, 100, 50, 50, 50, 50];

fn group(granularity: Granularity) -> (Group, Values) {
    let member = |id: usize| Member {
        id: MemberId(id as u64),
        name: format!("m{id}").into(),
        address: "192.0.2.1:80".parse().unwrap(),
        max_connections: None,
        location: Arc::new(Location::new(format!("l{id}"))),
        slot: Arc::new(Slot::new(Weight::ONE)),
    };
    let members: Vec<_> = (0..MEMBERS).map(member).collect();
    let settings = GroupSettings {
        granularity,
        load_id: LoadId::REQUESTS_PER_SECOND,
        ..GroupSettings::default()
    };
    let values = Values::defaults(find("load_minimum").unwrap());
    let strategy = (values.kind().build)(&values, &members);
    let state = Arc::<GroupState>::default();
    (Group::new("g", settings, strategy, members, state), values)
}

/// Raises and lifts alerts, as the control loop does.
fn control(group: &Group, values: &Values, now: Instant) {
    let shaping = Shaping::of(values);
    let site = |member: &Member| {
        let (slot, location) = (&member.slot, &member.location);
        let load = effective(slot, location, &shaping, group.settings(), now);
        Site {
            load: load.map(|effective| effective.load),
            takes_traffic: true,
            alerted: slot.has(Reason::Shedding),
        }
    };
    let sites: Vec<_> = group.members().iter().map(site).collect();
    let threshold = group.strategy().alert_threshold().unwrap();
    let alerts = analyze(threshold, &group.settings().alert, &sites);
    for (member, alert) in group.members().iter().zip(alerts) {
        member.slot.set(Reason::Shedding, alert);
    }
}

/// Requests per second at each member, for each second of the run. At first the busy
/// clients share two members, and the others the other two.
fn run(granularity: Granularity, seconds: u64, seed: u64) -> Vec<[u32; MEMBERS]> {
    let (group, values) = group(granularity);
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut bindings: Vec<Binding> = (0..CLIENTS.len())
        .map(|client| Binding::new(&group, client / 2, Instant::from_nanos(1), &mut rng).unwrap())
        .collect();
    let (mut history, mut counts) = (Vec::new(), [0; MEMBERS]);
    for step in 1..=seconds * 100 {
        let now = Instant::ZERO.after(Duration::from_millis(step * 10));
        for (binding, rate) in bindings.iter_mut().zip(CLIENTS) {
            if step % u64::from(100 / rate) != 0 {
                continue;
            }
            let ticket = match binding.check(&group, now) {
                Verdict::Keep(index) => group.bind(index, now).unwrap(),
                Verdict::Rebind(_) => {
                    let ticket = group.pick(&Request::at(now), &mut rng).unwrap();
                    *binding = Binding::new(&group, ticket.index(), now, &mut rng).unwrap();
                    ticket
                }
            };
            counts[ticket.index()] += 1;
            ticket.finish(Outcome::Success, now);
        }
        if step % 100 == 0 {
            for (member, count) in group.members().iter().zip(counts) {
                let load = LoadValue::new(f64::from(count)).unwrap();
                let id = LoadId::REQUESTS_PER_SECOND;
                member.location.report(id, load, now).unwrap();
            }
            history.push(std::mem::take(&mut counts));
        }
        if step % 10 == 0 {
            control(&group, &values, now);
        }
    }
    history
}

#[test]
fn on_demand_minimum_dispersion_evens_out_what_is_bound() {
    for seed in 0..10 {
        let history = run(Granularity::OnDemand, 600, seed);
        assert_eq!(history[0], [200, 200, 100, 100]);
        let last = &history[history.len() - 100..];
        assert!(
            last.iter().all(|rates| *rates == [150; MEMBERS]),
            "seed {seed}: {last:?}"
        );
    }
}

#[test]
fn per_session_stays_as_it_began() {
    let history = run(Granularity::PerSession, 100, 1);
    assert!(history.iter().all(|rates| *rates == [200, 200, 100, 100]));
}
