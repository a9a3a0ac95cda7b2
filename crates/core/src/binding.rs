//! Bindings: how long a client stays with the member that it was given.
//!
//! The three granularities are those of Balasubramanian, Schmidt, Dowdy and Othman, "Evaluating the Performance of
//! Middleware Load Balancing Strategies" (2004), each adaptive or not. The carrier of a client's requests holds a
//! [`Binding`] and asks it before each request.

use std::sync::Arc;

use crate::group::{Granularity, Group, GroupSettings, Request};
use crate::member::{MemberId, Reason};
use crate::relocation::{Client, RelocationTarget};
use crate::time::Instant;

/// A client's tie to a member.
#[derive(Debug)]
pub struct Binding {
    member: MemberId,
    /// Index at which the member was last found: mostly it is still there.
    index: usize,
    since: Instant,
    /// Instant at which it was first noticed that the member sheds.
    alerted_since: Option<Instant>,
    /// 0 to 1: which part of a time span this binding waits.
    jitter: f32,
    /// By what relocations know the client.
    client: Option<Arc<Client>>,
}

/// Verdict about a binding for the next request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The member at this index of the group's snapshot serves it.
    Keep(usize),
    /// The member at this index gets the client from now on ([`Binding::move_to`]), because other members have less
    /// load.
    Move(usize),
    /// The strategy chooses a member again, possibly the same one.
    Rebind(BindingEnd),
}

/// Reason for which a binding ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BindingEnd {
    /// The strategy is asked for every request.
    PerRequest,
    /// The member is no longer part of the group.
    Gone,
    /// The member is down, ejected, in maintenance, or has no address.
    Unusable,
    /// The member is a backup, and others may serve again.
    Backup,
    /// The member's location is under a load alert.
    Alert,
    /// The rebind interval is over.
    Interval,
}

impl BindingEnd {
    /// The name that logs and metrics use.
    pub fn name(self) -> &'static str {
        match self {
            BindingEnd::PerRequest => "per_request",
            BindingEnd::Gone => "gone",
            BindingEnd::Unusable => "unusable",
            BindingEnd::Backup => "backup",
            BindingEnd::Alert => "alert",
            BindingEnd::Interval => "interval",
        }
    }
}

/// The place of a member in `group`, if it may keep a client that has a connection of its own there.
pub fn find_pinned(group: &Group, member: MemberId) -> Option<usize> {
    let index = group.find(member, 0)?;
    let member = group.members().get(index)?;
    keeps_bound(group, member.slot.reason_bits()).then_some(index)
}

/// True if a member keeps the clients that are bound to it, with these reasons against it.
fn keeps_bound(group: &Group, reasons: u32) -> bool {
    let mut ending = !(Reason::KEEPS_BOUND | Reason::SOFT);
    if group.state().is_panicking() {
        ending &= !Reason::OVERRIDDEN_BY_PANIC;
    }
    reasons & ending == 0
}

impl Binding {
    /// A binding to the member at `index` of `group`, from `now` on.
    pub fn new(group: &Group, index: usize, now: Instant, rng: &mut fastrand::Rng) -> Option<Self> {
        let mut binding = Binding {
            member: group.members().get(index)?.id,
            index,
            since: now,
            alerted_since: None,
            jitter: rng.f32(),
            client: None,
        };
        group.bind_client(&mut binding.client, index);
        Some(binding)
    }

    /// The binding, for one request, of a client that names its own member, as with a cookie: nothing is kept of it
    /// here. `hint` is the index of the member in `group`, as far as known. `turn`, from 0 to 1, was drawn when the
    /// client was bound: in an alert the client leaves when this part of the shedding is over, whenever its request
    /// comes.
    ///
    /// Not for groups whose alerts are [pulses](crate::alert::AlertSettings::pulses): pulses count the clients that are
    /// there. `None` if the member is not in the group.
    pub fn resume(
        group: &Group,
        member: MemberId,
        hint: usize,
        turn: f32,
        now: Instant,
    ) -> Option<Self> {
        let index = group.find(member, hint)?;
        Some(Binding {
            member,
            index,
            since: now,
            alerted_since: group.members().get(index)?.slot.shedding_since(now),
            jitter: turn,
            client: None,
        })
    }

    /// Binds the same client to the member at `index` of `group`.
    pub fn move_to(&mut self, group: &Group, index: usize, now: Instant) {
        if let Some(member) = group.members().get(index) {
            (self.member, self.index) = (member.id, index);
            (self.since, self.alerted_since) = (now, None);
            group.bind_client(&mut self.client, index);
        }
    }

