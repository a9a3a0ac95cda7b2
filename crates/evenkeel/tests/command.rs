//! The binary as its users meet it: files, signals, standard output, exit codes.

#![allow(clippy::unwrap_used)] // allowed in tests only, but these helpers are not marked as such

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Far longer than anything here takes, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

fn evenkeel(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_evenkeel"));
    command
        .args(arguments)
        .env_remove("RUST_LOG")
        .env_remove("EVENKEEL_ADMIN");
    command
        .env_remove("EVENKEEL_TOKEN")
        .env_remove("NOTIFY_SOCKET");
    command
}

fn outcome(arguments: &[&str]) -> (i32, String, String) {
    let Output {
        status,
        stdout,
        stderr,
    } = evenkeel(arguments).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code().unwrap(), text(stdout), text(stderr))
}

/// A directory of its own, gone at the end.
struct Directory(PathBuf);

impl Directory {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let unique = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("evenkeel-command-{}-{unique}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).unwrap();
        Directory(path)
    }

    fn write(&self, name: &str, text: &str) -> String {
        let path = self.path(name);
        // Replaced as a whole, as editors do.
        let fresh = self.path("fresh");
        std::fs::write(&fresh, text).unwrap();
        std::fs::rename(fresh, &path).unwrap();
        path
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().into()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A server that says its name to everybody and closes.
fn backend(name: &'static str) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    // Ends with the process.
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let _ = stream.and_then(|mut stream| stream.write_all(name.as_bytes()));
        }
    });
    address
}

fn configuration(member: SocketAddr, more: &str) -> String {
    format!(
        "shutdown_grace = \"60s\"\n[admin]\nlisten = \"127.0.0.1:0\"\n{more}\n\
         [rule.web]\nlisten = \"127.0.0.1:0\"\nprotocol = \"tcp\"\n\
         members = [\"{member}\"]\nhealth_check = false\n"
    )
}

/// A running balancer. Killed when a test fails.
struct Running {
    child: Child,
    log: Option<JoinHandle<String>>,
    rule: String,
    admin: String,
}

