//! `client_weighted_round_robin`: gRPC's proposal A58.

#![allow(clippy::unwrap_used)]

use crate::common::*;
use evenkeel_core::group::{Group, GroupSettings, Outcome, Request};
use evenkeel_core::load::LoadId;
use evenkeel_core::member::Reason;
use proptest::prelude::*;

const NAME: &str = "client_weighted_round_robin";

/// Reports of requests per second, errors per second and the CPU.
fn tell(group: &Group, index: usize, figures: (f64, f64, f64), ms: u64) {
    let (requests, errors, cpu) = figures;
    report_load(group, index, LoadId::REQUESTS_PER_SECOND, requests, ms);
    report_load(group, index, LoadId::ERRORS_PER_SECOND, errors, ms);
    report_load(group, index, LoadId::CPU, cpu, ms);
}

/// Each second from `from` to `to` every member with figures reports them, and there is a request.
fn live(group: &Group, figures: &[Option<(f64, f64, f64)>], from: u64, to: u64) {
    let mut rng = fastrand::Rng::with_seed(1);
    for second in from..=to {
        for (index, figures) in figures.iter().enumerate() {
            if let Some(figures) = *figures {
                tell(group, index, figures, second * 1000);
            }
        }
        let ticket = group.pick(&Request::at_time(at_ms(second * 1000 + 1)), &mut rng);
        ticket
            .unwrap()
            .finish(Outcome::Success, at_ms(second * 1000 + 2));
    }
}

/// Shares of many requests that come at once.
fn shares_at(group: &Group, second: u64) -> Vec<f64> {
    let counts = count_picks(group, 20_000, second * 1000 + 100, 3);
    let share = |&count: &usize| count as f64 / 20_000.0;
    counts.iter().map(share).collect()
}

fn close(shares: &[f64], expected: &[f64]) {
    let off = |(a, b): (&f64, &f64)| (a - b).abs() > 0.01;
    let wrong = shares.len() != expected.len() || shares.iter().zip(expected).any(off);
    assert!(!wrong, "{shares:?}, not {expected:?}");
}

#[test]
fn shares_are_requests_over_utilisation() {
    let group = group_with(NAME, &[1.0; 3]);
    // The second one does twice as much for the same CPU; half of what the third does fails.
    let figures = [(100.0, 0.0, 0.5), (200.0, 0.0, 0.5), (100.0, 50.0, 0.5)];
    live(&group, &figures.map(Some), 100, 111);
    close(&shares_at(&group, 111), &[2.0 / 7.0, 4.0 / 7.0, 1.0 / 7.0]);
}

#[test]
fn an_application_knows_its_utilisation_better_than_its_machine() {
    let group = group_with(NAME, &[1.0; 2]);
    for second in 100..=111 {
        for index in 0..2 {
            let ms = second * 1000;
            tell(&group, index, (100.0, 0.0, 0.5), ms);
            // A utilisation of 0 says nothing: then the CPU load counts.
            report_load(&group, index, LoadId::UTILIZATION, [0.0, 0.25][index], ms);
        }
        count_picks(&group, 1, second * 1000 + 1, 1);
    }
    close(&shares_at(&group, 111), &[1.0 / 3.0, 2.0 / 3.0]);
}

#[test]
fn who_reports_nothing_has_the_mean_and_one_weight_is_none() {
    let group = group_with(NAME, &[1.0; 3]);
    let (one, two) = (Some((100.0, 0.0, 0.5)), Some((300.0, 0.0, 0.5)));
    live(&group, &[one, two, None], 100, 111);
    close(&shares_at(&group, 111), &[1.0 / 6.0, 0.5, 1.0 / 3.0]);
    // Of no requests nothing can be told.
    let idle = Some((0.0, 0.0, 0.5));
    live(&group, &[one, two, idle], 112, 123);
    close(&shares_at(&group, 123), &[1.0 / 6.0, 0.5, 1.0 / 3.0]);

    let group = crate::common::group_with(NAME, &[1.0; 3]);
    live(&group, &[None, two, None], 100, 111);
    close(&shares_at(&group, 111), &[1.0 / 3.0; 3]);
}

#[test]
fn errors_that_are_not_reported_any_more_do_not_count() {
    let group = group_with(NAME, &[1.0; 2]);
    let fine = Some((100.0, 0.0, 0.5));
    live(&group, &[fine, Some((100.0, 50.0, 0.5))], 100, 111);
    close(&shares_at(&group, 111), &[2.0 / 3.0, 1.0 / 3.0]);
    // Numbers that are 0 are not written by Protocol Buffers.
    for second in 112..=115 {
        for index in 0..2 {
            let ms = second * 1000;
            report_load(&group, index, LoadId::REQUESTS_PER_SECOND, 100.0, ms);
            report_load(&group, index, LoadId::CPU, 0.5, ms);
        }
        count_picks(&group, 1, second * 1000 + 1, 1);
    }
    close(&shares_at(&group, 115), &[0.5, 0.5]);
}

#[test]
fn a_weight_is_used_after_the_blackout_and_until_it_expires() {
    let group = group_with(NAME, &[1.0; 2]);
    let figures = [(100.0, 0.0, 0.5), (300.0, 0.0, 0.5)].map(Some);
    live(&group, &figures, 100, 109);
    close(&shares_at(&group, 109), &[0.5, 0.5]);
    live(&group, &figures, 110, 111);
    close(&shares_at(&group, 111), &[0.25, 0.75]);
    // Nobody reports for nearly three minutes, and then for longer.
    close(&shares_at(&group, 111 + 178), &[0.25, 0.75]);
    close(&shares_at(&group, 111 + 181), &[0.5, 0.5]);
    // The first reports after that are the first ones again.
    live(&group, &figures, 300, 309);
    close(&shares_at(&group, 309), &[0.5, 0.5]);
    live(&group, &figures, 310, 311);
    close(&shares_at(&group, 311), &[0.25, 0.75]);
}

