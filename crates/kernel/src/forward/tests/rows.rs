//! Tunnels to members, and rows of candidates, with packets that tests make.

use super::packets::*;
use super::*;

/// Members of the tests: last bytes of their addresses, with the seats from 0 on.
const MEMBERS: [u8; 4] = [9, 10, 11, 12];

/// Lets the program begin connections through tunnels. Returns the table of the family.
fn serve_tunnels(forwarder: &Forwarder, family: Family, has_rows: bool) -> RowTable {
    let addresses = MEMBERS.map(|last| family.member(last));
    serve_members(forwarder, &addresses, 2);
    let members: Vec<_> = (0..)
        .zip(addresses)
        .map(|(seat, address)| RowMember {
            seat,
            address,
            is_eligible: true,
        })
        .collect();
    for member in &members {
        let source = family.address("10.77.0.1:0", "[fd77::1]:0").ip();
        forwarder.set_nat_address(member.seat, source).unwrap();
    }
    let table = RowTable::fill(&members);
    forwarder.set_rows(0, family, &table).unwrap();
    let listener = Listener {
        is_direct: true,
        has_tunnel: true,
        has_rows,
        ..listener(family, 0, 2)
    };
    forwarder.set_listeners(&[listener]).unwrap();
    table
}

/// Packet in a tunnel.
#[derive(Debug, PartialEq, Eq)]
struct Tunnelled {
    /// Seat of the member that the packet goes to.
    to: u16,
    /// Seats of the others that the packet names.
    others: Vec<u16>,
    /// Port that the tunnel comes from.
    port: u16,
    /// Frame with the packet within.
    inner: Vec<u8>,
}

fn find_seat(family: Family, ip: IpAddr) -> u16 {
    let at = MEMBERS
        .iter()
        .position(|last| family.member(*last).ip() == ip);
    at.unwrap_or_else(|| panic!("no member: {ip}")) as u16
}

/// Takes a packet out of its tunnel, and checks the headers.
fn read_tunnel(family: Family, frame: &[u8]) -> Tunnelled {
    let (from, to, udp) = read_frame(frame);
    assert_eq!(from, family.address("10.77.0.1:0", "[fd77::1]:0").ip());
    let short = |at: usize| u16::from_be_bytes(*udp[at..].first_chunk().unwrap());
    assert_eq!((short(2), usize::from(short(4))), (6080, udp.len()));
    assert_eq!(short(6), 0, "no checksum of UDP");
    let words = usize::from(udp[8]);
    assert_eq!(
        udp[9..12],
        [if family == Family::V4 { 4 } else { 41 }, 0, 0]
    );
    let (private, inner) = udp[12..].split_at(4 * words);
    let mut others = Vec::new();
    if words > 0 {
        assert_eq!((private[0], private[1], private[3]), (1, 0, 0));
        let length = if family == Family::V4 { 4 } else { 16 };
        let ips = private[4..].chunks_exact(length).map(|ip| match *ip {
            [a, b, c, d] => IpAddr::from([a, b, c, d]),
            _ => IpAddr::from(*ip.first_chunk::<16>().unwrap()),
        });
        let count = usize::from(private[2]);
        others.extend(ips.take(count).map(|ip| find_seat(family, ip)));
        assert_eq!(private.len(), 4 + 2 * length);
    }
    Tunnelled {
        to: find_seat(family, to),
        others,
        port: short(0),
        inner: write_frame(inner, &[]),
    }
}

/// Packet of a client, with data.
fn packet(family: Family, port: u16, flags: u8) -> Segment {
    Segment {
        options: vec![1, 1, 1, 0],
        data: if flags == SYN { vec![] } else { vec![b'x'; 40] },
        ..Segment::new(family.client(port), family.listener(), flags)
    }
}

/// Lets the program take a packet, which must be in a tunnel then as it came.
fn pass(forwarder: &Forwarder, interface: u32, packet: &Segment) -> Tunnelled {
    let family = Family::of_address(&packet.from);
    let sent = send_frame(forwarder, interface, &packet.write());
    let tunnelled = read_tunnel(family, &sent.expect("the program takes the packet"));
    assert_eq!(Segment::read(&tunnelled.inner), *packet);
    let lifetime = if family == Family::V4 { 22 } else { 21 };
    assert_eq!(tunnelled.inner[lifetime], 63, "lifetime");
    tunnelled
}

fn run_families(test: impl Fn(&Forwarder, u32, Family) + Sync + Send) {
    run_beside_routes(|forwarder, interface| {
        for family in [Family::V4, Family::V6] {
            test(forwarder, interface, family);
            for connection in list_connections(forwarder) {
                assert!(forwarder.remove_connection(&connection).unwrap());
            }
        }
    });
}

