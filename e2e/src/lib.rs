//! Whole-system tests: the real binary with scripted clients and members around it.
//!
//! Everything is on loopback. The balancer listens on port 0 and says on standard output
//! where that is, so no port is ever chosen here. What must happen is awaited by reading
//! from a socket; the only clock is a limit that nothing but a hang can meet.

#![allow(clippy::unwrap_used, clippy::expect_used)] // A test helper fails by panicking.

pub mod balancer;
pub mod member;
pub mod wire;

use std::time::Duration;

/// What only a hang takes.
pub const HANG: Duration = Duration::from_secs(60);
