//! Ingresses, and annotations of ingress-nginx.

use base64::Engine as _;
use serde_json::{Value, json};

use super::super::objects::{Kind, ObjectName};
use super::super::settings::{IngressSettings, Settings};
use super::super::translate::settle::translate;
use super::super::translate::{Refused, Translation};
use super::Cluster;

const PREFIX: &str = "nginx.ingress.kubernetes.io/";

pub(super) fn settings() -> Settings {
    Settings {
        ingress: Some(IngressSettings {
            controller: "evenkeel.org/ingress".into(),
            class: None,
            without_class: false,
            certificate: None,
            copy_fields: vec!["x-user".into()],
            gateway: IngressSettings::make_gateway(80, 443),
        }),
        ..super::settings()
    }
}

/// A cluster with the class `edge`.
fn cluster() -> Cluster {
    let mut cluster = Cluster::new();
    cluster.put(
        Kind::IngressClass,
        json!({ "metadata": { "name": "edge" }, "spec": { "controller": "evenkeel.org/ingress" } }),
    );
    cluster.put(
        Kind::Service,
        json!({ "metadata": { "namespace": "shop", "name": "named" },
                "spec": { "ports": [{ "name": "http", "port": 8080 }, { "name": "h2", "port": 82, "appProtocol": "kubernetes.io/h2c" }] } }),
    );
    cluster
}

fn to(service: &str) -> Value {
    json!({ "service": { "name": service, "port": { "number": 80 } } })
}

pub(super) fn path(path: &str, kind: &str, service: &str) -> Value {
    json!({ "path": path, "pathType": kind, "backend": to(service) })
}

/// Specification with a rule for a host.
pub(super) fn spec(host: &str, paths: Value) -> Value {
    json!({ "ingressClassName": "edge", "rules": [{ "host": host, "http": { "paths": paths } }] })
}

/// Specification with all paths of `a.example`.
fn plain() -> Value {
    spec("a.example", json!([path("/", "Prefix", "web")]))
}

/// Puts Ingress `shop/NAME` into a cluster, with annotations of ingress-nginx.
pub(super) fn put_ingress(
    cluster: &mut Cluster,
    name: &str,
    annotations: &[(&str, &str)],
    spec: Value,
) {
    let annotations: serde_json::Map<String, Value> = { annotations.iter() }
        .map(|(name, value)| (format!("{PREFIX}{name}"), (*value).into()))
        .collect();
    cluster.put(
        Kind::Ingress,
        json!({ "metadata": { "namespace": "shop", "name": name, "uid": format!("uid-{name}"), "annotations": annotations,
                              "creationTimestamp": "2026-01-01T00:00:00Z" },
                "spec": spec }),
    );
}

fn translate_with(cluster: &Cluster, settings: &Settings) -> Translation {
    let translation = translate(&cluster.0, settings, &Refused::new());
    if let Err(error) = evenkeel_config::parse_generated(&translation.text) {
        panic!("{error}\n{}", translation.text);
    }
    translation
}

/// Returns the routes at port 80 as lines `host path conditions => actions`.
fn routes_at(translation: &Translation, rule: &str) -> Vec<String> {
    let (mut found, mut current) = (Vec::new(), Vec::new());
    let mut is_rule = false;
    for line in translation.text.lines() {
        if line.starts_with('[') {
            found.extend(Some(std::mem::take(&mut current)).filter(|_| is_rule));
            is_rule = line == format!("[[rule.\"{rule}\".routes]]");
        } else if !line.starts_with("name = ") {
            current.push(line.replace(" = ", "="));
        }
    }
    found.extend(Some(current).filter(|_| is_rule));
    found.into_iter().map(|lines| lines.join(" ")).collect()
}

fn routes(translation: &Translation) -> Vec<String> {
    routes_at(translation, "kubernetes.80")
}

/// Returns the routes of the Ingress `a` with these annotations, and the reports about the Ingress.
fn serve(annotations: &[(&str, &str)], spec: Value) -> (Vec<String>, Vec<String>, String) {
    let mut cluster = cluster();
    put_ingress(&mut cluster, "a", annotations, spec);
    let translation = translate_with(&cluster, &settings());
    let notices = translation.notices.iter();
    let notices = notices.map(|of| format!("{}: {}", of.reason, of.message));
    (
        routes(&translation),
        notices.collect(),
        translation.text.to_string(),
    )
}

const NONE: &str = "answer={ status=404 }";
const WEB: &str = "group=\"kubernetes.shop.web.80\"";
const CLOSED: &str = "host=[\"a.example\"] answer={ status=503 }";

#[test]
fn an_ingress_serves_a_service() {
    let (routes, notices, text) = serve(&[], plain());
    assert_eq!(routes, [&format!("host=[\"a.example\"] {WEB}"), NONE]);
    assert!(notices.is_empty(), "{notices:?}");
    // Without a certificate the port for TLS stays closed.
    assert!(!text.contains(":443"), "{text}");
    let mut cluster = cluster();
    put_ingress(&mut cluster, "a", &[], plain());
    let translation = translate_with(&cluster, &settings());
    let status = super::status_of(&translation, Kind::Ingress, "a");
    assert_eq!(
        *status,
        json!({ "loadBalancer": { "ingress": [{ "ip": "203.0.113.7" }] } })
    );
    // Without the setting nobody serves Ingresses.
    assert!(cluster.translate().text.is_empty());
}

