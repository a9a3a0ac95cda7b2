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
//! itself, and the member starts slowly. If it is ejected again soon, its time doubles. While it is
//! out, requests that can be sent again try it ([`crate::trial`]): once they succeed, the ejection
//! ends early, and the member has its full share. As long as they fail, the ejection lasts.
//!
//! # What other balancers say
//!
//! Another balancer that has ejected a member says so, with what it has seen ([`PeerEjection`]). A member that
//! answers nobody need not fail everybody first: it is ejected here, too, until the other one has it
//! back, if what the other one has seen is enough by the settings of the group here, and if no request of
//! this balancer has succeeded there within the window. What the requests of this balancer say is
//! stronger: a success ends such an ejection, and where no more members may be out, one that this
//! balancer has seen fail is, instead of one that others have.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_core::ejection::EjectionSettings;
use evenkeel_core::group::{Granularity, Group};
use evenkeel_core::member::{Member, MemberId, Reason};
use evenkeel_core::strategy::RequestNeeds;
use evenkeel_core::time::Instant;

pub use crate::failures::FailureCause;
use crate::failures::{Lately, clients_agree, exceeds, succeeds};
use crate::trial::{MemberTrials, TrialProgress};
use crate::usual_rates::Counts;

/// Ejections of a group's members, as far as they are known.
#[derive(Clone, Debug, Default)]
pub struct Outliers {
    histories: HashMap<MemberId, Ejection>,
    /// Members that are out by the word of others.
    words: HashMap<MemberId, PeerEjection>,
    /// Members whose ejection an administrator has ended, with the time until which ejections by others that were
    /// known then would last; `None` until [`Outliers::heed_peers`] knows them. Such ejections count no more.
    pardons: HashMap<MemberId, Option<Instant>>,
    trials: MemberTrials,
}

/// Difference by which the end of an ejection by another balancer may seem to move: it is told as the time that is
/// left, and messages take their time.
const TOLD_LATE: Duration = Duration::from_secs(1);

/// Bound of the caution with members that are ejected again and again: they get their share of first trials, divided by
/// this.
const MOST_CAUTION: f64 = 8.0;

/// The last ejection of a member for what this balancer's own requests say.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ejection {
    /// End of the ejection.
    pub until: Instant,
    /// Length of the ejection; zero if an administrator has ended it, so that the next one is as long as a first one.
    pub time: Duration,
    /// Requests by which the member was judged.
    pub traffic: MemberTraffic,
    /// Failures for which the member was ejected; `None` if a process before this one has ejected it, and has not
    /// said.
    pub failures: Option<FailureCause>,
}

/// Requests at a member by which it is judged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemberTraffic {
    /// Number of requests.
    pub requests: u32,
    /// Number of requests that failed.
    pub failures: u32,
}

impl MemberTraffic {
    /// Returns the figures that others are told of these requests, with at least this number of
    /// `failures`.
    fn of_counts(counts: &Counts, failures: u32) -> Self {
        let count = |count: u64| u32::try_from(count).unwrap_or(u32::MAX);
        let failures = count(counts.failures).max(failures);
        MemberTraffic {
            requests: count(counts.total).max(failures),
            failures,
        }
    }

    /// Returns true if the requests are enough to eject a member, when nobody knows what other
    /// balancers have seen.
    fn is_enough(self, settings: &EjectionSettings) -> bool {
        let failures = self.failures.min(self.requests);
        let share = f64::from(failures) / f64::from(self.requests.max(1));
        let is_much = share > f64::from(settings.excess);
        failures >= settings.failure_limit || self.requests >= settings.min_requests && is_much
    }
}

/// Word of another balancer that it has ejected a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerEjection {
    /// Name of the balancer.
    pub of: Arc<str>,
    /// End of the ejection.
    pub until: Instant,
    /// Requests that the balancer has seen.
    pub traffic: MemberTraffic,
}

impl PeerEjection {
    /// Returns the cause for which a member is ejected here.
    pub fn to_cause(&self) -> Cause {
        Cause::Word(Arc::clone(&self.of), self.traffic)
    }
}

/// Ejections that this balancer tells others about a group's members.
#[derive(Debug)]
pub struct AnnouncedEjections<'a> {
    /// The group's name.
    pub group: &'a str,
    /// Members of the group.
    pub members: &'a [Member],
    /// Members that this balancer has ejected for what its own requests say, as indices into
    /// `members`.
    pub ejected: &'a [(usize, Ejection)],
    /// Time of the report.
    pub now: Instant,
}

/// A change that [`Outliers::update_ejections`] or [`Outliers::heed_peers`] has made.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// Index of the member in the group's snapshot.
    pub index: usize,
    /// Event of the member.
    pub event: Event,
}

/// Event of a member.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The member is out.
    Ejected {
        /// Cause of the ejection.
        cause: Cause,
        /// Length of the ejection.
        time: Duration,
    },
    /// The member is in again.
    Returned,
    /// The member is in again, because its trials have succeeded.
    Recovered,
}

/// Cause of an ejection.
#[derive(Clone, Debug, PartialEq)]
pub enum Cause {
    /// Failures of this balancer's own requests.
    Failures(FailureCause),
    /// Name of another balancer that has ejected the member, and the requests that it has seen.
    Word(Arc<str>, MemberTraffic),
}

impl Cause {
    /// Name of the kind of cause, as the admin API and metrics have it.
    pub fn kind_name(&self) -> &'static str {
        match self {
            Cause::Failures(FailureCause::InARow(_)) => "failures_in_a_row",
            Cause::Failures(FailureCause::Share(..)) => "failure_share",
            Cause::Word(..) => "fleet",
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cause::Failures(failures) => failures.fmt(f),
            Cause::Word(of, MemberTraffic { requests, failures }) => write!(
                f,
                "balancer {of} has ejected the member, as {failures} of its {requests} requests there failed"
            ),
        }
    }
}

