//! Mirroring: copies of requests for a second group, of which clients notice nothing.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking.

use std::net::SocketAddr;

use evenkeel_e2e::balancer::{Balancer, run_evenkeel};
use evenkeel_e2e::folder::Folder;
use evenkeel_e2e::member::{Member, ok_response};
use evenkeel_e2e::process::{are_installed, run_curl};
use evenkeel_e2e::server::{self, Server};
use evenkeel_e2e::tls::{Key, make_certificate};
use evenkeel_e2e::wait_until;

/// A rule with a member of its own whose requests are copied to group `second`.
fn config(
    first: SocketAddr,
    second: &[SocketAddr],
    mirror: &str,
    http: &str,
    group: &str,
) -> String {
    let second: Vec<_> = second
        .iter()
        .map(|member| format!("\"{member}\""))
        .collect();
    let second = second.join(", ");
    format!(
        "workers = 2\n[admin]\nlisten = \"127.0.0.1:0\"\n[rule.web]\nlisten = \"127.0.0.1:0\"\n\
         members = [\"{first}\"]\n[rule.web.http]\nmirror = {{ group = \"second\", {mirror} }}\n{http}\n\
         [group.second]\nmembers = [{second}]\n{group}\n"
    )
}

/// The two protocols of clients, as options of curl.
const CLIENTS: [&str; 2] = ["--http1.1", "--http2-prior-knowledge"];

fn ask(balancer: &Balancer, client: &str, target: &str, more: &[&str]) -> String {
    let url = format!("http://{}{target}", balancer.address("web"));
    let mut arguments = vec![client, "--fail", "-H", "Expect:"];
    arguments.extend(more);
    arguments.push(&url);
    run_curl(&arguments)
}

fn copies(balancer: &Balancer, result: &str) -> u64 {
    balancer.rule_count("mirrored_total", &format!("result=\"{result}\""))
}

fn skipped(balancer: &Balancer, reason: &str) -> u64 {
    balancer.rule_count("mirror_skipped_total", &format!("reason=\"{reason}\""))
}

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 % 251) as u8).collect()
}

#[test]
fn a_copy_is_the_request_as_the_member_gets_it_and_is_marked() {
    if !are_installed(&["curl"]) {
        return;
    }
    let (first, second) = (
        Member::echoing_targets(),
        Member::answering_with(|_| ok_response("nobody sees this")),
    );
    let http = "[[rule.web.routes]]\npath = \"/old/*\"\nrewrite_prefix = \"/new\"\n\
                request_fields = { set = { \"X-Route\" = \"{path}\" } }";
    let mirror = "percent = 100";
    let text = config(first.address(), &[second.address()], mirror, http, "");
    let balancer = Balancer::start(&text);
    let folder = Folder::new();
    // One that comes with its head, one that is joined to it, and one that is passed on in parts.
    for len in [0, 100, 20_000, 60_000] {
        let body = bytes(len);
        let file = folder.write("body", &body);
        let data = format!("@{}", file.display());
        for client in CLIENTS {
            for chunked in [false, true] {
                let mut more = vec!["-H", "X-Evenkeel-Mirror: 1", "-H", "x_evenkeel_mirror: 1"];
                if len > 0 {
                    more.extend(["--data-binary", &data]);
                }
                if chunked && len > 0 {
                    more.extend(["-H", "Transfer-Encoding: chunked"]);
                }
                let said = ask(&balancer, client, "/old/x?y", &more);
                assert_eq!(said, "/new/x?y", "{client} {len}");
                let (_, got) = first.next_request();
                let (_, copy) = second.next_request();
                assert_eq!(got.values("x-evenkeel-mirror"), [""; 0]);
                assert_eq!(got.values("x_evenkeel_mirror"), [""; 0]);
                assert_eq!(copy.values("x-evenkeel-mirror"), ["1"]);
                assert_eq!(copy.start_line(), got.start_line());
                for field in ["host", "x-route", "x-forwarded-for", "transfer-encoding"] {
                    assert_eq!(copy.values(field), got.values(field), "{field}");
                }
                assert!(got.body == body, "{client} {len}");
                assert!(copy.body == body, "{client} {len} {chunked}");
            }
        }
    }
    wait_until("all copies are sent", || copies(&balancer, "sent") == 16);
    assert_eq!(copies(&balancer, "failed"), 0);
    // The group's own record has them.
    wait_until("the second group counts", || {
        let member = balancer.member_status("second", second.address());
        member["in_flight"] == 0
    });
}

