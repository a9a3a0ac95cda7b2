//! Locations and the loads they report.
//!
//! A *location* is whatever the application says it is: a host, a container, a
//! process. Members of several groups may share one, and so share its load. A load
//! is soft state with an age: a stale one must count as *unknown*, never as idle.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use arc_swap::ArcSwapOption;

use crate::signal::Signal;
use crate::time::{Horizon, Instant, keep_word_old, millis, millis_since};

/// Which quantity a load value measures.
///
/// The first five ids are those of the OMG's `CosLoadBalancing` module; any other id
/// is carried as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LoadId(pub u32);

impl LoadId {
    /// CPU utilisation, 0 to 1 (may exceed 1 where run queues are counted).
    pub const CPU: LoadId = LoadId(0);
    /// Disk utilisation, 0 to 1.
    pub const DISK: LoadId = LoadId(1);
    /// Memory in use, 0 to 1.
    pub const MEMORY: LoadId = LoadId(2);
    /// Network utilisation, 0 to 1.
    pub const NETWORK: LoadId = LoadId(3);
    /// Requests per second.
    pub const REQUESTS_PER_SECOND: LoadId = LoadId(4);
    /// Application-defined utilisation, 0 to 1 (ORCA `application_utilization`).
    pub const UTILIZATION: LoadId = LoadId(16);
    /// Requests in flight at the location, from all balancers and direct clients.
    pub const IN_FLIGHT: LoadId = LoadId(17);
    /// Mean response time in seconds, queueing included.
    pub const RESPONSE_TIME: LoadId = LoadId(18);
    /// Mean service time in seconds: a response time without a queue.
    pub const SERVICE_TIME: LoadId = LoadId(19);
    /// Mean time in seconds for which a client thinks between two requests.
    pub const THINK_TIME: LoadId = LoadId(20);
    /// Tasks that run or wait for a CPU, per CPU.
    pub const RUN_QUEUE: LoadId = LoadId(21);
    /// Share of time, 0 to 1, in which some task waited for a CPU (pressure stall
    /// information of Linux, `some`).
    pub const CPU_PRESSURE: LoadId = LoadId(22);
    /// Share of time, 0 to 1, in which some task waited for memory.
    pub const MEMORY_PRESSURE: LoadId = LoadId(23);
    /// Share of time, 0 to 1, in which some task waited for a disk.
    pub const IO_PRESSURE: LoadId = LoadId(24);
    /// Interrupt and network work that a kernel has put off, in tasks per CPU.
    pub const PENDING_WORK: LoadId = LoadId(25);
    /// How full the fullest listen backlog is, 0 to 1.
    pub const ACCEPT_QUEUE: LoadId = LoadId(26);
    /// All that a kernel knows of its load in one number: tasks per CPU that run, wait, or
    /// will soon (`evenkeel_kernel::loads` has the formula).
    pub const COMPOSITE: LoadId = LoadId(27);
    /// Time in seconds from a load query to its answer.
    pub const ROUND_TRIP: LoadId = LoadId(28);
    /// Not a load of its own: whichever load stands first in what monitors of CORBA report
    /// of a location ([`Location::lead_with`]); where there is no fresh one, [`LoadId::CPU`].
    pub const FIRST: LoadId = LoadId(u32::MAX);
}

/// What [`LoadId::FIRST`] is called.
const FIRST: &str = "first";

/// The loads that have a name.
const NAMES: [(LoadId, &str); 18] = [
    (LoadId::CPU, "cpu"),
    (LoadId::DISK, "disk"),
    (LoadId::MEMORY, "memory"),
    (LoadId::NETWORK, "network"),
    (LoadId::REQUESTS_PER_SECOND, "requests_per_second"),
    (LoadId::UTILIZATION, "utilization"),
    (LoadId::IN_FLIGHT, "in_flight"),
    (LoadId::RESPONSE_TIME, "response_time"),
    (LoadId::SERVICE_TIME, "service_time"),
    (LoadId::THINK_TIME, "think_time"),
    (LoadId::RUN_QUEUE, "run_queue"),
    (LoadId::CPU_PRESSURE, "cpu_pressure"),
    (LoadId::MEMORY_PRESSURE, "memory_pressure"),
    (LoadId::IO_PRESSURE, "io_pressure"),
    (LoadId::PENDING_WORK, "pending_work"),
    (LoadId::ACCEPT_QUEUE, "accept_queue"),
    (LoadId::COMPOSITE, "composite"),
    (LoadId::ROUND_TRIP, "round_trip"),
];

impl LoadId {
    /// Whether it has a name, and so a place of its own at each location. Of the others a
    /// location keeps [`UNNAMED_LOADS`].
    #[inline]
    pub const fn is_named(self) -> bool {
        self.place().is_some()
    }

    /// Its place in [`NAMES`], if it has a name.
    #[inline]
    const fn place(self) -> Option<usize> {
        match self.0 {
            id @ 0..=4 => Some(id as usize),
            id @ 16..=28 => Some(id as usize - 11),
            _ => None,
        }
    }

    /// Whether it is a utilisation: a share, 1 when all is in use.
    pub const fn is_utilization(self) -> bool {
        matches!(
            self,
            LoadId::CPU
                | LoadId::DISK
                | LoadId::MEMORY
                | LoadId::NETWORK
                | LoadId::UTILIZATION
                | LoadId::CPU_PRESSURE
                | LoadId::MEMORY_PRESSURE
                | LoadId::IO_PRESSURE
                | LoadId::ACCEPT_QUEUE
        )
    }

    /// Whether it counts tasks that run or wait, per CPU: 1 when all is in use, more when
    /// some wait.
    pub const fn is_queue(self) -> bool {
        matches!(self, LoadId::RUN_QUEUE | LoadId::COMPOSITE)
    }
}

impl fmt::Display for LoadId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match NAMES.iter().find(|(id, _)| id == self) {
            Some((_, name)) => f.write_str(name),
            None if *self == LoadId::FIRST => f.write_str(FIRST),
            None => write!(f, "{}", self.0),
        }
    }
}

impl std::str::FromStr for LoadId {
    type Err = ParseLoadIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match NAMES.iter().find(|(_, name)| *name == text) {
            Some((id, _)) => Ok(*id),
            None if text == FIRST => Ok(LoadId::FIRST),
            None => Ok(LoadId(text.parse().map_err(|_| ParseLoadIdError)?)),
        }
    }
}

/// The text is neither the name nor the number of a load id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected {}, or a number from 0 to 4294967295", NAMES.map(|(_, name)| name).join(", "))]
pub struct ParseLoadIdError;

/// One load value: finite, not negative, and not absurd.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct LoadValue(f32);

/// A value that no load may have.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[error("a load must be a number from 0 to 1e12, not {0}")]
pub struct InvalidLoad(pub f64);

impl LoadValue {
    /// The largest load that is believed. Larger numbers are mistakes of a unit or a
    /// sensor, and one of them would dominate every average it enters.
    pub const MAX: f32 = 1e12;

    /// No load at all.
    pub const ZERO: LoadValue = LoadValue(0.0);

    /// Parses a reported number.
    pub fn new(value: f64) -> Result<Self, InvalidLoad> {
        // Not f64::from(MAX), which is a little less than the documented limit.
        if (0.0..=1e12).contains(&value) {
            Ok(LoadValue(value as f32))
        } else {
            Err(InvalidLoad(value))
        }
    }

