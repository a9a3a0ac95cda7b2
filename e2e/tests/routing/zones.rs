//! Zones: requests stay in the balancer's own one until its load or its members say otherwise.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking.

use evenkeel_e2e::balancer::Balancer;
use evenkeel_e2e::load::Clients;
use evenkeel_e2e::process::are_installed;
use evenkeel_e2e::server::Server;
use evenkeel_e2e::wait_until;
use serde_json::Value;

/// A balancer in the zone `north`, with two members there and two in `south`. Those of each zone are
/// at one location, which is called like it; the second ones are in its zone because that says so.
fn start(servers: &[Server; 4], strategy: &str) -> Balancer {
    let [a, b, c, d] = servers.each_ref().map(Server::address);
    Balancer::start(&format!(
        r#"
        workers = 2
        [node]
        zone = "north"
        [admin]
        listen = "127.0.0.1:0"
        [rule.web]
        listen = "127.0.0.1:0"
        strategy = "{strategy}"
        members = [
            {{ address = "{a}", location = "n", zone = "north" }}, {{ address = "{b}", location = "n" }},
            {{ address = "{c}", location = "s", zone = "south" }}, {{ address = "{d}", location = "s" }},
        ]
        load_max_age = "1h"
        slow_start = "0s"
        [rule.web.health_check]
        doc_path = "/name"
        frequency = "100ms"
        timeout = "5s"
        fall = 2
        rise = 2
        [location.n]
        zone = "north"
        [location.s]
        zone = "south"
        "#
    ))
}

/// Returns the status of the two zones.
fn zones(balancer: &Balancer) -> [Value; 2] {
    let status = balancer.status();
    let zones = status["groups"][0]["zones"].as_array().unwrap();
    let [north, south] = &zones[..] else {
        panic!("{zones:?}");
    };
    assert_eq!(
        (&north["name"], &south["name"]),
        (&"north".into(), &"south".into())
    );
    assert_eq!(
        (&north["own"], &south["own"]),
        (&true.into(), &false.into())
    );
    [north.clone(), south.clone()]
}

fn share(balancer: &Balancer) -> f64 {
    zones(balancer)[0]["share"].as_f64().unwrap()
}

/// Requests that each zone has got.
fn requests(balancer: &Balancer) -> [u64; 2] {
    zones(balancer).map(|zone| zone["requests"].as_u64().unwrap())
}

#[test]
fn requests_leave_a_zone_that_is_loaded_or_down_and_come_back() {
    if !are_installed(&["nginx"]) {
        return;
    }
    let mut servers = [(); 4].map(|()| Server::start_nginx(None));
    let [a, b, c, _] = servers.each_ref().map(Server::address);
    let balancer = start(&servers, "adaptive");
    let clients = Clients::start(balancer.address("web"), 4);
    clients.wait_for(200);
    assert_eq!(requests(&balancer)[1], 0, "the own zone has them all");
    let member = balancer.member_status("web", c);
    assert_eq!(
        (&member["zone"], &member["state"]),
        (&"south".into(), &"up".into())
    );

    // A share leaves, and not all at once.
    let push = |north: f64| {
        balancer
            .run_ctl(&format!("loads push n cpu={north}"))
            .unwrap();
        balancer.run_ctl("loads push s cpu=0.2").unwrap();
    };
    push(1.6);
    wait_until("some go to the other zone", || requests(&balancer)[1] > 50);
    let north = &zones(&balancer)[0];
    assert!(
        (north["load"].as_f64().unwrap() - 1.6).abs() < 0.01,
        "{north}"
    );
    assert_eq!(north["usable"], 1.0);
    let now = share(&balancer);
    assert!(now > 0.0 && now < 1.0, "{now}");
    let before = requests(&balancer);
    clients.wait_for(200);
    let after = requests(&balancer);
    assert!(
        after[0] > before[0] && after[1] > before[1],
        "{before:?} {after:?}"
    );
    let metric =
        |series: &str| balancer.read_metric(&format!("{series}{{group=\"web\",zone=\"south\"}}"));
    assert!(metric("evenkeel_zone_share").unwrap() > 0.0);
    assert_eq!(metric("evenkeel_zone_usable"), Some(1.0));
    let info = format!("evenkeel_member_zone_info{{group=\"web\",member=\"{a}\",zone=\"north\"}}");
    assert_eq!(balancer.read_metric(&info), Some(1.0));
    let table = balancer.run_ctl("status").unwrap();
    let row = table
        .lines()
        .find(|line| line.contains("north (own)"))
        .unwrap();
    assert!(row.contains("100%") && row.contains("1.60"), "{table}");
    let explained = balancer.run_ctl("explain web").unwrap();
    assert!(explained.contains("is drawn, which gets"), "{explained}");
    assert!(explained.contains("zone north: load 1.6"), "{explained}");
    wait_until("more and more go there", || {
        push(1.6);
        share(&balancer) < now / 2.0
    });

    // They come back when the load is gone, but for those that are under way.
    wait_until("all are back", || {
        push(0.3);
        share(&balancer) == 1.0
    });
    wait_until("none goes to the other zone any more", || {
        let before = requests(&balancer)[1];
        clients.wait_for(200);
        requests(&balancer)[1] == before
    });

    // Nobody is left at home.
    servers[0].kill();
    servers[1].kill();
    let out = ["down", "dead", "ejected"];
    balancer.wait_for_state("web", a, &out);
    balancer.wait_for_state("web", b, &out);
    wait_until("all go to the other zone", || share(&balancer) == 0.0);
    clients.wait_for(200);
    assert_eq!(balancer.status()["groups"][0]["panic"], false);

    // One of two is less than the zone needs for all, and more than nothing.
    servers[0].restart();
    balancer.wait_for_state("web", a, &["up"]);
    wait_until("a part comes back", || {
        (share(&balancer) - 0.5 / 0.7).abs() < 0.01
    });
    servers[1].restart();
    balancer.wait_for_state("web", b, &["up"]);
    wait_until("all are back", || share(&balancer) == 1.0);
    clients.stop_and_count();
}

#[test]
fn zones_are_changed_by_a_reload() {
    if !are_installed(&["nginx"]) {
        return;
    }
    let servers = [(); 4].map(|()| Server::start_nginx(None));
    let balancer = start(&servers, "round_robin");
    let clients = Clients::start(balancer.address("web"), 4);
    clients.wait_for(100);
    assert_eq!(requests(&balancer)[1], 0);
    let file = balancer.folder().path().join("evenkeel.toml");
    let config = std::fs::read_to_string(file).unwrap();
    let totals = || {
        let members = servers
            .each_ref()
            .map(|server| balancer.member_status("web", server.address()));
        members.map(|member| member["totals"]["requests"].as_u64().unwrap())
    };

    // All zones are alike.
    let off = config.replacen("load_max_age", "zones = false\nload_max_age", 1);
    balancer.reconfigure(&off);
    assert!(balancer.status()["groups"][0].get("zones").is_none());
    wait_until("all members serve", || {
        totals().iter().all(|&count| count > 20)
    });

    // Another zone comes first.
    balancer.reconfigure(&config.replacen("zone = \"north\"", "zone = \"south\"", 1));
    // What is under way is not turned round.
    let mut got = [0; 4];
    wait_until("none goes to the other zone any more", || {
        let before = totals();
        clients.wait_for(200);
        got = totals();
        got.iter_mut()
            .zip(before)
            .for_each(|(now, before)| *now -= before);
        got[0] + got[1] == 0
    });
    assert!(got[2] > 50 && got[3] > 50, "{got:?}");
    clients.stop_and_count();
}
