//! `weighted_by_load`: round robin whose weights follow reported utilisation.
//!
//! Sources: the Robinhood load balancer of Dropbox (one controller per member whose set
//! point is the mean utilisation and whose output is a change of weight), and gRPC
//! proposal A58 (client-side weighted round robin: failures add to the utilisation, the
//! schedule is a stride). Each member has a factor on its weight. With each report of a
//! member below the mean it grows, above the mean it shrinks, so that utilisation, not
//! the number of requests, becomes equal, whatever the sizes of the members and
//! whoever else uses them. Because only weights move, a delayed report cannot herd.
//!
//! A member steps only when there is a new report of it; without one its factor stays
//! until the report is too old to count, and then is 1 again. Factors are kept in the
//! slots, where they survive changes of membership.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

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
            gain: values.get(GAIN.name) as f32,
            limit: values.get(LIMIT.name) as f32,
            failure_penalty: values.get(FAILURE_PENALTY.name) as f32,
            update_interval: Duration::from_millis(values.get(UPDATE_INTERVAL.name) as u64),
            updated: AtomicU64::new(0),
        })
    })
};

/// Distances from the mean below this share are noise.
const DEAD_BAND: f32 = 0.03;

#[derive(Debug)]
struct WeightedByLoad {
    stride: Stride,
    gain: f32,
    limit: f32,
    failure_penalty: f32,
    update_interval: Duration,
    /// When weights were adjusted last, in nanoseconds.
    updated: AtomicU64,
}

impl WeightedByLoad {
    /// Takes a step if it is time; one worker does, the others go on.
    #[inline]
    fn adjust(&self, view: &View<'_>) {
        let now = view.now().as_nanos();
        let updated = self.updated.load(Ordering::Relaxed);
        let interval = self.update_interval.as_nanos() as u64;
        if now.saturating_sub(updated) < interval || view.is_rehearsal() {
            return;
        }
        if self
            .updated
            .compare_exchange(updated, now, Ordering::Relaxed, Ordering::Relaxed)
            .is_ok()
        {
            self.step(view);
        }
    }

    fn step(&self, view: &View<'_>) {
        let known = || {
            view.eligible()
                .filter_map(|index| Some((index, self.load(view, index)?)))
        };
        let (mut load, mut factor, mut count) = (0.0, 0.0, 0.0);
        for (index, (value, _)) in known() {
            load += value;
            factor += view.slot(index).load_factor().value();
            count += 1.0;
        }
        if count < 2.0 || load <= 0.0 {
            return;
        }
        let (mean, mean_factor) = (load / count, factor / count);
        for (index, (value, at)) in known() {
            let held = view.slot(index).load_factor();
            if held.is_for(at) {
                continue;
            }
            let distance = ((mean - value) / mean).clamp(-1.0, 1.0);
            let distance = if distance.abs() < DEAD_BAND {
                0.0
            } else {
                distance
            };
            // Divided by the mean factor they cannot all drift in one direction.
            let next = held.value() / mean_factor * (1.0 + self.gain * distance);
            held.set(next.clamp(1.0 / self.limit, self.limit), at);
        }
    }

    /// Reported load with the penalty for failures, and which report it was.
    fn load(&self, view: &View<'_>, index: usize) -> Option<(f32, u32)> {
        let (value, at) = view.last_report(index)?;
        Some((value + self.failure_penalty * view.failure_share(index), at))
    }

    #[inline]
    fn factor(&self, view: &View<'_>, index: usize) -> f32 {
        if !view.settings().adaptive {
            return 1.0;
        }
        let factor = view.slot(index).load_factor();
        factor.fresh(&view.query().horizon).unwrap_or(1.0)
    }
}

impl Strategy for WeightedByLoad {
    fn pick(&self, view: &View<'_>, rng: &mut fastrand::Rng, trace: &mut Trace) -> Option<usize> {
        self.adjust(view);
        let weight = |index| view.weight(index) * self.factor(view, index);
        let index = self.stride.next(view, rng, weight)?;
        if trace.is_on() {
            for other in view.eligible() {
                let next = if other == index { "next in turn, " } else { "" };
                trace.candidate(other, None, || {
                    format!(
                        "{next}weight {} times {:.2} for its load{}",
                        Short(view.weight(other)),
                        self.factor(view, other),
                        match self.load(view, other) {
                            Some((load, _)) => format!(" of {load:.3}"),
                            None => ", which is unknown".into(),
                        }
                    )
                });
            }
        }
        Some(index)
    }
}
