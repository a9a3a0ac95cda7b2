//! Two balancers with one address, which moves: the connections of one go on in the kernel of the other.

mod udp;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use evenkeel_e2e::agent::key_file;
use evenkeel_e2e::folder::Folder;

use super::*;

/// Way of the members' answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Path {
    Route,
    Nat,
    Direct,
}

/// Interfaces of a machine: towards clients, and towards members.
const LINKS: [&str; 2] = ["link0", "link1"];

/// Last bytes of the balancers' own addresses.
const OWN: [u8; 2] = [11, 12];

/// Last byte of the member's addresses.
const MEMBER: u8 = 21;

/// Last byte of the address that moves.
const MOVING: u8 = 100;

fn find_name(namespace: &Namespace) -> String {
    let path = namespace.path();
    path.file_name().unwrap().to_str().unwrap().to_owned()
}

/// Address in the network of clients (0) or members (1).
fn find_address(family: Family, network: usize, last: u8) -> IpAddr {
    let (v4, v6) = (
        format!("10.7{network}.0.{last}"),
        format!("fd7{network}::{last:x}"),
    );
    family.choose(v4, v6).parse().unwrap()
}

/// Clients, two balancers and a member, in two networks.
struct Twins {
    family: Family,
    path: Path,
    /// Gone last, as the other ends of all cables are there.
    _switch: Namespace,
    clients: Namespace,
    balancers: [Namespace; 2],
    member: Namespace,
    folder: Folder,
}

impl Twins {
    /// None if this machine does not let us, which is said.
    fn new(family: Family, path: Path) -> Option<Self> {
        let make = Namespace::with_loopback;
        let (switch, clients, member) = (make()?, make()?, make()?);
        let balancers = [make()?, make()?];
        let switch_name = find_name(&switch);
        for network in [0, 1] {
            run_ip(&format!(
                "-n {switch_name} link add br{network} type bridge"
            ));
            run_ip(&format!("-n {switch_name} link set br{network} up"));
        }
        let connect = |namespace: &Namespace, network: usize, last: u8| {
            let (name, link) = (find_name(namespace), LINKS[network]);
            let port = format!("p{network}x{last}");
            run_ip(&format!(
                "link add {link} netns {name} type veth peer name {port} netns {switch_name}"
            ));
            run_ip(&format!(
                "-n {switch_name} link set {port} master br{network} up"
            ));
            let (ip, end) = (
                find_address(family, network, last),
                family.choose("/24", "/64 nodad"),
            );
            run_ip(&format!("-n {name} addr add {ip}{end} dev {link}"));
            run_ip(&format!("-n {name} link set {link} up"));
        };
        connect(&clients, 0, 2);
        for (balancer, last) in balancers.iter().zip(OWN) {
            connect(balancer, 0, last);
            connect(balancer, 1, last);
            balancer.run_inside(|| {
                fs::write(format!("/proc/sys/{}", family.setting()), "1").unwrap();
                // The standby listens, too.
                let nonlocal = family.choose("ipv4", "ipv6");
                fs::write(format!("/proc/sys/net/{nonlocal}/ip_nonlocal_bind"), "1").unwrap();
            });
        }
        connect(&member, usize::from(path != Path::Direct), MEMBER);
        let name = find_name(&member);
        match path {
            Path::Route => {
                let gateway = find_address(family, 1, MOVING);
                let version = family.choose("-4", "-6");
                run_ip(&format!(
                    "-n {name} {version} route add default via {gateway}"
                ));
            }
            Path::Nat => {}
            Path::Direct => {
                member.run_inside(|| {
                    for (key, value) in [("arp_ignore", "1"), ("arp_announce", "2")] {
                        fs::write(format!("/proc/sys/net/ipv4/conf/all/{key}"), value).unwrap();
                    }
                });
                let (ip, end) = (
                    find_address(family, 0, MOVING),
                    family.choose("/32", "/128 nodad"),
                );
                run_ip(&format!("-n {name} addr add {ip}{end} dev lo"));
            }
        }
        Some(Twins {
            family,
            path,
            _switch: switch,
            clients,
            balancers,
            member,
            folder: Folder::new(),
        })
    }

