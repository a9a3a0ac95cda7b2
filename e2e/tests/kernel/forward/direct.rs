//! Members that have the rule's address and answer clients themselves, in a network with clients and the balancer.

use std::net::UdpSocket;

use super::*;

/// Port of the rule and of the members.
const SAME_PORT: u16 = 7000;

/// Interface of each machine.
const LINK: &str = "link0";

/// Memory of the command that lets a member receive packets.
const MEMORY: &str = "/run/evenkeel-receive";

/// Last bytes of the addresses of members.
pub(super) const MEMBERS: [u8; 2] = [12, 13];

/// Machines at a switch.
pub(super) struct Lan {
    pub(super) family: Family,
    /// Gone last, as the other ends of all cables are there.
    _switch: Namespace,
    pub(super) clients: Namespace,
    pub(super) front: Namespace,
    pub(super) members: Vec<Namespace>,
}

fn find_name(namespace: &Namespace) -> String {
    let path = namespace.path();
    path.file_name().unwrap().to_str().unwrap().to_owned()
}

/// Last byte of the address of the rule.
const RULE: u8 = 100;

/// Address in the network, with this number in its last byte. The balancer has 1, and clients have 2.
pub(super) fn find_address(family: Family, last: u8) -> IpAddr {
    let (v4, v6) = (format!("10.78.0.{last}"), format!("fd78::{last:x}"));
    family.choose(v4, v6).parse().unwrap()
}

impl Lan {
    /// None if this machine does not let us, which is said.
    pub(super) fn new(family: Family) -> Option<Self> {
        let make = Namespace::with_loopback;
        let (switch, clients, front) = (make()?, make()?, make()?);
        let members = MEMBERS.map(|_| make().unwrap());
        let switch_name = find_name(&switch);
        run_ip(&format!("-n {switch_name} link add br0 type bridge"));
        run_ip(&format!("-n {switch_name} link set br0 up"));
        let machines = [(&front, 1), (&clients, 2)];
        let machines = machines.into_iter().chain(members.iter().zip(MEMBERS));
        for (namespace, last) in machines {
            let name = find_name(namespace);
            run_ip(&format!(
                "link add {LINK} netns {name} type veth peer name port{last} netns {switch_name}"
            ));
            run_ip(&format!(
                "-n {switch_name} link set port{last} master br0 up"
            ));
            for family in BOTH {
                let end = family.choose("/24", "/64 nodad");
                let ip = find_address(family, last);
                run_ip(&format!("-n {name} addr add {ip}{end} dev {LINK}"));
            }
            run_ip(&format!("-n {name} link set {LINK} up"));
        }
        let front_name = find_name(&front);
        for family in BOTH {
            // Connections of the balancer have its other address.
            let end = family.choose("/32", "/128 nodad preferred_lft 0");
            let rule = find_address(family, RULE);
            run_ip(&format!("-n {front_name} addr add {rule}{end} dev {LINK}"));
        }
        front.run_inside(|| {
            for family in BOTH {
                fs::write(format!("/proc/sys/{}", family.setting()), "1").unwrap();
            }
        });
        let machines = [(&front, 1), (&clients, 2)];
        for (namespace, last) in machines.into_iter().chain(members.iter().zip(MEMBERS)) {
            for family in BOTH {
                let address = SocketAddr::new(find_address(family, last), 0);
                // An address of IPv6 is there a moment after its interface.
                wait_until("the machine has its address", || {
                    namespace.run_inside(|| UdpSocket::bind(address).is_ok())
                });
            }
        }
        Some(Lan {
            family,
            _switch: switch,
            clients,
            front,
            members: members.into(),
        })
    }

    pub(super) fn rule(&self) -> SocketAddr {
        SocketAddr::new(find_address(self.family, RULE), SAME_PORT)
    }

    pub(super) fn member(&self, last: u8) -> SocketAddr {
        SocketAddr::new(find_address(self.family, last), SAME_PORT)
    }

