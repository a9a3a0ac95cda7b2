//! The load record: what a back-end's kernel says of itself at one moment.
//!
//! Everything is little-endian. A record is a base of [`BASE`] bytes, [`PORTS`] ports, and
//! an entry per CPU; a copy may end after any of these parts, so that a short datagram
//! holds a prefix. `bpf/record.h` has the same layout for the programs that write it.
//!
//! | at | what |
//! |---|---|
//! | 0 | magic `EVKR` (4), version (2), [`Source`] (1), [`Scope`] (1) |
//! | 8 | begin: sequence number, odd while the record is being written |
//! | 16 | time: the back-end's monotonic clock, ns |
//! | 24 | epoch: a random number; counters of two epochs have nothing to do with each other |
//! | 32 | which parts are [available](Available) |
//! | 40 | CPUs of the scope (4); capacity in thousandths of a CPU (4) |
//! | 48 | place of the first CPU entry in this copy (2), number of entries in it (2), ports (2), target (2) |
//! | 56 | updates: how often the record was made (8); 64: recent busy time, ns (8) |
//! | 72 | totals: a [CPU entry](Cpu) with the sums over all CPUs |
//! | 248 | time under pressure in ns: CPU some, memory some, memory full, I/O some, I/O full (8 each) |
//! | 288 | the kernel's 10 s averages of the same, in per cent times 2048 (4 each); duration of the recent busy time, ns (4) |
//! | 312 | memory: total, available; swap in use: bytes (8 each) |
//! | 336 | load averages of 1, 5 and 15 minutes, times 2048 (4 each) |
//! | 348 | running average: tasks that run or wait for a CPU, times 2048, averaged over about 100 ms (4) |
//! | 352 | end: equals begin |
//! | 360 | ports, 12 bytes each: port (2), whether something listens (2), connections that wait to be accepted (4), most that may (4) |
//! | 552 | CPU entries, 176 bytes each; room that is left is 0 |
//!
//! Who cannot have a part for each CPU, but for all together, leaves it 0 in the entries: so
//! are `running`, `blocked` and `switches` in the records of a [process](Source::User), and a
//! cgroup may have no entries at all.
//!
//! What the [responder](Source::Responder) of a kernel sends is of the moment of the query, as far as loads
//! are made of it, with up to eight CPUs; with more, its time is the mean of the times at which
//! CPUs were looked at. The other counters of its totals (times by kind, switches, blocked, soft interrupts, dropped,
//! squeezed) are those that a timer has read.
//!
//! The *recent busy time* is that of the last 10 to 20 ms before the time of the record, however long ago the reader
//! read the last one. Records of a process have none, and those of an older version of the kernel's programs neither:
//! both fields were reserved and 0.
//!
//! A reader believes nothing: [`Record::parse`] checks what makes a copy a record, and every
//! number may still be any number.

/// Bytes of the part that every copy has.
pub const BASE: usize = 360;
/// Number of ports that a record has room for.
pub const PORTS: usize = 16;
/// Bytes of a port.
pub const PORT: usize = 12;
/// Offset of the entries of CPUs.
pub const CPUS: usize = BASE + PORTS * PORT;
/// Bytes of an entry.
pub const CPU: usize = 176;
/// Most CPUs in a record.
pub const MAX_CPUS: usize = 512;
/// The layout that is described here.
pub const VERSION: u16 = 1;
/// Kinds of soft interrupts: HI, TIMER, NET_TX, NET_RX, BLOCK, IRQ_POLL, TASKLET, SCHED,
/// HRTIMER, RCU.
pub const SOFTIRQS: usize = 10;
/// Load averages and the like are multiples of 1/2048, as in the kernel.
pub const FIXED: f64 = 2048.0;

const MAGIC: u32 = u32::from_le_bytes(*b"EVKR");

/// Writer of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::FromRepr, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
#[repr(u8)]
pub enum Source {
    /// The kernel, at the moment of the query.
    Responder = 1,
    /// The kernel, into a page, every few milliseconds and at changes of tasks.
    KernelPage = 2,
    /// A process, from `/proc`, at an interval.
    User = 3,
}

