//! Effect of loads, and of their absence, on decisions.

#![allow(clippy::unwrap_used)] // helpers of tests

use std::net::IpAddr;

use crate::common::*;
use evenkeel_core::group::{Group, GroupSettings, Outcome, Request};
use evenkeel_core::load::LoadId;

/// Clients that are sent one after the other, with loads reported anew before each: how many
/// each member got.
fn sent(group: &Group, loads: &[Option<f64>]) -> Vec<usize> {
    let mut rng = fastrand::Rng::with_seed(5);
    let mut counts = vec![0; loads.len()];
    for step in 0..2000 {
        let now = 100_000 + 1000 * step;
        for (index, load) in loads.iter().enumerate() {
            if let Some(load) = load {
                report_load(group, index, LoadId::CPU, *load, now);
            }
        }
        counts[group
            .choose_member(&Request::at_time(at_ms(now)), &mut rng)
            .unwrap()] += 1;
    }
    counts
}

#[test]
fn b1_k_least_loaded_follows_the_load_with_two_and_three_members() {
    let two = group_with("k_least_loaded", &[1.0; 2]);
    assert_eq!(sent(&two, &[Some(0.9), Some(0.1)]), [0, 2000]);
    let three = group_with("k_least_loaded", &[1.0; 3]);
    let counts = sent(&three, &[Some(0.9), Some(0.1), Some(0.2)]);
    assert_eq!(counts[0], 0);
    assert!(counts[1] > 900 && counts[2] > 900, "{counts:?}");
    // A member of three is down.
    let down = evenkeel_core::member::Reason::Down;
    three.members()[2].slot.set(down, true);
    let counts = sent(&three, &[Some(0.9), Some(0.1), Some(0.2)]);
    assert_eq!(counts, [0, 2000, 0]);
}

/// With two members a mean that contains the member itself halves each difference.
#[test]
fn b4_a_load_is_compared_with_that_of_the_others() {
    let group = group_with("adaptive", &[1.0; 2]);
    for index in 0..2 {
        (0..40).for_each(|_| answer_request(&group, index, Outcome::Success, 99_000, 10));
    }
    report_load(&group, 0, LoadId::CPU, 0.9, 100_000);
    report_load(&group, 1, LoadId::CPU, 0.1, 100_000);
    let mut rng = fastrand::Rng::with_seed(1);
    let decision = group.explain_next(&Request::at_time(at_ms(100_000)), &mut rng);
    let score = |index: usize| {
        let candidates = &decision.explanation.candidates;
        let found = candidates.iter().find(|candidate| candidate.index == index);
        found.unwrap().score.unwrap()
    };
    // 1 / (1 - (0.9 - 0.1 - 0.1))
    let ratio = score(0) / score(1);
    assert!((ratio - 1.0 / 0.3).abs() < 0.1, "{ratio}");
}

/// A member that has not answered yet counts as the others do; a slow member is compared with the others, and not with
/// a mean that it has raised.
#[test]
fn b4_a_service_time_is_compared_with_those_of_the_others() {
    let group = group_with("adaptive", &[1.0; 2]);
    for _ in 0..40 {
        answer_request(&group, 0, Outcome::Success, 90_000, 30);
        answer_request(&group, 1, Outcome::Success, 90_000, 10);
    }
    // Both are stale. Three times the other's is more than the factor of two within which
    // that makes them equal; of the mean of both it is 1.7.
    let mut rng = fastrand::Rng::with_seed(1);
    let decision = group.explain_next(&Request::at_time(at_ms(93_200)), &mut rng);
    let candidates = &decision.explanation.candidates;
    let slow = candidates.iter().find(|candidate| candidate.index == 0);
    assert!(slow.unwrap().verdict.contains("service time 2"), "{slow:?}");
}

