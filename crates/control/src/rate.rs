//! Rates and counts for each of many keys, such as the addresses of clients.
//!
//! A [`RateTable`] has a fixed number of places, shared by all threads without a lock. A place is
//! a key and one word of state (the generic cell rate algorithm: the time at which the key will
//! have used nothing), so a decision is a look at two cache lines and one exchange.
//!
//! What it guarantees to each key: at most `burst` at once and the rate over time, in any window;
//! and whoever stays below the rate is never refused. Both hold as long as the key keeps its place.
//! A key may have one of eight places. A place whose key has used nothing is free. Only if none of
//! the eight is free, a new key takes that of the key which has used least, which then begins anew:
//! it may have up to a burst more, and never less. So nobody can lock another key out, and the
//! table never grows. How often that happened is [counted](RateTable::evictions).

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use evenkeel_core::time::Instant;

/// A rate, and how many may come at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Nanoseconds that one takes.
    interval: u64,
    /// Time by which a key may be ahead of the rate.
    tolerance: u64,
}

impl Rate {
    /// `count` in the time `per`, and `burst` at once (both at least one).
    pub fn new(count: u32, per: Duration, burst: u32) -> Self {
        let per = u64::try_from(per.as_nanos()).unwrap_or(u64::MAX);
        let interval = (per / u64::from(count.max(1))).max(1);
        let ahead = u64::from(burst.max(1) - 1);
        Rate {
            interval,
            tolerance: interval.saturating_mul(ahead),
        }
    }

    /// Time that `count` take, and time by which a key may be ahead of the rate before it takes them, in nanoseconds.
    #[inline]
    fn of_many(&self, count: u32) -> (u64, u64) {
        let all = self.interval.saturating_mul(u64::from(count));
        let further = all.saturating_sub(self.interval);
        (all, self.tolerance.saturating_sub(further))
    }
}

/// Places of a cache line.
const WAYS: usize = 4;

#[derive(Debug, Default)]
struct Place {
    /// Key of the place, now or soon: the [owner](owner_of), or a [claim](claim_of); 0 is nobody.
    key: AtomicU64,
    /// Time at which the key will have used nothing, in nanoseconds.
    due: AtomicU64,
}

#[derive(Debug, Default)]
#[repr(align(64))]
struct Line([Place; WAYS]);

/// The state of many keys.
#[derive(Debug)]
pub struct RateTable {
    lines: Box<[Line]>,
    evictions: AtomicU64,
}

impl RateTable {
    /// Bytes of a place.
    pub const BYTES: usize = size_of::<Place>();

    /// A table of at least `places` places.
    pub fn new(places: usize) -> Self {
        let lines = places.div_ceil(WAYS).max(2);
        RateTable {
            lines: (0..lines).map(|_| Line::default()).collect(),
            evictions: AtomicU64::new(0),
        }
    }

    /// Takes one at `rate` for `key`, which is a hash that outsiders cannot predict.
    ///
    /// # Errors
    ///
    /// It has none left. After this time it has one.
    #[inline]
    pub fn take(&self, key: u64, now: Instant, rate: &Rate) -> Result<(), Duration> {
        self.take_many(key, 1, now, rate)
    }

    /// Takes `count` at `rate` for `key`. If `count` is larger than the burst, the key must have used nothing, and then
    /// has used more than the burst.
    ///
    /// # Errors
    ///
    /// The key has too few left. After the time in the error it has enough.
    #[inline]
    pub fn take_many(
        &self,
        key: u64,
        count: u32,
        now: Instant,
        rate: &Rate,
    ) -> Result<(), Duration> {
        let place = self.find_or_claim(owner_of(key), now);
        let now = now.as_nanos();
        let (all, most_ahead) = rate.of_many(count);
        let mut due = place.due.load(Ordering::Relaxed);
        loop {
            let from = due.max(now);
            let ahead = from - now;
            if ahead > most_ahead {
                return Err(Duration::from_nanos(ahead - most_ahead));
            }
            let next = from.saturating_add(all);
            let swapped =
                place
                    .due
                    .compare_exchange_weak(due, next, Ordering::Relaxed, Ordering::Relaxed);
            match swapped {
                Ok(_) => return Ok(()),
                Err(other) => due = other,
            }
        }
    }

