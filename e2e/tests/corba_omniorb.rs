//! CORBA clients and servers with omniORB, as Debian has it.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking.

use evenkeel_e2e::balancer::Balancer;
use evenkeel_e2e::corba::free_address;
use evenkeel_e2e::eventually;
use evenkeel_e2e::folder::Folder;
use evenkeel_e2e::jacorb;
use evenkeel_e2e::omniorb::{self, Client, Server};
use evenkeel_e2e::process::Signal;
use evenkeel_e2e::script::Script;

const PEER: &str = "IDL:evenkeel.org/PeerTest/Peer:1.0";
/// What is listed where nobody has set anything: the strategy that counts (T5).
const STRATEGY: &str = "org.omg.CosLoadBalancing.Strategy=object";
const VERSIONS: [&str; 3] = ["1.0", "1.1", "1.2"];

/// The service, its groups round robin, and the load manager's corbaloc.
struct Service {
    balancer: Balancer,
    config: String,
    corbaloc: String,
}

impl Service {
    fn start(more: &str) -> Self {
        let address = free_address();
        let config = format!(
            "workers = 1\n[admin]\nlisten = \"127.0.0.1:0\"\n\
             [corba]\nlisten = \"{address}\"\nalert_retry = \"100ms\"\n{more}\n\
             [corba.groups]\nstrategy = \"round_robin\"\n"
        );
        Self {
            balancer: Balancer::start(&config),
            config,
            corbaloc: format!("corbaloc:iiop:{address}/LoadManager"),
        }
    }

    /// Kills it, and starts it again after that.
    fn restart(mut self, meanwhile: impl FnOnce()) -> Self {
        self.balancer.signal(Signal::KILL);
        self.balancer.wait();
        meanwhile();
        self.balancer = self.balancer.replace(&self.config);
        self
    }

    /// A server that knows the manager.
    fn server(&self, name: &str, more: &[&str]) -> Server {
        let manager = format!("LoadManager={}", self.corbaloc);
        let mut arguments = vec!["-ORBInitRef", &manager];
        arguments.extend(more);
        Server::start(name, &arguments)
    }

    /// A process that calls the manager's operations through the stubs of omniidl.
    fn console(&self) -> Server {
        let mut console = self.server("console", &[]);
        console.obey("manager LoadManager");
        console
    }

    /// The servers, each a member of a group of its own sort, at locations of their names.
    fn group<const N: usize>(
        &self,
        console: &mut Server,
        names: [&str; N],
    ) -> (String, [Server; N]) {
        let group = console.ask(&format!("create_object {PEER} membership=0"));
        let servers = names.map(|name| {
            let mut server = self.server(name, &[]);
            server.join(name, &group);
            server
        });
        (group, servers)
    }
}

/// Clients of the group, one bound to each of its members.
fn clients<const N: usize>(group: &str, names: [&str; N]) -> [Client; N] {
    let mut bound: Vec<(String, Client)> = Vec::new();
    eventually("each member has a client", || {
        let mut client = Client::start(group, &[]);
        let who = client.ask("who");
        if names.contains(&who.as_str()) && !bound.iter().any(|(name, _)| *name == who) {
            bound.push((who, client));
        }
        bound.len() == N
    });
    names.map(|name| {
        let at = bound.iter().position(|(who, _)| who == name);
        bound.swap_remove(at.unwrap()).1
    })
}

/// Two of three members refuse connections, which is more than the panic threshold allows. It
/// is certain all the same, so nobody is sent there: found out without any setting.
#[test]
fn nobody_is_sent_to_members_that_were_killed_t1_u5() {
    if !omniorb::can_run() {
        return;
    }
    let service = Service::start("");
    let mut console = service.console();
    let (group, [mut a, mut b, _c]) = service.group(&mut console, ["a", "b", "c"]);
    let states = || {
        let members = service.balancer.status()["groups"][0]["members"].clone();
        let reasons = |at: usize| members[at]["reasons"].to_string();
        [reasons(0), reasons(1), reasons(2)]
    };
    eventually("all are there", || states() == ["[]"; 3]);
    a.kill();
    b.kill();
    eventually("two are dead", || {
        let [a, b, c] = states();
        a.contains("dead") && b.contains("dead") && c == "[]"
    });
    assert_eq!(service.balancer.status()["groups"][0]["panic"], false);
    for _ in 0..12 {
        let mut client = Client::start(&group, &[]);
        assert_eq!(client.ask("who"), "c");
    }
}

