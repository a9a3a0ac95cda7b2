//! Trials: requests that ask members whether they are well again.
//!
//! A member has a budget of trials: a small share of the requests that it would usually get. While trials fail, the
//! member is tried when its budget allows. After a trial that succeeds, the member is tried in every round, until a trial
//! fails, or until enough have succeeded and the member is in again. The budget pays for these trials, too: however many
//! of its requests a member fails, it gets no more than its budget.
//!
//! A member that serves, and that the strategy sends hardly any requests for a failure, is tried, too: a strategy takes
//! a failure back over the member's next requests, and such a member has hardly any. Here the requests of the strategy
//! are trials as well. After enough successes in a row the failures of the member are forgotten.

use std::collections::HashMap;
use std::time::Duration;

use evenkeel_core::group::{Granularity, Group};
use evenkeel_core::member::{Member, MemberId, Reason};
use evenkeel_core::observe::TrialTotals;
use evenkeel_core::strategy::RequestNeeds;
use evenkeel_core::time::Instant;

use crate::usual_rates::{Counts, UsualRates};

/// Share of its usual requests that a member gets as trials.
const BUDGET: f64 = 0.014;

/// Usual requests of a member in a second with which the budget allows a trial about every two seconds.
pub(crate) const LEAST_RATE: f64 = 30.0;

/// Most trials that a member may be ahead of its budget: a member that fails seldom is not to wait for long.
const MOST_DEBT: f64 = 3.0;

/// Trials in a row that must succeed before the member is in again: a member that fails half of its requests passes
/// once in a thousand times.
const ENOUGH: u64 = 10;

/// Trials in a row after which a member gets two in a round.
const SAFE: u64 = 4;

/// Longest time between two rounds that counts.
const LONGEST_ROUND: f64 = 1.0;

/// Most trials in a row, as a multiple of [`ENOUGH`], that must succeed before failures are forgotten of a member that
/// goes on to fail now and then.
const MOST_PATIENCE: u64 = 8;

/// Seconds, times its patience, after which a member that has been forgiven counts as one that never failed.
const GOOD_CONDUCT: f64 = 10.0;

/// Time after the end of an ejection in which trials under way may decide.
const LATE_TRIALS: Duration = Duration::from_secs(2);

/// Share of failures that no strategy notices.
const NEGLIGIBLE: f32 = 1e-3;

/// Trials of the members that are ejected, or that serve and get hardly any requests.
#[derive(Clone, Debug, Default)]
pub(crate) struct MemberTrials {
    members: HashMap<MemberId, Progress>,
    forgiven: HashMap<MemberId, Forgiven>,
}

/// The last time that a member had enough trials in a row that succeeded.
#[derive(Clone, Copy, Debug)]
struct Forgiven {
    at: Instant,
    /// Multiple of [`ENOUGH`] that was needed.
    patience: u64,
}

/// Trials of a member in its present ejection, or while it gets hardly any requests.
#[derive(Clone, Copy, Debug)]
struct Progress {
    /// False if the member serves.
    is_ejected: bool,
    /// Totals of the member at the last round: of trials, or of all requests if the member serves.
    totals: TrialTotals,
    /// Number of trials that were over at the last round.
    trials: u64,
    /// True if requests take the member's trials.
    is_taken: bool,
    /// Multiple of [`ENOUGH`] that is needed.
    patience: u64,
    /// Number of trials that have succeeded since the last failure.
    in_a_row: u64,
    /// Trials that are over since the ejection began or was prolonged, and those that failed.
    ended: u64,
    failed: u64,
    /// Trials that the budget has left.
    budget: f64,
    /// Trials that the member may have without getting more than its usual requests.
    pace: f64,
    at: Instant,
}

/// Trials of a member that is ejected, as the group's status shows them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrialProgress {
    /// Number of trials that are over since the ejection began, or was prolonged.
    pub ended: u64,
    /// Number of these trials that failed.
    pub failed: u64,
    /// Number of trials that have succeeded since the last failure.
    pub in_a_row: u64,
    /// Number of trials in a row that must succeed.
    pub enough: u64,
}

/// Returns true if requests of the group may try members: a request that must go to a certain member does not.
pub(crate) fn are_possible(group: &Group) -> bool {
    let settings = group.settings();
    settings.ejection.trials
        && settings.granularity == Granularity::PerRequest
        && group.strategy().request_needs == RequestNeeds::Nothing
        && !group.state().is_panicking()
}

