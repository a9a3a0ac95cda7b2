//! The line of a queue: the seats of requests that wait, in the order in which they are served.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound::{Excluded, Unbounded};
use std::ops::RangeInclusive;
use std::task::Waker;
use std::time::Duration;

use evenkeel_core::time::Instant;

use super::policy::{Class, HIGHEST, Policy};
use crate::shares_by_key::{KeyShares, Share};

/// Requests before one are counted up to this number, as counting takes time.
const MOST_AHEAD: usize = 255;

/// Place in the line: class, then the start of the request's share (0 without shares), and then order of arrival.
pub(super) type Key = (Reverse<Class>, u64, u64);

#[derive(Debug)]
pub(super) struct Line {
    pub(super) policy: Policy,
    pub(super) seats: BTreeMap<Key, Seat>,
    /// Requests that were refused and do not know it yet.
    pub(super) refused: BTreeSet<u64>,
    /// Requests that are to look: see [`Seat::is_called`].
    pub(super) called: BTreeSet<Key>,
    /// Requests that have not looked since they came, because others were called at that time.
    pub(super) fresh: BTreeSet<Key>,
    /// Requests that will not be offered all outstanding vacancies, since they came after them and
    /// stand before others.
    pub(super) skipped: BTreeSet<Key>,
    pub(super) arrivals: u64,
    /// Requests that keep their turn: see `QueuePosition::wait_late`.
    pub(super) late: BTreeSet<Key>,
    /// Tokens that keys were given, if requests have keys.
    pub(super) shares: KeyShares,
    /// Vacancies that were told to somebody who has not answered yet.
    pub(super) outstanding: usize,
    /// Time since which all requests that were served had waited for too long; in an overload, time
    /// at which a request last had.
    pub(super) slow: Option<Instant>,
    pub(super) is_overloaded: bool,
    pub(super) refusals: u64,
}

/// Places of a class.
fn places_of(class: Reverse<Class>) -> RangeInclusive<Key> {
    (class, 0, 0)..=(class, u64::MAX, u64::MAX)
}

/// Seat of a waiting request.
#[derive(Debug)]
pub(super) struct Seat {
    pub(super) since: Instant,
    /// Vacancies that it was told of and has not answered yet.
    pub(super) vacancies: usize,
    /// True if the request is to look in any case.
    pub(super) looks: bool,
    /// True if the request waits though there is room: see `QueuePosition::hold`.
    pub(super) is_held: bool,
    /// Share of the request's key that it takes if it is served.
    pub(super) share: Option<Share>,
    /// Absent until it has waited for the first time.
    pub(super) waker: Option<Waker>,
}

impl Seat {
    pub(super) fn is_called(&self) -> bool {
        self.looks || self.vacancies > 0
    }

    pub(super) fn wake(&self) {
        if let Some(waker) = &self.waker {
            waker.wake_by_ref();
        }
    }
}

impl Line {
    /// True if the newest of a class is served first. With shares by key, the first of a class is the one whose key was
    /// given the least, in an overload, too.
    pub(super) fn is_newest_first(&self) -> bool {
        self.is_overloaded && !self.shares.is_used()
    }

    /// Takes the call of a request back, if one that keeps its turn stands before it. Returns true if that is so.
    pub(super) fn pass_over(&mut self, key: Key) -> bool {
        if self.late.first().is_none_or(|first| *first >= key) {
            return false;
        }
        let Some(seat) = self.seats.get_mut(&key) else {
            return false;
        };
        seat.looks = false;
        let vacancies = std::mem::take(&mut seat.vacancies);
        // Those that came meanwhile are called anew when the last vacancy is settled, this one not.
        self.called.remove(&key);
        self.fresh.remove(&key);
        self.settle_vacancies(vacancies);
        true
    }

