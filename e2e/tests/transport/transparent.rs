//! Members that see the client's address as that of the connection. Needs the right to make network
//! namespaces.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::Command;
use std::thread;

use evenkeel_e2e::balancer::{Balancer, evenkeel_binary};
use evenkeel_e2e::folder::Folder;
use evenkeel_e2e::netns::{BACK4, BACK6, FRONT, Namespace, Pair, run_ip};
use evenkeel_e2e::process::are_installed;
use evenkeel_e2e::{HANG, wait_until};

/// The port at which members serve.
const PORT: u16 = 8080;

/// Clients on a machine of their own, the balancer on one between, and members behind it.
struct Machines {
    clients: Namespace,
    pair: Pair,
}

impl Machines {
    /// None if this machine does not let us, which is said.
    fn new() -> Option<Self> {
        let (clients, pair) = (Namespace::with_loopback()?, Pair::new()?);
        let name = |namespace: &Namespace| {
            let path = namespace.path();
            path.file_name().unwrap().to_str().unwrap().to_owned()
        };
        let (a, b, c) = (name(&clients), name(&pair.front), name(&pair.back));
        run_ip(&format!(
            "link add client0 netns {a} type veth peer name client1 netns {b}"
        ));
        for (namespace, interface, addresses) in [
            (
                &a,
                "client0",
                &["10.78.0.2/24", "10.78.0.3/24", "fd78::2/64"][..],
            ),
            (&b, "client1", &["10.78.0.1/24", "fd78::1/64"]),
        ] {
            for address in addresses {
                let nodad = if address.contains(':') { " nodad" } else { "" };
                run_ip(&format!(
                    "-n {namespace} addr add {address} dev {interface}{nodad}"
                ));
            }
            run_ip(&format!("-n {namespace} link set {interface} up"));
        }
        // What members answer goes to the balancer, which takes it for its own: the commands of
        // the manual.
        run_ip(&format!("-n {c} route add default via 10.77.0.1"));
        run_ip(&format!("-6 -n {c} route add default via fd77::1"));
        for (family, members, all) in [
            ("", "10.77.0.0/24", "0.0.0.0/0"),
            ("-6 ", "fd77::/64", "::/0"),
        ] {
            for protocol in ["tcp", "udp"] {
                run_ip(&format!(
                    "{family}-n {b} rule add iif {FRONT} from {members} ipproto {protocol} sport {PORT} lookup 100"
                ));
            }
            run_ip(&format!(
                "{family}-n {b} route add local {all} dev lo table 100"
            ));
        }
        Some(Machines { clients, pair })
    }

    /// A member that answers each request with the address that it comes from, and keeps its
    /// connections.
    fn member(&self, at: IpAddr) {
        let listener = self
            .pair
            .back
            .run_inside(|| TcpListener::bind((at, PORT)).unwrap());
        thread::spawn(move || {
            while let Ok((mut stream, from)) = listener.accept() {
                thread::spawn(move || {
                    let mut space = [0; 4096];
                    let body = from.ip().to_string();
                    let answer = format!(
                        "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}",
                        body.len()
                    );
                    while stream.read(&mut space).is_ok_and(|n| n > 0) {
                        stream.write_all(answer.as_bytes()).unwrap();
                    }
                });
            }
        });
    }

    /// A member that answers each datagram with the address that the datagram comes from.
    fn member_of_datagrams(&self, at: IpAddr) {
        let socket = self
            .pair
            .back
            .run_inside(|| UdpSocket::bind((at, PORT)).unwrap());
        thread::spawn(move || {
            let mut space = [0; 4096];
            while let Ok((_, from)) = socket.recv_from(&mut space) {
                socket
                    .send_to(from.ip().to_string().as_bytes(), from)
                    .unwrap();
            }
        });
    }

