//! Tests of objects that the configuration refuses: each harms only itself, however many there are.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

/// Rules of HTTPRoute that are refused, each for another reason.
pub(super) fn bad_rules() -> Vec<Value> {
    let path = |kind: &str, value: &str| json!({ "matches": [{ "path": { "type": kind, "value": value } }], "backendRefs": web() });
    let request = |changes: Value| json!({ "type": "RequestHeaderModifier", "requestHeaderModifier": changes });
    let filter = |filter: Value| json!({ "filters": [filter], "backendRefs": web() });
    let redirect = |redirect: Value| json!({ "filters": [{ "type": "RequestRedirect", "requestRedirect": redirect }] });
    let bind = |of: Value| json!({ "sessionPersistence": of, "backendRefs": web() });
    vec![
        path("RegularExpression", "/("),
        path("Exact", "/a//b"),
        path("PathPrefix", "/a/../b"),
        path("PathPrefix", "no slash"),
        path("Exact", "/\u{7f}"),
        json!({ "matches": [{ "method": "G T" }], "backendRefs": web() }),
        json!({ "matches": [{ "headers": [{ "name": "a b", "value": "c" }] }], "backendRefs": web() }),
        json!({ "matches": [{ "headers": [{ "name": "Host", "value": "c" }] }], "backendRefs": web() }),
        json!({ "matches": [{ "queryParams": [{ "name": "", "value": "c" }] }], "backendRefs": web() }),
        filter(request(json!({ "remove": ["Connection"] }))),
        filter(request(json!({ "set": [{ "name": "a b", "value": "c" }] }))),
        filter(request(
            json!({ "add": [{ "name": "a", "value": "b\r\nc: d" }] }),
        )),
        filter(
            json!({ "type": "ResponseHeaderModifier", "responseHeaderModifier": { "remove": ["Content-Length"] } }),
        ),
        filter(json!({ "type": "CORS", "cors": { "allowOrigins": ["no origin"] } })),
        filter(json!({ "type": "URLRewrite", "urlRewrite": { "hostname": "a b" } })),
        filter(
            json!({ "type": "URLRewrite", "urlRewrite": { "path": { "type": "ReplacePrefixMatch", "replacePrefixMatch": "?" } } }),
        ),
        filter(
            json!({ "type": "URLRewrite", "urlRewrite": { "path": { "type": "ReplaceFullPath", "replaceFullPath": "/a?b" } } }),
        ),
        redirect(json!({ "statusCode": 200 })),
        redirect(json!({ "hostname": "a b" })),
        json!({ "retry": { "codes": [1000] }, "backendRefs": web() }),
        json!({ "timeouts": { "request": "soon" }, "backendRefs": web() }),
        bind(json!({ "sessionName": "a b" })),
        bind(
            json!({ "absoluteTimeout": "9999h59m", "cookieConfig": { "lifetimeType": "Permanent" } }),
        ),
    ]
}

/// Rule that is served below a path.
fn good_rule(path: &str) -> Value {
    json!({ "matches": [{ "path": { "type": "PathPrefix", "value": path } }], "backendRefs": web() })
}

fn is_accepted(translation: &Translation, kind: Kind, name: &str) -> bool {
    parent_conditions(translation, kind, name)[0] == GOOD[0]
}

/// Adds a route `shop/NAME` that was created in a second of the year.
fn put_at(cluster: &mut Cluster, second: usize, name: &str, hosts: Value, rules: Value) {
    let created = format!("2026-02-01T00:{:02}:{:02}Z", second / 60, second % 60);
    cluster.put(
        Kind::HttpRoute,
        json!({ "metadata": { "namespace": "shop", "name": name, "creationTimestamp": created },
                "spec": { "parentRefs": [{ "name": "g" }], "hostnames": hosts, "rules": rules } }),
    );
}

