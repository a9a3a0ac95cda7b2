//! `hash`: requests with the same key go to the same member, as far as its load allows;
//! `source_ip_hash`, where the key is the client's address.
//!
//! In groups of up to 128 members each member has a score for each key, and the lowest one
//! wins: -ln(*u*) / weight, where *u* is a hash of both between 0 and 1 (rendezvous hashing,
//! Thaler and Ravishankar, "Using Name-Based Mappings to Increase Hit Rates", 1998, with the
//! weights of Schindelhauer and Schomaker, "Weighted Distributed Hash Tables", 2005). Shares of
//! the keys are exactly the weights; a change of a weight moves only the keys that it
//! must, and when a member leaves, only its own move. That looks at all members. Larger groups
//! have a ring (Karger et al., "Consistent Hashing and Random Trees", 1997), on which every
//! member has the same number of points, and a lower weight makes a member turn a fixed share
//! of the keys away.
//!
//! No member at which `bound` times the average is in flight gets another request (Mirrokni, Thorup
//! and Zadimoghaddam, "Consistent Hashing with Bounded Loads", 2018; requests count what they cost,
//! and the one to come is part of the average): it goes on to the key's next member. With a bound of
//! 0 there is no such limit, and a key keeps its member whatever its load. Members that may not be
//! picked are passed over in the same way,
//! so that only their keys move. Nothing depends on a seed: all balancers, and the same one
//! after a restart, agree.

use std::sync::atomic::{AtomicU64, Ordering};

use super::kind::{Kind, Param, RequestNeeds, Strategy, Values};
use super::urn::Urn;
use crate::group::view::View;
use crate::key::{Key, hash, hash_address, mix};
use crate::member::Member;
use crate::terms::Form;
use crate::time::{millis, millis_since};
use crate::trace::{Short, Trace};

const BOUND: Param = Param {
    name: "bound",
    doc: "A member gets at most this many times the average of requests in flight; further keys go to the next one. 0 is off: a key keeps its member at any load. Numbers below 1 count as 1.",
    default: 1.25,
    max: 1e6,
    ..Param::NUMBER
};

pub(super) const SOURCE_IP_HASH: Kind = Kind {
    name: "source_ip_hash",
    doc: "The same member for the same client address, with bounded loads; a random one if the address is not known.",
    params: &[BOUND],
    looks_at_loads: false,
    request_needs: RequestNeeds::Client,
    ..Kind::made_by(|values, members| Box::new(Hash::new(RequestNeeds::Client, values, members)))
};

pub(super) const HASH: Kind = Kind {
    name: "hash",
    doc: "The same member for the same path, field or cookie (the group's `hash_key`), with bounded loads; a random one for requests without it.",
    request_needs: RequestNeeds::Key,
    build: |values, members| Box::new(Hash::new(RequestNeeds::Key, values, members)),
    ..SOURCE_IP_HASH
};

/// Points per member: shares of the ring are within about 10 % of each other.
const POINTS: u64 = 128;

/// Groups up to this size are looked through for each decision. In larger ones requests in
/// flight are summed up every [`AVERAGE_MAX_AGE`] milliseconds.
const SUM_UP_TO: usize = 128;
const AVERAGE_MAX_AGE: u32 = 10;

#[derive(Debug)]
struct Hash {
    sees: RequestNeeds,
    bound: f32,
    /// Hash (high 40 bits) and index of its member (low 24), in ascending order.
    ring: Box<[u64]>,
    /// Hash of each member's name.
    hashes: Box<[u64]>,
    /// Weight that takes every key.
    full_weight: f32,
    /// Average requests in flight per unit of weight (f32 bits) and its time.
    average: AtomicU64,
    urn: Urn,
}

const INDEX_BITS: u32 = 24;

