//! Listening addresses in the tables of the program.

use super::*;

/// Returns an address of a family for a number.
fn address(family: Family, number: usize) -> SocketAddr {
    let mut address = family.listener();
    address.set_port(1000 + number as u16);
    address
}

fn udp_listener(address: SocketAddr) -> UdpListener {
    UdpListener {
        address,
        is_direct: false,
        group: 3,
        retries: false,
        nat: None,
        idle: Duration::from_secs(60),
        answer: None,
        is_quic: false,
        is_single: false,
        is_limited: false,
    }
}

fn list_addresses_in(forwarder: &Forwarder, map: &str) -> BTreeSet<SocketAddr> {
    let map = find_map(&forwarder.object, map).unwrap();
    let keys = map.keys();
    keys.map(|key| layout::Reader(&key).address()).collect()
}

#[test]
fn s41_an_address_that_the_kernel_refuses_leaves_the_others_alone() {
    let Some(trial) = Trial::new() else { return };
    let forwarder = trial.forwarder();
    for family in [Family::V4, Family::V6] {
        let all: Vec<_> = (0..LISTENERS + 2)
            .map(|number| address(family, number))
            .collect();
        let tcp: Vec<_> = all
            .iter()
            .map(|address| Listener {
                address: *address,
                ..listener(family, 3, 0)
            })
            .collect();
        let udp: Vec<_> = all.iter().copied().map(udp_listener).collect();
        for (map, refused) in [
            ("evk_listeners", forwarder.set_listeners(&tcp)),
            ("evk_udp_listeners", forwarder.set_udp_listeners(&udp)),
        ] {
            let refused = refused.unwrap_err();
            assert!(refused.is_of_entry(), "{refused}");
            let first = all[LISTENERS].to_string();
            assert!(refused.to_string().contains(&first), "{refused}");
            let written: BTreeSet<_> = all[..LISTENERS].iter().copied().collect();
            assert_eq!(list_addresses_in(forwarder, map), written);
        }
        // What is left has room again.
        forwarder.set_listeners(&tcp[LISTENERS..]).unwrap();
        forwarder.set_udp_listeners(&udp[LISTENERS..]).unwrap();
        let left: BTreeSet<_> = all[LISTENERS..].iter().copied().collect();
        for map in [
            "evk_listeners",
            "evk_listener_counts",
            "evk_udp_listeners",
            "evk_udp_counts",
        ] {
            assert_eq!(list_addresses_in(forwarder, map), left, "{map}");
        }
    }
}
