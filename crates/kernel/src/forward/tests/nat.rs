//! Full NAT, with packets that tests make.

use super::packets::*;
use super::*;

const PORTS: NatPorts = NatPorts {
    first: 61_000,
    count: 4,
};

/// Options of a SYN of Linux: largest segment, selective acknowledgements, timestamps, window scale.
pub(super) fn write_options(ours: u32, theirs: u32) -> Vec<u8> {
    let mut options = vec![2, 4, 5, 180, 4, 2, 8, 10];
    options.extend(ours.to_be_bytes());
    options.extend(theirs.to_be_bytes());
    options.extend([1, 3, 3, 7]);
    options
}

/// Returns both timestamps of options.
pub(super) fn read_timestamps(options: &[u8]) -> (u32, u32) {
    let at = options.windows(2).position(|two| two == [8, 10]).unwrap() + 2;
    let number = |at: usize| u32::from_be_bytes(*options[at..].first_chunk().unwrap());
    (number(at), number(at + 4))
}

fn source(family: Family) -> IpAddr {
    family.address("10.77.0.1:0", "[fd77::1]:0").ip()
}

/// Lets the program begin connections with full NAT.
pub(super) fn serve_with_nat(forwarder: &Forwarder, members: &[SocketAddr], retries: u32) {
    serve_members(forwarder, members, retries);
    for (seat, member) in (0..).zip(members) {
        let family = Family::of_address(member);
        forwarder.set_nat_address(seat, source(family)).unwrap();
    }
    let listeners = [Family::V4, Family::V6].map(|family| Listener {
        nat: Some(PORTS),
        ..listener(family, 0, retries)
    });
    forwarder.set_listeners(&listeners).unwrap();
}

fn count_pairs(forwarder: &Forwarder) -> usize {
    let map = find_map(&forwarder.object, "evk_nat_pairs").unwrap();
    map.keys().count()
}

fn write_syn(family: Family, port: u16) -> Segment {
    Segment {
        options: write_options(1_000, 0),
        ..Segment::new(family.client(port), family.listener(), SYN)
    }
}

/// Answer of the member to a packet that it has got.
fn answer(sent: &Segment, flags: u8, options: Vec<u8>) -> Segment {
    Segment {
        sequence: 7_000,
        answered: sent.sequence + 1,
        options,
        ..Segment::new(sent.to, sent.from, flags)
    }
}

#[test]
fn s41_members_see_an_address_of_the_balancer() {
    run_beside_routes(|forwarder, interface| {
        for family in [Family::V4, Family::V6] {
            serve_with_nat(forwarder, &[family.member(9)], 0);
            let syn = write_syn(family, 4_000);
            let sent = send(forwarder, interface, &syn);
            assert_eq!(sent.from.ip(), source(family));
            assert!((61_000..61_004).contains(&sent.from.port()), "{sent:?}");
            assert_eq!(sent.to, family.member(9));
            let (shifted, zero) = read_timestamps(&sent.options);
            assert_eq!(zero, 0);
            // The member answers with the timestamp that it has got; the client sees its own again.
            let reply = answer(&sent, SYN | ACK, write_options(55, shifted));
            let back = send(forwarder, interface, &reply);
            assert_eq!((back.from, back.to), (syn.to, syn.from));
            assert_eq!(read_timestamps(&back.options), (55, 1_000));
            // Data, with timestamps at an odd byte.
            let mut options = vec![1, 8, 10];
            options.extend([1_007u32, 55].map(u32::to_be_bytes).concat());
            options.push(0);
            let data = Segment {
                sequence: 2,
                answered: 7_001,
                options,
                data: b"odd or even!".to_vec(),
                ..Segment::new(syn.from, syn.to, ACK)
            };
            let there = send(forwarder, interface, &data);
            assert_eq!((there.from, there.to), (sent.from, sent.to));
            assert_eq!(there.data, data.data);
            assert_eq!(
                read_timestamps(&there.options),
                (shifted.wrapping_add(7), 55)
            );
            // Without timestamps nothing but the addresses changes.
            let plain = Segment {
                options: vec![1, 1, 1, 1],
                ..data.clone()
            };
            let there = send(forwarder, interface, &plain);
            let expected = Segment {
                from: sent.from,
                to: sent.to,
                ..plain
            };
            assert_eq!(there, expected);
            // A stranger's packet to the same port is not for the client.
            let strange = Segment {
                from: family.member(8),
                ..reply
            };
            assert_eq!(try_send(forwarder, interface, &strange), None);
            for connection in list_connections(forwarder) {
                assert!(connection.has_nat);
                assert_eq!(connection.pair.client, syn.from);
                assert!(forwarder.remove_connection(&connection).unwrap());
            }
            assert_eq!(count_pairs(forwarder), 0);
        }
    });
}