#[test]
fn s41_packets_of_clients_go_to_members_in_tunnels() {
    run_families(|forwarder, interface, family| {
        serve_tunnels(forwarder, family, false);
        let first = pass(forwarder, interface, &packet(family, 5000, SYN));
        assert!(first.others.is_empty());
        assert!(first.port >= 0xc000);
        for flags in [ACK, ACK, FIN | ACK] {
            let next = pass(forwarder, interface, &packet(family, 5000, flags));
            assert_eq!((next.to, next.port), (first.to, first.port));
        }
        // Without rows nobody else begins connections.
        let stray = packet(family, 5001, ACK);
        assert_eq!(try_send(forwarder, interface, &stray), None);
        // A member without a route, or an address of the balancer, is not for tunnels.
        for seat in 0..MEMBERS.len() as u32 {
            let nobody = Ipv6Addr::UNSPECIFIED.into();
            forwarder.set_nat_address(seat, nobody).unwrap();
        }
        let before = read_outcome(forwarder, "proxied_route");
        let refused = packet(family, 5002, SYN);
        assert_eq!(try_send(forwarder, interface, &refused), None);
        assert_eq!(read_outcome(forwarder, "proxied_route"), before + 1);
    });
}

#[test]
fn s41_connections_go_to_one_of_two_and_packets_name_the_whole_row() {
    run_families(|forwarder, interface, family| {
        let table = serve_tunnels(forwarder, family, true);
        let mut rows = BTreeSet::new();
        for port in 5000..5040 {
            // Another balancer would send the packets of the connection to the row in order.
            let stray = pass(forwarder, interface, &packet(family, port, ACK));
            let row = [&[stray.to][..], &stray.others].concat();
            let row = <[u16; ROW_SEATS]>::try_from(row).unwrap();
            assert!(table.rows().contains(&row), "{row:?}");
            rows.insert(row);
            let begun = pass(forwarder, interface, &packet(family, port, SYN));
            assert!(row[..2].contains(&begun.to), "{row:?} {begun:?}");
            let rest: Vec<_> = row.into_iter().filter(|seat| *seat != begun.to).collect();
            assert_eq!(begun.others, rest);
            let next = pass(forwarder, interface, &packet(family, port, ACK));
            assert_eq!((next.to, next.others), (begun.to, rest));
            assert_eq!(next.port, stray.port);
            let connections = list_connections(forwarder);
            assert_eq!(connections.len(), 1, "the other packet has made none");
            assert!(forwarder.remove_connection(&connections[0]).unwrap());
        }
        assert!(rows.len() > 8, "{rows:?}");
    });
}

#[test]
fn s41_the_better_member_of_a_row_gets_the_connection() {
    run_families(|forwarder, interface, family| {
        serve_tunnels(forwarder, family, true);
        let set = |seat: u16, base, room| {
            let terms = Terms {
                owner: 1,
                address: family.member(MEMBERS[usize::from(seat)]),
                base,
                others: 0,
                room,
                must_leave: false,
                name_hash: 0,
                weight: 0,
            };
            forwarder.set_terms(seat.into(), &terms).unwrap();
        };
        for port in 6000..6010 {
            let stray = pass(forwarder, interface, &packet(family, port, ACK));
            let row = [&[stray.to][..], &stray.others].concat();
            let pick = |port: u16| {
                let to = pass(forwarder, interface, &packet(family, port, SYN)).to;
                for connection in list_connections(forwarder) {
                    assert!(forwarder.remove_connection(&connection).unwrap());
                }
                to
            };
            let all = |base: [u32; 3], room: [u32; 3]| {
                for (at, seat) in row.iter().enumerate() {
                    set(*seat, base[at], room[at]);
                }
            };
            all([9000, 100, 1], [9; 3]);
            assert_eq!(pick(port), row[1], "the third is only for the time before");
            all([100, 9000, 1], [9; 3]);
            assert_eq!(pick(port), row[0]);
            all([100, 9000, 1], [0, 9, 9]);
            assert_eq!(pick(port), row[2], "the next one is a choice if one drains");
            all([100, 9000, 1], [0, 9, 0]);
            assert_eq!(pick(port), row[1]);
            all([100, 9000, 1], [0; 3]);
            let before = read_outcome(forwarder, "proxied_full");
            assert_eq!(
                try_send(forwarder, interface, &packet(family, port, SYN)),
                None
            );
            assert_eq!(read_outcome(forwarder, "proxied_full"), before + 1);
            all([65_536; 3], [9; 3]);
        }
    });
}

#[test]
fn s41_members_of_a_row_take_turns() {
    run_families(|forwarder, interface, family| {
        serve_tunnels(forwarder, family, true);
        let group = GroupTerms {
            form: 2,
            growth: 256,
            bound: 0,
            seats: (0..4).collect(),
        };
        forwarder.set_group(0, &group).unwrap();
        let mut counts = [0; 4];
        for port in 7000..7400 {
            let begun = pass(forwarder, interface, &packet(family, port, SYN));
            counts[usize::from(begun.to)] += 1;
            for connection in list_connections(forwarder) {
                assert!(forwarder.remove_connection(&connection).unwrap());
            }
        }
        assert!(
            counts.iter().all(|count| (80..120).contains(count)),
            "{counts:?}"
        );
    });
}

