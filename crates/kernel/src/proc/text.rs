//! Parsers of the kernel's files of figures: pure functions from a text to numbers.
//!
//! The formats have grown with the kernels (proc(5), and `Documentation/admin-guide` of
//! Linux: `cgroup-v1`, `cgroup-v2`, `iostats`; `Documentation/accounting/psi`): fields are
//! found by name or counted from the front, and more of them may follow. A text that does
//! not say what is looked for is `None`; nothing panics, whatever it holds.

/// CPU time of all CPUs together since boot, in clock ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuTicks {
    /// Spent for somebody; time that the hypervisor gave to another machine included, as
    /// it is not to be had either.
    pub busy: u64,
    /// Spent on nothing, or waiting for a disk.
    pub idle: u64,
}

/// Clock ticks by kind: user, nice, system, idle, waiting for a disk, interrupts, soft
/// interrupts, and given to another machine.
pub type Kinds = [u64; 8];

/// The kinds behind the name of a line of `/proc/stat`.
fn kinds(fields: &str) -> Option<Kinds> {
    let mut fields = fields.split_ascii_whitespace();
    let mut next = || fields.next()?.parse::<u64>().ok();
    let (user, nice, system, idle) = (next()?, next()?, next()?, next()?);
    // Linux 2.6.0 to 2.6.11 lack some of these. What follows them (guest) is part of user.
    let [iowait, irq, softirq, steal] = std::array::from_fn(|_| next().unwrap_or(0));
    Some([user, nice, system, idle, iowait, irq, softirq, steal])
}

/// CPU times, and the number of CPUs that are online, of `/proc/stat`.
pub fn parse_cpu_times(stat: &str) -> Option<(CpuTicks, u32)> {
    let mut lines = stat.lines();
    let [user, nice, system, idle, iowait, irq, softirq, steal] =
        kinds(lines.next()?.strip_prefix("cpu ")?)?;
    let busy = [user, nice, system, irq, softirq, steal];
    let ticks = CpuTicks {
        busy: busy.into_iter().fold(0, u64::saturating_add),
        idle: idle.saturating_add(iowait),
    };
    let cpus = lines.take_while(|line| line.starts_with("cpu")).count();
    Some((ticks, u32::try_from(cpus.max(1)).ok()?))
}

/// All that a load record takes from `/proc/stat`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stat {
    /// All CPUs together.
    pub total: Kinds,
    /// Each CPU that is online, with its number.
    pub cpus: Vec<(u32, Kinds)>,
    /// Context switches.
    pub switches: Option<u64>,
    /// Tasks that run or wait for a CPU.
    pub running: Option<u32>,
    /// Tasks that wait for a disk.
    pub blocked: Option<u32>,
}

/// All that a load record takes from `/proc/stat`.
pub fn parse_stat(text: &str) -> Option<Stat> {
    let mut lines = text.lines();
    let mut stat = Stat {
        total: kinds(lines.next()?.strip_prefix("cpu ")?)?,
        ..Stat::default()
    };
    for line in lines {
        let Some((name, rest)) = line.split_once(' ') else {
            continue;
        };
        if let Some(number) = name.strip_prefix("cpu") {
            stat.cpus.push((number.parse().ok()?, kinds(rest)?));
            continue;
        }
        match name {
            "ctxt" => stat.switches = rest.parse().ok(),
            "procs_running" => stat.running = rest.parse().ok(),
            "procs_blocked" => stat.blocked = rest.parse().ok(),
            _ => {}
        }
    }
    Some(stat)
}

/// Load averages of 1, 5 and 15 minutes, of `/proc/loadavg`.
pub fn parse_load_averages(loadavg: &str) -> Option<[f64; 3]> {
    let mut fields = loadavg.split_ascii_whitespace();
    let mut next = || fields.next()?.parse::<f64>().ok();
    let averages = [next()?, next()?, next()?];
    let possible = |average: &f64| average.is_finite() && *average >= 0.0;
    averages.iter().all(possible).then_some(averages)
}