#[test]
fn one_that_was_down_begins_again() {
    let group = group_with(NAME, &[1.0; 3]);
    let figures = [(100.0, 0.0, 0.5), (300.0, 0.0, 0.5), (800.0, 0.0, 0.5)].map(Some);
    live(&group, &figures, 100, 111);
    let slot = &group.members()[2].slot;
    slot.set(Reason::Down, true);
    live(&group, &figures, 112, 113);
    close(&shares_at(&group, 113), &[0.25, 0.75, 0.0]);
    slot.set(Reason::Down, false);
    live(&group, &figures, 114, 116);
    close(&shares_at(&group, 116), &[1.0 / 6.0, 0.5, 1.0 / 3.0]);
    live(&group, &figures, 117, 125);
    close(&shares_at(&group, 125), &[1.0 / 12.0, 0.25, 2.0 / 3.0]);
}

#[test]
fn weights_outlive_a_change_of_membership_and_multiply_configured_ones() {
    let members = build_members(&[1.0, 2.0, 1.0]);
    let make = |members| build_group(&values(NAME, &[]), GroupSettings::default(), members);
    let group = make(members[..2].to_vec());
    let figures = [(100.0, 0.0, 0.5), (300.0, 0.0, 0.5)].map(Some);
    live(&group, &figures, 100, 111);
    close(&shares_at(&group, 111), &[1.0 / 7.0, 6.0 / 7.0]);
    let group = make(members);
    close(
        &shares_at(&group, 112),
        &[0.1, 0.6, 0.2].map(|share| share / 0.9),
    );
}

#[test]
fn a_group_that_is_not_adaptive_takes_no_notice() {
    let settings = GroupSettings {
        adaptive: false,
        ..GroupSettings::default()
    };
    let group = build_group(&values(NAME, &[]), settings, build_members(&[1.0; 2]));
    let figures = [(100.0, 0.0, 0.5), (300.0, 0.0, 0.5)].map(Some);
    live(&group, &figures, 100, 111);
    close(&shares_at(&group, 111), &[0.5, 0.5]);
}

#[test]
fn it_can_be_explained() {
    let group = group_with(NAME, &[1.0; 2]);
    live(&group, &[Some((100.0, 5.0, 0.5)), None], 100, 103);
    let mut rng = fastrand::Rng::with_seed(1);
    let decision = group.explain_next(&Request::at_time(at_ms(103_500)), &mut rng);
    let text = format!("{decision:?}");
    assert!(
        text.contains("100.0 requests and 5.0 errors per second"),
        "{text}"
    );
    assert!(text.contains("has been reported for 3 s"), "{text}");
    assert!(
        text.contains("requests per second or utilisation not known"),
        "{text}"
    );
}

/// Values that may be reported.
fn loads() -> impl Strategy<Value = Option<f64>> {
    prop_oneof![
        Just(None),
        Just(Some(0.0)),
        Just(Some(1e12)),
        Just(Some(1e-45)),
        (0.0..1.0).prop_map(Some),
        (0.0..1e4).prop_map(Some),
    ]
}

proptest! {
    /// Shares are in proportion to what the formula says, kept from a hundredth of the mean to ten times it.
    #[test]
    fn shares_follow_the_formula(
        members in prop::collection::vec((1.0..1e3, 0.0..1.0, 0.01..1.0), 2..8),
        penalty in 0.0..10.0,
    ) {
        let values = values(NAME, &[("error_utilization_penalty", penalty)]);
        let weights = vec![1.0; members.len()];
        let group = build_group(&values, GroupSettings::default(), crate::common::build_members(&weights));
        let figures: Vec<_> = members
            .iter()
            .map(|&(requests, failing, cpu)| Some((requests, requests * failing, cpu)))
            .collect();
        live(&group, &figures, 100, 111);
        let weight = |&(requests, failing, cpu): &(f64, f64, f64)| requests / (cpu + failing * penalty);
        let weights: Vec<f64> = members.iter().map(weight).collect();
        let mean = weights.iter().sum::<f64>() / weights.len() as f64;
        let kept: Vec<f64> = weights.iter().map(|weight| (weight / mean).clamp(0.01, 10.0)).collect();
        let sum: f64 = kept.iter().sum();
        let expected: Vec<f64> = kept.iter().map(|weight| weight / sum).collect();
        close(&shares_at(&group, 111), &expected);
    }

    /// For any reports, a member is chosen, and no member starves.
    #[test]
    fn nobody_starves(
        members in prop::collection::vec((loads(), loads(), loads(), loads()), 1..8),
        seconds in 1u64..30,
    ) {
        let group = group_with(NAME, &vec![1.0; members.len()]);
        for second in 100..100 + seconds {
            for (index, &(requests, errors, cpu, own)) in members.iter().enumerate() {
                for (id, value) in [
                    (LoadId::REQUESTS_PER_SECOND, requests),
                    (LoadId::ERRORS_PER_SECOND, errors),
                    (LoadId::CPU, cpu),
                    (LoadId::UTILIZATION, own),
                ] {
                    if let Some(value) = value {
                        report_load(&group, index, id, value, second * 1000);
                    }
                }
            }
            count_picks(&group, 1, second * 1000 + 1, second);
        }
        let shares = shares_at(&group, 100 + seconds);
        // A hundredth of the mean, where one has ten times it and all others the mean.
        let least = 0.01 / (10.0 + members.len() as f64) * 0.5;
        prop_assert!(shares.iter().all(|&share| share > least), "{:?}", shares);
    }
}