/// The peers themselves: what a client sees without a balancer is what it must see with one.
#[test]
fn clients_call_servers_in_every_version() {
    if !omniorb::can_run() {
        return;
    }
    let mut server = Server::start("a", &[]);
    for version in VERSIONS {
        let mut client = Client::start(server.peer(), &["-ORBmaxGIOPVersion", version]);
        calls(&mut client, version, "a");
    }
    let mut client = Client::start(server.sessions(), &[]);
    assert_eq!(client.ask("open x"), "open");
    assert_eq!(client.ask("session who"), "a/x");
    let before = server.served();
    let mut client = Client::repeat(server.peer(), "who", &["--count", "10"]);
    assert_eq!(client.line(), "bound a");
    assert!(client.line().starts_with("done 10 0 "));
    assert_eq!(client.finish(), [""; 0]);
    assert_eq!(server.served(), before + 10);
}

/// Every sort of call, answered by the one member.
fn calls(client: &mut Client, version: &str, name: &str) {
    assert_eq!(client.ask("who"), name);
    assert_eq!(client.ask("add 1 2"), "3");
    assert_eq!(client.ask("blob 100000"), "blob 100000");
    assert_eq!(client.ask("reflect recursive"), "reflect recursive");
    assert_eq!(client.ask("reflect nested"), "reflect nested");
    assert_eq!(client.ask("fail 1"), "error TRANSIENT 0x7 COMPLETED_NO");
    let refused = "error IDL:evenkeel.org/PeerTest/Refused:1.0 as asked 42";
    assert_eq!(client.ask("fail 0"), refused);
    assert_eq!(client.ask(&format!("is_a {PEER}")), "yes");
    assert_eq!(client.ask("is_a IDL:omg.org/CosNaming:1.0"), "no");
    assert_eq!(client.ask("non_existent"), "no");
    if version == "1.2" {
        assert_eq!(client.ask("wide grüße"), "grüße");
    }
    let before: i64 = client.ask("posted").parse().unwrap();
    assert_eq!(client.ask("post 3"), "post 3");
    eventually("the oneway has arrived", || {
        client.ask("posted") == (before + 3).to_string()
    });
}

#[test]
fn clients_are_bound_and_stay() {
    if !omniorb::can_run() {
        return;
    }
    let service = Service::start("");
    let mut console = service.console();
    let (group, mut servers) = service.group(&mut console, ["a", "b"]);
    for version in VERSIONS {
        let start = || Client::start(&group, &["-ORBmaxGIOPVersion", version]);
        // The first call may be any.
        let mut first = start();
        assert_eq!(first.ask("blob 100000"), "blob 100000");
        let mut second = start();
        assert_eq!(second.ask(&format!("is_a {PEER}")), "yes");
        let bound = [first.ask("who"), second.ask("who")];
        assert_ne!(bound[0], bound[1], "one after the other");
        calls(&mut first, version, &bound[0]);
        calls(&mut second, version, &bound[1]);
    }
    // The file in which the application keeps it makes no difference.
    let id = console.ask(&format!("get_object_group_id {group}"));
    let by_id = console.ask(&format!("get_object_group_ref_from_id {id}"));
    assert_eq!(by_id, group);
    let [a, b] = &mut servers;
    let served = [a.served(), b.served()];
    let client = Client::repeat(&group, "who", &["--count", "100"]);
    assert!(client.line().starts_with("bound "));
    assert!(client.line().starts_with("done 100 0 "));
    let more = [a.served() - served[0], b.served() - served[1]];
    assert!(more == [100, 0] || more == [0, 100], "{more:?}");
}

#[test]
fn the_manager_is_found_by_corbaloc_in_every_version() {
    if !omniorb::can_run() {
        return;
    }
    let service = Service::start("ior_file = \"lm.ior\"");
    let reference = service.balancer.folder().text("lm.ior");
    for version in VERSIONS {
        let manager = format!("LoadManager={}", service.corbaloc);
        let arguments = ["-ORBInitRef", &manager, "-ORBmaxGIOPVersion", version];
        let mut console = Server::start("console", &arguments);
        // Asks for the manager's type before anything else.
        console.obey("manager LoadManager");
        assert_eq!(console.ask("get_default_properties"), STRATEGY);
        console.obey(&format!("manager {}", reference.trim()));
        assert_eq!(console.ask("get_default_properties"), STRATEGY);
        let group = console.ask(&format!("create_object {PEER} membership=0"));
        assert!(group.starts_with("IOR:"), "{group}");
        let mut client = Client::start("LoadManager", &arguments);
        let types = ["tao.lb", "omg.org"].map(|prefix| {
            client.ask(&format!(
                "is_a IDL:{prefix}/CosLoadBalancing/LoadManager:1.0"
            ))
        });
        assert_eq!(types, ["yes", "yes"]);
        assert_eq!(client.ask(&format!("is_a {PEER}")), "no");
    }
}