#[test]
fn classes_say_whose_an_ingress_is() {
    let mut base = cluster();
    base.put(
        Kind::IngressClass,
        json!({ "metadata": { "name": "theirs" }, "spec": { "controller": "a.b/c" } }),
    );
    let served = |cluster: &Cluster, settings: &Settings| {
        !routes(&translate_with(cluster, settings))
            .iter()
            .all(|of| of == NONE)
    };
    let with_class = |class: Value| {
        let mut spec = plain();
        spec["ingressClassName"] = class;
        spec
    };
    for (class, wanted) in [
        (json!("edge"), true),
        (json!("theirs"), false),
        (json!("none"), false),
        (json!(null), false),
    ] {
        let mut cluster = Cluster(base.0.clone());
        put_ingress(&mut cluster, "a", &[], with_class(class.clone()));
        assert_eq!(served(&cluster, &settings()), wanted, "{class}");
    }
    // The annotation goes first, and may name the class of the settings although there is none.
    let old = |class: &str| {
        json!({ "metadata": { "namespace": "shop", "name": "a", "annotations": { "kubernetes.io/ingress.class": class } },
                "spec": with_class(json!("theirs")) })
    };
    let mut own = settings();
    if let Some(ingress) = &mut own.ingress {
        ingress.class = Some("nginx".into());
    }
    for (class, settings, wanted) in [
        ("edge", settings(), true),
        ("nginx", settings(), false),
        ("nginx", own.clone(), true),
        ("edge", own, false),
    ] {
        let mut cluster = Cluster(base.0.clone());
        cluster.put(Kind::Ingress, old(class));
        assert_eq!(served(&cluster, &settings), wanted, "{class}");
    }
    // Ingresses without a class.
    let mut cluster = Cluster(base.0.clone());
    put_ingress(&mut cluster, "a", &[], with_class(json!(null)));
    let mut all = settings();
    if let Some(ingress) = &mut all.ingress {
        ingress.without_class = true;
    }
    assert!(served(&cluster, &all));
    cluster.put(
        Kind::IngressClass,
        json!({ "metadata": { "name": "edge", "annotations": { "ingressclass.kubernetes.io/is-default-class": "true" } },
                "spec": { "controller": "evenkeel.org/ingress" } }),
    );
    assert!(served(&cluster, &settings()));
}

#[test]
fn exact_paths_come_first_and_then_long_ones() {
    let mut cluster = cluster();
    let paths = json!([
        path("/", "Prefix", "web"),
        path("/a", "Prefix", "web"),
        path("/a/b/", "Prefix", "canary"),
        path("/a", "Exact", "canary"),
        { "path": "/named", "pathType": "ImplementationSpecific",
          "backend": { "service": { "name": "named", "port": { "name": "http" } } } },
        { "path": "/h2", "pathType": "Prefix", "backend": { "service": { "name": "named", "port": { "name": "h2" } } } },
    ]);
    put_ingress(&mut cluster, "a", &[], spec("A.example", paths));
    put_ingress(
        &mut cluster,
        "wild",
        &[],
        spec("*.example", json!([path("/x", "Prefix", "web")])),
    );
    let mut fallback = json!({ "ingressClassName": "edge", "defaultBackend": to("canary") });
    put_ingress(&mut cluster, "z", &[], fallback.clone());
    let translation = translate_with(&cluster, &settings());
    assert_eq!(translation.notices, []);
    let found = routes(&translation);
    let host = "host=[\"a.example\"]";
    let canary = "group=\"kubernetes.shop.canary.80\"";
    let wanted = [
        format!("path=[\"/a\"] {host} {canary}"),
        format!("path=[\"/named/*\"] {host} group=\"kubernetes.shop.named.8080\""),
        format!("path=[\"/a/b/*\"] {host} {canary}"),
        format!("path=[\"/h2/*\"] {host} group=\"kubernetes.shop.named.82.h2\""),
        format!("path=[\"/a/*\"] {host} {WEB}"),
        format!("{host} {WEB}"),
        // One label; other paths of the host never get to a wider host.
        format!("path=[\"/x/*\"] host=[\"*.example\"] {WEB}"),
        "host=[\"*.example\"] answer={ status=404 }".into(),
        canary.into(),
    ];
    assert_eq!(found, wanted);
    // The default target of an Ingress with rules takes the other paths of its hosts, too.
    fallback["rules"] =
        json!([{ "host": "b.example", "http": { "paths": [path("/x", "Prefix", "web")] } }]);
    let (found, ..) = serve(&[], fallback);
    let wanted = [
        format!("path=[\"/x/*\"] host=[\"b.example\"] {WEB}"),
        format!("host=[\"b.example\"] {canary}"),
        canary.into(),
    ];
    assert_eq!(found, wanted);
}

#[test]
fn targets_that_cannot_be_used_answer_503_and_are_told() {
    for (backend, told) in [
        (to("nothing"), "there is no Service shop/nothing"),
        (
            json!({ "service": { "name": "web", "port": { "number": 53 } } }),
            "has no port 53",
        ),
        (
            json!({ "service": { "name": "web", "port": { "name": "x" } } }),
            "has no port x",
        ),
        (
            json!({ "resource": { "kind": "Bucket", "name": "b" } }),
            "a resource as a target",
        ),
        (json!({}), "a path has no target"),
    ] {
        let paths = json!([{ "path": "/", "pathType": "Prefix", "backend": backend }]);
        let (routes, notices, _) = serve(&[], spec("a.example", paths));
        assert_eq!(routes, [CLOSED, NONE]);
        assert!(
            notices.len() == 1 && notices[0].contains(told),
            "{notices:?}"
        );
    }
}

