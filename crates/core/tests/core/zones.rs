//! Properties of every strategy where members are in zones.

#![allow(clippy::unwrap_used)]

use crate::common::*;
use evenkeel_core::group::{Group, GroupSettings, PickError, Request};
use evenkeel_core::member::{Member, MemberId, Reason};
use evenkeel_core::strategy::{self, Values};
use evenkeel_core::zone::{Reading, WHOLE, ZoneSettings};
use proptest::prelude::*;

/// A group as a balancer in zone `a` sees it, with a member in each of these zones.
fn zoned(strategy: &str, zones: &[&str], limit: Option<u32>) -> Group {
    let mut members = build_members(&vec![1.0; zones.len()]);
    for (member, zone) in members.iter_mut().zip(zones) {
        member.zone = Some((*zone).into());
        member.max_connections = limit;
    }
    of(strategy, members)
}

fn of(strategy: &str, members: Vec<Member>) -> Group {
    let settings = GroupSettings {
        zones: Some(ZoneSettings {
            balancer_zone: Some("a".into()),
            ..ZoneSettings::default()
        }),
        ..GroupSettings::default()
    };
    let values = Values::defaults(strategy::find(strategy).unwrap());
    let group = build_group(&values, settings, members);
    group.take_ranks();
    group
}

/// Has this part of the requests pass on from the own zone.
fn pass(group: &Group, part: f64) {
    let reading = Reading {
        passed_share: (part * f64::from(WHOLE)) as u32,
        load: Some(0.9),
        usable: 1.0,
    };
    group.state().zones().set(0, reading);
}

/// Requests of this many clients, one at a time: number of requests that each member got.
fn asked(group: &Group, requests: u32, rng: &mut fastrand::Rng) -> Vec<u32> {
    let mut counts = vec![0; group.members().len()];
    for client in 0..requests {
        let request = Request {
            client: Some(std::net::Ipv4Addr::from_bits(client).into()),
            key: Some(u64::from(client).wrapping_mul(0x9E37_79B9_7F4A_7C15)),
            ..Request::at_time(at_ms(60_000 + u64::from(client)))
        };
        let ticket = group.pick(&request, rng).unwrap();
        counts[ticket.member_index()] += 1;
    }
    counts
}

const ZONES: [&str; 6] = ["a", "a", "a", "b", "b", "c"];

#[test]
fn a_group_whose_members_are_all_in_one_zone_or_say_none_has_no_ranks() {
    for zones in [&["a", "a"][..], &["b", "c"], &["a"]] {
        assert!(zoned("random", zones, None).ranks().is_none());
    }
    assert!(of("random", build_members(&[1.0; 3])).ranks().is_none());
    let group = zoned("random", &ZONES, None);
    assert_eq!(group.ranks().unwrap().count(), 2);
    assert!(
        group
            .members()
            .iter()
            .all(|member| member.slot.reason_bits() == 0)
    );
    // Ranks are set anew when there is another snapshot.
    let alike = build_group(
        &values("random", &[]),
        GroupSettings {
            zones: None,
            ..GroupSettings::default()
        },
        group.members().to_vec(),
    );
    alike.take_ranks();
    let mut rng = fastrand::Rng::with_seed(1);
    assert!(asked(&alike, 600, &mut rng).iter().all(|&count| count > 50));
}

#[test]
fn what_passes_on_is_shared_by_all_members_of_the_other_zones() {
    for strategy in all_strategies() {
        let group = zoned(strategy, &ZONES, None);
        let mut rng = fastrand::Rng::with_seed(2);
        let counts = asked(&group, 2000, &mut rng);
        assert_eq!(counts[3..], [0, 0, 0], "{strategy}: {counts:?}");
        pass(&group, 0.4);
        let counts = asked(&group, 4000, &mut rng);
        let left: u32 = counts[3..].iter().sum();
        assert!((1450..1750).contains(&left), "{strategy}: {counts:?}");
        // k_least_loaded takes two of them, prequal those it has probed.
        let used = counts[3..].iter().filter(|&&count| count > 200).count();
        assert!(used >= 2, "{strategy}: {counts:?}");
        pass(&group, 1.0);
        let counts = asked(&group, 1000, &mut rng);
        assert_eq!(counts[..3], [0, 0, 0], "{strategy}: {counts:?}");
    }
}