/// Returns the number of soft interrupts of each kind on each CPU, of `/proc/softirqs`, with the
/// number of the CPU. The counters wrap.
pub fn parse_softirqs<const KINDS: usize>(text: &str) -> Option<Vec<(u32, [u32; KINDS])>> {
    let mut lines = text.lines();
    let cpus = lines.next()?.split_ascii_whitespace();
    let mut cpus: Vec<(u32, [u32; KINDS])> = cpus
        .map(|cpu| Some((cpu.strip_prefix("CPU")?.parse().ok()?, [0; KINDS])))
        .collect::<Option<_>>()?;
    for (kind, line) in lines.take(KINDS).enumerate() {
        let (_, counts) = line.split_once(':')?;
        let counts = counts.split_ascii_whitespace();
        for ((_, cpu), count) in cpus.iter_mut().zip(counts) {
            cpu[kind] = count.parse().ok()?;
        }
    }
    Some(cpus)
}

/// Figures of a CPU in `/proc/net/softnet_stat`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Softnet {
    /// Number of the CPU.
    pub cpu: u32,
    /// Packets dropped because the backlog was full, wrapping.
    pub dropped: u32,
    /// Times when the CPU put packets off because it had done enough, wrapping.
    pub squeezed: u32,
    /// Packets that wait.
    pub backlog: u32,
}

/// Each CPU of `/proc/net/softnet_stat`; `None` of kernels before 5.10, which do not say how
/// many packets wait.
pub fn parse_softnet(text: &str) -> Option<Vec<Softnet>> {
    text.lines()
        .map(|line| {
            let mut fields = line.split_ascii_whitespace();
            let mut skip = |fields_between| {
                let field = fields.nth(fields_between)?;
                u32::from_str_radix(field, 16).ok()
            };
            Some(Softnet {
                dropped: skip(1)?,
                squeezed: skip(0)?,
                backlog: skip(8)?,
                cpu: skip(0)?,
            })
        })
        .collect()
}

/// Tasks that run or wait for a CPU, of `/proc/loadavg`.
pub fn parse_running_tasks(loadavg: &str) -> Option<u32> {
    let (running, _) = loadavg.split_ascii_whitespace().nth(3)?.split_once('/')?;
    running.parse().ok()
}

/// Returns the state of a thread as a letter, of `/proc/PID/stat`: `R` is running, or waiting for a
/// CPU.
pub fn parse_thread_state(stat: &str) -> Option<char> {
    // Its name, in parentheses, may hold anything.
    let (_, rest) = stat.rsplit_once(") ")?;
    rest.chars().next()
}

/// Bytes of memory in all, and in use, of `/proc/meminfo`.
pub fn parse_memory(meminfo: &str) -> Option<(u64, u64)> {
    let bytes = |name| {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
        let kib: u64 = line.split_ascii_whitespace().next()?.parse().ok()?;
        kib.checked_mul(1024)
    };
    let total = bytes("MemTotal:")?;
    let available = bytes("MemAvailable:").or_else(|| {
        // Before Linux 3.14.
        let parts = [bytes("MemFree:")?, bytes("Buffers:")?, bytes("Cached:")?];
        Some(parts.into_iter().fold(0, u64::saturating_add))
    })?;
    (total > 0).then(|| (total, total.saturating_sub(available)))
}

/// Bytes of swap in use, of `/proc/meminfo`; none if there is no swap.
pub fn swap_used(meminfo: &str) -> u64 {
    let kib = |name| {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_ascii_whitespace().next()?.parse::<u64>().ok()
    };
    let used = |total: u64| Some(total.saturating_sub(kib("SwapFree:")?));
    let used = kib("SwapTotal:").and_then(used);
    used.unwrap_or(0).saturating_mul(1024)
}

/// Milliseconds in which each block device had something to do, of `/proc/diskstats`. The
/// kernel counts in 32 bits, which wrap.
pub fn parse_disk_times(diskstats: &str) -> impl Iterator<Item = (&str, u32)> {
    diskstats.lines().filter_map(|line| {
        let mut fields = line.split_ascii_whitespace().skip(2);
        let name = fields.next()?;
        // Not disks: memory, and files of other disks.
        let unreal = ["loop", "ram", "zram", "sr", "fd"];
        if unreal.iter().any(|kind| name.starts_with(kind)) {
            return None;
        }
        // Wider on some kernels; what they add is not needed.
        let ticks: u64 = fields.nth(9)?.parse().ok()?;
        Some((name, ticks as u32))
    })
}

