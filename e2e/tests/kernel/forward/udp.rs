//! UDP rules: sessions of the kernel, beside those of the proxy.

use std::net::UdpSocket;
use std::process::{Child, Stdio};

use evenkeel_e2e::process::are_installed;

use super::*;

/// Time after which a client asks again.
pub(super) const PATIENCE: Duration = Duration::from_secs(2);

/// Both return paths.
const RETURN_PATHS: [&str; 2] = ["route", "nat"];

/// Answer of a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct Answer {
    /// Last byte of the member's address.
    pub(in super::super) last: u8,
    /// Sender as the member sees it.
    pub(in super::super) seen: SocketAddr,
}

/// Asks for an echo of this many bytes; an error if an ICMP error comes back.
pub(in super::super) fn ask(socket: &UdpSocket, length: usize) -> Result<Answer, ErrorKind> {
    let mut rng = fastrand::Rng::with_seed(length as u64);
    let sent: Vec<u8> = (0..length).map(|_| rng.u8(..)).collect();
    let mut space = vec![0; 1 << 16];
    for _ in 0..10 {
        // An error of before is told here, too.
        if let Err(error) = socket.send(&sent) {
            return Err(error.kind());
        }
        match socket.recv(&mut space) {
            Ok(got) => {
                let answer = &space[..got];
                let end = answer.iter().position(|byte| *byte == b'\n').unwrap();
                assert_eq!(answer[end + 1..], sent, "the bytes come back");
                let head = std::str::from_utf8(&answer[..end]).unwrap();
                let (last, seen) = head.split_once(' ').unwrap();
                return Ok(Answer {
                    last: last.parse().unwrap(),
                    seen: seen.parse().unwrap(),
                });
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error.kind()),
        }
    }
    panic!("no answer in time")
}

/// Sends each datagram back, behind a line with the member's number and the sender as the member sees it.
pub(super) fn answer_datagrams(socket: UdpSocket, last: u8) {
    thread::spawn(move || {
        let mut space = vec![0; 1 << 16];
        while let Ok((length, from)) = socket.recv_from(&mut space) {
            let mut answer = format!("{last} {from}\n").into_bytes();
            answer.extend(&space[..length]);
            let _ = socket.send_to(&answer, from);
        }
    });
}

impl Machines {
    /// Configuration of a UDP rule.
    pub(super) fn write_udp_config(&self, forward: &str, members: &[u8], more: &str) -> String {
        let config = self.write_config(forward, members, more);
        config.replace("protocol = \"tcp\"", "protocol = \"udp\"")
    }

    pub(in super::super) fn start_udp_balancer(
        &self,
        forward: &str,
        members: &[u8],
        more: &str,
    ) -> Option<Balancer> {
        let config = self.write_udp_config(forward, members, more);
        let command = self.pair.front.command(evenkeel_binary());
        self.start_balancer_by(command, &config)
    }

    /// A member that sends each datagram back, behind a line with its number and the sender as the member sees it.
    pub(in super::super) fn start_udp_member(&self, last: u8) {
        let at = self.family.member(last);
        let socket = self.pair.back.run_inside(|| UdpSocket::bind(at).unwrap());
        answer_datagrams(socket, last);
    }

    /// A client of the rule with a separate port.
    pub(in super::super) fn open_client(&self) -> UdpSocket {
        let at = SocketAddr::new(self.family.client(), 0);
        let socket = self.clients.run_inside(|| UdpSocket::bind(at).unwrap());
        socket.connect(self.family.rule()).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket
    }

    /// Checks that a member has seen the client as the return path says.
    fn check_seen(&self, path: &str, socket: &UdpSocket, seen: SocketAddr) {
        if path == "route" {
            assert_eq!(seen, socket.local_addr().unwrap());
        } else {
            assert_eq!(seen.ip(), self.family.balancer());
            assert!(seen.port() > 60_999, "{seen}");
        }
    }

    fn reconfigure(&self, balancer: &Balancer, config: &str) {
        let front = &self.pair.front;
        front.run_inside(|| balancer.reconfigure(config));
    }

    fn sum_members(&self, balancer: &Balancer, name: &str) -> u64 {
        let members = self.forwarded(balancer)["members"].clone();
        let members = members.as_array().unwrap().iter();
        members.map(|member| member[name].as_u64().unwrap()).sum()
    }
}

