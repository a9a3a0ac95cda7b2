//! Requests that are repeated because an operator says so, and requests that end because their clients leave.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking.

use std::net::{SocketAddr, TcpListener};

use evenkeel_e2e::balancer::Balancer;
use evenkeel_e2e::folder::Folder;
use evenkeel_e2e::member::{Member, Seen, ok_response};
use evenkeel_e2e::process::{are_installed, program, run_curl, try_curl};
use evenkeel_e2e::script::Script;
use evenkeel_e2e::wait_until;

const PYTHON: &str = "/usr/bin/python3";

/// The two protocols of clients, as options of curl.
const CLIENTS: [&str; 2] = ["--http1.1", "--http2-prior-knowledge"];

/// A rule with these members in turn. `http` and `route` are lines of its tables.
fn config(members: &[SocketAddr], http: &str, route: &str) -> String {
    let members: Vec<_> = members.iter().map(|m| format!("\"{m}\"")).collect();
    let members = members.join(", ");
    format!(
        "workers = 1\n[admin]\nlisten = \"127.0.0.1:0\"\n[rule.web]\nlisten = \"127.0.0.1:0\"\n\
         members = [{members}]\nstrategy = \"round_robin\"\nhealth_check = false\n\
         ejection = {{ min_requests = 1000 }}\nconnection_failure_limit = 1000\n\
         [rule.web.http]\nretry_budget = 1.0\nrequest_trailers = [\"X-Sum\"]\n{http}\n\
         [[rule.web.routes]]\nretry_statuses = [429, 503]\n{route}\n"
    )
}

fn retries(balancer: &Balancer, result: &str) -> u64 {
    balancer.rule_count("retries_total", &format!("result=\"{result}\""))
}

/// A member that says how long the body was, and what is behind the body.
fn counting() -> Member {
    Member::answering_with(|request| {
        ok_response(&format!(
            "{} {}",
            request.body.len(),
            request.trailers.trim_end()
        ))
    })
}

/// Members that fail with each request, each in another way.
fn failing() -> Vec<(&'static str, Member)> {
    let busy = "HTTP/1.1 503 Busy\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n";
    let limited = "HTTP/1.1 429 Too Many\r\nContent-Length: 4\r\n\r\nmore";
    vec![
        ("503", Member::answering_with(move |_| busy.into())),
        ("429", Member::answering_with(move |_| limited.into())),
        ("lost", Member::closing_after("")),
        // The end is in the middle of the body.
        (
            "early",
            Member::start(move |_, mut wire| {
                wire.read_head();
                wire.try_send(busy);
                while wire.try_read_exact(1).is_some() {}
            }),
        ),
    ]
}

#[test]
fn a_named_method_is_repeated_with_its_whole_body() {
    if !are_installed(&["curl"]) {
        return;
    }
    let folder = Folder::new();
    let file = folder.path().join("body");
    let data = format!("@{}", file.display());
    let good = counting();
    for (name, bad) in failing() {
        let members = [bad.address(), good.address()];
        let text = config(&members, "retry_methods = [\"POST\", \"PATCH\"]", "");
        let balancer = Balancer::start(&text);
        let url = format!("http://{}/", balancer.address("web"));
        for client in CLIENTS {
            for len in [1, 20_000, 300_000] {
                std::fs::write(&file, "x".repeat(len)).unwrap();
                for method in ["POST", "PATCH"] {
                    for more in [
                        "Transfer-Encoding: chunked",
                        "Expect: 100-continue",
                        "Expect:",
                    ] {
                        let is_http1 = client == CLIENTS[0];
                        // curl waits a second for a 100 (Continue).
                        let is_rare = len == 20_000 && method == "POST";
                        if more.starts_with("Transfer") && !is_http1
                            || more.starts_with("Expect: ") && !is_rare
                        {
                            continue;
                        }
                        let asked = ["-X", method, "-H", more, "--data-binary", &data, &url];
                        let answer = run_curl(&[&[client][..], &asked].concat());
                        let what = format!("{name} {client} {method} {len} {more}");
                        assert_eq!(answer.trim_end(), len.to_string(), "{what}");
                    }
                }
            }
        }
        assert!(retries(&balancer, "tried") > 0, "{name}");
        assert_eq!(retries(&balancer, "body_not_kept"), 0, "{name}");
    }
}

