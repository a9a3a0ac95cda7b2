//! Removal of many connections at once.

use std::collections::BTreeSet;

use super::packets::*;
use super::*;
use crate::forward::removals::REMOVALS;

/// Begins and ends a connection of a client.
fn leave_ended(forwarder: &Forwarder, interface: u32, client: SocketAddr, family: Family) {
    let mut packet = Segment::new(client, family.listener(), SYN);
    packet.sequence = 100;
    send(forwarder, interface, &packet);
    (packet.sequence, packet.flags) = (101, RST);
    send(forwarder, interface, &packet);
}

#[test]
fn s41_connections_are_removed_by_the_dozen_unless_a_packet_has_come() {
    run_beside_routes(|forwarder, interface| {
        let cases = (families(), 0..=3 * REMOVALS, any::<u128>());
        TestRunner::default()
            .run(&cases, |(family, count, fresh)| {
                serve_members(forwarder, &[family.member(2)], 0);
                for port in (2000..).take(count) {
                    leave_ended(forwarder, interface, family.client(port), family);
                }
                let mut all = list_connections(forwarder);
                prop_assert_eq!(all.len(), count);
                let mut expected = BTreeSet::new();
                for (bit, connection) in all.iter_mut().enumerate() {
                    if fresh >> bit & 1 == 1 {
                        // As if the last packet had come since.
                        connection.age.seen = connection.age.seen.wrapping_sub(1);
                        expected.insert(connection.pair.client);
                    }
                }
                let mut left = BTreeSet::new();
                let note = |connection: &Connection| _ = left.insert(connection.pair.client);
                forwarder.remove_connections(&all, note).unwrap();
                prop_assert_eq!(&left, &expected);
                let there = list_connections(forwarder);
                let there: BTreeSet<_> = there.iter().map(|one| one.pair.client).collect();
                prop_assert_eq!(&there, &expected);
                for connection in list_connections(forwarder) {
                    prop_assert!(forwarder.remove_connection(&connection).unwrap());
                }
                prop_assert_eq!(forwarder.read_counts(0).unwrap().in_flight, 0);
                Ok(())
            })
            .unwrap();
    });
}
