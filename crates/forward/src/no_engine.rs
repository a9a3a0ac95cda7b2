//! A process without the program in the kernel.

use evenkeel_manager::copy_queues::CopyQueues;
use evenkeel_net::Clock;
use evenkeel_proxy::access::AccessLog;
use evenkeel_proxy::udp::client_sessions::ClientSessions;

use crate::plan::PlannedRule;
use crate::status::ForwardStatus;

/// Stands for the program in the kernel, which this process does not have.
#[derive(Debug)]
pub(crate) struct Engine;

impl Engine {
    /// Returns the reason why the kernel cannot forward.
    pub(crate) fn open(
        _clock: Clock,
        _rules: &[PlannedRule],
        _sessions: &ClientSessions,
    ) -> Result<Self, String> {
        Err("this program was built without the feature `kernel`".into())
    }

    /// Does nothing.
    pub(crate) fn set_xdp_interfaces(&mut self, _names: &[String]) {}

    /// Does nothing.
    pub(crate) fn set_copies(&mut self, _queues: Option<&CopyQueues>) {}

    /// Does nothing.
    pub(crate) fn set_learning(&mut self, _learns: bool) {}

    /// Does nothing.
    pub(crate) fn set_log(&mut self, _log: Option<AccessLog>) {}

    /// Does nothing.
    pub(crate) fn run_round(&mut self, _rules: &[PlannedRule]) -> Result<(), String> {
        Ok(())
    }

    /// Does nothing.
    pub(crate) fn fill_status(&self, _status: &mut ForwardStatus, _rules: &[PlannedRule]) {}

    /// Returns false.
    pub(crate) fn has_connections(&self) -> bool {
        false
    }

    /// Does nothing.
    pub(crate) fn stop(self) {}
}
