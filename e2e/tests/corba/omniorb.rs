//! Tests of our library for omniORB alone; the rest is in `conformance.rs`.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking.

use evenkeel_e2e::balancer::Balancer;
use evenkeel_e2e::folder::Folder;
use evenkeel_e2e::omniorb::{self, Client, OmniOrb, Server};
use evenkeel_e2e::orb::{Location, Orb};
use evenkeel_e2e::process::Signal;
use evenkeel_e2e::script::Script;
use evenkeel_e2e::server::address;
use evenkeel_e2e::wait_until;

const PEER: &str = "IDL:evenkeel.org/PeerTest/Peer:1.0";

/// A configuration, and the initial reference of its load manager.
fn configuration() -> (String, String) {
    let address = address();
    let config = format!(
        "workers = 1\n[admin]\nlisten = \"127.0.0.1:0\"\n\
         [corba]\nlisten = \"{address}\"\nalert_retry = \"100ms\"\n\
         [corba.groups]\nstrategy = \"round_robin\"\n"
    );
    let manager = format!("LoadManager=corbaloc:iiop:{address}/LoadManager");
    (config, manager)
}

/// The manager knows members that a factory has made; the library asks it for their group.
#[test]
fn members_that_a_factory_has_made_have_an_alert() {
    if !omniorb::can_run() {
        return;
    }
    let (config, initial) = configuration();
    let _balancer = Balancer::start(&config);
    let initial = ["-ORBInitRef", &initial];
    let mut manager = OmniOrb::manager(&initial);
    let mut servers = ["a", "b"].map(|name| (name, Server::start(name, &initial)));
    let factories = servers.each_mut().map(|(name, server)| {
        OmniOrb::open(server, name, &Location::default());
        format!(
            "{name}@{}",
            server.ask_line(&format!("factory {name} {name}"))
        )
    });
    let factories = factories.join(",");
    let group = manager.ask_line(&format!(
        "create_object {PEER} membership=1 initial=2 minimum=1 factories={factories}"
    ));
    let [(_, a), _] = &mut servers;
    a.wait_until_joined("a");
    let mut at_a = Client::start(&group, &[]);
    wait_until("it is bound to a", || {
        assert_eq!(at_a.ask_line(&format!("use {group}")), "use");
        at_a.ask_line("who") == "a-1"
    });
    manager.run_command("enable_alert a");
    wait_until("it is sent to the other one", || {
        at_a.ask_line("who") == "b-1"
    });
}

/// A client of omniORB that gives a call up goes back to the group.
#[test]
fn who_gives_a_call_up_is_bound_anew() {
    if !omniorb::can_run() {
        return;
    }
    let (config, initial) = configuration();
    let _balancer = Balancer::start(&config);
    let initial = ["-ORBInitRef", &initial];
    let mut manager = OmniOrb::manager(&initial);
    let group = manager.ask_line(&format!("create_object {PEER} membership=0"));
    let [mut hung, mut other] = ["hung", "other"].map(|name| Server::start(name, &initial));
    hung.join_group("hung", &group);
    let mut client = Client::start(&group, OmniOrb::IMPATIENT);
    assert_eq!(client.ask_line("who"), "hung");
    other.join_group("other", &group);
    hung.pause_process();
    assert_eq!(client.ask_line("who"), OmniOrb::TIMEOUT);
    assert_eq!(
        manager.ask_line(&format!("remove_member {group} hung")),
        group
    );
    assert_eq!(client.ask_line("who"), "other");
}

