//! InferencePools as targets of routes.

use std::time::Duration;

use evenkeel_config::Config;
use serde_json::{Value, json};

use super::super::objects::Kind;
use super::super::translate::Translation;
use super::{Cluster, GOOD, parent_conditions, plain, show, status_of, web};

fn pool(change: impl FnOnce(&mut Value)) -> Value {
    let mut pool = json!({
        "metadata": { "namespace": "shop", "name": "llama", "generation": 2 },
        "spec": { "selector": { "matchLabels": { "app": "vllm", "app.kubernetes.io/part-of": "chat" } },
                  "targetPorts": [{ "number": 8000 }, { "number": 8001 }],
                  "endpointPickerRef": { "name": "picker" } },
    });
    change(&mut pool);
    pool
}

fn reference() -> Value {
    json!({ "group": "inference.networking.k8s.io", "kind": "InferencePool", "name": "llama" })
}

/// Cluster with a pool, and a route to the pool.
fn cluster(change: impl FnOnce(&mut Value)) -> Cluster {
    let mut cluster = plain();
    cluster.put(Kind::InferencePool, pool(change));
    cluster.route("r", json!([]), json!([{ "backendRefs": [reference()] }]));
    cluster
}

/// Change of a pool, with the reason and a part of the message that its route gets.
type Refused = (fn(&mut Value), &'static str, &'static str);

fn parse(translation: &Translation) -> Config {
    evenkeel_config::parse_generated(&translation.text).unwrap()
}

#[test]
fn engines_of_a_pool_are_chosen_by_the_strategy_for_inference() {
    let translation = cluster(|_| ()).translate();
    assert_eq!(parent_conditions(&translation, Kind::HttpRoute, "r"), GOOD);
    let config = parse(&translation);
    let group = &config.groups[0];
    assert_eq!(
        (&*group.name, group.strategy.kind().name),
        ("kubernetes.shop.llama.pool", "inference")
    );
    let members: Vec<_> = group
        .services
        .iter()
        .map(|of| of.kubernetes.as_deref())
        .collect();
    let labels = "shop/app=vllm,app.kubernetes.io/part-of=chat";
    let wanted: Vec<_> = [8000, 8001].map(|port| format!("{labels}:{port}")).into();
    assert_eq!(members, [Some(&*wanted[0]), Some(&*wanted[1])]);
    let status = status_of(&translation, Kind::InferencePool, "llama");
    let parent = &status["parents"][0];
    assert_eq!(
        parent["parentRef"],
        json!({ "group": "gateway.networking.k8s.io", "kind": "Gateway", "namespace": "shop", "name": "g" })
    );
    assert_eq!(parent["controllerName"], "evenkeel.org/gateway");
    assert_eq!(show(&parent["conditions"]), GOOD);
    assert_eq!(parent["conditions"][0]["observedGeneration"], 2);
    assert_eq!(status["parents"].as_array().unwrap().len(), 1);
}

#[test]
fn answers_of_engines_may_take_long() {
    let mut cluster = cluster(|_| ());
    let timeout = |cluster: &Cluster| {
        let config = parse(&cluster.translate());
        config.rules[0].routes.list()[0].response_timeout
    };
    assert_eq!(timeout(&cluster), Some(Duration::from_secs(600)));
    let limited = json!([{ "backendRefs": [reference()], "timeouts": { "request": "30s" } }]);
    cluster.route("r", json!([]), limited);
    assert_eq!(timeout(&cluster), Some(Duration::from_secs(30)));
    cluster.route("r", json!([]), json!([{ "backendRefs": web() }]));
    assert_eq!(timeout(&cluster), None);
}

#[test]
fn a_pool_shares_requests_with_services() {
    let mut cluster = cluster(|_| ());
    let mut targets = web();
    targets[0]["weight"] = 1.into();
    let mut pool = reference();
    pool["weight"] = 9.into();
    targets.as_array_mut().unwrap().push(pool);
    cluster.route("r", json!([]), json!([{ "backendRefs": targets }]));
    let config = parse(&cluster.translate());
    let mut groups = config.rules[0].routes.list()[0].groups.list_weights();
    groups.sort_unstable();
    assert_eq!(
        groups,
        [
            ("kubernetes.shop.llama.pool", 9),
            ("kubernetes.shop.web.80", 1)
        ]
    );
}

