//! Tests of UDPRoute.

use serde_json::json;

use super::*;

/// Gateway with listeners for UDP and TCP at port 53.
fn cluster() -> Cluster {
    let mut cluster = Cluster::new();
    cluster.gateway(
        "g",
        json!([{ "name": "dns", "port": 53, "protocol": "UDP" },
               { "name": "dns-tcp", "port": 53, "protocol": "TCP" }]),
    );
    cluster
}

fn put_route(cluster: &mut Cluster, kind: Kind, name: &str, section: &str, rules: Value) {
    let parents = json!([{ "name": "g", "sectionName": section }]);
    cluster.route_at(kind, name, parents, Value::Null, rules);
}

fn rules(translation: &Translation) -> Vec<(String, bool, String)> {
    let config = evenkeel_config::parse_generated(&translation.text).unwrap();
    let rules = config.rules.iter().map(|rule| {
        let is_udp = rule.protocol == evenkeel_config::Protocol::Udp;
        (rule.name.to_string(), is_udp, rule.group.clone())
    });
    rules.collect()
}

#[test]
fn datagrams_go_by_port_beside_connections() {
    let mut cluster = cluster();
    let to = |port: u16| json!([{ "backendRefs": [{ "name": "web", "port": port }] }]);
    put_route(&mut cluster, Kind::UdpRoute, "u", "dns", to(53));
    put_route(&mut cluster, Kind::TcpRoute, "t", "dns-tcp", to(80));
    let translation = cluster.translate();
    let wanted = [
        ("kubernetes.53.udp", true, "kubernetes.shop.web.53.udp"),
        ("kubernetes.53", false, "kubernetes.shop.web.80"),
    ];
    let wanted = wanted.map(|(rule, is_udp, group)| (rule.to_owned(), is_udp, group.to_owned()));
    assert_eq!(rules(&translation), wanted);
    assert!(
        translation
            .text
            .contains(r#"members = [{ kubernetes = "shop/web:53" }]"#)
    );
    for (kind, name) in [(Kind::UdpRoute, "u"), (Kind::TcpRoute, "t")] {
        assert_eq!(parent_conditions(&translation, kind, name), GOOD, "{name}");
    }
    let gateway = status_of(&translation, Kind::Gateway, "g");
    let kinds = &gateway["listeners"][0]["supportedKinds"];
    assert_eq!(kinds[0]["kind"], "UDPRoute");
    assert_eq!(gateway["listeners"][0]["attachedRoutes"], 1);
}

#[test]
fn a_port_of_a_service_is_that_for_datagrams() {
    let mut cluster = cluster();
    let port =
        |name: &str, protocol: &str| json!({ "name": name, "port": 53, "protocol": protocol });
    cluster.put(
        Kind::Service,
        json!({ "metadata": { "namespace": "shop", "name": "dns" },
                "spec": { "ports": [port("dns-tcp", "TCP"), port("dns-udp", "UDP")] } }),
    );
    let rules = json!([{ "backendRefs": [{ "name": "dns", "port": 53 }] }]);
    put_route(&mut cluster, Kind::UdpRoute, "u", "dns", rules);
    let translation = cluster.translate();
    assert!(
        translation
            .text
            .contains(r#"members = [{ kubernetes = "shop/dns:dns-udp" }]"#)
    );
    assert_eq!(parent_conditions(&translation, Kind::UdpRoute, "u"), GOOD);
    // A port for TCP alone is none for datagrams.
    let rules = json!([{ "backendRefs": [{ "name": "web", "port": 80 }] }]);
    put_route(&mut cluster, Kind::UdpRoute, "u", "dns", rules);
    let translation = cluster.translate();
    assert_eq!(translation.text, "");
    assert_eq!(
        parent_conditions(&translation, Kind::UdpRoute, "u"),
        [GOOD[0], "ResolvedRefs=False/BackendNotFound"]
    );
}

#[test]
fn routes_for_datagrams_fit_listeners_for_datagrams_only() {
    let mut cluster = cluster();
    let rules = json!([{ "backendRefs": [{ "name": "web", "port": 53 }] }]);
    put_route(&mut cluster, Kind::UdpRoute, "u", "dns-tcp", rules.clone());
    let translation = cluster.translate();
    assert_eq!(
        parent_conditions(&translation, Kind::UdpRoute, "u")[0],
        "Accepted=False/NotAllowedByListeners"
    );
    let two = json!([rules[0], rules[0]]);
    put_route(&mut cluster, Kind::UdpRoute, "u", "dns", two);
    assert_eq!(
        parent_conditions(&cluster.translate(), Kind::UdpRoute, "u")[0],
        "Accepted=False/UnsupportedValue"
    );
    // A second listener for UDP at the port.
    cluster.gateway(
        "g",
        json!([{ "name": "a", "port": 53, "protocol": "UDP" }, { "name": "b", "port": 53, "protocol": "UDP" }]),
    );
    let translation = cluster.translate();
    let listeners = &status_of(&translation, Kind::Gateway, "g")["listeners"];
    assert_eq!(show(&listeners[0]["conditions"])[0], GOOD[0]);
    assert_eq!(
        show(&listeners[1]["conditions"])[0],
        "Accepted=False/HostnameConflict"
    );
}
