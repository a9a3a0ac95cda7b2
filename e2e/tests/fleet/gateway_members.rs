//! Members of gateways, with TLS as a BackendTLSPolicy demands, and with datagrams; and listeners of other namespaces.

use std::net::{TcpListener, UdpSocket};
use std::thread;
use std::time::Duration;

use evenkeel_e2e::folder::Folder;
use evenkeel_e2e::process::are_installed;
use evenkeel_e2e::server::{Server, address};
use evenkeel_e2e::tls::{Key, make_certificate};
use evenkeel_e2e::wait_until;
use serde_json::{Value, json};

use crate::gateway::{
    Cluster, GATEWAYS, POLICIES, ROUTES, UDP_ROUTES, ask_gateway, config, start, wait_for_answer,
};

const CONFIG_MAPS: &str = "/api/v1/namespaces/shop/configmaps";

fn policy(name: &str, hostname: &str) -> Value {
    json!({
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "BackendTLSPolicy",
        "metadata": { "name": name },
        "spec": {
            "targetRefs": [{ "group": "", "kind": "Service", "name": "secure" }],
            "validation": {
                "hostname": hostname,
                "caCertificateRefs": [{ "group": "", "kind": "ConfigMap", "name": "authority" }],
            },
        },
    })
}

#[test]
fn members_show_certificates_of_the_authority_and_name_of_a_policy() {
    if !are_installed(&["nginx", "openssl"]) {
        return;
    }
    let Some(cluster) = Cluster::start() else {
        return;
    };
    let folder = Folder::new();
    make_certificate(
        &folder,
        "authority",
        Key::Ecdsa,
        "DNS:authority.example",
        None,
    );
    let by = Some("authority");
    make_certificate(&folder, "member", Key::Ecdsa, "DNS:member.example", by);
    let free = TcpListener::bind((cluster.ip, 0)).unwrap();
    let member = free.local_addr().unwrap();
    drop(free);
    let pem = folder.join("member.pem").display().to_string();
    let _nginx = Server::nginx_also(&format!(
        "listen {member} ssl;\nssl_certificate {pem};\nssl_certificate_key {pem};\nreturn 200 \"secure\";"
    ));
    cluster.serve_at("secure", member.port(), "TCP");
    let at = address();
    cluster.gateway(
        "front",
        json!([{ "name": "http", "port": at.port(), "protocol": "HTTP" }]),
    );
    cluster.route(
        "a",
        "a.example",
        json!({ "backendRefs": [{ "name": "secure", "port": 80 }] }),
    );
    let _balancer = start(&cluster, &config(at.ip()));
    // The member expects TLS.
    wait_for_answer(at, "a.example", ("400", ""));
    // Without the certificate of an authority nothing is sent.
    cluster.create(POLICIES, policy("tls", "member.example"));
    let tls = format!("{POLICIES}/tls");
    let refused = ("Accepted", "False", "NoValidCACertificate");
    cluster.wait_for_condition(&tls, "/ancestors/0", refused);
    let missing = ("ResolvedRefs", "False", "InvalidCACertificateRef");
    cluster.wait_for_condition(&tls, "/ancestors/0", missing);
    wait_for_answer(at, "a.example", ("500", ""));
    let authority = json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": { "name": "authority" },
        "data": { "ca.crt": folder.text("authority.crt") },
    });
    cluster.create(CONFIG_MAPS, authority);
    wait_for_answer(at, "a.example", ("200", "secure"));
    let accepted = ("Accepted", "True", "Accepted");
    cluster.wait_for_condition(&tls, "/ancestors/0", accepted);
    // A newer policy of the service does not count.
    cluster.create(POLICIES, policy("wrong", "other.example"));
    let wrong = format!("{POLICIES}/wrong");
    let conflicted = ("Accepted", "False", "Conflicted");
    cluster.wait_for_condition(&wrong, "/ancestors/0", conflicted);
    assert_eq!(
        ask_gateway(at, "a.example"),
        ("200".into(), "secure".into())
    );
    // Without the older one it does: the certificate is for another name.
    cluster.delete(POLICIES, "tls");
    cluster.wait_for_condition(&wrong, "/ancestors/0", accepted);
    wait_until("a certificate for another name is refused", || {
        ask_gateway(at, "a.example").0.starts_with("50")
    });
}

