//! `prequal`: least latency among the members that are not hot by requests in flight.
//!
//! Source: Wydrowski, Kleinberg, Rumble and Archer, "Load is not what you should
//! balance: Introducing Prequal" (NSDI 2024). A probe of a member is its requests in
//! flight (RIF) and a latency. A probe is *hot* if its RIF is above a quantile of recent
//! RIFs. Among the cold ones the lowest latency wins; if all are hot, the lowest RIF. A
//! pool of 16 probes is filled with a few random ones per decision; a probe is dropped
//! when it is older than a second, or when it has been used so often that the pool would
//! not be renewed (the paper's reuse budget), and now and then the worst or the oldest one
//! goes: here for every fourth probe taken, a rate that is ours and not the paper's. With
//! fewer than two probes a random member is taken.
//!
//! The paper's latency is that of requests which met about the same RIF. Here it is the
//! service time (see `estimate.rs`), with the penalty for failures, times RIF plus one. Requests
//! in flight, and the one to come, count what they cost.
//! It rises with each request that is bound to the probed member.
//!
//! A probe costs nothing but a look at the member's slot (or at its reported requests in
//! flight). In a group of up to `scan_up_to` members, where the reuse budget of the paper
//! is not defined, all are looked at instead of a pool. In one of fewer than
//! `1 / (1 - quantile)` members nobody is hot, and latency alone decides.
//!
//! A program that makes the decisions by [terms](crate::terms) looks at all members, too, in groups of all sizes.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::choose::{Candidates, SCAN_UP_TO};
use super::kind::{Kind, Param, Strategy, Values};
use super::shares::{Candidate, Due, Shares};
use crate::estimate::fade;
use crate::group::view::View;
use crate::member::Member;
use crate::terms::Form;
use crate::time::{millis, millis_since};
use crate::trace::Trace;

const QUANTILE: Param = Param {
    name: "quantile",
    doc: "Members with more requests in flight than this quantile of recent probes are hot. 0 compares requests in flight only, 1 latency only.",
    default: 0.84,
    max: 1.0,
    ..Param::NUMBER
};

const PROBES: Param = Param {
    name: "probes",
    doc: "Number of members that are probed for each decision.",
    unit: "members",
    default: 3.0,
    min: 1.0,
    max: 8.0,
    integer: true,
};

const MAX_AGE: Param = Param {
    name: "probe_max_age",
    doc: "A probe older than this is dropped.",
    unit: "ms",
    default: 1000.0,
    min: 1.0,
    max: 60_000.0,
    integer: true,
};

pub(super) const KIND: Kind = Kind {
    name: "prequal",
    doc: "The lowest latency among members that do not have unusually many requests in flight, from a pool of recent probes.",
    params: &[
        QUANTILE,
        PROBES,
        MAX_AGE,
        // The default is one and a half times the pool, below which the reuse budget is not defined.
        Param {
            default: 1.5 * POOL as f64,
            ..SCAN_UP_TO
        },
    ],
    ..Kind::made_by(|values, members| Box::new(Prequal::new(values, members)))
};

/// Probes in the pool.
const POOL: usize = 16;

/// Probes that are removed for each probe that is taken.
const REMOVED: f32 = 0.25;

/// The latency in seconds that is assumed where none is known.
const PRIOR: f32 = 0.05;

/// In the pool: no latency is known. The penalty is subtracted.
const UNKNOWN: f32 = -1.0;

#[derive(Debug)]
struct Prequal {
    quantile: f32,
    probes: usize,
    max_age: u32,
    scan_up_to: usize,
    /// Number of times that a probe may be used.
    budget: f32,
    shares: Shares,
    pool: [Place; POOL],
    /// The place for the next probe, modulo the size of the pool.
    next: AtomicU32,
    /// Estimate of the quantile of RIFs (f32 bits).
    hot_above: AtomicU32,
}