#[test]
fn members_take_turns_within_each_zone() {
    let group = zoned("round_robin", &ZONES, None);
    pass(&group, 0.1);
    let counts = asked(&group, 30_000, &mut fastrand::Rng::with_seed(3));
    for (of_zone, share) in [(&counts[..3], 9_000), (&counts[3..], 1_000)] {
        let even = of_zone
            .iter()
            .all(|count| count.abs_diff(share) < share / 5);
        assert!(even, "{counts:?}");
    }
}

#[test]
fn a_zone_that_cannot_serve_is_left_at_once_and_backups_come_last() {
    for strategy in all_strategies() {
        let group = zoned(strategy, &ZONES, None);
        let slot = |index: usize| &group.members()[index].slot;
        let mut rng = fastrand::Rng::with_seed(4);
        let mut serving = || {
            let counts = asked(&group, 300, &mut rng);
            let some = counts.iter().map(|&count| count > 0);
            some.collect::<Vec<bool>>()
        };
        slot(2).set(Reason::Standby, true);
        let both = serving();
        assert!(!both[2] && !both[3..].contains(&true), "{strategy}");
        slot(0).set(Reason::Down, true);
        slot(1).set(Reason::Shedding, true);
        let others = serving();
        assert!(!others[..3].contains(&true), "{strategy}: {others:?}");
        for index in 3..6 {
            slot(index).set(Reason::Maintenance, true);
        }
        let backup = [false, false, true, false, false, false];
        assert_eq!(serving(), backup, "{strategy}");
        slot(2).set(Reason::Dead, true);
        let alerted = [false, true, false, false, false, false];
        assert_eq!(serving(), alerted, "{strategy}");
    }
}

#[test]
fn members_at_their_limit_and_those_that_were_tried_are_left_for_other_zones() {
    for strategy in all_strategies() {
        let group = zoned(strategy, &["a", "a", "b"], Some(2));
        let mut rng = fastrand::Rng::with_seed(5);
        let mut held: Vec<_> = (0..6)
            .map(|_| {
                group
                    .pick(&Request::at_time(at_ms(60_000)), &mut rng)
                    .unwrap()
            })
            .collect();
        let zones: Vec<bool> = held
            .iter()
            .map(|ticket| ticket.member_index() == 2)
            .collect();
        assert_eq!(
            zones,
            [false, false, false, false, true, true],
            "{strategy}"
        );
        let none = group.pick(&Request::at_time(at_ms(60_000)), &mut rng);
        assert_eq!(none.unwrap_err(), PickError::AllFull, "{strategy}");
        held.clear();
        let tried = [MemberId(0), MemberId(1)];
        let request = Request {
            excluded_members: &tried,
            ..Request::at_time(at_ms(60_000))
        };
        assert_eq!(group.choose_member(&request, &mut rng), Ok(2), "{strategy}");
    }
}

