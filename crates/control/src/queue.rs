//! The queue of a group: requests that wait for a member, because all are at their limits or because
//! a busy one will have them done before any that is idle.
//!
//! The queue says whose turn it is to look for room, and how many requests are before it. How a
//! request waits is a matter of the code that carries requests, which leaves a [`Waker`].
//!
//! - Order: by class, the highest number first; within a class first come, first served.
//! - A member's place that has become free ([`Queue::vacate`]) calls one request, the first. If that
//!   cannot use it, since it waits for another member or has tried this one, the next is called, and
//!   so on: a vacancy is offered to each at most once, and is lost only if nobody can use it.
//! - A request that comes while others wait looks for room after those that were called, so that it
//!   takes nothing from them.
//! - Overload: when each request that was served over [`Policy::interval`] had waited for longer than
//!   [`Policy::target`], as in CoDel (Nichols and Jacobson, "Controlling Queue Delay", 2012). From
//!   then on until nobody has for as long, the newest of a class is served first (adaptive LIFO,
//!   Maurer, "Fail at Scale", 2015), those that have waited for longer than the target are refused,
//!   the lowest class first, and so is who comes with a lower class than all who wait. As many as
//!   [`Policy::keep`] stay in any case, so that no member runs out of work.
//! - Who comes to a full queue takes the place of the last one of a lower class.
//! - Shares: requests with a [`Share`] stand in their class by the tokens that their keys were given lately, and not by
//!   arrival, also in an overload ([`crate::shares_by_key`]). To a full queue, the last one of the same class gives way
//!   if its key has had more.
//! - A request that is [late](QueuePosition::wait_late) keeps its turn: nobody after it looks before it has left, so that
//!   a long request is not overtaken by short ones for ever.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound::{Excluded, Unbounded};
use std::ops::Deref;
use std::sync::atomic::{AtomicUsize, Ordering, fence};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;

use evenkeel_core::engines::ShareCharge;
use evenkeel_core::group::PickError;
use evenkeel_core::time::Instant;

use crate::shares_by_key::{KeyShares, Share};
use line::{Key, Line, Seat};
pub use policy::{Class, HIGHEST, Policy};

mod line;
mod policy;

/// Shortest time that [`QueuePosition::patience`] returns.
const LEAST_PATIENCE: Duration = Duration::from_millis(5);

/// Requests that wait. Any thread may use it; the lock is taken only while somebody waits.
#[derive(Debug)]
pub struct Queue {
    waiting: AtomicUsize,
    line: Mutex<Line>,
}

/// Reason why there is no place in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueRefusal {
    /// The queue is full.
    Full,
    /// There is an overload: others wait that are more urgent or newer.
    Overload,
}

/// Instruction to a waiting request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueInstruction {
    /// Look for room; so many wait before it.
    Look {
        /// Number of requests before it, 255 at most.
        ahead: u32,
    },
    /// Leave the queue.
    Refused,
}

impl Queue {
    /// A queue in which nobody waits.
    pub fn new(policy: Policy) -> Self {
        let line = Line {
            policy,
            seats: BTreeMap::new(),
            refused: BTreeSet::new(),
            called: BTreeSet::new(),
            fresh: BTreeSet::new(),
            skipped: BTreeSet::new(),
            arrivals: 0,
            late: BTreeSet::new(),
            shares: KeyShares::default(),
            outstanding: 0,
            slow: None,
            is_overloaded: false,
            refusals: 0,
        };
        Queue {
            waiting: AtomicUsize::new(0),
            line: Mutex::new(line),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something with the line, and counts again who waits.
    fn change<T>(&self, change: impl FnOnce(&mut Line) -> T) -> T {
        let mut line = self.lock();
        let answer = change(&mut line);
        self.waiting.store(line.seats.len(), Ordering::SeqCst);
        answer
    }

    /// Returns the policy in force.
    pub fn policy(&self) -> Policy {
        self.lock().policy
    }

    /// Sets the policy that holds from now on. Requests that already wait may stay.
    pub fn set_policy(&self, policy: Policy) {
        self.lock().policy = policy;
    }

    /// Requests that wait now.
    #[inline]
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::SeqCst)
    }

    /// Returns true if there is an overload.
    pub fn is_overloaded(&self) -> bool {
        self.waiting() > 0 && self.lock().is_overloaded
    }

