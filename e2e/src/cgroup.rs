//! Shares of a CPU.

use std::fs;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// A cgroup whose processes together may use a part of one CPU; gone when dropped, for
/// which they must have ended.
pub struct CpuQuota(PathBuf);

impl CpuQuota {
    /// One that gets `time` of a CPU in each `period`; `None` if this machine has no CPU
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
            let group = Self::make(v2.join(name))?;
            fs::write(group.0.join("cpu.max"), format!("{time} {period}")).ok()?;
            Some(group)
        } else {
            let group = Self::make(v1.join(name))?;
            fs::write(group.0.join("cpu.cfs_period_us"), period.to_string()).ok()?;
            fs::write(group.0.join("cpu.cfs_quota_us"), time.to_string()).ok()?;
            Some(group)
        }
    }

    fn make(path: PathBuf) -> Option<Self> {
        fs::create_dir(&path).ok()?;
        Some(Self(path))
    }

    /// Moves a process into it.
    pub fn hold(&self, process: u32) {
        let moved = fs::write(self.0.join("cgroup.procs"), process.to_string());
        moved.expect("the process is moved into its cgroup");
    }
}

impl Drop for CpuQuota {
    fn drop(&mut self) {
        // What is left of an empty cgroup hurts nobody.
        let _ = fs::remove_dir(&self.0);
    }
}
