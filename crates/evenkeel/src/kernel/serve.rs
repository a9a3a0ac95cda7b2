//! `evenkeel kernel serve`: load records at an interval, by a process.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use evenkeel_kernel::keys;
use evenkeel_kernel::network::Network;
use evenkeel_kernel::priority::{self, PrivateCgroup};
use evenkeel_kernel::serve::{Options, ServeError, Server};
use evenkeel_net::key_file;

use crate::cli::Log;
use crate::{Failure, process};

/// Source of records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum From {
    /// /proc, and the files of cgroups: any kernel, and no rights
    #[default]
    Proc,
    /// The kernel's own load page: BPF programs keep it current (the machine only)
    Kernel,
}

/// `evenkeel kernel serve`.
#[derive(Debug, Args)]
pub(super) struct Serve {
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

/// Serves until it is told to end.
pub(super) fn serve(args: &Serve) -> Result<(), Failure> {
    let mut options = Options {
        from_kernel: args.source == From::Kernel,
        interval: args.interval,
        shared: args.shared.clone(),
        rdma: args.rdma,
        respond: args.respond,
        cached: args.cached,
        keys: Vec::new(),
        allow: args.allow.clone(),
        hosts: args.hosts.clone(),
        rate: args.rate,
        ports: args.listen_ports.clone(),
        cgroups: args.cgroups.clone(),
    };
    options.check().map_err(failure)?;
    process::start_log_of(&args.log)?;
    // Before anything else begins, so that all of it has it.
    let _own = if args.own_cgroup {
        Some(PrivateCgroup::enter(args.fifo.is_some()).map_err(Failure::of)?)
    } else {
        None
    };
    if let Some(value) = args.nice {
        priority::set_nice_value(value).map_err(Failure::of)?;
    }
    if let Some(priority) = args.fifo {
        priority::set_fifo_class(priority).map_err(Failure::of)?;
    }
    if let Some(path) = &args.key_file {
        options.keys = key_file::load_parsed(path, keys::parse).map_err(Failure::of)?;
    }
    let server = Server::start(options).map_err(failure)?;
    let runtime = process::build_runtime()?;
    runtime.block_on(async {
        let stop = process::end_signal("ending")?;
        server
            .run(stop, process::announce_ready)
            .await
            .map_err(failure)
    })
}

fn failure(error: ServeError) -> Failure {
    Failure {
        code: if error.is_usage() { 2 } else { 1 },
        message: error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

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