    fn rule(&self) -> SocketAddr {
        SocketAddr::new(find_address(self.family, 0, MOVING), PORT)
    }

    fn member_address(&self) -> SocketAddr {
        let network = usize::from(self.path != Path::Direct);
        SocketAddr::new(find_address(self.family, network, MEMBER), PORT)
    }

    fn start_member(&self) {
        let any = SocketAddr::new(self.family.choose("0.0.0.0", "::").parse().unwrap(), PORT);
        let listener = self.member.run_inside(|| TcpListener::bind(any).unwrap());
        serve_echo(listener, Duration::ZERO);
    }

    /// Takes the addresses that move from a balancer, if `holds` is false, or gives them to the balancer.
    fn set_addresses(&self, balancer: usize, holds: bool) {
        let name = find_name(&self.balancers[balancer]);
        let (what, version) = (
            if holds { "add" } else { "del" },
            self.family.choose("-4", "-6"),
        );
        for (network, link) in LINKS.into_iter().enumerate() {
            let ip = find_address(self.family, network, MOVING);
            let end = self.family.choose("/32", "/128");
            let more = match (holds, self.family) {
                (true, Family::V6) => " nodad preferred_lft 0",
                _ => "",
            };
            run_ip(&format!(
                "-n {name} {version} addr {what} {ip}{end} dev {link}{more}"
            ));
        }
        // With full NAT members must see the address that moves.
        let seen = if holds { MOVING } else { OWN[balancer] };
        let members = self.family.choose("10.71.0.0/24", "fd71::/64");
        if self.path == Path::Nat {
            let (source, link) = (find_address(self.family, 1, seen), LINKS[1]);
            // Before the route that came with the balancer's own address.
            let more = self.family.choose("", " metric 1");
            run_ip(&format!(
                "-n {name} {version} route replace {members} dev {link} src {source}{more}"
            ));
        }
    }

    /// Moves the addresses, and lets all know the new neighbour, as VRRP does by gratuitous ARP.
    fn move_addresses(&self, to: usize) {
        self.set_addresses(1 - to, false);
        self.set_addresses(to, true);
        let version = self.family.choose("-4", "-6");
        for namespace in [&self.clients, &self.member] {
            let name = find_name(namespace);
            run_ip(&format!("-n {name} {version} neigh flush all"));
        }
    }

    /// Starts a balancer; `None` if it is built without the programs, which is said.
    fn start_balancer(&self, balancer: usize) -> Option<Balancer> {
        self.start_balancer_with(balancer, |config| config)
    }

    /// Starts a balancer with a changed configuration; `None` if it is built without the programs, which is said.
    fn start_balancer_with(
        &self,
        balancer: usize,
        change: impl FnOnce(String) -> String,
    ) -> Option<Balancer> {
        let key = key_file(&self.folder);
        let fleet = |last: u8| SocketAddr::new(find_address(self.family, 0, last), 9910);
        let (own, other) = (fleet(OWN[balancer]), fleet(OWN[1 - balancer]));
        let return_path = match self.path {
            Path::Route => "route",
            Path::Nat => "nat",
            Path::Direct => "direct",
        };
        let config = format!(
            "workers = 1\n[admin]\nlisten = \"127.0.0.1:0\"\n[node]\nname = \"lb-{balancer}\"\n\
             [fleet]\nlisten = \"{own}\"\njoin = [\"{own}\", \"{other}\"]\nkey_file = {key:?}\n\
             [kernel_forwarding]\ncopy_to_fleet = true\n\
             [rule.db]\nlisten = \"{}\"\nprotocol = \"tcp\"\nforward = \"kernel\"\n\
             return_path = \"{return_path}\"\nmembers = [\"{}\"]\nhealth_check = false\n\
             slow_start = \"0s\"\n",
            self.rule(),
            self.member_address(),
        );
        let mut command = self.balancers[balancer].command(evenkeel_binary());
        let started = Balancer::start_by(&change(config), |folder| {
            command.current_dir(folder.path());
            command
        });
        let mut state = Value::Null;
        wait_until("the rule is forwarded, or not", || {
            let status = self.read(balancer, &started, "/v1/status");
            state = status["rules"][0]["forward"].clone();
            state.as_str().is_some_and(|state| state != "proxy")
        });
        if state.as_str().unwrap().contains("built without") {
            report_skipped(state.as_str().unwrap());
            return None;
        }
        assert_eq!(state, "kernel");
        Some(started)
    }

