//! `load_minimum`: minimum dispersion, which keeps the differences between loads small.
//!
//! Source: the `LoadMinimum` strategy of the OMG's `CosLoadBalancing` service, and the
//! minimum dispersion strategy of Othman, O'Ryan and Schmidt, "Strategies for CORBA
//! Middleware-Based Load Balancing" (IEEE Distributed Systems Online, 2001): new
//! requests go to the smallest effective load ([`crate::effective`]; ties within about
//! 5 % by chance), and the analyzer alerts locations far above it. Dampening keeps
//! loads from oscillating.

use super::by_load::LeastLoad;
use super::kind::{Kind, Param};
use super::shaping::{DAMPENING, PER_BALANCE_LOAD, TOLERANCE, shaping};
use crate::alert::Threshold;

/// Parameter: see its `doc`.
pub const CRITICAL_EXCESS: Param = Param {
    name: "critical_excess",
    doc: "A location gets a load alert when its effective load exceeds the smallest one by more than this share. Locations without load do not count as the smallest.",
    default: 0.4,
    max: 1e6,
    ..Param::NUMBER
};

pub(super) const KIND: Kind = Kind {
    name: "load_minimum",
    doc: "The member with the smallest effective reported load; locations far above it get a load alert.",
    params: &[CRITICAL_EXCESS, DAMPENING, TOLERANCE, PER_BALANCE_LOAD],
    ..Kind::made_by(|values, members| {
        let excess = values.get(CRITICAL_EXCESS.name) as f32;
        Box::new(LeastLoad {
            threshold: Some(Threshold::AboveMinimum(excess)),
            ..LeastLoad::new(0.025, shaping(values), members)
        })
    })
};
