//! Limits of this process, and what happens when a resource runs out: how files and memory are shared out,
//! which errors mean a shortage here and not a fault of the peer, warnings that a shortage does not multiply,
//! and a log that never blocks.

pub mod files;
pub mod log;
pub mod memory;
mod place;
mod shortage;
mod throttle;

pub use place::LimitSlot;
pub use shortage::Shortage;
pub use throttle::Throttle;

#[doc(hidden)]
pub use tracing;
