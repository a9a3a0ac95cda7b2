//! Reports come in: which are kept, and what they say of the cost of a bind.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::id::{LoadId, LoadValue};
use super::location::{Cell, FORGOTTEN, Location, UNNAMED_LOADS};
use super::split::{lowest_load, new_share};
use crate::cost::{UNIT, of_units};
use crate::time::{Instant, millis, millis_since};

/// Over about how many seconds kernels average the length of a queue.
const QUEUE_AVERAGE: f32 = 0.1;

/// Reports of a utilisation that come at longer intervals, in seconds, tell of too long a
/// time to say who is there now.
const MOMENT: f32 = 0.25;

/// Longest interval, in seconds, of reports of queues that tell of the moment: they are averages over a shorter time.
const QUEUE_MOMENT: f32 = 1.0;

/// Number of reports over which the usual load is averaged.
const USUAL: f32 = 4.0;

/// True if a load, reported `seconds` after the report before, is that of a moment so short that the requests which are
/// there now make the next load. A queue is one from the first report on.
fn is_momentary(id: LoadId, seconds: Option<f32>) -> bool {
    match id.is_queue() {
        true => seconds.is_none_or(|seconds| seconds <= QUEUE_MOMENT),
        false => id.is_utilization() && seconds.is_some_and(|seconds| seconds <= MOMENT),
    }
}

/// A moving average, in f32 bits: the next value, of which this `share` is new.
fn average(cell: &AtomicU32, new: f32, share: f32) -> f32 {
    let old = f32::from_bits(cell.load(Ordering::Relaxed));
    let next = old + (new - old) * share;
    cell.store(next.to_bits(), Ordering::Relaxed);
    next
}

/// The location already keeps [`UNNAMED_LOADS`] other ids without a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a location keeps at most {UNNAMED_LOADS} loads without a name at a time")]
pub struct TooManyLoads;

