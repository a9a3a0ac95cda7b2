//! Limit of connections that clients of one source have begun and not confirmed.

use super::packets::*;
use super::*;

/// Lets each source begin this number of connections, and one more an hour.
pub(super) fn set_burst(forwarder: &Forwarder, burst: u32) {
    let interval = Duration::from_secs(3600).as_nanos() as u64;
    let words = [interval, interval * u64::from(burst)];
    let bytes: Vec<u8> = words.into_iter().flat_map(u64::to_ne_bytes).collect();
    bpf::update_map(&forwarder.object, "evk_source_limit", &[0; 4], &bytes).unwrap();
}

/// A client's packet, and the member's answer to the SYN.
fn packets(client: SocketAddr, listener: SocketAddr, member: SocketAddr) -> [Segment; 3] {
    let syn = Segment::new(client, listener, SYN);
    let answer = Segment {
        from: member,
        to: client,
        sequence: 900,
        answered: 2,
        ..Segment::new(member, client, SYN | ACK)
    };
    let confirmation = Segment {
        sequence: 2,
        answered: 901,
        ..Segment::new(client, listener, ACK)
    };
    [syn, answer, confirmation]
}

fn check_source_limit(forwarder: &Forwarder, interface: u32, family: Family) {
    let member = family.member(2);
    serve_members(forwarder, &[member], 0);
    set_room(forwarder, member);
    let burst = 5;
    set_burst(forwarder, burst);
    let of = |client| packets(client, family.listener(), member);
    let begins = |client| try_send(forwarder, interface, &of(client)[0]).is_some();
    let client = |port| family.client(port);
    for port in 5000..5005 {
        assert!(begins(client(port)));
    }
    assert!(!begins(client(5005)), "the proxy serves");
    assert_eq!(read_outcome(forwarder, "proxied_rate"), 1);
    // A SYN that comes again is no further connection.
    assert!(begins(client(5000)));

    // Other sources, and other hosts of the same network.
    let with_ip = |v4: &str, v6: &str| family.address(v4, v6);
    let neighbour = with_ip("198.51.100.8:5000", "[2001:db8:100::8]:5000");
    assert_eq!(begins(neighbour), family == Family::V4);
    assert!(begins(with_ip(
        "198.51.100.9:5000",
        "[2001:db8:100:1::7]:5000"
    )));

    // An acceptance is no confirmation, as the client may be forged, and an acknowledgement of another number neither.
    let [_, answer, confirmation] = of(client(5001));
    send(forwarder, interface, &answer);
    assert!(!begins(client(5005)));
    let wrong = Segment {
        answered: 900,
        ..confirmation.clone()
    };
    send(forwarder, interface, &wrong);
    assert!(!begins(client(5005)));
    send(forwarder, interface, &confirmation);
    assert!(begins(client(5005)));
    // Once for each connection.
    send(forwarder, interface, &confirmation);
    assert!(!begins(client(5006)));
    let is_confirmed = |one: &Connection| one.is_confirmed();
    let all = list_connections(forwarder);
    let confirmed: Vec<_> = all.into_iter().filter(is_confirmed).collect();
    assert_eq!(confirmed.len(), 1);
    assert_eq!(confirmed[0].pair.client, client(5001));
}

/// Lets a member have connections without limit.
fn set_room(forwarder: &Forwarder, address: SocketAddr) {
    let terms = Terms {
        owner: 1,
        address,
        base: 65_536,
        others: 0,
        room: u32::MAX,
        must_leave: false,
        name_hash: 0,
        weight: 0,
    };
    forwarder.set_terms(0, &terms).unwrap();
}

#[test]
fn s41_a_source_begins_no_more_connections_than_its_clients_confirm() {
    for family in [Family::V4, Family::V6] {
        run_beside_routes(|forwarder, interface| check_source_limit(forwarder, interface, family));
    }
}

/// Step of a hostile source: a packet of one of its ports.
#[derive(Clone, Copy, Debug)]
enum Hostile {
    Syn,
    Reset,
    Acceptance,
    Acknowledgement(u32),
}

fn hostile_steps() -> impl Strategy<Value = Vec<(u16, Hostile)>> {
    let step = prop_oneof![
        4 => Just(Hostile::Syn),
        1 => Just(Hostile::Reset),
        2 => Just(Hostile::Acceptance),
        1 => prop_oneof![Just(901), 890..910u32, any::<u32>()].prop_map(Hostile::Acknowledgement),
    ];
    proptest::collection::vec((5000..5030u16, step), 0..120)
}

#[test]
fn s41_a_flood_of_one_source_leaves_the_table_to_others() {
    run_beside_routes(|forwarder, interface| {
        let (family, burst) = (Family::V4, 8);
        let member = family.member(2);
        serve_members(forwarder, &[member], 0);
        set_room(forwarder, member);
        let mut last = 0u8;
        let mut runner = TestRunner::default();
        let run = |steps: Vec<(u16, Hostile)>| {
            set_burst(forwarder, burst);
            last = last.wrapping_add(1);
            // A new source for most cases, and none of the client that follows.
            let source = format!("198.51.100.{}", 8 + last % 200);
            for (port, step) in steps {
                let client = SocketAddr::new(source.parse().unwrap(), port);
                let [syn, answer, acknowledgement] = packets(client, family.listener(), member);
                let packet = match step {
                    Hostile::Syn => syn,
                    Hostile::Reset => Segment {
                        sequence: 2,
                        flags: RST,
                        ..syn
                    },
                    Hostile::Acceptance => answer,
                    Hostile::Acknowledgement(answered) => Segment {
                        answered,
                        ..acknowledgement
                    },
                };
                run_packet_of(forwarder, interface, &packet);
            }
            let of_source =
                |one: &&Connection| one.pair.client.ip() == source.parse::<IpAddr>().unwrap();
            let all = list_connections(forwarder);
            let unconfirmed = all
                .iter()
                .filter(of_source)
                .filter(|one| !one.is_confirmed());
            prop_assert!(unconfirmed.count() <= burst as usize);
            let other = SocketAddr::new("198.51.100.7".parse().unwrap(), 1000 + u16::from(last));
            let syn = Segment::new(other, family.listener(), SYN);
            // The other source confirms nothing in all cases.
            set_burst(forwarder, 1000);
            prop_assert!(try_send(forwarder, interface, &syn).is_some());
            Ok(())
        };
        let run = std::cell::RefCell::new(run);
        runner
            .run(&hostile_steps(), |steps| (run.borrow_mut())(steps))
            .unwrap();
    });
}

/// Gives the program a packet, whatever the program does with it.
fn run_packet_of(forwarder: &Forwarder, interface: u32, packet: &Segment) {
    send_frame(forwarder, interface, &packet.write());
}

#[test]
fn limits_of_sources_follow_the_size_of_the_table() {
    let limit = SourceLimit::for_table(65_536);
    assert_eq!((limit.burst, limit.rate), (4096, 512));
    let bytes = limit.write();
    let words: Vec<_> = bytes
        .chunks(8)
        .map(|b| u64::from_ne_bytes(b.try_into().unwrap()))
        .collect();
    assert_eq!(words, [1_953_125, 1_953_125 * 4096]);
}