    /// Returns a socket of the client at `from`, for datagrams to `to`.
    fn connect_datagrams(&self, from: &str, to: SocketAddr) -> UdpSocket {
        let from: IpAddr = from.parse().unwrap();
        let socket = self.clients.run_inside(|| {
            let socket = UdpSocket::bind((from, 0)).unwrap();
            socket.connect(to).unwrap();
            socket
        });
        socket.set_read_timeout(Some(HANG)).unwrap();
        socket
    }

    fn balancer(&self, rules: &str) -> Balancer {
        let config = format!("workers = 2\n{rules}");
        Balancer::start_by(&config, |_| self.pair.front.command(evenkeel_binary()))
    }

    /// A connection of the client at `from`.
    fn connect(&self, from: &str, to: SocketAddr) -> Client {
        let from: IpAddr = from.parse().unwrap();
        Client(self.clients.run_inside(|| {
            let domain = socket2::Domain::for_address(to);
            let socket = socket2::Socket::new(domain, socket2::Type::STREAM, None).unwrap();
            socket.bind(&SocketAddr::new(from, 0).into()).unwrap();
            socket.connect(&to.into()).unwrap();
            socket.into()
        }))
    }
}

struct Client(TcpStream);

impl Client {
    /// Asks the member for the client's address as the member sees it.
    fn ask(&mut self) -> String {
        self.0.set_read_timeout(Some(HANG)).unwrap();
        self.0
            .write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            .unwrap();
        let (mut read, mut space) = (Vec::new(), [0; 4096]);
        loop {
            let n = self.0.read(&mut space).unwrap();
            assert!(n > 0, "{:?}", String::from_utf8_lossy(&read));
            read.extend_from_slice(&space[..n]);
            let text = String::from_utf8_lossy(&read);
            if let Some((head, body)) = text.split_once("\r\n\r\n") {
                assert!(head.starts_with("HTTP/1.1 200"), "{head}");
                if !body.is_empty() {
                    return body.to_owned();
                }
            }
        }
    }
}

fn rule(name: &str, protocol: &str, listen: &str, member: IpAddr) -> String {
    let member = SocketAddr::new(member, PORT);
    format!(
        "[rule.{name}]\nlisten = \"{listen}\"\nprotocol = \"{protocol}\"\nmembers = [\"{member}\"]\n\
         source = \"client\"\n"
    )
}

#[test]
fn members_see_the_address_of_each_client() {
    let Some(machines) = Machines::new() else {
        return;
    };
    machines.member(BACK4);
    machines.member(BACK6);
    let balancer = machines.balancer(&format!(
        "{}{}{}{}",
        rule("http", "http", "10.78.0.1:0", BACK4),
        rule("tcp", "tcp", "10.78.0.1:0", BACK4),
        rule("six", "http", "[fd78::1]:0", BACK6),
        rule("mixed", "http", "[fd78::1]:0", BACK4),
    ));
    for name in ["http", "tcp"] {
        let at = balancer.address(name);
        let mut one = machines.connect("10.78.0.2", at);
        let mut other = machines.connect("10.78.0.3", at);
        // One after the other, so that a connection could be used for both.
        for _ in 0..5 {
            assert_eq!(one.ask(), "10.78.0.2", "{name}");
            assert_eq!(other.ask(), "10.78.0.3", "{name}");
        }
    }
    let mut six = machines.connect("fd78::2", balancer.address("six"));
    assert_eq!(six.ask(), "fd78::2");
    // There is no such address for the other family.
    let mut mixed = machines.connect("fd78::2", balancer.address("mixed"));
    assert_eq!(mixed.ask(), "10.77.0.1");
    // It is written by another thread.
    wait_until("the log says so", || {
        balancer.log().contains("one has IPv4, the other IPv6")
    });
}

/// Sends a datagram, and returns the answer, or the kind of the error that comes in place of one.
fn ask_by_datagram(socket: &UdpSocket) -> Result<String, ErrorKind> {
    socket.send(b"who").map_err(|error| error.kind())?;
    let mut space = [0; 100];
    let len = socket.recv(&mut space).map_err(|error| error.kind())?;
    Ok(String::from_utf8_lossy(&space[..len]).into_owned())
}

