//! Sees to it that a weight is a share, over time, of what members that are equally good get.
//!
//! Strategies that take the lowest score decide by what there is at the moment, and what there
//! is at the moment is whole requests: two in flight cannot be shared 5 to 2. So one of the
//! candidates is *due* in each decision, in proportion to the weights. The best one is taken
//! all the same; if it has another weight than the one that was due, then members of its
//! weight are one request ahead, and those of the other one behind. Who is ahead has a higher
//! score, up to sixteen times, and who is behind a lower one, down to a
//! sixteenth. That makes shares
//! exact where members are equal. Where they are not, it gives way: a member that is slower
//! than the others is due less often, and one whose queue has become far longer than its share
//! is left, due or not.
//!
//! The account is that of a weight and not of a member. Among members of one weight nothing
//! changes, so a slow one falls behind without a claim to anything; and groups whose weights
//! are all the same, which are most groups, write nothing and take no turns. Only members that
//! may be picked are ever due, so who comes back after a while has no arrears to catch up with.
//! What is kept is bounded, and a new snapshot of the group begins anew.
//!
//! Requests in flight are compared by what they are above the share of their member. For a
//! member of weight *v* times the mean, with *n* requests where *x* are the mean, that is
//!
//! ```text
//! v >= 1: n / v          v < 1: n + (1 - v) x
//! ```
//!
//! Both are *x* where a member has its share, and *n* where all weights are equal. With `n / v`
//! for light ones, too, a single request would weigh as much as ten, and none at all would
//! make them the emptiest members, always.

use std::fmt;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

use super::choose::Best;
use crate::group::View;

/// Requests ahead that double a score.
const DOUBLE: f32 = 8.0;

/// Most requests that count as ahead or behind: sixteen times the score, or a sixteenth.
const MOST: i32 = 32;

/// Scores up to this factor above the lowest one are as good where it is somebody's turn.
const AS_GOOD: f32 = 1.5;

/// A member that is worse than the others by more than this factor is due less often, in
/// proportion: a weight is what one like the others deserves.
const WORSE: f32 = 2.0;

/// One decision in so many learns how latencies grow with requests in flight.
pub(super) const LEARNING_INTERVAL: u32 = 32;

/// Accounts. Weights that meet in one of them are only shared by what there is at the moment.
const ACCOUNTS: usize = 128;

/// The account of all members in slow start, whose weights change all the time.
const RAMPING: usize = ACCOUNTS - 1;

/// The accounts of one group.
#[derive(Debug)]
pub(super) struct Shares {
    /// Scores that differ by less than this share count as equal.
    spread: f32,
    /// Decisions with unequal weights.
    turn: AtomicU32,
    /// By how many requests members of a weight are ahead of their share.
    ahead: [AtomicI32; ACCOUNTS],
}

/// A member that may be picked, as the strategy sees it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate {
    pub(super) index: usize,
    /// Requests in flight.
    pub(super) in_flight: f32,
    pub(super) weight: f32,
    /// Its service time in seconds, as the strategy takes it; 0 where it does not go by that.
    pub(super) time: f32,
    /// By what factor failures and reported load speak against it; 1 is nothing.
    pub(super) cost: f32,
}

impl Candidate {
    /// For strategies that go by our own requests in flight.
    pub(super) fn by_requests(view: &View<'_>, index: usize) -> Self {
        Candidate {
            index,
            in_flight: view.slot(index).in_flight() as f32,
            weight: view.weight(index),
            time: 0.0,
            cost: 1.0,
        }
    }
}

/// Who is due in a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Due {
    /// All that may be picked take turns.
    InTurn,
    /// The first candidate: it was drawn by weight.
    First,
}

/// A geometric mean of positive numbers, of which one's own part can be left out. It adds up
/// the bits of floats, which are nearly their logarithms: off by less than 0.09 of a power of
/// two, and by nothing where numbers are equal.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Geometric {
    bits: u64,
    count: u32,
}

impl Geometric {
    /// Adds a number; 0 is none.
    #[inline]
    pub(super) fn add(&mut self, value: f32) {
        self.bits += u64::from(value.to_bits());
        self.count += u32::from(value > 0.0);
    }

    /// The mean without `own`, which was added; `None` if nothing else was.
    #[inline]
    pub(super) fn of_others(&self, own: f32) -> Option<f32> {
        // Other workers may have changed it since it was added.
        let bits = self.bits.saturating_sub(u64::from(own.to_bits()));
        let count = self.count.saturating_sub(u32::from(own > 0.0));
        (count > 0).then(|| f32::from_bits((bits / u64::from(count)) as u32))
    }
}

/// Says what a factor is for, in a verdict.
pub(super) struct Ahead(pub(super) f32);

impl fmt::Display for Ahead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            price if price > 1.0 => write!(f, ", times {price:.2} for being ahead of its share"),
            price if price < 1.0 => write!(f, ", times {price:.2} for being behind its share"),
            _ => Ok(()),
        }
    }
}

/// How long a member takes, in seconds: what requests wait for an answer, and that divided by
/// how many there are with them. Where requests queue one behind the other the second tells how
/// fast a member is, where all are worked on at once the first. Slower is who is so by both:
/// then a long queue, which a weight may have made, is held against nobody.
#[inline]
fn speed(view: &View<'_>, index: usize) -> (f32, f32) {
    let (others, latency) = view.slot(index).regression().means();
    (latency, latency / (1.0 + others))
}

impl Shares {
    pub(super) fn new(spread: f32) -> Self {
        Shares {
            spread,
            turn: AtomicU32::new(0),
            ahead: [const { AtomicI32::new(0) }; ACCOUNTS],
        }
    }

