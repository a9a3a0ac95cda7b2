//! Certificates of clients at gateways, and the certificate that members see.

use evenkeel_config::{ClientCertificates, Config};

use super::policies::{AUTHORITY, by_authority, put_authority, put_policy};
use super::streams::{put_certificate, put_tls_route, tls_listener};
use super::*;

/// Listener for HTTPS at a port.
fn https(name: &str, port: u16) -> Value {
    json!({ "name": name, "port": port, "protocol": "HTTPS", "tls": { "certificateRefs": [{ "name": "cert" }] } })
}

/// Verification by a ConfigMap of the gateway's namespace.
fn by(name: &str) -> Value {
    json!({ "validation": { "caCertificateRefs": [{ "group": "", "kind": "ConfigMap", "name": name }] } })
}

fn put_config_map(cluster: &mut Cluster, namespace: &str, name: &str, text: &str) {
    cluster.put(
        Kind::ConfigMap,
        json!({ "metadata": { "namespace": namespace, "name": name }, "data": { "ca.crt": text } }),
    );
}

/// Returns the certificate of a new authority.
fn new_authority() -> String {
    let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let key = rcgen::KeyPair::generate().unwrap();
    params.self_signed(&key).unwrap().pem()
}

/// Adds a gateway `shop/NAME` of an age with settings of TLS.
fn put_gateway(cluster: &mut Cluster, name: &str, year: u32, tls: Value, listeners: Value) {
    cluster.put(
        Kind::Gateway,
        json!({ "metadata": { "namespace": "shop", "name": name, "creationTimestamp": format!("{year}-01-01T00:00:00Z") },
                "spec": { "gatewayClassName": "evenkeel", "tls": tls, "listeners": listeners } }),
    );
}

/// Cluster with certificates of two authorities, and a route to service `web` at gateway `g`.
fn cluster() -> Cluster {
    let mut cluster = Cluster::new();
    put_certificate(&mut cluster, "cert");
    put_authority(&mut cluster, AUTHORITY);
    put_config_map(&mut cluster, "shop", "partners", &new_authority());
    cluster.route("r", json!([]), json!([{ "backendRefs": web() }]));
    cluster
}

fn parse(translation: &Translation) -> Config {
    evenkeel_config::parse_generated(&translation.text).unwrap()
}

/// Returns the certificates of clients that the rule at a port demands; `None` without a rule.
fn find_demand(config: &Config, port: u16) -> Option<Option<ClientCertificates>> {
    let rule = format!("kubernetes.{port}");
    let rule = config.rules.iter().find(|of| of.name == rule)?;
    Some(rule.tls.as_ref()?.client_certificates.clone())
}

/// Returns the conditions of a listener of gateway `g`.
fn listener_conditions(translation: &Translation, number: usize) -> Vec<String> {
    let gateway = status_of(translation, Kind::Gateway, "g");
    show(&gateway["listeners"][number]["conditions"])
}

const GOOD_LISTENER: [&str; 4] = [
    "Accepted=True/Accepted",
    "Conflicted=False/NoConflicts",
    "ResolvedRefs=True/ResolvedRefs",
    "Programmed=True/Programmed",
];

