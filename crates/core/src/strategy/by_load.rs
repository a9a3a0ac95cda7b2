//! The least loaded of all members: the shared part of the strategies that use reported loads.
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

use super::best::Best;
use super::kind::Strategy;
use super::shares::Shares;
use crate::alert::Threshold;
use crate::effective::Shaping;
use crate::group::view::View;
use crate::load::Query;
use crate::member::Member;
use crate::trace::{Short, Trace};

/// Interval of decisions at which the means of the members are learnt: one in this number.
const LEARNING_INTERVAL: u32 = 16;

/// Share of its weight with which a failing member is tried.
const TRIAL: f32 = 0.1;

/// Knowledge of a member's load.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum LoadKnowledge {
    /// The load is known.
    Known(f32),
    /// The load is not known, or not known any more.
    Unknown,
    /// The load is so high that the member is taken only if all are.
    Rejects(f32),
}

impl LoadKnowledge {
    pub(super) fn of_load(load: Option<f32>) -> Self {
        load.map_or(LoadKnowledge::Unknown, LoadKnowledge::Known)
    }

    fn load(self) -> Option<f32> {
        match self {
            LoadKnowledge::Known(load) | LoadKnowledge::Rejects(load) => Some(load),
            LoadKnowledge::Unknown => None,
        }
    }
}

/// Keeps one member, or some, of those with the lowest scores.
pub(super) trait Keep: Copy {
    fn offer(&mut self, index: usize, score: f32, weight: f32, rng: &mut fastrand::Rng);
    /// Takes over the members that another one kept.
    fn merge(&mut self, other: &Self, rng: &mut fastrand::Rng);
    /// Chooses one of the kept members.
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

/// Members that have more properties than a load: mostly there are none.
struct Special<K> {
    /// Members of known load and of unknown load: first the sound ones, then those that fail.
    fields: [[Part<K>; 2]; 2],
    /// Members that reject: the sound ones, and those that fail.
    rejecting: [Part<K>; 2],
}

impl<K: Keep> Special<K> {
    fn new(empty: Part<K>) -> Self {
        Special {
            fields: [[empty; 2]; 2],
            rejecting: [empty; 2],
        }
    }

    #[cold]
    #[inline(never)]
    fn part(&mut self, standing: LoadKnowledge, fails: bool) -> &mut Part<K> {
        let fails = usize::from(fails);
        match standing {
            LoadKnowledge::Known(_) => &mut self.fields[fails][0],
            LoadKnowledge::Unknown => &mut self.fields[fails][1],
            LoadKnowledge::Rejects(_) => &mut self.rejecting[fails],
        }
    }

