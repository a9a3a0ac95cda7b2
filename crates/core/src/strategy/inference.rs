//! `inference`: the member at which a request to a language model delays everybody least.
//!
//! Costs and learning are those of the crate `evenkeel-inference` (`cost`, `group`). A request without a plan, which
//! nobody has read, goes to the member with the fewest requests in flight.

use evenkeel_inference::cost::{Candidate, ReportedLoad};

use super::kind::{Kind, RequestNeeds, Strategy};
use super::shares::Shares;
use crate::group::view::View;
use crate::trace::Trace;

pub(super) const KIND: Kind = Kind {
    name: "inference",
    doc: "The member at which the request delays all requests least, by what the member has read before, its queue in tokens and its learnt speeds. For engines that serve language models.",
    looks_at_loads: false,
    request_needs: RequestNeeds::Body,
    ..Kind::made_by(|_, members| {
        Box::new(Inference {
            shares: Shares::new(0.0, members),
        })
    })
};

#[derive(Debug)]
struct Inference {
    shares: Shares,
}

impl Strategy for Inference {
    fn pick(&self, view: &View<'_>, rng: &mut fastrand::Rng, trace: &mut Trace) -> Option<usize> {
        if let (Some(plan), Some(engines)) = (view.request().plan, view.engines()) {
            let candidates = view.eligible_indices().filter_map(|index| {
                Some(Candidate {
                    member: view.engine_number(index)?,
                    key: view.members()[index].id.0,
                    weight: view.member_weight(index),
                    extra_seconds: view.penalty(index),
                    load: ReportedLoad::default(),
                })
            });
            let index_of = |number| {
                let mut all = view.eligible_indices();
                all.find(|index| view.engine_number(*index) == Some(number))
            };
            let now = view.decision_time().as_nanos();
            let chosen = engines
                .group()
                .choose_member(plan, candidates, now, |candidate, cost| {
                    if trace.is_on()
                        && let Some(index) = index_of(candidate.member)
                    {
                        trace.note_candidate(index, Some(cost.total().into()), || cost.to_string());
                    }
                });
            if let Some(chosen) = chosen {
                return index_of(chosen.member);
            }
        }
        let index = self.shares.least_in_flight(view, rng, None)?;
        trace.note_candidate(index, None, || view.describe_work(index));
        Some(index)
    }
}
