//! Evenkeel proxy.

pub mod http1;