#[test]
fn a_decision_says_which_zone_was_drawn_and_why() {
    let group = zoned("adaptive", &ZONES, None);
    pass(&group, 0.25);
    group.state().want_trace();
    let mut rng = fastrand::Rng::with_seed(6);
    let chosen = group
        .choose_member(&Request::at_time(at_ms(60_000)), &mut rng)
        .unwrap();
    let decision = group.state().last_decision().unwrap();
    assert_eq!(decision.chosen.as_deref(), Ok(&*format!("m{chosen}")));
    let notes = decision.explanation.notes.join("\n");
    let (one, share) = if chosen < 3 {
        ("zone a", "75")
    } else {
        ("zones b and c", "25")
    };
    let drawn = format!("{one} is drawn, which gets {share} % of the requests");
    assert!(notes.contains(&drawn), "{notes}");
    assert!(
        notes.contains("zone a: load 0.9, 100 % can serve"),
        "{notes}"
    );
    assert!(notes.contains("zones b and c: load not known"), "{notes}");
    let candidates = &decision.explanation.candidates;
    let elsewhere = candidates
        .iter()
        .filter(|of| of.verdict == "not eligible: in another zone");
    assert_eq!(elsewhere.count(), 3, "{candidates:?}");
    for index in 0..3 {
        group.members()[index].slot.set(Reason::Down, true);
    }
    pass(&group, 0.0);
    let decision = group.explain_next(&Request::at_time(at_ms(60_000)), &mut rng);
    let notes = decision.explanation.notes.join("\n");
    assert!(notes.contains(
        "no member of zone a can take the request, so the request goes to zones b and c"
    ));
    // The next decision is not traced, and goes by zones all the same.
    for index in 0..3 {
        group.members()[index].slot.set(Reason::Down, false);
    }
    assert!(
        group
            .choose_member(&Request::at_time(at_ms(60_000)), &mut rng)
            .unwrap()
            < 3
    );
}

/// Returns the member that each of 2,000 clients gets.
fn places(group: &Group) -> Vec<usize> {
    let mut rng = fastrand::Rng::with_seed(7);
    let place = |client: u32| {
        let request = Request {
            client: Some(std::net::Ipv4Addr::from_bits(client).into()),
            ..Request::at_time(at_ms(60_000))
        };
        group.choose_member(&request, &mut rng).unwrap()
    };
    (0..2000).map(place).collect()
}

#[test]
fn a_client_that_is_hashed_stays_in_its_zone_and_few_move() {
    let group = zoned("source_ip_hash", &ZONES, None);
    let home = places(&group);
    pass(&group, 0.3);
    let some = places(&group);
    assert_eq!(some, places(&group));
    let left = some.iter().filter(|&&index| index >= 3).count();
    assert!((500..700).contains(&left), "{left}");
    pass(&group, 0.5);
    let more = places(&group);
    for ((home, some), more) in home.iter().zip(&some).zip(&more) {
        assert!(some == home || *some >= 3);
        assert!(more == some || (*some < 3 && *more >= 3));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    /// The own zone gets all requests as long as one of its members may be picked and no request passes on; and a
    /// member is found whenever there is one.
    #[test]
    fn the_own_zone_has_all_it_can_take(
        reasons in prop::collection::vec((0usize..3, prop_oneof![2 => Just(0u32), 1 => 0u32..2048]), 1..40),
        passed in prop_oneof![Just(0.0), Just(1.0), 0.0..1.0],
        seed in any::<u64>(),
    ) {
        let zones: Vec<&str> = reasons.iter().map(|(zone, _)| ["a", "b", "c"][*zone]).collect();
        for strategy in all_strategies() {
            let group = zoned(strategy, &zones, None);
            for (member, (_, reasons)) in group.members().iter().zip(&reasons) {
                for reason in Reason::ALL {
                    member.slot.set(reason, reasons & reason as u32 != 0);
                }
            }
            pass(&group, passed);
            let own = zones.iter().zip(&reasons).any(|(zone, (_, of))| *zone == "a" && *of == 0);
            let any = group.members().iter().any(|member| member.slot.reason_bits() & !Reason::SOFT == 0);
            let mut rng = fastrand::Rng::with_seed(seed);
            for _ in 0..10 {
                let chosen = group.choose_member(&Request::at_time(at_ms(60_000)), &mut rng);
                prop_assert_eq!(chosen.is_ok(), any, "{}", strategy);
                if let Ok(index) = chosen {
                    prop_assert!(!own || passed > 0.0 || zones[index] == "a", "{}", strategy);
                }
            }
        }
    }
}
