//! Members behind interfaces without the program: their answers would reach nobody who puts the rule's address into them.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::thread;
use std::time::Duration;

use evenkeel_e2e::netns::{Namespace, run_ip};
use evenkeel_e2e::wait_until;

use super::{BOTH, Family, Machines, echo};

/// Interfaces of a cable that carries packets of IP without Ethernet frames, as a VPN does: at the balancer, and at the
/// members.
const NEAR: &str = "tun0";
const FAR: &str = "tun1";

/// Request of `TUNSETIFF`, and flags of `struct ifreq`: packets of IP, without a header before them.
const SET_INTERFACE: u32 = 0x4004_54ca;
const PLAIN_TUN: u16 = 0x1001;

/// Makes an interface in a namespace. Returns the file with the packets that the interface sends and receives.
fn open_tun(namespace: &Namespace, name: &str) -> File {
    namespace.run_inside(|| {
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).open("/dev/net/tun").unwrap();
        // struct ifreq: the name, and the flags.
        let mut request = [0; 40];
        request[..name.len()].copy_from_slice(name.as_bytes());
        request[16..18].copy_from_slice(&PLAIN_TUN.to_ne_bytes());
        // SAFETY: the request is as long as the structure that the kernel reads and writes.
        let made = unsafe { libc::ioctl(file.as_raw_fd(), SET_INTERFACE as _, &raw mut request) };
        assert_eq!(made, 0, "{}", std::io::Error::last_os_error());
        file
    })
}

/// Carries packets from one interface to another, until an interface is gone with its namespace.
fn carry(mut from: File, mut to: File) {
    thread::spawn(move || {
        let mut packet = [0; 1 << 16];
        while let Ok(length) = from.read(&mut packet) {
            // The interface may be down.
            let _ = to.write(&packet[..length]);
        }
    });
}

/// Address of the balancer at its end of the cable.
fn near_address(family: Family) -> std::net::IpAddr {
    let text = if family == Family::V4 {
        "10.79.0.1"
    } else {
        "fd79::1"
    };
    text.parse().unwrap()
}

/// Lays the cable between the balancer and the members.
fn lay_cable(machines: &Machines) {
    let ends = [
        (&machines.pair.front, NEAR, 1),
        (&machines.pair.back, FAR, 2),
    ];
    let [near, far] = ends.map(|(namespace, interface, last)| {
        let file = open_tun(namespace, interface);
        let path = namespace.path();
        let name = path.file_name().unwrap().to_str().unwrap();
        for words in [
            format!("addr add 10.79.0.{last}/24 dev {interface}"),
            format!("addr add fd79::{last}/64 dev {interface} nodad"),
            format!("link set {interface} up"),
        ] {
            run_ip(&format!("-n {name} {words}"));
        }
        file
    });
    carry(near.try_clone().unwrap(), far.try_clone().unwrap());
    carry(far, near);
}

/// Leads packets to the member with this last byte through the cable, or no longer.
fn lead_through_cable(machines: &Machines, last: u8, change: &str) {
    let front = machines.pair.front.path();
    let front = front.file_name().unwrap().to_str().unwrap();
    let member = machines.family.member(last).ip();
    run_ip(&format!("-n {front} route {change} {member} dev {NEAR}"));
}

fn check_the_proxy_serves_members_behind_other_interfaces(family: Family, return_path: &str) {
    let Some(machines) = Machines::new(family) else {
        return;
    };
    lay_cable(&machines);
    machines.start_member(2, Duration::ZERO);
    machines.start_member(3, Duration::ZERO);
    lead_through_cable(&machines, 3, "add");
    let settings = format!("strategy = \"round_robin\"\nreturn_path = \"{return_path}\"");
    let Some(balancer) = machines.start_balancer(&[2, 3], &settings) else {
        return;
    };
    let serve = || {
        let mut seen: Vec<_> = (0..4)
            .map(|_| {
                let (mut stream, seen) = machines.connect().unwrap();
                echo(&mut stream, 20_000);
                seen
            })
            .collect();
        seen.sort();
        seen.dedup();
        seen
    };
    let wait_for = |state: &str| {
        wait_until("the rule's state follows the route", || {
            machines.state(&balancer).starts_with(state)
        });
    };
    // Both members are used, and each sees the balancer.
    let mut by_proxy = vec![family.balancer(), near_address(family)];
    by_proxy.sort();
    let by_kernel = match return_path {
        "nat" => family.balancer(),
        _ => family.client(),
    };
    for _ in 0..2 {
        wait_for("proxy (");
        let state = machines.state(&balancer);
        assert!(state.contains(NEAR), "{state}");
        assert_eq!(serve(), by_proxy);
        let picks = |last| machines.count(&balancer, last, "picks");
        let before = [2, 3].map(picks);
        // The route leads through Ethernet now.
        lead_through_cable(&machines, 3, "del");
        wait_for("kernel");
        assert_eq!(serve(), [by_kernel]);
        wait_until("the kernel has chosen both members", || {
            let now = [2, 3].map(picks);
            now[0] > before[0] && now[1] > before[1]
        });
        lead_through_cable(&machines, 3, "add");
    }
}

#[test]
fn s41_the_proxy_serves_members_behind_interfaces_without_the_program() {
    for family in BOTH {
        for return_path in ["route", "nat"] {
            check_the_proxy_serves_members_behind_other_interfaces(family, return_path);
        }
    }
}
