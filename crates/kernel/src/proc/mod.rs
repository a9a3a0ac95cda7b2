//! The load record as a process can have it: from `/proc`, for the machine, and from the files
//! of a cgroup, for that.
//!
//! It is what user-level load monitoring publishes at an interval, and what a responder at
//! user level answers with. Beside what the kernel's own programs see, it lacks the tasks that
//! run in a cgroup, and what each CPU has of those that run; its CPU times are multiples of
//! 10 ms, as `/proc/stat` has them.

pub mod cgroup;
pub mod files;
pub mod sockets;
pub mod text;

use std::fs;

use rustix::time::{ClockId, clock_gettime};

use self::cgroup::Cgroup;
use self::files::{FileResult, Files};
use self::sockets::Listeners;
use self::text::{Kinds, Stat};
use crate::record::{
    Available, Base, Cpu, FIXED, MAX_CPUS, Memory, PORTS, Pressure, SOFTIRQS, Scope, Source, Stall,
    Times, Whole,
};

/// Over how long the average of running tasks is, about.
const AVERAGED_NS: f64 = 1e8;
/// Readings at most so far apart make an average over [`AVERAGED_NS`].
const AVERAGED_INTERVAL_NS: u64 = 100_000_000;
/// Longer between the time stamp and the end of reading, and the reader lost the CPU.
const PROMPT_NS: u64 = 1_000_000;

/// Settings of the meter: cgroup and ports to measure.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// The cgroup, as `/proc/PID/cgroup` would say it; without one, the machine.
    pub cgroup: Option<String>,
    /// Ports whose listen backlog is wanted, at most [`PORTS`]: of this process's network
    /// namespace.
    pub ports: Vec<u16>,
}

/// Makes load records.
#[derive(Debug)]
pub struct Meter {
    files: Files,
    settings: Settings,
    clock: fn() -> u64,
    /// Files of the cgroup, once it was found.
    cgroup: Option<Cgroup>,
    listeners: FileResult<Listeners>,
    /// The threads for soft interrupts: number of the CPU, file that says what it does.
    threads: Vec<(u32, String)>,
    tick_ns: u64,
    epoch: u64,
    updates: u64,
    last_ns: Option<u64>,
    /// Busy times of all CPUs together, then of each CPU.
    busy: Vec<Busy>,
    numbers: Vec<u32>,
    running_average: f64,
}

/// Time for which a CPU was not idle: what it was not idle for is counted by the clock, not
/// tick by tick.
#[derive(Clone, Copy, Debug, Default)]
struct Busy {
    /// Added to the time that is not idle to have what was spent since boot.
    offset: i128,
    ns: u64,
}

impl Busy {
    fn new(now_ns: u64, cpus: u64, kinds: &Kinds, tick_ns: u64) -> Self {
        let [user, nice, system, _, _, irq, softirq, steal] = *kinds;
        let ticks = [user, nice, system, irq, softirq, steal];
        let ticks = ticks.into_iter().fold(0, u64::saturating_add);
        let ns = ticks.saturating_mul(tick_ns);
        let mut busy = Busy { offset: 0, ns: 0 };
        busy.offset = i128::from(ns) - busy.not_idle(now_ns, cpus, kinds, tick_ns);
        busy.ns = ns;
        busy
    }

    fn not_idle(&self, now_ns: u64, cpus: u64, kinds: &Kinds, tick_ns: u64) -> i128 {
        let idle = kinds[3].saturating_add(kinds[4]);
        i128::from(now_ns) * i128::from(cpus) - i128::from(idle) * i128::from(tick_ns) + self.offset
    }

    /// The kernel rounds idle time down, and some take a little of it back: it never goes back
    /// here.
    fn update(&mut self, now_ns: u64, cpus: u64, kinds: &Kinds, tick_ns: u64) {
        let spent = self.not_idle(now_ns, cpus, kinds, tick_ns);
        self.ns = self.ns.max(u64::try_from(spent).unwrap_or(0));
    }
}

/// A part that a record lacks, and why.
pub type Missing = (&'static str, String);

/// The monotonic clock in ns, as records have it.
pub fn monotonic_ns() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    (time.tv_sec as u64)
        .saturating_mul(1_000_000_000)
        .saturating_add(time.tv_nsec as u64)
}

impl Meter {
    /// A meter that reads below `files`.
    pub fn new(files: Files, mut settings: Settings) -> Self {
        settings.ports.truncate(PORTS);
        let listeners = Listeners::new().map_err(|error| format!("no netlink socket: {error}"));
        let threads = match settings.cgroup {
            None => threads(&files),
            Some(_) => Vec::new(),
        };
        Meter {
            files,
            settings,
            clock: monotonic_ns,
            cgroup: None,
            listeners,
            threads,
            tick_ns: 1_000_000_000 / rustix::param::clock_ticks_per_second().max(1),
            epoch: random(),
            updates: 0,
            last_ns: None,
            busy: Vec::new(),
            numbers: Vec::new(),
            running_average: 0.0,
        }
    }

