//! Tests of ListenerSet and XListenerSet.

use serde_json::json;

use super::streams::{put_certificate, tls_listener};
use super::*;

/// Adds a gateway `shop/g` with a listener at port 80 that takes sets of these namespaces.
pub(super) fn put_gateway(cluster: &mut Cluster, listeners: Value, namespaces: Value) {
    cluster.put(
        Kind::Gateway,
        json!({ "metadata": { "namespace": "shop", "name": "g", "generation": 3, "creationTimestamp": "2026-01-01T00:00:00Z" },
                "spec": { "gatewayClassName": "evenkeel", "listeners": listeners,
                          "allowedListeners": { "namespaces": namespaces } } }),
    );
}

/// Adds a set of gateway `shop/g`.
pub(super) fn put_set(cluster: &mut Cluster, kind: Kind, name: (&str, &str), listeners: Value) {
    let (namespace, name) = name;
    cluster.put(
        kind,
        json!({ "metadata": { "namespace": namespace, "name": name, "generation": 5,
                              "creationTimestamp": format!("2026-01-01T00:00:0{}Z", name.len()) },
                "spec": { "parentRef": { "name": "g", "namespace": "shop" }, "listeners": listeners } }),
    );
}

fn plain_listener() -> Value {
    json!([{ "name": "http", "port": 80, "protocol": "HTTP", "hostname": "g.example" }])
}

fn host(name: &str) -> Value {
    json!([{ "name": "http", "port": 80, "protocol": "HTTP", "hostname": name }])
}

#[test]
fn routes_attach_to_listeners_of_a_set() {
    for (kind, group) in [
        (Kind::ListenerSet, "gateway.networking.k8s.io"),
        (Kind::XListenerSet, "gateway.networking.x-k8s.io"),
    ] {
        let mut cluster = Cluster::new();
        put_gateway(&mut cluster, plain_listener(), json!({ "from": "All" }));
        put_set(&mut cluster, kind, ("other", "s"), host("s.example"));
        cluster.put(
            Kind::HttpRoute,
            json!({ "metadata": { "namespace": "other", "name": "r" },
                    "spec": { "parentRefs": [{ "group": group, "kind": kind.name(), "name": "s" }],
                              "rules": [{ "backendRefs": web() }] } }),
        );
        let translation = cluster.translate();
        let wanted = ["s.example => kubernetes.other.web.80"];
        assert_eq!(routes(&translation)[..1], wanted, "{kind:?}");
        assert_eq!(parent_conditions(&translation, Kind::HttpRoute, "r"), GOOD);
        let set = status_of(&translation, kind, "s");
        let programmed = ["Accepted=True/Accepted", "Programmed=True/Programmed"];
        assert_eq!(show(&set["conditions"]), programmed);
        assert_eq!(set["conditions"][0]["observedGeneration"], 5);
        let listener = &set["listeners"][0];
        assert_eq!(listener["attachedRoutes"], 1);
        // The older API demands the port.
        let port = (kind == Kind::XListenerSet).then_some(80);
        assert_eq!(listener["port"], json!(port));
        let gateway = status_of(&translation, Kind::Gateway, "g");
        assert_eq!(
            show(&gateway["conditions"])[3],
            "AttachedListenerSets=True/ListenerSetsAttached"
        );
        assert_eq!(gateway["listeners"].as_array().unwrap().len(), 1);
        assert_eq!(gateway["listeners"][0]["attachedRoutes"], 0);
    }
}

#[test]
fn routes_of_the_gateway_stay_at_its_own_listeners() {
    let mut cluster = Cluster::new();
    put_gateway(&mut cluster, plain_listener(), json!({ "from": "Same" }));
    put_set(
        &mut cluster,
        Kind::ListenerSet,
        ("shop", "s"),
        host("s.example"),
    );
    cluster.route("r", json!([]), json!([{ "backendRefs": web() }]));
    let found = routes(&cluster.translate());
    assert_eq!(found[0], "g.example => kubernetes.shop.web.80");
    assert!(
        found.contains(&"s.example => 404".to_owned()) || found.len() == 2,
        "{found:?}"
    );
    assert!(
        !found
            .iter()
            .any(|line| line.starts_with("s.example => kube"))
    );
}

