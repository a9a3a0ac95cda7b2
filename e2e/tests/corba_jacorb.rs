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
    let settings = ask(format!("strategy_properties {strategy}"));
    assert!(settings.contains("Tolerance=2.0"), "{settings}");
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

/// The manager asks the monitor of a location, whatever the server pushes.
#[test]
fn a_server_is_asked_for_its_load() {
    if !can_run() {
        return;
    }
    let often = "pull_interval = \"50ms\"\n[corba.groups]";
    let config = config("127.0.0.1:0").replace("[corba.groups]", often);
    let balancer = Balancer::start(&config);
    let mut manager = manager(&balancer);
    let mut pulled = server(&balancer, "pulled");
    assert_eq!(pulled.ask("open pulled load 77"), "open");
    for load in ["7.0", "8.0"] {
        assert_eq!(pulled.ask(&format!("set 77 {load}")), "set");
        eventually("the load is known", || {
            manager.ask("get_loads pulled") == format!("77={load}")
        });
    }
}

/// Nobody is sent to a manager that is not there.
#[test]
fn an_alert_is_lifted_while_the_manager_is_gone() {
    if !can_run() {
        return;
    }
    let config = config(&free_address().to_string());
    let balancer = Balancer::start(&config);
    let mut manager = manager(&balancer);
    let mut servers = ["a", "b"].map(|name| server(&balancer, name));
    let group = join(&mut servers[0], "a", "g", "cpu push 50");
    join(&mut servers[1], "b", &group, "cpu push 50");
    assert_eq!(manager.ask("enable_alert a"), "ok");
    eventually("the server knows", || servers[0].ask("alerted a") == "yes");
    let mut client = Client::start(servers[0].peer(), &[]);
    assert_eq!(client.ask("who"), "b");
    balancer.signal(Signal::STOP);
    eventually("the server serves again", || {
        servers[0].ask("alerted a") == "no"
    });
    let mut client = Client::start(servers[0].peer(), &[]);
    assert_eq!(client.ask("who"), "a");
    balancer.signal(Signal::CONT);
    eventually("the alert is back", || servers[0].ask("alerted a") == "yes");
    assert_eq!(client.ask("who"), "b");
}

#[test]
fn an_alert_moves_clients_and_is_lifted_again() {
    if !can_run() {
        return;
    }
    let balancer = balancer();
    let mut manager = manager(&balancer);
    let mut servers = ["a", "b"].map(|name| server(&balancer, name));
    let group = join(&mut servers[0], "a", "g", "in_flight");
    join(&mut servers[1], "b", &group, "");
    let mut clients: Vec<_> = (0..4)
        .map(|_| Client::repeat(&group, "who", &["--rate", "200"]))
        .collect();
    let mut bound: Vec<_> = clients.iter().map(|client| client.line()).collect();
    bound.sort_unstable();
    assert_eq!(bound, ["bound a", "bound a", "bound b", "bound b"]);
    // A session of a server under an alert goes on: it belongs to its client.
    let sessions = servers[0].sessions().to_owned();
    let mut session = Client::start(&sessions, &[]);
    assert_eq!(session.ask("open x"), "open");

    assert_eq!(manager.ask("enable_alert a"), "ok");
    eventually("the server knows", || servers[0].ask("alerted a") == "yes");
    eventually("its clients have moved", || {
        bound.extend(clients.iter().flat_map(|client| client.unread()));
        bound.len() == 6
    });
    assert_eq!(bound[4..], ["bound b", "bound b"]);
    assert_eq!(session.ask("session who"), "a/x");
    // It is not dead, and a client of it alone is sent to the group.
    let mut direct = Client::start(servers[0].peer(), &[]);
    assert_eq!(direct.ask("non_existent"), "no");
    assert_eq!(direct.ask(&format!("is_a {PEER}")), "yes");
    assert_eq!(direct.ask("who"), "b");
    let mut new = Client::start(&group, &[]);
    assert_eq!(answers(&mut new, &group, 4), ["b"; 4]);

    assert_eq!(manager.ask("disable_alert a"), "ok");
    eventually("the server knows", || servers[0].ask("alerted a") == "no");
    eventually("new clients are bound to it again", || {
        answers(&mut new, &group, 4) == ["a", "a", "b", "b"]
    });
    let mut direct = Client::start(servers[0].peer(), &[]);
    assert_eq!(direct.ask("who"), "a");
    for client in &mut clients {
        let done = client.finish();
        assert!(done.len() == 1 && done[0].contains(" 0 "), "{done:?}");
    }
    assert!(servers[0].ask("loads a").contains("17=0.0"));
}