    /// The number.
    pub fn get(self) -> f32 {
        self.0
    }
}

/// A load as it was last reported, with the time at which it was.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Load {
    /// Whoever reported it has no news: it counts as unknown, whatever its age.
    pub expired: bool,
    /// What is measured.
    pub id: LoadId,
    /// The reported value.
    pub value: LoadValue,
    /// When the report arrived.
    pub at: Instant,
}

/// How many loads without a name a location keeps. When one more is reported, the one that was
/// not heard of for longest makes room, if that is [`FORGOTTEN`] ago; otherwise the new one
/// is refused.
pub const UNNAMED_LOADS: usize = 16;

/// How many different loads a location keeps: all that have a name, whatever else is
/// reported, and [`UNNAMED_LOADS`].
pub const LOADS_PER_LOCATION: usize = NAMES.len() + UNNAMED_LOADS;

/// After so long without a report a load without a name makes room for another one.
pub const FORGOTTEN: Duration = Duration::from_secs(60);

/// After so long without a report a load without a name is not kept any more, whether or not
/// there is room. It is the longest `load_max_age` of a group.
const LONG_FORGOTTEN: Duration = Duration::from_secs(3600);

/// One load in an atomic word each for its id and its value with time, so that the
/// data plane reads it without a lock and never sees half a report.
///
/// What the data plane reads stands in front.
#[derive(Debug, Default)]
#[repr(C)]
struct Cell {
    /// Load id plus one; 0 is an empty cell. Written once: what has found a cell may go on
    /// with it, even if it is not kept any more.
    id: AtomicU64,
    /// Value as f32 bits (high half), report time in milliseconds, wrapping (low half).
    /// Times are odd ([`millis`]): an even one is that of a report which has expired.
    value_at: AtomicU64,
    /// What a bind is expected to add (f32 bits).
    per_bind: AtomicU32,
    /// [`Location::bound`] at the time of the report.
    bound_at: AtomicU32,
    /// [`Location::in_flight`] at the time of the report.
    in_flight_at: AtomicU32,
    /// [`Location::assigned`] at the time of the report.
    assigned_at: AtomicU32,
    /// What each of our requests that is there adds (f32 bits), if the load is one [of the
    /// moment](is_momentary); else 0.
    per_request: AtomicU32,
    /// [`Location::doubted`] at the time of the report.
    doubted_at: AtomicU32,
    /// [`Location::stays`] at the time of the report.
    stays_at: AtomicU64,
    /// For how long a client that goes there itself may stay on average, in seconds (f32
    /// bits); 0 is not known.
    stay: AtomicU32,
    /// Our requests that are in the reported load (f32 bits).
    ours: AtomicU32,
    /// The load without ours, averaged over the last few reports (f32 bits).
    usual: AtomicU32,
    /// Binds per second (f32 bits), averaged over about a second.
    rate: AtomicU32,
    /// The load, averaged over about a second (f32 bits).
    mean: AtomicU32,
    /// [`Location::in_flight`], averaged over about a second (f32 bits).
    mean_in_flight: AtomicU32,
    /// A monitor has news of it: others do not count.
    held: AtomicBool,
}

/// Whether `word` of a cell is a report that may count.
#[inline]
const fn is_report(word: u64) -> bool {
    word & 1 == 1
}

/// Over about how many seconds kernels average the length of a queue.
const QUEUE_AVERAGE: f32 = 0.1;

/// Reports of a utilisation that come at longer intervals, in seconds, tell of too long a
/// time to say who is there now.
const MOMENT: f32 = 0.25;

/// What is usual is an average over about so many reports.
const USUAL: f32 = 4.0;

/// After so many milliseconds half of what others had in a queue is something else.
const HALF_LIFE: f32 = 30.0;

/// A busy location does not become idle because none of our requests is there: at least
/// this share of a utilisation is somebody else's.
const NOT_OURS: f32 = 0.5;

/// Whether a load, reported `seconds` after the one before, tells of a moment so short
/// that the requests which are there now make the next one.
fn is_momentary(id: LoadId, seconds: f32) -> bool {
    id.is_queue() || (id.is_utilization() && seconds <= MOMENT)
}

/// How many clients are still there who may `stay` for so many seconds, when the last report
/// is so many milliseconds old: half when it is as old as that.
fn stay_share(age: u32, stay: f32) -> f32 {
    let (age, stay) = (age as f32 / 1e3, stay.max(1.0));
    stay / (age + stay)
}

/// How much of a moving average `over` so many seconds is new after `seconds`. Exact however
/// short those are.
fn new_share(seconds: f32, over: f32) -> f32 {
    let x = seconds / over;
    match x < 0.1 {
        // The first terms of its series: a monitor asks for some with each of its reports,
        // hundreds of thousands of times a second. Right to 4 in a million.
        true => x * (1.0 - x * (0.5 - x / 6.0)),
        false => -(-x).exp_m1(),
    }
}

/// A moving average, in f32 bits: the next value, of which this `share` is new.
fn average(cell: &AtomicU32, new: f32, share: f32) -> f32 {
    let old = f32::from_bits(cell.load(Ordering::Relaxed));
    let next = old + (new - old) * share;
    cell.store(next.to_bits(), Ordering::Relaxed);
    next
}

/// What servers at a location are told about sending their clients away, where clients
/// reach them directly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Tell {
    /// To do it while a pulse is on: as long as nothing else is said.
    Pulses = 0,
    /// To do it.
    On,
    /// Not to do it.
    Off,
}

/// The loads of one location, shared by all groups with members there.
///
/// Readers are lock-free; writers (reports) may come from any thread.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct Location {
    /// Requests ever bound to members here by this process, wrapping.
    bound: AtomicU32,
    /// Requests of this process that members here are working on.
    in_flight: AtomicU32,
    /// Those of `bound` whose clients go to the member themselves, wrapping.
    assigned: AtomicU32,
    /// Loads that have a name, in the order in which they came. The first cell shares the
    /// first cache line: most locations report one load.
    cells: [Cell; NAMES.len()],
    /// The others. The list is replaced as a whole when one comes or goes.
    unnamed: ArcSwapOption<Vec<Arc<Cell>>>,
    /// Clients that ever came to members here to stay, wrapping: where clients are moved one by
    /// one.
    came: AtomicU32,
    /// Those of `assigned` that are [doubted](Location::doubt), wrapping.
    doubted: AtomicU32,
    /// For how long those whose clients go there themselves may stay, in milliseconds, all
    /// together and wrapping: clusters that give different quanta may share a location.
    stays: AtomicU64,
    /// The load that [`LoadId::FIRST`] means, plus one; 0 is none.
    first: AtomicU64,
    /// Whether a pulse is on.
    pulse: AtomicBool,
    /// Whether a server here sends clients away, or may.
    shut: AtomicBool,
    /// What servers here are to be told: [`Tell`].
    tell: AtomicU8,
    name: Arc<str>,
    changed: Signal,
    /// Who wants to know that there is a report at all.
    watchers: Mutex<Vec<Weak<AtomicBool>>>,
}

