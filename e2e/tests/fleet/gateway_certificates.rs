//! Certificates of clients at gateways, the certificate that members see, and requests over connections for another host.

use std::net::{IpAddr, TcpListener};

use evenkeel_e2e::folder::Folder;
use evenkeel_e2e::kubernetes::GatewayRelease;
use evenkeel_e2e::member::{Member, ok_response};
use evenkeel_e2e::process::{are_installed, try_curl};
use evenkeel_e2e::server::{Server, address};
use evenkeel_e2e::tls::{Key, make_certificate};
use evenkeel_e2e::wait_until;
use serde_json::{Value, json};

use crate::gateway::{Cluster, GATEWAYS, POLICIES, ask_gateway, config, start, wait_for_answer};

const CONFIG_MAPS: &str = "/api/v1/namespaces/shop/configmaps";
const INGRESSES: &str = "/apis/networking.k8s.io/v1/namespaces/shop/ingresses";
const SECRETS: &str = "/api/v1/namespaces/shop/secrets";

/// Makes certificates in a folder: each with its names, and the authority that signs it.
fn make_certificates(folder: &Folder, all: &[(&str, &str, Option<&str>)]) {
    for (name, names, by) in all {
        make_certificate(folder, name, Key::Ecdsa, names, *by);
    }
}

/// Secret with a certificate of the folder.
fn secret(folder: &Folder, name: &str, certificate: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "kubernetes.io/tls",
        "metadata": { "name": name },
        "stringData": { "tls.crt": folder.text(&format!("{certificate}.crt")),
                        "tls.key": folder.text(&format!("{certificate}.key.tmp")) },
    })
}

/// ConfigMap with the certificate of an authority of the folder.
fn authority(folder: &Folder, name: &str, certificate: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": { "name": name },
        "data": { "ca.crt": folder.text(&format!("{certificate}.crt")) },
    })
}

fn gateway(name: &str, tls: Value, listeners: Value) -> Value {
    json!({
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "Gateway",
        "metadata": { "name": name },
        "spec": { "gatewayClassName": "edge", "tls": tls, "listeners": listeners },
    })
}

fn https(name: &str, port: u16) -> Value {
    json!({ "name": name, "port": port, "protocol": "HTTPS", "tls": { "certificateRefs": [{ "name": "server" }] } })
}

/// Returns ports that nobody has, each once.
fn free_ports<const N: usize>(ip: IpAddr) -> [u16; N] {
    // All are held until each is known.
    let held = [(); N].map(|()| TcpListener::bind((ip, 0)));
    held.map(|listener| {
        let address = listener.and_then(|listener| listener.local_addr());
        address.map_or_else(
            |error| panic!("no port is free at {ip}: {error}"),
            |at| at.port(),
        )
    })
}

/// Asks for a host over TLS, with further arguments: the code, and the body. The code is `000` without an answer.
fn ask_https(at: (IpAddr, u16), folder: &Folder, name: &str, more: &[&str]) -> (String, String) {
    let (ip, port) = at;
    let resolve = format!("{name}:{port}:{ip}");
    let trusted = folder.join("server.crt").display().to_string();
    let url = format!("https://{name}:{port}/");
    let mut arguments = vec!["-w", "\n%{http_code}", "--resolve", &resolve];
    arguments.extend(["--cacert", &trusted]);
    arguments.extend(more);
    arguments.push(&url);
    let answer = try_curl(&arguments);
    let text = String::from_utf8_lossy(&answer.stdout);
    let (body, code) = text.rsplit_once('\n').unwrap_or(("", ""));
    (code.to_owned(), body.to_owned())
}

