//! Tests of EvenkeelPolicy.

use serde_json::{Value, json};

use super::super::objects::{GROUP, Kind};
use super::super::translate::Translation;
use super::{Cluster, GOOD, parent_conditions, plain, routes, show, status_of, web};

const ACCEPTED: [&str; 1] = ["Accepted=True/Accepted"];

fn target(kind: Kind, name: &str) -> Value {
    json!({ "group": kind.api_group(), "kind": kind.name(), "name": name })
}

/// Adds a policy `shop/NAME`; the later ones have later names.
fn put(cluster: &mut Cluster, name: &str, targets: Value, settings: Value) {
    let mut spec = settings;
    spec["targetRefs"] = targets;
    cluster.put(
        Kind::EvenkeelPolicy,
        json!({ "metadata": { "namespace": "shop", "name": name, "generation": 2 }, "spec": spec }),
    );
}

fn strategy(name: &str) -> Value {
    json!({ "group": { "strategy": name } })
}

/// Cluster with a route `r` to service `web`.
fn cluster() -> Cluster {
    let mut cluster = plain();
    cluster.route("r", json!([]), json!([{ "backendRefs": web() }]));
    cluster
}

/// Returns the condition of the first target, and its message.
fn condition(translation: &Translation, name: &str) -> (Vec<String>, String) {
    let status = status_of(translation, Kind::EvenkeelPolicy, name);
    let conditions = &status["ancestors"][0]["conditions"];
    let message = conditions[0]["message"].as_str().unwrap().to_owned();
    (show(conditions), message)
}

/// Returns the names of the groups with their strategies.
fn strategies(translation: &Translation) -> Vec<(String, String)> {
    let config = evenkeel_config::parse_generated(&translation.text).unwrap();
    let groups = config.groups.iter();
    groups
        .map(|group| (group.name.clone(), group.strategy.kind().name.to_owned()))
        .collect()
}

#[test]
fn a_policy_sets_keys_of_the_groups_and_members_of_a_service() {
    let mut cluster = cluster();
    let settings = json!({
        "group": { "strategy": { "name": "least_request", "choices": 3 }, "max_queue": 7, "ejection": { "time": "45s" },
                   "orca": true, "zones": { "spill_above": 0.5 }, "late_binding": true },
        "member": { "max_connections": 9 },
    });
    put(
        &mut cluster,
        "p",
        json!([target(Kind::Service, "web")]),
        settings,
    );
    let translation = cluster.translate();
    let config = evenkeel_config::parse_generated(&translation.text).unwrap();
    let group = &config.groups[0];
    assert_eq!(group.name, "kubernetes.shop.web.80");
    assert_eq!(
        (group.max_queue, group.strategy.kind().name),
        (7, "least_request")
    );
    assert!(group.sources.orca.is_some());
    assert_eq!(group.services[0].max_connections, Some(9));
    assert_eq!(condition(&translation, "p").0, ACCEPTED);
    let ancestor = &status_of(&translation, Kind::EvenkeelPolicy, "p")["ancestors"][0];
    let reference = json!({ "group": "", "kind": "Service", "namespace": "shop", "name": "web" });
    assert_eq!(ancestor["ancestorRef"], reference);
    assert_eq!(ancestor["controllerName"], "evenkeel.org/gateway");
    assert_eq!(parent_conditions(&translation, Kind::HttpRoute, "r"), GOOD);
}

