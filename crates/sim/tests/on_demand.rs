//! Alerts and bindings together: load that is already there is moved until it is even.
//!
//! The experiment of Balasubramanian, Schmidt, Dowdy and Othman, "Evaluating the
//! Performance of Middleware Load Balancing Strategies" (2004), in virtual time: four
//! members, eight clients, four of them with 100 requests per second and four with 50.
#![allow(clippy::unwrap_used)] // helpers of tests

use std::sync::Arc;
use std::time::Duration;

use evenkeel_control::analyzer::{Site, analyze, is_negligible};
use evenkeel_control::pulse::Pulses;
use evenkeel_core::binding::{Binding, Verdict};
use evenkeel_core::effective::{Shaping, effective};
use evenkeel_core::group::{Granularity, Group, GroupSettings, GroupState, Outcome, Request};
use evenkeel_core::load::{LoadId, LoadValue, Location};
use evenkeel_core::member::{Member, MemberId, Reason, Slot, Weight};
use evenkeel_core::strategy::{Reach, Values, carries_in_pulses, default_for, find};
use evenkeel_core::time::Instant;

const MEMBERS: usize = 4;
/// Requests per second of each client.
const CLIENTS: [u32; 8] = [100, 100, 100, 100, 50, 50, 50, 50];

/// Where the clients are at first: the busy ones share two members, and the others the other
/// two.
const STARTS: [usize; 8] = [0, 0, 1, 1, 2, 2, 3, 3];

/// What is played.
struct Play {
    granularity: Granularity,
    /// `None` is the default.
    strategy: Option<&'static str>,
    /// What is reported, and how often, in seconds.
    load_id: LoadId,
    interval: u64,
    starts: [usize; 8],
}

impl Play {
    fn of(granularity: Granularity, strategy: &'static str) -> Self {
        Play {
            granularity,
            strategy: Some(strategy),
            load_id: LoadId::REQUESTS_PER_SECOND,
            interval: 1,
            starts: STARTS,
        }
    }
}

fn group(play: &Play) -> (Group, Values) {
    let member = |id: usize| Member {
        id: MemberId(id as u64),
        name: format!("m{id}").into(),
        address: "192.0.2.1:80".parse().unwrap(),
        max_connections: None,
        location: Arc::new(Location::new(format!("l{id}"))),
        slot: Arc::new(Slot::new(Weight::ONE)),
    };
    let members: Vec<_> = (0..MEMBERS).map(member).collect();
    let mut settings = GroupSettings {
        granularity: play.granularity,
        load_id: play.load_id,
        ..GroupSettings::default()
    };
    let values = match play.strategy {
        Some(name) => Values::defaults(find(name).unwrap()),
        None => default_for(&settings, Reach::Carried),
    };
    settings.alert.pulses = carries_in_pulses(&settings, values.kind());
    let strategy = (values.kind().build)(&values, &members);
    let state = Arc::<GroupState>::default();
    (Group::new("g", settings, strategy, members, state), values)
}

/// Raises and lifts alerts, as the control loop does.
fn control(group: &Group, pulses: &mut Pulses, values: &Values, now: Instant) {
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
    let Some(threshold) = group.strategy().alert_threshold() else {
        return;
    };
    if group.settings().alert.pulses {
        let raised = pulses.step(group, &shaping, threshold, now);
        for member in group.members() {
            let mut all = raised.iter();
            let on = all.any(|raised| Arc::ptr_eq(&raised.location, &member.location));
            member.slot.set(Reason::Shedding, on);
        }
        return;
    }
    let alerts = match is_negligible(threshold, group.settings().load_id, &sites) {
        true => vec![false; sites.len()],
        false => analyze(threshold, &group.settings().alert, &sites),
    };
    for (member, alert) in group.members().iter().zip(alerts) {
        member.slot.set(Reason::Shedding, alert);
    }
}

