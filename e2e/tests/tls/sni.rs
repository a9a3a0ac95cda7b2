//! TLS passed through to members by the names that clients ask for: nginx, `openssl s_server` and
//! scripts as members, curl and `openssl s_client` as clients.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking.

use std::net::SocketAddr;

use evenkeel_e2e::balancer::Balancer;
use evenkeel_e2e::folder::Folder;
use evenkeel_e2e::member::{Member, ok_response};
use evenkeel_e2e::process::{are_installed, program, run_curl, try_curl};
use evenkeel_e2e::script::Script;
use evenkeel_e2e::server::{Server, address};
use evenkeel_e2e::tls::{Key, make_certificate, s_client};
use evenkeel_e2e::wait_until;

/// A rule `web` with `lines` and groups by name, each with one member.
fn config(lines: &str, names: &[(&str, SocketAddr)]) -> String {
    let mut text = format!(
        "workers = 1\n[admin]\nlisten = \"127.0.0.1:0\"\n[rule.web]\nlisten = \"127.0.0.1:0\"\nprotocol = \"tcp\"\n{lines}\n[rule.web.sni]\n"
    );
    for (index, (name, _)) in names.iter().enumerate() {
        text += &format!("\"{name}\" = \"g{index}\"\n");
    }
    for (index, (_, member)) in names.iter().enumerate() {
        text += &format!("[group.g{index}]\nmembers = [\"{member}\"]\n");
    }
    text
}

fn failures(balancer: &Balancer, cause: &str) -> u64 {
    let text = balancer.admin_get("/metrics");
    let line = format!("evenkeel_rule_tls_failures_total{{rule=\"web\",cause=\"{cause}\"}} ");
    let mut lines = text.text().lines();
    let value = lines.find_map(|known| known.strip_prefix(&line));
    value.unwrap().parse().unwrap()
}

#[track_caller]
fn eventually_counted(balancer: &Balancer, cause: &str, count: u64) {
    wait_until(&format!("{cause} is counted {count} times"), || {
        failures(balancer, cause) == count
    });
}

/// curl's answer from `name` at the rule.
fn get(balancer: &Balancer, authority: &str, name: &str, path: &str, more: &[&str]) -> String {
    let port = balancer.address("web").port();
    let to = format!("{name}:{port}:127.0.0.1:{port}");
    let url = format!("https://{name}:{port}{path}");
    let mut arguments = vec!["--fail", "--cacert", authority, "--connect-to", &to];
    arguments.extend(more);
    arguments.push(&url);
    run_curl(&arguments)
}

/// Certificates for all, with one authority, whose certificate is `authority.crt`.
fn certificates(names: &[&str]) -> Folder {
    let folder = Folder::new();
    make_certificate(&folder, "authority", Key::Ecdsa, "DNS:authority", None);
    for name in names {
        let names = format!("DNS:{name}");
        make_certificate(&folder, name, Key::Ecdsa, &names, Some("authority"));
    }
    folder
}

