//! `least_connection`: the member with the fewest requests in flight per unit of weight.
//!
//! Looks at all members; among equal ones chance decides, by weight. Where requests in
//! flight are reported for all of them (load `in_flight`), those of other balancers
//! count, too.

use super::choose::Candidates;
use super::shares::Shares;
use super::{Kind, Strategy};
use crate::group::View;
use crate::trace::Trace;

pub(super) const KIND: Kind = Kind {
    name: "least_connection",
    doc: "The member with the fewest requests or connections in flight per unit of weight.",
    params: &[],
    build: |_, members| {
        Box::new(LeastConnection {
            shares: Shares::new(0.0, members),
        })
    },
    ..Kind::USUAL
};

#[derive(Debug)]
struct LeastConnection {
    shares: Shares,
}

impl Strategy for LeastConnection {
    fn name(&self) -> &'static str {
        KIND.name
    }

    fn pick(&self, view: &View<'_>, rng: &mut fastrand::Rng, trace: &mut Trace) -> Option<usize> {
        Candidates::All.fewest_in_flight(view, rng, trace, &self.shares)
    }
}
