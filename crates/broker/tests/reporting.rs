//! The broker with its sockets and a manager, against agents with theirs.

#![allow(clippy::unwrap_used)]

use std::net::{SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use evenkeel_broker::reporting::Reporting;
use evenkeel_core::load::{LoadId, LoadValue};
use evenkeel_core::member::Weight;
use evenkeel_manager::Manager;
use evenkeel_manager::config::parse;
use evenkeel_manager::status::MemberStatus;
use evenkeel_net::Clock;
use evenkeel_net::key_file;
use evenkeel_wire::reporting::client::{Poll, Session, State};
use evenkeel_wire::reporting::keys::Keys;
use evenkeel_wire::reporting::message::{Registration, Server, ServerState};
use tokio::runtime::Runtime;

const KEY_1: &str = "1:000102030405060708090a0b0c0d0e0f\n";
const KEY_2: &str = "2:0f0e0d0c0b0a09080706050403020100\n";

/// Longer than anything takes on the slowest machine.
const PATIENCE: Duration = Duration::from_secs(100);

/// A folder with a key file; gone at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let name = format!("evenkeel-reporting-{name}-{}", std::process::id());
        let folder = Folder(std::env::temp_dir().join(name));
        std::fs::create_dir_all(&folder.0).unwrap();
        folder.write_keys(KEY_1);
        folder
    }

    fn keys(&self) -> PathBuf {
        self.0.join("keys")
    }

    fn write_keys(&self, keys: &str) {
        use std::os::unix::fs::PermissionsExt;
        std::fs::write(self.keys(), keys).unwrap();
        let mode = std::fs::Permissions::from_mode(0o600);
        std::fs::set_permissions(self.keys(), mode).unwrap();
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A broker with a manager.
struct Site {
    reporting: Reporting,
    manager: Arc<Manager>,
    folder: Folder,
    runtime: Runtime,
}

fn runtime() -> Runtime {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build().unwrap()
}

impl Site {
    fn new(name: &str) -> Self {
        let folder = Folder::new(name);
        let clock = Clock::start();
        let reporting = Reporting::new(clock).unwrap();
        let manager = Manager::new(clock, Arc::new(reporting.clone()));
        let run = reporting.clone().run(Arc::clone(&manager));
        std::thread::spawn(move || runtime().block_on(run));
        let site = Site {
            reporting,
            manager,
            folder,
            runtime: runtime(),
        };
        site.reload("127.0.0.1:0").unwrap();
        site
    }

    /// Reloads with the broker on `listen`; on none without an address.
    fn reload(&self, listen: &str) -> Result<(), String> {
        let keys = self.folder.keys();
        let broker = match listen {
            "" => String::new(),
            _ => format!(
                "[broker]\nlisten = {listen:?}\nkey_file = {keys:?}\ninterval = \"100ms\"\n"
            ),
        };
        let text = format!(
            "{broker}[rule.web]\nlisten = \"127.0.0.1:0\"\nagents_may_join = true\n\
             allowed_networks = \"127.0.0.0/8\"\n\
             members = [{{ address = \"127.0.0.1:81\", location = \"rack-1\" }}]\n"
        );
        let config = parse("test.toml", &text).unwrap();
        let applied = self.runtime.block_on(self.manager.apply_config(config));
        applied.map(|_| ()).map_err(|error| error.to_string())
    }

    fn address(&self) -> SocketAddr {
        self.reporting.local_addresses()[0]
    }

    fn members(&self) -> Vec<MemberStatus> {
        self.manager.status().groups[0].members.clone()
    }

    /// Returns the number of datagrams with this result.
    fn count(&self, result: &str) -> u64 {
        let status = self.reporting.status().unwrap();
        let mut counts = status.datagrams.iter();
        counts.find(|count| count.result == result).unwrap().count
    }
}

/// An agent at location "rack-1" that reports a load of 0.5 for ports 81, which is in the
/// file, and 82, which is not.
struct Agent {
    socket: UdpSocket,
    session: Session,
    clock: Clock,
    broker: SocketAddr,
}

impl Agent {
    fn new(broker: SocketAddr, keys: &Path) -> Self {
        let server = |port| Server {
            group: "web".into(),
            host: String::new(),
            port,
            weight: Some(Weight::new(3.0).unwrap()),
        };
        let clock = Clock::start();
        let registration = Registration::new("rack-1", "a", vec![server(81), server(82)]);
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let timeout = Some(Duration::from_millis(5));
        socket.set_read_timeout(timeout).unwrap();
        let keys = key_file::load_parsed(keys, Keys::parse).unwrap();
        let rng = fastrand::Rng::new();
        let session = Session::new(registration.unwrap(), keys, clock.now(), rng);
        let mut agent = Agent {
            socket,
            session,
            clock,
            broker,
        };
        agent.report(&[]);
        agent
    }

    fn report(&mut self, servers: &[ServerState]) {
        let load = LoadValue::new(0.5).unwrap();
        self.session
            .update_loads(&[(LoadId::CPU, load)], servers, self.clock.now());
    }

    /// Sends and receives until `done`.
    fn work_until(&mut self, mut done: impl FnMut(&Session) -> bool) {
        let end = Instant::now() + PATIENCE;
        let mut buffer = [0; 2000];
        while !done(&self.session) {
            assert!(Instant::now() < end, "in vain: {:?}", self.session);
            while let Poll::Send(datagram) = self.session.poll(self.clock.now()) {
                self.socket.send_to(&datagram, self.broker).unwrap();
            }
            if let Ok((len, _)) = self.socket.recv_from(&mut buffer) {
                let _ = self
                    .session
                    .receive_datagram(&buffer[..len], self.clock.now());
            }
        }
    }
}

#[test]
fn agents_report_join_drain_and_sign_off() {
    let site = Site::new("life");
    let mut agent = Agent::new(site.address(), &site.folder.keys());
    agent.work_until(|_| site.members().len() == 2);
    let joined = &site.members()[1];
    assert_eq!(joined.name, "127.0.0.1:82");
    assert_eq!((joined.joined, joined.weight), (true, 3.0));
    assert_eq!(joined.location, "rack-1");
    agent.work_until(|session| session.unknown_servers().all(|unknown| !unknown));
    assert_eq!(
        agent.session.measuring_interval(),
        Duration::from_millis(100)
    );
    agent.work_until(|_| {
        let locations = site.manager.status().locations;
        locations.iter().any(|location| location.loads.len() == 1)
    });

    agent.report(&[ServerState::Drain, ServerState::Down]);
    agent.work_until(|_| {
        let reasons: Vec<_> = site.members().into_iter().map(|m| m.reasons).collect();
        reasons[0] == ["reported_drain"] && reasons[1] == ["reported_down"]
    });
    agent.report(&[]);
    agent.work_until(|_| site.members().iter().all(|m| m.reasons.is_empty()));

    let listed = site.reporting.agents();
    assert_eq!(listed.len(), 1);
    assert_eq!(listed[0].servers[1].members, ["127.0.0.1:82"]);
    assert!(listed[0].location_known && listed[0].lost == 0);
    let updates = site.count("updated");
    assert!(site.reporting.query("rack-1", "a") && !site.reporting.query("rack-1", "b"));
    agent.work_until(|_| site.count("updated") > updates);

    // Who stands in the file gets no more clients, the other one is gone.
    agent.session.stop(agent.clock.now());
    agent.work_until(|session| session.state() == State::Stopped);
    agent.work_until(|_| {
        let members = site.members();
        members.len() == 1 && members[0].reasons == ["reported_drain"]
    });
    assert_eq!(site.reporting.agents()[0].state, "stopped");
    assert!(site.reporting.forget_agent("rack-1", "a"));
    agent.work_until(|_| site.members()[0].reasons.is_empty());
}

#[test]
fn a_reload_changes_keys_and_addresses_or_nothing() {
    let site = Site::new("reload");
    let mut agent = Agent::new(site.address(), &site.folder.keys());
    let mut registered = |session: &Session| session.state() == State::Registered;
    agent.work_until(&mut registered);
    // More than one, if the first answer was late.
    let registrations = site.count("registered");
    let first = site.address();

    // Broken keys hold up nothing: those that were good stay in use.
    site.folder.write_keys("nonsense");
    site.reload("127.0.0.1:0").unwrap();
    // Nothing changes if something cannot be done.
    site.folder.write_keys(KEY_2);
    let error = site.reload("192.0.2.1:9909").unwrap_err();
    assert!(
        error.contains("cannot listen on UDP 192.0.2.1:9909"),
        "{error}"
    );
    let updates = site.count("updated");
    agent.report(&[]);
    agent.work_until(|_| site.count("updated") > updates);

    // Both keys: the agent's goes on. It and its registration outlast the reload.
    site.folder.write_keys(&format!("{KEY_2}{KEY_1}"));
    site.reload("127.0.0.1:0").unwrap();
    assert_eq!(site.address(), first);
    let updates = site.count("updated");
    agent.report(&[]);
    agent.work_until(|_| site.count("updated") > updates);
    assert_eq!(site.count("registered"), registrations);

    // The other key alone.
    site.folder.write_keys(KEY_2);
    site.reload("127.0.0.1:0").unwrap();
    let refused = site.count("key");
    agent.report(&[]);
    agent.work_until(|_| site.count("key") > refused);
    agent
        .session
        .set_keys(key_file::load_parsed(&site.folder.keys(), Keys::parse).unwrap());
    let updates = site.count("updated");
    agent.report(&[]);
    agent.work_until(|_| site.count("updated") > updates);

    // Another address.
    site.reload("127.0.0.2:0").unwrap();
    agent.broker = site.address();
    assert_ne!(agent.broker, first);
    let updates = site.count("updated");
    agent.report(&[]);
    agent.work_until(|_| site.count("updated") > updates);

    // None at all: what agents have said is no longer true.
    agent.report(&[ServerState::Down, ServerState::Up]);
    agent.work_until(|_| site.members()[0].reasons == ["reported_down"]);
    site.reload("").unwrap();
    agent.work_until(|_| {
        let members = site.members();
        members.len() == 1 && members[0].reasons.is_empty()
    });
    assert!(site.reporting.status().is_none() && site.reporting.local_addresses().is_empty());
}
