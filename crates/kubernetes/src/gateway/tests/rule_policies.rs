//! Tests of EvenkeelPolicies with keys of rules.

use evenkeel_config::{Forward, ReturnPath, Rule};
use serde_json::{Value, json};

use super::super::objects::{Kind, ObjectName};
use super::super::settings::Settings;
use super::super::translate::settle::translate;
use super::super::translate::{Refused, Translation};
use super::{Cluster, GOOD, parent_conditions, settings, show, status_of, web};

const ACCEPTED: [&str; 1] = ["Accepted=True/Accepted"];
const INVALID: [&str; 1] = ["Accepted=False/Invalid"];

/// Cluster with a gateway for HTTP, TCP and UDP, a route for connections and one for datagrams.
fn cluster() -> Cluster {
    let mut cluster = Cluster::new();
    cluster.put(
        Kind::Service,
        json!({ "metadata": { "namespace": "shop", "name": "names" },
                "spec": { "ports": [{ "port": 53, "protocol": "UDP" }] } }),
    );
    cluster.gateway(
        "g",
        json!([{ "name": "http", "port": 80, "protocol": "HTTP" },
               { "name": "tcp", "port": 5432, "protocol": "TCP" },
               { "name": "udp", "port": 53, "protocol": "UDP" }]),
    );
    let parents = || json!([{ "name": "g" }]);
    cluster.route("page", json!([]), json!([{ "backendRefs": web() }]));
    let rules = json!([{ "backendRefs": web() }]);
    cluster.route_at(Kind::TcpRoute, "db", parents(), Value::Null, rules);
    let rules = json!([{ "backendRefs": [{ "name": "names", "port": 53 }] }]);
    cluster.route_at(Kind::UdpRoute, "dns", parents(), Value::Null, rules);
    cluster
}

/// Adds a policy `shop/NAME` for an object.
fn put(cluster: &mut Cluster, name: &str, (kind, of): (Kind, &str), settings: Value) {
    let mut spec = settings;
    spec["targetRefs"] = json!([{ "group": kind.api_group(), "kind": kind.name(), "name": of }]);
    cluster.put(
        Kind::EvenkeelPolicy,
        json!({ "metadata": { "namespace": "shop", "name": name, "generation": 2 }, "spec": spec }),
    );
}

/// Translates with an address to listen on: the kernel cannot forward for all addresses.
fn translate_at(cluster: &Cluster, address: &str) -> Translation {
    let plain = settings();
    let settings = Settings {
        listen: vec![address.parse().unwrap()],
        ..plain
    };
    translate(&cluster.0, &settings, &Refused::new())
}

fn translate_here(cluster: &Cluster) -> Translation {
    let translation = translate_at(cluster, "192.0.2.10");
    for (kind, name) in [
        (Kind::HttpRoute, "page"),
        (Kind::TcpRoute, "db"),
        (Kind::UdpRoute, "dns"),
    ] {
        assert_eq!(parent_conditions(&translation, kind, name), GOOD, "{name}");
    }
    translation
}

/// Returns the condition of a policy, and its message.
fn condition(translation: &Translation, name: &str) -> (Vec<String>, String) {
    let status = status_of(translation, Kind::EvenkeelPolicy, name);
    let conditions = &status["ancestors"][0]["conditions"];
    let message = conditions[0]["message"].as_str().unwrap().to_owned();
    (show(conditions), message)
}

fn rule(translation: &Translation, name: &str) -> Rule {
    let config = translation.config.as_ref().unwrap();
    let mut rules = config.rules.iter();
    let found = rules.find(|rule| &*rule.name == name);
    found
        .unwrap_or_else(|| panic!("{name}: {}", translation.text))
        .clone()
}

