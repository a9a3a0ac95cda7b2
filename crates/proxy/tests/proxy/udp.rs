//! UDP rules, with members that answer, are silent, or refuse.

#![allow(clippy::unwrap_used)]

use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use crate::support::*;
use evenkeel_core::member::Reason;
use evenkeel_manager::config::Protocol::Udp;
use evenkeel_manager::config::UdpSession;
use evenkeel_proxy::access::End;

/// A member that answers each datagram with `answer` of it, if there is one.
fn datagram_member(
    answer: impl Fn(&[u8]) -> Option<Vec<u8>> + Send + 'static,
) -> (SocketAddr, Receiver<(Vec<u8>, SocketAddr)>) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    let (sender, received) = channel();
    std::thread::spawn(move || {
        let mut buffer = vec![0; 65_535];
        while let Ok((len, from)) = socket.recv_from(&mut buffer) {
            if sender.send((buffer[..len].to_vec(), from)).is_err() {
                return;
            }
            if let Some(answer) = answer(&buffer[..len]) {
                socket.send_to(&answer, from).unwrap();
            }
        }
    });
    (address, received)
}

fn named(name: u8) -> (SocketAddr, Receiver<(Vec<u8>, SocketAddr)>) {
    datagram_member(move |asked| Some([&[name][..], asked].concat()))
}

/// An address that refuses datagrams for as long as the socket is kept: nobody else gets the port.
fn refusing() -> (SocketAddr, socket2::Socket) {
    use socket2::{Domain, Socket, Type};
    // A socket that is connected elsewhere takes nothing from the balancer.
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, None).unwrap();
    let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
    socket.bind(&any.into()).unwrap();
    let elsewhere: SocketAddr = "127.0.0.1:9".parse().unwrap();
    socket.connect(&elsewhere.into()).unwrap();
    (socket.local_addr().unwrap().as_socket().unwrap(), socket)
}

fn client(bed: &Bed) -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(HANG)).unwrap();
    socket.connect(bed.address()).unwrap();
    socket
}

fn ask(client: &UdpSocket, question: &[u8]) -> Vec<u8> {
    client.send(question).unwrap();
    let mut answer = vec![0; 65_535];
    let len = client.recv(&mut answer).unwrap();
    answer.truncate(len);
    answer
}

#[test]
fn datagrams_of_a_client_stay_with_one_member() {
    let ((a, _at_a), (b, _at_b)) = (named(b'a'), named(b'b'));
    let bed = Bed::new(Udp, &[a, b], |rule| {
        rule.timeouts.idle = Duration::from_secs(1);
    });
    let long = vec![7; 30_000];
    for _ in 0..4 {
        let client = client(&bed);
        let first = ask(&client, b"x");
        assert_eq!(ask(&client, b"x"), first);
        assert_eq!(ask(&client, b""), first[..1]);
        assert!(ask(&client, &long)[1..] == long);
    }
    assert_eq!(bed.rule_totals().connections, 4);
    for _ in 0..4 {
        let record = bed.next_record();
        assert_eq!(
            (record.end, record.bytes_received, record.bytes_sent),
            (End::Complete, 30_002, 30_006)
        );
        assert!(record.response_time.is_some());
    }
    bed.wait_until_idle();
    let totals = bed.rule_totals();
    assert_eq!(
        (totals.udp_datagrams_in, totals.udp_datagrams_out),
        (16, 16)
    );
    assert_eq!(totals.bytes_from_clients, 4 * 30_002);
}

#[test]
fn each_datagram_may_go_to_another_member() {
    let ((a, at_a), (b, at_b)) = (named(b'a'), named(b'b'));
    let bed = Bed::new(Udp, &[a, b], |rule| {
        rule.udp.session = UdpSession::Datagram;
    });
    let client = client(&bed);
    for number in 0..40_u8 {
        assert_eq!(ask(&client, &[number])[1..], [number]);
    }
    for _ in 0..40 {
        let record = bed.next_record();
        assert_eq!((record.end, record.bytes_received), (End::Complete, 1));
    }
    bed.wait_until_idle();
    let (at_a, at_b) = (at_a.try_iter().count(), at_b.try_iter().count());
    assert_eq!(at_a + at_b, 40);
    assert!(at_a > 0 && at_b > 0, "{at_a} and {at_b}");
}

