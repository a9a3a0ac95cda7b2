//! Interface by which subsystems use the manager.

use std::error::Error;
use std::sync::Arc;

use crate::manager::Manager;
use crate::subsystem::Subsystem;
pub use crate::work::Work;

/// A subsystem as the process runs it.
pub trait Service: Subsystem {
    /// Begins, once the first configuration is in effect.
    fn start(&self, manager: &Arc<Manager>) -> Work<Result<(), StartError>> {
        let _ = manager;
        Box::pin(std::future::ready(Ok(())))
    }

    /// Does the work of the subsystem on the control loop's runtime, as long as the work is polled.
    fn run(&self, manager: Arc<Manager>) -> Work<()> {
        let _ = manager;
        Box::pin(std::future::ready(()))
    }
}

/// Reason why a subsystem cannot begin.
#[derive(Debug, thiserror::Error)]
#[error("cannot start {whose}: {cause}")]
pub struct StartError {
    /// Name of the subsystem, in words.
    pub whose: &'static str,
    /// Cause of the failure.
    pub cause: Box<dyn Error + Send + Sync>,
}
