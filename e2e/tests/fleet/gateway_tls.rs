//! HTTPS, and TLS that passes through, at one port of a gateway.

use std::net::TcpListener;

use evenkeel_e2e::folder::Folder;
use evenkeel_e2e::process::{are_installed, try_curl};
use evenkeel_e2e::server::{Server, address};
use evenkeel_e2e::tls::{Key, make_certificate};
use evenkeel_e2e::wait_until;
use serde_json::{Value, json};

use crate::gateway::{Cluster, GATEWAYS, ROUTES, config, start};

const SECRETS: &str = "/api/v1/namespaces/shop/secrets";
const TLS_ROUTES: &str = "/apis/gateway.networking.k8s.io/v1alpha3/namespaces/shop/tlsroutes";

fn secret(folder: &Folder, name: &str) -> Value {
    let (certificate, key) = (format!("{name}.crt"), format!("{name}.key.tmp"));
    json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "kubernetes.io/tls",
        "metadata": { "name": name },
        "stringData": { "tls.crt": folder.text(&certificate), "tls.key": folder.text(&key) },
    })
}

#[test]
fn names_choose_between_https_and_tls_that_passes_through() {
    if !are_installed(&["nginx", "openssl"]) {
        return;
    }
    let Some(cluster) = Cluster::start() else {
        return;
    };
    let folder = Folder::new();
    for name in ["a", "b", "c"] {
        let names = format!("DNS:{name}.example");
        make_certificate(&folder, name, Key::Ecdsa, &names, None);
    }
    let a = cluster.member("a");
    cluster.serve("a", &a);
    let free = TcpListener::bind((cluster.ip, 0)).unwrap();
    let member = free.local_addr().unwrap();
    drop(free);
    let pem = folder.join("b.pem").display().to_string();
    let _nginx = Server::nginx_also(&format!(
        "listen {member} ssl;\nssl_certificate {pem};\nssl_certificate_key {pem};\nreturn 200 \"b\";"
    ));
    cluster.serve_at("b", member.port(), "TCP");
    let at = address();
    let (ip, port) = (at.ip(), at.port());
    let ended = |name: &str| json!({ "certificateRefs": [{ "name": name }] });
    cluster.gateway(
        "front",
        json!([
            { "name": "wide", "port": port, "protocol": "HTTPS", "tls": ended("a") },
            { "name": "passes", "port": port, "protocol": "TLS", "hostname": "b.example", "tls": { "mode": "Passthrough" } },
            { "name": "closed", "port": port, "protocol": "HTTPS", "hostname": "c.example", "tls": ended("c") },
        ]),
    );
    cluster.create(SECRETS, secret(&folder, "a"));
    let to = |service: &str| json!([{ "backendRefs": [{ "name": service, "port": 80 }] }]);
    cluster.create(
        ROUTES,
        json!({
            "apiVersion": "gateway.networking.k8s.io/v1",
            "kind": "HTTPRoute",
            "metadata": { "name": "a" },
            "spec": { "parentRefs": [{ "name": "front" }], "rules": to("a") },
        }),
    );
    cluster.create(
        TLS_ROUTES,
        json!({
            "apiVersion": "gateway.networking.k8s.io/v1alpha3",
            "kind": "TLSRoute",
            "metadata": { "name": "b" },
            "spec": { "parentRefs": [{ "name": "front" }], "hostnames": ["b.example"], "rules": to("b") },
        }),
    );
    let config = config(ip);
    let mut balancer = start(&cluster, &config);
    let ask = |name: &str, version: &str| {
        let host = format!("{name}.example");
        let trusted = folder.join(&format!("{name}.crt")).display().to_string();
        let resolved = format!("{host}:{port}:{ip}");
        let url = format!("https://{host}:{port}/");
        let answer = try_curl(&[version, "--resolve", &resolved, "--cacert", &trusted, &url]);
        String::from_utf8_lossy(&answer.stdout).into_owned()
    };
    for name in ["a", "b"] {
        wait_until(&format!("{name} answers"), || {
            ask(name, "--http1.1") == name
        });
    }
    assert_eq!(ask("a", "--http2"), "a");
    // The address of the client comes with the request.
    let (_, request) = a.next_request();
    assert_eq!(request.values("x-forwarded-for"), ["127.0.0.1"]);
    // The name of a listener without a certificate gets to no other listener.
    let front = format!("{GATEWAYS}/front");
    let missing = ("ResolvedRefs", "False", "InvalidCertificateRef");
    cluster.wait_for_condition(&front, "/listeners/2", missing);
    for at in [0, 1] {
        let programmed = ("Programmed", "True", "Programmed");
        cluster.wait_for_condition(&front, &format!("/listeners/{at}"), programmed);
    }
    let resolved = format!("c.example:{port}:{ip}");
    let url = format!("https://c.example:{port}/");
    let answer = try_curl(&["--insecure", "--resolve", &resolved, &url]);
    assert!(!answer.status.success() && answer.stdout.is_empty());
    cluster.create(SECRETS, secret(&folder, "c"));
    wait_until("c answers", || ask("c", "--http1.1") == "a");
    // The next process has the socket between both rules from this one.
    balancer = balancer.replace(&config);
    balancer.upgrade().unwrap();
    for (name, wanted) in [("a", "a"), ("b", "b"), ("c", "a")] {
        assert_eq!(ask(name, "--http1.1"), wanted, "{}", balancer.log());
    }
}
