//! Requests for a model whose first group is full, late or failing, and that go to another group.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking.

use std::net::SocketAddr;
use std::sync::Mutex;

use evenkeel_e2e::balancer::Balancer;
use evenkeel_e2e::folder::Folder;
use evenkeel_e2e::member::{Member, Seen, ok_response};
use evenkeel_e2e::process::{are_installed, run_curl};
use evenkeel_e2e::wait_until;
use evenkeel_e2e::wire::{Message, Wire};
use serde_json::{Value, json};
use socket2::{Domain, Socket, Type};

/// A group for engines with these settings.
fn engines(name: &str, members: &[SocketAddr], settings: &str) -> String {
    let members: Vec<_> = members.iter().map(|m| format!("\"{m}\"")).collect();
    format!(
        "[group.{name}]\nmembers = [{}]\nstrategy = \"inference\"\nhealth_check = false\n{settings}\n",
        members.join(", ")
    )
}

/// Balances groups of which `m` has `first`, `second` and `last`, in this order. Other models have `first`.
fn balance(rule: &str, groups: &[String]) -> (Balancer, Folder) {
    let logs = Folder::new();
    let log = logs.join("access.log").display().to_string();
    let balancer = Balancer::start(&format!(
        "workers = 1\n[admin]\nlisten = \"127.0.0.1:0\"\n\
         [access_log]\noutput = {log:?}\nformat = \"json\"\n\
         [rule.web]\nlisten = \"127.0.0.1:0\"\ngroup = \"first\"\n{rule}\n\
         [rule.web.http]\nmodels = {{ m = [\"first\", \"second\", \"last\"] }}\n{}",
        groups.concat()
    ));
    (balancer, logs)
}

/// A member that answers with this status and its name.
fn answering(status: u16, name: &'static str) -> Member {
    let length = name.len();
    let answer = format!("HTTP/1.1 {status} Status\r\nContent-Length: {length}\r\n\r\n{name}");
    Member::answering_with(move |_| answer.clone())
}

/// Body of a request for the model with several groups.
fn body(text: &str) -> String {
    json!({"model": "m", "prompt": text}).to_string()
}

fn send(wire: &mut Wire, body: &str) {
    let length = body.len();
    wire.send(format!(
        "POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n{body}"
    ));
}

/// Status and text of the answer to a request with this body.
fn ask(wire: &mut Wire, body: &str) -> (String, String) {
    send(wire, body);
    let answer = wire.read_response();
    (answer.second_word().to_owned(), answer.text().to_owned())
}

fn pair(status: &str, text: &str) -> (String, String) {
    (status.to_owned(), text.to_owned())
}

/// Requests that the member has got.
fn requests(member: &Member) -> Vec<Message> {
    let seen = member.seen_events().into_iter();
    seen.filter_map(|seen| match seen {
        Seen::Request(_, request) => Some(request),
        _ => None,
    })
    .collect()
}

fn results(balancer: &Balancer) -> [u64; 2] {
    ["matched", "fallback"]
        .map(|result| balancer.rule_count("models_total", &format!("result=\"{result}\"")))
}

/// Lines of the access log, once there are this many.
fn log_lines(logs: &Folder, count: usize) -> Vec<Value> {
    let mut lines: Vec<Value> = Vec::new();
    wait_until("the log is written", || {
        let text = std::fs::read_to_string(logs.join("access.log")).unwrap_or_default();
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        let all = whole.lines();
        lines = all
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        lines.len() >= count
    });
    lines
}

