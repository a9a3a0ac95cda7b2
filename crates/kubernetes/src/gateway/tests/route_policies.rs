//! Tests of EvenkeelPolicies with keys of routes and rules for requests.

use serde_json::{Value, json};

use super::super::objects::Kind;
use super::super::translate::Translation;
use super::{Cluster, GOOD, parent_conditions, plain, show, status_of, web};

const ACCEPTED: [&str; 1] = ["Accepted=True/Accepted"];
const INVALID: [&str; 1] = ["Accepted=False/Invalid"];

/// Adds a policy NAMESPACE/NAME for an object.
fn put_in(
    cluster: &mut Cluster,
    (namespace, name): (&str, &str),
    (kind, of): (Kind, &str),
    settings: Value,
) {
    let mut spec = settings;
    spec["targetRefs"] = json!([{ "group": kind.api_group(), "kind": kind.name(), "name": of }]);
    cluster.put(
        Kind::EvenkeelPolicy,
        json!({ "metadata": { "namespace": namespace, "name": name, "generation": 2 }, "spec": spec }),
    );
}

fn put(cluster: &mut Cluster, name: &str, target: (Kind, &str), settings: Value) {
    put_in(cluster, ("shop", name), target, settings);
}

/// Returns the condition of a policy, and its message.
fn condition(translation: &Translation, name: &str) -> (Vec<String>, String) {
    let status = status_of(translation, Kind::EvenkeelPolicy, name);
    let conditions = &status["ancestors"][0]["conditions"];
    let message = conditions[0]["message"].as_str().unwrap().to_owned();
    (show(conditions), message)
}

/// Returns the lines of the text that begin with a key.
fn lines(translation: &Translation, key: &str) -> Vec<String> {
    let start = format!("{key} = ");
    let text = translation.text.to_string();
    let found = text.lines().filter(|line| line.starts_with(&start));
    found.map(str::to_owned).collect()
}

#[test]
fn a_route_sets_its_keys_before_its_policy_and_that_before_the_gateways() {
    let mut cluster = plain();
    cluster.route(
        "r",
        json!([]),
        json!([{ "backendRefs": web(), "timeouts": { "request": "4s" }, "retry": { "attempts": 1 } },
               { "backendRefs": web(), "matches": [{ "path": { "value": "/x" } }] }]),
    );
    put(
        &mut cluster,
        "route",
        (Kind::HttpRoute, "r"),
        json!({ "route": { "response_timeout": "9s", "max_body": "1MiB" } }),
    );
    put(
        &mut cluster,
        "gateway",
        (Kind::Gateway, "g"),
        json!({ "route": { "max_body": "2MiB", "retries": 7, "priority": 6 } }),
    );
    let translation = cluster.translate();
    for name in ["route", "gateway"] {
        assert_eq!(condition(&translation, name).0, ACCEPTED, "{name}");
    }
    assert_eq!(parent_conditions(&translation, Kind::HttpRoute, "r"), GOOD);
    let config = translation.config.as_ref().unwrap();
    let routes = config.rules[0].routes.list();
    let facts = routes.iter().filter(|route| !route.answers_itself());
    let facts: Vec<_> = facts
        .map(|route| {
            let seconds = route.response_timeout.map(|of| of.as_secs());
            let bytes = route.max_body.map(|of| of.0);
            (
                route.path.concat(),
                seconds,
                bytes,
                route.retries,
                route.priority,
            )
        })
        .collect();
    let mib = Some(1 << 20);
    assert_eq!(
        facts,
        [
            ("/x/*".to_owned(), Some(9), mib, Some(7), Some(6)),
            (String::new(), Some(4), mib, Some(1), Some(6)),
        ]
    );
    // Groups of others have no part in such policies.
    let mut names = config.groups.iter().map(|group| group.name.as_str());
    assert!(names.all(|name| !name.contains("policy")));
}