    /// The member.
    pub fn member(&self) -> MemberId {
        self.member
    }

    /// Returns the verdict about the binding for a request at `now`, given the group's current snapshot.
    ///
    /// Whatever the granularity, a binding ends with its member: when it has left the
    /// group, is in maintenance or unresolved, or is down or ejected (as long as the
    /// group is not in panic). A draining member keeps the bindings it has. A binding to a backup
    /// ends when others may serve again. Beyond that:
    ///
    /// - per request: it always ends;
    /// - per session: it never ends, or, with [`AlertSettings::move_sessions`], as on
    ///   demand, adaptive;
    /// - on demand, adaptive: it ends when the member has been shedding
    ///   ([`Reason::Shedding`]) for a random time ([`AlertSettings::patience`]), or, where
    ///   alerts are pulses, when the client is one of those who are to leave;
    /// - on demand, not adaptive: it ends after [`GroupSettings::rebind_interval`], give
    ///   or take a fifth.
    ///
    /// [`AlertSettings::move_sessions`]: crate::alert::AlertSettings::move_sessions
    /// [`AlertSettings::patience`]: crate::alert::AlertSettings::patience
    /// [`GroupSettings::rebind_interval`]: crate::group::GroupSettings::rebind_interval
    pub fn check_request(&mut self, group: &Group, now: Instant) -> Verdict {
        let settings = group.settings();
        let index = match self.find_place(group, now) {
            Ok(index) => index,
            Err(why) => return Verdict::Rebind(why),
        };
        self.index = index;
        if !heeds_alerts(settings) {
            return Verdict::Keep(index);
        }
        if settings.alert.pulses {
            return match self.relocated(group, now) {
                Some(to) => Verdict::Move(to),
                None => Verdict::Keep(index),
            };
        }
        if !group.members()[index].slot.has_reason(Reason::Shedding) {
            self.alerted_since = None;
            return Verdict::Keep(index);
        }
        let alerted_since = *self.alerted_since.get_or_insert(now);
        let wait = settings.alert.patience(self.jitter);
        match now.since(alerted_since) >= wait {
            true => Verdict::Rebind(BindingEnd::Alert),
            false => Verdict::Keep(index),
        }
    }

    /// True if no strategy is asked for a request at `now`: the client keeps its member, or moves to where a
    /// relocation sends it.
    pub fn goes_on(&self, group: &Group, now: Instant) -> bool {
        let settings = group.settings();
        let Ok(index) = self.find_place(group, now) else {
            return false;
        };
        let alerted = now.since(self.alerted_since.unwrap_or(now));
        !heeds_alerts(settings)
            || settings.alert.pulses
            || !group.members()[index].slot.has_reason(Reason::Shedding)
            || alerted < settings.alert.patience(self.jitter)
    }

    /// Returns the place of the member in `group`, or why the binding ends, whatever alerts say.
    #[inline]
    fn find_place(&self, group: &Group, now: Instant) -> Result<usize, BindingEnd> {
        let settings = group.settings();
        if settings.granularity == Granularity::PerRequest {
            return Err(BindingEnd::PerRequest);
        }
        let index = group
            .find(self.member, self.index)
            .ok_or(BindingEnd::Gone)?;
        let reasons = group.members()[index].slot.reason_bits();
        if !keeps_bound(group, reasons) {
            return Err(BindingEnd::Unusable);
        }
        if reasons & Reason::Standby as u32 != 0 && !backups_serve(group, now) {
            return Err(BindingEnd::Backup);
        }
        if settings.granularity == Granularity::OnDemand && !settings.adaptive {
            let interval = settings.rebind_interval.mul_f32(0.8 + 0.4 * self.jitter);
            if now.since(self.since) >= interval {
                return Err(BindingEnd::Interval);
            }
        }
        Ok(index)
    }

    /// Returns the client's destination if it leaves its member in the current relocation: the balancer carries the
    /// client's requests, so that the client need not wait for others.
    #[inline]
    fn relocated(&mut self, group: &Group, now: Instant) -> Option<usize> {
        if group.state().is_relocating() {
            self.ask(group, now)
        } else {
            None
        }
    }

