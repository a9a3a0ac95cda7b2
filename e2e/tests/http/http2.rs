//! HTTP/2 and gRPC with peers from packages: curl, nghttp2's load generator, gRPC's own library,
//! h2spec.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking.

use std::collections::HashSet;
use std::net::SocketAddr;

use evenkeel_e2e::balancer::Balancer;
use evenkeel_e2e::folder::Folder;
use evenkeel_e2e::member::{Member, ok_response};
use evenkeel_e2e::process::{are_installed, program, run_curl};
use evenkeel_e2e::script::Script;
use evenkeel_e2e::tls::{Key, make_certificate};
use evenkeel_e2e::wait_until;

const PYTHON: &str = "/usr/bin/python3";

#[test]
fn curl_speaks_http2_by_prior_knowledge() {
    let member = Member::answering_with(|request| {
        let body = String::from_utf8_lossy(&request.body);
        let target = request.head.split(' ').nth(1).unwrap();
        ok_response(&format!("{target} {}", body.len()))
    });
    let balancer = Balancer::start_http(&[member.address()], "");
    let folder = Folder::new();
    let upload = folder.write("upload", "x".repeat(1_000_000));
    let url = |path: &str| format!("http://{}{path}", balancer.address("web"));
    let version = "%{http_version} %{http_code}\n";
    for number in 0..3 {
        let path = format!("/{number}");
        let said = run_curl(&["--http2-prior-knowledge", "-w", version, &url(&path)]);
        assert_eq!(said, format!("{path} 02 200\n"));
        let data = format!("@{}", upload.display());
        let said = run_curl(&[
            "--http2-prior-knowledge",
            "-w",
            version,
            "--data-binary",
            &data,
            &url("/up"),
        ]);
        assert_eq!(said, "/up 10000002 200\n");
    }
    // An offer to upgrade is left where it is: the answer is HTTP/1.1.
    let said = run_curl(&["--http2", "-w", version, &url("/x")]);
    assert_eq!(said, "/x 01.1 200\n");
    let metrics = balancer.admin_get("/metrics");
    let metrics = String::from_utf8_lossy(&metrics.body).into_owned();
    let connections = "evenkeel_rule_http2_connections_total{rule=\"web\"} 6\n";
    assert!(metrics.contains(connections), "{metrics}");
}

#[test]
fn a_load_generator_loses_nothing() {
    if !are_installed(&["h2load"]) {
        return;
    }
    let member = Member::answering_with(|_| ok_response("small"));
    let balancer = Balancer::start_http(&[member.address()], "");
    let url = format!("http://{}/", balancer.address("web"));
    let output = program("h2load")
        .args(["-n", "5000", "-c", "4", "-m", "16", &url])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        said.contains("5000 succeeded, 0 failed, 0 errored"),
        "{said}"
    );
}

/// A server of gRPC that says who it is, with a call of each kind.
const SERVER: &str = r#"
import sys
from concurrent import futures
import grpc
name = sys.argv[1].encode()
def unary(request, context):
    context.set_trailing_metadata((("x-server", name.decode()),))
    return name + b" " + request
def down(request, context):
    for number in range(int(request)):
        yield b"%d" % number
def up(requests, context):
    return b"+".join(requests)
def both(requests, context):
    for request in requests:
        yield request.upper()
def fails(request, context):
    context.abort(grpc.StatusCode.NOT_FOUND, "no such thing: 100%")
def flood(request, context):
    while context.is_active():
        yield b"x" * 60000
def slow(request, context):
    import time
    while context.is_active():
        time.sleep(0.01)
    return b""
handlers = grpc.method_handlers_generic_handler("test.Test", {
    "Unary": grpc.unary_unary_rpc_method_handler(unary),
    "Down": grpc.unary_stream_rpc_method_handler(down),
    "Up": grpc.stream_unary_rpc_method_handler(up),
    "Both": grpc.stream_stream_rpc_method_handler(both),
    "Fails": grpc.unary_unary_rpc_method_handler(fails),
    "Slow": grpc.unary_unary_rpc_method_handler(slow),
    "Flood": grpc.unary_stream_rpc_method_handler(flood),
})
server = grpc.server(futures.ThreadPoolExecutor(max_workers=48))
server.add_generic_rpc_handlers([handlers])
port = server.add_insecure_port("127.0.0.1:0")
server.start()
print(port, flush=True)
server.wait_for_termination()
"#;

