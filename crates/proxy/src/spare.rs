//! Things that a worker keeps for whoever needs one next: buffers, vectors, pipes.

use std::cell::{Cell, RefCell};

/// Things of one kind that nobody uses. The one that came back last, still in the cache, is
/// lent next; so those at the bottom are the ones that are not needed.
#[derive(Debug)]
pub(crate) struct Spare<T> {
    kept: RefCell<Vec<T>>,
    /// The fewest that there were at a time since the last [`release_unused`](Spare::release_unused):
    /// so many were never needed.
    fewest: Cell<usize>,
}

impl<T> Default for Spare<T> {
    fn default() -> Self {
        Spare {
            kept: RefCell::default(),
            fewest: Cell::new(0),
        }
    }
}

impl<T> Spare<T> {
    /// Lends one, if there is any.
    #[inline]
    pub(crate) fn take(&self) -> Option<T> {
        let mut kept = self.kept.borrow_mut();
        let one = kept.pop();
        self.fewest.set(self.fewest.get().min(kept.len()));
        one
    }

    /// Keeps one, unless there are as many as `most` already.
    #[inline]
    pub(crate) fn give_back(&self, one: T, most: usize) {
        let mut kept = self.kept.borrow_mut();
        if kept.len() < most {
            kept.push(one);
        }
    }

    /// Drops the things that nobody has needed since the last call, so that a moment with many at a
    /// time does not count for ever.
    pub(crate) fn release_unused(&self) {
        let mut kept = self.kept.borrow_mut();
        let unneeded = self.fewest.get().min(kept.len());
        kept.drain(..unneeded);
        self.fewest.set(kept.len());
    }

    /// Drops all; returns whether there was one.
    pub(crate) fn clear(&self) -> bool {
        self.fewest.set(0);
        !std::mem::take(&mut *self.kept.borrow_mut()).is_empty()
    }

    /// Returns the number of things that are kept.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.kept.borrow().len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_that_nobody_needs_are_dropped_and_the_others_stay() {
        let spare = Spare::default();
        for number in 0..10 {
            spare.give_back(number, 10);
        }
        spare.give_back(10, 10);
        assert_eq!(spare.len(), 10, "no more than there may be");
        // They have just come: nobody had the time to need them.
        spare.release_unused();
        assert_eq!(spare.len(), 10);
        // Three at a time are needed, however often.
        for _ in 0..5 {
            let lent: Vec<_> = std::iter::repeat_with(|| spare.take().unwrap())
                .take(3)
                .collect();
            assert_eq!(lent, [9, 8, 7]);
            lent.into_iter()
                .rev()
                .for_each(|one| spare.give_back(one, 10));
        }
        spare.release_unused();
        assert_eq!(spare.len(), 3);
        for _ in 0..5 {
            let one = spare.take().unwrap();
            spare.give_back(one, 10);
        }
        spare.release_unused();
        assert_eq!(spare.take(), Some(9), "the one that was used last");
        assert_eq!(spare.take(), None);
        // Out all the time: none of those that come back was there all the time.
        spare.give_back(1, 10);
        spare.release_unused();
        assert_eq!(spare.len(), 1);
        spare.release_unused();
        assert_eq!(spare.len(), 0);
    }

    #[test]
    fn a_moment_with_many_at_a_time_is_forgotten() {
        let spare: Spare<Vec<u8>> = Spare::default();
        for _ in 0..64 {
            spare.give_back(Vec::new(), 64);
        }
        for _ in 0..3 {
            let one = spare.take().unwrap();
            spare.give_back(one, 64);
            spare.release_unused();
        }
        assert_eq!(spare.len(), 1);
        assert!(spare.clear());
        assert!(!spare.clear());
    }
}
