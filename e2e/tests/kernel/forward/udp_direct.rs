//! UDP rules whose members have the rule's address and answer clients themselves.

use std::collections::BTreeSet;
use std::net::UdpSocket;

use evenkeel_e2e::process::are_installed;
use evenkeel_e2e::quic::QuicPeer;

use super::direct::{Lan, MEMBERS, find_address};
use super::quic::{move_client, other_address};
use super::udp::{Answer, Dns, PATIENCE, answer_datagrams, ask};
use super::*;

/// Return path, and the members' answers to health checks, of DNS rules.
const CHECK: &str = "health_check = { type = \"dns\", query = \"who.example\", interval = \"100ms\", timeout = \"5s\" }";

impl Lan {
    /// Configuration of a UDP rule with all members.
    fn write_udp_config(&self, more: &str) -> String {
        let members = MEMBERS.map(|last| self.member(last));
        let config = self.write_config(&members, more);
        config.replace("protocol = \"tcp\"", "protocol = \"udp\"")
    }

    /// Addresses of a member's server: the member's, for health checks and the proxy, and the rule's.
    fn list_addresses(&self, member: usize) -> [SocketAddr; 2] {
        [self.member(MEMBERS[member]), self.rule()]
    }

    fn start_dns(&self, member: usize) -> Dns {
        let addresses = self.list_addresses(member);
        Dns::start_at(&self.members[member], &addresses, MEMBERS[member])
    }

    /// A member that sends each datagram back, behind a line with its number and the sender as the member sees it.
    fn start_udp_member(&self, member: usize) {
        for at in self.list_addresses(member) {
            let bind = || self.members[member].run_inside(|| UdpSocket::bind(at).ok());
            let mut socket = None;
            wait_until("the member has the address", || {
                socket = bind();
                socket.is_some()
            });
            answer_datagrams(socket.unwrap(), MEMBERS[member]);
        }
    }

    fn open_client(&self) -> UdpSocket {
        let at = SocketAddr::new(find_address(self.family, 2), 0);
        let socket = self.clients.run_inside(|| UdpSocket::bind(at).unwrap());
        socket.connect(self.rule()).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket
    }

    /// Asks for the address of the name that the servers know: the answer says which server has answered.
    fn dig(&self, port: Option<u16>) -> String {
        let mut command = self.clients.command("dig");
        let (rule, client) = (self.rule(), find_address(self.family, 2));
        command.args([&format!("@{}", rule.ip()), "-p", &rule.port().to_string()]);
        command.args(["who.example", "+noall", "+answer", "+tries=6", "+time=5"]);
        if let Some(port) = port {
            command.args(["-b", &format!("{client}#{port}")]);
        }
        let output = command.output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        // dig tells a second try, too.
        let record = text.lines().find(|line| !line.starts_with(';'));
        let record = record.and_then(|line| line.split_whitespace().last());
        record.unwrap_or_default().to_owned()
    }

    fn ctl(&self, balancer: &Balancer, word: &str, member: SocketAddr) {
        let words = format!("{word} db {member}");
        self.front.run_inside(|| balancer.run_ctl(&words)).unwrap();
    }

    fn wait_until_eligible(&self, balancer: &Balancer, member: SocketAddr, is_eligible: bool) {
        wait_until("the kernel knows of the member's state", || {
            let now = self.ask(balancer, "/v1/forward");
            let members = now["members"].as_array().unwrap();
            let is_it = |one: &&Value| one["member"] == member.to_string();
            let member = members.iter().find(is_it);
            member.is_some_and(|member| member["eligible"] == is_eligible)
        });
    }

    /// Checks that the kernel alone has had the datagrams of clients, and nobody the answers.
    fn check_no_answer_passes(&self, balancer: &Balancer) {
        let packets = self.ask(balancer, "/v1/forward")["packets"].clone();
        for name in [
            "to_client",
            "odd",
            "dropped",
            "proxied_session",
            "proxied_table",
            "proxied_remote",
            "proxied_route",
        ] {
            assert_eq!(packets[name], 0, "{name}: {packets}");
        }
    }
}

