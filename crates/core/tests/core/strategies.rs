//! Properties of every strategy in the registry, for members in any state.

#![allow(clippy::unwrap_used)]

use std::net::IpAddr;

use crate::common::*;
use evenkeel_core::cost::Cost;
use evenkeel_core::group::{Group, GroupSettings, Outcome, PickError, Request, Ticket};
use evenkeel_core::load::LoadId;
use evenkeel_core::member::{MemberId, Reason, Weight};
use evenkeel_core::strategy::{self, Values};
use proptest::prelude::*;

/// A member in any state.
#[derive(Clone, Debug)]
struct State {
    weight: f64,
    /// Weight after the strategy was built.
    live_weight: f64,
    reasons: u32,
    in_flight: u32,
    /// Cost of each request in flight.
    cost: f64,
    max_connections: Option<u32>,
    load: Option<f64>,
    /// Age of the load in ms: fresh or stale.
    load_age: u64,
    latency_ms: Option<u64>,
    failures: u8,
    ramping: bool,
}

fn weights() -> impl Strategy<Value = f64> {
    prop_oneof![
        4 => Just(1.0),
        1 => Just(0.0),
        1 => Just(1000.0),
        1 => 1e-6..1e-3,
        2 => 0.5..10.0,
    ]
}

fn state() -> impl Strategy<Value = State> {
    let loads = prop_oneof![2 => 0.0..2.0, 1 => Just(0.0), 1 => Just(1e12)];
    (
        (
            weights(),
            weights(),
            prop_oneof![3 => Just(0u32), 1 => Just(Reason::Standby as u32), 1 => 0u32..2048],
        ),
        (
            0u32..4,
            prop::option::of(0u32..4),
            prop_oneof![Just(1.0), Just(0.01), Just(1000.0), 0.1..20.0],
        ),
        (
            prop::option::of(loads),
            prop_oneof![0u64..10_000, 20_000u64..50_000],
        ),
        (
            prop::option::of(0u64..5000),
            prop_oneof![3 => Just(0u8), 1 => 0u8..40],
        ),
        any::<bool>(),
    )
        .prop_map(|(weights, flying, load, observed, ramping)| State {
            weight: weights.0,
            live_weight: if ramping { weights.1 } else { weights.0 },
            reasons: weights.2,
            in_flight: flying.0,
            max_connections: flying.1,
            cost: flying.2,
            load: load.0,
            load_age: load.1,
            latency_ms: observed.0,
            failures: observed.1,
            ramping,
        })
}

fn states() -> impl Strategy<Value = Vec<State>> {
    prop_oneof![
        1 => prop::collection::vec(state(), 0..3),
        3 => prop::collection::vec(state(), 3..12),
        1 => prop::collection::vec(state(), 30..40),
        1 => prop::collection::vec(state(), 300..=300),
    ]
}

const NOW: u64 = 100_000;

/// A group in the given state, with the tickets that keep its requests in flight.
fn make(values: &Values, load_id: LoadId, states: &[State]) -> (Group, Vec<Ticket>) {
    let weights: Vec<f64> = states.iter().map(|state| state.weight).collect();
    let mut members = build_members(&weights);
    let settings = GroupSettings {
        load_id,
        ..GroupSettings::default()
    };
    // A limit may have been lowered below what is in flight: it comes last.
    let group = build_group(values, settings.clone(), members.clone());
    let mut tickets = Vec::new();
    for (index, state) in states.iter().enumerate() {
        let slot = &group.members()[index].slot;
        slot.set_weight(Weight::new(state.live_weight).unwrap());
        for reason in Reason::ALL {
            slot.set(reason, state.reasons & reason as u32 != 0);
        }
        if state.ramping {
            slot.set_ramp_from(Some(at_ms(NOW - 3000)));
        }
        if let Some(latency) = state.latency_ms {
            answer_request(&group, index, Outcome::Success, NOW - 6000, latency);
        }
        for _ in 0..state.failures {
            answer_request(&group, index, Outcome::Failure, NOW - 500, 1);
        }
        if let Some(load) = state.load {
            report_load(&group, index, load_id, load, NOW - state.load_age);
        }
        for _ in 0..state.in_flight {
            let cost = Cost::new(state.cost).unwrap();
            tickets.extend(group.bind_for(index, cost, at_ms(NOW - 100)));
        }
    }
    for (member, state) in members.iter_mut().zip(states) {
        member.max_connections = state.max_connections;
    }
    (build_group(values, settings, members), tickets)
}