impl Running {
    fn start(file: &str) -> Running {
        let mut child = evenkeel(&["run", file, "--log-format", "json"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stderr = child.stderr.take().unwrap();
        let log = std::thread::spawn(move || {
            let mut text = String::new();
            stderr.read_to_string(&mut text).unwrap();
            text
        });
        let mut running = Running {
            log: Some(log),
            rule: String::new(),
            admin: String::new(),
            child,
        };
        let stdout = running.child.stdout.take().unwrap();
        for line in BufReader::new(stdout).lines() {
            let line = line.unwrap();
            if let Some(address) = line.strip_prefix("listening: rule web on ") {
                running.rule = address.into();
            } else if let Some(address) = line.strip_prefix("listening: admin API on ") {
                running.admin = address.into();
            } else if line == "ready" {
                return running;
            }
        }
        let log = running.log.take().unwrap().join().unwrap();
        panic!("not ready:\n{log}");
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
    }

    /// Returns the text that a client gets.
    fn visit(&self) -> String {
        let mut text = String::new();
        let mut stream = TcpStream::connect(&self.rule).unwrap();
        stream.read_to_string(&mut text).unwrap();
        text
    }

    /// True if `/readyz` says so on a connection to the admin API, which stays open.
    fn is_ready(admin: &mut TcpStream) -> bool {
        let request = "GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n";
        admin.write_all(request.as_bytes()).unwrap();
        let (mut answer, mut part) = (String::new(), [0; 4096]);
        while !answer.ends_with('}') {
            let len = admin.read(&mut part).unwrap();
            assert!(len > 0, "cut after {answer:?}");
            answer.push_str(std::str::from_utf8(&part[..len]).unwrap());
        }
        match &answer[..12] {
            "HTTP/1.1 200" => true,
            "HTTP/1.1 503" => false,
            other => panic!("{other}"),
        }
    }

    fn ctl(&self, words: &str) -> (i32, String, String) {
        let mut arguments = vec!["ctl", "--admin", &self.admin];
        arguments.extend(words.split(' '));
        outcome(&arguments)
    }

    fn status(&self) -> Value {
        let (code, json, error) = self.ctl("status --json");
        assert_eq!(code, 0, "{error}");
        serde_json::from_str(&json).unwrap()
    }

    /// Waits until the status is as wanted.
    fn until(&self, what: &str, wanted: impl Fn(&Value) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !wanted(&self.status()) {
            assert!(
                Instant::now() < deadline,
                "never: {what}; status {:#}",
                self.status()
            );
        }
    }

    /// Waits for the end; answers the exit code and the log's lines.
    fn end(mut self) -> (i32, Vec<Value>) {
        let code = self.child.wait().unwrap().code().unwrap();
        let log = self.log.take().unwrap().join().unwrap();
        let parse = |line| serde_json::from_str(line).unwrap();
        (code, log.lines().map(parse).collect())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn the_version_names_what_is_built_in() {
    let (code, said, _) = outcome(&["--version"]);
    assert_eq!(code, 0);
    let features = said.lines().last().unwrap();
    let words: Vec<_> = features.split(' ').collect();
    assert_eq!(words[0], "features:");
    for (name, is_built) in [
        ("corba", cfg!(feature = "corba")),
        ("fleet", cfg!(feature = "fleet")),
        ("kubernetes", cfg!(feature = "kubernetes")),
    ] {
        assert_eq!(words.contains(&name), is_built, "{said}");
    }
}

#[test]
fn a_section_that_this_build_cannot_serve_is_refused() {
    let directory = Directory::new();
    let key = directory.write("fleet.key", "1:000102030405060708090a0b0c0d0e0f");
    std::fs::set_permissions(key, std::fs::Permissions::from_mode(0o600)).unwrap();
    let listen = "listen = \"127.0.0.1:0\"\n";
    for (section, keys, is_served, what) in [
        (
            "corba",
            "state_file = false\n",
            cfg!(feature = "corba"),
            "CORBA",
        ),
        ("xds", "", cfg!(feature = "fleet"), "xDS"),
        (
            "fleet",
            "key_file = \"fleet.key\"\n",
            cfg!(feature = "fleet"),
            "fleet",
        ),
        ("kubernetes", "", cfg!(feature = "kubernetes"), "Kubernetes"),
    ] {
        let listen = if section == "kubernetes" { "" } else { listen };
        let text = format!("[{section}]\n{listen}{keys}");
        let file = directory.write("evenkeel.toml", &text);
        let (code, stdout, stderr) = outcome(&["check", &file]);
        if is_served {
            assert_eq!(code, 0, "{stderr}");
        } else {
            assert_eq!((code, stdout.as_str()), (1, ""));
            let message = format!(":1:1: {section}: this build has no {what}");
            assert!(stderr.contains(&message), "{stderr}");
        }
    }
}

#[test]
fn members_that_this_build_cannot_find_are_refused() {
    let directory = Directory::new();
    let text = "[rule.web]\nlisten = \"127.0.0.1:0\"\nmembers = [{ kubernetes = \"a/b:80\" }]\n";
    let file = directory.write("evenkeel.toml", text);
    // Access to a cluster may be missing as well.
    let (_, _, stderr) = outcome(&["check", &file]);
    let is_refused =
        stderr.contains(":3:13: rule.web.members[0].kubernetes: this build has no Kubernetes");
    assert_eq!(is_refused, !cfg!(feature = "kubernetes"), "{stderr}");
}

#[test]
fn check_reports_all_errors_at_once() {
    let directory = Directory::new();
    let broken = "[rule.web]\nlisten = 80\nmembers = [\"a:0\"]\nbogus = 1\n";
    let file = directory.write("broken.toml", broken);
    let (code, stdout, stderr) = outcome(&["check", &file]);
    assert_eq!((code, stdout.as_str()), (1, ""));
    for line in [2, 3, 4] {
        assert!(
            stderr.contains(&format!("{file}:{line}:")),
            "no error in line {line}: {stderr}"
        );
    }
    assert!(stderr.contains("3 errors"), "{stderr}");

    let (run_code, _, run_stderr) = outcome(&["run", &file]);
    assert_eq!(run_code, 1);
    assert!(run_stderr.contains(&format!("{file}:4:")), "{run_stderr}");

    let file = directory.write("good.toml", &configuration(backend("a"), ""));
    let (code, stdout, _) = outcome(&["check", &file]);
    assert_eq!(code, 0);
    assert!(stdout.contains("1 rule, 1 group, 1 member"), "{stdout}");
}

#[test]
fn exit_codes_tell_what_went_wrong() {
    assert_eq!(outcome(&["bogus"]).0, 2);
    assert_eq!(outcome(&["ctl", "--admin", "nowhere", "status"]).0, 2);
    let (code, _, stderr) = outcome(&["run", "x.toml", "--log", "info,a=b=c"]);
    assert_eq!(code, 2);
    assert!(stderr.contains("--log"), "{stderr}");
    // Bound, so that nobody else has it, and not listened on.
    let free = rustix::net::socket(
        rustix::net::AddressFamily::INET,
        rustix::net::SocketType::STREAM,
        None,
    )
    .unwrap();
    let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
    rustix::net::bind(&free, &any).unwrap();
    let free = SocketAddr::try_from(rustix::net::getsockname(&free).unwrap())
        .unwrap()
        .to_string();
    let (code, _, stderr) = outcome(&["ctl", "--admin", &free, "status"]);
    assert_eq!(code, 3);
    assert!(
        stderr.contains(&free) && stderr.contains("Is evenkeel running"),
        "{stderr}"
    );
    let (code, stdout, _) = outcome(&["strategies"]);
    assert_eq!(code, 0);
    assert!(stdout.contains("(the default)"));
}

#[test]
fn a_port_that_is_taken_is_named() {
    let directory = Directory::new();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let text = configuration(backend("a"), "").replacen("127.0.0.1:0", &address, 1);
    let (code, _, stderr) = outcome(&["run", &directory.write("admin.toml", &text)]);
    assert_eq!(code, 1);
    assert!(
        stderr.contains(&address) && stderr.contains("admin API"),
        "{stderr}"
    );
}

#[test]
fn a_balancer_lives_from_start_to_end() {
    let directory = Directory::new();
    let log = directory.path("access.log");
    let more = format!("[access_log]\noutput = \"{log}\"");
    let file = directory.write("evenkeel.toml", &configuration(backend("first"), &more));
    let running = Running::start(&file);
    assert_eq!(running.visit(), "first");

    // A file that changes is read again, and so is one after SIGHUP.
    let second = backend("second");
    directory.write("evenkeel.toml", &configuration(second, &more));
    running.until("the second member", |status| {
        status["groups"][0]["members"][0]["name"] == second.to_string()
    });
    assert_eq!(running.visit(), "second");
    let before = running.status()["generation"].as_u64();
    running.signal(Signal::HUP);
    running.until("another generation", |status| {
        status["generation"].as_u64() > before
    });

    // A broken one changes nothing.
    directory.write("evenkeel.toml", "[rule.web]\nbogus = 1\n");
    running.until("an error", |status| {
        status["last_reload"]["error"].is_string()
    });
    assert_eq!(running.visit(), "second");
    let (code, _, stderr) = running.ctl("reload");
    assert_eq!(code, 1);
    assert!(stderr.contains("bogus"), "{stderr}");

    // Commands show their effect.
    let member = second.to_string();
    assert_eq!(running.ctl(&format!("drain web {member}")).0, 0);
    let (_, members, _) = running.ctl("members web");
    assert!(members.contains("draining"), "{members}");
    let (_, explain, _) = running.ctl("explain web");
    assert!(explain.contains("nobody"), "{explain}");
    assert_eq!(running.ctl(&format!("ready web {member}")).0, 0);
    assert_eq!(running.ctl("loads push 127.0.0.1 cpu=0.25").0, 0);
    assert_eq!(running.ctl("alert 127.0.0.1 on").0, 0);
    let (_, loads, _) = running.ctl("loads");
    assert!(loads.contains("set by an administrator"), "{loads}");
    assert_eq!(running.ctl("alert 127.0.0.1 auto").0, 0);
    assert_eq!(running.ctl("alert nowhere on").0, 1);
    let (code, top, _) = outcome(&["top", "--once", "--admin", &running.admin]);
    assert_eq!(code, 0);
    assert!(top.contains("cpu=0.25") && top.contains(&member), "{top}");
    let (code, _, stderr) = running.ctl("drain web nobody");
    assert_eq!(code, 1);
    assert!(
        stderr.contains("allowed") && stderr.contains(&member),
        "{stderr}"
    );

    running.signal(Signal::TERM);
    let (code, lines) = running.end();
    assert_eq!(code, 0);
    assert!(!lines.is_empty());
    let log = std::fs::read_to_string(Path::new(&log)).unwrap();
    let records: Vec<Value> = log
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    // Each worker writes its own records: nothing promises an order between connections.
    let mut told: Vec<_> = records
        .iter()
        .map(|record| (record["bytes_sent"].as_u64(), record["member"] == member))
        .collect();
    told.sort_unstable();
    let second = (Some(6), true);
    assert_eq!(told, [(Some(5), false), second, second], "{log}");
}

#[test]
fn requests_are_logged_as_json_whatever_they_ask_for() {
    let directory = Directory::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let member = listener.local_addr().unwrap();
    // Ends with the process.
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = BufReader::new(stream.unwrap());
            let mut line = String::new();
            while stream.read_line(&mut line).unwrap() > 2 {
                line.clear();
            }
            let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok";
            stream.get_mut().write_all(answer).unwrap();
        }
    });
    let log = directory.path("access.log");
    let text = configuration(member, &format!("[access_log]\noutput = \"{log}\""));
    let text = text.replace("protocol = \"tcp\"\n", "");
    let running = Running::start(&directory.write("evenkeel.toml", &text));
    let targets: [&[u8]; 3] = [
        b"/plain?a=b",
        b"/quote\"back\\slash",
        b"/bytes\xff\x01\xc3(",
    ];
    let mut statuses = Vec::new();
    for target in targets {
        let mut stream = TcpStream::connect(&running.rule).unwrap();
        let request = [
            b"GET ",
            target,
            b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        ];
        stream.write_all(&request.concat()).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        statuses.push(
            String::from_utf8_lossy(&answer[9..12])
                .parse::<u64>()
                .unwrap(),
        );
    }
    running.signal(Signal::TERM);
    assert_eq!(running.end().0, 0);
    let log = std::fs::read_to_string(log).unwrap();
    let records: Vec<Value> = log
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(statuses[0], 200);
    // Each worker writes its own records: nothing promises an order between
    // the connections of two.
    let plain = records
        .iter()
        .find(|record| record["target"] == "/plain?a=b")
        .expect("the plain request is logged");
    assert_eq!(plain["member"], member.to_string());
    assert_eq!(plain["method"], "GET");
    assert!(plain["response_ms"].as_f64() <= plain["total_ms"].as_f64());
    // What the client was told is what the log says, for each of them.
    let mut logged: Vec<_> = records
        .iter()
        .map(|record| record["status"].as_u64().unwrap())
        .collect();
    logged.sort_unstable();
    statuses.sort_unstable();
    assert_eq!(logged, statuses, "{log}");
}

#[test]
fn open_connections_end_before_the_process_does() {
    let directory = Directory::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let file = directory.write(
        "evenkeel.toml",
        &configuration(listener.local_addr().unwrap(), ""),
    );
    let open = |running: &Running| {
        let mut client = TcpStream::connect(&running.rule).unwrap();
        client.write_all(b"?").unwrap();
        let (mut server, _) = listener.accept().unwrap();
        server.read_exact(&mut [0]).unwrap();
        (client, server)
    };

    // What is open may go on to its end.
    let running = Running::start(&file);
    let (mut client, mut server) = open(&running);
    let mut admin = TcpStream::connect(&running.admin).unwrap();
    assert!(Running::is_ready(&mut admin));
    running.signal(Signal::TERM);
    let deadline = Instant::now() + PATIENCE;
    while Running::is_ready(&mut admin) {
        assert!(Instant::now() < deadline, "still wants clients");
    }
    server.write_all(b"done").unwrap();
    drop(server);
    let mut answer = String::new();
    client.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "done");
    drop(client);
    assert_eq!(running.end().0, 0);

