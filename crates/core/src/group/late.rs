//! Late binding: a request waits in the group's queue until the member has room at which it would be
//! done first, and goes to none that would take longer only because that one has room now.
//!
//! A member has room while it works on fewer requests than its cap: the configured one (`max_connections`), or the
//! learnt one (`caps.rs`). For a member with service time *s*, cap *c* and *n* requests, one more would be done after
//!
//! ```text
//! n < c: s          n >= c: s (1 + (n + 1 - c) / c)
//! ```
//!
//! If requests have been there for far longer than *s*, the first slot is expected to become free after as long again.
//!
//! Waiting requests reserve in turn: each is counted at the member where it would be done first, and the next one
//! decides with these reservations in mind. A request that would get a free slot is bound; others wait. So a slow
//! member is used as soon as it is sooner than the queue for the fast ones, and not before. Bounded queues at servers,
//! and waiting at the balancer beyond them: Kogias et al., "R2P2: Making RPCs First-Class Datacenter Citizens", 2019.

use super::view::{Busyness, Room, View};
use crate::estimate::FAILURE_COST;
use crate::load::Loads;
use crate::trace::Trace;

/// Members of the largest group for which this is worked out. Among many one is always idle.
pub(super) const MOST_MEMBERS: usize = 32;

/// Most waiting requests that are counted.
const MOST_AHEAD: u32 = 64;

/// Cost of a failure, in requests. Ten times as much as where requests do not wait: a request that waits for long is
/// better off than one that fails.
const FAILURES: f32 = 10.0 * FAILURE_COST;

/// Interval of trials: one of this many requests that would wait is bound at once, because the effect of more requests
/// in flight must be seen to be known. Frequent trials cost latency (`docs/design/adaptive.md` has figures).
const TRIAL_INTERVAL: u32 = 512;

/// Number of waiting requests for each member for which each learnt cap counts as one higher: a cap that was learnt
/// wrongly costs little throughput, and when all members are busy all the time, waiting for one of them gains nothing.
const WAITING_FOR_ONE: u32 = 4;

/// Number of service times after which a request at a member is expected to stay for as long again: the member may have
/// stalled.
const UNUSUAL: f32 = 8.0;

/// Interval at which caps are learnt: one of this many decisions.
pub(super) const LEARNING_INTERVAL: u32 = 32;

/// Decision about a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LateDecision {
    /// Bind it at once, to whom the strategy says.
    Now,
    /// Bind it to this member, and not to the one the strategy named, which has no room.
    OtherMember(usize),
    /// The request waits.
    Hold,
}

/// A member, as the reservations change it.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    index: usize,
    /// Time of a request at the member, in seconds; failures are included.
    time: f32,
    in_flight: u32,
    /// Age of the member's requests, in seconds.
    age: f32,
    /// Reported load; -1 means unknown.
    load: f32,
    /// Most requests at once; 0 means any number.
    cap: u32,
    /// True if `cap` is a configured limit, and not learnt.
    is_limit: bool,
}

impl Place {
    fn has_room(&self) -> bool {
        self.cap == 0 || self.in_flight < self.cap
    }

    /// Time until one more request would be done at the member.
    fn done(&self, growth: f32) -> f32 {
        match self.cap {
            0 => self.time * (1.0 + growth * self.in_flight as f32),
            cap if self.in_flight < cap => self.time,
            cap => {
                let behind = self.time * (self.in_flight - cap) as f32 / cap as f32;
                let place = match self.age > UNUSUAL * self.time {
                    true => self.age,
                    false => self.time / cap as f32,
                };
                place + behind + self.time
            }
        }
    }
}

/// Learns the caps of the members, and their typical values; returns true if a member has a cap.
#[cold]
pub(super) fn learn_caps(view: &View<'_>) -> bool {
    let learn = |index: &usize| view.slot(*index).learn_cap().is_some();
    let has_caps = (0..view.len()).filter(learn).count() > 0;
    view.learn_typical(has_caps, &mut [0.0; MOST_MEMBERS]);
    has_caps
}

/// Decides about a request for which the strategy has chosen `chosen`, and before which `ahead` requests wait.
#[cold]
pub(super) fn decide_late(
    view: &View<'_>,
    chosen: usize,
    ahead: u32,
    rng: &mut fastrand::Rng,
    trace: &mut Trace,
) -> LateDecision {
    let moment = view.decision_moment();
    let mut places = [Place::default(); MOST_MEMBERS];
    let mut count = 0;
    let mut at_cap = false;
    let (busyness, mut loads) = (Busyness::new(view), Loads::default());
    let mut weight = None;
    for index in 0..view.len() {
        if !view.is_eligible_unless_full(index) {
            continue;
        }
        // A weight is a share of the requests, which waiting for certain members would change.
        if *weight.get_or_insert(view.member_weight(index)) != view.member_weight(index) {
            return LateDecision::Now;
        }
        let slot = view.slot(index);
        let service = slot.estimate_service(slot.cost_in_flight(), &moment);
        let Some(service) = service else {
            // Nothing is known of it.
            if index == chosen {
                return LateDecision::Now;
            }
            continue;
        };
        if service.is_stale && index == chosen {
            return LateDecision::Now;
        }
        let Room {
            in_flight,
            mut cap,
            mut is_limit,
        } = view.room_at(index);
        if !view.is_eligible(index) {
            (cap, is_limit) = (in_flight.max(1), true);
        }
        at_cap |= cap > 0 && in_flight >= cap;
        let load = busyness.busyness_at(view, index);
        loads.add_load(load);
        let Some(place) = places.get_mut(count) else {
            return LateDecision::Now;
        };
        *place = Place {
            index,
            time: service.time * (1.0 + FAILURES * view.failure_share(index)),
            load,
            in_flight,
            age: slot.mean_age(&moment),
            cap,
            is_limit,
        };
        count += 1;
    }
    let places = places.get_mut(..count).unwrap_or_default();
    // If there is only one member, requests wait for it in any case.
    if !at_cap || count < 2 {
        return LateDecision::Now;
    }
    for place in places.iter_mut() {
        place.time *= loads.cost_factor(place.load, busyness.is_queue);
    }
    let more = ahead / (count as u32 * WAITING_FOR_ONE);
    for place in places.iter_mut().filter(|place| !place.is_limit) {
        place.cap += if place.cap > 0 { more } else { 0 };
    }
    let growth = view.growth();
    let chosen_has_room = {
        let mut places = places.iter();
        places.any(|place| place.index == chosen && place.has_room())
    };
    let mut best = chosen;
    let mut is_free = true;
    for _ in 0..=ahead.min(MOST_AHEAD) {
        let first = places
            .iter_mut()
            .min_by(|a, b| a.done(growth).total_cmp(&b.done(growth)));
        let Some(first) = first else {
            return LateDecision::Now;
        };
        (best, is_free) = (first.index, first.has_room());
        first.in_flight += 1;
    }
    if is_free {
        return match chosen_has_room {
            true => LateDecision::Now,
            false => LateDecision::OtherMember(best),
        };
    }
    if !view.is_rehearsal() && rng.u32(..TRIAL_INTERVAL) == 0 {
        return match view.is_eligible(best) {
            true => LateDecision::OtherMember(best),
            false => LateDecision::Hold,
        };
    }
    trace.note_sentence(|| {
        let name = &view.members()[best].name;
        format!(
            "the request waits for {name}, which works on as many requests as it can, but is expected to \
             finish the request before any member with room"
        )
    });
    LateDecision::Hold
}