#[test]
fn chunks_and_trailers_are_repeated_as_they_came() {
    let good = counting();
    for (name, bad) in failing() {
        let members = [bad.address(), good.address()];
        let balancer = Balancer::start(&config(&members, "retry_methods = [\"POST\"]", ""));
        let mut wire = balancer.connect();
        for _ in 0..4 {
            wire.send("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n");
            for _ in 0..30 {
                wire.send(format!("1000\r\n{}\r\n", "y".repeat(0x1000)));
            }
            wire.send("0\r\nX-Sum: 7\r\n\r\n");
            let answer = wire.read_response();
            assert_eq!(answer.text(), "122880 X-Sum: 7", "{name}");
        }
        assert!(retries(&balancer, "tried") > 0, "{name}");
    }
}

#[test]
fn what_is_not_named_or_too_large_is_sent_once_and_the_latter_is_counted() {
    let good = counting();
    let bad = Member::answering_with(|_| "HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n".into());
    let members = [bad.address(), good.address()];
    let named = "retry_methods = [\"POST\"]\nretry_max_body = \"20KiB\"";
    let balancer = Balancer::start(&config(&members, named, ""));
    let mut wire = balancer.connect();
    let mut statuses = |balancer: &Balancer, method: &str, chunked: bool, len: usize| {
        let mut all: Vec<String> = Vec::new();
        for _ in 0..2 {
            let framing = match chunked {
                true => "Transfer-Encoding: chunked".to_owned(),
                false => format!("Content-Length: {len}"),
            };
            wire.send(format!(
                "{method} / HTTP/1.1\r\nHost: a\r\n{framing}\r\n\r\n"
            ));
            let body = "z".repeat(len);
            match chunked {
                true => wire.send(format!("{len:x}\r\n{body}\r\n0\r\n\r\n")),
                false => wire.send(body),
            }
            all.push(wire.read_response().second_word().into());
        }
        all.sort();
        (all, retries(balancer, "body_not_kept"))
    };
    let both = vec!["200".to_owned(), "503".to_owned()];
    let good_ones = vec!["200".to_owned(); 2];
    assert_eq!(
        statuses(&balancer, "POST", false, 15_000),
        (good_ones.clone(), 0)
    );
    assert_eq!(statuses(&balancer, "POST", true, 15_000), (good_ones, 0));
    assert_eq!(statuses(&balancer, "PATCH", false, 10), (both.clone(), 0));
    assert_eq!(
        statuses(&balancer, "POST", false, 60_000),
        (both.clone(), 1)
    );
    assert_eq!(statuses(&balancer, "POST", true, 60_000), (both.clone(), 2));
    // A route has its own.
    balancer.reconfigure(&config(&members, named, "retry_methods = []"));
    assert_eq!(statuses(&balancer, "POST", false, 10), (both, 2));
}

#[test]
fn a_member_that_refuses_connections_is_passed_by() {
    let closed = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let good = counting();
    let balancer = Balancer::start(&config(&[closed, good.address()], "", ""));
    let mut wire = balancer.connect();
    for _ in 0..4 {
        wire.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 20000\r\n\r\n");
        wire.send("x".repeat(20_000));
        assert_eq!(wire.read_response().text().trim_end(), "20000");
    }
}

/// Speaks HTTP/2: refuses, hangs, or says how long the body was.
const HTTP2: &str = r#"
import socket, sys, threading
import h2.config, h2.connection, h2.events
mode = sys.argv[1]
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
def serve(link):
    state = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
    state.initiate_connection()
    sizes = {}
    while True:
        link.sendall(state.data_to_send())
        data = link.recv(65536)
        if not data:
            return
        for event in state.receive_data(data):
            if isinstance(event, h2.events.DataReceived):
                sizes[event.stream_id] = sizes.get(event.stream_id, 0) + len(event.data)
                state.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            if isinstance(event, h2.events.StreamReset):
                print("reset", flush=True)
            if isinstance(event, h2.events.StreamEnded):
                if mode == "503":
                    state.send_headers(event.stream_id, [(":status", "503")], end_stream=True)
                elif mode == "close":
                    link.close()
                    return
                elif mode == "hang":
                    print("asked", flush=True)
                else:
                    state.send_headers(event.stream_id, [(":status", "200")])
                    state.send_data(event.stream_id, str(sizes.get(event.stream_id, 0)).encode(), end_stream=True)
