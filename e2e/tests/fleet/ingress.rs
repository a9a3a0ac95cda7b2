//! Ingresses with annotations of ingress-nginx, with `kube-apiserver`.

use std::net::{SocketAddr, TcpListener};

use evenkeel_e2e::folder::Folder;
use evenkeel_e2e::process::try_curl;
use evenkeel_e2e::server::address;
use evenkeel_e2e::tls::{Key, make_certificate};
use evenkeel_e2e::wait_until;
use serde_json::{Value, json};

use crate::gateway::{Cluster, ask_gateway, config, start, wait_for_answer};

const INGRESSES: &str = "/apis/networking.k8s.io/v1/namespaces/shop/ingresses";
const EVENTS: &str = "/api/v1/namespaces/shop/events";

/// Makes an Ingress of the class `edge` for a path of a host, with annotations of ingress-nginx.
fn ingress(
    name: &str,
    host: &str,
    path: &str,
    service: &str,
    annotations: &[(&str, &str)],
) -> Value {
    let annotations: serde_json::Map<String, Value> = { annotations.iter() }
        .map(|(name, value)| {
            (
                format!("nginx.ingress.kubernetes.io/{name}"),
                (*value).into(),
            )
        })
        .collect();
    let backend = json!({ "service": { "name": service, "port": { "name": "http" } } });
    let paths = json!([{ "path": path, "pathType": "Prefix", "backend": backend }]);
    json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "Ingress",
        "metadata": { "name": name, "annotations": annotations },
        "spec": { "ingressClassName": "edge", "rules": [{ "host": host, "http": { "paths": paths } }] },
    })
}

/// Returns the status of the answer for a path.
fn status_at(at: SocketAddr, host: &str, path: &str) -> String {
    let url = format!("http://{at}{path}");
    let host = format!("Host: {host}");
    let answer = try_curl(&["-o", "/dev/null", "-w", "%{http_code}", "-H", &host, &url]);
    String::from_utf8_lossy(&answer.stdout).into_owned()
}

/// Returns the reasons and messages of the events about an object of the namespace.
pub(crate) fn events(cluster: &Cluster, name: &str) -> Vec<(String, String)> {
    let list = cluster.server.get_object(EVENTS).unwrap_or_default();
    let all = list["items"].as_array().cloned().unwrap_or_default();
    let own = all.iter().filter(|of| of["involvedObject"]["name"] == name);
    own.map(|of| {
        let text = |key: &str| of[key].as_str().unwrap_or_default().to_owned();
        (text("reason"), text("message"))
    })
    .collect()
}

/// Creates the class `edge`, and a secret with a certificate for `a.example`.
fn prepare(cluster: &Cluster, folder: &Folder) {
    let class = json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "IngressClass",
        "metadata": { "name": "edge" },
        "spec": { "controller": "evenkeel.org/ingress" },
    });
    cluster.create("/apis/networking.k8s.io/v1/ingressclasses", class);
    make_certificate(folder, "one", Key::Ecdsa, "DNS:a.example", None);
    let secret = json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "kubernetes.io/tls",
        "metadata": { "name": "certificate" },
        "stringData": { "tls.crt": folder.text("one.crt"), "tls.key": folder.text("one.key.tmp") },
    });
    cluster.create("/api/v1/namespaces/shop/secrets", secret);
}