/// Bytes received and sent by each network interface but loopback, of `/proc/net/dev`.
pub fn parse_interface_bytes(dev: &str) -> impl Iterator<Item = (&str, u64, u64)> {
    dev.lines().filter_map(|line| {
        // The name of an alias has a colon, too.
        let (name, counters) = line.rsplit_once(':')?;
        let name = name.trim();
        let mut counters = counters.split_ascii_whitespace();
        let received = counters.next()?.parse().ok()?;
        let sent = counters.nth(7)?.parse().ok()?;
        (name != "lo").then_some((name, received, sent))
    })
}

/// Bits per second of `/sys/class/net/NAME/speed`, which is in Mbit/s and -1 if unknown.
pub fn parse_link_speed(text: &str) -> Option<f64> {
    let megabits: i64 = text.trim().parse().ok()?;
    (megabits > 0).then_some(megabits as f64 * 1e6)
}

/// Microseconds in which some task was stalled, of a file of pressure stall information.
pub fn parse_pressure(text: &str) -> Option<u64> {
    parse_stall(text, "some").map(|(total, _)| total)
}

/// Microseconds for which tasks were stalled, and in per cent the kernel's average of 10 s, of
/// the line of a `kind` (`some`, `full`) in a file of pressure stall information.
pub fn parse_stall(text: &str, kind: &str) -> Option<(u64, f64)> {
    let fields = text.lines().find_map(|line| line.strip_prefix(kind))?;
    let field = |name| {
        let mut fields = fields.split_ascii_whitespace();
        fields.find_map(|field| field.strip_prefix(name))
    };
    let average = field("avg10=").and_then(|average| average.parse().ok());
    let average = average.unwrap_or(0.0_f64).clamp(0.0, 100.0);
    Some((field("total=")?.parse().ok()?, average))
}

/// The number of a file that holds nothing else. `max` is `None`, as is everything that
/// is no number.
pub fn parse_number(text: &str) -> Option<u64> {
    text.trim().parse().ok()
}

/// The number behind `key` in a file of one key and number a line.
pub fn find_number(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let (name, number) = line.split_once(' ')?;
        (name == key).then(|| number.trim().parse().ok())?
    })
}

/// CPUs that a cgroup may use, of `cpu.max`: `None` if there is no limit.
pub fn cpu_max(text: &str) -> Option<f64> {
    let (quota, period) = text.trim().split_once(' ')?;
    quota_share(quota.parse().ok()?, period.parse().ok()?)
}

/// `quota` of `period`, if that is a limit.
pub fn quota_share(quota: u64, period: u64) -> Option<f64> {
    (quota > 0 && period > 0).then(|| quota as f64 / period as f64)
}

/// Returns the number of CPUs in a list such as `0-3,8`, of `cpuset.cpus.effective`.
pub fn cpu_list(text: &str) -> Option<u32> {
    let mut count = 0u32;
    for range in text.trim().split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        let cpus = last.checked_sub(first)?.checked_add(1)?;
        count = count.checked_add(cpus)?;
    }
    Some(count)
}

/// Transfers of a cgroup at a block device, or their limits: bytes and operations, read and
/// written.
pub type Transfers = [u64; 4];

/// Returns the transfers of a cgroup at each device, of `io.stat`.
pub fn io_stat(text: &str) -> impl Iterator<Item = (&str, Transfers)> {
    by_device(text, ["rbytes", "wbytes", "rios", "wios"])
}

/// Returns the limits of a cgroup per second at each device, of `io.max`; 0 is no limit.
pub fn io_max(text: &str) -> impl Iterator<Item = (&str, Transfers)> {
    by_device(text, ["rbps", "wbps", "riops", "wiops"])
}

fn by_device<'t>(
    text: &'t str,
    keys: [&'static str; 4],
) -> impl Iterator<Item = (&'t str, Transfers)> {
    text.lines().filter_map(move |line| {
        let (device, fields) = line.split_once(' ')?;
        let value = |key| {
            let mut fields = fields.split_ascii_whitespace();
            let found = fields.find_map(|field| field.strip_prefix(key)?.strip_prefix('='));
            found.and_then(|value| value.parse().ok()).unwrap_or(0)
        };
        is_device(device).then(|| (device, keys.map(value)))
    })
}

