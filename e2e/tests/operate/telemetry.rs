//! Telemetry of requests: lines of the access log in formats of others, request ids, and traces.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking.

use std::collections::HashSet;
use std::net::SocketAddr;

use evenkeel_e2e::balancer::Balancer;
use evenkeel_e2e::folder::Folder;
use evenkeel_e2e::member::{Member, ok_response};
use evenkeel_e2e::process::{are_installed, run_curl};
use evenkeel_e2e::python::python;
use evenkeel_e2e::script::Script;
use evenkeel_e2e::wait_until;
use evenkeel_e2e::wire::Message;
use serde_json::Value;

/// A rule `web` of one worker with these members, and what else the file says.
fn config(members: &[SocketAddr], rule: &str, tables: &str) -> String {
    let members: Vec<String> = members.iter().map(ToString::to_string).collect();
    format!(
        "workers = 1\n{tables}\n[admin]\nlisten = \"127.0.0.1:0\"\n\
         [group.app]\nmembers = {members:?}\nhealth_check = false\nstrategy = \"round_robin\"\n\
         connection_failure_limit = 1000\n\
         [rule.web]\nlisten = \"127.0.0.1:0\"\ngroup = \"app\"\n{rule}\n"
    )
}

fn logged(folder: &Folder, format: &str) -> String {
    let log = folder.join("access.log");
    format!("[access_log]\noutput = {log:?}\nformat = {format:?}\n")
}

fn lines(folder: &Folder, count: usize) -> Vec<String> {
    let text = || folder.text("access.log");
    wait_until("all is logged", || text().matches('\n').count() == count);
    text().lines().map(str::to_owned).collect()
}

fn get(balancer: &Balancer, path: &str, fields: &str) -> Message {
    let mut wire = balancer.connect();
    wire.send(format!(
        "GET {path} HTTP/1.1\r\nHost: shop.example\r\n{fields}\r\n"
    ));
    wire.read_response()
}

#[test]
fn lines_in_the_combined_format_are_read_by_a_parser_of_apaches() {
    let Some(mut parser) = python("log_parser.py", "apachelogs") else {
        return;
    };
    let member = Member::answering_with(|_| ok_response("12345"));
    let folder = Folder::new();
    let balancer = Balancer::start(&config(
        &[member.address()],
        "",
        &logged(&folder, "combined"),
    ));
    let agent = "odd \"agent\" \\ \t(x)";
    get(
        &balancer,
        "/a?b=\"c\"",
        &format!("Referer: http://from/\r\nUser-Agent: {agent}\r\n"),
    );
    get(&balancer, "/plain", "");
    let mut wire = balancer.connect();
    wire.send("nonsense\r\n\r\n");
    wire.read_response();
    let lines = lines(&folder, 3);
    let mut parser = Script::start(&mut parser);
    let mut read = |line: &str| -> Value { serde_json::from_str(&parser.ask_line(line)).unwrap() };
    let first = read(&lines[0]);
    assert_eq!(first["host"], "127.0.0.1", "{lines:?}");
    assert_eq!(first["request"], "GET /a?b=\"c\" HTTP/1.1", "{lines:?}");
    assert_eq!(first["status"], 200);
    assert_eq!(first["bytes"], 5, "the body alone");
    assert_eq!(first["referer"], "http://from/");
    assert_eq!(first["agent"], agent);
    assert!(first["user"].is_null());
    let second = read(&lines[1]);
    assert_eq!(second["request"], "GET /plain HTTP/1.1");
    assert!(second["referer"].is_null() && second["agent"].is_null());
    assert_eq!(read(&lines[2])["status"], 400, "{lines:?}");
}

