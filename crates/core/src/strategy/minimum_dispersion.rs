//! `minimum_dispersion`: keeps the relative differences between loads small, and moves
//! what is bound until they are.
//!
//! Source: the minimum dispersion strategy of Othman, O'Ryan and Schmidt, "Strategies for
//! CORBA Middleware-Based Load Balancing" (IEEE Distributed Systems Online, 2001). New
//! clients go to the smallest effective load ([`crate::effective`]); the analyzer alerts
//! locations whose load is above the average. Where alerts are pulses what
//! one client brings is known, and counts from the moment of its binding.

use super::by_load::LeastLoad;
use super::kind::{Kind, Param};
use super::shaping::{DAMPENING, PER_BALANCE_LOAD, TOLERANCE, shaping};
use crate::alert::Threshold;

/// Parameter: see its `doc`.
pub const CRITICAL_EXCESS: Param = Param {
    name: "critical_excess",
    doc: "A location gets a load alert when its effective load exceeds the average by more than this share.",
    default: 0.05,
    max: 1e6,
    ..Param::NUMBER
};

/// The strategy.
pub const KIND: Kind = Kind {
    name: "minimum_dispersion",
    doc: "The member with the smallest effective reported load; locations above the average get a load alert until loads are even.",
    params: &[CRITICAL_EXCESS, DAMPENING, TOLERANCE, PER_BALANCE_LOAD],
    ..Kind::made_by(|values, members| {
        let excess = values.get(CRITICAL_EXCESS.name) as f32;
        Box::new(LeastLoad {
            counts_clients: true,
            threshold: Some(Threshold::AboveAverage(excess)),
            ..LeastLoad::new(0.005, shaping(values), members)
        })
    })
};