    /// The load of this moment, and what it lacks.
    ///
    /// An error if the cgroup is not there (any more), or `/proc` is not as it should be.
    pub fn take_sample(&mut self) -> FileResult<(Whole, Vec<Missing>)> {
        let mut missing = Vec::new();
        let mut whole = match self.settings.cgroup {
            None => self.machine(&mut missing)?,
            Some(_) => self.narrow(&mut missing)?,
        };
        if !self.settings.ports.is_empty() {
            let ports = match &mut self.listeners {
                Ok(listeners) => listeners.backlogs(&self.settings.ports),
                Err(reason) => Err(reason.clone()),
            };
            whole.ports = had(ports, "listen backlogs", &mut missing).unwrap_or_default();
            if !whole.ports.is_empty() {
                whole.base.available = whole.base.available.with_parts(Available::PORTS);
            }
        }
        self.updates = self.updates.wrapping_add(1);
        let base = &mut whole.base;
        let now_ns = base.time_ns;
        self.last_ns = Some(now_ns);
        base.updates = self.updates;
        base.totals.time_ns = now_ns;
        base.epoch = self.epoch;
        // Readers know a copy by it from the one before.
        let sequence = self.updates.wrapping_mul(2);
        base.begin = sequence;
        base.end = sequence;
        for cpu in std::iter::once(&mut base.totals).chain(&mut whole.cpus) {
            cpu.time_ns = now_ns;
            cpu.begin = sequence;
            cpu.end = sequence;
        }
        Ok((whole, missing))
    }

    /// Returns the result of `read` and the time of reading. If the reader loses the CPU in
    /// between, the time is not known, so `stamped` tries again.
    fn stamped<T>(&self, read: impl Fn() -> FileResult<T>) -> FileResult<(u64, T)> {
        let mut tries = 0;
        loop {
            let now_ns = (self.clock)();
            let found = read()?;
            tries += 1;
            if tries == 3 || (self.clock)().saturating_sub(now_ns) <= PROMPT_NS {
                return Ok((now_ns, found));
            }
        }
    }

    fn machine(&mut self, missing: &mut Vec<Missing>) -> FileResult<Whole> {
        let (now_ns, text) = self.stamped(|| self.files.read_file("/proc/stat"))?;
        let stat = text::parse_stat(&text).filter(|stat| !stat.cpus.is_empty());
        let stat = stat.ok_or("/proc/stat has an unknown format")?;
        let online = stat.cpus.len() as u32;
        let mut base = Base::new(Source::User, Scope::Machine);
        base.cpus = online.min(MAX_CPUS as u32);
        base.capacity = online.saturating_mul(1000);
        base.time_ns = now_ns;
        self.follow(now_ns, &stat);
        let each = stat.cpus.iter().zip(self.busy.iter().skip(1));
        let mut cpus: Vec<Cpu> = each
            .take(MAX_CPUS)
            .map(|((number, kinds), busy)| Cpu {
                number: *number,
                times: self.times(kinds),
                busy_ns: busy.ns,
                ..Cpu::default()
            })
            .collect();
        let totals = &mut base.totals;
        totals.times = self.times(&stat.total);
        totals.busy_ns = self.busy.first().map_or(0, |busy| busy.ns);
        let mut available = Available::TIMES;
        // Some systems that only look like Linux count nothing.
        if stat.total.iter().any(|ticks| *ticks > 0) {
            available = available.with_parts(Available::BUSY);
        } else {
            missing.push(("CPU time", "/proc/stat counts no CPU time".into()));
        }
        if let Some(running) = stat.running {
            // This process runs while it asks.
            totals.running = running.saturating_sub(1);
            available = available.with_parts(Available::RUNNING);
            if let Some(average) = self.average(now_ns, totals.running) {
                base.running_average = fixed(average);
                available = available.with_parts(Available::RUNNING_AVERAGE);
            }
        }
        if let Some(blocked) = stat.blocked {
            totals.blocked = blocked;
            available = available.with_parts(Available::BLOCKED);
        }
        if let Some(switches) = stat.switches {
            totals.switches = switches;
            available = available.with_parts(Available::SWITCHES);
        }
        base.available = available;
        self.interrupts(&mut base, &mut cpus, missing);
        self.threads(&mut base, &mut cpus);
        let path = |kind: &str| Some(format!("/proc/pressure/{kind}").into());
        self.pressure(&mut base, path, missing);
        let averages = self.files.parse("/proc/loadavg", text::parse_load_averages);
        if let Some(averages) = had(averages, "load averages", missing) {
            base.load_averages = averages.map(fixed);
            base.available = base.available.with_parts(Available::LOAD_AVERAGES);
        }
        if let Some(memory) = had(self.memory(), "memory", missing) {
            base.memory = memory;
            base.available = base.available.with_parts(Available::MEMORY);
        }
        Ok(Whole {
            base,
            ports: Vec::new(),
            cpus,
        })
    }