#[test]
fn datagrams_reach_the_members_of_a_udp_route() {
    let Some(cluster) = Cluster::start() else {
        return;
    };
    let member = UdpSocket::bind((cluster.ip, 0)).unwrap();
    cluster.serve_at("dns", member.local_addr().unwrap().port(), "UDP");
    thread::spawn(move || {
        let mut space = [0; 64];
        while let Ok((size, from)) = member.recv_from(&mut space) {
            let _ = member.send_to(&[b"got ", &space[..size]].concat(), from);
        }
    });
    let at = address();
    let free = UdpSocket::bind((at.ip(), 0)).unwrap();
    let udp = free.local_addr().unwrap();
    drop(free);
    cluster.gateway(
        "front",
        json!([{ "name": "dns", "port": udp.port(), "protocol": "UDP" }]),
    );
    cluster.create(
        UDP_ROUTES,
        json!({
            "apiVersion": "gateway.networking.k8s.io/v1alpha2",
            "kind": "UDPRoute",
            "metadata": { "name": "dns" },
            "spec": { "parentRefs": [{ "name": "front", "sectionName": "dns" }],
                      "rules": [{ "backendRefs": [{ "name": "dns", "port": 80 }] }] },
        }),
    );
    let _balancer = start(&cluster, &config(at.ip()));
    let accepted = ("Accepted", "True", "Accepted");
    cluster.wait_for_condition(&format!("{UDP_ROUTES}/dns"), "/parents/0", accepted);
    let front = format!("{GATEWAYS}/front");
    cluster.wait_for_condition(&front, "/listeners/0", ("Programmed", "True", "Programmed"));
    let client = UdpSocket::bind((at.ip(), 0)).unwrap();
    client.connect(udp).unwrap();
    client
        .set_read_timeout(Some(Duration::from_millis(200)))
        .unwrap();
    wait_until("the member answers", || {
        let mut space = [0; 64];
        // Until the port is open, the kernel refuses datagrams.
        let asked = client.send(b"a");
        let answer = asked.and_then(|_| client.recv(&mut space));
        answer.is_ok_and(|size| &space[..size] == b"got a")
    });
}

#[test]
fn another_namespace_adds_a_listener_to_a_gateway() {
    let Some(cluster) = Cluster::start() else {
        return;
    };
    let at = address();
    let listener = |host: &str| json!([{ "name": "http", "port": at.port(), "protocol": "HTTP", "hostname": host }]);
    let gateway = |from: &str| {
        json!({
            "apiVersion": "gateway.networking.k8s.io/v1",
            "kind": "Gateway",
            "metadata": { "name": "front" },
            "spec": {
                "gatewayClassName": "edge",
                "listeners": listener("front.example"),
                "allowedListeners": { "namespaces": { "from": from } },
            },
        })
    };
    cluster.create(GATEWAYS, gateway("All"));
    let team = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": "team" } });
    cluster.create("/api/v1/namespaces", team);
    let sets = "/apis/gateway.networking.x-k8s.io/v1alpha1/namespaces/team/xlistenersets";
    cluster.create(
        sets,
        json!({
            "apiVersion": "gateway.networking.x-k8s.io/v1alpha1",
            "kind": "XListenerSet",
            "metadata": { "name": "team" },
            "spec": {
                "parentRef": { "name": "front", "namespace": "shop" },
                "listeners": listener("team.example"),
            },
        }),
    );
    let reference =
        json!({ "group": "gateway.networking.x-k8s.io", "kind": "XListenerSet", "name": "team" });
    let redirect =
        json!({ "type": "RequestRedirect", "requestRedirect": { "hostname": "other.example" } });
    let routes = ROUTES.replace("/shop/", "/team/");
    cluster.create(
        &routes,
        json!({
            "apiVersion": "gateway.networking.k8s.io/v1",
            "kind": "HTTPRoute",
            "metadata": { "name": "team" },
            "spec": { "parentRefs": [reference], "rules": [{ "filters": [redirect] }] },
        }),
    );
    let _balancer = start(&cluster, &config(at.ip()));
    wait_for_answer(at, "team.example", ("302", ""));
    assert_eq!(ask_gateway(at, "front.example").0, "404");
    let (set, accepted) = (format!("{sets}/team"), ("Accepted", "True", "Accepted"));
    cluster.wait_for_condition(&set, "", accepted);
    cluster.wait_for_condition(&set, "/listeners/0", ("Programmed", "True", "Programmed"));
    cluster.wait_for_condition(&format!("{routes}/team"), "/parents/0", accepted);
    let front = format!("{GATEWAYS}/front");
    let attached = ("AttachedListenerSets", "True", "ListenerSetsAttached");
    cluster.wait_for_condition(&front, "", attached);
    // The gateway's owner takes the permission back.
    let mut closed = cluster.server.get_object(&front).unwrap();
    closed["spec"] = gateway("Same")["spec"].clone();
    cluster.server.send_object("PUT", &front, &closed);
    cluster.wait_for_condition(&set, "", ("Accepted", "False", "NotAllowed"));
    wait_for_answer(at, "team.example", ("404", ""));
}