#[test]
fn a_policy_of_a_gateway_holds_for_its_connections_and_datagrams() {
    let mut cluster = cluster();
    let keys = json!({ "rule": { "forward": "kernel", "return_path": "nat", "udp": { "answer_timeout": "1s" } } });
    put(&mut cluster, "a", (Kind::Gateway, "g"), keys);
    let translation = translate_here(&cluster);
    assert_eq!(condition(&translation, "a").0, ACCEPTED);
    for name in ["kubernetes.5432", "kubernetes.53.udp"] {
        let rule = rule(&translation, name);
        assert_eq!(rule.forward, Forward::Kernel, "{name}");
        assert_eq!(rule.return_path, ReturnPath::Nat, "{name}");
    }
    let udp = rule(&translation, "kubernetes.53.udp").udp;
    assert_eq!(udp.answer_timeout.as_secs(), 1);
    assert_eq!(rule(&translation, "kubernetes.80").forward, Forward::Proxy);
    // Groups of others have no part in the policy.
    let config = translation.config.as_ref().unwrap();
    let mut names = config.groups.iter().map(|group| group.name.as_str());
    assert!(names.all(|name| !name.contains("policy")));
    // The policy goes, and the proxy serves all.
    let name = ObjectName::new("shop", "a");
    assert!(cluster.0.remove(Kind::EvenkeelPolicy, &name));
    let translation = translate_here(&cluster);
    assert_eq!(
        rule(&translation, "kubernetes.5432").forward,
        Forward::Proxy
    );
}

#[test]
fn the_policy_of_a_route_goes_before_that_of_its_gateway() {
    let mut cluster = cluster();
    let forward = |place: &str| json!({ "rule": { "forward": place } });
    put(
        &mut cluster,
        "a",
        (Kind::Gateway, "g"),
        json!({ "rule": { "forward": "kernel", "return_path": "nat" } }),
    );
    put(
        &mut cluster,
        "b",
        (Kind::TcpRoute, "db"),
        json!({ "rule": { "return_path": "route" } }),
    );
    put(
        &mut cluster,
        "c",
        (Kind::UdpRoute, "dns"),
        forward("kernel"),
    );
    let translation = translate_here(&cluster);
    for name in ["a", "b", "c"] {
        assert_eq!(condition(&translation, name).0, ACCEPTED, "{name}");
    }
    let (tcp, udp) = (
        rule(&translation, "kubernetes.5432"),
        rule(&translation, "kubernetes.53.udp"),
    );
    assert_eq!(
        (tcp.forward, tcp.return_path),
        (Forward::Kernel, ReturnPath::Route)
    );
    assert_eq!(
        (udp.forward, udp.return_path),
        (Forward::Kernel, ReturnPath::Nat)
    );
}

#[test]
fn a_policy_that_does_not_fit_harms_only_itself() {
    let route = (Kind::TcpRoute, "db");
    for (target, settings, wanted) in [
        (
            route,
            json!({ "rule": { "forward": "nowhere" } }),
            "spec.rule.forward",
        ),
        (
            route,
            json!({ "rule": { "forward": "proxy", "return_path": "nat" } }),
            "spec.rule.return_path",
        ),
        (
            route,
            json!({ "rule": { "anycast": true, "return_path": "nat" } }),
            "spec.rule.anycast",
        ),
        (
            route,
            json!({ "rule": { "udp": { "session": "some" } } }),
            "spec.rule.udp.session",
        ),
        (
            route,
            json!({ "rule": { "listen": "192.0.2.1:22" } }),
            "spec.rule.listen cannot be set by a policy",
        ),
        (route, json!({ "rule": { "udp": {} } }), "udp"),
        (
            (Kind::UdpRoute, "dns"),
            json!({ "rule": { "forward": "kernel", "return_path": "tunnel" } }),
            "return_path",
        ),
        (
            (Kind::Service, "web"),
            json!({ "rule": { "forward": "kernel" } }),
            "name a TCPRoute",
        ),
        (
            (Kind::HttpRoute, "page"),
            json!({ "rule": { "forward": "kernel" } }),
            "name a TCPRoute",
        ),
    ] {
        let mut cluster = cluster();
        put(&mut cluster, "a", target, settings.clone());
        let translation = translate_here(&cluster);
        let (conditions, message) = condition(&translation, "a");
        assert_eq!(conditions, INVALID, "{settings}");
        assert!(message.contains(wanted), "{settings}: {message}");
        assert_eq!(
            rule(&translation, "kubernetes.5432").forward,
            Forward::Proxy
        );
    }
}