/// The load that a location is taken to have had when the cost of a bind is estimated,
/// if it reported less: 5 % where a load is a utilisation, else one unit.
fn floor(id: LoadId) -> f32 {
    if id.is_utilization() { 0.05 } else { 1.0 }
}

/// Which load is asked for, and what counts as fresh: worked out once for all members of a
/// decision.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Query {
    pub(crate) id: LoadId,
    /// Where a location keeps it; past the end if it has no name.
    place: usize,
    /// Whether it may be found somewhere else.
    elsewhere: bool,
    pub(crate) horizon: Horizon,
}

impl Query {
    #[inline]
    pub(crate) fn new(id: LoadId, horizon: Horizon) -> Self {
        Query {
            id,
            place: id.place().unwrap_or(usize::MAX),
            elsewhere: !id.is_named() || id == LoadId::UTILIZATION,
            horizon,
        }
    }

    /// The same at another moment.
    #[inline]
    pub(crate) fn at(self, now: Instant) -> Self {
        Query {
            horizon: self.horizon.at(now),
            ..self
        }
    }
}

/// A report as [`Location::last_report`] gives it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Report {
    pub(crate) value: f32,
    /// What our own requests have probably added since; less than 0 if they are done.
    pub(crate) added: f32,
    /// Whether that is what those add who are there now, and not what all have added who came.
    pub(crate) is_momentary: bool,
    /// Milliseconds of [`millis`]: tells reports apart.
    pub(crate) at: u32,
    /// Requests ever bound here, wrapping, when it arrived.
    pub(crate) bound_at: u32,
    /// Requests bound here since.
    pub(crate) bound: u32,
}

/// The location already keeps [`UNNAMED_LOADS`] other ids without a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a location keeps at most {UNNAMED_LOADS} loads without a name at a time")]
pub struct TooManyLoads;

impl Cell {
    #[inline]
    fn is_for(&self, id: LoadId) -> bool {
        self.id.load(Ordering::Acquire) == u64::from(id.0) + 1
    }

    /// Value and time of the last report, if that is fresh.
    #[inline]
    fn fresh(&self, query: &Query) -> Option<u64> {
        let word = self.value_at.load(Ordering::Acquire);
        (is_report(word) && !query.horizon.is_past(word as u32)).then_some(word)
    }

    /// How many of those who were sent here `age` milliseconds ago, or later, have left: without
    /// a report to say so, the estimate falls as the time passes that they may stay.
    #[inline(never)]
    fn left(&self, assigned: u32, age: u32) -> f32 {
        match f32::from_bits(self.stay.load(Ordering::Relaxed)) {
            stay if stay > 0.0 => assigned as f32 * (1.0 - stay_share(age, stay)),
            _ => 0.0,
        }
    }

    /// Milliseconds since the last report; 0 for one that is about to come.
    fn silence(&self, now: Instant) -> u32 {
        match self.value_at.load(Ordering::Acquire) {
            _ if self.held.load(Ordering::Acquire) => 0,
            0 => 0,
            word => millis_since(word as u32, now),
        }
    }

    fn is_silent(&self, now: Instant, time: Duration) -> bool {
        u128::from(self.silence(now)) > time.as_millis()
    }
}

impl Location {
    /// A location about which nothing is known.
    pub fn new(name: impl Into<Arc<str>>) -> Self {
        Location {
            name: name.into(),
            ..Location::default()
        }
    }

    /// Has `reported` set as soon as any load is reported here, now if one was already.
    pub(crate) fn announce(&self, reported: &Arc<AtomicBool>) {
        let mut watchers = self.watchers.lock().unwrap_or_else(PoisonError::into_inner);
        watchers.retain(|watcher| watcher.strong_count() > 0);
        let is_same = |watcher: &Weak<AtomicBool>| watcher.as_ptr() == Arc::as_ptr(reported);
        if !watchers.iter().any(is_same) {
            watchers.push(Arc::downgrade(reported));
        }
        drop(watchers);
        let is_kept = |cell: &Cell| cell.id.load(Ordering::Acquire) != 0;
        if self.cells.iter().any(is_kept) {
            reported.store(true, Ordering::Relaxed);
        }
    }

    /// There is a load that there was not before, which is rare.
    #[cold]
    fn tell_watchers(&self) {
        let watchers = self.watchers.lock().unwrap_or_else(PoisonError::into_inner);
        for watcher in watchers.iter().filter_map(Weak::upgrade) {
            watcher.store(true, Ordering::Relaxed);
        }
    }

    /// The name that the configuration gives it.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// Stores a report; one that a monitor [holds](Location::observe) stays as it is.
    pub fn report(&self, id: LoadId, value: LoadValue, now: Instant) -> Result<(), TooManyLoads> {
        self.with_cell_for(id, now, |cell| {
            if !cell.held.load(Ordering::Acquire) {
                self.store(cell, id, value, now);
            }
        })
    }

    /// Does something with the cell of load `id`, if there is one.
    #[inline]
    fn with_cell<T>(&self, id: LoadId, act: impl FnOnce(&Cell) -> T) -> Option<T> {
        if let Some(place) = id.place() {
            let cell = &self.cells[place];
            return cell.is_for(id).then(|| act(cell));
        }
        let unnamed = self.unnamed.load();
        let mut cells = unnamed.as_ref()?.iter();
        cells.find(|cell| cell.is_for(id)).map(|cell| act(cell))
    }

    /// The same, with a new one if need be.
    fn with_cell_for<T>(
        &self,
        id: LoadId,
        now: Instant,
        act: impl FnOnce(&Cell) -> T,
    ) -> Result<T, TooManyLoads> {
        let Some(place) = id.place() else {
            return Ok(act(&*self.unnamed_cell(id, now)?));
        };
        let cell = &self.cells[place];
        if cell.id.load(Ordering::Acquire) == 0 {
            cell.id.store(u64::from(id.0) + 1, Ordering::Release);
            self.tell_watchers();
        }
        Ok(act(cell))
    }

    /// The cell of a load without a name, which may be a new one.
    fn unnamed_cell(&self, id: LoadId, now: Instant) -> Result<Arc<Cell>, TooManyLoads> {
        loop {
            let current = self.unnamed.load_full();
            let mut cells = current.as_deref().cloned().unwrap_or_default();
            if let Some(cell) = cells.iter().find(|cell| cell.is_for(id)) {
                return Ok(Arc::clone(cell));
            }
            if cells.len() >= UNNAMED_LOADS {
                let oldest = (0..cells.len()).max_by_key(|&index| cells[index].silence(now));
                match oldest.filter(|&index| cells[index].is_silent(now, FORGOTTEN)) {
                    Some(index) => drop(cells.remove(index)),
                    None => return Err(TooManyLoads),
                }
            }
            let new = Arc::new(Cell {
                id: AtomicU64::new(u64::from(id.0) + 1),
                ..Cell::default()
            });
            cells.push(Arc::clone(&new));
            let before = self
                .unnamed
                .compare_and_swap(&current, Some(Arc::new(cells)));
            if before.as_ref().map(Arc::as_ptr) == current.as_ref().map(Arc::as_ptr) {
                return Ok(new);
            }
        }
    }

