//! `client_weighted_round_robin`: round robin by how many requests a member serves for the
//! load that it has.
//!
//! Source: gRPC proposal A58 (`weighted_round_robin`), which Envoy has as
//! `client_side_weighted_round_robin`:
//!
//! ```text
//! weight = rps / (utilization + errors per second / rps * error_utilization_penalty)
//! ```
//!
//! of what a member reports: requests and errors per second (`rps_fractional` and `eps` of ORCA), and
//! the utilisation that its application reports or, where there is none, the load that the group
//! goes by, which is that of the CPU. A member twice as fast has half the utilisation for the same
//! requests, and so twice the weight: after two or three reports each has what is equal work for it.
//!
//! A weight is used when reports have come for the blackout period, as the first ones of a member that
//! has just begun say little, and until the last one is too old. A member without one has the mean
//! weight of the others; with fewer than two weights all take turns alike. Weights are capped at 10
//! times their mean, and are at least a hundredth of it, as in gRPC's scheduler: so nobody starves.
//!
//! Weights from the configuration, and what slow start makes of them, are multiplied with them, which
//! A58 does not have.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use super::kind::{Kind, Param, Strategy};
use super::stride::Stride;
use crate::group::view::View;
use crate::load::{LoadId, Query};
use crate::member::Reason;
use crate::time::Horizon;
use crate::trace::{Short, Trace};

const BLACKOUT_PERIOD: Param = Param {
    name: "blackout_period",
    doc: "For how long a member must have reported before its weight is used: until then it has the mean of the others. This holds again after its reports were too old, and after it was down.",
    unit: "ms",
    default: 10_000.0,
    max: 600_000.0,
    integer: true,
    ..Param::NUMBER
};

const WEIGHT_EXPIRATION_PERIOD: Param = Param {
    name: "weight_expiration_period",
    doc: "A weight is used for so long after the last report. It is what `load_max_age` is for other strategies.",
    unit: "ms",
    default: 180_000.0,
    min: 1000.0,
    max: 3_600_000.0,
    integer: true,
};

const WEIGHT_UPDATE_PERIOD: Param = Param {
    name: "weight_update_period",
    doc: "How often weights are calculated.",
    unit: "ms",
    default: 1000.0,
    min: 100.0,
    max: 600_000.0,
    integer: true,
};

const ERROR_UTILIZATION_PENALTY: Param = Param {
    name: "error_utilization_penalty",
    doc: "Utilisation that errors add: this value times the share of requests that the member reports as failed.",
    default: 1.0,
    max: 1e6,
    ..Param::NUMBER
};

pub(super) const KIND: Kind = Kind {
    name: "client_weighted_round_robin",
    doc: "Members take turns, in proportion to the requests per second that they report, divided by the utilisation that these cause.",
    params: &[
        BLACKOUT_PERIOD,
        WEIGHT_EXPIRATION_PERIOD,
        WEIGHT_UPDATE_PERIOD,
        ERROR_UTILIZATION_PENALTY,
    ],
    ..Kind::made_by(|values, members| {
        let millis = |param: Param| Duration::from_millis(values.get(param.name) as u64);
        Box::new(ClientWeighted {
            stride: Stride::new(members.len()),
            blackout: millis(BLACKOUT_PERIOD),
            expiration: millis(WEIGHT_EXPIRATION_PERIOD),
            update: millis(WEIGHT_UPDATE_PERIOD),
            penalty: values.get(ERROR_UTILIZATION_PENALTY.name),
            updated: AtomicU64::new(0),
            factors: members.iter().map(|_| AtomicU32::new(EVEN)).collect(),
        })
    })
};

/// A factor of 1 (f32 bits).
const EVEN: u32 = 1f32.to_bits();

/// Bounds of a weight, as multiples of the mean.
const LOWEST: f64 = 0.01;
const HIGHEST: f64 = 10.0;

#[derive(Debug)]
struct ClientWeighted {
    stride: Stride,
    blackout: Duration,
    expiration: Duration,
    update: Duration,
    penalty: f64,
    /// Time of the last calculation of the weights, in nanoseconds.
    updated: AtomicU64,
    /// Factors of the configured weights (f32 bits): the weight divided by the mean. Weights are kept in the slots, so
    /// that they survive changes of membership.
    factors: Box<[AtomicU32]>,
}

/// Figures that a member reports, and their time.
#[derive(Clone, Copy, Debug)]
struct Figures {
    rate: f64,
    errors: f64,
    utilization: f64,
    at: u32,
}

impl Figures {
    fn weight(&self, penalty: f64) -> f32 {
        let share = self.errors / self.rate;
        let weight = self.rate / (self.utilization + share * penalty);
        // Both are above 0, but the weight may be too small or large for the type.
        (weight as f32).clamp(f32::MIN_POSITIVE, f32::MAX)
    }
}

impl ClientWeighted {
    /// Calculates weights if it is time; one worker does, the others go on.
    #[inline]
    fn adjust(&self, view: &View<'_>) {
        let now = view.decision_time().as_nanos();
        let updated = self.updated.load(Ordering::Relaxed);
        let period = self.update.as_nanos() as u64;
        if (updated != 0 && now.saturating_sub(updated) < period) || view.is_rehearsal() {
            return;
        }
        if self
            .updated
            .compare_exchange(updated, now.max(1), Ordering::Relaxed, Ordering::Relaxed)
            .is_ok()
        {
            self.step(view);
        }
    }