#[test]
fn annotations_become_actions() {
    for (name, value, wanted) in [
        ("proxy-body-size", "8m", "max_body=8388608"),
        ("proxy-connect-timeout", "5", "connection_timeout=\"5s\""),
        (
            "proxy-read-timeout",
            "3600s",
            "response_timeout=\"3600s\" idle_timeout=\"3600s\"",
        ),
        ("proxy-send-timeout", "7", "body_timeout=\"7s\""),
        (
            "upstream-vhost",
            "b.example",
            "request_fields={ set={ \"Host\"=\"b.example\" } }",
        ),
        (
            "x-forwarded-prefix",
            "/x{y}",
            "request_fields={ set={ \"X-Forwarded-Prefix\"=\"/x{{y}\" } }",
        ),
        (
            "limit-rps",
            "10",
            "request_limits=[{ name=\"limit-rps\", requests=\"10/s\", burst=50, status=503, table_size=8192 }]",
        ),
        (
            "limit-rpm",
            "10",
            "request_limits=[{ name=\"limit-rpm\", requests=\"10/m\", burst=50, status=503, table_size=8192 }]",
        ),
    ] {
        let (routes, notices, _) = serve(&[(name, value)], plain());
        assert_eq!(
            routes,
            [&format!("host=[\"a.example\"] {wanted} {WEB}"), NONE],
            "{name}"
        );
        assert!(notices.is_empty(), "{notices:?}");
    }
    let limits = [
        ("limit-rps", "2"),
        ("limit-burst-multiplier", "3"),
        ("limit-whitelist", "10.0.0.0/8"),
    ];
    let (routes, ..) = serve(&limits, plain());
    assert!(
        routes[0].contains("burst=6, status=503, table_size=8192, except=[\"10.0.0.0/8\"]"),
        "{routes:?}"
    );
}

#[test]
fn annotations_become_redirects() {
    for (annotations, wanted) in [
        (
            &[("permanent-redirect", "https://b.example/{x}")][..],
            "redirect=\"https://b.example/{{x}\" redirect_status=301",
        ),
        (
            &[
                ("permanent-redirect", "/b"),
                ("permanent-redirect-code", "308"),
            ],
            "redirect=\"/b\" redirect_status=308",
        ),
        (
            &[("temporal-redirect", "https://b.example")],
            "redirect=\"https://b.example\" redirect_status=302",
        ),
        (
            &[("force-ssl-redirect", "true")],
            "redirect=\"https://{host}{path}{query}\" redirect_status=308",
        ),
    ] {
        let (routes, notices, _) = serve(annotations, plain());
        assert_eq!(
            routes,
            [&format!("host=[\"a.example\"] {wanted}"), NONE],
            "{annotations:?}"
        );
        assert!(notices.is_empty(), "{notices:?}");
    }
    let (routes, ..) = serve(&[("app-root", "/app")], plain());
    let root = "path=[\"/\"] host=[\"a.example\"] redirect=\"{scheme}://{host}{port}/app\" redirect_status=302";
    assert_eq!(routes, [root, &format!("host=[\"a.example\"] {WEB}"), NONE]);
    // An address that cannot be had is no reason to let requests through.
    let (routes, notices, _) = serve(&[("permanent-redirect", "https://$host/")], plain());
    assert_eq!(routes, [CLOSED, NONE]);
    assert_eq!(notices.len(), 1);
}

#[test]
fn hosts_with_tls_are_redirected() {
    let mut tls = plain();
    tls["tls"] = json!([{ "hosts": ["a.example"], "secretName": "none" }]);
    let (routes, notices, _) = serve(&[], tls.clone());
    let redirect =
        "host=[\"a.example\"] redirect=\"https://{host}{path}{query}\" redirect_status=308";
    assert_eq!(routes, [redirect, NONE]);
    assert!(
        notices[0].contains("there is no Secret shop/none"),
        "{notices:?}"
    );
    let (routes, ..) = serve(&[("ssl-redirect", "false")], tls.clone());
    assert_eq!(routes, [&format!("host=[\"a.example\"] {WEB}"), NONE]);
    // Another host.
    tls["tls"][0]["hosts"] = json!(["*.example.org"]);
    let (routes, ..) = serve(&[], tls);
    assert_eq!(routes, [&format!("host=[\"a.example\"] {WEB}"), NONE]);
}

#[test]
fn paths_are_rewritten_by_prefix() {
    let at = |paths: &str| {
        spec(
            "a.example",
            json!([path(paths, "ImplementationSpecific", "web")]),
        )
    };
    let rewrite = [("rewrite-target", "/v2/$2")];
    let (routes, notices, _) = serve(&rewrite, at("/shop(/|$)(.*)"));
    let wanted = format!("path=[\"/shop/*\"] host=[\"a.example\"] {WEB} rewrite_prefix=\"/v2\"");
    assert_eq!(routes[0], wanted);
    assert!(notices.is_empty(), "{notices:?}");
    let (routes, ..) = serve(&[("rewrite-target", "/v2/$1")], at("/(.*)"));
    assert_eq!(
        routes[0],
        format!("path=[\"/*\"] host=[\"a.example\"] {WEB} rewrite_prefix=\"/v2\"")
    );
    // A constant target is the path of each request.
    let (routes, notices, _) = serve(&[("rewrite-target", "/")], at("/shop"));
    assert_eq!(
        routes[0],
        format!("path=[\"/shop/*\"] host=[\"a.example\"] {WEB} rewrite_path=\"/\"")
    );
    assert!(notices.is_empty(), "{notices:?}");
    // A target with other parts of the path.
    let (routes, notices, _) = serve(&[("rewrite-target", "/$1")], at("/shop"));
    assert_eq!(
        routes[0],
        "path=[\"/shop/*\"] host=[\"a.example\"] answer={ status=503 }"
    );
    assert!(notices[0].contains("rewrite-target"), "{notices:?}");
    // An expression that is no prefix stays one.
    let (routes, notices, _) = serve(&[("use-regex", "true")], at("/[a-z]+/x"));
    assert_eq!(
        routes,
        [
            &format!("path_regex=[\"(?i:/[a-z]+/x).*\"] host=[\"a.example\"] {WEB}"),
            "host=[\"a.example\"] answer={ status=404 }",
            NONE
        ]
    );
    assert!(notices.is_empty(), "{notices:?}");
    // What is none is left out, if it restricts nobody.
    let (routes, notices, _) = serve(&[("use-regex", "true")], at("/[a-z/x"));
    assert_eq!(routes, [NONE]);
    assert!(
        notices[0].contains("not a regular expression"),
        "{notices:?}"
    );
}