#[test]
fn clients_show_certificates_of_the_authorities_of_a_gateway() {
    if !are_installed(&["openssl"]) {
        return;
    }
    let Some(cluster) = Cluster::start_release(GatewayRelease::Newest) else {
        return;
    };
    let folder = Folder::new();
    make_certificates(
        &folder,
        &[
            ("server", "DNS:a.example", None),
            ("partners", "DNS:partners.example", None),
            ("others", "DNS:others.example", None),
            ("partner", "DNS:partner.example", Some("partners")),
            ("other", "DNS:other.example", Some("others")),
        ],
    );
    let listener = TcpListener::bind((cluster.ip, 0)).unwrap();
    // The member tells what the balancer says of the client.
    let member = Member::start_at(listener, |script, mut wire| {
        while let Some(request) = script.read_request(&mut wire) {
            let told = request.values("X-Client-Cert-Verified").join(",");
            if !wire.try_send(ok_response(&format!("verified: {told}"))) {
                break;
            }
        }
    });
    cluster.serve("a", &member);
    cluster.create(SECRETS, secret(&folder, "server", "server"));
    let ip = address().ip();
    let [verified, insecure, open, plain, other] = free_ports(ip);
    let by = |mode: &str| {
        let reference = json!({ "group": "", "kind": "ConfigMap", "name": "partners" });
        json!({ "validation": { "mode": mode, "caCertificateRefs": [reference] } })
    };
    let frontend = json!({
        "default": by("AllowValidOnly"),
        "perPort": [{ "port": insecure, "tls": by("AllowInsecureFallback") }, { "port": open, "tls": {} }],
    });
    cluster.create(
        GATEWAYS,
        gateway(
            "front",
            json!({ "frontend": frontend }),
            json!([https("verified", verified), https("insecure", insecure), https("open", open),
                   { "name": "plain", "port": plain, "protocol": "HTTP" }]),
        ),
    );
    cluster.route(
        "a",
        "a.example",
        json!({ "backendRefs": [{ "name": "a", "port": 80 }] }),
    );
    let config = config(ip);
    let mut balancer = start(&cluster, &config);
    let front = format!("{GATEWAYS}/front");
    // Without an authority nobody gets in, and other listeners serve.
    let accepted = ("Accepted", "True", "Accepted");
    let refused = ("Accepted", "False", "NoValidCACertificate");
    for number in ["/listeners/0", "/listeners/1"] {
        cluster.wait_for_condition(&front, number, refused);
        let missing = ("ResolvedRefs", "False", "InvalidCACertificateRef");
        cluster.wait_for_condition(&front, number, missing);
    }
    for number in ["/listeners/2", "/listeners/3"] {
        cluster.wait_for_condition(&front, number, accepted);
    }
    let told = (
        "InsecureFrontendValidationMode",
        "True",
        "ConfigurationChanged",
    );
    cluster.wait_for_condition(&front, "", told);
    wait_for_answer((ip, plain).into(), "a.example", ("200", "verified: "));
    let ask = |port: u16, client: Option<&str>| {
        let file = client.map(|name| folder.join(&format!("{name}.pem")).display().to_string());
        let more: Vec<&str> = file.iter().flat_map(|file| ["--cert", file]).collect();
        ask_https((ip, port), &folder, "a.example", &more)
    };
    let answer = |code: &str, body: &str| (code.to_owned(), body.to_owned());
    let nothing = answer("000", "");
    assert_eq!(ask(open, None), answer("200", "verified: "));
    for port in [verified, insecure] {
        assert_eq!(ask(port, Some("partner")), nothing);
    }
    cluster.create(CONFIG_MAPS, authority(&folder, "partners", "partners"));
    let (good, bad) = (
        answer("200", "verified: yes"),
        answer("200", "verified: no"),
    );
    wait_until("clients with a certificate are served", || {
        ask(verified, Some("partner")) == good
    });
    cluster.wait_for_condition(&front, "/listeners/0", accepted);
    let serves_partners = || {
        assert_eq!(ask(verified, Some("partner")), good);
        assert_eq!(ask(verified, Some("other")), nothing);
        assert_eq!(ask(verified, None), nothing);
        assert_eq!(ask(open, None), answer("200", "verified: "));
        assert_eq!(ask(insecure, Some("partner")), good);
        for client in [Some("other"), None] {
            assert_eq!(ask(insecure, client), bad, "{client:?}");
        }
    };
    serves_partners();
    // A gateway whose authority is missing harms itself only.
    let reference = json!({ "group": "", "kind": "ConfigMap", "name": "none" });
    let missing = json!({ "validation": { "caCertificateRefs": [reference] } });
    let missing = json!({ "frontend": { "default": missing } });
    cluster.create(
        GATEWAYS,
        gateway("bad", missing, json!([https("a", other)])),
    );
    let path = format!("{GATEWAYS}/bad");
    cluster.wait_for_condition(&path, "/listeners/0", refused);
    serves_partners();
    // The next process has the certificates of the authority from this one.
    balancer = balancer.replace(&config);
    balancer.upgrade().unwrap();
    serves_partners();
    // Another authority counts at once.
    let path = format!("{CONFIG_MAPS}/partners");
    let others = authority(&folder, "partners", "others");
    cluster.server.send_object("PUT", &path, &others);
    wait_until("clients of the new authority are served", || {
        ask(verified, Some("other")) == good
    });
    assert_eq!(ask(verified, Some("partner")), nothing);
    assert_eq!(ask(insecure, Some("partner")), bad);
    // Without an authority the listeners close.
    cluster.delete(CONFIG_MAPS, "partners");
    cluster.wait_for_condition(&front, "/listeners/0", refused);
    wait_until("nobody is served", || {
        ask(verified, Some("other")) == nothing
    });
    assert_eq!(ask(open, None), answer("200", "verified: "));
    drop(balancer);
}

