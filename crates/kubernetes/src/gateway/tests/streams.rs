//! Routes of connections: TLS that ends at the balancer, ports with both modes, and several targets.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::*;

/// Creates a secret with a certificate.
pub(super) fn put_certificate(cluster: &mut Cluster, name: &str) {
    let made = rcgen::generate_simple_self_signed(["*.example.org".to_owned()]).unwrap();
    let (certificate, key) = (made.cert.pem(), made.signing_key.serialize_pem());
    cluster.put(
        Kind::Secret,
        json!({ "metadata": { "namespace": "shop", "name": name },
                "data": { "tls.crt": STANDARD.encode(certificate), "tls.key": STANDARD.encode(key) } }),
    );
}

pub(super) fn tls_listener(name: &str, host: &str, mode: &str) -> Value {
    json!({ "name": name, "port": 8443, "protocol": "TLS", "hostname": host,
            "tls": { "mode": mode, "certificateRefs": [{ "name": "cert" }] } })
}

fn put_service(cluster: &mut Cluster, name: &str) {
    cluster.put(
        Kind::Service,
        json!({ "metadata": { "namespace": "shop", "name": name },
                "spec": { "ports": [{ "port": 80 }, { "port": 53, "name": "names", "protocol": "UDP" }] } }),
    );
}

fn two(port: u16) -> Value {
    json!([{ "backendRefs": [{ "name": "old", "port": port, "weight": 9 },
                             { "name": "new", "port": port, "weight": 1 },
                             { "name": "web", "port": port, "weight": 0 }] }])
}

#[test]
fn names_choose_groups_where_tls_ends_here() {
    let mut cluster = Cluster::new();
    put_certificate(&mut cluster, "cert");
    cluster.gateway(
        "g",
        json!([tls_listener("tls", "*.example.org", "Terminate")]),
    );
    let rules = json!([{ "backendRefs": web() }]);
    let parents = json!([{ "name": "g" }]);
    cluster.route_at(
        Kind::TlsRoute,
        "s",
        parents,
        json!(["db.example.org"]),
        rules,
    );
    let translation = cluster.translate();
    assert_eq!(parent_conditions(&translation, Kind::TlsRoute, "s"), GOOD);
    let text = &translation.text;
    let config = evenkeel_config::parse_generated(text).unwrap();
    let [rule] = &config.rules[..] else {
        panic!("{text}");
    };
    assert!(rule.tls.is_some(), "{text}");
    let group = "kubernetes.shop.web.80".to_owned();
    assert_eq!(
        rule.sni,
        BTreeMap::from([("db.example.org".to_owned(), group)])
    );
    let status = status_of(&translation, Kind::Gateway, "g");
    let kinds = &status["listeners"][0]["supportedKinds"];
    assert_eq!(kinds[0]["kind"], "TLSRoute");
}

/// Creates a TLSRoute to a port of the service `web`, at listeners of the gateway `g`.
pub(super) fn put_tls_route(
    cluster: &mut Cluster,
    name: &str,
    host: &str,
    listener: &str,
    service: &str,
) {
    let parents = json!([{ "name": "g", "sectionName": listener }]);
    let rules = json!([{ "backendRefs": [{ "name": service, "port": 80 }] }]);
    cluster.route_at(Kind::TlsRoute, name, parents, json!([host]), rules);
}

/// Returns the only rule of a configuration.
pub(super) fn only_rule(translation: &Translation) -> evenkeel_config::Rule {
    let text = &translation.text;
    let config =
        evenkeel_config::parse_generated(text).unwrap_or_else(|error| panic!("{error}: {text}"));
    let [rule] = &config.rules[..] else {
        panic!("{text}");
    };
    rule.clone()
}

pub(super) fn names(of: &[(&str, &str)]) -> BTreeMap<String, String> {
    let pairs = of.iter();
    pairs
        .map(|(name, group)| ((*name).to_owned(), (*group).to_owned()))
        .collect()
}

pub(super) const NOBODY: &str = "kubernetes.nobody";
pub(super) const WEB: &str = "kubernetes.shop.web.80";