#[test]
fn clients_are_let_in_by_network() {
    let (routes, ..) = serve(
        &[
            ("whitelist-source-range", "10.1.2.3/8,192.0.2.1"),
            ("denylist-source-range", "10.9.0.0/16"),
        ],
        plain(),
    );
    let host = "host=[\"a.example\"]";
    let wanted = [
        format!("client=[\"10.9.0.0/16\"] {host} answer={{ status=403 }}"),
        format!("except_client=[\"10.0.0.0/8\", \"192.0.2.1/32\"] {host} answer={{ status=403 }}"),
        format!("{host} {WEB}"),
        NONE.into(),
    ];
    assert_eq!(routes, wanted);
}

#[test]
fn what_restricts_access_and_cannot_be_used_closes_its_path() {
    for (name, value) in [
        ("whitelist-source-range", "10.0.0.0/33"),
        ("whitelist-source-range", ""),
        ("allowlist-source-range", "x"),
        ("denylist-source-range", "10.0.0.0/8,x"),
        ("auth-type", "basic"),
        ("auth-type", "digest"),
        ("auth-url", "https://login.example.org/"),
        ("auth-url", "http://login.other.svc/"),
        ("auth-response-headers", "X-User"),
        ("auth-tls-verify-client", "on"),
        ("auth-secret", "shop/users"),
        ("satisfy", "any"),
        ("enable-modsecurity", "true"),
        ("configuration-snippet", "deny all;"),
        ("server-snippet", "return 403;"),
        ("auth-snippet", "x"),
        ("some-new-auth-method", "x"),
        ("limit-rps", "many"),
        ("proxy-body-size", "big"),
        ("backend-protocol", "FCGI"),
    ] {
        // A wider path that is open serves what the Ingress leaves out, so nothing may be left out.
        let mut cluster = cluster();
        put_ingress(&mut cluster, "open", &[], plain());
        put_ingress(
            &mut cluster,
            "shut",
            &[(name, value)],
            spec("a.example", json!([path("/admin", "Prefix", "web")])),
        );
        let translation = translate_with(&cluster, &settings());
        let closed = "path=[\"/admin/*\"] host=[\"a.example\"] answer={ status=503 }";
        assert_eq!(
            routes(&translation),
            [closed, &format!("host=[\"a.example\"] {WEB}"), NONE],
            "{name} {value}"
        );
        let notice = &translation.notices[0];
        assert_eq!(
            (notice.object.name.as_str(), notice.reason),
            ("shut", "Closed"),
            "{name} {value}"
        );
        assert!(notice.message.contains(name), "{}", notice.message);
    }
}

#[test]
fn what_cannot_be_matched_is_closed_around_its_path() {
    let restricted = [
        ("whitelist-source-range", "10.0.0.0/8"),
        ("use-regex", "true"),
    ];
    let regex = spec(
        "a.example",
        json!([path(
            "/app/(?=x)[a-z]+/admin",
            "ImplementationSpecific",
            "web"
        )]),
    );
    let mut own = cluster();
    put_ingress(
        &mut own,
        "open",
        &[],
        spec(
            "a.example",
            json!([path("/app/x/y", "Exact", "web"), path("/", "Prefix", "web")]),
        ),
    );
    put_ingress(&mut own, "shut", &restricted, regex.clone());
    let found = routes(&translate_with(&own, &settings()));
    // Even longer paths of the namespace.
    assert_eq!(
        found[0],
        "path=[\"/app/*\"] host=[\"a.example\"] answer={ status=503 }"
    );
    assert_eq!(found.len(), 4);
    // But no path of another namespace, whose host it is.
    let mut other = cluster();
    other.put(
        Kind::Ingress,
        json!({ "metadata": { "namespace": "other", "name": "first", "creationTimestamp": "2025-01-01T00:00:00Z" },
                "spec": spec("a.example", json!([path("/app/x/y", "Prefix", "web")])) }),
    );
    put_ingress(&mut other, "shut", &restricted, regex);
    let found = routes(&translate_with(&other, &settings()));
    assert!(
        found[0].contains("/app/x/y/*") && found[0].contains("kubernetes.other.web.80"),
        "{found:?}"
    );
}

#[test]
fn the_configuration_refuses_a_path_and_its_path_is_closed() {
    // No name of a method.
    let cors = [("enable-cors", "true"), ("cors-allow-methods", "GET, a b")];
    let (routes, notices, _) = serve(&cors, plain());
    assert_eq!(routes, [CLOSED, NONE]);
    assert!(notices[0].starts_with("Closed: "), "{notices:?}");
    let login = [
        ("auth-url", "http://web.shop.svc/check"),
        ("auth-response-headers", "X-User, Content-Length"),
    ];
    let (routes, ..) = serve(&login, plain());
    assert_eq!(routes, [CLOSED, NONE]);
}

#[test]
fn pages_of_other_origins() {
    let (routes, ..) = serve(&[("enable-cors", "true")], plain());
    assert!(
        routes[0].contains("cors={ allow_origins=[\"*\"], allow_methods=[\"GET\", \"PUT\""),
        "{routes:?}"
    );
    // Never with everybody's credentials.
    assert!(!routes[0].contains("allow_credentials"), "{routes:?}");
    let some = [
        ("enable-cors", "true"),
        (
            "cors-allow-origin",
            "https://b.example, https://*.c.example",
        ),
        ("cors-max-age", "60"),
        ("cors-expose-headers", "X-A"),
    ];
    let (routes, ..) = serve(&some, plain());
    let wanted = "expose_headers=[\"X-A\"], allow_credentials=true, max_age=\"60s\"";
    assert!(
        routes[0].contains("[\"https://b.example\", \"https://*.c.example\"]")
            && routes[0].contains(wanted),
        "{routes:?}"
    );
    let (routes, notices, _) = serve(&[("cors-allow-origin", "x")], plain());
    assert!(!routes[0].contains("cors") && notices.is_empty());
}