#[test]
fn copies_reach_servers_over_http1_http2_and_tls() {
    if !are_installed(&["nginx", "curl"]) {
        return;
    }
    let folder = Folder::new();
    make_certificate(&folder, "authority", Key::Ecdsa, "DNS:authority", None);
    make_certificate(&folder, "m", Key::Ecdsa, "DNS:m.example", Some("authority"));
    let file = folder.join("m.pem").display().to_string();
    let secured = format!("ssl_certificate {file};\nssl_certificate_key {file};");
    let trust = format!(
        "member_tls = {{ ca_file = {:?}, server_name = \"m.example\" }}",
        folder.join("authority.crt")
    );
    for (listen, protocol) in [("", "http1"), ("http2", "h2"), ("ssl http2", "auto")] {
        // With TLS only the second group has it.
        let (first, second, group) = match listen {
            "" => (Server::start_nginx(None), Server::start_nginx(None), ""),
            "http2" => (Server::nginx_http2(), Server::nginx_http2(), ""),
            _ => {
                let second = Server::nginx_secured(listen, &secured);
                (Server::start_nginx(None), second, &*trust)
            }
        };
        let http = format!("member_protocol = \"{protocol}\"");
        let mirror = "max_body = \"1MiB\"";
        let text = config(first.address(), &[second.address()], mirror, &http, group);
        let balancer = Balancer::start(&text);
        for client in CLIENTS {
            // More than what is spliced otherwise.
            for len in [5_000, 300_000] {
                let name = format!("{len}{client}");
                let file = folder.write("body", bytes(len));
                let target = format!("/dav/{name}");
                let uploads = ["-T", &file.display().to_string()];
                ask(&balancer, client, &target, &uploads);
                assert!(first.uploaded(&name) == bytes(len), "{client} {len}");
                wait_until("the copy is there", || {
                    let log = second.access_log();
                    log.iter().any(|line| line.contains(&name))
                });
                assert!(second.uploaded(&name) == bytes(len), "{client} {len}");
            }
        }
        assert_eq!(copies(&balancer, "failed"), 0);
    }
}

#[test]
fn clients_notice_nothing_of_members_that_hang_or_are_dead() {
    if !are_installed(&["curl"]) {
        return;
    }
    let first = Member::echoing_targets();
    // It takes requests, and never answers.
    let hangs = Member::start(|script, mut wire| while script.read_request(&mut wire).is_some() {});
    let mirror = "max_concurrent = 2";
    let text = config(first.address(), &[hangs.address()], mirror, "", "");
    let balancer = Balancer::start(&text);
    for number in 0..10 {
        for client in CLIENTS {
            let target = format!("/{number}");
            assert_eq!(ask(&balancer, client, &target, &[]), target);
        }
    }
    // Each worker has as many under way as it may.
    let (sent, busy) = (copies(&balancer, "sent"), skipped(&balancer, "busy"));
    assert!((2..=4).contains(&sent), "{sent}");
    assert_eq!(sent + busy, 20);
    for _ in 0..sent {
        hangs.next_request();
    }
    // They are in the record of the second group, and of no other one.
    let second = balancer.member_status("second", hangs.address());
    assert_eq!(second["in_flight"], sent, "{second}");

    // Nobody listens there.
    let dead = server::address();
    let text = config(first.address(), &[dead], "percent = 100", "", "");
    balancer.reconfigure(&text);
    for client in CLIENTS {
        for _ in 0..5 {
            assert_eq!(ask(&balancer, client, "/x", &[]), "/x");
        }
    }
    wait_until("copies to nobody have failed", || {
        let out = skipped(&balancer, "no_member");
        copies(&balancer, "failed") >= 1 && copies(&balancer, "sent") - sent + out == 10
    });
    assert_eq!(balancer.admin_get("/readyz").second_word(), "200");

    // Off, and on again.
    let before = copies(&balancer, "sent");
    let to = |percent: &str| {
        let mirror = format!("percent = {percent}");
        let live = Member::echoing_targets();
        let text = config(first.address(), &[live.address()], &mirror, "", "");
        balancer.reconfigure(&text);
        assert_eq!(ask(&balancer, CLIENTS[0], "/y", &[]), "/y");
        live
    };
    to("0");
    assert_eq!(copies(&balancer, "sent"), before);
    assert_eq!(to("100").next_request().1.second_word(), "/y");
}

