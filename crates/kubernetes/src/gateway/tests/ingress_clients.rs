//! Certificates of clients at hosts of Ingresses.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use evenkeel_config::{Config, Rule};

use super::ingress::{path, put_ingress, settings, spec};
use super::policies::AUTHORITY;
use super::streams::{NOBODY, names, put_certificate};
use super::*;

const OUTER: &str = "kubernetes.443";
const PLAIN: &str = "kubernetes.443.https";
const SECRET: (&str, &str) = ("auth-tls-secret", "ca");

/// Puts a secret with the certificates of authorities.
fn put_ca(cluster: &mut Cluster, namespace: &str, name: &str, content: (&str, &str)) {
    cluster.put(
        Kind::OpaqueSecret,
        json!({ "metadata": { "namespace": namespace, "name": name, "resourceVersion": "7" },
                "data": { content.0: STANDARD.encode(content.1) } }),
    );
}

/// Specification with TLS for a host, whose requests go to service `web`.
fn with_tls(host: &str) -> Value {
    let mut spec = spec(host, json!([path("/", "Prefix", "web")]));
    spec["tls"] = json!([{ "hosts": [host], "secretName": "cert" }]);
    spec
}

/// Cluster with a certificate, authorities, and Ingress `open` for `open.example`.
fn cluster() -> Cluster {
    let mut cluster = Cluster::new();
    cluster.put(
        Kind::IngressClass,
        json!({ "metadata": { "name": "edge" }, "spec": { "controller": "evenkeel.org/ingress" } }),
    );
    put_certificate(&mut cluster, "cert");
    put_ca(&mut cluster, "shop", "ca", ("ca.crt", AUTHORITY));
    put_ingress(&mut cluster, "open", &[], with_tls("open.example"));
    cluster
}

fn translate_all(cluster: &Cluster) -> (Translation, Config) {
    let translation = translate(&cluster.0, &settings(), &Refused::new());
    let config = evenkeel_config::parse_generated(&translation.text);
    let config = config.unwrap_or_else(|error| panic!("{error}\n{}", translation.text));
    (translation, config)
}

fn rule<'c>(config: &'c Config, name: &str) -> &'c Rule {
    let mut rules = config.rules.iter();
    let rule = rules.find(|rule| rule.name == name);
    rule.unwrap_or_else(|| panic!("no rule {name}"))
}

/// Returns the rules that verify clients.
fn verifying(config: &Config) -> Vec<&Rule> {
    let verifies = |rule: &&Rule| {
        let tls = rule.tls.as_ref();
        tls.is_some_and(|tls| tls.client_certificates.is_some())
    };
    config.rules.iter().filter(verifies).collect()
}

/// Returns the routes of a rule as `host => status or group`.
fn list_routes(rule: &Rule) -> Vec<String> {
    let routes = rule.routes.list().iter().map(|route| {
        let answer = route.answer.as_ref().map(|of| of.status.to_string());
        let redirect = route.redirect.as_ref().map(|_| "redirect".to_owned());
        let what = answer.or(redirect).unwrap_or_else(|| route.group.clone());
        format!("{} => {what}", route.host.join(","))
    });
    routes.collect()
}

fn messages(translation: &Translation) -> Vec<String> {
    let notices = translation.notices.iter();
    notices
        .map(|of| format!("{}: {}: {}", of.object.name, of.reason, of.message))
        .collect()
}

const WEB: &str = "kubernetes.shop.web.80";