    // A second signal ends it at once, long before `shutdown_grace`.
    let running = Running::start(&file);
    let (mut client, _server) = open(&running);
    running.signal(Signal::INT);
    running.signal(Signal::TERM);
    let _ = client.read_to_string(&mut String::new());
    assert_eq!(running.end().0, 0);
}

/// `check` refuses what `run` and `agent` refuse, and knows whose file it is.
#[test]
fn u6_check_and_run_give_the_same_verdict() {
    let directory = Directory::new();
    let key = directory.write("a.key", "1:000102030405060708090a0b0c0d0e0f\n");
    let mode = |mode| {
        let rights = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(&key, rights).unwrap();
    };
    let rule = "[rule.x]\nlisten = \"127.0.0.1:0\"\nmembers = [\"127.0.0.1:1\"]\n";
    let admin = "[admin]\nlisten = \"127.0.0.1:0\"\n";
    let broker = |key: &str| {
        format!("{admin}[broker]\nlisten = \"127.0.0.1:0\"\nkey_file = \"{key}\"\n{rule}")
    };
    let refused = |text: &str, wanted: &str, command: &str| {
        let file = directory.write("refused.toml", text);
        let (code, _, said) = outcome(&["check", &file]);
        assert!(
            code == 1 && said.contains(wanted),
            "check: {code} {said}\n{text}"
        );
        let (code, _, said) = outcome(&[command, &file]);
        assert!(
            code == 1 && said.contains(wanted),
            "{command}: {code} {said}\n{text}"
        );
        // Nothing is in effect that could stay.
        assert!(!said.contains("stays as it was"), "{said}");
    };
    mode(0o644);
    refused(&broker("a.key"), "a.key", "run");
    refused(&broker("missing.key"), "missing.key", "run");
    let log = format!(
        "{admin}[access_log]\noutput = \"{}/log\"\n{rule}",
        directory.path("no")
    );
    refused(&log, "/log", "run");
    let agent = "[host]\nlocation = \"here\"\n\
                 [broker.a]\naddress = \"127.0.0.1:9\"\nkey_file = \"a.key\"\n";
    refused(agent, "a.key", "agent");
    mode(0o600);
    for (text, whose) in [
        (broker("a.key"), "for `evenkeel run`: 1 rule"),
        (agent.into(), "for `evenkeel agent`: 0 servers, 1 broker"),
    ] {
        let file = directory.write("good.toml", &text);
        let (code, stdout, stderr) = outcome(&["check", &file]);
        assert!(code == 0 && stdout.contains(whose), "{stdout}{stderr}");
    }
    for (example, whose) in [
        ("engine.toml", "for `evenkeel engine`: "),
        ("two-servers.toml", "for `evenkeel run`: "),
    ] {
        let file = format!("{}/../../examples/{example}", env!("CARGO_MANIFEST_DIR"));
        let (code, stdout, stderr) = outcome(&["check", &file]);
        assert!(code == 0 && stdout.contains(whose), "{stdout}{stderr}");
    }
}