impl Outliers {
    /// The last ejections of members, as far as they still count: who is ejected again soon is so
    /// for longer.
    pub fn ejections(&self) -> impl Iterator<Item = (MemberId, Ejection)> {
        self.histories.iter().map(|(id, last)| (*id, *last))
    }

    /// The ejection of a member for what this balancer's own requests say, if it is out for that.
    pub fn ejection(&self, member: &Member, now: Instant) -> Option<Ejection> {
        let last = self.histories.get(&member.id)?;
        let until = last.until.after(self.trials.time_to_decide(member.id));
        (until > now && member.slot.has_reason(Reason::Ejected)).then_some(*last)
    }

    /// Returns the word of another balancer by which a member is out, if it is out for that.
    pub fn peer_ejection(&self, id: MemberId) -> Option<&PeerEjection> {
        self.words.get(&id)
    }

    /// Trials of a member that is ejected for what this balancer's own requests say, if requests may try it.
    pub fn trial_progress(&self, id: MemberId) -> Option<TrialProgress> {
        self.trials.progress(id)
    }

    /// Goes on with what another process knows of a member: it is, or was, ejected.
    pub fn go_on(&mut self, member: &Member, ejection: Ejection, now: Instant) {
        self.histories.insert(member.id, ejection);
        if ejection.until > now {
            member.slot.set(Reason::Ejected, true);
        }
    }

    /// Ends the ejection of a member, whoever has ejected it, as an administrator wants it, and forgets the failures
    /// of the member: they count neither for another ejection nor for its length. Ejections by other balancers that
    /// are known by the next [`Outliers::heed_peers`] count no more. Returns true if the member was ejected.
    pub fn end_ejection(&mut self, member: &Member, now: Instant) -> bool {
        // The failures before stay in the windows of the member's record, and have been paid for.
        let ended = Ejection {
            until: now,
            time: Duration::ZERO,
            traffic: MemberTraffic::default(),
            failures: None,
        };
        self.histories.insert(member.id, ended);
        self.words.remove(&member.id);
        self.pardons.insert(member.id, None);
        member.slot.forget_failures();
        let is_out = member.slot.has_reason(Reason::Ejected);
        if is_out {
            take_back(member, now);
        }
        is_out
    }

    /// Ends ejections whose time is over, or whose trials have succeeded, and ejects members that fail too much. Call it
    /// some ten times a second.
    pub fn update_ejections(&mut self, group: &Group, now: Instant) -> Vec<Change> {
        let members = group.members();
        let settings = &group.settings().ejection;
        let mut changes = self.end_recovered(group, now);
        changes.extend(self.end(group, now));

        let candidates = self.candidates(group, now);
        if !candidates.is_empty() {
            let mut left = self.ejectable(group);
            for (index, cause, seen) in candidates {
                if left == 0 {
                    break;
                }
                left -= 1;
                let time = self.eject(&members[index], settings, (cause, seen), now);
                let cause = Cause::Failures(cause);
                let event = Event::Ejected { cause, time };
                changes.push(Change { index, event });
            }
        }
        changes
    }

    /// Ejects the members of which others say that they have, and ends such ejections that nobody speaks
    /// for any more: `words` are what others say now, each with the member's index. Call it after each
    /// [`Outliers::update_ejections`].
    pub fn heed_peers(
        &mut self,
        group: &Group,
        words: &[(usize, PeerEjection)],
        now: Instant,
    ) -> Vec<Change> {
        if words.is_empty() && self.words.is_empty() {
            self.pardons.clear();
            return Vec::new();
        }
        let members = group.members();
        self.update_pardons(members, words, now);
        let mut heeded: Vec<(usize, &Member, &PeerEjection)> = Vec::new();
        for (index, word) in loudest(group, words, now) {
            let Some(member) = members.get(index) else {
                continue;
            };
            let pardon = self.pardons.get(&member.id).copied().flatten();
            if pardon.is_some_and(|until| word.until <= until.after(TOLD_LATE)) {
                continue;
            }
            let is_out = self.words.contains_key(&member.id);
            let is_free = member.slot.reason_bits() & !Reason::SOFT == 0;
            if (is_out || is_free) && !succeeds(member, group, now) {
                heeded.push((index, member, word));
            }
        }
        // Who is out stays so, then come those of which most has been seen.
        heeded.sort_by_key(|(_, member, word)| {
            let is_new = !self.words.contains_key(&member.id);
            (is_new, std::cmp::Reverse(word.traffic.failures))
        });
        heeded.truncate(self.ejectable(group));

        let mut changes = Vec::new();
        let stay: HashSet<MemberId> = heeded.iter().map(|(_, member, _)| member.id).collect();
        let mut before = std::mem::take(&mut self.words);
        for (index, member) in members.iter().enumerate() {
            if stay.contains(&member.id) || before.remove(&member.id).is_none() {
                continue;
            }
            // It may be out by the word of another process, too, that went before this one.
            if self
                .histories
                .get(&member.id)
                .is_none_or(|last| now >= last.until)
            {
                let event = take_back(member, now);
                changes.push(Change { index, event });
            }
        }
        for (index, member, word) in heeded {
            if !before.contains_key(&member.id) {
                member.slot.set(Reason::Ejected, true);
                let cause = word.to_cause();
                let time = word.until.since(now);
                let event = Event::Ejected { cause, time };
                changes.push(Change { index, event });
            }
            self.words.insert(member.id, word.clone());
        }
        changes
    }

