//! Events of connections, with packets that tests make.

use super::packets::*;
use super::*;

const MEMBER: &str = "10.77.0.2:8080";

/// Returns a packet of a client to the listener.
fn client_segment(port: u16, sequence: u32, answered: u32, flags: u8) -> Segment {
    Segment {
        from: SocketAddrV4::new([198, 51, 100, 7].into(), port),
        to: "192.0.2.1:80".parse().unwrap(),
        sequence,
        answered,
        flags,
        window: 500,
        options: Vec::new(),
        data: Vec::new(),
    }
}

/// Returns a packet of the member to a client.
fn member_segment(port: u16, sequence: u32, answered: u32, flags: u8) -> Segment {
    let client = client_segment(port, sequence, answered, flags);
    Segment {
        from: MEMBER.parse().unwrap(),
        to: client.from,
        ..client
    }
}

fn read_lost(forwarder: &Forwarder) -> u64 {
    let named = OUTCOMES.iter().zip(forwarder.read_outcomes().unwrap());
    let mut counts = named.filter(|((name, _), _)| *name == "lost_event");
    counts.next().unwrap().1
}

#[test]
fn s41_events_have_the_times_and_the_bytes_of_a_connection() {
    run_beside_routes(|forwarder, interface| {
        serve_member(forwarder, MEMBER, 0);
        let pass = |packet: &Segment| send(forwarder, interface, packet);
        let with_data = |mut packet: Segment, length| {
            packet.data = vec![b'x'; length];
            packet
        };
        pass(&client_segment(5000, 100, 0, SYN));
        pass(&member_segment(5000, 900, 101, SYN | ACK));
        pass(&with_data(client_segment(5000, 101, 901, ACK), 40));
        pass(&with_data(member_segment(5000, 901, 141, ACK), 60));
        pass(&with_data(member_segment(5000, 961, 141, FIN | ACK), 8));
        pass(&client_segment(5000, 141, 970, FIN | ACK));
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
            assert_eq!(event.listener, "192.0.2.1:80".parse().unwrap());
            assert_eq!(event.pair.member, MEMBER.parse().unwrap());
        }
        assert_eq!(read_lost(forwarder), 0);
    });
}

#[test]
fn s41_events_without_room_are_counted() {
    run_beside_routes(|forwarder, interface| {
        serve_member(forwarder, MEMBER, 0);
        let mut sent = 0;
        // Each connection has two events. The buffer has room for some 65,000.
        while read_lost(forwarder) == 0 {
            assert!(sent < 60_000, "the buffer is bounded");
            for port in 2000..3000 {
                send(forwarder, interface, &client_segment(port, 100, 0, SYN));
                send(forwarder, interface, &client_segment(port, 101, 0, RST));
                sent += 1;
            }
        }
        let lost = read_lost(forwarder);
        let events = forwarder.take_events().unwrap();
        assert_eq!(events.len() as u64 + lost, 2 * sent);
        assert_eq!(forwarder.read_counts(0).unwrap().in_flight, 0);
        // There is room again.
        send(forwarder, interface, &client_segment(2000, 7, 0, SYN));
        let events = forwarder.take_events().unwrap();
        assert_eq!(events.len(), 1);
        assert_eq!(read_lost(forwarder), lost);
    });
}