impl MemberTrials {
    /// Counts the trials that are over, and grants new ones to ejected members that `caution` names, and to members that
    /// serve and get hardly any requests for a failure: a member with caution 2 gets half as many first trials as one
    /// with 1. Returns the indices of the members that have passed.
    pub(crate) fn run_round(
        &mut self,
        group: &Group,
        caution: impl Fn(&Member) -> Option<f64>,
        now: Instant,
    ) -> Vec<usize> {
        self.forgiven.retain(|_, last| last.counts(now));
        let tried = self.find_tried(group, caution, now);
        if tried.is_empty() && self.members.is_empty() {
            return Vec::new();
        }
        let mut next = HashMap::new();
        let (mut passed, mut is_granted) = (Vec::new(), false);
        for member in &tried {
            let (slot, id) = (&member.member.slot, member.member.id);
            let (trials, totals) = (slot.trials(), member.totals());
            let known = self.members.get(&id);
            let known = known.filter(|known| known.is_ejected == member.is_ejected);
            let mut progress = known.copied().unwrap_or_else(|| {
                // One that nobody has taken earlier.
                trials.grant_trials(0);
                let last = self.forgiven.get(&id).filter(|_| !member.is_ejected);
                let patience = last.map_or(1, |last| (2 * last.patience).min(MOST_PATIENCE));
                Progress::new(member, totals, patience, now)
            });
            progress.count_ended(totals, member.trials_over());
            let enough = ENOUGH * progress.patience;
            // Where no request takes trials, the strategy alone decides about a member that serves.
            if progress.in_a_row >= enough && (member.is_ejected || progress.is_taken) {
                trials.grant_trials(0);
                let patience = self.forgiven.get(&id).map_or(1, |last| last.patience);
                let patience = progress.patience.max(patience);
                self.forgiven.insert(id, Forgiven { at: now, patience });
                passed.push(member.index);
                continue;
            }
            let new = progress.next_trials(trials.pending(), member.usual, member.caution, now);
            if new > 0 {
                trials.grant_trials(new);
            }
            is_granted |= trials.pending() > 0;
            next.insert(id, progress);
        }
        // Nobody is to take what is left of the trials of members that are tried no longer.
        for member in group.members() {
            if self.members.contains_key(&member.id) && !next.contains_key(&member.id) {
                member.slot.trials().grant_trials(0);
            }
        }
        self.members = next;
        if is_granted {
            group.state().set_trials(true);
        }
        passed
    }

    /// Returns the members that are tried.
    fn find_tried<'a>(
        &self,
        group: &'a Group,
        caution: impl Fn(&Member) -> Option<f64>,
        now: Instant,
    ) -> Vec<TriedMember<'a>> {
        let (mut ejected, mut suspects) = (Vec::new(), Vec::new());
        if are_possible(group) {
            let decay = group.settings().latency_decay;
            let members = group.members().iter().enumerate();
            for (index, member) in members.filter(|(_, member)| member.slot.weight() > 0.0) {
                match member.slot.reason_bits() {
                    0 if member.slot.failure_share(now, decay) > NEGLIGIBLE => {
                        suspects.push((index, member));
                    }
                    bits if bits == Reason::Ejected as u32 => {
                        ejected.extend(caution(member).map(|caution| (index, member, caution)));
                    }
                    _ => {}
                }
            }
        }
        // A request whose trial fails needs another member.
        let is_other =
            |member: &&Member| member.slot.reason_bits() == 0 && member.slot.weight() > 0.0;
        if group.members().iter().filter(is_other).nth(1).is_none() {
            suspects.clear();
        }
        if ejected.is_empty() && suspects.is_empty() {
            return Vec::new();
        }
        let rates = UsualRates::measure(group, ejected.iter().map(|(_, member, _)| *member), now);
        let new = |index, member, caution, is_ejected| TriedMember {
            index,
            member,
            is_ejected,
            caution,
            usual: rates.rate(member),
        };
        let is_starved = |member: &Member| {
            let known = self.members.get(&member.id);
            match known.is_some_and(|known| !known.is_ejected) {
                true => !rates.is_fed(member),
                false => rates.is_starved(member),
            }
        };
        let starved = suspects.into_iter();
        let starved = starved.filter(|(_, member)| is_starved(member));
        let starved = starved.map(|(index, member)| new(index, member, 1.0, false));
        let ejected = ejected.into_iter();
        let ejected = ejected.map(|(index, member, caution)| new(index, member, caution, true));
        ejected.chain(starved).collect()
    }

    /// Progress of a member, if it is tried.
    pub(crate) fn progress(&self, id: MemberId) -> Option<TrialProgress> {
        let progress = self.members.get(&id).filter(|known| known.is_ejected)?;
        Some(TrialProgress {
            ended: progress.ended,
            failed: progress.failed,
            in_a_row: progress.in_a_row,
            enough: ENOUGH,
        })
    }

    /// Share of a member's trials that failed since its ejection began, or was prolonged; `None` without any.
    pub(crate) fn failure_share(&self, id: MemberId) -> Option<f64> {
        let progress = self.members.get(&id)?;
        (progress.ended > 0).then(|| progress.failed as f64 / progress.ended as f64)
    }

    /// Requests of a member that serves, since it was noticed that it gets hardly any after a failure; `None` if it gets
    /// as many as others, or if no request takes its trials.
    pub(crate) fn starved_counts(&self, id: MemberId) -> Option<Counts> {
        let progress = self.members.get(&id)?;
        let is_tried = !progress.is_ejected && progress.is_taken;
        is_tried.then_some(Counts {
            total: progress.ended,
            failures: progress.failed,
        })
    }

    /// Time after the end of an ejection in which trials may still decide how the member returns: some if the last ones
    /// have succeeded.
    pub(crate) fn time_to_decide(&self, id: MemberId) -> Duration {
        let progress = self.members.get(&id);
        match progress.is_some_and(|known| known.is_ejected && known.in_a_row > 0) {
            true => LATE_TRIALS,
            false => Duration::ZERO,
        }
    }

    /// The ejection of a member is prolonged: its trials are counted anew.
    pub(crate) fn begin_anew(&mut self, id: MemberId) {
        if let Some(progress) = self.members.get_mut(&id) {
            (progress.ended, progress.failed) = (0, 0);
        }
    }
}

