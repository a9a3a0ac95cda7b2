//! Tests of BackendTLSPolicy.

use serde_json::{Value, json};

use super::*;

/// Certificate of an authority.
pub(super) const AUTHORITY: &str = "-----BEGIN CERTIFICATE-----
MIIBgDCCASWgAwIBAgIUTsgypkeJDWxBz0D4TOLI8Z5zZYAwCgYIKoZIzj0EAwIw
FDESMBAGA1UEAwwJYXV0aG9yaXR5MCAXDTI2MTEyOTAzNDE1M1oYDzIxMjYxMTA1
MDM0MTUzWjAUMRIwEAYDVQQDDAlhdXRob3JpdHkwWTATBgcqhkjOPQIBBggqhkjO
PQMBBwNCAAST52/kY86ymLHq9zi+WOOx0cS22dtex1vKv+DNfn5Z18m00bAnZwsN
VgQWmUboaoHBH+ZJcdBJjIgP9qmiEWJOo1MwUTAdBgNVHQ4EFgQUVaNlot5p5SVu
FSNXerQ2KB+xhWEwHwYDVR0jBBgwFoAUVaNlot5p5SVuFSNXerQ2KB+xhWEwDwYD
VR0TAQH/BAUwAwEB/zAKBggqhkjOPQQDAgNJADBGAiEA3GnJCqqUdC2t012Sl+Pa
G83gtQM+CVn2CtLySKPBfdICIQDqsYljCL2YO9PPCSXZcxGS7Mvo4d1r3Wp26uKs
R15z5Q==
-----END CERTIFICATE-----
";

pub(super) fn put_authority(cluster: &mut Cluster, text: &str) {
    cluster.put(
        Kind::ConfigMap,
        json!({ "metadata": { "namespace": "shop", "name": "ca" },
                "data": { "ca.crt": text, "other": "long" }, "binaryData": { "x": "AAAA" } }),
    );
}

/// Adds a policy `shop/NAME` for service `web` with these conditions on certificates.
pub(super) fn put_policy(cluster: &mut Cluster, name: &str, section: Value, validation: Value) {
    cluster.put(
        Kind::BackendTlsPolicy,
        json!({ "metadata": { "namespace": "shop", "name": name, "generation": 4 },
                "spec": { "targetRefs": [{ "group": "", "kind": "Service", "name": "web", "sectionName": section }],
                          "validation": validation } }),
    );
}

pub(super) fn by_authority() -> Value {
    json!({ "hostname": "in.example", "caCertificateRefs": [{ "group": "", "kind": "ConfigMap", "name": "ca" }] })
}

/// Cluster with a route to service `web` and the certificate of an authority.
fn cluster() -> Cluster {
    let mut cluster = plain();
    put_authority(&mut cluster, AUTHORITY);
    cluster.route("r", json!([]), json!([{ "backendRefs": web() }]));
    cluster
}

fn conditions(translation: &Translation, name: &str) -> Vec<String> {
    let status = status_of(translation, Kind::BackendTlsPolicy, name);
    show(&status["ancestors"][0]["conditions"])
}

/// Returns the settings of TLS to members of the only group, but for the file of authorities.
fn read_tls(translation: &Translation) -> (Option<String>, Vec<String>, Option<Vec<u8>>) {
    let config = evenkeel_config::parse_generated(&translation.text).unwrap();
    let tls = config.groups[0].member_tls.clone().unwrap();
    let file = tls
        .ca_file
        .map(|file| translation.files[&file.path].to_vec());
    (tls.server_name, tls.certificate_names, file)
}