    /// Stores what a monitor has read, and holds it: until it [expires](Location::expire),
    /// reports of others do not count, which are older or about something else. All loads
    /// for which there is room are stored.
    pub fn observe(
        &self,
        loads: impl IntoIterator<Item = (LoadId, LoadValue)>,
        now: Instant,
    ) -> Result<(), TooManyLoads> {
        let mut result = Ok(());
        for (id, value) in loads {
            let stored = self.with_cell_for(id, now, |cell| {
                cell.held.store(true, Ordering::Release);
                self.store(cell, id, value, now);
            });
            result = result.and(stored);
        }
        result
    }

    /// The monitor that [holds](Location::observe) these loads has no news of them: they
    /// are unknown from now on, and what others report of them counts. Those that it does
    /// not hold stay as they are.
    pub fn expire(&self, ids: impl IntoIterator<Item = LoadId>) {
        for id in ids {
            self.with_cell(id, |cell| {
                if !cell.held.load(Ordering::Acquire) {
                    return;
                }
                let word = cell.value_at.load(Ordering::Acquire);
                // If it fails, somebody else has just reported it.
                let _ = cell.value_at.compare_exchange(
                    word,
                    word & !1,
                    Ordering::AcqRel,
                    Ordering::Acquire,
                );
                cell.held.store(false, Ordering::Release);
            });
        }
    }

    /// Stores a report of several loads: all of them, or none if they are too many. For
    /// those who are told and can do better.
    pub fn report_all(
        &self,
        loads: &[(LoadId, LoadValue)],
        now: Instant,
    ) -> Result<(), TooManyLoads> {
        let kept = self.unnamed.load_full().unwrap_or_default();
        let is_kept = |id: LoadId| kept.iter().any(|cell| cell.is_for(id));
        let is_new = |&(index, (id, _)): &(usize, &(LoadId, LoadValue))| {
            !id.is_named() && !is_kept(*id) && loads[..index].iter().all(|(before, _)| before != id)
        };
        let new = loads.iter().enumerate().filter(is_new).count();
        let stays = |cell: &&Arc<Cell>| {
            !cell.is_silent(now, FORGOTTEN) || loads.iter().any(|(id, _)| cell.is_for(*id))
        };
        if new > 0 && kept.iter().filter(stays).count() + new > UNNAMED_LOADS {
            return Err(TooManyLoads);
        }
        // First those that are kept, or one that was not heard of for long might make room
        // for another one of this report.
        for &(id, value) in loads.iter().filter(|(id, _)| is_kept(*id)) {
            self.report(id, value, now)?;
        }
        for &(id, value) in loads.iter().filter(|(id, _)| !is_kept(*id)) {
            self.report(id, value, now)?;
        }
        Ok(())
    }

    /// Stores a report of several loads, each for which there is room; answers for how many
    /// there was none. For those who are not told: one load too many must not cost them the
    /// others.
    pub fn report_each(&self, loads: &[(LoadId, LoadValue)], now: Instant) -> usize {
        let refused = |&&(id, value): &&(LoadId, LoadValue)| self.report(id, value, now).is_err();
        loads.iter().filter(refused).count()
    }

    fn store(&self, cell: &Cell, id: LoadId, value: LoadValue, now: Instant) {
        let bound = self.bound.load(Ordering::Relaxed);
        let before = cell.value_at.load(Ordering::Acquire);
        let since = bound.wrapping_sub(cell.bound_at.swap(bound, Ordering::Relaxed));
        let seconds = match before {
            0 => 1.0,
            // Times are 2 ms coarse, so of reports that come faster most seem to come at
            // once. What that takes from their times the next ones get.
            word => (millis_since(word as u32, now) as f32 / 1e3).max(1e-5),
        };
        // A moving average of the rate, so that reports which come with every response
        // are as good as one every few seconds.
        let share = new_share(seconds, 1.0);
        let rate = f32::from_bits(cell.rate.load(Ordering::Relaxed));
        let rate = rate + (since as f32 / seconds - rate) * share;
        cell.rate.store(rate.to_bits(), Ordering::Relaxed);
        let assigned = self.assigned.load(Ordering::Relaxed);
        let stayed = assigned.wrapping_sub(cell.assigned_at.swap(assigned, Ordering::Relaxed));
        // The load is that of all clients who are there, and not only of those who came
        // since the last report. They counted for so much otherwise that each location got
        // one in each interval, whatever its load. Not the whole stay: many leave before,
        // those who have just come are in the next report in part only, and a controller
        // that corrects all of a difference at once swings. A third is ours; a half and
        // a quarter do as well in simulation.
        let doubted = self.doubted.load(Ordering::Relaxed);
        cell.doubted_at.store(doubted, Ordering::Relaxed);
        let stays = self.stays.load(Ordering::Relaxed);
        let stays = stays.wrapping_sub(cell.stays_at.swap(stays, Ordering::Relaxed));
        let mut stay = f32::from_bits(cell.stay.load(Ordering::Relaxed));
        if stayed > 0 {
            let mean = stays as f32 / 1e3 / stayed as f32;
            let new = if stay > 0.0 { share } else { 1.0 };
            stay = average(&cell.stay, mean, new);
        }
        let stay = match stayed.saturating_mul(2) >= since {
            true => stay / 3.0,
            false => 0.0,
        };
        let binds = (rate * seconds.max(1.0).max(stay)).max(1.0);
        let per_bind = value.get().max(floor(id)) / binds;
        cell.per_bind.store(per_bind.to_bits(), Ordering::Relaxed);
        cell.in_flight_at.store(self.in_flight(), Ordering::Relaxed);
        self.store_moment(cell, id, value.get(), (before != 0).then_some(seconds));
        let word = (u64::from(value.get().to_bits()) << 32) | u64::from(millis(now));
        cell.value_at.store(word, Ordering::Release);
    }

    /// The part of [`store`](Location::store) that matters for loads of the moment.
    fn store_moment(&self, cell: &Cell, id: LoadId, value: f32, since: Option<f32>) {
        // How much of an average over so many seconds is new.
        let share = |over: f32| since.map_or(1.0, |seconds| new_share(seconds, over));
        let in_flight = self.in_flight() as f32;
        let of_second = share(1.0);
        let mean = average(&cell.mean, value, of_second);
        let mean_in_flight = average(&cell.mean_in_flight, in_flight, of_second);
        // A quarter of a request that fills a CPU of one is what is known at first.
        let per_request = (mean + 0.25) / (mean_in_flight + 0.25);
        let per_request = match is_momentary(id, since.unwrap_or(f32::INFINITY)) {
            true => per_request.min(1.0),
            false => 0.0,
        };
        // The reported queue is an average, and as slow.
        let ours = average(&cell.ours, in_flight, share(QUEUE_AVERAGE));
        let over = (USUAL * since.unwrap_or(0.0)).max(QUEUE_AVERAGE);
        average(&cell.usual, value - per_request * ours, share(over));
        let bits = per_request.to_bits();
        cell.per_request.store(bits, Ordering::Relaxed);
    }

