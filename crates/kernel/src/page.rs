//! A load page: memory that always holds the record of now.
//!
//! The kernel's own page is written by BPF programs: a timer writes the base and refreshes
//! the entries of the CPUs, and each CPU writes its own entry when it changes tasks. So an
//! entry is often newer than the base, and a [`Follower`] makes the totals anew from the
//! entries. What belongs together has a sequence number before and behind, odd while it is
//! being written, and is read again if they differ.

#[cfg(feature = "bpf")]
mod kernel;
mod mapping;

#[cfg(feature = "bpf")]
pub use kernel::KernelPage;
pub use mapping::Mapping;

use crate::record::{BadRecord, Cpu, Record, SOFTIRQS, Source};

/// Reads the copies of one page, one after the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Follower {
    epoch: u64,
    time_ns: u64,
    busy_ns: u64,
}

impl Follower {
    /// Parses a copy of a page.
    ///
    /// In one of the kernel the totals become the sums over the CPUs' entries, at the time of
    /// the newest: a CPU whose entry is older has been doing since then what it was doing,
    /// being busy or not, else it would have written. If this is the `last` attempt, entries
    /// that are torn do not matter, and the totals stay those of the base.
    ///
    /// # Errors
    ///
    /// The copy is no record. [`BadRecord::Torn`]: it was being written, or is older than the
    /// last one; copy it again.
    pub fn read<'a>(&mut self, bytes: &'a [u8], last: bool) -> Result<Record<'a>, BadRecord> {
        let mut record = Record::parse(bytes)?;
        let base = &mut record.base;
        let whole = base.first_cpu == 0 && u32::from(base.entries) == base.cpus;
        if base.source != Source::KernelPage || !whole {
            return Ok(record);
        }
        match sum(&record) {
            Some((time_ns, totals)) => {
                record.base.time_ns = time_ns;
                record.base.totals = totals;
            }
            None if last => {}
            None => return Err(BadRecord::Torn),
        }
        let base = &mut record.base;
        if base.epoch == self.epoch {
            if base.time_ns < self.time_ns {
                return Err(BadRecord::Torn);
            }
            // A CPU that changed tasks while the others were copied was taken to be busy for
            // some microseconds too many. Counters do not go back.
            base.totals.busy_ns = base.totals.busy_ns.max(self.busy_ns);
        }
        *self = Follower {
            epoch: base.epoch,
            time_ns: base.time_ns,
            busy_ns: base.totals.busy_ns,
        };
        Ok(record)
    }

    /// Copies a page into `buffer` and parses the copy; again if it was being written.
    ///
    /// # Errors
    ///
    /// It holds no record, or one that is torn each time.
    pub fn read_record<'a>(
        &mut self,
        page: &Mapping,
        buffer: &'a mut Vec<u8>,
    ) -> Result<Record<'a>, BadRecord> {
        buffer.resize(page.used_length(), 0);
        for _ in 1..COPIES {
            page.copy(buffer);
            let mut next = *self;
            if next.read(buffer, false).err() != Some(BadRecord::Torn) {
                return self.read(buffer, false);
            }
        }
        page.copy(buffer);
        self.read(buffer, true)
    }
}

/// Number of attempts to copy a page that is being written in this process.
const COPIES: u32 = 16;

/// The sums over all CPUs, and the time of which they tell; none if an entry is torn.
fn sum(record: &Record<'_>) -> Option<(u64, Cpu)> {
    let mut newest = record.base.time_ns;
    for cpu in record.cpus() {
        newest = newest.max(cpu.ok()?.time_ns);
    }
    let base = &record.base.totals;
    let mut sum = Cpu {
        begin: base.begin,
        end: base.end,
        time_ns: newest,
        ..Cpu::default()
    };
    for cpu in record.cpus() {
        let cpu = cpu.ok()?;
        let since = match cpu.running {
            0 => 0,
            _ => newest.wrapping_sub(cpu.time_ns),
        };
        let add = |to: &mut u64, what: u64| *to = to.wrapping_add(what);
        add(&mut sum.busy_ns, cpu.busy_ns.wrapping_add(since));
        add(&mut sum.switches, cpu.switches);
        let (to, from) = (&mut sum.times, &cpu.times);
        add(&mut to.user, from.user);
        add(&mut to.nice, from.nice);
        add(&mut to.system, from.system);
        add(&mut to.irq, from.irq);
        add(&mut to.softirq, from.softirq);
        add(&mut to.steal, from.steal);
        add(&mut to.idle, from.idle);
        add(&mut to.iowait, from.iowait);
        sum.running = sum.running.saturating_add(cpu.running);
        sum.blocked = sum.blocked.saturating_add(cpu.blocked);
        sum.backlog = sum.backlog.saturating_add(cpu.backlog);
        sum.softirq_threads = sum.softirq_threads.saturating_add(cpu.softirq_threads);
        sum.pending |= cpu.pending;
        sum.dropped = sum.dropped.wrapping_add(cpu.dropped);
        sum.squeezed = sum.squeezed.wrapping_add(cpu.squeezed);
        for kind in 0..SOFTIRQS {
            sum.softirqs[kind] = sum.softirqs[kind].wrapping_add(cpu.softirqs[kind]);
        }
    }
    Some((newest, sum))
}

#[cfg(test)]
mod tests;
