//! Terms of strategies, by which a program outside of the process makes their decisions.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking.

use std::net::IpAddr;

use evenkeel_core::group::{Group, GroupSettings, Outcome, Request, Ticket};
use evenkeel_core::hash_terms::{self, HashSeat};
use evenkeel_core::key::{Key, hash, hash_address};
use evenkeel_core::strategy::REGISTRY;
use evenkeel_core::terms::{self, Form, Seat};

use super::common::{answer_request, at_ms, build_group, build_members, group_with, values};

/// Costs of the members, and the form of decisions.
fn costs(group: &Group, ms: u64) -> (Form, Vec<f32>) {
    let request = Request::at_time(at_ms(ms));
    let mut costs = Vec::new();
    let form = group.fill_costs(&group.view_for(&request), &mut costs);
    (form, costs)
}

/// The choice by terms.
fn choose(group: &Group, ms: u64, start: usize) -> usize {
    let (form, costs) = costs(group, ms);
    let Form::Score { growth } = form else {
        panic!("{form:?}");
    };
    let mut bases = Vec::new();
    terms::scale_costs(&costs, &mut bases);
    let seats = bases
        .iter()
        .zip(group.members())
        .map(|(base, member)| Seat {
            base: *base,
            own: member.slot.in_flight(),
            room: u32::MAX,
            ..Seat::default()
        });
    let seats: Vec<_> = seats.collect();
    terms::choose(&seats, form, terms::scale_growth(growth), 0, start).unwrap()
}

#[test]
fn s41_every_strategy_has_terms_or_says_that_it_has_none() {
    for kind in REGISTRY {
        let group = group_with(kind.name, &[1.0, 2.0]);
        let (form, costs) = costs(&group, 1);
        let (is_scored, is_own) = match kind.name {
            "adaptive" | "least_request" | "least_connection" | "peak_ewma" => (true, false),
            "prequal" => (true, false),
            _ => (false, false),
        };
        let is_hashed = matches!(form, Form::Hash { .. });
        // The key of `hash` is the address of a request, which connections have not.
        assert_eq!(is_hashed, kind.name == "source_ip_hash", "{}", kind.name);
        assert_eq!(
            matches!(form, Form::Score { .. } | Form::Prequal { .. }),
            is_scored,
            "{}",
            kind.name
        );
        assert_eq!(form == Form::Own, is_own, "{}", kind.name);
        assert_eq!(costs.len(), if is_scored { 2 } else { 0 }, "{}", kind.name);
        if is_scored {
            // Twice the weight, half the cost.
            assert!(
                (costs[0] / costs[1] - 2.0).abs() < 1e-3,
                "{}: {costs:?}",
                kind.name
            );
        }
    }
}

#[test]
fn s41_terms_choose_as_the_strategy_does() {
    for strategy in ["least_connection", "least_request", "peak_ewma", "adaptive"] {
        for seed in 0..200 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let group = group_with(strategy, &[1.0; 5]);
            let mut tickets: Vec<Ticket> = Vec::new();
            for index in 0..5 {
                for _ in 0..rng.usize(..6) {
                    tickets.push(group.bind(index, at_ms(1)).unwrap());
                }
            }
            let fewest = group
                .members()
                .iter()
                .map(|member| member.slot.in_flight())
                .min();
            let chosen = choose(&group, 2, rng.usize(..5));
            let in_flight = |index: usize| group.members()[index].slot.in_flight();
            assert_eq!(Some(in_flight(chosen)), fewest, "{strategy}, seed {seed}");
            let own = group
                .choose_member(&Request::at_time(at_ms(2)), &mut rng)
                .unwrap();
            // `peak_ewma` compares two members only.
            if strategy != "peak_ewma" {
                assert_eq!(in_flight(own), in_flight(chosen), "{strategy}, seed {seed}");
            }
        }
    }
}

