//! Restarts while the API server is away: the last good copy of members, gateways and routes.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;

use evenkeel_e2e::balancer::Balancer;
use evenkeel_e2e::folder::Folder;
use evenkeel_e2e::kubernetes::Condition::Ready;
use evenkeel_e2e::kubernetes::{ApiServer, Mood};
use evenkeel_e2e::member::{Member, ok_response};
use evenkeel_e2e::process::try_curl;
use evenkeel_e2e::server::address;
use evenkeel_e2e::tls::{Key, make_certificate};
use evenkeel_e2e::wait_until;
use serde_json::{Value, json};

use crate::gateway::{self, Cluster, GATEWAYS, ROUTES, ask_gateway, wait_for_answer};

const HOST: &str = "127.0.0.1";
const COPY: &str = "kubernetes.copy";

const MEMBERS: &str = "workers = 1\n[admin]\nlisten = \"127.0.0.1:0\"\n\
    [kubernetes]\nkubeconfig = \"kubeconfig\"\ncopy_file = \"kubernetes.copy\"\n\
    [rule.web]\nlisten = \"127.0.0.1:0\"\nmembers = [{ kubernetes = \"shop/web:http\" }]\n\
    allowed_networks = [\"127.0.0.0/8\"]\n";

/// Waits until the copy of a balancer has a text.
fn wait_for_copy(balancer: &Balancer, text: &str) {
    let path = balancer.folder().join(COPY);
    wait_until(&format!("the copy has {text}"), || {
        fs::read_to_string(&path).is_ok_and(|copy| copy.contains(text))
    });
}

/// Returns the time of the copy from which a part of the balancer comes; 0 if the part comes from the API server.
fn time_of(balancer: &Balancer, part: &str) -> f64 {
    let series = format!("evenkeel_kubernetes_copy_timestamp_seconds{{part=\"{part}\"}}");
    let time = balancer.read_metric(&series);
    time.unwrap_or_else(|| panic!("no {series}"))
}

fn ask(balancer: &Balancer) -> String {
    let mut wire = balancer.connect();
    wire.send("GET / HTTP/1.1\r\nHost: web\r\nConnection: close\r\n\r\n");
    let answer = wire.read_response();
    format!("{} {}", answer.second_word(), answer.text())
}

#[test]
fn members_outlive_a_restart_without_the_api_server() {
    let server = ApiServer::start();
    let named = |name: &'static str| Member::answering_with(move |_| ok_response(name));
    let (a, b) = (named("a"), named("b"));
    let port = |member: &Member| member.address().port();
    server.set_slice("web-1", port(&a), &[(HOST, Ready)]);
    let balancer = Balancer::start_with(MEMBERS, |folder| {
        folder.write("kubeconfig", server.kubeconfig());
        folder.write_private("token", "first");
    });
    assert_eq!(ask(&balancer), "200 a");
    wait_for_copy(&balancer, &a.address().to_string());
    let mode = fs::metadata(balancer.folder().join(COPY)).unwrap();
    assert_eq!(mode.permissions().mode() & 0o777, 0o600);
    assert_eq!(time_of(&balancer, "members"), 0.0);

    server.set_mood(Mood::Away);
    let balancer = balancer.replace(MEMBERS);
    assert_eq!(ask(&balancer), "200 a");
    assert!(time_of(&balancer, "members") > 1e9);
    let port_status = || balancer.admin_json("/v1/kubernetes")[0]["ports"][0].clone();
    assert!(port_status()["copy_of"].as_i64().unwrap() > 1_000_000_000);
    assert_eq!(port_status()["members"], 1);
    balancer.wait_for_log("last good copy");
    let table = balancer.run_ctl("kubernetes").unwrap();
    assert!(table.contains("copy of 20"), "{table}");
    // The API server comes back with another member.
    server.set_slice("web-1", port(&b), &[(HOST, Ready)]);
    server.set_mood(Mood::Well);
    wait_until("the other member serves", || ask(&balancer) == "200 b");
    wait_until("the copy is no longer in use", || {
        time_of(&balancer, "members") == 0.0 && port_status()["copy_of"] == Value::Null
    });
    wait_for_copy(&balancer, &b.address().to_string());

    // What is no copy is not used, and told.
    server.set_mood(Mood::Away);
    let whole = balancer.folder().text(COPY);
    for (text, wanted) in [
        (whole[..whole.len() / 2].to_owned(), "damaged"),
        (whole.replace("copy 1\n", "copy 9\n"), "later version"),
        ("{}".to_owned(), "no copy of a cluster"),
    ] {
        let other = Balancer::start_with(MEMBERS, |other| {
            other.write("kubeconfig", server.kubeconfig());
            other.write_private("token", "first");
            other.write_private(COPY, &text);
        });
        other.wait_for_log(wanted);
        assert_eq!(time_of(&other, "members"), 0.0);
        let error = other.admin_json("/v1/kubernetes")[0]["ports"][0]["error"].clone();
        let error = error.as_str().unwrap_or_default();
        assert!(
            error.contains("the last good copy is not used") && error.contains(wanted),
            "{error}"
        );
        // Nothing takes its place until the API server has answered.
        assert_eq!(other.folder().text(COPY), text);
    }
    // Another cluster has other members.
    let elsewhere = ApiServer::start();
    elsewhere.set_mood(Mood::Away);
    let other = Balancer::start_with(MEMBERS, |other| {
        other.write("kubeconfig", elsewhere.kubeconfig());
        other.write_private("token", "first");
        other.write_private(COPY, &whole);
    });
    other.wait_for_log("is of the API server at");
    elsewhere.set_slice("web-1", port(&a), &[(HOST, Ready)]);
    elsewhere.set_mood(Mood::Well);
    wait_until("the member of the other cluster serves", || {
        ask(&other) == "200 a"
    });
    wait_for_copy(&other, &a.address().to_string());
    // A copy that nobody wants any more is removed.
    let nothing = MEMBERS.replace("copy_file", "copy_contents = \"nothing\"\ncopy_file");
    other.reconfigure(&nothing);
    wait_until("the copy is removed", || {
        !other.folder().join(COPY).exists()
    });
}

