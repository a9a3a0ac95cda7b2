//! Backup members: they serve while no other member may.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking.

use evenkeel_e2e::balancer::Balancer;
use evenkeel_e2e::load::Clients;
use evenkeel_e2e::process::are_installed;
use evenkeel_e2e::server::Server;
use evenkeel_e2e::wait_until;
use evenkeel_e2e::wire::Wire;

/// Two members and two backups, whose clients stay with a member as long as they may.
fn start(servers: &[Server; 4], workers: usize) -> Balancer {
    let [a, b, c, d] = servers.each_ref().map(Server::address);
    Balancer::start(&format!(
        r#"
        workers = {workers}
        [admin]
        listen = "127.0.0.1:0"
        [rule.web]
        listen = "127.0.0.1:0"
        members = [
            "{a}", "{b}",
            {{ address = "{c}", backup = true }}, {{ address = "{d}", backup = true }},
        ]
        granularity = "per_session"
        slow_start = "1s"
        [rule.web.health_check]
        doc_path = "/name"
        frequency = "100ms"
        timeout = "5s"
        fall = 2
        rise = 2
        "#
    ))
}

fn ask(client: &mut Wire) -> String {
    client.send("GET /name HTTP/1.1\r\nHost: a\r\n\r\n");
    client.read_response().text().to_owned()
}

#[test]
fn backups_serve_while_nobody_else_does() {
    if !are_installed(&["nginx"]) {
        return;
    }
    let mut servers = [(); 4].map(|()| Server::start_nginx(None));
    let [a, b, c, d] = servers.each_ref().map(Server::address);
    let balancer = start(&servers, 2);
    let picks = |member| balancer.member_status("web", member)["totals"]["requests"].as_u64();
    let state = |member| balancer.member_status("web", member)["state"].clone();
    let clients = Clients::start(balancer.address("web"), 4);
    clients.wait_for(100);
    assert_eq!((state(c), state(d)), ("standby".into(), "standby".into()));
    assert_eq!((picks(c), picks(d)), (Some(0), Some(0)));
    let explained = balancer.run_ctl("explain web").unwrap();
    assert!(explained.contains("standby"), "{explained}");

    // One member is enough for them to wait.
    servers[0].kill();
    balancer.wait_for_state("web", a, &["down", "dead", "ejected"]);
    clients.wait_for(50);
    assert_eq!((picks(c), picks(d)), (Some(0), Some(0)));

    servers[1].kill();
    // Those who are bound stay with one of them; new ones are distributed.
    let mut new = Vec::new();
    wait_until("both backups serve", || {
        let mut client = Wire::connect(balancer.address("web"));
        ask(&mut client);
        new.push(client);
        picks(c) > Some(0) && picks(d) > Some(0)
    });
    drop(new);
    balancer.wait_for_state("web", b, &["down", "dead", "ejected"]);
    balancer.wait_for_state("web", c, &["up"]);
    let explained = balancer.run_ctl("explain web").unwrap();
    assert!(explained.contains("so a backup serves"), "{explained}");
    let status = balancer.status();
    assert_eq!(status["groups"][0]["panic"], false);
    let mut bound = Wire::connect(balancer.address("web"));
    let backups = [c, d].map(|member| member.to_string());
    assert!(backups.contains(&ask(&mut bound)));

    // The client that is bound to a backup leaves it with its next request.
    servers[0].restart();
    balancer.wait_for_state("web", c, &["standby"]);
    assert_eq!(ask(&mut bound), a.to_string());
    clients.wait_for(50);
    let before = (picks(c), picks(d));
    clients.wait_for(100);
    assert_eq!((picks(c), picks(d)), before);
    clients.stop_and_count();
}

#[test]
fn it_is_changed_live_and_by_reload() {
    if !are_installed(&["nginx"]) {
        return;
    }
    let servers = [(); 4].map(|()| Server::start_nginx(None));
    let [a, b, c, d] = servers.each_ref().map(Server::address);
    let balancer = start(&servers, 1);
    let serving = || {
        let members = [a, b, c, d];
        members.map(|member| balancer.member_status("web", member)["effective_weight"] != 0.0)
    };
    let is = |wanted: [bool; 4]| wait_until("the others serve", || serving() == wanted);
    is([true, true, false, false]);
    balancer.run_ctl(&format!("backup web {a} on")).unwrap();
    is([false, true, false, false]);
    balancer.run_ctl(&format!("drain web {b}")).unwrap();
    is([true, false, true, true]);
    balancer.run_ctl(&format!("backup web {d} off")).unwrap();
    is([false, false, false, true]);
    assert_eq!(ask(&mut balancer.connect()), d.to_string());
    balancer.run_ctl(&format!("ready web {b}")).unwrap();
    is([false, true, false, true]);
    // The file says the same as before of all but the first backup.
    let file = balancer.folder().path().join("evenkeel.toml");
    let config = std::fs::read_to_string(file).unwrap();
    balancer.reconfigure(&config.replacen(", backup = true", "", 1));
    is([false, true, true, true]);
}