    /// Runs `evenkeel kernel` at a member. Output, or errors.
    fn run_at(&self, member: usize, words: &[&str]) -> Result<String, String> {
        let mut command = self.members[member].command(evenkeel_binary());
        let output = command.arg("kernel").args(words).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        if output.status.success() {
            Ok(text(output.stdout))
        } else {
            Err(text(output.stderr))
        }
    }

    /// Lets a member receive packets to the rule's address.
    pub(super) fn receive_at(&self, member: usize) {
        let address = self.rule().ip().to_string();
        let told = self
            .run_at(member, &["attach", "--receive", &address])
            .unwrap();
        assert!(told.contains(&address), "{told}");
    }

    /// Starts a member's server for all addresses.
    fn start_server(&self, member: usize) {
        let any = self.family.choose("0.0.0.0:7000", "[::]:7000");
        let listener = self.members[member].run_inside(|| TcpListener::bind(any).unwrap());
        serve_echo(listener, Duration::ZERO);
    }

    pub(super) fn write_config(&self, members: &[SocketAddr], more: &str) -> String {
        let quote = |address: &SocketAddr| format!("\"{address}\"");
        let members: Vec<_> = members.iter().map(quote).collect();
        format!(
            "workers = 1\n[admin]\nlisten = \"127.0.0.1:0\"\n[rule.db]\nlisten = \"{}\"\nprotocol = \"tcp\"\n\
             forward = \"kernel\"\nreturn_path = \"direct\"\nmembers = [{}]\nhealth_check = false\n\
             slow_start = \"0s\"\n{more}\n",
            self.rule(),
            members.join(", ")
        )
    }

    /// A balancer; `None` if it is built without the programs, which is said.
    fn start_balancer(&self, members: &[SocketAddr], more: &str) -> Option<Balancer> {
        self.start_balancer_with(&self.write_config(members, more))
    }

    /// A balancer with a configuration; `None` likewise.
    pub(super) fn start_balancer_with(&self, config: &str) -> Option<Balancer> {
        let balancer = Balancer::start_by(config, |folder| {
            let mut command = self.front.command(evenkeel_binary());
            command.current_dir(folder.path());
            command
        });
        wait_until("the rule is forwarded, or not", || {
            self.state(&balancer) != "proxy"
        });
        let state = self.state(&balancer);
        if state.contains("built without") {
            report_skipped(&state);
            return None;
        }
        Some(balancer)
    }

    pub(super) fn ask(&self, balancer: &Balancer, path: &str) -> Value {
        self.front.run_inside(|| balancer.admin_json(path))
    }

    pub(super) fn state(&self, balancer: &Balancer) -> String {
        let status = self.ask(balancer, "/v1/status");
        status["rules"][0]["forward"]
            .as_str()
            .unwrap_or("proxy")
            .to_owned()
    }

    pub(super) fn count(&self, balancer: &Balancer, last: u8, name: &str) -> u64 {
        count(&self.ask(balancer, "/v1/forward"), self.member(last), name)
    }

    /// A connection, with the client's address as the member sees it.
    fn connect(&self) -> (TcpStream, IpAddr) {
        let to = self.rule();
        let stream = self
            .clients
            .run_inside(|| TcpStream::connect_timeout(&to, HANG));
        let mut stream = stream.unwrap();
        stream.set_read_timeout(Some(HANG)).unwrap();
        let mut line = [0; 16];
        stream.read_exact(&mut line).unwrap();
        let text = std::str::from_utf8(&line).unwrap().trim();
        (stream, text.parse().unwrap())
    }

    /// Bytes that have come to the balancer's machine from the network.
    pub(super) fn count_received(&self) -> u64 {
        let text = self
            .front
            .run_inside(|| fs::read_to_string("/proc/thread-self/net/dev").unwrap());
        let line = text
            .lines()
            .find_map(|line| line.trim().strip_prefix("link0:"));
        let bytes = line.unwrap().split_whitespace().next().unwrap();
        bytes.parse().unwrap()
    }

