//! Load alerts as clients see them: they move once, a share at a time, at a safe moment,
//! and there always is somebody who serves.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use evenkeel_e2e::balancer::Balancer;
use evenkeel_e2e::member::{Member, ok_response};
use evenkeel_e2e::wait_until;
use evenkeel_e2e::wire::Wire;
use serde_json::Value;

/// Three members that answer each request with their names, `0` to `2`.
fn three() -> Vec<Member> {
    let named = |number: usize| Member::answering_with(move |_| ok_response(&number.to_string()));
    (0..3).map(named).collect()
}

/// A rule, with its members at locations `l0`, `l1` and so on.
fn rule(name: &str, protocol: &str, members: &[Member], more: &str) -> String {
    let member = |(number, member): (usize, &Member)| {
        let address: SocketAddr = member.address();
        format!("{{ address = \"{address}\", location = \"l{number}\" }}")
    };
    let members: Vec<_> = members.iter().enumerate().map(member).collect();
    format!(
        "[rule.{name}]\n\
         listen = \"127.0.0.1:0\"\n\
         protocol = \"{protocol}\"\n\
         strategy = \"round_robin\"\n\
         slow_start = \"0s\"\n\
         load_max_age = \"1h\"\n\
         members = [{}]\n\
         {more}\n",
        members.join(", ")
    )
}

fn balancer(rules: &str) -> Balancer {
    Balancer::start(&configuration(rules))
}

fn configuration(rules: &str) -> String {
    format!("workers = 1\n[admin]\nlisten = \"127.0.0.1:0\"\n{rules}")
}

fn report(balancer: &Balancer, location: usize, cpu: f32) {
    let words = format!("loads push l{location} cpu={cpu}");
    balancer.run_ctl(&words).unwrap();
}

/// The locations of the status for which `holds`, by number.
fn locations(balancer: &Balancer, holds: impl Fn(&Value) -> bool) -> BTreeSet<usize> {
    let status = balancer.status();
    let locations = status["locations"].as_array().unwrap().iter();
    let held = locations.filter(|location| holds(location));
    held.map(|location| location["name"].as_str().unwrap()[1..].parse().unwrap())
        .collect()
}

fn alerted(balancer: &Balancer) -> BTreeSet<usize> {
    locations(balancer, |location| location["alert"] == true)
}

fn wait_for_alerts(balancer: &Balancer, wanted: &[usize]) {
    let wanted = BTreeSet::from_iter(wanted.iter().copied());
    wait_until(&format!("alerts are {wanted:?}"), || {
        alerted(balancer) == wanted
    });
}

/// Members of the rule that are shedding, by number.
fn shedding(balancer: &Balancer, rule: &str) -> Vec<usize> {
    let status = balancer.status();
    let groups = status["groups"].as_array().unwrap();
    let group = groups.iter().find(|group| group["name"] == rule).unwrap();
    let members = group["members"].as_array().unwrap().iter().enumerate();
    let reasons = |member: &Value| member["reasons"].as_array().unwrap().clone();
    let sheds = members.filter(|(_, member)| reasons(member).iter().any(|r| r == "shedding"));
    sheds.map(|(number, _)| number).collect()
}

/// Returns the number of the member that answers the client's next request.
fn ask(client: &mut Wire) -> usize {
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    let response = client.read_response();
    assert_eq!(response.second_word(), "200");
    response.text().parse().unwrap()
}

fn ask_all(clients: &mut [Wire]) -> Vec<usize> {
    clients.iter_mut().map(ask).collect()
}

