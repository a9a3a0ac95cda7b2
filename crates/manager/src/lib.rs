//! The load manager: configuration to groups, the control loop, and the snapshots
//! that the data plane works with.

#![forbid(unsafe_code)]

mod admission;
pub mod auth;
pub mod certificates;
mod changes;
mod check;
pub mod chooser;
pub use evenkeel_config as config;
pub use evenkeel_control::opinion;
mod control;
pub mod copy_queues;
pub mod cors;
pub mod counts;
mod dns;
pub mod endpoint;
mod engine_metrics;
mod engine_status;
pub mod exposition;
pub mod files;
pub mod groups;
pub mod handover;
mod history;
mod inputs;
pub mod lists;
mod manager;
pub mod measured;
pub mod member_tls;
mod metrics;
pub mod mirrors;
pub mod models;
mod names;
pub mod news;
mod probe;
mod probe_datagram;
mod query;
pub mod responses;
pub mod revisions;
pub mod routes;
pub mod sample;
pub mod service;
pub mod snapshot;
mod state;
pub mod status;
pub mod sticky;
pub mod store;
pub mod subsystem;
pub mod target_actions;
#[cfg(test)]
mod tests;
pub mod text;
mod work;
pub mod writing;

pub use inputs::{AdminState, AlertSetting};
pub use manager::{
    AppliedConfig, ChangeError, Generated, ManageError, Manager, Readiness, ReloadError, SHARED,
    SavedConfig, WantedConfig,
};
pub use subsystem::ApplyError;
