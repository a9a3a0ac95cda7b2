//! Groups, strategies and control in virtual time: members, requests, clients and balancers as
//! events around the *real* groups, built from a configuration as the manager builds them.
//!
//! One [engine](engine) lets events happen in their order. Three worlds live on it: [`requests`],
//! each of which a strategy is asked for, and [`sessions`], whose clients stay with a member.
//! [`negotiated`] has web users ([`surge`]) who ask for a server and use it for a quantum.
//! [`what_if`] is a running group with another strategy. [`monitored`] and [`downloads`] are worlds of
//! requests as papers describe them. [`fleet`] is about balancers alone, and what they tell each other.

#![forbid(unsafe_code)]

mod catalogue;
mod central;
mod config;
pub mod downloads;
mod engine;
pub mod experiment;
pub mod fleet;
pub mod log;
pub mod monitored;
pub mod negotiated;
pub mod requests;
pub mod scenario;
mod server;
pub mod sessions;
pub mod surge;
pub mod svg;
pub mod what_if;
pub mod work;

pub use catalogue::catalogue;
pub use requests::{Dispatch, MemberSample, Outcomes, Sample, run};
pub use scenario::{Change, MemberModel, Reading, Reports, Scenario, To, Way};
pub use server::Discipline;
pub use work::Service;
