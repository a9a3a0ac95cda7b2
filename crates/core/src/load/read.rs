//! Present state of a load: the last report, and the changes since.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use super::id::{Load, LoadId, LoadValue};
use super::location::{Cell, Location, is_report, stay_share};
use crate::cost::UNIT;
use crate::estimate::{higher, lower};
use crate::time::{Horizon, Instant, millis_since};

/// Milliseconds after which half of the others' requests in a queue have been replaced.
const HALF_LIFE: f32 = 30.0;

/// Least share of a utilisation that is due to others: a busy location does not become idle because none of our
/// requests is there.
const NOT_OURS: f32 = 0.5;

/// The load that is asked for, and the limit of freshness: worked out once for all members of a decision.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Query {
    pub(crate) id: LoadId,
    /// Word of the load's cells ([`Cell::word_of`]).
    word: u64,
    /// Index of the load's cell at a location; past the end if the load has no name.
    place: usize,
    /// True if the load may be found in another cell.
    elsewhere: bool,
    pub(crate) horizon: Horizon,
    /// Load that a request adds at a typical member; 0 is not known.
    typical: f32,
    /// True if members have hardly any of our requests in flight: requests that are over count, too.
    counts_binds: bool,
}

impl Query {
    #[inline]
    pub(crate) fn new(id: LoadId, horizon: Horizon) -> Self {
        Query {
            id,
            word: Cell::word_of(id),
            place: id.place().unwrap_or(usize::MAX),
            elsewhere: !id.is_named() || id == LoadId::UTILIZATION,
            horizon,
            typical: 0.0,
            counts_binds: false,
        }
    }

    /// Returns the query for members with these means.
    #[inline]
    pub(crate) fn with_means(self, means: MemberMeans) -> Self {
        Query {
            typical: means.per_request,
            counts_binds: means.requests < HARDLY_ANY,
            ..self
        }
    }

    /// Returns the query for the members that `other` is for.
    #[inline]
    pub(crate) fn with_means_of(self, other: &Query) -> Self {
        Query {
            typical: other.typical,
            counts_binds: other.counts_binds,
            ..self
        }
    }

    /// Query for another moment.
    #[inline]
    pub(crate) fn moved_to(self, now: Instant) -> Self {
        Query {
            horizon: self.horizon.moved_to(now),
            ..self
        }
    }
}

/// Mean number of our requests in flight at a member below which there is hardly any.
const HARDLY_ANY: f32 = 0.5;

/// Sums of the means over several members' reports.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LoadMeans {
    /// Number of members whose load is known.
    members: f32,
    load: f32,
    requests: f32,
}

/// Means of the members whose load is known.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MemberMeans {
    /// Load that each of our requests in flight adds; 0 is not known.
    pub(crate) per_request: f32,
    /// Our requests in flight at a member.
    pub(crate) requests: f32,
}

impl LoadMeans {
    /// Means of the members; `None` without a member.
    pub(crate) fn of_members(&self) -> Option<MemberMeans> {
        (self.members > 0.0).then(|| MemberMeans {
            per_request: match self.requests > 0.0 {
                true => self.load / self.requests,
                false => 0.0,
            },
            requests: self.requests / self.members,
        })
    }
}

/// A report, as returned by [`Location::last_report`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Report {
    pub(crate) value: f32,
    /// Load that our own requests have probably added since; less than 0 if they are done.
    pub(crate) added: f32,
    /// True if `added` is the load of the requests that are there now, and not of all requests that came.
    pub(crate) is_momentary: bool,
    /// Milliseconds of [`millis`]: tells reports apart.
    pub(crate) at: u32,
    /// Sum of the costs of all requests ever bound here, in units, when the report arrived.
    pub(crate) bound_at: u64,
    /// Sum of the costs of the requests that were bound here since.
    pub(crate) bound: f32,
}

impl Cell {
    /// Value and time of the last report, if the report is fresh.
    #[inline]
    fn fresh(&self, query: &Query) -> Option<u64> {
        let word = self.value_at.load(Ordering::Acquire);
        (is_report(word) && !query.horizon.is_past(word as u32)).then_some(word)
    }
}