#[test]
fn the_most_specific_policy_sets_a_key() {
    let mut cluster = cluster();
    let gateway = json!([target(Kind::Gateway, "g")]);
    let mut settings = strategy("random");
    settings["group"]["max_queue"] = json!(5);
    put(&mut cluster, "gateway", gateway, settings);
    let found = strategies(&cluster.translate());
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].1, "random");
    assert!(
        found[0].0.starts_with("kubernetes.shop.web.80.policy."),
        "{found:?}"
    );
    // Another route to the same service has a policy of its own.
    cluster.route("s", json!(["s.example"]), json!([{ "backendRefs": web() }]));
    put(
        &mut cluster,
        "route",
        json!([target(Kind::HttpRoute, "s")]),
        strategy("round_robin"),
    );
    let translation = cluster.translate();
    let mut found: Vec<String> = strategies(&translation)
        .into_iter()
        .map(|(_, of)| of)
        .collect();
    found.sort();
    assert_eq!(found, ["random", "round_robin"]);
    let config = evenkeel_config::parse_generated(&translation.text).unwrap();
    assert!(config.groups.iter().all(|group| group.max_queue == 5));
    // The service goes first, for both routes.
    put(
        &mut cluster,
        "service",
        json!([target(Kind::Service, "web")]),
        strategy("peak_ewma"),
    );
    let found = strategies(&cluster.translate());
    assert!(
        found.len() == 2 && found.iter().all(|(_, of)| of == "peak_ewma"),
        "{found:?}"
    );
    let gone = |cluster: &mut Cluster, name: &str| {
        let name = super::ObjectName::new("shop", name);
        assert!(cluster.0.remove(Kind::EvenkeelPolicy, &name));
    };
    for name in ["service", "route", "gateway"] {
        gone(&mut cluster, name);
    }
    let translation = cluster.translate();
    let plain = [("kubernetes.shop.web.80".to_owned(), "adaptive".to_owned())];
    assert_eq!(strategies(&translation), plain);
    assert_eq!(routes(&translation).len(), 2);
}

#[test]
fn a_bad_policy_harms_only_itself() {
    let mut cluster = cluster();
    for (number, (settings, wanted)) in [
        (
            json!({ "group": { "strategy": "best" } }),
            "spec.group.strategy",
        ),
        (
            json!({ "group": { "max_queue": "many" } }),
            "spec.group.max_queue",
        ),
        (
            json!({ "group": { "members": ["10.0.0.1:80"] } }),
            "cannot be set by a policy",
        ),
        (
            json!({ "group": { "health_check": { "password_file": "/etc/shadow" } } }),
            "machine of the balancer",
        ),
        (
            json!({ "group": { "ejection": { "time": null } } }),
            "has no value",
        ),
        (
            json!({ "group": { "ejection": { "\"x\ny": 1 } } }),
            "spec.group.ejection",
        ),
        (
            json!({ "member": { "max_connections": 0 } }),
            "spec.member.max_connections: out of range",
        ),
        (
            json!({ "member": { "address": "10.0.0.1:80" } }),
            "cannot be set by a policy",
        ),
    ]
    .into_iter()
    .enumerate()
    {
        put(
            &mut cluster,
            "a",
            json!([target(Kind::Service, "web")]),
            settings.clone(),
        );
        put(
            &mut cluster,
            "b",
            json!([target(Kind::Gateway, "g")]),
            strategy("random"),
        );
        let translation = cluster.translate();
        let (conditions, message) = condition(&translation, "a");
        assert_eq!(conditions, ["Accepted=False/Invalid"], "{number}");
        assert!(message.contains(wanted), "{number}: {message}");
        assert_eq!(condition(&translation, "b").0, ACCEPTED);
        assert_eq!(strategies(&translation)[0].1, "random");
        assert_eq!(parent_conditions(&translation, Kind::HttpRoute, "r"), GOOD);
    }
}

#[test]
fn the_oldest_of_two_policies_of_a_target_counts() {
    let mut cluster = cluster();
    let service = || json!([target(Kind::Service, "web")]);
    put(&mut cluster, "a", service(), strategy("random"));
    put(&mut cluster, "b", service(), strategy("round_robin"));
    let translation = cluster.translate();
    assert_eq!(strategies(&translation)[0].1, "random");
    assert_eq!(condition(&translation, "a").0, ACCEPTED);
    let (conditions, message) = condition(&translation, "b");
    assert_eq!(conditions, ["Accepted=False/Conflicted"]);
    assert!(message.contains("shop/a is older"), "{message}");
    for (target, reason) in [
        (target(Kind::Service, "none"), "TargetNotFound"),
        (target(Kind::HttpRoute, "none"), "TargetNotFound"),
        (
            json!({ "group": "", "kind": "Service", "name": "web", "sectionName": "x" }),
            "TargetNotFound",
        ),
        (
            json!({ "group": GROUP, "kind": "Gateway", "name": "g", "sectionName": "http" }),
            "Invalid",
        ),
        (
            json!({ "group": "", "kind": "Secret", "name": "s" }),
            "Invalid",
        ),
    ] {
        put(&mut cluster, "b", json!([target]), strategy("round_robin"));
        let (conditions, _) = condition(&cluster.translate(), "b");
        assert_eq!(conditions, [format!("Accepted=False/{reason}")], "{target}");
    }
}