impl Hash {
    fn new(sees: RequestNeeds, values: &Values, members: &[Member]) -> Self {
        let bound = values.get(BOUND.name) as f32;
        let hashes: Box<[u64]> = members.iter().map(|m| hash(m.name.as_bytes())).collect();
        // Small groups need none.
        let on_ring = match members.len() {
            ..=SUM_UP_TO => 0,
            all => all,
        };
        let mut ring: Box<[u64]> = hashes[..on_ring]
            .iter()
            .enumerate()
            .flat_map(|(index, &hash)| {
                (0..POINTS).map(move |point| {
                    (mix(hash ^ mix(point)) >> INDEX_BITS << INDEX_BITS) | index as u64
                })
            })
            .collect();
        ring.sort_unstable();
        let highest = members.iter().map(|m| m.slot.weight()).fold(0.0, f32::max);
        Hash {
            sees,
            bound: match bound {
                0.0 => f32::INFINITY,
                bound => bound.max(1.0),
            },
            ring,
            hashes,
            // Rounded up to a power of two, so that a new highest weight rarely changes
            // what all others turn away.
            full_weight: if highest > 0.0 {
                libm::exp2f(libm::log2f(highest).ceil())
            } else {
                1.0
            },
            average: AtomicU64::new(0),
            urn: Urn::new(members),
        }
    }

    /// Cost of requests in flight at a member, per unit of weight, from which on the member gets no other request. The
    /// request to decide about is part of the average.
    fn cap_per_weight(&self, view: &View<'_>) -> f32 {
        let word = self.average.load(Ordering::Relaxed);
        let large = view.len() > SUM_UP_TO;
        if large && word != 0 && millis_since(word as u32, view.decision_time()) <= AVERAGE_MAX_AGE
        {
            return f32::from_bits((word >> 32) as u32);
        }
        let (mut in_flight, mut weight) = (view.cost(), 0.0);
        for index in view.eligible_indices() {
            in_flight += view.slot(index).cost_in_flight();
            weight += view.member_weight(index);
        }
        let cap = self.bound * in_flight / weight;
        if large {
            let word = (u64::from(cap.to_bits()) << 32) | u64::from(millis(view.decision_time()));
            self.average.store(word, Ordering::Relaxed);
        }
        cap
    }

    /// The member with the lowest score for this key, of those below the bound.
    fn rendezvous(
        &self,
        view: &View<'_>,
        trace: &mut Trace,
        key: u64,
        bounded: bool,
    ) -> Option<usize> {
        let mut cap = None;
        let mut is_full = |index: usize| {
            let in_flight = view.slot(index).cost_in_flight();
            // An idle member is below any bound: no need to sum up.
            if !bounded || in_flight == 0.0 {
                return false;
            }
            let cap = *cap.get_or_insert_with(|| self.cap_per_weight(view));
            in_flight >= cap * view.member_weight(index)
        };
        let mut best: Option<(usize, f32)> = None;
        for index in view.eligible_indices() {
            let chance = unit(mix(key ^ self.hashes[index])).max(f32::MIN_POSITIVE);
            let weight = view.member_weight(index);
            let lowest = best.map_or(f32::INFINITY, |(_, lowest)| lowest);
            // -ln x is at least 1 - x: most need no logarithm to be seen to lose, and that is most
            // of what each of them would cost.
            let may_win = 1.0 - chance < lowest * weight;
            let score = match may_win || trace.is_on() {
                true => -libm::logf(chance) / weight,
                false => f32::INFINITY,
            };
            let wins = may_win && score < lowest;
            // Asked only of those that would win: it may cost a sum over all.
            let full = (wins || trace.is_on()) && is_full(index);
            if trace.is_on() {
                trace.note_candidate(index, Some(score.into()), || {
                    let flying = view.in_flight(index);
                    let full = if full { ", at its limit" } else { "" };
                    format!("weight {}, {flying}{full}", Short(weight))
                });
            }
            if wins && !full {
                best = Some((index, score));
            }
        }
        match best {
            Some((index, _)) => Some(index),
            // Other workers have just filled the last one.
            None if bounded => self.rendezvous(view, trace, key, false),
            None => None,
        }
    }

