//! Limits of rules, which the program and the process keep together.

use std::collections::HashMap;

use super::packets::*;
use super::udp::{Datagram, serve_sessions, try_pass};
use super::*;
use crate::forward::layout::Reader;
use crate::forward::limits::KEY;
use crate::proc::monotonic_ns;

/// Time that no test takes.
const HOUR: Duration = Duration::from_secs(3600);

fn limit_place(family: Family, is_udp: bool) -> LimitPlace {
    LimitPlace {
        address: family.listener(),
        is_udp,
    }
}

/// Limits for clients of all addresses, or networks.
fn clients(connections: Option<u32>, burst: Option<u32>) -> ClientLimits {
    ClientLimits {
        connections,
        rate: burst.map(|burst| ClientRate {
            count: 1,
            per: HOUR,
            burst,
        }),
        prefixes: (32, 64),
        except: vec![("198.51.100.200".parse().unwrap(), 29)],
    }
}

fn write_limits(
    forwarder: &Forwarder,
    family: Family,
    is_udp: bool,
    (most, clients): (Option<u32>, Option<ClientLimits>),
) {
    let limits = ListenerLimits {
        place: limit_place(family, is_udp),
        rule: "db".into(),
        limits: RuleLimits { most, clients },
    };
    let now_ns = monotonic_ns();
    forwarder.set_limits(&[limits], now_ns).unwrap();
}

/// Lets the program forward for a listener with limits.
fn serve_limited(forwarder: &Forwarder, family: Family, members: &[SocketAddr], retries: u32) {
    serve_members(forwarder, members, retries);
    for (seat, address) in (0..).zip(members) {
        let terms = Terms {
            owner: 1,
            address: *address,
            base: 65_536,
            others: 0,
            room: u32::MAX,
            must_leave: false,
            name_hash: 0,
            weight: 0,
        };
        forwarder.set_terms(seat, &terms).unwrap();
    }
    let listener = Listener {
        is_limited: true,
        ..listener(family, 0, retries)
    };
    forwarder.set_listeners(&[listener]).unwrap();
}

/// Gives the program a client's SYN. Returns true if the program forwards the SYN.
fn begin(forwarder: &Forwarder, interface: u32, client: SocketAddr, listener: SocketAddr) -> bool {
    try_send(forwarder, interface, &Segment::new(client, listener, SYN)).is_some()
}

/// Lets the member accept a client's connection, and the client confirm.
fn confirm(
    forwarder: &Forwarder,
    interface: u32,
    client: SocketAddr,
    (listener, member): (SocketAddr, SocketAddr),
) {
    let answer = Segment {
        sequence: 900,
        answered: 2,
        ..Segment::new(member, client, SYN | ACK)
    };
    try_send(forwarder, interface, &answer);
    let confirmation = Segment {
        sequence: 2,
        answered: 901,
        ..Segment::new(client, listener, ACK)
    };
    try_send(forwarder, interface, &confirmation);
}

/// Ends all connections of a client's port.
fn end(forwarder: &Forwarder, client: SocketAddr) {
    for connection in list_connections(forwarder) {
        if connection.pair.client == client {
            assert!(forwarder.remove_connection(&connection).unwrap());
        }
    }
}

/// Counts of an entry: connections here, those that are confirmed, and those of the process.
fn read_entry(bytes: &[u8]) -> [i32; 3] {
    let mut bytes = Reader(bytes);
    let _times = (bytes.u64(), bytes.u64());
    [(); 3].map(|()| bytes.u32().cast_signed())
}

/// Entries of all clients.
fn list_entries(forwarder: &Forwarder) -> HashMap<IpAddr, [i32; 3]> {
    let map = find_map(&forwarder.object, "evk_limited").unwrap();
    let mut all = HashMap::new();
    read_table::<KEY, 32>(&map, |key, value| {
        let mut key = Reader(key);
        key.u64();
        assert_eq!(all.insert(key.ip(), read_entry(value)), None);
    })
    .unwrap();
    all
}

