//! TCP rules, and who stays with whom.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use evenkeel_e2e::balancer::Balancer;
use evenkeel_e2e::folder::Folder;
use evenkeel_e2e::member::Member;
use evenkeel_e2e::process::{are_installed, run_curl};
use evenkeel_e2e::server::{Server, address};
use evenkeel_e2e::wait_until;
use evenkeel_e2e::wire::Wire;

#[test]
fn http_passes_as_it_is() {
    if !are_installed(&["nginx", "curl"]) {
        return;
    }
    let server = Server::start_nginx(None);
    let balancer = Balancer::start_tcp(&[server.address()], "");
    let url = format!("http://{}", balancer.address("web"));
    let content: Vec<u8> = (0..20 * 1024 * 1024u32)
        .map(|number| (number.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    let folder = Folder::new();
    let file = folder.write("content", &content);
    let (file, got) = (file.to_str().unwrap(), folder.join("got"));
    run_curl(&["--fail", "--upload-file", file, &format!("{url}/dav/x")]);
    assert!(server.uploaded("x") == content);
    server.put_document("x", &content);
    let got = got.to_str().unwrap();
    run_curl(&["--fail", "--output", got, &format!("{url}/files/x")]);
    assert!(folder.read("got") == content);
}

/// A member that answers with how much came, when the client has ended its direction.
fn counting() -> Member {
    Member::start(|_, mut wire| {
        let count = wire.read_to_end().len();
        wire.try_send(count.to_string());
    })
}

#[test]
fn one_direction_may_end_before_the_other() {
    let member = counting();
    let balancer = Balancer::start_tcp(&[member.address()], "");
    let mut client = balancer.connect();
    client.send(vec![1; 1_000_000]);
    client.end_sending();
    assert_eq!(client.read_to_end(), b"1000000");
}

#[test]
fn the_first_end_closes_both_directions_where_the_rule_says_so() {
    let member = Member::start(|_, mut wire| {
        wire.send("hello");
        // Without an end of what comes, this member would never end.
        wire.read_to_end();
    });
    let balancer = Balancer::start_tcp(&[member.address()], "half_close = false");
    let mut client = balancer.connect();
    assert_eq!(client.try_read_exact(5).unwrap(), b"hello");
    client.end_sending();
    assert!(client.is_at_end());
}

#[test]
fn silence_ends_a_connection() {
    let member = Member::start(|_, mut wire| {
        while let Some(bytes) = wire.try_read_exact(4) {
            wire.try_send(bytes);
        }
    });
    // Long enough for an answer on a machine that has much else to do.
    let balancer = Balancer::start_tcp(&[member.address()], "idle_timeout = \"3s\"");
    let mut client = balancer.connect();
    client.send("ping");
    assert_eq!(client.try_read_exact(4).unwrap(), b"ping");
    assert!(client.is_at_end());
}

#[test]
fn a_member_that_is_not_there_costs_no_connection() {
    if !are_installed(&["nginx", "curl"]) {
        return;
    }
    let server = Server::start_nginx(None);
    let members = [address(), server.address(), address()];
    for protocol in ["tcp", "http"] {
        let more = "strategy = \"round_robin\"";
        let balancer = match protocol {
            "tcp" => Balancer::start_tcp(&members, more),
            _ => Balancer::start_http(&members, more),
        };
        let url = format!("http://{}/name", balancer.address("web"));
        for _ in 0..20 {
            assert_eq!(run_curl(&["--fail", &url]), server.address().to_string());
        }
    }
}

fn three() -> [Server; 3] {
    [
        Server::start_nginx(None),
        Server::start_nginx(None),
        Server::start_nginx(None),
    ]
}

/// Returns the name of the member that answers a client that comes from `from`.
fn who(balancer: &Balancer, from: &str) -> String {
    let url = format!("http://{}/name", balancer.address("web"));
    run_curl(&["--fail", "--interface", from, &url])
}

#[test]
fn a_client_address_stays_with_its_member() {
    if !are_installed(&["nginx", "curl"]) {
        return;
    }
    let mut servers = three();
    let members = servers.each_ref().map(Server::address);
    for protocol in ["tcp", "http"] {
        // Without a bound: a connection that is being closed would move the next one of its client.
        let more = "strategy = { name = \"source_ip_hash\", bound = 0 }\nslow_start = \"0s\"";
        let balancer = match protocol {
            "tcp" => Balancer::start_tcp(&members, more),
            _ => Balancer::start_http(&members, more),
        };
        let homes: BTreeMap<String, String> = (1..=20)
            .map(|client| format!("127.9.0.{client}"))
            .map(|client| (client.clone(), who(&balancer, &client)))
            .collect();
        let used: BTreeSet<_> = homes.values().collect();
        assert!(used.len() > 1, "all at one: {homes:?}");
        for (client, home) in &homes {
            assert_eq!(who(&balancer, client), *home, "{client}");
        }
        // Without one member only its clients move.
        let gone = servers[0].address().to_string();
        servers[0].kill();
        for (client, home) in &homes {
            let now = who(&balancer, client);
            assert_ne!(now, gone);
            if *home != gone {
                assert_eq!(now, *home, "{client}");
            }
        }
        servers[0].restart();
    }
}

/// Returns the name of the member that answers the next request on a connection.
fn next(client: &mut Wire) -> String {
    client.send("GET /name HTTP/1.1\r\nHost: a\r\n\r\n");
    let response = client.read_response();
    assert_eq!(response.second_word(), "200");
    response.text().to_owned()
}

#[test]
fn a_session_stays_and_requests_wander() {
    if !are_installed(&["nginx"]) {
        return;
    }
    let servers = three();
    let members = servers.each_ref().map(Server::address);
    for (granularity, wanted) in [("per_session", 1), ("per_request", 3)] {
        let more = format!(
            "strategy = \"round_robin\"\nslow_start = \"0s\"\ngranularity = \"{granularity}\""
        );
        let balancer = Balancer::start_http(&members, &more);
        let mut all = BTreeSet::new();
        for _ in 0..6 {
            let mut client = balancer.connect();
            let used: BTreeSet<_> = (0..9).map(|_| next(&mut client)).collect();
            assert_eq!(used.len(), wanted, "{granularity}: {used:?}");
            all.extend(used);
        }
        assert_eq!(all.len(), 3, "{granularity}: {all:?}");
    }
}

#[test]
fn an_alert_takes_clients_away_and_no_alert_leaves_them() {
    if !are_installed(&["nginx"]) {
        return;
    }
    let servers = three();
    let members = servers.each_ref().map(Server::address);
    let balancer = Balancer::start_http(
        &members,
        "granularity = \"on_demand\"\nslow_start = \"0s\"\nload_max_age = \"1h\"\n\
         strategy = \"load_minimum\"\n\
         [rule.web.alert]\n\
         threshold = 0.8\n\
         shed_time = \"100ms\"",
    );
    let report = |member: &str, load: f32| {
        let location = member.parse::<SocketAddr>().unwrap().ip();
        let words = format!("loads push {location} cpu={load}");
        balancer.run_ctl(&words).unwrap();
    };
    for member in members {
        report(&member.to_string(), 0.5);
    }
    let mut client = balancer.connect();
    let home = next(&mut client);
    // Others are less loaded, but it is bound.
    report(&home, 0.7);
    for _ in 0..20 {
        assert_eq!(next(&mut client), home);
    }
    report(&home, 0.95);
    let mut moved = home.clone();
    wait_until("the client moves", || {
        moved = next(&mut client);
        moved != home
    });
    let status = balancer.status();
    let alerted: Vec<_> = status["locations"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|location| location["alert"] == true)
        .map(|location| location["name"].as_str().unwrap())
        .collect();
    let location = home.parse::<SocketAddr>().unwrap().ip().to_string();
    assert_eq!(alerted, [location]);
    // It stays where it is, with the alert and without it.
    for _ in 0..20 {
        assert_eq!(next(&mut client), moved);
    }
    report(&home, 0.1);
    let home = home.parse().unwrap();
    wait_until("the alert is lifted", || {
        balancer.member_status("web", home)["alert"] == false
    });
    for _ in 0..20 {
        assert_eq!(next(&mut client), moved);
    }
}

/// A member that sends back what it gets.
fn echoing() -> Member {
    Member::start(|_, mut wire| {
        while let Some(bytes) = wire.try_read_exact(4) {
            if !wire.try_send(bytes) {
                break;
            }
        }
    })
}

fn is_served(balancer: &Balancer) -> bool {
    let mut client = balancer.connect();
    client.try_send("ping") && client.try_read_exact(4).is_some()
}

#[test]
fn b15_a_member_that_refuses_connections_is_taken_out_of_a_tcp_rule() {
    let member = echoing();
    let dead = address();
    let more = "strategy = \"round_robin\"\nslow_start = \"0s\"\nconnection_failure_limit = 2";
    let balancer = Balancer::start_tcp(&[member.address(), dead], more);
    // Nobody notices.
    for _ in 0..20 {
        assert!(is_served(&balancer));
    }
    balancer.wait_for_state("web", dead, &["ejected", "down"]);
    let failures = || {
        let member = balancer.member_status("web", dead);
        member["totals"]["failures"].as_u64().unwrap()
    };
    let before = failures();
    assert!(before >= 2, "{before}");
    for _ in 0..20 {
        assert!(is_served(&balancer));
    }
    assert_eq!(failures(), before, "it was tried again at once");
}

#[test]
fn b15_how_many_members_are_tried_for_a_tcp_client_is_configured() {
    let member = echoing();
    let dead: [_; 4] = std::array::from_fn(|_| address());
    let members = [&dead[..], &[member.address()]].concat();
    // Nobody is taken out, so that each client may meet all of them.
    let more = "strategy = \"round_robin\"\nslow_start = \"0s\"\n\
                connection_failure_limit = 1000\nconnect_retries = ";
    let balancer = Balancer::start_tcp(&members, &format!("{more}4"));
    for _ in 0..10 {
        assert!(is_served(&balancer));
    }
    let balancer = Balancer::start_tcp(&members, &format!("{more}0"));
    let served = (0..10).filter(|_| is_served(&balancer)).count();
    assert!(served < 10, "{served}");
}

#[test]
fn a_group_in_maintenance_refuses_clients_of_tcp_and_ftp() {
    let member = Member::start(|_, mut wire| {
        wire.send("220 hello\r\n");
        let _ = wire.read_to_end();
    });
    let rule = |name: &str| {
        format!("[rule.{name}]\nlisten = \"127.0.0.1:0\"\nprotocol = \"{name}\"\ngroup = \"app\"\n")
    };
    let balancer = Balancer::start(&format!(
        "workers = 1\n[admin]\nlisten = \"127.0.0.1:0\"\n{}{}[group.app]\nmembers = [\"{}\"]\nhealth_check = false\n",
        rule("tcp"),
        rule("ftp"),
        member.address()
    ));
    let greeting = |name: &str| Wire::connect(balancer.address(name)).try_read_exact(3);
    let mut open = Wire::connect(balancer.address("tcp"));
    assert_eq!(open.try_read_exact(3).unwrap(), b"220");
    assert_eq!(greeting("ftp").unwrap(), b"220");
    balancer.run_ctl("maintain app on").unwrap();
    wait_until("the worker knows", || greeting("tcp").is_none());
    assert_eq!(greeting("ftp").unwrap(), b"421");
    for name in ["tcp", "ftp"] {
        let series =
            format!("evenkeel_rule_refused_total{{rule=\"{name}\",reason=\"maintenance\"}}");
        assert!(balancer.read_metric(&series) >= Some(1.0), "{name}");
    }
    // Who is there already stays.
    assert_eq!(open.try_read_exact(6).unwrap(), b" hello");
    balancer.run_ctl("maintain app off").unwrap();
    wait_until("the worker knows", || {
        greeting("tcp").as_deref() == Some(b"220")
    });
    assert_eq!(greeting("ftp").unwrap(), b"220");
}