#[test]
fn clients_move_once_and_the_least_loaded_serves_when_all_are_critical() {
    let members = three();
    let more = "granularity = \"on_demand\"\n\
                alert = { threshold = 0.8, release = 0.9, max_share = 1, shed_time = \"0s\" }";
    let balancer = balancer(&rule("web", "http", &members, more));
    (0..3).for_each(|location| report(&balancer, location, 0.5));
    let mut clients: Vec<_> = (0..12).map(|_| balancer.connect()).collect();
    let homes = ask_all(&mut clients);
    assert_eq!(homes.iter().filter(|&&home| home == 0).count(), 4);

    report(&balancer, 0, 0.95);
    wait_for_alerts(&balancer, &[0]);
    wait_until("the members know", || shedding(&balancer, "web") == [0]);
    let moved = ask_all(&mut clients);
    for (home, now) in homes.iter().zip(&moved) {
        match home {
            0 => assert_ne!(*now, 0),
            _ => assert_eq!(now, home, "nobody else has to move"),
        }
    }
    assert_eq!(ask_all(&mut clients), moved, "once is enough");

    // Below the threshold, but not far enough. The next alert comes with the same round.
    report(&balancer, 0, 0.75);
    report(&balancer, 1, 0.95);
    wait_for_alerts(&balancer, &[0, 1]);
    let mut moves = 4;
    wait_until("all are at the only one without an alert", || {
        ask_all(&mut clients) == [2; 12]
    });
    moves += moved.iter().filter(|&&now| now != 2).count();

    // With every location critical the least loaded one serves, and nobody goes around.
    report(&balancer, 2, 0.99);
    wait_for_alerts(&balancer, &[0, 1, 2]);
    wait_until("all but the least loaded shed", || {
        shedding(&balancer, "web") == [1, 2]
    });
    for _ in 0..30 {
        assert_eq!(ask_all(&mut clients), [0; 12]);
    }
    moves += clients.len();
    assert_eq!(ask(&mut balancer.connect()), 0);
    let counted = balancer.rule_count("moved_total", "reason=\"alert\"");
    assert_eq!(counted, moves as u64);

    (0..3).for_each(|location| report(&balancer, location, 0.1));
    wait_for_alerts(&balancer, &[]);
    wait_until("nobody sheds", || shedding(&balancer, "web").is_empty());
    assert_eq!(ask_all(&mut clients), [0; 12], "what is bound stays");
    let raised = balancer.read_metric("evenkeel_group_alerts_raised_total{group=\"web\"}");
    assert_eq!(raised, Some(3.0));
    for cause in ["load alert raised", "threshold=0.8", "load alert lifted"] {
        balancer.wait_for_log(cause);
    }
}

#[test]
fn clients_leave_bit_by_bit_and_stay_when_the_alert_is_over() {
    let members = three();
    let config = |shed_time: &str, share: f32| {
        let more = format!(
            "granularity = \"per_session\"\n\
             alert = {{ threshold = 0.8, move_sessions = true, shed_time = \"{shed_time}\", \
             move_share = {share} }}"
        );
        configuration(&rule("web", "http", &members, &more))
    };
    let balancer = Balancer::start(&config("1h", 0.5));
    let mut clients: Vec<_> = (0..60).map(|_| balancer.connect()).collect();
    let homes = ask_all(&mut clients);
    let left = |clients: &mut [Wire]| {
        let now = ask_all(clients);
        let pairs = homes.iter().zip(&now);
        pairs.filter(|(home, now)| home != now).count()
    };
    balancer.run_ctl("alert l0 on").unwrap();
    wait_until("the members know", || shedding(&balancer, "web") == [0]);
    // Half of them leave in an hour, so next to none do in a few moments.
    for _ in 0..20 {
        assert!(left(&mut clients) <= 2);
    }
    balancer.run_ctl("alert l0 auto").unwrap();
    wait_until("it is over", || shedding(&balancer, "web").is_empty());
    assert!(left(&mut clients) <= 2);

    // As fast as it can be: all of them, and nobody else.
    balancer.reconfigure(&config("0s", 1.0));
    balancer.run_ctl("alert l0 on").unwrap();
    wait_until("the members know", || shedding(&balancer, "web") == [0]);
    let from_it = homes.iter().filter(|&&home| home == 0).count();
    let left = left(&mut clients);
    assert!((from_it..=from_it + 2).contains(&left), "{left}");
    assert!(ask_all(&mut clients).iter().all(|&now| now != 0));
}

/// Members that say their names, and answer each `a` with `b`; nothing else gets one.
fn talking() -> Vec<Member> {
    let named = |number: usize| {
        Member::start(move |_, mut wire| {
            wire.send(number.to_string());
            while let Some(byte) = wire.try_read_exact(1) {
                if byte == b"a" && !wire.try_send("b") {
                    return;
                }
            }
        })
    };
    (0..3).map(named).collect()
}

