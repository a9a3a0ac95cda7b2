//! Fields of the access log about the way to a member: the queue, the connection, failed tries.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking.

use std::net::SocketAddr;
use std::sync::Arc;

use evenkeel_e2e::balancer::Balancer;
use evenkeel_e2e::folder::Folder;
use evenkeel_e2e::member::{Member, Signal, ok_response};
use evenkeel_e2e::wait_until;
use evenkeel_e2e::wire::Wire;
use serde_json::Value;

/// A rule `web` with group `app`, and the lines of its log.
struct Logged {
    balancer: Balancer,
    folder: Folder,
}

impl Logged {
    fn start(protocol: &str, members: &str) -> Self {
        let folder = Folder::new();
        let log = folder.join("access.log");
        let balancer = Balancer::start(&format!(
            "workers = 1\n[admin]\nlisten = \"127.0.0.1:0\"\n[access_log]\noutput = {log:?}\n\
             [group.app]\nmembers = [{members}]\nhealth_check = false\nstrategy = \"round_robin\"\n\
             connection_failure_limit = 1000\n[rule.web]\nlisten = \"127.0.0.1:0\"\nprotocol = \"{protocol}\"\n\
             group = \"app\"\nqueue_timeout = \"60s\"\n"
        ));
        Logged { balancer, folder }
    }

    fn lines(&self, count: usize) -> Vec<Value> {
        let text = || match self.folder.join("access.log").exists() {
            true => self.folder.text("access.log"),
            false => String::new(),
        };
        wait_until("all is logged", || text().matches('\n').count() == count);
        let text = text();
        let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
        let lines: Vec<Value> = lines.collect();
        assert!(lines.iter().all(|line| line["group"] == "app"), "{text}");
        lines
    }
}

/// An address at which nobody listens, and what keeps others from it.
fn dead() -> (socket2::Socket, SocketAddr) {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
    socket.bind(&any.into()).unwrap();
    let address = socket.local_addr().unwrap().as_socket().unwrap();
    (socket, address)
}

fn get(wire: &mut Wire) {
    wire.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
}

#[test]
fn a_request_that_waits_for_a_member_says_for_how_long() {
    let gate = Arc::new(Signal::default());
    let opened = Arc::clone(&gate);
    let member = Member::answering_with(move |_| {
        opened.wait_for_release();
        ok_response("done")
    });
    let of = format!(
        "{{ address = \"{}\", max_connections = 1 }}",
        member.address()
    );
    let logged = Logged::start("http", &of);
    let mut clients = [logged.balancer.connect(), logged.balancer.connect()];
    get(&mut clients[0]);
    member.next_request();
    get(&mut clients[1]);
    let waiting = "evenkeel_group_queue{group=\"app\"}";
    wait_until("one waits", || {
        logged.balancer.read_metric(waiting) == Some(1.0)
    });
    for client in &mut clients {
        gate.release_one();
        assert_eq!(client.read_response().second_word(), "200");
    }
    let lines = logged.lines(2);
    let number = |line: &Value, key: &str| line[key].as_f64();
    assert_eq!(number(&lines[0], "queue_ms"), Some(0.0), "{lines:?}");
    assert!(number(&lines[0], "connect_ms") > Some(0.0), "{lines:?}");
    assert!(number(&lines[1], "queue_ms") > Some(0.0), "{lines:?}");
    assert!(
        number(&lines[1], "queue_ms") < number(&lines[1], "total_ms"),
        "{lines:?}"
    );
    // The connection of the first one.
    assert!(lines[1].get("connect_ms").is_none(), "{lines:?}");
    assert!(
        lines.iter().all(|line| line.get("tried").is_none()),
        "{lines:?}"
    );
}

#[test]
fn members_that_failed_a_request_are_named_before_the_one_that_answered() {
    let member =
        Member::closing_after("HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    let [(_first, one), (_second, two)] = [dead(), dead()];
    let members = format!("\"{one}\", \"{}\", \"{two}\"", member.address());
    for protocol in ["http", "tcp"] {
        let logged = Logged::start(protocol, &members);
        // Two at least, as connections are tried again twice.
        for _ in 0..6 {
            let mut client = logged.balancer.connect();
            get(&mut client);
            assert_eq!(client.read_response().second_word(), "200");
        }
        let lines = logged.lines(6);
        let mut most = 0;
        for line in &lines {
            assert_eq!(line["member"], member.address().to_string(), "{line}");
            assert!(line["connect_ms"].as_f64() > Some(0.0), "{line}");
            let tried = line["tried"].as_array().map_or(&[][..], Vec::as_slice);
            assert_eq!(line["retries"], tried.len(), "{line}");
            most = most.max(tried.len());
            // In their order: after the second dead one comes the first.
            let names = [two, one].map(|address| Value::from(address.to_string()));
            assert!(names.ends_with(tried), "{lines:?}");
        }
        assert_eq!(most, 2, "{lines:?}");
    }
}
