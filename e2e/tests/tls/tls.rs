//! TLS between clients and the balancer: curl, openssl and wrk as clients.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking.

use std::net::SocketAddr;
use std::process::Output;

use evenkeel_e2e::balancer::{Balancer, run_evenkeel};
use evenkeel_e2e::folder::Folder;
use evenkeel_e2e::load::Wrk;
use evenkeel_e2e::member::{Member, ok_response};
use evenkeel_e2e::process::{are_installed, run_curl, try_curl};
use evenkeel_e2e::server::Server;
use evenkeel_e2e::tls::{
    Key, make_certificate, make_expired_certificate, make_revocation_list, s_client, write_secret,
};
use evenkeel_e2e::wait_until;
use evenkeel_e2e::wire::Wire;

fn config(member: SocketAddr, tls: &str) -> String {
    format!(
        "workers = 1\n[admin]\nlisten = \"127.0.0.1:0\"\n\
         [rule.web]\nlisten = \"127.0.0.1:0\"\nmembers = [\"{member}\"]\n\
         [rule.plain]\nlisten = \"127.0.0.1:0\"\nmembers = [\"{member}\"]\n\
         [rule.web.tls]\n{tls}\n"
    )
}

/// A balancer with `a.pem`, which is for `a.example` and below `b.example`.
fn balancer(member: SocketAddr, tls: &str) -> Balancer {
    let tls = format!("certificates = [\"a.pem\"]\n{tls}");
    Balancer::start_with(&config(member, &tls), |folder| {
        make_certificate(
            folder,
            "a",
            Key::Ecdsa,
            "DNS:a.example,DNS:*.b.example",
            None,
        );
        make_certificate(folder, "authority", Key::Ecdsa, "DNS:authority", None);
        make_certificate(
            folder,
            "client",
            Key::Ecdsa,
            "DNS:client.example",
            Some("authority"),
        );
        make_certificate(folder, "stranger", Key::Ecdsa, "DNS:stranger.example", None);
    })
}

/// curl's arguments for a name that leads to the rule `web`.
fn at(balancer: &Balancer, name: &str) -> [String; 4] {
    let address = balancer.address("web");
    let port = address.port();
    let authority = balancer.folder().join("a.crt");
    [
        "--cacert".into(),
        authority.display().to_string(),
        "--connect-to".into(),
        format!("{name}:{port}:127.0.0.1:{port}"),
    ]
}

fn get(balancer: &Balancer, name: &str, more: &[&str]) -> String {
    let at = at(balancer, name);
    let url = format!("https://{name}:{}/echo", balancer.address("web").port());
    let mut arguments: Vec<&str> = at.iter().map(String::as_str).collect();
    arguments.extend(more);
    arguments.push(&url);
    run_curl(&arguments)
}

/// A counter of the rule `web`.
fn count(balancer: &Balancer, name: &str, label: &str) -> u64 {
    let count = balancer.read_metric(&format!("{name}{{rule=\"web\",{label}}}"));
    count.unwrap_or_default() as u64
}

fn failures(balancer: &Balancer, cause: &str) -> u64 {
    let cause = format!("cause=\"{cause}\"");
    count(balancer, "evenkeel_rule_tls_failures_total", &cause)
}

fn eventually_fails(balancer: &Balancer, cause: &str) {
    wait_until(&format!("{cause} is counted"), || {
        failures(balancer, cause) > 0
    });
}

#[test]
fn curl_verifies_the_certificate_and_members_hear_of_https() {
    if !are_installed(&["openssl", "curl"]) {
        return;
    }
    let member = Member::answering_with(|request| ok_response(&request.head));
    let balancer = balancer(member.address(), "");
    for name in ["a.example", "x.b.example"] {
        let head = get(&balancer, name, &[]);
        assert!(head.contains("\r\nX-Forwarded-Proto: https\r\n"), "{head}");
    }
    for version in ["--tlsv1.3", "--tls-max=1.2"] {
        let version: Vec<_> = version.split('=').collect();
        assert!(get(&balancer, "a.example", &version).contains("/echo"));
    }
    let at = at(&balancer, "c.example");
    let url = format!("https://c.example:{}/", balancer.address("web").port());
    let mut arguments: Vec<&str> = at.iter().map(String::as_str).collect();
    arguments.push(&url);
    assert_eq!(try_curl(&arguments).status.code(), Some(60), "not its name");
    assert!(
        count(
            &balancer,
            "evenkeel_rule_tls_handshakes_total",
            "kind=\"full\""
        ) >= 4
    );
    // What was agreed on is in the access log.
    let log = balancer.folder().join("access.log");
    let more = format!("\n[access_log]\noutput = \"{}\"\n", log.display());
    balancer.reconfigure(&(config(member.address(), "certificates = [\"a.pem\"]") + &more));
    get(&balancer, "x.b.example", &["--tls-max", "1.2"]);
    let wanted = "\"tls\":\"TLSv1.2\",\"server_name\":\"x.b.example\",";
    wait_until("the request is logged", || {
        balancer.folder().text("access.log").contains(wanted)
    });
}

