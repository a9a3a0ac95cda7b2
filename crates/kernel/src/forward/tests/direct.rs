//! Direct answers of members, with packets that tests make.

use std::process::Command;

use super::packets::*;
use super::*;
use crate::netlink::{Route, find_route};

/// Lets the program begin connections with direct answers.
pub(super) fn serve_direct(forwarder: &Forwarder, members: &[SocketAddr], retries: u32) {
    serve_members(forwarder, members, retries);
    let listeners = [Family::V4, Family::V6].map(|family| Listener {
        is_direct: true,
        ..listener(family, 0, retries)
    });
    forwarder.set_listeners(&listeners).unwrap();
}

/// A client of a listener.
struct Scene<'a> {
    forwarder: &'a Forwarder,
    interface: u32,
    family: Family,
    port: u16,
}

impl Scene<'_> {
    /// Packet of the client, with as many bytes of data.
    fn packet(&self, flags: u8, sequence: u32, answered: u32, data: usize) -> Segment {
        Segment {
            sequence,
            answered,
            options: vec![1, 1, 1, 0],
            data: vec![b'x'; data],
            ..Segment::new(self.family.client(self.port), self.family.listener(), flags)
        }
    }

    /// Lets the program take a packet, which must go on as it came but for the lifetime.
    fn pass(&self, packet: &Segment) {
        let mut frame = packet.write();
        let sent = send_frame(self.forwarder, self.interface, &frame);
        lower_lifetime(&mut frame);
        assert_eq!(sent, Some(frame), "{packet:?}");
    }

    fn connection(&self) -> Connection {
        let client = self.family.client(self.port);
        let all = list_connections(self.forwarder);
        let found = all.into_iter().find(|one| one.pair.client == client);
        found.expect("the connection is in the table")
    }

    fn steps(&self) -> Vec<(Step, (u64, u64))> {
        let events = self.forwarder.take_events().unwrap();
        events.iter().map(|one| (one.step, one.bytes)).collect()
    }

    /// Sets the time of the SYN to this long ago.
    fn set_age(&self, age: Duration) {
        let map = find_map(&self.forwarder.object, "evk_connections").unwrap();
        let key = layout::write_address(self.family.client(self.port));
        let mut value = map.lookup(&key, MapFlags::ANY).unwrap().unwrap();
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let now = Duration::try_from(now).unwrap();
        let began = now.saturating_sub(age).as_nanos() as u64;
        value[..8].copy_from_slice(&began.to_ne_bytes());
        map.update(&key, &value, MapFlags::ANY).unwrap();
    }

    fn remove_all(&self) {
        for connection in list_connections(self.forwarder) {
            assert!(self.forwarder.remove_connection(&connection).unwrap());
        }
        self.forwarder.take_events().unwrap();
    }
}

