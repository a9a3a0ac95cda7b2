//! Locations and the loads they report.
//!
//! A *location* is whatever the application says it is: a host, a container, a
//! process. Members of several groups may share one, and so share its load. A load
//! is soft state with an age: a stale one must count as *unknown*, never as idle.

mod id;
mod location;
mod read;
mod store;

pub use id::{InvalidLoad, Load, LoadId, LoadValue, ParseLoadIdError};
pub use location::{FORGOTTEN, LOADS_PER_LOCATION, Location, Tell, UNNAMED_LOADS};
pub(crate) use read::{Loads, Query, Report};
pub use store::TooManyLoads;

#[cfg(test)]
mod tests;
