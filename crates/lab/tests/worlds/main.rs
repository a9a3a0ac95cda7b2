//! Worlds that papers describe, and fleets of balancers, in virtual time.

mod closed_loops;
mod fleet;
mod on_demand;
mod pulses;
