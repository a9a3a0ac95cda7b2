//! Native XDP: the same packets as by tc, for those that are not left to tc.

use std::cell::Cell;
use std::process::Command;

use libbpf_rs::{Xdp, XdpFlags};

use super::direct::serve_direct;
use super::nat::{read_timestamps, serve_with_nat, write_options};
use super::packets::*;
use super::*;
use crate::forward::xdp;

/// Answer of the XDP program that leaves a packet to tc, and of one that sends the packet on.
const PASS: u32 = 2;
const XDP_REDIRECT: u32 = 4;

/// Member of the tests.
const MEMBER: u8 = 9;

/// Both programs on an interface, and the neighbours that XDP must know already.
pub(super) struct Bench<'a> {
    forwarder: &'a Forwarder,
    interface: u32,
}

impl<'a> Bench<'a> {
    pub(super) fn new(forwarder: &'a Forwarder, interface: u32) -> Self {
        let members = [Family::V4, Family::V6].map(|family| family.member(MEMBER).ip());
        for ip in members {
            let status = Command::new("ip")
                .args(["neigh", "add", &ip.to_string()])
                .args(["lladdr", "02:00:00:00:00:09", "dev", "evk0"])
                .status();
            assert!(status.unwrap().success());
        }
        let bench = Bench {
            forwarder,
            interface,
        };
        bench.set_target(true);
        // Without a program the interface has no place for frames of XDP.
        let program = find_program(&forwarder.object, xdp::PROGRAM).unwrap();
        Xdp::new(program.as_fd())
            .attach(interface.cast_signed(), XdpFlags::DRV_MODE)
            .unwrap();
        bench
    }

    /// Lets packets be sent to the interface, or not.
    fn set_target(&self, holds: bool) {
        let map = find_map(&self.forwarder.object, "evk_targets").unwrap();
        let key = self.interface.to_ne_bytes();
        if holds {
            map.update(&key, &key, MapFlags::ANY).unwrap();
        } else {
            map.delete(&key).unwrap();
        }
    }

    /// Gives a frame to XDP. Returns the frame that is sent on; `None` if XDP leaves the packet to tc.
    pub(super) fn send_xdp(&self, frame: &[u8]) -> Option<Vec<u8>> {
        // struct xdp_md: data, end, metadata, interface, queue, interface out.
        let words = [0, frame.len() as u32, 0, self.interface, 0, 0];
        let mut context: Vec<u8> = words.into_iter().flat_map(u32::to_ne_bytes).collect();
        match run_on_frame(self.forwarder, xdp::PROGRAM, &mut context, frame) {
            (XDP_REDIRECT, sent) => Some(sent),
            (other, left) => {
                assert_eq!(other, PASS, "{frame:?}");
                assert_eq!(left, frame, "left as it was");
                None
            }
        }
    }

    fn send_tc(&self, frame: &[u8]) -> Option<Vec<u8>> {
        send_frame(self.forwarder, self.interface, frame)
    }

    /// Gives a frame to XDP and then to tc, and checks that both send the same. Returns true if XDP has sent the frame.
    fn compare(&self, frame: &[u8]) -> bool {
        let by_xdp = self.send_xdp(frame);
        let by_tc = self.send_tc(frame);
        let Some(by_xdp) = by_xdp else { return false };
        let by_tc = by_tc.unwrap_or_else(|| panic!("tc does not take {frame:?}"));
        // tc leaves the neighbour's address to the kernel.
        assert_eq!(by_xdp[12..], by_tc[12..], "{frame:?}");
        true
    }

