//! A balancer among others: the socket of the gossip protocol, its section of the configuration, its
//! status, and what load alerts and ejections have to do with it.
//!
//! One thread receives and sends what the state machine ([`evenkeel_gossip::Fleet`]) says. The control loop
//! asks it in each round about each group ([`FleetExchange`](evenkeel_control::alerts::FleetExchange)): one
//! balancer decides upon a group's alerts, the others heed it; and each tells the others which members it
//! has ejected.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

mod engine_work;
mod metrics;
mod prompts;
mod sent_prompts;
mod shared_loads;
pub mod status;
mod subsystem;

pub use prompts::share_prompt_secret;
pub use subsystem::Gossip;