#[test]
fn a_datagram_that_is_refused_goes_to_another_member() {
    let ((gone, _kept), (a, _at_a)) = (refusing(), named(b'a'));
    let bed = Bed::new(Udp, &[gone, a], |rule| {
        rule.udp.session = UdpSession::Datagram;
    });
    let client = client(&bed);
    for number in 0..20_u8 {
        assert_eq!(ask(&client, &[number]), [b'a', number]);
        assert_eq!(bed.next_record().end, End::Complete);
    }
    let totals = bed.rule_totals();
    assert!(totals.retries > 0);
    assert_eq!(totals.retries, totals.member_connect_failures);
    bed.wait_until_idle();
}

/// Sends a datagram behind others which nobody has taken: with the right to send it, the rule has told the client so by an
/// error of ICMP, which the client's system returns in the place of a datagram.
fn send_again(client: &UdpSocket, datagram: &[u8]) {
    while let Err(error) = client.send(datagram) {
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    }
}

#[test]
fn a_session_whose_member_refuses_ends_and_the_next_datagram_goes_elsewhere() {
    let (gone, _kept) = refusing();
    let bed = Bed::new(Udp, &[gone], |_| {});
    let client = client(&bed);
    client.send(b"x").unwrap();
    assert_eq!(bed.next_record().end, End::Member);
    send_again(&client, b"x");
    assert_eq!(bed.next_record().end, End::Member);
    bed.wait_until_idle();
}

#[test]
fn the_first_datagram_of_a_client_goes_to_another_member_if_it_is_refused() {
    let ((gone, _kept), (a, _at_a)) = (refusing(), named(b'a'));
    let bed = Bed::new(Udp, &[gone, a], |_| {});
    for number in 0..20_u8 {
        let client = client(&bed);
        assert_eq!(ask(&client, &[number]), [b'a', number]);
        assert_eq!(ask(&client, b"more"), b"amore");
    }
    let totals = bed.rule_totals();
    assert!(totals.retries > 0);
    assert_eq!(totals.retries, totals.member_connect_failures);
}

#[test]
fn a_session_ends_when_its_member_goes_and_the_next_datagram_begins_another() {
    let member = UdpSocket::bind("127.0.0.1:0").unwrap();
    member.set_read_timeout(Some(HANG)).unwrap();
    let bed = Bed::new(Udp, &[member.local_addr().unwrap()], |_| {});
    let client = client(&bed);
    client.send(b"x").unwrap();
    let mut buffer = [0; 10];
    let (_, session) = member.recv_from(&mut buffer).unwrap();
    member.send_to(b"answer", session).unwrap();
    assert_eq!(client.recv(&mut buffer).unwrap(), 6);
    // From now on the port refuses datagrams of the balancer.
    let elsewhere: SocketAddr = "127.0.0.1:9".parse().unwrap();
    member.connect(elsewhere).unwrap();
    client.send(b"y").unwrap();
    let record = bed.next_record();
    assert_eq!((record.end, record.bytes_sent), (End::Member, 6));
    send_again(&client, b"z");
    let record = bed.next_record();
    assert_eq!((record.end, record.bytes_sent), (End::Member, 0));
    bed.wait_until_idle();
}

#[test]
fn datagrams_that_come_fast_do_not_hide_that_the_member_refuses_them() {
    let (gone, _kept) = refusing();
    let bed = Bed::new(Udp, &[gone], |rule| rule.connect_retries = 0);
    let client = client(&bed);
    for _ in 0..100 {
        send_again(&client, b"x");
    }
    assert_eq!(bed.next_record().end, End::Member);
    assert!(bed.rule_totals().member_connect_failures > 0);
}