fn check_dns_servers_answer_clients_themselves(family: Family, session: &str) {
    let Some(lan) = Lan::new(family) else {
        return;
    };
    (0..2).for_each(|member| lan.receive_at(member));
    let [first, second] = [0, 1].map(|member| lan.start_dns(member));
    let more = format!(
        "strategy = \"round_robin\"\nudp = {{ session = \"{session}\" }}\n[access_log]\noutput = \"./access.log\""
    );
    let config = lan.write_udp_config(&more);
    let config = config.replace("health_check = false", CHECK);
    let Some(mut balancer) = lan.start_balancer_with(&config) else {
        return;
    };
    assert_eq!(lan.state(&balancer), "kernel");
    let [a, b] = MEMBERS.map(|last| lan.member(last));
    for member in [a, b] {
        lan.wait_until_eligible(&balancer, member, true);
    }
    // A port that is free: dig binds it anew for each question. With sessions of clients all questions of a port go to one
    // member.
    let port = lan.open_client().local_addr().unwrap().port();
    let is_single = session == "datagram";
    let dig = || lan.dig(is_single.then_some(port));
    let ask_all = || {
        let (mut known, both) = (
            BTreeSet::new(),
            MEMBERS.map(|last| format!("192.0.2.{last}")),
        );
        wait_until("both servers have answered", || {
            known.insert(dig());
            both.iter().all(|answer| known.contains(answer))
        });
    };
    ask_all();
    wait_until("the rule counts the questions", || {
        let now = lan.ask(&balancer, "/v1/forward");
        // Sessions of clients are counted with their datagrams when they are over.
        let counted = match is_single {
            true => &now["rule_counts"][0]["datagrams_in"],
            false => &now["sessions"],
        };
        counted.as_u64() >= Some(2)
    });
    let now = lan.ask(&balancer, "/v1/forward");
    assert_eq!(now["rule_counts"][0]["datagrams_out"], 0, "{now}");
    assert_eq!(now["sessions"] == 0, is_single, "{now}");
    lan.check_no_answer_passes(&balancer);
    if is_single {
        let client = SocketAddr::new(find_address(family, 2), port);
        let record = wait_for_record(&balancer, client);
        assert_eq!(record["end"], "complete", "{record}");
        assert_eq!(record["bytes_sent"], 0, "{record}");
        assert!(record["bytes_received"].as_u64() > Some(12), "{record}");
        assert!(record["response_ms"].is_null(), "{record}");
    }
    // A member that drains gets no more, also while no process runs.
    lan.ctl(&balancer, "drain", a);
    lan.wait_until_eligible(&balancer, a, false);
    let ask_second = || (0..6).for_each(|_| assert_eq!(dig(), "192.0.2.13"));
    ask_second();
    balancer.signal(Signal::KILL);
    balancer.wait_for_end();
    ask_second();
    let balancer = lan.start_balancer_with(&config).unwrap();
    for member in [a, b] {
        lan.ctl(&balancer, "ready", member);
        lan.wait_until_eligible(&balancer, member, true);
    }
    ask_all();
    // Health checks say what silence does not.
    drop(second);
    lan.wait_until_eligible(&balancer, b, false);
    (0..6).for_each(|_| assert_eq!(dig(), "192.0.2.12"));
    lan.check_no_answer_passes(&balancer);
    drop(first);
}

#[test]
fn s41_dns_servers_answer_clients_themselves() {
    if !are_installed(&["dnsmasq", "dig"]) {
        return;
    }
    for family in BOTH {
        for session in ["datagram", "client"] {
            check_dns_servers_answer_clients_themselves(family, session);
        }
    }
}