    /// Address at which clients have found the neighbour with an address; `None` if nobody has answered.
    fn find_neighbour(&self, ip: IpAddr) -> Option<String> {
        let mut found = None;
        run_ip(&format!(
            "-n {} neigh flush dev {LINK}",
            find_name(&self.clients)
        ));
        // Once only: a packet to somebody who was not found begins to look anew.
        self.clients.run_inside(|| {
            let any = self.family.choose("0.0.0.0:0", "[::]:0");
            let socket = UdpSocket::bind(any).unwrap();
            socket.send_to(b"?", SocketAddr::new(ip, 9)).unwrap();
        });
        wait_until("somebody answers, or nobody", || {
            let mut command = self.clients.command("ip");
            let output = command
                .args(["neigh", "show", "to", &ip.to_string(), "dev", LINK])
                .output()
                .unwrap();
            let text = String::from_utf8(output.stdout).unwrap();
            let words: Vec<_> = text.split_whitespace().map(str::to_owned).collect();
            let at = words.iter().position(|word| word == "lladdr");
            found = at.and_then(|at| words.get(at + 1).cloned());
            found.is_some() || words.iter().any(|word| word == "FAILED")
        });
        found
    }
}

impl Drop for Lan {
    fn drop(&mut self) {
        for member in &self.members {
            let number = rustix::fs::stat(member.path()).unwrap().st_ino;
            let _ = fs::remove_file(format!("{MEMORY}/{number}"));
        }
    }
}

fn check_members_answer_clients_themselves(family: Family) {
    let Some(lan) = Lan::new(family) else {
        return;
    };
    for member in [0, 1] {
        lan.receive_at(member);
        lan.start_server(member);
    }
    let members = MEMBERS.map(|last| lan.member(last));
    let more = "strategy = \"round_robin\"\n[access_log]\noutput = \"./access.log\"";
    let Some(mut balancer) = lan.start_balancer(&members, more) else {
        return;
    };
    assert_eq!(lan.state(&balancer), "kernel");
    let client = find_address(family, 2);
    let before = lan.count_received();
    let mut old = Vec::new();
    for _ in 0..4 {
        let (mut stream, seen) = lan.connect();
        assert_eq!(seen, client, "members see the client");
        echo(&mut stream, 1000);
        old.push(stream);
    }
    // What a client only gets does not pass the balancer.
    let length: u64 = 8 << 20;
    old[0]
        .write_all(format!("send {length}\n").as_bytes())
        .unwrap();
    let mut got = Vec::new();
    old[0]
        .try_clone()
        .unwrap()
        .take(length)
        .read_to_end(&mut got)
        .unwrap();
    assert!(got.len() as u64 == length && got.iter().all(|byte| *byte == b'x'));
    let received = lan.count_received() - before;
    assert!(
        received < length / 4,
        "{received} bytes have come to the balancer"
    );
    wait_until("the status has the connections", || {
        MEMBERS.map(|last| lan.count(&balancer, last, "in_flight")) == [2, 2]
    });
    let now = lan.ask(&balancer, "/v1/forward");
    assert_eq!(now["packets"]["to_client"], 0, "{now}");
    assert_eq!(now["packets"]["dropped"], 0, "{now}");
    assert_eq!(now["members"][0]["first_byte_ms"], Value::Null, "{now}");

    balancer.signal(Signal::KILL);
    balancer.wait_for_end();
    old.iter_mut().for_each(|stream| echo(stream, 50_000));
    let (mut between, seen) = lan.connect();
    assert_eq!(seen, client);
    echo(&mut between, 5000);
    old.push(between);
    let balancer = lan.start_balancer(&members, more).unwrap();
    old.iter_mut().for_each(|stream| echo(stream, 50_000));
    wait_until("the next process counts the connections", || {
        let open = MEMBERS.map(|last| lan.count(&balancer, last, "in_flight"));
        open.iter().sum::<u64>() == 5
    });

    // A member in maintenance gets no new connections, and keeps the others.
    let name = lan.member(12).to_string();
    lan.front
        .run_inside(|| balancer.run_ctl(&format!("maintenance db {name}")))
        .unwrap();
    let picks = |last| lan.count(&balancer, last, "picks");
    wait_until("the kernel knows of the maintenance", || {
        let now = lan.ask(&balancer, "/v1/forward");
        now["members"][0]["eligible"] == false
    });
    let (drained, served) = (picks(12), picks(13));
    for _ in 0..2 {
        let (mut stream, _) = lan.connect();
        let at = stream.local_addr().unwrap();
        echo(&mut stream, 3000);
        drop(stream);
        let record = wait_for_record(&balancer, at);
        assert_eq!(record["member"], lan.member(13).to_string(), "{record}");
        assert_eq!(record["end"], "complete", "{record}");
        assert!(record["bytes_received"].as_u64() >= Some(3000), "{record}");
        assert!(record["bytes_sent"].as_u64() >= Some(3016), "{record}");
        assert!(record["connect_ms"].as_f64().is_some(), "{record}");
    }
    wait_until("the status has the connections", || picks(13) == served + 2);
    assert_eq!(picks(12), drained);
    old.iter_mut().for_each(|stream| echo(stream, 5000));
    drop(old);
    wait_until("all connections are over", || {
        MEMBERS.map(|last| lan.count(&balancer, last, "in_flight")) == [0, 0]
    });
}

