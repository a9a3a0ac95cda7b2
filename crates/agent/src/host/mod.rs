//! Host load: what a machine, or a cgroup on it, has in use.
//!
//! A [`Snapshot`] is what the kernel says at one moment; [`Snapshot::since`] makes loads of
//! two of them. What counts is the time in between, never an average that the kernel has
//! made over another time.

use std::collections::BTreeMap;
use std::time::Duration;

use evenkeel_config::agent::{HostSettings, Scope};
use evenkeel_core::load::LoadId;
use evenkeel_kernel::proc::cgroup::Cgroup;
use evenkeel_kernel::proc::files::FileResult;
use evenkeel_kernel::proc::text::{self, CpuTicks, Transfers};

pub use evenkeel_kernel::proc::files::Files;

/// Measures the load of a host or cgroup, interval by interval.
#[derive(Debug)]
pub struct Monitor {
    files: Files,
    settings: HostSettings,
    before: Option<Snapshot>,
    /// Loads that were missing last time, and why: each is logged once.
    missing: BTreeMap<LoadId, String>,
}

/// Result of [`Monitor::measure_loads`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HostLoad {
    /// Loads that are available.
    pub loads: Vec<(LoadId, f64)>,
    /// Loads that are not available, and why.
    pub missing: Vec<(LoadId, String)>,
    /// CPUs that there are for use; parts of one, if there is a quota.
    pub cpus: Option<f64>,
}

impl Monitor {
    /// A monitor of what `settings` say.
    pub fn new(files: Files, settings: HostSettings) -> Self {
        Monitor {
            files,
            settings,
            before: None,
            missing: BTreeMap::new(),
        }
    }

    /// Returns the settings of the monitor.
    pub fn settings(&self) -> &HostSettings {
        &self.settings
    }

    /// The loads from the last call to this one, at the monotonic time `at`. The first
    /// call has only those that need no difference.
    pub fn measure_loads(&mut self, at: Duration, location: &str) -> HostLoad {
        let now = Snapshot::take(&self.files, &self.settings, at);
        let found = now.since(self.before.as_ref(), self.settings.scope != Scope::Off);
        self.before = Some(now);
        self.say_what_changed(&found, location);
        found
    }

    fn say_what_changed(&mut self, found: &HostLoad, location: &str) {
        for (id, reason) in &found.missing {
            if self.missing.insert(*id, reason.clone()).is_none() {
                tracing::info!(location, load = %id, reason, "a load is not available");
            }
        }
        self.missing.retain(|id, _| {
            let back = found.loads.iter().any(|(found, _)| found == id);
            if back {
                tracing::info!(location, load = %id, "a load has become available");
            }
            !back
        });
    }
}

/// Figures of the kernel at one moment.
#[derive(Clone, Debug)]
struct Snapshot {
    /// On a monotonic clock, which stands still while the machine is suspended, as do the
    /// kernel's counters.
    at: Duration,
    cpus: Option<f64>,
    cpu: FileResult<Cpu>,
    run_queue: FileResult<f64>,
    memory: FileResult<f64>,
    disk: FileResult<Disk>,
    network: FileResult<Vec<Interface>>,
    pressure: [(LoadId, FileResult<u64>); 3],
}

/// CPU time that went by.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Cpu {
    /// CPU time of all CPUs of the machine, which count what is left, too.
    Machine(CpuTicks),
    /// CPU time of a cgroup: seconds in use.
    Cgroup(f64),
}

#[derive(Clone, Debug, PartialEq)]
enum Disk {
    /// Milliseconds for which each had something to do, wrapping.
    Busy(Vec<(String, u32)>),
    /// Transfers of a cgroup at each device, and its limits there per second.
    Limited(Vec<(String, Transfers, Transfers)>),
}

#[derive(Clone, Debug, PartialEq)]
struct Interface {
    name: String,
    received: u64,
    sent: u64,
    /// Capacity in bits per second each way.
    capacity: Option<f64>,
}

const PRESSURE: [(LoadId, &str); 3] = [
    (LoadId::CPU_PRESSURE, "cpu"),
    (LoadId::MEMORY_PRESSURE, "memory"),
    (LoadId::IO_PRESSURE, "io"),
];