impl Location {
    /// Stores a report; one that a monitor [holds](Location::observe_loads) stays as it is.
    pub fn report_load(
        &self,
        id: LoadId,
        value: LoadValue,
        now: Instant,
    ) -> Result<(), TooManyLoads> {
        self.with_cell_for(id, now, |cell| {
            if !cell.held.load(Ordering::Acquire) {
                self.store(cell, id, value, now);
            }
        })
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
                let oldest =
                    (0..cells.len()).max_by_key(|&index| cells[index].millis_since_report(now));
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
                self.tell_watchers();
                return Ok(new);
            }
        }
    }

    /// Applies `act` to the load's cell, and makes a new cell if there is none.
    pub(super) fn with_cell_for<T>(
        &self,
        id: LoadId,
        now: Instant,
        act: impl FnOnce(&Cell) -> T,
    ) -> Result<T, TooManyLoads> {
        let Some(place) = id.place() else {
            return Ok(act(&*self.unnamed_cell(id, now)?));
        };
        let known = { self.named_cell(Cell::word_of(id), place) }.filter(|cell| cell.is_for(id));
        Ok(act(known.unwrap_or_else(|| self.claim_cell(id, place))))
    }

    /// Stores what a monitor has read, and holds it: until it [expires](Location::expire),
    /// reports of others do not count, which are older or about something else. All loads
    /// for which there is room are stored.
    pub fn observe_loads(
        &self,
        loads: impl IntoIterator<Item = (LoadId, LoadValue)>,
        now: Instant,
    ) -> Result<(), TooManyLoads> {
        self.hold(loads, false, now)
    }

    /// Stores a load that another balancer has read, in the same way. The other balancer reads it until `until` at
    /// least, so that this one need not read it meanwhile.
    pub fn observe_elsewhere(
        &self,
        loads: impl IntoIterator<Item = (LoadId, LoadValue)>,
        until: Instant,
        now: Instant,
    ) -> Result<(), TooManyLoads> {
        self.read_elsewhere
            .store(until.as_nanos(), Ordering::Release);
        self.hold(loads, true, now)
    }

    fn hold(
        &self,
        loads: impl IntoIterator<Item = (LoadId, LoadValue)>,
        elsewhere: bool,
        now: Instant,
    ) -> Result<(), TooManyLoads> {
        let mut result = Ok(());
        for (id, value) in loads {
            let stored = self.with_cell_for(id, now, |cell| {
                cell.elsewhere.store(elsewhere, Ordering::Release);
                cell.held.store(true, Ordering::Release);
                self.store(cell, id, value, now);
            });
            result = result.and(stored);
        }
        result
    }

    /// Expires the loads that the monitor which [holds](Location::observe_loads) them has no news of: they are unknown from
    /// now on, and other reports of them count. Loads that it does not hold stay as they are.
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

    /// Makes the loads that other balancers [have read](Location::observe_elsewhere) unknown, unless they were read
    /// here since.
    pub fn expire_elsewhere(&self) {
        let ids = self.named_cells().filter_map(|cell| {
            let id = cell.id.load(Ordering::Acquire).checked_sub(1)?;
            let is_elsewhere = cell.elsewhere.load(Ordering::Acquire);
            is_elsewhere.then_some(LoadId(u32::try_from(id).ok()?))
        });
        self.expire(ids);
    }

    /// Stores a report of several loads: all of them, or none if they are too many. For reporters that get an answer
    /// and can send fewer.
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
            self.report_load(id, value, now)?;
        }
        for &(id, value) in loads.iter().filter(|(id, _)| !is_kept(*id)) {
            self.report_load(id, value, now)?;
        }
        Ok(())
    }

    /// Stores a report of several loads, each of them if there is room for it; returns the number of loads without
    /// room. For reporters that get no answer: one load too many must not cost them the others.
    pub fn report_each(&self, loads: &[(LoadId, LoadValue)], now: Instant) -> usize {
        let refused =
            |&&(id, value): &&(LoadId, LoadValue)| self.report_load(id, value, now).is_err();
        loads.iter().filter(refused).count()
    }

    fn store(&self, cell: &Cell, id: LoadId, value: LoadValue, now: Instant) {
        let bound = self.bound.load(Ordering::Relaxed);
        let before = cell.value_at.load(Ordering::Acquire);
        // Swapped only where it differs, as the next two are: a swap waits for all that was read and
        // written before, and a monitor comes with ten loads of a location, of thousands, whose cells
        // are in no cache.
        let since = match cell.bound_at.load(Ordering::Relaxed) {
            same if same == bound => 0,
            _ => bound.wrapping_sub(cell.bound_at.swap(bound, Ordering::Relaxed)),
        };
        let since = of_units(since);
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
        let rate = rate + (since / seconds - rate) * share;
        cell.rate.store(rate.to_bits(), Ordering::Relaxed);
        let assigned = self.assigned.load(Ordering::Relaxed);
        let stayed = match cell.assigned_at.load(Ordering::Relaxed) {
            same if same == assigned => 0,
            _ => assigned.wrapping_sub(cell.assigned_at.swap(assigned, Ordering::Relaxed)),
        };
        // The load is that of all clients who are there, and not only of the clients since the
        // last report. A third of their stay counts, not the whole: many clients leave before, the
        // newest clients are in the next report in part only, and a controller that corrects all of
        // a difference at once swings (`docs/design/loads-between-reports.md`).
        let doubted = self.doubted.load(Ordering::Relaxed);
        cell.doubted_at.store(doubted, Ordering::Relaxed);
        let stays = self.stays.load(Ordering::Relaxed);
        let stays = match cell.stays_at.load(Ordering::Relaxed) {
            same if same == stays => 0,
            _ => stays.wrapping_sub(cell.stays_at.swap(stays, Ordering::Relaxed)),
        };
        let mut stay = f32::from_bits(cell.stay.load(Ordering::Relaxed));
        if stayed > 0 {
            let mean = stays as f32 / 1e3 / stayed as f32;
            let new = if stay > 0.0 { share } else { 1.0 };
            stay = average(&cell.stay, mean, new);
        }
        let stay = match stayed as f32 * 2.0 >= since {
            true => stay / 3.0,
            false => 0.0,
        };
        let binds = (rate * seconds.max(1.0).max(stay)).max(1.0);
        let per_bind = value.get().max(lowest_load(id)) / binds;
        cell.per_unit
            .store((per_bind / UNIT).to_bits(), Ordering::Relaxed);
        cell.in_flight_at.store(self.in_flight(), Ordering::Relaxed);
        let since = (before != 0).then_some(seconds);
        self.store_moment(cell, id, value.get(), since);
        let (work, in_flight) = (self.work_until(now), self.in_flight.get());
        let requests = cell
            .split
            .mean_requests_since(work, in_flight, now, seconds);
        // Loads of the moment are read otherwise, and some come very often.
        if !is_momentary(id, since) {
            let (split, value) = (&cell.split, value.get());
            split.add_report(id, value, requests, in_flight, seconds);
        }
        let word = (u64::from(value.get().to_bits()) << 32) | u64::from(millis(now));
        cell.value_at.store(word, Ordering::Release);
    }

    /// The part of [`store`](Location::store) that matters for loads of the moment.
    fn store_moment(&self, cell: &Cell, id: LoadId, value: f32, since: Option<f32>) {
        // Share of an average over `over` seconds that is new.
        let share = |over: f32| since.map_or(1.0, |seconds| new_share(seconds, over));
        let in_flight = self.in_flight.get().total_cost();
        let of_second = share(1.0);
        let mean = average(&cell.mean, value, of_second);
        let mean_in_flight = average(&cell.mean_in_flight, in_flight, of_second);
        // A quarter of a request that fills a CPU of one is what is known at first.
        let per_request = (mean + 0.25) / (mean_in_flight + 0.25);
        let per_request = match is_momentary(id, since) {
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
}
