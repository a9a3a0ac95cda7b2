//! Ejected members that requests try: a member that is well again is in again, and clients see no failure meanwhile.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use evenkeel_e2e::balancer::Balancer;
use evenkeel_e2e::member::{Member, Seen, ok_response};
use evenkeel_e2e::wait_until;
use evenkeel_e2e::wire::Wire;
use serde_json::Value;

/// A member that answers errors while it `fails`, or breaks connections if `breaks`.
fn bad_member(fails: &Arc<AtomicBool>, breaks: bool) -> Member {
    let fails = Arc::clone(fails);
    Member::start(move |script, mut wire| {
        while script.read_request(&mut wire).is_some() {
            let answer = match (fails.load(Ordering::SeqCst), breaks) {
                (false, _) => ok_response("bad"),
                (true, true) => return,
                (true, false) => "HTTP/1.1 500 Broken\r\nContent-Length: 0\r\n\r\n".to_owned(),
            };
            if !wire.try_send(answer) {
                return;
            }
        }
    })
}

/// A rule without retries. Ejections last for an hour if no trial ends them.
fn start(members: &[SocketAddr], trials: bool) -> Balancer {
    let members: Vec<String> = members.iter().map(|at| format!("\"{at}\"")).collect();
    Balancer::start(&format!(
        "[admin]\nlisten = \"127.0.0.1:0\"\n[rule.web]\nlisten = \"127.0.0.1:0\"\nprotocol = \"http\"\n\
         strategy = \"round_robin\"\nhealth_check = false\nmembers = [{}]\n\
         ejection = {{ time = \"1h\", max_time = \"1h\", trials = {trials} }}\n\
         [rule.web.http]\nretries = 0\n",
        members.join(", ")
    ))
}

/// Sends a request over a connection that is kept. Returns the status.
fn ask(wire: &mut Wire, method: &str) -> String {
    let length = if method == "GET" {
        ""
    } else {
        "Content-Length: 0\r\n"
    };
    wire.send(format!("{method} / HTTP/1.1\r\nHost: x\r\n{length}\r\n"));
    wire.read_response().second_word().to_owned()
}

fn ejection(balancer: &Balancer, member: SocketAddr) -> Value {
    balancer.member_status("web", member)["ejection"].clone()
}

/// Has requests fail until the member is ejected.
fn eject(balancer: &Balancer, member: SocketAddr) {
    wait_until("it is ejected", || {
        let mut wire = balancer.connect();
        (0..20).for_each(|_| drop(ask(&mut wire, "POST")));
        !ejection(balancer, member).is_null()
    });
}

#[test]
fn a_member_is_in_again_when_it_is_well_and_clients_see_no_trial_fail() {
    for breaks in [false, true] {
        let fails = Arc::new(AtomicBool::new(true));
        let bad = bad_member(&fails, breaks);
        let others = [(); 2].map(|()| Member::answering_with(|_| ok_response("")));
        let at = bad.address();
        let balancer = start(&[at, others[0].address(), others[1].address()], true);
        eject(&balancer, at);
        let mut wire = balancer.connect();
        let mut ask_some = || {
            for _ in 0..50 {
                assert_eq!(ask(&mut wire, "GET"), "200", "{breaks}");
            }
        };
        wait_until("trials fail", || {
            ask_some();
            ejection(&balancer, at)["trials"]["failed"].as_u64() >= Some(3)
        });
        let line = balancer.run_ctl("members web").unwrap();
        assert!(line.contains(" trials failed, 0 of 10 "), "{line}");
        let explained = balancer.run_ctl("explain web").unwrap();
        assert!(explained.contains(" trials failed, "), "{explained}");

        fails.store(false, Ordering::SeqCst);
        wait_until("it is in again", || {
            ask_some();
            ejection(&balancer, at).is_null()
        });
        balancer.wait_for_log("the requests that have tried it have succeeded");
        // With its whole share.
        let member = balancer.member_status("web", at);
        assert_eq!(member["state"], "up", "{member}");
        let count = |result: &str| {
            let series = format!(
                "evenkeel_member_trials_total{{group=\"web\",member=\"{at}\",result=\"{result}\"}}"
            );
            balancer.read_metric(&series).unwrap()
        };
        assert!(count("succeeded") >= 10.0 && count("failed") >= 3.0);
        assert_eq!(balancer.rule_count("retries_total", "result=\"tried\""), 0);
    }
}

#[test]
fn requests_that_change_something_and_groups_without_trials_leave_a_member_ejected() {
    for (trials, method) in [(true, "POST"), (false, "GET")] {
        let fails = Arc::new(AtomicBool::new(true));
        let bad = bad_member(&fails, false);
        let other = Member::answering_with(|_| ok_response(""));
        let at = bad.address();
        let balancer = start(&[at, other.address()], trials);
        eject(&balancer, at);
        bad.seen_events();
        let mut wire = balancer.connect();
        for _ in 0..2_000 {
            assert_eq!(ask(&mut wire, method), "200");
        }
        let mut seen = bad.seen_events().into_iter();
        assert!(
            !seen.any(|seen| matches!(seen, Seen::Request(..))),
            "{method}"
        );
        let ejection = ejection(&balancer, at);
        assert_eq!(ejection["trials"].is_null(), !trials, "{ejection}");
    }
}
