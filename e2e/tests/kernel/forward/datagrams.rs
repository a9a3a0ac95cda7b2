//! UDP rules whose datagrams are sessions of their own: each one gets a member and a port from the kernel.

use std::collections::{BTreeMap, BTreeSet};
use std::net::UdpSocket;
use std::sync::mpsc;

use evenkeel_e2e::process::are_installed;

use super::udp::{Answer, Dns, ask};
use super::*;

/// Options of a rule whose members answer.
const ANSWERED: &str = "return_path = \"nat\"\nstrategy = \"round_robin\"\n\
                        udp = { session = \"datagram\", answer_timeout = \"60s\" }";

/// Ports that are left to full NAT by `ip_local_port_range` of a test: as few as are allowed.
const FEW_PORTS: u16 = 1024;

impl Machines {
    /// Machines whose members have no route to the clients; `None` as in [`Machines::new`].
    fn without_routes(family: Family) -> Option<Self> {
        let machines = Machines::new(family)?;
        machines.remove_routes();
        Some(machines)
    }

    /// Checks that the kernel alone has had the datagrams.
    fn check_nothing_is_left_to_the_proxy(&self, balancer: &Balancer) {
        let packets = self.forwarded(balancer)["packets"].clone();
        for name in [
            "odd",
            "dropped",
            "proxied_session",
            "proxied_table",
            "proxied_route",
        ] {
            assert_eq!(packets[name], 0, "{name}: {packets}");
        }
    }
}

fn check_questions_of_one_port_go_to_all_servers(family: Family) {
    let Some(machines) = Machines::without_routes(family) else {
        return;
    };
    let _servers = [2, 3, 4].map(|last| Dns::start(&machines, last));
    let Some(balancer) = machines.start_udp_balancer("kernel", &[2, 3, 4], ANSWERED) else {
        return;
    };
    assert_eq!(machines.state(&balancer), "kernel");
    // A port that is free: dig binds it anew for each question.
    let port = machines.open_client().local_addr().unwrap().port();
    let dig = |mut command: Command, server: SocketAddr| {
        command.args([
            &format!("@{}", server.ip()),
            "-p",
            &server.port().to_string(),
        ]);
        command.args(["who.example", "+noall", "+answer", "+tries=6", "+time=5"]);
        let output = command.output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        // dig tells a second try, too.
        let records = text.lines().filter(|line| !line.starts_with(';'));
        records.collect::<String>()
    };
    let mut expected = BTreeSet::new();
    for last in [2, 3, 4] {
        let server = family.member(last);
        wait_until("the server answers", || {
            let answer = dig(machines.pair.back.command("dig"), server);
            let is_there = answer.contains(&format!("192.0.2.{last}"));
            if is_there {
                expected.insert(answer);
            }
            is_there
        });
    }
    assert_eq!(expected.len(), 3, "each server has another answer");
    let from = format!("{}#{port}", family.client());
    let mut answers: BTreeMap<String, u32> = BTreeMap::new();
    for _ in 0..9 {
        let mut command = machines.clients.command("dig");
        command.args(["-b", &from]);
        *answers.entry(dig(command, family.rule())).or_default() += 1;
    }
    // The bytes are those that the servers send, and they have turns.
    assert_eq!(answers.keys().cloned().collect::<BTreeSet<_>>(), expected);
    wait_until("the questions are counted", || {
        let now = machines.forwarded(&balancer);
        let rule = &now["rule_counts"][0];
        rule["begun"].as_u64() >= Some(9) && rule["open"] == 0
    });
    machines.wait_for_ends(&balancer);
    machines.check_nothing_is_left_to_the_proxy(&balancer);
    wait_until("the questions are counted at all members", || {
        [2, 3, 4]
            .iter()
            .all(|last| machines.count(&balancer, *last, "picks") >= 2)
    });
}

#[test]
fn s41_questions_of_one_port_go_to_all_dns_servers() {
    if !are_installed(&["dnsmasq", "dig"]) {
        return;
    }
    BOTH.into_iter()
        .for_each(check_questions_of_one_port_go_to_all_servers);
}