impl Source {
    /// The name in the status.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// Scope that a record describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::FromRepr, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
#[repr(u8)]
pub enum Scope {
    /// The whole machine.
    Machine = 1,
    /// A cgroup on it: a container, say.
    Cgroup = 2,
}

impl Scope {
    /// The name in the status.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// Parts of a record that have values. The other parts are 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Available(pub u64);

impl Available {
    /// CPU time by kind.
    pub const TIMES: Available = Available(1);
    /// Busy time.
    pub const BUSY: Available = Available(1 << 1);
    /// Tasks that run or wait for a CPU.
    pub const RUNNING: Available = Available(1 << 2);
    /// Context switches.
    pub const SWITCHES: Available = Available(1 << 3);
    /// Soft interrupts.
    pub const SOFTIRQS: Available = Available(1 << 4);
    /// Packets that wait for a CPU, and those that it dropped or put off.
    pub const BACKLOG: Available = Available(1 << 5);
    /// Pressure stall information.
    pub const PRESSURE: Available = Available(1 << 6);
    /// Memory of the machine or cgroup.
    pub const MEMORY: Available = Available(1 << 7);
    /// Load averages.
    pub const LOAD_AVERAGES: Available = Available(1 << 8);
    /// Listen backlogs of ports.
    pub const PORTS: Available = Available(1 << 9);
    /// Threads for soft interrupts: number of CPUs whose thread has work.
    pub const SOFTIRQ_THREADS: Available = Available(1 << 10);
    /// The average of running tasks.
    pub const RUNNING_AVERAGE: Available = Available(1 << 11);
    /// Tasks that wait for a disk.
    pub const BLOCKED: Available = Available(1 << 12);
    /// Recent busy time.
    pub const RECENT: Available = Available(1 << 13);

    /// Returns true if all parts of `other` are among these.
    pub const fn has_all(self, other: Available) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns these parts together with `other`.
    pub const fn with_parts(self, other: Available) -> Available {
        Available(self.0 | other.0)
    }
}

/// CPU time by kind in nanoseconds, since boot. Kinds are counted at ticks of the clock,
/// so only sums over many ticks are exact.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names of proc(5)")]
pub struct Times {
    pub user: u64,
    pub nice: u64,
    pub system: u64,
    pub irq: u64,
    pub softirq: u64,
    pub steal: u64,
    pub idle: u64,
    pub iowait: u64,
}

/// A CPU, or the sums over all of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cpu {
    /// Sequence number, odd while the entry is being written.
    pub begin: u64,
    /// Time when the entry was taken, on the back-end's monotonic clock, in ns.
    pub time_ns: u64,
    /// CPU time by kind.
    pub times: Times,
    /// Time in ns for which it was not idle, exact to the moment where the kernel allows.
    pub busy_ns: u64,
    /// Context switches.
    pub switches: u64,
    /// Tasks that run or wait for the CPU.
    pub running: u32,
    /// Tasks that wait for a disk.
    pub blocked: u32,
    /// Packets that wait for the CPU to process them.
    pub backlog: u32,
    /// Soft interrupts that are raised: a bit for each kind.
    pub pending: u32,
    /// Soft interrupts by kind, wrapping.
    pub softirqs: [u32; SOFTIRQS],
    /// Packets dropped because the backlog was full, wrapping.
    pub dropped: u32,
    /// Times when the CPU put packets off because it had done enough, wrapping.
    pub squeezed: u32,
    /// Number of the CPU; of totals, 0.
    pub number: u32,
    /// Threads for soft interrupts that are left over (`ksoftirqd`) that have work: 0 or 1
    /// for a CPU.
    pub softirq_threads: u32,
    /// Equals `begin` when the entry is whole.
    pub end: u64,
}

/// The listen backlog of a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Port {
    /// Number of the port.
    pub port: u16,
    /// True if something listens at the port.
    pub listening: bool,
    /// Connections that wait to be accepted.
    pub backlog: u32,
    /// Most connections that may wait to be accepted.
    pub limit: u32,
}