#[test]
fn clients_show_certificates_of_the_authorities_of_their_port() {
    let mut cluster = cluster();
    let frontend = json!({ "default": by("ca"), "perPort": [
        { "port": 8443, "tls": by("partners") }, { "port": 9443, "tls": {} }, { "port": 80, "tls": by("none") }] });
    put_gateway(
        &mut cluster,
        "g",
        2026,
        json!({ "frontend": frontend }),
        json!([https("a", 443), https("b", 8443), https("c", 9443),
               { "name": "d", "port": 80, "protocol": "HTTP" }]),
    );
    let translation = cluster.translate();
    for number in 0..4 {
        assert_eq!(listener_conditions(&translation, number), GOOD_LISTENER);
    }
    let shown = show(&status_of(&translation, Kind::Gateway, "g")["conditions"]);
    let wanted = [
        "Accepted=True/Accepted",
        "Programmed=True/Programmed",
        "ResolvedRefs=True/ResolvedRefs",
    ];
    assert_eq!(shown, wanted);
    let config = parse(&translation);
    let read = |port| {
        let demand = find_demand(&config, port).unwrap().unwrap();
        assert!(demand.required && !demand.accept_invalid);
        translation.files[&demand.ca_file.path].to_vec()
    };
    assert_eq!(read(443), format!("{AUTHORITY}\n").as_bytes());
    assert_ne!(read(8443), read(443));
    assert_eq!(find_demand(&config, 9443), Some(None));
    // A new certificate of an authority has another path, so that it is read.
    let path = |translation: &Translation| {
        let demand = find_demand(&parse(translation), 443);
        demand.unwrap().unwrap().ca_file.path
    };
    put_authority(&mut cluster, &format!("{AUTHORITY}{}", new_authority()));
    assert_ne!(path(&cluster.translate()), path(&translation));
}

#[test]
fn connections_of_listeners_that_end_tls_are_verified_too() {
    let mut cluster = cluster();
    let frontend = json!({ "default": by("ca") });
    let listeners = json!([
        tls_listener("ends", "a.example.org", "Terminate"),
        tls_listener("passes", "b.example.org", "Passthrough"),
    ]);
    let tls = json!({ "frontend": frontend });
    put_gateway(&mut cluster, "g", 2026, tls, listeners);
    put_tls_route(&mut cluster, "a", "a.example.org", "ends", "web");
    put_tls_route(&mut cluster, "b", "b.example.org", "passes", "web");
    let translation = cluster.translate();
    let demand = find_demand(&parse(&translation), 8443).unwrap();
    assert!(demand.unwrap().required);
    assert_eq!(listener_conditions(&translation, 1), GOOD_LISTENER);
}

#[test]
fn clients_without_a_good_certificate_are_served_if_a_gateway_says_so() {
    let mut cluster = cluster();
    let mut validation = by("ca");
    validation["validation"]["mode"] = "AllowInsecureFallback".into();
    let put = |cluster: &mut Cluster, validation: &Value| {
        let tls = json!({ "frontend": { "default": validation } });
        put_gateway(cluster, "g", 2026, tls, json!([https("a", 443)]));
        let translation = cluster.translate();
        let demand = find_demand(&parse(&translation), 443).unwrap().unwrap();
        let conditions = show(&status_of(&translation, Kind::Gateway, "g")["conditions"]);
        (demand.required, demand.accept_invalid, conditions)
    };
    let (required, accept_invalid, conditions) = put(&mut cluster, &validation);
    assert!(!required && accept_invalid);
    let insecure = "InsecureFrontendValidationMode=True/ConfigurationChanged";
    assert_eq!(conditions[3], insecure);
    validation["validation"]["mode"] = "AllowValidOnly".into();
    let (required, accept_invalid, conditions) = put(&mut cluster, &validation);
    assert!(required && !accept_invalid);
    assert_eq!(conditions.len(), 3);
}

