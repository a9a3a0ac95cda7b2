//! TLS between the balancer and members: nginx, Apache httpd and openssl as members.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking.

use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Stdio};

use evenkeel_e2e::balancer::Balancer;
use evenkeel_e2e::folder::Folder;
use evenkeel_e2e::member::{Member, ok_response};
use evenkeel_e2e::process::{are_installed, program, run_curl};
use evenkeel_e2e::script::Script;
use evenkeel_e2e::server::{self, Server};
use evenkeel_e2e::tls::{
    Key, make_certificate, make_expired_certificate, make_revocation_list, write_secret,
};
use evenkeel_e2e::wait_until;
use evenkeel_e2e::wire::Wire;
use serde_json::Value;

const PYTHON: &str = "/usr/bin/python3";

/// An authority with its certificates, in a folder.
struct Authority(Folder);

impl Authority {
    fn new() -> Self {
        let folder = Folder::new();
        make_certificate(&folder, "authority", Key::Ecdsa, "DNS:authority", None);
        Authority(folder)
    }

    fn file(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }

    /// Signs a certificate for `names`.
    fn sign(&self, name: &str, names: &str) {
        make_certificate(&self.0, name, Key::Ecdsa, names, Some("authority"));
    }

    /// A certificate for `names`, as nginx is told of it.
    fn nginx(&self, name: &str, names: &str) -> String {
        self.sign(name, names);
        nginx_lines(&self.file(&format!("{name}.pem")))
    }

    /// An nginx with a certificate for `m.example`.
    fn member(&self, listen: &str) -> Server {
        Server::nginx_secured(listen, &self.nginx("m", "DNS:m.example"))
    }

    /// Returns the lines of a group that trusts the authority, and expects that name.
    fn trust(&self) -> String {
        let file = self.file("authority.crt");
        format!("ca_file = {file:?}\nserver_name = \"m.example\"")
    }

    /// Returns the lines of such a group that has a certificate of its own.
    fn trust_as(&self, name: &str) -> String {
        let file = self.file(&format!("{name}.pem"));
        format!("{}\ncertificate = {file:?}", self.trust())
    }
}

fn nginx_lines(file: &str) -> String {
    let versions = "ssl_protocols TLSv1.2 TLSv1.3;";
    format!("ssl_certificate {file};\nssl_certificate_key {file};\n{versions}")
}

fn can_run() -> bool {
    are_installed(&["openssl", "nginx", "curl"])
}

fn config(members: &[SocketAddr], rule: &str, tls: &str) -> String {
    let members: Vec<_> = members.iter().map(|m| format!("\"{m}\"")).collect();
    let members = members.join(", ");
    format!(
        "workers = 1\n[admin]\nlisten = \"127.0.0.1:0\"\n[rule.web]\n\
         listen = \"127.0.0.1:0\"\nmembers = [{members}]\n{rule}\n\
         [rule.web.member_tls]\n{tls}\n"
    )
}

