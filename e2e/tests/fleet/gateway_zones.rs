//! The zone of the balancer's node, with `kube-apiserver`.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking.

use std::process::Command;

use evenkeel_e2e::balancer::{Balancer, evenkeel_binary};
use evenkeel_e2e::server::address;
use evenkeel_e2e::wait_until;
use serde_json::json;

use crate::gateway::{Cluster, ask_gateway, config, wait_for_answer};

#[test]
fn members_in_the_zone_of_the_balancers_node_come_first() {
    let Some(cluster) = Cluster::start() else {
        return;
    };
    let (far, near) = (cluster.member("far"), cluster.member("near"));
    // An endpoint without a zone.
    cluster.serve("web", &far);
    let slice = json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": { "name": "web-2", "labels": { "kubernetes.io/service-name": "web" } },
        "addressType": "IPv4",
        "endpoints": [{ "addresses": [cluster.ip], "conditions": { "ready": true }, "zone": "north" }],
        "ports": [{ "name": "http", "protocol": "TCP", "port": near.address().port() }],
    });
    cluster.create(
        "/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices",
        slice,
    );
    let at = address();
    cluster.gateway(
        "front",
        json!([{ "name": "http", "port": at.port(), "protocol": "HTTP" }]),
    );
    let rule = json!({ "backendRefs": [{ "name": "web", "port": 80 }] });
    cluster.route("web", "web.example", rule);
    let balancer = Balancer::start_by(&config(at.ip()), |folder| {
        let account = cluster.server.kubeconfig_of("evenkeel", "evenkeel");
        folder.write("kubeconfig", account);
        let mut command = Command::new(evenkeel_binary());
        command.env("KUBERNETES_NODE_NAME", "node-a");
        command
    });
    // The node is not there yet, which harms nobody.
    balancer.wait_for_log("the zone of node node-a is not known");
    wait_for_answer(at, "web.example", ("200", ""));
    let own_zone = || {
        let zones = balancer.status()["groups"][0]["zones"].clone();
        let zones = zones.as_array().cloned().unwrap_or_default();
        let own = zones.into_iter().find(|zone| zone["own"] == true);
        own.map(|zone| zone["name"].clone())
    };
    assert_eq!(own_zone(), None);
    let node = json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": { "name": "node-a", "labels": { "topology.kubernetes.io/zone": "north" } },
    });
    cluster.create("/api/v1/nodes", node);
    wait_until("the node's zone is the balancer's zone", || {
        own_zone() == Some(json!("north"))
    });
    for _ in 0..20 {
        let answer = ask_gateway(at, "web.example");
        assert_eq!(answer, ("200".into(), "near".into()));
    }
}
