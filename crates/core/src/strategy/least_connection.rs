//! `least_connection`: the member with the fewest requests in flight per unit of weight.
//!
//! Looks at all members; among equal ones chance decides, by weight. Where requests in
//! flight are reported for all of them (load `in_flight`), those of other balancers
//! count, too.

use super::choose::Candidates;
use super::{Kind, Strategy};
use crate::group::View;
use crate::trace::{Short, Trace};

pub(super) const KIND: Kind = Kind {
    name: "least_connection",
    doc: "The member with the fewest requests or connections in flight per unit of weight.",
    params: &[],
    build: |_, _| Box::new(LeastConnection),
};

#[derive(Debug)]
struct LeastConnection;

impl Strategy for LeastConnection {
    fn name(&self) -> &'static str {
        KIND.name
    }

    fn pick(&self, view: &View<'_>, rng: &mut fastrand::Rng, trace: &mut Trace) -> Option<usize> {
        let candidates = Candidates::All;
        let in_flight = candidates.in_flight(view);
        candidates.lowest(view, rng, |index| {
            let score = in_flight.per_weight(index);
            trace.candidate(index, Some(score.into()), || {
                let (flying, weight) = (in_flight.at(index), Short(view.weight(index)));
                format!("in flight {flying}, weight {weight}")
            });
            score
        })
    }
}
