//! The transactions that this process has in flight.
//!
//! A handle is an index into one fixed table and the *generation* of its entry, so that
//! starting one is to find a free entry, and a handle that is over, or never was, is told
//! by a compare. Nothing here grows: when the table is full of transactions that nobody
//! stops, a new one takes the place of one of them.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};

use crate::layout::IN_FLIGHT_MAX;

/// Threads are dealt into so many groups; those of one group share lanes, and start to
/// look for a free entry at the same place.
pub(crate) const STRIPES: usize = 16;

/// Facts that are remembered of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Transaction {
    /// Index of the transaction's class.
    pub(crate) class: u16,
    /// Lane on which the transaction was counted when it started.
    pub(crate) lane: u16,
    /// Time when the transaction started.
    pub(crate) start: u64,
    /// The number of its start, if nothing else was in flight then; else 0.
    pub(crate) alone: u64,
    pub(crate) client: Option<u64>,
    /// Queueing time of the transaction, in nanoseconds.
    pub(crate) wait: Option<u64>,
}

/// All that can be in flight in this process.
pub(crate) struct Table {
    /// A bit is set for an entry that is in use.
    used: Used,
    entries: [Entry; IN_FLIGHT_MAX],
    /// Number that chooses the entry that is taken next if all are in use.
    victim: AtomicU32,
}

/// Each stripe's part is whole cache lines.
#[repr(align(128))]
struct Used([AtomicU64; WORDS]);

const WORDS: usize = IN_FLIGHT_MAX / 64;
const INDEX_BITS: u32 = IN_FLIGHT_MAX.ilog2();
/// Generations are from 1 to this, so that a handle is positive in 32 bits.
const GENERATION_MAX: u32 = (1 << (31 - INDEX_BITS)) - 1;

#[repr(align(64))]
struct Entry {
    /// The generation of the last transaction here, times two, and whether it runs.
    state: AtomicU32,
    /// Class (high half) and lane.
    place: AtomicU32,
    start: AtomicU64,
    alone: AtomicU64,
    client: AtomicU64,
    wait: AtomicU64,
    /// Flags of the optional fields above that have a value.
    given: AtomicU32,
}

const CLIENT: u32 = 1;
const WAIT: u32 = 2;
const RUNS: u32 = 1;

impl Table {
    pub(crate) const fn new() -> Self {
        Self {
            used: Used([const { AtomicU64::new(0) }; WORDS]),
            entries: [const { Entry::new() }; IN_FLIGHT_MAX],
            victim: AtomicU32::new(0),
        }
    }

    /// Remembers a transaction: its handle, and the one that had to make place for it.
    #[inline]
    pub(crate) fn start(
        &self,
        stripe: usize,
        transaction: &Transaction,
    ) -> Option<(i32, Option<Transaction>)> {
        let (index, ousted) = match self.claim(stripe) {
            Some(index) => (index, None),
            None => self.oust()?,
        };
        let entry = self.entries.get(index)?;
        let last = entry.state.load(Relaxed) >> 1;
        let generation = if last >= GENERATION_MAX { 1 } else { last + 1 };
        entry.write(transaction);
        entry.state.store(generation << 1 | RUNS, Release);
        let handle = (generation << INDEX_BITS) | index as u32;
        Some((handle.cast_signed(), ousted))
    }

    /// The transaction of a handle, which is over with this.
    #[inline]
    pub(crate) fn stop(&self, handle: i32) -> Option<Transaction> {
        let (index, entry, runs) = self.find(handle)?;
        let transaction = entry.read();
        // Who makes this change has the entry; so what was read above is of this handle.
        let over = entry
            .state
            .compare_exchange(runs, runs & !RUNS, AcqRel, Relaxed);
        over.ok()?;
        self.release(index);
        Some(transaction)
    }

    /// The class of a running transaction.
    pub(crate) fn class_of(&self, handle: i32) -> Option<u16> {
        self.find(handle).map(|(_, entry, _)| entry.read().class)
    }

    /// Changes what is remembered of a running transaction.
    #[inline]
    pub(crate) fn update(&self, handle: i32, client: Option<u64>, wait: Option<u64>) -> bool {
        let Some((_, entry, _)) = self.find(handle) else {
            return false;
        };
        // Stopped by another thread at this very moment, this may be taken for the next
        // transaction's: a wrong client or wait, and an application that races itself.
        entry.give(client, wait);
        true
    }