    /// The candidate with the lowest score. `score` gets a candidate, its requests in flight
    /// as they compare with those of the others, and a factor for what it is ahead. `equal` says
    /// that all weights are.
    #[inline]
    pub(super) fn lowest(
        &self,
        view: &View<'_>,
        rng: &mut fastrand::Rng,
        candidates: impl Iterator<Item = Candidate> + Clone,
        equal: bool,
        due: Due,
        mut score: impl FnMut(&Candidate, f32, f32) -> f32,
    ) -> Option<usize> {
        if !equal {
            return self.lowest_of_unequal(view, rng, candidates, due, score);
        }
        let mut best = Best::new(self.spread);
        // Of drawn ones that are equal the first stays, which was drawn by weight.
        let weight = if due == Due::First { 0.0 } else { 1.0 };
        for candidate in candidates {
            let score = score(&candidate, candidate.in_flight, 1.0);
            best.offer(candidate.index, score, weight, rng);
        }
        best.index()
    }

    /// The eligible member with the fewest requests in flight for its weight.
    pub(super) fn least_in_flight(
        &self,
        view: &View<'_>,
        rng: &mut fastrand::Rng,
        without: Option<usize>,
    ) -> Option<usize> {
        let members = view.eligible().filter(move |&index| Some(index) != without);
        let mut first = None;
        let mut same = |index| *first.get_or_insert(view.weight(index)) == view.weight(index);
        let equal = members.clone().all(&mut same);
        let candidates = members.map(|index| Candidate::by_requests(view, index));
        let score = |_: &Candidate, compares: f32, price: f32| (compares + 1.0) * price;
        self.lowest(view, rng, candidates, equal, Due::InTurn, score)
    }

    fn lowest_of_unequal(
        &self,
        view: &View<'_>,
        rng: &mut fastrand::Rng,
        candidates: impl Iterator<Item = Candidate> + Clone,
        due: Due,
        mut score: impl FnMut(&Candidate, f32, f32) -> f32,
    ) -> Option<usize> {
        let (mut weights, mut in_flight, mut count) = (0.0, 0.0, 0.0);
        let (mut latencies, mut times, mut costs) = <(Geometric, Geometric, Geometric)>::default();
        for candidate in candidates.clone() {
            let (latency, time) = speed(view, candidate.index);
            weights += candidate.weight;
            in_flight += candidate.in_flight;
            latencies.add(latency);
            times.add(time);
            costs.add(candidate.cost);
            count += 1.0;
        }
        let (weight, in_flight) = (weights / count, in_flight / count);
        let claim = |candidate: &Candidate| {
            let above = |own: f32, all: &Geometric| match all.of_others(own) {
                Some(typical) if own > 0.0 => own / typical,
                _ => 1.0,
            };
            let (latency, time) = speed(view, candidate.index);
            let slower = above(latency, &latencies).min(above(time, &times));
            let worse = slower.max(1.0) * above(candidate.cost, &costs).max(1.0);
            candidate.weight * (WORSE / worse).min(1.0)
        };
        let claims: f32 = candidates.clone().map(|candidate| claim(&candidate)).sum();
        let turn = match view.is_rehearsal() {
            true => self.turn.load(Ordering::Relaxed),
            false => self.turn.fetch_add(1, Ordering::Relaxed),
        };
        if turn.is_multiple_of(LEARNING_INTERVAL) && !view.is_rehearsal() {
            view.learn_growth(candidates.clone().map(|candidate| candidate.index));
        }
        let mut until_due = match due {
            Due::First => 0.0,
            Due::InTurn => rng.f32() * claims,
        };
        let mut best = Best::new(self.spread);
        let mut lowest = f32::INFINITY;
        let mut due = None;
        for candidate in candidates {
            let share = candidate.weight / weight;
            let compares = match share >= 1.0 {
                true => candidate.in_flight / share,
                false => candidate.in_flight + (1.0 - share) * in_flight,
            };
            let score = score(&candidate, compares, self.price(view, candidate.index));
            best.offer(candidate.index, score, candidate.weight, rng);
            lowest = lowest.min(score);
            until_due -= claim(&candidate);
            if until_due < 0.0 && due.is_none() {
                due = Some((candidate.index, score));
            }
        }
        // No number of f32s adds up exactly: then nobody is due, once.
        let Some((due, score)) = due else {
            return best.index();
        };
        let chosen = match score <= lowest * AS_GOOD {
            true => due,
            false => best.index()?,
        };
        self.count(view, chosen, due);
        Some(chosen)
    }

    fn account(view: &View<'_>, index: usize) -> usize {
        if view.is_ramping(index) {
            return RAMPING;
        }
        // Sign, exponent and five bits: weights that differ by less than 3 % share an account,
        // and so do some that differ by a factor of sixteen.
        (view.slot(index).weight().to_bits() >> 18) as usize % RAMPING
    }

    #[inline]
    pub(super) fn price(&self, view: &View<'_>, index: usize) -> f32 {
        let ahead = self.ahead[Self::account(view, index)].load(Ordering::Relaxed);
        (ahead as f32 / DOUBLE).exp2()
    }

    /// Keeps the accounts when `chosen` was taken where `due` was due.
    pub(super) fn count(&self, view: &View<'_>, chosen: usize, due: usize) {
        if chosen == due || view.is_rehearsal() {
            return;
        }
        let (chosen, due) = (Self::account(view, chosen), Self::account(view, due));
        if chosen != due {
            // Workers that count at once may miss the bound by one each: no matter.
            let [chosen, due] = [chosen, due].map(|account| &self.ahead[account]);
            if chosen.load(Ordering::Relaxed) < MOST {
                chosen.fetch_add(1, Ordering::Relaxed);
            }
            if due.load(Ordering::Relaxed) > -MOST {
                due.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }
}
