//! Full NAT: members have no route to the clients.

use super::*;

impl Machines {
    /// Takes the members' routes to the clients.
    pub(super) fn remove_routes(&self) {
        let back = self.pair.back.path();
        let back = back.file_name().unwrap().to_str().unwrap();
        for version in ["-4", "-6"] {
            run_ip(&format!("-n {back} {version} route del default"));
        }
    }

    /// Configuration with full NAT, which listens in the members' network, too.
    fn write_nat_config(&self, members: &[u8], more: &str) -> String {
        let config = self.write_config("kernel", members, "return_path = \"nat\"");
        let inside = self.find_inner_rule();
        let listen = format!("listen = [\"{inside}\", ");
        // The listener of the administration is another one.
        config.replace("listen = [", &listen) + more
    }

    /// Address of the rule in the members' network.
    fn find_inner_rule(&self) -> SocketAddr {
        SocketAddr::new(self.family.balancer(), self.family.rule().port())
    }

    fn start_nat_balancer(&self, members: &[u8], more: &str) -> Option<Balancer> {
        let command = self.pair.front.command(evenkeel_binary());
        self.start_balancer_by(command, &self.write_nat_config(members, more))
    }
}

fn check_members_need_no_route_to_clients(family: Family) {
    let Some(machines) = Machines::new(family) else {
        return;
    };
    machines.remove_routes();
    machines.start_member(2, Duration::ZERO);
    // Nobody listens at the third: its refusals are not seen by clients.
    let more = "strategy = \"round_robin\"\n";
    let Some(mut balancer) = machines.start_nat_balancer(&[2, 3], more) else {
        return;
    };
    assert_eq!(machines.state(&balancer), "kernel");
    let mut old = Vec::new();
    for length in [10, 1000, 1 << 20] {
        let (mut stream, seen) = machines.connect().unwrap();
        assert_eq!(seen, family.balancer(), "members see the balancer");
        echo(&mut stream, length);
        old.push(stream);
    }
    // A client in the members' own network.
    let to = machines.find_inner_rule();
    let inside = machines.pair.back.run_inside(|| TcpStream::connect(to));
    let mut inside = inside.unwrap();
    inside.set_read_timeout(Some(HANG)).unwrap();
    let mut line = [0; 16];
    inside.read_exact(&mut line).unwrap();
    echo(&mut inside, 1 << 20);
    old.push(inside);
    // The kernel has all connections, and none is the proxy's.
    let open = old.len() as u64;
    wait_until("the status has the connections and the refusals", || {
        let now = machines.forwarded(&balancer);
        machines.count(&balancer, 2, "in_flight") == open
            && now["packets"]["retried"].as_u64() >= Some(1)
    });
    let now = machines.forwarded(&balancer);
    assert_eq!(now["packets"]["proxied_ports"], 0, "{now}");
    assert_eq!(now["packets"]["dropped"], 0, "{now}");

    balancer.signal(Signal::KILL);
    balancer.wait_for_end();
    old.iter_mut().for_each(|stream| echo(stream, 50_000));
    let (between, _) = machines.connect().unwrap();
    old.push(between);
    let balancer = machines.start_nat_balancer(&[2, 3], more).unwrap();
    old.iter_mut().for_each(|stream| echo(stream, 50_000));
    let open = old.len();
    wait_until("the next process counts the connections", || {
        machines.count(&balancer, 2, "in_flight") == open as u64
    });
    drop(old);
    machines.wait_for_ends(&balancer);
}

#[test]
fn s41_members_need_no_route_to_clients_with_full_nat() {
    BOTH.into_iter()
        .for_each(check_members_need_no_route_to_clients);
}

#[test]
fn s41_without_ports_for_full_nat_the_proxy_serves() {
    let Some(machines) = Machines::new(Family::V4) else {
        return;
    };
    machines.remove_routes();
    machines.start_member(2, Duration::ZERO);
    // The system may take all ports.
    let path = "/proc/sys/net/ipv4/ip_local_port_range";
    let front = &machines.pair.front;
    front.run_inside(|| fs::write(path, "1024 65535").unwrap());
    let Some(balancer) = machines.start_nat_balancer(&[2], "") else {
        return;
    };
    balancer.wait_for_log("set it to 32768 60999");
    let (mut stream, seen) = machines.connect().unwrap();
    assert_eq!(seen, machines.family.balancer());
    echo(&mut stream, 5000);
    assert_eq!(machines.count(&balancer, 2, "picks"), 0);

    front.run_inside(|| fs::write(path, "32768 60999").unwrap());
    wait_until("the kernel forwards", || {
        let (mut stream, _) = machines.connect().unwrap();
        echo(&mut stream, 500);
        machines.count(&balancer, 2, "picks") > 0
    });
}
