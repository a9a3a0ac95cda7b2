//! Live data of the admin API: events, the last hour, checks, counters, the process.

#![allow(clippy::unwrap_used, clippy::expect_used)] // Helpers of tests fail by panicking.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use evenkeel_e2e::balancer::Balancer;
use evenkeel_e2e::load::Clients;
use evenkeel_e2e::member::{Member, ok_response};
use evenkeel_e2e::process::Signal;
use evenkeel_e2e::wire::Wire;
use evenkeel_e2e::{HANG, wait_until};
use serde_json::{Value, json};

/// A client of `/v1/events`.
struct Stream {
    lines: BufReader<TcpStream>,
}

#[derive(Debug)]
struct Event {
    kind: String,
    id: String,
    data: Value,
}

impl Stream {
    /// The stream, or what is answered instead.
    fn try_open(balancer: &Balancer, query: &str, fields: &str) -> Result<Self, Value> {
        let mut stream = TcpStream::connect(balancer.admin_address()).unwrap();
        stream.set_read_timeout(Some(HANG)).unwrap();
        // So that the answer comes without chunks.
        let request = format!("GET /v1/events{query} HTTP/1.0\r\nHost: localhost\r\n{fields}\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut lines = BufReader::new(stream);
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            assert!(lines.read_line(&mut head).unwrap() > 0, "{head}");
        }
        if head.starts_with("HTTP/1.0 200") || head.starts_with("HTTP/1.1 200") {
            assert!(head.contains("text/event-stream"), "{head}");
            return Ok(Stream { lines });
        }
        Err(serde_json::from_reader(lines).unwrap())
    }

    fn open(balancer: &Balancer, query: &str, fields: &str) -> Self {
        Self::try_open(balancer, query, fields).unwrap_or_else(|answer| panic!("{answer}"))
    }

    /// The next event; `None` at the end.
    fn next(&mut self) -> Option<Event> {
        let (mut kind, mut id, mut data) = (String::new(), String::new(), None);
        loop {
            let mut line = String::new();
            if self.lines.read_line(&mut line).ok()? == 0 {
                return None;
            }
            match line.trim_end().split_once(": ") {
                Some(("event", value)) => kind = value.into(),
                Some(("id", value)) => id = value.into(),
                Some(("data", value)) => data = Some(serde_json::from_str(value).unwrap()),
                _ => {}
            }
            if line == "\n"
                && let Some(data) = data.take()
            {
                return Some(Event { kind, id, data });
            }
        }
    }

    /// The next event of that kind for which `holds`.
    fn find(&mut self, kind: &str, holds: impl Fn(&Value) -> bool) -> Event {
        loop {
            let event = self.next().expect("the stream goes on");
            if event.kind == kind && holds(&event.data) {
                return event;
            }
        }
    }
}

fn get(balancer: &Balancer, path: &str) -> Value {
    serde_json::from_str(balancer.admin_get(path).text()).unwrap()
}

/// Two members that answer, and a balancer in front.
fn two() -> (Vec<Member>, Balancer) {
    let members: Vec<_> = (0..2).map(|_| Member::echoing_targets()).collect();
    let addresses: Vec<SocketAddr> = members.iter().map(Member::address).collect();
    let balancer = Balancer::start_http(
        &addresses,
        "strategy = \"round_robin\"\nslow_start = \"0s\"",
    );
    (members, balancer)
}

