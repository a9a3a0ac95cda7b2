//! Copies of another balancer's connections, with packets that tests make.

use super::direct::serve_direct;
use super::nat::{serve_with_nat, write_options};
use super::packets::*;
use super::*;

/// Way of the members' answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Path {
    Route,
    Nat,
    Direct,
}

/// A connection whose client has sent 10 bytes, and the member 20, and which both have acknowledged.
struct Scene<'a> {
    forwarder: &'a Forwarder,
    interface: u32,
    family: Family,
    path: Path,
    /// Address that the member sees.
    source: SocketAddr,
}

const MEMBER: u8 = 9;

impl<'a> Scene<'a> {
    fn new(forwarder: &'a Forwarder, interface: u32, family: Family, path: Path) -> Self {
        let members = [family.member(MEMBER)];
        match path {
            Path::Route => serve_members(forwarder, &members, 0),
            Path::Nat => serve_with_nat(forwarder, &members, 0),
            Path::Direct => serve_direct(forwarder, &members, 0),
        }
        let mut scene = Scene {
            forwarder,
            interface,
            family,
            path,
            source: family.client(4_000),
        };
        let syn = Segment {
            options: write_options(1_000, 0),
            ..scene.of_client(SYN, 0, 0, 0)
        };
        scene.source = send(forwarder, interface, &syn).from;
        if path != Path::Direct {
            scene.pass(&scene.of_member(SYN | ACK, 5_000, 1, 0));
        }
        scene.pass(&scene.of_client(ACK, 1, 5_001, 10));
        if path != Path::Direct {
            scene.pass(&scene.of_member(ACK, 5_001, 11, 20));
        }
        scene.pass(&scene.of_client(ACK, 11, 5_021, 0));
        scene
    }

    fn of_client(&self, flags: u8, sequence: u32, answered: u32, data: usize) -> Segment {
        let (client, listener) = (self.family.client(4_000), self.family.listener());
        Segment {
            sequence,
            answered,
            data: vec![b'x'; data],
            ..Segment::new(client, listener, flags)
        }
    }

    fn of_member(&self, flags: u8, sequence: u32, answered: u32, data: usize) -> Segment {
        Segment {
            sequence,
            answered,
            data: vec![b'y'; data],
            ..Segment::new(self.family.member(MEMBER), self.source, flags)
        }
    }

    /// Lets the program take a packet, and checks the addresses that the packet has then.
    fn pass(&self, packet: &Segment) {
        let (client, listener) = (self.family.client(4_000), self.family.listener());
        let sent = send(self.forwarder, self.interface, packet);
        let expected = match (packet.from == client, self.path) {
            (true, Path::Direct) => (client, listener),
            (true, _) => (self.source, self.family.member(MEMBER)),
            (false, _) => (listener, client),
        };
        assert_eq!((sent.from, sent.to), expected, "{packet:?}");
    }

    fn find_connection(&self) -> Connection {
        let all = list_connections(self.forwarder);
        let client = self.family.client(4_000);
        let found = all.into_iter().find(|one| one.pair.client == client);
        found.expect("the connection is in the table")
    }

    fn copy(&self) -> TableCopy {
        let mut copies = Vec::new();
        let visit = |_, entry: Entry<'_>| copies.push(entry.copy(self.read_clock()));
        self.forwarder.visit_entries(visit).unwrap();
        copies.pop().unwrap()
    }

    fn read_clock(&self) -> u64 {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        Duration::try_from(now).unwrap().as_nanos() as u64
    }

    fn count(&self) -> (i64, i64) {
        let counts = self.forwarder.read_counts(0).unwrap();
        let listener = self.family.listener();
        let all = self.forwarder.read_listener_counts(listener).unwrap();
        (counts.in_flight, all.open)
    }

    /// Makes the table that of a balancer that knows nothing of the connection.
    fn forget(&self) {
        let connection = self.find_connection();
        assert!(self.forwarder.remove_connection(&connection).unwrap());
        assert_eq!(self.count(), (0, 0));
        self.forwarder.take_events().unwrap();
    }

    fn steps(&self) -> Vec<Step> {
        let events = self.forwarder.take_events().unwrap();
        events.iter().map(|event| event.step).collect()
    }

    fn remove(&self) {
        for connection in list_connections(self.forwarder) {
            assert!(self.forwarder.remove_connection(&connection).unwrap());
        }
        let map = find_map(&self.forwarder.object, "evk_nat_pairs").unwrap();
        assert_eq!(map.keys().count(), 0);
    }
}