/// The password `secret`, as `htpasswd -nbB -C 4` hashes it.
pub(super) const USERS: &str = "anna:$2y$04$eOnKaXwwoXrWN2nnApD3l.ljv56/.n/6aNhVUC3NuZgmfJiewvCIy";

/// Puts Secret NAMESPACE/users with these contents into a cluster.
pub(super) fn put_users(
    cluster: &mut Cluster,
    namespace: &str,
    version: &str,
    (key, content): (&str, &str),
) {
    let content = base64::engine::general_purpose::STANDARD.encode(content);
    cluster.put(
        Kind::OpaqueSecret,
        json!({ "metadata": { "namespace": namespace, "name": "users", "resourceVersion": version },
                "data": { key: content } }),
    );
}

#[test]
fn users_with_passwords_are_let_in() {
    let basic = [("auth-type", "basic"), ("auth-secret", "users")];
    let mut cluster = cluster();
    put_ingress(&mut cluster, "a", &basic, plain());
    let shut = |cluster: &Cluster, told: &str| {
        let translation = translate_with(cluster, &settings());
        assert_eq!(routes(&translation), [CLOSED, NONE], "{told}");
        let message = &translation.notices[0].message;
        assert!(message.contains(told), "{message}");
        assert!(translation.files.is_empty());
    };
    shut(&cluster, "there is no Secret shop/users of type Opaque");
    put_users(&mut cluster, "shop", "6", ("auth", "anna:secret"));
    shut(&cluster, "line 1: the hash is not of");
    put_users(&mut cluster, "shop", "7", ("auth", USERS));
    let translation = translate_with(&cluster, &settings());
    assert_eq!(translation.notices, []);
    let auth = |file: &str| format!("auth={{ users_file=\"/proc/evenkeel/kubernetes/{file}\" }}");
    let wanted = format!(
        "host=[\"a.example\"] {} {WEB}",
        auth("shop/users/7/auth-file")
    );
    assert_eq!(routes(&translation), [&wanted, NONE]);
    let (path, content) = translation.files.first_key_value().unwrap();
    assert_eq!(
        (path.to_str().unwrap(), &**content),
        (
            "/proc/evenkeel/kubernetes/shop/users/7/auth-file",
            USERS.as_bytes()
        )
    );
    // No hash is in the text.
    assert!(!translation.text.to_string().contains("$2y$"));
    // Other passwords have another path, so that they come into effect.
    put_users(&mut cluster, "shop", "8", ("auth", USERS));
    assert!(routes_of(&cluster)[0].contains("/users/8/"));
    // A content for each user, and the name that browsers show.
    let (user, hash) = USERS.split_once(':').unwrap();
    put_users(&mut cluster, "shop", "9", (user, hash));
    let map = [
        basic[0],
        basic[1],
        ("auth-secret-type", "auth-map"),
        ("auth-realm", "Shop administration"),
    ];
    put_ingress(&mut cluster, "a", &map, plain());
    let translation = translate_with(&cluster, &settings());
    assert!(
        routes(&translation)[0].contains("/users/9/auth-map\", realm=\"Shop administration\" }"),
        "{}",
        translation.text
    );
    let content = translation.files.values().next().unwrap();
    assert_eq!(&**content, format!("{USERS}\n").as_bytes());
    // Two logins of a request.
    let both = [
        basic[0],
        basic[1],
        ("auth-url", "http://web.shop.svc/check"),
    ];
    put_ingress(&mut cluster, "a", &both, plain());
    assert_eq!(routes_of(&cluster)[0], CLOSED);
    // A secret of another namespace needs a grant.
    let other = [basic[0], ("auth-secret", "other/users")];
    put_users(&mut cluster, "other", "1", ("auth", USERS));
    put_ingress(&mut cluster, "a", &other, plain());
    assert_eq!(routes_of(&cluster)[0], CLOSED);
    cluster.put(
        Kind::ReferenceGrant,
        json!({ "metadata": { "namespace": "other", "name": "g" },
                "spec": { "from": [{ "group": "networking.k8s.io", "kind": "Ingress", "namespace": "shop" }],
                          "to": [{ "group": "", "kind": "Secret" }] } }),
    );
    assert!(routes_of(&cluster)[0].contains("/other/users/1/auth-file"));
}

#[test]
fn a_login_service_decides() {
    let login = [
        ("auth-url", "http://web.shop.svc.cluster.local/check"),
        ("auth-response-headers", "X-User"),
    ];
    let (routes, ..) = serve(&login, plain());
    let auth =
        "auth={ group=\"kubernetes.shop.web.80\", path=\"/check\", copy_fields=[\"X-User\"] }";
    assert_eq!(routes[0], format!("host=[\"a.example\"] {auth} {WEB}"));
    let with_page = |page| serve(&[login[0], ("auth-signin", page)], plain());
    let (routes, notices, _) = with_page("https://$host/start?rd=$escaped_request_uri");
    let page = "login_page=\"https://{host}/start?rd={escaped_uri}\" }";
    assert!(routes[0].contains(page), "{routes:?}");
    assert!(notices.is_empty(), "{notices:?}");
    // Clients get the answer of the service, and nobody more is let in.
    let (routes, notices, _) = with_page("https://$cookie_a/");
    assert!(routes[0].contains("auth={ group=") && !routes[0].contains("login_page"));
    assert!(
        notices[0].starts_with("Ignored: auth-signin has no effect"),
        "{notices:?}"
    );
    // A field that the settings do not allow would be missing from requests of others.
    let other = [login[0], ("auth-response-headers", "X-User, X-Email")];
    let (routes, notices, _) = serve(&other, plain());
    assert_eq!(routes, [CLOSED, NONE]);
    assert!(
        notices[0].contains("\"X-Email\" is none of copy_fields"),
        "{notices:?}"
    );
    // Another namespace grants the question.
    let mut cluster = cluster();
    put_ingress(
        &mut cluster,
        "a",
        &[("auth-url", "http://web.other.svc/")],
        plain(),
    );
    let grant = |kind: &str| {
        json!({ "metadata": { "namespace": "other", "name": "g" },
                "spec": { "from": [{ "group": "networking.k8s.io", "kind": kind, "namespace": "shop" }],
                          "to": [{ "group": "", "kind": "Service" }] } })
    };
    cluster.put(Kind::ReferenceGrant, grant("Gateway"));
    assert_eq!(routes_of(&cluster)[0], CLOSED);
    cluster.put(Kind::ReferenceGrant, grant("Ingress"));
    assert!(routes_of(&cluster)[0].contains("auth={ group=\"kubernetes.other.web.80\""));
}

