use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::task::Waker;

use evenkeel_control::queue::QueuePosition;
use evenkeel_core::cost::Cost;
use evenkeel_core::group::GroupSettings;
use evenkeel_core::member::Member;
use evenkeel_manager::snapshot::GroupHandle;

use super::*;
use crate::terms::free_terms;
use crate::testing;

const SEAT: u32 = 3;

fn member_address() -> SocketAddr {
    SocketAddr::from((Ipv4Addr::new(10, 77, 0, 1), 8080))
}

/// Members by their seats, with one member that has room for `limit` connections.
fn open_homes(limit: Option<u32>) -> Homes {
    let member = Member {
        max_connections: limit,
        ..testing::member(0, member_address())
    };
    let group = testing::group("adaptive", GroupSettings::default(), vec![member]);
    let handle = Arc::new(GroupHandle::new(Arc::new(group), 0));
    let mut home = Home::new(handle, "g".into(), Cost::ONE);
    home.terms = evenkeel_kernel::forward::Terms {
        address: member_address(),
        ..free_terms()
    };
    Homes::from([(SEAT, home)])
}

fn key(port: u16) -> Key {
    let client = SocketAddr::from((Ipv4Addr::new(10, 78, 0, 1), port));
    let member = member_address();
    (Pair { member, client }, u64::from(port))
}

fn at(ms: u64) -> Instant {
    Instant::from_nanos((1000 + ms) * 1_000_000)
}

/// Requests that the member has in flight, the seat's tickets, and the tickets that are kept one by one.
fn counts(homes: &Homes, tickets: &Tickets) -> (u32, u32, usize) {
    let home = &homes[&SEAT];
    let group = home.group.current.load();
    let in_flight = group.members()[0].slot.in_flight();
    (in_flight, home.tickets, tickets.held.len())
}

/// A look that finds these connections; true is for answered ones.
fn look(tickets: &mut Tickets, homes: &mut Homes, found: &[(u16, bool)]) {
    tickets.begin_look(homes);
    for (port, is_answered) in found {
        tickets.note(Seen {
            key: key(*port),
            seat: SEAT,
            is_answered: *is_answered,
        });
    }
    for (key, seat) in tickets.take_unknown() {
        tickets.hold(homes, key, seat, at(0));
    }
}

#[test]
fn s41_answered_connections_are_counted_without_a_ticket_each() {
    let (mut homes, mut tickets) = (open_homes(None), Tickets::default());
    for port in 1..=3 {
        tickets.hold(&mut homes, key(port), SEAT, at(0));
    }
    assert_eq!(counts(&homes, &tickets), (3, 3, 3));
    tickets.record_answer(&mut homes, &key(1), at(1));
    tickets.record_acceptance(&mut homes, &key(2), at(1));
    assert_eq!(counts(&homes, &tickets), (3, 3, 1));
    tickets.end(&mut homes, (&key(1), false), SEAT, End::Closed, at(2));
    tickets.end(&mut homes, (&key(3), false), SEAT, End::Reset, at(2));
    assert_eq!(counts(&homes, &tickets), (1, 1, 0));
    // The end of a connection that nobody has heard of.
    tickets.end(&mut homes, (&key(9), false), SEAT + 1, End::Closed, at(2));
    assert_eq!(counts(&homes, &tickets), (1, 1, 0));
}

#[test]
fn s41_looks_find_ends_and_beginnings_whose_events_had_no_place() {
    let (mut homes, mut tickets) = (open_homes(None), Tickets::default());
    look(&mut tickets, &mut homes, &[]);
    tickets.end_look(&mut homes, at(0));
    for port in 1..=4 {
        tickets.hold(&mut homes, key(port), SEAT, at(0));
    }
    for port in 1..=3 {
        tickets.record_answer(&mut homes, &key(port), at(1));
    }
    // Of the answered ones 2 and 3 have ended, and the unanswered one, too. What a single look finds of answered ones may
    // be an event that is under way.
    for (turn, left) in [(1, (3, 3, 0)), (2, (1, 1, 0)), (3, (1, 1, 0))] {
        look(&mut tickets, &mut homes, &[(1, true)]);
        tickets.end_look(&mut homes, at(turn));
        assert_eq!(counts(&homes, &tickets), left, "look {turn}");
    }
    // Three have begun, two of them have answered.
    let found = [(1, true), (5, true), (6, true), (7, false)];
    for left in [(2, 2, 1), (4, 4, 1), (4, 4, 1)] {
        look(&mut tickets, &mut homes, &found);
        tickets.end_look(&mut homes, at(9));
        assert_eq!(counts(&homes, &tickets), left);
    }
    assert_eq!(tickets.open()[&SEAT], 4);
}

#[test]
fn s41_a_new_process_takes_over_connections_at_the_first_look() {
    let (mut homes, mut tickets) = (open_homes(Some(3)), Tickets::default());
    let found = [(1, true), (2, true), (3, true), (4, true), (5, false)];
    look(&mut tickets, &mut homes, &found);
    tickets.end_look(&mut homes, at(5));
    // As many as the member's limit allows.
    let (in_flight, kept, held) = counts(&homes, &tickets);
    assert_eq!((in_flight, kept, held), (3, 3, 1));
    for port in 1..=5 {
        tickets.end(&mut homes, (&key(port), false), SEAT, End::Closed, at(6));
    }
    assert_eq!(counts(&homes, &tickets), (0, 0, 0));
}