fn check_datagrams_of_all_sizes_have_ports_of_their_own(family: Family) {
    let Some(machines) = Machines::without_routes(family) else {
        return;
    };
    for last in [2, 3, 4] {
        machines.start_udp_member(last);
    }
    let more = format!("{ANSWERED}\n[access_log]\noutput = \"./access.log\"");
    let Some(balancer) = machines.start_udp_balancer("kernel", &[2, 3, 4], &more) else {
        return;
    };
    let socket = machines.open_client();
    let mut seen = BTreeSet::new();
    let mut served = BTreeSet::new();
    // Some are longer than a packet, and so are the answers.
    for length in [0, 1, 33, 1000, 1400, 1500, 3000, 9000, 20_000] {
        let Answer { last, seen: from } = ask(&socket, length).unwrap();
        assert_eq!(from.ip(), family.balancer());
        assert!(from.port() > 60_999, "{from}");
        served.insert(last);
        assert!(
            seen.insert((last, from)),
            "a port is used again at once: {from}"
        );
    }
    assert_eq!(served.len(), 3, "turns: {seen:?}");
    machines.wait_for_ends(&balancer);
    machines.check_nothing_is_left_to_the_proxy(&balancer);
    let record = wait_for_record(&balancer, socket.local_addr().unwrap());
    assert_eq!(record["end"], "complete", "{record}");
    assert!(record["response_ms"].as_f64() > Some(0.0), "{record}");
    wait_until("tickets end with their datagrams", || {
        let group = machines.admin_json(&balancer, "/v1/status")["groups"][0].clone();
        let members = group["members"].as_array().unwrap();
        members.iter().all(|member| member["in_flight"] == 0)
    });
}

#[test]
fn s41_single_datagrams_of_all_sizes_have_ports_of_their_own() {
    BOTH.into_iter()
        .for_each(check_datagrams_of_all_sizes_have_ports_of_their_own);
}

#[test]
fn s41_a_member_that_answers_no_single_datagrams_is_ejected() {
    let Some(machines) = Machines::without_routes(Family::V4) else {
        return;
    };
    for last in [2, 3] {
        machines.start_udp_member(last);
    }
    machines.silence_member(4);
    let more = "return_path = \"nat\"\nstrategy = \"round_robin\"\n\
                udp = { session = \"datagram\", answer_timeout = \"300ms\" }\n\
                ejection = { time = \"30m\", max_time = \"30m\" }\n\
                [access_log]\noutput = \"./access.log\"";
    let Some(balancer) = machines.start_udp_balancer("kernel", &[2, 3, 4], more) else {
        return;
    };
    let load = machines.open_client();
    let silent = machines.family.member(4);
    wait_until("the silent member is ejected", || {
        for number in 0..6u8 {
            load.send(&[number]).unwrap();
        }
        let front = &machines.pair.front;
        front.run_inside(|| balancer.member_status("db", silent))["state"] == "ejected"
    });
    // The status is up to a second old.
    wait_until("the silence is counted", || {
        machines.count(&balancer, 4, "refused") >= 1
    });
    let socket = machines.open_client();
    for length in 0..30 {
        assert_ne!(ask(&socket, length).unwrap().last, 4);
    }
    wait_until("a record says which member was silent", || {
        let text = fs::read_to_string(balancer.folder().join("access.log")).unwrap_or_default();
        let mut lines = text.lines();
        lines.any(|line| line.contains("member_timeout") && line.contains(&silent.to_string()))
    });
    machines.wait_for_ends(&balancer);
}

/// Client that asks many questions at once.
struct Asker {
    socket: UdpSocket,
    name: &'static str,
    number: u32,
    waiting: BTreeSet<u32>,
    /// Senders as members have seen them, with the number of questions.
    seen: BTreeMap<SocketAddr, u32>,
}

impl Asker {
    fn new(machines: &Machines, name: &'static str) -> Self {
        Asker {
            socket: machines.open_client(),
            name,
            number: 0,
            waiting: BTreeSet::new(),
            seen: BTreeMap::new(),
        }
    }

