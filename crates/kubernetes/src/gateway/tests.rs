//! Tests of the translation, by kind.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::objects::{Kind, ObjectName, Objects};
use super::settings::Settings;
use super::text::Owner;
use super::translate::settle::translate;
use super::translate::{Refused, Translation};

mod again;
mod away;
mod bounds;
mod client_certificates;
mod datagrams;
mod group_policies;
mod grpc;
mod hosts;
mod https_and_tls;
mod ingress;
mod ingress_clients;
mod isolation;
mod listener_sets;
mod parts;
mod policies;
mod policy_crd;
mod policy_effects;
mod pools;
mod rights;
mod route_policies;
mod rule_policies;
mod seed;
mod settle;
mod streams;
mod target_filters;

fn settings() -> Settings {
    Settings {
        controller: "evenkeel.org/gateway".into(),
        class: None,
        listen: vec!["0.0.0.0".parse().unwrap()],
        publish: vec!["203.0.113.7".into()],
        publish_service: None,
        pool: Vec::new(),
        ingress: None,
    }
}

/// Cluster with a class, a namespace and a service.
struct Cluster(Objects);

impl Cluster {
    fn new() -> Self {
        let mut cluster = Cluster(Objects::default());
        cluster.put(
            Kind::GatewayClass,
            json!({ "metadata": { "name": "evenkeel" }, "spec": { "controllerName": "evenkeel.org/gateway" } }),
        );
        for namespace in ["shop", "other"] {
            cluster.put(
                Kind::Namespace,
                json!({ "metadata": { "name": namespace, "labels": { "team": namespace } } }),
            );
            for service in ["web", "canary"] {
                cluster.put(
                    Kind::Service,
                    json!({ "metadata": { "namespace": namespace, "name": service },
                            "spec": { "ports": [{ "port": 80 }, { "port": 53, "protocol": "UDP" },
                                                { "port": 81, "appProtocol": "kubernetes.io/wss" },
                                                { "port": 82, "appProtocol": "kubernetes.io/h2c" }] } }),
                );
            }
        }
        cluster
    }

    fn put(&mut self, kind: Kind, object: Value) {
        self.0.put(kind, object).unwrap();
    }

    /// Adds a gateway `shop/NAME` with these listeners.
    fn gateway(&mut self, name: &str, listeners: Value) {
        self.put(
            Kind::Gateway,
            json!({ "metadata": { "namespace": "shop", "name": name, "generation": 3, "creationTimestamp": "2026-01-01T00:00:00Z" },
                    "spec": { "gatewayClassName": "evenkeel", "listeners": listeners } }),
        );
    }

    /// Adds a route `shop/NAME` to gateway `g`.
    fn route(&mut self, name: &str, hosts: Value, rules: Value) {
        self.route_at(
            Kind::HttpRoute,
            name,
            json!([{ "name": "g" }]),
            hosts,
            rules,
        );
    }

    fn route_at(&mut self, kind: Kind, name: &str, parents: Value, hosts: Value, rules: Value) {
        self.put(
            kind,
            json!({ "metadata": { "namespace": "shop", "name": name, "creationTimestamp": "2026-01-01T00:00:00Z" },
                    "spec": { "parentRefs": parents, "hostnames": hosts, "rules": rules } }),
        );
    }

    fn translate(&self) -> Translation {
        let translation = translate(&self.0, &settings(), &Refused::new());
        evenkeel_config::parse_generated(&translation.text).unwrap();
        translation
    }
}

/// Gateway with a listener for HTTP at port 80.
fn plain() -> Cluster {
    let mut cluster = Cluster::new();
    cluster.gateway(
        "g",
        json!([{ "name": "http", "port": 80, "protocol": "HTTP" }]),
    );
    cluster
}

fn web() -> Value {
    json!([{ "name": "web", "port": 80 }])
}

fn status_of<'t>(translation: &'t Translation, kind: Kind, name: &str) -> &'t Value {
    let mut all = translation.statuses.iter();
    let found = all.find(|of| of.kind == kind && of.object.name == name);
    let found = found.unwrap_or_else(|| panic!("no status of {name}"));
    // For the rest of the tests, so that they can refer to parts.
    Box::leak(Box::new(found.read_status()))
}

/// Shows conditions as `Type=Status/Reason`.
fn show(conditions: &Value) -> Vec<String> {
    let all = conditions.as_array().unwrap().iter();
    all.map(|of| {
        let text = |key: &str| of[key].as_str().unwrap().to_owned();
        format!("{}={}/{}", text("type"), text("status"), text("reason"))
    })
    .collect()
}

fn parent_conditions(translation: &Translation, kind: Kind, name: &str) -> Vec<String> {
    show(&status_of(translation, kind, name)["parents"][0]["conditions"])
}

const GOOD: [&str; 2] = ["Accepted=True/Accepted", "ResolvedRefs=True/ResolvedRefs"];

/// Returns the routes of the only rule as lines `host path … => action`.
fn routes(translation: &Translation) -> Vec<String> {
    let config = evenkeel_config::parse_generated(&translation.text).unwrap();
    let routes = config.rules[0].routes.list().iter().map(|route| {
        let action = match (&route.redirect, &route.answer) {
            (Some(redirect), _) => format!("{} {redirect}", route.redirect_status),
            (None, Some(answer)) => answer.status.to_string(),
            (None, None) if route.group.is_empty() => format!("{:?}", route.groups.list_weights()),
            (None, None) => route.group.clone(),
        };
        let regexes = { route.path_regex.iter() }.map(|regex| format!("~{}", regex.text()));
        let mut shown = vec![
            route.host.join(","),
            route.path.join(","),
            regexes.collect(),
            route.method.join(","),
        ];
        shown.retain(|text| !text.is_empty());
        shown.push(format!("=> {action}"));
        shown.join(" ")
    });
    routes.collect()
}