#[test]
fn pools_that_cannot_be_used_harm_their_routes_only() {
    let cases: [Refused; 6] = [
        (
            |pool| pool["metadata"]["name"] = "other".into(),
            "BackendNotFound",
            "create it",
        ),
        (
            |pool| pool["spec"]["selector"] = json!({}),
            "BackendNotFound",
            "matchLabels",
        ),
        (
            |pool| pool["spec"]["targetPorts"] = json!([]),
            "BackendNotFound",
            "targetPorts",
        ),
        (
            |pool| pool["spec"]["targetPorts"] = json!([{ "number": 0 }]),
            "BackendNotFound",
            "targetPorts",
        ),
        (
            |pool| pool["spec"]["selector"]["matchLabels"] = json!({ "a\",b": "\n" }),
            "BackendNotFound",
            "matchLabels",
        ),
        (
            |pool| pool["spec"]["appProtocol"] = "kubernetes.io/h2c".into(),
            "UnsupportedProtocol",
            "HTTP/1.1",
        ),
    ];
    for (change, reason, message) in cases {
        let mut cluster = cluster(change);
        cluster.route(
            "good",
            json!(["good.example"]),
            json!([{ "backendRefs": web() }]),
        );
        let translation = cluster.translate();
        let references =
            &status_of(&translation, Kind::HttpRoute, "r")["parents"][0]["conditions"][1];
        assert_eq!(references["reason"], reason);
        assert!(
            references["message"].as_str().unwrap().contains(message),
            "{references}"
        );
        assert_eq!(
            parent_conditions(&translation, Kind::HttpRoute, "good"),
            GOOD
        );
        assert_eq!(parse(&translation).rules[0].routes.list().len(), 2);
    }
}

#[test]
fn pools_are_targets_of_http_routes_only() {
    let mut cluster = cluster(|_| ());
    cluster.gateway(
        "g",
        json!([{ "name": "tcp", "port": 90, "protocol": "TCP" }]),
    );
    let parents = json!([{ "name": "g" }]);
    let rules = json!([{ "backendRefs": [reference()] }]);
    cluster.route_at(Kind::TcpRoute, "t", parents, json!([]), rules);
    let translation = cluster.translate();
    assert_eq!(
        parent_conditions(&translation, Kind::TcpRoute, "t")[1],
        "ResolvedRefs=False/InvalidKind"
    );
}

#[test]
fn pools_of_other_namespaces_need_a_grant() {
    let mut cluster = cluster(|pool| pool["metadata"]["namespace"] = "other".into());
    let mut target = reference();
    target["namespace"] = "other".into();
    cluster.route("r", json!([]), json!([{ "backendRefs": [target] }]));
    let refused = cluster.translate();
    assert_eq!(
        parent_conditions(&refused, Kind::HttpRoute, "r")[1],
        "ResolvedRefs=False/RefNotPermitted"
    );
    let none = json!({ "parents": [] });
    assert_eq!(*status_of(&refused, Kind::InferencePool, "llama"), none);
    cluster.put(
        Kind::ReferenceGrant,
        json!({ "metadata": { "namespace": "other", "name": "allow" },
                "spec": { "from": [{ "group": "gateway.networking.k8s.io", "kind": "HTTPRoute", "namespace": "shop" }],
                          "to": [{ "group": "inference.networking.k8s.io", "kind": "InferencePool" }] } }),
    );
    let granted = cluster.translate();
    assert_eq!(parent_conditions(&granted, Kind::HttpRoute, "r"), GOOD);
    let parents = &status_of(&granted, Kind::InferencePool, "llama")["parents"];
    assert_eq!(parents.as_array().unwrap().len(), 1);
}