fn get(balancer: &Balancer, path: &str) -> (u16, String) {
    let mut wire = Wire::connect(balancer.address("web"));
    wire.send(format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n"));
    let answer = wire.read_response();
    (
        answer.second_word().parse().unwrap(),
        answer.text().to_owned(),
    )
}

/// A counter of the group `web`.
fn count(balancer: &Balancer, name: &str, label: &str) -> u64 {
    let text = balancer.admin_get("/metrics");
    let line = format!("{name}{{group=\"web\",{label}}} ");
    let mut lines = text.text().lines();
    let value = lines.find_map(|known| known.strip_prefix(&line));
    value.map_or(0, |value| value.parse().unwrap())
}

fn handshakes(balancer: &Balancer, kind: &str) -> u64 {
    let name = "evenkeel_group_tls_handshakes_total";
    count(balancer, name, &format!("kind=\"{kind}\""))
}

fn failures(balancer: &Balancer, cause: &str) -> u64 {
    let name = "evenkeel_group_tls_failures_total";
    count(balancer, name, &format!("cause=\"{cause}\""))
}

#[test]
fn requests_pass_over_connections_that_are_verified_and_kept() {
    if !can_run() {
        return;
    }
    let authority = Authority::new();
    let member = authority.member("ssl");
    let body = "0123456789".repeat(300_000);
    member.put_document("long", &body);
    let balancer = Balancer::start(&config(&[member.address()], "", &authority.trust()));
    for _ in 0..5 {
        let (status, text) = get(&balancer, "/tls");
        assert_eq!((status, &*text), (200, "TLSv1.3|.|HTTP/1.1|NONE|m.example"));
    }
    assert_eq!(
        handshakes(&balancer, "full"),
        1,
        "the connection is used again"
    );
    assert!(get(&balancer, "/files/long").1 == body);
    balancer.folder().write("body", &body);
    let file = format!("@{}", balancer.folder().join("body").display());
    let url = format!("http://{}/dav/up", balancer.address("web"));
    run_curl(&["-X", "PUT", "--data-binary", &file, &url]);
    assert!(member.uploaded("up") == body.as_bytes());
    // TLS 1.2, and the same with TLS in front.
    let old = authority.nginx("o", "DNS:m.example");
    let old = old.replace("TLSv1.2 TLSv1.3", "TLSv1.2");
    let old = Server::nginx_secured("ssl", &old);
    balancer.reconfigure(&config(&[old.address()], "", &authority.trust()));
    for _ in 0..2 {
        assert_eq!(
            get(&balancer, "/tls").1,
            "TLSv1.2|.|HTTP/1.1|NONE|m.example"
        );
    }
    let strict = format!("{}\nmin_version = \"1.3\"", authority.trust());
    balancer.reconfigure(&config(&[old.address()], "", &strict));
    assert_eq!(get(&balancer, "/tls").0, 502);
    assert_eq!(failures(&balancer, "incompatible"), 1);
}

#[test]
fn sessions_are_resumed_with_a_member() {
    if !can_run() {
        return;
    }
    let authority = Authority::new();
    for versions in ["TLSv1.2", "TLSv1.3"] {
        let lines = authority.nginx("m", "DNS:m.example");
        let lines = lines.replace("TLSv1.2 TLSv1.3", versions);
        let lines = format!("{lines}\nssl_session_cache shared:s:1m;");
        let member = Server::nginx_secured("ssl", &lines);
        let rule = "[rule.web.http]\npool_idle_connections = 0";
        let start = |more: &str| {
            let tls = format!("{}\n{more}", authority.trust());
            Balancer::start(&config(&[member.address()], rule, &tls))
        };
        let balancer = start("");
        let seen: Vec<_> = (0..4).map(|_| get(&balancer, "/tls").1).collect();
        assert!(seen[0].starts_with(&format!("{versions}|.|")), "{seen:?}");
        for next in &seen[1..] {
            assert!(next.starts_with(&format!("{versions}|r|")), "{seen:?}");
        }
        assert_eq!(handshakes(&balancer, "full"), 1);
        assert_eq!(handshakes(&balancer, "resumed"), 3);
        // Nor does a reload that changes nothing begin anew.
        balancer.reconfigure(&(config(&[member.address()], rule, &authority.trust()) + "# more\n"));
        assert!(get(&balancer, "/tls").1.contains("|r|"));
        let balancer = start("resume = false");
        for _ in 0..2 {
            assert!(get(&balancer, "/tls").1.contains("|.|"));
        }
    }
}

#[test]
fn a_member_that_cannot_be_trusted_is_not_used_and_it_is_said_why() {
    if !can_run() {
        return;
    }
    let authority = Authority::new();
    make_expired_certificate(&authority.0, "old", "DNS:m.example", "authority");
    make_certificate(&authority.0, "own", Key::Ecdsa, "DNS:m.example", None);
    let other = authority.nginx("other", "DNS:other.example");
    let stranger = Authority::new();
    for (lines, cause, why) in [
        (
            nginx_lines(&authority.file("old.pem")),
            "expired",
            "has expired, on Jan  1 00:00:00 2021",
        ),
        (
            other,
            "wrong_name",
            "is for other.example, and not for m.example",
        ),
        (
            stranger.nginx("m", "DNS:m.example"),
            "untrusted",
            "authority.crt that has not signed it",
        ),
        (
            nginx_lines(&authority.file("own.pem")),
            "certificate",
            "is one of an authority (CA:TRUE)",
        ),
    ] {
        let bad = Server::nginx_secured("ssl", &lines);
        let good = authority.member("ssl");
        let rule = "strategy = \"round_robin\"";
        let members = [bad.address(), good.address()];
        let balancer = Balancer::start(&config(&members, rule, &authority.trust()));
        // Another member is tried.
        for _ in 0..4 {
            assert_eq!(get(&balancer, "/name").1, good.address().to_string());
        }
        assert!(
            failures(&balancer, cause) > 0,
            "{cause}: {}",
            balancer.log()
        );
        let name = format!("member={}", bad.address());
        wait_until(&format!("the log names {cause}"), || {
            let log = balancer.log();
            log.lines()
                .any(|line| line.contains(&name) && line.contains(why))
        });
        let explained = balancer.run_ctl("explain web").unwrap();
        assert!(explained.contains(why), "{explained}");
        // As it is said: nobody looks.
        balancer.reconfigure(&config(&[bad.address()], "", "verify = false"));
        assert_eq!(get(&balancer, "/name").1, bad.address().to_string());
        wait_until("the log warns", || {
            balancer.log().contains("are not verified")
        });
    }
}

#[test]
fn a_member_without_tls_is_told_from_one_that_is_away() {
    if !can_run() {
        return;
    }
    let authority = Authority::new();
    let plain = Server::start_nginx(None);
    let balancer = Balancer::start(&config(&[plain.address()], "", &authority.trust()));
    assert_eq!(get(&balancer, "/name").0, 502);
    assert!(failures(&balancer, "not_tls") > 0, "{}", balancer.log());
    // Without TLS it is what it was, and no connection of the one is taken for the other.
    let without = config(&[plain.address()], "", "").replace("[rule.web.member_tls]", "");
    balancer.reconfigure(&without);
    assert_eq!(get(&balancer, "/name").0, 200);
    balancer.reconfigure(&config(&[plain.address()], "", &authority.trust()));
    assert_eq!(get(&balancer, "/name").0, 502);
}

#[test]
fn members_may_ask_for_a_certificate() {
    if !can_run() {
        return;
    }
    let authority = Authority::new();
    authority.sign("me", "DNS:balancer");
    let clients = authority.file("authority.crt");
    let lines = authority.nginx("m", "DNS:m.example");
    let lines = format!("{lines}\nssl_client_certificate {clients};\nssl_verify_client optional;");
    let member = Server::nginx_secured("ssl", &lines);
    let own = authority.trust_as("me");
    let balancer = Balancer::start(&config(&[member.address()], "", &own));
    assert!(get(&balancer, "/tls").1.contains("|SUCCESS|"));
    let shown = balancer.run_ctl("certs").unwrap();
    assert!(shown.contains("group web  balancer  ECDSA"), "{shown}");
    balancer.reconfigure(&config(&[member.address()], "", &authority.trust()));
    // The connection of before is somebody else's.
    assert!(get(&balancer, "/tls").1.contains("|NONE|"));
}

#[test]
fn http2_is_spoken_as_it_is_agreed_on() {
    if !can_run() || !are_installed(&["apache2"]) {
        return;
    }
    let authority = Authority::new();
    let nginx = authority.member("ssl http2");
    let (only_http1, trust) = (authority.member("ssl"), authority.trust());
    let rule = |protocol: &str| format!("[rule.web.http]\nmember_protocol = {protocol:?}");
    let balancer = Balancer::start(&config(&[nginx.address()], &rule("h2"), &trust));
    for _ in 0..3 {
        assert_eq!(
            get(&balancer, "/tls").1,
            "TLSv1.3|.|HTTP/2.0|NONE|m.example"
        );
    }
    assert_eq!(handshakes(&balancer, "full"), 1);
    // Whoever can speak only HTTP/1.1 is no member then, and is with `auto`.
    let both = [nginx.address(), only_http1.address()];
    balancer.reconfigure(&config(&both[1..], &rule("h2"), &trust));
    assert_eq!(get(&balancer, "/tls").0, 502);
    assert!(failures(&balancer, "incompatible") > 0);
    let each = format!("strategy = \"round_robin\"\n{}", rule("auto"));
    balancer.reconfigure(&config(&both, &each, &trust));
    let mut seen: Vec<_> = (0..10).map(|_| get(&balancer, "/tls").1).collect();
    seen.sort();
    seen.dedup();
    let of = |http: &str| format!("TLSv1.3|.|{http}|NONE|m.example");
    assert_eq!(seen, [of("HTTP/1.1"), of("HTTP/2.0")]);
    let before = handshakes(&balancer, "full");
    for _ in 0..10 {
        assert_eq!(get(&balancer, "/name").0, 200);
    }
    assert_eq!(
        handshakes(&balancer, "full"),
        before,
        "connections are kept"
    );
    balancer.reconfigure(&config(&both, "", &trust));
    assert!((0..4).all(|_| get(&balancer, "/tls").1.contains("|HTTP/1.1|")));
    let file = authority.file("m.pem");
    let lines = format!("SSLCertificateFile {file}\nSSLCertificateKeyFile {file}");
    let apache = Server::apache_secured(&lines);
    let body = "0123456789".repeat(100_000);
    apache.put_document("long", &body);
    for (protocol, version) in [
        ("h2", "HTTP/2.0"),
        ("auto", "HTTP/2.0"),
        ("http1", "HTTP/1.1"),
    ] {
        balancer.reconfigure(&config(&[apache.address()], &rule(protocol), &trust));
        assert!(get(&balancer, "/files/long").1 == body);
        wait_until(&format!("Apache has seen {version}"), || {
            let log = apache.access_log();
            log.last().is_some_and(|line| line.contains(version))
        });
    }
}

#[test]
fn websockets_pass_to_members_that_may_choose_http2() {
    if !can_run() {
        return;
    }
    let behind = Member::start(|script, mut wire| {
        let Some(request) = script.read_request(&mut wire) else {
            return;
        };
        assert_eq!(request.values("upgrade"), ["websocket"]);
        wire.send(
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n",
        );
        while let Some(bytes) = wire.try_read_exact(8) {
            wire.send(bytes);
        }
    });
    let authority = Authority::new();
    let lines = authority.nginx("m", "DNS:m.example");
    let member = Server::nginx_secured_before(Some(behind.address()), "ssl http2", &lines);
    let rule = "[rule.web.http]\nmember_protocol = \"auto\"";
    let balancer = Balancer::start(&config(&[member.address()], rule, &authority.trust()));
    assert!(get(&balancer, "/tls").1.contains("|HTTP/2.0|"));
    let mut client = Wire::connect(balancer.address("web"));
    client.send(
        "GET /ws HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n",
    );
    assert_eq!(client.read_head().second_word(), "101");
    for word in ["12345678", "abcdefgh"] {
        client.send(word);
        assert_eq!(client.try_read_exact(8).unwrap(), word.as_bytes());
    }
    assert!(get(&balancer, "/tls").1.contains("|HTTP/2.0|"));
}

#[test]
fn a_tcp_rule_adds_tls_for_clients_that_have_none() {
    if !can_run() {
        return;
    }
    let authority = Authority::new();
    let member = authority.member("ssl");
    let tcp = "protocol = \"tcp\"";
    let balancer = Balancer::start(&config(&[member.address()], tcp, &authority.trust()));
    assert_eq!(
        get(&balancer, "/tls").1,
        "TLSv1.3|.|HTTP/1.1|NONE|m.example"
    );
    let body = "0123456789".repeat(300_000);
    member.put_document("long", &body);
    assert!(get(&balancer, "/files/long").1 == body);
    // In front and behind, with certificates of their own.
    make_certificate(
        balancer.folder(),
        "front",
        Key::Ecdsa,
        "DNS:a.example",
        None,
    );
    let front = "protocol = \"tcp\"\ntls = { certificates = \"front.pem\" }";
    balancer.reconfigure(&config(&[member.address()], front, &authority.trust()));
    let port = balancer.address("web").port();
    let authority_of_front = balancer.folder().join("front.crt").display().to_string();
    let connect = format!("a.example:{port}:127.0.0.1:{port}");
    let url = format!("https://a.example:{port}/tls");
    let answer = run_curl(&[
        "--cacert",
        &authority_of_front,
        "--connect-to",
        &connect,
        &url,
    ]);
    assert!(answer.ends_with("|HTTP/1.1|NONE|m.example"), "{answer}");
    // No byte gets to a member that is not trusted.
    let stranger = Authority::new();
    balancer.reconfigure(&config(&[member.address()], tcp, &stranger.trust()));
    let mut wire = Wire::connect(balancer.address("web"));
    // It may be cut before it has sent anything.
    wire.try_send("GET /name HTTP/1.1\r\nHost: x\r\n\r\n");
    assert!(wire.try_read_head().is_none());
    assert!(failures(&balancer, "untrusted") > 0);
}

#[test]
fn a_member_that_refuses_our_certificate_says_why() {
    if !can_run() {
        return;
    }
    let authority = Authority::new();
    authority.sign("me", "DNS:balancer");
    authority.sign("m", "DNS:m.example");
    let member = SServer::start(&authority);
    let balancer = Balancer::start(&config(&[member.address], "", &authority.trust()));
    assert_eq!(get(&balancer, "/").0, 502);
    wait_until("it is counted", || {
        failures(&balancer, "client_certificate") > 0
    });
    wait_until("it is logged", || {
        balancer.log().contains("the server wants a `certificate`")
    });
    let own = authority.trust_as("me");
    balancer.reconfigure(&config(&[member.address], "", &own));
    let (status, text) = get(&balancer, "/");
    assert_eq!(status, 200, "{text}");
    assert!(text.contains("s_server"), "{text}");
}

#[test]
fn a_request_goes_elsewhere_if_our_certificate_is_refused_after_the_handshake() {
    if !can_run() {
        return;
    }
    let authority = Authority::new();
    authority.sign("m", "DNS:m.example");
    for (alpn, listen, http) in [
        ("http/1.1", "ssl", ""),
        ("h2", "ssl http2", "http = { member_protocol = \"h2\" }"),
    ] {
        let refuses = SServer::start_with(&authority, &["-tls1_3", "-alpn", alpn]);
        let serves = authority.member(listen);
        let rule = format!("strategy = \"round_robin\"\n{http}");
        let members = [refuses.address, serves.address()];
        let balancer = Balancer::start(&config(&members, &rule, &authority.trust()));
        for number in 0..6 {
            let mut wire = Wire::connect(balancer.address("web"));
            wire.send("POST /name HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nhi");
            let answer = wire.read_response();
            assert_eq!(answer.second_word(), "200", "{alpn} {number}");
            assert_eq!(answer.text(), serves.address().to_string());
        }
        assert!(failures(&balancer, "client_certificate") > 0);
        // What is left is the reason.
        let balancer = Balancer::start(&config(&[refuses.address], http, &authority.trust()));
        let (status, text) = get(&balancer, "/name");
        assert_eq!(
            (status, &*text),
            (502, "There was no secure connection to the server.\n")
        );
    }
}

#[test]
fn files_are_read_again_when_they_change() {
    if !can_run() {
        return;
    }
    let (authority, stranger) = (Authority::new(), Authority::new());
    let member = authority.member("ssl");
    let trust = "ca_file = \"ca.crt\"\nserver_name = \"m.example\"";
    let own = authority.0.read("authority.crt");
    let config = config(&[member.address()], "", trust);
    let balancer = Balancer::start_with(&config, |folder| write_secret(folder, "ca.crt", &own));
    assert_eq!(get(&balancer, "/name").0, 200);
    // The connection that is kept was made with the file of before.
    write_secret(
        balancer.folder(),
        "ca.crt",
        stranger.0.read("authority.crt"),
    );
    wait_until("nobody is trusted", || get(&balancer, "/name").0 == 502);
    write_secret(balancer.folder(), "ca.crt", &own);
    wait_until("the member is trusted again", || {
        get(&balancer, "/name").0 == 200
    });
    let before = handshakes(&balancer, "full");
    write_secret(balancer.folder(), "ca.crt", "nothing");
    wait_until("what is wrong is said", || {
        let log = balancer.log();
        log.contains("ca.crt: holds no certificate") && log.contains("stays in use")
    });
    assert_eq!(get(&balancer, "/name").0, 200);
    assert_eq!(handshakes(&balancer, "full"), before);
}

#[test]
fn what_is_revoked_is_not_trusted() {
    if !can_run() {
        return;
    }
    let (authority, stranger) = (Authority::new(), Authority::new());
    let member = authority.member("ssl");
    make_certificate(&stranger.0, "other", Key::Ecdsa, "DNS:other", None);
    let none = make_revocation_list(&authority.0, "authority", &[]);
    let trust = format!("{}\ncrl_file = \"revoked.crl\"", authority.trust());
    let config = config(&[member.address()], "", &trust);
    let balancer =
        Balancer::start_with(&config, |folder| write_secret(folder, "revoked.crl", &none));
    let put = |list: &[u8]| write_secret(balancer.folder(), "revoked.crl", list);
    assert_eq!(get(&balancer, "/name").0, 200);
    // The connection that is kept was made with the list of before, and so was the session.
    for (folder, by, revoked, says) in [
        (&authority.0, "authority", &["m"][..], "has been revoked"),
        (&stranger.0, "other", &[], "has no list of an authority"),
        // One of the same name.
        (
            &stranger.0,
            "authority",
            &[],
            "cannot be used for the server's certificate",
        ),
    ] {
        let before = failures(&balancer, "revoked");
        put(&make_revocation_list(folder, by, revoked));
        wait_until("the member is not trusted", || {
            get(&balancer, "/name").0 == 502 && failures(&balancer, "revoked") > before
        });
        wait_until("it is said why", || {
            let status = balancer.run_ctl("explain web").unwrap_or_default();
            status.contains(says)
        });
        put(&none);
        wait_until("the member is trusted again", || {
            get(&balancer, "/name").0 == 200
        });
    }
    put(b"nothing");
    wait_until("what is wrong is said", || {
        let log = balancer.log();
        log.contains("revoked.crl: holds no list of revoked certificates")
            && log.contains("stays in use")
    });
    assert_eq!(get(&balancer, "/name").0, 200);
}

/// The only member.
fn only(balancer: &Balancer) -> Value {
    let status = balancer.status();
    let groups = status["groups"].as_array().unwrap();
    groups[0]["members"][0].clone()
}

/// Waits until the only member is so, and its last check has said that.
fn eventually_checked(balancer: &Balancer, state_is: &str, error: &str) {
    wait_until(&format!("{state_is}: {error}"), || {
        let member = only(balancer);
        let check = &member["check"];
        let found = check["error"].as_str().unwrap_or_default();
        let is_so = found.contains(error) && found.is_empty() == error.is_empty();
        member["state"] == state_is && check.is_object() && is_so
    });
}

#[test]
fn health_checks_speak_tls_and_say_what_is_wrong_with_a_certificate() {
    if !can_run() {
        return;
    }
    let authority = Authority::new();
    let member = authority.member("ssl");
    let stranger = Authority::new();
    let quick = "interval = \"20ms\", fall = 1, rise = 1, timeout = \"5s\"";
    let rule = |keys: &str| format!("slow_start = \"0s\"\nhealth_check = {{ {quick}, {keys} }}");
    let balancer = Balancer::start(&config(
        &[member.address()],
        &rule("path = \"/name\""),
        &stranger.trust(),
    ));
    for kind in ["type = \"tcp\"", "path = \"/name\""] {
        balancer.reconfigure(&config(&[member.address()], &rule(kind), &stranger.trust()));
        eventually_checked(
            &balancer,
            "down",
            "the server's certificate names an authority",
        );
        balancer.reconfigure(&config(
            &[member.address()],
            &rule(kind),
            &authority.trust(),
        ));
        eventually_checked(&balancer, "up", "");
    }
    balancer.wait_for_log("member is down");
    // A port beside it may do without.
    let plain = Server::start_nginx(None);
    let keys = |more: &str| format!("path = \"/name\", port = {}{more}", plain.address().port());
    let members = [SocketAddr::new(
        plain.address().ip(),
        member.address().port(),
    )];
    balancer.reconfigure(&config(&members, &rule(&keys("")), &authority.trust()));
    eventually_checked(&balancer, "down", "does it speak TLS at this port?");
    balancer.reconfigure(&config(
        &members,
        &rule(&keys(", plain = true")),
        &authority.trust(),
    ));
    eventually_checked(&balancer, "up", "");
    // Who wants a certificate says so after the handshake: a GET finds it out.
    authority.sign("m", "DNS:m.example");
    let strict = SServer::start(&authority);
    balancer.reconfigure(&config(
        &[strict.address],
        &rule("path = \"/\""),
        &authority.trust(),
    ));
    eventually_checked(&balancer, "down", "the server wants a `certificate`");
}

/// A server of gRPC whose health is what a file says, with TLS if it is given a certificate.
const HEALTH: &str = r#"
import sys
from concurrent import futures
import grpc
def check(request, context):
    service = request[2:].decode()
    for line in open("health"):
        name, _, status = line.strip().partition("=")
        if name == service:
            return bytes([8, int(status)])
    context.abort(grpc.StatusCode.NOT_FOUND, "no such service")
server = grpc.server(futures.ThreadPoolExecutor(max_workers=4))
server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("grpc.health.v1.Health", {
    "Check": grpc.unary_unary_rpc_method_handler(check),
})])
if len(sys.argv) > 1:
    both = open(sys.argv[1], "rb").read()
    secured = grpc.ssl_server_credentials([(both, both)])
    port = server.add_secure_port("127.0.0.1:0", secured)