#[test]
fn limits_of_a_route_count_once_for_all_its_matches_and_hosts() {
    let mut cluster = plain();
    let matches = json!([{ "path": { "value": "/a" } }, { "path": { "value": "/b" } }]);
    let rules = || json!([{ "backendRefs": web(), "matches": matches }]);
    cluster.route("r", json!(["a.example", "b.example"]), rules());
    // A route of another kind may have the name.
    cluster.route_at(
        Kind::GrpcRoute,
        "r",
        json!([{ "name": "g" }]),
        json!(["c.example"]),
        json!([{ "backendRefs": web() }]),
    );
    let redirect =
        json!([{ "type": "RequestRedirect", "requestRedirect": { "hostname": "x.example" } }]);
    cluster.route(
        "moved",
        json!(["d.example"]),
        json!([{ "filters": redirect }]),
    );
    let limits =
        json!({ "route": { "request_limits": [{ "requests": "5/m" }], "max_body": "1KiB" } });
    put(&mut cluster, "p", (Kind::Gateway, "g"), limits);
    let own = json!({ "route": { "request_limits": { "requests": "7/m" } } });
    put(&mut cluster, "q", (Kind::GrpcRoute, "r"), own);
    let translation = cluster.translate();
    for name in ["p", "q"] {
        let (conditions, message) = condition(&translation, name);
        assert_eq!(conditions, ACCEPTED, "{message}");
    }
    let config = translation.config.as_ref().unwrap();
    let limited = config.rules[0].routes.list().iter();
    let limited = limited.filter(|route| !route.request_limits.is_empty());
    let mut names: Vec<_> = limited.map(|route| route.name.clone().unwrap()).collect();
    names.sort_unstable();
    let mut wanted = vec!["shop.moved.0", "shop.r.grpc.0"];
    wanted.extend(["shop.r.0"; 4]);
    wanted.sort_unstable();
    assert_eq!(names, wanted);
    // Tables are small: each rule of a route has some.
    let written = lines(&translation, "request_limits");
    assert!(
        written
            .iter()
            .all(|line| line.contains("table_size = 8192"))
    );
    // A redirect reads no body.
    assert_eq!(lines(&translation, "max_body").len(), 5);
}

#[test]
fn a_wrong_key_of_a_route_or_rule_harms_only_its_policy() {
    let (route, gateway) = ((Kind::HttpRoute, "r"), (Kind::Gateway, "g"));
    for (target, settings, wanted) in [
        (
            route,
            json!({ "route": { "max_body": "big" } }),
            "spec.route.max_body",
        ),
        (
            route,
            json!({ "route": { "hedge": {} } }),
            "spec.route.hedge: `after` is missing",
        ),
        (
            route,
            json!({ "route": { "group": "x" } }),
            "spec.route.group cannot be set",
        ),
        (
            route,
            json!({ "route": { "request_limits": [{ "requests": "5/m", "table_size": 4000000 }] } }),
            "table_size cannot be set",
        ),
        (
            route,
            json!({ "route": { "request_limits": [{ "requests": "5/m", "key": "forwarded_for" }] } }),
            "spec.route.request_limits",
        ),
        (
            route,
            json!({ "route": { "retry_methods": vec!["POST"; 600] } }),
            "write 2048 at most",
        ),
        // No engines count tokens here.
        (
            route,
            json!({ "route": { "request_limits": [{ "tokens": "5/m" }] } }),
            "limit of `tokens`",
        ),
        (
            route,
            json!({ "rule": { "max_connections": 5 } }),
            "name a TCPRoute",
        ),
        (
            (Kind::Service, "web"),
            json!({ "route": { "max_body": "1MiB" } }),
            "name an HTTPRoute, GRPCRoute or Gateway",
        ),
        (
            gateway,
            json!({ "rule": { "max_connections": 0 } }),
            "spec.rule.max_connections",
        ),
        (
            gateway,
            json!({ "rule": { "limits": { "burst": 5 } } }),
            "spec.rule.limits.burst",
        ),
        (
            gateway,
            json!({ "rule": { "http": { "trust_forwarded": true } } }),
            "spec.rule.http.trust_forwarded cannot be set",
        ),
        (
            gateway,
            json!({ "group": { "prometheus": { "url": "http://a.example/", "loads": { "cpu": "a" } } } }),
            "spec.group.prometheus.url is not one of the member",
        ),
    ] {
        let mut cluster = plain();
        cluster.route("r", json!([]), json!([{ "backendRefs": web() }]));
        put(&mut cluster, "a", target, settings.clone());
        let translation = cluster.translate();
        let (conditions, message) = condition(&translation, "a");
        assert_eq!(conditions, INVALID, "{settings}: {message}");
        assert!(message.contains(wanted), "{settings}: {message}");
        assert_eq!(parent_conditions(&translation, Kind::HttpRoute, "r"), GOOD);
        assert_eq!(
            show(&status_of(&translation, Kind::Gateway, "g")["conditions"])[0],
            "Accepted=True/Accepted"
        );
    }
}

