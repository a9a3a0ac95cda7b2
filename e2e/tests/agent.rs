//! `evenkeel agent` beside instrumented servers, with a broker and with HAProxy.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::process::{Child, Stdio};

use evenkeel_e2e::agent::Agent;
use evenkeel_e2e::balancer::evenkeel;
use evenkeel_e2e::eventually;
use evenkeel_e2e::folder::Folder;
use evenkeel_e2e::libarm::Instrumented;
use evenkeel_e2e::process::{installed, program};

/// A free address, which somebody else could have in a moment only by chance.
fn closed_port() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap()
}

/// What `evenkeel agent --once` prints with this configuration.
fn once(folder: &Folder, config: &str) -> Result<String, String> {
    let file = folder.write("once.toml", config);
    evenkeel(&["agent", "--once", file.to_str().unwrap()])
}

#[test]
fn people_see_what_would_be_reported_and_what_is_wrong() {
    if !installed(&["cc"]) {
        return;
    }
    let folder = Folder::new();
    let pages = folder.make("pages");
    let mut shop = Instrumented::start(&pages, "shop");
    let request = shop.begin(1);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let config = format!(
        "interval = \"100ms\"\n\
         arm_dir = \"pages\"\n\
         [host]\n\
         location = \"here\"\n\
         [server.shop]\n\
         address = \"{}\"\n\
         application = \"shop\"\n\
         service_time = \"3ms\"\n\
         capacity = 1\n\
         [server.mail]\n\
         address = \"{}\"\n\
         application = \"mail\"\n\
         [agent_check]\n\
         listen = \"127.0.0.1:0\"\n",
        listener.local_addr().unwrap(),
        closed_port(),
    );
    let text = once(&folder, &config).unwrap();
    let has = |wanted: &str| assert!(text.contains(wanted), "{wanted:?} is not in\n{text}");
    has("location here\n");
    has("\n  cpu ");
    has("in flight            1\n");
    has("service time         0.003000 s (given)\n");
    // Something was in flight all the time, and it can do one thing at once.
    has("utilisation          100.0 %\n");
    has("in group shop): up\n");
    has("agent-check: up ready 10%\n");
    has("in group mail): down: its port takes no connections\n");
    has("no page of application mail in ");
    has("there are pages of shop. Is the ARM library loaded");
    has("would report to no broker");
    shop.end(request);

    let refused = once(
        &folder,
        "[broker.a]\naddress = \"localhost:1\"\nkey_file = \"none\"\n",
    );
    let refused = refused.unwrap_err();
    assert!(refused.contains("key_file of broker a: "), "{refused}");
    let refused = once(&folder, "[server.a]\n").unwrap_err();
    assert!(
        refused.contains("once.toml:1:9: server.a: `address` is missing"),
        "{refused}"
    );
}

/// HAProxy in front of servers, of which it asks an agent.
struct Haproxy {
    folder: Folder,
    process: Child,
}

impl Haproxy {
    fn start(servers: &str) -> Self {
        let folder = Folder::new();
        let socket = folder.join("socket");
        let config = folder.write(
            "haproxy.cfg",
            format!(
                "global\n  stats socket {} mode 600 level admin\n  maxconn 100\n\
                 defaults\n  mode http\n  timeout connect 5s\n  timeout client 5s\n  \
                 timeout server 5s\nbackend web\n{servers}",
                socket.display()
            ),
        );
        let output = File::create(folder.join("output.log")).unwrap();
        let process = program("haproxy")
            .args(["-db", "-f"])
            .arg(config)
            .stdin(Stdio::null())
            .stdout(output.try_clone().unwrap())
            .stderr(output)
            .spawn()
            .unwrap();
        let mut haproxy = Self { folder, process };
        eventually("HAProxy is there", || {
            if let Some(status) = haproxy.process.try_wait().unwrap() {
                panic!("{status}: {}", haproxy.folder.text("output.log"));
            }
            UnixStream::connect(haproxy.folder.join("socket")).is_ok()
        });
        haproxy
    }

    /// Columns of `show servers state` for a server: operational state (2 is up), weight,
    /// and administrative state (flags: 1 maintenance, 8 drain).
    fn state(&self, server: &str) -> (u32, u32, u32) {
        let mut socket = UnixStream::connect(self.folder.join("socket")).unwrap();
        socket.write_all(b"show servers state web\n").unwrap();
        let mut answer = String::new();
        socket.read_to_string(&mut answer).unwrap();
        let lines = answer
            .lines()
            .map(|line| line.split(' ').collect::<Vec<_>>());
        let line = lines.clone().find(|line| line.get(3) == Some(&server));
        let line = line.unwrap_or_else(|| panic!("{answer}"));
        let number = |column: usize| line[column].parse().unwrap();
        (number(5), number(7), number(6))
    }

