//! Environment of the measurements: processes, cgroups, and a network between a front-end and a back-end on one
//! machine. All of it is removed when dropped, and goes with this process.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use evenkeel_bench::server::pin_to;
use evenkeel_kernel::query::Key;

use super::{Result, Run, bpf, helper};

const CPU: &str = "/sys/fs/cgroup/cpu";
const CPUACCT: &str = "/sys/fs/cgroup/cpuacct";
const UNIFIED: &str = "/sys/fs/cgroup";

/// Checks that this process is allowed to make the environment, and removes leftovers.
pub(crate) fn check_machine() -> Result<()> {
    // SAFETY: takes nothing, cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        return Err("network namespaces, cgroups and real-time priorities need root".into());
    }
    clear_leftovers();
    Ok(())
}

/// The names of what this process makes begin so.
fn prefix() -> String {
    format!("evkb{}", std::process::id())
}

/// A number for each process, cgroup or network that is made.
fn next() -> u32 {
    static MADE: AtomicU32 = AtomicU32::new(0);
    MADE.fetch_add(1, Ordering::Relaxed)
}

/// Takes away what processes left behind that were killed.
fn clear_leftovers() {
    let owner = |name: &str| -> Option<u32> {
        let rest = name.strip_prefix("evkb")?;
        rest.split(['-', '.']).next()?.parse().ok()
    };
    let is_left = |name: &str| {
        owner(name).is_some_and(|process| !Path::new(&format!("/proc/{process}")).exists())
    };
    let names = |folder: &str| -> Vec<String> {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        entries
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect()
    };
    for name in names("/run/netns").iter().filter(|name| is_left(name)) {
        let _ = run("ip", ["netns", "del", name]);
    }
    for folder in [CPU, CPUACCT, UNIFIED] {
        for name in names(folder).iter().filter(|name| is_left(name)) {
            let _ = fs::remove_dir(Path::new(folder).join(name));
        }
    }
    // The number of the process is in hexadecimal there: names of interfaces are short.
    const PINS: &str = "/sys/fs/bpf/evenkeel";
    let is_pin_left = |name: &str| {
        let process = name
            .strip_prefix("evk")
            .and_then(|rest| rest.split_once('x'));
        let process = process.and_then(|(process, _)| u32::from_str_radix(process, 16).ok());
        process.is_some_and(|process| !Path::new(&format!("/proc/{process}")).exists())
    };
    for name in names(PINS).iter().filter(|name| is_pin_left(name)) {
        let _ = fs::remove_dir_all(Path::new(PINS).join(name));
    }
    for name in names("/dev/shm").iter().filter(|name| is_left(name)) {
        let _ = fs::remove_dir_all(Path::new("/dev/shm").join(name));
    }
}

/// Runs a command that says nothing unless it fails.
pub(crate) fn run<A: AsRef<OsStr>>(
    program: &str,
    arguments: impl IntoIterator<Item = A>,
) -> Result<String> {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null());
    let output = command
        .output()
        .map_err(|error| format!("cannot run {program}: {error}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{command:?}: {}", said.trim()).into());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Scheduling of a process.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Scheduling<'a> {
    /// Cgroup of the process, if it is not the cgroup of this process.
    pub cgroup: Option<&'a Cgroup>,
    /// Processor to which the process is pinned.
    pub cpu: Option<usize>,
    /// Nice value: from -20, the highest priority, to 19.
    pub nice: i32,
}

/// A process, killed when dropped.
pub(crate) struct Process {
    child: Child,
}

