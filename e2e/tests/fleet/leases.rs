//! The lease of the balancer that writes the statuses of gateways, with `kube-apiserver`.

use evenkeel_e2e::balancer::Balancer;
use evenkeel_e2e::server::address;
use evenkeel_e2e::wait_until;
use serde_json::json;

use super::gateway::{Cluster, GATEWAYS, config, start};

const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/evenkeel/leases/evenkeel-gateway";

fn leads(balancer: &Balancer) -> bool {
    balancer.read_metric("evenkeel_gateway_leader") == Some(1.0)
}

#[test]
fn one_of_several_balancers_writes_statuses() {
    let Some(cluster) = Cluster::start() else {
        return;
    };
    let with_lease = |publish: &str| {
        let own = config(address().ip()).replace("192.0.2.10", publish);
        format!("{own}lease = \"evenkeel/evenkeel-gateway\"\n")
    };
    let first = start(&cluster, &with_lease("192.0.2.10"));
    wait_until("the first balancer leads", || leads(&first));
    let second = start(&cluster, &with_lease("192.0.2.20"));
    let front = |name: &str| format!("{GATEWAYS}/{name}");
    let create = |name: &str| {
        let port = address().port();
        cluster.gateway(
            name,
            json!([{ "name": "http", "port": port, "protocol": "HTTP" }]),
        );
        cluster.wait_for_condition(&front(name), "", ("Programmed", "True", "Programmed"));
        let gateway = cluster.server.get_object(&front(name)).unwrap();
        gateway["status"]["addresses"][0]["value"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    assert_eq!(create("one"), "192.0.2.10");
    wait_until("the second balancer knows the gateway", || {
        second.read_metric("evenkeel_gateway_objects{kind=\"Gateway\"}") == Some(1.0)
    });
    assert!(leads(&first) && !leads(&second));
    assert_eq!(
        second.read_metric("evenkeel_gateway_status_writes_total"),
        Some(0.0)
    );

    // Another balancer takes over, and writes what it finds other than it should be.
    let lease = cluster.server.get_object(LEASE).unwrap();
    let holder = lease["spec"]["holderIdentity"].clone();
    drop(first);
    wait_until("the second balancer leads", || leads(&second));
    let lease = cluster.server.get_object(LEASE).unwrap();
    assert_ne!(lease["spec"]["holderIdentity"], holder);
    assert_eq!(lease["spec"]["leaseTransitions"], 1);
    wait_until("the second balancer writes the address", || {
        let gateway = cluster.server.get_object(&front("one")).unwrap();
        gateway["status"]["addresses"][0]["value"] == "192.0.2.20"
    });
    assert_eq!(create("two"), "192.0.2.20");
}
