//! A reported load in two parts: what our own requests make, and what is due to others.
//!
//! A report is an average over the time since the report before. Our requests in flight, averaged over the same time,
//! explain some of it:
//!
//! ```text
//! reported load = load of others + c * our requests in flight, averaged over the interval
//! load now      = load of others + c * our requests in flight now
//! ```
//!
//! `c` is the load of one request, for which the reports themselves tell a range. The highest value is the mean load
//! divided by the mean number of requests: then others have no part. The slope of a regression of the reports on the
//! numbers of requests is the likeliest value, and its standard error is added: where little is known, our requests
//! explain all of the load, and members are compared by their requests in flight.
//!
//! The load of others is the part that the fit leaves over, without the error of the fit: noise of reports must not
//! move requests. `docs/design/loads-between-reports.md` has figures.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::id::LoadId;
use crate::cost::{InFlightMoment, UNIT};
use crate::estimate::{higher, lower};
use crate::learnt::{LearntSlot, Visit};
use crate::time::Instant;

/// Number of reports over which the fit is averaged, at least.
const REPORTS: f32 = 16.0;

/// Seconds over which the fit is averaged, at least.
const SECONDS: f32 = 2.0;

/// Error of a report that is expected before there were others, as a share of its value.
const FIRST_ERROR: f32 = 0.3;

/// Number of mean errors within which a difference is no news.
const USUAL_ERROR: f32 = 2.0;

/// Variance of our requests below which nothing is learnt from it.
const LEAST_VARIANCE: f32 = 1e-9;

/// Means of our requests in flight above this are no numbers of requests.
const MOST_REQUESTS: f32 = 1e6;

/// Share of the highest possible load of a request that a request has at least: reports that do not follow our requests
/// at all must not draw all of them.
const LEAST: f32 = 0.25;

/// Ticks in a second.
const TICKS_PER_SECOND: f32 = 1e9 / 1024.0;

/// Seconds between two reports above which ticks of 32 bits may have wrapped.
const LONG_SECONDS: f32 = 3600.0;

/// The numbers that decisions take from the reports of a load, and the fit behind them.
#[derive(Debug, Default)]
pub(super) struct LoadSplit {
    /// Load that each of our requests in flight adds (f32 bits).
    per_request: AtomicU32,
    /// Load of others (f32 bits).
    others: AtomicU32,
    /// Factor by which `per_request` may differ from that of other locations by chance (f32 bits).
    spread: AtomicU32,
    /// Time of the last report in ticks, wrapping after 73 minutes; 0 before the first one.
    at: AtomicU32,
    /// Integral of our requests at the last report ([`work_until`](super::location::Location::work_until)).
    work_at: AtomicU64,
    /// The fit; most loads of a location are never reported.
    fit: OnceLock<Box<Fit>>,
}

/// Averages over the last reports of a load, all as f32 bits.
#[derive(Debug, Default)]
struct Fit {
    /// Number of reports.
    reports: AtomicU32,
    /// Our requests in flight.
    mean_requests: AtomicU32,
    /// Reported load.
    mean_load: AtomicU32,
    /// Square of our requests' distance from their mean.
    variance: AtomicU32,
    /// Product of this distance and the distance of the load from its mean.
    covariance: AtomicU32,
    /// Distance of the load from the regression.
    error: AtomicU32,
}

/// A time in ticks of 1,024 ns, which divide quickly.
pub(super) fn to_ticks(time: Instant) -> u64 {
    time.as_nanos() >> 10
}

/// Share of a moving average over `over` seconds that is new after `seconds`. Exact for any length of time.
pub(super) fn new_share(seconds: f32, over: f32) -> f32 {
    let x = seconds / over;
    match x < 0.1 {
        // The first terms of its series: a monitor asks for some with each of its reports,
        // hundreds of thousands of times a second. Right to 4 in a million.
        true => x * (1.0 - x * (0.5 - x / 6.0)),
        false => -libm::expm1f(-x),
    }
}

/// The load that a location is taken to have had when the cost of a bind is estimated,
/// if it reported less: 5 % where a load is a utilisation, else one unit.
pub(super) fn lowest_load(id: LoadId) -> f32 {
    if id.is_utilization() { 0.05 } else { 1.0 }
}

fn get(cell: &AtomicU32) -> f32 {
    f32::from_bits(cell.load(Ordering::Relaxed))
}

fn set(cell: &AtomicU32, value: f32) {
    cell.store(value.to_bits(), Ordering::Relaxed);
}