#[test]
fn limits_of_tokens_of_a_gateway_without_engines_are_left_out_of_the_rule() {
    let mut cluster = plain();
    cluster.route("r", json!([]), json!([{ "backendRefs": web() }]));
    let limits = json!({ "rule": { "request_limits": [{ "tokens": "5/m" }] } });
    put(&mut cluster, "a", (Kind::Gateway, "g"), limits);
    let translation = cluster.translate();
    let (conditions, message) = condition(&translation, "a");
    assert_eq!(conditions, ACCEPTED);
    assert!(
        message.contains("spec.rule does not hold for the rule kubernetes.80"),
        "{message}"
    );
    assert!(lines(&translation, "request_limits").is_empty());
    assert_eq!(parent_conditions(&translation, Kind::HttpRoute, "r"), GOOD);
}

#[test]
fn limits_of_tokens_of_a_gateway_hold_for_its_routes_with_engines() {
    let mut cluster = plain();
    cluster.gateway(
        "g",
        json!([{ "name": "a", "port": 80, "protocol": "HTTP" },
               { "name": "b", "port": 81, "protocol": "HTTP" }]),
    );
    cluster.put(
        Kind::Service,
        json!({ "metadata": { "namespace": "shop", "name": "engines" }, "spec": { "ports": [{ "port": 80 }] } }),
    );
    let at = |section: &str| json!([{ "name": "g", "sectionName": section }]);
    let to = |service: &str| json!([{ "backendRefs": [{ "name": service, "port": 80 }] }]);
    for (name, section, service) in [
        ("one", "a", "engines"),
        ("two", "a", "web"),
        ("three", "b", "web"),
    ] {
        let hosts = json!([format!("{name}.example")]);
        cluster.route_at(Kind::HttpRoute, name, at(section), hosts, to(service));
    }
    let engines = json!({ "group": { "strategy": "inference" } });
    put(&mut cluster, "engines", (Kind::Service, "engines"), engines);
    let limits = json!([{ "tokens": "5/m" }, { "name": "all", "requests": "9/m" }]);
    let settings = json!({ "route": { "request_limits": limits } });
    put(&mut cluster, "a", (Kind::Gateway, "g"), settings);
    let translation = cluster.translate();
    for name in ["a", "engines"] {
        let (conditions, message) = condition(&translation, name);
        assert_eq!(
            (conditions, &*message),
            (ACCEPTED.map(str::to_owned).into(), "")
        );
    }
    let config = translation.config.unwrap();
    let count = |host: &str| {
        let mut routes = config
            .rules
            .iter()
            .flat_map(|rule| rule.routes.list().iter());
        let route = routes.find(|route| route.host == [host]).unwrap();
        let limits = route.request_limits.iter();
        let tokens = limits.filter(|limit| limit.tokens.is_some()).count();
        (tokens, route.request_limits.len())
    };
    let found = ["one.example", "two.example", "three.example"].map(count);
    assert_eq!(found, [(1, 2), (0, 1), (0, 1)]);
}

