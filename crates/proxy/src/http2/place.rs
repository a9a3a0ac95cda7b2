//! Place of a request in a connection to a member.

use std::rc::Rc;

use super::links::Link;
use crate::worker::Worker;

/// The right to a stream of a connection, until it is dropped.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) link: Rc<Link>,
    pub(super) worker: Rc<Worker>,
    /// The connection was used before, and idle: the member may have closed it just then.
    was_idle: bool,
}

impl Place {
    pub(super) fn take(link: Rc<Link>, worker: Rc<Worker>) -> Self {
        let was_idle = link.used.replace(true) && link.streams.get() == 0;
        link.streams.set(link.streams.get() + 1);
        Place {
            link,
            worker,
            was_idle,
        }
    }

    /// True if a connection that was idle has ended.
    pub(super) fn is_stale(&self) -> bool {
        self.was_idle && self.link.closed.get()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let link = &self.link;
        link.streams.set(link.streams.get().saturating_sub(1));
        if link.streams.get() == 0 {
            link.idle_since.set(self.worker.watchers.coarse_now());
            if link.closed.get() {
                link.engine.wake_task();
            }
        }
    }
}