/// Has the kernel divide what the socket sends into datagrams of `len` bytes.
fn divide(socket: &UdpSocket, len: u16) {
    let len = libc::c_int::from(len);
    // SAFETY: the value outlives the call, and has that length.
    let done = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_UDP,
            libc::UDP_SEGMENT,
            (&raw const len).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    assert_eq!(done, 0);
}

#[test]
fn datagrams_that_share_a_buffer_arrive_one_by_one_in_both_directions() {
    let member = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = member.local_addr().unwrap();
    divide(&member, 1000);
    std::thread::spawn(move || {
        let (mut buffer, mut sum) = (vec![0; 65_535], 0);
        while let Ok((len, from)) = member.recv_from(&mut buffer) {
            assert!(len <= 100);
            sum += len;
            if sum == 4_050 {
                sum = 0;
                member.send_to(&[7; 20_500], from).unwrap();
            }
        }
    });
    for (session, offload) in [
        (UdpSession::Client, true),
        (UdpSession::Client, false),
        (UdpSession::Quic, true),
        (UdpSession::Datagram, true),
    ] {
        let bed = Bed::new(Udp, &[address], |rule| {
            rule.udp.session = session;
            rule.udp.segmentation_offload = offload;
        });
        let client = client(&bed);
        divide(&client, 100);
        // 41 datagrams, the last of 50 bytes.
        client.send(&[1; 4_050]).unwrap();
        let lens: Vec<_> = match session {
            // A session has one answer.
            UdpSession::Datagram => vec![1000],
            _ => [vec![1000; 20], vec![500]].concat(),
        };
        for len in lens {
            let mut answer = [0; 2000];
            assert_eq!(client.recv(&mut answer).unwrap(), len);
        }
        let totals = bed.rule_totals();
        assert_eq!(
            (totals.udp_datagrams_in, totals.bytes_from_clients),
            (41, 4_050)
        );
    }
}

#[test]
fn a_quic_client_with_another_address_stays_with_its_member() {
    // Servers that choose the connection id with their own name, and answer with their name.
    let server = |name: u8| {
        datagram_member(move |asked| {
            let head = [&[0xc0, 0, 0, 0, 1, 0, 8][..], &[name; 8]].concat();
            Some(match asked[0] & 0x80 {
                0 => vec![0x40, name],
                _ => head,
            })
        })
    };
    let ((a, at_a), (b, at_b)) = (server(b'a'), server(b'b'));
    let bed = Bed::new(Udp, &[a, b], |rule| rule.udp.session = UdpSession::Quic);
    for _ in 0..6 {
        let initial = [&[0xc0, 0, 0, 0, 1, 8][..], &[9; 8], &[4], &[5; 4]].concat();
        let name = ask(&client(&bed), &initial)[7];
        for _ in 0..6 {
            let short = [&[0x40][..], &[name; 8], b"rest"].concat();
            assert_eq!(ask(&client(&bed), &short), [0x40, name]);
        }
    }
    drop((at_a, at_b));
}

#[test]
fn a_quic_client_with_the_address_of_another_one_goes_to_its_own_member() {
    let server = |name: u8| {
        datagram_member(move |_| Some([&[0xc0, 0, 0, 0, 1, 0, 8][..], &[name; 8]].concat()))
    };
    let ((a, _at_a), (b, _at_b)) = (server(b'a'), server(b'b'));
    let bed = Bed::new(Udp, &[a, b], |rule| rule.udp.session = UdpSession::Quic);
    let initial = [&[0xc0, 0, 0, 0, 1, 8][..], &[9; 8], &[0]].concat();
    // One client at each member.
    let mut clients: [Option<UdpSocket>; 2] = [None, None];
    while clients.iter().any(Option::is_none) {
        let client = client(&bed);
        let name = ask(&client, &initial)[7];
        clients[usize::from(name == b'b')] = Some(client);
    }
    let at_a = clients[0].take().unwrap();
    for name in *b"babbaab" {
        let short = [&[0x40][..], &[name; 8], b"rest"].concat();
        assert_eq!(ask(&at_a, &short)[7], name);
    }
}

