//! Clients that negotiate for a server and then go to it themselves: real clients, real
//! servers, and the client engine in between.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use evenkeel_e2e::balancer::{Balancer, run_evenkeel};
use evenkeel_e2e::engine::Engine;
use evenkeel_e2e::folder::Folder;
use evenkeel_e2e::member::{Member, ok_response};
use evenkeel_e2e::process::{are_installed, program, run_curl, try_curl};
use evenkeel_e2e::server::{Server, address};
use evenkeel_e2e::tls::{Key, make_certificate};
use evenkeel_e2e::wait_until;
use evenkeel_e2e::wire::Wire;
use serde_json::{Value, json};

/// A broker whose cluster `shop` has these members; `more` are further lines of it.
fn config(listen: SocketAddr, members: &[SocketAddr], more: &str) -> String {
    let members: Vec<_> = members.iter().map(ToString::to_string).collect();
    format!(
        "workers = 1\n\
         [admin]\nlisten = \"127.0.0.1:0\"\n\
         [group.pool]\nmembers = {members:?}\nstrategy = \"round_robin\"\nslow_start = \"0s\"\n\
         [negotiator]\nlisten = \"{listen}\"\n\
         [cluster.shop]\ngroup = \"pool\"\nhosts = [\"127.0.0.1\", \"shop.example\"]\n{more}\n"
    )
}

fn broker(members: &[SocketAddr], more: &str) -> Balancer {
    Balancer::start(&config("127.0.0.1:0".parse().unwrap(), members, more))
}