#[test]
fn nobody_gets_in_where_certificates_cannot_be_verified() {
    let mut cluster = cluster();
    put_config_map(&mut cluster, "shop", "broken", "x");
    put_config_map(&mut cluster, "other", "foreign", AUTHORITY);
    cluster.put(
        Kind::ConfigMap,
        json!({ "metadata": { "namespace": "shop", "name": "empty" }, "data": {} }),
    );
    let reference = |kind: &str, name: &str| json!({ "group": "", "kind": kind, "name": name });
    let mut foreign = reference("ConfigMap", "foreign");
    foreign["namespace"] = "other".into();
    let put = |cluster: &mut Cluster, references: Value| {
        let validation = json!({ "validation": { "caCertificateRefs": references } });
        put_gateway(
            cluster,
            "g",
            2026,
            json!({ "frontend": { "default": validation } }),
            json!([https("a", 443), { "name": "b", "port": 80, "protocol": "HTTP" }]),
        );
        let translation = cluster.translate();
        assert_eq!(listener_conditions(&translation, 1), GOOD_LISTENER);
        translation
    };
    for (references, reason) in [
        (json!([]), "InvalidCACertificateRef"),
        (
            json!([reference("ConfigMap", "none")]),
            "InvalidCACertificateRef",
        ),
        (
            json!([reference("ConfigMap", "broken")]),
            "InvalidCACertificateRef",
        ),
        (
            json!([reference("ConfigMap", "empty")]),
            "InvalidCACertificateRef",
        ),
        (
            json!([reference("Service", "web")]),
            "InvalidCACertificateKind",
        ),
        (json!([foreign]), "RefNotPermitted"),
    ] {
        let translation = put(&mut cluster, references.clone());
        let shown = listener_conditions(&translation, 0);
        assert_eq!(
            shown[0], "Accepted=False/NoValidCACertificate",
            "{references}"
        );
        assert_eq!(
            shown[2],
            format!("ResolvedRefs=False/{reason}"),
            "{references}"
        );
        assert_eq!(shown[3], "Programmed=False/Invalid", "{references}");
        let config = parse(&translation);
        assert_eq!(find_demand(&config, 443), None, "{references}");
        assert_eq!(config.rules.len(), 1, "{references}");
        let gateway = status_of(&translation, Kind::Gateway, "g");
        let shown = show(&gateway["conditions"]);
        assert_eq!(shown[0], "Accepted=True/ListenersNotValid", "{references}");
        assert_eq!(
            shown[2], "ResolvedRefs=False/ListenersNotResolved",
            "{references}"
        );
    }
    // Certificates that can be used are enough.
    let both = json!([reference("ConfigMap", "ca"), reference("ConfigMap", "none")]);
    let translation = put(&mut cluster, both);
    let shown = listener_conditions(&translation, 0);
    assert_eq!(shown[0], GOOD_LISTENER[0]);
    assert_eq!(shown[2], "ResolvedRefs=False/InvalidCACertificateRef");
    let demand = find_demand(&parse(&translation), 443).unwrap().unwrap();
    let text = translation.files[&demand.ca_file.path].to_vec();
    assert_eq!(text, format!("{AUTHORITY}\n").as_bytes());
    // A grant is for gateways of the namespace.
    cluster.put(
        Kind::ReferenceGrant,
        json!({ "metadata": { "namespace": "other", "name": "g" },
                "spec": { "from": [{ "group": "gateway.networking.k8s.io", "kind": "Gateway", "namespace": "shop" }],
                          "to": [{ "group": "", "kind": "ConfigMap", "name": "foreign" }] } }),
    );
    let translation = put(&mut cluster, json!([foreign]));
    assert_eq!(listener_conditions(&translation, 0), GOOD_LISTENER);
    assert!(find_demand(&parse(&translation), 443).unwrap().is_some());
}

#[test]
fn settings_of_tls_that_are_not_known_close_the_gateway_alone() {
    for tls in [
        json!({ "frontend": { "default": { "validation": { "caCertificateRefs": [], "crl": "x" } } } }),
        json!({ "frontend": { "default": { "other": {} } } }),
        json!({ "backend": { "verify": false } }),
        json!({ "frontend": { "default": { "validation": 7 } } }),
        json!({ "other": {} }),
    ] {
        let mut cluster = cluster();
        put_gateway(
            &mut cluster,
            "g",
            2025,
            tls.clone(),
            json!([https("a", 443)]),
        );
        cluster.gateway("h", json!([https("b", 8443)]));
        let translation = cluster.translate();
        let gateway = status_of(&translation, Kind::Gateway, "g");
        assert_eq!(
            show(&gateway["conditions"])[0],
            "Accepted=False/Invalid",
            "{tls}"
        );
        let config = parse(&translation);
        assert_eq!(find_demand(&config, 443), None, "{tls}");
        assert_eq!(find_demand(&config, 8443), Some(None), "{tls}");
    }
    let mut cluster = cluster();
    let mut validation = by("ca");
    validation["validation"]["mode"] = "Other".into();
    let tls = json!({ "frontend": { "default": validation } });
    put_gateway(&mut cluster, "g", 2025, tls, json!([https("a", 443)]));
    let translation = cluster.translate();
    let shown = listener_conditions(&translation, 0);
    assert_eq!(shown[0], "Accepted=False/UnsupportedValue");
    assert_eq!(find_demand(&parse(&translation), 443), None);
}