#[test]
fn members_of_udp_rules_see_the_address_of_each_client() {
    let Some(machines) = Machines::new() else {
        return;
    };
    machines.member_of_datagrams(BACK4);
    machines.member_of_datagrams(BACK6);
    let rule = |name: &str, session: &str, listen: &str, member: IpAddr| {
        let options = format!("udp = {{ session = \"{session}\" }}\n");
        rule(name, "udp", listen, member) + &options
    };
    let balancer = machines.balancer(&format!(
        "{}{}{}{}",
        rule("client", "client", "10.78.0.1:0", BACK4),
        rule("datagram", "datagram", "0.0.0.0:0", BACK4),
        rule("six", "client", "[fd78::1]:0", BACK6),
        rule("mixed", "client", "[fd78::1]:0", BACK4),
    ));
    for name in ["client", "datagram"] {
        let at = SocketAddr::new("10.78.0.1".parse().unwrap(), balancer.address(name).port());
        let all =
            ["10.78.0.2", "10.78.0.3"].map(|from| (from, machines.connect_datagrams(from, at)));
        // One after the other, and several of each, so that sessions of one client are there at a time.
        for _ in 0..5 {
            for (from, socket) in &all {
                assert_eq!(ask_by_datagram(socket), Ok((*from).to_owned()), "{name}");
            }
        }
    }
    let six = machines.connect_datagrams("fd78::2", balancer.address("six"));
    assert_eq!(ask_by_datagram(&six), Ok("fd78::2".to_owned()));
    let mixed = machines.connect_datagrams("fd78::2", balancer.address("mixed"));
    assert_eq!(ask_by_datagram(&mixed), Ok("10.77.0.1".to_owned()));
}

/// The client's kernel takes an error of ICMP only if it quotes the datagram with the right addresses and checksums.
#[test]
fn clients_of_udp_rules_learn_that_no_member_is_left() {
    let Some(machines) = Machines::new() else {
        return;
    };
    let rule = |name: &str, session: &str, listen: &str, member: IpAddr| {
        let member = SocketAddr::new(member, PORT);
        format!(
            "[rule.{name}]\nlisten = \"{listen}\"\nprotocol = \"udp\"\nmembers = [\"{member}\"]\n\
             udp = {{ session = \"{session}\" }}\n"
        )
    };
    let balancer = machines.balancer(&format!(
        "{}{}{}",
        rule("client", "client", "10.78.0.1:0", BACK4),
        rule("datagram", "datagram", "0.0.0.0:0", BACK4),
        rule("six", "quic", "[::]:0", BACK6),
    ));
    let refused = Err(ErrorKind::ConnectionRefused);
    for (name, from, to, member) in [
        ("client", "10.78.0.2", "10.78.0.1", BACK4),
        ("datagram", "10.78.0.3", "10.78.0.1", BACK4),
        ("six", "fd78::2", "fd78::1", BACK6),
    ] {
        let at = SocketAddr::new(to.parse().unwrap(), balancer.address(name).port());
        // The member's machine says that nobody has the port.
        assert_eq!(
            ask_by_datagram(&machines.connect_datagrams(from, at)),
            refused,
            "{name}"
        );
        // There is no member that may be chosen.
        let address = SocketAddr::new(member, PORT);
        let inside = &machines.pair.front;
        let words = format!("maintenance {name} {address}");
        inside.run_inside(|| balancer.run_ctl(&words)).unwrap();
        let series =
            format!("evenkeel_rule_datagrams_dropped_total{{rule=\"{name}\",reason=\"refused\"}}");
        let dropped = || inside.run_inside(|| balancer.read_metric(&series));
        wait_until("the balancer has nobody to send to", || {
            let before = dropped();
            assert_eq!(
                ask_by_datagram(&machines.connect_datagrams(from, at)),
                refused,
                "{name}"
            );
            dropped() > before
        });
    }
}