impl Snapshot {
    fn take(files: &Files, settings: &HostSettings, at: Duration) -> Self {
        let cgroup = match &settings.scope {
            Scope::Host | Scope::Off => None,
            Scope::Own => Some(Cgroup::find_cgroup(files, None)),
            Scope::Cgroup(path) => Some(Cgroup::find_cgroup(files, Some(path))),
        };
        let stat = files.parse("/proc/stat", text::parse_cpu_times);
        let total_and_used = files.parse("/proc/meminfo", text::parse_memory);
        let mut machine = Snapshot {
            at,
            cpus: stat.as_ref().ok().map(|(_, cpus)| f64::from(*cpus)),
            cpu: stat
                .as_ref()
                .map(|(ticks, _)| Cpu::Machine(*ticks))
                .map_err(Clone::clone),
            run_queue: files
                .parse("/proc/loadavg", text::parse_running_tasks)
                .and_then(|running| {
                    let (_, cpus) = stat.as_ref().map_err(Clone::clone)?;
                    // This process runs while it asks.
                    Ok(f64::from(running.saturating_sub(1)) / f64::from(*cpus))
                }),
            memory: total_and_used
                .as_ref()
                .map(|(total, used)| *used as f64 / *total as f64)
                .map_err(Clone::clone),
            disk: files.read_file("/proc/diskstats").map(|text| {
                let disks = text::parse_disk_times(&text);
                Disk::Busy(disks.map(|(name, busy)| (name.to_owned(), busy)).collect())
            }),
            network: network(files, settings.network_capacity),
            pressure: PRESSURE.map(|(id, kind)| {
                let path = format!("/proc/pressure/{kind}");
                (id, files.parse(path, text::parse_pressure))
            }),
        };
        match cgroup {
            None => {}
            Some(Ok(cgroup)) => machine.narrow(files, &cgroup, total_and_used),
            Some(Err(reason)) => {
                machine.cpu = Err(reason.clone());
                machine.run_queue = Err(reason.clone());
                machine.memory = Err(reason.clone());
                machine.disk = Err(reason.clone());
                machine.pressure = PRESSURE.map(|(id, _)| (id, Err(reason.clone())));
            }
        }
        machine
    }

    /// Makes it that of a cgroup. What a cgroup has no part of its own of (the network,
    /// and disks without a limit) it shares with the machine.
    fn narrow(&mut self, files: &Files, cgroup: &Cgroup, memory: FileResult<(u64, u64)>) {
        let online = self.cpus.map_or(u32::MAX, |cpus| cpus as u32);
        let cpus = cgroup.cpus(files, online);
        self.cpus = (cpus < f64::from(u32::MAX)).then_some(cpus);
        let seconds = |nanos| Cpu::Cgroup(nanos as f64 / 1e9);
        self.cpu = cgroup.cpu_time(files).map(seconds);
        self.run_queue = Err("the kernel has no run queue per cgroup; see cpu_pressure".into());
        let total = memory.map_or(u64::MAX, |(total, _)| total);
        match cgroup.memory(files, total) {
            Ok(None) => {}
            Ok(Some((used, most))) => self.memory = Ok(used as f64 / most as f64),
            Err(reason) => self.memory = Err(reason),
        }
        let transfers = cgroup.transfers(files);
        if !transfers.is_empty() {
            self.disk = Ok(Disk::Limited(transfers));
        }
        self.pressure = PRESSURE.map(|(id, kind)| {
            let path = cgroup.pressure_file(kind);
            let none = || "only cgroups of version 2 report pressure".to_owned();
            let had = path.ok_or_else(none);
            (
                id,
                had.and_then(|path| files.parse(path, text::parse_pressure)),
            )
        });
    }

    /// The loads between an earlier snapshot and this one.
    fn since(&self, earlier: Option<&Snapshot>, wanted: bool) -> HostLoad {
        let mut found = HostLoad {
            cpus: self.cpus,
            ..HostLoad::default()
        };
        if !wanted {
            return found;
        }
        let mut note = |id, load: FileResult<Option<f64>>| match load {
            Ok(Some(load)) if load.is_finite() && load >= 0.0 => found.loads.push((id, load)),
            // Nothing to compare with, or a counter that went back: next time.
            Ok(_) => {}
            Err(reason) => found.missing.push((id, reason)),
        };
        let share = |share: &f64| Some(share.min(1.0));
        let had = |had: &FileResult<f64>, make: fn(&f64) -> Option<f64>| {
            had.as_ref().map(make).map_err(Clone::clone)
        };
        note(LoadId::RUN_QUEUE, had(&self.run_queue, |load| Some(*load)));
        note(LoadId::MEMORY, had(&self.memory, share));
        note(LoadId::CPU, self.cpu_since(earlier));
        note(LoadId::DISK, self.disk_since(earlier));
        note(LoadId::NETWORK, self.network_since(earlier));
        for (index, (id, total)) in self.pressure.iter().enumerate() {
            let before = earlier.and_then(|earlier| earlier.pressure.get(index)?.1.as_ref().ok());
            let stalled = total.as_ref().map_err(Clone::clone).map(|total| {
                let stalled = total.checked_sub(*before?)? as f64 / 1e6;
                Some((stalled / self.seconds_since(earlier)?).min(1.0))
            });
            note(*id, stalled);
        }
        found
    }

    /// Time since an earlier snapshot, if it is long enough to divide by.
    fn seconds_since(&self, earlier: Option<&Snapshot>) -> Option<f64> {
        let time = self.at.checked_sub(earlier?.at)?;
        (time >= Duration::from_millis(1)).then_some(time.as_secs_f64())
    }

