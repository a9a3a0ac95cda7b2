//! `peak_ewma`: the better of a few distinct draws, by latency times queue.
//!
//! Source: the peak EWMA balancer of Twitter's Finagle and of linkerd. The cost of a
//! member is its latency, as a moving average that jumps to peaks and decays slowly,
//! times what the requests in flight there cost, with the one to come. Failures cost as if they
//! were very slow answers, never as the fast ones that they often are. Because the
//! average decays without samples, a member that was slow is tried again. A member
//! whose latency is not known yet counts as average among those compared with it.

use super::choose::{CHOICES, Candidates, Choices};
use super::kind::{Kind, Strategy};
use super::shares::{Ahead, Shares};
use crate::group::view::View;
use crate::terms::Form;
use crate::trace::{Short, Trace};

pub(super) const KIND: Kind = Kind {
    name: "peak_ewma",
    doc: "The member with the lowest latency times requests in flight, among a few distinct random members; failures count as very slow.",
    params: &[CHOICES],
    looks_at_loads: false,
    ..Kind::made_by(|values, members| {
        Box::new(PeakEwma {
            choices: Choices::new(values),
            shares: Shares::new(SPREAD, members),
        })
    })
};

/// The latency in seconds of members of which none is known yet. Any number will do: it
/// only weighs penalties against requests in flight.
const PRIOR: f32 = 0.05;

/// Costs that differ by about a tenth count as equal.
const SPREAD: f32 = 0.05;

#[derive(Debug)]
struct PeakEwma {
    choices: Choices,
    shares: Shares,
}

impl Strategy for PeakEwma {
    fn pick(&self, view: &View<'_>, rng: &mut fastrand::Rng, trace: &mut Trace) -> Option<usize> {
        let candidates = self.choices.candidates(view, rng, self.shares.urn());
        let in_flight = candidates.in_flight(view);
        let own = view.cost();
        let neutral = candidates.neutral_latency(view).unwrap_or(PRIOR);
        candidates.pick_lowest(
            view,
            rng,
            &self.shares,
            in_flight,
            |index, compares, price| {
                let latency = view.latency(index).unwrap_or(neutral);
                let penalty = view.penalty(index);
                let score = (latency + penalty) * (compares + own) * price;
                trace.note_candidate(index, Some(score.into()), move || {
                    format!(
                        "latency {:.1} ms{}, penalty {:.0} ms, {}, weight {}{}",
                        latency * 1e3,
                        if view.latency(index).is_none() {
                            " (assumed)"
                        } else {
                            ""
                        },
                        penalty * 1e3,
                        in_flight.in_words(index),
                        Short(view.member_weight(index)),
                        Ahead(price),
                    )
                });
                score
            },
        )
    }
    fn fill_costs(&self, view: &View<'_>, costs: &mut Vec<f32>) -> Form {
        let neutral = Candidates::All.neutral_latency(view).unwrap_or(PRIOR);
        costs.extend((0..view.len()).map(|index| {
            let latency = view.latency(index).unwrap_or(neutral);
            (latency + view.penalty(index)) / view.member_weight(index)
        }));
        Form::Score { growth: 1.0 }
    }
}
