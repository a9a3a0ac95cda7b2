use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};

use libbpf_rs::{Object, ProgramInput};
use proptest::prelude::*;

use super::*;
use crate::bpf::{find_map, find_program_mut};
use crate::testing::report_skipped;

const NOT_TAKEN: u32 = u32::MAX;
const DROPPED: u32 = 2;
const SENT_ON: u32 = 7;

const SYN: u8 = 2;
const ACK: u8 = 16;

/// The programs on no interface.
struct Trial(Object);

/// Addresses of a test in a family. Sockets of this machine are at the loopback address.
#[derive(Clone, Copy, Debug)]
struct Addresses {
    balancer: IpAddr,
    member: IpAddr,
    rule: IpAddr,
    others: [IpAddr; 2],
}

fn families() -> [Addresses; 2] {
    let all = |texts: [&str; 5]| {
        let [balancer, member, rule, other, third] = texts.map(|text| text.parse().unwrap());
        Addresses {
            balancer,
            member,
            rule,
            others: [other, third],
        }
    };
    [
        all([
            "192.0.2.1",
            "127.0.0.9",
            "127.0.0.1",
            "192.0.2.10",
            "192.0.2.11",
        ]),
        all(["2001:db8::1", "::1", "::1", "2001:db8::10", "2001:db8::11"]),
    ]
}

impl Trial {
    /// `None` if this machine does not let us, which is said.
    fn new() -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            report_skipped("no right to load BPF programs; run it as root");
            return None;
        }
        let opened = bpf::open_programs(crate::bpf_object!("receive.bpf.o"));
        let loaded = opened.and_then(|object| object.load().map_err(failed_to("load programs")));
        let object = match loaded {
            Ok(object) => object,
            Err(error @ (BpfError::Rights(_) | BpfError::NoBtf(_))) => {
                report_skipped(error);
                return None;
            }
            Err(error) => panic!("{error}"),
        };
        for addresses in families() {
            let size = find_segment_size(addresses.rule, 1500).to_ne_bytes();
            for (name, ip) in [(BALANCERS, addresses.balancer), (RECEIVED, addresses.rule)] {
                let map = find_map(&object, name).unwrap();
                map.update(&write_ip(ip), &size, MapFlags::ANY).unwrap();
            }
        }
        Some(Trial(object))
    }

    fn run(&self, program: &str, frame: &[u8]) -> (u32, Vec<u8>) {
        let mut out = [0; 4096];
        let input = ProgramInput {
            data_in: Some(frame),
            data_out: Some(&mut out),
            ..ProgramInput::default()
        };
        let program = find_program_mut(&self.0, program).unwrap();
        let output = program.test_run(input).unwrap();
        (output.return_value, output.data.unwrap().to_vec())
    }

    /// Gives a packet of a tunnel to the program.
    fn receive(&self, frame: &[u8]) -> (u32, Vec<u8>) {
        self.run("evk_receive", frame)
    }

    fn count(&self, name: &str) -> u64 {
        let at = PACKETS.iter().position(|(known, _)| *known == name);
        let map = find_map(&self.0, COUNTS).unwrap();
        let values = map.lookup_percpu(&(at.unwrap() as u32).to_ne_bytes(), MapFlags::ANY);
        let of_cpu = |bytes: Vec<u8>| u64::from_ne_bytes(*bytes.first_chunk().unwrap());
        values.unwrap().unwrap().into_iter().map(of_cpu).sum()
    }
}

fn sum_words(parts: &[&[u8]]) -> u16 {
    let words = parts.iter().flat_map(|part| part.chunks(2));
    let mut sum: u32 = words
        .map(|word| u32::from(word[0]) << 8 | u32::from(*word.get(1).unwrap_or(&0)))
        .sum();
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

fn write_ip_header(from: IpAddr, to: IpAddr, protocol: u8, length: usize) -> Vec<u8> {
    match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let total = (20 + length as u16).to_be_bytes();
            let head = [
                0x45, 0, total[0], total[1], 0, 0, 0x40, 0, 64, protocol, 0, 0,
            ];
            let mut ip = [&head[..], &from.octets(), &to.octets()].concat();
            let sum = sum_words(&[&ip]).to_be_bytes();
            ip[10..12].copy_from_slice(&sum);
            ip
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let length = (length as u16).to_be_bytes();
            let head = [0x60, 0, 0, 0, length[0], length[1], protocol, 64];
            [&head[..], &from.octets(), &to.octets()].concat()
        }
        _ => panic!("two families"),
    }
}