    /// Counts busy time on. Counters of other CPUs than before begin a new epoch.
    fn follow(&mut self, now_ns: u64, stat: &Stat) {
        let online = stat.cpus.len() as u64;
        let all = std::iter::once((online, &stat.total))
            .chain(stat.cpus.iter().map(|(_, kinds)| (1, kinds)));
        let tick_ns = self.tick_ns;
        if stat.cpus.iter().map(|(number, _)| number).ne(&self.numbers) {
            if !self.numbers.is_empty() {
                self.epoch = random();
            }
            self.numbers = stat.cpus.iter().map(|(number, _)| *number).collect();
            let new = |(cpus, kinds)| Busy::new(now_ns, cpus, kinds, tick_ns);
            self.busy = all.map(new).collect();
            return;
        }
        for (busy, (cpus, kinds)) in self.busy.iter_mut().zip(all) {
            busy.update(now_ns, cpus, kinds, tick_ns);
        }
    }

    fn times(&self, kinds: &Kinds) -> Times {
        let [user, nice, system, idle, iowait, irq, softirq, steal] =
            kinds.map(|ticks| ticks.saturating_mul(self.tick_ns));
        Times {
            user,
            nice,
            system,
            irq,
            softirq,
            steal,
            idle,
            iowait,
        }
    }

    /// An average over some readings; none of readings that are far apart.
    fn average(&mut self, now_ns: u64, running: u32) -> Option<f64> {
        let elapsed = now_ns.checked_sub(self.last_ns?)?;
        let old = (-(elapsed as f64) / AVERAGED_NS).exp();
        self.running_average = self.running_average * old + f64::from(running) * (1.0 - old);
        (elapsed <= AVERAGED_INTERVAL_NS).then_some(self.running_average)
    }

    fn interrupts(&self, base: &mut Base, cpus: &mut [Cpu], missing: &mut Vec<Missing>) {
        let softirqs = self
            .files
            .parse("/proc/softirqs", text::parse_softirqs::<SOFTIRQS>);
        if let Some(counts) = had(softirqs, "soft interrupts", missing) {
            base.available = base.available.with_parts(Available::SOFTIRQS);
            for (number, counts) in counts {
                for (sum, count) in base.totals.softirqs.iter_mut().zip(counts) {
                    *sum = sum.wrapping_add(count);
                }
                if let Some(cpu) = cpus.iter_mut().find(|cpu| cpu.number == number) {
                    cpu.softirqs = counts;
                }
            }
        }
        let softnet = self
            .files
            .parse("/proc/net/softnet_stat", text::parse_softnet);
        if let Some(counts) = had(softnet, "network backlog", missing) {
            base.available = base.available.with_parts(Available::BACKLOG);
            let totals = &mut base.totals;
            for counts in counts {
                totals.dropped = totals.dropped.wrapping_add(counts.dropped);
                totals.squeezed = totals.squeezed.wrapping_add(counts.squeezed);
                totals.backlog = totals.backlog.saturating_add(counts.backlog);
                if let Some(cpu) = cpus.iter_mut().find(|cpu| cpu.number == counts.cpu) {
                    cpu.dropped = counts.dropped;
                    cpu.squeezed = counts.squeezed;
                    cpu.backlog = counts.backlog;
                }
            }
        }
    }

    /// Counts the threads for soft interrupts that have work. In a PID namespace of its own, a
    /// process does not see these threads.
    fn threads(&self, base: &mut Base, cpus: &mut [Cpu]) {
        if self.threads.is_empty() {
            return;
        }
        base.available = base.available.with_parts(Available::SOFTIRQ_THREADS);
        for (number, path) in &self.threads {
            if self.files.parse(path, text::parse_thread_state) == Ok('R') {
                base.totals.softirq_threads += 1;
                if let Some(cpu) = cpus.iter_mut().find(|cpu| cpu.number == *number) {
                    cpu.softirq_threads = 1;
                }
            }
        }
    }

