//! A strategy's view of a group.

mod engines;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::ranks::Ranks;
use super::request::{PickError, Request};
use super::settings::GroupSettings;
use super::state::GroupState;
use crate::caps;
use crate::effective::Shaping;
use crate::engines::EnginePool;
use crate::estimate::{Growth, Moment, exp2, higher, lower};
use crate::load::{LoadId, LoadMeans, Location, MemberMeans, Query, Report};
use crate::member::{Member, RANK_BITS, Reason, Slot, rank_bit};
use crate::spares;
use crate::time::{Horizon, Instant};
use crate::trace::Short;
use crate::zone::RANKS;

/// A strategy's view of a group: the state of the members for one request.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    pool: &'a Pool,
    seats: &'a [Seat],
    request: &'a Request<'a>,
    query: Query,
    mask: u32,
    /// [`REHEARSAL`], and from 1 the rank of the zones whose members may be picked; 0 is neither.
    way: u8,
}

/// Bit of `View::way`: the decision has no effect.
const REHEARSAL: u8 = 1 << 7;

/// Busyness of members according to their reported loads: worked out once for all members.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Busyness {
    is_known: bool,
    highest: f32,
    /// True if the load is in tasks per CPU, and not a utilisation.
    pub(crate) is_queue: bool,
}

impl Busyness {
    #[inline]
    pub(crate) fn new(view: &View<'_>) -> Self {
        let id = view.settings().load_id;
        let is_queue = id.is_queue();
        Busyness {
            is_known: view.has_reports() && (is_queue || id.is_utilization()),
            highest: if is_queue { f32::INFINITY } else { 1.0 },
            is_queue,
        }
    }

    /// Reported load of the member at `index`; -1 means unknown.
    #[inline(always)]
    pub(crate) fn busyness_at(&self, view: &View<'_>, index: usize) -> f32 {
        match self.is_known {
            true => lower(view.load_of_others(index).unwrap_or(-1.0), self.highest),
            false => -1.0,
        }
    }
}

/// Requests at a member, and how many it works on at once.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    pub(super) in_flight: u32,
    /// Cap of the member; 0 means unknown, or many.
    pub(super) cap: u32,
    /// True if `cap` is a configured limit, and not learnt.
    pub(super) is_limit: bool,
}

/// The members of a snapshot with what else a strategy may see: all but the strategy itself.
#[derive(Debug)]
pub(super) struct Pool {
    pub(super) settings: GroupSettings,
    pub(super) members: Box<[Member]>,
    pub(super) seats: Box<[Seat]>,
    pub(super) state: Arc<GroupState>,
    /// True if a load was ever reported for a location here: nearly never changes.
    reported: Arc<AtomicBool>,
    /// True if a member works on few requests at once, by its limit.
    pub(super) has_low_limit: bool,
    /// Least cost of a failure, in seconds.
    pub(super) penalty: f32,
    /// Ranks, if members are in zones with different ranks.
    pub(super) ranks: Option<Ranks>,
    /// Index of the member of each engine, by the engine's number.
    pub(super) engine_members: Box<[Option<u32>]>,
    /// Hash of each member's name, by its index, if the strategy is `inference`: the same one at all balancers.
    pub(super) name_hashes: Box<[u64]>,
    /// Query of loads; its time is replaced for each decision.
    query: Query,
}

/// Data that `pick` needs of a member, side by side with the data of the others, so that drawing one of many thousand
/// costs one access to its slot and none to the rest of the member.
#[derive(Debug)]
pub(super) struct Seat {
    pub(super) slot: Arc<Slot>,
    pub(super) location: Arc<Location>,
    max_connections: u32,
    /// Number of the member's engine, if the strategy is `inference`.
    pub(super) engine: Option<u16>,
}

impl Seat {
    /// Most requests or connections at once.
    #[inline]
    pub(super) fn request_limit(&self) -> u32 {
        self.max_connections.min(self.slot.reported_limit())
    }
}

