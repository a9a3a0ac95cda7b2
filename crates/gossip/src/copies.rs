//! Copies of connections that the balancers' kernels forward (`evenkeel_wire::connection_copies`).
//!
//! Copies are not noted, and nobody confirms them: a balancer sends each connection again and again. They are only
//! carried here, for those who have the tables.

use std::net::SocketAddr;

/// Copies that others have sent.
#[derive(Debug, Default)]
pub(crate) struct Copies {
    pub(crate) received: Vec<(SocketAddr, Vec<u8>)>,
    /// Number of bodies for which there was no room.
    pub(crate) lost: u64,
}