else:
    port = server.add_insecure_port("127.0.0.1:0")
server.start()
print(port, flush=True)
server.wait_for_termination()
"#;

#[test]
fn the_health_service_of_grpc_is_asked_with_tls_and_without() {
    if !are_installed(&[
        "openssl",
        PYTHON,
        "/usr/lib/python3/dist-packages/grpc/__init__.py",
    ]) {
        return;
    }
    let authority = Authority::new();
    authority.sign("m", "DNS:m.example");
    let folder = Folder::new();
    let file = folder.write("health.py", HEALTH);
    let say = |text: &str| write_secret(&folder, "health", text);
    say("=1\nshop=1\n");
    let quick = "interval = \"20ms\", fall = 1, rise = 1, timeout = \"5s\"";
    let rule = |keys: &str| {
        format!(
            "slow_start = \"0s\"\nhealth_check = {{ {quick}, {keys} }}\n\
             http = {{ member_protocol = \"h2\" }}"
        )
    };
    for secured in [false, true] {
        let mut python = program(PYTHON);
        python.arg(&file).current_dir(folder.path());
        if secured {
            python.arg(authority.file("m.pem"));
        }
        let server = Script::start(&mut python);
        let address = format!("127.0.0.1:{}", server.read_line()).parse().unwrap();
        let whole = |rule: &str| {
            let whole = config(&[address], rule, &authority.trust());
            match secured {
                true => whole,
                false => whole
                    .split("[rule.web.member_tls]")
                    .next()
                    .unwrap()
                    .to_owned(),
            }
        };
        say("=1\nshop=1\n");
        let balancer = Balancer::start(&whole(&rule("type = \"grpc\"")));
        eventually_checked(&balancer, "up", "");
        say("=2\nshop=1\n");
        eventually_checked(&balancer, "down", "NOT_SERVING");
        balancer.reconfigure(&whole(&rule("service = \"shop\"")));
        eventually_checked(&balancer, "up", "");
        say("=1\nshop=0\n");
        eventually_checked(&balancer, "down", "UNKNOWN");
        say("=1\n");
        eventually_checked(&balancer, "down", "gRPC status 5: no such service");
        balancer.reconfigure(&whole(&rule("type = \"grpc\"")));
        eventually_checked(&balancer, "up", "");
        drop(server);
        eventually_checked(&balancer, "down", "no connection");
    }
    // What is no server of gRPC.
    let member = Member::answering_with(|_| ok_response("hello"));
    let text = config(&[member.address()], &rule("type = \"grpc\""), "");
    let text = text.replace("[rule.web.member_tls]", "");
    let balancer = Balancer::start(&text);
    eventually_checked(&balancer, "down", "the connection broke");
}

/// `openssl s_server`, which refuses clients without a certificate and shows a page.
struct SServer {
    address: SocketAddr,
    process: Child,
}

impl SServer {
    fn start(authority: &Authority) -> Self {
        Self::start_with(authority, &[])
    }

    fn start_with(authority: &Authority, more: &[&str]) -> Self {
        let address = server::address();
        let mut openssl = program("openssl");
        openssl.args([
            "s_server",
            "-accept",
            &address.to_string(),
            "-www",
            "-quiet",
        ]);
        openssl.args([
            "-cert",
            &authority.file("m.pem"),
            "-CAfile",
            &authority.file("authority.crt"),
        ]);
        openssl
            .args(["-Verify", "1", "-verify_return_error"])
            .args(more);
        openssl
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let process = openssl.spawn().unwrap();
        wait_until("s_server listens", || TcpStream::connect(address).is_ok());
        SServer { address, process }
    }
}

impl Drop for SServer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
