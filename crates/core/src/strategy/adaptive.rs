//! `adaptive`: the shortest expected completion. The default; nothing needs to be set.
//!
//! A member's score is the time in which a request would probably be done there:
//!
//! ```text
//! score = service time * places * (1 + 30 * failure share) * cost of load
//! ```
//!
//! - *Service time* is what the member takes for one request, queueing excluded, over
//!   its last 20 to 40 answers, with the ages of what is unanswered counted in (see
//!   `estimate.rs`); where requests wait for members that work on few at once, what is most likely now
//!   (`filter.rs`). Times in flight plus one, that is the shortest expected delay
//!   policy (Weber, "On the Optimal Assignment of Customers to Parallel Servers", 1978)
//!   with the delay learnt. A plain latency average would count the queue twice and
//!   take a loaded member for a slow one. What a queue is, and what is work on many requests at
//!   once, is learnt for the group (`Growth` in `regression.rs`): taken for a queue, the eight
//!   requests at once of a member with eight workers make it look eight times faster than
//!   one that is idle, and it keeps them whatever it reports. Where other balancers use the same
//!   members, the service time rises with what they do there, and so tells of it.
//! - *Places* is 1 with nothing in flight, 2 with one request, and grows by what was learnt
//!   with each one more, by 0.5 at least: members that are equal should have equally many.
//! - *Failure share* is over the last sixteen requests: a failure costs as much as
//!   thirty requests, however fast it was, and is in no latency. So a member that fails
//!   half of its requests counts as sixteen times slower.
//! - *Cost of load* is 1 / (1 - *e*), where *e* is by how much the utilisation that the
//!   location reports, if that is what the group looks at, exceeds the mean of the others'
//!   by more than 0.1; where the group looks at queues for a CPU (`composite`, `run_queue`) it
//!   is 1 + *e*. It says what latency does not say yet, or cannot (long TCP sessions).
//!   Smaller differences are noise; an unknown load counts as the mean. Where nothing was
//!   ever reported, nothing is looked for. The load counts with what our requests add as long
//!   as they are there, where reports are fast enough to tell that. What those have added that
//!   came since a slow report is not estimated: places and latency have them, and an estimate made
//!   after a silence took a few short requests for a full member.
//!
//! A weight is a share of what equal members get: see `shares.rs`.
//!
//! What is not known, or not known any more:
//!
//! - A member that has not answered yet counts as typical: the geometric mean of the
//!   others, which neither a slow nor a lucky member moves far.
//! - A stale estimate (no answer for a hundred service times or `latency_decay`) fades towards
//!   that, if it is above, with time constant `latency_decay`, and counts as typical within a
//!   factor of two: small differences are noise, and without this a member would starve for a
//!   bad sample.
//! - One decision in 256 goes to the idle member that has been silent for longest, if
//!   its estimate is stale: so a member that was slow, or failed, is found again. 0.4 %
//!   of the requests cannot reach the 99th percentile.
//!
//! Groups of up to `scan_up_to` members are compared as a whole. In larger ones, members
//! are drawn until one of them is idle and about as fast as the fastest, at most
//! `choices`: mostly two or three.
//!
//! Averages reach over fewer answers where these differ little (`regression.rs`), and requests that may wait do where
//! members have few workers (`group/late.rs`), with a filter of likelihoods in the place of the average (`filter.rs`).
//! Settings and ideas that were tried and lost are in `docs/design/adaptive.md`.

use super::best::Best;
use super::choose::{CHOICES, Candidates, Choices, MAX_CHOICES, SCAN_UP_TO};
use super::kind::{Kind, Param, Strategy};
use super::shares::{Ahead, Candidate, Due, Logs, Shares, Sums, weight_and_account};
use crate::estimate::{FAILURE_COST, Moment, exp2, fade, higher, log2, lower};
use crate::group::view::{Busyness, View};
use crate::load::Loads;
use crate::terms::Form;
use crate::trace::{Short, Trace};