    /// Opens a connection by tc: until the member has answered with a byte if `is_answered`. Returns packets with data
    /// of both sides, of the middle of the connection.
    pub(super) fn open(&self, family: Family, port: u16, is_answered: bool) -> [Segment; 2] {
        let syn = Segment {
            options: write_options(1_000, 0),
            ..Segment::new(family.client(port), family.listener(), SYN)
        };
        let frame = self.send_tc(&syn.write()).unwrap();
        let sent = Segment::read(&frame);
        let (shifted, _) = read_timestamps(&sent.options);
        let accepted = Segment {
            sequence: 7_000,
            answered: 2,
            options: write_options(55, shifted),
            ..Segment::new(sent.to, sent.from, SYN | ACK)
        };
        self.send_tc(&accepted.write()).unwrap();
        let usual = |ours: u32, theirs: u32| {
            [
                &[1, 1, 8, 10][..],
                &ours.to_be_bytes(),
                &theirs.to_be_bytes(),
            ]
            .concat()
        };
        let ours = Segment {
            sequence: 2,
            answered: 7_001,
            options: usual(1_002, 55),
            ..Segment::new(syn.from, syn.to, ACK)
        };
        let theirs = Segment {
            sequence: 7_001,
            answered: 2,
            options: usual(57, shifted),
            ..Segment::new(sent.to, sent.from, ACK)
        };
        // The middle begins with the client's acknowledgement.
        assert!(!self.compare(&ours.write()));
        let with_data = |segment: Segment| Segment {
            data: b"some data!".to_vec(),
            ..segment
        };
        if is_answered {
            assert!(!self.compare(&with_data(theirs.clone()).write()));
        }
        [with_data(ours), with_data(theirs)]
    }
}