/// Runs a test of a connection in both families and on all paths.
fn run_on_all_paths(test: impl Fn(Scene<'_>) + Sync) {
    run_beside_routes(|forwarder, interface| {
        for family in [Family::V4, Family::V6] {
            for path in [Path::Route, Path::Nat, Path::Direct] {
                test(Scene::new(forwarder, interface, family, path));
            }
        }
    });
}

#[test]
fn s41_a_copy_continues_and_counts_when_its_packets_come_here() {
    run_on_all_paths(|scene| {
        let copy = scene.copy();
        scene.forget();
        let written = scene.forwarder.write_copy(&copy).unwrap();
        assert_eq!(written, CopyResult::Written);
        let there = scene.find_connection();
        assert!(there.is_copied() && there.is_open() && there.is_confirmed());
        assert_eq!(there.began_ns, copy.began_ns);
        assert_eq!(there.has_nat, scene.path == Path::Nat);
        // A copy has all that a copy of the copy needs.
        assert_eq!(
            TableCopy {
                seen_ns: 0,
                ..scene.copy()
            },
            TableCopy { seen_ns: 0, ..copy }
        );
        assert_eq!((scene.count(), scene.steps()), ((0, 0), vec![]));

        // Both sides are megabytes further than the copy has it.
        let (client, member) = (9_000_011, 20_005_021);
        scene.pass(&scene.of_client(ACK, client, member, 100));
        if scene.path != Path::Direct {
            // The numbers are others than the copy's, so the member's must agree.
            assert_eq!((scene.count(), scene.steps()), ((0, 0), vec![]));
            scene.pass(&scene.of_member(ACK, member, client + 100, 0));
        }
        assert_eq!((scene.count(), scene.steps()), ((1, 1), vec![Step::Adopt]));
        assert!(!scene.find_connection().is_copied());
        if scene.path == Path::Direct {
            scene.pass(&scene.of_client(FIN | ACK, client + 100, member, 0));
        } else {
            scene.pass(&scene.of_member(ACK, member, client + 100, 50));
            scene.pass(&scene.of_client(FIN | ACK, client + 100, member + 50, 0));
            assert_eq!(scene.count(), (1, 1));
            scene.pass(&scene.of_member(FIN | ACK, member + 50, client + 101, 0));
        }
        assert_eq!(
            (scene.count(), scene.steps()),
            ((0, 0), vec![Step::End(End::Closed)]),
            "{:?}",
            scene.path
        );
        scene.remove();
    });
}

#[test]
fn a_member_may_be_first_after_the_move_and_strangers_end_nothing() {
    run_on_all_paths(|scene| {
        if scene.path != Path::Direct {
            let copy = scene.copy();
            scene.forget();
            scene.forwarder.write_copy(&copy).unwrap();
            // RSTs and FINs with wrong numbers. Strangers do not know what a side has acknowledged.
            scene.pass(&scene.of_client(RST, 77_777, 0, 0));
            scene.pass(&scene.of_client(FIN | ACK, 77_777, 500_000, 0));
            scene.pass(&scene.of_member(RST, 99_999, 0, 0));
            scene.pass(&scene.of_member(FIN | ACK, 99_999, 600_000, 0));
            assert_eq!(scene.steps(), []);
            scene.pass(&scene.of_member(ACK, 6_000, 11, 500));
            assert_eq!(scene.steps(), [Step::Adopt]);
            scene.pass(&scene.of_client(ACK, 11, 6_500, 0));
            scene.pass(&scene.of_client(RST, 11, 0, 0));
            assert_eq!(scene.steps(), [Step::End(End::ClientReset)]);
            assert_eq!(scene.count(), (0, 0));
        }
        scene.remove();
    });
}

#[test]
fn strangers_take_no_copy_over() {
    run_on_all_paths(|scene| {
        if scene.path != Path::Direct {
            let copy = scene.copy();
            scene.forget();
            scene.forwarder.write_copy(&copy).unwrap();
            // A stranger knows the addresses only, and ends what it has begun.
            let (sequence, answered) = (3_000_000_000, 2_000_000_000);
            for _ in 0..3 {
                scene.pass(&scene.of_client(ACK, sequence, answered, 10));
                scene.pass(&scene.of_client(RST, sequence + 10, 0, 0));
                scene.pass(&scene.of_client(FIN | ACK, sequence + 10, answered, 0));
            }
            assert_eq!((scene.count(), scene.steps()), ((0, 0), vec![]));
            assert!(scene.find_connection().is_copied() && scene.find_connection().is_open());
            // The member contradicts, the client is asked again, and both agree.
            scene.pass(&scene.of_member(ACK, 5_021, 11, 20));
            assert_eq!(scene.steps(), []);
            scene.pass(&scene.of_client(ACK, 11, 5_041, 0));
            assert_eq!(scene.steps(), [Step::Adopt]);
            assert_eq!(scene.count(), (1, 1));
            scene.pass(&scene.of_client(RST, sequence + 10, 0, 0));
            assert_eq!(scene.steps(), []);
            scene.pass(&scene.of_client(RST, 11, 0, 0));
            assert_eq!(scene.steps(), [Step::End(End::ClientReset)]);
            assert_eq!(scene.count(), (0, 0));
            // The next copy of the other balancer undoes a stranger's numbers, too.
            scene.remove();
            scene.steps();
            scene.forwarder.write_copy(&copy).unwrap();
            scene.pass(&scene.of_client(ACK, sequence, answered, 10));
            let updated = scene.forwarder.write_copy(&copy).unwrap();
            assert_eq!(updated, CopyResult::Updated);
            scene.pass(&scene.of_client(ACK, 11, 5_021, 0));
            assert_eq!(scene.steps(), [Step::Adopt]);
        }
        scene.remove();
    });
}

#[test]
fn copies_that_end_or_expire_count_nowhere() {
    run_on_all_paths(|scene| {
        let copy = scene.copy();
        scene.forget();
        let end = |member| {
            let (client, listener) = (copy.client, copy.listener);
            scene.forwarder.end_copy(client, listener, member).unwrap()
        };
        assert_eq!(end(copy.member), CopyEnd::Nothing);
        scene.forwarder.write_copy(&copy).unwrap();
        assert_eq!(
            end(scene.family.member(8)),
            CopyEnd::Nothing,
            "another connection"
        );
        assert_eq!(end(copy.member), CopyEnd::Removed);
        assert_eq!(list_connections(scene.forwarder), []);
        scene.forwarder.write_copy(&copy).unwrap();
        scene.remove();
        assert_eq!((scene.count(), scene.steps()), ((0, 0), vec![]));
    });
}

#[test]
fn copies_yield_to_connections_of_this_balancer_unless_these_have_moved() {
    run_on_all_paths(|scene| {
        let own = scene.copy();
        let write = |copy: &TableCopy| scene.forwarder.write_copy(copy).unwrap();
        // A copy that was silent for as long, and one of another connection, which has a packet since.
        assert_eq!(write(&own), CopyResult::Own);
        let later = TableCopy {
            seen_ns: own.seen_ns + 5_000_000_000,
            ..own
        };
        let another = TableCopy {
            member: scene.family.member(8),
            ..later
        };
        assert_eq!(write(&another), CopyResult::Own);
        let end = (own.client, own.listener, own.member);
        let ended = scene.forwarder.end_copy(end.0, end.1, end.2).unwrap();
        assert_eq!(ended, CopyEnd::Fresh);
        assert_eq!(scene.count(), (1, 1));
        scene.steps();
        // The packets of the connection pass the other balancer now.
        assert_eq!(write(&later), CopyResult::Yielded);
        assert!(scene.find_connection().is_copied());
        assert_eq!(
            (scene.count(), scene.steps()),
            ((0, 0), vec![Step::End(End::Closed)])
        );
        assert_eq!(write(&later), CopyResult::Updated);
        // The client has used the port for a connection to another member.
        assert_eq!(write(&another), CopyResult::Written);
        assert_eq!(scene.find_connection().pair.member, another.member);
        assert_eq!(scene.count(), (0, 0));
        scene.remove();
    });
}

#[test]
fn a_copy_takes_no_port_of_a_connection_of_this_balancer() {
    run_beside_routes(|forwarder, interface| {
        let scene = Scene::new(forwarder, interface, Family::V4, Path::Nat);
        let copy = TableCopy {
            client: Family::V4.client(4_001),
            ..scene.copy()
        };
        assert_eq!(forwarder.write_copy(&copy).unwrap(), CopyResult::Port);
        assert_eq!(list_connections(forwarder).len(), 1);
        scene.remove();
    });
}

#[test]
fn an_end_at_the_other_balancer_ends_a_connection_that_was_silent_here() {
    run_on_all_paths(|scene| {
        let own = scene.copy();
        let map = find_map(&scene.forwarder.object, "evk_connections").unwrap();
        let key = layout::write_address(own.client);
        let mut value = map.lookup(&key, MapFlags::ANY).unwrap().unwrap();
        let seen = (scene.read_clock().saturating_sub(3_000_000_000) >> layout::UNIT) as u32;
        value[8..12].copy_from_slice(&seen.to_ne_bytes());
        map.update(&key, &value, MapFlags::ANY).unwrap();
        scene.steps();
        let end = || {
            let (client, listener) = (own.client, own.listener);
            scene
                .forwarder
                .end_copy(client, listener, own.member)
                .unwrap()
        };
        assert_eq!(end(), CopyEnd::Ended);
        assert_eq!(
            (scene.count(), scene.steps()),
            ((0, 0), vec![Step::End(End::Closed)])
        );
        assert_eq!(end(), CopyEnd::Nothing);
        scene.remove();
    });
}
