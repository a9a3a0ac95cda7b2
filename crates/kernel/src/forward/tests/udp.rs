//! Sessions of UDP, with packets that tests make.

mod by_hash;
mod copies;
pub(super) mod datagrams;
mod direct;
mod fragments;
mod quic;

use std::thread;

use super::packets::*;
use super::*;

const PORTS: NatPorts = NatPorts {
    first: 61_000,
    count: 4,
};

/// Datagram, with an even number of bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Datagram {
    from: SocketAddr,
    to: SocketAddr,
    data: Vec<u8>,
    /// False if the sender has left out the checksum.
    has_sum: bool,
}

impl Datagram {
    pub(super) fn new(from: SocketAddr, to: SocketAddr) -> Self {
        Datagram {
            from,
            to,
            data: b"what is the time".to_vec(),
            has_sum: true,
        }
    }

    fn write_udp(&self) -> Vec<u8> {
        let length = 8 + self.data.len();
        let mut udp = self.from.port().to_be_bytes().to_vec();
        udp.extend(self.to.port().to_be_bytes());
        udp.extend((length as u16).to_be_bytes());
        udp.extend([0, 0]);
        udp.extend(&self.data);
        if self.has_sum {
            let pseudo = write_pseudo_header(self.from.ip(), self.to.ip(), 17, length);
            // 0 says that there is none.
            let sum = match sum_words([&pseudo[..], &udp]) {
                0 => 0xffff,
                sum => sum,
            };
            udp[6..8].copy_from_slice(&sum.to_be_bytes());
        }
        udp
    }

    pub(super) fn write(&self) -> Vec<u8> {
        let udp = self.write_udp();
        let ip = write_ip(self.from.ip(), self.to.ip(), 17, udp.len());
        write_frame(&ip, &udp)
    }

    /// The datagram with a header of fragments of IPv6, which has a next header, and an offset with flags.
    fn write_fragment6(&self, next: u8, offset: u16) -> Vec<u8> {
        let mut payload = vec![next, 0];
        payload.extend(offset.to_be_bytes());
        payload.extend([0, 0, 0, 7]);
        payload.extend(self.write_udp());
        let ip = write_ip(self.from.ip(), self.to.ip(), 44, payload.len());
        write_frame(&ip, &payload)
    }

    /// Reads a datagram, and checks its lengths and checksums.
    pub(super) fn read(frame: &[u8]) -> Self {
        let (from, to, udp) = read_frame(frame);
        let short = |at: usize| u16::from_be_bytes(*udp[at..].first_chunk().unwrap());
        assert_eq!(usize::from(short(4)), udp.len());
        let has_sum = short(6) != 0;
        if has_sum {
            let pseudo = write_pseudo_header(from, to, 17, udp.len());
            assert_eq!(sum_words([&pseudo[..], udp]), 0, "checksum of UDP");
        }
        Datagram {
            from: SocketAddr::new(from, short(0)),
            to: SocketAddr::new(to, short(2)),
            data: udp[8..].to_vec(),
            has_sum,
        }
    }

    /// Answer of the receiver.
    pub(super) fn reply(&self, data: &[u8]) -> Self {
        Datagram {
            from: self.to,
            to: self.from,
            data: data.to_vec(),
            has_sum: self.has_sum,
        }
    }
}

pub(super) fn try_pass(
    forwarder: &Forwarder,
    interface: u32,
    datagram: &Datagram,
) -> Option<Datagram> {
    let frame = send_frame(forwarder, interface, &datagram.write());
    frame.map(|frame| Datagram::read(&frame))
}

fn pass(forwarder: &Forwarder, interface: u32, datagram: &Datagram) -> Datagram {
    let sent = try_pass(forwarder, interface, datagram);
    sent.unwrap_or_else(|| panic!("not taken: {datagram:?}"))
}

fn udp_listener(family: Family) -> UdpListener {
    UdpListener {
        address: family.listener(),
        group: 0,
        retries: true,
        nat: None,
        is_direct: false,
        idle: Duration::from_secs(60),
        answer: Some(Duration::from_secs(60)),
        is_quic: false,
        is_single: false,
        is_limited: false,
    }
}