    /// Forgets the transactions of some classes; `forgotten` is told each.
    pub(crate) fn forget_classes(
        &self,
        of: impl Fn(u16) -> bool,
        mut forgotten: impl FnMut(Transaction),
    ) {
        for (word, used) in self.used.0.iter().enumerate() {
            let mut bits = used.load(Acquire);
            while bits != 0 {
                let index = word * 64 + bits.trailing_zeros() as usize;
                bits &= bits - 1;
                let Some(entry) = self.entries.get(index) else {
                    continue;
                };
                let runs = entry.state.load(Acquire);
                let transaction = entry.read();
                if runs & RUNS == 0 || !of(transaction.class) {
                    continue;
                }
                let over = entry
                    .state
                    .compare_exchange(runs, runs & !RUNS, AcqRel, Relaxed);
                if over.is_ok() {
                    self.release(index);
                    forgotten(transaction);
                }
            }
        }
    }

    /// Forgets everything: for a process that has one thread, and that these transactions
    /// are not of.
    pub(crate) fn forget_all(&self) {
        self.forget_classes(|_| true, |_| ());
        // What another thread was about to take in the process this one was copied from.
        for used in &self.used.0 {
            used.store(0, Relaxed);
        }
    }

    /// Finds a free entry and takes it.
    #[inline]
    fn claim(&self, stripe: usize) -> Option<usize> {
        let first = stripe % STRIPES * (WORDS / STRIPES);
        for word in (first..WORDS).chain(0..first) {
            let Some(used) = self.used.0.get(word) else {
                continue;
            };
            let mut seen = used.load(Relaxed);
            while seen != u64::MAX {
                let bit = (!seen).trailing_zeros();
                seen = used.fetch_or(1 << bit, Acquire);
                if seen & 1 << bit == 0 {
                    return Some(word * 64 + bit as usize);
                }
            }
        }
        None
    }

    #[inline]
    fn release(&self, index: usize) {
        if let Some(used) = self.used.0.get(index / 64) {
            used.fetch_and(!(1 << (index % 64)), Release);
        }
    }

    /// Takes an entry whose transaction has not stopped. Starts that fail here did so
    /// because others took the same entries at the same time.
    #[cold]
    fn oust(&self) -> Option<(usize, Option<Transaction>)> {
        for _ in 0..64 {
            let index = self.victim.fetch_add(1, Relaxed) as usize % IN_FLIGHT_MAX;
            let entry = self.entries.get(index)?;
            let runs = entry.state.load(Acquire);
            if runs & RUNS == 0 {
                continue;
            }
            let transaction = entry.read();
            let over = entry
                .state
                .compare_exchange(runs, runs & !RUNS, AcqRel, Relaxed);
            if over.is_ok() {
                // Its bit stays set, so that the entry is nobody else's.
                return Some((index, Some(transaction)));
            }
        }
        None
    }

    #[inline]
    fn find(&self, handle: i32) -> Option<(usize, &Entry, u32)> {
        let handle = u32::try_from(handle).ok()?;
        let index = handle as usize % IN_FLIGHT_MAX;
        let runs = handle >> INDEX_BITS << 1 | RUNS;
        let entry = self.entries.get(index)?;
        (entry.state.load(Acquire) == runs).then_some((index, entry, runs))
    }
}

impl Entry {
    const fn new() -> Self {
        Self {
            state: AtomicU32::new(0),
            place: AtomicU32::new(0),
            start: AtomicU64::new(0),
            alone: AtomicU64::new(0),
            client: AtomicU64::new(0),
            wait: AtomicU64::new(0),
            given: AtomicU32::new(0),
        }
    }

    #[inline]
    fn write(&self, transaction: &Transaction) {
        let place = u32::from(transaction.class) << 16 | u32::from(transaction.lane);
        self.place.store(place, Relaxed);
        self.start.store(transaction.start, Relaxed);
        self.alone.store(transaction.alone, Relaxed);
        self.given.store(0, Relaxed);
        self.give(transaction.client, transaction.wait);
    }

    #[inline]
    fn give(&self, client: Option<u64>, wait: Option<u64>) {
        let mut given = self.given.load(Relaxed);
        if let Some(client) = client {
            self.client.store(client, Relaxed);
            given |= CLIENT;
        }
        if let Some(wait) = wait {
            self.wait.store(wait, Relaxed);
            given |= WAIT;
        }
        self.given.store(given, Relaxed);
    }

