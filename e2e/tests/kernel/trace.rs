//! Trace of one client's packets by the command.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use evenkeel_e2e::balancer::evenkeel_binary;
use serde_json::Value;

use super::forward::udp::ask;
use super::forward::{BOTH, Family, Machines, echo};

/// The command on the balancer's machine.
fn write_command(machines: &Machines, words: &[&str]) -> Command {
    let mut command = machines.pair.front.command(evenkeel_binary());
    command.args(["kernel", "trace"]).args(words);
    command
}

/// True if a line has all parts.
fn has_line(text: &[String], parts: &[&str]) -> bool {
    let has_all = |line: &String| parts.iter().all(|part| line.contains(part));
    text.iter().any(has_all)
}

fn check_a_connection_is_traced(family: Family) {
    let Some(machines) = Machines::new(family) else {
        return;
    };
    // Nothing listens at the first member: its RST becomes a SYN for the other one.
    machines.start_member(3, Duration::ZERO);
    let client = family.client().to_string();
    let output = write_command(&machines, &[&client]).output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(
        error.contains("no balancer of this version forwards"),
        "{error}"
    );

    let settings = "strategy = \"round_robin\"";
    let Some(_balancer) = machines.start_balancer(&[2, 3], settings) else {
        return;
    };
    let words = [&*client, "--packets", "40", "--time", "10m"];
    let mut command = write_command(&machines, &words);
    let mut traced = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(traced.stdout.take().unwrap()).lines();
    let begin = lines.next().unwrap().unwrap();
    assert!(begin.starts_with("tracing for 600 s"), "{begin}");
    let again = write_command(&machines, &[&client]).output().unwrap();
    let error = String::from_utf8(again.stderr).unwrap();
    assert!(error.contains("another trace runs"), "{error}");

    // Enough packets for both members to have had a turn.
    let mut streams = Vec::new();
    for _ in 0..10 {
        let (mut stream, seen) = machines.connect().unwrap();
        assert_eq!(seen, family.client());
        echo(&mut stream, 100);
        streams.push(stream);
    }
    let text: Vec<String> = lines.map(Result::unwrap).collect();
    assert!(traced.wait().unwrap().success());
    let has = |parts: &[&str]| {
        assert!(has_line(&text, parts), "{parts:?}: {text:#?}");
    };
    let (listener, refusing) = (family.rule().to_string(), family.member(2).to_string());
    let accepting = family.member(3).to_string();
    has(&[
        "TCP SYN ",
        &format!("→ {listener}"),
        "sent as",
        "(to_member)",
    ]);
    has(&[
        "TCP RST,ACK ",
        &refusing,
        "sent as TCP SYN",
        &accepting,
        "retried",
    ]);
    has(&["TCP SYN,ACK ", &accepting, "(to_client)"]);
    has(&["retried: SYNs sent to another member"]);
    has(&[
        "in the table: ",
        &format!("at member {accepting}: answered"),
    ]);
    let packets = text.iter().filter(|line| line.contains(" ms "));
    assert_eq!(packets.count(), 40);

    let words = [&*client, "--packets", "1", "--json"];
    let mut command = write_command(&machines, &words);
    let traced = command.stdout(Stdio::piped()).spawn().unwrap();
    // The trace begins at some time from now on.
    let traced = std::thread::spawn(move || traced.wait_with_output().unwrap());
    while !traced.is_finished() {
        echo(&mut streams[0], 100);
    }
    let output = String::from_utf8(traced.join().unwrap().stdout).unwrap();
    let packet: Value = serde_json::from_str(&output).unwrap();
    assert_eq!(packet["result"], "forwarded", "{packet}");
    assert_eq!(packet["packet"]["protocol"], 6, "{packet}");
    assert_eq!(packet["sent"]["bytes"], packet["packet"]["bytes"]);
}

#[test]
fn s41_packets_of_a_client_are_traced() {
    BOTH.into_iter().for_each(check_a_connection_is_traced);
}

fn check_a_session_is_traced(family: Family) {
    let Some(machines) = Machines::new(family) else {
        return;
    };
    machines.start_udp_member(2);
    let Some(balancer) = machines.start_udp_balancer("kernel", &[2], "") else {
        return;
    };
    assert_eq!(machines.state(&balancer), "kernel");
    let socket = machines.open_client();
    let client = socket.local_addr().unwrap().to_string();
    let words = [&*client, "--packets", "4", "--time", "10m"];
    let mut command = write_command(&machines, &words);
    let mut traced = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(traced.stdout.take().unwrap()).lines();
    let begin = lines.next().unwrap().unwrap();
    assert!(begin.starts_with("tracing for 600 s"), "{begin}");
    for length in [100, 200] {
        ask(&socket, length).unwrap();
    }
    let text: Vec<String> = lines.map(Result::unwrap).collect();
    assert!(traced.wait().unwrap().success());
    let (listener, member) = (family.rule(), family.member(2));
    for length in [100, 200] {
        let there = format!("UDP {client} → {listener} {length} bytes");
        let parts = [
            &*there,
            &format!("sent as {client} → {member}"),
            "(to_member)",
        ];
        assert!(has_line(&text, &parts), "{parts:?}: {text:#?}");
    }
    let entry = format!("in the table: UDP {client} → {listener} at member {member}: answered");
    assert!(has_line(&text, &[&entry]), "{entry}: {text:#?}");
    let back = format!("UDP {member} → {client}");
    let parts = [
        &*back,
        &format!("sent as {listener} → {client}"),
        "(to_client)",
    ];
    assert!(has_line(&text, &parts), "{parts:?}: {text:#?}");
}

#[test]
fn s41_datagrams_of_a_client_are_traced() {
    BOTH.into_iter().for_each(check_a_session_is_traced);
}
