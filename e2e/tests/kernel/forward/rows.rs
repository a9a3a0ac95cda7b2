//! Several balancers with the address of a rule behind a router that spreads packets, and members behind the router.

use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::*;

/// Port of the rule and of the members.
const SAME_PORT: u16 = 7000;

/// Interface of each machine.
const LINK: &str = "link0";

/// Memory of the command that lets a member receive packets.
const MEMORY: &str = "/run/evenkeel-receive";

/// Numbers of machines, which are parts of their addresses.
const CLIENTS: u8 = 80;
const BALANCERS: [u8; 2] = [81, 82];
const MEMBERS: [u8; 3] = [91, 92, 93];

/// Machines around a router, each in a network of its own.
struct Site {
    family: Family,
    router: Namespace,
    clients: Namespace,
    fronts: Vec<Namespace>,
    members: Vec<Namespace>,
}

fn find_name(namespace: &Namespace) -> String {
    let path = namespace.path();
    path.file_name().unwrap().to_str().unwrap().to_owned()
}

/// Address in the network of a machine: 1 in the last byte is the router, 2 the machine.
fn find_address(family: Family, machine: u8, last: u8) -> IpAddr {
    let (v4, v6) = (
        format!("10.{machine}.0.{last}"),
        format!("fd{machine}::{last}"),
    );
    family.choose(v4, v6).parse().unwrap()
}

/// Ways by which the router sends packets to the rule.
#[derive(Clone, Copy, Debug)]
enum Route {
    To(usize),
    Spread,
}

impl Site {
    /// None if this machine does not let us, which is said.
    fn new(family: Family) -> Option<Self> {
        let make = Namespace::with_loopback;
        let (router, clients) = (make()?, make()?);
        let fronts = BALANCERS.map(|_| make().unwrap());
        let members = MEMBERS.map(|_| make().unwrap());
        let site = Site {
            family,
            router,
            clients,
            fronts: fronts.into(),
            members: members.into(),
        };
        let router = find_name(&site.router);
        let machines = [(&site.clients, CLIENTS)].into_iter();
        let machines = machines
            .chain(site.fronts.iter().zip(BALANCERS))
            .chain(site.members.iter().zip(MEMBERS));
        for (namespace, machine) in machines {
            let name = find_name(namespace);
            run_ip(&format!(
                "link add {LINK} netns {name} type veth peer name port{machine} netns {router}"
            ));
            run_ip(&format!("-n {name} link set {LINK} up"));
            run_ip(&format!("-n {router} link set port{machine} up"));
            let (end, version) = (family.choose("/24", "/64 nodad"), family.choose("-4", "-6"));
            let [near, far] = [1, 2].map(|last| find_address(family, machine, last));
            run_ip(&format!(
                "-n {router} addr add {near}{end} dev port{machine}"
            ));
            run_ip(&format!("-n {name} addr add {far}{end} dev {LINK}"));
            run_ip(&format!("-n {name} {version} route add default via {near}"));
        }
        let rule = site.rule().ip();
        for front in &site.fronts {
            let end = family.choose("/32", "/128 nodad preferred_lft 0");
            run_ip(&format!(
                "-n {} addr add {rule}{end} dev lo",
                find_name(front)
            ));
        }
        for namespace in site.fronts.iter().chain([&site.router]) {
            namespace.run_inside(|| {
                fs::write(format!("/proc/sys/{}", family.setting()), "1").unwrap();
            });
        }
        let policy = family.choose(
            "net/ipv4/fib_multipath_hash_policy",
            "net/ipv6/fib_multipath_hash_policy",
        );
        site.router
            .run_inside(|| fs::write(format!("/proc/sys/{policy}"), "1").unwrap());
        site.set_route(Route::To(0));
        Some(site)
    }

    fn rule(&self) -> SocketAddr {
        SocketAddr::new(find_address(self.family, 99, 1), SAME_PORT)
    }

    fn member(&self, number: usize) -> SocketAddr {
        SocketAddr::new(find_address(self.family, MEMBERS[number], 2), SAME_PORT)
    }