#[test]
fn clients_of_a_host_show_certificates_and_clients_of_others_do_not() {
    let mut cluster = cluster();
    put_ingress(&mut cluster, "shut", &[SECRET], with_tls("Shut.example"));
    // Other Ingresses of the host have the same clients.
    let other = spec("shut.example", json!([path("/other", "Prefix", "web")]));
    put_ingress(&mut cluster, "too", &[], other);
    let (translation, config) = translate_all(&cluster);
    assert_eq!(messages(&translation), [""; 0]);
    let [shut] = verifying(&config)[..] else {
        panic!("{}", translation.text);
    };
    let demand = shut.tls.as_ref().unwrap().client_certificates.as_ref();
    let demand = demand.unwrap();
    assert!(demand.required && !demand.accept_invalid);
    assert_eq!(
        translation.files[&demand.ca_file.path].to_vec(),
        AUTHORITY.as_bytes()
    );
    // Names choose the rule, whose socket takes connections of this process only.
    let outer = rule(&config, OUTER);
    assert!(outer.tls.is_none());
    assert_eq!(outer.sni, names(&[("shut.example", &shut.name)]));
    assert_eq!(outer.group, PLAIN);
    for inner in [shut, rule(&config, PLAIN)] {
        let proxies = inner.accept_proxy.as_ref().unwrap();
        assert!(proxies.contains(None, || true) && !proxies.contains(None, || false));
    }
    assert_eq!(
        list_routes(shut),
        [
            format!("shut.example => {WEB}"),
            format!("shut.example => {WEB}"),
            "shut.example => 404".to_owned(),
        ]
    );
    // A client that connects for another name, or for none, gets to no route of the host.
    assert_eq!(
        list_routes(rule(&config, PLAIN)),
        [
            "shut.example => 404".to_owned(),
            format!("open.example => {WEB}"),
            " => 404".to_owned(),
        ]
    );
    assert_eq!(shut.http.separate_hosts, ["shut.example", "*"]);
    assert_eq!(
        rule(&config, PLAIN).http.separate_hosts,
        ["shut.example", "*"]
    );
    // Clients without TLS are sent to TLS, also by the other Ingress.
    let found = list_routes(rule(&config, "kubernetes.80"));
    let redirects = found.iter().filter(|of| **of == "shut.example => redirect");
    assert_eq!(redirects.count(), 2, "{found:?}");
    // Members trust no field that a client has made up.
    let text = translation.text.to_string();
    let lines: Vec<&str> = { text.lines() }
        .filter(|line| line.starts_with("request_fields"))
        .collect();
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(
        lines[0].contains("\"ssl-client-verify\" = \"SUCCESS\"")
            && lines[0].contains("\"ssl_client_subject_dn\""),
        "{lines:?}"
    );
}

#[test]
fn modes_of_verification_are_those_of_ingress_nginx() {
    for (mode, wanted) in [
        ("on", Some((true, false))),
        ("optional", Some((false, false))),
        ("optional_no_ca", Some((false, true))),
        ("off", None),
    ] {
        let mut cluster = cluster();
        let annotations = [SECRET, ("auth-tls-verify-client", mode)];
        put_ingress(&mut cluster, "a", &annotations, with_tls("a.example"));
        let (translation, config) = translate_all(&cluster);
        assert_eq!(messages(&translation), [""; 0], "{mode}");
        let found = verifying(&config).into_iter().next().map(|rule| {
            let demand = rule.tls.as_ref().unwrap().client_certificates.as_ref();
            let demand = demand.unwrap();
            (demand.required, demand.accept_invalid)
        });
        assert_eq!(found, wanted, "{mode}");
        let has_success = translation.text.contains("SUCCESS");
        assert_eq!(has_success, mode == "on", "{mode}");
    }
    let mut cluster = cluster();
    let annotations = [
        SECRET,
        ("auth-tls-verify-depth", "2"),
        ("auth-tls-error-page", "https://x.example/"),
        ("auth-tls-pass-certificate-to-upstream", "true"),
    ];
    put_ingress(&mut cluster, "a", &annotations, with_tls("a.example"));
    let (translation, config) = translate_all(&cluster);
    assert_eq!(verifying(&config).len(), 1);
    let told = messages(&translation);
    assert!(
        told.len() == 1 && told[0].starts_with("a: Ignored"),
        "{told:?}"
    );
    for (name, _) in &annotations[1..] {
        assert!(told[0].contains(name), "{told:?}");
    }
}

