//! Load records at an interval, by a process: in a page in memory, over RDMA, and as answers to
//! queries.

use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tracing::{info, warn};

use crate::host;
use crate::network::Network;
use crate::proc::files::Files;
use crate::proc::{Meter, Missing, Settings, cgroup, monotonic_ns, text};
use crate::query::Key;
use crate::rdma::{self, Limits, Memory};
use crate::record::{MAX_CPUS, PORTS, Whole};
use crate::respond::{self, Batch, Responder, Verdict};
use crate::shared::Writer;

/// Datagrams that are answered with one call.
const BATCH: usize = 64;
/// Interval between log lines about the datagrams that are no good queries.
const SAY: Duration = Duration::from_secs(60);
/// Interval between look-ups of this machine's addresses, which are its names if no name is given.
const ADDRESSES: Duration = Duration::from_secs(10);

/// Options of the server: records that it serves, places where it serves them, and clients that may
/// have them.
#[derive(Debug, Default)]
pub struct Options {
    /// True if records come from the kernel's own page, not from `/proc`.
    pub from_kernel: bool,
    /// Time between two records.
    pub interval: Duration,
    /// The file of the page for readers on this machine.
    pub shared: Option<PathBuf>,
    /// Address at which the page is offered over RDMA.
    pub rdma: Option<SocketAddr>,
    /// Address at which queries are answered.
    pub respond: Option<SocketAddr>,
    /// True if queries are answered with the record of the last interval.
    pub cached: bool,
    /// Keys that queries may have.
    pub keys: Vec<Key>,
    /// Networks that may ask, or read.
    pub allow: Vec<Network>,
    /// Names of this machine; without any, its addresses are its names.
    pub hosts: Vec<String>,
    /// Most queries per second and address; 0 is no limit.
    pub rate: u32,
    /// TCP ports whose listen backlog is reported.
    pub ports: Vec<u16>,
    /// Targets that are cgroups, and the path of each.
    pub cgroups: Vec<(u16, String)>,
}