#[test]
fn s41_slow_members_cost_more() {
    for strategy in ["peak_ewma", "adaptive"] {
        let group = group_with(strategy, &[1.0; 3]);
        for round in 0..50 {
            for (index, took) in [(0, 10), (1, 100), (2, 10)] {
                answer_request(&group, index, Outcome::Success, 1 + round * 100, took);
            }
        }
        let (_, costs) = costs(&group, 5200);
        assert!(costs[1] > 4.0 * costs[0], "{strategy}: {costs:?}");
        assert_ne!(choose(&group, 5200, 1), 1, "{strategy}");
    }
}

/// Number of requests in flight, and latency in milliseconds of each request, of members in a test.
fn spread_requests(rng: &mut fastrand::Rng, group: &Group) -> Vec<Ticket> {
    let mut tickets = Vec::new();
    for index in 0..group.members().len() {
        let took = rng.u64(5..200);
        if rng.u8(..) > 20 {
            for round in 0..20 {
                answer_request(group, index, Outcome::Success, 1 + 10 * round, took);
            }
        }
        for _ in 0..rng.usize(..12) {
            tickets.push(group.bind(index, at_ms(400)).unwrap());
        }
    }
    tickets
}

#[test]
fn s41_terms_of_prequal_choose_as_the_strategy_does() {
    let (mut hot, mut cold) = (0, 0);
    for case in 0..400 {
        let mut rng = fastrand::Rng::with_seed(case);
        let members = rng.usize(1..=24);
        let quantile = [0.0, 0.5, 0.84, 1.0][rng.usize(..4)];
        let group = build_group(
            &values("prequal", &[("quantile", quantile)]),
            GroupSettings::default(),
            build_members(&vec![2.0; members]),
        );
        let _tickets = spread_requests(&mut rng, &group);
        // The quantile is learnt from round to round.
        for _ in 0..rng.usize(..40) {
            costs(&group, 410);
        }
        let (form, costs) = costs(&group, 410);
        let Form::Prequal { hot_above } = form else {
            panic!("{form:?}");
        };
        let mut bases = Vec::new();
        terms::scale_costs(&costs, &mut bases);
        let in_flight = |index: usize| group.members()[index].slot.in_flight();
        let seats = bases.iter().enumerate().map(|(index, base)| Seat {
            base: *base,
            own: in_flight(index),
            room: u32::MAX,
            load: 65_536,
            ..Seat::default()
        });
        let seats: Vec<_> = seats.collect();
        let mark = terms::scale_hot(hot_above, 2.0).into();
        let start = rng.usize(..members);
        let chosen = terms::choose(&seats, form, terms::scale_growth(1.0), mark, start).unwrap();
        let own = group
            .choose_member(&Request::at_time(at_ms(410)), &mut rng)
            .unwrap();
        // Hot members behind cold ones, and then requests or latencies.
        let rank = |index: usize| {
            let load = in_flight(index) as f32 / 2.0;
            match load > hot_above {
                true => (1, load),
                false => (0, costs[index] * (in_flight(index) + 1) as f32),
            }
        };
        let ((is_hot, best), (own_is_hot, of_strategy)) = (rank(chosen), rank(own));
        assert_eq!(is_hot, own_is_hot, "case {case}");
        // The strategy takes scores for equal that differ by one per cent.
        assert!(
            best <= of_strategy * 1.001,
            "case {case}: {best} {of_strategy}"
        );
        assert!(
            of_strategy <= best * 1.012,
            "case {case}: {best} {of_strategy}"
        );
        if (0..members).any(|index| rank(index).0 == 1) {
            (hot, cold) = (hot + is_hot, cold + 1 - is_hot);
        }
    }
    assert!(hot > 50 && cold > 50, "{hot} {cold}");
}

#[test]
fn s41_the_limit_of_hot_members_follows_their_requests() {
    let group = group_with("prequal", &[1.0; 10]);
    let mut tickets: Vec<Ticket> = Vec::new();
    for index in 0..10 {
        for _ in 0..=index {
            tickets.push(group.bind(index, at_ms(1)).unwrap());
        }
    }
    for _ in 0..200 {
        costs(&group, 2);
    }
    // 1 to 10 requests, of which 84 % are not above the limit; each member moves the limit by up to a tenth.
    let (form, _) = costs(&group, 2);
    let Form::Prequal { hot_above } = form else {
        panic!("{form:?}");
    };
    assert!((7.0..=11.0).contains(&hot_above), "{hot_above}");
    // A single member would be more than the share that may be hot.
    let small = group_with("prequal", &[1.0; 5]);
    let never = f32::INFINITY;
    assert_eq!(costs(&small, 2).0, Form::Prequal { hot_above: never });
}

