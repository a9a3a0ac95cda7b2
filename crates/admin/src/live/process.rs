//! Resources that the process uses: CPU time, memory, files.

use std::fs;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use evenkeel_limits::files;
use evenkeel_manager::exposition::{Exposition, Type};
use rustix::param::clock_ticks_per_second;
use rustix::process::{Resource, getrlimit};
use rustix::time::{ClockId, clock_gettime};

use super::rounding::round_value;
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
    fn cpu_share(&self) -> Option<f64> {
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
            cpu_share: self.cpu_share().map(round_value),
            resident_bytes: status_field(&status(), "VmRSS:").map(|kib| kib * 1024),
        }
    }

    pub(super) fn process_usage(&self, workers: usize) -> Process {
        let status = status();
        Process {
            pid: std::process::id(),
            uptime_seconds: self.started.elapsed().as_secs_f64(),
            cpu_seconds: cpu_seconds(),
            cpu_share: self.cpu_share().map(round_value),
            resident_bytes: status_field(&status, "VmRSS:").map(|kib| kib * 1024),
            open_files: open_files(),
            threads: status_field(&status, "Threads:"),
            version: env!("CARGO_PKG_VERSION").into(),
            workers,
        }
    }
}

/// Writes what Prometheus' own client libraries say of a process, under their names, for dashboards
/// that are made for any program.
pub(crate) fn write_metrics(out: &mut Exposition) {
    let status = status();
    let bytes = |name| status_field(&status, name).map(|kib| kib as f64 * 1024.0);
    let mut write = |name, kind, help, value: Option<f64>| {
        if let Some(value) = value {
            out.begin_family(name, kind, help);
            out.add_sample(&[], value);
        }
    };
    write(
        "process_cpu_seconds_total",
        Type::Counter,
        "CPU time that the process has used, in user and system mode together.",
        Some(cpu_seconds()),
    );
    write(
        "process_resident_memory_bytes",
        Type::Gauge,
        "Memory of the process that is in RAM.",
        bytes("VmRSS:"),
    );
    write(
        "process_virtual_memory_bytes",
        Type::Gauge,
        "Address space of the process.",
        bytes("VmSize:"),
    );
    write(
        "process_virtual_memory_max_bytes",
        Type::Gauge,
        "Limit of the address space (RLIMIT_AS).",
        Some(
            getrlimit(Resource::As)
                .current
                .map_or(f64::INFINITY, |limit| limit as f64),
        ),
    );
    write(
        "process_open_fds",
        Type::Gauge,
        "Open files of the process.",
        open_files().map(|files| files as f64),
    );
    write(
        "process_max_fds",
        Type::Gauge,
        "Most files that the process may open (RLIMIT_NOFILE).",
        Some(files::file_limit() as f64),
    );
    write(
        "process_threads",
        Type::Gauge,
        "Threads of the process.",
        status_field(&status, "Threads:").map(|threads| threads as f64),
    );
    write(
        "process_start_time_seconds",
        Type::Gauge,
        "When the process started, in seconds since 1970.",
        start_time(
            &fs::read_to_string("/proc/self/stat").unwrap_or_default(),
            &fs::read_to_string("/proc/stat").unwrap_or_default(),
        ),
    );
}

/// Files that the process has open. The folder that is being read for that is one of them.
fn open_files() -> Option<usize> {
    let files = fs::read_dir("/proc/self/fd").ok()?;
    Some(files.count().saturating_sub(1))
}

/// Returns when a process started, in seconds since 1970: from its field `starttime` (proc_pid_stat(5)),
/// which counts from the boot, and from the line `btime` of the system (proc_stat(5)).
fn start_time(stat: &str, system: &str) -> Option<f64> {
    // The second field, the program's name in parentheses, may hold anything.
    let (_, fields) = stat.rsplit_once(") ")?;
    let ticks: u64 = fields.split(' ').nth(19)?.parse().ok()?;
    let boot = system
        .lines()
        .find_map(|line| line.strip_prefix("btime "))?;
    let boot: u64 = boot.trim().parse().ok()?;
    Some(boot as f64 + ticks as f64 / clock_ticks_per_second() as f64)
}

/// Returns the CPU time of all threads so far.
fn cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Returns what the system says of this process (proc_pid_status(5)).
fn status() -> String {
    fs::read_to_string("/proc/self/status").unwrap_or_default()
}

/// Returns the number behind a name in the status.
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
        let process = meter.process_usage(3);
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
    fn the_process_has_the_metrics_of_any_program() {
        let mut out = Exposition::default();
        write_metrics(&mut out);
        let text = out.finish();
        let value = |name: &str| -> f64 {
            let mut lines = text.lines();
            let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            let value = value.unwrap_or_else(|| panic!("no {name} in {text}"));
            value.parse().unwrap()
        };
        assert!(value("process_cpu_seconds_total") > 0.0);
        let resident = value("process_resident_memory_bytes");
        assert!(resident > 1e6);
        assert!(value("process_virtual_memory_bytes") >= resident);
        assert!(value("process_virtual_memory_max_bytes") >= resident);
        assert!((3.0..=value("process_max_fds")).contains(&value("process_open_fds")));
        assert!(value("process_threads") >= 1.0);
        let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap();
        let age = now.as_secs_f64() - value("process_start_time_seconds");
        // The time of the boot is in whole seconds, and moves when the clock is set.
        assert!((-5.0..86_400.0).contains(&age), "{age}");
    }

    #[test]
    fn the_start_is_counted_from_the_boot() {
        let ticks = clock_ticks_per_second();
        let fields = ["0"; 18].join(" ");
        let stat = format!("7 (a) b (c)) S {fields} {} 1 2\n", 10 * ticks);
        let system = "cpu 1 2\nbtime 1700000000\nprocesses 5\n";
        assert_eq!(start_time(&stat, system), Some(1_700_000_010.0));
        assert_eq!(start_time("7 (a) S 1", system), None);
        assert_eq!(start_time(&stat, "cpu 1\n"), None);
    }

    #[test]
    fn a_field_of_the_status_is_a_number_behind_its_name() {
        let status = "Name:\tx\nVmRSS:\t  4096 kB\nThreads:\tmany\n";
        assert_eq!(status_field(status, "VmRSS:"), Some(4096));
        assert_eq!(status_field(status, "Threads:"), None);
        assert_eq!(status_field(status, "Swap:"), None);
    }
}
