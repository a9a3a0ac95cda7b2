//! Connections that the program removes, and families of addresses that the system does not forward.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use evenkeel_kernel::bpf::BpfError;
use evenkeel_kernel::forward::{Connection, Family};

/// Time without a packet after which a connection is removed that the client does not confirm.
const CONFIRMATION: Duration = Duration::from_secs(15);

/// Returns the time without a packet after which a connection is removed.
pub(crate) fn find_limit(
    connection: &Connection,
    (idle, connect): (Duration, Duration),
    linger: Duration,
) -> Duration {
    if !connection.is_open() {
        linger
    } else if connection.is_confirmed() {
        idle
    } else if connection.is_established() {
        // The way to the client may be longer than the way to the member.
        idle.min(connect.max(CONFIRMATION))
    } else {
        connect
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