#[test]
fn lines_of_an_own_format_have_header_fields_and_no_client_forges_one() {
    let member = Member::answering_with(|_| {
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nServer: origin\r\n\r\nok".into()
    });
    let folder = Folder::new();
    let format = "{client_ip} {{{rule}} \"{method} {target}\" {status} {body_bytes_sent} \
                  \"{request.header.X-Note}\" {response.header.server} {protocol}";
    let text = |format: &str| config(&[member.address()], "", &logged(&folder, format));
    let balancer = Balancer::start(&text(format));
    get(&balancer, "/x", "X-Note: a\tb \"q\"\r\n");
    if are_installed(&["curl"]) {
        let url = format!("http://{}/h2", balancer.address("web"));
        run_curl(&["--http2-prior-knowledge", "-H", "X-Note: over 2", &url]);
    } else {
        get(&balancer, "/h2", "X-Note: over 2\r\n");
    }
    let first = lines(&folder, 2);
    assert_eq!(
        first[0],
        "127.0.0.1 {web} \"GET /x\" 200 2 \"a\\x09b \\x22q\\x22\" origin HTTP/1.1"
    );
    if are_installed(&["curl"]) {
        assert_eq!(
            first[1],
            "127.0.0.1 {web} \"GET /h2\" 200 2 \"over 2\" origin HTTP/2.0"
        );
    }
    // Another format from now on, without a restart.
    balancer.reconfigure(&text("{status} {request.header.user-agent}"));
    let changed = || {
        get(&balancer, "/y", "User-Agent: me\r\n");
        folder.text("access.log").contains("\n200 me\n")
    };
    wait_until("lines look otherwise", changed);
}

const IDS: &str = "[rule.web.http]\nrequest_id = { answer = true }\n";

fn id(message: &Message) -> String {
    let values = message.values("x-request-id");
    assert_eq!(values.len(), 1, "{message:?}");
    values[0].to_owned()
}

#[test]
fn a_request_has_one_id_for_the_client_the_member_and_the_log() {
    let member = Member::answering_with(|_| {
        "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nX-Request-Id: of-the-member\r\n\r\n".into()
    });
    let folder = Folder::new();
    let balancer = Balancer::start(&config(&[member.address()], IDS, &logged(&folder, "json")));
    let mut all = Vec::new();
    // Nobody trusts this client: its ids are not taken.
    for fields in ["", "X-Request-ID: mine\r\n"] {
        let answer = get(&balancer, "/", fields);
        let (_, seen) = member.next_request();
        assert_eq!(id(&answer), id(&seen));
        assert_eq!(id(&answer).len(), 36);
        all.push(id(&answer));
    }
    if are_installed(&["curl"]) {
        let url = format!("http://{}/", balancer.address("web"));
        let head = run_curl(&["--http2-prior-knowledge", "-i", &url]);
        let (_, seen) = member.next_request();
        assert!(
            head.contains(&format!("x-request-id: {}", id(&seen))),
            "{head}"
        );
        assert!(!head.contains("of-the-member"), "{head}");
        all.push(id(&seen));
    }
    let lines = lines(&folder, all.len());
    for (line, id) in lines.iter().zip(&all) {
        let line: Value = serde_json::from_str(line).unwrap();
        assert_eq!(line["request_id"], **id);
    }
    assert_eq!(all.iter().collect::<HashSet<_>>().len(), all.len());
}

#[test]
fn ids_of_trusted_clients_are_taken_if_they_are_safe() {
    let member = Member::answering_with(|_| ok_response(""));
    let rule =
        "[rule.web.http]\nrequest_id = { field = \"X-Correlation-ID\" }\ntrust_forwarded = true\n";
    let balancer = Balancer::start(&config(&[member.address()], rule, ""));
    for (given, taken) in [
        ("X-Correlation-ID: order-4711/a:b", true),
        ("x-correlation-id: a b", false),
        ("X-Correlation-ID: a\"b", false),
        (&*format!("X-Correlation-ID: {}", "x".repeat(129)), false),
        ("X-Correlation-ID: a\r\nX-Correlation-ID: b", false),
    ] {
        let answer = get(&balancer, "/", &format!("{given}\r\n"));
        // Clients get none, as nobody has asked for that.
        assert!(answer.values("x-correlation-id").is_empty());
        let (_, seen) = member.next_request();
        let values = seen.values("x-correlation-id");
        assert_eq!(values.len(), 1, "{given}");
        assert_eq!(values[0] == "order-4711/a:b", taken, "{given}");
        assert_eq!(values[0].len() == 36, !taken, "{given}");
    }
}

