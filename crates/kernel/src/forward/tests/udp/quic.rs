//! Connection ids of QUIC: members tell ids, and clients come back with another address.

use super::*;

/// Lets the program begin sessions of QUIC at these members.
fn serve_quic(forwarder: &Forwarder, members: &[SocketAddr], has_nat: bool) {
    for (seat, member) in (0..).zip(members) {
        let source = source(Family::of_address(member));
        forwarder.set_nat_address(seat, source).unwrap();
    }
    serve_sessions(forwarder, members, |listener| UdpListener {
        is_quic: true,
        nat: has_nat.then_some(PORTS),
        ..listener
    });
    for (seat, member) in (0..).zip(members) {
        let terms = Terms {
            owner: 1,
            address: *member,
            base: 65_536,
            others: 0,
            room: 10_000,
            must_leave: false,
            name_hash: 0,
            weight: 0,
        };
        forwarder.set_terms(seat, &terms).unwrap();
    }
}

/// Packet with a long header, which has the ids of the receiver and the sender.
fn write_long(version: u32, destination: &[u8], source: &[u8]) -> Vec<u8> {
    let mut packet = vec![0xc3];
    packet.extend(version.to_be_bytes());
    for id in [destination, source] {
        packet.push(id.len() as u8);
        packet.extend(id);
    }
    packet.extend([0x5a; 24]);
    fill_word(packet)
}

/// Packet with a short header, which has the id of the receiver.
fn write_short(destination: &[u8]) -> Vec<u8> {
    let packet = [&[0x41], destination, &[0xa5; 24]].concat();
    fill_word(packet)
}

/// Checksums of the tests need an even number of bytes.
fn fill_word(mut packet: Vec<u8>) -> Vec<u8> {
    packet.resize(packet.len().next_multiple_of(2), 0);
    packet
}

/// Id with a number, as members choose ids at random.
fn make_id(number: u64) -> [u8; 8] {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()
}

/// Clients of a test, whose member is asked in turn.
struct Clients<'a> {
    forwarder: &'a Forwarder,
    interface: u32,
    family: Family,
}

impl Clients<'_> {
    fn write(&self, port: u16, data: Vec<u8>) -> Datagram {
        let mut datagram = Datagram::new(self.family.client(port), self.family.listener());
        datagram.data = data;
        datagram
    }

    /// Sends a datagram of a client; returns the datagram that the member gets.
    fn send(&self, port: u16, data: Vec<u8>) -> Datagram {
        let datagram = self.write(port, data);
        let sent = pass(self.forwarder, self.interface, &datagram);
        assert_eq!(sent.data, datagram.data);
        sent
    }

    /// Sends the member's answer to a datagram; returns the port of the client that gets the answer.
    fn answer(&self, sent: &Datagram, data: &[u8]) -> u16 {
        let back = pass(self.forwarder, self.interface, &sent.reply(data));
        assert_eq!((back.from, &back.data[..]), (self.family.listener(), data));
        assert_eq!(back.to.ip(), self.family.client(1).ip());
        back.to.port()
    }

    /// Begins a connection whose member chooses an id. Returns the client's datagram as the member gets it.
    fn connect(&self, port: u16, id: &[u8]) -> Datagram {
        let chosen_by_client = make_id(u64::from(port) << 32);
        let sent = self.send(port, write_long(1, &chosen_by_client, b"client"));
        assert_eq!(self.answer(&sent, &write_long(1, b"client", id)), port);
        sent
    }

    /// Address of the member that a packet with the id goes to, from a client's port.
    fn find_member(&self, port: u16, id: &[u8]) -> SocketAddr {
        self.send(port, write_short(id)).to
    }
}

fn count_ids(forwarder: &Forwarder) -> usize {
    let map = find_map(&forwarder.object, "evk_quic_ids").unwrap();
    map.keys().count()
}