/// A member that is tried.
struct TriedMember<'a> {
    index: usize,
    member: &'a Member,
    /// False if the member serves.
    is_ejected: bool,
    /// Divisor of the budget.
    caution: f64,
    /// Usual requests in a second.
    usual: f64,
}

impl TriedMember<'_> {
    /// Number of the member's trials that are over.
    fn trials_over(&self) -> u64 {
        let totals = self.member.slot.trials().totals();
        totals.succeeded + totals.failed
    }

    /// Totals of the requests that try the member: trials, and those of the strategy if the member serves.
    fn totals(&self) -> TrialTotals {
        if self.is_ejected {
            return self.member.slot.trials().totals();
        }
        let totals = self.member.slot.record().request_totals();
        TrialTotals {
            sent: totals.total(),
            succeeded: totals.successes,
            failed: totals.failures + totals.overloads,
        }
    }
}

impl Forgiven {
    /// True if the member is not trusted as much as others yet.
    fn counts(&self, now: Instant) -> bool {
        now.since(self.at).as_secs_f64() < GOOD_CONDUCT * self.patience as f64
    }
}

impl Progress {
    fn new(member: &TriedMember<'_>, totals: TrialTotals, patience: u64, now: Instant) -> Self {
        Progress {
            is_ejected: member.is_ejected,
            totals,
            trials: member.trials_over(),
            is_taken: false,
            patience,
            in_a_row: 0,
            ended: 0,
            failed: 0,
            // A member that serves has had hardly any requests for a while.
            budget: if !member.is_ejected && member.usual >= LEAST_RATE {
                1.0
            } else {
                0.0
            },
            pace: 0.0,
            at: now,
        }
    }

    /// Counts the trials that are over since the last round. `trials` are those that are over in all.
    fn count_ended(&mut self, totals: TrialTotals, trials: u64) {
        let requests = totals.sent.saturating_sub(self.totals.sent);
        if !self.is_ejected && requests > trials.saturating_sub(self.trials) {
            // A request of the strategy has tried the member.
            self.budget = self.budget.min(0.0);
        }
        self.is_taken |= trials > self.trials;
        self.trials = trials;
        let succeeded = totals.succeeded.saturating_sub(self.totals.succeeded);
        let failed = totals.failed.saturating_sub(self.totals.failed);
        self.totals = totals;
        self.ended += succeeded + failed;
        self.failed += failed;
        if failed > 0 {
            self.in_a_row = 0;
        } else {
            self.in_a_row += succeeded;
        }
    }

