//! A bound on how many do something at once.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Place of a bounded number of places, which is free again when this is dropped.
#[derive(Debug)]
pub struct LimitSlot<'a>(&'a AtomicUsize);

impl<'a> LimitSlot<'a> {
    /// Takes one of `most` places, if one is free. `taken` counts those that are taken.
    pub fn take(taken: &'a AtomicUsize, most: usize) -> Option<Self> {
        let place = LimitSlot(taken);
        // One too many is given back as the place is dropped.
        (taken.fetch_add(1, Ordering::Relaxed) < most).then_some(place)
    }
}

impl Drop for LimitSlot<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_bounded_and_come_back() {
        let taken = AtomicUsize::new(0);
        let first = LimitSlot::take(&taken, 2);
        let second = LimitSlot::take(&taken, 2);
        assert!(first.is_some() && second.is_some());
        assert!(LimitSlot::take(&taken, 2).is_none());
        assert_eq!(taken.load(Ordering::Relaxed), 2);
        drop(first);
        assert!(LimitSlot::take(&taken, 2).is_some());
        drop(second);
        assert_eq!(taken.load(Ordering::Relaxed), 0);
    }
}
