//! `evenkeel kernel attach`, `detach` and `status`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use evenkeel_kernel::query::DEFAULT_PORT;

use crate::Failure;

/// How the responder gets at packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    /// The first of the others that works
    #[default]
    Auto,
    /// XDP in the driver
    Native,
    /// XDP in front of the network stack: works with every driver
    Generic,
    /// Traffic control: works beside another XDP program
    Tc,
}

/// `evenkeel kernel attach`.
#[derive(Debug, Args)]
pub struct Attach {
    /// The network interface by which balancers reach this machine
    pub interface: String,
    /// Keys that balancers may use: a line each, HEX or NUMBER:HEX with 32 hexadecimal
    /// digits. Nobody but the owner may be able to read the file
    #[arg(long, value_name = "FILE")]
    pub key_file: PathBuf,
    /// Whom to answer: an address or a network like 10.0.0.0/8; may be repeated
    #[arg(long = "allow", value_name = "CIDR", required = true)]
    pub allow: Vec<String>,
    /// The UDP port of the responder
    #[arg(long, default_value_t = DEFAULT_PORT)]
    pub port: u16,
    /// A TCP port whose backlog of connections is told; up to 16
    #[arg(long = "listen-port", value_name = "PORT")]
    pub listen_ports: Vec<u16>,
    /// A cgroup (a container, say) whose load can be asked for, too: NUMBER=PATH, with a
    /// target number from 1 to 63 and the path of its folder; may be repeated
    #[arg(long = "cgroup", value_name = "NUMBER=PATH")]
    pub cgroups: Vec<String>,
    /// Most queries per second that an address gets answered; 0 is any number
    #[arg(long, default_value_t = 2000)]
    pub rate: u32,
    /// How it gets at packets
    #[arg(long, value_enum, default_value_t)]
    pub mode: Mode,
    #[command(flatten)]
    pub pin: Pin,
}

/// Where a responder's programs and maps are held.
#[derive(Debug, Args)]
pub struct Pin {
    /// Folder in a BPF file system that holds what is loaded, one for each interface
    /// [default: /sys/fs/bpf/evenkeel/INTERFACE]
    #[arg(long = "pin", value_name = "FOLDER")]
    pub folder: Option<PathBuf>,
}

/// `evenkeel kernel detach`.
#[derive(Debug, Args)]
pub struct Detach {
    /// The network interface
    pub interface: String,
    #[command(flatten)]
    pub pin: Pin,
}

/// `evenkeel kernel status`.
#[derive(Debug, Args)]
pub struct Status {
    /// The network interface
    pub interface: String,
    /// As JSON
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

    pub fn attach(_args: &Attach) -> Result<(), Failure> {
        lacking()
    }

    pub fn detach(_args: &Detach) -> Result<(), Failure> {
        lacking()
    }

    pub fn status(_args: &Status) -> Result<(), Failure> {
        lacking()
    }
}
#[cfg(not(feature = "bpf"))]
pub use lacking::{attach, detach, status};
#[cfg(feature = "bpf")]
mod with {
    use super::*;

    fn later<T>() -> Result<T, Failure> {
        Err(Failure::new("not there yet"))
    }

    pub fn attach(_args: &Attach) -> Result<(), Failure> {
        later()
    }

    pub fn detach(_args: &Detach) -> Result<(), Failure> {
        later()
    }

    pub fn status(_args: &Status) -> Result<(), Failure> {
        later()
    }
}
#[cfg(feature = "bpf")]
pub use with::{attach, detach, status};
