//! `least_request`: the better of a few distinct draws, by requests in flight.
//!
//! Source: Mitzenmacher, "The Power of Two Choices in Randomized Load Balancing", 2001.
//! Two draws already keep the fullest member close to the average, and because each
//! decision looks at other members, many balancers do not all run to the same one.
//! Draws are by weight and without repetition. Groups of up to `scan_up_to` members are
//! compared as a whole: with few members two draws miss the idle one too often.

use super::choose::{CHOICES, Choices, SCAN_UP_TO};
use super::shares::{Ahead, Shares};
use super::{Kind, Strategy};
use crate::group::View;
use crate::trace::{Short, Trace};

pub(super) const KIND: Kind = Kind {
    name: "least_request",
    doc: "The one of a few distinct random members that has the fewest requests in flight per unit of weight.",
    params: &[CHOICES, SCAN_UP_TO],
    build: |values, members| {
        Box::new(LeastRequest {
            choices: Choices::new(values),
            shares: Shares::new(0.0, members),
        })
    },
};

#[derive(Debug)]
struct LeastRequest {
    choices: Choices,
    shares: Shares,
}

impl Strategy for LeastRequest {
    fn name(&self) -> &'static str {
        KIND.name
    }

    fn pick(&self, view: &View<'_>, rng: &mut fastrand::Rng, trace: &mut Trace) -> Option<usize> {
        let candidates = self.choices.candidates(view, rng, self.shares.urn());
        let in_flight = candidates.in_flight(view);
        candidates.lowest(
            view,
            rng,
            &self.shares,
            &in_flight,
            |index, compares, price| {
                let score = (compares + 1.0) * price;
                trace.candidate(index, Some(score.into()), || {
                    let (flying, weight) = (in_flight.at(index), Short(view.weight(index)));
                    format!("in flight {flying}, weight {weight}{}", Ahead(price))
                });
                score
            },
        )
    }
}
