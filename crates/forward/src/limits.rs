//! Connections that the program removes, and families of addresses that the system does not forward.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use evenkeel_kernel::bpf::BpfError;
use evenkeel_kernel::forward::{Connection, Family};

/// Returns the time without a packet after which a connection is removed.
pub(crate) fn find_limit(
    connection: &Connection,
    (idle, connect): (Duration, Duration),
    linger: Duration,
) -> Duration {
    match (connection.is_open(), connection.is_established()) {
        (false, _) => linger,
        (true, true) => idle,
        (true, false) => connect,
    }
}

/// Returns the families of these addresses whose packets the system does not forward, each with the reason.
pub(crate) fn list_unforwarded<'a>(
    addresses: impl Iterator<Item = &'a SocketAddr>,
) -> Vec<(Family, BpfError)> {
    let families: BTreeSet<_> = addresses.map(Family::of_address).collect();
    let refused = families
        .into_iter()
        .filter_map(|family| Some((family, family.check_forwarding().err()?)));
    refused.collect()
}
