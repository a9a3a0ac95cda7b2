//! `least_utilization`: the member with the smallest reported utilisation.
//!
//! Source: policy LU of Mohamed-Salem, Chen, Bochmann and Wong, "An Experimental
//! Prototype for Scalable Server Selection" (IPCCC 2003), section 4. The utilisation is
//! the group's load id, with what our own requests have added since the report; members
//! that differ by about 1 % count as equal.

use super::by_load::{self, Standing};
use super::choose::Best;
use super::shares::Shares;
use super::{Kind, Strategy};
use crate::group::View;
use crate::trace::Trace;

pub(super) const KIND: Kind = Kind {
    name: "least_utilization",
    doc: "The member with the smallest reported utilisation; without reports, with the fewest requests in flight.",
    params: &[],
    build: |_, members| {
        Box::new(LeastUtilization {
            shares: Shares::new(0.0, members),
        })
    },
    ..Kind::USUAL
};

#[derive(Debug)]
struct LeastUtilization {
    shares: Shares,
}

impl Strategy for LeastUtilization {
    fn name(&self) -> &'static str {
        KIND.name
    }

    fn pick(&self, view: &View<'_>, rng: &mut fastrand::Rng, trace: &mut Trace) -> Option<usize> {
        let (shares, query, empty) = (&self.shares, view.query(), Best::new(0.005));
        by_load::least(view, rng, trace, shares, query, empty, |index| {
            Standing::of(view.load(index))
        })
    }
}
