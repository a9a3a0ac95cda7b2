//! Custom strategies: programs outside of the balancer that choose members, and what becomes of requests when these
//! lie, hang or are gone.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking.

use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpListener};
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex};

use evenkeel_e2e::balancer::Balancer;
use evenkeel_e2e::member::{Member, Seen, ok_response};
use evenkeel_e2e::process::{are_installed, program, run_curl};
use evenkeel_e2e::server::Server;
use evenkeel_e2e::wait_until;
use evenkeel_e2e::wire::Wire;
use serde_json::{Value, json};
use socket2::{Domain, Socket, Type};

/// The protocols of clients, as options of curl.
const CLIENTS: [&str; 2] = ["--http1.1", "--http2-prior-knowledge"];

/// The program of the manual.
const PROGRAM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/chooser.py");

/// Reaction of a chooser when it is asked.
#[derive(Clone)]
enum Act {
    /// Answers, and keeps the connection.
    Answer(String),
    /// Sends bytes, and closes the connection.
    Close(String),
    /// Waits until the connection is closed.
    Silence,
}

/// Names a member.
fn name(member: &str) -> Act {
    Act::Answer(ok_response(&json!({ "member": member }).to_string()))
}

/// A chooser that does what `act` says about a question.
fn chooser(act: impl Fn(&Value) -> Act + Send + Sync + 'static) -> Member {
    chooser_at(TcpListener::bind("127.0.0.1:0").unwrap(), act)
}

fn chooser_at(
    listener: TcpListener,
    act: impl Fn(&Value) -> Act + Send + Sync + 'static,
) -> Member {
    Member::start_at(listener, move |script, mut wire| {
        while let Some(question) = script.read_request(&mut wire) {
            match act(&serde_json::from_str(question.text()).unwrap()) {
                Act::Answer(answer) => {
                    wire.try_send(answer);
                }
                Act::Close(bytes) => {
                    wire.try_send(bytes);
                    return;
                }
                Act::Silence => {}
            }
        }
    })
}

/// A chooser whose acts the test changes.
fn told(first: Act) -> (Member, Arc<Mutex<Act>>) {
    let act = Arc::new(Mutex::new(first));
    let now = Arc::clone(&act);
    (chooser(move |_| now.lock().unwrap().clone()), act)
}

/// The questions that a chooser has got since it was last asked for them.
fn questions(chooser: &Member) -> Vec<Value> {
    let seen = chooser.seen_events().into_iter();
    let questions = seen.filter_map(|seen| match seen {
        Seen::Request(_, question) => Some(serde_json::from_str(question.text()).unwrap()),
        Seen::End(..) => None,
    });
    questions.collect()
}

/// A table about a chooser at `address`. Whoever shares the machine must not make its answers late.
fn asked_at(address: SocketAddr) -> String {
    format!("chooser = {{ url = \"http://{address}/choose\", timeout = \"10s\" }}")
}

