//! The weights of a group's members as another balancer is told them, and when it is told.
//!
//! Somebody else who forwards requests (HAProxy, nginx, Envoy, a gRPC client) knows a weight for each
//! server and no more. [`observe_members`] says what each member of a group should get at a moment: by the
//! strategy and its loads ([`Group::fill_weights`]), and by all that decides whether it may serve at all:
//! health, ejection, drain, maintenance, alerts, backups, panic. [`Shares`] makes whole numbers
//! of that, and says when they have changed so much that they are worth a message: changes are
//! damped, small ones are left out, and there is a least time between two messages.
//!
//! What is said is the whole truth each time, not a difference: who receives it compares it with what
//! is there.

use std::collections::HashMap;
use std::time::Duration;

use evenkeel_core::group::{Group, Request, View};
use evenkeel_core::member::{MemberId, Reason};
use evenkeel_core::time::Instant;

/// State that says whether a member may get requests, and if not, why.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ServiceState {
    /// The member may get requests.
    Serving,
    /// The member is drained, by an administrator, by its own report, or by a weight of 0: it gets
    /// nothing new, but bound clients may stay.
    Draining,
    /// The member is in maintenance, by an administrator or by its own report: it gets nothing at
    /// all.
    Maintenance,
    /// The member is thought not to work: its checks fail, it was ejected, refuses connections, or
    /// has no address.
    Down,
    /// The member's location is under a load alert, and others can serve.
    Shedding,
    /// The member is a backup that is not needed, or in a zone to which no request goes.
    Standby,
}

impl ServiceState {
    /// The name in status and logs.
    pub fn name(self) -> &'static str {
        match self {
            ServiceState::Serving => "serving",
            ServiceState::Draining => "draining",
            ServiceState::Maintenance => "maintenance",
            ServiceState::Down => "down",
            ServiceState::Shedding => "shedding",
            ServiceState::Standby => "standby",
        }
    }

    fn of(reasons: u32) -> Self {
        let any = |bits: u32| reasons & bits != 0;
        if any(Reason::Maintenance as u32 | Reason::ReportedMaintenance as u32) {
            ServiceState::Maintenance
        } else if any(Reason::Draining as u32 | Reason::ReportedDrain as u32) {
            ServiceState::Draining
        } else if any(!Reason::SOFT) {
            ServiceState::Down
        } else if any(Reason::Shedding as u32) {
            ServiceState::Shedding
        } else if any(Reason::Standby as u32) {
            ServiceState::Standby
        } else {
            // There is no other reason but a weight of 0.
            ServiceState::Draining
        }
    }
}

/// Reasons that are no opinions about a member: its own word or an administrator's, or a missing
/// address.
const FACTS: u32 = Reason::Maintenance as u32
    | Reason::ReportedMaintenance as u32
    | Reason::Draining as u32
    | Reason::ReportedDrain as u32
    | Reason::Unresolved as u32;

/// Weight and standing that a member should get at a moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TargetShare {
    /// Id of the member.
    pub id: MemberId,
    /// Weight of the member relative to that of the others, in any unit; above 0 if it is serving.
    pub weight: f32,
    /// Standing of the member.
    pub standing: ServiceState,
}

/// Finds what each member of `group` should get `now`, in the order of [`Group::members`].
///
/// The members that may serve are those that a decision would find. If no member is fit, backups
/// are used, then members under a load alert. If there is nobody even then, all members serve that
/// were not taken out on purpose: whoever forwards the requests may reach them when we cannot, and
/// sees by itself who answers.
///
/// Where members are of [zones](evenkeel_core::zone) with different ranks, those of a rank get together
/// what decisions send there, and are [on standby](Standing::Standby) if that is nothing.
pub fn observe_members(group: &Group, now: Instant, seen: &mut Vec<TargetShare>) {
    look_without_zones(group, now, seen);
    spread_over_zones(group, seen);
}

/// Does the same for somebody who chooses among zones without us, and may be in another zone: all
/// zones are alike.
pub fn look_without_zones(group: &Group, now: Instant, seen: &mut Vec<TargetShare>) {
    let request = Request::at_time(now);
    let view = group.view_for(&request);
    let fits = |view: &View<'_>| (0..view.len()).any(|index| view.is_eligible_unless_full(index));
    let views = [view, view.or_backups(), view.despite_alerts()];
    let chosen = views.into_iter().find(fits);
    let mut weights = Vec::new();
    group.fill_weights(&chosen.unwrap_or(view), &mut weights);
    seen.clear();
    let members = group.members().iter().zip(weights).enumerate();
    seen.extend(members.map(|(index, (member, weight))| {
        let reasons = member.slot.reason_bits();
        let serves = match &chosen {
            Some(view) => view.is_eligible_unless_full(index),
            None => reasons & FACTS == 0 && member.slot.weight() > 0.0,
        };
        let standing = match serves {
            true => ServiceState::Serving,
            false => ServiceState::of(reasons),
        };
        TargetShare {
            id: member.id,
            weight,
            standing,
        }
    }));
}

