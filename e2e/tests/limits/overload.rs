//! Requests that wait for a member: who goes first, who is refused.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{JoinHandle, sleep, spawn};
use std::time::Duration;

use evenkeel_e2e::balancer::Balancer;
use evenkeel_e2e::member::{Member, Signal, ok_response};
use evenkeel_e2e::process::try_curl;
use evenkeel_e2e::wait_until;
use evenkeel_e2e::wire::Wire;

/// A member that answers each request with its target when it is told to.
fn gated() -> (Member, Arc<Signal>) {
    let gate = Arc::new(Signal::default());
    let opened = Arc::clone(&gate);
    let member = Member::answering_with(move |request| {
        opened.wait_for_release();
        ok_response(request.second_word())
    });
    (member, gate)
}

/// A rule `web` with one member that takes one request at once; `more` are further lines of it.
fn config(protocol: &str, workers: u32, member: SocketAddr, more: &str) -> String {
    format!(
        "workers = {workers}\n[admin]\nlisten = \"127.0.0.1:0\"\n\
         [rule.web]\nlisten = \"127.0.0.1:0\"\nprotocol = \"{protocol}\"\n\
         members = [{{ address = \"{member}\", max_connections = 1 }}]\nhealth_check = false\n\
         queue_timeout = \"60s\"\n{more}\n"
    )
}

fn waiting(balancer: &Balancer) -> usize {
    let waiting = balancer.read_metric("evenkeel_group_queue{group=\"web\"}");
    waiting.unwrap_or(0.0) as usize
}

/// Waits until so many requests wait.
fn wait_for(balancer: &Balancer, number: usize) {
    wait_until(&format!("{number} requests wait"), || {
        waiting(balancer) == number
    });
}

fn send(balancer: &Balancer, target: &str, fields: &str) -> Wire {
    let mut wire = balancer.connect();
    wire.send(format!("GET {target} HTTP/1.1\r\nHost: a\r\n{fields}\r\n"));
    wire
}

/// The target of the next request that the member gets.
fn next(member: &Member) -> String {
    member.next_request().1.second_word().to_owned()
}

fn refused(balancer: &Balancer, reason: &str) -> u64 {
    balancer.rule_count("refused_total", &format!("reason=\"{reason}\""))
}

/// curl from another address of this machine.
fn ask_from(client: &'static str, url: String) -> JoinHandle<bool> {
    spawn(move || try_curl(&["--interface", client, &url]).status.success())
}

#[test]
fn those_that_wait_are_served_in_the_order_in_which_they_came() {
    let (member, gate) = gated();
    let balancer = Balancer::start(&config("http", 3, member.address(), ""));
    let first = send(&balancer, "/0", "");
    assert_eq!(next(&member), "/0");
    let mut clients = vec![first];
    for number in 1..=12 {
        clients.push(send(&balancer, &format!("/{number}"), ""));
        wait_for(&balancer, number);
    }
    // One in the middle gives up.
    let gone = clients.remove(6);
    gone.reset();
    wait_for(&balancer, 11);
    for wire in &mut clients {
        gate.release_one();
        let answer = wire.read_response();
        assert_eq!(answer.second_word(), "200");
    }
    let seen: Vec<String> = (1..12).map(|_| next(&member)).collect();
    let wanted = [1, 2, 3, 4, 5, 7, 8, 9, 10, 11, 12].map(|number| format!("/{number}"));
    assert_eq!(seen, wanted);
    assert_eq!(waiting(&balancer), 0);
}

/// `close()` sends FIN and no reset: so does every client whose time is over.
#[test]
fn f5_who_closes_the_connection_leaves_the_queue_and_is_not_served() {
    let (member, gate) = gated();
    let more = "max_queue = 3\n";
    let balancer = Balancer::start(&config("http", 2, member.address(), more));
    let mut first = send(&balancer, "/0", "");
    assert_eq!(next(&member), "/0");
    let mut gone: Vec<Wire> = (1..=3)
        .map(|number| send(&balancer, &format!("/gone-{number}"), ""))
        .collect();
    wait_for(&balancer, 3);
    gone.iter_mut().for_each(Wire::end_sending);
    wait_for(&balancer, 0);
    // There is room for who is really there, and one that leaves just before its turn is not served either.
    let mut last = send(&balancer, "/late", "");
    wait_for(&balancer, 1);
    let mut between = send(&balancer, "/between", "");
    wait_for(&balancer, 2);
    gate.release_one();
    assert_eq!(first.read_response().second_word(), "200");
    assert_eq!(next(&member), "/late");
    between.end_sending();
    gate.release_one();
    assert_eq!(last.read_response().second_word(), "200");
    let mut end = send(&balancer, "/end", "");
    assert_eq!(next(&member), "/end");
    gate.release_one();
    assert_eq!(end.read_response().second_word(), "200");
    assert_eq!(refused(&balancer, "queue_full"), 0);
}

