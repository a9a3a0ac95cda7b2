//! The centre of Evenkeel: it decides, and does no I/O.
//!
//! Locations, loads, groups, members, strategies and bindings are plain data and functions
//! here. Time and randomness come in as arguments, so the proxy, and the simulation that tests the
//! strategies, run the same code.

#![forbid(unsafe_code)]

pub mod address;
pub mod alert;
pub mod binding;
pub(crate) mod caps;
pub mod cost;
pub mod effective;
pub mod ejection;
pub mod engine_counts;
pub mod engine_traffic;
pub mod engine_work;
pub mod engines;
mod estimate;
mod filter;
mod float;
pub mod group;
pub mod hash_terms;
mod histogram;
pub mod key;
pub mod latency;
pub mod learnt;
pub mod load;
pub mod member;
pub mod observe;
pub mod prompt_key;
mod reason;
mod regression;
pub mod relocation;
pub mod requests;
pub mod signal;
mod slot;
pub mod spares;
pub mod strategy;
pub mod tally;
pub mod terms;
#[cfg(test)]
mod testing;
pub mod time;
pub mod trace;
mod trials;
mod weight;
pub mod zone;