#[test]
fn gateways_that_share_a_port_verify_clients_by_name() {
    let listener = |host: &str| {
        let mut listener = https("a", 443);
        listener["hostname"] = host.into();
        json!([listener])
    };
    let same = json!({ "frontend": { "default": by("ca") } });
    let other = json!({ "frontend": { "default": by("partners") } });
    let mut insecure = by("ca");
    insecure["validation"]["mode"] = "AllowInsecureFallback".into();
    let insecure = json!({ "frontend": { "default": insecure } });
    for (older, younger, verifying) in [
        (&same, &same, [1, 1]),
        (&same, &other, [2, 3]),
        (&same, &insecure, [2, 3]),
        (&same, &Value::Null, [1, 3]),
        (&Value::Null, &same, [1, 3]),
    ] {
        let mut cluster = cluster();
        put_gateway(
            &mut cluster,
            "h",
            2025,
            older.clone(),
            listener("h.example.org"),
        );
        put_gateway(
            &mut cluster,
            "g",
            2026,
            younger.clone(),
            listener("g.example.org"),
        );
        let translation = cluster.translate();
        for gateway in ["g", "h"] {
            let status = status_of(&translation, Kind::Gateway, gateway);
            let shown = show(&status["listeners"][0]["conditions"]);
            assert_eq!(shown, GOOD_LISTENER, "{older} {younger}");
        }
        let config = parse(&translation);
        let tls = config.rules.iter().filter_map(|rule| rule.tls.as_ref());
        let clients = tls.filter(|tls| tls.client_certificates.is_some());
        // If they differ, names choose between rules behind a rule for connections.
        assert_eq!(
            [clients.count(), config.rules.len()],
            verifying,
            "{older} {younger}"
        );
    }
}

#[test]
fn connections_at_a_port_are_verified_in_the_same_way() {
    let mut cluster = cluster();
    let listener = |host: &str| json!([tls_listener("ends", host, "Terminate")]);
    let tls = json!({ "frontend": { "default": by("ca") } });
    put_gateway(&mut cluster, "h", 2025, tls, listener("h.example.org"));
    put_gateway(
        &mut cluster,
        "g",
        2026,
        Value::Null,
        listener("g.example.org"),
    );
    let translation = cluster.translate();
    let shown = listener_conditions(&translation, 0);
    assert_eq!(shown[0], "Accepted=False/PortUnavailable");
    // With addresses of their own both serve.
    let pool = Settings {
        pool: vec![[192, 0, 2, 1].into(), [192, 0, 2, 2].into()],
        ..settings()
    };
    let translation = translate(&cluster.0, &pool, &Refused::new());
    assert_eq!(listener_conditions(&translation, 0), GOOD_LISTENER);
}

/// Returns the groups with the certificates that their members see.
fn list_shown(translation: &Translation) -> Vec<(String, Option<String>)> {
    let config = parse(translation);
    let groups = config.groups.iter();
    let shown = groups.map(|group| {
        let tls = group.member_tls.clone().unwrap();
        let paths = tls.certificate.zip(tls.key);
        let paths = paths.map(|(certificate, key)| {
            for path in [&certificate.path, &key.path] {
                assert!(translation.files.contains_key(path), "{path:?}");
            }
            certificate.path.display().to_string()
        });
        (group.name.clone(), paths)
    });
    shown.collect()
}

fn show_to_members(secret: &str) -> Value {
    json!({ "backend": { "clientCertificateRef": { "group": "", "kind": "Secret", "name": secret } } })
}

