//! Drawing members by weight.

use std::sync::atomic::{AtomicU32, Ordering};

use super::best::Best;
use crate::group::view::View;
use crate::member::Member;

/// The highest number seen so far: no lock, may be lowered.
#[derive(Debug, Default)]
pub(super) struct Highest(AtomicU32);

impl Highest {
    #[inline]
    pub(super) fn get(&self) -> f32 {
        f32::from_bits(self.0.load(Ordering::Relaxed))
    }

    /// Bits of positive floats are ordered like the floats.
    pub(super) fn raise(&self, value: f32) {
        self.0
            .fetch_max(value.max(0.0).to_bits(), Ordering::Relaxed);
    }

    pub(super) fn set(&self, value: f32) {
        self.0.store(value.max(0.0).to_bits(), Ordering::Relaxed);
    }
}

/// Draws eligible members by chance, in proportion to their current weights.
///
/// An alias table (Vose, "A Linear Algorithm for Generating Random Numbers with a Given
/// Distribution", 1991) draws by the weights that the members had when it was made, in
/// constant time. What a weight has become since (a live change, slow start) is honoured
/// by accepting the draw with a chance in proportion to the change. Where that takes too
/// many tries, because few members are eligible, one walk over all of them decides.
#[derive(Debug)]
pub(super) struct Urn {
    /// `None` if all weights were equal.
    table: Option<Box<[Entry]>>,
    /// The weight of all members, if they were equal.
    equal: f32,
    /// Largest ratio of a current weight to the one in the table.
    highest_ratio: Highest,
}

#[derive(Debug)]
struct Entry {
    /// Chance, in 2^-32, to stay with this entry rather than take the alias.
    keep: u32,
    alias: u32,
    weight: f32,
}

/// Draws before an urn gives up and walks.
pub(super) const TRIES: usize = 24;

impl Urn {
    pub(super) fn new(members: &[Member]) -> Self {
        let weights: Vec<f32> = members.iter().map(|m| m.slot.weight()).collect();
        let positive = weights.iter().filter(|&&weight| weight > 0.0);
        let count = positive.clone().count().max(1);
        let mean = positive.sum::<f32>() / count as f32;
        let mean = if mean > 0.0 { mean } else { 1.0 };
        // A member with weight 0 may get another one live: it is in the table, too.
        let weights: Vec<f32> = weights
            .iter()
            .map(|&weight| if weight > 0.0 { weight } else { mean })
            .collect();
        let highest_ratio = Highest::default();
        highest_ratio.set(1.0);
        let equal = weights.windows(2).all(|pair| pair[0] == pair[1]);
        Urn {
            equal: weights.first().copied().unwrap_or(1.0),
            table: (!equal).then(|| alias_table(&weights)),
            highest_ratio,
        }
    }

    /// True if the members had one weight when the urn was made.
    pub(super) fn is_even(&self) -> bool {
        self.table.is_none()
    }

    /// Makes one draw of a member, eligible or not; `None` if the draw is not accepted.
    #[inline(always)]
    pub(super) fn try_once(&self, view: &View<'_>, rng: &mut fastrand::Rng) -> Option<usize> {
        // The high half of index * len / 2^32 is uniform; the low half is not needed.
        let len = view.len() as u64;
        let random = rng.u64(..);
        let mut index = (((random >> 32) * len) >> 32) as usize;
        let mut weight = self.equal;
        if let Some(table) = &self.table {
            let entry = &table[index];
            weight = entry.weight;
            if random as u32 > entry.keep {
                index = entry.alias as usize;
                weight = table[index].weight;
            }
        }
        if !view.is_eligible(index) {
            return None;
        }
        let ratio = view.member_weight(index) / weight;
        let highest = self.highest_ratio.get();
        if ratio >= highest {
            if ratio > highest {
                self.highest_ratio.raise(ratio);
            }
            return Some(index);
        }
        (rng.f32() * highest < ratio).then_some(index)
    }

    /// Draws one eligible member, if there is one.
    #[inline]
    pub(super) fn draw(&self, view: &View<'_>, rng: &mut fastrand::Rng) -> Option<usize> {
        if view.is_empty() {
            return None;
        }
        for _ in 0..TRIES {
            if let Some(index) = self.try_once(view, rng) {
                return Some(index);
            }
        }
        self.walk(view, rng)
    }

    /// Draws one eligible member by looking at all.
    #[cold]
    fn walk(&self, view: &View<'_>, rng: &mut fastrand::Rng) -> Option<usize> {
        let mut best = Best::new(0.0);
        let mut highest = 0.0f32;
        for index in view.eligible_indices() {
            let weight = view.member_weight(index);
            let held = self.table.as_ref().map_or(self.equal, |t| t[index].weight);
            highest = highest.max(weight / held);
            best.offer(index, 0.0, weight, rng);
        }
        if highest > 0.0 {
            self.highest_ratio.set(highest);
        }
        best.index()
    }
}

fn alias_table(weights: &[f32]) -> Box<[Entry]> {
    let total: f64 = weights.iter().map(|&weight| f64::from(weight)).sum();
    let scale = weights.len() as f64 / total;
    let mut scaled: Vec<f64> = weights.iter().map(|&w| f64::from(w) * scale).collect();
    let (mut small, mut large): (Vec<usize>, Vec<usize>) =
        (0..weights.len()).partition(|&index| scaled[index] < 1.0);
    let mut table: Box<[Entry]> = weights
        .iter()
        .enumerate()
        .map(|(index, &weight)| Entry {
            keep: u32::MAX,
            alias: index as u32,
            weight,
        })
        .collect();
    while let (Some(low), Some(&high)) = (small.pop(), large.last()) {
        table[low].keep = (scaled[low] * f64::from(u32::MAX)) as u32;
        table[low].alias = high as u32;
        scaled[high] -= 1.0 - scaled[low];
        if scaled[high] < 1.0 {
            large.pop();
            small.push(high);
        }
    }
    table
}