/// Gives the members of each rank of zones together the share of the requests that goes there.
fn spread_over_zones(group: &Group, seen: &mut [TargetShare]) {
    let Some(ranks) = group.ranks() else {
        return;
    };
    let count = ranks.count();
    let mut weights = vec![0.0; count];
    for (index, member) in seen.iter().enumerate() {
        if let Some(weight) = weights.get_mut(ranks.rank_at(index))
            && member.standing == ServiceState::Serving
        {
            *weight += f64::from(member.weight);
        }
    }
    // What comes to a rank where nobody serves goes to the first one where somebody does, as a decision
    // would find.
    let serves = |rank: &usize| weights.get(*rank).is_some_and(|weight| *weight > 0.0);
    let Some(first) = (0..count).find(serves) else {
        return;
    };
    let mut shares = vec![0.0; count];
    for (rank, share) in group
        .state()
        .zones()
        .rank_shares(count)
        .into_iter()
        .enumerate()
    {
        let rank = Some(rank).filter(serves).unwrap_or(first);
        if let Some(sum) = shares.get_mut(rank) {
            *sum += share;
        }
    }
    for (index, member) in seen.iter_mut().enumerate() {
        let rank = ranks.rank_at(index);
        if member.standing != ServiceState::Serving {
            continue;
        }
        match (shares.get(rank), weights.get(rank)) {
            (Some(&share), Some(&weight)) if share > 0.0 && weight > 0.0 => {
                member.weight = (f64::from(member.weight) * share / weight) as f32;
            }
            _ => member.standing = ServiceState::Standby,
        }
    }
}

/// Finds what each member of `group` should get if nobody looks after the group any more: its
/// configured weight, or the weight that was set live, unless the member was taken out on purpose.
pub fn use_configured(group: &Group, seen: &mut Vec<TargetShare>) {
    seen.clear();
    seen.extend(group.members().iter().map(|member| {
        let facts = member.slot.reason_bits() & FACTS;
        let weight = member.slot.weight();
        TargetShare {
            id: member.id,
            weight,
            standing: match facts == 0 && weight > 0.0 {
                true => ServiceState::Serving,
                false => ServiceState::of(facts),
            },
        }
    }));
}

/// Settings by which shares become messages.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// The weight of the member that is to get most; at least 1. The others' are in proportion to it,
    /// and at least 1 as long as they serve.
    pub highest: u32,
    /// Time constant with which weights approach what they should be; 0 is at once.
    pub damping: Duration,
    /// Changes of a weight below this share of it are left out.
    pub smallest_change: f32,
    /// Changes of a weight by less than this are left out, too.
    pub smallest_step: u32,
    /// Least time from one message to the next if only weights change.
    pub interval: Duration,
    /// Least time from one message to the next if a member begins or ends to serve, comes or goes.
    pub urgent_interval: Duration,
}

impl Default for Settings {
    /// Returns settings for receivers that take messages easily: at most five a second.
    fn default() -> Self {
        Settings {
            highest: 256,
            damping: Duration::from_millis(300),
            smallest_change: 0.03,
            smallest_step: 1,
            interval: Duration::from_millis(200),
            urgent_interval: Duration::from_millis(50),
        }
    }
}

/// Weight and standing of a member, as the receiver is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Id of the member.
    pub id: MemberId,
    /// Weight from 1 to [`Settings::highest`] if the member serves, else 0.
    pub weight: u32,
    /// Standing of the member.
    pub standing: ServiceState,
}

/// A member's weight on its way to what it should be.
#[derive(Clone, Copy, Debug)]
struct Damped {
    id: MemberId,
    weight: f64,
    /// True if the member served when it was last looked at.
    served: bool,
}

/// The shares of one group, as one receiver is told them.
#[derive(Debug)]
pub struct Shares {
    settings: Settings,
    /// In the order of the members.
    damped: Vec<Damped>,
    damped_at: Option<Instant>,
    /// Shares that were said last, in the order of the members then.
    said: Vec<Share>,
    /// Time at which `said` was said; `None` is never, or that it has to be said again.
    said_at: Option<Instant>,
    /// For each member, its index in `said`; made anew when members change.
    places: Vec<Option<usize>>,
    /// Number of messages.
    messages: u64,
}