    /// Changes the router's route to the rule.
    fn set_route(&self, route: Route) {
        let via = |number: usize| find_address(self.family, BALANCERS[number], 2);
        let hops = match route {
            Route::To(number) => format!("via {}", via(number)),
            Route::Spread => format!("nexthop via {} nexthop via {}", via(0), via(1)),
        };
        let version = self.family.choose("-4", "-6");
        let (router, rule) = (find_name(&self.router), self.rule().ip());
        run_ip(&format!(
            "-n {router} {version} route replace {rule} {hops}"
        ));
    }

    /// Runs `evenkeel kernel` at a member. Output, or errors.
    fn run_at(&self, member: usize, words: &[&str]) -> Result<String, String> {
        let mut command = self.members[member].command(evenkeel_binary());
        let output = command.arg("kernel").args(words).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        if output.status.success() {
            Ok(text(output.stdout))
        } else {
            Err(text(output.stderr))
        }
    }

    /// Lets all members receive packets to the rule's address, and starts their servers. Returns false if the program is
    /// built without it, which is said.
    fn start_members(&self) -> bool {
        let rule = self.rule().ip().to_string();
        let balancers = BALANCERS.map(|machine| find_address(self.family, machine, 2).to_string());
        let words = [
            "attach",
            "--receive",
            &rule,
            "--balancers",
            &balancers.join(","),
        ];
        for number in 0..MEMBERS.len() {
            match self.run_at(number, &words) {
                Ok(told) => assert!(told.contains(&balancers[1]), "{told}"),
                Err(error) if error.contains("built without") => {
                    report_skipped(&error);
                    return false;
                }
                Err(error) => panic!("{error}"),
            }
            let any = self.family.choose("0.0.0.0:7000", "[::]:7000");
            let listener = self.members[number].run_inside(|| TcpListener::bind(any).unwrap());
            serve_echo(listener, Duration::ZERO);
        }
        true
    }

    /// A count of packets in tunnels at all members.
    fn count_packets(&self, name: &str) -> u64 {
        let read = |number| {
            let told = self.run_at(number, &["status", "--receive", "--json"]);
            let status: Value = serde_json::from_str(&told.unwrap()).unwrap();
            status["packets"][name].as_u64().unwrap()
        };
        (0..MEMBERS.len()).map(read).sum()
    }

    fn start_balancer(&self, number: usize, more: &str) -> Balancer {
        let members: Vec<_> = (0..MEMBERS.len())
            .map(|number| format!("\"{}\"", self.member(number)))
            .collect();
        let config = format!(
            "workers = 1\n[admin]\nlisten = \"127.0.0.1:0\"\n[rule.db]\nlisten = \"{}\"\nprotocol = \"tcp\"\n\
             forward = \"kernel\"\nreturn_path = \"tunnel\"\nanycast = true\nmembers = [{}]\nhealth_check = false\n\
             slow_start = \"0s\"\n{more}\n",
            self.rule(),
            members.join(", ")
        );
        let balancer = Balancer::start_by(&config, |folder| {
            let mut command = self.fronts[number].command(evenkeel_binary());
            command.current_dir(folder.path());
            command
        });
        wait_until("the kernel forwards", || {
            let status = self.ask(number, &balancer, "/v1/status");
            status["rules"][0]["forward"] == "kernel"
        });
        balancer
    }

    fn ask(&self, number: usize, balancer: &Balancer, path: &str) -> Value {
        self.fronts[number].run_inside(|| balancer.admin_json(path))
    }

    /// A count of packets of a balancer.
    fn count_at(&self, number: usize, balancer: &Balancer, name: &str) -> u64 {
        let now = self.ask(number, balancer, "/v1/forward");
        now["packets"][name].as_u64().unwrap()
    }

    /// A connection whose member sees the client.
    fn connect(&self) -> TcpStream {
        let to = self.rule();
        let stream = self
            .clients
            .run_inside(|| TcpStream::connect_timeout(&to, HANG));
        let mut stream = stream.unwrap();
        stream.set_read_timeout(Some(HANG)).unwrap();
        let mut line = [0; 16];
        stream.read_exact(&mut line).unwrap();
        let seen: IpAddr = std::str::from_utf8(&line).unwrap().trim().parse().unwrap();
        assert_eq!(seen, find_address(self.family, CLIENTS, 2));
        stream
    }