/// A place in the pool. Its two words are not written at once: a reader may take one
/// probe's member for another's latency, once, and decide a little worse.
#[derive(Debug, Default)]
struct Place {
    /// Time in milliseconds (high half), uses left (8 bits; 0 is an empty place), member
    /// (24 bits).
    who: AtomicU64,
    /// RIF per unit of weight (f32 bits, high half) and cost (f32 bits).
    seen: AtomicU64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Probe {
    index: usize,
    at: u32,
    uses: u32,
    rif: f32,
    /// Service time with penalty, in seconds.
    cost: f32,
}

const INDEX_BITS: u32 = 24;

impl Place {
    #[inline]
    fn get(&self) -> Probe {
        let who = self.who.load(Ordering::Relaxed);
        let seen = self.seen.load(Ordering::Relaxed);
        Probe {
            index: (who & ((1 << INDEX_BITS) - 1)) as usize,
            at: (who >> 32) as u32,
            uses: u32::from((who >> INDEX_BITS) as u8),
            rif: f32::from_bits((seen >> 32) as u32),
            cost: f32::from_bits(seen as u32),
        }
    }

    #[inline]
    fn set(&self, probe: &Probe) {
        let seen = (u64::from(probe.rif.to_bits()) << 32) | u64::from(probe.cost.to_bits());
        let who = (u64::from(probe.at) << 32)
            | (u64::from(probe.uses.min(255)) << INDEX_BITS)
            | probe.index as u64;
        self.seen.store(seen, Ordering::Relaxed);
        self.who.store(who, Ordering::Relaxed);
    }

    fn clear(&self) {
        self.who.store(0, Ordering::Relaxed);
    }
}

/// Rank of a member in a decision, lower is better: cold before hot, then the latency of a cold member or the RIF of a
/// hot one. The rank is one number, in which the float's bits without their sign keep its order: candidates are
/// compared without a branch to guess.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Rank(u32);

impl Rank {
    const HOT: u32 = 1 << 31;

    #[inline]
    fn new(rif: f32, latency: f32, hot_above: f32) -> Self {
        let hot = rif > hot_above;
        Rank(if hot {
            rif.to_bits() | Rank::HOT
        } else {
            latency.to_bits()
        })
    }

    fn is_hot(self) -> bool {
        self.0 & Rank::HOT != 0
    }

    /// Score as one positive number: all hot members are far above all cold ones, whose scores are latencies.
    fn score(self) -> f32 {
        match self.is_hot() {
            true => 1e9 * (1.0 + self.value()),
            false => self.value(),
        }
    }

    fn value(self) -> f32 {
        f32::from_bits(self.0 & !Rank::HOT)
    }
}

impl Prequal {
    fn new(values: &Values, members: &[Member]) -> Self {
        let probes = values.get(PROBES.name) as usize;
        let (pool, group) = (POOL as f32, members.len().max(1) as f32);
        // The paper's formula with delta = 1.
        let renewal = (1.0 - pool / group - REMOVED) * probes as f32;
        let budget = if renewal > 0.0 {
            (2.0 / renewal).clamp(1.0, 200.0)
        } else {
            200.0
        };
        Prequal {
            quantile: values.get(QUANTILE.name) as f32,
            probes,
            max_age: values.get(MAX_AGE.name) as u32,
            scan_up_to: values.get(SCAN_UP_TO.name) as usize,
            budget,
            shares: Shares::new(0.01, members),
            pool: Default::default(),
            next: AtomicU32::new(0),
            hot_above: AtomicU32::new(0),
        }
    }

    /// The RIF above which a member is hot. Where a single member is a larger share of
    /// the group than may be hot, none is: the most loaded one would lift the quantile
    /// with it.
    fn hot_above(&self, members: usize) -> f32 {
        match self.quantile {
            q if (1.0 - q) * (members as f32) < 1.0 => f32::INFINITY,
            q if q <= 0.0 => -1.0,
            _ => f32::from_bits(self.hot_above.load(Ordering::Relaxed)),
        }
    }

    /// Moves the estimate of the quantile (Robbins and Monro, "A Stochastic
    /// Approximation Method", 1951): balanced when a share `quantile` is below it.
    #[inline]
    fn learn(&self, rif: f32) {
        let held = f32::from_bits(self.hot_above.load(Ordering::Relaxed));
        let step = 0.1 * held.max(1.0);
        let moved = match rif > held {
            true => held + step * self.quantile,
            false => held - step * (1.0 - self.quantile),
        };
        self.hot_above
            .store(moved.max(0.0).to_bits(), Ordering::Relaxed);
    }

