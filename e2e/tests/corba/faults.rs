//! Faults of the first implementation of the OMG's load balancing service (TAO 2.2.2), a test for
//! each.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking.

use std::collections::HashMap;
use std::net::TcpListener;
use std::thread;

use evenkeel_corba::exceptions::UserException;
use evenkeel_corba::interfaces::Interface;
use evenkeel_corba::name::Name;
use evenkeel_corba::types::{Load, Properties, Property, StrategyInfo};
use evenkeel_e2e::balancer::Balancer;
use evenkeel_e2e::corba::LoadManager;
use evenkeel_e2e::omniorb::{self, Client, Server};
use evenkeel_e2e::server;
use evenkeel_e2e::wait_until;
use evenkeel_giop::any::Idl;
use evenkeel_giop::client::CallError;
use evenkeel_giop::exception::{Kind, SystemException};
use evenkeel_giop::ior::Ior;

const PEER: &str = "IDL:evenkeel.org/PeerTest/Peer:1.0";

struct Service {
    balancer: Balancer,
    manager: LoadManager,
    corbaloc: String,
}

impl Service {
    /// `more` are further lines of `[corba]`, and `groups` of `[corba.groups]`.
    fn start(more: &str, groups: &str) -> Self {
        // Where members are made up nobody is to ask them.
        let more = match more {
            "" => "liveness = false",
            more => more,
        };
        let balancer = Balancer::start(&format!(
            "workers = 1\n[admin]\nlisten = \"127.0.0.1:0\"\n\
             [corba]\nlisten = \"127.0.0.1:0\"\nalert_retry = \"100ms\"\n{more}\n\
             [corba.groups]\n{groups}\n"
        ));
        let at = balancer.corba_address();
        Service {
            manager: LoadManager::at_address(at),
            corbaloc: format!("corbaloc:iiop:{at}/LoadManager"),
            balancer,
        }
    }

    /// A group with a strategy and its parameters, and members that nobody needs to reach.
    fn group(&self, strategy: &str, parameters: &[(&str, f32)], members: &[&str]) -> Ior {
        let info = info(strategy, parameters);
        let criteria = vec![Property::new(STRATEGY_INFO, &info)];
        let (group, _) = self.manager.create_group(PEER, criteria).unwrap();
        for at in members {
            self.manager.add_member(&group, at, &object(at)).unwrap();
        }
        group
    }

    fn push(&self, loads: &[(&str, f32)]) {
        for &(at, value) in loads {
            let load = [Load { id: 0, value }];
            self.manager.push_loads(at, &load).unwrap();
        }
    }

    /// The host of the member that the next client is sent to.
    fn next(&self, group: &Ior) -> String {
        host(&self.manager.orb.resolve_forward(group).unwrap())
    }

    /// A server of omniORB that knows the manager.
    fn server(&self, name: &str) -> Server {
        let manager = format!("LoadManager={}", self.corbaloc);
        Server::start(name, &["-ORBInitRef", &manager])
    }

    /// A server that has joined the group, with its load alert, at a location of its name.
    fn member(&self, name: &str, group: &Ior) -> Server {
        let mut server = self.server(name);
        server.join_group(name, &group.to_string());
        server
    }

    fn at_location(&self, operation: &str, at: &str) -> Result<(), UserException> {
        let called = self
            .manager
            .call_operation(operation, |w| Name::from_id(at).write(w));
        called.map(|_| ())
    }

    /// The states of the group's members, by name.
    fn states(&self) -> HashMap<String, String> {
        let status = self.balancer.status();
        let members = status["groups"][0]["members"].as_array().unwrap().clone();
        let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
        members
            .iter()
            .map(|member| (text(&member["name"]), text(&member["state"])))
            .collect()
    }
}

const STRATEGY_INFO: &str = "org.omg.CosLoadBalancing.StrategyInfo";

fn info(strategy: &str, parameters: &[(&str, f32)]) -> StrategyInfo {
    let property = |&(name, value): &(&str, f32)| {
        let name = format!("org.omg.CosLoadBalancing.Strategy.{strategy}.{name}");
        Property::new(&name, &value)
    };
    StrategyInfo {
        name: strategy.into(),
        props: parameters.iter().map(property).collect(),
    }
}

fn object(host: &str) -> Ior {
    Ior::new_iiop(PEER, host, 4711, b"key")
}

fn host(reference: &Ior) -> String {
    reference.iiop_profiles().next().unwrap().host
}

fn transient() -> CallError {
    CallError::System(SystemException::new(Kind::Transient))
}