impl Location {
    /// The load `id` as it probably is now: the last report, if it was at most `max_age` ago, plus the load that our
    /// own requests have added since. `None` is *unknown*. If [`LoadId::UTILIZATION`] is unknown, [`LoadId::CPU`] is
    /// taken.
    ///
    /// Without the addition a member with a low report would get all requests until its
    /// next one. What a request adds is not reported: it is estimated from the reports and the requests in flight
    /// between them ([`split`](super::split)). A client that goes there itself, and is not seen, adds the load of the
    /// last interval divided by its binds, with a floor where a location was idle: an error there corrects itself with
    /// the next report. Where such clients stay for longer than an interval, the load is divided by
    /// the binds in a third of that time, and what is added falls as the report ages: by
    /// half when it is as old as they stay. For
    /// [`LoadId::IN_FLIGHT`] only those need an estimate whose clients go there themselves
    /// ([`Group::assign_client`](crate::group::Group::assign_client)).
    ///
    /// Where loads tell of the moment (tasks that run or wait, reported once a second or oftener, and utilisations that
    /// are reported four times a second or oftener) a request adds something from when it goes
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
    /// `docs/design/loads-between-reports.md` has the estimates that were tried, with figures.
    #[inline]
    pub fn projected_load(&self, id: LoadId, now: Instant, max_age: Duration) -> Option<f32> {
        self.last_report(&Query::new(id, Horizon::new(now, max_age)))
            .map(|report| report.value + report.added)
    }

    /// The report of that load, if it is fresh, with the changes since.
    // A call costs as much as what is done here, and decisions ask for the load of each member.
    #[inline(always)]
    pub(crate) fn last_report(&self, query: &Query) -> Option<Report> {
        self.of_report(query, |report| report)
    }

    /// Applies `of` to that report.
    #[inline(always)]
    pub(crate) fn of_report<T>(&self, query: &Query, of: impl Fn(Report) -> T) -> Option<T> {
        if let Some(cell) = self.named_cell(query.word, query.place)
            && let Some(word) = cell.fresh(query)
        {
            return Some(of(self.report_in(cell, word, query)));
        }
        match query.elsewhere {
            true => self.other_report(query).map(of),
            false => None,
        }
    }

    /// True if there is a fresh report of that load.
    #[inline]
    pub(crate) fn has_fresh(&self, query: &Query) -> bool {
        let cell = self.named_cell(query.word, query.place);
        cell.is_some_and(|cell| cell.fresh(query).is_some())
            || (query.elsewhere && self.other_report(query).is_some())
    }

    /// Adds the mean load here, and the mean number of our requests, if there is a fresh report of that load.
    #[inline]
    pub(crate) fn add_means(&self, query: &Query, means: &mut LoadMeans) {
        if let Some(cell) = self.named_cell(query.word, query.place)
            && cell.fresh(query).is_some()
        {
            let (load, requests) = cell.split.mean_load_and_requests();
            (means.load, means.requests) = (means.load + load, means.requests + requests);
            means.members += 1.0;
        } else if query.elsewhere && self.other_report(query).is_some() {
            // Loads of other cells are compared as they are.
            means.members += 1.0;
        }
    }

    /// The report of a load without a name, or of a load that stands for a missing one.
    #[inline(never)]
    fn other_report(&self, query: &Query) -> Option<Report> {
        let of = |id| {
            let query = Query::new(id, query.horizon);
            let report = |cell: &Cell| Some(self.report_in(cell, cell.fresh(&query)?, &query));
            self.with_cell(id, report)?
        };
        match query.id {
            LoadId::FIRST => of(self.resolve_id(query.id)).or_else(|| of(LoadId::CPU)),
            // If the application does not report its utilisation, the machine's CPU load counts (as with ORCA, gRPC
            // proposal A58).
            LoadId::UTILIZATION => of(LoadId::CPU),
            id => of(id),
        }
    }

    #[inline(always)]
    fn report_in(&self, cell: &Cell, word: u64, query: &Query) -> Report {
        let (value, at) = (f32::from_bits((word >> 32) as u32), word as u32);
        let bound_at = cell.bound_at.load(Ordering::Relaxed);
        let bound = self.bound.load(Ordering::Relaxed).wrapping_sub(bound_at);
        // A report that arrives right now may have counted further than we have.
        let bound = (bound as i64).max(0) as f32;
        let per_unit = f32::from_bits(cell.per_unit.load(Ordering::Relaxed));
        let assigned = self.assigned.load(Ordering::Relaxed);
        let assigned = assigned.wrapping_sub(cell.assigned_at.load(Ordering::Relaxed));
        let is_momentary = cell.per_request.load(Ordering::Relaxed) != 0;
        let added = match is_momentary || query.id == LoadId::IN_FLIGHT {
            true => {
                self.added_by_flying(cell, word, query)
                    + per_unit * lower(assigned as f32 * UNIT, bound)
            }
            false => {
                let in_flight = self.in_flight.get().total_cost();
                let seen = cell.split.load_with(in_flight, query.typical) - value;
                match (assigned, query.counts_binds) {
                    (0, false) => seen,
                    (0, true) => seen + per_unit * bound,
                    _ => seen + Self::added_by_assigned(cell, assigned, bound, at, query),
                }
            }
        };
        Report {
            value,
            added,
            is_momentary,
            at,
            bound_at,
            bound: bound * (1.0 / UNIT),
        }
    }

