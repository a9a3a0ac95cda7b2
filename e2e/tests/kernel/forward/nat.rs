//! Full NAT: members have no route to the clients.

use std::collections::BTreeSet;
use std::net::Shutdown;

use socket2::{Domain, Socket, Type};

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

    pub(super) fn start_nat_balancer(&self, members: &[u8], more: &str) -> Option<Balancer> {
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

/// Number of ports of full NAT in a test: the fewest that the balancer takes.
const PORTS: usize = 1024;

/// Remote ports of sockets at the members that only remember a connection (TIME_WAIT).
fn list_remembered_ports(machines: &Machines) -> BTreeSet<u16> {
    let name = machines.family.choose("tcp", "tcp6");
    let path = format!("/proc/thread-self/net/{name}");
    let read = || fs::read_to_string(path).unwrap();
    let text = machines.pair.back.run_inside(read);
    let lines = text.lines().skip(1).map(|line| {
        let words: Vec<_> = line.split_whitespace().collect();
        (words[2].to_owned(), words[3].to_owned())
    });
    let remembered = lines.filter(|(_, state)| state == "06");
    let ports = remembered.map(|(remote, _)| {
        let (_, port) = remote.split_once(':').unwrap();
        u16::from_str_radix(port, 16).unwrap()
    });
    ports.collect()
}

/// Number of SYNs that the clients' system has sent again.
fn count_repeated_syns(machines: &Machines) -> u64 {
    let read = || fs::read_to_string("/proc/thread-self/net/netstat").unwrap();
    let text = machines.clients.run_inside(read);
    let mut lines = text.lines().filter(|line| line.starts_with("TcpExt:"));
    let mut next = || lines.next().unwrap().split(' ');
    let mut counts = next().zip(next());
    let (_, count) = counts.find(|(name, _)| *name == "TCPSynRetrans").unwrap();
    count.parse().unwrap()
}

/// A member that sends each client its port, and ends the connection: the member remembers the connection.
fn start_ending_member(machines: &Machines) {
    let at = machines.family.member(2);
    let listener = machines.pair.back.run_inside(|| TcpListener::bind(at));
    let listener = listener.unwrap();
    thread::spawn(move || {
        while let Ok((mut stream, from)) = listener.accept() {
            let _ = stream.write_all(from.port().to_string().as_bytes());
            let _ = stream.shutdown(Shutdown::Write);
            // The client's end is read, so nobody gets a reset.
            let _ = stream.read_to_end(&mut Vec::new());
        }
    });
}

/// Port that the member sees of a connection from an address of the clients, which the member ends.
fn read_port(machines: &Machines, client: IpAddr) -> u16 {
    let to = machines.family.rule();
    let mut stream = machines.clients.run_inside(|| {
        let socket = Socket::new(Domain::for_address(to), Type::STREAM, None).unwrap();
        socket.bind(&SocketAddr::new(client, 0).into()).unwrap();
        socket.connect_timeout(&to.into(), HANG).unwrap();
        TcpStream::from(socket)
    });
    stream.set_read_timeout(Some(HANG)).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text.parse().unwrap()
}

fn check_members_accept_from_ports_that_they_remember(family: Family) {
    let Some(machines) = Machines::new(family) else {
        return;
    };
    machines.remove_routes();
    start_ending_member(&machines);
    // Systems have another clock of timestamps for each address.
    let clients: [IpAddr; 8] = std::array::from_fn(|number| {
        let text = format!("{}{}", family.choose("10.78.0.10", "fd78::10"), number);
        text.parse().unwrap()
    });
    let name = machines.clients.path();
    let name = name.file_name().unwrap().to_str().unwrap();
    let end = family.choose("/24", "/64 nodad");
    for client in clients {
        run_ip(&format!("-n {name} addr add {client}{end} dev client0"));
    }
    let first = u16::MAX - (PORTS - 1) as u16;
    let path = "/proc/sys/net/ipv4/ip_local_port_range";
    let range = format!("32768 {}", first - 1);
    machines
        .pair
        .front
        .run_inside(|| fs::write(path, range).unwrap());
    let Some(balancer) = machines.start_nat_balancer(&[2], "") else {
        return;
    };
    assert_eq!(machines.state(&balancer), "kernel");
    let mut from = clients.into_iter().cycle();
    let mut connect = || read_port(&machines, from.next().unwrap());
    // Ports are taken in turn.
    let used: BTreeSet<_> = (0..PORTS).map(|_| connect()).collect();
    assert!(
        used.len() == PORTS && used.first() == Some(&first),
        "{used:?}"
    );
    wait_until("ports are free in the kernel's table", || {
        machines.forwarded(&balancer)["connections"].as_u64() < Some(PORTS as u64 / 2)
    });
    // The member still has them. A refused SYN would come again a second later.
    let mut again = 0;
    wait_until("ports are used again", || {
        let remembered = list_remembered_ports(&machines);
        // The proxy's ports are below.
        let hits = (0..32)
            .map(|_| connect())
            .filter(|port| remembered.contains(port));
        again += hits.filter(|port| *port >= first).count();
        again >= 200
    });
    assert_eq!(count_repeated_syns(&machines), 0, "SYNs that came again");
    machines.wait_for_ends(&balancer);
}

#[test]
fn s41_members_accept_at_once_from_ports_that_they_remember() {
    BOTH.into_iter()
        .for_each(check_members_accept_from_ports_that_they_remember);
}
