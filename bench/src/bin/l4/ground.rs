//! Namespaces of clients, balancer and members, and the balancers between them.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use evenkeel_bench::arms::{Arm as Peer, NGINX_STREAM_MODULE};
use evenkeel_bench::server::Server;
use evenkeel_e2e::netns::{BACK, Namespace, Pair, run_ip};

use crate::{Result, Run};

/// Address of the balancer for clients.
pub(crate) const BALANCER: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 1);
/// Port of the rule and of all members: balancers in the kernel change the address alone.
pub(crate) const PORT: u16 = 7000;
/// Number of members that serve.
pub(crate) const MEMBERS: u8 = 4;
/// Longest time until a balancer serves.
const START_LIMIT: Duration = Duration::from_secs(20);
/// Name of the file with Evenkeel's configuration.
const CONFIG: &str = "evenkeel.toml";
/// Address of the admin API, in the balancer's own namespace.
const ADMIN: &str = "127.0.0.1:9901";

/// Address of a member, by number.
pub(crate) fn member_ip(number: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, 0, 2 + number)
}

/// Addresses of all members.
pub(crate) fn member_addresses() -> Vec<SocketAddr> {
    let addresses = (0..MEMBERS).map(|number| SocketAddr::from((member_ip(number), PORT)));
    addresses.collect()
}

/// Three machines: clients, a balancer that is the gateway of both sides, and members.
pub(crate) struct Ground {
    /// Namespace of the clients.
    pub(crate) clients: Namespace,
    /// Namespaces of the balancer (front) and the members (back).
    pub(crate) pair: Pair,
}

impl Ground {
    /// Makes the namespaces.
    ///
    /// # Errors
    ///
    /// Returns an error if this machine does not let us.
    pub(crate) fn new() -> Result<Self> {
        let no_right = "no right to make network namespaces; run it as root";
        let clients = Namespace::with_loopback().ok_or(no_right)?;
        let pair = Pair::new().ok_or(no_right)?;
        let ground = Ground { clients, pair };
        let [a, b, c] = [&ground.clients, &ground.pair.front, &ground.pair.back].map(name);
        run_ip(&format!(
            "link add client0 netns {a} type veth peer name client1 netns {b}"
        ));
        run_ip(&format!("-n {a} addr add 10.78.0.2/24 dev client0"));
        run_ip(&format!("-n {b} addr add {BALANCER}/24 dev client1"));
        run_ip(&format!("-n {a} link set client0 up"));
        run_ip(&format!("-n {b} link set client1 up"));
        run_ip(&format!("-n {a} route add default via {BALANCER}"));
        for number in 1..MEMBERS {
            let ip = member_ip(number);
            run_ip(&format!("-n {c} addr add {ip}/24 dev {BACK}"));
        }
        run_ip(&format!("-n {c} route add default via 10.77.0.1"));
        // Addresses behind the members' machine at which nobody answers.
        run_ip(&format!("-n {b} route add 10.79.0.0/16 via 10.77.0.2"));
        let front = &ground.pair.front;
        set_sysctl(front, "net/ipv4/ip_forward", "1")?;
        // Ports of closed connections may be used again after a second: a turn has thousands.
        set_sysctl(&ground.clients, "net/ipv4/tcp_tw_reuse", "1")?;
        set_sysctl(
            &ground.clients,
            "net/ipv4/ip_local_port_range",
            "10000 65000",
        )?;
        // Full NAT takes ports above these.
        set_sysctl(front, "net/ipv4/ip_local_port_range", "10000 60000")?;
        Ok(ground)
    }
}

pub(crate) fn name(namespace: &Namespace) -> String {
    let path = namespace.path();
    path.file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned()
}

fn set_sysctl(namespace: &Namespace, key: &str, value: &str) -> Result<()> {
    let file = format!("/proc/sys/{key}");
    namespace
        .run_inside(|| fs::write(&file, value))
        .map_err(|error| format!("{file}: {error}").into())
}

