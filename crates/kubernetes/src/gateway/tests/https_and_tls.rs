//! HTTPS and TLS at one port: names choose between requests and connections.

use evenkeel_config::Rule;

use super::streams::{NOBODY, WEB, names, only_rule, put_certificate, put_tls_route, tls_listener};
use super::*;

const HTTPS: &str = "kubernetes.8443.https";

fn https_listener(name: &str, host: &str, secret: &str) -> Value {
    let mut listener = tls_listener(name, host, "Terminate");
    listener["protocol"] = "HTTPS".into();
    listener["tls"]["certificateRefs"] = json!([{ "name": secret }]);
    listener
}

/// Returns a cluster with a gateway, and with a route for requests to all of its listeners.
fn cluster(listeners: Value) -> Cluster {
    let mut cluster = Cluster::new();
    put_certificate(&mut cluster, "cert");
    cluster.gateway("g", listeners);
    cluster.route("r", json!([]), json!([{ "backendRefs": web() }]));
    cluster
}

/// Returns the rule for connections, and the routes of the rule for requests.
fn both(translation: &Translation) -> (Rule, Vec<String>) {
    let text = &translation.text;
    let config = evenkeel_config::parse_generated(text).unwrap();
    let [connections, requests] = &config.rules[..] else {
        panic!("{text}");
    };
    assert_eq!(
        (&*connections.name, &*requests.name),
        ("kubernetes.8443", HTTPS)
    );
    assert!(requests.tls.is_some());
    // Other processes may connect to the socket, too.
    let proxies = requests.accept_proxy.as_ref().unwrap();
    assert!(proxies.contains(None, || true) && !proxies.contains(None, || false));
    let group = config.groups.iter().find(|group| group.name == HTTPS);
    let member = group.and_then(|group| group.members.first()).unwrap();
    assert_eq!(member.name(), requests.listen[0].to_string());
    assert!(group.unwrap().send_proxy.is_some());
    let routes = requests.routes.list().iter().map(|route| {
        let status = route
            .answer
            .as_ref()
            .map(|answer| answer.status.to_string());
        format!(
            "{} {}",
            route.host.join(","),
            status.unwrap_or(route.group.clone())
        )
    });
    (connections.clone(), routes.collect())
}

#[test]
fn names_choose_between_requests_and_connections() {
    let mut cluster = cluster(json!([
        https_listener("wide", "", "cert"),
        tls_listener("passes", "b.example.org", "Passthrough"),
        https_listener("closed", "c.example.org", "gone"),
        tls_listener("ends", "d.example.org", "Terminate"),
    ]));
    put_tls_route(&mut cluster, "b", "b.example.org", "passes", "web");
    put_tls_route(&mut cluster, "d", "d.example.org", "ends", "web");
    let translation = cluster.translate();
    assert_eq!(parent_conditions(&translation, Kind::HttpRoute, "r"), GOOD);
    let (connections, routes) = both(&translation);
    assert!(connections.tls.is_some());
    let wanted = [
        ("b.example.org", WEB),
        ("c.example.org", NOBODY),
        ("d.example.org", WEB),
    ];
    assert_eq!(connections.sni, names(&wanted));
    assert_eq!(connections.group, HTTPS);
    assert_eq!(connections.pass_through, ["b.example.org", "*"]);
    // A request for another name than TLS gets to no route of another listener.
    let closed = [
        "b.example.org 404",
        "c.example.org 404",
        "d.example.org 404",
    ];
    assert_eq!(routes[..3], closed);
    assert_eq!(routes[3..], [format!(" {WEB}")]);
    let owners = |rule: &str| translation.rules[rule].len();
    assert_eq!((owners("kubernetes.8443"), owners(HTTPS)), (3, 1));
}

#[test]
fn https_has_single_names_where_tls_of_others_passes_through() {
    let mut cluster = cluster(json!([
        tls_listener("passes", "", "Passthrough"),
        https_listener("one", "a.example.org", "cert"),
    ]));
    let parents = json!([{ "name": "g", "sectionName": "passes" }]);
    let rules = json!([{ "backendRefs": web() }]);
    cluster.route_at(Kind::TlsRoute, "all", parents, json!([]), rules);
    // The name belongs to the other listener.
    put_tls_route(&mut cluster, "lost", "a.example.org", "passes", "web");
    let (connections, routes) = both(&cluster.translate());
    assert!(connections.tls.is_none());
    assert_eq!(connections.sni, names(&[("a.example.org", HTTPS)]));
    assert_eq!(connections.group, WEB);
    assert_eq!(routes, [format!("a.example.org {WEB}"), " 404".to_owned()]);
}

#[test]
fn clients_of_names_without_a_route_are_refused() {
    let cluster = cluster(json!([
        tls_listener("passes", "*.example.org", "Passthrough"),
        https_listener("one", "a.example.org", "cert"),
    ]));
    let (connections, _) = both(&cluster.translate());
    assert_eq!(connections.sni, names(&[("a.example.org", HTTPS)]));
    assert_eq!(connections.group, NOBODY);
}

#[test]
fn a_port_whose_listeners_for_tls_do_not_serve_has_one_rule() {
    let listeners = json!([
        tls_listener("ends", "a.example.org", "Terminate"),
        https_listener("wide", "*.example.org", "good"),
    ]);
    let mut cluster = Cluster::new();
    put_certificate(&mut cluster, "good");
    cluster.gateway("g", listeners);
    cluster.route("r", json!([]), json!([{ "backendRefs": web() }]));
    let translation = cluster.translate();
    let wanted = [
        "a.example.org => 404",
        "**.example.org => kubernetes.shop.web.80",
    ];
    assert_eq!(routes(&translation), wanted);
    assert!(!translation.text.contains("unix:"));
}

#[test]
fn a_socket_that_another_process_has_gets_no_connections() {
    let mut cluster = cluster(json!([
        tls_listener("passes", "b.example.org", "Passthrough"),
        https_listener("one", "a.example.org", "cert"),
    ]));
    put_tls_route(&mut cluster, "b", "b.example.org", "passes", "web");
    let owners = cluster.translate().rules[HTTPS].clone();
    let refused = owners.into_iter().map(|of| (of, "address in use".into()));
    let translation = translate(&cluster.0, &settings(), &refused.collect());
    assert!(!translation.text.contains("unix:"), "{}", translation.text);
    let rule = only_rule(&translation);
    assert_eq!(rule.sni, names(&[("b.example.org", WEB)]));
    assert_eq!(rule.group, NOBODY);
    let status = status_of(&translation, Kind::Gateway, "g");
    let shown = show(&status["listeners"][1]["conditions"]);
    assert_eq!(shown[0], "Accepted=False/PortUnavailable");
}

#[test]
fn a_name_is_either_for_https_or_for_tls() {
    let cluster = cluster(json!([
        https_listener("one", "a.example.org", "cert"),
        tls_listener("two", "A.example.org", "Passthrough"),
    ]));
    let translation = cluster.translate();
    let status = status_of(&translation, Kind::Gateway, "g");
    let shown = show(&status["listeners"][1]["conditions"]);
    assert_eq!(shown[0], "Accepted=False/HostnameConflict");
    assert_eq!(
        routes(&translation),
        ["a.example.org => kubernetes.shop.web.80"]
    );
}