impl Shares {
    /// Returns shares of which nothing was said yet.
    pub fn new(settings: Settings) -> Self {
        Shares {
            settings: Settings {
                highest: settings.highest.max(1),
                ..settings
            },
            damped: Vec::new(),
            damped_at: None,
            said: Vec::new(),
            said_at: None,
            places: Vec::new(),
            messages: 0,
        }
    }

    /// Returns the shares that were said last, in the order of the members at that time.
    pub fn last_shares(&self) -> &[Share] {
        &self.said
    }

    /// Returns the number of messages.
    pub fn messages(&self) -> u64 {
        self.messages
    }

    /// Returns the settings by which shares become messages.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Sets other settings from now on. What was said stays, unless weights have another scale.
    pub fn set_settings(&mut self, settings: Settings) {
        let next = Shares::new(settings).settings;
        if next.highest != self.settings.highest {
            self.say_again();
        }
        self.settings = next;
    }

    /// The next [update](Shares::update) says all shares, whether they have changed or not, and however
    /// short the last message was ago: the receiver may have lost them.
    pub fn say_again(&mut self) {
        self.said_at = None;
    }

    /// Looks at `members` as they are `now`. Answers what the shares of all of them are, in their
    /// order, if that is to be said now. Times must not run backwards; if they do, nothing is said.
    pub fn update(&mut self, now: Instant, members: &[TargetShare]) -> Option<&[Share]> {
        self.damp(now, members);
        self.find_places(members);
        let highest = self.highest(members);
        let mut urgent = members.len() != self.said.len();
        let mut changed = false;
        for (index, member) in members.iter().enumerate() {
            match self.before(index) {
                Some(before) if before.standing == member.standing => {
                    changed |= self.next(index, member, highest) != before.weight;
                }
                _ => urgent = true,
            }
        }
        if let Some(said_at) = self.said_at {
            let wait = match (urgent, changed) {
                (true, _) => self.settings.urgent_interval.min(self.settings.interval),
                (false, true) => self.settings.interval,
                (false, false) => return None,
            };
            if now.since(said_at) < wait {
                return None;
            }
        } else if members.is_empty() && self.said.is_empty() {
            // There is nothing to say.
            return None;
        }
        let shares = members.iter().enumerate().map(|(index, member)| Share {
            id: member.id,
            weight: self.next(index, member, highest),
            standing: member.standing,
        });
        self.said = shares.collect();
        self.said_at = Some(now);
        self.places = (0..self.said.len()).map(Some).collect();
        self.messages += 1;
        Some(&self.said)
    }

    /// Takes each weight a part of the way to what it should be.
    fn damp(&mut self, now: Instant, members: &[TargetShare]) {
        let passed = self.damped_at.map(|at| now.since(at).as_secs_f64());
        let constant = self.settings.damping.as_secs_f64();
        // The part of the way that is left.
        let rest = match passed {
            Some(passed) if constant > 0.0 => libm::exp(-passed / constant),
            _ => 0.0,
        };
        let same = self.damped.len() == members.len()
            && self.damped.iter().zip(members).all(|(a, b)| a.id == b.id);
        if !same {
            let held = self.damped.iter().map(|damped| (damped.id, *damped));
            let held: HashMap<MemberId, Damped> = held.collect();
            let damped = members.iter().map(|member| {
                let held = held.get(&member.id).copied();
                held.unwrap_or(Damped {
                    id: member.id,
                    weight: 0.0,
                    served: false,
                })
            });
            self.damped = damped.collect();
        }
        for (damped, member) in self.damped.iter_mut().zip(members) {
            let weight = f64::from(member.weight);
            let weight = if weight.is_finite() { weight } else { 0.0 };
            // Whoever is new, or has just returned, has no way to go.
            damped.weight = match damped.served {
                true => weight + (damped.weight - weight) * rest,
                false => weight,
            };
            damped.served = member.standing == ServiceState::Serving;
        }
        self.damped_at = Some(now);
    }

    /// Finds out what was said of each member.
    fn find_places(&mut self, members: &[TargetShare]) {
        let is_at = |place: Option<usize>, id: MemberId| {
            let said = place.and_then(|place| self.said.get(place));
            said.is_none_or(|said| said.id == id)
        };
        let same = self.places.len() == members.len()
            && self
                .places
                .iter()
                .zip(members)
                .all(|(place, member)| place.is_some() && is_at(*place, member.id));
        if !same {
            let said = self.said.iter().enumerate();
            let said: HashMap<MemberId, usize> =
                said.map(|(place, said)| (said.id, place)).collect();
            let places = members.iter().map(|member| said.get(&member.id).copied());
            self.places = places.collect();
        }
    }

