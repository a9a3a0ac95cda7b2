//! Operation of a balancer that serves: what an operator does to it, and what it tells.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking.

use std::collections::BTreeMap;
use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use evenkeel_e2e::balancer::{Balancer, run_evenkeel};
use evenkeel_e2e::folder::Folder;
use evenkeel_e2e::load::Clients;
use evenkeel_e2e::member::{Member, Signal as Gate, ok_response};
use evenkeel_e2e::process::{Signal, are_installed, run_curl};
use evenkeel_e2e::server::{Server, address};
use evenkeel_e2e::wait_until;
use evenkeel_e2e::wire::Wire;
use serde_json::Value;

fn requests(balancer: &Balancer, member: SocketAddr) -> u64 {
    let member = balancer.member_status("web", member);
    member["totals"]["requests"].as_u64().unwrap()
}

#[test]
fn members_leave_and_come_back_by_command() {
    if !are_installed(&["nginx"]) {
        return;
    }
    let servers = [Server::start_nginx(None), Server::start_nginx(None)];
    let members = servers.each_ref().map(Server::address);
    let balancer = Balancer::start_http(&members, "slow_start = \"0s\"");
    let clients = Clients::start(balancer.address("web"), 4);
    let [member, other] = members;
    for (command, state) in [("drain", "draining"), ("maintenance", "maintenance")] {
        clients.wait_for(20);
        balancer
            .run_ctl(&format!("{command} web {member}"))
            .unwrap();
        balancer.wait_for_state("web", member, &[state]);
        wait_until("it has nothing left", || {
            balancer.member_status("web", member)["in_flight"] == 0
        });
        let left = requests(&balancer, member);
        let before = requests(&balancer, other);
        clients.wait_for(50);
        assert_eq!(requests(&balancer, member), left, "after {command}");
        assert!(requests(&balancer, other) > before);
        let explained = balancer.run_ctl("explain web").unwrap();
        assert!(explained.contains(state), "{explained}");
        balancer.run_ctl(&format!("ready web {member}")).unwrap();
        wait_until("it gets requests", || requests(&balancer, member) > left);
    }
    // A weight of 0 does the same as a drain.
    balancer.run_ctl(&format!("weight web {member} 0")).unwrap();
    wait_until("it has nothing left", || {
        balancer.member_status("web", member)["in_flight"] == 0
    });
    let left = requests(&balancer, member);
    clients.wait_for(50);
    assert_eq!(requests(&balancer, member), left);
    clients.stop_and_count();
}

#[test]
fn g6_members_with_names_are_called_by_them() {
    let members = [Member::echoing_targets(), Member::echoing_targets()];
    let [first, second] = members.each_ref().map(Member::address);
    let folder = Folder::new();
    let log = folder.join("access.log");
    let balancer = Balancer::start(&format!(
        "workers = 1\n[admin]\nlisten = \"127.0.0.1:0\"\n[access_log]\noutput = {log:?}\n\
         format = \"{{group}}/{{member_name}} {{member}}\"\n\
         [rule.web]\nlisten = \"127.0.0.1:0\"\nhealth_check = false\n\
         members = [{{ address = \"{first}\", name = \"s1\" }}, {{ address = \"{second}\", name = \"s2\" }}]\n"
    ));
    let mut wanted = String::new();
    for (out, other, address) in [("s1", "s2", second), ("s2", "s1", first)] {
        let answer = balancer.run_ctl(&format!("drain web {out}")).unwrap();
        assert_eq!(answer, format!("{out} in web drains\n"));
        let explained = balancer.run_ctl("explain web").unwrap();
        assert!(
            explained.contains(&format!("would go to {other} ")),
            "{explained}"
        );
        let mut client = balancer.connect();
        client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(client.read_response().second_word(), "200");
        wanted.push_str(&format!("web/{other} {address}\n"));
        balancer.run_ctl(&format!("ready web {out}")).unwrap();
    }
    wait_until("both requests are logged", || {
        log.exists() && folder.text("access.log") == wanted
    });
    let complaint = balancer.run_ctl("drain web s3").unwrap_err();
    assert!(complaint.contains("allowed: s1, s2"), "{complaint}");
    let table = balancer.run_ctl("members web").unwrap();
    assert!(
        table.contains("s1 ") && table.contains(&first.to_string()),
        "{table}"
    );
}