/// Ingress of the class `edge` with TLS for a host, and annotations of ingress-nginx.
fn ingress(name: &str, host: &str, annotations: Value) -> Value {
    let backend = json!({ "service": { "name": "a", "port": { "number": 80 } } });
    let paths = json!([{ "path": "/", "pathType": "Prefix", "backend": backend }]);
    json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "Ingress",
        "metadata": { "name": name, "annotations": annotations },
        "spec": { "ingressClassName": "edge", "tls": [{ "hosts": [host], "secretName": "server" }],
                  "rules": [{ "host": host, "http": { "paths": paths } }] },
    })
}

#[test]
fn clients_show_certificates_at_a_host_of_an_ingress() {
    if !are_installed(&["openssl"]) {
        return;
    }
    let Some(cluster) = Cluster::start() else {
        return;
    };
    let folder = Folder::new();
    make_certificates(
        &folder,
        &[
            ("server", "DNS:a.example,DNS:b.example", None),
            ("partners", "DNS:partners.example", None),
            ("others", "DNS:others.example", None),
            ("partner", "DNS:partner.example", Some("partners")),
            ("other", "DNS:other.example", Some("others")),
        ],
    );
    let listener = TcpListener::bind((cluster.ip, 0)).unwrap();
    let member = Member::start_at(listener, |script, mut wire| {
        while let Some(request) = script.read_request(&mut wire) {
            let told = ["X-Client-Cert-Verified", "ssl-client-verify"]
                .map(|name| request.values(name).join(","));
            let subject = request.values("ssl_client_subject_dn").len();
            let text = format!("{} {subject}", told.join(" "));
            if !wire.try_send(ok_response(&text)) {
                break;
            }
        }
    });
    cluster.serve("a", &member);
    cluster.create(SECRETS, secret(&folder, "server", "server"));
    let class = json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "IngressClass",
        "metadata": { "name": "edge" },
        "spec": { "controller": "evenkeel.org/ingress" },
    });
    cluster.create("/apis/networking.k8s.io/v1/ingressclasses", class);
    let ip = address().ip();
    let [plain, tls] = free_ports(ip);
    let config = format!(
        "{}[kubernetes.gateway.ingress]\nhttp_port = {plain}\nhttps_port = {tls}\n",
        config(ip)
    );
    let mut balancer = start(&cluster, &config);
    let ask = |host: &str, client: Option<&str>, field: &str| {
        let file = client.map(|name| folder.join(&format!("{name}.pem")).display().to_string());
        let mut more: Vec<&str> = file.iter().flat_map(|file| ["--cert", file]).collect();
        more.extend(["-H", field]);
        ask_https((ip, tls), &folder, host, &more)
    };
    let answer = |code: &str, body: &str| (code.to_owned(), body.to_owned());
    let made_up = "ssl_client_subject_dn: CN=anna";
    let (open, nothing) = (answer("200", "  1"), answer("000", ""));
    cluster.create(INGRESSES, ingress("open", "b.example", json!({})));
    wait_until("the open host is served", || {
        ask("b.example", None, made_up) == open
    });
    // Without authorities nobody gets in.
    let annotation = json!({ "nginx.ingress.kubernetes.io/auth-tls-secret": "shop/partners" });
    cluster.create(INGRESSES, ingress("shut", "a.example", annotation));
    wait_for_answer((ip, plain).into(), "a.example", ("503", ""));
    let code = ask("a.example", Some("partner"), made_up).0;
    assert!(["000", "404"].contains(&&*code), "{code}");
    let authorities = |by: &str| {
        json!({
            "apiVersion": "v1",
            "kind": "Secret",
            "type": "Opaque",
            "metadata": { "name": "partners" },
            "stringData": { "ca.crt": folder.text(&format!("{by}.crt")) },
        })
    };
    cluster.create(SECRETS, authorities("partners"));
    let good = answer("200", "yes SUCCESS 0");
    wait_until("clients with a certificate are served", || {
        ask("a.example", Some("partner"), made_up) == good
    });
    let serves_partners = || {
        assert_eq!(ask("a.example", Some("partner"), made_up), good);
        for client in [Some("other"), None] {
            assert_eq!(ask("a.example", client, made_up), nothing, "{client:?}");
        }
        // Clients of the other host are asked for nothing, and do not get to the first one.
        assert_eq!(ask("b.example", None, made_up), open);
        assert_eq!(ask("b.example", None, "Host: a.example").0, "421");
        let url = format!("https://{ip}:{tls}/");
        let arguments = [
            "-k",
            "-o",
            "/dev/null",
            "-w",
            "%{http_code}",
            "-H",
            "Host: a.example",
        ];
        let unnamed = try_curl(&[&arguments[..], &[&url]].concat());
        assert_eq!(String::from_utf8_lossy(&unnamed.stdout), "404");
        wait_for_answer((ip, plain).into(), "a.example", ("308", ""));
    };
    serves_partners();
    balancer = balancer.replace(&config);
    balancer.upgrade().unwrap();
    serves_partners();
    // Another authority counts at once, and without one the host is shut.
    let path = format!("{SECRETS}/partners");
    cluster
        .server
        .send_object("PUT", &path, &authorities("others"));
    wait_until("clients of the new authority are served", || {
        ask("a.example", Some("other"), made_up) == good
    });
    assert_eq!(ask("a.example", Some("partner"), made_up), nothing);
    cluster.delete(SECRETS, "partners");
    wait_until("nobody is served", || {
        ask("a.example", Some("other"), made_up).0 != "200"
    });
    assert_eq!(ask("b.example", None, made_up), open);
    drop(balancer);
}

