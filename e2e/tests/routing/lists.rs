//! Members that a DNS server and files list, while clients ask.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking.

use std::collections::BTreeSet;
use std::fs;
use std::net::SocketAddr;

use evenkeel_e2e::balancer::Balancer;
use evenkeel_e2e::load::{Clients, Wrk};
use evenkeel_e2e::nsd::Nsd;
use evenkeel_e2e::process::are_installed;
use evenkeel_e2e::server::Server;
use evenkeel_e2e::wait_until;
use serde_json::{Value, json};

const HEAD: &str = "workers = 2\n[admin]\nlisten = \"127.0.0.1:0\"\n";

fn group(balancer: &Balancer) -> Value {
    balancer.status()["groups"][0].clone()
}

fn members(balancer: &Balancer) -> Vec<Value> {
    group(balancer)["members"].as_array().unwrap().clone()
}

/// The addresses of members that take traffic.
fn serving(balancer: &Balancer) -> BTreeSet<SocketAddr> {
    let members = members(balancer).into_iter();
    let serving = members.filter(|member| member["effective_weight"] != 0.0);
    let addresses = serving.filter_map(|member| member["address"].as_str()?.parse().ok());
    addresses.collect()
}

fn set(addresses: &[SocketAddr]) -> BTreeSet<SocketAddr> {
    addresses.iter().copied().collect()
}

fn host(name: &str, at: SocketAddr) -> String {
    format!("{name} IN A {}", at.ip())
}

fn service(name: &str, priority: u16, weight: u16, at: SocketAddr) -> String {
    format!(
        "_http._tcp.web IN SRV {priority} {weight} {} {name}",
        at.port()
    )
}

fn balanced(nsd: &Nsd, member: &str) -> Balancer {
    Balancer::start(&format!(
        r#"{HEAD}
        [dns]
        resolvers = ["{}"]
        min_ttl = "1s"
        [rule.web]
        listen = "127.0.0.1:0"
        members = [{member}]
        allowed_networks = ["127.0.0.0/8"]
        slow_start = "0s"
        "#,
        nsd.address()
    ))
}

#[test]
fn srv_records_are_members_and_backups() {
    if !are_installed(&["nginx", "nsd"]) {
        return;
    }
    let servers = [(); 3].map(|()| Server::start_nginx(None));
    let [a, b, c] = servers.each_ref().map(Server::address);
    let hosts = [host("a", a), host("b", b), host("c", c)].join("\n");
    let zone = |records: &[String]| format!("{hosts}\n{}", records.join("\n"));
    let first = [
        service("a", 10, 30, a),
        service("b", 10, 10, b),
        service("c", 20, 5, c),
    ];
    let mut nsd = Nsd::start(&zone(&first));
    let balancer = balanced(
        &nsd,
        r#"{ srv = "_http._tcp.web.example.test", max_connections = 7 }"#,
    );
    // They are there from the start.
    let found = members(&balancer);
    let seen: Vec<_> = found
        .iter()
        .map(|m| {
            (
                m["name"].as_str().unwrap(),
                m["weight"].as_f64().unwrap(),
                m["backup"] == true,
            )
        })
        .collect();
    let name = |host: &str, at: SocketAddr| format!("{host}.example.test:{}", at.port());
    let names = [name("a", a), name("b", b), name("c", c)];
    assert_eq!(
        seen,
        [
            (&*names[0], 30.0, false),
            (&*names[1], 10.0, false),
            (&*names[2], 5.0, true)
        ]
    );
    assert!(found.iter().all(|member| member["max_connections"] == 7));
    assert_eq!(serving(&balancer), set(&[a, b]));

    let clients = Clients::start(balancer.address("web"), 4);
    clients.wait_for(50);
    let requests = |at: SocketAddr| {
        let all = members(&balancer).into_iter();
        let mut one = { all }.filter(|m| m["address"] == json!(at.to_string()));
        one.next()
            .map(|member| member["totals"]["requests"].as_u64().unwrap())
    };
    let before = requests(b).unwrap();
    // One leaves, another one is no backup any more; the one that stays keeps what it has.
    nsd.set(&zone(&[service("b", 10, 10, b), service("c", 10, 10, c)]));
    wait_until("the records are followed", || {
        serving(&balancer) == set(&[b, c])
    });
    assert!(requests(b).unwrap() >= before && requests(a).is_none());
    clients.wait_for(50);
    // The address of a host changes, and not its name.
    let hosts = [host("b", a), host("c", c)].join("\n");
    let records = [service("b", 10, 10, a), service("c", 10, 10, c)].join("\n");
    nsd.set(&format!("{hosts}\n{records}"));
    wait_until("addresses are followed", || {
        serving(&balancer) == set(&[a, c])
    });
    clients.wait_for(50);

    // No such name, and no such server, are no reason to forget members.
    nsd.set("");
    let list = || group(&balancer)["lists"][0].clone();
    wait_until("the failure is told", || list()["error"].is_string());
    assert_eq!(serving(&balancer), set(&[a, c]));
    nsd.kill();
    clients.wait_for(50);
    nsd.set(&format!("{hosts}\n{}", service("c", 1, 0, c)));
    nsd.run();
    wait_until("the server is asked again", || {
        serving(&balancer) == set(&[c])
    });
    wait_until("it is good again", || list()["error"].is_null());
    assert!(list()["failures"].as_u64() > Some(0));
    let metrics = balancer.admin_get("/metrics").text().to_owned();
    let line = "evenkeel_members_list_up{group=\"web\",list=\"_http._tcp.web.example.test\"} 1";
    assert!(metrics.contains(line), "{metrics}");
    clients.stop_and_count();
}