/// Lets the program begin sessions at these members, for clients of both families.
pub(super) fn serve_sessions(
    forwarder: &Forwarder,
    members: &[SocketAddr],
    change: impl Fn(UdpListener) -> UdpListener,
) {
    serve_members(forwarder, members, 0);
    forwarder.set_listeners(&[]).unwrap();
    let listeners = [Family::V4, Family::V6].map(|family| change(udp_listener(family)));
    forwarder.set_udp_listeners(&listeners).unwrap();
}

fn source(family: Family) -> IpAddr {
    family.address("10.77.0.1:0", "[fd77::1]:0").ip()
}

/// Lets the program begin sessions with full NAT at these members.
pub(super) fn serve_with_ports(forwarder: &Forwarder, members: &[SocketAddr]) {
    for (seat, member) in (0..).zip(members) {
        let source = source(Family::of_address(member));
        forwarder.set_nat_address(seat, source).unwrap();
    }
    serve_sessions(forwarder, members, |listener| UdpListener {
        nat: Some(PORTS),
        ..listener
    });
}

fn list_sessions(forwarder: &Forwarder) -> Vec<UdpSession> {
    let mut all = Vec::new();
    forwarder.visit_udp_sessions(|one| all.push(one)).unwrap();
    all
}

fn list_kept(forwarder: &Forwarder) -> Vec<UdpClient> {
    let mut all = Vec::new();
    forwarder
        .visit_kept_clients(|one, _| all.push(one))
        .unwrap();
    all
}

fn count_clients(forwarder: &Forwarder) -> usize {
    let map = find_map(&forwarder.object, "evk_udp_clients").unwrap();
    map.keys().count()
}

fn remove_all(forwarder: &Forwarder) {
    for session in list_sessions(forwarder) {
        assert!(
            forwarder
                .remove_udp_session(&session, UdpEnd::Idle)
                .unwrap()
        );
    }
    assert_eq!(
        (list_sessions(forwarder), count_clients(forwarder)),
        (vec![], 0)
    );
}

/// Kinds of events, with the ends of sessions.
fn take_steps(forwarder: &Forwarder) -> Vec<Step> {
    let events = forwarder.take_events().unwrap();
    assert!(events.iter().all(|event| event.is_udp));
    events.iter().map(|event| event.step).collect()
}

fn check_exchange(forwarder: &Forwarder, interface: u32, family: Family, has_nat: bool) {
    let (client, listener, member) = (family.client(4000), family.listener(), family.member(9));
    for has_sum in [true, false] {
        let mut question = Datagram::new(client, listener);
        question.has_sum = has_sum;
        if !has_sum && family == Family::V6 {
            // IPv6 demands a checksum: the system drops the datagram.
            assert_eq!(try_pass(forwarder, interface, &question), None);
            continue;
        }
        // Small and empty datagrams, too.
        for data in [&b""[..], b"ab", b"what is the time", &[7; 1400]] {
            question.data = data.to_vec();
            let sent = pass(forwarder, interface, &question);
            assert_eq!((sent.to, &sent.data), (member, &question.data));
            assert_eq!(sent.has_sum, has_sum);
            if has_nat {
                assert_eq!(sent.from.ip(), source(family));
                assert!((61_000..61_004).contains(&sent.from.port()), "{sent:?}");
            } else {
                assert_eq!(sent.from, client);
            }
            let answer = sent.reply(b"noon");
            let back = pass(forwarder, interface, &answer);
            assert_eq!(back, question.reply(b"noon"));
        }
    }
    let [session] = list_sessions(forwarder)[..] else {
        panic!("one session");
    };
    assert_eq!(session.pair(), Pair { member, client });
    assert_eq!(
        (session.of.listener, session.has_nat()),
        (listener, has_nat)
    );
    assert!(session.is_open() && session.is_answered());
    let count = if family == Family::V4 { 8 } else { 4 };
    assert_eq!(session.datagrams, (count, count));
    assert_eq!(session.bytes, (count / 4 * 1418, count * 4));
    assert_eq!(forwarder.read_counts(0).unwrap().in_flight, 1);
    // A stranger's datagram is not for the client.
    let strange = Datagram::new(family.member(8), client);
    assert_eq!(try_pass(forwarder, interface, &strange), None);
    assert_eq!(take_steps(forwarder), [Step::Begin, Step::Answer]);
    remove_all(forwarder);
    assert_eq!(take_steps(forwarder), [Step::End(End::Closed)]);
    let counts = forwarder.read_counts(0).unwrap();
    assert_eq!((counts.in_flight, counts.bytes.1), (0, count * 4));
    let counts = forwarder.read_udp_counts(listener).unwrap();
    assert_eq!((counts.begun, counts.open), (1, 0));
    assert_eq!(counts.datagrams, (count, count));
}

