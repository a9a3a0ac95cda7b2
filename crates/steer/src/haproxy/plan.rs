//! Plan of the commands to HAProxy, by what it has and what members should get. No I/O.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::net::SocketAddr;

use evenkeel_control::shares::ServiceState;
use evenkeel_core::address::Address;

use super::answers::Server;
use crate::status::SteeredMember;
use crate::wanted::MemberShare;

/// A command to HAProxy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order {
    /// Name of the backend.
    pub backend: String,
    /// Name of the server.
    pub server: String,
    /// State that the server is to have.
    pub set: Set,
}

/// State that a server is to have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Set {
    /// There, at this address and with these parameters. The server begins in maintenance.
    Added(SocketAddr, String),
    /// There no longer.
    Deleted,
    /// Checked, as its parameters say.
    Checked,
    /// With this weight, 0 to 256. With 0 the server gets nothing new but from clients that are bound to it.
    Weight(u32),
    /// With the weight of HAProxy's configuration again.
    Initial,
    /// In maintenance: the server gets nothing at all.
    Maintenance,
    /// In maintenance no longer.
    Ready,
}

/// Text of the order that is sent.
impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Order {
            backend,
            server,
            set,
        } = self;
        match set {
            Set::Added(address, parameters) => {
                let before = if parameters.is_empty() { "" } else { " " };
                write!(
                    f,
                    "add server {backend}/{server} {address}{before}{parameters}"
                )
            }
            Set::Deleted => write!(f, "del server {backend}/{server}"),
            Set::Checked => write!(f, "enable health {backend}/{server}"),
            Set::Weight(weight) => write!(f, "set server {backend}/{server} weight {weight}"),
            Set::Initial => write!(f, "set server {backend}/{server} weight 100%"),
            Set::Maintenance => write!(f, "set server {backend}/{server} state maint"),
            Set::Ready => write!(f, "set server {backend}/{server} state ready"),
        }
    }
}

impl Order {
    /// True if HAProxy says this when it has carried the order out.
    pub fn is_success(&self, said: &str) -> bool {
        let wanted = match self.set {
            Set::Added(..) => "New server registered",
            Set::Deleted => "Server deleted",
            _ => return said.trim().is_empty(),
        };
        said.contains(wanted)
    }

    /// True if the order does no harm when it is sent twice.
    pub fn is_repeatable(&self) -> bool {
        !matches!(self.set, Set::Added(..) | Set::Deleted)
    }
}

/// Prefix of the names of servers that we have added.
const ADDED: &str = "evenkeel-";

/// Knowledge about a backend beside what HAProxy says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BackendFacts {
    /// Servers that we have put into maintenance.
    pub maintained: BTreeSet<String>,
    /// True if the backend's algorithm takes no weights but 0 and those of the configuration.
    pub is_static: bool,
    /// Parameters with which members are added that HAProxy does not have; `None` adds none.
    pub adds: Option<String>,
}

impl BackendFacts {
    /// True if we have put a server into maintenance: no server that we have added is in maintenance by
    /// somebody else.
    fn is_ours(&self, server: &Server) -> bool {
        self.maintained.contains(&server.name) || self.is_added(server)
    }

    fn is_added(&self, server: &Server) -> bool {
        self.adds.is_some() && server.name.starts_with(ADDED)
    }
}

/// Orders to be sent, and the members as they were found.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Orders in their order: servers that come back come before others leave.
    pub orders: Vec<Order>,
    /// The members, in their order, with what they have now. A member at which HAProxy has several
    /// servers comes once for each.
    pub members: Vec<SteeredMember>,
    /// Servers that belong to no member.
    pub foreign_servers: Vec<String>,
}

const NO_SERVER: &str = "HAProxy has no server at this address in the backend";
const NO_ADDRESS: &str = "HAProxy does not say where its servers on Unix sockets listen";
const MAINTAINED: &str = "in maintenance by somebody else: left alone";
const DRAINED: &str = "drained by somebody else: left alone";
const STATIC: &str = "the backend's `balance` takes only weight 0 and the configured weight: use roundrobin or leastconn";