/// Time under pressure in ns since boot, and the kernel's averages over 10 s, 0 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stall {
    /// Total time under pressure since boot, in ns.
    pub total_ns: u64,
    /// Average, in per cent times 2048.
    pub avg10: u32,
}

/// Pressure stall information.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names of the kernel's documentation")]
pub struct Pressure {
    pub cpu_some: Stall,
    pub memory_some: Stall,
    pub memory_full: Stall,
    pub io_some: Stall,
    pub io_full: Stall,
}

/// Memory in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Memory in all, or the memory that may be used.
    pub total: u64,
    /// Memory that is available without swapping.
    pub available: u64,
    /// Swap in use.
    pub swap_used: u64,
}

/// The part that every copy of a record has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Base {
    /// Writer of the record.
    pub source: Source,
    /// Scope of the record: the machine or a cgroup.
    pub scope: Scope,
    /// Sequence number, odd while the record is being written.
    pub begin: u64,
    /// Time when the record was taken, on the back-end's monotonic clock, in ns.
    pub time_ns: u64,
    /// Counters of two epochs have nothing to do with each other.
    pub epoch: u64,
    /// Parts that the record has.
    pub available: Available,
    /// CPUs of the scope.
    pub cpus: u32,
    /// CPU time that may be used, in thousandths of a CPU. Less than the CPUs where a cgroup
    /// has a quota.
    pub capacity: u32,
    /// Place among the CPUs of the first entry in this copy.
    pub first_cpu: u16,
    /// Entries in this copy.
    pub entries: u16,
    /// Ports in the record.
    pub ports: u16,
    /// Target of the responder that the record describes.
    pub target: u16,
    /// Number of times that the record was made.
    pub updates: u64,
    /// Busy time of all CPUs in the last [`recent_ns`](Self::recent_ns) before the time of the record, in ns.
    pub recent_busy_ns: u64,
    /// Duration over which the recent busy time was counted, in ns: 10 to 20 ms.
    pub recent_ns: u32,
    /// Sums over all CPUs.
    pub totals: Cpu,
    /// Pressure stall information.
    pub pressure: Pressure,
    /// Memory of the scope.
    pub memory: Memory,
    /// Load averages of 1, 5 and 15 minutes, times 2048.
    pub load_averages: [u32; 3],
    /// Tasks that run or wait for a CPU, averaged over about 100 ms, times 2048.
    pub running_average: u32,
    /// Equals `begin` when the record is whole.
    pub end: u64,
}

impl Base {
    /// A record of nothing.
    pub const fn new(source: Source, scope: Scope) -> Self {
        const CPU: Cpu = Cpu {
            begin: 0,
            time_ns: 0,
            times: Times {
                user: 0,
                nice: 0,
                system: 0,
                irq: 0,
                softirq: 0,
                steal: 0,
                idle: 0,
                iowait: 0,
            },
            busy_ns: 0,
            switches: 0,
            running: 0,
            blocked: 0,
            backlog: 0,
            pending: 0,
            softirqs: [0; SOFTIRQS],
            dropped: 0,
            squeezed: 0,
            number: 0,
            softirq_threads: 0,
            end: 0,
        };
        const STALL: Stall = Stall {
            total_ns: 0,
            avg10: 0,
        };
        Base {
            source,
            scope,
            begin: 0,
            time_ns: 0,
            epoch: 0,
            available: Available(0),
            cpus: 0,
            capacity: 0,
            first_cpu: 0,
            entries: 0,
            ports: 0,
            target: 0,
            updates: 0,
            recent_busy_ns: 0,
            recent_ns: 0,
            totals: CPU,
            pressure: Pressure {
                cpu_some: STALL,
                memory_some: STALL,
                memory_full: STALL,
                io_some: STALL,
                io_full: STALL,
            },
            memory: Memory {
                total: 0,
                available: 0,
                swap_used: 0,
            },
            load_averages: [0; 3],
            running_average: 0,
            end: 0,
        }
    }
}

