//! Hedging: a second member is asked when the first one takes long, within a budget.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking.

use std::net::SocketAddr;
use std::sync::Arc;

use evenkeel_e2e::balancer::{Balancer, run_evenkeel};
use evenkeel_e2e::folder::Folder;
use evenkeel_e2e::member::{Member, Seen, Signal, ok_response};
use evenkeel_e2e::process::{are_installed, program, run_curl};
use evenkeel_e2e::script::Script;
use evenkeel_e2e::server::Server;
use evenkeel_e2e::wait_until;

const PYTHON: &str = "/usr/bin/python3";

/// A rule with these members in turn, whose requests are hedged after 20 ms, and never tried again.
fn config(members: &[SocketAddr], hedge: &str, http: &str, more: &str) -> String {
    let members: Vec<_> = members.iter().map(|m| format!("\"{m}\"")).collect();
    let members = members.join(", ");
    format!(
        "workers = 1\n[admin]\nlisten = \"127.0.0.1:0\"\n[rule.web]\nlisten = \"127.0.0.1:0\"\nmembers = [{members}]\nstrategy = \"round_robin\"\n\
         {more}\n[rule.web.http]\nretries = 0\n{hedge}\n{http}\n"
    )
}

/// Never too many.
const ALL: &str = "hedge = { after = \"20ms\", percent = 100 }";

/// The two protocols of clients, as options of curl.
const CLIENTS: [&str; 2] = ["--http1.1", "--http2-prior-knowledge"];

/// The status, and the body.
fn ask(balancer: &Balancer, client: &str, target: &str, more: &[&str]) -> (String, String) {
    let url = format!("http://{}{target}", balancer.address("web"));
    let mut arguments = vec![client, "--write-out", "\n%{http_code}"];
    arguments.extend(more);
    arguments.push(&url);
    let text = run_curl(&arguments);
    let (body, status) = text.rsplit_once('\n').unwrap();
    (status.to_owned(), body.to_owned())
}

fn hedges(balancer: &Balancer, result: &str) -> u64 {
    balancer.rule_count("hedges_total", &format!("result=\"{result}\""))
}

/// A member that takes requests, and never answers.
fn hangs() -> Member {
    Member::start(|script, mut wire| while script.read_request(&mut wire).is_some() {})
}

#[test]
fn a_second_server_answers_when_the_first_one_does_not() {
    if !are_installed(&["nginx", "curl"]) {
        return;
    }
    for protocol in ["http1", "h2"] {
        let serve = || match protocol {
            "h2" => Server::nginx_http2(),
            _ => Server::start_nginx(None),
        };
        let (stopped, good) = (serve(), serve());
        let members = [stopped.address(), good.address()];
        // Longer than the test may take: nothing else helps.
        let more = "response_timeout = \"1h\"\nconnection_timeout = \"10m\"";
        let http = format!("member_protocol = \"{protocol}\"");
        let folder = Folder::new();
        let log = folder.join("access.log");
        let logs = format!("[access_log]\noutput = {log:?}\n");
        let text = config(&members, ALL, &http, more) + &logs;
        let balancer = Balancer::start(&text);
        // Connections are there, too.
        for client in CLIENTS.repeat(2) {
            assert_eq!(ask(&balancer, client, "/echo/x", &[]).0, "200");
        }
        let before = (hedges(&balancer, "sent"), hedges(&balancer, "won"));
        stopped.stop();
        for client in CLIENTS {
            for _ in 0..6 {
                let (status, body) = ask(&balancer, client, "/echo/y", &[]);
                assert_eq!((&*status, &*body), ("200", "/echo/y"), "{protocol}");
            }
            let (status, body) = ask(&balancer, client, "/echo/y", &["--head"]);
            assert_eq!(status, "200", "{body}");
        }
        let (sent, won) = (hedges(&balancer, "sent"), hedges(&balancer, "won"));
        // Each second request at least goes to the one that is stopped.
        assert!(won - before.1 >= 7 && sent >= won, "{won} of {sent}");
        wait_until("nothing is in flight", || {
            let flying = |at| balancer.member_status("web", at)["in_flight"].clone();
            members.map(flying) == [0, 0].map(serde_json::Value::from)
        });
        // Whoever was given up counts neither as good nor as bad.
        let member = balancer.member_status("web", stopped.address());
        assert_eq!(member["totals"]["failures"], 0, "{member}");
        wait_until("the log says so", || {
            folder
                .text("access.log")
                .matches("\"hedge\":\"won\"")
                .count() as u64
                == won
        });
        let said = balancer.run_ctl("explain web").unwrap();
        assert!(said.contains("second member after 20ms"), "{said}");
        stopped.go_on();
    }
}

