//! Sessions whose members have the listener's address, and answer clients themselves.

use std::collections::BTreeMap;
use std::process::Command;

use super::copies::read_clock;
use super::datagrams::{age, count_open, run_frame};
use super::fragments::{FIRST, make_question, split};
use super::*;
use crate::forward::tests::sources::set_burst;

/// Lets the program send datagrams of clients to these members as they are.
fn serve_direct(
    forwarder: &Forwarder,
    members: &[SocketAddr],
    change: impl Fn(UdpListener) -> UdpListener,
) {
    serve_sessions(forwarder, members, |listener| {
        change(UdpListener {
            is_direct: true,
            answer: None,
            ..listener
        })
    });
}

/// Clients of a listener.
struct Scene<'a> {
    forwarder: &'a Forwarder,
    interface: u32,
    family: Family,
}

impl Scene<'_> {
    fn question(&self, port: u16) -> Datagram {
        Datagram::new(self.family.client(port), self.family.listener())
    }

    /// Lets the program take a frame, which must go on as it came but for the lifetime.
    fn pass_frame(&self, frame: &[u8]) {
        let mut expected = frame.to_vec();
        lower_lifetime(&mut expected);
        let sent = send_frame(self.forwarder, self.interface, frame);
        assert_eq!(sent, Some(expected));
    }

    fn pass(&self, datagram: &Datagram) {
        self.pass_frame(&datagram.write());
    }

    fn is_left(&self, datagram: &Datagram) -> bool {
        try_pass(self.forwarder, self.interface, datagram).is_none()
    }

    /// Returns the session that datagrams of a client's port belong to.
    fn find_session(&self, port: u16) -> UdpSession {
        let all = list_sessions(self.forwarder);
        let is_it = |one: &UdpSession| one.of.client.port() == port && !one.leaves();
        all.into_iter().find(is_it).unwrap()
    }

    /// Writes the terms of a member; clients leave a member that is out of service.
    fn set_service(&self, seat: u32, address: SocketAddr, is_out: bool) {
        let terms = Terms {
            owner: 1,
            address,
            base: 65_536,
            others: 0,
            room: if is_out { 0 } else { 9 },
            must_leave: is_out,
            name_hash: 0,
            weight: 0,
        };
        self.forwarder.set_terms(seat, &terms).unwrap();
    }
}