/// Plans the orders that bring the servers of `backend` to `wanted`.
pub fn plan_orders(
    backend: &str,
    servers: &[Server],
    wanted: &[MemberShare],
    known: &BackendFacts,
) -> Plan {
    let mut by_address: HashMap<SocketAddr, Vec<&Server>> = HashMap::new();
    for server in servers {
        if let Some(address) = server.address {
            by_address.entry(address).or_default().push(server);
        }
    }
    let mut plan = Plan::default();
    let mut found: BTreeSet<&str> = BTreeSet::new();
    for want in wanted {
        let row = |server: Option<&Server>, note: Option<&str>| SteeredMember {
            name: want.name.to_string(),
            member: want.member.to_string(),
            address: want.address.to_string(),
            state: want.standing.name().into(),
            weight: want.weight,
            server: server.map(|server| server.name.clone()),
            has: server.map(|server| server.weight),
            note: note.map(str::to_owned),
        };
        let Address::Ip(address) = want.address else {
            plan.members.push(row(None, Some(NO_ADDRESS)));
            continue;
        };
        let address = SocketAddr::new(address.ip().to_canonical(), address.port());
        let there = by_address.get(&address).map_or(&[][..], Vec::as_slice);
        if there.is_empty() {
            plan.members.push(match &known.adds {
                None => row(None, Some(NO_SERVER)),
                Some(parameters) => {
                    let name = format!("{ADDED}{}:{}", address.ip(), address.port());
                    plan.orders
                        .extend(orders_to_add(backend, &name, address, parameters, want));
                    SteeredMember {
                        server: Some(name),
                        ..row(None, None)
                    }
                }
            });
        }
        for server in there {
            found.insert(&server.name);
            let note = not_ours(server, known);
            if note.is_none() {
                plan.orders
                    .extend(orders_for_server(backend, server, want, known));
            }
            let is_odd = known.is_static && want.weight > 0;
            let note = note.or(is_odd.then_some(STATIC));
            plan.members.push(row(Some(server), note));
        }
    }
    let leaves = |order: &Order| matches!(order.set, Set::Maintenance | Set::Weight(0));
    plan.orders.sort_by_key(leaves);
    let others = servers
        .iter()
        .filter(|server| !found.contains(&*server.name));
    for server in others {
        if !known.is_added(server) {
            plan.foreign_servers.push(server.name.clone());
            continue;
        }
        // A server that has connections is not deleted: it is tried again.
        let set = match server.is_maintained() {
            true => Set::Deleted,
            false => Set::Maintenance,
        };
        plan.orders.push(Order {
            backend: backend.into(),
            server: server.name.clone(),
            set,
        });
    }
    plan
}

/// Returns the orders that bring a server into being.
fn orders_to_add(
    backend: &str,
    name: &str,
    address: SocketAddr,
    parameters: &str,
    want: &MemberShare,
) -> Vec<Order> {
    let order = |set| Order {
        backend: backend.into(),
        server: name.into(),
        set,
    };
    let parameters = parameters.split_whitespace().collect::<Vec<_>>();
    let is_checked = parameters.contains(&"check");
    let mut orders = vec![
        order(Set::Added(address, parameters.join(" "))),
        order(Set::Weight(want.weight)),
    ];
    orders.extend(is_checked.then(|| order(Set::Checked)));
    // With a weight of 0 the next round does it: its weight is told after this otherwise.
    if want.weight > 0 {
        orders.push(order(Set::Ready));
    }
    orders
}

/// Returns why a server is not touched, if it is not.
fn not_ours(server: &Server, known: &BackendFacts) -> Option<&'static str> {
    if known.is_ours(server) {
        return None;
    }
    match (server.is_maintained(), server.is_drained()) {
        (true, _) => Some(MAINTAINED),
        (false, true) => Some(DRAINED),
        (false, false) => None,
    }
}

fn orders_for_server(
    backend: &str,
    server: &Server,
    want: &MemberShare,
    known: &BackendFacts,
) -> Vec<Order> {
    let order = |set| Order {
        backend: backend.into(),
        server: server.name.clone(),
        set,
    };
    let mut orders = Vec::new();
    if want.standing == ServiceState::Maintenance {
        if !server.is_maintained() {
            orders.push(order(Set::Maintenance));
        }
        return orders;
    }
    if server.is_maintained() {
        orders.push(order(Set::Ready));
    }
    let weight = match want.weight {
        0 => 0,
        _ if known.is_static => server.initial,
        weight => weight,
    };
    if server.weight != weight {
        orders.push(order(Set::Weight(weight)));
    }
    orders
}