/// `RoundRobin`, `LeastLoaded`, … as the manager tells its properties.
fn strategy_of(console: &mut Server, group: &str) -> String {
    let properties = console.ask(&format!("get_properties {group}"));
    let (_, info) = properties
        .split_once("StrategyInfo=")
        .unwrap_or_else(|| panic!("no strategy: {properties}"));
    info.split('(').next().unwrap().to_owned()
}

#[test]
fn every_operation_of_the_manager_is_called_by_stubs() {
    if !omniorb::can_run() {
        return;
    }
    const RAISED: &str = "error IDL:omg.org/PortableGroup/";
    const LB_RAISED: &str = "error IDL:tao.lb/CosLoadBalancing/";
    let service = Service::start("");
    let mut c = service.console();
    let mut a = service.server("a", &[]);
    let b = service.server("b", &[]);
    let (at_a, at_b) = (a.peer().to_owned(), b.peer().to_owned());

    // GenericFactory
    let group = c.ask(&format!("create_object {PEER} membership=0 name=peers"));
    assert!(group.starts_with("IOR:"), "{group}");
    let other = c.ask(&format!("create_object {PEER} membership=0"));
    c.obey(&format!("delete_object {other}"));
    let gone = c.ask(&format!("delete_object {other}"));
    assert_eq!(gone, format!("{RAISED}ObjectNotFound:1.0"));

    // ObjectGroupManager
    let known = format!("{RAISED}ObjectGroupNotFound:1.0");
    assert_eq!(c.ask(&format!("locations_of_members {other}")), known);
    assert_eq!(c.ask(&format!("add_member {group} host1 {at_a}")), group);
    assert_eq!(
        c.ask(&format!("add_member {group} rack.2/host2 {at_b}")),
        group
    );
    let twice = c.ask(&format!("add_member {group} host1 {at_b}"));
    assert_eq!(twice, format!("{RAISED}MemberAlreadyPresent:1.0"));
    let sessions = a.sessions().to_owned();
    let wrong = c.ask(&format!("add_member {group} host3 {sessions}"));
    assert_eq!(wrong, format!("{RAISED}ObjectNotAdded:1.0"));
    let mut locations: Vec<_> = c
        .ask(&format!("locations_of_members {group}"))
        .split(' ')
        .map(str::to_owned)
        .collect();
    locations.sort();
    assert_eq!(locations, ["host1", "rack.2/host2"]);
    assert_eq!(c.ask("groups_at_location rack.2/host2"), group);
    assert_eq!(c.ask("groups_at_location rack/host2"), "");
    assert_eq!(c.ask(&format!("get_object_group_ref {group}")), group);
    let id = c.ask(&format!("get_object_group_id {group}"));
    assert_eq!(c.ask(&format!("get_object_group_ref_from_id {id}")), group);
    assert_eq!(c.ask("get_object_group_ref_from_id 1"), known);
    assert_eq!(c.ask(&format!("get_member_ref {group} host1")), at_a);
    assert_eq!(c.ask(&format!("remove_member {group} host1")), group);
    let none = format!("{RAISED}MemberNotFound:1.0");
    assert_eq!(c.ask(&format!("get_member_ref {group} host1")), none);
    assert_eq!(c.ask(&format!("add_member {group} host1 {at_a}")), group);

    // PropertyManager: the three levels, each stronger than the one before.
    c.obey("set_default_properties strategy=Random");
    assert!(c.ask("get_default_properties").contains("Random"));
    assert_eq!(strategy_of(&mut c, &group), "Random");
    c.obey(&format!(
        "set_type_properties {PEER} strategy=LeastLoaded,CriticalThreshold=80,RejectThreshold=70"
    ));
    let of_type = c.ask(&format!("get_type_properties {PEER}"));
    assert!(
        of_type.contains("LeastLoaded.RejectThreshold=70"),
        "{of_type}"
    );
    assert_eq!(strategy_of(&mut c, &group), "LeastLoaded");
    c.obey(&format!(
        "set_properties_dynamically {group} strategy=LoadMinimum,Dampening=0.5"
    ));
    assert_eq!(strategy_of(&mut c, &group), "LoadMinimum");
    c.obey(&format!(
        "remove_type_properties {PEER} strategy=LeastLoaded"
    ));
    c.obey("remove_default_properties strategy=Random");
    assert_eq!(c.ask(&format!("get_type_properties {PEER}")), STRATEGY);
    assert_eq!(c.ask("get_default_properties"), STRATEGY);
    for wrong in [
        "strategy=Nonsense",
        "strategy=LeastLoaded,Tolerance=0.5",
        "initial=x:long=1",
    ] {
        let raised = c.ask(&format!("set_default_properties {wrong}"));
        assert!(raised.starts_with("error"), "{wrong}: {raised}");
    }
    let invalid = c.ask("set_default_properties strategy=LeastLoaded,Tolerance=0.5");
    assert_eq!(invalid, format!("{RAISED}InvalidProperty:1.0"));

    // LoadManager
    c.obey("push_loads host1 0=0.5 77=3");
    assert_eq!(c.ask("get_loads host1"), "0=0.5 77=3");
    let nowhere = format!("{LB_RAISED}LocationNotFound:1.0");
    assert_eq!(c.ask("get_loads nowhere"), nowhere);
    a.obey("location host1 retry=100 check=60000");
    a.joined("host1");
    let alert = c.ask("get_load_alert host1");
    let raised = c.ask(&format!("register_load_alert host1 {alert}"));
    assert_eq!(raised, format!("{LB_RAISED}LoadAlertAlreadyPresent:1.0"));
    c.obey("remove_load_alert host1");
    let none = format!("{LB_RAISED}LoadAlertNotFound:1.0");
    for operation in [
        "get_load_alert",
        "remove_load_alert",
        "enable_alert",
        "disable_alert",
    ] {
        assert_eq!(c.ask(&format!("{operation} host1")), none, "{operation}");
    }
    c.obey(&format!("register_load_alert host1 {alert}"));
    c.obey("enable_alert host1");
    c.obey("disable_alert host1");
    a.obey("at host1 monitor 0 custom=77");
    a.joined("host1");
    let monitor = c.ask("get_load_monitor host1");
    let raised = c.ask(&format!("register_load_monitor host1 {monitor}"));
    assert_eq!(raised, format!("{LB_RAISED}MonitorAlreadyPresent:1.0"));
    c.obey("remove_load_monitor host1");
    assert_eq!(c.ask("get_load_monitor host1"), nowhere);
    assert_eq!(c.ask("remove_load_monitor host1"), nowhere);
    c.obey(&format!("register_load_monitor host1 {monitor}"));

    // Strategy: of the group, and ours from outside.
    assert_eq!(c.ask(&format!("strategy_name {group}")), "LoadMinimum");
    let inner = c.ask(&format!("strategy_properties {group}"));
    assert!(inner.contains("LoadMinimum.Dampening=0.5"), "{inner}");
    let next = c.ask(&format!("strategy_next_member {group}"));
    assert!([&at_a, &at_b].contains(&&next), "{next}");
    c.obey(&format!("strategy_push_loads {group} rack.2/host2 0=0.25"));
    assert_eq!(c.ask("get_loads rack.2/host2"), "0=0.25");
    let loads = c.ask(&format!("strategy_get_loads {group} rack.2/host2"));
    assert!(loads.starts_with("0="), "{loads}");
    c.obey(&format!("strategy_analyze_loads {group}"));
}