const ALL: IpAddr = IpAddr::V6(Ipv6Addr::UNSPECIFIED);

#[test]
fn s41_open_connections_of_a_client_are_limited_on_both_ways_together() {
    for family in [Family::V4, Family::V6] {
        run_beside_routes(|forwarder, interface| check_connections(forwarder, interface, family));
    }
}

fn check_connections(forwarder: &Forwarder, interface: u32, family: Family) {
    let ends = (family.listener(), family.member(2));
    let limits = (None, Some(clients(Some(2), None)));
    write_limits(forwarder, family, false, limits.clone());
    serve_limited(forwarder, family, &[ends.1], 0);
    let begin = |client| begin(forwarder, interface, client, ends.0);
    let counts = forwarder.limit_counts().unwrap();
    let place = limit_place(family, false);
    let client = |port| family.client(port);
    let take = || counts.take_place(place, Some(client(1).ip()));
    assert!(begin(client(5000)) && begin(client(5001)));
    assert!(!begin(client(5002)), "the proxy decides");
    assert_eq!(read_outcome(forwarder, "proxied_limit"), 1);
    // Clients of other addresses, or of other networks.
    let other = family.address("198.51.100.8:5000", "[2001:db8:100:1::7]:5000");
    assert!(begin(other));
    let neighbour = family.address("198.51.100.7:5009", "[2001:db8:100::8]:5009");
    assert!(!begin(neighbour));
    if family == Family::V4 {
        for port in 5000..5009 {
            let excepted = format!("198.51.100.203:{port}").parse().unwrap();
            assert!(begin(excepted));
        }
    }

    // The SYNs may be forged: the process serves the client, and then the kernel has no place more.
    let place_of_proxy = take().unwrap();
    assert!(place_of_proxy.counts_client());
    counts.leave_place(&place_of_proxy);
    for port in [5000, 5001] {
        confirm(forwarder, interface, client(port), ends);
    }
    assert_eq!(take(), Err(ReachedLimit::Connections));
    end(forwarder, client(5000));
    let place_of_proxy = take().unwrap();
    assert_eq!(take(), Err(ReachedLimit::Connections));
    assert!(!begin(client(5003)));
    counts.leave_place(&place_of_proxy);
    assert!(begin(client(5003)));

    // The same limits again, and others, keep what is counted.
    write_limits(forwarder, family, false, limits);
    assert!(!begin(client(5004)));
    write_limits(
        forwarder,
        family,
        false,
        (None, Some(clients(Some(3), None))),
    );
    assert!(begin(client(5004)));
    assert!(!begin(client(5005)));
    // Other networks are counted anew.
    let wide = ClientLimits {
        prefixes: (24, 48),
        ..clients(Some(1), None)
    };
    write_limits(forwarder, family, false, (None, Some(wide)));
    let neighbour = family.address("198.51.100.9:5000", "[2001:db8:100:9::7]:5000");
    assert!(begin(neighbour));
    assert!(!begin(client(5005)));
    // The end of a connection from before does not count there.
    end(forwarder, client(5001));
    assert!(!begin(client(5005)));
    end(forwarder, neighbour);
    assert!(begin(client(5005)));
}

#[test]
fn s41_new_connections_of_a_client_are_limited_on_both_ways_together() {
    for family in [Family::V4, Family::V6] {
        run_beside_routes(|forwarder, interface| check_rate(forwarder, interface, family));
    }
}