#[test]
fn a_request_that_comes_while_others_wait_overtakes_none() {
    let (member, gate) = gated();
    let balancer = Balancer::start(&config("http", 2, member.address(), ""));
    let _first = send(&balancer, "/0", "");
    assert_eq!(next(&member), "/0");
    let mut clients: Vec<Wire> = Vec::new();
    for number in 1..=5 {
        clients.push(send(&balancer, &format!("/{number}"), ""));
        wait_for(&balancer, number);
    }
    // Each answer frees the member, while another one comes.
    for number in 1..=5 {
        gate.release_one();
        clients.push(send(&balancer, "/late", ""));
        assert_eq!(next(&member), format!("/{number}"));
    }
    for _ in 0..5 {
        gate.release_one();
        assert_eq!(next(&member), "/late");
    }
}

#[test]
fn priorities_come_from_the_route_the_field_the_client_and_the_rule() {
    let (member, gate) = gated();
    let more = "priority = 3\n\
        client_priorities = [{ networks = [\"127.0.0.2\"], priority = 5 }]\n\
        [rule.web.http]\npriority_header = \"X-Priority\"\n\
        [[rule.web.routes]]\npath = \"/export\"\npriority = 1\n\
        [[rule.web.routes]]\npath = \"/\"\n";
    let balancer = Balancer::start(&config("http", 2, member.address(), more));
    let _first = send(&balancer, "/0", "");
    assert_eq!(next(&member), "/0");
    let url = format!("http://{}/client", balancer.address("web"));
    let mut clients = Vec::new();
    let mut came = 0;
    let mut ask = |target: &str, fields: &str| {
        clients.push(send(&balancer, target, fields));
        came += 1;
        wait_for(&balancer, came);
    };
    // A route's own is not changed by a field.
    ask("/export", "X-Priority: 7\r\n");
    ask("/rule", "");
    ask("/nonsense", "X-Priority: 9\r\n");
    ask("/twice", "X-Priority: 7\r\nX-Priority: 7\r\n");
    ask("/low", "X-Priority: 2\r\n");
    ask("/high", "x-priority: 6\r\n");
    let client = ask_from("127.0.0.2", url);
    wait_for(&balancer, came + 1);
    let order = [
        "/high",
        "/client",
        "/rule",
        "/nonsense",
        "/twice",
        "/low",
        "/export",
    ];
    for target in order {
        gate.release_one();
        assert_eq!(next(&member), target);
    }
    gate.release_one();
    assert!(client.join().unwrap());
}

#[test]
fn connections_have_the_priority_of_their_client() {
    let (member, gate) = gated();
    let more = "client_priorities = [{ networks = [\"127.0.0.2\"], priority = 6 }]\n";
    let balancer = Balancer::start(&config("tcp", 2, member.address(), more));
    let mut first = send(&balancer, "/0", "Connection: close\r\n");
    assert_eq!(next(&member), "/0");
    let mut usual = send(&balancer, "/usual", "");
    wait_for(&balancer, 1);
    let urgent = format!("http://{}/urgent", balancer.address("web"));
    let urgent = ask_from("127.0.0.2", urgent);
    wait_for(&balancer, 2);
    gate.release_one();
    assert_eq!(first.read_response().text(), "/0");
    drop(first);
    assert_eq!(next(&member), "/urgent");
    gate.release_one();
    assert!(urgent.join().unwrap());
    assert_eq!(next(&member), "/usual");
    gate.release_one();
    assert_eq!(usual.read_response().text(), "/usual");
}