/// Returns the amounts that a cgroup of version 1 read and wrote at each device, of
/// `blkio.throttle.io_service_bytes` or `blkio.throttle.io_serviced`.
pub fn parse_blkio(text: &str) -> impl Iterator<Item = (&str, bool, u64)> {
    text.lines().filter_map(|line| {
        let mut fields = line.split_ascii_whitespace();
        let (device, what) = (fields.next()?, fields.next()?);
        let writes = match what {
            "Read" => false,
            "Write" => true,
            _ => return None,
        };
        let amount = fields.next()?.parse().ok()?;
        is_device(device).then_some((device, writes, amount))
    })
}

/// Returns the limits of a cgroup of version 1 per second at each device, of a file such as
/// `blkio.throttle.read_bps_device`.
pub fn blkio_limit(text: &str) -> impl Iterator<Item = (&str, u64)> {
    text.lines().filter_map(|line| {
        let (device, limit) = line.split_once(' ')?;
        let limit = limit.trim().parse().ok()?;
        is_device(device).then_some((device, limit))
    })
}

/// Returns true if `text` names a block device as `MAJOR:MINOR`.
fn is_device(text: &str) -> bool {
    let number = |text: &str| text.parse::<u32>().is_ok();
    text.split_once(':')
        .is_some_and(|(major, minor)| number(major) && number(minor))
}

/// The cgroup of a process in a hierarchy, of `/proc/PID/cgroup`; `None` asks for
/// version 2, `Some` for the hierarchy of a controller of version 1.
pub fn find_cgroup<'t>(text: &'t str, controller: Option<&str>) -> Option<&'t str> {
    text.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (id, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        let found = match controller {
            None => id == "0" && controllers.is_empty(),
            Some(wanted) => controllers.split(',').any(|name| name == wanted),
        };
        found.then_some(path)
    })
}

/// Mount of a hierarchy of cgroups.
#[derive(Debug, PartialEq, Eq)]
pub struct Mount {
    /// The cgroup that is at the mount point.
    pub root: String,
    /// The mount point.
    pub point: String,
}

/// The mount of a hierarchy, of `/proc/PID/mountinfo`; see [`cgroup`](super::cgroup).
pub fn find_mount(mountinfo: &str, controller: Option<&str>) -> Option<Mount> {
    mountinfo.lines().find_map(|line| {
        let (place, kind) = line.split_once(" - ")?;
        let mut kind = kind.split(' ');
        let (name, _, options) = (kind.next()?, kind.next()?, kind.next()?);
        let found = match controller {
            None => name == "cgroup2",
            Some(wanted) => name == "cgroup" && options.split(',').any(|option| option == wanted),
        };
        let mut place = place.split(' ').skip(3);
        let mount = Mount {
            root: unescape(place.next()?),
            point: unescape(place.next()?),
        };
        found.then_some(mount)
    })
}

