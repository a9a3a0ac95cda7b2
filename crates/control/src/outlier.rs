//! Passive health: members that fail are ejected for a while.
//!
//! Requests themselves tell who fails, sooner than any health check. A member is ejected
//! for one of two things:
//!
//! - so many failures in a row (the connection failure limit);
//! - a share of failures among its recent requests that is far above that of the other
//!   members: by [`EjectionSettings::excess`], and by three standard errors of so few samples. It
//!   is counted exactly over a window and needs some requests there: an average with decay says
//!   anything at low traffic. Failures that all members have in common are not the
//!   fault of one of them, and eject nobody.
//!
//! Where each client has a member of its own (source IP hash, sessions), one client whose
//! requests fail wherever it goes would have member after member ejected for it. There a
//! share of failures counts only if the share of different clients that saw one exceeds that of
//! the other members as well, and there were two at least. Where a single client address is all
//! that there is, it counts if the same client has been answered by the others.
//!
//! What may be out at the same time is bounded by the group's panic threshold, the
//! members that active checks took out included, so that ejections never bring about
//! panic: the members that fail most are out, the others go on. An ejection ends by
//! itself, and the member starts slowly. If it is ejected again soon, its time doubles.

use std::collections::HashMap;
use std::time::Duration;

use evenkeel_core::ejection::EjectionSettings;
use evenkeel_core::group::{Granularity, Group};
use evenkeel_core::member::{Member, MemberId, Reason};
use evenkeel_core::strategy::Sees;
use evenkeel_core::time::Instant;

/// What is known about the ejections of a group's members.
#[derive(Clone, Debug, Default)]
pub struct Outliers {
    histories: HashMap<MemberId, History>,
}

/// The last ejection of a member.
#[derive(Clone, Copy, Debug)]
struct History {
    until: Instant,
    time: Duration,
}

/// A change that [`Outliers::tick`] has made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Change {
    /// Index of the member in the group's snapshot.
    pub index: usize,
    /// What happened.
    pub event: Event,
}

/// What happened to a member.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Event {
    /// It is out.
    Ejected {
        /// Why.
        cause: Cause,
        /// For how long.
        time: Duration,
    },
    /// It is in again.
    Returned,
}

/// Why a member is ejected.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Cause {
    /// So many failures in a row.
    InARow(u32),
    /// This share of its recent requests failed, against the other share of those of all
    /// other members.
    Share(f64, f64),
}

impl std::fmt::Display for Cause {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Cause::InARow(failures) => write!(f, "{failures} failures in a row"),
            Cause::Share(own, others) => write!(
                f,
                "{:.0} % of its requests failed, {:.0} % of those of the other members",
                own * 100.0,
                others * 100.0
            ),
        }
    }
}

impl Outliers {
    /// The members that were ejected, until when and for how long: those whose ejection still
    /// counts.
    pub fn ejected(&self) -> impl Iterator<Item = (MemberId, Instant, Duration)> {
        let all = self.histories.iter();
        all.map(|(id, history)| (*id, history.until, history.time))
    }

    /// Goes on with what another process knows of a member: it is, or was, ejected `until` then,
    /// for so long.
    pub fn go_on(&mut self, member: &Member, until: Instant, time: Duration, now: Instant) {
        self.histories.insert(member.id, History { until, time });
        if until > now {
            member.slot.set(Reason::Ejected, true);
        }
    }

    /// Ends ejections whose time is over, and ejects members that fail too much. Call it some ten
    /// times a second.
    pub fn tick(&mut self, group: &Group, now: Instant) -> Vec<Change> {
        let members = group.members();
        let settings = &group.settings().ejection;
        let mut changes = self.end(members, settings.window, now);

        let candidates = self.candidates(group, now);
        if !candidates.is_empty() {
            let mut left = ejectable(group);
            for (index, cause) in candidates {
                if left == 0 {
                    break;
                }
                left -= 1;
                let time = self.eject(&members[index], settings, now);
                let event = Event::Ejected { cause, time };
                changes.push(Change { index, event });
            }
        }
        changes
    }