#[test]
fn each_kind_of_refusal_harms_only_its_rule() {
    for bad in bad_rules() {
        let mut cluster = plain();
        put_at(&mut cluster, 0, "bad", json!(["a.example"]), json!([bad]));
        let good = json!([good_rule("/good")]);
        put_at(&mut cluster, 1, "good", json!(["a.example"]), good);
        let translation = cluster.translate();
        assert!(!is_accepted(&translation, Kind::HttpRoute, "bad"), "{bad}");
        assert_eq!(
            parent_conditions(&translation, Kind::HttpRoute, "good"),
            GOOD,
            "{bad}"
        );
        let found = routes(&translation);
        assert_eq!(
            found[0], "a.example /good/* => kubernetes.shop.web.80",
            "{bad}"
        );
    }
}

#[test]
fn hostnames_that_are_none_harm_only_their_objects() {
    let mut cluster = Cluster::new();
    cluster.gateway(
        "g",
        json!([{ "name": "http", "port": 80, "protocol": "HTTP" },
               { "name": "bad", "port": 80, "protocol": "HTTP", "hostname": "*.b..example" },
               { "name": "other", "port": 80, "protocol": "HTTP", "hostname": "b.example" },
               { "name": "tls", "port": 443, "protocol": "TLS", "tls": { "mode": "Passthrough" } }]),
    );
    for (name, host) in [("bad", "a b"), ("good", "a.example")] {
        let rules = json!([{ "backendRefs": web() }]);
        cluster.route(name, json!([host]), rules.clone());
        let parents = json!([{ "name": "g" }]);
        cluster.route_at(Kind::TlsRoute, name, parents, json!([host]), rules);
    }
    let translation = cluster.translate();
    for kind in [Kind::HttpRoute, Kind::TlsRoute] {
        assert!(!is_accepted(&translation, kind, "bad"));
        assert_eq!(parent_conditions(&translation, kind, "good"), GOOD);
    }
    let gateway = status_of(&translation, Kind::Gateway, "g");
    let accepted = |number: usize| show(&gateway["listeners"][number]["conditions"])[0].clone();
    assert_eq!(accepted(1), "Accepted=False/UnsupportedValue");
    for number in [0, 2, 3] {
        assert_eq!(accepted(number), GOOD[0], "{number}");
    }
}

#[test]
fn a_session_name_is_of_the_oldest_route_of_a_host() {
    let bound = |service: &str| {
        json!([{ "backendRefs": [{ "name": service, "port": 80 }], "sessionPersistence": { "sessionName": "s" },
                 "matches": [{ "path": { "type": "PathPrefix", "value": format!("/{service}") } }] }])
    };
    let mut cluster = plain();
    let bad = json!([{ "backendRefs": [{ "name": "canary", "port": 80 }], "sessionPersistence": { "sessionName": "s" },
                       "retry": { "codes": [1000] } }]);
    put_at(&mut cluster, 0, "bad", json!(["a.example"]), bad);
    put_at(
        &mut cluster,
        1,
        "old",
        json!(["a.example"]),
        bound("canary"),
    );
    put_at(&mut cluster, 2, "new", json!(["a.example"]), bound("web"));
    put_at(&mut cluster, 3, "other", json!(["b.example"]), bound("web"));
    let translation = cluster.translate();
    let accepted = |name: &str| is_accepted(&translation, Kind::HttpRoute, name);
    assert!(!accepted("bad") && accepted("old") && !accepted("new") && accepted("other"));
    let conditions = &status_of(&translation, Kind::HttpRoute, "new")["parents"][0]["conditions"];
    let message = conditions[0]["message"].as_str().unwrap();
    assert!(message.contains("choose another sessionName"), "{message}");
    // Several targets of one rule have a cookie each.
    let mut cluster = plain();
    let rule = json!({ "backendRefs": [{ "name": "web", "port": 80 }, { "name": "canary", "port": 80, "weight": 9 }],
                       "sessionPersistence": { "sessionName": "s" } });
    cluster.route("r", json!([]), json!([rule]));
    let translation = cluster.translate();
    assert_eq!(parent_conditions(&translation, Kind::HttpRoute, "r"), GOOD);
    for cookie in ["s-web-80", "s-canary-80"] {
        assert!(translation.text.contains(cookie), "{}", translation.text);
    }
}