#[test]
fn what_is_not_copied_is_counted_by_reason() {
    if !are_installed(&["curl"]) {
        return;
    }
    let (first, second) = (Member::echoing_targets(), Member::echoing_targets());
    let mirror = "max_body = 1000";
    let text = config(first.address(), &[second.address()], mirror, "", "");
    let balancer = Balancer::start(&text);
    let folder = Folder::new();
    let file = folder.write("body", bytes(1001));
    let data = format!("@{}", file.display());
    for client in CLIENTS {
        for more in [&[][..], &["-H", "Transfer-Encoding: chunked"]] {
            let mut more = more.to_vec();
            more.extend(["--data-binary", &data]);
            assert_eq!(ask(&balancer, client, "/large", &more), "/large");
        }
    }
    assert_eq!(skipped(&balancer, "too_large"), 4);

    let mut wire = balancer.connect();
    wire.send(
        "POST /waits HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\nabc",
    );
    assert_eq!(wire.read_response().text(), "/waits");
    assert_eq!(skipped(&balancer, "unsuited"), 1);

    wire.send("POST /half HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n");
    drop(wire);
    wait_until("what has no end is not copied", || {
        skipped(&balancer, "incomplete") == 1
    });

    let drain = format!("drain second {}", second.address());
    balancer.run_ctl(&drain).unwrap();
    assert_eq!(ask(&balancer, CLIENTS[0], "/x", &[]), "/x");
    assert_eq!(skipped(&balancer, "no_member"), 1);
    // The rule is as ready as those who answer its clients.
    assert_eq!(balancer.admin_get("/readyz").second_word(), "200");
    assert_eq!(second.seen_events(), []);
    let status = balancer.run_ctl("status").unwrap();
    let rule = status
        .lines()
        .find(|line| line.starts_with("web "))
        .unwrap();
    assert!(rule.contains("second"), "{rule}");
    let said = balancer.run_ctl("explain second").unwrap();
    assert!(
        said.contains("copies of requests of rule \"web\""),
        "{said}"
    );
}

