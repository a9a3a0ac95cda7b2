//! Engines that are full or fail, and the errors that their clients get, with the defaults of retries and ejection.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, RwLock};

use evenkeel_e2e::balancer::Balancer;
use evenkeel_e2e::folder::Folder;
use evenkeel_e2e::member::{Member, ok_response};
use evenkeel_e2e::wait_until;
use evenkeel_e2e::wire::{Message, Wire};
use serde_json::Value;

fn balance(members: &[SocketAddr], more: &str) -> Balancer {
    let members: Vec<_> = members.iter().map(|m| format!("\"{m}\"")).collect();
    Balancer::start(&format!(
        "workers = 1\n[admin]\nlisten = \"127.0.0.1:0\"\n[rule.web]\nlisten = \"127.0.0.1:0\"\n\
         members = [{}]\nstrategy = \"inference\"\nhealth_check = false\n{more}\n",
        members.join(", ")
    ))
}

fn send(wire: &mut Wire, body: &str) {
    let length = body.len();
    wire.send(format!(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n{body}"
    ));
}

/// An engine that answers all requests with `answer` once the gate is open, and counts the requests.
fn gated(gate: &Arc<RwLock<()>>, count: &Arc<AtomicUsize>, answer: String) -> Member {
    let (gate, count) = (Arc::clone(gate), Arc::clone(count));
    Member::answering_with(move |_| {
        count.fetch_add(1, Ordering::SeqCst);
        drop(gate.read().unwrap());
        answer.clone()
    })
}

#[test]
fn all_that_a_full_engine_refuses_at_once_is_served_by_another_one() {
    const REQUESTS: usize = 60;
    let gate = Arc::new(RwLock::new(()));
    let [at_full, at_other] = [(); 2].map(|()| Arc::default());
    let refusal = "HTTP/1.1 429 Too Many Requests\r\nContent-Length: 4\r\n\r\nfull";
    let full = gated(&gate, &at_full, refusal.to_owned());
    let other = gated(&gate, &at_other, ok_response("served"));
    let balancer = balance(&[full.address(), other.address()], "");
    let closed = gate.write().unwrap();
    let mut wires: Vec<_> = (0..REQUESTS).map(|_| balancer.connect()).collect();
    for (number, wire) in wires.iter_mut().enumerate() {
        send(
            wire,
            &format!(r#"{{"prompt":"{}"}}"#, format!("{number} ").repeat(100)),
        );
    }
    let counts = || [&at_full, &at_other].map(|count| count.load(Ordering::SeqCst));
    wait_until("all requests are at engines", || {
        counts().iter().sum::<usize>() == REQUESTS
    });
    let [refused, _] = counts();
    // The budget of retries would have 10 and a few.
    assert!(refused >= 20, "{refused}");
    drop(closed);
    for wire in &mut wires {
        let answer = wire.read_response();
        assert_eq!((answer.second_word(), answer.text()), ("200", "served"));
    }
    assert_eq!(counts(), [refused, REQUESTS]);
    assert_eq!(
        balancer.rule_count("retries_total", "result=\"tried\""),
        refused as u64
    );
    assert_eq!(
        balancer.rule_count("retries_total", "result=\"over_budget\""),
        0
    );
}

/// Checks that an answer is an error of both interfaces, with this type and code.
fn check_error(answer: &Message, status: &str, kind: &str, code: &str) {
    assert_eq!(answer.second_word(), status, "{}", answer.head);
    assert_eq!(answer.values("content-type"), ["application/json"]);
    let body: Value = serde_json::from_slice(&answer.body).unwrap();
    assert_eq!(body["type"], "error");
    assert_eq!(body["error"]["type"], kind);
    assert_eq!(body["error"]["code"], code);
    assert!(body["error"]["message"].as_str().unwrap().ends_with('.'));
}

#[test]
fn errors_of_the_balancer_have_the_format_that_clients_of_engines_know() {
    const BODY: &str = r#"{"prompt":"a"}"#;
    let ask = |balancer: &Balancer| {
        let mut wire = balancer.connect();
        send(&mut wire, BODY);
        wire.read_response()
    };
    let broken = Member::closing_after("");
    let lost = ask(&balance(&[broken.address()], ""));
    check_error(&lost, "502", "api_error", "server_error");
    let silent = Member::start(|script, mut wire| {
        script.read_request(&mut wire);
        script.read_request(&mut wire);
    });
    let late = ask(&balance(
        &[silent.address()],
        "response_timeout = \"100ms\"",
    ));
    check_error(&late, "504", "timeout_error", "timeout");
    // A full queue, without `ttft_target`.
    let address = silent.address();
    let limited = format!("{{ address = \"{address}\", max_connections = 1 }}");
    let config = format!(
        "workers = 1\n[admin]\nlisten = \"127.0.0.1:0\"\n[rule.web]\nlisten = \"127.0.0.1:0\"\n\
         members = [{limited}]\nstrategy = \"inference\"\nhealth_check = false\nqueue_timeout = \"100ms\"\n"
    );
    silent.seen_events();
    let balancer = Balancer::start(&config);
    let mut busy = balancer.connect();
    send(&mut busy, BODY);
    silent.next_request();
    let queued = ask(&balancer);
    check_error(&queued, "503", "overloaded_error", "server_overloaded");
    assert_eq!(queued.values("retry-after"), ["1"]);
    // Pages of the administrator come first, and other groups answer in plain text.
    let pages = Folder::new();
    let page = pages.join("page.txt");
    std::fs::write(&page, "mine").unwrap();
    let page = format!("error_pages = {{ 502 = {:?} }}", page.display().to_string());
    let answer = ask(&balance(&[broken.address()], &page));
    assert_eq!((answer.second_word(), answer.text()), ("502", "mine"));
    let plain = config.replace("\"inference\"", "\"round_robin\"");
    let plain = Balancer::start(&plain.replace(&limited, &format!("\"{}\"", broken.address())));
    let answer = ask(&plain);
    assert_eq!(answer.second_word(), "502");
    assert_eq!(answer.values("content-type"), ["text/plain; charset=utf-8"]);
}
