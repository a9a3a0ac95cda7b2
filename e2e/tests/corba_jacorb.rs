//! The CORBA service with JacORB's servers and clients, as Maven Central has it.
//!
//! A JacORB server joins its groups by our library for Java (`modules/java`); clients are as
//! JacORB makes them.

use evenkeel_e2e::balancer::Balancer;
use evenkeel_e2e::corba::free_address;
use evenkeel_e2e::eventually;
use evenkeel_e2e::jacorb::{Client, Manager, Server, can_run};
use evenkeel_e2e::omniorb;
use evenkeel_e2e::process::Signal;

const PEER: &str = "IDL:evenkeel.org/PeerTest/Peer:1.0";

/// A balancer with a CORBA service at that address.
fn config(listen: &str) -> String {
    format!(
        "workers = 1\n[admin]\nlisten = \"127.0.0.1:0\"\n\
         [corba]\nlisten = \"{listen}\"\nior_file = \"lm.ior\"\n\
         [corba.groups]\nstrategy = \"round_robin\"\n"
    )
}

fn balancer() -> Balancer {
    Balancer::start(&config("127.0.0.1:0"))
}

/// What an ORB is told, so that it finds the load manager.
fn initial_reference(balancer: &Balancer) -> String {
    format!("LoadManager=corbaloc:iiop:{}/LoadManager", balancer.corba())
}

fn server(balancer: &Balancer, name: &str) -> Server {
    Server::start(name, &["-ORBInitRef", &initial_reference(balancer)])
}

fn manager(balancer: &Balancer) -> Manager {
    Manager::start(&["-ORBInitRef", &initial_reference(balancer)])
}

/// Joins a group by its name, at the location that is called as the server; answers the
/// group's reference.
fn join(server: &mut Server, name: &str, group: &str, options: &str) -> String {
    let open = format!("open {name} {options}");
    assert_eq!(server.ask(open.trim()), "open");
    let reference = server.ask(&format!("join {name} {group}"));
    assert!(reference.starts_with("IOR:"), "{reference}");
    reference
}

/// What so many new clients are answered.
fn answers(client: &mut Client, reference: &str, number: usize) -> Vec<String> {
    let mut all: Vec<_> = (0..number)
        .map(|_| {
            // Another object reference, and so bound anew.
            assert_eq!(client.ask(&format!("use {reference}")), "use");
            client.ask("who")
        })
        .collect();
    all.sort_unstable();
    all
}

/// What the tests stand on: the two talk to each other, with nothing of ours between them.
#[test]
fn a_client_and_a_server_talk() {
    if !can_run() {
        return;
    }
    let mut server = Server::start("a", &[]);
    let mut client = Client::start(server.peer(), &[]);
    assert_eq!(client.ask("who"), "a");
    assert_eq!(client.ask("wide grüße"), "grüße");
    for kind in ["alias", "nested", "object", "exception", "recursive"] {
        let reflect = format!("reflect {kind}");
        assert_eq!(client.ask(&reflect), reflect);
    }
    let refused = "error IDL:evenkeel.org/PeerTest/Refused:1.0 as asked 42";
    assert_eq!(client.ask("fail 0"), refused);
    assert_eq!(client.ask("fail 1"), "error TRANSIENT 0x7 COMPLETED_NO");
    let sessions = server.sessions().to_owned();
    assert_eq!(client.ask(&format!("use {sessions}")), "use");
    assert_eq!(client.ask("open me"), "open");
    assert_eq!(client.ask("session who"), "a/me");
    assert_eq!(server.served(), 11);
}

