//! Traces of one client's packets.

use super::packets::*;
use super::*;

const MEMBER: u8 = 9;

fn write_syn(from: SocketAddr, to: SocketAddr, sequence: u32) -> Segment {
    Segment {
        sequence,
        ..Segment::new(from, to, SYN)
    }
}

fn begin(forwarder: &Forwarder, client: SocketAddr) -> Trace {
    let now = read_clock();
    let time = Duration::from_secs(600);
    Trace::begin(&forwarder.place, client.ip(), client.port(), now, time).unwrap()
}

/// Time of the machine's clock.
fn read_clock() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

fn check_packets_of_one_client_are_told(family: Family, interface: u32, forwarder: &Forwarder) {
    let (listener, member) = (family.listener(), family.member(MEMBER));
    serve_members(forwarder, &[member], 0);
    let (client, other) = (family.client(40_000), family.client(40_001));
    let syn = |from, to| write_syn(from, to, 1000);
    let send = |segment: &Segment| send_frame(forwarder, interface, &segment.write());
    // Nobody traces.
    assert!(send(&syn(other, listener)).is_some());
    let trace = begin(forwarder, client);
    assert!(trace.take_packets().unwrap().is_empty());
    assert!(send(&syn(family.client(40_002), listener)).is_some());
    assert!(send(&syn(client, listener)).is_some());
    let elsewhere = SocketAddr::new(listener.ip(), 81);
    assert!(send(&syn(client, elsewhere)).is_none());
    let answer = Segment {
        flags: SYN | ACK,
        answered: 1001,
        ..write_syn(member, client, 7000)
    };
    assert!(send(&answer).is_some());
    let seen = trace.take_packets().unwrap();
    let names = |packet: &TracedPacket| {
        packet
            .outcomes
            .iter()
            .map(|(name, _)| *name)
            .collect::<Vec<_>>()
    };
    let [first, left, accepted] = &seen[..] else {
        panic!("{seen:?}");
    };
    assert_eq!(
        (first.verdict, names(first)),
        (Verdict::Forwarded, vec!["to_member"])
    );
    assert_eq!((first.before.from, first.before.to), (client, listener));
    assert_eq!((first.after.from, first.after.to), (client, member));
    assert_eq!(
        (first.before.describe(), first.before.sequence),
        ("TCP SYN".into(), 1000)
    );
    assert_eq!((left.verdict, names(left)), (Verdict::LeftToSystem, vec![]));
    assert_eq!(left.before, left.after);
    assert_eq!(
        (accepted.verdict, names(accepted)),
        (Verdict::Forwarded, vec!["to_client"])
    );
    assert_eq!((accepted.after.from, accepted.after.to), (listener, client));
    assert_eq!(accepted.before.describe(), "TCP SYN,ACK");
    assert_eq!(accepted.before.acknowledged, 1001);
    let found = trace.list_connections().unwrap();
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0].pair, Pair { member, client });
    assert!(found[0].is_established());

    // One trace at a time, and none after its end.
    let again = Trace::begin(
        &forwarder.place,
        client.ip(),
        0,
        read_clock(),
        Duration::from_secs(9),
    );
    assert!(again.unwrap_err().to_string().contains("another trace"));
    drop(trace);
    assert!(send(&syn(client, listener)).is_some());
    let of_all_ports = begin(forwarder, SocketAddr::new(client.ip(), 0));
    assert!(of_all_ports.take_packets().unwrap().is_empty());
    assert!(send(&syn(other, listener)).is_some());
    assert!(send(&syn(family.client(40_003), listener)).is_some());
    assert_eq!(of_all_ports.take_packets().unwrap().len(), 2);
    drop(of_all_ports);
}

#[test]
fn s41_packets_of_one_client_are_told() {
    for family in [Family::V4, Family::V6] {
        run_beside_routes(|forwarder, interface| {
            check_packets_of_one_client_are_told(family, interface, forwarder);
        });
    }
}

#[test]
fn s41_traces_end_by_their_time() {
    run_beside_routes(|forwarder, interface| {
        let family = Family::V4;
        serve_members(forwarder, &[family.member(MEMBER)], 0);
        let client = family.client(40_000);
        let past = read_clock() - 2_000_000_000;
        let place = &forwarder.place;
        let trace = Trace::begin(place, client.ip(), 0, past, Duration::from_secs(1)).unwrap();
        let syn = write_syn(client, family.listener(), 1);
        assert!(send_frame(forwarder, interface, &syn.write()).is_some());
        assert!(trace.take_packets().unwrap().is_empty());
        // A command that was killed is not in the way of the next one.
        std::mem::forget(trace);
        begin(forwarder, client);
    });
}

#[test]
fn s41_traces_need_a_program() {
    let nowhere = Place::new("/sys/fs/bpf/evk-nowhere".into(), LAYOUT, 1);
    let ip = Family::V4.client(0).ip();
    let refused = Trace::begin(&nowhere, ip, 0, 0, Duration::from_secs(1));
    let error = refused.unwrap_err().to_string();
    assert!(
        error.contains("no balancer of this version forwards"),
        "{error}"
    );
}