    /// Checks that [`RateTable::take`] would find one for `key`. Nothing is remembered for that.
    ///
    /// # Errors
    ///
    /// The key has none left. After the time in the error it has one.
    #[inline]
    pub fn check_key(&self, key: u64, now: Instant, rate: &Rate) -> Result<(), Duration> {
        self.check_many(key, 1, now, rate)
    }

    /// Checks that [`RateTable::take_many`] would find `count` for `key`. Nothing is remembered for that.
    ///
    /// # Errors
    ///
    /// The key has too few left. After the time in the error it has enough.
    #[inline]
    pub fn check_many(
        &self,
        key: u64,
        count: u32,
        now: Instant,
        rate: &Rate,
    ) -> Result<(), Duration> {
        let Some(place) = self.find(owner_of(key)) else {
            return Ok(());
        };
        let ahead = place
            .due
            .load(Ordering::Relaxed)
            .saturating_sub(now.as_nanos());
        match ahead.checked_sub(rate.of_many(count).1) {
            None | Some(0) => Ok(()),
            Some(more) => Err(Duration::from_nanos(more)),
        }
    }

    /// Gives back what [`RateTable::take`] has taken.
    pub fn give_back(&self, key: u64, rate: &Rate) {
        self.give_back_many(key, 1, rate);
    }

    /// Takes `count` for `key`, also if the key has too few left: then the key waits the longer.
    pub fn charge(&self, key: u64, count: u32, now: Instant, rate: &Rate) {
        let place = self.find_or_claim(owner_of(key), now);
        let more = |due: u64| {
            Some(
                due.max(now.as_nanos())
                    .saturating_add(rate.of_many(count).0),
            )
        };
        let _ = place
            .due
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
    }

    /// Gives back `count` of what [`RateTable::take_many`] has taken.
    pub fn give_back_many(&self, key: u64, count: u32, rate: &Rate) {
        if let Some(place) = self.find(owner_of(key)) {
            let less = |due: u64| Some(due.saturating_sub(rate.of_many(count).0));
            let _ = place
                .due
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        }
    }

    #[inline]
    fn places(&self, key: u64) -> impl Iterator<Item = &Place> {
        lines_of(&self.lines, key).flat_map(|line| &line.0)
    }

    #[inline]
    fn find(&self, key: u64) -> Option<&Place> {
        self.places(key)
            .find(|place| place.key.load(Ordering::Relaxed) == key)
    }

    #[inline]
    fn find_or_claim(&self, key: u64, now: Instant) -> &Place {
        match self.find(key) {
            Some(place) => place,
            None => self.claim(key, now),
        }
    }

