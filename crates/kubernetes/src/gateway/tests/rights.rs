//! Rights in `packaging/kubernetes` and in the chart, and addresses of a service.

use std::collections::BTreeSet;

use serde_json::json;

use super::super::objects::{Kind, ObjectName};
use super::{Cluster, settings};

/// Group, resource and verb.
type Right = (String, String, String);

/// Returns the rights of the rules in the text of a ClusterRole.
fn read_rights(text: &str) -> BTreeSet<Right> {
    let list = |line: &str| -> Vec<String> {
        let inner = line.split_once('[').unwrap().1.trim_end_matches(']');
        let items = inner.split(", ");
        items
            .map(|item| item.trim_matches('"').to_owned())
            .collect()
    };
    let mut rights = BTreeSet::new();
    let (mut groups, mut resources) = (Vec::new(), Vec::new());
    for line in text.lines().map(str::trim) {
        if line.starts_with("- apiGroups:") {
            groups = list(line);
        } else if line.starts_with("resources:") {
            resources = list(line);
        } else if line.starts_with("verbs:") {
            for group in &groups {
                for resource in &resources {
                    for verb in list(line) {
                        let right = (group.clone(), resource.clone(), verb);
                        assert!(rights.insert(right.clone()), "{right:?} is there twice");
                    }
                }
            }
        }
    }
    rights
}

/// Rights that the controller uses.
fn list_used_rights() -> BTreeSet<Right> {
    let mut rights = BTreeSet::new();
    let mut add = |group: &str, resource: &str, verbs: &[&str]| {
        for verb in verbs {
            rights.insert((group.into(), resource.into(), (*verb).into()));
        }
    };
    for kind in Kind::ALL {
        let group = kind.api_group();
        add(group, kind.plural(), &["list", "watch"]);
        if kind.is_of_crd() && kind != Kind::ReferenceGrant {
            add(group, &format!("{}/status", kind.plural()), &["patch"]);
        }
    }
    add("networking.k8s.io", "ingresses/status", &["patch"]);
    add("", "events", &["create"]);
    // Members: numbers of ports are looked up in the service.
    add("", "services", &["get"]);
    add("discovery.k8s.io", "endpointslices", &["list", "watch"]);
    add("", "pods", &["list", "watch"]);
    add("", "nodes", &["get"]);
    let lease = &["get", "create", "patch"];
    add("coordination.k8s.io", "leases", lease);
    rights
}

#[test]
fn the_rights_are_those_that_the_controller_uses() {
    let plain = include_str!("../../../../../packaging/kubernetes/gateway-rights.yaml");
    let chart = include_str!("../../../../../packaging/kubernetes/chart/templates/rights.yaml");
    for (file, text) in [("gateway-rights.yaml", plain), ("the chart", chart)] {
        assert_eq!(read_rights(text), list_used_rights(), "{file}");
    }
}

#[test]
fn addresses_of_the_load_balancer_are_published() {
    let mut cluster = Cluster::new();
    let mut settings = settings();
    settings.publish_service = Some(ObjectName::new("evenkeel", "evenkeel"));
    let published = |cluster: &Cluster| settings.with_service_addresses(&cluster.0).publish;
    // A service that is not there, or has no addresses.
    assert_eq!(published(&cluster), ["203.0.113.7"]);
    let mut service = json!({ "metadata": { "namespace": "evenkeel", "name": "evenkeel" }, "spec": { "ports": [] } });
    cluster.put(Kind::Service, service.clone());
    assert_eq!(published(&cluster), ["203.0.113.7"]);
    service["status"] = json!({ "loadBalancer": { "ingress": [
        { "ip": "198.51.100.1" }, { "hostname": "lb.example" }, { "ip": "198.51.100.1" }, { "ip": "x y" }, { "ip": 7 }, 3,
    ] } });
    cluster.put(Kind::Service, service.clone());
    let all = ["203.0.113.7", "198.51.100.1", "lb.example"];
    assert_eq!(published(&cluster), all);
    // The bound of the API.
    let many: Vec<_> = (0..100)
        .map(|number| json!({ "ip": format!("198.51.100.{number}") }))
        .collect();
    service["status"] = json!({ "loadBalancer": { "ingress": many } });
    cluster.put(Kind::Service, service);
    assert_eq!(published(&cluster).len(), 16);
}
