//! Requests that cost more or less than others, by their rule or by a field, over both versions of HTTP.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking.

use std::process::{Command, Stdio};
use std::sync::{Arc, Condvar, Mutex};

use evenkeel_e2e::balancer::Balancer;
use evenkeel_e2e::folder::Folder;
use evenkeel_e2e::member::{Member, ok_response};
use evenkeel_e2e::process::are_installed;
use evenkeel_e2e::wait_until;
use evenkeel_e2e::wire::Wire;
use serde_json::Value;

/// Gate that members wait for.
#[derive(Default)]
struct Gate {
    open: Mutex<bool>,
    opened: Condvar,
}

impl Gate {
    fn open(&self) {
        *self.open.lock().unwrap() = true;
        self.opened.notify_all();
    }

    fn wait(&self) {
        let open = self.open.lock().unwrap();
        drop(self.opened.wait_while(open, |open| !*open).unwrap());
    }
}

#[test]
fn costs_are_counted_until_a_request_is_over() {
    if !are_installed(&["curl"]) {
        return;
    }
    let gate = Arc::new(Gate::default());
    let wait = Arc::clone(&gate);
    let member = Member::answering_with(move |request| {
        wait.wait();
        ok_response(request.values("x-cost").first().unwrap_or(&"none"))
    });
    let folder = Folder::new();
    let log = folder.path().join("access.log");
    let config = |cost: &str| {
        format!(
            "workers = 2\n[admin]\nlisten = \"127.0.0.1:0\"\n\
             [access_log]\noutput = \"{}\"\n\
             [group.app]\nmembers = [\"{}\"]\nhealth_check = false\n\
             [rule.files]\nlisten = \"127.0.0.1:0\"\ngroup = \"app\"\n\
             [rule.search]\nlisten = \"127.0.0.1:0\"\ngroup = \"app\"\ncost = {cost}\n\
             [rule.search.http]\ncost_header = \"X-Cost\"\n",
            log.display(),
            member.address()
        )
    };
    let balancer = Balancer::start(&config("10"));
    let in_flight = || {
        let member = balancer.member_status("app", member.address());
        let cost = member["cost_in_flight"].as_f64().unwrap();
        (member["in_flight"].as_u64().unwrap(), cost)
    };

    // Nobody has said that clients of the one rule are to be trusted.
    let mut files = Wire::connect(balancer.address("files"));
    files.send("GET / HTTP/1.1\r\nHost: a\r\nX-Cost: 500\r\n\r\n");
    let mut search = Wire::connect(balancer.address("search"));
    search.send("GET /s HTTP/1.1\r\nHost: a\r\nX-Cost: cheap\r\n\r\n");
    let mut gateway = Wire::connect(balancer.address("search"));
    gateway.send("GET /g HTTP/1.1\r\nHost: a\r\nX-Cost: 2.5\r\n\r\n");
    let mut streams = Command::new("curl")
        .args(["-s", "--http2-prior-knowledge", "-H", "X-Cost: 4"])
        .arg(format!("http://{}/2", balancer.address("search")))
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    wait_until("all are on their way", || in_flight() == (4, 17.5));

    let metrics = balancer.admin_get("/metrics");
    let counted = "evenkeel_member_cost_in_flight{group=\"app\"";
    let mut lines = metrics.text().lines();
    let line = lines.find(|line| line.starts_with(counted)).unwrap();
    assert!(line.ends_with(" 17.5"), "{line}");
    let explained = balancer.run_ctl("explain app").unwrap();
    assert!(
        explained.contains("in flight 4 of cost 17.5"),
        "{explained}"
    );

    // What is on its way takes along what it has added, whatever the rule says by now.
    balancer.reconfigure(&config("3"));
    assert_eq!(in_flight(), (4, 17.5));
    // A stream whose client goes away.
    streams.kill().unwrap();
    streams.wait().unwrap();
    wait_until("its cost is gone", || in_flight() == (3, 13.5));
    gate.open();
    for (wire, body) in [
        (&mut files, "500"),
        (&mut search, "cheap"),
        (&mut gateway, "2.5"),
    ] {
        assert_eq!(wire.read_response().text(), body, "members get the field");
    }
    wait_until("nothing is left", || in_flight() == (0, 0.0));
    search.send("GET /s HTTP/1.1\r\nHost: a\r\n\r\n");
    search.read_response();

    let mut costs = Vec::new();
    wait_until("all are in the log", || {
        let text = std::fs::read_to_string(&log).unwrap_or_default();
        let lines = text
            .lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok());
        costs = lines.map(|line| line["cost"].as_f64()).collect();
        costs.len() == 5
    });
    costs.sort_by(|a, b| a.partial_cmp(b).unwrap());
    let wanted = [None, Some(2.5), Some(3.0), Some(4.0), Some(10.0)];
    assert_eq!(costs, wanted);
}