fn routes_of(cluster: &Cluster) -> Vec<String> {
    routes(&translate_with(cluster, &settings()))
}

#[test]
fn groups_have_the_protocol_the_strategy_and_the_cookie() {
    for (annotations, wanted) in [
        (
            &[("backend-protocol", "GRPC")][..],
            "member_protocol = \"h2\"",
        ),
        (
            &[("backend-protocol", "HTTPS")],
            "member_tls = { verify = false }",
        ),
        (
            &[
                ("backend-protocol", "GRPCS"),
                ("proxy-ssl-verify", "on"),
                ("proxy-ssl-name", "x.example"),
            ],
            "member_tls = { verify = true, server_name = \"x.example\" }\nmember_protocol = \"h2\"",
        ),
        (&[("load-balance", "ewma")], "strategy = \"peak_ewma\""),
        (
            &[("load-balance", "round_robin")],
            "strategy = \"round_robin\"",
        ),
        (
            &[("upstream-hash-by", "$request_uri")],
            "strategy = \"hash\"\nhash_key = \"uri\"",
        ),
        (
            &[("upstream-hash-by", "$http_x_user")],
            "strategy = \"hash\"\nhash_key = \"header:x-user\"",
        ),
        (
            &[("upstream-hash-by", "$cookie_a")],
            "strategy = \"hash\"\nhash_key = \"cookie:a\"",
        ),
        (
            &[("upstream-hash-by", "$binary_remote_addr")],
            "strategy = \"hash\"\nhash_key = \"client\"",
        ),
        (
            &[
                ("affinity", "cookie"),
                ("session-cookie-name", "route"),
                ("session-cookie-max-age", "60"),
                ("session-cookie-samesite", "None"),
                ("session-cookie-secure", "true"),
            ],
            "sticky = { cookie = \"route\", max_age = \"60s\", same_site = \"none\", secure = true }",
        ),
        (&[("affinity", "cookie")], "sticky = {  }"),
        (
            &[("affinity", "cookie"), ("session-cookie-path", "/shop")],
            "sticky = { cookie_path = \"/shop\" }",
        ),
    ] {
        let (routes, notices, text) = serve(annotations, plain());
        assert!(
            text.contains(&format!("\"shop/web:80\" }}]\n{wanted}\n")),
            "{annotations:?}\n{text}"
        );
        assert!(
            routes[0].contains("group=\"kubernetes.shop.web.80."),
            "{routes:?}"
        );
        assert!(notices.is_empty(), "{notices:?}");
    }
    // Two services of a host do not share a cookie.
    let two = spec(
        "a.example",
        json!([path("/", "Prefix", "web"), path("/b", "Prefix", "canary")]),
    );
    let (_, _, text) = serve(
        &[("affinity", "cookie"), ("session-cookie-name", "route")],
        two,
    );
    assert_eq!(
        (
            text.matches("cookie = \"route\"").count(),
            text.matches("sticky = {").count()
        ),
        (1, 2),
        "{text}"
    );
}

#[test]
fn a_member_has_no_name_with_a_wildcard() {
    let names = ["proxy-ssl-name", "upstream-vhost"];
    let annotations = names.map(|name| (name, "*.example"));
    let (routes, notices, text) = serve(
        &[&[("backend-protocol", "HTTPS")], &annotations[..]].concat(),
        plain(),
    );
    assert!(text.contains("member_tls = { verify = false }\n"), "{text}");
    assert!(!routes[0].contains("request_fields"), "{routes:?}");
    for name in names {
        let told = format!("{name} has no effect");
        assert!(notices.iter().any(|of| of.contains(&told)), "{notices:?}");
    }
}

#[test]
fn canaries_get_their_share() {
    let share = |annotations: &[(&str, &str)]| {
        let mut cluster = cluster();
        put_ingress(&mut cluster, "a", &[], plain());
        let mut all = vec![("canary", "true")];
        all.extend(annotations);
        put_ingress(
            &mut cluster,
            "b",
            &all,
            spec("A.example", json!([path("/", "Prefix", "canary")])),
        );
        let translation = translate_with(&cluster, &settings());
        assert!(translation.notices.is_empty(), "{:?}", translation.notices);
        let mut found = routes(&translation);
        assert_eq!(found.pop().unwrap(), NONE);
        found
    };
    let (host, canary) = (
        "host=[\"a.example\"]",
        "group=\"kubernetes.shop.canary.80\"",
    );
    let usual = format!("{host} {WEB}");
    assert_eq!(
        share(&[("canary-weight", "10")]),
        [format!(
            "{host} groups={{ \"kubernetes.shop.web.80\"=90, \"kubernetes.shop.canary.80\"=10 }}"
        )]
    );
    assert_eq!(
        share(&[("canary-weight", "100")]),
        [format!("{host} {canary}")]
    );
    assert_eq!(
        share(&[("canary-weight", "0")])[..],
        *std::slice::from_ref(&usual)
    );
    assert_eq!(
        share(&[("canary-by-header", "X-Canary")]),
        [
            format!("headers={{ \"X-Canary\"=\"always\" }} {host} {canary}"),
            format!("headers={{ \"X-Canary\"=\"never\" }} {host} {WEB}"),
            usual.clone(),
        ]
    );
    assert_eq!(
        share(&[
            ("canary-by-header", "X-Canary"),
            ("canary-by-header-value", "eu"),
            ("canary-by-cookie", "c")
        ]),
        [
            format!("headers={{ \"X-Canary\"=\"eu\" }} {host} {canary}"),
            format!("cookies={{ \"c\"=\"always\" }} {host} {canary}"),
            format!("cookies={{ \"c\"=\"never\" }} {host} {WEB}"),
            usual,
        ]
    );
}