#[test]
fn nobody_gets_in_where_clients_cannot_be_verified() {
    for (annotations, content, told) in [
        (&[SECRET][..], ("ca.crt", "x"), "ca.crt"),
        (&[SECRET], ("other", "x"), "there is no ca.crt"),
        (&[SECRET], ("ca.crl", "x"), "ca.crl"),
        (
            &[("auth-tls-secret", "none")],
            ("ca.crt", AUTHORITY),
            "there is no Secret shop/none",
        ),
        (
            &[("auth-tls-secret", "other/ca")],
            ("ca.crt", AUTHORITY),
            "no ReferenceGrant in namespace other",
        ),
        (
            &[SECRET, ("auth-tls-verify-client", "maybe")],
            ("ca.crt", AUTHORITY),
            "maybe",
        ),
        (
            &[SECRET, ("auth-tls-match-cn", "CN=a")],
            ("ca.crt", AUTHORITY),
            "auth-tls-match-cn",
        ),
    ] {
        let mut cluster = cluster();
        put_ca(&mut cluster, "shop", "ca", content);
        put_ca(&mut cluster, "other", "ca", ("ca.crt", AUTHORITY));
        put_ingress(&mut cluster, "a", annotations, with_tls("a.example"));
        let (translation, config) = translate_all(&cluster);
        let closed = messages(&translation);
        assert!(
            closed.len() == 1 && closed[0].starts_with("a: Closed") && closed[0].contains(told),
            "{closed:?}"
        );
        for rule in &config.rules {
            let open = format!("a.example => {WEB}");
            assert!(!list_routes(rule).contains(&open), "{}", translation.text);
        }
        // Others are served.
        let rules = config.rules.iter();
        let served = rules.flat_map(list_routes);
        let open = format!("open.example => {WEB}");
        assert_eq!(
            served.filter(|of| *of == open).count(),
            1,
            "{annotations:?}"
        );
    }
    // A grant lets the Ingress use the secret.
    let mut cluster = cluster();
    put_ca(&mut cluster, "other", "ca", ("ca.crt", AUTHORITY));
    cluster.put(
        Kind::ReferenceGrant,
        json!({ "metadata": { "namespace": "other", "name": "g" },
                "spec": { "from": [{ "group": "networking.k8s.io", "kind": "Ingress", "namespace": "shop" }],
                          "to": [{ "group": "", "kind": "Secret" }] } }),
    );
    let annotations = [("auth-tls-secret", "other/ca")];
    put_ingress(&mut cluster, "a", &annotations, with_tls("a.example"));
    let (translation, config) = translate_all(&cluster);
    assert_eq!(messages(&translation), [""; 0]);
    assert_eq!(verifying(&config).len(), 1);
}

#[test]
fn a_host_without_usable_authorities_is_shut_for_all_its_ingresses() {
    let mut cluster = cluster();
    put_ca(&mut cluster, "shop", "ca", ("ca.crt", "x"));
    put_ingress(&mut cluster, "a", &[SECRET], with_tls("a.example"));
    let other = spec("a.example", json!([path("/other", "Prefix", "web")]));
    put_ingress(&mut cluster, "b", &[], other);
    let (translation, config) = translate_all(&cluster);
    let rule = rule(&config, OUTER);
    assert_eq!(
        list_routes(rule),
        [
            "a.example => 404".to_owned(),
            format!("open.example => {WEB}"),
            " => 404".to_owned()
        ],
        "{}",
        translation.text
    );
}

/// Makes an Ingress the newest one of another namespace.
fn move_away(cluster: &mut Cluster, name: &str) {
    let own = ObjectName::new("shop", name);
    let mut moved = (*cluster.0.ingresses[&own]).clone();
    assert!(cluster.0.remove(Kind::Ingress, &own));
    moved.metadata.namespace = "other".into();
    moved.metadata.creation_timestamp = "2026-02-01T00:00:00Z".into();
    let name = moved.metadata.object_name();
    cluster.0.ingresses.insert(name, moved.into());
}

#[test]
fn no_other_namespace_shuts_clients_out() {
    let mut cluster = cluster();
    put_ca(&mut cluster, "other", "ca", ("ca.crt", AUTHORITY));
    let paths = json!([path("/x", "Prefix", "web")]);
    put_ingress(&mut cluster, "b", &[SECRET], spec("open.example", paths));
    move_away(&mut cluster, "b");
    let (translation, config) = translate_all(&cluster);
    assert!(verifying(&config).is_empty(), "{}", translation.text);
    let told = messages(&translation);
    assert!(
        told[0].starts_with("b: Closed") && told[0].contains("of another namespace"),
        "{told:?}"
    );
    let routes = list_routes(rule(&config, OUTER));
    assert_eq!(routes[0], "open.example => 503");
    assert_eq!(routes[1], format!("open.example => {WEB}"));
    // Two Ingresses of a namespace agree on the clients of a host.
    put_ingress(&mut cluster, "c", &[SECRET], with_tls("c.example"));
    let optional = [SECRET, ("auth-tls-verify-client", "optional")];
    let paths = json!([path("/x", "Prefix", "web")]);
    put_ingress(&mut cluster, "d", &optional, spec("c.example", paths));
    let (translation, config) = translate_all(&cluster);
    assert_eq!(verifying(&config).len(), 1);
    let told = messages(&translation);
    assert!(
        told.iter().any(|of| of.starts_with("d: Closed")),
        "{told:?}"
    );
    // Requests without a host come before the client is known.
    let everywhere = json!({ "ingressClassName": "edge", "defaultBackend": { "service": { "name": "web", "port": { "number": 80 } } } });
    put_ingress(&mut cluster, "e", &[SECRET], everywhere);
    let (translation, config) = translate_all(&cluster);
    assert_eq!(verifying(&config).len(), 1);
    let told = messages(&translation);
    assert!(
        { told.iter() }.any(|of| of.starts_with("e: Closed") && of.contains("host name")),
        "{told:?}"
    );
}

