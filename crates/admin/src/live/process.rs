//! What the process uses: CPU time, memory, files.

use std::fs;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

use super::wire::{Process, Usage};

/// The shortest time over which a share of CPU time says something.
const SHORTEST: Duration = Duration::from_millis(900);

/// Measures this process.
#[derive(Debug)]
pub(super) struct Meter {
    started: Instant,
    last: Mutex<Mark>,
}

/// CPU time at a moment, and its share of the time before.
#[derive(Clone, Copy, Debug)]
struct Mark {
    at: Instant,
    cpu: f64,
    share: Option<f64>,
}

impl Meter {
    pub(super) fn new() -> Self {
        let started = Instant::now();
        let mark = Mark {
            at: started,
            cpu: cpu_seconds(),
            share: None,
        };
        Meter {
            started,
            last: Mutex::new(mark),
        }
    }

    /// Cores that it has used of late.
    fn share(&self) -> Option<f64> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let (now, cpu) = (Instant::now(), cpu_seconds());
        let since = now.duration_since(last.at);
        if since >= SHORTEST {
            let share = (cpu - last.cpu).max(0.0) / since.as_secs_f64();
            *last = Mark {
                at: now,
                cpu,
                share: Some(share),
            };
        }
        last.share
    }

    pub(super) fn usage(&self) -> Usage {
        Usage {
            cpu_share: self.share().map(super::rounded),
            resident_bytes: status_field(&status(), "VmRSS:").map(|kib| kib * 1024),
        }
    }

    pub(super) fn process(&self, workers: usize) -> Process {
        let status = status();
        Process {
            pid: std::process::id(),
            uptime_seconds: self.started.elapsed().as_secs_f64(),
            cpu_seconds: cpu_seconds(),
            cpu_share: self.share().map(super::rounded),
            resident_bytes: status_field(&status, "VmRSS:").map(|kib| kib * 1024),
            // The folder that is being read is one of them.
            open_files: fs::read_dir("/proc/self/fd")
                .ok()
                .map(|files| files.count().saturating_sub(1)),
            threads: status_field(&status, "Threads:"),
            version: env!("CARGO_PKG_VERSION").into(),
            workers,
        }
    }
}

/// CPU time of all threads so far.
fn cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// What the system says of this process (proc_pid_status(5)).
fn status() -> String {
    fs::read_to_string("/proc/self/status").unwrap_or_default()
}

/// The number behind a name.
fn status_field(status: &str, name: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_measured() {
        let meter = Meter::new();
        let process = meter.process(3);
        assert_eq!(
            process.cpu_share, None,
            "nothing is known of the time before"
        );
        assert!(process.cpu_seconds > 0.0);
        assert!(process.resident_bytes.unwrap() > 1 << 20);
        assert!(process.open_files.unwrap() >= 3);
        assert!(process.threads.unwrap() >= 1);
        assert_eq!(process.workers, 3);
        meter.last.lock().unwrap().at -= Duration::from_secs(10);
        assert!(meter.usage().cpu_share.is_some());
    }

    #[test]
    fn a_field_of_the_status_is_a_number_behind_its_name() {
        let status = "Name:\tx\nVmRSS:\t  4096 kB\nThreads:\tmany\n";
        assert_eq!(status_field(status, "VmRSS:"), Some(4096));
        assert_eq!(status_field(status, "Threads:"), None);
        assert_eq!(status_field(status, "Swap:"), None);
    }
}