#[test]
fn s41_members_answer_clients_themselves() {
    BOTH.into_iter()
        .for_each(check_members_answer_clients_themselves);
}

fn check_direct_members_that_do_not_receive_are_replaced(family: Family) {
    let Some(lan) = Lan::new(family) else {
        return;
    };
    lan.receive_at(0);
    (0..2).for_each(|member| lan.start_server(member));
    let members = MEMBERS.map(|last| lan.member(last));
    let Some(balancer) = lan.start_balancer(&members, "strategy = \"round_robin\"") else {
        return;
    };
    for _ in 0..2 {
        let (mut stream, seen) = lan.connect();
        assert_eq!(seen, find_address(family, 2));
        echo(&mut stream, 5000);
    }
    wait_until("the status has the failure", || {
        lan.count(&balancer, 13, "refused") >= 1 && lan.count(&balancer, 13, "in_flight") == 0
    });
}

#[test]
fn s41_direct_members_that_do_not_receive_are_replaced() {
    BOTH.into_iter()
        .for_each(check_direct_members_that_do_not_receive_are_replaced);
}

fn check_the_proxy_serves_direct_rules_with_a_router_before_members(family: Family) {
    let Some(lan) = Lan::new(family) else {
        return;
    };
    lan.receive_at(0);
    lan.start_server(0);
    let (front, member) = (find_name(&lan.front), find_name(&lan.members[0]));
    let far: IpAddr = family.choose("10.99.0.9", "fd99::9").parse().unwrap();
    let (version, router) = (family.choose("-4", "-6"), find_address(family, 12));
    run_ip(&format!("-n {member} addr add {far} dev lo"));
    run_ip(&format!(
        "-n {front} {version} route add {far} via {router}"
    ));
    let far = SocketAddr::new(far, SAME_PORT);
    let near = lan.member(12);
    let Some(balancer) = lan.start_balancer(&[near, far], "") else {
        return;
    };
    let state = lan.state(&balancer);
    assert!(
        state.starts_with("proxy (") && state.contains(&router.to_string()),
        "{state}"
    );
    balancer.wait_for_log("the proxy serves the rule");
    let (mut stream, seen) = lan.connect();
    assert_eq!(seen, find_address(family, 1), "members see the proxy");
    echo(&mut stream, 5000);
    let config = lan.write_config(&[near], "");
    // Members with the rule's address would drop what the balancer sends from there.
    let own = SocketAddr::new(find_address(family, 1), SAME_PORT);
    let shared = config.replace(&lan.rule().to_string(), &own.to_string());
    lan.front.run_inside(|| balancer.reconfigure(&shared));
    wait_until("the status has the other reason", || {
        lan.state(&balancer)
            .contains("Give the rule another address")
    });
    lan.front.run_inside(|| balancer.reconfigure(&config));
    wait_until("the kernel forwards", || lan.state(&balancer) == "kernel");
    wait_until("members see the client", || {
        let (mut next, seen) = lan.connect();
        echo(&mut next, 5000);
        seen == find_address(family, 2)
    });
    echo(&mut stream, 5000);
}

