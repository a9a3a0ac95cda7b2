#![allow(clippy::unwrap_used)]

use std::cell::Cell;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use super::*;
use crate::loads::{Before, Loads};
use crate::record::{BASE, CPUS, Record};

/// The files of a machine, gone when dropped.
struct Machine(PathBuf);

impl Machine {
    fn new() -> Self {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let name = format!("evenkeel-kernel-{}-{number}", std::process::id());
        Machine(std::env::temp_dir().join(name))
    }

    fn write(&self, files: &[(&str, &str)]) {
        for (path, text) in files {
            let path = self.0.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
    }

    fn meter(&self, cgroup: Option<&str>) -> Meter {
        let settings = Settings {
            cgroup: cgroup.map(str::to_owned),
            ports: Vec::new(),
        };
        let mut meter = Meter::new(Files::new(&self.0), settings);
        meter.clock = || NOW.get();
        meter.tick_ns = 10_000_000;
        meter
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // Nothing depends on it.
        let _ = fs::remove_dir_all(&self.0);
    }
}

thread_local! {
    static NOW: Cell<u64> = const { Cell::new(1_000_000_000) };
}

const MS: u64 = 1_000_000;

fn pass(ms: u64) {
    NOW.set(NOW.get() + ms * MS);
}

/// Two CPUs with so many idle ticks each.
fn stat(idle: [u64; 2]) -> String {
    let [a, b] = idle;
    format!(
        "cpu  1000 0 500 {} 0 0 20 0 0 0\ncpu0 500 0 250 {a} 0 0 10 0 0 0\n\
         cpu1 500 0 250 {b} 0 0 10 0 0 0\nintr 5\nctxt 77\nprocs_running 4\nprocs_blocked 1\n",
        a + b
    )
}

fn whole(machine: &Machine) {
    let stall = "some avg10=50.00 avg60=0.83 avg300=1.63 total=1000\n\
                 full avg10=0.00 avg60=0.00 avg300=0.00 total=7\n";
    machine.write(&[
        ("proc/stat", &stat([8000, 8000])),
        ("proc/loadavg", "0.50 0.25 1.00 5/93 100\n"),
        (
            "proc/meminfo",
            "MemTotal: 1000 kB\nMemAvailable: 400 kB\nSwapTotal: 9 kB\nSwapFree: 5 kB\n",
        ),
        ("proc/softirqs", "CPU0 CPU1\nHI: 1 2\nTIMER: 3 4\n"),
        (
            "proc/net/softnet_stat",
            "1 2 3 0 0 0 0 0 0 0 0 5 0 0 0\n1 1 1 0 0 0 0 0 0 0 0 7 1 0 0\n",
        ),
        ("proc/pressure/cpu", stall),
        ("proc/pressure/memory", stall),
        ("proc/pressure/io", stall),
        ("proc/15/comm", "ksoftirqd/0\n"),
        ("proc/15/stat", "15 (ksoftirqd/0) S 2 0 0\n"),
        ("proc/21/comm", "ksoftirqd/1\n"),
        ("proc/21/stat", "21 (ksoftirqd/1) R 2 0 0\n"),
        ("proc/90/comm", "sh\n"),
    ]);
}

#[test]
fn a_machine_that_says_everything() {
    let machine = Machine::new();
    whole(&machine);
    let mut meter = machine.meter(None);
    let (first, missing) = meter.take_sample().unwrap();
    assert_eq!(missing, []);
    let base = &first.base;
    assert_eq!((base.cpus, base.capacity), (2, 2000));
    assert_eq!(base.totals.times.user, 10_000 * MS);
    assert_eq!(base.totals.busy_ns, 15_200 * MS);
    // Not the one that asks.
    assert_eq!((base.totals.running, base.totals.blocked), (3, 1));
    assert_eq!(base.totals.switches, 77);
    assert_eq!(base.totals.softirqs[..3], [3, 7, 0]);
    assert_eq!(first.cpus[1].softirqs[..3], [2, 4, 0]);
    assert_eq!((base.totals.backlog, base.totals.dropped), (12, 3));
    assert_eq!((first.cpus[0].backlog, first.cpus[1].squeezed), (5, 1));
    let threads = first.cpus.iter().map(|cpu| cpu.softirq_threads);
    assert!(threads.eq([0, 1]) && base.totals.softirq_threads == 1);
    assert_eq!(base.pressure.io_full.total_ns, 7000);
    assert_eq!(base.pressure.cpu_some.avg10, 50 * 2048);
    assert_eq!(base.memory.available, 400 << 10);
    assert_eq!(base.memory.swap_used, 4 << 10);
    assert_eq!(base.load_averages, [1024, 512, 2048]);
    assert!(!base.available.has_all(Available::RUNNING_AVERAGE));
    // In half a second, one CPU sleeps for all of the time and the other for 0.3 s of it.
    pass(500);
    machine.write(&[("proc/stat", &stat([8050, 8030]))]);
    let (second, _) = meter.take_sample().unwrap();
    assert_eq!(second.base.epoch, first.base.epoch);
    let mut bytes = vec![0; second.copy_length()];
    second.copy(0, &mut bytes);
    let record = Record::parse(&bytes).unwrap();
    let loads = Loads::since_last(Some(&Before::new(&first.base)), &record);
    assert_eq!(loads.cpu, Some(0.2));
    let busy = |whole: &Whole| [whole.cpus[0].busy_ns, whole.cpus[1].busy_ns];
    let (then, now) = (busy(&first), busy(&second));
    assert_eq!([now[0] - then[0], now[1] - then[1]], [0, 200 * MS]);
    assert_eq!(loads.run_queue, Some(1.5));
    assert_eq!(loads.memory, Some(0.6));
}

#[test]
fn what_is_not_there_is_missing() {
    let machine = Machine::new();
    machine.write(&[(
        "proc/stat",
        "cpu  1 0 1 9 0 0 0 0 0 0\ncpu0 1 0 1 9 0 0 0 0 0 0\n",
    )]);
    let mut meter = machine.meter(None);
    let (whole, missing) = meter.take_sample().unwrap();
    let available = Available::TIMES.with_parts(Available::BUSY);
    assert_eq!(whole.base.available, available);
    let names: Vec<_> = missing.iter().map(|(name, _)| *name).collect();
    let all = [
        "soft interrupts",
        "network backlog",
        "pressure",
        "load averages",
        "memory",
    ];
    assert_eq!(names, all);
    assert!(missing[2].1.contains("/proc/pressure/cpu"), "{missing:?}");
    // A system that only looks like one.
    machine.write(&[("proc/stat", "cpu  0 0 0 0\ncpu0 0 0 0 0\n")]);
    let (whole, _) = meter.take_sample().unwrap();
    assert!(!whole.base.available.has_all(Available::BUSY));
    machine.write(&[("proc/stat", "nothing of it\n")]);
    assert!(meter.take_sample().is_err());
}

#[test]
fn busy_time_does_not_jump_where_ticks_are_long() {
    let machine = Machine::new();
    whole(&machine);
    let mut meter = machine.meter(None);
    // Two idle CPUs, read every ms; the kernel's idle time moves in steps of 10 ms.
    let (first, _) = meter.take_sample().unwrap();
    for ms in 1..=1000 {
        pass(1);
        let idle = 8000 + ms / 10;
        machine.write(&[("proc/stat", &stat([idle, idle]))]);
        let (whole, _) = meter.take_sample().unwrap();
        let busy = whole.base.totals.busy_ns - first.base.totals.busy_ns;
        assert!(busy <= 20 * MS, "{busy} ns after {ms} ms");
    }
}

#[test]
fn other_cpus_begin_a_new_epoch() {
    let machine = Machine::new();
    whole(&machine);
    let mut meter = machine.meter(None);
    let (first, _) = meter.take_sample().unwrap();
    machine.write(&[(
        "proc/stat",
        "cpu  1000 0 500 9 0 0 0 0 0 0\ncpu1 1 0 1 9 0 0 0 0 0 0\n",
    )]);
    let (second, _) = meter.take_sample().unwrap();
    assert_ne!(first.base.epoch, second.base.epoch);
    assert_eq!(
        second.cpus.iter().map(|cpu| cpu.number).collect::<Vec<_>>(),
        [1]
    );
    let again = meter.take_sample().unwrap().0;
    assert_eq!(second.base.epoch, again.base.epoch);
}

#[test]
fn running_tasks_are_averaged_over_readings_that_are_close() {
    let machine = Machine::new();
    whole(&machine);
    let mut meter = machine.meter(None);
    let mut average = 0.0;
    for _ in 0..40 {
        let (whole, _) = meter.take_sample().unwrap();
        average = f64::from(whole.base.running_average) / FIXED;
        pass(20);
    }
    assert!((2.99..=3.0).contains(&average), "{average}");
    pass(1000);
    let (whole, _) = meter.take_sample().unwrap();
    assert!(!whole.base.available.has_all(Available::RUNNING_AVERAGE));
}

/// A machine with cgroups of version 2, and one of them: half of a CPU, a limit of memory.
fn version_2(machine: &Machine) {
    machine.write(&[
        (
            "proc/self/mountinfo",
            "35 24 0:30 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
        ),
        ("proc/meminfo", "MemTotal: 1000 kB\nMemAvailable: 400 kB\n"),
        ("sys/devices/system/cpu/online", "0-3\n"),
        (
            "sys/fs/cgroup/web/cpu.stat",
            "usage_usec 5000\nuser_usec 1\n",
        ),
        ("sys/fs/cgroup/web/cpu.max", "50000 100000\n"),
        ("sys/fs/cgroup/web/cpuset.cpus.effective", "0-2\n"),
        ("sys/fs/cgroup/web/memory.current", "300000\n"),
        ("sys/fs/cgroup/web/memory.max", "400000\n"),
        (
            "sys/fs/cgroup/web/memory.stat",
            "anon 5\ninactive_file 100000\n",
        ),
    ]);
    for kind in ["cpu", "memory", "io"] {
        let path = format!("sys/fs/cgroup/web/{kind}.pressure");
        let text = "some avg10=0.00 total=9\nfull avg10=0.00 total=1\n";
        machine.write(&[(&path, text)]);
    }
}

#[test]
fn a_cgroup_of_version_2() {
    let machine = Machine::new();
    version_2(&machine);
    let mut meter = machine.meter(Some("/web"));
    let (first, missing) = meter.take_sample().unwrap();
    let names: Vec<_> = missing.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, ["running tasks"]);
    let base = &first.base;
    assert_eq!(base.scope, Scope::Cgroup);
    assert_eq!((base.cpus, base.capacity), (3, 500));
    assert_eq!(
        (base.memory.total, base.memory.available),
        (400_000, 200_000)
    );
    assert_eq!(base.pressure.memory_full.total_ns, 1000);
    pass(100);
    machine.write(&[("sys/fs/cgroup/web/cpu.stat", "usage_usec 30000\n")]);
    let (second, _) = meter.take_sample().unwrap();
    let mut bytes = [0; BASE];
    second.copy(0, &mut bytes);
    let record = Record::parse(&bytes).unwrap();
    let loads = Loads::since_last(Some(&Before::new(base)), &record);
    // 25 ms of the 50 ms that it may use.
    assert_eq!(loads.cpu, Some(0.5));
    assert_eq!(loads.run_queue, None);
    // Another one of the same name.
    machine.write(&[("sys/fs/cgroup/web/cpu.stat", "usage_usec 10\n")]);
    let (third, _) = meter.take_sample().unwrap();
    assert_ne!(third.base.epoch, second.base.epoch);
}

