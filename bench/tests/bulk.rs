//! The load and the back-end understand each other, over TCP and in files of FTP.

#![allow(clippy::unwrap_used)] // A test fails by panicking.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::time::Duration;

use evenkeel_bench::load::{Plan, Traffic, run};
use evenkeel_bench::server::{Server, processors};

#[test]
fn bulk_goes_down_and_up() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_backend"));
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let cpu = processors().unwrap()[0];
    let mut backend = Server::start(command, cpu, libc::SIGKILL).unwrap();
    let mut line = String::new();
    let stdout = backend.take_stdout().unwrap();
    BufReader::new(stdout).read_line(&mut line).unwrap();
    let addresses: Vec<SocketAddr> = line
        .split_whitespace()
        .map(|address| address.parse().unwrap())
        .collect();
    let [_, tcp, _, ftp] = addresses[..] else {
        panic!("{line}");
    };
    for (target, traffic) in [(tcp, Traffic::TcpBulk), (ftp, Traffic::FtpBulk)] {
        // The first connection is for a download.
        for connections in [1, 4] {
            let plan = Plan {
                target,
                traffic: traffic.clone(),
                connections,
                rate: None,
                warm_up: Duration::ZERO,
                measure: Duration::from_millis(100),
            };
            let outcome = run(&plan, &mut || Ok(Duration::ZERO)).unwrap();
            assert!(outcome.bytes > 0, "{plan:?}");
            assert_eq!(outcome.failures, 0, "{plan:?}");
        }
    }
}