pub(super) const KIND: Kind = Kind {
    name: "adaptive",
    doc: "The member that is expected to finish the request first, by its learnt service time, requests in flight, failures and reported load. Suits nearly all groups.",
    params: PARAMS,
    binds_late: true,
    ..Kind::made_by(|values, members| {
        Box::new(Adaptive {
            choices: Choices::new(values),
            shares: Shares::new(SPREAD, members),
        })
    })
};

const PARAMS: &[Param] = &[
    Param {
        doc: "Maximum number of members that are drawn and compared in larger groups; drawing ends when a good one is found.",
        default: 12.0,
        ..CHOICES
    },
    Param {
        default: 32.0,
        ..SCAN_UP_TO
    },
];

/// Differences of service times up to this factor are ignored once they are stale, and
/// when drawing ends.
const SIMILAR: f32 = 2.0;

/// The [`log2`] of [`SIMILAR`], less the one of 1.
const SIMILAR_LOG: f32 = 1.0;

/// Scores that differ by less than this share count as equal: members that are equal share
/// the traffic.
const SPREAD: f32 = 0.01;

/// Each request more is taken to cost at least this share of a service time, even where all
/// seem to be worked on at once: no server works on any number of requests at once, and
/// members that are equal should have equally many.
const LEAST_GROWTH: f32 = 0.5;

/// Members take turns if one of them has been without a request for this many times the time that all members take for
/// one: if there is less than a quarter of a request in flight on average. With more traffic, answers are news that a
/// turn would ignore.
const RARELY: f32 = 4.0;

/// Interval of decisions at which the growth of latencies with requests in flight is learnt: one in this number.
const LEARNING_INTERVAL: u32 = 32;

/// Interval of decisions at which news from a silent member is looked for: one in this number.
const TRIAL_INTERVAL: u32 = 256;

#[derive(Debug)]
struct Adaptive {
    choices: Choices,
    shares: Shares,
}

impl Strategy for Adaptive {
    fn fill_costs(&self, view: &View<'_>, costs: &mut Vec<f32>) -> Form {
        let eye = MemberScorer::new(view);
        let looks = (0..view.len()).map(|index| (index, eye.look_again(index)));
        let mut others = Others::default();
        for (index, look) in looks.clone() {
            if view.is_eligible_unless_full(index) {
                others.add(&look);
            }
        }
        costs.extend(looks.map(|(_, look)| {
            let cost = others.cost(&look, eye.busyness.is_queue);
            believed(view, &look, &others) * cost / look.weight
        }));
        learn_growth(view, &Candidates::All);
        Form::Score {
            growth: higher(view.growth(), LEAST_GROWTH),
        }
    }

    fn pick(&self, view: &View<'_>, rng: &mut fastrand::Rng, trace: &mut Trace) -> Option<usize> {
        if view.has_clients()
            && !view
                .eligible_indices()
                .any(|index| view.slot(index).has_latency())
        {
            // Clients go to the members themselves: there are no answers to go by.
            let index = self.shares.least_in_flight(view, rng, None)?;
            trace.note_candidate(index, None, || view.describe_work(index));
            return Some(index);
        }
        let eye = MemberScorer::new(view);
        let chance = rng.u32(..TRIAL_INTERVAL);
        if self.choices.are_all(view) {
            let news = learn(view, rng, trace, &Candidates::All, chance);
            return news.or_else(|| self.shortest_of_all(&eye, rng, trace));
        }
        // Each one drawn is looked at once: in a large group that is a cache miss.
        let mut looks = [CandidateView::default(); MAX_CHOICES];
        let mut others = Others::default();
        let mut good = Good::default();
        let candidates = self
            .choices
            .candidates_until(view, rng, self.shares.urn(), |drawn| {
                let last = drawn.len() - 1;
                let look = eye.look(drawn[last] as usize);
                others.add(&look);
                good.add(&look);
                looks[last] = look;
                last > 0 && good.is_there(&others, eye.busyness.is_queue)
            });
        if let Some(index) = learn(view, rng, trace, &candidates, chance) {
            return Some(index);
        }
        let others = others;
        match candidates {
            Candidates::Drawn(_, count) => {
                let looks = looks[..count].iter().copied();
                self.shortest(&eye, rng, trace, looks, &others, Due::First)
            }
            Candidates::All => self.shortest_of_all(&eye, rng, trace),
        }
    }
}