#[test]
fn a_cgroup_of_version_1_has_no_pressure() {
    let machine = Machine::new();
    machine.write(&[
        (
            "proc/self/mountinfo",
            "1 2 0:3 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
             1 2 0:4 / /sys/fs/cgroup/cpuacct rw - cgroup cgroup rw,cpuacct\n",
        ),
        ("proc/meminfo", "MemTotal: 1000 kB\nMemAvailable: 400 kB\n"),
        ("sys/devices/system/cpu/online", "0-1\n"),
        ("sys/fs/cgroup/cpuacct/web/cpuacct.usage", "12345\n"),
        ("sys/fs/cgroup/cpu/web/cpu.cfs_quota_us", "-1\n"),
        ("sys/fs/cgroup/cpu/web/cpu.cfs_period_us", "100000\n"),
    ]);
    let mut meter = machine.meter(Some("/web"));
    let (whole, missing) = meter.take_sample().unwrap();
    assert_eq!(whole.base.totals.busy_ns, 12_345);
    assert_eq!(whole.base.capacity, 2000);
    assert_eq!(whole.base.available, Available::BUSY);
    let pressure = missing.iter().find(|(name, _)| *name == "pressure");
    assert!(pressure.unwrap().1.contains("version 2"), "{missing:?}");
    let gone = machine.0.join("sys/fs/cgroup");
    fs::remove_dir_all(gone).unwrap();
    assert!(meter.take_sample().is_err());
}