/// Loads rules of nftables.
pub(crate) fn load_nft(namespace: &Namespace, rules: &str) -> Result<()> {
    let mut child = namespace
        .command("nft")
        .args(["-f", "-"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    if let Some(mut input) = child.stdin.take() {
        input.write_all(rules.as_bytes())?;
    }
    let output = child.wait_with_output()?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!("nft: {}", first_line(&output.stderr)).into()),
    }
}

fn first_line(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    text.lines().next().unwrap_or_default().to_owned()
}

/// A way from clients to members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arm {
    /// No balancing: clients have the members' addresses.
    Router,
    /// A rule with `forward = "kernel"`.
    Kernel,
    /// A rule with `forward = "kernel"` and the strategy `least_connection`.
    KernelLeast,
    /// A rule with `forward = "kernel"` and full NAT.
    KernelNat,
    /// A rule with `forward = "kernel"` and native XDP.
    KernelXdp,
    /// Nothing: packets are dropped at the balancer's first interface.
    Sink,
    /// A TCP rule.
    Proxy,
    /// Destination NAT of nftables, members in turn.
    Nft,
    /// IPVS, members in turn.
    Ipvs,
    /// A UDP rule with `forward = "kernel"`.
    UdpKernel,
    /// A UDP rule with `forward = "kernel"` whose datagrams are sessions of their own.
    UdpSingle,
    /// A UDP rule.
    Udp,
    /// UDP through nginx.
    NginxUdp,
    /// UDP through Envoy.
    EnvoyUdp,
}

impl Arm {
    /// Name in tables and results.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Router => "router",
            Self::Kernel => "kernel",
            Self::KernelLeast => "kernel-least",
            Self::KernelNat => "kernel-nat",
            Self::KernelXdp => "kernel-xdp",
            Self::Sink => "sink",
            Self::Proxy => "proxy",
            Self::Nft => "nft",
            Self::Ipvs => "ipvs",
            Self::UdpKernel => "udp-kernel",
            Self::UdpSingle => "udp-single",
            Self::Udp => "udp-rule",
            Self::NginxUdp => "nginx",
            Self::EnvoyUdp => "envoy",
        }
    }

    fn is_udp(self) -> bool {
        matches!(
            self,
            Self::UdpKernel | Self::UdpSingle | Self::Udp | Self::NginxUdp | Self::EnvoyUdp
        )
    }

    /// Addresses that clients use, in turn.
    pub(crate) fn targets(self) -> Vec<SocketAddr> {
        match self {
            Self::Router | Self::Sink => member_addresses(),
            _ => vec![(BALANCER, PORT).into()],
        }
    }
}

/// A balancer between clients and members.
pub(crate) struct Balancer {
    /// Way of the packets.
    pub(crate) arm: Arm,
    /// Process of the balancer, if it has one. Ends before its namespace.
    pub(crate) server: Option<Server>,
    /// Machines of this balancer alone.
    pub(crate) ground: Arc<Ground>,
    /// Folder with its configuration and its log.
    folder: PathBuf,
}

