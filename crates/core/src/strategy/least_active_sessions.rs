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
//! What is not reported is filled in: r is observed, h is 0, s is a setting. A member
//! without a reported rate has an unknown load. If none has one, requests in flight
//! decide, which by Little's law are the sessions in service that this process knows.

use super::best::Best;
use super::by_load::{self, Standing};
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

pub(super) const KIND: Kind = Kind {
    name: "least_active_sessions",
    doc: "The member with the smallest used share of its session capacity, calculated from reported rates and times.",
    params: &[SERVICE_TIME],
    ..Kind::made_by(|values, members| {
        Box::new(LeastActiveSessions {
            shares: Shares::new(0.0, members),
            service_time: values.get(SERVICE_TIME.name) as f32 / 1e3,
        })
    })
};

#[derive(Debug)]
struct LeastActiveSessions {
    shares: Shares,
    /// In seconds.
    service_time: f32,
}

/// The loads that it goes by.
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
    fn standing(&self, view: &View<'_>, queries: &Queries, index: usize) -> Standing {
        let location = view.location(index);
        let Some(rate) = location.last_report(&queries.rate) else {
            return Standing::Unknown;
        };
        let (rate_reported, rate) = (rate.value, rate.value + rate.added);
        let reported = |query| location.last_report(query).map(|report| report.value);
        let service = reported(&queries.service).unwrap_or(self.service_time);
        let response = reported(&queries.response)
            .or_else(|| view.latency(index))
            .unwrap_or(service);
        let think = reported(&queries.think).unwrap_or(0.0);
        // `service / capacity`: of a location that can serve several at once, NSmax is that
        // many times as large. By the utilisation law, u = lambda * s / capacity, so the
        // capacity need not be known where u is.
        let per_place = match reported(&queries.utilization) {
            Some(busy) if rate_reported > 0.0 && busy > 0.0 => service.min(busy / rate_reported),
            _ => service,
        };
        Standing::Known(rate * (response + think) * per_place)
    }
}

impl Strategy for LeastActiveSessions {
    fn pick(&self, view: &View<'_>, rng: &mut fastrand::Rng, trace: &mut Trace) -> Option<usize> {
        let query = |id| Query::new(id, view.query().horizon);
        let queries = Queries {
            rate: query(LoadId::REQUESTS_PER_SECOND),
            service: query(LoadId::SERVICE_TIME),
            response: query(LoadId::RESPONSE_TIME),
            think: query(LoadId::THINK_TIME),
            utilization: query(LoadId::UTILIZATION),
        };
        let (shares, query, empty) = (&self.shares, &queries.rate, Best::new(0.005));
        by_load::least(view, rng, trace, shares, query, empty, |index| {
            self.standing(view, &queries, index)
        })
    }
}
