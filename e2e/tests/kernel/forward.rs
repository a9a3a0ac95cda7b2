//! Rules whose connections the kernel forwards. Needs the right to make network namespaces and to load BPF programs.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking.

mod by_hash;
mod checksums;
mod copies;
mod datagrams;
mod direct;
mod errors;
mod interfaces;
mod iperf;
mod limits;
mod members;
mod metrics;
mod nat;
mod prequal;
mod quic;
mod rows;
mod servers;
mod stops;
pub(super) mod udp;
mod udp_direct;
mod xdp;

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::thread;
use std::time::Duration;

use evenkeel_e2e::balancer::{Balancer, evenkeel_binary};
use evenkeel_e2e::cgroup::MemoryLimit;
use evenkeel_e2e::netns::{BACK, FRONT, Namespace, Pair, run_ip};
use evenkeel_e2e::process::{Signal, report_skipped};
use evenkeel_e2e::{HANG, wait_until};
use serde_json::Value;

const PORT: u16 = 8080;

/// Family of the addresses of a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    V4,
    V6,
}

pub(super) const BOTH: [Family; 2] = [Family::V4, Family::V6];

impl Family {
    fn choose<T>(self, v4: T, v6: T) -> T {
        match self {
            Family::V4 => v4,
            Family::V6 => v6,
        }
    }

    /// Address of the rule.
    pub(super) fn rule(self) -> SocketAddr {
        let text = self.choose("10.78.0.1:7000", "[fd78::1]:7000");
        text.parse().unwrap()
    }

    /// Address of the clients.
    pub(super) fn client(self) -> IpAddr {
        self.choose("10.78.0.2", "fd78::2").parse().unwrap()
    }

    /// Address that members see if the proxy connects.
    pub(super) fn balancer(self) -> IpAddr {
        self.choose("10.77.0.1", "fd77::1").parse().unwrap()
    }

    pub(super) fn member(self, last: u8) -> SocketAddr {
        let (v4, v6) = (format!("10.77.0.{last}"), format!("fd77::{last}"));
        SocketAddr::new(self.choose(v4, v6).parse().unwrap(), PORT)
    }

    /// Setting of the system that forwards packets.
    fn setting(self) -> &'static str {
        self.choose("net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding")
    }
}

/// Configuration with a rule, which listens at an address of each of these families.
fn write_config_for(
    families: &[Family],
    forward: &str,
    members: &[SocketAddr],
    more: &str,
) -> String {
    let quote = |address: SocketAddr| format!("\"{address}\"");
    let listen: Vec<_> = families.iter().map(|family| quote(family.rule())).collect();
    let members: Vec<_> = members.iter().copied().map(quote).collect();
    format!(
        "workers = 1\n[admin]\nlisten = \"127.0.0.1:0\"\n[rule.db]\nlisten = [{}]\n\
         protocol = \"tcp\"\nforward = \"{forward}\"\nmembers = [{}]\nhealth_check = false\n\
         slow_start = \"0s\"\n{more}\n",
        listen.join(", "),
        members.join(", ")
    )
}

/// Clients, the balancer as the gateway of members, and members with a last byte of 2 to 4.
pub(super) struct Machines {
    /// Family of connections, if a test has one.
    pub(super) family: Family,
    pub(super) clients: Namespace,
    pub(super) pair: Pair,
}