fn check_rate(forwarder: &Forwarder, interface: u32, family: Family) {
    let ends = (family.listener(), family.member(2));
    let each = ClientLimits {
        prefixes: (32, 128),
        ..clients(None, Some(4))
    };
    write_limits(forwarder, family, false, (None, Some(each)));
    serve_limited(forwarder, family, &[ends.1], 0);
    let begin = |client| begin(forwarder, interface, client, ends.0);
    let counts = forwarder.limit_counts().unwrap();
    let place = limit_place(family, false);
    let client = |port| family.client(port);
    let take = || counts.take_place(place, Some(client(1).ip()));
    let place_of_proxy = take().unwrap();
    for port in 5000..5003 {
        assert!(begin(client(port)));
        // A connection that has ended counts nevertheless.
        end(forwarder, client(port));
    }
    assert!(!begin(client(5003)));
    // Nobody has confirmed these.
    counts.leave_place(&place_of_proxy);
    for _ in 0..3 {
        counts.leave_place(&take().unwrap());
    }
    assert_eq!(take(), Err(ReachedLimit::Rate));
    assert!(!begin(client(5003)));
    let other = family.address("198.51.100.8:5000", "[2001:db8:100::8]:5000");
    let take = || counts.take_place(place, Some(other.ip()));
    for port in 0..4 {
        let client = SocketAddr::new(other.ip(), 5000 + port);
        assert!(begin(client));
        confirm(forwarder, interface, client, ends);
    }
    assert_eq!(take(), Err(ReachedLimit::Rate));
}

#[test]
fn s41_connections_of_a_rule_are_limited_on_both_ways_together() {
    for family in [Family::V4, Family::V6] {
        run_beside_routes(|forwarder, interface| {
            let ends = (family.listener(), family.member(2));
            write_limits(forwarder, family, false, (Some(3), None));
            serve_limited(forwarder, family, &[ends.1], 0);
            let begin = |client| begin(forwarder, interface, client, ends.0);
            let counts = forwarder.limit_counts().unwrap();
            let place = limit_place(family, false);
            let other = family.address("198.51.100.8:5000", "[2001:db8:100:1::7]:5000");
            assert!(begin(family.client(5000)) && begin(other));
            assert_eq!(list_entries(forwarder)[&ALL], [2, 0, 0]);
            // Forged SYNs keep nobody from the process.
            assert_eq!(counts.count_confirmed(place), 0);
            confirm(forwarder, interface, family.client(5000), ends);
            assert_eq!(counts.count_confirmed(place), 1);
            // A client that waits in the process has the next place.
            let waiting = counts.take_place(place, None).unwrap();
            assert!(!waiting.counts_client());
            assert!(!begin(family.client(5001)));
            counts.leave_place(&waiting);
            assert!(begin(family.client(5001)));
            assert!(!begin(family.client(5002)));
            end(forwarder, other);
            assert_eq!(list_entries(forwarder)[&ALL], [2, 1, 0]);
            assert!(begin(family.client(5002)));
            // A rule without limits counts nothing.
            forwarder.set_limits(&[], monotonic_ns()).unwrap();
            assert_eq!(list_entries(forwarder), HashMap::new());
            assert_eq!(counts.count_confirmed(place), 0);
            forwarder.set_listeners(&[listener(family, 0, 0)]).unwrap();
            end(forwarder, family.client(5000));
            assert!(begin(family.client(5003)));
            assert_eq!(list_entries(forwarder), HashMap::new());
        });
    }
}

#[test]
fn s41_sessions_of_udp_are_limited_likewise() {
    for family in [Family::V4, Family::V6] {
        run_beside_routes(|forwarder, interface| {
            let limits = (Some(5), Some(clients(Some(2), Some(3))));
            write_limits(forwarder, family, true, limits);
            serve_sessions(forwarder, &[family.member(2)], |listener| UdpListener {
                is_limited: true,
                ..listener
            });
            let pass = |client| {
                let datagram = Datagram::new(client, family.listener());
                try_pass(forwarder, interface, &datagram).is_some()
            };
            let counts = forwarder.limit_counts().unwrap();
            let place = limit_place(family, true);
            let client = |port| family.client(port);
            let take = || counts.take_place(place, Some(client(1).ip()));
            assert!(pass(client(5000)) && pass(client(5001)));
            // The sessions go on, and the third one is left to the process, which keeps the limit at once.
            assert!(pass(client(5000)) && !pass(client(5002)));
            assert_eq!(read_outcome(forwarder, "proxied_limit"), 1);
            assert_eq!(take(), Err(ReachedLimit::Connections));
            let mut sessions = Vec::new();
            forwarder
                .visit_udp_sessions(|one| sessions.push(one))
                .unwrap();
            for session in &sessions {
                forwarder.remove_udp_session(session, UdpEnd::Idle).unwrap();
            }
            assert_eq!(counts.count_confirmed(place), 0);
            assert!(pass(client(5003)));
            // Three in an hour.
            assert!(!pass(client(5004)));
            assert_eq!(take(), Err(ReachedLimit::Rate));
            let other = family.address("198.51.100.8:5000", "[2001:db8:100:1::7]:5000");
            assert!(pass(other));
        });
    }
}