#[test]
fn s41_the_proxy_serves_direct_rules_with_a_router_before_members() {
    BOTH.into_iter()
        .for_each(check_the_proxy_serves_direct_rules_with_a_router_before_members);
}

/// Settings about ARP at a member.
fn read_settings(member: &Namespace) -> [String; 2] {
    ["arp_ignore", "arp_announce"].map(|name| {
        let path = format!("/proc/sys/net/ipv4/conf/all/{name}");
        member.run_inside(|| fs::read_to_string(path).unwrap().trim().to_owned())
    })
}

/// Addresses of a member's loopback interface.
fn list_addresses(member: &Namespace) -> String {
    let mut command = member.command("ip");
    let output = command.args(["-o", "addr", "show", "dev", "lo"]).output();
    String::from_utf8(output.unwrap().stdout).unwrap()
}

fn check_members_do_not_answer_for_the_address_of_the_rule(family: Family) {
    let Some(lan) = Lan::new(family) else {
        return;
    };
    // The balancer is away: nobody else has the address.
    let front = find_name(&lan.front);
    run_ip(&format!("-n {front} link set {LINK} down"));
    let before = read_settings(&lan.members[0]);
    let rule = lan.rule().ip();
    lan.receive_at(0);
    lan.receive_at(0);
    assert!(list_addresses(&lan.members[0]).contains(&format!("{rule}/")));
    assert_eq!(lan.find_neighbour(rule), None);
    assert!(lan.find_neighbour(find_address(family, 12)).is_some());
    // Own addresses of a member that are on other interfaces are answered for, as before.
    let member = find_name(&lan.members[0]);
    let other = find_address(family, 77);
    run_ip(&format!("-n {member} addr add {other} dev lo"));
    let answers = family == Family::V4;
    assert_eq!(lan.find_neighbour(other).is_some(), answers);

    let own = find_address(family, 12).to_string();
    let refused = lan.run_at(0, &["attach", "--receive", &own]).unwrap_err();
    assert!(refused.contains(LINK), "{refused}");
    let second = family.choose("10.78.0.201", "fd78::201");
    let both = format!("{rule},{second}");
    lan.run_at(0, &["attach", "--receive", &both]).unwrap();
    let refused = lan.run_at(0, &["detach", "--receive", &own]).unwrap_err();
    assert!(refused.contains("was not added"), "{refused}");
    let told = lan.run_at(0, &["detach", "--receive", second]).unwrap();
    assert!(
        told.contains(second) && !told.contains(&format!("{rule}\n")),
        "{told}"
    );
    assert!(list_addresses(&lan.members[0]).contains(&format!("{rule}/")));
    lan.run_at(0, &["detach", "--receive"]).unwrap();
    assert!(!list_addresses(&lan.members[0]).contains(&format!("{rule}/")));
    assert_eq!(read_settings(&lan.members[0]), before);
    let told = lan.run_at(0, &["detach", "--receive"]).unwrap();
    assert!(told.contains("nothing to remove"), "{told}");
    if family == Family::V4 {
        // With nothing but the address the member would answer.
        run_ip(&format!("-n {member} addr add {rule} dev lo"));
        assert!(lan.find_neighbour(rule).is_some());
    }
}

#[test]
fn s41_members_do_not_answer_for_the_address_of_the_rule() {
    BOTH.into_iter()
        .for_each(check_members_do_not_answer_for_the_address_of_the_rule);
}
