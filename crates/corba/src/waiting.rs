//! Clients that wait until a member takes them: they are woken when something has changed that
//! may be what they wait for, and not by looking again and again.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Wake, Waker};
use std::time::Duration;

use evenkeel_core::group::Group;
use evenkeel_core::load::Location;
use evenkeel_manager::snapshot::GroupHandle;
use tokio::sync::Notify;

use crate::directory::Entry;

/// The wait queues of a worker: one for each group of which clients wait.
#[derive(Debug, Default)]
pub struct WaitQueues {
    queues: RefCell<HashMap<u64, Weak<WaitQueue>>>,
    /// Number of further looks at clients that wait.
    looks: Cell<u64>,
}

impl WaitQueues {
    /// The queue of a group, where one waits as long as the answer is kept.
    pub fn queue_for(&self, entry: &Entry) -> Rc<WaitQueue> {
        let mut queues = self.queues.borrow_mut();
        let known = queues.get(&entry.id).and_then(Weak::upgrade);
        // A group that was made anew has another handle.
        if let Some(queue) = known.filter(|queue| Arc::ptr_eq(&queue.handle, &entry.handle)) {
            return queue;
        }
        queues.retain(|_, queue| queue.strong_count() > 0);
        let queue = Rc::new(WaitQueue::new(Arc::clone(&entry.handle)));
        queues.insert(entry.id, Rc::downgrade(&queue));
        queue
    }

    /// A client that waits is looked at again.
    pub fn count_look(&self) {
        self.looks.set(self.looks.get() + 1);
    }

    /// Returns the number of further looks at clients that wait.
    pub fn look_count(&self) -> u64 {
        self.looks.get()
    }
}

/// Queue in which the clients of a group wait for news of its members and their locations.
#[derive(Debug)]
pub struct WaitQueue {
    handle: Arc<GroupHandle>,
    wakeup: Arc<Wakeup>,
    of_handle: u64,
    subscriptions: RefCell<Option<Subscriptions>>,
}

/// The locations of a group that are listened to.
#[derive(Debug)]
struct Subscriptions {
    group: Arc<Group>,
    locations: Vec<(Arc<Location>, u64)>,
}

/// Wakes those who wait when something has changed.
#[derive(Debug, Default)]
struct Wakeup {
    notify: Notify,
    count: AtomicU64,
}

impl Wake for Wakeup {
    fn wake(self: Arc<Self>) {
        self.count.fetch_add(1, Ordering::AcqRel);
        self.notify.notify_waiters();
    }
}

impl WaitQueue {
    fn new(handle: Arc<GroupHandle>) -> Self {
        let wakeup = Arc::<Wakeup>::default();
        WaitQueue {
            of_handle: handle.changed.listen(Waker::from(Arc::clone(&wakeup))),
            handle,
            wakeup,
            subscriptions: RefCell::default(),
        }
    }

    /// Returns the number of changes so far. Call it before deciding to wait.
    pub fn news_count(&self) -> u64 {
        self.follow();
        self.wakeup.count.load(Ordering::Acquire)
    }

    /// Waits until more has happened than `seen`, or for as long as `most`.
    pub async fn wait_for_news(&self, seen: u64, most: Duration) {
        let count = self.wakeup.notify.notified();
        tokio::pin!(count);
        count.as_mut().enable();
        if self.wakeup.count.load(Ordering::Acquire) == seen {
            tokio::select! {
                () = count => {}
                () = tokio::time::sleep(most) => {}
            }
        }
    }

    /// Listens to the locations of the group as it is.
    fn follow(&self) {
        let mut subscriptions = self.subscriptions.borrow_mut();
        let group = self.handle.current.load_full();
        if subscriptions
            .as_ref()
            .is_some_and(|h| Arc::ptr_eq(&h.group, &group))
        {
            return;
        }
        let members = group.members().iter();
        let listen = |location: &Arc<Location>| {
            let waker = Waker::from(Arc::clone(&self.wakeup));
            (Arc::clone(location), location.change_signal().listen(waker))
        };
        let locations = members.map(|member| listen(&member.location)).collect();
        *subscriptions = Some(Subscriptions { group, locations });
    }
}

impl Drop for Subscriptions {
    fn drop(&mut self) {
        for (location, id) in &self.locations {
            location.change_signal().forget(*id);
        }
    }
}

impl Drop for WaitQueue {
    fn drop(&mut self) {
        self.handle.changed.forget(self.of_handle);
    }
}
