//! A signal: wakes all listeners when something has changed.
//!
//! Polling for a change costs the more, the more tasks poll. Changes that are waited for are rare, so that a lock does
//! no harm there.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Waker;

/// Wakes the listeners, each time, until they stop listening.
#[derive(Debug, Default)]
pub struct Signal {
    listeners: Mutex<Listeners>,
}

#[derive(Debug, Default)]
struct Listeners {
    next: u64,
    wakers: BTreeMap<u64, Waker>,
}

impl Signal {
    /// Has `waker` woken from now on, at each change. What may have changed before is to be
    /// looked at after this call. The answer is for [`Signal::forget`].
    #[must_use]
    pub fn listen(&self, waker: Waker) -> u64 {
        let mut listeners = self.lock();
        let id = listeners.next;
        listeners.next += 1;
        listeners.wakers.insert(id, waker);
        id
    }

    /// Stops listening.
    pub fn forget(&self, id: u64) {
        self.lock().wakers.remove(&id);
    }

    /// Something has changed, and is to be seen already.
    pub fn wake(&self) {
        // Whoever is woken may do anything, so not with the lock held.
        let wakers: Vec<Waker> = self.lock().wakers.values().cloned().collect();
        wakers.into_iter().for_each(Waker::wake);
    }

    fn lock(&self) -> MutexGuard<'_, Listeners> {
        self.listeners
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Counts(AtomicUsize);

    impl Wake for Counts {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn who_listens_is_woken_each_time_until_it_stops() {
        let (signal, one, other) = (Signal::default(), Arc::<Counts>::default(), Arc::default());
        signal.wake();
        let first = signal.listen(Waker::from(Arc::clone(&one)));
        let _second = signal.listen(Waker::from(Arc::clone(&other)));
        signal.wake();
        signal.wake();
        signal.forget(first);
        signal.wake();
        let woken = |of: &Arc<Counts>| of.0.load(Ordering::Relaxed);
        assert_eq!((woken(&one), woken(&other)), (2, 3));
    }
}