#[test]
fn members_are_killed_and_hang() {
    if !omniorb::can_run() {
        return;
    }
    let service = Service::start("");
    let mut console = service.console();
    let (group, [mut a, b]) = service.group(&mut console, ["a", "b"]);
    let [mut at_a, mut at_b] = clients(&group, ["a", "b"]);
    let mut waits = Client::start(&group, &["-ORBclientCallTimeOutPeriod", "500"]);
    eventually("it is bound to b", || {
        assert_eq!(waits.ask(&format!("use {group}")), "use");
        waits.ask("who") == "b"
    });

    // Killed between two calls: the client goes to the group by itself, which may say the
    // same member for a while, since nobody has told it.
    a.kill();
    eventually("it is at b", || at_a.ask("who") == "b");
    assert_eq!(console.ask(&format!("remove_member {group} a")), group);
    assert_eq!(at_a.ask("who"), "b");

    // One takes its place at the same location.
    let mut c = service.server("c", &[]);
    c.join("a", &group);
    let [_, mut at_c] = clients(&group, ["b", "c"]);

    // Hung: who has a time limit goes back to the group.
    b.hang();
    assert_eq!(waits.ask("who"), "error TIMEOUT 0x41540008 COMPLETED_NO");
    assert_eq!(console.ask(&format!("remove_member {group} b")), group);
    assert_eq!(waits.ask("who"), "c");
    assert_eq!(at_c.ask("who"), "c");
    b.signal(Signal::CONT);
    assert_eq!(at_b.ask("who"), "b", "nobody was moved who did not ask");
}