/// True if the member could serve if no other member did, at its limit or not; written independently of the view.
fn may_serve(group: &Group, index: usize, panicking: bool, tried: &[MemberId]) -> bool {
    let member = &group.members()[index];
    let opinions = Reason::Down as u32 | Reason::Ejected as u32 | Reason::ReportedDown as u32;
    let soft = Reason::Shedding as u32 | Reason::Standby as u32;
    let hard = member.slot.reason_bits() & !soft;
    let against = if panicking { hard & !opinions } else { hard };
    against == 0 && member.slot.weight() > 0.0 && !tried.contains(&member.id)
}

fn is_full(group: &Group, index: usize) -> bool {
    let member = &group.members()[index];
    let limit = member.max_connections;
    limit.is_some_and(|limit| member.slot.in_flight() >= limit)
}

/// Members that may be picked: first those that are no backups and not under alert; if none of them can serve, or all
/// are full, others in this order: backups (unless the reason is that others are full), members under alert, backups
/// under alert. In panic backups are members as others are.
fn may_be_picked(group: &Group, panicking: bool, tried: &[MemberId]) -> Vec<bool> {
    let all = 0..group.members().len();
    let has = |index: usize, reason| group.members()[index].slot.has_reason(reason);
    let of = |shedding: bool, backups: bool| -> Vec<usize> {
        let backups = backups || panicking;
        let mut some: Vec<usize> = all.clone().collect();
        some.retain(|&index| {
            may_serve(group, index, panicking, tried)
                && (shedding || !has(index, Reason::Shedding))
                && (backups || !has(index, Reason::Standby))
        });
        some
    };
    let mut stages = vec![of(false, false)];
    if stages[0].is_empty() {
        stages.push(of(false, true));
    }
    stages.push(of(true, false));
    if of(true, false).is_empty() {
        stages.push(of(true, true));
    }
    let with_room = |stage: Vec<usize>| -> Vec<usize> {
        let some = stage.into_iter().filter(|&index| !is_full(group, index));
        some.collect()
    };
    let mut stages = stages.into_iter().map(with_room);
    let stage = stages.find(|stage| !stage.is_empty()).unwrap_or_default();
    all.map(|index| stage.contains(&index)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn picks_an_eligible_member_whenever_there_is_one(
        states in states(),
        seed in any::<u64>(),
        load_id in prop_oneof![Just(LoadId::CPU), Just(LoadId::IN_FLIGHT), Just(LoadId::REQUESTS_PER_SECOND)],
        panicking in any::<bool>(),
        tried in prop::collection::vec(0u64..12, 0..4),
        client in prop::option::of(any::<[u8; 4]>()),
    ) {
        let mut tried: Vec<_> = tried.into_iter().map(MemberId).collect();
        tried.sort_unstable();
        for kind in strategy::REGISTRY {
            let (group, _tickets) = make(&Values::defaults(kind), load_id, &states);
            group.state().set_panicking(panicking);
            let mut rng = fastrand::Rng::with_seed(seed);
            let mut held = Vec::new();
            for _ in 0..20 {
                let request = Request {
                    client: client.map(IpAddr::from),
                    excluded_members: &tried,
                    ..Request::at_time(at_ms(NOW))
                };
                let eligible = may_be_picked(&group, panicking, &tried);
                match group.pick(&request, &mut rng) {
                    Ok(ticket) => {
                        prop_assert!(eligible[ticket.member_index()], "{}: picked {}", kind.name, ticket.member_index());
                        held.push(ticket);
                    }
                    Err(error) => {
                        prop_assert!(!eligible.contains(&true), "{}: {error}", kind.name);
                    }
                }
            }
        }
    }

    #[test]
    fn a_traced_decision_is_the_decision(
        states in states(),
        seed in any::<u64>(),
        load_id in prop_oneof![Just(LoadId::CPU), Just(LoadId::IN_FLIGHT)],
    ) {
        for kind in strategy::REGISTRY {
            let values = Values::defaults(kind);
            let (silent, _silent_tickets) = make(&values, load_id, &states);
            let (traced, _traced_tickets) = make(&values, load_id, &states);
            let mut silent_rng = fastrand::Rng::with_seed(seed);
            let mut traced_rng = fastrand::Rng::with_seed(seed);
            for step in 0..10 {
                let request = Request::at_time(at_ms(NOW + step));
                traced.state().want_trace();
                let expected = silent.pick(&request, &mut silent_rng);
                let got = traced.pick(&request, &mut traced_rng);
                let names = |group: &Group, picked: &Result<Ticket, PickError>| match picked {
                    Ok(ticket) => Ok(group.members()[ticket.member_index()].name.clone()),
                    Err(error) => Err(*error),
                };
                prop_assert_eq!(names(&silent, &expected), names(&traced, &got), "{}", kind.name);
                let decision = traced.state().last_decision().unwrap();
                prop_assert_eq!(&decision.chosen, &names(&traced, &got), "{}", kind.name);
                if let Ok(ticket) = got {
                    let chosen = decision.explanation.candidates.iter().any(|c| c.index == ticket.member_index());
                    prop_assert!(chosen, "{}: {:?}", kind.name, decision.explanation);
                }
                for candidate in &decision.explanation.candidates {
                    prop_assert!(candidate.score.is_none_or(|score| !score.is_nan()), "{}", kind.name);
                }
            }
        }
    }
}

/// A rehearsal takes the decision that comes next, and leaves no trace in the strategy.
#[test]
fn an_explained_next_decision_is_the_next_decision() {
    for strategy in all_strategies() {
        let group = group_with(strategy, &[1.0; 40]);
        let mut rng = fastrand::Rng::with_seed(3);
        // Once, so that schedules have begun.
        drop(group.pick(&Request::at_time(at_ms(NOW)), &mut rng));
        if strategy == "prequal" {
            // A rehearsal draws no probes: it sees the pool as it is.
            continue;
        }
        for step in 0..50 {
            let request = Request::at_time(at_ms(NOW + step));
            let mut same = rng.clone();
            let next = group.explain_next(&request, &mut same);
            let ticket = group.pick(&request, &mut rng).unwrap();
            let name = group.members()[ticket.member_index()].name.clone();
            assert_eq!(next.chosen, Ok(name), "{strategy}");
        }
    }
}

#[test]
fn shares_follow_weights_where_requests_do_not_pile_up() {
    let weights = [1.0, 2.0, 4.0, 1.0, 8.0];
    for strategy in all_strategies() {
        let group = group_with(strategy, &weights);
        let counts = count_picks(&group, 32_000, NOW, 5);
        for (count, weight) in counts.iter().zip(weights) {
            let expected = 2000.0 * weight;
            let error = (*count as f64 / expected - 1.0).abs();
            assert!(error < 0.1, "{strategy}: {counts:?}");
        }
    }
}

#[test]
fn shares_follow_weights_among_many() {
    let weights: Vec<f64> = (0..100).map(|i| if i < 50 { 1.0 } else { 3.0 }).collect();
    for strategy in all_strategies() {
        let group = group_with(strategy, &weights);
        let counts = count_picks(&group, 40_000, NOW, 5);
        let heavy: usize = counts[50..].iter().sum();
        let share = heavy as f64 / 40_000.0;
        assert!((share - 0.75).abs() < 0.02, "{strategy}: {share}");
    }
}

#[test]
fn a_changed_weight_counts_at_once() {
    for strategy in all_strategies() {
        let group = group_with(strategy, &[1.0; 4]);
        count_picks(&group, 100, NOW, 1);
        let slot = |index: usize| &group.members()[index].slot;
        slot(0).set_weight(Weight::new(5.0).unwrap());
        slot(3).set_weight(Weight::new(0.0).unwrap());
        let counts = count_picks(&group, 7000, NOW, 1);
        assert_eq!(counts[3], 0, "{strategy}");
        for (index, expected) in [(0, 5000.0), (1, 1000.0), (2, 1000.0)] {
            let error = (counts[index] as f64 / expected - 1.0).abs();
            assert!(error < 0.15, "{strategy}: {counts:?}");
        }
        // And back: nothing remembers the 5.
        slot(0).set_weight(Weight::ONE);
        let counts = count_picks(&group, 6000, NOW, 1);
        for &count in &counts[..3] {
            assert!((1700..2300).contains(&count), "{strategy}: {counts:?}");
        }
    }
}

#[test]
fn a_stale_load_is_neither_idle_nor_full() {
    // Three members report, one has stopped to: it gets about a fair share of what the
    // strategy would give it without reports, not nothing and not everything.
    for strategy in all_strategies() {
        for stale in [0.0, 1e6] {
            let group = group_with(strategy, &[1.0; 4]);
            report_load(&group, 3, LoadId::CPU, stale, NOW - 60_000);
            let mut rng = fastrand::Rng::with_seed(11);
            let mut counts = [0; 4];
            for step in 0..4000 {
                if step % 200 == 0 {
                    for index in 0..3 {
                        report_load(&group, index, LoadId::CPU, 0.5, NOW + step);
                    }
                }
                let request = Request::at_time(at_ms(NOW + step));
                counts[group.pick(&request, &mut rng).unwrap().member_index()] += 1;
            }
            assert!((700..1300).contains(&counts[3]), "{strategy}: {counts:?}");
        }
    }
}

#[test]
fn slow_start_ramps_the_share_up() {
    for strategy in all_strategies() {
        let group = group_with(strategy, &[1.0; 5]);
        group.members()[2].slot.set_ramp_from(Some(at_ms(NOW)));
        let share = |ms| count_picks(&group, 4100, NOW + ms, 9)[2];
        let (start, half, end) = (share(0), share(5000), share(10_000));
        assert!((60..160).contains(&start), "{strategy}: {start}");
        assert!((350..650).contains(&half), "{strategy}: {half}");
        assert!((690..950).contains(&end), "{strategy}: {end}");
    }
}

#[test]
fn strategies_work_without_reports_and_when_not_adaptive() {
    for strategy in all_strategies() {
        let settings = GroupSettings {
            adaptive: false,
            ..GroupSettings::default()
        };
        let group = build_group(&values(strategy, &[]), settings, build_members(&[1.0; 4]));
        // A lie that must not be listened to.
        report_load(&group, 0, LoadId::CPU, 0.0, NOW);
        (1..4).for_each(|index| report_load(&group, index, LoadId::CPU, 9.0, NOW));
        for count in count_picks(&group, 4000, NOW, 2) {
            assert!((850..1150).contains(&count), "{strategy}");
        }
    }
}

#[test]
fn a_group_of_one_and_of_none() {
    for strategy in all_strategies() {
        assert_eq!(count_picks(&group_with(strategy, &[1.0]), 10, NOW, 1), [10]);
        let mut rng = fastrand::Rng::with_seed(1);
        let none = group_with(strategy, &[]).pick(&Request::at_time(at_ms(NOW)), &mut rng);
        assert_eq!(none.unwrap_err(), PickError::NoneEligible, "{strategy}");
    }
}

#[test]
fn everything_but_one_is_down_among_many() {
    for strategy in all_strategies() {
        let group = group_with(strategy, &[1.0; 300]);
        for member in group.members() {
            member.slot.set(Reason::Down, &*member.name != "m123");
        }
        assert_eq!(count_picks(&group, 50, NOW, 1)[123], 50, "{strategy}");
    }
}

#[test]
fn parameters_are_checked_and_every_default_is_allowed() {
    for kind in strategy::REGISTRY {
        let mut values = Values::defaults(kind);
        assert!(values.set("no such parameter", 1.0).is_err());
        for param in kind.params {
            assert!(!param.doc.is_empty());
            values.set(param.name, param.default).unwrap();
            assert!(values.set(param.name, param.max * 2.0 + 1.0).is_err());
            assert!(values.set(param.name, f64::NAN).is_err());
            for extreme in [param.min, param.max] {
                values.set(param.name, extreme).unwrap();
                let group =
                    build_group(&values, GroupSettings::default(), build_members(&[1.0; 30]));
                assert_eq!(count_picks(&group, 100, NOW, 1).iter().sum::<usize>(), 100);
            }
        }
    }
}

#[test]
fn names_are_unique_and_found() {
    for kind in strategy::REGISTRY {
        assert_eq!(strategy::find(kind.name), Some(kind));
        let (group, _tickets) = make(&Values::defaults(kind), LoadId::CPU, &[]);
        assert_eq!(group.strategy().name, kind.name);
    }
    let mut names: Vec<_> = all_strategies().collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), strategy::REGISTRY.len());
}

