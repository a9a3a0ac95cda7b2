//! Messages that both ends of a conversation share: codecs and state machines without I/O.
//!
//! | module | who speaks it |
//! |---|---|
//! | [`reporting`] | agents and the broker, over UDP |
//! | [`negotiation`] | clients and the negotiator, over HTTP |
//! | [`agent_check`] | the balancer and an agent beside a member, a line over TCP |
//! | [`orca`] | servers, in their responses or over gRPC |
//! | [`client_hello`] | clients that speak TLS, in their first message |
//! | [`proxy_protocol`] | proxies in front, before a client's first byte |
//! | [`connection_copies`] | balancers of a fleet, about connections that their kernels forward |
//! | [`quic`] | clients and servers of QUIC: connection ids |
//! | [`exposition`] | servers that show their metrics as Prometheus reads them |
//! | [`ftp`] | clients and servers of FTP, on the control connection |
//! | [`response`] | servers, over HTTP/1.1 |
//! | [`protobuf`] | what ORCA is written in |
//! | [`input`], [`window`] | what messages over UDP are read with, and which of a peer's have come |
//!
//! All input is hostile: what is not understood is refused, lengths have bounds, and nothing
//! panics.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

pub mod agent_check;
pub mod client_hello;
pub mod connection_copies;
pub mod exposition;
pub mod ftp;
pub mod input;
pub mod negotiation;
pub mod orca;
pub mod protobuf;
pub mod proxy_protocol;
pub mod quic;
pub mod reporting;
pub mod response;
pub mod window;