#[test]
fn retries_and_answers_of_the_balancer_keep_the_id() {
    // Each closes after a request without an answer.
    let members = [(); 2].map(|()| {
        Member::start(|script, mut wire| {
            script.read_request(&mut wire);
        })
    });
    let addresses = members.each_ref().map(Member::address);
    let balancer = Balancer::start(&config(&addresses, IDS, ""));
    let answer = get(&balancer, "/", "");
    assert_eq!(answer.second_word(), "502");
    let seen = members
        .each_ref()
        .map(|member| id(&member.next_request().1));
    assert_eq!(seen, [id(&answer), id(&answer)]);
}

/// A collector, and the spans that it got.
struct Collector {
    script: Script,
    port: String,
}

impl Collector {
    fn start() -> Option<Self> {
        let script = Script::start(&mut python("otlp_collector.py", "opentelemetry")?);
        let port = script.read_line();
        Some(Collector { script, port })
    }

    fn tables(&self, sample: &str) -> String {
        format!(
            "[tracing]\nendpoint = \"http://127.0.0.1:{}\"\nsample = {sample}\ninterval = \"50ms\"\n\
             service_name = \"edge\"\nattributes = {{ \"deployment.environment.name\" = \"test\" }}\n\
             headers = {{ Authorization = \"Bearer collector-token\" }}\n",
            self.port
        )
    }

    fn span(&self) -> Value {
        serde_json::from_str(&self.script.read_line()).unwrap()
    }

    /// The spans of a request: its own, and those below it.
    fn trace(&self, tries: usize) -> (Value, Vec<Value>) {
        let server = self.span();
        assert_eq!(server["kind"], "SPAN_KIND_SERVER", "{server}");
        let tries: Vec<Value> = (0..tries).map(|_| self.span()).collect();
        for attempt in &tries {
            assert_eq!(attempt["kind"], "SPAN_KIND_CLIENT", "{attempt}");
            assert_eq!(attempt["trace"], server["trace"], "{attempt}");
            assert_eq!(attempt["parent"], server["span"], "{attempt}");
            let within = |key: &str| attempt[key].as_u64().unwrap();
            assert!(within("start") >= server["start"].as_u64().unwrap());
            assert!(within("end") <= server["end"].as_u64().unwrap());
        }
        (server, tries)
    }
}

#[test]
fn a_client_of_opentelemetry_the_balancer_and_the_member_are_in_one_trace() {
    let (Some(collector), Some(mut client)) = (
        Collector::start(),
        python("otlp_client.py", "opentelemetry"),
    ) else {
        return;
    };
    let member = Member::answering_with(|_| ok_response("done"));
    let folder = Folder::new();
    let rule = "[rule.web.http]\ntrust_forwarded = true\nrequest_id = true\n";
    let tables = collector.tables("0.0") + &logged(&folder, "json");
    let balancer = Balancer::start(&config(&[member.address()], rule, &tables));
    let mut client = Script::start(&mut client);
    let told = client.ask_line(&format!("{} /a/b?c=d", balancer.address("web")));
    let words: Vec<&str> = told.split(' ').collect();
    let [status, trace, span] = words[..] else {
        panic!("{told}");
    };
    assert_eq!(status, "200");
    let (server, tries) = collector.trace(1);
    assert_eq!(
        (server["trace"].as_str(), server["parent"].as_str()),
        (Some(trace), Some(span))
    );
    assert_eq!(server["path"], "/v1/traces");
    assert_eq!(server["type"], "application/x-protobuf");
    assert_eq!(server["login"], "Bearer collector-token");
    assert_eq!(server["resource"]["service.name"], "edge");
    assert_eq!(server["resource"]["deployment.environment.name"], "test");
    let of_server = &server["attributes"];
    for (key, wanted) in [
        ("http.request.method", "GET"),
        ("url.path", "/a/b"),
        ("url.query", "c=d"),
        ("url.scheme", "http"),
        ("server.address", "127.0.0.1"),
        ("client.address", "127.0.0.1"),
        ("network.protocol.version", "1.1"),
        ("user_agent.original", "otlp-client"),
        ("evenkeel.rule", "web"),
    ] {
        assert_eq!(of_server[key], wanted, "{key} in {server}");
    }
    assert_eq!(of_server["http.response.status_code"], 200);
    assert!(server["status"].is_null(), "{server}");
    let of_try = &tries[0]["attributes"];
    assert_eq!(of_try["evenkeel.member"], member.address().to_string());
    assert_eq!(of_try["evenkeel.group"], "app");
    assert_eq!(of_try["evenkeel.strategy"], "round_robin");
    assert!(
        of_try["evenkeel.connect_ms"].as_f64() > Some(0.0),
        "{of_try}"
    );

    // The member is told of the span that asks it.
    let (_, seen) = member.next_request();
    let span = tries[0]["span"].as_str().unwrap();
    assert_eq!(
        seen.values("traceparent"),
        [format!("00-{trace}-{span}-01")]
    );
    // The log has the same names.
    let line: Value = serde_json::from_str(&lines(&folder, 1)[0]).unwrap();
    assert_eq!(line["trace_id"], *trace);
    assert_eq!(line["request_id"], of_server["evenkeel.request_id"]);
    wait_until("spans are counted", || {
        balancer.read_metric("evenkeel_trace_spans_total{result=\"exported\"}") == Some(2.0)
    });
}

