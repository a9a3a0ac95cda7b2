//! The least loaded of all members, by whatever load: what the strategies that go by
//! reported load share.
//!
//! A member whose load is not known gets an average share: with a chance of its share
//! of the weight the decision falls among the unknown, and there by requests in flight.
//! Counting it as idle would flood it, a mean load would starve it, because the lowest
//! load is what wins.
//!
//! A member that fails has little load, which must not draw requests. The higher its
//! share of failures, the more often it is left out, up to a rest by which its recovery
//! is noticed. If that happens to more of the weight than the panic threshold allows,
//! failures are ignored: then they say nothing about the single member.

use super::choose::Best;
use super::shares::Shares;
use crate::group::View;
use crate::trace::{Short, Trace};

/// Share of its weight with which a failing member is tried.
const TRIAL: f32 = 0.1;

/// What is known about the load of a member.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Standing {
    /// The load.
    Known(f32),
    /// Nothing, or nothing any more.
    Unknown,
    /// The load is so high that the member is taken only if all are.
    Rejects(f32),
}

impl Standing {
    pub(super) fn of(load: Option<f32>) -> Self {
        load.map_or(Standing::Unknown, Standing::Known)
    }

    fn load(self) -> Option<f32> {
        match self {
            Standing::Known(load) | Standing::Rejects(load) => Some(load),
            Standing::Unknown => None,
        }
    }

    /// Members of a lower class are taken first.
    fn class(self) -> u8 {
        match self {
            Standing::Known(_) | Standing::Unknown => 0,
            Standing::Rejects(_) => 1,
        }
    }
}

/// Keeps one member, or some, of those with the lowest scores.
pub(super) trait Keep: Copy {
    fn offer(&mut self, index: usize, score: f32, weight: f32, rng: &mut fastrand::Rng);
    /// Takes over what another one kept.
    fn merge(&mut self, other: &Self, rng: &mut fastrand::Rng);
    /// One of the kept members.
    fn choose(&self, rng: &mut fastrand::Rng) -> Option<usize>;
}

impl Keep for Best {
    #[inline]
    fn offer(&mut self, index: usize, score: f32, weight: f32, rng: &mut fastrand::Rng) {
        Best::offer(self, index, score, weight, rng);
    }

    fn merge(&mut self, other: &Self, rng: &mut fastrand::Rng) {
        Best::merge(self, other, rng);
    }

    fn choose(&self, _: &mut fastrand::Rng) -> Option<usize> {
        self.index()
    }
}

/// The members that compete, and how much weight they have.
#[derive(Clone, Copy)]
struct Field<K> {
    known: K,
    known_weight: f32,
    unknown: K,
    unknown_weight: f32,
}

impl<K: Keep> Field<K> {
    fn new(empty: K) -> Self {
        Field {
            known: empty,
            known_weight: 0.0,
            unknown: empty,
            unknown_weight: 0.0,
        }
    }

    fn weight(&self) -> f32 {
        self.known_weight + self.unknown_weight
    }

    fn merge(&mut self, other: &Field<K>, rng: &mut fastrand::Rng) {
        self.known.merge(&other.known, rng);
        self.known_weight += other.known_weight;
        self.unknown.merge(&other.unknown, rng);
        self.unknown_weight += other.unknown_weight;
    }

    fn choose(&self, rng: &mut fastrand::Rng) -> Option<usize> {
        let among_unknown = self.unknown_weight > 0.0
            && (self.known_weight <= 0.0 || rng.f32() * self.weight() < self.unknown_weight);
        match among_unknown {
            true => self.unknown.choose(rng),
            false => self.known.choose(rng),
        }
    }
}

/// Whether the member at `index` is left out of this decision because it fails.
#[inline]
pub(super) fn sits_out(view: &View<'_>, index: usize, rng: &mut fastrand::Rng) -> bool {
    let share = view.failure_share(index);
    share > 0.0 && rng.f32() < 2.0 * share
}

/// Where no load is known: the fewest requests in flight for its weight.
fn of_unknown(
    view: &View<'_>,
    rng: &mut fastrand::Rng,
    trace: &mut Trace,
    shares: &Shares,
) -> Option<usize> {
    let mut index = shares.least_in_flight(view, rng, None)?;
    let fails = sits_out(view, index, rng) && rng.f32() >= TRIAL;
    if fails && let Some(other) = shares.least_in_flight(view, rng, Some(index)) {
        trace.candidate(index, None, || {
            "load unknown, left out because it fails".into()
        });
        index = other;
    }
    trace.candidate(index, None, || {
        let (in_flight, weight) = (view.slot(index).in_flight(), Short(view.weight(index)));
        format!("no load is known: fewest in flight for its weight, {in_flight}, weight {weight}")
    });
    Some(index)
}

/// An eligible member with little load per unit of weight. `empty` says how many are
/// kept to choose from, and which loads count as equal.
#[inline]
pub(super) fn least<K: Keep>(
    view: &View<'_>,
    rng: &mut fastrand::Rng,
    trace: &mut Trace,
    shares: &Shares,
    empty: K,
    standing: impl Fn(usize) -> Standing,
) -> Option<usize> {
    let is_known = |index| standing(index).load().is_some();
    if !view.has_reports() || !view.eligible().any(is_known) {
        return of_unknown(view, rng, trace, shares);
    }
    let (mut sound, mut failing) = (Field::new(empty), Field::new(empty));
    let mut class = u8::MAX;
    for index in view.eligible() {
        let weight = view.weight(index);
        let standing = standing(index);
        let fails = sits_out(view, index, rng);
        let in_flight = view.slot(index).in_flight();
        let score = standing.load().unwrap_or(in_flight as f32) / weight;
        trace.candidate(index, Some(score.into()), || {
            let fails = if fails {
                ", left out because it fails"
            } else {
                ""
            };
            let rest = format!("in flight {in_flight}, weight {}{fails}", Short(weight));
            match standing {
                Standing::Known(load) => format!("load {load:.3}, {rest}"),
                Standing::Rejects(load) => {
                    format!("load {load:.3} at or above the reject threshold, {rest}")
                }
                Standing::Unknown => format!("load unknown, {rest}"),
            }
        });
        if standing.class() > class {
            continue;
        }
        if standing.class() < class {
            class = standing.class();
            (sound, failing) = (Field::new(empty), Field::new(empty));
        }
        let field = if fails { &mut failing } else { &mut sound };
        if standing.load().is_some() {
            field.known_weight += weight;
            field.known.offer(index, score, weight, rng);
        } else {
            field.unknown_weight += weight;
            field.unknown.offer(index, score, weight, rng);
        }
    }
    let share = failing.weight() / (failing.weight() + sound.weight());
    if sound.weight() <= 0.0 || share > view.settings().panic_threshold {
        sound.merge(&failing, rng);
    } else if share > 0.0 && rng.f32() < TRIAL * share {
        trace.note(|| "one of the failing members is tried".into());
        return failing.choose(rng);
    }
    if sound.known_weight > 0.0 && sound.unknown_weight > 0.0 {
        trace.note(|| "members of unknown load get an average share".into());
    }
    sound.choose(rng)
}