const SIMULATED: &str = "[rule.web]\nlisten = \"127.0.0.1:8080\"\n\
                         members = [\"10.0.0.1:80\", \"10.0.0.2:80\"]\n";

#[test]
fn a_scenario_is_played_the_same_way_by_every_process() {
    let directory = Directory::new();
    directory.write("evenkeel.toml", SIMULATED);
    let scenario = "config = \"evenkeel.toml\"\nduration = \"10s\"\nseeds = 2\n\
                    [service]\ndistribution = \"pareto\"\n\
                    [[event]]\nat = \"3s\"\nlength = \"1s\"\npause = true\nmembers = [\"10.0.0.2:80\"]\n";
    let scenario = directory.write("scenario.toml", scenario);
    let (code, stdout, _) = outcome(&["check", &scenario]);
    assert_eq!(code, 0, "{stdout}");
    assert!(
        stdout.ends_with("scenario.toml: good: 1 world, 2 seeds\n"),
        "{stdout}"
    );
    let play = |turn: &str| {
        let path = |kind: &str| directory.path(&format!("{turn}.{kind}"));
        let (html, csv, json) = (path("html"), path("csv"), path("json"));
        let words = [
            "sim", &scenario, "--html", &html, "--csv", &csv, "--json", &json,
        ];
        let (code, stdout, stderr) = outcome(&words);
        assert_eq!((code, stderr.as_str()), (0, ""), "no bar but on a terminal");
        assert!(
            stdout.contains("10.0.0.2:80") && stdout.contains("±"),
            "{stdout}"
        );
        let read = |path: &str| std::fs::read_to_string(path).unwrap();
        (stdout, read(&html), read(&csv), read(&json))
    };
    let one = play("one");
    assert!(one == play("two"));
    let (_, html, csv, json) = one;
    assert!(html.starts_with("<!DOCTYPE html>") && html.ends_with("</html>\n"));
    assert_eq!(csv.lines().count(), 3);
    let json: Value = serde_json::from_str(&json).unwrap();
    assert!(
        json["points"][0]["figures"]["p99_ms"]["mean"]
            .as_f64()
            .unwrap()
            > 100.0
    );
    let other = outcome(&["sim", &scenario, "--seed", "5", "--seeds", "1"]).1;
    assert!(other.contains("seed 5") && !other.contains("±"), "{other}");
}