/// An idle member that is ten times faster, and new, gets a tenth of a share all the same.
#[test]
fn b5_slow_start_holds_back_a_member_that_is_idle_and_fast() {
    let group = group_with("adaptive", &[1.0; 3]);
    for index in 0..3 {
        let took = if index == 2 { 1 } else { 10 };
        (0..40).for_each(|_| answer_request(&group, index, Outcome::Success, 99_900, took));
    }
    group.members()[2].slot.set_ramp_from(Some(at_ms(100_000)));
    let mut rng = fastrand::Rng::with_seed(1);
    let mut counts = [0; 3];
    for step in 0..1000 {
        let now = 100_000 + step / 10;
        let ticket = group.pick(&Request::at_time(at_ms(now)), &mut rng).unwrap();
        let index = ticket.member_index();
        counts[index] += 1;
        ticket.finish(
            Outcome::Success,
            at_ms(now + if index == 2 { 1 } else { 10 }),
        );
    }
    assert!((20..150).contains(&counts[2]), "{counts:?}");
}

#[test]
fn b7_a_member_that_never_reports_counts_as_the_mean() {
    for strategy in ["least_loaded", "load_minimum", "least_utilization"] {
        let group = group_with(strategy, &[1.0; 4]);
        let counts = sent(&group, &[Some(0.5), Some(0.5), Some(0.5), None]);
        assert!((400..600).contains(&counts[3]), "{strategy}: {counts:?}");
    }
}

/// With a bound a client moves when its member has more than its part, without one never.
#[test]
fn b14_without_a_bound_a_client_keeps_its_member() {
    for members_of in [4, 200] {
        for (bound, keeps) in [(1.25, false), (0.0, true)] {
            let values = values("source_ip_hash", &[("bound", bound)]);
            let weights = vec![1.0; members_of];
            let group = build_group(&values, GroupSettings::default(), build_members(&weights));
            let mut rng = fastrand::Rng::with_seed(1);
            let request = Request {
                client: Some(IpAddr::from([192, 0, 2, 1])),
                ..Request::at_time(at_ms(100_000))
            };
            let held: Vec<_> = (0..500)
                .map(|_| group.pick(&request, &mut rng).unwrap())
                .collect();
            let home = held[0].member_index();
            let stayed = held.iter().all(|ticket| ticket.member_index() == home);
            assert_eq!(stayed, keeps, "{members_of} members, bound {bound}");
        }
    }
}

/// Loads are looked for only if any were reported; the first report is seen by every group that has members there, even
/// by a group that was built before.
#[test]
fn b16_reports_are_looked_for_where_there_are_any() {
    let group = group_with("adaptive", &[1.0; 2]);
    let now = at_ms(100_000);
    assert!(!group.view_for(&Request::at_time(now)).has_reports());
    report_load(&group, 1, LoadId::CPU, 0.9, 100_000);
    assert!(group.view_for(&Request::at_time(now)).has_reports());
    let settings = GroupSettings::default();
    let other = build_group(&values("adaptive", &[]), settings, group.members().to_vec());
    assert!(other.view_for(&Request::at_time(now)).has_reports());
}

/// A single client sends one request after the other to two members that answer equally fast, one of which reports that
/// it has nothing left. The load that finished requests added is not in a report yet, and must not make the idle member
/// look full: until the first report after a silence nobody knows the load of a request.
#[test]
fn adaptive_believes_a_member_that_has_nothing_left() {
    for (interval, idle) in [(100, 0.0), (1000, 0.05), (5000, 0.02)] {
        for latency in [1, 10, 50] {
            let group = group_with("adaptive", &[1.0, 1.0]);
            let mut rng = fastrand::Rng::with_seed(interval + latency);
            let (mut now, mut next) = (1_000, 1_000);
            let mut counts = [0; 2];
            for _ in 0..1000 {
                if now >= next {
                    report_load(&group, 0, LoadId::CPU, 1.0, now);
                    report_load(&group, 1, LoadId::CPU, idle, now);
                    next += interval;
                }
                let ticket = group.pick(&Request::at_time(at_ms(now)), &mut rng).unwrap();
                counts[ticket.member_index()] += 1;
                now += latency;
                ticket.finish(Outcome::Success, at_ms(now));
            }
            // A decision in 256 is for news of the member.
            assert!(
                counts[0] < 20,
                "every {interval} ms, {latency} ms: {counts:?}"
            );
        }
    }
}