fn check_sessions_outlive_the_process(family: Family, path: &str) {
    let Some(machines) = Machines::new(family) else {
        return;
    };
    if path == "nat" {
        machines.remove_routes();
    }
    for last in [2, 3] {
        machines.start_udp_member(last);
    }
    let more = |idle: u32| {
        format!(
            "strategy = \"round_robin\"\nreturn_path = \"{path}\"\nidle_timeout = \"{idle}s\"\n\
             [access_log]\noutput = \"./access.log\""
        )
    };
    let Some(mut balancer) = machines.start_udp_balancer("kernel", &[2, 3], &more(600)) else {
        return;
    };
    assert_eq!(machines.state(&balancer), "kernel");
    let mut clients = Vec::new();
    for _ in 0..4 {
        let socket = machines.open_client();
        let first = ask(&socket, 10).unwrap();
        machines.check_seen(path, &socket, first.seen);
        for length in [0, 1, 33, 1000, 1400] {
            assert_eq!(ask(&socket, length).unwrap(), first);
        }
        clients.push((socket, first));
    }
    let of_second = clients.iter().filter(|(_, first)| first.last == 2).count();
    assert_eq!(of_second, 2, "turns: {clients:?}");
    wait_until("the sessions are counted", || {
        let now = machines.forwarded(&balancer);
        now["sessions"] == 4 && now["rule_counts"][0]["begun"] == 4
    });
    assert_eq!(machines.sum_members(&balancer, "in_flight"), 4);

    balancer.signal(Signal::KILL);
    balancer.wait_for_end();
    for (socket, first) in &clients {
        assert_eq!(ask(socket, 500).unwrap(), *first);
    }
    let between = machines.open_client();
    let first = ask(&between, 7).unwrap();
    machines.check_seen(path, &between, first.seen);
    clients.push((between, first));
    let balancer = machines
        .start_udp_balancer("kernel", &[2, 3], &more(600))
        .unwrap();
    for (socket, first) in &clients {
        assert_eq!(ask(socket, 500).unwrap(), *first);
    }
    wait_until("the next process counts the sessions", || {
        machines.sum_members(&balancer, "in_flight") == 5
    });
    // A reload keeps sessions, and the new time limit ends them.
    machines.reconfigure(
        &balancer,
        &machines.write_udp_config("kernel", &[2, 3], &more(601)),
    );
    for (socket, first) in &clients {
        assert_eq!(ask(socket, 500).unwrap(), *first);
    }
    machines.reconfigure(
        &balancer,
        &machines.write_udp_config("kernel", &[2, 3], &more(1)),
    );
    machines.wait_for_ends(&balancer);
    let (socket, first) = &clients[4];
    let record = wait_for_record(&balancer, socket.local_addr().unwrap());
    assert_eq!(
        (&record["rule"], &record["end"]),
        (&"db".into(), &"complete".into())
    );
    let member = family.member(first.last).to_string();
    assert_eq!(record["member"], *member, "{record}");
    // Datagrams that a client has sent again count again.
    assert!(record["bytes_received"].as_u64() >= Some(1007), "{record}");
    wait_until("the rule has the datagrams", || {
        let now = machines.forwarded(&balancer);
        let rule = &now["rule_counts"][0];
        rule["open"] == 0 && rule["datagrams_in"].as_u64() >= Some(24 + 4 * 3 + 3)
    });
    let now = machines.forwarded(&balancer);
    assert_eq!(now["packets"]["dropped"], 0, "{now}");
    assert_eq!(now["packets"]["proxied_session"], 0, "{now}");
}

#[test]
fn s41_sessions_of_udp_outlive_the_process() {
    for family in BOTH {
        for path in RETURN_PATHS {
            check_sessions_outlive_the_process(family, path);
        }
    }
}

fn check_fragments_belong_to_the_session(family: Family, path: &str) {
    let Some(machines) = Machines::new(family) else {
        return;
    };
    if path == "nat" {
        machines.remove_routes();
    }
    for last in [2, 3] {
        machines.start_udp_member(last);
    }
    let more = format!("strategy = \"round_robin\"\nreturn_path = \"{path}\"");
    let Some(balancer) = machines.start_udp_balancer("kernel", &[2, 3], &more) else {
        return;
    };
    for _ in 0..4 {
        let socket = machines.open_client();
        // The last fragments have between one byte and as many as fit.
        let first = ask(&socket, 2000).unwrap();
        machines.check_seen(path, &socket, first.seen);
        for length in (2000..3500).step_by(53).chain([9, 20_000, 60_000]) {
            assert_eq!(ask(&socket, length).unwrap(), first, "{length} bytes");
        }
    }
    let packets = machines.forwarded(&balancer)["packets"].clone();
    assert_eq!(packets["odd"], 0, "{packets}");
    assert_eq!(packets["proxied_session"], 0, "{packets}");
    assert_eq!(packets["dropped"], 0, "{packets}");
}

