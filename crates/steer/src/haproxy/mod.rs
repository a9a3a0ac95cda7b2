//! HAProxy as it is told over its stats socket (the "runtime API", chapter 9.3 of its management guide).

pub mod answers;
pub mod plan;
mod round;
mod socket;

pub use round::{Haproxy, Round};
pub use socket::HaproxyError;