#[test]
fn s41_without_a_free_port_the_proxy_serves() {
    run_beside_routes(|forwarder, interface| {
        let family = Family::V4;
        serve_with_nat(forwarder, &[family.member(9)], 0);
        let mut ports = BTreeSet::new();
        let mut first = None;
        for port in 1..=4 {
            let sent = send(forwarder, interface, &write_syn(family, port));
            ports.insert(sent.from.port());
            first.get_or_insert(sent.from.port());
        }
        assert_eq!(ports, (61_000..61_004).collect());
        let fifth = write_syn(family, 5);
        assert_eq!(try_send(forwarder, interface, &fifth), None);
        assert_eq!(read_outcome(forwarder, "proxied_ports"), 1);
        assert_eq!(
            (list_connections(forwarder).len(), count_pairs(forwarder)),
            (4, 4)
        );
        // A port is free again when its connection is removed.
        let connections = list_connections(forwarder);
        let oldest = connections.iter().find(|one| one.pair.client.port() == 1);
        assert!(forwarder.remove_connection(oldest.unwrap()).unwrap());
        let sent = send(forwarder, interface, &fifth);
        assert_eq!(Some(sent.from.port()), first);
        // A client that uses the port of a connection that is over gets another one, and the old one is free.
        let reset = Segment {
            sequence: 2,
            ..Segment::new(fifth.from, fifth.to, RST)
        };
        send(forwarder, interface, &reset);
        send(forwarder, interface, &fifth);
        assert_eq!(
            (list_connections(forwarder).len(), count_pairs(forwarder)),
            (4, 4)
        );
        // Without an address of the balancer, too.
        forwarder
            .set_nat_address(0, Ipv6Addr::UNSPECIFIED.into())
            .unwrap();
        let sixth = write_syn(family, 6);
        assert_eq!(try_send(forwarder, interface, &sixth), None);
        assert_eq!(read_outcome(forwarder, "proxied_route"), 1);
    });
}

#[test]
fn s41_timestamps_of_a_port_that_is_used_again_go_on() {
    run_beside_routes(|forwarder, interface| {
        serve_with_nat(forwarder, &[Family::V4.member(9)], 0);
        let mut last: Option<u32> = None;
        // Clients with clocks that have nothing in common.
        for (port, clock) in [(1, 4_000_000_000), (2, 7), (3, 2_000_000_000), (4, 0)] {
            let syn = Segment {
                options: write_options(clock, 0),
                ..write_syn(Family::V4, port)
            };
            let sent = send(forwarder, interface, &syn);
            let (shifted, _) = read_timestamps(&sent.options);
            if let Some(last) = last {
                let behind = shifted.wrapping_sub(last);
                assert!(behind < 1 << 20, "{last} {shifted}");
            }
            last = Some(shifted);
        }
    });
}