#[test]
fn the_first_member_may_still_be_first_and_the_second_is_cut_off() {
    if !are_installed(&["curl"]) {
        return;
    }
    for client in CLIENTS {
        let go = Arc::new(Signal::default());
        let told = Arc::clone(&go);
        let slow = Member::start(move |script, mut wire| {
            while script.read_request(&mut wire).is_some() {
                told.wait_for_release();
                wire.send(ok_response("slow"));
            }
        });
        let second = hangs();
        let members = [slow.address(), second.address()];
        let balancer = Balancer::start(&config(&members, ALL, "", ""));
        std::thread::scope(|scope| {
            // Whichever is first in turn.
            let asked = scope.spawn(|| ask(&balancer, client, "/", &[]));
            slow.next_request();
            second.next_request();
            go.release_one();
            assert_eq!(asked.join().unwrap().1, "slow");
        });
        assert!(
            matches!(second.next(), Seen::End(..)),
            "its connection ends"
        );
        assert_eq!(hedges(&balancer, "sent"), 1);
    }
}

#[test]
fn the_second_request_goes_on_when_the_first_one_fails() {
    if !are_installed(&["curl"]) {
        return;
    }
    for client in CLIENTS {
        let [close, closed, answer] = std::array::from_fn(|_| Arc::new(Signal::default()));
        let (closes, has_closed) = (Arc::clone(&close), Arc::clone(&closed));
        let answers = Arc::clone(&answer);
        let breaks = Member::start(move |script, mut wire| {
            if script.read_request(&mut wire).is_some() {
                closes.wait_for_release();
                drop(wire);
                has_closed.release_one();
            }
        });
        let good = Member::start(move |script, mut wire| {
            while script.read_request(&mut wire).is_some() {
                answers.wait_for_release();
                wire.send(ok_response("good"));
            }
        });
        let members = [breaks.address(), good.address()];
        let route = "[[rule.web.routes]]\npath = \"/here\"\nanswer = {}";
        let balancer = Balancer::start(&config(&members, ALL, route, ""));
        std::thread::scope(|scope| {
            let asked = scope.spawn(|| ask(&balancer, client, "/", &[]));
            breaks.next_request();
            good.next_request();
            close.release_one();
            closed.wait_for_release();
            // The only worker has looked at its connections since then.
            assert_eq!(ask(&balancer, client, "/here", &[]).0, "200");
            answer.release_one();
            let (status, body) = asked.join().unwrap();
            assert_eq!((&*status, &*body), ("200", "good"));
        });
        assert_eq!(balancer.rule_count("retries_total", "result=\"tried\""), 0);
        let member = balancer.member_status("web", breaks.address());
        assert_eq!(member["totals"]["failures"], 1, "{member}");
    }
}

#[test]
fn there_are_no_more_second_requests_than_the_budget_has() {
    if !are_installed(&["curl"]) {
        return;
    }
    let (hangs, good) = (hangs(), Member::echoing_targets());
    let members = [hangs.address(), good.address()];
    let few = "hedge = { after = \"20ms\", percent = 1 }";
    // Long enough for the answer of the good one on a busy machine.
    let more = "response_timeout = \"1s\"\nconnection_failure_limit = 1000\nejection = { min_requests = 100 }";
    let balancer = Balancer::start(&config(&members, few, "", more));
    let statuses: Vec<_> = (0..40)
        .map(|number| ask(&balancer, CLIENTS[number % 2], "/", &[]).0)
        .collect();
    let (sent, refused) = (hedges(&balancer, "sent"), hedges(&balancer, "over_budget"));
    let late = statuses.iter().filter(|status| *status == "504").count() as u64;
    assert!(sent >= 10, "{sent}: the bucket is full in the beginning");
    assert!(refused >= 1 && late >= 1, "{refused} {late}");
    // One that was answered in time all the same may have been refused, too.
    assert!(refused >= late, "{refused} {late}");
}