#[test]
fn b11_a_location_with_more_cpus_carries_more_sessions() {
    let group = group_with("least_active_sessions", &[1.0, 1.0]);
    for (index, cpus) in [(0, 1.0), (1, 16.0)] {
        let (rate, service) = (80.0, 0.01);
        report_load(&group, index, LoadId::REQUESTS_PER_SECOND, rate, 1000);
        report_load(&group, index, LoadId::SERVICE_TIME, service, 1000);
        report_load(&group, index, LoadId::RESPONSE_TIME, 0.02, 1000);
        // By the utilisation law.
        let utilization = rate * service / cpus;
        report_load(&group, index, LoadId::UTILIZATION, utilization, 1000);
    }
    let mut rng = fastrand::Rng::with_seed(1);
    for _ in 0..20 {
        let chosen = group
            .choose_member(&Request::at_time(at_ms(1000)), &mut rng)
            .unwrap();
        assert_eq!(chosen, 1, "it has sixteen times the room");
    }
}

/// Three members that do 50 requests of 10 ms per second; the first one has just worked off a backlog, and its
/// clients seem to think for ever.
fn with_a_backlog(values: &Values, busy: [f64; 3]) -> Group {
    let group = build_group(values, GroupSettings::default(), build_members(&[1.0; 3]));
    for (index, busy) in busy.into_iter().enumerate() {
        let (response, think) = if index == 0 {
            (0.5, 0.3)
        } else {
            (0.02, 0.005)
        };
        for (id, value) in [
            (LoadId::REQUESTS_PER_SECOND, 100.0 * busy),
            (LoadId::SERVICE_TIME, 0.01),
            (LoadId::UTILIZATION, busy),
            (LoadId::RESPONSE_TIME, response),
            (LoadId::THINK_TIME, think),
        ] {
            report_load(&group, index, id, value, 1000);
        }
    }
    group
}

