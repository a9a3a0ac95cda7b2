//! Arguments of `evenkeel kernel`.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use evenkeel_kernel::network::Network;
use evenkeel_kernel::query::DEFAULT_PORT;

use super::log::Log;

/// `evenkeel kernel`.
#[derive(Debug, Args)]
pub(crate) struct Kernel {
    #[command(subcommand)]
    pub command: KernelCommand,
}

/// Commands of `evenkeel kernel`.
#[derive(Debug, Subcommand)]
pub(crate) enum KernelCommand {
    /// Let the kernel of this machine answer load queries on an interface
    ///
    /// Loads a BPF program and ends: no process stays. A second `attach` to the same
    /// interface changes keys, sources, targets and so on without interruption.
    /// Needs root, or CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON.
    ///
    /// With --receive: let this machine, a member, receive packets to the addresses of rules with
    /// return_path = "direct", and answer nobody who looks for these addresses in its networks.
    /// With --balancers, too: take these packets out of the tunnels of balancers, for rules with
    /// return_path = "tunnel".
    Attach(Attach),
    /// Remove the responder from an interface, or the program that forwards connections, completely
    ///
    /// With --forwarding: the program that forwards connections of rules with forward = "kernel",
    /// of all versions, from all interfaces. New connections no longer begin in the kernel; the
    /// command waits until no connection is left in the kernel, and removes programs and tables. If you
    /// interrupt the command, the connections continue, and you can run the command again.
    /// With --receive: undo `attach --receive`.
    Detach(Detach),
    /// Show the responder of an interface, and its counters
    Status(Status),
    /// Provide load records from a process
    ///
    /// For kernels that allow no BPF program (--respond), for a balancer on the same machine
    /// (--shared), and for networks with RDMA (--rdma). SIGTERM and SIGINT end it.
    Serve(Box<Serve>),
    /// Query a back-end for its load as a balancer does, and show the answer
    Query(Query),
    /// Show the packets of one client, and where the kernel has sent each of them
    ///
    /// For rules with forward = "kernel", on the balancer's machine, beside a balancer that runs or without one. Native
    /// XDP leaves all packets to tc meanwhile. Needs root.
    Trace(Trace),
}

/// Ways in which the responder receives packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Mode {
    /// The first of the following that works
    #[default]
    Auto,
    /// XDP in the driver
    Native,
    /// XDP before the network stack: works with every driver
    Generic,
    /// Traffic control: works with another XDP program on the interface
    Tc,
}

/// `evenkeel kernel attach`.
#[derive(Debug, Args)]
pub(crate) struct Attach {
    /// Receive packets to the addresses of rules with return_path = "direct" or "tunnel": an
    /// address, or several with commas. Other options but --balancers are for the responder, and
    /// not for this
    #[arg(
        long,
        value_name = "ADDRESS",
        value_delimiter = ',',
        conflicts_with_all = [
            "interface", "key_file", "allow", "hosts", "port", "listen_ports", "cgroups", "rate",
            "mode", "folder",
        ]
    )]
    pub receive: Vec<IpAddr>,
    /// Take packets out of the tunnels of balancers with these addresses, for rules with
    /// return_path = "tunnel". A second call replaces the addresses
    #[arg(
        long,
        value_name = "ADDRESS",
        value_delimiter = ',',
        requires = "receive"
    )]
    pub balancers: Vec<IpAddr>,
    /// The network interface by which balancers reach this machine
    #[arg(required_unless_present = "receive")]
    pub interface: Option<String>,
    /// Keys that balancers may use: a line each, HEX or NUMBER:HEX with 32 hexadecimal
    /// digits. The file must be readable only for its owner
    #[arg(long, value_name = "FILE", required_unless_present = "receive")]
    pub key_file: Option<PathBuf>,
    /// Allowed clients: an address or a network like 10.0.0.0/8; may be repeated
    #[arg(
        long = "allow",
        value_name = "CIDR",
        required_unless_present = "receive"
    )]
    pub allow: Vec<String>,
    /// A name or address by which balancers query this machine, instead of the addresses
    /// that it has now; needed with address translation, for instance. It is `host` in the balancer's
    /// [group.NAME.monitor]; may be repeated. Queries for other hosts are not answered
    #[arg(long = "host", value_name = "NAME")]
    pub hosts: Vec<String>,
    /// The UDP port of the responder
    #[arg(long, default_value_t = DEFAULT_PORT)]
    pub port: u16,
    /// A TCP port whose listen backlog is reported; may be repeated, up to 16
    #[arg(long = "listen-port", value_name = "PORT")]
    pub listen_ports: Vec<u16>,
    /// A cgroup (such as a container) whose load is reported, too: NUMBER=PATH, with a
    /// target number from 1 to 63 and the path of its folder; may be repeated
    #[arg(long = "cgroup", value_name = "NUMBER=PATH")]
    pub cgroups: Vec<String>,
    /// Maximum queries per second and client address; 0 is no limit
    #[arg(long, default_value_t = 2000)]
    pub rate: u32,
    /// Way in which the responder receives packets
    #[arg(long, value_enum, default_value_t)]
    pub mode: Mode,
    #[command(flatten)]
    pub pin: Pin,
}

