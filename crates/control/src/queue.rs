//! The queue of a group: requests that wait while all members are at their connection limits.
//!
//! It counts who waits and says who is to look for room; how one waits is a matter of whoever
//! carries requests.

use std::ops::Deref;
use std::sync::atomic::{AtomicUsize, Ordering, fence};

/// How many requests wait, of so many that may. Any thread counts.
#[derive(Debug)]
pub struct Queue {
    limit: AtomicUsize,
    waiting: AtomicUsize,
    /// Places at members that became free while somebody waited, wrapping.
    vacancies: AtomicUsize,
}

impl Queue {
    /// A queue in which nobody waits and `limit` requests may.
    pub fn new(limit: usize) -> Self {
        Queue {
            limit: AtomicUsize::new(limit),
            waiting: AtomicUsize::new(0),
            vacancies: AtomicUsize::new(0),
        }
    }

    /// Requests that may wait.
    pub fn limit(&self) -> usize {
        self.limit.load(Ordering::Relaxed)
    }

    /// From now on so many may wait. Those who wait already may stay.
    pub fn set_limit(&self, limit: usize) {
        self.limit.store(limit, Ordering::Relaxed);
    }

    /// Requests that wait now.
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Takes a place, for as long as the answer lives; `None` if the queue is full.
    pub fn enter(&self) -> Option<Place<&Queue>> {
        Place::enter(self)
    }

    /// A request has left its member: answers whether somebody waits, who is to look for room.
    #[inline]
    pub fn vacated(&self) -> bool {
        fence(Ordering::SeqCst);
        let some = self.waiting.load(Ordering::Relaxed) > 0;
        if some {
            self.vacancies.fetch_add(1, Ordering::Release);
        }
        some
    }
}

/// A place in the queue, by whatever leads there.
#[derive(Debug)]
pub struct Place<Q: Deref<Target = Queue>> {
    queue: Q,
    /// Vacancies at the last look.
    seen: usize,
}

impl<Q: Deref<Target = Queue>> Place<Q> {
    /// Takes a place, for as long as the answer lives; `None` if the queue is full.
    pub fn enter(queue: Q) -> Option<Self> {
        let place = Place {
            seen: queue.vacancies.load(Ordering::Acquire),
            queue,
        };
        if place.queue.waiting.fetch_add(1, Ordering::SeqCst) < place.queue.limit() {
            // Pairs with the fence in `vacated`: either who waits sees the member's
            // place that became free, or who freed it sees somebody waiting.
            fence(Ordering::SeqCst);
            Some(place)
        } else {
            None
        }
    }

    /// Who waits here is about to look for room. Answers whether there was a vacancy since its
    /// last look, which it hands on if it cannot use it: each is handed on at most once by
    /// everybody, so that this ends when all have looked.
    pub fn look(&mut self) -> bool {
        let vacancies = self.queue.vacancies.load(Ordering::Acquire);
        std::mem::replace(&mut self.seen, vacancies) != vacancies
    }
}

impl<Q: Deref<Target = Queue>> Drop for Place<Q> {
    fn drop(&mut self) {
        self.queue.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_may_wait_and_a_vacancy_is_seen_once() {
        let queue = Queue::new(2);
        assert!(!queue.vacated(), "nobody waits");
        let mut first = queue.enter().unwrap();
        let second = queue.enter().unwrap();
        assert!(queue.enter().is_none());
        assert_eq!(queue.waiting(), 2);
        assert!(!first.look(), "nothing since it came");
        assert!(queue.vacated());
        assert!(first.look());
        assert!(!first.look());
        drop(second);
        queue.set_limit(1);
        assert!(queue.enter().is_none(), "one is there already");
        drop(first);
        assert_eq!(queue.waiting(), 0);
        assert!(queue.enter().is_some());
    }
}