/// RoundRobin crashes when it wraps around.
#[test]
fn fault_01_round_robin_wraps_around() {
    let service = Service::start("", "");
    let group = service.group("RoundRobin", &[], &["a", "b", "c"]);
    let sent: Vec<_> = (0..30).map(|_| service.next(&group)).collect();
    for round in sent.chunks(3) {
        let mut round = round.to_vec();
        round.sort();
        assert_eq!(round, ["a", "b", "c"]);
    }
}

/// Removing a member of an infrastructure-controlled group deadlocks the manager.
#[test]
fn fault_02_a_member_of_an_infrastructure_controlled_group_is_removed() {
    if !omniorb::can_run() {
        return;
    }
    let service = Service::start("", "");
    let mut servers: Vec<Server> = ["a", "b", "c"].map(|name| service.server(name)).into();
    let factories = servers.iter_mut().zip(["a", "b", "c"]);
    let factories: Vec<_> = factories
        .map(|(server, at)| format!("{at}@{}", server.ask_line(&format!("factory {at}"))))
        .collect();
    let console = &mut servers[0];
    console.run_command("manager LoadManager");
    let group = console.ask_line(&format!(
        "create_object {PEER} membership=1 initial=2 minimum=2 factories={}",
        factories.join(",")
    ));
    let group: Ior = group.parse().unwrap();
    let manager = &service.manager;
    assert_eq!(manager.locations(&group).unwrap(), ["a", "b"]);
    for at in ["a", "b"] {
        manager.remove_member(&group, at).unwrap();
    }
    // The minimum is two.
    wait_until("others take their places", || {
        manager.locations(&group).unwrap().len() == 2
    });
    let mut client = Client::start(&group.to_string(), &[]);
    assert!(!client.ask_line("who").starts_with("error"));
}

/// Dampening keeps no history, and the per-balance load has no effect without dampening.
#[test]
fn fault_03_dampening_has_a_history_and_each_client_counts() {
    let service = Service::start("", "load = \"cpu\"");
    let damped = service.group("LeastLoaded", &[("Dampening", 0.5)], &["a", "b"]);
    service.push(&[("a", 100.0), ("b", 40.0)]);
    assert_eq!(service.next(&damped), "b");
    // Half of what it was, and not nothing.
    service.push(&[("a", 0.0), ("b", 40.0)]);
    assert_eq!(service.next(&damped), "b");

    let counted = [("PerBalanceLoad", 30.0)];
    let counted = service.group("LeastLoaded", &counted, &["c", "d"]);
    service.push(&[("c", 0.0), ("d", 50.0)]);
    let sent: Vec<_> = (0..4).map(|_| service.next(&counted)).collect();
    // 0, 30 and then 60 against 50 and 80.
    assert_eq!(sent, ["c", "c", "d", "c"]);
}

/// Fault: if all members are above the reject threshold, clients are told that the object does not
/// exist.
#[test]
fn fault_04_who_cannot_be_served_may_try_again() {
    let service = Service::start("", "load = \"cpu\"");
    let group = service.group("LeastLoaded", &[("RejectThreshold", 10.0)], &["a", "b"]);
    service.push(&[("a", 20.0), ("b", 30.0)]);
    // Refusing somebody helps only while somebody else can take them.
    assert_eq!(service.next(&group), "a");
    let name = service.balancer.status()["groups"][0]["name"].clone();
    let name = name.as_str().unwrap();
    for at in ["a", "b"] {
        service
            .balancer
            .run_ctl(&format!("maintenance {name} {at}"))
            .unwrap();
    }
    let refused = service.manager.orb.resolve_forward(&group).unwrap_err();
    assert_eq!(refused, transient());
}

/// A member under alert rejects liveness pings, too, and is dropped as dead.
#[test]
fn fault_05_a_member_that_sheds_is_not_dead() {
    if !omniorb::can_run() {
        return;
    }
    let service = Service::start("liveness = \"100ms\"", "");
    let (group, _) = service.manager.create_group(PEER, vec![]).unwrap();
    let [mut a, _b, mut c] = ["a", "b", "c"].map(|name| service.member(name, &group));
    service.at_location("enable_alert", "a").unwrap();
    wait_until("the server has it", || a.ask_line("at a alerted") == "yes");
    // That another one is found dead shows that members are asked.
    c.kill();
    wait_until("c is down", || {
        !["up", "shedding", "slow_start"].contains(&service.states()["c"].as_str())
    });
    for _ in 0..20 {
        assert_ne!(service.next(&group), "c");
    }
    assert_eq!(service.states()["a"], "shedding");
    service.at_location("disable_alert", "a").unwrap();
    wait_until("it is lifted", || a.ask_line("at a alerted") == "no");
    wait_until("clients come to a again", || {
        let mut client = Client::start(&group.to_string(), &[]);
        client.ask_line("who") == "a"
    });
}