#[test]
fn members_that_need_the_proxy_leave_out_the_policy_of_the_rule() {
    let mut cluster = cluster();
    let forward = json!({ "rule": { "forward": "kernel" } });
    put(&mut cluster, "a", (Kind::TcpRoute, "db"), forward);
    let group = json!({ "group": { "send_proxy": "v2" } });
    put(&mut cluster, "b", (Kind::Service, "web"), group);
    let translation = translate_here(&cluster);
    let (conditions, message) = condition(&translation, "a");
    assert_eq!(conditions, INVALID);
    assert!(
        message.contains("`send_proxy` needs the proxy"),
        "{message}"
    );
    assert_eq!(condition(&translation, "b").0, ACCEPTED);
    assert_eq!(
        rule(&translation, "kubernetes.5432").forward,
        Forward::Proxy
    );
}

#[test]
fn limits_of_a_gateway_hold_for_connections_of_the_kernel() {
    for (limits, connections) in [
        (json!({ "connections": 3 }), Some(3)),
        // The kernel cannot hold back bytes: then the table is not for the route.
        (json!({ "connections": 3, "bandwidth": "1MiB/s" }), None),
    ] {
        let mut cluster = cluster();
        let limited = json!({ "rule": { "max_connections": 7, "limits": limits } });
        put(&mut cluster, "a", (Kind::Gateway, "g"), limited);
        let forward = json!({ "rule": { "forward": "kernel" } });
        put(&mut cluster, "b", (Kind::TcpRoute, "db"), forward);
        let translation = translate_here(&cluster);
        assert_eq!(condition(&translation, "a").0, ACCEPTED);
        assert_eq!(condition(&translation, "b").0, ACCEPTED);
        let rule = rule(&translation, "kubernetes.5432");
        assert_eq!(rule.forward, Forward::Kernel);
        assert_eq!(
            (rule.max_connections, rule.limits.connections),
            (7, connections)
        );
    }
}

#[test]
fn the_kernel_needs_an_address_to_listen_on() {
    let mut cluster = cluster();
    let forward = json!({ "rule": { "forward": "kernel" } });
    put(&mut cluster, "a", (Kind::TcpRoute, "db"), forward);
    let translation = translate_at(&cluster, "0.0.0.0");
    let (conditions, message) = condition(&translation, "a");
    assert_eq!(conditions, INVALID);
    assert!(message.contains("name each address"), "{message}");
    assert_eq!(parent_conditions(&translation, Kind::TcpRoute, "db"), GOOD);
}

#[test]
fn policies_of_routes_that_need_the_proxy_are_left_out_at_once() {
    let mut cluster = cluster();
    cluster.gateway(
        "t",
        json!([{ "name": "tls", "port": 8443, "protocol": "TLS", "tls": { "mode": "Passthrough" } }]),
    );
    for number in 0..1_000 {
        let (name, host) = (format!("t{number}"), format!("t{number}.example.org"));
        let (parents, rules) = (json!([{ "name": "t" }]), json!([{ "backendRefs": web() }]));
        cluster.route_at(Kind::TlsRoute, &name, parents, json!([host]), rules);
        let keys = match number {
            0 => json!({ "rule": { "forward": "proxy", "return_path": "route" } }),
            1 => json!({ "rule": { "udp": { "answer_timeout": "1s" } } }),
            _ => json!({ "rule": { "forward": "kernel", "return_path": "nat" } }),
        };
        put(&mut cluster, &name, (Kind::TlsRoute, &name), keys);
    }
    let translation = translate_here(&cluster);
    assert!(translation.rounds <= 3, "{} rounds", translation.rounds);
    assert_eq!(condition(&translation, "t0").0, ACCEPTED);
    for (name, wanted) in [
        ("t1", "udp: a rule with `sni`"),
        (
            "t2",
            "forward: with \"kernel\" the rule cannot have `sni`, which needs the proxy",
        ),
        ("t999", "cannot have `sni`"),
    ] {
        let (conditions, message) = condition(&translation, name);
        assert_eq!(conditions, INVALID, "{name}");
        assert!(message.contains(wanted), "{name}: {message}");
        assert_eq!(parent_conditions(&translation, Kind::TlsRoute, name), GOOD);
    }
    let rule = rule(&translation, "kubernetes.8443");
    assert_eq!(rule.forward, Forward::Proxy);
    assert_eq!(rule.sni.len(), 1_000);
}

