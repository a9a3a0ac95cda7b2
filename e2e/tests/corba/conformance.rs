//! CORBA service for clients and servers of any ORB, run with each ORB that has an adapter
//! ([`Orb`]). Tests of one ORB alone are in `omniorb.rs` and `jacorb.rs`.
//!
//! A server joins its groups by our library for its ORB; clients are as the ORB makes them.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking.

use std::net::SocketAddr;

use evenkeel_e2e::balancer::Balancer;
use evenkeel_e2e::jacorb::JacOrb;
use evenkeel_e2e::omniorb::OmniOrb;
use evenkeel_e2e::orb::{Client, Location, Orb, Server};
use evenkeel_e2e::process::Signal;
use evenkeel_e2e::script::Script;
use evenkeel_e2e::wait_until;

/// The suite for one ORB, as a module.
macro_rules! conforms {
    ($name:ident, $orb:ty) => {
        conforms! { $name, $orb:
            a_client_and_a_server_talk
            clients_are_bound_in_every_version
            clients_are_bound_and_stay
            the_manager_is_found_in_every_version
            every_operation_of_the_manager_is_called
            strategies_are_objects_and_an_application_brings_its_own
            nobody_is_sent_to_members_that_were_killed_t1_u5
            clients_of_a_killed_or_stopped_member_go_to_another_one
            alerts_move_clients_and_are_lifted_again
            a_oneway_under_an_alert_is_carried_out_c3
            an_alert_is_lifted_while_the_manager_is_gone
            alerts_are_set_again_after_a_restart_of_the_manager
            clients_are_rebound_at_a_fixed_interval
            clients_go_on_while_the_manager_restarts
            factories_make_and_replace_members
            a_server_that_crashed_is_replaced
            a_server_that_leaves_sends_its_clients_to_the_others
            loads_are_pushed
            loads_are_asked_for
            loads_of_the_host_are_those_of_its_kernel
        }
    };
    ($name:ident, $orb:ty: $($test:ident)*) => {
        mod $name {
            $(#[test]
            fn $test() {
                use evenkeel_e2e::orb::Orb;
                if <$orb>::can_run() {
                    super::$test::<$orb>();
                }
            })*
        }
    };
}

conforms!(omniorb, super::OmniOrb);
conforms!(jacorb, super::JacOrb);

const PEER: &str = "IDL:evenkeel.org/PeerTest/Peer:1.0";
const REFUSED: &str = "error IDL:evenkeel.org/PeerTest/Refused:1.0 as asked 42";
/// Property that is listed where nobody has set anything: the strategy that counts (T5).
const STRATEGY: &str = "org.omg.CosLoadBalancing.Strategy=object";

/// An exception of `PortableGroup`.
fn raised(name: &str) -> String {
    format!("error IDL:omg.org/PortableGroup/{name}:1.0")
}

/// An exception of `CosLoadBalancing`.
fn raised_lb(name: &str) -> String {
    format!("error IDL:tao.lb/CosLoadBalancing/{name}:1.0")
}

/// The service, whose groups are round robin.
struct Service {
    balancer: Balancer,
    config: String,
    address: SocketAddr,
}

impl Service {
    fn start() -> Self {
        Self::with("")
    }

    /// With these further keys of `[corba]`.
    fn with(more: &str) -> Self {
        let config = |listen: SocketAddr| {
            format!(
                "workers = 1\n[admin]\nlisten = \"127.0.0.1:0\"\n\
                 [corba]\nlisten = \"{listen}\"\nior_file = \"lm.ior\"\nalert_retry = \"100ms\"\n{more}\n\
                 [corba.groups]\nstrategy = \"round_robin\"\n"
            )
        };
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let balancer = Balancer::start(&config(any));
        let address = balancer.corba_address();
        Self {
            balancer,
            config: config(address),
            address,
        }
    }

    /// Kills it, and starts it again after that.
    fn restart(mut self, meanwhile: impl FnOnce()) -> Self {
        self.balancer.signal(Signal::KILL);
        self.balancer.wait_for_end();
        meanwhile();
        self.balancer = self.balancer.replace(&self.config);
        self
    }

    fn initial_reference(&self) -> String {
        format!("LoadManager=corbaloc:iiop:{}/LoadManager", self.address)
    }

    /// A process that calls the manager.
    fn manager<O: Orb>(&self) -> Script {
        O::manager(&["-ORBInitRef", &self.initial_reference()])
    }

    /// A server that knows the manager.
    fn server<O: Orb>(&self, name: &str) -> Server<O> {
        Server::start(name, &["-ORBInitRef", &self.initial_reference()])
    }

    /// The servers, each a member of a new group at the location of its name.
    fn group<O: Orb, const N: usize>(
        &self,
        manager: &mut Script,
        names: [&str; N],
    ) -> (String, [Server<O>; N]) {
        self.group_with(manager, "", names, &Location::default())
    }

    /// Makes a group with further properties, and loads.
    fn group_with<O: Orb, const N: usize>(
        &self,
        manager: &mut Script,
        properties: &str,
        names: [&str; N],
        how: &Location,
    ) -> (String, [Server<O>; N]) {
        let create = format!("create_object {PEER} membership=0 {properties}");
        let group = manager.ask_line(create.trim_end());
        assert!(group.starts_with("IOR:"), "{group}");
        let servers = names.map(|name| {
            let mut server = self.server(name);
            server.join_with(name, &group, how);
            server
        });
        (group, servers)
    }
}

/// Binds a client anew, to `reference`.
fn bind(client: &mut Script, reference: &str) {
    assert_eq!(client.ask_line(&format!("use {reference}")), "use");
}

/// Returns the answers to `number` new bindings of a client to the group, in order.
fn answers(client: &mut Script, group: &str, number: usize) -> Vec<String> {
    let mut all: Vec<_> = (0..number)
        .map(|_| {
            bind(client, group);
            client.ask_line("who")
        })
        .collect();
    all.sort_unstable();
    all
}

/// Clients of the group, one bound to each of its members.
fn clients<O: Orb, const N: usize>(group: &str, names: [&str; N]) -> [Client<O>; N] {
    names.map(|name| {
        let mut client = Client::start(group, &[]);
        wait_until("it is bound there", || {
            bind(&mut client, group);
            client.ask_line("who") == name
        });
        client
    })
}