    /// Requests that had a place and were refused, ever.
    pub fn refusals(&self) -> u64 {
        self.lock().refusals
    }

    /// A request leaves its member, by `leave`: calls who is to look for room. While it leaves
    /// nobody new looks, who would overtake those that wait.
    #[inline]
    pub fn vacate<T>(&self, leave: impl FnOnce() -> T) -> T {
        let is_awaited = self.waiting() > 0;
        if is_awaited {
            self.lock().outstanding += 1;
        }
        let left = leave();
        fence(Ordering::SeqCst);
        if is_awaited || self.waiting.load(Ordering::Relaxed) > 0 {
            self.vacated(is_awaited);
        }
        left
    }

    #[cold]
    fn vacated(&self, was_awaited: bool) {
        let mut line = self.lock();
        line.call_one();
        if was_awaited {
            line.settle_vacancies(1);
        }
    }

    /// Calls everybody: members are back, or new, or something else has changed.
    pub fn call_all(&self) {
        fence(Ordering::SeqCst);
        if self.waiting.load(Ordering::Relaxed) > 0 {
            let line = &mut *self.lock();
            line.called = line.seats.keys().copied().collect();
            for seat in line.seats.values_mut() {
                seat.looks = true;
                seat.wake();
            }
        }
    }

    /// Corrects what a request has taken from the share of its key to this number of tokens.
    pub fn correct_charge(&self, charge: &ShareCharge, tokens: u32) {
        // If nobody waits, all keys are equal.
        if self.waiting() > 0 {
            self.lock().shares.correct_charge(charge, tokens);
        }
    }

    /// The number ([`QueuePosition::number`]) of the first one that is called, if there is one: for those
    /// who have no wakers.
    pub fn first_called(&self) -> Option<u64> {
        let line = self.lock();
        let first = line.called.first()?;
        let newest = line
            .called
            .range(..=(first.0, u64::MAX, u64::MAX))
            .next_back()?;
        Some(if line.is_newest_first() {
            newest.2
        } else {
            first.2
        })
    }

    /// The numbers of those that are refused and still have their places.
    pub fn list_refused(&self) -> Vec<u64> {
        self.lock().refused.iter().copied().collect()
    }
}

/// A place in the queue, by whatever leads there.
#[derive(Debug)]
pub struct QueuePosition<Q: Deref<Target = Queue>> {
    queue: Q,
    key: Key,
    since: Instant,
    /// Vacancies that it looks for.
    vacancies: usize,
    /// True if the request would look without vacancies.
    looks_anyway: bool,
    is_held: bool,
    /// True if the request keeps its turn.
    is_late: bool,
}

impl<Q: Deref<Target = Queue>> QueuePosition<Q> {
    /// Takes a place, for as long as the answer lives.
    ///
    /// # Errors
    ///
    /// If the queue is full and nobody of a lower class is there, or if there is an overload and
    /// all who wait are of higher classes.
    pub fn enter(queue: Q, class: Class, now: Instant) -> Result<Self, QueueRefusal> {
        Self::enter_with_share(queue, class, None, now)
    }

    /// Takes a place like [`QueuePosition::enter`], in the order of shares by key if there is a `share`. A queue gets all
    /// requests with shares, or none.
    ///
    /// # Errors
    ///
    /// The errors of [`QueuePosition::enter`]; the queue is not full for a request whose key was given less than the last one's.
    pub fn enter_with_share(
        queue: Q,
        class: Class,
        share: Option<Share>,
        now: Instant,
    ) -> Result<Self, QueueRefusal> {
        let class = Reverse(class.min(HIGHEST));
        let key = queue.change(|line| {
            line.shed(now);
            let last = line.last();
            if line.is_overloaded && last.is_some_and(|(lowest, ..)| lowest < class) {
                return Err(QueueRefusal::Overload);
            }
            let start = share.map_or(0, |share| line.shares.start_of(&share));
            if line.seats.len() >= line.policy.limit {
                let later = last.filter(|(lowest, last, _)| (*lowest, *last) > (class, start));
                line.refuse(later.ok_or(QueueRefusal::Full)?);
            }
            // The one that was refused may have had the same key.
            let start = share.map_or(0, |share| line.shares.count_request(&share));
            line.arrivals += 1;
            let key = (class, start, line.arrivals);
            let looks = line.outstanding == 0;
            if looks {
                line.called.insert(key);
            } else {
                line.fresh.insert(key);
                let mut after = line.seats.range((Excluded(key), Unbounded));
                if line.is_overloaded || after.next().is_some() {
                    line.skipped.insert(key);
                }
            }
            let seat = Seat {
                since: now,
                vacancies: 0,
                looks,
                is_held: false,
                share,
                waker: None,
            };
            line.seats.insert(key, seat);
            Ok(key)
        })?;
        // Pairs with the fence in `vacate`: either who waits sees the member's place that became
        // free, or who freed it sees somebody waiting.
        fence(Ordering::SeqCst);
        Ok(QueuePosition {
            queue,
            key,
            since: now,
            vacancies: 0,
            looks_anyway: false,
            is_held: false,
            is_late: false,
        })
    }