#[test]
fn s41_fragments_of_datagrams_belong_to_the_session() {
    for family in BOTH {
        for path in RETURN_PATHS {
            check_fragments_belong_to_the_session(family, path);
        }
    }
}

fn check_a_client_of_a_member_that_refuses_goes_to_another_member(family: Family, path: &str) {
    let Some(machines) = Machines::new(family) else {
        return;
    };
    if path == "nat" {
        machines.remove_routes();
    }
    machines.start_udp_member(2);
    // Nobody listens at the third.
    let more = format!(
        "strategy = \"round_robin\"\nreturn_path = \"{path}\"\n[access_log]\noutput = \"./access.log\""
    );
    let Some(balancer) = machines.start_udp_balancer("kernel", &[2, 3], &more) else {
        return;
    };
    let mut refused = None;
    for _ in 0..4 {
        let socket = machines.open_client();
        let first = ask(&socket, 100);
        if first.is_err() {
            assert_eq!(first, Err(ErrorKind::ConnectionRefused));
            refused = Some(socket.local_addr().unwrap());
        }
        assert_eq!(ask(&socket, 200).unwrap().last, 2);
    }
    let Some(refused) = refused else {
        panic!("turns go to both members");
    };
    let record = wait_for_record(&balancer, refused);
    assert_eq!(record["end"], "member", "{record}");
    assert_eq!(record["member"], *family.member(3).to_string(), "{record}");
    wait_until("the failures count", || {
        machines.count(&balancer, 3, "refused") >= 1
            && machines.count(&balancer, 3, "in_flight") == 0
    });
}

#[test]
fn s41_a_client_of_a_udp_member_that_refuses_goes_to_another_member() {
    for family in BOTH {
        for path in RETURN_PATHS {
            check_a_client_of_a_member_that_refuses_goes_to_another_member(family, path);
        }
    }
}

#[test]
fn s41_sessions_of_udp_members_that_do_not_answer_are_errors() {
    let Some(machines) = Machines::new(Family::V4) else {
        return;
    };
    machines.silence_member(4);
    let more = "udp = { answer_timeout = \"500ms\" }\n[access_log]\noutput = \"./access.log\"";
    let Some(balancer) = machines.start_udp_balancer("kernel", &[4], more) else {
        return;
    };
    let socket = machines.open_client();
    socket.send(b"anybody?").unwrap();
    let record = wait_for_record(&balancer, socket.local_addr().unwrap());
    assert_eq!(record["end"], "member_timeout", "{record}");
    assert_eq!(record["bytes_received"], 8, "{record}");
    wait_until("the failure counts", || {
        machines.count(&balancer, 4, "refused") == 1
            && machines.count(&balancer, 4, "in_flight") == 0
    });
}

fn check_sessions_that_the_proxy_has_stay_with_the_proxy(session: &str) {
    let Some(machines) = Machines::new(Family::V4) else {
        return;
    };
    machines.start_udp_member(2);
    let more = format!("idle_timeout = \"600s\"\nudp = {{ session = \"{session}\" }}");
    let config = |forward| machines.write_udp_config(forward, &[2], &more);
    let Some(balancer) = machines.start_udp_balancer("kernel", &[2], &more) else {
        return;
    };
    machines.reconfigure(&balancer, &config("proxy"));
    let by_proxy = |answer: &Answer| answer.seen.ip() == machines.family.balancer();
    let mut old = None;
    wait_until("the proxy has a session", || {
        let socket = machines.open_client();
        let answer = ask(&socket, 10).unwrap();
        let is_of_proxy = by_proxy(&answer);
        old = Some((socket, answer));
        is_of_proxy
    });
    let (old, first) = old.unwrap();
    machines.reconfigure(&balancer, &config("kernel"));
    let mut new = None;
    wait_until("the kernel has new sessions", || {
        let socket = machines.open_client();
        let answer = ask(&socket, 10).unwrap();
        assert_eq!(ask(&old, 300).unwrap(), first);
        let is_of_kernel = !by_proxy(&answer);
        new = Some((socket, answer));
        is_of_kernel
    });
    // Datagrams in fragments go where the others go: the member sees one sender.
    let (new, answer) = new.unwrap();
    for length in [100, 5000, 100] {
        assert_eq!(ask(&new, length).unwrap(), answer);
        assert_eq!(ask(&old, length).unwrap(), first);
    }
    wait_until("the proxy's datagrams are counted", || {
        machines.forwarded(&balancer)["packets"]["proxied_session"].as_u64() >= Some(1)
    });
}

