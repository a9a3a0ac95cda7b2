//! Zones: where members are, which of them a group asks first, and which share of its requests goes on
//! to others.
//!
//! The zones of a group have *ranks*: the balancer's own zone has the first rank, then come the zones that the
//! configuration names, in their order, and all others together have the last one. Of the requests that come to a rank,
//! a share *passes on* to the next one: none as long as the rank's members can serve and are not loaded. Rounds of
//! control set that share (`evenkeel_control::zones`); each decision draws a rank, and then the strategy picks among
//! its members only.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::learnt::{LearntSlot, Visit};

/// Most ranks of a group. Zones beyond are of the last one.
pub const RANKS: usize = 8;

/// Most zones that an order may name: there are also the own one and all others.
pub const MOST_IN_ORDER: usize = RANKS - 2;

/// All requests that come to a rank, where a part of them is counted.
pub const WHOLE: u32 = 1 << 16;

/// The load of a rank from which on requests pass on, if nothing else is said and loads are shares: all
/// of what there is is 1.
pub const SPILL_ABOVE: f32 = 0.8;

/// Zones that come first, and conditions under which requests go to other zones.
#[derive(Clone, Debug, PartialEq)]
pub struct ZoneSettings {
    /// The zone of this balancer.
    pub balancer_zone: Option<String>,
    /// The zones that come next, in this order.
    pub order: Vec<String>,
    /// Mean load of a zone's members above which a share of its requests goes to others, in the unit of
    /// the group's load; `None` is [`SPILL_ABOVE`] where loads are shares, and else never.
    pub spill_above: Option<f32>,
    /// Share of a zone's members, by weight, that must be able to serve for it to keep all its
    /// requests. With fewer it keeps as much less.
    pub min_usable: f32,
}

impl Default for ZoneSettings {
    fn default() -> Self {
        ZoneSettings {
            balancer_zone: None,
            order: Vec::new(),
            spill_above: None,
            min_usable: 0.7,
        }
    }
}

/// Measurements of the members of a rank at a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Measured {
    /// Weight of all members that are no backups.
    pub weight: f32,
    /// Weight of the members that can serve, at their limit or not.
    pub usable: f32,
    /// Mean load of the members that can serve and whose load is known.
    pub load: Option<f32>,
    /// Mean age of the reports that the load is from, in seconds.
    pub age: f32,
}

/// Result of a round of control for a rank.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reading {
    /// Part of the requests that passes on to the next rank, in 1/[`WHOLE`].
    pub passed_share: u32,
    /// Mean load, as far as it is known.
    pub load: Option<f32>,
    /// Share of the members, by weight, that can serve.
    pub usable: f32,
}

/// Words through which rounds of control pass their results to decisions, one for each figure of a rank.
#[derive(Debug, Default)]
pub struct Readings([Words; RANKS]);

#[derive(Debug, Default)]
struct Words {
    /// 0 before the first round, so that all requests stay.
    passed: AtomicU32,
    /// Bits of a load and one; 0 where it is not known.
    load: AtomicU32,
    /// Bits of the share that cannot serve.
    out: AtomicU32,
}

impl Readings {
    /// Last result of a rank.
    pub fn get(&self, rank: usize) -> Reading {
        let none = Reading {
            passed_share: 0,
            load: None,
            usable: 1.0,
        };
        self.0.get(rank).map_or(none, |words| {
            let get = |word: &AtomicU32| word.load(Ordering::Relaxed);
            Reading {
                passed_share: get(&words.passed),
                load: get(&words.load).checked_sub(1).map(f32::from_bits),
                usable: 1.0 - f32::from_bits(get(&words.out)),
            }
        })
    }

    /// Says something of a rank.
    pub fn set(&self, rank: usize, reading: Reading) {
        if let Some(words) = self.0.get(rank) {
            // Loads are not negative, so that there is room for one more.
            let load = reading.load.map_or(0, |load| load.abs().to_bits() + 1);
            words.load.store(load, Ordering::Relaxed);
            let out = 1.0 - reading.usable;
            words.out.store(out.to_bits(), Ordering::Relaxed);
            words.passed.store(reading.passed_share, Ordering::Relaxed);
        }
    }

    /// The share of all requests that each of the first `ranks` ranks gets. They sum up to one.
    pub fn rank_shares(&self, ranks: usize) -> Vec<f64> {
        let mut left = 1.0;
        let share = |rank: usize| {
            let passed = match rank + 1 == ranks {
                true => 0.0,
                false => f64::from(self.get(rank).passed_share.min(WHOLE)) / f64::from(WHOLE),
            };
            let share = left * (1.0 - passed);
            left *= passed;
            share
        };
        (0..ranks).map(share).collect()
    }

    /// Draws the rank that gets a request. `random` gives a number below [`WHOLE`] for each rank that is tried.
    pub(crate) fn draw(&self, ranks: usize, mut random: impl FnMut(usize) -> u32) -> usize {
        let last = ranks.saturating_sub(1);
        for (rank, words) in self.0.iter().enumerate().take(last) {
            let passed = words.passed.load(Ordering::Relaxed);
            if passed == 0 || (passed < WHOLE && random(rank) >= passed) {
                return rank;
            }
        }
        last
    }

    /// Visits the words that another process takes over.
    pub(crate) fn visit_words<'a>(&'a self, visit: Visit<'_, 'a>) {
        for words in &self.0 {
            visit("zone_passed", LearntSlot::Short(&words.passed));
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Shares sum up to one, and agree with the draws.
        #[test]
        fn what_is_drawn_is_what_is_said(
            passed in prop::collection::vec(prop_oneof![Just(0), Just(WHOLE), 0..=WHOLE], RANKS),
            ranks in 2..=RANKS,
            seed in any::<u64>(),
        ) {
            let readings = Readings::default();
            for (rank, &passed) in passed.iter().enumerate() {
                readings.set(rank, Reading { passed_share: passed, load: None, usable: 1.0 });
            }
            let shares = readings.rank_shares(ranks);
            prop_assert!((shares.iter().sum::<f64>() - 1.0).abs() < 1e-9, "{shares:?}");
            let mut rng = fastrand::Rng::with_seed(seed);
            let mut counts = vec![0; ranks];
            for _ in 0..4000 {
                counts[readings.draw(ranks, |_| rng.u32(..WHOLE))] += 1;
            }
            for (count, share) in counts.into_iter().zip(shares) {
                let drawn = f64::from(count) / 4000.0;
                prop_assert!((drawn - share).abs() < 0.05, "{drawn} of {share}");
                prop_assert!(share > 0.0 || count == 0);
            }
        }
    }
}
