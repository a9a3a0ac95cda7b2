//! Native XDP at both interfaces of the balancer, with real connections.

use std::io::{Read, Write};
use std::thread;
use std::time::Duration;

use evenkeel_e2e::balancer::{Balancer, evenkeel_binary};
use evenkeel_e2e::netns::{BACK, FRONT, Namespace};
use evenkeel_e2e::process::are_installed;
use evenkeel_e2e::wait_until;
use serde_json::{Value, json};

use super::{BOTH, Family, Machines};

const BOTH_INTERFACES: &str = "[kernel_forwarding]\nxdp_interfaces = [\"client1\", \"front0\"]";

/// Sets a feature of an interface.
fn set_feature(namespace: &Namespace, interface: &str, feature: &str, state: &str) {
    let mut ethtool = namespace.command("ethtool");
    let status = ethtool.args(["-K", interface, feature, state]).status();
    assert!(
        status.unwrap().success(),
        "ethtool -K {interface} {feature} {state}"
    );
}

/// Machines whose interfaces can take packets from XDP; `None` if this machine does not let us, which is said.
fn start_machines(family: Family) -> Option<Machines> {
    if !are_installed(&["ethtool"]) {
        return None;
    }
    let machines = Machines::new(family)?;
    set_feature(&machines.clients, "client0", "gro", "on");
    set_feature(&machines.pair.back, BACK, "gro", "on");
    Some(machines)
}

/// Lets both ends write checksums themselves, as packets from a cable have them.
fn write_checksums(machines: &Machines) {
    set_feature(&machines.clients, "client0", "tx", "off");
    set_feature(&machines.pair.back, BACK, "tx", "off");
}

/// Sends `length` bytes through a new connection and back, and compares them.
fn echo(machines: &Machines, length: usize) {
    let (mut stream, from) = machines.connect().unwrap();
    assert_eq!(from, machines.family.client());
    let sent: Vec<u8> = (0..length).map(|at| (at * 7 / 3) as u8).collect();
    let mut writer = stream.try_clone().unwrap();
    let mut got = vec![0; length];
    thread::scope(|scope| {
        scope.spawn(|| writer.write_all(&sent).unwrap());
        stream.read_exact(&mut got).unwrap();
    });
    assert!(got == sent, "the bytes are not the same");
}

fn read_count(machines: &Machines, balancer: &Balancer) -> u64 {
    machines.forwarded(balancer)["packets"]["by_xdp"]
        .as_u64()
        .unwrap()
}

/// Waits until the interfaces have these programs.
fn wait_for_programs(machines: &Machines, balancer: &Balancer, expected: &Value) {
    wait_until("interfaces have the programs", || {
        let states = machines.forwarded(balancer)["xdp_interfaces"].clone();
        let states = states.as_array().into_iter().flatten();
        let programs: Value = states
            .map(|one| json!([one["name"], one["program"]]))
            .collect();
        programs == *expected
    });
}

#[test]
fn s41_xdp_forwards_bytes_as_they_are() {
    for family in BOTH {
        let Some(machines) = start_machines(family) else {
            return;
        };
        machines.start_member(2, Duration::ZERO);
        let Some(balancer) = machines.start_balancer(&[2], BOTH_INTERFACES) else {
            return;
        };
        let both = json!([["client1", "xdp"], ["front0", "xdp"]]);
        wait_for_programs(&machines, &balancer, &both);
        // Checksums are left to interfaces that have none: tc forwards, and nothing is lost.
        echo(&machines, 300_000);
        write_checksums(&machines);
        echo(&machines, 300_000);
        wait_until("packets are forwarded by XDP", || {
            read_count(&machines, &balancer) > 100
        });
        let status = machines
            .pair
            .front
            .run_inside(|| balancer.run_ctl("status").unwrap());
        assert!(
            status.contains("front0") && status.contains("xdp"),
            "{status}"
        );
        machines.wait_for_ends(&balancer);
        assert_eq!(machines.count(&balancer, 2, "picks"), 2);
    }
}

#[test]
fn s41_xdp_comes_and_goes_while_connections_are_open() {
    let Some(machines) = start_machines(Family::V4) else {
        return;
    };
    write_checksums(&machines);
    machines.start_member(2, Duration::ZERO);
    let Some(balancer) = machines.start_balancer(&[2], BOTH_INTERFACES) else {
        return;
    };
    let both = json!([["client1", "xdp"], ["front0", "xdp"]]);
    wait_for_programs(&machines, &balancer, &both);
    let (mut stream, _) = machines.connect().unwrap();
    let mut ask = |text: &[u8; 4]| {
        stream.write_all(text).unwrap();
        let mut got = [0; 4];
        stream.read_exact(&mut got).unwrap();
        assert_eq!(&got, text);
    };
    ask(b"one.");
    // A process that is killed leaves both programs, and the next one takes them over.
    drop(balancer);
    ask(b"two.");
    let command = machines.pair.front.command(evenkeel_binary());
    let one = "[kernel_forwarding]\nxdp_interfaces = [\"client1\", \"nothing0\"]";
    let config = machines.write_config("kernel", &[2], one);
    let Some(balancer) = machines.start_balancer_by(command, &config) else {
        return;
    };
    let expected = json!([["client1", "xdp"], ["nothing0", "tc"]]);
    wait_for_programs(&machines, &balancer, &expected);
    ask(b"thre");
    let links = |interface: &str| {
        let mut show = machines.pair.front.command("ip");
        let output = show.args(["link", "show", interface]).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    assert!(links("client1").contains("xdp"), "{}", links("client1"));
    assert!(!links(FRONT).contains("xdp"), "{}", links(FRONT));
    // Without the rule the program goes with the last connection.
    drop(balancer);
    let command = machines.pair.front.command(evenkeel_binary());
    let config = machines.write_config("kernel", &[2], "");
    let Some(balancer) = machines.start_balancer_by(command, &config) else {
        return;
    };
    wait_until("XDP is gone", || !links("client1").contains("xdp"));
    ask(b"four");
    drop(balancer);
}