#[test]
fn s41_events_while_the_tables_are_read_change_no_count() {
    let (mut homes, mut tickets) = (open_homes(None), Tickets::default());
    for port in 1..=4 {
        tickets.hold(&mut homes, key(port), SEAT, at(0));
        tickets.record_answer(&mut homes, &key(port), at(1));
    }
    for _ in 0..3 {
        // 1 ends behind the look, 5 begins and answers behind it, 6 before it, and 6 ends before it as well.
        look(
            &mut tickets,
            &mut homes,
            &[(1, true), (2, true), (3, true), (4, true)],
        );
        for port in [5, 6] {
            tickets.hold(&mut homes, key(port), SEAT, at(2));
            tickets.record_answer(&mut homes, &key(port), at(3));
        }
        for port in [1, 6] {
            tickets.end(&mut homes, (&key(port), false), SEAT, End::Closed, at(4));
        }
        tickets.end_look(&mut homes, at(5));
        assert_eq!(counts(&homes, &tickets), (4, 4, 0));
    }
}

#[test]
fn s41_connections_of_another_balancer_are_numbers_once_a_look_has_seen_the_answer() {
    let (mut homes, mut tickets) = (open_homes(None), Tickets::default());
    for port in 1..=3 {
        tickets.adopt(&mut homes, key(port), SEAT, at(0), at(1));
    }
    assert_eq!(counts(&homes, &tickets), (3, 3, 3));
    for _ in 0..3 {
        look(
            &mut tickets,
            &mut homes,
            &[(1, true), (2, false), (3, true)],
        );
        tickets.end_look(&mut homes, at(2));
        assert_eq!(counts(&homes, &tickets), (3, 3, 1));
    }
    tickets.record_answer(&mut homes, &key(2), at(3));
    assert_eq!(counts(&homes, &tickets), (3, 3, 0));
    // A copy of which no packet has come counts nowhere, and keeps the seat.
    look(&mut tickets, &mut homes, &[(1, true), (2, true), (3, true)]);
    tickets.note_copy(SEAT + 1);
    tickets.end_look(&mut homes, at(4));
    assert_eq!(tickets.open().get(&(SEAT + 1)), Some(&0));
    for port in 1..=3 {
        tickets.end(&mut homes, (&key(port), false), SEAT, End::Closed, at(5));
    }
    assert_eq!(counts(&homes, &tickets), (0, 0, 0));
}

#[test]
fn s41_sessions_whose_answers_nobody_sees_are_in_flight_and_say_nothing() {
    let (mut homes, mut tickets) = (open_homes(None), Tickets::default());
    for port in [1, 2] {
        tickets.hold_unseen(&mut homes, key(port), SEAT, at(0));
    }
    assert_eq!(counts(&homes, &tickets), (2, 2, 0));
    for _ in 0..3 {
        look(&mut tickets, &mut homes, &[(1, true), (2, true)]);
        tickets.end_look(&mut homes, at(1));
        assert_eq!(counts(&homes, &tickets), (2, 2, 0));
    }
    for port in [1, 2] {
        tickets.end(
            &mut homes,
            (&key(port), true),
            SEAT,
            End::Closed,
            at(90_000),
        );
    }
    assert_eq!(counts(&homes, &tickets), (0, 0, 0));
    let group = homes[&SEAT].group.current.load();
    let totals = group.members()[0].slot.record().request_totals();
    assert_eq!((totals.cancelled, totals.total()), (2, 2));
}

/// A client whom the proxy keeps in the queue, as the member is at its limit, gets the place of a connection of the kernel.
#[test]
fn s41_ends_of_answered_connections_make_room_for_those_who_wait() {
    for is_told in [true, false] {
        let (mut homes, mut tickets) = (open_homes(Some(1)), Tickets::default());
        homes.get_mut(&SEAT).unwrap().group = {
            let group = homes[&SEAT].group.current.load_full();
            Arc::new(GroupHandle::new(group, 5))
        };
        look(&mut tickets, &mut homes, &[]);
        tickets.end_look(&mut homes, at(0));
        tickets.hold(&mut homes, key(1), SEAT, at(0));
        tickets.record_answer(&mut homes, &key(1), at(1));
        let handle = Arc::clone(&homes[&SEAT].group);
        let mut waiting = QueuePosition::enter(&handle.queue, 0, at(1)).unwrap();
        let mut find_room = || {
            let turn = waiting.next_turn(at(2), Waker::noop());
            turn.map(|_| {
                let bind = || handle.current.load().bind(0, at(2)).is_some();
                waiting.look_for_room(bind).unwrap_or(false)
            })
        };
        assert_eq!(find_room(), Some(false));
        assert_eq!(find_room(), None, "nobody has called");
        if is_told {
            tickets.end(&mut homes, (&key(1), false), SEAT, End::Closed, at(3));
        } else {
            for _ in 0..2 {
                look(&mut tickets, &mut homes, &[]);
                tickets.end_look(&mut homes, at(3));
            }
        }
        assert_eq!(find_room(), Some(true));
    }
}