fn run(test: impl FnOnce(&Bench<'_>) + Send) {
    run_beside_routes(|forwarder, interface| test(&Bench::new(forwarder, interface)));
}

pub(super) fn serve(bench: &Bench<'_>, family: Family, has_nat: bool) {
    let members = [family.member(MEMBER)];
    if has_nat {
        serve_with_nat(bench.forwarder, &members, 0);
    } else {
        serve_members(bench.forwarder, &members, 0);
    }
}

#[test]
fn s41_xdp_forwards_the_middle_of_connections_as_tc_does() {
    run(|bench| {
        let mut port = 3_000;
        for family in [Family::V4, Family::V6] {
            for has_nat in [false, true] {
                serve(bench, family, has_nat);
                port += 1;
                let sides = bench.open(family, port, true);
                let before = read_outcome(bench.forwarder, "by_xdp");
                for side in &sides {
                    assert!(bench.compare(&side.write()), "{side:?}");
                    // Without options, and with more behind the timestamps.
                    let plain = Segment {
                        options: Vec::new(),
                        ..side.clone()
                    };
                    assert!(bench.compare(&plain.write()), "{plain:?}");
                    let more = [&side.options[..], &[1, 1, 5, 10, 0, 0, 0, 1, 0, 0, 0, 2]].concat();
                    let more = Segment {
                        options: more,
                        ..side.clone()
                    };
                    assert!(bench.compare(&more.write()), "{more:?}");
                }
                assert_eq!(read_outcome(bench.forwarder, "by_xdp"), before + 6);
                let frame = bench.send_xdp(&sides[0].write()).unwrap();
                assert_eq!(frame[..6], [2, 0, 0, 0, 0, 9], "the member's address");
                assert_eq!(Segment::read(&frame).to, family.member(MEMBER));
                let frame = bench.send_xdp(&sides[1].write()).unwrap();
                assert_eq!(frame[..6], [2, 0, 0, 0, 0, 7], "the client's address");
            }
        }
    });
}

#[test]
fn s41_xdp_sends_packets_to_members_that_answer_directly() {
    run(|bench| {
        for (port, family) in [(6_000, Family::V4), (6_100, Family::V6)] {
            serve_direct(bench.forwarder, &[family.member(MEMBER)], 0);
            let syn = Segment::new(family.client(port), family.listener(), SYN);
            bench.send_tc(&syn.write()).unwrap();
            let ours = Segment {
                sequence: 2,
                answered: 7_001,
                data: b"some data!".to_vec(),
                ..Segment::new(syn.from, syn.to, ACK)
            };
            // The first acknowledgement shows that the member has accepted.
            assert!(!bench.compare(&ours.write()));
            assert!(bench.compare(&ours.write()));
            let frame = bench.send_xdp(&ours.write()).unwrap();
            assert_eq!(frame[..6], [2, 0, 0, 0, 0, 9], "the member's address");
            let all = list_connections(bench.forwarder);
            let own = all.iter().find(|one| one.pair.client == syn.from).unwrap();
            assert!(own.is_open());
            let reply = Segment::new(family.listener(), syn.from, ACK);
            assert_eq!(bench.send_xdp(&reply.write()), None);
            let end = Segment {
                flags: ACK | FIN,
                sequence: 12,
                data: Vec::new(),
                ..ours.clone()
            };
            assert_eq!(bench.send_xdp(&end.write()), None);
            bench.send_tc(&end.write()).unwrap();
            assert_eq!(bench.send_xdp(&ours.write()), None);
        }
    });
}

#[test]
fn s41_xdp_leaves_news_to_tc() {
    run(|bench| {
        for (port, family) in [(4_000, Family::V4), (4_100, Family::V6)] {
            serve(bench, family, false);
            let [ours, theirs] = bench.open(family, port, false);
            // The member's first byte is news for the balancer.
            assert_eq!(bench.send_xdp(&theirs.write()), None);
            let empty = Segment {
                data: Vec::new(),
                ..theirs.clone()
            };
            assert!(bench.compare(&empty.write()));
            bench.send_tc(&theirs.write()).unwrap();
            assert!(bench.compare(&theirs.write()));
            // A SYN, ends, and packets without an acknowledgement.
            for flags in [0, SYN, RST, FIN, ACK | RST, ACK | FIN, SYN | ACK] {
                for side in [&ours, &theirs] {
                    let other = Segment {
                        flags,
                        ..side.clone()
                    };
                    assert_eq!(bench.send_xdp(&other.write()), None, "{other:?}");
                }
            }
            // Strangers.
            let stranger = Segment {
                from: family.client(port + 1),
                ..ours.clone()
            };
            assert_eq!(bench.send_xdp(&stranger.write()), None);
            // A neighbour that takes nothing from XDP.
            bench.set_target(false);
            assert_eq!(bench.send_xdp(&ours.write()), None);
            bench.set_target(true);
            assert!(bench.compare(&ours.write()));
            // A checksum that is left to the interface: the sum of the addresses alone.
            let mut frame = ours.write();
            let tcp = if family == Family::V4 { 34 } else { 54 };
            let pseudo = write_pseudo_header(ours.from.ip(), ours.to.ip(), 6, frame.len() - tcp);
            let sum = !sum_words([&pseudo[..]]);
            frame[tcp + 16..tcp + 18].copy_from_slice(&sum.to_be_bytes());
            assert_eq!(bench.send_xdp(&frame), None);
            // The end: late packets are those of tc.
            for side in [&ours, &theirs] {
                let end = Segment {
                    flags: FIN | ACK,
                    sequence: side.sequence + 10,
                    data: Vec::new(),
                    ..side.clone()
                };
                bench.send_tc(&end.write()).unwrap();
            }
            assert_eq!(bench.send_xdp(&ours.write()), None);
            assert_eq!(bench.send_xdp(&theirs.write()), None);
        }
    });
}

#[test]
fn s41_xdp_sends_nothing_of_hostile_frames_that_tc_does_not_send() {
    run(|bench| {
        let mut sides = Vec::new();
        for (port, family) in [(5_000, Family::V4), (5_100, Family::V6)] {
            for (port, has_nat) in [(port, false), (port + 1, true)] {
                serve(bench, family, has_nat);
                sides.extend(bench.open(family, port, true).map(|side| side.write()));
            }
        }
        let changes = proptest::collection::vec((0..120usize, any::<u8>()), 0..6);
        let frames = (0..sides.len(), changes, proptest::option::of(54..120usize));
        let mut runner = TestRunner::default();
        let taken = Cell::new(0);
        runner
            .run(&frames, |(side, changes, length)| {
                let mut frame = sides[side].clone();
                for (at, byte) in changes {
                    let at = at % frame.len();
                    frame[at] = byte;
                }
                if let Some(length) = length {
                    frame.resize(length, 0);
                }
                if bench.compare(&frame) {
                    taken.set(taken.get() + 1);
                }
                Ok(())
            })
            .unwrap();
        assert!(taken.get() > 0, "some frames are taken");
    });
}