/// Place where a responder's programs and maps are pinned.
#[derive(Debug, Args)]
pub(crate) struct Pin {
    /// Folder in a BPF file system for the loaded objects, one for each interface
    /// [default: /sys/fs/bpf/evenkeel/INTERFACE]
    #[arg(long = "pin", value_name = "FOLDER")]
    pub folder: Option<PathBuf>,
}

/// `evenkeel kernel detach`.
#[derive(Debug, Args)]
pub(crate) struct Detach {
    /// The network interface of the responder
    #[arg(required_unless_present_any = ["forwarding", "receive"])]
    pub interface: Option<String>,
    /// Receive packets to these addresses no longer; without an address, to none
    #[arg(
        long,
        value_name = "ADDRESS",
        value_delimiter = ',',
        num_args = 0..,
        exclusive = true
    )]
    pub receive: Option<Vec<IpAddr>>,
    /// Remove the program that forwards connections of rules with forward = "kernel"
    #[arg(long, conflicts_with_all = ["interface", "folder"])]
    pub forwarding: bool,
    /// Do not wait for connections: those in the kernel are cut
    #[arg(long, requires = "forwarding")]
    pub now: bool,
    /// Do not wait for connections without a packet for this time, and cut them: the idle_timeout of
    /// your rules [default: 10m]
    #[arg(
        long,
        value_name = "TIME",
        requires = "forwarding",
        conflicts_with = "now",
        value_parser = idle_time
    )]
    pub idle_timeout: Option<Duration>,
    #[command(flatten)]
    pub pin: Pin,
}

/// `evenkeel kernel trace`.
#[derive(Debug, Args)]
pub(crate) struct Trace {
    /// The client: an address, or an address with a port, such as 192.0.2.7:40000 or [2001:db8::7]:40000
    #[arg(value_name = "CLIENT", value_parser = client)]
    pub client: (IpAddr, u16),
    /// Time after which the trace ends: 1ms to 10m
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = interval)]
    pub time: Duration,
    /// Number of packets after which the trace ends
    #[arg(long, value_name = "NUMBER", default_value_t = 1000)]
    pub packets: usize,
    /// Print JSON: one object for each packet
    #[arg(long)]
    pub json: bool,
}

/// `evenkeel kernel status`.
#[derive(Debug, Args)]
pub(crate) struct Status {
    /// The network interface
    #[arg(required_unless_present = "receive")]
    pub interface: Option<String>,
    /// Show the tunnels that end at this machine (`attach --receive`), and their packets
    #[arg(long, conflicts_with_all = ["interface", "folder"])]
    pub receive: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub pin: Pin,
}