#[test]
fn a_canary_without_a_service_gets_nothing() {
    let mut cluster = cluster();
    put_ingress(&mut cluster, "a", &[], plain());
    put_ingress(
        &mut cluster,
        "b",
        &[("canary", "true"), ("canary-weight", "50")],
        spec("a.example", json!([path("/", "Prefix", "nothing")])),
    );
    let translation = translate_with(&cluster, &settings());
    assert_eq!(
        routes(&translation),
        [&format!("host=[\"a.example\"] {WEB}"), NONE]
    );
    let notice = &translation.notices[0];
    assert_eq!(
        (notice.object.name.as_str(), notice.reason),
        ("b", "Ignored")
    );
    assert!(
        notice.message.contains("no Service shop/nothing"),
        "{}",
        notice.message
    );
}

#[test]
fn limits_of_an_ingress_count_once_for_all_its_paths_and_hosts() {
    let paths = || json!([path("/a", "Prefix", "web"), path("/b", "Prefix", "web")]);
    let mut cluster = cluster();
    let limits = [("limit-rps", "1"), ("server-alias", "b.example")];
    put_ingress(&mut cluster, "a", &limits, spec("a.example", paths()));
    put_ingress(&mut cluster, "c", &limits[..1], spec("c.example", paths()));
    let config = translate_with(&cluster, &settings()).config.unwrap();
    let limited = config.rules[0].routes.list().iter();
    let limited = limited.filter(|route| !route.request_limits.is_empty());
    let mut names: Vec<_> = limited.map(|route| route.name.clone().unwrap()).collect();
    names.sort_unstable();
    let (one, other) = ("shop.a.ingress", "shop.c.ingress");
    assert_eq!(names, [one, one, one, one, other, other]);
}

#[test]
fn aliases_are_served_too() {
    let (routes, notices, _) = serve(&[("server-alias", "b.example, ~^www\\d+$")], plain());
    assert_eq!(
        routes,
        [
            &format!("host=[\"a.example\"] {WEB}"),
            &format!("host=[\"b.example\"] {WEB}"),
            NONE
        ]
    );
    assert!(
        notices[0].starts_with("Ignored: server-alias"),
        "{notices:?}"
    );
}

#[test]
fn what_has_no_effect_is_told_once_by_name() {
    let (routes, notices, _) = serve(
        &[
            ("custom-http-errors", "404"),
            ("proxy-buffering", "on"),
            ("limit-connections", "5"),
            ("limit-burst-multiplier", "x"),
            ("load-balance", "x"),
            ("proxy-read-timeout", "long"),
            ("use-regex", "maybe"),
            ("enable-global-auth", "false"),
            ("enable-modsecurity", "false"),
        ],
        plain(),
    );
    assert_eq!(routes, [&format!("host=[\"a.example\"] {WEB}"), NONE]);
    assert_eq!(notices.len(), 1, "{notices:?}");
    for name in [
        "custom-http-errors",
        "proxy-buffering",
        "limit-connections",
        "limit-burst-multiplier",
        "load-balance",
        "proxy-read-timeout",
        "use-regex",
    ] {
        assert!(notices[0].contains(name), "{name}: {notices:?}");
    }
    assert!(
        !notices[0].contains("global-auth") && !notices[0].contains("modsecurity"),
        "{notices:?}"
    );
}

/// Puts an Ingress `b` of namespace `other`, which is newer than all others.
fn put_stranger(cluster: &mut Cluster, annotations: &[(&str, &str)], spec: Value) {
    put_ingress(cluster, "b", annotations, spec);
    let own = ObjectName::new("shop", "b");
    let mut stranger = (*cluster.0.ingresses[&own]).clone();
    assert!(cluster.0.remove(Kind::Ingress, &own));
    stranger.metadata.namespace = "other".into();
    stranger.metadata.creation_timestamp = "2026-02-01T00:00:00Z".into();
    let name = stranger.metadata.object_name();
    cluster.0.ingresses.insert(name, stranger.into());
}

#[test]
fn a_stranger_takes_no_requests_from_longer_prefixes_of_a_host() {
    for annotation in ["whitelist-source-range", "denylist-source-range"] {
        let mut cluster = cluster();
        put_ingress(
            &mut cluster,
            "a",
            &[("server-alias", "alias.example")],
            spec("a.example", json!([path("/api", "Prefix", "web")])),
        );
        cluster.put(
            Kind::Service,
            json!({ "metadata": { "namespace": "other", "name": "web" }, "spec": { "ports": [{ "port": 80 }] } }),
        );
        for host in ["a.example", "alias.example"] {
            // Expressions that restrict access go before prefixes of the same namespace only.
            let annotations = [(annotation, "10.0.0.0/8"), ("use-regex", "true")];
            let paths = json!([path("/(api|b).*", "ImplementationSpecific", "web")]);
            put_stranger(&mut cluster, &annotations, spec(host, paths));
            let found = routes(&translate_with(&cluster, &settings()));
            let of_host: Vec<&String> = { found.iter() }
                .filter(|route| route.contains(&format!("host=[\"{host}\"]")))
                .collect();
            assert!(of_host[0].starts_with("path=[\"/api/*\"]"), "{found:?}");
            assert!(of_host[1].contains("path_regex"), "{found:?}");
        }
    }
}