    fn end(&mut self, members: &[Member], window: Duration, now: Instant) -> Vec<Change> {
        let mut changes = Vec::new();
        for (index, member) in members.iter().enumerate() {
            if !member.slot.has(Reason::Ejected) {
                continue;
            }
            // A member that left while it was ejected may come back when its history is
            // gone already.
            let history = self.histories.get(&member.id);
            if history.is_none_or(|history| now >= history.until) {
                member.slot.forgive();
                member.slot.set(Reason::Ejected, false);
                member.slot.set_ramp_from(Some(now));
                let event = Event::Returned;
                changes.push(Change { index, event });
            }
        }
        // A member that did not fail for as long as it was ejected counts as one that never was.
        // Members that left the group are forgotten, too.
        self.histories
            .retain(|_, history| now < history.until.after(history.time.max(window)));
        changes
    }

    /// Who should be ejected, the worst first.
    fn candidates(&self, group: &Group, now: Instant) -> Vec<(usize, Cause)> {
        let (members, settings) = (group.members(), &group.settings().ejection);
        let is_bound = group.settings().granularity != Granularity::PerRequest
            || group.strategy().sees != Sees::Nothing;
        let recents: Vec<Counts> = members
            .iter()
            .map(|m| self.recent(m, settings.window, now))
            .collect();
        let all = Counts {
            total: recents.iter().map(|recent| recent.total).sum(),
            failures: recents.iter().map(|recent| recent.failures).sum(),
        };
        let mut candidates: Vec<(usize, Cause)> = Vec::new();
        for (index, (member, recent)) in members.iter().zip(&recents).enumerate() {
            if member.slot.reasons() & !Reason::SOFT != 0 {
                continue;
            }
            let in_a_row = member.slot.consecutive_failures();
            if in_a_row >= settings.failure_limit {
                candidates.push((index, Cause::InARow(in_a_row)));
            } else if let Some(cause) = exceeds(recent, &all, settings)
                && (!is_bound || clients_agree(group, index, &all.without(recent), now))
            {
                candidates.push((index, cause));
            }
        }
        let share = |&(index, _): &(usize, Cause)| recents[index].share();
        candidates.sort_by(|a, b| share(b).total_cmp(&share(a)));
        candidates
    }

    /// What counts of the member's recent requests: what came before its last return
    /// has been paid for.
    fn recent(&self, member: &Member, window: Duration, now: Instant) -> Counts {
        let span = match self.histories.get(&member.id) {
            Some(history) => {
                let second = |at: Instant| at.as_nanos() / 1_000_000_000;
                let seconds = second(now).saturating_sub(second(history.until));
                window.min(Duration::from_secs(seconds))
            }
            None => window,
        };
        if span.is_zero() {
            return Counts::default();
        }
        let recent = member.slot.record().recent(now, span);
        Counts {
            total: u64::from(recent.total),
            failures: u64::from(recent.failures),
        }
    }

    fn eject(&mut self, member: &Member, settings: &EjectionSettings, now: Instant) -> Duration {
        let time = match self.histories.get(&member.id) {
            Some(history) => (history.time * 2).min(settings.max_time),
            None => settings.time,
        };
        let until = now.after(time);
        self.histories.insert(member.id, History { until, time });
        member.slot.set(Reason::Ejected, true);
        time
    }
}

/// Requests within some time.
#[derive(Clone, Copy, Default)]
struct Counts {
    total: u64,
    failures: u64,
}

impl Counts {
    fn without(&self, own: &Counts) -> Counts {
        Counts {
            total: self.total - own.total,
            failures: self.failures - own.failures,
        }
    }

    fn share(&self) -> f64 {
        self.failures as f64 / self.total.max(1) as f64
    }
}

/// Whether a member fails much more than the others do.
fn exceeds(own: &Counts, all: &Counts, settings: &EjectionSettings) -> Option<Cause> {
    if own.total < u64::from(settings.min_requests) {
        return None;
    }
    let others = all.without(own);
    let (own_share, others) = (own.share(), others.share());
    let error = (others * (1.0 - others) / own.total as f64).sqrt();
    let exceeds = own_share - others > f64::from(settings.excess).max(3.0 * error);
    exceeds.then_some(Cause::Share(own_share, others))
}