/// Source of records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum From {
    /// /proc, and the files of cgroups: any kernel, and no rights
    #[default]
    Proc,
    /// The kernel's own load page: BPF programs keep it current (the machine only)
    Kernel,
}

/// `evenkeel kernel serve`.
#[derive(Debug, Args)]
pub(crate) struct Serve {
    /// Source of the records
    #[arg(long, value_enum, default_value_t)]
    pub source: From,
    /// Interval between two records: 1ms to 10m
    #[arg(long, value_name = "TIME", default_value = "50ms", value_parser = interval)]
    pub interval: Duration,
    /// Write the record to a file in memory, for a balancer on this machine; for instance in /run or
    /// /dev/shm
    #[arg(long, value_name = "PATH")]
    pub shared: Option<PathBuf>,
    /// Offer the record for reading over RDMA
    #[arg(long, value_name = "ADDRESS:PORT", requires = "allow")]
    pub rdma: Option<SocketAddr>,
    /// Answer load queries over UDP, as `attach` lets the kernel do
    #[arg(
        long,
        value_name = "ADDRESS:PORT",
        requires = "allow",
        requires = "key_file"
    )]
    pub respond: Option<SocketAddr>,
    /// Answer with the record of the last interval, not with a new one for each query
    #[arg(long, requires = "respond")]
    pub cached: bool,
    /// Keys that balancers may use: a line each, HEX or NUMBER:HEX with 32 hexadecimal
    /// digits. The file must be readable only for its owner
    #[arg(long, value_name = "FILE")]
    pub key_file: Option<PathBuf>,
    /// Allowed clients: an address or a network like 10.0.0.0/8; may be repeated
    #[arg(long = "allow", value_name = "CIDR")]
    pub allow: Vec<Network>,
    /// A name or address by which balancers query this machine, instead of the addresses
    /// that it has; needed with address translation, for instance. It is `host` in the balancer's
    /// [group.NAME.monitor]; may be repeated. Queries for other hosts are not answered
    #[arg(long = "host", value_name = "NAME", requires = "respond")]
    pub hosts: Vec<String>,
    /// Maximum queries per second and client address; 0 is no limit
    #[arg(long, default_value_t = 2000)]
    pub rate: u32,
    /// A TCP port whose listen backlog is reported; may be repeated, up to 16
    #[arg(long = "listen-port", value_name = "PORT")]
    pub listen_ports: Vec<u16>,
    /// A cgroup (such as a container) whose load is reported, too: NUMBER=PATH, with a
    /// target number from 1 to 63 and the path of its folder; may be repeated. Without a
    /// number, it is reported instead of the machine (target 0), which --shared and
    /// --rdma report
    #[arg(long = "cgroup", value_name = "[NUMBER=]PATH", value_parser = target)]
    pub cgroups: Vec<(u16, String)>,
    /// Run in a cgroup of its own with the maximum weight
    #[arg(long)]
    pub own_cgroup: bool,
    /// Run in the real-time class SCHED_FIFO with this priority, from 1 to 99
    #[arg(long, value_name = "PRIORITY", value_parser = clap::value_parser!(u8).range(1..=99))]
    pub fifo: Option<u8>,
    /// Run with this nice value, from -20 to 19
    #[arg(
        long,
        value_name = "VALUE",
        allow_hyphen_values = true,
        conflicts_with = "fifo",
        value_parser = clap::value_parser!(i8).range(-20..=19)
    )]
    pub nice: Option<i8>,
    /// The log.
    #[command(flatten)]
    pub log: Log,
}

fn interval(text: &str) -> Result<Duration, String> {
    let (least, most) = (Duration::from_millis(1), Duration::from_secs(600));
    let time = evenkeel_config::parse_duration(text).filter(|time| (least..=most).contains(time));
    time.ok_or_else(|| "expected a time from 1ms to 10m, such as 50ms or 2s".into())
}