#[test]
fn members_see_the_certificate_of_the_gateway() {
    let mut cluster = cluster();
    put_policy(&mut cluster, "p", Value::Null, by_authority());
    put_certificate(&mut cluster, "one");
    put_certificate(&mut cluster, "two");
    let http = |port: u16| json!([{ "name": "a", "port": port, "protocol": "HTTP" }]);
    put_gateway(&mut cluster, "g", 2025, show_to_members("one"), http(80));
    put_gateway(&mut cluster, "h", 2025, show_to_members("two"), http(81));
    put_gateway(&mut cluster, "i", 2025, Value::Null, http(82));
    let parents = json!([{ "name": "g" }, { "name": "h" }, { "name": "i" }]);
    let rules = json!([{ "backendRefs": web() }]);
    cluster.route_at(Kind::HttpRoute, "r", parents, json!([]), rules);
    let translation = cluster.translate();
    let gateway = status_of(&translation, Kind::Gateway, "g");
    assert_eq!(
        show(&gateway["conditions"])[2],
        "ResolvedRefs=True/ResolvedRefs"
    );
    let shown = list_shown(&translation);
    let tls = "kubernetes.shop.web.80.tls";
    let find = |name: &str| {
        let mut all = shown.iter();
        all.find(|(of, _)| of == name).unwrap().1.clone()
    };
    assert_eq!(shown.len(), 3, "{shown:?}");
    assert_eq!(find(tls), None);
    for secret in ["one", "two"] {
        let path = find(&format!("{tls}.client.shop.{secret}")).unwrap();
        assert!(path.contains(&format!("/shop/{secret}/")), "{path}");
    }
    // Each port leads to the group with the certificate of its gateway.
    let config = parse(&translation);
    for (port, group) in [
        (80, format!("{tls}.client.shop.one")),
        (81, format!("{tls}.client.shop.two")),
        (82, tls.to_owned()),
    ] {
        let name = format!("kubernetes.{port}");
        let rule = config.rules.iter().find(|of| of.name == name).unwrap();
        assert_eq!(rule.routes.list()[0].group, group);
    }
    assert_eq!(parent_conditions(&translation, Kind::HttpRoute, "r"), GOOD);
}

#[test]
fn members_of_connections_see_the_certificate_of_the_gateway() {
    let mut cluster = cluster();
    put_policy(&mut cluster, "p", Value::Null, by_authority());
    put_certificate(&mut cluster, "one");
    let tcp = |port: u16| json!([{ "name": "a", "port": port, "protocol": "TCP" }]);
    put_gateway(&mut cluster, "g", 2025, show_to_members("one"), tcp(80));
    put_gateway(&mut cluster, "h", 2025, Value::Null, tcp(81));
    let parents = json!([{ "name": "g" }, { "name": "h" }]);
    let rules = json!([{ "backendRefs": web() }]);
    cluster.route_at(Kind::TcpRoute, "t", parents, json!([]), rules);
    let translation = cluster.translate();
    let tls = "kubernetes.shop.web.80.tls";
    let config = parse(&translation);
    let of_rules = config.rules.iter().map(|rule| rule.group.as_str());
    let of_rules: Vec<&str> = of_rules.collect();
    assert_eq!(of_rules, [&*format!("{tls}.client.shop.one"), tls]);
    let shown = list_shown(&translation);
    let with_certificate = shown.iter().filter(|(_, path)| path.is_some());
    assert_eq!((shown.len(), with_certificate.count()), (2, 1));
    assert_eq!(parent_conditions(&translation, Kind::TcpRoute, "t"), GOOD);
}

