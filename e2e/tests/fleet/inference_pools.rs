//! InferencePools, and members that labels of pods choose, with `kube-apiserver`.

use std::net::SocketAddr;

use evenkeel_e2e::member::Member;
use evenkeel_e2e::process::try_curl;
use evenkeel_e2e::server::address;
use evenkeel_e2e::wait_until;
use serde_json::{Value, json};

use super::gateway::{Cluster, GATEWAYS, ROUTES, config, start};

const PODS: &str = "/api/v1/namespaces/shop/pods";
const POOLS: &str = "/apis/inference.networking.k8s.io/v1/namespaces/shop/inferencepools";

/// Starts a cluster with the kind InferencePool; `None` if this machine cannot have one.
fn start_cluster() -> Option<Cluster> {
    let cluster = Cluster::start()?;
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let definition = include_str!("inferencepools.yaml");
    cluster.server.create_from_yaml(definitions, definition);
    wait_until("the API server has pools", || {
        cluster.server.get_object(POOLS).is_some()
    });
    // Pods need an account.
    let account =
        json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": "default" } });
    cluster.create("/api/v1/namespaces/shop/serviceaccounts", account);
    Some(cluster)
}

/// Creates a pod of `shop` with a label `app`. No kubelet runs the pod: its status is what the test writes.
fn create_pod(cluster: &Cluster, name: &str, app: &str) {
    let pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": name, "labels": { "app": app } },
        "spec": { "containers": [{ "name": "engine", "image": "engine" }] },
    });
    cluster.create(PODS, pod);
}

/// Writes the status of a pod at the address of the cluster's members.
fn set_ready(cluster: &Cluster, name: &str, ready: bool) {
    let path = format!("{PODS}/{name}");
    let mut pod = cluster.server.get_object(&path).unwrap_or_default();
    pod["status"] = json!({
        "phase": "Running",
        "podIP": cluster.ip,
        "podIPs": [{ "ip": cluster.ip }],
        "conditions": [{ "type": "Ready", "status": if ready { "True" } else { "False" } }],
    });
    let path = format!("{path}/status");
    cluster.server.send_object("PUT", &path, &pod);
}

/// Asks an engine: the status, and the body.
fn ask_engine(at: SocketAddr, prompt: &str) -> (String, String) {
    let body = json!({ "model": "m", "messages": [{ "role": "user", "content": prompt }] });
    let answer = try_curl(&[
        "-w",
        "\n%{http_code}",
        "-H",
        "Content-Type: application/json",
        "-d",
        &body.to_string(),
        &format!("http://{at}/v1/chat/completions"),
    ]);
    let text = String::from_utf8_lossy(&answer.stdout);
    let (body, code) = text.rsplit_once('\n').unwrap_or(("", ""));
    (code.to_owned(), body.to_owned())
}

fn port_of(member: &Member) -> u16 {
    member.address().port()
}

#[test]
fn engines_of_a_pool_serve_a_route() {
    let Some(cluster) = start_cluster() else {
        return;
    };
    let (a, b, other) = (
        cluster.member("a"),
        cluster.member("b"),
        cluster.member("other"),
    );
    let at = address();
    let balancer = start(&cluster, &config(at.ip()));
    cluster.gateway(
        "front",
        json!([{ "name": "http", "port": at.port(), "protocol": "HTTP" }]),
    );
    let pool =
        json!({ "group": "inference.networking.k8s.io", "kind": "InferencePool", "name": "llama" });
    cluster.create(
        ROUTES,
        json!({
            "apiVersion": "gateway.networking.k8s.io/v1",
            "kind": "HTTPRoute",
            "metadata": { "name": "llama" },
            "spec": { "parentRefs": [{ "name": "front" }], "rules": [{ "backendRefs": [pool] }] },
        }),
    );
    let route = format!("{ROUTES}/llama");
    let lost = ("ResolvedRefs", "False", "BackendNotFound");
    cluster.wait_for_condition(&route, "/parents/0", lost);

    // Each port of a pod is an engine. The pod of another label is no part of the pool.
    create_pod(&cluster, "engine-0", "vllm");
    create_pod(&cluster, "web-0", "web");
    set_ready(&cluster, "web-0", true);
    let pool = |ports: &[u16]| {
        let ports: Vec<Value> = ports.iter().map(|port| json!({ "number": port })).collect();
        json!({
            "apiVersion": "inference.networking.k8s.io/v1",
            "kind": "InferencePool",
            "metadata": { "name": "llama" },
            "spec": { "selector": { "matchLabels": { "app": "vllm" } }, "targetPorts": ports,
                      "endpointPickerRef": { "name": "picker" } },
        })
    };
    cluster.create(POOLS, pool(&[port_of(&a), port_of(&b)]));
    let good = ("ResolvedRefs", "True", "ResolvedRefs");
    cluster.wait_for_condition(&route, "/parents/0", good);
    let path = format!("{POOLS}/llama");
    cluster.wait_for_condition(&path, "/parents/0", ("Accepted", "True", "Accepted"));
    let status = cluster.server.get_object(&path).unwrap()["status"].clone();
    assert_eq!(
        status["parents"][0]["parentRef"]["name"], "front",
        "{status}"
    );
    // A pod that is not ready gets nothing.
    assert_eq!(ask_engine(at, "hello").0, "503");
    set_ready(&cluster, "engine-0", true);
    let answers = |name: &'static str| {
        move || {
            ask_engine(at, &format!("{name} {}", fastrand::u64(..))) == ("200".into(), name.into())
        }
    };
    wait_until("engine a answers", answers("a"));
    wait_until("engine b answers", answers("b"));
    let groups = balancer.admin_json("/v1/groups");
    let group = groups
        .as_array()
        .unwrap()
        .iter()
        .find(|of| of["name"] == "kubernetes.shop.llama.pool");
    assert_eq!(group.unwrap()["strategy"], "inference", "{groups}");

    // Another port: the former engines are gone.
    let mut next = cluster.server.get_object(&path).unwrap();
    next["spec"] = pool(&[port_of(&other)])["spec"].clone();
    cluster.server.send_object("PUT", &path, &next);
    wait_until("the engine at the other port answers", answers("other"));
    let ask = |_: u32| ask_engine(at, &fastrand::u64(..).to_string()).1;
    assert!((0..20).map(ask).all(|body| body == "other"));

    // Other labels: other pods, and back.
    set_ready(&cluster, "engine-0", false);
    wait_until("no engine is left", || ask_engine(at, "hello").0 == "503");
    for (app, wanted) in [("web", "200"), ("vllm", "503")] {
        let mut next = cluster.server.get_object(&path).unwrap();
        next["spec"]["selector"]["matchLabels"] = json!({ "app": app });
        cluster.server.send_object("PUT", &path, &next);
        wait_until(&format!("pods of {app} are the engines"), || {
            ask_engine(at, &fastrand::u64(..).to_string()).0 == wanted
        });
    }
    set_ready(&cluster, "engine-0", true);
    wait_until("the engine is back", answers("other"));

    // A pod that stops being ready leaves, and a pool that goes leaves an error behind.
    set_ready(&cluster, "engine-0", false);
    wait_until("no engine is left", || ask_engine(at, "hello").0 == "503");
    set_ready(&cluster, "engine-0", true);
    wait_until("the engine is back", answers("other"));
    cluster.delete(POOLS, "llama");
    cluster.wait_for_condition(&route, "/parents/0", lost);
    wait_until("requests fail", || ask_engine(at, "hello").0 == "500");
    let front = format!("{GATEWAYS}/front");
    cluster.wait_for_condition(&front, "", ("Programmed", "True", "Programmed"));
}
