//! A location, and each load that it reports.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

use arc_swap::ArcSwapOption;

use super::id::{LoadId, NAMED_LOADS};
use super::split::{LoadSplit, to_ticks};
use crate::cost::{Cost, InFlight};
use crate::learnt::{self, LearntSlot, LearntValues, Visit};
use crate::signal::Signal;
use crate::time::{Instant, keep_word_old, millis_since};

/// Most loads without a name that a location keeps. When one more is reported, it takes the place of the load whose
/// last report is the oldest, if that report is at least [`FORGOTTEN`] old; otherwise the new load is refused.
pub const UNNAMED_LOADS: usize = 16;

/// Most different loads that a location keeps: all that have a name, and [`UNNAMED_LOADS`].
pub const LOADS_PER_LOCATION: usize = NAMED_LOADS + UNNAMED_LOADS;

/// After so long without a report a load without a name makes room for another one.
pub const FORGOTTEN: Duration = Duration::from_secs(60);

/// After so long without a report a load without a name is not kept any more, whether or not
/// there is room. It is the longest `load_max_age` of a group.
const LONG_FORGOTTEN: Duration = Duration::from_secs(3600);

/// A load in atomic words: one for its id, and one for its value with the time, so that the data plane reads it without
/// a lock and never sees half a report.
///
/// The fields that the data plane reads come first.
#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct Cell {
    /// Load id plus one; 0 is an empty cell. Written once: a reader that has found a cell may continue to use it, even
    /// if the location does not keep it any more.
    pub(super) id: AtomicU64,
    /// Value as f32 bits (high half), report time in milliseconds, wrapping (low half). Times are odd ([`millis`]): an
    /// even time means that the report has expired.
    pub(super) value_at: AtomicU64,
    /// [`Location::bound`] at the time of the report.
    pub(super) bound_at: AtomicU64,
    /// Load that a unit of cost of a bound request is expected to add (f32 bits).
    pub(super) per_unit: AtomicU32,
    /// [`Location::in_flight`] at the time of the report.
    pub(super) in_flight_at: AtomicU32,
    /// [`Location::assigned`] at the time of the report.
    pub(super) assigned_at: AtomicU32,
    /// Load that each of our requests in flight adds (f32 bits), if the load is one of the moment; else
    /// 0.
    pub(super) per_request: AtomicU32,
    /// [`Location::stays`] at the time of the report.
    pub(super) stays_at: AtomicU64,
    /// [`Location::doubted`] at the time of the report.
    pub(super) doubted_at: AtomicU32,
    /// Mean time for which a client that goes to the member itself may stay, in seconds (f32 bits); 0 means unknown.
    pub(super) stay: AtomicU32,
    /// Our requests that are in the reported load (f32 bits).
    pub(super) ours: AtomicU32,
    /// The load without ours, averaged over the last few reports (f32 bits).
    pub(super) usual: AtomicU32,
    /// Binds per second (f32 bits), averaged over about a second.
    pub(super) rate: AtomicU32,
    /// The load, averaged over about a second (f32 bits).
    pub(super) mean: AtomicU32,
    /// [`Location::in_flight`], averaged over about a second (f32 bits).
    pub(super) mean_in_flight: AtomicU32,
    /// Load of our requests and of others, as reports tell it.
    pub(super) split: LoadSplit,
    /// True if a monitor has news of the load: other reports do not count.
    pub(super) held: AtomicBool,
    /// True if that monitor is another balancer's.
    pub(super) elsewhere: AtomicBool,
}

/// True if `word` of a cell is a report that may count.
#[inline]
pub(super) const fn is_report(word: u64) -> bool {
    word & 1 == 1
}

/// Share of the clients that are still there when the last report is `age` milliseconds old, if clients may `stay` for
/// that many seconds: half when the report is as old as that.
pub(super) fn stay_share(age: u32, stay: f32) -> f32 {
    let (age, stay) = (age as f32 / 1e3, stay.max(1.0));
    stay / (age + stay)
}

