use std::cell::Cell;
use std::net::Ipv6Addr;
use std::time::Duration;

use evenkeel_core::group::GroupSettings;
use evenkeel_core::hash_terms::{HashSeat, scale_bound};
use evenkeel_core::key::hash_address;
use evenkeel_core::member::Weight;
use evenkeel_core::zone::{Reading, WHOLE, ZoneSettings};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use super::*;
use crate::testing;

fn now() -> Instant {
    Instant::from_nanos(1_000_000_000_000)
}

/// State of a member.
#[derive(Clone, Debug)]
struct State {
    weight: f64,
    reasons: Vec<Reason>,
    /// Time since slow start has begun, in seconds.
    ramp: Option<u64>,
    limit: Option<u32>,
    reported_limit: Option<u32>,
    in_flight: u32,
    /// True if the member is in the balancer's zone.
    is_near: bool,
}

/// State of a group.
#[derive(Clone, Debug)]
struct Scene {
    members: Vec<State>,
    is_panicking: bool,
    /// Part of the requests that passes on to other zones, in 1/[`WHOLE`]; `None` if zones are alike.
    passed: Option<u32>,
}

/// Reasons of members. Backups and alerts are apart, as decisions about these do not go by zones.
fn reasons(are_soft: bool) -> impl Strategy<Value = Vec<Reason>> {
    let is_soft = |reason: &Reason| *reason as u32 & Reason::SOFT != 0;
    let all = Reason::ALL
        .into_iter()
        .filter(move |reason| are_soft || !is_soft(reason));
    let one = prop::sample::select(all.collect::<Vec<_>>());
    prop_oneof![
        2 => Just(Vec::new()),
        1 => prop::collection::vec(one, 1..3),
    ]
}

fn states(has_zones: bool) -> impl Strategy<Value = State> {
    let weights = prop_oneof![1 => Just(0.0), 9 => prop::sample::select(vec![1.0, 2.0, 4.0])];
    let limits = (proptest::option::of(3..9u32), proptest::option::of(3..9u32));
    (
        (weights, reasons(!has_zones)),
        proptest::option::of(4..20u64),
        limits,
        0..3u32,
        any::<bool>(),
    )
        .prop_map(
            |((weight, reasons), ramp, (limit, reported_limit), in_flight, is_near)| State {
                weight,
                reasons,
                ramp,
                limit,
                reported_limit,
                in_flight,
                is_near,
            },
        )
}

fn scenes() -> impl Strategy<Value = Scene> {
    let passed = proptest::option::of(WHOLE / 8..=WHOLE * 7 / 8);
    passed.prop_flat_map(|passed| {
        let members = prop::collection::vec(states(passed.is_some()), 1..6);
        (members, any::<bool>()).prop_map(move |(members, is_panicking)| Scene {
            members,
            is_panicking,
            passed,
        })
    })
}

impl Scene {
    fn make_group(&self, strategy: &str) -> Group {
        let members = (1u8..).zip(&self.members).map(|(number, state)| {
            let address = SocketAddr::from(([10, 77, 0, number], 8080));
            let zone = if state.is_near { "near" } else { "far" };
            let member = Member {
                max_connections: state.limit,
                zone: self.passed.map(|_| zone.into()),
                ..testing::member(number.into(), address)
            };
            member.slot.set_weight(Weight::new(state.weight).unwrap());
            member.slot.set_reported_limit(state.reported_limit);
            let ramp = state
                .ramp
                .map(|seconds| now().as_nanos() - seconds * 1_000_000_000);
            member.slot.set_ramp_from(ramp.map(Instant::from_nanos));
            for reason in &state.reasons {
                member.slot.set(*reason, true);
            }
            member
        });
        let settings = GroupSettings {
            slow_start: Duration::from_secs(10),
            zones: Some(ZoneSettings {
                balancer_zone: Some("near".into()),
                ..ZoneSettings::default()
            }),
            ..GroupSettings::default()
        };
        let group = testing::group(strategy, settings, members.collect());
        group.take_ranks();
        group.state().set_panicking(self.is_panicking);
        let reading = Reading {
            passed_share: self.passed.unwrap_or(0),
            load: None,
            usable: 1.0,
        };
        group.state().zones().set(0, reading);
        group
    }
}

