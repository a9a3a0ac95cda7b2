//! The parameters that strategies share which pick by effective load.

use super::kind::{Param, Values};
use crate::effective::Shaping;

/// Parameter of strategies that pick by effective load.
pub const DAMPENING: Param = Param {
    name: "dampening",
    doc: "Share of the previous effective load in the next one: a higher value reacts more slowly to changes.",
    max: 0.99,
    ..Param::NUMBER
};

/// Parameter of strategies that pick by effective load.
pub const TOLERANCE: Param = Param {
    name: "tolerance",
    doc: "Divisor of the load, before any comparison.",
    default: 1.0,
    min: 1.0,
    max: 1e6,
    ..Param::NUMBER
};

/// Parameter of strategies that pick by effective load.
pub const PER_BALANCE_LOAD: Param = Param {
    name: "per_balance_load",
    doc: "Load that a newly bound client adds to a member until the next report; 0 estimates it from the last interval.",
    unit: "load",
    ..Param::NUMBER
};

/// The shaping that a strategy's parameters ask for. A strategy that has no such
/// parameters takes loads as they are reported.
pub fn shaping(values: &Values) -> Shaping {
    let get = |param: &Param| values.try_get(param.name).unwrap_or(param.default) as f32;
    Shaping {
        dampening: get(&DAMPENING),
        tolerance: get(&TOLERANCE),
        per_balance_load: get(&PER_BALANCE_LOAD),
    }
}