#[test]
fn thousands_of_bad_routes_take_a_few_rounds() {
    let mut cluster = plain();
    let kinds = bad_rules();
    let bound = json!({ "sessionPersistence": { "sessionName": "s" }, "retry": { "codes": [1000] }, "backendRefs": web() });
    for number in 0..3_000 {
        let bad = match number % 4 {
            // Rules with the same conditions, of which the older ones hide the newer ones.
            0 => bound.clone(),
            _ => kinds[number % kinds.len()].clone(),
        };
        let host = json!(["a.example"]);
        put_at(
            &mut cluster,
            number,
            &format!("bad-{number}"),
            host,
            json!([bad]),
        );
    }
    let good = json!([good_rule("/good")]);
    put_at(&mut cluster, 3_500, "good", json!(["a.example"]), good);
    let translation = cluster.translate();
    assert!(translation.config.is_ok());
    assert!(translation.rounds <= 3, "{} rounds", translation.rounds);
    assert_eq!(
        parent_conditions(&translation, Kind::HttpRoute, "good"),
        GOOD
    );
    let accepted = translation.statuses.iter().filter(|of| {
        of.kind == Kind::HttpRoute
            && of.read_status()["parents"][0]["conditions"][0]["status"] == "True"
    });
    assert_eq!(accepted.count(), 1);
}

#[test]
fn names_cover_any_number_of_labels() {
    let mut cluster = Cluster::new();
    cluster.gateway(
        "g",
        json!([{ "name": "http", "port": 80, "protocol": "HTTP", "hostname": "*.example" },
               { "name": "tls", "port": 443, "protocol": "TLS", "tls": { "mode": "Passthrough" } }]),
    );
    let rules = json!([{ "backendRefs": web() }]);
    let hosts = json!(["*.example"]);
    let parents = json!([{ "name": "g" }]);
    cluster.route("r", hosts.clone(), rules.clone());
    cluster.route_at(Kind::TlsRoute, "t", parents, hosts, rules);
    let translation = cluster.translate();
    let found = routes(&translation);
    assert_eq!(found, ["**.example => kubernetes.shop.web.80"]);
    let line = r#""**.example" = "kubernetes.shop.web.80""#;
    assert!(translation.text.contains(line), "{}", translation.text);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn good_objects_are_served_beside_any_bad_ones(
        objects in proptest::collection::vec((0..60_usize, 0..3_usize, any::<bool>()), 1..40),
    ) {
        let mut cluster = plain();
        let kinds = bad_rules();
        for (number, (kind, host, is_bound)) in objects.iter().enumerate() {
            let bad = kinds.get(*kind).cloned();
            let mut rule = bad.unwrap_or_else(|| good_rule(&format!("/{number}")));
            if *is_bound && *kind >= kinds.len() {
                rule["sessionPersistence"] = json!({ "sessionName": format!("s{number}") });
            }
            let host = ["a.example", "*.example", "b.example"][*host];
            let hosts = json!([host]);
            put_at(&mut cluster, number, &format!("r{number}"), hosts, json!([rule]));
        }
        let translation = cluster.translate();
        prop_assert!(translation.config.is_ok() && translation.rounds <= 3);
        let found = routes(&translation);
        for (number, (kind, ..)) in objects.iter().enumerate() {
            let is_good = *kind >= kinds.len();
            let name = format!("r{number}");
            prop_assert_eq!(is_accepted(&translation, Kind::HttpRoute, &name), is_good);
            let path = format!(" /{number}/* ");
            prop_assert_eq!(found.iter().any(|line| line.contains(&path)), is_good);
        }
    }
}