/// Instruction to servers at a location about sending their clients away, where clients reach the servers directly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum SheddingOrder {
    /// Send clients away while a pulse is on: the default.
    Pulses = 0,
    /// Send clients away.
    On,
    /// Keep all clients.
    Off,
}

/// The loads of one location, shared by all groups with members there.
///
/// Readers are lock-free; writers (reports) may come from any thread.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct Location {
    /// Sum of the costs of all requests ever bound to members here by this process, in units ([`Cost::units`]),
    /// wrapping after ten million millions of the highest cost.
    pub(super) bound: AtomicU64,
    /// Requests of this process that members here are working on.
    pub(super) in_flight: InFlight,
    /// Sum of the ends of our requests less the sum of their starts, each times the cost of the request, in units and
    /// [ticks](to_ticks), wrapping: [`Location::work_until`] reads it.
    worked: AtomicU64,
    /// Time of the last start of a request, in nanoseconds: ends requests that were dropped without a time.
    started_last: AtomicU64,
    /// Number of requests in `bound` whose clients go to the member themselves, wrapping.
    pub(super) assigned: AtomicU32,
    /// Load with a name that was reported first. Most locations report one load or none: the cell shares the first
    /// cache line, and the others are made when they are needed.
    first_cell: Cell,
    /// Other loads that have a name.
    further_cells: OnceLock<Box<[Cell; NAMED_LOADS]>>,
    /// Loads without a name. The list is replaced as a whole when a load comes or goes.
    pub(super) unnamed: ArcSwapOption<Vec<Arc<Cell>>>,
    /// Clients that ever came to members here to stay, wrapping: where clients are moved one by
    /// one.
    pub(super) came: AtomicU32,
    /// Number of requests in `assigned` that are [doubted](Location::doubt_client), wrapping.
    pub(super) doubted: AtomicU32,
    /// Sum of the times for which clients that go to members themselves may stay, in milliseconds, wrapping: clusters
    /// that give different quanta may share a location.
    pub(super) stays: AtomicU64,
    /// The load that [`LoadId::FIRST`] means, plus one; 0 is none.
    pub(super) first: AtomicU64,
    /// True while a pulse is on.
    pub(super) pulse: AtomicBool,
    /// True if a server here sends clients away, or may.
    pub(super) shut: AtomicBool,
    /// Instruction to the servers here: [`SheddingOrder`].
    pub(super) tell: AtomicU8,
    /// Time until which another balancer reads the loads here, in nanoseconds ([`Instant`]).
    pub(super) read_elsewhere: AtomicU64,
    pub(super) name: Arc<str>,
    pub(super) changed: Signal,
    /// Flags to set when a load is reported that was not there before.
    pub(super) watchers: Mutex<Vec<Weak<AtomicBool>>>,
}