/// A oneway that is sent back is lost: nobody waits for the answer that says where to.
#[test]
fn a_oneway_under_an_alert_is_carried_out_c3() {
    if !can_run() {
        return;
    }
    let balancer = balancer();
    let mut manager = manager(&balancer);
    let mut servers = ["a", "b"].map(|name| server(&balancer, name));
    let group = join(&mut servers[0], "a", "g", "");
    join(&mut servers[1], "b", &group, "");
    // A client for each of its requests, so that none is sent elsewhere before.
    let mut client = Client::start(servers[0].peer(), &[]);
    let mut direct = Client::start(servers[0].peer(), &[]);
    assert_eq!(client.ask("posted"), "0");
    assert_eq!(manager.ask("enable_alert a"), "ok");
    eventually("the server knows", || servers[0].ask("alerted a") == "yes");
    assert_eq!(direct.ask("post 3"), "post 3");
    assert_eq!(manager.ask("disable_alert a"), "ok");
    eventually("the server knows", || servers[0].ask("alerted a") == "no");
    eventually("the oneways have arrived", || client.ask("posted") == "3");
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
    let group = join(&mut server, "a", "g", "others");
    // In each group somebody always serves, so there must be somebody else.
    let other = Server::start("b", &[]);
    let added = manager.ask(&format!("add_member {group} b {}", other.peer()));
    assert_eq!(added, group);
    let sessions = server.sessions().to_owned();
    let mut client = Client::start(&sessions, &[]);
    assert_eq!(client.ask("open x"), "open");
    assert_eq!(manager.ask("enable_alert a"), "ok");
    eventually("the server knows", || server.ask("alerted a") == "yes");
    assert_eq!(
        client.ask("session who"),
        "error TRANSIENT 0x0 COMPLETED_NO"
    );
    assert_eq!(client.ask("non_existent"), "no");
    assert_eq!(manager.ask("disable_alert a"), "ok");
    eventually("the server knows", || server.ask("alerted a") == "no");
    assert_eq!(client.ask("session who"), "a/x");
}