#[test]
fn many_policies_of_a_target_take_a_few_rounds() {
    let mut cluster = cluster();
    for number in 0..100 {
        let keys = json!({ "rule": { "forward": "kernel" } });
        let name = format!("p{number:02}");
        put(&mut cluster, &name, (Kind::TcpRoute, "db"), keys);
    }
    // The kernel cannot forward for all addresses.
    let translation = translate_at(&cluster, "0.0.0.0");
    assert!(translation.rounds <= 3, "{} rounds", translation.rounds);
    assert_eq!(condition(&translation, "p00").0, INVALID);
    let conflicted = ["Accepted=False/Conflicted"];
    assert_eq!(condition(&translation, "p99").0, conflicted);
    assert_eq!(parent_conditions(&translation, Kind::TcpRoute, "db"), GOOD);
}

#[test]
fn members_that_need_the_proxy_leave_out_the_policies_of_all_rules_at_once() {
    let mut cluster = cluster();
    let ports = 10_000..10_060_u16;
    let listeners = ports
        .clone()
        .map(|port| json!({ "name": format!("l{port}"), "port": port, "protocol": "TCP" }));
    cluster.gateway("many", listeners.collect());
    for port in ports {
        let name = format!("r{port}");
        let parents = json!([{ "name": "many", "port": port }]);
        let rules = json!([{ "backendRefs": web() }]);
        cluster.route_at(Kind::TcpRoute, &name, parents, Value::Null, rules);
        let keys = json!({ "rule": { "forward": "kernel" } });
        put(&mut cluster, &name, (Kind::TcpRoute, &name), keys);
    }
    let group = json!({ "group": { "send_proxy": "v2" } });
    put(&mut cluster, "b", (Kind::Service, "web"), group);
    let translation = translate_here(&cluster);
    assert!(translation.rounds <= 3, "{} rounds", translation.rounds);
    assert_eq!(condition(&translation, "r10000").0, INVALID);
    assert_eq!(condition(&translation, "r10059").0, INVALID);
    assert_eq!(condition(&translation, "b").0, ACCEPTED);
}

#[test]
fn a_route_takes_the_policy_of_its_gateway_from_no_other_route() {
    let gateway = json!({ "rule": { "forward": "kernel", "return_path": "nat" } });
    for (target, keys, left_out, others) in [
        (
            (Kind::TcpRoute, "db"),
            json!({ "rule": { "forward": "proxy" } }),
            "kubernetes.5432",
            "kubernetes.53.udp",
        ),
        (
            (Kind::UdpRoute, "dns"),
            json!({ "rule": { "udp": { "session": "datagram", "expect_answer": false } } }),
            "kubernetes.53.udp",
            "kubernetes.5432",
        ),
        (
            (Kind::Service, "web"),
            json!({ "group": { "send_proxy": "v2" } }),
            "kubernetes.5432",
            "kubernetes.53.udp",
        ),
    ] {
        let mut cluster = cluster();
        put(&mut cluster, "a", (Kind::Gateway, "g"), gateway.clone());
        put(&mut cluster, "b", target, keys.clone());
        let translation = translate_here(&cluster);
        let (conditions, message) = condition(&translation, "a");
        assert_eq!(conditions, ACCEPTED, "{keys}");
        // The route's own choice is no fault of the gateway's policy.
        let is_told = target.0 != Kind::TcpRoute;
        assert_eq!(message.contains(left_out), is_told, "{keys}: {message}");
        assert_eq!(condition(&translation, "b").0, ACCEPTED, "{keys}");
        let own = rule(&translation, left_out);
        assert_eq!(own.forward, Forward::Proxy, "{keys}");
        let other = rule(&translation, others);
        assert_eq!(
            (other.forward, other.return_path),
            (Forward::Kernel, ReturnPath::Nat),
            "{keys}"
        );
    }
}