#[test]
fn a_gateway_takes_sets_of_the_namespaces_that_it_allows() {
    let team = json!({ "from": "Selector", "selector": { "matchLabels": { "team": "other" } } });
    for (namespaces, namespace, is_allowed) in [
        (Value::Null, "shop", false),
        (json!({ "from": "None" }), "shop", false),
        (json!({ "from": "Same" }), "shop", true),
        (json!({ "from": "Same" }), "other", false),
        (json!({ "from": "All" }), "other", true),
        (team.clone(), "other", true),
        (team, "shop", false),
    ] {
        let mut cluster = Cluster::new();
        put_gateway(&mut cluster, plain_listener(), namespaces.clone());
        put_set(
            &mut cluster,
            Kind::XListenerSet,
            (namespace, "s"),
            host("s.example"),
        );
        let translation = cluster.translate();
        let set = status_of(&translation, Kind::XListenerSet, "s");
        let wanted = match is_allowed {
            true => ["Accepted=True/Accepted", "Programmed=True/Programmed"],
            false => ["Accepted=False/NotAllowed", "Programmed=False/NotAllowed"],
        };
        assert_eq!(show(&set["conditions"]), wanted, "{namespaces} {namespace}");
        assert_eq!(translation.text.contains("s.example"), is_allowed);
    }
}

#[test]
fn a_gateway_counts_the_sets_that_are_accepted() {
    let mut cluster = Cluster::new();
    put_gateway(&mut cluster, plain_listener(), json!({ "from": "Same" }));
    let count = |cluster: &Cluster| {
        let translation = cluster.translate();
        status_of(&translation, Kind::Gateway, "g")["attachedListenerSets"].clone()
    };
    assert_eq!(count(&cluster), 0);
    let set = |cluster: &mut Cluster, namespace: &str, name: &str, host_name: &str| {
        let name = (namespace, name);
        put_set(cluster, Kind::ListenerSet, name, host(host_name));
    };
    set(&mut cluster, "shop", "a", "a.example");
    set(&mut cluster, "other", "a", "b.example");
    assert_eq!(count(&cluster), 1);
    // All of its listeners are in conflict.
    set(&mut cluster, "shop", "longer", "a.example");
    assert_eq!(count(&cluster), 1);
    set(&mut cluster, "shop", "longest", "c.example");
    assert_eq!(count(&cluster), 2);
    let mut gateway = json!({ "metadata": { "namespace": "shop", "name": "g" },
        "spec": { "gatewayClassName": "evenkeel", "listeners": plain_listener(), "tls": { "other": {} },
                  "allowedListeners": { "namespaces": { "from": "Same" } } } });
    cluster.put(Kind::Gateway, gateway.clone());
    assert_eq!(count(&cluster), 0);
    let refused = cluster.translate();
    let shown = show(&status_of(&refused, Kind::ListenerSet, "longest")["conditions"]);
    let wanted = [
        "Accepted=False/ParentNotAccepted",
        "Programmed=False/ParentNotAccepted",
    ];
    assert_eq!(shown, wanted);
    gateway["spec"]["tls"] = Value::Null;
    cluster.put(Kind::Gateway, gateway);
    assert_eq!(count(&cluster), 2);
}

#[test]
fn a_set_needs_a_grant_for_certificates_of_other_namespaces() {
    let mut cluster = Cluster::new();
    put_certificate(&mut cluster, "cert");
    put_gateway(&mut cluster, plain_listener(), json!({ "from": "All" }));
    let mut listener = tls_listener("https", "s.example", "Terminate");
    listener["protocol"] = "HTTPS".into();
    listener["tls"]["certificateRefs"] = json!([{ "name": "cert", "namespace": "shop" }]);
    let name = ("other", "s");
    put_set(&mut cluster, Kind::ListenerSet, name, json!([listener]));
    let grant = |kind: Kind| {
        json!({ "metadata": { "namespace": "shop", "name": "grant" },
                "spec": { "from": [{ "group": kind.api_group(), "kind": kind.name(), "namespace": "other" }],
                          "to": [{ "group": "", "kind": "Secret" }] } })
    };
    // A grant for gateways is not one for their sets.
    cluster.put(Kind::ReferenceGrant, grant(Kind::Gateway));
    let translation = cluster.translate();
    let set = status_of(&translation, Kind::ListenerSet, "s");
    let wanted = [
        "Accepted=False/ListenersNotValid",
        "Programmed=False/ListenersNotValid",
    ];
    assert_eq!(show(&set["conditions"]), wanted);
    let shown = show(&set["listeners"][0]["conditions"]);
    assert_eq!(shown[2], "ResolvedRefs=False/RefNotPermitted");
    cluster.put(Kind::ReferenceGrant, grant(Kind::ListenerSet));
    let translation = cluster.translate();
    let set = status_of(&translation, Kind::ListenerSet, "s");
    let wanted = ["Accepted=True/Accepted", "Programmed=True/Programmed"];
    assert_eq!(show(&set["conditions"]), wanted);
}