    /// Notes until when the ejections by others last that are not to count, and forgets those that are over.
    fn update_pardons(
        &mut self,
        members: &[Member],
        words: &[(usize, PeerEjection)],
        now: Instant,
    ) {
        for (id, until) in self.pardons.iter_mut().filter(|(_, until)| until.is_none()) {
            let is_of = |index: &usize| members.get(*index).is_some_and(|member| member.id == *id);
            let known = words.iter().filter(|(index, _)| is_of(index));
            *until = Some(known.map(|(_, word)| word.until).fold(now, Instant::max));
        }
        let counts =
            |until: &mut Option<Instant>| until.is_none_or(|until| now <= until.after(TOLD_LATE));
        self.pardons.retain(|_, until| counts(until));
    }

    /// Counts trials, grants new ones, and ends the ejections of members whose trials have succeeded.
    fn end_recovered(&mut self, group: &Group, now: Instant) -> Vec<Change> {
        let settings = &group.settings().ejection;
        let (histories, words) = (&self.histories, &self.words);
        let caution = |member: &Member| {
            let last = histories.get(&member.id)?;
            let is_own = !words.contains_key(&member.id);
            // The second ejection is cautious as the first one: its time has doubled once.
            let times = last.time.as_secs_f64() / settings.time.as_secs_f64();
            is_own.then(|| (times / 2.0).clamp(1.0, MOST_CAUTION))
        };
        let passed = self.trials.run_round(group, caution, now);
        let mut changes = Vec::new();
        for index in passed {
            let Some(member) = group.members().get(index) else {
                continue;
            };
            // The trials have shown that the member can do what it could before.
            member.slot.forget_failures();
            if !member.slot.has_reason(Reason::Ejected) {
                // The strategy had hardly any requests for the member.
                continue;
            }
            if let Some(last) = self.histories.get_mut(&member.id) {
                last.until = now;
            }
            member.slot.set_ramp_from(None);
            member.slot.set(Reason::Ejected, false);
            let event = Event::Recovered;
            changes.push(Change { index, event });
        }
        changes
    }

    /// Prolongs the ejection of a member whose trials have failed more often than the requests of the other members.
    /// Returns true if the ejection is prolonged.
    fn prolong(&mut self, group: &Group, member: &Member, now: Instant) -> bool {
        let settings = &group.settings().ejection;
        let Some(share) = self.trials.failure_share(member.id) else {
            return false;
        };
        let others = group.members().iter().filter(|other| other.id != member.id);
        let others = others.map(|other| self.recent(other, settings.window, now));
        let others = others.fold(Counts::default(), |sum, recent| sum.sum(&recent));
        let is_longer = share - others.share() > f64::from(settings.excess);
        if is_longer && let Some(last) = self.histories.get_mut(&member.id) {
            last.until = now.after(last.time.max(settings.time));
            self.trials.begin_anew(member.id);
        }
        is_longer
    }

    fn end(&mut self, group: &Group, now: Instant) -> Vec<Change> {
        let (members, window) = (group.members(), group.settings().ejection.window);
        let mut changes = Vec::new();
        for (index, member) in members.iter().enumerate() {
            if !member.slot.has_reason(Reason::Ejected) || self.words.contains_key(&member.id) {
                continue;
            }
            // A member that left while it was ejected may come back when its history is
            // gone already.
            let history = self.histories.get(&member.id);
            let more = self.trials.time_to_decide(member.id);
            if history.is_none_or(|history| now >= history.until.after(more))
                && !self.prolong(group, member, now)
            {
                let event = take_back(member, now);
                changes.push(Change { index, event });
            }
        }
        // A member that did not fail for as long as it was ejected counts as one that never was.
        // Members that left the group are forgotten, too.
        self.histories
            .retain(|_, history| now < history.until.after(history.time.max(window)));
        changes
    }

    /// Returns the members that should be ejected, the worst first.
    fn candidates(&self, group: &Group, now: Instant) -> Vec<(usize, FailureCause, MemberTraffic)> {
        let (members, settings) = (group.members(), &group.settings().ejection);
        let is_bound = group.settings().granularity != Granularity::PerRequest
            || group.strategy().request_needs != RequestNeeds::Nothing;
        let recents: Vec<Counts> = members
            .iter()
            .map(|m| self.recent(m, settings.window, now))
            .collect();
        let all = recents.iter().fold(Counts::default(), Counts::sum);
        let lately = Lately::new(group, now, |member, span| self.recent(member, span, now));
        let mut candidates: Vec<(usize, FailureCause, MemberTraffic)> = Vec::new();
        for (index, (member, recent)) in members.iter().zip(&recents).enumerate() {
            if member.slot.reason_bits() & !Reason::SOFT != 0 {
                continue;
            }
            let in_a_row = member.slot.consecutive_failures();
            if in_a_row >= settings.failure_limit {
                // They may have taken longer than the window.
                let seen = MemberTraffic::of_counts(recent, in_a_row);
                candidates.push((index, FailureCause::InARow(in_a_row), seen));
            } else if let Some(cause) =
                exceeds(recent, &all, settings).or_else(|| lately.find_cause(index, recent))
                && (!is_bound || clients_agree(group, index, &all.without(recent), now))
            {
                candidates.push((index, cause, MemberTraffic::of_counts(recent, 0)));
            } else if let Some(own) = self.trials.starved_counts(member.id)
                && let Some(cause) = lately.find_cause_of_starved(index, &own)
            {
                candidates.push((index, cause, MemberTraffic::of_counts(&own, 0)));
            }
        }
        let share = |candidate: &(usize, FailureCause, MemberTraffic)| recents[candidate.0].share();
        candidates.sort_by(|a, b| share(b).total_cmp(&share(a)));
        candidates
    }

