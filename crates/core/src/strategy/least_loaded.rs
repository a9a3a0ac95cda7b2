//! `least_loaded`: the smallest effective load below the reject threshold.
//!
//! Source: the `LeastLoaded` strategy of the OMG's `CosLoadBalancing` service as
//! described by Balasubramanian, Schmidt, Dowdy and Othman, "Evaluating the Performance
//! of Middleware Load Balancing Strategies" (EDOC 2004). Effective loads:
//! [`crate::effective`]; near ties (about 1 %) are decided by chance. A member at or
//! above the reject threshold is picked only if all are: turning a request away helps
//! only while somebody else can take it. A member that never reported is picked only
//! if none has. What happens above the critical threshold is the analyzer's business.

use super::by_load::LeastLoad;
use super::kind::{Kind, Param, ParamError, Values};
use super::shaping::{DAMPENING, PER_BALANCE_LOAD, TOLERANCE, shaping};
use crate::alert::Threshold;

/// Parameter: see its `doc`.
pub const REJECT_THRESHOLD: Param = Param {
    name: "reject_threshold",
    doc: "Effective load at which a member gets no new requests while others are below; 0 is off.",
    unit: "load",
    ..Param::NUMBER
};

/// Parameter: see its `doc`.
pub const CRITICAL_THRESHOLD: Param = Param {
    name: "critical_threshold",
    doc: "Effective load above which the location gets a load alert and sheds its clients; 0 is off. Must be above reject_threshold.",
    unit: "load",
    ..Param::NUMBER
};

/// Checks that the critical threshold is above the reject threshold, if both are on.
fn check(values: &Values) -> Result<(), ParamError> {
    let get = |param: &Param| values.get(param.name);
    let (reject, critical) = (get(&REJECT_THRESHOLD), get(&CRITICAL_THRESHOLD));
    if critical > 0.0 && critical <= reject {
        return Err(ParamError::Thresholds { critical, reject });
    }
    Ok(())
}

pub(super) const KIND: Kind = Kind {
    name: "least_loaded",
    doc: "The member with the smallest effective reported load below the reject threshold.",
    params: &[
        REJECT_THRESHOLD,
        CRITICAL_THRESHOLD,
        DAMPENING,
        TOLERANCE,
        PER_BALANCE_LOAD,
    ],
    check,
    ..Kind::made_by(|values, members| {
        let threshold = |param: &Param| Some(values.get(param.name) as f32).filter(|&t| t > 0.0);
        Box::new(LeastLoad {
            reject: threshold(&REJECT_THRESHOLD).unwrap_or(f32::INFINITY),
            threshold: threshold(&CRITICAL_THRESHOLD).map(Threshold::Critical),
            ..LeastLoad::new(0.005, shaping(values), members)
        })
    })
};