    /// Returns the number of the place, which no other place in this queue has.
    pub fn number(&self) -> u64 {
        self.key.2
    }

    /// Returns the pointer to the queue.
    pub fn queue(&self) -> &Q {
        &self.queue
    }

    /// Returns what the request is to do now; `None` means to wait until `waker` is woken.
    pub fn next_turn(&mut self, now: Instant, waker: &Waker) -> Option<QueueInstruction> {
        let key = self.key;
        let mut looks_anyway = false;
        let (turn, vacancies) = self.queue.change(|line| {
            line.shed(now);
            let Some(is_called) = line.seats.get(&key).map(Seat::is_called) else {
                return (Some(QueueInstruction::Refused), 0);
            };
            let is_passed_over = is_called && line.pass_over(key);
            let Some(seat) = line.seats.get_mut(&key) else {
                return (Some(QueueInstruction::Refused), 0);
            };
            if !is_called || is_passed_over {
                match &mut seat.waker {
                    Some(known) => known.clone_from(waker),
                    none => *none = Some(waker.clone()),
                }
                return (None, 0);
            }
            line.called.remove(&key);
            let looks = std::mem::take(&mut seat.looks);
            let vacancies = std::mem::take(&mut seat.vacancies);
            looks_anyway = line.fresh.remove(&key) || looks;
            let ahead = line.ahead(key) as u32;
            (Some(QueueInstruction::Look { ahead }), vacancies)
        });
        self.vacancies += vacancies;
        self.looks_anyway = looks_anyway;
        turn
    }

    /// Looks for room by `look` when it is its turn; `None` is to wait on, as others are called meanwhile
    /// and come first.
    ///
    /// One that was told of no vacancy looks with the line locked: no place becomes free while it does so,
    /// which would be of those that are told of it.
    pub fn look_for_room<T>(&mut self, look: impl FnOnce() -> T) -> Option<T> {
        if self.vacancies > 0 {
            return Some(look());
        }
        let mut line = self.queue.lock();
        if line.outstanding == 0 {
            return Some(look());
        }
        line.fresh.insert(self.key);
        line.skipped.insert(self.key);
        None
    }

    /// Returns the time after which a held request should look again, though nothing has happened: the time that the
    /// request has waited, 5 ms at least. The event that the request waits for may never come.
    pub fn patience(&self, now: Instant) -> Duration {
        now.since(self.since).max(LEAST_PATIENCE)
    }

    /// Lets the request look again, though nothing has happened: time has passed. It does not look
    /// while others that were called have not looked yet: these come first.
    pub fn look_again(&mut self) {
        let key = self.key;
        let line = &mut *self.queue.lock();
        if line.outstanding > 0 {
            line.fresh.insert(key);
        } else if let Some(seat) = line.seats.get_mut(&key) {
            seat.looks = true;
            line.called.insert(key);
        }
    }

    /// Waits on after a look that has found no member for this reason. Returns true if the request waits for a better
    /// place, and is to look again after its [patience](Self::patience) even if nobody leaves.
    pub fn wait_on(&mut self, error: PickError) -> bool {
        match error {
            PickError::Late => self.wait_late(),
            PickError::Held => self.hold(),
            PickError::AllFull | PickError::NoneEligible => {
                self.pass_turn();
                return false;
            }
        }
        true
    }