    #[cold]
    fn step(&self, view: &View<'_>) {
        let now = view.decision_time();
        let (mut sum, mut count) = (0.0, 0.0);
        for index in 0..view.len() {
            let slot = view.slot(index);
            let kept = slot.reported_weight();
            let is_away = slot.has_reason(Reason::Down) || slot.has_reason(Reason::Dead);
            if is_away || kept.reported_for(now, &self.horizon(view)).is_none() {
                kept.begin_again();
            }
            if let Some(figures) = self.figures(view, index).filter(|_| !is_away) {
                kept.take_weight(figures.weight(self.penalty), figures.at, now);
            }
            if let Some(weight) = self.weight(view, index)
                && view.is_eligible_unless_full(index)
            {
                sum += weight;
                count += 1.0;
            }
        }
        let mean = sum / count;
        let mut highest = 0.0f32;
        for (index, factor) in self.factors.iter().enumerate() {
            let weight = self.weight(view, index).filter(|_| count >= 2.0);
            let value = weight.map_or(1.0, |weight| (weight / mean).clamp(LOWEST, HIGHEST)) as f32;
            factor.store(value.to_bits(), Ordering::Relaxed);
            if view.is_eligible(index) {
                highest = highest.max(view.member_weight(index) * value);
            }
        }
        self.stride.set_highest(highest);
    }

    fn horizon(&self, view: &View<'_>) -> Horizon {
        Horizon::new(view.decision_time(), self.expiration)
    }

    /// The weight of the member at `index`, if it may be used.
    fn weight(&self, view: &View<'_>, index: usize) -> Option<f64> {
        let kept = view.slot(index).reported_weight();
        let reported_for = kept.reported_for(view.decision_time(), &self.horizon(view))?;
        (reported_for >= self.blackout).then(|| kept.value().into())
    }

    /// Figures that the member at `index` reports, if a weight can be calculated from them.
    fn figures(&self, view: &View<'_>, index: usize) -> Option<Figures> {
        let horizon = self.horizon(view);
        let report = |id| {
            let report = view.location(index).last_report(&Query::new(id, horizon))?;
            (report.value > 0.0).then_some(report)
        };
        let rate = report(LoadId::REQUESTS_PER_SECOND)?;
        let utilization =
            report(LoadId::UTILIZATION).or_else(|| report(view.settings().load_id))?;
        // Reports leave out what is 0: an older number of errors is not that of these requests.
        let errors = report(LoadId::ERRORS_PER_SECOND).filter(|errors| {
            let later = horizon
                .millis_since(errors.at)
                .saturating_sub(horizon.millis_since(rate.at));
            u128::from(later) <= self.update.as_millis()
        });
        Some(Figures {
            rate: rate.value.into(),
            errors: errors.map_or(0.0, |errors| errors.value.into()),
            utilization: utilization.value.into(),
            at: rate.at,
        })
    }

    #[inline]
    fn factor(&self, view: &View<'_>, index: usize) -> f32 {
        match self.factors.get(index) {
            Some(factor) if view.settings().adaptive => {
                f32::from_bits(factor.load(Ordering::Relaxed))
            }
            _ => 1.0,
        }
    }

    #[cold]
    fn explain(&self, view: &View<'_>, trace: &mut Trace, chosen: usize) {
        for index in view.eligible_indices() {
            let next = if index == chosen {
                "next in turn, "
            } else {
                ""
            };
            trace.note_candidate(index, None, || {
                let (weight, factor) = (Short(view.member_weight(index)), self.factor(view, index));
                let kept = view.slot(index).reported_weight();
                let reported_for = kept.reported_for(view.decision_time(), &self.horizon(view));
                let why = match (reported_for, self.figures(view, index)) {
                    (Some(time), Some(of)) => {
                        let Figures { rate, errors, .. } = of;
                        let young = match time < self.blackout {
                            true => format!(", which has been reported for {} s", time.as_secs()),
                            false => String::new(),
                        };
                        format!(
                            "{rate:.1} requests and {errors:.1} errors per second at a load of {:.3}{young}",
                            of.utilization
                        )
                    }
                    _ => "requests per second or utilisation not known".into(),
                };
                format!("{next}weight {weight} times {factor:.2}: {why}")
            });
        }
    }
}

impl Strategy for ClientWeighted {
    fn pick(&self, view: &View<'_>, rng: &mut fastrand::Rng, trace: &mut Trace) -> Option<usize> {
        self.adjust(view);
        let weight = |index| view.member_weight(index) * self.factor(view, index);
        let index = self.stride.next(view, rng, weight)?;
        if trace.is_on() {
            self.explain(view, trace, index);
        }
        Some(index)
    }

    fn weigh(&self, view: &View<'_>, weights: &mut [f32]) -> bool {
        self.adjust(view);
        for (index, weight) in weights.iter_mut().enumerate() {
            *weight *= self.factor(view, index);
        }
        true
    }
}
