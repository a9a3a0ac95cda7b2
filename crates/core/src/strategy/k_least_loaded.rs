//! `k_least_loaded`: at random among the k least loaded.
//!
//! Source: Vaidyanathan, Jin, Narravula and Panda, "Accurate Load Monitoring for
//! Cluster-based Web Data-Centers over RDMA-enabled Networks" (Ohio State University,
//! OSU-CISRC-7/05-TR49, 2005): sending everything to the one least loaded member until
//! the next report would overload it; k of them share the traffic, here by weight.

use super::by_load::{self, Keep, LoadKnowledge};
use super::kind::{Kind, Param, Strategy};
use super::shares::Shares;
use crate::group::view::View;
use crate::trace::Trace;

const K: Param = Param {
    name: "k",
    doc: "Number of least loaded members that share the requests.",
    unit: "members",
    default: 2.0,
    min: 1.0,
    max: MAX_K as f64,
    integer: true,
};

const MAX_K: usize = 16;

pub(super) const KIND: Kind = Kind {
    name: "k_least_loaded",
    doc: "One of the k members with the smallest reported load, at random.",
    params: &[K],
    ..Kind::made_by(|values, members| {
        Box::new(KLeastLoaded {
            shares: Shares::new(0.0, members),
            k: (values.get(K.name) as usize).clamp(1, MAX_K),
        })
    })
};

#[derive(Debug)]
struct KLeastLoaded {
    shares: Shares,
    k: usize,
}

impl Strategy for KLeastLoaded {
    fn pick(&self, view: &View<'_>, rng: &mut fastrand::Rng, trace: &mut Trace) -> Option<usize> {
        // Of as many as there are, chance alone would decide, whatever they report.
        let most = view.eligible_indices().take(self.k + 1).count();
        let k = self.k.min(most.saturating_sub(1)).max(1);
        trace.note_sentence(|| format!("drawn at random among the {k} least loaded members"));
        let (shares, query, empty) = (&self.shares, view.load_query(), Least::new(k));
        by_load::pick_least(view, rng, trace, shares, query, empty, |view, index| {
            LoadKnowledge::of_load(view.member_load(index))
        })
    }
}

/// Scores that differ by less than this share count as equal.
const SPREAD: f32 = 0.005;

/// The members with the k lowest scores. All members with the same score as the k-th are among them, however many:
/// otherwise the first ones of the list would be preferred.
#[derive(Clone, Copy, Debug)]
struct Least {
    k: usize,
    /// Members below the k-th score, in ascending order.
    below: [Kept; MAX_K],
    count: usize,
    /// The k-th score, once there are k members.
    limit: Option<f32>,
    /// A member at the limit, drawn by chance, with the weight of all members there.
    tied: Kept,
}

#[derive(Clone, Copy, Debug, Default)]
struct Kept {
    score: f32,
    index: u32,
    weight: f32,
}

impl Least {
    fn new(k: usize) -> Self {
        Least {
            k,
            below: [Kept::default(); MAX_K],
            count: 0,
            limit: None,
            tied: Kept::default(),
        }
    }

    #[inline]
    fn tie(&mut self, new: Kept, rng: &mut fastrand::Rng) {
        self.tied.weight += new.weight;
        if rng.f32() * self.tied.weight < new.weight {
            self.tied.index = new.index;
        }
    }

    #[inline]
    fn insert(&mut self, new: Kept, rng: &mut fastrand::Rng) {
        if let Some(limit) = self.limit {
            if new.score > limit * (1.0 + SPREAD) {
                return;
            }
            if new.score >= limit * (1.0 - SPREAD) {
                return self.tie(new, rng);
            }
        }
        let mut place = self.count;
        while place > 0 && self.below[place - 1].score > new.score {
            self.below[place] = self.below[place - 1];
            place -= 1;
        }
        self.below[place] = new;
        self.count += 1;
        if self.count == self.k {
            // A new limit: those at it leave the list, those above it are forgotten.
            let limit = self.below[self.k - 1].score;
            self.limit = Some(limit);
            self.tied = Kept::default();
            while self.count > 0 && self.below[self.count - 1].score >= limit * (1.0 - SPREAD) {
                self.count -= 1;
                self.tie(self.below[self.count], rng);
            }
        }
    }
}

impl Keep for Least {
    #[inline]
    fn offer(&mut self, index: usize, score: f32, weight: f32, rng: &mut fastrand::Rng) {
        let index = index as u32;
        let new = Kept {
            score,
            index,
            weight,
        };
        self.insert(new, rng);
    }

    fn merge(&mut self, other: &Self, rng: &mut fastrand::Rng) {
        for &kept in &other.below[..other.count] {
            self.insert(kept, rng);
        }
        if let Some(score) = other.limit {
            self.insert(
                Kept {
                    score,
                    ..other.tied
                },
                rng,
            );
        }
    }

    fn choose(&self, rng: &mut fastrand::Rng) -> Option<usize> {
        let below = &self.below[..self.count];
        let total: f32 = below.iter().map(|kept| kept.weight).sum();
        let mut rest = rng.f32() * (total + self.tied.weight);
        let chosen = below.iter().find(|kept| {
            rest -= kept.weight;
            rest < 0.0
        });
        let tied = self.limit.map(|_| &self.tied);
        let chosen = chosen.or(tied).or(below.last());
        chosen.map(|kept| kept.index as usize)
    }
}