#[test]
fn s41_sessions_that_the_proxy_has_stay_with_the_proxy() {
    for session in ["client", "quic"] {
        check_sessions_that_the_proxy_has_stay_with_the_proxy(session);
    }
}

#[test]
fn s41_sessions_of_udp_stay_at_members_that_drain_and_leave_those_in_maintenance() {
    let Some(machines) = Machines::new(Family::V4) else {
        return;
    };
    for last in [2, 3] {
        machines.start_udp_member(last);
    }
    let Some(balancer) = machines.start_udp_balancer("kernel", &[2, 3], "") else {
        return;
    };
    let socket = machines.open_client();
    let first = ask(&socket, 10).unwrap();
    let member = machines.family.member(first.last);
    let command = |word: &str| {
        let words = format!("{word} db {member}");
        let front = &machines.pair.front;
        front.run_inside(|| balancer.run_ctl(&words).unwrap());
    };
    command("drain");
    wait_until("new sessions go to the other member", || {
        assert_eq!(ask(&socket, 10).unwrap(), first);
        ask(&machines.open_client(), 10).unwrap().last != first.last
    });
    command("maintenance");
    wait_until("the session goes to the other member", || {
        ask(&socket, 10).unwrap().last != first.last
    });
    assert_eq!(
        machines.forwarded(&balancer)["packets"]["proxied_session"],
        0
    );
}

/// A DNS server that knows one name: the address of the name says which server has answered.
pub(super) struct Dns(Child);

impl Dns {
    pub(super) fn start(machines: &Machines, last: u8) -> Self {
        let at = machines.family.member(last);
        Dns::start_at(&machines.pair.back, &[at], last)
    }

    /// Starts a server at addresses with the same port. The name has an address that ends with `last`.
    pub(super) fn start_at(namespace: &Namespace, addresses: &[SocketAddr], last: u8) -> Self {
        let mut command = namespace.command("dnsmasq");
        let ips: Vec<_> = addresses.iter().map(|at| at.ip().to_string()).collect();
        let (ips, port) = (ips.join(","), addresses[0].port());
        let arguments = [
            "--keep-in-foreground --conf-file=/dev/null --no-resolv --no-hosts --bind-interfaces --user=root --pid-file=",
            &format!("--listen-address={ips} --port={port}"),
            &format!("--address=/who.example/192.0.2.{last}"),
        ];
        command.args(arguments.join(" ").split(' '));
        command.stdout(Stdio::null()).stderr(Stdio::null());
        Dns(command.spawn().unwrap())
    }
}

impl Drop for Dns {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn check_dns_servers_answer_through_the_kernel(family: Family, path: &str) {
    let Some(machines) = Machines::new(family) else {
        return;
    };
    if path == "nat" {
        machines.remove_routes();
    }
    let _servers = [2, 3].map(|last| Dns::start(&machines, last));
    let more = format!("strategy = \"round_robin\"\nreturn_path = \"{path}\"");
    let Some(balancer) = machines.start_udp_balancer("kernel", &[2, 3], &more) else {
        return;
    };
    let rule = family.rule();
    let dig = || {
        let mut command = machines.clients.command("dig");
        command.args([&format!("@{}", rule.ip()), "-p", &rule.port().to_string()]);
        command.args(["who.example", "+short", "+tries=6", "+time=5"]);
        let output = command.output().unwrap();
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    let mut known = std::collections::BTreeSet::new();
    wait_until("both servers have answered", || {
        known.insert(dig());
        known.contains("192.0.2.2") && known.contains("192.0.2.3")
    });
    wait_until("the rule counts the sessions", || {
        machines.forwarded(&balancer)["rule_counts"][0]["begun"].as_u64() >= Some(2)
    });
}

#[test]
fn s41_dns_servers_answer_through_the_kernel() {
    if !are_installed(&["dnsmasq", "dig"]) {
        return;
    }
    for family in BOTH {
        for path in RETURN_PATHS {
            check_dns_servers_answer_through_the_kernel(family, path);
        }
    }
}