/// Ends clients that repeat a call: none of theirs has failed, and they were not moved since
/// what was read of them last.
fn end_unmoved<O>(clients: &mut [Client<O>]) {
    for client in clients {
        let said = client.end_input();
        let [done] = &said[..] else {
            panic!("it was moved: {said:?}");
        };
        let words: Vec<_> = done.split(' ').collect();
        assert_eq!((words[0], words[2]), ("done", "0"), "{done}");
    }
}

/// The words of a list whose order says nothing.
fn sorted(list: &str) -> Vec<&str> {
    let mut words: Vec<_> = list.split(' ').collect();
    words.sort_unstable();
    words
}

fn as_words(options: &[String]) -> Vec<&str> {
    options.iter().map(String::as_str).collect()
}

fn set_alert<O: Orb>(manager: &mut Script, server: &mut Server<O>, at: &str, on: bool) {
    let operation = if on { "enable_alert" } else { "disable_alert" };
    manager.run_command(&format!("{operation} {at}"));
    wait_until("the server knows", || server.is_alerted(at) == on);
}

/// Every sort of call, answered by the one server.
fn calls(client: &mut Script, wide: bool, name: &str) {
    assert_eq!(client.ask_line("who"), name);
    assert_eq!(client.ask_line("add 1 2"), "3");
    assert_eq!(client.ask_line("blob 100000"), "blob 100000");
    for kind in ["alias", "nested", "object", "exception", "recursive"] {
        let reflect = format!("reflect {kind}");
        assert_eq!(client.ask_line(&reflect), reflect);
    }
    assert_eq!(
        client.ask_line("fail 1"),
        "error TRANSIENT 0x7 COMPLETED_NO"
    );
    assert_eq!(client.ask_line("fail 0"), REFUSED);
    assert_eq!(client.ask_line(&format!("is_a {PEER}")), "yes");
    assert_eq!(client.ask_line("is_a IDL:omg.org/CosNaming:1.0"), "no");
    assert_eq!(client.ask_line("non_existent"), "no");
    if wide {
        assert_eq!(client.ask_line("wide grüße"), "grüße");
    }
    let before: i64 = client.ask_line("posted").parse().unwrap();
    assert_eq!(client.ask_line("post 3"), "post 3");
    wait_until("the oneway has arrived", || {
        client.ask_line("posted") == (before + 3).to_string()
    });
}

/// The peers themselves: what a client sees without a balancer is what it must see with one.
fn a_client_and_a_server_talk<O: Orb>() {
    let mut server = Server::<O>::start("a", &[]);
    for minor in 0..3 {
        let version = O::version(minor);
        let mut client = Client::<O>::start(server.peer(), &as_words(&version));
        calls(&mut client, minor >= O::WIDE, "a");
    }
    let mut client = Client::<O>::start(server.sessions(), &[]);
    assert_eq!(client.ask_line("open x"), "open");
    assert_eq!(client.ask_line("session who"), "a/x");
    let before = server.served_count();
    let mut client = Client::<O>::repeat(server.peer(), "who", &["--count", "10"]);
    assert_eq!(client.read_line(), "bound a");
    assert!(client.read_line().starts_with("done 10 0 "));
    assert_eq!(client.end_input(), [""; 0]);
    assert_eq!(server.served_count(), before + 10);
}

/// Clients and members of each version, and references of each.
fn clients_are_bound_in_every_version<O: Orb>() {
    let service = Service::start();
    let mut manager = service.manager::<O>();
    for minor in 0..3 {
        let name = format!("version-{minor}");
        let create = format!("create_object {PEER} membership=0 org.evenkeel.GroupName={name}");
        let group = manager.ask_line(&create);
        let (version, initial) = (O::version(minor), service.initial_reference());
        let mut options = as_words(&version);
        let mut client = Client::<O>::start(&group, &options);
        options.extend(["-ORBInitRef", &initial]);
        let mut server = Server::<O>::start(&name, &options);
        server.join_group(&name, &group);
        let at = service.address;
        let references = (0..3).map(|minor| format!("corbaloc:iiop:1.{minor}@{at}/group/{name}"));
        for reference in references.chain([group]) {
            bind(&mut client, &reference);
            // The first request has a body to send again to the member.
            assert_eq!(client.ask_line("blob 100000"), "blob 100000");
            calls(&mut client, minor >= O::WIDE, &name);
        }
    }
}

fn clients_are_bound_and_stay<O: Orb>() {
    let service = Service::start();
    let mut manager = service.manager::<O>();
    let (group, mut servers) = service.group::<O, 2>(&mut manager, ["a", "b"]);
    for minor in 0..3 {
        let mut client = Client::<O>::start(&group, &as_words(&O::version(minor)));
        // The first call may be any.
        let bound = ["blob 100000".to_owned(), format!("is_a {PEER}")].map(|first| {
            bind(&mut client, &group);
            assert!(["blob 100000", "yes"].contains(&&*client.ask_line(&first)));
            let name = client.ask_line("who");
            calls(&mut client, minor >= O::WIDE, &name);
            name
        });
        assert_ne!(bound[0], bound[1], "one after the other");
    }
    // The file in which the application keeps it makes no difference.
    let id = manager.ask_line(&format!("get_object_group_id {group}"));
    let by_id = manager.ask_line(&format!("get_object_group_ref_from_id {id}"));
    assert_eq!(by_id, group);
    let [a, b] = &mut servers;
    let served = [a.served_count(), b.served_count()];
    let client = Client::<O>::repeat(&group, "who", &["--count", "100"]);
    assert!(client.read_line().starts_with("bound "));
    assert!(client.read_line().starts_with("done 100 0 "));
    let more = [a.served_count() - served[0], b.served_count() - served[1]];
    assert!(more == [100, 0] || more == [0, 100], "{more:?}");
}