#[test]
fn a_stream_has_the_groups_whose_names_begin_alike() {
    let first = (0..1000).map(|number| format!("first.{number}"));
    let names = first.chain(["shop.a", "shop.b", "shop-2.a"].map(str::to_owned));
    let group = |name: String| {
        format!("[group.\"{name}\"]\nmembers = [\"127.0.0.1:9\"]\nhealth_check = false\n")
    };
    let groups: String = names.map(group).collect();
    let balancer = Balancer::start(&format!(
        "[admin]\nlisten = \"127.0.0.1:0\"\n[rule.web]\nlisten = \"127.0.0.1:0\"\ngroup = \"shop.a\"\n{groups}"
    ));
    let names = |sample: &Value| {
        let groups = sample["groups"].as_array().unwrap().iter();
        let names = groups.map(|group| group["name"].as_str().unwrap().to_owned());
        (names.collect::<Vec<_>>(), sample["groups_left_out"].clone())
    };
    // All streams at once: each has its own groups.
    let mut streams = [
        "",
        "?prefix=shop.",
        "?prefix=shop.&group=shop.b",
        "?prefix=gone.",
    ]
    .map(|query| Stream::open(&balancer, query, ""));
    let samples = streams.each_mut().map(|stream| {
        // The second one has what has changed since the first.
        stream.find("sample", |_| true);
        stream.find("sample", |_| true).data
    });
    let (all, left_out) = names(&samples[0]);
    assert_eq!((all.len(), left_out), (1000, json!(3)));
    assert_eq!(all.last().unwrap(), "first.999");
    for sample in &samples[1..3] {
        assert_eq!(
            names(sample),
            (vec!["shop.a".into(), "shop.b".into()], json!(0))
        );
        assert_eq!(sample["rules"][0]["name"], "web");
    }
    assert!(samples[1]["group"].is_null());
    assert_eq!(samples[2]["group"]["name"], "shop.b");
    assert_eq!(samples[2]["group"]["full"], false);
    assert_eq!(names(&samples[3]), (Vec::new(), json!(0)));
}

#[test]
fn a_stream_has_samples_and_changes() {
    let (members, balancer) = two();
    let clients = Clients::start(balancer.address("web"), 4);
    let mut stream = Stream::open(&balancer, "?group=web", "");
    let first = stream.find("sample", |_| true);
    let group = &first.data["group"];
    assert_eq!(group["full"], true, "{first:?}");
    assert_eq!(group["members"].as_array().unwrap().len(), 2);
    assert!(first.data["process"]["resident_bytes"].as_u64().unwrap() > 1 << 20);
    let busy = stream.find("sample", |sample| {
        let group = &sample["groups"][0];
        sample["rules"][0]["rate"].as_f64() > Some(0.0)
            && group["rate"].as_f64() > Some(0.0)
            && group["p99_ms"].as_f64() > Some(0.0)
    });
    assert_eq!(busy.data["groups"][0]["up"], 2);
    assert_eq!(busy.data["groups"][0]["failures"], 0.0);
    assert_eq!(busy.data["group"]["full"], false);

    let name = members[0].address();
    balancer.run_ctl(&format!("weight web {name} 5")).unwrap();
    let change = stream.find("change", |_| true);
    assert_eq!(change.data["how"], "live", "{change:?}");
    assert_eq!(change.data["who"], "local", "{change:?}");
    assert_eq!(change.data["generation"], 1);
    let is_heavy = |sample: &Value| {
        let rows = sample["group"]["members"].as_array().unwrap();
        rows.iter()
            .any(|row| row["name"] == json!(name.to_string()) && row["weight"] == 5.0)
    };
    stream.find("sample", is_heavy);
    let config = std::fs::read_to_string(balancer.folder().join("evenkeel.toml")).unwrap();
    let other = Member::echoing_targets();
    balancer.reconfigure(&config.replace(&name.to_string(), &other.address().to_string()));
    let change = stream.find("change", |change| change["generation"] == 2);
    assert_eq!(change.data["how"], "file", "{change:?}");
    assert_eq!(change.data["who"], Value::Null);
    let revision = &get(&balancer, "/v1/config")["revision"];
    assert_eq!(&change.data["revision"], revision);
    let gone = stream.find("sample", |sample| !sample["group"]["gone"].is_null());
    assert_eq!(gone.data["group"]["gone"], json!([name.to_string()]));
    let unknown = Stream::try_open(&balancer, "?group=none", "")
        .err()
        .unwrap();
    assert_eq!(unknown["error"], "unknown_group");
    assert_eq!(unknown["allowed"], json!(["web"]));
    let unknown = Stream::try_open(&balancer, "?groups=web", "")
        .err()
        .unwrap();
    assert_eq!(unknown["error"], "bad_query");
    clients.stop_and_count();
}