/// Reason why bytes are no record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadRecord {
    /// Bytes that end within a part of the record.
    #[error("a load record of {0} bytes is incomplete")]
    Length(usize),
    /// Bytes that do not begin with the magic of a record.
    #[error("not a load record: the bytes do not begin with EVKR")]
    Magic,
    /// A record with another layout.
    #[error("a load record of version {0}; this program reads version {VERSION}")]
    Version(u16),
    /// A record with a field whose value is not possible.
    #[error("a load record with a wrong {0}")]
    Field(&'static str),
    /// A record that was being written while it was read. The reader should read it again.
    #[error("the load record was being written: read it again")]
    Torn,
}

/// A copy of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// The part that every copy has.
    pub base: Base,
    ports: &'a [u8],
    cpus: &'a [u8],
}

impl<'a> Record<'a> {
    /// Parses a copy that ends after the base, the ports, or some CPU entry.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, BadRecord> {
        let length = BadRecord::Length(bytes.len());
        let (base, rest) = bytes.split_at_checked(BASE).ok_or(length)?;
        let (ports, cpus) = match rest {
            [] => (rest, rest),
            _ => rest.split_at_checked(PORTS * PORT).ok_or(length)?,
        };
        if cpus.len() % CPU != 0 {
            return Err(length);
        }
        let base = parse_base(base)?;
        // Who asked for more entries than there are CPUs gets room that is empty.
        let cpus = cpus.get(..usize::from(base.entries) * CPU);
        let cpus = cpus.ok_or(BadRecord::Field("number of CPU entries"))?;
        Ok(Record { base, ports, cpus })
    }

    /// The configured ports, if this copy has them.
    pub fn ports(&self) -> impl Iterator<Item = Port> + use<'a> {
        let ports = self.ports.chunks_exact(PORT);
        ports.take(usize::from(self.base.ports)).map(|bytes| {
            let mut bytes = Bytes(bytes);
            Port {
                port: bytes.u16(),
                listening: bytes.u16() != 0,
                backlog: bytes.u32(),
                limit: bytes.u32(),
            }
        })
    }

    /// The CPU entries of this copy. In a page, each may be torn.
    pub fn cpus(&self) -> impl Iterator<Item = Result<Cpu, BadRecord>> + use<'a> {
        let entries = self.cpus.chunks_exact(CPU);
        entries.map(|entry| parse_cpu(&mut Bytes(entry)))
    }
}

/// Reads numbers from the front; what is not there is 0.
struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        match self.0.split_first_chunk::<N>() {
            Some((first, rest)) => {
                self.0 = rest;
                *first
            }
            None => [0; N],
        }
    }

    fn u8(&mut self) -> u8 {
        u8::from_le_bytes(self.take())
    }

    fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.take())
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take())
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take())
    }
}

