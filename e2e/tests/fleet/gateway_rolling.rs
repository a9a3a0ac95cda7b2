//! Balancers that are replaced one after the other, as the pods of a Deployment are, with `kube-apiserver`.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking.

use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex};

use evenkeel_e2e::balancer::Balancer;
use evenkeel_e2e::load::Clients;
use evenkeel_e2e::member::{Member, ok_response};
use evenkeel_e2e::process::Signal;
use evenkeel_e2e::server::address;
use evenkeel_e2e::wait_until;
use serde_json::json;

use crate::gateway::{Cluster, ROUTES, config, start, wait_for_answer};

/// Balancer with its address for clients.
struct Pod {
    at: SocketAddr,
    balancer: Balancer,
}

/// Starts a balancer at an address of its own, and waits until it is ready.
fn start_pod(cluster: &Cluster, port: u16) -> Pod {
    let ip = address().ip();
    let text = format!(
        "shutdown_grace = \"30s\"\n{}lease = \"evenkeel/evenkeel-gateway\"\n",
        config(ip)
    );
    let at = SocketAddr::new(ip, port);
    let balancer = start(cluster, &text);
    // As the probe of the manifests.
    assert_eq!(balancer.admin_get("/healthz").second_word(), "200");
    Pod { at, balancer }
}

/// Waits until one of the balancers writes statuses.
fn wait_for_leader(pods: &[Pod]) {
    wait_until("one of the balancers leads", || {
        let leads = |pod: &Pod| pod.balancer.read_metric("evenkeel_gateway_leader");
        let leads: Vec<f64> = pods.iter().filter_map(leads).collect();
        leads.len() == pods.len() && leads.iter().sum::<f64>() == 1.0
    });
}

#[test]
fn balancers_are_replaced_without_a_lost_request() {
    let Some(cluster) = Cluster::start() else {
        return;
    };
    let listener = TcpListener::bind((cluster.ip, 0)).unwrap();
    let member = Member::start_at(listener, |script, mut wire| {
        while let Some(request) = script.read_request(&mut wire)
            && wire.try_send(ok_response(request.second_word()))
        {}
    });
    cluster.serve("web", &member);
    let port = address().port();
    cluster.gateway(
        "front",
        json!([{ "name": "http", "port": port, "protocol": "HTTP" }]),
    );
    let rule = json!({ "backendRefs": [{ "name": "web", "port": 80 }] });
    cluster.route("web", "a", rule.clone());
    let mut pods = [start_pod(&cluster, port), start_pod(&cluster, port)];
    let accepted = ("Accepted", "True", "Accepted");
    cluster.wait_for_condition(&format!("{ROUTES}/web"), "/parents/0", accepted);
    wait_for_leader(&pods);
    for pod in &pods {
        wait_for_answer(pod.at, "a", ("200", "/"));
    }

    let addresses = Arc::new(Mutex::new(vec![pods[0].at, pods[1].at]));
    let clients = Clients::start_among(Arc::clone(&addresses), 8);
    clients.wait_for(200);
    for pod in &mut pods {
        // The new pod serves from its first moment: its gateways are there before it is ready.
        let next = start_pod(&cluster, port);
        addresses.lock().unwrap().push(next.at);
        clients.wait_for(200);
        // The endpoint goes, and open connections stay, as with the sleep before the end of a pod.
        let mut old = std::mem::replace(pod, next);
        addresses.lock().unwrap().retain(|at| *at != old.at);
        clients.wait_for(200);
        old.balancer.signal(Signal::TERM);
        assert!(old.balancer.wait_for_end().success());
        clients.wait_for(200);
    }
    clients.stop_and_count();

    // The leader was one of the old balancers: a new one writes statuses now.
    wait_for_leader(&pods);
    cluster.route("late", "late", rule);
    cluster.wait_for_condition(&format!("{ROUTES}/late"), "/parents/0", accepted);
}