impl Balancer {
    /// Starts a balancer on processor `cpu` in front of these members, which must serve already. `more` are lines for
    /// the rule of Evenkeel.
    ///
    /// # Errors
    ///
    /// Returns an error if the program is not there, or does not serve in time.
    pub(crate) fn start(
        run: &Run,
        arm: Arm,
        ground: impl Into<Arc<Ground>>,
        cpu: usize,
        members: &[SocketAddr],
        more: &str,
    ) -> Result<Self> {
        let ground = ground.into();
        let front = &ground.pair.front;
        let folder = run
            .places
            .cache
            .join("run")
            .join(format!("l4-{}", arm.name()));
        fs::create_dir_all(&folder)?;
        let (command, death_signal) = match arm {
            Arm::Router | Arm::Sink => (None, 0),
            Arm::Nft => {
                load_nft(front, &dnat(members))?;
                // Else the table of connections fills with those that are closed.
                let closed = "net/netfilter/nf_conntrack_tcp_timeout_time_wait";
                set_sysctl(front, closed, "10")?;
                (None, 0)
            }
            Arm::Ipvs => {
                start_ipvs(front, members)?;
                (None, 0)
            }
            Arm::Kernel
            | Arm::KernelLeast
            | Arm::KernelNat
            | Arm::KernelXdp
            | Arm::Proxy
            | Arm::Udp
            | Arm::UdpKernel
            | Arm::UdpSingle => {
                if arm == Arm::UdpSingle {
                    // Each query takes a port that rests for a second: as many as the manual leaves for high rates.
                    set_sysctl(front, "net/ipv4/ip_local_port_range", "20000 29999")?;
                }
                let file = folder.join(CONFIG);
                fs::write(&file, evenkeel_config(arm, members, more))?;
                let mut command = front.command(&run.evenkeel);
                command.arg("run").arg(file);
                (Some(command), libc::SIGKILL)
            }
            Arm::NginxUdp => {
                let program = Peer::NginxSystem.install(&run.places)?;
                let file = folder.join("nginx.conf");
                fs::write(&file, nginx_config(&folder, members))?;
                let mut command = front.command(program);
                command.arg("-p").arg(&folder).arg("-c").arg(file);
                // The master takes its worker along only if it is asked to end.
                (Some(command), libc::SIGTERM)
            }
            Arm::EnvoyUdp => {
                let program = Peer::Envoy.install(&run.places)?;
                let file = folder.join("envoy.yaml");
                fs::write(&file, envoy_config(members))?;
                let mut command = front.command(program);
                command
                    .args(["--concurrency", "1", "--disable-hot-restart"])
                    .args(["--log-level", "warning", "-c"])
                    .arg(file);
                (Some(command), libc::SIGTERM)
            }
        };
        let server = match command {
            Some(command) => Some(start_server(command, &folder, cpu, death_signal)?),
            None => None,
        };
        Ok(Balancer {
            arm,
            server,
            ground,
            folder,
        })
    }

    /// Waits until the balancer serves, in the way that the arm means.
    ///
    /// # Errors
    ///
    /// Returns an error if the balancer does not serve in time.
    pub(crate) fn wait_until_ready(&self) -> Result<()> {
        self.wait_until_forwarding()?;
        self.wait_until(|| {
            let target = self.arm.targets()[0];
            let asked = self.ground.clients.run_inside(|| match self.arm.is_udp() {
                true => ask_datagram(target),
                false => TcpStream::connect_timeout(&target, Duration::from_secs(2)).map(drop),
            });
            Ok(asked?)
        })
    }

    /// Waits until the kernel forwards the rule's connections, if the arm is such a rule.
    ///
    /// # Errors
    ///
    /// Returns an error if the kernel does not forward in time.
    pub(crate) fn wait_until_forwarding(&self) -> Result<()> {
        match self.arm {
            Arm::Kernel
            | Arm::KernelLeast
            | Arm::KernelNat
            | Arm::KernelXdp
            | Arm::UdpKernel
            | Arm::UdpSingle => self.wait_until(|| self.check_forwarding()),
            _ => Ok(()),
        }
    }

    /// Waits until both interfaces have native XDP.
    ///
    /// # Errors
    ///
    /// Returns an error if they do not have it in time.
    pub(crate) fn wait_until_xdp(&self) -> Result<()> {
        self.wait_until(|| {
            let answer = self.ask_admin("/v1/forward")?;
            let has_both = answer.matches("\"program\":\"xdp\"").count() == 2;
            has_both.then_some(()).ok_or(answer.into())
        })
    }

