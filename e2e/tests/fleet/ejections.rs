//! Two balancers as processes: one has seen a member fail and says so, and the other one goes by that
//! unless its own requests say something else.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking.

use std::net::SocketAddr;
use std::path::Path;

use evenkeel_e2e::balancer::{Balancer, among_others};
use evenkeel_e2e::folder::Folder;
use evenkeel_e2e::member::{Member, Seen, ok_response};
use evenkeel_e2e::process::Signal;
use evenkeel_e2e::wait_until;
use evenkeel_e2e::wire::Wire;
use serde_json::Value;

/// A request with this in its head fails at a member that is bad.
const FAILS: &str = "x-fails: yes";

/// Two groups with the same members. What is ejected stays so for an hour.
fn configuration(
    name: &str,
    join: Option<SocketAddr>,
    keys: &Path,
    members: &[SocketAddr],
) -> String {
    let members: Vec<String> = members.iter().map(|at| format!("\"{at}\"")).collect();
    let rule = |name: &str| {
        format!(
            "[rule.{name}]\nlisten = \"127.0.0.1:0\"\nprotocol = \"http\"\nstrategy = \"round_robin\"\n\
             connection_failure_limit = 2\n\
             ejection = {{ window = \"60s\", time = \"1h\", max_time = \"1h\" }}\n\
             members = [{}]\n",
            members.join(", ")
        )
    };
    format!(
        "{}{}{}",
        among_others("127.0.0.1", name, join, keys),
        rule("web"),
        rule("app")
    )
}

struct Rig {
    folder: Folder,
    /// The first one is bad.
    servers: [Member; 3],
    a: Balancer,
    b: Balancer,
}

fn rig() -> Rig {
    let folder = Folder::new();
    let keys = folder.write_private("keys", "1:000102030405060708090a0b0c0d0e0f");
    let bad = Member::start(|script, mut wire| {
        while let Some(request) = script.read_request(&mut wire) {
            let fails = !request.values("x-fails").is_empty();
            let answer = if fails {
                "NONSENSE\r\n\r\n".into()
            } else {
                ok_response("bad")
            };
            if !wire.try_send(answer) || fails {
                break;
            }
        }
    });
    let servers = [
        bad,
        Member::answering_with(|_| ok_response("")),
        Member::answering_with(|_| ok_response("")),
    ];
    let members = servers.each_ref().map(Member::address);
    let a = Balancer::start(&configuration("lb-a", None, &keys, &members));
    let address = a.admin_json("/v1/fleet")["address"]
        .as_str()
        .unwrap()
        .parse();
    let b = Balancer::start(&configuration(
        "lb-b",
        Some(address.unwrap()),
        &keys,
        &members,
    ));
    wait_until("both know each other", || {
        [&a, &b]
            .iter()
            .all(|one| one.admin_json("/v1/fleet")["balancers"][0]["state"] == "up")
    });
    Rig {
        folder,
        servers,
        a,
        b,
    }
}

impl Rig {
    fn bad(&self) -> SocketAddr {
        self.servers[0].address()
    }

    /// Returns why and until when a balancer has the bad member ejected.
    fn ejection(&self, at: &Balancer, group: &str) -> Value {
        at.member_status(group, self.bad())["ejection"].clone()
    }

    /// A's clients see the bad one fail, until it is out there.
    fn fail_at_a(&self, group: &str) {
        wait_until("it is ejected for its own requests", || {
            ask(&self.a, group, FAILS);
            let ejection = self.ejection(&self.a, group);
            ejection["seconds_left"].as_f64() > Some(0.0) && ejection["by"].is_null()
        });
    }

    fn is_out_by_word(&self, group: &str) -> bool {
        self.ejection(&self.b, group)["by"] == "lb-a"
    }

    /// Returns the number of requests that came to the bad member since the last call.
    fn came(&self) -> usize {
        let seen = self.servers[0].seen_events().into_iter();
        seen.filter(|seen| matches!(seen, Seen::Request(..)))
            .count()
    }
}

fn ask(at: &Balancer, group: &str, header: &str) {
    let mut wire = Wire::connect(at.address(group));
    wire.send(format!(
        "GET / HTTP/1.1\r\nHost: x\r\n{header}\r\nConnection: close\r\n\r\n"
    ));
    wire.read_response();
}

