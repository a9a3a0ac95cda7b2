//! Metrics of connections and sessions in the kernel.

use super::udp::ask;
use super::*;

/// A member that accepts, and resets each connection at once.
fn start_resetting_member(machines: &Machines, last: u8) {
    let at = machines.family.member(last);
    let back = &machines.pair.back;
    let listener = back.run_inside(|| TcpListener::bind(at).unwrap());
    thread::spawn(move || {
        while let Ok((stream, _)) = listener.accept() {
            // The client may have gone.
            let _ = rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO));
        }
    });
}

/// Waits until the sum of each of these series is above 0. `act` is called before each look.
fn wait_for_series(machines: &Machines, balancer: &Balancer, series: &[&str], act: impl Fn()) {
    for name in series {
        wait_until(&format!("{name} is above 0"), || {
            act();
            let front = &machines.pair.front;
            let page = front.run_inside(|| balancer.admin_get("/metrics").text().to_owned());
            let values = page.lines().filter_map(|line| {
                let (series, value) = line.rsplit_once(' ')?;
                let is_one = series == *name
                    || series
                        .split_once('{')
                        .is_some_and(|(family, _)| family == *name);
                is_one.then(|| value.parse::<f64>().unwrap())
            });
            values.sum::<f64>() > 0.0
        });
    }
}

#[test]
fn s41_metrics_tell_of_connections_and_sessions_of_the_kernel() {
    let Some(machines) = Machines::new(Family::V4) else {
        return;
    };
    machines.start_member(2, Duration::ZERO);
    // Nobody listens at the third.
    start_resetting_member(&machines, 4);
    machines.start_udp_member(2);
    let more = "strategy = \"round_robin\"";
    let Some(balancer) = machines.start_balancer(&[2, 3, 4], more) else {
        return;
    };
    let mut open = Vec::new();
    for _ in 0..9 {
        if let Ok((mut stream, _)) = machines.connect() {
            for length in [100, 200, 300] {
                echo(&mut stream, length);
            }
            open.push(stream);
        }
    }
    assert!(open.len() >= 3);
    wait_for_series(
        &machines,
        &balancer,
        &[
            "evenkeel_forward_active",
            "evenkeel_forward_packets_total{result=\"to_member\"}",
            "evenkeel_forward_packets_total{result=\"to_client\"}",
            "evenkeel_forward_packets_total{result=\"retried\"}",
            "evenkeel_forward_table_entries{table=\"connections\"}",
            "evenkeel_forward_table_size{table=\"connections\"}",
            "evenkeel_forward_table_size{table=\"sessions\"}",
            "evenkeel_forward_table_size{table=\"connection_ids\"}",
            "evenkeel_forward_rule_connections",
            "evenkeel_forward_rule_connections_total",
            "evenkeel_forward_connections",
            "evenkeel_forward_connections_total",
            "evenkeel_forward_connects_total",
            "evenkeel_forward_connect_seconds_total",
            "evenkeel_forward_first_bytes_total",
            "evenkeel_forward_first_byte_seconds_total",
            "evenkeel_forward_requests_total",
            "evenkeel_forward_request_seconds_total",
            "evenkeel_forward_refused_total",
            "evenkeel_forward_resets_total",
        ],
        || {},
    );
    drop(open);
    let of_ends = [
        "evenkeel_forward_rule_received_bytes_total",
        "evenkeel_forward_rule_sent_bytes_total",
        "evenkeel_forward_received_bytes_total",
        "evenkeel_forward_sent_bytes_total",
    ];
    wait_for_series(&machines, &balancer, &of_ends, || {});
    drop(balancer);

    let more = "idle_timeout = \"1s\"";
    let balancer = machines.start_udp_balancer("kernel", &[2], more).unwrap();
    let socket = machines.open_client();
    let ask_member = || {
        ask(&socket, 100).unwrap();
    };
    // A session ends after a second without datagrams.
    let of_open = ["evenkeel_forward_table_entries{table=\"sessions\"}"];
    wait_for_series(&machines, &balancer, &of_open, ask_member);
    let of_ends = [
        "evenkeel_forward_rule_received_datagrams_total",
        "evenkeel_forward_rule_sent_datagrams_total",
    ];
    wait_for_series(&machines, &balancer, &of_ends, || {});
}
