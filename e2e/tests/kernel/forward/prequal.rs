//! Decisions of `prequal` in the kernel.

use std::time::Duration;

use evenkeel_e2e::wait_until;

use super::udp::ask;
use super::{BOTH, Family, Machines, echo};

fn check_slow_members_get_fewer_connections(family: Family) {
    let Some(machines) = Machines::new(family) else {
        return;
    };
    machines.start_member(2, Duration::ZERO);
    machines.start_member(3, Duration::from_millis(40));
    let Some(balancer) = machines.start_balancer(&[2, 3], "strategy = \"prequal\"") else {
        return;
    };
    assert_eq!(machines.state(&balancer), "kernel");
    let served = 60;
    for _ in 0..served {
        let (mut stream, seen) = machines.connect().unwrap();
        assert_eq!(seen, family.client(), "the kernel forwards");
        echo(&mut stream, 1000);
    }
    let count = || [2, 3].map(|last| machines.count(&balancer, last, "picks"));
    wait_until("the status has all connections", || {
        count().iter().sum::<u64>() == served
    });
    let [fast, slow] = count();
    assert!(fast > slow, "{fast} {slow}");
    wait_until("people see a decision of the kernel", || {
        let explained = machines.admin_json(&balancer, "/v1/groups/db/explain");
        let last = &explained["last"];
        last["in_kernel"] == true && last["strategy"] == "prequal"
    });
}

#[test]
fn s41_slow_members_get_fewer_connections_by_prequal() {
    BOTH.into_iter()
        .for_each(check_slow_members_get_fewer_connections);
}

#[test]
fn s41_sessions_of_udp_begin_by_prequal() {
    let family = Family::V4;
    let Some(machines) = Machines::new(family) else {
        return;
    };
    [2, 3]
        .into_iter()
        .for_each(|last| machines.start_udp_member(last));
    let more = "strategy = \"prequal\"";
    let Some(balancer) = machines.start_udp_balancer("kernel", &[2, 3], more) else {
        return;
    };
    assert_eq!(machines.state(&balancer), "kernel");
    // Open sessions count, so the next one begins at the other member.
    let clients: Vec<_> = (0..8).map(|_| machines.open_client()).collect();
    let mut members = [0; 4];
    for client in &clients {
        let answer = ask(client, 100).unwrap();
        assert_eq!(answer.seen, client.local_addr().unwrap(), "half NAT");
        members[usize::from(answer.last)] += 1;
    }
    assert!(members[2] >= 1 && members[3] >= 1, "{members:?}");
}
