//! Filters of targets, and several mirrors.

use serde_json::{Value, json};

use super::super::objects::Kind;
use super::{Cluster, GOOD, parent_conditions, plain};

fn set_field(kind: &str, value: &str) -> Value {
    let key = format!("{}{}", kind[..1].to_ascii_lowercase(), &kind[1..]);
    json!({ "type": kind, key: { "set": [{ "name": "x-a", "value": value }] } })
}

fn mirror(service: &str, percent: u32) -> Value {
    let to = json!({ "backendRef": { "name": service, "port": 80 }, "percent": percent });
    json!({ "type": "RequestMirror", "requestMirror": to })
}

fn rewrite(to: Value) -> Value {
    json!({ "type": "URLRewrite", "urlRewrite": to })
}

fn target(service: &str, weight: u32, filters: Value) -> Value {
    json!({ "name": service, "port": 80, "weight": weight, "filters": filters })
}

/// Returns the gateway with a route of this kind that has one rule.
fn with_rule(kind: Kind, rule: Value) -> Cluster {
    let mut cluster = plain();
    cluster.route_at(
        kind,
        "r",
        json!([{ "name": "g" }]),
        json!([]),
        json!([rule]),
    );
    cluster
}

/// Asserts that the configuration has lines.
fn assert_lines(cluster: &Cluster, kind: Kind, lines: &[&str]) {
    let translation = cluster.translate();
    assert_eq!(parent_conditions(&translation, kind, "r"), GOOD);
    for line in lines {
        let is_there = translation.text.lines().any(|known| known == *line);
        assert!(is_there, "{line}\n{}", translation.text);
    }
}

const REQUEST: &str = "RequestHeaderModifier";
const RESPONSE: &str = "ResponseHeaderModifier";

#[test]
fn filters_of_several_targets_are_actions_of_their_groups() {
    let path = json!({ "type": "ReplacePrefixMatch", "replacePrefixMatch": "/v2" });
    let first = target(
        "web",
        9,
        json!([
            set_field(REQUEST, "1{host}"),
            set_field(RESPONSE, "2"),
            rewrite(json!({ "hostname": "in.example", "path": path })),
            mirror("canary", 50),
            mirror("canary", 10),
        ]),
    );
    let rule = json!({
        "filters": [set_field(REQUEST, "0"), mirror("canary", 1)],
        "backendRefs": [first, target("canary", 1, json!([]))],
    });
    let cluster = with_rule(Kind::HttpRoute, rule);
    let copies = r#"mirror = [{ group = "kubernetes.shop.canary.80", percent = 50.0 }, { group = "kubernetes.shop.canary.80", percent = 10.0 }]"#;
    let groups = format!(
        "groups = {{ \"kubernetes.shop.canary.80\" = 1, \"kubernetes.shop.web.80\" = {{ weight = 9, \
         request_fields = {{ set = {{ \"Host\" = \"in.example\", \"x-a\" = \"1{{{{host}}\" }} }}, \
         response_fields = {{ set = {{ \"x-a\" = \"2\" }} }}, rewrite_prefix = \"/v2\", {copies} }} }}"
    );
    let lines = [
        groups.as_str(),
        r#"request_fields = { set = { "x-a" = "0" } }"#,
        r#"mirror = { group = "kubernetes.shop.canary.80", percent = 1.0 }"#,
        // The prefix of all paths is rewritten.
        r#"path = ["/*"]"#,
    ];
    assert_lines(&cluster, Kind::HttpRoute, &lines);

    let calls = json!({ "backendRefs": [
        target("web", 1, json!([set_field(REQUEST, "1")])),
        target("canary", 1, json!([set_field(REQUEST, "2")])),
    ]});
    let groups = r#"groups = { "kubernetes.shop.canary.80.h2" = { weight = 1, request_fields = { set = { "x-a" = "2" } } }, "kubernetes.shop.web.80.h2" = { weight = 1, request_fields = { set = { "x-a" = "1" } } } }"#;
    let cluster = with_rule(Kind::GrpcRoute, calls);
    assert_lines(&cluster, Kind::GrpcRoute, &[groups]);
}

#[test]
fn a_target_that_cannot_be_used_leaves_the_actions_of_others() {
    let filters = json!([set_field(REQUEST, "1")]);
    let rule =
        json!({ "backendRefs": [target("web", 1, filters.clone()), target("gone", 1, filters)] });
    let translation = with_rule(Kind::HttpRoute, rule).translate();
    let found = parent_conditions(&translation, Kind::HttpRoute, "r");
    assert_eq!(found, [GOOD[0], "ResolvedRefs=False/BackendNotFound"]);
    let groups = r#"groups = { "kubernetes.nobody" = 1, "kubernetes.shop.web.80" = { weight = 1, request_fields = { set = { "x-a" = "1" } } } }"#;
    assert!(translation.text.contains(groups), "{}", translation.text);
    // The target of a mirror is missing.
    let rule = json!({ "backendRefs": [target("web", 1, json!([mirror("gone", 1)])), target("canary", 1, json!([]))] });
    let translation = with_rule(Kind::HttpRoute, rule).translate();
    let found = parent_conditions(&translation, Kind::HttpRoute, "r");
    assert_eq!(found, [GOOD[0], "ResolvedRefs=False/BackendNotFound"]);
}

