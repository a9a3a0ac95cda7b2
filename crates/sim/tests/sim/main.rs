//! Whole groups of members in virtual time.

mod balance;
mod client_weights;
mod closed_loops;
mod configured;
mod costs;
mod fast_loads;
mod few_members;
mod fleet;
mod late_binding;
mod on_demand;
mod outages;
mod overload;
mod pulses;
mod scenarios;
mod shares;
