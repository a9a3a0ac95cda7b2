//! Decisions that the program tells for people.

use super::packets::*;
use super::*;

fn check_decisions(forwarder: &Forwarder, interface: u32, family: Family) {
    let members = [2, 3, 4].map(|last| family.member(last));
    serve_members(forwarder, &members, 0);
    // Seat 1 is the better one, seat 2 gets no connections, and seat 3 is of the other family.
    let other = match family {
        Family::V4 => Family::V6,
        Family::V6 => Family::V4,
    };
    let all = [(2, 200_000, 1, 9), (3, 100_000, 1, 9), (4, 65_536, 0, 0)];
    let all = all.map(|(last, base, others, room)| (family.member(last), base, others, room));
    let last = (other.member(5), 65_536, 0, 9);
    for (seat, (address, base, others, room)) in (0..).zip(all.into_iter().chain([last])) {
        let terms = Terms {
            owner: 1,
            address,
            base,
            others,
            room,
            must_leave: false,
            name_hash: 0,
            weight: 0,
        };
        forwarder.set_terms(seat, &terms).unwrap();
    }
    let group = GroupTerms {
        form: 1,
        growth: 512,
        bound: 0,
        seats: vec![0, 1, 2, 3],
    };
    forwarder.set_group(0, &group).unwrap();
    for port in 5000..5003 {
        let client = family.client(port);
        send(
            forwarder,
            interface,
            &Segment::new(client, family.listener(), SYN),
        );
    }
    let decisions = forwarder.take_decisions().unwrap();
    let is_later = |pair: &[Decision]| pair[1].ns >= pair[0].ns + 1_000_000_000;
    assert!(
        decisions.windows(2).all(is_later),
        "one a second: {decisions:?}"
    );
    let told = &decisions[0];
    let began = list_connections(forwarder)
        .into_iter()
        .find(|one| one.pair.client == told.client);
    assert_eq!(told.ns, began.unwrap().began_ns);
    assert_eq!(told.client, family.client(5000));
    assert_eq!((told.group, told.form, told.tries), (0, 1, 0));
    assert_eq!(told.chosen, 1);
    let mut candidates = told.candidates.clone();
    candidates.sort_by_key(|candidate| candidate.seat);
    let places = terms::count_places(1, 512);
    let candidate = |seat, base: u32, others, room, scored: bool| Candidate {
        seat,
        score: scored.then_some(u64::from(base) * places),
        here: 0,
        base,
        others,
        room,
        requests: 0,
    };
    let expected = [
        candidate(0, 200_000, 1, 9, true),
        candidate(1, 100_000, 1, 9, true),
        candidate(2, 65_536, 0, 0, false),
        candidate(3, 65_536, 0, 9, false),
    ];
    assert_eq!(candidates, expected);
    // The events are complete beside the decisions.
    assert_eq!(forwarder.take_events().unwrap().len(), 3);
    assert_eq!(forwarder.take_decisions().unwrap(), []);
}

#[test]
fn s41_a_decision_a_second_is_told_with_all_candidates() {
    for family in [Family::V4, Family::V6] {
        run_beside_routes(|forwarder, interface| check_decisions(forwarder, interface, family));
    }
}

proptest! {
    #[test]
    fn decisions_of_any_bytes_are_read(bytes in proptest::collection::vec(any::<u8>(), 0..3000)) {
        prop_assert!(Decision::read(&bytes).candidates.len() <= GROUP_SEATS);
    }
}