/// Negotiations of cluster `shop` that ended like this, over all classes.
fn count(broker: &Balancer, ending: &str) -> u64 {
    let status = broker.status();
    let clusters = status["clusters"].as_array().unwrap().iter();
    let classes = clusters.flat_map(|cluster| cluster["classes"].as_array().unwrap());
    let counts = classes.map(|class| class["negotiations"][ending].as_u64().unwrap());
    counts.sum()
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn curl_follows_to_the_members_and_takes_its_body_along() {
    if !are_installed(&["curl", "nginx"]) {
        return;
    }
    let servers = [Server::start_nginx(None), Server::start_nginx(None)];
    let members = servers.each_ref().map(Server::address);
    let broker = broker(&members, "quantum = \"9s\"");
    let site = format!("http://{}", broker.negotiator_address());
    let mut seen: Vec<_> = (0..4)
        .map(|_| run_curl(&["--location", &format!("{site}/name")]))
        .collect();
    seen.sort();
    seen.dedup();
    let mut wanted = members.map(|member| member.to_string());
    wanted.sort();
    assert_eq!(seen, wanted, "they take turns");

    let echoed = run_curl(&["--location", &format!("{site}/echo/a%20b?c=d&e")]);
    assert_eq!(echoed, "/echo/a%20b?c=d&e");
    let head = run_curl(&["--location", "--head", &format!("{site}/name")]);
    assert!(head.contains(" 307 ") && head.contains(" 200 "), "{head}");
    assert!(head.contains("private, max-age=9"), "{head}");

    // With a body, which is sent again to the member; once with, once without waiting for
    // the broker's consent.
    let content = "0123456789".repeat(300_000);
    let folder = Folder::new();
    let file = folder.write("content", &content);
    for (name, expect) in [("a", "Expect: 100-continue"), ("b", "Expect:")] {
        let url = format!("{site}/dav/{name}");
        let arguments = ["--location", "--fail", "--header", expect, "--upload-file"];
        run_curl(&[&arguments[..], &[text(&file), &url]].concat());
        let arrived = || {
            servers.iter().filter(|server| {
                let log = server.access_log();
                log.iter()
                    .any(|line| line.contains(&format!("PUT /dav/{name}")))
            })
        };
        // nginx writes its log after the answer.
        wait_until("the upload is in a log", || arrived().count() > 0);
        let arrived: Vec<_> = arrived().collect();
        assert_eq!(arrived.len(), 1);
        assert!(arrived[0].uploaded(name) == content.as_bytes());
    }
    // No request ever came by way of the broker.
    for server in &servers {
        assert!(
            server
                .access_log()
                .iter()
                .all(|line| line.starts_with("-|-|"))
        );
    }
}

/// Returns the server to which a client of the cluster `shop` is sent.
fn redirected(broker: &Balancer) -> String {
    let mut wire = Wire::connect(broker.negotiator_address());
    wire.send("GET /a HTTP/1.1\r\nHost: shop.example\r\nEvenkeel-Class: gold\r\n\r\n");
    let answer = wire.read_response();
    assert_eq!(answer.second_word(), "307", "{}", answer.head);
    let to = answer.values("location")[0].trim_start_matches("http://");
    to.trim_end_matches("/a").to_owned()
}

#[test]
fn a_chooser_decides_about_clients_and_the_strategy_where_it_does_not() {
    let servers = [(); 3].map(|()| Member::answering_with(|_| ok_response("")));
    let [a, b, c] = servers.each_ref().map(Member::address);
    let act = Arc::new(Mutex::new(Some(c.to_string())));
    let now = Arc::clone(&act);
    let chooser = Member::answering_with(move |_| match &*now.lock().unwrap() {
        Some(member) => ok_response(&json!({ "member": member }).to_string()),
        None => ok_response("no member").replace("200 OK", "500 Oops"),
    });
    let more = format!(
        "[cluster.shop.class.gold]\n[group.pool.chooser]\nurl = \"http://{}/choose\"\ntimeout = \"10s\"",
        chooser.address()
    );
    let broker = broker(&[a, b, c], &more);
    let decisions = |result: &str| {
        let labels = format!("{{group=\"pool\",result=\"{result}\"}}");
        broker.read_metric(&format!("evenkeel_chooser_decisions_total{labels}"))
    };
    for _ in 0..4 {
        assert_eq!(redirected(&broker), c.to_string());
    }
    assert_eq!(
        (decisions("chooser"), decisions("fallback")),
        (Some(4.0), Some(0.0))
    );
    let (_, question) = chooser.next_request();
    let question: Value = serde_json::from_str(question.text()).unwrap();
    assert_eq!(question["cluster"], "shop");
    assert_eq!(question["class"], "gold");
    assert_eq!(question["client"], "127.0.0.1");
    assert_eq!(question["candidates"].as_array().unwrap().len(), 3);
    // What a program asks for goes the same way; servers that it avoids are no candidates.
    let path = |more: &str| format!("/.well-known/evenkeel/negotiate?cluster=shop{more}");
    let ask = |more: &str| {
        let mut wire = Wire::connect(broker.negotiator_address());
        wire.send(format!(
            "GET {} HTTP/1.1\r\nHost: shop.example\r\n\r\n",
            path(more)
        ));
        let answer: Value = serde_json::from_str(wire.read_response().text()).unwrap();
        answer["server"]["name"].as_str().unwrap().to_owned()
    };
    assert_eq!(ask(""), c.to_string());
    assert_ne!(ask(&format!("&avoid={c}")), c.to_string());
    let unusable = "evenkeel_chooser_failures_total{group=\"pool\",reason=\"unusable_member\"}";
    assert_eq!(broker.read_metric(unusable), Some(1.0));
    // It fails, and decides again.
    *act.lock().unwrap() = None;
    let mut seen: Vec<_> = (0..9).map(|_| redirected(&broker)).collect();
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), 3, "they take turns");
    assert_eq!(decisions("fallback"), Some(10.0));
    *act.lock().unwrap() = Some(b.to_string());
    wait_until("the chooser decides again", || {
        redirected(&broker);
        decisions("chooser") > Some(5.0)
    });
    assert_eq!(redirected(&broker), b.to_string());
    let explained = broker.run_ctl("explain pool").unwrap();
    assert!(explained.contains("chooser"), "{explained}");
}