#[test]
fn cgroups_are_called_by_name_or_folder() {
    let machine = Machine::new();
    machine.write(&[(
        "proc/self/mountinfo",
        "1 2 0:3 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n\
         1 2 0:4 /docker/a /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n",
    )]);
    let files = Files::new(&machine.0);
    for (folder, expected) in [
        ("/sys/fs/cgroup/web", "/web"),
        ("/sys/fs/cgroup/cpu/web/a", "/docker/a/web/a"),
        ("/web", "/web"),
    ] {
        assert_eq!(cgroup::name(&files, folder).unwrap(), expected);
    }
}

#[test]
fn a_cgroup_that_is_not_there_is_an_error() {
    let machine = Machine::new();
    version_2(&machine);
    let reason = machine.meter(Some("/db")).take_sample().unwrap_err();
    assert!(reason.contains("no cgroup /db"), "{reason}");
}

#[test]
fn this_machine() {
    let mut meter = Meter::new(Files::new("/"), Settings::default());
    meter.take_sample().unwrap();
    let (whole, _) = meter.take_sample().unwrap();
    let mut bytes = vec![0; whole.copy_length()];
    whole.copy(0, &mut bytes);
    let record = Record::parse(&bytes).unwrap();
    assert!(record.base.available.has_all(Available::TIMES));
    assert_eq!(
        record.cpus().count(),
        (bytes.len() - CPUS) / crate::record::CPU
    );
    assert!(record.base.time_ns <= monotonic_ns());
}
