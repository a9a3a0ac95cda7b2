use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use evenkeel_core::terms::{self, Form, Seat};
use libbpf_rs::ProgramInput;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use super::place::LAYOUT;
use super::*;
use crate::testing::report_skipped;

mod constants;
mod copies;
mod cost;
mod decisions;
mod direct;
mod errors;
mod events;
mod families;
mod hash;
mod hostile;
mod large_groups;
mod limits;
mod listeners;
mod nat;
mod packets;
mod places;
mod removals;
mod requests;
mod resets;
mod retries;
mod rows;
mod sources;
mod trace;
mod udp;
mod xdp;

use packets::{SYN, Segment};

/// Memory of the process, by which tables get the size: the largest table.
const MEMORY: u64 = 1 << 40;

/// Maps of a test; gone when dropped.
struct Trial(Option<Forwarder>);

impl Trial {
    /// `None` if this machine does not let us, which is said.
    fn new() -> Option<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let root = format!("/sys/fs/bpf/evk-trial-{}-{number}", std::process::id());
        if !rustix::process::geteuid().is_root() {
            report_skipped("no right to load BPF programs; run it as root");
            return None;
        }
        match Forwarder::open(Place::new(root.into(), LAYOUT, 1), MEMORY) {
            Ok(forwarder) => Some(Trial(Some(forwarder))),
            Err(error @ (BpfError::Rights(_) | BpfError::NoBtf(_))) => {
                report_skipped(error);
                None
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn forwarder(&self) -> &Forwarder {
        self.0.as_ref().expect("not dropped yet")
    }
}

impl Drop for Trial {
    fn drop(&mut self) {
        if let Some(forwarder) = self.0.take() {
            let root = forwarder.place.folder();
            forwarder.detach().expect("it is taken away");
            let _ = fs::remove_dir(root.parent().expect("a folder above"));
        }
    }
}

/// Addresses of the tests in a family.
impl Family {
    /// Returns an address, by the text of each family.
    fn address(self, v4: &str, v6: &str) -> SocketAddr {
        let text = match self {
            Family::V4 => v4,
            Family::V6 => v6,
        };
        text.parse().unwrap()
    }

    /// The listening address.
    fn listener(self) -> SocketAddr {
        self.address("192.0.2.1:80", "[2001:db8:2::1]:80")
    }

    /// Address of the clients, with a port.
    fn client(self, port: u16) -> SocketAddr {
        let mut client = self.address("198.51.100.7:0", "[2001:db8:100::7]:0");
        client.set_port(port);
        client
    }

    /// Address of a member, with this number in its last byte.
    fn member(self, last: u8) -> SocketAddr {
        let (v4, v6) = (
            format!("10.77.0.{last}:8080"),
            format!("[fd77::{last:x}]:8080"),
        );
        self.address(&v4, &v6)
    }
}

fn families() -> impl Strategy<Value = Family> {
    prop_oneof![Just(Family::V4), Just(Family::V6)]
}

fn list_connections(forwarder: &Forwarder) -> Vec<Connection> {
    let mut all = Vec::new();
    forwarder.visit_connections(|one| all.push(one)).unwrap();
    all
}

fn seats() -> impl Strategy<Value = Vec<Seat>> {
    let counts = (0..20u32, prop_oneof![0..20u32, any::<u32>()]);
    let load = prop_oneof![Just(65_536u32), any::<u32>()];
    let seat = (any::<u32>(), counts, 0..30u32, 0..100u64, load).prop_map(
        |(base, (own, others), room, next_turn, load)| Seat {
            base,
            own,
            others,
            room,
            next_turn,
            load,
        },
    );
    proptest::collection::vec(seat, 0..=GROUP_SEATS)
}

/// Lets the program choose a seat of a group for a client that was at these seats before. The answer is negative if there
/// is none.
fn choose_seat(forwarder: &Forwarder, group: u32, client: IpAddr, tried: &[u32]) -> i32 {
    let mut question = [group, tried.len() as u32].map(u32::to_ne_bytes).concat();
    question.extend(layout::write_address(SocketAddr::new(client, 0)));
    for at in 0..MAX_RETRIES as usize {
        let seat = tried.get(at).map_or(0, |seat| *seat as u16);
        question.extend(seat.to_ne_bytes());
    }
    question.extend([0; 4]);
    bpf::run(&forwarder.object, "evk_choose", Some(&mut question)).unwrap()
}

/// The program's choice for a client of a family among these seats, and the one of `core` among the seats of the family.
/// Members with a seat whose bit in `others` is set are of the other family.
fn compare(
    forwarder: &Forwarder,
    (family, others): (Family, u128),
    all: &[Seat],
    (form, growth, last): (Form, u32, u64),
) {
    let first = 100;
    let mut of_family = all.to_vec();
    for ((number, seat), eligible) in (first..).zip(all).zip(&mut of_family) {
        let is_of_v6 = (others >> (number - first) & 1 == 1) != (family == Family::V6);
        if is_of_v6 != (family == Family::V6) {
            eligible.room = 0;
        }
        let own = if is_of_v6 { Family::V6 } else { Family::V4 };
        let terms = Terms {
            owner: 1,
            address: own.member(1),
            base: seat.base,
            others: seat.others,
            room: seat.room,
            must_leave: false,
            name_hash: 0,
            weight: seat.load,
        };
        forwarder.set_terms(number, &terms).unwrap();
        let counts = Counts {
            in_flight: seat.own.into(),
            next_turn: seat.next_turn,
            ..Counts::default()
        };
        let key = number.to_ne_bytes();
        bpf::update_map(&forwarder.object, "evk_counts", &key, &counts.write()).unwrap();
    }
    let group = GroupTerms {
        form: match form {
            Form::Own | Form::Hash { .. } => 0,
            Form::Score { .. } => 1,
            Form::Turns => 2,
            Form::Prequal { .. } => 4,
        },
        growth,
        bound: match form {
            Form::Prequal { .. } => last as u32,
            _ => 0,
        },
        seats: (first..).take(all.len()).collect(),
    };
    forwarder.set_group(7, &group).unwrap();
    let key = if family == Family::V4 { 7 } else { 7 + GROUPS };
    let key = key.to_ne_bytes();
    bpf::update_map(&forwarder.object, "evk_turns", &key, &last.to_ne_bytes()).unwrap();
    let all = &of_family;
    let chosen = choose_seat(forwarder, 7, family.client(1).ip(), &[]);
    let score = |index: usize| terms::score_seat(&all[index], form, growth, last);
    // The program draws where it begins, which decides among equal ones only.
    match terms::choose(all, form, growth, last, 0) {
        Some(index) => {
            let chosen = usize::try_from(chosen - 100).unwrap();
            assert_eq!(score(chosen), score(index), "{all:?}");
            if form == Form::Turns {
                let counts = forwarder.read_counts(100 + chosen as u32).unwrap();
                let next = score(index).unwrap() + u64::from(all[chosen].base);
                assert_eq!(counts.next_turn, next);
            }
        }
        None => assert!(chosen < 0, "{chosen} of {all:?}"),
    }
}

#[test]
fn s41_the_kernel_chooses_as_core_does() {
    let Some(trial) = Trial::new() else { return };
    let growth = prop_oneof![Just(256u32), 256..2000u32, any::<u32>()];
    let form = prop_oneof![
        Just(Form::Score { growth: 1.0 }),
        Just(Form::Turns),
        Just(Form::Prequal { hot_above: 1.0 }),
        Just(Form::Own)
    ];
    let mut runner = TestRunner::default();
    let others = prop_oneof![Just(0), any::<u128>()];
    // Times of turns, and loads of hot members.
    let marks = prop_oneof![
        0..100u64,
        0..8_000u64,
        any::<u32>().prop_map(u64::from),
        Just(terms::NEVER_HOT.into())
    ];
    let cases = ((families(), others), seats(), (form, growth, marks));
    runner
        .run(&cases, |(families, all, terms)| {
            compare(trial.forwarder(), families, &all, terms);
            Ok(())
        })
        .unwrap();
}

#[test]
fn turns_are_in_proportion_to_weights() {
    let Some(trial) = Trial::new() else { return };
    let forwarder = trial.forwarder();
    // Weights of 1, 2 and 3.
    for (seat, base) in [(0, 600), (1, 300), (2, 200)] {
        let terms = Terms {
            owner: 1,
            address: "192.0.2.1:80".parse().unwrap(),
            base,
            others: 0,
            room: 9,
            must_leave: false,
            name_hash: 0,
            weight: 0,
        };
        forwarder.set_terms(seat, &terms).unwrap();
    }
    let group = GroupTerms {
        form: 2,
        growth: 256,
        bound: 0,
        seats: vec![0, 1, 2],
    };
    forwarder.set_group(0, &group).unwrap();
    let mut turns = [0; 3];
    for _ in 0..600 {
        let chosen = choose_seat(forwarder, 0, Family::V4.client(1).ip(), &[]);
        turns[chosen as usize] += 1;
    }
    for (turns, share) in turns.iter().zip([100, 200, 300i32]) {
        assert!((turns - share).abs() <= 3, "{turns:?}");
    }
}

#[test]
fn maps_are_found_again_and_only_one_process_has_them() {
    let Some(mut trial) = Trial::new() else {
        return;
    };
    let forwarder = trial.forwarder();
    let terms = Terms {
        owner: 5,
        address: "192.0.2.9:5432".parse().unwrap(),
        base: 65_536,
        others: 3,
        room: 4,
        must_leave: false,
        name_hash: 0,
        weight: 0,
    };
    forwarder.set_terms(9, &terms).unwrap();
    forwarder
        .set_listeners(&[listener(Family::V6, 3, 0)])
        .unwrap();
    let place = forwarder.place.clone();
    let refused = Forwarder::open(place.clone(), MEMORY)
        .unwrap_err()
        .to_string();
    assert!(refused.contains("another process"), "{refused}");
    drop(trial.0.take());
    let again = Forwarder::open(place, MEMORY).unwrap();
    assert_eq!(again.read_terms().unwrap()[9], terms);
    assert_eq!(list_connections(&again), []);
    assert_eq!(again.take_events().unwrap(), []);
    again.set_listeners(&[]).unwrap();
    let map = find_map(&again.object, "evk_listeners").unwrap();
    assert_eq!(map.keys().count(), 0);
    again.correct_count(9, 4).unwrap();
    assert_eq!(again.read_counts(9).unwrap().in_flight, 4);
    assert_eq!(again.read_outcomes().unwrap(), [0; OUTCOMES.len()]);
    trial.0 = Some(again);
}

/// The listener of a family.
fn listener(family: Family, group: u32, retries: u32) -> Listener {
    Listener {
        address: family.listener(),
        group,
        retries,
        nat: None,
        is_direct: false,
        has_tunnel: false,
        has_rows: false,
        is_limited: false,
    }
}

/// Lets the program begin connections to these members, with the seats from 0 on, for clients of both families.
fn serve_members(forwarder: &Forwarder, members: &[SocketAddr], retries: u32) {
    for (seat, address) in (0..).zip(members) {
        let terms = Terms {
            owner: 1,
            address: *address,
            base: 65_536,
            others: 0,
            room: 9,
            must_leave: false,
            name_hash: 0,
            weight: 0,
        };
        forwarder.set_terms(seat, &terms).unwrap();
    }
    let group = GroupTerms {
        form: 1,
        growth: 256,
        bound: 0,
        seats: (0..members.len() as u32).collect(),
    };
    forwarder.set_group(0, &group).unwrap();
    let listeners = [Family::V4, Family::V6].map(|family| listener(family, 0, retries));
    forwarder.set_listeners(&listeners).unwrap();
}

/// Answer of the program that leaves a packet to the next filter, or to the system.
const NOT_TAKEN: u32 = u32::MAX;

fn run_packet(forwarder: &Forwarder, packet: &[u8]) -> u32 {
    let mut programs = forwarder.object.progs_mut();
    let program = programs.find(|program| program.name() == "evk_forward");
    let input = ProgramInput {
        data_in: Some(packet),
        ..ProgramInput::default()
    };
    program.unwrap().test_run(input).unwrap().return_value
}

#[test]
fn hostile_packets_pass_to_the_system() {
    let Some(trial) = Trial::new() else { return };
    let forwarder = trial.forwarder();
    // There is no member: the proxy serves.
    serve_members(forwarder, &[], 2);
    let mut syn = Segment::new(Family::V4.client(4660), Family::V4.listener(), SYN);
    for family in [Family::V4, Family::V6] {
        (syn.from, syn.to) = (family.client(4660), family.listener());
        assert_eq!(run_packet(forwarder, &syn.write()), NOT_TAKEN);
    }
    let mut runner = TestRunner::default();
    let changes = proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8);
    let cases = (
        families(),
        changes,
        any::<prop::sample::Index>(),
        any::<u8>(),
    );
    runner
        .run(&cases, |(family, changes, length, flags)| {
            let packet = Segment::new(family.client(4660), family.listener(), flags);
            let mut bad = packet.write();
            // A trial run takes no shorter ones.
            let least = bad.len() - 20;
            for (at, byte) in changes {
                let at = 14 + at.index(bad.len() - 14);
                bad[at] = byte;
            }
            bad.truncate(least + length.index(21));
            prop_assert_eq!(run_packet(forwarder, &bad), NOT_TAKEN);
            Ok(())
        })
        .unwrap();
    assert_eq!(list_connections(forwarder), []);
}

#[test]
fn s41_a_million_connections_fit_into_the_table() {
    let Some(trial) = Trial::new() else { return };
    let forwarder = trial.forwarder();
    assert_eq!(choose_capacity(Path::new("/nowhere"), 1 << 30), 262_144);
    assert_eq!(choose_capacity(Path::new("/nowhere"), u64::MAX), 1_048_576);
    let capacity = forwarder.read_capacity().unwrap();
    assert_eq!(choose_capacity(Path::new("/nowhere"), 0), 65_536);
    assert_eq!(choose_capacity(&forwarder.place.folder(), 0), capacity);
    for (connections, seconds) in [(0, 30), (500, 30), (501, 3), (1000, 3)] {
        assert_eq!(
            choose_linger(connections, 1000),
            Duration::from_secs(seconds)
        );
    }
    let map = find_map(&forwarder.object, "evk_connections").unwrap();
    let memory = || map.query_fdinfo().unwrap().memlock.unwrap();
    let empty = memory();
    let mut all = BTreeSet::new();
    for number in 0..20_000u32 {
        let ip = Ipv6Addr::from(u128::from(number / 100) << 64);
        let client = SocketAddr::new(ip.into(), (number % 100) as u16);
        let member = Family::V6.member(9);
        let connection = Connection::new(Pair { member, client }, client, number.into());
        let key = layout::write_address(client);
        map.update(&key, &connection.write(), MapFlags::ANY)
            .unwrap();
        all.insert(client);
    }
    let connections = list_connections(forwarder);
    assert_eq!(connections.len(), all.len());
    let read: BTreeSet<_> = connections.iter().map(|one| one.pair.client).collect();
    assert_eq!(read, all);
    let each = (memory() - empty) / 20_000;
    assert!(each <= layout::MEMORY, "{each} bytes of each connection");
}

/// Fills a table with entries of one value, whose keys differ in a word. Returns the bytes of memory of the full table.
fn fill_table(forwarder: &Forwarder, name: &str, key: &[u8], value: &[u8]) -> u64 {
    let map = find_map(&forwarder.object, name).unwrap();
    let (places, at_once) = (map.max_entries(), 1 << 15);
    let values = value.repeat(at_once as usize);
    for first in (0..places).step_by(at_once as usize) {
        let mut keys = key.repeat(at_once as usize);
        for (number, key) in (first..).zip(keys.chunks_exact_mut(key.len())) {
            key[..4].copy_from_slice(&number.to_be_bytes());
        }
        map.update_batch(&keys, &values, at_once, MapFlags::ANY, MapFlags::ANY)
            .unwrap();
    }
    let mut more = key.to_vec();
    more[..4].copy_from_slice(&u32::MAX.to_be_bytes());
    let refused = map.update(&more, value, MapFlags::ANY);
    assert!(refused.is_err(), "no entry makes room");
    map.query_fdinfo().unwrap().memlock.unwrap()
}

#[test]
fn s41_full_tables_of_a_million_connections_have_the_memory_that_is_promised() {
    let Some(trial) = Trial::new() else { return };
    let forwarder = trial.forwarder();
    let places = u64::from(forwarder.read_capacity().unwrap());
    assert_eq!(places, 1_048_576);
    let client = Family::V6.client(5_000);
    let member = Family::V6.member(9);
    let connection = Connection::new(Pair { member, client }, client, 1);
    let key = layout::write_address(client);
    let half = fill_table(forwarder, "evk_connections", &key, &connection.write());
    assert!(half < 209 << 20, "{half}");
    let mut count = 0;
    forwarder.visit_connections(|_| count += 1).unwrap();
    assert_eq!(count, places);
    // With full NAT, the address that the member sees leads to the client.
    let pair = [client, member].map(layout::write_address).concat();
    let pairs = fill_table(forwarder, "evk_nat_pairs", &pair, &key);
    println!("{half} and {pairs} bytes");
    assert!(half + pairs < 353 << 20, "{half} and {pairs}");
}

#[test]
fn silence_is_found_from_units_that_wrap() {
    let unit = 1u64 << 20;
    let pair = Pair {
        member: "192.0.2.9:5432".parse().unwrap(),
        client: "192.0.2.1:9".parse().unwrap(),
    };
    let mut connection = Connection::new(pair, pair.member, 0);
    for (seen, now, silence) in [
        (5, 5 * unit + 7, 0),
        (5, 9 * unit, 4),
        (u32::MAX, (1 << 32) * unit + 2 * unit, 3),
        // A packet has come since the clock was read.
        (9, 8 * unit, 0),
    ] {
        connection.age.seen = seen;
        let found = connection.find_silence(now);
        assert_eq!(found, Duration::from_nanos(silence * unit));
    }
}

proptest! {
    #[test]
    fn layouts_are_read_as_they_are_written(
        owner: u64, ips in any::<[IpAddr; 3]>(), words in any::<[u32; 3]>(), ports in any::<[u16; 2]>(),
        counts in any::<[u64; 12]>(), requests in any::<[u64; 5]>(),
    ) {
        let [base, others, room] = words;
        let ips = ips.map(|ip| ip.to_canonical());
        let address = SocketAddr::new(ips[0], ports[0]);
        let terms = Terms { owner, address, base, others, room, must_leave: base % 2 == 1, name_hash: owner, weight: room };
        prop_assert_eq!(Terms::read(&terms.write()), terms);
        let client = SocketAddr::new(ips[1], ports[1]);
        let pair = Pair { member: address, client };
        let listener = SocketAddr::new(ips[2], ports[0]);
        let connection = Connection::new(pair, listener, owner);
        let read = Connection::read(&layout::write_address(client), &connection.write());
        prop_assert_eq!(read, connection);
        let [a, b, c, d, e, f, g, h, i, j, k, l] = counts;
        let counts = Counts {
            in_flight: a.cast_signed(), next_turn: b, picks: c, handshakes: (d, e), answers: (f, g),
            refused: h, resets: i, closed: j, bytes: (k, l),
            requests: RequestCounts::read(&mut layout::Reader(&requests.map(u64::to_ne_bytes).concat())),
        };
        prop_assert_eq!(Counts::read(&counts.write()), counts);
    }

    #[test]
    fn events_of_any_bytes_are_read(bytes in proptest::collection::vec(any::<u8>(), 0..90)) {
        let _ = Event::read(&bytes);
    }
}