    /// Takes bytes there and back on all connections while `change` is called, which gets a function that waits until
    /// each connection has gone on.
    fn keep_busy(&self, streams: &mut [TcpStream], change: impl FnOnce(&dyn Fn())) {
        let ends = AtomicBool::new(false);
        let rounds: Vec<_> = streams.iter().map(|_| AtomicU64::new(0)).collect();
        thread::scope(|scope| {
            for (stream, rounds) in streams.iter_mut().zip(&rounds) {
                let ends = &ends;
                scope.spawn(move || {
                    while !ends.load(Ordering::Relaxed) {
                        let round = rounds.fetch_add(1, Ordering::Relaxed);
                        echo(stream, 100 + (round as usize * 977) % 20_000);
                    }
                });
            }
            let count = || -> Vec<u64> {
                rounds
                    .iter()
                    .map(|rounds| rounds.load(Ordering::Relaxed))
                    .collect()
            };
            // A failure of this thread must not leave the others busy.
            let guard = EndGuard(&ends);
            change(&|| {
                let before = count();
                wait_until("all connections have gone on", || {
                    count()
                        .iter()
                        .zip(&before)
                        .all(|(now, then)| *now >= then + 2)
                });
            });
            drop(guard);
        });
    }
}

/// Ends the threads of a test.
struct EndGuard<'a>(&'a AtomicBool);

impl Drop for EndGuard<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        for member in &self.members {
            let number = rustix::fs::stat(member.path()).unwrap().st_ino;
            let _ = fs::remove_file(format!("{MEMORY}/{number}"));
        }
    }
}

fn check_connections_continue_when_routes_change(family: Family) {
    let Some(site) = Site::new(family) else {
        return;
    };
    if !site.start_members() {
        return;
    }
    let mut first = site.start_balancer(0, "");
    let second = site.start_balancer(1, "");
    let mut streams: Vec<_> = (0..12).map(|_| site.connect()).collect();
    site.set_route(Route::To(1));
    streams.extend((0..12).map(|_| site.connect()));
    let used = |number: usize, balancer: &Balancer| {
        let now = site.ask(number, balancer, "/v1/forward");
        now["rule_counts"][0]["begun"].as_u64().unwrap()
    };
    wait_until("both balancers have begun connections", || {
        (used(0, &first), used(1, &second)) == (12, 12)
    });
    site.keep_busy(&mut streams, |go_on| {
        for _ in 0..3 {
            for route in [Route::To(0), Route::Spread, Route::To(1)] {
                site.set_route(route);
                go_on();
            }
        }
    });
    for (number, balancer) in [(0, &first), (1, &second)] {
        wait_until("packets of the other balancer's connections came", || {
            site.count_at(number, balancer, "by_row") > 0
        });
        assert_eq!(site.count_at(number, balancer, "dropped"), 0);
    }
    assert!(site.count_packets("handed_on") > 0);
    assert_eq!(site.count_packets("malformed"), 0);
    assert!(site.count_packets("clamped") >= 24);

    // A member that drains keeps its connections, whichever way their packets come, and gets no new ones.
    let drained = site.member(0).to_string();
    for (number, balancer) in [(0, &first), (1, &second)] {
        site.fronts[number]
            .run_inside(|| balancer.run_ctl(&format!("drain db {drained}")))
            .unwrap();
        wait_until("the kernel knows of the drain", || {
            let now = site.ask(number, balancer, "/v1/forward");
            let members = now["members"].as_array().unwrap().clone();
            let is_it = |member: &&Value| member["member"] == drained;
            members.iter().find(is_it).unwrap()["eligible"] == false
        });
    }
    let picks = |number: usize, balancer: &Balancer| {
        count(
            &site.ask(number, balancer, "/v1/forward"),
            site.member(0),
            "picks",
        )
    };
    let before = (picks(0, &first), picks(1, &second));
    assert!(before.0 + before.1 > 0, "the member has connections");
    site.set_route(Route::Spread);
    streams.extend((0..12).map(|_| site.connect()));
    site.keep_busy(&mut streams, |go_on| {
        for route in [Route::To(0), Route::To(1)] {
            site.set_route(route);
            go_on();
        }
    });
    wait_until("the status has the connections", || {
        used(0, &first) + used(1, &second) == 36
    });
    assert_eq!((picks(0, &first), picks(1, &second)), before);

    // A balancer that dies takes no connection with it.
    first.signal(Signal::KILL);
    first.wait_for_end();
    let front = find_name(&site.fronts[0]);
    run_ip(&format!("-n {front} link set {LINK} down"));
    site.keep_busy(&mut streams, |go_on| go_on());
}