#[test]
fn who_was_cut_off_gets_what_was_missed() {
    let (members, balancer) = two();
    let name = members[0].address();
    let mut stream = Stream::open(&balancer, "", "");
    let last = stream.find("sample", |_| true);
    assert!(last.data["group"].is_null());
    drop(stream);
    for weight in [2, 3] {
        balancer
            .run_ctl(&format!("weight web {name} {weight}"))
            .unwrap();
        // Changes that follow at once are one.
        let mut other = Stream::open(&balancer, "", &format!("Last-Event-ID: {}\r\n", last.id));
        for _ in 1..weight {
            other.find("change", |_| true);
        }
    }
    let mut resumed = Stream::open(&balancer, "", &format!("Last-Event-ID: {}\r\n", last.id));
    let missed: Vec<Event> = (0..2).map(|_| resumed.next().unwrap()).collect();
    assert!(
        missed.iter().all(|event| event.kind == "change"),
        "{missed:?}"
    );
    let sample = resumed.find("sample", |_| true);
    assert_eq!(sample.id, missed[1].id);
    let mut late = Stream::open(&balancer, "", &format!("Last-Event-ID: {}\r\n", sample.id));
    assert_eq!(late.next().unwrap().kind, "sample", "nothing was missed");
    for foreign in ["1-1", "nonsense"] {
        let mut lost = Stream::open(&balancer, "", &format!("Last-Event-ID: {foreign}\r\n"));
        assert_eq!(lost.next().unwrap().kind, "lost", "{foreign}");
    }
}

#[test]
fn alerts_are_events() {
    let member = Member::echoing_targets();
    let other = Member::echoing_targets();
    let members = [&member, &other].map(|member| format!("\"{}\"", member.address()));
    let balancer = Balancer::start(&format!(
        "workers = 1\n[admin]\nlisten = \"127.0.0.1:0\"\n[rule.web]\nlisten = \"127.0.0.1:0\"\n\
         group = \"app\"\n[group.app]\nstrategy = {{ name = \"least_loaded\", reject_threshold = 0.5, critical_threshold = 0.8 }}\n\
         load_max_age = \"1h\"\nmembers = [{{ address = {}, location = \"hot\" }}, {{ address = {}, location = \"cold\" }}]\n",
        members[0], members[1]
    ));
    let mut stream = Stream::open(&balancer, "?group=app", "");
    stream.find("sample", |_| true);
    balancer.run_ctl("loads push cold cpu=0.1").unwrap();
    balancer.run_ctl("loads push hot cpu=0.9").unwrap();
    let alert = stream.find("alert", |_| true);
    assert_eq!(
        (
            &alert.data["location"],
            &alert.data["group"],
            &alert.data["on"]
        ),
        (&json!("hot"), &json!("app"), &json!(true))
    );
    let sample = stream.find("sample", |sample| sample["groups"][0]["alerts"] == 1);
    let spread = sample.data["groups"][0]["spread"].as_f64().unwrap();
    assert!((spread - 0.4).abs() < 0.01, "{spread}");
    balancer.run_ctl("loads push hot cpu=0.2").unwrap();
    stream.find("alert", |alert| alert["on"] == false);
    wait_until("the history knows of loads", || {
        let hour = get(&balancer, "/v1/history?group=app");
        hour["members"].as_array().unwrap().iter().any(|row| {
            row["load"]
                .as_array()
                .unwrap()
                .iter()
                .any(|load| !load.is_null())
        })
    });
    let hour = get(&balancer, "/v1/history?group=app");
    assert_eq!(hour["thresholds"]["reject"], 0.5);
    assert!((hour["thresholds"]["critical"].as_f64().unwrap() - 0.8).abs() < 1e-6);
}