fn the_manager_is_found_in_every_version<O: Orb>() {
    let service = Service::start();
    let reference = service.balancer.folder().text("lm.ior");
    for minor in 0..3 {
        let (version, initial) = (O::version(minor), service.initial_reference());
        let mut options = as_words(&version);
        options.extend(["-ORBInitRef", &initial]);
        // Asks for the manager's type before anything else.
        let mut manager = O::manager(&options);
        assert_eq!(manager.ask_line("get_default_properties"), STRATEGY);
        manager.run_command(&format!("manager {}", reference.trim()));
        assert_eq!(manager.ask_line("get_default_properties"), STRATEGY);
        let group = manager.ask_line(&format!("create_object {PEER} membership=0"));
        assert!(group.starts_with("IOR:"), "{group}");
        let mut client = Client::<O>::start("LoadManager", &options);
        for prefix in ["tao.lb", "omg.org"] {
            let id = format!("IDL:{prefix}/CosLoadBalancing/LoadManager:1.0");
            assert_eq!(client.ask_line(&format!("is_a {id}")), "yes");
        }
        assert_eq!(client.ask_line(&format!("is_a {PEER}")), "no");
    }
}

/// `RoundRobin`, `LeastLoaded`, … as the manager tells its properties.
fn strategy_of(manager: &mut Script, group: &str) -> String {
    let properties = manager.ask_line(&format!("get_properties {group}"));
    let (_, info) = properties
        .split_once("StrategyInfo=")
        .unwrap_or_else(|| panic!("no strategy: {properties}"));
    info.split('(').next().unwrap().to_owned()
}

/// Every operation of the service's IDL, by stubs that the ORB has made of it.
fn every_operation_of_the_manager_is_called<O: Orb>() {
    let service = Service::start();
    let mut m = service.manager::<O>();
    let mut a = service.server::<O>("a");
    let b = service.server::<O>("b");
    let (at_a, at_b) = (a.peer().to_owned(), b.peer().to_owned());

    // GenericFactory
    let group = m.ask_line(&format!(
        "create_object {PEER} membership=0 org.evenkeel.GroupName=peers"
    ));
    assert!(group.starts_with("IOR:"), "{group}");
    let other = m.ask_line(&format!("create_object {PEER} membership=0"));
    m.run_command(&format!("delete_object {other}"));
    let gone = m.ask_line(&format!("delete_object {other}"));
    assert_eq!(gone, raised("ObjectNotFound"));

    // ObjectGroupManager
    let unknown = raised("ObjectGroupNotFound");
    assert_eq!(
        m.ask_line(&format!("locations_of_members {other}")),
        unknown
    );
    assert_eq!(m.ask_line(&format!("get_object_group_id {other}")), unknown);
    for (at, member) in [("host1", &at_a), ("rack.2/host2", &at_b)] {
        let add = format!("add_member {group} {at} {member}");
        assert_eq!(m.ask_line(&add), group);
        assert_eq!(m.ask_line(&add), raised("MemberAlreadyPresent"));
        assert_eq!(m.ask_line(&format!("get_member_ref {group} {at}")), *member);
        assert_eq!(m.ask_line(&format!("groups_at_location {at}")), group);
    }
    let taken = m.ask_line(&format!("add_member {group} host1 {at_b}"));
    assert_eq!(taken, raised("MemberAlreadyPresent"));
    let wrong = m.ask_line(&format!("add_member {group} host3 {}", a.sessions()));
    assert_eq!(wrong, raised("ObjectNotAdded"));
    let nil = m.ask_line(&format!("add_member {group} host3 nil"));
    assert!(nil.starts_with("error BAD_PARAM "), "{nil}");
    let locations = m.ask_line(&format!("locations_of_members {group}"));
    assert_eq!(sorted(&locations), ["host1", "rack.2/host2"]);
    assert_eq!(m.ask_line("groups_at_location rack/host2"), "");
    let mut client = Client::<O>::start(&group, &[]);
    assert_eq!(answers(&mut client, &group, 4), ["a", "a", "b", "b"]);
    assert_eq!(m.ask_line(&format!("get_object_group_ref {group}")), group);
    let named = format!("corbaloc:iiop:1.2@{}/group/peers", service.address);
    assert_eq!(m.ask_line(&format!("get_object_group_ref {named}")), group);
    let id = m.ask_line(&format!("get_object_group_id {group}"));
    assert_eq!(
        m.ask_line(&format!("get_object_group_ref_from_id {id}")),
        group
    );
    assert_eq!(m.ask_line("get_object_group_ref_from_id 1"), unknown);
    assert_eq!(m.ask_line(&format!("remove_member {group} host1")), group);
    let none = raised("MemberNotFound");
    assert_eq!(m.ask_line(&format!("remove_member {group} host1")), none);
    assert_eq!(m.ask_line(&format!("get_member_ref {group} host1")), none);
    assert_eq!(
        m.ask_line(&format!("add_member {group} host1 {at_a}")),
        group
    );

    properties_at_three_levels(&mut m, &group);

    // LoadManager
    m.run_command("push_loads host1 0=0.5 77=3");
    assert_eq!(m.ask_line("get_loads host1"), "0=0.5 77=3");
    let nowhere = raised_lb("LocationNotFound");
    assert_eq!(m.ask_line("get_loads nowhere"), nowhere);
    let rarely = Location {
        loads: "custom=77",
        check: 60_000,
        ..Location::default()
    };
    O::open(&mut a, "host1", &rarely);
    let alert = m.ask_line("get_load_alert host1");
    let register = format!("register_load_alert host1 {alert}");
    let another = m.ask_line(&format!("register_load_alert host1 {at_b}"));
    assert_eq!(another, raised_lb("LoadAlertAlreadyPresent"));
    m.run_command("remove_load_alert host1");
    let none = raised_lb("LoadAlertNotFound");
    for at in ["host1", "nowhere"] {
        for operation in [
            "get_load_alert",
            "remove_load_alert",
            "enable_alert",
            "disable_alert",
        ] {
            let answer = m.ask_line(&format!("{operation} {at}"));
            assert_eq!(answer, none, "{operation}");
        }
    }
    // The same one again is no other one (tao_6).
    m.run_command(&register);
    m.run_command(&register);
    assert_eq!(m.ask_line("get_load_alert host1"), alert);
    set_alert(&mut m, &mut a, "host1", true);
    set_alert(&mut m, &mut a, "host1", false);
    let monitor = m.ask_line("get_load_monitor host1");
    let register = format!("register_load_monitor host1 {monitor}");
    let another = m.ask_line(&format!("register_load_monitor host1 {at_b}"));
    assert_eq!(another, raised_lb("MonitorAlreadyPresent"));
    m.run_command("remove_load_monitor host1");
    assert_eq!(m.ask_line("get_load_monitor host1"), nowhere);
    assert_eq!(m.ask_line("remove_load_monitor host1"), nowhere);
    m.run_command(&register);
    m.run_command(&register);
    assert_eq!(m.ask_line("get_load_monitor host1"), monitor);

    m.run_command(&format!("delete_object {group}"));
    assert_eq!(m.ask_line(&format!("get_object_group_id {group}")), unknown);
}