#[test]
fn members_see_the_certificate_of_a_gateway() {
    if !are_installed(&["nginx", "openssl"]) {
        return;
    }
    let Some(cluster) = Cluster::start_release(GatewayRelease::Newest) else {
        return;
    };
    let folder = Folder::new();
    make_certificates(
        &folder,
        &[
            ("authority", "DNS:authority.example", None),
            ("member", "DNS:member.example", Some("authority")),
            ("one", "DNS:one.example", Some("authority")),
            ("two", "DNS:two.example", Some("authority")),
        ],
    );
    let [member] = free_ports(cluster.ip);
    let file = |name: &str| folder.join(name).display().to_string();
    let (pem, trusted, ip) = (file("member.pem"), file("authority.crt"), cluster.ip);
    let _nginx = Server::nginx_also(&format!(
        "listen {ip}:{member} ssl;\nssl_certificate {pem};\nssl_certificate_key {pem};\n\
         ssl_client_certificate {trusted};\nssl_verify_client on;\nreturn 200 $ssl_client_s_dn;"
    ));
    cluster.serve_at("secure", member, "TCP");
    cluster.create(CONFIG_MAPS, authority(&folder, "authority", "authority"));
    cluster.create(
        POLICIES,
        json!({
            "apiVersion": "gateway.networking.k8s.io/v1",
            "kind": "BackendTLSPolicy",
            "metadata": { "name": "tls" },
            "spec": {
                "targetRefs": [{ "group": "", "kind": "Service", "name": "secure" }],
                "validation": {
                    "hostname": "member.example",
                    "caCertificateRefs": [{ "group": "", "kind": "ConfigMap", "name": "authority" }],
                },
            },
        }),
    );
    let at = address();
    let [other] = free_ports(at.ip());
    let reference = json!({ "backend": { "clientCertificateRef": { "name": "own" } } });
    let http = |port: u16| json!([{ "name": "http", "port": port, "protocol": "HTTP" }]);
    cluster.create(GATEWAYS, gateway("front", reference, http(at.port())));
    cluster.gateway("without", http(other));
    let mut route = json!({
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "HTTPRoute",
        "metadata": { "name": "a" },
        "spec": { "parentRefs": [{ "name": "front" }, { "name": "without" }], "hostnames": ["a.example"] },
    });
    route["spec"]["rules"] = json!([{ "backendRefs": [{ "name": "secure", "port": 80 }] }]);
    cluster.create(crate::gateway::ROUTES, route);
    let _balancer = start(&cluster, &config(at.ip()));
    // Without the secret the member gets no certificate, and refuses.
    let front = format!("{GATEWAYS}/front");
    let missing = ("ResolvedRefs", "False", "InvalidClientCertificateRef");
    cluster.wait_for_condition(&front, "", missing);
    cluster.wait_for_condition(&front, "", ("Accepted", "True", "Accepted"));
    wait_for_answer(at, "a.example", ("400", ""));
    cluster.create(SECRETS, secret(&folder, "own", "one"));
    let shows = |name: &str| {
        ask_gateway(at, "a.example")
            .1
            .contains(&format!("CN={name}"))
    };
    wait_until("the member sees the certificate", || shows("one"));
    let resolved = ("ResolvedRefs", "True", "ResolvedRefs");
    cluster.wait_for_condition(&front, "", resolved);
    // Clients of another gateway of the same route come without it.
    wait_for_answer((at.ip(), other).into(), "a.example", ("400", ""));
    assert!(shows("one"));
    let path = format!("{SECRETS}/own");
    cluster
        .server
        .send_object("PUT", &path, &secret(&folder, "own", "two"));
    wait_until("the member sees the new certificate", || shows("two"));
}

