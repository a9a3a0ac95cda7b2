//! Servers and clients of omniORB, as its packages have it: see `e2e/corba/omniorb`.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use crate::built::build_once;
use crate::orb::{self, Location, Orb};
use crate::process::{are_installed, program};
use crate::script::Script;
use crate::{HANG, wait_until};

/// The adapter of omniORB.
pub struct OmniOrb;

/// A server of omniORB.
pub type Server = orb::Server<OmniOrb>;

/// A client of omniORB.
pub type Client = orb::Client<OmniOrb>;

/// Returns true if omniORB, and the tools that build a program with it, are installed.
pub fn can_run() -> bool {
    OmniOrb::can_run()
}

impl Orb for OmniOrb {
    const WIDE: u8 = 2;
    const IMPATIENT: &'static [&'static str] = &["-ORBclientCallTimeOutPeriod", "2000"];
    const TIMEOUT: &'static str = "error TIMEOUT 0x41540008 COMPLETED_NO";

    fn can_run() -> bool {
        are_installed(&["omniidl", "c++", "make", "pkg-config"])
    }

    fn program(words: &[&str], options: &[&str]) -> Command {
        let mut command = made("peer");
        command.args(words).args(options);
        if words.first() == Some(&"server") && !options.contains(&"-ORBendPoint") {
            command.args(["-ORBendPoint", "giop:tcp:127.0.0.1:"]);
        }
        command
    }

    fn version(minor: u8) -> Vec<String> {
        vec!["-ORBmaxGIOPVersion".into(), format!("1.{minor}")]
    }

    fn manager(options: &[&str]) -> Script {
        let mut script = Server::start("manager", options).into_script();
        script.run_command("manager LoadManager");
        script
    }

    fn open(server: &mut Server, at: &str, how: &Location) {
        server.run_command(&format!("location {at} retry=100 check={}", how.check));
        if !how.loads.is_empty() {
            server.run_command(&format!("at {at} monitor {} {}", how.push, how.loads));
        }
        Self::registered(server, at);
    }

    fn registered(server: &mut Server, at: &str) {
        assert_eq!(server.ask_line(&format!("at {at} wait 60000")), "yes");
    }

    fn is_refused(server: &mut Server, at: &str, group: &str) {
        server.run_command(&format!("location {at} retry=50 check=200"));
        server.run_command(&format!("at {at} member {group}"));
        let is_told = || server.log().contains("a location of its own");
        wait_until("it is said", is_told);
        assert_eq!(server.ask_line(&format!("at {at} wait 0")), "no");
    }

    fn take_over(server: &mut Server, at: &str, _: &str) {
        Self::registered(server, at);
    }
}

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
            server.run_command(&format!("location {name} retry=100 check=500"));
            server.run_command(&format!("at {name} monitor 250 requests"));
            server.run_command(&format!("at {name} member {group}"));
            server.wait_until_joined(name);
            servers.push(server);
            if name == "a" {
                let start =
                    |rate: usize| Client::repeat(group, "who", &["--rate", &rate.to_string()]);
                clients = rates.map(start).into();
                for client in &clients {
                    assert_eq!(client.read_line(), "bound a");
                }
            }
        }
        Self { servers, clients }
    }

    /// Returns the largest difference of a server from the mean of the answers within four seconds,
    /// as a share of the mean. Four seconds are long against the time between two requests of a
    /// client.
    pub fn dispersion(&mut self) -> f64 {
        let servers = &mut self.servers;
        let before: Vec<u64> = servers.iter_mut().map(Server::served_count).collect();
        thread::sleep(Duration::from_secs(4));
        let after = servers.iter_mut().map(Server::served_count);
        let served: Vec<f64> = after
            .zip(before)
            .map(|(after, before)| (after - before) as f64)
            .collect();
        let mean = served.iter().sum::<f64>() / served.len() as f64;
        let off = served.iter().map(|count| (count - mean).abs() / mean);
        off.fold(0.0, f64::max)
    }

    /// Waits until the servers are no farther from their mean than this.
    pub fn wait_until_even(&mut self, most: f64) {
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
    pub fn end_clients(self) {
        for mut client in self.clients {
            let lines = client.end_input();
            let done = lines.iter().find(|line| line.starts_with("done "));
            let done = done.expect("an end");
            let failed = done.split(' ').nth(2);
            assert_eq!(failed, Some("0"), "no call has failed: {done}");
        }
    }
}

/// A program of the module's stock trading example: `group`, `server` or `client`.
pub fn example_command(name: &str) -> Command {
    made(&format!("module/example/{name}"))
}

/// A program that is built, once.
fn made(path: &str) -> Command {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    let folder = BUILT.get_or_init(|| build_once("omniorb", build));
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