/// PropertyManager: the three levels, each stronger than the one before.
fn properties_at_three_levels(m: &mut Script, group: &str) {
    let least = "strategy=LeastLoaded,CriticalThreshold=10,PerBalanceLoad=1";
    m.run_command(&format!("set_default_properties {least}"));
    let defaults = m.ask_line("get_default_properties");
    for part in [
        "StrategyInfo=LeastLoaded(",
        "CriticalThreshold=10",
        "PerBalanceLoad=1",
        STRATEGY,
    ] {
        // The manager adds a reference of the strategy.
        assert!(defaults.contains(part), "{defaults}");
    }
    assert_eq!(strategy_of(m, group), "LeastLoaded");
    m.run_command(&format!(
        "set_type_properties {PEER} strategy=LeastLoaded,CriticalThreshold=80,RejectThreshold=70"
    ));
    let of_type = m.ask_line(&format!("get_type_properties {PEER}"));
    assert!(
        of_type.contains("LeastLoaded.RejectThreshold=70"),
        "{of_type}"
    );
    m.run_command(&format!("set_type_properties {PEER} strategy=Random"));
    assert_eq!(strategy_of(m, group), "Random");
    let set = format!("set_properties_dynamically {group}");
    m.run_command(&format!("{set} strategy=LoadMinimum,Dampening=0.5"));
    assert_eq!(strategy_of(m, group), "LoadMinimum");
    for wrong in [
        "strategy=Nonsense",
        "strategy=LeastLoaded,Tolerance=0.5",
        "strategy=LeastLoaded,Dampening=1",
    ] {
        for operation in ["set_default_properties", &set] {
            let answer = m.ask_line(&format!("{operation} {wrong}"));
            assert!(answer.starts_with(&raised("InvalidProperty")), "{answer}");
        }
    }
    // T8: what means nothing here is kept and given back.
    m.run_command(&format!("{set} my.own.property=1"));
    let of_group = m.ask_line(&format!("get_properties {group}"));
    assert!(
        sorted(&of_group).contains(&"my.own.property=1"),
        "{of_group}"
    );
    let renamed = m.ask_line(&format!("{set} org.evenkeel.GroupName=other"));
    assert!(
        renamed.starts_with(&raised("UnsupportedProperty")),
        "{renamed}"
    );
    m.run_command(&format!("remove_type_properties {PEER} strategy=Random"));
    m.run_command(&format!("remove_default_properties {least}"));
    // T5: the strategy that counts is always there.
    assert_eq!(m.ask_line(&format!("get_type_properties {PEER}")), STRATEGY);
    assert_eq!(m.ask_line("get_default_properties"), STRATEGY);
}

/// Strategies are objects: those of the manager, and one of the application's.
fn strategies_are_objects_and_an_application_brings_its_own<O: Orb>() {
    let service = Service::start();
    let mut m = service.manager::<O>();
    let group = m.ask_line(&format!("create_object {PEER} membership=0"));
    let servers = ["a", "b"].map(|name| Server::<O>::start(name, &[]));
    for (server, at) in servers.iter().zip(["host1", "host2"]) {
        let added = m.ask_line(&format!("add_member {group} {at} {}", server.peer()));
        assert_eq!(added, group);
    }
    let set = format!("set_properties_dynamically {group}");
    m.run_command(&format!("{set} strategy=LeastLoaded,Tolerance=2"));
    assert_eq!(m.ask_line(&format!("strategy_name {group}")), "LeastLoaded");
    let settings = m.ask_line(&format!("strategy_properties {group}"));
    assert!(settings.contains("LeastLoaded.Tolerance=2"), "{settings}");
    for (at, load) in [("host1", "0=0.75"), ("host2", "0=0.25")] {
        m.run_command(&format!("strategy_push_loads {group} {at} {load}"));
        assert_eq!(m.ask_line(&format!("get_loads {at}")), load);
        let loads = m.ask_line(&format!("strategy_get_loads {group} {at}"));
        assert!(loads.starts_with("0="), "{loads}");
    }
    let next = m.ask_line(&format!("strategy_next_member {group}"));
    assert_eq!(next, servers[1].peer(), "the least loaded one");
    m.run_command(&format!("strategy_analyze_loads {group}"));

    // It asks the manager while the manager waits for it.
    let custom = m.ask_line("strategy host1");
    m.run_command(&format!("{set} custom={custom}"));
    let mut client = Client::<O>::start(&group, &[]);
    assert_eq!(answers(&mut client, &group, 5), ["a"; 5]);
}

/// Two of three members refuse connections, which is more than the panic threshold allows. It
/// is certain all the same, so nobody is sent there: found out without any setting.
fn nobody_is_sent_to_members_that_were_killed_t1_u5<O: Orb>() {
    let service = Service::start();
    let mut manager = service.manager::<O>();
    let (group, [mut a, mut b, _c]) = service.group::<O, 3>(&mut manager, ["a", "b", "c"]);
    let states = || {
        let members = service.balancer.status()["groups"][0]["members"].clone();
        [0, 1, 2].map(|at| members[at]["reasons"].to_string())
    };
    wait_until("all are there", || states() == ["[]"; 3]);
    a.kill();
    b.kill();
    wait_until("two are dead", || {
        let [a, b, c] = states();
        a.contains("dead") && b.contains("dead") && c == "[]"
    });
    assert_eq!(service.balancer.status()["groups"][0]["panic"], false);
    let mut client = Client::<O>::start(&group, &[]);
    assert_eq!(answers(&mut client, &group, 12), ["c"; 12]);
}

