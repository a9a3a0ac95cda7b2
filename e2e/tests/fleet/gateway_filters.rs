//! Filters of single backends of a route, and several mirrors.

use std::collections::BTreeSet;
use std::net::TcpListener;

use evenkeel_e2e::member::{Member, ok_response};
use evenkeel_e2e::process::try_curl;
use evenkeel_e2e::server::address;
use evenkeel_e2e::wait_until;
use serde_json::json;

use crate::gateway::{Cluster, ROUTES, config, start};

/// A member that answers with its name and with the field `Backend` of the request.
fn member(cluster: &Cluster, name: &'static str) -> Member {
    let Ok(listener) = TcpListener::bind((cluster.ip, 0)) else {
        panic!("no port of {} is free", cluster.ip);
    };
    Member::start_at(listener, move |script, mut wire| {
        while let Some(request) = script.read_request(&mut wire) {
            let text = format!("{name} {}", request.values("backend").join(","));
            if !wire.try_send(ok_response(&text)) {
                break;
            }
        }
    })
}

#[test]
fn filters_of_backends_and_several_mirrors_are_served() {
    let Some(cluster) = Cluster::start() else {
        return;
    };
    let members = ["a", "b", "c", "d"].map(|name| (name, member(&cluster, name)));
    for (name, member) in &members {
        cluster.serve(name, member);
    }
    let at = address();
    cluster.gateway(
        "front",
        json!([{ "name": "http", "port": at.port(), "protocol": "HTTP" }]),
    );
    let backend = |name: &str| {
        let set = json!({ "set": [{ "name": "Backend", "value": name }] });
        let filter = json!({ "type": "RequestHeaderModifier", "requestHeaderModifier": set });
        json!({ "name": name, "port": 80, "filters": [filter] })
    };
    let mirror = |name: &str| {
        let to = json!({ "backendRef": { "name": name, "port": 80 } });
        json!({ "type": "RequestMirror", "requestMirror": to })
    };
    cluster.route(
        "split",
        "split.example",
        json!({ "filters": [mirror("c"), mirror("d")], "backendRefs": [backend("a"), backend("b")] }),
    );
    let _balancer = start(&cluster, &config(at.ip()));
    let accepted = ("Accepted", "True", "Accepted");
    cluster.wait_for_condition(&format!("{ROUTES}/split"), "/parents/0", accepted);
    for client in ["--http1.1", "--http2-prior-knowledge"] {
        let mut answers = BTreeSet::new();
        wait_until("both backends answer", || {
            let url = format!("http://{at}/{client}");
            let answer = try_curl(&[client, "--fail", "-H", "Host: split.example", &url]);
            let text = String::from_utf8_lossy(&answer.stdout).into_owned();
            answers.extend(Some(text).filter(|text| !text.is_empty()));
            answers.len() == 2
        });
        let wanted = ["a a", "b b"].map(str::to_owned);
        assert_eq!(answers, BTreeSet::from(wanted), "{client}");
        for (name, member) in members.iter().skip(2) {
            let mut backends = BTreeSet::new();
            // Copies are of the requests as the backends get them.
            while backends.len() < 2 {
                let (_, copy) = member.next_request();
                assert_eq!(copy.values("x-evenkeel-mirror"), ["1"], "{name}");
                if copy.second_word() == format!("/{client}") {
                    backends.insert(copy.values("backend").join(","));
                }
            }
        }
    }
}