impl Machines {
    /// None if this machine does not let us, which is said.
    pub(super) fn new(family: Family) -> Option<Self> {
        let (clients, pair) = (Namespace::with_loopback()?, Pair::new()?);
        let name = |namespace: &Namespace| {
            let path = namespace.path();
            path.file_name().unwrap().to_str().unwrap().to_owned()
        };
        let (a, b, c) = (name(&clients), name(&pair.front), name(&pair.back));
        run_ip(&format!(
            "link add client0 netns {a} type veth peer name client1 netns {b}"
        ));
        run_ip(&format!("-n {a} link set client0 up"));
        run_ip(&format!("-n {b} link set client1 up"));
        for family in BOTH {
            let end = family.choose("/24", "/64 nodad");
            let (client, rule) = (family.client(), family.rule().ip());
            run_ip(&format!("-n {a} addr add {client}{end} dev client0"));
            run_ip(&format!("-n {b} addr add {rule}{end} dev client1"));
            for last in [3, 4] {
                let ip = family.member(last).ip();
                run_ip(&format!("-n {c} addr add {ip}{end} dev {BACK}"));
            }
            let (version, balancer) = (family.choose("-4", "-6"), family.balancer());
            run_ip(&format!(
                "-n {c} {version} route add default via {balancer}"
            ));
        }
        let machines = Machines {
            family,
            clients,
            pair,
        };
        BOTH.into_iter()
            .for_each(|family| machines.set_forwarding(family, true));
        Some(machines)
    }

    fn set_forwarding(&self, family: Family, holds: bool) {
        let text = if holds { "1" } else { "0" };
        let path = format!("/proc/sys/{}", family.setting());
        self.pair
            .front
            .run_inside(|| fs::write(path, text).unwrap());
    }

    /// Configuration with a rule of the test's family.
    pub(super) fn write_config(&self, forward: &str, members: &[u8], more: &str) -> String {
        let members: Vec<_> = members
            .iter()
            .map(|last| self.family.member(*last))
            .collect();
        write_config_for(&[self.family], forward, &members, more)
    }

    /// Drops all packets of a member.
    fn silence_member(&self, last: u8) {
        let back = self.pair.back.path();
        let back = back.file_name().unwrap().to_str().unwrap();
        let (version, ip) = (
            self.family.choose("-4", "-6"),
            self.family.member(last).ip(),
        );
        run_ip(&format!("-n {back} {version} rule add from {ip} blackhole"));
    }

    /// A member that sends the client's address as it sees it in a line, after `delay`, and then all that it gets.
    pub(super) fn start_member(&self, last: u8, delay: Duration) {
        self.start_member_at(self.family.member(last), delay);
    }

    fn start_member_at(&self, address: SocketAddr, delay: Duration) {
        let listener = self
            .pair
            .back
            .run_inside(|| TcpListener::bind(address).unwrap());
        serve_echo(listener, delay);
    }

    /// A balancer with the rule; `None` if it is built without the programs, which is said.
    pub(super) fn start_balancer(&self, members: &[u8], more: &str) -> Option<Balancer> {
        let command = self.pair.front.command(evenkeel_binary());
        self.start_balancer_by(command, &self.write_config("kernel", members, more))
    }

    /// A balancer started by a command; `None` likewise.
    pub(super) fn start_balancer_by(&self, mut command: Command, config: &str) -> Option<Balancer> {
        let balancer = Balancer::start_by(config, |folder| {
            command.current_dir(folder.path());
            command
        });
        let mut state = Value::Null;
        wait_until("the rule is forwarded, or not", || {
            state = self.admin_json(&balancer, "/v1/status")["rules"][0]["forward"].clone();
            state.as_str().is_some_and(|state| state != "proxy")
        });
        if state.as_str().unwrap().contains("built without") {
            report_skipped(state.as_str().unwrap());
            return None;
        }
        Some(balancer)
    }

    fn admin_json(&self, balancer: &Balancer, path: &str) -> Value {
        self.pair.front.run_inside(|| balancer.admin_json(path))
    }

    pub(super) fn forwarded(&self, balancer: &Balancer) -> Value {
        self.admin_json(balancer, "/v1/forward")
    }

    /// The state of the rule.
    pub(super) fn state(&self, balancer: &Balancer) -> String {
        let status = self.admin_json(balancer, "/v1/status");
        status["rules"][0]["forward"].as_str().unwrap().to_owned()
    }

    /// A connection, with the client's address as the member sees it; an error if the member does not accept.
    pub(super) fn connect(&self) -> Result<(TcpStream, IpAddr), ErrorKind> {
        self.connect_to(self.family)
    }

    fn connect_to(&self, family: Family) -> Result<(TcpStream, IpAddr), ErrorKind> {
        self.connect_within(family, HANG)
    }