fn chosen(group: &Group, rounds: u64) -> [u32; 3] {
    let mut rng = fastrand::Rng::with_seed(1);
    let mut counts = [0; 3];
    for _ in 0..rounds {
        let index = group
            .choose_member(&Request::at_time(at_ms(1000)), &mut rng)
            .unwrap();
        counts[index] += 1;
    }
    counts
}

#[test]
fn active_sessions_follow_from_the_utilisation_unless_the_reported_time_is_wanted() {
    let mut values = Values::defaults(strategy::find("least_active_sessions").unwrap());
    let group = with_a_backlog(&values, [0.4, 0.5, 0.8]);
    assert_eq!(chosen(&group, 50), [50, 0, 0], "it is idle again");
    // Equal ones are equal, whatever one report says of r and h.
    let group = with_a_backlog(&values, [0.5, 0.5, 0.5]);
    assert!(chosen(&group, 300).iter().all(|&count| count > 60));
    values.set("reported_response", 1.0).unwrap();
    let group = with_a_backlog(&values, [0.5, 0.5, 0.5]);
    assert_eq!(chosen(&group, 50)[0], 0);
    // A queue that only grows is a number, too.
    values.set("reported_response", 0.0).unwrap();
    let group = with_a_backlog(&values, [1.0, 1.0, 0.9]);
    assert_eq!(chosen(&group, 50), [0, 0, 50]);
}

