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
//! | [`fleet`] | one balancer: what it knows, and what it does when |
//! | `receiver`, `sender` | datagrams that come in, and that go out |
//! | [`owners`] | the balancer that decides upon the alerts of a group, and why there are never too many alerts |
//! | `group`, `peer` | state that a balancer keeps of a group, and of another balancer |
//! | [`ejection`], `ejections` | members that balancers have ejected |
//! | [`reading`], [`readings`] | loads that one balancer reads for all |
//! | `copies` | copies of connections that kernels forward: carried, and not read |
//! | [`work_report`], `work` | work at engines for language models |
//! | [`prompt_report`], `prompts` | prompts that balancers have sent there |
//! | `service`, `flight` | times that requests take at members, and numbers of requests in flight |
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
mod copies;
mod copy_exchange;
pub mod ejection;
mod ejections;
pub mod fleet;
mod flight;
mod group;
pub mod id;
pub mod message;
pub mod note;
pub mod outcome;
pub mod owners;
mod peer;
pub mod prompt_report;
mod prompts;
pub mod reading;
pub mod readings;
mod receiver;
pub mod seal;
mod sender;
mod service;
mod swim;
#[cfg(test)]
mod tests;
mod work;
pub mod work_report;

pub use fleet::{Fleet, Settings};
pub use id::Id;
pub use owners::Role;

/// The number that stands for the name of a group or a location, or a member's address.
pub fn name_key(name: &str) -> u64 {
    evenkeel_core::key::hash(name.as_bytes())
}