    fn connect_within(
        &self,
        family: Family,
        limit: Duration,
    ) -> Result<(TcpStream, IpAddr), ErrorKind> {
        let to = family.rule();
        let connected = self
            .clients
            .run_inside(|| TcpStream::connect_timeout(&to, limit));
        let mut stream = connected.map_err(|error| error.kind())?;
        stream.set_read_timeout(Some(limit)).unwrap();
        let mut line = [0; 16];
        stream.read_exact(&mut line).map_err(|error| error.kind())?;
        stream.set_read_timeout(Some(HANG)).unwrap();
        let text = std::str::from_utf8(&line).unwrap().trim();
        Ok((stream, text.parse().unwrap()))
    }

    /// Waits until no connection is in flight.
    pub(super) fn wait_for_ends(&self, balancer: &Balancer) {
        wait_until("all connections are over", || {
            let members = self.forwarded(balancer)["members"].clone();
            let members = members.as_array().unwrap().clone();
            members.iter().all(|member| member["in_flight"] == 0)
        });
    }

    /// A count of the member at `last`.
    pub(super) fn count(&self, balancer: &Balancer, last: u8, name: &str) -> u64 {
        count(&self.forwarded(balancer), self.family.member(last), name)
    }
}

/// Sends each client its address in a line, after `delay`, and then all that it sends; or, if it asks for bytes with
/// "send" and a number in a line, as many.
fn serve_echo(listener: TcpListener, delay: Duration) {
    thread::spawn(move || {
        while let Ok((mut stream, from)) = listener.accept() {
            thread::spawn(move || {
                thread::sleep(delay);
                let _ = writeln!(stream, "{:<15}", from.ip());
                let mut space = vec![0; 1 << 16];
                while let Ok(length @ 1..) = stream.read(&mut space) {
                    let sent = &space[..length];
                    let asked = sent.strip_prefix(b"send ").and_then(|number| {
                        let number = std::str::from_utf8(number).ok()?;
                        number.trim_end().parse().ok()
                    });
                    let answered = match asked {
                        Some(bytes) => stream.write_all(&vec![b'x'; bytes]),
                        None => stream.write_all(sent),
                    };
                    if answered.is_err() {
                        return;
                    }
                }
            });
        }
    });
}

/// A RST with the client's address, as a stranger would send it who does not know the connection's numbers.
fn write_reset(client: SocketAddr, rule: SocketAddr, sequence: u32) -> Vec<u8> {
    write_segment(client, rule, sequence, 4)
}

/// A packet without data, with flags of TCP.
pub(super) fn write_segment(
    client: SocketAddr,
    rule: SocketAddr,
    sequence: u32,
    flags: u8,
) -> Vec<u8> {
    let addresses = match (client.ip(), rule.ip()) {
        (IpAddr::V4(client), IpAddr::V4(rule)) => [client.octets(), rule.octets()].concat(),
        (IpAddr::V6(client), IpAddr::V6(rule)) => [client.octets(), rule.octets()].concat(),
        _ => panic!("two families: {client} {rule}"),
    };
    let mut tcp = client.port().to_be_bytes().to_vec();
    tcp.extend(rule.port().to_be_bytes());
    tcp.extend(sequence.to_be_bytes());
    tcp.extend([0, 0, 0, 0, 0x50, flags, 0xff, 0xff, 0, 0, 0, 0]);
    let summed = [&addresses[..], &[0, 6, 0, 20], &tcp].concat();
    let words = summed.chunks_exact(2);
    let mut sum: u32 = words
        .map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])))
        .sum();
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    tcp[16..18].copy_from_slice(&(!(sum as u16)).to_be_bytes());
    // The system fills in the checksum of the addresses.
    let head: &[u8] = match client {
        SocketAddr::V4(_) => &[0x45, 0, 0, 40, 0, 0, 0, 0, 64, 6, 0, 0],
        SocketAddr::V6(_) => &[0x60, 0, 0, 0, 0, 20, 6, 64],
    };
    [head, &addresses, &tcp].concat()
}

