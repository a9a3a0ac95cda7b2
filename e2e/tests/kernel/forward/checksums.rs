//! Checksums of forwarded packets, as tcpdump judges them at the members.

use std::fs::File;
use std::process::{Child, Stdio};

use evenkeel_e2e::folder::Folder;
use evenkeel_e2e::process::are_installed;

use super::udp::ask;
use super::*;

/// Packets at the members' interface; the capture ends when dropped.
struct Capture {
    process: Child,
    folder: Folder,
}

impl Capture {
    /// Starts a capture, and waits until tcpdump sees packets.
    fn start(machines: &Machines) -> Self {
        let folder = Folder::new();
        let path = folder.join("packets.pcap");
        // Killed with this thread, too.
        let mut command = machines.pair.back.command("setpriv");
        command.args(["--pdeathsig", "KILL", "--", "tcpdump", "--immediate-mode"]);
        // Each packet is written as it comes; tcpdump stays root, whose folder this is.
        command.args(["-U", "-Z", "root", "-n", "-i", BACK, "-w"]);
        command.arg(path).args(["tcp", "or", "udp"]);
        let log = File::create(folder.join("output.log")).unwrap();
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let process = command.stderr(log).spawn().unwrap();
        let mut capture = Capture { process, folder };
        wait_until("tcpdump listens", || {
            let output = capture.folder.text("output.log");
            if let Some(status) = capture.process.try_wait().unwrap() {
                panic!("{status}: {output}");
            }
            output.contains("listening on")
        });
        capture
    }

    /// Reads the packets so far. The last one may be incomplete, which tcpdump complains of.
    fn read(&self) -> String {
        let mut command = std::process::Command::new("tcpdump");
        command.args(["-n", "-vv", "-r"]);
        let output = command.arg(self.folder.join("packets.pcap")).output();
        String::from_utf8(output.unwrap().stdout).unwrap()
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        // tcpdump may have ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Lets all checksums be made before packets are sent, and packets be sent as they are.
fn leave_nothing_to_interfaces(machines: &Machines) {
    for (namespace, interfaces) in [
        (&machines.clients, &["client0"][..]),
        (&machines.pair.front, &["client1", FRONT]),
        (&machines.pair.back, &[BACK]),
    ] {
        for interface in interfaces {
            let mut command = namespace.command("ethtool");
            command.args(["-K", interface]);
            for what in ["tx", "tso", "gso", "gro"] {
                command.args([what, "off"]);
            }
            assert!(command.status().unwrap().success(), "{interface}");
        }
    }
}

fn count(text: &str, what: &str) -> usize {
    text.matches(what).count()
}

/// Checks that tcpdump finds no wrong checksum of IP, TCP or UDP, and no datagram without one.
fn check_sums(text: &str) {
    for wrong in ["incorrect", "bad udp cksum", "bad cksum", "no cksum"] {
        assert_eq!(count(text, wrong), 0, "{text}");
    }
}

fn check_members_get_and_send_right_checksums(family: Family, return_path: &str) {
    if !are_installed(&["tcpdump", "setpriv"]) {
        return;
    }
    let Some(machines) = Machines::new(family) else {
        return;
    };
    leave_nothing_to_interfaces(&machines);
    let path = format!("return_path = \"{return_path}\"");
    machines.start_member(2, Duration::ZERO);
    machines.start_udp_member(2);
    let Some(balancer) = machines.start_balancer(&[2], &path) else {
        return;
    };
    assert_eq!(machines.state(&balancer), "kernel");
    let capture = Capture::start(&machines);
    let (mut stream, _) = machines.connect().unwrap();
    for length in [1, 1000, 200_001] {
        echo(&mut stream, length);
    }
    drop(stream);
    let mut text = String::new();
    wait_until("tcpdump has the ends of both sides", || {
        text = capture.read();
        count(&text, "Flags [F") >= 2
    });
    assert!(count(&text, "(correct)") > 200, "{text}");
    check_sums(&text);
    drop((capture, balancer));

    let balancer = machines.start_udp_balancer("kernel", &[2], &path).unwrap();
    assert_eq!(machines.state(&balancer), "kernel");
    let capture = Capture::start(&machines);
    let socket = machines.open_client();
    for length in [0, 1, 33, 1001] {
        ask(&socket, length).unwrap();
    }
    wait_until("tcpdump has the datagrams of both sides", || {
        text = capture.read();
        count(&text, "udp sum ok") >= 8
    });
    check_sums(&text);
}

#[test]
fn s41_members_get_and_send_right_checksums() {
    for family in BOTH {
        for return_path in ["route", "nat"] {
            check_members_get_and_send_right_checksums(family, return_path);
        }
    }
}