    fn pressure(
        &self,
        base: &mut Base,
        path: impl Fn(&str) -> Option<std::path::PathBuf>,
        missing: &mut Vec<Missing>,
    ) {
        let read = |kind: &str| {
            let none = || "only cgroups of version 2 report pressure".to_owned();
            self.files.read_file(path(kind).ok_or_else(none)?)
        };
        let stall = |text: &str, kind: &str| {
            let (micros, average) = text::parse_stall(text, kind)?;
            Some(Stall {
                total_ns: micros.saturating_mul(1000),
                avg10: fixed(average),
            })
        };
        let files = read("cpu").and_then(|cpu| Ok((cpu, read("memory")?, read("io")?)));
        let pressure = files.and_then(|(cpu, memory, io)| {
            let read = || {
                Some(Pressure {
                    cpu_some: stall(&cpu, "some")?,
                    memory_some: stall(&memory, "some")?,
                    memory_full: stall(&memory, "full")?,
                    io_some: stall(&io, "some")?,
                    io_full: stall(&io, "full")?,
                })
            };
            read().ok_or_else(|| "the files have an unknown format".into())
        });
        if let Some(pressure) = had(pressure, "pressure", missing) {
            base.pressure = pressure;
            base.available = base.available.with_parts(Available::PRESSURE);
        }
    }

    fn memory(&self) -> FileResult<Memory> {
        self.files.parse("/proc/meminfo", |meminfo| {
            let (total, used) = text::parse_memory(meminfo)?;
            Some(Memory {
                total,
                available: total - used,
                swap_used: text::swap_used(meminfo),
            })
        })
    }

    fn narrow(&mut self, missing: &mut Vec<Missing>) -> FileResult<Whole> {
        let files = self.files.clone();
        let cgroup = match self.cgroup.take() {
            Some(cgroup) => cgroup,
            None => Cgroup::find_cgroup(&files, self.settings.cgroup.as_deref())?,
        };
        let online = files.parse("/sys/devices/system/cpu/online", text::cpu_list)?;
        let (now_ns, busy_ns) = self.stamped(|| cgroup.cpu_time(&files))?;
        let mut base = Base::new(Source::User, Scope::Cgroup);
        base.time_ns = now_ns;
        base.cpus = cgroup.set(&files, online).min(MAX_CPUS as u32);
        base.capacity = ((cgroup.cpus(&files, online) * 1e3) as u32).max(1);
        let busy = self.busy.first().copied().unwrap_or_default();
        if busy_ns < busy.ns {
            // Another cgroup of the same name.
            self.epoch = random();
        }
        self.busy = vec![Busy {
            offset: 0,
            ns: busy_ns,
        }];
        base.totals.busy_ns = busy_ns;
        base.available = Available::BUSY;
        let none = "the kernel does not report how many tasks of a cgroup run";
        missing.push(("running tasks", none.into()));
        self.pressure(&mut base, |kind| cgroup.pressure_file(kind), missing);
        let machine = self.memory();
        let memory = machine.and_then(|machine| {
            let memory = cgroup.memory(&files, machine.total)?;
            Ok(memory.map_or(machine, |(used, total)| Memory {
                total,
                available: total.saturating_sub(used),
                swap_used: 0,
            }))
        });
        if let Some(memory) = had(memory, "memory", missing) {
            base.memory = memory;
            base.available = base.available.with_parts(Available::MEMORY);
        }
        self.cgroup = Some(cgroup);
        Ok(Whole {
            base,
            ports: Vec::new(),
            cpus: Vec::new(),
        })
    }
}

/// Returns the value if there is one, or notes the reason why it is missing.
fn had<T>(had: FileResult<T>, what: &'static str, missing: &mut Vec<Missing>) -> Option<T> {
    had.map_err(|reason| missing.push((what, reason))).ok()
}

fn fixed(value: f64) -> u32 {
    (value * FIXED) as u32
}

fn random() -> u64 {
    let mut bytes = [0; 8];
    match rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()) {
        Ok(8) => u64::from_ne_bytes(bytes),
        // Different from the last start, at least.
        _ => monotonic_ns(),
    }
}

/// Returns, for each thread for soft interrupts, the number of its CPU and the file in which the
/// kernel tells what the thread does.
fn threads(files: &Files) -> Vec<(u32, String)> {
    let Ok(entries) = fs::read_dir(files.path("/proc".as_ref())) else {
        return Vec::new();
    };
    let processes = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let threads = processes.filter_map(|process| {
        let _: u32 = process.parse().ok()?;
        let name = files.read_file(format!("/proc/{process}/comm")).ok()?;
        let cpu = name.trim().strip_prefix("ksoftirqd/")?.parse().ok()?;
        Some((cpu, format!("/proc/{process}/stat")))
    });
    threads.collect()
}

#[cfg(test)]
mod tests;
