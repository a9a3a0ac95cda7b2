//! Load reports from what others have written: Python's HTTP server with ORCA in its
//! responses, gRPC's own library, Prometheus' node exporter, and agents as HAProxy has
//! them. The programs of the manual are run as they stand there.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking.

use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, ChildStderr, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use evenkeel_e2e::balancer::Balancer;
use evenkeel_e2e::folder::Folder;
use evenkeel_e2e::process::{are_installed, program};
use evenkeel_e2e::tls::{Key, make_certificate};
use evenkeel_e2e::wait_until;
use serde_json::Value;

/// Debian's own, which knows Debian's packages.
const PYTHON: &str = "/usr/bin/python3";

/// A program that says where it listens, killed when dropped.
struct Peer {
    process: Child,
    address: SocketAddr,
    _folder: Folder,
    /// Kept open: it may say more.
    _stderr: Option<BufReader<ChildStderr>>,
}

impl Peer {
    /// Runs a script of Python that gets a port of 0 and prints `listening on PORT`.
    fn python(script: &str, arguments: &[&str]) -> Self {
        let folder = Folder::new();
        let file = folder.write("peer.py", script);
        let mut process = program(PYTHON)
            .arg(file)
            .arg("0")
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdout = BufReader::new(process.stdout.take().unwrap());
        let port = said(stdout, "listening on ");
        Peer {
            process,
            address: format!("127.0.0.1:{port}").parse().unwrap(),
            _folder: folder,
            _stderr: None,
        }
    }
}

impl Peer {
    /// Runs Prometheus' node exporter, with further arguments.
    fn exporter(folder: Folder, arguments: &[&str]) -> Self {
        let mut process = program("prometheus-node-exporter")
            .arg("--web.listen-address=127.0.0.1:0")
            .args(arguments)
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stderr = BufReader::new(process.stderr.take().unwrap());
        let address = said(&mut stderr, "msg=\"Listening on\" address=");
        Peer {
            process,
            address: address.trim().parse().unwrap(),
            _folder: folder,
            _stderr: Some(stderr),
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Returns the text that follows `before` on the first line that has it.
fn said(output: impl BufRead, before: &str) -> String {
    let mut lines = output.lines().map_while(Result::ok);
    let found = lines.find_map(|line| Some(line.split_once(before)?.1.to_owned()));
    found.unwrap_or_else(|| panic!("it ended before it said {before:?}"))
}

/// The block of Python in the manual that begins with `# NAME`.
fn from_the_manual(name: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let page = std::fs::read_to_string(root.join("docs/load-reports.md")).unwrap();
    let start = format!("```python\n# {name}: ");
    let (_, rest) = page.split_once(&start).unwrap();
    format!("# {}", rest.split_once("```").unwrap().0)
}

/// The fresh loads of the only location: name and value.
fn loads(balancer: &Balancer) -> Vec<(String, f64)> {
    let status = balancer.status();
    let loads = status["locations"][0]["loads"].as_array().unwrap().clone();
    let load = |load: &Value| {
        (
            load["id"].as_str().unwrap().to_owned(),
            number(load, "value"),
        )
    };
    loads.iter().map(load).collect()
}

fn load(balancer: &Balancer, id: &str) -> Option<f64> {
    let mut loads = loads(balancer).into_iter();
    loads.find(|(known, _)| known == id).map(|(_, value)| value)
}

fn number(of: &Value, name: &str) -> f64 {
    of[name].as_f64().unwrap()
}

/// Reports of a source with that result.
fn count(balancer: &Balancer, source: &str, result: &str) -> u64 {
    let page = balancer.admin_get("/metrics");
    let start =
        format!("evenkeel_reports_total{{group=\"web\",source=\"{source}\",result=\"{result}\"}} ");
    let text = String::from_utf8(page.body).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(&start));
    line.map_or(0, |count| count.parse().unwrap())
}

/// An HTTP server whose responses carry the field that the path asks for.
const ECHO: &str = r#"
import sys, urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
class App(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *_): pass
    def do_GET(self):
        name, _, value = urllib.parse.unquote(self.path[1:]).partition("=")
        self.send_response(200)
        self.send_header(name, value)
        self.send_header("Content-Length", "0")
        self.end_headers()
server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), App)
print("listening on", server.server_port, flush=True)
server.serve_forever()
"#;

