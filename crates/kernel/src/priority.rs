//! Priority of a helper, so that it gets a CPU sooner on a busy machine: a cgroup of its own, a
//! real-time class, a nice value. Priorities also make comparisons fair: without any of them, a
//! helper waits for its turn behind everybody, and its record is as old as that.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::proc::cgroup::Top;
use crate::proc::files::Files;

/// Prefix of the names of helpers' cgroups.
const NAME: &str = "evenkeel-load-";
/// The most weight there is, in version 2 and in version 1.
const WEIGHTS: [(&str, &str); 2] = [("cpu.weight", "10000"), ("cpu.shares", "262144")];
/// Time that tasks of real-time classes may run for in each second (in µs), where the kernel has
/// such a limit for each cgroup: more than a helper ever needs.
const REAL_TIME: &str = "50000";

/// Reason why the priority cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum PriorityError {
    /// No cgroups with CPU time.
    #[error("cannot put this process into a cgroup of its own: {0}")]
    NoCgroups(String),
    /// A file of the cgroup says no.
    #[error(
        "cannot put this process into a cgroup of its own: {0}: {1}; this needs root and the cpu controller. In a container, \
         or under systemd, give this process its weight from outside: `CPUWeight=10000` in its unit"
    )]
    Cgroup(PathBuf, #[source] io::Error),
    /// The real-time class was refused.
    #[error(
        "cannot set SCHED_FIFO priority {0}: {1}; the priority is 1 to 99 and needs CAP_SYS_NICE, and on kernels with \
         CONFIG_RT_GROUP_SCHED some cpu.rt_runtime_us in the process's cgroup: a cgroup of its \
         own gets it"
    )]
    RealTime(u8, #[source] io::Error),
    /// The nice value was refused.
    #[error("cannot set nice value {0}: {1}; a value below 0 needs CAP_SYS_NICE")]
    Nice(i8, #[source] io::Error),
}

/// A cgroup of this process alone, which goes when this is dropped.
#[derive(Debug)]
pub struct PrivateCgroup {
    folder: PathBuf,
    /// Cgroup of the process before it entered this one.
    before: PathBuf,
}

impl PrivateCgroup {
    /// Makes a cgroup with the most weight, at the top of what this process sees of the hierarchy,
    /// and moves this process there. With `real_time`, the cgroup gets time for real-time classes
    /// where that is given out by cgroup.
    pub fn enter(real_time: bool) -> Result<Self, PriorityError> {
        let top = Top::of_cpu(&Files::new("/")).map_err(PriorityError::NoCgroups)?;
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |error| PriorityError::Cgroup(path, error)
        };
        remove_left(&top.folder);
        if !top.version_1 {
            let control = top.folder.join("cgroup.subtree_control");
            fs::write(&control, "+cpu").map_err(failed(&control))?;
        }
        let folder = top.folder.join(format!("{NAME}{}", std::process::id()));
        fs::create_dir(&folder).map_err(failed(&folder))?;
        let own = PrivateCgroup {
            before: top.process_cgroup,
            folder,
        };
        let (name, weight) = WEIGHTS[usize::from(top.version_1)];
        let mut settings = vec![(name, weight.to_owned())];
        let runtime = "cpu.rt_runtime_us";
        if real_time && own.folder.join(runtime).exists() {
            settings.push((runtime, REAL_TIME.to_owned()));
        }
        settings.push(("cgroup.procs", std::process::id().to_string()));
        for (name, value) in settings {
            let path = own.folder.join(name);
            fs::write(&path, value).map_err(failed(&path))?;
        }
        Ok(own)
    }

    /// Folder of the cgroup.
    pub fn folder(&self) -> &Path {
        &self.folder
    }
}

impl Drop for PrivateCgroup {
    fn drop(&mut self) {
        // Where it goes back to, real-time classes may not be allowed. What stays behind is
        // empty soon, and the next helper removes it.
        let parameters = libc::sched_param { sched_priority: 0 };
        // SAFETY: the parameters are alive.
        unsafe { libc::sched_setscheduler(0, libc::SCHED_OTHER, &raw const parameters) };
        let _ = fs::write(
            self.before.join("cgroup.procs"),
            std::process::id().to_string(),
        );
        let _ = fs::remove_dir(&self.folder);
    }
}

/// Removes what helpers that were killed have left. One in which somebody is, stays.
fn remove_left(top: &Path) {
    let entries = fs::read_dir(top).into_iter().flatten().flatten();
    for entry in entries {
        if entry.file_name().to_string_lossy().starts_with(NAME) {
            let _ = fs::remove_dir(entry.path());
        }
    }
}

/// Puts the calling thread, and those that it starts, into the class SCHED_FIFO.
pub fn set_fifo_class(priority: u8) -> Result<(), PriorityError> {
    let parameters = libc::sched_param {
        sched_priority: priority.into(),
    };
    // SAFETY: the parameters are alive.
    match unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const parameters) } {
        0 => Ok(()),
        _ => Err(PriorityError::RealTime(
            priority,
            io::Error::last_os_error(),
        )),
    }
}

/// Gives the calling thread, and those that it starts, a nice value from -20 to 19.
pub fn set_nice_value(value: i8) -> Result<(), PriorityError> {
    rustix::process::setpriority_process(None, value.into())
        .map_err(|error| PriorityError::Nice(value, error.into()))
}