#[test]
fn a_gateway_and_a_route_serve_a_service() {
    let mut cluster = plain();
    cluster.route("r", json!([]), json!([{ "backendRefs": web() }]));
    let translation = cluster.translate();
    assert_eq!(routes(&translation), ["=> kubernetes.shop.web.80"]);
    let config = evenkeel_config::parse_generated(&translation.text).unwrap();
    assert_eq!(
        config.groups[0].services[0].kubernetes.as_deref(),
        Some("shop/web:80")
    );
    assert_eq!(
        show(&status_of(&translation, Kind::GatewayClass, "evenkeel")["conditions"]),
        ["Accepted=True/Accepted"]
    );
    let gateway = status_of(&translation, Kind::Gateway, "g");
    assert_eq!(
        show(&gateway["conditions"]),
        [
            "Accepted=True/Accepted",
            "Programmed=True/Programmed",
            "ResolvedRefs=True/ResolvedRefs"
        ]
    );
    assert_eq!(gateway["conditions"][0]["observedGeneration"], 3);
    assert_eq!(
        gateway["addresses"],
        json!([{ "type": "IPAddress", "value": "203.0.113.7" }])
    );
    let listener = &gateway["listeners"][0];
    assert_eq!(listener["attachedRoutes"], 1);
    assert_eq!(
        show(&listener["conditions"]),
        [
            "Accepted=True/Accepted",
            "Conflicted=False/NoConflicts",
            "ResolvedRefs=True/ResolvedRefs",
            "Programmed=True/Programmed"
        ]
    );
    assert_eq!(parent_conditions(&translation, Kind::HttpRoute, "r"), GOOD);
    let parent = &status_of(&translation, Kind::HttpRoute, "r")["parents"][0];
    assert_eq!(parent["parentRef"], json!({ "name": "g" }));
    assert_eq!(parent["controllerName"], "evenkeel.org/gateway");
}

#[test]
fn classes_of_others_get_no_status() {
    let mut cluster = plain();
    cluster.put(
        Kind::GatewayClass,
        json!({ "metadata": { "name": "theirs" }, "spec": { "controllerName": "a.b/c" } }),
    );
    cluster.put(
        Kind::Gateway,
        json!({ "metadata": { "namespace": "shop", "name": "theirs" },
                "spec": { "gatewayClassName": "theirs", "listeners": [{ "name": "a", "port": 81, "protocol": "HTTP" }] } }),
    );
    cluster.route_at(
        Kind::HttpRoute,
        "r",
        json!([{ "name": "theirs" }]),
        json!([]),
        json!([{ "backendRefs": web() }]),
    );
    let translation = cluster.translate();
    assert!(!translation.text.contains(":81"));
    let named: Vec<_> = translation
        .statuses
        .iter()
        .map(|of| of.object.name.as_str())
        .collect();
    assert_eq!(named, ["r", "evenkeel", "g"]);
    assert_eq!(
        status_of(&translation, Kind::HttpRoute, "r")["parents"],
        json!([])
    );
}

#[test]
fn only_the_class_of_the_settings_is_served() {
    let cluster = plain();
    let with = |class: &str| {
        let settings = Settings {
            class: Some(class.into()),
            ..settings()
        };
        translate(&cluster.0, &settings, &Refused::new())
    };
    let own = with("evenkeel");
    assert!(own.config.is_ok());
    assert_eq!(own.statuses.len(), 2);
    let owner = Owner::Listener(ObjectName::new("shop", "g"), "http".into());
    assert_eq!(
        own.rules,
        BTreeMap::from([("kubernetes.80".into(), vec![owner])])
    );
    let other = with("other");
    assert!(other.text.is_empty() && other.statuses.is_empty());
}

#[test]
fn the_most_specific_match_comes_first() {
    let mut cluster = plain();
    let matches = json!([
        { "path": { "type": "PathPrefix", "value": "/" } },
        { "path": { "type": "PathPrefix", "value": "/a" } },
        { "path": { "type": "PathPrefix", "value": "/a/b/" } },
        { "path": { "type": "Exact", "value": "/a" } },
        { "path": { "type": "PathPrefix", "value": "/a" }, "method": "GET" },
    ]);
    cluster.route(
        "r",
        json!(["*.example.org", "www.example.org"]),
        json!([{ "matches": matches, "backendRefs": web() }]),
    );
    // The older one of two routes with the same conditions serves.
    cluster.route(
        "s",
        json!(["www.example.org"]),
        json!([{ "backendRefs": [{ "name": "canary", "port": 80 }] }]),
    );
    let found = routes(&cluster.translate());
    let wanted = [
        "www.example.org /a => kubernetes.shop.web.80",
        "www.example.org /a/b/* => kubernetes.shop.web.80",
        "www.example.org /a/* GET => kubernetes.shop.web.80",
        "www.example.org /a/* => kubernetes.shop.web.80",
        "www.example.org => kubernetes.shop.web.80",
        "www.example.org => kubernetes.shop.canary.80",
        "**.example.org /a => kubernetes.shop.web.80",
    ];
    assert_eq!(found[..7], wanted);
    assert_eq!(found.last().unwrap(), "=> 404");
}

