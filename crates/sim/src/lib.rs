//! Groups, strategies and control in virtual time: members, requests, clients and balancers as
//! events around the *real* groups, built from a configuration as the manager builds them.
//!
//! The event engine ([`engine`]) lets events happen in their order. The world of [`requests`] lives on it:
//! a strategy is asked for each request. [`experiment`] plays the scenarios of users (`evenkeel sim`),
//! [`inference`] plays engines of language models,
//! [`what_if`] plays a running group with another strategy. `evenkeel-lab` has worlds of its own on the
//! same engine, as papers describe them.

#![forbid(unsafe_code)]

mod central;
pub mod config;
pub mod engine;
pub mod experiment;
pub mod inference;
pub mod log;
mod queue_line;
pub mod requests;
pub mod scenario;
pub mod server;
pub mod svg;
pub mod what_if;
pub mod work;

pub use requests::{Dispatch, MemberSample, Outcomes, Sample, TokenOutcomes, run};
pub use scenario::{Change, ChangeEffect, MemberModel, Reading, Reports, Scenario, Way};
pub use server::Discipline;
pub use work::Service;
