//! Limits of rules, which connections of the kernel and of the proxy reach together.

use std::net::UdpSocket;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use evenkeel_e2e::balancer::Balancer;
use evenkeel_e2e::{HANG, wait_until};

use super::{BOTH, Family, Machines, echo};

/// Number of connections or datagrams of the only rule that a limit has refused.
fn count_refused(machines: &Machines, balancer: &Balancer, limit: &str) -> f64 {
    let series = format!("evenkeel_rule_limited_total{{rule=\"db\",limit=\"{limit}\"}}");
    let read = || balancer.read_metric(&series);
    machines.pair.front.run_inside(read).unwrap_or(0.0)
}

/// Number of connections, or datagrams, that the kernel has left to the proxy because of a limit.
fn count_proxied(machines: &Machines, balancer: &Balancer) -> u64 {
    let packets = &machines.forwarded(balancer)["packets"];
    packets["proxied_limit"].as_u64().unwrap()
}

fn check_clients_have_as_many_connections_as_the_limit_says(family: Family) {
    let Some(machines) = Machines::new(family) else {
        return;
    };
    machines.start_member(2, Duration::ZERO);
    let more = "limits = { connections = 3 }";
    let Some(balancer) = machines.start_balancer(&[2], more) else {
        return;
    };
    assert_eq!(machines.state(&balancer), "kernel");
    let connect = || {
        let (mut stream, seen) = machines.connect().unwrap();
        assert_eq!(seen, family.client(), "the kernel forwards");
        echo(&mut stream, 5000);
        stream
    };
    let mut open = [connect(), connect(), connect()];
    for refused in 1..4 {
        assert!(machines.connect().is_err(), "a fourth connection");
        let limit = count_refused(&machines, &balancer, "connections");
        assert_eq!(limit, f64::from(refused));
    }
    wait_until("the status has the connections", || {
        count_proxied(&machines, &balancer) >= 3
    });
    open.iter_mut().for_each(|stream| echo(stream, 5000));
    // Another connection of the kernel follows one that is over.
    let [first, ..] = open;
    drop(first);
    wait_until("the client may connect again", || {
        machines
            .connect()
            .is_ok_and(|(_, seen)| seen == family.client())
    });
}

#[test]
fn s41_clients_have_as_many_connections_as_the_limit_says() {
    BOTH.into_iter()
        .for_each(check_clients_have_as_many_connections_as_the_limit_says);
}

#[test]
fn s41_clients_open_as_many_connections_in_a_time_as_the_limit_says() {
    for family in BOTH {
        let Some(machines) = Machines::new(family) else {
            return;
        };
        machines.start_member(2, Duration::ZERO);
        let more = "limits = { new_connections = \"1/h\", new_connections_burst = 5 }";
        let Some(balancer) = machines.start_balancer(&[2], more) else {
            return;
        };
        for _ in 0..5 {
            let (mut stream, seen) = machines.connect().unwrap();
            assert_eq!(seen, family.client());
            echo(&mut stream, 100);
        }
        assert!(machines.connect().is_err());
        let refused = || count_refused(&machines, &balancer, "new_connections");
        assert_eq!(refused(), 1.0);
        // What the client has used stays used when the configuration changes.
        let more = format!("{more}\nconnect_retries = 1");
        let config = machines.write_config("kernel", &[2], &more);
        let front = &machines.pair.front;
        front.run_inside(|| balancer.reconfigure(&config));
        assert!(machines.connect().is_err());
        assert_eq!(refused(), 2.0);
    }
}

fn check_who_finds_a_rule_full_waits_for_the_end_of_a_connection(family: Family) {
    let Some(machines) = Machines::new(family) else {
        return;
    };
    machines.start_member(2, Duration::ZERO);
    let Some(balancer) = machines.start_balancer(&[2], "max_connections = 1") else {
        return;
    };
    assert_eq!(machines.state(&balancer), "kernel");
    let (mut first, seen) = machines.connect().unwrap();
    assert_eq!(seen, family.client());
    echo(&mut first, 5000);
    // The second one waits for the kernel's connection, and the third one for the proxy's.
    for _ in 0..2 {
        let before = count_proxied(&machines, &balancer);
        thread::scope(|scope| {
            let (served, serves) = mpsc::channel();
            let machines = &machines;
            scope.spawn(move || served.send(machines.connect()).unwrap());
            wait_until("the kernel has left the client to the proxy", || {
                count_proxied(machines, &balancer) > before
            });
            assert!(serves.try_recv().is_err(), "the rule has room for one");
            echo(&mut first, 5000);
            first.shutdown(std::net::Shutdown::Both).unwrap();
            let (second, seen) = serves.recv_timeout(HANG).unwrap().unwrap();
            assert_eq!(seen, family.balancer(), "the proxy serves who has waited");
            first = second;
            echo(&mut first, 5000);
        });
    }
    drop(first);
    wait_until("the kernel has the place again", || {
        let (mut stream, seen) = machines.connect().unwrap();
        echo(&mut stream, 5000);
        seen == family.client()
    });
}

#[test]
fn s41_who_finds_a_rule_full_waits_for_the_end_of_a_connection() {
    BOTH.into_iter()
        .for_each(check_who_finds_a_rule_full_waits_for_the_end_of_a_connection);
}

/// Sends a datagram, and returns true if an answer has come to any so far.
fn try_ask(socket: &UdpSocket) -> bool {
    socket.send(b"ask").unwrap();
    socket.set_nonblocking(true).unwrap();
    let mut space = [0; 1000];
    let is_answered = socket.recv(&mut space).is_ok();
    socket.set_nonblocking(false).unwrap();
    is_answered
}

fn check_sessions_of_udp_are_limited(family: Family, more: &str, reason: &str) {
    let Some(machines) = Machines::new(family) else {
        return;
    };
    machines.start_udp_member(2);
    let more = format!("{more}\nidle_timeout = \"2s\"");
    let Some(balancer) = machines.start_udp_balancer("kernel", &[2], &more) else {
        return;
    };
    assert_eq!(machines.state(&balancer), "kernel");
    let [first, second] = [machines.open_client(), machines.open_client()];
    let answer = super::udp::ask(&first, 100).unwrap();
    assert_eq!(answer.seen, first.local_addr().unwrap());
    let series =
        format!("evenkeel_rule_datagrams_dropped_total{{rule=\"db\",reason=\"{reason}\"}}");
    wait_until("the proxy drops datagrams of a second session", || {
        // The first session stays.
        super::udp::ask(&first, 100).unwrap();
        assert!(!try_ask(&second), "a second session");
        let read = || balancer.read_metric(&series);
        machines.pair.front.run_inside(read) > Some(0.0)
    });
    wait_until("the status has the datagram", || {
        count_proxied(&machines, &balancer) >= 1
    });
    drop(first);
    wait_until("the second session begins after the first one", || {
        try_ask(&second)
    });
}

#[test]
fn s41_sessions_of_udp_are_limited_for_the_rule_and_for_clients() {
    let of_client = "limits = { connections = 1 }";
    check_sessions_of_udp_are_limited(Family::V4, "max_connections = 1", "full");
    check_sessions_of_udp_are_limited(Family::V6, "max_connections = 1", "full");
    check_sessions_of_udp_are_limited(Family::V4, of_client, "refused");
    check_sessions_of_udp_are_limited(Family::V6, of_client, "refused");
}