#[test]
fn s41_datagrams_go_to_a_member_and_answers_come_back() {
    for has_nat in [false, true] {
        for family in [Family::V4, Family::V6] {
            run_beside_routes(|forwarder, interface| {
                if has_nat {
                    serve_with_ports(forwarder, &[family.member(9)]);
                } else {
                    serve_sessions(forwarder, &[family.member(9)], |listener| listener);
                }
                check_exchange(forwarder, interface, family, has_nat);
            });
        }
    }
}

#[test]
fn s41_a_client_has_a_session_with_each_listener() {
    run_beside_routes(|forwarder, interface| {
        let family = Family::V4;
        let other: SocketAddr = "192.0.2.1:81".parse().unwrap();
        let listeners = [family.listener(), other].map(|address| UdpListener {
            address,
            nat: Some(PORTS),
            ..udp_listener(family)
        });
        serve_with_ports(forwarder, &[family.member(9)]);
        forwarder.set_udp_listeners(&listeners).unwrap();
        let mut sent = Vec::new();
        for listener in [family.listener(), other] {
            let question = Datagram::new(family.client(4000), listener);
            let there = pass(forwarder, interface, &question);
            let back = pass(forwarder, interface, &there.reply(b"ok"));
            assert_eq!(back, question.reply(b"ok"));
            sent.push(there.from);
        }
        assert!(sent[0] != sent[1], "{sent:?}");
        remove_all(forwarder);
        // With half NAT the member could not tell both apart: the proxy serves the second one.
        let listeners = listeners.map(|listener| UdpListener {
            nat: None,
            ..listener
        });
        forwarder.set_udp_listeners(&listeners).unwrap();
        let questions = [family.listener(), other].map(|to| Datagram::new(family.client(1), to));
        pass(forwarder, interface, &questions[0]);
        assert_eq!(try_pass(forwarder, interface, &questions[1]), None);
        assert_eq!(read_outcome(forwarder, "proxied_table"), 1);
        pass(forwarder, interface, &questions[0]);
        let [kept] = list_kept(forwarder)[..] else {
            panic!("one client");
        };
        assert_eq!(kept.listener, other);
    });
}

#[test]
fn s41_sessions_that_the_proxy_has_stay_there() {
    run_beside_routes(|forwarder, interface| {
        let family = Family::V6;
        serve_sessions(forwarder, &[family.member(9)], |listener| listener);
        let question = Datagram::new(family.client(4000), family.listener());
        let client = UdpClient {
            client: question.from,
            listener: question.to,
        };
        assert!(forwarder.keep_client(&client, 7).unwrap());
        assert_eq!(list_kept(forwarder), [client]);
        assert_eq!(try_pass(forwarder, interface, &question), None);
        assert_eq!(read_outcome(forwarder, "proxied_session"), 1);
        // Others are not concerned.
        let other = Datagram::new(family.client(4001), family.listener());
        pass(forwarder, interface, &other);
        forwarder.release_client(&client).unwrap();
        pass(forwarder, interface, &question);
        assert_eq!(list_sessions(forwarder).len(), 2);
        // Without a member that may get the session, the proxy has the client from the first datagram on.
        serve_members(forwarder, &[], 0);
        let third = Datagram::new(family.client(4002), family.listener());
        assert_eq!(try_pass(forwarder, interface, &third), None);
        assert_eq!(read_outcome(forwarder, "proxied_full"), 1);
        assert_eq!(list_kept(forwarder).len(), 1);
        serve_members(forwarder, &[family.member(9)], 0);
        assert_eq!(try_pass(forwarder, interface, &third), None);
        // Sessions of the kernel continue.
        pass(forwarder, interface, &question);
    });
}