#[test]
fn listeners_are_isolated_by_their_hostnames() {
    let mut cluster = Cluster::new();
    cluster.gateway(
        "g",
        json!([
            { "name": "any", "port": 80, "protocol": "HTTP" },
            { "name": "wild", "port": 80, "protocol": "HTTP", "hostname": "*.example.org" },
            { "name": "one", "port": 80, "protocol": "HTTP", "hostname": "www.example.org" },
        ]),
    );
    let at = |name: &str| json!([{ "name": "g", "sectionName": name }]);
    cluster.route_at(
        Kind::HttpRoute,
        "a",
        at("any"),
        json!([]),
        json!([{ "backendRefs": web() }]),
    );
    // The name belongs to the third listener.
    cluster.route_at(
        Kind::HttpRoute,
        "b",
        at("wild"),
        json!(["www.example.org", "b.example.org"]),
        json!([{ "backendRefs": web() }]),
    );
    let path = json!([{ "path": { "type": "PathPrefix", "value": "/x" } }]);
    cluster.route_at(
        Kind::HttpRoute,
        "c",
        at("one"),
        json!([]),
        json!([{ "matches": path, "backendRefs": web() }]),
    );
    let translation = cluster.translate();
    let wanted = [
        "www.example.org /x/* => kubernetes.shop.web.80",
        "www.example.org => 404",
        "b.example.org => kubernetes.shop.web.80",
        "**.example.org => 404",
        "=> kubernetes.shop.web.80",
    ];
    assert_eq!(routes(&translation), wanted);
}

#[test]
fn a_later_listener_in_conflict_harms_only_itself() {
    let mut cluster = Cluster::new();
    cluster.gateway(
        "g",
        json!([
            { "name": "a", "port": 80, "protocol": "HTTP", "hostname": "x.example" },
            { "name": "b", "port": 80, "protocol": "HTTP", "hostname": "X.example" },
            { "name": "c", "port": 80, "protocol": "TCP" },
            { "name": "d", "port": 81, "protocol": "SCTP" },
        ]),
    );
    cluster.route("r", json!([]), json!([{ "backendRefs": web() }]));
    let translation = cluster.translate();
    assert_eq!(
        routes(&translation),
        ["x.example => kubernetes.shop.web.80"]
    );
    let gateway = status_of(&translation, Kind::Gateway, "g");
    assert_eq!(
        show(&gateway["conditions"])[0],
        "Accepted=True/ListenersNotValid"
    );
    let of = |number: usize| show(&gateway["listeners"][number]["conditions"]);
    assert_eq!(of(0)[3], "Programmed=True/Programmed");
    assert_eq!(
        of(1)[..2],
        [
            "Accepted=False/HostnameConflict",
            "Conflicted=True/HostnameConflict"
        ]
    );
    assert_eq!(
        of(2)[..2],
        [
            "Accepted=False/ProtocolConflict",
            "Conflicted=True/ProtocolConflict"
        ]
    );
    assert_eq!(of(3)[0], "Accepted=False/UnsupportedProtocol");
}

#[test]
fn parents_that_do_not_fit_are_told_with_the_reason() {
    let mut cluster = Cluster::new();
    cluster.gateway(
        "g",
        json!([
            { "name": "http", "port": 80, "protocol": "HTTP", "hostname": "*.example.org" },
            { "name": "all", "port": 81, "protocol": "HTTP", "allowedRoutes": { "namespaces": { "from": "All" } } },
            { "name": "team", "port": 82, "protocol": "HTTP",
              "allowedRoutes": { "namespaces": { "from": "Selector", "selector": { "matchLabels": { "team": "other" } } } } },
        ]),
    );
    let rules = json!([{ "backendRefs": web() }]);
    let put = |cluster: &mut Cluster, name: &str, namespace: &str, section: &str, host: &str| {
        cluster.put(
            Kind::HttpRoute,
            json!({ "metadata": { "namespace": namespace, "name": name },
                    "spec": { "parentRefs": [{ "namespace": "shop", "name": "g", "sectionName": section }],
                              "hostnames": [host], "rules": rules } }),
        );
    };
    for (name, namespace, section, host, reason) in [
        (
            "a",
            "shop",
            "none",
            "a.example.org",
            "Accepted=False/NoMatchingParent",
        ),
        (
            "b",
            "other",
            "http",
            "a.example.org",
            "Accepted=False/NotAllowedByListeners",
        ),
        (
            "c",
            "shop",
            "http",
            "a.example.com",
            "Accepted=False/NoMatchingListenerHostname",
        ),
        (
            "d",
            "other",
            "all",
            "a.example.com",
            "Accepted=True/Accepted",
        ),
        (
            "e",
            "other",
            "team",
            "a.example.com",
            "Accepted=True/Accepted",
        ),
        (
            "f",
            "shop",
            "team",
            "a.example.com",
            "Accepted=False/NotAllowedByListeners",
        ),
    ] {
        put(&mut cluster, name, namespace, section, host);
        assert_eq!(
            parent_conditions(&cluster.translate(), Kind::HttpRoute, name)[0],
            reason,
            "{name}"
        );
    }
}