/// Fault: if the only member is under alert, clients loop between it and the manager.
#[test]
fn fault_06_the_only_member_serves_though_it_is_under_alert() {
    if !omniorb::can_run() {
        return;
    }
    let service = Service::start("", "");
    let (group, _) = service.manager.create_group(PEER, vec![]).unwrap();
    let mut a = service.member("a", &group);
    let mut client = Client::start(&group.to_string(), &[]);
    assert_eq!(client.ask_line("who"), "a");
    service.at_location("enable_alert", "a").unwrap();
    // The other one can take its clients: then it is meant, and then a is alone again.
    let b = service.member("b", &group);
    wait_until("the server has it", || a.ask_line("at a alerted") == "yes");
    wait_until("the client has moved", || client.ask_line("who") == "b");
    drop(b);
    service.manager.remove_member(&group, "b").unwrap();
    wait_until("the server serves again", || {
        a.ask_line("at a alerted") == "no"
    });
    let served = a.served_count();
    for _ in 0..100 {
        assert_eq!(client.ask_line("who"), "a");
    }
    assert_eq!(a.served_count() - served, 100);
}

/// LoadMinimum and LoadAverage raise no alert at twice the minimum, or average, and more.
#[test]
fn fault_07_far_above_the_others_is_an_alert() {
    if !omniorb::can_run() {
        return;
    }
    for strategy in ["LoadMinimum", "LoadAverage"] {
        let service = Service::start("", "load = \"cpu\"");
        let group = service.group(strategy, &[], &["x", "y", "z"]);
        let mut a = service.member("a", &group);
        wait_until("it is told to shed", || {
            service.push(&[("a", 50.0), ("x", 1.0), ("y", 1.0), ("z", 1.0)]);
            a.ask_line("at a alerted") == "yes"
        });
        wait_until("it is lifted", || {
            service.push(&[("a", 1.0), ("x", 1.0), ("y", 1.0), ("z", 1.0)]);
            a.ask_line("at a alerted") == "no"
        });
    }
}

/// Type properties, dynamic properties and create_member are missing, and lookup by id fails.
#[test]
fn fault_08_properties_create_member_and_ids_work() {
    if !omniorb::can_run() {
        return;
    }
    let service = Service::start("", "load = \"cpu\"");
    let manager = &service.manager;
    let (group, id) = manager.create_group(PEER, vec![]).unwrap();
    for at in ["a", "b"] {
        manager.add_member(&group, at, &object(at)).unwrap();
    }
    service.push(&[("a", 1.0), ("b", 9.0)]);
    let of_type = vec![Property::new(STRATEGY_INFO, &info("LeastLoaded", &[]))];
    let set = manager.call_operation("set_type_properties", |w| {
        PEER.to_owned().write(w);
        of_type.write(w);
    });
    set.unwrap();
    assert_eq!(service.next(&group), "a");
    let own = vec![Property::new(STRATEGY_INFO, &info("RoundRobin", &[]))];
    manager.set_properties(&group, &own).unwrap();
    let mut both = [service.next(&group), service.next(&group)];
    both.sort();
    assert_eq!(both, ["a", "b"]);

    let body = manager.call_operation("get_object_group_id", |w| group.write(w));
    let number = u64::read(&mut body.unwrap().reader()).unwrap();
    let found = manager.call_operation("get_object_group_ref_from_id", |w| w.write_u64(number));
    assert_eq!(Ior::read(&mut found.unwrap().reader()).unwrap(), group);
    manager
        .call_operation("delete_object", |w| id.write(w))
        .unwrap();
    let gone = manager.call_operation("get_object_group_ref_from_id", |w| w.write_u64(number));
    assert_eq!(gone.unwrap_err(), UserException::ObjectGroupNotFound);

    let mut server = service.server("made");
    let factory = server.ask_line("factory made");
    server.run_command("manager LoadManager");
    let group = server.ask_line(&format!(
        "create_object {PEER} membership=0 factories=here@{factory}"
    ));
    let group: Ior = group.parse().unwrap();
    let create = |at: &str| {
        manager.call_operation("create_member", |w| {
            group.write(w);
            Name::from_id(at).write(w);
            PEER.to_owned().write(w);
            Properties::new().write(w);
        })
    };
    create("here").unwrap();
    assert_eq!(manager.locations(&group).unwrap(), ["here"]);
    assert_eq!(
        create("here").unwrap_err(),
        UserException::MemberAlreadyPresent
    );
    assert!(matches!(
        create("there").unwrap_err(),
        UserException::NoFactory { .. }
    ));
    let mut client = Client::start(&group.to_string(), &[]);
    assert_eq!(client.ask_line("who"), "made-1");
}

