//! Servers and clients of omniORB, as its packages have it: see `e2e/corba/omniorb`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

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
