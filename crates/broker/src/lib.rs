//! The QoS broker: the reporting protocol over UDP, and negotiation over HTTP.

pub mod desk;
mod metrics;
pub mod negotiator;
pub mod status;