#[test]
fn a_rule_that_becomes_one_of_udp_sends_errors_too() {
    let Some(machines) = Machines::new() else {
        return;
    };
    // In the namespace nobody else has the port.
    let at: SocketAddr = "10.78.0.1:5353".parse().unwrap();
    let member = SocketAddr::new(BACK4, PORT);
    let rule = |protocol: &str| {
        format!(
            "[rule.turned]\nlisten = \"{at}\"\nprotocol = \"{protocol}\"\nmembers = [\"{member}\"]\n"
        )
    };
    let balancer = machines.balancer(&rule("tcp"));
    let inside = &machines.pair.front;
    let text = format!("workers = 2\n{}", rule("udp"));
    inside.run_inside(|| balancer.reconfigure(&text));
    assert_eq!(
        ask_by_datagram(&machines.connect_datagrams("10.78.0.2", at)),
        Err(ErrorKind::ConnectionRefused)
    );
}

#[test]
fn a_client_that_uses_up_the_ports_of_its_address_ends_no_connection_of_others() {
    let Some(machines) = Machines::new() else {
        return;
    };
    machines.member(BACK4);
    machines.member_of_datagrams(BACK4);
    let inside = &machines.pair.front;
    inside.run_inside(|| {
        std::fs::write("/proc/sys/net/ipv4/ip_local_port_range", "40000 40031").unwrap();
    });
    let member = SocketAddr::new(BACK4, PORT);
    let config = format!(
        "workers = 1\n{}[rule.web]\nlisten = \"10.78.0.1:0\"\nprotocol = \"http\"\nmembers = [\"{member}\"]\n",
        rule("udp", "udp", "10.78.0.1:0", BACK4)
    );
    let balancer = Balancer::start_by(&config, |_| inside.command(evenkeel_binary()));
    let read = |series: &str| inside.run_inside(|| balancer.read_metric(series));
    let mut other = machines.connect("10.78.0.2", balancer.address("web"));
    assert_eq!(other.ask(), "10.77.0.1");
    let at = balancer.address("udp");
    let sockets: Vec<_> = (0..32)
        .map(|_| machines.connect_datagrams("10.78.0.3", at))
        .collect();
    for socket in &sockets {
        assert_eq!(ask_by_datagram(socket), Ok("10.78.0.3".to_owned()));
    }
    let last = machines.connect_datagrams("10.78.0.3", at);
    last.send(b"who").unwrap();
    let series = "evenkeel_rule_refused_total{rule=\"udp\",reason=\"exhausted\"}";
    wait_until("the client has no port left", || read(series) == Some(1.0));
    assert_eq!(other.ask(), "10.77.0.1");
    let series = "evenkeel_rule_member_connections_total{rule=\"web\",result=\"opened\"}";
    assert_eq!(read(series), Some(1.0));
}

#[test]
fn without_the_right_it_does_not_start() {
    if !are_installed(&["setpriv"]) {
        return;
    }
    let folder = Folder::new();
    let text = format!(
        "[admin]\nlisten = \"127.0.0.1:0\"\n{}",
        rule("web", "http", "127.0.0.1:0", BACK4)
    );
    let config = folder.write("evenkeel.toml", text);
    for command in ["check", "run"] {
        let mut process = Command::new("setpriv");
        if rustix::process::geteuid().is_root() {
            process.args([
                "--inh-caps=-net_admin,-net_raw",
                "--bounding-set=-net_admin,-net_raw",
            ]);
        }
        let output = process
            .arg(evenkeel_binary())
            .arg(command)
            .arg(&config)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{command}: {said}");
        assert!(said.contains("group \"web\": source"), "{command}: {said}");
        assert!(said.contains("CAP_NET_ADMIN"), "{command}: {said}");
    }
}
