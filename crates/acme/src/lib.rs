//! Certificates by themselves: had from an authority by ACME (RFC 8555), and renewed in time.
//!
//! | module | what it has |
//! |---|---|
//! | [`plan`] | when to try the next time; no clock, no randomness of its own |
//! | [`client`] | HTTPS, and when the authority wants to be asked again |
//! | [`order`] | one try: the conversation with the authority |
//! | [`store`] | the folder with the account and the certificates |
//! | [`subsystem`] | all names, one after the other, for ever |
//!
//! What comes out of it is a file for each name. The proxy reads it as it reads any certificate, and
//! notices when it changes.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

pub mod client;
pub mod order;
pub mod plan;
pub mod store;
pub mod subsystem;

pub use subsystem::Acme;
