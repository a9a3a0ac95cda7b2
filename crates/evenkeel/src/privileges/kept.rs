//! Rights that the process has kept, for the log.

use tracing::{info, warn};

/// Notes about the rights that were given up, for the log once there is one.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    pub(super) told: Vec<String>,
    pub(super) lacking: Vec<String>,
}

impl Kept {
    /// Says in the log as whom the process runs and what it may do.
    pub(crate) fn log_privileges(&self) {
        for line in &self.told {
            info!("{line}");
        }
        for line in &self.lacking {
            warn!("{line}");
        }
    }
}