#[test]
fn s41_messages_of_udp_are_limited_by_their_rate() {
    run_beside_routes(|forwarder, interface| {
        let family = Family::V4;
        let limits = (None, Some(clients(Some(1), Some(3))));
        write_limits(forwarder, family, true, limits);
        serve_sessions(forwarder, &[family.member(2)], |listener| UdpListener {
            is_limited: true,
            is_single: true,
            answer: None,
            ..listener
        });
        let datagram = Datagram::new(family.client(5000), family.listener());
        let passed = (0..9).filter(|_| try_pass(forwarder, interface, &datagram).is_some());
        assert_eq!(passed.count(), 3);
        let entries = list_entries(forwarder);
        assert_eq!(entries[&family.client(1).ip()], [0, 0, 0]);
        assert_eq!(entries[&ALL], [0, 0, 0]);
    });
}

/// Step of a client's port, or of the process.
#[derive(Clone, Copy, Debug)]
enum Event {
    Syn,
    Accept,
    Confirm,
    Refuse,
    ClientReset,
    Remove,
    Take,
    Leave,
}

fn events() -> impl Strategy<Value = Vec<(u16, Event)>> {
    let event = prop_oneof![
        4 => Just(Event::Syn),
        2 => Just(Event::Accept),
        2 => Just(Event::Confirm),
        1 => Just(Event::Refuse),
        1 => Just(Event::ClientReset),
        1 => Just(Event::Remove),
        1 => Just(Event::Take),
        1 => Just(Event::Leave),
    ];
    proptest::collection::vec((0..6u16, event), 0..80)
}

#[test]
fn s41_counts_of_limits_are_those_of_the_table() {
    run_beside_routes(|forwarder, interface| {
        let family = Family::V4;
        let members = [family.member(2), family.member(3)];
        write_limits(
            forwarder,
            family,
            false,
            (Some(9), Some(clients(Some(4), None))),
        );
        serve_limited(forwarder, family, &members, 1);
        let counts = forwarder.limit_counts().unwrap();
        let place = limit_place(family, false);
        let client = family.client(0).ip();
        let run = |events: Vec<(u16, Event)>| {
            let (mut held, mut all) = (Vec::new(), list_connections(forwarder));
            for (port, event) in events {
                let client = family.client(5000 + port);
                let connection = all.iter().find(|one| one.pair.client == client);
                let of_client = Segment::new(client, family.listener(), SYN);
                let of_member = |flags| {
                    let member = connection.map_or(members[0], |one| one.pair.member);
                    Segment::new(member, client, flags)
                };
                let packet = match event {
                    Event::Syn => of_client,
                    Event::Accept => Segment {
                        sequence: 900,
                        answered: 2,
                        ..of_member(SYN | ACK)
                    },
                    Event::Confirm => Segment {
                        sequence: 2,
                        answered: 901,
                        flags: ACK,
                        ..of_client
                    },
                    Event::Refuse => Segment {
                        answered: 2,
                        ..of_member(RST | ACK)
                    },
                    Event::ClientReset => Segment {
                        sequence: 2,
                        flags: RST,
                        ..of_client
                    },
                    Event::Remove => {
                        end(forwarder, client);
                        all = list_connections(forwarder);
                        continue;
                    }
                    Event::Take => {
                        held.extend(counts.take_place(place, Some(client.ip())));
                        continue;
                    }
                    Event::Leave => {
                        held.pop().iter().for_each(|one| counts.leave_place(one));
                        continue;
                    }
                };
                send_frame(forwarder, interface, &packet.write());
                all = list_connections(forwarder);
                let open: Vec<_> = all.iter().filter(|one| one.is_open()).collect();
                let confirmed = open.iter().filter(|one| one.is_confirmed()).count();
                let expected = [open.len(), confirmed, held.len()].map(|count| count as i32);
                let entries = list_entries(forwarder);
                let none = [0; 3];
                prop_assert_eq!(*entries.get(&client.ip()).unwrap_or(&none), expected);
                prop_assert_eq!(*entries.get(&ALL).unwrap_or(&none), expected);
                prop_assert!(held.len() <= 4 && open.len() <= 4);
            }
            for connection in list_connections(forwarder) {
                end(forwarder, connection.pair.client);
            }
            held.iter().for_each(|one| counts.leave_place(one));
            prop_assert!(list_entries(forwarder).values().all(|one| *one == [0; 3]));
            Ok(())
        };
        // Each step looks at all of the table.
        let config = ProptestConfig {
            cases: 24,
            ..ProptestConfig::default()
        };
        TestRunner::new(config).run(&events(), run).unwrap();
        forwarder.sweep_limited(monotonic_ns(), false).unwrap();
        assert_eq!(list_entries(forwarder).get(&client), None);
    });
}

