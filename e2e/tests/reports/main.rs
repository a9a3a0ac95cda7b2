//! Loads that servers report, and clients that are told where to go.

mod agent;
mod alerts;
mod apache_module;
mod negotiation;
mod on_demand;
mod reporting;
mod reports;
mod sources;