/// JacORB speaks the version of the reference: that of the group at first, and then that of
/// the member.
#[test]
fn clients_are_bound_in_every_version_of_giop() {
    if !can_run() {
        return;
    }
    let balancer = balancer();
    let at = balancer.corba();
    let mut client = Client::start("corbaloc::1.2@127.0.0.1/none", &[]);
    // A LocateRequest is answered like a request.
    let mut locator = Client::start(
        "corbaloc::1.2@127.0.0.1/none",
        &["-Djacorb.locate_on_bind=on"],
    );
    for member in 0..3 {
        let name = format!("version-{member}");
        let version = format!("-Djacorb.giop_minor_version={member}");
        let initial = initial_reference(&balancer);
        let mut server = Server::start(&name, &[&version, "-ORBInitRef", &initial]);
        let group = join(&mut server, &name, &name, "");
        let references = (0..3).map(|minor| format!("corbaloc:iiop:1.{minor}@{at}/group/{name}"));
        for reference in references.chain([group]) {
            assert_eq!(client.ask(&format!("use {reference}")), "use");
            // The first request has a body to send again to the member.
            assert_eq!(client.ask("blob 100000"), "blob 100000");
            assert_eq!(client.ask("who"), name);
            assert_eq!(client.ask(&format!("is_a {PEER}")), "yes");
            assert_eq!(client.ask("non_existent"), "no");
            assert_eq!(client.ask("reflect recursive"), "reflect recursive");
            assert_eq!(client.ask("post 1"), "post 1");
            if member > 0 {
                // GIOP 1.0 has no wide characters.
                assert_eq!(client.ask("wide grüße"), "grüße");
            }
            let refused = "error IDL:evenkeel.org/PeerTest/Refused:1.0 as asked 42";
            assert_eq!(client.ask("fail 0"), refused);
        }
        assert_eq!(client.ask("posted"), "4");
        let group = format!("use corbaloc:iiop:1.2@{at}/group/{name}");
        assert_eq!(locator.ask(&group), "use");
        assert_eq!(locator.ask("who"), name);
    }
}

#[test]
fn members_and_clients_of_two_orbs_share_a_group() {
    if !can_run() || !omniorb::can_run() {
        return;
    }
    let balancer = balancer();
    let mut java = server(&balancer, "java");
    let group = join(&mut java, "java", "both", "");
    let cpp = omniorb::Server::start("cpp", &[]);
    let mut manager = manager(&balancer);
    let added = manager.ask(&format!("add_member {group} cpp {}", cpp.peer()));
    assert_eq!(added, group);

    let mut client = Client::start(&group, &[]);
    assert_eq!(
        answers(&mut client, &group, 4),
        ["cpp", "cpp", "java", "java"]
    );
    // What a client of each sends to a member of each arrives, in either byte order.
    for _ in 0..2 {
        assert_eq!(client.ask(&format!("use {group}")), "use");
        for call in ["blob 100000", "reflect nested", "reflect recursive"] {
            assert_eq!(client.ask(call), call);
        }
        assert_eq!(client.ask("wide grüße"), "grüße");
        let mut client = omniorb::Client::start(&group, &[]);
        for call in ["blob 100000", "reflect nested", "reflect recursive"] {
            assert_eq!(client.ask(call), call);
        }
        assert_eq!(client.ask("wide grüße"), "grüße");
    }
    let mut bound: Vec<_> = (0..2)
        .map(|_| omniorb::Client::start(&group, &[]).ask("who"))
        .collect();
    bound.sort_unstable();
    assert_eq!(bound, ["cpp", "java"]);
}

#[test]
fn a_server_pushes_its_load() {
    if !can_run() {
        return;
    }
    let balancer = balancer();
    let mut manager = manager(&balancer);
    let mut pushing = server(&balancer, "pushing");
    assert_eq!(pushing.ask("set 77 3.5"), "set");
    let loads = "load 77 cpu host_cpu requests in_flight push 20";
    join(&mut pushing, "pushing", "g", loads);
    for load in ["3.5", "4.5"] {
        assert_eq!(pushing.ask(&format!("set 77 {load}")), "set");
        eventually("the load is known", || {
            manager
                .ask("get_loads pushing")
                .contains(&format!("77={load}"))
        });
    }
    // Requests to members count, and those that they work on.
    let mut client = Client::repeat(pushing.peer(), "who", &["--rate", "200"]);
    assert_eq!(client.line(), "bound pushing");
    eventually("requests are counted", || {
        let loads = manager.ask("get_loads pushing");
        let rate = loads.split(' ').find_map(|load| load.strip_prefix("4="));
        rate.is_some_and(|rate| (100.0..300.0).contains(&rate.parse().unwrap_or(0.0)))
    });
    client.finish();
    let mut client = Client::start(pushing.peer(), &[]);
    client.tell("sleep 2000");
    eventually("one request is in flight", || {
        manager.ask("get_loads pushing").contains("17=1.0")
    });
    assert_eq!(client.line(), "sleep 2000");
    eventually("none is in flight", || {
        manager.ask("get_loads pushing").contains("17=0.0")
    });
    // Those to its other objects do not.
    let sessions = pushing.sessions().to_owned();
    assert_eq!(client.ask(&format!("use {sessions}")), "use");
    eventually("no request is counted any more", || {
        manager.ask("get_loads pushing").contains(" 4=0.0 ")
            || manager.ask("get_loads pushing").starts_with("4=0.0 ")
    });
    let client = Client::repeat(&sessions, "non_existent", &["--count", "50"]);
    client.read_until("bound no");
    assert!(client.line().starts_with("done 50 0 "));
    for _ in 0..3 {
        let loads = pushing.ask("loads pushing");
        assert!(loads.contains("4=0.0"), "{loads}");
    }
}

