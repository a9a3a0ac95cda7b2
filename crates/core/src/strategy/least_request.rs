//! `least_request`: the better of a few distinct draws, by requests in flight.
//!
//! Source: Mitzenmacher, "The Power of Two Choices in Randomized Load Balancing", 2001.
//! Two draws already keep the fullest member close to the average, and because each
//! decision looks at other members, many balancers do not all run to the same one.
//! Draws are by weight and without repetition. Groups of up to `scan_up_to` members are
//! compared as a whole: with few members two draws miss the idle one too often.

use super::choose::{CHOICES, Choices, SCAN_UP_TO};
use super::kind::{Kind, Strategy};
use super::shares::Shares;
use crate::group::view::View;
use crate::terms::Form;
use crate::trace::Trace;

pub(super) const KIND: Kind = Kind {
    name: "least_request",
    doc: "The member with the fewest requests in flight per unit of weight, among a few distinct random members.",
    params: &[CHOICES, SCAN_UP_TO],
    ..Kind::made_by(|values, members| {
        Box::new(LeastRequest {
            choices: Choices::new(values),
            shares: Shares::new(0.0, members),
        })
    })
};

#[derive(Debug)]
struct LeastRequest {
    choices: Choices,
    shares: Shares,
}

impl Strategy for LeastRequest {
    fn pick(&self, view: &View<'_>, rng: &mut fastrand::Rng, trace: &mut Trace) -> Option<usize> {
        let candidates = self.choices.candidates(view, rng, self.shares.urn());
        candidates.fewest_in_flight(view, rng, trace, &self.shares)
    }

    fn fill_costs(&self, view: &View<'_>, costs: &mut Vec<f32>) -> Form {
        costs.extend((0..view.len()).map(|index| 1.0 / view.member_weight(index)));
        Form::Score { growth: 1.0 }
    }
}