    /// Counts the member's recent requests that still matter: those before its last return have
    /// been paid for.
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

    fn eject(
        &mut self,
        member: &Member,
        settings: &EjectionSettings,
        (cause, traffic): (FailureCause, MemberTraffic),
        now: Instant,
    ) -> Duration {
        let time = match self.histories.get(&member.id) {
            Some(history) if !history.time.is_zero() => (history.time * 2).min(settings.max_time),
            _ => settings.time,
        };
        let until = now.after(time);
        self.histories.insert(
            member.id,
            Ejection {
                until,
                time,
                traffic,
                failures: Some(cause),
            },
        );
        member.slot.set(Reason::Ejected, true);
        time
    }

    /// Returns the number of further members that could be ejected if none were ejected by the word
    /// of others.
    fn ejectable(&self, group: &Group) -> usize {
        let (mut all, mut out) = (0usize, 0usize);
        for member in group.members() {
            let mut bits = member.slot.reason_bits() & !Reason::SOFT;
            if self.words.contains_key(&member.id) {
                bits &= !(Reason::Ejected as u32);
            }
            // Nobody new goes to a member without weight, so it cannot serve in place of another.
            if bits & !Reason::OVERRIDDEN_BY_PANIC == 0 && member.slot.weight() > 0.0 {
                all += 1;
                out += usize::from(bits != 0);
            }
        }
        let allowed = (group.settings().panic_threshold * all as f32) as usize;
        // One is always left, whatever the threshold.
        allowed.min(all.saturating_sub(1)).saturating_sub(out)
    }
}

/// Returns for each member the word of the balancer that ejects it for the longest time. Words that
/// mean nothing here are left out: those that are over, those based on too few requests, and those
/// that would last longer than any ejection here.
fn loudest<'w>(
    group: &Group,
    words: &'w [(usize, PeerEjection)],
    now: Instant,
) -> BTreeMap<usize, &'w PeerEjection> {
    let settings = &group.settings().ejection;
    let latest = now.after(settings.max_time);
    let mut loudest: BTreeMap<usize, &PeerEjection> = BTreeMap::new();
    for (index, word) in words {
        let counts = word.until > now && word.until <= latest;
        if !counts || !word.traffic.is_enough(settings) {
            continue;
        }
        let known = loudest.entry(*index).or_insert(word);
        if (word.until, &word.of) > (known.until, &known.of) {
            *known = word;
        }
    }
    loudest
}