/// Numbers of ids by length, as the program counts them.
fn read_lengths(forwarder: &Forwarder) -> Vec<(usize, u32)> {
    let map = find_map(&forwarder.object, "evk_quic_lengths").unwrap();
    let value = map.lookup(&0u32.to_ne_bytes(), MapFlags::ANY).unwrap();
    let value = value.unwrap();
    let counts = value
        .as_chunks::<4>()
        .0
        .iter()
        .map(|bytes| u32::from_ne_bytes(*bytes));
    counts.enumerate().filter(|(_, count)| *count > 0).collect()
}

fn remove_session_of(forwarder: &Forwarder, port: u16) {
    let sessions = list_sessions(forwarder);
    let of_port = |one: &&UdpSession| one.of.client.port() == port;
    let session = sessions.iter().find(of_port).unwrap();
    assert!(forwarder.remove_udp_session(session, UdpEnd::Idle).unwrap());
}

/// Checks that all ids go with their sessions.
fn remove_all_with_ids(forwarder: &Forwarder) {
    remove_all(forwarder);
    assert_eq!(forwarder.sweep_connection_ids().unwrap(), 0);
    assert_eq!((count_ids(forwarder), read_lengths(forwarder)), (0, vec![]));
}

fn run_with_clients(has_nat: bool, family: Family, test: impl FnOnce(&Clients<'_>) + Send) {
    run_beside_routes(|forwarder, interface| {
        serve_quic(forwarder, &[family.member(9), family.member(10)], has_nat);
        test(&Clients {
            forwarder,
            interface,
            family,
        });
        remove_all_with_ids(forwarder);
    });
}

#[test]
fn s41_clients_of_quic_stay_with_their_member_when_their_address_changes() {
    for (has_nat, family) in [
        (false, Family::V4),
        (true, Family::V4),
        (false, Family::V6),
        (true, Family::V6),
    ] {
        run_with_clients(has_nat, family, |clients| {
            let mut members = BTreeSet::new();
            for port in [100, 200] {
                let id = make_id(port.into());
                let first = clients.connect(port, &id);
                members.insert(first.to);
                let same = clients.send(port, write_short(&id));
                assert_eq!((same.from, same.to), (first.from, first.to));
                let moved = clients.send(port + 1, write_short(&id));
                assert_eq!(moved.to, first.to);
                // The member sees that the address has changed, and answers there.
                assert_ne!(moved.from, first.from);
                let answer = write_short(b"client");
                assert_eq!(clients.answer(&moved, &answer), port + 1);
                // Answers under way still reach the old address.
                assert_eq!(clients.answer(&first, &answer), port);
            }
            assert_eq!(members.len(), 2, "turns go to both members");
            assert_eq!(read_outcome(clients.forwarder, "by_connection_id"), 2);
            assert_eq!(read_lengths(clients.forwarder), [(8, 2)]);
            let in_flight = [0, 1].map(|seat| clients.forwarder.read_counts(seat).unwrap());
            assert_eq!(in_flight.map(|counts| counts.in_flight), [2, 2]);
        });
    }
}

#[test]
fn s41_a_client_may_move_again_after_its_first_session_is_over() {
    run_with_clients(true, Family::V4, |clients| {
        let forwarder = clients.forwarder;
        let id = make_id(1);
        let member = clients.connect(100, &id).to;
        assert_eq!(clients.find_member(101, &id), member);
        remove_session_of(forwarder, 100);
        // The second session has used the id, and keeps the id.
        assert_eq!(forwarder.sweep_connection_ids().unwrap(), 1);
        assert_eq!(clients.find_member(102, &id), member);
        remove_session_of(forwarder, 101);
        assert_eq!(forwarder.sweep_connection_ids().unwrap(), 1);
        // And back at an old address, where a session begins.
        assert_eq!(clients.find_member(100, &id), member);
        assert_eq!(read_outcome(forwarder, "by_connection_id"), 3);
        assert_eq!(read_lengths(forwarder), [(8, 1)]);
        // Nobody has used the id since.
        remove_all(forwarder);
        assert_eq!(forwarder.sweep_connection_ids().unwrap(), 0);
        clients.find_member(103, &id);
        assert_eq!(read_outcome(forwarder, "by_connection_id"), 3);
    });
}

#[test]
fn s41_nobody_takes_the_connection_id_of_an_open_session() {
    run_with_clients(false, Family::V4, |clients| {
        let forwarder = clients.forwarder;
        let id = make_id(1);
        let first = clients.connect(100, &id);
        // The other member says the same id to its client.
        let second = clients.connect(200, &id);
        assert_ne!(first.to, second.to);
        assert_eq!(clients.find_member(101, &id), first.to);
        assert_eq!(forwarder.sweep_connection_ids().unwrap(), 1);
        // Not after the sweep, either.
        assert_eq!(clients.find_member(102, &id), first.to);
        // The client of the other member is told apart by its address.
        remove_all(forwarder);
        forwarder.sweep_connection_ids().unwrap();
        let (again, other) = (clients.connect(200, &make_id(2)), clients.connect(100, &id));
        assert_ne!(again.to, other.to);
        // Before the balancer looks, an id without a session is free, too.
        remove_session_of(forwarder, 100);
        let answer = write_long(1, b"client", &id);
        assert_eq!(clients.answer(&again, &answer), 200);
        assert_eq!(clients.find_member(103, &id), again.to);
        assert_eq!(read_lengths(forwarder), [(8, 2)]);
    });
}

#[test]
fn s41_an_address_that_another_client_had_is_told_by_the_connection_id() {
    for has_nat in [false, true] {
        run_with_clients(has_nat, Family::V6, |clients| {
            let (a, b) = (make_id(1), make_id(2));
            let of_a = clients.connect(100, &a).to;
            let of_b = clients.connect(200, &b).to;
            assert_ne!(of_a, of_b);
            assert_eq!(clients.find_member(200, &b), of_b);
            // The first client now has the address of the second.
            let moved = clients.send(200, write_short(&a));
            assert_eq!(moved.to, of_a);
            assert_eq!(clients.answer(&moved, &write_short(b"client")), 200);
            // And one of the same member, whose id stays with this session.
            let c = make_id(3);
            let third = clients.connect(300, &c).to;
            let port = if third == of_a { 200 } else { 201 };
            assert_eq!(clients.find_member(port, &c), third);
            remove_session_of(clients.forwarder, 300);
            clients.forwarder.sweep_connection_ids().unwrap();
            assert_eq!(clients.find_member(301, &c), third);
        });
    }
}

#[test]
fn s41_clients_leave_members_of_connection_ids_that_are_out_of_service() {
    run_with_clients(false, Family::V4, |clients| {
        let id = make_id(1);
        let first = clients.connect(100, &id).to;
        let seat = u32::from(first != clients.family.member(9));
        let terms = |must_leave| Terms {
            owner: 1,
            address: first,
            base: 65_536,
            others: 0,
            room: 0,
            must_leave,
            name_hash: 0,
            weight: 0,
        };
        // A member that drains keeps its clients.
        clients.forwarder.set_terms(seat, &terms(false)).unwrap();
        assert_eq!(clients.find_member(101, &id), first);
        clients.forwarder.set_terms(seat, &terms(true)).unwrap();
        assert_ne!(clients.find_member(102, &id), first);
        assert_ne!(clients.find_member(101, &id), first);
    });
}

#[test]
fn s41_connection_ids_count_for_rules_of_quic_and_for_one_address() {
    run_beside_routes(|forwarder, interface| {
        let family = Family::V4;
        let clients = Clients {
            forwarder,
            interface,
            family,
        };
        serve_sessions(forwarder, &[family.member(9)], |listener| listener);
        clients.connect(100, &make_id(1));
        assert_eq!(count_ids(forwarder), 0);
        clients.send(101, write_short(&make_id(1)));
        assert_eq!(read_outcome(forwarder, "by_connection_id"), 0);
        remove_all(forwarder);
        // Another listening address of the same group: a client of QUIC does not change the server's address.
        let other: SocketAddr = "192.0.2.1:81".parse().unwrap();
        let listeners = [family.listener(), other].map(|address| UdpListener {
            address,
            is_quic: true,
            ..udp_listener(family)
        });
        forwarder.set_udp_listeners(&listeners).unwrap();
        clients.connect(100, &make_id(1));
        let mut there = clients.write(101, write_short(&make_id(1)));
        there.to = other;
        pass(forwarder, interface, &there);
        assert_eq!(read_outcome(forwarder, "by_connection_id"), 0);
        clients.send(102, write_short(&make_id(1)));
        assert_eq!(read_outcome(forwarder, "by_connection_id"), 1);
        remove_all_with_ids(forwarder);
    });
}

#[test]
fn s41_connection_ids_of_all_lengths_are_found_and_others_are_not_entered() {
    run_with_clients(false, Family::V4, |clients| {
        let forwarder = clients.forwarder;
        let mut of_length = Vec::new();
        for length in 0..=30u8 {
            let id = vec![length.wrapping_mul(37) | 1; length.into()];
            let sent = clients.connect(1000 + u16::from(length), &id);
            if (4..=20).contains(&length) {
                of_length.push((id, sent.to));
            }
        }
        assert_eq!(count_ids(forwarder), 17);
        let lengths: Vec<_> = (4..=20).map(|length| (length, 1)).collect();
        assert_eq!(read_lengths(forwarder), lengths);
        for (port, (id, member)) in (2000..).zip(&of_length) {
            assert_eq!(clients.find_member(port, id), *member, "{id:?}");
            // In a long header, whose length counts.
            let long = write_long(1, id, b"");
            assert_eq!(clients.send(port + 100, long).to, *member);
        }
        assert_eq!(read_outcome(forwarder, "by_connection_id"), 34);
        let longer = [&of_length[3].0[..], &[1]].concat();
        clients.send(3000, write_long(1, &longer, b""));
        assert_eq!(read_outcome(forwarder, "by_connection_id"), 34);
        // The longest id that matches has the client.
        let base = &of_length[4].0;
        let long = [base, &[9; 4][..]].concat();
        let other = (3001..3010).find_map(|port| {
            let sent = clients.send(port, write_long(1, &make_id(port.into()), b""));
            (sent.to != of_length[4].1).then_some(sent)
        });
        let other = other.unwrap();
        clients.answer(&other, &write_long(1, b"", &long));
        assert_eq!(clients.find_member(3010, &long), other.to);
        assert_eq!(clients.find_member(3011, base), of_length[4].1);
    });
}

#[test]
fn s41_hostile_packets_of_quic_are_forwarded_and_enter_a_bounded_number_of_ids() {
    run_with_clients(false, Family::V4, |clients| {
        let forwarder = clients.forwarder;
        let sent = clients.connect(100, &make_id(1));
        // Packets that are cut off, or say too much; and Version Negotiation.
        let whole = write_long(1, b"client", &make_id(2));
        for length in (0..21).step_by(2) {
            clients.answer(&sent, &whole[..length]);
            clients.send(101, whole[..length].to_vec());
        }
        for at in [5, 12] {
            let mut wrong = whole.clone();
            wrong[at] = 255;
            clients.answer(&sent, &wrong);
            clients.send(101, wrong);
        }
        clients.answer(&sent, &write_long(0, b"client", &make_id(3)));
        clients.answer(&sent, &write_short(&make_id(4)));
        assert_eq!(count_ids(forwarder), 1);
        for number in 10..40 {
            let answer = write_long(1, b"client", &make_id(number));
            clients.answer(&sent, &answer);
        }
        assert_eq!(
            (
                count_ids(forwarder),
                forwarder.sweep_connection_ids().unwrap()
            ),
            (8, 8)
        );
        let in_flight = [0, 1].map(|seat| forwarder.read_counts(seat).unwrap().in_flight);
        assert_eq!(in_flight.iter().sum::<i64>(), 2);
        // Anything at all.
        let mut runner = TestRunner::default();
        let bytes = proptest::collection::vec(any::<u16>(), 0..40);
        let first = prop_oneof![any::<u8>(), Just(0xc0)];
        runner
            .run(&(bytes, first, 200..300u16), |(words, first, port)| {
                let mut data: Vec<u8> = words.into_iter().flat_map(u16::to_be_bytes).collect();
                if let Some(byte) = data.first_mut() {
                    *byte = first;
                }
                let sent = clients.send(port, data.clone());
                prop_assert_eq!(clients.answer(&sent, &data), port);
                Ok(())
            })
            .unwrap();
        let sessions = list_sessions(forwarder).len();
        assert!(count_ids(forwarder) <= 8 * sessions);
    });
}

#[test]
fn s41_without_room_for_connection_ids_sessions_go_by_the_address() {
    run_with_clients(false, Family::V4, |clients| {
        let forwarder = clients.forwarder;
        let map = find_map(&forwarder.object, "evk_quic_ids").unwrap();
        let mut rooms = 0u32;
        loop {
            let mut key = [0xee; 24];
            key[..4].copy_from_slice(&rooms.to_ne_bytes());
            if map.update(&key, &[0; 56], MapFlags::NO_EXIST).is_err() {
                break;
            }
            rooms += 1;
        }
        assert!(
            rooms >= forwarder.read_udp_capacity().unwrap() / 2,
            "{rooms}"
        );
        let first = clients.connect(100, &make_id(1));
        assert_eq!(read_outcome(forwarder, "lost_connection_id"), 1);
        let same = clients.send(100, write_short(&make_id(1)));
        assert_eq!((same.from, same.to), (first.from, first.to));
        clients.send(101, write_short(&make_id(1)));
        assert_eq!(read_outcome(forwarder, "by_connection_id"), 0);
        // Ids of nobody go, and there is room.
        assert_eq!(forwarder.sweep_connection_ids().unwrap(), 0);
        let lengths = find_map(&forwarder.object, "evk_quic_lengths").unwrap();
        let none = [0; 96];
        lengths
            .update(&0u32.to_ne_bytes(), &none, MapFlags::ANY)
            .unwrap();
        clients.answer(&first, &write_long(1, b"client", &make_id(1)));
        assert_eq!(clients.find_member(102, &make_id(1)), first.to);
    });
}

/// Tells the program an id of the process at the listening address.
fn share(clients: &Clients<'_>, id: &[u8], member: Option<SocketAddr>) -> bool {
    let listener = clients.family.listener();
    let shared = clients.forwarder.share_connection_id(listener, id, member);
    shared.unwrap()
}

fn count_shared(forwarder: &Forwarder) -> usize {
    let map = find_map(&forwarder.object, "evk_quic_shared").unwrap();
    map.keys().count()
}

#[test]
fn s41_clients_with_connection_ids_of_the_process_go_to_their_member() {
    for family in [Family::V4, Family::V6] {
        run_with_clients(false, family, |clients| {
            let forwarder = clients.forwarder;
            let members = [family.member(9), family.member(10)];
            let ids = [&make_id(1)[..], &make_id(2)[..5]];
            for (id, member) in ids.iter().zip(members) {
                assert!(share(clients, id, Some(member)));
            }
            let mut port = 100;
            let mut find = |id: &[u8]| {
                port += 1;
                clients.find_member(port, id)
            };
            for _ in 0..3 {
                for (id, member) in ids.iter().zip(members) {
                    assert_eq!(find(id), member);
                }
            }
            assert_eq!(read_outcome(forwarder, "by_connection_id"), 6);
            // A session of the kernel keeps the id that no session of the process has any more.
            assert_eq!(forwarder.sweep_connection_ids().unwrap(), 2);
            for id in ids {
                assert!(share(clients, id, None));
                assert!(share(clients, id, None), "there is none");
            }
            assert_eq!(count_shared(forwarder), 0);
            for (id, member) in ids.iter().zip(members) {
                assert_eq!(find(id), member);
            }
            assert_eq!(read_outcome(forwarder, "by_connection_id"), 8);
            // No id of another address, or of a member that is in no group.
            let id = make_id(3);
            let elsewhere: SocketAddr = "192.0.2.1:81".parse().unwrap();
            let shared = forwarder.share_connection_id(elsewhere, &id, Some(members[0]));
            assert!(shared.unwrap());
            find(&id);
            share(clients, &id, Some(family.member(11)));
            find(&id);
            assert_eq!(read_outcome(forwarder, "by_connection_id"), 8);
            // The member of an id may change.
            share(clients, &id, Some(members[1]));
            assert_eq!(find(&id), members[1]);
            assert_eq!(read_outcome(forwarder, "by_connection_id"), 9);
            for length in [0, 3, 21, 255] {
                assert!(!share(clients, &vec![7; length], Some(members[0])));
            }
        });
    }
}

#[test]
fn s41_no_member_takes_a_connection_id_of_the_process() {
    run_with_clients(false, Family::V4, |clients| {
        let forwarder = clients.forwarder;
        let (first, second) = (clients.family.member(9), clients.family.member(10));
        let id = make_id(1);
        share(clients, &id, Some(first));
        // Members of other clients say the id, too.
        let sessions = [100, 200].map(|port| clients.connect(port, &make_id(port.into())));
        let say = |member| {
            let session = sessions.iter().find(|sent| sent.to == member).unwrap();
            clients.answer(session, &write_long(1, b"client", &id));
            count_ids(forwarder)
        };
        assert_eq!(say(second), 2, "of the other member");
        assert_eq!(clients.find_member(101, &id), first);
        assert_eq!(say(first), 3);
        // An id that the kernel has learnt counts first.
        share(clients, &id, Some(second));
        assert_eq!(clients.find_member(102, &id), first);
        // Clients leave a member that is out of service.
        let other = make_id(2);
        share(clients, &other, Some(second));
        assert_eq!(clients.find_member(103, &other), second);
        let terms = Terms {
            owner: 1,
            address: second,
            base: 65_536,
            others: 0,
            room: 0,
            must_leave: true,
            name_hash: 0,
            weight: 0,
        };
        forwarder.set_terms(1, &terms).unwrap();
        assert_eq!(clients.find_member(104, &other), first);
    });
}

#[test]
fn s41_connection_ids_of_the_process_take_no_room_of_the_kernel() {
    run_with_clients(false, Family::V4, |clients| {
        let forwarder = clients.forwarder;
        let member = clients.family.member(10);
        let id = |number: u32| (0x1000_0000 + number).to_be_bytes();
        let is_refused = |number: &u32| !share(clients, &id(*number), Some(member));
        let full = (0..u32::MAX).find(is_refused).unwrap();
        assert!(full >= forwarder.read_udp_capacity().unwrap() / 2, "{full}");
        assert!(read_outcome(forwarder, "lost_connection_id") >= 1);
        // None was forgotten.
        for number in [0, full / 2, full - 1] {
            let port = 1000 + (number % 20_000) as u16;
            assert_eq!(clients.find_member(port, &id(number)), member);
        }
        let own = make_id(1);
        let first = clients.connect(100, &own).to;
        assert_eq!(clients.find_member(101, &own), first);
    });
}

#[test]
fn s41_the_process_finds_connection_ids_of_the_kernel() {
    for family in [Family::V4, Family::V6] {
        run_with_clients(true, family, |clients| {
            let forwarder = clients.forwarder;
            let learnt = forwarder.learnt_ids().unwrap();
            let (group, listener) = (udp_listener(family).group, family.listener());
            let find = |id: &[u8]| learnt.find_member(group, listener, id);
            let (id, long) = (make_id(1), [9; 20]);
            assert_eq!((find(&id), learnt.list_lengths()), (None, vec![]));
            let first = clients.connect(100, &id).to;
            let second = clients.connect(200, &long).to;
            assert_ne!(first, second);
            assert_eq!((find(&id), find(&long)), (Some(first), Some(second)));
            assert_eq!(learnt.list_lengths(), [20, 8]);
            for none in [&id[..7], &[], &[1; 21], &[1; 300]] {
                assert_eq!(find(none), None);
            }
            assert_eq!(learnt.find_member(group + 1, listener, &id), None);
            assert_eq!(learnt.find_member(u32::MAX, listener, &id), None);
            let elsewhere = SocketAddr::new(listener.ip(), 81);
            assert_eq!(learnt.find_member(group, elsewhere, &id), None);
            // The session is over, before the balancer has looked and afterwards.
            remove_session_of(forwarder, 100);
            assert_eq!((find(&id), find(&long)), (None, Some(second)));
            forwarder.sweep_connection_ids().unwrap();
            assert_eq!(learnt.list_lengths(), [20]);
        });
    }
}

impl Clients<'_> {
    /// Sends a datagram to a member that answers clients itself. Returns the member.
    fn send_directly(&self, port: u16, data: Vec<u8>) -> SocketAddr {
        let sent = self.send(port, data);
        let ends = (self.family.client(port), self.family.listener());
        assert_eq!((sent.from, sent.to), ends);
        let all = list_sessions(self.forwarder);
        let is_it = |one: &&UdpSession| one.of.client.port() == port && !one.leaves();
        all.iter().find(is_it).unwrap().member
    }

    /// Begins a connection whose member chooses an id, as the client's third datagram shows. Returns the member.
    fn connect_directly(&self, port: u16, id: &[u8]) -> SocketAddr {
        let chosen_by_client = make_id(u64::from(port) << 32);
        let members = [&chosen_by_client[..], &chosen_by_client, id]
            .map(|id| self.send_directly(port, write_long(1, id, b"client")));
        assert_eq!(members, [members[0]; 3]);
        members[0]
    }
}

