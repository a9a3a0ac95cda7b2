//! The QoS broker: the reporting protocol over UDP, and negotiation over HTTP.

#![forbid(unsafe_code)]

mod metrics;
pub mod negotiator;
pub mod reporting;
pub mod status;