/// Has a member in again that was ejected.
fn take_back(member: &Member, now: Instant) -> Event {
    member.slot.forgive();
    if member.slot.has_record() {
        // Nobody has taken them, and a member that serves may have some of its own.
        member.slot.trials().grant_trials(0);
    }
    member.slot.set(Reason::Ejected, false);
    member.slot.set_ramp_from(Some(now));
    Event::Returned
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;
    use crate::health::panics;
    use crate::testing::make_member;
    use evenkeel_core::group::{GroupSettings, GroupState, Outcome};
    use evenkeel_core::member::Weight;
    use evenkeel_core::strategy::{Values, default_kind};

    const FIRST_TIME: Duration = Duration::from_secs(10);
    const MAX_TIME: Duration = Duration::from_secs(300);

    fn group(count: u64, panic_threshold: f32) -> Group {
        group_of((0..count).map(make_member).collect(), panic_threshold)
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
        let is_ejected = |member: &Member| member.slot.has_reason(Reason::Ejected);
        group.members().iter().map(is_ejected).collect()
    }

    #[test]
    fn failures_in_a_row_eject_for_a_while() {
        let (group, mut outliers) = (group(2, 0.5), Outliers::default());
        run(&group, 0, "xxxx", at(1000));
        assert_eq!(outliers.update_ejections(&group, at(1000)), []);
        run(&group, 0, ".xxxx", at(1100));
        assert_eq!(
            outliers.update_ejections(&group, at(1100)),
            [],
            "not in a row"
        );
        run(&group, 0, "x", at(1200));
        let changes = outliers.update_ejections(&group, at(1200));
        let event = Event::Ejected {
            cause: Cause::Failures(FailureCause::InARow(5)),
            time: FIRST_TIME,
        };
        assert_eq!(changes, [Change { index: 0, event }]);
        assert_eq!(ejected(&group), [true, false]);

        // Its failures since do not count against it when it returns.
        run(&group, 0, "xxxxxxxxxx", at(2000));
        assert_eq!(outliers.update_ejections(&group, at(11_100)), []);
        let changes = outliers.update_ejections(&group, at(11_200));
        let event = Event::Returned;
        assert_eq!(changes, [Change { index: 0, event }]);
        assert_eq!(ejected(&group), [false, false]);
        let slot = &group.members()[0].slot;
        assert_eq!(slot.ramp_from(), Some(at(11_200)), "it starts slowly");
        assert_eq!(outliers.update_ejections(&group, at(11_300)), []);
    }

    /// A group whose clients have members of their own: each of `clients` is at one, and the
    /// requests of those in `bad` fail there, as do all at a `broken` one.
    fn serve(group: &Group, clients: u8, bad: &[u8], broken: Option<usize>, now: Instant) {
        let count = group.members().len();
        for client in 0..clients {
            // Like a ring: the next one that is there.
            let first = usize::from(client) % count;
            let up = |index: &usize| !group.members()[*index].slot.has_reason(Reason::Ejected);
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
        let members: Vec<Member> = (0..6).map(make_member).collect();
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
                    outliers.update_ejections(&group, at(second * 1000));
                    assert_eq!(ejected(&group), [false; 6], "{strategy} {clients} {second}");
                }
            }
            // A member that fails all its clients goes, and no other.
            let (group, mut outliers) = (bound_group(granularity, strategy), Outliers::default());
            for second in 1..8 {
                serve(&group, 60, &[0], Some(3), at(second * 1000));
                outliers.update_ejections(&group, at(second * 1000));
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
        outliers.update_ejections(&group, at(1000));
        assert_eq!(ejected(&group), [false, false, true, false, false, false]);
    }

    #[test]
    fn a_member_that_was_away_does_not_stay_ejected() {
        let (group, mut outliers) = (group(3, 0.5), Outliers::default());
        run(&group, 0, "xxxxx", at(1_000));
        outliers.update_ejections(&group, at(1_000));
        assert_eq!(ejected(&group), [true, false, false]);
        // It leaves, and is forgotten meanwhile.
        let without = group_of(group.members()[1..].to_vec(), 0.5);
        assert_eq!(outliers.update_ejections(&without, at(100_000)), []);
        assert!(outliers.histories.is_empty());
        let event = Event::Returned;
        let changes = outliers.update_ejections(&group, at(100_100));
        assert_eq!(changes, [Change { index: 0, event }]);
        assert_eq!(ejected(&group), [false; 3]);
    }

    #[test]
    fn an_ejection_that_follows_another_is_longer() {
        let (group, mut outliers) = (group(2, 0.5), Outliers::default());
        let (mut now, mut times) = (1_000, Vec::new());
        for _ in 0..8 {
            run(&group, 0, "xxxxx", at(now));
            let changes = outliers.update_ejections(&group, at(now));
            let Event::Ejected { time, .. } = changes[0].event else {
                panic!("{changes:?}")
            };
            times.push(time.as_secs());
            now += time.as_millis() as u64;
            outliers.update_ejections(&group, at(now));
        }
        assert_eq!(times, [10, 20, 40, 80, 160, 300, 300, 300]);
        // Good for as long as it was out: the next one is a first one.
        now += 300_000;
        outliers.update_ejections(&group, at(now));
        run(&group, 0, "xxxxx", at(now));
        let changes = outliers.update_ejections(&group, at(now));
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
            trials: true,
        };
        let mut settings = GroupSettings {
            ejection,
            ..GroupSettings::default()
        };
        let kind = default_kind();
        let of = |settings: &GroupSettings| {
            let members: Vec<Member> = (0..4).map(make_member).collect();
            let state = Arc::<GroupState>::default();
            let strategy = Values::defaults(kind);
            Group::new("g", settings.clone(), &strategy, members, state)
        };
        let (group, mut outliers) = (of(&settings), Outliers::default());
        let mut times = Vec::new();
        for (now, back) in [(1_000, 4_000), (4_100, 8_100), (8_200, 12_200)] {
            run(&group, 0, "xx", at(now));
            let changes = outliers.update_ejections(&group, at(now));
            let out = changes.iter().find_map(|change| match change.event {
                Event::Ejected { time, .. } => Some(time.as_secs()),
                Event::Returned | Event::Recovered => None,
            });
            times.push(out);
            assert_eq!(outliers.update_ejections(&group, at(back - 1)), []);
            assert_eq!(outliers.update_ejections(&group, at(back)).len(), 1);
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
            let changes = outliers.update_ejections(&group, at(1_000 + later * 1_000));
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
            outliers.update_ejections(&first, at(1000)),
            [],
            "all fail: nobody's fault"
        );

        let second = group(3, 0.5);
        run(&second, 0, &"x.".repeat(9), at(1000));
        run(&second, 1, &".".repeat(100), at(1000));
        assert_eq!(
            outliers.update_ejections(&second, at(1000)),
            [],
            "18 requests say nothing"
        );
        run(&second, 0, "x.", at(1100));
        let changes = outliers.update_ejections(&second, at(1100));
        let event = Event::Ejected {
            cause: Cause::Failures(FailureCause::Share(0.5, 0.0)),
            time: FIRST_TIME,
        };
        assert_eq!(changes, [Change { index: 0, event }]);
        // What failed before the ejection does not eject again after it.
        outliers.update_ejections(&second, at(11_100));
        run(&second, 0, &".".repeat(30), at(11_150));
        assert_eq!(outliers.update_ejections(&second, at(11_200)), []);
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
            outliers.update_ejections(&group, at(1000));
            assert_eq!(ejected(&group), expected, "{threshold}");
        }
    }

    #[test]
    fn f3_a_member_of_weight_zero_is_not_one_that_could_serve() {
        let (group, mut outliers) = (group(3, 0.5), Outliers::default());
        let weigh = |index: usize, weight: f64| {
            let weight = Weight::new(weight).unwrap();
            group.members()[index].slot.set_weight(weight);
        };
        weigh(1, 0.0);
        weigh(2, 0.0);
        run(&group, 0, "xxxxx", at(1000));
        assert_eq!(
            outliers.update_ejections(&group, at(1000)),
            [],
            "the last one that serves"
        );
        weigh(1, 1.0);
        assert_eq!(outliers.update_ejections(&group, at(1100)).len(), 1);
        assert_eq!(ejected(&group), [true, false, false]);
    }

    #[test]
    fn members_that_are_out_for_another_reason_count() {
        let (group, mut outliers) = (group(4, 0.5), Outliers::default());
        group.members()[3].slot.set(Reason::Down, true);
        group.members()[2].slot.set(Reason::Down, true);
        run(&group, 0, "xxxxx", at(1000));
        assert_eq!(outliers.update_ejections(&group, at(1000)), []);
        group.members()[2].slot.set(Reason::Down, false);
        assert_eq!(outliers.update_ejections(&group, at(1100)).len(), 1);
    }

    #[test]
    fn an_administrator_ends_an_ejection_and_its_failures_count_no_more() {
        for (outcomes, cause) in [
            ("x.".repeat(10) + "xxxxx", FailureCause::InARow(5)),
            ("x.".repeat(10), FailureCause::Share(0.5, 0.0)),
        ] {
            let (group, mut outliers) = (group(3, 0.5), Outliers::default());
            let bad = &group.members()[0];
            run(&group, 0, &outcomes, at(1_000));
            run(&group, 1, &".".repeat(100), at(1_000));
            assert_eq!(outliers.update_ejections(&group, at(1_000)).len(), 1);
            let ejection = outliers.ejection(bad, at(1_500)).unwrap();
            assert_eq!(ejection.failures, Some(cause));

            assert!(outliers.end_ejection(bad, at(2_500)));
            assert!(!outliers.end_ejection(bad, at(2_500)), "it is over");
            assert_eq!(ejected(&group), [false; 3]);
            assert_eq!(outliers.ejection(bad, at(2_500)), None);
            assert_eq!(bad.slot.ramp_from(), Some(at(2_500)), "it starts slowly");
            assert_eq!(bad.slot.consecutive_failures(), 0);
            let decay = group.settings().latency_decay;
            assert_eq!(bad.slot.failure_share(at(2_500), decay), 0.0);
            assert_eq!(bad.slot.penalty(at(2_500), decay), 0.0);
            run(&group, 0, &".".repeat(30), at(4_000));
            for now in [2_600, 4_000, 10_000] {
                assert_eq!(outliers.update_ejections(&group, at(now)), [], "{cause}");
            }
            // Failures after it count as those of a member that was never ejected.
            run(&group, 0, "xxxxx", at(10_000));
            let changes = outliers.update_ejections(&group, at(10_000));
            let event = Event::Ejected {
                cause: Cause::Failures(FailureCause::InARow(5)),
                time: FIRST_TIME,
            };
            assert_eq!(changes, [Change { index: 0, event }]);
        }
    }

    #[test]
    fn failures_short_of_an_ejection_are_forgotten_too() {
        let (group, mut outliers) = (group(2, 0.5), Outliers::default());
        run(&group, 0, "xxxx", at(1_000));
        assert!(!outliers.end_ejection(&group.members()[0], at(1_000)));
        assert_eq!(group.members()[0].slot.ramp_from(), None, "it was not out");
        run(&group, 0, "x", at(1_100));
        assert_eq!(outliers.update_ejections(&group, at(1_100)), []);
    }

    #[test]
    fn an_administrator_ends_an_ejection_that_others_know_of() {
        // By the word of another alone, and by own failures that another has seen, too.
        for own in ["", "xxxxx"] {
            let (group, mut outliers) = (group(4, 0.5), Outliers::default());
            let said = |until| [(1, word("lb-2", until, 50, 50))];
            run(&group, 1, own, at(1_000));
            round(&group, &mut outliers, &said(30_000), 1_000);
            assert_eq!(ejected(&group), [false, true, false, false]);
            assert!(outliers.end_ejection(&group.members()[1], at(2_000)));
            // What it says takes its time, so that the end seems to move.
            for (until, now) in [(30_000, 2_100), (30_900, 2_200), (29_900, 29_000)] {
                let words = round(&group, &mut outliers, &said(until), now);
                assert_eq!(words, by(&["", "", "", ""]), "{now}");
                assert_eq!(ejected(&group), [false; 4]);
            }
            // The other one has ejected it again.
            let words = round(&group, &mut outliers, &said(50_000), 30_000);
            assert_eq!(words, by(&["", "lb-2", "", ""]));
        }
    }

    fn word(of: &str, until: u64, requests: u32, failures: u32) -> PeerEjection {
        PeerEjection {
            of: of.into(),
            until: at(until),
            traffic: MemberTraffic { requests, failures },
        }
    }

    /// A round; answers who is out by whose word.
    fn round(
        group: &Group,
        outliers: &mut Outliers,
        words: &[(usize, PeerEjection)],
        now: u64,
    ) -> Vec<Option<String>> {
        outliers.update_ejections(group, at(now));
        outliers.heed_peers(group, words, at(now));
        let of = |member: &Member| {
            outliers
                .peer_ejection(member.id)
                .map(|word| word.of.to_string())
        };
        group.members().iter().map(of).collect()
    }

    fn by(names: &[&str]) -> Vec<Option<String>> {
        let some = |name: &&str| (!name.is_empty()).then(|| (*name).to_owned());
        names.iter().map(some).collect()
    }

    #[test]
    fn the_word_of_another_counts_as_long_as_it_says_so() {
        let (group, mut outliers) = (group(4, 0.5), Outliers::default());
        let words = [(1, word("lb-2", 9_000, 20, 20))];
        let changes = outliers.heed_peers(&group, &words, at(1_000));
        let seen = MemberTraffic {
            requests: 20,
            failures: 20,
        };
        let event = Event::Ejected {
            cause: Cause::Word("lb-2".into(), seen),
            time: Duration::from_secs(8),
        };
        assert_eq!(changes, [Change { index: 1, event }]);
        assert_eq!(ejected(&group), [false, true, false, false]);
        assert_eq!(
            round(&group, &mut outliers, &words, 8_900),
            by(&["", "lb-2", "", ""])
        );
        assert_eq!(
            outliers.ejection(&group.members()[1], at(8_900)),
            None,
            "not its own"
        );
        assert_eq!(outliers.ejections().count(), 0);
        // Its time is over, whatever is still said.
        assert_eq!(outliers.update_ejections(&group, at(9_000)), []);
        let returned = Change {
            index: 1,
            event: Event::Returned,
        };
        assert_eq!(
            outliers.heed_peers(&group, &words, at(9_000)),
            std::slice::from_ref(&returned)
        );
        assert_eq!(group.members()[1].slot.ramp_from(), Some(at(9_000)));

        // Or it is taken back.
        let words = [(1, word("lb-2", 30_000, 20, 20))];
        assert_eq!(
            round(&group, &mut outliers, &words, 20_000),
            by(&["", "lb-2", "", ""])
        );
        assert_eq!(outliers.heed_peers(&group, &[], at(20_100)), [returned]);
        assert_eq!(ejected(&group), [false; 4]);
        assert_eq!(outliers.heed_peers(&group, &[], at(20_200)), []);
        // What others have said makes no ejection of its own longer.
        run(&group, 1, "xxxxx", at(20_300));
        let changes = outliers.update_ejections(&group, at(20_300));
        assert!(matches!(
            changes[0].event,
            Event::Ejected {
                time: FIRST_TIME,
                ..
            }
        ));
    }

    #[test]
    fn a_success_of_its_own_is_stronger_than_the_word_of_another() {
        let (group, mut outliers) = (group(4, 0.5), Outliers::default());
        let words = [(1, word("lb-2", 90_000, 50, 50))];
        run(&group, 1, ".", at(1_000));
        let window = 10_000;
        for now in [1_000, 5_000, window] {
            assert_eq!(
                round(&group, &mut outliers, &words, now),
                by(&["", "", "", ""])
            );
        }
        // It was too long ago.
        assert_eq!(
            round(&group, &mut outliers, &words, window + 1_000),
            by(&["", "lb-2", "", ""])
        );
        // Failures say nothing else than the other one.
        run(&group, 1, "xxxx", at(12_000));
        assert_eq!(
            round(&group, &mut outliers, &words, 12_000),
            by(&["", "lb-2", "", ""])
        );
        // A request that was there already succeeds.
        run(&group, 1, ".", at(13_000));
        assert_eq!(
            round(&group, &mut outliers, &words, 13_000),
            by(&["", "", "", ""])
        );
        assert_eq!(ejected(&group), [false; 4]);
    }

    #[test]
    fn what_others_have_seen_must_be_enough_here_and_their_time_within_bounds() {
        let max = MAX_TIME.as_millis() as u64;
        for (of, enough) in [
            (word("a", 5_000, 5, 5), true),
            (word("a", 5_000, 4, 4), false),
            // A share.
            (word("a", 5_000, 19, 4), false),
            (word("a", 5_000, 20, 4), false),
            (word("a", 5_000, 18, 5), true),
            (word("a", 5_000, 0, 0), false),
            (word("a", 5_000, 0, 50), false),
            (word("a", 1_000, 50, 50), false),
            (word("a", 999, 50, 50), false),
            (word("a", 1_000 + max, 50, 50), true),
            (word("a", 1_001 + max, 50, 50), false),
            (word("a", u64::MAX / 1_000_000, u32::MAX, u32::MAX), false),
        ] {
            let (group, mut outliers) = (group(2, 0.5), Outliers::default());
            let words = [(0, of.clone()), (7, of.clone())];
            outliers.heed_peers(&group, &words, at(1_000));
            assert_eq!(ejected(&group), [enough, false], "{of:?}");
        }
        let strict = EjectionSettings {
            failure_limit: 1000,
            excess: 0.3,
            ..EjectionSettings::default()
        };
        for (requests, failures, enough) in [(20, 6, false), (20, 7, true), (19, 19, false)] {
            let seen = MemberTraffic { requests, failures };
            assert_eq!(seen.is_enough(&strict), enough, "{seen:?}");
        }
    }

    #[test]
    fn of_several_that_say_so_the_one_counts_that_says_it_for_longest() {
        let (group, mut outliers) = (group(2, 0.5), Outliers::default());
        let of = |names: &[&str]| -> Vec<(usize, PeerEjection)> {
            let all = [
                word("lb-1", 4_000, 9, 9),
                word("lb-2", 6_000, 9, 9),
                word("lb-3", 6_000, 9, 9),
            ];
            let some = all.into_iter().filter(|word| names.contains(&&*word.of));
            some.map(|word| (0, word)).collect()
        };
        let mut round = |names: &[&str], now| round(&group, &mut outliers, &of(names), now);
        assert_eq!(round(&["lb-1"], 1_000), by(&["lb-1", ""]));
        assert_eq!(round(&["lb-2", "lb-1", "lb-3"], 1_100), by(&["lb-3", ""]));
        assert_eq!(round(&["lb-1", "lb-2"], 1_200), by(&["lb-2", ""]));
        assert_eq!(round(&["lb-1"], 1_300), by(&["lb-1", ""]));
        assert_eq!(round(&["lb-1"], 4_000), by(&["", ""]));
        let slot = &group.members()[0].slot;
        assert_eq!(slot.ramp_from(), Some(at(4_000)), "it was out all the time");
    }

    #[test]
    fn others_cannot_have_more_out_than_may_be_and_own_failures_come_first() {
        let (group, mut outliers) = (group(4, 0.5), Outliers::default());
        let words: Vec<(usize, PeerEjection)> = (0..4u32)
            .map(|index| (index as usize, word("lb-2", 60_000, 50, 10 + index)))
            .collect();
        assert_eq!(
            round(&group, &mut outliers, &words[..3], 1_000),
            by(&["", "lb-2", "lb-2", ""])
        );
        // Who is out stays, though more is said of another one.
        assert_eq!(
            round(&group, &mut outliers, &words, 1_100),
            by(&["", "lb-2", "lb-2", ""])
        );
        // One that fails here has the place of one of them.
        run(&group, 0, "xxxxx", at(1_200));
        assert_eq!(
            round(&group, &mut outliers, &words, 1_200),
            by(&["", "", "lb-2", ""])
        );
        assert_eq!(ejected(&group), [true, false, true, false]);
        let own = outliers.ejection(&group.members()[0], at(1_200)).unwrap();
        assert_eq!((own.traffic.requests, own.traffic.failures), (5, 5));
        // So has one that is down.
        group.members()[3].slot.set(Reason::Down, true);
        assert_eq!(
            round(&group, &mut outliers, &words, 1_300),
            by(&["", "", "", ""])
        );
        assert_eq!(ejected(&group), [true, false, false, false]);
    }

    #[test]
    fn a_member_that_leaves_while_others_have_it_out_does_not_stay_out() {
        let (group, mut outliers) = (group(4, 0.5), Outliers::default());
        let words = [(0, word("lb-2", 60_000, 50, 50))];
        round(&group, &mut outliers, &words, 1_000);
        let without = group_of(group.members()[1..].to_vec(), 0.5);
        assert_eq!(
            round(&without, &mut outliers, &[], 1_100),
            by(&["", "", ""])
        );
        assert_eq!(ejected(&group), [true, false, false, false]);
        round(&group, &mut outliers, &[], 1_200);
        assert_eq!(ejected(&group), [false; 4]);
    }

    /// Requests seen in a row may have taken longer than the window.
    #[test]
    fn others_are_told_what_was_seen() {
        let (group, mut outliers) = (group(2, 0.5), Outliers::default());
        for second in 0..5 {
            run(&group, 0, "x", at(1_000 + second * 8_000));
        }
        outliers.update_ejections(&group, at(33_000));
        let own = outliers.ejection(&group.members()[0], at(33_000)).unwrap();
        let seen = MemberTraffic {
            requests: 5,
            failures: 5,
        };
        assert_eq!(
            (own.until, own.time, own.traffic),
            (at(43_000), FIRST_TIME, seen)
        );
        assert!(seen.is_enough(&group.settings().ejection));
        outliers.update_ejections(&group, at(43_000));
        assert_eq!(outliers.ejection(&group.members()[0], at(43_000)), None);
    }

    proptest! {
        /// Whatever others say, and whatever fails here: nobody panics, somebody is left, nobody is out by
        /// the word of another who has answered here, who says it says it now, and all ejections end.
        #[test]
        fn words_are_bounded_and_end(
            count in 1u64..8,
            threshold in 0.0f32..=1.0,
            steps in proptest::collection::vec(
                (
                    (0usize..8, 0u64..3, 0u64..9, 1u64..5000),
                    proptest::collection::vec(
                        (0usize..9, 0u8..3, 0u64..400_000, 0u32..60, 0u32..80), 0..12,
                    ),
                ),
                1..60,
            ),
        ) {
            let (group, mut outliers) = (group(count, threshold), Outliers::default());
            let (mut now, mut out) = (1_000, vec![false; count as usize]);
            for ((index, good, bad, ms), said) in steps {
                now += ms;
                let index = index % count as usize;
                let outcomes = ".".repeat(good as usize) + &"x".repeat(bad as usize);
                run(&group, index, &outcomes, at(now));
                let words = said.into_iter().map(|(index, of, left, requests, failures)| {
                    (index, word(&format!("lb-{of}"), now.saturating_add(left), requests, failures))
                });
                let words: Vec<(usize, PeerEjection)> = words.collect();
                let mut changes = outliers.update_ejections(&group, at(now));
                changes.extend(outliers.heed_peers(&group, &words, at(now)));
                for change in changes {
                    let before = out[change.index];
                    out[change.index] = change.event != Event::Returned;
                    prop_assert!(before != out[change.index]);
                }
                prop_assert_eq!(ejected(&group), out.clone());
                prop_assert!(out.contains(&false));
                let reasons = group.members().iter().map(|m| m.slot.reason_bits());
                prop_assert!(!panics(reasons, threshold));
                for (index, member) in group.members().iter().enumerate() {
                    let own = outliers.ejection(member, at(now));
                    let word = outliers.peer_ejection(member.id);
                    prop_assert_eq!(own.is_some() || word.is_some(), out[index]);
                    prop_assert!(own.is_none() || word.is_none());
                    if let Some(word) = word {
                        prop_assert!(words.contains(&(index, word.clone())));
                        prop_assert!(!succeeds(member, &group, at(now)));
                    }
                }
            }
            for _ in 0..=count {
                now += MAX_TIME.as_millis() as u64;
                outliers.update_ejections(&group, at(now));
                outliers.heed_peers(&group, &[], at(now));
            }
            prop_assert_eq!(ejected(&group), vec![false; count as usize]);
        }
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
                for change in outliers.update_ejections(&group, at(now)) {
                    let before = out[change.index];
                    out[change.index] = change.event != Event::Returned;
                    prop_assert!(before != out[change.index]);
                }
                prop_assert_eq!(ejected(&group), out.clone());
                prop_assert!(out.contains(&false));
                let reasons = group.members().iter().map(|m| m.slot.reason_bits());
                prop_assert!(!panics(reasons, threshold));
            }
            // Whoever was spared because others were out has its turn, too.
            for _ in 0..=count {
                now += MAX_TIME.as_millis() as u64;
                outliers.update_ejections(&group, at(now));
            }
            prop_assert_eq!(ejected(&group), vec![false; count as usize]);
        }
    }
}