/// Every operation of the service's IDL, by stubs that JacORB made of it.
#[test]
fn an_application_uses_every_operation_of_the_load_manager() {
    if !can_run() {
        return;
    }
    let balancer = balancer();
    let mut manager = manager(&balancer);
    let mut ask = |line: String| manager.ask(&line);
    let invalid = "error IDL:omg.org/PortableGroup/InvalidProperty:1.0";
    for prefix in ["tao.lb", "omg.org"] {
        let id = format!("is_a IDL:{prefix}/CosLoadBalancing/LoadManager:1.0");
        assert_eq!(ask(id), "yes");
    }

    // Properties at three levels: that of the group counts most, then its type's.
    let least = "strategy=LeastLoaded:CriticalThreshold=10.0:PerBalanceLoad=1.0";
    assert_eq!(ask(format!("set_default_properties {least}")), "ok");
    let text = "StrategyInfo=LeastLoaded:CriticalThreshold=10.0:PerBalanceLoad=1.0";
    // The manager adds a reference of the strategy.
    let defaults = ask("get_default_properties".into());
    assert!(
        defaults.starts_with(text) && defaults.contains(" Strategy=IOR:"),
        "{defaults}"
    );
    assert_eq!(
        ask(format!("set_type_properties {PEER} strategy=Random")),
        "ok"
    );
    let of_type = ask(format!("get_type_properties {PEER}"));
    assert!(of_type.starts_with("StrategyInfo=Random "), "{of_type}");
    let group = ask(format!(
        "create_object {PEER} style=0 org.evenkeel.GroupName=g"
    ));
    let of_group = ask(format!("get_properties {group}"));
    assert!(of_group.contains("StrategyInfo=Random "), "{of_group}");
    let dynamic = format!("set_properties_dynamically {group} strategy=RoundRobin");
    assert_eq!(ask(dynamic), "ok");
    let of_group = ask(format!("get_properties {group}"));
    assert!(of_group.contains("StrategyInfo=RoundRobin "), "{of_group}");
    let set = format!("set_properties_dynamically {group}");
    for wrong in [
        "Nonsense",
        "LeastLoaded:Tolerance=0.5",
        "LeastLoaded:Dampening=1.0",
    ] {
        let refused = ask(format!("{set} strategy={wrong}"));
        assert!(refused.starts_with(invalid), "{wrong}: {refused}");
    }
    // T8: what means nothing here is kept and given back.
    assert_eq!(ask(format!("{set} my.own.property=1")), "ok");
    let of_group = ask(format!("get_properties {group}"));
    assert!(of_group.contains(" property=1 "), "{of_group}");
    let renamed = ask(format!("{set} org.evenkeel.GroupName=other"));
    let id = "error IDL:omg.org/PortableGroup/UnsupportedProperty:1.0 org.evenkeel.GroupName";
    assert_eq!(renamed, id);
    assert_eq!(
        ask(format!("remove_type_properties {PEER} strategy=Random")),
        "ok"
    );
    // T5: the strategy that counts is always there.
    let of_type = ask(format!("get_type_properties {PEER}"));
    assert!(of_type.starts_with("Strategy=IOR:"), "{of_type}");
    assert_eq!(ask(format!("remove_default_properties {least}")), "ok");
    let defaults = ask("get_default_properties".into());
    assert!(defaults.starts_with("Strategy=IOR:"), "{defaults}");

    // The group and its members.
    let id = ask(format!("get_object_group_id {group}"));
    assert_eq!(ask(format!("get_object_group_ref_from_id {id}")), group);
    assert_eq!(ask(format!("get_object_group_ref {group}")), group);
    let named = format!("corbaloc:iiop:1.2@{}/group/g", balancer.corba());
    assert_eq!(ask(format!("get_object_group_ref {named}")), group);
    let servers = ["a", "b"].map(|name| Server::start(name, &[]));
    for (server, at) in servers.iter().zip(["host1", "host2"]) {
        let add = format!("add_member {group} {at} {}", server.peer());
        assert_eq!(ask(add.clone()), group);
        let again = "error IDL:omg.org/PortableGroup/MemberAlreadyPresent:1.0";
        assert_eq!(ask(add), again);
        assert_eq!(ask(format!("get_member_ref {group} {at}")), server.peer());
        assert_eq!(ask(format!("groups_at_location {at}")), group);
    }
    let wrong = format!("add_member {group} host3 {}", servers[0].sessions());
    assert_eq!(
        ask(wrong),
        "error IDL:omg.org/PortableGroup/ObjectNotAdded:1.0"
    );
    let nil = format!("add_member {group} host3 nil");
    assert!(ask(nil).starts_with("error BAD_PARAM "));
    assert_eq!(ask(format!("locations_of_members {group}")), "host1 host2");
    let mut client = Client::start(&group, &[]);
    assert_eq!(answers(&mut client, &group, 4), ["a", "a", "b", "b"]);

    // Loads, and who measures them.
    assert_eq!(ask("push_loads host1 0=0.5 77=3".into()), "ok");
    assert_eq!(ask("get_loads host1".into()), "0=0.5 77=3.0");
    let not_found = "error IDL:tao.lb/CosLoadBalancing/LocationNotFound:1.0";
    assert_eq!(ask("get_loads nowhere".into()), not_found);
    let monitor = ask("monitor host2 0=0.25".into());
    let register = format!("register_load_monitor host2 {monitor}");
    assert_eq!(ask(register.clone()), "ok");
    let present = "error IDL:tao.lb/CosLoadBalancing/MonitorAlreadyPresent:1.0";
    assert_eq!(ask(register), present);
    assert_eq!(ask("get_load_monitor host2".into()), monitor);
    assert_eq!(ask("remove_load_monitor host2".into()), "ok");
    assert_eq!(ask("remove_load_monitor host2".into()), not_found);

    // Alerts.
    let alert = ask("alert".into());
    let register = format!("register_load_alert host1 {alert}");
    assert_eq!(ask(register.clone()), "ok");
    let present = "error IDL:tao.lb/CosLoadBalancing/LoadAlertAlreadyPresent:1.0";
    assert_eq!(ask(register), present);
    assert_eq!(ask("get_load_alert host1".into()), alert);
    assert_eq!(ask("enable_alert host1".into()), "ok");
    eventually("the alert is enabled", || ask("alerted".into()) == "yes");
    assert_eq!(ask("disable_alert host1".into()), "ok");
    eventually("the alert is disabled", || ask("alerted".into()) == "no");
    assert_eq!(ask("remove_load_alert host1".into()), "ok");
    let not_found = "error IDL:tao.lb/CosLoadBalancing/LoadAlertNotFound:1.0";
    for operation in [
        "get_load_alert",
        "enable_alert",
        "disable_alert",
        "remove_load_alert",
    ] {
        assert_eq!(
            ask(format!("{operation} nowhere")),
            not_found,
            "{operation}"
        );
    }

    assert_eq!(ask(format!("remove_member {group} host1")), group);
    let gone = "error IDL:omg.org/PortableGroup/MemberNotFound:1.0";
    assert_eq!(ask(format!("remove_member {group} host1")), gone);
    assert_eq!(ask(format!("delete_object {group}")), "ok");
    let gone = "error IDL:omg.org/PortableGroup/ObjectGroupNotFound:1.0";
    assert_eq!(ask(format!("get_object_group_id {group}")), gone);
}