#[test]
fn keys_of_rules_are_those_of_the_oldest_gateway_at_the_port() {
    let mut cluster = plain();
    cluster.route("r", json!([]), json!([{ "backendRefs": web() }]));
    cluster.put(
        Kind::Gateway,
        json!({ "metadata": { "namespace": "other", "name": "late", "creationTimestamp": "2026-02-01T00:00:00Z" },
                "spec": { "gatewayClassName": "evenkeel",
                          "listeners": [{ "name": "a", "port": 80, "protocol": "HTTP", "hostname": "late.example" },
                                        { "name": "b", "port": 81, "protocol": "HTTP" }] } }),
    );
    let limit = |most: u32| json!({ "rule": { "limits": { "connections": most } } });
    put_in(
        &mut cluster,
        ("other", "late"),
        (Kind::Gateway, "late"),
        limit(1),
    );
    let translation = cluster.translate();
    let connections = |translation: &Translation| -> Vec<_> {
        let rules = translation.config.as_ref().unwrap().rules.iter();
        rules.map(|rule| rule.limits.connections).collect()
    };
    assert_eq!(connections(&translation), [None, Some(1)]);
    let (conditions, message) = condition(&translation, "late");
    assert_eq!(conditions, ACCEPTED);
    assert!(
        message.contains("kubernetes.80") && message.contains("Gateway shop/g is older"),
        "{message}"
    );
    put(&mut cluster, "first", (Kind::Gateway, "g"), limit(9));
    let translation = cluster.translate();
    assert_eq!(connections(&translation), [Some(9), Some(1)]);
    assert_eq!(condition(&translation, "first").1, "");
}

#[test]
fn a_gateways_limits_hold_for_routes_in_the_kernel() {
    let mut cluster = plain();
    cluster.gateway(
        "t",
        json!([{ "name": "tcp", "port": 5432, "protocol": "TCP" },
               { "name": "tls", "port": 443, "protocol": "TLS", "tls": { "mode": "Passthrough" } }]),
    );
    let parents = |section: &str| json!([{ "name": "t", "sectionName": section }]);
    let rules = || json!([{ "backendRefs": web() }]);
    cluster.route_at(Kind::TcpRoute, "db", parents("tcp"), Value::Null, rules());
    let hosts = json!(["a.example"]);
    cluster.route_at(Kind::TlsRoute, "page", parents("tls"), hosts, rules());
    let limit = || json!({ "rule": { "max_connections": 5 } });
    put(&mut cluster, "gateway", (Kind::Gateway, "t"), limit());
    put(&mut cluster, "tls", (Kind::TlsRoute, "page"), limit());
    let translation = cluster.translate();
    // A rule for many names has the limits of its gateway, and of no single route.
    let (conditions, message) = condition(&translation, "tls");
    assert_eq!(conditions, INVALID);
    assert!(
        message.contains("in the policy of the Gateway"),
        "{message}"
    );
    assert_eq!(condition(&translation, "gateway").1, "");
    assert_eq!(lines(&translation, "max_connections").len(), 2);
    let kernel = json!({ "rule": { "forward": "kernel", "return_path": "nat" } });
    put(&mut cluster, "db", (Kind::TcpRoute, "db"), kernel);
    let settings = super::super::settings::Settings {
        listen: vec!["192.0.2.10".parse().unwrap()],
        ..super::settings()
    };
    let refused = super::Refused::new();
    let translation = super::translate(&cluster.0, &settings, &refused);
    for name in ["db", "gateway"] {
        let (conditions, message) = condition(&translation, name);
        assert_eq!(
            (conditions, &*message),
            (ACCEPTED.map(str::to_owned).into(), "")
        );
    }
    assert_eq!(lines(&translation, "max_connections").len(), 2);
    assert_eq!(lines(&translation, "forward"), ["forward = \"kernel\""]);
}