    /// Returns the number of trials for the time until the next round. `pending` are those that are not over.
    fn next_trials(&mut self, pending: u32, usual: f64, caution: f64, now: Instant) -> u32 {
        let passed = now.since(self.at).as_secs_f64().min(LONGEST_ROUND);
        self.at = now;
        let most = if self.in_a_row < SAFE { 1.0 } else { 2.0 };
        self.budget = (self.budget + BUDGET * usual / caution * passed).min(1.0);
        self.pace = (self.pace + usual * passed).min(most);
        let is_due = self.in_a_row > 0 || self.budget >= 1.0;
        if pending > 0 || !is_due || self.pace < 1.0 {
            return 0;
        }
        let new = self.pace.floor();
        self.pace -= new;
        self.budget = (self.budget - new).max(-MOST_DEBT);
        new as u32
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use evenkeel_core::group::{GroupSettings, GroupState, Outcome, Request, Ticket, Trial};
    use evenkeel_core::strategy::{Values, default_kind, find};

    use super::*;
    use crate::outlier::{Event, Outliers};
    use crate::testing::make_member;

    const MEMBERS: usize = 4;

    /// Requests at four members in virtual time. Only the first member fails.
    struct World {
        group: Group,
        outliers: Outliers,
        rng: fastrand::Rng,
        nanos: u64,
        /// Requests in a second.
        rate: u64,
        /// Share of its requests that the first member fails.
        fails: f64,
        /// Share of the requests that all members fail, in addition.
        all_fail: f64,
        /// Share of the requests that may take trials.
        repeatable: f64,
        /// Trials at the first member are not answered while this is set.
        hangs: bool,
        hanging: Vec<(Ticket, Trial)>,
        /// Requests at the first member, and those among them that failed clients.
        at_first: u32,
        seen_failures: u32,
        requests: u32,
        ends: Vec<(u64, Event)>,
    }

    fn group(settings: GroupSettings, strategy: &str) -> Group {
        let kind = find(strategy).unwrap();
        let members = (0..MEMBERS as u64).map(make_member).collect();
        let state = Arc::<GroupState>::default();
        Group::new("g", settings, &Values::defaults(kind), members, state)
    }

    impl World {
        fn new(rate: u64, seed: u64) -> Self {
            World {
                group: group(GroupSettings::default(), default_kind().name),
                outliers: Outliers::default(),
                rng: fastrand::Rng::with_seed(seed),
                nanos: 1_000_000_000,
                rate,
                fails: 0.0,
                all_fail: 0.0,
                repeatable: 1.0,
                hangs: false,
                hanging: Vec::new(),
                at_first: 0,
                seen_failures: 0,
                requests: 0,
                ends: Vec::new(),
            }
        }

        fn now(&self) -> Instant {
            Instant::from_nanos(self.nanos)
        }

        fn outcome(&mut self, index: usize) -> Outcome {
            let share = self.all_fail + if index == 0 { self.fails } else { 0.0 };
            match self.rng.f64() < share {
                true => Outcome::Error,
                false => Outcome::Success,
            }
        }

        /// Sends a request as the proxy does.
        fn send_request(&mut self) {
            self.requests += 1;
            let now = self.now();
            let may_try = self.rng.f64() < self.repeatable;
            let tried = may_try.then(|| self.group.take_trial(Default::default(), now));
            let mut trial = None;
            if let Some(mut bound) = tried.flatten() {
                let index = bound.ticket.member_index();
                // Where all members fail now and then, others may get hardly any requests.
                assert!(index == 0 || self.all_fail > 0.0);
                self.at_first += u32::from(index == 0);
                if self.hangs {
                    self.hanging.push((bound.ticket, bound.trial));
                    assert_eq!(self.hanging.len(), 1, "one at a time");
                    return;
                }
                let outcome = self.outcome(index);
                bound.ticket.finish(outcome, now);
                if outcome == Outcome::Success {
                    return bound.trial.succeed();
                }
                trial = Some(bound.trial);
            }
            let ticket = self.group.pick(&Request::at_time(now), &mut self.rng);
            let ticket = ticket.unwrap();
            let index = ticket.member_index();
            let outcome = self.outcome(index);
            ticket.finish(outcome, now.after(Duration::from_millis(1)));
            self.at_first += u32::from(index == 0);
            if outcome != Outcome::Success {
                self.seen_failures += 1;
            } else if let Some(mut trial) = trial {
                trial.fail();
            }
        }

        /// Lets time pass. Returns the share of its usual requests that the first member has got.
        fn pass(&mut self, millis: u64) -> f64 {
            (self.at_first, self.requests, self.seen_failures) = (0, 0, 0);
            let end = self.nanos + millis * 1_000_000;
            while self.nanos < end {
                let mean = 1e9 / self.rate as f64;
                let gap = 2.0 * mean * self.rng.f64();
                let next = self.nanos + (gap as u64).max(1);
                for round in self.nanos / 100_000_000 + 1..=next / 100_000_000 {
                    self.nanos = round * 100_000_000;
                    self.run_round();
                }
                self.nanos = next;
                self.send_request();
            }
            f64::from(self.at_first * MEMBERS as u32) / f64::from(self.requests)
        }

        fn run_round(&mut self) {
            let now = self.now();
            let timed_out = self
                .hanging
                .iter()
                .position(|(ticket, _)| now.since(ticket.started()) >= Duration::from_secs(1));
            if let Some(index) = timed_out {
                let (ticket, mut trial) = self.hanging.swap_remove(index);
                ticket.finish(Outcome::Failure, now);
                trial.fail();
            }
            for change in self.outliers.update_ejections(&self.group, now) {
                assert_eq!(change.index, 0, "{change:?}");
                self.ends.push((self.nanos / 1_000_000, change.event));
            }
        }

        fn is_ejected(&self) -> bool {
            self.group.members()[0].slot.has_reason(Reason::Ejected)
        }

        /// Has the first member fail until it is ejected.
        fn eject(&mut self) {
            self.fails = 1.0;
            while !self.is_ejected() {
                self.pass(100);
            }
        }
    }

    /// Milliseconds after which each of some members is in again, that was ejected and has been well since a moment.
    fn recovery_times(rate: u64, seeds: u64) -> Vec<u64> {
        (0..seeds)
            .map(|seed| {
                let mut world = World::new(rate, seed);
                world.pass(5_000);
                world.eject();
                world.pass(4_000 + 37 * seed);
                world.fails = 0.0;
                let from = world.nanos / 1_000_000;
                while world.is_ejected() {
                    world.pass(50);
                }
                world.nanos / 1_000_000 - from
            })
            .collect()
    }

    #[test]
    fn a_member_that_fails_half_or_all_gets_less_than_two_per_cent_of_its_share() {
        for rate in [200, 400, 4_000] {
            for fails in [0.5, 1.0] {
                let shares = (0..12).map(|seed| {
                    let mut world = World::new(rate, seed);
                    world.pass(10_000);
                    world.fails = fails;
                    world.pass(2_000);
                    world.pass(12_000)
                });
                let shares: Vec<f64> = shares.collect();
                let mean = shares.iter().sum::<f64>() / shares.len() as f64;
                assert!(mean < 0.018, "{rate} {fails}: {shares:?}");
                assert!(
                    shares.iter().all(|share| *share < 0.025),
                    "{rate} {fails}: {shares:?}"
                );
            }
        }
    }

    #[test]
    fn a_member_that_is_well_is_back_within_two_seconds() {
        for (rate, longest) in [(400, 2_000), (4_000, 1_000)] {
            let times = recovery_times(rate, 20);
            assert!(times.iter().all(|time| *time <= longest), "{times:?}");
        }
        // Half of the requests: a member waits twice as long for its first trial.
        let mut times = recovery_times(200, 20);
        times.sort_unstable();
        assert!(times[10] <= 2_000 && times[19] <= 2_500, "{times:?}");

        // It has its whole share at once.
        let mut world = World::new(400, 1);
        world.pass(5_000);
        world.eject();
        world.pass(5_000);
        world.fails = 0.0;
        world.pass(2_000);
        assert_eq!(world.ends.last().unwrap().1, Event::Recovered);
        let share = world.pass(3_000);
        assert!((0.9..1.1).contains(&share), "{share}");
    }

    #[test]
    fn an_ejection_lasts_as_long_as_trials_fail_and_no_client_sees_a_failure() {
        for hangs in [false, true] {
            let mut world = World::new(400, 7);
            world.pass(5_000);
            world.eject();
            world.hangs = hangs;
            let ends = world.ends.len();
            world.pass(60_000);
            assert_eq!(world.seen_failures, 0);
            assert_eq!(world.ends.len(), ends, "{:?}", world.ends);
            let totals = world.group.members()[0].slot.trials().totals();
            assert!(
                totals.failed > 10 && totals.succeeded == 0 && totals.sent <= totals.failed + 1,
                "{totals:?}"
            );
            world.hangs = false;
            world.fails = 0.0;
            world.pass(4_000);
            assert!(!world.is_ejected(), "{hangs}");
            assert_eq!(world.seen_failures, 0);
        }
    }

    #[test]
    fn without_trials_the_time_ends_an_ejection() {
        // Nothing may be sent again; hardly any requests come; trials are not wanted.
        for (rate, repeatable, trials) in [(400, 0.0, true), (8, 1.0, true), (400, 1.0, false)] {
            let mut world = World::new(400, 3);
            let mut settings = GroupSettings::default();
            settings.ejection.trials = trials;
            world.group = group(settings, "round_robin");
            world.pass(5_000);
            world.eject();
            let (ejected_at, _) = world.ends.last().unwrap().clone();
            world.fails = 0.0;
            (world.rate, world.repeatable) = (rate, repeatable);
            // What came before says nothing of the rate.
            world.nanos += 4_000_000_000;
            while world.is_ejected() {
                world.pass(100);
            }
            let (at, end) = world.ends.last().unwrap();
            assert_eq!((at - ejected_at, end), (10_000, &Event::Returned));
            let slot = &world.group.members()[0].slot;
            assert!(slot.ramp_from().is_some(), "it starts slowly");
            let totals = slot.trials().totals();
            assert_eq!(totals, TrialTotals::default());
        }
    }

    #[test]
    fn failures_that_all_members_have_prolong_no_ejection() {
        let mut world = World::new(400, 5);
        world.pass(5_000);
        world.eject();
        (world.fails, world.all_fail) = (0.0, 0.5);
        world.pass(11_000);
        assert!(!world.is_ejected(), "{:?}", world.ends);
    }

    #[test]
    fn few_failures_that_all_members_have_eject_nobody() {
        for seed in 0..5 {
            let mut world = World::new(400, seed);
            world.all_fail = 0.02;
            world.pass(30_000);
            assert_eq!(world.ends, [], "{seed}");
        }
    }

    #[test]
    fn a_member_that_fails_again_and_again_is_tried_less_often() {
        let sent = |ejections: u32| {
            let mut world = World::new(400, 11);
            world.pass(5_000);
            for _ in 1..ejections {
                world.eject();
                world.fails = 0.0;
                while world.is_ejected() {
                    world.pass(100);
                }
                world.pass(1_000);
            }
            world.eject();
            let totals = |world: &World| world.group.members()[0].slot.trials().totals();
            let before = totals(&world).sent;
            world.pass(8_000);
            totals(&world).sent - before
        };
        let [first, second, fourth, eighth] = [1, 2, 4, 8].map(sent);
        assert!(
            first >= 10 && first.abs_diff(second) <= 2,
            "{first} {second}"
        );
        assert!(fourth < first / 2 && eighth >= 1, "{fourth} {eighth}");
    }

    #[test]
    fn a_trial_that_nobody_took_is_not_one_of_the_next_ejection() {
        let mut world = World::new(400, 13);
        world.pass(5_000);
        world.eject();
        world.repeatable = 0.0;
        world.pass(3_000);
        let pending = |world: &World| world.group.members()[0].slot.trials().pending();
        assert_eq!(pending(&world), 1);
        let member = world.group.members()[0].clone();
        assert!(world.outliers.end_ejection(&member, world.now()));
        let taken = world.group.take_trial(Default::default(), world.now());
        assert!(taken.is_none() && !world.group.state().has_trials());
        world.eject();
        world.pass(200);
        assert_eq!(pending(&world), 0);
    }

    #[test]
    fn requests_that_must_go_to_a_certain_member_are_no_trials() {
        let is_possible = |granularity, strategy: &str| {
            let settings = GroupSettings {
                granularity,
                ..GroupSettings::default()
            };
            are_possible(&group(settings, strategy))
        };
        assert!(is_possible(Granularity::PerRequest, "adaptive"));
        assert!(is_possible(Granularity::PerRequest, "round_robin"));
        assert!(!is_possible(Granularity::PerSession, "adaptive"));
        assert!(!is_possible(Granularity::OnDemand, "adaptive"));
        assert!(!is_possible(Granularity::PerRequest, "source_ip_hash"));
        assert!(!is_possible(Granularity::PerRequest, "hash"));
        assert!(!is_possible(Granularity::PerRequest, "inference"));
    }
}