#[test]
fn names_choose_the_mode_of_tls_at_a_port() {
    let mut cluster = Cluster::new();
    put_certificate(&mut cluster, "cert");
    cluster.gateway(
        "g",
        json!([
            tls_listener("ends", "a.example.org", "Terminate"),
            tls_listener("passes", "*.example.org", "Passthrough"),
            tls_listener("silent", "c.example.org", "Terminate"),
        ]),
    );
    put_tls_route(&mut cluster, "one", "a.example.org", "ends", "web");
    put_tls_route(&mut cluster, "two", "*.example.org", "passes", "web");
    // The name belongs to the first listener.
    put_tls_route(&mut cluster, "lost", "a.example.org", "passes", "web");
    let translation = cluster.translate();
    let status = status_of(&translation, Kind::Gateway, "g");
    for number in 0..3 {
        let shown = show(&status["listeners"][number]["conditions"]);
        assert!(
            shown.contains(&"Accepted=True/Accepted".to_owned()),
            "{number}: {shown:?}"
        );
    }
    let rule = only_rule(&translation);
    assert!(rule.tls.is_some());
    let wanted = [
        ("a.example.org", WEB),
        ("**.example.org", WEB),
        ("c.example.org", NOBODY),
    ];
    assert_eq!(rule.sni, names(&wanted));
    assert_eq!(rule.pass_through, ["**.example.org", "*"]);
    assert_eq!(rule.group, NOBODY);
}

#[test]
fn a_mode_without_certificates_keeps_the_other_mode_serving() {
    let mut cluster = Cluster::new();
    cluster.gateway(
        "g",
        json!([
            tls_listener("ends", "a.example.org", "Terminate"),
            tls_listener("passes", "b.example.org", "Passthrough"),
        ]),
    );
    put_tls_route(&mut cluster, "one", "a.example.org", "ends", "web");
    put_tls_route(&mut cluster, "two", "b.example.org", "passes", "web");
    let rule = only_rule(&cluster.translate());
    assert!(rule.tls.is_none());
    assert_eq!(rule.sni, names(&[("b.example.org", WEB)]));
    assert!(rule.pass_through.is_empty());
}

#[test]
fn a_name_without_a_certificate_gets_to_no_wider_listener() {
    let ended = "b.example.com";
    for certificate in [false, true] {
        let mut cluster = Cluster::new();
        if certificate {
            put_certificate(&mut cluster, "good");
        }
        let mut other = tls_listener("other", ended, "Terminate");
        other["tls"]["certificateRefs"] = json!([{ "name": "good" }]);
        cluster.gateway(
            "g",
            json!([
                tls_listener("ends", "a.example.org", "Terminate"),
                tls_listener("passes", "*.example.org", "Passthrough"),
                other,
            ]),
        );
        put_tls_route(&mut cluster, "one", "a.example.org", "ends", "web");
        put_tls_route(&mut cluster, "two", "*.example.org", "passes", "web");
        put_tls_route(&mut cluster, "three", ended, "other", "web");
        let rule = only_rule(&cluster.translate());
        assert_eq!(rule.tls.is_some(), certificate);
        let mut wanted = names(&[("a.example.org", NOBODY), ("**.example.org", WEB)]);
        if certificate {
            wanted.insert(ended.into(), WEB.into());
        }
        assert_eq!(rule.sni, wanted);
        assert_eq!(rule.group, NOBODY);
        // TLS of the name does not pass through, wherever TLS ends here.
        let passing = ["**.example.org", "*"];
        let passing = passing.iter().filter(|_| certificate);
        assert!(rule.pass_through.iter().eq(passing));
    }
}

#[test]
fn a_name_whose_service_is_missing_gets_to_no_other_route() {
    let mut cluster = Cluster::new();
    cluster.gateway("g", json!([tls_listener("tls", "", "Passthrough")]));
    put_tls_route(&mut cluster, "all", "*.example.org", "tls", "web");
    put_tls_route(&mut cluster, "gone", "a.example.org", "tls", "gone");
    let translation = cluster.translate();
    let shown = parent_conditions(&translation, Kind::TlsRoute, "gone");
    let wanted = [
        "Accepted=True/Accepted",
        "ResolvedRefs=False/BackendNotFound",
    ];
    assert_eq!(shown, wanted);
    let rule = only_rule(&translation);
    let wanted = [("**.example.org", WEB), ("a.example.org", NOBODY)];
    assert_eq!(rule.sni, names(&wanted));
    // Clients with other names are refused in the same way.
    assert_eq!(rule.group, NOBODY);
}