#[test]
fn only_what_may_be_sent_twice_is_and_only_to_who_may_serve_it() {
    if !are_installed(&["curl"]) {
        return;
    }
    let (a, b) = (hangs(), hangs());
    let members = [a.address(), b.address()];
    let more = "response_timeout = \"500ms\"\nconnection_failure_limit = 1000\nejection = { min_requests = 100 }";
    let text = |group: &str, hedge: &str| config(&members, hedge, "", &format!("{more}\n{group}"));
    let balancer = Balancer::start(&text("", ALL));
    let asked = |method: &str| {
        for client in CLIENTS {
            let (status, _) = ask(&balancer, client, "/", &["-X", method]);
            assert_eq!(status, "504", "{method}");
        }
        hedges(&balancer, "sent")
    };
    assert_eq!(asked("POST"), 0);
    assert_eq!(asked("DELETE"), 0);
    assert_eq!(asked("GET"), 2);
    assert_eq!(asked("OPTIONS"), 4);
    // Clients that are bound stay.
    balancer.reconfigure(&text("granularity = \"per_session\"", ALL));
    assert_eq!(asked("GET"), 4);
    // Off, and on again.
    balancer.reconfigure(&text("", ""));
    assert_eq!(asked("GET"), 4);
    balancer.reconfigure(&text("", ALL));
    assert_eq!(asked("GET"), 6);
    // Nobody else is up.
    balancer
        .run_ctl(&format!("drain web {}", b.address()))
        .unwrap();
    assert_eq!(asked("GET"), 6);
    assert_eq!(hedges(&balancer, "over_budget"), 0);
}

#[test]
fn a_response_that_is_not_wanted_is_asked_for_elsewhere() {
    if !are_installed(&["curl"]) {
        return;
    }
    let hangs = hangs();
    let busy = Member::answering_with(|_| "HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n".into());
    let good = Member::echoing_targets();
    let members = [hangs.address(), busy.address(), good.address()];
    let routes = "[[rule.web.routes]]\nretries = 2\nretry_statuses = [503]";
    let http = format!("retry_budget = 1.0\n{routes}");
    let more = "response_timeout = \"1h\"\nconnection_failure_limit = 1000\nejection = { min_requests = 100 }";
    // No other one is as slow as that.
    let hedge = "hedge = { after = \"1s\", percent = 100 }";
    let balancer = Balancer::start(&config(&members, hedge, &http, more));
    for _ in 0..3 {
        for client in CLIENTS {
            let (status, body) = ask(&balancer, client, "/x", &[]);
            // The one that hangs is not asked again.
            assert!(status == "200" && body == "/x", "{status} {body}");
        }
    }
    assert!(hedges(&balancer, "won") >= 1);
}

/// Speaks HTTP/2, never answers, and says what becomes of streams.
const SILENT: &str = r#"
import socket, threading
import h2.config, h2.connection, h2.events
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
def serve(link):
    state = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
    state.initiate_connection()
    while True:
        link.sendall(state.data_to_send())
        data = link.recv(65536)
        if not data:
            return
        for event in state.receive_data(data):
            if isinstance(event, h2.events.StreamReset):
                print("reset", event.error_code.name, flush=True)
while True:
    threading.Thread(target=serve, args=listener.accept()[:1], daemon=True).start()
"#;

#[test]
fn a_stream_of_http2_that_has_lost_is_reset() {
    let h2 = "/usr/lib/python3/dist-packages/h2/__init__.py";
    if !are_installed(&[PYTHON, h2, "nginx", "curl"]) {
        return;
    }
    let silent = Script::start(program(PYTHON).args(["-c", SILENT]));
    let port: u16 = silent.read_line().parse().unwrap();
    let good = Server::nginx_http2();
    let members = [SocketAddr::from(([127, 0, 0, 1], port)), good.address()];
    let http = "member_protocol = \"h2\"";
    let balancer = Balancer::start(&config(&members, ALL, http, "response_timeout = \"1h\""));
    for client in CLIENTS {
        for _ in 0..2 {
            assert_eq!(ask(&balancer, client, "/echo/x", &[]).1, "/echo/x");
        }
        assert_eq!(silent.read_line(), "reset CANCEL");
    }
}

#[test]
fn what_is_wrong_with_a_hedge() {
    let folder = Folder::new();
    let complaint = |hedge: &str, http: &str| {
        let text = config(&["127.0.0.1:1".parse().unwrap()], hedge, http, "");
        let file = folder.write("evenkeel.toml", text);
        run_evenkeel(&["check", &file.display().to_string()])
    };
    for (hedge, http, part) in [
        ("hedge = {}", "", "rule.web.http.hedge: `after` is missing"),
        (
            "hedge = { after = \"0s\" }",
            "",
            "rule.web.http.hedge.after",
        ),
        (
            "hedge = { after = \"1s\", percent = 101 }",
            "",
            "rule.web.http.hedge.percent",
        ),
        (
            "",
            "[[rule.web.routes]]\nanswer = {}\nhedge = { after = \"1s\" }",
            "rule.web.routes[0].hedge: has no effect",
        ),
    ] {
        let said = complaint(hedge, http).unwrap_err();
        assert!(said.contains(part), "{hedge} {http}: {said}");
    }
    complaint("hedge = { after = \"1ms\", percent = 0 }", "").unwrap();
}
