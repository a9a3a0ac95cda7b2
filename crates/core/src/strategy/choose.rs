//! What strategies share: drawing members by weight, and keeping the best of many.

use std::sync::atomic::{AtomicU32, Ordering};

use super::shares::{Ahead, Candidate, Due, Shares, Sums};
use super::{Param, Values};
use crate::group::View;
use crate::member::Member;
use crate::trace::{Short, Trace};

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
const TRIES: usize = 24;

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

    /// Whether the members had one weight when the urn was made.
    pub(super) fn is_even(&self) -> bool {
        self.table.is_none()
    }

    /// One draw, eligible or not; `None` if it is not accepted.
    #[inline(always)]
    fn try_once(&self, view: &View<'_>, rng: &mut fastrand::Rng) -> Option<usize> {
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
        let ratio = view.weight(index) / weight;
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
        for index in view.eligible() {
            let weight = view.weight(index);
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

/// Keeps the member with the lowest score. Among equal ones each has a chance in
/// proportion to its weight, so that idle members share by weight and no member is
/// preferred for its place in the list.
#[derive(Clone, Copy, Debug)]
pub(super) struct Best {
    /// Scores that differ by less than this share count as equal.
    spread: f32,
    held: usize,
    score: f32,
    /// Scores from the first to the second one are equal to that.
    equal: (f32, f32),
    /// Weight of all members that are equal to the held one.
    weight: f32,
}

impl Best {
    const NOBODY: usize = usize::MAX;

    pub(super) fn new(spread: f32) -> Self {
        Best {
            spread,
            held: Best::NOBODY,
            score: f32::INFINITY,
            equal: (f32::INFINITY, f32::INFINITY),
            weight: 0.0,
        }
    }

    #[inline]
    pub(super) fn offer(&mut self, index: usize, score: f32, weight: f32, rng: &mut fastrand::Rng) {
        if score > self.equal.1 {
            return;
        }
        if score < self.equal.0 {
            self.equal = (score * (1.0 - self.spread), score * (1.0 + self.spread));
            (self.held, self.score, self.weight) = (index, score, weight);
            return;
        }
        self.weight += weight;
        if self.held == Best::NOBODY || rng.f32() * self.weight < weight {
            // The score stays, or it would creep.
            self.held = index;
        }
    }

    /// Takes over what another one kept.
    pub(super) fn merge(&mut self, other: &Best, rng: &mut fastrand::Rng) {
        if let Some(index) = other.index() {
            self.offer(index, other.score, other.weight, rng);
        }
    }

    /// The lowest score, or one that is equal to it.
    pub(super) fn score(&self) -> f32 {
        self.score
    }

    pub(super) fn index(&self) -> Option<usize> {
        (self.held != Best::NOBODY).then_some(self.held)
    }
}

/// Parameter of strategies that draw.
pub(super) const CHOICES: Param = Param {
    name: "choices",
    doc: "Number of distinct members that are drawn at random and compared. More are better at finding an idle member where many are slow; with fewer, balancers choose the same member less often.",
    unit: "members",
    default: 2.0,
    min: 1.0,
    max: MAX_CHOICES as f64,
    integer: true,
};

/// Parameter of strategies that draw.
pub(super) const SCAN_UP_TO: Param = Param {
    name: "scan_up_to",
    doc: "In groups of up to this many members all are compared, instead of some drawn at random.",
    unit: "members",
    default: 10.0,
    min: 0.0,
    max: 1000.0,
    integer: true,
};

pub(super) const MAX_CHOICES: usize = 16;

/// Chooses the members that are compared: a few that are drawn by weight, or all.
#[derive(Debug)]
pub(super) struct Choices {
    choices: usize,
    scan_up_to: usize,
}

/// The members to compare.
#[derive(Debug)]
pub(super) enum Candidates {
    All,
    /// So many distinct ones.
    Drawn([u32; MAX_CHOICES], usize),
}

impl Choices {
    /// `values` are those of a strategy with [`CHOICES`] and perhaps [`SCAN_UP_TO`].
    pub(super) fn new(values: &Values) -> Self {
        let get = |param: &Param| values.try_get(param.name).unwrap_or(0.0) as usize;
        Choices {
            choices: get(&CHOICES).clamp(1, MAX_CHOICES),
            scan_up_to: get(&SCAN_UP_TO),
        }
    }

    #[inline]
    pub(super) fn candidates(
        &self,
        view: &View<'_>,
        rng: &mut fastrand::Rng,
        urn: &Urn,
    ) -> Candidates {
        self.candidates_until(view, rng, urn, |_| false)
    }

    /// Whether all members are compared.
    #[inline]
    pub(super) fn are_all(&self, view: &View<'_>) -> bool {
        view.len() <= self.scan_up_to.max(self.choices)
    }

    /// The same, but draws no further once `enough` says so of what is drawn. It is asked
    /// after each one.
    #[inline]
    pub(super) fn candidates_until(
        &self,
        view: &View<'_>,
        rng: &mut fastrand::Rng,
        urn: &Urn,
        mut enough: impl FnMut(&[u32]) -> bool,
    ) -> Candidates {
        if self.are_all(view) {
            return Candidates::All;
        }
        let mut drawn = [0; MAX_CHOICES];
        let mut count = 0;
        let mut repeated = 0;
        let tries = TRIES + 4 * self.choices;
        for _ in 0..tries {
            let Some(index) = urn.try_once(view, rng) else {
                continue;
            };
            if drawn[..count].contains(&(index as u32)) {
                repeated += 1;
                continue;
            }
            drawn[count] = index as u32;
            count += 1;
            if enough(&drawn[..count]) || count == self.choices {
                return Candidates::Drawn(drawn, count);
            }
        }
        // A member with nearly all the weight is drawn again and again: then the few
        // distinct ones are a fair sample. Otherwise few members are eligible.
        match count > 0 && repeated > tries / 2 {
            true => Candidates::Drawn(drawn, count),
            false => Candidates::All,
        }
    }
}

impl Candidates {
    /// Their indices.
    #[inline]
    pub(super) fn indices<'a>(&'a self, view: &'a View<'a>) -> Indices<'a> {
        let (drawn, count) = match self {
            Candidates::All => (None, view.len()),
            Candidates::Drawn(drawn, count) => (Some(drawn), *count),
        };
        Indices {
            view,
            drawn,
            place: 0,
            count,
        }
    }

    /// The candidate with the lowest score, by weight where scores are equal. `score` gets a
    /// member, requests in flight as they compare, and a factor: see [`Shares::lowest`].
    #[inline]
    pub(super) fn lowest(
        &self,
        view: &View<'_>,
        rng: &mut fastrand::Rng,
        shares: &Shares,
        in_flight: InFlight<'_, '_>,
        mut score: impl FnMut(usize, f32, f32) -> f32,
    ) -> Option<usize> {
        let at = |index| Candidate::new(view, index, in_flight.at(index));
        let score = |one: &Candidate, compares, price| score(one.index, compares, price);
        match self {
            Candidates::All => {
                let candidates = view.eligible().map(at);
                shares.lowest(view, rng, candidates, None, |_| 1.0, Due::InTurn, score)
            }
            Candidates::Drawn(drawn, count) => {
                let candidates = drawn[..*count].iter().map(|&index| at(index as usize));
                let mut sums = Sums::default();
                for one in candidates.clone() {
                    sums.add(one.weight, one.in_flight);
                }
                let means = Some(sums.means());
                shares.lowest(view, rng, candidates, means, |_| 1.0, Due::First, score)
            }
        }
    }

    /// The candidate with the fewest requests in flight for its weight.
    #[inline]
    pub(super) fn fewest_in_flight(
        &self,
        view: &View<'_>,
        rng: &mut fastrand::Rng,
        trace: &mut Trace,
        shares: &Shares,
    ) -> Option<usize> {
        let in_flight = self.in_flight(view);
        self.lowest(view, rng, shares, in_flight, |index, compares, price| {
            let score = (compares + 1.0) * price;
            if trace.is_on() {
                trace.candidate(index, Some(score.into()), || {
                    let (flying, weight) = (in_flight.at(index), Short(view.weight(index)));
                    format!("in flight {flying}, weight {weight}{}", Ahead(price))
                });
            }
            score
        })
    }

    /// What a candidate without a latency counts as: the mean of the known ones. `None`
    /// if none is known, or if all are, when nobody needs it.
    #[inline]
    pub(super) fn neutral_latency(&self, view: &View<'_>) -> Option<f32> {
        let mut unknown = false;
        self.indices(view)
            .for_each(|index| unknown |= !view.slot(index).has_latency());
        if !unknown {
            return None;
        }
        self.mean(view, |index| view.latency(index))
    }

    /// The mean of what is known of the candidates; `None` if nothing is.
    #[inline]
    pub(super) fn mean(
        &self,
        view: &View<'_>,
        mut value: impl FnMut(usize) -> Option<f32>,
    ) -> Option<f32> {
        let (mut sum, mut count) = (0.0, 0);
        self.indices(view).for_each(|index| {
            if let Some(value) = value(index) {
                sum += value;
                count += 1;
            }
        });
        (count > 0).then(|| sum / count as f32)
    }

    /// Requests in flight at the candidates: as reported, if that is known of all of
    /// them, because only then the numbers compare; else our own.
    #[inline]
    pub(super) fn in_flight<'v, 'a>(&self, view: &'v View<'a>) -> InFlight<'v, 'a> {
        let mut reported = view.settings().load_id == crate::load::LoadId::IN_FLIGHT;
        if reported {
            self.indices(view).for_each(|index| {
                reported &= view.reported_in_flight(index).is_some();
            });
        }
        InFlight { view, reported }
    }
}

