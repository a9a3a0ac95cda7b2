//! Names of listeners that do not serve: requests for them get to no listener that is less specific.

use super::streams::{NOBODY, WEB, names, only_rule, put_certificate, put_tls_route, tls_listener};
use super::*;

/// Reasons why the listener `narrow` does not serve.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Reason {
    NoCertificate,
    /// There is no certificate of an authority of clients.
    NoAuthority,
    /// The listener is to verify certificates of clients as older releases had it.
    Validation,
    /// TLS of an unknown mode.
    Mode,
    /// The listener is refused by its owner, as if the balancer could not put it into effect.
    Refused,
    /// The gateway as a whole is refused.
    Gateway,
    /// The gateway is refused because it asks for an address that is not the balancer's.
    Address,
}

/// Returns a gateway with a listener for all names of a domain, and the gateway `n` with a listener for one name.
fn cluster(protocol: &str, reason: Reason) -> (Cluster, Refused) {
    let mut cluster = Cluster::new();
    put_certificate(&mut cluster, "cert");
    let listener = |name: &str, host: &str| {
        let mut listener = tls_listener(name, host, "Terminate");
        listener["protocol"] = protocol.into();
        if protocol == "HTTP" {
            listener["tls"] = Value::Null;
        }
        listener
    };
    cluster.gateway("g", json!([listener("wide", "*.example.org")]));
    let mut narrow = listener("narrow", "A.example.org");
    let mut refused = Refused::new();
    match reason {
        Reason::NoCertificate => narrow["tls"]["certificateRefs"] = json!([{ "name": "gone" }]),
        Reason::Validation => narrow["tls"]["frontendValidation"] = json!({}),
        Reason::Mode => narrow["tls"]["mode"] = "Other".into(),
        Reason::Refused => {
            let owner = Owner::Listener(ObjectName::new("shop", "n"), "narrow".into());
            refused.insert(owner, "in use".into());
        }
        Reason::NoAuthority | Reason::Gateway | Reason::Address => {}
    }
    let mut gateway = json!({ "metadata": { "namespace": "shop", "name": "n" },
        "spec": { "gatewayClassName": "evenkeel", "listeners": [narrow] } });
    match reason {
        Reason::NoAuthority => {
            let authority = json!({ "group": "", "kind": "ConfigMap", "name": "gone" });
            let default = json!({ "validation": { "caCertificateRefs": [authority] } });
            gateway["spec"]["tls"] = json!({ "frontend": { "default": default } });
        }
        Reason::Gateway => gateway["spec"]["tls"] = json!({ "other": {} }),
        Reason::Address => gateway["spec"]["addresses"] = json!([{ "value": "192.0.2.1" }]),
        _ => {}
    }
    cluster.put(Kind::Gateway, gateway);
    (cluster, refused)
}

const REASONS: [Reason; 6] = [
    Reason::NoCertificate,
    Reason::NoAuthority,
    Reason::Validation,
    Reason::Mode,
    Reason::Refused,
    Reason::Gateway,
];

fn serve(cluster: &Cluster, refused: &Refused, reason: Reason) -> Translation {
    let translation = translate(&cluster.0, &settings(), refused);
    let status = status_of(&translation, Kind::Gateway, "n");
    let shown = show(&status["listeners"][0]["conditions"]);
    assert!(
        shown.contains(&"Programmed=False/Invalid".to_owned()),
        "{reason:?} {shown:?}"
    );
    translation
}

#[test]
fn requests_for_names_of_a_listener_that_does_not_serve_are_refused() {
    for (protocol, reasons) in [("HTTP", &REASONS[4..]), ("HTTPS", &REASONS[..])] {
        for reason in reasons {
            let (mut cluster, refused) = cluster(protocol, *reason);
            let rules = json!([{ "backendRefs": web() }]);
            cluster.route("r", json!(["*.example.org", "a.example.org"]), rules);
            let translation = serve(&cluster, &refused, *reason);
            let wanted = [
                "a.example.org => 404",
                "**.example.org => kubernetes.shop.web.80",
            ];
            assert_eq!(routes(&translation), wanted, "{protocol} {reason:?}");
        }
    }
}