fn run_scenes(test: impl Fn(&Scene<'_>) + Sync) {
    for family in [Family::V4, Family::V6] {
        run_beside_routes(|forwarder, interface| {
            test(&Scene {
                forwarder,
                interface,
                family,
            });
        });
    }
}

#[test]
fn s41_datagrams_of_clients_go_to_direct_members_as_they_are() {
    run_scenes(|scene| {
        let (forwarder, family) = (scene.forwarder, scene.family);
        let member = family.member(9);
        serve_direct(forwarder, &[member], |listener| listener);
        let mut question = scene.question(4000);
        let (mut count, mut bytes) = (0, 0);
        for has_sum in [true, family == Family::V6] {
            question.has_sum = has_sum;
            for data in [&b""[..], b"ab", b"what is the time", &[7; 1400]] {
                question.data = data.to_vec();
                scene.pass(&question);
                (count, bytes) = (count + 1, bytes + data.len() as u64);
            }
        }
        let check_session = || {
            let [session] = list_sessions(forwarder)[..] else {
                panic!("one session");
            };
            assert_eq!(session.pair().member, member);
            assert_eq!(session.of.listener, question.to);
            assert!(session.is_direct() && session.is_open() && !session.has_nat());
            assert_eq!(session.datagrams, (count, 0));
            assert_eq!(session.bytes, (bytes, 0));
        };
        check_session();
        // Answers that pass the balancer reach the client, and show nothing.
        scene.pass(&question.reply(b"noon"));
        assert_eq!(read_outcome(forwarder, "to_client"), 1);
        check_session();
        // What a member sends from its own address is no answer, nor what others send from other ports.
        let mut strange = question.reply(b"hi");
        strange.from.set_port(81);
        assert!(scene.is_left(&strange));
        assert!(scene.is_left(&Datagram::new(member, question.from)));
        assert!(scene.is_left(&Datagram::new(question.to, family.client(4001))));
        let counts = forwarder.read_counts(0).unwrap();
        assert_eq!((counts.in_flight, counts.answers), (1, (0, 0)));
        let events = forwarder.take_events().unwrap();
        assert!(events.iter().all(|event| event.is_udp && event.is_direct));
        let steps: Vec<_> = events.iter().map(|event| event.step).collect();
        assert_eq!(steps, [Step::Begin]);
        remove_all(forwarder);
        assert_eq!(take_steps(forwarder), [Step::End(End::Closed)]);
        let counts = forwarder.read_counts(0).unwrap();
        assert_eq!((counts.in_flight, counts.refused, counts.closed), (0, 0, 1));
        let all = forwarder.read_udp_counts(question.to).unwrap();
        assert_eq!((all.begun, all.open, all.datagrams), (1, 0, (count, 0)));
    });
}

#[test]
fn s41_silence_of_direct_members_is_no_failure() {
    run_scenes(|scene| {
        let (forwarder, member) = (scene.forwarder, scene.family.member(9));
        let idle = Duration::from_secs(10);
        serve_direct(forwarder, &[member], |listener| UdpListener {
            idle,
            ..listener
        });
        let question = scene.question(4000);
        for _ in 0..3 {
            scene.pass(&question);
            age(forwarder, Duration::from_secs(5));
        }
        // The rule gets another return path: open sessions stay as they are.
        serve_sessions(forwarder, &[member], |listener| UdpListener {
            idle,
            answer: Some(Duration::from_secs(1)),
            ..listener
        });
        scene.pass(&question);
        assert_eq!(take_steps(forwarder), [Step::Begin]);
        age(forwarder, Duration::from_secs(11));
        let sent = pass(forwarder, scene.interface, &question);
        assert_eq!(sent.to, member);
        let steps = [Step::End(End::Closed), Step::Begin];
        assert_eq!(take_steps(forwarder), steps);
        assert_eq!(forwarder.read_counts(0).unwrap().refused, 0);
        remove_all(forwarder);
    });
}

#[test]
fn s41_single_datagrams_go_to_direct_members_in_turns_and_are_in_no_table() {
    run_scenes(|scene| {
        let (forwarder, family) = (scene.forwarder, scene.family);
        let members = [family.member(9), family.member(10)];
        serve_direct(forwarder, &members, |listener| UdpListener {
            is_single: true,
            ..listener
        });
        let group = GroupTerms {
            form: 2,
            growth: 256,
            bound: 0,
            seats: vec![0, 1],
        };
        forwarder.set_group(0, &group).unwrap();
        // No limit of sources: there is no place that a flood could take.
        set_burst(forwarder, 1);
        let question = scene.question(4000);
        for _ in 0..40 {
            scene.pass(&question);
            // The balancer does not know whose answer this is.
            assert!(scene.is_left(&question.reply(b"noon")));
        }
        let (answer, sent) = run_frame(forwarder, scene.interface, &question.write(), 2);
        assert_eq!((answer, Datagram::read(&sent)), (7, question.clone()));
        assert_eq!(
            (list_sessions(forwarder), list_kept(forwarder)),
            (vec![], vec![])
        );
        assert_eq!(count_clients(forwarder), 0);
        assert_eq!(count_open(forwarder, 2, question.to), (0, 0, 0));
        let events = forwarder.take_events().unwrap();
        assert_eq!(events.len(), 41);
        assert!(events.iter().all(|one| one.is_message() && one.is_direct));
        let counts = [0, 1].map(|seat| forwarder.read_counts(seat).unwrap());
        assert!(counts.iter().all(|one| one.picks >= 20), "{counts:?}");
        assert_eq!(counts.iter().map(|one| one.refused).sum::<u64>(), 0);
        let all = forwarder.read_udp_counts(question.to).unwrap();
        assert_eq!((all.begun, all.datagrams), (41, (42, 0)));
    });
}

#[test]
fn s41_fragments_follow_the_first_one_to_direct_members() {
    for is_single in [false, true] {
        run_scenes(|scene| {
            let forwarder = scene.forwarder;
            serve_direct(forwarder, &[scene.family.member(9)], |listener| {
                UdpListener {
                    is_single,
                    ..listener
                }
            });
            for (id, length) in [(7, 64), (8, 34), (9, 40)] {
                let question = make_question(scene.family, length);
                for frame in split(&question, id, FIRST) {
                    scene.pass_frame(&frame);
                }
                // An answer that passes the balancer, in fragments.
                for frame in split(&question.reply(&question.data), 100 - id, FIRST) {
                    if is_single {
                        assert_eq!(send_frame(forwarder, scene.interface, &frame), None);
                    } else {
                        scene.pass_frame(&frame);
                    }
                }
            }
            assert_eq!(list_kept(forwarder), []);
            let all = forwarder.read_udp_counts(scene.family.listener()).unwrap();
            assert_eq!(all.begun, if is_single { 3 } else { 1 });
            remove_all(forwarder);
        });
    }
}

#[test]
fn s41_sources_get_nothing_back_for_sessions_with_direct_answers() {
    run_scenes(|scene| {
        let forwarder = scene.forwarder;
        serve_direct(forwarder, &[scene.family.member(9)], |listener| listener);
        set_burst(forwarder, 2);
        for port in [1, 2] {
            // Further datagrams are no confirmation: a client that forges its address sends them, too.
            for _ in 0..3 {
                scene.pass(&scene.question(port));
            }
        }
        assert!(scene.is_left(&scene.question(3)));
        assert_eq!(read_outcome(forwarder, "proxied_rate"), 1);
        assert_eq!(list_kept(forwarder).len(), 1);
        scene.pass(&scene.question(1));
        remove_all(forwarder);
    });
}

#[test]
fn s41_the_proxy_serves_sessions_of_direct_members_behind_a_router() {
    run_scenes(|scene| {
        let forwarder = scene.forwarder;
        let member = scene.family.address("10.99.0.9:80", "[fd99::9]:80");
        for words in [
            "route replace 10.99.0.0/24 via 10.77.0.5",
            "-6 route replace fd99::/64 via fd77::5",
        ] {
            let status = Command::new("ip").args(words.split(' ')).status();
            assert!(status.unwrap().success(), "ip {words}");
        }
        for (is_single, kept) in [(true, 0), (false, 1)] {
            serve_direct(forwarder, &[member], |listener| UdpListener {
                is_single,
                ..listener
            });
            assert!(scene.is_left(&scene.question(4000)));
            assert_eq!(list_kept(forwarder).len(), kept);
        }
        assert_eq!(read_outcome(forwarder, "proxied_remote"), 2);
        assert_eq!(list_sessions(forwarder), []);
    });
}

#[test]
fn s41_icmp_errors_about_answers_of_direct_members_reach_the_member() {
    run_scenes(|scene| {
        let (forwarder, family) = (scene.forwarder, scene.family);
        let heads = match family {
            Family::V4 => [(3, 4), (3, 3)],
            Family::V6 => [(2, 0), (1, 4)],
        };
        serve_direct(forwarder, &[family.member(9)], |listener| listener);
        let question = scene.question(4000);
        let answer = question.reply(b"much data.");
        let write = |head| write_error(question.from.ip(), question.to.ip(), head, &answer);
        for head in heads {
            assert_eq!(send_frame(forwarder, scene.interface, &write(head)), None);
        }
        scene.pass(&question);
        for head in heads {
            scene.pass_frame(&write(head));
        }
        assert_eq!(read_outcome(forwarder, "icmp_error"), 2);
        // The client's error is none of the member's.
        assert!(scene.find_session(4000).is_open());
        assert_eq!(take_steps(forwarder), [Step::Begin]);
        remove_all(forwarder);
    });
}

#[test]
fn s41_copies_of_sessions_with_direct_answers_continue_as_such() {
    run_scenes(|scene| {
        let (forwarder, family) = (scene.forwarder, scene.family);
        serve_direct(forwarder, &[family.member(9)], |listener| listener);
        let question = scene.question(4000);
        scene.pass(&question);
        let copy = scene.find_session(4000).copy(read_clock());
        assert!(copy.is_direct && copy.source.is_none());
        remove_all(forwarder);
        take_steps(forwarder);
        // The other balancer has had another return path before.
        let old = UdpCopy {
            is_direct: false,
            ..copy
        };
        for copy in [old, copy] {
            let written = forwarder.write_udp_copy(&copy).unwrap();
            assert_eq!(written, CopyResult::Written);
        }
        let written = forwarder.write_udp_copy(&copy).unwrap();
        assert_eq!(written, CopyResult::Updated);
        assert_eq!(count_open(forwarder, 1, question.to), (0, 0, 1));
        // Another member would be chosen now.
        serve_members(forwarder, &[], 0);
        scene.pass(&question);
        let session = scene.find_session(4000);
        assert!(session.is_direct() && !session.is_copied());
        assert_eq!(take_steps(forwarder), [Step::Adopt]);
        assert_eq!(count_open(forwarder, 1, question.to), (1, 1, 1));
        remove_all(forwarder);
    });
}

#[test]
fn s41_a_trace_names_the_member_of_a_direct_session() {
    run_scenes(|scene| {
        let (forwarder, member) = (scene.forwarder, scene.family.member(9));
        serve_direct(forwarder, &[member], |listener| listener);
        let question = scene.question(4000);
        let (client, time) = (question.from, Duration::from_secs(600));
        let place = &forwarder.place;
        let trace = Trace::begin(place, client.ip(), client.port(), read_clock(), time).unwrap();
        scene.pass(&question);
        scene.pass(&scene.question(4001));
        let packets = trace.take_packets().unwrap();
        assert_eq!(packets.len(), 1);
        let packet = &packets[0];
        assert_eq!(packet.before, packet.after);
        let outcomes = packet.outcomes.iter().map(|(name, _)| *name);
        assert_eq!(outcomes.collect::<Vec<_>>(), ["to_member"]);
        let [session] = trace.list_sessions().unwrap()[..] else {
            panic!("one session of the client");
        };
        assert_eq!((session.of.client, session.member), (client, member));
        assert!(session.is_direct());
        drop(trace);
        remove_all(forwarder);
    });
}

/// Step of clients, members and the balancer.
#[derive(Clone, Copy, Debug)]
enum Act {
    /// A client sends a datagram with this number of words.
    Send(u16, usize),
    /// An answer to a client passes the balancer.
    Answer(u16),
    /// A member is out of service, or none.
    Withdraw(Option<usize>),
    /// The balancer removes the sessions of a client.
    Remove(u16),
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let ports = || 1..5u16;
    let act = prop_oneof![
        6 => (ports(), 0..40usize).prop_map(|(port, words)| Act::Send(port, words)),
        2 => ports().prop_map(Act::Answer),
        2 => proptest::option::of(0..2usize).prop_map(Act::Withdraw),
        1 => ports().prop_map(Act::Remove),
    ];
    proptest::collection::vec(act, 1..60)
}

/// Removes the sessions of a client; 0 stands for all.
fn remove_sessions(forwarder: &Forwarder, port: u16) {
    for session in list_sessions(forwarder) {
        if [0, session.of.client.port()].contains(&port) {
            let removed = forwarder.remove_udp_session(&session, UdpEnd::Idle);
            assert!(removed.unwrap());
        }
    }
}

fn check_acts(scene: &Scene<'_>, members: [SocketAddr; 2], acts: Vec<Act>) {
    let forwarder = scene.forwarder;
    // A case that has failed may have left sessions.
    remove_sessions(forwarder, 0);
    forwarder.take_events().unwrap();
    let mut out = None;
    // Member of each client, and the datagrams that have gone there.
    let mut clients: BTreeMap<u16, (SocketAddr, u64)> = BTreeMap::new();
    let set_services = |out: Option<usize>| {
        for (seat, member) in (0u32..).zip(members) {
            scene.set_service(seat, member, out == Some(seat as usize));
        }
    };
    set_services(out);
    for act in acts {
        match act {
            Act::Send(port, words) => {
                let mut question = scene.question(port);
                question.data = vec![words as u8; 2 * words];
                scene.pass(&question);
                let session = scene.find_session(port);
                let is_in = |member| out.is_none_or(|seat: usize| members[seat] != member);
                assert!(is_in(session.member), "{act:?}");
                let expected = match clients.get(&port) {
                    Some((member, count)) if is_in(*member) => (*member, count + 1),
                    _ => (session.member, 1),
                };
                assert_eq!((session.member, session.datagrams.0), expected);
                clients.insert(port, expected);
            }
            Act::Answer(port) => {
                let answer = scene.question(port).reply(b"an answer.");
                match clients.contains_key(&port) {
                    true => scene.pass(&answer),
                    false => assert!(scene.is_left(&answer)),
                }
            }
            Act::Withdraw(seat) => {
                out = seat;
                set_services(out);
            }
            Act::Remove(port) => {
                remove_sessions(forwarder, port);
                clients.remove(&port);
            }
        }
        let all = list_sessions(forwarder);
        assert!(all.iter().all(|one| one.is_direct() && one.is_open()));
        assert!(all.iter().all(|one| one.datagrams.1 == 0));
        let open = all.len() as i64;
        let counted = count_open(forwarder, 2, scene.family.listener());
        assert_eq!(counted, (open, open, open));
        let current = all.iter().filter(|one| !one.leaves()).count();
        assert_eq!(
            (current, count_clients(forwarder)),
            (clients.len(), current)
        );
    }
    assert_eq!(list_kept(forwarder), []);
    remove_all(forwarder);
    let steps = take_steps(forwarder);
    let is_end = |step: &&Step| **step == Step::End(End::Closed);
    assert_eq!(steps.iter().filter(is_end).count() * 2, steps.len());
}

#[test]
fn s41_direct_sessions_stay_at_members_in_service_whatever_comes_when() {
    run_scenes(|scene| {
        let members = [scene.family.member(9), scene.family.member(10)];
        serve_direct(scene.forwarder, &members, |listener| listener);
        // A case has dozens of steps.
        let mut runner = TestRunner::new(ProptestConfig {
            cases: 64,
            ..ProptestConfig::default()
        });
        runner
            .run(&acts(), |acts| {
                check_acts(scene, members, acts);
                Ok(())
            })
            .unwrap();
    });
}

#[test]
fn s41_hostile_datagrams_leave_the_counts_of_direct_sessions_right() {
    run_scenes(|scene| {
        let (forwarder, family) = (scene.forwarder, scene.family);
        serve_direct(forwarder, &[family.member(9)], |listener| UdpListener {
            is_quic: true,
            ..listener
        });
        let mut runner = TestRunner::default();
        let changes = proptest::collection::vec((0..70usize, any::<u8>()), 0..4);
        let cases = (1..4u16, 0..40usize, changes, 0..20usize, any::<bool>());
        runner
            .run(&cases, |(port, length, changes, cut, is_answer)| {
                let mut datagram = scene.question(port);
                datagram.data = vec![0xc3; 2 * length];
                if is_answer {
                    datagram = datagram.reply(&datagram.data);
                }
                let mut frame = datagram.write();
                let last = frame.len() - 14;
                for (at, byte) in changes {
                    frame[14 + at % last] = byte;
                }
                // A trial run takes no shorter ones.
                let least = if family == Family::V4 { 34 } else { 54 };
                frame.truncate((frame.len() - cut).max(least));
                let (answer, sent) = run_frame(forwarder, scene.interface, &frame, 0);
                prop_assert!([7, NOT_TAKEN, 2].contains(&answer));
                prop_assert_eq!(sent.len(), frame.len());
                let open = list_sessions(forwarder).len() as i64;
                let counted = forwarder.read_counts(0).unwrap().in_flight;
                prop_assert_eq!(counted, open);
                Ok(())
            })
            .unwrap();
        remove_sessions(forwarder, 0);
        assert_eq!(forwarder.read_counts(0).unwrap().in_flight, 0);
        assert_eq!(forwarder.sweep_connection_ids().unwrap(), 0);
    });
}