/// See [`Candidates::indices`].
#[derive(Clone, Debug)]
pub(super) struct Indices<'a> {
    view: &'a View<'a>,
    drawn: Option<&'a [u32; MAX_CHOICES]>,
    place: usize,
    count: usize,
}

impl Iterator for Indices<'_> {
    type Item = usize;

    // Decisions go over the candidates twice: a call for each costs as much as what is done there.
    #[inline(always)]
    fn next(&mut self) -> Option<usize> {
        while self.place < self.count {
            let place = self.place;
            self.place += 1;
            match self.drawn {
                None if self.view.is_eligible(place) => return Some(place),
                None => {}
                Some(drawn) => return Some(drawn[place] as usize),
            }
        }
        None
    }
}

/// Requests in flight, from one source for all members of a decision.
#[derive(Clone, Copy, Debug)]
pub(super) struct InFlight<'v, 'a> {
    view: &'v View<'a>,
    reported: bool,
}

impl InFlight<'_, '_> {
    #[inline]
    pub(super) fn at(self, index: usize) -> f32 {
        match self.reported {
            true => self.as_reported(index),
            false => self.view.slot(index).in_flight() as f32,
        }
    }

    #[inline(never)]
    fn as_reported(self, index: usize) -> f32 {
        let own = || self.view.slot(index).in_flight() as f32;
        self.view.reported_in_flight(index).unwrap_or_else(own)
    }
}
