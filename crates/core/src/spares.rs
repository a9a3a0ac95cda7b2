//! Records for members that have served nobody yet.
//!
//! A [`Record`] is most of what a member takes in memory, and many of the members of a large cluster serve nobody for
//! hours. So a slot gets its record with its first request. No request allocates: the record is a spare one, of which
//! some are made when groups are, and others by rounds of control in the place of those that were taken.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwapOption;

use crate::observe::Record;

/// Most spare records: 1 MB. If more members than this serve for the first time between two rounds, the others allocate.
const MOST: usize = 512;

/// Spare records of the process: they hold nothing that one group could learn of another.
static SPARES: Spares = Spares::new();

/// Takes a spare record, or makes a record if none is left.
pub(crate) fn take_record() -> Arc<Record> {
    SPARES.take_record()
}

/// Makes sure that `count` members can serve for the first time without an allocation, up to [`MOST`].
pub(crate) fn reserve_records(count: usize) {
    SPARES.reserve(count);
}

/// Makes spare records in the place of those that members have taken. To be called by rounds of control.
pub fn refill_records() {
    SPARES.refill();
}

/// Spare records that any worker takes without a lock.
struct Spares {
    places: [ArcSwapOption<Record>; MOST],
    /// Number of places that are to be filled, the first ones.
    wanted: AtomicUsize,
    /// Number of spare records that nobody has begun to take.
    left: AtomicUsize,
    /// Number of the place at which the next record is looked for, modulo `wanted`.
    next: AtomicUsize,
    /// Held while places are filled.
    filling: Mutex<()>,
}

impl Spares {
    const fn new() -> Self {
        Spares {
            places: [const { ArcSwapOption::const_empty() }; MOST],
            wanted: AtomicUsize::new(0),
            left: AtomicUsize::new(0),
            next: AtomicUsize::new(0),
            filling: Mutex::new(()),
        }
    }

    #[cold]
    fn take_record(&self) -> Arc<Record> {
        let less = |left: usize| left.checked_sub(1);
        let (success, failure) = (Ordering::AcqRel, Ordering::Acquire);
        if self.left.fetch_update(success, failure, less).is_ok() {
            let wanted = self.wanted.load(Ordering::Acquire).clamp(1, MOST);
            for _ in 0..wanted {
                let place = self.next.fetch_add(1, Ordering::Relaxed) % wanted;
                let place = self.places.get(place);
                if let Some(record) = place.and_then(|place| place.swap(None)) {
                    return record;
                }
            }
            // Others have been faster at each place.
            self.left.fetch_add(1, Ordering::AcqRel);
        }
        Arc::default()
    }

    fn reserve(&self, count: usize) {
        self.wanted.fetch_max(count.min(MOST), Ordering::AcqRel);
        self.refill();
    }

    fn refill(&self) {
        let wanted = self.wanted.load(Ordering::Acquire);
        if self.left.load(Ordering::Acquire) >= wanted {
            return;
        }
        let _one_at_a_time = { self.filling.lock() }.unwrap_or_else(PoisonError::into_inner);
        for place in self.places.iter().take(wanted) {
            if place.load().is_none() {
                place.store(Some(Arc::default()));
                self.left.fetch_add(1, Ordering::AcqRel);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count_filled(spares: &Spares) -> usize {
        let places = spares.places.iter();
        places.filter(|place| place.load().is_some()).count()
    }

    #[test]
    fn each_record_is_taken_once_and_replaced_by_a_round() {
        let spares = Spares::new();
        // Nothing was reserved: records are made.
        spares.refill();
        drop(spares.take_record());
        assert_eq!(count_filled(&spares), 0);
        spares.reserve(20);
        spares.reserve(10);
        assert_eq!(count_filled(&spares), 20);
        let taken: Vec<_> = (0..25).map(|_| spares.take_record()).collect();
        assert_eq!(count_filled(&spares), 0);
        let mut addresses: Vec<_> = taken.iter().map(Arc::as_ptr).collect();
        addresses.sort_unstable();
        addresses.dedup();
        assert_eq!(addresses.len(), 25);
        spares.refill();
        assert_eq!(count_filled(&spares), 20);
        assert_eq!(spares.left.load(Ordering::Relaxed), 20);
        spares.reserve(usize::MAX);
        assert_eq!(count_filled(&spares), MOST);
    }

    #[test]
    fn workers_that_take_records_at_once_get_different_ones() {
        let spares = Spares::new();
        spares.reserve(100);
        let take = || (0..1_000).map(|_| spares.take_record()).collect::<Vec<_>>();
        let all: Vec<_> = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..4).map(|_| scope.spawn(take)).collect();
            for _ in 0..100 {
                spares.refill();
            }
            workers
                .into_iter()
                .flat_map(|of| of.join().unwrap())
                .collect()
        });
        let mut addresses: Vec<_> = all.iter().map(Arc::as_ptr).collect();
        addresses.sort_unstable();
        addresses.dedup();
        assert_eq!(addresses.len(), 4_000);
        spares.refill();
        assert_eq!(count_filled(&spares), 100);
    }
}