#[test]
fn curl_reaches_the_member_of_a_name_with_its_own_certificate() {
    if !are_installed(&["openssl", "nginx", "curl"]) {
        return;
    }
    let names = ["a.example", "*.b.example", "other.example", "client"];
    let folder = certificates(&names);
    let authority = folder.join("authority.crt");
    let server = |name: &str| {
        let certificate = folder.join(&format!("{name}.pem"));
        Server::nginx_tls(name, &certificate, &authority)
    };
    let [exact, wildcard, other] = [names[0], names[1], names[2]].map(server);
    let groups = [(names[0], exact.address()), (names[1], wildcard.address())];
    let own = format!("members = [\"{}\"]", other.address());
    let config = config(&own, &groups);
    let balancer = Balancer::start(&config);
    let log = balancer.folder().join("access.log");
    let logged = format!("{config}[access_log]\noutput = \"{}\"\n", log.display());
    balancer.reconfigure(&logged);
    let authority = authority.display().to_string();
    let get = |name: &str, path: &str, more: &[&str]| get(&balancer, &authority, name, path, more);
    for version in [&["--tlsv1.3"][..], &["--tls-max", "1.2"], &["--http1.1"]] {
        assert_eq!(
            get("a.example", "/who", version),
            "a.example|a.example|NONE|"
        );
        let below = get("x.b.example", "/who", version);
        assert_eq!(below, "*.b.example|x.b.example|NONE|");
        let rest = get("other.example", "/who", version);
        assert_eq!(rest, "other.example|other.example|NONE|");
    }
    // Who holds the client's key is proved over all bytes of the handshake.
    let key = folder.join("client.pem").display().to_string();
    assert_eq!(
        get("A.example", "/who", &["--cert", &key]),
        "a.example|a.example|SUCCESS|CN=client,O=Evenkeel tests"
    );
    let content: Vec<u8> = (0..8_000_000u32)
        .map(|number| (number.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    exact.put_document("x", &content);
    let got = folder.join("got");
    get(
        "a.example",
        "/files/x",
        &["--output", got.to_str().unwrap()],
    );
    assert!(folder.read("got") == content);

    for name in ["a.example", "x.b.example", "other.example"] {
        let wanted = format!("\"server_name\":\"{name}\",\"bytes_received\"");
        wait_until(&format!("{name} is logged"), || {
            balancer.folder().text("access.log").contains(&wanted)
        });
    }
    let shown = balancer.run_ctl("status").unwrap();
    assert!(shown.contains("web g0 g1"), "{shown}");
    let status = balancer.status();
    assert_eq!(status["rules"][0]["sni"]["*.b.example"], "g1");
    assert!(
        balancer
            .run_ctl("explain g1")
            .unwrap()
            .contains(&wildcard.address().to_string())
    );
}

#[test]
fn without_a_group_for_others_they_are_refused() {
    if !are_installed(&["openssl"]) {
        return;
    }
    let folder = certificates(&["a.example"]);
    let place = address();
    let mut server = program("openssl");
    server.args([
        "s_server",
        "-rev",
        "-naccept",
        "3",
        "-accept",
        &place.to_string(),
    ]);
    server.arg("-cert").arg(folder.join("a.example.pem"));
    let server = Script::start(&mut server);
    server.read_until("ACCEPT");
    let balancer = Balancer::start(&config("", &[("a.example", place)]));
    let web = balancer.address("web");
    for version in ["-tls1_3", "-tls1_2"] {
        let name = ["-servername", "a.example", "-quiet", version];
        // The second line ends the conversation.
        let said = s_client(web, &name, "hello\nCLOSE\n");
        assert!(said.contains("olleh"), "{said}");
        for name in [&["-servername", "b.example"][..], &["-noservername"]] {
            let said = s_client(web, &[name, &[version]].concat(), "");
            assert!(said.contains("unrecognized name"), "{said}");
        }
    }
    eventually_counted(&balancer, "unknown_name", 4);
    // With a group for others, at run time, they get it.
    balancer.reconfigure(&config("group = \"g0\"", &[("a.example", place)]));
    let name = ["-servername", "b.example", "-quiet"];
    let said = s_client(web, &name, "hello\nCLOSE\n");
    assert!(said.contains("olleh"), "{said}");
}

/// The first message of a client, in records of at most 100 bytes, with an extension of `padding`
/// bytes.
fn hello(name: &str, padding: usize) -> Vec<u8> {
    let list = |count: usize, content: &[u8]| {
        let length = content.len().to_be_bytes();
        [&length[8 - count..], content].concat()
    };
    let host = [&[0][..], &list(2, name.as_bytes())].concat();
    let extensions = [
        &[0, 21][..],
        &list(2, &vec![0; padding]),
        &[0, 0],
        &list(2, &list(2, &host)),
    ];
    let body = [
        &[3, 3][..],
        &[7; 32],
        &[0],
        &list(2, &[0x13, 1]),
        &[1, 0],
        &list(2, &extensions.concat()),
    ];
    let message = [&[1][..], &list(3, &body.concat())].concat();
    let record = |content: &[u8]| [&[22, 3, 1][..], &list(2, content)].concat();
    message.chunks(100).flat_map(record).collect()
}

/// A member that sends back what it gets.
fn echo() -> Member {
    Member::start(|_, mut wire| {
        while let Some(byte) = wire.try_read_exact(1) {
            if !wire.try_send(byte) {
                break;
            }
        }
    })
}

#[test]
fn every_byte_is_forwarded_however_it_comes() {
    let member = echo();
    let balancer = Balancer::start(&config("", &[("a.example", member.address())]));
    let small = [hello("a.example", 200), b"and what follows".to_vec()].concat();
    let mut client = balancer.connect();
    for byte in &small {
        client.send([*byte]);
    }
    client.end_sending();
    assert_eq!(client.read_to_end(), small);
    let large = [hello("A.EXAMPLE", 15_000), vec![5; 300_000]].concat();
    let mut client = balancer.connect();
    let mut writer = client.writer();
    let sent = large.clone();
    let sending = std::thread::spawn(move || {
        writer.send(sent);
        writer.end_sending();
    });
    assert!(client.read_to_end() == large);
    sending.join().unwrap();
}

#[test]
fn what_is_no_first_message_is_refused_and_counted_by_cause() {
    let member = echo();
    let lines = "sni_timeout = \"1s\"\nmax_connections = 100";
    let balancer = Balancer::start(&config(lines, &[("a.example", member.address())]));
    let answer = |sent: &[u8]| {
        let mut client = balancer.connect();
        client.try_send(sent);
        client.read_to_end()
    };
    let decode_error = [21, 3, 3, 0, 2, 2, 50];
    assert_eq!(answer(b"SSH-2.0-OpenSSH_9.2\r\n"), decode_error);
    let mut bad = hello("a.example", 0);
    bad[9] = 2;
    assert_eq!(answer(&bad), decode_error);
    eventually_counted(&balancer, "garbage", 2);
    // One that says so, and one that is so by the headers of its records.
    assert_eq!(answer(&hello("a.example", 17_000)), decode_error);
    assert_eq!(answer(&hello("a.example", 16_000)), decode_error);
    eventually_counted(&balancer, "oversized", 2);
    let plain = answer(b"GET / HTTP/1.1\r\nHost: a.example\r\n\r\n");
    assert!(plain.starts_with(b"HTTP/1.1 400 "), "{plain:?}");
    eventually_counted(&balancer, "plain_http", 1);
    assert_eq!(answer(&hello("b.example", 0)), [21, 3, 3, 0, 2, 2, 112]);
    eventually_counted(&balancer, "unknown_name", 1);
    // Silent from the beginning, and in the middle.
    let mut silent = balancer.connect();
    let mut slow = balancer.connect();
    slow.send(&hello("a.example", 0)[..20]);
    assert!(silent.is_at_end());
    assert!(slow.is_at_end());
    eventually_counted(&balancer, "timeout", 2);
    let mut gone = balancer.connect();
    gone.send(&hello("a.example", 0)[..20]);
    gone.end_sending();
    assert!(gone.is_at_end());
    eventually_counted(&balancer, "closed", 1);
    // Nobody of them came to a member, and the next one does.
    assert_eq!(member.seen_events().len(), 0);
    let good = hello("a.example", 0);
    let mut client = balancer.connect();
    client.send(&good);
    assert_eq!(client.try_read_exact(good.len()).unwrap(), good);
}

#[test]
fn names_choose_groups_where_tls_ends_at_the_balancer() {
    if !are_installed(&["openssl", "curl"]) {
        return;
    }
    let folder = certificates(&["a.example", "*.b.example", "other.example"]);
    let members = ["a", "b", "rest"].map(|name| {
        Member::start(move |script, mut wire| {
            while script.read_request(&mut wire).is_some() && wire.try_send(ok_response(name)) {}
        })
    });
    let [a, b, rest] = &members;
    let groups = [("a.example", a.address()), ("*.b.example", b.address())];
    let tls = |own: &str| {
        let certificates = ["a.example", "*.b.example", "other.example"];
        let certificates = certificates.map(|name| {
            let path = folder.join(&format!("{name}.pem"));
            format!("\"{}\"", path.display())
        });
        let own = format!(
            "{own}\ntls = {{ certificates = [{}] }}",
            certificates.join(", ")
        );
        config(&own, &groups)
    };
    let with_own = tls(&format!("members = [\"{}\"]", rest.address()));
    let balancer = Balancer::start(&with_own);
    let authority = folder.join("authority.crt").display().to_string();
    for (name, member) in [
        ("a.example", "a"),
        ("A.example", "a"),
        ("x.b.example", "b"),
        ("other.example", "rest"),
    ] {
        assert_eq!(get(&balancer, &authority, name, "/", &[]), member, "{name}");
    }
    // Without a group of the rule, clients with other names are refused, and counted.
    let balancer = Balancer::start(&tls(""));
    assert_eq!(get(&balancer, &authority, "a.example", "/", &[]), "a");
    let port = balancer.address("web").port();
    let (to, url) = (
        format!("other.example:{port}:127.0.0.1:{port}"),
        format!("https://other.example:{port}/"),
    );
    let answer = try_curl(&["--cacert", &authority, "--connect-to", &to, &url]);
    assert!(!answer.status.success());
    eventually_counted(&balancer, "unknown_name", 1);
}

#[test]
fn tls_of_some_names_passes_through_where_tls_of_others_ends() {
    if !are_installed(&["openssl", "nginx", "curl"]) {
        return;
    }
    let folder = certificates(&["a.example", "b.example", "other.example"]);
    let file = |name: &str| folder.join(&format!("{name}.pem"));
    let authority = folder.join("authority.crt");
    let passed = Server::nginx_tls("a.example", &file("a.example"), &authority);
    let ended = Member::start(move |script, mut wire| {
        while script.read_request(&mut wire).is_some() && wire.try_send(ok_response("ended")) {}
    });
    let groups = [
        ("b.example", ended.address()),
        ("a.example", passed.address()),
    ];
    let with = |pass_through: &str| {
        let certificates = ["b.example", "other.example"].map(|name| format!("{:?}", file(name)));
        let tls = format!("tls = {{ certificates = [{}] }}", certificates.join(", "));
        let own = format!("group = \"g1\"\n{tls}\npass_through = [{pass_through}]");
        // The last group: members get TLS of the balancer where TLS of clients has ended.
        let member =
            format!("member_tls = {{ ca_file = {authority:?}, server_name = \"a.example\" }}\n");
        config(&own, &groups) + &member
    };
    let first = with("\"A.example\"");
    let balancer = Balancer::start(&first);
    let log = balancer.folder().join("access.log");
    balancer.reconfigure(&format!(
        "{first}[access_log]\noutput = \"{}\"\n",
        log.display()
    ));
    let trusted = authority.display().to_string();
    let get = |name: &str, path: &str, more: &[&str]| get(&balancer, &trusted, name, path, more);
    for version in [&["--tlsv1.3"][..], &["--tls-max", "1.2"]] {
        let answer = get("a.example", "/who", version);
        assert_eq!(answer, "a.example|a.example|NONE|");
        assert_eq!(get("b.example", "/", version), "ended");
        // Clients with other names are for the group of the rule, where TLS ends.
        let answer = get("other.example", "/who", version);
        assert_eq!(answer, "a.example|a.example|NONE|");
    }
    // The member sees the certificate of a client whose TLS passes through.
    let key = file("a.example").display().to_string();
    let answer = get("a.example", "/who", &["--cert", &key]);
    assert!(answer.contains("|SUCCESS|"), "{answer}");
    let answer = get("other.example", "/who", &["--cert", &key]);
    assert!(answer.contains("|NONE|"), "{answer}");
    for (name, has_ended) in [("a.example", false), ("b.example", true)] {
        let name = format!("\"server_name\":\"{name}\"");
        let lines = || -> Vec<bool> {
            let text = balancer.folder().text("access.log");
            let lines = text.lines().filter(|line| line.contains(&name));
            lines.map(|line| line.contains("\"tls\":")).collect()
        };
        wait_until(&format!("{name} is logged"), || !lines().is_empty());
        // The parameters of TLS are known only where it has ended.
        assert!(lines().iter().all(|of| *of == has_ended), "{name}");
    }
    // Handshakes that fail are counted.
    let mut plain = balancer.connect();
    plain.send(b"GET / HTTP/1.1\r\n\r\n");
    let told = plain.read_to_end();
    assert!(told.starts_with(b"HTTP/1.1 400 "), "{told:?}");
    eventually_counted(&balancer, "plain_http", 1);
    let port = balancer.address("web").port();
    let to = format!("b.example:{port}:127.0.0.1:{port}");
    let distrusting = try_curl(&["--connect-to", &to, &format!("https://b.example:{port}/")]);
    assert!(!distrusting.status.success());
    eventually_counted(&balancer, "refused_by_client", 1);
    // A first message in pieces is whole for the handshake, too.
    let mut slow = balancer.connect();
    for byte in hello("b.example", 200) {
        slow.send([byte]);
    }
    let answer = slow.try_read_exact(1);
    assert!(matches!(answer.as_deref(), Some([21 | 22])), "{answer:?}");

    // TLS of clients with other names passes through, too.
    balancer.reconfigure(&with("\"*\""));
    assert_eq!(get("b.example", "/", &[]), "ended");
    let answer = get("other.example", "/who", &["--insecure"]);
    assert_eq!(answer, "a.example|other.example|NONE|");
    let port = balancer.address("web").port();
    let to = format!("a.example:{port}:127.0.0.1:{port}");
    // TLS of this name ends at the balancer, which has no certificate for the name.
    let untrusted = try_curl(&[
        "--cacert",
        &trusted,
        "--connect-to",
        &to,
        &format!("https://a.example:{port}/who"),
    ]);
    assert!(!untrusted.status.success());
}