/// Sends packets that are written with their headers, from the network namespace of this thread.
pub(super) fn send_packets(to: SocketAddr, packets: impl IntoIterator<Item = Vec<u8>>) {
    use rustix::net::{AddressFamily, SendFlags, SocketType, ipproto, sendto, socket};
    let family = match to {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let socket = socket(family, SocketType::RAW, Some(ipproto::RAW)).unwrap();
    // A raw socket has no ports.
    let to = SocketAddr::new(to.ip(), 0);
    for packet in packets {
        sendto(&socket, &packet, SendFlags::empty(), &to).unwrap();
    }
}

/// Sends bytes, and compares what comes back.
pub(super) fn echo(stream: &mut TcpStream, length: usize) {
    let mut rng = fastrand::Rng::with_seed(length as u64);
    let sent: Vec<u8> = (0..length).map(|_| rng.u8(..)).collect();
    let mut got = vec![0; length];
    thread::scope(|scope| {
        let mut writer = stream.try_clone().unwrap();
        let sent = &sent;
        scope.spawn(move || writer.write_all(sent).unwrap());
        stream.read_exact(&mut got).unwrap();
    });
    assert!(sent == got, "the bytes that come back are those sent");
}

/// A count of a member.
fn count(forwarded: &Value, member: SocketAddr, name: &str) -> u64 {
    let members = forwarded["members"].as_array().unwrap();
    let is_it = |one: &&Value| one["member"] == member.to_string();
    let member = members.iter().find(is_it);
    member.map_or(0, |member| member[name].as_u64().unwrap())
}

fn check_the_kernel_forwards_connections_by_the_strategy(family: Family) {
    let Some(machines) = Machines::new(family) else {
        return;
    };
    machines.start_member(2, Duration::ZERO);
    machines.start_member(3, Duration::from_millis(40));
    let Some(balancer) = machines.start_balancer(&[2, 3], "strategy = \"adaptive\"") else {
        return;
    };
    assert_eq!(machines.state(&balancer), "kernel");
    let room = machines.forwarded(&balancer)["table_size"].as_u64();
    assert!(room >= Some(65_536), "{room:?}");

    let served = 60;
    for _ in 0..served {
        let (mut stream, seen) = machines.connect().unwrap();
        assert_eq!(
            seen,
            machines.family.client(),
            "half NAT: members see the client"
        );
        echo(&mut stream, 1000);
    }
    let (mut stream, _) = machines.connect().unwrap();
    // Segments of all sizes, with the checksums that each interface leaves to the next one.
    echo(&mut stream, 1 << 20);
    drop(stream);

    machines.wait_for_ends(&balancer);
    wait_until("the status has all connections", || {
        [2, 3]
            .map(|last| machines.count(&balancer, last, "picks"))
            .iter()
            .sum::<u64>()
            > served
    });
    let now = machines.forwarded(&balancer);
    let [fast, slow] = [2, 3].map(|last| machines.count(&balancer, last, "picks"));
    assert!(fast > slow, "the fast one gets more: {now}");
    assert_eq!(now["packets"]["dropped"], 0, "{now}");
    let group = &machines.admin_json(&balancer, "/v1/status")["groups"][0];
    let answered: u64 = group["members"]
        .as_array()
        .unwrap()
        .iter()
        .map(|member| member["in_flight"].as_u64().unwrap())
        .sum();
    assert_eq!(answered, 0, "tickets end with their connections: {group}");
    let metrics = machines
        .pair
        .front
        .run_inside(|| balancer.read_metric("evenkeel_forward_active"));
    assert_eq!(metrics, Some(1.0));
}

#[test]
fn s41_the_kernel_forwards_connections_by_the_strategy() {
    BOTH.into_iter()
        .for_each(check_the_kernel_forwards_connections_by_the_strategy);
}

fn check_connections_that_are_refused_or_not_answered_go_to_another_member(family: Family) {
    let Some(machines) = Machines::new(family) else {
        return;
    };
    machines.start_member(2, Duration::ZERO);
    // Nobody listens at the third, and no answer of the fourth leaves its machine.
    machines.silence_member(4);
    let more = "strategy = \"round_robin\"";
    let Some(balancer) = machines.start_balancer(&[2, 3, 4], more) else {
        return;
    };
    assert_eq!(machines.state(&balancer), "kernel");
    for _ in 0..6 {
        let (mut stream, seen) = machines.connect().unwrap();
        assert_eq!(seen, machines.family.client());
        echo(&mut stream, 5000);
    }
    wait_until("the status has the failures", || {
        let now = machines.forwarded(&balancer);
        [3, 4].map(|last| machines.count(&balancer, last, "refused") >= 1) == [true; 2]
            && now["packets"]["retried"].as_u64() >= Some(2)
    });
    machines.wait_for_ends(&balancer);
    drop(balancer);

    // Without retries the refusal is the client's.
    let more = "strategy = \"round_robin\"\nconnect_retries = 0";
    let balancer = machines.start_balancer(&[3], more).unwrap();
    assert_eq!(
        machines.connect().unwrap_err(),
        ErrorKind::ConnectionRefused
    );
    wait_until("the status has the refusal", || {
        machines.count(&balancer, 3, "refused") >= 1
    });
}

#[test]
fn s41_connections_that_are_refused_or_not_answered_go_to_another_member() {
    BOTH.into_iter()
        .for_each(check_connections_that_are_refused_or_not_answered_go_to_another_member);
}

#[test]
fn s41_resets_of_strangers_do_not_end_connections() {
    let Some(machines) = Machines::new(Family::V4) else {
        return;
    };
    machines.start_member(2, Duration::ZERO);
    let Some(balancer) = machines.start_balancer(&[2], "") else {
        return;
    };
    let (mut stream, _) = machines.connect().unwrap();
    echo(&mut stream, 5000);
    let client = stream.local_addr().unwrap();
    let resets = 50;
    let mut rng = fastrand::Rng::with_seed(41);
    let rule = machines.family.rule();
    machines.clients.run_inside(|| {
        let packets = (0..resets).map(|_| write_reset(client, rule, rng.u32(..)));
        send_packets(rule, packets);
    });
    wait_until("the program has seen the RSTs", || {
        machines.forwarded(&balancer)["packets"]["stray_reset"].as_u64() == Some(resets)
    });
    assert_eq!(
        machines.forwarded(&balancer)["members"][0]["in_flight"],
        1,
        "the connection stays"
    );
    echo(&mut stream, 50_000);

    // The client's own RST is another thing.
    rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
    drop(stream);
    wait_until("the connection is over", || {
        machines.forwarded(&balancer)["members"][0]["in_flight"] == 0
    });
    let now = machines.forwarded(&balancer);
    assert_eq!(now["packets"]["stray_reset"], resets, "{now}");
}

fn check_connections_outlive_the_process(family: Family) {
    let Some(machines) = Machines::new(family) else {
        return;
    };
    machines.start_member(2, Duration::ZERO);
    let Some(mut balancer) = machines.start_balancer(&[2], "") else {
        return;
    };
    let (mut old, seen) = machines.connect().unwrap();
    assert_eq!(seen, machines.family.client());
    echo(&mut old, 5000);
    balancer.signal(Signal::KILL);
    balancer.wait_for_end();
    echo(&mut old, 50_000);
    let (mut between, seen) = machines.connect().unwrap();
    assert_eq!(seen, machines.family.client());
    echo(&mut between, 5000);

    let balancer = machines.start_balancer(&[2], "").unwrap();
    assert_eq!(machines.state(&balancer), "kernel");
    echo(&mut old, 50_000);
    wait_until("the next process counts the connections", || {
        let status = machines.admin_json(&balancer, "/v1/status");
        status["groups"][0]["members"][0]["in_flight"] == 2
    });
    drop((old, between));
    wait_until("they are over", || {
        let status = machines.admin_json(&balancer, "/v1/status");
        status["groups"][0]["members"][0]["in_flight"] == 0
    });
}

#[test]
fn s41_connections_outlive_the_process() {
    BOTH.into_iter()
        .for_each(check_connections_outlive_the_process);
}

#[test]
fn s41_the_table_has_the_size_for_the_memory_of_the_cgroup() {
    let Some(machines) = Machines::new(Family::V4) else {
        return;
    };
    let Some(limit) = MemoryLimit::new(1 << 30) else {
        report_skipped("no right to limit memory by a cgroup; run it as root");
        return;
    };
    let mut command = limit.command("nsenter");
    command
        .arg(format!("--net={}", machines.pair.front.path().display()))
        .arg("--")
        .arg(evenkeel_binary());
    machines.start_member(2, Duration::ZERO);
    let config = machines.write_config("kernel", &[2], "");
    let Some(balancer) = machines.start_balancer_by(command, &config) else {
        return;
    };
    assert_eq!(machines.state(&balancer), "kernel");
    wait_until("the status has the size of the table", || {
        machines.forwarded(&balancer)["table_size"] == 262_144
    });
    let (mut stream, seen) = machines.connect().unwrap();
    assert_eq!(seen, machines.family.client());
    echo(&mut stream, 5000);
}

/// Waits for the line of the access log about a client's connection.
fn wait_for_record(balancer: &Balancer, client: SocketAddr) -> Value {
    let (path, mut found) = (balancer.folder().join("access.log"), None);
    wait_until("the connection is in the access log", || {
        let text = fs::read_to_string(&path).unwrap_or_default();
        let whole = text
            .split_inclusive('\n')
            .filter(|line| line.ends_with('\n'));
        let mut records = whole.map(|line| serde_json::from_str::<Value>(line).unwrap());
        found = records.find(|record| record["client"] == client.to_string());
        found.is_some()
    });
    found.unwrap()
}

fn check_connections_of_the_kernel_are_in_the_access_log(family: Family) {
    let Some(machines) = Machines::new(family) else {
        return;
    };
    machines.start_member(2, Duration::ZERO);
    let log = "strategy = \"round_robin\"\n[access_log]\noutput = \"./access.log\"";
    // Nobody listens at the third.
    let Some(mut balancer) = machines.start_balancer(&[2, 3], log) else {
        return;
    };
    assert_eq!(machines.state(&balancer), "kernel");
    let member = machines.family.member(2).to_string();
    let mut retried = 0;
    for _ in 0..4 {
        let (mut stream, seen) = machines.connect().unwrap();
        assert_eq!(seen, machines.family.client());
        let at = stream.local_addr().unwrap();
        echo(&mut stream, 5000);
        drop(stream);
        let record = wait_for_record(&balancer, at);
        assert_eq!(record["rule"], "db", "{record}");
        assert_eq!(record["member"], *member, "{record}");
        assert_eq!(record["end"], "complete", "{record}");
        // Segments that come again count again.
        assert!(record["bytes_received"].as_u64() >= Some(5000), "{record}");
        assert!(record["bytes_sent"].as_u64() >= Some(5016), "{record}");
        let time = |name: &str| record[name].as_f64().unwrap();
        assert!(time("connect_ms") <= time("response_ms"), "{record}");
        assert!(time("response_ms") <= time("total_ms"), "{record}");
        let tried = record["tried"].as_array().map_or(0, Vec::len);
        assert_eq!(record["retries"], tried, "{record}");
        retried += tried;
    }
    assert!(retried >= 1, "turns go to both members");

    // A client that resets, and a connection that ends while no process runs.
    let (stream, _) = machines.connect().unwrap();
    let at = stream.local_addr().unwrap();
    rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
    drop(stream);
    assert_eq!(wait_for_record(&balancer, at)["end"], "client");
    balancer.signal(Signal::KILL);
    balancer.wait_for_end();
    let (mut stream, _) = machines.connect().unwrap();
    let at = stream.local_addr().unwrap();
    echo(&mut stream, 5000);
    drop(stream);
    let balancer = machines.start_balancer(&[2, 3], log).unwrap();
    let record = wait_for_record(&balancer, at);
    assert_eq!(record["member"], *member, "{record}");
    assert_eq!(record["end"], "complete", "{record}");
    let forwarded = machines.forwarded(&balancer);
    assert_eq!(forwarded["lost_records"], 0, "{forwarded}");
    assert_eq!(forwarded["packets"]["lost_event"], 0, "{forwarded}");
}

#[test]
fn s41_connections_of_the_kernel_are_in_the_access_log() {
    BOTH.into_iter()
        .for_each(check_connections_of_the_kernel_are_in_the_access_log);
}

#[test]
fn s41_connections_outlive_upgrades_and_reloads() {
    let Some(machines) = Machines::new(Family::V4) else {
        return;
    };
    machines.start_member(2, Duration::ZERO);
    machines.start_member(3, Duration::ZERO);
    let Some(mut balancer) = machines.start_balancer(&[2], "") else {
        return;
    };
    let in_flight = |balancer: &Balancer, last| machines.count(balancer, last, "in_flight");
    let (mut old, seen) = machines.connect().unwrap();
    assert_eq!(seen, machines.family.client());
    echo(&mut old, 5000);

    machines
        .pair
        .front
        .run_inside(|| balancer.upgrade().unwrap());
    wait_until(
        "the next process forwards, and counts the connection",
        || machines.state(&balancer) == "kernel" && in_flight(&balancer, 2) == 1,
    );
    echo(&mut old, 50_000);
    let (mut next, seen) = machines.connect().unwrap();
    assert_eq!(seen, machines.family.client());
    echo(&mut next, 5000);

    // Members that come and go.
    let reload = |config: &str| {
        machines
            .pair
            .front
            .run_inside(|| balancer.reconfigure(config))
    };
    for members in [&[3][..], &[2, 3], &[2], &[3]] {
        reload(&machines.write_config("kernel", members, ""));
        echo(&mut old, 5000);
        echo(&mut next, 5000);
    }
    wait_until("the kernel knows the new member", || {
        let (mut other, seen) = machines.connect().unwrap();
        assert_eq!(seen, machines.family.client());
        echo(&mut other, 5000);
        machines.count(&balancer, 3, "picks") > 0
    });

    // A rule that is no longer forwarded.
    reload(&machines.write_config("proxy", &[2], ""));
    wait_until("the proxy serves", || {
        let (mut proxied, seen) = machines.connect().unwrap();
        echo(&mut proxied, 5000);
        seen == machines.family.balancer()
    });
    echo(&mut old, 50_000);
    drop(next);
    wait_until("a connection that ends is counted", || {
        in_flight(&balancer, 2) == 1
    });
    assert_eq!(machines.forwarded(&balancer)["active"], true);
    reload(&machines.write_config("kernel", &[2], ""));
    wait_until("the kernel forwards again", || {
        machines.state(&balancer) == "kernel"
    });
    echo(&mut old, 50_000);
    drop(old);
    wait_until("all connections are over", || in_flight(&balancer, 2) == 0);
    assert_eq!(machines.forwarded(&balancer)["packets"]["dropped"], 0);
}

fn check_the_proxy_serves_what_the_kernel_does_not(family: Family) {
    let Some(machines) = Machines::new(family) else {
        return;
    };
    machines.start_member(2, Duration::ZERO);
    machines.set_forwarding(family, false);
    let Some(balancer) = machines.start_balancer(&[2], "") else {
        return;
    };
    let state = machines.state(&balancer);
    assert!(
        state.starts_with("proxy (") && state.contains(&family.setting().replace('/', ".")),
        "{state}"
    );
    let (mut stream, seen) = machines.connect().unwrap();
    assert_eq!(seen, machines.family.balancer());
    echo(&mut stream, 100_000);

    // The system forwards now.
    machines.set_forwarding(family, true);
    wait_until("the kernel forwards", || {
        machines.state(&balancer) == "kernel"
    });
    echo(&mut stream, 100_000);
    let (mut next, seen) = machines.connect().unwrap();
    assert_eq!(seen, machines.family.client());
    echo(&mut next, 100_000);
    drop((stream, next, balancer));
}

#[test]
fn s41_the_proxy_serves_what_the_kernel_does_not() {
    BOTH.into_iter()
        .for_each(check_the_proxy_serves_what_the_kernel_does_not);
}

#[test]
fn s41_clients_of_both_families_go_to_members_of_theirs() {
    let Some(machines) = Machines::new(Family::V6) else {
        return;
    };
    let all = [(Family::V4, 2), (Family::V4, 3), (Family::V6, 2)];
    let all = all.map(|(family, last)| family.member(last));
    for member in all {
        machines.start_member_at(member, Duration::ZERO);
    }
    let command = machines.pair.front.command(evenkeel_binary());
    let config = |members| write_config_for(&BOTH, "kernel", members, "strategy = \"round_robin\"");
    let Some(balancer) = machines.start_balancer_by(command, &config(&all)) else {
        return;
    };
    for _ in 0..4 {
        for family in BOTH {
            let (mut stream, seen) = machines.connect_to(family).unwrap();
            assert_eq!(seen, family.client());
            echo(&mut stream, 20_000);
        }
    }
    wait_until("the members have the connections of their family", || {
        let now = machines.forwarded(&balancer);
        all.map(|member| count(&now, member, "picks")) == [2, 2, 4]
    });
    machines.wait_for_ends(&balancer);

    // Without a member of the client's family the proxy serves, which connects to the other one.
    machines
        .pair
        .front
        .run_inside(|| balancer.reconfigure(&config(&all[2..])));
    wait_until("the proxy serves clients of IPv4", || {
        let (mut stream, seen) = machines.connect_to(Family::V4).unwrap();
        echo(&mut stream, 20_000);
        seen == Family::V6.balancer()
    });
    let (mut stream, seen) = machines.connect().unwrap();
    assert_eq!(seen, Family::V6.client());
    echo(&mut stream, 20_000);
    drop(stream);

    // The system forwards packets of one family only.
    machines.set_forwarding(Family::V6, false);
    // The way of a connection before is kept for a tenth of a second: one that begins in this time may get no answer, as its
    // way ends under it, and is given up.
    wait_until("the proxy serves clients of IPv6", || {
        match machines.connect_within(Family::V6, Duration::from_secs(1)) {
            Ok((mut stream, seen)) if seen == Family::V6.balancer() => {
                echo(&mut stream, 20_000);
                true
            }
            _ => false,
        }
    });
    assert_eq!(machines.state(&balancer), "kernel");
}

#[test]
fn s41_members_learn_what_is_too_large_for_the_way_to_clients() {
    for family in BOTH {
        let Some(machines) = Machines::new(family) else {
            return;
        };
        let namespaces = [&machines.clients, &machines.pair.front];
        let [a, b] = namespaces.map(|namespace| {
            let path = namespace.path();
            path.file_name().unwrap().to_str().unwrap().to_owned()
        });
        // The member sends packets of 1,500 bytes as the client asks for, and not several in one.
        run_ip(&format!("-n {b} link set client1 mtu 1300"));
        let (version, rule) = (family.choose("-4", "-6"), family.rule().ip());
        run_ip(&format!(
            "-n {a} {version} route add {rule} dev client0 mtu 1300 advmss 1440"
        ));
        for (namespace, interface) in [(&machines.pair.back, BACK), (&machines.pair.front, FRONT)] {
            for what in ["tso", "gso", "gro"] {
                let mut command = namespace.command("ethtool");
                let status = command.args(["-K", interface, what, "off"]).status();
                assert!(status.unwrap().success(), "{interface}: {what}");
            }
        }
        machines.start_member(2, Duration::ZERO);
        let Some(balancer) = machines.start_balancer(&[2], "") else {
            return;
        };
        let (mut stream, seen) = machines.connect().unwrap();
        assert_eq!(seen, family.client());
        echo(&mut stream, 100_000);
        wait_until("the status has the packets", || {
            machines.forwarded(&balancer)["packets"]["too_large"].as_u64() >= Some(1)
        });
    }
}
