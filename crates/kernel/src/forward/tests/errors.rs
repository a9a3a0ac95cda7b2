//! Errors of ICMP about packets of connections, and packets that are too large.

use std::net::IpAddr;

use super::packets::*;
use super::*;

/// A router that cannot send a packet on.
fn find_router(family: Family) -> IpAddr {
    family.address("203.0.113.5:0", "[2001:db8:5::5]:0").ip()
}

/// Message of ICMP that quotes the first bytes of a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Message {
    pub(super) from: IpAddr,
    pub(super) to: IpAddr,
    /// Type, code, and the number behind the checksum.
    pub(super) head: (u8, u8, u32),
    pub(super) quoted: Segment,
}

impl Message {
    /// Returns the number of ICMP as a protocol, and true if the checksum covers addresses.
    fn protocol(&self) -> u8 {
        if self.from.is_ipv4() { 1 } else { 58 }
    }

    fn sum(&self, icmp: &[u8]) -> u16 {
        match self.from {
            IpAddr::V4(_) => sum_words([icmp]),
            IpAddr::V6(_) => {
                let pseudo = write_pseudo_header(self.from, self.to, 58, icmp.len());
                sum_words([&pseudo[..], icmp])
            }
        }
    }

    pub(super) fn write(&self) -> Vec<u8> {
        let (kind, code, number) = self.head;
        let mut icmp = vec![kind, code, 0, 0];
        icmp.extend(number.to_be_bytes());
        icmp.extend(&self.quoted.write()[14..]);
        let sum = self.sum(&icmp).to_be_bytes();
        icmp[2..4].copy_from_slice(&sum);
        let ip = write_ip(self.from, self.to, self.protocol(), icmp.len());
        write_frame(&ip, &icmp)
    }

    /// Reads a message, and checks the checksums. The checksum of the quoted TCP is left as it was.
    fn check(&self, frame: &[u8]) {
        let (from, to, icmp) = read_frame(frame);
        assert_eq!((from, to), (self.from, self.to));
        assert_eq!(self.sum(icmp), 0, "checksum of ICMP");
        let number = u32::from_be_bytes(*icmp[4..].first_chunk().unwrap());
        assert_eq!((icmp[0], icmp[1], number), self.head);
        let inner = [&frame[..14], &icmp[8..]].concat();
        let (from, to, tcp) = read_frame(&inner);
        assert_eq!((from, to), (self.quoted.from.ip(), self.quoted.to.ip()));
        let expected = self.quoted.write_tcp();
        assert_eq!(tcp[..16], expected[..16]);
        assert_eq!(tcp[18..], expected[18..]);
    }
}

/// Errors of a family: type, code and number.
fn list_errors(family: Family) -> Vec<(u8, u8, u32)> {
    match family {
        Family::V4 => vec![(3, 4, 1400), (3, 1, 0), (11, 0, 0), (12, 0, 0)],
        Family::V6 => vec![(2, 0, 1400), (1, 3, 0), (3, 0, 0), (4, 1, 6)],
    }
}

/// Messages that are no errors: echo, neighbours, redirects.
fn list_other_messages(family: Family) -> Vec<(u8, u8, u32)> {
    match family {
        Family::V4 => vec![(8, 0, 0), (0, 0, 0), (5, 1, 0), (4, 0, 0)],
        Family::V6 => vec![
            (128, 0, 0),
            (129, 0, 0),
            (135, 0, 0),
            (137, 0, 0),
            (0, 0, 0),
            (5, 0, 0),
        ],
    }
}