/// Requests per second at each member, for each second of the run.
fn run(play: &Play, seconds: u64, seed: u64) -> Vec<[u32; MEMBERS]> {
    let (group, values) = group(play);
    let mut pulses = Pulses::default();
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut bindings: Vec<Binding> = play
        .starts
        .into_iter()
        .map(|start| Binding::new(&group, start, Instant::from_nanos(1), &mut rng).unwrap())
        .collect();
    let (mut history, mut counts) = (Vec::new(), [0; MEMBERS]);
    let mut since_report = [0; MEMBERS];
    for step in 1..=seconds * 100 {
        let now = Instant::ZERO.after(Duration::from_millis(step * 10));
        for (binding, rate) in bindings.iter_mut().zip(CLIENTS) {
            if step % u64::from(100 / rate) != 0 {
                continue;
            }
            let ticket = match binding.check(&group, now) {
                Verdict::Keep(index) => group.bind(index, now).unwrap(),
                Verdict::Move(index) => {
                    binding.move_to(&group, index, now);
                    group.bind(index, now).unwrap()
                }
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
            for (sum, count) in since_report.iter_mut().zip(counts) {
                *sum += count;
            }
            history.push(std::mem::take(&mut counts));
        }
        if step % (100 * play.interval) == 0 {
            for (member, count) in group.members().iter().zip(&mut since_report) {
                let rate = f64::from(std::mem::take(count)) / play.interval as f64;
                // A member of which one request takes 2 ms of its CPU.
                let load = match play.load_id {
                    LoadId::CPU => (rate * 0.002).min(1.0),
                    _ => rate,
                };
                let load = LoadValue::new(load).unwrap();
                member.location.report(play.load_id, load, now).unwrap();
            }
        }
        if step % 10 == 0 {
            control(&group, &mut pulses, &values, now);
        }
    }
    history
}

#[test]
fn load_minimum_evens_out_what_is_bound_as_far_as_its_excess_goes() {
    for seed in 0..10 {
        let play = Play::of(Granularity::OnDemand, "load_minimum");
        let history = run(&play, 600, seed);
        assert_eq!(history[0], [200, 200, 100, 100]);
        for rates in &history[history.len() - 100..] {
            // A location without any load is no measure.
            let least = rates.iter().filter(|&&rate| rate > 0).min().unwrap();
            let most = rates.iter().max().unwrap();
            assert!(
                *most as f32 <= 1.4 * *least as f32,
                "seed {seed}: {rates:?}"
            );
        }
    }
}

#[test]
fn per_session_stays_as_it_began() {
    let play = Play::of(Granularity::PerSession, "load_minimum");
    let history = run(&play, 100, 1);
    assert!(history.iter().all(|rates| *rates == [200, 200, 100, 100]));
}

/// The second from which on all members have the same.
fn settled(history: &[[u32; MEMBERS]]) -> usize {
    let off = history.iter().rposition(|rates| *rates != [150; MEMBERS]);
    off.map_or(0, |at| at + 1)
}

#[test]
fn b2_without_any_setting_clients_that_are_carried_settle() {
    for (load_id, interval) in [
        (LoadId::REQUESTS_PER_SECOND, 1),
        (LoadId::CPU, 1),
        (LoadId::CPU, 5),
    ] {
        for starts in [STARTS, [0; 8], [0, 0, 0, 0, 1, 1, 1, 1]] {
            let mut slowest = 0;
            for seed in 0..20 {
                let play = Play {
                    granularity: Granularity::OnDemand,
                    strategy: None,
                    load_id,
                    interval,
                    starts,
                };
                let history = run(&play, 400, seed);
                slowest = slowest.max(settled(&history));
            }
            println!("{load_id}, every {interval} s, {starts:?}: {slowest} s at most");
            assert!(
                slowest <= 60 * interval as usize,
                "{load_id} {interval} {starts:?}: {slowest}"
            );
        }
    }
}

#[test]
fn b2_by_default_nobody_moves_who_is_bound_per_session() {
    let play = Play {
        strategy: None,
        ..Play::of(Granularity::PerSession, "")
    };
    let history = run(&play, 100, 1);
    assert!(history.iter().all(|rates| *rates == [200, 200, 100, 100]));
}