#[test]
fn a_new_certificate_for_members_changes_the_group_only() {
    let mut cluster = cluster();
    put_policy(&mut cluster, "p", Value::Null, by_authority());
    let put = |cluster: &mut Cluster, version: &str| {
        let made = rcgen::generate_simple_self_signed(["a.example".to_owned()]).unwrap();
        let encode =
            |text: String| base64::Engine::encode(&base64::engine::general_purpose::STANDARD, text);
        cluster.put(
            Kind::Secret,
            json!({ "metadata": { "namespace": "shop", "name": "one", "resourceVersion": version },
                    "data": { "tls.crt": encode(made.cert.pem()), "tls.key": encode(made.signing_key.serialize_pem()) } }),
        );
    };
    put(&mut cluster, "1");
    let listeners = json!([{ "name": "a", "port": 80, "protocol": "HTTP" }]);
    put_gateway(&mut cluster, "g", 2025, show_to_members("one"), listeners);
    let before = cluster.translate();
    put(&mut cluster, "2");
    let after = cluster.translate();
    assert_eq!(routes(&after), routes(&before));
    let (before, after) = (list_shown(&before), list_shown(&after));
    assert_eq!(before[0].0, after[0].0);
    assert_ne!(before[0].1, after[0].1);
}

#[test]
fn a_certificate_for_members_that_cannot_be_used_is_not_shown() {
    let mut cluster = cluster();
    put_policy(&mut cluster, "p", Value::Null, by_authority());
    cluster.put(
        Kind::Secret,
        json!({ "metadata": { "namespace": "shop", "name": "broken" }, "data": {} }),
    );
    let with = |key: &str, value: &str| {
        let mut tls = show_to_members("cert");
        tls["backend"]["clientCertificateRef"][key] = value.into();
        tls
    };
    let invalid = "ResolvedRefs=False/InvalidClientCertificateRef";
    for (tls, condition) in [
        (show_to_members("none"), invalid),
        (show_to_members("broken"), invalid),
        (with("kind", "WrongKind"), invalid),
        (with("group", "wrong.example"), invalid),
        (
            with("namespace", "other"),
            "ResolvedRefs=False/RefNotPermitted",
        ),
    ] {
        let listeners = json!([{ "name": "a", "port": 80, "protocol": "HTTP" }]);
        put_gateway(&mut cluster, "g", 2025, tls.clone(), listeners);
        let translation = cluster.translate();
        let gateway = status_of(&translation, Kind::Gateway, "g");
        let wanted = [GOOD[0], "Programmed=True/Programmed", condition];
        assert_eq!(show(&gateway["conditions"]), wanted, "{tls}");
        let shown = list_shown(&translation);
        assert_eq!(
            shown,
            [("kubernetes.shop.web.80.tls".into(), None)],
            "{tls}"
        );
    }
}

#[test]
fn clients_of_a_listener_get_to_no_other_one() {
    let separate = |cluster: &Cluster| {
        let config = parse(&cluster.translate());
        let rule = config.rules.iter().find(|of| of.name.contains("443"));
        rule.unwrap().http.separate_hosts.clone()
    };
    let with_host = |name: &str, host: &str| {
        let mut listener = https(name, 443);
        listener["hostname"] = host.into();
        listener
    };
    let mut cluster = cluster();
    cluster.gateway("g", json!([https("a", 443)]));
    assert_eq!(separate(&cluster), Vec::<String>::new());
    let others = json!([
        https("a", 443),
        with_host("b", "b.example.org"),
        with_host("c", "*.example.org")
    ]);
    cluster.gateway("g", others);
    let wanted = ["b.example.org", "**.example.org", "*"];
    assert_eq!(separate(&cluster), wanted);
    // A single name cannot be mistaken for another one.
    cluster.gateway("g", json!([with_host("b", "b.example.org")]));
    assert_eq!(separate(&cluster), Vec::<String>::new());
    // Names of listeners for connections at the same port count, too.
    let mut passes = tls_listener("p", "p.example.org", "Passthrough");
    passes["port"] = 443.into();
    cluster.gateway("g", json!([with_host("b", "b.example.org"), passes]));
    put_tls_route(&mut cluster, "p", "p.example.org", "p", "web");
    let config = parse(&cluster.translate());
    let rule = config
        .rules
        .iter()
        .find(|of| of.name == "kubernetes.443.https");
    let wanted = ["b.example.org", "p.example.org"];
    assert_eq!(rule.unwrap().http.separate_hosts, wanted);
}