#[test]
fn an_ingress_has_few_expressions() {
    let mut cluster = cluster();
    let paths: Vec<Value> = (0..70)
        .map(|number| {
            path(
                &format!("/{number}/[a-z]+/x"),
                "ImplementationSpecific",
                "web",
            )
        })
        .collect();
    put_ingress(
        &mut cluster,
        "a",
        &[("use-regex", "true")],
        spec("a.example", json!(paths)),
    );
    let translation = translate_with(&cluster, &settings());
    let found = routes(&translation);
    let expressions = found.iter().filter(|route| route.contains("path_regex"));
    assert_eq!(expressions.count(), 64);
    let message = &translation.notices[0].message;
    assert!(
        message.contains("more than 64 regular expressions"),
        "{message}"
    );
}

#[test]
fn a_wrong_ingress_harms_only_itself() {
    let mut cluster = cluster();
    put_ingress(&mut cluster, "good", &[], plain());
    let many: Vec<Value> = (0..1_024)
        .map(|number| path(&format!("/{number}"), "Prefix", "web"))
        .collect();
    for (number, spec) in [
        spec("a b", json!([path("/", "Prefix", "web")])),
        spec("x.example", json!([path("no/slash", "Prefix", "web")])),
        spec("x.example", json!([path("/a\"\n[rule.x]", "Exact", "web")])),
        spec("x.example", json!([path("/%zz/..", "Prefix", "web"), path("/é*;", "Prefix", "web")])),
        spec("x.example", json!([path("/", "Nonsense", "web")])),
        json!({ "ingressClassName": "edge", "rules": [{ "host": "m.example", "http": { "paths": many } },
                { "host": "n.example", "http": { "paths": many } }, { "host": "o.example", "http": { "paths": many } }] }),
        json!({ "ingressClassName": "edge", "rules": null, "tls": null }),
        json!({ "ingressClassName": "edge", "tls": [{ "secretName": "../x" }], "rules": [{ "http": null }] }),
    ]
    .into_iter()
    .enumerate()
    {
        let annotations = [("whitelist-source-range", "10.0.0.0/8"), ("app-root", "/\"x"), ("x-forwarded-prefix", "\u{0}")];
        put_ingress(&mut cluster, &format!("bad-{number}"), &annotations, spec);
    }
    let translation = translate_with(&cluster, &settings());
    let found = routes(&translation);
    assert!(
        found.contains(&format!("host=[\"a.example\"] {WEB}")),
        "{found:?}"
    );
    assert!(
        found.contains(&"host=[\"m.example\"] answer={ status=503 }".to_owned()),
        "{found:?}"
    );
    assert!(
        !translation.text.contains("[rule.x]\n"),
        "{}",
        translation.text
    );
    assert!(
        translation
            .notices
            .iter()
            .all(|of| of.object.name.starts_with("bad-"))
    );
    assert!(translation.rounds <= 3, "{}", translation.rounds);
}

#[test]
fn ingresses_and_gateways_share_a_port() {
    let mut cluster = cluster();
    cluster.gateway(
        "g",
        json!([{ "name": "http", "port": 80, "protocol": "HTTP" }]),
    );
    cluster.route(
        "r",
        json!(["r.example"]),
        json!([{ "backendRefs": super::web() }]),
    );
    put_ingress(&mut cluster, "a", &[], plain());
    // An HTTPRoute cannot name the gateway that stands for Ingresses.
    cluster.route_at(
        Kind::HttpRoute,
        "hostile",
        json!([{ "namespace": "", "name": "ingress" }]),
        json!(["h.example"]),
        json!([{ "backendRefs": super::web() }]),
    );
    let translation = translate_with(&cluster, &settings());
    assert_eq!(
        routes(&translation),
        [
            &format!("host=[\"a.example\"] {WEB}"),
            &format!("host=[\"r.example\"] {WEB}"),
            NONE
        ]
    );
    let gateway = super::status_of(&translation, Kind::Gateway, "g");
    assert_eq!(gateway["listeners"][0]["attachedRoutes"], 1);
    // A port of another protocol is told.
    cluster.gateway(
        "g",
        json!([{ "name": "tcp", "port": 80, "protocol": "TCP" }]),
    );
    let translation = translate_with(&cluster, &settings());
    assert!(
        translation.notices[0].message.contains("another protocol"),
        "{:?}",
        translation.notices
    );
    assert!(
        cluster
            .0
            .remove(Kind::Ingress, &ObjectName::new("shop", "a"))
    );
}

#[test]
fn ingresses_share_a_port_with_tls_that_passes_through_for_some_names() {
    let mut cluster = cluster();
    super::streams::put_certificate(&mut cluster, "cert");
    let mut ingress = plain();
    ingress["tls"] = json!([{ "hosts": ["a.example"], "secretName": "cert" }]);
    put_ingress(&mut cluster, "a", &[], ingress);
    let mut listener = super::streams::tls_listener("passes", "b.example", "Passthrough");
    listener["port"] = 443.into();
    cluster.gateway("g", json!([listener]));
    let translation = translate_with(&cluster, &settings());
    assert!(translation.notices.is_empty(), "{:?}", translation.notices);
    let config = translation.config.unwrap();
    let rule = |name: &str| config.rules.iter().find(|rule| rule.name == name).unwrap();
    let outer = rule("kubernetes.443");
    assert_eq!(outer.group, "kubernetes.443.https");
    assert_eq!(outer.sni["b.example"], "kubernetes.nobody");
    let hosts = rule("kubernetes.443.https").routes.list().iter();
    let hosts: Vec<_> = hosts.flat_map(|route| route.host.clone()).collect();
    assert_eq!(hosts, ["b.example", "a.example"]);
    // A listener for TLS of all names leaves none to Ingresses.
    listener["hostname"] = "".into();
    cluster.gateway("g", json!([listener]));
    let translation = translate_with(&cluster, &settings());
    assert!(
        translation.notices[0].message.contains("another protocol"),
        "{:?}",
        translation.notices
    );
}