    /// The load `id` as it probably is now: the last report, if it was at most
    /// `max_age` ago, plus what our own requests have added since. `None` is *unknown*.
    /// For [`LoadId::UTILIZATION`], where it is unknown, that of [`LoadId::CPU`] is taken.
    ///
    /// Without the addition a member with a low report would get all requests until its
    /// next one. What a request adds is not reported. It is estimated from the last
    /// interval as load divided by binds, with a floor where a
    /// location was idle: an error there corrects itself with the next report. Where
    /// clients go there themselves and stay for longer than an interval, it is divided by
    /// the binds in a third of that time, and what is added falls as the report ages: by
    /// half when it is as old as they stay. For
    /// [`LoadId::IN_FLIGHT`] only those need an estimate whose clients go there themselves
    /// ([`Group::assign`](crate::group::Group::assign)).
    ///
    /// Where loads tell of the moment (tasks that run or wait, and utilisations that are
    /// reported four times a second or oftener) a request adds something from when it goes
    /// there until it is done, and what others do changes as quickly. So the load is taken
    /// to be
    ///
    /// ```text
    /// a * ours now + usual + (reported - a * ours then - usual) * 30 ms / (30 ms + age)
    /// ```
    ///
    /// where *a* is the mean load by our mean requests in flight, at most 1 and about 1 at
    /// first, and *usual* what the load was without ours in the last few reports: a report is
    /// old after some service times, and balancers that all follow the same one herd. At least
    /// half of a utilisation stays, because all of it may be somebody else's.
    ///
    /// In simulation (10 servers, 10 ms a request, 60 % of what they can do, a report every
    /// 50 ms; `tests/fast_loads.rs`) the least loaded server answers in 11 ms on average
    /// instead of 77. Random choice takes 25. With 4 balancers and a report every 500 ms it is
    /// 16 ms, 94 without the fading, and more than 200 if requests count as with slow reports.
    #[inline]
    pub fn projected(&self, id: LoadId, now: Instant, max_age: Duration) -> Option<f32> {
        self.last_report(&Query::new(id, Horizon::new(now, max_age)))
            .map(|report| report.value + report.added)
    }