    fn read(&self, balancer: usize, process: &Balancer, path: &str) -> Value {
        self.balancers[balancer].run_inside(|| process.admin_json(path))
    }

    fn connect(&self) -> TcpStream {
        let to = self.rule();
        let connected = self
            .clients
            .run_inside(|| TcpStream::connect_timeout(&to, HANG));
        let mut stream = connected.unwrap();
        stream.set_read_timeout(Some(HANG)).unwrap();
        stream.read_exact(&mut [0; 16]).unwrap();
        stream
    }

    /// Waits until a balancer counts this many connections at the member, and has this many copies.
    fn wait_for(&self, balancer: usize, process: &Balancer, in_flight: u64, copied: u64) {
        let limit = Instant::now() + HANG;
        loop {
            let now = self.read(balancer, process, "/v1/forward");
            let here = count(&now, self.member_address(), "in_flight");
            if here == in_flight && now["copies"]["copied"] == copied {
                return;
            }
            assert!(
                Instant::now() < limit,
                "balancer {balancer} has not {in_flight} connections and {copied} copies: {now}"
            );
            thread::sleep(Duration::from_millis(50));
        }
    }
}

/// Sends bytes and compares what comes back until `is_over` is set. Returns the number of bytes.
fn keep_talking(mut stream: TcpStream, is_over: Arc<AtomicBool>) -> thread::JoinHandle<usize> {
    thread::spawn(move || {
        let mut length = 0;
        while !is_over.load(Ordering::Relaxed) {
            echo(&mut stream, 30_000);
            length += 30_000;
        }
        length
    })
}

fn check_connections_go_on_at_the_other_balancer(family: Family, path: Path) {
    let Some(twins) = Twins::new(family, path) else {
        return;
    };
    twins.start_member();
    twins.set_addresses(0, true);
    let Some(mut first) = twins.start_balancer(0) else {
        return;
    };
    let mut streams: Vec<_> = (0..4).map(|_| twins.connect()).collect();
    streams.iter_mut().for_each(|stream| echo(stream, 100_000));
    // A balancer that starts gets the whole table.
    let mut second = twins.start_balancer(1).unwrap();
    twins.wait_for(1, &second, 0, 4);
    twins.wait_for(0, &first, 4, 0);
    // Connections that begin later, one of which is busy all the time.
    let is_over = Arc::new(AtomicBool::new(false));
    let busy = keep_talking(twins.connect(), Arc::clone(&is_over));
    streams.push(twins.connect());
    twins.wait_for(1, &second, 0, 6);

    // A planned move.
    twins.move_addresses(1);
    streams.iter_mut().for_each(|stream| echo(stream, 100_000));
    is_over.store(true, Ordering::Relaxed);
    assert!(busy.join().unwrap() > 0);
    // The busy one has ended, for the first one, too. The others count where they are.
    twins.wait_for(1, &second, 5, 0);
    streams.push(twins.connect());
    echo(streams.last_mut().unwrap(), 1000);
    twins.wait_for(0, &first, 0, 6);
    let now = twins.read(1, &second, "/v1/forward");
    assert_eq!(now["copies"]["taken_over"], 6, "{now}");
    assert_eq!(now["packets"]["dropped"], 0, "{now}");
    let picks = count(&now, twins.member_address(), "picks");
    assert_eq!(picks, 1, "the others were the first one's choices: {now}");

    // The second one dies.
    second.signal(Signal::KILL);
    second.wait_for_end();
    twins.move_addresses(0);
    streams.iter_mut().for_each(|stream| echo(stream, 100_000));
    twins.wait_for(0, &first, 6, 0);
    // Back again, the second one has only copies; ends are told.
    let second = twins.start_balancer(1).unwrap();
    twins.wait_for(1, &second, 0, 6);
    drop(streams);
    twins.wait_for(0, &first, 0, 0);
    twins.wait_for(1, &second, 0, 0);
    let now = twins.read(0, &first, "/v1/forward");
    assert_eq!(now["copies"]["obstacle"], Value::Null, "{now}");
    first.signal(Signal::KILL);
    first.wait_for_end();
}

