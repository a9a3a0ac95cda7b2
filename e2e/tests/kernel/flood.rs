//! Floods of SYNs, and the counts of a rule.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking.

use std::net::{IpAddr, SocketAddr, SocketAddrV4};
use std::time::Duration;

use evenkeel_e2e::balancer::evenkeel_binary;
use evenkeel_e2e::cgroup::MemoryLimit;
use evenkeel_e2e::netns::run_ip;
use evenkeel_e2e::process::report_skipped;
use evenkeel_e2e::wait_until;

use super::forward::{Family, Machines, echo, write_segment};

const SYN: u8 = 2;

/// Sends SYNs of many ports of a source, which are never confirmed.
fn flood(machines: &Machines, source: IpAddr, count: u16, rng: &mut fastrand::Rng) {
    let (IpAddr::V4(source), SocketAddr::V4(rule)) = (source, machines.family.rule()) else {
        panic!("IPv4");
    };
    let first = rng.u16(10_000..50_000);
    machines.clients.run_inside(|| {
        let family = rustix::net::AddressFamily::INET;
        let kind = rustix::net::SocketType::RAW;
        let socket = rustix::net::socket(family, kind, Some(rustix::net::ipproto::RAW)).unwrap();
        for port in first..first + count {
            let client = SocketAddrV4::new(source, port);
            let packet = write_segment(client, rule, 1000, SYN);
            let flags = rustix::net::SendFlags::empty();
            rustix::net::sendto(&socket, &packet, flags, &rule).unwrap();
        }
    });
}

#[test]
fn s41_a_flood_of_a_source_leaves_the_kernel_to_others() {
    let Some(machines) = Machines::new(Family::V4) else {
        return;
    };
    let Some(limit) = MemoryLimit::new(256 << 20) else {
        report_skipped("no right to limit memory by a cgroup; run it as root");
        return;
    };
    // Another machine of the clients, which floods.
    let clients = machines.clients.path();
    let clients = clients.file_name().unwrap().to_str().unwrap();
    run_ip(&format!("-n {clients} addr add 10.78.0.3/24 dev client0"));
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
    let mut rng = fastrand::Rng::with_seed(41);
    let packets = || machines.forwarded(&balancer)["packets"].clone();
    wait_until("SYNs of the source go to the proxy's socket", || {
        flood(&machines, "10.78.0.3".parse().unwrap(), 5000, &mut rng);
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