#[test]
fn a_rule_has_several_mirrors_with_those_of_its_only_target() {
    let full = json!({ "type": "ReplaceFullPath", "replaceFullPath": "/one" });
    let filters = json!([
        rewrite(json!({ "hostname": "in.example", "path": full })),
        mirror("canary", 2),
    ]);
    let path = json!({ "type": "ReplacePrefixMatch", "replacePrefixMatch": "/v2" });
    let rule = json!({
        "filters": [rewrite(json!({ "path": path })), mirror("canary", 1)],
        "backendRefs": [target("web", 1, filters)],
    });
    let cluster = with_rule(Kind::HttpRoute, rule);
    let lines = [
        r#"mirror = [{ group = "kubernetes.shop.canary.80", percent = 1.0 }, { group = "kubernetes.shop.canary.80", percent = 2.0 }]"#,
        r#"rewrite_path = "/one""#,
        r#"request_fields = { set = { "Host" = "in.example" } }"#,
    ];
    assert_lines(&cluster, Kind::HttpRoute, &lines);
    let text = cluster.translate().text;
    assert!(!text.contains("rewrite_prefix"), "{text}");
}

#[test]
fn unsupported_filters_of_targets_leave_the_rule_out() {
    let redirect = json!({ "type": "RequestRedirect", "requestRedirect": {} });
    let path = json!({ "type": "ReplacePrefixMatch", "replacePrefixMatch": "/v2" });
    let nine = vec![mirror("canary", 1); 9];
    let exact = json!([{ "path": { "type": "Exact", "value": "/a" } }]);
    for rule in [
        json!({ "backendRefs": [target("web", 1, json!([redirect])), target("canary", 1, json!([]))] }),
        json!({ "backendRefs": [target("web", 1, json!([{ "type": "CORS" }])), target("canary", 1, json!([]))] }),
        json!({ "matches": exact, "backendRefs": [
            target("web", 1, json!([rewrite(json!({ "path": path }))])),
            target("canary", 1, json!([])),
        ]}),
        json!({ "filters": nine, "backendRefs": [target("web", 1, json!([]))] }),
        json!({ "backendRefs": [target("web", 1, json!(nine)), target("canary", 1, json!([]))] }),
    ] {
        let translation = with_rule(Kind::HttpRoute, rule.clone()).translate();
        let found = parent_conditions(&translation, Kind::HttpRoute, "r");
        assert_eq!(found[0], "Accepted=False/UnsupportedValue", "{rule}");
    }
    // The same filters for a service that is named twice.
    let twice = target("web", 1, json!([set_field(REQUEST, "1")]));
    let cluster = with_rule(Kind::HttpRoute, json!({ "backendRefs": [twice, twice] }));
    let groups = r#"groups = { "kubernetes.shop.web.80" = { weight = 2, request_fields = { set = { "x-a" = "1" } } } }"#;
    assert_lines(&cluster, Kind::HttpRoute, &[groups]);
}

#[test]
fn a_service_that_is_named_with_other_filters_has_a_group_for_each() {
    let by_cookie = json!({ "sessionName": "s" });
    let several = json!({ "sessionPersistence": by_cookie, "backendRefs": [
        target("web", 3, json!([set_field(REQUEST, "1")])),
        target("web", 2, json!([])),
        target("web", 4, json!([set_field(REQUEST, "1")])),
        target("gone", 5, json!([])),
    ]});
    let translation = with_rule(Kind::HttpRoute, several).translate();
    let found = parent_conditions(&translation, Kind::HttpRoute, "r");
    assert_eq!(found, [GOOD[0], "ResolvedRefs=False/BackendNotFound"]);
    let config = evenkeel_config::parse_generated(&translation.text).unwrap();
    let route = &config.rules[0].routes.list()[0];
    let mut weights: Vec<_> = { route.groups.list_weights() }
        .into_iter()
        .map(|(_, weight)| weight)
        .collect();
    weights.sort_unstable();
    assert_eq!(weights, [2, 5, 7], "{}", translation.text);
    let members = config.groups.iter().flat_map(|group| &group.services);
    let members: Vec<_> = members.filter_map(|of| of.kubernetes.as_deref()).collect();
    assert_eq!(members, ["shop/web:80", "shop/web:80"]);
    // Both groups bind their clients.
    let cookies = { translation.text.lines() }.filter(|line| line.starts_with("sticky"));
    let mut cookies: Vec<_> = cookies.collect();
    cookies.dedup();
    assert_eq!(cookies.len(), 2, "{cookies:?}");
}
