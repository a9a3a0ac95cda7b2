//! Shares of a CPU, and processes that use them up.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{self, Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::process::program;

/// Creates a cgroup. A process that was killed may have left one of that name, which is empty.
fn create(path: &Path) -> Option<()> {
    let _ = fs::remove_dir(path);
    fs::create_dir(path).ok()
}

/// A cgroup whose processes together may use a part of one CPU, and get it whatever else the machine does; gone when
/// dropped, for which they must have ended.
pub struct CpuQuota {
    path: PathBuf,
    /// Folder in the hierarchy in which CPU time is counted: in version 1, this is a hierarchy of
    /// its own.
    counted: Option<PathBuf>,
}

impl CpuQuota {
    /// Makes a cgroup that gets `time` of a CPU in each `period`; `None` if this machine has no CPU
    /// controller, or lets this process not use it.
    pub fn new(time: Duration, period: Duration) -> Option<Self> {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let name = format!("evenkeel-e2e-{}-{number}", process::id());
        let (time, period) = (time.as_micros(), period.as_micros());
        let v2 = Path::new("/sys/fs/cgroup");
        let v1 = v2.join("cpu");
        let unified = v2.join("cgroup.subtree_control");
        if fs::read_to_string(&unified).is_ok() {
            fs::write(unified, "+cpu").ok()?;
            let group = Self::make(v2.join(name), None)?;
            fs::write(group.path.join("cpu.max"), format!("{time} {period}")).ok()?;
            fs::write(group.path.join("cpu.weight"), "10000").ok()?;
            Some(group)
        } else {
            let counting = v2.join("cpuacct");
            // Often both are one hierarchy.
            let same = fs::canonicalize(&counting).ok() == fs::canonicalize(&v1).ok();
            let counted = (!same && counting.is_dir()).then(|| counting.join(&name));
            let group = Self::make(v1.join(name), counted)?;
            fs::write(group.path.join("cpu.cfs_period_us"), period.to_string()).ok()?;
            fs::write(group.path.join("cpu.cfs_quota_us"), time.to_string()).ok()?;
            fs::write(group.path.join("cpu.shares"), "262144").ok()?;
            Some(group)
        }
    }

    fn make(path: PathBuf, counted: Option<PathBuf>) -> Option<Self> {
        create(&path)?;
        let group = Self { path, counted };
        if let Some(counted) = &group.counted {
            create(counted)?;
        }
        Some(group)
    }

    /// Returns the folder of the cgroup.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Moves a process into it.
    pub fn add_process(&self, process: u32) {
        for folder in [Some(&self.path), self.counted.as_ref()]
            .into_iter()
            .flatten()
        {
            let moved = fs::write(folder.join("cgroup.procs"), process.to_string());
            moved.expect("the process is moved into its cgroup");
        }
    }
}

impl Drop for CpuQuota {
    fn drop(&mut self) {
        // What is left of an empty cgroup hurts nobody.
        let _ = fs::remove_dir(&self.path);
        if let Some(counted) = &self.counted {
            let _ = fs::remove_dir(counted);
        }
    }
}

/// A process that uses all the CPU time that it gets, killed when dropped.
pub struct Busy(Child);

impl Busy {
    /// Starts one.
    #[allow(clippy::new_without_default)] // Nobody wants one by default.
    pub fn new() -> Self {
        let mut command: Command = program("sh");
        command.args(["-c", "while :; do :; done"]);
        command.stdin(Stdio::null());
        Busy(command.spawn().expect("a shell"))
    }

    /// Starts one in a cgroup.
    pub fn start_within(quota: &CpuQuota) -> Self {
        let busy = Busy::new();
        quota.add_process(busy.0.id());
        busy
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A cgroup whose processes together may have a number of threads; gone when dropped, for
/// which they must have ended.
pub struct ThreadLimit(PathBuf);

impl ThreadLimit {
    /// Makes a cgroup without a limit yet; `None` if this machine has no controller for it, or lets
    /// this process not use it.
    pub fn new() -> Option<Self> {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let name = format!("evenkeel-e2e-threads-{}-{number}", process::id());
        let v2 = Path::new("/sys/fs/cgroup");
        let unified = v2.join("cgroup.subtree_control");
        let path = match fs::read_to_string(&unified) {
            Ok(_) => {
                fs::write(unified, "+pids").ok()?;
                v2.join(name)
            }
            Err(_) => v2.join("pids").join(name),
        };
        create(&path)?;
        let group = Self(path);
        group.0.join("pids.max").is_file().then_some(group)
    }

    /// Moves a process into it.
    pub fn add_process(&self, process: u32) {
        let moved = fs::write(self.0.join("cgroup.procs"), process.to_string());
        moved.expect("the process is moved into its cgroup");
    }

    /// Lets it have no more threads than it has.
    pub fn close(&self) {
        let now = fs::read_to_string(self.0.join("pids.current"));
        let now = now.expect("their number");
        fs::write(self.0.join("pids.max"), now.trim()).expect("a limit");
    }

    /// Takes the limit away.
    pub fn remove_limit(&self) {
        fs::write(self.0.join("pids.max"), "max").expect("no limit");
    }
}

impl Drop for ThreadLimit {
    fn drop(&mut self) {
        // What is left of an empty cgroup hurts nobody.
        let _ = fs::remove_dir(&self.0);
    }
}

/// A cgroup whose processes together may have so much memory; gone when dropped, for which
/// they must have ended.
pub struct MemoryLimit(PathBuf);

impl MemoryLimit {
    /// Makes a cgroup with a limit of `bytes` bytes; `None` if this machine has no controller for
    /// it, or lets this process not use it.
    pub fn new(bytes: u64) -> Option<Self> {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let name = format!("evenkeel-e2e-memory-{}-{number}", process::id());
        let v2 = Path::new("/sys/fs/cgroup");
        let unified = v2.join("cgroup.subtree_control");
        let (path, file) = match fs::read_to_string(&unified) {
            Ok(_) => {
                fs::write(unified, "+memory").ok()?;
                (v2.join(name), "memory.max")
            }
            Err(_) => (v2.join("memory").join(name), "memory.limit_in_bytes"),
        };
        create(&path)?;
        let group = Self(path);
        fs::write(group.0.join(file), bytes.to_string()).ok()?;
        Some(group)
    }

    /// A command that runs in it from its start.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("sh");
        command
            .args(["-c", "echo $$ > \"$0\"/cgroup.procs && exec \"$@\""])
            .arg(&self.0)
            .arg(program);
        command
    }
}

impl Drop for MemoryLimit {
    fn drop(&mut self) {
        // What is left of an empty cgroup hurts nobody.
        let _ = fs::remove_dir(&self.0);
    }
}
