//! Limits for clients, as clients meet them.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking.

use std::net::SocketAddr;

use evenkeel_e2e::balancer::{Balancer, evenkeel};
use evenkeel_e2e::eventually;
use evenkeel_e2e::folder::Folder;
use evenkeel_e2e::member::{Member, ok};
use evenkeel_e2e::process::{curl, installed, program};
use evenkeel_e2e::wire::{Message, Wire};

/// A configuration with the rule `web`; `more` are further lines of it, tables at the end.
fn config(protocol: &str, workers: u32, member: SocketAddr, more: &str) -> String {
    format!(
        "workers = {workers}\n[admin]\nlisten = \"127.0.0.1:0\"\n\
         [rule.web]\nlisten = \"127.0.0.1:0\"\nprotocol = \"{protocol}\"\n\
         members = [\"{member}\"]\nhealth_check = false\n{more}\n"
    )
}

fn ask(wire: &mut Wire, fields: &str) -> Message {
    wire.send(format!("GET /x HTTP/1.1\r\nHost: a\r\n{fields}\r\n"));
    wire.read_response()
}

/// Statuses of so many requests in one connection.
fn statuses(wire: &mut Wire, fields: &str, number: usize) -> Vec<String> {
    let mut one = || ask(wire, fields).second_word().to_owned();
    (0..number).map(|_| one()).collect()
}

fn limited(balancer: &Balancer, limit: &str) -> u64 {
    let text = balancer.admin_get("/metrics");
    let line = format!("evenkeel_rule_limited_total{{rule=\"web\",limit=\"{limit}\"}} ");
    let mut lines = text.text().lines();
    let value = lines.find_map(|known| known.strip_prefix(&line));
    value.unwrap().parse().unwrap()
}

/// Whether a new connection is served.
fn is_served(balancer: &Balancer) -> Option<Wire> {
    let mut wire = balancer.connect();
    wire.try_send("GET /x HTTP/1.1\r\nHost: a\r\n\r\n");
    let head = wire.try_read_head()?;
    assert_eq!(head.second_word(), "200");
    assert_eq!(wire.try_read_exact(2).unwrap(), b"/x");
    Some(wire)
}

