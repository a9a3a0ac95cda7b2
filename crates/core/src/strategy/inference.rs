//! `inference`: the member at which a request to a language model delays everybody least.
//!
//! Costs and learning are those of the crate `evenkeel-inference` (`cost`, `group`). A request without a plan, which
//! nobody has read, goes to the member with the fewest requests in flight.
//!
//! Groups of up to [`SCAN_UP_TO`] engines are compared as a whole. In a larger group, the engines that hold a part of the
//! prompt are compared with [`DRAWN`] others. Half of these are drawn at random, as in `least_request`, and half by the
//! prompt's first block. If nobody holds a part of the prompt, all are drawn by the first block: several balancers draw the
//! same engines for a new prompt, and begin at the same one.

use evenkeel_inference::cost::{Candidate, ReportedLoad};
use evenkeel_inference::group::RequestPlan;
use evenkeel_inference::index::MAX_MATCHES;

use super::choose::{Choices, MAX_CHOICES};
use super::kind::{Kind, RequestNeeds, Strategy};
use super::shares::Shares;
use crate::engine_work::EngineWork;
use crate::group::view::View;
use crate::load::LoadId;
use crate::trace::Trace;

/// Most engines of a group that are compared as a whole.
const SCAN_UP_TO: usize = 128;

/// Engines that are drawn in a larger group, at most.
const DRAWN: usize = 32;

/// Most draws for each engine that is wanted.
const TRIES: usize = 8;

pub(super) const KIND: Kind = Kind {
    name: "inference",
    doc: "The member at which the request delays all requests least, by what the member has read before, its queue in tokens and its learnt speeds. For engines that serve language models.",
    looks_at_loads: false,
    request_needs: RequestNeeds::Body,
    ..Kind::made_by(|_, members| {
        Box::new(Inference {
            choices: Choices::fixed(MAX_CHOICES, SCAN_UP_TO),
            shares: Shares::new(0.0, members),
        })
    })
};

#[derive(Debug)]
struct Inference {
    /// Choice of the members that are compared for requests without a plan.
    choices: Choices,
    shares: Shares,
}

impl Strategy for Inference {
    fn pick(&self, view: &View<'_>, rng: &mut fastrand::Rng, trace: &mut Trace) -> Option<usize> {
        if let Some(plan) = view.request().plan
            && let Some(index) = pick_engine(view, plan, rng, trace)
        {
            return Some(index);
        }
        if !self.choices.are_all(view) {
            let candidates = self.choices.candidates(view, rng, self.shares.urn());
            return candidates.fewest_in_flight(view, rng, trace, &self.shares);
        }
        let index = self.shares.least_in_flight(view, rng, None)?;
        trace.note_candidate(index, None, || view.describe_work(index));
        Some(index)
    }
}

/// Picks the member whose engine has the lowest cost. `None` if no member with a number may be picked.
fn pick_engine(
    view: &View<'_>,
    plan: &RequestPlan<'_>,
    rng: &mut fastrand::Rng,
    trace: &mut Trace,
) -> Option<usize> {
    let numbers = view.engine_numbers();
    if numbers > SCAN_UP_TO {
        let drawn = EngineSample::draw(view, plan, rng);
        if !drawn.as_slice().is_empty() {
            let numbers = drawn.as_slice().iter().map(|number| usize::from(*number));
            return pick_among(view, plan, numbers, trace);
        }
    }
    pick_among(view, plan, 0..numbers, trace)
}