impl LoadSplit {
    /// Visits the [learnt](crate::learnt) words.
    pub(super) fn visit_words<'a>(&'a self, visit: Visit<'_, 'a>) {
        let fit = self.fit.get_or_init(Box::default);
        for (name, cell) in [
            ("split.per_request", &self.per_request),
            ("split.others", &self.others),
            ("split.spread", &self.spread),
            ("split.reports", &fit.reports),
            ("split.mean_requests", &fit.mean_requests),
            ("split.mean_load", &fit.mean_load),
            ("split.variance", &fit.variance),
            ("split.covariance", &fit.covariance),
            ("split.error", &fit.error),
        ] {
            visit(name, LearntSlot::Short(cell));
        }
    }

    /// The load with this cost of our requests in flight, where each adds the load `typical` at other locations; 0 is
    /// not known. A request adds more here if that is beyond chance, and never less: a member that is full reports no
    /// more than a member that is busy, however many requests wait there.
    #[inline]
    pub(super) fn load_with(&self, in_flight: f32, typical: f32) -> f32 {
        let (per_request, spread) = (get(&self.per_request), get(&self.spread));
        let is_more = typical == 0.0 || per_request > typical * spread;
        get(&self.others) + if is_more { per_request } else { typical } * in_flight
    }

    /// Mean load, and mean number of our requests in flight at it.
    #[inline]
    pub(super) fn mean_load_and_requests(&self) -> (f32, f32) {
        let means = |fit: &Fit| (get(&fit.mean_load), get(&fit.mean_requests));
        self.fit.get().map_or((0.0, 0.0), |fit| means(fit))
    }

    /// Mean number of our requests in flight since the last call, until `now`; `None` if there was no call before.
    /// `work` is the integral of our requests until now, and `seconds` the time since the report before, which may be
    /// 2 ms off.
    pub(super) fn mean_requests_since(
        &self,
        work: u64,
        in_flight: InFlightMoment,
        now: Instant,
        seconds: f32,
    ) -> Option<f32> {
        let worked = work.wrapping_sub(self.work_at.swap(work, Ordering::Relaxed));
        let tick = (to_ticks(now) as u32).max(1);
        let before = self.at.swap(tick, Ordering::Relaxed);
        let since = match seconds > LONG_SECONDS {
            true => seconds * TICKS_PER_SECOND,
            false => tick.wrapping_sub(before) as f32,
        };
        let mean = worked as f32 / (higher(since, 1.0) * UNIT);
        match before {
            0 => None,
            // Between a request's start and its count another thread may have read one of both.
            _ if since == 0.0 || mean > MOST_REQUESTS => Some(in_flight.total_cost()),
            _ => Some(mean),
        }
    }

    /// Takes a report into the fit: `requests` of ours were in flight on average since the report before, `seconds`
    /// ago. Without the number of requests the report covers an unknown time: it counts until the next one, with the
    /// requests `in_flight` now. A fit that was handed over stays as it was then.
    pub(super) fn add_report(
        &self,
        id: LoadId,
        value: f32,
        requests: Option<f32>,
        in_flight: InFlightMoment,
        seconds: f32,
    ) {
        let fit = self.fit.get_or_init(Box::default);
        let is_first = requests.is_none();
        if is_first && get(&fit.reports) > 0.0 {
            return;
        }
        let requests = requests.unwrap_or_else(|| in_flight.total_cost());
        let reports = get(&fit.reports) + 1.0;
        let least = lower(1.0 / REPORTS, new_share(seconds, SECONDS));
        let share = higher(1.0 / reports, least);
        set(
            &fit.reports,
            if is_first { 0.0 } else { lower(reports, 1e6) },
        );

        let (old_requests, old_load) = (get(&fit.mean_requests), get(&fit.mean_load));
        let (by_requests, by_load) = (requests - old_requests, value - old_load);
        let old_slope = get(&fit.covariance) / higher(get(&fit.variance), LEAST_VARIANCE);
        let mean_requests = old_requests + share * by_requests;
        let mean_load = old_load + share * by_load;
        let rest = 1.0 - share;
        let variance = rest * (get(&fit.variance) + share * by_requests * by_requests);
        let covariance = rest * (get(&fit.covariance) + share * by_requests * by_load);
        let error = match reports > 1.5 {
            true => {
                let old = get(&fit.error);
                let miss = (by_load - old_slope * by_requests).abs();
                // One report that is far off changes little.
                old + (lower(miss, higher(3.0 * old, 1e-6)) - old) * share
            }
            false => FIRST_ERROR * value,
        };
        for (cell, value) in [
            (&fit.mean_requests, mean_requests),
            (&fit.mean_load, mean_load),
            (&fit.variance, variance),
            (&fit.covariance, covariance),
            (&fit.error, error),
        ] {
            set(cell, value);
        }

        let seen = higher(mean_load, lowest_load(id));
        // A request cannot fill more than the whole machine; without a scale, more than all that is seen there.
        let whole = if id.is_utilization() || id.is_queue() {
            1.0
        } else {
            seen
        };
        let highest = lower(seen / higher(mean_requests, 1e-6), whole);
        let count = 1.0 / share;
        let variance = higher(variance, LEAST_VARIANCE);
        // Of normal errors the standard deviation is 1.25 times their mean.
        let slope_error = 1.25 * error / (variance * count).sqrt();
        let slope = covariance / variance + USUAL_ERROR * slope_error;
        let per_request = lower(higher(slope, LEAST * highest), highest);
        let usual = higher(mean_load - per_request * mean_requests, 0.0);
        // Within its error a report tells nothing of others, as far as our requests can explain it.
        let ours = per_request * higher(requests, mean_requests);
        let surely = usual - lower(lower(USUAL_ERROR * error / count.sqrt(), ours), usual);
        let news = value - usual - per_request * requests;
        let limit = lower(USUAL_ERROR * error, ours);
        let news = news - lower(higher(news, -limit), limit);
        let others = higher(surely + news, 0.0);
        let relative = 1.25 * error / seen / count.sqrt();
        let spread = 1.0 + USUAL_ERROR * lower(relative, 1.0);
        set(&self.per_request, per_request);
        set(&self.others, lower(others, value));
        set(&self.spread, if is_first { f32::INFINITY } else { spread });
    }
}
