//! Tests of JacORB alone and our library for it; the rest is in `conformance.rs`.

use evenkeel_e2e::balancer::Balancer;
use evenkeel_e2e::jacorb::{Client, JacOrb, Server, can_run};
use evenkeel_e2e::orb::Orb;
use evenkeel_e2e::script::Script;
use evenkeel_e2e::wait_until;

const PEER: &str = "IDL:evenkeel.org/PeerTest/Peer:1.0";

fn balancer() -> Balancer {
    Balancer::start(
        "workers = 1\n[admin]\nlisten = \"127.0.0.1:0\"\n\
         [corba]\nlisten = \"127.0.0.1:0\"\n\
         [corba.groups]\nstrategy = \"round_robin\"\n",
    )
}

/// Returns the initial reference by which an ORB finds the load manager.
fn initial_reference(balancer: &Balancer) -> String {
    format!(
        "LoadManager=corbaloc:iiop:{}/LoadManager",
        balancer.corba_address()
    )
}

fn server(balancer: &Balancer, name: &str) -> Server {
    Server::start(name, &["-ORBInitRef", &initial_reference(balancer)])
}

fn manager(balancer: &Balancer) -> Script {
    JacOrb::manager(&["-ORBInitRef", &initial_reference(balancer)])
}

/// The library finds or makes groups by name; a LocateRequest is answered like a request.
#[test]
fn groups_have_names_and_are_located() {
    if !can_run() {
        return;
    }
    let balancer = balancer();
    let locates = ["-Djacorb.locate_on_bind=on"];
    let mut locator = Client::start("corbaloc::1.2@127.0.0.1/none", &locates);
    for minor in 0..3 {
        let name = format!("version-{minor}");
        let version = JacOrb::version(minor);
        let initial = initial_reference(&balancer);
        let mut server = Server::start(&name, &[&version[0], "-ORBInitRef", &initial]);
        server.join_group(&name, &name);
        let group = server.ask_line(&format!("at {name} group"));
        assert!(group.starts_with("IOR:"), "{group}");
        let named = format!(
            "corbaloc:iiop:1.2@{}/group/{name}",
            balancer.corba_address()
        );
        for reference in [group, named] {
            assert_eq!(locator.ask_line(&format!("use {reference}")), "use");
            assert_eq!(locator.ask_line("who"), name);
        }
    }
}

/// Requests for objects that are no members have no group to go to.
#[test]
fn a_server_sheds_its_other_objects_only_if_it_is_told_to() {
    if !can_run() {
        return;
    }
    let balancer = balancer();
    let mut manager = manager(&balancer);
    let mut server = server(&balancer, "a");
    server.run_command("location a others");
    server.add_member("a", "g");
    let group = server.ask_line("at a group");
    // In each group somebody always serves, so there must be somebody else.
    let other = Server::start("b", &[]);
    let added = manager.ask_line(&format!("add_member {group} b {}", other.peer()));
    assert_eq!(added, group);
    let mut client = Client::start(server.sessions(), &[]);
    assert_eq!(client.ask_line("open x"), "open");
    manager.run_command("enable_alert a");
    wait_until("the server knows", || server.is_alerted("a"));
    assert_eq!(
        client.ask_line("session who"),
        "error TRANSIENT 0x0 COMPLETED_NO"
    );
    assert_eq!(client.ask_line("non_existent"), "no");
    manager.run_command("disable_alert a");
    wait_until("the server knows", || !server.is_alerted("a"));
    assert_eq!(client.ask_line("session who"), "a/x");
}

/// Monitors, alerts and strategies of an application that does not use the library.
#[test]
fn objects_of_the_application_are_called_without_the_library() {
    if !can_run() {
        return;
    }
    let balancer = balancer();
    let mut manager = manager(&balancer);
    let monitor = manager.ask_line("monitor host2 0=0.25");
    let register = format!("register_load_monitor host2 {monitor}");
    manager.run_command(&register);
    manager.run_command(&register);
    let another = manager.ask_line("monitor host3 0=0.5");
    let another = format!("register_load_monitor host2 {another}");
    let present = "error IDL:tao.lb/CosLoadBalancing/MonitorAlreadyPresent:1.0";
    assert_eq!(manager.ask_line(&another), present);
    assert_eq!(manager.ask_line("get_load_monitor host2"), monitor);
    manager.run_command("remove_load_monitor host2");

    let group = manager.ask_line(&format!("create_object {PEER} membership=0"));
    let servers = ["a", "b"].map(|name| Server::start(name, &[]));
    for (server, at) in servers.iter().zip(["host1", "host2"]) {
        let added = manager.ask_line(&format!("add_member {group} {at} {}", server.peer()));
        assert_eq!(added, group);
    }
    let alert = manager.ask_line("alert");
    manager.run_command(&format!("register_load_alert host1 {alert}"));
    assert_eq!(manager.ask_line("get_load_alert host1"), alert);
    for (operation, alerted) in [("enable_alert", "yes"), ("disable_alert", "no")] {
        manager.run_command(&format!("{operation} host1"));
        wait_until("the alert knows", || manager.ask_line("alerted") == alerted);
    }
    manager.run_command("remove_load_alert host1");
}