#[test]
fn http2_is_offered_and_certificates_are_shown() {
    if !are_installed(&["openssl", "curl"]) {
        return;
    }
    let member = Member::answering_with(|request| ok_response(&request.head));
    let balancer = balancer(member.address(), "");
    let version = ["--http2", "--write-out", "\nHTTP/%{http_version}"];
    let answer = get(&balancer, "a.example", &version);
    assert!(answer.ends_with("HTTP/2"), "{answer}");
    assert!(
        answer.contains("\r\nX-Forwarded-Proto: https\r\n"),
        "{answer}"
    );
    let table = balancer.run_ctl("certs").unwrap();
    assert!(table.contains("a.example,*.b.example  ECDSA"), "{table}");
    assert!(table.contains("36"), "{table}");
    let metrics = balancer.admin_get("/metrics");
    let name = "evenkeel_certificate_expiry_timestamp_seconds{listener=\"rule web\",file=";
    assert!(metrics.text().contains(name));
    assert!(!balancer.log().contains("expires in"), "{}", balancer.log());
}

#[test]
fn a_request_over_the_connection_for_another_host_is_refused_before_a_login() {
    if !are_installed(&["openssl", "curl"]) {
        return;
    }
    let member = Member::echoing_targets();
    let hosts = "certificates = [\"a.pem\"]\n[rule.web.auth]\nusers_file = \"users\"\n\
                 [rule.web.http]\nseparate_hosts = [\"a.example\", \"x.b.example\"]";
    let balancer = Balancer::start_with(&config(member.address(), hosts), |folder| {
        let names = "DNS:a.example,DNS:x.b.example";
        make_certificate(folder, "a", Key::Ecdsa, names, None);
        // A hash of SHA-256 for the password "geheim".
        folder.write(
            "users",
            "bert:$5$abcdefgh$gruCpC7VkOTspMQTTSAR8mtlO9Upms.fwqE5y16JVM.\n",
        );
    });
    let status = |host: &str, version: &str| {
        let field = format!("Host: {host}");
        let more = [version, "--head", "--header", &field];
        let answer = get(&balancer, "a.example", &more);
        answer.split(' ').nth(1).unwrap().to_owned()
    };
    for version in ["--http1.1", "--http2"] {
        for (host, code) in [
            ("a.example", "401"),
            ("x.b.example", "421"),
            // A host without an entry is served over each connection.
            ("c.example", "401"),
        ] {
            assert_eq!(status(host, version), code, "{version} {host}");
        }
    }
    assert!(member.seen_events().is_empty());
}

#[test]
fn bodies_pass_both_ways_and_servers_may_end_them_by_closing() {
    if !are_installed(&["openssl", "curl"]) {
        return;
    }
    let body: String = ('a'..='z').cycle().take(3_000_000).collect();
    let sent = body.clone();
    let member = Member::answering_with(move |request| {
        assert!(request.body.is_empty() || request.text() == sent);
        ok_response(&sent)
    });
    let balancer = balancer(member.address(), "");
    balancer.folder().write("body", &body);
    let file = format!("@{}", balancer.folder().join("body").display());
    let more = ["--http1.1", "--header", "Expect:", "--data-binary", &file];
    assert!(get(&balancer, "a.example", &more) == body);
    // Several over one connection.
    let at = at(&balancer, "a.example");
    let url = format!("https://a.example:{}/", balancer.address("web").port());
    let mut arguments: Vec<&str> = at.iter().map(String::as_str).collect();
    arguments.extend([url.as_str(), &url, &url]);
    assert!(run_curl(&arguments) == body.repeat(3));

    let member = Member::closing_after(format!("HTTP/1.1 200 OK\r\n\r\n{body}"));
    balancer.reconfigure(&config(member.address(), "certificates = [\"a.pem\"]"));
    assert!(get(&balancer, "a.example", &[]) == body);
}

