//! Status and metrics of copies of connections in a fleet.

use std::collections::BTreeMap;

use evenkeel_manager::exposition::{Exposition, Type};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Copies of connections in a fleet, as the admin API shows them.
#[derive(Clone, Debug, Default, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct CopyStatus {
    /// Number of other balancers that get copies.
    pub receivers: usize,
    /// Copies of others' connections in the kernel's table.
    pub copied: usize,
    /// Copies of others' sessions of UDP in the kernel's table.
    pub copied_sessions: usize,
    /// Number of copies that were sent.
    pub sent: u64,
    /// Number of copies and ends that found no room on their way.
    pub unsent: u64,
    /// Number of connections and sessions that continue here: the address has moved to this balancer.
    pub taken_over: u64,
    /// Numbers of received copies by what became of them.
    pub received: BTreeMap<String, u64>,
    /// Reason why connections of another balancer cannot continue here; `null` without one.
    pub obstacle: Option<String>,
}

/// Writes the metrics; without copies there are no samples.
pub(crate) fn write_families(out: &mut Exposition, status: Option<&CopyStatus>) {
    let mut family = |name, kind, help, read: fn(&CopyStatus) -> f64| {
        out.begin_family(name, kind, help);
        if let Some(status) = status {
            out.add_sample(&[], read(status));
        }
    };
    family(
        "evenkeel_forward_copies",
        Type::Gauge,
        "Copies of other balancers' connections in the kernel's table.",
        |status| status.copied as f64,
    );
    family(
        "evenkeel_forward_session_copies",
        Type::Gauge,
        "Copies of other balancers' sessions of UDP in the kernel's table.",
        |status| status.copied_sessions as f64,
    );
    family(
        "evenkeel_forward_copies_receivers",
        Type::Gauge,
        "Other balancers that get copies of connections.",
        |status| status.receivers as f64,
    );
    family(
        "evenkeel_forward_copies_sent_total",
        Type::Counter,
        "Copies of connections and sessions sent to other balancers.",
        |status| status.sent as f64,
    );
    family(
        "evenkeel_forward_copies_unsent_total",
        Type::Counter,
        "Copies and ends of connections that found no room on their way.",
        |status| status.unsent as f64,
    );
    family(
        "evenkeel_forward_taken_over_total",
        Type::Counter,
        "Connections and sessions of other balancers that continue at this balancer.",
        |status| status.taken_over as f64,
    );
    out.begin_family(
        "evenkeel_forward_copies_received_total",
        Type::Counter,
        "Copies of connections received from other balancers, by result.",
    );
    let received = status.iter().flat_map(|status| &status.received);
    for (result, count) in received {
        out.add_sample(&[("result", result)], *count as f64);
    }
}