/// Members that answer with their names.
fn members<const N: usize>(names: [&'static str; N]) -> [Member; N] {
    names.map(|name| Member::answering_with(move |_| ok_response(name)))
}

/// A balancer's configuration with the rule `web`.
fn config(members: &[(&str, SocketAddr)], more: &str) -> String {
    let members = members.iter();
    let members = members.map(|(name, at)| format!("{{ name = \"{name}\", address = \"{at}\" }}"));
    let members: Vec<_> = members.collect();
    format!(
        "workers = 2\n[admin]\nlisten = \"127.0.0.1:0\"\n[rule.web]\nlisten = \"127.0.0.1:0\"\n\
         strategy = \"round_robin\"\nmembers = [{}]\n{more}\n",
        members.join(", ")
    )
}

/// Body of the response to a GET, in a connection of its own.
fn get(balancer: &Balancer, path: &str) -> String {
    let mut wire = balancer.connect();
    ask(&mut wire, path)
}

fn ask(wire: &mut Wire, path: &str) -> String {
    wire.send(format!("GET {path} HTTP/1.1\r\nHost: shop.example\r\n\r\n"));
    let response = wire.read_response();
    assert_eq!(response.second_word(), "200", "{}", response.head);
    response.text().to_owned()
}

fn decisions(balancer: &Balancer, result: &str) -> u64 {
    let series = format!("evenkeel_chooser_decisions_total{{group=\"web\",result=\"{result}\"}}");
    balancer.read_metric(&series).unwrap() as u64
}

fn failures(balancer: &Balancer, reason: &str) -> u64 {
    let series = format!("evenkeel_chooser_failures_total{{group=\"web\",reason=\"{reason}\"}}");
    balancer.read_metric(&series).unwrap() as u64
}

/// Sends requests until an explanation of one of them says this.
fn wait_for_explanation(balancer: &Balancer, text: &str) {
    wait_until(&format!("a decision is explained by {text:?}"), || {
        get(balancer, "/");
        balancer.run_ctl("explain web").unwrap().contains(text)
    });
}

/// The program of the manual, which ends with this.
struct Program(Child);

impl Program {
    /// Starts it at a free port.
    fn start() -> (Self, SocketAddr) {
        let mut command = program("python3");
        let command = command.args([PROGRAM, "0"]).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        output.read_line(&mut line).unwrap();
        let port = line.trim().rsplit(' ').next().unwrap().parse().unwrap();
        (Program(child), SocketAddr::from(([127, 0, 0, 1], port)))
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn the_program_of_the_manual_decides_about_each_request() {
    if !are_installed(&["python3", "nginx", "curl"]) {
        return;
    }
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/strategies.md");
    let page = std::fs::read_to_string(page).unwrap();
    assert!(page.contains(&std::fs::read_to_string(PROGRAM).unwrap()));
    let servers = [(); 3].map(|()| Server::start_nginx(None));
    let [dear, cheap, other] = servers.each_ref().map(Server::address);
    let (program, at) = Program::start();
    let members = [("web-1", dear), ("web-2", cheap), ("web-3", other)];
    let balancer = Balancer::start(&config(&members, &asked_at(at)));
    let url = format!("http://{}/name", balancer.address("web"));
    for client in CLIENTS {
        for _ in 0..5 {
            assert_eq!(run_curl(&[client, &url]), cheap.to_string());
        }
    }
    assert_eq!(decisions(&balancer, "chooser"), 10);
    // Only members that may be picked are candidates.
    balancer.run_ctl("drain web web-2").unwrap();
    for client in CLIENTS {
        assert_eq!(run_curl(&[client, &url]), other.to_string());
    }
    assert_eq!(decisions(&balancer, "chooser"), 12);
    assert_eq!(decisions(&balancer, "fallback"), 0);
    // With one candidate there is nothing to choose.
    balancer.run_ctl("drain web web-3").unwrap();
    assert_eq!(run_curl(&[&url]), dear.to_string());
    assert_eq!(decisions(&balancer, "chooser"), 12);
    for member in ["web-2", "web-3"] {
        balancer.run_ctl(&format!("ready web {member}")).unwrap();
    }
    let explained = balancer.run_ctl("explain web").unwrap();
    assert!(
        explained.contains(&format!("the chooser at http://{at}/choose")),
        "{explained}"
    );
    // The program dies.
    drop(program);
    let mut seen: Vec<_> = (0..30).map(|_| run_curl(&[&url])).collect();
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), 3, "the strategy decides");
    assert_eq!(decisions(&balancer, "fallback"), 30);
    assert!(failures(&balancer, "unreachable") + failures(&balancer, "broken") >= 3);
    assert_eq!(
        balancer.read_metric("evenkeel_chooser_up{group=\"web\"}"),
        Some(0.0)
    );
    balancer.wait_for_log("chooser fails");
    let group = &balancer.status()["groups"][0];
    assert_eq!(group["chooser"]["answers"], false);
    assert_eq!(group["chooser"]["fallbacks"], 30);
}

#[test]
fn a_chooser_is_told_the_request_and_its_candidates() {
    let names = ["a", "b"];
    let servers = members(names);
    let [a, b] = servers.each_ref().map(Member::address);
    let program = chooser(|question| {
        let key = question["key"].as_str().unwrap_or("b");
        name(key)
    });
    let more = format!(
        "hash_key = \"header:X-Tenant\"\n{}",
        asked_at(program.address())
    );
    let balancer = Balancer::start(&config(&[("a", a), ("b", b)], &more));
    balancer.report_load("127.0.0.1", 0.5);
    let mut wire = balancer.connect();
    for tenant in names {
        wire.send(format!(
            "GET /cart?item=1 HTTP/1.1\r\nHost: shop.example:81\r\nX-Tenant: {tenant}\r\n\r\n"
        ));
        assert_eq!(wire.read_response().text(), tenant);
    }
    let asked = questions(&program);
    let first = &asked[0];
    for (key, value) in [
        ("group", "web"),
        ("rule", "web"),
        ("client", "127.0.0.1"),
        ("method", "GET"),
        ("host", "shop.example:81"),
        ("path", "/cart?item=1"),
        ("key", "a"),
    ] {
        assert_eq!(first[key], value, "{first}");
    }
    let candidates = first["candidates"].as_array().unwrap();
    assert_eq!(candidates.len(), 2);
    for (candidate, (name, at)) in candidates.iter().zip([("a", a), ("b", b)]) {
        assert_eq!(candidate["name"], name);
        assert_eq!(candidate["member"], at.to_string());
        assert_eq!(candidate["address"], at.to_string());
        assert_eq!(candidate["loads"]["cpu"], 0.5);
        assert_eq!(candidate["weight"], 1.0);
    }
    assert_eq!(asked[1]["key"], "b");
}

#[test]
fn a_chooser_that_lies_is_overruled_and_counted() {
    let servers = members(["a", "b", "drained"]);
    let [a, b, drained] = servers.each_ref().map(Member::address);
    let (program, act) = told(name("b"));
    let balancer = Balancer::start(&config(
        &[("a", a), ("b", b), ("drained", drained)],
        &asked_at(program.address()),
    ));
    balancer.run_ctl("drain web drained").unwrap();
    let huge = format!(
        "{{\"member\": \"b\", \"why\": \"{}\"}}",
        "x".repeat(1 << 20)
    );
    let failed = ok_response("{\"member\": \"b\"}").replace("200 OK", "500 Oops");
    for (reason, lie) in [
        ("unknown_member", name("nobody")),
        ("unusable_member", name("drained")),
        ("garbage", Act::Answer(ok_response("b"))),
        ("garbage", Act::Close("no HTTP\r\n\r\n".into())),
        ("status", Act::Answer(failed)),
        ("too_long", Act::Answer(ok_response(&huge))),
        ("broken", Act::Close(String::new())),
        (
            "broken",
            Act::Close("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{".into()),
        ),
    ] {
        let before = [
            failures(&balancer, reason),
            decisions(&balancer, "fallback"),
        ];
        *act.lock().unwrap() = lie;
        for _ in 0..2 {
            let answer = get(&balancer, "/");
            assert!(["a", "b"].contains(&&*answer), "{reason}: {answer}");
        }
        let after = [
            failures(&balancer, reason),
            decisions(&balancer, "fallback"),
        ];
        assert_eq!(after, before.map(|count| count + 2), "{reason}");
        *act.lock().unwrap() = name("b");
        let before = decisions(&balancer, "chooser");
        for _ in 0..2 {
            assert_eq!(get(&balancer, "/"), "b", "{reason}");
        }
        assert_eq!(decisions(&balancer, "chooser"), before + 2);
    }
    assert_eq!(
        balancer.read_metric("evenkeel_chooser_up{group=\"web\"}"),
        Some(1.0)
    );
    wait_for_explanation(
        &balancer,
        "the custom strategy has decided, not the group's own strategy",
    );
    *act.lock().unwrap() = name("nobody");
    wait_for_explanation(&balancer, "the custom strategy has not decided (");
    balancer.wait_for_log("chooser fails");
    *act.lock().unwrap() = name("a");
    wait_until("the chooser is believed again", || {
        get(&balancer, "/");
        balancer
            .log()
            .contains("chooser answers: it decides for the group")
    });
    assert_eq!(get(&balancer, "/"), "a");
}

#[test]
fn a_chooser_that_hangs_costs_a_time_limit_now_and_then() {
    let servers = members(["a", "b"]);
    let [a, b] = servers.each_ref().map(Member::address);
    let program = chooser(|_| Act::Silence);
    let at = program.address();
    let more = format!("chooser = {{ url = \"http://{at}/\", timeout = \"20ms\" }}");
    let balancer = Balancer::start(&config(&[("a", a), ("b", b)], &more));
    let mut wire = balancer.connect();
    let mut asks = 0;
    wait_until("the chooser is not asked for a request", || {
        ask(&mut wire, "/");
        asks += 1;
        failures(&balancer, "suspended") >= 20
    });
    let timeouts = failures(&balancer, "timeout");
    assert!(timeouts >= 3, "{timeouts}");
    assert_eq!(timeouts + failures(&balancer, "suspended"), asks);
    assert_eq!(decisions(&balancer, "fallback"), asks);
    assert_eq!(questions(&program).len() as u64, timeouts);
}

#[test]
fn a_chooser_that_comes_later_decides_from_then_on() {
    let servers = members(["a", "b"]);
    let [a, b] = servers.each_ref().map(Member::address);
    // Nobody listens there, and nobody else can.
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
    socket.bind(&any.into()).unwrap();
    let at = socket.local_addr().unwrap().as_socket().unwrap();
    let balancer = Balancer::start(&config(&[("a", a), ("b", b)], &asked_at(at)));
    for _ in 0..5 {
        get(&balancer, "/");
    }
    assert!(failures(&balancer, "unreachable") >= 3);
    assert_eq!(decisions(&balancer, "fallback"), 5);
    socket.listen(16).unwrap();
    let program = chooser_at(socket.into(), |_| name("b"));
    wait_until("the chooser decides", || {
        get(&balancer, "/");
        decisions(&balancer, "chooser") > 0
    });
    assert_eq!(get(&balancer, "/"), "b");
    drop(program);
}

#[test]
fn clients_that_are_bound_and_connections_are_asked_about_once() {
    let servers = members(["a", "b"]);
    let [a, b] = servers.each_ref().map(Member::address);
    let lines = [a, b].map(|at| {
        // A server that speaks first.
        let name = if at == a { "a\n" } else { "b\n" };
        Member::start(move |script, mut wire| {
            wire.try_send(name);
            script.read_request(&mut wire);
        })
    });
    let [c, d] = lines.each_ref().map(Member::address);
    let program = chooser(|question| {
        let candidates = question["candidates"].as_array().unwrap();
        name(candidates.last().unwrap()["member"].as_str().unwrap())
    });
    let asked = asked_at(program.address());
    let more = format!(
        "granularity = \"per_session\"\n{asked}\n[rule.lines]\nlisten = \"127.0.0.1:0\"\n\
         protocol = \"tcp\"\nmembers = [\"{c}\", \"{d}\"]\n{asked}"
    );
    let balancer = Balancer::start(&config(&[("a", a), ("b", b)], &more));
    for _ in 0..2 {
        let mut wire = balancer.connect();
        for _ in 0..5 {
            assert_eq!(ask(&mut wire, "/"), "b");
        }
        assert_eq!(questions(&program).len(), 1);
    }
    for _ in 0..3 {
        let mut wire = Wire::connect(balancer.address("lines"));
        assert_eq!(wire.try_read_until(b"\n").unwrap(), b"b\n");
        let asked = questions(&program);
        assert_eq!(asked.len(), 1);
        assert_eq!(
            (&asked[0]["rule"], &asked[0]["path"]),
            (&json!("lines"), &Value::Null)
        );
    }
}

#[test]
fn a_retry_is_asked_about_without_the_member_that_failed() {
    let servers = members(["a", "b"]);
    let [a, b] = servers.each_ref().map(Member::address);
    let broken = Member::start(|_, _| {});
    let program = chooser(|question| {
        let candidates = question["candidates"].as_array().unwrap();
        let names = candidates
            .iter()
            .map(|known| known["name"].as_str().unwrap());
        let names: Vec<_> = names.collect();
        name(if names.contains(&"broken") {
            "broken"
        } else {
            "b"
        })
    });
    let members = [("a", a), ("b", b), ("broken", broken.address())];
    let more = format!(
        "connection_failure_limit = 1000\n{}",
        asked_at(program.address())
    );
    let balancer = Balancer::start(&config(&members, &more));
    assert_eq!(get(&balancer, "/"), "b");
    let asked = questions(&program);
    let asked: Vec<_> = asked
        .iter()
        .map(|question| question["candidates"].as_array().unwrap().len())
        .collect();
    assert_eq!(asked, [3, 2]);
    assert_eq!(decisions(&balancer, "chooser"), 2);
}

#[test]
fn choosers_come_change_and_go_while_clients_stay() {
    let servers = members(["a", "b"]);
    let [a, b] = servers.each_ref().map(Member::address);
    let all = [("a", a), ("b", b)];
    let programs = ["a", "b"].map(|member| chooser(move |_| name(member)));
    let balancer = Balancer::start(&config(&all, ""));
    let mut wire = balancer.connect();
    ask(&mut wire, "/");
    let with = |program: &Member| config(&all, &asked_at(program.address()));
    for (program, member) in programs.iter().zip(["a", "b"]) {
        balancer.reconfigure(&with(program));
        for _ in 0..3 {
            assert_eq!(ask(&mut wire, "/"), member);
        }
    }
    assert_eq!(decisions(&balancer, "chooser"), 6);
    // Not by what has nothing to do with it.
    let wider = config(
        &all,
        &format!("max_queue = 7\n{}", asked_at(programs[1].address())),
    );
    balancer.reconfigure(&wider);
    assert_eq!(ask(&mut wire, "/"), "b");
    balancer.reconfigure(&config(&all, ""));
    let mut seen: Vec<_> = (0..4).map(|_| ask(&mut wire, "/")).collect();
    seen.sort();
    assert_eq!(seen, ["a", "a", "b", "b"], "the strategy decides");
    assert_eq!(
        balancer.read_metric("evenkeel_chooser_up{group=\"web\"}"),
        None
    );
    assert_eq!(
        questions(&programs[0]).len() + questions(&programs[1]).len(),
        7
    );
}