while True:
    threading.Thread(target=serve, args=listener.accept()[:1], daemon=True).start()
"#;

/// A member that speaks HTTP/2, with its address.
fn http2_member(mode: &str) -> (Script, SocketAddr) {
    let script = Script::start(program(PYTHON).args(["-c", HTTP2, mode]));
    let port: u16 = script.read_line().parse().unwrap();
    (script, SocketAddr::from(([127, 0, 0, 1], port)))
}

fn has_h2() -> bool {
    are_installed(&[
        PYTHON,
        "/usr/lib/python3/dist-packages/h2/__init__.py",
        "curl",
    ])
}

#[test]
fn a_body_is_repeated_between_members_of_http2() {
    if !has_h2() {
        return;
    }
    let folder = Folder::new();
    let file = folder.path().join("body");
    std::fs::write(&file, "x".repeat(200_000)).unwrap();
    let data = format!("@{}", file.display());
    let (_good, good) = http2_member("count");
    for mode in ["503", "close"] {
        let (_bad, bad) = http2_member(mode);
        let http = "member_protocol = \"h2\"\nretry_methods = [\"POST\"]";
        let balancer = Balancer::start(&config(&[bad, good], http, ""));
        let url = format!("http://{}/", balancer.address("web"));
        for client in CLIENTS {
            for _ in 0..4 {
                let answer = run_curl(&[client, "--data-binary", &data, &url]);
                assert_eq!(answer, "200000", "{mode} {client}");
            }
        }
        assert!(retries(&balancer, "tried") > 0, "{mode}");
    }
}

fn aborts(balancer: &Balancer) -> u64 {
    balancer.rule_count("cut_total", "by=\"client\"")
}

#[test]
fn a_client_that_closes_ends_its_request_at_the_member() {
    // Nothing for "/silent", and pieces without an end for "/stream".
    let member = Member::start(|script, mut wire| {
        while let Some(request) = script.read_request(&mut wire) {
            if request.second_word() == "/stream" {
                wire.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n");
            }
        }
    });
    let balancer = Balancer::start(&config(&[member.address()], "abort_on_close = true", ""));
    for (number, target) in ["/silent", "/stream"].into_iter().enumerate() {
        let mut wire = balancer.connect();
        wire.send(format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n"));
        let (connection, _) = member.next_request();
        if target == "/stream" {
            wire.try_read_until(b"first\r\n").unwrap();
        }
        wire.end_sending();
        assert!(matches!(member.next(), Seen::End(ended, _) if ended == connection));
        wait_until("the end is counted", || {
            aborts(&balancer) == number as u64 + 1
        });
    }
    // A pause of a client is none, and a route may say otherwise.
    let gone = config(
        &[member.address()],
        "abort_on_close = true",
        "abort_on_close = false",
    );
    balancer.reconfigure(&gone);
    let mut wire = balancer.connect();
    wire.send("GET /stream HTTP/1.1\r\nHost: a\r\n\r\n");
    member.next_request();
    wire.try_read_until(b"first\r\n").unwrap();
    wire.end_sending();
    let mut other = balancer.connect();
    other.send("GET /stream HTTP/1.1\r\nHost: a\r\n\r\n");
    member.next_request();
    other.try_read_until(b"first\r\n").unwrap();
    assert_eq!(member.seen_events(), []);
    assert_eq!(aborts(&balancer), 2);
}

#[test]
fn a_client_that_closes_resets_its_stream_at_a_member_of_http2() {
    if !has_h2() {
        return;
    }
    let (hanging, address) = http2_member("hang");
    let http = "member_protocol = \"h2\"\nabort_on_close = true";
    let balancer = Balancer::start(&config(&[address], http, ""));
    let url = format!("http://{}/", balancer.address("web"));
    for client in CLIENTS {
        // As an impatient user: curl closes its connection when its time is over.
        let given_up = try_curl(&[client, "--max-time", "0.3", "-d", "x", &url]);
        assert_eq!(given_up.status.code(), Some(28), "{client}");
        assert_eq!(hanging.read_line(), "asked");
        assert_eq!(hanging.read_line(), "reset", "{client}");
    }
    wait_until("the end is counted", || aborts(&balancer) >= 1);
}
