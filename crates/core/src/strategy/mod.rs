//! Strategies: who gets the next request.
//!
//! A strategy is one file here and one line in [`REGISTRY`]. It is then in the
//! configuration, the admin API and the simulation.

mod adaptive;
mod best;
mod by_load;
mod choose;
mod client_weighted_round_robin;
pub(crate) mod follow;
pub(crate) mod hash;
mod inference;
mod k_least_loaded;
pub mod kind;
mod least_active_sessions;
mod least_connection;
pub mod least_loaded;
mod least_request;
pub mod least_utilization;
pub mod load_average;
pub mod load_minimum;
pub mod minimum_dispersion;
mod peak_ewma;
mod prequal;
mod random;
pub mod round_robin;
pub mod shaping;
mod shares;
mod stride;
mod urn;
mod weighted_by_load;

pub use self::kind::{Kind, Param, ParamError, RequestNeeds, Strategy, Values};

/// All strategies, the default first.
pub static REGISTRY: &[Kind] = &[
    adaptive::KIND,
    least_request::KIND,
    round_robin::KIND,
    random::KIND,
    least_connection::KIND,
    hash::SOURCE_IP_HASH,
    hash::HASH,
    peak_ewma::KIND,
    prequal::KIND,
    least_loaded::KIND,
    load_minimum::KIND,
    load_average::KIND,
    minimum_dispersion::KIND,
    least_active_sessions::KIND,
    least_utilization::KIND,
    k_least_loaded::KIND,
    weighted_by_load::KIND,
    client_weighted_round_robin::KIND,
    inference::KIND,
];

/// The strategy called `name`.
pub fn find(name: &str) -> Option<&'static Kind> {
    REGISTRY.iter().find(|kind| kind.name == name)
}

/// The strategy used when none is named and clients are not bound.
pub fn default_kind() -> &'static Kind {
    &REGISTRY[0]
}