/// Systems write the options of first packets in these ways, and others are allowed.
#[test]
fn s41_timestamps_of_first_packets_are_shifted_wherever_they_are() {
    run_beside_routes(|forwarder, interface| {
        let timestamps = [8u8, 10, 0, 0, 3, 232, 0, 0, 0, 0];
        let layouts: [(&[u8], &[u8]); 8] = [
            (&[2, 4, 5, 180, 4, 2], &[1, 3, 3, 7]),
            (&[2, 4, 5, 180, 4, 2], &[]),
            (&[2, 4, 5, 180, 1, 1], &[]),
            (&[1, 1], &[2, 4, 5, 180]),
            (&[4, 2], &[2, 4, 5, 180]),
            (&[1, 3, 3, 7, 1, 1], &[4, 2, 1, 1]),
            (&[2, 4, 5, 180, 1, 3, 3, 8, 1], &[1]),
            // Selective acknowledgements twice, and no timestamps.
            (&[2, 4, 5, 180, 4, 2, 4, 2, 0, 0, 0, 0, 0, 0, 0, 0], &[]),
        ];
        let mut port = 4_000;
        for family in [Family::V4, Family::V6] {
            for (before, behind) in layouts {
                serve_with_nat(forwarder, &[family.member(9)], 0);
                let has_any = before.len() < 16;
                let between: &[u8] = if has_any { &timestamps } else { &[] };
                let options = [before, between, behind].concat();
                port += 1;
                let syn = Segment {
                    options: options.clone(),
                    ..write_syn(family, port)
                };
                // Checksums and lengths are compared when a packet is read.
                let sent = send(forwarder, interface, &syn);
                assert_eq!(sent.options.len(), options.len());
                let reply = answer(&sent, SYN | ACK, sent.options.clone());
                let back = send(forwarder, interface, &reply);
                assert_eq!((back.from, back.to), (syn.to, syn.from));
                if has_any {
                    let (shifted, zero) = read_timestamps(&sent.options);
                    assert!(shifted != 1_000 && zero == 0, "{options:?}");
                    // A timestamp of nobody is left as it is.
                    assert_eq!(back.options, sent.options);
                    let echo = answer(&sent, ACK, write_options(9, shifted));
                    let back = send(forwarder, interface, &echo);
                    assert_eq!(read_timestamps(&back.options), (9, 1_000));
                } else {
                    assert_eq!(sent.options, options);
                }
                for connection in list_connections(forwarder) {
                    assert!(forwarder.remove_connection(&connection).unwrap());
                }
            }
        }
    });
}

#[test]
fn s41_a_retry_takes_a_port_towards_the_other_member() {
    run_beside_routes(|forwarder, interface| {
        for family in [Family::V4, Family::V6] {
            let members = [family.member(9), family.member(10)];
            serve_with_nat(forwarder, &members, 1);
            let syn = write_syn(family, 4_000);
            let sent = send(forwarder, interface, &syn);
            let refusal = Segment {
                sequence: 0,
                window: 0,
                ..answer(&sent, RST | ACK, Vec::new())
            };
            // The member's refusal becomes the client's SYN for the other one.
            let again = send(forwarder, interface, &refusal);
            assert!(members.contains(&again.to) && again.to != sent.to);
            assert_eq!(again.from.ip(), source(family));
            assert_eq!((again.flags, again.sequence), (SYN, syn.sequence));
            let (shifted, _) = read_timestamps(&again.options);
            assert_eq!(count_pairs(forwarder), 1);
            let reply = answer(&again, SYN | ACK, write_options(9, shifted));
            let back = send(forwarder, interface, &reply);
            assert_eq!((back.from, back.to), (syn.to, syn.from));
            assert_eq!(read_timestamps(&back.options), (9, 1_000));
            for connection in list_connections(forwarder) {
                assert!(forwarder.remove_connection(&connection).unwrap());
            }
            assert_eq!(count_pairs(forwarder), 0);
        }
    });
}

/// Long connections have ports that lie together, as they have begun one after the other.
#[test]
fn s41_ports_are_found_behind_many_in_use() {
    const MANY: NatPorts = NatPorts {
        first: 61_000,
        count: 2_000,
    };
    run_beside_routes(|forwarder, interface| {
        for family in [Family::V4, Family::V6] {
            let member = family.member(9);
            serve_with_nat(forwarder, &[member], 0);
            let listener = Listener {
                nat: Some(MANY),
                ..listener(family, 0, 0)
            };
            forwarder.set_listeners(&[listener]).unwrap();
            let map = find_map(&forwarder.object, "evk_nat_pairs").unwrap();
            let client = layout::write_address(family.client(1));
            for port in MANY.first..MANY.first + MANY.count / 2 {
                let source = SocketAddr::new(source(family), port);
                let pair = [layout::write_address(member), layout::write_address(source)].concat();
                map.update(&pair, &client, MapFlags::ANY).unwrap();
            }
            let cursors = find_map(&forwarder.object, "evk_nat_cursors").unwrap();
            cursors.update(&[0; 4], &[0; 4], MapFlags::ANY).unwrap();
            for port in 4_000..4_004 {
                let sent = send(forwarder, interface, &write_syn(family, port));
                assert!(sent.from.port() >= MANY.first + MANY.count / 2, "{sent:?}");
            }
            assert_eq!(read_outcome(forwarder, "proxied_ports"), 0);
        }
    });
}