impl Process {
    /// Starts it. It is killed should this process die first.
    pub(crate) fn start(mut command: Command, how: Scheduling<'_>) -> io::Result<Self> {
        let parent = std::process::id();
        let Scheduling { cpu, nice, .. } = how;
        let procs = how.cgroup.map(Cgroup::procs).unwrap_or_default();
        // SAFETY: between fork and exec only system calls are made, and files opened whose
        // paths are there already; this process has one thread more than the sampler at
        // most, so no lock of the allocator is held for long.
        unsafe {
            command.pre_exec(move || {
                for file in &procs {
                    fs::write(file, "0")?;
                }
                if let Some(cpu) = cpu {
                    pin_to(cpu)?;
                }
                if nice != 0 && libc::setpriority(libc::PRIO_PROCESS, 0, nice) < 0 {
                    return Err(io::Error::last_os_error());
                }
                if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) < 0 {
                    return Err(io::Error::last_os_error());
                }
                // The parent may have died before the signal was asked for.
                if libc::getppid() as u32 != parent {
                    libc::_exit(1);
                }
                Ok(())
            });
        }
        Ok(Process {
            child: command.spawn()?,
        })
    }

    /// Starts one of the programs of [`helper`].
    pub(crate) fn start_helper(
        words: &[&str],
        stdin: Stdio,
        how: Scheduling<'_>,
    ) -> io::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg(helper::WORD).args(words);
        command.stdin(stdin).stdout(Stdio::piped());
        Self::start(command, how)
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// The pipe of its standard output, once.
    pub(crate) fn stdout(&mut self) -> Option<std::process::ChildStdout> {
        self.child.stdout.take()
    }

    /// True if the process has ended, which no helper does by itself.
    pub(crate) fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// Sends a signal.
    pub(crate) fn signal(&self, signal: i32) {
        // SAFETY: plain system call; the child has not been waited for, so its id is its own.
        unsafe { libc::kill(self.child.id() as i32, signal) };
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sixteen processes, in pairs that send 4 KB to each other and back: the work that the
/// balancer does not see.
pub(crate) fn ping_pong(how: Scheduling<'_>) -> Result<Vec<Process>> {
    let mut processes = Vec::new();
    for _ in 0..8 {
        let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
        let one = std::net::TcpStream::connect(listener.local_addr()?)?;
        let (other, _) = listener.accept()?;
        for (word, stream) in [("pong", one), ("ping", other)] {
            stream.set_nodelay(true)?;
            let stream = Stdio::from(OwnedFd::from(stream));
            processes.push(Process::start_helper(&[word], stream, how)?);
        }
    }
    Ok(processes)
}

/// Sixteen processes that never rest.
pub(crate) fn start_busy_processes(cgroup: Option<&Cgroup>) -> Result<Vec<Process>> {
    let how = Scheduling {
        cgroup,
        ..Scheduling::default()
    };
    let spin = |_| Process::start_helper(&["spin"], Stdio::null(), how);
    let all: io::Result<Vec<_>> = (0..16).map(spin).collect();
    Ok(all?)
}

/// A cgroup for CPU time. Its processes must have ended when it is dropped.
#[derive(Debug)]
pub(crate) struct Cgroup {
    folders: Vec<PathBuf>,
    version: u8,
}

impl Cgroup {
    pub(crate) fn new() -> Result<Self> {
        let name = format!("{}-{}", prefix(), next());
        let version = if Path::new(UNIFIED).join("cgroup.subtree_control").exists() {
            2
        } else {
            1
        };
        let parents: &[&str] = match version {
            2 => {
                // Refused where it is on already by others, too.
                let _ = fs::write(Path::new(UNIFIED).join("cgroup.subtree_control"), "+cpu");
                &[UNIFIED]
            }
            _ => &[CPU, CPUACCT],
        };
        let mut cgroup = Cgroup {
            folders: Vec::new(),
            version,
        };
        for parent in parents {
            let folder = Path::new(parent).join(&name);
            match fs::create_dir(&folder) {
                Ok(()) => cgroup.folders.push(folder),
                // Both controllers in one place: it is there now.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(format!("{}: {error}", folder.display()).into()),
            }
        }
        Ok(cgroup)
    }

    /// Folder of the cgroup in the hierarchy of the CPU controller.
    pub(crate) fn path(&self) -> &Path {
        self.folders
            .first()
            .map_or(Path::new(CPU), PathBuf::as_path)
    }

    /// Lets its processes have `time` of CPU in each `period` together.
    pub(crate) fn set_quota(&self, time: Duration, period: Duration) -> Result<()> {
        let (time, period) = (time.as_micros(), period.as_micros());
        if self.version == 2 {
            return Ok(fs::write(
                self.path().join("cpu.max"),
                format!("{time} {period}"),
            )?);
        }
        fs::write(self.path().join("cpu.cfs_period_us"), period.to_string())?;
        Ok(fs::write(
            self.path().join("cpu.cfs_quota_us"),
            time.to_string(),
        )?)
    }

    /// Sets the cgroup's weight where CPUs are short, as a multiple of the normal weight.
    pub(crate) fn set_weight(&self, times: u32) -> Result<()> {
        let (file, normal) = match self.version {
            2 => ("cpu.weight", 100),
            _ => ("cpu.shares", 1024),
        };
        Ok(fs::write(
            self.path().join(file),
            (normal * times).to_string(),
        )?)
    }

    /// Moves a process into it, with all its threads.
    pub(crate) fn add_process(&self, process: u32) -> Result<()> {
        for file in self.procs() {
            fs::write(file, process.to_string())?;
        }
        Ok(())
    }

    /// Moves a process out of the cgroup.
    pub(crate) fn remove_process(&self, process: u32) -> Result<()> {
        for folder in self.folders.iter().filter_map(|folder| folder.parent()) {
            fs::write(folder.join("cgroup.procs"), process.to_string())?;
        }
        Ok(())
    }

    fn procs(&self) -> Vec<PathBuf> {
        let procs = self.folders.iter();
        procs.map(|folder| folder.join("cgroup.procs")).collect()
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // Processes that were killed a moment ago may still be there.
        let deadline = Instant::now() + Duration::from_secs(2);
        for folder in &self.folders {
            while fs::remove_dir(folder).is_err() && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }
}

/// A network namespace for the front-end.
pub(crate) struct Namespace {
    name: String,
}

impl Namespace {
    pub(crate) fn new() -> Result<Arc<Self>> {
        let name = format!("{}-{}", prefix(), next());
        run("ip", ["netns", "add", &name])?;
        let namespace = Namespace { name };
        namespace.ip("link set lo up")?;
        Ok(Arc::new(namespace))
    }

    /// Runs a function on a thread within the namespace: its sockets and processes stay there.
    pub(crate) fn run_inside<T: Send>(
        &self,
        inside: impl FnOnce() -> Result<T> + Send,
    ) -> Result<T> {
        let path = self.path();
        let inside = move || -> std::result::Result<T, String> {
            let file = fs::File::open(&path).map_err(|error| error.to_string())?;
            // SAFETY: plain system call with a descriptor that is open.
            if unsafe { libc::setns(file.as_raw_fd(), libc::CLONE_NEWNET) } < 0 {
                return Err(io::Error::last_os_error().to_string());
            }
            inside().map_err(|error| error.to_string())
        };
        let done = std::thread::scope(|scope| scope.spawn(inside).join());
        done.map_err(|_| "a thread has panicked")?
            .map_err(Into::into)
    }

    /// The file that stands for it.
    pub(crate) fn path(&self) -> PathBuf {
        Path::new("/run/netns").join(&self.name)
    }

    fn ip(&self, words: &str) -> Result<String> {
        let words = format!("-n {} {words}", self.name);
        run("ip", words.split(' '))
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // The namespace's links go with it.
        let _ = run("ip", ["netns", "del", &self.name]);
    }
}

/// A veth pair from the front-end's namespace to this one, where the back-end is.
pub(crate) struct Link {
    namespace: Arc<Namespace>,
    /// Keeps a program at the front-end's end while it is open.
    _pass: Option<OwnedFd>,
    /// The back-end's end.
    pub interface: String,
    /// The back-end's address.
    pub back: Ipv4Addr,
    /// The front-end's address.
    pub front: Ipv4Addr,
}

impl Link {
    pub(crate) fn new(namespace: &Arc<Namespace>) -> Result<Self> {
        let number = next();
        let id = std::process::id();
        // At most 15 bytes; the namespace of the other end is ours alone.
        let interface = format!("evk{:x}x{number}", id & 0xff_ffff);
        let inside = format!("f{number}");
        let (high, low) = ((id % 250 + 1) as u8, (number % 250 + 1) as u8);
        let mut link = Link {
            namespace: Arc::clone(namespace),
            _pass: None,
            back: Ipv4Addr::new(10, high, low, 1),
            front: Ipv4Addr::new(10, high, low, 2),
            interface,
        };
        let name = &namespace.name;
        let there = &link.interface;
        let add = format!("link add {there} type veth peer name {inside} netns {name}");
        run("ip", add.split(' '))?;
        let (back, front) = (link.back, link.front);
        run("ip", format!("addr add {back}/24 dev {there}").split(' '))?;
        run("ip", format!("link set {there} up").split(' '))?;
        namespace.ip(&format!("addr add {front}/24 dev {inside}"))?;
        namespace.ip(&format!("link set {inside} up"))?;
        let pass = link.at_front(|| {
            let name = std::ffi::CString::new(inside)?;
            // SAFETY: `name` is a string that ends with 0.
            let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
            Ok(bpf::let_pass(index)?)
        });
        match pass {
            Ok(pass) => link._pass = Some(pass),
            Err(error) => println!("no program at the front-end: {error}"),
        }
        Ok(link)
    }

    /// Has packets that arrive at the back-end handled by this processor (RPS).
    pub(crate) fn steer_packets(&self, cpu: usize) -> Result<()> {
        let file = format!("/sys/class/net/{}/queues/rx-0/rps_cpus", self.interface);
        fs::write(&file, format!("{:x}", 1u64 << cpu))
            .map_err(|error| format!("{file}: {error}").into())
    }

    /// Runs a function on a thread at the front-end.
    pub(crate) fn at_front<T: Send>(&self, inside: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        self.namespace.run_inside(inside)
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        let _ = run("ip", ["link", "del", &self.interface]);
    }
}

/// A folder for files, gone when dropped. It is in memory: pages of load are in it.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new() -> Result<Self> {
        let folder = Path::new("/dev/shm").join(format!("{}-{}", prefix(), next()));
        fs::create_dir(&folder)?;
        Ok(Folder(folder))
    }

    pub(crate) fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// A file with a key that only its owner may read.
    pub(crate) fn make_key(&self) -> Result<(PathBuf, Key)> {
        let mut rng = fastrand::Rng::new();
        let secret = rng.u128(..);
        let file = self.join("key");
        fs::write(&file, format!("1:{secret:032x}\n"))?;
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600))?;
        Ok((file, Key::new(1, secret.to_be_bytes())))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The responder in the kernel, on the back-end's end of a link; off again when dropped.