#[test]
fn s41_silent_and_idle_sessions_end_at_the_next_datagram() {
    run_beside_routes(|forwarder, interface| {
        let family = Family::V4;
        let wait = || thread::sleep(Duration::from_millis(30));
        let brief = |listener| UdpListener {
            idle: Duration::from_millis(10),
            answer: None,
            ..listener
        };
        serve_sessions(forwarder, &[family.member(9)], brief);
        let question = Datagram::new(family.client(4000), family.listener());
        let sent = pass(forwarder, interface, &question);
        wait();
        pass(forwarder, interface, &question);
        let begun = [Step::Begin, Step::End(End::Closed), Step::Begin];
        assert_eq!(take_steps(forwarder), begun);
        assert_eq!(
            (list_sessions(forwarder).len(), count_clients(forwarder)),
            (1, 1)
        );
        remove_all(forwarder);
        take_steps(forwarder);

        let strict = |listener| UdpListener {
            answer: Some(Duration::from_millis(10)),
            ..listener
        };
        serve_sessions(forwarder, &[family.member(9)], strict);
        pass(forwarder, interface, &question);
        wait();
        pass(forwarder, interface, &question);
        let begun = [Step::Begin, Step::End(End::Silent), Step::Begin];
        assert_eq!(take_steps(forwarder), begun);
        let counts = forwarder.read_counts(0).unwrap();
        assert_eq!((counts.refused, counts.in_flight), (1, 1));
        // With an answer the session continues.
        pass(forwarder, interface, &sent.reply(b"here"));
        wait();
        pass(forwarder, interface, &question);
        assert_eq!(take_steps(forwarder), [Step::Answer]);
        // The balancer removes a session only if no datagram has come since.
        let [session] = list_sessions(forwarder)[..] else {
            panic!("one session");
        };
        wait();
        pass(forwarder, interface, &question);
        assert!(
            !forwarder
                .remove_udp_session(&session, UdpEnd::Silent)
                .unwrap()
        );
        remove_all(forwarder);
    });
}

#[test]
fn s41_sessions_leave_members_that_are_out_of_service() {
    run_beside_routes(|forwarder, interface| {
        for has_nat in [false, true] {
            let family = Family::V4;
            let members = [family.member(9), family.member(10)];
            if has_nat {
                serve_with_ports(forwarder, &members);
            } else {
                serve_sessions(forwarder, &members, |listener| listener);
            }
            let question = Datagram::new(family.client(4000), family.listener());
            let first = pass(forwarder, interface, &question);
            let seat = u32::from(first.to == members[1]);
            let out = |must_leave| Terms {
                owner: 1,
                address: first.to,
                base: 65_536,
                others: 0,
                room: 0,
                must_leave,
                name_hash: 0,
                weight: 0,
            };
            // A member that drains keeps the session.
            forwarder.set_terms(seat, &out(false)).unwrap();
            assert_eq!(pass(forwarder, interface, &question), first);
            forwarder.set_terms(seat, &out(true)).unwrap();
            let second = pass(forwarder, interface, &question);
            assert!(second.to != first.to && members.contains(&second.to));
            // Answers under way still come.
            for sent in [&first, &second] {
                let back = pass(forwarder, interface, &sent.reply(b"hi"));
                assert_eq!(back, question.reply(b"hi"));
            }
            let leaving = list_sessions(forwarder).into_iter();
            let leaving: Vec<_> = leaving.filter(UdpSession::leaves).collect();
            assert_eq!(leaving.len(), 1);
            assert_eq!(leaving[0].member, first.to);
            // And back, before the first session is removed.
            forwarder
                .set_terms(
                    seat,
                    &Terms {
                        room: 9,
                        ..out(false)
                    },
                )
                .unwrap();
            let other = 1 - seat;
            let gone = Terms {
                address: second.to,
                ..out(true)
            };
            forwarder.set_terms(other, &gone).unwrap();
            let third = pass(forwarder, interface, &question);
            assert_eq!(third.to, first.to);
            assert_eq!(
                pass(forwarder, interface, &third.reply(b"hi")),
                question.reply(b"hi")
            );
            remove_all(forwarder);
            let in_flight = [0, 1].map(|seat| forwarder.read_counts(seat).unwrap().in_flight);
            assert_eq!(in_flight, [0, 0]);
        }
    });
}