#[test]
fn several_sites_share_a_broker() {
    if !are_installed(&["curl", "nginx"]) {
        return;
    }
    let servers = [Server::start_nginx(None), Server::start_nginx(None)];
    let [shop, blog] = servers.each_ref().map(Server::address);
    let more = format!(
        "[group.blog]\nmembers = [\"{blog}\"]\n\
         [cluster.blog]\ngroup = \"blog\"\nhosts = [\"blog.example\", \"www.blog.example\"]"
    );
    let broker = broker(&[shop], &more);
    let port = broker.negotiator_address().port();
    for (host, member) in [
        ("shop.example", shop),
        ("blog.example", blog),
        ("www.blog.example", blog),
    ] {
        let resolve = format!("{host}:{port}:127.0.0.1");
        let url = format!("http://{host}:{port}/name");
        let name = run_curl(&["--location", "--resolve", &resolve, &url]);
        assert_eq!(name, member.to_string());
    }
    let stranger = format!("http://{}/", broker.negotiator_address());
    let code = [
        "--header",
        "Host: other.example",
        "--write-out",
        "%{http_code}",
        "--output",
        "/dev/null",
    ];
    assert_eq!(run_curl(&[&code[..], &[&stranger]].concat()), "421");
}

#[test]
fn classes_get_what_they_may_and_refusals_say_why() {
    if !are_installed(&["curl"]) {
        return;
    }
    // Nobody goes there.
    let members = [address(), address()];
    let broker = broker(
        &members,
        "[cluster.shop.class.gold]\nresponse_time = \"100ms\"\n\
         [cluster.shop.class.guest]\nmax_utilization = 0.5\nretry_after = \"7s\"",
    );
    let ask = |query: &str| -> Value {
        let url = format!(
            "http://{}/.well-known/evenkeel/negotiate?cluster=shop&{query}",
            broker.negotiator_address()
        );
        let reply = run_curl(&["--write-out", "\n%{http_code} %header{retry-after}", &url]);
        let (body, status) = reply.rsplit_once('\n').unwrap();
        let mut body: Value = serde_json::from_str(body).unwrap();
        body["status"] = status.trim().into();
        body
    };
    let refused = ask("class=gold");
    assert_eq!(
        (&refused["status"], &refused["error"]),
        (&"503 5".into(), &"response_time".into())
    );
    let report = |member: SocketAddr, loads: &str| {
        broker
            .run_ctl(&format!("loads push {} {loads}", member.ip()))
            .unwrap();
    };
    report(members[0], "cpu=0.9 response_time=0.05");
    report(members[1], "cpu=0.8 response_time=0.2");
    for _ in 0..4 {
        let gold = ask("class=gold");
        assert_eq!(gold["server"]["name"], members[0].to_string(), "{gold}");
        assert_eq!(
            (&gold["status"], &gold["class"]),
            (&"200".into(), &"gold".into())
        );
    }
    let refused = ask("class=guest");
    assert_eq!(
        (&refused["status"], &refused["error"]),
        (&"503 7".into(), &"class_limit".into())
    );
    assert_eq!(ask("response_time=20ms")["error"], "response_time");
    assert_eq!(ask("")["status"], "200");
    let wrong = ask("class=silver");
    assert_eq!(
        (&wrong["status"], &wrong["error"]),
        (&"400".into(), &"unknown_class".into())
    );
    assert_eq!(wrong["allowed"][0], "gold");

    // What is counted is shown.
    assert_eq!(
        (count(&broker, "answered"), count(&broker, "class_limit")),
        (5, 1)
    );
    let metrics = broker.admin_get("/metrics");
    let line = "evenkeel_negotiations_total{cluster=\"shop\",class=\"gold\",result=\"answered\"} 4";
    assert!(metrics.text().contains(line), "{}", metrics.text());
    let table = broker.run_ctl("status").unwrap();
    assert!(
        table.contains("CLUSTER") && table.contains("guest"),
        "{table}"
    );
    let explained = broker.run_ctl("explain pool").unwrap();
    assert!(explained.contains(&members[0].to_string()), "{explained}");
}

#[test]
fn a_reload_changes_sites_and_quanta_without_a_gap() {
    if !are_installed(&["curl"]) {
        return;
    }
    let member = address();
    let listen: SocketAddr = "127.0.0.1:0".parse().unwrap();
    let broker = broker(&[member], "quantum = \"30s\"");
    let site = format!("http://{}/x", broker.negotiator_address());
    let ask = || run_curl(&["--include", &site]);
    assert!(ask().contains("max-age=30"));
    broker.reconfigure(&config(
        listen,
        &[member],
        "quantum = \"4s\"\nscheme = \"https\"",
    ));
    wait_until("the new quantum is given", || ask().contains("max-age=4"));
    assert!(ask().contains(&format!("https://{member}/x")));
    // One that cannot be done changes nothing.
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap();
    let _holder = std::net::TcpListener::bind(taken);
    broker.write_config(&config(taken, &[member], "quantum = \"1s\""));
    let refused = broker.run_ctl("reload").unwrap_err();
    assert!(
        refused.contains("negotiator: cannot listen on"),
        "{refused}"
    );
    assert!(ask().contains("max-age=4"));
}

