//! Copies of another balancer's sessions.

use super::*;

const SECOND: u64 = 1_000_000_000;

pub(super) fn read_clock() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Duration::try_from(now).unwrap().as_nanos() as u64
}

fn find_session(forwarder: &Forwarder) -> UdpSession {
    let [session] = list_sessions(forwarder)[..] else {
        panic!("one session: {:?}", list_sessions(forwarder));
    };
    session
}

/// Numbers of sessions in flight at the member, and of the listener.
fn count_open(forwarder: &Forwarder, family: Family) -> (i64, i64) {
    let counts = forwarder.read_counts(0).unwrap();
    let all = forwarder.read_udp_counts(family.listener()).unwrap();
    (counts.in_flight, all.open)
}

/// Session of a client that the member has answered: the client's datagram as the member gets it, and the copy.
fn begin(forwarder: &Forwarder, interface: u32, family: Family) -> (Datagram, UdpCopy) {
    let question = Datagram::new(family.client(4000), family.listener());
    let sent = pass(forwarder, interface, &question);
    pass(forwarder, interface, &sent.reply(b"noon"));
    (sent, find_session(forwarder).copy(read_clock()))
}

/// Runs a test in both families, with half and full NAT.
fn run_on_all_paths(test: impl Fn(&Forwarder, u32, Family, bool) + Sync) {
    for has_nat in [false, true] {
        for family in [Family::V4, Family::V6] {
            run_beside_routes(|forwarder, interface| {
                let members = [family.member(9)];
                if has_nat {
                    serve_with_ports(forwarder, &members);
                } else {
                    serve_sessions(forwarder, &members, |listener| listener);
                }
                test(forwarder, interface, family, has_nat);
            });
        }
    }
}

#[test]
fn s41_a_copied_session_continues_and_counts_from_its_first_datagram_on() {
    run_on_all_paths(|forwarder, interface, family, has_nat| {
        let question = Datagram::new(family.client(4000), family.listener());
        let (sent, copy) = begin(forwarder, interface, family);
        assert_eq!(copy.source, has_nat.then_some(sent.from));
        // The client or the member is first after the move, and the copy is older than `idle_timeout`.
        for member_is_first in [false, true] {
            remove_all(forwarder);
            take_steps(forwarder);
            let old = UdpCopy {
                seen_ns: copy.seen_ns.saturating_sub(100 * SECOND).max(1),
                ..copy
            };
            let written = forwarder.write_udp_copy(&old).unwrap();
            assert_eq!(written, CopyResult::Written);
            let there = find_session(forwarder);
            assert!(there.is_copied() && there.is_open() && there.is_answered());
            assert_eq!((there.pair().member, there.has_nat()), (sent.to, has_nat));
            assert_eq!(there.began_ns, copy.began_ns);
            assert_eq!(count_open(forwarder, family), (0, 0));
            assert_eq!(take_steps(forwarder), []);
            // Another member would be chosen now.
            serve_members(forwarder, &[], 0);
            if member_is_first {
                let back = pass(forwarder, interface, &sent.reply(b"late"));
                assert_eq!(back, question.reply(b"late"));
            }
            assert_eq!(pass(forwarder, interface, &question), sent);
            let back = pass(forwarder, interface, &sent.reply(b"two"));
            assert_eq!(back, question.reply(b"two"));
            assert_eq!(take_steps(forwarder), [Step::Adopt]);
            assert_eq!(count_open(forwarder, family), (1, 1));
            assert!(!find_session(forwarder).is_copied());
            serve_members(forwarder, &[family.member(9)], 0);
        }
        remove_all(forwarder);
        assert_eq!(take_steps(forwarder), [Step::End(End::Closed)]);
        assert_eq!(count_open(forwarder, family), (0, 0));
        // Removed without a datagram, a copy was nowhere counted.
        forwarder.write_udp_copy(&copy).unwrap();
        remove_all(forwarder);
        assert_eq!(take_steps(forwarder), []);
        assert_eq!(count_open(forwarder, family), (0, 0));
    });
}

#[test]
fn s41_copied_sessions_yield_to_sessions_of_this_balancer_unless_these_have_moved() {
    run_on_all_paths(|forwarder, interface, family, _| {
        let (_, own) = begin(forwarder, interface, family);
        let write = |copy: &UdpCopy| forwarder.write_udp_copy(copy).unwrap();
        assert_eq!(write(&own), CopyResult::Own);
        let another = UdpCopy {
            member: family.member(8),
            ..own
        };
        assert_eq!(write(&another), CopyResult::Own);
        assert_eq!(count_open(forwarder, family), (1, 1));
        take_steps(forwarder);
        // The datagrams of the session pass the other balancer now.
        let later = UdpCopy {
            seen_ns: own.seen_ns + 5 * SECOND,
            ..own
        };
        assert_eq!(write(&later), CopyResult::Yielded);
        assert!(find_session(forwarder).is_copied());
        assert_eq!(take_steps(forwarder), [Step::End(End::Closed)]);
        assert_eq!(count_open(forwarder, family), (0, 0));
        assert_eq!(write(&later), CopyResult::Updated);
        // The client has another session there, as its member has failed.
        assert_eq!(write(&another), CopyResult::Written);
        assert_eq!(find_session(forwarder).member, another.member);
        assert_eq!(count_clients(forwarder), 1);
        remove_all(forwarder);
        // The same while the session is this balancer's.
        begin(forwarder, interface, family);
        let later = UdpCopy {
            member: family.member(8),
            ..later
        };
        assert_eq!(write(&later), CopyResult::Written);
        assert_eq!(find_session(forwarder).member, later.member);
        assert_eq!(count_open(forwarder, family), (0, 0));
        remove_all(forwarder);
    });
}

#[test]
fn s41_a_copied_session_takes_nothing_that_this_balancer_has() {
    run_on_all_paths(|forwarder, interface, family, has_nat| {
        let (_, copy) = begin(forwarder, interface, family);
        let others = if has_nat {
            // Another client has the port towards the member.
            UdpClient {
                client: family.client(4001),
                ..copy.of
            }
        } else {
            // The member could not tell the two sessions of the client apart.
            let mut listener = copy.of.listener;
            listener.set_port(81);
            UdpClient {
                listener,
                ..copy.of
            }
        };
        let other = UdpCopy { of: others, ..copy };
        let write = |copy: &UdpCopy| forwarder.write_udp_copy(copy).unwrap();
        assert_eq!(write(&other), CopyResult::Port);
        assert_eq!(find_session(forwarder).of, copy.of);
        remove_all(forwarder);
        // Where only a copy is, the other balancer has used the port again.
        assert_eq!(write(&copy), CopyResult::Written);
        assert_eq!(write(&other), CopyResult::Written);
        assert_eq!(find_session(forwarder).of, others);
        remove_all(forwarder);
        // The process has the session.
        assert!(forwarder.keep_client(&copy.of, 7).unwrap());
        assert_eq!(write(&copy), CopyResult::Own);
        assert_eq!(list_sessions(forwarder), []);
        forwarder.release_client(&copy.of).unwrap();
    });
}
