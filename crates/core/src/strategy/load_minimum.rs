//! `load_minimum`: minimum dispersion, which keeps the differences between loads small.
//!
//! Source: the `LoadMinimum` strategy of the OMG's `CosLoadBalancing` service, and the
//! minimum dispersion strategy of Othman, O'Ryan and Schmidt, "Strategies for CORBA
//! Middleware-Based Load Balancing" (IEEE Distributed Systems Online, 2001): new
//! requests go to the smallest effective load ([`crate::effective`]; ties within about
//! 5 % by chance), and the analyzer alerts locations far above it. Dampening keeps
//! loads from oscillating.

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
    doc: "A location gets a load alert when its effective load exceeds the smallest one by more than this share. Locations without load do not count as the smallest.",
    unit: "",
    default: 0.4,
    min: 0.0,
    max: 1e6,
    integer: false,
};

pub(super) const KIND: Kind = Kind {
    name: "load_minimum",
    doc: "The member with the smallest effective reported load; locations far above it get a load alert.",
    params: &[CRITICAL_EXCESS, DAMPENING, TOLERANCE, PER_BALANCE_LOAD],
    ..Kind::made_by(|values, members| {
        Box::new(LoadMinimum {
            shares: Shares::new(0.0, members),
            shaping: shaping(values),
            excess: values.get(CRITICAL_EXCESS.name) as f32,
        })
    })
};

#[derive(Debug)]
struct LoadMinimum {
    shares: Shares,
    shaping: Shaping,
    excess: f32,
}

impl Strategy for LoadMinimum {
    fn pick(&self, view: &View<'_>, rng: &mut fastrand::Rng, trace: &mut Trace) -> Option<usize> {
        let shaping = self.shaping.if_any();
        let (shares, query, empty) = (&self.shares, view.query(), Best::new(0.025));
        by_load::least(view, rng, trace, shares, query, empty, |index| {
            Standing::of(view.effective_load(index, shaping))
        })
    }

    fn alert_threshold(&self) -> Option<Threshold> {
        Some(Threshold::AboveMinimum(self.excess))
    }
}