#[test]
fn a_wrong_scenario_is_told_with_all_its_errors() {
    let directory = Directory::new();
    directory.write("evenkeel.toml", SIMULATED);
    let text = "config = \"evenkeel.toml\"\n[load]\nrate = \"fast\"\nthinks = \"1s\"\n";
    let scenario = directory.write("scenario.toml", text);
    for command in ["sim", "check"] {
        let (code, stdout, stderr) = outcome(&[command, &scenario]);
        assert_eq!((code, stdout.as_str()), (1, ""));
        assert!(stderr.contains("2 errors in the configuration"), "{stderr}");
        assert!(
            stderr.contains("scenario.toml:3:8: load.rate: wrong type"),
            "{stderr}"
        );
        assert!(
            stderr.contains("scenario.toml:4:1: load.thinks: unknown key, did you mean \"think\"?")
        );
    }
    let good = directory.write(
        "good.toml",
        "config = \"evenkeel.toml\"\nduration = \"1s\"\n",
    );
    let nowhere = directory.path("nowhere/report.html");
    let (code, _, stderr) = outcome(&["sim", &good, "--html", &nowhere]);
    assert_eq!(code, 1);
    assert!(
        stderr.contains("report.html: cannot be written"),
        "{stderr}"
    );
    assert_eq!(outcome(&["sim", &good, "--seeds", "0"]).0, 2);
}

/// Subcommands of the workbench are refused with the program that has them, and stand in no list.
#[test]
fn commands_of_the_workbench_say_where_they_are() {
    for arguments in [
        &["load", "http://127.0.0.1:1/", "--rate", "5"][..],
        &["load", "--help"],
        &["lab"],
        &["lab", "all", "--quick"],
        &["demo", "--seconds", "1"],
        &["help", "demo"],
    ] {
        let (code, stdout, stderr) = outcome(arguments);
        assert_eq!((code, stdout.as_str()), (2, ""), "{arguments:?}");
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
        assert!(stderr.contains("is now `evenkeel-lab "), "{stderr}");
    }
    let (_, help, _) = outcome(&["--help"]);
    let (_, completions, _) = outcome(&["completions", "bash"]);
    for name in ["load", "lab", "demo"] {
        assert!(!help.contains(&format!("  {name} ")), "{help}");
        assert!(!completions.contains(&format!("evenkeel,{name})")));
    }
    assert!(completions.contains("evenkeel,run)"));
}
