//! The OMG's load balancing and monitoring service, over IIOP.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

pub mod alerts;
pub mod call;
#[cfg(test)]
mod callback_tests;
pub mod custom;
pub mod directory;
pub mod dispatcher;
pub mod exceptions;
pub mod interfaces;
pub mod keys;
pub mod locator;
pub mod membership;
mod metrics;
pub mod monitors;
pub mod name;
pub mod properties;
pub mod relay;
pub mod reply_to;
pub mod service;
pub mod status;
pub mod strategies;
pub mod subsystem;
pub mod tenure;
pub mod types;
pub mod waiting;
