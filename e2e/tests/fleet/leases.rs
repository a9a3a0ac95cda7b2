//! The lease of the balancer that writes the statuses of gateways, with `kube-apiserver`.

use evenkeel_e2e::balancer::Balancer;
use evenkeel_e2e::process::Signal;
use evenkeel_e2e::server::address;
use evenkeel_e2e::wait_until;
use serde_json::json;

use super::gateway::{Cluster, GATEWAYS, ROUTES, config, start};
use super::ingress::events;

const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/evenkeel/leases/evenkeel-gateway";

/// True if the balancer writes statuses, as the metric and the admin API say.
fn leads(balancer: &Balancer) -> bool {
    balancer.admin_json("/v1/kubernetes/controller")["leads"] == true
        && balancer.read_metric("evenkeel_gateway_leader") == Some(1.0)
}

/// Creates a route of gateway `one` to a service that is missing, and waits for its status and its event.
fn create_lost_route(cluster: &Cluster, name: &str) {
    let route = json!({
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "HTTPRoute",
        "metadata": { "name": name },
        "spec": { "parentRefs": [{ "name": "one" }], "rules": [{ "backendRefs": [{ "name": "nothing", "port": 80 }] }] },
    });
    cluster.create(ROUTES, route);
    let lost = ("ResolvedRefs", "False", "BackendNotFound");
    cluster.wait_for_condition(&format!("{ROUTES}/{name}"), "/parents/0", lost);
    wait_until(&format!("there is an event about {name}"), || {
        !events(cluster, name).is_empty()
    });
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
    let mut first = start(&cluster, &with_lease("192.0.2.10"));
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

    create_lost_route(&cluster, "early");
    let lease = cluster.server.get_object(LEASE).unwrap();
    let holder = lease["spec"]["holderIdentity"].clone();
    wait_until("both balancers name the leader", || {
        [&first, &second]
            .iter()
            .all(|balancer| balancer.admin_json("/v1/kubernetes/controller")["holder"] == holder)
    });
    wait_until("the second balancer knows the route's problem, too", || {
        let objects = second.admin_json("/v1/kubernetes/objects");
        let mut objects = objects.as_array().unwrap().iter();
        objects.any(|of| of["name"] == "early" && of["problems"][0]["reason"] == "RefsNotResolved")
    });

    // Another balancer takes over, and writes what it finds other than it should be.
    first.signal(Signal::KILL);
    first.wait_for_end();
    wait_until("the second balancer leads", || leads(&second));
    let lease = cluster.server.get_object(LEASE).unwrap();
    assert_ne!(lease["spec"]["holderIdentity"], holder);
    assert_eq!(lease["spec"]["leaseTransitions"], 1);
    wait_until("the second balancer writes the address", || {
        let gateway = cluster.server.get_object(&front("one")).unwrap();
        gateway["status"]["addresses"][0]["value"] == "192.0.2.20"
    });
    assert_eq!(create("two"), "192.0.2.20");
    // The second leader writes its first event after it has looked at all reports: the older one is no second event.
    create_lost_route(&cluster, "late");
    for name in ["early", "late"] {
        assert_eq!(events(&cluster, name).len(), 1, "{name}");
    }

    // The balancer that was killed comes back, and follows.
    let third = start(&cluster, &with_lease("192.0.2.10"));
    let lease = cluster.server.get_object(LEASE).unwrap();
    let holder = lease["spec"]["holderIdentity"].clone();
    wait_until("the third balancer names the leader", || {
        third.admin_json("/v1/kubernetes/controller")["holder"] == holder
    });
    assert!(leads(&second) && !leads(&third));
}
