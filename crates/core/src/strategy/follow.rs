//! Weights that follow reported loads until these are equal everywhere.
//!
//! Source: the Robinhood load balancer of Dropbox (one controller per member whose set
//! point is the mean utilisation and whose output is a change of weight). Each member has a factor
//! on its weight. With each report of a member below the mean it grows, above the mean it shrinks, so
//! that utilisation, not the number of requests, becomes equal, whatever the sizes of the members and
//! whoever else uses them. Because only weights move, a delayed report cannot herd.
//!
//! A member steps only when there is a new report of it; without one its factor stays
//! until the report is too old to count, and then is 1 again. Factors are kept in the
//! slots, where they survive changes of membership.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::group::view::View;

/// Parameters of weights that follow loads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Gains {
    /// Share of a member's relative distance from the mean load by which its weight changes.
    pub(super) gain: f32,
    /// Most by which a weight is raised or lowered.
    pub(super) limit: f32,
    /// Load that failures add, times the share of requests that failed.
    pub(super) failure_penalty: f32,
    /// Time between two steps.
    pub(super) update_interval: Duration,
}

/// Distances from the mean below this share are noise.
const DEAD_BAND: f32 = 0.03;

/// The controller of one group.
#[derive(Debug)]
pub(crate) struct Follow {
    gains: Gains,
    /// Time of the last adjustment of the weights, in nanoseconds.
    updated: AtomicU64,
}

impl Follow {
    pub(super) fn new(gains: Gains) -> Self {
        Follow {
            gains,
            updated: AtomicU64::new(0),
        }
    }

    /// Takes a step if it is time; one worker does, the others go on.
    #[inline]
    pub(super) fn adjust(&self, view: &View<'_>) {
        let now = view.decision_time().as_nanos();
        let updated = self.updated.load(Ordering::Relaxed);
        let interval = self.gains.update_interval.as_nanos() as u64;
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
        let Gains { gain, limit, .. } = self.gains;
        let known = || {
            view.eligible_indices()
                .filter_map(|index| Some((index, self.penalised_load(view, index)?)))
        };
        let (mut load, mut factor, mut count) = (0.0, 0.0, 0.0);
        for (index, (value, _)) in known() {
            load += value;
            factor += view.slot(index).load_factor().last_factor();
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
            let next = held.last_factor() / mean_factor * (1.0 + gain * distance);
            held.set(next.clamp(1.0 / limit, limit), at);
        }
    }

    /// Reported load with the penalty for failures, and which report it was.
    pub(super) fn penalised_load(&self, view: &View<'_>, index: usize) -> Option<(f32, u32)> {
        let (value, at) = view.last_report(index)?;
        let penalty = self.gains.failure_penalty * view.failure_share(index);
        Some((value + penalty, at))
    }

    /// Factor of the weight of the member at `index` by loads.
    #[inline]
    pub(super) fn weight_factor(&self, view: &View<'_>, index: usize) -> f32 {
        if !view.settings().adaptive {
            return 1.0;
        }
        let factor = view.slot(index).load_factor();
        factor
            .fresh_factor(&view.load_query().horizon)
            .unwrap_or(1.0)
    }

    /// Multiplies `weights`, one for each member, by these factors, after the step that is due.
    pub(crate) fn apply_factors(&self, view: &View<'_>, weights: &mut [f32]) {
        self.adjust(view);
        for (index, weight) in weights.iter_mut().enumerate() {
            *weight *= self.weight_factor(view, index);
        }
    }
}