#[test]
fn alerts_move_clients_and_lift_again() {
    if !omniorb::can_run() {
        return;
    }
    let service = Service::start("");
    let mut console = service.console();
    let (group, [mut a, mut b]) = service.group(&mut console, ["a", "b"]);
    for version in VERSIONS {
        let arguments = ["-ORBmaxGIOPVersion", version];
        // One whose alert was just lifted takes clients from the next round on.
        clients(&group, ["a", "b"]);
        let mut bound = [(); 4].map(|()| Client::start(&group, &arguments));
        let who = bound.each_mut().map(|client| client.ask("who"));
        assert!(who.contains(&"a".to_owned()) && who.contains(&"b".to_owned()));
        // One that knows the member itself is sent to the group as well.
        let mut direct = Client::start(a.peer(), &arguments);
        assert_eq!(direct.ask("who"), "a");
        let mut session = Client::start(a.sessions(), &arguments);
        assert_eq!(session.ask("open x"), "open");

        console.obey("enable_alert a");
        eventually("a knows", || a.ask("at a alerted") == "yes");
        for client in bound.iter_mut().chain([&mut direct]) {
            // A big argument is read and thrown away.
            assert_eq!(client.ask("blob 300000"), "blob 300000");
            assert_eq!(client.ask("who"), "b");
        }
        // What a member has opened is its client's, and it lives.
        assert_eq!(session.ask("session who"), "a/x");
        let mut ping = Client::start(a.peer(), &arguments);
        assert_eq!(ping.ask("non_existent"), "no");
        assert_eq!(ping.ask(&format!("is_a {PEER}")), "yes");
        assert_eq!(Client::start(&group, &arguments).ask("who"), "b");

        console.obey("disable_alert a");
        eventually("a knows", || a.ask("at a alerted") == "no");
        for client in &mut bound {
            assert_eq!(client.ask("who"), "b", "nobody is moved without need");
        }
        assert_eq!(ping.ask("who"), "a");
        clients(&group, ["a", "b"]);

        // Over the same connections, the other way.
        console.obey("enable_alert b");
        eventually("b knows", || b.ask("at b alerted") == "yes");
        for client in &mut bound {
            if version == "1.2" {
                assert_eq!(client.ask("wide ü"), "ü");
            }
            assert_eq!(client.ask("who"), "a");
        }
        console.obey("disable_alert b");
        eventually("b knows", || b.ask("at b alerted") == "no");
    }
}

/// On demand, but not by the load: again after a fixed interval.
#[test]
fn clients_are_rebound_at_a_fixed_interval() {
    if !omniorb::can_run() {
        return;
    }
    let service = Service::start("");
    let mut console = service.console();
    let group = console.ask(&format!(
        "create_object {PEER} membership=0 org.evenkeel.Granularity:string=on_demand \
         org.evenkeel.Adaptive:boolean=false org.evenkeel.RebindInterval:float=1"
    ));
    let _servers = ["a", "b"].map(|name| {
        let mut server = service.server(name, &[]);
        server.join(name, &group);
        server
    });
    let mut bound: Vec<_> = (0..4)
        .map(|_| Client::repeat(&group, "who", &["--rate", "50"]))
        .collect();
    // Where the first one was, and where it went again and again.
    let first = bound[0].line();
    assert!(["bound a", "bound b"].contains(&&*first), "{first}");
    for turn in 0..4 {
        let (here, there) = match (first == "bound a") == (turn % 2 == 0) {
            true => ("bound a", "bound b"),
            false => ("bound b", "bound a"),
        };
        assert_eq!(bound[0].line(), there, "not {here} any more");
    }
    for client in &mut bound {
        let said = client.finish();
        let words: Vec<_> = said.last().unwrap().split(' ').collect();
        assert_eq!((words[0], words[2]), ("done", "0"), "{said:?}");
    }
}