/// Runs a test of clients before members that answer clients themselves.
fn run_with_direct_clients(test: impl Fn(&Clients<'_>) + Sync) {
    for family in [Family::V4, Family::V6] {
        run_with_clients(false, family, |clients| {
            let listeners = [Family::V4, Family::V6].map(|family| UdpListener {
                is_direct: true,
                is_quic: true,
                answer: None,
                ..udp_listener(family)
            });
            clients.forwarder.set_udp_listeners(&listeners).unwrap();
            test(clients);
        });
    }
}

#[test]
fn s41_clients_tell_the_connection_ids_of_direct_members() {
    run_with_direct_clients(|clients| {
        let mut members = BTreeSet::new();
        for port in [100, 200] {
            let id = make_id(port.into());
            let member = clients.connect_directly(port, &id);
            members.insert(member);
            assert_eq!(clients.send_directly(port, write_short(&id)), member);
            for port in [port + 1, port + 2] {
                assert_eq!(clients.send_directly(port, write_short(&id)), member);
            }
        }
        assert_eq!(members.len(), 2, "turns go to both members");
        assert_eq!(read_outcome(clients.forwarder, "by_connection_id"), 4);
        assert_eq!(read_lengths(clients.forwarder), [(8, 2)]);
        // The first session is over, and another one of the client has the id.
        remove_session_of(clients.forwarder, 100);
        assert_eq!(clients.forwarder.sweep_connection_ids().unwrap(), 2);
        let id = make_id(100);
        let member = clients.send_directly(101, write_short(&id));
        assert_eq!(clients.send_directly(103, write_short(&id)), member);
    });
}

#[test]
fn s41_clients_of_direct_members_enter_few_ids_and_take_none_of_others() {
    run_with_direct_clients(|clients| {
        let forwarder = clients.forwarder;
        clients.send_directly(100, write_long(1, &make_id(1), b"client"));
        // Not those that may be guessed, nor one of no version, nor one whose length the header does not say.
        for data in [
            write_long(1, &[1; 7], b"client"),
            write_long(1, b"", b"client"),
            write_long(0, &make_id(2), b"client"),
            write_short(&make_id(3)),
        ] {
            clients.send_directly(100, data);
            assert_eq!(count_ids(forwarder), 0);
        }
        for number in 4..9 {
            clients.send_directly(100, write_long(1, &make_id(number), b"client"));
        }
        assert_eq!(read_lengths(forwarder), [(8, 2)]);
        let owner = clients.send_directly(100, write_short(&make_id(4)));
        // A client that says the id of another one goes to the other one's member, and the id stays.
        let stranger = (200..204).find(|port| {
            let id = make_id(u64::from(*port) << 32);
            clients.send_directly(*port, write_long(1, &id, b"client")) != owner
        });
        let stranger = stranger.unwrap();
        let told = write_long(1, &make_id(4), b"client");
        assert_eq!(clients.send_directly(stranger, told), owner);
        assert_eq!(count_ids(forwarder), 2);
        assert_eq!(clients.send_directly(300, write_short(&make_id(4))), owner);
    });
}
