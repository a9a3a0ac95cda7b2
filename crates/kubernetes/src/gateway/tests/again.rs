//! Tests of translations that follow one another: each is the one that is made from scratch.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::super::translate::settle::{Kept, translate_again, translate_once};
use super::ingress::{USERS, path, put_ingress, put_users, settings, spec};
use super::listener_sets::{put_gateway, put_set};
use super::policies::{AUTHORITY, by_authority, put_authority, put_policy};
use super::settle::bad_rules;
use super::*;

const SERVICES: [&str; 2] = ["web", "canary"];

/// Annotations of Ingresses.
const ANNOTATIONS: [&[(&str, &str)]; 8] = [
    &[],
    &[("limit-rps", "5")],
    &[("limit-rps", "5"), ("limit-connections", "7")],
    &[("canary", "true"), ("canary-weight", "20")],
    &[("affinity", "cookie"), ("session-cookie-name", "s0")],
    &[("ssl-redirect", "no")],
    &[("app-root", "/start")],
    &[("auth-type", "basic"), ("auth-secret", "users")],
];

/// Change of a world.
#[derive(Clone, Debug)]
enum Step {
    /// A route comes, or changes: its number, its host, and the number of its rule.
    Route(usize, usize, usize),
    /// A route goes.
    NoRoute(usize),
    /// A service comes (true), or goes.
    Service(usize, bool),
    /// The gateway has so many listeners.
    Gateway(usize),
    /// A route of calls comes, or changes: its number, and its host.
    Calls(usize, usize),
    /// A route of datagrams comes, or changes (its service), or goes.
    Datagrams(Option<usize>),
    /// A route of TLS (true), or of TCP, comes, or changes (its number, its host, and its service).
    Connections(bool, usize, usize, usize),
    /// A route of TLS (true), or of TCP, goes.
    NoConnections(bool, usize),
    /// An Ingress comes, or changes: its number, its host, and the number of its annotations.
    Ingress(usize, usize, usize),
    /// An Ingress goes.
    NoIngress(usize),
    /// The class of Ingresses comes (true), or goes.
    Class(bool),
    /// A policy of service `web` comes, or changes (its number), or goes.
    Policy(Option<usize>),
    /// The certificates of an authority come, or change, or break.
    Authority(usize),
    /// A set of listeners comes, or changes (its number), or goes.
    Set(Option<usize>),
    /// A permission for targets in another namespace comes (true), or goes.
    Grant(bool),
    /// The namespace of the routes has this label.
    Namespace(usize),
    /// A pool of engines has this port, or goes without a port.
    Pool(Option<usize>),
    /// A listener cannot be put into effect (true), or can.
    Refuse(bool),
    /// A policy of groups, routes and rules comes, or changes (its number), or goes.
    Keys(Option<usize>),
    /// Service `web` has an annotation with this value.
    Annotation(usize),
    /// Users with passwords come, or change (their version), or go.
    Users(Option<usize>),
}

/// Number of policies.
const KEYS: usize = 6;