    /// Gives `key` the place that is missed least.
    ///
    /// Threads may do so for the same key at once, and may choose different places, as what one does
    /// changes what the next one sees. So a place is first [claimed](claim_of), in which state nobody finds
    /// it, and is the key's only once no other one is: whoever claims later ends the claims before.
    fn claim(&self, key: u64, now: Instant) -> &Place {
        let now = now.as_nanos();
        let claim = claim_of(key);
        let turn = |place: &Place, from: u64, to: u64| {
            let turned = place
                .key
                .compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst);
            turned.is_ok()
        };
        loop {
            if let Some(place) = self.find(key) {
                return place;
            }
            let due = |place: &&Place| place.due.load(Ordering::Relaxed);
            let busy = |line: &&Line| line.0.iter().filter(|place| due(place) > now).count();
            // That in the emptier line: so both fill alike, and rarely both are full.
            let least = lines_of(&self.lines, key)
                .min_by_key(busy)
                .and_then(|line| line.0.iter().min_by_key(due))
                .filter(|place| due(place) <= now)
                .or_else(|| self.places(key).min_by_key(due));
            let Some(place) = least else {
                // A table has lines, so this cannot be.
                continue;
            };
            let before = place.key.load(Ordering::SeqCst);
            // What the key before has used counts for nobody. That of one which has used nothing is
            // in the past, and stays.
            let owed = place.due.load(Ordering::Relaxed);
            if before == key || !turn(place, before, claim) {
                continue;
            }
            if owed > now {
                let reset =
                    place
                        .due
                        .compare_exchange(owed, now, Ordering::Relaxed, Ordering::Relaxed);
                if reset.is_ok() && before != claim {
                    self.evictions.fetch_add(1, Ordering::Relaxed);
                }
            }
            let mut found = None;
            for other in self.places(key) {
                if std::ptr::eq(other, place) {
                    continue;
                }
                // Of another thread, which then begins anew, unless the place is the key's by now.
                turn(other, claim, 0);
                if other.key.load(Ordering::SeqCst) == key {
                    found = Some(other);
                }
            }
            if let Some(found) = found {
                turn(place, claim, 0);
                return found;
            }
            if turn(place, claim, key) {
                return place;
            }
        }
    }

    /// Keys that have lost their place though they were not idle.
    pub fn evictions(&self) -> u64 {
        self.evictions.load(Ordering::Relaxed)
    }

    /// Keys that are not idle. Looks at all places.
    pub fn count_used(&self, now: Instant) -> usize {
        let now = now.as_nanos();
        let all = self.lines.iter().flat_map(|line| &line.0);
        all.filter(|place| place.due.load(Ordering::Relaxed) > now)
            .count()
    }

    /// Places of the table.
    pub fn places_in_all(&self) -> usize {
        self.lines.len() * WAYS
    }
}

/// A key as it stands in a place that is its own.
#[inline]
fn owner_of(key: u64) -> u64 {
    key | 0b11
}

/// The owner as it stands in a place that it may get.
fn claim_of(owner: u64) -> u64 {
    owner & !1
}

/// The two lines in which a key may be.
#[inline]
fn lines_of<T>(lines: &[T], key: u64) -> impl Iterator<Item = &T> {
    let at = |half: u32| (u64::from(half) * lines.len() as u64) >> 32;
    let [first, second] = [at((key >> 32) as u32), at(key as u32)];
    // Where both halves name the same line, the other one is its neighbour.
    let second = if first == second { second ^ 1 } else { second };
    let second = second.min(lines.len() as u64 - 1);
    [first, second]
        .into_iter()
        .filter_map(|at| lines.get(at as usize))
}

/// Counts of a cache line.
const COUNTS: usize = 8;

/// Bits of a count; the others are the key's.
const COUNT_BITS: u32 = 24;
const COUNT: u64 = (1 << COUNT_BITS) - 1;

#[derive(Debug, Default)]
#[repr(align(64))]
struct Counts([AtomicU64; COUNTS]);

/// Counts of something for each of many keys, such as open connections.
///
/// A key may be in one of sixteen places. If other keys have all of them, the key is not counted:
/// it is not limited then, but nobody is kept out. Such cases are [counted](CountTable::overflows),
/// too.
#[derive(Debug)]
pub struct CountTable {
    lines: Box<[Counts]>,
    overflows: AtomicU64,
}

/// Answer of [`CountTable::enter`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CountResult {
    /// The key has one more; [`CountTable::leave`] gives it back.
    Counted(u32),
    /// There is no place for the key.
    Uncounted,
    /// The key has as many as it may have.
    Full,
}

impl CountTable {
    /// Bytes of a place.
    pub const BYTES: usize = size_of::<AtomicU64>();