#[test]
fn the_oldest_of_listeners_in_conflict_serves() {
    let mut cluster = Cluster::new();
    put_gateway(&mut cluster, plain_listener(), json!({ "from": "All" }));
    put_set(
        &mut cluster,
        Kind::ListenerSet,
        ("other", "s"),
        host("s.example"),
    );
    put_set(
        &mut cluster,
        Kind::XListenerSet,
        ("shop", "newer"),
        host("s.example"),
    );
    let listeners = json!([
        { "name": "a", "port": 80, "protocol": "HTTP", "hostname": "g.example" },
        { "name": "b", "port": 80, "protocol": "TCP" },
        { "name": "c", "protocol": "HTTP" },
        { "name": "d", "port": 81, "protocol": "HTTP" },
    ]);
    put_set(
        &mut cluster,
        Kind::ListenerSet,
        ("shop", "mixed"),
        listeners,
    );
    let translation = cluster.translate();
    let conditions = |kind, name| show(&status_of(&translation, kind, name)["conditions"]);
    assert_eq!(conditions(Kind::ListenerSet, "s")[0], GOOD[0]);
    assert_eq!(
        conditions(Kind::XListenerSet, "newer")[0],
        "Accepted=False/ListenersNotValid"
    );
    assert_eq!(
        conditions(Kind::ListenerSet, "mixed")[0],
        "Accepted=True/ListenersNotValid"
    );
    let programmed = |kind, name| conditions(kind, name)[1].clone();
    assert_eq!(
        programmed(Kind::XListenerSet, "newer"),
        "Programmed=False/ListenersNotValid"
    );
    let holds = "Programmed=True/Programmed";
    assert_eq!(programmed(Kind::ListenerSet, "mixed"), holds);
    let mixed = &status_of(&translation, Kind::ListenerSet, "mixed")["listeners"];
    let shown = |number: usize| show(&mixed[number]["conditions"]);
    for (number, reason) in [
        (0, "HostnameConflict"),
        (1, "ProtocolConflict"),
        (2, "UnsupportedValue"),
    ] {
        let shown = shown(number);
        assert_eq!(shown[0], format!("Accepted=False/{reason}"));
        assert_eq!(shown[3], format!("Programmed=False/{reason}"));
    }
    assert_eq!(shown(3)[0], GOOD[0]);
    assert_eq!(shown(3)[3], holds);
    let gateway = status_of(&translation, Kind::Gateway, "g");
    assert_eq!(show(&gateway["conditions"])[0], GOOD[0]);
    assert_eq!(gateway["attachedListenerSets"], 2);
}

#[test]
fn of_sets_of_the_same_age_the_first_of_the_alphabet_serves() {
    // As the API has it: `shop-b/s` is before `shop/s`, and `shop/r` before `shop/s`.
    for (first, second) in [
        (("shop-b", "s"), ("shop", "s")),
        (("shop", "r"), ("shop", "s")),
    ] {
        let mut cluster = Cluster::new();
        put_gateway(&mut cluster, plain_listener(), json!({ "from": "All" }));
        for name in [second, first] {
            put_set(&mut cluster, Kind::ListenerSet, name, host("s.example"));
        }
        let translation = cluster.translate();
        for (name, is_accepted) in [(first, true), (second, false)] {
            let object = ObjectName::new(name.0, name.1);
            let mut all = translation.statuses.iter();
            let status = all.find(|of| of.kind == Kind::ListenerSet && of.object == object);
            let shown = show(&status.unwrap().read_status()["conditions"]);
            assert_eq!(shown[0] == GOOD[0], is_accepted, "{name:?} {shown:?}");
        }
    }
}

#[test]
fn a_listener_of_a_set_at_a_port_in_use_is_left_out() {
    let mut cluster = Cluster::new();
    put_gateway(&mut cluster, plain_listener(), json!({ "from": "All" }));
    let listeners = json!([{ "name": "http", "port": 81, "protocol": "HTTP" }]);
    put_set(&mut cluster, Kind::ListenerSet, ("shop", "g"), listeners);
    let name = ObjectName::new("shop", "g");
    // The gateway has the same name, and a listener of the same name.
    let owner = Owner::SetListener(Kind::ListenerSet, name, "http".into());
    let owners = cluster.translate().rules;
    assert!(owners["kubernetes.81"].contains(&owner));
    let refused: Refused = BTreeMap::from([(owner, "address in use".into())]);
    let translation = translate(&cluster.0, &settings(), &refused);
    assert!(translation.text.contains(":80") && !translation.text.contains(":81"));
    let set = status_of(&translation, Kind::ListenerSet, "g");
    assert_eq!(
        show(&set["listeners"][0]["conditions"])[0],
        "Accepted=False/PortUnavailable"
    );
}