/// For how many seconds there has been no news of the member at `index`, if it is idle and
/// may have changed since.
fn silence(view: &View<'_>, index: usize) -> f32 {
    match view.slot(index).in_flight() {
        0 => view.stale_since(index).map_or(0.0, |s| s.as_secs_f32()),
        _ => 0.0,
    }
}

/// Learns what candidates have shown, and names one to be tried for news, if `chance` says so.
#[inline]
fn learn(
    view: &View<'_>,
    rng: &mut fastrand::Rng,
    trace: &mut Trace,
    candidates: &Candidates,
    chance: u32,
) -> Option<usize> {
    if !chance.is_multiple_of(LEARNING_INTERVAL) {
        return None;
    }
    learn_growth(view, candidates);
    let index = (chance == 0).then(|| silent_for_longest(view, rng, candidates))??;
    trace.note_candidate(index, None, || {
        let seconds = silence(view, index);
        format!("tried to measure the member: idle, and without an answer for {seconds:.1} s")
    });
    Some(index)
}

#[cold]
fn learn_growth(view: &View<'_>, candidates: &Candidates) {
    if !view.is_rehearsal() {
        view.learn_growth(candidates.indices(view));
    }
}

#[cold]
fn silent_for_longest(
    view: &View<'_>,
    rng: &mut fastrand::Rng,
    candidates: &Candidates,
) -> Option<usize> {
    let mut best = Best::new(0.0);
    candidates.indices(view).for_each(|index| {
        let silence = silence(view, index);
        if silence > 0.0 {
            best.offer(index, -silence, view.member_weight(index), rng);
        }
    });
    best.index()
}

/// Members that are looked at once, rather than for each sum.
const LOOKS: usize = 32;

/// Data of a candidate that a decision needs.
#[derive(Clone, Copy, Debug, Default)]
struct CandidateView {
    index: u32,
    /// Sum of the costs of the requests in flight.
    in_flight: f32,
    weight: f32,
    account: u8,
    is_stale: bool,
    /// Service time of a request of cost 1 in seconds; 0 means unknown.
    time: f32,
    failures: f32,
    /// Reported utilisation, or tasks per CPU; -1 means unknown.
    load: f32,
}

/// Looks at members: data that all of them share is worked out once.
struct MemberScorer<'v, 'a> {
    view: &'v View<'a>,
    moment: Moment,
    busyness: Busyness,
}

impl<'v, 'a> MemberScorer<'v, 'a> {
    fn new(view: &'v View<'a>) -> Self {
        MemberScorer {
            view,
            moment: view.decision_moment(),
            busyness: Busyness::new(view),
        }
    }

    // Two calls for each member would cost a sixth of all that is done for it.
    #[inline(always)]
    fn look(&self, index: usize) -> CandidateView {
        let slot = self.view.slot(index);
        let in_flight = slot.cost_in_flight();
        let service = slot.estimate_service(in_flight, &self.moment);
        let (weight, account) = weight_and_account(self.view, index);
        CandidateView {
            index: index as u32,
            in_flight,
            weight,
            account,
            is_stale: service.is_some_and(|service| service.is_stale),
            time: service.map_or(0.0, |service| service.time),
            failures: self.view.failure_share(index),
            load: self.busyness.busyness_at(self.view, index),
        }
    }

    /// Looks at a member, where that is done seldom.
    #[cold]
    fn look_again(&self, index: usize) -> CandidateView {
        self.look(index)
    }
}

/// Sums over all candidates; a candidate's own part is left out where the candidate is compared with the others.
#[derive(Clone, Copy, Debug, Default)]
struct Others {
    /// Neither a slow member nor a lucky one moves the mean of logarithms far.
    times: Logs,
    loads: Loads,
    sums: Sums,
}