/// A sample of hundreds of kilobytes, so that the buffers of the system are soon full.
#[test]
fn who_reads_slowly_misses_samples_and_gets_the_newest() {
    let mut config = "workers = 1\n[admin]\nlisten = \"127.0.0.1:0\"\n".to_owned();
    for number in 0..1000 {
        let name = format!("{}{number}", "g".repeat(60));
        config += &format!(
            "[group.{name}]\nmembers = [\"127.0.0.1:9\"]\nhealth_check = false\n\
             [rule.{name}]\nlisten = \"127.0.0.1:0\"\nenabled = false\ngroup = \"{name}\"\n"
        );
    }
    let balancer = Balancer::start(&config);
    let mut slow = Stream::open(&balancer, "", "");
    let mut fast = Stream::open(&balancer, "", "");
    let seen = 25;
    let mut last = 0.0;
    for _ in 0..seen {
        last = fast.find("sample", |_| true).data["t"].as_f64().unwrap();
    }
    let mut late = 0;
    loop {
        let sample = slow.find("sample", |_| true);
        if sample.data["t"].as_f64().unwrap() > last {
            break;
        }
        late += 1;
    }
    assert!(late < seen, "{late} samples were kept for it");
}

#[test]
fn streams_end_with_the_process() {
    let (_members, mut balancer) = two();
    // A client that stays keeps the process for a while.
    let mut client = balancer.connect();
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    client.read_response();
    let mut stream = Stream::open(&balancer, "?group=web", "");
    stream.find("sample", |_| true);
    balancer.signal(Signal::TERM);
    while stream.next().is_some() {}
    drop(client);
    assert!(balancer.wait_for_end().success());
}

#[test]
fn streams_are_few() {
    let (_members, balancer) = two();
    let mut streams = Vec::new();
    let refused = loop {
        match Stream::try_open(&balancer, "", "") {
            Ok(stream) => streams.push(stream),
            Err(answer) => break answer,
        }
        assert!(streams.len() <= 64);
    };
    assert_eq!(refused["error"], "no_stream");
    // Others are answered, however many watch.
    balancer.run_ctl("status").unwrap();
    for stream in &mut streams {
        stream.find("sample", |_| true);
    }
    streams.pop();
    wait_until("there is a place again", || {
        Stream::try_open(&balancer, "", "").is_ok()
    });
}

#[test]
fn a_member_is_checked_when_somebody_asks() {
    let member = Member::echoing_targets();
    let living = member.address();
    let at = evenkeel_e2e::server::address();
    let check = "health_check = { type = \"http\", interval = \"1h\", fall = 2, rise = 1 }";
    let balancer = Balancer::start_http(&[living, at], check);
    let ask = |at: SocketAddr| balancer.run_ctl(&format!("--json check web {at}"));
    let ask = |at| serde_json::from_str::<Value>(&ask(at).unwrap()).unwrap();
    let good = ask(living);
    assert_eq!((&good["ok"], &good["error"]), (&json!(true), &Value::Null));
    assert!(good["took_ms"].as_f64().unwrap() > 0.0);
    // A first check may have come by itself.
    let bad = ask(at);
    assert_eq!(bad["ok"], false);
    assert!(
        bad["error"].as_str().unwrap().starts_with("no connection"),
        "{bad}"
    );
    ask(at);
    let state = &balancer.member_status("web", at)["state"];
    assert_eq!(state, "down", "it counts");
    assert_eq!(
        balancer.member_status("web", living)["check"]["error"],
        Value::Null
    );
    let words = balancer.run_ctl(&format!("check web {at}")).unwrap();
    assert!(words.contains("is not well"), "{words}");
    let unknown = balancer.run_ctl("check web nobody").unwrap_err();
    assert!(unknown.contains("no member \"nobody\""), "{unknown}");

    let balancer = Balancer::start_http(&[living, at], "health_check = false");
    let said = balancer.run_ctl(&format!("check web {at}")).unwrap();
    assert!(said.contains("no health check"), "{said}");
    assert!(said.contains("is not well"), "{said}");
    assert_eq!(balancer.member_status("web", at)["check"], Value::Null);
    let said = balancer.run_ctl(&format!("check web {living}")).unwrap();
    assert!(said.contains("is well"), "{said}");
}