fn parse_base(bytes: &[u8]) -> Result<Base, BadRecord> {
    let mut bytes = Bytes(bytes);
    if bytes.u32() != MAGIC {
        return Err(BadRecord::Magic);
    }
    let version = bytes.u16();
    if version != VERSION {
        return Err(BadRecord::Version(version));
    }
    let source = Source::from_repr(bytes.u8()).ok_or(BadRecord::Field("source"))?;
    let scope = Scope::from_repr(bytes.u8()).ok_or(BadRecord::Field("scope"))?;
    let mut base = Base {
        begin: bytes.u64(),
        time_ns: bytes.u64(),
        epoch: bytes.u64(),
        available: Available(bytes.u64()),
        cpus: bytes.u32(),
        capacity: bytes.u32(),
        first_cpu: bytes.u16(),
        entries: bytes.u16(),
        ports: bytes.u16(),
        target: bytes.u16(),
        updates: bytes.u64(),
        recent_busy_ns: bytes.u64(),
        ..Base::new(source, scope)
    };
    base.totals = parse_cpu(&mut bytes)?;
    let mut stalls = [Stall::default(); 5];
    for stall in &mut stalls {
        stall.total_ns = bytes.u64();
    }
    for stall in &mut stalls {
        stall.avg10 = bytes.u32();
    }
    let [cpu_some, memory_some, memory_full, io_some, io_full] = stalls;
    base.pressure = Pressure {
        cpu_some,
        memory_some,
        memory_full,
        io_some,
        io_full,
    };
    base.recent_ns = bytes.u32();
    base.memory = Memory {
        total: bytes.u64(),
        available: bytes.u64(),
        swap_used: bytes.u64(),
    };
    base.load_averages = std::array::from_fn(|_| bytes.u32());
    base.running_average = bytes.u32();
    base.end = bytes.u64();
    if base.begin != base.end || base.begin % 2 == 1 {
        return Err(BadRecord::Torn);
    }
    if base.cpus == 0 || base.cpus as usize > MAX_CPUS {
        return Err(BadRecord::Field("number of CPUs"));
    }
    if u32::from(base.first_cpu) + u32::from(base.entries) > base.cpus {
        return Err(BadRecord::Field("first CPU"));
    }
    if usize::from(base.ports) > PORTS {
        return Err(BadRecord::Field("number of ports"));
    }
    if base.capacity == 0 {
        return Err(BadRecord::Field("capacity"));
    }
    Ok(base)
}

fn parse_cpu(bytes: &mut Bytes<'_>) -> Result<Cpu, BadRecord> {
    let cpu = Cpu {
        begin: bytes.u64(),
        time_ns: bytes.u64(),
        times: Times {
            user: bytes.u64(),
            nice: bytes.u64(),
            system: bytes.u64(),
            irq: bytes.u64(),
            softirq: bytes.u64(),
            steal: bytes.u64(),
            idle: bytes.u64(),
            iowait: bytes.u64(),
        },
        busy_ns: bytes.u64(),
        switches: bytes.u64(),
        running: bytes.u32(),
        blocked: bytes.u32(),
        backlog: bytes.u32(),
        pending: bytes.u32(),
        softirqs: std::array::from_fn(|_| bytes.u32()),
        dropped: bytes.u32(),
        squeezed: bytes.u32(),
        number: bytes.u32(),
        softirq_threads: bytes.u32(),
        end: bytes.u64(),
    };
    if cpu.begin == cpu.end && cpu.begin.is_multiple_of(2) {
        Ok(cpu)
    } else {
        Err(BadRecord::Torn)
    }
}

/// Writes numbers one after another into as many bytes as they have.
struct Out<'a>(&'a mut [u8], usize);

impl Out<'_> {
    fn put<const N: usize>(&mut self, bytes: [u8; N]) {
        if let Some(place) = self.0.get_mut(self.1..self.1 + N) {
            place.copy_from_slice(&bytes);
        }
        self.1 += N;
    }

    fn u16(&mut self, value: u16) {
        self.put(value.to_le_bytes());
    }

    fn u32(&mut self, value: u32) {
        self.put(value.to_le_bytes());
    }

    fn u64(&mut self, value: u64) {
        self.put(value.to_le_bytes());
    }
}

impl Base {
    /// Writes it into the first [`BASE`] bytes of a record.
    pub fn write(&self, out: &mut [u8; BASE]) {
        let mut out = Out(out, 0);
        out.u32(MAGIC);
        out.u16(VERSION);
        out.put([self.source as u8, self.scope as u8]);
        for value in [self.begin, self.time_ns, self.epoch, self.available.0] {
            out.u64(value);
        }
        out.u32(self.cpus);
        out.u32(self.capacity);
        for value in [self.first_cpu, self.entries, self.ports, self.target] {
            out.u16(value);
        }
        out.u64(self.updates);
        out.u64(self.recent_busy_ns);
        self.totals.put(&mut out);
        let pressure = &self.pressure;
        let stalls = [
            pressure.cpu_some,
            pressure.memory_some,
            pressure.memory_full,
            pressure.io_some,
            pressure.io_full,
        ];
        stalls.iter().for_each(|stall| out.u64(stall.total_ns));
        stalls.iter().for_each(|stall| out.u32(stall.avg10));
        out.u32(self.recent_ns);
        out.u64(self.memory.total);
        out.u64(self.memory.available);
        out.u64(self.memory.swap_used);
        self.load_averages.iter().for_each(|value| out.u32(*value));
        out.u32(self.running_average);
        out.u64(self.end);
    }
}

