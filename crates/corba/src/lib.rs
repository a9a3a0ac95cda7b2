//! The OMG's load balancing and monitoring service, over IIOP.

pub mod keys;
