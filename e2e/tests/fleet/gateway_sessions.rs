//! Sessions, retries and time limits of HTTPRoutes, with `kube-apiserver`.

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use evenkeel_e2e::member::{Member, ok_response};
use evenkeel_e2e::server::address;
use evenkeel_e2e::wait_until;
use evenkeel_e2e::wire::{Message, Wire};
use serde_json::json;

use crate::gateway::{Cluster, config, start, wait_for_answer};

const SLICES: &str = "/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices";

/// The answer to a request for a host, on a connection of its own, with these fields.
fn ask(at: SocketAddr, host: &str, path: &str, fields: &str) -> Message {
    let mut wire = Wire::connect(at);
    wire.send(format!(
        "GET {path} HTTP/1.1\r\nHost: {host}\r\n{fields}Connection: close\r\n\r\n"
    ));
    wire.read_response()
}

/// The line of a request that says the session of an answer, if the answer has one.
fn session(answer: &Message) -> Option<String> {
    if let Some(value) = answer.values("x-shop").first() {
        return Some(format!("X-Shop: {value}\r\n"));
    }
    let cookies = answer.values("set-cookie");
    let pair = cookies.first()?.split(';').next()?;
    assert!(pair.starts_with("shop="), "{pair}");
    Some(format!("Cookie: {pair}\r\n"))
}

#[test]
fn clients_are_bound_by_a_cookie_or_a_field() {
    let Some(cluster) = Cluster::start() else {
        return;
    };
    let (a, b) = (cluster.member("a"), cluster.member("b"));
    cluster.serve("web", &a);
    let slice = json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": { "name": "web-2", "labels": { "kubernetes.io/service-name": "web" } },
        "addressType": "IPv4",
        "endpoints": [{ "addresses": [cluster.ip], "conditions": { "ready": true } }],
        "ports": [{ "name": "http", "protocol": "TCP", "port": b.address().port() }],
    });
    cluster.create(SLICES, slice);
    let at = address();
    cluster.gateway(
        "front",
        json!([{ "name": "http", "port": at.port(), "protocol": "HTTP" }]),
    );
    let backend = json!([{ "name": "web", "port": 80 }]);
    for (name, of) in [
        (
            "cookie",
            json!({ "sessionName": "shop", "absoluteTimeout": "1h" }),
        ),
        (
            "field",
            json!({ "sessionName": "X-Shop", "type": "Header", "absoluteTimeout": "1h" }),
        ),
    ] {
        let rule = json!({ "sessionPersistence": of, "backendRefs": backend });
        cluster.route(name, &format!("{name}.example"), rule);
    }
    let _balancer = start(&cluster, &config(at.ip()));
    for host in ["cookie.example", "field.example"] {
        wait_for_answer(at, host, ("200", ""));
        // A client of each member.
        let mut sessions = BTreeMap::new();
        wait_until("both endpoints serve", || {
            let answer = ask(at, host, "/", "");
            let session = session(&answer).unwrap();
            sessions.insert(answer.text().to_owned(), session);
            sessions.len() == 2
        });
        for _ in 0..10 {
            for (member, line) in &sessions {
                let answer = ask(at, host, "/", line);
                assert_eq!(answer.text(), member, "{host}");
                assert_eq!(session(&answer), None, "{host}");
            }
        }
    }
}

#[test]
fn a_single_endpoint_is_retried_and_limits_hold() {
    let Some(cluster) = Cluster::start() else {
        return;
    };
    let failures = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&failures);
    let listener = TcpListener::bind((cluster.ip, 0)).expect("no port is free");
    let member = Member::start_at(listener, move |script, mut wire| {
        while let Some(request) = script.read_request(&mut wire) {
            let answer = match request.second_word() {
                // Two failures, and then an answer.
                "/fail" if count.fetch_add(1, Ordering::SeqCst) % 3 < 2 => {
                    "HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n".into()
                }
                "/silent" => {
                    // Until the balancer gives the request up.
                    wire.is_at_end();
                    return;
                }
                _ => ok_response("good"),
            };
            if !wire.try_send(answer) {
                return;
            }
        }
    });
    cluster.serve("web", &member);
    let at = address();
    cluster.gateway(
        "front",
        json!([{ "name": "http", "port": at.port(), "protocol": "HTTP" }]),
    );
    let rule = json!({
        "backendRefs": [{ "name": "web", "port": 80 }],
        "retry": { "attempts": 2, "codes": [500], "backoff": "10ms" },
        "timeouts": { "request": "3s", "backendRequest": "2s" },
    });
    cluster.route("web", "web.example", rule);
    let _balancer = start(&cluster, &config(at.ip()));
    wait_for_answer(at, "web.example", ("200", "good"));
    for requests in [3, 6] {
        let answer = ask(at, "web.example", "/fail", "");
        assert_eq!(answer.text(), "good");
        assert_eq!(failures.load(Ordering::SeqCst), requests);
    }
    // The second attempt has no time for all of its limit.
    let answer = ask(at, "web.example", "/silent", "");
    assert_eq!(answer.second_word(), "504");
    assert_eq!(
        answer.text().trim_end(),
        "The time limit of the request is over."
    );
}