/// Error of ICMP about a packet of a member to a client.
fn write_error(family: Family, port: u16) -> Vec<u8> {
    let (listener, client) = (family.listener(), family.client(port));
    let quoted = write_ip(listener.ip(), client.ip(), 6, 1400);
    let ports = [listener.port().to_be_bytes(), port.to_be_bytes()].concat();
    let (kind, protocol): (&[u8], _) = match family {
        Family::V4 => (&[3, 4, 0, 0, 0, 0, 4, 176], 1),
        Family::V6 => (&[2, 0, 0, 0, 0, 0, 5, 20], 58),
    };
    let mut message = [kind, &quoted, &ports, &[0; 16]].concat();
    let pseudo = match family {
        Family::V4 => vec![],
        Family::V6 => write_pseudo_header(client.ip(), listener.ip(), protocol, message.len()),
    };
    let sum = sum_words([&pseudo[..], &message]).to_be_bytes();
    message[2..4].copy_from_slice(&sum);
    let ip = write_ip(client.ip(), listener.ip(), protocol, message.len());
    write_frame(&ip, &message)
}

#[test]
fn s41_errors_of_icmp_follow_the_connections_of_tunnels() {
    run_families(|forwarder, interface, family| {
        let table = serve_tunnels(forwarder, family, true);
        let pass_error = |port: u16| {
            let sent = send_frame(forwarder, interface, &write_error(family, port));
            read_tunnel(family, &sent.expect("the program takes the error"))
        };
        // Of a connection that another balancer has begun.
        let stray = pass_error(5000);
        let row = [&[stray.to][..], &stray.others].concat();
        assert!(table.rows().iter().any(|known| known[..] == row));
        let (from, to, _) = read_frame(&stray.inner);
        assert_eq!((from, to), (family.client(0).ip(), family.listener().ip()));
        let begun = pass(forwarder, interface, &packet(family, 5000, SYN));
        pass(forwarder, interface, &packet(family, 5000, ACK));
        assert_eq!(pass_error(5000).to, begun.to);
    });
}

#[test]
fn s41_clients_are_told_of_packets_that_are_too_large_for_the_tunnel() {
    run_families(|forwarder, interface, family| {
        serve_tunnels(forwarder, family, true);
        pass(forwarder, interface, &packet(family, 5000, SYN));
        let (headers, size) = match family {
            Family::V4 => (20 + 24, 1500 - 44),
            Family::V6 => (40 + 24, 1500 - 88),
        };
        let mut large = packet(family, 5000, ACK);
        large.data = vec![b'x'; size - headers];
        pass(forwarder, interface, &large);
        large.data = vec![b'x'; size - headers + 2];
        let before = read_outcome(forwarder, "icmp_error");
        let frame = large.write();
        let sent = send_frame(forwarder, interface, &frame).unwrap();
        let (from, to, message) = read_frame(&sent);
        assert_eq!((from, to), (family.listener().ip(), family.client(0).ip()));
        let pseudo = match family {
            Family::V4 => vec![],
            Family::V6 => write_pseudo_header(from, to, 58, message.len()),
        };
        assert_eq!(sum_words([&pseudo[..], message]), 0, "checksum of ICMP");
        let kind = if family == Family::V4 { [3, 4] } else { [2, 0] };
        assert_eq!(message[..2], kind);
        assert_eq!(message[4..8], (size as u32).to_be_bytes());
        assert_eq!(message[8..], frame[14..][..message.len() - 8]);
        assert_eq!(read_outcome(forwarder, "icmp_error"), before + 1);
    });
}

#[test]
fn s41_copied_connections_continue_through_the_tunnel() {
    run_families(|forwarder, interface, family| {
        serve_tunnels(forwarder, family, false);
        let begun = pass(forwarder, interface, &packet(family, 5000, SYN));
        pass(forwarder, interface, &packet(family, 5000, ACK));
        let mut copies = Vec::new();
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let now_ns = Duration::try_from(now).unwrap().as_nanos() as u64;
        let visit = |_, entry: Entry<'_>| copies.push(entry.copy(now_ns));
        forwarder.visit_entries(visit).unwrap();
        let [copy] = &mut copies[..] else {
            panic!("{copies:?}");
        };
        // As another balancer would send one of another client.
        copy.client.set_port(5001);
        assert_eq!(forwarder.write_copy(copy).unwrap(), CopyResult::Written);
        let next = pass(forwarder, interface, &packet(family, 5001, ACK));
        assert_eq!(next.to, begun.to);
    });
}