#[test]
fn several_targets_share_connections_and_sessions_by_weight() {
    let mut cluster = Cluster::new();
    for name in ["old", "new", "web"] {
        put_service(&mut cluster, name);
    }
    cluster.gateway(
        "g",
        json!([{ "name": "tcp", "port": 5432, "protocol": "TCP" },
               { "name": "udp", "port": 5353, "protocol": "UDP" }]),
    );
    let parents = json!([{ "name": "g" }]);
    cluster.route_at(Kind::TcpRoute, "t", parents.clone(), json!([]), two(80));
    cluster.route_at(Kind::UdpRoute, "u", parents, json!([]), two(53));
    let translation = cluster.translate();
    for (kind, name) in [(Kind::TcpRoute, "t"), (Kind::UdpRoute, "u")] {
        assert_eq!(parent_conditions(&translation, kind, name), GOOD);
    }
    let text = &translation.text;
    let config = evenkeel_config::parse_generated(text).unwrap();
    let shares: Vec<Vec<_>> = { config.rules.iter() }
        .map(|rule| {
            let group = config.groups.iter().find(|group| group.name == rule.group);
            let members = group.map_or(&[][..], |group| &group.services);
            { members.iter() }
                .map(|of| {
                    (
                        of.kubernetes.clone().unwrap(),
                        of.weight.get(),
                        of.split_weight,
                    )
                })
                .collect()
        })
        .collect();
    let of = |port: &str| {
        vec![
            (format!("shop/new:{port}"), 100.0, true),
            (format!("shop/old:{port}"), 900.0, true),
        ]
    };
    assert_eq!(shares, [of("80"), of("names")], "{text}");
}

#[test]
fn a_share_that_cannot_be_served_keeps_the_route_from_serving() {
    let mut cluster = Cluster::new();
    put_service(&mut cluster, "old");
    cluster.gateway(
        "g",
        json!([{ "name": "tcp", "port": 5432, "protocol": "TCP" }]),
    );
    let parents = json!([{ "name": "g" }]);
    cluster.route_at(Kind::TcpRoute, "t", parents, json!([]), two(80));
    let translation = cluster.translate();
    let shown = parent_conditions(&translation, Kind::TcpRoute, "t");
    assert_eq!(
        shown,
        [
            "Accepted=True/Accepted",
            "ResolvedRefs=False/BackendNotFound"
        ]
    );
    let config = evenkeel_config::parse_generated(&translation.text).unwrap();
    assert!(config.rules.is_empty(), "{}", translation.text);
}

#[test]
fn targets_without_a_weight_keep_no_route_from_serving() {
    let mut cluster = Cluster::new();
    for name in ["old", "new"] {
        put_service(&mut cluster, name);
    }
    cluster.gateway(
        "g",
        json!([{ "name": "tcp", "port": 5432, "protocol": "TCP" }]),
    );
    let rules = json!([{ "backendRefs": [{ "name": "old", "port": 80, "weight": 9 },
                                         { "name": "new", "port": 80, "weight": 1 },
                                         { "name": "gone", "port": 80, "weight": 0 }] }]);
    let parents = json!([{ "name": "g" }]);
    cluster.route_at(Kind::TcpRoute, "t", parents, json!([]), rules);
    let translation = cluster.translate();
    let config = evenkeel_config::parse_generated(&translation.text).unwrap();
    assert_eq!(config.rules.len(), 1, "{}", translation.text);
}

#[test]
fn gateways_with_different_modes_of_tls_share_a_port() {
    let mut cluster = Cluster::new();
    put_certificate(&mut cluster, "cert");
    cluster.gateway(
        "a",
        json!([tls_listener("ends", "a.example.org", "Terminate")]),
    );
    cluster.gateway(
        "b",
        json!([tls_listener("passes", "b.example.org", "Passthrough")]),
    );
    let translation = cluster.translate();
    let shown = |gateway: &str| {
        let status = status_of(&translation, Kind::Gateway, gateway);
        show(&status["listeners"][0]["conditions"])
    };
    assert!(shown("a").contains(&"Accepted=True/Accepted".to_owned()));
    assert!(shown("b").contains(&"Accepted=True/Accepted".to_owned()));
}