fn clients_of_a_killed_or_stopped_member_go_to_another_one<O: Orb>() {
    let service = Service::start();
    let mut manager = service.manager::<O>();
    let (group, [mut a, b]) = service.group::<O, 2>(&mut manager, ["a", "b"]);
    let [mut at_a, mut at_b] = clients::<O, 2>(&group, ["a", "b"]);
    let mut waits = Client::<O>::start(&group, O::IMPATIENT);
    wait_until("it is bound to b", || {
        bind(&mut waits, &group);
        waits.ask_line("who") == "b"
    });

    // Killed between two calls: the client goes to the group by itself, which may say the
    // same member for a while, since nobody has told it.
    a.kill();
    wait_until("it is at b", || at_a.ask_line("who") == "b");
    assert_eq!(manager.ask_line(&format!("remove_member {group} a")), group);
    assert_eq!(at_a.ask_line("who"), "b");

    // One takes its place at the same location.
    let mut c = service.server::<O>("c");
    c.join_group("a", &group);
    let [_, mut at_c] = clients::<O, 2>(&group, ["b", "c"]);

    // Hung: who has a time limit gives up, and may ask again.
    b.pause_process();
    let timeout = waits.ask_line("who");
    assert!(timeout.starts_with(O::TIMEOUT), "{timeout}");
    assert_eq!(at_c.ask_line("who"), "c");
    b.signal(Signal::CONT);
    wait_until("it is answered again", || {
        ["b", "c"].contains(&&*waits.ask_line("who"))
    });
    assert_eq!(
        at_b.ask_line("who"),
        "b",
        "nobody was moved who did not ask"
    );
}

fn alerts_move_clients_and_are_lifted_again<O: Orb>() {
    let service = Service::start();
    let mut manager = service.manager::<O>();
    let counted = Location {
        loads: "in_flight",
        ..Location::default()
    };
    let (group, [mut a, mut b]) =
        service.group_with::<O, 2>(&mut manager, "", ["a", "b"], &counted);
    for minor in 0..3 {
        let version = O::version(minor);
        let options = as_words(&version);
        // One whose alert was just lifted takes clients from the next round on.
        let mut new = Client::<O>::start(&group, &options);
        wait_until("both take clients", || {
            answers(&mut new, &group, 4) == ["a", "a", "b", "b"]
        });
        let mut streams = [(); 2].map(|()| {
            Client::<O>::repeat(&group, "who", &[&options[..], &["--rate", "200"]].concat())
        });
        let mut bound = streams.each_ref().map(|client| client.read_line());
        bound.sort_unstable();
        assert_eq!(bound, ["bound a", "bound b"]);
        let mut at_a = Client::<O>::start(&group, &options);
        wait_until("it is bound to a", || {
            bind(&mut at_a, &group);
            at_a.ask_line("who") == "a"
        });
        // One that knows the member itself is sent to the group as well.
        let mut direct = Client::<O>::start(a.peer(), &options);
        assert_eq!(direct.ask_line("who"), "a");
        // A session belongs to its client.
        let mut session = Client::<O>::start(a.sessions(), &options);
        assert_eq!(session.ask_line("open x"), "open");

        set_alert(&mut manager, &mut a, "a", true);
        for client in [&mut at_a, &mut direct] {
            // A big argument is read and thrown away.
            assert_eq!(client.ask_line("blob 300000"), "blob 300000");
            assert_eq!(client.ask_line("who"), "b");
        }
        let mut moved = Vec::new();
        wait_until("who was bound to a has moved", || {
            moved.extend(streams.iter().flat_map(|client| client.unread()));
            !moved.is_empty()
        });
        assert_eq!(moved, ["bound b"]);
        // What a member has opened is its client's, and it lives.
        assert_eq!(session.ask_line("session who"), "a/x");
        let mut ping = Client::<O>::start(a.peer(), &options);
        assert_eq!(ping.ask_line("non_existent"), "no");
        assert_eq!(ping.ask_line(&format!("is_a {PEER}")), "yes");
        assert_eq!(answers(&mut new, &group, 4), ["b"; 4]);

        set_alert(&mut manager, &mut a, "a", false);
        assert_eq!(at_a.ask_line("who"), "b", "nobody is moved without need");
        assert_eq!(ping.ask_line("who"), "a");
        end_unmoved(&mut streams);
        wait_until("new clients are bound to it again", || {
            answers(&mut new, &group, 4) == ["a", "a", "b", "b"]
        });

        // Over the same connections, the other way.
        set_alert(&mut manager, &mut b, "b", true);
        for client in [&mut at_a, &mut direct] {
            if minor >= O::WIDE {
                assert_eq!(client.ask_line("wide ü"), "ü");
            }
            assert_eq!(client.ask_line("who"), "a");
        }
        set_alert(&mut manager, &mut b, "b", false);
    }
    assert_eq!(
        a.ask_line("at a loads"),
        "17=0",
        "what was sent back is not in flight"
    );
}

/// A oneway that is sent back is lost: nobody waits for the answer that says where to.
fn a_oneway_under_an_alert_is_carried_out_c3<O: Orb>() {
    let service = Service::start();
    let mut manager = service.manager::<O>();
    let (_, [mut a, _b]) = service.group::<O, 2>(&mut manager, ["a", "b"]);
    // A client for each of its requests, so that none is sent elsewhere before.
    let mut client = Client::<O>::start(a.peer(), &[]);
    let mut direct = Client::<O>::start(a.peer(), &[]);
    assert_eq!(client.ask_line("posted"), "0");
    set_alert(&mut manager, &mut a, "a", true);
    assert_eq!(direct.ask_line("post 3"), "post 3");
    set_alert(&mut manager, &mut a, "a", false);
    wait_until("the oneway has arrived", || {
        client.ask_line("posted") == "3"
    });
}