#[test]
fn each_name_has_its_certificate_and_each_client_the_key_that_it_knows() {
    if !are_installed(&["openssl"]) {
        return;
    }
    let member = Member::echoing_targets();
    let tls = "certificates = [\"a.pem\", \"rsa.pem\", \"wild.pem\"]";
    let balancer = Balancer::start_with(&config(member.address(), tls), |folder| {
        make_certificate(folder, "a", Key::Ecdsa, "DNS:a.example", None);
        make_certificate(folder, "rsa", Key::Rsa, "DNS:a.example", None);
        make_certificate(folder, "wild", Key::Ecdsa, "DNS:*.example", None);
    });
    let shown = |name: &str, more: &[&str]| {
        let mut arguments = vec!["-servername", name];
        arguments.extend(more);
        let said = s_client(balancer.address("web"), &arguments, "");
        let subject = said.lines().find(|line| line.starts_with("subject="));
        let subject = subject.unwrap_or_else(|| panic!("{said}"));
        subject
            .rsplit("CN")
            .next()
            .unwrap()
            .trim_matches(['=', ' '])
            .to_owned()
    };
    assert_eq!(shown("a.example", &[]), "a");
    assert_eq!(shown("A.EXAMPLE", &[]), "a");
    assert_eq!(shown("b.example", &[]), "wild");
    assert_eq!(shown("elsewhere", &[]), "a");
    let rsa = ["-sigalgs", "rsa_pss_rsae_sha256:rsa_pkcs1_sha256"];
    assert_eq!(shown("a.example", &rsa), "rsa");
    assert_eq!(shown("elsewhere", &rsa), "rsa");
    let old = ["-tls1_2", "-cipher", "ECDHE-RSA-AES128-GCM-SHA256"];
    assert_eq!(shown("a.example", &old), "rsa");
    let old = ["-tls1_2", "-cipher", "ECDHE-ECDSA-CHACHA20-POLY1305"];
    assert_eq!(shown("a.example", &old), "a");
    let said = s_client(
        balancer.address("web"),
        &["-tls1_2", "-cipher", "AES128-SHA"],
        "",
    );
    assert!(said.contains("handshake failure"), "{said}");
    eventually_fails(&balancer, "incompatible");

    balancer.reconfigure(&config(
        member.address(),
        &format!("strict_sni = true\n{tls}"),
    ));
    assert_eq!(shown("b.example", &[]), "wild");
    let said = s_client(balancer.address("web"), &["-servername", "elsewhere"], "");
    assert!(said.contains("no peer certificate available"), "{said}");
    eventually_fails(&balancer, "unknown_name");
}

#[test]
fn sessions_are_resumed_also_by_another_balancer_with_the_same_keys() {
    if !are_installed(&["openssl"]) {
        return;
    }
    let member = Member::echoing_targets();
    let shared = "ticket_key_file = \"tickets.key\"\ncertificates = [\"a.pem\"]";
    let start = |tls: &str, key: &str| {
        Balancer::start_with(&config(member.address(), tls), |folder| {
            make_certificate(folder, "a", Key::Ecdsa, "DNS:a.example", None);
            write_secret(folder, "tickets.key", key);
        })
    };
    let [one, two] = ["11", "22"].map(|key| key.repeat(32));
    let first = start(shared, &one);
    let second = start(shared, &format!("{two}\n{one}\n"));
    let third = start("certificates = [\"a.pem\"]", "");
    let request = "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    for version in ["-tls1_2", "-tls1_3"] {
        let session = first.folder().join("session");
        let session = session.to_str().unwrap();
        let keep = [
            version,
            "-servername",
            "a.example",
            "-ign_eof",
            "-sess_out",
            session,
        ];
        let use_it = [
            version,
            "-servername",
            "a.example",
            "-ign_eof",
            "-sess_in",
            session,
        ];
        let said = s_client(first.address("web"), &keep, request);
        assert!(said.contains("New, "), "{said}");
        for (balancer, resumed) in [(&first, true), (&second, true), (&third, false)] {
            let said = s_client(balancer.address("web"), &use_it, request);
            assert_eq!(said.contains("Reused, "), resumed, "{version} {said}");
        }
    }
    assert!(
        count(
            &second,
            "evenkeel_rule_tls_handshakes_total",
            "kind=\"resumed\""
        ) == 2
    );
}

