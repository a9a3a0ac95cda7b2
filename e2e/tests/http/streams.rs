//! Servers that send the head of a response at once and the body later: the fast one is found.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking.

use std::net::SocketAddr;

use evenkeel_e2e::balancer::Balancer;
use evenkeel_e2e::folder::Folder;
use evenkeel_e2e::process::{are_installed, program, run_curl};
use evenkeel_e2e::script::Script;
use evenkeel_e2e::wait_until;
use serde_json::Value;

const PYTHON: &str = "/usr/bin/python3";

/// A server of HTTP/1.1 and HTTP/2 that sends each head at once, and the body so many milliseconds later.
const SERVER: &str = r#"
import asyncio, socket, sys
from hypercorn.asyncio import serve
from hypercorn.config import Config
late = int(sys.argv[1]) / 1000
async def app(scope, receive, send):
    if scope["type"] != "http":
        return
    fields = [(b"content-type", b"text/event-stream")]
    await send({"type": "http.response.start", "status": 200, "headers": fields})
    # Before the first part of a body the server holds the head back.
    await send({"type": "http.response.body", "body": b"", "more_body": True})
    await asyncio.sleep(late)
    await send({"type": "http.response.body", "body": b"data: x\n\n", "more_body": True})
    await send({"type": "http.response.body", "body": b"data: y\n\n"})
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
config = Config()
config.bind = [f"fd://{listener.fileno()}"]
config.accesslog = config.errorlog = None
asyncio.run(serve(app, config))
"#;

fn server(late: u32) -> (Script, SocketAddr) {
    let script = Script::start(program(PYTHON).args(["-c", SERVER, &late.to_string()]));
    let port: u16 = script.read_line().parse().unwrap();
    (script, SocketAddr::from(([127, 0, 0, 1], port)))
}

/// Requests of which the second half is looked at.
const REQUESTS: usize = 40;

#[test]
fn a_server_whose_streams_begin_later_gets_fewer() {
    let module = "/usr/lib/python3/dist-packages/hypercorn/__init__.py";
    if !are_installed(&[PYTHON, module, "curl"]) {
        return;
    }
    let (_fast, fast) = server(50);
    let (_slow, slow) = server(200);
    for protocol in ["http1", "h2"] {
        for client in ["--http1.1", "--http2-prior-knowledge"] {
            let folder = Folder::new();
            let log = folder.join("access.log");
            let balancer = Balancer::start(&format!(
                "workers = 1\n[admin]\nlisten = \"127.0.0.1:0\"\n[access_log]\noutput = {log:?}\n\
                 [rule.web]\nlisten = \"127.0.0.1:0\"\nmembers = [\"{slow}\", \"{fast}\"]\n\
                 [rule.web.http]\nmember_protocol = \"{protocol}\"\n"
            ));
            let url = format!("http://{}/", balancer.address("web"));
            for _ in 0..REQUESTS {
                let body = run_curl(&[client, "--data", "prompt", &url]);
                assert_eq!(body, "data: x\n\ndata: y\n\n");
            }
            wait_until("all are in the log", || {
                folder.text("access.log").lines().count() == REQUESTS
            });
            let lines = folder.text("access.log");
            let lines: Vec<Value> = lines
                .lines()
                .map(|line| serde_json::from_str(line).unwrap())
                .collect();
            let is_slow = |line: &&Value| line["member"] == slow.to_string();
            let late = lines.iter().skip(REQUESTS / 2).filter(is_slow).count();
            let context = format!("{protocol} {client}: {late} of {}", REQUESTS / 2);
            assert!(late <= REQUESTS / 8, "{context}");
            for line in &lines {
                let first = line["first_byte_ms"].as_f64().unwrap();
                assert!(first >= line["response_ms"].as_f64().unwrap(), "{line}");
                assert!(first <= line["total_ms"].as_f64().unwrap(), "{line}");
            }
            let member = format!("member=\"{slow}\"");
            let ended = format!("evenkeel_member_streams_total{{group=\"web\",{member}}}");
            let slow_ones = lines.iter().filter(is_slow).count() as f64;
            assert_eq!(balancer.read_metric(&ended), Some(slow_ones), "{context}");
        }
    }
}
