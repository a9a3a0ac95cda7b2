//! The centre of Evenkeel: it decides, and does no I/O.
//!
//! Locations, loads, groups, members, strategies and bindings are plain data and functions
//! here. Time and randomness come in as arguments, so the
//! proxy, and the virtual-time harness that tests the strategies, run the same code.

pub mod analyzer;
pub mod binding;
pub mod effective;
mod estimate;
pub mod forward;
pub mod group;
pub mod harness;
pub mod load;
pub mod member;
pub mod observe;
pub mod opinion;
pub mod pulse;
pub mod signal;
pub mod strategy;
pub mod time;
pub mod trace;