#[test]
fn members_speak_tls_if_a_policy_says_so() {
    let mut cluster = cluster();
    put_policy(&mut cluster, "p", Value::Null, by_authority());
    let translation = cluster.translate();
    assert_eq!(routes(&translation), ["=> kubernetes.shop.web.80.tls"]);
    let (name, names, file) = read_tls(&translation);
    assert_eq!(name.as_deref(), Some("in.example"));
    assert_eq!(names, Vec::<String>::new());
    assert_eq!(file.unwrap(), format!("{AUTHORITY}\n").as_bytes());
    assert_eq!(conditions(&translation, "p"), GOOD);
    let ancestor = &status_of(&translation, Kind::BackendTlsPolicy, "p")["ancestors"][0];
    let gateway = json!({ "group": "gateway.networking.k8s.io", "kind": "Gateway", "namespace": "shop", "name": "g" });
    assert_eq!(ancestor["ancestorRef"], gateway);
    assert_eq!(ancestor["controllerName"], "evenkeel.org/gateway");
    assert_eq!(ancestor["conditions"][0]["observedGeneration"], 4);
    assert_eq!(parent_conditions(&translation, Kind::HttpRoute, "r"), GOOD);
    // Other names for the certificate, and the authorities of the system.
    let mut validation = json!({ "hostname": "in.example", "wellKnownCACertificates": "System" });
    validation["subjectAltNames"] = json!([{ "type": "Hostname", "hostname": "other.example" },
                                           { "type": "URI", "uri": "spiffe://other.example/web" }]);
    put_policy(&mut cluster, "p", Value::Null, validation);
    let translation = cluster.translate();
    if conditions(&translation, "p") == GOOD {
        let (_, names, file) = read_tls(&translation);
        let wanted = ["other.example", "spiffe://other.example/web"];
        assert_eq!((&names[..], file), (&wanted.map(String::from)[..], None));
    } else {
        eprintln!("SKIPPED: members_speak_tls_if_a_policy_says_so: the system trusts nobody");
    }
}

#[test]
fn a_new_certificate_of_an_authority_changes_the_group_only() {
    let mut cluster = cluster();
    put_policy(&mut cluster, "p", Value::Null, by_authority());
    let before = cluster.translate();
    put_authority(&mut cluster, &format!("{AUTHORITY}{AUTHORITY}"));
    let after = cluster.translate();
    assert_eq!(routes(&after), routes(&before));
    assert_ne!(after.text, before.text);
    assert_ne!(read_tls(&after).2, read_tls(&before).2);
}

#[test]
fn calls_and_connections_get_tls_and_passed_connections_do_not() {
    let mut cluster = Cluster::new();
    put_authority(&mut cluster, AUTHORITY);
    put_policy(&mut cluster, "p", Value::Null, by_authority());
    cluster.gateway(
        "g",
        json!([{ "name": "http", "port": 80, "protocol": "HTTP" },
               { "name": "tcp", "port": 5432, "protocol": "TCP" },
               { "name": "tls", "port": 8443, "protocol": "TLS", "tls": { "mode": "Passthrough" } }]),
    );
    for kind in [Kind::GrpcRoute, Kind::TcpRoute, Kind::TlsRoute] {
        let rules = json!([{ "backendRefs": web() }]);
        cluster.route_at(kind, "r", json!([{ "name": "g" }]), json!([]), rules);
    }
    let translation = cluster.translate();
    let config = evenkeel_config::parse_generated(&translation.text).unwrap();
    let groups = config.groups.iter();
    let mut groups: Vec<_> = groups
        .map(|of| (of.name.to_string(), of.member_tls.is_some()))
        .collect();
    groups.sort();
    let wanted = [
        ("kubernetes.shop.web.80", false),
        ("kubernetes.shop.web.80.tls", true),
        ("kubernetes.shop.web.80.tls.h2", true),
    ];
    assert_eq!(
        groups,
        wanted.map(|(name, is_tls)| (name.to_owned(), is_tls))
    );
    assert_eq!(conditions(&translation, "p"), GOOD);
    // A port whose members speak TLS needs a policy.
    let rules = json!([{ "backendRefs": [{ "name": "web", "port": 81 }] }]);
    cluster.route_at(
        Kind::HttpRoute,
        "s",
        json!([{ "name": "g" }]),
        json!([]),
        rules,
    );
    let translation = cluster.translate();
    assert_eq!(parent_conditions(&translation, Kind::HttpRoute, "s"), GOOD);
}