/// Its member, alert and monitor are still there, but nobody answers for them.
#[test]
fn a_server_that_crashed_takes_its_place_again() {
    if !can_run() {
        return;
    }
    let balancer = balancer();
    let mut manager = manager(&balancer);
    let mut first = server(&balancer, "host1");
    let group = join(&mut first, "host1", "g", "requests");
    // Nobody else gets the location while it lives.
    let mut other = server(&balancer, "other");
    let refused = other.ask("open host1");
    assert!(
        refused.contains("another process has the alert of host1"),
        "{refused}"
    );
    let mut client = Client::start(&group, &[]);
    assert_eq!(client.ask("who"), "host1");

    first.kill();
    let mut second = server(&balancer, "host1 again");
    assert_eq!(second.ask("open host1 requests"), "open");
    assert_eq!(second.ask(&format!("join host1 {group}")), group);
    assert_eq!(
        manager.ask(&format!("locations_of_members {group}")),
        "host1"
    );
    let member = manager.ask(&format!("get_member_ref {group} host1"));
    assert_eq!(member, second.peer());
    // A client goes back to the group by itself.
    assert_eq!(client.ask("who"), "host1 again");
}

/// A client that is bound sees nothing of a server that leaves.
#[test]
fn a_server_that_leaves_sends_its_clients_to_the_others() {
    if !can_run() {
        return;
    }
    let balancer = balancer();
    let mut manager = manager(&balancer);
    let mut leaving = server(&balancer, "leaving");
    let group = join(&mut leaving, "leaving", "g", "cpu");
    let mut client = Client::repeat(&group, "who", &["--rate", "500"]);
    assert_eq!(client.line(), "bound leaving");
    let mut staying = server(&balancer, "staying");
    join(&mut staying, "staying", &group, "cpu");
    assert_eq!(leaving.ask("close leaving"), "close");
    assert_eq!(client.line(), "bound staying");
    assert_eq!(
        manager.ask(&format!("locations_of_members {group}")),
        "staying"
    );
    let gone = "error IDL:tao.lb/CosLoadBalancing/LoadAlertNotFound:1.0";
    assert_eq!(manager.ask("get_load_alert leaving"), gone);
    let gone = "error IDL:tao.lb/CosLoadBalancing/LocationNotFound:1.0";
    assert_eq!(manager.ask("get_load_monitor leaving"), gone);
    // It may come back.
    join(&mut leaving, "leaving", &group, "cpu");
    let mut new = Client::start(&group, &[]);
    let both = ["leaving", "leaving", "staying", "staying"];
    assert_eq!(answers(&mut new, &group, 4), both);
    leaving.kill();
    let said = client.finish();
    let done = said.last().expect("a last line");
    assert!(said.len() == 1 && done.contains(" 0 "), "{said:?}");
}