fn run_scenes(test: impl Fn(&Scene<'_>) + Sync) {
    run_beside_routes(|forwarder, interface| {
        for family in [Family::V4, Family::V6] {
            let scene = Scene {
                forwarder,
                interface,
                family,
                port: 5000,
            };
            test(&scene);
            scene.remove_all();
        }
    });
}

#[test]
fn s41_packets_of_clients_go_to_the_member_as_they_are() {
    run_scenes(|scene| {
        let (forwarder, member) = (scene.forwarder, scene.family.member(9));
        serve_direct(forwarder, &[member], 0);
        let before = forwarder.read_counts(0).unwrap();
        scene.pass(&scene.packet(SYN, 100, 0, 0));
        let connection = scene.connection();
        assert_eq!(connection.pair.member, member);
        assert_eq!(connection.listener, scene.family.listener());
        assert!(!connection.is_established() && connection.is_open());
        assert_eq!(scene.steps(), [(Step::Begin, (0, 0))]);
        // The acknowledgement shows that the member has accepted.
        scene.pass(&scene.packet(ACK, 101, 901, 0));
        assert!(scene.connection().is_established() && scene.connection().is_confirmed());
        scene.pass(&scene.packet(ACK, 101, 901, 40));
        // The client sends again what was lost, and acknowledges what has come.
        scene.pass(&scene.packet(ACK, 101, 901, 40));
        scene.pass(&scene.packet(ACK, 141, 961, 0));
        assert_eq!(forwarder.read_counts(0).unwrap().in_flight, 1);
        // The client ends, and takes the rest of the member's data.
        scene.pass(&scene.packet(FIN | ACK, 141, 961, 0));
        assert_eq!(
            scene.steps(),
            [(Step::Confirm, (0, 0)), (Step::End(End::Closed), (80, 60))]
        );
        scene.pass(&scene.packet(FIN | ACK, 141, 961, 0));
        scene.pass(&scene.packet(ACK, 142, 999, 0));
        assert!(!scene.connection().is_open());
        assert_eq!(scene.steps(), []);
        let counts = forwarder.read_counts(0).unwrap();
        assert_eq!(counts.in_flight, 0);
        assert_eq!(counts.closed, before.closed + 1);
        assert_eq!(counts.handshakes.0, before.handshakes.0 + 1);
        assert_eq!(counts.answers, (0, 0), "nobody sees the answers");
        // The port is used again.
        scene.pass(&scene.packet(SYN, 70_000, 0, 0));
        assert!(scene.connection().is_open());
    });
}

#[test]
fn s41_strangers_neither_confirm_nor_end_direct_connections() {
    run_scenes(|scene| {
        serve_direct(scene.forwarder, &[scene.family.member(9)], 0);
        scene.pass(&scene.packet(SYN, 100, 0, 0));
        for sequence in [0, 99, 100, 102, 1 << 31] {
            scene.pass(&scene.packet(ACK, sequence, 901, 0));
            scene.pass(&scene.packet(FIN | ACK, sequence, 901, 0));
            scene.pass(&scene.packet(RST, sequence, 0, 0));
            assert!(!scene.connection().is_established(), "{sequence}");
        }
        scene.pass(&scene.packet(ACK, 101, 901, 0));
        let far = 1 << 27;
        for (sequence, answered) in [
            (101 - 10, 901),
            (101 + (1 << 17), 901 + (1 << 17)),
            (101 + far, 901),
            (101, 901 - 1),
            (101, 901 + far),
        ] {
            scene.pass(&scene.packet(FIN | ACK, sequence, answered, 0));
            scene.pass(&scene.packet(RST, sequence + 1, answered, 0));
        }
        // A SYN with other numbers is the member's to answer.
        scene.pass(&scene.packet(SYN, 77_777, 0, 0));
        assert!(scene.connection().is_open());
        let steps: Vec<_> = scene.steps().into_iter().map(|(step, _)| step).collect();
        assert_eq!(steps, [Step::Begin, Step::Confirm]);
    });
}

#[test]
fn s41_resets_of_clients_end_direct_connections() {
    run_scenes(|scene| {
        serve_direct(scene.forwarder, &[scene.family.member(9)], 0);
        scene.pass(&scene.packet(SYN, u32::MAX, 0, 0));
        scene.pass(&scene.packet(ACK, 0, 901, 6));
        scene.pass(&scene.packet(RST, 6, 0, 0));
        assert_eq!(
            scene.steps(),
            [
                (Step::Begin, (0, 0)),
                (Step::Confirm, (6, 0)),
                (Step::End(End::ClientReset), (6, 0))
            ]
        );
        assert_eq!(scene.forwarder.read_counts(0).unwrap().in_flight, 0);
    });
}

#[test]
fn s41_a_syn_that_comes_again_late_goes_to_another_direct_member() {
    run_scenes(|scene| {
        let members = [scene.family.member(9), scene.family.member(10)];
        serve_direct(scene.forwarder, &members, 1);
        let syn = scene.packet(SYN, 100, 0, 0);
        scene.pass(&syn);
        let first = scene.connection().pair.member;
        // The acceptance may have been lost, or be on the way.
        scene.set_age(Duration::from_millis(1100));
        scene.pass(&syn);
        assert_eq!(scene.connection().pair.member, first);
        scene.forwarder.take_events().unwrap();
        scene.set_age(Duration::from_secs(3));
        scene.pass(&syn);
        let second = scene.connection().pair.member;
        assert_ne!(second, first);
        let steps: Vec<_> = scene.steps().into_iter().map(|(step, _)| step).collect();
        assert_eq!(steps, [Step::End(End::Refused), Step::Begin]);
        assert_eq!(
            read_outcome(scene.forwarder, "retried") % 2,
            1 - u64::from(scene.family == Family::V6)
        );
        // There is no third member.
        scene.set_age(Duration::from_secs(3));
        scene.pass(&syn);
        assert_eq!(scene.connection().pair.member, second);
        scene.pass(&scene.packet(ACK, 101, 5, 0));
        assert!(scene.connection().is_established());
        let in_flight = |seat| scene.forwarder.read_counts(seat).unwrap().in_flight;
        assert_eq!(in_flight(0) + in_flight(1), 1);
    });
}

#[test]
fn s41_direct_connections_that_nobody_ends_are_removed_by_silence() {
    run_scenes(|scene| {
        serve_direct(scene.forwarder, &[scene.family.member(9)], 0);
        // The member's RST is not seen: the connection is one that was not accepted.
        scene.pass(&scene.packet(SYN, 100, 0, 0));
        let connection = scene.connection();
        assert!(scene.forwarder.remove_connection(&connection).unwrap());
        let steps: Vec<_> = scene.steps().into_iter().map(|(step, _)| step).collect();
        assert_eq!(steps, [Step::Begin, Step::End(End::Refused)]);
        assert_eq!(scene.forwarder.read_counts(0).unwrap().in_flight, 0);
        let syns = find_map(&scene.forwarder.object, "evk_syns").unwrap();
        assert_eq!(syns.keys().count(), 0);
    });
}

#[test]
fn s41_the_proxy_serves_direct_rules_with_members_behind_a_router() {
    run_scenes(|scene| {
        let member = scene.family.address("10.99.0.9:80", "[fd99::9]:80");
        for words in [
            "route replace 10.99.0.0/24 via 10.77.0.5",
            "-6 route replace fd99::/64 via fd77::5",
        ] {
            let status = Command::new("ip").args(words.split(' ')).status();
            assert!(status.unwrap().success(), "ip {words}");
        }
        serve_direct(scene.forwarder, &[member], 0);
        let before = read_outcome(scene.forwarder, "proxied_remote");
        let syn = scene.packet(SYN, 100, 0, 0);
        assert_eq!(try_send(scene.forwarder, scene.interface, &syn), None);
        assert_eq!(read_outcome(scene.forwarder, "proxied_remote"), before + 1);
        assert_eq!(list_connections(scene.forwarder), []);
        // The routes as the balancer sees them.
        let near = Route {
            router: None,
            interface: Some(scene.interface),
            source: Some(scene.family.address("10.77.0.1:0", "[fd77::1]:0").ip()),
        };
        let far = Route {
            router: Some(scene.family.address("10.77.0.5:0", "[fd77::5]:0").ip()),
            ..near
        };
        let find = |member: SocketAddr| find_route(member.ip()).unwrap();
        assert_eq!(find(member), far);
        assert_eq!(find(scene.family.member(9)), near);
    });
}

#[test]
fn s41_answers_that_the_balancer_routes_reach_the_client() {
    run_scenes(|scene| {
        serve_direct(scene.forwarder, &[scene.family.member(9)], 0);
        scene.pass(&scene.packet(SYN, 100, 0, 0));
        scene.forwarder.take_events().unwrap();
        let answer = |flags| {
            let syn = scene.packet(flags, 900, 101, 0);
            Segment {
                from: syn.to,
                to: syn.from,
                ..syn
            }
        };
        for flags in [SYN | ACK, RST | ACK, FIN | ACK] {
            scene.pass(&answer(flags));
        }
        // They are not observed, as members that have another router show nothing either.
        assert_eq!(scene.steps(), []);
        let mut strange = answer(ACK);
        strange.from.set_port(81);
        assert_eq!(try_send(scene.forwarder, scene.interface, &strange), None);
    });
}
