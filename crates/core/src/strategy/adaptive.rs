//! `adaptive`: the shortest expected completion. The default; nothing needs to be set.
//!
//! A member's score is the time in which a request would probably be done there:
//!
//! ```text
//! score = service time * (in flight / weight + 1) * (1 + 30 * failure share) * cost of load
//! ```
//!
//! - *Service time* is what the member takes for one request, queueing excluded, over
//!   its last 32 answers, with the ages of what is unanswered counted in (see
//!   `estimate.rs`). Times in flight plus one, that is the shortest expected delay
//!   policy (Weber, "On the Optimal Assignment of Customers to Parallel Servers", 1978)
//!   with the delay learnt. A plain latency average would count the queue twice and
//!   take a loaded member for a slow one. Where other balancers use the same members,
//!   the service time rises with what they do there, and so tells of it.
//! - *In flight* is our own count.
//! - *Failure share* is over the last sixteen requests: a failure costs as much as
//!   thirty requests, however fast it was, and is in no latency. So a member that fails
//!   half of its requests counts as sixteen times slower.
//! - *Cost of load* is 1 / (1 - *e*), where *e* is by how much the utilisation that the
//!   location reports, if that is what the group looks at, exceeds the mean of the others'
//!   by more than 0.1; where the group looks at tasks per CPU (`composite`, `run_queue`) it
//!   is 1 + *e*. It says what latency does not say yet, or cannot (long TCP sessions).
//!   Smaller differences are noise; an unknown load counts as the mean.
//!
//! What is not known, or not known any more:
//!
//! - A member that has not answered yet counts as typical: the geometric mean of the
//!   others, which neither a slow nor a lucky member moves far.
//! - A difference of less than a tenth to that does not count. A stale estimate (no
//!   answer for twenty service times or `latency_decay`) fades towards it, if it is
//!   above, with time constant `latency_decay`, and counts as typical within a factor of
//!   two: small differences are noise, and without this a member would starve for a bad
//!   sample.
//! - One decision in 256 goes to the idle member that has been silent for longest, if
//!   its estimate is stale: so a member that was slow, or failed, is found again. 0.4 %
//!   of the requests cannot reach the 99th percentile.
//!
//! Groups of up to `scan_up_to` members are compared as a whole. In larger ones, members
//! are drawn until one of them is idle and about as fast as the fastest, at most
//! `choices`: mostly two or three.
//!
//! Tried in the harness, and worse (p99, ratio to the ideal, ten members):
//!
//! - peak-sensitive average of the latency instead of the service time: 1.6 with a slow
//!   member instead of 1.1;
//! - an average over 16 answers: 1.09 with mixed costs instead of 1.04, because members
//!   that are equal look different; over 48 a slow member that moves is seen later;
//! - ages not counted: 1.4 with mixed costs and 16 answers;
//! - differences below a factor of 1.5 or 2 never counted: 1.23 with two balancers
//!   instead of 1.13;
//! - the fastest candidate as the typical one: noise, where traffic is low;
//! - an extra cost for members that are silent with requests waiting: no better, and
//!   worse with three members;
//! - the least recently used of equal members: no difference;
//! - five draws of three hundred members: 1.08 instead of 1.00;
//! - reported requests in flight instead of our own: no better if reported twice in a
//!   service time, 1.22 instead of 1.15 if every ten;
//! - `1 / (1 - utilisation)`, as in an M/G/1 queue: 1.7 instead of 1.15 with a report
//!   each second, because latency has it already and is newer.

use super::choose::{Best, CHOICES, Candidates, Choices, MAX_CHOICES, SCAN_UP_TO};
use super::{Kind, Param, Strategy};
use crate::estimate::fade;
use crate::group::View;
use crate::trace::{Short, Trace};