#[test]
fn s41_icmp_errors_reach_the_side_that_has_sent_the_packet() {
    run_beside_routes(|forwarder, interface| {
        for family in [Family::V4, Family::V6] {
            let (client, listener) = (family.client(5000), family.listener());
            let member = family.member(2);
            serve_members(forwarder, &[member], 2);
            let syn = Segment::new(client, listener, SYN);
            send(forwarder, interface, &syn);
            // Packets as a router has seen them, and as their senders have.
            let about = |from, to, head| Message {
                from: find_router(family),
                to: SocketAddr::ip(&from),
                head,
                quoted: Segment {
                    data: b"0123".to_vec(),
                    ..Segment::new(from, to, ACK)
                },
            };
            let error = list_errors(family)[0];
            // Until the member accepts, another member may get the connection.
            let early = about(client, member, error).write();
            assert_eq!(send_frame(forwarder, interface, &early), None);
            let mut accept = Segment::new(member, client, SYN | ACK);
            accept.answered = 2;
            send(forwarder, interface, &accept);

            let before = read_outcome(forwarder, "icmp_error");
            let errors = list_errors(family);
            for head in &errors {
                let sent = send_frame(forwarder, interface, &about(client, member, *head).write());
                about(client, listener, *head).check(&sent.expect("sent to the client"));
                let sent = send_frame(
                    forwarder,
                    interface,
                    &about(listener, client, *head).write(),
                );
                about(member, client, *head).check(&sent.expect("sent to the member"));
            }
            let count = read_outcome(forwarder, "icmp_error") - before;
            assert_eq!(count, 2 * errors.len() as u64);

            // Of other connections, for somebody else, no errors, or without ports.
            let stranger = family.client(5001);
            let mut others = vec![
                about(stranger, member, error),
                about(client, family.member(3), error),
                about(listener, stranger, error),
                about(family.member(2), client, error),
                about(client, listener, error),
            ];
            let mut elsewhere = about(client, member, error);
            elsewhere.to = family.member(9).ip();
            others.push(elsewhere);
            let messages = list_other_messages(family).into_iter();
            others.extend(messages.map(|head| about(client, member, head)));
            for other in others {
                let sent = send_frame(forwarder, interface, &other.write());
                assert_eq!(sent, None, "{other:?}");
            }
            let frame = about(client, member, error).write();
            for length in 74..frame.len() {
                // The program looks at no more than addresses and ports, with the number behind.
                let headers = if family == Family::V4 { 20 } else { 40 };
                if length < 14 + 2 * headers + 8 + 8 {
                    let sent = send_frame(forwarder, interface, &frame[..length]);
                    assert_eq!(sent, None);
                }
            }
            // Bytes behind the length that the header of IP says are no part of the message.
            let (headers, length_at) = match family {
                Family::V4 => (20u16, 16),
                Family::V6 => (0, 18),
            };
            let quote = 8 + if family == Family::V4 { 20 } else { 40 };
            for length in 1..quote + 16 {
                let mut short = frame.clone();
                short[length_at..length_at + 2].copy_from_slice(&(headers + length).to_be_bytes());
                let sent = send_frame(forwarder, interface, &short);
                assert_eq!(sent.is_some(), length >= quote + 8, "{length}");
            }
        }
    });
}

#[test]
fn s41_icmp_errors_reach_both_sides_of_full_nat() {
    run_beside_routes(|forwarder, interface| {
        for family in [Family::V4, Family::V6] {
            let (client, listener) = (family.client(5000), family.listener());
            let member = family.member(2);
            super::nat::serve_with_nat(forwarder, &[member], 2);
            let sent = send(forwarder, interface, &Segment::new(client, listener, SYN));
            let source = sent.from;
            let mut accept = Segment::new(member, source, SYN | ACK);
            accept.answered = 2;
            send(forwarder, interface, &accept);
            let about = |from, to, head| Message {
                from: find_router(family),
                to: SocketAddr::ip(&from),
                head,
                quoted: Segment {
                    data: b"0123".to_vec(),
                    ..Segment::new(from, to, ACK)
                },
            };
            for head in list_errors(family) {
                let frame = about(source, member, head).write();
                let sent = send_frame(forwarder, interface, &frame);
                about(client, listener, head).check(&sent.expect("sent to the client"));
                let frame = about(listener, client, head).write();
                let sent = send_frame(forwarder, interface, &frame);
                about(member, source, head).check(&sent.expect("sent to the member"));
            }
            for connection in list_connections(forwarder) {
                assert!(forwarder.remove_connection(&connection).unwrap());
            }
        }
    });
}

#[test]
fn s41_icmp_errors_reach_the_member_that_answers_directly() {
    run_beside_routes(|forwarder, interface| {
        for family in [Family::V4, Family::V6] {
            let (client, listener) = (family.client(5000), family.listener());
            super::direct::serve_direct(forwarder, &[family.member(2)], 2);
            send(forwarder, interface, &Segment::new(client, listener, SYN));
            let mut confirm = Segment::new(client, listener, ACK);
            confirm.sequence = 2;
            send(forwarder, interface, &confirm);
            for head in list_errors(family) {
                // The member has the address of the listener, to which routers send their errors.
                let message = Message {
                    from: find_router(family),
                    to: listener.ip(),
                    head,
                    quoted: Segment {
                        data: b"0123".to_vec(),
                        ..Segment::new(listener, client, ACK)
                    },
                };
                let sent = send_frame(forwarder, interface, &message.write());
                message.check(&sent.expect("sent to the member"));
            }
            for connection in list_connections(forwarder) {
                assert!(forwarder.remove_connection(&connection).unwrap());
            }
        }
    });
}

#[test]
fn s41_the_system_tells_members_of_packets_that_are_too_large_for_clients() {
    run_beside_routes(|forwarder, interface| {
        for family in [Family::V4, Family::V6] {
            let (client, member) = (family.client(5000), family.member(2));
            serve_members(forwarder, &[member], 2);
            send(
                forwarder,
                interface,
                &Segment::new(client, family.listener(), SYN),
            );
            let mut large = Segment::new(member, client, ACK);
            large.data = vec![b'x'; 1600];
            let mut frame = large.write();
            if family == Family::V4 {
                // The network may not make fragments of the packet, which a checksum has to say, too.
                frame[20] = 0x40;
                frame[24..26].fill(0);
                let sum = sum_words([&frame[14..34]]).to_be_bytes();
                frame[24..26].copy_from_slice(&sum);
            }
            let before = read_outcome(forwarder, "too_large");
            assert!(send_frame(forwarder, interface, &frame).is_none());
            assert_eq!(read_outcome(forwarder, "too_large"), before + 1);
        }
    });
}