#[test]
fn s41_the_next_process_finds_the_counts_of_the_kernel() {
    run_beside_routes(|forwarder, interface| {
        let family = Family::V4;
        let member = family.member(2);
        let limits = (Some(3), Some(clients(Some(2), None)));
        write_limits(forwarder, family, false, limits.clone());
        serve_limited(forwarder, family, &[member], 0);
        let counts = forwarder.limit_counts().unwrap();
        let place = limit_place(family, false);
        let begin = |port| begin(forwarder, interface, family.client(port), family.listener());
        assert!(begin(5000));
        let _of_process = counts
            .take_place(place, Some(family.client(1).ip()))
            .unwrap();
        assert!(!begin(5001));
        // The process is gone, and its connections with it.
        forwarder.sweep_limited(monotonic_ns(), true).unwrap();
        write_limits(forwarder, family, false, limits);
        assert_eq!(list_entries(forwarder)[&ALL], [1, 0, 0]);
        assert!(begin(5001));
        assert!(!begin(5002));
        // Clients that have used nothing are forgotten.
        end(forwarder, family.client(5000));
        forwarder.sweep_limited(monotonic_ns(), false).unwrap();
        assert_eq!(list_entries(forwarder).len(), 2);
        end(forwarder, family.client(5001));
        forwarder.sweep_limited(monotonic_ns(), false).unwrap();
        assert_eq!(list_entries(forwarder), HashMap::new());
    });
}

#[test]
fn s41_a_client_without_a_place_is_left_to_the_process() {
    run_beside_routes(|forwarder, interface| {
        let family = Family::V4;
        let limits = (None, Some(clients(Some(9), None)));
        write_limits(forwarder, family, false, limits);
        serve_limited(forwarder, family, &[family.member(2)], 0);
        let begin = |client| begin(forwarder, interface, client, family.listener());
        assert!(begin(family.client(5000)));
        let map = find_map(&forwarder.object, "evk_limited").unwrap();
        for number in 0..map.max_entries() {
            let mut key = [9; KEY];
            key[..4].copy_from_slice(&number.to_ne_bytes());
            let _ = map.update(&key, &[0; 32], MapFlags::NO_EXIST);
        }
        assert!(begin(family.client(5001)));
        assert!(!begin("198.51.100.8:5000".parse().unwrap()));
        // Such entries are nobody's, as those of a rule of before.
        let limits = (None, Some(clients(Some(9), None)));
        write_limits(forwarder, family, false, limits);
        assert!(begin("198.51.100.8:5000".parse().unwrap()));
    });
}