/// Whether the clients of the member at `index` have seen it fail, and not just one that sees
/// failures wherever it goes. `others` are the requests at the other members.
fn clients_agree(group: &Group, index: usize, others: &Counts, now: Instant) -> bool {
    let (members, settings) = (group.members(), &group.settings().ejection);
    let bits = |member: &Member| member.slot.record().clients(now);
    let share = |(all, failing): (u64, u64)| {
        f64::from((failing & all).count_ones()) / f64::from(all.count_ones().max(1))
    };
    let own = bits(&members[index]);
    let rest = members.iter().enumerate();
    let rest = rest.filter(|&(other, _)| other != index);
    let rest = rest.fold((0, 0), |sum, (_, member)| {
        let (all, failing) = bits(member);
        (sum.0 | all, sum.1 | failing)
    });
    match (own.0 | rest.0).count_ones() {
        // Nobody has said who they are.
        0 => true,
        1 => others.total - others.failures >= u64::from(settings.min_requests),
        _ => own.1.count_ones() >= 2 && share(own) - share(rest) > f64::from(settings.excess),
    }
}

/// How many more members may be ejected.
fn ejectable(group: &Group) -> usize {
    let (mut all, mut out) = (0usize, 0usize);
    for member in group.members() {
        let bits = member.slot.reasons() & !Reason::SOFT;
        if bits & !Reason::OVERRIDDEN_BY_PANIC == 0 {
            all += 1;
            out += usize::from(bits != 0);
        }
    }
    let allowed = (group.settings().panic_threshold * all as f32) as usize;
    // One is always left, whatever the threshold.
    allowed.min(all.saturating_sub(1)).saturating_sub(out)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;
    use crate::health::panics;
    use evenkeel_core::group::{GroupSettings, GroupState, Outcome};
    use evenkeel_core::load::Location;
    use evenkeel_core::member::{Slot, Weight};
    use evenkeel_core::strategy::{Values, default_kind};

    const FIRST_TIME: Duration = Duration::from_secs(10);
    const MAX_TIME: Duration = Duration::from_secs(300);

    fn group(count: u64, panic_threshold: f32) -> Group {
        group_of((0..count).map(member).collect(), panic_threshold)
    }

    fn member(id: u64) -> Member {
        Member {
            id: MemberId(id),
            name: format!("m{id}").into(),
            address: std::net::SocketAddr::from(([192, 0, 2, 1], 80)).into(),
            host: "192.0.2.1".into(),
            max_connections: None,
            location: Arc::new(Location::new(format!("l{id}"))),
            zone: None,
            slot: Arc::new(Slot::new(Weight::ONE)),
        }
    }

    fn group_of(members: Vec<Member>, panic_threshold: f32) -> Group {
        let settings = GroupSettings {
            panic_threshold,
            ..GroupSettings::default()
        };
        let kind = default_kind();
        let state = Arc::<GroupState>::default();
        Group::new("g", settings, &Values::defaults(kind), members, state)
    }

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    /// Requests at a member: each letter is one, `.` a success, `x` a failure.
    fn run(group: &Group, index: usize, outcomes: &str, now: Instant) {
        for letter in outcomes.chars() {
            let outcome = match letter {
                'x' => Outcome::Failure,
                _ => Outcome::Success,
            };
            group.bind(index, now).unwrap().finish(outcome, now);
        }
    }

    fn ejected(group: &Group) -> Vec<bool> {
        let is_ejected = |member: &Member| member.slot.has(Reason::Ejected);
        group.members().iter().map(is_ejected).collect()
    }

    #[test]
    fn failures_in_a_row_eject_for_a_while() {
        let (group, mut outliers) = (group(2, 0.5), Outliers::default());
        run(&group, 0, "xxxx", at(1000));
        assert_eq!(outliers.tick(&group, at(1000)), []);
        run(&group, 0, ".xxxx", at(1100));
        assert_eq!(outliers.tick(&group, at(1100)), [], "not in a row");
        run(&group, 0, "x", at(1200));
        let changes = outliers.tick(&group, at(1200));
        let event = Event::Ejected {
            cause: Cause::InARow(5),
            time: FIRST_TIME,
        };
        assert_eq!(changes, [Change { index: 0, event }]);
        assert_eq!(ejected(&group), [true, false]);

        // Its failures since do not count against it when it returns.
        run(&group, 0, "xxxxxxxxxx", at(2000));
        assert_eq!(outliers.tick(&group, at(11_100)), []);
        let changes = outliers.tick(&group, at(11_200));
        let event = Event::Returned;
        assert_eq!(changes, [Change { index: 0, event }]);
        assert_eq!(ejected(&group), [false, false]);
        let slot = &group.members()[0].slot;
        assert_eq!(slot.ramp_from(), Some(at(11_200)), "it starts slowly");
        assert_eq!(outliers.tick(&group, at(11_300)), []);
    }

    /// A group whose clients have members of their own: each of `clients` is at one, and the
    /// requests of those in `bad` fail there, as do all at a `broken` one.
    fn serve(group: &Group, clients: u8, bad: &[u8], broken: Option<usize>, now: Instant) {
        let count = group.members().len();
        for client in 0..clients {
            // Like a ring: the next one that is there.
            let first = usize::from(client) % count;
            let up = |index: &usize| !group.members()[*index].slot.has(Reason::Ejected);
            let mut turn = (0..count).map(|step| (first + step) % count);
            let index = turn.find(up).unwrap();
            let fails = bad.contains(&client) || broken == Some(index);
            // Who fails tries again, oftener than others ask.
            for _ in 0..if fails { 50 } else { 5 } {
                let ticket = group.bind(index, now).unwrap();
                let ticket = ticket.of_client([10, 1, client / 16, client].into());
                let outcome = if fails {
                    Outcome::Error
                } else {
                    Outcome::Success
                };
                ticket.finish(outcome, now);
            }
        }
    }

    fn bound_group(granularity: Granularity, strategy: &str) -> Group {
        let members: Vec<Member> = (0..6).map(member).collect();
        let settings = GroupSettings {
            granularity,
            ..GroupSettings::default()
        };
        let kind = evenkeel_core::strategy::find(strategy).unwrap();
        let state = Arc::<GroupState>::default();
        Group::new("g", settings, &Values::defaults(kind), members, state)
    }

    #[test]
    fn b6_one_clients_failures_eject_nobody_where_clients_have_members_of_their_own() {
        for (granularity, strategy) in [
            (Granularity::PerRequest, "source_ip_hash"),
            (Granularity::PerSession, "adaptive"),
            (Granularity::OnDemand, "minimum_dispersion"),
        ] {
            // Among many, and alone.
            for clients in [60, 6, 1] {
                let (group, mut outliers) =
                    (bound_group(granularity, strategy), Outliers::default());
                for second in 1..60 {
                    serve(&group, clients, &[0], None, at(second * 1000));
                    outliers.tick(&group, at(second * 1000));
                    assert_eq!(ejected(&group), [false; 6], "{strategy} {clients} {second}");
                }
            }
            // A member that fails all its clients goes, and no other.
            let (group, mut outliers) = (bound_group(granularity, strategy), Outliers::default());
            for second in 1..8 {
                serve(&group, 60, &[0], Some(3), at(second * 1000));
                outliers.tick(&group, at(second * 1000));
            }
            let expected = [false, false, false, true, false, false];
            assert_eq!(ejected(&group), expected, "{strategy}");
        }
    }

    #[test]
    fn b6_a_single_client_with_many_sessions_is_believed() {
        // All come through one proxy.
        let group = bound_group(Granularity::PerSession, "adaptive");
        let mut outliers = Outliers::default();
        for index in 0..6 {
            for _ in 0..30 {
                let ticket = group.bind(index, at(1000)).unwrap();
                let outcome = if index == 2 {
                    Outcome::Error
                } else {
                    Outcome::Success
                };
                let ticket = ticket.of_client([192, 0, 2, 1].into());
                ticket.finish(outcome, at(1000));
            }
        }
        outliers.tick(&group, at(1000));
        assert_eq!(ejected(&group), [false, false, true, false, false, false]);
    }

    #[test]
    fn a_member_that_was_away_does_not_stay_ejected() {
        let (group, mut outliers) = (group(3, 0.5), Outliers::default());
        run(&group, 0, "xxxxx", at(1_000));
        outliers.tick(&group, at(1_000));
        assert_eq!(ejected(&group), [true, false, false]);
        // It leaves, and is forgotten meanwhile.
        let without = group_of(group.members()[1..].to_vec(), 0.5);
        assert_eq!(outliers.tick(&without, at(100_000)), []);
        assert!(outliers.histories.is_empty());
        let event = Event::Returned;
        let changes = outliers.tick(&group, at(100_100));
        assert_eq!(changes, [Change { index: 0, event }]);
        assert_eq!(ejected(&group), [false; 3]);
    }

    #[test]
    fn an_ejection_that_follows_another_is_longer() {
        let (group, mut outliers) = (group(2, 0.5), Outliers::default());
        let (mut now, mut times) = (1_000, Vec::new());
        for _ in 0..8 {
            run(&group, 0, "xxxxx", at(now));
            let changes = outliers.tick(&group, at(now));
            let Event::Ejected { time, .. } = changes[0].event else {
                panic!("{changes:?}")
            };
            times.push(time.as_secs());
            now += time.as_millis() as u64;
            outliers.tick(&group, at(now));
        }
        assert_eq!(times, [10, 20, 40, 80, 160, 300, 300, 300]);
        // Good for as long as it was out: the next one is a first one.
        now += 300_000;
        outliers.tick(&group, at(now));
        run(&group, 0, "xxxxx", at(now));
        let changes = outliers.tick(&group, at(now));
        assert!(matches!(
            changes[0].event,
            Event::Ejected {
                time: FIRST_TIME,
                ..
            }
        ));
    }

    #[test]
    fn what_is_too_much_and_for_how_long_is_said_by_the_settings() {
        let ejection = EjectionSettings {
            failure_limit: 2,
            window: Duration::from_secs(2),
            min_requests: 4,
            excess: 0.6,
            time: Duration::from_secs(3),
            max_time: Duration::from_secs(4),
        };
        let mut settings = GroupSettings {
            ejection,
            ..GroupSettings::default()
        };
        let kind = default_kind();
        let of = |settings: &GroupSettings| {
            let members: Vec<Member> = (0..4).map(member).collect();
            let state = Arc::<GroupState>::default();
            let strategy = Values::defaults(kind);
            Group::new("g", settings.clone(), &strategy, members, state)
        };
        let (group, mut outliers) = (of(&settings), Outliers::default());
        let mut times = Vec::new();
        for (now, back) in [(1_000, 4_000), (4_100, 8_100), (8_200, 12_200)] {
            run(&group, 0, "xx", at(now));
            let changes = outliers.tick(&group, at(now));
            let out = changes.iter().find_map(|change| match change.event {
                Event::Ejected { time, .. } => Some(time.as_secs()),
                Event::Returned => None,
            });
            times.push(out);
            assert_eq!(outliers.tick(&group, at(back - 1)), []);
            assert_eq!(outliers.tick(&group, at(back)).len(), 1);
        }
        assert_eq!(times, [Some(3), Some(4), Some(4)]);

        settings.ejection.failure_limit = 100;
        for (bad, later, ejected) in [
            ("xxx.", 0, 1),
            ("xx..", 0, 0),
            ("xxx", 0, 0),
            ("xxx.", 2, 0),
        ] {
            let (group, mut outliers) = (of(&settings), Outliers::default());
            run(&group, 0, bad, at(1_000));
            run(&group, 1, "....", at(1_000));
            let changes = outliers.tick(&group, at(1_000 + later * 1_000));
            assert_eq!(changes.len(), ejected, "{bad} {later}");
        }
    }

    #[test]
    fn a_share_of_failures_counts_only_against_that_of_the_others() {
        let (first, mut outliers) = (group(3, 0.5), Outliers::default());
        for index in 0..3 {
            run(&first, index, &"x.".repeat(50), at(1000));
        }
        assert_eq!(
            outliers.tick(&first, at(1000)),
            [],
            "all fail: nobody's fault"
        );

        let second = group(3, 0.5);
        run(&second, 0, &"x.".repeat(9), at(1000));
        run(&second, 1, &".".repeat(100), at(1000));
        assert_eq!(
            outliers.tick(&second, at(1000)),
            [],
            "18 requests say nothing"
        );
        run(&second, 0, "x.", at(1100));
        let changes = outliers.tick(&second, at(1100));
        let event = Event::Ejected {
            cause: Cause::Share(0.5, 0.0),
            time: FIRST_TIME,
        };
        assert_eq!(changes, [Change { index: 0, event }]);
        // What failed before the ejection does not eject again after it.
        outliers.tick(&second, at(11_100));
        run(&second, 0, &".".repeat(30), at(11_150));
        assert_eq!(outliers.tick(&second, at(11_200)), []);
        assert_eq!(ejected(&second), [false; 3]);
    }

    #[test]
    fn the_worst_are_out_and_never_all() {
        for (count, threshold, expected) in [
            (4, 0.5, vec![false, true, true, false]),
            (4, 1.0, vec![false, true, true, true]),
            (4, 0.2, vec![false; 4]),
            (1, 0.5, vec![false]),
        ] {
            let (group, mut outliers) = (group(count, threshold), Outliers::default());
            for (index, good) in [15, 0, 5, 10].into_iter().take(count as usize).enumerate() {
                let outcomes = ".".repeat(good) + &"x".repeat(20 - good);
                run(&group, index, &outcomes, at(1000));
            }
            outliers.tick(&group, at(1000));
            assert_eq!(ejected(&group), expected, "{threshold}");
        }
    }

    #[test]
    fn members_that_are_out_for_another_reason_count() {
        let (group, mut outliers) = (group(4, 0.5), Outliers::default());
        group.members()[3].slot.set(Reason::Down, true);
        group.members()[2].slot.set(Reason::Down, true);
        run(&group, 0, "xxxxx", at(1000));
        assert_eq!(outliers.tick(&group, at(1000)), []);
        group.members()[2].slot.set(Reason::Down, false);
        assert_eq!(outliers.tick(&group, at(1100)).len(), 1);
    }

    proptest! {
        /// Whatever fails: ejections bring about no panic and leave somebody, a slot is
        /// ejected exactly between its two events, and all ejections end.
        #[test]
        fn ejections_are_bounded_and_end(
            count in 1u64..8,
            threshold in 0.0f32..=1.0,
            steps in proptest::collection::vec((0usize..8, 0u64..15, 0u64..40, 1u64..5000), 1..60),
        ) {
            let (group, mut outliers) = (group(count, threshold), Outliers::default());
            let (mut now, mut out) = (1_000, vec![false; count as usize]);
            for (index, good, bad, ms) in steps {
                now += ms;
                let index = index % count as usize;
                let outcomes = ".".repeat(good as usize) + &"x".repeat(bad as usize);
                run(&group, index, &outcomes, at(now));
                for change in outliers.tick(&group, at(now)) {
                    let before = out[change.index];
                    out[change.index] = change.event != Event::Returned;
                    prop_assert!(before != out[change.index]);
                }
                prop_assert_eq!(ejected(&group), out.clone());
                prop_assert!(out.contains(&false));
                let reasons = group.members().iter().map(|m| m.slot.reasons());
                prop_assert!(!panics(reasons, threshold));
            }
            // Whoever was spared because others were out has its turn, too.
            for _ in 0..=count {
                now += MAX_TIME.as_millis() as u64;
                outliers.tick(&group, at(now));
            }
            prop_assert_eq!(ejected(&group), vec![false; count as usize]);
        }
    }
}
