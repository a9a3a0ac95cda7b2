//! A load generator: requests of HTTP, bytes over TCP and sessions of FTP, planned by a clock or as
//! answers come, and what came of them (`evenkeel-lab load`).
//!
//! | module | what it has |
//! |---|---|
//! | [`plan`] | what a run is to do |
//! | `schedule` | when things are due |
//! | [`surge`] | web users as SURGE has them: documents of a site, and who asks for which when |
//! | `runtime`, `socket` | an event loop for one thread that is on time, and its connections |
//! | `context`, `client` | what clients of a thread share; a client: connections, redirects, the server that it was bound to |
//! | `pending_request` | a request of HTTP that is under way |
//! | `http1`, [`response`], `http2`, `tcp`, `ftp` | what is spoken |
//! | [`mod@run`] | a run: threads and their clients |
//! | [`stats`] | what is counted |
//! | [`report`] | the same for people, and for other programs |
//! | [`interval_log`] | a histogram for each second, as tools of HdrHistogram read them |
//! | [`compare`] | two runs |

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

mod client;
pub mod compare;
mod context;
mod ftp;
mod http1;
mod http2;
pub mod interval_log;
mod pending_request;
pub mod plan;
pub mod report;
pub mod response;
pub mod run;
mod runtime;
mod schedule;
mod socket;
pub mod stats;
#[allow(clippy::indexing_slicing)] // Documents and pages are numbers that it draws itself.
pub mod surge;
mod tcp;

pub use plan::Plan;
pub use run::run;
pub use stats::Outcome;