    /// Returns the share that was last said of the member at `index`.
    fn before(&self, index: usize) -> Option<&Share> {
        let place = self.places.get(index).copied().flatten()?;
        self.said.get(place)
    }

    /// The highest weight of those that serve; 0 if none of them has a weight that is known, whatever
    /// is left of earlier ones: that only says how long ago they were known.
    fn highest(&self, members: &[TargetShare]) -> f64 {
        let both = self.damped.iter().zip(members);
        let serving = both.filter(|(_, member)| member.standing == ServiceState::Serving);
        let known = |member: &TargetShare| member.weight.is_finite() && member.weight > 0.0;
        if !serving.clone().any(|(_, member)| known(member)) {
            return 0.0;
        }
        serving.map(|(damped, _)| damped.weight).fold(0.0, f64::max)
    }

    /// The weight of the member at `index` if anything is said now: the one that was said before, if
    /// the change would be too small.
    fn next(&self, index: usize, member: &TargetShare, highest: f64) -> u32 {
        if member.standing != ServiceState::Serving {
            return 0;
        }
        let damped = self.damped.get(index).map_or(0.0, |damped| damped.weight);
        let most = f64::from(self.settings.highest);
        let exact = match highest > 0.0 {
            true => damped / highest * most,
            false => most,
        };
        let rounded = exact.round().clamp(1.0, most);
        let before = self.before(index);
        let before = before.filter(|before| before.standing == ServiceState::Serving);
        if let Some(before) = before {
            let held = f64::from(before.weight);
            let change = (exact.max(1.0) - held).abs();
            let least = f64::from(self.settings.smallest_step)
                .max(held * f64::from(self.settings.smallest_change));
            if change < least && held <= most {
                return before.weight;
            }
        }
        rounded as u32
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use evenkeel_core::group::{GroupSettings, GroupState};
    use evenkeel_core::load::{LoadId, LoadValue};
    use evenkeel_core::member::{Member, Slot, Weight};
    use evenkeel_core::strategy::{self, Values};
    use evenkeel_core::zone::{Reading, WHOLE, ZoneSettings};
    use proptest::prelude::*;

    use super::*;
    use crate::testing::make_member;

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    fn seen(weights: &[f32]) -> Vec<TargetShare> {
        let members = weights
            .iter()
            .enumerate()
            .map(|(index, &weight)| TargetShare {
                id: MemberId(index as u64),
                weight,
                standing: match weight > 0.0 {
                    true => ServiceState::Serving,
                    false => ServiceState::Draining,
                },
            });
        members.collect()
    }

    fn weights(shares: &[Share]) -> Vec<u32> {
        shares.iter().map(|share| share.weight).collect()
    }

    const AT_ONCE: Settings = Settings {
        highest: 100,
        damping: Duration::ZERO,
        smallest_change: 0.05,
        smallest_step: 2,
        interval: Duration::from_millis(1000),
        urgent_interval: Duration::from_millis(100),
    };

    #[test]
    fn weights_are_in_proportion_to_the_highest() {
        let mut shares = Shares::new(AT_ONCE);
        let said = shares.update(at(0), &seen(&[0.5, 2.0, 0.0, 0.001]));
        assert_eq!(said.map(weights), Some(vec![25, 100, 0, 1]));
    }

    #[test]
    fn small_changes_are_left_out_and_larger_ones_wait_for_the_interval() {
        let mut shares = Shares::new(AT_ONCE);
        assert!(shares.update(at(0), &seen(&[1.0, 0.50])).is_some());
        // Less than a step of 2, and less than 5 % of 50.
        assert_eq!(shares.update(at(5000), &seen(&[1.0, 0.515])), None);
        assert_eq!(shares.update(at(5010), &seen(&[1.0, 0.485])), None);
        let said = shares.update(at(5020), &seen(&[1.0, 0.60]));
        assert_eq!(said.map(weights), Some(vec![100, 60]));
        assert_eq!(shares.update(at(6010), &seen(&[1.0, 0.80])), None);
        let said = shares.update(at(6020), &seen(&[1.0, 0.80]));
        assert_eq!(said.map(weights), Some(vec![100, 80]));
        assert_eq!(shares.messages(), 3);
    }

    #[test]
    fn who_stops_serving_is_told_soon_and_at_once_without_damping() {
        let mut shares = Shares::new(Settings {
            damping: Duration::from_secs(1000),
            ..AT_ONCE
        });
        assert!(shares.update(at(0), &seen(&[1.0, 1.0, 0.5])).is_some());
        let drained = seen(&[1.0, 0.0, 0.5]);
        assert_eq!(shares.update(at(99), &drained), None);
        let said = shares.update(at(100), &drained);
        assert_eq!(said.map(weights), Some(vec![100, 0, 50]));
        // And back.
        let said = shares.update(at(200), &seen(&[1.0, 1.0, 0.5]));
        assert_eq!(said.map(weights), Some(vec![100, 100, 50]));
    }

    #[test]
    fn damped_weights_come_to_what_they_should_be() {
        let mut shares = Shares::new(Settings {
            damping: Duration::from_secs(1),
            smallest_change: 0.0,
            smallest_step: 0,
            ..AT_ONCE
        });
        assert!(shares.update(at(0), &seen(&[1.0, 1.0])).is_some());
        let said = shares.update(at(1000), &seen(&[1.0, 0.2]));
        // 0.2 + 0.8 / e.
        assert_eq!(said.map(weights), Some(vec![100, 49]));
        for second in 2..20 {
            shares.update(at(second * 1000), &seen(&[1.0, 0.2]));
        }
        assert_eq!(weights(shares.last_shares()), [100, 20]);
    }

    /// Remains of weights that were known once do not decide who gets how much.
    #[test]
    fn members_of_whom_nothing_is_known_any_more_get_the_same_and_that_is_said_once() {
        let mut shares = Shares::new(Settings {
            damping: Duration::from_millis(133),
            ..AT_ONCE
        });
        assert!(shares.update(at(0), &seen(&[161.0])).is_some());
        let unknown = [1, 0].map(|id| TargetShare {
            id: MemberId(id),
            weight: f32::NAN,
            standing: ServiceState::Serving,
        });
        let said = shares.update(at(1000), &unknown);
        assert_eq!(said.map(weights), Some(vec![100, 100]));
        for second in 2..500 {
            assert_eq!(shares.update(at(second * 1000), &unknown), None);
        }
    }

    #[test]
    fn members_that_come_and_go_keep_what_was_said_of_the_others() {
        let mut shares = Shares::new(AT_ONCE);
        let all = seen(&[1.0, 0.5, 0.3]);
        assert!(shares.update(at(0), &all).is_some());
        let said = shares.update(at(100), &all[1..]).map(<[Share]>::to_vec);
        let said = said.unwrap();
        assert_eq!(
            said.iter().map(|share| share.id.0).collect::<Vec<_>>(),
            [1, 2]
        );
        assert_eq!(weights(&said), [100, 60]);
        let mut other = all.clone();
        other.reverse();
        let said = shares.update(at(200), &other);
        assert_eq!(said.map(weights), Some(vec![30, 50, 100]));
        // The same members in another order are nothing new.
        assert_eq!(shares.update(at(9000), &all), None);
        let said = shares.update(at(10_000), &[]);
        assert_eq!(said.map(weights), Some(vec![]));
        assert_eq!(shares.update(at(20_000), &[]), None);
    }

    #[test]
    fn what_the_receiver_lost_is_said_again_at_once() {
        let mut shares = Shares::new(AT_ONCE);
        let all = seen(&[1.0, 0.5]);
        assert!(shares.update(at(0), &all).is_some());
        assert_eq!(shares.update(at(10), &all), None);
        shares.say_again();
        let said = shares.update(at(20), &all);
        assert_eq!(said.map(weights), Some(vec![100, 50]));
        let other_scale = Settings {
            highest: 10,
            ..AT_ONCE
        };
        shares.set_settings(other_scale);
        let said = shares.update(at(30), &all);
        assert_eq!(said.map(weights), Some(vec![10, 5]));
    }

    fn group(strategy: &str, weights: &[f64]) -> Group {
        let members = (0..).zip(weights).map(|(id, &weight)| Member {
            slot: Arc::new(Slot::new(Weight::new(weight).unwrap())),
            ..make_member(id)
        });
        grouped(strategy, members.collect(), GroupSettings::default())
    }

    fn grouped(strategy: &str, members: Vec<Member>, settings: GroupSettings) -> Group {
        let values = Values::defaults(strategy::find(strategy).unwrap());
        let state = Arc::<GroupState>::default();
        Group::new("g", settings, &values, members, state)
    }

    fn report(group: &Group, loads: &[f64], now: Instant) {
        for (member, &load) in group.members().iter().zip(loads) {
            let load = LoadValue::new(load).unwrap();
            member.location.report_load(LoadId::CPU, load, now).unwrap();
        }
    }

    fn standings(group: &Group, now: Instant) -> Vec<ServiceState> {
        let mut seen = Vec::new();
        observe_members(group, now, &mut seen);
        seen.iter().map(|seen| seen.standing).collect()
    }

    /// Two servers at 0.9 and 0.1 are told the shares that our own proxy gives them.
    #[test]
    fn shares_are_those_of_our_own_decisions() {
        for name in [
            "weighted_by_load",
            "adaptive",
            "least_request",
            "least_utilization",
        ] {
            let (ours, theirs) = (
                group("weighted_by_load", &[1.0, 1.0]),
                group(name, &[1.0, 1.0]),
            );
            let mut shares = Shares::new(Settings::default());
            let (mut rng, mut seen) = (fastrand::Rng::with_seed(5), Vec::new());
            let mut counts = [0u32; 2];
            for tick in 1..=300u64 {
                let now = at(tick * 100);
                if tick % 5 == 0 {
                    report(&ours, &[0.9, 0.1], now);
                    report(&theirs, &[0.9, 0.1], now);
                }
                observe_members(&theirs, now, &mut seen);
                shares.update(now, &seen);
                for _ in 0..100 {
                    let index = ours
                        .choose_member(&Request::at_time(now), &mut rng)
                        .unwrap();
                    counts[index] += u32::from(tick > 200);
                }
            }
            let share = |parts: &[u32]| f64::from(parts[0]) / f64::from(parts[0] + parts[1]);
            let (own, other) = (share(&counts), share(&weights(shares.last_shares())));
            assert!((own - other).abs() < 0.02, "{name}: {own} {other}");
            assert!(own < 0.1, "{own}");
        }
    }

    #[test]
    fn loads_that_become_unknown_bring_the_configured_weights_back() {
        let group = group("least_utilization", &[1.0, 2.0]);
        let mut shares = Shares::new(Settings::default());
        let mut seen = Vec::new();
        let mut run = |from: u64, to: u64, reports: bool| {
            for tick in from..to {
                let now = at(tick * 100);
                if reports && tick % 10 == 0 {
                    report(&group, &[0.1, 0.9], now);
                }
                observe_members(&group, now, &mut seen);
                shares.update(now, &seen);
            }
            weights(shares.last_shares())
        };
        assert_eq!(run(1, 10, false), [128, 256]);
        let followed = run(10, 22, true);
        assert!(followed[0] > 170, "{followed:?}");
        // Reports end at 2 s, and count for 15 s.
        let back = run(22, 220, false);
        assert!(
            back[0].abs_diff(128) <= 4 && back[1].abs_diff(256) <= 8,
            "{back:?}"
        );
    }

    #[test]
    fn strategies_that_do_not_look_at_loads_give_configured_weights() {
        let group = group("round_robin", &[1.0, 2.0]);
        let mut seen = Vec::new();
        for second in 1..10 {
            report(&group, &[0.1, 0.9], at(second * 1000));
            observe_members(&group, at(second * 1000), &mut seen);
        }
        let weights: Vec<_> = seen.iter().map(|seen| seen.weight).collect();
        assert_eq!(weights, [1.0, 2.0]);
    }

    #[test]
    fn members_of_a_zone_get_together_what_decisions_send_there() {
        use ServiceState::{Maintenance, Serving, Standby};
        let ids = group("round_robin", &[1.0, 3.0, 1.0, 1.0])
            .members()
            .to_vec();
        let zones = ["a", "a", "b", "c"];
        let members = ids.into_iter().zip(zones).map(|(member, zone)| Member {
            zone: Some(zone.into()),
            ..member
        });
        let settings = GroupSettings {
            zones: Some(ZoneSettings {
                balancer_zone: Some("a".into()),
                order: vec!["b".into()],
                ..ZoneSettings::default()
            }),
            ..GroupSettings::default()
        };
        let group = grouped("round_robin", members.collect(), settings);
        group.take_ranks();
        let weights = || {
            let mut seen = Vec::new();
            observe_members(&group, at(1), &mut seen);
            let serving = seen.iter().filter(|seen| seen.standing == Serving);
            let sum: f32 = serving.map(|seen| seen.weight).sum();
            let parts = seen.iter().map(|seen| (seen.standing, seen.weight / sum));
            parts.collect::<Vec<_>>()
        };
        let standings = || weights().iter().map(|part| part.0).collect::<Vec<_>>();
        assert_eq!(standings(), [Serving, Serving, Standby, Standby]);
        let mut seen = Vec::new();
        look_without_zones(&group, at(1), &mut seen);
        let alike = seen.iter().map(|seen| (seen.standing, seen.weight));
        let all = [1.0, 3.0, 1.0, 1.0].map(|weight| (Serving, weight));
        assert_eq!(alike.collect::<Vec<_>>(), all);
        // A quarter of the requests leaves the own zone, and half of that the next one.
        let pass = |rank: usize, part: u32| {
            let reading = Reading {
                passed_share: WHOLE / part,
                load: None,
                usable: 1.0,
            };
            group.state().zones().set(rank, reading);
        };
        pass(0, 4);
        pass(1, 2);
        let parts: Vec<f32> = weights().iter().map(|part| part.1).collect();
        for (part, wanted) in parts.iter().zip([0.1875, 0.5625, 0.125, 0.125]) {
            assert!((part - wanted).abs() < 0.001, "{parts:?}");
        }
        // Until a round finds out that nobody is there any more.
        let set = |index: usize| group.members()[index].slot.set(Reason::Maintenance, true);
        set(2);
        let parts = weights();
        assert_eq!(parts[2].0, Maintenance);
        assert!((parts[3].1 - 0.125).abs() < 0.001, "{parts:?}");
        set(0);
        set(1);
        assert_eq!(
            standings(),
            [Maintenance, Maintenance, Maintenance, Serving]
        );
    }

    #[test]
    fn standings_are_those_of_a_decision() {
        use ServiceState::{Down, Draining, Maintenance, Serving, Shedding, Standby};
        let group = group("adaptive", &[1.0, 1.0, 1.0, 0.0]);
        let set = |index: usize, reason, holds| group.members()[index].slot.set(reason, holds);
        assert_eq!(
            standings(&group, at(1)),
            [Serving, Serving, Serving, Draining]
        );
        set(0, Reason::Standby, true);
        set(1, Reason::Shedding, true);
        assert_eq!(
            standings(&group, at(1)),
            [Standby, Shedding, Serving, Draining]
        );
        // Nobody is left but the backup.
        set(2, Reason::Maintenance, true);
        assert_eq!(
            standings(&group, at(1)),
            [Serving, Shedding, Maintenance, Draining]
        );
        // And now nobody but who is under an alert.
        set(0, Reason::Draining, true);
        assert_eq!(
            standings(&group, at(1)),
            [Draining, Serving, Maintenance, Draining]
        );
        set(1, Reason::Ejected, true);
        // Nobody is fit: an opinion does not stop the last one.
        assert_eq!(
            standings(&group, at(1)),
            [Draining, Serving, Maintenance, Draining]
        );
        set(1, Reason::ReportedDrain, true);
        assert_eq!(
            standings(&group, at(1)),
            [Draining, Draining, Maintenance, Draining]
        );
        set(2, Reason::Maintenance, false);
        set(2, Reason::Dead, true);
        set(0, Reason::Draining, false);
        set(0, Reason::Standby, false);
        assert_eq!(
            standings(&group, at(1)),
            [Serving, Draining, Down, Draining]
        );
    }

    #[test]
    fn what_stays_is_what_was_configured() {
        let group = group("weighted_by_load", &[1.0, 2.0, 1.0, 0.0]);
        let mut seen = Vec::new();
        for second in 1..9 {
            report(&group, &[0.9, 0.1, 0.5, 0.5], at(second * 1000));
            observe_members(&group, at(second * 1000), &mut seen);
        }
        assert!(seen[0].weight < 0.5 && seen[1].weight > 2.5, "{seen:?}");
        group.members()[0].slot.set(Reason::Ejected, true);
        group.members()[2].slot.set(Reason::Draining, true);
        use_configured(&group, &mut seen);
        let all: Vec<_> = seen
            .iter()
            .map(|seen| (seen.weight, seen.standing))
            .collect();
        assert_eq!(
            all,
            [
                (1.0, ServiceState::Serving),
                (2.0, ServiceState::Serving),
                (1.0, ServiceState::Draining),
                (0.0, ServiceState::Draining)
            ]
        );
    }

    fn standing() -> impl Strategy<Value = ServiceState> {
        prop_oneof![
            6 => Just(ServiceState::Serving),
            1 => Just(ServiceState::Draining),
            1 => Just(ServiceState::Down),
        ]
    }

    fn member() -> impl Strategy<Value = TargetShare> {
        let weight = prop_oneof![0.01f32..1000.0, Just(f32::NAN), Just(0.0f32)];
        (0u64..12, weight, standing()).prop_map(|(id, weight, standing)| TargetShare {
            id: MemberId(id),
            weight,
            standing,
        })
    }

    /// Members with different ids.
    fn members() -> impl Strategy<Value = Vec<TargetShare>> {
        prop::collection::vec(member(), 0..8).prop_map(|mut members| {
            let mut known = std::collections::HashSet::new();
            members.retain(|member| known.insert(member.id));
            members
        })
    }

    fn settings() -> impl Strategy<Value = Settings> {
        (
            1u32..1000,
            0u64..2000,
            0f32..0.5,
            0u32..8,
            0u64..2000,
            0u64..500,
        )
            .prop_map(
                |(highest, damping, smallest_change, smallest_step, interval, urgent)| Settings {
                    highest,
                    damping: Duration::from_millis(damping),
                    smallest_change,
                    smallest_step,
                    interval: Duration::from_millis(interval),
                    urgent_interval: Duration::from_millis(urgent),
                },
            )
    }

    proptest! {
        /// Whatever comes: what is said has a share for each member, in range, 0 exactly for those that
        /// do not serve, and is not said too often.
        #[test]
        fn what_is_said_is_whole_in_range_and_not_too_often(
            settings in settings(),
            steps in prop::collection::vec((0u64..700, members()), 1..60),
        ) {
            let mut shares = Shares::new(settings);
            let (mut now, mut last) = (0, None::<u64>);
            for (gap, members) in steps {
                now += gap;
                let Some(said) = shares.update(at(now), &members) else {
                    continue;
                };
                prop_assert_eq!(said.len(), members.len());
                for (share, member) in said.iter().zip(&members) {
                    prop_assert_eq!(share.id, member.id);
                    prop_assert_eq!(share.standing, member.standing);
                    let serves = member.standing == ServiceState::Serving;
                    prop_assert_eq!(share.weight > 0, serves);
                    prop_assert!(share.weight <= settings.highest);
                }
                if let Some(last) = last {
                    let least = settings.urgent_interval.min(settings.interval);
                    prop_assert!(Duration::from_millis(now - last) >= least);
                }
                last = Some(now);
            }
        }

        /// If nothing changes any more, there soon is nothing to say, and the last message is right
        /// within what is too small to be said.
        #[test]
        fn what_stays_as_it_is_is_said_once_and_is_right(
            settings in settings(),
            first in members(),
            then in members(),
        ) {
            let mut shares = Shares::new(settings);
            shares.update(at(0), &first);
            for step in 1..200 {
                shares.update(at(step * 500), &then);
            }
            let messages = shares.messages();
            for step in 200..300 {
                prop_assert_eq!(shares.update(at(step * 500), &then), None);
            }
            prop_assert_eq!(shares.messages(), messages);
            let serving = then.iter().filter(|member| member.standing == ServiceState::Serving);
            let finite = serving.filter(|member| member.weight.is_finite());
            let highest = finite.map(|member| f64::from(member.weight)).fold(0.0, f64::max);
            prop_assert_eq!(shares.last_shares().len(), then.len());
            for (share, member) in shares.last_shares().iter().zip(&then) {
                if share.weight == 0 || highest == 0.0 || !member.weight.is_finite() {
                    continue;
                }
                let most = f64::from(settings.highest);
                let exact = (f64::from(member.weight) / highest * most).max(1.0);
                let held = f64::from(share.weight);
                let least = f64::from(settings.smallest_step)
                    .max(held * f64::from(settings.smallest_change))
                    .max(0.51);
                prop_assert!((exact - held).abs() <= least, "{exact} {held}");
            }
        }

        /// A pause of any length between two looks is as good as many looks.
        #[test]
        fn damping_does_not_depend_on_how_often_one_looks(
            weights in prop::collection::vec(0.01f32..10.0, 2..5),
            steps in 1u64..50,
        ) {
            let settings = Settings { smallest_change: 0.0, smallest_step: 0, ..Settings::default() };
            let start = vec![1.0; weights.len()];
            let (mut often, mut once) = (Shares::new(settings), Shares::new(settings));
            often.update(at(0), &seen(&start));
            once.update(at(0), &seen(&start));
            for step in 1..=steps {
                often.update(at(step * 20), &seen(&weights));
            }
            once.update(at(steps * 20), &seen(&weights));
            for (a, b) in often.damped.iter().zip(&once.damped) {
                prop_assert!((a.weight - b.weight).abs() < 1e-6);
            }
        }
    }
}
