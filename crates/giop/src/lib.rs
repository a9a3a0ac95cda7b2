//! GIOP, the protocol of CORBA, as far as a load balancer needs it.
//!
//! Versions 1.0, 1.1 and 1.2 (OMG, *Common Object Request Broker Architecture*, part 2,
//! *Interoperability*, version 3.3). Decoders take bytes from the network: every length
//! is checked against what is there before anything is allocated, nesting is bounded, and
//! what is ambiguous is refused.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

pub mod any;
pub mod cdr;
pub mod client;
pub mod context;
pub mod corbaloc;
pub mod exception;
pub mod fragment;
mod hex;
pub mod ior;
pub mod message;
pub mod server;
pub mod typecode;
pub mod wide;
pub mod wire;