    fn cpu_since(&self, earlier: Option<&Snapshot>) -> FileResult<Option<f64>> {
        let now = self.cpu.as_ref().map_err(Clone::clone)?;
        let before = earlier.and_then(|earlier| earlier.cpu.as_ref().ok());
        let share = match (now, before) {
            (Cpu::Machine(now), Some(Cpu::Machine(before))) => {
                let busy = now.busy.checked_sub(before.busy);
                // Some kernels take idle time back that they have counted before.
                let idle = now.idle.saturating_sub(before.idle);
                busy.filter(|busy| busy + idle > 0)
                    .map(|busy| busy as f64 / (busy + idle) as f64)
            }
            (Cpu::Cgroup(now), Some(Cpu::Cgroup(before))) => {
                let cpus = self.cpus.unwrap_or(1.0);
                let available = self.seconds_since(earlier).map(|seconds| seconds * cpus);
                available.map(|available| (now - before) / available)
            }
            _ => None,
        };
        // Quota is given out in periods, so an interval can have a little more than its part.
        Ok(share
            .filter(|share| *share >= 0.0)
            .map(|share| share.min(1.0)))
    }

    /// The busiest disk.
    fn disk_since(&self, earlier: Option<&Snapshot>) -> FileResult<Option<f64>> {
        let now = self.disk.as_ref().map_err(Clone::clone)?;
        let before = earlier.and_then(|earlier| earlier.disk.as_ref().ok());
        let Some(seconds) = self.seconds_since(earlier) else {
            return Ok(None);
        };
        let busiest = match (now, before) {
            (Disk::Busy(now), Some(Disk::Busy(before))) => {
                if now.is_empty() {
                    return Err("/proc/diskstats has no disk".into());
                }
                busiest(now.iter().filter_map(|(name, now)| {
                    let (_, before) = before.iter().find(|(known, _)| known == name)?;
                    let busy = f64::from(now.wrapping_sub(*before)) / 1e3;
                    // A device that came back under its name starts at 0, which looks like
                    // a long way round.
                    (busy <= 2.0 * seconds + 1.0).then_some(busy / seconds)
                }))
            }
            (Disk::Limited(now), Some(Disk::Limited(before))) => {
                busiest(now.iter().filter_map(|(device, now, limits)| {
                    let (_, before, _) = before.iter().find(|(known, ..)| known == device)?;
                    let transfers = now.iter().zip(before).zip(limits);
                    busiest(transfers.filter_map(|((now, before), limit)| {
                        let done = now.checked_sub(*before)?;
                        (*limit > 0).then(|| done as f64 / (*limit as f64 * seconds))
                    }))
                }))
            }
            _ => None,
        };
        Ok(busiest.map(|share| share.min(1.0)))
    }

    /// The busiest direction of the busiest interface.
    fn network_since(&self, earlier: Option<&Snapshot>) -> FileResult<Option<f64>> {
        let now = self.network.as_ref().map_err(Clone::clone)?;
        if now.iter().all(|interface| interface.capacity.is_none()) {
            return Err("no network interface reports its speed; set network_capacity".into());
        }
        let before = earlier.and_then(|earlier| earlier.network.as_ref().ok());
        let (Some(before), Some(seconds)) = (before, self.seconds_since(earlier)) else {
            return Ok(None);
        };
        let shares = now.iter().filter_map(|now| {
            let before = before.iter().find(|known| known.name == now.name)?;
            let received = now.received.checked_sub(before.received)?;
            let sent = now.sent.checked_sub(before.sent)?;
            Some(received.max(sent) as f64 * 8.0 / (now.capacity? * seconds))
        });
        Ok(busiest(shares).map(|share| share.min(1.0)))
    }
}

/// The interfaces that have a device behind them; in a container, where none has, all.
fn network(files: &Files, capacity: Option<f64>) -> FileResult<Vec<Interface>> {
    // The interfaces of this process, which may have others than the machine.
    let text = files.read_file("/proc/self/net/dev")?;
    let sys = |name: &str, file: &str| format!("/sys/class/net/{name}/{file}");
    let has_device = |name: &str| files.exists(sys(name, "device"));
    let any = text::parse_interface_bytes(&text).any(|(name, ..)| has_device(name));
    let interfaces = text::parse_interface_bytes(&text)
        .filter(|(name, ..)| !any || has_device(name))
        .map(|(name, received, sent)| Interface {
            received,
            sent,
            capacity: capacity
                .or_else(|| files.parse(sys(name, "speed"), text::parse_link_speed).ok()),
            name: name.to_owned(),
        });
    Ok(interfaces.collect())
}

fn busiest(shares: impl Iterator<Item = f64>) -> Option<f64> {
    shares.reduce(f64::max)
}

#[cfg(test)]
mod tests;