pub(crate) struct Responder {
    evenkeel: PathBuf,
    interface: String,
}

impl Responder {
    /// Attaches it. Cgroups are its targets from 1 on.
    pub(crate) fn attach(
        evenkeel: &Path,
        link: &Link,
        key: &Path,
        mode: &str,
        cgroups: &[&Cgroup],
    ) -> Result<Self> {
        let mut command = vec![
            "kernel".into(),
            "attach".into(),
            link.interface.clone(),
            "--key-file".into(),
            key.display().to_string(),
            "--allow".into(),
            format!("{}/32", link.front),
            "--rate".into(),
            "0".into(),
            "--mode".into(),
            mode.to_owned(),
        ];
        for (index, cgroup) in cgroups.iter().enumerate() {
            let path = cgroup.path().display();
            command.extend(["--cgroup".into(), format!("{}={path}", index + 1)]);
        }
        let responder = Responder {
            evenkeel: evenkeel.to_owned(),
            interface: link.interface.clone(),
        };
        let program = evenkeel.display().to_string();
        run(&program, &command)?;
        Ok(responder)
    }
}

impl Drop for Responder {
    fn drop(&mut self) {
        let program = self.evenkeel.display().to_string();
        if let Err(error) = run(&program, ["kernel", "detach", &self.interface]) {
            println!("{}: {error}", self.interface);
        }
    }
}

