//! UDP rules, before DNS servers, collectors of syslog, and servers of QUIC.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use evenkeel_e2e::balancer::Balancer;
use evenkeel_e2e::process::are_installed;
use evenkeel_e2e::quic::QuicPeer;
use evenkeel_e2e::server::address;
use evenkeel_e2e::wait_until;

/// Time that only a hang takes.
const HANG: Duration = Duration::from_secs(60);

/// A DNS server that knows one name: the address of the name says which server has answered.
struct Dns {
    process: Child,
    address: SocketAddr,
}

impl Dns {
    fn start(last: u8) -> Self {
        let address = address();
        let process = Command::new("dnsmasq")
            .args([
                "--keep-in-foreground",
                "--conf-file=/dev/null",
                "--no-resolv",
            ])
            .args([
                "--no-hosts",
                "--bind-interfaces",
                "--user=root",
                "--pid-file=",
            ])
            .arg(format!("--listen-address={}", address.ip()))
            .arg(format!("--port={}", address.port()))
            .arg(format!("--address=/who.example/192.0.2.{last}"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Dns { process, address }
    }
}

impl Drop for Dns {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn dig(at: SocketAddr, more: &[&str]) -> String {
    let output = Command::new("dig")
        .args([&format!("@{}", at.ip()), "-p", &at.port().to_string()])
        .args(["who.example", "+short", "+tries=6", "+time=5"])
        .args(more)
        .output()
        .unwrap();
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

fn config(listen: &str, members: &[SocketAddr], more: &str) -> String {
    let members: Vec<_> = members.iter().map(|at| format!("\"{at}\"")).collect();
    format!(
        "workers = 2\n[admin]\nlisten = \"127.0.0.1:0\"\n[rule.web]\nlisten = \"{listen}\"\n\
         protocol = \"udp\"\nmembers = [{}]\n{more}\n",
        members.join(", ")
    )
}

const BY_DATAGRAM: &str = "strategy = \"round_robin\"\n\
    udp = { session = \"datagram\", answer_timeout = \"20s\" }\n\
    health_check = { type = \"dns\", query = \"who.example\", interval = \"100ms\", timeout = \"5s\" }";

#[test]
fn dns_servers_are_balanced_checked_and_survive_an_upgrade() {
    if !are_installed(&["dnsmasq", "dig"]) {
        return;
    }
    let (first, mut second) = (Dns::start(1), Dns::start(2));
    let members = [first.address, second.address];
    let mut balancer = Balancer::start(&config("127.0.0.1:0", &members, BY_DATAGRAM));
    for member in members {
        balancer.wait_for_state("web", member, &["warming", "up"]);
    }
    let at = balancer.address("web");
    let mut answers: Vec<_> = (0..10).map(|_| dig(at, &[])).collect();
    answers.sort();
    answers.dedup();
    assert_eq!(answers, ["192.0.2.1", "192.0.2.2"]);
    // A name that no server knows has an answer, too.
    assert_eq!(dig(at, &["-t", "TXT"]), "");
    second.process.kill().unwrap();
    second.process.wait().unwrap();
    // Refused datagrams go to the other member until the check has seen it.
    for _ in 0..10 {
        assert_eq!(dig(at, &[]), "192.0.2.1");
    }
    balancer.wait_for_state("web", members[1], &["down", "ejected"]);
    balancer.upgrade().unwrap();
    for _ in 0..10 {
        assert_eq!(dig(at, &[]), "192.0.2.1");
    }
    assert!(balancer.rule_count("datagrams_total", "direction=\"out\"") >= 10);
}

#[test]
fn answers_leave_from_the_address_that_was_asked() {
    if !are_installed(&["dnsmasq", "dig"]) {
        return;
    }
    let server = Dns::start(7);
    let balancer = Balancer::start(&config("0.0.0.0:0", &[server.address], BY_DATAGRAM));
    balancer.wait_for_state("web", server.address, &["warming", "up"]);
    let port = balancer.address("web").port();
    // dig takes no answer from another address.
    for ip in [Ipv4Addr::new(127, 0, 0, 1), Ipv4Addr::new(127, 9, 8, 7)] {
        assert_eq!(dig((ip, port).into(), &[]), "192.0.2.7");
    }
}

#[test]
fn syslog_is_spread_over_collectors() {
    if !are_installed(&["logger"]) {
        return;
    }
    let bind = || UdpSocket::bind("127.0.0.1:0").unwrap();
    let collectors = [bind(), bind()];
    let members = collectors.each_ref().map(|one| one.local_addr().unwrap());
    let more =
        "strategy = \"round_robin\"\nudp = { session = \"datagram\", expect_answer = false }";
    let balancer = Balancer::start(&config("127.0.0.1:0", &members, more));
    let at = balancer.address("web");
    for number in 0..10 {
        let status = Command::new("logger")
            .args(["--udp", "--server", "127.0.0.1", "--port"])
            .args([at.port().to_string(), format!("message {number}")])
            .status();
        assert!(status.unwrap().success());
    }
    let mut messages = Vec::new();
    for collector in &collectors {
        collector.set_read_timeout(Some(HANG)).unwrap();
        for _ in 0..5 {
            let mut buffer = [0; 2000];
            let len = collector.recv(&mut buffer).unwrap();
            let text = String::from_utf8_lossy(&buffer[..len]).into_owned();
            messages.push(text.rsplit(' ').next().unwrap().to_owned());
        }
    }
    messages.sort();
    assert_eq!(messages, ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"]);
    wait_until("the sessions are over", || {
        let series = "evenkeel_rule_connections_closed_total{rule=\"web\"}";
        balancer.read_metric(series) == Some(10.0)
    });
}

#[test]
fn quic_clients_stay_with_their_member_when_their_address_changes() {
    let at = (Ipv4Addr::LOCALHOST, 0).into();
    let Some((_first, a)) = QuicPeer::server("a", at, None) else {
        return;
    };
    let (_second, b) = QuicPeer::server("b", at, None).unwrap();
    let more = "strategy = \"round_robin\"\nudp = { session = \"quic\" }";
    let mut balancer = Balancer::start(&config("127.0.0.1:0", &[a, b], more));
    let at = balancer.address("web");
    let mut clients = Vec::new();
    for _ in 0..4 {
        let mut client = QuicPeer::client(at, None);
        let first = client.tell("ask x");
        for _ in 0..3 {
            client.rebind(None);
            assert_eq!(client.tell("ask x"), first);
        }
        // Long answers come by segmentation offload where the kernel has it.
        assert_eq!(client.tell("bytes 300000"), "300000");
        clients.push((client, first));
    }
    let of_first = clients.iter().filter(|(_, first)| first == "a x").count();
    assert_eq!(of_first, 2, "turns");
    // The next process knows the ids, by which it finds the members of clients whose address it does not know.
    balancer.upgrade().unwrap();
    for (client, first) in &mut clients {
        for _ in 0..2 {
            assert_eq!(client.tell("ask x"), *first);
            client.rebind(None);
        }
    }
}