/// Message of ICMP about a datagram.
fn write_error(from: IpAddr, to: IpAddr, head: (u8, u8), quoted: &Datagram) -> Vec<u8> {
    let mut icmp = vec![head.0, head.1, 0, 0, 0, 0, 0, 0];
    icmp.extend(&quoted.write()[14..]);
    let (protocol, sum) = if from.is_ipv4() {
        (1, sum_words([&icmp[..]]))
    } else {
        let pseudo = write_pseudo_header(from, to, 58, icmp.len());
        (58, sum_words([&pseudo[..], &icmp]))
    };
    icmp[2..4].copy_from_slice(&sum.to_be_bytes());
    write_frame(&write_ip(from, to, protocol, icmp.len()), &icmp)
}

/// Checks an error: its receiver and checksum, and the addresses of the quoted datagram.
fn check_error(frame: &[u8], to: IpAddr, quoted: &Datagram) {
    let (from, at, icmp) = read_frame(frame);
    assert_eq!(at, to);
    let sum = match at {
        IpAddr::V4(_) => sum_words([icmp]),
        IpAddr::V6(_) => {
            let pseudo = write_pseudo_header(from, at, 58, icmp.len());
            sum_words([&pseudo[..], icmp])
        }
    };
    assert_eq!(sum, 0, "checksum of ICMP");
    let inner = [&frame[..14], &icmp[8..]].concat();
    let (from, to, udp) = read_frame(&inner);
    assert_eq!((from, to), (quoted.from.ip(), quoted.to.ip()));
    let expected = quoted.write_udp();
    assert_eq!(udp[..6], expected[..6]);
    assert_eq!(udp[8..], expected[8..]);
}

#[test]
fn s41_clients_of_the_proxy_without_a_place_in_the_table_may_get_the_kernel() {
    run_beside_routes(|forwarder, interface| {
        let family = Family::V6;
        serve_sessions(forwarder, &[family.member(9)], |listener| listener);
        let client = |number: u32| {
            let ip = Ipv6Addr::from((0x2001_0db8 << 96) + u128::from(number));
            let (client, listener) = (SocketAddr::new(ip.into(), 9), family.listener());
            UdpClient { client, listener }
        };
        let is_refused = |number: &u32| !forwarder.keep_client(&client(*number), 7).unwrap();
        let full = (0..u32::MAX).find(is_refused).unwrap();
        assert!(full >= forwarder.read_udp_capacity().unwrap() / 2, "{full}");
        let datagram = Datagram::new(client(full).client, family.listener());
        pass(forwarder, interface, &datagram);
        // The client has no entry, and is released all the same.
        forwarder.release_client(&client(full)).unwrap();
        for number in 0..100 {
            forwarder.release_client(&client(number)).unwrap();
        }
        assert!(forwarder.keep_client(&client(full), 7).unwrap());
        assert_eq!(try_pass(forwarder, interface, &datagram), None);
        remove_all(forwarder);
    });
}

#[test]
fn s41_icmp_errors_of_members_reach_the_client_who_goes_to_another_member() {
    run_beside_routes(|forwarder, interface| {
        for (family, has_nat) in [
            (Family::V4, false),
            (Family::V4, true),
            (Family::V6, false),
            (Family::V6, true),
        ] {
            let members = [family.member(9), family.member(10)];
            if has_nat {
                serve_with_ports(forwarder, &members);
            } else {
                serve_sessions(forwarder, &members, |listener| listener);
            }
            let (refusal, other) = match family {
                Family::V4 => ((3, 3), (11, 0)),
                Family::V6 => ((1, 4), (3, 0)),
            };
            let question = Datagram::new(family.client(4000), family.listener());
            let sent = pass(forwarder, interface, &question);
            let about =
                |head, sent: &Datagram| write_error(sent.to.ip(), sent.from.ip(), head, sent);
            // An error that is no refusal is told, and the session continues.
            let told = send_frame(forwarder, interface, &about(other, &sent));
            check_error(&told.unwrap(), question.from.ip(), &question);
            assert_eq!(pass(forwarder, interface, &question), sent);
            let told = send_frame(forwarder, interface, &about(refusal, &sent));
            check_error(&told.unwrap(), question.from.ip(), &question);
            let steps = [Step::Begin, Step::End(End::Unreachable)];
            assert_eq!(take_steps(forwarder), steps);
            let next = pass(forwarder, interface, &question);
            assert!(next.to != sent.to && members.contains(&next.to));
            // The client's errors reach the member.
            let answer = next.reply(b"late");
            let back = pass(forwarder, interface, &answer);
            let told = send_frame(forwarder, interface, &about(refusal, &back));
            check_error(&told.unwrap(), next.to.ip(), &answer);
            assert_eq!(take_steps(forwarder), [Step::Begin, Step::Answer]);
            // Errors about the datagrams of others are not touched.
            let mut strange = next.clone();
            strange.from.set_port(9);
            let error = about(refusal, &strange);
            assert_eq!(send_frame(forwarder, interface, &error), None);
            remove_all(forwarder);
            take_steps(forwarder);
            // A member alone gets the client again.
            let alone = [members[0]];
            if has_nat {
                serve_with_ports(forwarder, &alone);
            } else {
                serve_sessions(forwarder, &alone, |listener| listener);
            }
            let sent = pass(forwarder, interface, &question);
            send_frame(forwarder, interface, &about(refusal, &sent)).unwrap();
            let again = pass(forwarder, interface, &question);
            assert_eq!(again.to, sent.to);
            remove_all(forwarder);
            take_steps(forwarder);
        }
    });
}

