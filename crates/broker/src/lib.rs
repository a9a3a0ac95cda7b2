//! The QoS broker: the reporting protocol over UDP, and negotiation over HTTP.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

mod desired;
mod metrics;
pub mod negotiator;
pub mod reporting;
mod sockets;
pub mod status;
