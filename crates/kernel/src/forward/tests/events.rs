//! Events of connections, with packets that tests make.

use super::packets::*;
use super::*;

/// Returns a packet of a client to the listener.
fn client_segment(
    (family, port): (Family, u16),
    sequence: u32,
    answered: u32,
    flags: u8,
) -> Segment {
    Segment {
        sequence,
        answered,
        ..Segment::new(family.client(port), family.listener(), flags)
    }
}

/// Returns a packet of the member to a client.
fn member_segment(client: (Family, u16), sequence: u32, answered: u32, flags: u8) -> Segment {
    let member = client.0.member(2);
    let client = client_segment(client, sequence, answered, flags);
    Segment {
        from: member,
        to: client.from,
        ..client
    }
}

fn read_lost(forwarder: &Forwarder) -> u64 {
    read_outcome(forwarder, "lost_event")
}

fn check_events(forwarder: &Forwarder, interface: u32, family: Family) {
    serve_members(forwarder, &[family.member(2)], 0);
    let (pass, client) = (
        |packet: &Segment| send(forwarder, interface, packet),
        (family, 5000),
    );
    let with_data = |mut packet: Segment, length| {
        packet.data = vec![b'x'; length];
        packet
    };
    pass(&client_segment(client, 100, 0, SYN));
    pass(&member_segment(client, 900, 101, SYN | ACK));
    pass(&with_data(client_segment(client, 101, 901, ACK), 40));
    pass(&with_data(member_segment(client, 901, 141, ACK), 60));
    pass(&with_data(member_segment(client, 961, 141, FIN | ACK), 8));
    pass(&client_segment(client, 141, 970, FIN | ACK));
    let events = forwarder.take_events().unwrap();
    let steps: Vec<_> = events.iter().map(|one| (one.step, one.bytes)).collect();
    let expected = [
        (Step::Begin, (0, 0)),
        (Step::Accept, (0, 0)),
        (Step::Answer, (40, 60)),
        (Step::End(End::Closed), (40, 68)),
    ];
    assert_eq!(steps, expected);
    assert!(events.is_sorted_by_key(|one| one.ns));
    for event in &events {
        assert_eq!(event.began_ns, events[0].ns);
        assert_eq!(event.listener, family.listener());
        assert_eq!(event.pair.member, family.member(2));
    }
    assert_eq!(read_lost(forwarder), 0);
    let counts = forwarder.read_listener_counts(family.listener()).unwrap();
    let expected = ListenerCounts {
        begun: 1,
        open: 0,
        bytes: (40, 68),
    };
    assert_eq!(counts, expected);
    pass(&client_segment((family, 5001), 100, 0, SYN));
    let counts = forwarder.read_listener_counts(family.listener()).unwrap();
    assert_eq!((counts.begun, counts.open), (2, 1));
    // A rule that is gone keeps its counts until the last connection is over.
    forwarder.set_listeners(&[]).unwrap();
    let counts = forwarder.read_listener_counts(family.listener()).unwrap();
    assert_eq!((counts.begun, counts.open), (2, 1));
    pass(&client_segment((family, 5001), 101, 0, RST));
    forwarder.set_listeners(&[]).unwrap();
    let counts = forwarder.read_listener_counts(family.listener()).unwrap();
    assert_eq!(counts, ListenerCounts::default());
    assert_eq!(forwarder.take_events().unwrap().len(), 2);
}

#[test]
fn s41_events_have_the_times_and_the_bytes_of_a_connection() {
    run_beside_routes(|forwarder, interface| {
        for family in [Family::V4, Family::V6] {
            check_events(forwarder, interface, family);
        }
    });
}

#[test]
fn s41_acceptances_are_told_if_they_are_needed() {
    run_beside_routes(|forwarder, interface| {
        let (family, mut port) = (Family::V4, 6000);
        serve_members(forwarder, &[family.member(2)], 0);
        for (is_needed, told) in [(true, 2), (false, 1), (true, 2)] {
            forwarder.tell_acceptances(is_needed).unwrap();
            port += 1;
            let client = (family, port);
            for packet in [
                client_segment(client, 100, 0, SYN),
                member_segment(client, 900, 101, SYN | ACK),
            ] {
                send(forwarder, interface, &packet);
            }
            let events = forwarder.take_events().unwrap();
            assert_eq!(events.len(), told);
            // The counts have the acceptance in any case.
            let begun = u64::from(port - 6000);
            assert_eq!(forwarder.read_counts(0).unwrap().handshakes.0, begun);
        }
    });
}

#[test]
fn s41_events_without_room_are_counted() {
    run_beside_routes(|forwarder, interface| {
        let client = |port| (Family::V6, port);
        serve_members(forwarder, &[Family::V6.member(2)], 0);
        let mut sent = 0;
        // Each connection has two events. The buffer has room for some 35,000.
        while read_lost(forwarder) == 0 {
            assert!(sent < 60_000, "the buffer is bounded");
            for port in 2000..3000 {
                send(
                    forwarder,
                    interface,
                    &client_segment(client(port), 100, 0, SYN),
                );
                send(
                    forwarder,
                    interface,
                    &client_segment(client(port), 101, 0, RST),
                );
                sent += 1;
            }
        }
        let lost = read_lost(forwarder);
        let events = forwarder.take_events().unwrap();
        assert_eq!(events.len() as u64 + lost, 2 * sent);
        assert_eq!(forwarder.read_counts(0).unwrap().in_flight, 0);
        // There is room again.
        send(
            forwarder,
            interface,
            &client_segment(client(2000), 7, 0, SYN),
        );
        let events = forwarder.take_events().unwrap();
        assert_eq!(events.len(), 1);
        assert_eq!(read_lost(forwarder), lost);
    });
}