#[test]
fn gateways_outlive_a_restart_without_the_api_server() {
    let Some(mut cluster) = Cluster::start() else {
        return;
    };
    let (a, b) = (cluster.member("a"), cluster.member("b"));
    cluster.serve("a", &a);
    cluster.serve("b", &b);
    let folder = Folder::new();
    make_certificate(&folder, "own", Key::Ecdsa, "DNS:a.example", None);
    let key = folder.text("own.key.tmp");
    cluster.create(
        "/api/v1/namespaces/shop/secrets",
        json!({
            "apiVersion": "v1",
            "kind": "Secret",
            "type": "kubernetes.io/tls",
            "metadata": { "name": "own" },
            "stringData": { "tls.crt": folder.text("own.crt"), "tls.key": key },
        }),
    );
    let at = address();
    let ip = at.ip();
    let free = TcpListener::bind((ip, 0)).unwrap();
    let port = free.local_addr().unwrap().port();
    drop(free);
    cluster.gateway(
        "front",
        json!([
            { "name": "http", "port": at.port(), "protocol": "HTTP" },
            { "name": "https", "port": port, "protocol": "HTTPS", "tls": { "certificateRefs": [{ "name": "own" }] } },
        ]),
    );
    let to = |name: &str| json!({ "backendRefs": [{ "name": name, "port": 80 }] });
    cluster.route("a", "a.example", to("a"));
    cluster.route("b", "b.example", to("b"));
    let config = gateway::config(ip);
    let config = config.replace(
        "[kubernetes]\n",
        "[kubernetes]\ncopy_file = \"kubernetes.copy\"\n",
    );
    let balancer = gateway::start(&cluster, &config);
    let serves_https = || {
        let resolved = format!("a.example:{port}:{ip}");
        let trusted = folder.join("own.crt").display().to_string();
        let url = format!("https://a.example:{port}/");
        let answer = try_curl(&["--resolve", &resolved, "--cacert", &trusted, &url]);
        answer.stdout == b"a"
    };
    for host in ["a", "b"] {
        wait_for_answer(at, &format!("{host}.example"), ("200", host));
    }
    wait_until("HTTPS is served", serves_https);
    for text in ["a.example", "b.example", "tls.key"] {
        wait_for_copy(&balancer, text);
    }
    for member in [&a, &b] {
        wait_for_copy(&balancer, &member.address().to_string());
    }

    cluster.server.kill();
    let balancer = balancer.replace(&config);
    for host in ["a", "b"] {
        let found = ask_gateway(at, &format!("{host}.example"));
        assert_eq!(found, ("200".into(), host.into()), "{}", balancer.log());
    }
    assert!(serves_https(), "{}", balancer.log());
    assert!(time_of(&balancer, "gateways") > 1e9 && time_of(&balancer, "members") > 1e9);
    let kinds = || balancer.admin_json("/v1/kubernetes/kinds");
    wait_until("the kinds say so", || kinds()[0]["copy_of"].is_i64());
    let kept = balancer.folder().text(COPY);

    // The API server comes back with changes: a route is gone, and another one is there.
    cluster.server.run();
    cluster.delete(ROUTES, "b");
    cluster.route("c", "c.example", to("b"));
    wait_for_answer(at, "c.example", ("200", "b"));
    assert_eq!(ask_gateway(at, "b.example").0, "404");
    assert!(serves_https());
    wait_until("the copy is no longer in use", || {
        time_of(&balancer, "gateways") == 0.0 && time_of(&balancer, "members") == 0.0
    });
    assert_eq!(kinds()[0]["copy_of"], Value::Null);
    let front = format!("{GATEWAYS}/front");
    cluster.wait_for_condition(&front, "", ("Programmed", "True", "Programmed"));
    wait_for_copy(&balancer, "c.example");
    assert_ne!(balancer.folder().text(COPY), kept);

    // Without keys, everything else is served.
    let without_keys = config.replace("copy_file", "copy_contents = \"without_keys\"\ncopy_file");
    balancer.reconfigure(&without_keys);
    let path = balancer.folder().join(COPY);
    wait_until("the copy has no keys", || {
        fs::read_to_string(&path).is_ok_and(|copy| !copy.contains("tls.key\":\""))
    });
    cluster.server.kill();
    let balancer = balancer.replace(&without_keys);
    assert_eq!(ask_gateway(at, "c.example"), ("200".into(), "b".into()));
    assert!(!serves_https());
    balancer.wait_for_log("has no private keys");
    cluster.server.run();
    wait_until("HTTPS is served again", serves_https);
    wait_until("no part comes from the copy", || {
        time_of(&balancer, "gateways") == 0.0
    });
    // Other settings of the controller want other addresses: the copy does not know them.
    cluster.server.kill();
    let other = without_keys.replace("example.org/edge", "example.org/other");
    let balancer = balancer.replace(&other);
    balancer.wait_for_log("settings in [kubernetes.gateway] were others");
    assert_eq!(ask_gateway(at, "c.example").0, "000");
}
