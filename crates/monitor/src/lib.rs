//! Reads the load of back-ends from their kernels, at an interval.
//!
//! [`poller`] decides who is asked when and what an answer is worth, without I/O; `task` is
//! the one thread around it, with a socket for each IP version and the pages that are read.

#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

mod ahead;
pub mod ask;
mod metrics;
mod pages;
pub mod poller;
pub mod sockets;
mod status;
mod task;

pub use status::{AnswerCount, LocationMonitor, MonitorStatus, format_table};
pub use task::Monitor;