#[test]
fn clients_of_a_killed_or_stopped_member_go_to_another_one() {
    if !can_run() {
        return;
    }
    let balancer = balancer();
    let mut servers = ["a", "b"].map(|name| server(&balancer, name));
    let group = join(&mut servers[0], "a", "g", "");
    join(&mut servers[1], "b", &group, "");
    let mut client = Client::start(&group, &[]);
    let (bound, other) = match client.ask("who").as_str() {
        "a" => (0, "b"),
        _ => (1, "a"),
    };
    servers[bound].kill();
    // The manager does not know yet, but in its turn it answers with the other one.
    eventually("the client is bound to the other one", || {
        client.ask("who") == other
    });

    // A member that hangs is given up by the client's own limit.
    let limit = "-Djacorb.connection.client.pending_reply_timeout=500";
    let mut hung = server(&balancer, "hung");
    join(&mut hung, "hung", "h", "");
    let mut client = Client::start(
        &format!("corbaloc:iiop:1.2@{}/group/h", balancer.corba()),
        &[limit],
    );
    assert_eq!(client.ask("who"), "hung");
    hung.signal(Signal::STOP);
    let timeout = client.ask("who");
    assert!(timeout.starts_with("error TIMEOUT "), "{timeout}");
    hung.signal(Signal::CONT);
    eventually("it answers again", || client.ask("who") == "hung");
}

#[test]
fn bound_clients_do_not_notice_that_the_manager_is_restarted() {
    if !can_run() {
        return;
    }
    let config = config(&free_address().to_string());
    let balancer = Balancer::start(&config);
    let mut servers = ["a", "b"].map(|name| server(&balancer, name));
    let group = join(&mut servers[0], "a", "g", "load 77 push 50");
    join(&mut servers[1], "b", &group, "load 77 push 50");
    let mut clients: Vec<_> = (0..4)
        .map(|_| Client::repeat(&group, "who", &["--rate", "200"]))
        .collect();
    let bound: Vec<_> = clients.iter().map(|client| client.line()).collect();
    let balancer = balancer.replace(&config);
    // Pushes go on by themselves.
    let mut manager = manager(&balancer);
    assert_eq!(servers[0].ask("set 77 5"), "set");
    eventually("the new manager hears of the load", || {
        manager.ask("get_loads a").contains("77=5.0")
    });
    // The members are known, and the reference is the same.
    let mut client = Client::start(&group, &[]);
    assert_eq!(answers(&mut client, &group, 2), ["a", "b"]);
    for (client, bound) in clients.iter_mut().zip(bound) {
        let said = client.finish();
        assert_eq!(said.len(), 1, "{bound}, then {said:?}");
        assert!(said[0].contains(" 0 "), "{said:?}");
    }
}

/// Strategies are objects: those of the manager, and one of the application's.
#[test]
fn strategies_are_objects_and_an_application_brings_its_own() {
    if !can_run() {
        return;
    }
    let balancer = balancer();
    let mut manager = manager(&balancer);
    let mut ask = |line: String| manager.ask(&line);
    let group = ask(format!("create_object {PEER} style=0"));
    let servers = ["a", "b"].map(|name| Server::start(name, &[]));
    for (server, at) in servers.iter().zip(["host1", "host2"]) {
        assert_eq!(
            ask(format!("add_member {group} {at} {}", server.peer())),
            group
        );
    }
    let set = format!("set_properties_dynamically {group}");
    assert_eq!(ask(format!("{set} strategy=LeastLoaded:Tolerance=2")), "ok");
    let properties = ask(format!("get_properties {group}"));
    let strategy = properties
        .split(' ')
        .find_map(|p| p.strip_prefix("Strategy="));
    let strategy = strategy.expect("a strategy");
    assert_eq!(ask(format!("strategy_name {strategy}")), "LeastLoaded");
    assert_eq!(
        ask(format!("strategy_properties {strategy}")),
        "Tolerance=2.0"
    );
    assert_eq!(ask(format!("strategy_push {strategy} host1 0=0.75")), "ok");
    assert_eq!(ask(format!("strategy_push {strategy} host2 0=0.25")), "ok");
    assert_eq!(ask("get_loads host1".into()), "0=0.75");
    assert!(ask(format!("strategy_loads {strategy} host1")).starts_with("0="));
    let next = ask(format!("strategy_next {strategy} {group}"));
    assert_eq!(next, servers[1].peer(), "the least loaded one");
    assert_eq!(ask(format!("strategy_analyze {strategy} {group}")), "ok");

    // It asks the manager while the manager waits for it.
    let custom = ask("strategy host1".into());
    assert_eq!(ask(format!("strategy_name {custom}")), "always host1");
    assert_eq!(ask(format!("{set} custom={custom}")), "ok");
    let mut client = Client::start(&group, &[]);
    assert_eq!(answers(&mut client, &group, 4), ["a"; 4]);
}
