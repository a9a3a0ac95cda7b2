//! `evenkeel kernel attach`, `detach` and `status`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use evenkeel_kernel::query::DEFAULT_PORT;

use crate::Failure;

/// Ways in which the responder receives packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum Mode {
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
pub(super) struct Attach {
    /// The network interface by which balancers reach this machine
    pub interface: String,
    /// Keys that balancers may use: a line each, HEX or NUMBER:HEX with 32 hexadecimal
    /// digits. The file must be readable only for its owner
    #[arg(long, value_name = "FILE")]
    pub key_file: PathBuf,
    /// Allowed clients: an address or a network like 10.0.0.0/8; may be repeated
    #[arg(long = "allow", value_name = "CIDR", required = true)]
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
pub(super) struct Pin {
    /// Folder in a BPF file system for the loaded objects, one for each interface
    /// [default: /sys/fs/bpf/evenkeel/INTERFACE]
    #[arg(long = "pin", value_name = "FOLDER")]
    pub folder: Option<PathBuf>,
}

/// `evenkeel kernel detach`.
#[derive(Debug, Args)]
pub(super) struct Detach {
    /// The network interface
    pub interface: String,
    #[command(flatten)]
    pub pin: Pin,
}

/// `evenkeel kernel status`.
#[derive(Debug, Args)]
pub(super) struct Status {
    /// The network interface
    pub interface: String,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub pin: Pin,
}

#[cfg(not(feature = "bpf"))]
mod lacking {
    use super::*;

    fn lacking<T>() -> Result<T, Failure> {
        Err(Failure::new(
            "this evenkeel was built without BPF; build it with `cargo build --features kernel` \
             (needs clang, libelf-dev, zlib1g-dev, pkg-config), or report the load of this \
             machine with `evenkeel agent`",
        ))
    }

    pub(crate) fn attach(_args: &Attach) -> Result<(), Failure> {
        lacking()
    }

    pub(crate) fn detach(_args: &Detach) -> Result<(), Failure> {
        lacking()
    }

    pub(crate) fn status(_args: &Status) -> Result<(), Failure> {
        lacking()
    }
}
#[cfg(not(feature = "bpf"))]
pub(super) use lacking::{attach, detach, status};
#[cfg(feature = "bpf")]
mod with {
    use evenkeel_kernel::attach::{self as responder, Options};
    use evenkeel_kernel::{host, keys};
    use evenkeel_net::key_file;

    use super::*;
    use crate::print;

    fn cgroup(text: &str) -> Result<(u16, PathBuf), Failure> {
        let parsed = text.split_once('=').and_then(|(number, path)| {
            let path = PathBuf::from(path);
            Some((number.parse().ok()?, path)).filter(|(_, path)| path.is_absolute())
        });
        parsed.ok_or_else(|| {
            Failure::new(format!(
                "--cgroup {text}: a number, an equals sign and an absolute path are needed"
            ))
        })
    }

    pub(crate) fn attach(args: &Attach) -> Result<(), Failure> {
        let allow = args
            .allow
            .iter()
            .map(|text| text.parse().map_err(Failure::of));
        let cgroups = args.cgroups.iter().map(|text| cgroup(text));
        let options = Options {
            interface: args.interface.clone(),
            folder: args.pin.folder.clone(),
            port: args.port,
            keys: key_file::load_parsed(&args.key_file, keys::parse).map_err(Failure::of)?,
            allow: allow.collect::<Result<_, _>>()?,
            hosts: host::list_own_hosts(&args.hosts).map_err(Failure::of)?,
            ports: args.listen_ports.clone(),
            cgroups: cgroups.collect::<Result<_, _>>()?,
            rate: args.rate,
            mode: match args.mode {
                Mode::Auto => None,
                Mode::Native => Some(responder::Mode::Native),
                Mode::Generic => Some(responder::Mode::Generic),
                Mode::Tc => Some(responder::Mode::Tc),
            },
        };
        let mode = responder::attach(&options).map_err(Failure::of)?;
        print(format!(
            "{}: the kernel answers load queries on UDP port {} ({})\n",
            args.interface,
            args.port,
            mode.in_words()
        ))
    }

    pub(crate) fn detach(args: &Detach) -> Result<(), Failure> {
        if responder::detach(&args.interface, args.pin.folder.as_deref()).map_err(Failure::of)? {
            print(format!("{}: detached\n", args.interface))
        } else {
            Err(none(&args.interface))
        }
    }

    fn none(interface: &str) -> Failure {
        Failure::new(format!(
            "{interface}: no responder on this interface (if it was attached with --pin, use the same option here)"
        ))
    }

    pub(crate) fn status(args: &Status) -> Result<(), Failure> {
        let status = responder::status(&args.interface, args.pin.folder.as_deref());
        let status = status.map_err(Failure::of)?;
        let status = status.ok_or_else(|| none(&args.interface))?;
        print(if args.json {
            format!("{}\n", status.to_json(&args.interface))
        } else {
            status.text()
        })
    }
}
#[cfg(feature = "bpf")]
pub(super) use with::{attach, detach, status};