/// Returns a packet of TCP.
fn write_packet(from: SocketAddr, to: SocketAddr, flags: u8, options: &[u8]) -> Vec<u8> {
    let offset = (20 + options.len()) as u8;
    let mut tcp = [from.port().to_be_bytes(), to.port().to_be_bytes()].concat();
    tcp.extend([0, 0, 0, 1, 0, 0, 0, 1, offset << 2, flags, 1, 0, 0, 0, 0, 0]);
    tcp.extend(options);
    let sum = sum_tcp(from.ip(), to.ip(), &tcp).to_be_bytes();
    tcp[16..18].copy_from_slice(&sum);
    [write_ip_header(from.ip(), to.ip(), 6, tcp.len()), tcp].concat()
}

/// Returns the checksum of TCP. Addresses of IPv4 are summed without the words before.
fn sum_tcp(from: IpAddr, to: IpAddr, tcp: &[u8]) -> u16 {
    let (from_ip, to_ip) = (write_ip(from), write_ip(to));
    let first = if from.is_ipv4() { 12 } else { 0 };
    let pseudo = (tcp.len() as u32 + 6).to_be_bytes();
    sum_words(&[&from_ip[first..], &to_ip[first..], &pseudo, tcp])
}

fn write_frame(ip: &[u8]) -> Vec<u8> {
    let kind = if ip[0] >> 4 == 4 {
        [8, 0]
    } else {
        [0x86, 0xdd]
    };
    [&[0; 12][..], &kind, ip].concat()
}

/// Returns the frame of a tunnel with a packet, which names both others; `next` is the first that has not had the packet.
fn write_tunnel(addresses: &Addresses, next: u8, inner: &[u8]) -> Vec<u8> {
    let ips = addresses.others.map(|ip| match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    });
    let private = [&[1, next, 2, 0][..], &ips.concat()].concat();
    let protocol = if addresses.rule.is_ipv4() { 4 } else { 41 };
    let gue = [(private.len() / 4) as u8, protocol, 0, 0];
    let length = (8 + gue.len() + private.len() + inner.len()) as u16;
    let udp = [0xc123u16, 6080, length, 0].map(u16::to_be_bytes).concat();
    let payload = [&udp[..], &gue, &private, inner].concat();
    let (from, to) = (addresses.balancer, addresses.member);
    let ip = write_ip_header(from, to, 17, payload.len());
    write_frame(&[ip, payload].concat())
}

/// Offset of the header of GUE in a frame.
fn find_gue(addresses: &Addresses) -> usize {
    14 + 8 + if addresses.rule.is_ipv4() { 20 } else { 40 }
}

/// Connection of this machine with itself: both ends, and their addresses.
fn connect(addresses: &Addresses) -> (TcpStream, TcpStream, SocketAddr, SocketAddr) {
    let listener = TcpListener::bind((addresses.rule, 0)).unwrap();
    let at = listener.local_addr().unwrap();
    let client = TcpStream::connect(at).unwrap();
    let (server, from) = listener.accept().unwrap();
    (client, server, from, at)
}

#[test]
fn s41_members_take_connections_that_begin_or_are_theirs_out_of_tunnels() {
    let Some(trial) = Trial::new() else { return };
    for addresses in families() {
        let (_client, mut server, from, at) = connect(&addresses);
        server.write_all(b"x").unwrap();
        let stranger = SocketAddr::new(from.ip(), 1);
        for (packet, next) in [
            (write_packet(stranger, at, SYN, &[2, 4, 5, 180]), 0),
            (write_packet(from, at, ACK, &[]), 0),
            // The last member of the row answers with a RST.
            (write_packet(stranger, at, ACK, &[]), 2),
        ] {
            let taken = trial.count("taken");
            let (answer, out) = trial.receive(&write_tunnel(&addresses, next, &packet));
            assert_eq!(answer, NOT_TAKEN);
            assert_eq!(out, write_frame(&packet), "{addresses:?}");
            assert_eq!(trial.count("taken"), taken + 1);
        }
    }
}

