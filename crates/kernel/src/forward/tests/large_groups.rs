//! Groups with more members than a decision looks at.

use std::collections::HashMap;

use super::*;

/// Members of the group: last one is not a multiple of what a decision looks at.
const MEMBERS: u32 = 300;

/// Group of the tests.
const GROUP: u32 = 5;

fn serve(forwarder: &Forwarder, form: u32, find_terms: impl Fn(u32) -> Terms) {
    for seat in 0..MEMBERS {
        forwarder
            .set_terms(1_000 + seat, &find_terms(seat))
            .unwrap();
    }
    let group = GroupTerms {
        form,
        growth: 256,
        bound: 0,
        seats: (1_000..1_000 + MEMBERS).collect(),
    };
    forwarder.set_group(GROUP, &group).unwrap();
}

fn terms(base: u32) -> Terms {
    Terms {
        owner: 1,
        address: Family::V4.member(9),
        base,
        others: 0,
        room: 9,
        must_leave: false,
        name_hash: 0,
        weight: 0,
    }
}

fn choose(forwarder: &Forwarder) -> u32 {
    let chosen = choose_seat(forwarder, GROUP, Family::V4.client(1).ip(), &[]);
    u32::try_from(chosen).unwrap() - 1_000
}

#[test]
fn s41_decisions_of_large_groups_look_at_some_members_from_any_one_on() {
    let Some(trial) = Trial::new() else { return };
    let forwarder = trial.forwarder();
    // The first ones are the cheapest.
    serve(forwarder, 1, |seat| terms(65_536 + seat));
    let mut chosen = HashMap::<u32, u32>::new();
    for _ in 0..3_000 {
        *chosen.entry(choose(forwarder)).or_default() += 1;
    }
    // All windows that reach the end have the first one, and others begin with their best member.
    let beginnings = MEMBERS - GROUP_SEATS as u32;
    assert!(chosen.keys().all(|seat| *seat <= beginnings), "{chosen:?}");
    let share = f64::from(chosen[&0]) / 3_000.0;
    let expected = GROUP_SEATS as f64 / f64::from(MEMBERS);
    assert!((share - expected).abs() < 0.05, "{share} {expected}");
    assert!(chosen.len() > 100, "{chosen:?}");

    // A group that has become small is as any other.
    let map = find_map(&forwarder.object, "evk_seat_lists").unwrap();
    assert_eq!(map.keys().count(), 1);
    let small = GroupTerms {
        form: 1,
        growth: 256,
        bound: 0,
        seats: vec![1_007, 1_003],
    };
    forwarder.set_group(GROUP, &small).unwrap();
    assert_eq!(choose(forwarder), 3);
    assert_eq!(map.keys().count(), 0);
}

#[test]
fn s41_turns_of_large_groups_are_in_proportion_to_weights() {
    let Some(trial) = Trial::new() else { return };
    let forwarder = trial.forwarder();
    // Weights of 1, 2 and 3, one after the other.
    let weight = |seat: u32| 1 + seat % 3;
    serve(forwarder, 2, |seat| terms(65_536 * 6 / weight(seat)));
    let mut turns = [0; 3];
    let rounds = 20;
    for _ in 0..rounds * 2 * MEMBERS {
        turns[weight(choose(forwarder)) as usize - 1] += 1;
    }
    let all = f64::from(rounds * 2 * MEMBERS);
    for (turns, weight) in turns.into_iter().zip([1.0, 2.0, 3.0]) {
        let share = f64::from(turns) / all;
        assert!(
            (share / (weight / 6.0) - 1.0).abs() < 0.1,
            "{turns} of weight {weight}"
        );
    }
}
