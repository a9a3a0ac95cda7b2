//! `evenkeel kernel serve`: load records at an interval, by a process.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use evenkeel_kernel::network::Network;
use evenkeel_kernel::priority::{self, OwnCgroup};
use evenkeel_kernel::proc::files::Files;
use evenkeel_kernel::proc::{Meter, Settings, cgroup, monotonic_ns, text};
use evenkeel_kernel::rdma::{self, Limits, Memory};
use evenkeel_kernel::record::{MAX_CPUS, PORTS, Whole};
use evenkeel_kernel::respond::{self, Batch, Responder, Verdict};
use evenkeel_kernel::shared::Writer;
use evenkeel_kernel::{host, keys};
use evenkeel_net::key_file;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tracing::{info, warn};

use crate::cli::LogFormat;
use crate::process::{self, Signals};
use crate::{Failure, cli};

/// Datagrams that are answered with one call.
const BATCH: usize = 64;
/// How often it is said what came in beside good queries.
const SAY: Duration = Duration::from_secs(60);
/// How often the addresses of this machine are looked up, by which it goes without a name.
const ADDRESSES: Duration = Duration::from_secs(10);

/// Where records come from.
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
    /// Where records come from
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
    /// What to log to stderr: error, warn, info, debug, trace [default: $RUST_LOG, or info]
    #[arg(long, value_name = "LEVEL")]
    pub log: Option<String>,
    /// Format of log lines
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    pub log_format: LogFormat,
}

impl Serve {
    /// Whether records are made for queries.
    fn fresh(&self) -> bool {
        self.respond.is_some() && !self.cached
    }
}

fn interval(text: &str) -> Result<Duration, String> {
    let (least, most) = (Duration::from_millis(1), Duration::from_secs(600));
    let time = evenkeel_config::duration(text).filter(|time| (least..=most).contains(time));
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
    let wrong = |message: &str| Failure {
        code: 2,
        message: message.into(),
    };
    if args.shared.is_none() && args.rdma.is_none() && args.respond.is_none() {
        return Err(wrong(
            "nothing to do: give --shared, --rdma or --respond, or several of them",
        ));
    }
    if args.listen_ports.len() > PORTS {
        return Err(wrong("more than 16 times --listen-port"));
    }
    let mut targets = BTreeMap::new();
    for (number, path) in &args.cgroups {
        if targets.insert(*number, Some(path.as_str())).is_some() {
            return Err(wrong(&format!(
                "two cgroups have the target number {number}"
            )));
        }
    }
    let machine = targets.entry(0).or_insert(None).is_none();
    if args.source == From::Kernel && !machine {
        return Err(wrong(
            "--source kernel reports the machine: give the cgroup a number, or leave it out",
        ));
    }
    process::start_log_of(&cli::Run {
        file: PathBuf::new(),
        log: args.log.clone(),
        log_format: args.log_format,
    })?;
    let failed = |error: &dyn std::fmt::Display| Failure::new(error.to_string());
    // Before anything else begins, so that all of it has it.
    let _own = match args.own_cgroup {
        true => Some(OwnCgroup::enter(args.fifo.is_some()).map_err(|error| failed(&error))?),
        false => None,
    };
    if let Some(value) = args.nice {
        priority::nice(value).map_err(|error| failed(&error))?;
    }
    if let Some(priority) = args.fifo {
        priority::fifo(priority).map_err(|error| failed(&error))?;
    }
    let mut records = Records::new(args, &targets)?;
    records.renew_all();
    let first = records.first()?;
    let mut listening = String::new();
    let mut pages = Vec::new();
    if let Some(path) = &args.shared {
        let page = Writer::create(path, cpus(&first)).map_err(|error| failed(&error))?;
        listening.push_str(&format!("page: {}\n", path.display()));
        pages.push(page);
    }
    let ended = Arc::new(AtomicBool::new(false));
    let mut offering = None;
    if let Some(at) = args.rdma {
        let memory: Arc<dyn Memory> = match records.memory() {
            Some(memory) => memory,
            None => {
                let page = Writer::nameless(cpus(&first)).map_err(|error| {
                    Failure::new(format!("no memory for the page to offer: {error}"))
                })?;
                let memory = Arc::clone(page.region());
                pages.push(page);
                memory
            }
        };
        pages.iter_mut().for_each(|page| page.write(&first));
        let allow = args.allow.clone();
        let allowed = move |source| allow.iter().any(|network| network.holds(source));
        let server = rdma::Server::bind(at, memory, Limits::default(), allowed);
        let server = server.map_err(|error| lacking_rdma(&error))?;
        let at = SocketAddr::new(at.ip(), server.port());
        listening.push_str(&format!("listening: rdma on {at}\n"));
        let ended = Arc::clone(&ended);
        offering = Some(thread::spawn(move || offer(server, &ended)));
    }
    pages.iter_mut().for_each(|page| page.write(&first));
    let mut server = None;
    if let Some(at) = args.respond {
        let keys = match &args.key_file {
            Some(path) => key_file::load(path, keys::parse).map_err(|error| failed(&error))?,
            None => Vec::new(),
        };
        let cannot = |error| {
            Failure::new(format!(
                "cannot listen at {at}: {error}; choose another port, or end the process that uses it"
            ))
        };
        let socket = respond::bind(at).map_err(cannot)?;
        let at = socket.local_addr().map_err(cannot)?;
        listening.push_str(&format!("listening: respond on {at}\n"));
        let settings = respond::Settings {
            keys,
            allow: args.allow.clone(),
            hosts: host::own(&args.hosts).map_err(|error| failed(&error))?,
            rate: args.rate,
        };
        server = Some((socket, Responder::new(settings)));
    }
    listening.push_str("ready\n");
    let result = run(args, records, pages, server, &listening);
    ended.store(true, Ordering::Relaxed);
    if let Some(offering) = offering {
        // It has said why, if it ended before.
        let _ = offering.join();
    }
    result
}