/// Nobody is sent to a manager that is not there.
fn an_alert_is_lifted_while_the_manager_is_gone<O: Orb>() {
    let service = Service::start();
    let mut manager = service.manager::<O>();
    let (_, [mut a, _b]) = service.group::<O, 2>(&mut manager, ["a", "b"]);
    set_alert(&mut manager, &mut a, "a", true);
    // Without a limit it would wait for the manager.
    let mut client = Client::<O>::start(a.peer(), O::IMPATIENT);
    assert_eq!(client.ask_line("who"), "b");
    let mut comes_to = |name| {
        bind(&mut client, a.peer());
        client.ask_line("who") == name
    };
    service.balancer.signal(Signal::STOP);
    wait_until("the server serves again", || comes_to("a"));
    service.balancer.signal(Signal::CONT);
    wait_until("the alert is back", || comes_to("b"));
}

fn alerts_are_set_again_after_a_restart_of_the_manager<O: Orb>() {
    let service = Service::start();
    let mut manager = service.manager::<O>();
    let (group, [mut a, mut b]) = service.group::<O, 2>(&mut manager, ["a", "b"]);
    let [mut at_a, mut at_b] = clients::<O, 2>(&group, ["a", "b"]);
    set_alert(&mut manager, &mut a, "a", true);
    // While nobody is there to bind them anew, members serve their clients.
    let service = service.restart(|| {
        let mut direct = Client::<O>::start(a.peer(), &[]);
        wait_until("a serves again", || {
            bind(&mut direct, a.peer());
            direct.ask_line("who") == "a"
        });
        assert_eq!([at_a.ask_line("who"), at_b.ask_line("who")], ["a", "b"]);
    });
    let mut manager = service.manager::<O>();
    set_alert(&mut manager, &mut a, "a", true);
    wait_until("its client moves", || at_a.ask_line("who") == "b");
    set_alert(&mut manager, &mut a, "a", false);
    set_alert(&mut manager, &mut b, "b", true);
    wait_until("all are moved back", || {
        at_a.ask_line("who") == "a" && at_b.ask_line("who") == "a"
    });
}

/// On demand, but not by the load: again after a fixed interval.
fn clients_are_rebound_at_a_fixed_interval<O: Orb>() {
    let service = Service::start();
    let mut manager = service.manager::<O>();
    let interval = "org.evenkeel.Granularity:string=on_demand \
                    org.evenkeel.Adaptive:boolean=false org.evenkeel.RebindInterval:float=1";
    let here = Location::default();
    let (group, _servers) = service.group_with::<O, 2>(&mut manager, interval, ["a", "b"], &here);
    let mut bound = [(); 4].map(|()| Client::<O>::repeat(&group, "who", &["--rate", "50"]));
    // Where the first one was, and where it went again and again.
    let mut last = bound[0].read_line();
    assert!(["bound a", "bound b"].contains(&&*last), "{last}");
    for _ in 0..4 {
        let next = bound[0].read_line();
        assert!(["bound a", "bound b"].contains(&&*next), "{next}");
        assert_ne!(next, last, "where it is from now on");
        last = next;
    }
    for client in &mut bound {
        let said = client.end_input();
        let words: Vec<_> = said.last().unwrap().split(' ').collect();
        assert_eq!((words[0], words[2]), ("done", "0"), "{said:?}");
    }
}

fn clients_go_on_while_the_manager_restarts<O: Orb>() {
    let service = Service::start();
    let mut manager = service.manager::<O>();
    let pushed = Location {
        loads: "custom=77",
        push: 50,
        ..Location::default()
    };
    let (group, mut servers) = service.group_with::<O, 2>(&mut manager, "", ["a", "b"], &pushed);
    let mut bound = [(); 4].map(|()| Client::<O>::repeat(&group, "who", &["--rate", "100"]));
    for client in &bound {
        assert!(client.read_line().starts_with("bound "));
    }
    let served =
        |servers: &mut [Server<O>; 2]| servers.iter_mut().map(Server::served_count).sum::<u64>();
    let mut service = service.restart(|| {
        let before = served(&mut servers);
        wait_until("clients go on without it", || {
            served(&mut servers) > before + 100
        });
    });

    // The old reference is good for new clients, and servers need not do anything.
    let mut client = Client::<O>::start(&group, &[]);
    assert_eq!(answers(&mut client, &group, 2), ["a", "b"]);
    let mut manager = service.manager::<O>();
    let here = manager.ask_line(&format!("get_object_group_ref {group}"));
    assert_eq!(here, group);
    // Pushes go on by themselves, also to one that has followed in good order.
    service.balancer = service.balancer.replace(&service.config);
    servers[0].run_command("load 77 5");
    let mut manager = service.manager::<O>();
    wait_until("the new manager hears of the load", || {
        manager.ask_line("get_loads a").contains("77=5")
    });
    end_unmoved(&mut bound);
}

/// The service makes the members itself, by factories of the ORB's.
fn factories_make_and_replace_members<O: Orb>() {
    let service = Service::start();
    let mut m = service.manager::<O>();
    let factories = ["a", "b"].map(|at| format!("{at}@{}", m.ask_line(&format!("factory {at}"))));
    let factories = factories.join(",");
    let create = format!("create_object {PEER} membership=1 factories={factories}");
    let few = m.ask_line(&format!("{create} initial=3 minimum=1"));
    assert_eq!(
        few,
        raised("CannotMeetCriteria"),
        "three members need three factories"
    );

    let group = m.ask_line(&format!("{create} initial=2 minimum=1"));
    assert!(group.starts_with("IOR:"), "{group}");
    let locations = format!("locations_of_members {group}");
    assert_eq!(sorted(&m.ask_line(&locations)), ["a", "b"]);
    assert_eq!(sorted(&m.ask_line("made")), ["a-1", "b-1"]);
    // The criteria of a factory have gone to it.
    let criteria = m.ask_line("criteria");
    assert!(
        ["made-at=a", "made-at=b"].contains(&&*criteria),
        "{criteria}"
    );
    let mut client = Client::<O>::start(&group, &[]);
    let both = ["a-1", "a-1", "b-1", "b-1"];
    assert_eq!(answers(&mut client, &group, 4), both);

    assert_eq!(m.ask_line(&format!("remove_member {group} b")), group);
    // Factories hear of it after the answer.
    wait_until("it is deleted", || m.ask_line("deleted") == "b-1");
    assert_eq!(answers(&mut client, &group, 2), ["a-1", "a-1"]);
    // By name of a location.
    let again = m.ask_line(&format!("create_member {group} b {PEER}"));
    assert_eq!(again, group);
    assert_eq!(answers(&mut client, &group, 2), ["a-1", "b-2"]);

    // One less than there may be at least: another one is made.
    for at in ["b", "a"] {
        assert_eq!(m.ask_line(&format!("remove_member {group} {at}")), group);
    }
    wait_until("there is one again", || {
        bind(&mut client, &group);
        ["a-2", "b-3"].contains(&&*client.ask_line("who"))
    });
    m.run_command(&format!("delete_object {group}"));
    wait_until("all are deleted", || {
        m.ask_line("deleted").split(' ').count() == 4
    });
    assert_eq!(m.ask_line(&locations), raised("ObjectGroupNotFound"));
}

