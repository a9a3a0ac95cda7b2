//! `least_active_sessions`: the smallest share of the sessions that a member can carry.
//!
//! Source: policy LAS of Mohamed-Salem, Chen, Bochmann and Wong, "An Experimental
//! Prototype for Scalable Server Selection" (IPCCC 2003), section 4: the smallest
//! `NS / NSmax` with `NS = lambda * (r + h)` active sessions (Little's law) and
//! `NSmax = 1 / s`, for the arrival rate lambda (load `requests_per_second`), the mean
//! response time r (`response_time`), the clients' mean think time h (`think_time`) and
//! the mean service time s (`service_time`), all as reported.
//!
//! `NSmax` is that of a server that works on one request at a time. A location of c CPUs
//! carries c times as many: `NSmax = c / s`. What c is follows from its utilisation u, if it
//! reports that, because `u = lambda * s / c`.
//!
//! If u and s are reported, r is calculated: requests that arrive at random and are served one after the
//! other, or all at once, take `r = s + s / c * u / (1 - u)`, with u as it is with the clients bound
//! since the report. The reported r describes an interval that is over, and leaves the clients bound
//! since out; clients would all go to the location whose last backlog has just ended. With the
//! parameter `reported_response` r is as reported, for servers that wait for something that is in no
//! service time.
//!
//! Small differences are chance: with 250 requests in an interval u is off by 5 points, and
//! `u / (1 - u)` by a third at 85 %.
//!
//! h is the mean of all members, weighted by their rates: the time for which clients think does not
//! depend on the member, and the value of one member in one interval is mostly chance.
//!
//! `docs/design/least-active-sessions.md` has the other ways that were tried, with figures.
//!
//! Values that are not reported are filled in: r is observed, h is 0, s is a setting. A member
//! without a reported rate has an unknown load. If none has one, requests in flight
//! decide, which by Little's law are the sessions in service that this process knows.

use super::best::Best;
use super::by_load::{self, LoadKnowledge};
use super::kind::{Kind, Param, Strategy};
use super::shares::Shares;
use crate::group::view::View;
use crate::load::{LoadId, Query};
use crate::trace::Trace;

const SERVICE_TIME: Param = Param {
    name: "service_time",
    doc: "Mean service time of members that do not report theirs.",
    unit: "ms",
    default: 10.0,
    min: 0.001,
    max: 1e6,
    integer: false,
};

const REPORTED_RESPONSE: Param = Param {
    name: "reported_response",
    doc: "1 goes by the response time that members report even if their utilisation and service time are known, from which it is calculated otherwise.",
    unit: "",
    default: 0.0,
    min: 0.0,
    max: 1.0,
    integer: true,
};

/// Members that differ by less than this share count as equal.
const SPREAD: f32 = 0.1;

/// The highest utilisation that is calculated with: a queue that only grows has no mean.
const HIGHEST: f32 = 0.98;

pub(super) const KIND: Kind = Kind {
    name: "least_active_sessions",
    doc: "The member with the smallest used share of its session capacity, calculated from reported rates and times.",
    params: &[SERVICE_TIME, REPORTED_RESPONSE],
    ..Kind::made_by(|values, members| {
        Box::new(LeastActiveSessions {
            shares: Shares::new(0.0, members),
            service_time: values.get(SERVICE_TIME.name) as f32 / 1e3,
            is_reported: values.get(REPORTED_RESPONSE.name) > 0.0,
        })
    })
};

#[derive(Debug)]
struct LeastActiveSessions {
    shares: Shares,
    /// Service time in seconds.
    service_time: f32,
    /// True if the response time is always the reported one.
    is_reported: bool,
}

/// The loads that the strategy uses.
#[derive(Clone, Copy)]
struct Queries {
    rate: Query,
    service: Query,
    response: Query,
    think: Query,
    utilization: Query,
}

impl LeastActiveSessions {
    #[inline]
    fn standing(
        &self,
        view: &View<'_>,
        queries: &Queries,
        think: f32,
        index: usize,
    ) -> LoadKnowledge {
        let location = view.location(index);
        let Some(rate) = location.last_report(&queries.rate) else {
            return LoadKnowledge::Unknown;
        };
        let (rate_reported, rate) = (rate.value, rate.value + rate.added);
        let reported = |query| location.last_report(query).map(|report| report.value);
        let known_service = reported(&queries.service);
        let service = known_service.unwrap_or(self.service_time);
        let busy = reported(&queries.utilization).filter(|&busy| rate_reported > 0.0 && busy > 0.0);
        // `service / capacity`: of a location that can serve several at once, NSmax is that
        // many times as large. By the utilisation law, u = lambda * s / capacity, so the
        // capacity need not be known where u is.
        let per_place = busy.map_or(service, |busy| service.min(busy / rate_reported));
        let response = match busy {
            Some(busy) if known_service.is_some() && !self.is_reported => {
                let busy = (busy * rate / rate_reported).min(HIGHEST);
                service + per_place * busy / (1.0 - busy)
            }
            _ => reported(&queries.response)
                .or_else(|| view.latency(index))
                .unwrap_or(service),
        };
        LoadKnowledge::Known(rate * (response + think) * per_place)
    }
}

/// The mean think time of all clients, in seconds: each member's counts by its rate.
#[inline]
fn mean_think(view: &View<'_>, queries: &Queries) -> f32 {
    if !view.has_reports() {
        return 0.0;
    }
    let (mut sum, mut rates) = (0.0, 0.0);
    for index in view.eligible_indices() {
        let location = view.location(index);
        let reported = |query| location.last_report(query).map(|report| report.value);
        if let (Some(rate), Some(think)) = (reported(&queries.rate), reported(&queries.think)) {
            sum += rate * think;
            rates += rate;
        }
    }
    if rates > 0.0 { sum / rates } else { 0.0 }
}

impl Strategy for LeastActiveSessions {
    fn pick(&self, view: &View<'_>, rng: &mut fastrand::Rng, trace: &mut Trace) -> Option<usize> {
        let query = |id| Query::new(id, view.load_query().horizon);
        let queries = Queries {
            rate: query(LoadId::REQUESTS_PER_SECOND),
            service: query(LoadId::SERVICE_TIME),
            response: query(LoadId::RESPONSE_TIME),
            think: query(LoadId::THINK_TIME),
            utilization: query(LoadId::UTILIZATION),
        };
        let think = mean_think(view, &queries);
        let (shares, query, empty) = (&self.shares, &queries.rate, Best::new(SPREAD));
        by_load::pick_least(view, rng, trace, shares, query, empty, |view, index| {
            let rate = queries.rate.with_means_of(view.load_query());
            self.standing(view, &Queries { rate, ..queries }, think, index)
        })
    }
}