/// The registration is tried again until the manager answers, and again when somebody has removed
/// it.
#[test]
fn a_location_is_registered_whatever_happens() {
    if !omniorb::can_run() {
        return;
    }
    let (config, initial) = configuration();
    let mut balancer = Balancer::start(&config);
    let initial = ["-ORBInitRef", &initial];
    let mut manager = OmniOrb::manager(&initial);
    let group = manager.ask_line(&format!("create_object {PEER} membership=0"));
    let mut a = Server::start("a", &initial);
    a.join_group("a", &group);
    assert_eq!(manager.ask_line(&format!("remove_member {group} a")), group);
    manager.run_command("remove_load_alert a");
    wait_until("it is back", || {
        let member = manager.ask_line(&format!("get_member_ref {group} a"));
        member == a.peer() && manager.ask_line("get_load_alert a").starts_with("IOR:")
    });

    // A server that starts while the manager is down.
    balancer.signal(Signal::KILL);
    balancer.wait_for_end();
    let mut c = Server::start("c", &initial);
    c.run_command("location c retry=50 check=200");
    c.run_command(&format!("at c member {group}"));
    assert_eq!(c.ask_line("at c wait 0"), "no");
    for server in [&a, &c] {
        wait_until("it says so", || {
            server.log().contains("no answer of the manager")
        });
    }
    let _balancer = balancer.replace(&config);
    c.wait_until_joined("c");
    wait_until("a hears it again", || {
        a.log().contains("the manager answers")
    });
    let mut manager = OmniOrb::manager(&initial);
    // Both come by themselves, in no order.
    wait_until("both are there", || {
        let locations = manager.ask_line(&format!("locations_of_members {group}"));
        matches!(locations.as_str(), "a c" | "c a")
    });

    // In order: nothing is left.
    c.run_command("at c leave 0");
    assert_eq!(
        manager.ask_line(&format!("locations_of_members {group}")),
        "a"
    );
    let none = "error IDL:tao.lb/CosLoadBalancing/LoadAlertNotFound:1.0";
    assert_eq!(manager.ask_line("get_load_alert c"), none);
}

/// The example as its manual has it.
#[test]
fn stocks_are_traded_by_balanced_sessions() {
    if !omniorb::can_run() {
        return;
    }
    let (config, manager) = configuration();
    let balancer = Balancer::start(&config);
    let manager = ["-ORBInitRef", &manager];
    let folder = Folder::new();
    let file = folder.join("stock.ior");
    let file = file.to_str().unwrap();
    let made = omniorb::example_command("group")
        .arg(file)
        .args(manager)
        .output();
    let made = made.unwrap();
    assert!(made.status.success(), "{made:?}");
    let mut servers = ["host1", "host2"].map(|location| {
        let mut server = omniorb::example_command("server");
        server.args([location, file]).args(manager);
        server.args(["-ORBendPoint", "giop:tcp:127.0.0.1:"]);
        let server = Script::start(&mut server);
        assert_eq!(server.read_line(), format!("{location}: in the group"));
        server
    });
    let traded = || {
        let client = omniorb::example_command("client")
            .args([file, "12"])
            .output();
        let client = client.unwrap();
        assert!(client.status.success(), "{client:?}");
        let said = String::from_utf8(client.stdout).unwrap();
        let sessions = |at: &str| {
            let mut lines = said.lines();
            let sessions = lines.find_map(|line| line.strip_suffix(&format!(" sessions at {at}")));
            sessions.map_or(0, |sessions| sessions.parse::<u32>().unwrap())
        };
        ["host1", "host2"].map(sessions)
    };
    // One of which nothing is known yet counts like the others, whatever it is given.
    wait_until("both have told their load", || {
        let status = balancer.status();
        let known = |at: &str| {
            let mut all = status["locations"].as_array().into_iter().flatten();
            all.any(|one| {
                one["name"] == at && one["loads"].as_array().is_some_and(|l| !l.is_empty())
            })
        };
        known("host1") && known("host2")
    });
    let [at_host1, at_host2] = traded();
    assert_eq!(at_host1 + at_host2, 12);
    assert!(at_host1.abs_diff(at_host2) <= 4, "{at_host1} {at_host2}");

    // Asked to end, it leaves first.
    let [host1, _] = &mut servers;
    host1.signal(Signal::TERM);
    while let Some(line) = host1.next_line() {
        assert_eq!(line, "host1: a session for somebody");
    }
    assert_eq!(traded(), [0, 12]);
}