#[test]
fn clients_that_were_sent_there_since_count_at_the_utilisation_that_they_make() {
    let values = Values::defaults(strategy::find("least_active_sessions").unwrap());
    let group = with_a_backlog(&values, [0.8, 0.9, 0.9]);
    assert_eq!(chosen(&group, 20), [20, 0, 0]);
    let stay = std::time::Duration::from_secs(20);
    let mut sent = 0;
    while chosen(&group, 1) == [1, 0, 0] && sent < 1000 {
        group.assign_client(0, stay, at_ms(1000));
        sent += 1;
    }
    assert!((1..1000).contains(&sent), "{sent}");
}

/// Strategies that go by reported load, and by what they know themselves while nothing is reported.
const BY_LOAD: [&str; 6] = [
    "k_least_loaded",
    "least_active_sessions",
    "least_loaded",
    "least_utilization",
    "load_minimum",
    "minimum_dispersion",
];

/// Sends clients to members, each for a minute, and returns how many each member got.
fn send_clients(group: &Group, clients: u64, from_ms: u64, every_ms: u64) -> Vec<u32> {
    let mut rng = fastrand::Rng::with_seed(3);
    let mut counts = vec![0; group.members().len()];
    for client in 0..clients {
        let now = at_ms(from_ms + client * every_ms);
        let index = group
            .choose_member(&Request::at_time(now), &mut rng)
            .unwrap();
        group.assign_client(index, SECOND * 60, now);
        counts[index] += 1;
    }
    counts
}

