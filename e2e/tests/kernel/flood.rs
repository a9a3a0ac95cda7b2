//! Floods of SYNs, and the counts of a rule.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking.

use std::io::Read;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::Duration;

use evenkeel_e2e::HANG;
use evenkeel_e2e::balancer::evenkeel_binary;
use evenkeel_e2e::cgroup::MemoryLimit;
use evenkeel_e2e::netns::run_ip;
use evenkeel_e2e::process::report_skipped;
use evenkeel_e2e::wait_until;
use socket2::{Domain, Socket, Type};

use super::forward::{BOTH, Family, Machines, echo, send_packets, write_segment};

const SYN: u8 = 2;

/// Address of another machine of the clients, which floods, and network of the address.
fn flooding_source(family: Family) -> (IpAddr, &'static str) {
    let (ip, network) = match family {
        Family::V4 => ("10.78.1.3", "10.78.1.0/24"),
        Family::V6 => ("fd78:0:0:1::3", "fd78:0:0:1::/64"),
    };
    (ip.parse().unwrap(), network)
}

/// Lets the clients have the address of the machine that floods.
fn add_source(machines: &Machines) {
    let (ip, network) = flooding_source(machines.family);
    let end = if ip.is_ipv4() { "/24" } else { "/64 nodad" };
    let [clients, front] = [&machines.clients, &machines.pair.front].map(|namespace| {
        let path = namespace.path();
        path.file_name().unwrap().to_str().unwrap().to_owned()
    });
    run_ip(&format!("-n {clients} addr add {ip}{end} dev client0"));
    run_ip(&format!("-n {front} route add {network} dev client1"));
}

/// Sends SYNs of many ports of the source that floods, which are never confirmed.
fn flood(machines: &Machines, count: u16, rng: &mut fastrand::Rng) {
    let (source, _) = flooding_source(machines.family);
    let rule = machines.family.rule();
    let first = rng.u16(10_000..30_000);
    machines.clients.run_inside(|| {
        let ports = first..first + count;
        let packets =
            ports.map(|port| write_segment(SocketAddr::new(source, port), rule, 1000, SYN));
        send_packets(rule, packets);
    });
}

/// Connects a client of the source that floods. Returns the connection with the client's address as the member sees it.
fn connect_from_source(machines: &Machines) -> (TcpStream, IpAddr) {
    let (source, rule) = (flooding_source(machines.family).0, machines.family.rule());
    let mut stream = machines.clients.run_inside(|| {
        let socket = Socket::new(Domain::for_address(rule), Type::STREAM, None).unwrap();
        socket.bind(&SocketAddr::new(source, 0).into()).unwrap();
        socket.connect_timeout(&rule.into(), HANG).unwrap();
        TcpStream::from(socket)
    });
    stream.set_read_timeout(Some(HANG)).unwrap();
    let mut line = [0; 16];
    stream.read_exact(&mut line).unwrap();
    let seen = std::str::from_utf8(&line).unwrap().trim().parse().unwrap();
    (stream, seen)
}

fn check_a_flood_of_a_source_leaves_the_kernel_to_others(family: Family) {
    let Some(machines) = Machines::new(family) else {
        return;
    };
    let Some(limit) = MemoryLimit::new(256 << 20) else {
        report_skipped("no right to limit memory by a cgroup; run it as root");
        return;
    };
    add_source(&machines);
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
    let (mut before, _) = machines.connect().unwrap();
    echo(&mut before, 5000);
    let (mut of_source, seen) = connect_from_source(&machines);
    assert_eq!(seen, flooding_source(family).0, "the source has the kernel");
    echo(&mut of_source, 5000);
    let mut rng = fastrand::Rng::with_seed(41);
    let packets = || machines.forwarded(&balancer)["packets"].clone();
    wait_until("SYNs of the source go to the proxy's socket", || {
        flood(&machines, 5000, &mut rng);
        packets()["proxied_rate"].as_u64() > Some(0)
    });
    let now = machines.forwarded(&balancer);
    assert_eq!(now["table_size"], 65_536, "{now}");
    assert_eq!(now["packets"]["proxied_table"], 0, "{now}");
    // Others have the kernel, before and after.
    echo(&mut before, 50_000);
    let (mut after, seen) = machines.connect().unwrap();
    assert_eq!(seen, machines.family.client());
    echo(&mut after, 5000);
    // Clients of the source are served meanwhile, by the proxy.
    wait_until("the proxy serves a client of the source", || {
        flood(&machines, 5000, &mut rng);
        let (mut stream, seen) = connect_from_source(&machines);
        echo(&mut stream, 5000);
        seen == family.balancer()
    });
    echo(&mut of_source, 5000);
}

#[test]
fn s41_a_flood_of_a_source_leaves_the_kernel_to_others() {
    BOTH.into_iter()
        .for_each(check_a_flood_of_a_source_leaves_the_kernel_to_others);
}

#[test]
fn s41_connections_of_the_kernel_are_in_the_counts_of_their_rule() {
    let Some(machines) = Machines::new(Family::V4) else {
        return;
    };
    machines.start_member(2, Duration::ZERO);
    // Nobody listens at the third: a retry is no further connection.
    let more = "strategy = \"round_robin\"";
    let Some(balancer) = machines.start_balancer(&[2, 3], more) else {
        return;
    };
    let mut streams = Vec::new();
    for _ in 0..4 {
        let (mut stream, _) = machines.connect().unwrap();
        echo(&mut stream, 1000);
        streams.push(stream);
    }
    let count = |name| machines.forwarded(&balancer)["rule_counts"][0][name].as_u64();
    wait_until("the rule has the connections", || {
        count("open") == Some(4) && count("begun") == Some(4)
    });
    drop(streams);
    wait_until("the connections are over", || count("open") == Some(0));
    let now = machines.forwarded(&balancer);
    let rule = &now["rule_counts"][0];
    assert_eq!(rule["rule"], "db", "{now}");
    assert_eq!(rule["begun"], 4, "{now}");
    assert_eq!(rule["bytes_in"], 4000, "{now}");
    // A line before what comes back.
    assert_eq!(rule["bytes_out"], 4064, "{now}");
    assert!(now["packets"]["retried"].as_u64() >= Some(1), "{now}");
    let read = || balancer.read_metric("evenkeel_forward_rule_connections_total{rule=\"db\"}");
    assert_eq!(machines.pair.front.run_inside(read), Some(4.0));
}