#[test]
fn alerts_move_clients_of_jacorb() {
    if !omniorb::can_run() || !jacorb::can_run() {
        return;
    }
    let service = Service::start("");
    let mut console = service.console();
    let (group, [mut a, _b]) = service.group(&mut console, ["a", "b"]);
    for minor in 0..3 {
        let version = format!("-Djacorb.giop_minor_version={minor}");
        let mut bound = [(); 2].map(|()| jacorb::Client::start(&group, &[&version]));
        let mut who = bound.each_mut().map(|client| client.ask("who"));
        who.sort();
        assert_eq!(who, ["a", "b"]);
        console.obey("enable_alert a");
        eventually("a knows", || a.ask("at a alerted") == "yes");
        for client in &mut bound {
            assert_eq!(client.ask("blob 300000"), "blob 300000");
            assert_eq!(client.ask("who"), "b");
        }
        console.obey("disable_alert a");
        eventually("a knows", || a.ask("at a alerted") == "no");
    }
}

#[test]
fn alerts_survive_a_restart_of_the_manager() {
    if !omniorb::can_run() {
        return;
    }
    let service = Service::start("");
    let mut console = service.console();
    let (group, [mut a, _b]) = service.group(&mut console, ["a", "b"]);
    let [mut at_a, mut at_b] = clients(&group, ["a", "b"]);
    console.obey("enable_alert a");
    eventually("a knows", || a.ask("at a alerted") == "yes");
    // While nobody is there to bind them anew, members serve their clients.
    let service = service.restart(|| {
        eventually("a is silent", || {
            a.log().contains("no answer of the manager")
        });
        assert_eq!(at_a.ask("who"), "a");
        assert_eq!(at_b.ask("who"), "b");
    });
    eventually("a hears it again", || {
        a.log().contains("the manager answers")
    });
    let mut console = service.console();
    console.obey("enable_alert a");
    eventually("a knows", || a.ask("at a alerted") == "yes");
    eventually("its client moves", || at_a.ask("who") == "b");
    console.obey("disable_alert a");
    eventually("a knows", || a.ask("at a alerted") == "no");
    console.obey("enable_alert b");
    eventually("all are moved back", || {
        at_a.ask("who") == "a" && at_b.ask("who") == "a"
    });
}

#[test]
fn factories_make_and_replace_members() {
    if !omniorb::can_run() {
        return;
    }
    let service = Service::start("");
    let mut console = service.console();
    let mut servers = ["a", "b"].map(|name| service.server(name, &[]));
    let factories: Vec<_> = servers
        .iter_mut()
        .zip(["a", "b"])
        .map(|(server, name)| {
            server.obey(&format!("location {name} retry=100 check=500"));
            server.joined(name);
            let factory = server.ask(&format!("factory {name} {name}"));
            format!("{name}@{factory}")
        })
        .collect();
    let few = format!("create_object {PEER} initial=3 minimum=1 factories=");
    let few = console.ask(&format!("{few}{}", factories.join(",")));
    let cannot = "error IDL:omg.org/PortableGroup/CannotMeetCriteria:1.0";
    assert_eq!(few, cannot, "three members need three factories");

    let group = format!("create_object {PEER} membership=1 initial=2 minimum=1 factories=");
    let group = console.ask(&format!("{group}{}", factories.join(",")));
    assert!(group.starts_with("IOR:"), "{group}");
    let mut locations: Vec<_> = console
        .ask(&format!("locations_of_members {group}"))
        .split(' ')
        .map(str::to_owned)
        .collect();
    locations.sort();
    assert_eq!(locations, ["a", "b"]);
    // The criteria of a factory have gone to it.
    let [a, _] = &mut servers;
    eventually("it has said so", || a.log().contains("made-at=a"));
    clients(&group, ["a-1", "b-1"]);

    // Its library asks the manager for the group, and sends clients back there.
    a.joined("a");
    let [mut at_a, _] = clients(&group, ["a-1", "b-1"]);
    console.obey("enable_alert a");
    eventually("it is sent to the other one", || at_a.ask("who") == "b-1");
    console.obey("disable_alert a");

    // One less than there may be at least: another one is made.
    assert_eq!(console.ask(&format!("remove_member {group} b")), group);
    assert_eq!(Client::start(&group, &[]).ask("who"), "a-1");
    assert_eq!(console.ask(&format!("remove_member {group} a")), group);
    eventually("there is one again", || {
        let who = Client::start(&group, &[]).ask("who");
        ["a-2", "b-2"].contains(&who.as_str())
    });

    // By name of a location, too.
    let free = console.ask(&format!("locations_of_members {group}"));
    let free = if free == "a" { "b" } else { "a" };
    let made = console.ask(&format!("create_member {group} {free} {PEER}"));
    assert_eq!(made, group);
    let members = console.ask(&format!("locations_of_members {group}"));
    assert_eq!(members.split(' ').count(), 2);
    console.obey(&format!("delete_object {group}"));
    let gone = "error IDL:omg.org/PortableGroup/ObjectGroupNotFound:1.0";
    assert_eq!(console.ask(&format!("locations_of_members {group}")), gone);
}

