//! What balancers of a fleet tell each other, over UDP: who is there, which locations are under
//! alert, and which members have been ejected by whom. It is soft state: a fleet that starts anew
//! has forgotten it, and works.
//!
//! [`Fleet`] is one balancer's side of it, without I/O: datagrams and the time come in, datagrams come
//! out. Who is there is found out by a library (SWIM); what they tell each other is here.
//!
//! | module | what is in it |
//! |---|---|
//! | [`fleet`] | what a balancer hears, says, and when |
//! | [`owners`] | who decides upon the alerts of a group, and why there are never too many |
//! | [`ejections`] | who has ejected whom |
//! | [`readings`] | loads that one balancer reads for all |
//! | `board`, [`note`] | notes, and the copies that others have of them |
//! | [`seal`], [`message`] | datagrams |
//! | `swim`, [`id`] | the library, and who is who |
//! | [`outcome`] | what has become of datagrams, counted |
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
pub fn key(name: &str) -> u64 {
    evenkeel_core::key::hash(name.as_bytes())
}