    /// Notes that the request has found nothing: the next one may look.
    pub fn pass_turn(&mut self) {
        self.leave_to_the_next(false);
    }

    /// Notes that the request has found room, and waits for a better place: the next one may look.
    /// This wait is no overload, however long it takes.
    pub fn hold(&mut self) {
        self.leave_to_the_next(true);
    }

    /// Notes that no member will answer the request in time, and keeps its turn: those after it look when it has left, or
    /// waits for something else. This wait is no overload, however long it takes. Needs [shares](Share).
    pub fn wait_late(&mut self) {
        let vacancies = std::mem::take(&mut self.vacancies);
        (self.is_held, self.is_late) = (true, true);
        let mut line = self.queue.lock();
        if let Some(seat) = line.seats.get_mut(&self.key) {
            seat.is_held = true;
            line.late.insert(self.key);
        }
        line.settle_vacancies(vacancies);
    }

    fn leave_to_the_next(&mut self, is_held: bool) {
        if std::mem::take(&mut self.is_late) {
            self.queue.lock().end_turn(self.key);
        }
        let vacancies = std::mem::take(&mut self.vacancies);
        let was_held = std::mem::replace(&mut self.is_held, is_held);
        if vacancies > 0 || is_held != was_held {
            let mut line = self.queue.lock();
            if let Some(seat) = line.seats.get_mut(&self.key) {
                seat.is_held = is_held;
            }
            line.answer(self.key, vacancies, vacancies);
        }
    }

    /// Notes that the request has found a member, and leaves. Returns what the request has taken from the share of its key,
    /// if the request has a share.
    pub fn leave_served(mut self, now: Instant) -> Option<ShareCharge> {
        let vacancies = std::mem::take(&mut self.vacancies);
        let (key, waited) = match self.is_held {
            true => (self.key, Duration::ZERO),
            false => (self.key, now.since(self.since)),
        };
        let may_be_another = self.is_held || self.looks_anyway;
        self.queue.change(|line| {
            if vacancies > 0 {
                // It may have used another vacancy than it was told of: one that was offered to those
                // after it already, or that nobody else wants. Then those after it are told, too.
                let may_be_another = may_be_another || line.skipped.contains(&key);
                let used = usize::from(!may_be_another);
                line.answer(key, vacancies, vacancies - used);
            }
            let share = line.remove(key).and_then(|seat| seat.share);
            let charge = share.map(|share| {
                let first = line.first_start(key.0);
                line.shares.note_served(&share, key.1, first)
            });
            line.served_after(waited, now);
            charge
        })
    }
}