    /// Waits until something holds.
    ///
    /// # Errors
    ///
    /// Returns the last error if it does not hold in time.
    pub(crate) fn wait_until(&self, holds: impl Fn() -> Result<()>) -> Result<()> {
        let deadline = Instant::now() + START_LIMIT;
        loop {
            let Err(error) = holds() else { return Ok(()) };
            if Instant::now() > deadline {
                return Err(format!("{} does not serve: {error}", self.arm.name()).into());
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn check_forwarding(&self) -> Result<()> {
        let status = self.ask_admin("/v1/status")?;
        if status.contains("\"forward\":\"kernel\"") {
            return Ok(());
        }
        let from = status.find("\"forward\"").unwrap_or_default();
        let state: String = status.chars().skip(from).take(200).collect();
        Err(format!("the kernel does not forward: {state}").into())
    }

    /// Writes another configuration for Evenkeel, which has no effect before a reload.
    ///
    /// # Errors
    ///
    /// Returns an error if the file cannot be written.
    pub(crate) fn write_config(&self, members: &[SocketAddr], more: &str) -> Result<()> {
        let config = evenkeel_config(self.arm, members, more);
        Ok(fs::write(self.folder.join(CONFIG), config)?)
    }

    /// Returns the answer of the admin API, without spaces.
    ///
    /// # Errors
    ///
    /// Returns an error if the API does not answer.
    pub(crate) fn ask_admin(&self, path: &str) -> Result<String> {
        self.call_admin("GET", path)
    }

    /// Has the admin API do something, and returns the answer, without spaces.
    ///
    /// # Errors
    ///
    /// Returns an error if the API does not answer, or refuses.
    pub(crate) fn post_admin(&self, path: &str) -> Result<String> {
        let answer = self.call_admin("POST", path)?;
        match answer.starts_with("HTTP/1.1200") {
            true => Ok(answer),
            false => Err(format!("POST {path}: {answer}").into()),
        }
    }

    fn call_admin(&self, method: &str, path: &str) -> Result<String> {
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        );
        let answer = self.ground.pair.front.run_inside(|| {
            let mut stream = TcpStream::connect(ADMIN)?;
            stream.set_read_timeout(Some(START_LIMIT))?;
            stream.write_all(request.as_bytes())?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer).map(|_| answer)
        })?;
        Ok(answer.split_whitespace().collect())
    }
}

/// Sends a datagram, and waits for the answer.
fn ask_datagram(target: SocketAddr) -> std::io::Result<()> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    socket.connect(target)?;
    socket.set_read_timeout(Some(Duration::from_millis(200)))?;
    socket.send(&[0; 64])?;
    socket.recv(&mut [0; 64]).map(drop)
}

fn start_server(
    mut command: Command,
    folder: &Path,
    cpu: usize,
    death_signal: i32,
) -> Result<Server> {
    let log = File::create(folder.join("log"))?;
    command
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log);
    Server::start(command, cpu, death_signal)
        .map_err(|error| format!("cannot start the balancer: {error}").into())
}

fn dnat(members: &[SocketAddr]) -> String {
    let map: Vec<String> = members
        .iter()
        .enumerate()
        .map(|(number, member)| format!("{number} : {}", member.ip()))
        .collect();
    format!(
        "table ip l4 {{\n chain before {{\n  type nat hook prerouting priority dstnat;\n  \
         ip daddr {BALANCER} tcp dport {PORT} dnat to numgen inc mod {} map {{ {} }}\n }}\n}}\n",
        members.len(),
        map.join(", ")
    )
}

fn start_ipvs(front: &Namespace, members: &[SocketAddr]) -> Result<()> {
    let service = format!("{BALANCER}:{PORT}");
    let mut calls = vec![vec![
        "-A".to_owned(),
        "-t".into(),
        service.clone(),
        "-s".into(),
        "rr".into(),
    ]];
    for member in members {
        let member = member.to_string();
        calls.push(vec![
            "-a".into(),
            "-t".into(),
            service.clone(),
            "-r".into(),
            member,
            "-m".into(),
        ]);
    }
    if !Path::new("/proc/net/ip_vs").exists() {
        // Loads the module, if there is one.
        let _ = Command::new("ipvsadm").arg("-L").output();
    }
    if !Path::new("/proc/net/ip_vs").exists() {
        return Err("this kernel has no IPVS, or ipvsadm is not installed".into());
    }
    for call in calls {
        let output = front.command("ipvsadm").args(&call).output()?;
        if !output.status.success() {
            return Err(format!("ipvsadm: {}", first_line(&output.stderr)).into());
        }
    }
    Ok(())
}