/// Picks the member whose engine has the lowest cost among the engines with these numbers.
fn pick_among(
    view: &View<'_>,
    plan: &RequestPlan<'_>,
    numbers: impl Iterator<Item = usize> + Clone,
    trace: &mut Trace,
) -> Option<usize> {
    let engines = view.engines()?;
    let elsewhere = engines.work_elsewhere().read_at(view.decision_time());
    let candidates = numbers.filter_map(|member| {
        let index = view.eligible_engine(member)?;
        Some(Candidate {
            member,
            key: view.name_hash(index),
            weight: view.member_weight(index),
            extra_seconds: view.penalty(index),
            load: match elsewhere.is_empty() {
                true => read_engine_load(view, index),
                false => add_elsewhere(read_engine_load(view, index), elsewhere.get(member)),
            },
        })
    });
    let now = view.decision_time().as_nanos();
    let group = engines.group();
    let target = view.settings().inference.ttft_target;
    let is_noted = trace.is_on() || target.is_some();
    let mut queued_seconds = f32::MAX;
    let chosen = group.choose_member(plan, candidates.clone(), now, |candidate, cost| {
        if !is_noted {
            return;
        }
        queued_seconds = queued_seconds.min(cost.queued_seconds());
        if trace.is_on()
            && let Some(index) = view.eligible_engine(candidate.member)
        {
            trace.note_candidate(index, Some(cost.total().into()), || cost.to_string());
        }
    })?;
    if let Some(target) = target {
        plan.note_queued_seconds(queued_seconds);
        if view.request().ahead.is_some() && queued_seconds > target.as_secs_f32() {
            // The request waits, so that nothing is sent to the chosen member.
            return view.eligible_engine(chosen.member);
        }
    }
    if !view.is_rehearsal() {
        group.learn_choice(plan, candidates, &chosen, now);
    }
    view.eligible_engine(chosen.member)
}

/// Reads the queue that an engine has told in its own metrics, which corrects the balancer's count: other clients may use
/// the engine. Unknown and old numbers are none.
#[inline]
fn read_engine_load(view: &View<'_>, index: usize) -> ReportedLoad {
    if !view.has_reports() {
        return ReportedLoad::default();
    }
    let (now, max_age) = (view.decision_time(), view.settings().load_max_age);
    let read = |id| view.location(index).fresh_load(id, now, max_age);
    let waiting = read(LoadId::WAITING_REQUESTS);
    // Only engines tell how many wait: `in_flight` alone may be this balancer's own count.
    let running = waiting.and_then(|waiting| Some((read(LoadId::IN_FLIGHT)? - waiting).max(0.0)));
    ReportedLoad {
        waiting,
        running,
        ..ReportedLoad::default()
    }
}

/// Adds the work of other balancers to the load of an engine.
#[inline]
fn add_elsewhere(load: ReportedLoad, elsewhere: EngineWork) -> ReportedLoad {
    ReportedLoad {
        queued_elsewhere: elsewhere.queued_tokens as f32,
        waiting_elsewhere: elsewhere.waiting as f32,
        streams_elsewhere: elsewhere.streams as f32,
        ..load
    }
}

/// Engines of a large group that are compared, by their numbers.
struct EngineSample {
    list: [u16; DRAWN + MAX_MATCHES],
    count: usize,
}

impl EngineSample {
    /// Draws engines that may be picked, after those that hold a part of the prompt.
    fn draw(view: &View<'_>, plan: &RequestPlan<'_>, rng: &mut fastrand::Rng) -> Self {
        let mut drawn = EngineSample {
            list: [0; DRAWN + MAX_MATCHES],
            count: 0,
        };
        let work = plan.request_work();
        for holder in work.matches.as_slice() {
            drawn.add(view, holder.member);
        }
        let at_random = match work.matches.is_empty() {
            true => 0,
            false => DRAWN / 2,
        };
        let mut by_prompt = fastrand::Rng::with_seed(work.tie_key);
        drawn.add_some(DRAWN - at_random, view, &mut by_prompt);
        drawn.add_some(at_random, view, rng);
        drawn
    }

    /// Draws `wanted` engines that are not in the list, or fewer if hardly any may be picked.
    fn add_some(&mut self, wanted: usize, view: &View<'_>, rng: &mut fastrand::Rng) {
        let enough = self.count + wanted;
        let numbers = u16::try_from(view.engine_numbers()).unwrap_or(u16::MAX);
        for _ in 0..TRIES * wanted {
            if self.count >= enough {
                break;
            }
            self.add(view, rng.u16(..numbers.max(1)));
        }
    }

    /// Adds an engine that may be picked and is not in the list.
    fn add(&mut self, view: &View<'_>, number: u16) {
        let is_known = self.as_slice().contains(&number);
        if !is_known
            && view.eligible_engine(usize::from(number)).is_some()
            && let Some(place) = self.list.get_mut(self.count)
        {
            *place = number;
            self.count += 1;
        }
    }

    fn as_slice(&self) -> &[u16] {
        self.list.get(..self.count).unwrap_or_default()
    }
}
