//! GRPCRoutes, and services with HTTP/2.

use evenkeel_config::MemberProtocol;
use serde_json::{Value, json};

use super::super::objects::Kind;
use super::super::translate::Translation;
use super::{Cluster, GOOD, parent_conditions, plain, routes, web};

fn route(cluster: &mut Cluster, name: &str, hosts: Value, rules: Value) {
    let parents = json!([{ "name": "g" }]);
    cluster.route_at(Kind::GrpcRoute, name, parents, hosts, rules);
}

/// Returns the names of all groups, with the protocols of their members.
fn protocols(translation: &Translation) -> Vec<(String, Option<MemberProtocol>)> {
    let config = evenkeel_config::parse_generated(&translation.text).unwrap();
    let groups = config.groups.iter();
    groups
        .map(|group| (group.name.clone(), group.member_protocol))
        .collect()
}

const H2: Option<MemberProtocol> = Some(MemberProtocol::Http2);

#[test]
fn calls_go_by_service_and_method_to_members_with_http2() {
    let mut cluster = plain();
    let rule = |method: Value| json!({ "matches": [{ "method": method }], "backendRefs": web() });
    route(
        &mut cluster,
        "r",
        json!(["grpc.example"]),
        json!([
            { "backendRefs": web() },
            rule(json!({ "service": "a.B" })),
            rule(json!({ "service": "a.B", "method": "C" })),
            rule(json!({ "method": "C" })),
            rule(json!({ "service": "a[.]B", "method": "Get.*", "type": "RegularExpression" })),
            { "matches": [{ "method": { "service": "d.E" }, "headers": [{ "name": "version", "value": "1" }] }],
              "backendRefs": web() },
        ]),
    );
    let translation = cluster.translate();
    let to = "=> kubernetes.shop.web.80.h2";
    assert_eq!(
        routes(&translation),
        [
            format!("grpc.example /a.B/C {to}"),
            format!("grpc.example ~/(?:a[.]B)/(?:Get.*) {to}"),
            format!("grpc.example ~/[^/]+/C {to}"),
            format!("grpc.example /d.E/* {to}"),
            format!("grpc.example /a.B/* {to}"),
            format!("grpc.example {to}"),
            "=> 404".into(),
        ]
    );
    assert_eq!(parent_conditions(&translation, Kind::GrpcRoute, "r"), GOOD);
    assert_eq!(
        protocols(&translation),
        [("kubernetes.shop.web.80.h2".into(), H2)]
    );
}

#[test]
fn a_service_has_a_group_for_each_protocol() {
    let mut cluster = plain();
    route(
        &mut cluster,
        "calls",
        json!(["grpc.example"]),
        json!([{ "backendRefs": web() }]),
    );
    cluster.route(
        "requests",
        json!(["www.example"]),
        json!([{ "backendRefs": web() },
               { "matches": [{ "path": { "value": "/h2" } }], "backendRefs": [{ "name": "web", "port": 82 }] }]),
    );
    let translation = cluster.translate();
    let mut found = protocols(&translation);
    found.sort_by(|a, b| a.0.cmp(&b.0));
    assert_eq!(
        found,
        [
            ("kubernetes.shop.web.80".into(), None),
            ("kubernetes.shop.web.80.h2".into(), H2),
            ("kubernetes.shop.web.82.h2".into(), H2),
        ]
    );
}

#[test]
fn calls_that_cannot_be_served_fail_with_a_reason() {
    for (rule, part, reason) in [
        (
            json!({ "matches": [{ "method": { "service": "a)(b", "type": "RegularExpression" } }], "backendRefs": web() }),
            0,
            "Accepted=False/UnsupportedValue",
        ),
        (
            json!({ "backendRefs": [{ "name": "none", "port": 80 }] }),
            1,
            "ResolvedRefs=False/BackendNotFound",
        ),
        (
            json!({ "backendRefs": [{ "name": "web", "port": 81 }] }),
            1,
            "ResolvedRefs=False/UnsupportedProtocol",
        ),
    ] {
        let mut cluster = plain();
        route(&mut cluster, "r", json!([]), json!([rule]));
        let translation = cluster.translate();
        let found = parent_conditions(&translation, Kind::GrpcRoute, "r");
        assert_eq!(found[part], reason);
        if part == 1 {
            // A call gets UNAVAILABLE.
            assert_eq!(routes(&translation), ["=> 503"]);
        }
    }
}

#[test]
fn listeners_may_take_calls_alone() {
    let mut cluster = Cluster::new();
    let kinds = json!({ "kinds": [{ "kind": "GRPCRoute" }] });
    cluster.gateway(
        "g",
        json!([{ "name": "grpc", "port": 80, "protocol": "HTTP", "allowedRoutes": kinds }]),
    );
    route(
        &mut cluster,
        "calls",
        json!([]),
        json!([{ "backendRefs": web() }]),
    );
    cluster.route("requests", json!([]), json!([{ "backendRefs": web() }]));
    let translation = cluster.translate();
    assert_eq!(
        parent_conditions(&translation, Kind::GrpcRoute, "calls"),
        GOOD
    );
    assert_eq!(
        parent_conditions(&translation, Kind::HttpRoute, "requests")[0],
        "Accepted=False/NotAllowedByListeners"
    );
}
