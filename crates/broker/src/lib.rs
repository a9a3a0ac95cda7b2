//! The QoS broker: the reporting protocol over UDP, and negotiation over HTTP.

mod metrics;
pub mod negotiator;
pub mod reporting;
pub mod status;