    /// Returns the requests that wait after `last`, or all, in the order in which they are served.
    pub(super) fn in_order(&self, last: Option<Key>) -> Box<dyn Iterator<Item = Key> + '_> {
        if !self.is_newest_first() {
            let after = last.map_or(Unbounded, Excluded);
            return Box::new(self.seats.range((after, Unbounded)).map(|(key, _)| *key));
        }
        let rest = last.into_iter().flat_map(|(class, start, number)| {
            let newer = self
                .seats
                .range((class, 0, 0)..(class, start, number))
                .rev();
            newer.map(|(key, _)| *key)
        });
        let next = last.map_or(Some(HIGHEST), |(class, ..)| class.0.checked_sub(1));
        let classes = next
            .into_iter()
            .flat_map(|highest| (0..=highest).rev().map(Reverse));
        let others = classes.flat_map(|class| {
            let of_class = self.seats.range(places_of(class)).rev();
            of_class.map(|(key, _)| *key)
        });
        Box::new(rest.chain(others))
    }

    /// Returns the number of requests before `key`, up to [`MOST_AHEAD`].
    pub(super) fn ahead(&self, key: Key) -> usize {
        let before = |other: Key| match self.is_newest_first() {
            false => other < key,
            true => (other.0, Reverse(other.2)) < (key.0, Reverse(key.2)),
        };
        let seats = self.in_order(None).take(MOST_AHEAD);
        seats.take_while(|other| before(*other)).count()
    }

    /// Tells one of a vacancy: the first that is not called, or else the first.
    pub(super) fn call_one(&mut self) {
        let first_idle = {
            let mut order = self.in_order(None);
            order.find(|key| self.seats.get(key).is_some_and(|seat| !seat.is_called()))
        };
        let first = first_idle.or_else(|| self.in_order(None).next());
        if let Some(key) = first {
            self.tell_vacancies(key, 1);
        }
    }

    pub(super) fn tell_vacancies(&mut self, key: Key, vacancies: usize) {
        if let Some(seat) = self.seats.get_mut(&key) {
            seat.vacancies += vacancies;
            self.called.insert(key);
            self.outstanding += vacancies;
            seat.wake();
        }
    }

    /// `key` has answered to `vacancies`, and has left so many of them to the next.
    pub(super) fn answer(&mut self, key: Key, vacancies: usize, left: usize) {
        if left > 0 {
            let next = self.in_order(Some(key)).next();
            if let Some(next) = next {
                self.tell_vacancies(next, left);
            }
        }
        self.settle_vacancies(vacancies);
    }

    /// Notes that this number of vacancies is no longer outstanding. After the last vacancy, the
    /// requests that came meanwhile look.
    pub(super) fn settle_vacancies(&mut self, vacancies: usize) {
        self.outstanding = self.outstanding.saturating_sub(vacancies);
        if self.outstanding == 0 {
            self.skipped.clear();
            for key in std::mem::take(&mut self.fresh) {
                if let Some(seat) = self.seats.get_mut(&key) {
                    seat.looks = true;
                    self.called.insert(key);
                    seat.wake();
                }
            }
        }
    }

    /// Takes one out of the line; its vacancies go to the next.
    pub(super) fn remove(&mut self, key: Key) -> Option<Seat> {
        self.called.remove(&key);
        self.fresh.remove(&key);
        self.skipped.remove(&key);
        let seat = self.seats.remove(&key)?;
        self.answer(key, seat.vacancies, seat.vacancies);
        self.end_turn(key);
        if self.seats.is_empty() && !self.is_overloaded {
            self.slow = None;
        }
        Some(seat)
    }

    /// Notes that a request keeps its turn no longer: the next one may look.
    pub(super) fn end_turn(&mut self, key: Key) {
        if self.late.remove(&key) {
            self.call_one();
        }
    }

    /// Returns the lowest start among the requests of a class.
    pub(super) fn first_start(&self, class: Reverse<Class>) -> Option<u64> {
        let mut of_class = self.seats.range(places_of(class));
        of_class.next().map(|((_, start, _), _)| *start)
    }

    /// Gives the share of a request back that was not served.
    pub(super) fn give_share_back(&mut self, seat: &Seat, key: Key) {
        if let Some(share) = &seat.share {
            self.shares.give_back(share, key.1);
        }
    }

    /// Refuses one that waits.
    pub(super) fn refuse(&mut self, key: Key) {
        if let Some(seat) = self.remove(key) {
            self.give_share_back(&seat, key);
            self.refusals += 1;
            self.refused.insert(key.2);
            seat.wake();
        }
    }

    /// The last one of the lowest class: in an overload the one that has waited for longest.
    pub(super) fn last(&self) -> Option<Key> {
        let (&last, _) = self.seats.last_key_value()?;
        match self.is_newest_first() {
            false => Some(last),
            true => {
                let mut of_class = self.seats.range((last.0, 0, 0)..);
                of_class.next().map(|(key, _)| *key)
            }
        }
    }

    /// Notes that a request was served that had `waited` for this time.
    pub(super) fn served_after(&mut self, waited: Duration, now: Instant) {
        let Some(target) = self.policy.target else {
            return;
        };
        if self.is_overloaded {
            return;
        }
        if waited <= target || self.seats.is_empty() {
            self.slow = None;
            return;
        }
        let since = *self.slow.get_or_insert(now);
        if now.since(since) >= self.policy.interval {
            self.is_overloaded = true;
            self.slow = Some(now);
            self.call_one();
        }
    }

    /// Refuses who has waited for too long in an overload, which ends when nobody has for a while.
    pub(super) fn shed(&mut self, now: Instant) {
        let (Some(target), true) = (self.policy.target, self.is_overloaded) else {
            return;
        };
        let mut spare = self.seats.len().saturating_sub(self.policy.keep);
        let is_by_arrival = !self.shares.is_used();
        for class in (0..=HIGHEST).map(Reverse) {
            let mut of_class = self.seats.range(places_of(class));
            let too_long = |(_, seat): &(&Key, &Seat)| now.since(seat.since) > target;
            // Without shares they are in the order of their arrival.
            let old: Vec<Key> = of_class
                .by_ref()
                .take_while(|one| !is_by_arrival || too_long(one))
                .filter(|one| too_long(one) && !one.1.is_held)
                .map(|(key, _)| *key)
                .take(spare.saturating_add(1))
                .collect();
            if !old.is_empty() {
                self.slow = Some(now);
            }
            for key in old.into_iter().take(spare) {
                spare -= 1;
                self.refuse(key);
            }
        }
        if self
            .slow
            .is_none_or(|last| now.since(last) >= self.policy.interval)
        {
            self.is_overloaded = false;
            self.slow = None;
            // The order is another one now: who is first looks, and all the others after it.
            self.call_one();
        }
    }
}
