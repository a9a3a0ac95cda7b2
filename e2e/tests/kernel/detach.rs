//! Removal of the program that forwards connections, without a balancer.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking.

use std::io::{BufRead, BufReader, Read};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::Duration;

use evenkeel_e2e::balancer::evenkeel_binary;
use evenkeel_e2e::process::Signal;
use evenkeel_e2e::{HANG, wait_until};

use super::forward::{BOTH, Family, Machines, echo};

/// The command on the balancer's machine.
fn write_command(machines: &Machines, more: &[&str]) -> Command {
    let mut command = machines.pair.front.command(evenkeel_binary());
    command
        .args(["kernel", "detach", "--forwarding"])
        .args(more);
    command
}

/// Runs the command; output or error.
fn detach(machines: &Machines, more: &[&str]) -> Result<String, String> {
    let output = write_command(machines, more).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    if output.status.success() {
        Ok(text(output.stdout))
    } else {
        Err(text(output.stderr))
    }
}

fn check_connections_are_drained_before_the_program_is_removed(family: Family) {
    let Some(machines) = Machines::new(family) else {
        return;
    };
    machines.start_member(2, Duration::ZERO);
    let Some(mut balancer) = machines.start_balancer(&[2], "") else {
        return;
    };
    let (mut old, seen) = machines.connect().unwrap();
    assert_eq!(seen, family.client());
    let refused = detach(&machines, &[]).unwrap_err();
    let process = format!("process {} forwards", balancer.id());
    assert!(refused.contains(&process), "{refused}");
    let refused = detach(&machines, &["--now"]).unwrap_err();
    assert!(refused.contains(&process), "{refused}");
    echo(&mut old, 5000);

    balancer.signal(Signal::KILL);
    balancer.wait_for_end();
    let mut command = write_command(&machines, &[]);
    let mut command = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(command.stdout.take().unwrap()).lines();
    // Other tests have network namespaces, too.
    let is_of_here = |line: &String| !line.starts_with("not removed: ");
    let mut read_line = || lines.by_ref().map(Result::unwrap).find(is_of_here).unwrap();
    assert_eq!(read_line(), "no new connections begin in the kernel");
    assert_eq!(read_line(), "waiting for 1 connection");
    // A balancer that starts meanwhile leaves the program alone, and its proxy serves.
    let balancer = machines.start_balancer(&[2], "").unwrap();
    let state = machines.state(&balancer);
    assert!(state.starts_with("proxy (another process"), "{state}");
    let (mut proxied, seen) = machines.connect().unwrap();
    assert_eq!(seen, family.balancer());
    echo(&mut proxied, 5000);
    echo(&mut old, 50_000);
    drop(old);
    assert_eq!(read_line(), "no connection is left in the kernel");
    let last = read_line();
    assert!(last.contains("removed the program from"), "{last}");
    assert!(last.contains("client1"), "{last}");
    assert!(last.contains("/sys/fs/bpf/evenkeel/forward-"), "{last}");
    assert!(command.wait().unwrap().success());
    echo(&mut proxied, 5000);
    wait_until("the balancer forwards", || {
        machines.state(&balancer) == "kernel"
    });
}

#[test]
fn s41_connections_are_drained_before_the_program_is_removed() {
    BOTH.into_iter()
        .for_each(check_connections_are_drained_before_the_program_is_removed);
}

#[test]
fn s41_the_program_is_removed_at_once() {
    let Some(machines) = Machines::new(Family::V4) else {
        return;
    };
    machines.start_member(2, Duration::ZERO);
    let Some(mut balancer) = machines.start_balancer(&[2], "") else {
        return;
    };
    let connect = || -> TcpStream {
        let (mut stream, seen) = machines.connect().unwrap();
        assert_eq!(seen, machines.family.client());
        echo(&mut stream, 5000);
        stream
    };
    let mut streams = [connect(), connect()];
    balancer.signal(Signal::KILL);
    balancer.wait_for_end();
    // The program stays.
    for stream in &mut streams {
        echo(stream, 5000);
    }
    let told = detach(&machines, &["--now"]).unwrap();
    assert!(
        told.contains("cut 2 connections; removed the program from"),
        "{told}"
    );
    let told = detach(&machines, &["--now"]).unwrap();
    assert!(told.contains("nothing to remove"), "{told}");
    for stream in &mut streams {
        // The system answers the next packet with a RST.
        stream.set_read_timeout(Some(HANG)).unwrap();
        let wrote = std::io::Write::write_all(stream, b"more");
        wrote
            .and_then(|()| stream.read_exact(&mut [0; 4]))
            .unwrap_err();
    }
    let told = detach(&machines, &[]).unwrap();
    assert!(told.contains("nothing to remove"), "{told}");
}