#[test]
fn members_learn_who_a_client_is_and_no_client_says_so_itself() {
    if !are_installed(&["openssl", "curl"]) {
        return;
    }
    let member = Member::answering_with(|request| ok_response(&request.head));
    let clients = "[rule.web.tls.client_certificates]\nca_file = \"authority.crt\"";
    let balancer = balancer(member.address(), &format!("{clients}\nrequired = false"));
    let client = balancer.folder().join("client.pem");
    let client = client.to_str().unwrap();
    let forged = [
        "--header",
        "X-Client-Cert-Verified: yes",
        "--header",
        "x_client-cert_Subject: CN=root",
        "--header",
        "X-Client-Certificate: mine",
    ];
    let shown = get(
        &balancer,
        "a.example",
        &[&["--cert", client][..], &forged].concat(),
    );
    let fields = |head: &str| -> Vec<String> {
        let lines = head.lines().map(str::to_ascii_lowercase);
        lines
            .filter(|line| line.starts_with("x-client-cert") || line.starts_with("x_"))
            .collect()
    };
    let of_client = fields(&shown);
    assert_eq!(of_client[0], "x-client-certificate: mine", "{shown}");
    assert_eq!(of_client[1], "x-client-cert-verified: yes", "{shown}");
    assert_eq!(
        of_client[2],
        "x-client-cert-subject: cn=client,o=evenkeel tests"
    );
    assert_eq!(of_client[3], "x-client-cert-san: dns:client.example");
    assert!(of_client[4].starts_with("x-client-cert-fingerprint: ") && of_client.len() == 5);
    let nobody = fields(&get(&balancer, "a.example", &forged));
    assert_eq!(
        nobody,
        ["x-client-certificate: mine", "x-client-cert-verified: no"]
    );
    // Nor through a rule beside it.
    let plain = format!("http://{}/", balancer.address("plain"));
    let beside = run_curl(&[&forged[..], &[&plain]].concat());
    assert_eq!(fields(&beside), ["x-client-certificate: mine"]);

    let stranger = balancer.folder().join("stranger.pem");
    let url = format!("https://a.example:{}/", balancer.address("web").port());
    let refused = |more: &[&str]| {
        let at = at(&balancer, "a.example");
        let mut arguments: Vec<&str> = at.iter().map(String::as_str).collect();
        arguments.extend(more);
        arguments.push(&url);
        !try_curl(&arguments).status.success()
    };
    assert!(refused(&["--cert", stranger.to_str().unwrap()]));
    let required = format!("certificates = [\"a.pem\"]\n{clients}");
    balancer.reconfigure(&config(member.address(), &required));
    assert!(refused(&[]));
    assert!(!refused(&["--cert", client]));
    // A client hears of it a moment before it is counted.
    wait_until("both are counted", || {
        failures(&balancer, "client_certificate") == 2
    });
}

#[test]
fn certificates_change_under_load_and_broken_ones_do_not_count() {
    if !are_installed(&["openssl", "wrk", "nginx"]) {
        return;
    }
    let content = "0123456789abcdef".repeat(64);
    let server = Server::start_nginx(None);
    server.put_document("document", &content);
    let balancer = balancer(server.address(), "");
    let web = balancer.address("web");
    let wrk = Wrk::start_at(&format!("https://{web}/files/document"), content.as_bytes());
    let serial = || {
        let said = s_client(web, &["-servername", "a.example", "-showcerts"], "");
        let begin = said
            .find("-----BEGIN CERTIFICATE-----")
            .unwrap_or_else(|| panic!("{said}"));
        let end = said.find("-----END CERTIFICATE-----").unwrap();
        said[begin..end].to_owned()
    };
    let mut known = serial();
    for _ in 0..3 {
        make_certificate(balancer.folder(), "a", Key::Ecdsa, "DNS:a.example", None);
        wait_until("the new certificate is in use", || serial() != known);
        known = serial();
        write_secret(balancer.folder(), "a.pem", "nonsense");
        wait_until("the broken one is told of", || {
            balancer.log().contains("a.pem: holds no certificate")
        });
        assert_eq!(serial(), known);
    }
    let log = balancer.log();
    assert!(
        log.contains("stays in use until the file is right"),
        "{log}"
    );
    assert!(log.contains("rule.web.tls.certificates"), "{log}");
    let tally = wrk.stop_and_tally();
    assert!(
        tally.requests > 0 && (tally.wrong, tally.errors) == (0, 0),
        "{tally:?}"
    );
}