#[test]
fn s41_members_hand_packets_of_other_members_on() {
    let Some(trial) = Trial::new() else { return };
    for addresses in families() {
        // A listener alone has no connection.
        let listener = TcpListener::bind((addresses.rule, 0)).unwrap();
        let at = listener.local_addr().unwrap();
        let stranger = SocketAddr::new(addresses.rule, 1);
        let packet = write_packet(stranger, at, ACK, &[]);
        for next in [0, 1] {
            let handed_on = trial.count("handed_on");
            let (answer, out) = trial.receive(&write_tunnel(&addresses, next, &packet));
            assert_eq!(answer, SENT_ON);
            let to = addresses.others[usize::from(next)];
            let mut wanted = write_tunnel(
                &Addresses {
                    member: to,
                    ..addresses
                },
                next + 1,
                &packet,
            );
            let lifetime = if to.is_ipv4() { 14 + 8 } else { 14 + 7 };
            wanted[lifetime] -= 1;
            if to.is_ipv4() {
                wanted[24..26].fill(0);
                let sum = sum_words(&[&wanted[14..34]]).to_be_bytes();
                wanted[24..26].copy_from_slice(&sum);
            }
            assert_eq!(out, wanted);
            assert_eq!(trial.count("handed_on"), handed_on + 1);
        }
        // A packet that has lived for long goes nowhere.
        let mut old = write_tunnel(&addresses, 0, &packet);
        old[if addresses.rule.is_ipv4() { 22 } else { 21 }] = 1;
        assert_eq!(trial.receive(&old).0, DROPPED);
    }
}

#[test]
fn s41_errors_of_icmp_go_to_the_member_with_the_connection() {
    let Some(trial) = Trial::new() else { return };
    for addresses in families() {
        let (_client, _server, from, at) = connect(&addresses);
        let write_error = |client: SocketAddr| {
            let quoted = write_packet(at, client, ACK, &[]);
            let (kind, protocol) = match addresses.rule {
                IpAddr::V4(_) => ([3, 4, 0, 0, 0, 0, 5, 0], 1),
                IpAddr::V6(_) => ([2, 0, 0, 0, 0, 0, 5, 0], 58),
            };
            let message = [&kind[..], &quoted].concat();
            let ip = write_ip_header(client.ip(), at.ip(), protocol, message.len());
            [ip, message].concat()
        };
        let mine = write_error(from);
        let (answer, out) = trial.receive(&write_tunnel(&addresses, 0, &mine));
        assert_eq!((answer, out), (NOT_TAKEN, write_frame(&mine)));
        let other = write_error(SocketAddr::new(from.ip(), 1));
        let (answer, _) = trial.receive(&write_tunnel(&addresses, 0, &other));
        assert_eq!(answer, SENT_ON);
    }
}

#[test]
fn s41_tunnels_of_strangers_are_not_taken() {
    let Some(trial) = Trial::new() else { return };
    for addresses in families() {
        let at = SocketAddr::new(addresses.rule, 80);
        let packet = write_packet(SocketAddr::new(addresses.rule, 1), at, SYN, &[]);
        let forged = Addresses {
            balancer: addresses.others[0],
            ..addresses
        };
        let frame = write_tunnel(&forged, 0, &packet);
        let strangers = trial.count("stranger");
        assert_eq!(trial.receive(&frame), (NOT_TAKEN, frame));
        assert_eq!(trial.count("stranger"), strangers + 1);
        // Another port, and another machine's hardware address.
        let mut other = write_tunnel(&addresses, 0, &packet);
        other[find_gue(&addresses) - 5] ^= 1;
        assert_eq!(trial.receive(&other), (NOT_TAKEN, other.clone()));
        let mut other = write_tunnel(&addresses, 0, &packet);
        other[5] = 9;
        assert_eq!(trial.receive(&other), (NOT_TAKEN, other.clone()));
    }
}

#[test]
fn s41_malformed_tunnels_are_dropped() {
    let Some(trial) = Trial::new() else { return };
    for addresses in families() {
        let at = SocketAddr::new(addresses.rule, 80);
        let packet = write_packet(SocketAddr::new(addresses.rule, 1), at, SYN, &[]);
        let good = write_tunnel(&addresses, 0, &packet);
        assert_eq!(trial.receive(&good).0, NOT_TAKEN);
        let gue = find_gue(&addresses);
        let words = usize::from(good[gue]);
        let inner = gue + 4 + 4 * words;
        let is_v4 = addresses.rule.is_ipv4();
        let protocol = inner + if is_v4 { 9 } else { 6 };
        let inner_length = inner + if is_v4 { 3 } else { 5 };
        let last = inner + if is_v4 { 19 } else { 39 };
        let changes = [
            ("a version of GUE", gue, 0x40 | words as u8),
            ("a control message", gue, 0x20 | words as u8),
            ("fewer words", gue, 1),
            ("more words", gue, 31),
            ("another family within", gue + 1, if is_v4 { 41 } else { 4 }),
            ("flags", gue + 3, 1),
            ("another type", gue + 4, 2),
            ("a number behind the list", gue + 5, 3),
            ("a list that is too long", gue + 6, 3),
            ("a length of UDP", gue - 3, 3),
            ("a version within", inner, 0x15),
            ("a protocol within", protocol, 17),
            ("a length within that is too long", inner_length, 200),
            ("a length within that is too short", inner_length, 3),
            ("an address that is not received for", last, 77),
        ];
        for (name, at, value) in changes {
            let mut bad = good.clone();
            assert_ne!(bad[at], value, "{name}");
            bad[at] = value;
            let malformed = trial.count("malformed");
            assert_eq!(trial.receive(&bad).0, DROPPED, "{name} {addresses:?}");
            assert_eq!(trial.count("malformed"), malformed + 1, "{name}");
        }
        // The kernel tries no program with less.
        for length in 54..good.len() {
            let (answer, _) = trial.receive(&good[..length]);
            // What has no header of GUE is none of ours.
            let is_ours = length >= gue + 4;
            assert_eq!(
                answer,
                if is_ours { DROPPED } else { NOT_TAKEN },
                "{length}"
            );
        }
    }
}

