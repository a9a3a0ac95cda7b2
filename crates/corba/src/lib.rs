//! The OMG's load balancing and monitoring service, over IIOP.

pub mod call;
pub mod directory;
pub mod exceptions;
pub mod interfaces;
pub mod keys;
pub mod name;
pub mod types;
pub mod locator;
pub mod question;
