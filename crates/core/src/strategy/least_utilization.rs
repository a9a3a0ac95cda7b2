//! `least_utilization`: the member with the smallest reported utilisation.
//!
//! Source: policy LU of Mohamed-Salem, Chen, Bochmann and Wong, "An Experimental
//! Prototype for Scalable Server Selection" (IPCCC 2003), section 4. The utilisation is
//! the group's load id, with what our own requests have added since the report; members
//! that differ by about 1 % count as equal.

use super::best::Best;
use super::by_load::{self, LoadKnowledge};
use super::kind::{Kind, Strategy};
use super::shares::Shares;
use crate::group::view::View;
use crate::trace::Trace;

/// The strategy.
pub const KIND: Kind = Kind {
    name: "least_utilization",
    doc: "The member with the smallest reported utilisation; without reports, with the fewest requests in flight.",
    ..Kind::made_by(|_, members| {
        Box::new(LeastUtilization {
            shares: Shares::new(0.0, members),
        })
    })
};

#[derive(Debug)]
struct LeastUtilization {
    shares: Shares,
}

impl Strategy for LeastUtilization {
    fn pick(&self, view: &View<'_>, rng: &mut fastrand::Rng, trace: &mut Trace) -> Option<usize> {
        let (shares, query, empty) = (&self.shares, view.load_query(), Best::new(0.005));
        by_load::pick_least(view, rng, trace, shares, query, empty, |view, index| {
            LoadKnowledge::of_load(view.member_load(index))
        })
    }
}
