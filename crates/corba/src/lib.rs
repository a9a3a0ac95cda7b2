//! The OMG's load balancing and monitoring service, over IIOP.

#![forbid(unsafe_code)]

pub mod alerts;
#[cfg(test)]
mod asked;
pub mod call;
pub mod custom;
pub mod directory;
pub mod door;
pub mod exceptions;
pub mod interfaces;
pub mod keys;
pub mod locator;
pub mod membership;
mod metrics;
pub mod monitors;
pub mod name;
pub mod plane;
pub mod properties;
pub mod question;
pub mod relay;
pub mod service;
pub mod status;
pub mod strategies;
pub mod types;
pub mod waiting;