#[test]
fn requests_above_the_rate_are_answered_and_cost_members_nothing() {
    let member = Member::echoing_targets();
    let limits = "[rule.web.limits]\nrequests = \"3/h\"\n";
    let first = config("http", 1, member.address(), limits);
    let balancer = Balancer::start(&first);
    let log = balancer.folder().join("access.log");
    let log = format!("[access_log]\noutput = \"{}\"\n", log.display());
    let first = first + &log;
    balancer.reconfigure(&first);
    let mut client = balancer.connect();
    assert_eq!(statuses(&mut client, "", 3), ["200"; 3]);
    let answer = ask(&mut client, "");
    assert_eq!(answer.second_word(), "429");
    // A third of an hour, less what has passed.
    let wait: u32 = answer.values("retry-after")[0].parse().unwrap();
    assert!((1000..=1200).contains(&wait), "{wait}");
    assert_eq!(answer.text(), "Too many requests. Try again later.\n");
    // The same connection goes on, and another one is the same client's.
    assert_eq!(statuses(&mut client, "", 2), ["429"; 2]);
    assert_eq!(statuses(&mut balancer.connect(), "", 1), ["429"]);
    assert_eq!(member.seen().len(), 3);
    assert_eq!(limited(&balancer, "requests"), 4);

    // Answers without content to HEAD, and a body that was not asked for.
    client.send("HEAD /x HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(client.read_head().second_word(), "429");
    client.send("POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc");
    assert_eq!(client.read_response().second_word(), "429");
    assert_eq!(statuses(&mut client, "", 1), ["429"]);
    client.send("POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 300000\r\n\r\n");
    let answer = client.read_response();
    assert_eq!(answer.second_word(), "429");
    assert_eq!(
        answer.values("connection"),
        ["close"],
        "the body is in the way"
    );

    let log = |balancer: &Balancer| balancer.folder().text("access.log");
    eventually("refused requests are logged", || {
        let line = "\"status\":429,";
        let ends = "\"end\":\"limited\",\"limit\":\"requests\"}";
        let logged = log(&balancer);
        let lines = logged.lines();
        lines
            .filter(|known| known.contains(line) && known.ends_with(ends))
            .count()
            == 8
    });
    let status = balancer.status();
    let limit = &status["rules"][0]["limits"][0];
    assert_eq!(
        (&limit["limit"], &limit["clients"]),
        (&"requests".into(), &1.into())
    );
    assert_eq!(
        (&limit["refused"], &limit["lifted"]),
        (&8.into(), &0.into())
    );
    let table = balancer.ctl("status").unwrap();
    assert!(
        table.contains("web   requests        1        8       0"),
        "{table}"
    );

    // What was used stays used where the rate stays; a new rate begins anew.
    balancer.reconfigure(&first.replace("\"3/h\"", "\"3/h\"\nstatus = 503"));
    assert_eq!(statuses(&mut balancer.connect(), "", 1), ["503"]);
    balancer.reconfigure(&first.replace("\"3/h\"", "\"3/h\"\nburst = 4"));
    assert_eq!(
        statuses(&mut balancer.connect(), "", 5),
        ["200", "200", "200", "200", "429"]
    );
    balancer.reconfigure(&first.replace("\"3/h\"", "\"3/h\"\nexcept = [\"127.0.0.0/8\"]"));
    assert_eq!(statuses(&mut balancer.connect(), "", 9), ["200"; 9]);
    balancer.reconfigure(&first.replace(limits, ""));
    assert_eq!(statuses(&mut balancer.connect(), "", 9), ["200"; 9]);
    assert_eq!(limited(&balancer, "requests"), 10);
}

#[test]
fn workers_share_a_limit() {
    let member = Member::echoing_targets();
    let limits = "[rule.web.limits]\nrequests = \"40/h\"\nconnections = 30\n";
    let balancer = Balancer::start(&config("http", 4, member.address(), limits));
    let address = balancer.address("web");
    let threads: Vec<_> = (0..10)
        .map(|_| {
            std::thread::spawn(move || {
                let mut clients = [Wire::connect(address), Wire::connect(address)];
                let mut passed = 0;
                for client in &mut clients {
                    let statuses = statuses(client, "", 10);
                    passed += statuses.iter().filter(|status| *status == "200").count();
                }
                passed
            })
        })
        .collect();
    let passed: usize = threads.into_iter().map(|one| one.join().unwrap()).sum();
    assert_eq!(passed, 40);
    assert_eq!(limited(&balancer, "connections"), 0);
}

#[test]
fn a_client_is_what_the_key_says() {
    let member = Member::echoing_targets();
    let more = "http = { trust_forwarded = true }\n[rule.web.limits]\nrequests = \"2/h\"\n";
    let first = config("http", 1, member.address(), more);
    let by = |key: &str| first.clone() + &format!("key = \"{key}\"\n");
    let balancer = Balancer::start(&by("header:X-Api-Key"));
    let mut client = balancer.connect();
    assert_eq!(
        statuses(&mut client, "X-Api-Key: a\r\n", 3),
        ["200", "200", "429"]
    );
    assert_eq!(
        statuses(&mut client, "x-api-key: b\r\n", 3),
        ["200", "200", "429"]
    );
    assert_eq!(statuses(&mut client, "", 3), ["200", "200", "429"]);
    balancer.reconfigure(&by("forwarded_for"));
    let from = |client: &mut Wire, text: &str| {
        statuses(client, &format!("X-Forwarded-For: {text}\r\n"), 3)
    };
    assert_eq!(from(&mut client, "192.0.2.1"), ["200", "200", "429"]);
    assert_eq!(from(&mut client, "10.9.8.7, 192.0.2.1"), ["429"; 3]);
    assert_eq!(from(&mut client, "192.0.2.2"), ["200", "200", "429"]);

    // Each address behind a proxy that says who the client is.
    let proxied = first.replace("http = {", "accept_proxy = [\"127.0.0.1\"]\nhttp = {");
    balancer.reconfigure(&(proxied + "connections = 1\n"));
    let behind = |address: &str| {
        let mut wire = balancer.connect();
        wire.send(format!("PROXY TCP4 {address} 192.0.2.9 7 80\r\n"));
        wire
    };
    let mut one = behind("192.0.2.1");
    assert_eq!(statuses(&mut one, "", 3), ["200", "200", "429"]);
    let mut other = behind("192.0.2.2");
    assert_eq!(statuses(&mut other, "", 3), ["200", "200", "429"]);
    assert!(behind("192.0.2.1").is_at_end());
    assert_eq!(limited(&balancer, "connections"), 1);
}

#[test]
fn a_client_has_so_many_connections() {
    for protocol in ["http", "tcp"] {
        let member = Member::echoing_targets();
        let limits = "[rule.web.limits]\nconnections = 3\n";
        let first = config(protocol, 2, member.address(), limits);
        let balancer = Balancer::start(&first);
        let mut held: Vec<_> = (0..3).map(|_| is_served(&balancer).unwrap()).collect();
        assert!(is_served(&balancer).is_none(), "{protocol}");
        assert!(is_served(&balancer).is_none(), "{protocol}");
        assert_eq!(limited(&balancer, "connections"), 2);
        // One that ends makes room; the balancer learns of it a little later.
        held.pop();
        eventually("a connection has ended", || {
            let more = is_served(&balancer);
            let served = more.is_some();
            held.extend(more);
            served
        });
        assert!(is_served(&balancer).is_none(), "{protocol}");
        // Those that are open count over reloads.
        balancer.reconfigure(&first.replace("= 3", "= 4"));
        held.push(is_served(&balancer).unwrap());
        assert!(is_served(&balancer).is_none(), "{protocol}");
        balancer.reconfigure(&first.replace("= 3", "= 1\nexcept = [\"127.0.0.1\"]"));
        held.push(is_served(&balancer).unwrap());
        held.clear();
        balancer.reconfigure(&first.replace(
            "connections = 3",
            "new_connections = \"2/h\"\nnew_connections_burst = 5",
        ));
        for _ in 0..5 {
            assert!(is_served(&balancer).is_some(), "{protocol}");
        }
        assert!(is_served(&balancer).is_none(), "{protocol}");
        assert_eq!(limited(&balancer, "new_connections"), 1);
        assert!(is_served(&balancer).is_none(), "{protocol}");
    }
}

#[test]
fn http2_and_grpc_are_limited_alike() {
    if !installed(&["curl"]) {
        return;
    }
    let member = Member::answering(|_| ok("x"));
    let limits = "[rule.web.limits]\nrequests = \"2/h\"\n";
    let balancer = Balancer::start(&config("http", 1, member.address(), limits));
    let url = format!("http://{}/x", balancer.address("web"));
    let code = [
        "--http2-prior-knowledge",
        "-w",
        " %{http_code} %{http_version}",
        "-o",
        "-",
    ];
    let get = |more: &[&str]| curl(&[&code[..], more, &[&url]].concat());
    assert_eq!(get(&[]), "x 200 2");
    assert_eq!(get(&[]), "x 200 2");
    assert_eq!(get(&[]), "Too many requests. Try again later.\n 429 2");
    let call = [
        "-H",
        "content-type: application/grpc",
        "-D",
        "-",
        "--data-binary",
        "x",
    ];
    let head = get(&call);
    assert!(head.contains("HTTP/2 200"), "{head}");
    assert!(head.contains("grpc-status: 8"), "{head}");
    assert_eq!(limited(&balancer, "requests"), 2);
    if !installed(&["h2load"]) {
        return;
    }
    // Many in one connection, which goes on.
    let output = program("h2load")
        .args(["-n", "50", "-c", "1", "-m", "5", &url])
        .output()
        .unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(
        said.contains("50 done, 0 succeeded, 50 failed, 0 errored"),
        "{said}"
    );
    assert!(said.contains("0 2xx, 0 3xx, 50 4xx, 0 5xx"), "{said}");
}

/// As many requests pass under load as the rate allows, whatever the load.
#[test]
fn a_load_generator_gets_the_rate_and_no_more() {
    if !installed(&["wrk"]) {
        return;
    }
    let member = Member::answering(|_| ok("x"));
    let limits = "[rule.web.limits]\nrequests = \"500/s\"\nburst = 100\n";
    let balancer = Balancer::start(&config("http", 2, member.address(), limits));
    let url = format!("http://{}/x", balancer.address("web"));
    let began = std::time::Instant::now();
    let output = program("wrk")
        .args(["-t2", "-c16", "-d2s", &url])
        .output()
        .unwrap();
    let lasted = began.elapsed().as_secs_f64();
    assert!(output.status.success());
    let passed = member.seen().len() as f64;
    assert!(
        passed <= 100.0 + 500.0 * lasted + 1.0,
        "{passed} in {lasted} s"
    );
    assert!(passed >= 100.0, "{passed}");
    assert!(limited(&balancer, "requests") > 0);
}

#[test]
fn what_cannot_be_meant_is_refused() {
    let folder = Folder::new();
    let check = |protocol: &str, more: &str| {
        let text = config(protocol, 1, "127.0.0.1:9".parse().unwrap(), more);
        let file = folder.write("evenkeel.toml", text).display().to_string();
        evenkeel(&["check", &file])
    };
    for (protocol, lines, why) in [
        ("http", "requests = \"100\"", "not a rate"),
        ("http", "requests = \"0/s\"", "out of range"),
        ("http", "burst = 3", "has no effect without `requests`"),
        ("http", "except = [\"::1\"]", "has no effect without"),
        (
            "http",
            "requests = \"1/s\"\nkey = \"host\"",
            "no part of a request",
        ),
        (
            "http",
            "requests = \"1/s\"\nkey = \"forwarded_for\"",
            "`trust_forwarded = true`",
        ),
        ("http", "connections = 0", "out of range"),
        (
            "tcp",
            "requests = \"1/s\"",
            "only a rule with `protocol = \"http\"`",
        ),
    ] {
        let limits = format!("[rule.web.limits]\n{lines}\n");
        let error = check(protocol, &limits).unwrap_err();
        assert!(error.contains(why), "{error}");
        assert!(error.contains("rule.web.limits."), "{error}");
    }
    let limits = "[rule.web.limits]\nconnections = 5\nnew_connections = \"3/10s\"\n";
    check("tcp", limits).unwrap();
}