#[test]
fn s41_connections_go_on_at_the_other_balancer_through_the_members_route() {
    for family in BOTH {
        check_connections_go_on_at_the_other_balancer(family, Path::Route);
    }
}

#[test]
fn s41_connections_go_on_at_the_other_balancer_with_full_nat() {
    for family in BOTH {
        check_connections_go_on_at_the_other_balancer(family, Path::Nat);
    }
}

#[test]
fn s41_connections_go_on_at_the_other_balancer_with_direct_answers() {
    for family in BOTH {
        check_connections_go_on_at_the_other_balancer(family, Path::Direct);
    }
}

/// Waits until a balancer has refused copies for this reason, and checks that the balancer has none.
fn wait_for_refusal(twins: &Twins, balancer: usize, process: &Balancer, result: &str) {
    wait_until(&format!("copies are refused: {result}"), || {
        let copies = twins.read(balancer, process, "/v1/forward")["copies"].clone();
        assert_eq!(copies["copied"], 0, "{copies}");
        copies["received"][result].as_u64() >= Some(1)
    });
}

#[test]
fn s41_copies_that_another_balancer_cannot_use_are_counted_with_the_reason() {
    let family = Family::V4;
    let Some(twins) = Twins::new(family, Path::Route) else {
        return;
    };
    twins.start_member();
    twins.set_addresses(0, true);
    let Some(first) = twins.start_balancer(0) else {
        return;
    };
    let mut stream = twins.connect();
    let member = twins.member_address();
    let other = SocketAddr::new(find_address(family, 1, MEMBER + 1), PORT);
    let rule = twins.rule();
    let mut another_rule = rule;
    another_rule.set_port(PORT + 1);
    let changes = [
        ("no_member", member.to_string(), other.to_string()),
        ("no_listener", rule.to_string(), another_rule.to_string()),
        ("other_path", "\"route\"".into(), "\"nat\"".into()),
    ];
    for (result, old, new) in changes {
        let second = twins.start_balancer_with(1, |config| config.replace(&old, &new));
        wait_for_refusal(&twins, 1, &second.unwrap(), result);
    }
    let second = twins.start_balancer(1).unwrap();
    twins.wait_for(1, &second, 0, 1);
    twins.wait_for(0, &first, 1, 0);
    echo(&mut stream, 1000);
}

#[test]
fn s41_an_address_that_does_not_move_with_the_rule_is_said() {
    let Some(twins) = Twins::new(Family::V4, Path::Nat) else {
        return;
    };
    twins.start_member();
    twins.set_addresses(0, true);
    // Members see the balancer's own address.
    let name = find_name(&twins.balancers[0]);
    let own = find_address(Family::V4, 1, OWN[0]);
    run_ip(&format!(
        "-n {name} route replace 10.71.0.0/24 dev {} src {own}",
        LINKS[1]
    ));
    let Some(first) = twins.start_balancer(0) else {
        return;
    };
    let mut stream = twins.connect();
    echo(&mut stream, 1000);
    let second = twins.start_balancer(1).unwrap();
    twins.wait_for(1, &second, 0, 1);
    twins.move_addresses(1);
    second.wait_for_log("Move both addresses together");
    wait_until("the status has the obstacle", || {
        let obstacle = twins.read(1, &second, "/v1/forward")["copies"]["obstacle"].clone();
        let said = obstacle.as_str();
        said.is_some_and(|obstacle| obstacle.contains(&own.to_string()))
    });
    // Back where the address is, the connection goes on.
    twins.move_addresses(0);
    echo(&mut stream, 1000);
    twins.wait_for(0, &first, 1, 0);
}
