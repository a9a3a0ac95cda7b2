//! A smooth weighted schedule without a lock.

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};

use super::best::Best;
use super::urn::Highest;
use crate::cost::Cost;
use crate::group::view::View;
use crate::zone::RANKS;

/// Walks around the members in a fixed order. A member with the highest weight is taken in each round. A member with a
/// share `w` of that weight is taken in every round in which the multiple of `w` passes a whole number: evenly spaced,
/// as Bresenham's line is.
///
/// All workers share one atomic sequence number, which is the whole state. It starts at random, so that balancers that
/// start together do not all begin with the same member; or with the first member if the group is to be used in order.
/// Weights are read at each step. This is the static stride scheduler of gRPC's client-side weighted round robin (gRPC
/// proposal A58).
///
/// A request that costs more than the mean puts its member in debt, which the member pays by letting turns pass (as in
/// deficit round robin: Shreedhar and Varghese, "Efficient Fair Queueing Using Deficit Round Robin", 1995); a request
/// that costs less is a credit. Where all requests cost the same, nothing is written.
#[derive(Debug)]
pub(super) struct Stride {
    /// Round times number of members plus position; 0 is not started.
    sequence: AtomicU64,
    /// Sequence of each rank of zones: with one sequence for all ranks, the first member behind those of the own zone
    /// would get all requests that pass on.
    of_rank: [AtomicU64; RANKS],
    highest: Highest,
    /// True if any request ever had another cost than 1.
    unequal: AtomicBool,
    /// The mean cost of the last requests (f32 bits).
    mean: AtomicU32,
    /// Debt of each member, in 1/1024 of a turn.
    debts: Box<[AtomicI32]>,
}

/// A turn, in what debts are counted in.
const TURN: i32 = 1024;

/// Most turns that a member owes, or has as a credit.
const MOST_TURNS: i32 = 64;

/// Requests over which the mean cost reaches.
const MEAN: f32 = 64.0;

impl Stride {
    /// A schedule for this many members.
    pub(super) fn new(members: usize) -> Self {
        Stride {
            sequence: AtomicU64::new(0),
            of_rank: Default::default(),
            highest: Highest::default(),
            unequal: AtomicBool::new(false),
            mean: AtomicU32::new(1f32.to_bits()),
            debts: (0..members).map(|_| AtomicI32::new(0)).collect(),
        }
    }

    /// Sets the highest weight, where all have changed at once. A highest weight that is not set is noticed in time: a
    /// higher one when its turn comes, a lower one after two rounds without a member.
    pub(super) fn set_highest(&self, weight: f32) {
        self.highest.set(weight);
    }

    /// Returns true if the member at `index` owes a turn, and lets this turn pass.
    fn passes(&self, view: &View<'_>, index: usize) -> bool {
        let owes = self.debt(index) >= TURN;
        if owes && !view.is_rehearsal() {
            self.debts[index].fetch_sub(TURN, Ordering::Relaxed);
        }
        owes
    }

    fn debt(&self, index: usize) -> i32 {
        let debt = self.debts.get(index);
        debt.map_or(0, |debt| debt.load(Ordering::Relaxed))
    }

    /// The member at `index` gets the request.
    fn charge(&self, view: &View<'_>, index: usize) {
        let Some(debt) = self.debts.get(index).filter(|_| !view.is_rehearsal()) else {
            return;
        };
        if !self.unequal.load(Ordering::Relaxed) {
            self.unequal.store(true, Ordering::Relaxed);
        }
        let (cost, mean) = (
            view.cost(),
            f32::from_bits(self.mean.load(Ordering::Relaxed)),
        );
        // Workers that count at once may lose a sample.
        let next = mean + (cost - mean) / MEAN;
        self.mean.store(next.to_bits(), Ordering::Relaxed);
        let most = MOST_TURNS * TURN;
        let owed = ((cost / mean - 1.0) * TURN as f32) as i32;
        let add = |debt: i32| Some(debt.saturating_add(owed).clamp(-most, most));
        let _ = debt.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    }

    /// The next eligible member by `weight`, which is positive for eligible ones.
    pub(super) fn next(
        &self,
        view: &View<'_>,
        rng: &mut fastrand::Rng,
        weight: impl Fn(usize) -> f32,
    ) -> Option<usize> {
        match view.request().cost == Cost::ONE && !self.unequal.load(Ordering::Relaxed) {
            true => self.walk::<false>(view, rng, weight),
            false => self.walk_by_cost(view, rng, weight),
        }
    }

    /// Takes the next member where requests cost more or less than others.
    #[inline(never)]
    fn walk_by_cost(
        &self,
        view: &View<'_>,
        rng: &mut fastrand::Rng,
        weight: impl Fn(usize) -> f32,
    ) -> Option<usize> {
        let index = self.walk::<true>(view, rng, weight)?;
        self.charge(view, index);
        Some(index)
    }

    #[inline(always)]
    fn walk<const BY_COST: bool>(
        &self,
        view: &View<'_>,
        rng: &mut fastrand::Rng,
        weight: impl Fn(usize) -> f32,
    ) -> Option<usize> {
        let len = view.len() as u64;
        if len == 0 {
            return None;
        }
        let ranked = view.allowed_rank().and_then(|rank| self.of_rank.get(rank));
        let counter = ranked.unwrap_or(&self.sequence);
        let mut rehearsed = start(counter, view, rng);
        let mut step = || {
            if view.is_rehearsal() {
                rehearsed += 1;
                rehearsed - 1
            } else {
                counter.fetch_add(1, Ordering::Relaxed)
            }
        };
        for _ in 0..2 {
            for _ in 0..2 * len + 8 {
                let sequence = step();
                let (round, index) = (sequence / len, (sequence % len) as usize);
                if !view.is_eligible(index) || (BY_COST && self.passes(view, index)) {
                    continue;
                }
                let weight = weight(index);
                let highest = self.highest.get();
                if weight >= highest {
                    if weight > highest {
                        self.highest.raise(weight);
                    }
                    return Some(index);
                }
                // In units of 2^-32; each member starts at another phase.
                let share = (f64::from(weight / highest) * (1u64 << 32) as f64) as u64;
                let phase = (index as u64).wrapping_mul(0x9E37_79B9);
                if round.wrapping_mul(share).wrapping_add(phase) & 0xFFFF_FFFF < share {
                    return Some(index);
                }
            }
            // Two rounds without a member: the highest weight is not what it was.
            let highest = view.eligible_indices().map(&weight).fold(0.0, f32::max);
            self.highest.set(highest);
        }
        // Other workers had all the good steps, or all members are in debt.
        let mut best = Best::new(0.0);
        for index in view.eligible_indices() {
            let debt = (self.debt(index) + MOST_TURNS * TURN) as f32;
            best.offer(index, debt, weight(index), rng);
        }
        best.index()
    }
}

/// Reads a sequence, and starts it if it is not started yet.
fn start(counter: &AtomicU64, view: &View<'_>, rng: &mut fastrand::Rng) -> u64 {
    let sequence = counter.load(Ordering::Relaxed);
    if sequence != 0 {
        return sequence;
    }
    let first = match view.settings().in_order {
        true => view.len() as u64,
        false => u64::from(rng.u32(1..)),
    };
    let started = counter.compare_exchange(0, first, Ordering::Relaxed, Ordering::Relaxed);
    started.map_or_else(|sequence| sequence, |_| first)
}
