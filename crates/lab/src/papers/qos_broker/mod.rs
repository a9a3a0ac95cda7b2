//! Mohamed-Salem, Chen, Bochmann and Wong, An Experimental Prototype for Scalable Server Selection (IPCCC 2003).

mod equal;
mod real;
mod sessions;
mod unequal;
mod world;

use crate::paper::Play;

/// Functions of the experiments; texts and claims are in `papers/qos-broker.toml`.
pub(super) const PLAYS: &[Play] = &[
    unequal::EXPERIMENT,
    equal::EXPERIMENT,
    sessions::ADDRESSES,
    sessions::CAUSES,
];