/// A crashed server's member, alert and monitor are still there, but nobody answers for them.
fn a_server_that_crashed_is_replaced<O: Orb>() {
    let service = Service::start();
    let mut manager = service.manager::<O>();
    let measured = Location {
        loads: "requests",
        ..Location::default()
    };
    let (group, [mut first]) = service.group_with::<O, 1>(&mut manager, "", ["host1"], &measured);
    // Nobody else gets the location while it lives.
    let mut second = service.server::<O>("host1 again");
    O::is_refused(&mut second, "host1", &group);
    let mut client = Client::<O>::start(&group, &[]);
    assert_eq!(client.ask_line("who"), "host1");

    first.kill();
    O::take_over(&mut second, "host1", &group);
    let locations = manager.ask_line(&format!("locations_of_members {group}"));
    assert_eq!(locations, "host1");
    let member = manager.ask_line(&format!("get_member_ref {group} host1"));
    assert_eq!(member, second.peer());
    // A client goes back to the group by itself.
    assert_eq!(client.ask_line("who"), "host1 again");
    assert_eq!(
        Client::<O>::start(&group, &[]).ask_line("who"),
        "host1 again"
    );
}

/// A client that is bound sees nothing of a server that leaves.
fn a_server_that_leaves_sends_its_clients_to_the_others<O: Orb>() {
    let service = Service::start();
    let mut manager = service.manager::<O>();
    let loads = Location {
        loads: "requests",
        ..Location::default()
    };
    let (group, [mut leaving]) = service.group_with::<O, 1>(&mut manager, "", ["leaving"], &loads);
    let client = Client::<O>::repeat(&group, "who", &["--rate", "500"]);
    assert_eq!(client.read_line(), "bound leaving");
    let mut session = Client::<O>::start(leaving.sessions(), &[]);
    assert_eq!(session.ask_line("open x"), "open");
    let mut staying = service.server::<O>("staying");
    staying.join_with("staying", &group, &loads);
    let mut at_staying = Client::<O>::start(staying.peer(), &[]);
    assert_eq!(at_staying.ask_line("who"), "staying");

    leaving.run_command("at leaving leave 2000");
    assert_eq!(client.read_line(), "bound staying");
    assert_eq!(at_staying.ask_line("who"), "staying");
    assert_eq!(
        session.ask_line("session who"),
        "leaving/x",
        "sessions go on"
    );
    let locations = manager.ask_line(&format!("locations_of_members {group}"));
    assert_eq!(locations, "staying");
    let gone = manager.ask_line("get_load_alert leaving");
    assert_eq!(gone, raised_lb("LoadAlertNotFound"));
    let gone = manager.ask_line("get_load_monitor leaving");
    assert_eq!(gone, raised_lb("LocationNotFound"));
    // It may come back.
    leaving.join_with("leaving", &group, &loads);
    let mut new = Client::<O>::start(&group, &[]);
    let both = ["leaving", "leaving", "staying", "staying"];
    assert_eq!(answers(&mut new, &group, 4), both);
    leaving.kill();
    end_unmoved(&mut [client]);
}

/// A load of a location, as the manager has it.
fn load(manager: &mut Script, at: &str, id: &str) -> Option<f64> {
    let loads = manager.ask_line(&format!("get_loads {at}"));
    let mut loads = loads.split(' ');
    let value = loads.find_map(|load| load.strip_prefix(id)?.strip_prefix('='));
    value.map(|value| value.parse().unwrap())
}

fn loads_are_pushed<O: Orb>() {
    let service = Service::start();
    let mut manager = service.manager::<O>();
    let group = manager.ask_line(&format!("create_object {PEER} membership=0"));
    let mut a = service.server::<O>("a");
    a.run_command("load 77 1.5");
    let loads = Location {
        loads: "requests in_flight custom=77 custom=78",
        push: 20,
        ..Location::default()
    };
    a.join_with("a", &group, &loads);
    for value in [1.5, 2.5] {
        a.run_command(&format!("load 77 {value}"));
        wait_until("the load is known", || {
            load(&mut manager, "a", "77") == Some(value)
        });
        let failed = load(&mut manager, "a", "78");
        assert_eq!(failed, None, "what cannot be measured is left out");
    }
    // Not by the manager's choice: whoever calls the member counts.
    let mut caller = Client::<O>::repeat(a.peer(), "add 1 2", &["--rate", "100"]);
    assert_eq!(caller.read_line(), "bound 3");
    wait_until("requests are counted", || {
        let rate = load(&mut manager, "a", "4");
        rate.is_some_and(|rate| (50.0..=150.0).contains(&rate))
    });
    caller.end_input();
    let mut sleeper = Client::<O>::start(a.peer(), &[]);
    sleeper.send_line("sleep 2000");
    wait_until("one request is in flight", || {
        load(&mut manager, "a", "17") == Some(1.0)
    });
    assert_eq!(sleeper.read_line(), "sleep 2000");
    wait_until("none is in flight, and none arrives", || {
        ["4", "17"].map(|id| load(&mut manager, "a", id)) == [Some(0.0); 2]
    });
    // Those to its other objects do not count.
    let client = Client::<O>::repeat(a.sessions(), "non_existent", &["--count", "50"]);
    client.read_until("bound no");
    assert!(client.read_line().starts_with("done 50 0 "));
    for _ in 0..3 {
        let loads = a.ask_line("at a loads");
        assert!(sorted(&loads).contains(&"4=0"), "{loads}");
    }
}