/// A client with one connection.
const CLIENT: &str = r#"
import sys
import grpc
channel = grpc.insecure_channel(sys.argv[1])
unary = channel.unary_unary("/test.Test/Unary")
paused = []
def status(call, *arguments, **more):
    try:
        call(*arguments, timeout=10, **more) if "timeout" not in more else call(*arguments, **more)
        return "OK"
    except grpc.RpcError as error:
        return "%s: %s" % (error.code().name, error.details())
def ask(words):
    if words == "unary":
        answer, call = unary.with_call(b"hello", timeout=10)
        server, text = answer.split()
        assert text == b"hello"
        assert dict(call.trailing_metadata())["x-server"] == server.decode()
        return server.decode()
    if words == "down":
        parts = list(channel.unary_stream("/test.Test/Down")(b"1000", timeout=10))
        return str(parts == [b"%d" % number for number in range(1000)])
    if words == "up":
        parts = [b"x" * 1000] * 500
        answer = channel.stream_unary("/test.Test/Up")(iter(parts), timeout=10)
        return str(answer == b"+".join(parts))
    if words == "both":
        import queue
        sent = queue.Queue()
        answers = channel.stream_stream("/test.Test/Both")(iter(sent.get, None), timeout=10)
        # One after the other: each answer comes before the next message is sent.
        for number in range(20):
            sent.put(b"a%d" % number)
            assert next(answers) == b"A%d" % number
        sent.put(None)
        return str(list(answers) == [])
    if words == "fails":
        return status(channel.unary_unary("/test.Test/Fails"), b"")
    if words == "unknown":
        return status(channel.unary_unary("/test.Test/None"), b"").split(":")[0]
    if words == "slow":
        return status(channel.unary_unary("/test.Test/Slow"), b"", timeout=0.3).split(":")[0]
    if words == "pause":
        # Streams of which the first message is taken, and then no more.
        paused.extend(channel.unary_stream("/test.Test/Flood")(b"") for _ in range(24))
        return str(all(len(next(stream)) == 60000 for stream in paused))
    if words == "go on":
        return str(all(len(next(stream)) == 60000 for stream in paused for _ in range(5)))
    if words == "wait":
        return status(unary, b"hello").split(":")[0]
for line in sys.stdin:
    print(ask(line.strip()), flush=True)
"#;

fn has_grpc() -> bool {
    are_installed(&[PYTHON, "/usr/lib/python3/dist-packages/grpc/__init__.py"])
}

fn server(folder: &Folder, name: &str) -> (Script, SocketAddr) {
    let file = folder.write("server.py", SERVER);
    let script = Script::start(program(PYTHON).arg(file).arg(name));
    let port = script.read_line();
    (script, format!("127.0.0.1:{port}").parse().unwrap())
}