#[test]
fn a_balancer_without_requests_of_its_own_goes_by_the_word_of_another() {
    let rig = rig();
    rig.fail_at_a("web");
    wait_until("the other one has it out, too", || {
        rig.is_out_by_word("web")
    });
    let ejection = rig.ejection(&rig.b, "web");
    let count = |what: &str| ejection[what].as_u64().unwrap();
    assert!(
        count("failures") >= 2 && count("requests") >= count("failures"),
        "{ejection}"
    );
    let left = ejection["seconds_left"].as_f64().unwrap();
    assert!(left > 0.0 && left <= 3600.0, "{ejection}");
    let member = rig.b.member_status("web", rig.bad());
    assert_eq!(member["state"], "ejected");
    assert!(rig.ejection(&rig.b, "app").is_null(), "another group");

    rig.came();
    (0..12).for_each(|_| ask(&rig.b, "web", "x-is: well"));
    assert_eq!(rig.came(), 0, "nothing is sent there");
    let shown = rig.b.run_ctl("members web").unwrap();
    assert!(shown.contains("ejected by lb-a"), "{shown}");
    let log = rig.b.log();
    assert!(
        log.contains("balancer lb-a has ejected the member"),
        "{log}"
    );
    let metric = |series: &str| rig.b.read_metric(series);
    assert_eq!(
        metric("evenkeel_group_ejected{group=\"web\",by=\"others\"}"),
        Some(1.0)
    );
    assert_eq!(
        metric("evenkeel_group_ejected{group=\"web\",by=\"own\"}"),
        Some(0.0)
    );
    assert_eq!(metric("evenkeel_fleet_ejections"), Some(1.0));

    // The one that has ejected it takes that back long before the hour is over.
    let members = rig.servers.each_ref().map(Member::address);
    let keys = rig.folder.join("keys");
    rig.a
        .reconfigure(&configuration("lb-a", None, &keys, &members[1..]));
    wait_until("it is back", || rig.ejection(&rig.b, "web").is_null());
    assert!(
        rig.b.member_status("web", rig.bad())["reasons"]
            .as_array()
            .unwrap()
            .is_empty()
    );
    wait_until("it gets requests", || {
        ask(&rig.b, "web", "x-is: well");
        rig.came() > 0
    });
}

#[test]
fn a_command_ends_an_ejection_by_the_word_of_another() {
    let rig = rig();
    rig.fail_at_a("web");
    wait_until("the other one has it out, too", || {
        rig.is_out_by_word("web")
    });
    assert_eq!(rig.ejection(&rig.b, "web")["cause"], "fleet");
    let shown = rig.b.run_ctl("members web").unwrap();
    assert!(
        shown.contains("min left: balancer lb-a has ejected the member"),
        "{shown}"
    );
    rig.b
        .run_ctl(&format!("uneject web {}", rig.bad()))
        .unwrap();
    // What is heard later is heeded, and what was known stays without effect.
    rig.fail_at_a("app");
    wait_until("it is out in the other group", || rig.is_out_by_word("app"));
    assert!(rig.ejection(&rig.b, "web").is_null());
    assert!(
        !rig.ejection(&rig.a, "web").is_null(),
        "at the other one it stays"
    );
    rig.came();
    wait_until("it gets requests", || {
        ask(&rig.b, "web", "x-is: well");
        rig.came() > 0
    });
}

#[test]
fn a_balancer_whose_own_requests_succeed_does_not() {
    let rig = rig();
    // One request each that the bad one has answered well.
    wait_until("it has answered", || {
        ask(&rig.b, "web", "x-is: well");
        rig.came() > 0
    });
    rig.fail_at_a("web");
    wait_until("the other one has heard of it", || {
        rig.b.admin_json("/v1/fleet")["balancers"][0]["ejections"] == 1
    });
    // What is heard later is heeded where nothing speaks against it, so the first one has been seen.
    rig.fail_at_a("app");
    wait_until("it is out in the other group", || rig.is_out_by_word("app"));
    let member = rig.b.member_status("web", rig.bad());
    assert!(member["ejection"].is_null(), "{member}");
    assert!(member["reasons"].as_array().unwrap().is_empty(), "{member}");
    rig.came();
    wait_until("it gets requests", || {
        ask(&rig.b, "web", "x-is: well");
        rig.came() > 0
    });
}

#[test]
fn what_a_balancer_has_said_counts_when_it_is_gone() {
    let rig = rig();
    rig.fail_at_a("web");
    wait_until("the other one has it out, too", || {
        rig.is_out_by_word("web")
    });
    rig.a.signal(Signal::KILL);
    wait_until("it is gone", || {
        rig.b.admin_json("/v1/fleet")["balancers"][0]["state"] == "gone"
    });
    assert!(rig.is_out_by_word("web"), "{}", rig.ejection(&rig.b, "web"));
    rig.came();
    (0..12).for_each(|_| ask(&rig.b, "web", "x-is: well"));
    assert_eq!(rig.came(), 0);
}