fn client(text: &str) -> Result<(IpAddr, u16), String> {
    let address = text.parse::<SocketAddr>();
    let with_port = address.map(|address| (address.ip(), address.port()));
    with_port
        .or_else(|_| text.parse().map(|ip| (ip, 0)))
        .map_err(|_| "expected an address, or an address and a port, such as 192.0.2.7 or [2001:db8::7]:40000".into())
}

fn idle_time(text: &str) -> Result<Duration, String> {
    evenkeel_config::parse_duration(text).ok_or_else(|| "expected a time, such as 90s or 2h".into())
}

fn target(text: &str) -> Result<(u16, String), String> {
    let parse = || {
        let (number, path) = match text.split_once('=') {
            // A folder may have a name with such a sign in it.
            Some((number, path)) if !number.starts_with('/') => (number.parse().ok()?, path),
            _ => (0, text),
        };
        let possible = path.starts_with('/') && number < 64;
        possible.then(|| (number, path.to_owned()))
    };
    let wrong = "expected PATH or NUMBER=PATH with a number up to 63, such as \
                 1=/sys/fs/cgroup/web";
    parse().ok_or_else(|| wrong.into())
}

/// `evenkeel kernel query`.
#[derive(Debug, Args)]
pub(crate) struct Query {
    /// The back-end: a host name or IP address, with a port if it is not 9970
    pub address: String,
    /// The key that the responder knows: a line NUMBER:HEX; the first line is used
    #[arg(long, value_name = "FILE")]
    pub key_file: PathBuf,
    /// The responder's name (its --host) [default: the address that is queried]
    #[arg(long, value_name = "NAME")]
    pub host: Option<String>,
    /// Target: 0 is the machine, others are the responder's --cgroup targets
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u16).range(0..64))]
    pub target: u16,
    /// Show each CPU, too
    #[arg(long)]
    pub cpus: bool,
    /// Show the listen backlogs of the responder's ports, too
    #[arg(long)]
    pub ports: bool,
    /// Time over which rates are measured, and between two records, in milliseconds
    #[arg(long, default_value_t = 200, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..=600_000))]
    pub interval: u64,
    /// Number of records to show
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: u64,
    /// Time limit for an answer, in milliseconds
    #[arg(long, default_value_t = 1000, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..=60_000))]
    pub timeout: u64,
    /// Print a line of JSON for each record
    #[arg(long)]
    pub json: bool,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn clients() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        assert_eq!(client("192.0.2.7"), Ok((ip("192.0.2.7"), 0)));
        assert_eq!(client("192.0.2.7:40000"), Ok((ip("192.0.2.7"), 40000)));
        assert_eq!(client("2001:db8::7"), Ok((ip("2001:db8::7"), 0)));
        assert_eq!(client("[2001:db8::7]:9"), Ok((ip("2001:db8::7"), 9)));
        for bad in ["", "db-1", "192.0.2.7:", "192.0.2.7:70000", "192.0.2.0/24"] {
            assert!(client(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn intervals_and_targets() {
        assert_eq!(interval("1ms"), Ok(Duration::from_millis(1)));
        assert_eq!(interval("2s"), Ok(Duration::from_secs(2)));
        assert_eq!(interval("10m"), Ok(Duration::from_secs(600)));
        assert_eq!(interval("1.5s"), Ok(Duration::from_millis(1500)));
        for bad in [
            "",
            "50",
            "ms",
            "0ms",
            "11m",
            "-1s",
            "1h",
            "99999999999999999999s",
        ] {
            assert!(interval(bad).is_err(), "{bad}");
        }
        assert_eq!(target("63=/web"), Ok((63, "/web".into())));
        assert_eq!(target("/a=b"), Ok((0, "/a=b".into())));
        for bad in ["", "web", "64=/web", "-1=/web", "1=web", "x=/web", "1="] {
            assert!(target(bad).is_err(), "{bad}");
        }
    }
}