impl Cpu {
    /// Writes it as an entry.
    pub fn write(&self, out: &mut [u8; CPU]) {
        self.put(&mut Out(out, 0));
    }

    fn put(&self, out: &mut Out<'_>) {
        out.u64(self.begin);
        out.u64(self.time_ns);
        let times = &self.times;
        for value in [
            times.user,
            times.nice,
            times.system,
            times.irq,
            times.softirq,
            times.steal,
            times.idle,
            times.iowait,
            self.busy_ns,
            self.switches,
        ] {
            out.u64(value);
        }
        out.u32(self.running);
        out.u32(self.blocked);
        out.u32(self.backlog);
        out.u32(self.pending);
        self.softirqs.iter().for_each(|count| out.u32(*count));
        out.u32(self.dropped);
        out.u32(self.squeezed);
        out.u32(self.number);
        out.u32(self.softirq_threads);
        out.u64(self.end);
    }
}

/// A record with all its parts, to make copies of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Whole {
    /// The part that every copy has. What says which parts a copy has (`first_cpu`,
    /// `entries`, `ports`) is made when it is made.
    pub base: Base,
    /// The configured ports.
    pub ports: Vec<Port>,
    /// The CPUs.
    pub cpus: Vec<Cpu>,
}

impl From<&Record<'_>> for Whole {
    /// Makes a record of the parts that the copy has. CPU entries that are torn are left out.
    fn from(record: &Record<'_>) -> Self {
        Whole {
            base: record.base,
            ports: record.ports().collect(),
            cpus: record.cpus().filter_map(Result::ok).collect(),
        }
    }
}

impl Whole {
    /// Bytes of a copy with everything.
    pub fn copy_length(&self) -> usize {
        CPUS + self.cpus.len().min(MAX_CPUS) * CPU
    }

    /// Fills `out` with a copy: the parts that it has room for, with the entries of CPUs
    /// from `first_cpu` on. Less than [`BASE`] bytes are left as they are.
    pub fn copy(&self, first_cpu: u16, out: &mut [u8]) {
        let Some((base, rest)) = out.split_first_chunk_mut::<BASE>() else {
            return;
        };
        rest.fill(0);
        let (ports, cpus) = match rest.split_at_mut_checked(PORTS * PORT) {
            Some(parts) => parts,
            None => (rest, Default::default()),
        };
        let first = usize::from(first_cpu).min(self.cpus.len());
        let (cpus, _) = cpus.as_chunks_mut::<CPU>();
        let entries = cpus.iter_mut().zip(&self.cpus[first..]).map(|(out, cpu)| {
            cpu.write(out);
        });
        let entries = entries.count();
        let (ports, _) = ports.as_chunks_mut::<PORT>();
        for (out, port) in ports.iter_mut().zip(&self.ports) {
            port.write(out);
        }
        let copy = Base {
            first_cpu: first as u16,
            entries: entries as u16,
            ports: self.ports.len().min(PORTS) as u16,
            ..self.base
        };
        copy.write(base);
    }
}

impl Port {
    /// Writes it as an entry.
    pub fn write(&self, out: &mut [u8; PORT]) {
        let mut out = Out(out, 0);
        out.u16(self.port);
        out.u16(u16::from(self.listening));
        out.u32(self.backlog);
        out.u32(self.limit);
    }
}

#[cfg(test)]
mod tests;