impl<Q: Deref<Target = Queue>> Drop for QueuePosition<Q> {
    fn drop(&mut self) {
        let (key, vacancies) = (self.key, self.vacancies);
        self.queue.change(|line| {
            if vacancies > 0 {
                line.answer(key, vacancies, vacancies);
            }
            match line.remove(key) {
                Some(seat) => line.give_share_back(&seat, key),
                None => drop(line.refused.remove(&key.2)),
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    const NOW: Instant = Instant::ZERO;
    const USUAL: Class = 4;

    fn at(millis: u64) -> Instant {
        NOW.after(Duration::from_millis(millis))
    }

    fn enter(queue: &Queue, class: Class, now: Instant) -> QueuePosition<&Queue> {
        QueuePosition::enter(queue, class, now).unwrap()
    }

    fn turn(place: &mut QueuePosition<&Queue>, now: Instant) -> Option<QueueInstruction> {
        place.next_turn(now, Waker::noop())
    }

    fn look(ahead: u32) -> Option<QueueInstruction> {
        Some(QueueInstruction::Look { ahead })
    }

    #[test]
    fn so_many_may_wait_and_the_first_is_called_first() {
        let queue = Queue::new(Policy::with_limit(2));
        queue.vacate(|| ());
        let mut first = enter(&queue, USUAL, NOW);
        assert_eq!(turn(&mut first, NOW), look(0), "it looks when it comes");
        first.pass_turn();
        assert_eq!(turn(&mut first, NOW), None);
        let mut second = enter(&queue, USUAL, NOW);
        assert_eq!(turn(&mut second, NOW), look(1));
        assert_eq!(
            QueuePosition::enter(&queue, USUAL, NOW).unwrap_err(),
            QueueRefusal::Full
        );
        assert_eq!(queue.waiting(), 2);
        queue.vacate(|| ());
        assert_eq!(queue.first_called(), Some(first.number()));
        assert_eq!(turn(&mut second, NOW), None);
        assert_eq!(turn(&mut first, NOW), look(0));
        first.pass_turn();
        assert_eq!(turn(&mut second, NOW), look(1), "what the first cannot use");
        second.leave_served(NOW);
        queue.set_policy(Policy::with_limit(1));
        assert_eq!(
            QueuePosition::enter(&queue, USUAL, NOW).unwrap_err(),
            QueueRefusal::Full
        );
        drop(first);
        assert_eq!(queue.waiting(), 0);
        drop(enter(&queue, USUAL, NOW));
    }

    #[test]
    fn one_that_comes_looks_after_those_that_were_called() {
        let queue = Queue::new(Policy::with_limit(10));
        let mut first = enter(&queue, USUAL, NOW);
        turn(&mut first, NOW);
        queue.vacate(|| ());
        let mut second = enter(&queue, USUAL, NOW);
        assert_eq!(turn(&mut second, NOW), None, "the vacancy is the first's");
        turn(&mut first, NOW);
        first.leave_served(NOW);
        assert_eq!(
            turn(&mut second, NOW),
            look(0),
            "there may be room that nobody was told of"
        );
    }

    #[test]
    fn one_that_comes_while_a_place_becomes_free_does_not_take_it() {
        let queue = Queue::new(Policy::with_limit(10));
        let mut first = enter(&queue, USUAL, NOW);
        turn(&mut first, NOW);
        first.pass_turn();
        let mut second = queue.vacate(|| {
            let mut second = enter(&queue, USUAL, NOW);
            assert_eq!(turn(&mut second, NOW), None);
            second
        });
        assert_eq!(turn(&mut second, NOW), None);
        assert_eq!(turn(&mut first, NOW), look(0));
        first.leave_served(NOW);
        assert_eq!(turn(&mut second, NOW), look(0), "there may be more");
    }

    #[test]
    fn one_that_looks_while_a_place_becomes_free_does_not_take_it() {
        let queue = Queue::new(Policy::with_limit(10));
        let mut first = enter(&queue, USUAL, NOW);
        turn(&mut first, NOW);
        first.pass_turn();
        let mut second = enter(&queue, USUAL, NOW);
        assert_eq!(turn(&mut second, NOW), look(1));
        queue.vacate(|| ());
        assert_eq!(second.look_for_room(|| ()), None);
        assert_eq!(turn(&mut second, NOW), None);
        assert_eq!(turn(&mut first, NOW), look(0));
        assert_eq!(first.look_for_room(|| ()), Some(()));
        first.leave_served(NOW);
        assert_eq!(turn(&mut second, NOW), look(0));
        assert_eq!(second.look_for_room(|| ()), Some(()));
    }

    #[test]
    fn a_vacancy_outlives_the_one_that_was_told_of_it() {
        let queue = Queue::new(Policy::with_limit(10));
        let mut places: Vec<_> = (0..3).map(|_| enter(&queue, USUAL, NOW)).collect();
        for place in &mut places {
            turn(place, NOW);
        }
        queue.vacate(|| ());
        drop(places.remove(0));
        assert_eq!(turn(&mut places[0], NOW), look(0));
        drop(places.remove(0));
        assert_eq!(turn(&mut places[0], NOW), look(0));
    }

    #[test]
    fn higher_classes_are_first_and_take_the_places_of_lower_ones() {
        let queue = Queue::new(Policy::with_limit(2));
        let mut low = enter(&queue, 1, NOW);
        let mut usual = enter(&queue, USUAL, NOW);
        turn(&mut low, NOW);
        turn(&mut usual, NOW);
        queue.vacate(|| ());
        assert_eq!(queue.first_called(), Some(usual.number()));
        let mut high = enter(&queue, HIGHEST, NOW);
        assert_eq!(turn(&mut low, NOW), Some(QueueInstruction::Refused));
        assert_eq!(queue.list_refused(), [low.number()]);
        drop(low);
        assert!(queue.list_refused().is_empty());
        assert_eq!(
            turn(&mut high, NOW),
            None,
            "somebody was called before it came"
        );
        turn(&mut usual, NOW);
        usual.pass_turn();
        assert_eq!(turn(&mut high, NOW), look(0));
        assert_eq!(
            QueuePosition::enter(&queue, 1, NOW).unwrap_err(),
            QueueRefusal::Full
        );
    }

    #[test]
    fn an_overload_turns_the_order_and_refuses_the_old() {
        let queue = Queue::new(Policy {
            target: Some(Duration::from_millis(10)),
            interval: Duration::from_millis(100),
            keep: 1,
            ..Policy::with_limit(100)
        });
        // Each one served has waited for 20 ms, for longer than the interval.
        let mut line = std::collections::VecDeque::new();
        for step in 0..40_u64 {
            let mut place = enter(&queue, USUAL, at(step * 5));
            turn(&mut place, at(step * 5));
            line.push_back(place);
            if step >= 4 && !queue.is_overloaded() {
                let mut first = line.pop_front().unwrap();
                queue.vacate(|| ());
                assert_eq!(turn(&mut first, at(step * 5)), look(0));
                first.leave_served(at(step * 5));
            }
        }
        assert!(queue.is_overloaded());
        let (now, mut last) = (at(195), line.pop_back().unwrap());
        turn(&mut last, now);
        let refused = line.iter_mut().filter_map(|place| turn(place, now));
        let refused = refused
            .filter(|turn| *turn == QueueInstruction::Refused)
            .count();
        // Of ages from 5 ms on in steps of 5, two are not above 10.
        assert_eq!(refused, line.len() - 2);
        queue.vacate(|| ());
        assert_eq!(turn(&mut last, now), look(0), "the newest");
        let mut low = QueuePosition::enter(&queue, USUAL - 1, now);
        assert_eq!(low.as_ref().unwrap_err(), &QueueRefusal::Overload);
        last.leave_served(now);
        line.clear();
        // It is over when nobody has waited for too long for a while.
        low = QueuePosition::enter(&queue, USUAL - 1, at(300));
        assert!(low.is_ok() && !queue.is_overloaded());
    }

    #[test]
    fn some_stay_though_they_have_waited_for_long() {
        let queue = Queue::new(Policy {
            target: Some(Duration::from_millis(10)),
            interval: Duration::ZERO,
            keep: 3,
            ..Policy::with_limit(100)
        });
        let mut places: Vec<_> = (0..10).map(|_| enter(&queue, USUAL, NOW)).collect();
        places.pop().unwrap().leave_served(at(20));
        assert!(queue.is_overloaded());
        let stay =
            |place: &mut QueuePosition<_>| turn(place, at(20)) != Some(QueueInstruction::Refused);
        assert_eq!(
            places
                .iter_mut()
                .filter_map(|p| stay(p).then_some(()))
                .count(),
            3
        );
    }

    /// Step of a random run.
    #[derive(Clone, Debug)]
    enum Step {
        /// A request comes that can use the members of this bit mask only.
        Comes { wants: u8, class: Class },
        /// The request of a member ends.
        Ends(usize),
        /// A waiting request goes away.
        Leaves(usize),
        /// A called request looks.
        Looks(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (1_u8..16, prop_oneof![Just(USUAL), 0..=HIGHEST])
                .prop_map(|(wants, class)| Step::Comes { wants, class }),
            (0_usize..4).prop_map(Step::Ends),
            (0_usize..100).prop_map(Step::Leaves),
            (0_usize..100).prop_map(Step::Looks),
            (0_usize..100).prop_map(Step::Looks),
        ]
    }

    struct Model<'q> {
        queue: &'q Queue,
        busy: [bool; 4],
        waiting: Vec<(QueuePosition<&'q Queue>, u8, Class)>,
    }

    impl Model<'_> {
        fn find(&self, wants: u8) -> Option<usize> {
            (0..4).find(|member| wants & 1 << member != 0 && !self.busy[*member])
        }

        /// The one at `index` looks, if it is called. Answers whether it was.
        fn look(&mut self, index: usize) -> bool {
            let (place, wants, _) = &mut self.waiting[index];
            let wants = *wants;
            let free = (0..4).find(|member| wants & 1 << member != 0 && !self.busy[*member]);
            match place.next_turn(NOW, Waker::noop()) {
                None => false,
                Some(QueueInstruction::Refused) => {
                    self.waiting.remove(index);
                    true
                }
                Some(QueueInstruction::Look { .. }) => {
                    match place.look_for_room(|| free) {
                        // Others were called meanwhile.
                        None => {}
                        Some(Some(member)) => {
                            self.busy[member] = true;
                            self.waiting.remove(index).0.leave_served(NOW);
                        }
                        Some(None) => self.waiting[index].0.pass_turn(),
                    }
                    true
                }
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4096))]

        /// Whatever happens in whatever order: when all who were called have looked, nobody waits
        /// for a member that is free.
        #[test]
        fn no_vacancy_is_lost(steps in prop::collection::vec(step(), 1..200)) {
            let queue = Queue::new(Policy::with_limit(8));
            let mut model = Model { queue: &queue, busy: [false; 4], waiting: Vec::new() };
            for step in steps {
                match step {
                    Step::Comes { wants, class } => {
                        // Those that come while nobody waits do not see the queue.
                        match model.find(wants).filter(|_| queue.waiting() == 0) {
                            Some(member) => model.busy[member] = true,
                            None => {
                                if let Ok(place) = QueuePosition::enter(model.queue, class, NOW) {
                                    model.waiting.push((place, wants, class));
                                }
                            }
                        }
                    }
                    Step::Ends(member) if model.busy[member] => {
                        queue.vacate(|| model.busy[member] = false);
                    }
                    Step::Leaves(index) if !model.waiting.is_empty() => {
                        let index = index % model.waiting.len();
                        model.waiting.remove(index);
                    }
                    Step::Looks(index) if !model.waiting.is_empty() => {
                        let index = index % model.waiting.len();
                        model.look(index);
                    }
                    _ => {}
                }
            }
            while (0..model.waiting.len()).any(|index| model.look(index)) {}
            prop_assert_eq!(queue.waiting(), model.waiting.len());
            for (_, wants, _) in &model.waiting {
                prop_assert_eq!(model.find(*wants), None);
            }
        }

        /// Requests that want the same are served by class, and within a class in the order in
        /// which they came.
        #[test]
        fn first_come_first_served(classes in prop::collection::vec(0..=HIGHEST, 1..50)) {
            let queue = Queue::new(Policy::with_limit(100));
            let mut waiting = HashMap::new();
            for class in &classes {
                let mut place = QueuePosition::enter(&queue, *class, NOW).unwrap();
                place.next_turn(NOW, Waker::noop());
                waiting.insert(place.number(), (place, *class));
            }
            let mut served = Vec::new();
            while !waiting.is_empty() {
                queue.vacate(|| ());
                let number = queue.first_called().unwrap();
                let (mut place, class) = waiting.remove(&number).unwrap();
                prop_assert_eq!(place.next_turn(NOW, Waker::noop()), Some(QueueInstruction::Look { ahead: 0 }));
                place.leave_served(NOW);
                served.push((Reverse(class), number));
            }
            prop_assert!(served.is_sorted());
        }
    }

    fn enter_for(queue: &Queue, class: Class, key: u64, tokens: u32) -> QueuePosition<&Queue> {
        let share = Some(Share { key, tokens });
        QueuePosition::enter_with_share(queue, class, share, NOW).unwrap()
    }

    #[test]
    fn among_equal_requests_the_key_with_the_fewest_tokens_is_first() {
        let queue = Queue::new(Policy::with_limit(20));
        let mut places: Vec<_> = (0..4).map(|_| enter_for(&queue, USUAL, 1, 1000)).collect();
        places.push(enter_for(&queue, USUAL, 2, 10));
        places.push(enter_for(&queue, USUAL, 2, 10));
        places.push(enter_for(&queue, USUAL + 1, 1, 1000));
        let mut served = Vec::new();
        while let Some(number) = queue.first_called() {
            let at = places.iter().position(|of| of.number() == number).unwrap();
            let mut place = places.remove(at);
            assert_eq!(turn(&mut place, NOW), look(0));
            place.leave_served(NOW);
            served.push(number);
        }
        // The urgent one, then each key's requests by the tokens before them.
        assert_eq!(served, [7, 1, 5, 6, 2, 3, 4]);
        assert_eq!(queue.waiting(), 0);
    }

    #[test]
    fn a_flood_gives_way_in_a_full_queue() {
        let queue = Queue::new(Policy::with_limit(3));
        let mut flood: Vec<_> = (0..3).map(|_| enter_for(&queue, USUAL, 1, 100)).collect();
        let share = |key| Some(Share { key, tokens: 100 });
        let more = QueuePosition::enter_with_share(&queue, USUAL, share(1), NOW);
        assert_eq!(more.unwrap_err(), QueueRefusal::Full);
        let polite = QueuePosition::enter_with_share(&queue, USUAL, share(2), NOW).unwrap();
        assert_eq!(queue.list_refused(), [flood[2].number()]);
        assert_eq!(turn(&mut flood[2], NOW), Some(QueueInstruction::Refused));
        assert_eq!(queue.waiting(), 3);
        drop((flood, polite));
        assert_eq!((queue.waiting(), queue.refusals()), (0, 1));
    }

    #[test]
    fn a_late_request_keeps_its_turn_until_it_leaves() {
        let queue = Queue::new(Policy::with_limit(20));
        let mut long = enter_for(&queue, USUAL, 1, 100_000);
        turn(&mut long, NOW);
        long.wait_late();
        let mut short = enter_for(&queue, USUAL, 2, 1);
        let mut urgent = enter_for(&queue, USUAL + 1, 3, 1);
        assert_eq!(turn(&mut short, NOW), None, "the long one is first");
        assert_eq!(turn(&mut urgent, NOW), look(0), "but no more urgent one");
        urgent.leave_served(NOW);
        queue.vacate(|| ());
        assert_eq!(turn(&mut short, NOW), None);
        assert_eq!(turn(&mut long, NOW), look(0));
        long.wait_late();
        assert_eq!(turn(&mut short, NOW), None);
        drop(long);
        assert_eq!(turn(&mut short, NOW), look(0), "the client has given up");
        short.leave_served(NOW);
        assert!(!queue.is_overloaded());
    }

    proptest! {
        /// Whatever comes, waits late and gives up: the queue is bounded, the most urgent class is served first and a
        /// key's requests in turn, and everybody is served in the end.
        #[test]
        fn shares_keep_the_order_and_starve_nobody(
            steps in prop::collection::vec((0u8..5, 0u8..3, 0u64..4, 1u32..1000), 1..80),
        ) {
            const LIMIT: usize = 10;
            let queue = Queue::new(Policy::with_limit(LIMIT));
            let mut places: Vec<(Class, u64, QueuePosition<&Queue>)> = Vec::new();
            let serve = |places: &mut Vec<(Class, u64, QueuePosition<&Queue>)>, is_late: bool| {
                queue.vacate(|| ());
                let mut tries = 0;
                while let Some(number) = queue.first_called() {
                    tries += 1;
                    assert!(tries < 100, "calls end");
                    let at = places.iter().position(|of| of.2.number() == number).unwrap();
                    if turn(&mut places[at].2, NOW).is_none() {
                        continue;
                    }
                    if is_late {
                        places[at].2.wait_late();
                        return;
                    }
                    let (class, key, place) = places.remove(at);
                    let number = place.number();
                    let is_before = |of: &(Class, u64, QueuePosition<&Queue>)| {
                        of.0 > class || (of.0 == class && of.1 == key && of.2.number() < number)
                    };
                    assert!(!places.iter().any(is_before));
                    place.leave_served(NOW);
                    return;
                }
                assert!(places.is_empty(), "somebody is called");
            };
            for (step, class, key, tokens) in steps {
                match step {
                    0 => serve(&mut places, false),
                    1 => serve(&mut places, true),
                    2 if !places.is_empty() => {
                        places.remove(tokens as usize % places.len());
                    }
                    _ => {
                        let share = Some(Share { key, tokens });
                        if let Ok(place) =
                            QueuePosition::enter_with_share(&queue, class, share, NOW)
                        {
                            places.push((class, key, place));
                        }
                        let refused = queue.list_refused();
                        places.retain(|of| !refused.contains(&of.2.number()));
                    }
                }
                prop_assert!(queue.waiting() <= LIMIT);
                prop_assert_eq!(queue.waiting(), places.len());
            }
            for left in (0..places.len()).rev() {
                serve(&mut places, false);
                prop_assert_eq!(places.len(), left);
            }
        }
    }
}