impl Others {
    #[inline]
    fn add(&mut self, look: &CandidateView) {
        self.sums.add_member(look.weight, look.in_flight);
        self.times.add(log2(look.time));
        self.loads.add_load(look.load);
    }

    /// Factor by which failures and reported load multiply a score.
    #[inline]
    fn cost(&self, look: &CandidateView, is_queue: bool) -> f32 {
        (1.0 + FAILURE_COST * look.failures) * self.loads.cost_factor(look.load, is_queue)
    }
}

impl Adaptive {
    /// The member with the lowest score.
    #[inline(never)]
    fn shortest_of_all(
        &self,
        eye: &MemberScorer<'_, '_>,
        rng: &mut fastrand::Rng,
        trace: &mut Trace,
    ) -> Option<usize> {
        let mut looks = [CandidateView::default(); LOOKS];
        let mut others = Others::default();
        let mut count = 0;
        for index in 0..eye.view.len() {
            if !eye.view.is_eligible(index) {
                continue;
            }
            let look = eye.look(index);
            others.add(&look);
            if let Some(place) = looks.get_mut(count) {
                *place = look;
            }
            count += 1;
        }
        let others = others;
        match looks.get(..count) {
            Some(looks) => {
                let all = looks.iter().copied();
                let best = self.shortest(eye, rng, trace, all, &others, Due::InTurn)?;
                Some(turn(eye, trace, looks, &others, best))
            }
            None => {
                let looks = eye
                    .view
                    .eligible_indices()
                    .map(|index| eye.look_again(index));
                self.shortest(eye, rng, trace, looks, &others, Due::InTurn)
            }
        }
    }

    /// The candidate with the lowest score.
    // A decision about two that were drawn would else pay for all that one about all needs.
    #[inline(always)]
    fn shortest(
        &self,
        eye: &MemberScorer<'_, '_>,
        rng: &mut fastrand::Rng,
        trace: &mut Trace,
        looks: impl Iterator<Item = CandidateView>,
        others: &Others,
        due: Due,
    ) -> Option<usize> {
        let growth = higher(eye.view.growth(), LEAST_GROWTH);
        let own = eye.view.cost();
        let candidates = looks.map(|look| Candidate {
            index: look.index as usize,
            in_flight: look.in_flight,
            weight: look.weight,
            time: believed(eye.view, &look, others),
            cost: others.cost(&look, eye.busyness.is_queue),
            account: look.account,
        });
        let cost = |index| others.cost(&eye.look_again(index), eye.busyness.is_queue);
        let score = |candidate: &Candidate, compares: f32, price: f32| {
            // Each request after the first one costs as much as was learnt.
            let places = own + compares + (growth - 1.0) * higher(compares - 1.0, 0.0);
            let score = candidate.time * candidate.cost * places * price;
            if trace.is_on() {
                let (index, time) = (candidate.index, candidate.time);
                trace.note_candidate(index, Some(score.into()), || {
                    explain(eye.view, &eye.look_again(index), time, price)
                });
            }
            score
        };
        let means = Some(others.sums.means());
        self.shares
            .pick_lowest(eye.view, rng, candidates, means, cost, due, score)
    }
}

/// Returns another member in place of `best` if no request is in flight at any member, and if no data tells the two
/// apart: the member that was given a request the longest ago. So members that are equal take turns.
///
/// Answers of busy members also tell of what other balancers do there, so these take no turns.
#[inline]
fn turn(
    eye: &MemberScorer<'_, '_>,
    trace: &mut Trace,
    looks: &[CandidateView],
    others: &Others,
    best: usize,
) -> usize {
    if !others.sums.are_idle() {
        return best;
    }
    let Some(look) = looks.iter().find(|look| look.index as usize == best) else {
        return best;
    };
    let mut chosen = (best, eye.view.slot(best).seconds_since_bound(&eye.moment));
    for other in looks {
        let index = other.index as usize;
        if index == best || other.account != look.account {
            continue;
        }
        let unbound = eye.view.slot(index).seconds_since_bound(&eye.moment);
        if unbound > chosen.1
            && unbound > RARELY * looks.len() as f32 * other.time
            && is_alike(eye, others, look, other)
        {
            chosen = (index, unbound);
        }
    }
    if chosen.0 != best {
        trace.note_sentence(|| {
            "idle members with equal estimates take turns: the member that had no request for the longest \
             time is chosen".into()
        });
    }
    chosen.0
}

