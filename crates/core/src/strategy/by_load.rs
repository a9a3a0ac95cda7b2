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
use crate::load::Query;
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

/// Some of the members that compete, and how much weight all of them have.
#[derive(Clone, Copy)]
struct Part<K> {
    kept: K,
    weight: f32,
}

impl<K: Keep> Part<K> {
    fn new(empty: K) -> Self {
        Part {
            kept: empty,
            weight: 0.0,
        }
    }

    #[inline]
    fn offer(&mut self, index: usize, score: f32, weight: f32, rng: &mut fastrand::Rng) {
        self.weight += weight;
        self.kept.offer(index, score, weight, rng);
    }

    fn merge(&mut self, other: &Part<K>, rng: &mut fastrand::Rng) {
        self.weight += other.weight;
        self.kept.merge(&other.kept, rng);
    }
}

/// Members of known load, and of unknown load.
#[derive(Clone, Copy)]
struct Field<K> {
    known: Part<K>,
    unknown: Part<K>,
}

impl<K: Keep> Field<K> {
    fn new(empty: K) -> Self {
        Field {
            known: Part::new(empty),
            unknown: Part::new(empty),
        }
    }

    fn weight(&self) -> f32 {
        self.known.weight + self.unknown.weight
    }

    fn merge(&mut self, other: &Field<K>, rng: &mut fastrand::Rng) {
        self.known.merge(&other.known, rng);
        self.unknown.merge(&other.unknown, rng);
    }

    fn choose(&self, rng: &mut fastrand::Rng) -> Option<usize> {
        let among_unknown = self.unknown.weight > 0.0
            && (self.known.weight <= 0.0 || rng.f32() * self.weight() < self.unknown.weight);
        match among_unknown {
            true => self.unknown.kept.choose(rng),
            false => self.known.kept.choose(rng),
        }
    }
}

/// Those members about which there is more to say than a load: mostly there are none.
struct Special<K> {
    /// Those that do not fail and those that do, of those that do not reject.
    sound: Field<K>,
    failing: Field<K>,
    /// The same of those that reject.
    rejecting: [Part<K>; 2],
}

impl<K: Keep> Special<K> {
    #[cold]
    #[inline(never)]
    fn offer(
        this: &mut Option<Self>,
        empty: K,
        member: (usize, f32, f32),
        standing: Standing,
        fails: bool,
        rng: &mut fastrand::Rng,
    ) {
        let this = this.get_or_insert_with(|| Special {
            sound: Field::new(empty),
            failing: Field::new(empty),
            rejecting: [Part::new(empty), Part::new(empty)],
        });
        let field = if fails {
            &mut this.failing
        } else {
            &mut this.sound
        };
        let part = match standing {
            Standing::Known(_) => &mut field.known,
            Standing::Unknown => &mut field.unknown,
            Standing::Rejects(_) => &mut this.rejecting[usize::from(fails)],
        };
        let (index, score, weight) = member;
        part.offer(index, score, weight, rng);
    }

    /// Chooses among them and `known`, those of whom nothing is known but a load.
    #[cold]
    #[inline(never)]
    fn choose(
        mut self,
        known: Part<K>,
        view: &View<'_>,
        rng: &mut fastrand::Rng,
        trace: &mut Trace,
    ) -> Option<usize> {
        self.sound.known = known;
        let (sound, failing) = (&mut self.sound, &mut self.failing);
        if sound.weight() + failing.weight() <= 0.0 {
            [sound.known, failing.known] = self.rejecting;
        }
        let share = failing.weight() / (failing.weight() + sound.weight());
        if sound.weight() <= 0.0 || share > view.settings().panic_threshold {
            sound.merge(failing, rng);
        } else if share > 0.0 && rng.f32() < TRIAL * share {
            trace.note(|| "one of the failing members is tried".into());
            return failing.choose(rng);
        }
        if sound.known.weight > 0.0 && sound.unknown.weight > 0.0 {
            trace.note(|| "members of unknown load get an average share".into());
        }
        sound.choose(rng)
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

/// An eligible member with little load per unit of weight. Where nobody has the load of the
/// `query`, none is known. `empty` says how many are kept to choose from, and which loads count
/// as equal.
#[inline]
pub(super) fn least<K: Keep>(
    view: &View<'_>,
    rng: &mut fastrand::Rng,
    trace: &mut Trace,
    shares: &Shares,
    query: &Query,
    empty: K,
    standing: impl Fn(usize) -> Standing,
) -> Option<usize> {
    let is_known = |index| view.location(index).has_fresh(query);
    if !view.has_reports() || !view.eligible().any(is_known) {
        return of_unknown(view, rng, trace, shares);
    }
    let mut known = Part::new(empty);
    let mut special = None;
    for index in view.eligible() {
        let weight = view.weight(index);
        let standing = standing(index);
        let fails = sits_out(view, index, rng);
        let in_flight = || view.slot(index).in_flight() as f32;
        let score = standing.load().unwrap_or_else(in_flight) / weight;
        if trace.is_on() {
            explain(view, trace, index, score, standing, fails);
        }
        if matches!(standing, Standing::Known(_)) && !fails {
            known.offer(index, score, weight, rng);
        } else {
            let member = (index, score, weight);
            Special::offer(&mut special, empty, member, standing, fails, rng);
        }
    }
    match special {
        None => known.kept.choose(rng),
        Some(special) => special.choose(known, view, rng, trace),
    }
}

#[cold]
fn explain(
    view: &View<'_>,
    trace: &mut Trace,
    index: usize,
    score: f32,
    standing: Standing,
    fails: bool,
) {
    trace.candidate(index, Some(score.into()), || {
        let load = match standing {
            Standing::Known(load) => format!("load {load:.3}"),
            Standing::Rejects(load) => format!("load {load:.3} at or above the reject threshold"),
            Standing::Unknown => "load unknown".into(),
        };
        let (in_flight, weight) = (view.slot(index).in_flight(), Short(view.weight(index)));
        let fails = if fails {
            ", left out because it fails"
        } else {
            ""
        };
        format!("{load}, in flight {in_flight}, weight {weight}{fails}")
    });
}
