//! Object groups: an immutable snapshot of members with the strategy that picks.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use self::late::LateDecision;
use self::view::Pool;
use crate::alert::Threshold;
use crate::cost::Cost;
use crate::key::Key;
use crate::member::{self, Digest, Member, MemberId, Reason};
use crate::relocation::Client;
use crate::strategy::follow::Follow;
use crate::strategy::kind::{Kind, RequestNeeds, Strategy, Values};
use crate::terms::Form;
use crate::time::Instant;
use crate::trace::{Short, Trace};

mod advice;
mod answered;
mod engines;
mod late;
mod ranks;
mod request;
pub(crate) mod settings;
mod state;
#[cfg(test)]
mod tests;
mod ticket;
mod trial;
pub(crate) mod view;
mod zones;

pub use self::answered::AnsweredRequests;
pub use self::ranks::Ranks;
pub use self::request::{Advice, PickError, Request};
pub use self::settings::{Granularity, GroupSettings, InferenceSettings};
pub use self::state::{Decision, GroupState};
pub use self::ticket::Ticket;
pub use self::trial::{BoundTrial, Trial};
pub use self::view::View;
pub use crate::observe::Outcome;

/// An immutable snapshot of a group. Slots, locations and the state are shared between
/// snapshots; everything else is replaced as a whole.
#[derive(Debug)]
pub struct Group {
    name: Arc<str>,
    kind: &'static Kind,
    strategy: Box<dyn Strategy>,
    /// True if a request that may wait does so for the member that will have it done first.
    binds_late: bool,
    /// True if a request that may wait does so in some cases though a member has room.
    holds: bool,
    /// Source of [`Group::fill_weights`] where the strategy has no weights that follow loads.
    follow: Follow,
    pool: Pool,
}

impl Group {
    /// Puts a snapshot together.
    pub fn new(
        name: impl Into<Arc<str>>,
        settings: GroupSettings,
        strategy: &Values,
        members: Vec<Member>,
        state: Arc<GroupState>,
    ) -> Self {
        let kind = strategy.kind();
        let wanted = settings.late_binding.unwrap_or(kind.binds_late);
        let mut pool = Pool::new(settings, members, state);
        if kind.request_needs == RequestNeeds::Body {
            pool.number_engines();
        }
        let binds_late = wanted && pool.members.len() <= late::MOST_MEMBERS;
        let has_target = kind.request_needs == RequestNeeds::Body
            && pool.settings.inference.ttft_target.is_some();
        let group = Group {
            binds_late,
            holds: binds_late || has_target,
            name: name.into(),
            kind,
            strategy: (kind.build)(strategy, &pool.members),
            follow: Follow::default(),
            pool,
        };
        group.heed_weights();
        group
    }

    /// Looks whether the members that get requests have different weights now: these are kept to
    /// better if estimates change slowly. To be called from time to time, as weights change while
    /// requests come.
    pub fn heed_weights(&self) {
        let weights = self.members().iter().map(|member| member.slot.weight());
        let mut weights = weights.filter(|weight| *weight > 0.0);
        let first = weights.next();
        let is_weighted = weights.any(|weight| Some(weight) != first);
        let state = &self.pool.state;
        state.is_weighted.store(is_weighted, Ordering::Relaxed);
    }

    /// The group's name.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// The settings of this snapshot.
    pub fn settings(&self) -> &GroupSettings {
        &self.pool.settings
    }

