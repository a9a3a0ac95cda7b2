//! Agent: runs beside a server, measures, reports, sheds.
//!
//! At the end of each measurement interval the agent looks at the pages of instrumented
//! servers ([`pages`]) and at the kernel's figures ([`host`]), makes loads of them
//! ([`figures`] of their [`activity`], [`location`]), and gives them to its brokers ([`link`]) and to HAProxy
//! ([`agent_check`]). Alerts of the brokers go to the servers' pages.
//!
//! Everything happens on one thread, and nothing between two ticks.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

pub mod activity;
pub mod agent;
pub mod agent_check;
pub mod figures;
mod hook;
pub mod host;
pub mod learn;
pub mod link;
pub mod location;
mod once;
pub mod owners;
mod pages;
pub mod server;
pub mod state;

pub use agent::{Error, run};
pub use once::measure_once;