    #[cold]
    fn ask(&mut self, group: &Group, now: Instant) -> Option<usize> {
        let client = group.state().ensure_client(&mut self.client);
        let relocation = group.state().relocation()?;
        let RelocationTarget { to, undecided } =
            relocation.ask(group.members(), client, &mut self.index, now)?;
        let index = group.find(to, self.index)?;
        let location = &group.members()[index].location;
        let takes_nobody = location.is_shut() || undecided && location.has_pulse();
        let request = Request::at_time(now);
        let view = group.view_for(&request).despite_alerts();
        let goes = !takes_nobody && view.is_eligible_unless_full(index);
        (goes && client.member() != Some(to)).then_some(index)
    }
}

/// True if alerts end bindings of a group with these settings, or move them.
fn heeds_alerts(settings: &GroupSettings) -> bool {
    let may_move = settings.granularity != Granularity::PerSession || settings.alert.move_sessions;
    settings.adaptive && may_move
}

/// True if backups may serve at present: because no other member may, or, in panic, because all members may.
#[cold]
fn backups_serve(group: &Group, now: Instant) -> bool {
    let request = Request::at_time(now);
    let view = group.view_for(&request).or_backups();
    view.lets_backups_serve()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::alert::AlertSettings;
    use crate::group::{GroupSettings, GroupState, Request};
    use crate::member::Member;
    use crate::strategy::{Values, default_kind};
    use crate::testing::make_member;

    fn settings(granularity: Granularity, adaptive: bool) -> GroupSettings {
        GroupSettings {
            granularity,
            adaptive,
            rebind_interval: Duration::from_secs(60),
            alert: AlertSettings {
                shed_time: Duration::from_secs(5),
                ..AlertSettings::default()
            },
            ..GroupSettings::default()
        }
    }

    fn members(ids: std::ops::Range<u64>) -> Vec<Member> {
        ids.map(make_member).collect()
    }

    fn group(settings: GroupSettings, members: Vec<Member>) -> Group {
        let strategy = Values::defaults(default_kind());
        Group::new(
            "g",
            settings,
            &strategy,
            members,
            Arc::<GroupState>::default(),
        )
    }

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    fn bind(group: &Group, seed: u64) -> Binding {
        Binding::new(group, 1, at(1), &mut fastrand::Rng::with_seed(seed)).unwrap()
    }

    /// `goes_on` says what `check` does next, and changes nothing.
    #[test]
    fn bindings_that_go_on_ask_no_strategy() {
        for granularity in [
            Granularity::PerRequest,
            Granularity::PerSession,
            Granularity::OnDemand,
        ] {
            for (adaptive, move_sessions) in
                [(false, false), (true, false), (false, true), (true, true)]
            {
                let mut settings = settings(granularity, adaptive);
                settings.alert.move_sessions = move_sessions;
                let group = group(settings, members(0..3));
                let mut binding = bind(&group, 1);
                let slot = &group.members()[1].slot;
                for ms in [2, 10_000, 20_000, 100_000_000, 100_000_001] {
                    slot.set(Reason::Shedding, ms == 10_000 || ms == 20_000);
                    slot.set(Reason::Maintenance, ms == 100_000_001);
                    let foreseen = binding.goes_on(&group, at(ms));
                    assert_eq!(foreseen, binding.goes_on(&group, at(ms)));
                    let verdict = binding.check_request(&group, at(ms));
                    let asks = matches!(verdict, Verdict::Rebind(_));
                    assert_eq!(
                        foreseen, !asks,
                        "{granularity:?} {adaptive} {ms}: {verdict:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn per_request_never_keeps() {
        let group = group(settings(Granularity::PerRequest, true), members(0..3));
        let verdict = bind(&group, 1).check_request(&group, at(1));
        assert_eq!(verdict, Verdict::Rebind(BindingEnd::PerRequest));
    }

    #[test]
    fn per_session_keeps_through_alerts_and_time() {
        for adaptive in [true, false] {
            let group = group(settings(Granularity::PerSession, adaptive), members(0..3));
            let mut binding = bind(&group, 1);
            group.members()[1].slot.set(Reason::Shedding, true);
            for ms in [2, 10_000, 100_000_000] {
                assert_eq!(binding.check_request(&group, at(ms)), Verdict::Keep(1));
            }
        }
    }

    #[test]
    fn sessions_that_may_be_moved_follow_alerts() {
        for adaptive in [true, false] {
            let mut settings = settings(Granularity::PerSession, adaptive);
            settings.alert.move_sessions = true;
            let group = group(settings, members(0..3));
            let mut binding = bind(&group, 1);
            assert_eq!(binding.check_request(&group, at(2)), Verdict::Keep(1));
            group.members()[1].slot.set(Reason::Shedding, true);
            binding.check_request(&group, at(3));
            let verdict = binding.check_request(&group, at(6_000));
            match adaptive {
                true => assert_eq!(verdict, Verdict::Rebind(BindingEnd::Alert)),
                false => assert_eq!(verdict, Verdict::Keep(1)),
            }
        }
    }

    #[test]
    fn a_session_ends_with_its_member() {
        let group = group(settings(Granularity::PerSession, true), members(0..3));
        let slot = &group.members()[1].slot;
        for reason in Reason::ALL {
            slot.set(reason, true);
            let verdict = bind(&group, 1).check_request(&group, at(2));
            match reason {
                Reason::Draining | Reason::ReportedDrain | Reason::Shedding => {
                    assert_eq!(verdict, Verdict::Keep(1));
                }
                Reason::Standby => assert_eq!(verdict, Verdict::Rebind(BindingEnd::Backup)),
                _ => assert_eq!(verdict, Verdict::Rebind(BindingEnd::Unusable), "{reason:?}"),
            }
            slot.set(reason, false);
        }
        // In panic the opinions about health do not count.
        group.state().set_panicking(true);
        slot.set(Reason::Down, true);
        assert_eq!(
            bind(&group, 1).check_request(&group, at(2)),
            Verdict::Keep(1)
        );
        slot.set(Reason::Maintenance, true);
        let verdict = bind(&group, 1).check_request(&group, at(2));
        assert_eq!(verdict, Verdict::Rebind(BindingEnd::Unusable));
    }

    #[test]
    fn a_binding_to_a_backup_ends_when_others_serve_again() {
        for granularity in [Granularity::PerSession, Granularity::OnDemand] {
            let group = group(settings(granularity, true), members(0..3));
            let slot = |index: usize| &group.members()[index].slot;
            slot(1).set(Reason::Standby, true);
            slot(2).set(Reason::Standby, true);
            slot(0).set(Reason::Down, true);
            let mut binding = bind(&group, 1);
            assert_eq!(binding.check_request(&group, at(2)), Verdict::Keep(1));
            // Another backup is no reason to leave this one.
            slot(0).set(Reason::Down, false);
            let verdict = binding.check_request(&group, at(3));
            assert_eq!(verdict, Verdict::Rebind(BindingEnd::Backup));
        }
    }

    #[test]
    fn a_binding_follows_its_member_into_the_next_snapshot() {
        let before = group(settings(Granularity::PerSession, true), members(0..3));
        let mut binding = bind(&before, 1);
        let after = group(settings(Granularity::PerSession, true), members(1..3));
        assert_eq!(binding.check_request(&after, at(2)), Verdict::Keep(0));
        let gone = group(settings(Granularity::PerSession, true), members(2..4));
        assert_eq!(
            binding.check_request(&gone, at(3)),
            Verdict::Rebind(BindingEnd::Gone)
        );
    }

    #[test]
    fn clients_that_say_where_they_are_leave_at_the_pace_of_the_alert() {
        let group = group(settings(Granularity::OnDemand, true), members(0..3));
        let slot = &group.members()[1].slot;
        // Each request is another connection's: nothing is kept from one to the next.
        let leaving = |ms| {
            let left = |turn: &u16| {
                let turn = f32::from(*turn) / 100.0;
                let mut binding = Binding::resume(&group, MemberId(1), 0, turn, at(ms)).unwrap();
                binding.check_request(&group, at(ms)) == Verdict::Rebind(BindingEnd::Alert)
            };
            (0..100).filter(left).count()
        };
        assert_eq!(leaving(1_000), 0);
        slot.set(Reason::Shedding, true);
        assert_eq!(leaving(2_000), 1);
        assert_eq!(leaving(4_500), 51);
        assert_eq!(leaving(7_000), 100);
        // The next alert begins anew.
        slot.set(Reason::Shedding, false);
        slot.set(Reason::Shedding, true);
        assert_eq!(leaving(8_000), 1);
        assert!(Binding::resume(&group, MemberId(7), 0, 0.5, at(1)).is_none());
    }

    #[test]
    fn on_demand_without_feedback_rebinds_at_the_interval() {
        let group = group(settings(Granularity::OnDemand, false), members(0..3));
        group.members()[1].slot.set(Reason::Shedding, true);
        let mut ends = Vec::new();
        for seed in 0..50 {
            let mut binding = bind(&group, seed);
            let end = (1..100u64).find(|&s| {
                binding.check_request(&group, at(s * 1000)) == Verdict::Rebind(BindingEnd::Interval)
            });
            ends.push(end.unwrap());
        }
        assert!(ends.iter().all(|end| (48..=73).contains(end)), "{ends:?}");
        ends.sort_unstable();
        ends.dedup();
        assert!(ends.len() > 5, "they do not all leave at once");
    }

    #[test]
    fn an_alert_is_followed_step_by_step_and_forgotten_when_lifted() {
        let group = group(settings(Granularity::OnDemand, true), members(0..3));
        let slot = &group.members()[1].slot;
        let mut bindings: Vec<_> = (0..100).map(|seed| bind(&group, seed)).collect();
        let mut leaving = |ms| {
            let left = |b: &mut Binding| {
                b.check_request(&group, at(ms)) == Verdict::Rebind(BindingEnd::Alert)
            };
            bindings.iter_mut().map(left).filter(|&left| left).count()
        };
        assert_eq!(leaving(1_000), 0);
        slot.set(Reason::Shedding, true);
        let first = leaving(2_000);
        let half = leaving(4_500);
        assert!(first < 10 && (30..70).contains(&half), "{first} {half}");
        slot.set(Reason::Shedding, false);
        assert_eq!(leaving(5_000), 0);
        // A new alert gives them all the time again.
        slot.set(Reason::Shedding, true);
        assert!(leaving(6_000) < 10);
        assert_eq!(leaving(11_000), 100);
    }

    proptest! {
        /// A client that has left a member because of an alert stays at its new member, as long as alerts do not
        /// change: no client is sent around.
        #[test]
        fn nobody_bounces_twice(
            shedding in proptest::collection::vec(any::<bool>(), 4),
            shed_time_ms in 0u64..10_000,
            seed: u64,
            steps in proptest::collection::vec(1u64..5_000, 1..20),
        ) {
            let mut settings = settings(Granularity::OnDemand, true);
            settings.alert.shed_time = Duration::from_millis(shed_time_ms);
            let group = group(settings, members(0..4));
            for (member, shedding) in group.members().iter().zip(&shedding) {
                member.slot.set(Reason::Shedding, *shedding);
            }
            // A member is always left, as the analyzer makes sure.
            group.members()[0].slot.set(Reason::Shedding, false);
            let mut rng = fastrand::Rng::with_seed(seed);
            let (mut binding, mut ms, mut moves) = (bind(&group, seed), 1, 0);
            for step in steps {
                ms += step;
                if let Verdict::Rebind(why) = binding.check_request(&group, at(ms)) {
                    prop_assert_eq!(why, BindingEnd::Alert);
                    moves += 1;
                    let index = group.choose_member(&Request::at_time(at(ms)), &mut rng).unwrap();
                    binding = Binding::new(&group, index, at(ms), &mut rng).unwrap();
                }
            }
            prop_assert!(moves <= 1, "{moves}");
        }

        /// A binding that is kept is always to the member it was made with, and that member may be used.
        #[test]
        fn keeps_only_what_may_be_kept(
            granularity in prop_oneof![
                Just(Granularity::PerSession),
                Just(Granularity::PerRequest),
                Just(Granularity::OnDemand),
            ],
            adaptive: bool,
            panicking: bool,
            bits in 0u32..2048,
            first in 0u64..4,
            seed: u64,
            ms in 1u64..200_000,
        ) {
            let before = group(settings(granularity, adaptive), members(0..3));
            let mut binding = bind(&before, seed);
            let after = group(settings(granularity, adaptive), members(first..first + 3));
            after.state().set_panicking(panicking);
            for member in after.members() {
                for reason in Reason::ALL {
                    member.slot.set(reason, bits & reason as u32 != 0);
                }
            }
            if let Verdict::Keep(index) = binding.check_request(&after, at(ms)) {
                let member = &after.members()[index];
                prop_assert_eq!(member.id, binding.member());
                prop_assert!(granularity != Granularity::PerRequest);
                prop_assert!(!member.slot.has_reason(Reason::Maintenance));
                prop_assert!(!member.slot.has_reason(Reason::ReportedMaintenance));
                prop_assert!(panicking || !member.slot.has_reason(Reason::Down));
                prop_assert!(panicking || !member.slot.has_reason(Reason::ReportedDown));
                let is_backup = |member: &&Member| member.slot.has_reason(Reason::Standby);
                if is_backup(&member) && !panicking {
                    let others = after.members().iter().filter(|member| !is_backup(member));
                    let mut reasons = others.map(|member| member.slot.reason_bits());
                    prop_assert!(reasons.all(|bits| bits != 0));
                }
            }
        }
    }
}
