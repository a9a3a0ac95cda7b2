//! States of members that decisions in the kernel follow: limits of connections with the group's queue, and ejection.

use std::net::TcpListener;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use evenkeel_e2e::HANG;
use evenkeel_e2e::balancer::{Balancer, evenkeel_binary};
use evenkeel_e2e::wait_until;

use super::{BOTH, Family, Machines, count, echo, serve_echo, write_config_for};

/// A balancer with a group whose member 2 has room for one connection.
fn start_with_limit(machines: &Machines) -> Option<Balancer> {
    let member = machines.family.member(2);
    let config = machines.write_config("kernel", &[2], "queue_timeout = \"60s\"");
    let plain = format!("\"{member}\"");
    let limited = format!("{{ address = {plain}, max_connections = 1 }}");
    let command = machines.pair.front.command(evenkeel_binary());
    machines.start_balancer_by(command, &config.replace(&plain, &limited))
}

fn check_who_finds_members_full_waits_for_the_end_of_a_connection(family: Family) {
    let Some(machines) = Machines::new(family) else {
        return;
    };
    machines.start_member(2, Duration::ZERO);
    let Some(balancer) = start_with_limit(&machines) else {
        return;
    };
    assert_eq!(machines.state(&balancer), "kernel");
    for _ in 0..2 {
        // Connections of the member that the proxy knows of: its own, and those of the kernel 20 times a second.
        let in_flight = || {
            let member = family.member(2);
            let series = format!("evenkeel_member_in_flight{{group=\"db\",member=\"{member}\"}}");
            let read = || balancer.read_metric(&series);
            machines.pair.front.run_inside(read)
        };
        let mut first = None;
        wait_until("the kernel has the place", || {
            if in_flight() != Some(0.0) {
                return false;
            }
            let (stream, seen) = machines.connect().unwrap();
            first = (seen == family.client()).then_some(stream);
            first.is_some()
        });
        let mut first = first.unwrap();
        echo(&mut first, 5000);
        let full = || {
            machines.forwarded(&balancer)["packets"]["proxied_full"]
                .as_u64()
                .unwrap()
        };
        let queued = || {
            let read = || balancer.read_metric("evenkeel_group_queue{group=\"db\"}");
            machines.pair.front.run_inside(read)
        };
        wait_until("the proxy knows of the connection", || {
            in_flight() == Some(1.0)
        });
        let before = full();
        thread::scope(|scope| {
            let (served, serves) = mpsc::channel();
            let machines = &machines;
            scope.spawn(move || served.send(machines.connect()).unwrap());
            wait_until("the other client waits", || {
                full() > before && queued() == Some(1.0)
            });
            assert!(serves.try_recv().is_err(), "the member has room for one");
            echo(&mut first, 5000);
            drop(first);
            let (mut second, seen) = serves.recv_timeout(HANG).unwrap().unwrap();
            assert_eq!(seen, family.balancer(), "the proxy serves who has waited");
            echo(&mut second, 5000);
        });
    }
}

#[test]
fn s41_who_finds_members_full_waits_for_the_end_of_a_connection() {
    BOTH.into_iter()
        .for_each(check_who_finds_members_full_waits_for_the_end_of_a_connection);
}

fn check_members_that_refuse_are_ejected_and_come_back(family: Family) {
    let Some(machines) = Machines::new(family) else {
        return;
    };
    machines.start_member(2, Duration::ZERO);
    // Nobody listens at the third yet.
    let more = "strategy = \"round_robin\"\n\
                ejection = { time = \"30m\", max_time = \"30m\", trials = false }";
    let Some(balancer) = machines.start_balancer(&[2, 3], more) else {
        return;
    };
    assert_eq!(machines.state(&balancer), "kernel");
    let front = &machines.pair.front;
    let refusing = family.member(3);
    let is_eligible = || {
        let now = machines.forwarded(&balancer);
        let members = now["members"].as_array().unwrap().clone();
        let is_it = |one: &&serde_json::Value| one["member"] == refusing.to_string();
        members
            .iter()
            .find(is_it)
            .map(|one| one["eligible"] == true)
    };
    let serve = || {
        let (mut stream, seen) = machines.connect().unwrap();
        assert_eq!(seen, family.client(), "the kernel forwards");
        echo(&mut stream, 1000);
    };
    wait_until("the refusing member is ejected", || {
        serve();
        front.run_inside(|| balancer.member_status("db", refusing))["state"] == "ejected"
    });
    wait_until("the kernel knows", || is_eligible() == Some(false));
    let refused = machines.count(&balancer, 3, "refused");
    assert!(refused >= 1);
    (0..20).for_each(|_| serve());
    machines.wait_for_ends(&balancer);
    assert_eq!(machines.count(&balancer, 3, "refused"), refused);

    // Well again.
    machines.start_member(3, Duration::ZERO);
    let words = format!("uneject db {refusing}");
    front.run_inside(|| balancer.run_ctl(&words)).unwrap();
    wait_until("the member gets connections", || {
        serve();
        machines.count(&balancer, 3, "bytes_out") > 0
    });
}

#[test]
fn s41_members_that_refuse_are_ejected_and_come_back() {
    BOTH.into_iter()
        .for_each(check_members_that_refuse_are_ejected_and_come_back);
}

#[test]
fn s41_groups_of_many_members_are_decided_in_the_kernel() {
    let Some(machines) = Machines::new(Family::V4) else {
        return;
    };
    // More than a decision looks at.
    let members: Vec<_> = (9_000..9_150)
        .map(|port| {
            let mut member = Family::V4.member(2);
            member.set_port(port);
            member
        })
        .collect();
    for member in &members {
        let listen = || TcpListener::bind(member).unwrap();
        serve_echo(machines.pair.back.run_inside(listen), Duration::ZERO);
    }
    let more = "strategy = \"least_connection\"";
    let config = write_config_for(&[Family::V4], "kernel", &members, more);
    let command = machines.pair.front.command(evenkeel_binary());
    let Some(balancer) = machines.start_balancer_by(command, &config) else {
        return;
    };
    assert_eq!(machines.state(&balancer), "kernel");
    let mut open = Vec::new();
    for _ in 0..60 {
        let (mut stream, seen) = machines.connect().unwrap();
        assert_eq!(seen, Family::V4.client());
        echo(&mut stream, 1000);
        open.push(stream);
    }
    // The status is up to a second old.
    wait_until("each connection has a member without another one", || {
        let now = machines.forwarded(&balancer);
        let chosen = members
            .iter()
            .filter(|member| count(&now, **member, "picks") > 0);
        chosen.count() == 60
    });
}