fn greeted(balancer: &Balancer) -> (usize, Wire) {
    let mut client = Wire::connect(balancer.address("talk"));
    let name = client.try_read_exact(1).unwrap();
    (usize::from(name[0] - b'0'), client)
}

#[test]
fn idle_connections_are_closed_and_busy_ones_are_not() {
    let (web, talk) = (three(), talking());
    let alert = "granularity = \"on_demand\"\nalert = { threshold = 0.8, shed_time = \"0s\" }";
    let follows = "granularity = \"per_session\"\n\
                   alert = { shed_time = \"0s\", close_idle = \"200ms\" }";
    let rules = rule("web", "http", &web, alert) + &rule("talk", "tcp", &talk, follows);
    let log = evenkeel_e2e::folder::Folder::new();
    let path = log.join("access.log");
    let log_to = format!("[access_log]\noutput = \"{}\"\n", path.display());
    let balancer = balancer(&(rules + &log_to));
    let mut clients: Vec<_> = (0..9).map(|_| greeted(&balancer)).collect();
    // One of each member waits for an answer; another one has got its own.
    for (number, (_, client)) in clients.iter_mut().enumerate() {
        match number {
            0..3 => client.send("?"),
            3..6 => {
                client.send("a");
                assert_eq!(client.try_read_exact(1).unwrap(), b"b");
            }
            _ => {}
        }
    }
    // The other rule's group raises it: the location is the same.
    (0..3).for_each(|location| report(&balancer, location, [0.95, 0.5, 0.5][location]));
    wait_for_alerts(&balancer, &[0]);
    let mut kept = Vec::new();
    for (number, (home, mut client)) in clients.into_iter().enumerate() {
        if home == 0 && number >= 3 {
            // It ends in order.
            assert_eq!(client.read_to_end(), b"");
            assert_ne!(greeted(&balancer).0, 0, "it comes back elsewhere");
        } else {
            kept.push(client);
        }
    }
    assert_eq!(kept.len(), 7);
    // A client sees the end of its connection a moment before that is counted.
    wait_until("both are counted", || {
        balancer.read_metric("evenkeel_rule_closed_by_alert_total{rule=\"talk\"}") == Some(2.0)
    });
    wait_until("the access log says why", || {
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        text.lines()
            .filter(|l| l.contains("\"end\":\"alert\""))
            .count()
            == 2
    });
    for client in &mut kept {
        client.send("a");
        assert_eq!(client.try_read_exact(1).unwrap(), b"b");
    }
}

#[test]
fn an_administrator_has_the_last_word() {
    let members = three();
    let more = "granularity = \"on_demand\"\n\
                alert = { threshold = 0.8, shed_time = \"0s\" }";
    let balancer = balancer(&rule("web", "http", &members, more));
    report(&balancer, 0, 0.95);
    wait_for_alerts(&balancer, &[0]);
    let loads = balancer.run_ctl("loads").unwrap();
    assert!(
        loads.contains("ALERT by web") && loads.contains("above 0.8"),
        "{loads}"
    );
    balancer.run_ctl("alert l0 off").unwrap();
    wait_for_alerts(&balancer, &[]);
    wait_until("nobody sheds", || shedding(&balancer, "web").is_empty());
    // More than the share that groups may alert, but never all of them.
    for location in 0..3 {
        balancer.run_ctl(&format!("alert l{location} on")).unwrap();
    }
    wait_for_alerts(&balancer, &[0, 1, 2]);
    wait_until("all but one shed", || shedding(&balancer, "web").len() == 2);
    let serving: BTreeSet<_> = (0..10).map(|_| ask(&mut balancer.connect())).collect();
    assert_eq!(serving.len(), 1);
    for location in 0..3 {
        balancer
            .run_ctl(&format!("alert l{location} auto"))
            .unwrap();
    }
    wait_for_alerts(&balancer, &[0]);
    let complaint = balancer.run_ctl("alert nowhere on").unwrap_err();
    assert!(complaint.contains("l0"), "{complaint}");
}
