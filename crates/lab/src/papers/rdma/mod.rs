//! Vaidyanathan, Jin, Narravula and Panda, Accurate Load Monitoring for Cluster-based Web Data-Centers over RDMA-enabled Networks (Ohio State University, OSU-CISRC-7/05-TR49, 2005).

mod accuracy;
mod balance;
mod machines;
mod order;
mod real;
mod world;

use crate::paper::Play;

/// Functions of the experiments; texts and claims are in `papers/rdma.toml`.
pub(super) const PLAYS: &[Play] = &[
    accuracy::EXPERIMENT,
    balance::ZIPF,
    balance::LOADED,
    order::EXPERIMENT,
    machines::EXPERIMENT,
    balance::SHARED,
    balance::VARIANCE,
    balance::INTERVAL_OF_POLLING,
];
