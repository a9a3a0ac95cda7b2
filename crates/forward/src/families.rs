//! Families of addresses that the system forwards for.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use evenkeel_kernel::bpf::BpfError;
use evenkeel_kernel::forward::Family;

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
