//! CORBA clients and servers with omniORB, as Debian has it.

use std::net::SocketAddr;

use evenkeel_e2e::balancer::Balancer;
use evenkeel_e2e::corba::free_address;
use evenkeel_e2e::eventually;
use evenkeel_e2e::omniorb::{self, Client, Server};
use evenkeel_e2e::process::Signal;

const PEER: &str = "IDL:evenkeel.org/PeerTest/Peer:1.0";
const VERSIONS: [&str; 3] = ["1.0", "1.1", "1.2"];

/// The service, its groups round robin, and the load manager's corbaloc.
struct Service {
    balancer: Balancer,
    config: String,
    corbaloc: String,
}

impl Service {
    fn start(more: &str) -> Self {
        Self::at(free_address(), more)
    }

    fn at(address: SocketAddr, more: &str) -> Self {
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
        bound.swap_remove(at.expect("it is bound")).1
    })
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
    let mut client = Client::repeat(&group, "who", &["--count", "100"]);
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
        assert_eq!(console.ask("get_default_properties"), "");
        console.obey(&format!("manager {}", reference.trim()));
        console.obey("get_default_properties");
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
