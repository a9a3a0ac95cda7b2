//! Decisions by a hash of the client's address.

use evenkeel_core::hash_terms::{self, HashSeat, scale_bound, weigh_base};
use evenkeel_core::key::{hash, hash_address};

use super::packets::*;
use super::*;

/// Base of the member with the highest weight.
const BASE: u32 = hash_terms::LEAST_BASE as u32;

fn hash_seats() -> impl Strategy<Value = Vec<HashSeat>> {
    let base = prop_oneof![Just(BASE), BASE..8 * BASE, BASE..=u32::MAX];
    let name = prop_oneof![9 => any::<u64>(), 1 => 0..3u64];
    let others = prop_oneof![4 => 0..20u32, 1 => any::<u32>()];
    let room = prop_oneof![1 => Just(0), 9 => 5..30u32];
    let seat =
        (base, name, 0..20u32, others, room).prop_map(|(base, name, own, others, room)| HashSeat {
            base,
            weight: weigh_base(base),
            name,
            own,
            others,
            room,
        });
    proptest::collection::vec(seat, 0..=GROUP_SEATS)
}

fn addresses() -> impl Strategy<Value = IpAddr> {
    prop_oneof![
        any::<u32>().prop_map(|bits| IpAddr::from(bits.to_be_bytes())),
        // Not one of IPv4 in disguise, which is the same client.
        any::<u128>().prop_map(|bits| IpAddr::from((bits | 1 << 127).to_be_bytes())),
    ]
}

/// Compares the program's choice with the one of `core`. Members with a seat whose bit in `others` is set are of the other
/// family than the client, and those of `tried` have refused the client.
fn compare(
    forwarder: &Forwarder,
    (client, others): (IpAddr, u128),
    all: &[HashSeat],
    (bound, tried): (u32, Vec<u32>),
) {
    let first = 100;
    let family = if client.is_ipv4() {
        Family::V4
    } else {
        Family::V6
    };
    let other = if client.is_ipv4() {
        Family::V6
    } else {
        Family::V4
    };
    let mut eligible = all.to_vec();
    for ((number, seat), eligible) in (0..).zip(all).zip(&mut eligible) {
        let is_other = others >> number & 1 == 1;
        if is_other || tried.contains(&(first + number)) {
            eligible.room = 0;
        }
        let terms = Terms {
            owner: 1,
            address: if is_other { other } else { family }.member(1),
            base: seat.base,
            others: seat.others,
            room: seat.room,
            must_leave: false,
            name_hash: seat.name,
            weight: seat.weight,
        };
        forwarder.set_terms(first + number, &terms).unwrap();
        let counts = Counts {
            in_flight: seat.own.into(),
            ..Counts::default()
        };
        let key = (first + number).to_ne_bytes();
        bpf::update_map(&forwarder.object, "evk_counts", &key, &counts.write()).unwrap();
    }
    let group = GroupTerms {
        form: 3,
        growth: 256,
        bound,
        seats: (first..).take(all.len()).collect(),
    };
    forwarder.set_group(7, &group).unwrap();
    // Members that cannot win are passed over, unless the decision is told.
    let told = if bound % 2 == 0 { u64::MAX } else { 0 }.to_ne_bytes();
    bpf::update_map(&forwarder.object, "evk_samples", &7u32.to_ne_bytes(), &told).unwrap();
    let chosen = choose_seat(forwarder, 7, client, &tried);
    let expected = hash_terms::choose_seat(&eligible, hash_address(client), bound);
    let expected = expected.map_or(-1, |index| index as i32 + first as i32);
    assert_eq!(
        chosen, expected,
        "{client}, {bound}, {tried:?}: {eligible:?}"
    );
}

#[test]
fn s41_the_kernel_chooses_by_hash_as_core_does() {
    let Some(trial) = Trial::new() else { return };
    let bound = prop_oneof![
        Just(0),
        Just(scale_bound(1.25)),
        scale_bound(1.0)..scale_bound(63.9)
    ];
    let others = prop_oneof![2 => Just(0), 1 => any::<u128>()];
    let tried = proptest::collection::vec(100..100 + GROUP_SEATS as u32, 0..=10);
    let cases = ((addresses(), others), hash_seats(), (bound, tried));
    let mut runner = TestRunner::new(ProptestConfig {
        cases: 1024,
        ..ProptestConfig::default()
    });
    runner
        .run(&cases, |(who, all, how)| {
            compare(trial.forwarder(), who, &all, how);
            Ok(())
        })
        .unwrap();
}

/// Members in the seats from 0 on, which decisions by hash are about.
pub(super) fn serve_by_hash(forwarder: &Forwarder, members: &[SocketAddr], without: &[u32]) {
    for (seat, address) in (0..).zip(members) {
        let terms = Terms {
            owner: 1,
            address: *address,
            base: BASE,
            others: 0,
            room: if without.contains(&seat) { 0 } else { u32::MAX },
            must_leave: without.contains(&seat),
            name_hash: hash(address.to_string().as_bytes()),
            weight: weigh_base(BASE),
        };
        forwarder.set_terms(seat, &terms).unwrap();
    }
    let group = GroupTerms {
        form: 3,
        growth: 256,
        bound: 0,
        seats: (0..members.len() as u32).collect(),
    };
    forwarder.set_group(0, &group).unwrap();
}