pub(super) const KIND: Kind = Kind {
    name: "adaptive",
    doc: "The member that is expected to be done first, by its learnt service time, requests in flight, failures and reported load. Right for nearly everything.",
    params: PARAMS,
    build: |values, members| {
        Box::new(Adaptive {
            choices: Choices::new(values, members),
        })
    },
};

const PARAMS: &[Param] = &[
    Param {
        doc: "Most members that are drawn and compared in larger groups; drawing ends when a good one is found.",
        default: 12.0,
        ..CHOICES
    },
    Param {
        default: 32.0,
        ..SCAN_UP_TO
    },
];

/// What a failure costs, in requests.
const FAILURE_COST: f32 = 30.0;

/// A reported utilisation above the mean by less than this does not count.
const LOAD_TOLERANCE: f32 = 0.1;

/// Differences of service times up to this factor are ignored once they are stale, and
/// when drawing ends.
const SIMILAR: f32 = 2.0;

/// Differences up to this factor never count: members that are equal share the traffic.
const SAME: f32 = 1.1;

/// One decision in so many looks for news from a silent member.
const TRIAL_INTERVAL: u32 = 256;

#[derive(Debug)]
struct Adaptive {
    choices: Choices,
}

impl Strategy for Adaptive {
    fn name(&self) -> &'static str {
        KIND.name
    }

    fn pick(&self, view: &View<'_>, rng: &mut fastrand::Rng, trace: &mut Trace) -> Option<usize> {
        // Each one drawn is looked at once: in a large group that is a cache miss.
        let mut looks = [Look::default(); MAX_CHOICES];
        let candidates = self.choices.candidates_until(view, rng, |drawn| {
            let last = drawn.len() - 1;
            looks[last] = Look::at(view, drawn[last] as usize);
            has_good_one(&looks[..=last])
        });
        if rng.u32(..TRIAL_INTERVAL) == 0 {
            let silence = |index: usize| match view.slot(index).in_flight() {
                0 => view.stale_since(index).map_or(0.0, |s| s.as_secs_f32()),
                _ => 0.0,
            };
            let longest = candidates.lowest(view, rng, |index| -silence(index));
            if let Some(index) = longest
                && silence(index) > 0.0
            {
                trace.candidate(index, None, || {
                    let seconds = silence(index);
                    format!("tried for news: idle, and silent for {seconds:.1} s")
                });
                return Some(index);
            }
        }

        match &candidates {
            Candidates::Drawn(_, count) => {
                let looks = looks[..*count].iter().copied();
                // The first of equal ones was drawn by weight.
                shortest(view, rng, trace, looks, |_| 0.0)
            }
            Candidates::All if view.len() <= LOOKS => {
                let mut looks = [Look::default(); LOOKS];
                let mut count = 0;
                for (look, index) in looks.iter_mut().zip(view.eligible()) {
                    *look = Look::at(view, index);
                    count += 1;
                }
                let looks = looks[..count].iter().copied();
                shortest(view, rng, trace, looks, |look| look.weight)
            }
            Candidates::All => {
                let looks = view.eligible().map(|index| Look::at(view, index));
                shortest(view, rng, trace, looks, |look| look.weight)
            }
        }
    }
}

/// Members that are looked at once, rather than for each sum, when all are compared.
const LOOKS: usize = 32;

/// What a decision needs to know of a candidate.
#[derive(Clone, Copy, Debug, Default)]
struct Look {
    index: u32,
    in_flight: u32,
    weight: f32,
    /// Service time in seconds.
    known: Option<f32>,
    failures: f32,
    /// Reported utilisation, or tasks per CPU.
    load: Option<f32>,
}

impl Look {
    #[inline]
    fn at(view: &View<'_>, index: usize) -> Self {
        Look {
            index: index as u32,
            in_flight: view.slot(index).in_flight(),
            weight: view.weight(index),
            known: view.service_time(index),
            failures: view.failure_share(index),
            load: match view.settings().load_id {
                id if id.is_utilization() || id.is_queue() => view.load(index),
                _ => None,
            },
        }
    }
}