/// Members of a group as a program sees them that decides by hash.
fn list_hash_seats(group: &Group, request: &Request<'_>) -> Vec<HashSeat> {
    let view = group.view_for(request);
    let mut bases = Vec::new();
    let costs: Vec<f32> = (0..view.len())
        .map(|index| 1.0 / view.member_weight(index))
        .collect();
    terms::scale_costs_to(&costs, hash_terms::LEAST_BASE, &mut bases);
    let seats = bases.iter().zip(group.members()).enumerate();
    let seats = seats.map(|(index, (base, member))| HashSeat {
        base: *base,
        weight: hash_terms::weigh_base(*base),
        name: hash(member.name.as_bytes()),
        own: member.slot.in_flight(),
        others: 0,
        room: if view.is_eligible(index) { u32::MAX } else { 0 },
    });
    seats.collect()
}

#[test]
fn s41_terms_of_hash_choose_as_the_strategy_does() {
    let mut rng = fastrand::Rng::with_seed(41);
    let mut others = 0;
    for case in 0..300 {
        let strategy = if rng.bool() { "source_ip_hash" } else { "hash" };
        let members = rng.usize(1..=128);
        let weights: Vec<f64> = match rng.bool() {
            true => vec![2.0; members],
            false => (0..members).map(|_| rng.f64() + 0.01).collect(),
        };
        let bound = [0.0, 1.0, 1.25, 2.0][rng.usize(..4)];
        let settings = GroupSettings {
            hash_key: Key::Client,
            ..GroupSettings::default()
        };
        let values = values(strategy, &[("bound", bound)]);
        let group = build_group(&values, settings, build_members(&weights));
        let mut tickets: Vec<Ticket> = Vec::new();
        for _ in 0..rng.usize(..4 * members) {
            tickets.push(group.bind(rng.usize(..members), at_ms(1)).unwrap());
        }
        let (form, costs) = costs(&group, 2);
        let Form::Hash { bound } = form else {
            panic!("{form:?}");
        };
        assert!(costs.is_empty());
        let bound = hash_terms::scale_bound(bound);
        for _ in 0..100 {
            let client = match rng.bool() {
                true => IpAddr::from(rng.u32(..).to_be_bytes()),
                false => IpAddr::from(rng.u128(..).to_be_bytes()),
            };
            // Members that were tried before.
            let mut tried: Vec<_> = group.members().iter().map(|member| member.id).collect();
            rng.shuffle(&mut tried);
            tried.truncate(rng.usize(..4).min(members - 1));
            tried.sort_unstable();
            let request = Request {
                client: Some(client),
                excluded_members: &tried,
                ..Request::at_time(at_ms(2))
            };
            let expected = group.choose_member(&request, &mut rng).unwrap();
            let seats = list_hash_seats(&group, &request);
            let order = hash_terms::rank_seats(&seats, hash_address(client), bound);
            if order[0] != expected {
                // Weights and bounds are rounded: two members were nearly equal.
                assert_ne!(
                    weights[0], 2.0,
                    "case {case}, {client}: {order:?} {expected}"
                );
                others += 1;
            }
        }
    }
    assert!(others <= 3, "{others} of 30,000");
}

#[test]
fn s41_connections_without_a_key_go_by_weight() {
    let group = group_with("hash", &[1.0, 2.0]);
    assert_eq!(group.settings().hash_key, Key::Uri);
    assert_eq!(costs(&group, 1).0, Form::Turns);
    // The ring of large groups is not for other programs.
    let group = group_with("source_ip_hash", &[1.0; 129]);
    assert_eq!(costs(&group, 1).0, Form::Own);
    let group = group_with("source_ip_hash", &[1.0; 128]);
    assert_eq!(costs(&group, 1).0, Form::Hash { bound: 1.25 });
}