#[test]
fn requests_for_the_host_of_another_listener_are_misdirected() {
    if !are_installed(&["openssl"]) {
        return;
    }
    let Some(cluster) = Cluster::start_release(GatewayRelease::Newest) else {
        return;
    };
    let folder = Folder::new();
    let names = "DNS:a.example,DNS:b.example,DNS:*.wide.example";
    make_certificates(&folder, &[("server", names, None)]);
    cluster.create(SECRETS, secret(&folder, "server", "server"));
    let (a, b) = (cluster.member("a"), cluster.member("b"));
    cluster.serve("a", &a);
    cluster.serve("b", &b);
    let at = address();
    let with_host = |name: &str, host: &str| {
        let mut listener = https(name, at.port());
        listener["hostname"] = host.into();
        listener
    };
    let listeners = json!([
        with_host("a", "a.example"),
        with_host("b", "b.example"),
        with_host("wide", "*.wide.example"),
    ]);
    cluster.gateway("front", listeners);
    let to = |name: &str| json!({ "backendRefs": [{ "name": name, "port": 80 }] });
    cluster.route("a", "a.example", to("a"));
    cluster.route("b", "b.example", to("b"));
    cluster.route("wide", "*.wide.example", to("b"));
    let balancer = start(&cluster, &config(at.ip()));
    let ask = |version: &str, name: &str, host: &str| {
        let field = format!("Host: {host}");
        let more = [version, "-H", &field];
        ask_https((at.ip(), at.port()), &folder, name, &more)
    };
    let answer = |code: &str, body: &str| (code.to_owned(), body.to_owned());
    wait_until("the listeners serve", || {
        ask("--http2", "a.example", "a.example") == answer("200", "a")
    });
    for version in ["--http1.1", "--http2"] {
        for (name, host, code) in [
            ("a.example", "a.example", "200"),
            ("a.example", "A.example:443", "200"),
            ("a.example", "b.example", "421"),
            ("b.example", "a.example", "421"),
            ("a.example", "x.wide.example", "421"),
            ("x.wide.example", "y.wide.example", "200"),
            ("x.wide.example", "b.example", "421"),
            // Nobody serves the host.
            ("a.example", "c.example", "404"),
        ] {
            let (found, _) = ask(version, name, host);
            assert_eq!(found, code, "{version} {name} {host}");
        }
    }
    let series = format!(
        "evenkeel_rule_refused_total{{rule=\"kubernetes.{}\",reason=\"misdirected\"}}",
        at.port()
    );
    assert_eq!(balancer.read_metric(&series), Some(8.0));
}
