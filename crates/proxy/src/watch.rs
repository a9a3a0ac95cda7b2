//! Deadlines and orders to stop, for all connections of a worker.
//!
//! Time limits of a proxy are long and rarely met, and they move with every message.
//! So a deadline is one number in a table; a sweep looks at all of them ten times a
//! second and wakes the tasks whose time is over. Setting one costs a store, where a
//! timer would cost a walk through a wheel. A limit is never met early, and at most
//! two [`TICK`]s late, not counting time in which the worker did not run.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use evenkeel_core::time::Instant;

/// Time between two sweeps.
pub(crate) const TICK: Duration = Duration::from_millis(100);

/// Why a task has to stop waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// The deadline has passed.
    Expired,
    /// The connection is to be cut: its rule was disabled, or the process ends.
    Cut,
}

/// The table of a worker.
#[derive(Debug)]
pub(crate) struct Watchers {
    entries: RefCell<Vec<Entry>>,
    free: RefCell<Vec<u32>>,
    /// The time of the last sweep.
    swept: Cell<Instant>,
}

#[derive(Debug)]
struct Entry {
    deadline: Instant,
    waker: Option<Waker>,
    service: ServiceId,
    expired: bool,
    cut: bool,
}

/// Identifies a service within its worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ServiceId(pub(crate) u32);

impl ServiceId {
    /// The worker's own tasks, which no rule stops.
    pub(crate) const WORKER: ServiceId = ServiceId(u32::MAX);
}

const NEVER: Instant = Instant::from_nanos(u64::MAX);

impl Watchers {
    pub(crate) fn new(now: Instant) -> Rc<Self> {
        Rc::new(Watchers {
            entries: RefCell::default(),
            free: RefCell::default(),
            swept: Cell::new(now),
        })
    }

    /// Watches over the calling task until the answer is dropped.
    pub(crate) fn watch(self: &Rc<Self>, service: ServiceId) -> Watch {
        let entry = Entry {
            deadline: NEVER,
            waker: None,
            service,
            expired: false,
            cut: false,
        };
        let mut entries = self.entries.borrow_mut();
        let index = match self.free.borrow_mut().pop() {
            Some(index) => {
                entries[index as usize] = entry;
                index
            }
            None => {
                entries.push(entry);
                (entries.len() - 1) as u32
            }
        };
        Watch {
            table: Rc::clone(self),
            index,
        }
    }

    /// Wakes the tasks whose deadline has passed.
    pub(crate) fn sweep(&self, now: Instant) {
        // A worker that stood still (suspended, throttled) could not see what arrived
        // meanwhile: that time is taken from nobody's limit.
        let lag = now.since(self.swept.replace(now)).saturating_sub(2 * TICK);
        for entry in self.entries.borrow_mut().iter_mut() {
            entry.deadline = entry.deadline.after(lag);
            if entry.deadline <= now {
                entry.deadline = NEVER;
                entry.expired = true;
                wake(entry);
            }
        }
    }

    /// Cuts all connections of `service`, or all of the worker.
    pub(crate) fn cut(&self, service: Option<ServiceId>) {
        self.order(service, |entry| entry.cut = true);
    }

    /// Wakes the tasks of `service`, or of the whole worker, to look at its state.
    pub(crate) fn rouse(&self, service: Option<ServiceId>) {
        self.order(service, |_| {});
    }

    fn order(&self, service: Option<ServiceId>, change: impl Fn(&mut Entry)) {
        for entry in self.entries.borrow_mut().iter_mut() {
            let meant = entry.service != ServiceId::WORKER
                && service.is_none_or(|service| service == entry.service);
            if meant {
                change(entry);
                wake(entry);
            }
        }
    }

    /// Time of the last sweep: at most a [`TICK`] old, and free.
    pub(crate) fn coarse_now(&self) -> Instant {
        self.swept.get()
    }
}

fn wake(entry: &Entry) {
    if let Some(waker) = &entry.waker {
        waker.wake_by_ref();
    }
}

/// One task's place in the table.
#[derive(Debug)]
pub(crate) struct Watch {
    table: Rc<Watchers>,
    index: u32,
}

impl Watch {
    /// The task has `limit` from now on; replaces the deadline before.
    #[inline]
    pub(crate) fn arm(&self, limit: Duration) {
        // The coarse time may be a tick old; without that tick the limit would be early.
        let deadline = self.table.swept.get().after(limit.saturating_add(TICK));
        let entry = &mut self.table.entries.borrow_mut()[self.index as usize];
        entry.deadline = deadline;
        entry.expired = false;
    }