#[test]
fn the_last_hour_counters_and_process_are_told() {
    let (members, balancer) = two();
    let clients = Clients::start(balancer.address("web"), 2);
    wait_until("there are two moments with traffic", || {
        let hour = get(&balancer, "/v1/history");
        let rates = hour["rate"].as_array().unwrap();
        rates
            .iter()
            .filter(|rate| rate.as_f64() > Some(0.0))
            .count()
            >= 2
    });
    let hour = get(&balancer, "/v1/history?group=web");
    assert_eq!(hour["step_seconds"], 5);
    let count = hour["t"].as_array().unwrap().len();
    for column in [
        "rate",
        "failures",
        "p50_ms",
        "p99_ms",
        "in_flight",
        "queue",
        "spread",
    ] {
        assert_eq!(hour[column].as_array().unwrap().len(), count, "{column}");
    }
    let rows = hour["members"].as_array().unwrap();
    assert_eq!(rows.len(), 2);
    let share = rows[0]["share"].as_array().unwrap().last().unwrap();
    assert!((share.as_f64().unwrap() - 0.5).abs() < 0.2, "{share}");
    let table = balancer.run_ctl("history web").unwrap();
    assert!(
        table.starts_with("TIME") && table.lines().count() >= 2,
        "{table}"
    );
    let since = hour["t"][count - 1].as_u64().unwrap();
    let name = members[1].address();
    let late = get(
        &balancer,
        &format!("/v1/history?group=web&member={name}&since={since}"),
    );
    assert_eq!(late["members"].as_array().unwrap().len(), 1);
    assert!(
        late["t"]
            .as_array()
            .unwrap()
            .iter()
            .all(|t| t.as_u64() >= Some(since))
    );
    clients.stop_and_count();

    let families = get(&balancer, "/v1/counters");
    let families = families.as_array().unwrap();
    let find = |name: &str| {
        families
            .iter()
            .find(|family| family["name"] == name)
            .unwrap()
    };
    let requests = find("evenkeel_rule_requests_total");
    assert_eq!(requests["type"], "counter");
    let sample = &requests["samples"][0];
    assert_eq!(sample["labels"], json!({"rule": "web"}));
    let counted = balancer
        .read_metric("evenkeel_rule_requests_total{rule=\"web\"}")
        .unwrap();
    assert_eq!(sample["value"].as_f64(), Some(counted));
    let line = format!("evenkeel_rule_requests_total rule=web {counted}\n");
    assert!(balancer.run_ctl("counters").unwrap().contains(&line));

    let process = get(&balancer, "/v1/process");
    assert_eq!(process["pid"], balancer.id());
    assert_eq!(process["workers"], 1);
    assert!(process["cpu_seconds"].as_f64().unwrap() > 0.0);
    assert!(
        balancer
            .run_ctl("process")
            .unwrap()
            .contains(&format!("process     {}", balancer.id()))
    );
}

/// The answer of the admin API to a POST.
fn post(balancer: &Balancer, path: &str, body: &Value) -> Value {
    let mut wire = Wire::connect(balancer.admin_address());
    let body = body.to_string();
    wire.send(format!(
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    ));
    serde_json::from_str(wire.read_response().text()).unwrap()
}