impl Pool {
    pub(super) fn new(
        settings: GroupSettings,
        members: Vec<Member>,
        state: Arc<GroupState>,
    ) -> Self {
        let is_new = |member: &&Member| !member.slot.has_record();
        spares::reserve_records(members.iter().filter(is_new).count());
        let reported = Arc::clone(&state.reported);
        for member in &members {
            member.location.flag_reports(&reported);
        }
        let seat = |member: &Member| Seat {
            slot: Arc::clone(&member.slot),
            location: Arc::clone(&member.location),
            max_connections: member.max_connections.unwrap_or(u32::MAX),
            engine: None,
        };
        let horizon = Horizon::new(Instant::ZERO, settings.load_max_age);
        let zones = settings.zones.as_ref();
        Pool {
            ranks: zones.and_then(|zones| Ranks::new(zones, &members)),
            penalty: settings.failure_penalty.as_secs_f32(),
            query: Query::new(settings.load_id, horizon),
            has_low_limit: members.iter().any(|member| {
                member
                    .max_connections
                    .is_some_and(|limit| limit <= caps::HIGHEST)
            }),
            settings,
            engine_members: Box::default(),
            name_hashes: Box::default(),
            seats: members.iter().map(seat).collect(),
            members: members.into_boxed_slice(),
            state,
            reported,
        }
    }

    /// The members as they are for `request`.
    pub(super) fn view_for<'a>(&'a self, request: &'a Request<'a>) -> View<'a> {
        debug_assert!(request.excluded_members.is_sorted());
        View {
            pool: self,
            seats: &self.seats,
            request,
            query: self.query.moved_to(request.now),
            // The bits of [`Reason`] that count at the moment.
            mask: if self.state.is_panicking() {
                !(Reason::OVERRIDDEN_BY_PANIC | Reason::Standby as u32 | RANK_BITS)
            } else {
                !RANK_BITS
            },
            way: 0,
        }
    }
}

/// Difference between the logarithm (base 2) of the mean of exponential times and the mean of their logarithms, less
/// the error of the quick logarithm and noise.
const BELOW_THE_MEAN: f32 = 0.6;

/// Share of its weight with which a member begins slow start.
const RAMP_FLOOR: f32 = 0.1;