    /// The task may take as long as it likes.
    #[inline]
    pub(crate) fn disarm(&self) {
        let entry = &mut self.table.entries.borrow_mut()[self.index as usize];
        entry.deadline = NEVER;
        entry.expired = false;
    }

    /// Whether the task has to stop; otherwise it will be woken when it has to.
    #[inline]
    pub(crate) fn poll_stop(&self, cx: &mut Context<'_>) -> Poll<Stop> {
        let entry = &mut self.table.entries.borrow_mut()[self.index as usize];
        if entry.cut {
            return Poll::Ready(Stop::Cut);
        }
        if entry.expired {
            return Poll::Ready(Stop::Expired);
        }
        match &entry.waker {
            Some(waker) if waker.will_wake(cx.waker()) => {}
            _ => entry.waker = Some(cx.waker().clone()),
        }
        Poll::Pending
    }

    /// What `poll` comes to, unless the task has to stop first.
    pub(crate) async fn until<T>(
        &self,
        mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>,
    ) -> Result<T, Stop> {
        std::future::poll_fn(|cx| match poll(cx) {
            Poll::Ready(value) => Poll::Ready(Ok(value)),
            Poll::Pending => self.poll_stop(cx).map(Err),
        })
        .await
    }

    /// Waits for `time`, or until the connection is cut.
    pub(crate) async fn sleep(&self, time: Duration) -> Stop {
        self.arm(time);
        std::future::poll_fn(|cx| self.poll_stop(cx)).await
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let entry = &mut self.table.entries.borrow_mut()[self.index as usize];
        entry.deadline = NEVER;
        entry.waker = None;
        entry.service = ServiceId::WORKER;
        self.table.free.borrow_mut().push(self.index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    fn stop(watch: &Watch) -> Poll<Stop> {
        watch.poll_stop(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn a_limit_is_never_met_early_and_at_most_two_ticks_late() {
        let watchers = Watchers::new(at(1000));
        let watch = watchers.watch(ServiceId(0));
        // Armed just before the next sweep: the coarse time is almost a tick old.
        watch.arm(Duration::from_millis(50));
        watchers.sweep(at(1100));
        assert_eq!(stop(&watch), Poll::Pending);
        watchers.sweep(at(1200));
        assert_eq!(stop(&watch), Poll::Ready(Stop::Expired));
        watch.arm(Duration::from_millis(50));
        assert_eq!(stop(&watch), Poll::Pending);
        watch.disarm();
        watchers.sweep(at(9000));
        assert_eq!(stop(&watch), Poll::Pending);
    }

    #[test]
    fn time_in_which_the_worker_stood_still_does_not_count() {
        let watchers = Watchers::new(at(1000));
        let (before, after) = (watchers.watch(ServiceId(0)), watchers.watch(ServiceId(0)));
        before.arm(Duration::from_millis(300));
        watchers.sweep(at(1100));
        // Nothing runs until here, where a task is armed before the sweep.
        after.arm(Duration::from_millis(300));
        watchers.sweep(at(9000));
        assert_eq!(stop(&before), Poll::Pending);
        assert_eq!(stop(&after), Poll::Pending);
        for ms in [9100, 9200, 9300, 9400] {
            watchers.sweep(at(ms));
        }
        assert_eq!(stop(&before), Poll::Ready(Stop::Expired));
        assert_eq!(stop(&after), Poll::Ready(Stop::Expired));
    }

    #[test]
    fn orders_reach_the_service_they_are_for() {
        let watchers = Watchers::new(at(0));
        let (a, b) = (watchers.watch(ServiceId(0)), watchers.watch(ServiceId(1)));
        let own = watchers.watch(ServiceId::WORKER);
        watchers.cut(Some(ServiceId(1)));
        assert_eq!(stop(&a), Poll::Pending);
        assert_eq!(stop(&b), Poll::Ready(Stop::Cut));
        watchers.cut(None);
        assert_eq!(stop(&a), Poll::Ready(Stop::Cut));
        assert_eq!(stop(&own), Poll::Pending);
    }

    #[test]
    fn places_are_used_again_and_come_clean() {
        let watchers = Watchers::new(at(0));
        let watch = watchers.watch(ServiceId(0));
        watch.arm(Duration::ZERO);
        watchers.cut(None);
        drop(watch);
        watchers.sweep(at(5000));
        let watch = watchers.watch(ServiceId(3));
        assert_eq!(watchers.entries.borrow().len(), 1);
        assert_eq!(stop(&watch), Poll::Pending);
    }
}