    fn ask(&mut self) {
        self.number += 1;
        self.waiting.insert(self.number);
        let question = format!("{} {}", self.name, self.number);
        self.socket.send(question.as_bytes()).unwrap();
    }

    /// Takes answers until all are here, or none comes: each must be this client's, and come once.
    fn take_answers(&mut self) {
        let mut space = [0; 200];
        while !self.waiting.is_empty() {
            let Ok(length) = self.socket.recv(&mut space) else {
                return;
            };
            let text = std::str::from_utf8(&space[..length]).unwrap();
            let words: Vec<_> = text.split_whitespace().collect();
            let [_, seen, name, number] = words[..] else {
                panic!("{text}");
            };
            assert_eq!(name, self.name, "another client's answer: {text}");
            let number: u32 = number.parse().unwrap();
            assert!(self.waiting.remove(&number), "not waited for: {text}");
            *self.seen.entry(seen.parse().unwrap()).or_default() += 1;
        }
    }
}

#[test]
fn s41_ports_of_single_datagrams_are_used_again_and_answers_reach_who_has_asked() {
    let family = Family::V4;
    let Some(machines) = Machines::without_routes(family) else {
        return;
    };
    machines.pair.front.run_inside(|| {
        let range = format!("32768 {}", u16::MAX - FEW_PORTS);
        fs::write("/proc/sys/net/ipv4/ip_local_port_range", range).unwrap();
    });
    machines.start_udp_member(2);
    let Some(balancer) = machines.start_udp_balancer("kernel", &[2], ANSWERED) else {
        return;
    };
    let mut clients = ["a", "b"].map(|name| Asker::new(&machines, name));
    let is_of_kernel = |seen: &SocketAddr| seen.port() > u16::MAX - FEW_PORTS;
    // What finds no port is the proxy's.
    wait_until("all ports have come again", || {
        for _ in 0..60 {
            clients.iter_mut().for_each(Asker::ask);
        }
        clients.iter_mut().for_each(Asker::take_answers);
        let seen = clients.iter().flat_map(|client| &client.seen);
        let by_kernel = seen.filter(|(from, _)| is_of_kernel(from));
        let count: u32 = by_kernel.map(|(_, count)| count).sum();
        count > 3 * u32::from(FEW_PORTS)
    });
    let seen: BTreeSet<_> = clients
        .iter()
        .flat_map(|client| client.seen.keys())
        .collect();
    assert!(
        seen.iter().all(|from| from.ip() == family.balancer()),
        "{seen:?}"
    );
    let asked: u64 = clients.iter().map(|client| u64::from(client.number)).sum();
    let lost: usize = clients.iter().map(|client| client.waiting.len()).sum();
    assert!(lost as u64 <= asked / 50, "{lost} of {asked}");
    wait_until("the datagrams are counted", || {
        machines.count(&balancer, 2, "picks") > 3 * u64::from(FEW_PORTS)
    });
    machines.wait_for_ends(&balancer);
    assert_eq!(machines.count_packets(&balancer, "proxied_session"), 0);
}