#[test]
fn each_try_at_a_member_is_a_span_that_the_member_is_told_of() {
    let Some(collector) = Collector::start() else {
        return;
    };
    let bad = Member::start(|script, mut wire| {
        script.read_request(&mut wire);
    });
    let good = Member::answering_with(|_| ok_response("done"));
    let addresses = [bad.address(), good.address()];
    let balancer = Balancer::start(&config(&addresses, "", &collector.tables("1.0")));
    let mut most = 0;
    for _ in 0..2 {
        assert_eq!(get(&balancer, "/", "").second_word(), "200");
        let server = collector.span();
        let retries = server["attributes"]["evenkeel.retries"].as_u64().unwrap();
        let tries: Vec<Value> = (0..=retries).map(|_| collector.span()).collect();
        most = most.max(retries);
        let parent = |attempt: &Value| {
            let [trace, span] = ["trace", "span"].map(|key| attempt[key].as_str().unwrap());
            format!("00-{trace}-{span}-01")
        };
        let (_, seen) = good.next_request();
        assert_eq!(
            seen.values("traceparent"),
            [parent(&tries[retries as usize])]
        );
        if retries > 0 {
            let (_, seen) = bad.next_request();
            assert_eq!(seen.values("traceparent"), [parent(&tries[0])]);
            assert_eq!(tries[0]["attributes"]["error.type"], "closed");
            assert_eq!(tries[0]["status"], "STATUS_CODE_ERROR");
            assert_eq!(tries[1]["attributes"]["http.request.resend_count"], 1);
            assert!(tries[1]["status"].is_null());
        }
        assert!(server["status"].is_null(), "{server}");
    }
    assert_eq!(most, 1, "one of two requests was tried again");
}

