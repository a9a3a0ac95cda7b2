//! The load manager: configuration to groups, the control loop, and the snapshots
//! that the data plane works with.

pub mod config;
pub mod snapshot;
