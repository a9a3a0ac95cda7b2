//! Whole machines as their files say it, of several kernels.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use super::*;

/// The files of a machine, gone when dropped.
struct Machine(PathBuf);

impl Machine {
    fn new(files: &[(&str, &str)]) -> Self {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let name = format!("evenkeel-agent-{}-{number}", std::process::id());
        let machine = Machine(std::env::temp_dir().join(name));
        machine.write(files);
        machine
    }

    fn write(&self, files: &[(&str, &str)]) {
        for (path, text) in files {
            let path = self.0.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
    }

    fn remove(&self, path: &str) {
        let path = self.0.join(path);
        if path.is_dir() {
            fs::remove_dir_all(path).unwrap();
        } else {
            fs::remove_file(path).unwrap();
        }
    }

    fn monitor(&self, scope: Scope) -> Monitor {
        let settings = HostSettings {
            scope,
            network_capacity: None,
        };
        Monitor::new(Files::new(&self.0), settings)
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // Nothing depends on it.
        let _ = fs::remove_dir_all(&self.0);
    }
}

const SECOND: Duration = Duration::from_secs(1);

fn load(found: &HostLoad, id: LoadId) -> Option<f64> {
    let mut loads = found.loads.iter();
    loads.find(|(known, _)| *known == id).map(|(_, load)| *load)
}

fn near(load: Option<f64>, expected: f64) {
    let load = load.expect("a load");
    assert!((load - expected).abs() < 1e-6, "{load}, not {expected}");
}

/// A machine of today, at two moments: 2 s later it has used a quarter of its two CPUs.
const BEFORE: [(&str, &str); 9] = [
    (
        "proc/stat",
        "cpu  1000 0 500 8000 500 0 0 0 0 0\ncpu0 1 1 1 1\ncpu1 1 1 1 1\nintr 5\n",
    ),
    ("proc/loadavg", "0.1 0.2 0.3 5/93 100\n"),
    (
        "proc/meminfo",
        "MemTotal: 4000000 kB\nMemFree: 1 kB\nMemAvailable: 3000000 kB\n",
    ),
    (
        "proc/diskstats",
        "8 0 sda 1 1 1 1 1 1 1 1 0 1000 9 0 0 0 0 0 0\n8 16 sdb 1 1 1 1 1 1 1 1 0 4294967000 9\n",
    ),
    (
        "proc/self/net/dev",
        "h\nh\n eth0: 1000000 1 0 0 0 0 0 0 500 1 0 0 0 0 0 0\n veth9: 5 1 0 0 0 0 0 0 5 1 0 0 0 0 0 0\n",
    ),
    ("sys/class/net/eth0/device/vendor", "0x8086\n"),
    ("sys/class/net/eth0/speed", "1000\n"),
    (
        "proc/pressure/cpu",
        "some avg10=0.00 avg60=0.00 avg300=0.00 total=1000000\nfull total=0\n",
    ),
    (
        "proc/pressure/io",
        "some avg10=9.00 avg60=0.00 avg300=0.00 total=70\n",
    ),
];
const AFTER: [(&str, &str); 5] = [
    (
        "proc/stat",
        "cpu  1060 0 540 8290 510 0 0 0 0 0\ncpu0 1 1 1 1\ncpu1 1 1 1 1\nintr 5\n",
    ),
    (
        "proc/diskstats",
        "8 0 sda 1 1 1 1 1 1 1 1 0 1500 9\n8 16 sdb 1 1 1 1 1 1 1 1 0 704 9\n8 32 sdc 1 1 1 1 1 1 1 1 0 9999 9\n",
    ),
    (
        "proc/self/net/dev",
        "h\nh\n eth0: 26000000 1 0 0 0 0 0 0 600 1 0 0 0 0 0 0\n veth9: 999999999999 1 0 0 0 0 0 0 5 1 0 0 0 0 0 0\n",
    ),
    (
        "proc/pressure/cpu",
        "some avg10=0.00 avg60=0.00 avg300=0.00 total=1500000\nfull total=0\n",
    ),
    (
        "proc/pressure/io",
        "some avg10=9.00 avg60=0.00 avg300=0.00 total=60\n",
    ),
];

#[test]
fn a_machine_between_two_moments() {
    let machine = Machine::new(&BEFORE);
    let mut monitor = machine.monitor(Scope::Host);
    let first = monitor.measure_loads(10 * SECOND, "x");
    assert_eq!(load(&first, LoadId::CPU), None, "no interval yet");
    near(load(&first, LoadId::MEMORY), 0.25);
    near(load(&first, LoadId::RUN_QUEUE), 2.0);
    assert_eq!(first.cpus, Some(2.0));

    machine.write(&AFTER);
    let found = monitor.measure_loads(12 * SECOND, "x");
    near(load(&found, LoadId::CPU), 0.25);
    // sda was busy for 500 ms; sdb for 1000, past the end of 32 bits; sdc is new.
    near(load(&found, LoadId::DISK), 0.5);
    // 25 MB in 2 s of a link of 1 Gbit/s; what has no device is no link.
    near(load(&found, LoadId::NETWORK), 0.1);
    near(load(&found, LoadId::CPU_PRESSURE), 0.25);
    // It went back: nothing, and no complaint.
    assert_eq!(load(&found, LoadId::IO_PRESSURE), None);
    let missing: Vec<_> = found.missing.iter().map(|(id, _)| *id).collect();
    assert_eq!(missing, [LoadId::MEMORY_PRESSURE]);
    assert!(found.missing[0].1.contains("/proc/pressure/memory"));
}

#[test]
fn a_network_that_does_not_know_how_fast_it_is_needs_to_be_told() {
    let machine = Machine::new(&BEFORE);
    machine.write(&[("sys/class/net/eth0/speed", "-1\n")]);
    let mut monitor = machine.monitor(Scope::Host);
    let found = monitor.measure_loads(SECOND, "x");
    let network = found.missing.iter().find(|(id, _)| *id == LoadId::NETWORK);
    assert!(network.unwrap().1.contains("network_capacity"));

    let settings = HostSettings {
        scope: Scope::Host,
        network_capacity: Some(2e8),
    };
    let mut monitor = Monitor::new(Files::new(&machine.0), settings);
    monitor.measure_loads(SECOND, "x");
    machine.write(&AFTER);
    near(
        load(&monitor.measure_loads(3 * SECOND, "x"), LoadId::NETWORK),
        0.5,
    );
}

#[test]
fn what_a_kernel_does_not_have_is_missing_and_nothing_else_is() {
    // Linux 2.6.32 on one CPU, without pressure, sysfs or MemAvailable.
    let machine = Machine::new(&[
        (
            "proc/stat",
            "cpu  10 0 10 100 0 0 0\ncpu0 10 0 10 100 0 0 0\n",
        ),
        ("proc/loadavg", "0.1 0.2 0.3 1/93 100\n"),
        (
            "proc/meminfo",
            "MemTotal: 100 kB\nMemFree: 30 kB\nBuffers: 10 kB\nCached: 10 kB\n",
        ),
        ("proc/diskstats", "8 0 hda 1 1 1 1 1 1 1 1 0 1000 9\n"),
    ]);
    let mut monitor = machine.monitor(Scope::Host);
    monitor.measure_loads(SECOND, "x");
    machine.write(&[(
        "proc/stat",
        "cpu  60 0 60 100 0 0 0\ncpu0 60 0 60 100 0 0 0\n",
    )]);
    let found = monitor.measure_loads(2 * SECOND, "x");
    near(load(&found, LoadId::CPU), 1.0);
    near(load(&found, LoadId::MEMORY), 0.5);
    near(load(&found, LoadId::DISK), 0.0);
    near(load(&found, LoadId::RUN_QUEUE), 0.0);
    assert_eq!((found.loads.len(), found.missing.len()), (4, 4));
    // And if the rest goes, too.
    machine.remove("proc");
    let found = monitor.measure_loads(3 * SECOND, "x");
    assert_eq!((found.loads.len(), found.missing.len()), (0, 8));
    assert_eq!(monitor.missing.len(), 8, "each is said once");
}

#[test]
fn counters_that_begin_anew_and_clocks_that_stand_still_are_no_load() {
    let machine = Machine::new(&BEFORE);
    let mut monitor = machine.monitor(Scope::Host);
    monitor.measure_loads(SECOND, "x");
    let zero = "proc/self/net/dev";
    machine.write(&[
        ("proc/stat", "cpu  1 0 1 1 1 0 0 0 0 0\ncpu0 1 1 1 1\n"),
        ("proc/diskstats", "8 0 sda 1 1 1 1 1 1 1 1 0 3 9\n"),
        (zero, "h\n eth0: 10 1 0 0 0 0 0 0 5 1 0 0 0 0 0 0\n"),
    ]);
    let found = monitor.measure_loads(2 * SECOND, "x");
    for id in [LoadId::CPU, LoadId::DISK, LoadId::NETWORK] {
        assert_eq!(load(&found, id), None, "{id}");
    }
    // Twice at the same moment.
    let found = monitor.measure_loads(2 * SECOND, "x");
    assert!(found.loads.iter().all(|(_, load)| load.is_finite()));
    for id in [LoadId::DISK, LoadId::NETWORK, LoadId::CPU_PRESSURE] {
        assert_eq!(load(&found, id), None, "{id}");
    }
}

const V2_MOUNT: (&str, &str) = (
    "proc/self/mountinfo",
    "30 1 0:27 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
);

#[test]
fn a_cgroup_of_version_2_against_the_limits_of_all_that_it_is_in() {
    let machine = Machine::new(&BEFORE);
    machine.write(&[
        V2_MOUNT,
        ("sys/fs/cgroup/web.slice/cpu.max", "50000 100000\n"),
        ("sys/fs/cgroup/web.slice/memory.max", "1000000\n"),
        ("sys/fs/cgroup/web.slice/shop/cpu.max", "max 100000\n"),
        (
            "sys/fs/cgroup/web.slice/shop/cpu.stat",
            "usage_usec 5000000\nuser_usec 1\n",
        ),
        ("sys/fs/cgroup/web.slice/shop/memory.max", "max\n"),
        ("sys/fs/cgroup/web.slice/shop/memory.current", "700000\n"),
        (
            "sys/fs/cgroup/web.slice/shop/memory.stat",
            "anon 4\ninactive_file 200000\n",
        ),
        (
            "sys/fs/cgroup/web.slice/shop/io.stat",
            "8:0 rbytes=1000 wbytes=0 rios=1 wios=0\n",
        ),
        (
            "sys/fs/cgroup/web.slice/shop/io.max",
            "8:0 rbps=4000 wbps=max riops=max wiops=max\n",
        ),
        (
            "sys/fs/cgroup/web.slice/shop/cpu.pressure",
            "some avg10=0 total=100\n",
        ),
        (
            "sys/fs/cgroup/web.slice/shop/memory.pressure",
            "some avg10=0 total=100\n",
        ),
        (
            "sys/fs/cgroup/web.slice/shop/io.pressure",
            "some avg10=0 total=100\n",
        ),
    ]);
    let mut monitor = machine.monitor(Scope::Cgroup("/web.slice/shop".into()));
    let first = monitor.measure_loads(SECOND, "x");
    assert_eq!(first.cpus, Some(0.5));
    machine.write(&AFTER);
    machine.write(&[
        (
            "sys/fs/cgroup/web.slice/shop/cpu.stat",
            "usage_usec 5400000\nuser_usec 1\n",
        ),
        (
            "sys/fs/cgroup/web.slice/shop/io.stat",
            "8:0 rbytes=3000 wbytes=0 rios=1 wios=0\n",
        ),
        (
            "sys/fs/cgroup/web.slice/shop/io.pressure",
            "some avg10=0 total=1000100\n",
        ),
    ]);
    let found = monitor.measure_loads(3 * SECOND, "x");
    // 400 ms of the half of a CPU in 2 s.
    near(load(&found, LoadId::CPU), 0.4);
    near(load(&found, LoadId::MEMORY), 0.5);
    near(load(&found, LoadId::DISK), 0.25);
    near(load(&found, LoadId::IO_PRESSURE), 0.5);
    near(load(&found, LoadId::CPU_PRESSURE), 0.0);
    // The machine's, which it shares.
    near(load(&found, LoadId::NETWORK), 0.1);
    let missing: Vec<_> = found.missing.iter().map(|(id, _)| *id).collect();
    assert_eq!(missing, [LoadId::RUN_QUEUE]);

    // The service is started again, and meanwhile gone.
    machine.remove("sys/fs/cgroup/web.slice/shop");
    let found = monitor.measure_loads(4 * SECOND, "x");
    assert_eq!(load(&found, LoadId::CPU), None);
    near(load(&found, LoadId::NETWORK), 0.0);
    assert!(found.missing[0].1.contains("/web.slice/shop"), "{found:?}");
}

#[test]
fn the_own_cgroup_in_a_container_is_at_the_top_of_what_it_sees() {
    let machine = Machine::new(&BEFORE);
    machine.write(&[
        V2_MOUNT,
        ("proc/self/cgroup", "0::/\n"),
        ("sys/fs/cgroup/cpu.max", "150000 100000\n"),
        ("sys/fs/cgroup/cpu.stat", "usage_usec 0\n"),
        ("sys/fs/cgroup/cpuset.cpus.effective", "0-1\n"),
        ("sys/fs/cgroup/memory.current", "2048000000\n"),
        ("sys/fs/cgroup/memory.max", "max\n"),
        ("sys/fs/cgroup/memory.stat", "inactive_file 0\n"),
    ]);
    let found = machine.monitor(Scope::Own).measure_loads(SECOND, "x");
    assert_eq!(found.cpus, Some(1.5));
    near(load(&found, LoadId::MEMORY), 0.5);
    // On a machine without containers it is all there is, and has no figures of its own.
    machine.remove("sys/fs/cgroup/memory.current");
    let found = machine.monitor(Scope::Own).measure_loads(SECOND, "x");
    near(load(&found, LoadId::MEMORY), 0.25);
}

#[test]
fn a_cgroup_of_version_1_beside_an_empty_version_2() {
    let machine = Machine::new(&BEFORE);
    let cgroup = "sys/fs/cgroup";
    let file = |path: &str, text: &str| {
        let path = format!("{cgroup}/{path}");
        machine.write(&[(&path, text)]);
    };
    machine.write(&[
        (
            "proc/self/mountinfo",
            "31 1 0:28 /docker/c9 /sys/fs/cgroup/cpu,cpuacct ro - cgroup cgroup rw,cpu,cpuacct\n\
             32 1 0:29 /docker/c9 /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n\
             33 1 0:30 /docker/c9 /sys/fs/cgroup/blkio ro - cgroup cgroup rw,blkio\n\
             34 1 0:31 / /sys/fs/cgroup/unified ro - cgroup2 cgroup2 rw\n",
        ),
        (
            "proc/self/cgroup",
            "3:cpu,cpuacct:/docker/c9\n2:memory:/docker/c9\n1:blkio:/docker/c9\n0::/\n",
        ),
    ]);
    file("unified/cgroup.procs", "1\n");
    file("cpu,cpuacct/cpuacct.usage", "1000000000\n");
    file("cpu,cpuacct/cpu.cfs_quota_us", "100000\n");
    file("cpu,cpuacct/cpu.cfs_period_us", "100000\n");
    file("memory/memory.usage_in_bytes", "400\n");
    file(
        "memory/memory.stat",
        "total_inactive_file 100\nhierarchical_memory_limit 1000\n",
    );
    file(
        "blkio/blkio.throttle.io_service_bytes",
        "8:0 Read 0\n8:0 Write 0\n8:0 Total 0\n",
    );
    file(
        "blkio/blkio.throttle.io_serviced",
        "8:0 Read 0\n8:0 Write 0\n",
    );
    file("blkio/blkio.throttle.write_iops_device", "8:0 10\n");
    let mut monitor = machine.monitor(Scope::Own);
    assert_eq!(monitor.measure_loads(SECOND, "x").cpus, Some(1.0));
    file("cpu,cpuacct/cpuacct.usage", "1500000000\n");
    file(
        "blkio/blkio.throttle.io_serviced",
        "8:0 Read 99\n8:0 Write 15\n",
    );
    let found = monitor.measure_loads(3 * SECOND, "x");
    near(load(&found, LoadId::CPU), 0.25);
    near(load(&found, LoadId::MEMORY), 0.3);
    near(load(&found, LoadId::DISK), 0.75);
}

#[test]
fn nothing_is_measured_where_nothing_is_wanted_but_the_cpus_are_known() {
    let machine = Machine::new(&BEFORE);
    let found = machine.monitor(Scope::Off).measure_loads(SECOND, "x");
    assert_eq!((found.loads.len(), found.missing.len()), (0, 0));
    assert_eq!(found.cpus, Some(2.0));
}

/// Whatever this machine is, it has CPUs and memory.
#[test]
fn this_machine_has_a_load() {
    let mut monitor = Monitor::new(Files::new("/"), HostSettings::default());
    monitor.measure_loads(Duration::ZERO, "x");
    let found = monitor.measure_loads(SECOND, "x");
    assert!(load(&found, LoadId::MEMORY).is_some_and(|load| load > 0.0 && load < 1.0));
    assert!(load(&found, LoadId::RUN_QUEUE).is_some());
    assert!(found.cpus.is_some_and(|cpus| cpus >= 1.0));
}