/// Strategies that go by requests in flight.
const BY_REQUESTS: [&str; 3] = ["adaptive", "least_connection", "least_request"];

#[test]
fn d2_clients_are_spread_evenly_while_no_load_is_known() {
    for strategy in BY_LOAD.into_iter().chain(BY_REQUESTS) {
        // All at once, and over the time that they stay.
        for every_ms in [0, 3000] {
            let counts = send_clients(&group_with(strategy, &[1.0; 4]), 16, 1000, every_ms);
            assert_eq!(counts, [4; 4], "{strategy}, every {every_ms} ms");
        }
        let counts = send_clients(&group_with(strategy, &[3.0, 1.0]), 64, 1000, 0);
        assert!((42..=52).contains(&counts[0]), "{strategy}: {counts:?}");
    }
}

#[test]
fn d2_a_member_gets_clients_again_when_those_it_had_are_gone() {
    for strategy in BY_LOAD.into_iter().chain(BY_REQUESTS) {
        let group = group_with(strategy, &[1.0; 2]);
        (0..40).for_each(|_| group.assign_client(0, SECOND * 60, at_ms(1000)));
        assert_eq!(send_clients(&group, 30, 1000, 0), [0, 30], "{strategy}");
        // Ten stays later.
        let counts = send_clients(&group, 30, 601_000, 0);
        assert!((14..=16).contains(&counts[0]), "{strategy}: {counts:?}");
    }
}

#[test]
fn d2_a_client_that_asks_anew_with_its_next_request_is_bound_to_no_member() {
    let group = group_with("least_utilization", &[1.0; 2]);
    (0..40).for_each(|_| group.assign_client(0, std::time::Duration::ZERO, at_ms(1000)));
    let counts = send_clients(&group, 20, 1000, 0);
    assert_eq!(counts, [10, 10]);
}