    /// Chooses among them and `usual`, those about which there is no more to say.
    #[cold]
    #[inline(never)]
    fn choose(
        mut self,
        usual: Part<K>,
        view: &View<'_>,
        rng: &mut fastrand::Rng,
        trace: &mut Trace,
    ) -> Option<usize> {
        let [sound, failing] = &mut self.fields;
        sound[0] = usual;
        let weight = |field: &[Part<K>; 2]| field[0].weight + field[1].weight;
        if weight(sound) + weight(failing) <= 0.0 {
            [sound[0], failing[0]] = self.rejecting;
        }
        let share = weight(failing) / (weight(failing) + weight(sound));
        let mut field = sound;
        if weight(field) <= 0.0 || share > view.settings().panic_threshold {
            let pairs = field.iter_mut().zip(failing);
            pairs.for_each(|(part, other)| part.merge(other, rng));
        } else if share > 0.0 && rng.f32() < TRIAL * share {
            trace.note_sentence(|| "one of the failing members is tried".into());
            field = failing;
        }
        let [known, unknown] = field;
        if known.weight > 0.0 && unknown.weight > 0.0 {
            trace.note_sentence(|| "members of unknown load get an average share".into());
        }
        let all = known.weight + unknown.weight;
        match known.weight <= 0.0 || rng.f32() * all < unknown.weight {
            true => unknown.kept.choose(rng),
            false => known.kept.choose(rng),
        }
    }
}

/// True if the member at `index` is left out of this decision because it fails.
#[inline]
pub(super) fn sits_out(view: &View<'_>, index: usize, rng: &mut fastrand::Rng) -> bool {
    let share = view.failure_share(index);
    share > 0.0 && rng.f32() < 2.0 * share
}

/// Chooses a member where no load is known: the one with the fewest requests in flight for its weight.
fn of_unknown(
    view: &View<'_>,
    rng: &mut fastrand::Rng,
    trace: &mut Trace,
    shares: &Shares,
) -> Option<usize> {
    let mut index = shares.least_in_flight(view, rng, None)?;
    let fails = sits_out(view, index, rng) && rng.f32() >= TRIAL;
    if fails && let Some(other) = shares.least_in_flight(view, rng, Some(index)) {
        trace.note_candidate(index, None, || {
            "load unknown, left out because it fails".into()
        });
        index = other;
    }
    trace.note_candidate(index, None, || {
        let (work, weight) = (view.describe_work(index), Short(view.member_weight(index)));
        format!("no load is known: fewest in flight for its weight, {work}, weight {weight}")
    });
    Some(index)
}

/// Chooses an eligible member with little load per unit of weight. If no member has the load of the `query`, no load is
/// known. `empty` says how many members are kept to choose from, and which loads count as equal.
#[inline]
pub(super) fn pick_least<K: Keep>(
    view: &View<'_>,
    rng: &mut fastrand::Rng,
    trace: &mut Trace,
    shares: &Shares,
    query: &Query,
    empty: K,
    standing: impl Fn(&View<'_>, usize) -> LoadKnowledge,
) -> Option<usize> {
    if !view.has_reports() {
        return of_unknown(view, rng, trace, shares);
    }
    let learns = rng.u32(..LEARNING_INTERVAL) == 0;
    let Some(means) = view.member_means(query, learns) else {
        return of_unknown(view, rng, trace, shares);
    };
    let view = &view.with_means(means);
    let nobody = Part {
        kept: empty,
        weight: 0.0,
    };
    let (mut usual, mut special) = (nobody, None);
    for index in view.eligible_indices() {
        let weight = view.member_weight(index);
        let standing = standing(view, index);
        let fails = sits_out(view, index, rng);
        let known_work = || view.known_work(index);
        let score = standing.load().unwrap_or_else(known_work) / weight;
        if trace.is_on() {
            explain(view, trace, index, score, standing, fails);
        }
        if matches!(standing, LoadKnowledge::Known(_)) && !fails {
            usual.offer(index, score, weight, rng);
        } else {
            let special = special.get_or_insert_with(|| Special::new(nobody));
            let part = special.part(standing, fails);
            part.offer(index, score, weight, rng);
        }
    }
    match special {
        None => usual.kept.choose(rng),
        Some(special) => special.choose(usual, view, rng, trace),
    }
}

/// A strategy that takes the smallest effective load.
#[derive(Debug)]
pub(super) struct LeastLoad {
    pub(super) shares: Shares,
    pub(super) shaping: Shaping,
    /// Loads that differ by less than this share count as equal.
    pub(super) spread: f32,
    /// Load from which on a member is taken only if all members have such a load.
    pub(super) reject: f32,
    /// True if the load of one client counts as the per-balance load, where that is not set.
    pub(super) counts_clients: bool,
    pub(super) threshold: Option<Threshold>,
}

impl LeastLoad {
    pub(super) fn new(spread: f32, shaping: Shaping, members: &[Member]) -> Self {
        LeastLoad {
            shares: Shares::new(0.0, members),
            shaping,
            spread,
            reject: f32::INFINITY,
            counts_clients: false,
            threshold: None,
        }
    }
}

impl Strategy for LeastLoad {
    fn pick(&self, view: &View<'_>, rng: &mut fastrand::Rng, trace: &mut Trace) -> Option<usize> {
        let mut shaping = self.shaping;
        if self.counts_clients && shaping.per_balance_load == 0.0 {
            shaping.per_balance_load = view.client_load();
        }
        let (shaping, reject) = (shaping.if_any(), self.reject);
        let (shares, query, empty) = (&self.shares, view.load_query(), Best::new(self.spread));
        pick_least(
            view,
            rng,
            trace,
            shares,
            query,
            empty,
            |view, index| match view.effective_load(index, shaping) {
                Some(load) if load < reject => LoadKnowledge::Known(load),
                Some(load) => LoadKnowledge::Rejects(load),
                None => LoadKnowledge::Unknown,
            },
        )
    }

    fn alert_threshold(&self) -> Option<Threshold> {
        self.threshold
    }
}

#[cold]
fn explain(
    view: &View<'_>,
    trace: &mut Trace,
    index: usize,
    score: f32,
    standing: LoadKnowledge,
    fails: bool,
) {
    trace.note_candidate(index, Some(score.into()), || {
        let load = match standing {
            LoadKnowledge::Known(load) => format!("load {load:.3}"),
            LoadKnowledge::Rejects(load) => {
                format!("load {load:.3} at or above the reject threshold")
            }
            LoadKnowledge::Unknown => "load unknown".into(),
        };
        let weight = Short(view.member_weight(index));
        let work = match standing {
            LoadKnowledge::Unknown => view.describe_work(index),
            _ => view.in_flight(index),
        };
        let fails = if fails {
            ", left out because it fails"
        } else {
            ""
        };
        format!("{load}, {work}, weight {weight}{fails}")
    });
}
