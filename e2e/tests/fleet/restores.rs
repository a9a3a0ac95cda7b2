//! An API server that was restored from a backup, and the controller of the Gateway API.

use evenkeel_e2e::balancer::Balancer;
use evenkeel_e2e::server::address;
use evenkeel_e2e::wait_until;
use serde_json::{Value, json};

use crate::gateway::{Cluster, GATEWAYS, ROUTES, ask_gateway, config, start, wait_for_answer};

const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/evenkeel/leases/evenkeel-gateway";

fn to(service: &str) -> Value {
    json!({ "backendRefs": [{ "name": service, "port": 80 }] })
}

/// Time of the last renewal of the lease.
fn renewal(cluster: &Cluster) -> Value {
    let lease = cluster.server.get_object(LEASE).unwrap_or_default();
    lease["spec"]["renewTime"].clone()
}

/// Waits until the lease is renewed twice: the second renewal is one that began after this call.
fn wait_for_renewals(cluster: &Cluster) {
    for _ in 0..2 {
        let before = renewal(cluster);
        wait_until("the lease is renewed", || renewal(cluster) != before);
    }
}

fn wait_for_leader(balancer: &Balancer) {
    wait_until("the balancer leads", || {
        balancer.read_metric("evenkeel_gateway_leader") == Some(1.0)
    });
}

/// Numbers of statuses that were written, of configurations, and of lists of all kinds.
fn counts(balancer: &Balancer) -> (f64, f64, u64) {
    let count = |name: &str| balancer.read_metric(name).unwrap_or_default();
    let kinds = balancer.admin_json("/v1/kubernetes/kinds");
    let lists = kinds.as_array().into_iter().flatten();
    (
        count("evenkeel_gateway_status_writes_total"),
        count("evenkeel_gateway_configurations_total"),
        lists.filter_map(|kind| kind["lists"].as_u64()).sum(),
    )
}

#[test]
fn gateways_routes_statuses_and_the_lease_are_those_of_the_backup() {
    let Some(mut cluster) = Cluster::start() else {
        return;
    };
    let (a, b) = (cluster.member("a"), cluster.member("b"));
    cluster.serve("a", &a);
    cluster.serve("b", &b);
    let at = address();
    let lease = "[kubernetes.gateway]\nlease = \"evenkeel/evenkeel-gateway\"\n";
    let config = config(at.ip()).replace("[kubernetes.gateway]\n", lease);
    let listeners = json!([{ "name": "http", "port": at.port(), "protocol": "HTTP" }]);
    cluster.gateway("front", listeners);
    cluster.route("kept", "kept.example", to("a"));
    cluster.route("gone", "gone.example", to("a"));
    let balancer = start(&cluster, &config);
    for host in ["kept.example", "gone.example"] {
        wait_for_answer(at, host, ("200", "a"));
    }
    wait_for_leader(&balancer);
    let accepted = ("Accepted", "True", "Accepted");
    cluster.wait_for_condition(&format!("{ROUTES}/kept"), "/parents/0", accepted);
    cluster.server.back_up();
    wait_for_leader(&balancer);

    // Changes that the backup does not have.
    let path = format!("{ROUTES}/kept");
    let mut kept = cluster.server.get_object(&path).unwrap();
    kept["spec"]["rules"] = json!([to("b")]);
    cluster.server.send_object("PUT", &path, &kept);
    cluster.delete(ROUTES, "gone");
    for number in 0..20 {
        let name = format!("new-{number}");
        cluster.route(&name, &format!("{name}.example"), to("b"));
    }
    wait_for_answer(at, "kept.example", ("200", "b"));
    wait_for_answer(at, "gone.example", ("404", ""));
    wait_for_answer(at, "new-19.example", ("200", "b"));
    cluster.wait_for_condition(&format!("{ROUTES}/new-19"), "/parents/0", accepted);

    cluster.server.restore();
    wait_for_answer(at, "kept.example", ("200", "a"));
    wait_for_answer(at, "gone.example", ("200", "a"));
    assert_eq!(ask_gateway(at, "new-19.example").0, "404");
    wait_for_leader(&balancer);
    let front = format!("{GATEWAYS}/front");
    wait_until("the routes are counted", || {
        let status = cluster.server.get_object(&front).unwrap()["status"].clone();
        status["listeners"][0]["attachedRoutes"] == 2
    });
    for name in ["kept", "gone"] {
        let path = format!("{ROUTES}/{name}");
        cluster.wait_for_condition(&path, "/parents/0", accepted);
    }
    let holder = |cluster: &Cluster| {
        let lease = cluster.server.get_object(LEASE).unwrap();
        lease["spec"]["holderIdentity"].clone()
    };
    let known = holder(&cluster);
    wait_for_renewals(&cluster);
    // Nobody else holds the lease, and nothing is left to do.
    let before = counts(&balancer);
    for _ in 0..2 {
        wait_for_renewals(&cluster);
    }
    assert_eq!(counts(&balancer), before, "{}", balancer.log());
    assert_eq!(holder(&cluster), known);

    // Changes after the restore have their effect, and their statuses.
    cluster.delete(ROUTES, "gone");
    cluster.route("late", "late.example", to("b"));
    wait_for_answer(at, "late.example", ("200", "b"));
    wait_for_answer(at, "gone.example", ("404", ""));
    cluster.wait_for_condition(&format!("{ROUTES}/late"), "/parents/0", accepted);
}
