//! Decisions of groups whose members are of zones with different ranks.

use super::Group;
use super::ranks::Ranks;
use super::request::{PickError, Request};
use super::view::View;
use crate::key::mix;
use crate::member::Reason;
use crate::strategy::hash::key_of;
use crate::time::Instant;
use crate::trace::{Short, Trace};
use crate::zone::{self, Measured, RANKS};

impl Group {
    /// Rank of the zone of each member; `None` if the group does not use zones, or all have one rank.
    pub fn ranks(&self) -> Option<&Ranks> {
        self.pool.ranks.as_ref()
    }

    /// Says it in the members' slots, where decisions see it. To be called when this snapshot becomes
    /// the one that decides.
    pub fn take_ranks(&self) {
        let ranks = self.ranks();
        for (index, member) in self.members().iter().enumerate() {
            member
                .slot
                .set_rank(ranks.map(|ranks| ranks.rank_at(index)));
        }
        self.pool.state.set_ranked(ranks.is_some());
    }

    /// Measures the members of each rank now; all values are empty where the group goes by no zones.
    ///
    /// The load of a member is the reported one that the group goes by, if that load is a share (of a utilisation, or
    /// tasks per CPU) or [a threshold](zone::ZoneSettings::spill_above) for it is set; if it is not known, the number
    /// of requests in flight at the member divided by the member's limit.
    pub fn measure_ranks(&self, now: Instant) -> [Measured; RANKS] {
        let mut all = [Measured::default(); RANKS];
        let (Some(ranks), Some(zones)) = (self.ranks(), &self.settings().zones) else {
            return all;
        };
        let request = Request::at_time(now);
        // An alert speaks of no one's health.
        let view = self.view_for(&request).despite_alerts();
        let id = view.settings().load_id;
        let is_share = id.is_utilization() || id.is_queue();
        let by_report = is_share || zones.spill_above.is_some();
        let by_limit = is_share || zones.spill_above.is_none();
        let mut known = [0u32; RANKS];
        for index in 0..view.len() {
            let slot = view.slot(index);
            if slot.has_reason(Reason::Standby) {
                continue;
            }
            let rank = ranks.rank_at(index);
            let (Some(of_rank), Some(known)) = (all.get_mut(rank), known.get_mut(rank)) else {
                continue;
            };
            of_rank.weight += slot.weight();
            if !view.is_eligible_unless_full(index) {
                continue;
            }
            of_rank.usable += slot.weight();
            let reported = view.last_report(index).filter(|_| by_report);
            let reported =
                reported.map(|(load, at)| (load, view.load_query().horizon.millis_since(at)));
            let limited = || Some((fullness(&view, index).filter(|_| by_limit)?, 0));
            if let Some((load, age)) = reported.or_else(limited) {
                *known += 1;
                let part = 1.0 / *known as f32;
                let mean = of_rank.load.unwrap_or(0.0);
                of_rank.load = Some(mean + (load - mean) * part);
                of_rank.age += (age as f32 / 1e3 - of_rank.age) * part;
            }
        }
        all
    }

    /// Draws a rank, and asks the strategy for one of its members; if it may pick none of them, for
    /// one of the other ranks, in their order; and at last for any.
    pub(super) fn ask_zones(
        &self,
        view: &View<'_>,
        rng: &mut fastrand::Rng,
        trace: &mut Trace,
    ) -> Result<usize, PickError> {
        let Some(ranks) = self.ranks() else {
            return self.ask(view, rng, trace);
        };
        // Requests that are to go to the same member must go to the same zone.
        let key = key_of(self.kind.request_needs, view);
        let random = |rank: usize| match key {
            Some(key) => (mix(key ^ mix(rank as u64 + 1)) >> 48) as u32,
            None => rng.u32(..zone::WHOLE),
        };
        let drawn = self.pool.state.zones().draw(ranks.count(), random);
        trace.note_sentence(|| self.why_drawn(ranks, drawn));
        let others = (0..ranks.count()).filter(|rank| *rank != drawn);
        for rank in std::iter::once(drawn).chain(others) {
            let of_rank = view.of_rank(rank);
            let Some(chosen) = self.ask_strategy(&of_rank, rng, trace) else {
                continue;
            };
            // Members of other zones may be in time.
            if chosen == Err(PickError::Late) {
                continue;
            }
            if rank != drawn {
                trace.note_sentence(|| {
                    let (one, other) = (ranks.label(drawn), ranks.label(rank));
                    format!(
                        "no member of {one} can take the request, so the request goes to {other}"
                    )
                });
            }
            return chosen;
        }
        self.ask(view, rng, trace)
    }

    /// Describes the zone that was drawn, and why.
    fn why_drawn(&self, ranks: &Ranks, drawn: usize) -> String {
        let readings = self.pool.state.zones();
        let share = readings
            .rank_shares(ranks.count())
            .get(drawn)
            .map_or(0.0, |share| share * 100.0);
        let mut text = format!(
            "{} is drawn, which gets {} % of the requests",
            ranks.label(drawn),
            Short(share as f32)
        );
        for rank in 0..ranks.count() {
            let reading = readings.get(rank);
            let load = match reading.load {
                Some(load) => format!("load {}", Short(load)),
                None => "load not known".into(),
            };
            let usable = Short(reading.usable * 100.0);
            let label = ranks.label(rank);
            text.push_str(&format!("; {label}: {load}, {usable} % can serve"));
        }
        text
    }
}

/// Requests in flight at the member at `index` divided by its limit; `None` if it has no limit.
fn fullness(view: &View<'_>, index: usize) -> Option<f32> {
    let limit = Some(view.member_limit(index)).filter(|limit| *limit < u32::MAX)?;
    let own = || view.slot(index).in_flight() as f32;
    let in_flight = view.reported_in_flight(index).unwrap_or_else(own);
    Some(in_flight / limit.max(1) as f32)
}
