//! The OMG's load balancing and monitoring service, over IIOP.

pub mod directory;
pub mod keys;
