//! Clients of QUIC whose address changes, before servers of QUIC: the kernel has their sessions.

use evenkeel_e2e::quic::QuicPeer;

use super::*;

/// Another address of the clients.
pub(super) fn other_address(family: Family) -> IpAddr {
    family.choose("10.78.0.9", "fd78::9").parse().unwrap()
}

impl Machines {
    fn start_quic_server(&self, name: &str, last: u8) -> Option<QuicPeer> {
        let at = self.family.member(last);
        let server = QuicPeer::server(name, at, Some(&self.pair.back));
        server.map(|(server, _)| server)
    }

    fn start_quic_client(&self) -> QuicPeer {
        QuicPeer::client(self.family.rule(), Some(&self.clients))
    }

    /// Gives the clients another address beside the one that they have.
    fn add_client_address(&self) {
        let clients = self.clients.path();
        let name = clients.file_name().unwrap().to_str().unwrap();
        let (ip, end) = (
            other_address(self.family),
            self.family.choose("/24", "/64 nodad"),
        );
        run_ip(&format!("-n {name} addr add {ip}{end} dev client0"));
    }

    pub(super) fn count_packets(&self, balancer: &Balancer, name: &str) -> u64 {
        self.forwarded(balancer)["packets"][name].as_u64().unwrap()
    }
}

/// Changes the client's port, and its address and back; the same member answers.
pub(super) fn move_client(client: &mut QuicPeer, family: Family, first: &str) {
    for ip in [None, Some(other_address(family)), None] {
        client.rebind(ip);
        assert_eq!(client.tell("ask x"), first);
    }
}

fn check_clients_of_quic_stay_with_their_member(family: Family, path: &str) {
    let Some(machines) = Machines::new(family) else {
        return;
    };
    if path == "nat" {
        machines.remove_routes();
    }
    machines.add_client_address();
    let Some(_first) = machines.start_quic_server("a", 2) else {
        return;
    };
    let _second = machines.start_quic_server("b", 3).unwrap();
    let config = |idle: &str| {
        let more = format!(
            "strategy = \"round_robin\"\nreturn_path = \"{path}\"\nidle_timeout = \"{idle}\"\n\
             udp = {{ session = \"quic\" }}"
        );
        let config = machines.write_config("kernel", &[2, 3], &more);
        config.replace("protocol = \"tcp\"", "protocol = \"udp\"")
    };
    let start = || {
        let command = machines.pair.front.command(evenkeel_binary());
        machines.start_balancer_by(command, &config("600s"))
    };
    let Some(mut balancer) = start() else {
        return;
    };
    assert_eq!(machines.state(&balancer), "kernel");
    let mut clients = Vec::new();
    for _ in 0..4 {
        let mut client = machines.start_quic_client();
        let first = client.tell("ask x");
        move_client(&mut client, family, &first);
        assert_eq!(client.tell("bytes 300000"), "300000");
        clients.push((client, first));
    }
    let of_first = clients.iter().filter(|(_, first)| first == "a x").count();
    // A client that waits long for an answer may go to the next member.
    assert!((1..=3).contains(&of_first), "both serve: {of_first}");
    wait_until("the sessions of new addresses are counted", || {
        machines.count_packets(&balancer, "by_connection_id") >= 12
    });
    wait_until("the ids are counted", || {
        machines.forwarded(&balancer)["connection_ids"].as_u64() >= Some(4)
    });

    // Without the process, and with the next one.
    balancer.signal(Signal::KILL);
    balancer.wait_for_end();
    for (client, first) in &mut clients {
        move_client(client, family, first);
    }
    let balancer = start().unwrap();
    for (client, first) in &mut clients {
        move_client(client, family, first);
    }
    assert_eq!(machines.count_packets(&balancer, "proxied_session"), 0);
    assert_eq!(machines.count_packets(&balancer, "dropped"), 0);
    drop(clients);
    let front = &machines.pair.front;
    front.run_inside(|| balancer.reconfigure(&config("1s")));
    machines.wait_for_ends(&balancer);
    wait_until("ids go with their sessions", || {
        machines.forwarded(&balancer)["connection_ids"] == 0
    });
}

#[test]
fn s41_clients_of_quic_stay_with_their_member_when_their_address_changes() {
    for family in BOTH {
        for path in ["route", "nat"] {
            check_clients_of_quic_stay_with_their_member(family, path);
        }
    }
}

fn check_clients_of_quic_change_between_kernel_and_proxy(family: Family, path: &str) {
    let Some(machines) = Machines::new(family) else {
        return;
    };
    machines.add_client_address();
    let Some(_first) = machines.start_quic_server("a", 2) else {
        return;
    };
    let _second = machines.start_quic_server("b", 3).unwrap();
    let config = |forward: &str| {
        let path = match forward {
            "kernel" => format!("return_path = \"{path}\"\n"),
            _ => String::new(),
        };
        let more = format!(
            "{path}strategy = \"round_robin\"\nidle_timeout = \"600s\"\nudp = {{ session = \"quic\" }}"
        );
        let config = machines.write_config(forward, &[2, 3], &more);
        config.replace("protocol = \"tcp\"", "protocol = \"udp\"")
    };
    let command = machines.pair.front.command(evenkeel_binary());
    let Some(balancer) = machines.start_balancer_by(command, &config("kernel")) else {
        return;
    };
    assert_eq!(machines.state(&balancer), "kernel");
    let begin = || {
        let mut client = machines.start_quic_client();
        let first = client.tell("ask x");
        (client, first)
    };
    let mut clients: Vec<_> = (0..4).map(|_| begin()).collect();
    let of_first = clients.iter().filter(|(_, first)| first == "a x").count();
    // A client that waits long for an answer may go to the next member.
    assert!((1..=3).contains(&of_first), "both serve: {of_first}");
    // First the proxy has no session of these clients, and asks the kernel for their ids. Then clients of the proxy come to the
    // kernel with addresses that nobody knows.
    for forward in ["proxy", "kernel", "proxy", "kernel"] {
        let front = &machines.pair.front;
        front.run_inside(|| balancer.reconfigure(&config(forward)));
        wait_until("the rule is where it is to be", || {
            let status = machines.admin_json(&balancer, "/v1/status");
            let state = status["rules"][0]["forward"].as_str();
            state == (forward == "kernel").then_some("kernel")
        });
        for (client, first) in &mut clients {
            assert_eq!(client.tell("ask x"), *first, "{forward}");
        }
        // Clients whose ids only the proxy knows, or only the kernel, when the rule changes.
        clients.extend((0..2).map(|_| begin()));
        for (client, first) in &mut clients {
            move_client(client, family, first);
            assert_eq!(client.tell("bytes 300000"), "300000");
        }
    }
    wait_until("the sessions of new addresses are counted", || {
        machines.count_packets(&balancer, "by_connection_id") >= 24
    });
}

#[test]
fn s41_clients_of_quic_stay_with_their_member_when_the_rule_changes_between_kernel_and_proxy() {
    for (family, path) in [(Family::V4, "nat"), (Family::V6, "route")] {
        check_clients_of_quic_change_between_kernel_and_proxy(family, path);
    }
}
