//! Loads of a back-end, computed from two of its load records for the time between them.
//!
//! Counters become rates here, at the reader, so that every reader sees the time since *its*
//! last reading. The CPU load of the moment is the exception: the kernel keeps what it needs. What is not available, or
//! cannot be true, is left out.

use std::time::Duration;

use evenkeel_core::load::{self, LoadId};

use crate::record::{Available, Base, FIXED, Port, Record};

/// Packets that a CPU processes in one go before it looks at others (the weight of NAPI):
/// a backlog as long as that counts as one task that waits.
pub const PACKETS_PER_TASK: f64 = 64.0;

/// Longest time between two records for which the CPU load is that of the last 10 to 20 ms, and not the mean since the
/// last record: until the next record a balancer sends requests by what was there last. A sample of some milliseconds
/// would say little of seconds.
pub const RECENT_UP_TO: Duration = Duration::from_millis(250);

/// [`RECENT_UP_TO`] in nanoseconds.
const RECENT_UP_TO_NS: f64 = RECENT_UP_TO.as_nanos() as f64;

/// Parts of the previous record of the same back-end, with which the next record is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Before {
    epoch: u64,
    time_ns: u64,
    busy_ns: u64,
    pressure_ns: [u64; 3],
}

impl Before {
    /// Keeps the parts of a record that the comparison with the next record needs.
    pub fn new(base: &Base) -> Self {
        Before {
            epoch: base.epoch,
            time_ns: base.time_ns,
            busy_ns: base.totals.busy_ns,
            pressure_ns: pressure(base),
        }
    }
}

fn pressure(base: &Base) -> [u64; 3] {
    let pressure = &base.pressure;
    [pressure.cpu_some, pressure.memory_some, pressure.io_some].map(|stall| stall.total_ns)
}

/// The loads of a back-end. All are 0 or more, and what could not be had is none.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Loads {
    /// [`LoadId::CPU`]: busy time over time and capacity, 0 to 1: of the last 10 to 20 ms, if the record has that and the
    /// last record is not older than [`RECENT_UP_TO`]; else of the time since the last record. The shorter time
    /// counts where records follow each other faster.
    pub cpu: Option<f64>,
    /// [`LoadId::RUN_QUEUE`]: tasks that run or wait for a CPU, per CPU of the capacity (of
    /// which there is at least one: a part of a CPU is in full use by one task); the
    /// average of about 100 ms, if there is one, else those of the moment.
    pub run_queue: Option<f64>,
    /// [`LoadId::PENDING_WORK`]: interrupt and network work that is put off, in tasks per CPU:
    /// packets that wait, by [`PACKETS_PER_TASK`], and threads for soft interrupts that have
    /// work.
    pub pending_work: Option<f64>,
    /// [`LoadId::MEMORY`]: share of the memory that is not available, 0 to 1.
    pub memory: Option<f64>,
    /// [`LoadId::CPU_PRESSURE`]: share of the time in which some task waited for a CPU.
    pub cpu_pressure: Option<f64>,
    /// [`LoadId::MEMORY_PRESSURE`]: share of the time in which some task waited for memory.
    pub memory_pressure: Option<f64>,
    /// [`LoadId::IO_PRESSURE`]: share of the time in which some task waited for a disk.
    pub io_pressure: Option<f64>,
    /// [`LoadId::ACCEPT_QUEUE`]: how full the fullest listen backlog is, 0 to 1.
    pub accept_queue: Option<f64>,
    /// Composite load: [`LoadId::COMPOSITE`].
    pub composite: Option<f64>,
}

