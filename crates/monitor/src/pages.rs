//! Records that are read rather than asked for.

use evenkeel_config::MonitorKind;
use evenkeel_core::time::Clock;

use crate::poller::Poller;

/// Whether this program can read loads in that way, or what it lacks.
pub(crate) fn can_read(kind: MonitorKind) -> Result<(), &'static str> {
    match kind {
        MonitorKind::Kernel => Ok(()),
        MonitorKind::Rdma | MonitorKind::Ulm => {
            Err("this program reads no pages yet: monitors must have `type = \"kernel\"`")
        }
    }
}

/// Pages that are open.
#[derive(Debug, Default)]
pub(crate) struct Pages;

impl Pages {
    /// Reads the page of a place.
    pub fn read(&mut self, poller: &mut Poller, index: usize, clock: Clock) {
        poller.read(index, Err(&"pages are not read"), None, clock.now());
    }
}
