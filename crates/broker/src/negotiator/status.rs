//! Status of clusters.

use std::collections::BTreeMap;

use evenkeel_config::{Cluster, Quantum, Terms};
use evenkeel_manager::status::{ClassStatus, ClusterStatus, Word};

use super::metrics::Metrics;

/// The clusters, with what clients have negotiated.
pub(super) fn clusters(clusters: &[Cluster], metrics: &Metrics) -> Vec<ClusterStatus> {
    let totals = metrics.classes();
    let negotiations = |cluster: &str, class: &str| -> BTreeMap<Word, u64> {
        let mut totals = totals.iter();
        let of_class = totals.find(|of| of.cluster == cluster && of.class == class);
        let endings = of_class.into_iter().flat_map(|of| &of.endings);
        endings
            .map(|(e, count)| (e.name().into(), *count))
            .collect()
    };
    let cluster_status = |cluster: &Cluster| {
        let class = |name: &str, terms: &Terms| ClassStatus {
            name: name.into(),
            quantum_seconds: match terms.quantum {
                Quantum::Fixed(time) => (time.as_secs(), time.as_secs()),
                Quantum::ByLoad { min, max } => (min.as_secs(), max.as_secs()),
            },
            response_time_ms: terms.response_time.map(|time| time.as_secs_f64() * 1e3),
            max_utilization: terms.max_utilization,
            negotiations: negotiations(&cluster.name, name),
        };
        let classes = cluster.classes.iter();
        ClusterStatus {
            name: cluster.name.clone(),
            group: cluster.group.clone(),
            hosts: cluster.hosts.clone(),
            classes: std::iter::once(class("", &cluster.terms))
                .chain(classes.map(|known| class(&known.name, &known.terms)))
                .collect(),
        }
    };
    clusters.iter().map(cluster_status).collect()
}
