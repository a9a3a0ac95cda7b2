//! What is known of a load now: the last report, and what has happened since.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use super::id::{Load, LoadId, LoadValue};
use super::location::{Cell, Location, is_report, stay_share};
use crate::cost::UNIT;
use crate::estimate::{higher, lower};
use crate::time::{Horizon, Instant, millis_since};

/// After so many milliseconds half of what others had in a queue is something else.
const HALF_LIFE: f32 = 30.0;

/// Share of the load that our requests usually add, and of the load that they have probably added here, which no report
/// can deny. A report that is wrong, or never changes, draws at most twice the requests by each of the two.
const TRUSTED: f32 = 0.5;

/// Load that one of our requests in flight adds at most members of a group, and the least of it that counts at a
/// member.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestLoad {
    pub(crate) least: f32,
    /// Infinite if the load is not known.
    pub(crate) most: f32,
}

impl RequestLoad {
    pub(crate) const UNKNOWN: RequestLoad = RequestLoad {
        least: 0.0,
        most: f32::INFINITY,
    };

    pub(crate) fn new(load: f32) -> Self {
        RequestLoad {
            least: TRUSTED * load,
            most: load,
        }
    }

    /// Load that one request adds at most members, if it is known.
    pub(crate) fn usual(self) -> Option<f32> {
        self.most.is_finite().then_some(self.most)
    }
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
    request_load: RequestLoad,
}

impl Query {
    #[inline]
    pub(crate) fn new(id: LoadId, horizon: Horizon) -> Self {
        Query {
            id,
            place: id.place().unwrap_or(usize::MAX),
            elsewhere: !id.is_named() || id == LoadId::UTILIZATION,
            horizon,
            request_load: RequestLoad::UNKNOWN,
        }
    }

    /// Returns the same query at another moment, with the load that one of our requests adds at most members.
    #[inline]
    pub(crate) fn at(self, now: Instant, request_load: RequestLoad) -> Self {
        Query {
            horizon: self.horizon.at(now),
            request_load,
            ..self
        }
    }

    /// Returns the same query for another load.
    fn of(&self, id: LoadId) -> Self {
        Query {
            request_load: self.request_load,
            ..Query::new(id, self.horizon)
        }
    }
}

/// A report as [`Location::last_report`] gives it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Report {
    pub(crate) value: f32,
    /// The load as it probably is now.
    pub(crate) now: f32,
    /// Load of others: below 0 by at most half of the load that our requests usually add.
    pub(crate) others: f32,
    /// Load with as many of our requests as there usually are, and not as there are now.
    pub(crate) settled: f32,
    /// The load, averaged over a few reports where no clients go there themselves.
    pub(crate) usual: f32,
    /// Milliseconds of [`millis`](crate::time::millis): tells reports apart.
    pub(crate) at: u32,
    /// Cost of all requests that were ever bound here when it arrived, in units.
    pub(crate) bound_at: u64,
    /// Cost of requests that were bound here since.
    pub(crate) bound: f32,
}

impl Cell {
    /// Value and time of the last report, if that is fresh.
    #[inline]
    fn fresh(&self, query: &Query) -> Option<u64> {
        let word = self.value_at.load(Ordering::Acquire);
        (is_report(word) && !query.horizon.is_past(word as u32)).then_some(word)
    }
}