/// The service makes the members itself, by factories of JacORB's.
#[test]
fn the_service_makes_members_with_factories() {
    if !can_run() {
        return;
    }
    let balancer = balancer();
    let mut manager = manager(&balancer);
    let one = manager.ask("factory one");
    let two = manager.ask("factory two");
    let few = format!("create_object {PEER} style=1 initial=2 minimum=2 factories=host1@{one}");
    let refused = "error IDL:omg.org/PortableGroup/CannotMeetCriteria:1.0";
    assert_eq!(manager.ask(&few), refused);
    let both = format!("factories=host1@{one},host2@{two}");
    let create = format!("create_object {PEER} style=1 initial=2 minimum=1 {both}");
    let group = manager.ask(&create);
    assert!(group.starts_with("IOR:"), "{group}");
    let locations = format!("locations_of_members {group}");
    assert_eq!(manager.ask(&locations), "host1 host2");
    let made = manager.ask("made");
    let mut made: Vec<_> = made.split(' ').collect();
    made.sort_unstable();
    assert_eq!(made, ["one-1", "two-1"]);
    // Criteria of a FactoryInfo go to its factory unchanged.
    let criteria = manager.ask("criteria");
    assert!(
        criteria == "for=host1" || criteria == "for=host2",
        "{criteria}"
    );
    let mut client = Client::start(&group, &[]);
    assert_eq!(
        answers(&mut client, &group, 4),
        ["one-1", "one-1", "two-1", "two-1"]
    );

    assert_eq!(manager.ask(&format!("remove_member {group} host1")), group);
    // Factories hear of it after the answer.
    eventually("it is deleted", || manager.ask("deleted") == "one-1");
    assert_eq!(answers(&mut client, &group, 2), ["two-1", "two-1"]);
    let again = format!("create_member {group} host1 {PEER}");
    assert_eq!(manager.ask(&again), group);
    assert_eq!(answers(&mut client, &group, 2), ["one-2", "two-1"]);
    assert_eq!(manager.ask(&format!("delete_object {group}")), "ok");
    eventually("all are deleted", || {
        manager.ask("deleted").split(' ').count() == 3
    });
}
