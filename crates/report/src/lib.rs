//! What back-ends already speak to report their load: ORCA, agent-check, Prometheus.
//!
//! Each source is a module with its client ([`evenkeel_wire`] has the parsers), which follows
//! the members of the manager: one task for whoever is asked, at random
//! moments, so that a slow one delays nobody else. ORCA in the heads of responses has no
//! client: the proxy reads it in passing.

pub mod agent_check;
mod orca_service;
mod poll;
pub mod prometheus;

use std::sync::Arc;

use evenkeel_manager::Manager;
use evenkeel_manager::snapshot::Snapshot;
use evenkeel_manager::subsystem::{Commit, PrepareErrors, Subsystem, Work};

/// Asks all sources of all groups.
#[derive(Clone, Copy, Debug)]
pub struct Reports;

impl Subsystem for Reports {
    fn prepare(&self, _: &Arc<Snapshot>) -> Result<Commit, PrepareErrors> {
        Ok(Box::new(|| ()))
    }

    fn run(&self, manager: Arc<Manager>) -> Work<()> {
        Box::pin(run(manager))
    }
}

/// Asks all sources of all groups, as long as it is polled.
///
/// Needs a tokio runtime with I/O and time; a single-threaded one is enough.
pub async fn run(manager: Arc<Manager>) {
    tokio::join!(
        agent_check::follow(&manager),
        orca_service::follow(&manager),
        prometheus::follow(&manager),
    );
}
