//! Sources of the API's answers.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use evenkeel_manager::Manager;
use tokio::sync::{mpsc, oneshot};

use crate::access_log::Counts as AccessLogCounts;
use crate::address::Address;
use crate::live::Live;
use crate::otlp::Counts as TraceCounts;
use crate::wire::Upgraded;

/// Sources of the API's answers.
#[derive(Debug)]
pub struct Sources {
    /// Knows and does everything, subsystems included.
    pub manager: Arc<Manager>,
    /// File that `POST /v1/reload` reads.
    pub config_file: PathBuf,
    /// Counters of the access log's writer.
    pub access_log: AccessLogCounts,
    /// Counters of exported, lost and dropped traces.
    pub traces: TraceCounts,
    /// Address that the API listens on.
    pub address: Arc<Address>,
    /// Set when the process begins to shut down: `/readyz` then says no.
    pub draining: AtomicBool,
    /// Samples and news of what goes on now, for clients who watch.
    pub live: Arc<Live>,
    /// Channel to the task that has another process take the place of this one.
    pub upgrades: mpsc::Sender<UpgradeWanted>,
}

/// Order that another process take over. The sender learns what has become of that: the other process, or why
/// there is none.
pub type UpgradeWanted = oneshot::Sender<Result<Upgraded, String>>;

impl Sources {
    /// True if the process has begun to shut down.
    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }
}
