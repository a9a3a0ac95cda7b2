//! Orderly stops and starts of the balancer.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use evenkeel_e2e::balancer::Balancer;
use evenkeel_e2e::process::Signal;
use evenkeel_e2e::wait_until;

use super::{BOTH, Family, Machines, echo};

/// Stops a balancer as an administrator does.
fn stop(mut balancer: Balancer) {
    balancer.signal(Signal::TERM);
    let status = balancer.wait_for_end();
    assert!(status.success(), "{status}");
}

/// True if the tables of the balancer's namespace are there.
fn has_tables(machines: &Machines) -> bool {
    let namespace = fs::metadata(machines.pair.front.path()).unwrap().ino();
    let end = format!("-{namespace}");
    let pins = fs::read_dir("/sys/fs/bpf/evenkeel").unwrap();
    let mut names = pins.map(|pin| pin.unwrap().file_name().into_string().unwrap());
    names.any(|name| name.starts_with("forward-") && name.ends_with(&end))
}

fn check_connections_continue_over_orderly_stops(family: Family) {
    let Some(machines) = Machines::new(family) else {
        return;
    };
    machines.start_member(2, Duration::ZERO);
    let Some(mut balancer) = machines.start_balancer(&[2], "") else {
        return;
    };
    let mut open = Vec::new();
    for count in 1..=2 {
        assert_eq!(machines.state(&balancer), "kernel");
        let (mut stream, seen) = machines.connect().unwrap();
        assert_eq!(seen, family.client());
        echo(&mut stream, 5000);
        open.push(stream);
        stop(balancer);
        for stream in &mut open {
            echo(stream, 50_000);
        }
        let refused = machines.connect().unwrap_err();
        assert_eq!(refused, ErrorKind::ConnectionRefused);
        assert!(has_tables(&machines));

        balancer = machines.start_balancer(&[2], "").unwrap();
        wait_until("the next process counts the connections", || {
            machines.count(&balancer, 2, "in_flight") == count
        });
        for stream in &mut open {
            echo(stream, 50_000);
        }
    }
    drop(open);
    machines.wait_for_ends(&balancer);
    // Nothing is left of a balancer without connections.
    stop(balancer);
    assert!(!has_tables(&machines));
    assert_eq!(
        machines.connect().unwrap_err(),
        ErrorKind::ConnectionRefused
    );
    let balancer = machines.start_balancer(&[2], "").unwrap();
    let (mut stream, seen) = machines.connect().unwrap();
    assert_eq!(seen, family.client());
    echo(&mut stream, 5000);
    drop((stream, balancer));
}

#[test]
fn s41_connections_continue_over_orderly_stops() {
    BOTH.into_iter()
        .for_each(check_connections_continue_over_orderly_stops);
}
