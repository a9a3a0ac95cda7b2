//! `minimum_dispersion`: keeps the relative differences between loads small, and moves
//! what is bound until they are.
//!
//! Source: the minimum dispersion strategy of Othman, O'Ryan and Schmidt, "Strategies for
//! CORBA Middleware-Based Load Balancing" (IEEE Distributed Systems Online, 2001). New
//! clients go to the smallest effective load ([`crate::effective`]); the analyzer alerts
//! locations whose load is above the average. Where alerts are pulses what
//! one client brings is known, and counts from the moment of its binding.

use super::best::Best;
use super::by_load::{self, Standing};
use super::kind::{Kind, Param, Strategy};
use super::shaping::{DAMPENING, PER_BALANCE_LOAD, TOLERANCE, shaping};
use super::shares::Shares;
use crate::alert::Threshold;
use crate::effective::Shaping;
use crate::group::view::View;
use crate::trace::Trace;

/// Parameter: see its `doc`.
pub const CRITICAL_EXCESS: Param = Param {
    name: "critical_excess",
    doc: "A location gets a load alert when its effective load exceeds the average by more than this share.",
    unit: "",
    default: 0.05,
    min: 0.0,
    max: 1e6,
    integer: false,
};

/// The strategy.
pub const KIND: Kind = Kind {
    name: "minimum_dispersion",
    doc: "The member with the smallest effective reported load; locations above the average get a load alert until loads are even.",
    params: &[CRITICAL_EXCESS, DAMPENING, TOLERANCE, PER_BALANCE_LOAD],
    ..Kind::made_by(|values, members| {
        Box::new(MinimumDispersion {
            shares: Shares::new(0.0, members),
            shaping: shaping(values),
            excess: values.get(CRITICAL_EXCESS.name) as f32,
        })
    })
};

#[derive(Debug)]
struct MinimumDispersion {
    shares: Shares,
    shaping: Shaping,
    excess: f32,
}

impl Strategy for MinimumDispersion {
    fn pick(&self, view: &View<'_>, rng: &mut fastrand::Rng, trace: &mut Trace) -> Option<usize> {
        let mut shaping = self.shaping;
        if shaping.per_balance_load == 0.0 {
            shaping.per_balance_load = view.client_load();
        }
        let shaping = shaping.if_any();
        let (shares, query, empty) = (&self.shares, view.query(), Best::new(0.005));
        by_load::least(view, rng, trace, shares, query, empty, |index| {
            Standing::of(view.effective_load(index, shaping))
        })
    }

    fn alert_threshold(&self) -> Option<Threshold> {
        Some(Threshold::AboveAverage(self.excess))
    }
}