#[test]
fn the_next_group_serves_what_all_engines_of_a_group_refuse() {
    let full = [answering(429, "full"), answering(503, "busy")];
    let [second, last] = [answering(429, "second is full"), answering(200, "last")];
    let of_first = full.each_ref().map(Member::address);
    let (balancer, logs) = balance(
        "",
        &[
            engines("first", &of_first, ""),
            engines("second", &[second.address()], ""),
            engines("last", &[last.address()], ""),
        ],
    );
    let mut wire = balancer.connect();
    assert_eq!(ask(&mut wire, &body("a")), pair("200", "last"));
    // Each engine was asked once, with the same body.
    for member in full.iter().chain([&second, &last]) {
        let bodies: Vec<_> = requests(member)
            .into_iter()
            .map(|request| request.body)
            .collect();
        assert_eq!(bodies, [body("a").into_bytes()]);
    }
    assert_eq!(results(&balancer), [1, 2]);
    let line = &log_lines(&logs, 1)[0];
    assert_eq!(line["group"], "last", "{line}");
    assert_eq!(line["fallback_from"], "first");
    assert_eq!(
        (&line["retries"], &line["status"]),
        (&json!(3), &json!(200))
    );
    assert_eq!(line["tried"].as_array().unwrap().len(), 3);
    // A model with one group has no other one.
    let other = json!({"model": "first-only", "prompt": "a"}).to_string();
    let (status, text) = ask(&mut wire, &other);
    assert!(["429", "503"].contains(&&*status), "{status}");
    assert!(["full", "busy"].contains(&&*text), "{text}");
    assert!(requests(&second).is_empty() && requests(&last).is_empty());
    let line = &log_lines(&logs, 2)[1];
    assert_eq!(
        (&line["group"], &line["fallback_from"]),
        (&json!("first"), &Value::Null)
    );
    if !are_installed(&["curl"]) {
        return;
    }
    let url = format!("http://{}/v1/completions", balancer.address("web"));
    let text = body("over HTTP/2");
    let answer = run_curl(&["--http2-prior-knowledge", "-d", &text, &url]);
    assert_eq!(answer, "last");
    assert_eq!(requests(&last)[0].body, text.into_bytes());
}

#[test]
fn a_request_that_every_group_refuses_ends_after_one_round() {
    let members = ["first", "second", "last"].map(|name| answering(503, name));
    let names = ["first", "second", "last"];
    let groups = names
        .iter()
        .zip(&members)
        .map(|(name, member)| engines(name, &[member.address()], ""));
    let (balancer, _logs) = balance("", &groups.collect::<Vec<_>>());
    let mut wire = balancer.connect();
    // The client gets the status of the last engine.
    assert_eq!(ask(&mut wire, &body("a")), pair("503", "last"));
    assert_eq!(
        members.each_ref().map(|member| requests(member).len()),
        [1; 3]
    );
    assert_eq!(results(&balancer), [1, 2]);
}

#[test]
fn the_next_group_serves_what_a_group_fails_to() {
    let large = "x".repeat(200_000);
    let stream =
        "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
    let silent = Member::start(|script, mut wire| {
        script.read_request(&mut wire);
        script.read_request(&mut wire);
    });
    // Bound, so that nobody else gets the port, and not listening.
    let unused = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
    unused.bind(&any.into()).unwrap();
    let refusing = unused.local_addr().unwrap().as_socket().unwrap();
    let cases = [
        ("refused", refusing),
        ("closed", Member::closing_after("").address()),
        (
            "closed after the head",
            Member::closing_after(stream).address(),
        ),
        ("silent", silent.address()),
    ];
    for (case, address) in cases {
        let second = Member::answering_with(|request| ok_response(&request.body.len().to_string()));
        let (balancer, logs) = balance(
            "response_timeout = \"1s\"",
            &[
                engines("first", &[address], ""),
                engines("second", &[second.address()], ""),
                engines("last", &[second.address()], ""),
            ],
        );
        let mut wire = balancer.connect();
        let sent = body(&large);
        let size = sent.len().to_string();
        assert_eq!(ask(&mut wire, &sent), pair("200", &size), "{case}");
        assert_eq!(results(&balancer), [1, 1], "{case}");
        let line = &log_lines(&logs, 1)[0];
        assert_eq!(
            (&line["group"], &line["fallback_from"]),
            (&json!("second"), &json!("first"))
        );
        drop(balancer);
    }
}

#[test]
fn a_stream_that_has_begun_stays_where_it_is() {
    let event = "data: {}\n\n";
    let begun = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\n{event}\r\n",
        event.len()
    );
    let (cut, may_cut) = std::sync::mpsc::channel::<()>();
    let may_cut = Mutex::new(may_cut);
    let first = Member::start(move |script, mut wire| {
        if script.read_request(&mut wire).is_some() {
            wire.send(&begun);
            // Until the test drops its end.
            let _ = may_cut.lock().unwrap().recv();
        }
    });
    let second = answering(200, "second");
    let (balancer, _logs) = balance(
        "",
        &[
            engines("first", &[first.address()], ""),
            engines("second", &[second.address()], ""),
            engines("last", &[second.address()], ""),
        ],
    );
    let mut wire = balancer.connect();
    send(&mut wire, &body("a"));
    assert_eq!(wire.read_head().second_word(), "200");
    assert!(wire.try_read_until(event.as_bytes()).is_some());
    drop(cut);
    let rest = wire.read_to_end();
    let rest = String::from_utf8_lossy(&rest);
    assert!(!rest.contains("second"), "{rest}");
    assert!(requests(&second).is_empty());
    assert_eq!(results(&balancer), [1, 0]);
}