#[test]
fn silence_is_a_failure_where_an_answer_is_expected() {
    let (silent, asked) = datagram_member(|_| None);
    for session in [UdpSession::Client, UdpSession::Datagram] {
        let bed = Bed::new(Udp, &[silent], |rule| {
            rule.udp.session = session;
            rule.udp.answer_timeout = Duration::from_millis(100);
        });
        client(&bed).send(b"x").unwrap();
        let record = bed.next_record();
        assert_eq!(record.end, End::MemberTimeout);
        assert!(record.response_time.is_none());
        assert_eq!(asked.recv_timeout(HANG).unwrap().0, b"x");
        assert_eq!(bed.rule_totals().member_timeouts, 1);
    }
}

#[test]
fn silence_is_none_where_no_answer_is_expected() {
    let (silent, asked) = datagram_member(|_| None);
    for session in [UdpSession::Client, UdpSession::Datagram] {
        let bed = Bed::new(Udp, &[silent], |rule| {
            rule.udp.session = session;
            rule.udp.expect_answer = false;
            rule.timeouts.idle = Duration::from_millis(100);
        });
        client(&bed).send(b"message").unwrap();
        let record = bed.next_record();
        assert_eq!((record.end, record.bytes_received), (End::Complete, 7));
        assert_eq!(asked.recv_timeout(HANG).unwrap().0, b"message");
        bed.wait_until_idle();
    }
}

#[test]
fn a_session_leaves_a_member_in_maintenance_and_stays_at_one_that_drains() {
    let ((a, _at_a), (b, _at_b)) = (named(b'a'), named(b'b'));
    let bed = Bed::new(Udp, &[a, b], |_| {});
    let client = client(&bed);
    let first = ask(&client, b"x");
    let group = bed.group.current.load();
    let index = usize::from(first[0] == b'b');
    let slot = &group.members()[index].slot;
    slot.set(Reason::Draining, true);
    assert_eq!(ask(&client, b"x"), first);
    slot.set(Reason::Maintenance, true);
    assert_ne!(ask(&client, b"x"), first);
    slot.set(Reason::Maintenance, false);
    slot.set(Reason::Draining, false);
    assert_ne!(ask(&client, b"x"), first);
    assert_eq!(bed.rule_totals().moved_unusable, 1);
}

#[test]
fn sessions_are_bounded_and_those_that_are_there_go_on() {
    let (a, _at_a) = named(b'a');
    let bed = Bed::new(Udp, &[a], |rule| rule.max_connections = 2);
    let [first, second, third] = [client(&bed), client(&bed), client(&bed)];
    for client in [&first, &second] {
        assert_eq!(ask(client, b"x"), b"ax");
    }
    third.send(b"y").unwrap();
    bed.wait_for_count(|totals| totals.udp_dropped_full, 1);
    assert_eq!(ask(&first, b"z"), b"az");
    assert_eq!(bed.rule_totals().connections, 2);
}

#[test]
fn a_datagram_without_a_member_is_dropped() {
    let bed = Bed::new(Udp, &[], |_| {});
    client(&bed).send(b"x").unwrap();
    bed.wait_for_count(|totals| totals.udp_dropped_refused, 1);
    assert_eq!(bed.rule_totals().refused_no_member, 1);
}

#[test]
fn the_rule_goes_and_its_sessions_end() {
    let (a, _at_a) = named(b'a');
    let mut bed = Bed::new(Udp, &[a], |_| {});
    assert_eq!(ask(&client(&bed), b"x"), b"ax");
    bed.remove_rule();
    assert_eq!(bed.next_record().end, End::Complete);
    bed.wait_until_idle();
}