#[test]
fn clients_go_on_while_the_manager_restarts() {
    if !omniorb::can_run() {
        return;
    }
    let service = Service::start("");
    let mut console = service.console();
    let (group, mut servers) = service.group(&mut console, ["a", "b"]);
    let mut bound: Vec<_> = (0..4)
        .map(|_| Client::repeat(&group, "who", &["--rate", "100"]))
        .collect();
    for client in &bound {
        assert!(client.line().starts_with("bound "));
    }
    let served = |servers: &mut [Server; 2]| servers.iter_mut().map(Server::served).sum::<u64>();

    let service = service.restart(|| {
        let before = served(&mut servers);
        eventually("clients go on without it", || {
            served(&mut servers) > before + 100
        });
    });

    // The old reference is good for new clients, and servers need not do anything.
    let [mut at_a, _at_b] = clients(&group, ["a", "b"]);
    assert_eq!(at_a.ask("who"), "a");
    let mut console = service.console();
    let here = console.ask(&format!("get_object_group_ref {group}"));
    assert_eq!(here, group);
    for client in &mut bound {
        let said = client.finish();
        let [done] = &said[..] else {
            panic!("it was moved: {said:?}");
        };
        let words: Vec<_> = done.split(' ').collect();
        assert_eq!((words[0], words[2]), ("done", "0"), "{done}");
    }
}

#[test]
fn a_strategy_of_another_process_counts_more() {
    if !omniorb::can_run() {
        return;
    }
    let service = Service::start("");
    let mut c = service.console();
    let (group, [_a, mut b]) = service.group(&mut c, ["a", "b"]);
    let custom = b.ask("strategy Mine");
    c.obey(&format!(
        "set_properties_dynamically {group} custom={custom}"
    ));
    let first = c.ask(&format!("locations_of_members {group}"));
    let first = first.split(' ').next().unwrap().to_owned();
    let chosen = c.ask(&format!("get_member_ref {group} {first}"));
    let name = Client::start(&chosen, &[]).ask("who");
    for _ in 0..5 {
        assert_eq!(Client::start(&group, &[]).ask("who"), name);
    }
}

#[test]
fn a_location_is_registered_whatever_happens() {
    if !omniorb::can_run() {
        return;
    }
    let service = Service::start("");
    let mut console = service.console();
    let (group, [mut a]) = service.group(&mut console, ["a"]);

    // Two processes with one location is a mistake: the first one stays.
    let mut b = service.server("b", &[]);
    b.obey("location a retry=50 check=200");
    b.obey(&format!("at a member {group}"));
    eventually("it is said", || b.log().contains("a location of its own"));
    assert_eq!(b.ask("at a wait 0"), "no");
    assert_eq!(Client::start(&group, &[]).ask("who"), "a");

    // One that is gone has left its registrations behind; the second one takes over.
    a.kill();
    b.joined("a");
    assert_eq!(Client::start(&group, &[]).ask("who"), "b");

    // Somebody takes it out: it comes back by itself.
    assert_eq!(console.ask(&format!("remove_member {group} a")), group);
    console.obey("remove_load_alert a");
    eventually("it is back", || {
        let member = console.ask(&format!("get_member_ref {group} a"));
        member == b.peer() && console.ask("get_load_alert a").starts_with("IOR:")
    });

    // A server that starts while the manager is down.
    let mut c = None;
    let corbaloc = service.corbaloc.clone();
    let service = service.restart(|| {
        let server = c.insert(Server::start("c", &[]));
        server.obey(&format!("location c retry=50 check=200 manager={corbaloc}"));
        server.obey(&format!("at c member {group}"));
        assert_eq!(server.ask("at c wait 0"), "no");
        eventually("it says so", || {
            server.log().contains("no answer of the manager")
        });
    });
    let mut c = c.unwrap();
    c.joined("c");
    let mut console = service.console();
    // Both come by themselves, in no order.
    eventually("both are there", || {
        let locations = console.ask(&format!("locations_of_members {group}"));
        matches!(locations.as_str(), "a c" | "c a")
    });

    // In order: nothing is left.
    c.obey("at c leave 0");
    assert_eq!(console.ask(&format!("locations_of_members {group}")), "a");
    let none = "error IDL:tao.lb/CosLoadBalancing/LoadAlertNotFound:1.0";
    assert_eq!(console.ask("get_load_alert c"), none);
}