#[test]
fn orca_in_responses() {
    if !are_installed(&[PYTHON]) {
        return;
    }
    let peer = Peer::python(ECHO, &[]);
    let orca = "[rule.web.orca.loads]\ncpu_utilization = \"cpu\"\n\"named_metrics.queue\" = 100";
    let balancer = Balancer::start_http(&[peer.address], orca);
    let mut wire = balancer.connect();
    let mut answer = |field: &str| {
        let path = field
            .replace('%', "%25")
            .replace(' ', "%20")
            .replace('"', "%22");
        wire.send(format!("GET /{path} HTTP/1.1\r\nHost: a\r\n\r\n"));
        let response = wire.read_response();
        assert!(response.head.starts_with("HTTP/1.1 200"), "{response:?}");
        let head = response.head.to_ascii_lowercase();
        assert!(
            !head.contains("load-metrics"),
            "clients do not get it: {head}"
        );
        loads(&balancer)
    };
    let load = |id: &str, value: f64| (id.to_owned(), value);
    let metrics = "endpoint-load-metrics=";
    assert_eq!(
        answer(&format!(
            "{metrics}TEXT cpu_utilization=0.25, mem_utilization=0.9"
        )),
        [load("cpu", 0.25)]
    );
    let both = [load("cpu", 0.5), load("100", 7.0)];
    let json = r#"JSON {"cpu_utilization": 0.5, "named_metrics": {"queue": 7}}"#;
    assert_eq!(answer(&format!("{metrics}{json}")), both);
    for wrong in [
        "TEXT cpu_utilization=NaN",
        "TEXT cpu_utilization=-1",
        "TEXT cpu_utilization=1e13",
        "TEXT cpu_utilization:0.9",
        "JSON {\"cpu_utilization\": 0.9",
        "JSON {\"cpu_utilization\": 0.9, \"cpu_utilization\": 0.1}",
        "YAML cpu_utilization: 0.9",
        "TEXT mem_utilization=0.9",
    ] {
        assert_eq!(answer(&format!("{metrics}{wrong}")), both, "{wrong}");
    }
    assert_eq!(
        answer("endpoint-load-metrics-bin=CQAAAAAAANA/")[0],
        load("cpu", 0.25)
    );
    let counts = ["taken", "bad_value", "malformed", "missing"];
    let counts = counts.map(|result| count(&balancer, "orca_header", result));
    assert_eq!(counts, [3, 3, 4, 1]);
}

#[test]
fn the_app_of_the_manual_reports_its_load() {
    if !are_installed(&[PYTHON]) {
        return;
    }
    let peer = Peer::python(&from_the_manual("app.py"), &[]);
    let balancer = Balancer::start_http(&[peer.address], "orca = true");
    let mut wire = balancer.connect();
    wire.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(wire.read_response().body, b"hello\n");
    assert!(load(&balancer, "cpu").is_some());
}

/// An agent that answers with what is in a file.
const AGENT: &str = r#"
import socketserver, sys
class Agent(socketserver.BaseRequestHandler):
    def handle(self):
        assert self.request.recv(100) == b"state?\n"
        with open(sys.argv[2], "rb") as file:
            self.request.sendall(file.read())
class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
server = Server(("127.0.0.1", int(sys.argv[1])), Agent)
print("listening on", server.server_address[1], flush=True)
server.serve_forever()
"#;

/// Accepts connections, and closes them, until it is told to end; then the port is free.
/// Without it the queue of connections that nobody accepts would fill up.
struct Acceptor {
    ends: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Acceptor {
    fn of(listener: TcpListener) -> Self {
        let ends = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&ends);
        let thread = std::thread::spawn(move || {
            while !told.load(Ordering::SeqCst) {
                // The end is a connection, too.
                drop(listener.accept());
            }
        });
        Acceptor { ends, thread }
    }

    fn end(self, address: SocketAddr) {
        self.ends.store(true, Ordering::SeqCst);
        drop(TcpStream::connect(address));
        self.thread.join().unwrap();
    }
}