impl<'a> View<'a> {
    /// Engines of the group, if it has had strategy `inference`.
    #[inline]
    pub(crate) fn engines(&self) -> Option<&'a EnginePool> {
        self.pool.state.engines().map(|engines| &**engines)
    }

    /// The request to decide about.
    #[inline]
    pub fn request(&self) -> &'a Request<'a> {
        self.request
    }

    /// Cost of the request to decide about.
    #[inline]
    pub fn cost(&self) -> f32 {
        self.request.cost.get()
    }

    /// The current instant.
    #[inline]
    pub fn decision_time(&self) -> Instant {
        self.request.now
    }

    /// The group's settings.
    #[inline]
    pub fn settings(&self) -> &'a GroupSettings {
        &self.pool.settings
    }

    /// All members, eligible or not.
    pub fn members(&self) -> &'a [Member] {
        &self.pool.members
    }

    /// Number of members, eligible or not.
    #[inline]
    pub fn len(&self) -> usize {
        self.seats.len()
    }

    /// True if the group is empty.
    pub fn is_empty(&self) -> bool {
        self.seats.is_empty()
    }

    /// Returns the same view, in which load alerts ([`Reason::Shedding`]) are ignored.
    pub fn despite_alerts(self) -> Self {
        let all = View {
            mask: self.mask & !(Reason::Shedding as u32),
            ..self
        };
        all.or_backups()
    }

    /// Returns the same view, in which backups ([`Reason::Standby`]) may be picked if no other member may, even if it
    /// had room. Members at their connection limit are no reason to use backups: requests wait for them.
    pub fn or_backups(self) -> Self {
        match self.may_any_serve() {
            true => self,
            false => View {
                mask: self.mask & !(Reason::Standby as u32),
                ..self
            },
        }
    }

    /// True if a backup may be picked in this view, if no other reason speaks against it.
    pub(crate) fn lets_backups_serve(&self) -> bool {
        self.mask & Reason::Standby as u32 == 0
    }

    /// The narrowest view in which a member may be picked at once: this one, one with backups, or one in which load
    /// alerts are ignored. If there is no such member, this one.
    pub fn widened(self) -> Self {
        let may_pick = |view: &Self| view.eligible_indices().next().is_some();
        if may_pick(&self) {
            return self;
        }
        let others = [self.or_backups(), self.despite_alerts()];
        others.into_iter().find(may_pick).unwrap_or(self)
    }

    /// Returns the same view, in which only members of zones of this rank may be picked.
    pub(super) fn of_rank(self, rank: usize) -> Self {
        View {
            mask: (self.mask | RANK_BITS) & !rank_bit(rank),
            way: (self.way & REHEARSAL) | (rank.min(RANKS - 1) as u8 + 1),
            ..self
        }
    }

    /// True if any member may serve, at its connection limit or not.
    fn may_any_serve(&self) -> bool {
        (0..self.len()).any(|index| self.is_eligible_unless_full(index))
    }

    /// Returns the same view for a decision without effect.
    pub(super) fn rehearsed(self) -> Self {
        View {
            way: self.way | REHEARSAL,
            ..self
        }
    }

    /// True if the decision has no effect: it is only explained, and a strategy with a memory must not take it for a
    /// step.
    pub fn is_rehearsal(&self) -> bool {
        self.way & REHEARSAL != 0
    }

    /// The rank of the zones whose members may be picked, below [`RANKS`]; `None` is any.
    #[inline]
    pub(crate) fn allowed_rank(&self) -> Option<usize> {
        usize::from(self.way & !REHEARSAL).checked_sub(1)
    }

    /// Slot of the member at `index`: the data that changes with each request.
    #[inline]
    pub fn slot(&self, index: usize) -> &'a Slot {
        &self.seats[index].slot
    }

    /// True if the member at `index` may be picked: no reason speaks against it (in panic mode: no reason but opinions
    /// about health), it has a weight, was not tried yet, and is below its connection limit.
    #[inline]
    pub fn is_eligible(&self, index: usize) -> bool {
        let seat = &self.seats[index];
        seat.slot.in_flight() < seat.request_limit() && self.may_serve(&seat.slot, index)
    }

    /// [`View::is_eligible`], but a member at its connection limit counts, too.
    #[inline]
    pub fn is_eligible_unless_full(&self, index: usize) -> bool {
        self.may_serve(self.slot(index), index)
    }

    #[inline]
    fn may_serve(&self, slot: &Slot, index: usize) -> bool {
        slot.decision_bits() & self.mask == 0
            && slot.weight() > 0.0
            && (self.request.excluded_members.is_empty() || !self.was_tried(index))
    }

    #[cold]
    fn was_tried(&self, index: usize) -> bool {
        let id = self.pool.members[index].id;
        self.request.excluded_members.binary_search(&id).is_ok()
    }

    /// Requests at the member at `index`, and how many it works on at once: those without an answer where
    /// that was learnt, all where it is a limit.
    pub(super) fn room_at(&self, index: usize) -> Room {
        let seat = &self.seats[index];
        let (limit, learnt) = (seat.request_limit(), seat.slot.caps().get());
        let is_limit = limit <= caps::HIGHEST && learnt.is_none_or(|cap| limit <= cap);
        Room {
            in_flight: match learnt {
                Some(_) if !is_limit => seat.slot.unanswered(),
                _ => seat.slot.in_flight(),
            },
            cap: if is_limit { limit } else { learnt.unwrap_or(0) },
            is_limit,
        }
    }

    /// Indices of the members that may be picked.
    #[inline]
    pub fn eligible_indices(&self) -> impl Iterator<Item = usize> + Clone + use<'a> {
        let view = *self;
        (0..self.len()).filter(move |&index| view.is_eligible(index))
    }

    /// Current weight of the member at `index`: greater than 0 if it is eligible.
    ///
    /// During slow start it is the configured weight times a factor that grows linearly
    /// from 0.1 to 1 over [`GroupSettings::slow_start`].
    #[inline]
    pub fn member_weight(&self, index: usize) -> f32 {
        self.weight_now(index).0
    }

    /// Current weight of the member at `index` ([`View::member_weight`]), and true if the member is in slow start.
    #[inline]
    pub(crate) fn weight_now(&self, index: usize) -> (f32, bool) {
        let slot = self.slot(index);
        match slot.ramp_from() {
            None => (slot.weight(), false),
            Some(from) => {
                let ramp = self.ramp(from);
                (slot.weight() * ramp, ramp < 1.0)
            }
        }
    }

    // Few members are in slow start, and what a decision does for each is to stay small.
    #[cold]
    fn ramp(&self, from: Instant) -> f32 {
        let whole = self.settings().slow_start.as_secs_f32();
        let age = self.decision_time().since(from).as_secs_f32();
        if age >= whole {
            return 1.0;
        }
        RAMP_FLOOR + (1.0 - RAMP_FLOOR) * age / whole
    }

    /// True if load reports count and there ever was one: if not, there is no need to look at the load of each member.
    #[inline]
    pub fn has_reports(&self) -> bool {
        self.settings().adaptive && self.pool.reported.load(Ordering::Relaxed)
    }

    /// Reported load of the location of the member at `index`, with what our own
    /// requests have added since ([`Location::projected_load`]). `None` is unknown: never
    /// reported, too old, or the group is not adaptive. An unknown load counts as
    /// average, not as idle.
    #[inline(always)]
    pub fn member_load(&self, index: usize) -> Option<f32> {
        self.of_report(index, |report| report.value + report.added)
    }

    /// Load like [`View::member_load`], without the load that [doubted](super::Group::doubt_client) clients would add.
    pub fn vouched_load(&self, index: usize) -> Option<f32> {
        let load = self.member_load(index)?;
        Some(load - self.location(index).doubtful(&self.query))
    }

    /// [`View::member_load`] for a strategy that counts and times our requests itself: with the load of the requests that are
    /// there now, where it is known, and without an estimate of the load of the requests that came since the report.
    #[inline(always)]
    pub(crate) fn load_of_others(&self, index: usize) -> Option<f32> {
        self.of_report(index, |report| match report.is_momentary {
            true => report.value + report.added,
            false => report.value,
        })
    }

    /// Effective load of the member at `index`, with what our own requests have added
    /// since the report; `None` is unknown, as with [`View::member_load`].
    #[inline(always)]
    pub fn effective_load(&self, index: usize, shaping: Option<Shaping>) -> Option<f32> {
        match shaping {
            None => self.member_load(index).map(|load| higher(load, 0.0)),
            Some(shaping) => self.shaped_load(index, shaping),
        }
    }

    #[inline(never)]
    fn shaped_load(&self, index: usize, shaping: Shaping) -> Option<f32> {
        let report = self.of_report(index, |report| report)?;
        Some(
            shaping
                .shape_report(report, self.slot(index).damped())
                .expected,
        )
    }

    /// Load that one client brings, as pulses have shown; 0 is not known.
    #[inline]
    pub(crate) fn client_load(&self) -> f32 {
        self.pool.state.client_load()
    }

    /// Most requests or connections at once at the member at `index`; `u32::MAX` is no limit.
    pub(super) fn member_limit(&self, index: usize) -> u32 {
        self.seats[index].request_limit()
    }

    /// Reported load of the location of the member at `index` as it was reported, and
    /// a number that tells the report from the next one; `None` is unknown.
    pub(crate) fn last_report(&self, index: usize) -> Option<(f32, u32)> {
        self.of_report(index, |report| (report.value, report.at))
    }

    /// Applies `of` to the report of the group's load by the location of the member at `index`, if the report may be
    /// used.
    #[inline(always)]
    fn of_report<T>(&self, index: usize, of: impl Fn(Report) -> T) -> Option<T> {
        if !self.settings().adaptive {
            return None;
        }
        self.location(index).of_report(&self.query, of)
    }

    /// Query of the load that the group goes by.
    #[inline]
    pub(crate) fn load_query(&self) -> &Query {
        &self.query
    }

    /// Means of the members that may be picked, by their reports of the load of `query`: those of a decision before, which are
    /// learnt anew if this decision `learns` them. `None` if no load is known.
    #[inline]
    pub(crate) fn member_means(&self, query: &Query, learns: bool) -> Option<MemberMeans> {
        let state = &self.pool.state;
        if let Some(means) = state.member_means().filter(|_| !learns) {
            let is_known = |index| self.location(index).has_fresh(query);
            return self.eligible_indices().any(is_known).then_some(means);
        }
        let mut sums = LoadMeans::default();
        for index in self.eligible_indices() {
            self.location(index).add_means(query, &mut sums);
        }
        let means = sums.of_members()?;
        state.learn_means(means);
        Some(means)
    }

    /// Returns the same view, in which members have these means.
    #[inline]
    pub(crate) fn with_means(self, means: MemberMeans) -> Self {
        View {
            query: self.query.with_means(means),
            ..self
        }
    }

    /// The location of the member at `index`.
    #[inline]
    pub fn location(&self, index: usize) -> &'a Location {
        &self.seats[index].location
    }

    /// Observed latency of the member at `index` in seconds; `None` if there is none.
    #[inline]
    pub fn latency(&self, index: usize) -> Option<f32> {
        self.slot(index)
            .latency(self.decision_time(), self.settings().latency_decay)
    }

    /// Cost of the failures of the member at `index`, in seconds.
    #[inline]
    pub fn penalty(&self, index: usize) -> f32 {
        self.slot(index)
            .penalty(self.decision_time(), self.settings().latency_decay)
    }

    /// Share of the recent requests at the member at `index` that failed, 0 to 1.
    #[inline]
    pub fn failure_share(&self, index: usize) -> f32 {
        let slot = self.slot(index);
        match slot.has_failed() {
            true => slot.failure_share(self.decision_time(), self.settings().latency_decay),
            false => 0.0,
        }
    }

    /// Time of the member at `index` for a request of cost 1 in seconds, queueing excluded; `None` if it has not
    /// answered yet.
    #[inline]
    pub fn service_time(&self, index: usize) -> Option<f32> {
        self.slot(index).service_time(self.decision_time())
    }

    /// The moment of the decision, with the typical time of the group.
    #[inline]
    pub(crate) fn decision_moment(&self) -> Moment {
        Moment::new(self.decision_time(), self.settings().latency_decay)
            .with_typical(self.pool.state.typical_time())
    }

    /// Learns what a request takes at a typical member, where that `matters`; `logs` has room for all members.
    pub(super) fn learn_typical(&self, matters: bool, logs: &mut [f32]) {
        let state = &self.pool.state;
        let mut known = 0;
        if matters && !state.is_weighted.load(Ordering::Relaxed) {
            let all =
                (0..self.len()).map(|index| self.slot(index).regression().typical_latency().1);
            for (place, log) in logs.iter_mut().zip(all.filter(|log| *log > 0.0)) {
                *place = log;
                known += 1;
            }
        }
        let logs = logs.get_mut(..known).unwrap_or_default();
        logs.sort_unstable_by(f32::total_cmp);
        let middle = logs.get(known.saturating_sub(1) / 2);
        state.set_typical(middle.map_or(0.0, |log| exp2(log + BELOW_THE_MEAN)));
    }

    /// Number of service times that each request more in flight costs: 1 where a member works on one after the other, 0
    /// where it works on all at once. Learnt for the group as a whole.
    #[inline]
    pub fn growth(&self) -> f32 {
        self.pool.state.growth()
    }

    /// Learns that anew from what these members have shown.
    pub(crate) fn learn_growth(&self, members: impl Iterator<Item = usize>) {
        let mut growth = Growth::unknown();
        members.for_each(|index| growth.add_member(self.slot(index).regression()));
        self.pool.state.learn_growth(growth.get());
    }

    /// Time since the last answer of the member at `index`, if that is so long that the member may have changed since.
    #[inline]
    pub fn stale_since(&self, index: usize) -> Option<Duration> {
        self.slot(index)
            .stale_since(self.decision_time(), self.settings().latency_decay)
    }

    /// Requests in flight at the location of the member at `index` from all balancers, if the location reports them:
    /// other balancers' requests, which the slot cannot know, count 1 each; ours count their cost. `None` is unknown.
    #[inline]
    pub fn reported_in_flight(&self, index: usize) -> Option<f32> {
        match self.query.id {
            LoadId::IN_FLIGHT => self.member_load(index),
            _ => None,
        }
    }

    /// Requests in flight at the member at `index`, by their cost, and clients that were sent there and are probably
    /// still there: all that is known to keep a member busy that reports nothing.
    #[inline]
    pub(crate) fn known_work(&self, index: usize) -> f32 {
        self.slot(index).cost_in_flight() + self.bound_clients(index)
    }

    /// Number of clients that were sent to the member at `index` and are probably still there.
    #[inline]
    pub(crate) fn bound_clients(&self, index: usize) -> f32 {
        let record = self.slot(index).record();
        record.bound_clients.number(self.decision_time())
    }

    /// Describes the requests in flight at the member at `index`.
    pub(crate) fn in_flight(&self, index: usize) -> String {
        let slot = self.slot(index);
        let (count, cost) = (slot.in_flight(), slot.cost_in_flight());
        match cost == count as f32 {
            true => format!("in flight {count}"),
            false => format!("in flight {count} of cost {}", Short(cost)),
        }
    }

    /// Describes the requests in flight at the member at `index`, and the clients that are bound to it, if there are
    /// any.
    pub(crate) fn describe_work(&self, index: usize) -> String {
        let flying = self.in_flight(index);
        let bound_clients = self.bound_clients(index);
        match bound_clients >= 0.05 {
            true => format!("{flying}, {bound_clients:.1} clients bound"),
            false => flying,
        }
    }

    /// True if clients were ever sent to members of the group, to go there themselves.
    #[inline]
    pub(crate) fn has_clients(&self) -> bool {
        self.pool.state.has_clients.load(Ordering::Relaxed)
    }

    /// Describes the reason for which the member at `index` may not be picked; `None` if it may.
    pub fn explain_obstacle(&self, index: usize) -> Option<String> {
        let slot = self.slot(index);
        let against = slot.decision_bits() & self.mask;
        if against != 0 {
            let reasons = Reason::ALL.into_iter();
            let held = reasons.filter(|&reason| against & reason as u32 != 0);
            let elsewhere = (against & RANK_BITS != 0).then_some("in another zone");
            let names = held.map(Reason::name).chain(elsewhere);
            return Some(names.collect::<Vec<_>>().join(", "));
        }
        if slot.weight() <= 0.0 {
            return Some("weight 0".into());
        }
        if !self.is_eligible_unless_full(index) {
            return Some("tried already, or excluded by the negotiator for this client".into());
        }
        let limit = self.seats[index].request_limit();
        (slot.in_flight() >= limit).then(|| format!("at its limit of {limit} connections"))
    }

    pub(super) fn why_none(&self) -> PickError {
        match self.may_any_serve() {
            true => PickError::AllFull,
            false => PickError::NoneEligible,
        }
    }
}
