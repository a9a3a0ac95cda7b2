//! Choosing which members are compared, and comparing them by requests in flight.

use super::kind::{Param, Values};
use super::shares::{Ahead, Candidate, Due, Shares, Sums};
use super::urn::{TRIES, Urn};
use crate::group::view::View;
use crate::load::LoadId;
use crate::trace::{Short, Trace};

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
    /// Distinct members that were drawn, and their number.
    Drawn([u32; MAX_CHOICES], usize),
}

impl Choices {
    /// `values` are the parameters of a strategy with [`CHOICES`] and perhaps [`SCAN_UP_TO`].
    pub(super) fn new(values: &Values) -> Self {
        let get = |param: &Param| values.try_get(param.name).unwrap_or(0.0) as usize;
        Choices {
            choices: get(&CHOICES).clamp(1, MAX_CHOICES),
            scan_up_to: get(&SCAN_UP_TO),
        }
    }

    /// Choices of a strategy without these parameters.
    pub(super) fn fixed(choices: usize, scan_up_to: usize) -> Self {
        Choices {
            choices: choices.clamp(1, MAX_CHOICES),
            scan_up_to,
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

    /// True if all members are compared.
    #[inline]
    pub(super) fn are_all(&self, view: &View<'_>) -> bool {
        view.len() <= self.scan_up_to.max(self.choices)
    }

    /// Draws candidates like [`Choices::candidates`], until `enough` is true for the drawn ones. `enough` is called
    /// after each draw.
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
    /// Indices of the candidates.
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
    /// member, requests in flight as they compare, and a factor: see [`Shares::pick_lowest`].
    #[inline]
    pub(super) fn pick_lowest(
        &self,
        view: &View<'_>,
        rng: &mut fastrand::Rng,
        shares: &Shares,
        in_flight: InFlight<'_, '_>,
        mut score: impl FnMut(usize, f32, f32) -> f32,
    ) -> Option<usize> {
        let at = |index| Candidate::new(view, index, in_flight.cost_at(index));
        let score = |one: &Candidate, compares, price| score(one.index, compares, price);
        match self {
            Candidates::All => {
                let candidates = view.eligible_indices().map(at);
                shares.pick_lowest(view, rng, candidates, None, |_| 1.0, Due::InTurn, score)
            }
            Candidates::Drawn(drawn, count) => {
                let candidates = drawn[..*count].iter().map(|&index| at(index as usize));
                let mut sums = Sums::default();
                for one in candidates.clone() {
                    sums.add_member(one.weight, one.in_flight);
                }
                let means = Some(sums.means());
                shares.pick_lowest(view, rng, candidates, means, |_| 1.0, Due::First, score)
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
        let (in_flight, own) = (self.in_flight(view), view.cost());
        self.pick_lowest(view, rng, shares, in_flight, |index, compares, price| {
            let score = (compares + own) * price;
            if trace.is_on() {
                trace.note_candidate(index, Some(score.into()), || {
                    let (flying, weight) =
                        (in_flight.in_words(index), Short(view.member_weight(index)));
                    format!("{flying}, weight {weight}{}", Ahead(price))
                });
            }
            score
        })
    }

    /// Latency that a candidate without one counts as: the mean of the known ones. `None` if none is known, or if all
    /// are and the mean is not needed.
    #[inline]
    pub(super) fn neutral_latency(&self, view: &View<'_>) -> Option<f32> {
        let mut unknown = false;
        self.indices(view)
            .for_each(|index| unknown |= !view.slot(index).has_latency());
        if !unknown {
            return None;
        }
        self.mean_value(view, |index| view.latency(index))
    }

    /// The mean of the known values of the candidates; `None` if none is known.
    #[inline]
    pub(super) fn mean_value(
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
    /// them, because only then the numbers compare; else our own, and the clients that were sent to the members.
    #[inline]
    pub(super) fn in_flight<'v, 'a>(&self, view: &'v View<'a>) -> InFlight<'v, 'a> {
        let mut reported = view.settings().load_id == LoadId::IN_FLIGHT;
        if reported {
            self.indices(view).for_each(|index| {
                reported &= view.reported_in_flight(index).is_some();
            });
        }
        InFlight {
            view,
            reported,
            is_own: !reported && !view.has_clients(),
        }
    }
}

/// Iterator of [`Candidates::indices`].
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

/// Costs of requests in flight, from one source for all members of a decision.
#[derive(Clone, Copy, Debug)]
pub(super) struct InFlight<'v, 'a> {
    view: &'v View<'a>,
    reported: bool,
    /// True if only our own requests count.
    is_own: bool,
}

impl InFlight<'_, '_> {
    #[inline]
    pub(super) fn cost_at(self, index: usize) -> f32 {
        match self.is_own {
            true => self.view.slot(index).cost_in_flight(),
            false => self.with_others(index),
        }
    }

    pub(super) fn in_words(self, index: usize) -> String {
        match self.reported {
            true => format!("in flight {}", Short(self.with_others(index))),
            false => self.view.describe_work(index),
        }
    }

    #[inline(never)]
    fn with_others(self, index: usize) -> f32 {
        let reported = self.view.reported_in_flight(index);
        let reported = reported.filter(|_| self.reported);
        reported.unwrap_or_else(|| self.view.known_work(index))
    }
}