impl Location {
    /// The load `id` as it probably is now: the last report, if it was at most
    /// `max_age` ago, with the requests and clients that are there now in place of those that were there
    /// then. `None` is *unknown*.
    /// For [`LoadId::UTILIZATION`], where it is unknown, that of [`LoadId::CPU`] is taken.
    ///
    /// A member with a low report would get all requests until its next one otherwise. Our requests in
    /// flight are known at each moment, and so is their mean over the time between two reports:
    ///
    /// ```text
    /// load = others + c * in flight now
    /// others = reported - c * in flight then, averaged
    /// ```
    ///
    /// where *c* is the load that one of them adds: the ratio of the average load and the average number in flight. A
    /// utilisation cannot be more than all, so of the requests in flight then only as many count as fill the
    /// members here (`1 / c`): otherwise a member with a queue would seem to have less load of others than one
    /// without, and would get more requests. Utilisations above 90 % say nothing of *c*. Groups take the *c* that is
    /// usual among their members ([`View::heed_loads`](crate::group::View)), so that a member whose load comes from
    /// somebody else does not seem to have heavy requests. Others take away at most half of the load that our requests
    /// usually add: a report that is wrong, frozen or late cannot draw more requests than that balances.
    ///
    /// The load of others counts as in the last report for some 30 ms and as in the last four after that: balancers
    /// that all follow the same old report herd. A report that is off by more than reports usually are counts at once
    /// at any age.
    ///
    /// If hardly any request is in flight at any moment, each that was bound since the report counts, too: with the
    /// load divided by binds in the last interval.
    ///
    /// Clients that go to a member themselves ([`Group::assign`](crate::group::Group::assign)) are not seen
    /// there. Each that was bound since the report adds the load divided by the binds in the last interval, or in a third
    /// of the time for which they may stay if that is longer. The estimate falls as the report ages: by half when it is as
    /// old as they may stay.
    #[inline]
    pub fn projected(&self, id: LoadId, now: Instant, max_age: Duration) -> Option<f32> {
        self.last_report(&Query::new(id, Horizon::new(now, max_age)))
            .map(|report| report.now)
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
            let query = query.of(id);
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

    #[inline(always)]
    fn report_in(&self, cell: &Cell, word: u64, query: &Query) -> Report {
        match self.assigned.load(Ordering::Relaxed) {
            0 => self.report_of_requests(cell, word, query),
            assigned => self.report_of_clients(cell, word, query, assigned),
        }
    }

    #[inline(always)]
    fn report_of_requests(&self, cell: &Cell, word: u64, query: &Query) -> Report {
        let (value, at) = (f32::from_bits((word >> 32) as u32), word as u32);
        let get = |cell: &AtomicU32| f32::from_bits(cell.load(Ordering::Relaxed));
        let bound_at = cell.bound_at.load(Ordering::Relaxed);
        let bound = self.bound.load(Ordering::Relaxed).wrapping_sub(bound_at);
        // A report that arrives right now may have counted further than we have: then it is below 0.
        let bound = bound as i64 as f32;
        // By this location's own reports, between a share of what is usual in the group and that.
        let RequestLoad { least, most } = query.request_load;
        let per_request = higher(lower(get(&cell.per_request), most), least);
        let (usual, usual_ours) = (get(&cell.usual), get(&cell.usual_ours));
        let fresh = HALF_LIFE / (HALF_LIFE + query.horizon.age(at) as f32);
        let reported = usual + get(&cell.off) * fresh;
        let ours = usual_ours + get(&cell.off_ours) * fresh;
        let explained = per_request * usual_ours;
        let others = higher(reported - per_request * ours, -TRUSTED * explained);
        let in_flight = higher(others + per_request * self.cost_in_flight(), 0.0);
        Report {
            value,
            now: in_flight + get(&cell.per_unit) * bound,
            others,
            settled: higher(others + explained, 0.0),
            usual,
            at,
            bound_at,
            bound: higher(bound, 0.0) * (1.0 / UNIT),
        }
    }

    /// Reads the report if clients went to members themselves.
    #[inline(never)]
    fn report_of_clients(&self, cell: &Cell, word: u64, query: &Query, assigned: u32) -> Report {
        let get = |cell: &AtomicU32| f32::from_bits(cell.load(Ordering::Relaxed));
        let report = self.report_of_requests(cell, word, query);
        let known = get(&cell.per_unit);
        // Until the next report a client is taken to add as much as a request.
        let per_unit = match known > 0.0 {
            true => known,
            false => get(&cell.per_request) / UNIT,
        };
        let bound = report.bound * UNIT;
        let assigned = assigned.wrapping_sub(cell.assigned_at.load(Ordering::Relaxed));
        let assigned = lower(assigned as f32 * UNIT, bound);
        let is_momentary = cell.is_momentary.load(Ordering::Relaxed);
        let now = match is_momentary || query.id == LoadId::IN_FLIGHT {
            true => report.now - known * bound + per_unit * assigned,
            false => {
                let left = cell.left(assigned, query.horizon.age(report.at));
                report.value + per_unit * (bound - left)
            }
        };
        Report {
            now,
            settled: if is_momentary { now } else { report.value },
            usual: report.value,
            ..report
        }
    }

    /// Applies `of` to the cell that has a fresh report of the load of `query`.
    fn with_fresh<T>(&self, query: &Query, of: impl Fn(&Cell, u64) -> T) -> Option<T> {
        let at = |id| self.with_cell(id, |cell| cell.fresh(query).map(|word| of(cell, word)))?;
        match query.id {
            LoadId::UTILIZATION => at(query.id).or_else(|| at(LoadId::CPU)),
            id => at(self.meant(id)),
        }
    }

    /// Load that one of our requests in flight adds by the reports of this location alone; `None` if there were
    /// too few of them, or none is fresh.
    pub(crate) fn request_load(&self, query: &Query) -> Option<f32> {
        let load = |cell: &Cell, _| {
            let are_few = f32::from_bits(cell.per_unit.load(Ordering::Relaxed)) > 0.0;
            let load = f32::from_bits(cell.per_request.load(Ordering::Relaxed));
            (!are_few && load > 0.0).then_some(load)
        };
        self.with_fresh(query, load)?
    }

    /// True if the reports show so little load for our requests, compared with most members, that more of it is taken to
    /// be there: they are wrong, or never change, or the members here have room for many more requests.
    pub(crate) fn denies_requests(&self, query: &Query) -> bool {
        let own = self.request_load(query);
        own.is_some_and(|own| own < query.request_load.least)
    }

    /// Counts the last report if it denies our requests, once.
    pub(crate) fn count_denial(&self, query: &Query) {
        if self.denies_requests(query) {
            let at = self.with_fresh(query, |_, word| word as u32);
            let at = at.unwrap_or_default();
            if self.denied_at.swap(at, Ordering::Relaxed) != at {
                self.denying.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Number of reports, wrapping, that showed less than half of the load that our requests add at most members of their
    /// group, of those that were looked at, ten in a second.
    pub fn denying_reports(&self) -> u32 {
        self.denying.load(Ordering::Relaxed)
    }

    /// Part of [`Location::projected`] that comes from clients who are doubted.
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
            let is_momentary = cell.is_momentary.load(Ordering::Relaxed);
            let left = match stay > 0.0 && !is_momentary {
                true => stay_share(query.horizon.age(at), stay),
                false => 1.0,
            };
            get(&cell.per_unit) * UNIT * doubted as f32 * left
        });
        doubtful.unwrap_or(0.0)
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

    /// The load `id`, if a monitor [has read](Location::observe) it and holds it.
    pub fn observed(&self, id: LoadId, now: Instant) -> Option<LoadValue> {
        let is_held = self.with_cell(id, |cell| cell.held.load(Ordering::Acquire));
        let load = self.load(id, now).filter(|_| is_held == Some(true));
        load.filter(|load| !load.expired).map(|load| load.value)
    }

    /// The load `id` as last reported, however old.
    pub fn load(&self, id: LoadId, now: Instant) -> Option<Load> {
        let id = self.meant(id);
        self.with_cell(id, |cell| decode(id, cell, now))?
    }

    /// All loads that are kept here, with their ages.
    pub fn loads(&self, now: Instant) -> impl Iterator<Item = Load> + '_ {
        let load = move |cell: &Cell| {
            let id = cell.id.load(Ordering::Acquire).checked_sub(1)?;
            decode(LoadId(id as u32), cell, now)
        };
        let unnamed = self.unnamed.load_full().unwrap_or_default();
        let unnamed: Vec<Load> = unnamed.iter().filter_map(|cell| load(cell)).collect();
        self.cells.iter().filter_map(load).chain(unnamed)
    }
}

/// The last report of a load that is kept in `cell`, if there is one.
fn decode(id: LoadId, cell: &Cell, now: Instant) -> Option<Load> {
    let word = cell.value_at.load(Ordering::Acquire);
    let age = millis_since(word as u32, now);
    let at = now.as_nanos().saturating_sub(u64::from(age) * 1_000_000);
    (word != 0).then(|| Load {
        expired: !is_report(word),
        id,
        value: LoadValue(f32::from_bits((word >> 32) as u32)),
        at: Instant::from_nanos(at),
    })
}

/// A reported load above the mean of the others' by less than this does not count.
const LOAD_TOLERANCE: f32 = 0.1;

/// Reported loads of the candidates of a decision, which a member is compared with.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Loads {
    sum: f32,
    count: f32,
}

impl Loads {
    /// Adds one; below 0 is not known.
    #[inline]
    pub(crate) fn add(&mut self, load: f32) {
        if load >= 0.0 {
            self.sum += load;
            self.count += 1.0;
        }
    }

    /// What a load above the mean of the others multiplies the cost of a request by, where it is tasks per
    /// CPU (`is_queue`), or else a utilisation.
    #[inline]
    pub(crate) fn cost(&self, load: f32, is_queue: bool) -> f32 {
        // Without others it is no number, and above nothing, as is a load that is not known.
        let mean = (self.sum - load) / (self.count - 1.0);
        let excess = higher(load - mean - LOAD_TOLERANCE, 0.0);
        match is_queue {
            true => 1.0 + excess,
            false => 1.0 / (1.0 - excess),
        }
    }
}