#[test]
fn a_hedge_has_spans_for_both_members_over_http2_too() {
    let (Some(collector), true) = (Collector::start(), are_installed(&["curl"])) else {
        return;
    };
    // Slow until the test is over.
    let slow = Member::start(|script, mut wire| {
        script.read_request(&mut wire);
        script.read_request(&mut wire);
    });
    let fast = Member::answering_with(|_| ok_response("done"));
    let addresses = [slow.address(), fast.address()];
    let rule = "[rule.web.http.hedge]\nafter = \"10ms\"\npercent = 100\n";
    // By turns the fast one might be asked first each time: on a busy machine it is hedged, too, which takes a turn.
    let config = config(&addresses, rule, &collector.tables("1.0"));
    let balancer = Balancer::start(&config.replace("round_robin", "random"));
    let url = format!("http://{}/", balancer.address("web"));
    let mut is_hedged = false;
    for _ in 0..64 {
        if is_hedged {
            break;
        }
        run_curl(&["--http2-prior-knowledge", &url]);
        let server = collector.span();
        assert_eq!(server["attributes"]["network.protocol.version"], "2");
        let first = collector.span();
        let (_, seen) = fast.next_request();
        let told = seen.values("traceparent")[0].to_owned();
        if first["attributes"]["evenkeel.member"] == fast.address().to_string() {
            assert!(
                told.contains(first["span"].as_str().unwrap()),
                "{told}: {first}"
            );
            continue;
        }
        assert_eq!(first["attributes"]["error.type"], "slower");
        let second = collector.span();
        assert_eq!(second["attributes"]["http.response.status_code"], 200);
        assert!(
            told.contains(second["span"].as_str().unwrap()),
            "{told}: {second}"
        );
        if first["attributes"]["evenkeel.hedge"] == true {
            // On a busy machine the fast one may take long, too.
            assert!(second["attributes"]["evenkeel.hedge"].is_null(), "{second}");
            continue;
        }
        is_hedged = true;
        assert_eq!(second["attributes"]["evenkeel.hedge"], true);
        let span = first["span"].as_str().unwrap();
        while !slow.next_request().1.values("traceparent")[0].contains(span) {}
    }
    assert!(is_hedged, "the slow one was never asked first");
}

#[test]
fn what_a_stranger_says_of_traces_counts_for_nothing() {
    let Some(collector) = Collector::start() else {
        return;
    };
    let member = Member::answering_with(|_| ok_response(""));
    let said = "traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\r\ntracestate: a=b\r\n";
    let text = |sample: &str| config(&[member.address()], "", &collector.tables(sample));
    let balancer = Balancer::start(&text("0.0"));
    get(&balancer, "/untraced", said);
    let (_, seen) = member.next_request();
    assert!(seen.values("traceparent").is_empty() && seen.values("tracestate").is_empty());
    balancer.reconfigure(&text("1.0"));
    wait_until("it is traced", || {
        get(&balancer, "/traced", said);
        let (_, seen) = member.next_request();
        assert!(seen.values("tracestate").is_empty());
        !seen.values("traceparent").is_empty()
    });
    let server = collector.span();
    assert_eq!(server["attributes"]["url.path"], "/traced");
    assert_ne!(server["trace"], "4bf92f3577b34da6a3ce929d0e0e4736");
    assert_eq!(server["parent"], "");
    // Without the table what clients say is passed on as it is.
    balancer.reconfigure(&config(&[member.address()], "", ""));
    wait_until("there are no traces any more", || {
        get(&balancer, "/", said);
        let (_, seen) = member.next_request();
        seen.values("tracestate") == ["a=b"]
    });
}

#[test]
fn a_collector_that_fails_delays_nobody_and_gets_its_spans_later() {
    let Some(mut collector) = Collector::start() else {
        return;
    };
    let member = Member::answering_with(|_| ok_response("done"));
    let balancer = Balancer::start(&config(&[member.address()], "", &collector.tables("1.0")));
    assert_eq!(collector.script.ask_line("fail 1"), "failing");
    for _ in 0..20 {
        assert_eq!(get(&balancer, "/", "").second_word(), "200");
    }
    // All of them come, those of the batch that was refused at first included.
    let names: Vec<Value> = (0..40).map(|_| collector.span()).collect();
    let servers = names
        .iter()
        .filter(|span| span["kind"] == "SPAN_KIND_SERVER");
    assert_eq!(servers.count(), 20);
    wait_until("spans are counted", || {
        balancer.read_metric("evenkeel_trace_spans_total{result=\"exported\"}") == Some(40.0)
    });
    assert_eq!(
        balancer.read_metric("evenkeel_traces_dropped_total"),
        Some(0.0)
    );
    // One that is gone.
    collector.script.kill();
    for _ in 0..20 {
        assert_eq!(get(&balancer, "/", "").second_word(), "200");
    }
    wait_until("what is lost is counted", || {
        balancer.read_metric("evenkeel_trace_spans_total{result=\"lost\"}") >= Some(2.0)
    });
}
