//! A TCPRoute whose connections the kernel forwards, with `kube-apiserver` in the network namespace of the balancer. Needs the
//! right to make network namespaces and to load BPF programs.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking.

use std::fs;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::thread;

use evenkeel_e2e::balancer::Balancer;
use evenkeel_e2e::netns::{BACK, BACK4, Namespace, Pair, run_ip};
use evenkeel_e2e::process::report_skipped;
use evenkeel_e2e::{HANG, wait_until};
use serde_json::{Value, json};

use crate::gateway::{Cluster, EVENKEEL_POLICIES, TCP_ROUTES, config, start};

/// Address of the balancer.
const FRONT4: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 77, 0, 1));

/// Address of the member, in the namespace of the client.
const MEMBER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 77, 0, 3));

/// Port of the gateway.
const PORT: u16 = 7000;

fn name(namespace: &Namespace) -> String {
    let path = namespace.path();
    path.file_name().unwrap().to_str().unwrap().to_owned()
}

/// Starts a member in the namespace, which sends the client's address in 16 bytes, and then what it gets. Returns its port.
fn start_member(namespace: &Namespace) -> u16 {
    let listener = namespace.run_inside(|| TcpListener::bind((MEMBER, 0)).unwrap());
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        while let Ok((mut stream, from)) = listener.accept() {
            thread::spawn(move || {
                let _ = writeln!(stream, "{:<15}", from.ip());
                let mut reader = stream.try_clone().unwrap();
                let _ = std::io::copy(&mut reader, &mut stream);
            });
        }
    });
    port
}

/// Sends bytes from the namespace through the balancer, and reads the bytes back. Returns the client's address as the member
/// sees it.
fn ask_member(namespace: &Namespace) -> IpAddr {
    let at = SocketAddr::new(FRONT4, PORT);
    let connected = namespace.run_inside(|| TcpStream::connect_timeout(&at, HANG));
    let mut stream = connected.unwrap();
    stream.set_read_timeout(Some(HANG)).unwrap();
    let mut line = [0; 16];
    stream.read_exact(&mut line).unwrap();
    let mut back = [0; 5];
    stream.write_all(b"hello").unwrap();
    stream.read_exact(&mut back).unwrap();
    assert_eq!(&back, b"hello");
    std::str::from_utf8(&line).unwrap().trim().parse().unwrap()
}

/// Returns what forwards the connections of the only rule; `None` without a rule, null if nobody asks for the kernel.
fn state_of(balancer: &Balancer) -> Option<Value> {
    let status = balancer.status();
    let rule = status["rules"].as_array()?.first()?;
    Some(rule["forward"].clone())
}

#[test]
fn a_tcp_route_with_a_policy_is_forwarded_in_the_kernel() {
    let Some(pair) = Pair::new() else {
        return;
    };
    let (front, back) = (name(&pair.front), name(&pair.back));
    run_ip(&format!("-n {front} route add default via {BACK4}"));
    run_ip(&format!("-n {back} addr add {MEMBER}/24 dev {BACK}"));
    // The API server and the balancer are in the namespace, as children of this thread.
    pair.front.run_inside(|| {
        fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap();
        forward_route(&pair.back);
    });
}

fn forward_route(clients: &Namespace) {
    let Some(mut cluster) = Cluster::start() else {
        return;
    };
    cluster.ip = MEMBER;
    cluster.serve_at("db", start_member(clients), "TCP");
    cluster.gateway(
        "front",
        json!([{ "name": "db", "port": PORT, "protocol": "TCP" }]),
    );
    let route = json!({
        "apiVersion": "gateway.networking.k8s.io/v1alpha2",
        "kind": "TCPRoute",
        "metadata": { "name": "db" },
        "spec": { "parentRefs": [{ "name": "front" }], "rules": [{ "backendRefs": [{ "name": "db", "port": 80 }] }] },
    });
    cluster.create(TCP_ROUTES, route);
    let balancer = start(&cluster, &config(FRONT4));
    wait_until("the proxy serves", || {
        state_of(&balancer) == Some(Value::Null)
    });
    ask_member(clients);
    let picks = || {
        let members = balancer.admin_json("/v1/forward")["members"].clone();
        members[0]["picks"].as_u64().unwrap_or_default()
    };
    assert_eq!(picks(), 0);

    let target = json!({ "group": "gateway.networking.k8s.io", "kind": "TCPRoute", "name": "db" });
    let policy = json!({
        "apiVersion": "evenkeel.org/v1alpha1",
        "kind": "EvenkeelPolicy",
        "metadata": { "name": "db" },
        "spec": { "targetRefs": [target], "rule": { "forward": "kernel", "return_path": "nat" } },
    });
    cluster.create(EVENKEEL_POLICIES, policy);
    let path = format!("{EVENKEEL_POLICIES}/db");
    let accepted = ("Accepted", "True", "Accepted");
    cluster.wait_for_condition(&path, "/ancestors/0", accepted);
    let mut state = String::new();
    wait_until("the kernel forwards the rule", || {
        let shown = state_of(&balancer).unwrap_or_default();
        state = shown.as_str().unwrap_or_default().to_owned();
        state == "kernel" || state.contains("built without")
    });
    if state != "kernel" {
        return report_skipped(&state);
    }
    for _ in 0..3 {
        assert_eq!(ask_member(clients), FRONT4);
    }
    wait_until("the kernel has counted the connections", || picks() == 3);

    // Without the policy the proxy serves again.
    cluster.delete(EVENKEEL_POLICIES, "db");
    wait_until("the proxy serves again", || {
        state_of(&balancer) == Some(Value::Null)
    });
    ask_member(clients);
}