    /// Load that clients have added who go to the member themselves, and requests that are over, if they count.
    #[cold]
    #[inline(never)]
    fn added_by_assigned(cell: &Cell, assigned: u32, bound: f32, at: u32, query: &Query) -> f32 {
        let assigned = lower(assigned as f32 * UNIT, bound);
        let over = if query.counts_binds {
            bound - assigned
        } else {
            0.0
        };
        let left = cell.departed_clients(assigned, query.horizon.millis_since(at));
        f32::from_bits(cell.per_unit.load(Ordering::Relaxed)) * (over + assigned - left)
    }

    /// Load that our requests have added to a load of the moment, or to the load of requests in flight, without the
    /// requests of clients that go to the member themselves.
    #[inline(never)]
    fn added_by_flying(&self, cell: &Cell, word: u64, query: &Query) -> f32 {
        let value = f32::from_bits((word >> 32) as u32);
        let get = |cell: &AtomicU32| f32::from_bits(cell.load(Ordering::Relaxed));
        let flying = self.in_flight.get();
        let in_flight = flying.total_cost();
        if query.id == LoadId::IN_FLIGHT {
            let count = flying.count() as f32;
            let then = cell.in_flight_at.load(Ordering::Relaxed) as f32;
            // Our requests are among the reported ones: the member has at least as many as we have there. Reports count
            // requests; of ours the costs are known.
            return (count - then).max(count - value) + (in_flight - count);
        }
        let per_request = get(&cell.per_request);
        let usual = get(&cell.usual);
        let others = value - per_request * get(&cell.ours);
        let fresh = HALF_LIFE / (HALF_LIFE + query.horizon.millis_since(word as u32) as f32);
        let others = usual + (others - usual) * fresh;
        let is_queue = query.id.is_queue();
        let least = if is_queue { 0.0 } else { NOT_OURS * value };
        // Values that differ by less than a hundredth are equal. Not `round()`, which is a call.
        let there = (per_request * in_flight + others).max(least);
        (there * 100.0 + 0.5) as i64 as f32 * 0.01 - value
    }

    /// Part of [`Location::projected_load`] that is due to clients that are doubted.
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
                true => stay_share(query.horizon.millis_since(at), stay),
                false => 1.0,
            };
            get(&cell.per_unit) * UNIT * doubted as f32 * left
        });
        doubtful.unwrap_or(0.0)
    }

    /// The load `id` if it was reported at most `max_age` ago; `None` is *unknown*.
    pub fn fresh_load(&self, id: LoadId, now: Instant, max_age: Duration) -> Option<f32> {
        let counts = |load: &Load| !load.expired && now.since(load.at) <= max_age;
        let load = self.last_load(id, now).filter(counts).or_else(|| match id {
            LoadId::FIRST => self.last_load(LoadId::CPU, now).filter(counts),
            _ => None,
        });
        load.map(|load| load.value.get())
    }

    /// The load `id`, if a monitor [has read](Location::observe_loads) it and holds it.
    pub fn observed(&self, id: LoadId, now: Instant) -> Option<LoadValue> {
        let is_held = self.with_cell(id, |cell| cell.held.load(Ordering::Acquire));
        let load = self.last_load(id, now).filter(|_| is_held == Some(true));
        load.filter(|load| !load.expired).map(|load| load.value)
    }

    /// The load `id` as last reported, however old.
    pub fn last_load(&self, id: LoadId, now: Instant) -> Option<Load> {
        let id = self.resolve_id(id);
        let word = self.with_cell(id, |cell| cell.value_at.load(Ordering::Acquire))?;
        (word != 0).then(|| decode(id, word, now))
    }

    /// All loads that are kept here, with their ages.
    pub fn list_loads(&self, now: Instant) -> impl Iterator<Item = Load> + '_ {
        let load = move |cell: &Cell| {
            let id = cell.id.load(Ordering::Acquire);
            let word = cell.value_at.load(Ordering::Acquire);
            (id != 0 && word != 0).then(|| decode(LoadId((id - 1) as u32), word, now))
        };
        let unnamed = self.unnamed.load_full().unwrap_or_default();
        let unnamed: Vec<Load> = unnamed.iter().filter_map(|cell| load(cell)).collect();
        self.named_cells().filter_map(load).chain(unnamed)
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
    pub(crate) fn add_load(&mut self, load: f32) {
        if load >= 0.0 {
            self.sum += load;
            self.count += 1.0;
        }
    }

    /// Factor by which a load above the mean of the others multiplies the cost of a request; the load is in tasks per
    /// CPU (`is_queue`), or else a utilisation.
    #[inline]
    pub(crate) fn cost_factor(&self, load: f32, is_queue: bool) -> f32 {
        // Without others it is no number, and above nothing, as is a load that is not known.
        let mean = (self.sum - load) / (self.count - 1.0);
        let excess = higher(load - mean - LOAD_TOLERANCE, 0.0);
        match is_queue {
            true => 1.0 + excess,
            false => 1.0 / (1.0 - excess),
        }
    }
}
