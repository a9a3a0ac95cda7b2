//! Sessions whose member is chosen by a hash of the client's address.

use super::super::hash::{list_clients, rank_members, serve_by_hash};
use super::*;

fn check_sessions_stay(forwarder: &Forwarder, interface: u32, family: Family) {
    let members: Vec<_> = (2..8).map(|last| family.member(last)).collect();
    serve_sessions(forwarder, &members, |listener| listener);
    serve_by_hash(forwarder, &members, &[]);
    let find_member = |client: IpAddr, port: u16| {
        let from = SocketAddr::new(client, port);
        pass(
            forwarder,
            interface,
            &Datagram::new(from, family.listener()),
        )
        .to
    };
    for client in list_clients(family) {
        let first = rank_members(client, &members)[0];
        for port in [4_000, 4_001, 50_000] {
            assert_eq!(find_member(client, port), first, "{client}");
        }
    }
    // The sessions of a member that goes away move, and only these.
    serve_by_hash(forwarder, &members, &[3]);
    for client in list_clients(family) {
        let mut order = rank_members(client, &members);
        order.retain(|member| *member != members[3]);
        for port in [4_000, 4_001, 50_000, 50_001] {
            assert_eq!(find_member(client, port), order[0], "{client}");
        }
    }
}

#[test]
fn s41_sessions_of_an_address_stay_at_a_member() {
    for family in [Family::V4, Family::V6] {
        run_beside_routes(|forwarder, interface| check_sessions_stay(forwarder, interface, family));
    }
}
