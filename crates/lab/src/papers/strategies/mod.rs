//! Othman, O'Ryan and Schmidt, Strategies for CORBA Middleware-Based Load Balancing (IEEE Distributed Systems Online 2(3), 2001).

mod on_demand;
mod overhead;
mod per_session;
mod rates;
#[cfg(test)]
mod tests;

use crate::paper::Play;

/// Functions of the experiments; texts and claims are in `papers/strategies.toml`.
pub(super) const PLAYS: &[Play] = &[
    overhead::OVERHEAD,
    per_session::PER_SESSION,
    on_demand::ON_DEMAND,
];