    /// Small groups: everybody is looked at.
    fn pick_of_all(
        &self,
        view: &View<'_>,
        rng: &mut fastrand::Rng,
        trace: &mut Trace,
    ) -> Option<usize> {
        let in_flight = Candidates::All.in_flight(view);
        let mut neutral = None;
        let own = view.cost();
        let hot_above = self.hot_above(view.len());
        let at = |index| Candidate::new(view, index, in_flight.cost_at(index));
        let candidates = view.eligible_indices().map(at);
        let score = |one: &Candidate, rif: f32, price: f32| {
            let index = one.index;
            let service = service_time(view, index).unwrap_or_else(|| {
                *neutral.get_or_insert_with(|| {
                    let known = Candidates::All.mean_value(view, |index| service_time(view, index));
                    known.unwrap_or(PRIOR)
                })
            });
            let latency = (service + view.penalty(index)) * (rif + own) * price;
            if !view.is_rehearsal() {
                self.learn(rif);
            }
            let rank = Rank::new(rif * price, latency, hot_above);
            note(trace, index, rank, rif, latency, hot_above);
            rank.score()
        };
        self.shares
            .pick_lowest(view, rng, candidates, None, |_| 1.0, Due::InTurn, score)
    }

    /// Looks at a few random members and keeps the probes in the pool.
    ///
    /// Answers the first of them, which was drawn by weight, as one that was due.
    fn probe(&self, view: &View<'_>, rng: &mut fastrand::Rng) -> Option<usize> {
        let now = millis(view.decision_time());
        let mut due = None;
        for _ in 0..self.probes {
            let index = self.shares.urn().draw(view, rng)?;
            due.get_or_insert(index);
            let rif = view
                .reported_in_flight(index)
                .unwrap_or(view.slot(index).cost_in_flight())
                / view.member_weight(index);
            self.learn(rif);
            let fraction = rng.f32() < self.budget.fract();
            let probe = Probe {
                index,
                at: now,
                uses: self.budget as u32 + u32::from(fraction),
                rif,
                cost: match service_time(view, index) {
                    Some(time) => time + view.penalty(index),
                    None => UNKNOWN - view.penalty(index),
                },
            };
            // Places are filled in turn: the one after the newest has the oldest.
            let place = self.next.fetch_add(1, Ordering::Relaxed) as usize % POOL;
            self.pool[place].set(&probe);
        }
        due
    }

    /// The best probe of the pool, if there are two.
    fn best_probe(
        &self,
        view: &View<'_>,
        rng: &mut fastrand::Rng,
        trace: &mut Trace,
    ) -> Option<usize> {
        let now = view.decision_time();
        let hot_above = self.hot_above(view.len());
        let mut neutral = None;
        let own = view.cost();
        let even = self.shares.urn().is_even();
        // A new snapshot has a new pool, but a writer of the old one may be late.
        let is_valid = |probe: &Probe| {
            probe.uses > 0
                && millis_since(probe.at, now) <= self.max_age
                && probe.index < view.len()
        };
        // Rank in the high bits, place in the low ones.
        let (mut best, mut worst, mut count) = (u64::MAX, 0, 0);
        for (place, slot) in self.pool.iter().enumerate() {
            let probe = slot.get();
            let mut cost = probe.cost;
            if cost < 0.0 {
                let neutral = neutral.get_or_insert_with(|| self.known_cost());
                cost = *neutral + UNKNOWN - cost;
            }
            let price = match even {
                false if probe.index < view.len() => self.shares.score_factor(view, probe.index),
                _ => 1.0,
            };
            let latency = cost * (probe.rif + own) * price;
            let rank = Rank::new(probe.rif * price, latency, hot_above);
            let key = (u64::from(rank.0) << 8) | place as u64;
            let valid = is_valid(&probe);
            best = best.min(if valid { key } else { u64::MAX });
            worst = worst.max(if valid { key } else { 0 });
            count += u32::from(valid);
            if trace.is_on() && valid {
                note(trace, probe.index, rank, probe.rif, latency, hot_above);
            }
        }
        if count < 2 {
            return None;
        }
        let place = &self.pool[best as usize % POOL];
        let probe = place.get();
        if probe.index >= view.len() {
            return None;
        }
        if !view.is_rehearsal() {
            // The request to come is in flight when the probe is used next.
            place.set(&Probe {
                uses: probe.uses.saturating_sub(1),
                rif: probe.rif + own / view.member_weight(probe.index).max(1e-3),
                ..probe
            });
            if rng.f32() < REMOVED * self.probes as f32 {
                // The oldest one, or else the worst.
                let oldest = self.next.load(Ordering::Relaxed) as usize;
                let removed = if rng.bool() { oldest } else { worst as usize };
                self.pool[removed % POOL].clear();
            }
        }
        // The member may have gone away, or be tried already, since it was probed.
        view.is_eligible(probe.index).then_some(probe.index)
    }

