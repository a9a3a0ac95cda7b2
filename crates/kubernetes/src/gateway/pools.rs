//! InferencePools: engines of language models that labels of pods choose.
//!
//! The strategy `inference` chooses the engine, so the pool's endpoint picker is not asked.

use std::collections::{BTreeMap, BTreeSet};

use evenkeel_config::ServicePort;
use serde_json::{Value, json};

use super::conditions::{Condition, Refusal, list_by_gateway, list_conditions};
use super::grants::is_granted;
use super::objects::{
    GROUP, HttpRule, INFERENCE_GROUP, InferencePool, Kind, ObjectName, Objects, Selector,
};

/// Most ports of a pool; the API has the same bound.
const MAX_PORTS: usize = 8;

/// Most parents in the status of a pool; the API has the same bound.
const MAX_PARENTS: usize = 32;

/// Gateways through which clients reach each pool.
pub(crate) type PoolParents = BTreeMap<ObjectName, BTreeSet<ObjectName>>;

/// Writes the labels of a pool as members of a configuration name them; `None` if the pool has none, or has conditions
/// beside labels, which the API does not know.
fn write_labels(selector: &Selector) -> Option<String> {
    if selector.match_labels.is_empty() || !selector.match_expressions.is_empty() {
        return None;
    }
    let labels = selector.match_labels.iter();
    let labels: Vec<String> = labels
        .map(|(label, value)| format!("{label}={value}"))
        .collect();
    Some(labels.join(","))
}

/// Returns the engines of a pool: its pods, by their labels, with each port.
///
/// # Errors
///
/// The reason why the pool cannot be used.
pub(crate) fn list_engines(
    objects: &Objects,
    name: &ObjectName,
) -> Result<Vec<ServicePort>, Refusal> {
    let not_found = |message| ("BackendNotFound", message);
    let Some(pool) = objects.pools.get(name) else {
        return Err(not_found(format!(
            "there is no InferencePool {name}; create it"
        )));
    };
    if let Some(protocol) = { pool.spec.app_protocol.as_deref() }.filter(|of| *of != "http") {
        let message = format!(
            "InferencePool {name} has appProtocol {protocol}, which is not supported; use engines with HTTP/1.1"
        );
        return Err(("UnsupportedProtocol", message));
    }
    let labels = write_labels(&pool.spec.selector);
    let ports = pool.spec.target_ports.iter().take(MAX_PORTS);
    let engines: Option<Vec<ServicePort>> = labels.and_then(|labels| {
        ports
            .map(|port| {
                ServicePort::from_text(&format!("{}/{labels}:{}", name.namespace, port.number))
            })
            .collect()
    });
    engines.filter(|engines| !engines.is_empty()).ok_or_else(|| {
        not_found(format!(
            "InferencePool {name} has no labels or no port that can be used; set 1 to 16 labels in \
             spec.selector.matchLabels, and a port in spec.targetPorts"
        ))
    })
}

/// Returns the pools to which a rule of a route in `namespace` may send requests.
pub(crate) fn list_pools(rule: &HttpRule, namespace: &str, objects: &Objects) -> Vec<ObjectName> {
    let to = (INFERENCE_GROUP, Kind::InferencePool.name());
    let targets = rule.backend_refs.iter().map(|of| &of.target);
    let pools = targets
        .filter(|of| (of.group.as_deref(), of.kind.as_deref()) == (Some(to.0), Some(to.1)))
        .map(|of| of.target(namespace));
    let from = (GROUP, Kind::HttpRoute.name(), namespace);
    pools
        .filter(|name| objects.pools.contains_key(name) && is_granted(objects, from, to, name))
        .collect()
}

/// Makes the status of a pool with these parents.
pub(crate) fn show_pool(
    pool: &InferencePool,
    parents: Option<&BTreeSet<ObjectName>>,
    controller: &str,
) -> Value {
    let accepted = Condition::holds("Accepted", "Accepted");
    let references = Condition {
        message: "the balancer chooses the engines itself; endpointPickerRef is not used".into(),
        ..Condition::holds("ResolvedRefs", "ResolvedRefs")
    };
    let conditions = list_conditions(&[accepted, references], pool.metadata.generation);
    let parents = parents.into_iter().flatten().take(MAX_PARENTS);
    json!({ "parents": list_by_gateway("parentRef", parents, controller, &conditions) })
}