/// A client that keeps redirects for as long as `Cache-Control` says, in Python, whose
/// `urllib` follows them without keeping any.
const CLIENT: &str = r#"
import re, sys, time, urllib.request

class Keep(urllib.request.HTTPRedirectHandler):
    kept = {}
    def http_error_307(self, request, response, code, message, headers):
        age = int(re.fullmatch(r"private, max-age=(\d+)", headers["Cache-Control"]).group(1))
        self.kept[request.full_url] = (headers["Location"], time.monotonic() + age)
        return super().http_error_307(request, response, code, message, headers)

keep = Keep()
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), keep)
url, seen = sys.argv[1], []
deadline = time.monotonic() + float(sys.argv[2])
while time.monotonic() < deadline:
    place, until = Keep.kept.get(url, (url, 0))
    if place is not url and time.monotonic() >= until:
        place = url
    seen.append(opener.open(place, timeout=60).read().decode())
print(len(seen), *sorted(set(seen)))
"#;

#[test]
fn a_client_that_keeps_redirects_asks_once_a_quantum() {
    if !are_installed(&["python3", "nginx"]) {
        return;
    }
    let servers = [Server::start_nginx(None), Server::start_nginx(None)];
    let members = servers.each_ref().map(Server::address);
    let broker = broker(&members, "quantum = \"1s\"");
    let url = format!("http://{}/name", broker.negotiator_address());
    let mut client = program("python3");
    let output = client.args(["-c", CLIENT, &url, "2.5"]).output().unwrap();
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{complaint}");
    let output = String::from_utf8(output.stdout).unwrap();
    let words: Vec<_> = output.split_whitespace().collect();
    let requests: u64 = words[0].parse().unwrap();
    // At 0, 1 and 2 seconds; a busy machine may skip one.
    let asked = count(&broker, "redirected");
    assert!((2..=3).contains(&asked), "{asked} of {requests}");
    assert_eq!(words.len() as u64 - 1, asked.min(2), "{output}");
    assert!(requests > asked, "{output}");
}

/// Returns the name of the server that answers at the end of the engine's redirect.
fn through(engine: &Engine) -> Option<String> {
    let url = format!("http://{}/name", engine.address());
    let output = try_curl(&["--location", "--fail", &url]);
    let name = String::from_utf8(output.stdout).unwrap();
    output.status.success().then_some(name)
}

#[test]
fn the_engine_bridges_the_death_of_its_broker() {
    if !are_installed(&["curl", "nginx"]) {
        return;
    }
    let server = Server::start_nginx(None);
    let name = server.address().to_string();
    let place = address();
    let config = config(place, &[server.address()], "quantum = \"1s\"");
    let broker = Balancer::start(&config);
    let engine = Engine::start(&[place], "class = \"none\"");
    // Wrong for all brokers is like no broker.
    assert_eq!(through(&engine), None);
    wait_until("the engine says why", || {
        engine.log().contains("has no class")
    });
    drop(engine);

    let began = Instant::now();
    let engine = Engine::start(&[address(), place], "");
    assert_eq!(
        through(&engine).as_deref(),
        Some(name.as_str()),
        "the first one is dead"
    );
    let url = format!("http://{}/echo/a?b", engine.address());
    let head = run_curl(&["--include", &url]);
    assert!(
        head.contains("307") && head.contains(&format!("{name}/echo/a?b")),
        "{head}"
    );
    // Once a quantum, however long all this takes, and not once a request.
    let asked = count(&broker, "answered");
    assert!(asked <= began.elapsed().as_secs() + 3, "{asked}");

    drop(broker);
    // Well past the quantum.
    wait_until("the engine notices", || {
        assert_eq!(through(&engine).as_deref(), Some(name.as_str()));
        engine.log().contains("no connection")
    });
    let head = run_curl(&["--include", &url]);
    wait_until("the quantum is over", || {
        run_curl(&["--include", &url]).contains("max-age=0")
    });
    assert!(head.contains("307"), "{head}");

    let broker = Balancer::start(&config);
    wait_until("the engine is back at the broker", || {
        assert_eq!(through(&engine).as_deref(), Some(name.as_str()));
        count(&broker, "answered") > 0
    });
}