    /// Mean of the costs in the pool that are known.
    #[cold]
    fn known_cost(&self) -> f32 {
        let (mut sum, mut count) = (0.0, 0.0);
        for probe in self.pool.iter().map(Place::get) {
            if probe.uses > 0 && probe.cost >= 0.0 {
                sum += probe.cost;
                count += 1.0;
            }
        }
        if count > 0.0 { sum / count } else { PRIOR }
    }
}

/// Service time of the member at `index`. Without answers it decays, or a member that was slow once would never be
/// looked at again.
#[inline]
fn service_time(view: &View<'_>, index: usize) -> Option<f32> {
    let time = view.service_time(index)?;
    Some(match view.stale_since(index) {
        Some(silence) => time * fade(silence, view.settings().latency_decay),
        None => time,
    })
}

fn note(trace: &mut Trace, index: usize, rank: Rank, rif: f32, latency: f32, hot_above: f32) {
    trace.note_candidate(index, Some(rank.value().into()), || {
        let ms = latency * 1e3;
        match rank.is_hot() {
            true => format!("hot: {rif:.2} in flight per weight, above {hot_above:.2}"),
            false => format!("cold: {rif:.2} in flight per weight, latency {ms:.1} ms"),
        }
    });
}

impl Strategy for Prequal {
    fn fill_costs(&self, view: &View<'_>, costs: &mut Vec<f32>) -> Form {
        let known = Candidates::All.mean_value(view, |index| service_time(view, index));
        let neutral = known.unwrap_or(PRIOR);
        costs.extend((0..view.len()).map(|index| {
            let service = service_time(view, index).unwrap_or(neutral);
            (service + view.penalty(index)) / view.member_weight(index)
        }));
        // The program does not tell what it has looked at: each round looks at all members instead.
        let in_flight = Candidates::All.in_flight(view);
        let (mut weights, mut count) = (0.0, 0.0);
        for index in view.eligible_indices() {
            weights += view.member_weight(index);
            count += 1.0;
        }
        let mean_weight = if count > 0.0 { weights / count } else { 1.0 };
        for index in view.eligible_indices() {
            self.learn(in_flight.cost_at(index) * mean_weight / view.member_weight(index));
        }
        // Requests are counted for the mean weight, and those of the program for a weight of 1.
        let hot_above = self.hot_above(view.len()) / mean_weight;
        Form::Prequal { hot_above }
    }

    fn pick(&self, view: &View<'_>, rng: &mut fastrand::Rng, trace: &mut Trace) -> Option<usize> {
        if view.len() <= self.scan_up_to {
            return self.pick_of_all(view, rng, trace);
        }
        let mut due = None;
        if !view.is_rehearsal() {
            due = self.probe(view, rng);
        }
        let chosen = self.best_probe(view, rng, trace);
        if let (Some(chosen), Some(due)) = (chosen, due) {
            self.shares.count(view, chosen, due);
        }
        chosen.or_else(|| {
            let index = self.shares.urn().draw(view, rng)?;
            trace.note_candidate(index, None, || "no usable probe: drawn".into());
            Some(index)
        })
    }
}
