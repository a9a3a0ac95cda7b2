//! EvenkeelPolicies: settings of groups by service, route and gateway.

#![allow(clippy::unwrap_used, clippy::expect_used)] // Helpers of tests fail by panicking.

use std::net::SocketAddr;

use evenkeel_e2e::balancer::Balancer;
use evenkeel_e2e::process::try_curl;
use evenkeel_e2e::server::address;
use evenkeel_e2e::wait_until;
use serde_json::{Value, json};

use crate::gateway::{Cluster, EVENKEEL_POLICIES, ask_gateway, config, start, wait_for_answer};

const ACCEPTED: (&str, &str, &str) = ("Accepted", "True", "Accepted");

/// Chapter of the manual with the example.
const MANUAL: &str = include_str!("../../../docs/kubernetes.md");

/// Returns the policy of a name in the manual.
fn read_example(name: &str) -> &'static str {
    let mut blocks = MANUAL.split("```yaml\n").skip(1);
    let name = format!("\nkind: EvenkeelPolicy\nmetadata:\n  name: {name}\n");
    let block = blocks.find(|block| block.contains(&name));
    let (example, _) = block.and_then(|block| block.split_once("```")).unwrap();
    example
}

fn policy(name: &str, target: Value, group: Value) -> Value {
    json!({
        "apiVersion": "evenkeel.org/v1alpha1",
        "kind": "EvenkeelPolicy",
        "metadata": { "name": name },
        "spec": { "targetRefs": [target], "group": group },
    })
}

fn service() -> Value {
    json!({ "group": "", "kind": "Service", "name": "web" })
}

/// Waits until the only group has a strategy.
fn wait_for_strategy(balancer: &Balancer, wanted: &str) {
    wait_until(&format!("the strategy is {wanted}"), || {
        let status = balancer.status();
        let groups = status["groups"].as_array().expect("groups");
        groups.len() == 1 && groups[0]["strategy"] == wanted
    });
}

/// Starts a cluster with a gateway and a route to service `web`.
fn start_with_route(cluster: &Cluster, at: SocketAddr) -> Balancer {
    cluster.gateway(
        "front",
        json!([{ "name": "http", "port": at.port(), "protocol": "HTTP" }]),
    );
    let rule = json!({ "backendRefs": [{ "name": "web", "port": 80 }] });
    cluster.route("web", "web.example", rule);
    let balancer = start(cluster, &config(at.ip()));
    wait_for_answer(at, "web.example", ("200", "web"));
    balancer
}

#[test]
fn policies_set_the_strategy_of_services_and_gateways() {
    let Some(cluster) = Cluster::start() else {
        return;
    };
    let member = cluster.member("web");
    cluster.serve("web", &member);
    let at = address();
    let balancer = start_with_route(&cluster, at);
    wait_for_strategy(&balancer, "adaptive");
    let wait = |name: &str, wanted: (&str, &str, &str)| {
        cluster.wait_for_condition(
            &format!("{EVENKEEL_POLICIES}/{name}"),
            "/ancestors/0",
            wanted,
        );
    };
    // The gateway's policy is the default.
    let gateway =
        json!({ "group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "front" });
    let random = json!({ "strategy": "random", "queue_target": "2s" });
    cluster.create(EVENKEEL_POLICIES, policy("front", gateway, random));
    wait("front", ACCEPTED);
    wait_for_strategy(&balancer, "random");
    wait_for_answer(at, "web.example", ("200", "web"));
    // The service's policy is more specific: the example of the manual.
    cluster
        .server
        .create_from_yaml(EVENKEEL_POLICIES, read_example("web"));
    wait("web", ACCEPTED);
    wait_for_strategy(&balancer, "least_request");
    wait_for_answer(at, "web.example", ("200", "web"));
    // A newer policy of the same service does not count.
    let other = policy("web-too", service(), json!({ "strategy": "round_robin" }));
    cluster.create(EVENKEEL_POLICIES, other);
    wait("web-too", ("Accepted", "False", "Conflicted"));
    wait_for_strategy(&balancer, "least_request");
    cluster.delete(EVENKEEL_POLICIES, "web");
    wait("web-too", ACCEPTED);
    wait_for_strategy(&balancer, "round_robin");
    cluster.delete(EVENKEEL_POLICIES, "web-too");
    wait_for_strategy(&balancer, "random");
    cluster.delete(EVENKEEL_POLICIES, "front");
    wait_for_strategy(&balancer, "adaptive");
    assert_eq!(ask_gateway(at, "web.example"), ("200".into(), "web".into()));
}

#[test]
fn a_policy_that_is_wrong_harms_nobody() {
    let Some(cluster) = Cluster::start() else {
        return;
    };
    let member = cluster.member("web");
    cluster.serve("web", &member);
    let at = address();
    let balancer = start_with_route(&cluster, at);
    let wrong = policy("wrong", service(), json!({ "strategy": "best" }));
    cluster.create(EVENKEEL_POLICIES, wrong);
    let lost = json!({ "group": "", "kind": "Service", "name": "lost" });
    let lost = policy("lost", lost, json!({ "strategy": "random" }));
    cluster.create(EVENKEEL_POLICIES, lost);
    for (name, reason) in [("wrong", "Invalid"), ("lost", "TargetNotFound")] {
        let path = format!("{EVENKEEL_POLICIES}/{name}");
        cluster.wait_for_condition(&path, "/ancestors/0", ("Accepted", "False", reason));
    }
    wait_for_strategy(&balancer, "adaptive");
    assert_eq!(ask_gateway(at, "web.example"), ("200".into(), "web".into()));
    // The service comes later.
    cluster.serve("lost", &member);
    cluster.wait_for_condition(
        &format!("{EVENKEEL_POLICIES}/lost"),
        "/ancestors/0",
        ACCEPTED,
    );
}

#[test]
fn policies_limit_requests_of_routes_and_connections_of_ports() {
    let Some(cluster) = Cluster::start() else {
        return;
    };
    let member = cluster.member("web");
    cluster.serve("web", &member);
    let at = address();
    let balancer = start_with_route(&cluster, at);
    // The example of the manual: 100 requests a minute for each key, and bodies of up to 10 MiB.
    let example = read_example("limits");
    cluster.server.create_from_yaml(EVENKEEL_POLICIES, example);
    let path = format!("{EVENKEEL_POLICIES}/limits");
    cluster.wait_for_condition(&path, "/ancestors/0", ACCEPTED);
    let ask = |more: &[&str]| {
        let url = format!("http://{at}/");
        let common = [
            "-o",
            "/dev/null",
            "-w",
            "%{http_code}",
            "-H",
            "Host: web.example",
        ];
        let answer = try_curl(&[&common, more, &[&*url]].concat());
        String::from_utf8_lossy(&answer.stdout).into_owned()
    };
    let large = ["-H", "Expect:", "-H", "Content-Length: 20000000", "-d", "x"];
    wait_until("a large body is refused", || ask(&large) == "413");
    wait_until("a key has had its requests", || {
        ask(&["-H", "X-Api-Key: a"]) == "429"
    });
    assert_eq!(ask(&["-H", "X-Api-Key: b"]), "200");
    let status = balancer.status();
    let rules = status["rules"].as_array().expect("rules");
    let limits = rules[0]["limits"].to_string();
    assert!(limits.contains("shop.web.0/key"), "{limits}");
    cluster.delete(EVENKEEL_POLICIES, "limits");
    wait_until("nothing is limited", || {
        ask(&["-H", "X-Api-Key: a"]) == "200"
    });
}