#[test]
fn s41_without_a_free_port_the_proxy_serves_the_session() {
    run_beside_routes(|forwarder, interface| {
        let family = Family::V6;
        serve_with_ports(forwarder, &[family.member(9)]);
        let question = |port| Datagram::new(family.client(port), family.listener());
        let mut ports = BTreeSet::new();
        for port in 1..=4 {
            let sent = pass(forwarder, interface, &question(port));
            ports.insert(sent.from.port());
        }
        assert_eq!(ports, (61_000..61_004).collect());
        assert_eq!(try_pass(forwarder, interface, &question(5)), None);
        assert_eq!(read_outcome(forwarder, "proxied_ports"), 1);
        assert_eq!(
            (list_sessions(forwarder).len(), count_clients(forwarder)),
            (4, 4)
        );
        remove_all(forwarder);
        pass(forwarder, interface, &question(6));
    });
}

#[test]
fn s41_fragments_and_hostile_datagrams_pass_to_the_system() {
    run_beside_routes(|forwarder, interface| {
        for family in [Family::V4, Family::V6] {
            serve_sessions(forwarder, &[family.member(9)], |listener| listener);
            let question = Datagram::new(family.client(4000), family.listener());
            let good = question.write();
            let udp_at = good.len() - 24;
            let mut bad = Vec::new();
            // Lengths of UDP: below the header's, shorter than the packet, longer.
            for length in [0u8, 7, 8, 23, 25, 255] {
                let mut frame = good.clone();
                frame[udp_at + 5] = length;
                bad.push(frame);
            }
            let mut frame = good.clone();
            // No port of the sender: nobody can answer.
            frame[udp_at..udp_at + 2].fill(0);
            bad.push(frame);
            if family == Family::V4 {
                // Middle and last fragment; options.
                for (flags, offset) in [(0x20, 9), (0, 9)] {
                    let mut frame = good.clone();
                    (frame[20], frame[21]) = (flags, offset);
                    bad.push(frame);
                }
                let mut frame = good.clone();
                frame[14] = 0x46;
                bad.push(frame);
            } else {
                // Offset, whole datagram, other protocol.
                bad.push(question.write_fragment6(17, 9));
                bad.push(question.write_fragment6(17, 0));
                bad.push(question.write_fragment6(6, 1));
            }
            for frame in &bad {
                assert_eq!(send_frame(forwarder, interface, frame), None, "{frame:?}");
            }
            for length in udp_at..good.len() {
                let frame = &good[..length];
                assert_eq!(send_frame(forwarder, interface, frame), None, "{length}");
            }
            assert_eq!(
                (list_sessions(forwarder), list_kept(forwarder)),
                (vec![], vec![])
            );
            pass(forwarder, interface, &question);
            remove_all(forwarder);
        }
    });
}

