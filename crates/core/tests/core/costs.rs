//! Requests that cost more or less than others: who gets them, what is counted, what is learnt.

#![allow(clippy::unwrap_used)]

use crate::common::*;
use evenkeel_core::cost::Cost;
use evenkeel_core::group::{Group, GroupSettings, Outcome, PickError, Request, Ticket};
use evenkeel_core::load::LoadId;
use proptest::prelude::*;

fn cost(value: f64) -> Cost {
    Cost::new(value).unwrap()
}

fn asking(value: f64, ms: u64) -> Request<'static> {
    Request {
        cost: cost(value),
        key: Some(7),
        client: Some([192, 0, 2, 7].into()),
        ..Request::at_time(at_ms(ms))
    }
}

fn bind(group: &Group, index: usize, value: f64, ms: u64) -> Ticket {
    group.bind_for(index, cost(value), at_ms(ms)).unwrap()
}

/// Number of times that the member at `index` is picked out of 100.
fn picked(group: &Group, index: usize, value: f64, ms: u64) -> usize {
    let mut rng = fastrand::Rng::with_seed(1);
    let picks = (0..100).map(|_| group.choose_member(&asking(value, ms), &mut rng).unwrap());
    picks.filter(|&picked| picked == index).count()
}

#[test]
fn strategies_count_what_requests_cost() {
    for strategy in [
        "least_request",
        "least_connection",
        "peak_ewma",
        "prequal",
        "adaptive",
    ] {
        let group = group_with(strategy, &[1.0, 1.0]);
        for index in 0..2 {
            answer_request(&group, index, Outcome::Success, 1000, 10);
        }
        let _one = bind(&group, 0, 20.0, 1100);
        let _three: Vec<_> = (0..3).map(|_| bind(&group, 1, 1.0, 1100)).collect();
        assert!(picked(&group, 1, 1.0, 1101) >= 99, "{strategy}");
    }
}

#[test]
fn an_expensive_request_goes_where_there_is_most_room_for_it() {
    // With two in flight the heavy member would finish a small request later than the idle light
    // one, and a large one long before it.
    for strategy in ["least_request", "peak_ewma"] {
        let group = group_with(strategy, &[8.0, 1.0]);
        let _held: Vec<_> = (0..24).map(|_| bind(&group, 0, 1.0, 1000)).collect();
        let (small, large) = (picked(&group, 0, 1.0, 1001), picked(&group, 0, 100.0, 1001));
        assert!(small < large, "{strategy}: {small} {large}");
    }
}

#[test]
fn a_bound_by_hash_counts_costs() {
    for strategy in ["hash", "source_ip_hash"] {
        let group = group_with(strategy, &[1.0; 4]);
        let mut rng = fastrand::Rng::with_seed(1);
        let home = group.choose_member(&asking(1.0, 0), &mut rng).unwrap();
        // Each member has one request in flight: none is above the bound, as all cost the same.
        let one_each: Vec<_> = (0..4).map(|index| bind(&group, index, 5.0, 0)).collect();
        assert_eq!(picked(&group, home, 1.0, 1), 100, "{strategy}");
        drop(one_each);
        let _mixed: Vec<_> = (0..4)
            .map(|index| bind(&group, index, if index == home { 50.0 } else { 1.0 }, 0))
            .collect();
        assert_eq!(picked(&group, home, 1.0, 1), 0, "{strategy}");
    }
}

#[test]
fn turns_are_shared_by_cost() {
    // Without regard to cost one member would get all that are expensive.
    let group = group_with("round_robin", &[1.0, 1.0, 2.0]);
    let mut rng = fastrand::Rng::with_seed(1);
    let mut costs = [0.0; 3];
    for n in 0..4000 {
        let value = if n % 4 == 0 { 10.0 } else { 1.0 };
        costs[group
            .pick(&asking(value, 1), &mut rng)
            .unwrap()
            .member_index()] += value;
    }
    let all: f64 = costs.iter().sum();
    for (cost, share) in costs.into_iter().zip([0.25, 0.25, 0.5]) {
        assert!((cost / all - share).abs() < 0.02, "{costs:?}");
    }
}

#[test]
fn a_limit_counts_requests_and_not_costs() {
    let mut members = build_members(&[1.0]);
    members[0].max_connections = Some(2);
    let group = build_group(
        &values("least_request", &[]),
        GroupSettings::default(),
        members,
    );
    let mut rng = fastrand::Rng::with_seed(1);
    let first = group.pick(&asking(1000.0, 0), &mut rng).unwrap();
    let _second = group.pick(&asking(0.01, 0), &mut rng).unwrap();
    assert_eq!(
        group.pick(&asking(0.01, 0), &mut rng).unwrap_err(),
        PickError::AllFull
    );
    assert!(group.bind_for(0, cost(3.0), at_ms(0)).is_none());
    let slot = &group.members()[0].slot;
    assert_eq!(slot.in_flight(), 2);
    assert!((slot.cost_in_flight() - 1000.01).abs() < 0.001);
    drop(first);
    assert!(group.pick(&asking(0.01, 0), &mut rng).is_ok());
}

