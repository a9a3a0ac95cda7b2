//! `least_connection`: the member with the fewest requests in flight per unit of weight.
//!
//! Looks at all members; among equal ones chance decides, by weight. Where requests in
//! flight are reported for all of them (load `in_flight`), those of other balancers
//! count, too.

use super::choose::Candidates;
use super::kind::{Kind, Strategy};
use super::shares::Shares;
use crate::group::view::View;
use crate::terms::Form;
use crate::trace::Trace;

pub(super) const KIND: Kind = Kind {
    name: "least_connection",
    doc: "The member with the fewest requests or connections in flight per unit of weight.",
    ..Kind::made_by(|_, members| {
        Box::new(LeastConnection {
            shares: Shares::new(0.0, members),
        })
    })
};

#[derive(Debug)]
struct LeastConnection {
    shares: Shares,
}

impl Strategy for LeastConnection {
    fn pick(&self, view: &View<'_>, rng: &mut fastrand::Rng, trace: &mut Trace) -> Option<usize> {
        Candidates::All.fewest_in_flight(view, rng, trace, &self.shares)
    }

    fn fill_costs(&self, view: &View<'_>, costs: &mut Vec<f32>) -> Form {
        costs.extend((0..view.len()).map(|index| 1.0 / view.member_weight(index)));
        Form::Score { growth: 1.0 }
    }
}