#[test]
fn s41_connections_continue_when_routes_change_between_balancers() {
    BOTH.into_iter()
        .for_each(check_connections_continue_when_routes_change);
}

fn check_clients_find_the_size_of_packets_for_tunnels(family: Family) {
    let Some(site) = Site::new(family) else {
        return;
    };
    if !site.start_members() {
        return;
    }
    let balancer = site.start_balancer(0, "");
    // No segments that are cut on the way.
    let mut command = site.clients.command("ethtool");
    let words = ["-K", LINK, "tso", "off", "gso", "off"];
    assert!(command.args(words).status().unwrap().success());
    let mut stream = site.connect();
    echo(&mut stream, 50_000);
    assert_eq!(site.count_at(0, &balancer, "icmp_error"), 0);
    // The way to members gets narrower than what the members have told.
    let (front, version) = (find_name(&site.fronts[0]), family.choose("-4", "-6"));
    let router = find_address(family, BALANCERS[0], 1);
    run_ip(&format!(
        "-n {front} {version} route replace default via {router} dev {LINK} mtu lock 1400"
    ));
    echo(&mut stream, 50_000);
    wait_until("the balancer has told the client", || {
        site.count_at(0, &balancer, "icmp_error") > 0
    });
    let mut next = site.connect();
    echo(&mut next, 50_000);
}

#[test]
fn s41_clients_find_the_size_of_packets_for_tunnels() {
    BOTH.into_iter()
        .for_each(check_clients_find_the_size_of_packets_for_tunnels);
}

#[test]
fn s41_members_take_tunnels_of_their_balancers_only() {
    let family = Family::V4;
    let Some(site) = Site::new(family) else {
        return;
    };
    let error = site.run_at(0, &["status", "--receive"]).unwrap_err();
    if error.contains("built without") {
        report_skipped(&error);
        return;
    }
    assert!(error.contains("no tunnel ends"), "{error}");
    assert!(site.start_members());
    // A client makes a tunnel of its own.
    site.clients.run_inside(|| {
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        let to = SocketAddr::new(find_address(family, MEMBERS[0], 2), 6080);
        let mut packet = vec![0, 4, 0, 0];
        packet.extend([0x45, 0, 0, 40, 0, 0, 0, 0, 64, 6, 0, 0]);
        packet.extend([10, 80, 0, 2, 10, 99, 0, 1]);
        packet.extend([
            0x13, 0x88, 0x1b, 0x58, 0, 0, 0, 1, 0, 0, 0, 0, 0x50, 2, 1, 0, 0, 0, 0, 0,
        ]);
        socket.send_to(&packet, to).unwrap();
    });
    wait_until("the member has seen the stranger", || {
        site.count_packets("stranger") == 1
    });
    assert_eq!(site.count_packets("taken"), 0);
    let told = site.run_at(0, &["status", "--receive"]).unwrap();
    for part in ["10.99.0.1", "10.81.0.2, 10.82.0.2", "taken"] {
        assert!(told.contains(part), "{told}");
    }
    // All of it goes with the last address.
    site.run_at(0, &["attach", "--receive", "10.99.0.2"])
        .unwrap();
    site.run_at(0, &["detach", "--receive", "10.99.0.1"])
        .unwrap();
    let told = site.run_at(0, &["status", "--receive"]).unwrap();
    assert!(
        told.contains("10.99.0.2") && !told.contains("10.99.0.1"),
        "{told}"
    );
    site.run_at(0, &["detach", "--receive"]).unwrap();
    let error = site.run_at(0, &["status", "--receive"]).unwrap_err();
    assert!(error.contains("no tunnel ends"), "{error}");
    let mut command = site.members[0].command("tc");
    let filters = command
        .args(["filter", "show", "dev", LINK, "ingress"])
        .output();
    let text = String::from_utf8(filters.unwrap().stdout).unwrap();
    assert!(!text.contains("evk_receive"), "{text}");
}