/// Without RDMA, there are other ways to be read.
fn lacking_rdma(error: &rdma::Error) -> Failure {
    Failure::new(format!(
        "cannot offer the load over RDMA: {error}. Without it, the load can be read by `evenkeel \
         kernel attach` or `serve --respond`, or reported by `evenkeel agent`"
    ))
}

/// Makes connections until it is told to end. Reads do not need it.
fn offer(mut server: rdma::Server, ended: &AtomicBool) {
    while !ended.load(Ordering::Relaxed) {
        if let Err(error) = server.poll(Duration::from_millis(200)) {
            warn!(%error, "RDMA connections are no longer accepted");
            return;
        }
    }
}

/// Room for CPUs that may come.
fn cpus(first: &Whole) -> usize {
    let possible = Files::new("/").parse("/sys/devices/system/cpu/possible", text::cpu_list);
    let possible = possible.map_or(0, |cpus| cpus as usize);
    possible.max(first.cpus.len()).clamp(1, MAX_CPUS)
}

fn run(
    args: &Serve,
    mut records: Records,
    mut pages: Vec<Writer>,
    server: Option<(std::net::UdpSocket, Responder)>,
    listening: &str,
) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::new(format!("cannot start: {error}")))?;
    runtime.block_on(async {
        let cannot = |error: io::Error| Failure::new(format!("cannot start: {error}"));
        let mut signals = Signals::listen().map_err(cannot)?;
        let timer = timer(args.interval).and_then(watched).map_err(cannot)?;
        let (socket, mut responder) = server.unzip();
        let socket = socket.map(watched);
        let socket = socket.transpose().map_err(cannot)?;
        let mut batch = Batch::new(BATCH);
        let mut said = Said::default();
        let mut looked = Instant::now();
        // Nobody has to read it.
        let _ = io::stdout().lock().write_all(listening.as_bytes());
        let _ = io::stdout().lock().flush();
        process::notify("READY=1");
        // Pages are renewed at the interval, and answers, unless they are made when asked for.
        let at_interval = !pages.is_empty() || args.cached;
        let end = loop {
            let asked = async {
                match &socket {
                    Some(socket) => socket.readable().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                name = signals.end() => break name,
                ready = timer.readable() => {
                    let mut ready = ready.map_err(cannot)?;
                    let mut times = [0; 8];
                    // However many times it was: the record of now is the one that counts.
                    let _ = rustix::io::read(timer.get_ref(), &mut times);
                    ready.clear_ready();
                    if at_interval {
                        records.renew_all();
                        if let Ok(record) = records.last(0) {
                            pages.iter_mut().for_each(|page| page.write(record));
                        }
                    }
                    if let Some(responder) = &mut responder {
                        said.say(responder);
                        if args.hosts.is_empty() && looked.elapsed() >= ADDRESSES {
                            looked = Instant::now();
                            match host::own(&[]) {
                                Ok(hosts) => responder.set_hosts(hosts),
                                Err(error) => warn!(%error, "it keeps using the previous addresses"),
                            }
                        }
                    }
                }
                ready = asked => {
                    let mut ready = ready.map_err(cannot)?;
                    let (Some(socket), Some(responder)) = (&socket, &mut responder) else {
                        continue;
                    };
                    let now = Duration::from_nanos(monotonic_ns());
                    if args.fresh() {
                        records.forget();
                    }
                    let taken = batch.turn(socket.get_ref(), |from, datagram| {
                        let (from, records) = (from.ip(), &mut records);
                        let verdict = responder.answer(from, datagram, now, move |target| {
                            match args.fresh() {
                                true => records.renewed(target),
                                false => records.last(target),
                            }
                        });
                        verdict == Verdict::Answered
                    });
                    match taken {
                        Ok(_) => {}
                        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                            ready.clear_ready();
                        }
                        // What came back of an answer that nobody waited for.
                        Err(_) => {}
                    }
                }
            }
        };
        info!("{end}: ending");
        process::notify("STOPPING=1");
        if let Some(responder) = &responder {
            said.all(responder);
        }
        Ok(())
    })
}