#[test]
fn f1_one_bad_file_harms_nothing_but_what_it_is_for() {
    if !are_installed(&["openssl", "curl"]) {
        return;
    }
    let member = Member::echoing_targets();
    let rule = |name: &str, more: &str| {
        format!(
            "[rule.{name}]\nlisten = \"127.0.0.1:0\"\nprotocol = \"http\"\nmembers = [\"{}\"]\n{more}\n",
            member.address()
        )
    };
    let tls = |name: &str| format!("tls = {{ certificates = \"{name}.pem\" }}");
    let text = [
        "workers = 1\n[admin]\nlisten = \"127.0.0.1:0\"\n".to_owned(),
        rule("web", &tls("a")),
        rule("late", &tls("late")),
        rule("old", &tls("old")),
        rule(
            "known",
            "[rule.known.tls]\ncertificates = \"a.pem\"\n\
             client_certificates = { ca_file = \"authority.crt\", crl_file = \"list.crl\" }",
        ),
        rule(
            "plain",
            "[[rule.plain.routes]]\npath = \"/hi\"\nanswer = { status = 200, file = \"hi.txt\" }",
        ),
    ]
    .concat();
    let mut balancer = Balancer::start_with(&text, |folder| {
        make_certificate(folder, "a", Key::Ecdsa, "DNS:a.example", None);
        make_certificate(folder, "late", Key::Ecdsa, "DNS:a.example", None);
        make_certificate(folder, "authority", Key::Ecdsa, "DNS:authority", None);
        let by = Some("authority");
        make_certificate(folder, "client", Key::Ecdsa, "DNS:client.example", by);
        make_expired_certificate(folder, "old", "DNS:a.example", "authority");
        let none = make_revocation_list(folder, "authority", &[]);
        folder.write("list.crl", none);
        folder.write("hi.txt", "first");
    });
    let shown = |balancer: &Balancer, rule: &str| {
        let said = s_client(balancer.address(rule), &["-servername", "a.example"], "");
        let begin = said.find("-----BEGIN CERTIFICATE-----");
        begin.map(|begin| said[begin..].split("-----END").next().unwrap().to_owned())
    };
    let hi = |balancer: &Balancer| {
        let url = format!("http://{}/hi", balancer.address("plain"));
        String::from_utf8(try_curl(&[&url]).stdout).unwrap()
    };
    let gets_in = |balancer: &Balancer| {
        let at = balancer.address("known");
        let client = balancer.folder().join("client.pem").display().to_string();
        let connect = format!("a.example:{0}:127.0.0.1:{0}", at.port());
        let url = format!("https://a.example:{}/", at.port());
        let arguments = ["-k", "--cert", &client, "--connect-to", &connect, &url];
        try_curl(&arguments).status.success()
    };
    // One that has expired is no reason not to start.
    balancer.wait_for_log("old.pem: the certificate has expired, on Jan  1 00:00:00 2021");
    assert!(shown(&balancer, "old").is_some());
    let (first, late) = (shown(&balancer, "web"), shown(&balancer, "late"));
    assert!(first.is_some() && late.is_some() && gets_in(&balancer));
    write_secret(balancer.folder(), "late.pem", "nonsense");
    balancer.wait_for_log("late.pem: holds no certificate");
    // Renewal, revocation, what others read, and changes of other rules take effect.
    make_certificate(balancer.folder(), "a", Key::Ecdsa, "DNS:a.example", None);
    wait_until("the new certificate is in use", || {
        shown(&balancer, "web") != first
    });
    let revoked = make_revocation_list(balancer.folder(), "authority", &["client"]);
    balancer.folder().write("list.crl", revoked);
    wait_until("the client is revoked", || !gets_in(&balancer));
    balancer.folder().write("hi.txt", "second");
    wait_until("the new text is sent", || hi(&balancer) == "second");
    balancer.reconfigure(&format!("{text}{}", rule("more", "")));
    balancer.reconfigure(&text);
    assert_eq!(shown(&balancer, "late"), late);
    let problems = |balancer: &Balancer| balancer.read_metric("evenkeel_file_problems");
    assert_eq!(problems(&balancer), Some(2.0));
    let check = |balancer: &Balancer| {
        let file = balancer.folder().join("evenkeel.toml");
        run_evenkeel(&["check", &file.display().to_string()])
    };
    assert!(check(&balancer).unwrap_err().contains("late.pem"));
    // The process that takes over has what was good from the one before.
    balancer.upgrade().unwrap();
    assert_eq!(shown(&balancer, "late"), late);
    assert_eq!(hi(&balancer), "second");
    make_certificate(balancer.folder(), "late", Key::Ecdsa, "DNS:a.example", None);
    wait_until("it is right again", || shown(&balancer, "late") != late);
    assert_eq!(problems(&balancer), Some(1.0));
    let said = check(&balancer).unwrap();
    assert!(
        said.contains("warning: ") && said.contains("old.pem: the certificate has expired"),
        "{said}"
    );
}