/// Returns the orders that bring the servers of `wanted` back to HAProxy's own configuration.
pub fn plan_restoration(
    backend: &str,
    servers: &[Server],
    wanted: &[MemberShare],
    known: &BackendFacts,
) -> Vec<Order> {
    let addresses: BTreeSet<SocketAddr> = wanted
        .iter()
        .filter_map(|want| want.address.socket())
        .map(|address| SocketAddr::new(address.ip().to_canonical(), address.port()))
        .collect();
    let mut orders = Vec::new();
    for server in servers {
        let is_member = server
            .address
            .is_some_and(|address| addresses.contains(&address));
        if !is_member || not_ours(server, known).is_some() {
            continue;
        }
        let order = |set| Order {
            backend: backend.into(),
            server: server.name.clone(),
            set,
        };
        if server.is_maintained() {
            orders.push(order(Set::Ready));
        }
        if server.weight != server.initial {
            orders.push(order(Set::Initial));
        }
    }
    orders
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn server(name: &str, port: u16, weight: u32, admin: u32) -> Server {
        Server {
            name: name.into(),
            address: Some(SocketAddr::from(([127, 0, 0, 1], port))),
            weight,
            initial: 7,
            admin,
        }
    }

    fn wanted(port: u16, weight: u32, standing: ServiceState) -> MemberShare {
        MemberShare {
            member: format!("m{port}").into(),
            name: format!("s{port}").into(),
            address: SocketAddr::from(([127, 0, 0, 1], port)).into(),
            weight,
            standing,
        }
    }

    fn texts(orders: &[Order]) -> Vec<String> {
        orders.iter().map(Order::to_string).collect()
    }

    #[test]
    fn what_differs_is_sent_to_the_server_at_the_address() {
        let servers = [
            server("a", 1, 7, 0),
            server("b", 2, 100, 0),
            server("c", 3, 50, 0),
            server("stranger", 9, 1, 0),
        ];
        let all = [
            wanted(2, 100, ServiceState::Serving),
            wanted(1, 256, ServiceState::Serving),
            wanted(3, 0, ServiceState::Draining),
            wanted(4, 10, ServiceState::Serving),
        ];
        let plan = plan_orders("web", &servers, &all, &BackendFacts::default());
        assert_eq!(
            texts(&plan.orders),
            ["set server web/a weight 256", "set server web/c weight 0"]
        );
        assert_eq!(plan.foreign_servers, ["stranger"]);
        assert_eq!(plan.members[3].note.as_deref(), Some(NO_SERVER));
        assert_eq!(plan.members[1].server.as_deref(), Some("a"));
        assert_eq!(plan.members[1].has, Some(7));
    }

    #[test]
    fn what_others_have_taken_out_is_left_alone() {
        let servers = [
            server("a", 1, 7, 1),
            server("b", 2, 7, 8),
            server("c", 3, 7, 5),
        ];
        let all = [1, 2, 3].map(|port| wanted(port, 10, ServiceState::Serving));
        let known = BackendFacts::default();
        let left = plan_orders("web", &servers, &all, &known);
        assert!(left.orders.is_empty());
        assert_eq!(left.members[0].note.as_deref(), Some(MAINTAINED));
        assert_eq!(left.members[1].note.as_deref(), Some(DRAINED));
        assert_eq!(plan_restoration("web", &servers, &all, &known), []);
    }

    #[test]
    fn maintenance_that_we_have_said_ends_when_we_say_so() {
        let all = [wanted(1, 0, ServiceState::Maintenance)];
        let begins = plan_orders(
            "web",
            &[server("a", 1, 7, 0)],
            &all,
            &BackendFacts::default(),
        );
        assert_eq!(texts(&begins.orders), ["set server web/a state maint"]);
        let known = BackendFacts {
            maintained: ["a".to_owned()].into(),
            ..BackendFacts::default()
        };
        let there = [server("a", 1, 7, 1)];
        assert!(plan_orders("web", &there, &all, &known).orders.is_empty());
        let all = [wanted(1, 9, ServiceState::Serving)];
        let ends = plan_orders("web", &there, &all, &known);
        assert_eq!(
            texts(&ends.orders),
            ["set server web/a state ready", "set server web/a weight 9"]
        );
        let there = [server("a", 1, 9, 1)];
        assert_eq!(
            texts(&plan_restoration("web", &there, &all, &known)),
            [
                "set server web/a state ready",
                "set server web/a weight 100%"
            ]
        );
    }

    #[test]
    fn a_static_algorithm_gets_all_or_nothing() {
        let known = BackendFacts {
            is_static: true,
            ..BackendFacts::default()
        };
        let servers = [
            server("a", 1, 0, 0),
            server("b", 2, 7, 0),
            server("c", 3, 7, 0),
        ];
        let all = [
            wanted(1, 200, ServiceState::Serving),
            wanted(2, 30, ServiceState::Serving),
            wanted(3, 0, ServiceState::Down),
        ];
        let plan = plan_orders("web", &servers, &all, &known);
        assert_eq!(
            texts(&plan.orders),
            ["set server web/a weight 7", "set server web/c weight 0"]
        );
    }

    #[test]
    fn members_that_are_missing_are_added_and_removed_if_that_is_wanted() {
        let known = BackendFacts {
            adds: Some(" check  inter 2s ".into()),
            ..BackendFacts::default()
        };
        let all = [wanted(1, 9, ServiceState::Serving)];
        let first = plan_orders("web", &[server("stranger", 9, 1, 0)], &all, &known);
        assert_eq!(
            texts(&first.orders),
            [
                "add server web/evenkeel-127.0.0.1:1 127.0.0.1:1 check inter 2s",
                "set server web/evenkeel-127.0.0.1:1 weight 9",
                "enable health web/evenkeel-127.0.0.1:1",
                "set server web/evenkeel-127.0.0.1:1 state ready"
            ]
        );
        assert_eq!(first.foreign_servers, ["stranger"]);
        let name = "evenkeel-127.0.0.1:1";
        assert_eq!(first.members[0].server.as_deref(), Some(name));
        let orders = |servers: &[Server], wanted: &[MemberShare]| {
            texts(&plan_orders("web", servers, wanted, &known).orders)
        };
        // It is in maintenance if a process before this one had no time for the rest.
        let half = orders(&[server(name, 1, 9, 1)], &all);
        assert_eq!(half, [format!("set server web/{name} state ready")]);
        assert!(orders(&[server(name, 1, 9, 0)], &all).is_empty());
        let gone = orders(&[server(name, 1, 9, 0)], &[]);
        assert_eq!(gone, [format!("set server web/{name} state maint")]);
        let gone = orders(&[server(name, 1, 9, 1)], &[]);
        assert_eq!(gone, [format!("del server web/{name}")]);
        // Where nothing is added, nothing is removed.
        let left = plan_orders(
            "web",
            &[server(name, 1, 9, 1)],
            &[],
            &BackendFacts::default(),
        );
        assert!(left.orders.is_empty() && left.foreign_servers == [name]);
        let add = &first.orders[0];
        assert!(add.is_success("New server registered.\n\n") && !add.is_success(""));
        assert!(!add.is_repeatable());
        let set = &first.orders[1];
        assert!(set.is_success("\n") && !set.is_success("No such server.\n"));
    }

    proptest! {
        /// Servers as they are after all orders need no more orders, and no server is touched that is not
        /// ours.
        #[test]
        fn done_is_done(
            states in prop::collection::vec((1u16..6, 0u32..257, prop::sample::select(vec![0u32, 1, 8])), 0..6),
            wants in prop::collection::vec((0u32..257, any::<bool>()), 5),
            ours in prop::collection::vec(any::<bool>(), 6),
        ) {
            let mut servers: Vec<Server> = states
                .iter()
                .enumerate()
                .map(|(index, (port, weight, admin))| server(&format!("s{index}"), *port, *weight, *admin))
                .collect();
            let all: Vec<MemberShare> = wants
                .iter()
                .zip(1u16..)
                .map(|((weight, out), port)| match out {
                    true => wanted(port, 0, ServiceState::Maintenance),
                    false if *weight == 0 => wanted(port, 0, ServiceState::Down),
                    false => wanted(port, *weight, ServiceState::Serving),
                })
                .collect();
            let mut known = BackendFacts::default();
            for (server, ours) in servers.iter().zip(&ours) {
                if *ours && server.admin == 1 {
                    known.maintained.insert(server.name.clone());
                }
            }
            let left: Vec<String> = servers
                .iter()
                .filter(|server| server.admin != 0 && !known.maintained.contains(&server.name))
                .map(|server| server.name.clone())
                .collect();
            let first = plan_orders("web", &servers, &all, &known);
            for order in &first.orders {
                prop_assert!(!left.contains(&order.server));
                let server = servers.iter_mut().find(|server| server.name == order.server).unwrap();
                match order.set {
                    Set::Added(..) | Set::Deleted | Set::Checked => prop_assert!(false, "{order}"),
                    Set::Weight(weight) => server.weight = weight,
                    Set::Initial => server.weight = server.initial,
                    Set::Maintenance => {
                        server.admin |= 1;
                        known.maintained.insert(server.name.clone());
                    }
                    Set::Ready => {
                        server.admin = 0;
                        known.maintained.remove(&server.name);
                    }
                }
            }
            prop_assert_eq!(plan_orders("web", &servers, &all, &known).orders, vec![]);
        }
    }
}