fn check_direct_sessions_stay_with_their_member(family: Family) {
    let Some(lan) = Lan::new(family) else {
        return;
    };
    for member in [0, 1] {
        lan.receive_at(member);
        lan.start_udp_member(member);
    }
    let config = |idle: u32| {
        lan.write_udp_config(&format!(
            "strategy = \"round_robin\"\nidle_timeout = \"{idle}s\"\n[access_log]\noutput = \"./access.log\""
        ))
    };
    let Some(mut balancer) = lan.start_balancer_with(&config(600)) else {
        return;
    };
    assert_eq!(lan.state(&balancer), "kernel");
    let before = lan.count_received();
    let begin = || {
        let socket = lan.open_client();
        let first = ask(&socket, 10).unwrap();
        assert_eq!(first.seen, socket.local_addr().unwrap());
        (socket, first)
    };
    let mut clients: Vec<(UdpSocket, Answer)> = (0..4).map(|_| begin()).collect();
    let of_first = clients.iter().filter(|(_, first)| first.last == MEMBERS[0]);
    assert_eq!(of_first.count(), 2, "turns: {clients:?}");
    for (socket, first) in &clients {
        // Some are longer than a packet, and so are the answers.
        for length in [0, 1, 33, 1000, 1400, 1500, 3000, 20_000] {
            assert_eq!(ask(socket, length).unwrap(), *first, "{length} bytes");
        }
    }
    let sent: u64 = 4 * (10 + 1 + 33 + 1000 + 1400 + 1500 + 3000 + 20_000);
    let received = lan.count_received() - before;
    assert!(
        (sent..sent * 3 / 2).contains(&received),
        "{received} bytes have come to the balancer, of {sent} from clients"
    );
    let sum = |balancer: &Balancer, name: &str| {
        let counts = MEMBERS.map(|last| lan.count(balancer, last, name));
        counts.iter().sum::<u64>()
    };
    wait_until("the sessions are counted", || {
        sum(&balancer, "in_flight") == 4
    });
    lan.check_no_answer_passes(&balancer);

    balancer.signal(Signal::KILL);
    balancer.wait_for_end();
    clients.push(begin());
    let check_all = |clients: &[(UdpSocket, Answer)]| {
        for (socket, first) in clients {
            assert_eq!(ask(socket, 500).unwrap(), *first);
        }
    };
    check_all(&clients);
    let balancer = lan.start_balancer_with(&config(600)).unwrap();
    check_all(&clients);
    wait_until("the next process counts the sessions", || {
        sum(&balancer, "in_flight") == 5
    });
    assert_eq!(sum(&balancer, "refused"), 0, "silence is no failure");

    // Sessions stay at a member that drains, and leave one in maintenance.
    let (socket, first) = &clients[0];
    let (gone, other) = match first.last == MEMBERS[0] {
        true => (MEMBERS[0], MEMBERS[1]),
        false => (MEMBERS[1], MEMBERS[0]),
    };
    lan.ctl(&balancer, "drain", lan.member(gone));
    lan.wait_until_eligible(&balancer, lan.member(gone), false);
    check_all(&clients);
    for _ in 0..3 {
        assert_eq!(begin().1.last, other);
    }
    lan.ctl(&balancer, "maintenance", lan.member(gone));
    wait_until("the session goes to the other member", || {
        ask(socket, 10).unwrap().last == other
    });
    for (socket, _) in &clients {
        assert_eq!(ask(socket, 2000).unwrap().last, other);
    }
    lan.check_no_answer_passes(&balancer);

    // Silence ends sessions, and is no failure.
    lan.front.run_inside(|| balancer.reconfigure(&config(1)));
    wait_until("the sessions are over", || sum(&balancer, "in_flight") == 0);
    let record = wait_for_record(&balancer, clients[4].0.local_addr().unwrap());
    assert_eq!(record["end"], "complete", "{record}");
    assert_eq!(record["bytes_sent"], 0, "{record}");
    assert!(record["bytes_received"].as_u64() >= Some(510), "{record}");
    assert!(record["response_ms"].is_null(), "{record}");
    assert_eq!(sum(&balancer, "refused"), 0);
}

#[test]
fn s41_direct_sessions_of_udp_stay_with_their_member() {
    BOTH.into_iter()
        .for_each(check_direct_sessions_stay_with_their_member);
}

fn check_clients_of_quic_stay_with_their_direct_member(family: Family) {
    let Some(lan) = Lan::new(family) else {
        return;
    };
    let clients = lan.clients.path();
    let clients = clients.file_name().unwrap().to_str().unwrap();
    let (other, end) = (other_address(family), family.choose("/24", "/64 nodad"));
    run_ip(&format!("-n {clients} addr add {other}{end} dev link0"));
    (0..2).for_each(|member| lan.receive_at(member));
    let start_server = |name: &str, member: usize| {
        let server = QuicPeer::server(name, lan.rule(), Some(&lan.members[member]));
        server.map(|(server, _)| server)
    };
    let Some(_first) = start_server("a", 0) else {
        return;
    };
    let _second = start_server("b", 1).unwrap();
    let more = "strategy = \"round_robin\"\nidle_timeout = \"600s\"\nudp = { session = \"quic\" }";
    let config = lan.write_udp_config(more);
    let Some(mut balancer) = lan.start_balancer_with(&config) else {
        return;
    };
    assert_eq!(lan.state(&balancer), "kernel");
    let begin = || {
        let mut client = QuicPeer::client(lan.rule(), Some(&lan.clients));
        let first = client.tell("ask x");
        move_client(&mut client, family, &first);
        assert_eq!(client.tell("bytes 300000"), "300000");
        (client, first)
    };
    let mut clients: Vec<_> = (0..4).map(|_| begin()).collect();
    let of_first = clients.iter().filter(|(_, first)| first == "a x").count();
    // A client that waits long for an answer may go to the next member.
    assert!((1..=3).contains(&of_first), "both serve: {of_first}");
    wait_until("the sessions of new addresses are counted", || {
        let now = lan.ask(&balancer, "/v1/forward");
        now["packets"]["by_connection_id"].as_u64() >= Some(12)
            && now["connection_ids"].as_u64() >= Some(4)
    });
    balancer.signal(Signal::KILL);
    balancer.wait_for_end();
    for (client, first) in &mut clients {
        move_client(client, family, first);
    }
    clients.push(begin());
    let balancer = lan.start_balancer_with(&config).unwrap();
    for (client, first) in &mut clients {
        move_client(client, family, first);
    }
    lan.check_no_answer_passes(&balancer);
}

#[test]
fn s41_clients_of_quic_stay_with_their_direct_member_when_their_address_changes() {
    BOTH.into_iter()
        .for_each(check_clients_of_quic_stay_with_their_direct_member);
}
