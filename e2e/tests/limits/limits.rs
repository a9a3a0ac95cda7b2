//! Limits for clients, as clients meet them.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking.

use std::net::SocketAddr;

use evenkeel_e2e::balancer::{Balancer, run_evenkeel};
use evenkeel_e2e::folder::Folder;
use evenkeel_e2e::member::{Member, ok_response};
use evenkeel_e2e::process::{are_installed, program, run_curl};
use evenkeel_e2e::wait_until;
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
    balancer.rule_count("limited_total", &format!("limit=\"{limit}\""))
}

/// Returns the connection if a new connection is served.
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
    assert_eq!(member.seen_events().len(), 3);
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
    wait_until("refused requests are logged", || {
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
    let table = balancer.run_ctl("status").unwrap();
    assert!(
        table.contains("web   requests  3/h   client        1        8       0"),
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
fn a_request_is_within_each_of_several_limits() {
    let member = Member::echoing_targets();
    let lists = "[rule.web.limits]\nrequests = \"9/h\"\n\
        [[rule.web.request_limits]]\nname = \"key\"\nrequests = \"3/h\"\nkey = \"header:X-Key\"\nstatus = 503\n\
        [[rule.web.routes]]\nname = \"login\"\npath = \"/login\"\n\
        request_limits = [{ requests = \"1/2h\" }]\n";
    let first = config("http", 2, member.address(), lists);
    let balancer = Balancer::start(&first);
    let log = balancer.folder().join("access.log");
    let log = format!("[access_log]\noutput = \"{}\"\n", log.display());
    let first = first + &log;
    balancer.reconfigure(&first);
    let mut client = balancer.connect();
    let a = |client: &mut Wire, number| statuses(client, "X-Key: a\r\n", number);
    assert_eq!(a(&mut client, 5), ["200", "200", "200", "503", "503"]);
    let login = |client: &mut Wire| {
        client.send("GET /login HTTP/1.1\r\nHost: a\r\nX-Key: b\r\n\r\n");
        client.read_response()
    };
    assert_eq!(login(&mut client).second_word(), "200");
    let answer = login(&mut client);
    assert_eq!(answer.second_word(), "429");
    let wait: u32 = answer.values("retry-after")[0].parse().unwrap();
    assert!((3600..=7200).contains(&wait), "{wait}");
    // What others have refused has used nothing of these: five of nine, and two of three, are left.
    assert_eq!(
        statuses(&mut client, "X-Key: b\r\n", 3),
        ["200", "200", "503"]
    );
    assert_eq!(
        statuses(&mut client, "X-Key: c\r\n", 4),
        ["200", "200", "200", "503"]
    );
    assert_eq!(statuses(&mut client, "X-Key: d\r\n", 1), ["429"]);
    assert_eq!(member.seen_events().len(), 9);
    for (limit, refused) in [("requests", 1), ("key", 4), ("login/1", 1)] {
        assert_eq!(limited(&balancer, limit), refused, "{limit}");
    }
    wait_until("refused requests are logged", || {
        let logged = balancer.folder().text("access.log");
        let of = |limit: &str| {
            let end = format!("\"end\":\"limited\",\"limit\":\"{limit}\"}}");
            logged.lines().filter(|line| line.ends_with(&end)).count()
        };
        [of("requests"), of("key"), of("login/1")] == [1, 4, 1]
    });
    let table = balancer.run_ctl("status").unwrap();
    for row in [
        "web requests 9/h client 1 1 0",
        "web key 3/h header:X-Key 3 4 0",
        "web login/1 1/2h client 1 1 0",
    ] {
        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(table.lines().any(|line| words(line) == row), "{table}");
    }
    let status = balancer.status();
    let limit = &status["rules"][0]["limits"][2];
    assert_eq!(
        (&limit["limit"], &limit["rate"]),
        (&"login/1".into(), &"1/2h".into())
    );

    // The rate of one changes: the others go on, and counters never go back.
    balancer.reconfigure(&first.replace("9/h", "20/h"));
    let mut client = balancer.connect();
    assert_eq!(a(&mut client, 1), ["503"]);
    assert_eq!(login(&mut client).second_word(), "429");
    assert_eq!(statuses(&mut client, "X-Key: e\r\n", 3), ["200"; 3]);
    assert_eq!(limited(&balancer, "key"), 5);
    balancer.reconfigure(&first.replace(lists, ""));
    assert_eq!(a(&mut balancer.connect(), 9), ["200"; 9]);
    assert_eq!(limited(&balancer, "key"), 5);
    if !are_installed(&["curl"]) {
        return;
    }
    balancer.reconfigure(&first);
    let url = format!("http://{}/login", balancer.address("web"));
    let get = || {
        run_curl(&[
            "--http2-prior-knowledge",
            "-w",
            " %{http_code}",
            "-o",
            "/dev/null",
            &url,
        ])
    };
    assert_eq!([get(), get()], [" 200", " 429"]);
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
        wait_until("a connection has ended", || {
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
    if !are_installed(&["curl"]) {
        return;
    }
    let member = Member::answering_with(|_| ok_response("x"));
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
    let get = |more: &[&str]| run_curl(&[&code[..], more, &[&url]].concat());
    assert_eq!(get(&[]), "x 200 2");
    assert_eq!(get(&[]), "x 200 2");
    assert_eq!(get(&[]), "Too many requests. Try again later.\n 429 2");
    // Without a body, which curl 7.88 might still be sending when the answer ends the stream.
    let call = ["-H", "content-type: application/grpc", "-D", "-"];
    let head = get(&call);
    assert!(head.contains("HTTP/2 200"), "{head}");
    assert!(head.contains("grpc-status: 8"), "{head}");
    assert_eq!(limited(&balancer, "requests"), 2);
    if !are_installed(&["h2load"]) {
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

/// A rate limit lets as many requests pass under load as the rate allows, whatever the load.
#[test]
fn a_load_generator_gets_the_rate_and_no_more() {
    if !are_installed(&["wrk"]) {
        return;
    }
    let member = Member::answering_with(|_| ok_response("x"));
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
    let passed = member.seen_events().len() as f64;
    assert!(
        passed <= 100.0 + 500.0 * lasted + 1.0,
        "{passed} in {lasted} s"
    );
    // A machine that is very busy does not reach the rate: all pass then.
    let all = passed + limited(&balancer, "requests") as f64;
    assert!(passed >= all.min(100.0), "{passed} of {all}");
}

/// Switches the access log on.
fn log_of(balancer: &Balancer, config: &str) {
    let log = balancer.folder().join("access.log");
    let log = format!("[access_log]\noutput = \"{}\"\n", log.display());
    balancer.reconfigure(&format!("{config}{log}"));
}

fn logged(balancer: &Balancer, limit: &str) {
    let line = format!("\"end\":\"limited\",\"limit\":\"{limit}\"}}");
    wait_until("it is logged", || {
        balancer.folder().text("access.log").contains(&line)
    });
}

#[test]
fn a_connection_has_so_many_requests_and_lives_so_long() {
    let member = Member::echoing_targets();
    let limits = "[rule.web.limits]\nmax_requests = 20\n";
    let first = config("http", 1, member.address(), limits);
    let balancer = Balancer::start(&first);
    let mut lengths = Vec::new();
    for _ in 0..20 {
        let mut client = balancer.connect();
        let mut requests = 0;
        loop {
            requests += 1;
            let answer = ask(&mut client, "");
            assert_eq!(answer.second_word(), "200");
            if answer.values("connection") == ["close"] {
                break;
            }
        }
        assert!(client.is_at_end());
        lengths.push(requests);
    }
    lengths.sort_unstable();
    // By chance not all the same: twenty times the same is one in a million.
    assert!(
        lengths[0] >= 18 && lengths[19] <= 20 && lengths[0] < lengths[19],
        "{lengths:?}"
    );
    if are_installed(&["h2load"]) {
        let url = format!("http://{}/x", balancer.address("web"));
        let output = program("h2load")
            .args(["-n", "1000", "-c", "1", &url])
            .output()
            .unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        let before = member.seen_events().len();
        // It opens no other connection when it gets a GOAWAY, and what it has asked for is answered.
        let (_, status) = said.split_once("status codes: ").unwrap();
        let answered: u32 = status.split(' ').next().unwrap().parse().unwrap();
        assert!((18..1000).contains(&answered), "{said} {before}");
    }

    balancer.reconfigure(&first.replace("max_requests = 20", "max_lifetime = \"1s\""));
    let mut idle = balancer.connect();
    assert_eq!(statuses(&mut idle, "", 1), ["200"]);
    // Whoever asks at that time is told; whoever has his answer, and has not asked again yet, is not.
    wait_until("one that asks is told", || {
        let mut busy = balancer.connect();
        loop {
            let asked = busy.try_send("GET /x HTTP/1.1\r\nHost: a\r\n\r\n");
            let answer = asked.then(|| busy.try_read_head()).flatten();
            let Some(answer) = answer else { return false };
            assert_eq!(answer.second_word(), "200");
            assert_eq!(busy.try_read_exact(2).unwrap(), b"/x");
            if answer.values("connection") == ["close"] {
                return busy.is_at_end();
            }
        }
    });
    assert!(idle.is_at_end(), "long before keep_alive_timeout");

    let config = config(
        "tcp",
        1,
        member.address(),
        "[rule.web.limits]\nmax_lifetime = \"1s\"\n",
    );
    let balancer = Balancer::start(&config);
    log_of(&balancer, &config);
    let mut client = is_served(&balancer).unwrap();
    while client.try_send("GET /x HTTP/1.1\r\nHost: a\r\n\r\n") && client.try_read_head().is_some()
    {
        client.try_read_exact(2);
    }
    logged(&balancer, "max_lifetime");
    assert_eq!(limited(&balancer, "max_lifetime"), 1);
}

#[test]
fn slow_clients_are_cut_and_fast_ones_are_not() {
    let member = Member::answering_with(|request| match request.second_word() {
        "/large" => ok_response(&"x".repeat(40_000_000)),
        _ => ok_response(&request.body.len().to_string()),
    });
    let limits = "[rule.web.limits]\nmin_body_rate = \"1MB/s\"\n\
         min_response_rate = \"1MB/s\"\nrate_grace = \"1s\"\n";
    let config = config("http", 1, member.address(), limits);
    let balancer = Balancer::start(&config);
    log_of(&balancer, &config);
    let head = "POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 3000000\r\n\r\n";
    let mut fast = balancer.connect();
    fast.send(head);
    fast.send("x".repeat(3_000_000));
    assert_eq!(fast.read_response().text(), "3000000");

    // A byte now and then: never long enough for a pause, and never enough.
    let mut slow = balancer.connect();
    slow.send(head);
    let mut writer = slow.writer();
    let drip = std::thread::spawn(move || {
        while writer.try_send("x") {
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    });
    let answer = slow.read_response();
    assert_eq!(answer.second_word(), "408");
    assert_eq!(answer.text(), "The request's body arrives too slowly.\n");
    assert!(slow.is_at_end());
    drip.join().unwrap();
    assert_eq!(limited(&balancer, "min_body_rate"), 1);
    logged(&balancer, "min_body_rate");

    let mut fast = balancer.connect();
    fast.send("GET /large HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(fast.read_response().body.len(), 40_000_000);
    let mut slow = balancer.connect();
    slow.send("GET /large HTTP/1.1\r\nHost: a\r\n\r\n");
    // Nothing is read until it is over.
    logged(&balancer, "min_response_rate");
    assert_eq!(limited(&balancer, "min_response_rate"), 1);
    assert!(slow.read_to_end().len() < 40_000_000);
}

fn pauses(balancer: &Balancer) -> f64 {
    let name = "evenkeel_rule_bandwidth_pauses_total{rule=\"web\"}";
    balancer.read_metric(name).unwrap()
}

/// Upper bound of the pauses of flows that move so many bytes each. A flow that pauses is woken by the next sweep, of
/// which there are ten a second, and by a segment that arrives. A flow that asks again and again comes to tens of
/// thousands.
fn most_pauses(flows: usize, bytes: usize, seconds: f64) -> f64 {
    let segments = bytes as f64 / 1448.0;
    flows as f64 * (10.0 * (seconds + 1.0) + segments)
}

#[test]
fn a_rule_has_its_bandwidth_and_all_get_some() {
    const SIZE: usize = 1_500_000;
    for protocol in ["http", "tcp"] {
        let member = Member::answering_with(|request| match request.second_word() {
            "/down" => ok_response(&"x".repeat(SIZE)),
            _ => ok_response(&request.body.len().to_string()),
        });
        let limits = "[rule.web.limits]\nbandwidth = \"4MB/s\"\n";
        let config = config(protocol, 2, member.address(), limits);
        let balancer = Balancer::start(&config);
        let address = balancer.address("web");
        for up in [false, true] {
            let began = std::time::Instant::now();
            let before = pauses(&balancer);
            let clients: Vec<_> = (0..6)
                .map(|_| {
                    std::thread::spawn(move || {
                        let mut wire = Wire::connect(address);
                        if up {
                            let length = format!("Content-Length: {SIZE}\r\n\r\n");
                            wire.send(format!("POST /up HTTP/1.1\r\nHost: a\r\n{length}"));
                            wire.send("x".repeat(SIZE));
                            assert_eq!(wire.read_response().text(), SIZE.to_string());
                        } else {
                            wire.send("GET /down HTTP/1.1\r\nHost: a\r\n\r\n");
                            assert_eq!(wire.read_response().body.len(), SIZE);
                        }
                    })
                })
                .collect();
            clients
                .into_iter()
                .for_each(|client| client.join().unwrap());
            let seconds = began.elapsed().as_secs_f64();
            // What may be ahead, and a portion for each.
            let most = 4e6 * (seconds + 0.15) + 6.0 * 100_000.0;
            assert!(6.0 * SIZE as f64 <= most, "{protocol} {up}: {seconds} s");
            let paused = pauses(&balancer) - before;
            let most = most_pauses(6, SIZE, seconds);
            assert!((1.0..=most).contains(&paused), "{paused} of {most} pauses");
        }
        // More from now on, also for those that are there.
        let mut wire = Wire::connect(address);
        wire.send("GET /down HTTP/1.1\r\nHost: a\r\n\r\n");
        balancer.reconfigure(&config.replace(limits, ""));
        assert_eq!(wire.read_response().body.len(), SIZE);
    }
}

#[test]
fn a_connection_has_its_bandwidth_whatever_others_do() {
    const SIZE: usize = 1_200_000;
    for protocol in ["http", "tcp"] {
        let member = Member::answering_with(|request| match request.second_word() {
            "/down" => ok_response(&"x".repeat(SIZE)),
            _ => ok_response(&request.body.len().to_string()),
        });
        let limits = "[rule.web.limits]\nconnection_bandwidth = \"1MB/s\"\n";
        let config = config(protocol, 2, member.address(), limits);
        let balancer = Balancer::start(&config);
        let address = balancer.address("web");
        let clients: Vec<_> = [false, true, false, true]
            .into_iter()
            .map(|up| {
                std::thread::spawn(move || {
                    let began = std::time::Instant::now();
                    let mut wire = Wire::connect(address);
                    if up {
                        let length = format!("Content-Length: {SIZE}\r\n\r\n");
                        wire.send(format!("POST /up HTTP/1.1\r\nHost: a\r\n{length}"));
                        wire.send("x".repeat(SIZE));
                        assert_eq!(wire.read_response().text(), SIZE.to_string());
                    } else {
                        wire.send("GET /down HTTP/1.1\r\nHost: a\r\n\r\n");
                        assert_eq!(wire.read_response().body.len(), SIZE);
                    }
                    began.elapsed().as_secs_f64()
                })
            })
            .collect();
        let mut longest: f64 = 0.0;
        for client in clients {
            let seconds = client.join().unwrap();
            longest = longest.max(seconds);
            // What may be ahead, and a portion.
            let most = 1e6 * (seconds + 0.15) + 100_000.0;
            assert!(SIZE as f64 <= most, "{protocol}: {seconds} s");
        }
        let (paused, most) = (pauses(&balancer), most_pauses(4, SIZE, longest));
        assert!((1.0..=most).contains(&paused), "{paused} of {most} pauses");
        // Without the limit those that are there are free, too.
        let mut wire = Wire::connect(address);
        wire.send("GET /down HTTP/1.1\r\nHost: a\r\n\r\n");
        balancer.reconfigure(&config.replace(limits, ""));
        assert_eq!(wire.read_response().body.len(), SIZE);
    }
    if !are_installed(&["h2load"]) {
        return;
    }
    // Streams of a connection share it.
    let member = Member::answering_with(|_| ok_response(&"x".repeat(SIZE / 2)));
    let limits = "[rule.web.limits]\nconnection_bandwidth = \"1MB/s\"\n";
    let balancer = Balancer::start(&config("http", 2, member.address(), limits));
    let url = format!("http://{}/x", balancer.address("web"));
    let began = std::time::Instant::now();
    let output = program("h2load")
        .args(["-n", "2", "-c", "1", "-m", "2", &url])
        .output()
        .unwrap();
    let seconds = began.elapsed().as_secs_f64();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.contains("2 done, 2 succeeded"), "{said}");
    assert!(
        SIZE as f64 <= 1e6 * (seconds + 0.15) + 200_000.0,
        "{seconds} s"
    );
}

#[test]
fn a_rule_in_maintenance_shows_its_page() {
    let member = Member::echoing_targets();
    let folder = Folder::new();
    let page = folder.write("page.html", "<p>Back at noon.</p>");
    let maintenance = format!("[rule.web.maintenance]\npage = \"{}\"\n", page.display());
    let first = config("http", 2, member.address(), &maintenance);
    let balancer = Balancer::start(&first);
    log_of(&balancer, &first);
    let mut client = balancer.connect();
    assert_eq!(statuses(&mut client, "", 1), ["200"]);
    let said = balancer.run_ctl("maintain web on").unwrap();
    assert_eq!(said, "web is in maintenance\n");
    let is = |client: &mut Wire, status: &str| {
        wait_until("all workers know", || {
            ask(client, "").second_word() == status
        });
    };
    is(&mut client, "503");
    let answer = ask(&mut client, "");
    assert_eq!(answer.text(), "<p>Back at noon.</p>");
    assert_eq!(answer.values("content-type"), ["text/html; charset=utf-8"]);
    assert_eq!(answer.values("retry-after"), ["300"]);
    assert!(
        answer.values("connection").is_empty(),
        "the connection goes on"
    );
    client.send("HEAD / HTTP/1.1\r\nHost: a\r\n\r\n");
    let head = client.read_head();
    assert_eq!(head.values("content-length"), ["20"]);
    is(&mut balancer.connect(), "503");
    if are_installed(&["curl"]) {
        let url = format!("http://{}/x", balancer.address("web"));
        let code = ["--http2-prior-knowledge", "-w", " %{http_code}", &url];
        wait_until("all workers know", || {
            run_curl(&code) == "<p>Back at noon.</p> 503"
        });
    }
    wait_until("it is logged", || {
        balancer
            .folder()
            .text("access.log")
            .contains("\"end\":\"maintenance\"")
    });
    assert_eq!(balancer.status()["rules"][0]["maintenance"], true);
    assert!(balancer.run_ctl("status").unwrap().contains("maintenance"));
    let metrics = balancer.admin_get("/metrics");
    assert!(
        metrics
            .text()
            .contains("evenkeel_rule_maintenance{rule=\"web\"} 1\n")
    );

    // A change of something else keeps it, and the page is not read anew by a live change.
    folder.write("page.html", "<p>Back at one.</p>");
    balancer.run_ctl("maintain web off").unwrap();
    is(&mut client, "200");
    balancer.run_ctl("maintain web on").unwrap();
    is(&mut balancer.connect(), "503");
    assert_eq!(
        ask(&mut balancer.connect(), "").text(),
        "<p>Back at noon.</p>"
    );
    balancer.reconfigure(&first.replace("[rule.web.m", "cost = 2\n[rule.web.m"));
    wait_until("the new page is there", || {
        ask(&mut balancer.connect(), "").text() == "<p>Back at one.</p>"
    });
    balancer.run_ctl("maintain web off").unwrap();
    is(&mut balancer.connect(), "200");
    is(&mut balancer.connect(), "200");

    // By the file, for others than those that are listed. A page that is gone is shown as it was.
    let on =
        first.clone() + "on = true\nretry_after = \"1m\"\nstatus = 500\nexcept = [\"127.0.0.2\"]\n";
    balancer.reconfigure(&on);
    is(&mut balancer.connect(), "500");
    balancer.reconfigure(&on.replace("127.0.0.2", "127.0.0.1"));
    is(&mut balancer.connect(), "200");
    std::fs::remove_file(&page).unwrap();
    balancer.reconfigure(&on);
    is(&mut balancer.connect(), "500");
    assert_eq!(
        ask(&mut balancer.connect(), "").text(),
        "<p>Back at one.</p>"
    );
    wait_until("somebody is told", || balancer.log().contains("page.html"));
    balancer.run_ctl("maintain web off").unwrap();
    balancer.run_ctl("maintain nobody off").unwrap_err();

    let tcp = config("tcp", 1, member.address(), "");
    let balancer = Balancer::start(&tcp);
    let mut open = is_served(&balancer).unwrap();
    balancer.run_ctl("maintain web on").unwrap();
    wait_until("the worker knows", || is_served(&balancer).is_none());
    assert_eq!(statuses(&mut open, "", 1), ["200"], "what is open goes on");
    balancer.run_ctl("maintain web off").unwrap();
    wait_until("the worker knows", || is_served(&balancer).is_some());
}

#[test]
fn what_cannot_be_meant_is_refused() {
    let folder = Folder::new();
    let check = |protocol: &str, more: &str| {
        let text = config(protocol, 1, "127.0.0.1:9".parse().unwrap(), more);
        let file = folder.write("evenkeel.toml", text).display().to_string();
        run_evenkeel(&["check", &file])
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
    let list =
        |one: &str, number| format!("request_limits = [{}]\n", [one].repeat(number).join(", "));
    for (protocol, more, why) in [
        ("http", list("{ burst = 3 }", 1), "`requests` is missing"),
        (
            "http",
            list("{ requests = \"1/s\", name = \"connections\" }", 1),
            "another limit is called so",
        ),
        (
            "http",
            list("{ requests = \"1/s\", name = \"x\" }", 2),
            "two limits x",
        ),
        (
            "http",
            list("{ requests = \"1/s\", key = \"forwarded_for\" }", 1),
            "`trust_forwarded = true`",
        ),
        (
            "http",
            list("{ requests = \"1/s\" }", 9),
            "more than 8 limits",
        ),
        (
            "tcp",
            list("{ requests = \"1/s\" }", 1),
            "only a rule with `protocol = \"http\"`",
        ),
    ] {
        let error = check(protocol, &more).unwrap_err();
        assert!(error.contains(why), "{error}");
        assert!(error.contains("rule.web.request_limits"), "{error}");
    }
    let route = |name: &str, limit: &str| {
        format!(
            "[[rule.web.routes]]\npath = \"/{limit}\"\nname = \"{name}\"\nrequest_limits = {{ requests = \"{limit}/s\" }}\n"
        )
    };
    let error = check("http", &(route("a", "1") + &route("a", "2"))).unwrap_err();
    assert!(error.contains("two limits a/1"), "{error}");
    check(
        "http",
        &(route("a", "1")
            + &route("b", "2")
            + "[rule.web.limits]\nrequests = \"1/s\"\nkey = \"all\"\n"),
    )
    .unwrap();
}
