//! `weighted_by_load`: round robin whose weights [follow](super::follow) reported utilisation.
//!
//! Sources: the Robinhood load balancer of Dropbox, and gRPC proposal A58 (client-side weighted round
//! robin: failures add to the utilisation, the schedule is a stride).

use std::time::Duration;

use super::follow::{Follow, Gains};
use super::kind::{Kind, Param, Strategy};
use super::stride::Stride;
use crate::group::view::View;
use crate::trace::{Short, Trace};

const GAIN: Param = Param {
    name: "gain",
    doc: "Share of a member's relative distance from the mean load by which its weight changes with each report.",
    default: 0.3,
    min: 0.01,
    max: 1.0,
    ..Param::NUMBER
};

const LIMIT: Param = Param {
    name: "limit",
    doc: "Maximum factor by which a weight is raised or lowered.",
    default: 10.0,
    min: 1.0,
    max: 1000.0,
    ..Param::NUMBER
};

const FAILURE_PENALTY: Param = Param {
    name: "failure_penalty",
    doc: "Load that failures add: this value times the share of failed requests. With 1, a member whose requests all fail counts as fully loaded.",
    unit: "load",
    default: 1.0,
    ..Param::NUMBER
};

const UPDATE_INTERVAL: Param = Param {
    name: "update_interval",
    doc: "How often weights are adjusted.",
    unit: "ms",
    default: 1000.0,
    min: 10.0,
    max: 600_000.0,
    integer: true,
};

pub(super) const KIND: Kind = Kind {
    name: "weighted_by_load",
    doc: "Members take turns; their weights follow the reported load until it is equal everywhere.",
    params: &[GAIN, LIMIT, FAILURE_PENALTY, UPDATE_INTERVAL],
    ..Kind::made_by(|values, members| {
        Box::new(WeightedByLoad {
            stride: Stride::new(members.len()),
            follow: follow(|param| values.get(param.name)),
        })
    })
};

/// A controller with these parameters.
fn follow(value: impl Fn(&Param) -> f64) -> Follow {
    Follow::new(Gains {
        gain: value(&GAIN) as f32,
        limit: value(&LIMIT) as f32,
        failure_penalty: value(&FAILURE_PENALTY) as f32,
        update_interval: Duration::from_millis(value(&UPDATE_INTERVAL) as u64),
    })
}

impl Default for Follow {
    /// Parameters that `weighted_by_load` has if nothing is set.
    fn default() -> Self {
        follow(|param| param.default)
    }
}

#[derive(Debug)]
struct WeightedByLoad {
    stride: Stride,
    follow: Follow,
}

impl Strategy for WeightedByLoad {
    fn pick(&self, view: &View<'_>, rng: &mut fastrand::Rng, trace: &mut Trace) -> Option<usize> {
        self.follow.adjust(view);
        let weight = |index| view.member_weight(index) * self.follow.weight_factor(view, index);
        let index = self.stride.next(view, rng, weight)?;
        if trace.is_on() {
            for other in view.eligible_indices() {
                let next = if other == index { "next in turn, " } else { "" };
                trace.note_candidate(other, None, || {
                    format!(
                        "{next}weight {} times {:.2} for its load{}",
                        Short(view.member_weight(other)),
                        self.follow.weight_factor(view, other),
                        match self.follow.penalised_load(view, other) {
                            Some((load, _)) => format!(" of {load:.3}"),
                            None => ", which is unknown".into(),
                        }
                    )
                });
            }
        }
        Some(index)
    }

    fn weigh(&self, view: &View<'_>, weights: &mut [f32]) -> bool {
        self.follow.apply_factors(view, weights);
        true
    }
}