#[test]
fn the_engine_trusts_brokers_with_the_right_certificate() {
    if !are_installed(&["curl", "nginx", "openssl"]) {
        return;
    }
    let server = Server::start_nginx(None);
    let name = server.address().to_string();
    let listen = "127.0.0.1:0".parse().unwrap();
    let plain = config(listen, &[server.address()], "quantum = \"1s\"");
    let secure = plain.replacen(
        "[negotiator]\n",
        "[negotiator]\ntls = { certificates = \"b.pem\" }\n",
        1,
    );
    assert_ne!(plain, secure);
    let broker = Balancer::start_with(&secure, |folder| {
        make_certificate(folder, "authority", Key::Ecdsa, "DNS:authority", None);
        make_certificate(folder, "b", Key::Ecdsa, "IP:127.0.0.1", Some("authority"));
        make_certificate(folder, "other", Key::Ecdsa, "DNS:authority", None);
    });
    let brokers = |authority: &str| {
        let file = broker.folder().join(authority).display().to_string();
        let at = broker.negotiator_address();
        format!("brokers = \"https://{at}\"\nbroker_tls = {{ ca_file = {file:?} }}\n")
    };
    let engine = Engine::start_with(&brokers("authority.crt"), "");
    assert_eq!(through(&engine).as_deref(), Some(name.as_str()));
    let engine = Engine::start_with(&brokers("other.crt"), "");
    assert_eq!(through(&engine), None);
    wait_until("the engine says why", || {
        let log = engine.log();
        log.contains("no connection with TLS") && log.contains("other.crt")
    });
    let file = broker.folder().write("engine.toml", brokers("none.crt"));
    let error = run_evenkeel(&["engine", &file.display().to_string()]).unwrap_err();
    assert!(
        error.contains("broker_tls.ca_file") && error.contains("none.crt"),
        "{error}"
    );
}

/// Clients learn from the engine what its broker says, and not only that there is nobody.
#[test]
fn mission_d15_the_engine_passes_on_why_its_broker_refuses() {
    if !are_installed(&["curl"]) {
        return;
    }
    // No load is known, so that nobody can promise anything.
    let broker = broker(
        &[address()],
        "[cluster.shop.class.gold]\nresponse_time = \"100ms\"",
    );
    let engine = Engine::start(&[broker.negotiator_address()], "class = \"gold\"");
    let url = format!("http://{}/", engine.address());
    let refused = try_curl(&["--write-out", "\n%{http_code}", &url]);
    let refused = String::from_utf8(refused.stdout).unwrap();
    let (body, code) = refused.rsplit_once('\n').unwrap();
    let body: Value = serde_json::from_str(body).unwrap();
    assert_eq!((code, &body["error"]), ("503", &"response_time".into()));
    assert!(
        !body["detail"]
            .as_str()
            .unwrap()
            .contains("no server of cluster")
    );
}

#[test]
fn the_engine_leads_around_a_dead_server() {
    if !are_installed(&["curl", "nginx"]) {
        return;
    }
    let mut servers = [Server::start_nginx(None), Server::start_nginx(None)];
    let members = servers.each_ref().map(Server::address);
    let place = address();
    let config = config(place, &members, "quantum = \"1h\"");
    let broker = Balancer::start(&config);
    let engine = Engine::start(&[place], "probe_interval = \"100ms\"");
    let first = through(&engine).unwrap();
    assert_eq!(through(&engine).as_ref(), Some(&first), "a quantum is long");
    let index = usize::from(first != members[0].to_string());
    servers[index].kill();
    let other = members[1 - index].to_string();
    wait_until("the other one serves", || {
        through(&engine).as_ref() == Some(&other)
    });

    // Without its broker it remembers who else there was.
    servers[index].restart();
    drop(broker);
    servers[1 - index].kill();
    wait_until("the first one serves again", || {
        through(&engine).as_ref() == Some(&first)
    });
}