#[test]
fn agents_and_health_checks_are_an_and() {
    if !are_installed(&[PYTHON]) {
        return;
    }
    let folder = Folder::new();
    let say = |line: &str| {
        // As a whole: the agent may read it at any moment.
        let new = folder.write("new", line);
        std::fs::rename(new, folder.join("state")).unwrap();
    };
    say("ready up 50% maxconn:30\n");
    let agent = Peer::python(AGENT, &[folder.join("state").to_str().unwrap()]);
    let member = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, port) = (member.local_addr().unwrap(), agent.address.port());
    let member = Acceptor::of(member);
    let checks = format!(
        "slow_start = \"0s\"\npanic_threshold = 1.0\n\
         health_check = {{ interval = \"20ms\", fall = 1, rise = 1 }}\n\
         agent_check = {{ port = {port}, interval = \"20ms\", send = \"state?\\n\" }}"
    );
    let balancer = Balancer::start_tcp(&[address], &checks);
    let reasons = || balancer.member_status("web", address)["reasons"].to_string();
    let becomes = |wanted: &str| wait_until(wanted, || reasons() == wanted);
    wait_until("the weight is halved", || {
        let member = balancer.member_status("web", address);
        number(&member, "effective_weight") == 0.5 && member["max_connections"] == 30
    });
    // A weight that is set live is halved, too, and not lost.
    balancer
        .run_ctl(&format!("weight web {address} 10"))
        .unwrap();
    assert_eq!(
        number(&balancer.member_status("web", address), "effective_weight"),
        5.0
    );

    say("drain down #disk full\r\n");
    becomes(r#"["reported_drain","reported_down"]"#);
    let member_now = balancer.member_status("web", address);
    let says = member_now["opinions"][0]["says"].as_str().unwrap();
    assert_eq!(says, "down drain 50% maxconn:30 (disk full)");
    // Garbage, and what is ambiguous, changes nothing.
    let before = count(&balancer, "agent_check", "malformed");
    say("ready up now\n");
    wait_until("garbage is counted", || {
        count(&balancer, "agent_check", "malformed") > before
    });
    say("up down\n");
    let before = count(&balancer, "agent_check", "malformed") + 1;
    wait_until("it is again", || {
        count(&balancer, "agent_check", "malformed") > before
    });
    assert_eq!(reasons(), r#"["reported_drain","reported_down"]"#);

    // The member dies, and its agent says that it is up.
    member.end(address);
    becomes(r#"["reported_drain","down","reported_down","dead"]"#);
    say("ready up 100%\n");
    becomes(r#"["down","dead"]"#);
    let before = count(&balancer, "agent_check", "taken") + 3;
    wait_until("it says so again and again", || {
        count(&balancer, "agent_check", "taken") > before
    });
    assert_eq!(
        reasons(),
        r#"["down","dead"]"#,
        "up is no reason to believe in"
    );
    let _member = Acceptor::of(TcpListener::bind(address).unwrap());
    becomes("[]");

    say("maint\n");
    becomes(r#"["reported_maintenance"]"#);
    // Without the check nobody has said it.
    let mut config = balancer.folder().text("evenkeel.toml");
    let check = config.find("agent_check").unwrap();
    config.truncate(check);
    balancer.reconfigure(&config);
    becomes("[]");
}

#[test]
fn the_agent_of_the_manual_is_understood() {
    if !are_installed(&[PYTHON]) {
        return;
    }
    let agent = Peer::python(&from_the_manual("agent.py"), &[]);
    let port = agent.address.port();
    let check = format!("agent_check = {{ port = {port}, interval = \"20ms\" }}");
    let balancer = Balancer::start_http(&["127.0.0.1:1".parse().unwrap()], &check);
    wait_until("it is understood", || {
        count(&balancer, "agent_check", "taken") > 0
    });
    assert_eq!(count(&balancer, "agent_check", "malformed"), 0);
}

#[test]
fn metrics_of_the_node_exporter() {
    if !are_installed(&["prometheus-node-exporter"]) {
        return;
    }
    let exporter = Peer::exporter(Folder::new(), &[]);
    let port = exporter.address.port();
    let source = format!(
        "[rule.web.prometheus]\nurl = \"http://{{host}}:{port}/metrics\"\n\
         preset = \"node_exporter\"\ninterval = \"100ms\"\n\
         loads = {{ 100 = 'count(node_cpu_seconds_total{{mode=\"idle\"}})', 101 = 'no_such_metric' }}"
    );
    // Two members at one location are one question.
    let members = [
        "127.0.0.1:1".parse().unwrap(),
        "127.0.0.1:2".parse().unwrap(),
    ];
    let balancer = Balancer::start_http(&members, &source);
    let known = ["cpu", "memory", "run_queue", "100"];
    wait_until("all loads are known", || {
        let loads = loads(&balancer);
        known
            .iter()
            .all(|id| loads.iter().any(|(known, _)| known == id))
    });
    let load = |id: &str| load(&balancer, id).unwrap();
    assert!((0.0..=1.5).contains(&load("cpu")), "{:?}", loads(&balancer));
    assert!(
        (0.01..1.0).contains(&load("memory")),
        "{:?}",
        loads(&balancer)
    );
    let cpus = std::fs::read_to_string("/proc/stat").unwrap();
    let cpus = cpus.lines().filter(|line| line.starts_with("cpu")).count() - 1;
    assert_eq!(load("100"), cpus as f64);
    assert!(
        load("run_queue") * cpus as f64 >= 1.0,
        "the exporter itself runs"
    );
    assert!(
        count(&balancer, "prometheus", "missing") > 0,
        "there is no such metric"
    );
    // Without the exporter they grow old.
    drop(exporter);
    wait_until("it is missed", || {
        count(&balancer, "prometheus", "unreachable") > 0
    });
}

/// A folder with an authority, and a certificate of it for `m.example`.
fn certificates() -> Folder {
    let folder = Folder::new();
    make_certificate(&folder, "authority", Key::Ecdsa, "DNS:authority", None);
    make_certificate(&folder, "other", Key::Ecdsa, "DNS:authority", None);
    make_certificate(&folder, "m", Key::Ecdsa, "DNS:m.example", Some("authority"));
    folder
}

#[test]
fn metrics_are_fetched_with_tls_from_who_can_be_trusted() {
    if !are_installed(&["prometheus-node-exporter", "openssl"]) {
        return;
    }
    let folder = certificates();
    let file = |name: &str| folder.join(name).display().to_string();
    let own = file("m.pem");
    let settings = format!("tls_server_config:\n  cert_file: {own}\n  key_file: {own}\n");
    let settings = folder.write("web.yml", settings).display().to_string();
    let exporter = Peer::exporter(Folder::new(), &["--web.config.file", &settings]);
    let port = exporter.address.port();
    let config = |authority: &str, name: &str| {
        let authority = file(authority);
        format!(
            "workers = 1\n[admin]\nlisten = \"127.0.0.1:0\"\n\
             [rule.web]\nlisten = \"127.0.0.1:0\"\nmembers = [\"127.0.0.1:1\"]\n\
             [rule.web.prometheus]\nurl = \"https://{{host}}:{port}/metrics\"\n\
             preset = \"node_exporter\"\ninterval = \"100ms\"\n\
             tls = {{ ca_file = {authority:?}, server_name = {name:?} }}\n"
        )
    };
    let balancer = Balancer::start(&config("authority.crt", "m.example"));
    wait_until("loads are known", || load(&balancer, "memory").is_some());
    balancer.reconfigure(&config("other.crt", "m.example"));
    let authority = file("other.crt");
    wait_until("it is not trusted", || {
        let log = balancer.log();
        log.contains("no connection with TLS") && log.contains(&authority)
    });
    balancer.reconfigure(&config("authority.crt", "n.example"));
    wait_until("it has another name", || {
        balancer.log().contains("m.example")
    });
    // What cannot be read changes nothing.
    balancer.write_config(&config("none.crt", "m.example"));
    let error = balancer.run_ctl("reload").unwrap_err();
    assert!(error.contains("prometheus.tls.ca_file"), "{error}");
    assert!(error.contains("none.crt: cannot be read"), "{error}");
}

/// The ORCA service with gRPC's own library: reports as fast as it is asked to, first one
/// that is NaN, and a load that falls to 0.
const SERVICE: &str = r#"
import struct, sys, time
from concurrent import futures
import grpc
def double(field, value):
    return bytes([field << 3 | 1]) + struct.pack("<d", value)
def text(field, value):
    return bytes([field << 3 | 2, len(value)]) + value
def stream(request, context):
    assert context.invocation_metadata() is not None
    # report_interval = 20 ms, as Protocol Buffers write it; zeros may be written, too.
    assert request in (b"\x0a\x05\x10\x80\xda\xc4\x09", b"\x0a\x07\x08\x00\x10\x80\xda\xc4\x09"), request
    yield double(1, float("nan"))
    for step in range(1000000):
        entry = text(1, b"queue") + double(2, 7.0)
        cpu = double(1, 0.75) if step < 3 else b""
        yield cpu + double(9, 0.25) + text(8, entry)
        time.sleep(0.02)
method = grpc.unary_stream_rpc_method_handler(stream)
service = grpc.method_handlers_generic_handler(
    "xds.service.orca.v3.OpenRcaService", {"StreamCoreMetrics": method})
server = grpc.server(futures.ThreadPoolExecutor(max_workers=4))
server.add_generic_rpc_handlers([] if "without" in sys.argv else [service])
place = "127.0.0.1:" + sys.argv[1]
if "tls" in sys.argv:
    own = open(sys.argv[3], "rb").read()
    port = server.add_secure_port(place, grpc.ssl_server_credentials([(own, own)]))
else:
    port = server.add_insecure_port(place)
print("listening on", port, flush=True)
server.start()
server.wait_for_termination()
"#;

/// Returns true if Debian's Python has gRPC.
fn has_grpc() -> bool {
    are_installed(&[PYTHON, "/usr/lib/python3/dist-packages/grpc/__init__.py"])
}

const OUT_OF_BAND: &str = r#"
[rule.web.orca]
headers = false
out_of_band = { interval = "20ms" }
loads = { cpu_utilization = "cpu", application_utilization = "utilization", "named_metrics.queue" = 100 }
"#;

#[test]
fn orca_out_of_band() {
    if !has_grpc() {
        return;
    }
    let peer = Peer::python(SERVICE, &[]);
    let balancer = Balancer::start_tcp(&[peer.address], OUT_OF_BAND);
    wait_until("what is no longer reported is 0", || {
        load(&balancer, "cpu") == Some(0.0)
    });
    let others = [load(&balancer, "utilization"), load(&balancer, "100")];
    assert_eq!(others, [Some(0.25), Some(7.0)]);
    assert_eq!(count(&balancer, "orca_out_of_band", "bad_value"), 1);
    // The server goes.
    drop(peer);
    wait_until("it is missed", || {
        count(&balancer, "orca_out_of_band", "unreachable") > 0
    });
}

#[test]
fn orca_out_of_band_with_tls() {
    if !has_grpc() || !are_installed(&["openssl"]) {
        return;
    }
    let folder = certificates();
    let own = folder.join("m.pem").display().to_string();
    let peer = Peer::python(SERVICE, &["tls", &own]);
    let authority = folder.join("authority.crt").display().to_string();
    let tls = format!("tls = {{ ca_file = {authority:?}, server_name = \"m.example\" }}");
    let balancer = Balancer::start_tcp(
        &[peer.address],
        &OUT_OF_BAND.replace("\"20ms\"", &format!("\"20ms\", {tls}")),
    );
    wait_until("reports arrive", || load(&balancer, "cpu") == Some(0.0));
    drop(balancer);
    let all = OUT_OF_BAND.replace("\"20ms\"", "\"20ms\", tls = { verify = false }");
    let balancer = Balancer::start_tcp(&[peer.address], &all);
    wait_until("reports arrive, too", || {
        load(&balancer, "cpu") == Some(0.0)
    });
}

#[test]
fn a_grpc_server_without_the_service_is_no_source() {
    if !has_grpc() {
        return;
    }
    let peer = Peer::python(SERVICE, &["without"]);
    let balancer = Balancer::start_tcp(&[peer.address], OUT_OF_BAND);
    wait_until("it says so", || {
        count(&balancer, "orca_out_of_band", "failed") > 0
    });
    balancer.wait_for_log("gRPC status 12");
    assert!(loads(&balancer).is_empty());
}
