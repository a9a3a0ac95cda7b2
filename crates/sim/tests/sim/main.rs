//! Whole groups of members in virtual time.

mod any_interval;
mod balance;
mod client_weights;
mod configured;
mod costs;
mod engines;
mod fast_loads;
mod few_members;
mod late_binding;
mod long_connections;
mod outages;
mod overload;
mod phases;
mod scenarios;
mod shares;
