//! Metrics for Prometheus.

use std::sync::atomic::Ordering;

use evenkeel_manager::exposition::{Exposition, Type};

use crate::registry::{Counts, Registry};

/// Writes it.
pub(crate) fn write_families(out: &mut Exposition, registry: &Registry) {
    let mut one = |name, kind, help: &str, value: f64| {
        out.begin_family(name, kind, help);
        out.add_sample(&[], value);
    };
    let count = |of: &std::sync::atomic::AtomicU64| of.load(Ordering::Relaxed) as f64;
    one(
        "evenkeel_xds_connections",
        Type::Gauge,
        "Connections of xDS clients that are open.",
        registry.connections.load(Ordering::Relaxed) as f64,
    );
    one(
        "evenkeel_xds_refused_total",
        Type::Counter,
        "Connections of xDS clients that were closed at once, because there were too many.",
        count(&registry.refused),
    );
    one(
        "evenkeel_xds_streams",
        Type::Gauge,
        "Streams of xDS clients that are open.",
        registry.stream_count() as f64,
    );
    one(
        "evenkeel_xds_changes_total",
        Type::Counter,
        "Changes of resources for xDS clients.",
        count(&registry.changes),
    );
    one(
        "evenkeel_xds_load_reports_total",
        Type::Counter,
        "Load reports of xDS clients.",
        count(&registry.load_reports),
    );
    one(
        "evenkeel_xds_load_reports_unknown_total",
        Type::Counter,
        "Entries of load reports of xDS clients about unknown clusters or endpoints.",
        count(&registry.unknown_load_reports),
    );
    let counts = registry.answer_counts();
    type Of = fn(&Counts) -> u64;
    let each: [(_, _, Of); 2] = [
        (
            "evenkeel_xds_pushes_total",
            "Answers that an xDS client was sent, by type of resource.",
            |counts| counts.pushes,
        ),
        (
            "evenkeel_xds_nacks_total",
            "Answers that an xDS client has refused, by type of resource.",
            |counts| counts.nacks,
        ),
    ];
    for (name, help, of) in each {
        out.begin_family(name, Type::Counter, help);
        for (client, kinds) in &counts {
            for (kind, counts) in kinds {
                let labels = [("client", client.as_str()), ("type", kind.name())];
                out.add_sample(&labels, of(counts) as f64);
            }
        }
    }
}
