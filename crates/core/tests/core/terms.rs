//! Terms of strategies, by which a program outside of the process makes their decisions.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking.

use evenkeel_core::group::{Group, Outcome, Request, Ticket};
use evenkeel_core::strategy::REGISTRY;
use evenkeel_core::terms::{self, Form, Seat};

use super::common::{answer_request, at_ms, group_with};

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
            "hash" | "source_ip_hash" | "prequal" => (false, true),
            _ => (false, false),
        };
        assert_eq!(
            matches!(form, Form::Score { .. }),
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
