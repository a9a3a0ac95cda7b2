//! Images of one service: a rule with the groups and locations that it refers to, in a text of its own, which
//! another balancer can take in.
//!
//! An image is a configuration as users write it, without what belongs to a balancer rather than to a service:
//! [`export`] writes into it what `[defaults]` says of its tables, and [`Plan::new`] accepts nothing but rules,
//! groups and locations.

mod export;
mod import;
mod inherit;
mod places;
mod tables;
#[cfg(test)]
mod tests;

pub use export::{Image, export};
pub use import::{Import, ImportOutcome, Plan};
pub use tables::{IMAGE, Texts};
