//! Servers and clients of omniORB, as its packages have it: see `e2e/corba/omniorb`.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use crate::HANG;
use crate::built::built;
use crate::process::{installed, program};
use crate::script::{Script, scripted};

/// Whether omniORB, and what builds a program with it, are installed.
pub fn can_run() -> bool {
    installed(&["omniidl", "c++", "make", "pkg-config"])
}

/// A server with a `PeerTest::Peer` and a `PeerTest::SessionFactory`, killed when dropped.
pub struct Server {
    script: Script,
    peer: String,
    sessions: String,
}

impl Server {
    /// Starts a server that calls itself `name`, and waits until it serves.
    ///
    /// `arguments` are further ones for the ORB, such as `-ORBInitRef`. It listens on a port
    /// of its own unless they say where (`-ORBendPoint giop:tcp:127.0.0.1:PORT`).
    pub fn start(name: &str, arguments: &[&str]) -> Self {
        let mut command = peer();
        command.args(["server", name]).args(arguments);
        if !arguments.contains(&"-ORBendPoint") {
            command.args(["-ORBendPoint", "giop:tcp:127.0.0.1:"]);
        }
        let script = Script::start(&mut command);
        let [peer, sessions] = [script.line(), script.line()];
        assert!(peer.starts_with("IOR:"), "no reference: {peer}");
        assert_eq!(script.line(), "ready");
        Self {
            script,
            peer,
            sessions,
        }
    }

    /// The reference of its `Peer`: `IOR:…`.
    pub fn peer(&self) -> &str {
        &self.peer
    }

    /// The reference of its `SessionFactory`.
    pub fn sessions(&self) -> &str {
        &self.sessions
    }

    /// Does what a line says, and has no more to say than that it did: see `server.cc` and
    /// the files that it names.
    pub fn obey(&mut self, line: &str) {
        let answer = self.script.ask(line);
        let command = line.split(' ').next();
        let at = line.split(' ').nth(2);
        let expected = if command == Some("at") { at } else { command };
        assert_eq!(Some(answer.as_str()), expected, "{line}");
    }

    /// Makes a location of its own, with an alert, and its `Peer` a member of the group
    /// there; waits until the manager knows. It was started with `-ORBInitRef LoadManager=…`.
    pub fn join(&mut self, location: &str, group: &str) {
        self.obey(&format!("location {location} retry=100 check=500"));
        self.obey(&format!("at {location} member {group}"));
        self.joined(location);
    }

    /// Waits until all that it has at a location is registered.
    pub fn joined(&mut self, location: &str) {
        assert_eq!(self.script.ask(&format!("at {location} wait 60000")), "yes");
    }

    /// How many requests its objects have answered.
    pub fn served(&mut self) -> u64 {
        let served = self.script.ask("served");
        served.parse().expect("a number")
    }
}

/// A client, killed when dropped.
pub struct Client(Script);

impl Client {
    /// A client that makes the calls it is told to: `client.ask("who")`, and other
    /// operations as `client.cc` lists them. An exception is `error NAME MINOR COMPLETED`.
    ///
    /// `reference` may also be `corbaloc:…`, or a name given with `-ORBInitRef`.
    pub fn start(reference: &str, arguments: &[&str]) -> Self {
        let client = Self::repeat(reference, "", arguments);
        assert_eq!(client.line(), "ready");
        client
    }

    /// A client that repeats an operation, as told by `--count N`, `--rate HZ`, `--warm N`,
    /// `--each` and `--latencies`: see `client.cc` for what it prints.
    pub fn repeat(reference: &str, operation: &str, arguments: &[&str]) -> Self {
        let mut command = peer();
        command.args(["client", reference]);
        command.args(operation.split_whitespace()).args(arguments);
        Self(Script::start(&mut command))
    }
}

scripted!(Server, script);
scripted!(Client, 0);

/// Four servers, each with a member of a group, and eight clients that all find the first one:
/// the experiment of Othman, O'Ryan and Schmidt, "Strategies for CORBA Middleware-Based Load
/// Balancing" (2001).
pub struct Crowd {
    servers: Vec<Server>,
    clients: Vec<Client>,
}

impl Crowd {
    /// Starts them with a group of the load manager at `corba`. `rates` are the clients', in
    /// requests per second. Servers report how many they answer.
    pub fn start(corba: SocketAddr, group: &str, rates: [usize; 8]) -> Self {
        let initial = format!("LoadManager=corbaloc:iiop:{corba}/LoadManager");
        let (mut servers, mut clients) = (Vec::new(), Vec::new());
        for name in ["a", "b", "c", "d"] {
            let mut server = Server::start(name, &["-ORBInitRef", &initial]);
            server.obey(&format!("location {name} retry=100 check=500"));
            server.obey(&format!("at {name} monitor 250 requests"));
            server.obey(&format!("at {name} member {group}"));
            server.joined(name);
            servers.push(server);
            if name == "a" {
                let start =
                    |rate: usize| Client::repeat(group, "who", &["--rate", &rate.to_string()]);
                clients = rates.map(start).into();
                for client in &clients {
                    assert_eq!(client.line(), "bound a");
                }
            }
        }
        Self { servers, clients }
    }

    /// How far the servers are from the mean of what they answer within four seconds, which is
    /// long against the time between two requests of a client: the largest difference, as a
    /// share of the mean.
    pub fn dispersion(&mut self) -> f64 {
        let servers = &mut self.servers;
        let before: Vec<u64> = servers.iter_mut().map(Server::served).collect();
        thread::sleep(Duration::from_secs(4));
        let after = servers.iter_mut().map(Server::served);
        let served: Vec<f64> = after
            .zip(before)
            .map(|(after, before)| (after - before) as f64)
            .collect();
        let mean = served.iter().sum::<f64>() / served.len() as f64;
        let off = served.iter().map(|count| (count - mean).abs() / mean);
        off.fold(0.0, f64::max)
    }

    /// Waits until the servers are no farther from their mean than this.
    pub fn settle(&mut self, most: f64) {
        let began = Instant::now();
        loop {
            let dispersion = self.dispersion();
            if dispersion <= most {
                break;
            }
            assert!(
                began.elapsed() < HANG,
                "{dispersion} off even after {HANG:?}"
            );
        }
    }

    /// Ends the clients: no call of theirs has failed.
    pub fn end(self) {
        for mut client in self.clients {
            let lines = client.finish();
            let done = lines.iter().find(|line| line.starts_with("done "));
            let done = done.expect("an end");
            let failed = done.split(' ').nth(2);
            assert_eq!(failed, Some("0"), "no call has failed: {done}");
        }
    }
}

/// A program of the module's stock trading example: `group`, `server` or `client`.
pub fn example(name: &str) -> Command {
    made(&format!("module/example/{name}"))
}

/// The test program.
fn peer() -> Command {
    made("peer")
}

/// A program that is built, once.
fn made(path: &str) -> Command {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    let folder = BUILT.get_or_init(|| built("omniorb", build));
    let mut command = program("env");
    // Settings of the user's own.
    command
        .args(["--unset", "OMNIORB_CONFIG"])
        .arg(folder.join(path));
    command
}

/// Builds it.
fn build(folder: &Path) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("corba/omniorb");
    let mut make = program("make");
    make.args(["--silent", "--jobs", "2", "--directory"]);
    make.arg(source).arg(format!("BUILD={}", folder.display()));
    // Those of a make that runs these tests.
    make.env_remove("MAKEFLAGS").env_remove("MAKELEVEL");
    let made = make.output().expect("make runs");
    let said = String::from_utf8_lossy(&made.stderr);
    assert!(made.status.success(), "it cannot be built: {said}");
}