#[test]
fn whatever_is_no_tls_ends_and_is_counted() {
    if !are_installed(&["openssl"]) {
        return;
    }
    let member = Member::echoing_targets();
    let balancer = balancer(member.address(), "handshake_timeout = \"2s\"");
    let web = balancer.address("web");
    let mut http = Wire::connect(web);
    http.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    let answer = http.read_response();
    assert_eq!(answer.second_word(), "400");
    assert!(answer.text().contains("expects TLS"));
    assert!(http.is_at_end());
    eventually_fails(&balancer, "plain_http");

    let mut garbage = Wire::connect(web);
    garbage.send([0xff; 64]);
    garbage.read_to_end();
    eventually_fails(&balancer, "garbage");

    // A ClientHello that never ends, in fragments of a kilobyte.
    let mut long = Wire::connect(web);
    for index in 0..40 {
        let mut record = vec![22, 3, 1, 4, 0];
        record.resize(5 + 1024, 0);
        if index == 0 {
            record[5..9].copy_from_slice(&[1, 0, 0xff, 0]);
        }
        if !long.try_send(&record) {
            break;
        }
    }
    long.read_to_end();
    eventually_fails(&balancer, "oversized");

    let mut slow = Wire::connect(web);
    slow.send([22, 3, 1]);
    slow.read_to_end();
    eventually_fails(&balancer, "timeout");
    drop(Wire::connect(web));
    eventually_fails(&balancer, "closed");
    assert_eq!(failures(&balancer, "internal"), 0);
}

#[test]
fn nobody_renegotiates_and_keys_may_be_updated() {
    if !are_installed(&["openssl"]) {
        return;
    }
    let member = Member::echoing_targets();
    let balancer = balancer(member.address(), "");
    let web = balancer.address("web");
    // `R` begins another handshake, `K` asks for new keys, both on a line of its own.
    let said = s_client(web, &["-tls1_2"], "R\n");
    assert!(
        said.contains("RENEGOTIATING") && said.contains("no renegotiation"),
        "{said}"
    );
    let request = "K\nGET /after HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    let said = s_client(web, &["-tls1_3"], request);
    assert!(said.contains("KEYUPDATE"), "{said}");
}

#[test]
fn tcp_rules_speak_tls_too() {
    if !are_installed(&["openssl"]) {
        return;
    }
    let member = Member::start(|_, mut wire| {
        wire.send("220 hello\r\n");
        let line = wire.try_read_until(b"\n").unwrap();
        wire.send([b"250 ", &line[..]].concat());
    });
    let tls = "alpn = [\"smtp\"]\ncertificates = [\"a.pem\"]";
    let config =
        config(member.address(), tls).replace("[rule.web]\n", "[rule.web]\nprotocol = \"tcp\"\n");
    let balancer = Balancer::start_with(&config, |folder| {
        make_certificate(folder, "a", Key::Ecdsa, "DNS:a.example", None);
    });
    let said = s_client(
        balancer.address("web"),
        &["-ign_eof", "-alpn", "smtp"],
        "MAIL\n",
    );
    assert!(
        said.contains("220 hello") && said.contains("250 MAIL"),
        "{said}"
    );
    assert!(said.contains("ALPN protocol: smtp"), "{said}");
}