    /// True if the member turns this key away because of its weight.
    #[inline]
    fn declines(&self, view: &View<'_>, index: usize, key: u64) -> bool {
        let share = view.member_weight(index) / self.full_weight;
        share < 1.0 && unit(mix(key ^ self.hashes[index])) >= share
    }
}

impl Strategy for Hash {
    fn fill_costs(&self, view: &View<'_>, _costs: &mut Vec<f32>) -> Form {
        if self.sees == RequestNeeds::Key && view.settings().hash_key != Key::Client {
            // Connections have no such key: members are drawn by weight.
            return Form::Turns;
        }
        match self.ring.is_empty() {
            true => Form::Hash { bound: self.bound },
            false => Form::Own,
        }
    }

    fn pick(&self, view: &View<'_>, rng: &mut fastrand::Rng, trace: &mut Trace) -> Option<usize> {
        let Some(key) = key_of(self.sees, view) else {
            let index = self.urn.draw(view, rng)?;
            trace.note_candidate(index, None, || "drawn: the request has no such key".into());
            return Some(index);
        };
        if self.ring.is_empty() {
            return self.rendezvous(view, trace, key, self.bound.is_finite());
        }
        let start = self
            .ring
            .partition_point(|point| point >> INDEX_BITS < key >> INDEX_BITS);
        let (before, after) = self.ring.split_at(start);
        let walk = after.iter().chain(before);
        // A walk this long has met almost everybody.
        let longest = view.len().max(8) * 8;
        let mut cap = None;
        for point in walk.take(longest) {
            let index = (point & ((1 << INDEX_BITS) - 1)) as usize;
            if !view.is_eligible(index) {
                trace.note_candidate(index, None, || "next on the ring, not eligible".into());
                continue;
            }
            if self.declines(view, index, key) {
                let weight = view.member_weight(index);
                trace.note_candidate(index, None, || {
                    format!(
                        "next on the ring, weight {} is too low for this key",
                        Short(weight)
                    )
                });
                continue;
            }
            let in_flight = view.slot(index).cost_in_flight();
            // An idle member is below any bound: no need to sum up.
            if in_flight > 0.0 && self.bound.is_finite() {
                let cap = *cap.get_or_insert_with(|| self.cap_per_weight(view));
                let cap = cap * view.member_weight(index);
                if in_flight >= cap {
                    trace.note_candidate(index, Some(in_flight.into()), || {
                        let (flying, cap) = (view.in_flight(index), cap.ceil());
                        format!("next on the ring, but {flying} of at most {cap}")
                    });
                    continue;
                }
            }
            trace.note_candidate(index, Some(in_flight.into()), || {
                format!("next on the ring, {}", view.in_flight(index))
            });
            return Some(index);
        }
        // Few are left.
        self.rendezvous(view, trace, key, false)
    }
}

/// Key of a request, for a strategy that sees this part of requests; `None` if the strategy sees nothing or the request
/// has no key.
#[inline]
pub(crate) fn key_of(sees: RequestNeeds, view: &View<'_>) -> Option<u64> {
    let request = view.request();
    match sees {
        RequestNeeds::Nothing | RequestNeeds::Body => None,
        RequestNeeds::Key if view.settings().hash_key != Key::Client => request.key,
        RequestNeeds::Key | RequestNeeds::Client => request.client.map(hash_address),
    }
}

/// A number from 0 up to, not including, 1.
fn unit(hash: u64) -> f32 {
    (hash >> 40) as f32 / (1u64 << 24) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_passed_over_without_a_logarithm_would_have_lost() {
        for chance in (1..1u64 << 24).step_by(7).map(|step| unit(step << 40)) {
            assert!(1.0 - chance <= -libm::logf(chance), "{chance}");
        }
    }
}