#[test]
fn hosts_below_a_wildcard_keep_their_clients() {
    let mut cluster = cluster();
    put_ingress(&mut cluster, "wide", &[SECRET], with_tls("*.example"));
    let (translation, config) = translate_all(&cluster);
    assert_eq!(messages(&translation), [""; 0]);
    let [wide] = verifying(&config)[..] else {
        panic!("{}", translation.text);
    };
    let outer = rule(&config, OUTER);
    let wanted = [("open.example", PLAIN), ("**.example", &wide.name)];
    assert_eq!(outer.sni, names(&wanted));
    assert_eq!(
        wide.http.separate_hosts,
        ["open.example", "**.example", "*"]
    );
    assert_eq!(
        list_routes(wide),
        [
            "open.example => 404".to_owned(),
            format!("*.example => {WEB}"),
            "**.example => 404".to_owned()
        ]
    );
}

#[test]
fn an_ingress_takes_no_host_from_a_gateway() {
    for hostname in ["a.example", "*.example", ""] {
        for content in [AUTHORITY, "x"] {
            let mut cluster = cluster();
            put_ca(&mut cluster, "shop", "ca", ("ca.crt", content));
            cluster.gateway(
                "g",
                json!([{ "name": "https", "port": 443, "protocol": "HTTPS", "hostname": hostname,
                         "tls": { "certificateRefs": [{ "name": "cert" }] } }]),
            );
            cluster.route("r", json!(["a.example"]), json!([{ "backendRefs": web() }]));
            put_ingress(&mut cluster, "a", &[SECRET], with_tls("a.example"));
            let (translation, config) = translate_all(&cluster);
            assert!(verifying(&config).is_empty(), "{}", translation.text);
            assert_eq!(parent_conditions(&translation, Kind::HttpRoute, "r"), GOOD);
            let routes = list_routes(rule(&config, OUTER));
            let first = routes.iter().find(|of| of.starts_with("a.example =>"));
            assert_eq!(*first.unwrap(), format!("a.example => {WEB}"), "{hostname}");
            let told = messages(&translation);
            assert!(told[0].starts_with("a: Closed"), "{told:?}");
        }
    }
}

#[test]
fn clients_of_names_that_nobody_has_are_refused_beside_gateways() {
    let mut cluster = cluster();
    let listener = |name: &str, host: &str| {
        json!({ "name": name, "port": 8443, "protocol": "HTTPS", "hostname": host,
                "tls": { "certificateRefs": [{ "name": "cert" }] } })
    };
    cluster.put(
        Kind::ConfigMap,
        json!({ "metadata": { "namespace": "shop", "name": "ca" }, "data": { "ca.crt": AUTHORITY } }),
    );
    cluster.gateway("g", json!([listener("a", "a.example")]));
    let validation =
        json!({ "caCertificateRefs": [{ "group": "", "kind": "ConfigMap", "name": "ca" }] });
    cluster.put(
        Kind::Gateway,
        json!({ "metadata": { "namespace": "shop", "name": "h", "creationTimestamp": "2026-02-01T00:00:00Z" },
                "spec": { "gatewayClassName": "evenkeel", "listeners": [listener("b", "b.example")],
                          "tls": { "frontend": { "default": { "validation": validation } } } } }),
    );
    let parents = json!([{ "name": "g" }, { "name": "h" }]);
    let rules = json!([{ "backendRefs": web() }]);
    cluster.route_at(Kind::HttpRoute, "r", parents, json!([]), rules);
    let (translation, config) = translate_all(&cluster);
    for gateway in ["g", "h"] {
        let status = status_of(&translation, Kind::Gateway, gateway);
        let shown = show(&status["listeners"][0]["conditions"]);
        assert_eq!(shown[0], "Accepted=True/Accepted", "{gateway}");
    }
    let [verified] = verifying(&config)[..] else {
        panic!("{}", translation.text);
    };
    let outer = rule(&config, "kubernetes.8443");
    let wanted = [
        ("a.example", "kubernetes.8443.https"),
        ("b.example", &verified.name),
    ];
    assert_eq!(outer.sni, names(&wanted));
    assert_eq!(outer.group, NOBODY);
    assert_eq!(list_routes(verified), [format!("b.example => {WEB}")]);
}