/// Arguments of `evenkeel kernel serve` to answer queries over a link, from `/proc` for each.
pub(crate) fn respond_arguments(link: &Link, port: u16, key: &Path) -> Vec<String> {
    [
        "--respond",
        &format!("{}:{port}", link.back),
        "--key-file",
        &key.display().to_string(),
        "--allow",
        &format!("{}/32", link.front),
        "--rate",
        "0",
    ]
    .map(str::to_owned)
    .to_vec()
}

/// Arguments of `evenkeel kernel serve` to write a page, of a cgroup or of the machine.
pub(crate) fn page_arguments(
    page: &Path,
    interval: Duration,
    cgroup: Option<&Cgroup>,
) -> Vec<String> {
    let mut words = vec![
        "--shared".to_owned(),
        page.display().to_string(),
        "--interval".to_owned(),
        format!("{}ms", interval.as_millis()),
    ];
    if let Some(cgroup) = cgroup {
        words.extend(["--cgroup".to_owned(), cgroup.path().display().to_string()]);
    }
    words
}

/// Arguments of `evenkeel kernel serve` to report a cgroup as target 1.
pub(crate) fn target_arguments(cgroup: &Cgroup) -> [String; 2] {
    [
        "--cgroup".to_owned(),
        format!("1={}", cgroup.path().display()),
    ]
}

/// Starts `evenkeel kernel serve` with these words: a helper at user level.
pub(crate) fn start_serve(run: &Run, words: &[String], how: Scheduling<'_>) -> Result<Process> {
    let mut command = Command::new(&run.evenkeel);
    command.args(["kernel", "serve", "--source", "proc"]);
    command.args(words);
    // Notes about fields left out of records are no news here.
    command.env("RUST_LOG", "warn").stdin(Stdio::null());
    command.stdout(Stdio::null()).stderr(Stdio::inherit());
    let done = Process::start(command, how);
    done.map_err(|error| format!("{}: {error}", run.evenkeel.display()).into())
}

/// Keeps the calling thread on the first processor, and says which the last one is.
pub(crate) fn first_and_last() -> Result<(usize, usize)> {
    let all = evenkeel_bench::server::processors()?;
    match (all.first(), all.last()) {
        (Some(&first), Some(&last)) => Ok((first, last)),
        _ => Err("no processor to run on".into()),
    }
}

/// Returns the number of processors.
pub(crate) fn count_processors() -> Result<usize> {
    Ok(evenkeel_bench::server::processors()?.len())
}