/// Made known to the runtime, which says when something can be read.
fn watched<T: AsRawFd>(file: T) -> io::Result<AsyncFd<T>> {
    // SAFETY: it owns its descriptor, which stays the same while it is registered.
    let watched = unsafe { AsyncFd::register_with_interest(file, Interest::READABLE) };
    watched.map_err(io::Error::from)
}

fn timer(interval: Duration) -> io::Result<rustix::fd::OwnedFd> {
    let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
    let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
    let interval = Timespec {
        tv_sec: interval.as_secs() as i64,
        tv_nsec: interval.subsec_nanos().into(),
    };
    let every = Itimerspec {
        it_interval: interval,
        it_value: interval,
    };
    timerfd_settime(&timer, TimerfdTimerFlags::empty(), &every)?;
    Ok(timer)
}

/// What has been said of the responder's counters.
#[derive(Default)]
struct Said {
    at: Duration,
    bad: u64,
}

impl Said {
    fn say(&mut self, responder: &Responder) {
        let now = Duration::from_nanos(monotonic_ns());
        let counts = responder.counters().iter();
        let bad = counts.filter(|(verdict, _)| *verdict != Verdict::Answered);
        let bad = bad.map(|(_, count)| count).sum();
        if bad != self.bad && (self.at.is_zero() || now - self.at >= SAY) {
            self.at = now;
            self.bad = bad;
            self.all(responder);
        }
    }

    fn all(&self, responder: &Responder) {
        let counts = responder.counters().iter().filter(|(_, count)| *count > 0);
        let counts = counts.map(|(verdict, count)| format!("{} {count}", verdict.name()));
        let counts: Vec<_> = counts.collect();
        if !counts.is_empty() {
            info!("load queries until now: {}", counts.join(", "));
        }
    }
}

/// The records of all targets.
struct Records {
    targets: Vec<Target>,
}

struct Target {
    number: u16,
    source: Source,
    last: Option<Whole>,
    /// It was made since [`Records::forget`].
    new: bool,
    /// It was said that there is none.
    gone: bool,
}

enum Source {
    Proc(Box<Meter>),
    #[cfg(feature = "bpf")]
    Kernel(Box<kernel::Source>),
}

impl Records {
    fn new(args: &Serve, targets: &BTreeMap<u16, Option<&str>>) -> Result<Self, Failure> {
        let mut made = Vec::new();
        for (number, path) in targets {
            let source = match (args.source, path) {
                (From::Kernel, None) => kernel_source(&args.listen_ports)?,
                (_, path) => {
                    let files = Files::new("/");
                    let name = path.map(|path| cgroup::name(&files, path)).transpose();
                    let settings = Settings {
                        cgroup: name.map_err(Failure::new)?,
                        ports: args.listen_ports.clone(),
                    };
                    Source::Proc(Box::new(Meter::new(files, settings)))
                }
            };
            made.push(Target {
                number: *number,
                source,
                last: None,
                new: false,
                gone: false,
            });
        }
        Ok(Records { targets: made })
    }