impl Cell {
    /// Visits the [learnt](crate::learnt) words. Another process does not know any more which of our requests are
    /// included.
    fn words<'a>(&'a self, visit: Visit<'_, 'a>) {
        visit("value_at", LearntSlot::Long(&self.value_at));
        visit("bound_at", LearntSlot::Long(&self.bound_at));
        visit("per_unit", LearntSlot::Short(&self.per_unit));
        visit("assigned_at", LearntSlot::Short(&self.assigned_at));
        visit("per_request", LearntSlot::Short(&self.per_request));
        visit("stays_at", LearntSlot::Long(&self.stays_at));
        visit("doubted_at", LearntSlot::Short(&self.doubted_at));
        visit("stay", LearntSlot::Short(&self.stay));
        visit("usual", LearntSlot::Short(&self.usual));
        visit("rate", LearntSlot::Short(&self.rate));
        visit("mean", LearntSlot::Short(&self.mean));
        visit("mean_in_flight", LearntSlot::Short(&self.mean_in_flight));
        self.split.visit_words(visit);
        visit("held", LearntSlot::Flag(&self.held));
    }

    /// Returns the `id` of cells of a load.
    #[inline]
    pub(super) const fn word_of(id: LoadId) -> u64 {
        id.0 as u64 + 1
    }

    #[inline]
    pub(super) fn is_for(&self, id: LoadId) -> bool {
        self.id.load(Ordering::Acquire) == Self::word_of(id)
    }

    /// Estimated number of clients that have left, of `assigned` clients that were sent here `age` milliseconds ago or
    /// later, by the time for which they may stay.
    #[inline(never)]
    pub(super) fn departed_clients(&self, assigned: f32, age: u32) -> f32 {
        match f32::from_bits(self.stay.load(Ordering::Relaxed)) {
            stay if stay > 0.0 => assigned * (1.0 - stay_share(age, stay)),
            _ => 0.0,
        }
    }

    /// Milliseconds since the last report; 0 if there was none yet, or if a monitor holds the load.
    pub(super) fn millis_since_report(&self, now: Instant) -> u32 {
        match self.value_at.load(Ordering::Acquire) {
            _ if self.held.load(Ordering::Acquire) => 0,
            0 => 0,
            word => millis_since(word as u32, now),
        }
    }

    pub(super) fn is_silent(&self, now: Instant, time: Duration) -> bool {
        u128::from(self.millis_since_report(now)) > time.as_millis()
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
    pub(crate) fn flag_reports(&self, reported: &Arc<AtomicBool>) {
        let mut watchers = self.watchers.lock().unwrap_or_else(PoisonError::into_inner);
        watchers.retain(|watcher| watcher.strong_count() > 0);
        let is_same = |watcher: &Weak<AtomicBool>| watcher.as_ptr() == Arc::as_ptr(reported);
        if !watchers.iter().any(is_same) {
            watchers.push(Arc::downgrade(reported));
        }
        drop(watchers);
        let is_kept = |cell: &Cell| cell.id.load(Ordering::Acquire) != 0;
        let unnamed = self.unnamed.load();
        let is_any_unnamed = unnamed.as_ref().is_some_and(|cells| !cells.is_empty());
        if is_any_unnamed || self.named_cells().any(is_kept) {
            reported.store(true, Ordering::Relaxed);
        }
    }

    /// There is a load that there was not before, which is rare.
    #[cold]
    pub(super) fn tell_watchers(&self) {
        let watchers = self.watchers.lock().unwrap_or_else(PoisonError::into_inner);
        for watcher in watchers.iter().filter_map(Weak::upgrade) {
            watcher.store(true, Ordering::Relaxed);
        }
    }

    /// Words that were learnt about the location, and about each load that it reports.
    pub fn export_learnt(&self) -> (LearntValues, Vec<(LoadId, LearntValues)>) {
        let unnamed = self.unnamed.load_full().unwrap_or_default();
        let cells = self.named_cells().chain(unnamed.iter().map(|cell| &**cell));
        let loads = cells.filter_map(|cell| {
            let id = cell.id.load(Ordering::Acquire).checked_sub(1)?;
            let id = LoadId(u32::try_from(id).ok()?);
            Some((id, learnt::collect_words(|visit| cell.words(visit))))
        });
        (
            learnt::collect_words(|visit| self.words(visit)),
            loads.collect(),
        )
    }

    /// Takes over what another process [has learnt](Location::export_learnt). A load for which there is no
    /// room is left out.
    pub fn import_learnt(
        &self,
        own: &LearntValues,
        loads: &[(LoadId, LearntValues)],
        now: Instant,
    ) {
        learnt::restore(own, |visit| self.words(visit));
        for (id, learnt) in loads {
            let _ = self.with_cell_for(*id, now, |cell| {
                learnt::restore(learnt, |visit| cell.words(visit));
            });
        }
    }

    fn words<'a>(&'a self, visit: Visit<'_, 'a>) {
        visit("bound", LearntSlot::Long(&self.bound));
        visit("assigned", LearntSlot::Short(&self.assigned));
        visit("came", LearntSlot::Short(&self.came));
        visit("doubted", LearntSlot::Short(&self.doubted));
        visit("stays", LearntSlot::Long(&self.stays));
        visit("first", LearntSlot::Long(&self.first));
    }

    /// No other balancer [reads](Location::observe_elsewhere) the loads here any more.
    pub fn end_remote_reading(&self) {
        self.read_elsewhere.store(0, Ordering::Release);
    }

    /// True if another balancer [reads](Location::observe_elsewhere) the loads here.
    pub fn is_read_elsewhere(&self, now: Instant) -> bool {
        now.as_nanos() < self.read_elsewhere.load(Ordering::Acquire)
    }

    /// The name that the configuration gives it.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// Returns the cells of loads that have a name.
    pub(super) fn named_cells(&self) -> impl Iterator<Item = &Cell> {
        let further = self.further_cells.get().into_iter();
        std::iter::once(&self.first_cell).chain(further.flat_map(|cells| cells.iter()))
    }

    /// Returns the cell of the load with this [word](Cell::word_of) and this place among those with a name. Where no such load was reported,
    /// there is no cell, or one without a report.
    #[inline(always)]
    pub(super) fn named_cell(&self, word: u64, place: usize) -> Option<&Cell> {
        match self.first_cell.id.load(Ordering::Acquire) {
            first if first == word => Some(&self.first_cell),
            // No load with a name was reported.
            0 => None,
            _ => self.further_cells.get()?.get(place),
        }
    }

    /// Returns the cell for reports of the load `id`, which has this place among those with a name. The first load that
    /// is reported keeps the first cell.
    pub(super) fn claim_cell(&self, id: LoadId, place: usize) -> &Cell {
        let word = Cell::word_of(id);
        let (success, failure) = (Ordering::AcqRel, Ordering::Acquire);
        let first = &self.first_cell;
        match first.id.compare_exchange(0, word, success, failure) {
            Ok(_) => {
                self.tell_watchers();
                return first;
            }
            Err(known) if known == word => return first,
            Err(_) => {}
        }
        let further = self.further_cells.get_or_init(Box::default);
        let cell = &further[place];
        if cell.id.swap(word, Ordering::AcqRel) == 0 {
            self.tell_watchers();
        }
        cell
    }

    /// Does something with the cell of load `id`, if there is one.
    #[inline]
    pub(super) fn with_cell<T>(&self, id: LoadId, act: impl FnOnce(&Cell) -> T) -> Option<T> {
        if let Some(place) = id.place() {
            let cell = self.named_cell(Cell::word_of(id), place)?;
            return cell.is_for(id).then(|| act(cell));
        }
        let unnamed = self.unnamed.load();
        let mut cells = unnamed.as_ref()?.iter();
        cells.find(|cell| cell.is_for(id)).map(|cell| act(cell))
    }

    /// Requests of this process that members here are working on, over all groups.
    #[inline]
    pub fn in_flight(&self) -> u32 {
        self.in_flight.get().count()
    }

    /// From now on [`LoadId::FIRST`] means the load `id` here.
    pub fn lead_with(&self, id: LoadId) {
        self.first.store(u64::from(id.0) + 1, Ordering::Relaxed);
    }

    /// The load that [`LoadId::FIRST`] means here, if there is one.
    pub fn first_load(&self) -> Option<LoadId> {
        let first = self.first.load(Ordering::Relaxed).checked_sub(1)?;
        u32::try_from(first).ok().map(LoadId)
    }

    pub(super) fn resolve_id(&self, id: LoadId) -> LoadId {
        match id {
            LoadId::FIRST => self.first_load().unwrap_or(LoadId::CPU),
            id => id,
        }
    }

    pub(crate) fn begin_request(&self, cost: Cost, now: Instant) {
        self.bound.fetch_add(cost.units(), Ordering::Relaxed);
        self.in_flight.begin_request(cost);
        let start = cost.units().wrapping_mul(to_ticks(now));
        self.worked.fetch_sub(start, Ordering::Relaxed);
        self.started_last.store(now.as_nanos(), Ordering::Relaxed);
    }

    /// Ends a request at `now`; without a time, at the start of the last request here.
    pub(crate) fn end_request(&self, cost: Cost, now: Option<Instant>) {
        let last = || Instant::from_nanos(self.started_last.load(Ordering::Relaxed));
        let end = to_ticks(now.unwrap_or_else(last)).wrapping_mul(cost.units());
        self.worked.fetch_add(end, Ordering::Relaxed);
        self.in_flight.end_request(cost);
    }

    /// Integral of the costs of our requests in flight from the start of the process until `now`, in units and ticks,
    /// wrapping: only differences mean something.
    pub(super) fn work_until(&self, now: Instant) -> u64 {
        let in_flight = self.in_flight.get().units();
        let worked = self.worked.load(Ordering::Relaxed);
        worked.wrapping_add(in_flight.wrapping_mul(to_ticks(now)))
    }

    /// A client was sent to a member here, and will go there itself, for at most `stay`.
    pub(crate) fn assign_client(&self, stay: Duration) {
        self.bound.fetch_add(Cost::ONE.units(), Ordering::Relaxed);
        self.assigned.fetch_add(1, Ordering::Relaxed);
        let stay = u64::try_from(stay.as_millis()).unwrap_or(u64::MAX);
        self.stays.fetch_add(stay, Ordering::Relaxed);
    }

    /// A client that was [assigned](Location::assign_client) asks more often than one client would.
    pub(crate) fn doubt_client(&self) {
        self.doubted.fetch_add(1, Ordering::Relaxed);
    }

    /// Clients that ever came to members here to stay, wrapping.
    pub fn came(&self) -> u32 {
        self.came.load(Ordering::Relaxed)
    }

    pub(crate) fn count_client(&self) {
        self.came.fetch_add(1, Ordering::Relaxed);
    }

    /// True while a pulse is on: some clients are still to leave.
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

    /// True if a server here sends its clients away, or may: it was told to, and has not yet acknowledged that it was
    /// told to stop.
    #[inline]
    pub fn is_shut(&self) -> bool {
        self.shut.load(Ordering::Acquire)
    }

    /// Notes that servers here are shut, or not any more; called by the component that tells the server.
    pub fn set_shut(&self, shut: bool) {
        self.change(self.shut.swap(shut, Ordering::AcqRel) != shut);
    }

    /// True if servers here are to send their clients away now.
    #[inline]
    pub fn is_alerted(&self) -> bool {
        let tell = self.tell.load(Ordering::Acquire);
        tell == SheddingOrder::On as u8 || tell == SheddingOrder::Pulses as u8 && self.has_pulse()
    }

    /// Says what servers here are to be told.
    pub fn set_tell(&self, tell: SheddingOrder) {
        self.change(self.tell.swap(tell as u8, Ordering::AcqRel) != tell as u8);
    }

    /// Wakes listeners when a pulse begins or ends, when the servers here are shut or not any more, and when their
    /// instruction changes.
    pub fn change_signal(&self) -> &Signal {
        &self.changed
    }

    fn change(&self, changed: bool) {
        if changed {
            self.changed.wake();
        }
    }

    /// Keeps old reports old, and forgets loads without a name that are not reported any more. Times wrap after 49
    /// days, and from half of that on they would seem to be new: call it at least once a day.
    pub fn keep_age(&self, now: Instant) {
        for cell in self.named_cells() {
            // An expired report stays expired: its time is even.
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