/// The candidate with the lowest score; of equal ones one by chance, by `share`.
#[inline]
fn shortest(
    view: &View<'_>,
    rng: &mut fastrand::Rng,
    trace: &mut Trace,
    looks: impl Iterator<Item = Look> + Clone,
    share: impl Fn(&Look) -> f32,
) -> Option<usize> {
    // The geometric mean: neither a slow member nor a lucky one moves it far.
    let typical = mean(looks.clone().filter_map(|look| look.known.map(f32::log2)));
    let typical = typical.map_or(1.0, f32::exp2);
    let mean_load = mean(looks.clone().filter_map(|look| look.load));
    let is_queue = view.settings().load_id.is_queue();
    let mut best = Best::new(0.0);
    for look in looks {
        let index = look.index as usize;
        let service = match look.known {
            None => typical,
            Some(time) => believed(view, index, time, typical),
        };
        let places = look.in_flight as f32 / look.weight + 1.0;
        let cost = match (look.load, mean_load) {
            (Some(load), Some(mean)) => cost_of_load(load, mean, is_queue),
            _ => 1.0,
        };
        let score = service * places * (1.0 + FAILURE_COST * look.failures) * cost;
        trace.candidate(index, Some(score.into()), || {
            let source = match look.known {
                None => " (typical: no answer yet)".into(),
                Some(time) if time != service => {
                    format!(" (last known {:.1} ms)", time * 1e3)
                }
                Some(_) => String::new(),
            };
            let load = match look.load {
                Some(load) => format!(", load {load:.2}"),
                None => String::new(),
            };
            format!(
                "service time {:.1} ms{source}, in flight {}, weight {}, failures {:.0} %{load}",
                service * 1e3,
                look.in_flight,
                Short(look.weight),
                look.failures * 100.0,
            )
        });
        best.offer(index, score, share(&look), rng);
    }
    best.index()
}

/// What a reported load above the mean multiplies a score by.
#[inline]
fn cost_of_load(load: f32, mean: f32, is_queue: bool) -> f32 {
    let excess = |load: f32| (load - mean - LOAD_TOLERANCE).max(0.0);
    match is_queue {
        true => 1.0 + excess(load),
        false => 1.0 / (1.0 - excess(load.min(1.0))),
    }
}

#[inline]
fn mean(values: impl Iterator<Item = f32>) -> Option<f32> {
    let (mut sum, mut count) = (0.0, 0);
    for value in values {
        sum += value;
        count += 1;
    }
    (count > 0).then(|| sum / count as f32)
}

/// What the service `time` of the member at `index` counts as.
#[inline]
fn believed(view: &View<'_>, index: usize, time: f32, typical: f32) -> f32 {
    let ratio = time / typical;
    if (1.0 / SAME..SAME).contains(&ratio) {
        return typical;
    }
    if ratio <= 1.0 / SIMILAR {
        return time;
    }
    let Some(silence) = view.stale_since(index) else {
        return time;
    };
    if ratio < SIMILAR {
        return typical;
    }
    let faded = ratio * fade(silence, view.settings().latency_decay);
    if faded < SIMILAR {
        typical
    } else {
        faded * typical
    }
}

/// Whether one of those drawn, two at least, is as good as it gets: idle, without
/// failures, about as fast as the fastest, and with a CPU to spare if it says so.
#[inline]
fn has_good_one(drawn: &[Look]) -> bool {
    if drawn.len() < 2 {
        return false;
    }
    let times = drawn.iter().filter_map(|look| look.known);
    let fastest = times.fold(f32::INFINITY, f32::min);
    drawn.iter().any(|look| {
        look.in_flight == 0
            && look.known.is_none_or(|time| time < SIMILAR * fastest)
            && look.failures == 0.0
            && look.load.is_none_or(|load| load < 1.0)
    })
}