impl Loads {
    /// The loads since the last record. Without one, or after a restart, those that need a
    /// difference are missing; the CPU load of the moment needs none.
    pub fn since_last(before: Option<&Before>, record: &Record<'_>) -> Self {
        let base = &record.base;
        let has = |part| base.available.has_all(part);
        let capacity = f64::from(base.capacity) / 1e3;
        let before = before.filter(|before| before.epoch == base.epoch);
        let elapsed = before
            .and_then(|before| base.time_ns.checked_sub(before.time_ns))
            .filter(|elapsed| *elapsed > 0)
            .map(|elapsed| elapsed as f64);
        let share = |now: u64, then: Option<u64>| {
            let spent = now.checked_sub(then?)? as f64;
            Some((spent / elapsed?).max(0.0))
        };
        let since_last = has(Available::BUSY)
            .then(|| share(base.totals.busy_ns, before.map(|before| before.busy_ns)))
            .flatten();
        let recent_ns = f64::from(base.recent_ns);
        let recent = (has(Available::RECENT) && recent_ns > 0.0)
            .then(|| base.recent_busy_ns as f64 / recent_ns);
        let is_mean =
            elapsed.is_some_and(|elapsed| elapsed <= recent_ns || elapsed > RECENT_UP_TO_NS);
        let busy = match is_mean {
            true => since_last.or(recent),
            false => recent.or(since_last),
        };
        let cpu = busy.map(|busy| (busy / capacity).min(1.0));
        let average =
            has(Available::RUNNING_AVERAGE).then(|| f64::from(base.running_average) / FIXED);
        let moment = has(Available::RUNNING).then(|| f64::from(base.totals.running));
        // Less than a CPU is in full use by one task already, so more of them would count several
        // times, and more than a request of ours is taken to add.
        let per_cpu = |running: f64| running / capacity.max(1.0);
        let run_queue = average.or(moment).map(per_cpu);
        let queue = moment.or(average).map(per_cpu);
        let backlog =
            has(Available::BACKLOG).then(|| f64::from(base.totals.backlog) / PACKETS_PER_TASK);
        let threads =
            has(Available::SOFTIRQ_THREADS).then(|| f64::from(base.totals.softirq_threads));
        let pending_work = match (backlog, threads) {
            (None, None) => None,
            _ => Some((backlog.unwrap_or(0.0) + threads.unwrap_or(0.0)) / f64::from(base.cpus)),
        };
        let memory = (has(Available::MEMORY) && base.memory.total > 0).then(|| {
            let available = base.memory.available as f64 / base.memory.total as f64;
            (1.0 - available).max(0.0)
        });
        let now = pressure(base);
        let [cpu_pressure, memory_pressure, io_pressure] = std::array::from_fn(|at| {
            let then = before.map(|before| before.pressure_ns[at]);
            let stalled = has(Available::PRESSURE).then(|| share(now[at], then));
            stalled.flatten().map(|share| share.min(1.0))
        });
        let accept_queue = if has(Available::PORTS) {
            record.ports().filter_map(fill).reduce(f64::max)
        } else {
            None
        };
        let mut loads = Loads {
            cpu,
            run_queue,
            pending_work,
            memory,
            cpu_pressure,
            memory_pressure,
            io_pressure,
            accept_queue,
            composite: None,
        };
        loads.composite = loads.composite(queue);
        loads
    }

    /// Returns the composite load, which strategies use by default:
    ///
    /// `max(cpu, queue) + pending_work + accept_queue + memory_pressure + io_pressure`
    ///
    /// where `queue` are the tasks per CPU of the moment, and above 1 their logarithm ([`load::of_queue`]).
    /// Below saturation it is the utilisation; above, the queue for a CPU tells two saturated servers
    /// apart (S. Zhou, *An experimental assessment of resource queue lengths as load indices*, 1987). What
    /// is added is work that will want the CPU soon (Vaidyanathan et al., 2005, section 4). A part that is not
    /// available counts as 0; without `cpu` and tasks there is no composite load. Below 1 the load is a share of the CPUs in
    /// use, which a logarithm is not.
    ///
    /// `docs/design/composite-load.md` has the other formulas that were tried, with figures.
    fn composite(&self, queue: Option<f64>) -> Option<f64> {
        let busy = match (self.cpu, queue.map(load::of_queue)) {
            (Some(cpu), Some(queue)) => cpu.max(queue),
            (one, other) => one.or(other)?,
        };
        let soon = [
            self.pending_work,
            self.accept_queue,
            self.memory_pressure,
            self.io_pressure,
        ];
        Some(busy + soon.into_iter().flatten().sum::<f64>())
    }

    /// Returns the available loads with their ids.
    pub fn iter(&self) -> impl Iterator<Item = (LoadId, f64)> {
        let all = [
            (LoadId::CPU, self.cpu),
            (LoadId::RUN_QUEUE, self.run_queue),
            (LoadId::PENDING_WORK, self.pending_work),
            (LoadId::MEMORY, self.memory),
            (LoadId::CPU_PRESSURE, self.cpu_pressure),
            (LoadId::MEMORY_PRESSURE, self.memory_pressure),
            (LoadId::IO_PRESSURE, self.io_pressure),
            (LoadId::ACCEPT_QUEUE, self.accept_queue),
            (LoadId::COMPOSITE, self.composite),
        ];
        all.into_iter().filter_map(|(id, value)| Some((id, value?)))
    }
}

/// Returns how full a port's backlog is, 0 to 1. A port that nobody listens at has no backlog.
fn fill(port: Port) -> Option<f64> {
    let full = f64::from(port.backlog) / f64::from(port.limit.max(1));
    port.listening.then_some(full.min(1.0))
}

#[cfg(test)]
mod tests;