fn evenkeel_config(arm: Arm, members: &[SocketAddr], more: &str) -> String {
    let members: Vec<String> = members
        .iter()
        .map(|member| format!("\"{member}\""))
        .collect();
    let kind = match arm {
        Arm::UdpKernel => "protocol = \"udp\"\nforward = \"kernel\"",
        Arm::UdpSingle => {
            "protocol = \"udp\"\nforward = \"kernel\"\nreturn_path = \"nat\"\n\
             udp = { session = \"datagram\" }"
        }
        Arm::Udp => "protocol = \"udp\"\nudp = { session = \"datagram\" }",
        Arm::Proxy => "protocol = \"tcp\"",
        Arm::KernelLeast => {
            "protocol = \"tcp\"\nforward = \"kernel\"\nstrategy = \"least_connection\""
        }
        Arm::KernelNat => "protocol = \"tcp\"\nforward = \"kernel\"\nreturn_path = \"nat\"",
        _ => "protocol = \"tcp\"\nforward = \"kernel\"",
    };
    format!(
        "workers = 1\n[admin]\nlisten = \"{ADMIN}\"\n[rule.l4]\nlisten = \"{BALANCER}:{PORT}\"\n\
         {kind}\nmembers = [{}]\n{more}\n",
        members.join(", ")
    )
}

fn nginx_config(folder: &Path, members: &[SocketAddr]) -> String {
    let servers: String = members
        .iter()
        .map(|member| format!("  server {member};\n"))
        .collect();
    let folder = folder.display();
    format!(
        "load_module {NGINX_STREAM_MODULE};\ndaemon off;\nworker_processes 1;\nworker_rlimit_nofile 65536;\n\
         error_log stderr;\npid {folder}/pid;\nevents {{ worker_connections 60000; }}\nstream {{\n \
         upstream members {{\n{servers} }}\n server {{\n  listen {BALANCER}:{PORT} udp;\n  \
         proxy_pass members;\n  proxy_requests 1;\n  proxy_responses 1;\n  proxy_timeout 2s;\n }}\n}}\n"
    )
}

/// Configuration of Envoy. A session ends after a second of rest: Envoy cannot end a session with the answer.
fn envoy_config(members: &[SocketAddr]) -> String {
    let endpoints: String = members
        .iter()
        .map(|member| {
            format!(
                "      - endpoint: {{ address: {{ socket_address: {{ protocol: UDP, address: {}, port_value: {} }} }} }}\n",
                member.ip(),
                member.port()
            )
        })
        .collect();
    let types = "type.googleapis.com/envoy.extensions.filters.udp.udp_proxy.v3";
    format!(
        "static_resources:\n  listeners:\n  - name: l4\n    address: {{ socket_address: {{ protocol: UDP, \
         address: {BALANCER}, port_value: {PORT} }} }}\n    listener_filters:\n    - name: \
         envoy.filters.udp_listener.udp_proxy\n      typed_config:\n        '@type': {types}.UdpProxyConfig\n        \
         stat_prefix: l4\n        idle_timeout: 1s\n        matcher:\n          on_no_match:\n            action:\n              \
         name: route\n              typed_config: {{ '@type': {types}.Route, cluster: members }}\n  clusters:\n  - name: \
         members\n    type: STATIC\n    lb_policy: ROUND_ROBIN\n    circuit_breakers: {{ thresholds: [{{ max_connections: \
         100000 }}] }}\n    load_assignment:\n      cluster_name: members\n      endpoints:\n      - lb_endpoints:\n"
    ) + &endpoints.replace("      - endpoint", "        - endpoint")
}