#[test]
fn what_is_wrong_with_certificates_is_told_before_the_start() {
    if !are_installed(&["openssl"]) {
        return;
    }
    let folder = Folder::new();
    make_certificate(&folder, "a", Key::Ecdsa, "DNS:a.example", None);
    make_certificate(&folder, "b", Key::Ecdsa, "DNS:b.example", None);
    let tls = "certificates = [\n\
         { certificate = \"a.crt\", key = \"b.pem\" },\n\
         { certificate = \"b.pem\", names = [\"c.example\"] },\n\
         \"none.pem\",\n]";
    let file = folder.write("evenkeel.toml", config("127.0.0.1:1".parse().unwrap(), tls));
    let said = run_evenkeel(&["check", file.to_str().unwrap()]).unwrap_err();
    for wrong in [
        "3 errors",
        "evenkeel.toml:12:32: rule.web.tls.certificates[0].key: ",
        "b.pem: the private key does not belong to the first certificate",
        "b.pem: the certificate is not for c.example, but for b.example",
        "evenkeel.toml:14:1: rule.web.tls.certificates[2]: ",
        "none.pem: cannot be read",
    ] {
        assert!(said.contains(wrong), "{wrong}: {said}");
    }
    let said = run_evenkeel(&["run", file.to_str().unwrap()]).unwrap_err();
    assert!(said.contains("evenkeel.toml:12:32:"), "{said}");
}

/// curl with an authority, for a name that leads to `address`.
fn ask(balancer: &Balancer, address: SocketAddr, authority: &str, more: &[&str]) -> Output {
    let port = address.port();
    let authority = balancer.folder().join(authority).display().to_string();
    let at = format!("a.example:{port}:127.0.0.1:{port}");
    let mut arguments = vec!["--cacert", &authority, "--connect-to", &at];
    arguments.extend(more);
    try_curl(&arguments)
}