#[test]
fn the_next_group_serves_what_waits_in_vain_for_the_first() {
    // An engine that answers nothing.
    let busy = || {
        Member::start(|script, mut wire| {
            script.read_request(&mut wire);
            script.read_request(&mut wire);
        })
    };
    let prompt = "word ".repeat(2000);
    let full_queue = "max_queue = 0";
    let late = "[group.first.inference]\nttft_target = \"1ms\"";
    for (case, limit, settings) in [
        ("queue full", ", max_connections = 1", full_queue),
        ("waits too long", ", max_connections = 1", ""),
        ("late", "", late),
    ] {
        let (first, second) = (busy(), answering(200, "second"));
        let address = first.address();
        let of_first = format!(
            "[group.first]\nmembers = [{{ address = \"{address}\"{limit} }}]\nstrategy = \"inference\"\n\
             health_check = false\n{settings}\n"
        );
        let (balancer, logs) = balance(
            "queue_timeout = \"200ms\"",
            &[
                of_first,
                engines("second", &[second.address()], ""),
                engines("last", &[second.address()], ""),
            ],
        );
        let stream = json!({"model": "m", "prompt": prompt, "stream": true}).to_string();
        let mut waiting = balancer.connect();
        send(&mut waiting, &stream);
        first.next_request();
        let mut wire = balancer.connect();
        assert_eq!(ask(&mut wire, &stream), pair("200", "second"), "{case}");
        assert!(requests(&first).is_empty(), "{case}");
        let line = &log_lines(&logs, 1)[0];
        assert_eq!(line["fallback_from"], "first", "{case}");
        assert_eq!(
            (&line["retries"], &line["end"]),
            (&json!(0), &json!("complete"))
        );
        for reason in ["queue_full", "queue_timeout", "late_first_token"] {
            let label = format!("reason=\"{reason}\"");
            assert_eq!(balancer.rule_count("refused_total", &label), 0, "{case}");
        }
    }
}

#[test]
fn a_group_keeps_its_clients_when_requests_come_from_another_one() {
    let broken = Member::closing_after("");
    let several: [_; 4] = std::array::from_fn(|number| {
        Member::answering_with(move |_| ok_response(&number.to_string()))
    });
    let several = several.each_ref();
    let names = several.map(|member| format!("\"{}\"", member.address()));
    // The own group of the rule is left for the first one, and got again.
    let sticky = format!(
        "[group.second]\nmembers = [{}]\nsticky = true\nhealth_check = false\n",
        names.join(", ")
    );
    let logs = Folder::new();
    let log = logs.join("access.log").display().to_string();
    let balancer = Balancer::start(&format!(
        "workers = 1\n[admin]\nlisten = \"127.0.0.1:0\"\n[access_log]\noutput = {log:?}\n\
         [rule.web]\nlisten = \"127.0.0.1:0\"\ngroup = \"second\"\n\
         [rule.web.http]\nmodels = {{ m = [\"first\", \"second\"] }}\n{sticky}{}",
        engines(
            "first",
            &[broken.address()],
            "ejection = { min_requests = 1000 }"
        ),
    ));
    let mut wire = balancer.connect();
    send(&mut wire, &body("a"));
    let first = wire.read_response();
    assert_eq!(first.second_word(), "200");
    let cookie = first.values("set-cookie")[0].split(';').next().unwrap();
    let sent = body("b");
    for _ in 0..8 {
        let mut wire = balancer.connect();
        wire.send(format!(
            "POST / HTTP/1.1\r\nHost: a\r\nCookie: {cookie}\r\nContent-Length: {}\r\n\r\n{sent}",
            sent.len()
        ));
        let again = wire.read_response();
        assert_eq!(again.text(), first.text());
        assert!(again.values("set-cookie").is_empty(), "{}", again.head);
    }
}
