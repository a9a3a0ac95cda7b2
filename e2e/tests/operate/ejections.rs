//! Ejected members, as an operator finds them: cause and end of the ejection, and the command that ends it.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking.

use std::net::SocketAddr;

use evenkeel_e2e::balancer::{Balancer, run_evenkeel};
use evenkeel_e2e::member::{Member, Seen, ok_response};
use evenkeel_e2e::wait_until;
use evenkeel_e2e::wire::Wire;
use serde_json::Value;

/// A member that answers nonsense to a request with `x-fails: wire`, and an error to one with `x-fails: code`.
fn bad_member() -> Member {
    Member::start(|script, mut wire| {
        while let Some(request) = script.read_request(&mut wire) {
            let fails = request.values("x-fails").into_iter().next();
            let (answer, ends) = match fails {
                Some("wire") => ("NONSENSE\r\n\r\n".to_owned(), true),
                Some(_) => {
                    let error = "HTTP/1.1 500 Broken\r\nContent-Length: 0\r\n\r\n";
                    (error.to_owned(), false)
                }
                None => (ok_response("bad"), false),
            };
            if !wire.try_send(answer) || ends {
                break;
            }
        }
    })
}

/// Two groups with the same members; one ejects for failures in a row, and one for their share. What is ejected
/// stays so for an hour.
fn start(members: &[SocketAddr]) -> Balancer {
    let members: Vec<String> = members.iter().map(|at| format!("\"{at}\"")).collect();
    let rule = |name: &str, limit: u32, share: u32| {
        format!(
            "[rule.{name}]\nlisten = \"127.0.0.1:0\"\nprotocol = \"http\"\nstrategy = \"round_robin\"\n\
             connection_failure_limit = {limit}\nmembers = [{}]\n\
             ejection = {{ window = \"60s\", time = \"1h\", max_time = \"1h\", min_requests = {share} }}\n",
            members.join(", ")
        )
    };
    Balancer::start(&format!("{}{}", rule("web", 2, 1000), rule("app", 1000, 5)))
}

fn ask(balancer: &Balancer, rule: &str, field: &str) {
    let mut wire = Wire::connect(balancer.address(rule));
    wire.send(format!(
        "GET / HTTP/1.1\r\nHost: x\r\n{field}\r\nConnection: close\r\n\r\n"
    ));
    wire.read_response();
}

/// Has requests fail at the bad member until it is ejected.
fn eject(balancer: &Balancer, group: &str, bad: SocketAddr, field: &str) -> Value {
    let mut ejection = Value::Null;
    wait_until("it is ejected", || {
        ask(balancer, group, field);
        ejection = balancer.member_status(group, bad)["ejection"].clone();
        !ejection.is_null()
    });
    ejection
}

#[test]
fn an_ejection_is_shown_with_its_cause_and_its_end() {
    let servers = [
        bad_member(),
        Member::answering_with(|_| ok_response("")),
        Member::answering_with(|_| ok_response("")),
    ];
    let members = servers.each_ref().map(Member::address);
    let (bad, balancer) = (members[0], start(&members));
    for (group, field, cause, words) in [
        (
            "web",
            "x-fails: wire",
            "failures_in_a_row",
            " failures in a row",
        ),
        (
            "app",
            "x-fails: code",
            "failure_share",
            " % of its requests failed, 0 % of those",
        ),
    ] {
        let ejection = eject(&balancer, group, bad, field);
        let left = ejection["seconds_left"].as_f64().unwrap();
        assert!(left > 0.0 && left <= 3600.0, "{ejection}");
        assert_eq!(
            (&ejection["cause"], &ejection["by"]),
            (&cause.into(), &Value::Null)
        );
        let why = ejection["why"].as_str().unwrap();
        assert!(why.contains(words), "{ejection}");
        balancer.wait_for_log(&format!("member is ejected for 3600s: {why}"));

        let members = balancer.run_ctl(&format!("members {group}")).unwrap();
        assert!(members.contains(&format!("min left: {why}")), "{members}");
        let admin = balancer.admin_address().to_string();
        let top = run_evenkeel(&["top", "--once", "--admin", &admin]).unwrap();
        assert!(top.contains(&format!("min left: {why}")), "{top}");
        let explained = balancer.run_ctl(&format!("explain {group}")).unwrap();
        assert!(
            explained.contains(&format!(" s more: {why}")),
            "{explained}"
        );
        let series = format!(
            "evenkeel_member_ejection_seconds{{group=\"{group}\",member=\"{bad}\",cause=\"{cause}\"}}"
        );
        assert!(balancer.read_metric(&series) > Some(0.0), "{series}");
    }
}

#[test]
fn a_command_ends_an_ejection() {
    let servers = [bad_member(), Member::answering_with(|_| ok_response(""))];
    let members = servers.each_ref().map(Member::address);
    let (bad, balancer) = (members[0], start(&members));
    eject(&balancer, "web", bad, "x-fails: wire");
    // That it is ready again does not end it, and is said.
    let said = balancer.run_ctl(&format!("ready web {bad}")).unwrap();
    assert!(said.contains("no new traffic yet: ejected"), "{said}");
    assert!(said.contains(&format!("uneject web {bad}")), "{said}");
    assert_eq!(balancer.member_status("web", bad)["state"], "ejected");

    let said = balancer.run_ctl(&format!("uneject web {bad}")).unwrap();
    assert!(said.contains("is not ejected"), "{said}");
    let member = balancer.member_status("web", bad);
    assert!(member["ejection"].is_null(), "{member}");
    assert_eq!(member["reasons"], Value::Array(Vec::new()), "{member}");
    servers[0].seen_events();
    wait_until("it gets requests", || {
        ask(&balancer, "web", "x-is: well");
        let mut seen = servers[0].seen_events().into_iter();
        seen.any(|seen| matches!(seen, Seen::Request(..)))
    });
    assert_eq!(
        balancer
            .run_ctl(&format!("ready web {bad}"))
            .unwrap()
            .matches(';')
            .count(),
        0
    );
    balancer.wait_for_log("an administrator has ended the ejection");
    let audit = balancer.admin_json("/v1/audit").to_string();
    assert!(audit.contains("uneject"), "{audit}");
    let refused = balancer.run_ctl("uneject web 192.0.2.9:1").unwrap_err();
    assert!(refused.contains(&bad.to_string()), "{refused}");
}