#[test]
fn a_share_is_copied_of_what_a_route_says() {
    let (first, second) = (Member::echoing_targets(), Member::echoing_targets());
    let routes = "[[rule.web.routes]]\npath = \"/all\"\nmirror = { group = \"second\" }\n\
                  [[rule.web.routes]]\npath = \"/none\"\n\
                  mirror = { group = \"second\", percent = 0 }\n\
                  [[rule.web.routes]]\npath = \"/second\"\ngroup = \"second\"";
    let half = "percent = 50";
    let text = config(first.address(), &[second.address()], half, routes, "");
    let balancer = Balancer::start(&text);
    let mut wire = balancer.connect();
    let mut copied = |path: &str, number: usize| {
        let before = copies(&balancer, "sent");
        for _ in 0..number {
            wire.send(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n"));
            assert_eq!(wire.read_response().text(), path);
        }
        copies(&balancer, "sent") + skipped(&balancer, "busy") - before
    };
    assert_eq!(copied("/all", 20), 20);
    assert_eq!(copied("/none", 20), 0);
    // Those who get the requests get no copies of them.
    assert_eq!(copied("/second", 20), 0);
    let half = copied("/", 400);
    // Beyond that it is once in 10^23.
    assert!((100..=300).contains(&half), "{half}");
}

#[test]
fn several_groups_get_copies_that_do_not_wait_for_each_other() {
    if !are_installed(&["curl"]) {
        return;
    }
    let (first, third) = (Member::echoing_targets(), Member::echoing_targets());
    // It takes requests, and never answers.
    let hangs = Member::start(|script, mut wire| while script.read_request(&mut wire).is_some() {});
    let balancer = Balancer::start(&format!(
        "workers = 1\n[admin]\nlisten = \"127.0.0.1:0\"\n[rule.web]\nlisten = \"127.0.0.1:0\"\n\
         members = [\"{}\"]\n[[rule.web.http.mirror]]\ngroup = \"hangs\"\nmax_concurrent = 2\nmax_body = 1000\n\
         [[rule.web.http.mirror]]\ngroup = \"third\"\n[[rule.web.http.mirror]]\ngroup = \"third\"\npercent = 0\n\
         [group.hangs]\nmembers = [\"{}\"]\n[group.third]\nmembers = [\"{}\"]\n",
        first.address(),
        hangs.address(),
        third.address()
    ));
    let folder = Folder::new();
    let mut asked = 0;
    // One that comes with its head, one that is joined to it, and some that are too large for one of the groups.
    for len in [0, 1000, 1001, 20_000, 60_000] {
        let body = bytes(len);
        let file = folder.write("body", &body);
        let data = format!("@{}", file.display());
        for client in CLIENTS {
            let more = ["--data-binary", &data];
            let more = if len > 0 { &more[..] } else { &[] };
            assert_eq!(ask(&balancer, client, "/x", more), "/x");
            asked += 1;
            let (_, copy) = third.next_request();
            assert!(copy.body == body, "{client} {len}");
            assert_eq!(copy.values("x-evenkeel-mirror"), ["1"]);
            if asked <= 2 {
                let (_, other) = hangs.next_request();
                assert!(other.body == body, "{client} {len}");
                assert_eq!(other.start_line(), copy.start_line());
            }
        }
    }
    assert_eq!(skipped(&balancer, "too_large"), 6);
    assert_eq!(skipped(&balancer, "busy"), 2);
    assert_eq!(copies(&balancer, "sent"), asked + 2);
    let status = balancer.run_ctl("status").unwrap();
    let rule = status
        .lines()
        .find(|line| line.starts_with("web "))
        .unwrap();
    assert!(rule.contains("hangs") && rule.contains("third"), "{rule}");
}

#[test]
fn what_is_wrong_with_a_mirror() {
    let folder = Folder::new();
    let complaint = |mirror: &str, http: &str| {
        let address = "127.0.0.1:1".parse().unwrap();
        let text = config(address, &[address], mirror, http, "");
        let file = folder.write("evenkeel.toml", text);
        run_evenkeel(&["check", &file.display().to_string()])
    };
    for (mirror, http, part) in [
        ("percent = 101", "", "rule.web.http.mirror.percent"),
        ("percent = -1", "", "from 0 to 100"),
        ("max_body = \"1GiB\"", "", "rule.web.http.mirror.max_body"),
        (
            "",
            "[[rule.web.routes]]\nmirror = { group = \"scond\" }",
            "rule.web.routes[0].mirror: unknown group, did you mean \"second\"?",
        ),
        (
            "",
            "[[rule.web.routes]]\ngroup = \"second\"\nmirror = { group = \"second\" }",
            "rule.web.routes[0].mirror: `group` is the group of the requests themselves",
        ),
        (
            "",
            "[[rule.web.routes]]\nmirror = { group = \"web\" }",
            "rule.web.routes[0].mirror: `group` is the group of the requests themselves",
        ),
        (
            "",
            "[[rule.web.routes]]\nmirror = { percent = 5 }",
            "rule.web.routes[0].mirror: `group` is missing",
        ),
        (
            "",
            "[[rule.web.routes]]\nanswer = {}\nmirror = { group = \"second\" }",
            "rule.web.routes[0].mirror: has no effect",
        ),
    ] {
        let said = complaint(mirror, http).unwrap_err();
        assert!(said.contains(part), "{mirror} {http}: {said}");
    }
    complaint("percent = 0.01", "").unwrap();
}