#[test]
fn a_full_queue_takes_who_is_more_urgent() {
    let (member, gate) = gated();
    let more = "max_queue = 2\n[rule.web.http]\npriority_header = \"X-Priority\"\n";
    let balancer = Balancer::start(&config("http", 2, member.address(), more));
    let mut first = send(&balancer, "/0", "");
    assert_eq!(next(&member), "/0");
    let mut low = send(&balancer, "/low", "X-Priority: 1\r\n");
    wait_for(&balancer, 1);
    let mut usual = send(&balancer, "/usual", "");
    wait_for(&balancer, 2);
    let full = send(&balancer, "/full", "X-Priority: 1\r\n").read_response();
    assert_eq!(full.second_word(), "503");
    assert_eq!(full.values("retry-after"), ["1"]);
    let mut high = send(&balancer, "/high", "X-Priority: 7\r\n");
    let displaced = low.read_response();
    assert_eq!(displaced.second_word(), "503");
    assert_eq!(displaced.values("retry-after"), ["1"]);
    assert_eq!(refused(&balancer, "queue_full"), 1);
    assert_eq!(refused(&balancer, "overload"), 1);
    let left = balancer.read_metric("evenkeel_group_queue_refused_total{group=\"web\"}");
    assert_eq!(left, Some(1.0));
    for (wire, target) in [
        (&mut first, "/0"),
        (&mut high, "/high"),
        (&mut usual, "/usual"),
    ] {
        gate.release_one();
        assert_eq!(wire.read_response().text(), target);
    }
    // Its connection goes on.
    low.send("GET /again HTTP/1.1\r\nHost: a\r\n\r\n");
    gate.release_one();
    assert_eq!(low.read_response().text(), "/again");
}

#[test]
fn an_overload_is_seen_refuses_the_old_and_passes() {
    // Its work is what takes time here.
    let member = Member::answering_with(|request| {
        sleep(Duration::from_millis(20));
        ok_response(request.second_word())
    });
    let more = "queue_target = \"100ms\"\n";
    let balancer = Balancer::start(&config("http", 2, member.address(), more));
    let stop = Arc::new(AtomicBool::new(false));
    let served = Arc::new(AtomicUsize::new(0));
    let load: Vec<_> = (0..30)
        .map(|_| {
            let (stop, served) = (Arc::clone(&stop), Arc::clone(&served));
            let mut wire = balancer.connect();
            spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    wire.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
                    let answer = wire.read_response();
                    match answer.second_word() {
                        "200" => served.fetch_add(1, Ordering::Relaxed),
                        _ => {
                            assert_eq!(answer.second_word(), "503");
                            assert_eq!(answer.values("retry-after"), ["1"]);
                            assert!(answer.text().contains("overloaded"), "{}", answer.text());
                            continue;
                        }
                    };
                }
            })
        })
        .collect();
    let overloaded = || balancer.read_metric("evenkeel_group_queue_overloaded{group=\"web\"}");
    wait_until("it is seen", || overloaded() == Some(1.0));
    wait_until("some are refused", || refused(&balancer, "overload") >= 50);
    let before = served.load(Ordering::Relaxed);
    wait_until("the member goes on working", || {
        served.load(Ordering::Relaxed) >= before + 20
    });
    stop.store(true, Ordering::Relaxed);
    for client in load {
        client.join().unwrap();
    }
    assert_eq!(overloaded(), Some(0.0));
    let answer = send(&balancer, "/after", "").read_response();
    assert_eq!(answer.text(), "/after");
}

#[test]
fn a_request_waits_for_a_fast_member_rather_than_to_go_to_a_slow_one() {
    let gate = Arc::new(Signal::default());
    let opened = Arc::clone(&gate);
    let fast = Member::answering_with(move |request| {
        if request.second_word() == "/hold" {
            opened.wait_for_release();
        }
        ok_response(request.second_word())
    });
    // Longer than the test holds the other one.
    let slow = Member::answering_with(|request| {
        sleep(Duration::from_secs(5));
        ok_response(request.second_word())
    });
    let member = |of: &Member| format!("{{ address = \"{}\", max_connections = 1 }}", of.address());
    let config = format!(
        "workers = 2\n[admin]\nlisten = \"127.0.0.1:0\"\n\
         [rule.web]\nlisten = \"127.0.0.1:0\"\nhealth_check = false\nmembers = [{}, {}]\n",
        member(&fast),
        member(&slow)
    );
    let balancer = Balancer::start(&config);
    let requests = |of: &Member| {
        let member = balancer.member_status("web", of.address());
        member["totals"]["requests"].as_u64().unwrap()
    };
    let mut wire = balancer.connect();
    while requests(&fast) < 20 || requests(&slow) < 1 {
        wire.send("GET /warm HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(wire.read_response().text(), "/warm");
    }
    fast.seen_events();
    slow.seen_events();
    let mut held = send(&balancer, "/hold", "");
    assert_eq!(next(&fast), "/hold");
    let mut late = send(&balancer, "/late", "");
    wait_for(&balancer, 1);
    let explained = balancer.run_ctl("explain web").unwrap();
    assert!(explained.contains("the request waits for"), "{explained}");
    gate.release_one();
    assert_eq!(held.read_response().text(), "/hold");
    assert_eq!(late.read_response().text(), "/late");
    assert_eq!(next(&fast), "/late");
    assert!(slow.seen_events().is_empty());
}