    fn wait_for(&self, server: &str, wanted: (u32, u32, u32)) {
        let mut last = None;
        eventually(&format!("{server} becomes {wanted:?}"), || {
            let state = self.state(server);
            if last.replace(state) != Some(state) {
                eprintln!("{server}: {state:?}");
            }
            state == wanted
        });
    }
}

impl Drop for Haproxy {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
        if std::thread::panicking() {
            eprintln!("HAProxy:\n{}", self.folder.text("output.log"));
        }
    }
}

#[test]
fn haproxy_follows_load_and_state() {
    if !installed(&["haproxy", "cc"]) {
        return;
    }
    // The listener is the server that HAProxy and the agent know.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let config = |state: &str| {
        format!(
            "interval = \"100ms\"\n\
             [host]\n\
             scope = \"off\"\n\
             [agent_check]\n\
             listen = \"127.0.0.1:0\"\n\
             load = [\"utilization\"]\n\
             smoothing = \"0s\"\n\
             [server.shop]\n\
             address = \"{address}\"\n\
             application = \"shop\"\n\
             service_time = \"1ms\"\n\
             capacity = 1\n\
             state = \"{state}\"\n\
             agent_check = \"127.0.0.1:0\"\n"
        )
    };
    let agent = Agent::start(&config("ready"));
    let mut shop = Instrumented::start(&agent.pages(), "shop");
    let own = agent.agent_check("shop").port();
    let named = agent.agent_check("").port();
    // HAProxy 2.6 does not listen to the agent of a server without agent-send if it has
    // another server with it.
    let check = "weight 100 agent-inter 100ms agent-addr 127.0.0.1";
    let haproxy = Haproxy::start(&format!(
        "  server a {address} {check} agent-check agent-port {own} agent-send \"\\n\"\n  \
           server b {address} {check} agent-check agent-port {named} agent-send \"shop\\n\"\n  \
           server c {address} {check} agent-check agent-port {named} agent-send \"nobody\\n\"\n"
    ));
    let both = |wanted| {
        for server in ["a", "b"] {
            haproxy.wait_for(server, wanted);
        }
    };
    both((2, 100, 0));
    // Busy all the time: the smallest weight. Idle: all of it.
    let request = shop.begin(1);
    both((2, 10, 0));
    shop.end(request);
    both((2, 100, 0));

    // Its operator's will. Addresses that stay are not bound anew.
    agent.reconfigure(&config("drain"));
    both((2, 100, 8));
    agent.reconfigure(&config("maint"));
    both((0, 100, 1));
    agent.reconfigure(&config("ready"));
    both((2, 100, 0));

    // It says goodbye, and is started again; then it is killed.
    shop.close();
    both((0, 100, 0));
    let shop = Instrumented::start(&agent.pages(), "shop");
    both((2, 100, 0));
    shop.kill();
    both((0, 100, 0));
    // What nobody knows is left alone.
    assert_eq!(haproxy.state("c"), (2, 100, 0));
    let log = agent.log();
    assert_eq!(
        log.matches("asks for a server that is not there").count(),
        1,
        "{log}"
    );
}

#[test]
fn an_agent_check_that_never_ends_holds_nobody_up() {
    let agent = Agent::start(
        "interval = \"100ms\"\n\
         [agent_check]\n\
         listen = \"127.0.0.1:0\"\n\
         [server.a]\n\
         address = \":1\"\n\
         check_port = false\n",
    );
    let at = agent.agent_check("");
    let silent: Vec<_> = (0..50).map(|_| TcpStream::connect(at).unwrap()).collect();
    let ask = |name: &[u8]| {
        let mut stream = TcpStream::connect(at).unwrap();
        stream.write_all(name).unwrap();
        let mut answer = String::new();
        // Too much of it may be cut off.
        let _ = stream.read_to_string(&mut answer);
        answer
    };
    eventually("there is a measurement", || ask(b"a\n").contains('%'));
    let answer = ask(b"a\r\n");
    assert!(
        answer.starts_with("up ready ") && answer.ends_with("%\n"),
        "{answer:?}"
    );
    assert_eq!(ask(b"b\n"), "");
    assert_eq!(ask(&[b'x'; 100_000]), "");
    // The silent ones are left in their turn.
    for mut stream in silent {
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer);
        assert_eq!(answer, "");
    }
}