    /// Requests of this process that members here are working on, over all groups.
    #[inline]
    pub fn in_flight(&self) -> u32 {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// The report of that load, if it is fresh, with what has happened since.
    // A call costs as much as what is done here, and decisions ask for the load of each member.
    #[inline(always)]
    pub(crate) fn last_report(&self, query: &Query) -> Option<Report> {
        self.of_report(query, |report| report)
    }

    /// What `of` makes of that report.
    #[inline(always)]
    pub(crate) fn of_report<T>(&self, query: &Query, of: impl Fn(Report) -> T) -> Option<T> {
        if let Some(cell) = self.cells.get(query.place)
            && let Some(word) = cell.fresh(query)
        {
            return Some(of(self.report_in(cell, word, query)));
        }
        match query.elsewhere {
            true => self.other_report(query).map(of),
            false => None,
        }
    }

    /// Whether there is a fresh report of that load.
    #[inline]
    pub(crate) fn has_fresh(&self, query: &Query) -> bool {
        let cell = self.cells.get(query.place);
        cell.is_some_and(|cell| cell.fresh(query).is_some())
            || (query.elsewhere && self.other_report(query).is_some())
    }

    /// The report of a load without a name, or that stands for one that is not there.
    #[inline(never)]
    fn other_report(&self, query: &Query) -> Option<Report> {
        let of = |id| {
            let query = Query::new(id, query.horizon);
            let report = |cell: &Cell| Some(self.report_in(cell, cell.fresh(&query)?, &query));
            self.with_cell(id, report)?
        };
        match query.id {
            LoadId::FIRST => of(self.meant(query.id)).or_else(|| of(LoadId::CPU)),
            // What an application does not say of itself, its machine does (as with ORCA,
            // gRPC proposal A58).
            LoadId::UTILIZATION => of(LoadId::CPU),
            id => of(id),
        }
    }

    /// From now on [`LoadId::FIRST`] means the load `id` here.
    pub fn lead_with(&self, id: LoadId) {
        self.first.store(u64::from(id.0) + 1, Ordering::Relaxed);
    }

    /// The load that [`LoadId::FIRST`] means here, if there is one.
    pub fn first(&self) -> Option<LoadId> {
        let first = self.first.load(Ordering::Relaxed).checked_sub(1)?;
        u32::try_from(first).ok().map(LoadId)
    }

    fn meant(&self, id: LoadId) -> LoadId {
        match id {
            LoadId::FIRST => self.first().unwrap_or(LoadId::CPU),
            id => id,
        }
    }

    #[inline(always)]
    fn report_in(&self, cell: &Cell, word: u64, query: &Query) -> Report {
        let (value, at) = (f32::from_bits((word >> 32) as u32), word as u32);
        let bound_at = cell.bound_at.load(Ordering::Relaxed);
        let bound = self.bound.load(Ordering::Relaxed).wrapping_sub(bound_at);
        // A report that arrives right now may have counted further than we have.
        let bound = if bound > u32::MAX / 2 { 0 } else { bound };
        let per_bind = f32::from_bits(cell.per_bind.load(Ordering::Relaxed));
        let assigned = self.assigned.load(Ordering::Relaxed);
        let assigned = assigned.wrapping_sub(cell.assigned_at.load(Ordering::Relaxed));
        let is_momentary = cell.per_request.load(Ordering::Relaxed) != 0;
        let added = match is_momentary || query.id == LoadId::IN_FLIGHT {
            true => self.added_by_flying(cell, word, query) + per_bind * assigned.min(bound) as f32,
            false if assigned == 0 => per_bind * bound as f32,
            false => {
                let left = cell.left(assigned.min(bound), query.horizon.age(at));
                per_bind * (bound as f32 - left)
            }
        };
        Report {
            value,
            added,
            is_momentary,
            at,
            bound_at,
            bound,
        }
    }

    /// What our requests have added to a load of the moment, or to that of requests in flight,
    /// but for those of clients who go there themselves.
    #[inline(never)]
    fn added_by_flying(&self, cell: &Cell, word: u64, query: &Query) -> f32 {
        let value = f32::from_bits((word >> 32) as u32);
        let get = |cell: &AtomicU32| f32::from_bits(cell.load(Ordering::Relaxed));
        let in_flight = self.in_flight() as f32;
        if query.id == LoadId::IN_FLIGHT {
            let then = cell.in_flight_at.load(Ordering::Relaxed) as f32;
            // Ours are among the reported ones: it has at least as many as we have there.
            return (in_flight - then).max(in_flight - value);
        }
        let per_request = get(&cell.per_request);
        let usual = get(&cell.usual);
        let others = value - per_request * get(&cell.ours);
        let fresh = HALF_LIFE / (HALF_LIFE + query.horizon.age(word as u32) as f32);
        let others = usual + (others - usual) * fresh;
        let is_queue = query.id.is_queue();
        let least = if is_queue { 0.0 } else { NOT_OURS * value };
        // What differs by less than a hundredth is equal. Not `round()`, which is a call.
        let there = (per_request * in_flight + others).max(least);
        (there * 100.0 + 0.5) as i64 as f32 * 0.01 - value
    }

    pub(crate) fn begin(&self) {
        self.bound.fetch_add(1, Ordering::Relaxed);
        self.in_flight.fetch_add(1, Ordering::Relaxed);
    }

    /// A client was sent to a member here, and will go there itself, for at most `stay`.
    pub(crate) fn assign(&self, stay: Duration) {
        self.bound.fetch_add(1, Ordering::Relaxed);
        self.assigned.fetch_add(1, Ordering::Relaxed);
        let stay = u64::try_from(stay.as_millis()).unwrap_or(u64::MAX);
        self.stays.fetch_add(stay, Ordering::Relaxed);
    }

    /// A client that was [assigned](Location::assign) asks more often than one client would.
    pub(crate) fn doubt(&self) {
        self.doubted.fetch_add(1, Ordering::Relaxed);
    }

    /// What is in [`Location::projected`] because of clients that are doubted.
    pub(crate) fn doubtful(&self, query: &Query) -> f32 {
        let doubtful = self.with_cell(query.id, |cell| {
            let doubted = self.doubted.load(Ordering::Relaxed);
            let doubted = doubted.wrapping_sub(cell.doubted_at.load(Ordering::Relaxed));
            if doubted == 0 {
                return 0.0;
            }
            let get = |cell: &AtomicU32| f32::from_bits(cell.load(Ordering::Relaxed));
            let at = cell.value_at.load(Ordering::Acquire) as u32;
            let stay = get(&cell.stay);
            let left = match stay > 0.0 && get(&cell.per_request) == 0.0 {
                true => stay_share(query.horizon.age(at), stay),
                false => 1.0,
            };
            get(&cell.per_bind) * doubted as f32 * left
        });
        doubtful.unwrap_or(0.0)
    }

    /// Clients that ever came to members here to stay, wrapping.
    pub fn came(&self) -> u32 {
        self.came.load(Ordering::Relaxed)
    }

    pub(crate) fn count_client(&self) {
        self.came.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether a pulse is on: some clients are still to leave.
    #[inline]
    pub fn has_pulse(&self) -> bool {
        self.pulse.load(Ordering::Acquire)
    }

    /// A pulse begins.
    pub fn begin_pulse(&self) {
        self.change(!self.pulse.swap(true, Ordering::AcqRel));
    }

    /// A pulse ends.
    pub fn end_pulse(&self) {
        self.change(self.pulse.swap(false, Ordering::AcqRel));
    }

    /// Whether a server here sends its clients away, or may: it was told to, and has not
    /// yet acknowledged that it was told to stop.
    #[inline]
    pub fn is_shut(&self) -> bool {
        self.shut.load(Ordering::Acquire)
    }

    /// Says so; for whoever tells the server.
    pub fn set_shut(&self, shut: bool) {
        self.change(self.shut.swap(shut, Ordering::AcqRel) != shut);
    }

    /// Whether servers here are to send their clients away now.
    #[inline]
    pub fn is_alerted(&self) -> bool {
        let tell = self.tell.load(Ordering::Acquire);
        tell == Tell::On as u8 || tell == Tell::Pulses as u8 && self.has_pulse()
    }

    /// Says what servers here are to be told.
    pub fn set_tell(&self, tell: Tell) {
        self.change(self.tell.swap(tell as u8, Ordering::AcqRel) != tell as u8);
    }

    /// Wakes those who listen when a pulse begins or ends, when the servers here are shut or
    /// not any more, and when they are to be told something else.
    pub fn changed(&self) -> &Signal {
        &self.changed
    }

    fn change(&self, changed: bool) {
        if changed {
            self.changed.wake();
        }
    }

    pub(crate) fn end(&self) {
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
    }

    /// The load `id` if it was reported at most `max_age` ago; `None` is *unknown*.
    pub fn fresh(&self, id: LoadId, now: Instant, max_age: Duration) -> Option<f32> {
        let counts = |load: &Load| !load.expired && now.since(load.at) <= max_age;
        let load = self.load(id, now).filter(counts).or_else(|| match id {
            LoadId::FIRST => self.load(LoadId::CPU, now).filter(counts),
            _ => None,
        });
        load.map(|load| load.value.get())
    }

    /// The load `id` as last reported, however old.
    pub fn load(&self, id: LoadId, now: Instant) -> Option<Load> {
        let id = self.meant(id);
        let word = self.with_cell(id, |cell| cell.value_at.load(Ordering::Acquire))?;
        (word != 0).then(|| decode(id, word, now))
    }

    /// All loads that are kept here, with their ages.
    pub fn loads(&self, now: Instant) -> impl Iterator<Item = Load> + '_ {
        let load = move |cell: &Cell| {
            let id = cell.id.load(Ordering::Acquire);
            let word = cell.value_at.load(Ordering::Acquire);
            (id != 0 && word != 0).then(|| decode(LoadId((id - 1) as u32), word, now))
        };
        let unnamed = self.unnamed.load_full().unwrap_or_default();
        let unnamed: Vec<Load> = unnamed.iter().filter_map(|cell| load(cell)).collect();
        self.cells.iter().filter_map(load).chain(unnamed)
    }

    /// Keeps old reports old, and forgets loads without a name that nobody reports any more.
    /// Times wrap after 49 days, and from half of that on they would seem to be new: call it
    /// once a day or oftener.
    pub fn keep_age(&self, now: Instant) {
        for cell in &self.cells {
            // One that has expired stays so: its time is even.
            keep_word_old(&cell.value_at, now);
        }
        let current = self.unnamed.load_full();
        let Some(cells) = current.as_deref() else {
            return;
        };
        if cells.iter().any(|cell| cell.is_silent(now, LONG_FORGOTTEN)) {
            let kept = cells
                .iter()
                .filter(|cell| !cell.is_silent(now, LONG_FORGOTTEN));
            let kept: Vec<_> = kept.cloned().collect();
            // If it fails there is a new one; these are forgotten next time.
            self.unnamed
                .compare_and_swap(&current, Some(Arc::new(kept)));
        }
    }
}

fn decode(id: LoadId, word: u64, now: Instant) -> Load {
    let age = millis_since(word as u32, now);
    let at = now.as_nanos().saturating_sub(u64::from(age) * 1_000_000);
    Load {
        expired: !is_report(word),
        id,
        value: LoadValue(f32::from_bits((word >> 32) as u32)),
        at: Instant::from_nanos(at),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    #[test]
    fn the_first_load_of_a_report_is_whatever_it_measures_t2() {
        let location = Location::new("a");
        let (age, at) = (Duration::from_secs(10), |s: u64| {
            Instant::from_nanos(s * 1_000_000_000)
        });
        let value = |value| LoadValue::new(value).unwrap();
        let first = |seconds| location.projected(LoadId::FIRST, at(seconds), age);
        assert_eq!(first(1), None);
        // Others than monitors of CORBA have no order that says anything.
        location.report(LoadId::CPU, value(0.5), at(1)).unwrap();
        assert_eq!(first(1), Some(0.5));
        location.report(LoadId(4), value(100.0), at(2)).unwrap();
        location.lead_with(LoadId(4));
        assert_eq!(first(2), Some(100.0));
        assert_eq!(location.fresh(LoadId::FIRST, at(2), age), Some(100.0));
        assert_eq!(location.load(LoadId::FIRST, at(2)).unwrap().id, LoadId(4));
        location.report(LoadId::CPU, value(0.75), at(20)).unwrap();
        assert_eq!(first(20), Some(0.75), "nothing is heard of the other");
        assert_eq!(location.fresh(LoadId::FIRST, at(20), age), Some(0.75));
        assert_eq!("first".parse(), Ok(LoadId::FIRST));
        assert_eq!(LoadId::FIRST.to_string(), "first");
    }

    #[test]
    fn a_stale_load_is_unknown() {
        let location = Location::new("a");
        let half = LoadValue::new(0.5).unwrap();
        location.report(LoadId::CPU, half, at(10_000)).unwrap();
        let max_age = Duration::from_secs(3);
        assert_eq!(location.fresh(LoadId::CPU, at(12_000), max_age), Some(0.5));
        assert_eq!(location.fresh(LoadId::CPU, at(14_000), max_age), None);
        assert_eq!(location.fresh(LoadId::DISK, at(12_000), max_age), None);
    }

    #[test]
    fn a_report_does_not_become_new_by_getting_old() {
        let location = Location::new("a");
        let half = LoadValue::new(0.5).unwrap();
        location.report(LoadId::CPU, half, at(10_000)).unwrap();
        let max_age = Duration::from_secs(3);
        const DAY: u64 = 24 * 3600 * 1000;
        for day in 1..100 {
            let now = at(day * DAY);
            location.keep_age(now);
            assert_eq!(location.projected(LoadId::CPU, now, max_age), None);
            let load = location.load(LoadId::CPU, now).unwrap();
            assert_eq!(load.value, half);
        }
        location.report(LoadId::CPU, half, at(100 * DAY)).unwrap();
        location.keep_age(at(100 * DAY));
        let projected = location.projected(LoadId::CPU, at(100 * DAY), max_age);
        assert_eq!(projected, Some(0.5));
    }

    #[test]
    fn a_zero_load_is_known() {
        let location = Location::new("a");
        let idle = LoadValue::new(0.0).unwrap();
        location.report(LoadId::CPU, idle, at(0)).unwrap();
        assert_eq!(
            location.fresh(LoadId::CPU, at(1), Duration::from_secs(1)),
            Some(0.0)
        );
    }

    #[test]
    fn absurd_loads_are_refused() {
        for bad in [f64::NAN, f64::INFINITY, -1.0, 1e13] {
            assert!(LoadValue::new(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn our_own_requests_since_the_report_are_added_to_it() {
        let location = Location::new("a");
        let max_age = Duration::from_secs(15);
        let load = |ms| location.projected(LoadId::CPU, at(ms), max_age).unwrap();
        let half = LoadValue::new(0.5).unwrap();
        location.report(LoadId::CPU, half, at(0)).unwrap();
        for second in 1..20 {
            (0..100).for_each(|_| location.begin());
            location
                .report(LoadId::CPU, half, at(second * 1000))
                .unwrap();
        }
        assert_eq!(load(19_000), 0.5);
        // A hundred requests a second make 0.5, so that fifty more add a half of that.
        (0..50).for_each(|_| location.begin());
        assert!((load(19_500) - 0.75).abs() < 0.01, "{}", load(19_500));
        let query = Query::new(LoadId::CPU, Horizon::new(at(19_500), FORGOTTEN));
        assert_eq!(location.last_report(&query).unwrap().bound, 50);
    }

    #[test]
    fn the_rate_of_binds_does_not_depend_on_how_often_loads_are_reported() {
        for every_us in [100, 400, 1000, 1300, 50_000, 1_000_000] {
            let location = Location::new("a");
            let load = LoadValue::new(7.0).unwrap();
            // Five seconds with a bind each 10 ms, and reports in between.
            let (mut bind, mut report) = (0, 0);
            while bind <= 5_000_000 {
                if bind < report {
                    location.begin();
                    bind += 10_000;
                } else {
                    let now = Instant::from_nanos(report * 1000 + 1_000_000);
                    let id = LoadId::REQUESTS_PER_SECOND;
                    location.report(id, load, now).unwrap();
                    report += every_us;
                }
            }
            let rate = location.with_cell(LoadId::REQUESTS_PER_SECOND, |cell| {
                f32::from_bits(cell.rate.load(Ordering::Relaxed))
            });
            let rate = rate.unwrap();
            assert!((rate / 100.0 - 1.0).abs() < 0.1, "{every_us} us: {rate}");
        }
    }

    #[test]
    fn an_idle_location_does_not_stay_idle_in_our_eyes() {
        let location = Location::new("a");
        let idle = LoadValue::new(0.0).unwrap();
        location.report(LoadId::CPU, idle, at(0)).unwrap();
        (0..10).for_each(|_| location.begin());
        let load = location.projected(LoadId::CPU, at(1), Duration::from_secs(1));
        assert!(load.unwrap() >= 0.5, "{load:?}");
    }

    #[test]
    fn in_flight_is_corrected_exactly() {
        let location = Location::new("a");
        let max_age = Duration::from_secs(15);
        (0..3).for_each(|_| location.begin());
        let seven = LoadValue::new(7.0).unwrap();
        location.report(LoadId::IN_FLIGHT, seven, at(0)).unwrap();
        location.begin();
        location.begin();
        location.end();
        let load = location.projected(LoadId::IN_FLIGHT, at(9), max_age);
        assert_eq!(load, Some(8.0));
    }

    #[test]
    fn what_a_monitor_has_news_of_is_not_for_others_to_report() {
        let location = Location::new("a");
        let max_age = Duration::from_secs(15);
        let value = |value| LoadValue::new(value).unwrap();
        let cpu = |ms| location.fresh(LoadId::CPU, at(ms), max_age);
        location.report(LoadId::CPU, value(0.9), at(0)).unwrap();
        location.report(LoadId::DISK, value(0.1), at(0)).unwrap();
        let seen = [(LoadId::CPU, value(0.2)), (LoadId::COMPOSITE, value(0.0))];
        location.observe(seen, at(10)).unwrap();
        location.report(LoadId::CPU, value(0.9), at(20)).unwrap();
        assert_eq!(cpu(20), Some(0.2));
        // Unknown at once, and not idle; still there to be shown.
        let all = [LoadId::CPU, LoadId::DISK, LoadId::COMPOSITE];
        location.expire(all);
        assert_eq!(cpu(20), None);
        assert_eq!(location.projected(LoadId::CPU, at(20), max_age), None);
        assert_eq!(location.fresh(LoadId::COMPOSITE, at(20), max_age), None);
        let shown = location.load(LoadId::COMPOSITE, at(20)).unwrap();
        assert!(shown.expired && shown.value == LoadValue::ZERO);
        let disk = location.projected(LoadId::DISK, at(20), max_age);
        assert_eq!(disk, Some(0.1), "nobody held it");
        const DAY: u64 = 24 * 3600 * 1000;
        for day in 1..100 {
            location.keep_age(at(day * DAY));
            assert_eq!(cpu(day * DAY), None);
        }
        // Now others count; and what they said is no news of the monitor's to expire.
        location
            .report(LoadId::CPU, value(0.7), at(100 * DAY))
            .unwrap();
        location.expire(all);
        assert_eq!(cpu(100 * DAY), Some(0.7));
        location.observe(seen, at(100 * DAY)).unwrap();
        assert_eq!(cpu(100 * DAY), Some(0.2));
    }

    #[test]
    fn every_named_load_is_known_as_such() {
        let named = (0..1000).map(LoadId).filter(|id| id.is_named());
        assert_eq!(named.count(), NAMES.len());
        for (place, (id, name)) in NAMES.iter().enumerate() {
            assert_eq!(id.place(), Some(place), "{name}");
        }
    }

    #[test]
    fn s4_unknown_ids_leave_room_for_all_named_loads() {
        let location = Location::new("a");
        let one = LoadValue::new(1.0).unwrap();
        // Somebody pushes ids that nobody knows, without end.
        for id in 1000..1100 {
            let _ = location.report(LoadId(id), one, at(1));
        }
        let named: Vec<_> = NAMES.iter().map(|&(id, _)| (id, one)).collect();
        location.report_all(&named, at(2)).unwrap();
        location.observe(named.iter().copied(), at(3)).unwrap();
        for &(id, _) in &named {
            let fresh = location.fresh(id, at(4), Duration::from_secs(1));
            assert_eq!(fresh, Some(1.0), "{id}");
        }
        assert_eq!(location.loads(at(4)).count(), LOADS_PER_LOCATION);
    }

    #[test]
    fn s4_a_load_without_a_name_expires_when_its_place_is_needed() {
        let location = Location::new("a");
        let one = LoadValue::new(1.0).unwrap();
        let ids = 100..100 + UNNAMED_LOADS as u32;
        for id in ids.clone() {
            location.report(LoadId(id), one, at(1)).unwrap();
        }
        location.report(LoadId(100), one, at(50_000)).unwrap();
        let new = [(LoadId(99), one), (LoadId(98), one)];
        assert_eq!(location.report_all(&new, at(50_000)), Err(TooManyLoads));
        assert_eq!(location.report_each(&new, at(50_000)), 2);
        // A minute later all but the one that goes on have expired. Who reports one of them
        // again keeps it.
        let mixed = [new[0], new[1], (LoadId(101), one)];
        location.report_all(&mixed, at(61_000)).unwrap();
        let kept: Vec<u32> = location.loads(at(61_000)).map(|load| load.id.0).collect();
        assert_eq!(kept.len(), UNNAMED_LOADS);
        assert!(
            [98, 99, 100, 101].iter().all(|id| kept.contains(id)),
            "{kept:?}"
        );
        // Those that nobody reports are not kept for ever.
        location.report(LoadId(98), one, at(3_600_000)).unwrap();
        location.keep_age(at(3_662_000));
        let kept: Vec<u32> = location
            .loads(at(3_662_000))
            .map(|load| load.id.0)
            .collect();
        assert_eq!(kept, [98]);
    }

    #[test]
    fn s4_what_has_room_counts_beside_what_has_none() {
        let location = Location::new("a");
        let one = LoadValue::new(1.0).unwrap();
        for id in 100..100 + UNNAMED_LOADS as u32 {
            location.report(LoadId(id), one, at(1)).unwrap();
        }
        let report = [(LoadId(99), one), (LoadId::CPU, one), (LoadId(100), one)];
        assert_eq!(location.report_all(&report, at(2)), Err(TooManyLoads));
        assert!(location.load(LoadId::CPU, at(2)).is_none(), "all or none");
        assert_eq!(location.report_each(&report, at(2)), 1);
        let max_age = Duration::from_secs(1);
        assert_eq!(location.fresh(LoadId::CPU, at(3), max_age), Some(1.0));
        assert_eq!(location.fresh(LoadId(100), at(3), max_age), Some(1.0));
        assert_eq!(location.fresh(LoadId(99), at(3), max_age), None);
    }

    /// What one more client is thought to bring, after a second in which two clusters have
    /// each sent ten there.
    fn cost_of_a_client(stays: [u64; 2]) -> f32 {
        let location = Location::new("a");
        let half = LoadValue::new(0.5).unwrap();
        for second in 0..30 {
            location
                .report(LoadId::CPU, half, at(second * 1000))
                .unwrap();
            for stay in stays {
                (0..10).for_each(|_| location.assign(Duration::from_secs(stay)));
            }
        }
        location.report(LoadId::CPU, half, at(30_000)).unwrap();
        location.assign(Duration::from_secs(1));
        let load = location.projected(LoadId::CPU, at(30_000), Duration::from_secs(15));
        load.unwrap() - 0.5
    }

    #[test]
    fn b13_each_cluster_counts_with_its_own_quantum() {
        // One that sends clients for a minute, and one for three seconds: half a minute on
        // average, whoever comes last.
        let (mixed, turned) = (cost_of_a_client([60, 3]), cost_of_a_client([3, 60]));
        let mean = cost_of_a_client([31, 32]);
        assert!((mixed / mean - 1.0).abs() < 0.05, "{mixed} {mean}");
        assert!((turned / mixed - 1.0).abs() < 0.01, "{turned} {mixed}");
    }

    #[test]
    fn s23_what_was_assigned_counts_for_less_as_time_passes() {
        let location = Location::new("a");
        let half = LoadValue::new(0.5).unwrap();
        for second in 0..10 {
            location
                .report(LoadId::CPU, half, at(second * 1000))
                .unwrap();
            (0..10).for_each(|_| location.assign(Duration::from_secs(3)));
        }
        let added = |ms| {
            let load = location.projected(LoadId::CPU, at(ms), Duration::from_secs(60));
            load.unwrap() - 0.5
        };
        let first = added(9_000);
        assert!(first > 0.1, "{first}");
        assert!(
            (added(12_000) / first - 0.5).abs() < 0.01,
            "half after their stay"
        );
        assert!(added(40_000) < 0.1 * first);
        // What we carry ourselves does not go away by itself.
        let location = Location::new("a");
        location.report(LoadId::CPU, half, at(0)).unwrap();
        location.begin();
        let load = |ms| location.projected(LoadId::CPU, at(ms), Duration::from_secs(60));
        assert_eq!(load(1), load(30_000));
    }

    #[test]
    fn b10_what_an_application_does_not_say_its_machine_does() {
        let location = Location::new("a");
        let max_age = Duration::from_secs(3);
        let value = |value| LoadValue::new(value).unwrap();
        let load = |ms| location.projected(LoadId::UTILIZATION, at(ms), max_age);
        assert_eq!(load(0), None);
        location.report(LoadId::CPU, value(0.3), at(0)).unwrap();
        assert_eq!(load(0), Some(0.3));
        location
            .report(LoadId::UTILIZATION, value(0.8), at(0))
            .unwrap();
        assert_eq!(load(0), Some(0.8));
        assert_eq!(location.projected(LoadId::CPU, at(0), max_age), Some(0.3));
        location.report(LoadId::CPU, value(0.4), at(4_000)).unwrap();
        assert_eq!(load(4_000), Some(0.4), "the other one is old");
    }

    #[test]
    fn a_location_stays_small() {
        assert!(size_of::<Location>() <= 1664, "{}", size_of::<Location>());
    }

    #[test]
    fn reports_of_new_ids_by_many_threads_are_bounded_and_not_lost() {
        let location = Location::new("a");
        let one = LoadValue::new(1.0).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..4u32 {
                let location = &location;
                scope.spawn(move || {
                    for id in 0..4 {
                        location
                            .report(LoadId(100 + 4 * thread + id), one, at(1))
                            .unwrap();
                        assert!(
                            location
                                .load(LoadId(100 + 4 * thread + id), at(1))
                                .is_some()
                        );
                    }
                });
            }
        });
        assert_eq!(location.loads(at(1)).count(), UNNAMED_LOADS);
    }
}
