//! Shares with real servers: a weight is what it says at every load, and reports count.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::Duration;

use evenkeel_e2e::balancer::Balancer;
use evenkeel_e2e::load::Clients;
use evenkeel_e2e::member::{Member, ok_response};
use evenkeel_e2e::process::are_installed;
use evenkeel_e2e::server::{Server, address};
use evenkeel_e2e::wait_until;

fn requests(balancer: &Balancer, member: SocketAddr) -> u64 {
    balancer.member_status("web", member)["totals"]["requests"]
        .as_u64()
        .unwrap()
}

/// The example of the manual, with one nginx in the place of its servers: of two processes the one
/// that is seldom asked is woken later on a busy machine, and a weight is the share of servers that
/// are equally good.
#[test]
fn u1_the_canary_gets_one_request_in_twenty_at_every_load() {
    if !are_installed(&["nginx"]) {
        return;
    }
    let new = address();
    let server = Server::nginx_also_at(new);
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let example = std::fs::read_to_string(root.join("examples/canary.toml")).unwrap();
    let config = example
        .replace("127.0.0.1:8080", "127.0.0.1:0")
        .replace("127.0.0.1:8081", "127.0.0.1:0")
        .replace("127.0.0.1:8001", &server.address().to_string())
        .replace("127.0.0.1:8002", &new.to_string());
    let config = format!("{config}\n[admin]\nlisten = \"127.0.0.1:0\"\n");
    for clients in [1, 4, 20, 50] {
        let balancer = Balancer::start(&config);
        let load = Clients::start(balancer.address("web"), clients);
        // What is known of a server that has answered twice is what came by chance.
        wait_until("both are known", || requests(&balancer, new) >= 64);
        let counts = || [server.address(), new].map(|member| requests(&balancer, member));
        let of_the_next = || {
            let before = counts();
            let mut got = [0; 2];
            wait_until("eight thousand more requests", || {
                let now = counts();
                got = [now[0] - before[0], now[1] - before[1]];
                got[0] + got[1] >= 8000
            });
            got
        };
        let is_right = |got: &[u64; 2]| {
            let share = got[1] as f64 / (got[0] + got[1]) as f64;
            (share - 0.05).abs() < 0.01
        };
        // A busy machine may hold up the few that the canary has, which it has fewer of for a while then.
        let mut all = Vec::new();
        while all.len() < 3 && !all.last().is_some_and(is_right) {
            all.push(of_the_next());
        }
        load.stop_and_count();
        assert!(
            all.last().is_some_and(is_right),
            "{clients} clients: {all:?}"
        );
    }
}

/// Two servers with little to do: what is seen of them differs by chance only, so they take turns.
#[test]
fn newcomer_d1_equal_servers_with_few_requests_take_turns() {
    if !are_installed(&["nginx"]) {
        return;
    }
    let servers = [Server::start_nginx(None), Server::start_nginx(None)];
    let members = servers.each_ref().map(Server::address);
    let [a, b] = members;
    let balancer = Balancer::start(&format!(
        "workers = 1\n[admin]\nlisten = \"127.0.0.1:0\"\n\
         [rule.web]\nlisten = \"127.0.0.1:0\"\nprotocol = \"http\"\ngroup = \"web\"\n\
         [group.web]\nmembers = [\"{a}\", \"{b}\"]\n"
    ));
    let mut wire = balancer.connect();
    let mut counts = Vec::new();
    for _ in 0..5 {
        let before = members.map(|member| requests(&balancer, member));
        for _ in 0..100 {
            wire.send("GET /echo/a HTTP/1.1\r\nHost: a\r\n\r\n");
            wire.read_response();
            // A pace, not a wait: so many a second.
            sleep(Duration::from_millis(15));
        }
        let after = members.map(|member| requests(&balancer, member));
        counts.push([after[0] - before[0], after[1] - before[1]]);
    }
    // Of each two hundred that follow each other.
    for pair in counts.windows(2) {
        let first = pair[0][0] + pair[1][0];
        assert!((90..=110).contains(&first), "{counts:?}");
    }
}

/// A server that takes 5 ms, on as many requests at once as come, and reports one of two loads
/// with each answer.
fn reporting(swapped: &Arc<AtomicBool>, loads: [&'static str; 2]) -> Member {
    let swapped = Arc::clone(swapped);
    Member::answering_with(move |_| {
        sleep(Duration::from_millis(5));
        let load = loads[usize::from(swapped.load(Ordering::Relaxed))];
        let field = format!("endpoint-load-metrics: TEXT cpu_utilization={load}\r\n\r\n");
        ok_response("/").replacen("\r\n\r\n", &format!("\r\n{field}"), 1)
    })
}

/// Asks for nothing in particular, all the time, on so many connections.
fn ask(balancer: &Balancer, clients: usize, stop: &Arc<AtomicBool>) {
    for _ in 0..clients {
        let mut wire = balancer.connect();
        let stop = Arc::clone(stop);
        std::thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                wire.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
                wire.read_response();
            }
        });
    }
}

#[test]
fn u3_traffic_follows_reports_that_are_reversed() {
    let swapped = Arc::new(AtomicBool::new(false));
    let first = reporting(&swapped, ["0.9", "0.1"]);
    let second = reporting(&swapped, ["0.1", "0.9"]);
    let members = [first.address(), second.address()];
    // Members on one machine have one load, unless told otherwise.
    let [a, b] = members;
    let balancer = Balancer::start(&format!(
        "workers = 1\n\
         [admin]\nlisten = \"127.0.0.1:0\"\n\
         [rule.web]\nlisten = \"127.0.0.1:0\"\ngroup = \"web\"\n\
         [group.web]\norca = true\nmembers = [\n\
         {{ address = \"{a}\", location = \"a\" }},\n\
         {{ address = \"{b}\", location = \"b\" }},\n]\n"
    ));
    let stop = Arc::new(AtomicBool::new(false));
    ask(&balancer, 8, &stop);
    let counts = || members.map(|member| requests(&balancer, member));
    // Of the next two thousand requests, some 1.5 seconds, the one that reports less has most.
    let goes_to = |index: usize| {
        let before = counts();
        let mut got = [0; 2];
        wait_until("two thousand requests", || {
            let now = counts();
            got = [now[0] - before[0], now[1] - before[1]];
            got[0] + got[1] >= 2000
        });
        got[index] > 2 * got[1 - index]
    };
    wait_until("traffic goes where there is less load", || goes_to(1));
    swapped.store(true, Ordering::Relaxed);
    wait_until("traffic follows", || goes_to(0));
    // The service time is that of a request, and not of an eighth.
    let explained = balancer.run_ctl("explain web").unwrap();
    let times: Vec<f64> = explained
        .split("service time ")
        .skip(1)
        .filter_map(|rest| rest.split(' ').next()?.parse().ok())
        .collect();
    assert!(!times.is_empty(), "{explained}");
    assert!(times.iter().all(|&time| time > 3.0), "{explained}");
    stop.store(true, Ordering::Relaxed);
}