/// A member that leaves sends those that are bound to it to the others.
#[test]
fn a_server_leaves_without_a_lost_call() {
    if !omniorb::can_run() {
        return;
    }
    let service = Service::start("");
    let mut console = service.console();
    let (group, [mut a, _b]) = service.group(&mut console, ["a", "b"]);
    let [mut at_a, mut at_b] = clients(&group, ["a", "b"]);
    let mut sessions = Client::start(a.sessions(), &[]);
    sessions.ask("open x");
    a.tell("at a leave 2000");
    eventually("it sends its clients on", || at_a.ask("who") == "b");
    assert_eq!(a.line(), "leave");
    assert_eq!(at_a.ask("who"), "b", "bound there");
    assert_eq!(at_b.ask("who"), "b");
    assert_eq!(sessions.ask("session who"), "a/x", "sessions go on");
}

#[test]
fn loads_are_pushed_as_they_are() {
    if !omniorb::can_run() {
        return;
    }
    let service = Service::start("");
    let mut console = service.console();
    let (_, [mut a]) = service.group(&mut console, ["a"]);
    a.obey("load 77 1.5");
    a.obey("at a monitor 100 requests in_flight custom=77 custom=78");
    a.joined("a");
    let told = |line: &str, id: &str| {
        let load = line.split(' ').find_map(|load| load.strip_prefix(id));
        load.and_then(|value| value.strip_prefix('='))
            .map(|value| value.parse::<f64>().unwrap())
    };
    // Not by the manager's loads: whoever calls the member counts.
    let mut sleeper = Client::start(a.peer(), &[]);
    sleeper.tell("sleep 60000");
    let caller = Client::repeat(a.peer(), "add 1 2", &["--rate", "100"]);
    assert_eq!(caller.line(), "bound 3");
    eventually("its load is known", || {
        let loads = console.ask("get_loads a");
        assert_eq!(told(&loads, "78"), None, "what throws is left out: {loads}");
        let requests = told(&loads, "4");
        told(&loads, "77") == Some(1.5)
            && told(&loads, "17").is_some_and(|in_flight| in_flight >= 1.0)
            && requests.is_some_and(|rate| (10.0..=101.0).contains(&rate))
    });
    a.obey("load 77 2.5");
    eventually("it changes", || {
        told(&console.ask("get_loads a"), "77") == Some(2.5)
    });
    drop(caller);
    sleeper.kill();
    eventually("nothing arrives", || {
        told(&console.ask("get_loads a"), "4") == Some(0.0)
    });
}

/// The example as its manual has it.
#[test]
fn stocks_are_traded_by_balanced_sessions() {
    if !omniorb::can_run() {
        return;
    }
    let service = Service::start("");
    let manager = format!("LoadManager={}", service.corbaloc);
    let manager = ["-ORBInitRef", &manager];
    let folder = Folder::new();
    let file = folder.join("stock.ior");
    let file = file.to_str().unwrap();
    let made = omniorb::example("group").arg(file).args(manager).output();
    let made = made.unwrap();
    assert!(made.status.success(), "{made:?}");
    let mut servers = ["host1", "host2"].map(|location| {
        let mut server = omniorb::example("server");
        server.args([location, file]).args(manager);
        server.args(["-ORBendPoint", "giop:tcp:127.0.0.1:"]);
        let server = Script::start(&mut server);
        assert_eq!(server.line(), format!("{location}: in the group"));
        server
    });
    let traded = || {
        let client = omniorb::example("client").args([file, "12"]).output();
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
    // A load that was told while a session was about to open may leave one out.
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