/// Decisions that are compared with the terms.
const DECISIONS: u32 = 2000;

/// Counts how often the group chooses each member.
fn count_choices(group: &Group, seed: u64) -> Vec<u32> {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut counts = vec![0; group.members().len()];
    for _ in 0..DECISIONS {
        if let Ok(index) = group.choose_member(&Request::at_time(now()), &mut rng) {
            counts[index] += 1;
        }
    }
    counts
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn s41_terms_are_of_the_members_that_decisions_find(scene in scenes(), seed: u64) {
        let group = scene.make_group("random");
        let tickets = group.members().iter().enumerate().flat_map(|(index, _)| {
            let in_flight = scene.members[index].in_flight;
            (0..in_flight).map(move |_| index)
        });
        let tickets: Vec<_> = tickets.map(|index| group.bind(index, now()).unwrap()).collect();
        let FoundTerms {
            form,
            members: terms,
            ..
        } = find_terms(&group, now(), &mut Buffers::default());
        prop_assert_eq!(form, Form::Turns);
        prop_assert_eq!(terms.len(), scene.members.len());
        let choices = count_choices(&group, seed);
        let serving = terms.iter().filter(|member| member.limit > 0);
        let turns: f64 = serving.map(|member| 1.0 / f64::from(member.base)).sum();
        for (member, state) in terms.iter().zip(&scene.members) {
            let chosen = choices[member.index];
            prop_assert_eq!(member.limit > 0, chosen > 0, "{:?} {:?}", member, choices);
            let limit = state.limit.unwrap_or(u32::MAX).min(state.reported_limit.unwrap_or(u32::MAX));
            prop_assert!(member.limit == 0 || member.limit == limit);
            prop_assert_eq!(member.in_flight, state.in_flight);
            if member.limit > 0 {
                let share = 1.0 / f64::from(member.base) / turns;
                let seen = f64::from(chosen) / f64::from(DECISIONS);
                prop_assert!((share - seen).abs() < 0.07, "{:?} {:?}", terms, choices);
            } else {
                prop_assert_eq!(member.base, u32::MAX);
            }
            let is_opinion = |reason: &&Reason| **reason as u32 & Reason::OVERRIDDEN_BY_PANIC != 0;
            let ends = |reason: &&Reason| **reason as u32 & Reason::ENDS_SESSIONS != 0;
            let mut ending = state.reasons.iter().filter(ends);
            let must_leave = ending.any(|reason| !scene.is_panicking || !is_opinion(&reason));
            prop_assert_eq!(member.must_leave, must_leave);
        }
        drop(tickets);
    }
}

#[test]
fn s41_terms_of_hash_choose_the_members_that_the_group_chooses() {
    let (decisions, others) = (Cell::new(0), Cell::new(0));
    let clients = prop::collection::vec(any::<u128>(), 32);
    let mut runner = TestRunner::new(ProptestConfig {
        cases: 128,
        ..ProptestConfig::default()
    });
    runner
        .run(&(scenes(), clients), |(scene, clients)| {
            let scene = Scene {
                passed: None,
                ..scene
            };
            let group = scene.make_group("source_ip_hash");
            let in_flight = scene.members.iter().map(|member| member.in_flight);
            let tickets = in_flight.enumerate().flat_map(|(index, in_flight)| {
                (0..in_flight)
                    .map(|_| group.bind(index, now()).unwrap())
                    .collect::<Vec<_>>()
            });
            let tickets: Vec<_> = tickets.collect();
            let FoundTerms {
                form,
                members: terms,
                ..
            } = find_terms(&group, now(), &mut Buffers::default());
            let Form::Hash { bound } = form else {
                panic!("{form:?}");
            };
            let seats = terms.iter().map(|member| HashSeat {
                base: member.base,
                weight: member.weight,
                name: member.name_hash,
                own: 0,
                others: member.in_flight,
                room: member.limit.saturating_sub(member.in_flight),
            });
            let seats: Vec<_> = seats.collect();
            for client in clients {
                let client = Ipv6Addr::from(client).into();
                let request = Request {
                    client: Some(client),
                    ..Request::at_time(now())
                };
                let expected = group
                    .choose_member(&request, &mut fastrand::Rng::new())
                    .ok();
                let chosen =
                    hash_terms::choose_seat(&seats, hash_address(client), scale_bound(bound));
                prop_assert_eq!(chosen.is_some(), expected.is_some());
                decisions.set(decisions.get() + 1);
                others.set(others.get() + u32::from(chosen != expected));
            }
            drop(tickets);
            Ok(())
        })
        .unwrap();
    // Weights of slow starts are rounded: two members may be nearly equal.
    assert_eq!(decisions.get(), 128 * 32);
    assert!(others.get() <= 2, "{}", others.get());
}