#[test]
fn calls_of_grpc_are_balanced_one_by_one() {
    if !has_grpc() {
        return;
    }
    let folder = Folder::new();
    let servers = ["anna", "bert"].map(|name| server(&folder, name));
    let addresses = servers.each_ref().map(|(_, address)| *address);
    let log = folder.path().join("access.log");
    let more = format!(
        "strategy = \"round_robin\"\n[rule.web.http]\nmember_protocol = \"h2\"\n\
         [access_log]\noutput = \"{}\"\nformat = \"{{target}} {{status}} {{grpc_status}}\"",
        log.display()
    );
    let balancer = Balancer::start_http(&addresses, &more);
    let file = folder.write("client.py", CLIENT);
    let target = balancer.address("web").to_string();
    let mut client = Script::start(program(PYTHON).arg(file).arg(target));
    // One connection, all servers.
    let served: HashSet<_> = (0..10).map(|_| client.ask_line("unary")).collect();
    assert_eq!(served.len(), 2);
    for kind in ["down", "up", "both"] {
        assert_eq!(client.ask_line(kind), "True", "{kind}");
    }
    // Many small messages, each of which the client may acknowledge, are no flood.
    for _ in 0..10 {
        assert_eq!(client.ask_line("down"), "True");
    }
    let floods = "evenkeel_rule_http2_floods_total{rule=\"web\",of=\"control_frames\"}";
    assert_eq!(balancer.read_metric(floods), Some(0.0));
    assert_eq!(client.ask_line("fails"), "NOT_FOUND: no such thing: 100%");
    assert_eq!(client.ask_line("unknown"), "UNIMPLEMENTED");
    assert_eq!(client.ask_line("slow"), "DEADLINE_EXCEEDED");
    drop(servers);
    assert_eq!(client.ask_line("wait"), "UNAVAILABLE");
    for line in [
        "/test.Test/Unary 200 OK",
        "/test.Test/Fails 200 NOT_FOUND",
        "/test.Test/None 200 UNIMPLEMENTED",
    ] {
        wait_until("the status of the call is logged", || {
            let log = std::fs::read_to_string(&log).unwrap_or_default();
            log.lines().any(|logged| logged == line)
        });
    }
    let calls = |status: &str| {
        let series = format!("evenkeel_rule_grpc_calls_total{{rule=\"web\",status=\"{status}\"}}");
        balancer.read_metric(&series).unwrap()
    };
    assert_eq!(calls("OK"), 23.0);
    assert_eq!(calls("NOT_FOUND"), 1.0);
    assert_eq!(calls("UNIMPLEMENTED"), 1.0);
    assert!(calls("UNAVAILABLE") >= 1.0);
}

#[test]
fn d1_streams_that_pause_stop_nobody_elses_calls() {
    if !has_grpc() {
        return;
    }
    let folder = Folder::new();
    let (_server, address) = server(&folder, "anna");
    let balancer = Balancer::start_http(&[address], "[rule.web.http]\nmember_protocol = \"h2\"");
    let file = folder.write("client.py", CLIENT);
    let target = balancer.address("web").to_string();
    let client = || Script::start(program(PYTHON).arg(&file).arg(&target));
    let (mut pausing, mut other) = (client(), client());
    assert_eq!(pausing.ask_line("pause"), "True");
    for _ in 0..5 {
        assert_eq!(other.ask_line("unary"), "anna");
        assert_eq!(other.ask_line("down"), "True");
        assert_eq!(other.ask_line("up"), "True");
    }
    // Those that pause go on where they were.
    assert_eq!(pausing.ask_line("go on"), "True");
    assert_eq!(other.ask_line("unary"), "anna");
}

/// Failures that h2spec finds only in the clear: a port that serves HTTP/1.1, too, answers bytes
/// that are no preface of HTTP/2 in HTTP/1.1. nginx and Envoy fail 25 and 11 of its tests, HAProxy
/// none.
const IN_THE_CLEAR: [&str; 1] = ["Sends invalid connection preface"];

#[test]
fn h2spec_finds_nothing() {
    if !are_installed(&["h2spec"]) {
        return;
    }
    let member = Member::answering_with(|_| ok_response("small"));
    let config = format!(
        "workers = 1\n[admin]\nlisten = \"127.0.0.1:0\"\n\
         [rule.plain]\nlisten = \"127.0.0.1:0\"\nmembers = [\"{0}\"]\n\
         [rule.secure]\nlisten = \"127.0.0.1:0\"\nmembers = [\"{0}\"]\n\
         tls = {{ certificates = [\"a.pem\"] }}\n",
        member.address()
    );
    let balancer = Balancer::start_with(&config, |folder| {
        make_certificate(folder, "a", Key::Ecdsa, "DNS:a.example", None);
    });
    for (rule, options, allowed) in [
        ("plain", &[][..], &IN_THE_CLEAR[..]),
        ("secure", &["--tls", "--insecure"], &[]),
    ] {
        let port = balancer.address(rule).port().to_string();
        let output = program("h2spec")
            .args(["--host", "127.0.0.1", "--port", &port, "--timeout", "5"])
            .args(options)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(said.contains("145 tests"), "{said}");
        let failed = said.lines().filter(|line| line.contains('×'));
        for line in failed {
            let is_known = allowed.iter().any(|allowed| line.contains(allowed));
            assert!(is_known, "{rule}: {line}");
        }
    }
}