#[test]
fn s41_the_proxy_has_a_client_from_the_first_fragment_on() {
    run_beside_routes(|forwarder, interface| {
        for family in [Family::V4, Family::V6] {
            serve_sessions(forwarder, &[family.member(9)], |listener| listener);
            let question = Datagram::new(family.client(4000), family.listener());
            let first = |question: &Datagram| {
                if family == Family::V6 {
                    return question.write_fragment6(17, 1);
                }
                let mut frame = question.write();
                frame[20] = 0x20;
                frame
            };
            pass(forwarder, interface, &question);
            let elsewhere = Datagram::new(family.client(4000), family.client(53));
            let frame = first(&elsewhere);
            assert_eq!(send_frame(forwarder, interface, &frame), None);
            assert_eq!(list_kept(forwarder), [], "no listener there");
            let frame = first(&question);
            assert_eq!(send_frame(forwarder, interface, &frame), None);
            let client = UdpClient {
                client: question.from,
                listener: question.to,
            };
            assert_eq!(list_kept(forwarder), [client]);
            assert_eq!(try_pass(forwarder, interface, &question), None);
            // No datagram came of the fragments.
            forwarder.release_client(&client).unwrap();
            pass(forwarder, interface, &question);
            let headers = if family == Family::V4 { 34 } else { 54 };
            for length in headers..frame.len() {
                let frame = &frame[..length];
                assert_eq!(send_frame(forwarder, interface, frame), None, "{length}");
            }
            forwarder.release_client(&client).unwrap();
            remove_all(forwarder);
        }
    });
}

#[test]
fn s41_changed_datagrams_are_sent_with_right_checksums_or_not_at_all() {
    run_beside_routes(|forwarder, interface| {
        let mut runner = TestRunner::default();
        let data = proptest::collection::vec(any::<u16>(), 0..40);
        let cases = (families(), any::<bool>(), 1..u16::MAX, data);
        serve_with_ports(forwarder, &[Family::V4.member(9), Family::V6.member(9)]);
        runner
            .run(&cases, |(family, is_zero, port, words)| {
                let mut question = Datagram::new(family.client(port), family.listener());
                question.data = words.into_iter().flat_map(u16::to_be_bytes).collect();
                question.has_sum = !is_zero || family == Family::V6;
                let sent = pass(forwarder, interface, &question);
                prop_assert_eq!(&sent.data, &question.data);
                prop_assert_eq!(sent.has_sum, question.has_sum);
                let back = pass(forwarder, interface, &sent.reply(&question.data));
                prop_assert_eq!(back, question.reply(&question.data));
                for session in list_sessions(forwarder) {
                    let removed = forwarder.remove_udp_session(&session, UdpEnd::Idle);
                    prop_assert!(removed.unwrap());
                }
                Ok(())
            })
            .unwrap();
    });
}

#[test]
fn s41_a_full_table_leaves_new_sessions_to_the_proxy() {
    run_beside_routes(|forwarder, interface| {
        let family = Family::V4;
        serve_sessions(forwarder, &[family.member(9)], |listener| listener);
        let first = Datagram::new(family.client(1), family.listener());
        pass(forwarder, interface, &first);
        let map = find_map(&forwarder.object, "evk_udp_sessions").unwrap();
        let [session] = list_sessions(forwarder)[..] else {
            panic!("one session");
        };
        let key = [
            layout::write_address(session.member),
            layout::write_address(session.source),
        ]
        .concat();
        let value = map.lookup(&key, MapFlags::ANY).unwrap().unwrap();
        let memory = || map.query_fdinfo().unwrap().memlock.unwrap();
        let empty = memory();
        // Places of the table are counted in each CPU's share, so a few more may fit.
        let mut rooms = 0u32;
        loop {
            let ip = Ipv6Addr::from(u128::from(rooms) << 64);
            let source = SocketAddr::new(ip.into(), 9);
            let key = [
                layout::write_address(session.member),
                layout::write_address(source),
            ]
            .concat();
            if map.update(&key, &value, MapFlags::NO_EXIST).is_err() {
                break;
            }
            rooms += 1;
        }
        assert!(
            rooms >= forwarder.read_udp_capacity().unwrap() / 2,
            "{rooms}"
        );
        let each = (memory() - empty) / u64::from(rooms);
        assert!(each <= 256, "{each} bytes of each session");
        let second = Datagram::new(family.client(2), family.listener());
        assert_eq!(try_pass(forwarder, interface, &second), None);
        assert_eq!(read_outcome(forwarder, "proxied_table"), 1);
        // No session is removed for room.
        pass(forwarder, interface, &first);
    });
}