/// A path of `mountinfo`, where white space and backslashes are octal numbers.
fn unescape(text: &str) -> String {
    let mut parts = text.split('\\');
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let escaped = part.split_at_checked(3).and_then(|(digits, rest)| {
            let byte = u8::from_str_radix(digits, 8).ok()?;
            byte.is_ascii().then_some((char::from(byte), rest))
        });
        let (letter, rest) = escaped.unwrap_or(('\\', part));
        plain.push(letter);
        plain.push_str(rest);
    }
    plain
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn cpu_times_of_old_and_new_kernels() {
        // Linux 6.18, two CPUs; guest time (the last two) is in user time already.
        let new = "cpu  1042568 154825 341104 652614 6270 0 98547 1808 77 5\n\
                   cpu0 517859 75037 166265 339225 1535 0 46962 927 0 0\n\
                   cpu1 524709 79788 174838 313389 4735 0 51584 880 0 0\n\
                   intr 29479287 0 0\nctxt 85639135\nprocs_running 3\n";
        let ticks = CpuTicks {
            busy: 1_042_568 + 154_825 + 341_104 + 98_547 + 1808,
            idle: 652_614 + 6270,
        };
        assert_eq!(parse_cpu_times(new), Some((ticks, 2)));
        // Linux 2.6.9: no steal. 2.4: four fields, and no line per CPU on one.
        let ticks = |busy, idle| Some((CpuTicks { busy, idle }, 1));
        assert_eq!(
            parse_cpu_times("cpu  10 1 5 100 7 2 3\ncpu0 1\nintr 1\n"),
            ticks(21, 107)
        );
        assert_eq!(
            parse_cpu_times("cpu  10 1 5 100\npage 1 2\n"),
            ticks(16, 100)
        );
        for bad in [
            "",
            "cpu",
            "cpu  1 2 3\n",
            "cpu  a b c d\n",
            "cpu0 1 2 3 4\n",
        ] {
            assert_eq!(parse_cpu_times(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn each_cpu_and_what_all_do_together() {
        // Linux 6.18; the second CPU is offline.
        let text = "cpu  10 1 5 100 7 2 3 4 0 0\ncpu0 6 1 2 50 4 1 2 3 0 0\n\
                    cpu2 4 0 3 50 3 1 1 1 0 0\nintr 29479287 0 0\nctxt 85639135\nbtime 1\n\
                    processes 7\nprocs_running 3\nprocs_blocked 1\nsoftirq 9 9\n";
        let expected = Stat {
            total: [10, 1, 5, 100, 7, 2, 3, 4],
            cpus: vec![
                (0, [6, 1, 2, 50, 4, 1, 2, 3]),
                (2, [4, 0, 3, 50, 3, 1, 1, 1]),
            ],
            switches: Some(85_639_135),
            running: Some(3),
            blocked: Some(1),
        };
        assert_eq!(parse_stat(text), Some(expected));
        let little = parse_stat("cpu  1 2 3 4\nctxt x\n").expect("enough");
        assert_eq!((little.switches, little.running), (None, None));
        assert_eq!(
            parse_stat("cpu  1 2 3 4\ncpu0 1 2\n"),
            None,
            "a CPU cut short"
        );
        assert_eq!(parse_stat("cpu0 1 2 3 4\n"), None);
    }

    #[test]
    fn load_averages() {
        let text = "0.22 0.45 1.04 3/93 27614\n";
        assert_eq!(parse_load_averages(text), Some([0.22, 0.45, 1.04]));
        for bad in ["", "1 2", "1 nan 2", "-1 0 0", "a b c"] {
            assert_eq!(parse_load_averages(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn soft_interrupts_by_cpu() {
        let text = "                    CPU0       CPU2       \n          HI:          0          \
                    1\n       TIMER:      24325 4294967295\n      NET_TX:          5          0\n";
        let expected = vec![(0, [0, 24_325]), (2, [1, u32::MAX])];
        assert_eq!(parse_softirqs::<2>(text), Some(expected));
        assert_eq!(parse_softirqs::<2>("CPU0\nHI 1\n"), None);
        assert_eq!(parse_softirqs::<2>("CPU0\nHI: x\n"), None);
        assert_eq!(parse_softirqs::<2>(""), None);
    }

    #[test]
    fn packets_that_wait() {
        // Linux 6.18, 5.15, and 4.19, which says neither how many wait nor which CPU it is.
        let new = "0000000d 00000001 0000000a 00000000 00000000 00000000 00000000 00000000 \
                   00000000 00000000 00000000 00000007 00000001 00000000 00000000\n";
        let expected = Softnet {
            cpu: 1,
            dropped: 1,
            squeezed: 10,
            backlog: 7,
        };
        assert_eq!(parse_softnet(new), Some(vec![expected]));
        let thirteen = new.rsplitn(3, ' ').last().expect("a part");
        assert_eq!(parse_softnet(thirteen), Some(vec![expected]));
        assert_eq!(
            parse_softnet("0000000d 00000000 00000000 00000000 00000000\n"),
            None
        );
    }

    #[test]
    fn swap_in_use() {
        let text = "SwapCached: 1 kB\nSwapTotal: 100 kB\nSwapFree: 60 kB\n";
        assert_eq!(swap_used(text), 40 << 10);
        assert_eq!(swap_used("SwapTotal: 0 kB\nSwapFree: 0 kB\n"), 0);
        assert_eq!(swap_used(""), 0);
    }

    #[test]
    fn tasks_that_run() {
        assert_eq!(parse_running_tasks("0.22 0.45 1.04 3/93 27614\n"), Some(3));
        assert_eq!(parse_running_tasks("0.22 0.45 1.04 93 27614\n"), None);
        assert_eq!(parse_running_tasks(""), None);
        assert_eq!(parse_thread_state("15 (a) R (b) S 2 0 0\n"), Some('S'));
        assert_eq!(parse_thread_state("15 (a"), None);
    }

    #[test]
    fn memory_with_and_without_a_figure_for_what_is_available() {
        let new = "MemTotal:        1000 kB\nMemFree:  100 kB\nMemAvailable:     400 kB\n";
        assert_eq!(parse_memory(new), Some((1_024_000, 614_400)));
        // Linux 2.6.32.
        let old = "MemTotal: 1000 kB\nMemFree: 100 kB\nBuffers: 50 kB\nCached: 250 kB\n\
                   SwapCached: 9 kB\n";
        assert_eq!(parse_memory(old), Some((1_024_000, 614_400)));
        // Swap and shared memory can make more available than there is.
        let odd = "MemTotal: 10 kB\nMemAvailable: 11 kB\n";
        assert_eq!(parse_memory(odd), Some((10_240, 0)));
        assert_eq!(parse_memory("MemTotal: 0 kB\nMemAvailable: 0 kB\n"), None);
        assert_eq!(parse_memory("MemAvailable: 4 kB\n"), None);
    }

    #[test]
    fn disks_of_kernels_with_14_18_and_20_fields() {
        let text = "   7       0 loop0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n \
            254 0 vda 3809710 176760 162069906 6610685 211545 481549 206839832 1318957 0 \
            349824 8034099 304741 96 154967576 104070 2455 385\n\
            8 0 sda 1 2 3 4 5 6 7 8 0 4294967290 11\n\
            259 0 nvme0n1 1 2 3 4 5 6 7 8 0 12 11 0 0 0 0\n\
            253 0 zram0 0 0 0 0 0 0 0 0 0 9 0 0 0 0 0 0 0\n\
            3 1 hda1 10 20 30 40\n";
        let found: Vec<_> = parse_disk_times(text).collect();
        let expected = [("vda", 349_824), ("sda", 4_294_967_290), ("nvme0n1", 12)];
        assert_eq!(
            found, expected,
            "partitions of Linux 2.6.24 and older are skipped"
        );
    }

    #[test]
    fn interfaces_however_close_their_numbers_stand() {
        let text = "Inter-|   Receive                            |  Transmit\n \
            face |bytes    packets errs drop fifo frame compressed multicast|bytes\n    \
            lo: 1308294458667 287798266 0 3198 0 0 0 0 1308294458667 287798266 0 0 0 0 0 0\n  \
            eth0:191334782 6626 0 0 0 0 0 0 494584 4724 0 0 0 0 0 0\n\
            eth0:1: 5 0 0 0 0 0 0 0 6 0 0 0 0 0 0 0\n\
            bad0: 5 0 0\n";
        let found: Vec<_> = parse_interface_bytes(text).collect();
        assert_eq!(found, [("eth0", 191_334_782, 494_584), ("eth0:1", 5, 6)]);
    }

    #[test]
    fn speeds_that_are_known() {
        assert_eq!(parse_link_speed("10000\n"), Some(1e10));
        for unknown in ["-1\n", "0\n", "", "4294967295000000000000"] {
            assert_eq!(parse_link_speed(unknown), None);
        }
    }

    #[test]
    fn pressure_of_a_host_and_a_cgroup() {
        let text = "some avg10=0.52 avg60=0.83 avg300=1.63 total=6265949613\n\
                    full avg10=0.00 avg60=0.00 avg300=0.00 total=7\n";
        assert_eq!(parse_pressure(text), Some(6_265_949_613));
        assert_eq!(parse_stall(text, "some"), Some((6_265_949_613, 0.52)));
        assert_eq!(parse_stall(text, "full"), Some((7, 0.0)));
        // Interrupt pressure has no line of `some`.
        assert_eq!(parse_pressure("full avg10=0.00 total=7\n"), None);
    }

    #[test]
    fn limits_of_a_cgroup() {
        assert_eq!(cpu_max("50000 100000\n"), Some(0.5));
        assert_eq!(cpu_max("max 100000\n"), None);
        assert_eq!(cpu_max("50000 0\n"), None);
        assert_eq!(cpu_list("0-3,8\n"), Some(5));
        assert_eq!(cpu_list("7"), Some(1));
        for bad in ["\n", "3-0", "0-4294967295", "a", "0,,1"] {
            assert_eq!(cpu_list(bad), None, "{bad:?}");
        }
        assert_eq!(parse_number("1073741824\n"), Some(1 << 30));
        assert_eq!(parse_number("max\n"), None);
        assert_eq!(parse_number("-1\n"), None, "version 1 says so of CPU time");
        let stat = "usage_usec 77\nuser_usec 50\nnr_throttled 3\n";
        assert_eq!(find_number(stat, "usage_usec"), Some(77));
        assert_eq!(find_number(stat, "usage"), None);
    }

    #[test]
    fn transfers_of_both_versions() {
        let stat = "8:0 rbytes=1459200 wbytes=314773504 rios=192 wios=353 dbytes=0 dios=0\n\
                    253:0\n8:16 rbytes=1\n(unknown) rbytes=1\n";
        let found: Vec<_> = io_stat(stat).collect();
        let expected = [
            ("8:0", [1_459_200, 314_773_504, 192, 353]),
            ("8:16", [1, 0, 0, 0]),
        ];
        assert_eq!(found, expected);
        let limits: Vec<_> = io_max("8:16 rbps=2097152 wbps=max riops=max wiops=120\n").collect();
        assert_eq!(limits, [("8:16", [2_097_152, 0, 0, 120])]);
        let old = "8:0 Read 5\n8:0 Write 6\n8:0 Sync 1\n8:0 Total 11\nTotal 11\n";
        let found: Vec<_> = parse_blkio(old).collect();
        assert_eq!(found, [("8:0", false, 5), ("8:0", true, 6)]);
        let limits: Vec<_> = blkio_limit("8:0 1048576\nnonsense\n").collect();
        assert_eq!(limits, [("8:0", 1_048_576)]);
    }

    #[test]
    fn cgroups_of_a_process_and_where_they_are_mounted() {
        let both = "9:name=systemd:/\n4:memory:/docker/c9\n2:cpu,cpuacct:/docker/c9\n0::/init\n";
        assert_eq!(find_cgroup(both, None), Some("/init"));
        assert_eq!(find_cgroup(both, Some("cpuacct")), Some("/docker/c9"));
        assert_eq!(find_cgroup(both, Some("blkio")), None);
        let mounts = "24 30 0:22 / /proc rw shared:5 - proc proc rw\n\
            35 24 0:30 /docker/c9 /sys/fs/cgroup/cpu,cpuacct ro,nosuid master:11 - cgroup cgroup rw,cpu,cpuacct\n\
            36 24 0:27 / /sys/fs/my\\040cgroup rw,nosuid - cgroup2 cgroup2 rw\n";
        let mount_of = |root: &str, point: &str| {
            let (root, point) = (root.into(), point.into());
            Some(Mount { root, point })
        };
        assert_eq!(
            find_mount(mounts, Some("cpuacct")),
            mount_of("/docker/c9", "/sys/fs/cgroup/cpu,cpuacct")
        );
        assert_eq!(find_mount(mounts, None), mount_of("/", "/sys/fs/my cgroup"));
        assert_eq!(find_mount(mounts, Some("memory")), None);
        assert_eq!(unescape("a\\134b\\9\\777\\"), "a\\b\\9\\777\\");
    }

    /// Text that is nearly one of the formats, and any other.
    fn texts() -> impl Strategy<Value = String> {
        let words = "(cpu|cpu0|CPU1|ctxt|some|total=|MemTotal:|kB|8:0|rbps=|max|Read|sda|-|/|0::|[0-9]{1,25}|-1|\\\\040|[ :,\n\t]){0,60}";
        prop_oneof![any::<String>(), words]
    }

    proptest! {
        #[test]
        fn no_text_makes_any_of_them_panic(text in texts()) {
            let _ = (parse_cpu_times(&text), parse_running_tasks(&text), parse_memory(&text), parse_link_speed(&text), parse_pressure(&text));
            let _ = (parse_stat(&text), parse_load_averages(&text), parse_softirqs::<10>(&text), parse_softnet(&text));
            let _ = (swap_used(&text), parse_stall(&text, "full"));
            let _ = (parse_number(&text), find_number(&text, "cpu"), cpu_max(&text));
            let _ = cpu_list(&text);
            let _ = parse_disk_times(&text).count() + parse_interface_bytes(&text).count() + io_stat(&text).count();
            let _ = io_max(&text).count() + parse_blkio(&text).count() + blkio_limit(&text).count();
            for controller in [None, Some("cpu")] {
                let _ = (find_cgroup(&text, controller), find_mount(&text, controller));
            }
        }
    }
}