/// Reason why nothing is served.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// There is nowhere to put a record.
    #[error("nothing to do: give --shared, --rdma or --respond, or several of them")]
    Nothing,
    /// More ports than a record has room for.
    #[error(
        "--listen-port is given more than {PORTS} times: a load record has room for {PORTS} ports"
    )]
    Ports,
    /// Two cgroups are one target.
    #[error("two cgroups have the target number {0}")]
    SameTarget(u16),
    /// The kernel's page is of the machine.
    #[error("--source kernel reports the machine: give the cgroup a number, or leave it out")]
    NotTheMachine,
    /// The programs behind the kernel's page are not in this build.
    #[error(
        "--source kernel needs BPF, and this evenkeel was built without it: build it with \
         `cargo build --features kernel` (needs clang, libelf-dev, zlib1g-dev, pkg-config). \
         --source proc works everywhere, and `evenkeel agent` reports the load of this machine"
    )]
    NoBpf,
    /// The kernel's page cannot be had.
    #[cfg(feature = "bpf")]
    #[error("--source kernel: {0}; --source proc reports the load of any machine, too")]
    Bpf(#[from] crate::bpf::BpfError),
    /// There is no such cgroup.
    #[error("{0}")]
    Cgroup(String),
    /// There is no record of a target at the start.
    #[error("the load of target {0} cannot be read: {1}")]
    Target(u16, String),
    /// The file for readers on this machine.
    #[error(transparent)]
    Shared(#[from] crate::shared::CreateError),
    /// There is no memory.
    #[error("no memory for the page to offer: {0}")]
    Memory(io::Error),
    /// The load cannot be offered over RDMA; there are other ways to read it.
    #[error(
        "cannot offer the load over RDMA: {0}. Without it, the load can be read by `evenkeel \
         kernel attach` or `serve --respond`, or reported by `evenkeel agent`"
    )]
    Rdma(#[from] rdma::Error),
    /// The address is not to be had.
    #[error("cannot listen at {0}: {1}; choose another port, or end the process that uses it")]
    Listen(SocketAddr, io::Error),
    /// The names of this machine cannot be found out.
    #[error(transparent)]
    Own(#[from] host::HostNamesError),
    /// The system gives no timer or event loop.
    #[error("cannot start: {0}")]
    Start(#[from] io::Error),
}

impl ServeError {
    /// Returns true if the options are at fault, so that others would do.
    pub fn is_usage(&self) -> bool {
        matches!(
            self,
            ServeError::Nothing
                | ServeError::Ports
                | ServeError::SameTarget(_)
                | ServeError::NotTheMachine
        )
    }
}

impl Options {
    /// The targets: a cgroup each, or the machine.
    fn targets(&self) -> Result<BTreeMap<u16, Option<&str>>, ServeError> {
        if self.shared.is_none() && self.rdma.is_none() && self.respond.is_none() {
            return Err(ServeError::Nothing);
        }
        if self.ports.len() > PORTS {
            return Err(ServeError::Ports);
        }
        let mut targets = BTreeMap::new();
        for (number, path) in &self.cgroups {
            if targets.insert(*number, Some(path.as_str())).is_some() {
                return Err(ServeError::SameTarget(*number));
            }
        }
        let machine = targets.entry(0).or_insert(None).is_none();
        if self.from_kernel && !machine {
            return Err(ServeError::NotTheMachine);
        }
        Ok(targets)
    }

    /// # Errors
    ///
    /// The options are none that can be served.
    pub fn check(&self) -> Result<(), ServeError> {
        self.targets().map(drop)
    }

    /// Returns true if records are made for queries.
    fn fresh(&self) -> bool {
        self.respond.is_some() && !self.cached
    }
}

/// A process's records, where readers find them.
pub struct Server {
    options: Options,
    records: Records,
    pages: Vec<Writer>,
    responder: Option<(UdpSocket, Responder)>,
    /// Makes connections over RDMA until the flag is set.
    offering: Option<(JoinHandle<()>, Arc<AtomicBool>)>,
    listening: String,
}

impl Server {
    /// Makes the first records, and opens what they are read from.
    pub fn start(options: Options) -> Result<Self, ServeError> {
        let mut records = Records::new(&options)?;
        records.renew_all();
        let first = records.first()?;
        let mut server = Server {
            options,
            records,
            pages: Vec::new(),
            responder: None,
            offering: None,
            listening: String::new(),
        };
        if let Some(path) = &server.options.shared {
            let page = Writer::create(path, cpus(&first))?;
            server.listening = format!("page: {}\n", path.display());
            server.pages.push(page);
        }
        if let Some(at) = server.options.rdma {
            server.offer(at, &first)?;
        }
        server.pages.iter_mut().for_each(|page| page.write(&first));
        if let Some(at) = server.options.respond {
            server.answer(at)?;
        }
        Ok(server)
    }

    fn offer(&mut self, at: SocketAddr, first: &Whole) -> Result<(), ServeError> {
        let memory: Arc<dyn Memory> = match self.records.memory() {
            Some(memory) => memory,
            None => {
                let page = Writer::nameless(cpus(first)).map_err(ServeError::Memory)?;
                let memory = Arc::clone(page.region());
                self.pages.push(page);
                memory
            }
        };
        // Before anybody can read them.
        self.pages.iter_mut().for_each(|page| page.write(first));
        let allow = self.options.allow.clone();
        let allowed = move |source| allow.iter().any(|network| network.contains_address(source));
        let mut server = rdma::Server::bind(at, memory, Limits::default(), allowed)?;
        let at = SocketAddr::new(at.ip(), server.port());
        self.listening
            .push_str(&format!("listening: rdma on {at}\n"));
        let ended = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&ended);
        // Reads do not need this thread.
        let thread = thread::spawn(move || {
            while !flag.load(Ordering::Relaxed) {
                if let Err(error) = server.poll(Duration::from_millis(200)) {
                    warn!(%error, "RDMA: new readers are not accepted any more until `evenkeel kernel \
                        serve` is restarted");
                    return;
                }
            }
        });
        self.offering = Some((thread, ended));
        Ok(())
    }

    fn answer(&mut self, at: SocketAddr) -> Result<(), ServeError> {
        let cannot = |error| ServeError::Listen(at, error);
        let socket = respond::bind(at).map_err(cannot)?;
        let at = socket.local_addr().map_err(cannot)?;
        self.listening
            .push_str(&format!("listening: respond on {at}\n"));
        let settings = respond::Settings {
            keys: self.options.keys.clone(),
            allow: self.options.allow.clone(),
            hosts: host::list_own_hosts(&self.options.hosts)?,
            rate: self.options.rate,
        };
        self.responder = Some((socket, Responder::new(settings)));
        Ok(())
    }

    /// Serves until `stop` is over, in a runtime of the current thread. `ready` gets a line for
    /// each place where records are read.
    pub async fn run(
        mut self,
        stop: impl Future<Output = ()>,
        ready: impl FnOnce(&str),
    ) -> Result<(), ServeError> {
        let result = self.serve(stop, ready).await;
        if let Some((thread, ended)) = self.offering.take() {
            ended.store(true, Ordering::Relaxed);
            // It has said why, if it ended before.
            let _ = thread.join();
        }
        result
    }

    async fn serve(
        &mut self,
        stop: impl Future<Output = ()>,
        ready: impl FnOnce(&str),
    ) -> Result<(), ServeError> {
        let (options, records, pages) = (&self.options, &mut self.records, &mut self.pages);
        let fresh = options.fresh();
        let timer = timer(options.interval).and_then(watched)?;
        let (socket, mut responder) = self.responder.take().unzip();
        let socket = socket.map(watched).transpose()?;
        let mut batch = Batch::new(BATCH);
        let mut said = Said::default();
        let mut looked = Instant::now();
        self.listening.push_str("ready\n");
        ready(&self.listening);
        // Pages are renewed at the interval, and answers, unless they are made when asked for.
        let at_interval = !pages.is_empty() || options.cached;
        tokio::pin!(stop);
        loop {
            let asked = async {
                match &socket {
                    Some(socket) => socket.readable().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = &mut stop => break,
                ready = timer.readable() => {
                    let mut ready = ready?;
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
                        if options.hosts.is_empty() && looked.elapsed() >= ADDRESSES {
                            looked = Instant::now();
                            match host::list_own_hosts(&[]) {
                                Ok(hosts) => responder.set_hosts(hosts),
                                Err(error) => warn!(%error, "cannot list the addresses of this machine: \
                                    the responder keeps the addresses listed last"),
                            }
                        }
                    }
                }
                ready = asked => {
                    let mut ready = ready?;
                    let (Some(socket), Some(responder)) = (&socket, &mut responder) else {
                        continue;
                    };
                    let now = Duration::from_nanos(monotonic_ns());
                    if fresh {
                        records.forget();
                    }
                    let taken = batch.answer_waiting(socket.get_ref(), |from, datagram| {
                        let (from, records) = (from.ip(), &mut *records);
                        let verdict = responder.answer_query(from, datagram, now, move |target| {
                            if fresh {
                                records.renewed(target)
                            } else {
                                records.last(target)
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
        }
        if let Some(responder) = &responder {
            said.all(responder);
        }
        Ok(())
    }
}

/// Room for CPUs that may come.
fn cpus(first: &Whole) -> usize {
    let possible = Files::new("/").parse("/sys/devices/system/cpu/possible", text::cpu_list);
    let possible = possible.map_or(0, |cpus| cpus as usize);
    possible.max(first.cpus.len()).clamp(1, MAX_CPUS)
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

/// State of the responder's counters at the last log line.
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
    /// True if the record was made since [`Records::forget`].
    new: bool,
    /// True if the log already says that there is no record.
    gone: bool,
}

enum Source {
    Proc(Box<Meter>),
    #[cfg(feature = "bpf")]
    Kernel(Box<kernel::Source>),
}

impl Records {
    fn new(options: &Options) -> Result<Self, ServeError> {
        let mut made = Vec::new();
        for (number, path) in options.targets()? {
            let source = match path {
                None if options.from_kernel => kernel_source(&options.ports)?,
                path => {
                    let files = Files::new("/");
                    let name = path.map(|path| cgroup::name(&files, path)).transpose();
                    let settings = Settings {
                        cgroup: name.map_err(ServeError::Cgroup)?,
                        ports: options.ports.clone(),
                    };
                    Source::Proc(Box::new(Meter::new(files, settings)))
                }
            };
            made.push(Target {
                number,
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
    fn first(&mut self) -> Result<Whole, ServeError> {
        let mut first = None;
        for target in &mut self.targets {
            let made = target.source.make();
            let (record, missing) =
                made.map_err(|reason| ServeError::Target(target.number, reason))?;
            for (what, reason) in missing {
                info!(
                    target = target.number,
                    what, reason, "a value is missing in the load record"
                );
            }
            if target.number == 0 {
                first = Some(record);
            }
        }
        first.ok_or_else(|| ServeError::Target(0, "no source has the number 0".into()))
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
                    info!(
                        target = self.number,
                        "the load of the target has become available"
                    );
                }
            }
            // Nobody may take an old one for that of now.
            Err(reason) => {
                self.last = None;
                if !std::mem::replace(&mut self.gone, true) {
                    warn!(
                        target = self.number,
                        reason, "the load of the target cannot be read"
                    );
                }
            }
        }
    }
}

impl Source {
    fn make(&mut self) -> Result<(Whole, Vec<Missing>), String> {
        match self {
            Source::Proc(meter) => meter.take_sample(),
            #[cfg(feature = "bpf")]
            Source::Kernel(source) => Ok((source.make()?, Vec::new())),
        }
    }
}

#[cfg(not(feature = "bpf"))]
fn kernel_source(_ports: &[u16]) -> Result<Source, ServeError> {
    Err(ServeError::NoBpf)
}

#[cfg(feature = "bpf")]
fn kernel_source(ports: &[u16]) -> Result<Source, ServeError> {
    Ok(Source::Kernel(Box::new(kernel::Source {
        page: crate::page::KernelPage::load(ports)?,
        follower: Default::default(),
        buffer: Vec::new(),
    })))
}

#[cfg(feature = "bpf")]
mod kernel {
    use std::sync::Arc;

    use crate::page::{Follower, KernelPage};
    use crate::rdma::Memory;
    use crate::record::Whole;

    /// The kernel's own page, which goes when this is dropped.
    pub(super) struct Source {
        pub(super) page: KernelPage,
        pub(super) follower: Follower,
        pub(super) buffer: Vec<u8>,
    }

    impl Source {
        pub(super) fn memory(&self) -> Arc<dyn Memory> {
            Arc::clone(self.page.mapping()) as Arc<dyn Memory>
        }

        pub(super) fn make(&mut self) -> Result<Whole, String> {
            let page = self.page.mapping();
            let record = self.follower.read_record(page, &mut self.buffer);
            record
                .map(|record| Whole::from(&record))
                .map_err(|error| format!("the kernel's load page: {error}"))
        }
    }
}