fn make_state(weight: f64, reasons: &[Reason]) -> State {
    State {
        weight,
        reasons: reasons.into(),
        ramp: None,
        limit: None,
        reported_limit: None,
        in_flight: 0,
        is_near: true,
    }
}

#[test]
fn s41_costs_are_scaled_by_the_members_that_serve() {
    let mut scene = Scene {
        members: vec![
            make_state(1.0, &[]),
            make_state(2.0, &[]),
            make_state(100.0, &[Reason::Maintenance]),
        ],
        is_panicking: false,
        passed: None,
    };
    let find = |scene: &Scene| {
        let group = scene.make_group("least_connection");
        let FoundTerms {
            form,
            members: terms,
            ..
        } = find_terms(&group, now(), &mut Buffers::default());
        let bases: Vec<_> = terms.iter().map(|member| member.base).collect();
        (form, bases)
    };
    let growth = 1.0;
    assert_eq!(
        find(&scene),
        (Form::Score { growth }, vec![131_072, 65_536, u32::MAX])
    );
    // Each zone has its share of the turns: here nothing passes on to the other one.
    scene.passed = Some(0);
    scene.members[1].is_near = false;
    assert_eq!(
        find(&scene),
        (Form::Turns, vec![65_536, u32::MAX, u32::MAX])
    );
}

#[test]
fn s41_loads_of_prequal_are_scaled_by_the_members_that_serve() {
    let scene = Scene {
        members: vec![
            make_state(1.0, &[]),
            make_state(2.0, &[]),
            make_state(100.0, &[Reason::Maintenance]),
        ],
        is_panicking: false,
        passed: None,
    };
    let group = scene.make_group("prequal");
    let found = find_terms(&group, now(), &mut Buffers::default());
    // Two members are too few for a hot one, and nothing is known of latencies.
    let hot_above = f32::INFINITY;
    assert_eq!(found.form, Form::Prequal { hot_above });
    assert_eq!(found.highest_weight, 2.0);
    let terms: Vec<_> = { found.members.iter() }
        .map(|member| (member.base, member.weight))
        .collect();
    let none = u32::MAX;
    assert_eq!(terms, [(131_072, 131_072), (65_536, 65_536), (none, none)]);
}

#[test]
fn s41_members_elsewhere_have_terms_only() {
    let forwardable = ["10.0.0.1:80", "[2001:db8::1]:80", "[::ffff:10.0.0.1]:80"];
    for text in forwardable {
        let at: SocketAddr = text.parse().unwrap();
        let found = find_forwardable(&Address::from(at)).unwrap();
        assert_eq!(found, SocketAddr::new(at.ip().to_canonical(), 80));
    }
    for text in [
        "127.0.0.1:80",
        "[::1]:80",
        "0.0.0.0:80",
        "[::]:80",
        "[fe80::1]:80",
        "[::ffff:127.0.0.1]:80",
    ] {
        let at: SocketAddr = text.parse().unwrap();
        assert_eq!(find_forwardable(&Address::from(at)), None, "{text}");
    }
    let here = SocketAddr::from(([127, 0, 0, 1], 80));
    let there = SocketAddr::from(([10, 0, 0, 1], 80));
    let members = vec![testing::member(0, here), testing::member(1, there)];
    let group = testing::group("random", GroupSettings::default(), members);
    let terms = find_terms(&group, now(), &mut Buffers::default()).members;
    let found: Vec<_> = terms
        .iter()
        .map(|member| (member.index, member.address))
        .collect();
    assert_eq!(found, [(1, there)]);
}
