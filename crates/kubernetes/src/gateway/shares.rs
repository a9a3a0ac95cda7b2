//! Members of several services in one group, each service with a share of the connections.
//!
//! A service gets its share whatever the number of its endpoints is, and members are chosen by turns, so that shares hold
//! exactly.

use super::text::{Lines, quote};

/// Largest weight of a member in a configuration.
const LARGEST: f64 = 1_000.0;

/// Service, and the share of connections to its endpoints.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ServiceShare {
    /// Port of a service, as members of a configuration name it.
    pub(super) port: String,
    pub(super) weight: u32,
}

/// Writes the members of several services, and further lines of the group.
pub(super) fn write_shares(shares: &[ServiceShare], lines: &[String], text: &mut Lines) {
    let sum: f64 = shares.iter().map(|share| f64::from(share.weight)).sum();
    let members = shares.iter().map(|share| {
        let weight = f64::from(share.weight) / sum.max(1.0) * LARGEST;
        let port = quote(&share.port);
        format!("{{ kubernetes = {port}, weight = {weight}, split_weight = true }}")
    });
    let members: Vec<String> = members.collect();
    text.line(&format!("members = [{}]", members.join(", ")));
    text.line("strategy = \"round_robin\"");
    // Members of the balancer's own zone would get the shares of others.
    text.line("zones = false");
    lines.iter().for_each(|line| text.line(line));
}