#[test]
fn a_gateway_that_asks_for_addresses_of_others_keeps_no_names() {
    for protocol in ["HTTP", "HTTPS"] {
        let (mut cluster, refused) = cluster(protocol, Reason::Address);
        let rules = json!([{ "backendRefs": web() }]);
        cluster.route("r", json!(["*.example.org", "a.example.org"]), rules);
        let translation = serve(&cluster, &refused, Reason::Address);
        let wanted = [
            "a.example.org => kubernetes.shop.web.80",
            "**.example.org => kubernetes.shop.web.80",
        ];
        assert_eq!(routes(&translation), wanted, "{protocol}");
        let status = status_of(&translation, Kind::Gateway, "n");
        let shown = show(&status["conditions"]);
        assert_eq!(
            shown[..2],
            [
                "Accepted=True/Accepted",
                "Programmed=False/AddressNotUsable"
            ]
        );
        assert_eq!(status["addresses"], json!([]));
    }
}

#[test]
fn connections_for_names_of_a_listener_that_does_not_serve_are_refused() {
    for mode in ["Terminate", "Passthrough"] {
        for reason in REASONS {
            let (mut cluster, refused) = cluster("TLS", reason);
            cluster.gateway("g", json!([tls_listener("wide", "*.example.org", mode)]));
            put_tls_route(&mut cluster, "r", "*.example.org", "wide", "web");
            put_tls_route(&mut cluster, "s", "a.example.org", "wide", "web");
            let rule = only_rule(&serve(&cluster, &refused, reason));
            let wanted = [("a.example.org", NOBODY), ("**.example.org", WEB)];
            assert_eq!(rule.sni, names(&wanted), "{mode} {reason:?}");
            assert_eq!(rule.tls.is_some(), mode == "Terminate");
        }
    }
}

#[test]
fn listeners_of_other_ports_and_protocols_keep_no_names() {
    let path = "/spec/listeners/0";
    for (key, value) in [
        ("port", json!(8444)),
        ("protocol", json!("HTTP")),
        ("hostname", json!("192.0.2.1")),
    ] {
        let (mut cluster, refused) = cluster("HTTPS", Reason::Validation);
        let name = ObjectName::new("shop", "n");
        let mut gateway = json!({ "metadata": { "namespace": "shop", "name": "n" },
            "spec": { "gatewayClassName": "evenkeel", "listeners": [tls_listener("narrow", "a.example.org", "Terminate")] } });
        let listener = gateway.pointer_mut(path).unwrap();
        listener["protocol"] = "HTTPS".into();
        listener["tls"]["frontendValidation"] = json!({});
        listener[key] = value;
        cluster.0.remove(Kind::Gateway, &name);
        cluster.put(Kind::Gateway, gateway);
        cluster.route("r", json!([]), json!([{ "backendRefs": web() }]));
        let translation = serve(&cluster, &refused, Reason::Validation);
        assert_eq!(
            routes(&translation),
            ["**.example.org => kubernetes.shop.web.80"],
            "{key}"
        );
    }
}

#[test]
fn a_listener_of_the_same_name_serves_beside_one_that_is_refused() {
    let (mut cluster, refused) = cluster("HTTPS", Reason::Validation);
    let mut same = tls_listener("same", "a.example.org", "Terminate");
    same["protocol"] = "HTTPS".into();
    cluster.gateway("other", json!([same]));
    let parents = json!([{ "name": "other" }]);
    let rules = json!([{ "backendRefs": web() }]);
    cluster.route_at(Kind::HttpRoute, "r", parents, json!([]), rules);
    let translation = serve(&cluster, &refused, Reason::Validation);
    let wanted = [
        "a.example.org => kubernetes.shop.web.80",
        "**.example.org => 404",
    ];
    assert_eq!(routes(&translation), wanted);
}