#[test]
fn s41_no_packet_leaves_a_tunnel_for_an_address_that_is_not_received_for() {
    let Some(trial) = Trial::new() else { return };
    let at = |addresses: &Addresses| SocketAddr::new(addresses.rule, 80);
    let strategy = (
        0..2usize,
        prop::collection::vec((14..200usize, any::<u8>()), 0..6),
        0..200usize,
    );
    let config = ProptestConfig::with_cases(2000);
    proptest!(config, |((family, changes, cut) in strategy)| {
        let addresses = families()[family];
        let client = SocketAddr::new(addresses.rule, 1);
        let packet = write_packet(client, at(&addresses), ACK | SYN, &[1; 20]);
        let mut frame = write_tunnel(&addresses, 0, &packet);
        for (at, value) in changes {
            if let Some(byte) = frame.get_mut(at) {
                *byte = value;
            }
        }
        if cut > 54 {
            frame.truncate(frame.len().min(cut));
        }
        let (answer, out) = trial.receive(&frame);
        let is_taken = answer == NOT_TAKEN && out.len() != frame.len();
        if is_taken {
            let (place, length) = if addresses.rule.is_ipv4() { (30, 4) } else { (38, 16) };
            let rule = write_ip(addresses.rule);
            prop_assert_eq!(&out[place..place + length], &rule[16 - length..]);
        }
    });
}

#[test]
fn s41_acceptances_leave_room_for_the_tunnel() {
    let Some(trial) = Trial::new() else { return };
    for addresses in families() {
        let (rule, client) = (
            SocketAddr::new(addresses.rule, 80),
            SocketAddr::new(addresses.others[0], 5000),
        );
        let wanted = find_segment_size(addresses.rule, 1500);
        assert_eq!(wanted, if rule.is_ipv4() { 1416 } else { 1352 });
        let [high, low] = (wanted as u16).to_be_bytes();
        let cases: [(&[u8], &[u8]); 5] = [
            (&[2, 4, 5, 180, 1, 3, 3, 7], &[2, 4, high, low, 1, 3, 3, 7]),
            (&[1, 2, 4, 5, 180, 0, 0, 0], &[1, 2, 4, high, low, 0, 0, 0]),
            (&[2, 4, 2, 0], &[2, 4, 2, 0]),
            (&[3, 0, 2, 4], &[3, 0, 2, 4]),
            (&[1, 1, 1, 2], &[1, 1, 1, 2]),
        ];
        for (options, told) in cases {
            let frame = write_frame(&write_packet(rule, client, SYN | ACK, options));
            let (answer, out) = trial.run("evk_clamp", &frame);
            assert_eq!(answer, NOT_TAKEN);
            let same = write_frame(&write_packet(rule, client, SYN | ACK, told));
            assert_eq!(out, same, "{options:?}");
        }
        // Neither what clients send, nor connections of others.
        let large = [2, 4, 5, 180];
        for packet in [
            write_packet(rule, client, SYN, &large),
            write_packet(client, rule, SYN | ACK, &large),
        ] {
            let frame = write_frame(&packet);
            assert_eq!(trial.run("evk_clamp", &frame), (NOT_TAKEN, frame.clone()));
        }
    }
}

#[test]
fn s41_segments_have_a_least_size() {
    assert_eq!(find_segment_size(Ipv4Addr::LOCALHOST.into(), 100), 216);
    assert_eq!(find_segment_size(Ipv4Addr::LOCALHOST.into(), 9000), 8916);
}