/// Reads the entry of a client.
fn find_connection(object: &Object, client: SocketAddr) -> Option<Connection> {
    let key = layout::write_address(client);
    let map = find_map(object, "evk_connections").unwrap();
    let value = map.lookup(&key, MapFlags::ANY).unwrap()?;
    Some(Connection::read(&key, &value))
}

/// Writes the time of a client's SYN, which is 0 while somebody deletes the entry.
fn set_began(object: &Object, client: SocketAddr, began_ns: u64) {
    let key = layout::write_address(client);
    let map = find_map(object, "evk_connections").unwrap();
    let mut value = map.lookup(&key, MapFlags::ANY).unwrap().unwrap();
    value[..8].copy_from_slice(&began_ns.to_ne_bytes());
    map.update(&key, &value, MapFlags::EXIST).unwrap();
}

/// A client's SYN, and the RST that ends the connection.
fn write_ends(family: Family) -> [Segment; 2] {
    let syn = write_syn(family, 5000);
    let reset = Segment {
        sequence: syn.sequence + 1,
        flags: RST,
        options: Vec::new(),
        ..syn.clone()
    };
    [syn, reset]
}

#[test]
fn s41_an_entry_that_another_cpu_deletes_is_left_alone() {
    run_beside_routes(|forwarder, interface| {
        let family = Family::V6;
        serve_with_nat(forwarder, &[family.member(2)], 0);
        let [syn, reset] = write_ends(family);
        send(forwarder, interface, &syn);
        send(forwarder, interface, &reset);
        let connection = find_connection(&forwarder.object, syn.from).unwrap();
        set_began(&forwarder.object, syn.from, 0);
        assert!(!forwarder.remove_connection(&connection).unwrap());
        assert_eq!(try_send(forwarder, interface, &syn), None);
        assert_eq!(read_outcome(forwarder, "proxied_table"), 1);
        assert_eq!(
            (list_connections(forwarder).len(), count_pairs(forwarder)),
            (1, 1)
        );
        set_began(&forwarder.object, syn.from, connection.began_ns);
        send(forwarder, interface, &syn);
        let next = find_connection(&forwarder.object, syn.from).unwrap();
        assert_ne!(next.began_ns, connection.began_ns);
        assert!(forwarder.remove_connection(&next).unwrap());
        assert_eq!(
            (list_connections(forwarder).len(), count_pairs(forwarder)),
            (0, 0)
        );
        assert_eq!(forwarder.read_counts(0).unwrap().in_flight, 0);
    });
}

#[test]
fn s41_removals_beside_packets_of_the_same_client_lose_no_entry_and_no_port() {
    run_beside_routes(|forwarder, interface| {
        let family = Family::V4;
        serve_with_nat(forwarder, &[family.member(2)], 0);
        let [syn, reset] = write_ends(family);
        let frames = [syn.write(), reset.write()];
        let object = &forwarder.object;
        std::thread::scope(|scope| {
            let client = scope.spawn(|| {
                for frame in frames.iter().cycle().take(20_000) {
                    let mut context = [0; 44];
                    context[36..40].copy_from_slice(&interface.to_ne_bytes());
                    let input = ProgramInput {
                        context_in: Some(&mut context),
                        data_in: Some(frame),
                        ..ProgramInput::default()
                    };
                    let program = bpf::find_program_mut(object, "evk_forward").unwrap();
                    program.test_run(input).unwrap();
                }
            });
            while !client.is_finished() {
                if let Some(connection) = find_connection(object, syn.from) {
                    forwarder.remove_connection(&connection).unwrap();
                }
            }
        });
        for connection in list_connections(forwarder) {
            assert!(forwarder.remove_connection(&connection).unwrap());
        }
        assert_eq!(forwarder.read_counts(0).unwrap().in_flight, 0);
        assert_eq!(count_pairs(forwarder), 0);
        assert!(forwarder.read_counts(0).unwrap().picks > 1000);
    });
}