#[test]
fn a_service_time_is_learnt_per_cost() {
    let group = group_with("adaptive", &[1.0, 1.0]);
    // 20 ms for a cost of 10 is faster than 10 ms for a cost of 1.
    for step in 0..50 {
        bind(&group, 0, 10.0, 100 * step).finish(Outcome::Success, at_ms(100 * step + 20));
        bind(&group, 1, 1.0, 100 * step).finish(Outcome::Success, at_ms(100 * step + 10));
    }
    let time = |index: usize| {
        group.members()[index]
            .slot
            .service_time(at_ms(5000))
            .unwrap()
    };
    assert!((time(0) - 0.002).abs() < 1e-4 && (time(1) - 0.010).abs() < 1e-4);
    assert!(picked(&group, 0, 1.0, 5000) >= 98);
}

#[test]
fn an_expensive_request_is_no_peak_of_latency() {
    let group = group_with("peak_ewma", &[1.0]);
    let latency = |ms| {
        let slot = &group.members()[0].slot;
        slot.latency(at_ms(ms), GroupSettings::default().latency_decay)
            .unwrap()
    };
    answer_request(&group, 0, Outcome::Success, 1000, 10);
    bind(&group, 0, 100.0, 1100).finish(Outcome::Success, at_ms(2100));
    assert!(latency(2100) < 0.011);
    // A request that had to wait behind the costly one shows that the member is busy.
    bind(&group, 0, 0.1, 2200).finish(Outcome::Success, at_ms(2300));
    assert!(latency(2300) > 0.099);
}

#[test]
fn what_is_added_to_a_reported_load_goes_by_cost() {
    let group = group_with("least_loaded", &[1.0, 1.0]);
    for index in 0..2 {
        report_load(&group, index, LoadId::CPU, 0.5, 1000);
    }
    let _expensive = bind(&group, 0, 10.0, 1001);
    let _usual: Vec<_> = (0..5).map(|_| bind(&group, 1, 1.0, 1001)).collect();
    assert_eq!(picked(&group, 1, 1.0, 1002), 100);
}

#[test]
fn a_decision_says_what_the_request_costs() {
    let group = group_with("least_request", &[1.0, 1.0]);
    let _held = bind(&group, 0, 2.5, 0);
    let decision = group.explain_next(&asking(10.0, 1), &mut fastrand::Rng::with_seed(1));
    let explanation = decision.explanation;
    assert_eq!(explanation.notes, ["the request costs 10"]);
    let verdict = |index: usize| {
        let mut all = explanation.candidates.iter();
        all.find(|one| one.index == index).unwrap().verdict.clone()
    };
    assert!(
        verdict(0).starts_with("in flight 1 of cost 2.5"),
        "{}",
        verdict(0)
    );
    assert!(verdict(1).starts_with("in flight 0,"), "{}", verdict(1));
}

proptest! {
    /// Whatever ends in whatever way and order, over snapshots, too: nothing is left in flight.
    #[test]
    fn release_subtracts_what_was_added(
        requests in prop::collection::vec((0.01f64..1000.0, 0u8..4, any::<bool>()), 1..200),
        seed: u64,
    ) {
        let mut rng = fastrand::Rng::with_seed(seed);
        let first = group_with("adaptive", &[1.0, 2.0, 1.0]);
        let second = build_group(&values("least_request", &[]), GroupSettings::default(), first.members().to_vec());
        let mut held = Vec::new();
        for (value, end, late) in requests {
            let group = if late { &second } else { &first };
            held.push((group.pick(&asking(value, 1), &mut rng).unwrap(), end));
        }
        rng.shuffle(&mut held);
        for (mut ticket, end) in held {
            match end {
                0 => drop(ticket),
                1 => ticket.finish(Outcome::Success, at_ms(2)),
                2 => ticket.finish(Outcome::Failure, at_ms(2)),
                _ => {
                    ticket.record_response(Outcome::Success, at_ms(2));
                    ticket.finish(Outcome::Cancelled, at_ms(3));
                }
            }
        }
        for member in first.members() {
            prop_assert_eq!((member.slot.in_flight(), member.slot.cost_in_flight()), (0, 0.0));
            prop_assert_eq!(member.location.in_flight(), 0);
        }
    }
}