    /// The strategy of this snapshot.
    pub fn strategy(&self) -> &'static Kind {
        self.kind
    }

    /// Above which effective load the strategy has a location told to shed what it has, if it has
    /// an opinion about that.
    pub fn alert_threshold(&self) -> Option<Threshold> {
        self.strategy.alert_threshold()
    }

    /// Part of a request that decisions need beside the client's address; `None` if they need none.
    pub fn wants_key(&self) -> Option<&Key> {
        let key = &self.pool.settings.hash_key;
        (self.kind.request_needs == RequestNeeds::Key && *key != Key::Client).then_some(key)
    }

    /// All members, eligible or not.
    pub fn members(&self) -> &[Member] {
        &self.pool.members
    }

    /// Returns the index of the member `id` in this snapshot, looked for at `hint` first.
    pub fn find(&self, id: MemberId, hint: usize) -> Option<usize> {
        member::find(&self.pool.members, id, hint)
    }

    /// Notes that a client is bound to the member at `index`. Noted only where it can be of
    /// use: where alerts are [pulses](crate::alert::AlertSettings::pulses).
    #[inline]
    pub fn bind_client(&self, client: &mut Option<Arc<Client>>, index: usize) {
        if self.pool.settings.alert.pulses
            && let Some(member) = self.pool.members.get(index)
        {
            self.pool
                .state
                .ensure_client(client)
                .set_member(Some(member.id));
            member.location.count_client();
        }
    }

    /// State that outlives this snapshot.
    pub fn state(&self) -> &Arc<GroupState> {
        &self.pool.state
    }

    /// The members as a strategy sees them for `request`.
    pub fn view_for<'a>(&'a self, request: &'a Request<'a>) -> View<'a> {
        self.pool.view_for(request)
    }

    /// Computes each member's weight for another balancer, which spreads requests in proportion to weights and sees
    /// nothing of the group: above 0 for each member that may be picked in `view`. Afterwards `weights` has one entry
    /// for each member.
    ///
    /// With `weighted_by_load` and `client_weighted_round_robin`, these are the weights by which the strategy gives
    /// turns. With other strategies that look at loads, the weights follow the loads as with `weighted_by_load` and its
    /// default parameters. With strategies that do not, they are the configured weights. Slow start counts. A step of
    /// the loads that is due is taken, as by a decision.
    pub fn fill_weights(&self, view: &View<'_>, weights: &mut Vec<f32>) {
        weights.clear();
        weights.extend((0..view.len()).map(|index| view.member_weight(index)));
        if !self.strategy.weigh(view, weights) && self.kind.looks_at_loads {
            self.follow.apply_factors(view, weights);
        }
    }

    /// Computes the cost of a connection to each member when it is idle, for a program that makes the strategy's
    /// decisions by [`terms`](crate::terms), and returns their form. Only with [`Form::Score`] and
    /// [`Form::Prequal`] has `costs` entries afterwards: one for each member, in any unit. Slow start counts.
    pub fn fill_costs(&self, view: &View<'_>, costs: &mut Vec<f32>) -> Form {
        costs.clear();
        self.strategy.fill_costs(view, costs)
    }

    /// Chooses a member and binds a request to it.
    pub fn pick(
        &self,
        request: &Request<'_>,
        rng: &mut fastrand::Rng,
    ) -> Result<Ticket, PickError> {
        self.bind_chosen(request, || self.choose_member(request, rng))
    }

    /// Binds a request to the member that `choose` finds.
    #[inline(always)]
    fn bind_chosen(
        &self,
        request: &Request<'_>,
        mut choose: impl FnMut() -> Result<usize, PickError>,
    ) -> Result<Ticket, PickError> {
        // Another worker may take a member's last place between the decision and the
        // binding. Losing several times in a row means that the group is as good as full.
        for _ in 0..4 {
            let index = choose()?;
            if request.plan.is_some() {
                if let Some(ticket) = self.bind_planned(index, request) {
                    return Ok(ticket);
                }
            } else if let Some(ticket) = self.bind_for(index, request.cost, request.now) {
                return Ok(match request.client {
                    Some(client) => ticket.of_client(client),
                    None => ticket,
                });
            }
        }
        Err(PickError::AllFull)
    }

    /// Chooses a member without binding to it, for clients that go there themselves;
    /// [`Group::assign_client`] then counts them.
    pub fn choose_member(
        &self,
        request: &Request<'_>,
        rng: &mut fastrand::Rng,
    ) -> Result<usize, PickError> {
        let view = self.view_for(request);
        match self.pool.state.is_beside() {
            true => self.choose_beside(&view, rng),
            false => self.ask(&view, rng, &mut Trace::off()),
        }
    }

    /// Picks a member if the decision is traced, or goes by zones.
    #[inline(never)]
    fn choose_beside(&self, view: &View<'_>, rng: &mut fastrand::Rng) -> Result<usize, PickError> {
        if self.pool.state.take_trace() {
            let (chosen, decision) = self.explain(view, None, rng);
            self.pool.state.last.store(Some(Arc::new(decision)));
            return chosen;
        }
        self.ask_zones(view, rng, &mut Trace::off())
    }

    /// Explains the decision that [`Group::pick`] would take now, without binding anything.
    pub fn explain_next(&self, request: &Request<'_>, rng: &mut fastrand::Rng) -> Decision {
        self.explain(&self.view_for(request).rehearsed(), None, rng)
            .1
    }

    /// Binds a request of cost 1 to the member at `index`, without asking the strategy; `None` if the member is at its
    /// connection limit, or does not exist.
    pub fn bind(&self, index: usize, now: Instant) -> Option<Ticket> {
        self.bind_for(index, Cost::ONE, now)
    }

    /// Binds a request with this cost, like [`Group::bind`].
    #[inline]
    pub fn bind_for(&self, index: usize, cost: Cost, now: Instant) -> Option<Ticket> {
        let seat = self.pool.seats.get(index)?;
        // Counted first and compared then: several workers may want the last place.
        let others = seat.slot.begin_request(cost);
        if others.count() < seat.request_limit() {
            let digest = self.digest();
            let member = &self.pool.members[index];
            return Some(Ticket::new(member, index, cost, others, now, digest));
        }
        seat.slot.end_request(cost);
        None
    }

    /// Returns what a slot needs to digest an observation.
    #[inline]
    pub(crate) fn digest(&self) -> Digest {
        let (settings, state) = (&self.pool.settings, &self.pool.state);
        Digest {
            decay: settings.latency_decay,
            penalty: self.pool.penalty,
            growth: state.growth(),
            is_weighted: state.is_weighted.load(Ordering::Relaxed),
            learns_cap: self.binds_late,
            typical: state.typical_time(),
            latency: settings.latency,
        }
    }

    /// Binds a request of this `cost` to a member that has a trial, if there is one: for requests only that
    /// may be sent to another member afterwards. The strategy is not asked.
    #[inline]
    pub fn take_trial(&self, cost: Cost, now: Instant) -> Option<BoundTrial> {
        match self.pool.state.has_trials() {
            true => self.find_trial(cost, now),
            false => None,
        }
    }

    #[cold]
    fn find_trial(&self, cost: Cost, now: Instant) -> Option<BoundTrial> {
        let is_on = self.pool.settings.ejection.trials;
        let members = self.members().iter().enumerate().filter(|_| is_on);
        // A member that is in maintenance or drained by now gets no trial that was granted before, nor one that serves and is
        // the only one that does.
        let may_serve =
            |member: &Member| member.slot.reason_bits() == 0 && member.slot.weight() > 0.0;
        let serving = self.members().iter().filter(|member| may_serve(member));
        let serving = serving.take(2).count();
        let is_tried = |member: &Member| match member.slot.reason_bits() {
            0 => serving > 1 && member.slot.weight() > 0.0,
            bits => bits == Reason::Ejected as u32 && member.slot.weight() > 0.0,
        };
        let mut tried = members.filter(|(_, member)| is_tried(member));
        let taken = tried.find_map(|(index, member)| Some((index, Trial::take_of(&member.slot)?)));
        let Some((index, trial)) = taken else {
            // Every request looks at the flag, and a large group has many members to look at.
            self.pool.state.set_trials(false);
            return None;
        };
        let ticket = self.bind_for(index, cost, now)?;
        let decay = self.settings().latency_decay;
        let others = self.members().iter().enumerate();
        let others = others.filter(|(other, _)| *other != index);
        let latencies = others.filter_map(|(_, member)| member.slot.latency(now, decay));
        let time = trial::time_to_answer(latencies.fold(0.0, f32::max));
        Some(BoundTrial {
            ticket,
            trial,
            time,
        })
    }

    /// Counts a client that was told to go to the member at `index` itself, and to ask again after `stay`. Nothing
    /// reports the client's end, so there is no ticket: the client counts as bound since the last load report, so that
    /// the next client is not sent there for the same low load.
    pub fn assign_client(&self, index: usize, stay: Duration, now: Instant) {
        if let Some(seat) = self.pool.seats.get(index) {
            seat.location.assign_client(stay);
            seat.slot.own_record().count_assigned(stay, now);
            if !stay.is_zero() {
                self.pool.state.has_clients.store(true, Ordering::Relaxed);
            }
        }
    }

    /// Says of a client that was just assigned to the member at `index` that it asks more often
    /// than one client would: what it may bring is no reason to refuse others
    /// ([`View::vouched_load`]).
    pub fn doubt_client(&self, index: usize) {
        if let Some(seat) = self.pool.seats.get(index) {
            seat.location.doubt_client();
        }
    }

    fn ask(
        &self,
        view: &View<'_>,
        rng: &mut fastrand::Rng,
        trace: &mut Trace,
    ) -> Result<usize, PickError> {
        if let Some(chosen) = self.ask_strategy(view, rng, trace) {
            return chosen;
        }
        // If others are only full, backups are no more eligible than before.
        if let Some(index) = self.ask_backups(view, rng, trace) {
            return Ok(index);
        }
        // An alert is no reason to refuse anybody.
        let all = view.despite_alerts();
        if all.eligible_indices().next().is_none() {
            return Err(all.why_none());
        }
        trace.note_sentence(|| "no other member can serve, so load alerts are ignored".into());
        let chosen = self.strategy.pick(&all, rng, trace);
        chosen.ok_or_else(|| all.why_none())
    }

    /// Asks the strategy for one of the members in `view`; `None` if none of them may be picked.
    #[inline(always)]
    fn ask_strategy(
        &self,
        view: &View<'_>,
        rng: &mut fastrand::Rng,
        trace: &mut Trace,
    ) -> Option<Result<usize, PickError>> {
        let index = self.strategy.pick(view, rng, trace)?;
        Some(match view.request().ahead {
            Some(ahead) if self.holds => self.bind_late(view, index, ahead, rng, trace),
            _ => Ok(index),
        })
    }

    /// Decides about a request that may wait, after the strategy's choice.
    #[inline]
    fn bind_late(
        &self,
        view: &View<'_>,
        chosen: usize,
        ahead: u32,
        rng: &mut fastrand::Rng,
        trace: &mut Trace,
    ) -> Result<usize, PickError> {
        if self.is_late(view, trace) {
            return Err(PickError::Late);
        }
        let state = &self.pool.state;
        if !self.binds_late {
            return Ok(chosen);
        }
        if rng.u32(..late::LEARNING_INTERVAL) == 0 && !view.is_rehearsal() {
            state
                .has_caps
                .store(late::learn_caps(view), Ordering::Relaxed);
        }
        if !self.pool.has_low_limit && !state.has_caps.load(Ordering::Relaxed) {
            return Ok(chosen);
        }
        match late::decide_late(view, chosen, ahead, rng, trace) {
            LateDecision::Now => Ok(chosen),
            LateDecision::OtherMember(index) => Ok(index),
            LateDecision::Hold => Err(PickError::Held),
        }
    }

    /// Asks for a backup, if only backups may serve.
    fn ask_backups(
        &self,
        view: &View<'_>,
        rng: &mut fastrand::Rng,
        trace: &mut Trace,
    ) -> Option<usize> {
        let backups = view.or_backups();
        backups.eligible_indices().next()?;
        let chosen = self.strategy.pick(&backups, rng, trace)?;
        trace.note_sentence(|| "no other member may serve, so a backup serves".into());
        Some(chosen)
    }

    fn explain(
        &self,
        view: &View<'_>,
        advice: Option<Advice>,
        rng: &mut fastrand::Rng,
    ) -> (Result<usize, PickError>, Decision) {
        let mut trace = Trace::on();
        if self.pool.state.is_panicking() {
            trace.note_sentence(|| {
                "panic mode: too many members are down or ejected, so members that are down or ejected get \
                 requests, too".into()
            });
        }
        if let Some(why) = view.request().unbound {
            trace.note_sentence(|| format!("the client's earlier binding has ended: {why}"));
        }
        let cost = view.request().cost;
        if cost != Cost::ONE {
            trace.note_sentence(|| format!("the request costs {}", Short(cost.get())));
        }
        let chosen = match advice {
            Some(advice) => self.ask_advised(view, advice, rng, &mut trace),
            None => self.ask_zones(view, rng, &mut trace),
        };
        let id_of = |index: &usize| self.pool.members.get(*index).map(|member| member.id);
        let by_chooser = matches!((advice, &chosen), (Some(Advice::Member(named)), Ok(index)) if id_of(index) == Some(named));
        // Obstacles are reported as the chosen member's view shows them. A chooser sees all zones alike.
        let of_rank = match (&chosen, &self.pool.ranks) {
            (Ok(index), Some(ranks)) if !by_chooser => view.of_rank(ranks.rank_at(*index)),
            _ => *view,
        };
        let views = [of_rank, *view, view.or_backups(), view.despite_alerts()];
        let view = match chosen {
            Ok(index) => views.into_iter().find(|view| view.is_eligible(index)),
            Err(_) => None,
        };
        let view = view.unwrap_or(views[1]);
        for index in 0..self.pool.members.len() {
            if let Some(obstacle) = view.explain_obstacle(index) {
                trace.note_candidate(index, None, || format!("not eligible: {obstacle}"));
            }
        }
        let decision = Decision {
            at: view.decision_time(),
            in_kernel: false,
            strategy: self.kind.name,
            chosen: chosen.map(|index| Arc::clone(&self.pool.members[index].name)),
            explanation: trace.into_explanation().unwrap_or_default(),
            members: self
                .pool
                .members
                .iter()
                .map(|m| Arc::clone(&m.name))
                .collect(),
        };
        (chosen, decision)
    }
}