    /// A table of at least `places` places.
    pub fn new(places: usize) -> Self {
        let lines = places
            .div_ceil(COUNTS)
            .clamp(2, (u32::MAX as usize) / COUNTS);
        CountTable {
            lines: (0..lines).map(|_| Counts::default()).collect(),
            overflows: AtomicU64::new(0),
        }
    }

    /// Counts one more for `key`, which is a hash that outsiders cannot predict, if it has fewer
    /// than `most`.
    pub fn enter(&self, key: u64, most: u32) -> CountResult {
        let most = u64::from(most).min(COUNT);
        // The upper bits, of which there are enough to tell sixteen keys apart.
        let tag = key >> COUNT_BITS << COUNT_BITS;
        let tag = tag.max(1 << COUNT_BITS);
        loop {
            let known = self.places(key).find(|place| is_of(place, tag));
            let place = known.or_else(|| {
                // In the emptier line: so both fill alike, and rarely both are full.
                let free = |line: &&Counts| line.0.iter().filter(is_free).count();
                let line = lines_of(&self.lines, key).max_by_key(free)?;
                line.0.iter().find(is_free)
            });
            let Some(place) = place else {
                self.overflows.fetch_add(1, Ordering::Relaxed);
                return CountResult::Uncounted;
            };
            let before = place.load(Ordering::Acquire);
            let next = match before {
                0 if known.is_some() => continue,
                0 if most > 0 => tag | 1,
                _ if before & !COUNT != tag => continue,
                _ if before & COUNT >= most => return CountResult::Full,
                _ => before + 1,
            };
            let swapped = place.compare_exchange(before, next, Ordering::AcqRel, Ordering::Acquire);
            if swapped.is_err() {
                continue;
            }
            // Two that came at once may have taken a place each: whoever sees that gives his back. One that
            // was there before counts unless another one is found first.
            let mut of_key = self.places(key).filter(|place| is_of(place, tag));
            let is_other = |other: &AtomicU64| !std::ptr::eq(other, place);
            let split = match known {
                None => of_key.any(is_other),
                Some(_) => of_key.next().is_some_and(is_other),
            };
            if split {
                give_back(place);
                continue;
            }
            return self
                .index_of(place)
                .map_or(CountResult::Uncounted, CountResult::Counted);
        }
    }

    /// Takes one away where [`CountTable::enter`] has counted.
    pub fn leave(&self, index: u32) {
        let index = index as usize;
        let place = self
            .lines
            .get(index / COUNTS)
            .and_then(|line| line.0.get(index % COUNTS));
        if let Some(place) = place {
            give_back(place);
        }
    }

    fn places(&self, key: u64) -> impl Iterator<Item = &AtomicU64> {
        lines_of(&self.lines, key).flat_map(|line| &line.0)
    }

    fn index_of(&self, place: &AtomicU64) -> Option<u32> {
        let begin = self.lines.as_ptr() as usize;
        let offset = (std::ptr::from_ref(place) as usize).checked_sub(begin)?;
        u32::try_from(offset / size_of::<AtomicU64>()).ok()
    }

    /// Returns how often a key was not counted.
    pub fn overflows(&self) -> u64 {
        self.overflows.load(Ordering::Relaxed)
    }

    /// Keys that have any. Looks at all places.
    pub fn count_used(&self) -> usize {
        let all = self.lines.iter().flat_map(|line| &line.0);
        all.filter(|place| !is_free(place)).count()
    }
}

fn is_free(place: &&AtomicU64) -> bool {
    place.load(Ordering::Acquire) == 0
}

fn is_of(place: &AtomicU64, tag: u64) -> bool {
    let word = place.load(Ordering::Acquire);
    word != 0 && word & !COUNT == tag
}

fn give_back(place: &AtomicU64) {
    let less = |word: u64| match word & COUNT {
        0 => None,
        1 => Some(0),
        _ => Some(word - 1),
    };
    let _ = place.fetch_update(Ordering::AcqRel, Ordering::Acquire, less);
}

#[cfg(test)]
mod tests;