/// Returns members as `core` sees them.
fn list_hash_seats(members: &[SocketAddr]) -> Vec<HashSeat> {
    let seats = members.iter().map(|address| HashSeat {
        base: BASE,
        weight: weigh_base(BASE),
        name: hash(address.to_string().as_bytes()),
        own: 0,
        others: 0,
        room: 1,
    });
    seats.collect()
}

/// Lists the members in the order in which a client's connections try them.
pub(super) fn rank_members(client: IpAddr, members: &[SocketAddr]) -> Vec<SocketAddr> {
    let order = hash_terms::rank_seats(&list_hash_seats(members), hash_address(client), 0);
    order.into_iter().map(|index| members[index]).collect()
}

/// Addresses of clients in a family.
pub(super) fn list_clients(family: Family) -> impl Iterator<Item = IpAddr> {
    (10..60).map(move |last| {
        let (v4, v6) = (
            format!("198.51.100.{last}:0"),
            format!("[2001:db8:100::{last:x}]:0"),
        );
        family.address(&v4, &v6).ip()
    })
}

fn check_clients_stay(forwarder: &Forwarder, interface: u32, family: Family) {
    let members: Vec<_> = (2..8).map(|last| family.member(last)).collect();
    serve_members(forwarder, &members, 5);
    serve_by_hash(forwarder, &members, &[]);
    let find_member = |client: IpAddr, port: u16| {
        let syn = Segment::new(SocketAddr::new(client, port), family.listener(), SYN);
        send(forwarder, interface, &syn).to
    };
    let mut firsts = BTreeSet::new();
    for client in list_clients(family) {
        let first = rank_members(client, &members)[0];
        for port in [4_000, 4_001, 50_000] {
            assert_eq!(find_member(client, port), first, "{client}");
        }
        firsts.insert(first);
    }
    assert_eq!(firsts.len(), members.len(), "each member has clients");

    // A member that goes away: only its clients move, each to the next member.
    serve_by_hash(forwarder, &members, &[3]);
    for client in list_clients(family) {
        let mut order = rank_members(client, &members);
        order.retain(|member| *member != members[3]);
        assert_eq!(find_member(client, 5_000), order[0], "{client}");
    }
}

fn check_refusals(forwarder: &Forwarder, interface: u32, family: Family) {
    let members: Vec<_> = (2..8).map(|last| family.member(last)).collect();
    serve_members(forwarder, &members, 5);
    serve_by_hash(forwarder, &members, &[]);
    for client in list_clients(family).take(9) {
        let syn = Segment::new(SocketAddr::new(client, 6_000), family.listener(), SYN);
        let mut sent = send(forwarder, interface, &syn);
        for member in rank_members(client, &members) {
            assert_eq!(sent.to, member, "{client}");
            let refusal = Segment {
                sequence: 0,
                answered: 2,
                window: 0,
                ..Segment::new(member, syn.from, RST | ACK)
            };
            sent = send(forwarder, interface, &refusal);
        }
        // Nobody is left.
        assert_eq!((sent.to, sent.flags), (syn.from, RST | ACK));
    }
}

#[test]
fn s41_clients_of_an_address_stay_at_a_member() {
    for family in [Family::V4, Family::V6] {
        run_beside_routes(|forwarder, interface| check_clients_stay(forwarder, interface, family));
    }
}

#[test]
fn s41_refused_connections_go_to_the_next_member_of_the_address() {
    for family in [Family::V4, Family::V6] {
        run_beside_routes(|forwarder, interface| check_refusals(forwarder, interface, family));
    }
}

#[test]
fn s41_decisions_by_hash_are_told_with_the_scores_of_all_members() {
    run_beside_routes(|forwarder, interface| {
        for family in [Family::V4, Family::V6] {
            let members: Vec<_> = (2..8).map(|last| family.member(last)).collect();
            serve_members(forwarder, &members, 0);
            serve_by_hash(forwarder, &members, &[4]);
            let mut seats = list_hash_seats(&members);
            seats[4].room = 0;
            for client in list_clients(family) {
                // The next decision is told at once.
                let (group, past) = (0u32.to_ne_bytes(), 0u64.to_ne_bytes());
                bpf::update_map(&forwarder.object, "evk_samples", &group, &past).unwrap();
                let client = SocketAddr::new(client, 5_000);
                let syn = Segment::new(client, family.listener(), SYN);
                let sent = send(forwarder, interface, &syn);
                let told = forwarder.take_decisions().unwrap().pop().unwrap();
                assert_eq!((told.form, told.client), (3, client));
                assert_eq!(members[told.chosen as usize], sent.to);
                let scores: Vec<_> = told.candidates.iter().map(|one| one.score).collect();
                let expected = hash_terms::score_seats(&seats, hash_address(client.ip()), 0);
                assert_eq!(scores, expected, "{client}");
            }
        }
    });
}
