//! The QoS broker: the reporting protocol over UDP, and negotiation over HTTP.

pub mod negotiator;
pub mod protocol;