#[test]
fn targets_that_cannot_be_used_fail_their_share() {
    for (target, reason) in [
        (json!({ "name": "none", "port": 80 }), "BackendNotFound"),
        (json!({ "name": "web", "port": 79 }), "BackendNotFound"),
        (json!({ "name": "web", "port": 53 }), "BackendNotFound"),
        (json!({ "name": "web" }), "BackendNotFound"),
        (json!({ "name": "web", "port": 81 }), "UnsupportedProtocol"),
        (
            json!({ "name": "web", "port": 80, "kind": "Pod" }),
            "InvalidKind",
        ),
        (
            json!({ "name": "web", "namespace": "other", "port": 80 }),
            "RefNotPermitted",
        ),
    ] {
        let mut cluster = plain();
        cluster.route("r", json!([]), json!([{ "backendRefs": [target] }]));
        let translation = cluster.translate();
        assert_eq!(routes(&translation), ["=> 500"], "{target}");
        let wanted = [
            "Accepted=True/Accepted".to_owned(),
            format!("ResolvedRefs=False/{reason}"),
        ];
        assert_eq!(
            parent_conditions(&translation, Kind::HttpRoute, "r"),
            wanted,
            "{target}"
        );
        let mut good = json!({ "name": "web", "port": 80, "weight": 3 });
        cluster.route(
            "r",
            json!([]),
            json!([{ "backendRefs": [target, good.take()] }]),
        );
        let found = routes(&cluster.translate());
        assert_eq!(
            found,
            [r#"=> [("kubernetes.nobody", 1), ("kubernetes.shop.web.80", 3)]"#],
            "{target}"
        );
    }
}

#[test]
fn a_grant_permits_references_between_namespaces() {
    let mut cluster = plain();
    let target = json!([{ "name": "web", "namespace": "other", "port": 80 }]);
    cluster.route("r", json!([]), json!([{ "backendRefs": target }]));
    let grant = |name: &str, namespace: &str| {
        json!({ "metadata": { "namespace": "other", "name": "g" },
                "spec": { "from": [{ "group": "gateway.networking.k8s.io", "kind": "HTTPRoute", "namespace": namespace }],
                          "to": [{ "group": "", "kind": "Service", "name": name }] } })
    };
    for (name, namespace, is_granted) in [
        ("web", "shop", true),
        ("", "shop", true),
        ("canary", "shop", false),
        ("web", "third", false),
    ] {
        cluster.put(Kind::ReferenceGrant, grant(name, namespace));
        let found = routes(&cluster.translate());
        let wanted = if is_granted {
            "=> kubernetes.other.web.80"
        } else {
            "=> 500"
        };
        assert_eq!(found, [wanted], "{name} {namespace}");
    }
}

#[test]
fn filters_become_actions() {
    let cases = [
        (
            json!([{ "type": "RequestHeaderModifier", "requestHeaderModifier": {
                "set": [{ "name": "X-A", "value": "1{host}" }, { "name": "x-a", "value": "2" }],
                "add": [{ "name": "X-B", "value": "${HOME}" }], "remove": ["X-C"] } }]),
            r#"request_fields = { set = { "X-A" = "1{{host}" }, add = { "X-B" = "${{HOME}" }, remove = ["X-C"] }"#,
        ),
        (
            json!([{ "type": "ResponseHeaderModifier", "responseHeaderModifier": { "remove": ["Server"] } }]),
            r#"response_fields = { remove = ["Server"] }"#,
        ),
        (
            json!([{ "type": "URLRewrite", "urlRewrite": { "hostname": "in.example", "path": { "type": "ReplacePrefixMatch", "replacePrefixMatch": "/v2/" } } }]),
            r#"rewrite_prefix = "/v2""#,
        ),
        (
            json!([{ "type": "URLRewrite", "urlRewrite": { "path": { "type": "ReplaceFullPath", "replaceFullPath": "/one/{two}" } } }]),
            r#"rewrite_path = "/one/{two}""#,
        ),
        (
            json!([{ "type": "URLRewrite", "urlRewrite": { "hostname": "in.example" } }]),
            r#"request_fields = { set = { "Host" = "in.example" } }"#,
        ),
        (
            json!([{ "type": "RequestMirror", "requestMirror": { "backendRef": { "name": "canary", "port": 80 }, "fraction": { "numerator": 1, "denominator": 8 } } }]),
            r#"mirror = { group = "kubernetes.shop.canary.80", percent = 12.5 }"#,
        ),
        (
            json!([{ "type": "CORS", "cors": { "allowOrigins": ["https://*.example.org"], "allowCredentials": true, "maxAge": 60 } }]),
            r#"cors = { allow_origins = ["https://*.example.org"], allow_credentials = true, max_age = "60s" }"#,
        ),
    ];
    for (filters, wanted) in cases {
        let mut cluster = plain();
        let matches = json!([{ "path": { "type": "PathPrefix", "value": "/a" } }]);
        cluster.route(
            "r",
            json!([]),
            json!([{ "matches": matches, "filters": filters, "backendRefs": web() }]),
        );
        let translation = cluster.translate();
        assert_eq!(
            parent_conditions(&translation, Kind::HttpRoute, "r"),
            GOOD,
            "{filters}"
        );
        assert!(
            translation.text.lines().any(|line| line == wanted),
            "{wanted}\n{}",
            translation.text
        );
    }
}

#[test]
fn filters_of_the_only_target_are_those_of_the_rule() {
    let field = |name: &str, value: &str| json!({ "name": name, "value": value });
    let request = |set: Value| json!({ "type": "RequestHeaderModifier", "requestHeaderModifier": { "set": [set] } });
    let response = json!({ "type": "ResponseHeaderModifier", "responseHeaderModifier": { "remove": ["Server"] } });
    let with = |filters: Value| json!({ "name": "web", "port": 80, "filters": filters });
    let mut cluster = plain();
    let target = with(json!([request(field("x-a", "2")), response]));
    let filters = json!([request(field("X-A", "1"))]);
    cluster.route(
        "r",
        json!([]),
        json!([{ "filters": filters, "backendRefs": [target] }]),
    );
    let translation = cluster.translate();
    for wanted in [
        r#"request_fields = { set = { "x-a" = "2" } }"#,
        r#"response_fields = { remove = ["Server"] }"#,
    ] {
        assert!(
            translation.text.lines().any(|line| line == wanted),
            "{}",
            translation.text
        );
    }
    assert_eq!(parent_conditions(&translation, Kind::HttpRoute, "r"), GOOD);
    for bad in [
        json!([with(
            json!([{ "type": "RequestRedirect", "requestRedirect": {} }])
        )]),
        json!([with(json!([{ "type": "ExtensionRef" }]))]),
    ] {
        cluster.route("r", json!([]), json!([{ "backendRefs": bad }]));
        assert_eq!(
            parent_conditions(&cluster.translate(), Kind::HttpRoute, "r")[0],
            "Accepted=False/UnsupportedValue"
        );
    }
}

#[test]
fn redirects_have_the_port_of_their_scheme_or_listener() {
    for (redirect, port, wanted) in [
        (
            json!({ "scheme": "https" }),
            8080,
            "302 https://{host}{path}{query}",
        ),
        (
            json!({ "scheme": "https", "port": 8443, "statusCode": 301 }),
            80,
            "301 https://{host}:8443{path}{query}",
        ),
        (
            json!({ "hostname": "a.example" }),
            80,
            "302 http://a.example{path}{query}",
        ),
        (
            json!({ "hostname": "a.example" }),
            8080,
            "302 http://a.example:8080{path}{query}",
        ),
        (
            json!({ "path": { "type": "ReplaceFullPath", "replaceFullPath": "/x" }, "statusCode": 308 }),
            80,
            "308 http://{host}/x{query}",
        ),
        (
            json!({ "path": { "type": "ReplacePrefixMatch", "replacePrefixMatch": "/x" } }),
            80,
            "302 http://{host}{path}{query}",
        ),
    ] {
        let mut cluster = Cluster::new();
        cluster.gateway(
            "g",
            json!([{ "name": "http", "port": port, "protocol": "HTTP" }]),
        );
        let matches = json!([{ "path": { "type": "PathPrefix", "value": "/a" } }]);
        let filters = json!([{ "type": "RequestRedirect", "requestRedirect": redirect }]);
        cluster.route(
            "r",
            json!([]),
            json!([{ "matches": matches, "filters": filters }]),
        );
        let found = routes(&cluster.translate());
        assert_eq!(
            found,
            [&format!("/a/* => {wanted}"), "=> 404"],
            "{redirect}"
        );
    }
}

#[test]
fn limits_retries_and_bindings_become_keys() {
    let mut cluster = plain();
    let rule = json!({
        "backendRefs": web(),
        "timeouts": { "request": "10s", "backendRequest": "2s500ms" },
        "retry": { "attempts": 30, "codes": [500, 503], "backoff": "1s500ms" },
        "sessionPersistence": { "sessionName": "shop", "absoluteTimeout": "1h", "cookieConfig": { "lifetimeType": "Permanent" } },
    });
    cluster.route("r", json!([]), json!([rule]));
    let translation = cluster.translate();
    for line in [
        r#"response_timeout = "2500ms""#,
        r#"request_timeout = "10000ms""#,
        r#"attempt_timeout = "2500ms""#,
        "retry_same_member = true",
        "retry_budget = 1.0",
        "retries = 10",
        "retry_statuses = [500, 503]",
        r#"retry_backoff = "1500ms""#,
        r#"sticky = { cookie = "shop", max_age = "3600000ms" }"#,
    ] {
        assert!(
            translation.text.lines().any(|of| of == line),
            "{line}\n{}",
            translation.text
        );
    }
}

#[test]
fn sessions_have_a_cookie_or_a_field_and_their_times() {
    let permanent = json!({ "lifetimeType": "Permanent" });
    let session = json!({ "lifetimeType": "Session" });
    for (of, wanted) in [
        (json!({}), "sticky = {  }"),
        (
            json!({ "absoluteTimeout": "1h" }),
            r#"sticky = { max_life = "3600000ms" }"#,
        ),
        (
            json!({ "absoluteTimeout": "1h", "cookieConfig": session }),
            r#"sticky = { max_life = "3600000ms" }"#,
        ),
        (
            json!({ "sessionName": "s", "absoluteTimeout": "1h", "idleTimeout": "10m", "cookieConfig": permanent }),
            r#"sticky = { cookie = "s", max_age = "3600000ms", max_life = "3600000ms", max_idle = "600000ms" }"#,
        ),
        (
            json!({ "type": "Header", "sessionName": "S", "idleTimeout": "10ms" }),
            r#"sticky = { header = "S", max_idle = "1000ms" }"#,
        ),
        (
            json!({ "type": "Header", "absoluteTimeout": "1h" }),
            r#"sticky = { header = "X-Session-"#,
        ),
    ] {
        let mut cluster = plain();
        let rule = json!({ "backendRefs": web(), "sessionPersistence": of });
        cluster.route("r", json!([]), json!([rule]));
        let translation = cluster.translate();
        let mut lines = translation.text.lines();
        assert!(
            lines.any(|line| line.starts_with(wanted)),
            "{of}: {wanted}\n{}",
            translation.text
        );
        assert_eq!(parent_conditions(&translation, Kind::HttpRoute, "r"), GOOD);
    }
    // Groups with different times are different groups.
    let mut cluster = plain();
    let bind = |path: &str, of: Value| json!({ "matches": [{ "path": { "type": "PathPrefix", "value": path } }], "backendRefs": web(), "sessionPersistence": of });
    let rules = json!([
        bind("/a", json!({ "idleTimeout": "1h" })),
        bind("/b", json!({ "absoluteTimeout": "1h" })),
        bind("/c", json!({ "type": "Header" })),
        bind("/d", json!({})),
    ]);
    cluster.route("r", json!([]), rules);
    let translation = cluster.translate();
    let tables = translation.text.lines();
    let groups = tables.filter(|line| line.starts_with("[group.\"kubernetes.shop.web."));
    assert_eq!(groups.count(), 4, "{}", translation.text);
}

#[test]
fn a_limit_of_zero_is_none_and_is_longer_than_the_usual_time_for_a_response() {
    let (hour, day) = ("3600000ms", "86400000ms");
    for (timeouts, wanted) in [
        (
            json!({ "request": "0s", "backendRequest": "0s" }),
            [Some(day), None, None],
        ),
        (
            json!({ "request": "0s", "backendRequest": "1h" }),
            [Some(hour), None, Some(hour)],
        ),
        (
            json!({ "request": "1h", "backendRequest": "0s" }),
            [Some(hour), Some(hour), None],
        ),
        (json!({ "request": "48h" }), [Some(day), Some(day), None]),
        (json!({}), [None; 3]),
    ] {
        let mut cluster = plain();
        let rule = json!({ "backendRefs": web(), "timeouts": timeouts });
        cluster.route("r", json!([]), json!([rule]));
        let translation = cluster.translate();
        let keys = ["response_timeout", "request_timeout", "attempt_timeout"];
        let values = keys.map(|key| {
            let mut lines = translation.text.lines();
            let value = lines.find_map(|line| line.strip_prefix(key)?.strip_prefix(" = "));
            value.map(|value| value.trim_matches('"'))
        });
        assert_eq!(values, wanted, "{timeouts}");
        assert_eq!(parent_conditions(&translation, Kind::HttpRoute, "r"), GOOD);
    }
}

#[test]
fn regular_expressions_and_odd_exact_values_become_conditions() {
    let mut cluster = plain();
    let path = |kind: &str, value: &str| json!({ "path": { "type": kind, "value": value } });
    let value = |kind: &str, value: &str| json!([{ "type": kind, "name": "a", "value": value }]);
    let regex = "RegularExpression";
    cluster.route(
        "r",
        json!([]),
        json!([
            { "matches": [
                path("PathPrefix", "/a/long/prefix"),
                path(regex, "/v[0-9]+/\"x\"\\\\d"),
                path("Exact", "/a/*"),
                { "path": { "type": "PathPrefix", "value": "/b" }, "headers": value(regex, "b|c") },
                { "path": { "type": "PathPrefix", "value": "/c" }, "queryParams": value("Exact", "d*") },
            ], "backendRefs": web() },
        ]),
    );
    let translation = cluster.translate();
    let to = "=> kubernetes.shop.web.80";
    assert_eq!(
        routes(&translation),
        [
            format!("~/a/\\* {to}"),
            format!("~/v[0-9]+/\"x\"\\\\d {to}"),
            format!("/a/long/prefix/* {to}"),
            format!("/b/* {to}"),
            format!("/c/* {to}"),
            "=> 404".into(),
        ]
    );
    assert_eq!(parent_conditions(&translation, Kind::HttpRoute, "r"), GOOD);
    for line in [
        r#"headers = { "a" = { regex = "b|c" } }"#,
        r#"query = { "a" = { regex = "d\\*" } }"#,
    ] {
        assert!(translation.text.lines().any(|of| of == line), "{line}");
    }
}

#[test]
fn a_rule_that_cannot_be_served_harms_only_itself() {
    let good = json!({ "matches": [{ "path": { "type": "PathPrefix", "value": "/good" } }], "backendRefs": web() });
    for bad in [
        json!({ "matches": [{ "path": { "type": "RegularExpression", "value": "/(?=a)" } }] }),
        json!({ "matches": [{ "path": { "type": "RegularExpression", "value": "/a)|(/b" } }] }),
        json!({ "matches": [{ "headers": [{ "type": "RegularExpression", "name": "a", "value": "(" }] }] }),
        json!({ "matches": [{ "queryParams": [{ "type": "RegularExpression", "name": "a", "value": "[" }] }] }),
        json!({ "filters": [{ "type": "ExtensionRef" }], "backendRefs": web() }),
        json!({ "retry": { "backoff": "1h" }, "backendRefs": web() }),
        json!({ "retry": { "backoff": "later" }, "backendRefs": web() }),
        json!({ "timeouts": { "request": "soon" }, "backendRefs": web() }),
        json!({ "sessionPersistence": { "idleTimeout": "never" }, "backendRefs": web() }),
        json!({ "sessionPersistence": { "absoluteTimeout": "10000h" }, "backendRefs": web() }),
        json!({ "sessionPersistence": { "type": "Address" }, "backendRefs": web() }),
        json!({ "sessionPersistence": { "type": "Header", "sessionName": "a b" }, "backendRefs": web() }),
        json!({ "sessionPersistence": { "type": "Header", "sessionName": "Content-Length" }, "backendRefs": web() }),
        // The parser of configurations refuses these.
        json!({ "matches": [{ "path": { "type": "Exact", "value": "/a//b" } }], "backendRefs": web() }),
        json!({ "filters": [{ "type": "RequestHeaderModifier", "requestHeaderModifier": { "remove": ["Connection"] } }], "backendRefs": web() }),
    ] {
        let mut cluster = plain();
        cluster.route("r", json!([]), json!([bad, good]));
        let translation = cluster.translate();
        assert_eq!(
            routes(&translation),
            ["/good/* => kubernetes.shop.web.80", "=> 404"],
            "{bad}"
        );
        let wanted = [GOOD[0], GOOD[1], "PartiallyInvalid=True/UnsupportedValue"];
        assert_eq!(
            parent_conditions(&translation, Kind::HttpRoute, "r"),
            wanted,
            "{bad}"
        );
        cluster.route("r", json!([]), json!([bad]));
        cluster.route("s", json!([]), json!([good]));
        let translation = cluster.translate();
        assert_eq!(
            parent_conditions(&translation, Kind::HttpRoute, "r")[0],
            "Accepted=False/UnsupportedValue"
        );
        assert_eq!(parent_conditions(&translation, Kind::HttpRoute, "s"), GOOD);
        let listener = &status_of(&translation, Kind::Gateway, "g")["listeners"][0];
        assert_eq!(listener["attachedRoutes"], 1, "{bad}");
    }
}

#[test]
fn certificates_of_listeners_are_checked() {
    let mut cluster = Cluster::new();
    let listener = |reference: Value| {
        json!([{ "name": "https", "port": 443, "protocol": "HTTPS", "tls": { "certificateRefs": [reference] } },
               { "name": "http", "port": 80, "protocol": "HTTP" }])
    };
    let conditions = |cluster: &Cluster| {
        let translation = cluster.translate();
        let gateway = status_of(&translation, Kind::Gateway, "g");
        let shown = show(&gateway["listeners"][0]["conditions"]);
        assert_eq!(
            show(&gateway["listeners"][1]["conditions"])[3],
            "Programmed=True/Programmed"
        );
        assert!(!translation.text.contains(":443"));
        shown[2..].to_vec()
    };
    cluster.gateway("g", listener(json!({ "name": "cert" })));
    let invalid = [
        "ResolvedRefs=False/InvalidCertificateRef",
        "Programmed=False/Invalid",
    ];
    assert_eq!(conditions(&cluster), invalid);
    cluster.put(Kind::Secret, json!({ "metadata": { "namespace": "shop", "name": "cert" }, "data": { "tls.crt": "AAAA", "tls.key": "!" } }));
    assert_eq!(conditions(&cluster), invalid);
    cluster.gateway(
        "g",
        listener(json!({ "name": "cert", "kind": "ConfigMap" })),
    );
    assert_eq!(conditions(&cluster), invalid);
    cluster.gateway(
        "g",
        listener(json!({ "name": "cert", "namespace": "other" })),
    );
    assert_eq!(
        conditions(&cluster)[0],
        "ResolvedRefs=False/RefNotPermitted"
    );
}

#[test]
fn a_listener_at_a_port_in_use_is_left_out() {
    let mut cluster = Cluster::new();
    cluster.gateway(
        "g",
        json!([{ "name": "a", "port": 80, "protocol": "HTTP" }, { "name": "b", "port": 81, "protocol": "HTTP" }]),
    );
    let owner = Owner::Listener(ObjectName::new("shop", "g"), "a".into());
    let refused: Refused = BTreeMap::from([(owner, "address in use".into())]);
    let translation = translate(&cluster.0, &settings(), &refused);
    assert!(!translation.text.contains(":80\"") && translation.text.contains(":81\""));
    let gateway = status_of(&translation, Kind::Gateway, "g");
    assert_eq!(
        show(&gateway["listeners"][0]["conditions"])[0],
        "Accepted=False/PortUnavailable"
    );
}

#[test]
fn settings_that_would_be_ignored_at_a_risk_are_refused() {
    let mut cluster = Cluster::new();
    let validation = json!({ "caCertificateRefs": [] });
    cluster.gateway("g", json!([{ "name": "a", "port": 443, "protocol": "HTTPS", "tls": { "frontendValidation": validation } }]));
    let translation = cluster.translate();
    let gateway = status_of(&translation, Kind::Gateway, "g");
    assert_eq!(
        show(&gateway["listeners"][0]["conditions"])[0],
        "Accepted=False/UnsupportedValue"
    );
    cluster.put(
        Kind::Gateway,
        json!({ "metadata": { "namespace": "shop", "name": "g" },
                "spec": { "gatewayClassName": "evenkeel", "addresses": [{ "value": "192.0.2.1" }],
                          "listeners": [{ "name": "a", "port": 80, "protocol": "HTTP" }] } }),
    );
    let translation = cluster.translate();
    let gateway = status_of(&translation, Kind::Gateway, "g");
    assert_eq!(
        show(&gateway["conditions"]),
        [
            "Accepted=True/Accepted",
            "Programmed=False/AddressNotUsable",
            "ResolvedRefs=True/ResolvedRefs"
        ]
    );
    assert_eq!(translation.text, "");
}

#[test]
fn connections_go_by_port_and_by_server_name() {
    let mut cluster = Cluster::new();
    cluster.gateway(
        "g",
        json!([{ "name": "tcp", "port": 5432, "protocol": "TCP" },
               { "name": "tls", "port": 8443, "protocol": "TLS", "tls": { "mode": "Passthrough" } }]),
    );
    let rules = json!([{ "backendRefs": web() }]);
    cluster.route_at(
        Kind::TcpRoute,
        "t",
        json!([{ "name": "g" }]),
        json!([]),
        rules.clone(),
    );
    cluster.route_at(
        Kind::TlsRoute,
        "s",
        json!([{ "name": "g" }]),
        json!(["db.example.org"]),
        rules,
    );
    let translation = cluster.translate();
    let config = evenkeel_config::parse_generated(&translation.text).unwrap();
    let rules: Vec<_> = config
        .rules
        .iter()
        .map(|rule| (rule.group.as_str(), rule.sni.clone()))
        .collect();
    let names = BTreeMap::from([(
        "db.example.org".to_owned(),
        "kubernetes.shop.web.80".to_owned(),
    )]);
    assert_eq!(
        rules,
        [
            ("kubernetes.shop.web.80", BTreeMap::new()),
            // Clients with other names are refused.
            ("kubernetes.nobody", names)
        ]
    );
    for (kind, name) in [(Kind::TcpRoute, "t"), (Kind::TlsRoute, "s")] {
        assert_eq!(parent_conditions(&translation, kind, name), GOOD);
    }
}

#[test]
fn objects_that_are_none_are_refused_and_the_former_ones_stay() {
    let mut cluster = plain();
    let before = cluster.0.gateways.clone();
    for bad in [
        json!({ "metadata": { "namespace": "shop", "name": "g" }, "spec": { "listeners": [{ "port": 70_000 }] } }),
        json!({ "metadata": { "namespace": "shop", "name": "g" }, "spec": { "listeners": "x" } }),
        json!({ "metadata": { "namespace": "shop", "name": "g" }, "spec": { "listeners": vec![json!({}); 2_000] } }),
    ] {
        assert!(cluster.0.put(Kind::Gateway, bad).is_err());
    }
    assert_eq!(cluster.0.gateways, before);
    for absent in [
        json!({}),
        json!({ "spec": null, "status": null }),
        json!({ "metadata": { "labels": null }, "spec": { "listeners": null } }),
    ] {
        for kind in Kind::ALL {
            cluster.0.put(kind, absent.clone()).unwrap();
        }
    }
    cluster.translate();
    assert!(cluster.0.remove(Kind::Gateway, &ObjectName::default()));
    assert_eq!(cluster.0.names(Kind::Gateway).len(), 1);
}

/// Returns the first address in the status of a gateway, or the reason of its condition `Programmed`.
fn address_of(translation: &Translation, name: &str) -> String {
    let object = ObjectName::new("shop", name);
    let status = { translation.statuses.iter() }
        .find(|of| of.kind == Kind::Gateway && of.object == object)
        .map(|of| of.read_status())
        .unwrap();
    let address = status.pointer("/addresses/0/value").and_then(Value::as_str);
    let reason = status
        .pointer("/conditions/1/reason")
        .and_then(Value::as_str);
    address.or(reason).unwrap().to_owned()
}

#[test]
fn a_gateway_that_asks_for_addresses_of_others_takes_none_of_the_pool() {
    let pool = Settings {
        pool: vec![[192, 0, 2, 1].into()],
        ..settings()
    };
    let listeners = json!([{ "name": "http", "port": 80, "protocol": "HTTP" }]);
    for foreign in [
        json!({ "value": "203.0.113.9" }),
        json!({ "type": "example.org/other", "value": "192.0.2.1" }),
    ] {
        let mut cluster = Cluster::new();
        let own = json!({ "value": "192.0.2.1" });
        cluster.put(
            Kind::Gateway,
            json!({ "metadata": { "namespace": "shop", "name": "a", "creationTimestamp": "2025-01-01T00:00:00Z" },
                    "spec": { "gatewayClassName": "evenkeel", "listeners": listeners, "addresses": [own, foreign] },
                    "status": { "addresses": [own] } }),
        );
        cluster.gateway("b", listeners.clone());
        let translation = translate(&cluster.0, &pool, &Refused::new());
        assert_eq!(address_of(&translation, "a"), "AddressNotUsable");
        assert_eq!(address_of(&translation, "b"), "192.0.2.1");
    }
}

#[test]
fn each_gateway_has_an_address_of_the_pool() {
    let mut cluster = Cluster::new();
    let pool = Settings {
        pool: (1..=3).map(|last| [192, 0, 2, last].into()).collect(),
        ..settings()
    };
    let listeners = json!([{ "name": "http", "port": 80, "protocol": "HTTP" }]);
    let put = |cluster: &mut Cluster, name: &str, wish: Value, current: Value| {
        let addresses = |of: Value| match of {
            Value::Null => json!([]),
            value => json!([{ "value": value }]),
        };
        cluster.put(
            Kind::Gateway,
            json!({ "metadata": { "namespace": "shop", "name": name, "creationTimestamp": "2026-01-01T00:00:00Z" },
                    "spec": { "gatewayClassName": "evenkeel", "listeners": listeners, "addresses": addresses(wish) },
                    "status": { "addresses": addresses(current) } }),
        );
    };
    put(&mut cluster, "b", Value::Null, json!("192.0.2.1"));
    put(&mut cluster, "c", json!("192.0.2.2"), Value::Null);
    // A gateway in front of the others in all orders moves nobody.
    put(&mut cluster, "a", Value::Null, Value::Null);
    cluster.route_at(
        Kind::HttpRoute,
        "r",
        json!([{ "name": "b" }]),
        json!([]),
        json!([{ "backendRefs": web() }]),
    );
    let translation = translate(&cluster.0, &pool, &Refused::new());
    let all = ["a", "b", "c"].map(|name| address_of(&translation, name));
    assert_eq!(all, ["192.0.2.3", "192.0.2.1", "192.0.2.2"]);
    let rules: Vec<&str> = translation.rules.keys().map(String::as_str).collect();
    let wanted = ["a", "b", "c"].map(|name| format!("kubernetes.shop.{name}.80"));
    assert_eq!(rules, wanted);
    assert!(
        translation.text.contains("listen = [\"192.0.2.1:80\"]"),
        "{}",
        translation.text
    );
    // Without a free address a gateway is not in effect, and says so.
    put(&mut cluster, "d", Value::Null, Value::Null);
    put(&mut cluster, "e", json!("192.0.2.2"), Value::Null);
    put(&mut cluster, "f", json!("203.0.113.7"), Value::Null);
    // To ask for another gateway's address takes the address from nobody.
    put(&mut cluster, "0", json!("192.0.2.1"), Value::Null);
    let translation = translate(&cluster.0, &pool, &Refused::new());
    assert_eq!(address_of(&translation, "b"), "192.0.2.1");
    assert_eq!(translation.rules.len(), 3);
    let others = ["d", "e", "f", "0"].map(|name| address_of(&translation, name));
    let wanted = [
        "AddressNotAssigned",
        "AddressNotUsable",
        "AddressNotUsable",
        "AddressNotUsable",
    ];
    assert_eq!(others, wanted);
}