#[test]
fn a_running_group_is_simulated() {
    let fast = Member::echoing_targets();
    let slow = Member::answering_with(|request| {
        std::thread::sleep(Duration::from_millis(20));
        ok_response(request.second_word())
    });
    let [fast, slow] = [fast.address(), slow.address()];
    let balancer = Balancer::start_http(
        &[fast, slow],
        "strategy = \"round_robin\"\nslow_start = \"0s\"",
    );
    let two = json!([{"name": "round_robin"}, {"name": "least_request", "params": {"choices": 3}}]);
    let simulate = |body: Value| post(&balancer, "/v1/groups/web/simulate", &body);
    let idle = simulate(json!({"strategies": two}));
    assert_eq!(idle["error"], "no_traffic", "{idle}");

    let clients = Clients::start(balancer.address("web"), 4);
    let mut simulated = Value::Null;
    wait_until("there is traffic, and both members have answered", || {
        simulated = simulate(json!({"strategies": two, "requests": 5000}));
        simulated["error"] != "no_traffic"
            && simulated["assumed"]["members"][0]["mean_ms"].as_f64() > Some(0.0)
            && simulated["assumed"]["members"][1]["mean_ms"].as_f64() > Some(10.0)
    });
    clients.stop_and_count();
    // One more server takes its share of what the others do.
    let more = simulate(json!({"strategies": two, "requests": 5000, "more_members": 1}));
    let members = more["assumed"]["members"].as_array().unwrap();
    assert_eq!(members.len(), 3);
    assert_eq!(members[2]["name"], "more-1");
    let share = more["results"][0]["shares"][2]["share"].as_f64().unwrap();
    assert!(share > 0.0, "{more}");
    let refused = simulate(json!({"strategies": two, "more_members": 101}));
    assert_eq!(refused["error"], "bad_simulation");
    let said = balancer
        .run_ctl("simulate web round_robin --more-members 1")
        .unwrap();
    assert!(
        said.contains("more-1") && said.contains("1 more members"),
        "{said}"
    );
    let assumed = &simulated["assumed"];
    assert!(assumed["rate"].as_f64() > Some(0.0), "{assumed}");
    assert_eq!(assumed["members"][1]["name"], slow.to_string());
    let results = simulated["results"].as_array().unwrap();
    let names: Vec<_> = results
        .iter()
        .map(|of| of["strategy"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["round_robin", "least_request"]);
    for result in results {
        let share = |at: usize| result["shares"][at]["share"].as_f64().unwrap();
        assert!((share(0) + share(1) - 1.0).abs() < 0.001, "{result}");
        assert!(
            result["p50_ms"].as_f64() <= result["p99_ms"].as_f64(),
            "{result}"
        );
    }
    // What was measured may be changed, and the same question has the same answer.
    let members = json!([
        {"name": fast.to_string(), "mean_ms": 5, "concurrency": 2},
        {"name": slow.to_string(), "mean_ms": 50, "concurrency": 2},
        {"name": "one more", "mean_ms": 5, "concurrency": 2},
    ]);
    let body =
        json!({"strategies": two, "requests": 20000, "seed": 7, "rate": 300, "members": members});
    let first = simulate(body.clone());
    assert_eq!(first, simulate(body));
    let p99 = |at: usize| first["results"][at]["p99_ms"].as_f64().unwrap();
    assert!(p99(1) < p99(0) / 2.0, "{first}");
    assert_eq!(first["results"][1]["shares"][2]["member"], "one more");

    let wrong = |body: Value, kind: &str| {
        let answer = simulate(body);
        assert_eq!(answer["error"], kind, "{answer}");
    };
    wrong(json!({"strategies": []}), "bad_simulation");
    wrong(
        json!({"strategies": [two[0], two[0], two[0], two[0], two[0]]}),
        "bad_simulation",
    );
    wrong(
        json!({"strategies": two, "requests": 300_000}),
        "bad_simulation",
    );
    wrong(json!({"strategies": two, "rate": -1}), "bad_simulation");
    wrong(
        json!({"strategies": [{"name": "best"}]}),
        "unknown_strategy",
    );
    wrong(
        json!({"strategies": [{"name": "random", "params": {"x": 1}}]}),
        "bad_parameter",
    );
    wrong(
        json!({"strategies": two, "rate": 1, "members": []}),
        "bad_simulation",
    );
    let member = json!({"name": "x", "mean_ms": 0, "concurrency": 1});
    wrong(
        json!({"strategies": two, "rate": 1, "members": [member]}),
        "bad_simulation",
    );
    wrong(json!({"strategy": two}), "bad_body");
    let table = balancer
        .run_ctl("simulate web round_robin random --rate 10 --requests 1000")
        .unwrap();
    assert!(
        table.contains("STRATEGY") && table.contains("at 10.0 requests per second"),
        "{table}"
    );
    let unknown = balancer.run_ctl("simulate none random").unwrap_err();
    assert!(unknown.contains("no group \"none\""), "{unknown}");
}

#[test]
fn the_command_line_watches() {
    let (members, balancer) = two();
    let lines = balancer.run_ctl("watch web --count 2").unwrap();
    assert_eq!(lines.lines().count(), 2, "{lines}");
    assert!(lines.contains(" web: "), "{lines}");
    let json = balancer.run_ctl("--json watch --count 1").unwrap();
    let event: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(event["event"], "sample");
    let complaint = balancer.run_ctl("watch none").unwrap_err();
    assert!(complaint.contains("no group \"none\""), "{complaint}");
    drop(members);
}