#[test]
fn nothing_is_sent_to_members_whose_certificates_cannot_be_verified() {
    let ca = |of: Value| json!({ "hostname": "in.example", "caCertificateRefs": [of] });
    let no_valid = "Accepted=False/NoValidCACertificate";
    for (validation, accepted, references) in [
        (
            ca(json!({ "group": "", "kind": "ConfigMap", "name": "none" })),
            no_valid,
            "ResolvedRefs=False/InvalidCACertificateRef",
        ),
        (
            ca(json!({ "group": "", "kind": "ConfigMap", "name": "broken" })),
            no_valid,
            "ResolvedRefs=False/InvalidCACertificateRef",
        ),
        (
            ca(json!({ "group": "", "kind": "ConfigMap", "name": "empty" })),
            no_valid,
            "ResolvedRefs=False/InvalidCACertificateRef",
        ),
        (
            ca(json!({ "group": "", "kind": "Secret", "name": "ca" })),
            no_valid,
            "ResolvedRefs=False/InvalidKind",
        ),
        (
            json!({ "hostname": "in.example" }),
            "Accepted=False/Invalid",
            GOOD[1],
        ),
        (
            json!({ "hostname": "in.example", "wellKnownCACertificates": "Mine" }),
            "Accepted=False/Invalid",
            GOOD[1],
        ),
        (
            json!({ "hostname": "a b", "wellKnownCACertificates": "System" }),
            "Accepted=False/Invalid",
            GOOD[1],
        ),
        (
            json!({ "hostname": "in.example", "wellKnownCACertificates": "System",
                    "subjectAltNames": [{ "type": "URI", "uri": "no scheme" }] }),
            "Accepted=False/Invalid",
            GOOD[1],
        ),
    ] {
        let mut cluster = cluster();
        for (name, data) in [
            (
                "broken",
                json!({ "ca.crt": "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----" }),
            ),
            ("empty", json!({ "other": "x" })),
        ] {
            let metadata = json!({ "namespace": "shop", "name": name });
            cluster.put(
                Kind::ConfigMap,
                json!({ "metadata": metadata, "data": data }),
            );
        }
        put_policy(&mut cluster, "p", Value::Null, validation.clone());
        let both =
            json!([{ "name": "web", "port": 80 }, { "name": "canary", "port": 80, "weight": 3 }]);
        cluster.route("s", json!(["a.example"]), json!([{ "backendRefs": both }]));
        let translation = cluster.translate();
        let wanted = [
            r#"a.example => [("kubernetes.nobody", 1), ("kubernetes.shop.canary.80", 3)]"#,
            "=> kubernetes.nobody",
        ];
        assert_eq!(routes(&translation), wanted, "{validation}");
        assert_eq!(
            conditions(&translation, "p"),
            [accepted, references],
            "{validation}"
        );
        assert_eq!(parent_conditions(&translation, Kind::HttpRoute, "r"), GOOD);
    }
}

#[test]
fn some_certificates_of_authorities_are_enough() {
    let mut cluster = cluster();
    let mut validation = by_authority();
    let missing = json!({ "group": "", "kind": "ConfigMap", "name": "none" });
    validation["caCertificateRefs"]
        .as_array_mut()
        .unwrap()
        .push(missing);
    put_policy(&mut cluster, "p", Value::Null, validation);
    let translation = cluster.translate();
    assert_eq!(routes(&translation), ["=> kubernetes.shop.web.80.tls"]);
    let wanted = [GOOD[0], "ResolvedRefs=False/InvalidCACertificateRef"];
    assert_eq!(conditions(&translation, "p"), wanted);
}

#[test]
fn the_oldest_policy_of_a_target_counts_and_a_port_goes_before_the_service() {
    let mut cluster = cluster();
    cluster.put(
        Kind::Service,
        json!({ "metadata": { "namespace": "shop", "name": "web" },
                "spec": { "ports": [{ "name": "http", "port": 80 }, { "name": "other", "port": 82 }] } }),
    );
    let named = |name: &str| {
        let mut validation = by_authority();
        validation["hostname"] = name.into();
        validation
    };
    put_policy(&mut cluster, "b", Value::Null, named("b.example"));
    put_policy(&mut cluster, "a", Value::Null, named("a.example"));
    put_policy(&mut cluster, "c", json!("http"), named("c.example"));
    put_policy(&mut cluster, "d", json!("none"), named("d.example"));
    let translation = cluster.translate();
    assert_eq!(read_tls(&translation).0.as_deref(), Some("c.example"));
    for (name, accepted) in [
        ("a", GOOD[0]),
        ("b", "Accepted=False/Conflicted"),
        ("c", GOOD[0]),
        ("d", "Accepted=False/TargetNotFound"),
    ] {
        assert_eq!(conditions(&translation, name)[0], accepted, "{name}");
    }
    let other = json!([{ "backendRefs": [{ "name": "web", "port": 82 }] }]);
    cluster.route("r", json!([]), other);
    assert_eq!(
        read_tls(&cluster.translate()).0.as_deref(),
        Some("a.example")
    );
    // Without a route nobody reaches the service.
    cluster
        .0
        .remove(Kind::HttpRoute, &ObjectName::new("shop", "r"));
    let translation = cluster.translate();
    let status = status_of(&translation, Kind::BackendTlsPolicy, "a");
    assert_eq!(status["ancestors"], json!([]));
}