#[test]
fn readiness_follows_members_and_rules() {
    let member = Member::echoing_targets();
    // A rule that is enabled again comes back to its address.
    let web = address();
    let name = member.address();
    let balancer = Balancer::start(&format!(
        "[admin]\nlisten = \"127.0.0.1:0\"\n\
         [rule.web]\nlisten = \"{web}\"\nmembers = [\"{name}\"]\n"
    ));
    let ready = || balancer.admin_get("/readyz").second_word() == "200";
    assert!(ready());
    balancer.run_ctl(&format!("drain web {name}")).unwrap();
    assert!(!ready());
    balancer.run_ctl("disable web").unwrap();
    assert!(ready(), "no enabled rule lacks a member");
    wait_until("nobody is accepted", || TcpStream::connect(web).is_err());
    balancer.run_ctl("enable web").unwrap();
    assert!(!ready());
    balancer.run_ctl(&format!("ready web {name}")).unwrap();
    assert!(ready());
    wait_until("clients are accepted", || TcpStream::connect(web).is_ok());
}

/// Writes a token as an administrator does, who lets others read it or not.
fn write_token(folder: &Folder, token: &str, mode: u32) {
    let fresh = folder.write("token.new", format!("{token}\n"));
    fs::set_permissions(&fresh, fs::Permissions::from_mode(mode)).unwrap();
    fs::rename(fresh, folder.join("token")).unwrap();
}

#[test]
fn s24_a_running_admin_api_takes_a_new_token() {
    let balancer = Balancer::start_with(
        "workers = 1\n[admin]\nlisten = \"127.0.0.1:0\"\ntoken_file = \"token\"\n",
        |folder| write_token(folder, "the-first-token", 0o600),
    );
    let admin = balancer.admin_address().to_string();
    let ask = |token| run_evenkeel(&["ctl", "--admin", &admin, "--token", token, "status"]);
    let refused = |token| {
        let complaint = ask(token).unwrap_err();
        assert!(
            complaint.contains("the token is not the configured one"),
            "{complaint}"
        );
    };
    ask("the-first-token").unwrap();
    refused("the-second-token");

    write_token(balancer.folder(), "the-second-token", 0o640);
    wait_until("the second token counts", || {
        ask("the-second-token").is_ok()
    });
    refused("the-first-token");

    // One that everybody may read is refused as a key file would be, and changes nothing.
    write_token(balancer.folder(), "the-third-token", 0o644);
    wait_until("the third token is refused", || {
        balancer.log().contains("chmod 640")
    });
    refused("the-third-token");
    ask("the-second-token").unwrap();

    write_token(balancer.folder(), "the-third-token", 0o600);
    wait_until("the third token counts", || ask("the-third-token").is_ok());
    refused("the-second-token");
}

#[test]
fn decisions_are_explained() {
    if !are_installed(&["nginx", "curl"]) {
        return;
    }
    let servers = [Server::start_nginx(None), Server::start_nginx(None)];
    let members = servers.each_ref().map(Server::address);
    let balancer = Balancer::start_http(&members, "");
    let explain = || -> Value {
        let text = balancer.run_ctl("explain web --json").unwrap();
        serde_json::from_str(&text).unwrap()
    };
    assert!(explain()["last"].is_null());
    let url = format!("http://{}/name", balancer.address("web"));
    let server = run_curl(&["--fail", &url]);
    let explained = explain();
    assert_eq!(explained["last"]["chosen"], server);
    let next = explained["next"]["chosen"].as_str().unwrap();
    let names = members.map(|member| member.to_string());
    assert!(names.iter().any(|name| name == next), "{explained:#}");
    for decision in ["last", "next"] {
        let candidates = explained[decision]["candidates"].as_array().unwrap();
        let verdicts: Vec<&str> = candidates
            .iter()
            .map(|candidate| candidate["verdict"].as_str().unwrap())
            .collect();
        // A member that was silent for a while may be tried for news, and no other is looked at then.
        match verdicts[..] {
            [only] => assert!(
                only.starts_with("tried to measure the member"),
                "{explained:#}"
            ),
            [one, other] => assert!(!one.is_empty() && !other.is_empty(), "{explained:#}"),
            _ => panic!("neither one candidate nor two: {explained:#}"),
        }
    }
    // For a strategy that looks at the client, the explanation is what then happens.
    balancer.run_ctl("strategy web source_ip_hash").unwrap();
    let foretold = |client: &str| {
        let words = format!("explain web --json --client {client}");
        let explained: Value = serde_json::from_str(&balancer.run_ctl(&words).unwrap()).unwrap();
        explained["next"]["chosen"].as_str().unwrap().to_owned()
    };
    for client in 1..10 {
        let client = format!("127.9.1.{client}");
        let chosen = foretold(&client);
        let served = run_curl(&["--fail", "--interface", &client, &url]);
        assert_eq!(chosen, served, "{client}");
    }
    // People get it as text.
    let text = balancer.run_ctl("explain web --client 127.9.1.9").unwrap();
    let chosen = foretold("127.9.1.9");
    let line = format!("The next request would go to {chosen} (source_ip_hash)\n");
    assert!(text.starts_with(&line), "{text}");
}