/// Returns the target of a policy, and its keys.
fn policy_keys(number: usize) -> (Kind, &'static str, Value) {
    let limits = |unit: &str| json!({ "request_limits": [{ unit: "5/m" }], "max_body": "1MiB" });
    match number {
        0 => (
            Kind::HttpRoute,
            "r0",
            json!({ "route": limits("requests") }),
        ),
        1 => (
            Kind::Gateway,
            "g",
            json!({ "route": limits("requests"), "group": { "max_queue": 5 } }),
        ),
        // No engines count tokens.
        2 => (Kind::Gateway, "g", json!({ "route": limits("tokens") })),
        3 => (
            Kind::Gateway,
            "g",
            json!({ "rule": { "request_limits": { "tokens": "5/m" } } }),
        ),
        4 => (
            Kind::Gateway,
            "g",
            json!({ "rule": { "max_connections": 5, "http": { "retry_budget": 0.5 }, "limits": { "requests": "5/s" } } }),
        ),
        _ => (
            Kind::TlsRoute,
            "c0",
            json!({ "rule": { "limits": { "connections": 5 } } }),
        ),
    }
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..6_usize, 0..4_usize, 0..46_usize).prop_map(|(n, host, rule)| Step::Route(n, host, rule)),
        2 => (0..6_usize).prop_map(Step::NoRoute),
        1 => (0..2_usize, any::<bool>()).prop_map(|(n, is_there)| Step::Service(n, is_there)),
        1 => (0..9_usize).prop_map(Step::Gateway),
        1 => (0..3_usize, 0..4_usize).prop_map(|(n, host)| Step::Calls(n, host)),
        1 => proptest::option::of(0..2_usize).prop_map(Step::Datagrams),
        2 => (any::<bool>(), 0..3_usize, 0..4_usize, 0..2_usize)
            .prop_map(|(is_tls, n, host, service)| Step::Connections(is_tls, n, host, service)),
        1 => (any::<bool>(), 0..3_usize).prop_map(|(is_tls, n)| Step::NoConnections(is_tls, n)),
        3 => (0..4_usize, 0..4_usize, 0..ANNOTATIONS.len()).prop_map(|(n, host, of)| Step::Ingress(n, host, of)),
        1 => (0..4_usize).prop_map(Step::NoIngress),
        1 => any::<bool>().prop_map(Step::Class),
        1 => proptest::option::of(0..3_usize).prop_map(Step::Policy),
        1 => (0..3_usize).prop_map(Step::Authority),
        1 => proptest::option::of(0..3_usize).prop_map(Step::Set),
        1 => any::<bool>().prop_map(Step::Grant),
        1 => (0..2_usize).prop_map(Step::Namespace),
        1 => proptest::option::of(0..2_usize).prop_map(Step::Pool),
        1 => any::<bool>().prop_map(Step::Refuse),
        2 => proptest::option::of(0..KEYS).prop_map(Step::Keys),
        1 => (0..3_usize).prop_map(Step::Annotation),
        1 => proptest::option::of(0..3_usize).prop_map(Step::Users),
    ]
}

/// Rules, most of them good.
fn rule(number: usize) -> Value {
    let target = json!([{ "name": (SERVICES[number % 2]), "port": 80 }]);
    let backends = match number {
        40 => json!([{ "namespace": "other", "name": "web", "port": 80 }]),
        41 => {
            json!([{ "group": "inference.networking.k8s.io", "kind": "InferencePool", "name": "p" }])
        }
        45 => {
            json!([{ "name": "web", "port": 80, "weight": 3 }, { "name": "missing", "port": 80 }])
        }
        42 | 43 => json!([{ "name": "web", "port": 80 }]),
        _ => target.clone(),
    };
    let bind = |of: Value| json!({ "backendRefs": backends, "sessionPersistence": of });
    let mirror = || {
        let to = json!({ "backendRef": { "name": "canary", "port": 80 } });
        json!({ "backendRefs": backends, "filters": [{ "type": "RequestMirror", "requestMirror": to }] })
    };
    match bad_rules().get(number) {
        // Both have the same group.
        _ if number == 42 => bind(json!({})),
        _ if number == 43 => bind(json!({ "sessionName": "" })),
        _ if number == 44 => mirror(),
        _ if number >= 40 => json!({ "backendRefs": backends }),
        Some(bad) if number.is_multiple_of(3) => bad.clone(),
        _ if number.is_multiple_of(5) => {
            json!({ "backendRefs": target, "sessionPersistence": { "sessionName": format!("s{number}") } })
        }
        _ => {
            json!({ "matches": [{ "path": { "type": "PathPrefix", "value": format!("/{number}") } }],
                     "backendRefs": target })
        }
    }
}

fn listeners(count: usize) -> Value {
    let all = [
        json!({ "name": "http", "port": 80, "protocol": "HTTP" }),
        json!({ "name": "other", "port": 81, "protocol": "HTTP", "hostname": "*.example" }),
        json!({ "name": "tls", "port": 443, "protocol": "HTTPS" }),
        json!({ "name": "team", "port": 82, "protocol": "HTTP",
                "allowedRoutes": { "namespaces": { "from": "Selector", "selector": { "matchLabels": { "team": "0" } } } } }),
        json!({ "name": "dns", "port": 80, "protocol": "UDP" }),
        json!({ "name": "refused", "port": 81, "protocol": "HTTP", "hostname": "a.example", "tls": { "frontendValidation": {} } }),
        json!({ "name": "passes", "port": 443, "protocol": "TLS", "hostname": "a.example", "tls": { "mode": "Passthrough" } }),
        json!({ "name": "tcp", "port": 90, "protocol": "TCP" }),
    ];
    all.into_iter().take(count).collect()
}