#[test]
fn an_ingress_is_served_with_its_annotations() {
    let Some(cluster) = Cluster::start() else {
        return;
    };
    let (a, b) = (cluster.member("a"), cluster.member("b"));
    cluster.serve("a", &a);
    cluster.serve("b", &b);
    let folder = Folder::new();
    prepare(&cluster, &folder);
    let at = address();
    let ip = at.ip();
    let tls = TcpListener::bind((ip, 0))
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let config = format!(
        "{}[kubernetes.gateway.ingress]\nhttp_port = {}\nhttps_port = {tls}\n",
        config(ip),
        at.port()
    );
    let balancer = start(&cluster, &config);

    // Served, with an address.
    let mut web = ingress("web", "a.example", "/", "a", &[("ssl-redirect", "false")]);
    web["spec"]["tls"] = json!([{ "hosts": ["a.example"], "secretName": "certificate" }]);
    cluster.create(INGRESSES, web.clone());
    wait_for_answer(at, "a.example", ("200", "a"));
    assert_eq!(ask_gateway(at, "b.example").0, "404");
    let path = format!("{INGRESSES}/web");
    let addresses = json!([{ "ip": "192.0.2.10" }]);
    wait_until("the status has the address", || {
        let object = cluster.server.get_object(&path).unwrap_or_default();
        object.pointer("/status/loadBalancer/ingress") == Some(&addresses)
    });

    // TLS by server name, and a redirect once the annotation is gone.
    let resolve = format!("a.example:{tls}:{ip}");
    let trusted = folder.join("one.crt").display().to_string();
    let url = format!("https://a.example:{tls}/");
    wait_until("the certificate of the secret is shown", || {
        try_curl(&["--resolve", &resolve, "--cacert", &trusted, &url]).stdout == b"a"
    });
    web["metadata"]["annotations"] = json!({});
    cluster.server.send_object("PUT", &path, &web);
    wait_for_answer(at, "a.example", ("308", ""));
    let followed = ["-L", "--resolve", &resolve, "--cacert", &trusted];
    let plain = format!("a.example:{}:{ip}", at.port());
    let from = format!("http://a.example:{}/", at.port());
    let answer = try_curl(&[&followed[..], &["--resolve", &plain, &from]].concat());
    assert_eq!(answer.stdout, b"a");

    // What restricts access and cannot be kept is closed, and an event says so.
    let snippet = [("configuration-snippet", "deny all;")];
    let shut =
        |annotations: &[(&str, &str)]| ingress("shut", "b.example", "/admin", "b", annotations);
    cluster.create(INGRESSES, ingress("open", "b.example", "/", "b", &[]));
    wait_for_answer(at, "b.example", ("200", "b"));
    cluster.create(INGRESSES, shut(&snippet));
    wait_until("the path is closed", || {
        status_at(at, "b.example", "/admin/x") == "503"
    });
    wait_until("an event says so", || !events(&cluster, "shut").is_empty());
    let (reason, message) = events(&cluster, "shut").remove(0);
    assert_eq!(reason, "Closed");
    assert!(message.contains("configuration-snippet"), "{message}");
    assert!(events(&cluster, "web").is_empty());
    // Another change has another event, and the first one stays the only one of its kind.
    let refused = [
        ("denylist-source-range", "0.0.0.0/0"),
        ("proxy-buffering", "on"),
    ];
    cluster
        .server
        .send_object("PUT", &format!("{INGRESSES}/shut"), &shut(&refused));
    wait_until("clients are refused", || {
        status_at(at, "b.example", "/admin/x") == "403"
    });
    wait_until("an event tells what has no effect", || {
        events(&cluster, "shut")
            .iter()
            .any(|(reason, _)| reason == "Ignored")
    });
    assert_eq!(events(&cluster, "shut").len(), 2);
    assert_eq!(ask_gateway(at, "b.example"), ("200".into(), "b".into()));
    assert!(
        balancer.log().contains("Ingress shop/shut: Closed"),
        "{}",
        balancer.log()
    );

    // The next process serves Ingresses from the start, and does not repeat the event.
    let balancer = balancer.replace(&config);
    assert_eq!(ask_gateway(at, "b.example"), ("200".into(), "b".into()));
    wait_until("the next process follows all kinds", || {
        let kinds = balancer.admin_json("/v1/kubernetes/kinds");
        kinds.as_array().is_some_and(|kinds| kinds.len() == 18)
    });
    wait_until("the next process has looked at the Ingresses", || {
        balancer.log().contains("Ingress shop/shut: Ignored")
    });
    assert_eq!(events(&cluster, "shut").len(), 2);
    cluster.delete(INGRESSES, "web");
    wait_for_answer(at, "a.example", ("404", ""));

    // An Ingress that goes to another class loses the balancer's address.
    let address_of_open = || {
        let object = cluster.server.get_object(&format!("{INGRESSES}/open"));
        let object = object.expect("the Ingress");
        object.pointer("/status/loadBalancer/ingress").cloned()
    };
    wait_until("the address is in the status", || {
        address_of_open().as_ref() == Some(&addresses)
    });
    let mut moved = ingress("open", "b.example", "/", "b", &[]);
    moved["spec"]["ingressClassName"] = json!("other");
    let path = format!("{INGRESSES}/open");
    cluster.server.send_object("PUT", &path, &moved);
    wait_until("the address is gone", || address_of_open().is_none());
}