#[test]
fn keys_that_contradict_a_route_leave_the_gateways_policy_out_of_the_route() {
    let mut cluster = plain();
    let persistent =
        json!([{ "backendRefs": web(), "sessionPersistence": { "sessionName": "x" } }]);
    cluster.route("r", json!(["r.example"]), persistent);
    let rules = || json!([{ "backendRefs": web() }]);
    cluster.route("t", json!(["t.example"]), rules());
    let per_request = json!({ "group": { "granularity": "per_request", "max_queue": 5 } });
    let gateway = json!([target(Kind::Gateway, "g")]);
    put(&mut cluster, "a", gateway, per_request);
    let translation = cluster.translate();
    for route in ["r", "t"] {
        let shown = parent_conditions(&translation, Kind::HttpRoute, route);
        assert_eq!(shown, GOOD, "{route}");
    }
    let (conditions, message) = condition(&translation, "a");
    assert_eq!(conditions, ACCEPTED, "{message}");
    assert!(
        message.contains("the policy does not hold for HTTPRoute shop/r"),
        "{message}"
    );
    let config = translation.config.unwrap();
    let queue_of = |host: &str| {
        let mut routes = config.rules[0].routes.list().iter();
        let route = routes.find(|route| route.host == [host]).unwrap();
        let mut groups = config.groups.iter();
        let group = groups.find(|group| group.name == route.group);
        group.unwrap().max_queue == 5
    };
    assert_eq!(["r.example", "t.example"].map(queue_of), [false, true]);
}

#[test]
fn only_the_policy_whose_key_does_not_fit_is_left_out() {
    let mut cluster = plain();
    let persistent =
        json!([{ "backendRefs": web(), "sessionPersistence": { "sessionName": "x" } }]);
    cluster.route("r", json!([]), persistent);
    cluster.route_at(
        Kind::GrpcRoute,
        "calls",
        json!([{ "name": "g" }]),
        json!(["grpc.example"]),
        json!([{ "backendRefs": web() }]),
    );
    let of_gateway = json!({ "group": { "max_queue": 5 } });
    put(
        &mut cluster,
        "gateway",
        json!([target(Kind::Gateway, "g")]),
        of_gateway,
    );
    // Neither key fits its route: cookies bind clients, and connections of gRPC have many clients.
    for (name, kind, route, settings) in [
        (
            "bound",
            Kind::HttpRoute,
            "r",
            json!({ "granularity": "per_request" }),
        ),
        (
            "sent",
            Kind::GrpcRoute,
            "calls",
            json!({ "send_proxy": "v2" }),
        ),
    ] {
        put(
            &mut cluster,
            name,
            json!([target(kind, route)]),
            json!({ "group": settings }),
        );
    }
    let translation = cluster.translate();
    for name in ["bound", "sent"] {
        let (conditions, message) = condition(&translation, name);
        assert_eq!(conditions, ["Accepted=False/Invalid"], "{name}: {message}");
    }
    assert_eq!(condition(&translation, "gateway").0, ACCEPTED);
    assert_eq!(parent_conditions(&translation, Kind::HttpRoute, "r"), GOOD);
    assert_eq!(
        parent_conditions(&translation, Kind::GrpcRoute, "calls"),
        GOOD
    );
    let config = evenkeel_config::parse_generated(&translation.text).unwrap();
    assert!(config.groups.iter().all(|group| group.max_queue == 5));
}

#[test]
fn large_policies_are_refused() {
    let mut cluster = cluster();
    let codes: Vec<_> = (0..4000).map(|_| "100-599").collect();
    let check = json!({ "group": { "health_check": { "path": "/", "response_code": codes } } });
    put(
        &mut cluster,
        "large",
        json!([target(Kind::Service, "web")]),
        check,
    );
    let (conditions, message) = condition(&cluster.translate(), "large");
    assert_eq!(conditions, ["Accepted=False/Invalid"]);
    assert!(message.contains("at most"), "{message}");
}
