//! Real members that die, freeze and come back while real clients ask.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking.

use std::net::SocketAddr;

use evenkeel_e2e::balancer::Balancer;
use evenkeel_e2e::load::{Clients, Wrk};
use evenkeel_e2e::process::{are_installed, run_curl, try_curl};
use evenkeel_e2e::server::Server;
use evenkeel_e2e::wait_until;
use evenkeel_e2e::wire::Wire;

/// Quick to notice, but not so quick that a busy machine looks like an outage.
const CHECKED: &str = "slow_start = \"1s\"\n\
    [rule.web.health_check]\n\
    doc_path = \"/name\"\n\
    frequency = \"100ms\"\n\
    timeout = \"5s\"\n\
    fall = 2\n\
    rise = 2\n";

fn three() -> [Server; 3] {
    [
        Server::start_nginx(None),
        Server::start_nginx(None),
        Server::start_nginx(None),
    ]
}

fn requests(balancer: &Balancer, member: SocketAddr) -> u64 {
    let member = balancer.member_status("web", member);
    member["totals"]["requests"].as_u64().unwrap()
}

/// Waits until a member is in traffic, by its state and by what it gets.
fn wait_for_traffic(balancer: &Balancer, member: SocketAddr) {
    balancer.wait_for_state("web", member, &["warming", "up"]);
    let before = requests(balancer, member);
    wait_until("it gets requests", || requests(balancer, member) > before);
}

#[test]
fn a_member_that_is_killed_under_load_costs_no_answer() {
    if !are_installed(&["nginx", "wrk"]) {
        return;
    }
    let content = "0123456789abcdef".repeat(64);
    let mut servers = three();
    for server in &servers {
        server.put_document("document", &content);
    }
    let members = servers.each_ref().map(Server::address);
    let balancer = Balancer::start_http(&members, CHECKED);
    let web = balancer.address("web");
    let wrk = Wrk::start(web, "/files/document", content.as_bytes());
    let clients = Clients::start(web, 4);
    for server in &mut servers[..2] {
        wait_for_traffic(&balancer, server.address());
        clients.wait_for(20);
        server.kill();
        balancer.wait_for_state("web", server.address(), &["down", "ejected"]);
        clients.wait_for(50);
        server.restart();
        wait_for_traffic(&balancer, server.address());
    }
    clients.stop_and_count();
    let tally = wrk.stop_and_tally();
    assert_eq!((tally.wrong, tally.errors), (0, 0), "{tally:?}");
    assert!(tally.requests > 100, "{tally:?}");
}

#[test]
fn a_member_that_freezes_is_left_alone_until_it_goes_on() {
    if !are_installed(&["nginx"]) {
        return;
    }
    let servers = three();
    let members = servers.each_ref().map(Server::address);
    // No health check: that the member is bad must show in the requests themselves.
    let balancer = Balancer::start_http(
        &members,
        "response_timeout = \"3s\"\nslow_start = \"0s\"\nconnection_failure_limit = 2",
    );
    let frozen = &servers[0];
    let clients = Clients::start(balancer.address("web"), 4);
    clients.wait_for(50);
    frozen.stop();
    // Requests that it has are asked again elsewhere after the timeout: the clients check
    // that each has its answer.
    balancer.wait_for_state("web", frozen.address(), &["ejected"]);
    clients.wait_for(50);
    let metrics = balancer.admin_get("/metrics");
    let retried = metrics.text().lines().any(|line| {
        line.starts_with("evenkeel_rule_retries_total{rule=\"web\",result=\"tried\"}")
            && !line.ends_with(" 0")
    });
    assert!(retried, "{}", metrics.text());
    frozen.go_on();
    wait_for_traffic(&balancer, frozen.address());
    clients.stop_and_count();
}

#[test]
fn a_request_that_may_not_be_sent_twice_fails_in_time() {
    if !are_installed(&["nginx", "curl"]) {
        return;
    }
    let server = Server::start_nginx(None);
    let balancer = Balancer::start_http(&[server.address()], "response_timeout = \"3s\"");
    let url = format!("http://{}/name", balancer.address("web"));
    assert_eq!(run_curl(&[&url]), server.address().to_string());
    server.stop();
    let code = ["--output", "/dev/null", "--write-out", "%{http_code}"];
    for arguments in [&["--data", "x"][..], &[]] {
        let answer = run_curl(&[&code[..], arguments, &[&url]].concat());
        assert_eq!(answer, "504", "{arguments:?}");
    }
    server.go_on();
    wait_until("it answers again", || {
        let answer = try_curl(&["--fail", &url]);
        answer.stdout == server.address().to_string().as_bytes()
    });
}

#[test]
fn with_nobody_left_clients_are_told_so_at_once() {
    if !are_installed(&["nginx"]) {
        return;
    }
    let mut servers = three();
    let members = servers.each_ref().map(Server::address);
    let balancer = Balancer::start_http(&members, CHECKED);
    let mut client = balancer.connect();
    let ask = |client: &mut Wire| {
        client.send("GET /echo/x HTTP/1.1\r\nHost: a\r\n\r\n");
        client.read_response()
    };
    assert_eq!(ask(&mut client).text(), "/echo/x");
    for server in &mut servers {
        server.kill();
    }
    for member in members {
        balancer.wait_for_state("web", member, &["down"]);
    }
    let answer = ask(&mut client);
    assert!(
        ["502", "503"].contains(&answer.second_word()),
        "{}",
        answer.head
    );
    // The same connection gets answers as soon as one is back.
    servers[1].restart();
    balancer.wait_for_state("web", members[1], &["warming", "up"]);
    wait_until("it answers again", || ask(&mut client).text() == "/echo/x");
}