/// Samples by name and labels, and nothing in the text that is not of the format.
fn samples(text: &str) -> BTreeMap<String, f64> {
    let mut samples = BTreeMap::new();
    let mut kinds = BTreeMap::new();
    for line in text.lines() {
        if let Some(declared) = line.strip_prefix("# TYPE ") {
            let (name, kind) = declared.split_once(' ').unwrap();
            assert!(kinds.insert(name, kind).is_none(), "twice: {line}");
            continue;
        }
        if line.starts_with("# HELP ") {
            continue;
        }
        let (key, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("{line:?}"));
        let name = key.split('{').next().unwrap();
        let of_histogram = ["_bucket", "_sum", "_count"]
            .iter()
            .filter_map(|suffix| name.strip_suffix(suffix))
            .any(|name| kinds.get(name) == Some(&"histogram"));
        assert!(kinds.contains_key(name) || of_histogram, "no type: {line}");
        assert_eq!(key.contains('{'), key.ends_with('}'), "{line}");
        let value = value.parse().unwrap();
        assert!(samples.insert(key.to_owned(), value).is_none(), "{line}");
    }
    samples
}

#[test]
fn metrics_and_access_log_tell_of_every_request() {
    if !are_installed(&["nginx"]) {
        return;
    }
    const REQUESTS: usize = 500;
    let server = Server::start_nginx(None);
    let folder = Folder::new();
    let log = folder.join("access.log");
    let mut balancer = Balancer::start(&format!(
        "[admin]\nlisten = \"127.0.0.1:0\"\n[access_log]\noutput = \"{}\"\n\
         [rule.web]\nlisten = \"127.0.0.1:0\"\nmembers = [\"{}\"]\n",
        log.display(),
        server.address()
    ));
    let mut client = balancer.connect();
    for number in 0..REQUESTS {
        let target = match number % 10 {
            0 => format!("/missing/{number}"),
            _ => format!("/echo/{number}\u{e4}\\\"").replace('\u{e4}', "%C3%A4"),
        };
        client.send(format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n"));
        let response = client.read_response();
        let wanted = if number % 10 == 0 { "404" } else { "200" };
        assert_eq!(response.second_word(), wanted);
    }
    client.send("GARBAGE\r\n\r\n");
    assert_eq!(client.read_response().second_word(), "400");

    let get = |key: &str| {
        let metrics = samples(balancer.admin_get("/metrics").text());
        let value = metrics.get(key).copied();
        value.unwrap_or_else(|| panic!("no {key} in {metrics:#?}"))
    };
    let all = REQUESTS as f64;
    let responses = |class: &str| {
        get(&format!(
            "evenkeel_rule_responses_total{{rule=\"web\",class=\"{class}\"}}"
        ))
    };
    // The client has a response before it is counted.
    wait_until("the last response is counted", || {
        responses("4xx") == all * 0.1 + 1.0
    });
    assert_eq!(responses("2xx"), all * 0.9);
    assert_eq!(get("evenkeel_rule_requests_total{rule=\"web\"}"), all);
    let member = server.address();
    let count =
        format!("evenkeel_member_latency_seconds_count{{group=\"web\",member=\"{member}\"}}");
    assert_eq!(get(&count), all);
    // The balancer's own 400 is no answer to a request.
    assert_eq!(get("evenkeel_rule_wait_seconds_count{rule=\"web\"}"), all);

    balancer.signal(Signal::TERM);
    assert!(balancer.wait_for_end().success());
    let text = folder.text("access.log");
    let lines: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let good: Vec<_> = lines
        .iter()
        .filter(|line| line["method"] == "GET")
        .collect();
    assert_eq!(good.len(), REQUESTS, "{text}");
    for (number, line) in good.iter().enumerate() {
        let target = line["target"].as_str().unwrap();
        assert!(target.contains(&format!("/{number}")), "{line}");
        let wanted = if number % 10 == 0 { 404 } else { 200 };
        assert_eq!(line["status"], wanted, "{line}");
        assert_eq!(line["member"], member.to_string(), "{line}");
        assert_eq!(line["end"], "complete", "{line}");
    }
}

#[test]
fn the_end_loses_no_request() {
    if !are_installed(&["nginx"]) {
        return;
    }
    let server = Server::start_nginx(None);
    let mut balancer = Balancer::start_http(&[server.address()], "");
    let web = balancer.address("web");
    let ending = Arc::new(AtomicBool::new(false));
    let clients: Vec<_> = (0..8)
        .map(|client| {
            let ending = Arc::clone(&ending);
            thread::spawn(move || ask_until_the_end(web, client, &ending))
        })
        .collect();
    wait_until("there is traffic", || {
        requests(&balancer, server.address()) > 200
    });
    ending.store(true, Ordering::SeqCst);
    balancer.signal(Signal::TERM);
    let mut answered = 0;
    for client in clients {
        answered += client.join().unwrap();
    }
    assert!(answered > 200);
    let status = balancer.wait_for_end();
    assert_eq!(status.code(), Some(0), "{}", balancer.log());
}

/// Asks until the balancer says that this connection ends; answers how often. No request
/// may be lost; no connection ends without a word while requests keep coming.
fn ask_until_the_end(web: SocketAddr, client: usize, ending: &AtomicBool) -> u64 {
    let mut wire = Wire::connect(web);
    for number in 0.. {
        let target = format!("/echo/{client}/{number}");
        wire.send(format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n"));
        let response = wire.read_response();
        assert_eq!((response.second_word(), response.text()), ("200", &*target));
        if response.values("connection").contains(&"close") {
            assert!(ending.load(Ordering::SeqCst), "closed for no reason");
            assert!(wire.is_at_end());
            return number + 1;
        }
    }
    unreachable!("there are more numbers than requests");
}

#[test]
fn a_large_answer_outlives_the_order_to_end() {
    if !are_installed(&["nginx"]) {
        return;
    }
    let server = Server::start_nginx(None);
    let content = vec![b'x'; 32 * 1024 * 1024];
    server.put_document("large", &content);
    let mut balancer = Balancer::start_http(&[server.address()], "");
    let mut client = balancer.connect();
    client.send("GET /files/large HTTP/1.1\r\nHost: a\r\n\r\n");
    let head = client.read_head();
    assert_eq!(head.second_word(), "200");
    balancer.signal(Signal::TERM);
    let web = balancer.address("web");
    wait_until("nobody is accepted", || TcpStream::connect(web).is_err());
    assert!(client.try_read_exact(content.len()).unwrap() == content);
    assert!(balancer.wait_for_end().success());
}

#[test]
fn a_second_balancer_does_not_take_the_clients_of_the_first() {
    let member = Member::echoing_targets();
    let first = Balancer::start_http(&[member.address()], "");
    let folder = Folder::new();
    let web = first.address("web");
    let file = folder.write(
        "evenkeel.toml",
        format!(
            "[admin]\nlisten = \"127.0.0.1:0\"\n[rule.again]\nlisten = \"{web}\"\n\
             members = [\"{}\"]\n",
            member.address()
        ),
    );
    let complaint = run_evenkeel(&["run", file.to_str().unwrap()]).unwrap_err();
    for part in ["again", &web.to_string(), "in use"] {
        assert!(complaint.contains(part), "{complaint}");
    }
}

#[test]
fn check_names_five_errors_at_once() {
    let folder = Folder::new();
    let file = folder.write(
        "broken.toml",
        "[rule.web]\n\
         listen = \"127.0.0.1\"\n\
         members = [\"127.0.0.1:80801\"]\n\
         stratgy = \"round_robin\"\n\
         idle_timeout = 5\n\
         [rule.web.health_check]\n\
         response_code = 999\n",
    );
    let complaint = run_evenkeel(&["check", file.to_str().unwrap()]).unwrap_err();
    assert!(complaint.contains("5 errors"), "{complaint}");
    for (line, parts) in [
        (2, ["rule.web.listen", "\"127.0.0.1\""]),
        (3, ["rule.web.members", "80801"]),
        (4, ["stratgy", "did you mean \"strategy\""]),
        (5, ["rule.web.idle_timeout", "a time needs a unit"]),
        (7, ["response_code", "100 to 599"]),
    ] {
        let place = format!("{}:{line}:", file.display());
        let found = complaint.lines().find(|text| text.contains(&place));
        let found = found.unwrap_or_else(|| panic!("no error in line {line}: {complaint}"));
        for part in parts {
            assert!(found.contains(part), "{found}");
        }
    }
}

/// A process that is told to end leaves its addresses to the next one, and finishes what
/// it has begun.
#[test]
fn u2_a_restart_is_no_outage() {
    let (reached, release) = (Arc::<Gate>::default(), Arc::<Gate>::default());
    let (at, until) = (Arc::clone(&reached), Arc::clone(&release));
    let member = Member::answering_with(move |request| {
        if request.second_word() == "/slow" {
            at.release_one();
            until.wait_for_release();
        }
        ok_response(request.second_word())
    });
    let prepare = |folder: &Folder| {
        evenkeel_e2e::agent::key_file(folder);
    };
    let config = |folder: &str, web: SocketAddr, admin, udp, negotiator, corba: SocketAddr| {
        format!(
            "workers = 2\nshutdown_grace = \"60s\"\n\
             [admin]\nlisten = \"{admin}\"\n\
             [broker]\nlisten = \"{udp}\"\nkey_file = \"{folder}broker.key\"\n\
             [negotiator]\nlisten = \"{negotiator}\"\n\
             [corba]\nlisten = \"{corba}\"\nworkers = 2\nstate_file = \"{folder}state\"\n\
             [rule.web]\nlisten = \"{web}\"\nmembers = [\"{}\"]\n",
            member.address()
        )
    };
    let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
    let text = config("", address(), any, any, any, any);
    let mut first = Balancer::start_with(&text, prepare);
    let web = first.address("web");
    let mut slow = first.connect();
    slow.send("GET /slow HTTP/1.1\r\nHost: a\r\n\r\n");
    reached.wait_for_release();
    // Who is connected, and idle, is nobody's obstacle.
    let mut idle = first.connect();
    idle.send("GET /idle HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(idle.read_response().text(), "/idle");
    let _idle = (idle, Wire::connect(first.admin_address()));

    let text = config(
        &format!("{}/", first.folder().join("").display()),
        web,
        first.admin_address(),
        first.broker_address(),
        first.negotiator_address(),
        first.corba_address(),
    );
    first.signal(Signal::TERM);
    let second = Balancer::start(&text);
    first.wait_for_log("SIGTERM");
    // The admin API, and all that listens, is the successor's.
    let status = second.status();
    assert_eq!(status["generation"], 1);
    assert_eq!(second.admin_address(), first.admin_address());
    for number in 0..200 {
        let mut client = Wire::connect(web);
        client.send(format!("GET /{number} HTTP/1.1\r\nHost: a\r\n\r\n"));
        let answer = client.read_response();
        assert_eq!(
            (answer.second_word(), answer.text()),
            ("200", &*format!("/{number}"))
        );
    }
    TcpStream::connect(second.negotiator_address()).unwrap();
    TcpStream::connect(second.corba_address()).unwrap();
    assert_eq!(second.broker_address(), first.broker_address());
    // The first one still has what it had begun.
    release.release_one();
    let answer = slow.read_response();
    assert_eq!((answer.second_word(), answer.text()), ("200", "/slow"));
    assert_eq!(first.wait_for_end().code(), Some(0), "{}", first.log());
}
