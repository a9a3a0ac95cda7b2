//! Decisions of the strategy `inference`, which balances engines that serve language models.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

pub mod chain;
pub mod cost;
pub mod group;
pub mod index;
pub mod memory;
pub mod queue;
mod regression;
pub mod scanner;
pub mod speed;
pub mod tokens;
pub mod usage;

/// Version of the hashes and of the meaning of all that is learnt. A new process takes over what the old one has learnt if
/// both have the same version.
pub const VERSION: u32 = 1;