    /// The first record of target 0, and what it lacks. One that cannot be had at the start
    /// is an error.
    fn first(&mut self) -> Result<Whole, Failure> {
        let mut first = None;
        for target in &mut self.targets {
            let (record, missing) = target.source.make().map_err(|reason| {
                Failure::new(format!("no load of target {}: {reason}", target.number))
            })?;
            for (what, reason) in missing {
                info!(
                    target = target.number,
                    what, reason, "not in the load record"
                );
            }
            if target.number == 0 {
                first = Some(record);
            }
        }
        first.ok_or_else(|| Failure::new("no load of target 0"))
    }

    /// The kernel's own page, if it is one.
    fn memory(&self) -> Option<Arc<dyn Memory>> {
        #[cfg(feature = "bpf")]
        for target in &self.targets {
            if let Source::Kernel(source) = &target.source {
                return Some(source.memory());
            }
        }
        None
    }

    fn renew_all(&mut self) {
        self.targets.iter_mut().for_each(Target::renew);
    }

    fn forget(&mut self) {
        self.targets
            .iter_mut()
            .for_each(|target| target.new = false);
    }

    /// The last record of a target.
    fn last(&self, number: u16) -> Result<&Whole, Verdict> {
        let target = self.targets.iter().find(|target| target.number == number);
        let target = target.ok_or(Verdict::Target)?;
        target.last.as_ref().ok_or(Verdict::Gone)
    }

    /// A record of now: made once since [`Self::forget`].
    fn renewed(&mut self, number: u16) -> Result<&Whole, Verdict> {
        let mut targets = self.targets.iter_mut();
        let target = targets.find(|target| target.number == number);
        let target = target.ok_or(Verdict::Target)?;
        if !target.new {
            target.renew();
        }
        target.last.as_ref().ok_or(Verdict::Gone)
    }
}

impl Target {
    fn renew(&mut self) {
        self.new = true;
        match self.source.make() {
            Ok((mut record, _)) => {
                record.base.target = self.number;
                self.last = Some(record);
                if std::mem::take(&mut self.gone) {
                    info!(target = self.number, "its load is available again");
                }
            }
            // Nobody may take an old one for that of now.
            Err(reason) => {
                self.last = None;
                if !std::mem::replace(&mut self.gone, true) {
                    warn!(target = self.number, reason, "no load");
                }
            }
        }
    }
}

impl Source {
    fn make(&mut self) -> Result<(Whole, Vec<evenkeel_kernel::proc::Missing>), String> {
        match self {
            Source::Proc(meter) => meter.take(),
            #[cfg(feature = "bpf")]
            Source::Kernel(source) => Ok((source.make()?, Vec::new())),
        }
    }
}

#[cfg(not(feature = "bpf"))]
fn kernel_source(_ports: &[u16]) -> Result<Source, Failure> {
    Err(Failure::new(
        "--source kernel needs BPF, and this evenkeel was built without it: build it with \
         `cargo build --features kernel` (needs clang, libelf-dev, zlib1g-dev, pkg-config). \
         --source proc works everywhere, and `evenkeel agent` reports the load of this machine",
    ))
}

#[cfg(feature = "bpf")]
fn kernel_source(ports: &[u16]) -> Result<Source, Failure> {
    let source = kernel::Source::new(ports).map_err(|error| {
        Failure::new(format!("--source kernel: {error}; so does --source proc"))
    })?;
    Ok(Source::Kernel(Box::new(source)))
}

#[cfg(feature = "bpf")]
mod kernel {
    use std::sync::Arc;

    use evenkeel_kernel::bpf::BpfError;
    use evenkeel_kernel::page::{Follower, KernelPage};
    use evenkeel_kernel::rdma::Memory;
    use evenkeel_kernel::record::Whole;

    /// The kernel's own page, which goes when this is dropped.
    pub(super) struct Source {
        page: KernelPage,
        follower: Follower,
        buffer: Vec<u8>,
    }

    impl Source {
        pub(super) fn new(ports: &[u16]) -> Result<Self, BpfError> {
            Ok(Source {
                page: KernelPage::load(ports)?,
                follower: Follower::default(),
                buffer: Vec::new(),
            })
        }

        pub(super) fn memory(&self) -> Arc<dyn Memory> {
            Arc::clone(self.page.mapping()) as Arc<dyn Memory>
        }

        pub(super) fn make(&mut self) -> Result<Whole, String> {
            let page = self.page.mapping();
            let record = self.follower.follow(page, &mut self.buffer);
            record
                .map(|record| Whole::from(&record))
                .map_err(|error| format!("the kernel's load page: {error}"))
        }
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