#[test]
fn s41_answers_to_single_datagrams_arrive_while_no_process_runs() {
    for family in BOTH {
        let Some(machines) = Machines::without_routes(family) else {
            return;
        };
        // A member that answers when it is told to.
        let at = family.member(2);
        let member = machines
            .pair
            .back
            .run_inside(|| UdpSocket::bind(at).unwrap());
        member.set_read_timeout(Some(HANG)).unwrap();
        let Some(mut balancer) = machines.start_udp_balancer("kernel", &[2], ANSWERED) else {
            return;
        };
        let receive = || {
            let mut space = [0; 100];
            let (length, from) = member.recv_from(&mut space).unwrap();
            (space[..length].to_vec(), from)
        };
        let client = machines.open_client();
        client.set_read_timeout(Some(HANG)).unwrap();
        client.send(b"first").unwrap();
        let first = receive();
        balancer.signal(Signal::KILL);
        balancer.wait_for_end();
        client.send(b"second").unwrap();
        let second = receive();
        assert_ne!(first.1, second.1, "each has a port");
        let mut space = [0; 100];
        let mut answer = |(text, from): &(Vec<u8>, SocketAddr)| {
            member.send_to(&text.repeat(2), from).unwrap();
            let length = client.recv(&mut space).unwrap();
            assert_eq!(space[..length], text.repeat(2));
        };
        answer(&first);
        let balancer = machines.start_udp_balancer("kernel", &[2], ANSWERED);
        let balancer = balancer.unwrap();
        wait_until("the next process counts the open one", || {
            machines.count(&balancer, 2, "in_flight") == 1
        });
        answer(&second);
        client.send(b"third").unwrap();
        answer(&receive());
        machines.wait_for_ends(&balancer);
        // Another answer has no receiver.
        member.send_to(b"again", first.1).unwrap();
        wait_until("it is dropped", || {
            machines.count_packets(&balancer, "late_answer") == 1
        });
        machines.check_nothing_is_left_to_the_proxy(&balancer);
    }
}

fn check_messages_go_to_members_that_see_the_clients(family: Family) {
    let Some(machines) = Machines::new(family) else {
        return;
    };
    let (teller, told) = mpsc::channel();
    for last in [2, 3] {
        let at = family.member(last);
        let socket = machines
            .pair
            .back
            .run_inside(|| UdpSocket::bind(at).unwrap());
        let teller = teller.clone();
        thread::spawn(move || {
            let mut space = [0; 2000];
            while let Ok((length, from)) = socket.recv_from(&mut space) {
                let text = String::from_utf8_lossy(&space[..length]).into_owned();
                if teller.send((last, from, text)).is_err() {
                    return;
                }
            }
        });
    }
    let more = "strategy = \"round_robin\"\n\
                udp = { session = \"datagram\", expect_answer = false }\n\
                [access_log]\noutput = \"./access.log\"";
    let Some(balancer) = machines.start_udp_balancer("kernel", &[2, 3], more) else {
        return;
    };
    assert_eq!(machines.state(&balancer), "kernel");
    let rule = family.rule();
    let socket = machines.open_client();
    let count = 20;
    for number in 0..count {
        socket.send(format!("message {number}").as_bytes()).unwrap();
    }
    let mut logger = machines.clients.command("logger");
    logger.args(["--udp", "--server", &rule.ip().to_string()]);
    logger.args(["--port", &rule.port().to_string(), "from a program"]);
    let has_logger = are_installed(&["logger"]);
    if has_logger {
        assert!(logger.status().unwrap().success());
    }
    let all = count + u64::from(has_logger);
    let mut receivers: BTreeMap<u8, u64> = BTreeMap::new();
    for _ in 0..all {
        let (last, from, text) = told.recv_timeout(HANG).unwrap();
        match text.contains("from a program") {
            true => assert_eq!(from.ip(), family.client(), "{text}"),
            false => assert_eq!(from, socket.local_addr().unwrap(), "{text}"),
        }
        *receivers.entry(last).or_default() += 1;
    }
    assert_eq!(receivers.values().min(), Some(&(all / 2)), "turns");
    wait_until("the messages are counted", || {
        let now = machines.forwarded(&balancer);
        let rule = &now["rule_counts"][0];
        rule["begun"] == all && rule["datagrams_in"] == all && rule["open"] == 0
    });
    let now = machines.forwarded(&balancer);
    assert_eq!(now["sessions"], 0, "{now}");
    machines.wait_for_ends(&balancer);
    machines.check_nothing_is_left_to_the_proxy(&balancer);
    let record = wait_for_record(&balancer, socket.local_addr().unwrap());
    assert_eq!(record["end"], "complete", "{record}");
}

#[test]
fn s41_messages_go_to_members_that_see_the_clients() {
    BOTH.into_iter()
        .for_each(check_messages_go_to_members_that_see_the_clients);
}