    #[inline]
    fn read(&self) -> Transaction {
        let place = self.place.load(Relaxed);
        let given = self.given.load(Relaxed);
        let of = |what, cell: &AtomicU64| (given & what != 0).then(|| cell.load(Relaxed));
        Transaction {
            class: (place >> 16) as u16,
            lane: place as u16,
            start: self.start.load(Relaxed),
            alone: self.alone.load(Relaxed),
            client: of(CLIENT, &self.client),
            wait: of(WAIT, &self.wait),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn transaction(start: u64) -> Transaction {
        Transaction {
            class: 3,
            lane: 4,
            start,
            alone: 5,
            client: None,
            wait: Some(7),
        }
    }

    fn started(table: &Table, start: u64) -> i32 {
        let (handle, ousted) = table.start(0, &transaction(start)).unwrap();
        assert!(handle > 0 && ousted.is_none());
        handle
    }

    #[test]
    fn a_handle_stops_its_transaction_once() {
        static TABLE: Table = Table::new();
        let table = &TABLE;
        let (one, two) = (started(table, 1), started(table, 2));
        assert!(table.update(one, Some(9), None));
        let first = Transaction {
            client: Some(9),
            ..transaction(1)
        };
        assert_eq!(table.stop(one), Some(first));
        assert_eq!(table.stop(one), None);
        assert!(!table.update(one, None, None));
        // The entry is used again, and the old handle is not the new one's.
        let three = started(table, 3);
        assert_eq!(table.stop(one), None);
        assert_eq!(table.stop(two), Some(transaction(2)));
        assert_eq!(table.stop(three), Some(transaction(3)));
    }

    #[test]
    fn any_number_is_a_handle_or_not() {
        static TABLE: Table = Table::new();
        let table = &TABLE;
        for handle in [0, 1, -1, i32::MIN, i32::MAX, 1 << INDEX_BITS] {
            assert_eq!(table.stop(handle), None, "{handle}");
        }
    }

    #[test]
    fn generations_wrap_and_never_make_a_handle_of_zero() {
        static TABLE: Table = Table::new();
        let table = &TABLE;
        for _ in 0..GENERATION_MAX + 2 {
            let handle = started(table, 1);
            assert!(table.stop(handle).is_some());
        }
    }

    #[test]
    fn who_never_stops_makes_place_when_all_places_are_taken() {
        static TABLE: Table = Table::new();
        let table = &TABLE;
        let first: Vec<_> = (0..IN_FLIGHT_MAX as u64)
            .map(|n| started(table, n))
            .collect();
        let (handle, ousted) = table.start(5, &transaction(77)).unwrap();
        let ousted = ousted.unwrap().start;
        for (start, handle) in first.iter().enumerate() {
            let stopped = table.stop(*handle).map(|stopped| stopped.start);
            assert_eq!(stopped, (start as u64 != ousted).then_some(start as u64));
        }
        assert_eq!(table.stop(handle), Some(transaction(77)));
        // All places are free again.
        for n in 0..IN_FLIGHT_MAX as u64 {
            started(table, n);
        }
    }

    #[test]
    fn some_are_forgotten() {
        static TABLE: Table = Table::new();
        let table = &TABLE;
        let handle = started(table, 1);
        let other = Transaction {
            class: 8,
            ..transaction(2)
        };
        let (kept, _) = table.start(0, &other).unwrap();
        let mut forgotten = Vec::new();
        table.forget_classes(
            |class| class == 3,
            |transaction| forgotten.push(transaction),
        );
        assert_eq!(forgotten, [transaction(1)]);
        assert_eq!(table.stop(handle), None);
        assert_eq!(table.stop(kept), Some(other));
    }

    #[test]
    fn threads_never_get_each_others_transactions() {
        static TABLE: Table = Table::new();
        let table = &TABLE;
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                scope.spawn(move || {
                    let mut running = std::collections::VecDeque::new();
                    for n in 0..20_000 {
                        let start = thread << 32 | n;
                        // Half of them look in the same place.
                        let at = (thread % 2) as usize;
                        let (handle, ousted) = table.start(at, &transaction(start)).unwrap();
                        assert!(ousted.is_none());
                        running.push_back((handle, start));
                        if running.len() > 100 {
                            let (handle, start) = running.pop_front().unwrap();
                            assert_eq!(table.stop(handle), Some(transaction(start)));
                        }
                    }
                });
            }
        });
    }
}
