//! Messages between the balancers of a fleet, over UDP: which balancers are there, which locations
//! are under alert, and which members have been ejected by whom. This is soft state: a fleet that
//! starts anew has forgotten it, and works.
//!
//! [`Fleet`] is one balancer's side of the exchange, without I/O: datagrams and the time come in,
//! datagrams come out. A library (SWIM) finds out which balancers are there; what they tell each
//! other is here.
//!
//! | module | content |
//! |---|---|
//! | [`fleet`] | one balancer: what it hears, says, and when |
//! | [`owners`] | the balancer that decides upon the alerts of a group, and why there are never too many alerts |
//! | [`ejections`] | members that balancers have ejected |
//! | [`readings`] | loads that one balancer reads for all |
//! | `board`, [`note`] | notes, and the copies that others have of them |
//! | [`seal`], [`message`] | datagrams |
//! | `swim`, [`id`] | the library, and the identity of a balancer |
//! | [`outcome`] | outcomes of datagrams, counted |
//!
//! All input is hostile: what is not understood is refused, lengths have bounds, and nothing
//! panics.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

mod board;
pub mod ejections;
pub mod fleet;
mod flight;
pub mod id;
pub mod message;
pub mod note;
pub mod outcome;
pub mod owners;
mod peer;
pub mod readings;
pub mod seal;
pub mod service;
mod swim;
#[cfg(test)]
mod tests;

pub use fleet::{Fleet, Settings};
pub use id::Id;
pub use owners::Role;

/// The number that stands for the name of a group or a location, or a member's address.
pub fn name_key(name: &str) -> u64 {
    evenkeel_core::key::hash(name.as_bytes())
}
