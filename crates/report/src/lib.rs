//! Sources of load reports that back-ends already speak: ORCA, agent-check, Prometheus.
//!
//! Each source is a module with its client ([`evenkeel_wire`] has the parsers), which follows the members of
//! the manager: one task for each member or exporter that is asked, at random moments, so that a slow answer
//! delays no other task. ORCA in the heads of responses has no client: the proxy reads it in passing.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

pub mod agent_check;
mod cgroup;
mod orca_service;
mod poll;
pub mod prometheus;
mod source;
pub mod statsd;

use std::io;
use std::sync::Arc;

use evenkeel_manager::service::Service;
use evenkeel_net::Clock;

use source::RunningSource;

/// Returns all sources. The sources need a tokio runtime with I/O and time; a single-threaded one is enough.
///
/// # Errors
///
/// The system has no file left for one of them.
pub fn sources(clock: Clock) -> io::Result<Vec<Arc<dyn Service>>> {
    Ok(vec![
        Arc::new(RunningSource::<agent_check::Agents>::default()),
        Arc::new(RunningSource::<orca_service::Streams>::default()),
        Arc::new(RunningSource::<prometheus::Exporters>::default()),
        Arc::new(RunningSource::<cgroup::Cgroups>::default()),
        Arc::new(statsd::Statsd::new(clock)?),
    ])
}

/// Asks all sources of all groups, as long as it is polled: for tests.
#[cfg(test)]
pub(crate) async fn run(manager: Arc<evenkeel_manager::Manager>) {
    let mut running = tokio::task::JoinSet::new();
    for source in sources(manager.clock()).unwrap() {
        running.spawn(source.run(Arc::clone(&manager)));
    }
    while running.join_next().await.is_some() {}
}