/// Hash of the password `secret`, as `htpasswd -nbB -C 4` makes it.
const SECRET: &str = "$2y$04$eOnKaXwwoXrWN2nnApD3l.ljv56/.n/6aNhVUC3NuZgmfJiewvCIy";

#[test]
fn users_of_a_secret_are_let_in_with_their_passwords() {
    let Some(cluster) = Cluster::start() else {
        return;
    };
    let (a, b) = (cluster.member("a"), cluster.member("b"));
    cluster.serve("a", &a);
    cluster.serve("b", &b);
    prepare(&cluster, &Folder::new());
    let at = address();
    let tls = TcpListener::bind((at.ip(), 0))
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let config = format!(
        "{}[kubernetes.gateway.ingress]\nhttp_port = {}\nhttps_port = {tls}\n",
        config(at.ip()),
        at.port()
    );
    let balancer = start(&cluster, &config);
    cluster.create(INGRESSES, ingress("open", "b.example", "/", "b", &[]));
    wait_for_answer(at, "b.example", ("200", "b"));
    // Nobody is let in without the secret, nor with hashes of other kinds.
    let basic = [("auth-type", "basic"), ("auth-secret", "users")];
    cluster.create(INGRESSES, ingress("web", "a.example", "/", "a", &basic));
    wait_for_answer(at, "a.example", ("503", ""));
    let secrets = "/api/v1/namespaces/shop/secrets";
    let users = |content: &str| {
        json!({
            "apiVersion": "v1",
            "kind": "Secret",
            "type": "Opaque",
            "metadata": { "name": "users" },
            "stringData": { "auth": content },
        })
    };
    cluster.create(secrets, users("anna:$apr1$abcdefgh$x"));
    wait_until("an event tells the cure", || {
        let events = events(&cluster, "web");
        events
            .iter()
            .any(|(_, message)| message.contains("htpasswd -B"))
    });
    assert_eq!(ask_gateway(at, "a.example").0, "503");
    let path = format!("{secrets}/users");
    let put = |content: &str| cluster.server.send_object("PUT", &path, &users(content));
    put(&format!("anna:{SECRET}"));
    wait_for_answer(at, "a.example", ("401", ""));
    let log_in = |user: &str| {
        let url = format!("http://{at}/");
        let answer = try_curl(&["-u", user, "-H", "Host: a.example", &url]);
        String::from_utf8_lossy(&answer.stdout).into_owned()
    };
    assert_eq!(log_in("anna:secret"), "a");
    assert_ne!(log_in("anna:other"), "a");
    // The next process knows the users from the start.
    let balancer = balancer.replace(&config);
    assert_eq!(ask_gateway(at, "a.example").0, "401");
    assert_eq!(log_in("anna:secret"), "a");
    // Users come and go with the secret.
    put(&format!("bert:{SECRET}"));
    wait_until("another user is let in", || log_in("bert:secret") == "a");
    assert_ne!(log_in("anna:secret"), "a");
    cluster.delete(secrets, "users");
    wait_for_answer(at, "a.example", ("503", ""));
    assert_eq!(ask_gateway(at, "b.example"), ("200".into(), "b".into()));
    // No hash is in the log, nor in the configuration.
    assert!(!balancer.log().contains("$2y$"), "{}", balancer.log());
}
