//! The reporting protocol between the built broker and an agent that shares no code with
//! it: `agent.py`, written from the protocol's page alone.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};

use evenkeel_e2e::balancer::Balancer;
use evenkeel_e2e::folder::Folder;
use evenkeel_e2e::process::{are_installed, program};
use evenkeel_e2e::wait_until;
use serde_json::Value;

const KEY: &str = "1:000102030405060708090a0b0c0d0e0f";
const OTHER_KEY: &str = "1:0f0e0d0c0b0a09080706050403020100";

/// `agent.py`, killed when dropped.
struct Agent {
    process: Child,
    said: Arc<Mutex<Vec<String>>>,
}

impl Agent {
    /// An agent at "rack-1" with two servers of group "web", ports 81 and 82.
    fn start(broker: SocketAddr, key: &str) -> Self {
        Self::with_servers(broker, key, &["web,127.0.0.1,81", "web,,82"])
    }

    /// Starts the agent with these servers.
    fn with_servers(broker: SocketAddr, key: &str, servers: &[&str]) -> Self {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/agent.py");
        let mut process = program("python3")
            .args([script, "--location", "rack-1", "--agent", "python"])
            .args(servers.iter().flat_map(|server| ["--server", server]))
            .args(["--broker", &broker.to_string(), "--key", key])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let said: Arc<Mutex<Vec<String>>> = Arc::default();
        let stdout = BufReader::new(process.stdout.take().unwrap());
        let lines = Arc::clone(&said);
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                lines.lock().unwrap().push(line);
            }
        });
        Agent { process, said }
    }

    fn tell(&mut self, command: &str) {
        let stdin = self.process.stdin.as_mut().unwrap();
        writeln!(stdin, "{command}").unwrap();
    }

    fn count(&self, start: &str) -> usize {
        let said = self.said.lock().unwrap();
        said.iter().filter(|line| line.starts_with(start)).count()
    }

    /// Waits until it has said something that starts so, for the `times`th time.
    fn wait_for(&self, start: &str, times: usize) {
        wait_until(&format!("the agent says {start:?}"), || {
            self.count(start) >= times
        });
    }

    fn end(&mut self) -> ExitStatus {
        self.process.wait().unwrap()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A key file that the balancer takes.
fn key_file(folder: &Folder) -> PathBuf {
    folder.write_private("keys", KEY)
}

/// A balancer with a member at "rack-1" and one elsewhere; agents may add others.
fn balancer(broker: &str, keys: &Path) -> Balancer {
    Balancer::start(&format!(
        "workers = 1\n[admin]\nlisten = \"127.0.0.1:0\"\n\
         [broker]\nlisten = \"{broker}\"\nkey_file = {keys:?}\ninterval = \"200ms\"\n\
         keepalive = \"1s\"\nalert_lease = 10\n\
         [rule.web]\nlisten = \"127.0.0.1:0\"\ngranularity = \"on_demand\"\n\
         agents_may_join = true\nallowed_networks = \"127.0.0.0/8\"\n\
         members = [{{ address = \"127.0.0.1:81\", location = \"rack-1\" }}, \"127.0.0.1:90\"]\n"
    ))
}

fn json(balancer: &Balancer, path: &str) -> Value {
    serde_json::from_str(balancer.admin_get(path).text()).unwrap()
}

/// The load of "rack-1" that was reported last.
fn cpu(balancer: &Balancer) -> Option<f64> {
    let status = balancer.status();
    let mut locations = status["locations"].as_array()?.iter();
    let location = locations.find(|location| location["name"] == "rack-1")?;
    let mut loads = location["loads"].as_array()?.iter();
    loads.find(|load| load["id"] == "cpu")?["value"].as_f64()
}

fn counted(balancer: &Balancer, result: &str) -> u64 {
    let status = json(balancer, "/v1/broker");
    let mut counts = status["datagrams"].as_array().unwrap().iter();
    let count = counts.find(|count| count["result"] == result).unwrap();
    count["count"].as_u64().unwrap()
}

fn reasons(balancer: &Balancer, member: &str) -> Option<Vec<String>> {
    let status = balancer.status();
    let mut members = status["groups"][0]["members"].as_array()?.iter();
    let member = members.find(|known| known["name"] == member)?;
    let reasons = member["reasons"].as_array()?.iter();
    Some(
        reasons
            .map(|reason| reason.as_str().unwrap_or_default().into())
            .collect(),
    )
}

#[test]
fn an_agent_of_another_make_registers_reports_obeys_and_signs_off() {
    if !are_installed(&["python3"]) {
        return;
    }
    let folder = Folder::new();
    let balancer = balancer("127.0.0.1:0", &key_file(&folder));
    let mut agent = Agent::start(balancer.broker_address(), KEY);
    agent.wait_for("registered", 1);
    agent.wait_for("interval 200", 1);
    agent.tell("load 0=0.25 4=120");
    wait_until("the load is known", || cpu(&balancer) == Some(0.25));
    // The second server stands in no file.
    wait_until("it has joined", || {
        reasons(&balancer, "127.0.0.1:82").is_some()
    });
    let listed = balancer.run_ctl("agents").unwrap();
    assert!(
        listed.contains("rack-1") && listed.contains("python"),
        "{listed}"
    );

    balancer.run_ctl("alert rack-1 on").unwrap();
    agent.wait_for("alert 0 on", 1);
    // It would be over after ten intervals, but it is renewed.
    let updates = counted(&balancer, "updated");
    wait_until("it goes on", || {
        counted(&balancer, "updated") > updates + 14
    });
    assert_eq!(agent.count("alert 0 o"), 1);
    balancer.run_ctl("alert rack-1 auto").unwrap();
    agent.wait_for("alert 0 off", 1);

    let drained = Some(vec!["reported_drain".to_owned()]);
    let down = Some(vec!["reported_down".to_owned()]);
    agent.tell("state 1 2");
    wait_until("both states are known", || {
        reasons(&balancer, "127.0.0.1:81") == drained && reasons(&balancer, "127.0.0.1:82") == down
    });
    agent.tell("state 0 0");
    wait_until("they serve", || {
        let is_up = |member| reasons(&balancer, member) == Some(vec![]);
        is_up("127.0.0.1:81") && is_up("127.0.0.1:82")
    });

    agent.tell("stop");
    assert!(agent.end().success());
    wait_until("no more clients", || {
        reasons(&balancer, "127.0.0.1:81") == drained
            && reasons(&balancer, "127.0.0.1:82").is_none()
    });
    balancer.run_ctl("agents forget rack-1 python").unwrap();
    wait_until("it counts no more", || {
        reasons(&balancer, "127.0.0.1:81") == Some(vec![])
    });
    assert!(balancer.run_ctl("agents query rack-1 python").is_err());
}

#[test]
fn a_broker_that_restarts_gets_its_agents_back() {
    if !are_installed(&["python3"]) {
        return;
    }
    let folder = Folder::new();
    let keys = key_file(&folder);
    let first = balancer("127.0.0.1:0", &keys);
    let address = first.broker_address();
    let mut agent = Agent::start(address, KEY);
    agent.tell("load 0=0.5");
    wait_until("the load is known", || cpu(&first) == Some(0.5));
    first.run_ctl("alert rack-1 on").unwrap();
    agent.wait_for("alert 0 on", 1);
    drop(first);
    // Nobody renews the lease.
    agent.wait_for("alert 0 over", 1);
    let second = balancer(&address.to_string(), &keys);
    wait_until("the load is known again", || cpu(&second) == Some(0.5));
    assert!(agent.count("registered") >= 2);
    assert_eq!(json(&second, "/v1/agents").as_array().unwrap().len(), 1);
}

#[test]
fn what_is_wrong_is_counted_and_not_answered() {
    if !are_installed(&["python3"]) {
        return;
    }
    let folder = Folder::new();
    let balancer = balancer("127.0.0.1:0", &key_file(&folder));
    let mut agent = Agent::start(balancer.broker_address(), KEY);
    agent.tell("load 0=0.5");
    wait_until("the load is known", || cpu(&balancer) == Some(0.5));

    let stranger = Agent::start(balancer.broker_address(), OTHER_KEY);
    wait_until("it is refused", || counted(&balancer, "mac") > 1);
    assert_eq!(stranger.count(""), 0);

    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.connect(balancer.broker_address()).unwrap();
    socket.set_nonblocking(true).unwrap();
    let garbage: [(&str, Vec<u8>); 4] = [
        ("truncated", b"EvKl\x01".to_vec()),
        ("oversized", vec![0; 1401]),
        ("magic", b"GET / HTTP/1.1\r\n\r\n".to_vec()),
        ("version", b"EvKl\x02 and so on".to_vec()),
    ];
    for (result, datagram) in &garbage {
        let before = counted(&balancer, result);
        socket.send(datagram).unwrap();
        wait_until("it is counted", || counted(&balancer, result) > before);
    }
    assert!(socket.recv(&mut [0; 2000]).is_err(), "nothing is answered");

    // A load that none can have: the Update is refused as a whole.
    agent.tell("load 0=nan 1=0.5");
    wait_until("it is refused", || counted(&balancer, "load") > 0);
    assert_eq!(cpu(&balancer), Some(0.5));
    agent.tell("load 0=0.75");
    wait_until("the next one counts", || cpu(&balancer) == Some(0.75));
    assert_eq!(json(&balancer, "/v1/agents").as_array().unwrap().len(), 1);
}

/// Returns the members of "web" that the balancer refuses, each with the reason.
fn refused(balancer: &Balancer) -> Vec<(String, String)> {
    let status = balancer.status();
    let Some(refused) = status["groups"][0]["refused"].as_array() else {
        return Vec::new();
    };
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let refused = refused
        .iter()
        .map(|r| (text(&r["address"]), text(&r["why"])));
    refused.collect()
}

/// Whoever has a key of the broker does not thereby own the balancer.
#[test]
fn s1_nobody_joins_at_the_balancers_own_addresses() {
    if !are_installed(&["python3"]) {
        return;
    }
    let folder = Folder::new();
    let keys = key_file(&folder);
    let config = |networks: &str| {
        format!(
            "workers = 1\n[admin]\nlisten = \"127.0.0.1:0\"\n\
             [broker]\nlisten = \"127.0.0.1:0\"\nkey_file = {keys:?}\ninterval = \"200ms\"\n\
             [rule.web]\nlisten = \"127.0.0.1:0\"\nagents_may_join = true\n{networks}"
        )
    };
    let balancer = Balancer::start(&config(""));
    let admin = balancer.admin_address();
    let server = |address: SocketAddr| format!("web,{},{}", address.ip(), address.port());
    let servers = [
        server(admin),
        server(balancer.address("web")),
        "web,::ffff:127.0.0.1,82".into(),
        "web,169.254.169.254,80".into(),
        "web,10.0.0.1,80".into(),
    ];
    let servers = servers.each_ref().map(String::as_str);
    let agent = Agent::with_servers(balancer.broker_address(), KEY, &servers);
    agent.wait_for("registered", 1);
    wait_until("who is elsewhere joins", || {
        reasons(&balancer, "10.0.0.1:80").is_some()
    });
    let why = |wanted: SocketAddr| {
        let refused = refused(&balancer).into_iter();
        let mut why = refused.filter(|(address, _)| *address == wanted.to_string());
        why.next().unwrap_or_default().1
    };
    assert_eq!(why(admin), "it is a loopback address");
    assert_eq!(
        why("169.254.169.254:80".parse().unwrap()),
        "it is an address of cloud metadata"
    );
    let members = balancer.status()["groups"][0]["members"].clone();
    assert_eq!(members.as_array().unwrap().len(), 1, "{members:#}");
    // The way that it was found by: the admin API, through the rule.
    let mut client = balancer.connect();
    client.send(
        "PUT /v1/rules/web/enabled HTTP/1.1\r\nHost: localhost\r\n\
         Content-Type: application/json\r\nContent-Length: 18\r\n\r\n{\"enabled\": false}",
    );
    assert_ne!(client.read_response().second_word(), "200");
    balancer.wait_for_log("allowed_networks");
    let shown = balancer.run_ctl("status").unwrap();
    assert!(
        shown.contains(&format!("{admin} is not a member, because")),
        "{shown}"
    );

    // A list lets the others in, but never the balancer itself.
    balancer.reconfigure(&config("allowed_networks = [\"127.0.0.0/8\"]\n"));
    wait_until("it is listed", || {
        reasons(&balancer, "[::ffff:127.0.0.1]:82").is_some()
    });
    assert_eq!(why(admin), "the balancer itself listens there");
    assert_eq!(
        why(balancer.address("web")),
        "the balancer itself listens there"
    );
    assert_eq!(reasons(&balancer, "10.0.0.1:80"), None);
}

/// Even a file that names the admin API as a member makes nobody its administrator.
#[test]
fn s1_the_admin_api_answers_nobody_through_a_proxy() {
    let admin = evenkeel_e2e::server::address();
    let balancer = Balancer::start(&format!(
        "workers = 1\n[admin]\nlisten = \"{admin}\"\n\
         [rule.web]\nlisten = \"127.0.0.1:0\"\nmembers = [\"{admin}\"]\n"
    ));
    let mut client = balancer.connect();
    client.send(
        "PUT /v1/rules/web/enabled HTTP/1.1\r\nHost: localhost\r\n\
         Content-Type: application/json\r\nContent-Length: 18\r\n\r\n{\"enabled\": false}",
    );
    let answer = client.read_response();
    assert_eq!(answer.second_word(), "403", "{}", answer.head);
    assert!(answer.text().contains("behind_proxy"), "{}", answer.text());
    client.send("GET /v1/status HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert_eq!(client.read_response().second_word(), "403");
    assert_eq!(balancer.status()["rules"][0]["enabled"], true);
}