#[test]
fn a_name_is_looked_up_again_when_its_ttl_is_over() {
    if !are_installed(&["nginx", "nsd"]) {
        return;
    }
    let a = Server::start_nginx(None);
    let at = a.address();
    let other = SocketAddr::from(([127, 99, 0, 1], at.port()));
    let mut nsd = Nsd::start(&host("web", other));
    let member = format!("\"web.example.test:{}\"", at.port());
    let balancer = balanced(&nsd, &member);
    assert_eq!(serving(&balancer), set(&[other]));
    nsd.set(&host("web", at));
    wait_until("the address is followed", || {
        serving(&balancer) == set(&[at])
    });
    let mut client = balancer.connect();
    client.send("GET /name HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(client.read_response().text(), at.to_string());
    // Those of the system's files are known, too.
    balancer.reconfigure(&format!(
        "{HEAD}[dns]\nresolvers = [\"{}\"]\n[rule.web]\nlisten = \"127.0.0.1:0\"\n\
         members = [\"localhost:{}\"]\n",
        nsd.address(),
        at.port()
    ));
    let local = SocketAddr::from(([127, 0, 0, 1], at.port()));
    assert_eq!(serving(&balancer), set(&[local]));
}

#[test]
fn files_are_followed_under_load() {
    if !are_installed(&["nginx", "wrk"]) {
        return;
    }
    let content = "0123456789abcdef".repeat(64);
    let servers = [(); 3].map(|()| Server::start_nginx(None));
    for server in &servers {
        server.put_document("document", &content);
    }
    let [a, b, c] = servers.each_ref().map(Server::address);
    let list = |members: &[SocketAddr]| json!([{ "targets": members }]).to_string();
    let config = format!(
        "{HEAD}[rule.web]\nlisten = \"127.0.0.1:0\"\nmembers_files = [\"lists/*.json\"]\nslow_start = \"0s\"\n"
    );
    let balancer = Balancer::start_with(&config, |folder| {
        folder.make_folder("lists");
        folder.write("lists/web.json", list(&[a]));
    });
    let folder = balancer.folder().join("lists");
    // As programs write files that others read.
    let replace = |name: &str, text: &str| {
        let new = folder.join(format!("{name}.new"));
        fs::write(&new, text).unwrap();
        fs::rename(new, folder.join(name)).unwrap();
    };
    let is = |what: &str, wanted: &[SocketAddr]| {
        wait_until(what, || serving(&balancer) == set(wanted));
    };
    let error = || group(&balancer)["lists"][0]["error"].clone();
    assert_eq!(serving(&balancer), set(&[a]));
    let wrk = Wrk::start(
        balancer.address("web"),
        "/files/document",
        content.as_bytes(),
    );
    let clients = Clients::start(balancer.address("web"), 2);
    clients.wait_for(20);
    for _ in 0..5 {
        replace("web.json", &list(&[a, b]));
        is("a member comes", &[a, b]);
        replace("web.json", &list(&[b]));
        is("a member leaves", &[b]);
        clients.wait_for(5);
    }
    replace("more.json", &list(&[c]));
    is("a file comes", &[b, c]);

    // A bad file changes nothing.
    replace("web.json", "[\n  {\"targets\": [\"10.0.0.1\"]}\n]");
    wait_until("the error is told", || error().is_string());
    let told = error();
    assert!(told.as_str().unwrap().contains("web.json:2:"), "{told}");
    balancer.wait_for_log("web.json:2:");
    let metrics = balancer.admin_get("/metrics").text().to_owned();
    assert!(
        metrics.contains("evenkeel_members_list_up{group=\"web\""),
        "{metrics}"
    );
    assert_eq!(serving(&balancer), set(&[b, c]));
    let file = balancer.folder().join("evenkeel.toml");
    let file = file.to_str().unwrap();
    let checked = evenkeel_e2e::balancer::run_evenkeel(&["check", file]).unwrap_err();
    assert!(checked.contains("web.json:2:"), "{checked}");
    // Neither does a reload.
    balancer.reconfigure(&format!("{config}# again\n"));
    assert_eq!(serving(&balancer), set(&[b, c]));
    replace("web.json", &list(&[a, b]));
    is("it is good again", &[a, b, c]);
    wait_until("no error is told", || error().is_null());

    // A file that is gone takes its members with it; a folder does not.
    fs::remove_file(folder.join("more.json")).unwrap();
    is("a file goes", &[a, b]);
    let away = balancer.folder().join("away");
    fs::rename(&folder, &away).unwrap();
    wait_until("the folder is missed", || error().is_string());
    assert_eq!(serving(&balancer), set(&[a, b]));
    fs::rename(&away, &folder).unwrap();
    wait_until("the folder is back", || error().is_null());

    // A live change stays while the list says the same.
    let status = balancer.run_ctl(&format!("weight web {a} 3"));
    status.unwrap();
    replace("web.json", &list(&[a, c]));
    is("another member comes", &[a, c]);
    assert_eq!(balancer.member_status("web", a)["weight"], 3.0);
    clients.stop_and_count();
    let tally = wrk.stop_and_tally();
    assert_eq!((tally.wrong, tally.errors), (0, 0), "{tally:?}");
}

#[test]
fn a_thousand_members_of_a_file() {
    let members: Vec<String> = (0..1_000)
        .map(|i| format!("127.77.{}.{}:80", i / 250, 1 + i % 250))
        .collect();
    let config =
        format!("{HEAD}[rule.web]\nlisten = \"127.0.0.1:0\"\nmembers_files = [\"all.json\"]\n");
    let list = |members: &[String]| {
        json!([{ "targets": members, "labels": { "weight": "2" } }]).to_string()
    };
    let balancer = Balancer::start_with(&config, |folder| {
        folder.write("all.json", list(&members));
    });
    let ids = || -> Vec<Value> { members_named(&balancer) };
    assert_eq!(ids().len(), 1_000);
    balancer.folder().write("all.json", list(&members[1..]));
    wait_until("one has left", || ids().len() == 999);
    assert!(!balancer.log().contains("ERROR"), "{}", balancer.log());
}

fn members_named(balancer: &Balancer) -> Vec<Value> {
    let members = members(balancer).into_iter();
    members.map(|member| member["name"].clone()).collect()
}