/// A monitor that fails stops the round, monitors are asked in turn, and loads never expire.
#[test]
fn fault_09_monitors_do_not_depend_on_each_other_and_loads_expire() {
    if !omniorb::can_run() {
        return;
    }
    let service = Service::start(
        "pull_interval = \"200ms\"\npull_timeout = \"10s\"",
        "load = \"cpu\"\nload_max_age = \"3s\"",
    );
    let (group, _) = service.manager.create_group(PEER, vec![]).unwrap();
    // One takes no connections, and one takes them and never answers.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let addresses = [silent.local_addr().unwrap(), server::address()];
    let type_id = Interface::LoadMonitor.id("tao.lb");
    for (at, address) in ["silent", "closed"].iter().zip(addresses) {
        let host = address.ip().to_string();
        let monitor = Ior::new_iiop(&type_id, &host, address.port(), b"monitor");
        let registered = service
            .manager
            .call_operation("register_load_monitor", |w| {
                Name::from_id(at).write(w);
                monitor.write(w);
            });
        registered.unwrap();
    }
    let mut good = service.member("good", &group);
    good.run_command("load 0 0.25");
    good.run_command("at good monitor 0 custom=0");
    let load = || service.balancer.status()["groups"][0]["members"][0]["load"].clone();
    wait_until("its load is known", || load() == 0.25);
    good.run_command("load 0 0.75");
    wait_until("its load is followed", || load() == 0.75);
    good.kill();
    wait_until("its load is known no more", || load().is_null());
}

/// A location without an alert object stops the analysis of those behind it.
#[test]
fn fault_10_a_location_without_an_alert_does_not_matter_to_others() {
    if !omniorb::can_run() {
        return;
    }
    let service = Service::start("", "load = \"cpu\"");
    let group = service.group("LoadMinimum", &[], &["w", "x", "y"]);
    let mut z = service.member("z", &group);
    // The most loaded one cannot be told.
    wait_until("the other one is told", || {
        service.push(&[("w", 100.0), ("z", 50.0), ("x", 1.0), ("y", 1.0)]);
        z.ask_line("at z alerted") == "yes"
    });
}

/// The built-in strategy always wins over a custom one.
#[test]
fn fault_11_a_custom_strategy_wins() {
    if !omniorb::can_run() {
        return;
    }
    let service = Service::start("custom_strategy_timeout = \"10s\"", "");
    let mut server = service.server("strategy");
    let strategy = server.ask_line("strategy first");
    server.run_command("manager LoadManager");
    let group = server.ask_line(&format!(
        "create_object {PEER} membership=0 strategy=RoundRobin custom={strategy}"
    ));
    let group: Ior = group.parse().unwrap();
    for at in ["a", "b", "c"] {
        service.manager.add_member(&group, at, &object(at)).unwrap();
    }
    // It always says the first one.
    for _ in 0..9 {
        assert_eq!(service.next(&group), "a");
    }
}

/// Everything runs in one thread, so that whatever waits holds up everybody.
#[test]
fn fault_12_what_waits_for_others_holds_up_nobody() {
    let service = Service::start("call_timeout = \"60s\"", "");
    let group = service.group("RoundRobin", &[], &["a"]);
    // Its type is asked for, since the reference says another one. It never answers.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = silent.local_addr().unwrap().port();
    let (at, waiting) = (service.balancer.corba_address(), group.clone());
    let adding = thread::spawn(move || {
        let member = Ior::new_iiop("IDL:Other:1.0", "127.0.0.1", port, b"key");
        LoadManager::at_address(at).add_member(&waiting, "silent", &member)
    });
    let (asked, _) = silent.accept().unwrap();
    for _ in 0..100 {
        assert_eq!(service.next(&group), "a");
    }
    service.push(&[("a", 0.5)]);
    service
        .manager
        .add_member(&group, "b", &object("b"))
        .unwrap();
    assert!(!adding.is_finished());
    drop((silent, asked));
    let added = adding.join().unwrap();
    assert_eq!(added.unwrap_err(), UserException::ObjectNotAdded);
    assert_eq!(service.manager.locations(&group).unwrap(), ["a", "b"]);
}
