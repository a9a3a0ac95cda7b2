use evenkeel_core::group::GroupSettings;
use evenkeel_core::hash_terms::{LEAST_BASE, OVER_BOUND};
use evenkeel_core::load::Location;
use evenkeel_core::member::{Member, MemberId, Slot, Weight};
use evenkeel_core::strategy::{self, Values};

use super::*;

fn address(last: u32) -> SocketAddr {
    format!("10.77.0.{last}:8080").parse().unwrap()
}

/// A group with members whose addresses end with 0, 1 and so on.
fn open_group(count: u32) -> Group {
    let member = |number: u32| Member {
        id: MemberId(number.into()),
        name: format!("m{number}").into(),
        given_name: None,
        address: address(number).into(),
        host: "10.77.0.1".into(),
        max_connections: None,
        location: Arc::new(Location::new(format!("l{number}"))),
        zone: None,
        slot: Arc::new(Slot::new(Weight::new(1.0).unwrap())),
    };
    let values = Values::defaults(strategy::find("adaptive").unwrap());
    let members = (0..count).map(member).collect();
    Group::new(
        "db",
        GroupSettings::default(),
        &values,
        members,
        Arc::default(),
    )
}

/// A candidate in the seat of a number that is the last one of its address.
fn candidate(seat: u32, score: Option<u64>) -> kernel::Candidate {
    kernel::Candidate {
        seat,
        score,
        here: 2,
        base: 98_304,
        others: 1,
        room: 9,
        requests: 0,
    }
}

fn describe(form: u32, tries: u32, candidates: Vec<kernel::Candidate>) -> Decision {
    let told = kernel::Decision {
        ns: 1,
        client: "198.51.100.7:5000".parse().unwrap(),
        group: 0,
        chosen: 1,
        form,
        tries,
        candidates,
    };
    let find_address = |seat| (seat < 9).then(|| address(seat));
    describe_decision(&told, &open_group(3), Instant::from_nanos(5), find_address)
}

fn list_scores(decision: &Decision) -> Vec<(&str, Option<f64>)> {
    let candidates = decision.explanation.candidates.iter();
    candidates
        .map(|one| (&*decision.members[one.index], one.score))
        .collect()
}

#[test]
fn decisions_by_score_have_costs_and_the_runner_up() {
    let unit = 65_536 * 256;
    let decision = describe(
        1,
        0,
        vec![
            candidate(0, Some(3 * unit)),
            candidate(2, None),
            candidate(1, Some(2 * unit)),
            // In a seat that was freed since.
            candidate(9, Some(unit)),
        ],
    );
    assert!(decision.in_kernel);
    assert_eq!(decision.chosen.as_deref(), Ok("m1"));
    let scores = list_scores(&decision);
    assert_eq!(scores, [("m1", Some(2.0)), ("m0", Some(3.0)), ("m2", None)]);
    let notes = decision.explanation.notes;
    assert!(notes[0].contains("198.51.100.7:5000"), "{notes:?}");
    assert_eq!(
        notes[1],
        "next after it: m0, with a cost that is 50.0 % higher"
    );
    let verdicts = decision.explanation.candidates;
    assert_eq!(
        verdicts[0].verdict,
        "cost of one connection 1.500; 2 connections in the kernel and 1 others"
    );
    assert_eq!(
        verdicts[2].verdict,
        "not eligible: has not accepted the connection before"
    );
}

#[test]
fn decisions_by_turns_have_the_distance_to_the_next_turn() {
    let decision = describe(
        2,
        1,
        vec![candidate(0, Some(1_065_536)), candidate(1, Some(1_000_000))],
    );
    let scores = list_scores(&decision);
    assert_eq!(scores, [("m1", Some(0.0)), ("m0", Some(1.0))]);
    let notes = decision.explanation.notes;
    assert_eq!(notes[1], "another member had not accepted the connection");
    assert_eq!(notes[2], "next after it: m0, 1.000 turns later");
}

#[test]
fn s41_decisions_of_prequal_tell_hot_members() {
    let unit = 65_536 * 256;
    let decision = describe(
        4,
        0,
        vec![
            candidate(0, Some(HOT | (5 * 65_536))),
            candidate(1, Some(2 * unit)),
        ],
    );
    let scores = list_scores(&decision);
    assert_eq!(scores, [("m1", Some(2.0)), ("m0", Some(1e9 + 5.0))]);
    assert_eq!(
        decision.explanation.notes[1],
        "next after it: m0, which is hot"
    );
    assert_eq!(
        decision.explanation.candidates[1].verdict,
        "hot, with a load of 5.00 connections for the weight; 2 connections in the kernel and 1 others"
    );
}

#[test]
fn s41_decisions_by_hash_have_weights_and_the_next_member() {
    let base = LEAST_BASE as u32;
    let member = |seat, score| kernel::Candidate {
        base,
        ..candidate(seat, Some(score))
    };
    let unit = u64::from(base) << 26;
    let heavy = kernel::Candidate {
        base: 2 * base,
        ..member(0, 3 * unit)
    };
    let over = member(2, unit + OVER_BOUND);
    let decision = describe(3, 0, vec![heavy, member(1, 2 * unit), over]);
    let scores = list_scores(&decision);
    let expected = [("m1", Some(2.0)), ("m0", Some(3.0)), ("m2", Some(1.0))];
    assert_eq!(scores, expected);
    let explanation = &decision.explanation;
    assert_eq!(
        explanation.notes[1],
        "next after it for this client's address: m0"
    );
    let verdicts: Vec<_> = explanation
        .candidates
        .iter()
        .map(|one| &*one.verdict)
        .collect();
    let connections = "2 connections in the kernel and 1 others";
    assert_eq!(
        verdicts,
        [
            format!("weight 1.000; {connections}"),
            format!("weight 0.500; {connections}"),
            format!("weight 1.000; {connections}; over the bound"),
        ]
    );
}

#[test]
fn members_that_cannot_get_the_connection_have_the_reason() {
    let full = kernel::Candidate {
        room: 2,
        ..candidate(0, None)
    };
    let drained = kernel::Candidate {
        room: 0,
        ..candidate(2, None)
    };
    // A member that has left the group keeps its address for a name.
    let left = candidate(5, None);
    let decision = describe(1, 0, vec![full, drained, candidate(1, Some(5)), left]);
    let names: Vec<_> = list_scores(&decision)
        .iter()
        .map(|one| one.0.to_owned())
        .collect();
    assert_eq!(names, ["m1", "m0", "m2", "10.77.0.5:8080"]);
    let explanation = &decision.explanation;
    assert!(explanation.candidates[1].verdict.contains("at its limit"));
    assert!(explanation.candidates[2].verdict.contains("gets no new"));
    assert_eq!(
        explanation.notes[1],
        "no other member could get the connection"
    );
}
