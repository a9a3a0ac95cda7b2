//! Decisions of the kernel, as administrators see them.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking.

use std::time::Duration;

use evenkeel_e2e::wait_until;

use super::forward::udp::ask;
use super::forward::{BOTH, Family, Machines, echo};

fn check_decisions_of_the_kernel_are_explained(family: Family) {
    let Some(machines) = Machines::new(family) else {
        return;
    };
    machines.start_member(2, Duration::ZERO);
    machines.start_member(3, Duration::ZERO);
    let Some(balancer) = machines.start_balancer(&[2, 3], "strategy = \"adaptive\"") else {
        return;
    };
    let explain = || {
        let ask = || balancer.run_ctl("explain db").unwrap();
        machines.pair.front.run_inside(ask)
    };
    let told = explain();
    assert!(told.contains("has had no request yet"), "{told}");
    assert!(told.contains("while the kernel forwards connections of rule \"db\""));
    let (mut stream, seen) = machines.connect().unwrap();
    assert_eq!(seen, family.client());
    echo(&mut stream, 5000);
    let mut told = String::new();
    wait_until("the decision is explained", || {
        told = explain();
        told.contains("the kernel sent a connection to")
    });
    let client = stream.local_addr().unwrap().to_string();
    assert!(
        told.contains(&format!("decided for the client {client}")),
        "{told}"
    );
    assert!(told.contains("next after it: "), "{told}");
    let last = told
        .split("the kernel sent a connection to")
        .nth(1)
        .unwrap();
    for number in [2, 3] {
        let member = machines.family.member(number);
        assert!(last.contains(&member.to_string()), "{told}");
    }
    assert!(last.contains("cost of one connection"), "{told}");
    let json = || balancer.admin_json("/v1/groups/db/explain");
    let answer = machines.pair.front.run_inside(json);
    assert_eq!(answer["last"]["in_kernel"], true, "{answer}");
    assert_eq!(answer["next"]["in_kernel"], false, "{answer}");
}

#[test]
fn s41_decisions_of_the_kernel_are_explained() {
    BOTH.into_iter()
        .for_each(check_decisions_of_the_kernel_are_explained);
}

#[test]
fn s41_decisions_about_sessions_of_udp_are_explained() {
    for family in BOTH {
        let Some(machines) = Machines::new(family) else {
            return;
        };
        for last in [2, 3] {
            machines.start_udp_member(last);
        }
        let settings = "strategy = \"adaptive\"";
        let Some(balancer) = machines.start_udp_balancer("kernel", &[2, 3], settings) else {
            return;
        };
        assert_eq!(machines.state(&balancer), "kernel");
        let socket = machines.open_client();
        let answer = ask(&socket, 100).unwrap();
        let client = socket.local_addr().unwrap();
        let mut told = String::new();
        wait_until("the decision is explained", || {
            let explain = || balancer.run_ctl("explain db").unwrap();
            told = machines.pair.front.run_inside(explain);
            told.contains(&format!("decided for the client {client}"))
        });
        let member = family.member(answer.last);
        assert!(
            told.contains(&format!("the kernel sent a connection to {member}")),
            "{told}"
        );
        assert!(told.contains("next after it: "), "{told}");
    }
}
