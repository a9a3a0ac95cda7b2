//! Locations and the loads they report.
//!
//! A *location* is whatever the application says it is: a host, a container, a
//! process. Members of several groups may share one, and so share its load. A load
//! is soft state with an age: a stale one must count as *unknown*, never as idle.

mod id;
mod location;
mod read;
mod split;
mod store;

pub use id::{InvalidLoad, Load, LoadId, LoadValue, ParseLoadIdError};
pub use location::{FORGOTTEN, LOADS_PER_LOCATION, Location, SheddingOrder, UNNAMED_LOADS};
pub(crate) use read::{LoadMeans, Loads, MemberMeans, Query, Report};
pub use store::TooManyLoads;

/// Converts tasks per CPU that run or wait into a load: below 1 their number, and above 1 the sum of 1 and half the
/// natural logarithm of their number, so that each doubling of a queue adds 0.35.
///
/// A request that comes to a queue of sixteen makes each of the sixteen slower by a sixteenth, and a request that comes
/// to a queue of two by a half. If tasks were counted as they are, other programs' tasks would keep requests away long
/// after the servers without such tasks have queues of their own. And of several balancers, each of which sees only its
/// own part of the load, all would leave the longest queue together and come back together.
pub fn of_queue(tasks_per_cpu: f64) -> f64 {
    match tasks_per_cpu > 1.0 {
        true => 1.0 + 0.5 * libm::log(tasks_per_cpu),
        false => tasks_per_cpu,
    }
}

#[cfg(test)]
mod tests;