/// The manager asks the monitor of a location, whatever the server pushes.
fn loads_are_asked_for<O: Orb>() {
    let service = Service::with("pull_interval = \"50ms\"");
    let mut manager = service.manager::<O>();
    let mut pulled = service.server::<O>("pulled");
    pulled.run_command("load 77 7");
    let loads = Location {
        loads: "custom=77",
        ..Location::default()
    };
    O::open(&mut pulled, "pulled", &loads);
    for value in ["7", "8"] {
        pulled.run_command(&format!("load 77 {value}"));
        wait_until("the load is known", || {
            manager.ask_line("get_loads pulled") == format!("77={value}")
        });
    }
}

/// The loads of its host that a server tells are what the agent's own code finds in the kernel's files.
fn loads_of_the_host_are_those_of_its_kernel<O: Orb>() {
    use evenkeel_kernel::proc::text;
    let read = |path: &str| std::fs::read_to_string(path).unwrap();
    let service = Service::with("pull_interval = \"50ms\"");
    let mut manager = service.manager::<O>();
    let mut server = service.server::<O>("server");
    let loads = |loads| Location {
        loads,
        ..Location::default()
    };
    O::open(&mut server, "host", &loads("memory disk network=1000"));
    O::open(&mut server, "plain", &loads("memory network"));
    for at in ["host", "plain"] {
        wait_until("memory in use is known", || {
            let (total, used) = text::parse_memory(&read("/proc/meminfo")).unwrap();
            let share = used as f64 / total as f64;
            load(&mut manager, at, "2").is_some_and(|told| (told - share).abs() < 0.1)
        });
    }
    let within = |told: Option<f64>| told.is_some_and(|told| (0.0..=1.0).contains(&told));
    let disks = read("/proc/diskstats");
    if text::parse_disk_times(&disks).next().is_some() {
        wait_until("the busiest disk is known", || {
            within(load(&mut manager, "host", "1"))
        });
        let ticks = || -> Vec<u32> {
            let disks = read("/proc/diskstats");
            text::parse_disk_times(&disks)
                .map(|(_, ticks)| ticks)
                .collect()
        };
        let folder = std::env::var_os("CARGO_TARGET_TMPDIR").unwrap_or_else(|| ".".into());
        let path = std::path::Path::new(&folder).join(format!("busy-disk-{}", std::process::id()));
        wait_until("a disk that works has a load", || {
            let before = ticks();
            std::fs::write(&path, vec![1; 1 << 20]).unwrap();
            std::fs::File::open(&path).unwrap().sync_all().unwrap();
            // Where files are in memory no disk works.
            ticks() == before || load(&mut manager, "host", "1").is_some_and(|told| told > 0.0)
        });
        std::fs::remove_file(&path).unwrap();
    } else {
        assert_eq!(load(&mut manager, "host", "1"), None);
    }
    let interfaces = read("/proc/net/dev");
    if text::parse_interface_bytes(&interfaces).next().is_some() {
        wait_until("the busiest interface is known", || {
            within(load(&mut manager, "host", "3"))
        });
    } else {
        assert_eq!(load(&mut manager, "host", "3"), None);
    }
    let speed = |name| std::fs::read_to_string(format!("/sys/class/net/{name}/speed"));
    let names = text::parse_interface_bytes(&interfaces).map(|(name, ..)| name);
    let speeds = names.filter_map(|name| text::parse_link_speed(&speed(name).ok()?));
    if speeds.count() == 0 {
        let told = load(&mut manager, "plain", "3");
        assert_eq!(told, None, "nobody knows how fast the network is");
    }
}

/// Clients and members of several ORBs together.
mod mixed {
    use evenkeel_e2e::{jacorb, omniorb};

    use super::*;

    /// Messages that a client of each ORB sends to a member of each arrive, in either byte order.
    #[test]
    fn members_and_clients_of_two_orbs_share_a_group() {
        if !omniorb::can_run() || !jacorb::can_run() {
            return;
        }
        let service = Service::start();
        let mut manager = service.manager::<JacOrb>();
        let (group, [_java]) = service.group::<JacOrb, 1>(&mut manager, ["java"]);
        let cpp = omniorb::Server::start("cpp", &[]);
        let added = manager.ask_line(&format!("add_member {group} cpp {}", cpp.peer()));
        assert_eq!(added, group);
        let mut java = jacorb::Client::start(&group, &[]);
        let mut cpp = omniorb::Client::start(&group, &[]);
        let both: [&mut Script; 2] = [&mut java, &mut cpp];
        for client in both {
            let bound = answers(client, &group, 4);
            assert_eq!(bound, ["cpp", "cpp", "java", "java"]);
            for _ in 0..2 {
                bind(client, &group);
                for call in ["blob 100000", "reflect nested", "reflect recursive"] {
                    assert_eq!(client.ask_line(call), call);
                }
                assert_eq!(client.ask_line("wide grüße"), "grüße");
            }
        }
    }

    #[test]
    fn alerts_of_omniorb_move_clients_of_jacorb() {
        if !omniorb::can_run() || !jacorb::can_run() {
            return;
        }
        let service = Service::start();
        let mut manager = service.manager::<OmniOrb>();
        let (group, [mut a, _b]) = service.group::<OmniOrb, 2>(&mut manager, ["a", "b"]);
        for minor in 0..3 {
            let version = JacOrb::version(minor);
            let mut bound = [(); 2].map(|()| jacorb::Client::start(&group, &as_words(&version)));
            let mut who = bound.each_mut().map(|client| client.ask_line("who"));
            who.sort();
            assert_eq!(who, ["a", "b"]);
            set_alert(&mut manager, &mut a, "a", true);
            for client in &mut bound {
                assert_eq!(client.ask_line("blob 300000"), "blob 300000");
                assert_eq!(client.ask_line("who"), "b");
            }
            set_alert(&mut manager, &mut a, "a", false);
        }
    }
}