/// True if no data tells one member from the other: neither load nor failures, nor their answers lately and over a
/// longer time.
#[inline]
fn is_alike(
    eye: &MemberScorer<'_, '_>,
    others: &Others,
    one: &CandidateView,
    other: &CandidateView,
) -> bool {
    let [cost, other_cost] = [one, other].map(|look| others.cost(look, eye.busyness.is_queue));
    if other_cost > cost * (1.0 + SPREAD) {
        return false;
    }
    let [time, other_time] = [one, other].map(|look| believed(eye.view, look, others));
    let [slot, other_slot] = [one, other].map(|look| eye.view.slot(look.index as usize));
    slot.is_like(other_slot, log2(other_time) - log2(time))
}

#[cold]
fn explain(view: &View<'_>, look: &CandidateView, service: f32, price: f32) -> String {
    let source = match look.time {
        0.0 => " (typical: no answer yet)".into(),
        time if time != service => format!(" (last known {:.1} ms)", time * 1e3),
        _ => String::new(),
    };
    let load = match look.load {
        load if load >= 0.0 => format!(", load {load:.2}"),
        _ => String::new(),
    };
    format!(
        "service time {:.1} ms{source}, {}, weight {}, failures {:.0} %{load}{}",
        service * 1e3,
        view.in_flight(look.index as usize),
        Short(look.weight),
        look.failures * 100.0,
        Ahead(price),
    )
}

/// Service time of a member for the comparison with the others.
#[inline]
fn believed(view: &View<'_>, look: &CandidateView, others: &Others) -> f32 {
    if look.time > 0.0 && !look.is_stale {
        return look.time;
    }
    let log = log2(look.time);
    let Some(typical) = others.times.of_others(log) else {
        return if look.time > 0.0 { look.time } else { 1.0 };
    };
    if look.time > 0.0 && log <= typical - SIMILAR_LOG {
        return look.time;
    }
    if log < typical + SIMILAR_LOG {
        return exp2(typical);
    }
    faded(view, look, exp2(typical))
}

/// Service time, for the comparison, of a member that has been silent for long and was slower than the others;
/// `typical` is the others' usual time.
#[cold]
fn faded(view: &View<'_>, look: &CandidateView, typical: f32) -> f32 {
    let silence = view.slot(look.index as usize).silence(view.decision_time());
    let faded = look.time * fade(silence, view.settings().latency_decay);
    if faded < typical * SIMILAR {
        typical
    } else {
        faded
    }
}

/// Check for a good candidate among at least two drawn ones: idle, without failures, and about as fast as the fastest,
/// with the cost of its load.
#[derive(Clone, Copy, Debug)]
struct Good {
    fastest: f32,
    /// Time of the fastest idle candidate, and its load.
    idle: f32,
    load: f32,
}

impl Default for Good {
    fn default() -> Self {
        Good {
            fastest: f32::INFINITY,
            idle: f32::INFINITY,
            load: 0.0,
        }
    }
}

impl Good {
    #[inline]
    fn add(&mut self, look: &CandidateView) {
        if look.time > 0.0 {
            self.fastest = lower(self.fastest, look.time);
        }
        if look.in_flight == 0.0 && look.failures == 0.0 && look.time < self.idle {
            (self.idle, self.load) = (look.time, look.load);
        }
    }

    #[inline]
    fn is_there(&self, others: &Others, is_queue: bool) -> bool {
        let cost = others.loads.cost_factor(self.load, is_queue);
        self.idle * cost < SIMILAR * self.fastest
    }
}