#[test]
fn the_negotiator_speaks_tls() {
    if !are_installed(&["openssl", "curl"]) {
        return;
    }
    let config = "workers = 1\n[admin]\nlisten = \"127.0.0.1:0\"\n\
                  [negotiator]\nlisten = \"127.0.0.1:0\"\n\
                  tls = { certificates = \"a.pem\" }\n\
                  [group.servers]\nmembers = [\"127.0.0.1:9\"]\n\
                  [cluster.site]\ngroup = \"servers\"\nhosts = [\"a.example\"]\n";
    let make = |folder: &Folder| make_certificate(folder, "a", Key::Ecdsa, "DNS:a.example", None);
    let balancer = Balancer::start_with(config, make);
    let negotiator = balancer.negotiator_address();
    let url = format!("https://a.example:{}/x", negotiator.port());
    let location = ["--write-out", "%{http_code} %{redirect_url}", &url];
    let moved = |authority: &str| {
        let output = ask(&balancer, negotiator, authority, &location);
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    assert!(
        moved("a.crt").ends_with("307 http://127.0.0.1:9/x"),
        "{}",
        moved("a.crt")
    );
    // Who speaks HTTP is told, and counted.
    let mut plain = Wire::connect(negotiator);
    plain.send("GET /x HTTP/1.1\r\nHost: a.example\r\n\r\n");
    assert_eq!(plain.read_response().second_word(), "400");
    let counted = "evenkeel_negotiator_tls_failures_total{cause=\"plain_http\"} 1\n";
    wait_until("it is counted", || {
        balancer.admin_get("/metrics").text().contains(counted)
    });
    assert!(
        balancer
            .run_ctl("certs")
            .unwrap()
            .contains("negotiator  a.example")
    );

    // A broken certificate changes nothing; a new one is used for new connections.
    let old = balancer.folder().text("a.crt");
    balancer.folder().write("old.crt", old);
    write_secret(balancer.folder(), "a.pem", "broken");
    wait_until("it is refused", || balancer.log().contains("a.pem"));
    assert!(moved("old.crt").starts_with("307"), "{}", moved("old.crt"));
    make(balancer.folder());
    wait_until("the new one is used", || moved("a.crt").starts_with("307"));
    // Without TLS again.
    balancer.reconfigure(&config.replace("tls = { certificates = \"a.pem\" }\n", ""));
    plain = Wire::connect(negotiator);
    plain.send("GET /x HTTP/1.1\r\nHost: a.example\r\n\r\n");
    assert_eq!(plain.read_response().second_word(), "307");
}

#[test]
fn the_admin_api_knows_its_users_by_their_certificates() {
    if !are_installed(&["openssl", "curl"]) {
        return;
    }
    let config = |more: &str| {
        format!(
            "workers = 1\n[admin]\nlisten = \"0.0.0.0:0\"\n\
             [admin.tls]\ncertificates = \"a.pem\"\n{more}\
             [rule.web]\nlisten = \"127.0.0.1:0\"\nmembers = [\"127.0.0.1:9\"]\n"
        )
    };
    let clients = "client_certificates = { ca_file = \"authority.crt\" }\n";
    let balancer = Balancer::start_with(&config(clients), |folder| {
        make_certificate(folder, "authority", Key::Ecdsa, "DNS:authority", None);
        let by = Some("authority");
        make_certificate(folder, "a", Key::Ecdsa, "DNS:a.example,IP:127.0.0.1", by);
        make_certificate(folder, "client", Key::Ecdsa, "DNS:client.example", by);
        make_certificate(folder, "stranger", Key::Ecdsa, "DNS:stranger.example", None);
    });
    let admin = balancer.admin_address();
    let client = balancer.folder().join("client.pem").display().to_string();
    let stranger = balancer.folder().join("stranger.pem").display().to_string();
    let get = |path: &str, more: &[&str]| {
        let url = format!("https://a.example:{}{path}", admin.port());
        let arguments = [&["--fail", &url][..], more].concat();
        let output = ask(&balancer, admin, "authority.crt", &arguments);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        output.status.success().then_some(text)
    };
    let status = get("/v1/status", &["--cert", &client]);
    assert!(status.is_some_and(|status| status.contains("\"web\"")));
    assert_eq!(get("/v1/status", &[]), None);
    assert_eq!(get("/v1/status", &["--cert", &stranger]), None);
    let counted = "evenkeel_admin_tls_failures_total{cause=\"client_certificate\"} ";
    wait_until("both are counted", || {
        let metrics = get("/metrics", &["--cert", &client]).unwrap();
        let line = metrics.lines().find_map(|line| line.strip_prefix(counted));
        line == Some("2")
    });
    let certificates = get("/v1/certificates", &["--cert", &client]).unwrap();
    assert!(
        certificates.contains("\"listener\":\"admin API\""),
        "{certificates}"
    );

    // Our own client.
    let at = format!("https://127.0.0.1:{}", admin.port());
    let authority = balancer
        .folder()
        .join("authority.crt")
        .display()
        .to_string();
    let ctl = |more: &[&str]| run_evenkeel(&[&["ctl", "--admin", &at, "certs"][..], more].concat());
    let known = ctl(&["--ca-file", &authority, "--cert", &client]).unwrap();
    assert!(known.contains("admin API  a.example"), "{known}");
    let error = ctl(&["--ca-file", &authority]).unwrap_err();
    assert!(error.contains("CertificateRequired"), "{error}");
    let error = ctl(&["--ca-file", &client, "--cert", &client]).unwrap_err();
    assert!(error.contains("client.pem"), "{error}");

    // Others than its own machine would be let in by nobody.
    let file = balancer
        .folder()
        .join("evenkeel.toml")
        .display()
        .to_string();
    for open in [
        "",
        "client_certificates = { ca_file = \"authority.crt\", required = false }\n",
    ] {
        balancer.folder().write("evenkeel.toml", config(open));
        let error = run_evenkeel(&["check", &file]).unwrap_err();
        assert!(
            error.contains("`token`, `token_file` or `users_file` is required"),
            "{error}"
        );
    }
    balancer.folder().write(
        "evenkeel.toml",
        config(clients).replace("a.pem", "none.pem"),
    );
    let error = run_evenkeel(&["check", &file]).unwrap_err();
    assert!(
        error.contains("admin.tls.certificates") && error.contains("none.pem"),
        "{error}"
    );
}
