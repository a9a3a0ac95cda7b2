//! Processes under measurement: started pinned, metered, and ended whatever happens.

use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

/// Longest time until a server accepts its first connection.
const START_LIMIT: Duration = Duration::from_secs(20);
/// Longest time until a server ends after the request to end.
const END_LIMIT: Duration = Duration::from_secs(3);

/// A running server and the processes that it has started; dropping it ends them all.
pub struct Server {
    child: Child,
}

impl Server {
    /// Starts `command` on processor `cpu`. It is ended with `death_signal` should this
    /// process die first.
    ///
    /// # Errors
    ///
    /// Returns an error if the program cannot be run.
    pub fn start(mut command: Command, cpu: usize, death_signal: i32) -> io::Result<Self> {
        let parent = std::process::id();
        // SAFETY: between fork and exec only system calls are made, nothing is allocated.
        unsafe {
            command.pre_exec(move || {
                pin_to(cpu)?;
                if libc::prctl(libc::PR_SET_PDEATHSIG, death_signal) < 0 {
                    return Err(io::Error::last_os_error());
                }
                // The parent may have died before the signal was asked for.
                if libc::getppid() as u32 != parent {
                    libc::_exit(1);
                }
                Ok(())
            });
        }
        Ok(Self {
            child: command.spawn()?,
        })
    }

    /// Waits until every address accepts a connection.
    ///
    /// # Errors
    ///
    /// Returns an error if the server ends or does not accept in time.
    pub fn wait_for(&mut self, addresses: &[SocketAddr]) -> io::Result<()> {
        let deadline = Instant::now() + START_LIMIT;
        for address in addresses {
            while TcpStream::connect(address).is_err() {
                if let Some(status) = self.child.try_wait()? {
                    return Err(io::Error::other(format!("ended with {status}")));
                }
                if Instant::now() > deadline {
                    return Err(io::Error::other(format!(
                        "did not accept on {address} in {START_LIMIT:?}"
                    )));
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        Ok(())
    }

    /// Id of the server's process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// The pipe of its standard output, once, if it was started with one.
    pub fn take_stdout(&mut self) -> Option<std::process::ChildStdout> {
        self.child.stdout.take()
    }

    /// CPU time used so far by the server and the processes that it has started.
    ///
    /// # Errors
    ///
    /// Returns an error if the server has ended.
    pub fn cpu_time(&self) -> io::Result<Duration> {
        self.processes().into_iter().map(cpu_time).sum()
    }

    /// Resident memory in bytes of the server and the processes that it has started.
    ///
    /// # Errors
    ///
    /// Returns an error if the server has ended.
    pub fn resident_bytes(&self) -> io::Result<u64> {
        self.processes().into_iter().map(resident_bytes).sum()
    }

    fn processes(&self) -> Vec<i32> {
        let mut found = vec![self.child.id() as i32];
        let mut next = 0;
        while next < found.len() {
            found.extend(children(found[next]));
            next += 1;
        }
        found
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let processes = self.processes();
        // SAFETY: plain system call; the child has not been waited for, so its id is still
        // its own.
        unsafe { libc::kill(self.child.id() as i32, libc::SIGTERM) };
        let deadline = Instant::now() + END_LIMIT;
        while Instant::now() < deadline {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        for process in processes {
            // SAFETY: as above; its own children had no reason to end before it.
            unsafe { libc::kill(process, libc::SIGKILL) };
        }
        // Killed for certain: this only collects it.
        let _ = self.child.wait();
    }
}

/// CPU time (user and system, all threads, ended ones too) that a process has used.
///
/// The same figure as `utime + stime` in `/proc/PID/stat`, in nanoseconds instead of ticks
/// of 10 ms.
///
/// # Errors
///
/// Returns an error if there is no such process.
pub fn cpu_time(pid: i32) -> io::Result<Duration> {
    let mut clock = 0;
    // SAFETY: `clock` is written through a valid pointer.
    let error = unsafe { libc::clock_getcpuclockid(pid, &mut clock) };
    if error != 0 {
        return Err(io::Error::from_raw_os_error(error));
    }
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is written through a valid pointer.
    if unsafe { libc::clock_gettime(clock, &mut time) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(Duration::new(time.tv_sec as u64, time.tv_nsec as u32))
}

fn resident_bytes(pid: i32) -> io::Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .and_then(|value| value.trim().strip_suffix("kB")?.trim().parse::<u64>().ok())
        .map(|kibibytes| kibibytes * 1024)
        .ok_or_else(|| io::Error::other(format!("no VmRSS of process {pid}")))
}

/// Children of all threads of a process.
fn children(pid: i32) -> Vec<i32> {
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return Vec::new();
    };
    tasks
        .flatten()
        .filter_map(|task| fs::read_to_string(task.path().join("children")).ok())
        .flat_map(|list| {
            list.split_whitespace()
                .filter_map(|child| child.parse().ok())
                .collect::<Vec<i32>>()
        })
        .collect()
}

/// Processors that this process may use.
///
/// # Errors
///
/// Returns an error if the kernel does not say.
pub fn processors() -> io::Result<Vec<usize>> {
    // SAFETY: an all-zero set is a valid, empty one, and its own size is passed.
    let set = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        if libc::sched_getaffinity(0, size_of_val(&set), &mut set) < 0 {
            return Err(io::Error::last_os_error());
        }
        set
    };
    let known = 8 * size_of_val(&set);
    // SAFETY: every index is below the set's size in bits.
    Ok((0..known)
        .filter(|cpu| unsafe { libc::CPU_ISSET(*cpu, &set) })
        .collect())
}

/// Keeps the calling thread, and what it starts from now on, on one processor.
///
/// # Errors
///
/// Returns an error if there is no such processor.
pub fn pin_to(cpu: usize) -> io::Result<()> {
    // SAFETY: an all-zero set is a valid, empty one; `cpu` came from `processors`, so it is
    // below the set's size.
    let done = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of_val(&set), &set)
    };
    if done < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Raises the limit of open files to what is allowed, for this process and its children,
/// and returns it.
///
/// # Errors
///
/// Returns an error if the kernel refuses.
pub fn raise_file_limit() -> io::Result<u64> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `limit` is valid for reading and writing.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) < 0 {
            return Err(io::Error::last_os_error());
        }
        // Programs allocate tables by this limit: no more than is needed.
        limit.rlim_cur = limit.rlim_max.min(65_536);
        if libc::setrlimit(libc::RLIMIT_NOFILE, &limit) < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(limit.rlim_cur)
}

/// Lets timers of this thread fire when they are due, not up to 50 us later.
pub fn sharpen_timers() {
    // SAFETY: takes no pointers. Failure leaves the default, which is only less exact.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1usize) };
}

/// A loopback address that no program uses now, below the ports that the kernel hands out to clients, so that no
/// connection of a measurement takes it before the server does.
///
/// # Errors
///
/// Returns an error if hundreds of random ports are all taken.
pub fn free_address(rng: &mut fastrand::Rng) -> io::Result<SocketAddr> {
    let mut last = io::Error::other("no port tried");
    for _ in 0..500 {
        let address = SocketAddr::from(([127, 0, 0, 1], rng.u16(12_000..32_000)));
        match TcpListener::bind(address) {
            Ok(_) => return Ok(address),
            Err(error) => last = error,
        }
    }
    Err(last)
}