fn apply(cluster: &mut Cluster, step: &Step) {
    let hosts = ["a.example", "b.example", "*.example", "a b"];
    match *step {
        Step::Route(number, host, of) => cluster.put(
            Kind::HttpRoute,
            json!({ "metadata": { "namespace": "shop", "name": format!("r{number}"),
                                  "creationTimestamp": format!("2026-01-01T00:00:0{}Z", number % 3) },
                    "spec": { "parentRefs": [{ "name": "g" }, { "name": "s", "kind": "XListenerSet", "group": "gateway.networking.x-k8s.io" }],
                              "hostnames": [hosts[host]], "rules": [rule(of)] } }),
        ),
        Step::NoRoute(number) => {
            let name = ObjectName::new("shop", &format!("r{number}"));
            cluster.0.remove(Kind::HttpRoute, &name);
        }
        Step::Service(number, true) => cluster.put(
            Kind::Service,
            json!({ "metadata": { "namespace": "shop", "name": (SERVICES[number]) },
                    "spec": { "ports": [{ "name": "http", "port": 80 }, { "name": "dns", "port": 53, "protocol": "UDP" }] } }),
        ),
        Step::Service(number, false) => {
            let name = ObjectName::new("shop", SERVICES[number]);
            cluster.0.remove(Kind::Service, &name);
        }
        Step::Calls(number, host) => cluster.put(
            Kind::GrpcRoute,
            json!({ "metadata": { "namespace": "shop", "name": format!("r{number}") },
                    "spec": { "parentRefs": [{ "name": "g" }], "hostnames": [hosts[host]],
                              "rules": [{ "backendRefs": [{ "name": "web", "port": 80 }] }] } }),
        ),
        Step::Datagrams(Some(number)) => cluster.put(
            Kind::UdpRoute,
            json!({ "metadata": { "namespace": "shop", "name": "u" },
                    "spec": { "parentRefs": [{ "name": "g" }],
                              "rules": [{ "backendRefs": [{ "name": (SERVICES[number]), "port": 53 }] }] } }),
        ),
        Step::Datagrams(None) => {
            let name = ObjectName::new("shop", "u");
            cluster.0.remove(Kind::UdpRoute, &name);
        }
        Step::Connections(is_tls, number, host, service) => {
            let kind = if is_tls { Kind::TlsRoute } else { Kind::TcpRoute };
            let rules = json!([{ "backendRefs": [{ "name": (SERVICES[service]), "port": 80 }] }]);
            let hosts = json!([hosts[host]]);
            cluster.route_at(kind, &format!("c{number}"), json!([{ "name": "g" }]), hosts, rules);
        }
        Step::NoConnections(is_tls, number) => {
            let kind = if is_tls { Kind::TlsRoute } else { Kind::TcpRoute };
            let name = ObjectName::new("shop", &format!("c{number}"));
            cluster.0.remove(kind, &name);
        }
        Step::Ingress(number, host, annotations) => {
            let kind = ["Prefix", "Exact"][number % 2];
            let paths = json!([path("/", kind, SERVICES[number % 2]), path("/x", kind, "web")]);
            let name = format!("i{number}");
            put_ingress(cluster, &name, ANNOTATIONS[annotations], spec(hosts[host], paths));
        }
        Step::NoIngress(number) => {
            let name = ObjectName::new("shop", &format!("i{number}"));
            cluster.0.remove(Kind::Ingress, &name);
        }
        Step::Class(true) => cluster.put(
            Kind::IngressClass,
            json!({ "metadata": { "name": "edge" }, "spec": { "controller": "evenkeel.org/ingress" } }),
        ),
        Step::Class(false) => {
            let name = ObjectName::new("", "edge");
            cluster.0.remove(Kind::IngressClass, &name);
        }
        Step::Policy(Some(number)) => {
            let section = [Value::Null, json!("http"), Value::Null][number].clone();
            let mut validation = by_authority();
            validation["hostname"] = format!("{number}.example").into();
            put_policy(cluster, &format!("p{}", number % 2), section, validation);
        }
        Step::Policy(None) => {
            let name = ObjectName::new("shop", "p0");
            cluster.0.remove(Kind::BackendTlsPolicy, &name);
        }
        Step::Authority(number) => {
            let text = ["broken".into(), AUTHORITY.to_owned(), AUTHORITY.repeat(2)];
            put_authority(cluster, &text[number]);
        }
        Step::Set(Some(number)) => {
            let hosts = ["a.example", "*.example", "c.example"];
            let listeners = json!([{ "name": "s", "port": 81, "protocol": "HTTP", "hostname": (hosts[number]) }]);
            put_set(cluster, Kind::XListenerSet, ("shop", "s"), listeners);
        }
        Step::Set(None) => {
            let name = ObjectName::new("shop", "s");
            cluster.0.remove(Kind::XListenerSet, &name);
        }
        Step::Grant(true) => cluster.put(
            Kind::ReferenceGrant,
            json!({ "metadata": { "namespace": "other", "name": "g" },
                    "spec": { "from": [{ "group": "gateway.networking.k8s.io", "kind": "HTTPRoute", "namespace": "shop" }],
                              "to": [{ "group": "", "kind": "Service" }] } }),
        ),
        Step::Grant(false) => {
            let name = ObjectName::new("other", "g");
            cluster.0.remove(Kind::ReferenceGrant, &name);
        }
        Step::Namespace(label) => cluster.put(
            Kind::Namespace,
            json!({ "metadata": { "name": "shop", "labels": { "team": label.to_string() } } }),
        ),
        Step::Pool(port) => {
            let ports: Value = { port.iter() }.map(|port| json!({ "number": 8000 + port })).collect();
            cluster.put(
                Kind::InferencePool,
                json!({ "metadata": { "namespace": "shop", "name": "p" },
                        "spec": { "selector": { "matchLabels": { "app": "p" } }, "targetPorts": ports } }),
            );
        }
        Step::Refuse(_) => {}
        Step::Keys(Some(number)) => {
            let (kind, name, mut spec) = policy_keys(number);
            spec["targetRefs"] = json!([{ "group": kind.api_group(), "kind": kind.name(), "name": name }]);
            let metadata = json!({ "namespace": "shop", "name": format!("k{}", number % 2) });
            cluster.put(Kind::EvenkeelPolicy, json!({ "metadata": metadata, "spec": spec }));
        }
        Step::Keys(None) => {
            let name = ObjectName::new("shop", "k0");
            cluster.0.remove(Kind::EvenkeelPolicy, &name);
        }
        Step::Annotation(number) => {
            let value = ["true", "wrong", r#"{"strip": false}"#][number];
            cluster.put(
                Kind::Service,
                json!({ "metadata": { "namespace": "shop", "name": "web", "annotations": { "evenkeel.org/orca": value } },
                        "spec": { "ports": [{ "name": "http", "port": 80 }] } }),
            );
        }
        Step::Users(Some(0)) => put_users(cluster, "shop", "0", ("auth", "broken")),
        Step::Users(Some(version)) => {
            put_users(cluster, "shop", &version.to_string(), ("auth", USERS));
        }
        Step::Users(None) => {
            let name = ObjectName::new("shop", "users");
            cluster.0.remove(Kind::OpaqueSecret, &name);
        }
        Step::Gateway(count) => {
            let from = if count.is_multiple_of(2) { "Same" } else { "None" };
            put_gateway(cluster, listeners(count), json!({ "from": from }));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_translation_after_others_is_the_one_from_scratch(
        steps in proptest::collection::vec(any_step(), 1..30),
    ) {
        let (mut cluster, mut kept) = (plain(), Kept::default());
        apply(&mut cluster, &Step::Class(true));
        let mut refused = Refused::new();
        for step in steps {
            apply(&mut cluster, &step);
            let owner = Owner::Listener(ObjectName::new("shop", "g"), "other".into());
            match step {
                Step::Refuse(true) => drop(refused.insert(owner, "in use".into())),
                Step::Refuse(false) => drop(refused.remove(&owner)),
                _ => {}
            }
            let again = translate_again(&cluster.0, &settings(), &refused, &mut kept);
            let scratch = translate(&cluster.0, &settings(), &refused);
            prop_assert_eq!(&again.text, &scratch.text);
            prop_assert_eq!(&again.statuses, &scratch.statuses);
            prop_assert_eq!((&again.rules, &again.files), (&scratch.rules, &scratch.files));
            prop_assert_eq!(&again.notices, &scratch.notices);
            // Both ways to translate routes of requests have the same outcome.
            let once = |is_in_order| translate_once(&cluster.0, &settings(), &refused, is_in_order);
            prop_assert_eq!(once(false), once(true));
            let whole = evenkeel_config::parse_generated(&again.text).unwrap();
            prop_assert_eq!(&**again.config.as_ref().unwrap(), &whole);
            prop_assert_eq!(&**scratch.config.as_ref().unwrap(), &whole);
        }
    }
}

#[test]
fn routes_are_translated_if_something_has_changed_that_they_read() {
    let (mut cluster, mut kept) = (plain(), Kept::default());
    let mut count = |cluster: &Cluster| {
        let before = kept.count_translated();
        translate_again(&cluster.0, &settings(), &Refused::new(), &mut kept);
        kept.count_translated() - before
    };
    for number in 0..6 {
        let rules = json!([{ "matches": [{ "path": { "value": format!("/{number}") } }],
                             "backendRefs": [{ "name": (SERVICES[number % 2]), "port": 80 }] }]);
        cluster.route(&format!("r{number}"), json!(["a.example"]), rules);
    }
    assert_eq!((count(&cluster), count(&cluster)), (6, 0));
    let mirror = json!({ "type": "RequestMirror", "requestMirror": { "backendRef": { "name": "web", "port": 80 } } });
    let rules = json!([{ "backendRefs": [{ "name": "canary", "port": 80 }], "filters": [mirror] }]);
    cluster.route("r1", json!(["b.example"]), rules);
    assert_eq!((count(&cluster), count(&cluster)), (1, 0));
    cluster
        .0
        .remove(Kind::HttpRoute, &ObjectName::new("shop", "r5"));
    assert_eq!(count(&cluster), 0);
    // Routes 0, 2 and 4 have the service as their target, and route 1 mirrors requests to it.
    apply(&mut cluster, &Step::Service(0, true));
    assert_eq!((count(&cluster), count(&cluster)), (4, 0));
    apply(&mut cluster, &Step::Service(0, false));
    assert_eq!(count(&cluster), 4);
    // No listener selects namespaces by their labels.
    apply(&mut cluster, &Step::Namespace(0));
    assert_eq!(count(&cluster), 0);
    apply(&mut cluster, &Step::Gateway(4));
    assert_eq!(count(&cluster), 5);
    apply(&mut cluster, &Step::Namespace(1));
    assert_eq!((count(&cluster), count(&cluster)), (5, 0));
    apply(&mut cluster, &Step::Grant(true));
    assert_eq!(count(&cluster), 5);
    apply(&mut cluster, &Step::Pool(Some(1)));
    assert_eq!((count(&cluster), count(&cluster)), (5, 0));
}

#[test]
fn other_routes_are_translated_if_something_has_changed_that_they_read() {
    let (mut cluster, mut kept) = (plain(), Kept::default());
    let mut count = |cluster: &Cluster, refused: &Refused| {
        let before = kept.count_others();
        translate_again(&cluster.0, &settings(), refused, &mut kept);
        kept.count_others() - before
    };
    let mut refused = Refused::new();
    apply(&mut cluster, &Step::Class(true));
    apply(&mut cluster, &Step::Ingress(0, 0, 1));
    apply(&mut cluster, &Step::Gateway(8));
    assert_eq!(
        (count(&cluster, &refused), count(&cluster, &refused)),
        (1, 0)
    );
    for step in [
        Step::Route(0, 0, 1),
        Step::Route(0, 1, 2),
        Step::NoRoute(0),
        Step::Calls(0, 0),
    ] {
        apply(&mut cluster, &step);
        assert_eq!(count(&cluster, &refused), 0, "{step:?}");
    }
    let owner = |kind| Owner::Rule(kind, ObjectName::new("shop", "i0"), 0);
    refused.insert(owner(Kind::HttpRoute), "bad".into());
    assert_eq!(count(&cluster, &refused), 0);
    refused.insert(owner(Kind::Ingress), "bad".into());
    assert_eq!(count(&cluster, &refused), 1);
    for step in [
        Step::Ingress(0, 0, 2),
        Step::Connections(true, 0, 0, 0),
        Step::Connections(false, 0, 0, 0),
        Step::Datagrams(Some(0)),
        Step::NoConnections(true, 0),
        Step::Service(0, false),
        Step::Gateway(7),
        Step::Grant(true),
        Step::NoIngress(0),
        Step::Class(false),
    ] {
        apply(&mut cluster, &step);
        let counts = (count(&cluster, &refused), count(&cluster, &refused));
        assert_eq!(counts, (1, 0), "{step:?}");
    }
}
